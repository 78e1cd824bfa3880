"""Definitions of convolutions against torch, ONNX's reference evaluator, ONNX Runtime, and each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

import ml_dtypes

from onnx_nodes import assert_agrees
from operators_compared import define, same_as_reference, same_as_runtime
from relayout import LayoutError
from relayout.graph.operators import OPERATORS, Fact
from strategies import tried


def normal(rng: np.random.Generator, *dims: int) -> np.ndarray:
    return rng.standard_normal(dims).astype(np.float32)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes and attributes of a convolution whose windows fit."""
    axes = draw(st.integers(1, 3))
    group = draw(st.integers(1, 3))
    kernel = draw(st.tuples(*[st.integers(1, 3)] * axes))
    dilations = draw(st.tuples(*[st.integers(1, 2)] * axes))
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    return {
        "batch": draw(st.integers(0, 2)),
        "inputs": draw(st.integers(1, 3)),
        "outputs": draw(st.integers(1, 6)),
        "group": group,
        "kernel": kernel,
        "dilations": dilations,
        "strides": draw(st.tuples(*[st.integers(1, 3)] * axes)),
        "pads": draw(st.tuples(*[st.integers(0, 2)] * (2 * axes))),
        "sizes": [draw(st.integers(n, n + 4)) for n in extent],
        "bias": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


def tensors(
    one: dict[str, Any], transposed: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    rng = np.random.default_rng(one["seed"])
    channels, results = one["inputs"] * one["group"], one["outputs"] * one["group"]
    x = normal(rng, one["batch"], channels, *one["sizes"])
    first, second = (channels, one["outputs"]) if transposed else (results, one["inputs"])
    w = normal(rng, first, second, *one["kernel"])
    return x, w, normal(rng, results) if one["bias"] else None


@settings(max_examples=tried(60), deadline=None)
@given(convolutions())
def test_convolution_is_torchs(one: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    x, w, b = tensors(one)
    axes = len(one["sizes"])
    attributes = {key: one[key] for key in ("strides", "dilations", "pads", "group")}
    (made,) = define("Conv", [x, w, b], **attributes)
    around = zip(one["pads"][:axes], one["pads"][axes:], strict=True)
    padded = np.pad(x, [(0, 0), (0, 0), *around])
    expected = getattr(torch.nn.functional, f"conv{axes}d")(
        torch.from_numpy(padded),
        torch.from_numpy(w),
        None if b is None else torch.from_numpy(b),
        one["strides"],
        0,
        one["dilations"],
        one["group"],
    )
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-4, atol=1e-4)


@settings(max_examples=tried(60), deadline=None)
@given(convolutions(), st.data())
def test_transposed_convolution_is_torchs(one: dict[str, Any], data: st.DataObject) -> None:
    torch = pytest.importorskip("torch")
    one["batch"] = max(one["batch"], 1)
    x, w, b = tensors(one, transposed=True)
    axes = len(one["sizes"])
    more = [
        data.draw(st.integers(0, max(s, d) - 1))
        for s, d in zip(one["strides"], one["dilations"], strict=True)
    ]
    pads = one["pads"][:axes]
    sizes = [
        (n - 1) * s + (k - 1) * d + 1 + m - 2 * p
        for n, s, k, d, m, p in zip(
            one["sizes"], one["strides"], one["kernel"], one["dilations"], more, pads, strict=True
        )
    ]
    if min(sizes) < 1:
        return
    attributes = {key: one[key] for key in ("strides", "dilations", "group")}
    (made,) = define("ConvTranspose", [x, w, b], pads=(*pads, *pads), output_padding=more, **attributes)
    expected = getattr(torch.nn.functional, f"conv_transpose{axes}d")(
        torch.from_numpy(x),
        torch.from_numpy(w),
        None if b is None else torch.from_numpy(b),
        one["strides"],
        pads,
        more,
        one["group"],
        one["dilations"],
    )
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("kernel", "stride"), [((3, 2), (1, 1)), ((2, 4), (2, 3)), ((5, 3), (2, 2))])
def test_automatic_padding_is_the_runtimes(auto_pad: str, kernel: Any, stride: Any) -> None:
    rng = np.random.default_rng(3)
    x, w = normal(rng, 2, 4, 9, 10), normal(rng, 6, 2, *kernel)
    attributes = {"auto_pad": auto_pad, "strides": stride, "group": 2}
    same_as_runtime("Conv", [x, w], **attributes)
    same_as_runtime("ConvTranspose", [x, normal(rng, 4, 3, *kernel)], **attributes)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("output_shape", [(9, 9), (10, 8), (7, 11)])
def test_a_transposed_convolution_has_the_sizes_that_are_asked_for(auto_pad: str, output_shape: Any) -> None:
    rng = np.random.default_rng(4)
    inputs = [normal(rng, 1, 3, 5, 5), normal(rng, 3, 2, 3, 3), normal(rng, 2)]
    attributes = {"strides": (2, 2), "auto_pad": auto_pad, "output_shape": output_shape}
    (made,) = define("ConvTranspose", inputs, **attributes)
    assert made.shape == (1, 2, *output_shape)
    if auto_pad == "SAME_UPPER":
        same_as_runtime("ConvTranspose", inputs, **attributes)


def test_the_transpose_is_the_transpose() -> None:
    """<conv(x), y> = <x, transposed(y)> for all x and y: nothing but geometry is shared by the two."""
    rng = np.random.default_rng(5)
    w = normal(rng, 4, 3, 3, 2).astype(np.float64)
    attributes = {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 2, 1)}
    x = rng.standard_normal((2, 3, 9, 7))
    (y,) = define("Conv", [x, w], **attributes)
    other = rng.standard_normal(y.shape)
    (back,) = define("ConvTranspose", [other, w], output_shape=None, output_padding=(1, 0), **attributes)
    assert back.shape == x.shape
    np.testing.assert_allclose((y * other).sum(), (x * back).sum(), rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_narrow_types_are_accumulated_in_f32(dtype: Any) -> None:
    x, w = (np.ones(dims, np.float32).astype(dtype) for dims in ((1, 1024, 1, 1), (1, 1024, 1, 1)))
    (made,) = define("Conv", [x, w])
    assert made.dtype == dtype
    assert made.reshape(()).astype(float) == 1024  # in bf16 a running sum ends at 256


def test_integers_are_exact() -> None:
    rng = np.random.default_rng(6)
    x = rng.integers(0, 256, (1, 64, 6, 6), np.uint8)
    w = rng.integers(-128, 128, (4, 64, 3, 3)).astype(np.int8)
    (made,) = define("ConvInteger", [x, w, np.uint8(7), np.array([1, -2, 3, 4], np.int8)], pads=(1, 1, 1, 1))
    wide = np.pad(x.astype(np.int64) - 7, [(0, 0), (0, 0), (1, 1), (1, 1)])
    less = w.astype(np.int64) - np.array([1, -2, 3, 4]).reshape(4, 1, 1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(made, np.einsum("nchwij,mcij->nmhw", windows, less))
    same_as_reference("ConvInteger", [x, w, np.uint8(7)], strides=(2, 2))


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantised_convolution_is_the_runtimes(per_channel: bool) -> None:
    rng = np.random.default_rng(7)
    x = rng.integers(0, 256, (2, 4, 7, 7), np.uint8)
    w = rng.integers(-128, 128, (6, 2, 3, 3)).astype(np.int8)
    scale = rng.uniform(0.01, 0.1, 6 if per_channel else ()).astype(np.float32)
    zero = np.zeros(6 if per_channel else (), np.int8)
    inputs = [
        *(x, np.float32(0.05), np.uint8(120), w, np.asarray(scale), zero, np.float32(0.7), np.uint8(128)),
        rng.integers(-500, 500, 6).astype(np.int32),
    ]
    (made,) = define("QLinearConv", [np.asarray(i) for i in inputs], pads=(1, 1, 1, 1), group=2)
    from operators_compared import by_runtime

    (expected,) = by_runtime("QLinearConv", [np.asarray(i) for i in inputs], pads=(1, 1, 1, 1), group=2)
    difference = np.abs(made.astype(int) - expected.astype(int))
    assert difference.max() <= 1  # the runtime multiplies by factors rounded to f32
    assert (difference > 0).mean() < 0.02


def test_columns_are_folded_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    attributes = {"dilations": (2, 1), "pads": (1, 2, 1, 2), "strides": (1, 2)}
    x = normal(rng, 2, 3 * 6, 7 * 5)
    sizes, block = np.array([9, 8]), np.array([3, 2])
    sizes[1] = (5 - 1) * 2 + 2 - 4
    (made,) = define("Col2Im", [x, sizes, block], **attributes)
    fold = torch.nn.Fold(tuple(sizes), tuple(block), dilation=(2, 1), padding=(1, 2), stride=(1, 2))
    np.testing.assert_allclose(made, fold(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-5)


def test_a_causal_convolution_goes_on_where_it_ended() -> None:
    rng = np.random.default_rng(9)
    x, w, b = normal(rng, 2, 3, 9), normal(rng, 3, 1, 4), normal(rng, 3)
    whole, last = define("CausalConvWithState", [x, w, b], 2, activation="silu")
    first, state = define("CausalConvWithState", [x[:, :, :5], w, b], 2, activation="silu")
    second, end = define("CausalConvWithState", [x[:, :, 5:], w, b, state], 2, activation="silu")
    np.testing.assert_allclose(np.concatenate([first, second], axis=2), whole, rtol=1e-5, atol=1e-6)
    assert_agrees(end, last)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (((1, 3, 8, 8), (4, 4, 3, 3)), {}, "3 channels, but the weights take 4 in each of 1 groups"),
        (((1, 3, 8, 8), (4, 3, 3)), {}, "weights of 3 axes for data of 4"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"group": 2}, "3 channels can't be parted into 2 groups"),
        (((1, 2, 8, 8), (3, 1, 3, 3)), {"group": 2}, "3 output channels can't be parted"),
        (((1, 3, 2, 8), (4, 3, 3, 3)), {}, "a window of 3 elements doesn't fit"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"strides": (0, 1)}, r"strides \(0, 1\) must be 1 or more"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"pads": (1, 1)}, "must be 4 numbers"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"kernel_shape": (5, 5)}, r"kernel_shape \(5, 5\)"),
        (((1, 3, 8, 8), (4, 3, 3, 3)), {"auto_pad": "SAME"}, "auto_pad 'SAME' is none of"),
        (((1, 3, 8, 8), (4, 3, 3, 3), (5,)), {}, r"a bias of \(5,\) for 4 channels"),
        (((3, 8), (4, 3)), {}, "axes are too few"),
    ],
)
def test_what_does_not_fit_is_refused(inputs: Any, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=f"^Conv of .*{message}"):
        OPERATORS["Conv"](*(np.zeros(dims, np.float32) for dims in inputs), **attributes)


