"""Definitions on random inputs against ONNX's reference evaluator, and inference against both.

Where the evaluator departs from ONNX's text, ONNX Runtime is asked.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnx", minversion="1.23")

from operators_compared import define, same_as_reference, same_as_runtime
from relayout.graph.operators import OPERATORS, Fact

F32, F64, F16, BF16 = (np.dtype(t) for t in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16))
TOLERANCE = {F32: 1e-5, F64: 1e-6, F16: 5e-3}
"""Attributes are f32 in a model, and so is the evaluator's Erf."""

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the evaluator


def reals(*dims: int, dtype: Any = np.float32, low: float = -3, high: float = 3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(low, high, dims).astype(dtype)


def whole(*dims: int, dtype: Any = np.int32, low: int = -9, high: int = 10, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(low, high, dims).astype(dtype)


def truths(*dims: int, seed: int = 0) -> Any:
    return whole(*dims, low=0, high=2, seed=seed).astype(bool)


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


DIMS = ((), (0,), (5,), (2, 3, 4), (2, 0, 3))

WITHIN = {
    **dict.fromkeys(("Acos", "Asin", "Atanh"), (-0.95, 0.95)),
    **dict.fromkeys(("Acosh",), (1.1, 5)),
    **dict.fromkeys(("Log", "Sqrt"), (0.1, 5)),
    **dict.fromkeys(("Tan",), (-1, 1)),
}

NAMES = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish "
    "IsInf IsNaN LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign "
    "Sqrt Swish Tan Tanh ThresholdedRelu"
)

OF_ONE_NUMBER: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES.split()),
    ("Celu", {"alpha": 0.5}),
    ("Elu", {"alpha": 2.0}),
    ("Selu", {"alpha": 1.5, "gamma": 0.5}),
    ("LeakyRelu", {"alpha": 0.2}),
    ("Swish", {"alpha": 1.7}),
    ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.4}),
    ("ThresholdedRelu", {"alpha": 0.3}),
    ("Gelu", {"approximate": "tanh"}),
]


@pytest.mark.parametrize("dtype", [F32, F64, F16], ids=str)
@pytest.mark.parametrize(("name", "attributes"), OF_ONE_NUMBER, ids=str)
def test_functions_of_one_number(name, attributes, dtype):
    for dims in DIMS[name == "Softsign" :]:  # where the evaluator takes no scalar
        x = reals(*dims, dtype=dtype, low=WITHIN.get(name, (-3, 3))[0], high=WITHIN.get(name, (-3, 3))[1])
        same_as_reference(name, [x], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], **attributes)


@pytest.mark.parametrize(("name", "attributes"), OF_ONE_NUMBER, ids=str)
def test_bf16_is_computed_in_f32_and_rounded_once(name, attributes):
    low, high = WITHIN.get(name, (-3, 3))
    x = reals(100, dtype=BF16, low=low, high=high)
    (got,) = define(name, [x], **attributes)
    (exact,) = define(name, [x.astype(np.float32)], **attributes)
    assert got.dtype == (bool if name.startswith("Is") else BF16)
    np.testing.assert_array_equal(got, exact.astype(got.dtype))


@pytest.mark.parametrize("name", ["Abs", "Neg", "Sign", "Relu", "BitwiseNot"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64], ids=str)
def test_integers_stay_integers(name, dtype):
    same_as_reference(name, [whole(3, 4, dtype=dtype)])


def test_what_no_kernel_may_forget():
    """Infinities, NaN, and arguments whose exponential overflows."""
    x = np.float32([-np.inf, -1e30, -100, -0.0, 0, 100, 1e30, np.inf, np.nan])
    for name in ("Sigmoid", "Softplus", "Tanh", "Erf", "Relu", "IsNaN", "IsInf", "Sign", "Round", "Celu"):
        same_as_reference(name, [x], **({"alpha": 2.0} if name == "Celu" else {}))
    (got,) = define("Gelu", [np.float32([-20, -5, 0, 20])])
    np.testing.assert_allclose(got, [0, -1.4332582e-06, 0, 20], rtol=1e-4)
    for detected in ((0, 1), (1, 0), (0, 0)):
        same_as_reference("IsInf", [x], detect_negative=detected[0], detect_positive=detected[1])


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 2])
def test_along_an_axis(name, axis):
    same_as_reference(name, [reals(2, 3, 4)], axis=axis)
    same_as_reference(name, [reals(2, 0, 4)], axis=axis)
    same_as_runtime(name, [reals(2, 3, 4) * 1000], axis=axis)


