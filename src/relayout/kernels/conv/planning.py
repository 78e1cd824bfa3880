"""From formats to plans: which side is packed or unpacked, which channels are computed together.

Which vectors of the destination belong together, and where their weights and their pieces lie, is worked out
by asking the layouts for offsets, not by names. Where these don't come out even (blocks of 24 channels) the
side is packed or unpacked, or the weights are reordered before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product, repeat
from math import ceil
from typing import NamedTuple

from relayout.ir.vectors import Piece
from relayout.kernels.conv.arithmetic import FLOATS, Arithmetic, Zeros
from relayout.kernels.conv.cost import FACTS
from relayout.kernels.conv.direct import Block, Cut, Direct, Group, Packing, Place
from relayout.kernels.conv.geometry import Geometry, few_borders, is_spread, lane_patterns, rows_have_taps
from relayout.kernels.conv.sides import Side, distance, pieces_at, places_of, side_of
from relayout.kernels.conv.tile import WORD, lanes_of
from relayout.kernels.conv.weights import Weights, in_steps, weights_of
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Digit, Layout
from relayout.loops.nest import Loop, joined
from relayout.loops.refine import combined, pieces
from relayout.records import replace
from relayout.targets.machine import LINE, Machine

__all__ = ["Problem", "groups_of", "in_whole_steps", "nests", "with_loops"]

MOST_TAPS = 7  # of a row of a filter that one turn does
MOST_COLUMNS = 16  # of a filter that are written out one by one at borders
MOST_KINDS = 6  # of groups, each of which is a function of its own

Loops = tuple[Loop, ...]
"""Of the sum: its operands are source and weights."""


class Problem(NamedTuple):
    """A sum of products in these formats: a convolution of any geometry."""

    src: MemoryDesc
    weights: MemoryDesc
    dst: MemoryDesc
    geometry: Geometry
    arithmetic: Arithmetic
    grouped: bool
    """Whether the first axis of the weights is that of groups."""
    given: MemoryDesc | None = None
    """The weights as they come, where they are packed in each call; None: as they are read."""
    zeros: Zeros = Zeros()
    algorithm: str = "direct"
    """One of :data:`relayout.ops.products.ALGORITHMS`: which sums of real numbers are meant."""


def nests(problem: Problem, machine: Machine, threads: int) -> Iterator[Direct]:
    """All direct plans that solve a problem, not yet cut into tiles and tasks; none where the tile can't.

    Nor are there any where the source has gaps.

    They differ in whether source rows are packed, in who packs weights, in the vectors of a tile, and in
    whether a turn of the sum does all taps of a row.
    """
    src, weights, dst, geometry, arithmetic, grouped, *_ = problem
    if max(geometry.gaps) > 1 or (problem.zeros and arithmetic == FLOATS):
        return
    lanes, spread = lanes_of(machine), is_spread(geometry, lanes_of(machine))
    found = weights_of(weights, geometry, arithmetic, lanes, grouped)
    source, target = side_of(src), side_of(dst)
    if found is None or source is None or target is None:
        return
    completed = in_whole_steps(geometry, arithmetic)
    pitch = geometry.groups * completed * arithmetic.element
    if pitch % (FACTS.apart // 8) == 0:
        pitch += LINE
    ways = []
    collides = _collides(source, geometry, arithmetic)
    if src.dtype.name == arithmetic.operand and (machine.is_avx2 or not collides):
        ways += [False] * (_direct_loops(source, geometry, arithmetic, found, lanes, spread) is not None)
    if collides or not (ways and geometry.inside):
        ways += [True] * (_packed_loops(geometry, arithmetic, found, pitch, 0, spread) is not None)
    size = dst.dtype.bits // 8
    columns = geometry.kernel[2]
    shares = (
        (False, True)
        if not (spread or arithmetic.matrices) and geometry.target[2] > 1 < columns <= MOST_TAPS
        else (False,)
    )
    packings = _packings(problem, machine, threads, spread)
    patterns = lane_patterns(geometry, lanes)
    inputs = places_of(found.inputs, geometry.inputs) if spread else ()
    loops: dict[tuple[bool, bool, int], Loops | None] = {}  # in which the vectors of a tile change nothing
    whole = False  # whether tiles can store to the destination itself
    for unpacks in (False, True):
        if whole or (not unpacks and not target.is_plain):
            continue
        known: dict[bool, tuple[Loop, Loop, Loop, Loop]] = {}
        for packs, vectors in product(ways, _vectors(geometry, lanes, machine, spread)):
            cut = groups_of(
                geometry,
                found,
                (None if packs else source, arithmetic.element),
                (None, WORD) if unpacks else (target, size),
                lanes,
                vectors,
                spread,
                completed if packs else geometry.inputs,
            )
            if cut is None:
                continue
            whole = True
            if packs not in known:
                known[packs] = _dims(geometry, source, target, packs, unpacks, pitch)
            dims = known[packs]
            rows, step = dims[2].extent, pitch if packs else source.steps[2]
            for together, packing in product(shares, packings):
                own = packs, together, rows
                if own not in loops:
                    loops[own] = _loops(
                        *(geometry, arithmetic, found, source, lanes, spread, together),
                        *((rows, pitch) if packs else ()),
                    )
                own_loops = loops[own]
                assert own_loops is not None
                yield Direct(
                    geometry,
                    arithmetic,
                    machine,
                    source,
                    target,
                    packs,
                    unpacks,
                    pitch,
                    found,
                    own_loops,
                    _taps_of_a_row(geometry, step, found) if together else ((0, 0),),
                    patterns,
                    inputs,
                    *cut,
                    dims,
                    Block(1, 1),
                    rows,
                    dims[3].extent,
                    1,
                    packing,
                    problem.zeros,
                )


def _packings(problem: Problem, machine: Machine, threads: int, spread: bool) -> list[Packing | None]:
    """The ways to pack weights that come in another format.

    One thread alone gains nothing by a pass before.
    """
    given, weights, grouped = problem.given, problem.weights, problem.grouped
    if given is None:
        return [None]
    before = Packing(False, weights.nbytes, 0, 0, 0)
    came, packed = _groups_of(given.layout), _groups_of(weights.layout)
    apart = grouped and not len(came) == len(packed) == 1
    if spread or apart or weights.nbytes > machine.l2 // 2:
        return [before]
    size = given.dtype.bits // 8
    steps = [ladder[0].stride * size if grouped else 0 for ladder in (came, packed)]
    by_tasks = Packing(True, weights.nbytes, given.layout.offset0 * size, steps[0], steps[1])
    return [by_tasks, before] if threads > 1 else [by_tasks]


def _groups_of(layout: Layout) -> tuple[Digit, ...]:
    """The digits of the first axis; none where it is fused with others."""
    ladders = zip(layout.terms, layout.ladders, strict=True)
    return next((ladder for term, ladder in ladders if term == (0,)), ())


def with_loops(nest: Direct, cut: Cut) -> Direct:
    """A plan cut into tiles and tasks, with the loops of its sum."""
    nest = replace(nest, **cut._asdict())
    if not nest.packs or nest.geometry.kernel[0] == 1:  # they don't know how many rows are packed
        return nest
    together, spread, lanes = len(nest.taps) > 1, bool(nest.spread), lanes_of(nest.machine)
    sides = nest.geometry, nest.arithmetic, nest.weights, nest.src, lanes, spread, together
    loops = _loops(*sides, nest.rows, nest.pitch)
    assert loops is not None
    return replace(nest, loops=loops)


def _loops(
    geometry: Geometry,
    arithmetic: Arithmetic,
    weights: Weights,
    side: Side,
    lanes: int,
    spread: bool,
    together: bool,
    rows: int = 0,
    pitch: int = 0,
) -> Loops | None:
    """The loops of the sum over a source, or over packed rows, if there are any, so many in a task."""
    if not rows:
        return _direct_loops(side, geometry, arithmetic, weights, lanes, spread, together)
    plane = geometry.reach(1, rows) * geometry.reach(2, geometry.target[2]) * pitch
    return _packed_loops(geometry, arithmetic, weights, pitch, plane, spread, together)


def _collides(side: Side, geometry: Geometry, arithmetic: Arithmetic) -> bool:
    """Whether pixels that were picked out lie so far apart that all fall into one set of the L1 cache."""
    step = side.steps[2] if side.is_plain else 0
    return step > geometry.groups * geometry.inputs * arithmetic.element and step % FACTS.apart == 0


@lru_cache(maxsize=512)  # the formats of a network are tried with any number of vectors, and written anyhow
def _direct_loops(
    side: Side,
    geometry: Geometry,
    arithmetic: Arithmetic,
    weights: Weights,
    lanes: int,
    spread: bool,
    together: bool = False,
) -> Loops | None:
    """The loops of the sum over a source that the tile takes as it is, or None where it does not."""
    if not side.is_plain:
        return None
    if not geometry.inside and (arithmetic.matrices or not _takes_borders(geometry, spread)):
        return None
    innermost = side.channels[-1]
    dense = (innermost.weight, innermost.stride) == (1, arithmetic.element)
    if not dense and (spread or geometry.pixels > 1 or not geometry.inside):
        return None
    outer = [d.weight for d in side.channels[:-1]]
    if spread:
        channels: Loops | None = ()
        if any(weight % (lanes // geometry.outputs * geometry.inputs) for weight in outer):
            return None  # those of a vector lie in two blocks
    else:
        within = geometry.inputs
        if geometry.groups > 1 and any(weight % within and within % weight for weight in outer):
            return None
        if within % arithmetic.depth:
            return _loops_before_the_rest(side, geometry, arithmetic, weights)
        steps = in_steps(side.channels, arithmetic.depth, arithmetic.element)
        if steps is None:
            return None
        channels = _channels(within // arithmetic.depth, steps, weights.inputs)
    if channels is None:
        return None
    taps = _taps(geometry, side.steps, weights, together)
    if not geometry.inside:
        return (*taps, *channels)
    loops = (*taps, *channels)
    if not dense:  # an image is one pixel: in the order of its memory
        loops = tuple(sorted(loops, key=lambda loop: -loop.src))
    return joined(loops)


def _loops_before_the_rest(
    side: Side, geometry: Geometry, arithmetic: Arithmetic, weights: Weights
) -> Loops | None:
    """The loop over channels of one tap, side by side, without those that don't fill the last step."""
    within, depth = geometry.inputs, arithmetic.depth
    *outer, last = side.channels
    if (last.weight, last.stride) != (1, arithmetic.element) or any(d.weight % within for d in outer):
        return None
    if geometry.taps > 1 or not geometry.inside or within < depth or arithmetic.matrices:
        return None
    steps = ceil(within / depth)
    channels = _channels(steps, (Digit(1, steps, arithmetic.step),), weights.inputs)
    if channels is None or len(channels) != 1:
        return None
    return (channels[0].taking(steps - 1),)


