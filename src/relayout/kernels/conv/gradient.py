"""The gradient of a convolution's weights: the plan, from formats to loops, as plain data that prints itself.

Each tap of the filters is a product of two matrices over all pixels::

    diff_weights[o, i] of a tap = sum over pixels of diff_dst[pixel, o] * src[pixel moved by the tap, i]

The register tile holds sums for some vectors of output channels and some input channels, and goes over
pixels: vectors of ``diff_dst`` as they lie, elements of ``src`` in all lanes. Sums stay in registers for the
pixels of a *chunk*, which is so small that its vectors of ``diff_dst`` stay in the L1 cache while all input
channels and all taps pass by; then they are added to memory, which is written as often as there are chunks::

    task: a share of the chunks, some vectors of outputs, some taps
        for each chunk                                      images, rows, pixels of a row
            for each block of outputs                       vectors of a tile
                [pack its vectors of diff_dst]              where many of them fall into one set of the cache
                for each tap                                only its pixels that are not in the padding
                    for each few input channels
                        tile: sum over the pixels, added to memory

Chunks are cut into *shares*, each with sums of its own, if weights are so few that this costs little; the
shares are added up afterwards. Neither chunks nor shares depend on the number of threads, nor does the
result; how many parts of outputs, inputs and taps there are does, and changes nothing about any sum.

Channels of groups that are narrower than a vector are *spread*: a vector of ``diff_dst`` meets a vector of
``src`` with the input channels of the same groups, one pattern for each input channel of a group.

Where a tile has few outputs, it would load, or shuffle, something for each product. There it does all taps
of a row of the filter at once, whole rows of pixels at a time (:class:`Row`): what it has of a pixel of the
source meets the vectors of ``diff_dst`` that the taps fall on. Each sum is added up in the same order::

    3 taps, padding 1      pixel of src       0    1    2  ...   6    7
                           vectors it meets   0,1  0-2  1-3      5-7  6,7

Sizes and strides are bytes unless they count something.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import NamedTuple

from relayout.dtypes import dtype
from relayout.ir.vectors import Piece
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.sides import Side
from relayout.kernels.conv.tile import lanes_of
from relayout.records import dataclass
from relayout.targets.machine import Machine

__all__ = [
    *("PRODUCTS", "Dim", "Filters", "Inputs", "Outputs", "Plan", "Row", "Tap", "Tile", "Turn"),
    *("chunks_of", "dense_strides", "row_of"),
]

PRODUCTS = 1.6
"""Vectors of products in a cycle, of two that could be: as measured, all else included."""
MOST_BORDER = 8
"""Pixels of a row whose taps are written out one by one, since not all of them are inside."""


class Dim(NamedTuple):
    """A loop over pixels."""

    extent: int
    unit: int
    """From element to element of the source, and"""
    dst: int
    """from pixel to pixel of the gradient of the destination."""
    size: int
    """Elements of the source."""
    stride: int = 1
    """Elements from one pixel to the next."""
    axis: int = -1
    """The spatial axis along which taps lie apart, or fall outside; -1: none."""
    padding: int = 0
    """Elements that the first tap of the first pixel lies in front of the first one."""
    span: int = 1
    """Elements from the first tap of a pixel to the last."""
    chunk: int = 1
    """Turns in a chunk."""

    @property
    def src(self) -> int:
        """From pixel to pixel of the source."""
        return self.unit * self.stride

    @property
    def reach(self) -> int:
        """Elements that the taps of a chunk touch."""
        return (self.chunk - 1) * self.stride + self.span


class Tap(NamedTuple):
    """Where a tap lies, and for which outputs of depth, height and width it falls inside."""

    src: int
    weights: int
    inside: tuple[tuple[int, int], ...]
    """From the first one to the one behind the last."""


class Turn(NamedTuple):
    """What a step along a row does: for each pixel, counted from the step's first, the taps that it meets."""

    pixels: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    """The taps with how many steps ago the vector of ``diff_dst`` was loaded that each falls on."""


class Row(NamedTuple):
    """A row of pixels with all taps of a row of a filter: first steps, those that are alike, last ones."""

    front: tuple[Turn, ...]
    turn: Turn
    turns: int
    behind: tuple[Turn, ...]
    depth: int
    """Vectors of ``diff_dst`` that one step meets."""


