"""Numbers by which kernels divide: two for each scale of a destination.

Where the arithmetic is in f64 they enclose 1 / scale (:func:`enclosing`). In f32 they are its first and its
last digits (:func:`reciprocals`), and a quotient is a product and a fused multiply-add::

    first = round(1 / scale)       rest = round(1 / scale - first)
    x / scale  =  fma(x, first, x * rest)

That rounds twice, once for ``x * rest`` and once for the sum, and all of it is off by at most 2**-48 where
``1 <= |scale| < 2`` and ``1 <= |x| < 2``. So it is the rounded quotient but where the exact one lies that
near to the middle of two floats. Write scale and x as 24 bits S and X, and the middle as 25 bits N, which are
odd:

* X >= S. The quotient lies between 1 and 2, the middle is N / 2**24, and their distance is a multiple of
  2**-24 / S, which is more than 2**-48. So it can't be that near.
* X < S. The quotient lies between 1/2 and 1, and the distance is a multiple of 2**-25 / S. It is nearer only
  if ``X * 2**25 = N * S + 1`` or ``- 1``. If S is even there is no such X. If S is odd N is the inverse of S
  modulo 2**25, or its negative, of which one has 25 bits.

So for each scale there is one X at most, of 2**23, for which the quotient might be rounded to the wrong side.
It is looked at, and seldom wrong. Where it is, that changes a result of a few bits only if the middle happens
to be where an integer gives way to the next one. Of a scale with such an X (one in some hundred thousand) the
rest is NaN: kernels divide whatever becomes NaN.

References
----------
N. Brisebarre, J.-M. Muller, S. K. Raina, "Accelerating correctly rounded floating-point division when the
divisor is known in advance", IEEE Transactions on Computers 53(8), 2004.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.convert import convert
from relayout.dtypes import DType

__all__ = ["enclosing", "reciprocals"]

Floats = NDArray[np.float32]
BITS = 24  # of a float
LARGEST = (
    2.0**64
)  # of a scale: the rest of its reciprocal is no subnormal number, which would have fewer bits
STEPS = 4  # of Newton's method, each of which doubles the bits of an inverse; it begins with 3
SMALLEST_EXPONENT = -1  # of a quotient: below 1/4, adding a zero point and rounding gives the zero point
MOST_RESULT = 512  # beyond what integers of 8 bits hold, in magnitude


def reciprocals(scales: Floats, zero_points: NDArray[Any], dst: DType) -> tuple[Floats, Floats]:
    """The first and the last digits of 1 / scale, such that quotients become the integers that they should.

    Parameters
    ----------
    scales : ndarray of float32
        Any number of them, none of which is 0.
    zero_points : ndarray
        What is added to quotients: for each scale one, or several in a last axis; or as many for all.
    dst : DType
        The integers, of at most 8 bits, that become of the sum.

    Returns
    -------
    ndarray, ndarray
        Of the shape of ``scales``. The second is NaN where only a division will do.

    Examples
    --------
    >>> from relayout import dtype
    >>> scales = np.float32([0.5, 0.7])
    >>> first, rest = reciprocals(scales, np.float32(0), dtype("s8"))
    >>> (first.astype(float) + rest) * scales.astype(float) - 1 < 2e-15
    array([ True,  True])
    """
    flat = np.asarray(scales, np.float32).ravel()
    with np.errstate(all="ignore"):
        first = np.float32(1) / flat
        rest = ((1 - first.astype(np.float64) * flat) / flat).astype(np.float32)  # the difference is exact
        wrong, middle = _rounded_wrong(flat, first, rest)
        size = np.abs(flat)
        divides = ~((size < LARGEST) & (size > 1 / LARGEST))
        if wrong.any():
            several = np.asarray(zero_points, np.float32)
            several = several.reshape(-1, several.shape[-1] if several.ndim > 1 else 1)
            several = np.broadcast_to(several, (flat.size, several.shape[1]))
            divides[wrong] |= _matters(middle[wrong], several[wrong], dst)
    rest[divides] = np.nan
    return first.reshape(np.shape(scales)), rest.reshape(np.shape(scales))


def _rounded_wrong(
    scales: Floats, first: Floats, rest: Floats
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """For each scale whether there is an X whose quotient is rounded wrong, and the middle N that it is near.

    Everything is exact: products of 24 and 25 bits in integers, those of two floats in double.
    """
    fraction, exponent = np.frexp(np.abs(scales))
    s = np.ldexp(fraction, BITS).astype(np.int64)
    inverse = s.astype(np.uint64)
    for _ in range(STEPS):  # modulo 2**64
        inverse = inverse * (np.uint64(2) - s.astype(np.uint64) * inverse)
    n = (inverse & np.uint64(2 ** (BITS + 1) - 1)).astype(np.int64)
    sign = np.where(n < 2**BITS, 1, -1)
    n = np.where(n < 2**BITS, 2 ** (BITS + 1) - n, n)
    x = (n * s + sign) >> (BITS + 1)
    there = (s % 2 == 1) & (x >= 2 ** (BITS - 1))
    high = np.ldexp(np.frexp(np.abs(first))[0], BITS).astype(np.int64)
    last = np.ldexp(rest.astype(np.float64) * np.sign(scales), exponent - 1)  # as if 1 <= scale < 2
    added = (np.ldexp(x.astype(np.float64), 1 - BITS) * last).astype(np.float32)
    beyond = np.ldexp((x * high - (n << (BITS - 2))).astype(np.float64), 1 - 2 * BITS) + added
    return there & (np.sign(beyond) != sign), n


def _matters(middle: NDArray[np.int64], zero_points: Floats, dst: DType) -> NDArray[np.bool_]:
    """Whether the two floats next to a middle, times any power of two, become different integers."""
    top = int(np.frexp(np.abs(zero_points).max() + MOST_RESULT)[1]) + 1
    sides = np.stack([middle - 1, middle + 1]) / 2.0 ** (BITS + 1)  # scales, from 1/2 to 1
    quotients = np.ldexp(sides[..., None].astype(np.float32), np.arange(SMALLEST_EXPONENT, top))
    signed = np.concatenate([quotients, -quotients], axis=-1)
    found = convert(signed[..., None] + zero_points[:, None, :], dst).astype(np.int16)
    differ: NDArray[np.bool_] = (found[0] != found[1]).any(axis=(1, 2))
    return differ


def enclosing(scales: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Numbers that enclose 1 / scale, the one nearer to zero first; where it is exact, twice the same.

    Nothing wider tells on which side the nearest lies, and so it is enclosed by its own two.
    """
    nearest = 1 / scales
    below = np.nextafter(nearest, np.zeros_like(nearest))
    above = np.nextafter(nearest, np.copysign(np.inf, nearest))
    exact = np.abs(np.frexp(scales)[0]) == 0.5
    return np.where(exact, nearest, below), np.where(exact, nearest, above)
