"""Averages of bytes in pictures of one piece: exactly what the definition rounds to."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import machine_code
from relayout.primitives import Pooling
from strategies import examples
from test_pooling import TARGETS
from test_separable import assert_exact, extremes, laid_out
from test_values import undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
pixels = importlib.import_module("relayout.kernels.reduce.pixels")
planes = importlib.import_module("relayout.kernels.reduce.planes")
separable = importlib.import_module("relayout.kernels.reduce.separable")
window = importlib.import_module("relayout.kernels.reduce.window")

runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
wide = pytest.mark.skipif(
    not (machine_code() and machine_.host().vector == 64), reason="this processor has no such registers"
)


def planned(made):
    """The numbers of an average whose windows overlap."""
    return separable.of_window(window.planned(*made.operation.reduction, made.src, made.dst, made.axes))


@st.composite
def averages(draw):
    """An average that keeps the size of pictures, of any windows."""
    format = draw(st.sampled_from(("nchw", "nchw", "NCHW4", "nChw8c")))
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 8, 20)))]
    dims += [draw(st.sampled_from((1, 3, 5, 12, 35))), draw(st.sampled_from((2, 7, 17, 35, 70)))]
    kernel = [draw(st.integers(1, min(n, 7))) for n in dims[2:]]
    fits = [k for k, n in zip(kernel, dims[2:], strict=True) if 2 * k <= n]
    dilation = [draw(st.sampled_from((1, 1, 2))) if k in fits else 1 for k in kernel]
    lost = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    front = [draw(st.integers(max(0, n - k + 1), min(n, k - 1))) for n, k in zip(lost, kernel, strict=True)]
    padding = [(a, n - a) for a, n in zip(front, lost, strict=True)]
    algorithm = draw(st.sampled_from(("average_include_padding", "average_exclude_padding")))
    src = rl.MemoryDesc(dims, draw(st.sampled_from(("u8", "s8"))), format)
    return Pooling(src, algorithm, kernel, 1, padding, dilation)


@runs_code
@examples(120)
@given(averages(), st.integers(0, 99))
def test_averages_are_exact(made, seed):
    src = made.src
    assert_exact(made, laid_out(extremes(src.dims, src.dtype.name, seed), src))


@wide
@pytest.mark.parametrize("kernel", [(3, 3), (1, 5), (5, 3), (7, 7)])
@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_pictures_have_a_kernel_of_their_own(kernel, kind):
    for size in (8, 17, 35):
        src = rl.MemoryDesc((2, 3, size, size), kind, "nchw")
        for algorithm in ("average_include_padding", "average_exclude_padding"):
            made = Pooling(src, algorithm, kernel, 1, [k // 2 for k in kernel])
            assert planes.suits(planned(made), machine_.host())
            assert_exact(made, rl.tensor(extremes(src.dims, kind, size), "nchw", kind))


def test_other_windows_have_other_kernels():
    machine = machine_.machine("znver4")

    def suits(size, format="nchw", *window):
        src = rl.MemoryDesc((1, 16, size, size), "u8", format)
        return planes.suits(planned(Pooling(src, "average_exclude_padding", *window)), machine)

    assert suits(35, "nchw", 3, 1, 1)
    assert not suits(35, "nchw", 3, 1)  # smaller results
    assert not suits(35, "nchw", 3, 2, 1)  # fewer results
    assert not suits(35, "nhwc", 3, 1, 1)  # channels fill registers
    assert not suits(7, "nchw", 3, 1, 1)  # less than a register
    assert not suits(64, "nchw", 3, 1, 1)  # rows fill registers by themselves
    assert not suits(130, "nchw", 3, 1, 1)  # more than the L1 cache is to hold
    src = rl.MemoryDesc((1, 16, 35, 35), "u8", "nchw")
    made = planned(Pooling(src, "average_exclude_padding", 3, 1, 1))
    assert not any(planes.suits(made, machine_.machine(cpu, triple)) for cpu, triple in TARGETS[:2])


def test_code_calls_no_library():
    machine = machine_.machine("znver4")
    for kind, algorithm, kernel in (
        ("u8", "average_exclude_padding", 3),
        ("s8", "average_exclude_padding", 7),
        ("s8", "average_include_padding", 5),
    ):
        src = rl.MemoryDesc((1, 4, 20, 20), kind, "nchw")
        text = planes.module(planned(Pooling(src, algorithm, kernel, 1, kernel // 2)), machine)
        code = compile_.assemble(text, machine)
        if code.startswith(b"\x7fELF"):
            assert undefined(code) == set()


# --- two rows and two columns ------------------------------------------------------------------------------


@st.composite
def pairs(draw):
    """An average of two rows and two columns without padding, in formats whose neighbours are pixels."""
    format = draw(st.sampled_from(("nchw", "nchw", "NCHW4", "nChw16c", "nhwc")))
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 16)))]
    dims += [draw(st.sampled_from((2, 3, 8, 21))), draw(st.sampled_from((3, 7, 16, 56, 64, 101, 300)))]
    strides = [draw(st.sampled_from((1, 2, 2, 3))) for _ in "12"]
    src = rl.MemoryDesc(dims, draw(st.sampled_from(("u8", "s8"))), format)
    return Pooling(src, "average_include_padding", 2, strides)


@runs_code
@examples(80)
@given(pairs(), st.integers(0, 99))
def test_averages_of_pairs_are_exact(made, seed):
    src = made.src
    assert_exact(made, laid_out(extremes(src.dims, src.dtype.name, seed), src))


def test_pairs_are_gathered():
    machine = machine_.machine("znver4")
    for format in ("nchw", "NCHW4", "nChw16c"):
        made = Pooling(rl.MemoryDesc((1, 16, 28, 28), "s8", format), "average_include_padding", 2, 2)
        found = window.planned(*made.operation.reduction, made.src, made.dst, made.axes)
        assert pixels.suits(separable.of_pairs(found), machine)
    padded = Pooling(rl.MemoryDesc((1, 16, 28, 28), "s8", "nchw"), "average_include_padding", 2, 2, 1)
    found = window.planned(*padded.operation.reduction, padded.src, padded.dst, padded.axes)
    assert separable.of_pairs(found) is None