def _takes_borders(geometry: Geometry, spread: bool) -> bool:
    """Whether tiles can be written without the taps that fall outside."""
    few = geometry.kernel[2] <= MOST_COLUMNS and few_borders(geometry)
    return not spread and few and rows_have_taps(geometry)


def in_whole_steps(geometry: Geometry, arithmetic: Arithmetic) -> int:
    """From the channels of a group to those of the next in packed rows: as many as fill all steps."""
    return ceil(geometry.inputs / arithmetic.depth) * arithmetic.depth


@lru_cache(maxsize=512)
def _packed_loops(
    geometry: Geometry,
    arithmetic: Arithmetic,
    weights: Weights,
    pitch: int,
    plane: int,
    spread: bool,
    together: bool = False,
) -> Loops | None:
    """The loops of the sum over rows in scratch, whose planes lie so many bytes apart."""
    if geometry.groups > 1 and geometry.inputs % arithmetic.depth and arithmetic.sums == "f32":
        return None  # to widen them takes less than to pack them
    row = geometry.reach(2, geometry.target[2]) * pitch
    channels: Loops | None = ()
    if not spread:
        steps = ceil(geometry.inputs / arithmetic.depth)
        dense = (Digit(1, steps, arithmetic.step),)
        channels = _channels(steps, dense, weights.inputs)
    if channels is None:
        return None
    taps = _taps(geometry, (plane, row, pitch), weights, together)
    if geometry.kernel[0] > 1:  # planes are packed one for each tap, whatever their dilation
        taps[0] = Loop(geometry.kernel[0], (plane, weights.taps[0]))
    return joined((*taps, *channels))


