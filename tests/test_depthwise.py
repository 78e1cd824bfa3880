"""Convolutions of narrow groups, read where they lie, against the definition.

All are judged as in :mod:`test_products`: on poisoned memory, to the tolerance of the arithmetic. Most tests
say that it is this kernel that runs, too: the general one would give the same results.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from fences import output_of
from relayout import MemoryDesc
from relayout.kernels.conv.geometry import Geometry, spans, taps_inside
from relayout.ops.post_ops import Sum
from relayout.primitives import Convolution
from strategies import examples
from test_products import HERE, TYPES, by_every_candidate, check, compiles, hosts, on, post_ops, vectors

depthwise = importlib.import_module("relayout.kernels.conv.depthwise")
candidates = importlib.import_module("relayout.kernels.conv.candidates")
products = importlib.import_module("relayout.primitives.products")
machines = importlib.import_module("relayout.targets.machine")

GROUPS = ((1, 1), (1, 1), (2, 2), (4, 4), (8, 8), (1, 2), (1, 4), (2, 4), (3, 4), (3, 8))
"""Inputs and outputs of a group."""

FORMATS = {
    1: ("nwc", "nCw16c", "nCw8c", "nCw4c", "Cwn4c", "NCw4n4c"),
    2: ("nhwc", "nChw16c", "nChw8c", "NCHW4", "NCHW32", "CHWN4", "Chwn8c", "hwnc", "NChw6n4c"),
    3: ("ndhwc", "nCdhw16c", "nCdhw4c", "Cdhwn4c"),
}
"""Four channels or more lie together in all of them."""


def is_depthwise(made):
    """Whether the kernel of this file was made for a convolution."""
    made._compiled()
    return made._made is not None and isinstance(made._made.plan, depthwise.Depthwise)


@contextlib.contextmanager
def nothing_else():
    """No other kernel is a candidate."""

    def forget():
        products._products.cache_clear()
        products._ways.cache_clear()

    forget()
    with mock.patch.object(candidates, "nests", return_value=()):
        yield
    forget()


def every_row_has_taps(g):
    """Whether a tap of each output row and plane falls inside, by trying them all."""
    return all(
        any(
            0 <= at * g.strides[axis] + tap * g.dilation[axis] - g.padding[axis] < g.source[axis]
            for tap in range(g.kernel[axis])
        )
        for axis in (0, 1)
        for at in range(g.target[axis])
    )


@st.composite
def problems(draw):
    """A convolution of narrow groups, and in what context it is lowered."""
    axes = draw(st.sampled_from((1, 2, 2, 2, 3)))
    inputs, outputs = draw(st.sampled_from(GROUPS))
    groups = -(-draw(st.sampled_from((2, outputs, 17, 24, 40, 100))) // outputs)
    kinds = draw(st.sampled_from(TYPES))
    kernel, strides, dilation, padding, source = [], [], [], [], []
    for _ in range(axes):
        k, gap = draw(st.sampled_from((1, 2, 3, 3, 3, 5, 9))), draw(st.sampled_from((1, 1, 2)))
        pads = draw(st.sampled_from(((0, 0), (1, 1), (1, 1), (2, 2), (0, 1), (3, 0), (4, 5))))
        size = draw(st.integers(1, 20 if axes < 3 else 5))
        source.append(max(size, (k - 1) * gap + 1 - sum(pads)))
        kernel.append(k), dilation.append(gap), padding.append(pads)
        strides.append(draw(st.sampled_from((1, 1, 2, 3))))
    dims = (draw(st.sampled_from((1, 1, 2, 3, 4, 8))), groups * inputs, *source)
    filters = (groups, outputs, inputs, *kernel)
    assume(groups > 1 and np.prod(filters) * dims[0] * np.prod(source) < 1 << 19)
    formats = FORMATS[axes]
    src = MemoryDesc(dims, kinds[0], draw(st.sampled_from(formats)))
    bias, scale = draw(vectors(groups * outputs, kinds[0] in ("s8", "u8")))
    more = {"strides": strides, "dilation": dilation, "padding": padding, "post_ops": draw(post_ops())}
    out = Convolution(src, MemoryDesc(filters, kinds[1], rl.any), **more).dst.dims
    dst = MemoryDesc(out, kinds[2], draw(st.sampled_from(formats)))
    host = draw(hosts)
    with on(*host):
        weights = MemoryDesc(filters, kinds[1], rl.any)
        return host, Convolution(src, weights, bias, dst, scale=scale, **more)


LIMITS = {"TLB_REACH_BYTES": depthwise.TLB_REACH_BYTES, "MOST_PLACES": depthwise.MOST_PLACES}
"""Beyond which memory is far, and images are no longer listed; all is also tried beyond."""


@given(
    problem=problems(),
    seed=st.integers(0, 99),
    threads=st.sampled_from((None, 1, 3)),
    limits=st.fixed_dictionaries({name: st.sampled_from((most, 0)) for name, most in LIMITS.items()}),
)
@examples(60)
def test_kernels_compute_the_definition(problem, seed, threads, limits):
    """In all formats, on both sides."""
    host, made = problem
    with on(*host), mock.patch.multiple(depthwise, **limits):
        check(made, seed, threads=threads)
        lanes = machines.host().vector // 4
        g = made.geometry
        if g.outputs < lanes and g.inputs != 3 and made._compiled() is not None:  # 3 lie in two blocks
            with nothing_else():
                check(copy.copy(made), seed, threads=threads, kernel=every_row_has_taps(g))


def small(channels, form, out=None, batch=2, per=(1, 1), **more):
    """A convolution of two spatial axes."""
    inputs, outputs = per
    size, kernel = more.pop("size", (6, 7)), more.pop("kernel", (3, 3))
    kinds = more.pop("kinds", ("f32",) * 3)
    groups = channels // outputs
    src = MemoryDesc((batch, groups * inputs, *size), kinds[0], form)
    filters = MemoryDesc((groups, outputs, inputs, *kernel), kinds[1], rl.any)
    dims = Convolution(src, filters, **more).dst.dims
    return Convolution(src, filters, dst=MemoryDesc(dims, kinds[2], out or form), **more)


def variety():
    """Convolutions that between them take every way through the kernels, to the end of memory."""
    return [
        small(100, "nhwc", padding=1),
        small(17, "nhwc", padding=1, post_ops=(Sum(2), "relu")),
        small(33, "nhwc", "nChw16c", strides=2, padding=1),
        small(17, "NCHW32", "NCHW4", padding=[(1, 0), (0, 2)], kinds=("s8", "s8", "s8")),
        small(21, "CHWN4", batch=8, padding=1),
        small(21, "CHWN4", "nhwc", batch=6, kinds=("f16", "f16", "bf16")),
        small(48, "nhwc", size=(3, 29), kernel=(3, 7), padding=3, dilation=(1, 2)),
        small(20, "nhwc", per=(4, 4), padding=1),
        small(72, "nhwc", per=(8, 8), size=(7, 9), padding=1, strides=(1, 2)),
        small(36, "nChw8c", "nhwc", per=(3, 4), padding=(0, 1), kinds=("u8", "s8", "f32")),
        small(24, "CHWN4", per=(4, 4), batch=4, padding=1),
        small(34, "nChw16c", per=(1, 2), padding=1),
    ]


@compiles
def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers, scratch too, end at, then begin behind, a page that can't be touched."""
    script = """
        from fences import arena, run_between
        from test_depthwise import is_depthwise, variety
        from test_products import HERE, on

        arenas = [arena(1 << 19) for _ in range(7)]
        count = 0
        for cpu in HERE:
            with on(cpu):
                for made in variety():
                    run_between(made, arenas)
                    count += is_depthwise(made)
        print(count)
        """
    # the others: groups as wide as a vector
    assert int(output_of(script)) > len(variety()) * len(HERE) // 2


