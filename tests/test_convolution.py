"""Convolution: its definition by hand, and the kernels against the definition in all formats and sizes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import elementwise
import relayout as rl
from relayout import LayoutError, MemoryDesc
from relayout.ops.functions import Function
from relayout.ops.post_ops import Sum
from relayout.primitives import Convolution, Deconvolution
from strategies import examples, filters, images, written
from test_products import HERE, TYPES, check, compiles, hosts, on, post_ops, vectors
from test_reorder import in_front

CHANNELS = ((1, 1), (1, 4), (3, 8), (3, 17), (4, 5), (8, 16), (16, 16), (17, 33), (12, 50), (32, 24), (50, 3))
MANY = ((64, 16), (515, 5), (258, 17), (600, 40))
"""So many input channels that integers are multiplied in pairs."""
GROUPED = (
    *((2, 3, 5), (3, 17, 4), (2, 24, 24), (2, 16, 40)),
    *((24, 1, 1), (17, 1, 1), (5, 1, 2), (9, 2, 2), (8, 4, 4), (5, 8, 8), (6, 3, 4), (4, 1, 3), (3, 16, 16)),
    *((2, 516, 3), (3, 130, 16)),
)
"""Groups, and input and output channels of each; the last ones fit a vector several times."""


@st.composite
def problems(draw, groups=None):
    """A convolution of few operations, and in what context it is lowered."""
    spatial = draw(st.sampled_from((1, 2, 2, 2, 3)))
    grouped = draw(st.booleans()) if groups is None else groups
    kinds = draw(st.sampled_from(TYPES))
    several = CHANNELS + 2 * MANY if kinds[0] in ("s8", "u8") else CHANNELS
    g, i, o = draw(st.sampled_from(GROUPED)) if grouped else (1, *draw(st.sampled_from(several)))
    inside = draw(st.booleans())
    kernel, strides, dilation, padding, source = [], [], [], [], []
    for _ in range(spatial):
        k, gap = draw(st.sampled_from((1, 1, 2, 3, 3, 5))), draw(st.sampled_from((1, 1, 1, 2, 3)))
        pads = (0, 0) if inside else draw(st.sampled_from(((0, 0), (1, 1), (2, 2), (0, 1), (3, 0), (5, 4))))
        size = draw(st.integers(1, 9 if spatial < 3 else 4))
        size = max(size, (k - 1) * gap + 1 - sum(pads))
        kernel.append(k), dilation.append(gap), padding.append(pads), source.append(size)
        strides.append(draw(st.sampled_from((1, 1, 1, 2, 3, 7))))
    src_dims = (draw(st.integers(1, 3)), g * i, *source)
    weights_dims = ((g,) if grouped else ()) + (o, i, *kernel)
    src = MemoryDesc(src_dims, kinds[0], in_front(draw(images(src_dims))))
    free = MemoryDesc(weights_dims, kinds[1], rl.any)
    ops = draw(post_ops())
    bias, scale = draw(vectors(g * o, kinds[0] in ("s8", "u8")))
    more = {"strides": strides, "dilation": dilation, "padding": padding, "post_ops": ops, "scale": scale}
    dims = Convolution(src, free, bias, **more).dst.dims
    assume(np.prod(weights_dims) * np.prod((dims[0], *dims[2:])) < 1 << 19)
    dst = draw(st.one_of(st.just(rl.any), images(dims).map(in_front).filter(written)))
    packing = draw(st.one_of(st.just(rl.any), filters(weights_dims, grouped).map(in_front)))
    host = draw(hosts)
    with on(*host):
        weights = MemoryDesc(weights_dims, kinds[1], packing)
        return host, Convolution(src, weights, bias, MemoryDesc(dims, kinds[2], dst), **more)


@given(problem=problems(), seed=st.integers(0, 99), threads=st.sampled_from((None, 1, 3)))
@examples(60)
def test_kernels_compute_the_definition(problem, seed, threads):
    host, made = problem
    with on(*host):
        check(made, seed, threads=threads)


# -- the definition -----------------------------------------------------------------------------------------


def test_by_hand():
    src = rl.tensor([[[1.0, 2.0, 3.0, 4.0]]], dtype="f32")
    weights = rl.tensor([[[1.0, 0.0, -1.0]], [[0.0, 10.0, 0.0]]], dtype="f32")
    bias = rl.tensor(np.array([0.5, 0.0], "f4"))
    made = Convolution(src.desc, weights.desc, bias.desc, padding=1)
    assert made(src, weights, bias).numpy().tolist() == [[[-1.5, -1.5, -1.5, 3.5], [10, 20, 30, 40]]]
    wide = Convolution(src.desc, weights.desc, strides=2, dilation=2, padding=[(3, 2)])
    assert wide(src, weights).numpy().tolist() == [[[-2.0, -4.0, 2.0], [0.0, 20.0, 40.0]]]
    scale = MemoryDesc((2,), "f32", "a")
    last = Convolution(
        src.desc, weights.desc, bias.desc, scale=scale, padding=[(0, 1)], post_ops=("relu", Sum(2))
    )
    out = rl.tensor(np.full((1, 2, 3), 100, "f4"))
    last(src, weights, bias, rl.tensor(np.array([-1, 1], "f4")), out=out)
    assert out.numpy().tolist() == [[[202.5, 202.5, 200.0], [220, 230, 240]]]


@given(data=st.data())
@examples(30)
def test_definition_is_the_formula(data):
    """Loop by loop, as the module's docstring has it."""
    draw = data.draw
    few = st.integers(1, 2)
    (n, g, i, o), axes = (draw(few) for _ in range(4)), draw(st.integers(1, 3))
    kernel, strides, gaps = ([draw(few) for _ in range(axes)] for _ in range(3))
    pads = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(axes)]
    sizes = [(k - 1) * d + 1 + draw(st.integers(0, 2)) for k, d in zip(kernel, gaps, strict=True)]
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    src, weights = rng.standard_normal((n, g * i, *sizes)), rng.standard_normal((g, o, i, *kernel))
    made = Convolution(
        MemoryDesc(src.shape, "f32", rl.any), MemoryDesc(weights.shape, "f32", rl.any),
        strides=strides, dilation=gaps, padding=pads,
    )  # fmt: skip
    expected = np.zeros(made.dst.dims)
    for at in np.ndindex(*made.dst.dims):
        image, channel, *pixel = at
        for inner, *taps in np.ndindex(i, *kernel):
            where = [
                y * s + r * d - p for y, s, r, d, (p, _) in zip(pixel, strides, taps, gaps, pads, strict=True)
            ]
            if all(0 <= x < size for x, size in zip(where, sizes, strict=True)):
                group, output = divmod(channel, o)
                expected[at] += (
                    src[(image, group * i + inner, *where)] * weights[(group, output, inner, *taps)]
                )
    assert made.reference(src, weights).shape == expected.shape
    np.testing.assert_allclose(made.reference(src, weights), expected, atol=1e-12)
    last = [
        y * s + (k - 1) * d
        for y, s, k, d in zip((m - 1 for m in made.dst.dims[2:]), strides, kernel, gaps, strict=True)
    ]
    for size, (front, behind), end, s in zip(sizes, pads, last, strides, strict=True):
        assert end < size + front + behind <= end + s  # as many outputs as fit


