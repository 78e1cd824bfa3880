"""Averages of bytes whose columns slide in registers: exactly what the definition rounds to."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import machine_code
from relayout.kernels.reduce.rounding import MOST, nearest
from relayout.primitives import Pooling
from strategies import examples
from test_pooling import TARGETS
from test_separable import assert_exact, extremes, laid_out
from test_values import can_run, undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
pictures = importlib.import_module("relayout.kernels.reduce.pictures")
separable = importlib.import_module("relayout.kernels.reduce.separable")
sliding = importlib.import_module("relayout.kernels.reduce.sliding")
window = importlib.import_module("relayout.kernels.reduce.window")

runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
FORMATS = "nhwc", "nChw16c", "nchw", "nChw32c", "nChw64c", "NCHW4", "nChw8c"


def planned(made):
    """The numbers of an average whose windows overlap; None where they don't."""
    found = window.planned(*made.operation.reduction, made.src, made.dst, made.axes)
    return None if found is None else separable.of_window(found)


@pytest.mark.parametrize("d", range(1, 130))
def test_factors_round_as_they_multiply(d):
    found = nearest(d)
    if found is None:
        assert d > 12
        return
    n = np.arange(MOST * d + 1, dtype=np.int64)
    assert n.max() < 1 << 15 > max(found)
    down, up = (n * factor + (1 << 14) >> 15 for factor in found)
    np.testing.assert_array_equal(np.where(down & 1, up, down), np.rint(n / d))


@st.composite
def averages(draw):
    """An average, of windows that slide: as wide as 12 elements, most of them."""
    format = draw(st.sampled_from(FORMATS))
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((4, 16, 24, 64, 100, 192, 520)))]
    dims += [draw(st.sampled_from((1, 3, 5, 12))), draw(st.sampled_from((5, 16, 35, 70, 129)))]
    kernel = [draw(st.integers(1, min(3, dims[2]))), draw(st.integers(2, 4))]
    strides = [draw(st.sampled_from((1, 1, 2))) for _ in kernel]
    padding = [tuple(draw(st.integers(0, k - 1)) for _ in "12") for k in kernel]
    dilation = [2 if draw(st.booleans()) and 2 * kernel[0] <= dims[2] else 1, 1]
    algorithm = draw(st.sampled_from(("average_include_padding", "average_exclude_padding")))
    src = rl.MemoryDesc(dims, draw(st.sampled_from(("u8", "s8"))), format)
    return Pooling(src, algorithm, kernel, strides, padding, dilation)


@runs_code
@examples(80)
@given(averages(), st.integers(0, 99))
def test_averages_are_exact(made, seed):
    src = made.src
    assert_exact(made, laid_out(extremes(src.dims, src.dtype.name, seed), src))


REGISTERS = [
    pytest.param(
        cpu,
        marks=pytest.mark.skipif(
            not (machine_code() and can_run(cpu)), reason="this processor has no such registers"
        ),
    )
    for cpu in ("x86-64-v3", "x86-64-v4")
]


