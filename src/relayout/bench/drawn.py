"""Reorders that nobody has chosen: drawn at random, the same ones for the same seed.

A suite has sizes that somebody thought of, and what is tuned by it may suit these sizes. What is drawn here
has any number of channels, pixels, filters and rows, powers of two being no more likely than others, and
sides from 64 KiB to 16 MiB, each doubling as likely as the next one.

>>> for case in drawn(3, seed=7):
...     print(case)
s8:abcd -> s8:acdb 24x61x43x38
bf16:nChw16c -> bf16:nchw 20x116x6x9
s8:nChw32c -> s8:nchw 1x55x171x170
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt, prod
from random import Random

from relayout.bench.suite import WIDTHS, Case

__all__ = ["GROUP", "drawn"]

GROUP = "drawn"
SMALLEST, LARGEST = 1 << 16, 1 << 24  # bytes of a side
FORMATS = ("nchw", "nhwc", "nChw8c", "nChw16c", "nChw32c")
FILTERS = {
    "f32": ("hwio", "OIhw8i8o", "OIhw16i16o"),
    "bf16": ("hwio", "OIhw8i16o2i", "OIhw16i16o2i"),
    "s8": ("hwio", "OIhw4i16o4i", "OIhw16i16o4i"),
}
TILED = {"f32": "BA16a64b", "bf16": "BA16a64b2a", "s8": "BA16a64b4a"}
TAPS = ((1, 1), (1, 7), (2, 2), (3, 3), (5, 5), (7, 7))


def drawn(count: int, seed: int = 0) -> list[Case]:
    """So many reorders, all of them different.

    Parameters
    ----------
    count : int
        How many.
    seed : int
        Another number gives others.
    """
    rng = Random(seed)
    found: dict[str, Case] = {}
    while len(found) < count:
        case = rng.choice(KINDS)(rng)
        found.setdefault(str(case), case)
    return list(found.values())


def _number(rng: Random, least: float, most: float) -> int:
    """A whole number, each doubling as likely as the next one."""
    return int(least * (most / least) ** rng.random() + 0.5)


def _elements(rng: Random, width: int) -> int:
    return _number(rng, SMALLEST, LARGEST) // width


def _images(rng: Random, elements: int, channels: int) -> tuple[int, int, int, int]:
    """About so many elements: images of pixels."""
    pixels = max(1, elements // channels)
    height = min(_number(rng, 5, 320), isqrt(pixels) + 1)
    width = max(1, min(height + rng.choice((0, 0, -1, 1, 3)), pixels // height))
    return max(1, round(pixels / height / width)), channels, height, width


def _activations(rng: Random) -> Case:
    dtype = rng.choice(tuple(WIDTHS))
    src, dst = rng.sample(FORMATS, 2)
    dims = _images(rng, _elements(rng, WIDTHS[dtype]), _number(rng, 8, 1024))
    return Case(GROUP, dims, src, dst, dtype, dtype)


def _filters(rng: Random) -> Case:
    dtype = rng.choice(tuple(WIDTHS))
    taps = rng.choice(TAPS)
    channels = max(1, _elements(rng, WIDTHS[dtype]) // prod(taps))
    inputs = _number(rng, 3, max(4, min(2048, channels // 8)))
    pair = ["oihw", rng.choice(FILTERS[dtype])]
    src, dst = pair if rng.random() < 0.7 else reversed(pair)
    return Case(GROUP, (max(1, channels // inputs), inputs, *taps), src, dst, dtype, dtype)


def _matrices(rng: Random) -> Case:
    dtype = rng.choice(tuple(WIDTHS))
    elements = _elements(rng, WIDTHS[dtype])
    rows = _number(rng, 16, elements // 16)
    pair = ["ab", rng.choice(("ba", TILED[dtype]))]
    src, dst = pair if rng.random() < 0.7 else reversed(pair)
    return Case(GROUP, (rows, max(1, elements // rows)), src, dst, dtype, dtype)


def _permutations(rng: Random) -> Case:
    dtype = rng.choice(tuple(WIDTHS))
    axes = "abcde"[: rng.randint(3, 5)]
    dims = []
    left = _elements(rng, WIDTHS[dtype])
    for k in range(len(axes), 1, -1):
        dims.append(max(2, round(left ** (1 / k) * rng.uniform(0.5, 2))))
        left = max(2, left // dims[-1])
    order = axes
    while order == axes:
        order = "".join(rng.sample(axes, len(axes)))
    return Case(GROUP, (*dims, left), axes, order, dtype, dtype)


def _quantised(rng: Random) -> Case:
    dtype, axis = rng.choice(("s8", "u8")), rng.choice((None, 1))
    dims = _images(rng, _elements(rng, 4), _number(rng, 8, 1024))
    side = "dst" if rng.random() < 0.5 else "src"
    attributes = [(f"{side}_scale", axis), *([(f"{side}_zero_point", None)] if dtype == "u8" else [])]
    types = ("f32", dtype) if side == "dst" else (dtype, "f32")
    src, dst = rng.choices(FORMATS[:4], k=2)
    return Case(GROUP, dims, src, dst, *types, tuple(attributes))


def _converted(rng: Random) -> Case:
    one, two = rng.sample(("f32", rng.choice(("bf16", "f16"))), 2)
    dims = _images(rng, _elements(rng, 4), _number(rng, 8, 1024))
    src, dst = rng.choices(FORMATS[:4], k=2)
    return Case(GROUP, dims, src, dst, one, two)


def _pictures(rng: Random) -> Case:
    dtype, dst = rng.choice(("u8", "f32", "bf16")), rng.choice(("nchw", "nChw16c"))
    dims = _images(rng, _elements(rng, 2), 3)
    attributes = (("src_scale", 1), ("src_zero_point", 1)) if dtype != "u8" else ()
    return Case(GROUP, dims, "nhwc", dst, "u8", dtype, attributes)


KINDS: tuple[Callable[[Random], Case], ...] = (
    *(_activations, _activations, _activations, _filters, _matrices),
    *(_permutations, _quantised, _converted, _pictures),
)
"""What is drawn from; activations most often, as in the suite."""