class Outputs(NamedTuple):
    """The vectors of output channels of a tile, and where those of ``diff_dst`` are loaded."""

    pieces: tuple[tuple[Piece, ...], ...]
    weights: tuple[int, ...]
    """Where each lies in the weights, behind the first one."""
    valid: tuple[int, ...]
    """How many channels each has; lanes behind them are padding of the weights."""


class Inputs(NamedTuple):
    """The input channels of a tile."""

    places: tuple[int, ...]
    """Where each lies, behind the first one; of a spread the vectors of the source."""
    widths: tuple[int, ...] = ()
    """Of a spread: how many channels each of these vectors has."""


class Tile(NamedTuple):
    """Some input channels of a group: kind, and where they lie in the source and the weights."""

    kind: int
    src: int
    weights: int
    came: int
    """Where they lie in the source as it comes, which may be packed."""


class Filters(NamedTuple):
    """A block of output channels: kind, where it lies, its first tile and the one behind the last."""

    kind: int
    dst: int
    weights: int
    first: int
    end: int
    src: int = 0
    """Where its channels of the source lie, and"""
    channels: int = 0
    """how many they are: where each block packs its own."""


@dataclass(frozen=True)
class Plan:
    """How the gradient is computed."""

    geometry: Geometry
    machine: Machine
    src: Side
    dst: Side
    dims: tuple[Dim, ...]
    """Images, planes, rows, pixels; neighbouring ones are merged where nothing lies between them."""
    taps: tuple[Tap, ...]
    outputs: tuple[Outputs, ...]
    """The kinds of blocks of outputs,"""
    inputs: tuple[Inputs, ...]
    """and of input channels."""
    tiles: tuple[Tile, ...]
    filters: tuple[Filters, ...]
    spread: tuple[tuple[int, ...], ...]
    """Patterns, one for each input channel of a group; empty: an element goes to all lanes."""
    step: int
    """From the weights of an input channel to those of the next."""
    packs: bool
    """Whether vectors of ``diff_dst`` are packed."""
    gathers: bool
    """Whether the source is packed: a chunk in blocks of as many channels as a vector has; of groups what
    each block of outputs meets."""
    shares: int
    blocks: int
    """Parts of the outputs,"""
    columns: int
    """of the inputs,"""
    parts: int
    """and of the taps, of which tasks have one each."""
    size: int
    """Of the sums of a share."""
    source: str
    gradient: str
    """The data types of the source and of ``diff_dst``."""
    forth: int
    """From one block of channels of a source that is packed to the next, as they come."""
    across: int
    """From the weights of a tap to those of the next one of a row."""
    row: Row | None
    """How tiles do all taps of a row of a filter; None: they do one tap."""
    ahead: bool
    """Whether tiles prefetch the source of the next chunk, and the next vectors of ``diff_dst``."""

    @property
    def tasks(self) -> int:
        """How many there are."""
        return self.shares * self.blocks * self.columns * self.parts

    @property
    def cycles(self) -> float:
        """About how long it takes on one thread: two products in each cycle, but for what is not filled."""
        vectors = sum(len(self.outputs[one.kind].pieces) for one in self.filters)
        inputs = max(len(self.spread), 1) if self.spread else self.geometry.inputs
        pixels = self.geometry.batch * self.geometry.pixels
        return vectors * inputs * self.geometry.taps * pixels / PRODUCTS

    @property
    def chunks(self) -> int:
        """How many there are."""
        return chunks_of(self.dims)

    @property
    def pitch(self) -> int:
        """From pixel to pixel of packed vectors."""
        return max(len(kind.pieces) for kind in self.outputs) * self.machine.vector

    @property
    def packed(self) -> tuple[int, ...]:
        """The strides of packed pixels."""
        return dense_strides([dim.chunk for dim in self.dims], self.pitch)

    @property
    def gathered(self) -> tuple[int, ...]:
        """The strides of packed elements of the source."""
        return dense_strides([dim.reach for dim in self.dims], self.machine.vector)

    @property
    def block(self) -> int:
        """From block to block of the channels of a packed source."""
        return prod(dim.reach for dim in self.dims) * self.machine.vector

    @property
    def pairs(self) -> bool:
        """Whether each chunk has an even number of pixels in a row, of which tiles take two at a time."""
        last = self.dims[-1]
        return last.axis < 0 and last.extent % 2 == last.chunk % 2 == 0

    @property
    def asked(self) -> tuple[tuple[int, int], ...]:
        """The strides of what tiles prefetch of source and ``diff_dst``: as they come, if not in a row."""
        if self.in_a_row:
            return (*((0, dim.dst) for dim in self.dims[:-1]), (self.in_a_row, self.dims[-1].dst))
        return tuple((dim.src, dim.dst) for dim in self.dims)

    @property
    def in_a_row(self) -> int:
        """Bytes of the source that a tile prefetches for each pixel, of a chunk that is packed from one piece
        of memory: each tile a part of it. 0: it is not.
        """
        last, pixel = self.dims[-1], self.geometry.inputs * dtype(self.source).bits // 8
        one = last.src == pixel and self.columns == 1 and all(dim.chunk == 1 for dim in self.dims[:-1])
        return ceil(pixel / (self.filters[0].end - self.filters[0].first)) if self.gathers and one else 0

    @property
    def room(self) -> int:
        """Of the packed vectors of a chunk."""
        return prod(dim.chunk for dim in self.dims) * self.pitch if self.packs else 0

    @property
    def slot(self) -> int:
        """Of scratch for one part of the work: the packed source behind the packed vectors."""
        channels = max(one.channels for one in self.filters) or self.geometry.inputs
        source = ceil(channels / lanes_of(self.machine)) * self.block if self.gathers else 0
        return self.room + source

    def __str__(self) -> str:
        vectors, kind = len(self.outputs[0].pieces), self.inputs[0]
        inputs = len(self.spread) or len(kind.places)
        words = [f"gradients in tiles of {vectors} x {lanes_of(self.machine)} by {inputs} channels"]
        words += [f"{self.geometry.kernel[2]} taps at once"] * (self.row is not None)
        words += ["lanes of several groups"] * bool(self.spread)
        words += ["source packed"] * self.gathers + ["outputs packed"] * self.packs
        words += ["prefetched"] * self.ahead
        chunk = " x ".join(str(dim.chunk) for dim in self.dims if dim.extent > 1) or "1"
        words.append(f"{self.chunks} chunks of {chunk} pixels")
        cuts = self.shares, self.blocks, self.columns, self.parts
        parts = list(zip(cuts, ("images", "outputs", "inputs", "taps"), strict=True))
        cut = [f"1/{count} of the {what}" for count, what in parts if count > 1]
        words.append(f"{self.tasks} tasks" + (f" of {', '.join(cut)}" if cut else ""))
        return ", ".join(words)


