"""Do the elements fill their memory? Gaps, elements that share an address, broadcast axes.

PyTorch keeps one flag for this, *non-overlapping and dense*: in some order of the axes, the elements lie one
after another without gap and without sharing. Such a tensor can be copied byte by byte, and a result that is
"like" it gets the same strides. :func:`is_non_overlapping_and_dense` is that flag; :func:`overlaps` answers
the half of it that PyTorch leaves open (its ``has_internal_overlap`` says *too hard* to all but stride 0).

>>> is_non_overlapping_and_dense((2, 3, 4), (12, 1, 3))                     # any order of the axes will do
True
>>> is_non_overlapping_and_dense((2, 3), (4, 1)), overlaps((2, 3), (4, 1))  # a gap of one element
(False, False)
>>> is_non_overlapping_and_dense((4, 3), (1, 1)), overlaps((4, 3), (1, 1))  # a sliding window
(False, True)
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from relayout.pytorch.formats import is_contiguous
from relayout.pytorch.geometry import checked_geometry

__all__ = ["is_non_overlapping_and_dense", "overlaps"]

_PATIENCE = 20_000  # steps of the search before it gives up; strides that occur need a few dozen


def is_non_overlapping_and_dense(dims: Iterable[int], strides: Iterable[int]) -> bool:
    """Tell whether the elements fill their memory exactly once, in any order of the axes.

    The flag of the same name in ``c10/core/TensorImpl.h``. Strides of size-1 axes do not count; a tensor
    without elements has it.

    Parameters
    ----------
    dims, strides : sequence of int
        Sizes and strides in elements.

    Examples
    --------
    >>> is_non_overlapping_and_dense((2, 3, 4, 5), (60, 1, 15, 3))
    True
    >>> is_non_overlapping_and_dense((2, 3), (0, 1))                        # expanded
    False
    """
    sizes, steps = checked_geometry(dims, strides)
    if is_contiguous(sizes, steps):
        return True
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(sizes, steps, strict=True) if size > 1):
        if step != expected:
            return False
        expected *= size
    return True


def overlaps(dims: Iterable[int], strides: Iterable[int]) -> bool | None:
    """Tell whether two different indices share an address; None where finding out would take too long.

    Two indices share an address if their difference d, not all zero, has ``sum(d[i] * strides[i]) == 0``.
    A search over d with ``abs(d[i]) < dims[i]``, slowest axis first, cut short by what the faster axes can
    reach and by their greatest common divisor, decides that in a few steps for strides that occur.

    Parameters
    ----------
    dims, strides : sequence of int
        Sizes and strides in elements.

    Examples
    --------
    >>> overlaps((2, 3), (0, 1)), overlaps((3, 3), (2, 1)), overlaps((3, 2), (2, 1))
    (True, True, False)
    """
    sizes, steps = checked_geometry(dims, strides)
    if 0 in sizes:
        return False
    axes = sorted(
        ((step, size - 1) for size, step in zip(sizes, steps, strict=True) if size > 1), reverse=True
    )
    if any(step == 0 for step, _ in axes):
        return True
    try:
        return _Search(axes).finds_shared_address()
    except _OutOfPatience:
        return None


class _OutOfPatience(Exception):
    pass


class _Search:
    """The search behind :func:`overlaps` over axes given as (stride, largest difference), slowest first."""

    def __init__(self, axes: list[tuple[int, int]]) -> None:
        self.axes = axes
        self.reach = [0]  # the largest offset that the axes from here on can make
        self.divisor = [0]  # what divides every offset that they can make
        for step, most in reversed(axes):
            self.reach.insert(0, self.reach[0] + step * most)
            self.divisor.insert(0, gcd(self.divisor[0], step))
        self.patience = _PATIENCE
        self.hopeless: set[tuple[int, int]] = set()

    def finds_shared_address(self) -> bool:
        # A difference and its negative are the same pair of indices: the slowest axis of it counts upwards.
        return any(
            self._cancels(axis + 1, count * self.axes[axis][0])
            for axis in range(len(self.axes))
            for count in self._counts(axis, 0, lowest=1)
        )

    def _cancels(self, first: int, offset: int) -> bool:
        """Can the axes from ``first`` on make this offset, and so take it back?"""
        if offset == 0:
            return True
        if (
            abs(offset) > self.reach[first]
            or offset % self.divisor[first]
            or (first, offset) in self.hopeless
        ):
            return False
        self.patience -= 1
        if self.patience < 0:
            raise _OutOfPatience
        step = self.axes[first][0]
        if any(self._cancels(first + 1, offset - count * step) for count in self._counts(first, offset)):
            return True
        self.hopeless.add((first, offset))
        return False

    def _counts(self, axis: int, offset: int, lowest: int | None = None) -> range:
        """How far to go along an axis so that the faster axes may make what is left of the offset."""
        step, most = self.axes[axis]
        rest, divisor = self.reach[axis + 1], self.divisor[axis + 1]
        low = max(-most, -((rest - offset) // step)) if lowest is None else lowest
        high = min(most, (offset + rest) // step)
        # What is left must be a multiple of the divisor: every period-th count will do, from `start` on.
        common = gcd(step, divisor)
        period = divisor // common or 1
        start = offset // common * pow(step // common, -1, period)
        return range(low + (start - low) % period, high + 1, period)
