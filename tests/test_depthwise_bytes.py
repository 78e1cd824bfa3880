"""Depthwise convolutions of bytes, four taps in an instruction: bit for bit the definition's."""

from __future__ import annotations

import copy
import importlib

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from fences import output_of
from relayout import MemoryDesc
from relayout.kernels.conv.depthwise_bytes import FOUR, DepthwiseBytes, quads
from relayout.ops.post_ops import BinaryOp, Sum
from relayout.primitives import Convolution
from strategies import examples
from test_depthwise import nothing_else
from test_products import HERE, by_every_candidate, check, compiles, on, products, vectors

machines = importlib.import_module("relayout.targets.machine")

CPU = HERE[-1]
with on(CPU):
    HAS = machines.host().has("avx512vnni") and machines.host().permutes(8)
needed = pytest.mark.skipif(not HAS, reason="this processor has no instructions for it")

FORMATS = {
    1: ("nwc", "nCw16c", "nCw64c"),
    2: ("nhwc", "nChw16c", "nChw32c", "nChw64c", "NCHW32", "hwnc"),
    3: ("ndhwc", "nCdhw16c"),
}
"""16 channels or more lie together in all of them."""
RANGES = {"u8": (0, 255), "s8": (-128, 127)}


def plan_of(made):
    """How a convolution is done."""
    made._compiled()
    return made._made.plan


@given(taps=st.integers(1, 20), stride=st.integers(1, 4), outputs=st.integers(1, 17))
@examples(200)
def test_quads_have_each_tap_of_each_output_once(taps, stride, outputs):
    met = []
    for quad in quads(taps, stride, outputs):
        assert all(len(order) == FOUR for _, order in quad.uses)
        met += [
            (output, tap, quad.at + k)
            for output, order in quad.uses
            for k, tap in enumerate(order)
            if tap >= 0
        ]
    assert sorted(met) == [(x, tap, x * stride + tap) for x in range(outputs) for tap in range(taps)]


@st.composite
def problems(draw):
    """A depthwise convolution of bytes, its zero point, and a context to lower it in."""
    axes = draw(st.sampled_from((1, 2, 2, 2, 3)))
    groups = draw(st.sampled_from((2, 8, 15, 16, 17, 24, 32, 33, 48, 64, 70, 100)))
    kinds = (
        draw(st.sampled_from(("u8", "s8"))),
        "s8",
        draw(st.sampled_from(("s32", "s8", "u8", "f32", "bf16"))),
    )
    kernel, strides, dilation, padding, source = [], [], [], [], []
    for axis in range(axes):
        k = draw(st.sampled_from((1, 2, 3, 3, 3, 4, 5, 7, 9)))
        gap = draw(st.sampled_from((1, 1, 2))) if axis < axes - 1 else 1
        pads = draw(st.sampled_from(((0, 0), (1, 1), (1, 1), (2, 2), (0, 1), (3, 0), (4, 5))))
        size = draw(st.integers(1, 30 if axes < 3 else 6))
        source.append(max(size, (k - 1) * gap + 1 - sum(pads)))
        kernel.append(k), dilation.append(gap), padding.append(pads)
        strides.append(draw(st.sampled_from((1, 1, 2, 3))))
    dims = (draw(st.sampled_from((1, 1, 2, 3))), groups, *source)
    filters = (groups, 1, 1, *kernel)
    assume(np.prod(filters) * dims[0] * np.prod(source) < 1 << 20)
    assume(np.prod(kernel) * 256 * 128 < 1 << 24)
    src = MemoryDesc(dims, kinds[0], draw(st.sampled_from(FORMATS[axes])))
    more = {"strides": strides, "dilation": dilation, "padding": padding}
    zero = draw(st.sampled_from((None, None, "low", "high", "some")))
    if zero is not None:
        more["src_zero_point"] = MemoryDesc((1,), "s32", "a")
    weights = MemoryDesc(filters, "s8", rl.any)
    out = Convolution(src, weights, **more).dst.dims
    dst = MemoryDesc(out, kinds[2], draw(st.sampled_from(FORMATS[axes])))
    bias, scale = draw(vectors(groups, True)) if kinds[2] not in ("s32",) else (None, None)
    ops = draw(st.sampled_from(((), (), ("relu",), (Sum(1), "relu"))))
    with on(CPU):
        made = Convolution(src, weights, bias, dst, scale=scale, post_ops=ops, **more)
    low, high = RANGES[kinds[0]]
    points = {"low": low, "high": high, "some": draw(st.integers(low, high))}
    return made, None if zero is None else points[zero]