def test_names_of_sizes_survive() -> None:
    f32 = np.dtype(np.float32)
    x, w = Fact(("batch", 3, "h", 224), f32), Fact((64, 3, 3, 3), f32)
    (same,) = OPERATORS["Conv"].inferred(x, w, pads=(1, 1, 1, 1))
    assert (same.dims, same.dtype) == (("batch", 64, "h", 224), f32)
    (half,) = OPERATORS["Conv"].inferred(x, w, pads=(1, 1, 1, 1), strides=(2, 2))
    assert half.dims == ("batch", 64, None, 112)
    (twice,) = OPERATORS["ConvTranspose"].inferred(Fact(("n", 3, "h", 7), f32), w, strides=(2, 2))
    assert twice.dims == ("n", 3, None, 15)
    (unknown,) = OPERATORS["Conv"].inferred(x, Fact())
    assert unknown.dims == ("batch", None, None, None)


def test_empty_tensors() -> None:
    (made,) = define("Conv", [np.zeros((0, 3, 8, 8), np.float32), np.zeros((4, 3, 3, 3), np.float32)])
    assert made.shape == (0, 4, 6, 6)
    (made,) = define("Conv", [np.zeros((2, 0, 8, 8), np.float32), np.zeros((4, 0, 3, 3), np.float32)])
    np.testing.assert_array_equal(made, np.zeros((2, 4, 6, 6)))
