"""PyTorch: convolutions, linear and recurrent layers and ResNet-50, in each of its memory formats.

=======================  ==================================================================================
contestant               what it does
=======================  ==================================================================================
PyTorch                  plain row-major tensors
PyTorch channels_last    convolutions with source and weights in ``torch.channels_last``
PyTorch mkldnn           opaque tensors of its oneDNN backend (``to_mkldnn``), weights packed beforehand
PyTorch compile          a whole network, compiled with ``freezing``: weights become constants
=======================  ==================================================================================

Operations give a new tensor each time, as they do for whoever uses PyTorch; its allocator mostly has the
memory at hand. Nobody asks for gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from relayout.bench.networks import BackwardData, BackwardWeights, Block, Conv, Forward, Product
from relayout.bench.operands import SEED, Floats, Operands, Work
from relayout.bench.passes import Pass
from relayout.bench.peers.primitives import pytorch_passes
from relayout.bench.peers.primitives.contestant import Computation
from relayout.bench.peers.primitives.recurrent import by_pytorch
from relayout.bench.recurrent import Recurrent
from relayout.networks import random

__all__ = ["MEMORIES", "WAYS", "PyTorch", "ResNet", "network"]

MEMORIES = ("", "channels_last", "mkldnn")
WAYS = ("", "channels_last", "compile")


class PyTorch:
    """Single layers in one of :data:`MEMORIES`."""

    def __init__(self, memory: str) -> None:
        self.memory = memory
        self.name = f"PyTorch {memory}".rstrip()

    def available(self) -> str | None:
        """PyTorch's version; None also where the backend is missing."""
        return _version(self.memory == "mkldnn")

    def prepare(self, work: Work, operands: Operands, threads: int) -> Computation | None:
        """Put the operands into tensors, and find the operation."""
        if isinstance(work, Forward) or (isinstance(work, Product) and not self._multiplies(work)):
            return None
        if isinstance(work, Conv | Product) and work.dtype != "f32":
            return None
        if isinstance(work, BackwardData | BackwardWeights) and self.memory == "mkldnn":
            return None
        if isinstance(work, Pass) and pytorch_passes.FORMATS.get(work.format) != self.memory:
            return None
        if isinstance(work, Recurrent) and self.memory:
            return None
        torch = _torch()
        torch.set_num_threads(threads)
        if isinstance(work, Recurrent):
            return by_pytorch(work, operands)
        if isinstance(work, Pass):
            return _computation(pytorch_passes.action(work, operands), work.format)
        make: Any = _convolution if isinstance(work, Conv) else _product
        make = _backward_data if isinstance(work, BackwardData) else make
        make = _backward_weights if isinstance(work, BackwardWeights) else make
        return _computation(make(work, operands, self.memory), self.memory or "contiguous")

    def _multiplies(self, work: Product) -> bool:
        """Whether this memory format makes a difference to a product of matrices."""
        return not self.memory or (self.memory == "mkldnn" and work.has_bias)


class ResNet:
    """The whole of ResNet-50 in one of :data:`WAYS`."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.name = f"PyTorch {way}".rstrip()

    def available(self) -> str | None:
        """PyTorch's version."""
        return _version(False)

    def prepare(self, work: Work, operands: Operands, threads: int) -> Computation | None:
        """Make the network, and compile it if that is wanted; the first call does the compiling."""
        if not isinstance(work, Forward):
            return None
        torch = _torch()
        torch.set_num_threads(threads)
        module, source = network(work), torch.from_numpy(operands.src)
        if self.way == "channels_last":
            module = module.to(memory_format=torch.channels_last)
            source = source.contiguous(memory_format=torch.channels_last)
        elif self.way == "compile":
            torch.compiler.reset()
            module = torch.compile(module, options={"freezing": True})

        def forward() -> Any:
            with torch.no_grad():
                return module(source)

        return _computation(forward, self.way or "contiguous")


@cache
def _torch() -> Any:
    return import_module("torch")


def _version(needs_backend: bool) -> str | None:
    if find_spec("torch") is None or (needs_backend and not _torch().backends.mkldnn.is_available()):
        return None
    return str(_torch().__version__)


def _computation(action: Callable[[], Any], implementation: str) -> Computation:
    def result() -> Floats:
        found = action()
        return np.ascontiguousarray((found.to_dense() if found.is_mkldnn else found).numpy())

    return Computation(action, result, implementation)


