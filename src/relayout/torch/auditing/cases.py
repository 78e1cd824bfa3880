"""The operators that ``relayout audit --operators`` runs: what a program writes, by kind.

Each is an expression of ``x``, a tensor of 4 axes (n, 8, 6, 6) or 5 axes (n, 8, 6, 6, 6) in channels-last.
``{d}`` stands for 2 or 3, the number of spatial axes. The other names are those of :func:`names`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

__all__ = ["CASES", "CHANNELS", "SIZE", "Case", "names"]

CHANNELS, SIZE = 8, 6


class Case(NamedTuple):
    """An operator, and how it is called."""

    kind: str
    operator: str
    text: str
    ranks: tuple[int, ...] = (4, 5)


def names(x: torch.Tensor) -> dict[str, Any]:
    """What expressions may name besides ``x``: other operands that go with it."""
    spatial = x.dim() - 2
    channels = x.shape[1]
    dims = (x.shape[0], 2, *x.shape[2:])
    return {
        "torch": torch,
        "F": F,
        "x": x,
        "plain": torch.ones(x.shape),  # the same sizes, contiguous
        "mask": x > 0,
        "bias": torch.ones(1, channels, *(1,) * spatial),
        "index": torch.tensor([1, 0]),
        "wide": torch.zeros(dims, dtype=torch.long),
        "part": torch.ones(dims),
        "grid": torch.zeros(x.shape[0], *x.shape[2:], spatial),
        "weight": torch.randn(channels, channels, *(3,) * spatial),
        "depthwise": torch.randn(channels, 1, *(3,) * spatial),
        "per_channel": torch.ones(channels),
        "square": torch.randn(SIZE, SIZE),
        "ones": (1,) * spatial,
        "twice": (1, 2, *(1,) * spatial),
    }


def _several(kind: str, calls: dict[str, str], ranks: tuple[int, ...] = (4, 5)) -> list[Case]:
    return [Case(kind, operator, text, ranks) for operator, text in calls.items()]


def _methods(kind: str, several: str) -> list[Case]:
    return [Case(kind, name, f"x.{name}()") for name in several.split()]


CASES: tuple[Case, ...] = (
    *_methods("element-wise", "abs neg exp log1p sqrt rsqrt sigmoid tanh sin erf floor round sign relu"),
    *_several(
        "element-wise",
        {
            "gelu": "F.gelu(x)",
            "silu": "F.silu(x)",
            "mish": "F.mish(x)",
            "hardswish": "F.hardswish(x)",
            "leaky_relu": "F.leaky_relu(x)",
            "elu": "F.elu(x)",
            "softplus": "F.softplus(x)",
            "prelu": "F.prelu(x, per_channel)",
            "rrelu": "F.rrelu(x)",
            "glu": "F.glu(x, 1)",
            "clamp": "x.clamp(0, 1)",
            "pow": "x**2",
            "nan_to_num": "x.nan_to_num()",
            "dropout": "F.dropout(x)",
            "dropout{d}d": "F.dropout{d}d(x)",
            "add": "x + x",
            "add a number": "x + 1",
            "add a bias": "x + bias",
            "add to a bias": "bias + x",
            "mul": "x * plain",
            "mul, plain first": "plain * x",
            "add_": "x.clone().add_(plain)",
            "maximum": "torch.maximum(x, plain)",
            "lerp": "torch.lerp(x, plain, 0.5)",
            "addcmul": "torch.addcmul(x, plain, plain)",
            "where": "torch.where(mask, x, 0.0)",
            "where, plain mask": "torch.where(plain > 0, x, 0.0)",
            "comparison": "x > plain",
            "to another type": "x.to(torch.bfloat16)",
            "masked_fill": "x.masked_fill(mask, 0.0)",
            "masked_fill_": "x.clone().masked_fill_(mask, 0.0)",
            "masked_scatter": "x.masked_scatter(mask, plain)",
            "bucketize": "torch.bucketize(x, per_channel)",
        },
    ),
    *_several(
        "new tensors",
        {
            "clone": "x.clone()",
            "contiguous()": "x.contiguous()",
            "empty_like": "torch.empty_like(x)",
            "zeros_like": "torch.zeros_like(x)",
            "rand_like": "torch.rand_like(x)",
            "new_zeros": "x.new_zeros(x.shape)",
            "deepcopy": "__import__('copy').deepcopy(x)",
            "detach": "x.detach()",
        },
    ),
    *_several(
        "convolution",
        {
            "conv{d}d": "F.conv{d}d(x, weight)",
            "conv{d}d, depthwise": "F.conv{d}d(x, depthwise, groups=8)",
            "conv{d}d, strided": "F.conv{d}d(x, weight, stride=2)",
            "conv_transpose{d}d": "F.conv_transpose{d}d(x, weight)",
        },
    ),
    *_several(
        "pooling",
        {
            "max_pool{d}d": "F.max_pool{d}d(x, 2)",
            "max_pool{d}d with indices": "F.max_pool{d}d(x, 2, return_indices=True)[1]",
            "avg_pool{d}d": "F.avg_pool{d}d(x, 2)",
            "lp_pool{d}d": "F.lp_pool{d}d(x, 2, 2)",
            "adaptive_avg_pool{d}d": "F.adaptive_avg_pool{d}d(x, 3)",
            "adaptive_max_pool{d}d": "F.adaptive_max_pool{d}d(x, 3)",
            "fractional_max_pool{d}d": "F.fractional_max_pool{d}d(x, 2, output_size=3)",
            "max_unpool{d}d": "F.max_unpool{d}d(*F.max_pool{d}d(x, 2, return_indices=True), 2)",
        },
    ),
    *_several(
        "normalisation",
        {
            "batch_norm": "F.batch_norm(x, per_channel, per_channel)",
            "batch_norm, training": "F.batch_norm(x, None, None, training=True)",
            "group_norm": "F.group_norm(x, 2)",
            "instance_norm": "F.instance_norm(x)",
            "layer_norm": "F.layer_norm(x, x.shape[1:])",
            "rms_norm": "F.rms_norm(x, x.shape[1:])",
            "normalize": "F.normalize(x, dim=1)",
            "local_response_norm": "F.local_response_norm(x, 2)",
            "softmax over channels": "x.softmax(1)",
            "softmax over w": "x.softmax(-1)",
            "log_softmax": "x.log_softmax(1)",
            "gumbel_softmax": "F.gumbel_softmax(x, dim=1)",
        },
    ),
    *_several(
        "resampling and padding",
        {
            "interpolate, nearest": "F.interpolate(x, scale_factor=2)",
            "interpolate, nearest-exact": "F.interpolate(x, scale_factor=2, mode='nearest-exact')",
            "interpolate, area": "F.interpolate(x, size=3, mode='area')",
            "pad, constant": "F.pad(x, (1, 1, 1, 1))",
            "pad, circular": "F.pad(x, (1, 1) * {d}, 'circular')",
            "pad, reflect": "F.pad(x, (1, 1) * {d}, 'reflect')",
            "pad, replicate": "F.pad(x, (1, 1) * {d}, 'replicate')",
            "grid_sample": "F.grid_sample(x, grid, align_corners=False)",
        },
    ),
    *_several(
        "resampling and padding",
        {
            "interpolate, bilinear": "F.interpolate(x, scale_factor=2, mode='bilinear')",
            "interpolate, antialias": "F.interpolate(x, size=3, mode='bilinear', antialias=True)",
            "interpolate, bicubic": "F.interpolate(x, scale_factor=2, mode='bicubic')",
            "pixel_shuffle": "F.pixel_shuffle(x, 2)",
            "pixel_unshuffle": "F.pixel_unshuffle(x, 2)",
            "unfold and fold": "F.fold(F.unfold(x, 2), (6, 6), 2)",
        },
        (4,),
    ),
    *_several(
        "resampling and padding",
        {"interpolate, trilinear": "F.interpolate(x, scale_factor=2, mode='trilinear')"},
        (5,),
    ),
    *_several(
        "joining and splitting",
        {
            "cat over channels": "torch.cat([x, x], 1)",
            "cat over the batch": "torch.cat([x, x])",
            "cat, one plain": "torch.cat([x, plain], 1)",
            "cat, one of one channel": "torch.cat([x, x[:, :1]], 1)",
            "cat of slices": "torch.cat([x[:, :4], x[:, 4:]], 1)",
            "chunk": "x.chunk(2, 1)[0]",
            "narrow": "x.narrow(1, 0, 4)",
            "repeat": "x.repeat(twice)",
            "tile": "x.tile(twice)",
            "expand and contiguous": "x[:, :1].expand(x.shape).contiguous()",
            "repeat_interleave": "x.repeat_interleave(2, 1)",
            "channel_shuffle": "F.channel_shuffle(x, 2)",
            "stack and sum": "torch.stack([x, x]).sum(0)",
        },
    ),
    *_several(
        "indexing and sorting",
        {
            "x[:, a:b]": "x[:, 2:6]",
            "x[::2]": "x[:, :, ::2]",
            "x[:, index]": "x[:, index]",
            "x[index]": "x[torch.zeros(2, dtype=torch.long)]",
            "index_select": "x.index_select(1, index)",
            "index_add": "x.index_add(1, index, part)",
            "index_copy": "x.index_copy(1, index, part)",
            "index_fill": "x.index_fill(1, index, 0.0)",
            "gather": "x.gather(1, wide)",
            "scatter": "x.scatter(1, wide, 1.0)",
            "scatter_add": "x.scatter_add(1, wide, part)",
            "take_along_dim": "x.take_along_dim(wide, 1)",
            "sort": "x.sort(1)[0]",
            "argsort": "x.argsort(1)",
            "topk": "x.topk(2, 1)[0]",
            "flip": "x.flip(2)",
            "roll": "x.roll(1, 2)",
            "tril": "x.tril()",
            "cumsum": "x.cumsum(1)",
            "cumprod": "x.cumprod(2)",
            "cummax": "x.cummax(1)[0]",
            "diff": "x.diff(dim=2)",
        },
    ),
    *_several(
        "reduction",
        {
            "sum over h": "x.sum(2, keepdim=True)",
            "mean over the batch": "x.mean(0, keepdim=True)",
            "amax over h": "x.amax(2, keepdim=True)",
            "max over h": "x.max(2, keepdim=True)[0]",
            "median over h": "x.median(2, keepdim=True)[0]",
            "logsumexp over h": "x.logsumexp(2, keepdim=True)",
            "var over h": "x.var(2, keepdim=True)",
        },
    ),
    *_several(
        "shape",
        {
            "reshape to itself": "x.reshape(x.shape)",
            "view as itself": "x.view(x.shape)",
            "flatten and unflatten": "x.flatten(2).unflatten(2, x.shape[2:])",
            "squeeze and unsqueeze": "x[0].unsqueeze(0)",
            "split the channels and back": "x.unflatten(1, (2, 4)).flatten(1, 2)",
            "shuffle by hand": "x.unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2)",
            "permute there and back": "x.movedim(1, -1).movedim(-1, 1)",
            "transpose and contiguous": "x.transpose(-1, -2).contiguous()",
            "add an axis of size 1": "x.flatten(2).unsqueeze(-1)",
        },
    ),
    *_several(
        "products",
        {
            "matmul": "x @ square",
            "matmul of itself": "x @ x.mT",
            "linear": "F.linear(x, square)",
            "einsum over channels": "torch.einsum('nc...,cd->nd...', x, torch.ones(8, 8))",
            "einsum over w": "torch.einsum('n...w,wv->n...v', x, square)",
            "cross": "torch.linalg.cross(x[:, :3], x[:, :3], dim=1)",
            "rfft over w": "torch.fft.rfft(x).real",
            "complex": "torch.complex(x, x)",
        },
    ),
)
