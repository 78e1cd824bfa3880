"""Sums of products of bytes held against their definition, for as many random configurations as one likes.

Results must be the definition's, bit for bit: s32 as they are, narrower ones saturated. A configuration is a
convolution (with groups, strides, dilation and padding, in one to three spatial axes), an inner product or a
matrix product, with channels that leave tails of all sorts, in formats that are read where they lie and in
others; its numbers are random or the extremes of their types, zero points too. Memory is poisoned as in
:mod:`test_products`.

Some requantise: sums times a scale, through a bias and a bound, divided by a scale of the destination, plus
its zero point. These are f32, so there the definition is that of f32: the exact sum, and each step behind it
rounded to f32 by itself, ties to even in the end. That too is met bit for bit.

The tests try some; the whole is one command::

    python tests/exactness.py --count 10000 --seed 1
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import AbstractContextManager

import numpy as np

from relayout import LayoutError, MemoryDesc
from relayout import any as any_format
from relayout.primitives import Convolution, InnerProduct, Matmul
from relayout.primitives.post_ops import Function
from test_products import HERE, check, on

RANGES = {"u8": (0, 255), "s8": (-128, 127)}
IMAGES = {
    1: ("nwc", "ncw", "nCw16c"),
    2: ("nhwc", "nchw", "nChw16c", "nChw8c", "NCHW32", "nChw4c"),
    3: ("ndhwc", "ncdhw", "nCdhw16c"),
}
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 20, 31, 32, 33, 48, 64, 65, 66)


def configuration(draw: random.Random):
    """A primitive, and arrays for some of its inputs, by name: zero points, scales."""
    kinds = draw.choice(("u8", "u8", "s8")), "s8", draw.choice(("s32", "s32", "s32", "s8", "u8"))
    make = draw.choice((_convolution, _convolution, _convolution, _inner_product, _matmul))
    steps, arrays = {}, {}
    if kinds[2] != "s32" and draw.randrange(2):
        steps, arrays = _steps(draw, kinds[2])
    made, points = make(draw, kinds, steps)
    return made, points | arrays


def values(draw: random.Random, kind: str, dims: tuple[int, ...]) -> np.ndarray:
    """Random numbers, or nothing but extremes."""
    low, high = RANGES[kind]
    how = draw.randrange(5)
    if how < 2:
        return np.full(dims, (low, high)[how], np.float64)
    rng = np.random.default_rng(draw.getrandbits(32))
    if how == 2:
        return rng.choice([float(low), float(high)], dims)
    return rng.integers(low, high + 1, dims).astype(np.float64)


def _steps(draw: random.Random, kind: str):
    """What bytes are requantised by: arguments of a primitive, and arrays.

    Half of the scales are powers of two, which leave ties, and zero points are odd as often as even.
    """
    one, whole = MemoryDesc((1,), "f32", "a"), MemoryDesc((1,), "s32", "a")
    exact = draw.randrange(2)
    scales = [2.0 ** draw.randint(low, 0) if exact else draw.uniform(0.001, 1.0) for low in (-12, -3)]
    given, arrays = {"scale": one}, {"scale": np.array([np.float32(scales[0])], np.float64)}
    if draw.randrange(3):
        given["dst_scale"], arrays["dst_scale"] = one, np.array([np.float32(scales[1])], np.float64)
    if draw.randrange(3):
        given["dst_zero_point"], arrays["dst_zero_point"] = whole, values(draw, kind, (1,))
    if draw.randrange(3) == 0:
        given["post_ops"] = draw.choice(("relu", Function("clip", -5.5, 6.25), Function("round")))
    return given, arrays


def _zero_points(draw: random.Random, kinds: tuple[str, str, str], outputs: int):
    """Descriptors, and arrays."""
    descs, arrays = {}, {}
    how = draw.randrange(6)
    for name, kind, counts in (
        ("src_zero_point", kinds[0], (1,)),
        ("weights_zero_point", kinds[1], (1, outputs)),
    ):
        wanted = how in ((1, 2, 3) if name[0] == "s" else (3, 4))
        if wanted:
            descs[name] = MemoryDesc((draw.choice(counts),), "s32", "a")
            arrays[name] = values(draw, kind, descs[name].dims)
    return descs, arrays


def _convolution(draw: random.Random, kinds: tuple[str, str, str], steps):
    spatial = draw.choice((1, 2, 2, 2, 3))
    groups = draw.choice((1, 1, 1, 1, 2, 3, 8, 16, 33))
    inputs, outputs = (draw.choice(CHANNELS[: 11 if groups > 1 else None]) for _ in range(2))
    if groups > 3 and draw.randrange(2):
        inputs = outputs = draw.choice((1, 1, 2, 4))
    kernel = [draw.choice((1, 1, 2, 3)) for _ in range(spatial)]
    dilation = [draw.choice((1, 1, 2)) for _ in range(spatial)]
    room = 3 if spatial == 3 else 9
    sizes = [draw.randint(1, room) + (k - 1) * gap for k, gap in zip(kernel, dilation, strict=True)]
    src = MemoryDesc(
        (draw.choice((1, 1, 2)), groups * inputs, *sizes), kinds[0], draw.choice(IMAGES[spatial])
    )
    grouped = groups > 1 or draw.randrange(8) == 0
    filters = (*([groups] * grouped), outputs, inputs, *kernel)
    weights = MemoryDesc(filters, "s8", any_format)
    if draw.randrange(6) == 0:
        plain = "g" * grouped + "oi" + "dhw"[3 - spatial :]
        blocked = "g" * grouped + "OI" + "dhw"[3 - spatial :] + "4i16o4i"
        weights = MemoryDesc(filters, "s8", draw.choice((plain, blocked)))
    more = {
        "strides": [draw.choice((1, 1, 2)) for _ in range(spatial)],
        "dilation": dilation,
        "padding": [(draw.randrange(3), draw.randrange(3)) for _ in range(spatial)],
    }
    descs, arrays = _zero_points(draw, kinds, groups * outputs)
    dims = Convolution(src, weights, **more).dst.dims
    dst = MemoryDesc(dims, kinds[2], draw.choice(IMAGES[spatial]))
    bias = (
        MemoryDesc((groups * outputs,), "s32", "a") if kinds[2] == "s32" and draw.randrange(3) == 0 else None
    )
    return Convolution(src, weights, bias, dst, **more, **descs, **steps), arrays


def _inner_product(draw: random.Random, kinds: tuple[str, str, str], steps):
    spatial = draw.choice((0, 0, 1, 2))
    sizes = tuple(draw.randint(1, 4) for _ in range(spatial))
    inputs, outputs = draw.choice((*CHANNELS, 200, 515)), draw.choice(CHANNELS)
    form = draw.choice(IMAGES[spatial]) if spatial else draw.choice(("nc", "cn"))
    src = MemoryDesc((draw.choice((1, 2, 5, 17)), inputs, *sizes), kinds[0], form)
    descs, arrays = _zero_points(draw, kinds, outputs)
    weights = MemoryDesc((outputs, inputs, *sizes), "s8", any_format)
    dst = MemoryDesc((src.dims[0], outputs), kinds[2], "nc")
    return InnerProduct(src, weights, dst=dst, **descs, **steps), arrays


def _matmul(draw: random.Random, kinds: tuple[str, str, str], steps):
    many = draw.choice((0, 0, 2, 3))
    m, k, n = draw.choice((1, 2, 7, 20, 40)), draw.choice((*CHANNELS, 200)), draw.choice(CHANNELS)
    front, letters = ((many,), ("abc", "acb")) if many else ((), ("ab", "ba"))
    src = MemoryDesc((*front, m, k), kinds[0], draw.choice(letters))
    shared = (1,) if many and draw.randrange(3) == 0 else front
    weights = MemoryDesc((*shared, k, n), "s8", draw.choice((any_format, *letters)))
    descs, arrays = _zero_points(draw, kinds, n)
    dst = MemoryDesc((*front, m, n), kinds[2], draw.choice(letters))
    return Matmul(src, weights, dst=dst, **descs, **steps), arrays


def in_f32(made, arrays) -> np.ndarray:
    """The definition of f32: exact sums, and each step behind them rounded by itself."""
    summed = "src", "weights", "src_zero_point", "weights_zero_point"
    sums = made.operation.compute(**{name: arrays[name] for name in summed if name in arrays})
    x = sums.astype(np.float32) * np.float32(arrays["scale"])
    for op in made.post_ops:
        x = op.definition(x.astype(np.float64)).astype(np.float32)
    if "dst_scale" in arrays:
        x = x / np.float32(arrays["dst_scale"])
    if "dst_zero_point" in arrays:
        x = x + np.float32(arrays["dst_zero_point"])
    low, high = RANGES[made.dst.dtype.name]
    return np.clip(np.rint(x), low, high)


def one(seed: int, instead: AbstractContextManager[None] | None = None) -> str:
    """Check the configuration of a seed, on a processor and with a number of threads that follow from it.

    ``instead`` is another processor, within which code is made for it.

    Returns
    -------
    str
        How it was computed.

    Raises
    ------
    AssertionError
        The result is not the definition's.
    """
    draw = random.Random(seed)
    usual = on(draw.choice((*HERE, *HERE[-1:] * 4)), draw.choice((1, 2, 3)))
    with usual if instead is None else instead:
        made, arrays = configuration(draw)
        for name, kind in (("src", made.src.dtype.name), ("weights", "s8")):
            arrays[name] = values(draw, kind, made.descs[name].dims)
        check(made, seed, arrays, exactly=in_f32 if "scale" in arrays else None)
        return made.implementation


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="that of the first one")
    given = parser.parse_args()
    begin, failed, defined, done = time.monotonic(), [], 0, 0
    try:
        for seed in range(given.seed, given.seed + given.count):
            try:
                defined += one(seed).startswith("definition")
            except (AssertionError, LayoutError) as error:
                failed.append(seed)
                print(f"seed {seed}: {error}", flush=True)
            done += 1
    except KeyboardInterrupt:  # what is done is done
        pass
    seconds = time.monotonic() - begin
    print(
        f"{done} of {given.count} configurations in {seconds:.0f} s, {defined} by the definition, "
        f"{len(failed)} failed {failed[:20]}"
    )
    return bool(failed) or done < given.count


if __name__ == "__main__":
    sys.exit(main())