# -- numbers ------------------------------------------------------------------------------------------------

FORMS = (
    ("nhwc", "nhwc"),
    ("nchw", "nChw32c"),
    ("nChw16c", "nChw16c"),
    ("nChw4c", "nchw"),
    ("Chwn4c", "NChw16n16c"),
)


@pytest.mark.turns(2)
@compiles
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("groups", [1, 5, 20])
def test_nan_and_infinity_reach_what_depends_on_them(value, groups):
    """No neighbours, no other groups, no padding; and all that does depend."""
    rng = np.random.default_rng(0)
    per = 20 // groups
    for cpu, (one, two), padding in product(HERE, FORMS, (0, 1)):
        with on(cpu):
            src, weights = (
                MemoryDesc((2, 20, 5, 6), "f32", one),
                MemoryDesc((groups, per, per, 3, 2), "f32", rl.any),
            )
            dims = Convolution(src, weights, padding=padding).dst.dims
            made = Convolution(src, weights, dst=MemoryDesc(dims, "f32", two), padding=padding)
            for place in ((0, 0, 0, 0), (1, 19, 4, 5), (0, 7, 2, 3)):
                array = rng.standard_normal(src.dims)
                array[place] = value
                exact = made.reference(array, rng.standard_normal(weights.dims))
                assert 0 < (~np.isfinite(exact)).sum() <= 6 * per
                check(made, arrays={"src": array}, kernel=True)
            filters_ = rng.standard_normal(weights.dims)
            filters_[-1, -1, -1, 0, 0] = value
            check(made, arrays={"weights": filters_}, kernel=True)


