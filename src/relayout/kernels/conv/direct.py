"""The plan of a direct convolution: the loop nest around the tile, as plain data that prints itself.

The output is cut into *tasks*, which threads share: some rows of one image by some output channels. A task
goes over groups of output channels (a few vectors), and for each over its rows in tiles of pixels::

    task: image n, rows 14..27, channels 0..255
        pack      the input rows that they touch, with their borders, into scratch      [if need be]
        for each group of vectors of output channels       its weights stay in the L2 cache
            for each row
                for each tile of pixels                    its pixels stay in the L1 cache
                    tile: sum over taps and input channels
        unpack    the rows, from scratch to the destination                              [if need be]

**Packing.** The tile takes a source as it is where its pixels have neighbouring channels (``nhwc``,
``nChw16c``, ``NCHW32``, ...), it is f32, and no tap falls outside. Else the rows that a task touches are
first laid out in scratch: pixel after pixel, channels innermost, zeros around. That is a reorder of one row,
done by the reorder's own kernels, so it takes every layout and every data type; and it is one pass over the
input in the cache, a few percent of the work.

**Unpacking.** The same at the other end: the tile stores to the destination itself where that keeps at least
four output channels together, and else to scratch, from where each row is reordered.

**Weights** that tiles can't read, another layer's result, are packed in each call: all of them before, or
each task those that it is the first of its thread to read. That is done more than once then, but what
another core has written a moment ago takes longer to read than to pack.

So a new layout costs no new kernel: at worst its rows are reordered on the way.

Sizes and strides are bytes unless they count something.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from relayout.dtypes import dtype as as_dtype
from relayout.ir.vectors import Piece
from relayout.kernels.conv.amx import order_of
from relayout.kernels.conv.arithmetic import Arithmetic, Zeros
from relayout.kernels.conv.geometry import Geometry, Span, spans
from relayout.kernels.conv.sides import Side
from relayout.kernels.conv.tile import BLOCK, WORD, in_blocks, lanes_of
from relayout.kernels.conv.weights import Weights
from relayout.layout.descriptor import MemoryDesc
from relayout.loops.nest import Loop
from relayout.records import dataclass
from relayout.targets.machine import LINE, Machine

__all__ = ["Block", "Cut", "Direct", "Group", "Packing", "Place", "ends_in_zeros", "padded_axes"]


MANY = {2: "pairs", 4: "fours", 8: "eights"}


class Group(NamedTuple):
    """Vectors of output channels that one tile computes."""

    vectors: int
    pieces: tuple[tuple[Piece, ...], ...]
    """How each is stored, behind the pixel of this group."""
    weights: tuple[int, ...]
    """Where the weights of each begin, behind those of this group."""
    valid: int
    """Channels in the last vector."""
    widths: tuple[int, ...] = ()
    """Where lanes are spread: how many input channels there are for each vector."""
    shifts: tuple[int, ...] = ()
    """And where these begin, behind the pixel of this group."""


class Place(NamedTuple):
    """Where a vector, or a group of them, comes: its kind, and where its first channels lie."""

    kind: int
    src: int
    weights: int
    dst: int
    channel: int


class Block(NamedTuple):
    """Pixels of one tile: so many rows of so many."""

    rows: int
    columns: int


class Packing(NamedTuple):
    """How weights are packed in each call, where tiles can't read them as they come."""

    by_tasks: bool
    """Whether each thread packs those that its tasks read; else all are packed before."""
    size: int
    """Of all packed weights."""
    start: int
    """Where those of the first group begin as they come."""
    came: int
    """From the weights of a group to those of the next, as they come,"""
    packed: int
    """and packed."""


class Cut(NamedTuple):
    """How the work is cut: pixels of a tile; rows, pixels of a row, and shares of the groups of a task."""

    block: Block
    rows: int
    columns: int
    chunks: int


