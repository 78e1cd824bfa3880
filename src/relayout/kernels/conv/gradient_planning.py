"""Gradients of weights: from formats to the plans that are worth measuring.

:mod:`.gradient` says what a plan is. It is found in this order::

    sides           how far apart images, rows, pixels and channels lie
    a row           whether tiles do all taps of a row of a filter at once
    chunks          loops over pixels, cut so that a chunk stays in the L1 cache
    packing         which plans there are: source packed or not, ``diff_dst`` packed or not, prefetched or not
      blocks        of output channels, and the tiles of input channels that each of them meets
      shares, cuts  how the work is cut among threads

Sizes and strides are bytes unless they count something.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import ceil, prod
from typing import NamedTuple

from relayout.ir.vectors import Piece
from relayout.kernels.conv.geometry import Geometry, is_spread, lane_patterns
from relayout.kernels.conv.gradient import (
    PRODUCTS,
    Dim,
    Filters,
    Inputs,
    Outputs,
    Plan,
    Row,
    Tap,
    Tile,
    chunks_of,
    dense_strides,
    row_of,
)
from relayout.kernels.conv.sides import Side, pieces_at, places_of, side_of
from relayout.kernels.conv.tile import WORD, lanes_of
from relayout.kernels.conv.weights import Weights
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Digit
from relayout.records import replace
from relayout.targets.machine import Machine

__all__ = ["planned"]

LEAST_FLOPS = 1 << 22
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
MEMORY_BYTES = 6
"""Bytes that come from memory, or the L3 cache, in a cycle."""
MOST_TILES = 16
"""Functions of a kernel, each for a tile of its own."""
FAR_PIXELS = 512
"""From so many bytes between pixels on, few sets of the L1 cache hold them all."""
LEAST_REUSE = 4
"""Tiles that read a packed vector; with fewer, packing costs more than it saves."""


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
    vectors = ceil(row / ceil(row / _most_vectors(machine)))
    together = row_of(geometry) if spread or vectors == 1 else None
    if together is not None and _room(together, geometry, machine) < 1:
        together = None
    if together is not None and spread:
        vectors = min(len(weights.vectors), _room(together, geometry, machine))
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
        can_gather, gathers = apart and alike and real, source.steps[2] >= FAR_PIXELS
        step = machine.vector, False
    if not (real or can_gather):
        return ()
    problem = _Problem(
        geometry, machine, threads, src, dst, source, target, weights, written, dims, together,
        step[0] if step else 0,
    )  # fmt: skip
    gathers = can_gather and (gathers or not real)
    ahead = geometry.taps == 1  # with several, most of what is read lies in the caches
    first = _plans(problem, gathers, None, ahead)
    if not first or geometry.flops < LEAST_FLOPS:
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
    """Bytes of the weights."""
    dims: tuple[Dim, ...]
    row: Row | None
    """How tiles do all taps of a row of a filter; None: they do one tap."""
    forth: int
    """From one block of channels of a source that is packed to the next, as they come."""

    @property
    def lanes(self) -> int:
        """Sums of a register."""
        return lanes_of(self.machine)

    @property
    def spread(self) -> bool:
        """Whether a vector has channels of several groups."""
        return is_spread(self.geometry, self.lanes)

    @property
    def read(self) -> tuple[int, int]:
        """Bytes of the source and of ``diff_dst``."""
        return self.src.nbytes, self.dst.nbytes


def _plans(problem: _Problem, gathers: bool, packs: bool | None, ahead: bool) -> tuple[Plan, ...]:
    """The plans with the source packed or not, and ``diff_dst`` (None: as it seems best), best cuts first.

    ``ahead``: whether they prefetch, if they can.
    """
    geometry, machine, lanes, dims = problem.geometry, problem.machine, problem.lanes, problem.dims
    last = next((dim for dim in reversed(dims) if dim.extent > 1), dims[-1])
    read = problem.source
    if gathers:
        block = prod(dim.reach for dim in dims) * machine.vector
        channels = Digit(lanes, ceil(geometry.inputs / lanes), block), Digit(1, lanes, WORD)
        read = read._replace(channels=channels)
    found = (_spread if problem.spread else _tiles)(problem, read, gathers)
    if found is None or len(found.outputs) * len(found.inputs) > MOST_TILES:
        return ()
    if packs is None:
        reused = max(one.end - one.first for one in found.filters) * geometry.taps
        partial = any(len(pieces) > 1 for kind in found.outputs for pieces in kind.pieces)
        packs = problem.dst.dtype.name != "f32"
        packs = packs or (reused >= LEAST_REUSE and (last.dst >= FAR_PIXELS or partial))
    rows = geometry.inputs // lanes
    even = geometry.groups == 1 and read.channels[-1].extent * rows == geometry.inputs == rows * lanes
    taps = geometry.taps // (geometry.kernel[2] if problem.row else 1)
    # Sums of so few weights that adding up those of all shares costs little.
    shares = sum(problem.read) // (READ_OF_SUMMED * problem.written)
    shares = max(1, min(chunks_of(dims), MOST_SHARES, shares))
    cuts = _cuts(problem, (len(found.filters), rows if even else 1, taps), shares)
    plan = Plan(
        geometry=geometry,
        machine=machine,
        src=problem.source,
        dst=problem.target,
        dims=dims,
        taps=_taps(problem, gathers),
        outputs=tuple(found.outputs),
        inputs=tuple(found.inputs),
        tiles=tuple(found.tiles),
        filters=tuple(found.filters),
        spread=lane_patterns(geometry, lanes),
        step=problem.weights.inputs[0].stride,
        packs=packs,
        gathers=gathers,
        shares=shares,
        blocks=1,
        columns=1,
        parts=1,
        size=problem.written,
        source=problem.src.dtype.name,
        gradient=problem.dst.dtype.name,
        forth=problem.forth,
        across=problem.weights.taps[2],
        row=problem.row,
        ahead=ahead and geometry.groups == 1 and not problem.row and read.channels[-1].stride == WORD,
    )
    return tuple(
        replace(plan, blocks=blocks, columns=columns, parts=parts) for blocks, columns, parts in cuts
    )


def _room(row: Row, geometry: Geometry, machine: Machine) -> int:
    """How many vectors of outputs (spread), or input channels of one vector of them, registers hold."""
    taps, registers = geometry.kernel[2], machine.registers
    if is_spread(geometry, lanes_of(machine)):
        return min(8, (registers - 1) // (taps * geometry.inputs + row.depth))
    return (registers - row.depth - 2) // taps


def _most_vectors(machine: Machine) -> int:
    """Vectors of outputs of a tile.

    A vector of input channels is cut into tiles. With 8 of them and 16 registers these have 4 each, and of 2
    vectors 8 sums, which wait for themselves; of 3 vectors 12.
    """
    return 3 if machine.is_avx2 else machine.registers // 8


# -- blocks of outputs, and tiles of inputs -----------------------------------------------------------------


class _Blocks:
    """Blocks of outputs and tiles of inputs, as they are found, with the kinds that there are of both."""

    def __init__(self, problem: _Problem) -> None:
        self.problem = problem
        self.outputs: dict[Outputs, int] = {}
        self.inputs: dict[Inputs, int] = {}
        self.tiles: list[Tile] = []
        self.filters: list[Filters] = []

    def tile(self, kind: Inputs, src: int, weights: int, came: int) -> None:
        """One more tile of inputs; :class:`Tile` says what the places are."""
        self.tiles.append(Tile(self.inputs.setdefault(kind, len(self.inputs)), src, weights, came))

    def block(
        self, spans: Sequence[tuple[int, int]], vector: int, first: int, src: int, channels: int
    ) -> bool:
        """One more block of outputs, which meets all tiles from ``first`` on; False: it can't be loaded.

        Parameters
        ----------
        spans : sequence of (int, int)
            For each of its vectors the first output channel, and how many there are.
        vector : int
            The first of these vectors among those of the weights.
        src, channels : int
            Those of :class:`Filters`.
        """
        found = [pieces for one in spans if (pieces := self._loaded(*one)) is not None]
        if len(found) < len(spans):
            return False
        begin = min(piece.offset for pieces in found for piece in pieces)
        places = self.problem.weights.vectors[vector : vector + len(found)]
        kind = Outputs(
            tuple(tuple(piece._replace(offset=piece.offset - begin) for piece in pieces) for pieces in found),
            tuple(place - places[0] for place in places),
            tuple(valid for _, valid in spans),
        )
        number = self.outputs.setdefault(kind, len(self.outputs))
        self.filters.append(Filters(number, begin, places[0], first, len(self.tiles), src, channels))
        return True

    def _loaded(self, channel: int, valid: int) -> tuple[Piece, ...] | None:
        """How the vector of ``diff_dst`` from a channel on is loaded; None: too few channels lie together.

        Padding behind the last channel is zero, and is loaded along with it.
        """
        problem, target = self.problem, self.problem.target
        if channel + valid == problem.geometry.groups * problem.geometry.outputs:
            valid = min(problem.lanes, max(valid, target.room - channel))
        places = places_of(target.channels, channel + valid)[channel:]
        return pieces_at(places, problem.dst.dtype.bits // 8)


def _tiles(problem: _Problem, source: Side, gathers: bool) -> _Blocks | None:
    """Blocks of output channels of each group, and its input channels a few at a time."""
    geometry, machine, lanes, per = problem.geometry, problem.machine, problem.lanes, problem.geometry.outputs
    row = ceil(per / lanes)
    blocks = ceil(row / _most_vectors(machine))
    vectors = ceil(row / blocks)
    spare = 1 if machine.is_avx2 else 2
    most = (machine.registers - vectors - spare) // vectors if vectors > 1 else machine.registers - 6
    if problem.row is not None:
        most = _room(problem.row, geometry, machine)
    each = gathers and geometry.groups > 1  # packed for each group
    places = places_of(source.channels, geometry.inputs if each else geometry.groups * geometry.inputs)
    given = places_of(problem.source.channels, len(places))
    step = problem.weights.inputs[0].stride
    found = _Blocks(problem)
    for g in range(geometry.groups):
        start, begins = len(found.tiles), 0 if each else g * geometry.inputs
        came, channels = (g * geometry.inputs * WORD, geometry.inputs) if each else (0, 0)
        own = places[begins : begins + geometry.inputs]
        for first, end in _few(source.channels, begins, geometry.inputs, most):
            some = own[first:end]
            kind = Inputs(tuple(place - some[0] for place in some))
            found.tile(kind, some[0], first * step, came + given[begins + first])
        for first, end in _even(row, blocks):
            spans = [(g * per + v * lanes, min(lanes, per - v * lanes)) for v in range(first, end)]
            if not found.block(spans, g * row + first, start, came, channels):
                return None
    return found


def _spread(problem: _Problem, source: Side, gathers: bool) -> _Blocks | None:
    """Vectors with channels of several groups, and the vectors of the source that they meet."""
    geometry, lanes = problem.geometry, problem.lanes
    total = geometry.groups * geometry.outputs
    each = lanes // geometry.outputs * geometry.inputs  # channels of the source that a vector meets
    all_inputs = geometry.groups * geometry.inputs
    row = len(problem.weights.vectors)
    most = max(1, min(8, (problem.machine.registers - 6) // (2 + geometry.inputs)))
    if problem.row is not None:
        most = _room(problem.row, geometry, problem.machine)
    places = () if gathers else places_of(source.channels, all_inputs)
    found = _Blocks(problem)
    for first, end in _even(row, ceil(row / most)):
        several = range(first, end)
        starts = [v * each for v in several]
        widths = tuple(min(each, all_inputs - start) for start in starts)
        came, channels = 0, 0
        if gathers:
            came, channels = starts[0] * WORD, sum(widths)
            origin, vectors = 0, [k * source.channels[0].stride for k in range(len(starts))]
        else:
            for start, width in zip(starts, widths, strict=True):
                some = places[start : start + width]
                if some != tuple(range(some[0], some[0] + width * WORD, WORD)):
                    return None
            origin = places[starts[0]]
            vectors = [places[start] - origin for start in starts]
        number = len(found.tiles)
        found.tile(Inputs(tuple(vectors), widths), origin, 0, 0)
        spans = [(v * lanes, min(lanes, total - v * lanes)) for v in several]
        if not found.block(spans, first, number, came, channels):
            return None
    return found


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


# -- pixels and taps ----------------------------------------------------------------------------------------


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


def _taps(problem: _Problem, gathers: bool) -> tuple[Tap, ...]:
    """All taps of a filter; in a packed source the first one lies at its first element."""
    g, row, found = problem.geometry, problem.row, []
    units = [0, 0, 0]
    packed = dense_strides([dim.reach for dim in problem.dims], problem.machine.vector)
    for dim, step in zip(problem.dims, packed, strict=True):
        if dim.axis >= 0:
            units[dim.axis] = step if gathers else dim.unit
    kernel = g.kernel if row is None else (*g.kernel[:2], 1)
    for tap in product(*(range(size) for size in kernel)):
        inside = []
        for axis, t in enumerate(tap):
            if axis == 2 and row is not None:
                inside.append((0, g.target[2]))
                continue
            away = t * g.dilation[axis] - g.padding[axis]
            stride, outputs = g.strides[axis], g.target[axis]
            first = min(max(0, -(away // stride)), outputs)  # the first output behind the padding
            end = min(outputs, (g.source[axis] - 1 - away) // stride + 1)
            inside.append((first, max(end, first)))
        padding = (0, 0, 0) if gathers else g.padding
        moved = (t * d - p for t, d, p in zip(tap, g.dilation, padding, strict=True))
        src = sum(by * step for by, step in zip(moved, units, strict=True))
        place = sum(t * step for t, step in zip(tap, problem.weights.taps, strict=True))
        found.append(Tap(src, place, tuple(inside)))
    return tuple(found)


# -- shares of the work -------------------------------------------------------------------------------------


def _cuts(problem: _Problem, pieces: tuple[int, int, int], shares: int) -> list[tuple[int, int, int]]:
    """Parts of the outputs, of the inputs and of the taps: what so many threads do soonest, and what is near.

    The ``pieces`` are blocks of outputs, vectors of inputs and taps, or rows of them. The source is read for
    each part of the outputs, ``diff_dst`` for each of the inputs, and sums of a task that are larger than a
    share of the L2 cache are moved for each chunk.
    """
    geometry, threads, written = problem.geometry, problem.threads, problem.written
    if geometry.flops < LEAST_FLOPS:
        return [(1, 1, 1)]
    near = problem.machine.l2 // 3
    most = max(MOST_PARTS * threads, ceil(written / near))
    computed = geometry.flops / (2 * PRODUCTS * problem.lanes)
    src, dst = problem.read
    found: list[tuple[float, int, tuple[int, int, int]]] = []
    for blocks, columns, parts in product(*(_parts(count, most) for count in pieces)):
        cut = blocks * columns * parts
        if cut > 2 * most:
            continue
        moved = blocks * parts * src + columns * parts * dst
        moved += 2 * written * chunks_of(problem.dims) if written > near * cut else 0
        turns = ceil(shares * cut / threads) / (shares * cut)  # of the work, that of the busiest thread
        found.append(((computed + moved / MEMORY_BYTES) * turns, cut, (blocks, columns, parts)))
    found.sort()
    return [cut for cost, _, cut in found if cost <= COST_LIMIT * found[0][0]][:MOST_CUTS]


def _parts(count: int, most: int) -> list[int]:
    """Into how many parts so many are cut: powers of two, and one for each.

    >>> _parts(9, 16), _parts(8, 4)
    ([1, 2, 4, 8, 9], [1, 2, 4])
    """
    found = {1 << k for k in range(most.bit_length()) if 1 << k <= min(count, most)}
    return sorted(found | {count} if count <= most else found)