def test_masked_softmax_is_nan_where_nothing_is_left():
    x = np.float32([[0, -np.inf], [-np.inf, -np.inf]])
    np.testing.assert_array_equal(define("Softmax", [x])[0], [[1, 0], [np.nan, np.nan]])


PAIRS = (((), ()), ((2, 3), (3,)), ((2, 1, 4), (3, 1)), ((0, 3), (1, 3)), ((5,), ()), ((1,), (2, 2)))


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Pow", "Mod"])
@pytest.mark.parametrize("dtype", [F32, F64, F16, np.int8, np.uint8, np.int32, np.int64], ids=str)
def test_arithmetic(name, dtype):
    for first, second in PAIRS:
        if np.dtype(dtype).kind == "f":
            x, y = reals(*first, dtype=dtype, low=0.5), reals(*second, dtype=dtype, low=0.5, seed=1)
        else:
            low = -9 if np.dtype(dtype).kind == "i" and name != "Pow" else 1
            x = whole(*first, dtype=dtype, low=low)
            y = whole(*second, dtype=dtype, low=low, seed=1)
            y = np.where(y == 0, 2, y).astype(dtype) if name in ("Div", "Mod") else y
        same_as_reference(name, [x, y], rtol=5e-3 if dtype == F16 else 1e-5)


def test_division_of_integers_truncates():
    a, b = np.int32([7, -7, 7, -7, -(2**31)]), np.int32([2, 2, -2, -2, 3])
    np.testing.assert_array_equal(define("Div", [a, b])[0], [3, -3, -3, 3, -715827882])
    np.testing.assert_array_equal(define("Mod", [a, b])[0], [1, 1, -1, -1, 1])
    np.testing.assert_array_equal(define("Mod", [a, b], fmod=1)[0], [1, -1, 1, -1, -2])


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders_of_special_numbers(fmod):
    special = np.float32([-np.inf, -2.5, -1, -0.0, 0, 1, 2.5, np.inf, np.nan])
    same_as_reference("Mod", [special[:, None], special], fmod=fmod)


@pytest.mark.parametrize(
    ("base", "exponent"), [(F32, np.int64), (np.int32, F32), (np.int64, np.int32), (F32, F64), (BF16, BF16)]
)
def test_powers_have_the_type_of_the_base(base, exponent):
    x, y = whole(3, 4, dtype=base, low=1, high=5), whole(4, dtype=exponent, low=0, high=4)
    same_as_reference("Pow", [x, y])


@pytest.mark.parametrize("name", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16, np.uint8, np.int64], ids=str)
def test_comparisons(name, dtype):
    for first, second in PAIRS:
        x, y = whole(*first, dtype=dtype, low=0, high=3), whole(*second, dtype=dtype, low=0, high=3, seed=1)
        same_as_reference(name, [x, y])


def test_comparison_of_text_and_truth():
    same_as_reference("Equal", [np.array(["a", "b"], object), np.array(["a", "c"], object)])
    for name in ("And", "Or", "Xor", "Equal"):
        same_as_reference(name, [truths(2, 3), truths(3, seed=1)])
    same_as_reference("Not", [truths(2, 3)])


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64], ids=str)
def test_bits(dtype):
    x, y = (
        whole(3, 4, dtype=dtype, low=-100 if np.dtype(dtype).kind == "i" else 0, high=100),
        whole(4, dtype=dtype, low=0, high=9),
    )
    for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        same_as_reference(name, [x, y])
    by = np.array([0, 1, np.iinfo(dtype).bits - 1, np.iinfo(dtype).bits], dtype)
    for direction in ("LEFT", "RIGHT"):
        same_as_reference("BitShift", [x, by], direction=direction)


@pytest.mark.parametrize("name", ["Max", "Min", "Sum", "Mean"])
def test_any_number_of_inputs(name):
    several = [reals(2, 3), reals(3, seed=1), reals(2, 1, seed=2), reals(seed=3)]
    for count in range(1, 5):
        same_as_reference(name, several[:count])


