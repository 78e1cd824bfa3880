"""What is computed element by element: functions, arithmetic, comparisons, choices, conversions.

PyTorch chooses a data type for the operands first and then computes; a node of the graph wants operands that
have it already. So operands are cast to the type of the result, and to the common one in comparisons.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from relayout.graph.graph import Value
from relayout.importers.torch.call import Call, Operand, dims_of, promoted, rank
from relayout.importers.torch.operators.table import TABLE, aten

BOOL: Final = np.dtype(np.bool_)

SAME_NAME: Final = """
    abs acos acosh asin asinh atan atanh ceil cos cosh erf exp floor log mish neg reciprocal relu round selu
    sigmoid sign sin sinh sqrt tan tanh
"""
UNARY: Final = {
    **{name: name.capitalize() for name in SAME_NAME.split()},
    "hardswish": "HardSwish",
    "silu": "Swish",
}
"""Functions of one operand that the graph's operators have too."""

BINARY: Final = {
    "mul.Tensor": "Mul",
    "mul.Scalar": "Mul",
    "div.Tensor": "Div",
    "div.Scalar": "Div",
    "maximum.default": "Max",
    "minimum.default": "Min",
    "pow.Tensor_Tensor": "Pow",
    "pow.Tensor_Scalar": "Pow",
    "pow.Scalar": "Pow",
}
COMPARED: Final = {"gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual", "eq": "Equal"}
LOGICAL: Final = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
BITWISE: Final = {"and": "And", "or": "Or", "xor": "Xor"}


def _unary(operator: str) -> Any:
    def translate(call: Call, x: Value) -> Value:
        return call.emit(operator, call.cast(x, call.dtype))

    return translate


def _binary(operator: str) -> Any:
    def translate(call: Call, x: Operand, y: Operand) -> Value:
        name = {"Mul": "And", "Max": "Or", "Min": "And"}[operator] if call.dtype == BOOL else operator
        return call.emit(name, call.cast(x, call.dtype), call.cast(y, call.dtype))

    return translate


def _compared(operator: str) -> Any:
    def translate(call: Call, x: Operand, y: Operand) -> Value:
        common = promoted(x, y)
        if common == BOOL and operator != "Equal":  # truth values have an order here only
            common = np.dtype(np.int32)
        return call.emit(operator, call.cast(x, common), call.cast(y, common))

    return translate


def _logical(operator: str) -> Any:
    def translate(call: Call, x: Value, y: Value) -> Value:
        return call.emit(operator, call.cast(x, BOOL), call.cast(y, BOOL))

    return translate


def _bitwise(operator: str) -> Any:
    def translate(call: Call, x: Operand, y: Operand) -> Value:
        name = operator if call.dtype == BOOL else f"Bitwise{operator}"
        return call.emit(name, call.cast(x, call.dtype), call.cast(y, call.dtype))

    return translate


TABLE.update((f"aten.{name}.default", _unary(operator)) for name, operator in UNARY.items())
TABLE.update((f"aten.{name}", _binary(operator)) for name, operator in BINARY.items())
TABLE.update(
    (f"aten.{name}.{kind}", _compared(operator))
    for name, operator in COMPARED.items()
    for kind in ("Tensor", "Scalar")
)
TABLE.update((f"aten.{name}.default", _logical(operator)) for name, operator in LOGICAL.items())
TABLE.update(
    (f"aten.{spelling}.{kind}", _bitwise(operator))
    for name, operator in BITWISE.items()
    for spelling in (f"bitwise_{name}", f"__{name}__")
    for kind in ("Tensor", "Scalar")
)


@aten("ne.Tensor", "ne.Scalar")
def not_equal(call: Call, x: Operand, y: Operand) -> Value:
    common = promoted(x, y)
    return call.emit("Not", call.emit("Equal", call.cast(x, common), call.cast(y, common)))


@aten("logical_not.default")
def logical_not(call: Call, x: Value) -> Value:
    return call.emit("Not", call.cast(x, BOOL))


@aten("bitwise_not.default")
def bitwise_not(call: Call, x: Value) -> Value:
    return call.emit("Not" if x.dtype == BOOL else "BitwiseNot", x)


@aten("isnan.default")
def is_nan(call: Call, x: Value) -> Value:
    return call.emit("IsNaN", x) if _floats(x) else call.emit("Not", call.emit("Equal", x, x))


@aten("isinf.default")
def is_inf(call: Call, x: Value) -> Value:
    return call.emit("IsInf", x) if _floats(x) else call.emit("Not", call.emit("Equal", x, x))


