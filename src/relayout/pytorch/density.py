"""Do the elements fill their memory: gaps, elements that share an address, broadcast axes.

PyTorch keeps one flag for this, *non-overlapping and dense*: in some order of the axes, the elements lie one after
another without gap and without sharing. Such a tensor can be copied byte by byte, and a result that is "like" it gets
the same strides. :func:`is_non_overlapping_and_dense` is that flag; :func:`overlaps` answers the half of it that
PyTorch itself leaves open (its ``has_internal_overlap`` says *too hard* for everything but stride 0).

>>> is_non_overlapping_and_dense((2, 3, 4), (12, 1, 3))      # any order of the axes will do
True
>>> is_non_overlapping_and_dense((2, 3), (4, 1)), overlaps((2, 3), (4, 1))     # a gap of one element
(False, False)
>>> is_non_overlapping_and_dense((4, 3), (1, 1)), overlaps((4, 3), (1, 1))     # a sliding window
(False, True)
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from relayout.pytorch.formats import is_contiguous
from relayout.pytorch.geometry import checked_geometry

__all__ = ["is_non_overlapping_and_dense", "overlaps"]

_PATIENCE = 20_000  # steps of the search before it gives up; tensors that occur need a few dozen


def is_non_overlapping_and_dense(dims: Iterable[int], strides: Iterable[int]) -> bool:
    """Tell whether the elements fill their memory exactly once, in whatever order of the axes.

    The flag of the same name in ``c10/core/TensorImpl.h``. Strides of size-1 axes do not count; a tensor without elements
    has it.

    Parameters
    ----------
    dims, strides : sequence of int
        Sizes and strides in elements.

    Examples
    --------
    >>> is_non_overlapping_and_dense((2, 3, 4, 5), (60, 1, 15, 3))
    True
    >>> is_non_overlapping_and_dense((2, 3), (0, 1))                       # expanded
    False
    """
    sizes, steps = checked_geometry(dims, strides)
    if is_contiguous(sizes, steps):
        return True
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, steps, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def overlaps(dims: Iterable[int], strides: Iterable[int]) -> bool | None:
    """Tell whether two different indices share an address; None where finding out would take too long.

    Two indices share an address if their difference d, with abs(d[i]) < dims[i] and not all zero, has
    sum(d[i] * strides[i]) == 0. A search over d, slowest axis first, cut short by what the other axes can reach
    and by their greatest common divisor, decides that within a few steps for tensors that occur.

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
        ((stride, size - 1) for size, stride in zip(sizes, steps, strict=True) if size > 1), reverse=True
    )
    if any(stride == 0 for stride, _ in axes):
        return True
    reach, divisor = [0], [0]  # of the axes from i on: the largest offset, and what divides every offset
    for stride, most in reversed(axes):
        reach.insert(0, reach[0] + stride * most)
        divisor.insert(0, gcd(divisor[0], stride))

    hopeless: set[tuple[int, int]] = set()
    patience = _PATIENCE

    def cancelled(first: int, offset: int) -> bool | None:
        """Can a difference along the axes from ``first`` on make up for this offset?"""
        nonlocal patience
        if offset == 0:
            return True
        if abs(offset) > reach[first] or offset % divisor[first] or (first, offset) in hopeless:
            return False
        stride, most = axes[first]
        rest = reach[first + 1]
        low = max(-most, -((rest - offset) // stride))
        high = min(most, (offset + rest) // stride)
        for steps_taken in range(low, high + 1):
            patience -= 1
            if patience < 0:
                return None
            found = cancelled(first + 1, offset - steps_taken * stride)
            if found is not False:
                return found
        hopeless.add((first, offset))
        return False

    for axis, (stride, most) in enumerate(axes):
        for steps_taken in range(1, min(most, reach[axis + 1] // stride) + 1):
            patience -= 1
            if patience < 0:
                return None
            found = cancelled(axis + 1, steps_taken * stride)
            if found is not False:
                return found
    return False