def test_where_and_clip():
    same_as_reference("Where", [truths(2, 3), reals(3), reals(4, 1, 1)])
    same_as_reference("Where", [truths(2), np.array(["a", "b"], object), np.array("c", object)])
    for low, high in ((None, None), (-1, None), (None, 1), (-1, 1), (1, -1)):
        ends = [None if x is None else np.array(x, np.float32) for x in (low, high)]
        same_as_reference("Clip", [reals(3, 4), *ends])
    same_as_reference("Clip", [whole(3, 4, dtype=np.int8), np.array(-2, np.int8), np.array(3, np.int8)])
    same_as_reference("PRelu", [reals(2, 3, 4), reals(3, 1)])
    same_as_reference("Shrink", [reals(3, 4)], lambd=1.0, bias=0.5)
    same_as_reference("SwiGLU", [reals(3, 4), reals(3, 4, seed=1)], alpha=1.5)


TYPES = [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23, 25, 26]


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16, np.int32, np.uint8, np.int64, bool], ids=str)
def test_casts(dtype, to):
    x = whole(50, low=0, high=4) if to in (21, 22, 23, 25, 26) else whole(50, low=0, high=120)
    x = x % 2 if to in (25, 26) else x
    same_as_reference("Cast", [x.astype(dtype)], to=to)
    same_as_reference("Cast", [x.astype(dtype)], to=to, saturate=0)


def test_integers_drop_their_high_bits():
    x = np.int32([0, 7, 8, -8, -9, 15, 16, 200, -200, 2**31 - 1])
    for to, bits, signed in (
        (3, 8, True),
        (2, 8, False),
        (22, 4, True),
        (21, 4, False),
        (26, 2, True),
        (25, 2, False),
    ):
        (got,) = define("Cast", [x], to=to)
        low = x.astype(np.int64) % 2**bits
        wanted = np.where(low >= 2 ** (bits - 1), low - 2**bits, low) if signed else low
        np.testing.assert_array_equal(got.astype(np.int64), wanted)


def test_numbers_and_text():
    text = np.array(["1.5", "-2", "1e3", "INF", "-inf", "+INF", "NaN"], object)
    np.testing.assert_array_equal(
        define("Cast", [text], to=1)[0], np.float32([1.5, -2, 1000, np.inf, -np.inf, np.inf, np.nan])
    )
    np.testing.assert_array_equal(
        define("Cast", [np.array(["9007199254740993", "-1"], object)], to=7)[0], ints(9007199254740993, -1)
    )
    np.testing.assert_array_equal(define("Cast", [text[:3]], to=10)[0], np.float16([1.5, -2, 1000]))
    for x in (np.float32([0.1, 314.15926]), np.int64([[-3, 4]]), np.float16([0.1])):
        (there,) = define("Cast", [x], to=8)
        assert there.dtype == object
        assert all(type(one) is str for one in there.reshape(-1))
        (back,) = define("CastLike", [there, x])
        np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize(
    ("mode", "saturate", "codes"),
    [
        ("up", 1, [0, 127, 128, 128, 126, 254, 255, 0, 254]),
        ("down", 1, [0, 127, 127, 127, 126, 254, 255, 0, 254]),
        ("nearest", 1, [0, 127, 127, 128, 126, 254, 255, 0, 254]),
        ("nearest", 0, [255, 127, 127, 128, 126, 255, 255, 0, 255]),
    ],
)
def test_exponents_alone(mode, saturate, codes):
    """Zero, exact powers, ties, infinity, NaN, too small and too large: as ONNX's table has it."""
    x = np.float32([0, 1, 1.25, 1.5, 0.5, np.inf, np.nan, 1e-40, 3e38])
    (got,) = define("Cast", [x], to=24, round_mode=mode, saturate=saturate)
    np.testing.assert_array_equal(got.view(np.uint8), codes)


def test_bits_under_another_type():
    same_as_reference("BitCast", [reals(3, 4)], to=6)
    same_as_reference("BitCast", [reals(dtype=F16)], to=4)
    for to, other in ((22, 21), (21, 22), (26, 25)):
        (x,) = define("Cast", [np.arange(4, dtype=np.uint8)], to=to)
        (y,) = define("BitCast", [x], to=other)
        np.testing.assert_array_equal(define("BitCast", [y], to=to)[0], x)
    (minus,) = define("BitCast", [np.array([15, 8, 7], ml_dtypes.uint4)], to=22)
    np.testing.assert_array_equal(minus.astype(int), [-1, -8, 7])


