"""The gradient of a convolution's source, and deconvolution: definitions, kernels, and what is refused."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl
from elementwise import check, machine_code
from gradients_convolution_data import FORMATS, applied, attributes, forward
from relayout.errors import LayoutError, Unsupported
from relayout.primitives import (
    Convolution,
    ConvolutionBackwardData,
    Deconvolution,
    DeconvolutionBackwardData,
    DeconvolutionBackwardWeights,
)
from relayout.primitives.plain import plain, remade
from relayout.primitives.post_ops import BinaryOp, Sum
from relayout.primitives.transposed import phases
from strategies import tried

KINDS = ("f32", "f32", "bf16", "f16")


@pytest.mark.parametrize("seed", range(12))
def test_deconvolutions_are_those_of_pytorch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    made, one = forward(random.Random(seed), Deconvolution)
    rng = np.random.default_rng(seed)
    src, weights = (rng.standard_normal(desc.dims) for desc in (made.src, made.weights))
    expected = applied(torch, made, one, torch.from_numpy(src), torch.from_numpy(weights))
    np.testing.assert_allclose(made.reference(src, weights), expected.numpy(), atol=1e-12)


@given(
    source=st.integers(1, 12),
    target=st.integers(1, 30),
    kernel=st.integers(1, 6),
    stride=st.integers(1, 5),
    dilation=st.integers(1, 4),
    padding=st.integers(0, 8),
)
def test_phases_are_all_products(
    source: int, target: int, kernel: int, stride: int, dilation: int, padding: int
) -> None:
    """Each element of the result meets each of its elements of the source once, by the right tap."""
    wanted = {
        (x, r, y)
        for y in range(source)
        for r in range(kernel)
        for x in [y * stride + r * dilation - padding]
        if 0 <= x < target
    }
    found, elements = [], []
    for phase in phases(source, target, kernel, stride, dilation, padding):
        first, count, step = phase.taps
        for j in range(phase.elements):
            x = phase.first + j * stride
            elements.append(x)
            for k in range(count):
                y = phase.start + j - phase.padding + k * phase.dilation
                if not phase.is_empty and phase.start <= y < phase.stop:
                    found.append((x, first + (count - 1 - k) * step, y))
    assert sorted(found) == sorted(wanted)
    assert sorted(elements) == list(range(target))


@st.composite
def convolutions(draw: st.DrawFn, kind: type[Convolution | Deconvolution], **more: Any) -> Any:
    """A forward primitive in any formats, or None where sizes don't fit together."""
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    one = attributes(rng)
    groups, (o, i), axes = one["groups"], one["channels"], len(one["kernel"])
    dtype, outputs = draw(st.sampled_from(KINDS)), max(1, groups) * o
    tags = (*FORMATS[axes], rl.any)
    src = rl.MemoryDesc((one["batch"], max(1, groups) * i, *one["sizes"]), dtype, draw(st.sampled_from(tags)))
    weights = rl.MemoryDesc((*([groups] if groups else []), o, i, *one["kernel"]), dtype, rl.any)
    how: dict[str, Any] = {name: one[name] for name in ("strides", "dilation", "padding")}
    if kind is Deconvolution:
        how["output_padding"] = draw(st.lists(st.integers(0, 3), min_size=axes, max_size=axes))
    if more.get("post_ops"):
        factor = rl.MemoryDesc((1, outputs, *([1] * axes)), "f32", rl.any)
        how["post_ops"] = draw(
            st.sampled_from(((), ("relu",), (Sum(), "relu"), (BinaryOp("mul", factor), "tanh")))
        )
        how["bias"] = draw(st.sampled_from((None, rl.MemoryDesc((outputs,), "f32", "a"))))
        how["scale"] = draw(st.sampled_from((None, *(rl.MemoryDesc((n,), "f32", "a") for n in (1, outputs)))))
    try:
        return kind(src, weights, **how)
    except LayoutError:
        return None


@settings(max_examples=tried(60), deadline=None)
@given(data=st.data(), seed=st.integers(0, 100))
def test_kernels_do_what_the_definition_says(data: st.DataObject, seed: int) -> None:
    """Elements, padding and what lies around, in all formats, all parts in an odd order."""
    kind, of = data.draw(
        st.sampled_from(((ConvolutionBackwardData, Convolution), (DeconvolutionBackwardData, Deconvolution)))
    )
    first = data.draw(convolutions(of))
    if first is None:
        return
    chosen = {
        name: data.draw(st.sampled_from((None, rl.any))) for name in ("diff_dst", "weights", "diff_src")
    }
    factor = rl.MemoryDesc((1, first.src.dims[1], *([1] * (len(first.src.dims) - 2))), "f32", rl.any)
    gate = rl.MemoryDesc((*first.src.dims[:2], *factor.dims[2:]), "f32", rl.any)
    after = [(), (Sum(),), (Sum(0.5), "relu"), (BinaryOp("mul", factor),), ("relu", BinaryOp("add", gate))]
    made = kind(first, **chosen, post_ops=data.draw(st.sampled_from(after)))
    check(made, seed)
    assert made._program is not None or not machine_code() or 0 in made.diff_dst.dims


