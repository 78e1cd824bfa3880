"""Sums of products: matrix products, linear layers, convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayout.graph.graph import Value
from relayout.importers.torch.call import Call, Number, dims_of, rank
from relayout.importers.torch.operators.table import aten

__all__ = ["several"]


def several(numbers: int | Sequence[int], count: int) -> tuple[int, ...]:
    """A number for each axis, where PyTorch lets one stand for all."""
    given = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return given * count if len(given) == 1 else given


@aten("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default")
def matmul(call: Call, x: Value, y: Value) -> Value:
    return call.emit("MatMul", x, y)


@aten("linear.default")
def linear(call: Call, x: Value, weight: Value, bias: Value | None) -> Value:
    if rank(x) == 2 and rank(weight) == 2:
        return call.emit("Gemm", x, weight, bias, transB=1)
    turned = call.transpose(weight, (1, 0)) if rank(weight) == 2 else weight
    made = call.emit("MatMul", x, turned)
    return made if bias is None else call.emit("Add", made, bias)


@aten("addmm.default")
def addmm(call: Call, bias: Value, x: Value, y: Value, beta: Number, alpha: Number) -> Value:
    return call.emit("Gemm", x, y, bias, alpha=float(alpha), beta=float(beta))


@aten("baddbmm.default", "addmv.default")
def baddbmm(call: Call, bias: Value, x: Value, y: Value, beta: Number, alpha: Number) -> Value:
    product = call.emit("MatMul", x, y)
    scaled = product if alpha == 1 else call.emit("Mul", product, call.constant(alpha, call.dtype))
    if beta == 0:
        return scaled
    return call.emit(
        "Add", bias if beta == 1 else call.emit("Mul", bias, call.constant(beta, call.dtype)), scaled
    )


@aten("outer.default")
def outer(call: Call, x: Value, y: Value) -> Value:
    return call.emit("Mul", call.unsqueeze(x, 1), call.unsqueeze(y, 0))


@aten("einsum.default")
def einsum(call: Call, equation: str, operands: Sequence[Value], *_: object) -> Value:
    return call.emit("Einsum", *operands, equation=equation.replace(" ", ""))


@aten(
    "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding"
)
def conv(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: int | Sequence[int],
    padding: int | str | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> Value:
    kernel, (strides, dilations) = _window(call, weight, stride, dilation)
    axes = len(kernel)
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for k, d in zip(kernel, dilations, strict=True)]
        before = [n // 2 for n in total]
        behind = [n - half for n, half in zip(total, before, strict=True)]
    else:
        before = behind = list(several(padding, axes))
    batched = _batched(call, x, axes)
    made = call.emit(
        *("Conv", batched, weight, bias),
        kernel_shape=kernel, strides=strides, dilations=dilations, pads=(*before, *behind), group=groups,
        dims=(1, *dims_of(call.result)),
    )  # fmt: skip
    return made if batched is x else call.squeeze(made, 0)


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    output_padding: int | Sequence[int],
    groups: int,
    dilation: int | Sequence[int],
) -> Value:
    kernel, (strides, dilations) = _window(call, weight, stride, dilation)
    axes = len(kernel)
    batched = _batched(call, x, axes)
    made = call.emit(
        *("ConvTranspose", batched, weight, bias),
        kernel_shape=kernel, strides=strides, dilations=dilations, pads=several(padding, axes) * 2,
        group=groups, output_padding=several(output_padding, axes), dims=(1, *dims_of(call.result)),
    )  # fmt: skip
    return made if batched is x else call.squeeze(made, 0)


@aten("convolution.default")
def convolution(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    if transposed:
        return conv_transpose(call, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(call, x, weight, bias, stride, padding, dilation, groups)


def _window(
    call: Call, weight: Value, *given: int | Sequence[int]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The kernel's sizes, and strides and dilations for each of its axes."""
    kernel = dims_of(weight)[2:]
    if not all(isinstance(n, int) for n in kernel):
        raise call.refuse(f"a kernel of unknown size {kernel}")
    sizes = tuple(np.array(kernel, int).tolist())
    return sizes, [several(numbers, len(sizes)) for numbers in given]


def _batched(call: Call, x: Value, axes: int) -> Value:
    """With an axis for the batch, which PyTorch lets be missing."""
    return call.unsqueeze(x, 0) if rank(x) == axes + 1 else x
