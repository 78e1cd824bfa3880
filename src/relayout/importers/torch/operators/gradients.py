"""Gradients: ATen's ``*_backward`` operators, as the backward graphs of AOTAutograd have them.

The first argument is nearly always ``dy``, the gradient by what the forward operator returned; what that one
has read or returned follows. Normalisations are in :mod:`.statistics`.

Max pooling keeps positions in PyTorch. ``relayout::max_pool2d_backward`` finds them again in the data: the
forward pass need not compute them, and nothing has to keep them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log1p, prod
from typing import Any

from relayout.graph.graph import Value
from relayout.importers.torch.call import Call, Number, dims_of, rank
from relayout.importers.torch.operators.products import several
from relayout.importers.torch.operators.table import TABLE, aten

__all__ = ["sizes_of", "summed"]

S32 = 6  # of ONNX


def sizes_of(call: Call, x: Value) -> tuple[int, ...]:
    """The sizes of all axes, which are attributes of gradients.

    Raises
    ------
    Unsupported
        They are not all known.
    """
    found = tuple(n for n in dims_of(x) if isinstance(n, int))
    if len(found) < rank(x):
        raise call.refuse(f"a gradient of dims {dims_of(x)}, not all of which are known")
    return found


def summed(call: Call, x: Value) -> Value:
    """The sums over all axes but that of channels."""
    return call.emit("ReduceSum", x, call.ints(0, *range(2, rank(x))), keepdims=0)


def _gradient(call: Call, operator: str, *inputs: Value, dims: Sequence[int], **attributes: Any) -> Value:
    """A node whose attribute ``dims`` says how large the result is."""
    (made,) = call.several(f"relayout.{operator}", *inputs, outputs=1, dims=tuple(dims), **attributes)
    return Value(made.name, tuple(dims), inputs[0].dtype)


# -- sums of products ---------------------------------------------------------------------------------------


@aten("convolution_backward.default")
def convolution_backward(
    call: Call, dy: Value, x: Value, weight: Value, _: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, __: Any, groups: int, wanted: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """By data, weights and bias. A transposed convolution is a gradient, whose gradients are convolutions."""
    axes = rank(weight) - 2
    strides, before, dilations = (several(given, axes) for given in (stride, padding, dilation))
    data, weights, result = (sizes_of(call, one) for one in (x, weight, dy))
    end = before
    if transposed:
        whole = [
            (n - 1) * s + (k - 1) * d + 1
            for n, s, k, d in zip(data[2:], strides, weights[2:], dilations, strict=True)
        ]
        end = tuple(max(0, n - m - b) for n, m, b in zip(whole, result[2:], before, strict=True))
    same: dict[str, Any] = {
        "strides": strides,
        "dilations": dilations,
        "group": groups,
        "pads": (*before, *end),
    }
    first = second = third = None
    if wanted[0] and transposed:
        first = call.emit("Conv", dy, weight, kernel_shape=weights[2:], **same)
    elif wanted[0]:
        first = _gradient(call, "ConvGradInput", dy, weight, dims=data, **same)
    if wanted[1]:
        pair = (x, dy) if transposed else (dy, x)
        second = _gradient(call, "ConvGradWeights", *pair, dims=weights, **same)
    if wanted[2]:
        third = summed(call, dy)
    return first, second, third


# -- pooling ------------------------------------------------------------------------------------------------


@aten("max_pool2d_with_indices_backward.default")
def max_pool_backward(
    call: Call, dy: Value, x: Value, window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
    _: Any = None,
) -> Value:  # fmt: skip
    """To the first largest element of each window, which is where the positions point to."""
    kernel = several(window, 2)
    return call.emit(
        "relayout.MaxPoolGrad", dy, x, kernel_shape=kernel, strides=several(stride, 2) if stride else kernel,
        pads=several(padding, 2) * 2, dilations=several(dilation, 2), ceil_mode=int(ceil),
    )  # fmt: skip


TABLE["relayout.max_pool2d_backward.default"] = max_pool_backward


@aten("avg_pool2d_backward.default", "avg_pool3d_backward.default")
def avg_pool_backward(
    call: Call, dy: Value, x: Value, window: Any, stride: Any, padding: Any, ceil: bool, count_padding: bool,
    divisor: int | None,
) -> Value:  # fmt: skip
    """In equal shares over each window."""
    if divisor is not None:
        raise call.refuse("average pooling with a divisor of its own")
    axes = 3 if "3d" in call.operator else 2
    kernel = several(window, axes)
    return _gradient(
        call, "AveragePoolGrad", dy, dims=sizes_of(call, x), kernel_shape=kernel,
        strides=several(stride, axes) if stride else kernel, pads=several(padding, axes) * 2,
        ceil_mode=int(ceil), count_include_pad=int(count_padding),
    )  # fmt: skip


@aten("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(call: Call, dy: Value, x: Value) -> Value:
    """Where the sizes divide, so that all windows are alike."""
    axes = 3 if "3d" in call.operator else 2
    dims, counts = sizes_of(call, x), sizes_of(call, dy)[-axes:]
    kernel = tuple(n // out for n, out in zip(dims[-axes:], counts, strict=True))
    if any(n % out for n, out in zip(dims[-axes:], counts, strict=True)):
        raise call.refuse(f"adaptive pooling of {dims[-axes:]} to {counts}, whose windows differ")
    if all(n == 1 for n in counts):
        share = call.emit("Mul", dy, call.constant(1 / prod(kernel), dy.dtype), dims=dy.dims, dtype=dy.dtype)
        return call.expand(share, dims, dims)
    return _gradient(call, "AveragePoolGrad", dy, dims=dims, kernel_shape=kernel, strides=kernel)


# -- functions ----------------------------------------------------------------------------------------------


def _slope(
    call: Call, dy: Value, x: Value, algorithm: str, alpha: Number = 0, beta: Number = 0, result: bool = False
) -> Value:
    """``dy`` times the slope of a function, by what it has read or by its result."""
    numbers: dict[str, Any] = {"alpha": float(alpha), "beta": float(beta), "by_result": int(result)}
    return call.emit("relayout.FunctionGrad", dy, x, algorithm=algorithm, **numbers)


def _where(call: Call, closed: Value, dy: Value) -> Value:
    """``dy``, and 0 where nothing passes."""
    return call.emit("Where", closed, call.constant(0, dy.dtype), dy)


@aten("threshold_backward.default")
def threshold_backward(call: Call, dy: Value, x: Value, limit: Number) -> Value:
    """That of a ReLU, mostly: by its result, or by what it has read."""
    if limit == 0:
        return call.emit("relayout.ReluGrad", dy, x)
    return _where(call, call.emit("LessOrEqual", x, call.constant(limit, x.dtype)), dy)


@aten("hardtanh_backward.default")
def hardtanh_backward(call: Call, dy: Value, x: Value, low: Number, high: Number) -> Value:
    """What lies between the bounds passes."""
    below = call.emit("LessOrEqual", x, call.constant(low, x.dtype))
    above = call.emit("GreaterOrEqual", x, call.constant(high, x.dtype))
    return _where(call, call.emit("Or", below, above), dy)


@aten("gelu_backward.default")
def gelu_backward(call: Call, dy: Value, x: Value, approximate: str) -> Value:
    """By what it has read."""
    return _slope(call, dy, x, "gelu_tanh" if approximate == "tanh" else "gelu_erf")


@aten("silu_backward.default")
def silu_backward(call: Call, dy: Value, x: Value) -> Value:
    """By what it has read."""
    return _slope(call, dy, x, "swish", 1)


@aten("hardswish_backward.default")
def hardswish_backward(call: Call, dy: Value, x: Value) -> Value:
    """By what it has read."""
    return _slope(call, dy, x, "hardswish", 1 / 6, 0.5)


@aten("hardsigmoid_backward.default")
def hardsigmoid_backward(call: Call, dy: Value, x: Value) -> Value:
    """By what it has read."""
    return _slope(call, dy, x, "hardsigmoid", 1 / 6, 0.5)


@aten("mish_backward.default")
def mish_backward(call: Call, dy: Value, x: Value) -> Value:
    """By what it has read."""
    return _slope(call, dy, x, "mish")


@aten("sigmoid_backward.default")
def sigmoid_backward(call: Call, dy: Value, y: Value) -> Value:
    """By the result."""
    return _slope(call, dy, y, "logistic", result=True)


@aten("tanh_backward.default")
def tanh_backward(call: Call, dy: Value, y: Value) -> Value:
    """By the result."""
    return _slope(call, dy, y, "tanh", result=True)


@aten("leaky_relu_backward.default")
def leaky_relu_backward(call: Call, dy: Value, x: Value, slope: Number, _: bool) -> Value:
    """By what it has read, or by its result: with a slope that is not negative both have one sign."""
    return _slope(call, dy, x, "relu", slope)


@aten("elu_backward.default")
def elu_backward(
    call: Call, dy: Value, alpha: Number, scale: Number, input_scale: Number, result: bool, x: Value
) -> Value:
    """By what it has read, or by its result."""
    if (scale, input_scale) != (1, 1):
        raise call.refuse(f"elu with scale {scale} and input_scale {input_scale}")
    return _slope(call, dy, x, "elu", alpha, result=result)


@aten("softplus_backward.default")
def softplus_backward(call: Call, dy: Value, x: Value, beta: Number, threshold: Number) -> Value:
    """By what it has read; beyond the threshold PyTorch's slope is 1, as that of the function nearly is."""
    if threshold <= 0 or log1p(exp(-threshold)) > 2.0**-24 * threshold:
        raise call.refuse(f"softplus with the threshold {threshold}")
    return _slope(call, dy, x, "soft_relu", beta)