@compiles
def test_nan_in_bias_and_scale_stays_in_its_channel():
    vector = MemoryDesc((21,), "f32", "a")
    for cpu, form, size in product(HERE, ("nchw", "nChw8c", "nChw32c"), (1, 21)):
        with on(cpu):
            scale = MemoryDesc((size,), "f32", "a")
            dst = MemoryDesc((1, 21, 3, 3), "f32", form)
            made = Convolution(
                MemoryDesc((1, 4, 3, 3), "f32", "nhwc"),
                MemoryDesc((21, 4, 1, 1), "f32", rl.any),
                vector,
                dst,
                scale=scale,
            )
            bias, factors = np.ones(21), np.ones(size)
            bias[20], factors[-1] = np.nan, np.inf
            check(made, arrays={"bias": bias}, kernel=True)
            check(made, arrays={"scale": factors}, kernel=True)


@compiles
@pytest.mark.parametrize("target", ["s8", "u8", "s32"])
def test_integers_take_nan_as_zero_and_saturate(target):
    made = Convolution(
        MemoryDesc((1, 1, 2, 4), "f32", "nhwc"),
        MemoryDesc((1, 1, 1, 1), "f32", rl.any),
        dst=MemoryDesc((1, 1, 2, 4), target, "nchw"),
    )
    values = [np.nan, np.inf, -np.inf, 1e20, -1e20, 0.5, 1.5, -2.5]
    out = made(
        np.array(values, "f4").reshape(1, 1, 2, 4), rl.tensor(np.ones((1, 1, 1, 1), "f4"), made.weights)
    )
    info = np.iinfo(out.numpy().dtype)
    least, most = max(info.min, -(2**31)), min(info.max, 2147483520)
    expected = [0, most, least, most, least, 0, 2, max(least, -2)]
    assert out.numpy().ravel().tolist() == expected


@compiles
def test_old_padding_is_no_data():
    """A sum of what the destination held, in whose padding lies garbage, and functions that move 0."""
    for form, ops in product(
        ("nChw8c", "nChw48c", "NChw16n16c", "nchW4w"),
        ((Sum(), "logistic"), ("logistic", Sum(3)), (Function("linear", 2, 3),)),
    ):
        src, weights = MemoryDesc((3, 5, 2, 3), "f32", "nchw"), MemoryDesc((17, 5, 1, 1), "f32", rl.any)
        made = Convolution(src, weights, dst=MemoryDesc((3, 17, 2, 3), "bf16", form), post_ops=ops)
        check(made, kernel=True)


# -- formats ------------------------------------------------------------------------------------------------


