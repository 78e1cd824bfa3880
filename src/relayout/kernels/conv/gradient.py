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

from itertools import pairwise, product
from math import ceil, prod
from typing import NamedTuple

from relayout.dtypes import dtype
from relayout.ir.vectors import Piece
from relayout.kernels.conv.geometry import Geometry, is_spread
from relayout.kernels.conv.sides import Side, pieces_at, places_of, side_of
from relayout.kernels.conv.tile import WORD, lanes_of, registers_of
from relayout.kernels.conv.weights import Weights
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Digit
from relayout.records import dataclass, replace
from relayout.targets.machine import Machine

__all__ = ["Dim", "Filters", "Inputs", "Outputs", "Plan", "Row", "Tap", "Tile", "Turn", "planned", "row_of"]

LEAST = 1 << 22
"""Operations that are one task."""
MOST_SHARES = 16
READ_OF_SUMMED = 24
"""Bytes that are read for each byte of the sums of a share: these are written and read a second time, while
nothing is computed."""
MOST_PARTS = 4
"""Parts of outputs, inputs and taps, for each thread."""
MOST_CUTS = 4
"""Ways to cut the work into parts that are measured, whose"""
COST_LIMIT = 1.15
"""estimated cost is at most so many times the lowest."""
MOVED = 6
"""Bytes that come from memory, or the L3 cache, in a cycle."""
MOST_TILES = 16
"""Functions of a kernel, each for a tile of its own."""
APART = 512
"""From so many bytes between pixels on, few sets of the L1 cache hold them all."""
PRODUCTS = 1.6
"""Vectors of products in a cycle, of two that could be: as measured, all else included."""
MOST_BORDER = 8
"""Pixels of a row whose taps are written out one by one, since not all of them are inside."""
LEAST_REUSE = 4
"""Tiles that read a packed vector; with fewer, packing costs more than it saves."""


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
        return prod(ceil(dim.extent / dim.chunk) for dim in self.dims)

    @property
    def pitch(self) -> int:
        """From pixel to pixel of packed vectors."""
        return max(len(kind.pieces) for kind in self.outputs) * self.machine.vector

    @property
    def packed(self) -> tuple[int, ...]:
        """The strides of packed pixels."""
        return _strides([dim.chunk for dim in self.dims], self.pitch)

    @property
    def gathered(self) -> tuple[int, ...]:
        """The strides of packed elements of the source."""
        return _strides([dim.reach for dim in self.dims], self.machine.vector)

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


def _strides(extents: list[int], last: int) -> tuple[int, ...]:
    """Of a dense array whose elements take so many bytes."""
    return tuple(prod(extents[k + 1 :]) * last for k in range(len(extents)))


