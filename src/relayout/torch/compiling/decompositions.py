"""How operators are taken apart that have no translation.

PyTorch's own table of core ATen does most. Random numbers stay whole, and so are those of eager PyTorch. Two
operators that PyTorch's modules call without gradients, attention and the layer of an encoder, have no
rule there. Those here are what the modules compute with gradients, but for rows of which a mask hides
everything: these are NaN, as the operators have it.

A result has the strides that its trace tells. Of some operators the trace tells other strides than the kernel
writes: ``roll`` and ``channel_shuffle`` keep channels-last there, and a batch normalisation the order of axes
of whatever it is given, where the kernel writes one of the two formats. Their rules here are made of
operators whose strides are told right. ``max_unpool2d``, where taking it apart changes the strides, stays
whole. So does ``index_fill``: indices below 0 count from its end, while ``index_copy``, which it would be
made of, refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import torch
from torch._prims_common import suggest_memory_format
from torch.nn import functional as F

from relayout.importers.torch.operators import TABLE

__all__ = ["rule_of", "rules"]

NORMALIZATIONS: Final = (
    torch.ops.aten._native_batch_norm_legit_no_training.default,
    torch.ops.aten._native_batch_norm_legit_functional.default,
)

MASKS: Final[Mapping[int | None, int]] = {0: 2, 1: 2, 2: 4}
"""Axes of a mask by PyTorch's number for what they are: queries and keys, images and keys, or all four."""


@lru_cache(maxsize=1)
def rules() -> Mapping[Any, Any]:
    """A rule for each operator that is taken apart."""
    aten = torch.ops.aten
    found = {
        operator: rule
        for operator, rule in torch._decomp.core_aten_decompositions().items()
        if str(operator) not in TABLE
        and torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ())
    }
    for operator in (aten.max_unpool2d.default, aten.max_unpool3d.default, aten.index_fill.int_Scalar,
                     aten.index_fill.int_Tensor):  # fmt: skip
        found.pop(operator, None)
    return found | own()


@lru_cache(maxsize=1)
def own() -> dict[Any, Any]:
    """The rules that are written here."""
    aten = torch.ops.aten
    return {
        aten.roll.default: _roll,
        aten.channel_shuffle.default: _channel_shuffle,
        **{operator: _in_a_format(operator) for operator in NORMALIZATIONS},
        aten._native_multi_head_attention.default: _attention,
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    }


@cache
def rule_of(func: Any) -> Any:
    """The rule for an operator; None: it stays whole.

    The whole table takes half a second to make, and most models need nothing of it.
    """
    found = own().get(func)
    if found is None and str(func) not in TABLE and func.namespace in ("aten", "prims"):
        found = rules().get(func)
    return found


def _roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not x.numel():
        return x.clone()
    if not dims:
        return _roll(x.flatten(), shifts, (0,)).view(x.shape)
    for shift, axis in zip(shifts, dims, strict=True):
        length = x.shape[axis]
        start = (length - shift) % length
        if start:
            x = torch.cat((x.narrow(axis, start, length - start), x.narrow(axis, 0, start)), axis)
        else:
            x = x.clone(memory_format=torch.contiguous_format)
    return x


def _channel_shuffle(x: Any, groups: int) -> Any:
    shuffled = x.unflatten(1, (groups, x.shape[1] // groups)).transpose(1, 2).flatten(1, 2)
    return shuffled.contiguous(memory_format=suggest_memory_format(x))


def _in_a_format(operator: Any) -> Callable[..., Any]:
    """The rule of an operator whose result is contiguous, or in channels-last, whatever its input is."""

    def rule(x: Any, *more: Any) -> Any:
        form = suggest_memory_format(x)
        if x.is_contiguous(memory_format=form):
            return NotImplemented
        return operator(x.contiguous(memory_format=form), *more)

    return rule


def _attention(
    query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any,
    proj_weight: Any, proj_bias: Any, mask: Any = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> Any:  # fmt: skip
    if need_weights or not _is_known(mask, mask_type):
        return NotImplemented
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    heads = [
        F.linear(one, weight, bias).unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2)
        for one, weight, bias in zip((query, key, value), weights, biases, strict=True)
    ]
    if mask is None:
        made = F.scaled_dot_product_attention(*heads)
    else:  # which would give zeros where everything is hidden
        q, k, v = heads
        scores = q @ k.transpose(2, 3) / math.sqrt(embed_dim // num_head)
        made = scores.masked_fill(_hidden(mask, mask_type), -math.inf).softmax(-1) @ v
    return F.linear(made.transpose(1, 2).flatten(2), proj_weight, proj_bias), query.new_empty(0)


def _is_known(mask: Any, mask_type: int | None) -> bool:
    """Whether a mask is one of :data:`MASKS`, if there is one."""
    return mask is None or MASKS.get(mask_type) == mask.dim()


def _hidden(mask: Any, mask_type: Any) -> Any:
    """A mask for images, heads, queries and keys: True hides.

    It hides what it is not 0 for, also where it is made of numbers that would be added.
    """
    hidden = mask.to(torch.bool)
    return (hidden[None, None], hidden[:, None, None], hidden)[mask_type]


def _encoder_layer(
    src: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any,
    norm_weight_2: Any, norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any,
    ffn_bias_2: Any, mask: Any = None, mask_type: int | None = None,
) -> Any:  # fmt: skip
    if not _is_known(mask, mask_type):
        return NotImplemented

    def attended(x: Any) -> Any:
        packed = qkv_weight, qkv_bias, proj_weight, proj_bias
        how = {"mask": mask, "need_weights": False, "mask_type": mask_type}
        return _attention(x, x, x, embed_dim, num_heads, *packed, **how)[0]

    def fed(x: Any) -> Any:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def first(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attended(first(src))
        return src + fed(second(src))
    src = first(src + attended(src))
    return second(src + fed(src))