@settings(max_examples=tried(60), deadline=None)
@given(data=st.data(), seed=st.integers(0, 100))
def test_deconvolutions_do_what_their_definition_says(data: st.DataObject, seed: int) -> None:
    """With bias, scales and post-ops, which reach the elements that no tap meets, too."""
    made = data.draw(convolutions(Deconvolution, post_ops=True))
    if made is not None:
        check(made, seed)
        assert made._program is not None or not machine_code() or 0 in made.dst.dims


@settings(max_examples=tried(40), deadline=None)
@given(data=st.data(), seed=st.integers(0, 100), bias=st.booleans())
def test_weights_of_deconvolutions_do_what_the_definition_says(
    data: st.DataObject, seed: int, bias: bool
) -> None:
    first = data.draw(convolutions(Deconvolution))
    if first is None:
        return
    if bias:
        vector = rl.MemoryDesc((first.dst.dims[1],), "f32", "a")
        names = ("strides", "dilation", "padding")
        how = {name: getattr(first, name) for name in names}
        try:
            first = Deconvolution(first.src, first.weights, vector, **how)
        except LayoutError:  # without the padding of its output nothing is left
            return
    chosen = {
        name: data.draw(st.sampled_from((None, rl.any))) for name in ("src", "diff_dst", "diff_weights")
    }
    check(DeconvolutionBackwardWeights(first, **chosen), seed)


def test_gradients_of_weights_and_bias_are_derivatives() -> None:
    """The forward pass is linear in both."""
    forward = Deconvolution(
        rl.MemoryDesc((2, 6, 3, 4), "f32", "nchw"),
        rl.MemoryDesc((2, 2, 3, 3, 2), "f32", "goihw"),
        rl.MemoryDesc((4,), "f32", "a"),
        strides=(2, 1),
        dilation=(1, 2),
        padding=((1, 2), (0, 1)),
        output_padding=(1, 0),
    )
    rng = np.random.default_rng(1)
    src, diff = (rng.standard_normal(one.dims) for one in (forward.src, forward.dst))
    found = DeconvolutionBackwardWeights(forward).reference(src, diff)
    weights, bias = np.zeros(forward.weights.dims), np.zeros(4)
    for array, gradient in ((weights, found.diff_weights), (bias, found.diff_bias)):
        for at in np.ndindex(array.shape):
            array[at] = 1
            assert np.isclose((forward.reference(src, weights, bias) * diff).sum(), gradient[at], atol=1e-12)
            array[at] = 0


@pytest.mark.parametrize("kind", [ConvolutionBackwardData, DeconvolutionBackwardData])
def test_definitions_are_derivatives(kind: type[Any]) -> None:
    """Of the sum of ``diff_dst * dst``, by finite differences; both are linear in the source."""
    of = Convolution if kind is ConvolutionBackwardData else Deconvolution
    forward = of(
        rl.MemoryDesc((2, 6, 5, 4), "f32", "nchw"),
        rl.MemoryDesc((2, 2, 3, 3, 2), "f32", "goihw"),
        strides=(2, 1),
        dilation=(1, 2),
        padding=((1, 2), (0, 1)),
    )
    rng = np.random.default_rng(1)
    weights, diff = (rng.standard_normal(one.dims) for one in (forward.weights, forward.dst))
    found = kind(forward).reference(weights, diff)
    src = np.zeros(forward.src.dims)
    for at in np.ndindex(src.shape):
        src[at] = 1
        assert np.isclose((forward.reference(src, weights) * diff).sum(), found[at], atol=1e-12)
        src[at] = 0


@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
@pytest.mark.parametrize("strides", [1, 2, 3])
def test_bits_do_not_depend_on_threads(format: str, strides: int) -> None:
    src = rl.MemoryDesc((4, 48, 30, 29), "f32", format)
    forward = Convolution(src, rl.MemoryDesc((64, 48, 3, 3), "f32", rl.any), strides=strides, padding=1)
    made = ConvolutionBackwardData(forward)
    rng = np.random.default_rng(2)
    given = [
        rl.tensor(rng.standard_normal(one.dims), one.layout, dtype="f32")
        for one in (made.weights, made.diff_dst)
    ]
    one, two = (made(*given, threads=count).numpy() for count in (1, 2))
    np.testing.assert_array_equal(one, two)


