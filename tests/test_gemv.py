"""Few rows by weights as they lie: what the definition says, by kernels that read each weight once."""

from __future__ import annotations

import copy
import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from fences import output_of
from relayout import MemoryDesc
from relayout.ir.kernel import kernel
from relayout.ir.types import FLOAT, vector
from relayout.kernels.conv.arithmetic import FLOATS
from relayout.kernels.conv.cost import FACTS
from relayout.kernels.conv.epilogue import Epilogue
from relayout.kernels.conv.gemv import MOST_ROWS, Gemv, gemv
from relayout.kernels.conv.gemv_text import gemv_module, lanes_added
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.planning import Problem
from relayout.primitives import Convolution, InnerProduct, Matmul
from strategies import examples
from test_products import HERE, TARGETS, check, compiles, on, post_ops, products, vectors

machines = importlib.import_module("relayout.targets.machine")
compile_ = pytest.importorskip("relayout.jit.compile")

KINDS = ("f32", "f32", "bf16", "f16")


def plan_of(made):
    """How it is done; None by the definition."""
    return None if made._compiled() is None else made._made.plan


def pitched(dims, kind, free):
    """Rows that are some elements apart."""
    step = dims[-1] + free
    strides = [step * int(np.prod(dims[k + 1 : -1])) for k in range(len(dims) - 1)]
    return MemoryDesc(dims, kind, strides=(*strides, 1))


@st.composite
def problems(draw):
    """An inner product, a matrix product or several, or a convolution of one pixel."""
    cpu = draw(st.sampled_from(HERE))
    source, weights = draw(st.sampled_from(KINDS)), draw(st.sampled_from(KINDS))
    rows, inputs = draw(st.integers(1, MOST_ROWS)), draw(st.integers(32, 150))
    outputs, free = draw(st.integers(1, 70)), draw(st.sampled_from((0, 0, 3)))
    to = draw(st.sampled_from(("f32", "f32", "bf16", "f16", "s8")))
    bias, scale = draw(vectors(outputs, False))
    form = draw(st.sampled_from(("inner", "image", "matrix", "several", "pixel")))
    with on(cpu):
        ops = draw(post_ops()) if form in ("inner", "image", "pixel") else ()
        more = {"scale": scale, "post_ops": ops}
        if form == "inner":
            given = pitched((rows, inputs), source, free), pitched((outputs, inputs), weights, free)
            made = InnerProduct(*given, bias, MemoryDesc((rows, outputs), to, "nc"), **more)
        elif form == "image":
            order, filters = draw(st.sampled_from((("nchw", "oihw"), ("nhwc", "ohwi"))))
            dims = draw(st.integers(4, 20)), draw(st.integers(1, 3)), 3
            src = MemoryDesc((rows, *dims), source, order)
            made = InnerProduct(
                src, MemoryDesc((outputs, *dims), weights, filters), bias,
                MemoryDesc((rows, outputs), to, "nc"), **more,
            )  # fmt: skip
        elif form == "pixel":
            src = MemoryDesc((rows, inputs, 1, 1), source, "nhwc")
            dst = MemoryDesc((rows, outputs, 1, 1), to, "nhwc")
            made = Convolution(src, MemoryDesc((outputs, inputs, 1, 1), weights, "oihw"), bias, dst, **more)
        else:
            many = () if form == "matrix" else (draw(st.integers(1, 4)),)
            src = pitched((*many, rows, inputs), source, free)
            second = pitched((*many, outputs, inputs), weights, free)
            order = (1, 0) if form == "matrix" else (0, 2, 1)
            dst = MemoryDesc((*many, rows, outputs), to, "abc"[: len(many) + 2])
            made = Matmul(src, second.permute_axes(order), bias, dst)
    return cpu, made


@compiles
@given(problem=problems(), seed=st.integers(0, 99), threads=st.sampled_from((1, 3)))
@examples(120)
def test_kernels_compute_the_definition(problem, seed, threads):
    cpu, made = problem
    with on(cpu):
        check(copy.copy(made), seed, threads=threads)


@compiles
def test_weights_that_lie_so_are_not_packed():
    src, dst = MemoryDesc((2, 100), "f32", "nc"), MemoryDesc((2, 33), "f32", "nc")
    image, filters = MemoryDesc((1, 64, 3, 3), "f32", "nchw"), MemoryDesc((9, 64, 3, 3), "f32", "oihw")
    for made, so in (
        (InnerProduct(src, MemoryDesc((33, 100), "f32", "oi"), dst=dst), True),
        (InnerProduct(src, MemoryDesc((33, 100), "f32", "io"), dst=dst), False),
        (Matmul(src, MemoryDesc((100, 33), "f32", "ba")), True),
        (Matmul(MemoryDesc((3, 1, 64), "f32", "abc"), MemoryDesc((3, 64, 50), "f32", "acb")), True),
        (Convolution(image, filters), True),
        (Convolution(MemoryDesc(image.dims, "f32", "nhwc"), filters), False),
        (Convolution(image, filters, padding=1), False),
        (InnerProduct(MemoryDesc((99, 64), "f32", "nc"), MemoryDesc((9, 64), "f32", "oi")), False),
        (InnerProduct(MemoryDesc((1, 64), "u8", "nc"), MemoryDesc((9, 64), "s8", "oi")), False),
    ):  # fmt: skip
        assert isinstance(plan_of(made), Gemv) == so, made


