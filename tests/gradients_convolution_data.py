"""Gradients of data of convolutions and deconvolutions, drawn at random, and what PyTorch says of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import relayout as rl
from gradients import Case, held
from relayout.errors import LayoutError
from relayout.primitives import (
    Convolution,
    ConvolutionBackwardData,
    Deconvolution,
    DeconvolutionBackwardData,
    DeconvolutionBackwardWeights,
)

FORMATS = {
    1: ("ncw", "nwc", "nCw8c", "nCw16c"),
    2: ("nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4", "CHWN4", "b_fs_yx_fsv32"),
    3: ("ncdhw", "ndhwc", "nCdhw16c"),
}


def attributes(rng: random.Random) -> dict[str, Any]:
    """Sizes of a convolution or deconvolution."""
    axes = rng.choice((1, 2, 2, 2, 3))

    def several(*given: int) -> list[int]:
        return [rng.choice(given) for _ in range(axes)]

    groups = rng.choice((0, 0, 0, 1, 2, 3, 8, 16))
    channels = [rng.choice((1, 2, 3, 5, 8, 16, 20, 33)) for _ in range(2)]
    if groups > 3:
        channels = [rng.choice((1, 1, 2, 4))] * 2
    return {
        "groups": groups,
        "channels": channels,
        "kernel": several(1, 1, 2, 3, 3, 4, 5),
        "sizes": several(*range(1, 9)),
        "batch": rng.choice((1, 2, 3)),
        "strides": several(1, 1, 2, 2, 3),
        "dilation": several(1, 1, 2, 3),
        "padding": list(zip(several(0, 1, 2), several(0, 1, 2), strict=True)),
    }


def forward(rng: random.Random, kind: type[Convolution | Deconvolution]) -> tuple[Any, dict[str, Any]]:
    """A forward primitive in formats at random, and its sizes."""
    while True:
        one = attributes(rng)
        groups, (o, i), axes = one["groups"], one["channels"], len(one["kernel"])
        dtype = rng.choice(("f32", "f32", "bf16", "f16"))
        src = one["batch"], max(1, groups) * i, *one["sizes"]
        weights = *([groups] if groups else []), o, i, *one["kernel"]
        settings = {name: one[name] for name in ("strides", "dilation", "padding")}
        if kind is Deconvolution:
            most = [max(s, d) for s, d in zip(one["strides"], one["dilation"], strict=True)]
            settings["output_padding"] = [rng.randrange(n) for n in most]
        try:
            made = kind(
                rl.MemoryDesc(src, dtype, rng.choice((*FORMATS[axes], rl.any))),
                rl.MemoryDesc(weights, dtype, rl.any),
                **settings,
            )
        except LayoutError:  # the filter is larger than the source, or the padding than the result
            continue
        if 0 not in made.dst.dims:
            return made, one


def drawn(rng: random.Random, kind: type[Any], of: type[Convolution | Deconvolution]) -> Case:
    """A gradient's configuration, and what PyTorch says."""
    import torch

    made, one = forward(rng, of)
    given = {name: rng.choice((None, rl.any)) for name in ("diff_dst", "weights", "diff_src")}
    primitive = kind(made, **given)
    inputs = {
        name: held(rng, primitive.descs[name].dims, primitive.descs[name].dtype.name)
        for name in ("weights", "diff_dst")
    }
    return Case(
        primitive,
        inputs,
        {"diff_src": gradient(torch, made, one, inputs["weights"], inputs["diff_dst"])},
        {"diff_src": gradient(torch, made, one, abs(inputs["weights"]), abs(inputs["diff_dst"]))},
    )


def gradient(torch: Any, made: Any, one: dict[str, Any], weights: np.ndarray, diff: np.ndarray) -> np.ndarray:
    """PyTorch's gradient of the source, in double precision."""
    src = torch.zeros(made.src.dims, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        applied(torch, made, one, src, torch.from_numpy(weights)), src, torch.from_numpy(diff)
    )
    found: np.ndarray = gradient.numpy()
    return found


def applied(torch: Any, made: Any, one: dict[str, Any], src: Any, weights: Any) -> Any:
    """The forward pass as PyTorch computes it."""
    groups, (o, i), kernel = max(1, one["groups"]), one["channels"], one["kernel"]
    axes, functional = len(kernel), torch.nn.functional
    filters = weights.reshape(groups, o, i, *kernel)
    settings = {"stride": one["strides"], "dilation": one["dilation"], "groups": groups}
    if isinstance(made, Deconvolution):
        filters = filters.transpose(1, 2).reshape(groups * i, o, *kernel)
        whole = getattr(functional, f"conv_transpose{axes}d")(src, filters, **settings)
        sizes = made.dst.dims[2:]
        pads = [
            (0, size + front - whole.shape[2 + k])
            for k, (size, (front, _)) in enumerate(zip(sizes, one["padding"], strict=True))
        ]
        whole = functional.pad(whole, [n for pair in reversed(pads) for n in pair])
        inside = (slice(front, front + size) for size, (front, _) in zip(sizes, one["padding"], strict=True))
        return whole[(..., *inside)]
    padded = functional.pad(src, [n for pair in reversed(one["padding"]) for n in pair])
    return getattr(functional, f"conv{axes}d")(padded, filters.reshape(groups * o, i, *kernel), **settings)


def of_weights(rng: random.Random) -> Case:
    """A configuration of :class:`DeconvolutionBackwardWeights`."""
    import torch

    made, one = forward(rng, Deconvolution)
    names = ("src", "diff_dst", "diff_weights")
    primitive = DeconvolutionBackwardWeights(made, **{name: rng.choice((None, rl.any)) for name in names})
    inputs = {name: held(rng, primitive.descs[name].dims, primitive.descs[name].dtype.name)
              for name in primitive.inputs}  # fmt: skip

    def gradient(src: np.ndarray, diff: np.ndarray) -> np.ndarray:
        weights = torch.zeros(made.weights.dims, dtype=torch.float64, requires_grad=True)
        result = applied(torch, made, one, torch.from_numpy(src), weights)
        (gradient,) = torch.autograd.grad(result, weights, torch.from_numpy(diff))
        found: np.ndarray = gradient.numpy()
        return found

    given = inputs["src"], inputs["diff_dst"]
    terms = {"diff_weights": gradient(*map(abs, given))}
    return Case(primitive, inputs, {"diff_weights": gradient(*given)}, terms)


def of_convolution(rng: random.Random) -> Case:
    """A configuration of :class:`ConvolutionBackwardData`."""
    return drawn(rng, ConvolutionBackwardData, Convolution)


def of_deconvolution(rng: random.Random) -> Case:
    """A configuration of :class:`DeconvolutionBackwardData`."""
    return drawn(rng, DeconvolutionBackwardData, Deconvolution)


CASES = {
    "ConvolutionBackwardData": of_convolution,
    "DeconvolutionBackwardData": of_deconvolution,
    "DeconvolutionBackwardWeights": of_weights,
}