def test_any_follows_what_is_given():
    def chosen(src, dst=rl.any, channels=(32, 48), groups=None, kinds=("f32", "f32")):
        first = () if groups is None else (groups,)
        filters_ = MemoryDesc((*first, channels[1], channels[0], 3, 3), kinds[1], rl.any)
        inputs, outputs = (count * (groups or 1) for count in channels)
        made = Convolution(
            MemoryDesc((1, inputs, 8, 8), kinds[0], src),
            filters_,
            dst=MemoryDesc((1, outputs, 6, 6), kinds[0], dst),
        )
        return tuple(str(desc.format) for desc in (made.src, made.weights, made.dst))

    with on(HERE[0]):
        block = {"x86-64-v2": 4}.get(HERE[0])
        if block is None:
            pytest.skip("the names are those for x86-64-v2")
        assert chosen("nchw") == ("nchw", "Ohwi4o", "nchw")
        assert chosen("nChw16c") == ("nChw16c", "Ohwi4o", "nChw16c")
        assert chosen(rl.any, "nChw8c") == ("nChw8c", "Ohwi4o", "nChw8c")
        assert chosen(rl.any) == ("nChw8c", "Ohwi4o", "nChw8c")
        assert chosen(rl.any, channels=(3, 48)) == ("nhwc", "Ohwi4o", "nChw8c")
        assert chosen(rl.any, channels=(32, 17)) == ("nChw8c", "Ohwi4o", "nhwc")
        assert chosen("nchw", "nhwc") == ("nchw", "Ohwi4o", "nhwc")
        assert chosen("nhwc", channels=(1, 1), groups=32)[1] == "Gohwi4g"
        assert chosen("nhwc", channels=(2, 2), groups=32)[1] == "GOhwi2g2o"
        assert chosen("nhwc", channels=(8, 8), groups=4)[1] == "gOhwi4o"
        assert chosen("nhwc", channels=(64, 8), kinds=("u8", "s8"))[1] == "OhwI4o2i"
        assert chosen("nhwc", channels=(3, 8), kinds=("u8", "s8"))[1] == "Ohwi4o"
    made = [
        Convolution(
            MemoryDesc((1, 4, *(5,) * k), "f32", rl.any), MemoryDesc((8, 4, *(3,) * k), "f32", rl.any)
        )
        for k in (1, 2, 3)
    ]
    assert [str(one.src.format) for one in made] == ["nwc", "nhwc", "ndhwc"]


