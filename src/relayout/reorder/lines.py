"""Bytes on a line: four numbers in f32 in place of a chain of steps in f64.

A normalised picture, ``(x * scale - mean) / std``, is computed in f64 and rounded once. A byte has 256
values, whose results are known when the attributes are given. They lie on a line, and f32 finds them in three
instructions, if its slope and its start are two numbers each ::

    p = fma(x, slope, start)                exact: both are multiples of one power of two, so that 24 bits do
    t = fma(x, slope_rest, start_rest)      what is left of both, with 24 bits of its own
    y = p + t                               rounded once

How far ``t`` is off does not matter as long as all 256 results are those of the definition, to the bit: that
is looked at. Sometimes one of them is so near to the middle of two floats that it is rounded to the wrong
side; then the rests are changed a little. If nothing helps, kernels are told, and compute in f64.

What becomes bf16 is rounded to it by adding half a unit to the bits, which is wrong only in the middle of two
bf16 whose lower one is even. Lines that have results there are missing, too; and where there is no shift, so
that bytes are scaled in f32 anyway, results are looked through for nothing else (:func:`middles`).
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.convert import convert, rescale
from relayout.dtypes import DType, dtype

__all__ = ["BYTES", "lines", "middles"]

BYTES = {"u8": (0, 256), "s8": (-128, 128)}
"""The types whose values are few, and these."""
BF16 = dtype("bf16")
DIGITS = 24  # of a float
NUDGES = sorted(product((0, 1, -1, 2, -2), repeat=2), key=lambda pair: sum(map(abs, pair)))
"""By how many of their last digits both rests are changed, until all results are right."""
MOST = 64  # lines that are looked for: each of them takes a few microseconds
LEAST = 2.0**-100  # of what is added: no subnormal number

Floats = NDArray[np.float32]


def lines(src: DType, dst: DType, **steps: Any) -> list[Floats]:
    """Slopes and starts, each with its rest, of the lines that the values of some steps make.

    Parameters
    ----------
    src, dst : DType
        From bytes to f32 or something narrower.
    **steps
        Those of :func:`relayout.convert.rescale`, a shift among them: numbers, or as many as there are lines.

    Returns
    -------
    list of ndarray
        The last one has one number, which is NaN if a line is missing.

    Examples
    --------
    >>> from relayout import dtype
    >>> [float(one[0]) for one in lines(dtype("u8"), dtype("f32"), src_shift=128)]
    [1.0, 0.0, -128.0, 0.0, 0.0]
    """
    x = np.arange(*BYTES[src.name])
    given: dict[str, Any] = {name: np.reshape(np.asarray(value), (-1, 1)) for name, value in steps.items()}
    whole = np.broadcast_shapes((1, x.size), *(value.shape for value in given.values()))
    if whole[0] > MOST:
        return [*np.zeros((4, whole[0]), np.float32), np.array([np.nan], np.float32)]
    bytes_ = np.broadcast_to(x.astype(src.numpy), whole)
    with np.errstate(all="ignore"):
        y = rescale(bytes_, src, "f64", **given, keep_neutral=True)
        wanted = _bits(rescale(bytes_, src, dst, **given, keep_neutral=True))
        slope, start = (y[:, -1] - y[:, 0]) / (x.size - 1), y[:, -int(x[0])]
        unit = np.exp2(np.frexp(np.abs(y).max(1))[1] - float(DIGITS))
        first = [np.round(number / unit) * unit for number in (slope, start)]
        rests = [
            (number - whole).astype(np.float32) for number, whole in zip((slope, start), first, strict=True)
        ]
        a, b = (number.astype(np.float32) for number in first)
        c, d = rests
        left = np.arange(len(a))
        for steep, high in NUDGES:
            c[left], d[left] = _nudged(rests[0][left], steep), _nudged(rests[1][left], high)
            made = _on(x, a[left], b[left], c[left], d[left])
            right = (_bits(convert(made, dst)) == wanted[left]) & (made == made)
            left = left[~(right & ~_in_even_middles(made) if dst == BF16 else right).all(1)]
            if not left.size:
                break
    missing = np.array([np.nan if left.size else 0], np.float32)
    return [a, c, b, d, missing]


def middles(src: DType, src_scale: Floats, src_zero_point: Floats | None = None) -> Floats:
    """Whether (x - zero point) * scale of some byte lies in the middle of two bf16, the lower one even.

    Others are rounded to the nearest by adding half a unit and leaving out what is behind it.

    Returns
    -------
    ndarray
        One number, NaN if there is such a byte, or if there are more scales than are looked at.

    Examples
    --------
    >>> from relayout import dtype
    >>> [float(middles(dtype("u8"), np.float32([scale]))[0]) for scale in (1 / 255, 0.75)]
    [0.0, nan]
    """
    made = np.arange(*BYTES[src.name], dtype=np.float32)
    if max(src_scale.size, 1 if src_zero_point is None else src_zero_point.size) > MOST:
        return np.array([np.nan], np.float32)
    with np.errstate(all="ignore"):
        if src_zero_point is not None:
            made = made - src_zero_point.reshape(-1, 1)
        made = made * src_scale.reshape(-1, 1)
    return np.array([np.nan if _in_even_middles(made).any() else 0], np.float32)


def _in_even_middles(x: Floats) -> NDArray[np.bool_]:
    """Which lie in the middle of two bf16 whose lower one is even."""
    found: NDArray[np.bool_] = (x.view(np.uint32) & 0x1FFFF) == 0x8000
    return found


def _nudged(x: Floats, by: int) -> Floats:
    """The number that is so many of its last digits further."""
    found: Floats = x + np.spacing(x) * np.float32(by)
    return found


def _on(x: NDArray[Any], a: Floats, b: Floats, c: Floats, d: Floats) -> Floats:
    """The floats that a kernel finds; NaN where it is not known what these are.

    Products of a byte and a float are exact in f64. So are their sums with one more, mostly; those that are
    not are known to become the same float unless they are just half-way between two.
    """
    p, t = (x * k.astype(np.float64)[:, None] for k in (a, c))
    p += b.astype(np.float64)[:, None]
    more = d.astype(np.float64)[:, None]
    both = t + more
    lost = (t - (both - (both - t))) + (more - (both - t))
    middle = (both.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    known = (p == p.astype(np.float32)) & ((lost == 0) | ~middle) & ((both == 0) | (np.abs(both) > LEAST))
    found: Floats = np.add(p.astype(np.float32), both.astype(np.float32), dtype=np.float32)
    found[~known] = np.nan
    return found


def _bits(x: NDArray[Any]) -> NDArray[Any]:
    return x.view(f"u{x.dtype.itemsize}")
