"""Any primitive of any sizes, drawn: what all kernels have to stand, whatever sizes their own tests have.

Kernels for special cases are tested with sizes that suit them. What is wrong with them shows with others:
axes of one element, windows larger than the picture, one window along an axis, tails of every length. So
:func:`drawn` takes any kind of primitive, one to three spatial axes, formats and data types at random, and
sizes of which a third are 1. Half of the windows are such as networks have, since kernels are made for those.

>>> import random
>>> isinstance(drawn(random.Random(3)), Primitive)
True
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import prod
from random import Random
from typing import Any

import relayout as rl
from relayout import LayoutError, MemoryDesc
from relayout import primitives as p
from relayout.primitives.primitive import Primitive

__all__ = ["KINDS", "MOST", "drawn"]

MOST = 6000
"""Elements of a tensor: definitions are slow."""

FORMATS = {
    2: ("ab", "ba", "aB8b", "Ab4a"),
    3: ("abc", "acb", "aBc8b", "aBc16b", "cab", "bac"),
    4: ("nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4", "CHWN4", "b_fs_yx_fsv32", "abdc", "aBcd3b", "aBcd7b"),
    5: ("ncdhw", "ndhwc", "nCdhw8c", "nCdhw16c", "acbed"),
}
BLOCKS = 2, 3, 4, 5, 7, 8, 9, 16
WEIGHTS = {3: ("oiw", "owi"), 4: ("oihw", "ohwi", "OIhw8i8o", "hwio"), 5: ("oidhw", "odhwi")}
TYPES = ("f32", "f32", "bf16", "f16", "s8", "u8")
REALS = ("f32", "f32", "bf16", "f16")


class Draw:
    """What is drawn: numbers, sizes, descriptors."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def one(self, *among: Any) -> Any:
        """One of several."""
        return self.rng.choice(among)

    def flag(self) -> bool:
        """Whether."""
        return self.rng.random() < 0.5

    def size(self, most: int = 40) -> int:
        """1, a few, or any number up to ``most``."""
        return self.rng.choice((1, self.rng.randint(1, min(5, most)), self.rng.randint(1, most)))

    def dims(self, rank: int) -> tuple[int, ...]:
        """Sizes that are few elements together; tensors with nothing in them now and then."""
        while True:
            channels = self.rng.choice((8, 16, 32, self.size(36), self.size(36)))
            dims = [self.size(3), channels, *(self.size(40) for _ in range(rank - 2))][:rank]
            if self.rng.random() < 0.02:
                dims[self.rng.randrange(rank)] = 0
            if prod(dims) <= MOST:
                return tuple(dims)

    def desc(self, dims: tuple[int, ...], kind: str) -> MemoryDesc:
        """One of the formats of this rank that are in use, or one that nobody has heard of."""
        rng, rank = self.rng, len(dims)
        if rng.random() < 0.75:
            return MemoryDesc(dims, kind, rng.choice(FORMATS[rank]))
        order = rng.sample("abcde"[:rank], rank)
        blocked = rng.sample(order, rng.randint(0, min(2, rank)))
        outer = "".join(axis.upper() if axis in blocked else axis for axis in order)
        return MemoryDesc(dims, kind, outer + "".join(f"{rng.choice(BLOCKS)}{axis}" for axis in blocked))

    def tensor(self, low: int = 2, high: int = 5, kinds: tuple[str, ...] = TYPES) -> MemoryDesc:
        """Any tensor."""
        return self.desc(self.dims(self.rng.randint(low, high)), self.rng.choice(kinds))

    def windows(self, axes: int) -> dict[str, Any]:
        """Windows that may be larger than what they look at."""
        rng = self.rng
        if self.flag():
            taps, step = rng.choice((2, 3, 3, 5)), rng.choice((1, 1, 2))
            return {"kernel": [taps] * axes, "strides": [step] * axes, "padding": [(taps // 2,) * 2] * axes}
        kernel = [self.size(5) for _ in range(axes)]
        return {
            "kernel": kernel,
            "strides": [rng.randint(1, 3) for _ in range(axes)],
            "padding": [(rng.randrange(k), rng.randrange(k)) for k in kernel],
            "dilation": [rng.choice((1, 1, 2)) for _ in range(axes)],
        }


def _pooling(d: Draw) -> Primitive:
    src = d.tensor(3)
    algorithm = d.one("max", "average_include_padding", "average_exclude_padding")
    return p.Pooling(src, algorithm, **d.windows(len(src.dims) - 2))


def _pooling_backward(d: Draw) -> Primitive:
    src = d.tensor(3, kinds=REALS)
    algorithm = d.one("average_include_padding", "average_exclude_padding")
    return p.PoolingBackward(p.Pooling(src, algorithm, **d.windows(len(src.dims) - 2)))


def _resampling(d: Draw) -> Primitive:
    src = d.tensor(3)
    sizes = (*src.dims[:2], *(d.size(30) for _ in src.dims[2:]))
    return p.Resampling(src, d.one("nearest", "linear"), d.desc(sizes, src.dtype.name))


def _softmax(d: Draw) -> Primitive:
    src = d.tensor(kinds=REALS)
    return p.Softmax(src, d.rng.randrange(len(src.dims)), log=d.flag())


def _layer_normalization(d: Draw) -> Primitive:
    src = d.tensor(kinds=REALS)
    return p.LayerNormalization(src, d.flag(), axes=d.rng.randint(1, len(src.dims) - 1), rms=d.flag())


def _eltwise(d: Draw) -> Primitive:
    return p.Eltwise(d.tensor(), d.one("relu", "hardswish", "abs", "square", "tanh"))


def _binary(d: Draw) -> Primitive:
    one = d.tensor()
    dims = tuple(1 if d.rng.random() < 0.3 else n for n in one.dims)
    return p.Binary(d.one("add", "mul", "max", "sub"), one, d.desc(dims, d.rng.choice(TYPES)))


def _sum(d: Draw) -> Primitive:
    one = d.tensor()
    others = [d.desc(one.dims, d.rng.choice(TYPES)) for _ in range(d.rng.randint(1, 2))]
    return p.Sum([one, *others], [d.rng.choice((1, -2, 0.5)) for _ in range(1 + len(others))])


def _reduction(d: Draw) -> Primitive:
    src = d.tensor()
    axes = d.rng.sample(range(len(src.dims)), d.rng.randint(1, len(src.dims)))
    return p.Reduction(src, d.one("sum", "max", "min", "mean"), sorted(axes))


def _concat(d: Draw) -> Primitive:
    one = d.tensor()
    axis = d.rng.randrange(len(one.dims))
    sizes = [d.size(12) for _ in range(d.rng.randint(1, 2))]
    others = [d.desc((*one.dims[:axis], n, *one.dims[axis + 1 :]), one.dtype.name) for n in sizes]
    return p.Concat([one, *others], axis)


def _shuffle(d: Draw) -> Primitive:
    src = d.tensor()
    axis = d.rng.randrange(len(src.dims))
    return p.Shuffle(src, axis, d.rng.choice([n for n in range(1, 9) if src.dims[axis] % n == 0]))


def _reorder(d: Draw) -> Primitive:
    src = d.tensor()
    return p.Reorder(src, d.desc(src.dims, d.rng.choice(TYPES)))


def _convolution(d: Draw) -> Primitive:
    src = d.tensor(3, kinds=(*REALS, "s8", "u8"))
    windows, channels = d.windows(len(src.dims) - 2), src.dims[1]
    taps, made = windows.pop("kernel"), d.size(20)
    kind = "s8" if src.dtype.name == "u8" else src.dtype.name
    groups = d.rng.choice([1, 1, *(n for n in (2, channels) if channels and channels % n == 0)])
    if groups == 1:
        dims = made, channels, *taps
        weights = MemoryDesc(dims, kind, d.one(rl.any, *WEIGHTS[len(dims)]))
    else:
        weights = MemoryDesc((groups, made, channels // groups, *taps), kind, rl.any)
    ops = "relu" if d.flag() else ()
    with suppress(LayoutError):  # few sizes have the algorithm
        return p.Convolution(src, weights, post_ops=ops, **windows, algorithm=d.one("winograd", "auto"))
    return p.Convolution(src, weights, post_ops=ops, **windows)


def _deconvolution(d: Draw) -> Primitive:
    src = d.tensor(3, kinds=REALS)
    windows = d.windows(len(src.dims) - 2)
    dims = d.size(20), src.dims[1], *windows.pop("kernel")
    return p.Deconvolution(src, MemoryDesc(dims, src.dtype, rl.any), **windows)


def _convolution_backward_data(d: Draw) -> Primitive:
    return p.ConvolutionBackwardData(_of_reals(_convolution, d))


def _convolution_backward_weights(d: Draw) -> Primitive:
    return p.ConvolutionBackwardWeights(_of_reals(_convolution, d))


def _deconvolution_backward_data(d: Draw) -> Primitive:
    return p.DeconvolutionBackwardData(_deconvolution(d))


def _deconvolution_backward_weights(d: Draw) -> Primitive:
    return p.DeconvolutionBackwardWeights(_deconvolution(d))


def _of_reals(make: Callable[[Draw], Primitive], d: Draw) -> Any:
    """A layer that has gradients: of floating-point numbers, with nothing behind it."""
    while True:
        with suppress(LayoutError):
            made = make(d)
            if made.src.dtype.is_float and not made.operation.post_ops:
                return made


def _inner_product(d: Draw) -> Primitive:
    src = d.tensor(kinds=REALS)
    dims = d.size(20), *src.dims[1:]
    return p.InnerProduct(src, MemoryDesc(dims, src.dtype, rl.any))


def _inner_product_backward_data(d: Draw) -> Primitive:
    return p.InnerProductBackwardData(_inner_product(d))


def _inner_product_backward_weights(d: Draw) -> Primitive:
    return p.InnerProductBackwardWeights(_inner_product(d))


def _resampling_backward(d: Draw) -> Primitive:
    return p.ResamplingBackward(_of_reals(_resampling, d))


def _prelu(d: Draw) -> Primitive:
    src = d.tensor(kinds=REALS)
    dims = tuple(n if k == 1 or d.flag() else 1 for k, n in enumerate(src.dims))
    return p.PReLU(src, d.desc(dims, src.dtype.name))


def _group_normalization(d: Draw, **more: Any) -> Primitive:
    src = d.tensor(3, kinds=REALS)
    groups = d.rng.choice([n for n in range(1, 9) if src.dims[1] % n == 0])
    return p.GroupNormalization(src, groups=groups, **more)


def _batch_normalization(d: Draw) -> Primitive:
    src = d.tensor(3, kinds=REALS)
    scale, shift = d.flag(), d.flag()
    return p.BatchNormalization(
        src, use_scale=scale, use_shift=shift, use_global_stats=d.flag(), fuse_relu=d.flag()
    )


def _batch_normalization_backward(d: Draw) -> Primitive:
    return p.BatchNormalizationBackward(
        p.BatchNormalization(d.tensor(3, kinds=REALS), use_scale=d.flag(), use_global_stats=d.flag())
    )


def _layer_normalization_backward(d: Draw) -> Primitive:
    src = d.tensor(kinds=REALS)
    axes = d.rng.randint(1, len(src.dims) - 1)
    return p.LayerNormalizationBackward(p.LayerNormalization(src, d.flag(), axes=axes, statistics=True))


def _group_normalization_backward(d: Draw) -> Primitive:
    return p.GroupNormalizationBackward(_group_normalization(d, statistics=True))


def _softmax_backward(d: Draw) -> Primitive:
    return p.SoftmaxBackward(_softmax(d))


def _eltwise_backward(d: Draw) -> Primitive:
    return p.EltwiseBackward(_of_reals(_eltwise, d))


def _prelu_backward(d: Draw) -> Primitive:
    return p.PReLUBackward(_prelu(d))


def _lrn_backward(d: Draw) -> Primitive:
    return p.LRNBackward(_lrn(d))


def _shuffle_backward(d: Draw) -> Primitive:
    return p.ShuffleBackward(_of_reals(_shuffle, d))


def _lrn(d: Draw) -> Primitive:
    return p.LRN(
        d.tensor(4, kinds=REALS), algorithm=d.one("across_channels", "within_channel"), size=d.one(1, 3, 5)
    )


def _split(d: Draw) -> Primitive:
    src = d.tensor()
    axis = d.rng.randrange(len(src.dims))
    first = d.rng.randint(src.dims[axis] > 1, max(0, src.dims[axis] - 1))
    return p.Split(src, axis, [first, src.dims[axis] - first])


def _lstm(d: Draw) -> Primitive:
    return _of_gates(p.LSTM, 4, d)


def _gru(d: Draw) -> Primitive:
    return _of_gates(p.GRU, 3, d)


def _of_gates(kind: Any, gates: int, d: Draw) -> Any:
    """A recurrent layer, or two of them if as many go in as come out; their numbers are in f32 or bf16."""
    direction = d.one("left2right", "right2left", "bidirectional_concat", "bidirectional_sum")
    two, real = 2 if direction.startswith("bi") else 1, d.one("f32", "f32", "bf16")
    steps, batch, made = d.size(4), d.size(5), d.size(20)
    layers, inputs = (
        d.one((1, d.size(20)), (2, made)) if direction != "bidirectional_concat" else (1, d.size(20))
    )
    many = [MemoryDesc((layers, two, n, gates, made), real, rl.any) for n in (inputs, made)]
    bias = MemoryDesc((layers, two, gates, made), "f32", "abcd") if d.flag() else None
    return kind(MemoryDesc((steps, batch, inputs), real, "abc"), *many, bias, direction=direction)


def _matmul(d: Draw) -> Primitive:
    kind, (m, n) = d.one(*REALS, "u8", "s8"), (d.size(40) for _ in range(2))
    k = d.one(8, 16, 24, d.size(40))
    real = kind not in ("u8", "s8")
    weights = MemoryDesc((k, n), kind if real else "s8", d.one("ab", "ba", rl.any))
    return p.Matmul(
        d.desc((m, k), kind), weights, dst=d.desc((m, n), kind if real else d.one("s32", "f32", "u8"))
    )


KINDS: dict[str, Callable[[Draw], Primitive]] = {
    name.removeprefix("_"): make
    for name, make in globals().items()
    if name.startswith("_") and not name.startswith(("__", "_of"))
}
"""What makes a primitive of each kind."""


def drawn(rng: Random) -> Primitive:
    """A primitive; what is no primitive (an axis without a window, say) is drawn again."""
    kind = rng.choice(sorted(KINDS))
    while True:
        with suppress(LayoutError):
            return KINDS[kind](Draw(rng))
