"""Averages and linear resampling of bytes in 16 bits: exactly what the definitions round to."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import covering
from relayout.kernels.reduce.rounding import MOST, divisor
from relayout.primitives import Pooling, Reduction, Resampling
from relayout.primitives.banded import rows_of_resampling
from strategies import examples, padding_offsets
from test_pooling import FORMATS, TARGETS, called
from test_values import NEEDS, can_run, undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
pixels_in_lanes = importlib.import_module("relayout.kernels.reduce.pixels_in_lanes")
separable = importlib.import_module("relayout.kernels.reduce.separable")
separable_text = importlib.import_module("relayout.kernels.reduce.separable_text")
window = importlib.import_module("relayout.kernels.reduce.window")

runs_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")
BYTES = "u8", "s8"
IMAGES = (*FORMATS[2], "b_fs_yx_fsv4", "nChw32c", "nChw64c")


def laid_out(data, desc):
    """A tensor of bytes whose padding is no zeros."""
    x = rl.tensor(data, desc)
    size = x.desc.dtype.bits // 8
    for byte in range(size):
        x.buffer[padding_offsets(x.desc.layout) * size + byte] = 0x77
    return x


def extremes(dims, kind, seed):
    """Bytes, many of them the largest and the smallest."""
    random, info = np.random.default_rng(seed), rl.dtype(kind)
    low, high = int(info.min), int(info.max)
    whole = random.integers(low, high + 1, dims)
    ends = np.where(random.random(dims) < 0.5, low, high)
    return np.where(random.random(dims) < random.choice([0.1, 0.5, 0.95]), ends, whole)


def assert_exact(made, x):
    exact = np.asarray(made.reference(x), np.float64)
    info = made.dst.dtype
    np.testing.assert_array_equal(called(made, x), np.clip(np.rint(exact), info.min, info.max))


def assert_resampled(made, x):
    """The same for weights that f64 holds but nearly: what is half-way between two integers is made so."""
    found = called(made, x)
    rows = rows_of_resampling("linear", made.src.dims[2:], made.dst.dims[2:])
    whole, info = math.prod(map(separable.denominator, rows)), made.dst.dtype
    times = np.asarray(made.reference(x), np.float64) * whole
    assert np.abs(times - np.rint(times)).max() < 1e-6
    np.testing.assert_array_equal(found, np.clip(np.rint(np.rint(times) / whole), info.min, info.max))


# --- quotients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", range(1, 257))
def test_products_are_rounded_quotients(d):
    found = divisor(d)
    if found is None:
        assert d > 185
        return
    half, factor, shift, even = found
    n = np.arange(MOST * d + 1, dtype=np.int64)
    m = n + half
    assert m.max() < 1 << 16
    assert factor < 1 << 16
    q = (m * factor >> 16) >> shift
    q -= (q * d == m) & q & even
    np.testing.assert_array_equal(q, np.rint(n / d))


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("algorithm", ["average_include_padding", "average_exclude_padding"])
@pytest.mark.parametrize("taps", [2, 3, 4, 6, 7, 9, 12, 16, 25, 49, 50, 64, 100, 121, 128])
def test_all_sums_are_rounded_as_the_definition_says(kind, algorithm, taps):
    sums = np.arange(MOST * taps + 1)
    data = np.clip(sums[:, None] - MOST * np.arange(taps), 0, MOST)[None]
    data = data - 128 if kind == "s8" else data
    x = rl.tensor(data, "nwc", kind)
    assert_exact(Pooling(x.desc, algorithm, taps), x)


# --- windows -----------------------------------------------------------------------------------------------


@st.composite
def averages(draw):
    """An average of bytes, mostly one whose windows overlap."""
    format = draw(st.sampled_from(IMAGES))
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 16, 20, 32, 64, 100, 192)))]
    dims += [draw(st.sampled_from((1, 3, 5, 12))), draw(st.sampled_from((2, 7, 20, 35, 70)))]
    kernel = [draw(st.integers(1, min(n, 5))) for n in dims[2:]]
    strides = [draw(st.sampled_from((1, 1, 2, 3))) for _ in kernel]
    padding = [(draw(st.integers(0, k // 2)), draw(st.integers(0, k // 2))) for k in kernel]
    padding = [tuple(min(p, k - 1) for p in both) for both, k in zip(padding, kernel, strict=True)]
    dilation = [
        draw(st.sampled_from((1, 1, 2))) if 2 * k <= n else 1 for k, n in zip(kernel, dims[2:], strict=True)
    ]
    algorithm = draw(st.sampled_from(("average_include_padding", "average_exclude_padding")))
    src = rl.MemoryDesc(dims, draw(st.sampled_from(BYTES)), format)
    return Pooling(src, algorithm, kernel, strides, padding, dilation)


@runs_code
@examples(80)
@given(averages(), st.integers(0, 99))
def test_averages_are_exact(made, seed):
    src = made.src
    assert_exact(made, laid_out(extremes(src.dims, src.dtype.name, seed), src))
    assert made.implementation.startswith("machine code")


@runs_code
@pytest.mark.parametrize("cpu", [cpu for cpu in NEEDS if can_run(cpu)])
@examples(12)
@given(averages(), st.integers(0, 99))
def test_averages_are_exact_on_other_processors(cpu, made, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        src = made.src
        assert_exact(made, laid_out(extremes(src.dims, src.dtype.name, seed), src))


@runs_code
@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize("axes", [(2, 3), (1,), (3,)])
def test_means_of_bytes_are_exact(kind, axes):
    dims = (2, 30, 7, 9)
    for format in ("nchw", "nhwc", "nChw16c"):
        out = [1 if k in axes else n for k, n in enumerate(dims)]
        made = Reduction(rl.MemoryDesc(dims, kind, format), "mean", dst=rl.MemoryDesc(out, kind, format))
        assert_exact(made, rl.tensor(extremes(dims, kind, 1), format, kind))


def planned(made):
    """The two steps of a pooling, if it is done in two."""
    found = window.planned(*made.operation.reduction, made.src, made.dst, made.axes)
    numbers = separable.of_window(found)
    return numbers if numbers is not None and numbers.suits() else None


def test_windows_that_overlap_are_taken_in_two_steps():
    for format in ("nhwc", "nChw16c", "nchw"):
        src = rl.MemoryDesc((1, 64, 35, 35), "u8", format)
        assert planned(Pooling(src, "average_exclude_padding", 3, 1, 1)) is not None
        assert planned(Pooling(src, "average_exclude_padding", 2)) is None
    assert (
        planned(Pooling(rl.MemoryDesc((1, 64, 35, 35), "bf16", "nhwc"), "average_exclude_padding", 3, 1))
        is None
    )
    wide = rl.MemoryDesc((1, 64, 9, 4000), "u8", "nhwc")  # more than the stack is to hold
    assert planned(Pooling(wide, "average_exclude_padding", 3, 1, 1)) is None


# --- resampling --------------------------------------------------------------------------------------------


@st.composite
def resamplings(draw):
    """A linear resampling of bytes, mostly by a power of two."""
    format = draw(st.sampled_from(IMAGES))
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((1, 4, 16, 20, 32, 64, 96, 130)))]
    dims += [draw(st.sampled_from((1, 2, 5, 8))), draw(st.sampled_from((1, 2, 7, 16, 32)))]
    factors = [draw(st.sampled_from((0.5, 1, 2, 2, 4, 8, 1.5))) for _ in range(2)]
    out = [max(1, int(n * by)) for n, by in zip(dims[2:], factors, strict=True)]
    kind = draw(st.sampled_from(BYTES))
    dst = rl.MemoryDesc((*dims[:2], *out), kind, format)
    return Resampling(rl.MemoryDesc(dims, kind, format), "linear", dst)


@runs_code
@examples(60)
@given(resamplings(), st.integers(0, 99))
def test_linear_resampling_is_exact(made, seed):
    src = made.src
    x = laid_out(extremes(src.dims, src.dtype.name, seed), src)
    if "in 16 bits" in made.implementation:
        assert_resampled(made, x)
        return
    exact = np.asarray(made.reference(x), np.float64)
    assert (np.abs(called(made, x) - exact) <= 0.5 + 1e-4).all()


@runs_code
@pytest.mark.parametrize("cpu", [cpu for cpu in NEEDS if can_run(cpu)])
@pytest.mark.parametrize("kind", BYTES)
def test_linear_resampling_is_exact_on_other_processors(cpu, kind):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        for channels, factor in ((64, 2), (96, 4), (16, 8), (130, 0.5)):
            src = rl.MemoryDesc((2, channels, 6, 8), kind, "nhwc")
            made = Resampling(src, "linear", factors=factor)
            assert "in 16 bits" in made.implementation
            assert_exact(made, rl.tensor(extremes(src.dims, kind, channels), "nhwc", kind))


@runs_code
@pytest.mark.parametrize("cpu", [cpu for cpu in NEEDS if can_run(cpu)])
@examples(20)
@given(resamplings(), st.integers(0, 99))
def test_resampling_of_all_formats_is_exact_on_other_processors(cpu, made, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        x = laid_out(extremes(made.src.dims, made.src.dtype.name, seed), made.src)
        if "in 16 bits" in made.implementation:
            assert_resampled(made, x)
            return
        exact = np.asarray(made.reference(x), np.float64)
        assert (np.abs(called(made, x) - exact) <= 0.5 + 1e-4).all()


@pytest.mark.turns(2)
@runs_code
@pytest.mark.skipif(not can_run("x86-64-v3"), reason="this processor has no AVX2")
@pytest.mark.parametrize(
    ("kind", "format", "width"),
    covering(BYTES, ["nchw", "NCHW4"], [2, 3, 8, 15, 16, 17, 31, 33, 64, 130, 301]),
)
def test_pixels_in_lanes(kind, format, width, monkeypatch):
    """Rows of all lengths, that end with what they are in: nothing is read behind them."""
    machine = machine_.machine("x86-64-v3")
    monkeypatch.setattr(machine_, "host", lambda: machine)
    src = rl.MemoryDesc((1, 4, 6, width), kind, format)
    x = rl.tensor(extremes(src.dims, kind, width), format, kind)
    for factor in (2, 4, 0.5, 1.5):
        made = Resampling(src, "linear", factors=factor)
        if "in 16 bits" in made.implementation:
            assert_resampled(made, x)
    for stride in (1, 2):
        made = Pooling(src, "average_exclude_padding", 2, stride)
        found = separable.of_pairs(window.planned(*made.operation.reduction, src, made.dst, made.axes))
        assert found is not None
        if format == "nchw":
            several = made.dst.dims[3] >= pixels_in_lanes.LEAST_RESULTS
            assert pixels_in_lanes.suits(found, machine) is several
        assert_exact(made, x)


# --- code --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_code_calls_no_library(cpu, triple):
    machine = machine_.machine(cpu, triple)
    src = rl.MemoryDesc((1, 64, 20, 35), "s8", "nhwc")
    for made in (
        Pooling(src, "average_exclude_padding", 3, 1, 1),
        Pooling(src, "average_include_padding", 3, 2, 1),
    ):
        text = separable_text.module(planned(made), machine)
        code = compile_.assemble(text, machine)
        if code.startswith(b"\x7fELF"):
            assert undefined(code) == set()


# --- resampling in f32 -------------------------------------------------------------------------------------


@st.composite
def reals(draw):
    """A linear resampling of any type, along one or two axes."""
    spatial = draw(st.sampled_from((1, 2, 2)))
    format, other = (
        draw(st.sampled_from({1: ("nwc", "nCw16c"), 2: ("nhwc", "nChw16c")}[spatial])) for _ in "12"
    )
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((8, 16, 20, 48, 130)))]
    dims += [draw(st.sampled_from((1, 2, 5, 13))) for _ in range(spatial)]
    out = [max(1, int(n * draw(st.sampled_from((0.4, 1, 1.5, 2, 3.3))))) for n in dims[2:]]
    src, dst = (draw(st.sampled_from(("f32", "bf16", "f16", "u8", "s8"))) for _ in "12")
    ops = draw(st.sampled_from(((), ("relu",))))
    target = rl.MemoryDesc((*dims[:2], *out), dst, other)
    return Resampling(rl.MemoryDesc(dims, src, format), "linear", target, post_ops=ops)


@runs_code
@pytest.mark.parametrize("cpu", ["host", *(cpu for cpu in NEEDS if can_run(cpu))])
@examples(25)
@given(reals(), st.integers(0, 99))
def test_resampling_in_two_steps_is_the_definition_rounded(cpu, made, seed):
    with pytest.MonkeyPatch.context() as patch:
        if cpu != "host":
            patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        src, random = made.src, np.random.default_rng(seed)
        x = laid_out(40 * random.standard_normal(src.dims), src)
        exact = np.asarray(made.reference(x), np.float64)
        found = called(made, x)
    if not made.dst.dtype.is_float:
        info = made.dst.dtype
        assert (np.abs(found - np.clip(exact, info.min, info.max)) <= 0.5 + 1e-4).all()
        return
    half = {"f32": 2.0**-22, "bf16": 2.0**-9 * 1.01, "f16": 2.0**-12 * 1.01}[made.dst.dtype.name]
    np.testing.assert_allclose(found, exact, 2 * half, 1e-4)


@runs_code
@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
def test_infinities_stay_where_they_are(kind):
    data = np.ones((1, 16, 3, 4), np.float32)
    data[0, :, 1, 2] = np.inf
    x = rl.tensor(data, "nhwc", kind)
    found = Resampling(x.desc, "linear", rl.MemoryDesc((1, 16, 3, 4), kind, "nhwc"))(x).numpy()
    np.testing.assert_array_equal(found.astype(np.float64), data)
    twice = Resampling(x.desc, "linear", factors=2)(x).numpy().astype(np.float64)
    assert not np.isnan(twice).any()
    assert np.isinf(twice[0, :, 2:4, 4:6]).all()
    assert (twice[0, :, :, :3] == 1).all()
