"""Pooling of narrow types: any bits of bf16 and f16, sums of bytes; results are the definition's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relayout as rl
from covering import covering, share
from relayout.primitives import Pooling, Reduction, Resampling

DIMS = (2, 20, 9, 37)
FORMATS = ("nhwc", "nchw", "nChw16c")
WINDOWS = [(3, 2, 1), (2, 2, 0), (3, 1, 1), ((9, 37), 1, 0), (5, 2, 2), (4, 3, 0), (2, 1, 1), (3, 2, 0)]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def any_bits(kind: str, seed: int, strange: float) -> Any:
    """Bits of all kinds of numbers, of both signs; a share of them infinite or no numbers."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 16, DIMS).astype(np.uint16)
    top = {"bf16": 0x7F80, "f16": 0x7C00}[kind]
    special = (bits & top) == top
    kept = special & (random.random(DIMS) < strange)
    finite = np.where(special, bits & ~np.uint16(top & -top), bits)
    return np.where(kept, bits, finite).astype(np.uint16).view(rl.dtype(kind).numpy)


def same(found: Any, wanted: Any) -> bool:
    return np.array_equal(np.asarray(found, np.float64), np.asarray(wanted, np.float64), equal_nan=True)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("strange", [0.0, 0.2])
def test_maxima_of_any_bits(kind: str, format: str, strange: float) -> None:
    for seed, window in enumerate(WINDOWS):
        x = rl.tensor(any_bits(kind, seed, strange), format, kind)
        made = Pooling(x.desc, "max", *window)
        assert made.implementation.startswith("machine code")
        assert same(made(x).numpy(), made.reference(x))


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("algorithm", ["max", "min"])
@pytest.mark.parametrize("format", FORMATS)
def test_extremes_along_axes(kind: str, algorithm: str, format: str) -> None:
    for seed, dims in enumerate([(2, 20, 1, 1), (2, 1, 9, 37), (1, 20, 9, 1)]):
        x = rl.tensor(any_bits(kind, seed, 0.001 * seed), format, kind)
        made = Reduction(x.desc, algorithm, dst=rl.MemoryDesc(dims, kind, format))
        assert same(made(x).numpy(), made.reference(x))


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("kinds", "format", "algorithm"),
    covering(
        [("s8", "s8"), ("u8", "u8"), ("u8", "f32"), ("s8", "u8")],
        FORMATS,
        ["average_include_padding", "average_exclude_padding"],
    ),
)
def test_averages_of_extreme_bytes(kinds: tuple[str, str], format: str, algorithm: str) -> None:
    random = np.random.default_rng(1)
    info = rl.dtype(kinds[0])
    for window in WINDOWS:
        low, high = int(info.min), int(info.max)
        data = np.where(random.random(DIMS) < 0.5, high, random.integers(low, high + 1, DIMS))
        data[0, :10] = low
        x = rl.tensor(data, format, kinds[0])
        out = Pooling(x.desc, algorithm, *window).dst.dims
        made = Pooling(x.desc, algorithm, *window, dst=rl.MemoryDesc(out, kinds[1], format))
        exact = np.asarray(made.reference(x))
        found = np.asarray(made(x).numpy(), np.float64)
        if kinds[1] == "f32":
            np.testing.assert_allclose(found, exact, 2e-7)
            continue
        kind = rl.dtype(kinds[1])
        rounded = np.clip(np.rint(exact), kind.min, kind.max)
        far = np.abs(exact - np.floor(exact) - 0.5) > 1e-4  # off a tie, that f32 may have moved to
        assert (found[far] == rounded[far]).all(), window
        assert (np.abs(found - rounded) <= 1).all()


@pytest.mark.parametrize("kind", ["s8", "u8", "s32", "bf16", "f16", "f32"])
@pytest.mark.parametrize("format", FORMATS)
def test_nearest_neighbours_are_moved_as_they_are(kind: str, format: str) -> None:
    random = np.random.default_rng(2)
    info = rl.dtype(kind)
    if kind in ("bf16", "f16"):
        data = any_bits(kind, 3, 0.0)  # the definition multiplies others by 0
    elif kind == "f32":
        data = random.standard_normal(DIMS).astype(np.float32)
    else:
        data = random.integers(int(info.min), int(info.max) + 1, DIMS)
    x = rl.tensor(data, format, kind)
    for height, width in ((18, 74), (27, 37), (5, 12), (9, 111), (1, 1)):
        made = Resampling(x.desc, "nearest", rl.MemoryDesc((*DIMS[:2], height, width), kind, format))
        assert made.implementation.startswith("machine code")
        assert same(made(x).numpy(), made.reference(x))


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("kind", "format", "channels"), covering(["s8", "u8", "s32"], FORMATS, [3, 64, 100, 300])
)
def test_maxima_of_integers(kind: str, format: str, channels: int) -> None:
    """Columns that windows share are combined once, where vectors of a pixel are few."""
    dims = (2, channels, 7, 11)
    bound = np.iinfo(np.int32) if kind == "s32" else rl.dtype(kind)
    random = np.random.default_rng(channels)
    x = rl.tensor(random.integers(int(bound.min), int(bound.max) + 1, dims), "nchw", kind)
    x = x.reorder(rl.MemoryDesc(dims, kind, format))
    for window in WINDOWS[:3] + WINDOWS[4:]:
        made = Pooling(x.desc, "max", *window)
        assert same(made(x).numpy(), made.reference(x))


@pytest.mark.turns(2)
@pytest.mark.parametrize("format", ["nchw", "NCHW4", "nChw8c"])
@pytest.mark.parametrize("kind", ["f32", "bf16", "u8"])
@pytest.mark.parametrize("width", [7, 16, 57, 112])
def test_every_other_pixel_of_windows_of_any_size(format: str, kind: str, width: int) -> None:
    """What the last result of a vector takes from behind two vectors: up to four pixels."""
    data = np.random.default_rng(width).integers(0, 100, (1, 8, 7, width))
    x = rl.tensor(data, format, kind)
    sizes = range(2, min(7, width))
    number = width + len(format) + len(kind)
    for size in share(sizes, number):
        made = Pooling(x.desc, "max", size, 2, (size + width // 7) % 2)
        assert same(made(x).numpy(), made.reference(x))
    for size in share(sizes, number + 1):
        made = Pooling(x.desc, "average_exclude_padding", size, 2, (size + width // 7) % 2)
        whole = made.reference(x)
        wanted = np.rint(whole) if kind == "u8" else whole
        far = {"f32": 1e-5, "bf16": 2.0**-8, "u8": 0.0}[kind]
        np.testing.assert_allclose(np.asarray(made(x).numpy(), np.float64), wanted, far)