@aten("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def add(call: Call, x: Operand, y: Operand, alpha: Operand = 1) -> Value:
    operator = call.operator.split(".")[1].capitalize()
    return _sum(call, operator, x, y, alpha)


@aten("rsub.Tensor", "rsub.Scalar")
def reversed_sub(call: Call, x: Operand, y: Operand, alpha: Operand = 1) -> Value:
    return _sum(call, "Sub", y, x, alpha)


def _sum(call: Call, operator: str, x: Operand, y: Operand, alpha: Operand) -> Value:
    dtype = call.dtype
    if dtype == BOOL:
        return call.emit("Or", call.cast(x, BOOL), call.cast(y, BOOL))
    second = call.cast(y, dtype)
    if isinstance(alpha, Value) or alpha != 1:
        second = call.emit("Mul", second, call.cast(alpha, dtype))
    return call.emit(operator, call.cast(x, dtype), second)


@aten("div.Tensor_mode", "div.Scalar_mode")
def rounded_div(call: Call, x: Operand, y: Operand, mode: str | None) -> Value:
    dtype = call.dtype
    first, second = call.cast(x, dtype), call.cast(y, dtype)
    if dtype.kind in "iu" and mode == "floor":  # Mod has the sign of the divisor, so nothing is left to round
        first = call.emit("Sub", first, call.emit("Mod", first, second))
    quotient = call.emit("Div", first, second)
    if mode is None or dtype.kind in "iu":
        return quotient
    return call.emit("Floor", quotient) if mode == "floor" else _trunc(call, quotient)


@aten("floor_divide.default", "floor_divide.Scalar")
def floor_divide(call: Call, x: Operand, y: Operand) -> Value:
    return rounded_div(call, x, y, "floor")


@aten("trunc.default")
def trunc(call: Call, x: Value) -> Value:
    return x if not _floats(x) else _trunc(call, x)


def _trunc(call: Call, x: Value) -> Value:
    return call.emit("Mul", call.emit("Sign", x), call.emit("Floor", call.emit("Abs", x)))


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(call: Call, x: Operand, y: Operand) -> Value:
    first, second = call.cast(x, call.dtype), call.cast(y, call.dtype)
    if call.dtype.kind in "iu":
        return call.emit("Mod", first, second)
    whole = call.emit("Floor", call.emit("Div", first, second))
    return call.emit("Sub", first, call.emit("Mul", whole, second))


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(call: Call, x: Operand, y: Operand) -> Value:
    return call.emit("Mod", call.cast(x, call.dtype), call.cast(y, call.dtype), fmod=1)


@aten("square.default")
def square(call: Call, x: Value) -> Value:
    return call.emit("Mul", x, x)


@aten("rsqrt.default")
def rsqrt(call: Call, x: Value) -> Value:
    return call.emit("Reciprocal", call.emit("Sqrt", call.cast(x, call.dtype)))


@aten("log1p.default")
def log1p(call: Call, x: Value) -> Value:
    dtype = call.dtype
    return call.emit("Log", call.emit("Add", call.cast(x, dtype), call.constant(1, dtype)))


@aten("expm1.default")
def expm1(call: Call, x: Value) -> Value:
    dtype = call.dtype
    return call.emit("Sub", call.emit("Exp", call.cast(x, dtype)), call.constant(1, dtype))


@aten("log2.default", "log10.default")
def log_to_base(call: Call, x: Value) -> Value:
    base = 2 if "log2" in call.operator else 10
    log = call.emit("Log", call.cast(x, call.dtype))
    return call.emit("Mul", log, call.constant(1 / math.log(base), call.dtype))


@aten("exp2.default")
def exp2(call: Call, x: Value) -> Value:
    return call.emit("Pow", call.constant(2, call.dtype), call.cast(x, call.dtype))


@aten("erfc.default")
def erfc(call: Call, x: Value) -> Value:
    return call.emit("Sub", call.constant(1, call.dtype), call.emit("Erf", call.cast(x, call.dtype)))


@aten("log_sigmoid_forward.default", "log_sigmoid.default")
def log_sigmoid(call: Call, x: Value) -> Any:
    made = call.emit("Neg", call.emit("Softplus", call.emit("Neg", x)))
    return made if len(call.results) == 1 else (made, None)


@aten("gelu.default")
def gelu(call: Call, x: Value, approximate: str) -> Value:
    return call.emit("Gelu", x, approximate=approximate)


@aten("leaky_relu.default")
def leaky_relu(call: Call, x: Value, slope: float) -> Value:
    return call.emit("LeakyRelu", x, alpha=float(slope))


@aten("elu.default")
def elu(call: Call, x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    if (scale, input_scale) != (1, 1):
        raise call.refuse(f"elu with scale {scale} and input_scale {input_scale}")
    return call.emit("Elu", x, alpha=float(alpha))


@aten("celu.default")
def celu(call: Call, x: Value, alpha: float) -> Value:
    return call.emit("Celu", x, alpha=float(alpha))


@aten("softplus.default")
def softplus(call: Call, x: Value, beta: float, threshold: float) -> Value:
    """Beyond the threshold PyTorch returns the input, which at the usual 20 differs by float32's rounding."""
    factor = call.constant(beta, x.dtype)
    scaled = x if beta == 1 else call.emit("Mul", x, factor)
    soft = call.emit("Softplus", scaled)
    soft = soft if beta == 1 else call.emit("Div", soft, factor)
    rounding = 2.0 ** (-53 if x.dtype == np.float64 else -24)
    if threshold > 0 and math.log1p(math.exp(-threshold)) <= rounding * threshold:
        return soft
    return call.emit("Where", call.emit("Greater", scaled, call.constant(threshold, x.dtype)), x, soft)


@aten("hardsigmoid.default")
def hardsigmoid(call: Call, x: Value) -> Value:
    return call.emit("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@aten("hardshrink.default", "softshrink.default")
def shrink(call: Call, x: Value, lambd: float) -> Value:
    return call.emit("Shrink", x, lambd=float(lambd), bias=float(lambd) if "soft" in call.operator else 0.0)


@aten("threshold.default")
def threshold(call: Call, x: Value, limit: float, value: float) -> Value:
    above = call.emit("Greater", x, call.constant(limit, x.dtype))
    return call.emit("Where", above, x, call.constant(value, x.dtype))


@aten("prelu.default", "_prelu_kernel.default")
def prelu(call: Call, x: Value, slope: Value) -> Value:
    """A slope for each channel stands on axis 1; the graph's operator wants it so by its dims."""
    if rank(slope) == 1 and rank(x) > 2:
        slope = call.reshape(slope, (-1, *(1,) * (rank(x) - 2)), (dims_of(slope)[0], *(1,) * (rank(x) - 2)))
    return call.emit("PRelu", x, slope)


@aten("clamp.default", "clamp.Tensor", "hardtanh.default")
def clamp(call: Call, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    bounds = [None if one is None else call.cast(one, call.dtype) for one in (low, high)]
    x = call.cast(x, call.dtype)
    if all(one is None or one.dims == () for one in bounds):
        return call.emit("Clip", x, *bounds)
    for operator, bound in zip(("Max", "Min"), bounds, strict=True):
        if bound is not None:
            x = call.emit(operator, x, bound)
    return x


@aten("relu6.default")
def relu6(call: Call, x: Value) -> Value:
    return clamp(call, x, 0, 6)


@aten("clamp_min.default", "clamp_min.Tensor")
def clamp_min(call: Call, x: Value, low: Operand) -> Value:
    return clamp(call, x, low)


@aten("clamp_max.default", "clamp_max.Tensor")
def clamp_max(call: Call, x: Value, high: Operand) -> Value:
    return clamp(call, x, None, high)


@aten("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(call: Call, condition: Value, x: Operand, y: Operand) -> Value:
    return call.emit("Where", call.cast(condition, BOOL), call.cast(x, call.dtype), call.cast(y, call.dtype))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: Call, x: Value, mask: Value, value: Operand) -> Value:
    return call.emit("Where", mask, call.cast(value, call.dtype), x)


@aten("_to_copy.default", "to.dtype", "to.dtype_layout", "type_as.default")
def convert(call: Call, x: Value, *_: Any) -> Value:
    return call.cast(x, call.dtype)


TABLE["relayout.convert.default"] = convert  # a memory format is the planner's to choose


@aten("copy.default")
def copy(call: Call, x: Value, source: Value, *_: Any) -> Value:
    return call.expand(call.cast(source, call.dtype), [call.size(x, axis) for axis in range(rank(x))], x.dims)


@aten("clone.default", "alias.default", "detach.default", "contiguous.default", "lift_fresh_copy.default")
@aten("detach_.default", "lift.default", "resolve_conj.default", "resolve_neg.default", "alias_copy.default")
def unchanged(call: Call, x: Value, *_: Any) -> Value:
    return x


@aten("dropout.default", "native_dropout.default", "alpha_dropout.default", "feature_dropout.default")
def dropout(call: Call, x: Value, p: float, train: bool | None) -> Any:
    if train and p:
        raise call.refuse("dropout in training; export the model after model.eval()")
    return x if len(call.results) == 1 else (x, None)


def _floats(x: Value) -> bool:
    return x.dtype is not None and x.dtype.kind not in "biu"