@compiles
@pytest.mark.parametrize("per", [1, 4])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_of_taps_outside_count(value, per):
    """Zero times NaN, or infinity, is NaN: so the definition has it, at the borders of images too."""
    rng = np.random.default_rng(0)
    for cpu, form, strides, tap in product(HERE, ("nhwc", "CHWN4"), (1, 2), product(range(3), range(3))):
        with on(cpu):
            made = small(20, form, batch=4, size=(5, 4), per=(per, per), strides=strides, padding=1)
            weights = rng.standard_normal(made.weights.dims)
            weights[(1, per - 1, 0, *tap)] = value
            check(made, arrays={"weights": weights}, kernel=True)


@pytest.mark.turns(2)
@compiles
@pytest.mark.parametrize("cpu", HERE)
def test_every_schedule_gives_the_same_bits(cpu):
    with on(cpu):
        for made in variety():
            first, *others = by_every_candidate(made)
            for one in others:
                np.testing.assert_array_equal(one, first)


@compiles
def test_images_in_odd_blocks():
    """Images 4 to 7 lie in two blocks of 6: they are no vector like that of images 0 to 3."""
    for cpu, most in product(HERE, (0, LIMITS["MOST_PLACES"])):
        with on(cpu), mock.patch.object(depthwise, "MOST_PLACES", most):
            made = small(24, "NChw6n4c", batch=8, padding=1)
            check(made, kernel=True)
            assert is_depthwise(made)


