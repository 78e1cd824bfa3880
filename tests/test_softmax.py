"""Softmax: the machine code against the definition in double precision, in any format and along any axis."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from relayout import LayoutError, MemoryDesc, Unsupported
from relayout.ops.softmax import definition
from relayout.primitives import Softmax
from strategies import examples
from test_pooling import EPSILON, FORMATS, TARGETS, called, laid_out, sources
from test_values import NEEDS, can_run, undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
normalise = importlib.import_module("relayout.kernels.reduce.softmax")

runs_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")
inf, nan = np.inf, np.nan


@st.composite
def softmaxes(draw):
    """A softmax of any source along any axis, perhaps to another format."""
    src = draw(sources())
    dst = None
    if draw(st.integers(0, 3)) == 0:
        dst = MemoryDesc(src.dims, "f32", draw(st.sampled_from(FORMATS[len(src.dims) - 2])))
    return Softmax(src, draw(st.integers(-len(src.dims), len(src.dims) - 1)), dst, draw(st.booleans()))


def numbers(dims, seed, scale=10):
    """Numbers, some of them far from the others."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(dims) * rng.choice([0.1, 1, scale], dims)).astype(np.float32)


def assert_close(got, expected):
    """Within 1e-6 of their size; what is hardly a normal number may be zero."""
    with np.errstate(over="ignore"):  # f32 has no numbers below -3.4e38
        np.testing.assert_allclose(got, expected.astype(np.float32), 1e-6, 2**-126 * max(1, got.size))


@runs_code
@examples(40)
@given(softmaxes(), st.integers(0, 99))
def test_code_agrees_with_double_precision(made, seed):
    array = numbers(made.src.dims, seed)
    assert_close(called(made, laid_out(made.src, array)), made.reference(array))
    assert "NumPy" not in made.implementation