@compiles
@pytest.mark.parametrize("cpu", ["znver5", "sapphirerapids"])
def test_few_rows_of_bf16_are_not_worth_packing(cpu):
    """Though an instruction multiplies packed ones; more rows where packing would read from memory."""
    machine = machines.machine(cpu, "x86_64-unknown-linux-gnu")
    far = machine.holds // 4 // 512
    for rows, outputs, so in (
        (1, 24, True),
        (7, 24, True),
        (8, 24, False),
        (8, far + 16, True),
        (9, far + 16, False),
    ):
        made = InnerProduct(MemoryDesc((rows, 512), "bf16", "nc"), MemoryDesc((outputs, 512), "bf16", "oi"))
        found = products._ways(made._as_products(made.descs), machine, 1)
        assert isinstance(found.candidates[0].plan, Gemv) == so, (rows, outputs)


def test_any_keeps_large_weights_as_they_are():
    """Those of a row or two; small ones, and those of more rows, are packed."""
    far = machines.host().l2 // 4 // 1024
    for rows, outputs, so in (
        (1, far + 1, True),
        (2, far + 1, True),
        (3, far + 1, False),
        (1, far // 2, False),
    ):
        made = InnerProduct(MemoryDesc((rows, 1024), "f32", "nc"), MemoryDesc((outputs, 1024), "f32", rl.any))
        assert (made.weights.layout == MemoryDesc((outputs, 1024), "f32", "oi").layout) == so
    free = MemoryDesc((1, 2048, 1, 1), "f32", rl.any)  # the source is chosen, too
    assert Convolution(free, MemoryDesc((far + 1, 2048, 1, 1), "f32", rl.any)).dst.dims == (1, far + 1, 1, 1)
    for form, filters in (("nchw", "oihw"), ("nhwc", "ohwi")):
        dims = 16, 8, 8
        made = InnerProduct(MemoryDesc((1, *dims), "f32", form), MemoryDesc((far + 1, *dims), "f32", rl.any))
        assert made.weights == MemoryDesc((far + 1, *dims), "f32", filters)


@compiles
def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers end at, then begin behind, a page that can't be touched."""
    script = """
        from fences import arena, run_between
        from relayout import MemoryDesc
        from relayout.primitives import InnerProduct
        from test_gemv import plan_of

        arenas = [arena(1 << 20) for _ in range(4)]
        for kind in ("f32", "bf16"):
            most = 8 if kind == "f32" else 7  # more are packed where an instruction multiplies bf16
            for rows, inputs, outputs in ((1, 33, 8), (1, 64, 7), (3, 47, 21), (most, 39, 1), (2, 130, 40)):
                made = InnerProduct(
                    MemoryDesc((rows, inputs), kind, "nc"), MemoryDesc((outputs, inputs), kind, "oi")
                )
                run_between(made, arenas)
                print(type(plan_of(made)).__name__)
        """
    assert output_of(script).split() == ["Gemv"] * 10


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_other_processors_are_assembled(cpu, triple, kind):
    machine = machines.machine(cpu, triple)
    src, dst = MemoryDesc((3, 100), kind, "nc"), MemoryDesc((3, 41), "f32", "nc")
    weights = MemoryDesc((41, 100), kind, "oi")
    problem = Problem(src, weights, dst, Geometry.of_matrices(3, 100, 41), FLOATS, False)
    [(plan, cycles)] = gemv(problem, machine, 2, FACTS)
    assert cycles > 0
    assert len(compile_.assemble(gemv_module(plan, Epilogue("f32")), machine)) > 500


@compiles
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_lanes_are_added_up(lanes):
    machine = machines.host()
    f = kernel("add", machine)
    kind = vector(lanes, FLOAT)
    loaded = [f.load(kind, f.gep(f["src"], k * kind.bytes), 4) for k in range(lanes)]
    f.store(lanes_added(f, loaded), f["dst"], 4)
    given = np.arange(lanes * lanes, dtype=np.float32).reshape(lanes, lanes) ** 2
    got = np.zeros(lanes, np.float32)
    compile_.compiled(f.text(), ["add"], machine)["add"](given.ctypes.data, got.ctypes.data, 0, 0, 1)
    np.testing.assert_array_equal(got, given.sum(axis=1))
