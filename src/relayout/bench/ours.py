"""Relayout's own primitives, as contestants: in the formats that they choose, or in a given one.

For a format both source and destination have it, the weights are as the primitive wants them. Without one all
three are chosen, which is what others are compared with. Convolutions add up the products of the definition,
as others do by default; those that may do with fewer (``algorithm="auto"``, as in networks) are a contestant
of their own.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import relayout as rl
from relayout.bench.measure import FEWER, OURS
from relayout.bench.networks import BackwardData, BackwardWeights, Conv, Forward, Product
from relayout.bench.operands import SEED, Floats, Operands, Work
from relayout.bench.ours_passes import prepared
from relayout.bench.ours_recurrent import layer
from relayout.bench.passes import Pass
from relayout.bench.peers.primitives.contestant import Computation
from relayout.bench.recurrent import Recurrent
from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.processors import limited
from relayout.tensor import Tensor, allocate

__all__ = ["ALIASES", "FORMATS", "QUICK_FORMATS", "Ours", "all_ours"]

FORMATS = ("nhwc", "nchw", "nChw8c", "nChw16c", "NCHW4", "NCHW32", "CHWN4")
"""Formats of sources and destinations of convolutions that are measured each for itself."""

QUICK_FORMATS = ("nhwc", "nchw", "nChw16c")

ALIASES = {"nChw16c": "b_fs_yx_fsv16", "NCHW32": "b_fs_yx_fsv32"}
"""The same layouts under other names."""

NAMES: dict[type, tuple[str, str, str]] = {
    BackwardData: ("diff_dst", "weights", "diff_src"),
    BackwardWeights: ("src", "diff_dst", "diff_weights"),
}
"""The arguments of gradients: what they read, and what they write."""


class Ours:
    """Relayout, in a format or (None) in those that it chooses; and by an algorithm of convolutions.

    Raises
    ------
    LayoutError
        There is no such format of four axes.
    """

    def __init__(self, format: str | None = None, algorithm: str = "direct") -> None:
        if format is not None:
            MemoryDesc((1, 1, 1, 1), "f32", format)
        self.format, self.algorithm = format, algorithm
        self.name = (OURS if algorithm == "direct" else FEWER) if format is None else f"{OURS} {format}"

    def available(self) -> str | None:
        """Relayout's version."""
        return rl.__version__

    def prepare(self, work: Work, operands: Operands, threads: int) -> Computation | None:
        """Make a primitive, and lay out its operands.

        Raises
        ------
        LayoutError
            Relayout has no such primitive, or not in this format.
        """
        if isinstance(work, Forward):
            return _network(work, operands, self.format, threads)
        if self.format is not None and not isinstance(work, Conv):
            return None
        if self.algorithm != "direct" and (type(work) is not Conv or work.types.src != "f32"):
            return None
        if isinstance(work, Pass):
            return prepared(work, operands, threads)
        if isinstance(work, Recurrent):
            return layer(work, operands, threads)
        with limited(threads):  # everybody plans for the threads that will work
            primitive = (
                _convolution(work, self.format, self.algorithm) if isinstance(work, Conv) else _product(work)
            )
            if primitive.implementation.startswith("definition"):
                raise LayoutError("Relayout has a definition of it, and no kernel")
            primitive.tune()  # as its first calls would
        read, second, written = NAMES.get(type(work), ("src", "weights", "dst"))
        descs = primitive.descs
        given = {
            name: rl.tensor(array, dtype=descs[name].dtype).reorder(descs[name])
            for name, array in ((read, operands.src), (second, operands.weights))
        }
        if operands.bias is not None:
            given["bias"] = rl.tensor(operands.bias.reshape(primitive.bias.dims))
        if operands.scale is not None:
            given["scale"] = rl.tensor(operands.scale)
        target = Tensor(descs[written], allocate(descs[written]))
        formats = (descs[name] for name in (read, second, written))
        return Computation(
            partial(primitive, *(given[name] for name in primitive.inputs), out=target, threads=threads),
            partial(_array, target),
            f"{primitive.implementation} {':'.join(desc.tag or str(desc) for desc in formats)}",
        )


def all_ours(formats: tuple[str, ...] = FORMATS) -> tuple[Ours, ...]:
    """Relayout with the formats that it chooses, also with fewer products, and with each of some formats."""
    return Ours(), Ours(algorithm="auto"), *map(Ours, formats)


def _convolution(work: Conv, format: str | None, algorithm: str) -> Any:
    chosen = rl.any if format is None else format
    if isinstance(work, BackwardData | BackwardWeights):
        layer = work.forward
        forward = _kind("Convolution")(
            MemoryDesc(layer.src_dims, "f32", chosen),
            MemoryDesc(layer.weights_dims, "f32", rl.any),
            None,
            MemoryDesc(layer.dst_dims, "f32", chosen),
            strides=work.stride,
            padding=work.padding,
        )
        if isinstance(work, BackwardWeights):
            return _kind("ConvolutionBackwardWeights")(forward, diff_weights=rl.any)
        return _kind("ConvolutionBackwardData")(forward, weights=rl.any)
    types = work.types
    return _kind("Convolution")(
        MemoryDesc(work.src_dims, types.src, chosen),
        MemoryDesc(work.weights_dims, types.weights, rl.any),
        MemoryDesc(work.bias_dims, "f32", "a"),
        MemoryDesc(work.dst_dims, types.dst, chosen),
        scale=MemoryDesc((1,), "f32", "a") if types.whole else None,
        strides=work.stride,
        padding=work.padding,
        algorithm=algorithm,
    )


def _product(work: Product) -> Any:
    second = rl.any if work.weights == "any" else work.weights
    types = work.types
    return _kind("Matmul")(
        MemoryDesc(work.src_dims, types.src, rl.any),
        MemoryDesc(work.weights_dims, types.weights, second),
        MemoryDesc(work.bias_dims, "f32", "a") if work.has_bias else None,
        MemoryDesc(work.dst_dims, types.dst, rl.any),
        scale=MemoryDesc((1,), "f32", "a") if types.whole else None,
    )


def _network(work: Forward, operands: Operands, format: str | None, threads: int) -> Computation:
    """ResNet-50; only its run is timed."""
    from relayout.networks import build, random

    network = build("resnet50", work.batch, format or "any", random(SEED))
    made = network.compile(threads)
    made.tune()
    source = rl.tensor(operands.src).reorder(network.inputs[0].desc)
    target = made(source)
    return Computation(
        partial(made, source, out=target), partial(_array, target), f"{len(made.layers())} layers"
    )


def _kind(name: str) -> Any:
    """A class of ``relayout.primitives``."""
    try:
        return getattr(import_module("relayout.primitives"), name)
    except (AttributeError, ImportError):
        raise LayoutError(f"relayout.primitives has no {name}") from None


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.numpy(copy=True)
    return array
