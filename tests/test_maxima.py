"""Largest elements where pixels are neighbours, by rows of columns: the definition's, whatever is in them."""

from __future__ import annotations

import importlib
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from elementwise import machine_code
from fences import output_of
from relayout.kernels.reduce import maxima, window
from relayout.primitives import Pooling
from strategies import examples
from test_nearest import bits
from test_pooling import called
from test_values import LINUX, can_run

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")

FORMATS = "nchw", "NCHW4", "nChw8c", "nChw16c", "nhwc"
KINDS = "bf16", "f16", "u8", "s8", "s32", "f32", "f8_e4m3"

pytestmark = [
    pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def source(desc: Any, seed: int, strange: float) -> Any:
    """Any bits, of which as many are NaN or infinite; a quarter are zeros of both signs."""
    data = bits(desc.dims, desc.dtype.name, seed)
    if desc.dtype.is_float:
        random = np.random.default_rng(seed)
        real = np.isfinite(data.astype(np.float32)) | (random.random(desc.dims) < strange)
        zeros = np.where(random.random(desc.dims) < 0.5, -0.0, 0.0).astype(data.dtype)
        data = np.where(real & (random.random(desc.dims) < 0.75), data, zeros)
    return rl.tensor(data, "abcde"[: data.ndim], desc.dtype).reorder(desc)


def agrees(made: Pooling, seed: int, strange: float = 0.05) -> None:
    x = source(made.src, seed, strange)
    assert made.implementation.startswith("machine code")
    wanted = np.asarray(made.reference(x), np.float64)
    np.testing.assert_array_equal(called(made, x), wanted)


@st.composite
def poolings(draw: Any) -> Pooling:
    """A largest element of windows of any size, stride and padding along two axes."""
    sizes = [draw(st.sampled_from((1, 2, 5, 7, 16, 20, 33))) for _ in "hw"]
    kernel = [draw(st.sampled_from((1, 2, 3, 3, 5, 13))) for _ in "hw"]
    kernel = [min(n, k) for n, k in zip(sizes, kernel, strict=True)]
    strides = [draw(st.sampled_from((1, 1, 2, 2, 3))) for _ in "hw"]
    padding = [tuple(draw(st.integers(0, k - 1)) for _ in "lr") for k in kernel]
    desc = rl.MemoryDesc(
        (2, draw(st.sampled_from((1, 3, 8, 20))), *sizes),
        draw(st.sampled_from(KINDS)),
        draw(st.sampled_from(FORMATS)),
    )
    try:
        return Pooling(desc, "max", tuple(kernel), tuple(strides), padding)
    except rl.LayoutError:  # windows reach further than padding may
        return Pooling(desc, "max", tuple(kernel), tuple(strides))


@examples(120)
@given(poolings(), st.integers(0, 99), st.sampled_from((0, 0.05)))
def test_maxima_are_the_definitions(made: Pooling, seed: int, strange: float) -> None:
    agrees(made, seed, strange)


@pytest.mark.turns(2)
@pytest.mark.parametrize("cpu", ["host", "x86-64-v3"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", ["bf16", "u8", "f32"])
def test_windows_of_networks(cpu: str, format: str, kind: str, monkeypatch: Any) -> None:
    if cpu != "host":
        if not can_run(cpu) or machine_.host().vector == machine_.machine(cpu).vector:
            pytest.skip("this processor has no AVX2, or nothing wider")
        monkeypatch.setattr(machine_, "host", lambda: machine_.machine(cpu))
    windows = (3, 1, 1), (3, 2, 1), (2, 2, 0), (5, 1, 2), (2, 1, 1)
    tried = [*product(((1, 20, 9, 37), (2, 3, 14, 14), (1, 64, 5, 7)), windows)]
    for dims, how in share(tried, FORMATS.index(format) + len(kind)):
        agrees(Pooling(rl.MemoryDesc(dims, kind, format), "max", *how), 1)


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_zeros_keep_their_sign(kind: str) -> None:
    made = Pooling(rl.MemoryDesc((1, 1, 5, 40), kind, "nchw"), "max", 3, 1, 1)
    for zero in (-0.0, 0.0):
        found = made(rl.tensor(np.full((1, 1, 5, 40), zero, np.float32), "nchw", kind)).numpy()
        assert (np.signbit(found.astype(np.float32)) == np.signbit(zero)).all()


def test_it_is_the_kernel_that_is_meant() -> None:
    machine = machine_.machine("x86-64-v3", LINUX)
    for kind, format, how, wanted in (
        ("bf16", "nchw", (3, 1, 1), True),
        ("u8", "nChw8c", (5, 1, 2), True),
        ("bf16", "nhwc", (3, 1, 1), True),
        ("u8", "nhwc", (3, 1, 1), False),
        ("f32", "nchw", (2, 2, 0), False),
    ):
        made = Pooling(rl.MemoryDesc((1, 64, 20, 20), kind, format), "max", *how)
        plan = window.planned(*made.operation.reduction, made.src, made.dst, made.axes)
        [block] = plan.blocks
        scheme = plan.scheme(block, 256 // made.src.dtype.bits)
        assert maxima.suits(plan, scheme, plan.axes, block.length, machine) is wanted
        assert not maxima.suits(plan, scheme, plan.axes, block.length, machine_.machine("znver4", LINUX))


def test_nothing_outside_of_the_buffers_is_touched() -> None:
    script = """
        from fences import arena, run_between
        from relayout.layout.descriptor import MemoryDesc
        from relayout.primitives import Pooling
        arenas = [arena(1 << 17) for _ in range(4)]
        for format in ("nchw", "nhwc", "nChw8c", "nChw16c"):
            for size in ((3, 5), (1, 16), (7, 33), (20, 20)):
                for kind in ("u8", "bf16", "f32"):
                    for how in ((3, 1, 1), (3, 2, 1)):
                        made = Pooling(MemoryDesc((1, 6, *size), kind, format), "max", *how)
                        run_between(made, arenas)
        print("done")
    """
    assert output_of(script).strip() == "done"