def _taps(geometry: Geometry, steps: tuple[int, int, int], weights: Weights, together: bool) -> list[Loop]:
    """The loops over a filter; without its columns where one turn does all of them."""
    return [
        Loop(geometry.kernel[a], (geometry.dilation[a] * steps[a], weights.taps[a]))
        for a in range(2 if together else 3)
        if geometry.kernel[a] > 1
    ]


def _taps_of_a_row(geometry: Geometry, step: int, weights: Weights) -> tuple[tuple[int, int], ...]:
    """Where the pixels and the weights of each column of a filter lie, for pixels so many bytes apart."""
    columns = range(geometry.kernel[2])
    return tuple((k * geometry.dilation[2] * step, k * weights.taps[2]) for k in columns)


def _channels(count: int, one: Sequence[Digit], two: Sequence[Digit]) -> Loops | None:
    """Loops over so many channels; None where they are cut unevenly.

    >>> _channels(32, [Digit(1, 32, 4)], [Digit(16, 2, 4096), Digit(1, 16, 64)])
    (Loop(extent=2, steps=(64, 4096)), Loop(extent=16, steps=(4, 64)))
    """
    found = pieces([one, two], 0, count)
    return joined(combined(found, (0, 0)).loops) if found is not None and len(found) == 1 else None