@aten("_softmax_backward_data.default", "_log_softmax_backward_data.default")
def softmax_backward(call: Call, dy: Value, y: Value, axis: int, _: Any) -> Value:
    """By the result."""
    if not rank(y) or dy.dtype != call.dtype:
        raise call.refuse(f"the gradient of a softmax of {y.dims} from {dy.dtype} to {call.dtype}")
    return call.emit("relayout.SoftmaxGrad", dy, y, axis=axis, log=int("log" in call.operator))


# -- losses -------------------------------------------------------------------------------------------------

REDUCTIONS = ("none", "mean", "sum")


@aten("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss(
    call: Call, x: Value, target: Value, weight: Value | None, reduction: int, ignored: int
) -> tuple[Value | None, ...]:
    """The loss, and the sum of weights that a mean is divided by."""
    if rank(x) < 2:
        raise call.refuse("the loss of a single row")
    kind = REDUCTIONS[reduction]
    made = call.emit(
        "NegativeLogLikelihoodLoss", x, target, weight, reduction=kind, ignore_index=int(ignored)
    )
    if not call.used[1]:
        return made, None
    return made, call.emit("ReduceSum", _counted(call, x, target, weight, ignored), keepdims=0)


@aten("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(
    call: Call, dy: Value, x: Value, target: Value, weight: Value | None, reduction: int, ignored: int,
    total: Value,
) -> Value:  # fmt: skip
    """Less what each target weighs, where its class is."""
    if rank(x) < 2:
        raise call.refuse("the loss of a single row")
    each = _counted(call, x, target, weight, ignored)
    if REDUCTIONS[reduction] == "mean":
        dy = call.emit("Div", dy, total)
    factors = call.emit("Mul", each, dy)
    labels = call.emit("Cast", target, to=S32)
    return call.emit("relayout.SoftmaxCrossEntropyGrad", factors, x, labels, softmax=0)


def _counted(call: Call, x: Value, target: Value, weight: Value | None, ignored: int) -> Value:
    """What each target weighs; nothing, where it does not count."""
    counts = call.emit("Not", call.emit("Equal", target, call.constant(ignored, target.dtype)))
    each = call.constant(1, x.dtype)
    if weight is not None:
        known = call.emit("Where", counts, target, call.constant(0, target.dtype))
        each = call.emit("Gather", weight, known, from_end=0)
    return call.emit("Where", counts, each, call.constant(0, x.dtype))
