"""Layers whose time is that of reading and writing: normalisations, pooling, softmax, activations.

They do a few operations for each element, so what they take is held against a copy of as many bytes as they
must move: each tensor once, however often a normalisation has to read its source. Half of the bytes are read
by the copy and half written; whoever writes less than he reads may be faster than that.

Formats are given here, not chosen: a normalisation takes what a convolution wrote. Statistics are those of
the source, results are those of training, workspaces included.

>>> for layer in passes("ResNet-50 normalization", 8)[:3]:
...     print(layer)
conv1.norm batch_normalization relu 8x64x112x112 nhwc
conv1.norm batch_normalization relu 8x64x112x112 nhwc backward
conv1.norm batch_normalization relu 8x64x112x112 nChw16c
>>> layer.bytes == 2 * 4 * 8 * 64 * 112**2 + 8 * 64 * 112**2  # a mask of bytes, for the backward pass
True
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from relayout.bench.measure import copier
from relayout.bench.networks import resnet
from relayout.bench.peak import Yardstick
from relayout.tensor import address, aligned

__all__ = ["EPSILON", "NETWORKS", "Pass", "copying", "passes"]

EPSILON = 1e-5
PIXELS = "nhwc", "nChw16c"  # the formats of images
ROWS = "abc"  # that of rows of tokens
WIDTH, HEADS = 768, 12  # of BERT
TOKENS = 128
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Pass:
    """One layer.

    Attributes
    ----------
    name : str
        Where a network has it.
    kind : str
        ``batch_normalization``, ``layer_normalization``, ``group_normalization``, ``pooling``, ``softmax`` or
        ``eltwise``.
    dims : tuple of int
        Of the source. Rows of layer normalisation and softmax are along the last axis.
    format : str
        Of all tensors.
    how : str
        What is fused (``relu``) or applied (``relu``, ``gelu_erf``); of pooling ``max`` or ``average``.
    backward : bool
        Whether it is the gradient.
    window, stride, padding : int
        Of pooling.
    groups : int
        Of group normalisation.
    count : int
        How often the network has it.
    """

    name: str
    kind: str
    dims: tuple[int, ...]
    format: str
    how: str = ""
    backward: bool = False
    window: int = 1
    stride: int = 1
    padding: int = 0
    groups: int = 1
    count: int = 1

    @property
    def src_dims(self) -> tuple[int, ...]:
        """The logical sizes of the source."""
        return self.dims

    @property
    def dst_dims(self) -> tuple[int, ...]:
        """The logical sizes of the destination, and of the gradient that comes in."""
        if self.kind != "pooling":
            return self.dims
        sizes = ((n + 2 * self.padding - self.window) // self.stride + 1 for n in self.dims[2:])
        return (*self.dims[:2], *sizes)

    @property
    def bytes(self) -> int:
        """What must be read and written, each tensor once; vectors of statistics are left out."""
        src, dst = 4 * prod(self.src_dims), 4 * prod(self.dst_dims)
        mask = dst // 4 if self._keeps_mask else 0
        if self.kind == "pooling":
            return src + dst + mask
        return src + dst + mask + dst * self.backward

    @property
    def _keeps_mask(self) -> bool:
        """Whether the backward pass needs a byte for each element of the destination."""
        return (self.kind, self.how) in (("batch_normalization", "relu"), ("pooling", "max"))

    @property
    def way(self) -> str:
        """What is summed up apart."""
        return f"{self.format} {'backward' if self.backward else 'forward'}"

    def vectors(self) -> tuple[Floats, Floats]:
        """Scale and shift."""
        count = self.dims[-1] if self.kind == "layer_normalization" else self.dims[1]
        return np.linspace(0.5, 1.5, count, dtype=np.float32), np.linspace(-0.5, 0.5, count, dtype=np.float32)

    def __str__(self) -> str:
        window = f"{self.window}x{self.window} stride {self.stride}" if self.kind == "pooling" else ""
        groups = f"{self.groups} groups" if self.kind == "group_normalization" else ""
        words = (self.kind, self.how, window, groups, "x".join(map(str, self.dims)), self.format)
        times = f" x{self.count}" * (self.count > 1)
        return f"{self.name} {' '.join(filter(None, words))}{' backward' * self.backward}{times}"


def copying(work: Pass, threads: int) -> Yardstick:
    """A copy of as many bytes as a layer must move, on so many threads."""
    size = work.bytes // 2
    source, target = aligned(size, zeroed=False), aligned(size, zeroed=False)
    source[:], target[:] = 1, 2  # pages that nobody has touched would be no memory
    copy = copier(address(target), address(source), size, threads)
    return Yardstick(partial(_with, copy, source, target), 2 * size)


def _with(copy: Callable[[], object], *buffers: object) -> None:
    """Call it; the buffers live as long as it does."""
    copy()


def passes(network: str, batch: int = 1) -> list[Pass]:
    """The layers of one of :data:`NETWORKS`, forward and backward, in all of their formats."""
    return list(NETWORKS[network](batch))


def _both(layer: Pass, formats: tuple[str, ...]) -> Iterator[Pass]:
    """Both ways in all formats."""
    for format in formats:
        for backward in (False, True):
            yield Pass(**{**vars(layer), "format": format, "backward": backward})


def _normalization(batch: int) -> Iterator[Pass]:
    """Those of ResNet-50; all but the last one of a block, and that beside it, are followed by a ReLU."""
    network = resnet(batch)
    layers = [(network.stem, "relu")]
    for block in network.blocks:
        layers += [(block.reduce, "relu"), (block.middle, "relu"), (block.expand, "")]
        layers += [(block.shortcut, "")] if block.shortcut is not None else []
    counted = Counter((layer.dst_dims, how) for layer, how in layers)
    for layer, how in layers:
        count = counted.pop((layer.dst_dims, how), 0)
        if count:
            one = Pass(f"{layer.name}.norm", "batch_normalization", layer.dst_dims, "", how, count=count)
            yield from _both(one, PIXELS)


def _images(batch: int) -> Iterator[Pass]:
    """Pooling and activations of ResNet-50, an average of Inception, and group normalisations."""
    stem, expand = (batch, 64, 112, 112), (batch, 256, 56, 56)
    yield from _both(Pass("maximum", "pooling", stem, "", "max", window=3, stride=2, padding=1), PIXELS)
    mixed = (batch, 192, 35, 35)
    yield from _both(Pass("average", "pooling", mixed, "", "average", window=3, padding=1), PIXELS)
    yield from _both(Pass("global", "pooling", (batch, 2048, 7, 7), "", "average", window=7), PIXELS)
    for dims in (expand, (batch, 512, 28, 28), (batch, 1024, 14, 14), (batch, 2048, 7, 7)):
        name = "x".join(map(str, dims[1:]))
        yield from _both(Pass(f"relu.{name}", "eltwise", dims, "", "relu"), PIXELS)
        yield from _both(Pass(f"groups.{name}", "group_normalization", dims, "", groups=32), PIXELS[:1])


def _transformer(batch: int) -> Iterator[Pass]:
    """A layer of BERT, base."""
    rows = (ROWS,)
    tokens, scores = (batch, TOKENS, WIDTH), (batch * HEADS, TOKENS, TOKENS)
    yield from _both(Pass("norm", "layer_normalization", tokens, "", count=2), rows)
    yield from _both(Pass("scores", "softmax", scores, ""), rows)
    yield from _both(Pass("gelu", "eltwise", (batch, TOKENS, 4 * WIDTH), "", "gelu_erf"), rows)


NETWORKS = {
    "ResNet-50 normalization": _normalization,
    "images": _images,
    "BERT": _transformer,
}
"""What is measured, and what makes its layers for a batch."""
