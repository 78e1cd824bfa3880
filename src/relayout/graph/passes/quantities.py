"""What passes ask of quantised values: constants behind DequantizeLinear, their scales and zero points."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from relayout.graph.graph import Array, Node
from relayout.graph.passes.rewriting import Around, attribute

__all__ = ["BYTES", "Filters", "Steps", "bias_of", "dequantised", "in_s8", "quantised", "weights_of"]

BYTES: Final = (np.dtype(np.uint8), np.dtype(np.int8))
"""Data types of activations that kernels take."""


class Steps(NamedTuple):
    """A tensor of integers: the name of its value, the length of a step, the integer that stands for 0."""

    name: str
    scale: float
    zero: int


def _single(node: Node, around: Around) -> tuple[float, int] | None:
    """Scale and zero point of a whole tensor, which are constants; None for others."""
    scale = around.data(node.inputs[1])
    zero = around.data(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros((), np.uint8)
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    if attribute(node, "block_size") or scale.dtype != np.float32 or zero.dtype not in (*BYTES, np.int32):
        return None
    found = float(scale.reshape(()))
    return (found, int(zero.reshape(()))) if 1e-30 < found < 1e30 else None


def dequantised(name: str, around: Around) -> Steps | None:
    """The bytes that a value stands for, if it is a DequantizeLinear of bytes that move."""
    node = around.node(name, "DequantizeLinear")
    if node is None or around.dtype(node.inputs[0]) not in BYTES or around.data(node.inputs[0]) is not None:
        return None
    if around.dtype(name) != np.float32:
        return None
    found = _single(node, around)
    return None if found is None else Steps(node.inputs[0], *found)


def quantised(node: Node, around: Around) -> Steps | None:
    """What a QuantizeLinear of f32 makes, if it makes bytes by one scale."""
    if node.operator != "QuantizeLinear" or around.dtype(node.outputs[0]) not in BYTES:
        return None
    if around.dtype(node.inputs[0]) != np.float32 or attribute(node, "precision") not in (0, 1):
        return None
    found = _single(node, around)
    return None if found is None else Steps(node.outputs[0], *found)


class Filters(NamedTuple):
    """Constant weights of s8."""

    data: Array
    scale: Array
    """One, or one for each index of the axis of output channels."""
    zero: Array | None
    """The zero points, as many, in s32; None: they are 0."""


def weights_of(name: str, axis: int, around: Around) -> Filters | None:
    """Constant weights of bytes as s8.

    Where all of them, less their zero points, fit in s8, their zero is 0: so it is for u8 around 128. Else u8
    are the same numbers less 128, and so are zero points.
    """
    node = around.node(name, "DequantizeLinear")
    data = None if node is None else around.data(node.inputs[0])
    if node is None or data is None or data.dtype not in BYTES or attribute(node, "block_size"):
        return None
    scale = around.data(node.inputs[1])
    zero = around.data(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1, np.int8)
    if scale is None or zero is None or scale.dtype != np.float32:
        return None
    along = int(attribute(node, "axis")) % max(data.ndim, 1)
    if scale.size > 1 and (along != axis % data.ndim or scale.shape != (data.shape[along],)):
        return None
    moved, points = in_s8(data, zero, along)
    return Filters(moved, scale.reshape(-1), points)


def in_s8(data: Array, zero: Array, axis: int) -> tuple[Array, Array | None]:
    """Bytes and their zero points, one or one for each index of an axis, as s8 and s32 (None: they are 0)."""
    shape = tuple(-1 if k == axis else 1 for k in range(data.ndim)) if zero.size > 1 else ()
    moved = data.astype(np.int16) - zero.astype(np.int16).reshape(shape)
    if not moved.size or (moved.min() >= -128 and moved.max() <= 127):
        return moved.astype(np.int8), None
    shift = 128 if data.dtype == np.uint8 else 0
    points = np.ascontiguousarray(zero.astype(np.int32).reshape(-1) - shift)
    return (data.astype(np.int16) - shift).astype(np.int8), points


def bias_of(name: str, around: Around) -> Array | None:
    """A constant bias in double precision, which may be quantised."""
    if not name:
        return np.zeros(1)
    data = around.data(name)
    if data is not None:
        return data.astype(np.float64).reshape(-1) if data.dtype == np.float32 else None
    node = around.node(name, "DequantizeLinear")
    given: list[Any] = [] if node is None else [around.data(one) for one in node.inputs if one]
    if len(given) < 2 or any(one is None for one in given):
        return None
    whole, scale, *zero = (one.astype(np.float64).reshape(-1) for one in given)
    return np.asarray((whole - (zero[0] if zero else 0)) * scale)
