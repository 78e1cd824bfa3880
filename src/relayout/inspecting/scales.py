"""The scale by which real numbers were quantised, from the integers alone, whatever their order.

Rounding keeps order: the smallest number became the smallest integer, and so on. So both sides are sorted,
and the numbers that became 5 lie between 4.5 and 5.5 times the scale. Each integer bounds the scale from both
sides, and every scale within all bounds gives the same integers. Of these the plainest is named: the largest
number divided by the largest integer, as quantisation tools choose it, or one of few digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.convert import rescale
from relayout.dtypes import DType

__all__ = ["scale_of"]

MOST = 1 << 24  # elements that are sorted
DIGITS = 9  # of a scale that is no round number
ROUNDING = 1e-6  # what a division in f32 may add


def scale_of(values: NDArray[Any], kind: DType, stored: NDArray[Any], dtype: DType) -> float | None:
    """The scale such that ``stored`` is ``values / scale``, rounded and saturated, in any order.

    Parameters
    ----------
    values : array
        Real numbers, of data type ``kind``.
    stored : array
        Integers of a buffer, of data type ``dtype`` (s8 or u8). It may hold more zeros, as padding.

    Returns
    -------
    float or None
        None where no scale does it.

    Examples
    --------
    >>> from relayout.dtypes import dtype
    >>> x = np.array([0.3, -1.0, 0.5, 0.02, -0.4, 0.77], np.float32)
    >>> scale_of(x, dtype("f32"), np.array([50, 2, -40, 77, 30, -100, 0], np.int8), dtype("s8"))
    0.01
    """
    extra = stored.size - values.size
    if not extra >= 0 or values.size > MOST or not np.isfinite(values).all():
        return None
    least = int(dtype.min)
    counts = np.bincount(stored.astype(np.int64).reshape(-1) - least, minlength=int(dtype.max) - least + 1)
    counts[-least] -= extra
    if counts[-least] < 0:
        return None
    ordered = np.sort(values.reshape(-1).astype(np.float64))
    bounds = _bounds(ordered, counts, dtype)
    if bounds is None:
        return None
    for scale in _plain(*bounds, float(np.abs(ordered[[0, -1]]).max()), dtype):
        again = rescale(values, kind, dtype, dst_scale=np.float32(scale)).reshape(-1)
        if np.array_equal(np.bincount(again.astype(np.int64) - least, minlength=len(counts)), counts):
            return scale
    return None


def _bounds(ordered: NDArray[np.float64], counts: NDArray[Any], dtype: DType) -> tuple[float, float] | None:
    """Between which numbers the scale lies; None where there is none."""
    low, high = 0.0, np.inf
    ends = np.cumsum(counts)
    for k in np.flatnonzero(counts):
        number = int(k) + int(dtype.min)
        first, last = float(ordered[ends[k] - counts[k]]), float(ordered[ends[k] - 1])
        if number < 0:
            first, last = -last, -first
        if number and first <= 0:
            return None
        size = abs(number)
        if number:
            high = min(high, first / (size - 0.5))
        elif dtype.is_signed:
            last = max(-first, last)
        if number not in (dtype.min, dtype.max) or not number:  # what is saturated may be larger
            low = max(low, last / (size + 0.5))
    if not 0 < high < np.inf or low > high * (1 + ROUNDING):
        return None
    return low, high


def _plain(low: float, high: float, largest: float, dtype: DType) -> Iterator[float]:
    """Scales in between, the plainest first."""
    for divisor in (dtype.max, dtype.max + 1):
        scale = float(np.float32(largest / divisor))
        if low <= scale <= high:
            yield scale
    middle = (low + high) / 2 if low else high / 2
    for digits in range(1, DIGITS):
        scale = float(f"{middle:.{digits}g}")
        if low <= scale <= high:
            yield scale
            break
    yield middle
