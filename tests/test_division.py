"""Destination scales: kernels multiply by reciprocals, and the results are those of a division."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import relayout as rl
from relayout.convert import rescale

compile_ = pytest.importorskip("relayout.jit.compile")
machine = importlib.import_module("relayout.targets.machine")
native = importlib.import_module("relayout.reorder.native")
problem = importlib.import_module("relayout.kernels.copy.problem")
attributes_ = importlib.import_module("relayout.reorder.attributes")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


def near_ties(rng, divisors, columns):
    """Floats whose quotients lie at, or a few last places beside, the middle of two integers."""
    middles = rng.integers(-300, 300, (len(divisors), columns)) + 0.5
    floats = (middles * divisors[:, None].astype(np.float64)).astype(np.float32)
    return (floats.view(np.int32) + rng.integers(-3, 4, floats.shape, dtype=np.int32)).view(np.float32)


def any_bits(rng, divisors, columns):
    """All kinds of floats: tiny, huge, infinite, not a number."""
    return (
        rng.integers(0, 2**32, (len(divisors), columns), dtype=np.uint64).astype(np.uint32).view(np.float32)
    )


@pytest.mark.parametrize("cpu", ["host", "x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("numbers", [near_ties, any_bits])
@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "s32"])
def test_quotients_are_those_of_a_division(cpu, numbers, kind):
    chosen = machine.host() if cpu == "host" else machine.machine(cpu)
    if chosen.vector > machine.host().vector:
        pytest.skip("this processor has shorter vectors")
    rng = np.random.default_rng(1)
    rows, columns = 64, 1024
    divisors = (rng.uniform(1, 2, rows) * 2.0 ** rng.integers(-90, 90, rows)).astype(np.float32)
    divisors[::8] = np.nextafter(
        divisors[::8].round(0) + 1, np.float32(0)
    )  # mantissas of ones: the hard ones
    source = numbers(rng, divisors, columns)
    src, dst = (rl.MemoryDesc((rows, columns), name, "ab") for name in ("f32", kind))
    attributes = attributes_.Attributes.make(src.dims, dst_scale=(divisors, 0), dst_zero_point=3)
    kernels = native.Native(src, dst, problem.moves(src, dst, attributes.shape), machine=chosen)
    operands, out = kernels.operands(attributes), np.zeros((rows, columns), dst.dtype.numpy)
    kernels(source.ctypes.data, out.ctypes.data, operands.ctypes.data, 1)
    expected = rescale(source, "f32", kind, dst_scale=divisors[:, None], dst_zero_point=3)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("scale", [2.0**-120, 2.0**120, -(2.0**-101)])
def test_divisors_without_a_reciprocal_are_left_to_numpy(scale):
    array = np.linspace(-3, 3, 48, dtype=np.float32).reshape(6, 8) * np.float32(scale)
    src, dst = rl.MemoryDesc((6, 8), "f32", "ab"), rl.MemoryDesc((6, 8), "s8", "ba")
    plan = rl.Reorder(src, dst, dst_scale=scale)
    assert plan.plan.kernels is None
    out = np.zeros((8, 6), np.int8)
    plan(array, out.reshape(-1))
    np.testing.assert_array_equal(out.T, rescale(array, "f32", "s8", dst_scale=scale))
    assert rl.Reorder(src, dst, dst_scale=0.5).plan.kernels is not None