@dataclass(frozen=True)
class Direct:
    """How a convolution is done."""

    geometry: Geometry
    arithmetic: Arithmetic
    machine: Machine
    src: Side
    dst: Side
    packs: bool
    """Whether rows of the source are packed."""
    unpacks: bool
    """Whether rows of results are unpacked."""
    pitch: int
    """From pixel to pixel of packed rows."""
    weights: Weights
    loops: tuple[Loop, ...]
    """The sum: its operands are source and weights."""
    taps: tuple[tuple[int, int], ...]
    """What one turn of it adds up: taps of a row, by where their pixels and their weights lie."""
    spread: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...]
    kinds: tuple[Group, ...]
    """The different groups."""
    places: tuple[Place, ...]
    """All groups."""
    dims: tuple[Loop, Loop, Loop, Loop]
    """Images, planes, rows, pixels, with source and destination as operands; neighbouring ones are merged
    where nothing lies between them."""
    block: Block
    rows: int
    """Rows of a task."""
    columns: int
    """Pixels of a row of a task."""
    chunks: int
    """Shares of the groups; each is computed for all rows before the next, so that its weights stay near."""
    packing: Packing | None = None
    """How weights are packed; None: they are read as they come."""
    zeros: Zeros = Zeros()

    @property
    def weights_type(self) -> str:
        """The data type of the weights."""
        return self.weights.dtype

    @property
    def borders(self) -> bool:
        """Whether taps of outputs at the borders fall outside of the source, which is read where it lies."""
        return not (self.packs or self.geometry.inside)

    @property
    def rest(self) -> tuple[int, int, int] | None:
        """Of channels that don't fill the last step: how many, and where their pixels and weights lie."""
        count = self.geometry.inputs % self.arithmetic.depth
        if self.packs or not count:
            return None
        [loop] = self.loops
        return count, loop.extent * loop.src, loop.extent * loop.steps[1]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The tiles of a row where there are borders."""
        return spans(self.geometry, self.block.columns)

    @property
    def counters(self) -> tuple[str, ...]:
        """For the loops over planes and rows of taps what says how many are inside; see :class:`.Tile`."""
        names = zip(self.counters_of_axes, self.geometry.kernel, strict=False)
        return tuple(name for name, taps in names if taps > 1) if self.borders else ()

    @property
    def counters_of_axes(self) -> tuple[str, str]:
        """The same for planes and rows, empty for those that have one tap, or all taps inside."""
        g = self.geometry
        deep, high = (self.borders and g.kernel[axis] > 1 and not g.always_inside(axis) for axis in (0, 1))
        return "deep" * deep, "high" * high

    @property
    def order(self) -> tuple[object, ...]:
        """In which order sums are added up: nests of one problem that agree here give the same bits."""
        return _order(self.arithmetic, self.loops, len(self.taps), len(self.spread))

    @property
    def tasks(self) -> int:
        """How many there are."""
        n, d, h, w = (dim.extent for dim in self.dims)
        return n * d * ceil(h / self.rows) * ceil(w / self.columns) * self.chunks

    @property
    def packed_rows(self) -> int:
        """Rows of the input in scratch, for one plane."""
        return self.geometry.reach(1, self.rows)

    @property
    def packed_columns(self) -> int:
        """Pixels of a row in scratch, its borders included."""
        return self.geometry.reach(2, self.geometry.target[2])

    @property
    def packed_inside(self) -> int:
        """How many of these are pixels of the source; there are zeros in front of and behind them."""
        return max(0, min(self.geometry.source[2], self.packed_columns - self.geometry.padding[2]))

    @property
    def packed(self) -> int:
        """Of the packed rows of a task."""
        size = self.geometry.kernel[0] * self.packed_rows * self.packed_columns * self.pitch
        return _lines(size) if self.packs else 0

    @property
    def weights_bytes(self) -> int:
        """Of all weights."""
        g = self.geometry
        return g.groups * g.outputs * g.inputs * g.taps * as_dtype(self.weights_type).bits // 8

    @property
    def source_bytes(self) -> int:
        """Of an image of the source, in the type in which it is read."""
        g = self.geometry
        return g.groups * g.inputs * g.source[0] * g.source[1] * g.source[2] * self.arithmetic.element

    @property
    def served(self) -> int:
        """How many pixels weights are multiplied by, each time that they come from beyond the L2 cache.

        Those of a task, or all of them if a chunk of the weights stays there from task to task.
        """
        g, task = self.geometry, self.rows * self.columns
        each = g.groups * g.inputs * self.arithmetic.element + self.result_pitch // self.chunks
        stays = self.weights_bytes // self.chunks + task * each <= self.machine.l2 * 5 // 8
        return prod(dim.extent for dim in self.dims) if stays else task

    @property
    def result_pitch(self) -> int:
        """From pixel to pixel of results in scratch."""
        return self.geometry.groups * self.geometry.outputs * WORD

    @property
    def unpacked(self) -> int:
        """Of the results of a task that are unpacked later."""
        return _lines(self.rows * self.dims[3].extent * self.result_pitch) if self.unpacks else 0

    @property
    def carried(self) -> int:
        """Of the weights that tasks pack."""
        return _lines(self.packing.size) if self.packing is not None and self.packing.by_tasks else 0

    @property
    def offset(self) -> bool:
        """Whether zeros of the source, as it is multiplied, are another number than 0."""
        return self.arithmetic.shift != 0 or bool(self.zeros)

    @property
    def offsets(self) -> int:
        """Of what sums begin with there, for one group; see :mod:`.offsets`."""
        if not self.offset:
            return 0
        rows = [self.geometry.kernel[axis] for axis, name in enumerate(self.counters_of_axes) if name]
        vectors = max(group.vectors for group in self.kinds)
        return _lines((2 + (prod(rows) + 1) * vectors) * self.machine.vector)

    @property
    def slot(self) -> int:
        """Of scratch for one part of the work."""
        return self.packed + self.unpacked + self.carried + self.offsets

    def clears(self, dst: MemoryDesc) -> bool:
        """Whether all padding of a destination is written: zeros behind the last channel.

        Rows that are unpacked end in zeros of both axes; what the tile stores ends with its last vector.
        """
        if self.unpacks:
            return padded_axes(dst) <= {1, max(1, len(dst.dims) - 1)}
        last = self.kinds[self.places[-1].kind]
        stored = sum(piece.lanes for piece in last.pieces[-1]) - last.valid
        return ends_in_zeros(dst, self.dst, self.geometry, stored)

    def __str__(self) -> str:
        group = self.kinds[0]
        rows = f"{self.block.rows} x " * (self.block.rows > 1)
        tile = f"{rows}{self.block.columns} pixels by {group.vectors} x {lanes_of(self.machine)} channels"
        words = [f"tiles of {tile}"]
        if len(self.taps) > 1:
            words.append(f"{len(self.taps)} taps at once")
        if self.arithmetic.depth > 1:
            how = self.arithmetic
            by = f" by {how.dot}" * bool(how.dot)
            words.append(f"{MANY[how.depth]} of {how.operand} added up in {how.sums}{by}")
        if self.zeros:
            words.append("zero points taken off")
        if self.spread:
            words.append("lanes of several groups")
        if self.packs:
            words.append(f"source rows packed ({_size(self.packed)})")
        if self.carried:
            words.append(f"weights packed by tasks ({_size(self.carried)})")
        if self.unpacks:
            words.append(f"results unpacked ({_size(self.unpacked)})")
        chunks = f" by 1/{self.chunks} of the channels" * (self.chunks > 1)
        words.append(f"{self.tasks} tasks of {self.rows} x {self.columns} pixels{chunks}")
        return ", ".join(words)


def padded_axes(desc: MemoryDesc) -> set[int]:
    """The axes behind whose last element there is room."""
    rooms = desc.layout.padded_dims
    return {axis for axis, (size, room) in enumerate(zip(desc.dims, rooms, strict=True)) if room > size}


def ends_in_zeros(desc: MemoryDesc, side: Side, geometry: Geometry, stored: int) -> bool:
    """Whether a destination's padding is so many channels at most, which are stored behind the last one."""
    return padded_axes(desc) <= {1} and side.room <= geometry.groups * geometry.outputs + stored


@lru_cache(maxsize=512)  # plans of many formats have the same loops
def _order(arithmetic: Arithmetic, loops: tuple[Loop, ...], taps: int, spread: int) -> tuple[object, ...]:
    if arithmetic.sums != "f32":
        return ()
    if arithmetic.tiles:
        return order_of(loops, arithmetic)
    _, inner = in_blocks([loop for loop in loops if loop.extent > 1], BLOCK // taps)
    return taps, spread, prod([loop.extent for loop in inner])


def _lines(size: int) -> int:
    """Whole cache lines, and one more: vectors may begin in the last one."""
    return (size + 2 * LINE - 1) // LINE * LINE


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10240 else f"{count >> 10} KiB"
