"""Resampling: what is no number spreads to neighbours only; bytes beside which other pixels lie, exactly."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import machine_code
from fences import output_of
from relayout.kernels.reduce.axis import Axis
from relayout.kernels.reduce.rounding import divisor
from relayout.kernels.reduce.separable import WHOLE, denominator
from relayout.ops.resampling import Matrices, combined_along, places
from relayout.primitives import Resampling, ResamplingBackward
from relayout.primitives.banded import rows_of_resampling
from strategies import examples
from test_pooling import FORMATS, TARGETS, called
from test_separable import assert_resampled, extremes, laid_out
from test_values import undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
pixels = importlib.import_module("relayout.kernels.reduce.pixels")
separable = importlib.import_module("relayout.kernels.reduce.separable")
window = importlib.import_module("relayout.kernels.reduce.window")

runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
permutes = pytest.mark.skipif(
    not (machine_code() and machine_.host().permutes(8)), reason="this processor permutes no bytes"
)
NARROW = ("nchw", "NCHW4", "nChw8c", "nChw16c", "CHWN4")
inf, nan = np.inf, np.nan


# --- what is no number -------------------------------------------------------------------------------------


def strange(dims, seed):
    """Numbers, a few of which are none."""
    random = np.random.default_rng(seed)
    found = random.standard_normal(dims)
    which = random.random(dims)
    found[which < 0.06], found[which < 0.04], found[which < 0.02] = inf, -inf, nan
    return found


def assert_alike(found, wanted, tolerance):
    """The same NaN and infinities, and numbers that differ by no more than roundings."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, tolerance, tolerance)


@st.composite
def resamplings(draw, kinds=("f32", "bf16", "f16")):
    """A resampling along one to three axes."""
    spatial = draw(st.sampled_from((1, 2, 2, 3)))
    format, kind = draw(st.sampled_from(FORMATS[spatial])), draw(st.sampled_from(kinds))
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 8, 20, 64)))]
    dims += [draw(st.sampled_from((1, 2, 5, 8, 21) if spatial < 3 else (1, 2, 5))) for _ in range(spatial)]
    out = [max(1, int(n * draw(st.sampled_from((0.4, 0.5, 1, 1.5, 2, 2, 3.3))))) for n in dims[2:]]
    src = rl.MemoryDesc(dims, kind, format)
    dst = rl.MemoryDesc((*dims[:2], *out), kind, draw(st.sampled_from((rl.any, format))))
    return Resampling(src, draw(st.sampled_from(("linear", "linear", "nearest"))), dst)


@runs_code
@examples(60)
@given(resamplings(), st.integers(0, 99))
def test_what_is_no_number_spreads_as_the_definition_says(made, seed):
    x = laid_out(strange(made.src.dims, seed), made.src)
    tolerance = {"f32": 1e-5, "bf16": 2.0**-7, "f16": 2.0**-9}[made.src.dtype.name]
    assert made.implementation.startswith("machine code")
    assert_alike(called(made, x), np.asarray(made.reference(x), np.float64), tolerance)


@runs_code
@examples(40)
@given(resamplings(("f32",)), st.integers(0, 99))
def test_gradients_spread_as_the_definition_says(made, seed):
    back = ResamplingBackward(made)
    diff = rl.tensor(strange(made.dst.dims, seed), back.descs["diff_dst"])
    assert_alike(back(diff).numpy().astype(np.float64), np.asarray(back.reference(diff), np.float64), 1e-5)


@pytest.mark.parametrize("value", [inf, -inf, nan])
def test_one_element_reaches_its_neighbours_and_no_others(value):
    """A row of eight, twice as long: results 2k and 2k + 1 lie half an element around element k."""
    data = np.ones((1, 1, 1, 8))
    data[..., 3] = value
    made = Resampling(rl.MemoryDesc(data.shape, "f32", "nchw"), "linear", factors=(1, 2))
    for found in (made.reference(data), made(rl.tensor(data, made.src)).numpy()):
        met = ~np.isfinite(np.asarray(found)).ravel()
        assert np.flatnonzero(met).tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(("size", "out"), [(6, 12), (7, 10), (9, 4)])
def test_pytorch_spreads_them_alike_where_no_weight_is_zero(size, out):
    torch = pytest.importorskip("torch")
    data = np.random.default_rng(0).standard_normal((1, 2, size, size))
    data[0, 0, 2, 3], data[0, 1, 3, 2], data[0, 1, 4, 4] = inf, nan, -inf
    desc = rl.MemoryDesc(data.shape, "f32", "nchw")
    made = Resampling(desc, "linear", rl.MemoryDesc((1, 2, out, out), "f32", "nchw"))
    theirs = torch.nn.functional.interpolate(torch.tensor(data), (out, out), mode="bilinear").numpy()
    whole = [len(row) > 1 for row in places("linear", size, out)]
    inside = np.ix_([0], [0, 1], whole, whole)
    assert sum(whole) > 2
    assert_alike(np.asarray(made.reference(data))[inside], theirs[inside], 1e-9)


