"""What moves between two layouts of the same tensor: how many elements, and which first.

An element stays where it is if both layouts give it the same offset. The two offsets of an element differ by
a sum with one summand for each axis (or group of fused axes), read off the common refinement. So the elements
that stay are counted without visiting them: how often does each summand occur, and in how many combinations
is the sum zero?

>>> from relayout import Layout
>>> found = difference(Layout((1, 17, 2, 2), "nchw"), Layout((1, 17, 2, 2), "nChw8c"))
>>> found.moved, found.elements, found.first[0]
(63, 68, Moved(index=(0, 0, 0, 1), a=1, b=8))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from relayout.layout.layout import HasLayout, Layout, every_index, layout_of
from relayout.loops.refine import Group, offsets_along, refine
from relayout.records import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Shifts = tuple[
        NDArray[np.int64], NDArray[np.int64]
    ]  # distinct summands in rising order, and their counts

__all__ = ["Difference", "Moved", "difference"]

COUNTED = 1 << 22  # as many summands are put in order at once; where there are more, nothing is counted
SCANNED = 1 << 18  # of the numbers of an axis, or of the elements of fused axes, so many are searched


@dataclass(frozen=True)
class Moved:
    """An element and its two places, in elements."""

    index: tuple[int, ...]
    a: int
    b: int


class Difference(NamedTuple):
    """What two layouts of the same tensor have in common, and what not."""

    a: Layout
    b: Layout
    same_bytes: bool
    """Whether the elements and the padding lie alike, so that there is nothing to convert."""
    moved: int | None
    """How many elements lie elsewhere; None where they are too irregular to be counted."""
    first: tuple[Moved, ...]
    """The first of them, in row-major order of their indices."""

    @property
    def elements(self) -> int:
        """How many elements there are."""
        return self.a.size

    @property
    def padding(self) -> tuple[int, int]:
        """The elements that are padding, in either layout."""
        one, two = (prod(layout.padded) - layout.size for layout in (self.a, self.b))
        return one, two


def difference(a: Layout | HasLayout, b: Layout | HasLayout, most: int = 8) -> Difference:
    """Compare two layouts of the same dims, axis by axis in their order.

    Parameters
    ----------
    a, b : Layout
        Two layouts of the same dims, or descriptors or tensors for their layouts.
    most : int
        How many of the elements that lie elsewhere are listed. Fewer are where they do not come up among the
        first 2**18 numbers of any axis.

    Returns
    -------
    Difference

    Raises
    ------
    LayoutError
        The layouts have different dims.

    Examples
    --------
    Eight channels fill a block of ``nChw8c``, so that it is ``nhwc``; of nine one stands alone.

    >>> from relayout import Layout
    >>> difference(Layout((2, 8, 3, 3), "nChw8c"), Layout((2, 8, 3, 3), "nhwc")).same_bytes
    True
    >>> found = difference(Layout((2, 9, 3, 3), "nChw8c"), Layout((2, 9, 3, 3), "nhwc"))
    >>> found.same_bytes, found.moved, found.padding
    (False, 154, (126, 0))
    """
    a, b = layout_of(a), layout_of(b)
    groups = refine(a, b)
    base = b.offset0 - a.offset0
    moved = _moved(groups, base, a, b)
    if a.same_bytes(b):
        return Difference(a, b, True, 0, ())
    first = () if moved == 0 else tuple(islice(_indices(groups, base, a, b), most))
    listed = tuple(Moved(index, a.offset(*index), b.offset(*index)) for index in first)
    return Difference(a, b, False, moved, listed)


# -- counting ------------------------------------------------------------------------------------------------


def _moved(groups: Sequence[Group], base: int, a: Layout, b: Layout) -> int | None:
    """The number of elements whose summands do not add up to zero; None where there are too many of them."""
    elements = prod(group.size for group in groups)
    if not elements:
        return 0
    several: list[Shifts] = []
    copies = 1  # of what the other groups count
    for group in groups:
        shifts = _shifts(group, a, b)
        if shifts is None:
            return None
        values, counts = shifts
        if len(values) == 1:
            base += int(values[0])
            copies *= int(counts[0])
        else:
            several.append(shifts)
    halves: list[list[Shifts]] = [[], []]
    for shifts in sorted(several, key=lambda s: -len(s[0])):  # the two products come out about equal
        min(halves, key=lambda half: prod(len(values) for values, _ in half)).append(shifts)
    one, two = (_sums(half) for half in halves)
    if one is None or two is None:
        return None
    return elements - copies * _zeros(one, two, base)


def _shifts(group: Group, a: Layout, b: Layout) -> Shifts | None:
    """How far the numbers of a group move elements, and how many of them so far."""
    import numpy as np

    if group.pieces is None:
        if group.size > COUNTED:
            return None
        table = _table(group.axes, np.arange(group.size, dtype=np.int64), a, b)
        return _counted(table, np.ones_like(table))
    parts = []
    for piece in group.pieces:
        _, one, two = piece.starts
        values, counts = np.array([two - one]), np.ones(1, dtype=np.int64)
        for loop in piece.loops:
            _, one, two = loop.steps
            step = two - one
            if not step:
                counts = counts * loop.extent
                continue
            if loop.extent * len(values) > COUNTED:
                return None
            steps = step * np.arange(loop.extent, dtype=np.int64)
            values, counts = _added((values, counts), (steps, np.ones_like(steps)))
        parts.append((values, counts))
    return _counted(np.concatenate([v for v, _ in parts]), np.concatenate([c for _, c in parts]))


def _table(axes: Sequence[int], numbers: NDArray[np.int64], a: Layout, b: Layout) -> NDArray[np.int64]:
    """How far the numbers of a group move elements, one by one."""
    return offsets_along(b, axes, numbers) - offsets_along(a, axes, numbers)


def _counted(values: NDArray[np.int64], counts: NDArray[np.int64]) -> Shifts:
    """The same summands, each once and in order."""
    import numpy as np

    distinct, where = np.unique(values, return_inverse=True)
    total = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(total, where.reshape(-1), counts)
    return distinct, total


def _added(one: Shifts, two: Shifts) -> Shifts:
    """The sums of two independent summands."""
    import numpy as np

    return _counted(np.add.outer(one[0], two[0]).ravel(), np.multiply.outer(one[1], two[1]).ravel())


def _sums(several: Sequence[Shifts]) -> Shifts | None:
    """The sums of independent summands; None where there are too many."""
    import numpy as np

    made = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    for shifts in several:
        if len(made[0]) * len(shifts[0]) > COUNTED:
            return None
        made = _added(made, shifts)
    return made


def _zeros(one: Shifts, two: Shifts, base: int) -> int:
    """How many combinations add up to zero, together with ``base``."""
    import numpy as np

    wanted = -(one[0] + np.int64(base))
    places = np.minimum(np.searchsorted(two[0], wanted), len(two[0]) - 1)
    found = two[0][places] == wanted
    return int(np.sum(one[1][found] * two[1][places[found]]))


# -- listing -------------------------------------------------------------------------------------------------


def _indices(groups: Sequence[Group], base: int, a: Layout, b: Layout) -> Iterator[tuple[int, ...]]:
    """The indices of the elements that lie elsewhere, in row-major order."""
    import numpy as np

    if any(len(group.axes) > 1 for group in groups):
        yield from _scanned(a, b)
        return
    tables = [
        _table((k,), np.arange(min(size, SCANNED), dtype=np.int64), a, b) for k, size in enumerate(a.dims)
    ]
    still = [not np.any(table) for table in tables]  # axes along which nothing moves
    behind = [all(still[k:]) for k in range(len(tables) + 1)]

    def descend(axis: int, shift: int) -> Iterator[tuple[int, ...]]:
        if behind[axis]:  # from here on all elements move, or none
            if shift:
                yield from every_index(a.dims[axis:])
            return
        for number, step in enumerate(tables[axis]):
            for rest in descend(axis + 1, shift + int(step)):
                yield (number, *rest)

    yield from descend(0, base)


def _scanned(a: Layout, b: Layout) -> Iterator[tuple[int, ...]]:
    """The same, one element after the other: for fused axes."""
    import numpy as np

    numbers = np.arange(min(a.size, SCANNED), dtype=np.int64)
    indices = np.stack(np.unravel_index(numbers, a.dims), axis=-1)
    for k in np.nonzero(a.offsets(indices) != b.offsets(indices))[0]:
        yield tuple(map(int, indices[k]))
