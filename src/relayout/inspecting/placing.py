"""A layout from values and the memory that holds them.

The place of an element is a sum with one summand for each axis (or group of fused axes). So a *line* of
elements, all indices fixed but one, shows the summand of that axis, up to a constant. Lines through a few
dozen elements whose values occur once are looked up, laid over each other where they share a known element,
and read as digits. Lines of one axis that disagree mean that the axis is fused with others
(``(y x)//2``): then whole boxes of these axes are looked up and read as one number.

What comes out is a supposition until :func:`compared` has seen every element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod
from typing import NamedTuple

import numpy as np

from relayout.errors import LayoutError
from relayout.inspecting.digits import digits_of
from relayout.inspecting.whereabouts import Integers, Places, Tokens, Whereabouts
from relayout.layout.assembly import from_digits
from relayout.layout.digits import digit_sum
from relayout.layout.layout import Digit, Layout

__all__ = ["Comparison", "compared", "laid_out", "layout_from", "places_of"]

LOOKED_UP = 1 << 18  # elements that are looked up along lines, all axes together
MOST_LINES, FEWEST_LINES = 64, 4
LONG = 1 << 14  # of a longer axis only so many numbers are looked up, and their successors
KNOWN = 0.1  # of the numbers of an axis must have a known place
FUSED = 4  # more axes than this are fused nowhere
CHUNK = 1 << 20  # elements that are compared at a time

Term = tuple[tuple[int, ...], tuple[Digit, ...]]


class Comparison(NamedTuple):
    """How far a layout explains a memory."""

    equal: int
    """Elements that lie where the layout says."""
    different: int
    """Elements in whose place something else lies."""
    outside: int
    """Elements whose place lies outside of the memory."""

    @property
    def exact(self) -> bool:
        """Whether every element was found."""
        return not (self.different or self.outside)


def laid_out(values: Tokens, where: Whereabouts) -> Iterator[Layout]:
    """Layouts that explain where the values lie that occur once, likely ones first.

    >>> import numpy as np
    >>> values = np.arange(6, dtype=np.uint32).reshape(2, 3)
    >>> memory = Whereabouts(np.array([9, 0, 3, 1, 4, 2, 5], np.uint32))
    >>> next(laid_out(values, memory))
    Layout('2x3 strides 1x2+1')
    """
    rng = np.random.default_rng(0)
    seeds, known = _seeds(values, where, rng)
    if not len(seeds):
        return
    numbers = {axis: _numbers(size, rng) for axis, size in enumerate(values.shape) if size > 1}
    lines = _lines(values, where, seeds, numbers)
    terms: list[Term] = [((axis,), ()) for axis in range(values.ndim) if axis not in numbers]
    torn: list[int] = []
    for axis, along in numbers.items():
        table = _one_line(along, lines[axis])
        enough = table is not None and len(table[0]) >= KNOWN * len(along)
        found = digits_of(*table, values.shape[axis]) if table is not None and enough else None
        if found is None:
            torn.append(axis)
        else:
            terms.append(((axis,), found))
    if not torn:
        yield from _placed(values.shape, seeds[0], known[0], terms)
    elif 2 <= len(torn) <= FUSED:
        for axes in permutations(torn):
            fused = _fused(values, where, seeds, axes, rng)
            if fused is not None:
                yield from _placed(values.shape, seeds[0], known[0], [*terms, (axes, fused)])


def layout_from(dims: Sequence[int], terms: Sequence[Term], offset: int) -> Layout:
    """A layout of digits that are not told apart by order: from the largest stride down."""
    digits = [(axes, d) for axes, ladder in terms for d in (ladder or (Digit(1, 1, 1),))]
    digits.sort(key=lambda entry: (-abs(entry[1].stride), entry[0]))
    sizes = {axes: prod(dims[a] for a in axes) for axes, _ in terms}
    return from_digits(tuple(dims), digits, [sizes[axes] for axes in sorted(sizes)], offset)


def places_of(layout: Layout) -> Iterator[tuple[slice, Places]]:
    """The places of all elements: slices of their row-major numbers, and the places of each."""
    sizes = layout.dims
    if not prod(sizes):
        return
    if len(layout.terms) != len(sizes):  # fused axes: by their indices
        for start in range(0, prod(sizes), CHUNK):
            numbers = np.arange(start, min(start + CHUNK, prod(sizes)), dtype=np.int64)
            indices = np.stack(np.unravel_index(numbers, sizes), axis=-1)
            yield slice(start, start + len(numbers)), layout.offsets(indices)
        return
    tables = [
        digit_sum(ladder, np.arange(size, dtype=np.int64))
        for ladder, size in zip(layout.ladders, sizes, strict=True)
    ]
    inner = len(sizes)  # the axes from here on make up the largest part that fits a chunk
    while inner and prod(sizes[inner - 1 :]) <= CHUNK:
        inner -= 1
    within = np.zeros(1, np.int64)
    for table in tables[inner:]:
        within = (within[:, None] + table).reshape(-1)
    for count, outer in enumerate(np.ndindex(*sizes[:inner])):
        start = layout.offset0 + sum(int(tables[a][i]) for a, i in enumerate(outer))
        yield slice(count * len(within), (count + 1) * len(within)), within + start


def compared(values: Tokens, memory: Tokens, layout: Layout, patience: int | None = None) -> Comparison:
    """Compare all elements with what lies in their places.

    ``patience`` is how many elements may differ before the rest is left out.
    """
    flat = values.reshape(-1)
    low, high = layout.bounds()
    inside = low >= 0 and high < memory.size
    equal = different = outside = 0
    for part, places in places_of(layout):
        wanted = flat[part]
        if not inside:
            held = (places >= 0) & (places < memory.size)
            outside += int(np.count_nonzero(~held))
            wanted, places = wanted[held], places[held]
        same = int(np.count_nonzero(memory[places] == wanted))
        equal += same
        different += len(places) - same
        if patience is not None and different > patience:
            break
    return Comparison(equal, different, outside)


def _seeds(values: Tokens, where: Whereabouts, rng: np.random.Generator) -> tuple[Integers, Places]:
    """Indices of some elements whose places are known, and the places: lines are looked up through them."""
    count = max(FEWEST_LINES, min(MOST_LINES, LOOKED_UP // max(1, sum(values.shape))))
    drawn = rng.integers(0, values.size, 16 * count)
    numbers = rng.permutation(np.unique(np.concatenate([[0], drawn])))
    indices = np.stack(np.unravel_index(numbers, values.shape), axis=-1)
    places = where.find(values[tuple(indices.T)])
    known = np.flatnonzero(places >= 0)[:count]
    return indices[known], places[known]


def _numbers(size: int, rng: np.random.Generator) -> Integers:
    if size <= 2 * LONG:
        return np.arange(size, dtype=np.int64)
    drawn = rng.integers(0, size - 1, LONG // 2)
    return np.unique(np.concatenate([np.arange(LONG), drawn, drawn + 1, [size - 2, size - 1]]))


def _lines(
    values: Tokens, where: Whereabouts, seeds: Integers, numbers: dict[int, Integers]
) -> dict[int, Places]:
    """The places along some axes, for each of them a line a seed; all are looked up at once."""
    sought = []
    for axis, along in numbers.items():
        index = [seeds[:, a, None] for a in range(values.ndim)]
        index[axis] = along[None, :]
        sought.append(values[tuple(index)])
    if not sought:
        return {}
    found = where.find(np.concatenate([part.reshape(-1) for part in sought]))
    ends = np.cumsum([part.size for part in sought])[:-1]
    parts = np.split(found, ends)
    return {axis: at.reshape(part.shape) for axis, at, part in zip(numbers, parts, sought, strict=True)}


def _one_line(numbers: Integers, lines: Places) -> tuple[Integers, Places] | None:
    """All lines in one, up to a constant: the numbers with known places; None where lines disagree."""
    known = lines >= 0
    first = int(np.argmax(known.sum(axis=1)))
    table, have = lines[first].copy(), known[first].copy()
    left = [k for k in range(len(lines)) if k != first and known[k].any()]
    while left:
        joined = [k for k in left if (known[k] & have).any()]
        if not joined:
            break
        for k in joined:
            shared = known[k] & have
            shifts = lines[k][shared] - table[shared]
            if (shifts != shifts[0]).any():
                return None
            new = known[k] & ~have
            table[new] = lines[k][new] - shifts[0]
            have |= new
        left = [k for k in left if k not in joined]
    return numbers[have], table[have]


def _fused(
    values: Tokens, where: Whereabouts, seeds: Integers, axes: tuple[int, ...], rng: np.random.Generator
) -> tuple[Digit, ...] | None:
    """The digits of axes that are read as one number, the first the most significant."""
    sizes = [values.shape[a] for a in axes]
    numbers = _numbers(prod(sizes), rng)
    count = max(1, min(len(seeds), LOOKED_UP // len(numbers)))
    index = [seeds[:count, a, None] for a in range(values.ndim)]
    for axis, within in zip(axes, np.unravel_index(numbers, sizes), strict=True):
        index[axis] = within[None, :]
    table = _one_line(numbers, where.find(values[tuple(np.broadcast_arrays(*index))]))
    if table is None or len(table[0]) < KNOWN * len(numbers):
        return None
    return digits_of(*table, prod(sizes))


def _placed(dims: Sequence[int], seed: Integers, place: int, terms: Sequence[Term]) -> Iterator[Layout]:
    """The layout with these digits that puts an element in its place."""
    try:
        at_zero = layout_from(dims, terms, 0)
    except LayoutError:
        return
    yield at_zero.moved(int(place) - at_zero.offset(*(int(i) for i in seed)))