def _dims(
    geometry: Geometry, source: Side, target: Side, packs: bool, unpacks: bool, pitch: int
) -> tuple[Loop, Loop, Loop, Loop]:
    """The loops over outputs; rows and pixels of a packed or unpacked side are those in scratch."""
    d, h, w = geometry.target
    row = geometry.reach(2, w) * pitch
    read = (0, row, pitch) if packs else source.steps
    each = geometry.groups * geometry.outputs * WORD
    write = (0, w * each, each) if unpacks else target.steps
    n, *spatial = (
        Loop(geometry.batch, (0, 0)),
        *(
            Loop(extent, (step * src, dst))
            for extent, step, src, dst in zip((d, h, w), geometry.strides, read, write, strict=True)
        ),
    )
    dims = [n, *spatial]
    if packs or unpacks or not geometry.inside:
        return dims[0], dims[1], dims[2], dims[3]
    if len(source.batch) == 1 and len(target.batch) == 1:
        dims[0] = Loop(geometry.batch, (source.batch[0].stride, target.batch[0].stride))
    for k in (2, 1, 0):
        outer, inner = dims[k], dims[3]
        if outer.extent == 1:
            continue
        if (inner.extent > 1 and not outer.continues(inner)) or not outer.src:
            break
        steps = outer.steps if inner.extent == 1 else inner.steps
        dims[3], dims[k] = Loop(inner.extent * outer.extent, steps), Loop(1, (0, 0))
    return dims[0], dims[1], dims[2], dims[3]


def _vectors(geometry: Geometry, lanes: int, machine: Machine, spread: bool) -> list[int]:
    """How many vectors a tile may have."""
    if spread:
        return [1]
    most = ceil(geometry.outputs / lanes)
    return [n for n in (1, 2, 3, 4) if n <= most and n + 2 < machine.registers]