@needed
@given(problem=problems(), seed=st.integers(0, 99), extreme=st.booleans(), threads=st.sampled_from((1, 3)))
@examples(80)
def test_kernels_compute_the_definition(problem, seed, extreme, threads):
    """In all formats, on both sides, with random numbers and with the extremes of both types."""
    made, zero = problem
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, kind in (("src", made.src.dtype.name), ("weights", "s8")):
        low, high = RANGES[kind]
        dims = made.descs[name].dims
        made_of = rng.choice([low, high], dims) if extreme else rng.integers(low, high + 1, dims)
        arrays[name] = made_of.astype(np.float64)
    if zero is not None:
        arrays["src_zero_point"] = np.array([zero], np.float64)
    with on(CPU), nothing_else():
        check(copy.copy(made), seed, arrays, threads=threads)


def small(channels, form, out=None, batch=2, **more):
    """A convolution of two spatial axes."""
    size, kernel = more.pop("size", (6, 11)), more.pop("kernel", (3, 3))
    kinds = more.pop("kinds", ("u8", "s8", "u8"))
    src = MemoryDesc((batch, channels, *size), kinds[0], form)
    filters = MemoryDesc((channels, 1, 1, *kernel), kinds[1], rl.any)
    dims = Convolution(src, filters, **more).dst.dims
    return Convolution(src, filters, dst=MemoryDesc(dims, kinds[2], out or form), **more)


def variety():
    """Convolutions that between them take every way through the kernels, to the end of memory."""
    zero = {"src_zero_point": MemoryDesc((1,), "s32", "a")}
    return [
        small(100, "nhwc", padding=1),
        small(17, "nhwc", padding=1, kinds=("s8", "s8", "s8"), post_ops=(Sum(1), "relu")),
        small(33, "nhwc", "nChw16c", strides=2, padding=1, **zero),
        small(48, "nChw16c", padding=1, kinds=("s8", "s8", "s32")),
        small(70, "nChw32c", "nhwc", padding=2, kernel=(5, 5), kinds=("s8", "s8", "f32"), **zero),
        small(64, "nChw64c", padding=[(1, 0), (0, 2)], size=(3, 29), kernel=(3, 7)),
        small(24, "nhwc", padding=[(0, 0), (3, 3)], kernel=(1, 9), **zero),
        small(40, "NCHW32", padding=1, kinds=("s8", "s8", "s8")),  # a vector of 32 with weights of 8 alone
    ]


@needed
@compiles
def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers, scratch too, end at, then begin behind, a page that can't be touched."""
    script = """
        from fences import arena, run_between
        from test_depthwise_bytes import CPU, plan_of, variety
        from test_products import on

        arenas = [arena(1 << 19) for _ in range(8)]
        with on(CPU):
            for made in variety():
                run_between(made, arenas)
                print(type(plan_of(made)).__name__)
        """
    assert output_of(script).split() == ["DepthwiseBytes"] * len(variety())


@needed
def test_every_schedule_gives_the_same_bits():
    """Those that widen to f32 among them."""
    with on(CPU):
        for made in variety():
            zero = {"src_zero_point": np.array([7.0])} if "src_zero_point" in made.descs else None
            first, *others = by_every_candidate(made, zero)
            for one in others:
                np.testing.assert_array_equal(one, first)


@needed
@pytest.mark.parametrize("channels", [16, 32])
def test_a_number_for_each_pixel_is_added_to_that_pixel(channels):
    """Pixels that are written at once do not share it."""
    rng = np.random.default_rng(channels)
    each = BinaryOp("add", MemoryDesc((1, 1, 1, 9), "f32", "nhwc"))
    with on(CPU):
        how = {"batch": 1, "size": (1, 9), "kernel": (1, 3), "padding": [(0, 0), (1, 1)]}
        made = small(channels, "nhwc", kinds=("u8", "s8", "f32"), post_ops=[each], **how)
        given = [rl.tensor(rng.integers(0, 99, made.descs[n].dims), made.descs[n]) for n in made.inputs]
        exact, problem, met = made.reference(*given), made._as_products(made.descs), set()
        for one in products.ways(problem).candidates:
            made._compiled()
            made._take(products.products(problem, str(one)))
            met.add(type(plan_of(made)))
            np.testing.assert_array_equal(made(*given).numpy(), exact)
        assert DepthwiseBytes in met


@needed
def test_what_is_taken():
    with on(CPU):

        def taken(*given, **more):
            return isinstance(plan_of(small(*given, padding=1, **more)), DepthwiseBytes)

        assert all(taken(64, form) for form in ("nhwc", "nChw16c", "nChw32c", "nChw64c"))
        assert plan_of(small(64, "nhwc", padding=1)).width == 32
        assert plan_of(small(64, "nChw16c", padding=1)).width == 16
        assert "four taps in an instruction" in small(64, "nhwc", padding=1).implementation
        assert not taken(64, "nChw8c")
        assert not taken(64, "CHWN4", batch=4)
        assert not taken(64, "nhwc", dilation=2)
        assert not taken(64, "nhwc", weights_zero_point=MemoryDesc((1,), "s32", "a"))
