"""Operators of PyTorch's dispatcher, for graphs: ``torch.ops.relayout.convert``.

``torch.compile`` and ``torch.export`` look at calls of operators, not into kernels. So what they see of a
conversion is one operator, defined here with everything that they ask of one: a schema, the strides of its
result without computing it (a *fake* kernel), the gradient, a rule for ``vmap``. In a graph it stands where
``aten.clone`` or ``aten._to_copy`` would, and means the same.

    convert(Tensor x, ScalarType dtype, MemoryFormat memory_format) -> Tensor

It always makes a new tensor: an operator must not return its argument now and then. Whether there is anything
to convert is decided before, by what calls it.

The gradient of a conversion is the gradient, converted to the data type of the input; in which strides it
comes back PyTorch leaves to those who use it, and so does this.
"""

from __future__ import annotations

from typing import Any

import torch

from relayout.torch.moving import converted
from relayout.torch.plain import is_plain

__all__ = ["LIBRARY", "convert", "in_graphs"]

LIBRARY = torch.library.Library("relayout", "FRAGMENT")
"""What the operators are registered with, as long as it lives."""

_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)  # before 2.8

LIBRARY.define(
    "convert(Tensor x, ScalarType dtype, MemoryFormat memory_format) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, _STRIDES),  # preserve_format looks at strides
)


def _on_the_processor(x: Any, dtype: Any, memory_format: Any) -> Any:
    made = converted(x, dtype, memory_format) if is_plain(x) else None
    return _elsewhere(x, dtype, memory_format) if made is None else made


def _elsewhere(x: Any, dtype: Any, memory_format: Any) -> Any:
    return torch.ops.aten._to_copy(x, dtype=dtype, memory_format=memory_format)


def _fake(x: Any, dtype: Any, memory_format: Any) -> Any:
    return torch.empty_like(x, dtype=dtype, memory_format=memory_format)


def _note(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.dtype = inputs[0].dtype


def _backward(ctx: Any, grad: Any) -> Any:
    return grad.to(ctx.dtype), None, None


def _batched(info: Any, in_dims: Any, x: Any, dtype: Any, memory_format: Any) -> Any:
    axis = in_dims[0]
    if memory_format == torch.preserve_format:
        return _elsewhere(x, dtype, memory_format), axis
    x = x.movedim(axis, 0)
    if memory_format == torch.contiguous_format:
        return _elsewhere(x, dtype, memory_format), 0
    many = x.shape[:2]  # tensors one after the other, each in the format
    return _elsewhere(x.flatten(0, 1), dtype, memory_format).unflatten(0, many), 0


LIBRARY.impl("convert", _on_the_processor, "CPU")
LIBRARY.impl("convert", _elsewhere, "CompositeExplicitAutograd")
torch.library.register_fake("relayout::convert", _fake, lib=LIBRARY)
torch.library.register_autograd("relayout::convert", _backward, setup_context=_note, lib=LIBRARY)
torch.library.register_vmap("relayout::convert", _batched, lib=LIBRARY)

convert = torch.ops.relayout.convert.default
"""``torch.ops.relayout.convert``."""


def in_graphs(x: Any) -> bool:
    """Whether a graph gets the operator for a tensor that only stands for one."""
    return x.device.type == "cpu" and x.layout == torch.strided and not x.is_quantized