def planned(
    geometry: Geometry,
    src: MemoryDesc,
    dst: MemoryDesc,
    weights: Weights,
    written: int,
    machine: Machine,
    threads: int,
) -> tuple[Plan, ...]:
    """The plans for these formats that are worth measuring; none where they don't lie as a tile reads them.

    ``weights`` are those that are written, which take so many bytes. What is not f32 is widened on the way
    into packed vectors. The first is the estimate. The others differ in what is packed, and in parts of the
    outputs, inputs and taps: in nothing that changes a sum, so that all give the same bits. Shares are the
    same for all of them, and for all numbers of ``threads``.
    """
    source, target, lanes = side_of(src), side_of(dst), lanes_of(machine)
    if source is None or target is None or not source.is_plain or not target.is_plain:
        return ()
    if len(source.batch) != 1 or len(target.batch) != 1 or len(weights.inputs) != 1:
        return ()
    spread = is_spread(geometry, lanes)
    row = ceil(geometry.outputs / lanes)
    vectors = ceil(row / ceil(row / (registers_of(machine) // 8)))
    together = row_of(geometry) if spread or vectors == 1 else None
    if together is not None and _room(together, geometry, machine, spread) < 1:
        together = None
    if together is not None and spread:
        vectors = min(len(weights.vectors), _room(together, geometry, machine, spread))
    touched = prod(min(pair) for pair in zip(geometry.strides, geometry.kernel, strict=True))
    most = (vectors + touched) * machine.vector
    dims = _chunked(_dims(geometry, source, target), machine.l1 * 3 // 4 // most)
    if dims[-1].axis != 2 or dims[-1].chunk < dims[-1].extent:
        together = None
    step, real = _block(source, geometry, lanes, src.dtype.bits // 8), src.dtype.name == "f32"
    near = geometry.inputs * WORD <= machine.vector or row * geometry.taps < LEAST_REUSE
    can_gather, gathers = step is not None and not spread, step is not None and not (near or step[1])
    if geometry.groups > 1:
        apart = source.channels == (Digit(1, geometry.groups * geometry.inputs, WORD),)
        alike = together is not None and (not spread or geometry.inputs == geometry.outputs)
        can_gather, gathers = apart and alike and real, source.steps[2] >= APART
        step = machine.vector, False
    if not (real or can_gather):
        return ()
    problem = _Problem(
        geometry, machine, threads, src, dst, source, target, weights, written, dims, spread, together,
        step[0] if step else 0,
    )  # fmt: skip
    gathers = can_gather and (gathers or not real)
    ahead = geometry.taps == 1  # with several, most of what is read lies in the caches
    first = _plans(problem, gathers, None, ahead)
    if not first or geometry.flops < LEAST:
        return first[:1]
    others = [plan for plan in _plans(problem, gathers, None, not ahead)[:1] if plan.ahead != first[0].ahead]
    if dst.dtype.name == "f32":
        others += _plans(problem, gathers, not first[0].packs, ahead)[:1]
    if can_gather and real:
        others += _plans(problem, not gathers, None, ahead)[:1]
    return (*first, *others)


class _Problem(NamedTuple):
    """What all plans of a problem have in common."""

    geometry: Geometry
    machine: Machine
    threads: int
    src: MemoryDesc
    dst: MemoryDesc
    source: Side
    target: Side
    weights: Weights
    written: int
    dims: tuple[Dim, ...]
    spread: bool
    together: Row | None
    step: int


def _plans(problem: _Problem, gathers: bool, packs: bool | None, ahead: bool) -> tuple[Plan, ...]:
    """The plans with the source packed or not, and ``diff_dst`` (None: as it seems best), best cuts first.

    ``ahead``: whether they prefetch, if they can.
    """
    geometry, machine, threads, src, dst, source, target, weights, written, dims, spread, together, step = (
        problem
    )
    lanes, taps = lanes_of(machine), geometry.taps
    last = next((dim for dim in reversed(dims) if dim.extent > 1), dims[-1])
    read = source
    if gathers:
        block = prod(dim.reach for dim in dims) * machine.vector
        channels = Digit(lanes, ceil(geometry.inputs / lanes), block), Digit(1, lanes, WORD)
        read = source._replace(channels=channels)
    size = dst.dtype.bits // 8
    found = (_spread if spread else _tiles)(
        geometry, read, target, weights, machine, size, together, gathers, source
    )
    if found is None:
        return ()
    outputs, inputs, tiles, filters = found
    if len(outputs) * len(inputs) > MOST_TILES:
        return ()
    reused = max(one.end - one.first for one in filters) * taps
    partial = any(len(pieces) > 1 for kind in outputs for pieces in kind.pieces)
    if packs is None:
        packs = dst.dtype.name != "f32" or (reused >= LEAST_REUSE and (last.dst >= APART or partial))
    patterns: tuple[tuple[int, ...], ...] = ()
    if spread:
        per, each = geometry.outputs, geometry.inputs
        patterns = tuple(tuple(lane // per * each + k for lane in range(lanes)) for k in range(each))
    rows = geometry.inputs // lanes
    even = geometry.groups == 1 and read.channels[-1].extent * rows == geometry.inputs == rows * lanes
    moved = src.nbytes, dst.nbytes
    shares = _shares(dims, moved, written)
    chunks = prod(ceil(dim.extent / dim.chunk) for dim in dims)
    pieces = len(filters), rows if even else 1, geometry.taps // (geometry.kernel[2] if together else 1)
    cuts = _cuts(geometry, pieces, shares, chunks, moved, written, machine, threads)
    plan = Plan(
        geometry,
        machine,
        source,
        target,
        dims,
        (),
        outputs,
        inputs,
        tiles,
        filters,
        patterns,
        weights.inputs[0].stride,
        packs,
        gathers,
        shares,
        *cuts[0],
        written,
        src.dtype.name,
        dst.dtype.name,
        step,
        weights.taps[2],
        together,
        ahead and geometry.groups == 1 and together is None and read.channels[-1].stride == WORD,
    )
    plan = replace(plan, taps=_taps(plan, weights))
    return tuple(
        replace(plan, blocks=blocks, columns=columns, parts=parts) for blocks, columns, parts in cuts
    )


Found = tuple[tuple[Outputs, ...], tuple[Inputs, ...], tuple[Tile, ...], tuple[Filters, ...]]


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


def _room(row: Row, geometry: Geometry, machine: Machine, spread: bool) -> int:
    """How many vectors of outputs (spread), or input channels of one vector of them, registers hold."""
    taps, registers = geometry.kernel[2], registers_of(machine)
    if spread:
        return min(8, (registers - 1) // (taps * geometry.inputs + row.depth))
    return (registers - row.depth - 2) // taps


def _tiles(
    geometry: Geometry,
    source: Side,
    target: Side,
    weights: Weights,
    machine: Machine,
    size: int,
    row_of_taps: Row | None,
    gathers: bool,
    raw: Side,
) -> Found | None:
    """Blocks of output channels of each group, and its input channels a few at a time."""
    lanes, per = lanes_of(machine), geometry.outputs
    row = ceil(per / lanes)
    blocks = ceil(row / (registers_of(machine) // 8))
    vectors = ceil(row / blocks)
    most = (registers_of(machine) - vectors - 2) // vectors if vectors > 1 else registers_of(machine) - 6
    if row_of_taps is not None:
        most = _room(row_of_taps, geometry, machine, False)
    each = gathers and geometry.groups > 1  # packed for each group
    places = places_of(source.channels, geometry.inputs if each else geometry.groups * geometry.inputs)
    given = places_of(raw.channels, len(places))
    step = weights.inputs[0].stride
    outputs: dict[Outputs, int] = {}
    inputs: dict[Inputs, int] = {}
    tiles: list[Tile] = []
    filters: list[Filters] = []
    for g in range(geometry.groups):
        start, begins = len(tiles), 0 if each else g * geometry.inputs
        came = g * geometry.inputs * WORD if each else 0
        own = places[begins : begins + geometry.inputs]
        for first, end in _few(source.channels, begins, geometry.inputs, most):
            some = own[first:end]
            kind = Inputs(tuple(place - some[0] for place in some))
            number = inputs.setdefault(kind, len(inputs))
            tiles.append(Tile(number, some[0], first * step, came + given[begins + first]))
        for first, end in _even(row, blocks):
            several = range(first, end)
            at = weights.vectors[g * row + first]
            found = [_loaded(target, geometry, g * per + v * lanes, min(lanes, per - v * lanes), lanes, size)
                     for v in several]  # fmt: skip
            if None in found:
                return None
            begin = min(piece.offset for pieces in found for piece in pieces or ())
            kind_of = Outputs(
                tuple(
                    tuple(piece._replace(offset=piece.offset - begin) for piece in pieces or ())
                    for pieces in found
                ),
                tuple(weights.vectors[g * row + v] - at for v in several),
            )
            number = outputs.setdefault(kind_of, len(outputs))
            own_channels = geometry.inputs if each else 0
            filters.append(Filters(number, begin, at, start, len(tiles), came, own_channels))
    return tuple(outputs), tuple(inputs), tuple(tiles), tuple(filters)


def _spread(
    geometry: Geometry,
    source: Side,
    target: Side,
    weights: Weights,
    machine: Machine,
    size: int,
    row_of_taps: Row | None,
    gathers: bool,
    raw: Side,
) -> Found | None:
    """Vectors with channels of several groups, and the vectors of the source that they meet."""
    lanes, total = lanes_of(machine), geometry.groups * geometry.outputs
    each = lanes // geometry.outputs * geometry.inputs  # channels of the source that a vector meets
    all_inputs = geometry.groups * geometry.inputs
    row = len(weights.vectors)
    most = max(1, min(8, (registers_of(machine) - 6) // (2 + geometry.inputs)))
    if row_of_taps is not None:
        most = _room(row_of_taps, geometry, machine, True)
    outputs: dict[Outputs, int] = {}
    inputs: dict[Inputs, int] = {}
    tiles: list[Tile] = []
    filters: list[Filters] = []
    block = source.channels[0].stride if gathers else 0
    places = () if gathers else places_of(source.channels, all_inputs)
    for first, end in _even(row, ceil(row / most)):
        several = range(first, end)
        found = [
            _loaded(target, geometry, v * lanes, min(lanes, total - v * lanes), lanes, size) for v in several
        ]
        if None in found:
            return None
        starts = [v * each for v in several]
        widths = tuple(min(each, all_inputs - start) for start in starts)
        for start, width in zip(starts, widths, strict=True) if not gathers else ():
            some = places[start : start + width]
            if some != tuple(range(some[0], some[0] + width * WORD, WORD)):
                return None
        begin = min(piece.offset for pieces in found for piece in pieces or ())
        if gathers:
            origin, kind = 0, Inputs(tuple(k * block for k in range(len(starts))), widths)
        else:
            origin = places[starts[0]]
            kind = Inputs(tuple(places[start] - origin for start in starts), widths)
        at = weights.vectors[first]
        kind_of = Outputs(
            tuple(
                tuple(piece._replace(offset=piece.offset - begin) for piece in pieces or ())
                for pieces in found
            ),
            tuple(weights.vectors[v] - at for v in several),
        )
        number = len(tiles)
        tiles.append(Tile(inputs.setdefault(kind, len(inputs)), origin, 0, 0))
        came = (starts[0] * WORD, sum(widths)) if gathers else (0, 0)
        filters.append(
            Filters(outputs.setdefault(kind_of, len(outputs)), begin, at, number, number + 1, *came)
        )
    return tuple(outputs), tuple(inputs), tuple(tiles), tuple(filters)


def _block(source: Side, geometry: Geometry, lanes: int, size: int) -> tuple[int, bool] | None:
    """From one vector of input channels to the next, and whether they lie in blocks of that many.

    None where they don't lie together, and where groups have some of them each.
    """
    if geometry.groups > 1:
        return None
    if source.channels == (Digit(1, geometry.inputs, size),):
        return lanes * size, False
    *outer, inner = source.channels
    if len(outer) == 1 and inner == Digit(1, lanes, size):
        return outer[0].stride, True
    return None


def _loaded(
    target: Side, geometry: Geometry, channel: int, valid: int, lanes: int, size: int
) -> tuple[Piece, ...] | None:
    """How the vector of ``diff_dst`` from a channel on is loaded; None where too few channels lie together.

    Padding behind the last channel is zero, and is loaded along with it.
    """
    total = geometry.groups * geometry.outputs
    if channel + valid == total:
        valid = min(lanes, max(valid, target.room - channel))
    places = places_of(target.channels, channel + valid)[channel:]
    return pieces_at(places, size)


def _few(channels: tuple[Digit, ...], start: int, count: int, most: int) -> list[tuple[int, int]]:
    """Input channels cut into tiles; those of a block of the format stay together, so that kinds are few."""
    inner = channels[-1].extent if len(channels) > 1 and channels[-1].weight == 1 else 0
    if not inner or start % inner:
        return _even(count, ceil(count / most))
    found = []
    room = max(inner, most // inner * inner)
    for first in range(0, count, room):
        length = min(room, count - first)
        found += [(first + a, first + b) for a, b in _even(length, ceil(length / most))]
    return found


def _even(count: int, parts: int) -> list[tuple[int, int]]:
    """Where parts that differ by one at most begin and end, the longer ones first.

    >>> _even(16, 3)
    [(0, 6), (6, 11), (11, 16)]
    """
    each, more = divmod(count, parts)
    starts = [k * each + min(k, more) for k in range(parts + 1)]
    return list(pairwise(starts))


def _dims(geometry: Geometry, source: Side, target: Side) -> list[Dim]:
    """The loops over pixels, not yet cut into chunks."""
    g = geometry
    merged: list[Dim] = [Dim(g.batch, source.batch[0].stride, target.batch[0].stride, g.batch)]
    for axis, extent in enumerate(g.target):
        unit, stride, dst = source.steps[axis], g.strides[axis], target.steps[axis]
        if g.kernel[axis] > 1 or not g.always_inside(axis):
            span = (g.kernel[axis] - 1) * g.dilation[axis] + 1
            merged.append(Dim(extent, unit, dst, g.source[axis], stride, axis, g.padding[axis], span))
            continue
        before, dim = merged[-1], Dim(extent, unit * stride, dst, extent)
        joins = before.axis < 0 and (before.unit, before.dst) == (dim.unit * extent, dst * extent)
        if before.axis < 0 and before.extent == 1:
            merged[-1] = dim
        elif joins:
            merged[-1] = dim._replace(extent=extent * before.extent, size=extent * before.extent)
        elif extent > 1:
            merged.append(dim)
    return merged


def _chunked(dims: list[Dim], most: int) -> tuple[Dim, ...]:
    """Loops with chunks of at most so many pixels, about as large as each other."""
    found: list[Dim] = []
    for dim in reversed(dims):
        chunk = ceil(dim.extent / ceil(dim.extent / max(1, min(most, dim.extent))))
        if not found:
            chunk += chunk < min(most, dim.extent) and chunk % 2  # two pixels of a row at a time
        most = most // chunk if chunk == dim.extent else 1
        found.append(dim._replace(chunk=chunk))
    return tuple(found[::-1])


def _taps(plan: Plan, weights: Weights) -> tuple[Tap, ...]:
    """All taps of a filter; in a packed source the first one lies at its first element."""
    g, found = plan.geometry, []
    units = [0, 0, 0]
    for dim, step in zip(plan.dims, plan.gathered, strict=True):
        if dim.axis >= 0:
            units[dim.axis] = step if plan.gathers else dim.unit
    kernel = g.kernel if plan.row is None else (*g.kernel[:2], 1)
    for tap in product(*(range(size) for size in kernel)):
        inside = []
        for axis, t in enumerate(tap):
            if axis == 2 and plan.row is not None:
                inside.append((0, g.target[2]))
                continue
            away = t * g.dilation[axis] - g.padding[axis]
            stride, outputs = g.strides[axis], g.target[axis]
            first = min(max(0, -(away // stride)), outputs)  # the first output behind the padding
            end = min(outputs, (g.source[axis] - 1 - away) // stride + 1)
            inside.append((first, max(end, first)))
        padding = (0, 0, 0) if plan.gathers else g.padding
        moved = (t * d - p for t, d, p in zip(tap, g.dilation, padding, strict=True))
        src = sum(by * step for by, step in zip(moved, units, strict=True))
        place = sum(t * step for t, step in zip(tap, weights.taps, strict=True))
        found.append(Tap(src, place, tuple(inside)))
    return tuple(found)


def _shares(dims: tuple[Dim, ...], read: tuple[int, int], written: int) -> int:
    """Shares of the chunks, by sizes alone: their sums are so few that adding them up costs little."""
    chunks = prod(ceil(dim.extent / dim.chunk) for dim in dims)
    return max(1, min(chunks, MOST_SHARES, sum(read) // (READ_OF_SUMMED * written)))


def _cuts(
    geometry: Geometry,
    pieces: tuple[int, int, int],
    shares: int,
    chunks: int,
    read: tuple[int, int],
    written: int,
    machine: Machine,
    threads: int,
) -> list[tuple[int, int, int]]:
    """Parts of the outputs, of the inputs and of the taps: what so many threads do soonest, and what is near.

    The ``pieces`` are blocks of outputs, vectors of inputs and taps, or rows of them. The source is read for
    each part of the outputs, ``diff_dst`` for each of the inputs (``read`` has the bytes of both), and sums
    of a task that are larger than a share of the L2 cache are moved for each chunk.
    """
    if geometry.flops < LEAST:
        return [(1, 1, 1)]
    near = machine.l2 // 3
    most = max(MOST_PARTS * threads, ceil(written / near))
    computed = geometry.flops / (2 * PRODUCTS * lanes_of(machine))
    found: list[tuple[float, int, tuple[int, int, int]]] = []
    for blocks, columns, parts in product(*(_parts(count, most) for count in pieces)):
        cut = blocks * columns * parts
        if cut > 2 * most:
            continue
        moved = blocks * parts * read[0] + columns * parts * read[1]
        moved += 2 * written * chunks if written > near * cut else 0
        turns = ceil(shares * cut / threads) / (shares * cut)  # of the work, that of the busiest thread
        found.append(((computed + moved / MOVED) * turns, cut, (blocks, columns, parts)))
    found.sort()
    return [cut for cost, _, cut in found if cost <= COST_LIMIT * found[0][0]][:MOST_CUTS]


def _parts(count: int, most: int) -> list[int]:
    """Into how many parts so many are cut: powers of two, and one for each.

    >>> _parts(9, 16), _parts(8, 4)
    ([1, 2, 4, 8, 9], [1, 2, 4])
    """
    found = {1 << k for k in range(most.bit_length()) if 1 << k <= min(count, most)}
    return sorted(found | {count} if count <= most else found)
