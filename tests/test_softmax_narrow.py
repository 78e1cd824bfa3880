"""Softmax to narrow types: the shorter exponential of bf16 and f16, and f32 rounded once to others."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import covering
from relayout.ir import exponential
from relayout.primitives import Softmax
from strategies import examples
from test_math import CPUS, Kernels
from test_pooling import TARGETS, called
from test_values import NEEDS, can_run, undefined

machine_ = importlib.import_module("relayout.targets.machine")
compile_ = importlib.import_module("relayout.jit.compile")
softmax_ = importlib.import_module("relayout.kernels.reduce.softmax")

WITHIN = {"bf16": 0.54, "f16": 0.54}  # units in the last place
BITS = {"bf16": (8, -126), "f16": (11, -14)}  # of a mantissa, and the least exponent
inf, nan = np.inf, np.nan


def units(exact: Any, kind: str) -> Any:
    """The unit in the last place of each number."""
    bits, least = BITS[kind]
    exponent = np.frexp(np.abs(exact))[1] - 1
    return 2.0 ** (np.maximum(exponent, least) - bits + 1)


def assert_within(made: Softmax, x: rl.Tensor) -> None:
    """Results are as near to the definition as is stated; what is hardly a bf16 may be 0."""
    kind = made.dst.dtype.name
    exact, found = np.asarray(made.reference(x), np.float64), called(made, x)
    strange = np.isnan(exact)
    np.testing.assert_array_equal(np.isnan(found), strange)
    error, unit = np.abs(found - exact)[~strange], units(exact, kind)[~strange]
    least = 2.0**-126 * made.src.dims[made.operation.axis] if kind == "bf16" else 0
    assert (error <= np.maximum(WITHIN[kind] * unit, least)).all(), (error / unit).max()


# --- the exponential ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("count", [4, 16, 32])
@pytest.mark.parametrize("degree", [3, 4])
def test_powers_of_two_have_as_many_bits_as_is_said(cpu: str, count: int, degree: int) -> None:
    emits = {
        "plain": lambda b, x: exponential.exp2(b, x, degree=degree),
        "bounded": lambda b, x: exponential.exp2(b, x, -100.0, degree),
    }
    most = exponential.ERROR[degree]
    powers = Kernels(emits, cpu, count)
    x = -np.linspace(0, 125.9, 1 << 16, dtype=np.float32)
    exact = 2.0 ** x.astype(np.float64)
    assert (np.abs(powers("plain", x) / exact - 1) < most).all()
    bounded = powers("bounded", x)
    assert (bounded[x < -100] == 0).all()
    assert (np.abs(bounded / exact - 1)[x >= -100] < most).all()
    special = np.resize(np.float32([-inf, nan, -1e38, -0.0]), 64)
    with np.errstate(invalid="ignore"):
        for name in emits:
            found = powers(name, special)[:4]
            assert np.isnan(found[1])
            assert (found[[0, 2]] == 0).all()
            assert abs(found[3] - 1) < most


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("degree", [3, 4])
def test_powers_of_two_and_a_half(cpu: str, degree: int) -> None:
    powers = Kernels({"half": lambda b, x: exponential.exp2_and_half(b, x, degree)}, cpu, 16)
    x = np.linspace(-126.49, 126, 1 << 16, dtype=np.float32)
    exact = 2.0 ** (x.astype(np.float64) + 0.5)
    found = powers("half", x)
    assert (np.abs(found / exact - 1) < exponential.ERROR[degree]).all()
    assert (found >= 2.0**-126 * (1 - exponential.ERROR[degree])).all()
    special = np.resize(np.float32([-inf, nan, -1e38, -126.51]), 64)
    with np.errstate(invalid="ignore"):
        some = powers("half", special)[:4]
    assert np.isnan(some[1])
    assert (some[[0, 2, 3]] == 0).all()


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("degree", [3, 4])
def test_powers_times_any_number(cpu: str, degree: int) -> None:
    powers = Kernels({"monic": lambda b, x: exponential.exp2_and_half(b, x, degree, True)}, cpu, 16)
    x = np.linspace(-126.49, 126 - exponential.MONIC[degree], 1 << 16, dtype=np.float32)
    found = powers("monic", x).astype(np.float64) / 2.0 ** (x.astype(np.float64) + 0.5)
    number = np.sqrt(found.min() * found.max())
    assert 1 < number < 2.0 ** exponential.MONIC[degree]
    assert (np.abs(found / number - 1) < exponential.ERROR[degree]).all()
    special = np.resize(np.float32([-inf, nan, -1e38, -126.51]), 64)
    with np.errstate(invalid="ignore"):
        some = powers("monic", special)[:4]
    assert np.isnan(some[1])
    assert (some[[0, 2, 3]] == 0).all()


# --- softmax -----------------------------------------------------------------------------------------------

SHAPES = [(3, 1), (5, 3), (3, 33), (2, 64), (5, 128), (5, 197), (3, 256), (3, 257), (2, 3, 1000), (2, 4096)]


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("kind", "dims", "format"),
    covering(["bf16", "f16"], [*SHAPES, (1, 4100), (1, 30000)], ["row", "column"]),
)
def test_results_are_near_the_definition(kind: str, dims: tuple[int, ...], format: str) -> None:
    text = "abc"[: len(dims)]
    text = text if format == "row" else text[::-1]
    random = np.random.default_rng(len(dims))
    for source, scale in ((kind, 3), (kind, 30), ("f32", 3)):
        x = rl.tensor(scale * random.standard_normal(dims).astype(np.float32), text, source)
        made = Softmax(x.desc, -1, rl.MemoryDesc(dims, kind, text))
        assert made.implementation.startswith("machine code")
        assert_within(made, x)


@pytest.mark.parametrize("cpu", [cpu for cpu in NEEDS if can_run(cpu)])
@pytest.mark.parametrize("kind", ["bf16", "f16"])
@examples(10)
@given(st.sampled_from(SHAPES), st.integers(0, 99), st.sampled_from(("row", "column")))
def test_other_processors_come_as_near(
    cpu: str, kind: str, dims: tuple[int, ...], seed: int, format: str
) -> None:
    text = "abc"[: len(dims)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        data = 10 * np.random.default_rng(seed).standard_normal(dims).astype(np.float32)
        x = rl.tensor(data, text if format == "row" else text[::-1], kind)
        assert_within(Softmax(x.desc, -1), x)


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("format", ["ab", "ba"])
@pytest.mark.parametrize("length", [4, 40, 300])
def test_special_values(kind: str, format: str, length: int) -> None:
    top = 3e38 if kind == "bf16" else 65504
    rows = [[-inf, -inf, -inf], [-inf, 0, 0], [inf, 0, 1], [inf, inf, -inf], [nan, 0, 1], [-inf, nan, -inf]]
    rows += [[top, -top, 0], [-top, -top, -inf], [0, -20, -100], [-30, 0, -30], [top, top, top]]
    for filler in (-50, -inf):
        x = rl.tensor(np.float32([row + [filler] * (length - 3) for row in rows]), format, kind)
        made = Softmax(x.desc)
        assert_within(made, x)
        assert (made(x).numpy().astype(np.float64)[1, 0] == 0).all()
        guarded = Softmax(x.desc, guarded=True)(x).numpy().astype(np.float64)
        assert not guarded[[2, 3, 4, 5, *([0] if filler == -inf else [])]].any()


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("length", [5, 32, 33, 100, 128, 197, 700, 5000])
def test_rows_wherever_they_are(kind: str, length: int) -> None:
    """No maximum is subtracted where sums tell that none is needed; of a task some rows may need one."""
    random = np.random.default_rng(length)
    offsets = [0, 20, -20, 22.2, -22.2, 40, -40, 60, -60, 61.5, 84, -84, 88, -88, 90, 100, -100, 1000, -3e4]
    offsets += [0, 0, 0, 3e4, 0, -inf]
    for spread in (0, 1, 30):
        rows = spread * random.standard_normal((len(offsets), length)) + np.array(offsets)[:, None]
        x = rl.tensor(rows.astype(np.float32), "ab", kind)
        assert_within(Softmax(x.desc), x)


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
@pytest.mark.parametrize(("rows", "length"), [(1, 40), (16, 33), (17, 64), (50, 197), (9, 512), (5, 1030)])
@pytest.mark.parametrize("log", [False, True])
def test_groups_of_rows_and_what_is_left_of_them(kind: str, rows: int, length: int, log: bool) -> None:
    """Rows that go through each pass together are as they would be one by one."""
    random = np.random.default_rng(rows)
    data = random.standard_normal((rows, length)) * 3 - 8 * (np.arange(rows)[:, None] % 3)
    x = rl.tensor(data.astype(np.float32), "ab", kind)
    found = called(Softmax(x.desc, log=log), x)
    for row in range(rows):
        one = rl.tensor(data[row : row + 1].astype(np.float32), "ab", kind)
        np.testing.assert_array_equal(called(Softmax(one.desc, log=log), one)[0], found[row])
    if kind != "f32" and not log:
        assert_within(Softmax(x.desc), x)


def test_a_mask_is_zero_wherever_the_others_are() -> None:
    for offset in (-1000, -60, -20, 0, 20, 60, 1000):
        data = np.full((6, 130), offset, np.float32)
        data[:, 1::3], data[:, 2::3] = -inf, -1e30
        found = Softmax(rl.MemoryDesc((6, 130), "bf16", "ab"))(rl.tensor(data, "ab", "bf16")).numpy()
        found = found.astype(np.float64)
        assert (found[:, 1::3] == 0).all()
        assert (found[:, 2::3] == 0).all()
        np.testing.assert_allclose(found[:, ::3], 1 / 44, rtol=2**-8)


@pytest.mark.parametrize("dims", [(4, 20), (4, 200), (4, 700)])
def test_no_bf16_is_subnormal(dims: tuple[int, int]) -> None:
    below = np.resize(np.linspace(-110, -80, 301, dtype=np.float32), dims)
    below[:, 0] = 0
    found = Softmax(rl.MemoryDesc(dims, "bf16", "ab"))(rl.tensor(below, "ab", "bf16")).numpy()
    found = found.astype(np.float64)
    assert ((found == 0) | (found >= 2.0**-126)).all()


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("dims", [(0, 4), (4, 0), (1, 1)])
def test_nothing_and_one_element(kind: str, dims: tuple[int, int]) -> None:
    x = rl.tensor(np.zeros(dims, np.float32), "ab", kind)
    found = Softmax(x.desc)(x).numpy()
    assert found.shape == dims
    assert (found == 1).all()


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("length", [100, 700, 5000])
def test_the_destination_may_be_the_source(kind: str, length: int) -> None:
    data = np.random.default_rng(1).standard_normal((5, length)).astype(np.float32)
    x = rl.tensor(data, "ab", kind)
    made = Softmax(x.desc)
    expected = made(x).numpy(copy=True)
    made(x, out=x)
    np.testing.assert_array_equal(x.numpy(), expected)


@pytest.mark.parametrize("kind", ["s8", "u8"])
@pytest.mark.parametrize("dims", [(3, 33), (5, 197), (2, 3, 1000), (1, 4100)])
@pytest.mark.parametrize("format", ["row", "column"])
def test_bytes_are_those_of_f32_rounded_once(kind: str, dims: tuple[int, ...], format: str) -> None:
    text = "abc"[: len(dims)]
    text = text if format == "row" else text[::-1]
    random = np.random.default_rng(len(dims))
    x = rl.tensor(3 * random.standard_normal(dims).astype(np.float32), text, "f32")
    narrow, wide = (Softmax(x.desc, -1, rl.MemoryDesc(dims, one, text)) for one in (kind, "f32"))
    wanted = wide(x).reorder(rl.MemoryDesc(dims, kind, text))
    assert (narrow(x).buffer == wanted.buffer).all()


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_code_calls_no_library(cpu: str, triple: str, kind: str) -> None:
    machine = machine_.machine(cpu, triple)
    for length in (100, 300, 20000):
        desc = rl.MemoryDesc((4, length), kind, "ab")
        made = softmax_.planned(desc, desc, 1, False)
        code = compile_.assemble(softmax_.module(made, machine), machine)
        if code.startswith(b"\x7fELF"):
            assert undefined(code) == set()