def test_weights_that_any_chose_are_not_packed_again():
    for cpu, groups, kinds in product(HERE, (1, 2, 40), (("f32", "f32"), ("u8", "s8"))):
        with on(cpu):
            filters_ = MemoryDesc((groups, 40 // groups, 40 // groups, 4, 4), kinds[1], rl.any)
            made = Convolution(MemoryDesc((1, 40, 9, 9), kinds[0], "nChw8c"), filters_)
            program = made._compiled()
            assert program is None or "packed" not in program.scratch


def test_what_is_given_stays_as_given():
    given = [
        MemoryDesc((1, 4, 5, 5), "u8", rl.Layout((1, 4, 5, 5), "nChw4c", offset=8)),
        MemoryDesc((8, 4, 3, 3), "s8", "OIhw4i16o4i"),
        MemoryDesc((8,), "s32", "a"),
        MemoryDesc((1, 8, 3, 3), "bf16", strides=(1000, 1, 100, 10)),
    ]
    scale = MemoryDesc((1,), "f32", "a")
    made = Convolution(*given, scale=scale)
    assert [made.descs[name] for name in ("src", "weights", "bias", "dst", "scale")] == [*given, scale]
    assert made.inputs == ("src", "weights", "bias", "scale")
    assert not hasattr(made, "other")
    assert "f32:a:1" in repr(made)
    text = made.implementation
    assert text == "definition (NumPy)" or (text.startswith("machine code: ") and "tiles of " in text)
    assert made.strides, made.padding == ((1, 1), ((0, 0), (0, 0)))


@pytest.mark.parametrize(
    ("src", "weights"),
    [
        ((0, 4, 5, 5), (8, 4, 3, 3)),
        ((2, 0, 5, 5), (8, 0, 3, 3)),
        ((2, 4, 5, 5), (0, 4, 3, 3)),
        ((2, 4, 0, 5), (8, 4, 3, 3)),
        ((2, 4, 0, 0), (8, 4, 1, 1)),
        ((2, 4, 5, 5), (8, 4, 0, 3)),
        ((2, 4, 5), (2, 0, 2, 3)),
        ((2, 0, 5), (0, 3, 4, 3)),
        ((2, 0, 5, 4, 3), (4, 1, 0, 3, 3, 3)),
    ],
)
def test_nothing_in_or_out(src, weights):
    bias = (weights[0] if len(weights) == len(src) else weights[0] * weights[1],)
    for padding in (0, 1):
        made = Convolution(
            MemoryDesc(src, "f32", rl.any), MemoryDesc(weights, "f32", rl.any), MemoryDesc(bias, "f32", "a"),
            padding=padding, post_ops="logistic",
        )  # fmt: skip
        check(made)


# -- what does not fit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"src": (1, 4)}, "must have 3 to 5 axes"),
        ({"src": (1, 4, 2, 2, 2, 2)}, "must have 3 to 5 axes"),
        ({"weights": (8, 4, 3)}, "must have 4 axes, or 5 with groups first"),
        ({"weights": (1, 2, 8, 4, 3, 3)}, "must have 4 axes, or 5 with groups first"),
        ({"weights": (8, 5, 3, 3)}, "has 4 channels, .* take 5"),
        ({"weights": (2, 8, 4, 3, 3)}, "has 4 channels, .* take 2 groups of 4"),
        ({"weights": (8, 4, 6, 3)}, "axis 0 .* has 5 elements and 0 of padding; the filter spans 6"),
        ({"dilation": (1, 3)}, "axis 1 .* the filter spans 7"),
        ({"dst": (1, 8, 3, 4)}, "dst .* must be 1x8x3x3"),
        ({"dst": (1, 8, 3)}, "dst .* must be 1x8x3x3"),
        ({"bias": (4,)}, "must be a vector of 8 f32 or s32 or bf16 or f16"),
        ({"bias": (1, 8)}, "must be a vector of 8"),
        ({"scale": (2,)}, "must be a vector of 1 or 8 f32"),
        ({"strides": 0}, "strides 0 must be at least 1"),
        ({"strides": (1, 2, 3)}, "strides .* must be a whole number, or 2 of them"),
        ({"strides": 1.5}, "strides 1.5 must be a whole number"),
        ({"strides": None}, "strides None must be a whole number"),
        ({"strides": (1, 1.5)}, "strides must be a whole number, got 1.5"),
        ({"dilation": 0}, "dilation 0 must be at least 1"),
        ({"dilation": "ab"}, "dilation must be a whole number, got 'a'"),
        ({"padding": -1}, "padding -1 must not be negative"),
        ({"padding": [(0, -1), 0]}, "must not be negative"),
        ({"padding": (1, 2, 3)}, "one or a pair for each of 2 axes"),
        ({"padding": [(1, 2, 3), 1]}, "must be a whole number or a pair"),
        ({"padding": [1.5, 1]}, "must be a whole number or a pair"),
        ({"padding": 0.5}, "must be a whole number"),
        ({"padding": 1 << 70}, "limit is 2"),
        ({"post_ops": "rleu"}, "no elementwise function"),
        ({"post_ops": [3]}, "is no post-op"),
        ({"post_ops": (Sum(), Sum())}, "one Sum"),
    ],
)
def test_sizes_that_do_not_fit(given, says):
    descs = {"src": (1, 4, 5, 5), "weights": (8, 4, 3, 3), "bias": None, "dst": None, "scale": None} | given
    made = {
        name: None if descs[name] is None else MemoryDesc(descs[name], "f32", rl.any)
        for name in ("src", "weights", "bias", "dst", "scale")
    }
    more = {name: value for name, value in given.items() if name not in made}
    with pytest.raises(LayoutError, match=says):
        Convolution(**made, **more)