@pytest.mark.parametrize("cpu", REGISTERS)
@examples(15)
@given(averages(), st.integers(0, 99))
def test_averages_are_exact_without_later_instructions(cpu, made, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        src = made.src
        assert_exact(made, laid_out(extremes(src.dims, src.dtype.name, seed), src))


@pytest.mark.turns(2)
@pytest.mark.parametrize("cpu", REGISTERS)
@pytest.mark.parametrize("kind", ["u8", "s8"])
@pytest.mark.parametrize("algorithm", ["average_include_padding", "average_exclude_padding"])
@pytest.mark.parametrize("taps", [2, 3, 4, 5])
@pytest.mark.parametrize("channels", [1, 16, 64])
def test_all_sums_are_rounded_as_the_definition_says(cpu, kind, algorithm, taps, channels, monkeypatch):
    """The windows of ``taps`` columns of ``j // taps`` have the sums j, as Hermite says."""
    row = np.minimum(np.arange(256 * taps) // taps, MOST)
    data = np.zeros((2, channels, 2, row.size), int)
    data[:, :, 0], data[1, :, 1] = row, MOST
    data -= 128 if kind == "s8" else 0
    format = "nhwc" if channels == 64 else "nChw16c" if channels == 16 else "nchw"
    made = Pooling(rl.MemoryDesc(data.shape, kind, format), algorithm, (2, taps), 1, (1, 0))
    monkeypatch.setattr(machine_, "host", lambda: machine_.machine(cpu))
    near = channels != 16 or (taps - 1) * channels <= machine_.machine(cpu).vector  # of a register beside it
    assert sliding.suits(planned(made), machine_.machine(cpu)) is near
    assert_exact(made, rl.tensor(data, format, kind))


def test_windows_that_slide():
    machine = machine_.machine("znver4")

    def suits(format, *window, size=35, channels=192, algorithm="average_exclude_padding", machine=machine):
        src = rl.MemoryDesc((1, channels, size, size), "u8", format)
        made = planned(Pooling(src, algorithm, *window))
        return made is not None and sliding.suits(made, machine)

    for format in ("nhwc", "nChw16c", "nChw64c"):
        assert suits(format, 3, 1, 1)
        assert suits(format, 3, 1)
        assert suits(format, (1, 7), 1, (0, 3))
        assert not suits(format, (1, 11), 1)  # more registers than slide
    assert suits("nhwc", 3, 2, 1)
    assert not suits("nChw16c", 3, 2, 1)  # pixels of a register have results in several
    assert not suits("nhwc", 3, 3)  # nothing is shared
    assert not suits("nhwc", 5, 1, 2)  # sums of 25 take another division
    assert not suits("nhwc", 3, 1, 1, 2)  # columns that lie apart
    assert suits("nhwc", 3, 1, 1, size=300)  # the stack holds nothing
    assert suits("nchw", 3, 1, 1, size=112)
    assert not suits("nchw", 3, 1, 1)  # less than a register
    for cpu, triple in (TARGETS[0], TARGETS[-1]):
        assert not suits("nhwc", 3, 1, 1, machine=machine_.machine(cpu, triple))


def test_windows_that_slide_in_registers_of_32_bytes():
    machine = machine_.machine("x86-64-v3")
    for format, channels, stride, slides in (
        ("nhwc", 64, 1, True),
        ("nhwc", 64, 2, True),
        ("nhwc", 24, 2, False),  # less than a register
        ("nChw16c", 64, 1, True),
        ("nchw", 3, 1, True),
    ):
        src = rl.MemoryDesc((1, channels, 35, 35), "u8", format)
        made = planned(Pooling(src, "average_exclude_padding", 3, stride, 1))
        assert sliding.suits(made, machine) is slides


@st.composite
def apart(draw):
    """An average whose windows do not overlap."""
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((16, 32, 40, 96, 192)))]
    kernel = [draw(st.integers(1, 3)) for _ in "12"]
    strides = [n + draw(st.integers(0, 1)) for n in kernel]
    dims += [draw(st.integers(k, 20)) for k in kernel]
    padding = [tuple(draw(st.integers(0, k - 1)) for _ in "12") for k in kernel]
    algorithm = draw(st.sampled_from(("average_include_padding", "average_exclude_padding")))
    format = draw(st.sampled_from(("nhwc", "nChw32c", "nChw16c")))
    return Pooling(
        rl.MemoryDesc(dims, draw(st.sampled_from(("u8", "s8"))), format), algorithm, kernel, strides, padding
    )


