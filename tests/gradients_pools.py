"""Gradients of pooling, functions, PReLU, resampling and shuffle, as PyTorch has them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import relayout as rl
from gradients import Case, held
from relayout.convert import convert
from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.primitives import (
    Eltwise,
    EltwiseBackward,
    Pooling,
    PoolingBackward,
    PReLU,
    PReLUBackward,
    Resampling,
    ResamplingBackward,
    Shuffle,
    ShuffleBackward,
)

FORMATS = {
    1: ("ncw", "nwc", "nCw8c", "nCw16c"),
    2: ("nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4", "hwcn"),
    3: ("ncdhw", "ndhwc", "nCdhw16c"),
}
TYPES = ("f32", "f32", "f32", "bf16", "f16")
F = torch.nn.functional

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[float, ...], ...]]] = {
    "relu": (lambda x, a, b: F.leaky_relu(x, a), ((), (0.25,))),
    "tanh": (lambda x, a, b: torch.tanh(x), ((),)),
    "elu": (lambda x, a, b: F.elu(x, a), ((1,), (0.5,))),
    "square": (lambda x, a, b: torch.square(x), ((),)),
    "abs": (lambda x, a, b: torch.abs(x), ((),)),
    "sqrt": (lambda x, a, b: torch.sqrt(x), ((),)),
    "linear": (lambda x, a, b: a * x + b, ((2, 1), (-0.5, 0.25))),
    "soft_relu": (lambda x, a, b: F.softplus(x, a, 1000), ((1,), (2,), (-1,))),
    "hardsigmoid": (lambda x, a, b: torch.clamp(a * x + b, 0, 1), ((0.25, 0.5),)),
    "hardswish": (lambda x, a, b: x * torch.clamp(a * x + b, 0, 1), ((0.25, 0.5),)),
    "logistic": (lambda x, a, b: torch.sigmoid(x), ((),)),
    "exp": (lambda x, a, b: torch.exp(x), ((),)),
    "gelu_tanh": (lambda x, a, b: F.gelu(x, approximate="tanh"), ((),)),
    "gelu_erf": (lambda x, a, b: F.gelu(x), ((),)),
    "erf": (lambda x, a, b: torch.erf(x), ((),)),
    "swish": (lambda x, a, b: x * torch.sigmoid(a * x), ((1,), (1.5,))),
    "log": (lambda x, a, b: torch.log(x), ((),)),
    "clip": (lambda x, a, b: torch.clamp(x, a, b), ((-1, 1),)),
    "clip_v2": (lambda x, a, b: torch.clamp(x, a, b), ((-1, 1), (0, 6))),
    "pow": (lambda x, a, b: a * x**b, ((2, 3), (0.5, 1.5), (1, -1))),
    "mish": (lambda x, a, b: F.mish(x), ((),)),
}
BY_DST = ("relu", "tanh", "elu", "sqrt", "logistic", "exp", "clip_v2")


def desc(rng: random.Random, dims: tuple[int, ...], kind: str | None = None) -> MemoryDesc:
    """Some format of data with these dims."""
    return MemoryDesc(dims, kind or rng.choice(TYPES), rng.choice(FORMATS[len(dims) - 2]))


def gradient(rng: random.Random, like: MemoryDesc) -> MemoryDesc | None:
    """What is said of a gradient: nothing, or any descriptor."""
    return None if rng.randrange(3) else desc(rng, like.dims)


def sizes(rng: random.Random, least: int = 1) -> tuple[int, ...]:
    """Batch, channels, one to three spatial axes."""
    spatial = rng.choice((1, 2, 2, 3))
    most = {1: 40, 2: 14, 3: 6}[spatial]
    return (
        rng.randint(1, 3),
        rng.choice((1, 3, 8, 16, 17, 20)),
        *(rng.randint(least, most) for _ in range(spatial)),
    )


def kept(x: np.ndarray) -> torch.Tensor:
    """A tensor that gets a gradient."""
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


def eltwise(rng: random.Random) -> Case:
    """A function, from its source or from its destination."""
    name = rng.choice(list(FUNCTIONS))
    compute, several = FUNCTIONS[name]
    given = rng.choice(several)
    a, b = (*given, 0.0, 0.0)[:2]
    src = desc(rng, sizes(rng))
    use_dst = name in BY_DST and rng.random() < 0.5
    forward = Eltwise(src, name, desc(rng, src.dims, "f32" if use_dst else None), a, b)
    made = EltwiseBackward(
        forward, diff_dst=gradient(rng, forward.dst), diff_src=gradient(rng, src), use_dst=use_dst
    )
    x = held(rng, src.dims, src.dtype.name)
    if name in ("sqrt", "log", "pow"):
        x = np.asarray(convert(np.abs(x) + 0.25, src.dtype)).astype(np.float64)
    if name in ("clip", "clip_v2", "hardsigmoid", "hardswish", "relu", "elu", "abs"):
        x[np.isin(x, (-2, -1, 0, 1, 2, 6))] = 0.5  # where PyTorch takes another side
    diff = held(rng, src.dims, made.diff_dst.dtype.name)
    tensor = kept(x)
    y = compute(tensor, a, b)
    if use_dst:  # what a destination in f32 holds is what the gradient is of
        y_held = y.detach().numpy().astype(np.float32).astype(np.float64)
        inputs = {"dst": y_held, "diff_dst": diff}
    else:
        inputs = {"src": x, "diff_dst": diff}
    y.backward(torch.tensor(diff))
    return Case(
        made, inputs, {"diff_src": tensor.grad.numpy()}, {"diff_src": np.abs(diff) * (1 + np.abs(x)) ** 3}
    )


def pooling(rng: random.Random) -> Case:
    """A pooling: windows that overlap or leave gaps, borders, dilation of maxima."""
    algorithm = rng.choice(("max", "max", "average_include_padding", "average_exclude_padding"))
    dims = sizes(rng, 2)
    spatial = len(dims) - 2
    kernel = [rng.randint(1, min(5, n)) for n in dims[2:]]
    strides = [rng.randint(1, 4) for _ in kernel]
    padding = [rng.randint(0, k // 2) for k in kernel]
    dilation = [1] * spatial
    if algorithm == "max":
        dilation = [
            rng.randint(1, max(1, (n - 1) // max(1, k - 1))) if k > 1 else 1
            for n, k in zip(dims[2:], kernel, strict=True)
        ]
    src = desc(rng, dims)
    maximum = algorithm == "max"
    try:
        forward = Pooling(src, algorithm, kernel, strides, padding, dilation, workspace=maximum)
    except LayoutError:  # a window that reaches too far, or holds padding only
        return pooling(rng)
    made = PoolingBackward(forward, diff_dst=gradient(rng, forward.dst), diff_src=gradient(rng, src))
    x = held(rng, dims, src.dtype.name)
    diff = held(rng, forward.dst.dims, made.diff_dst.dtype.name)
    tensor = kept(x)
    if maximum:
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[spatial - 1]
        y = pool(tensor, kernel, strides, padding, dilation)
    else:
        pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[spatial - 1]
        y = pool(tensor, kernel, strides, padding, False, algorithm == "average_include_padding")
    y.backward(torch.tensor(diff))
    inputs = {"diff_dst": diff}
    if maximum:
        taken = forward(rl.tensor(x, src.layout, dtype=src.dtype))
        inputs["workspace"] = taken.workspace.numpy().astype(np.float64)
    bound = np.abs(diff).max(initial=0) * np.prod(kernel)
    return Case(made, inputs, {"diff_src": tensor.grad.numpy()}, {"diff_src": bound})


def prelu(rng: random.Random) -> Case:
    """A PReLU with one slope, one for each channel, or others."""
    src = desc(rng, sizes(rng))
    dims = rng.choice((
        (1,) * len(src.dims),
        (1, src.dims[1], *(1,) * (len(src.dims) - 2)),
        src.dims,
        tuple(rng.choice((1, n)) for n in src.dims),
    ))  # fmt: skip
    forward = PReLU(src, desc(rng, dims, "f32"))
    made = PReLUBackward(forward, diff_dst=gradient(rng, src), diff_src=gradient(rng, src))
    x, w = held(rng, src.dims, src.dtype.name), held(rng, dims, "f32")
    diff = held(rng, src.dims, made.diff_dst.dtype.name)
    source, slopes = kept(x), kept(w)
    torch.where(source > 0, source, source * slopes).backward(torch.tensor(diff))
    terms = np.abs(x * diff).sum(made.operation.summed, keepdims=True)
    expected = {"diff_src": source.grad.numpy(), "diff_weights": slopes.grad.numpy()}
    inputs = {"src": x, "weights": w, "diff_dst": diff}
    return Case(made, inputs, expected, {"diff_src": np.abs(diff * w), "diff_weights": terms})


def between(n: int, m: int) -> bool:
    """Whether one of m places lies right between two of n elements.

    PyTorch multiplies by n / m there, rounded: which of the two it takes is chance, such as 12 for (5 + 1/2)
    26 / 11, which is 13 before it is rounded.
    """
    return any((2 * k + 1) * n % (2 * m) == 0 for k in range(m))


def resampling(rng: random.Random) -> Case:
    """Other sizes of spatial axes."""
    dims = sizes(rng)
    algorithm = rng.choice(("nearest", "linear"))
    out = tuple(rng.choice((n, 2 * n, 3 * n, max(1, n // 2), rng.randint(1, 17))) for n in dims[2:])
    if algorithm == "nearest":
        out = tuple(m if n % m == 0 or not between(n, m) else n for n, m in zip(dims[2:], out, strict=True))
    src = desc(rng, dims)
    forward = Resampling(src, algorithm, desc(rng, (*dims[:2], *out)))
    made = ResamplingBackward(forward, diff_dst=gradient(rng, forward.dst), diff_src=gradient(rng, src))
    x, diff = held(rng, dims, src.dtype.name), held(rng, forward.dst.dims, made.diff_dst.dtype.name)
    tensor = kept(x)
    mode = "nearest-exact" if algorithm == "nearest" else ("linear", "bilinear", "trilinear")[len(out) - 1]
    F.interpolate(tensor, out, mode=mode).backward(torch.tensor(diff))
    bound = np.abs(diff).max(initial=0) * np.prod(
        [-(-m // n) + 1 for n, m in zip(dims[2:], out, strict=True)]
    )
    return Case(made, {"diff_dst": diff}, {"diff_src": tensor.grad.numpy()}, {"diff_src": bound})


def shuffle(rng: random.Random) -> Case:
    """Channels in groups."""
    dims = sizes(rng)
    src = desc(rng, dims)
    groups = rng.choice([k for k in range(1, dims[1] + 1) if dims[1] % k == 0])
    forward = Shuffle(src, 1, dims[1] // groups)
    made = ShuffleBackward(forward, diff_dst=gradient(rng, src), diff_src=gradient(rng, src))
    tensor, diff = kept(held(rng, dims, "f32")), held(rng, dims, made.diff_dst.dtype.name)
    rows = tensor.reshape(dims[0], groups, -1, *dims[2:])
    rows.swapaxes(1, 2).reshape(dims).backward(torch.tensor(diff))
    return Case(made, {"diff_dst": diff}, {"diff_src": tensor.grad.numpy()}, {"diff_src": 0.0})


CASES = {
    "EltwiseBackward": eltwise,
    "PoolingBackward": pooling,
    "PReLUBackward": prelu,
    "ResamplingBackward": resampling,
    "ShuffleBackward": shuffle,
}
