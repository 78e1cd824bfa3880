"""Layers in a format that is chosen once, for all of them.

================  ===========================================================================================
``"any"``         convolutions choose for themselves, source and destination; what is between them takes what
                  the layer before wrote. It is the greedy propagation that oneDNN describes: where two layers
                  want different formats, a reorder comes in between
any other format  all activations are in it, whether that suits the layers or not
================  ===========================================================================================

Weights always are in the format that the primitive wants, since that costs nothing when the network runs.

Data comes in the format of the network if that has no blocks, and else in ``nchw``: three channels would
fill a block of sixteen with zeros, mostly. The first convolution takes them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout import primitives
from relayout.errors import Unsupported
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.format import Format
from relayout.ops.post_ops import Sum
from relayout.primitives.primitive import Primitive
from relayout.primitives.sequence import Sequence
from relayout.primitives.values import Value

__all__ = ["Layers"]

RANK = 4  # axes of activations
TYPES = ("f32", "bf16", "f16")


class Layers:
    """A sequence to which layers are appended.

    Parameters
    ----------
    format : str or Format
        ``"any"``, or that of all activations.
    dtype : str
        The data type of activations and weights; sums and bias are f32.

    Raises
    ------
    LayoutError
        The format is none of four axes.
    Unsupported
        The data type is of integers, which would need scales for every layer.
    """

    def __init__(self, format: str | Format = "any", dtype: str = "f32") -> None:
        if dtype not in TYPES:
            raise Unsupported(f"networks are computed in {', '.join(TYPES)}, not in {dtype}")
        self.sequence = Sequence()
        self.dtype = dtype
        self.format: Any = any_format if format == "any" else Format(format).resolve(RANK, dtype)

    def data(self, dims: Several[int], name: str = "data") -> Value:
        """What the network is given, in f32."""
        plain = self.format is not any_format and len(self.format.order) == RANK
        return self.sequence.input(name, MemoryDesc(dims, "f32", self.format if plain else "nchw"))

    def convolution(
        self,
        src: Value,
        weights: NDArray[np.float32],
        bias: NDArray[np.float32],
        name: str,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        relu: bool = True,
        added: Value | None = None,
    ) -> Value:
        """A convolution; weights have the output channels of all groups first. ``added`` is added to it."""
        outputs, *rest = weights.shape
        if groups > 1:
            weights = weights.reshape(groups, outputs // groups, *rest)
        post_ops = ([Sum()] if added is not None else []) + (["relu"] if relu else [])
        source = MemoryDesc(src.desc.dims, self.dtype, self._wanted(src))
        made = primitives.Convolution(
            source,
            MemoryDesc(weights.shape, self.dtype, any_format),
            MemoryDesc(bias.shape, "f32", "a"),
            MemoryDesc(self._convolved(src, outputs, rest[1:], stride, padding), self.dtype, self.format),
            strides=stride,
            padding=padding,
            post_ops=post_ops,
            algorithm="auto",
        )
        old = {} if added is None else {"dst": added}
        return self._added(made, src, weights, bias, name=name, **old)

    def max_pool(self, src: Value, kernel: int, stride: int, padding: int, name: str) -> Value:
        """The largest of each window."""
        made = primitives.Pooling(src.desc, "max", kernel, strides=stride, padding=padding)
        return self._added(made, src, name=name)

    def average_pool(self, src: Value, name: str) -> Value:
        """The average of each whole plane."""
        made = primitives.Pooling(src.desc, "average_include_padding", src.desc.dims[2:])
        return self._added(made, src, name=name)

    def fully_connected(
        self, src: Value, weights: NDArray[np.float32], bias: NDArray[np.float32], name: str
    ) -> Value:
        """Every output from every input; weights have two axes, the inputs in row-major order."""
        dims = (len(weights), *src.desc.dims[1:])
        made = primitives.InnerProduct(
            src.desc, MemoryDesc(dims, self.dtype, any_format), MemoryDesc(bias.shape, "f32", "a")
        )
        return self._added(made, src, weights.reshape(dims), bias, name=name)

    def _added(self, made: Primitive, *given: Any, **named: Any) -> Value:
        """Append a layer with one result."""
        result: Value = self.sequence.add(made, *given, **named)
        return result

    def _wanted(self, src: Value) -> Any:
        """The format that a convolution is told for its source."""
        if self.format is any_format:
            return any_format
        return src.desc.layout.format if src in self.sequence.inputs else self.format

    def _convolved(
        self, src: Value, outputs: int, kernel: Several[int], stride: int, padding: int
    ) -> tuple[int, ...]:
        batch, _, *sizes = src.desc.dims
        found = ((n + 2 * padding - k) // stride + 1 for n, k in zip(sizes, kernel, strict=True))
        return (batch, outputs, *found)