PADDED = MemoryDesc((1, 8, 3, 3), "f32", rl.Layout((1, 8, 3, 3), "nChw16c", strides=(72, 72, 24, 8)))
"""Half a block a pixel: the padding of one is the next one."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"src": None}, "src must be a MemoryDesc, not NoneType"),
        ({"weights": rl.tensor(np.zeros((8, 4, 3, 3), "f4"))}, "weights must be a MemoryDesc, not relayout"),
        ({"bias": MemoryDesc((8,), "u8", "a")}, "must be a vector of 8 f32 or s32 or bf16 or f16"),
        ({"bias": MemoryDesc((8,), "f32", strides=(2,))}, "must be dense"),
        ({"scale": MemoryDesc((8,), "s32", "a")}, "must be a vector of 1 or 8 f32"),
        ({"dst": MemoryDesc((1, 8, 3, 3), "f32", strides=(72, 0, 3, 1))}, "several elements in one place"),
        ({"dst": PADDED}, "padding of dst .* shares places with its elements"),
    ],
)
def test_descriptors_that_do_not_fit(given, says):
    plain = {
        "src": MemoryDesc((1, 4, 5, 5), "f32", "nchw"),
        "weights": MemoryDesc((8, 4, 3, 3), "f32", "oihw"),
    }
    with pytest.raises(LayoutError, match=says):
        Convolution(**(plain | given))


def test_spellings_of_parameters():
    src, weights = MemoryDesc((1, 4, 9, 9), "f32", "nchw"), MemoryDesc((8, 4, 3, 3), "f32", "oihw")
    whole = np.int64
    for spelled in (
        {"strides": 2, "padding": 1},
        {"strides": (2, 2), "padding": [(1, 1), 1]},
        {"strides": whole(2), "padding": whole(1)},
    ):
        made = Convolution(src, weights, **spelled)
        assert (made.strides, made.dilation, made.padding) == ((2, 2), (1, 1), ((1, 1), (1, 1)))
        assert made.dst.dims == (1, 8, 5, 5)
    assert Convolution(src, weights, post_ops=Function("relu", 0.5)).post_ops == (Function("relu", 0.5),)


@pytest.mark.parametrize(
    ("cpu", "dense", "grouped"),
    [("x86-64-v3", "nhwc", "nhwc"), ("znver3", "nhwc", "nhwc"), ("x86-64-v4", "nChw16c", "nChw16c")],
)
def test_any_is_channels_last_where_vectors_are_half_a_line(cpu, dense, grouped):
    """Nothing runs here, so the code of any processor may be asked for."""
    with on(cpu):
        for filters_, groups, wanted in (((48, 32, 1, 1), 1, dense), ((32, 1, 1, 3, 3), 32, grouped)):
            src = MemoryDesc((1, 32, 8, 8), "f32", rl.any)
            made = Convolution(src, MemoryDesc(filters_, "f32", rl.any), padding=int(groups > 1))
            assert (str(made.src.format), str(made.dst.format)) == (wanted, wanted)


@pytest.mark.parametrize("form", ["nhwc", "nChw8c", "nchw"])
@pytest.mark.parametrize("function", [Function("linear", 0.5, 3), Function("exp"), Function("clip", 1, 4)])
def test_results_that_no_tap_meets_get_their_post_ops(form, function):
    src = MemoryDesc((2, 5, 3, 4), "f32", form)
    made = Deconvolution(src, MemoryDesc((7, 5, 1, 1), "f32", rl.any), strides=(1, 2), post_ops=[function])
    x, w = np.ones(src.dims), np.full((7, 5, 1, 1), 0.5)
    given = rl.tensor(x, form, "f32"), rl.tensor(w, made.weights.tag, "f32")
    np.testing.assert_allclose(made(*given).numpy(), made.reference(*given), rtol=1e-5)


@pytest.mark.parametrize("outputs", [12, 17, 20, 36])
@pytest.mark.parametrize("block", [3, 5, 7, 15, 17])
def test_vectors_that_begin_evenly_are_not_alike(block, outputs):
    """In blocks of 7 vectors of 8 begin 0, 1 and 2 lanes behind a block, evenly far from each other."""
    dst = MemoryDesc((1, outputs, 4, 4), "f32", f"aBcd{block}b")
    src, free = MemoryDesc((1, 7, 4, 4), "f32", "nhwc"), MemoryDesc((outputs, 7, 3, 3), "f32", rl.any)
    elementwise.check(Convolution(src, free, None, dst, padding=1))
