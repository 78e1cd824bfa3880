"""Pooling: the machine code against the definition, in any format, and the definition against arithmetic."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import LayoutError, MemoryDesc, Unsupported
from relayout.ops.pooling import definition
from relayout.primitives import Pooling
from relayout.primitives.pooling import ALGORITHMS
from relayout.primitives.post_ops import Function, Sum
from strategies import element_places, examples, padding_offsets
from test_values import LINUX, NEEDS, can_run, undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
window = importlib.import_module("relayout.kernels.reduce.window")

runs_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")
FORMATS = {
    1: ("ncw", "nwc", "nCw8c", "nCw16c"),
    2: ("nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4", "CHWN4", "b_fs_yx_fsv32", "hwcn"),
    3: ("ncdhw", "ndhwc", "nCdhw16c"),
}
CANARY = 0xA5
EDGE = 64  # bytes in front of and behind a buffer

# --- tensors -----------------------------------------------------------------------------------------------


@st.composite
def sources(draw, dtype="f32"):
    """A source in a format, by strides with holes, or a part of the channels of something larger."""
    spatial = draw(st.sampled_from((1, 2, 2, 2, 3)))
    size = st.sampled_from({1: (1, 2, 9, 40), 2: (1, 2, 5, 7, 20), 3: (1, 2, 4, 5)}[spatial])
    dims = [draw(st.integers(1, 3)), draw(st.sampled_from((1, 3, 4, 16, 17, 20, 40)))]
    dims += [draw(size) for _ in range(spatial)]
    kind = draw(st.sampled_from(("format", "format", "strides", "part")))
    if kind == "strides":
        strides, room = [0] * len(dims), 1
        for axis in draw(st.permutations(range(len(dims)))):
            strides[axis] = room
            room = room * dims[axis] + draw(st.sampled_from((0, 0, 3)))
        return MemoryDesc(dims, dtype, strides=strides)
    text = draw(st.sampled_from(FORMATS[spatial]))
    if kind == "format":
        return MemoryDesc(dims, dtype, text)
    whole = MemoryDesc((dims[0], dims[1] + 32, *dims[2:]), dtype, text)
    return whole.submemory(dims, (0, 32, *[0] * spatial))


@st.composite
def poolings(draw, algorithms=ALGORITHMS):
    """A pooling whose windows all have elements."""
    src = draw(sources())
    sizes = src.dims[2:]
    kernel = [draw(st.integers(1, min(n, 9)) if n > 1 else st.just(1)) for n in sizes]
    if draw(st.integers(0, 4)) == 0:
        kernel = list(sizes)
    strides = [draw(st.integers(1, 3)) for _ in sizes]
    gaps = [max(1, min(3, (n - 1) // max(1, k - 1))) for n, k in zip(sizes, kernel, strict=True)]
    dilation = [draw(st.integers(1, most)) for most in gaps]
    padding = [(draw(st.integers(0, (k - 1) // 2)), draw(st.integers(0, (k - 1) // 2))) for k in kernel]
    dst = None
    if draw(st.integers(0, 3)) == 0:
        made = Pooling(src, "average_include_padding", kernel, strides, padding, dilation)
        dst = MemoryDesc(made.dst.dims, "f32", draw(st.sampled_from(FORMATS[len(sizes)])))
    try:
        return Pooling(src, draw(st.sampled_from(algorithms)), kernel, strides, padding, dilation, dst)
    except LayoutError:  # dilated windows may fall between all elements
        return Pooling(src, "average_include_padding", kernel, strides, padding, dilation, dst)


def laid_out(desc, array):
    """A tensor whose holes and padding are poison: nobody may read them as data."""
    buffer = np.full(desc.required_bytes // 4, np.nan, np.float32)
    buffer[padding_offsets(desc.layout)] = np.nan
    made = rl.from_buffer(buffer.view(np.uint8), desc)
    rl.reorder(rl.tensor(array), desc, out=made)
    buffer[padding_offsets(desc.layout)] = np.nan
    return made


def numbers(dims, seed):
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


def called(made, *given):
    """The result of a call, after a look at every byte that is not an element."""
    size = made.dst.dtype.bits // 8
    whole = np.full(made.dst.required_bytes + 2 * EDGE, CANARY, np.uint8)
    buffer = whole[EDGE : len(whole) - EDGE]
    made(*given, out=rl.from_buffer(buffer, made.dst))
    others = np.ones(len(whole), bool)
    elements, padding = element_places(made.dst.layout).ravel(), padding_offsets(made.dst.layout)
    for byte in range(size):
        others[EDGE + elements * size + byte] = others[EDGE + padding * size + byte] = False
        assert not buffer[padding * size + byte].any()
    assert (whole[others] == CANARY).all()
    return rl.from_buffer(buffer, made.dst).numpy().astype(np.float64)


# --- the machine code --------------------------------------------------------------------------------------


@runs_code
@examples(50)
@given(poolings(), st.integers(0, 99))
def test_code_agrees_with_the_definition(made, seed):
    x = laid_out(made.src, numbers(made.src.dims, seed))
    got, expected = called(made, x), made.reference(x.numpy())
    assert "NumPy" not in made.implementation
    np.testing.assert_allclose(got, expected, 1e-6, 0 if made.algorithm == "max" else 2e-6)


@runs_code
@pytest.mark.parametrize("cpu", [cpu for cpu in NEEDS if can_run(cpu)])
@examples(8)
@given(poolings(), st.integers(0, 99))
def test_code_for_other_processors_agrees_too(cpu, made, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        x = laid_out(made.src, numbers(made.src.dims, seed))
        np.testing.assert_allclose(called(made, x), made.reference(x.numpy()), 1e-6, 2e-6)


@runs_code
@examples(20)
@given(poolings(("max",)), st.data())
def test_a_maximum_is_nan_where_a_window_holds_one_and_infinite_numbers_count(made, data):
    array = numbers(made.src.dims, 1)
    for value in (np.nan, np.inf, -np.inf, -np.inf):
        array[tuple(data.draw(st.integers(0, n - 1)) for n in array.shape)] = value
    np.testing.assert_array_equal(called(made, laid_out(made.src, array)), made.reference(array))


@runs_code
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
def test_a_window_may_be_the_whole_plane(format, algorithm):
    for sizes in ((7, 7), (1, 3), (50, 40)):
        src = MemoryDesc((2, 20, *sizes), "f32", format)
        made = Pooling(src, algorithm, sizes)
        array = numbers(src.dims, 2) + np.float32(100)
        np.testing.assert_allclose(called(made, laid_out(src, array)), made.reference(array), 3e-7)


EPSILON = {"f32": 2e-7, "bf16": 2**-8, "f16": 2**-11, "f8_e4m3": 2**-4, "f8_e5m2": 2**-3}
PAIRS = [(name, name) for name in (*EPSILON, "s32", "s8", "u8")]
PAIRS += [("u8", "f32"), ("f32", "s8"), ("bf16", "f32"), ("s8", "s32")]


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("format", ["nchw", "nChw16c"])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_data_types(one, other, format):
    src = MemoryDesc((2, 20, 9, 13), one, format)
    x = rl.tensor(np.float32(numbers(src.dims, 3) * 50), src)
    for algorithm in ALGORITHMS:
        dst = MemoryDesc((2, 20, 5, 7), other, rl.any)
        made = Pooling(src, algorithm, 3, 2, 1, dst=dst)
        got, expected = called(made, x), made.reference(x)
        if algorithm == "max" and one == other:
            np.testing.assert_array_equal(got, expected)
        elif other in EPSILON:
            np.testing.assert_allclose(got, expected, EPSILON[other], 1e-5)
        else:
            bounds = np.iinfo(made.dst.dtype.numpy)
            assert (np.abs(got - np.clip(expected, bounds.min, bounds.max)) <= 0.5 + 1e-4).all()


@runs_code
def test_maxima_of_large_integers_are_exact():
    for format in ("nchw", "nhwc"):
        src = MemoryDesc((1, 20, 8, 8), "s32", format)
        array = np.random.default_rng(4).integers(-(2**31), 2**31, src.dims).astype(np.int32)
        made = Pooling(src, "max", 2)
        np.testing.assert_array_equal(made(rl.tensor(array, src)).numpy(), made.reference(array))


@runs_code
@pytest.mark.parametrize("format", FORMATS[2])
def test_functions_follow_and_leave_the_padding_alone(format):
    src = MemoryDesc((2, 17, 6, 6), "f32", format)
    made = Pooling(src, "max", 2, post_ops=["exp", Function("linear", 2, 1)])
    x = laid_out(src, numbers(src.dims, 5))
    np.testing.assert_allclose(called(made, x), made.reference(x.numpy()), 1e-6)


@runs_code
@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
def test_any_number_of_threads_gives_the_same(format, monkeypatch):
    monkeypatch.setenv("RELAYOUT_SHARING", "0")
    monkeypatch.setenv("RELAYOUT_THREADS", "3")
    made = Pooling(MemoryDesc((3, 36, 41, 41), "f32", format), "max", 3, 2, 1)
    x = rl.tensor(numbers(made.src.dims, 6), made.src)
    one, three = made(x, threads=1), made(x, threads=3)
    assert made._program.steps[-1].parts > 1
    np.testing.assert_array_equal(one.numpy(), three.numpy())


TARGETS = [(cpu, LINUX) for cpu in NEEDS] + [("neoverse-n1", "aarch64-unknown-linux-gnu")]


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_code_for_all_processors_calls_no_library(cpu, triple):
    machine = machine_.machine(cpu, triple)
    for format in ("nchw", "nhwc", "nChw16c", "NCHW4"):
        for dtype in ("bf16", "u8"):
            for algorithm in ("max", "average_exclude_padding"):
                made = Pooling(MemoryDesc((1, 20, 9, 9), dtype, format), algorithm, 3, 2, 1)
                plan = window.planned(*made.operation.reduction, made.src, made.dst, made.axes)
                assert undefined(compile_.assemble(window.module(plan, machine), machine)) == set()


# --- the definition and the descriptors --------------------------------------------------------------------


def test_definition_by_hand():
    x = np.array([[[1.0, 2, 4, 8, 16]]])
    every = dict.fromkeys(ALGORITHMS)
    for algorithm in every:
        every[algorithm] = definition(x, algorithm, [2], [2], [(1, 0)], [2]).ravel().tolist()
    assert every == {
        "max": [2, 8],
        "average_include_padding": [1, 5],
        "average_exclude_padding": [2, 5],
    }


def test_sizes_and_formats_that_follow():
    src = MemoryDesc((2, 32, 12, 12), "s8", "nChw16c")
    made = Pooling(src, "max", (3, 2), strides=2, padding=[(1, 0), 0], dilation=(2, 1))
    assert made.dst == MemoryDesc((2, 32, 5, 6), "s8", "nChw16c")
    assert made.flops == 2 * 32 * 5 * 6 * 6
    assert made.bytes == src.nbytes + made.dst.nbytes
    part = MemoryDesc((1, 64, 8, 8), "f32", "nhwc").submemory((1, 32, 8, 8), (0, 0, 0, 0))
    assert Pooling(part, "max", 2).dst == MemoryDesc((1, 32, 4, 4), "f32", "nhwc")


@pytest.mark.parametrize("dims", [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4)])
def test_empty_tensors_make_empty_results_or_padding(dims):
    src = MemoryDesc(dims, "f32", "nhwc")
    made = Pooling(src, "average_include_padding", 2, 1, 1)
    got = made(rl.tensor(np.zeros(dims, np.float32), "nhwc")).numpy()
    assert got.shape == made.dst.dims
    assert not got.any()


SRC = MemoryDesc((1, 3, 6, 6), "f32", "nchw")
WRONG = [
    (lambda: Pooling(SRC, "avg", 2), "no algorithm"),
    (lambda: Pooling(SRC, "max", 0), "at least 1"),
    (lambda: Pooling(SRC, "max", (2, 2, 2)), "2 of them"),
    (lambda: Pooling(SRC, "max", None), "pooling: kernel None must be a whole number, or 2 of them"),
    (lambda: Pooling(SRC, "max", 2, strides=1.5), "pooling: strides 1.5 must be a whole number"),
    (
        lambda: Pooling(SRC, "max", 2, dilation=(1, None)),
        "pooling: dilation must be a whole number, got None",
    ),
    (lambda: Pooling(SRC, "max", 2, padding=0.5), "pooling: padding 0.5 must be a whole number"),
    (lambda: Pooling(SRC, "max", 2, padding=[None, 0]), "pooling: padding None must be .* or a pair"),
    (lambda: Pooling(SRC, "max", 2, padding=-1), "negative"),
    (lambda: Pooling(SRC, "max", 2, padding=[(0, 1, 2), 0]), "pair"),
    (lambda: Pooling(SRC, "max", 7), "6 elements and 0 of padding.* reaches over 7"),
    (lambda: Pooling(SRC, "max", 2, padding=2), r"padding \(2, 2\), but must have less than .* over, 2"),
    (lambda: Pooling(SRC, "average_exclude_padding", 3, padding=(0, 3)), "spatial axis 1"),
    (lambda: Pooling(SRC, "max", 2, 1, [1, 0], (7, 1)), "window 0 .* holds padding only, positions -1..6"),
    (lambda: Pooling(SRC, "max", 2, 1, [(6, 6), 0], (8, 1)), "window 4 .* padding only, positions -2..6"),
    *(
        (lambda a=a, p=p: Pooling(SRC, a, 2, padding=p), "must have less than the window reaches over, 2")
        for a in ALGORITHMS
        for p in (2**40, [(0, 2**40), 0], [(1, 2**62), 0])
    ),
    (
        lambda: Pooling(SRC, "max", 2, padding=2**40, dilation=2**41, strides=2**39),
        "window 0 along spatial axis 0 .* holds padding only",
    ),
    (lambda: Pooling(SRC, "max", 2, dst=MemoryDesc((1, 3, 2, 2), "f32", "nchw")), "1x3x3x3"),
    (lambda: Pooling(MemoryDesc((3, 4), "f32", "ab"), "max", 2), "3 to 5 axes"),
    (lambda: Pooling(MemoryDesc(SRC.dims, "f32", rl.any), "max", 2), "needs a format"),
    (lambda: Pooling(SRC, "max", 2, dst=MemoryDesc((1, 3, 3, 3), "f32", strides=(0, 0, 0, 1))), "one place"),
]


@pytest.mark.parametrize(("make", "words"), WRONG)
def test_what_is_wrong_is_said(make, words):
    with pytest.raises(LayoutError, match=words):
        make()


def test_what_is_not_offered_is_said():
    with pytest.raises(Unsupported, match="f64"):
        Pooling(MemoryDesc(SRC.dims, "f64", "nchw"), "max", 2)
    with pytest.raises(Unsupported, match="functions"):
        Pooling(SRC, "max", 2, post_ops=Sum())


def test_padding_counts_as_zero_only_where_it_is_included():
    src = MemoryDesc((1, 1, 1, 2), "f32", "nchw")
    made = Pooling(src, "average_include_padding", (1, 2), strides=1, padding=[0, 2], dilation=(1, 3))
    # windows of positions -2 and 1, -1 and 2, 0 and 3: the second lies astride the axis
    assert made(rl.tensor(np.ones(src.dims, np.float32), "nchw")).numpy().ravel().tolist() == [0.5, 0, 0.5]


# --- the workspace -----------------------------------------------------------------------------------------


@examples(30)
@given(poolings(("max",)), st.data())
def test_a_workspace_tells_where_maxima_are(made, data):
    how = (made.kernel, made.strides, made.padding, made.dilation)
    made = Pooling(made.src, "max", *how, made.dst, workspace=True)
    array = np.random.default_rng(0).integers(-2, 3, made.src.dims).astype(np.float32)
    for value in data.draw(st.sampled_from([(), (np.nan, np.nan, np.inf), (-np.inf,) * 3])):
        array[tuple(data.draw(st.integers(0, n - 1)) for n in array.shape)] = value
    found = made(laid_out(made.src, array))
    assert found.workspace.desc.layout.same_bytes(made.dst.layout)
    for index in np.ndindex(*made.dst.dims):
        taps = {}
        for number, tap in enumerate(np.ndindex(*made.kernel)):
            at = [
                i * s + t * d - p[0]
                for i, s, t, d, p in zip(index[2:], how[1], tap, how[3], how[2], strict=True)
            ]
            if all(0 <= k < n for k, n in zip(at, array.shape[2:], strict=True)):
                taps[number] = array[(*index[:2], *at)]
        is_nan = [k for k, x in taps.items() if np.isnan(x)]
        first = is_nan[0] if is_nan else max(taps, key=lambda k: (taps[k], -k))
        assert found.workspace.numpy()[index] == first
        np.testing.assert_equal(found.dst.numpy()[index], taps[first])


def test_the_type_of_a_workspace_holds_its_numbers():
    def kind(kernel):
        src = MemoryDesc((1, 16, 20, 20), "bf16", "nChw16c")
        return Pooling(src, "max", kernel, 1, workspace=True).workspace

    assert str(kind((15, 17))) == "u8:nChw16c:1x16x6x4"
    assert str(kind(16)) == "s32:nChw16c:1x16x5x5"
    with pytest.raises(LayoutError, match="has no workspace"):
        Pooling(MemoryDesc((1, 1, 4, 4), "f32", "nchw"), "average_include_padding", 2, workspace=True)
