"""The common refinement: two layouts of the same tensor as one nest of loops.

To convert a tensor is to visit every element once, knowing where it lies in either layout. Both layouts are
sums of digits, but of different digits: ``nChw8c`` cuts the channels at 8, ``nChw16c`` at 16. Cut every axis
wherever *either* of them cuts, and each of the resulting loops has one stride on either side::

    nchw 1x32x2x2 -> nChw8c              c -> c//8, c%8
    loop      extent  step  source  destination
    c//8      4       8     32      32
    c%8       8       1     4       1
    h         2       1     2       16
    w         2       1     1       8

Three things complicate this, and each has its place here:

* Sizes that blocks don't divide: 17 channels in blocks of 8 are two whole blocks and one channel. An axis is
  therefore a list of *pieces*, each a nest of its own with a start on either side; a tensor is the product of
  the pieces of its axes.
* Blocks that don't divide each other (48 and 32): within one period (96) the numbers fall into runs on which
  both sides are straight (0..32, 32..48, 48..64, 64..96); every run is a piece, repeated for every period.
* Fused axes (clDNN's ``yx``) tie axes together; they form one *group*, and its number is read row-major. Only
  if not even that gives a nest (padding in the middle of a fused number) does a group have no pieces; then
  there is the table of its offsets, which always exists.

So every pair of layouts has a refinement: reorder is total.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import lcm, prod
from typing import Any, NamedTuple, TypeVar, cast

from relayout.errors import LayoutError
from relayout.layout.canonical import merge, trim
from relayout.layout.layout import Digit, Layout, spell_dims

__all__ = ["Group", "Loop", "Piece", "axis_number", "refine", "self_pieces"]

_Number = TypeVar("_Number", bound=Any)

LONGEST_PERIOD = 1 << 16  # numbers of one period that are looked at one by one


class Loop(NamedTuple):
    """One loop.

    ``extent`` steps, each worth ``step`` on the number of its group and moving so many elements on either
    side.
    """

    extent: int
    step: int
    src: int
    dst: int


class Piece(NamedTuple):
    """A nest of loops, outermost first.

    It begins at the number ``start``, and at offsets ``src`` and ``dst``, in elements.
    """

    start: int
    src: int
    dst: int
    loops: tuple[Loop, ...]

    @property
    def size(self) -> int:
        """How many numbers the piece visits."""
        return prod(loop.extent for loop in self.loops)


class Group(NamedTuple):
    """Axes whose offsets depend on one number (almost always: one axis), with the pieces of that number.

    None: use the tables.
    """

    axes: tuple[int, ...]
    size: int
    pieces: tuple[Piece, ...] | None


def refine(src: Layout, dst: Layout) -> tuple[Group, ...]:
    """Cut every axis at the digit borders of both layouts.

    Raises
    ------
    LayoutError
        The layouts have different dims.

    Examples
    --------
    >>> channels = refine(Layout((1, 17, 2, 2), "nchw"), Layout((1, 17, 2, 2), "nChw8c"))[1]
    >>> for piece in channels.pieces:
    ...     print(piece.start, piece.loops)
    0 (Loop(extent=2, step=8, src=32, dst=32), Loop(extent=8, step=1, src=4, dst=1))
    16 (Loop(extent=1, step=1, src=4, dst=1),)
    """
    if src.dims != dst.dims:
        raise LayoutError(
            f"source and destination must have the same dims, got {spell_dims(src.dims)} and "
            f"{spell_dims(dst.dims)}"
        )
    return tuple(_group(axes, src, dst) for axes in _tied_axes(src, dst))


def self_pieces(ladder: tuple[Digit, ...], size: int) -> tuple[Piece, ...]:
    """The numbers 0 .. size - 1 of one layout alone, as nests (``src`` and ``dst`` are the same)."""
    digits = merge(trim(ladder, size))
    return tuple(_nested(digits, digits, 0, size, sorted({1, *(d.weight for d in digits)})))


def axis_number(axes: Sequence[int], dims: Sequence[int], axis: int, number: _Number) -> _Number:
    """The index of one axis in a group's row-major number (an int or an array of them)."""
    behind = prod(dims[a] for a in axes[list(axes).index(axis) + 1 :])
    result = number // behind if behind != 1 else number
    return cast(_Number, result % dims[axis] if axes[0] != axis else result)


