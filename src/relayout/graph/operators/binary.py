"""Functions of two and more numbers, with NumPy's broadcasting.

All inputs have the same data type, and the result has it too, but for comparisons; only Pow takes an exponent
of another type. Division of integers truncates towards zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, broadcast, elementwise, operator
from relayout.graph.operators.types import is_integer, narrow, wide

__all__ = ["alike"]


def alike(*inputs: Array) -> np.dtype[Any]:
    """The one data type of several inputs."""
    kinds = {x.dtype for x in inputs}
    if len(kinds) != 1:
        raise LayoutError(f"the inputs must have one data type, got {', '.join(sorted(map(str, kinds)))}")
    return inputs[0].dtype


def compared(*inputs: Fact) -> Fact:
    """A truth value for each element that broadcasting makes."""
    return Fact(broadcast(*inputs), np.dtype(bool))


def _quotient(a: Array, b: Array) -> Any:
    if not is_integer(a.dtype):
        return a / b
    rounded_up = (np.remainder(a, b) != 0) & ((a < 0) != (b < 0))
    return np.floor_divide(a, b) + rounded_up.astype(a.dtype)


def _equal(a: Array, b: Array) -> Any:
    return np.equal(a, b).astype(bool)  # arrays of objects compare to objects


ARITHMETIC: Final[dict[str, Callable[[Array, Array], Any]]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _quotient,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}

COMPARISONS: Final[dict[str, Callable[[Array, Array], Any]]] = {
    "Equal": _equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}

VARIADIC: Final[dict[str, Callable[[Array, Array], Any]]] = {
    "Max": np.maximum,
    "Min": np.minimum,
    "Sum": np.add,
}


def _binary(function: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Array]:
    def define(a: Array, b: Array, /) -> Array:
        return narrow(function(wide(a), wide(b)), alike(a, b))

    return define


def _comparison(function: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
    def define(a: Array, b: Array, /) -> Any:
        alike(a, b)
        return function(wide(a), wide(b))

    return define


def _variadic(function: Callable[[Array, Array], Any]) -> Callable[..., Array]:
    def define(data_0: Array, /, *more: Array) -> Array:
        return narrow(reduce(function, map(wide, (data_0, *more))), alike(data_0, *more))

    return define


for _name, _function in ARITHMETIC.items():
    operator(_name, infer=elementwise)(_binary(_function))
for _name, _function in COMPARISONS.items():
    operator(_name, infer=compared)(_comparison(_function))
for _name, _function in VARIADIC.items():
    operator(_name, infer=elementwise)(_variadic(_function))


@operator("Mean", infer=elementwise)
def mean(data_0: Array, /, *more: Array) -> Array:
    """The sum by the number of inputs."""
    total = reduce(np.add, map(wide, (data_0, *more)))
    return narrow(total / (1 + len(more)), alike(data_0, *more))


@operator("Mod", infer=elementwise)
def mod(a: Array, b: Array, /, *, fmod: int = 0) -> Array:
    """The remainder of division; its sign is that of b, and with fmod that of a."""
    function = np.fmod if fmod else np.mod
    return narrow(function(wide(a), wide(b)), alike(a, b))


@operator("Pow", infer=elementwise)
def power(x: Array, y: Array, /) -> Array:
    """``x`` to the power of y, in the type of x."""
    base, exponent = wide(x), wide(y)
    if is_integer(base.dtype) and is_integer(exponent.dtype) and (exponent < 0).any():
        base = base.astype(np.float64)  # NumPy refuses what is 0, 1 or -1
    elif base.dtype != exponent.dtype and not (is_integer(base.dtype) and is_integer(exponent.dtype)):
        base, exponent = base.astype(np.float64), exponent.astype(np.float64)
    return narrow(np.power(base, exponent), x.dtype)


@operator("BitShift", infer=elementwise)
def bit_shift(x: Array, y: Array, /, *, direction: str) -> Array:
    """Bits moved; the sign fills up on the right of a signed type."""
    if direction not in ("LEFT", "RIGHT"):
        raise LayoutError(f"direction is 'LEFT' or 'RIGHT', got {direction!r}")
    bits = alike(x, y).itemsize * 8
    outside = (y < 0) | (y >= bits)
    by = np.where(outside, 0, y).astype(x.dtype)
    if direction == "LEFT":
        return np.where(outside, 0, np.left_shift(x, by)).astype(x.dtype)
    sign = x < 0
    return np.where(outside, np.where(sign, -1, 0), np.right_shift(x, by)).astype(x.dtype)


def _chosen(condition: Fact, x: Fact, y: Fact) -> Fact:
    return Fact(broadcast(condition, x, y), x.dtype if x.dtype is not None else y.dtype)


@operator("Where", infer=_chosen)
def where(condition: Array, x: Array, y: Array, /) -> Array:
    """``x`` where the condition holds, y elsewhere."""
    return np.where(condition, x, y).astype(alike(x, y), copy=False)