@pytest.mark.parametrize("cpu", REGISTERS)
@examples(40)
@given(apart(), st.integers(0, 99))
def test_windows_that_share_nothing_are_exact(cpu, made, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        src = made.src
        assert_exact(made, laid_out(extremes(src.dims, src.dtype.name, seed), src))


# --- pictures ----------------------------------------------------------------------------------------------


@st.composite
def whole_pictures(draw):
    """An average in small windows that keeps the size of pictures, of one piece of memory."""
    format = draw(st.sampled_from(("nchw", "nchw", "NCHW4", "nChw8c")))
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 8, 20)))]
    dims += [draw(st.integers(1, 40)), draw(st.sampled_from((3, 7, 14, 17, 35, 70)))]
    kernel = [draw(st.integers(1, min(3, dims[2]))), draw(st.integers(2, 3))]
    dilation = [
        draw(st.sampled_from((1, 1, 2))) if 2 * k <= n else 1 for k, n in zip(kernel, dims[2:], strict=True)
    ]
    lost = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    front = [draw(st.integers(max(0, n - k + 1), min(n, k - 1))) for n, k in zip(lost, kernel, strict=True)]
    padding = [(a, n - a) for a, n in zip(front, lost, strict=True)]
    algorithm = draw(st.sampled_from(("average_include_padding", "average_exclude_padding")))
    src = rl.MemoryDesc(dims, draw(st.sampled_from(("u8", "s8"))), format)
    return Pooling(src, algorithm, kernel, 1, padding, dilation)


@runs_code
@examples(120)
@given(whole_pictures(), st.integers(0, 99))
def test_averages_of_pictures_are_exact(made, seed):
    src = made.src
    assert_exact(made, laid_out(extremes(src.dims, src.dtype.name, seed), src))


@runs_code
@pytest.mark.parametrize("kind", ["u8", "s8"])
@pytest.mark.parametrize("size", [(8, 8), (9, 14), (35, 35), (57, 71), (2, 1000)])
def test_pictures_of_all_sizes(kind, size):
    for window in ((3, 3), (1, 3), (2, 3), (3, 2)):
        for algorithm in ("average_include_padding", "average_exclude_padding"):
            src = rl.MemoryDesc((1, 3, *size), kind, "nchw")
            front = [(k - 1) // 2 for k in window]
            padding = [(a, k - 1 - a) for a, k in zip(front, window, strict=True)]
            assert_exact(
                Pooling(src, algorithm, window, 1, padding), laid_out(extremes(src.dims, kind, 3), src)
            )


def test_pictures_that_slide():
    machine = machine_.machine("x86-64-v4")

    def suits(size, *window, format="nchw", machine=machine):
        src = rl.MemoryDesc((1, 16, *size), "u8", format)
        return pictures.suits(planned(Pooling(src, "average_exclude_padding", *window)), machine)

    assert suits((35, 35), 3, 1, 1)
    assert suits((20, 20), 3, 1, 1, format="nChw8c")
    assert not suits((35, 35), 3, 1, 1, format="nChw8c")  # a table beyond the L1 cache
    assert not suits((35, 35), 5, 1, 2)  # sums of 25 take another division
    assert not suits((7, 7), 3, 1, 1)  # less than a register
    assert not suits((3, 1000), 3, 1, 1)  # all are at the edge
    assert not suits((64, 64), 3, 1, 1)  # rows fill registers by themselves
    for cpu, triple in TARGETS[:2]:
        assert not suits((35, 35), 3, 1, 1, machine=machine_.machine(cpu, triple))


def test_code_calls_no_library():
    machine = machine_.machine("x86-64-v4")
    for kind, format, stride in (("u8", "nhwc", 2), ("s8", "nChw16c", 1), ("s8", "nchw", 1)):
        src = rl.MemoryDesc((1, 64, 70, 70), kind, format)
        made = planned(Pooling(src, "average_exclude_padding", 3, stride, 1))
        code = compile_.assemble(sliding.module(made, machine), machine)
        if code.startswith(b"\x7fELF"):
            assert undefined(code) == set()
    made = planned(Pooling(rl.MemoryDesc((1, 3, 35, 35), "s8", "nchw"), "average_exclude_padding", 3, 1, 1))
    code = compile_.assemble(pictures.module(made, machine), machine)
    if code.startswith(b"\x7fELF"):
        assert undefined(code) == set()