def chunks_of(dims: Sequence[Dim]) -> int:
    """How many chunks loops over pixels have."""
    return prod(ceil(dim.extent / dim.chunk) for dim in dims)


def dense_strides(extents: Sequence[int], last: int) -> tuple[int, ...]:
    """The strides of a dense array whose elements take so many bytes."""
    return tuple(prod(extents[k + 1 :]) * last for k in range(len(extents)))


def row_of(geometry: Geometry) -> Row | None:
    """A row with all taps of a row of a filter; None where there is but one, or hardly a row.

    >>> sizes = [(1, 1, 8), (1, 1, 8), (1, 1, 3), (1, 1, 1), (1, 1, 1), (0, 0, 1)]
    >>> found = row_of(Geometry(1, 1, 16, 16, *sizes))
    >>> found.turn, found.turns, found.depth
    (Turn(pixels=((0, ((0, 0), (1, 1), (2, 2))),)), 6, 3)
    >>> found.front
    (Turn(pixels=()), Turn(pixels=((0, ((0, 0), (1, 1))),)))
    """
    g = geometry
    taps, stride, width = g.kernel[2], g.strides[2], g.target[2]
    if taps == 1:
        return None
    backs = [divmod(tap * g.dilation[2], stride) for tap in range(taps)]
    depth = backs[-1][0] + 1
    turns = []
    for y in range(width + depth - 1):
        pixels = []
        for number in sorted({pixel for _, pixel in backs}):
            meets = [(tap, back) for tap, (back, pixel) in enumerate(backs) if pixel == number]
            uses = tuple(one for one in meets if 0 <= y - one[1] < width)
            if uses and 0 <= y * stride + number - g.padding[2] < g.source[2]:
                pixels.append((number, uses))
        turns.append(Turn(tuple(pixels)))
    most = max(turns, key=lambda turn: sum(len(uses) for _, uses in turn.pixels))
    first = turns.index(most)
    end = next((y for y in range(first, len(turns)) if turns[y] != most), len(turns))
    others = turns[:first] + turns[end:]
    few = sum(len(uses) for turn in others for _, uses in turn.pixels) <= MOST_BORDER * taps
    return Row(tuple(turns[:first]), most, end - first, tuple(turns[end:]), depth) if few else None
