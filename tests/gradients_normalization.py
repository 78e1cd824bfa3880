"""What PyTorch says of the gradients of normalisations, softmax and local response normalisation."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import torch

import relayout as rl
from gradients import Case, held
from relayout import primitives
from relayout.primitives.primitive import Primitive

TYPES = ("f32", "f32", "bf16", "f16")
IMAGES = {
    2: ("nc", "cn"),
    3: ("ncw", "nwc", "nCw16c", "cba"),
    4: ("nchw", "nhwc", "nChw8c", "nChw16c", "chwn"),
    5: ("ncdhw", "ndhwc", "nCdhw16c"),
}


def drawn(rng: random.Random, rank: int, channels: int) -> rl.MemoryDesc:
    """An image of any format and data type."""
    dims = (rng.randint(1, 4), channels, *(rng.randint(1, 7) for _ in range(rank - 2)))
    return rl.MemoryDesc(dims, rng.choice(TYPES), rng.choice(IMAGES[rank]))


def other(rng: random.Random, desc: rl.MemoryDesc) -> rl.MemoryDesc | None:
    """Now and then another format for an argument."""
    if rng.randint(0, 3):
        return None
    return rl.MemoryDesc(desc.dims, desc.dtype, rng.choice(IMAGES[desc.rank]))


def settled(
    made: Primitive,
    inputs: Mapping[str, np.ndarray],
    forward: Callable[..., torch.Tensor],
    over: Mapping[str, str],
    factor: np.ndarray,
) -> Case:
    """The case: PyTorch's gradients of a forward function for what outputs are named after.

    Parameters
    ----------
    made : Primitive
    inputs : mapping of str to ndarray
    forward : callable
        Of tensors by name.
    over : mapping of str to str
        For each output the variable that it is the gradient of.
    factor : ndarray
        What a gradient that comes in is multiplied by, in magnitude.
    """
    variables = {}
    for name in over.values():
        known = inputs.get(name)
        dims = made.descs[f"diff_{name}"].dims
        variables[name] = torch.tensor(np.zeros(dims) if known is None else known, requires_grad=True)
    found = forward(**variables)
    grads = torch.autograd.grad(found, list(variables.values()), torch.tensor(inputs["diff_dst"]))
    expected = {name: grad.numpy() for name, grad in zip(over, grads, strict=True)}
    size = np.abs(inputs["diff_dst"]).max(initial=1) * 8
    count = max(1, inputs["diff_dst"].size)
    terms = {name: size * (factor.max(initial=1) if name == "diff_src" else count) for name in over}
    return Case(made, inputs, expected, terms)


def batch(rng: random.Random) -> Case:
    """Statistics of its own or given ones, with a fused ReLU now and then."""
    channels = rng.choice((1, 3, 16, 17, 40))
    src = drawn(rng, rng.randint(2, 5), channels)
    scale, shift, given, relu = (rng.random() < 0.5 for _ in range(4))
    forward = primitives.BatchNormalization(
        src, None, 0.125, use_scale=scale, use_shift=shift, use_global_stats=given, fuse_relu=relu,
        workspace=relu,
    )  # fmt: skip
    made = primitives.BatchNormalizationBackward(forward, diff_dst=other(rng, src), diff_src=other(rng, src))
    x, d = (held(rng, src.dims, made.descs[name].dtype.name) for name in ("src", "diff_dst"))
    over = tuple(k for k in range(x.ndim) if k != 1)
    mean, variance = x.mean(over), x.var(over)
    if given:
        mean, variance = held(rng, (channels,), "f32"), np.abs(held(rng, (channels,), "f32"))
    mean, variance = (one.astype(np.float32).astype(np.float64) for one in (mean, variance))
    inputs = {"src": x, "diff_dst": d, "mean": mean, "variance": variance}
    if scale:
        inputs["scale"] = held(rng, (channels,), "f32")
    if relu:
        inputs["workspace"] = (np.random.default_rng(rng.getrandbits(32)).random(src.dims) < 0.5) * 1.0

    def normal(src, scale=None, shift=None):
        y = torch.nn.functional.batch_norm(
            src, torch.tensor(mean), torch.tensor(variance), scale, shift, not given, eps=0.125
        ) if given or src.numel() > channels else (
            torch.zeros_like(src) * src * (1 if scale is None else scale.reshape(-1, *[1] * (x.ndim - 2)))
            + (0 if shift is None else shift.reshape(-1, *[1] * (x.ndim - 2)))
        )  # fmt: skip
        return y * torch.tensor(inputs["workspace"]) if relu else y

    over = {f"diff_{name}": name for name in ("src", *["scale"] * scale, *["shift"] * shift)}
    factor = np.abs(inputs.get("scale", np.ones(1))) * 8
    return settled(made, inputs, normal, over, factor)


def rows(rng: random.Random) -> Case:
    """Layer and RMS normalisation."""
    rank = rng.randint(2, 4)
    src = drawn(rng, rank, rng.choice((1, 5, 16, 33)))
    count, rms, scale, shift = rng.randint(1, rank), *(rng.random() < 0.5 for _ in range(3))
    given = rng.random() < 0.25
    forward = primitives.LayerNormalization(
        src, scale, shift, axes=count, epsilon=0.125, rms=rms, statistics=not given, use_global_stats=given
    )
    made = primitives.LayerNormalizationBackward(forward, diff_dst=other(rng, src), diff_src=other(rng, src))
    x, d = (held(rng, src.dims, made.descs[name].dtype.name) for name in ("src", "diff_dst"))
    over = tuple(range(rank - count, rank))
    mean = 0 * x.mean(over) if rms else x.mean(over)
    variance = np.square(x).mean(over) if rms else x.var(over)
    if given:
        mean, variance = (np.asarray(held(rng, made.variance.dims, "f32")) for _ in range(2))
        mean, variance = 0 * mean if rms else mean, np.abs(variance)
    inputs = {"src": x, "diff_dst": d, "variance": variance.reshape(made.variance.dims)}
    if not rms:
        inputs["mean"] = mean.reshape(made.mean.dims)
    table = src.dims[rank - count :]
    if scale:
        inputs["scale"] = held(rng, table, "f32")
    names = {f"diff_{name}": name for name in ("src", *["scale"] * scale, *["shift"] * shift)}

    def normal(src, scale=None, shift=None):
        if given:
            each = (*src.shape[: rank - count], *(1 for _ in over))
            y = (src - torch.tensor(mean).reshape(each)) / torch.sqrt(
                torch.tensor(variance).reshape(each) + 0.125
            )
            y = y if scale is None else y * scale
            return y if shift is None else y + shift
        if rms:
            y = torch.nn.functional.rms_norm(src, table, scale, eps=0.125)
            return y if shift is None else y + shift
        return torch.nn.functional.layer_norm(src, table, scale, shift, eps=0.125)

    factor = np.abs(inputs.get("scale", np.ones(1))) * 8
    return settled(made, inputs, normal, names, factor)


def groups(rng: random.Random) -> Case:
    """Group and instance normalisation."""
    many, each = rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 5, 8))
    src = drawn(rng, rng.randint(2, 5), many * each)
    scale, shift = (rng.random() < 0.5 for _ in range(2))
    given = rng.random() < 0.25
    forward = primitives.GroupNormalization(
        src, scale, shift, groups=many, epsilon=0.125, statistics=not given, use_global_stats=given
    )
    made = primitives.GroupNormalizationBackward(forward, diff_dst=other(rng, src), diff_src=other(rng, src))
    x, d = (held(rng, src.dims, made.descs[name].dtype.name) for name in ("src", "diff_dst"))
    seen = x.reshape(len(x), many, -1)
    mean, variance = seen.mean(2), seen.var(2)
    if given:
        mean, variance = held(rng, mean.shape, "f32"), np.abs(held(rng, mean.shape, "f32"))
    inputs = {"src": x, "diff_dst": d, "mean": mean, "variance": variance}
    if scale:
        inputs["scale"] = held(rng, (many * each,), "f32")
    names = {f"diff_{name}": name for name in ("src", *["scale"] * scale, *["shift"] * shift)}

    def normal(src, scale=None, shift=None):
        y = src.reshape(len(x), many, -1)
        if given:
            y = (y - torch.tensor(mean)[..., None]) / torch.sqrt(torch.tensor(variance)[..., None] + 0.125)
        else:
            y = torch.nn.functional.layer_norm(y, seen.shape[2:], eps=0.125)
        y, by = y.reshape(x.shape), (-1, *(1 for _ in x.shape[2:]))
        y = y if scale is None else y * scale.reshape(by)
        return y if shift is None else y + shift.reshape(by)

    factor = np.abs(inputs.get("scale", np.ones(1))) * 8
    return settled(made, inputs, normal, names, factor)


def softmax(rng: random.Random) -> Case:
    """From the result, which PyTorch is given as the logarithm of what it takes the softmax of."""
    src = drawn(rng, rng.randint(2, 5), rng.choice((1, 5, 16, 33, 100)))
    axis, log = rng.randrange(src.rank), rng.random() < 0.5
    made = primitives.SoftmaxBackward(
        primitives.Softmax(src, axis, log=log), diff_dst=other(rng, src), diff_src=other(rng, src)
    )
    x, d = (held(rng, src.dims, made.diff_dst.dtype.name) for _ in range(2))
    of = torch.log_softmax if log else torch.softmax
    y = rl.reorder(of(torch.tensor(x), axis).numpy(), made.dst).numpy().astype(np.float64)
    exact = torch.tensor(d)
    if log:
        found = exact - torch.exp(torch.tensor(y)) * exact.sum(axis, keepdim=True)
    else:
        found = torch.ops.aten._softmax_backward_data(exact, torch.tensor(y), axis, torch.float64)
    terms = np.abs(d).sum(axis, keepdims=True) + np.abs(d)
    return Case(made, {"dst": y, "diff_dst": d}, {"diff_src": found.numpy()}, {"diff_src": terms})


def responses(rng: random.Random) -> Case:
    """Across channels PyTorch has it; within a channel it is written out."""
    src = drawn(rng, rng.randint(3, 5), rng.choice((1, 5, 16, 33)))
    size, within = rng.randint(1, 6), rng.random() < 0.5
    alpha, beta, k = rng.choice((1e-2, 1.0)), rng.choice((0.5, 0.75, 1.0)), rng.choice((1.0, 2.0))
    forward = primitives.LRN(
        src, algorithm=("across_channels", "within_channel")[within], size=size, alpha=alpha, beta=beta, k=k
    )
    made = primitives.LRNBackward(forward, diff_dst=other(rng, src), diff_src=other(rng, src))
    x, d = (held(rng, src.dims, made.descs[name].dtype.name) for name in ("src", "diff_dst"))
    alpha, beta, k = forward.alpha, forward.beta, forward.k

    def normal(src):
        square = (src * src)[:, None]
        if not within:
            square = square.flatten(3)
        axes = 3 if not within else x.ndim - 2
        front, back = (size - 1) // 2, size // 2
        window = [1 if not within else size] * axes
        if not within:
            square, window = square[..., None] if square.ndim == 4 else square, [size, 1, 1]
            padding = [0, 0, 0, 0, front, back]
        else:
            square, padding = square.flatten(0, 2)[:, None], [front, back] * axes
        square = torch.nn.functional.pad(square, padding)
        weights = torch.full((1, 1, *window), 1 / np.prod(window), dtype=torch.float64)
        convolve = getattr(torch.nn.functional, f"conv{len(window)}d")
        return src / (k + alpha * convolve(square, weights).reshape(src.shape)) ** beta

    return settled(made, {"src": x, "diff_dst": d}, normal, {"diff_src": "src"}, np.float64([8.0]))


CASES = {
    "BatchNormalizationBackward": batch,
    "LayerNormalizationBackward": rows,
    "GroupNormalizationBackward": groups,
    "SoftmaxBackward": softmax,
    "LRNBackward": responses,
}
