"""Random gradients of weights, and what PyTorch says of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import relayout as rl
from gradients import Case, held
from relayout.primitives import (
    Convolution,
    ConvolutionBackwardWeights,
    InnerProduct,
    InnerProductBackwardData,
    InnerProductBackwardWeights,
)

IMAGES = {
    1: ("nc", "cn"),
    3: ("ncw", "nwc", "nCw8c", "nCw16c"),
    4: ("nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4", "CHWN4", "hwcn"),
    5: ("ncdhw", "ndhwc", "nCdhw8c", "nCdhw16c"),
}
WEIGHTS = {2: ("oi", "io"), 3: ("oiw", "Owi16o"), 4: ("oihw", "ohwi", "OIhw16i16o", "Ohwi8o"), 5: ("oidhw",)}
GROUPED = {4: ("goiw",), 5: ("goihw", "gohwi"), 6: ("goidhw",)}


def descriptor(rng: random.Random, dims: tuple[int, ...], kind: str, formats: Any) -> rl.MemoryDesc:
    """A descriptor in one of some formats."""
    return rl.MemoryDesc(dims, kind, rng.choice(formats))


def kind_of(rng: random.Random) -> str:
    """A data type, most often f32."""
    return rng.choice(("f32", "f32", "f32", "bf16", "f16"))


def image(rng: random.Random, dims: tuple[int, ...]) -> rl.MemoryDesc:
    """An image, or gradient of one."""
    return descriptor(rng, dims, kind_of(rng), IMAGES.get(len(dims), ("nc", "cn")))


def magnitudes(*arrays: np.ndarray) -> list[np.ndarray]:
    """Their absolute values."""
    return [np.abs(one) for one in arrays]


def convolution(rng: random.Random) -> Case:
    """Weights of a convolution: groups, depthwise, strides, dilation, padding on one side."""
    import torch

    spatial = rng.choice((1, 2, 2, 2, 3))
    grouped = rng.random() < 0.4
    groups = rng.choice((1, 2, 3, 4, 17, 32)) if grouped else 1
    inputs, outputs = (rng.choice((1, 2, 3, 4, 8, 16, 20, 33) if groups < 16 else (1, 2, 4)) for _ in "io")
    if grouped and rng.random() < 0.4:
        outputs = inputs
    batch = rng.choice((1, 2, 3, 5))
    kernel = [rng.choice((1, 1, 2, 3, 5)) for _ in range(spatial)]
    strides = [rng.choice((1, 1, 2, 3)) for _ in range(spatial)]
    dilation = [rng.choice((1, 1, 2)) for _ in range(spatial)]
    padding = [(rng.randrange(3), rng.randrange(3)) for _ in range(spatial)]
    sizes = [
        max((k - 1) * d + 1 - sum(p), 1) + rng.choice((0, 1, 4, 9, 20) if spatial < 3 else (0, 1, 3))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    src = image(rng, (batch, groups * inputs, *sizes))
    dims = (groups,) * grouped + (outputs, inputs, *kernel)
    table = GROUPED if grouped else WEIGHTS
    weights = descriptor(rng, dims, kind_of(rng), table[len(dims)])
    bias = rl.MemoryDesc((groups * outputs,), "f32", "a") if rng.random() < 0.3 else None
    windows: dict[str, Any] = {"strides": strides, "dilation": dilation, "padding": padding}
    forward = Convolution(src, weights, bias, **windows)
    diff = image(rng, forward.dst.dims)
    free: dict[str, Any] = {"diff_weights": rl.any} if rng.random() < 0.5 else {}
    made = ConvolutionBackwardWeights(forward, diff_dst=diff, **free)
    x, g = held(rng, src.dims, src.dtype.name), held(rng, diff.dims, diff.dtype.name)

    def gradient(x: np.ndarray, g: np.ndarray) -> np.ndarray:
        spread = [p for pair in reversed(padding) for p in pair]
        given = torch.nn.functional.pad(torch.from_numpy(x), spread)
        w = torch.zeros((groups * outputs, inputs, *kernel), dtype=torch.float64, requires_grad=True)
        of = getattr(torch.nn.functional, f"conv{spatial}d")
        y = of(given, w, stride=strides, dilation=dilation, groups=groups)
        y.backward(torch.from_numpy(g))
        assert w.grad is not None
        return np.asarray(w.grad.numpy()).reshape(dims)

    expected = {"diff_weights": gradient(x, g)}
    terms: dict[str, np.ndarray | float] = {"diff_weights": gradient(*magnitudes(x, g))}
    if bias is not None:
        axes = (0, *range(2, g.ndim))
        expected["diff_bias"], terms["diff_bias"] = g.sum(axis=axes), np.abs(g).sum(axis=axes)
    return Case(made, {"src": x, "diff_dst": g}, expected, terms)


def _inner_product(rng: random.Random) -> tuple[InnerProduct, rl.MemoryDesc]:
    spatial = rng.choice((0, 0, 1, 2, 3))
    dims = (
        rng.choice((1, 2, 7, 33)),
        rng.choice((1, 3, 16, 40)),
        *(rng.randint(1, 4) for _ in range(spatial)),
    )
    src = image(rng, dims)
    weights = descriptor(rng, (rng.choice((1, 5, 16, 50)), *dims[1:]), kind_of(rng), WEIGHTS[spatial + 2])
    bias = rl.MemoryDesc(weights.dims[:1], "f32", "a") if rng.random() < 0.5 else None
    forward = InnerProduct(src, weights, bias)
    return forward, image(rng, forward.dst.dims)


def inner_product_weights(rng: random.Random) -> Case:
    """Weights and bias of an inner product."""
    import torch

    forward, diff = _inner_product(rng)
    free: dict[str, Any] = {"diff_weights": rl.any} if rng.random() < 0.5 else {}
    made = InnerProductBackwardWeights(forward, diff_dst=diff, **free)
    x, g = held(rng, made.src.dims, made.src.dtype.name), held(rng, diff.dims, diff.dtype.name)

    def gradient(x: np.ndarray, g: np.ndarray) -> dict[str, np.ndarray]:
        dims = made.diff_weights.dims
        w = torch.zeros((dims[0], int(np.prod(dims[1:]))), dtype=torch.float64, requires_grad=True)
        b = torch.zeros(dims[:1], dtype=torch.float64, requires_grad=True)
        y = torch.nn.functional.linear(torch.from_numpy(x).flatten(1), w, b)
        y.backward(torch.from_numpy(g))
        assert w.grad is not None
        assert b.grad is not None
        found = {"diff_weights": w.grad.numpy().reshape(dims), "diff_bias": b.grad.numpy()}
        return {name: found[name] for name in made.outputs}

    return Case(made, {"src": x, "diff_dst": g}, gradient(x, g), dict(gradient(*magnitudes(x, g))))


def inner_product_data(rng: random.Random) -> Case:
    """The source of an inner product."""
    import torch

    forward, diff = _inner_product(rng)
    free: dict[str, Any] = {"weights": rl.any} if rng.random() < 0.3 else {}
    made = InnerProductBackwardData(forward, diff_dst=diff, **free)
    w = held(rng, made.weights.dims, made.weights.dtype.name)
    g = held(rng, diff.dims, diff.dtype.name)

    def gradient(w: np.ndarray, g: np.ndarray) -> np.ndarray:
        dims = made.diff_src.dims
        x = torch.zeros(dims, dtype=torch.float64, requires_grad=True)
        y = torch.nn.functional.linear(x.flatten(1), torch.from_numpy(w).flatten(1))
        y.backward(torch.from_numpy(g))
        assert x.grad is not None
        return np.asarray(x.grad.numpy())

    expected, terms = gradient(w, g), gradient(*magnitudes(w, g))
    return Case(made, {"weights": w, "diff_dst": g}, {"diff_src": expected}, {"diff_src": terms})


CASES = {
    "ConvolutionBackwardWeights": convolution,
    "InnerProductBackwardWeights": inner_product_weights,
    "InnerProductBackwardData": inner_product_data,
}