def groups_of(
    geometry: Geometry,
    weights: Weights,
    source: tuple[Side | None, int],
    target: tuple[Side | None, int],
    lanes: int,
    vectors: int,
    spread: bool,
    apart: int,
) -> tuple[tuple[Group, ...], tuple[Place, ...]] | None:
    """Output channels in groups of so many vectors: the kinds of groups, and each group's place.

    A side is given with the bytes of its elements; None: in scratch, where channels are side by side, those
    of the source so many ``apart`` from group to group.
    """
    groups, inputs, outputs = geometry.groups, geometry.inputs, geometry.outputs
    reads = _places(source, groups * max(apart, inputs))
    if not spread:
        found = _results(groups, outputs, weights, target, lanes, vectors)
        if found is None or not any(reads[g * apart] for g in range(groups)):
            return found
        each = len(found[1]) // groups
        places = [
            Place(kind, reads[k // each * apart], at, dst, channel)
            for k, (kind, _, at, dst, channel) in enumerate(found[1])
        ]
        return found[0], tuple(places)
    total = groups * outputs
    begins, forms = _stores(target, total, total, lanes)
    several, sources = _Kinds(target[1]), groups * inputs
    for number in range(ceil(total / lanes)):
        first = number * lanes // outputs * inputs
        width = min(lanes // outputs * inputs, sources - first)
        valid = min(lanes, total - number * lanes)
        kind = several.kind((forms[number],), (0,), (0,), valid, (width,), (0,))
        if kind is None:
            return None
        places_of_it = reads[first], weights.vectors[number], begins[number], number * lanes
        several.places.append(Place(kind, *places_of_it))
    return several.found


@lru_cache(maxsize=256)  # sources of many formats meet the same results
def _results(
    groups: int,
    outputs: int,
    weights: Weights,
    target: tuple[Side | None, int],
    lanes: int,
    vectors: int,
) -> tuple[tuple[Group, ...], tuple[Place, ...]] | None:
    """The same for a source that begins at 0 for all groups, with vectors of one group each."""
    row, starts = ceil(outputs / lanes), weights.vectors
    begins, forms = _stores(target, groups * outputs, outputs, lanes)
    several = _Kinds(target[1])
    even = groups == 1 and distance(begins) and distance(starts) and forms.count(forms[0]) >= row - 1
    alike = (row - 1) // vectors if even else 0
    if alike:  # all groups of vectors but the last are of one kind
        ends = alike * vectors
        own = [tuple([at - side[0] for at in side[:vectors]]) for side in (begins, starts)]
        kind = several.kind(forms[:vectors], own[0], own[1], lanes)
        if kind is None:
            return None
        channels = range(0, ends * lanes, vectors * lanes)
        where = repeat(kind), repeat(0), starts[:ends:vectors], begins[:ends:vectors], channels
        several.places += map(Place._make, zip(*where, strict=False))
    for g in range(groups):
        for first in range(alike * vectors, row, vectors):
            count, number = min(vectors, row - first), g * row + first
            begin, start, end = begins[number], starts[number], number + count
            kind = several.kind(
                forms[number:end],
                tuple([one - begin for one in begins[number:end]]),
                tuple([one - start for one in starts[number:end]]),
                min(lanes, outputs - (first + count - 1) * lanes),
            )
            if kind is None:
                return None
            several.places.append(Place(kind, 0, start, begin, g * outputs + first * lanes))
    return several.found


class _Kinds:
    """The different groups, each of which is one function, and the places of all."""

    def __init__(self, size: int) -> None:
        self.size = size  # bytes of an element of the destination
        self.groups: list[Group] = []
        self.places: list[Place] = []
        self._known: dict[object, int] = {}

    @property
    def found(self) -> tuple[tuple[Group, ...], tuple[Place, ...]]:
        return tuple(self.groups), tuple(self.places)

    def kind(
        self,
        forms: tuple[tuple[int, ...], ...],
        begins: tuple[int, ...],
        weights: tuple[int, ...],
        valid: int,
        widths: tuple[int, ...] = (),
        shifts: tuple[int, ...] = (),
    ) -> int | None:
        """The number of a kind; None where it can't be stored, or is one too many."""
        key = forms, begins, weights, valid, widths, shifts
        kind = self._known.get(key)
        if kind is None:
            pieces = [_pieces(form, self.size) for form in forms]
            if None in pieces or len(self._known) == MOST_KINDS:
                return None
            moved = [
                tuple([piece._replace(offset=piece.offset + offset) for piece in own or ()])
                for own, offset in zip(pieces, begins, strict=True)
            ]
            kind = self._known[key] = len(self.groups)
            self.groups.append(Group(len(forms), tuple(moved), weights, valid, widths, shifts))
        return kind


def _places(side: tuple[Side | None, int], count: int) -> Sequence[int]:
    """Where channels lie; side by side, so many, in scratch."""
    given, size = side
    return range(0, count * size, size) if given is None else places_of(given.channels, given.room)


@lru_cache(maxsize=64)  # each is asked for any number of vectors in a group
def _stores(
    target: tuple[Side | None, int], total: int, per: int, lanes: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Where each vector of output channels begins, and where its lanes lie behind that.

    The padding behind the last channel is stored, too.
    """
    writes, room = _places(target, total), total if target[0] is None else target[0].room
    begins, forms = [], []
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    for first in range(0, total, per):
        for at in range(first, first + per, lanes):
            end = min(at + lanes, first + per)
            if end == total:
                end = min(at + lanes, room)
            begin = writes[at]
            form = tuple([place - begin for place in writes[at:end]])
            begins.append(begin)
            forms.append(known.setdefault(form, form))
    return tuple(begins), tuple(forms)


@lru_cache(maxsize=4096)  # most groups are alike, in all formats
def _pieces(places: tuple[int, ...], size: int) -> tuple[Piece, ...] | None:
    """How the lanes of a vector are stored; None where they lie too far apart."""
    return pieces_at(places, size)
