"""Definitions of pooling against torch, ONNX Runtime and plain NumPy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

import ml_dtypes

from operators_compared import define, same_as_reference, same_as_runtime
from relayout import LayoutError
from relayout.graph import Graph, Node, Value
from relayout.graph.operators import OPERATORS, Fact
from strategies import tried


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    axes = draw(st.integers(1, 3))
    kernel = draw(st.tuples(*[st.integers(1, 4)] * axes))
    half = [draw(st.integers(0, k // 2)) for k in kernel]
    dilations = draw(st.tuples(*[st.integers(1, 2)] * axes))
    strides = draw(st.tuples(*[st.integers(1, 3)] * axes))
    ceil = draw(st.integers(0, 1))
    less = [(s - 1) * ceil for s in strides]  # rounded up, a size has a window that reaches over the end
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": (*half, *half),
        "ceil_mode": ceil,
        "sizes": [
            max(1, (k - 1) * d + 1 + draw(st.integers(-n, 6)))
            for k, d, n in zip(kernel, dilations, less, strict=True)
        ],
        "ties": draw(st.booleans()),
    }


def data(one: dict[str, Any]) -> np.ndarray:
    rng = np.random.default_rng(len(one["kernel_shape"]))
    dims = (2, 3, *one.pop("sizes"))
    ties = one.pop("ties")
    return rng.integers(-2, 3, dims).astype(np.float32) if ties else rng.standard_normal(dims, np.float32)


@settings(max_examples=tried(80), deadline=None)
@given(pools())
def test_maxima_and_their_places_are_torchs(one: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    x = data(one)
    axes = x.ndim - 2
    values, places = define("MaxPool", [x], 2, **one)
    expected, where = getattr(torch.nn.functional, f"max_pool{axes}d")(
        torch.from_numpy(x),
        one["kernel_shape"],
        one["strides"],
        one["pads"][:axes],
        one["dilations"],
        bool(one["ceil_mode"]),
        return_indices=True,
    )
    np.testing.assert_array_equal(values, expected.numpy())
    plane = np.arange(6).reshape(2, 3, *(1,) * axes) * np.prod(x.shape[2:])  # torch counts within planes
    np.testing.assert_array_equal(places, where.numpy() + plane)
    np.testing.assert_array_equal(x.reshape(-1)[places], values)


@settings(max_examples=tried(80), deadline=None)
@given(pools(), st.booleans())
def test_averages_are_torchs(one: dict[str, Any], count: bool) -> None:
    torch = pytest.importorskip("torch")
    one.pop("dilations")
    x = data(one)
    axes = x.ndim - 2
    assume(axes < 3 or all(n >= k for n, k in zip(x.shape[2:], one["kernel_shape"], strict=True)))  # in torch
    (made,) = define("AveragePool", [x], count_include_pad=int(count), **one)
    expected = getattr(torch.nn.functional, f"avg_pool{axes}d")(
        torch.from_numpy(x),
        one["kernel_shape"],
        one["strides"],
        one["pads"][:axes],
        bool(one["ceil_mode"]),
        count,
    )
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("size", "kernel", "stride"), [(1, 2, 2), (2, 3, 2), (3, 5, 3)])
def test_a_window_that_reaches_over_the_end_is_planned(
    name: str, size: int, kernel: int, stride: int
) -> None:
    """A size that is rounded up has one; the last pooling of a network that is given small pictures."""
    x = np.random.default_rng(size).standard_normal((2, 3, size, 4), np.float32)
    how = {"kernel_shape": (kernel, 2), "strides": (stride, 2), "ceil_mode": 1}
    same_as_runtime(name, [x], **how)
    node = Node(name, ("x",), ("y",), how)
    (made,) = Graph((Value("x", x.shape, x.dtype),), ("y",), (node,)).compile()(x)
    np.testing.assert_allclose(made, define(name, [x], **how)[0], rtol=1e-6)


@settings(max_examples=tried(40), deadline=None)
@given(pools(), st.integers(1, 3))
def test_norms_are_those_of_each_window(one: dict[str, Any], p: int) -> None:
    """Window by window, in plain NumPy; dilated averages too, which torch has not."""
    x = data(one)
    (norms,) = define("LpPool", [x], p=p, **one)
    (means,) = define("AveragePool", [x], **one)
    for place in product(*map(range, norms.shape[2:])):
        inside = []
        for axis, at in enumerate(place):
            start = at * one["strides"][axis] - one["pads"][axis]
            taps = start + np.arange(one["kernel_shape"][axis]) * one["dilations"][axis]
            inside.append(taps[(taps >= 0) & (taps < x.shape[2 + axis])])
        window = x[(slice(None), slice(None), *np.ix_(*inside))].reshape(2, 3, -1)
        at_place = (slice(None), slice(None), *place)
        expected = (np.abs(window) ** p).sum(axis=2) ** (1 / p)
        np.testing.assert_allclose(norms[at_place], expected, rtol=1e-4, atol=1e-5)
        if window.shape[2]:
            np.testing.assert_allclose(means[at_place], window.mean(axis=2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("kernel", "stride"), [((3, 2), (1, 1)), ((2, 3), (2, 3)), ((3, 4), (3, 2))])
def test_automatic_padding_is_the_runtimes(auto_pad: str, kernel: Any, stride: Any) -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 9, 10)).astype(np.float32)
    attributes = {"auto_pad": auto_pad, "kernel_shape": kernel, "strides": stride}
    same_as_runtime("MaxPool", [x], 2, **attributes)
    for count in (0, 1):
        same_as_runtime("AveragePool", [x], count_include_pad=count, **attributes)
    same_as_runtime("LpPool", [x], p=2, **attributes)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_places_in_column_major_order_are_the_runtimes(axes: int) -> None:
    x = np.random.default_rng(4).standard_normal((2, 3, *(5, 6, 7)[:axes])).astype(np.float32)
    attributes = {"kernel_shape": (2,) * axes, "storage_order": 1}
    (row, column) = (define("MaxPool", [x], 2, **(attributes | {"storage_order": n}))[1] for n in (0, 1))
    planes, inner = np.divmod(row, np.prod(x.shape[2:]))
    unraveled = np.unravel_index(inner, x.shape[2:])
    flat = np.ravel_multi_index(unraveled, x.shape[2:], order="F")
    np.testing.assert_array_equal(column, flat + planes * np.prod(x.shape[2:]))
    if axes == 2:
        same_as_runtime("MaxPool", [x], 2, **attributes)


def test_unpooling_puts_maxima_back() -> None:
    x = np.random.default_rng(5).standard_normal((2, 3, 6, 8)).astype(np.float32)
    attributes = {"kernel_shape": (2, 2), "strides": (2, 2)}
    values, places = define("MaxPool", [x], 2, **attributes)
    (back,) = define("MaxUnpool", [values, places], **attributes)
    assert back.shape == x.shape
    (again,) = define("MaxPool", [np.where(back == 0, -np.inf, back).astype(np.float32)], **attributes)
    np.testing.assert_array_equal(again, values)
    same_as_runtime("MaxUnpool", [values, places], **attributes)
    (larger,) = define("MaxUnpool", [values, places, np.array([2, 3, 7, 9])], **attributes)
    np.testing.assert_array_equal(larger[:, :, :6, :8], back)
    with pytest.raises(LayoutError, match="must be 0 to"):
        OPERATORS["MaxUnpool"](values, places + 288, **attributes)


def test_regions_are_pooled_as_by_the_runtime() -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((2, 3, 12, 16)).astype(np.float32)
    corners = np.sort(rng.uniform(0, 24, (5, 2, 2)), axis=1).reshape(5, 4)
    rois = np.concatenate([rng.integers(0, 2, (5, 1)), corners], axis=1).astype(np.float32)
    same_as_runtime("MaxRoiPool", [x, rois], opset=21, pooled_shape=(3, 2), spatial_scale=0.5)
    with pytest.raises(LayoutError, match="region 0 is of image 9; there are 2"):
        OPERATORS["MaxRoiPool"](x, np.array([[9, 0, 0, 1, 1]], np.float32), pooled_shape=(1, 1))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_of_other_types(dtype: Any) -> None:
    x = np.random.default_rng(7).standard_normal((1, 2, 6, 6)).astype(dtype)
    for name in ("MaxPool", "AveragePool", "LpPool"):
        (made,) = define(name, [x], kernel_shape=(3, 3))
        assert made.dtype == dtype
    for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        (made,) = define(name, [x])
        assert (made.dtype, made.shape) == (dtype, (1, 2, 1, 1))


def test_bytes_have_maxima() -> None:
    x = np.random.default_rng(8).integers(-128, 128, (1, 2, 6, 6)).astype(np.int8)
    same_as_runtime("MaxPool", [x], kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    (made,) = define(
        "MaxPool", [np.full((1, 1, 2, 2), -128, np.int8)], kernel_shape=(3, 3), pads=(1, 1, 1, 1)
    )
    assert (made == -128).all()


def test_global_norms() -> None:
    x = np.random.default_rng(9).standard_normal((2, 3, 5, 6)).astype(np.float32)
    same_as_runtime("GlobalLpPool", [x], opset=21, p=3)
    same_as_reference("GlobalAveragePool", [x])
    same_as_reference("GlobalMaxPool", [x])


def test_not_a_number_is_the_largest() -> None:
    x = np.zeros((1, 1, 4), np.float32)
    x[0, 0, 1] = np.nan
    values, places = define("MaxPool", [x], 2, kernel_shape=(3,), pads=(1, 1))
    np.testing.assert_array_equal(values, [[[np.nan, np.nan, np.nan, 0]]])
    np.testing.assert_array_equal(places, [[[1, 1, 1, 2]]])


def test_what_does_not_fit_is_refused() -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    for attributes, message in (
        ({"kernel_shape": (3,)}, "must be 2 numbers"),
        ({"kernel_shape": (5, 5)}, "a window of 5 elements doesn't fit 0 \\+ 4 \\+ 0"),
        ({"kernel_shape": (2, 2), "pads": (-1, 0, 0, 0)}, "numbers of 0 or more"),
        ({}, "needs the attribute 'kernel_shape'"),
    ):
        with pytest.raises(LayoutError, match=message):
            OPERATORS["MaxPool"](x, **attributes)
    with pytest.raises(LayoutError, match="no norm of order 0"):
        OPERATORS["LpPool"](x, kernel_shape=(2, 2), p=0)


def test_names_of_sizes_survive() -> None:
    x = Fact(("n", 3, "h", 8), np.dtype(np.float32))
    values, places = OPERATORS["MaxPool"].inferred(x, outputs=2, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    assert values.dims == places.dims == ("n", 3, "h", 8)
    assert places.dtype == np.int64
    (pooled,) = OPERATORS["GlobalAveragePool"].inferred(x)
    assert pooled.dims == ("n", 3, 1, 1)


@pytest.mark.parametrize("dims", [(0, 3, 6, 6), (2, 0, 6, 6), (2, 3, 0, 6)])
def test_empty_tensors(dims: Any) -> None:
    values, places = define("MaxPool", [np.zeros(dims, np.float32)], 2, kernel_shape=(2, 2))
    assert values.shape == places.shape == (*dims[:2], max(dims[2] - 1, 0), 5)
