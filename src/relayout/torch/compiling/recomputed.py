"""Operators of the backward pass that compute anew what PyTorch's own are given.

PyTorch's forward operators keep what their gradients read: the positions of the largest elements, the
logarithms of an attention's sums. To Relayout's kernels these are worth nothing, and a forward pass that
returns them is another operator. So the backward pass gets operators that need the inputs alone::

    relayout::max_pool2d_backward     aten::max_pool2d_with_indices_backward, without positions
    relayout::attention_backward      aten::_scaled_dot_product_flash_attention_for_cpu_backward,
                                      without results and logarithms

Where a part cannot take one, PyTorch computes it: the forward operator once more, and its own gradient.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from relayout.torch.compiling.support import attends
from relayout.torch.operators import LIBRARY

__all__ = ["recomputed"]

LIBRARY.define(
    "max_pool2d_backward(Tensor dy, Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, "
    "int[2] dilation, bool ceil_mode) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LIBRARY.define(
    "attention_backward(Tensor dy, Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, "
    "float? scale) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)

_pool = torch.ops.aten.max_pool2d_with_indices
_pool_backward = torch.ops.aten.max_pool2d_with_indices_backward.default
_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _by_largest(dy: Any, x: Any, *window: Any) -> Any:
    _, positions = _pool.default(x, *window)
    return _pool_backward(dy, x, *window, positions)


def _by_weights(
    dy: Any, query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None
) -> Any:
    given, options = (query, key, value), {"attn_mask": mask, "scale": scale}
    made, sums = _attention(*given, 0.0, causal, **options)
    return _attention_backward(dy, *given, made, sums, 0.0, causal, **options)


LIBRARY.impl("max_pool2d_backward", _by_largest, "CompositeExplicitAutograd")
LIBRARY.impl("attention_backward", _by_weights, "CompositeExplicitAutograd")


def recomputed(node: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """The operator that takes the place of a node of the backward pass, and its arguments; or None.

    Parameters
    ----------
    node : torch.fx.Node
    """
    if node.target is _pool_backward:
        return torch.ops.relayout.max_pool2d_backward.default, node.args[:-1]
    if node.target is _attention_backward and not node.args[6] and not attends(node.args[1], node.args[2]):
        dy, *given, _, _, _, causal = node.args
        more: Final = node.kwargs
        arguments = (dy, *given, more.get("attn_mask"), causal, more.get("scale"))
        return torch.ops.relayout.attention_backward.default, arguments
    return None