def _tied_axes(src: Layout, dst: Layout) -> list[tuple[int, ...]]:
    """Groups of axes that either layout fuses, in an order in which the longest fused term is row-major."""
    groups: list[list[int]] = [[axis] for axis in range(src.rank)]
    for term in sorted((*src.terms, *dst.terms), key=len, reverse=True):
        touched = [g for g in groups if set(g) & set(term)]
        if len(touched) > 1:
            rest = [a for g in touched for a in g if a not in term]
            groups = [g for g in groups if g not in touched]
            groups.append([*term, *rest])
    return sorted(map(tuple, groups), key=min)


def _group(axes: tuple[int, ...], src: Layout, dst: Layout) -> Group:
    size = prod(src.dims[a] for a in axes)
    one, two = _ladder(axes, src), _ladder(axes, dst)
    pieces = None if one is None or two is None else _pieces(one, two, size)
    return Group(axes, size, pieces)


def _ladder(axes: tuple[int, ...], layout: Layout) -> tuple[Digit, ...] | None:
    """The digits of a group's row-major number; None where its terms don't chain.

    They are in another order then, or have padding in between.
    """
    ladder: tuple[Digit, ...] = ()
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


def offset_of(ladder: Sequence[Digit], number: int) -> int:
    """The sum of the digits of a number."""
    return sum(number // weight % extent * stride for weight, extent, stride in ladder)


def _pieces(src: tuple[Digit, ...], dst: tuple[Digit, ...], size: int) -> tuple[Piece, ...] | None:
    if size == 0:
        return ()
    weights = sorted({1, *(d.weight for d in (*src, *dst) if d.weight < size)})
    if all(big % small == 0 for small, big in pairwise(weights)):
        return tuple(_nested(src, dst, 0, size, weights))
    period = lcm(*weights)
    if min(period, size) > LONGEST_PERIOD:
        return None
    return tuple(_runs(src, dst, size, period))


def _nested(
    src: tuple[Digit, ...], dst: tuple[Digit, ...], start: int, size: int, weights: list[int]
) -> list[Piece]:
    """Pieces where every border divides the next.

    Whole multiples of the largest border, then what is left, by the smaller ones.
    """
    pieces = []
    while size:
        weights = [w for w in weights if w <= size]
        top = weights[-1]
        extents = [big // small for small, big in pairwise(weights)] + [size // top]
        loops = [
            Loop(extent, w, _stride(src, w), _stride(dst, w))
            for w, extent in zip(weights, extents, strict=True)
            if extent > 1 or w == top
        ]
        pieces.append(Piece(start, offset_of(src, start), offset_of(dst, start), _joined(loops)))
        taken = size // top * top
        start, size = start + taken, size - taken
    return pieces


def _stride(ladder: Sequence[Digit], weight: int) -> int:
    """How far a step of ``weight`` moves.

    The stride of the digit that it belongs to, times the steps of that digit.
    """
    for digit in ladder:
        if digit.weight <= weight:
            return digit.stride * (weight // digit.weight)
    return 0


def _joined(loops: list[Loop]) -> tuple[Loop, ...]:
    """Join loops of which the outer continues the inner one on both sides; outermost first."""
    out: list[Loop] = []
    for loop in loops:  # innermost first
        if out and (loop.step, loop.src, loop.dst) == tuple(out[-1].extent * s for s in out[-1][1:]):
            out[-1] = Loop(out[-1].extent * loop.extent, *out[-1][1:])
        else:
            out.append(loop)
    return tuple(reversed(out))


def _runs(src: tuple[Digit, ...], dst: tuple[Digit, ...], size: int, period: int) -> list[Piece]:
    """Pieces where borders don't divide each other.

    The straight runs of one period, each repeated for all periods that hold it.
    """
    within = min(size, period)
    places = [(offset_of(src, v), offset_of(dst, v)) for v in range(within)]
    rise = (_stride(src, period), _stride(dst, period))
    pieces = []
    start = 0
    while start < within:
        end, step = start + 1, (0, 0)
        if end < within:
            step = _difference(places[end], places[start])
            end += 1
            while end < within and _difference(places[end], places[end - 1]) == step:
                end += 1
        full = max(0, (size - end) // period + 1)  # periods that hold the whole run
        left = size - (start + full * period)  # what the last period holds of it
        src_at, dst_at = places[start]
        for turn, count, length in ((0, full, end - start), (full, 1, left)):
            if count and length > 0:
                loops = (Loop(count, period, *rise), Loop(length, 1, *step))
                pieces.append(
                    Piece(
                        start + turn * period,
                        src_at + turn * rise[0],
                        dst_at + turn * rise[1],
                        tuple(loop for loop in loops if loop.extent > 1) or loops[1:],
                    )
                )
        start = end
    return pieces


def _difference(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] - b[0], a[1] - b[1]