@runs_code
@pytest.mark.parametrize("cpu", [cpu for cpu in NEEDS if can_run(cpu)])
@examples(8)
@given(softmaxes(), st.integers(0, 99))
def test_code_for_other_processors_agrees_too(cpu, made, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        array = numbers(made.src.dims, seed)
        assert_close(called(made, laid_out(made.src, array)), made.reference(array))


@runs_code
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("format", ["ab", "ba"])
def test_long_axes_lose_nothing(format, log):
    for length in (15, 16, 33, 65, 200, 30000):
        src = MemoryDesc((5, length), "f32", format)
        made, array = Softmax(src, 1, log=log), numbers(src.dims, length, 30)
        array[:2] = [[-0.3], [-0.7]]  # equal terms are all rounded in the same direction
        array[:2, 0] = 0
        assert_close(called(made, laid_out(src, array)), made.reference(array))


@runs_code
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("format", ["ab", "ba"])
def test_special_values(format, log):
    rows = [[-inf, -inf, -inf], [-inf, 0, 0], [inf, 0, 1], [inf, inf, -inf], [nan, 0, 1], [-inf, nan, -inf]]
    rows += [[3e38, -3e38, 0], [-3e38, -3e38, -inf], [0, -20, -100], [-30, 0, -30], [-103, 0, -105]]
    for few in (1, 7):
        array = np.float32([row + [-50] * few for row in rows])
        src = MemoryDesc(array.shape, "f32", format)
        made = Softmax(src, log=log)
        assert_close(called(made, laid_out(src, array)), made.reference(array))
    alone = np.full((2, 20), -inf, np.float32)
    assert np.isnan(Softmax(MemoryDesc(alone.shape, "f32", "ab"), log=log)(rl.tensor(alone)).numpy()).all()


@runs_code
@pytest.mark.parametrize("format", ["ab", "ba"])
def test_nothing_is_subnormal(format):
    below = np.linspace(-110, -80, 601, dtype=np.float32)
    array = np.zeros((3, 700), np.float32)
    array[0, :601], array[1, 5:606], array[2, -601:] = below, below + 3, below
    got = Softmax(MemoryDesc(array.shape, "f32", format))(
        laid_out(MemoryDesc(array.shape, "f32", format), array)
    )
    found = got.numpy()
    assert ((found == 0) | (found >= 2**-126)).all()
    np.testing.assert_allclose(found.sum(1), 1, 1e-6)


@runs_code
@examples(20)
@given(sources(), st.booleans(), st.data())
def test_the_destination_may_be_the_source(src, log, data):
    made = Softmax(src, data.draw(st.integers(0, len(src.dims) - 1)), src, log)
    x = laid_out(src, numbers(src.dims, 7))
    expected = made(x).numpy()
    made(x, out=x)
    np.testing.assert_array_equal(x.numpy(), expected)


def test_in_place_takes_the_same_format():
    src = MemoryDesc((2, 3, 4, 5), "f32", "nchw")
    x = rl.tensor(numbers(src.dims, 8), src)
    made = Softmax(src, 1, MemoryDesc(src.dims, "f32", "nhwc"))
    with pytest.raises(LayoutError, match="overlap"):
        made(x, out=rl.from_buffer(x.buffer, made.dst))


@runs_code
@pytest.mark.parametrize("format", ["nchw", "nChw16c"])
@pytest.mark.parametrize(
    ("one", "other"),
    [(n, n) for n in EPSILON] + [("bf16", "f32"), ("s8", "f32"), ("f32", "f16"), ("f32", "u8")],
)
def test_data_types(one, other, format):
    src = MemoryDesc((2, 21, 3, 5), one, format)
    x = rl.tensor(numbers(src.dims, 9), src)
    for log in share((False, True), len(format) + len(one) + len(other)):
        made = Softmax(src, 1, MemoryDesc(src.dims, other, rl.any), log)
        got, expected = called(made, x), made.reference(x)
        if other == "u8":
            assert (np.abs(got - np.clip(expected, 0, 255)) <= 0.5 + 1e-6).all()
        else:
            least = {"bf16": 2**-133, "f16": 2**-25, "f8_e4m3": 2**-10, "f8_e5m2": 2**-17}.get(other, 0)
            np.testing.assert_allclose(got, expected, max(EPSILON[other], 1e-6), least)


@runs_code
@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
def test_any_number_of_threads_gives_the_same(format, monkeypatch):
    monkeypatch.setenv("RELAYOUT_SHARING", "0")
    monkeypatch.setenv("RELAYOUT_THREADS", "3")
    made = Softmax(MemoryDesc((3, 36, 21, 41), "f32", format))
    x = rl.tensor(numbers(made.src.dims, 6), made.src)
    one, three = made(x, threads=1), made(x, threads=3)
    assert made._program.steps[-1].parts > 1
    np.testing.assert_array_equal(one.numpy(), three.numpy())


@pytest.mark.turns(2)
@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_code_for_all_processors_calls_no_library(cpu, triple):
    machine = machine_.machine(cpu, triple)
    for format in ("nchw", "nhwc"):
        for dtype in ("f32", "bf16"):
            for log in (False, True):
                src = MemoryDesc((2, 21, 3, 5), dtype, format)
                text = normalise.module(normalise.planned(src, src, 1, log), machine)
                assert undefined(compile_.assemble(text, machine)) == set()


@examples(50)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9), st.floats(-1000, 1000))
def test_definition(row, shift):
    x = np.array([row])
    y = definition(x, 1)
    assert y.sum() == pytest.approx(1)
    np.testing.assert_allclose(definition(x + shift, 1), y, 1e-9)
    np.testing.assert_allclose(np.exp(definition(x, 1, log=True)), y, 1e-9)


def test_what_follows_and_what_it_costs():
    made = Softmax(MemoryDesc((2, 21, 3, 5), "s8", "nChw8c"), -3)
    assert made.axis == 1
    assert made.dst == MemoryDesc((2, 21, 3, 5), "f32", "nChw8c")
    assert made.flops == 4 * 2 * 21 * 3 * 5


@pytest.mark.parametrize("dims", [(0, 3), (3, 0)])
def test_empty_tensors(dims):
    assert Softmax(MemoryDesc(dims, "f32", "ab"))(rl.tensor(np.zeros(dims, np.float32))).numpy().shape == dims


def test_what_is_wrong_is_said():
    src = MemoryDesc((2, 3), "f32", "ab")
    with pytest.raises(LayoutError, match="no axis 2; its axes are 0 to 1"):
        Softmax(src, 2)
    with pytest.raises(LayoutError, match="must be 2x3"):
        Softmax(src, 1, MemoryDesc((3, 2), "f32", "ab"))
    with pytest.raises(LayoutError, match="needs a format"):
        Softmax(MemoryDesc((2, 3), "f32", rl.any))
    with pytest.raises(Unsupported, match="s64"):
        Softmax(MemoryDesc((2, 3), "s64", "ab"))