def _convolution(work: Conv, operands: Operands, memory: str) -> Callable[[], Any]:
    torch = _torch()
    filters = operands.weights.reshape(work.oc, work.ic // work.groups, work.kh, work.kw)
    source, weights, bias = map(torch.from_numpy, (operands.src, filters, operands.bias))
    settings = {"stride": work.stride, "padding": work.padding, "groups": work.groups}
    if memory == "channels_last":
        source, weights = (t.contiguous(memory_format=torch.channels_last) for t in (source, weights))
    if memory == "mkldnn":
        source, weights, bias = (t.to_mkldnn() for t in (source, weights, bias))
        weights = torch._C._nn.mkldnn_reorder_conv2d_weight(
            *(weights, [work.padding] * 2, [work.stride] * 2, [1, 1], work.groups, list(work.src_dims))
        )
    return partial(torch.nn.functional.conv2d, source, weights, bias, **settings)


def _backward_data(work: BackwardData, operands: Operands, memory: str) -> Callable[[], Any]:
    """What autograd calls for the source alone."""
    torch = _torch()
    filters = operands.weights.reshape(work.oc, work.ic // work.groups, work.kh, work.kw)
    given = [torch.from_numpy(operands.src), torch.empty(work.dst_dims), torch.from_numpy(filters)]
    if memory == "channels_last":
        given = [one.contiguous(memory_format=torch.channels_last) for one in given]
    how = [work.stride] * 2, [work.padding] * 2, [1, 1], False, [0, 0], work.groups, [True, False, False]
    return lambda: torch.ops.aten.convolution_backward(*given, None, *how)[0]


def _backward_weights(work: BackwardWeights, operands: Operands, memory: str) -> Callable[[], Any]:
    """What autograd calls for the weights alone."""
    torch = _torch()
    filters = torch.empty(work.oc, work.ic // work.groups, work.kh, work.kw)
    given = [torch.from_numpy(operands.weights), torch.from_numpy(operands.src), filters]
    if memory == "channels_last":
        given = [one.contiguous(memory_format=torch.channels_last) for one in given]
    how = [work.stride] * 2, [work.padding] * 2, [1, 1], False, [0, 0], work.groups, [False, True, False]
    return lambda: torch.ops.aten.convolution_backward(*given, None, *how)[1].reshape(work.dst_dims)


def _product(work: Product, operands: Operands, memory: str) -> Callable[[], Any]:
    torch = _torch()
    source, weights = torch.from_numpy(operands.src), torch.from_numpy(operands.weights)
    if operands.bias is None:
        return partial(torch.matmul, source, weights.T.contiguous().T if work.weights == "ba" else weights)
    rows, bias = weights.T.contiguous(), torch.from_numpy(operands.bias)
    if memory == "mkldnn":
        return partial(torch._C._nn.mkldnn_linear, source.to_mkldnn(), rows.to_mkldnn(), bias.to_mkldnn())
    return partial(torch.nn.functional.linear, source, rows, bias)


def network(work: Forward) -> Any:
    """ResNet-50 as a module for inference, with the same random weights as Relayout's.

    Each convolution is followed by a batch normalisation; the sum of a block is rectified after it.
    """
    torch = _torch()
    layers = work.network
    stages: list[Any] = [
        *_normalised(layers.stem, True),
        torch.nn.MaxPool2d(3, 2, 1),
        *(_block(block) for block in layers.blocks),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(layers.classifier.k, layers.classifier.n),
    ]
    return _with_parameters(torch.nn.Sequential(*stages).eval(), layers.blocks)


def _with_parameters(network: Any, blocks: Sequence[Block]) -> Any:
    """Fill a network with parameters, by the names that PyTorch's own ResNets give them."""
    torch = _torch()
    make = random(SEED)
    names = ["conv1", "bn1"]
    stage, number = 0, 0
    for block in blocks:
        stage, number = (stage + 1, 0) if block.shortcut else (stage, number + 1)
        each = ("conv1", "bn1", "conv2", "bn2", "conv3", "bn3")
        more = ("downsample.0", "downsample.1") if block.shortcut else ()
        names += [f"layer{stage}.{number}.{part}" for part in (*each, *more)]
    kinds = (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.Linear)
    filled = [module for module in network.modules() if isinstance(module, kinds)]
    for name, module in zip([*names, "fc"], filled, strict=True):
        for part, values in module.state_dict().items():
            if values.ndim:
                values.copy_(torch.from_numpy(make(f"{name}.{part}", tuple(values.shape))))
    return network


def _normalised(layer: Conv, rectified: bool) -> list[Any]:
    nn = _torch().nn
    sizes = (layer.ic, layer.oc, (layer.kh, layer.kw))
    found = [
        nn.Conv2d(*sizes, layer.stride, layer.padding, groups=layer.groups, bias=False),
        nn.BatchNorm2d(layer.oc),
    ]
    return [*found, nn.ReLU(inplace=True)] if rectified else found


def _block(block: Block) -> Any:
    nn = _torch().nn
    way = nn.Sequential(
        *_normalised(block.reduce, True), *_normalised(block.middle, True), *_normalised(block.expand, False)
    )
    shortcut = nn.Sequential(*(_normalised(block.shortcut, False) if block.shortcut else ()))
    return _sum()(way, shortcut)


@cache
def _sum() -> Any:
    """The class of blocks, made when PyTorch is there."""
    torch = _torch()

    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, way: Any, shortcut: Any) -> None:
            super().__init__()
            self.way, self.shortcut = way, shortcut

        def forward(self, x: Any) -> Any:
            return torch.relu(self.way(x) + self.shortcut(x))

    return Sum