@pytest.mark.parametrize("name", ["CumSum", "CumProd"])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(name, exclusive, reverse):
    for x in (reals(2, 3, 4), whole(2, 3, 4), whole(2, 0, 4), reals(5)):
        for axis in (-1, 0):
            same_as_reference(name, [x, np.array(axis)], exclusive=exclusive, reverse=reverse)


REDUCTIONS = sorted(name for name in OPERATORS if name.startswith("Reduce"))
FLOATS_ONLY = ("ReduceLogSum", "ReduceLogSumExp")


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [None, (), (0,), (-1, 1), (0, 1, 2)], ids=str)
def test_reductions(name, keepdims, axes):
    given = () if axes is None else (ints(*axes),)
    inputs = [reals(2, 3, 4, low=0.1), reals(2, 3, 4, low=0.1, dtype=F64)]
    if name not in FLOATS_ONLY:
        inputs.append(whole(2, 3, 4, dtype=np.int64))
    for x in inputs:
        for noop in (0, 1):
            same_as_reference(name, [x, *given], keepdims=keepdims, noop_with_empty_axes=noop)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_nothing(name):
    same_as_reference(name, [reals(2, 0, 4), ints(1)])
    same_as_reference(name, [reals(2, 0, 4), ints(1)], keepdims=0)
    if name != "ReduceLogSumExp":  # where the evaluator fails
        same_as_reference(name, [reals(low=0.1)])


def test_reductions_of_special_values():
    for name in ("ReduceMax", "ReduceMin"):
        same_as_reference(name, [truths(3, 4), ints(1)])
        same_as_reference(name, [whole(3, 4, dtype=np.uint8, low=0), ints(1)])
        same_as_reference(name, [np.float32([[np.nan, 1], [np.inf, -np.inf]]), ints(1)])
    (got,) = define("ReduceLogSumExp", [np.float32([1000, 1000])])
    np.testing.assert_allclose(got, [1000 + np.log(2)])
    (got,) = define("ReduceLogSumExp", [np.float32([-np.inf, -np.inf])])
    np.testing.assert_array_equal(got, [-np.inf])
    (got,) = define("ReduceMean", [np.full(100_000, 0.1, F16)])
    assert got[0] == F16.type(0.1)  # f16 alone would stop at 64
    np.testing.assert_array_equal(define("ReduceMean", [np.int32([-3, -4])])[0], [-3])


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_positions(name, axis, keepdims, last):
    for x in (whole(3, 4, 5, low=0, high=3), reals(3, 4, 5), reals(3, 4, 5, dtype=F16)):
        same_as_reference(name, [x], axis=axis, keepdims=keepdims, select_last_index=last)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_largest(largest, axis):
    for x in (whole(3, 4, 5, low=0, high=3, dtype=np.uint32), reals(3, 4, 5)):
        for k in (0, 1, 3):
            same_as_reference("TopK", [x, ints(k)], 2, axis=axis, largest=largest)


def test_what_is_chosen():
    for axis in (None, 0, 1, -1):
        attributes = {} if axis is None else {"axis": axis}
        x = whole(4, 5, low=0, high=2)
        for is_sorted in (0, 1):
            made = define("Unique", [x], 4, whole=False, sorted=is_sorted, **attributes)
            y, first, inverse, counts = made
            along = (lambda a: a.reshape(-1)) if axis is None else (lambda a, n=axis: np.moveaxis(a, n, 0))
            np.testing.assert_array_equal(along(y)[inverse], along(x))
            np.testing.assert_array_equal(along(x)[first], along(y))
            np.testing.assert_array_equal(np.bincount(inverse, minlength=len(first)), counts)
            assert is_sorted or (np.diff(first) > 0).all()
        if axis is not None:
            condition = truths(x.shape[axis] - 1)
            (got,) = define("Compress", [x, condition], whole=False, axis=axis)
            np.testing.assert_array_equal(got, np.compress(condition, x, axis))
    (got,) = define("Compress", [whole(2, 3), truths(6)], whole=False)
    np.testing.assert_array_equal(got, whole(2, 3).reshape(-1)[truths(6)])
    for x in (whole(3, 4, low=0, high=2), truths(5), whole(2, 0)):
        (got,) = define("NonZero", [x], whole=False)
        np.testing.assert_array_equal(got, np.array(np.nonzero(x)))
    assert define("NonZero", [np.array(3)], whole=False)[0].shape == (0, 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((5, 1, 2, 3), (4, 3, 2)),
        ((2, 0), (0, 3)),
    ],
)
def test_products(first, second):
    for dtype in (F32, F64, np.int32, np.uint64):
        a = whole(*first, dtype=dtype, low=0)
        same_as_reference("MatMul", [a, whole(*second, dtype=dtype, low=0, seed=1)])