def test_sums_along_an_axis_touch_what_they_name():
    x = np.array([[1.0, inf], [3.0, nan]])
    rows = [[(0, 1.0)], [], [(1, 0.5), (0, 0.5)]]
    np.testing.assert_array_equal(combined_along(x, 0, rows), [[1, inf], [0, 0], [2, nan]])
    assert combined_along(np.zeros((2, 0)), 0, rows).shape == (3, 0)
    assert combined_along(x, 1, []).shape == (2, 0)


@st.composite
def by_matrices(draw):
    """A resampling by any rows: empty ones, some that name an element twice, weights of all signs."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    most = draw(st.sampled_from((2, 4)))
    axes = []
    for size in sizes:
        entry = st.tuples(st.integers(0, size - 1), st.sampled_from((1.0, 0.5, -0.25, 2.0, 0.0)))
        row = st.lists(entry, min_size=draw(st.sampled_from((0, 1))), max_size=most).map(tuple)
        axes.append(tuple(draw(st.lists(row, min_size=1, max_size=12))))
    form = st.sampled_from(FORMATS[len(sizes)])
    kinds = st.sampled_from(("f32", "bf16", "f16", "u8", "s8"))
    channels = draw(st.sampled_from((1, 3, 8, 17, 32)))
    src = rl.MemoryDesc((draw(st.integers(1, 2)), channels, *sizes), draw(kinds), draw(form))
    dst = rl.MemoryDesc((*src.dims[:2], *map(len, axes)), src.dtype, draw(form))
    return Resampling(src, Matrices(tuple(axes)), dst)


@runs_code
@examples(60)
@given(by_matrices(), st.integers(0, 2**16))
def test_matrices_may_be_given(made, seed):
    data = np.random.default_rng(seed).integers(-8, 9, made.src.dims)
    x = rl.tensor(abs(data) if made.src.dtype.name == "u8" else data, made.src.tag, made.src.dtype)
    found, wanted = made(x), rl.tensor(made.reference(x), made.dst.tag, made.dst.dtype)
    np.testing.assert_array_equal(unsigned(found), unsigned(wanted))
    assert "machine code" in made.implementation


def unsigned(x: rl.Tensor) -> np.ndarray:
    """All bits of a tensor, padding included, but for the sign of zeros: -3 times 0 is -0, and 0 in a sum."""
    bits = x.buffer.view(f"u{x.dtype.bits // 8}").copy()
    if x.dtype.name[0] not in "su":
        bits[bits == 1 << (x.dtype.bits - 1)] = 0
    return bits


@runs_code
def test_gradients_of_given_matrices():
    rows = (((0, 0.5), (2, 0.5)), (), ((1, 2.0),))
    forward = Resampling(rl.MemoryDesc((1, 1, 3), "f32", "ncw"), Matrices((rows,)))
    back = ResamplingBackward(forward)(rl.tensor([[[1.0, 10, 100]]], "ncw", dtype="f32")).numpy()
    np.testing.assert_array_equal(back, [[[0.5, 200, 0.5]]])


def test_given_matrices_must_fit():
    src, row = rl.MemoryDesc((1, 1, 3), "f32", "ncw"), ((0, 1.0),)
    with pytest.raises(rl.LayoutError, match="2 matrices for 1 spatial axis"):
        Resampling(src, Matrices(((row,), (row,))))
    with pytest.raises(rl.LayoutError, match="element 3 of an axis of 3"):
        Resampling(src, Matrices(((((3, 1.0),),),)))
    with pytest.raises(rl.LayoutError, match="1 rows"):
        Resampling(src, Matrices(((row,),)), rl.MemoryDesc((1, 1, 2), "f32", "ncw"))


# --- bytes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 30, 64, 100])
@pytest.mark.parametrize("out", [1, 2, 3, 7, 45, 60, 64, 128, 150, 200])
def test_weights_are_fractions(size, out):
    """By the denominator that is found all weights are integers, and by no smaller number."""
    exact = places("linear", size, out)
    [rows] = rows_of_resampling("linear", (size,), (out,))
    by = denominator(rows)
    weights = {weight for row in exact for _, weight in row}
    numbers = range(1, 2 * out + 1)
    smallest = next(n for n in numbers if all(abs(w * n - round(w * n)) < 1e-9 for w in weights))
    assert by == smallest or (by > WHOLE and smallest > WHOLE)


@st.composite
def of_bytes(draw, formats=NARROW):
    """A linear resampling of bytes in formats whose neighbours are pixels, mostly by small fractions."""
    format = draw(st.sampled_from(formats))
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 4, 20)))]
    dims += [draw(st.sampled_from(n)) for n in ((1, 2, 5, 9, 20), (2, 3, 7, 14, 28, 31, 33, 64, 70, 150))]
    factors = [draw(st.sampled_from((0.5, 0.75, 1, 1.25, 1.5, 2, 2, 2.5, 3, 4))) for _ in "12"]
    out = [max(1, int(n * by)) for n, by in zip(dims[2:], factors, strict=True)]
    kind = draw(st.sampled_from(("u8", "s8")))
    dst = rl.MemoryDesc((*dims[:2], *out), kind, format)
    return Resampling(rl.MemoryDesc(dims, kind, format), "linear", dst)


def planned(made):
    """The numbers of a resampling of bytes, if they are integers."""
    rows = rows_of_resampling("linear", made.src.dims[2:], made.dst.dims[2:])
    axes = [Axis(n, m) for n, m in zip(made.src.dims[2:], made.dst.dims[2:], strict=True)]
    found = window.planned("sum", "", made.src, made.dst, axes)
    return found and separable.of_weights(found, *rows)


def assert_bytes(made, x):
    """Exactly rounded where sums are integers; by way of f32 half-way cases may go up or down."""
    if "in 16 bits" in made.implementation:
        assert_resampled(made, x)
        return
    exact = np.asarray(made.reference(x), np.float64)
    assert (np.abs(called(made, x) - exact) <= 0.5 + 1e-4).all()


@runs_code
@examples(120)
@given(of_bytes(), st.integers(0, 99))
def test_rows_of_pixels_are_resampled_exactly(made, seed):
    src = made.src
    assert_bytes(made, laid_out(extremes(src.dims, src.dtype.name, seed), src))


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("kind", ["u8", "s8"])
@pytest.mark.parametrize("factor", [1.25, 1.5, 2, 2.5, 3, 4, 5, 6])
def test_all_sums_are_rounded_as_the_definition_says(kind, factor):
    """Pairs of all bytes, and ties among them, between extremes above and below."""
    low = -128 if kind == "s8" else 0
    one, other = (n.ravel() + low for n in np.meshgrid(np.arange(256), np.arange(0, 256, 5)))
    data = np.stack([one, other], -1).reshape(-1, 1, 1, 2)
    data = np.concatenate([data, data[::-1]], 2)
    for format in ("nchw", "nhwc"):
        x = rl.tensor(data, format, kind)
        assert_bytes(Resampling(x.desc, "linear", factors=factor), x)


@permutes
def test_pixels_have_a_kernel_of_their_own():
    for format in ("nchw", "NCHW4", "nChw16c"):
        for factor in (0.5, 1.5, 2, 3):
            made = Resampling(rl.MemoryDesc((1, 64, 56, 56), "u8", format), "linear", factors=factor)
            assert pixels.suits(planned(made), machine_.host())
            assert "in 16 bits" in made.implementation
    whole = Resampling(rl.MemoryDesc((1, 64, 56, 56), "u8", "nhwc"), "linear", factors=1.5)
    assert not pixels.suits(planned(whole), machine_.host())
    assert divisor(36) is not None
    assert "in 16 bits" in whole.implementation


def test_processors_that_permute_no_bytes_have_other_kernels():
    made = Resampling(rl.MemoryDesc((1, 4, 5, 6), "u8", "nchw"), "linear", factors=2)
    for cpu, triple in TARGETS:
        assert not pixels.suits(planned(made), machine_.machine(cpu, triple))
    machine = machine_.machine("znver4")
    for kind, factor, width in (("u8", 2, 6), ("s8", 1.5, 70), ("s8", 2, 300)):
        src = rl.MemoryDesc((1, 4, 5, width), kind, "nchw")
        text = pixels.module(planned(Resampling(src, "linear", factors=factor)), machine)
        code = compile_.assemble(text, machine)
        if code.startswith(b"\x7fELF"):
            assert undefined(code) == set()


@runs_code
def test_nothing_is_read_or_written_beyond_buffers():
    output_of(
        """
        from fences import arena, run_between
        import relayout as rl
        from relayout.primitives import Pooling, Resampling

        arenas = [arena(1 << 20) for _ in range(4)]
        for kind in ("u8", "s8"):
            for format, channels in (("nchw", 3), ("NCHW4", 8), ("nChw16c", 16)):
                for height, width in ((1, 2), (3, 7), (2, 33), (5, 64), (4, 91)):
                    src = rl.MemoryDesc((2, channels, height, width), kind, format)
                    for factor in (0.5, 1.5, 2, 3):
                        if height * factor >= 1:
                            run_between(Resampling(src, "linear", factors=factor), arenas)
                    if height > 2:
                        for algorithm in ("average_exclude_padding", "average_include_padding"):
                            run_between(Pooling(src, algorithm, 3, 1, 1), arenas)
        """
    )