@compiles
def test_infinity_meets_no_zero():
    """Groups of 3 inputs and 4 outputs have a lane to spare: what is in it must not be an input."""
    rng = np.random.default_rng(0)
    for cpu, channel in product(HERE, range(3)):
        with on(cpu):
            made = small(32, "nhwc", per=(3, 4), padding=1)
            src = rng.standard_normal(made.src.dims)
            src[0, 3 + channel, 2, 2] = np.inf
            check(made, arrays={"src": src}, kernel=True)


@given(
    size=st.integers(1, 70),
    kernel=st.integers(1, 9),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    padding=st.integers(0, 9),
    behind=st.integers(0, 9),
    most=st.integers(1, 26),
)
@examples(200)
def test_tiles_of_a_row(size, kernel, stride, dilation, padding, behind, most):
    """Each output is in one tile, each of its taps on the pixel that the formula says, or outside."""
    width = (size + padding + behind - (kernel - 1) * dilation - 1) // stride + 1
    assume(width > 0)
    sizes = {"kernel": kernel, "strides": stride, "dilation": dilation, "padding": padding, "source": size}
    more = {name: (1, 1, value) for name, value in sizes.items()}
    g = Geometry(1, 16, 1, 1, target=(1, 1, width), **(more | {"padding": (0, 0, padding)}))
    outputs = []
    for span in spans(g, most):
        assert 0 < span.pixels <= most
        for tile in range(span.tiles):
            first = span.start + tile * span.pixels
            outputs += range(first, first + span.pixels)
            found = {(output, tap): at for at, uses in span.taps for output, tap in uses}
            assert not found.keys() & set(span.outside)
            assert len(found) + len(span.outside) == span.pixels * kernel
            for (output, tap), at in found.items():
                pixel = (first + output) * stride + tap * dilation - padding
                assert first * stride - padding + at == pixel
                assert 0 <= pixel < size
            for output, tap in span.outside:
                assert not 0 <= (first + output) * stride + tap * dilation - padding < size
    assert outputs == list(range(width))


@given(
    size=st.integers(1, 30),
    kernel=st.integers(1, 9),
    gap=st.integers(2, 4),
    dilation=st.integers(1, 4),
    padding=st.integers(-5, 8),
    width=st.integers(1, 70),
    most=st.integers(4, 26),
)
@examples(200)
def test_tiles_of_a_row_whose_source_has_gaps(size, kernel, gap, dilation, padding, width, most):
    """Each output meets the taps that fall on a pixel, each once, and no others."""
    more = {"kernel": kernel, "strides": 1, "dilation": dilation, "gaps": gap, "source": size}
    three = {name: (1, 1, value) for name, value in more.items()}
    g = Geometry(1, 16, 1, 1, target=(1, 1, width), padding=(0, 0, padding), **three)
    outputs, met = [], set()
    for span in spans(g, most):
        assert 0 < span.pixels <= most
        for tile in range(span.tiles):
            first = span.start + tile * span.pixels
            outputs += range(first, first + span.pixels)
            origin = (span.start - padding) // gap + tile * (span.pixels // gap)  # as kernels move
            met |= {(first + output, tap, origin + at) for at, uses in span.taps for output, tap in uses}
    assert outputs == list(range(width))
    assert met == {
        (x, tap, y)
        for x in range(width)
        for tap in range(kernel)
        for y in range(size)
        if y * gap == x + tap * dilation - padding
    }
    assert met == {(x, *one) for x in range(width) for one in taps_inside(g, 2, x)}


def test_what_is_taken():
    """Vectors of several images where these lie together; nothing that lies apart."""
    with on(HERE[-1]):
        lanes = machines.host().vector // 4

        def together(form, batch, per=(1, 1), out=None):
            made = small(48, form, out, batch, per=per, padding=1)
            return made._made.plan.together if is_depthwise(made) else None

        assert together("nhwc", 8) == together("nChw16c", 8) == together("NCHW4", 8) == 1
        assert together("CHWN4", 8) == lanes // 4
        assert together("CHWN4", 6) == min(2, lanes // 4)
        assert together("CHWN4", 7) == 1
        assert together("nchw", 1) is None
        assert together("nhwc", 1, out="nchw") is None
        assert is_depthwise(small(48, "nhwc", padding=[(9, 0), (0, 0)])) is False  # rows without a tap
