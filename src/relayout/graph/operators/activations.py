"""Activation functions: of one element, and along an axis.

Arithmetic is done in f32 for f16 and bf16, and in the data type itself otherwise. Results are rounded once;
those of a Softmax after each of its steps, as ONNX defines it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.axes import axis_in
from relayout.graph.operators.registry import Array, operator, same
from relayout.graph.operators.types import narrow, wide
from relayout.graph.operators.unary import erfc

__all__ = ["activation", "summed"]


def activation(
    name: str, fits: Callable[..., None] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function that is given the input in the type of the arithmetic."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def define(x: Array, /, **attributes: Any) -> Array:
            return narrow(function(wide(x), **attributes), x.dtype)

        operator(name, infer=same, fits=fits)(define)
        return function

    return enter


def _along(x: Array, /, *, axis: int = -1) -> None:
    axis_in(axis, x.ndim)


@activation("Celu")
def celu(x: Array, /, *, alpha: float = 1.0) -> Any:
    """``max(x, 0) + min(alpha (exp(x / alpha) - 1), 0)``."""
    return np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)


@activation("Elu")
def elu(x: Array, /, *, alpha: float = 1.0) -> Any:
    """``alpha (exp(x) - 1)`` below 0, x from there on."""
    return np.where(x < 0, alpha * np.expm1(x), x)


@activation("Gelu")
def gelu(x: Array, /, *, approximate: str = "none") -> Any:
    """``x`` times the normal distribution's share below x, or an approximation of that by tanh."""
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if approximate != "none":
        raise LayoutError(f"approximate is 'none' or 'tanh', got {approximate!r}")
    return 0.5 * x * erfc(x * -np.sqrt(0.5).astype(x.dtype))


@activation("HardSigmoid")
def hard_sigmoid(x: Array, /, *, alpha: float = 0.2, beta: float = 0.5) -> Any:
    """``alpha x + beta``, between 0 and 1."""
    return np.clip(alpha * x + beta, 0, 1)


@activation("HardSwish")
def hard_swish(x: Array, /) -> Any:
    """``x`` times x / 6 + 0.5, which is kept between 0 and 1."""
    return x * np.clip(x / 6 + 0.5, 0, 1)


@activation("LeakyRelu")
def leaky_relu(x: Array, /, *, alpha: float = 0.01) -> Any:
    """``alpha x`` below 0, x from there on."""
    return np.where(x < 0, alpha * x, x)


@activation("Mish")
def mish(x: Array, /) -> Any:
    """``x tanh(softplus(x))``."""
    return x * np.tanh(softplus(x))


@activation("Relu")
def relu(x: Array, /) -> Any:
    """``max(x, 0)``."""
    return np.maximum(x, 0)


@activation("Selu")
def selu(x: Array, /, *, alpha: float = 1.6732632, gamma: float = 1.0507010) -> Any:
    """``gamma`` times x above 0, and alpha (exp(x) - 1) below."""
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


@activation("Shrink")
def shrink(x: Array, /, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    """Zero between -lambd and lambd, nearer to it by bias elsewhere."""
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


@activation("Sigmoid")
def sigmoid(x: Array, /) -> Any:
    """``1 / (1 + exp(-x))``."""
    return 1 / (1 + np.exp(-x))


@activation("Softplus")
def softplus(x: Array, /) -> Any:
    """``log(1 + exp(x))``, without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@activation("Softsign")
def softsign(x: Array, /) -> Any:
    """``x / (1 + abs(x))``."""
    return x / (1 + np.abs(x))


@activation("Swish")
def swish(x: Array, /, *, alpha: float = 1.0) -> Any:
    """``x sigmoid(alpha x)``."""
    return x * sigmoid(alpha * x)


@activation("Tanh")
def tanh(x: Array, /) -> Any:
    """The hyperbolic tangent."""
    return np.tanh(x)


@activation("ThresholdedRelu")
def thresholded_relu(x: Array, /, *, alpha: float = 1.0) -> Any:
    """``x`` above alpha, 0 elsewhere."""
    return np.where(x > alpha, x, 0)


@operator("Softmax", infer=same, fits=_along)
def softmax(x: Array, /, *, axis: int = -1) -> Array:
    """``exp(x)`` by its sum along an axis.

    ONNX has it as a function of five operators, so each step is rounded to the data type of ``x``.
    """
    shifted = narrow(_below_largest(wide(x), axis), x.dtype)
    powers = narrow(np.exp(wide(shifted)), x.dtype)
    return narrow(wide(powers) / wide(summed(powers, axis)), x.dtype)


def summed(x: Array, axis: int) -> Array:
    """Sums along an axis, which stays; in bf16 of eight elements in their own type, of such sums in f32.

    A sum of hundreds of numbers in bf16 stops growing; one of few is what the definition says, to the bit.
    """
    if x.dtype.kind == "f":  # NumPy adds its own types up in pairs, and f16 in f32
        return np.asarray(x.sum(axis=axis, keepdims=True))
    x = np.moveaxis(x, axis, -1)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 8)])
    eights = padded.reshape(*x.shape[:-1], padded.shape[-1] // 8, 8).sum(axis=-1)
    return np.moveaxis(narrow(wide(eights).sum(axis=-1, keepdims=True), x.dtype), -1, axis)


@activation("LogSoftmax", fits=_along)
def log_softmax(x: Array, /, *, axis: int = -1) -> Any:
    """The logarithm of Softmax, without taking one of 0."""
    x = _below_largest(x, axis)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


@activation("Hardmax", fits=_along)
def hardmax(x: Array, /, *, axis: int = -1) -> Any:
    """1 at the first largest element along an axis, 0 elsewhere."""
    made = np.zeros_like(x)
    if x.size:
        np.put_along_axis(made, np.expand_dims(x.argmax(axis_in(axis, x.ndim)), axis), 1, axis)
    return made


@operator("PRelu", infer=same)
def prelu(x: Array, slope: Array, /) -> Array:
    """``slope x`` below 0, x from there on."""
    slope = np.broadcast_to(slope, x.shape)  # towards x only
    return narrow(np.where(x < 0, wide(x) * wide(slope), wide(x)), x.dtype)


@operator("SwiGLU", infer=same)
def swiglu(a: Array, b: Array, /, *, alpha: float = 1.0) -> Array:
    """``a sigmoid(alpha a) b``."""
    if a.shape != b.shape:
        raise LayoutError("both must have the same dims")
    return narrow(swish(wide(a), alpha=alpha) * wide(b), a.dtype)


@operator("Clip", infer=same)
def clip(x: Array, min: Array | None = None, max: Array | None = None, /) -> Array:
    """``x``, but not below min and not above max; max where they cross."""
    if min is not None:
        x = np.maximum(x, min.astype(x.dtype).reshape(()))
    return x if max is None else np.minimum(x, max.astype(x.dtype).reshape(()))


def _below_largest(x: Array, axis: int) -> Any:
    """How far elements are from the largest along an axis, so that no exponential overflows."""
    return x - x.max(axis_in(axis, x.ndim), keepdims=True, initial=-np.inf)