@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("c", [None, (), (1,), (4,), (2, 1), (2, 4)], ids=str)
def test_affine_maps(turned, c):
    a, b = reals(*((3, 2) if turned[0] else (2, 3))), reals(*((4, 3) if turned[1] else (3, 4)))
    bias = () if c is None else (reals(*c),)
    same_as_reference("Gemm", [a, b, *bias], alpha=0.5, beta=2.0, transA=turned[0], transB=turned[1])
    same_as_reference("Gemm", [a, b, *bias], transA=turned[0], transB=turned[1])


def test_products_of_bytes():
    a, b = whole(2, 5, dtype=np.uint8, low=0, high=256), whole(5, 3, dtype=np.int8, low=-128, high=128)
    for zero_points in ((), (np.array(7, np.uint8),), (None, np.int8([1, -2, 3]))):
        same_as_reference("MatMulInteger", [a, b, *zero_points])
    same_as_runtime("MatMulInteger", [a, b, np.array(9, np.uint8), np.int8([1, -2, 3])])
    (got,) = define("MatMulInteger", [a, b, np.uint8([3, 200])])
    np.testing.assert_array_equal(got, (a.astype(int) - [[3], [200]]) @ b.astype(int))


@pytest.mark.parametrize(
    ("equation", "dims"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij, jk", [(2, 3), (3, 4)]),
        ("ij->ji", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
        ("...ij,jk", [(5, 6, 2, 3), (3, 4)]),
        ("b...,b...->b", [(2, 3, 4), (2, 3, 4)]),
        ("a...->...a", [(2, 3, 4)]),
        ("B G H I D, B G H J D -> B G H I J", [(1, 2, 3, 4, 5), (1, 2, 3, 6, 5)]),
        ("nixw,jyw->nijxy", [(2, 3, 4, 5), (6, 7, 5)]),
        ("i,j,k->kji", [(2,), (3,), (4,)]),
        ("i,i->", [(3,), (3,)]),
        ("bA,aB", [(2, 3), (4, 5)]),
    ],
)
def test_einstein_sums(equation, dims):
    for dtype in (F32, np.int32):
        inputs = [whole(*one, dtype=dtype, seed=i) for i, one in enumerate(dims)]
        same_as_reference("Einsum", inputs, equation=equation)
    named = [Fact(tuple(f"n{n}" for n in one), F32) for one in dims]
    (fact,) = OPERATORS["Einsum"].inferred(*named, equation=equation)
    (result,) = define("Einsum", [whole(*one) for one in dims], equation=equation)
    assert fact.dims == tuple(f"n{n}" for n in result.shape)


def test_determinants_and_triangles():
    same_as_reference("Det", [reals(3, 3)])
    same_as_reference("Det", [reals(2, 4, 3, 3)])
    for x in (reals(4, 5), whole(2, 5, 4), truths(3, 3), reals(2, 0)):
        for k in (-2, 0, 1, 9):
            for upper in (0, 1):
                same_as_reference("Trilu", [x, np.array(k)], upper=upper)


@pytest.mark.parametrize(
    ("dims", "shape", "allowzero"),
    [
        ((2, 3, 4), (4, 6), 0),
        ((2, 3, 4), (0, -1), 0),
        ((2, 3, 4), (-1,), 0),
        ((1,), (), 0),
        ((0, 3), (3, 0), 1),
        ((0, 3), (0, 3), 0),
        ((2, 3, 4), (2, 0, 4, 1), 0),
        ((0, 3), (-1, 3), 0),
    ],
)
def test_reshape(dims, shape, allowzero):
    same_as_reference("Reshape", [reals(*dims), ints(*shape)], allowzero=allowzero)


def test_dims():
    x = reals(2, 1, 3, 1)
    for axis in range(-4, 5):
        same_as_reference("Flatten", [x], axis=axis)
    for axes in ((1,), (-1,), (1, 3), (-3,)):
        same_as_reference("Squeeze", [x, ints(*axes)])
    same_as_reference("Squeeze", [x])
    for axes in ((0,), (-1,), (0, 5), (2, 1), (-1, 0)):
        same_as_reference("Unsqueeze", [x, ints(*axes)])
    for shape in ((2, 5, 3, 1), (3, 1), (1,), (7, 1, 1, 1, 6), (2, 0, 3, 1)):
        same_as_reference("Expand", [x, ints(*shape)])
    for perm in (None, (0, 2, 3, 1), (3, 2, 1, 0)):
        same_as_reference("Transpose", [x], **({} if perm is None else {"perm": perm}))
    for ends in ({}, {"start": 1}, {"end": -1}, {"start": -2, "end": 9}, {"start": 3, "end": 1}):
        same_as_reference("Shape", [x], **ends)
    same_as_reference("Size", [x])
    same_as_reference("Identity", [x])
    same_as_reference("Shape", [reals()])


@pytest.mark.parametrize(
    "slices",
    [
        [(1,), (2,)],
        [(0, 1), (9, -1), (0, 2), (1, 2)],
        [(-1,), (-9,), (2,), (-1,)],
        [(-1,), (-(2**63),), (-1,), (-2,)],
        [(1,), (2**63 - 1,), (1,), (2,)],
        [(3,), (1,), (2,)],
        [(9,), (0,), (2,), (-3,)],
        [(5, 0), (9, 0), (1, 0)],
    ],
)
def test_slices(slices):
    same_as_reference("Slice", [reals(4, 5, 6), *(ints(*one) for one in slices)])


def test_slices_backwards_are_clamped_to_the_first_element():
    """Where Python would have nothing: ONNX clamps a start to what there is."""
    ends = [ints(-9), ints(-20), ints(0), ints(-1)]
    same_as_runtime("Slice", [reals(4), *ends])
    np.testing.assert_array_equal(define("Slice", [reals(4), *ends])[0], reals(4)[:1])


def test_joined_and_cut():
    for axis in (0, -1, 1):
        several = [reals(2, 3, 4), reals(2, 3, 4, seed=1)]
        same_as_reference("Concat", several, axis=axis)
        same_as_reference("Concat", several[:1], axis=axis)
    same_as_reference("Concat", [whole(2), whole(0), whole(3)], axis=0)
    for count, axis in ((2, 0), (3, 1), (7, -1), (4, -1)):
        same_as_reference("Split", [reals(2, 3, 7)], count, num_outputs=count, axis=axis)
    same_as_reference("Split", [reals(2, 7), ints(3, 0, 4)], 3, axis=1)
    for repeats in ((2, 1), (0, 3), (1, 1)):
        same_as_reference("Tile", [reals(2, 3), ints(*repeats)])


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_padding(mode):
    for dtype in (F32, np.int32, bool):
        x = whole(4, 5, low=0).astype(dtype)
        for pads in ((1, 2, 3, 1), (0, 0, 0, 0), (3, 4, 3, 0)):
            same_as_reference("Pad", [x, ints(*pads)], mode=mode)
        same_as_reference("Pad", [x, ints(2, 1), None, ints(-1)], mode=mode)
        same_as_reference("Pad", [x, ints(2, 1), x[0, 0], ints(0)], mode=mode)
    same_as_runtime("Pad", [reals(4, 5), ints(-1, 2, 1, -2)], mode=mode)


def test_padding_of_text():
    (got,) = define("Pad", [np.array(["a"], object), ints(1, 0)])
    assert got.tolist() == ["", "a"]


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_and_channels(mode):
    x = reals(2, 18, 2, 3)
    same_as_reference("DepthToSpace", [x], blocksize=3, mode=mode)
    (there,) = define("DepthToSpace", [x], blocksize=3, mode=mode)
    same_as_reference("SpaceToDepth", [there], blocksize=3, mode=mode)
    np.testing.assert_array_equal(define("SpaceToDepth", [there], blocksize=3, mode=mode)[0], x)


def test_rearrangements():
    for batch, time in ((0, 1), (1, 0)):
        x = reals(4, 4, 3)
        same_as_reference("ReverseSequence", [x, ints(0, 1, 3, 4)], batch_axis=batch, time_axis=time)
    for shape, axes in (((3, 9), (0, 1)), ((4, 4), (-1, 0)), ((5,), (1,)), ((6, 7), None)):
        attributes = {} if axes is None else {"axes": axes}
        same_as_reference("CenterCropPad", [reals(6, 7), ints(*shape)], **attributes)
    for mode in ("linear", "circular"):
        first = ints(0, 2) if mode == "linear" else ints(3, 7)
        same_as_reference("TensorScatter", [reals(2, 3, 5, 4), reals(2, 3, 3, 4, seed=1), first], mode=mode)
        same_as_reference("TensorScatter", [reals(2, 5, 4), reals(2, 3, 4, seed=1), first], mode=mode, axis=1)


def test_gathering():
    x = reals(3, 4, 5)
    for axis in (0, 1, -1):
        for dims in ((), (2,), (2, 3), (0,)):
            same_as_reference("Gather", [x, whole(*dims, low=-3, high=3, dtype=np.int64)], axis=axis)
        axis %= 3  # which the evaluator's GatherElements wants
        dims = tuple(2 if i == axis else n for i, n in enumerate(x.shape))
        indices = whole(*dims, low=-3, high=3)
        same_as_reference("GatherElements", [x, indices], axis=axis)
        updates = reals(*dims, seed=1)
        for reduction in ("add", "mul", "min", "max"):
            same_as_reference("ScatterElements", [x, indices, updates], axis=axis, reduction=reduction)
        place = whole(*dims, low=0, high=1)
        place = place[(slice(None),) * (axis) + (slice(0, 1),)]
        same_as_reference("ScatterElements", [x, place, reals(*place.shape, seed=2)], axis=axis)
    for batch, dims in ((0, (2, 2)), (0, (1,)), (0, (2, 3)), (1, (3, 1)), (1, (3, 6, 2)), (2, (3, 4, 1))):
        indices = whole(*dims, low=-3, high=3, dtype=np.int64)
        same_as_reference("GatherND", [x, indices], batch_dims=batch)
    for dims in ((2, 1), (2, 2), (1, 3)):
        indices = np.unique(whole(*dims, low=0, high=3, dtype=np.int64), axis=0)
        updates = reals(len(indices), *x.shape[dims[-1] :], seed=1)
        for reduction in ("none", "add", "mul", "min", "max"):
            same_as_reference("ScatterND", [x, indices, updates], reduction=reduction)


def test_smaller_indices_gather_from_the_front():
    same_as_runtime("GatherElements", [reals(3, 4), ints(1, 2).reshape(1, 2)], axis=0)


def test_made_from_little():
    for dtype in (F32, F64, np.int16, np.int32, np.int64):
        for start, limit, delta in ((3, 9, 3), (10, 4, -2), (0, 0, 1), (5, 0, 1), (0, 10, 3)):
            ends = [np.array(x, dtype) for x in (start, limit, delta)]
            same_as_reference("Range", ends)
    same_as_reference("Range", [np.array(x, F16) for x in (0, 1, 0.1)])
    far = [np.array(x) for x in (0, 2**62 + 1, 2**52)]
    assert define("Range", far)[0].shape == (1025,)  # one less if computed in f64
    huge = [np.array(x) for x in (2**62, 2**62 + 3, 2)]
    np.testing.assert_array_equal(define("Range", huge)[0], ints(2**62, 2**62 + 2))
    for k in (-1, 0, 2):
        same_as_reference("EyeLike", [whole(3, 4)], k=k)
        same_as_reference("EyeLike", [reals(4, 3)], k=k, dtype=7)
    for axis in (-1, 0, 1, 2):
        indices = whole(2, 3, low=-6, high=6, dtype=np.int64)
        same_as_reference("OneHot", [indices, np.array(4), np.float32([-1, 2])], axis=axis)
    (shape, value) = (ints(2, 0, 3), np.array([5], np.int32))
    np.testing.assert_array_equal(
        define("ConstantOfShape", [shape], value=value)[0], np.full((2, 0, 3), 5, np.int32)
    )
    assert define("ConstantOfShape", [ints()])[0].shape == ()
    for name, given, dims, dtype in (
        ("value_float", 0.5, (), F32),
        ("value_floats", (0.5, 1), (2,), F32),
        ("value_int", 3, (), np.dtype(np.int64)),
        ("value_ints", (), (0,), np.dtype(np.int64)),
        ("value_string", "ab", (), np.dtype(object)),
        ("value_strings", ("ab", "c"), (2,), np.dtype(object)),
    ):
        (got,) = define("Constant", [], **{name: given})
        assert (got.shape, got.dtype) == (dims, dtype)
