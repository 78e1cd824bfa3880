"""Definitions of quantisation against ONNX's reference evaluator, ONNX Runtime and arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

import ml_dtypes

from operators_compared import define, same_as_reference, same_as_runtime
from relayout import LayoutError
from relayout.graph.operators import OPERATORS
from strategies import tried

INTEGERS = [
    np.uint8,
    np.int8,
    np.uint16,
    np.int16,
    ml_dtypes.uint4,
    ml_dtypes.int4,
    ml_dtypes.uint2,
    ml_dtypes.int2,
]
FLOATS = [
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz),
    ml_dtypes.float4_e2m1fn,
]


def normal(*dims: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


def zeros(scale: np.ndarray, dtype: Any, spread: int = 1) -> np.ndarray:
    """Zero points: integers near 0, which is all that floats have."""
    drawn = np.random.default_rng(1).integers(0, spread + 1, scale.shape)
    return np.asarray(drawn if dtype in INTEGERS else drawn * 0).astype(dtype)


def granularities(rank: int) -> list[tuple[tuple[int, ...], dict[str, int]]]:
    """Dims of scales for a tensor of 3 x 4 x 6."""
    return [
        ((), {}),
        ((4,), {"axis": 1}),
        ((6,), {"axis": -1}),
        ((3, 2, 6), {"axis": 1, "block_size": 2}),
        ((3, 4, 2), {"axis": 2, "block_size": 4}),
    ]


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize(("dims", "attributes"), granularities(3))
def test_granularities_are_the_references(
    dtype: Any, dims: tuple[int, ...], attributes: dict[str, int]
) -> None:
    x = normal(3, 4, 6) * 20
    scale = np.asarray(np.random.default_rng(2).uniform(0.1, 2, dims)).astype(np.float32)
    inputs = [x, scale, zeros(scale, dtype)]
    same_as_reference("QuantizeLinear", inputs, **attributes)
    (made,) = define("QuantizeLinear", inputs, **attributes)
    same_as_reference("DequantizeLinear", [made, *inputs[1:]], rtol=1e-6, **attributes)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantised_as_by_the_runtime(dtype: Any) -> None:
    x = normal(3, 4, 6) * 20
    scale = np.random.default_rng(2).uniform(0.01, 1, 4).astype(np.float32)
    inputs = [x, scale, zeros(scale, dtype, 3)]
    same_as_runtime("QuantizeLinear", inputs, opset=21, axis=1)
    (made,) = define("QuantizeLinear", inputs, axis=1)
    same_as_runtime("DequantizeLinear", [made, *inputs[1:]], opset=21, axis=1)


@settings(max_examples=tried(60), deadline=None)
@given(st.floats(-1e4, 1e4, width=32), st.floats(0.0625, 64, width=32), st.integers(-100, 100))
def test_a_number_that_fits_comes_back_within_half_a_step(x: float, scale: float, zero: int) -> None:
    inputs = [np.float32([x]), np.asarray(scale, np.float32), np.asarray(zero, np.int16)]
    (made,) = define("QuantizeLinear", inputs)
    if -32768 < made[0] < 32767:
        (back,) = define("DequantizeLinear", [made, *inputs[1:]])
        assert abs(float(back[0]) - x) <= scale / 2 * (1 + 1e-5) + abs(x) * 1e-6
    else:
        assert abs(x / scale + zero) >= 32766


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("saturate", [0, 1])
def test_small_floats_saturate_or_not(dtype: Any, saturate: int) -> None:
    x = np.float32([0, 1, -1, 1e30, -1e30, np.inf, -np.inf, np.nan, 1e-30])
    if dtype is ml_dtypes.float4_e2m1fn:
        x = x[:5]  # it has no way to say that something is no number
    inputs = [x, np.asarray(1, np.float32), np.zeros((), dtype)]
    same_as_reference("QuantizeLinear", inputs, saturate=saturate)
    (made,) = define("QuantizeLinear", inputs, saturate=saturate)
    if saturate:
        assert made[3].astype(np.float32) == ml_dtypes.finfo(dtype).max


def test_ties_go_to_the_even_number() -> None:
    x = np.float32([-1.5, -0.5, 0.5, 1.5, 2.5])
    (made,) = define("QuantizeLinear", [x, np.asarray(1, np.float32), np.asarray(10, np.uint8)])
    np.testing.assert_array_equal(made, [8, 10, 10, 12, 12])
    (made,) = define("QuantizeLinear", [x, np.asarray(1, np.float32)])
    assert made.dtype == np.uint8
    np.testing.assert_array_equal(made, [0, 0, 0, 2, 2])


def test_data_types_that_attributes_name() -> None:
    x, scale = np.float32([1, 2]), np.asarray(0.5, np.float32)
    assert define("QuantizeLinear", [x, scale], output_dtype=22)[0].dtype == ml_dtypes.int4
    assert define("DequantizeLinear", [np.int8([1]), scale], output_dtype=10)[0].dtype == np.float16
    exponent = np.asarray(2, ml_dtypes.float8_e8m0fnu)
    same_as_reference("QuantizeLinear", [x, exponent, np.zeros((), np.int8)], precision=1)
    half = np.asarray(0.1, np.float16)
    same_as_reference("QuantizeLinear", [x.astype(np.float16), half, np.zeros((), np.int8)])


def test_whole_numbers_of_32_bits_come_back_exactly() -> None:
    x = np.array([2**24 + 1, -(2**31), 2**31 - 1], np.int32)
    (made,) = define("DequantizeLinear", [x, np.asarray(2, np.float32)])
    np.testing.assert_array_equal(made, x.astype(np.float32) * 2)


@pytest.mark.parametrize(
    "x", [normal(3, 4), np.abs(normal(3, 4)), -np.abs(normal(3, 4)), np.zeros((2, 2), np.float32)]
)
def test_scales_that_data_choose(x: np.ndarray) -> None:
    if x.any():
        same_as_runtime("DynamicQuantizeLinear", [x], 3)
    same_as_reference("DynamicQuantizeLinear", [x], 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("dims", [((4, 5), (5, 3)), ((2, 4, 5), (5, 3)), ((2, 4, 5), (2, 5, 3))])
def test_products_are_the_runtimes(dtype: Any, dims: Any) -> None:
    rng = np.random.default_rng(5)
    limits = np.iinfo(dtype)
    a, b = (rng.integers(limits.min, limits.max + 1, one).astype(dtype) for one in dims)
    zero = [np.asarray(rng.integers(0, 9), dtype) for _ in range(3)]
    scales = [np.asarray(s, np.float32) for s in (0.02, 0.03, 0.25)]
    inputs = [a, scales[0], zero[0], b, scales[1], zero[1], scales[2], zero[2]]
    same_as_runtime("QLinearMatMul", inputs)


def test_rows_and_columns_may_have_scales() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.integers(0, 255, (4, 5), np.uint8), rng.integers(0, 255, (5, 3), np.uint8)
    left, right = rng.uniform(0.01, 0.02, 4).astype(np.float32), rng.uniform(0.01, 0.02, 3).astype(np.float32)
    rows, columns = rng.integers(0, 9, 4).astype(np.uint8), rng.integers(0, 9, 3).astype(np.uint8)
    y_scale, y_zero = np.asarray(0.3, np.float32), np.asarray(3, np.uint8)
    (made,) = define("QLinearMatMul", [a, left, rows, b, right, columns, y_scale, y_zero])
    real = ((a - rows[:, None].astype(float)) * left[:, None]) @ ((b - columns.astype(float)) * right)
    np.testing.assert_array_equal(made, np.clip(np.rint(real / 0.3) + 3, 0, 255).astype(np.uint8))


def test_what_does_not_fit_is_refused() -> None:
    x, one = normal(3, 4), np.asarray(1, np.float32)
    for inputs, attributes, message in (
        ((x, np.ones(3, np.float32)), {}, r"a scale of \(3,\) for 4 indices of axis 1"),
        ((x, np.ones(3, np.float32)), {"axis": 5}, "axis 5 is outside of -2 to 1"),
        ((x, np.ones((3, 3), np.float32)), {"block_size": 2}, r"a scale of \(3, 3\) for blocks of 2"),
        (
            (x, one, np.zeros((), np.int8)),
            {"output_dtype": 2},
            "output_dtype uint8, but a zero point of int8",
        ),
        ((x, one), {"output_dtype": 99}, "99 is no data type of ONNX"),
    ):
        with pytest.raises(LayoutError, match=message):
            OPERATORS["QuantizeLinear"](*inputs, **attributes)


def test_empty_tensors() -> None:
    x = np.zeros((0, 4), np.float32)
    (made,) = define("QuantizeLinear", [x, np.ones(4, np.float32)])
    assert made.shape == (0, 4)
    made, scale, zero = define("DynamicQuantizeLinear", [x], 3)
    assert (made.shape, scale.shape, int(zero)) == ((0, 4), (), 0)
