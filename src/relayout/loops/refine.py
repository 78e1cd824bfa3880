"""The common refinement: any layouts of the same dims as nests of loops.

To convert a tensor, to add two of them, to look up a scale for each channel is to visit every index once,
knowing its place in every operand. All of these are sums of digits, but of different digits: ``nChw8c`` cuts
the channels at 8, ``nChw16c`` at 16. Cut every axis wherever *any* operand cuts it, and each of the resulting
loops has one step in each of them::

    nchw 1x32x2x2 -> nChw8c              c -> c//8, c%8
    loop      extent  number  source  destination
    c//8      4       8       32      32
    c%8       8       1       4       1
    h         2       1       2       16
    w         2       1       1       8

The index of an axis is itself an operand, the first one: ``number``.

Three things complicate this, and each has its place here:

* Sizes that blocks don't divide: 17 channels in blocks of 8 are two whole blocks and one channel. An axis is
  therefore a list of *pieces*, each a nest of its own; a tensor is the product of the pieces of its axes.
* Blocks that don't divide each other (48 and 32): within one period (96) the numbers fall into runs on which
  all operands are straight (0..32, 32..48, 48..64, 64..96); every run is a piece, repeated for every period.
* Fused axes (clDNN's ``yx``) tie axes together; they form one *group*, and its number is read row-major. Only
  if not even that gives a nest (padding in the middle of a fused number) does a group have no pieces; then
  there are tables of its offsets (:func:`offsets_along`), which always exist.

So all layouts have a refinement: reorder is total. An operand that broadcasts is a layout with strides of 0,
a table with an entry for each index of an axis one with a single stride of 1 (:func:`table_along`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import lcm, prod
from typing import TYPE_CHECKING, NamedTuple

from relayout.errors import LayoutError
from relayout.layout.canonical import merge, trim
from relayout.layout.digits import digit_sum
from relayout.layout.layout import Digit, Layout, spell_dims
from relayout.loops.nest import Loop, Nest, joined

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Group", "choices", "combined", "nests", "offsets_along", "pieces", "refine", "table_along"]

Ladder = tuple[Digit, ...]

LONGEST_PERIOD = 1 << 16  # numbers of one period that are looked at one by one


class Group(NamedTuple):
    """Axes whose offsets depend on one number (almost always: one axis), with the pieces of that number.

    A piece is a nest in elements whose operands are the number, and then the layouts; their ``offset0`` is
    left out. None: use the tables.
    """

    axes: tuple[int, ...]
    size: int
    pieces: tuple[Nest, ...] | None


def refine(*layouts: Layout) -> tuple[Group, ...]:
    """Cut every axis at the digit borders of all layouts.

    Raises
    ------
    LayoutError
        The layouts have different dims.

    Examples
    --------
    >>> channels = refine(Layout((1, 17, 2, 2), "nchw"), Layout((1, 17, 2, 2), "nChw8c"))[1]
    >>> for piece in channels.pieces:
    ...     print(piece)
    0,0->0: 2x(8,32,32)  8x(1,4,1)
    16,64->64: 1x(1,4,1)
    """
    first = layouts[0]
    for other in layouts:
        if other.dims != first.dims:
            raise LayoutError(
                f"source and destination must have the same dims, got {spell_dims(first.dims)} and "
                f"{spell_dims(other.dims)}"
            )
    groups = []
    for axes in _tied_axes(layouts):
        size = prod(first.dims[a] for a in axes)
        ladders = [_ladder(axes, layout) for layout in layouts]
        known = [ladder for ladder in ladders if ladder is not None]
        groups.append(Group(axes, size, pieces(known, 0, size) if len(known) == len(layouts) else None))
    return tuple(groups)


def combined(chosen: Iterable[Nest], starts: Sequence[int]) -> Nest:
    """The nest of one piece of each group: its operands are the layouts, which begin at ``starts``.

    >>> groups = refine(Layout((4, 3), "ab"), Layout((4, 3), "ba"))
    >>> print(combined((group.pieces[0] for group in groups), (0, 100)))
    0->100: 4x(3,1)  3x(1,4)
    """
    parts = list(chosen)
    places = zip(starts, *(part.starts[1:] for part in parts), strict=True)
    loops = tuple(Loop(loop.extent, loop.steps[1:]) for part in parts for loop in part.loops)
    return Nest(tuple(map(sum, places)), loops, (1,) * len(starts))


def nests(groups: Sequence[Group], starts: Sequence[int], most: int) -> tuple[Nest, ...] | None:
    """The nests of all choices of pieces; None where there are more than ``most``, or tables only."""
    chosen = choices(groups, most)
    return None if chosen is None else tuple(combined(pieces, starts) for pieces in chosen)


def choices(groups: Sequence[Group], most: int) -> list[tuple[Nest, ...]] | None:
    """Every choice of one piece for each group; None where there are more than ``most``, or tables only."""
    if any(group.pieces is None for group in groups):
        return None
    if prod(len(group.pieces or ()) for group in groups) > most:
        return None
    return list(product(*(group.pieces or () for group in groups)))


@lru_cache(maxsize=256)
def table_along(dims: tuple[int, ...], axis: int) -> Layout:
    """The layout of a table with an entry for each index of one axis: it broadcasts along all others.

    >>> table_along((2, 3, 4), 1).offset(1, 2, 3)
    2
    """
    return Layout(dims, strides=[int(k == axis) for k in range(len(dims))])


def offsets_along(layout: Layout, axes: Sequence[int], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """What the axes of a group add to an offset, for some of its numbers."""
    import numpy as np

    index = np.zeros((len(numbers), layout.rank), np.int64)
    columns = np.unravel_index(numbers, [layout.dims[axis] for axis in axes])
    index[:, list(axes)] = np.stack(columns, axis=-1)
    return layout.offsets(index) - layout.offset0


def _tied_axes(layouts: Sequence[Layout]) -> list[tuple[int, ...]]:
    """Groups of axes that any layout fuses, in an order in which the longest fused term is row-major."""
    groups: list[list[int]] = [[axis] for axis in range(layouts[0].rank)]
    terms = [term for layout in layouts for term in layout.terms]
    for term in sorted(terms, key=len, reverse=True):
        touched = [g for g in groups if set(g) & set(term)]
        if len(touched) > 1:
            rest = [a for g in touched for a in g if a not in term]
            groups = [g for g in groups if g not in touched]
            groups.append([*term, *rest])
    return sorted(map(tuple, groups), key=min)


def _ladder(axes: tuple[int, ...], layout: Layout) -> Ladder | None:
    """The digits of a group's row-major number; None where its terms don't chain.

    They are in another order then, or have padding in between.
    """
    if axes in layout.terms:
        size = prod(layout.dims[a] for a in axes)
        return merge(trim(layout.ladders[layout.terms.index(axes)], size))
    ladder: Ladder = ()
    width = 1
    left = list(axes)
    while left:
        term = next((t for t in layout.terms if tuple(left[-len(t) :]) == t), None)
        if term is None:
            return None
        size = prod(layout.dims[a] for a in term)
        digits = merge(trim(layout.ladders[layout.terms.index(term)], size))
        del left[-len(term) :]
        if left and prod(d.extent for d in digits) != size:
            return None  # numbers further left would run through the padding
        ladder = (*(Digit(d.weight * width, d.extent, d.stride) for d in digits), *ladder)
        width *= size
    return merge(ladder)


# -- one number ---------------------------------------------------------------------------------------------


def pieces(ladders: Sequence[Sequence[Digit]], start: int, stop: int) -> tuple[Nest, ...] | None:
    """The numbers ``start .. stop - 1`` of some ladders as nests; None where a period is too long.

    The first operand is the number itself. The first digits of the ladders are open: they have no end.

    >>> for piece in pieces([(Digit(8, 3, 32), Digit(1, 8, 1))], 5, 17):
    ...     print(piece)
    5->5: 3x(1,1)
    8->32: 8x(1,1)
    16->64: 1x(1,1)
    """
    if start >= stop:
        return ()
    weights = sorted({1, *(d.weight for ladder in ladders for d in ladder if d.weight < stop)})
    if all(big % small == 0 for small, big in pairwise(weights)):
        return tuple(_nested(ladders, start, stop, weights))
    period = lcm(*weights)
    if start or min(period, stop) > LONGEST_PERIOD:
        return None
    return tuple(_runs(ladders, stop, period))


def _nested(ladders: Sequence[Sequence[Digit]], start: int, stop: int, weights: list[int]) -> list[Nest]:
    """Pieces where every border divides the next: as many whole multiples of the largest border as fit."""
    found = []
    while start < stop:
        k = max(k for k, w in enumerate(weights) if start % w == 0 and start + w <= stop)
        top = weights[k]
        end = stop // top * top
        if k + 1 < len(weights):
            end = min(end, start // weights[k + 1] * weights[k + 1] + weights[k + 1])
        inner = reversed([(big // small, small) for small, big in pairwise(weights[: k + 1])])
        loops = tuple(
            Loop(extent, (w, *(_stride(ladder, w) for ladder in ladders)))
            for extent, w in (((end - start) // top, top), *inner)
        )
        found.append(_piece(ladders, start, loops))
        start = end
    return found


def _piece(ladders: Sequence[Sequence[Digit]], start: int, loops: tuple[Loop, ...]) -> Nest:
    """A nest that begins at a number, with the loops that continue each other joined."""
    starts = (start, *(digit_sum(ladder, start) for ladder in ladders))
    return Nest(starts, joined(loops) or loops[-1:], (1,) * len(starts))


def _stride(ladder: Sequence[Digit], weight: int) -> int:
    """How far a step of ``weight`` moves.

    The stride of the digit that it belongs to, times the steps of that digit.
    """
    for digit in ladder:
        if digit.weight <= weight:
            return digit.stride * (weight // digit.weight)
    return 0


def _runs(ladders: Sequence[Sequence[Digit]], size: int, period: int) -> list[Nest]:
    """Pieces where borders don't divide each other.

    The straight runs of one period, each repeated for all periods that hold it.
    """
    within = min(size, period)
    offsets = [tuple(digit_sum(ladder, number) for ladder in ladders) for number in range(within)]
    rises = [tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairwise(offsets)]
    over = (period, *(_stride(ladder, period) for ladder in ladders))
    found = []
    start = 0
    while start < within:
        end = start + 1
        step = rises[start] if end < within else (0,) * len(ladders)
        while end < within and rises[end - 1] == step:
            end += 1
        full = max(0, (size - end) // period + 1)  # periods that hold the whole run
        left = size - (start + full * period)  # what the last period holds of it
        for turn, count, length in ((0, full, end - start), (full, 1, left)):
            if count and length > 0:
                loops = (Loop(count, over), Loop(length, (1, *step)))
                starts = tuple(
                    at + turn * rise for at, rise in zip((start, *offsets[start]), over, strict=True)
                )
                kept = tuple(loop for loop in loops if loop.extent > 1) or loops[1:]
                found.append(Nest(starts, kept, (1,) * len(starts)))
        start = end
    return found
