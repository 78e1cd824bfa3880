"""Inner product: by hand, in all formats, and in the order in which the source lies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import LayoutError, MemoryDesc
from relayout.ops.post_ops import Sum
from relayout.primitives import InnerProduct
from strategies import examples, filters, images, written
from test_products import HERE, TYPES, check, compiles, desc, hosts, on, post_ops, vector, vectors
from test_reorder import in_front


@st.composite
def problems(draw):
    """An inner product of few operations, and in what context it is lowered."""
    kinds = draw(st.sampled_from(TYPES))
    channels = draw(st.sampled_from((1, 2, 3, 8, 17, 32, 50)))
    if kinds[0] in ("s8", "u8"):
        channels = draw(st.sampled_from((channels, 515, 600)))
    spatial = draw(st.lists(st.integers(1, 4), max_size=3 if channels < 100 else 1))
    inputs = (channels, *spatial)
    batch, outputs = draw(st.sampled_from((1, 2, 3, 8, 13))), draw(st.sampled_from((1, 3, 16, 24, 50, 100)))
    src = MemoryDesc((batch, *inputs), kinds[0], in_front(draw(images((batch, *inputs)))))
    packing = draw(st.one_of(st.just(rl.any), filters((outputs, *inputs)).map(in_front)))
    dst = draw(st.one_of(st.just(rl.any), images((batch, outputs)).map(in_front).filter(written)))
    bias, scale = draw(vectors(outputs, kinds[0] in ("s8", "u8")))
    host, ops = draw(hosts), draw(post_ops())
    with on(*host):
        weights = MemoryDesc((outputs, *inputs), kinds[1], packing)
        target = MemoryDesc((batch, outputs), kinds[2], dst)
        return host, InnerProduct(src, weights, bias, target, scale=scale, post_ops=ops)


@given(problem=problems(), seed=st.integers(0, 99), threads=st.sampled_from((None, 1, 3)))
@examples(40)
def test_kernels_compute_the_definition(problem, seed, threads):
    host, made = problem
    with on(*host):
        check(made, seed, threads=threads)


def test_by_hand():
    src = rl.tensor([[[1.0, 2.0], [3.0, 4.0]]], dtype="f32")  # one image, two channels of two
    weights = rl.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]], dtype="f32")
    bias, scale = (rl.tensor(np.array(values, "f4")) for values in ([0.5, -0.5], [2.0, 1.0]))
    out = rl.tensor([[100.0, 200.0]], dtype="f32")
    made = InnerProduct(src.desc, weights.desc, bias.desc, scale=scale.desc, post_ops=(Sum(0.1), "relu"))
    assert made(src, weights, bias, scale, out=out).numpy().tolist() == [[20.5, 29.5]]


@compiles
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_in_their_image(value):
    rng = np.random.default_rng(0)
    for cpu in HERE:
        with on(cpu):
            for form, out in (("nhwc", "nc"), ("nchw", "nC16c"), ("nChw8c", "cn")):
                made = InnerProduct(desc((5, 17, 2, 3), form), desc((19, 17, 2, 3)), dst=desc((5, 19), out))
                src = rng.standard_normal(made.src.dims)
                src[2, 16, 1, 2] = value
                check(made, arrays={"src": src}, kernel=True)


def test_any_is_the_order_of_the_source():
    def order(form, spatial=(3, 4)):
        made = InnerProduct(desc((2, 32, *spatial), form), desc((48, 32, *spatial)))
        assert made.dst == desc((2, 48), "nc")
        layout = made.weights.layout
        strides = [
            layout.offset(*(int(k == axis) for k in range(layout.rank))) for axis in range(1, layout.rank)
        ]
        return sorted(range(1, layout.rank), key=lambda axis: -strides[axis - 1])

    with on(HERE[0]):
        assert order("nchw") == [1, 2, 3]
        assert order("nhwc") == [2, 3, 1]
        assert order("nwhc") == [3, 2, 1]
        assert order("ncdhw", (2, 3, 4)) == [1, 2, 3, 4]


def test_what_is_given_stays_as_given():
    src, weights, dst = desc((2, 8, 3, 3), "nChw4c"), desc((5, 8, 3, 3), "oihw"), desc((2, 5), "cn", "bf16")
    made = InnerProduct(src, weights, vector(5), dst)
    assert (made.src, made.weights, made.bias, made.dst) == (src, weights, vector(5), dst)
    assert made.inputs == ("src", "weights", "bias")
    assert made.flops == 2 * 2 * 5 * 72
    assert InnerProduct(desc((2, 8)), desc((5, 8))).src == desc((2, 8), "nc")
    assert InnerProduct(desc((2, 8), kind="u8"), desc((5, 8), kind="s8")).dst.dtype == "u8"


@pytest.mark.parametrize(
    ("src", "weights"), [((0, 4), (3, 4)), ((2, 0), (3, 0)), ((2, 4, 0, 3), (3, 4, 0, 3)), ((2, 4), (0, 4))]
)
def test_nothing_in_or_out(src, weights):
    made = InnerProduct(desc(src), desc(weights), vector(weights[0]))
    check(made)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((desc((2,)), desc((3,))), "must have 2 to 5 axes"),
        ((desc((2, 3, 1, 1, 1, 1)), desc((5, 3, 1, 1, 1, 1))), "must have 2 to 5 axes"),
        ((desc((2, 8, 3)), desc((5, 8))), "must have the sizes of src"),
        ((desc((2, 8)), desc((5, 9))), "must have the sizes of src"),
        ((desc((2, 8)), desc((5, 8)), vector(4)), "bias f32:a:4 must be a vector of 5"),
        ((desc((2, 8)), desc((5, 8)), desc((5, 1), "ab")), "bias .* must be a vector"),
        ((desc((2, 8)), desc((5, 8)), MemoryDesc((5,), "f32", strides=(2,))), "must be dense"),
        ((desc((2, 8)), desc((5, 8)), None, desc((2, 6))), "dst .* must be 2x5"),
        ((desc((2, 8)), desc((5, 8)), None, MemoryDesc((2, 5), "f32", strides=(0, 1))), "in one place"),
        (((2, 8), desc((5, 8))), "src must be a MemoryDesc, not tuple"),
    ],
)
def test_sizes_that_do_not_fit(arguments, says):
    with pytest.raises(LayoutError, match=says):
        InnerProduct(*arguments)