@settings(max_examples=tried(60), deadline=None)
@given(
    format=st.sampled_from(("nhwc", "nChw16c", "nChw8c", "NCHW4")),
    groups=st.sampled_from((4, 16, 33)),
    per=st.sampled_from(((1, 1), (1, 1), (2, 2), (4, 4), (8, 8), (4, 2), (2, 4))),
    sizes=st.tuples(st.integers(3, 40), st.integers(3, 40)),
    kernel=st.tuples(st.integers(2, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 3), st.integers(2, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.integers(0, 4),
    dtype=st.sampled_from(KINDS),
    seed=st.integers(0, 100),
    post_ops=st.sampled_from(((), (Sum(),), ("relu",))),
)
def test_narrow_groups_with_strides(
    format: str,
    groups: int,
    per: tuple[int, int],
    sizes: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: int,
    dtype: str,
    seed: int,
    post_ops: tuple[Any, ...],
) -> None:
    """Mostly by one kernel for all phases; what no tap meets is written, too."""
    outputs, inputs = per
    try:
        first = Convolution(
            rl.MemoryDesc((2, groups * inputs, *sizes), dtype, format),
            rl.MemoryDesc((groups, outputs, inputs, *kernel), dtype, rl.any),
            strides=strides,
            dilation=dilation,
            padding=padding,
        )
    except LayoutError:
        return
    made = ConvolutionBackwardData(first, weights=rl.any, post_ops=post_ops)
    check(made, seed)


@pytest.mark.parametrize("format", ["nhwc", "nChw16c"])
@pytest.mark.parametrize("each", [1, 4])
def test_bits_of_narrow_groups_do_not_depend_on_threads(format: str, each: int) -> None:
    src = rl.MemoryDesc((4, 64, 60, 58), "f32", format)
    weights = rl.MemoryDesc((64 // each, each, each, 3, 3), "f32", rl.any)
    made = ConvolutionBackwardData(Convolution(src, weights, strides=2, padding=1))
    assert not machine_code() or "phases" not in made.implementation
    rng = np.random.default_rng(2)
    given = [
        rl.tensor(rng.standard_normal(one.dims), one.layout, dtype="f32")
        for one in (made.weights, made.diff_dst)
    ]
    one, two = (made(*given, threads=count).numpy() for count in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", ["data", "deconvolution"])
def test_pickles_and_texts_are_the_same_again(kind: str) -> None:
    src, weights = rl.MemoryDesc((1, 4, 6, 6), "f32", "nhwc"), rl.MemoryDesc((8, 4, 3, 3), "f32", rl.any)
    made: Any = Deconvolution(src, weights, strides=2, padding=1, output_padding=1)
    if kind == "data":
        made = ConvolutionBackwardData(Convolution(src, weights, strides=2, padding=1), weights=rl.any)
    for again in (pickle.loads(pickle.dumps(made)), remade(plain(made))):
        assert (again.descs, again.operation) == (made.descs, made.operation)


def test_what_is_given_nothing_for_has_the_formats_of_the_forward_pass() -> None:
    dims = (2, 32, 14, 14), (64, 32, 3, 3)
    forward = Convolution(*(rl.MemoryDesc(each, "f32", rl.any) for each in dims), padding=1)
    made = ConvolutionBackwardData(forward)
    assert (made.weights, made.diff_dst, made.diff_src) == (forward.weights, forward.dst, forward.src)
    text = str(forward.weights.format).translate(str.maketrans("oOiI", "iIoO"))
    assert str(ConvolutionBackwardData(forward, weights=rl.any).weights.format) == text


def test_post_ops_have_no_gradients() -> None:
    src, weights = rl.MemoryDesc((1, 4, 6, 6), "f32", "nhwc"), rl.MemoryDesc((8, 4, 3, 3), "f32", rl.any)
    with pytest.raises(Unsupported, match="post-ops"):
        ConvolutionBackwardData(Convolution(src, weights, post_ops="relu"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"diff_dst": rl.MemoryDesc((1, 8, 4, 5), "f32", "nchw")}, "must be 1x8x4x4"),
        ({"diff_src": rl.MemoryDesc((1, 4, 6, 6), "f32", strides=(0, 0, 0, 0))}, "can't be written"),
        ({"weights": "Ohwi16o"}, "MemoryDesc"),
        ({"diff_src": rl.MemoryDesc((1, 4, 6, 6), "s8", "nchw")}, "must be one of f32, bf16, f16"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], message: str) -> None:
    src, weights = rl.MemoryDesc((1, 4, 6, 6), "f32", "nhwc"), rl.MemoryDesc((8, 4, 3, 3), "f32", rl.any)
    with pytest.raises(LayoutError, match=message):
        ConvolutionBackwardData(Convolution(src, weights), **given)


def test_a_deconvolution_of_nothing_is_its_bias() -> None:
    src, weights = rl.MemoryDesc((1, 4, 2, 2), "f32", "nhwc"), rl.MemoryDesc((3, 4, 1, 1), "f32", rl.any)
    made = Deconvolution(src, weights, rl.MemoryDesc((3,), "f32", "a"), strides=3, output_padding=2)
    zeros = [rl.tensor(np.zeros(one.dims), one.layout, dtype="f32") for one in (made.src, made.weights)]
    found = made(*zeros, rl.tensor([1.0, 2.0, 3.0], "a", dtype="f32")).numpy()
    np.testing.assert_array_equal(found, np.broadcast_to(np.float32([1, 2, 3])[:, None, None], (1, 3, 6, 6)))


def test_too_much_padding_is_refused() -> None:
    with pytest.raises(LayoutError, match="takes 6 of them away"):
        Deconvolution(
            rl.MemoryDesc((1, 4, 2, 2), "f32", "nhwc"), rl.MemoryDesc((3, 4, 3, 3), "f32", rl.any), padding=3
        )
