"""Depthwise and grouped convolutions, whose groups are narrower than a vector: the plan.

Where groups have fewer output channels than a vector has lanes (depthwise has one, ResNeXt four or eight), a
vector computes several groups at once. Such convolutions do few products with each number that they read, so
what they cost is mostly to bring it to the registers. The direct plan (:mod:`.direct`) first copies source
rows, to put zeros around them, and spreads each pixel over the lanes for each tap. Here nothing is copied.

**Borders.** Rows of taps that fall outside are left out when the kernel runs: the loop over them begins later
or ends earlier. Along a row all is known in advance: it is cut into tiles, and each tile is written with the
taps that it has. Tiles side by side that are alike are a *span*; 56 pixels, a filter of 3, padding 1::

    outputs  0 ... 7        8 ... 15 ... 40 ... 47     48 ... 55
             without tap 0  all taps                   without tap 2
             of output 0                               of output 55

**Pixels.** A tile keeps the sums of some neighbouring outputs in registers, and loads each pixel of a source
row once for all taps and outputs that it belongs to: with stride 1 and three taps, a third of the loads.

**Lanes.** A vector holds channels that lie together, and where these are too few, the same channels of
several images, if those lie together: ``CHWN4`` has 4 channels of 4 images in 64 neighbouring bytes. Which
lane is which channel of which image follows from where it lies in the destination.

**Sums are rotated, not pixels.** In a group of 4 each output is a sum over 4 inputs, which lie in other
lanes. Let ``S[r]`` be what the inputs, each in its lane, give to the output that is ``r`` lanes further. With
R for the rotation of each group by one lane, the outputs are ::

    S[0] + R(S[1]) + R(R(S[2])) + R(R(R(S[3])))  =  S[0] + R(S[1] + R(S[2] + R(S[3])))

That is one shuffle for each output and each *turn* r, whatever the size of the filter, in place of one for
each pixel and tap. The price are weights in an order that no format has: lane t of S[r] takes the weight from
input t to output t + r. They are *prepared* in scratch, once for all rows and images that a thread computes.
A depthwise convolution has one turn and nothing to rotate; it reads f32 weights as they are.

**Gaps.** The transpose of a convolution with strides reads source pixels that lie a gap apart. In a row all
taps are known in advance, so an output just has fewer of them; a row of outputs meets every second row of
taps, or the others. So neighbouring outputs are written together, and no line of the destination twice.

**Traps.**

* What falls outside counts as zero, and zero times an infinite weight is NaN. So a tap that is left out still
  gives zero times its weight, at almost no cost: there are few at the ends of rows, and for rows of taps it
  is one sum for all outputs.
* Vectors of neighbouring channels (``nhwc``) lie a pixel apart in a row, which prefetchers do not follow,
  and a power of two apart at times, so that they share few sets of the L1 cache. Hence tiles
  of few pixels, all vectors of a tile before the next tile, several rows of a vector at once, and pixels that
  are prefetched.

What this does not take (None), the direct plan does: sources and destinations that keep fewer than four
channels together (``nchw``), outputs that no tap falls on, filters of more than 64 columns.

Sizes and strides are bytes unless they count something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import ceil, gcd, prod
from typing import NamedTuple, TypeVar

from relayout.dtypes import DType
from relayout.ir.vectors import Piece
from relayout.kernels.conv.arithmetic import FLOATS, Arithmetic, Zeros
from relayout.kernels.conv.cost import Facts
from relayout.kernels.conv.direct import Place, ends_in_zeros
from relayout.kernels.conv.geometry import Geometry, Span, few_borders, is_spread, rows_have_taps, spans
from relayout.kernels.conv.planning import Problem
from relayout.kernels.conv.sides import LEAST, Side, pieces_at, places_of, side_of
from relayout.kernels.conv.tile import lanes_of
from relayout.kernels.conv.weights import Weights, weights_of
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Digit
from relayout.records import dataclass, replace
from relayout.targets.machine import LINE, Machine

__all__ = ["Depthwise", "Kind", "cycles", "depthwise", "run_of", "with_tasks"]

MOST_KINDS = 6  # kinds of vectors; for each pair of a kind and a span there is a function
MOST_SPANS = 8  # spans of a row
MOST_TAPS = 64  # columns of a filter: all are unrolled
MOST_PRODUCTS = 512  # multiply-adds of vectors that are unrolled in a row of a tile
MOST_PLACES = 1024  # entries of the table of vectors, with several images in each
LONG_SUM = 4096  # products; longer sums are more accurate in blocks, which only the direct plan has
COLUMNS_HELD = 4  # columns of a filter whose weights are in registers at a time
WINDOW_PIXELS = 8  # pixels of a tile where vectors of one pixel are neighbours, for filters ...
FEW_TAPS = 16  # ... of at most so many taps
LEAST_SUMS = 7  # pixels that a tile keeps in any case: independent sums that hide the latency of adding
PAGE_BYTES = 4096  # lines that far apart fall into the same set of the L1 cache
ROWS_TOGETHER = 4  # output rows of one vector that are computed before the next vector
ROWS_AHEAD = 2  # output rows that pixels are prefetched ahead
TLB_REACH_BYTES = 1 << 23  # source and destination larger than that: more pages than the TLB holds
PREPARE_CYCLES = 4  # to prepare a vector of weights
TIE_BREAK = 0.02  # of the cost: added for each departure from the usual order, so that it wins no ties


class Kind(NamedTuple):
    """What vectors that are alike have in common; lanes are in the order of the destination's memory."""

    loads: tuple[Piece, ...]
    """How a vector of the source is loaded, behind its first lane."""
    picks: tuple[int, ...]
    """Which lane of it each lane multiplies; as many as there are lanes stands for zero."""
    stores: tuple[Piece, ...]
    """How results are stored, behind the first lane."""
    channels: tuple[int, ...]
    """The output channel of each lane, counted from the first; -1: padding."""
    positions: tuple[int, ...]
    """Which of the channels that are rotated each lane is; 0 where nothing is."""
    rotated: tuple[int, ...]
    """From which lane each gets its sum in a rotation."""


@dataclass(frozen=True)
class Depthwise:
    """How a convolution of groups narrower than a vector is done.

    A task is some rows of some images by a run of vectors. It goes over blocks of ``tall`` rows, tiles,
    vectors, and the rows of a block.
    """

    geometry: Geometry
    arithmetic: Arithmetic
    machine: Machine
    src: Side
    dst: Side
    src_type: DType
    weights: Weights
    kinds: tuple[Kind, ...]
    places: tuple[Place, ...]
    together: int
    """Images of a vector."""
    images: int
    """Images of all places."""
    spans: tuple[Span, ...]
    turns_in_rows: bool
    """Whether all turns are done in each row of taps."""
    run: int
    """Vectors of a task."""
    rows: int
    """Rows of a task."""
    tall: int
    """Rows of a block of a task."""
    ahead: int
    """How many rows below its first one a vector asks for pixels; 0: not at all."""

    zeros: Zeros = Zeros()

    unpacks = False
    carried = 0
    manner = "lanes of several groups"

    @property
    def order(self) -> tuple[object, ...]:
        """In which order sums are added up: plans of one problem that agree here give the same bits."""
        return "depthwise", self.turns_in_rows

    @property
    def weights_type(self) -> str:
        """The data type of the weights."""
        return self.weights.dtype

    def share(self, span: Span) -> int:
        """What a vector asks for in a row: its share of the pixels under a tile."""
        pixels = span.pixels * self.geometry.strides[2] // self.geometry.gaps[2]
        return pixels * lanes_of(self.machine) * self.src_type.bits // 8

    @property
    def abreast(self) -> int:
        """Channels of a vector."""
        return lanes_of(self.machine) // self.together

    @property
    def all_rows(self) -> int:
        """Rows of an image, in all of its planes."""
        return self.geometry.target[0] * self.geometry.target[1]

    @property
    def blocks(self) -> int:
        """Tasks of a run of vectors."""
        return self.geometry.batch // self.images * ceil(self.all_rows / self.rows)

    @property
    def tasks(self) -> int:
        """How many there are."""
        return self.blocks * ceil(len(self.places) / self.run)

    @property
    def turns(self) -> int:
        """Products of each tap and output: the inputs of a group, and perhaps zeros."""
        return _turns(self.geometry)

    @property
    def prepares(self) -> bool:
        """Whether weights are prepared."""
        lanes = [lane for kind in self.kinds for lane in enumerate(kind.channels)]
        straight = all(channel in (-1, lane) for lane, channel in lanes)
        return self.turns > 1 or self.weights_type != "f32" or not straight

    @property
    def turn(self) -> int:
        """The prepared weights of a vector in one turn."""
        return self.geometry.taps * self.machine.vector

    @property
    def prepared(self) -> int:
        """The prepared weights of a vector."""
        return self.turns * self.turn if self.prepares else 0

    @property
    def slot(self) -> int:
        """Scratch of one part of the work."""
        return self.run * self.prepared

    @property
    def steps(self) -> tuple[int, int, int]:
        """From tap to tap of the weights that tiles read."""
        if not self.prepares:
            return self.weights.taps
        _, h, w = self.geometry.kernel
        return h * w * self.machine.vector, w * self.machine.vector, self.machine.vector

    def row(self, facts: Facts) -> float:
        """About how many cycles a row of a vector takes."""
        met = self.geometry.taps / prod(self.geometry.gaps)
        return self.geometry.target[2] * self.turns * met / facts.products

    def clears(self, dst: MemoryDesc) -> bool:
        """Whether all padding of the destination is written: zeros behind the last channel."""
        last = self.kinds[self.places[-1].kind]
        stored = sum(piece.lanes for piece in last.stores) - sum(channel >= 0 for channel in last.channels)
        return ends_in_zeros(dst, self.dst, self.geometry, stored // self.together)

    def __str__(self) -> str:
        across = f"{self.abreast} channels" + f" of {self.together} images" * (self.together > 1)
        words = [f"tiles of {max(span.pixels for span in self.spans)} pixels by {across}"]
        words.append(self.manner)
        if self.zeros:
            words.append("zero points taken off")
        if self.prepares:
            words.append(f"weights of {self.prepared} bytes a vector prepared in scratch")
        blocks = f" in blocks of {self.tall} rows" * (self.tall > 1)
        words.append(f"{self.tasks} tasks of {self.rows} rows by {self.run} vectors{blocks}")
        if self.ahead:
            words.append(f"pixels prefetched {self.ahead} rows ahead")
        return ", ".join(words)


def depthwise(
    problem: Problem, machine: Machine, threads: int, facts: Facts
) -> Iterator[tuple[Depthwise, float]]:
    """Plans of a depthwise or grouped convolution, and about how many cycles each takes; longest runs first.

    There are none for other problems, and for those that are too odd.
    """
    src, weights, dst, geometry, arithmetic, grouped, *_ = problem
    lanes = lanes_of(machine)
    if not is_spread(geometry, lanes) or arithmetic != FLOATS or not geometry.flops:
        return
    found = weights_of(weights, geometry, arithmetic, lanes, grouped)
    source, target = side_of(src), side_of(dst)
    if found is None or source is None or target is None or not (source.is_plain and target.is_plain):
        return
    if geometry.inputs * geometry.taps > LONG_SUM or geometry.kernel[2] > MOST_TAPS:
        return
    if not (few_borders(geometry) and rows_have_taps(geometry)):
        return
    best: tuple[int, _Made] | None = None
    for together in (1, 2, 4, 8, 16):
        if geometry.batch % together or lanes // together < max(LEAST, geometry.outputs):
            break
        sizes = src.dtype.bits // 8, weights.dtype.bits // 8, dst.dtype.bits // 8
        made = _Vectors(geometry, found, source, target, sizes, lanes, together).made()
        if made is None:
            continue
        moves = len(made.kinds[0].loads) * geometry.kernel[1] + len(made.kinds[0].stores)
        if best is None or moves < best[0]:
            best = moves, made
        if moves == geometry.kernel[1] + 1:  # one load, one store
            break
    if best is None:
        return
    made = best[1]
    pixels, turns_in_rows = _most_pixels(geometry, machine, source.steps[2], made.run)
    row = spans(geometry, pixels)
    if len(row) > MOST_SPANS or pixels < geometry.gaps[2]:
        return
    plan = Depthwise(
        geometry,
        arithmetic,
        machine,
        source,
        target,
        src.dtype,
        found,
        made.kinds,
        made.places,
        made.together,
        made.images,
        row,
        turns_in_rows,
        made.run,
        rows=1,
        tall=1,
        ahead=0,
        zeros=problem.zeros,
    )
    yield from with_tasks(plan, src.nbytes + dst.nbytes, threads, facts)


# -- rows in tiles ------------------------------------------------------------------------------------------


def _most_pixels(geometry: Geometry, machine: Machine, pitch: int, run: int) -> tuple[int, bool]:
    """Outputs of a tile, and whether all turns are done in each row of taps.

    The sums of a tile are what registers hold besides weights, a pixel, a product and a pattern. Where the
    vectors of a pixel are neighbours and little is computed, it is less: all vectors of few pixels are one
    stretch of memory, as processors fetch it best.

    Each turn reads all pixels again. Pixels a power of two apart share few sets of the L1 cache; where it
    does not hold those of all rows of taps, turns are done row by row, with more rotations.
    """
    room = machine.registers - min(geometry.kernel[2], COLUMNS_HELD) - 3
    in_rows = False
    if _turns(geometry) == 1:
        room = min(room, WINDOW_PIXELS) if run > 1 and geometry.taps <= FEW_TAPS else room
    else:
        lines = machine.l1 // max(LINE, gcd(PAGE_BYTES, pitch))
        width = min(room, geometry.target[2])
        in_rows = geometry.kernel[0] * geometry.kernel[1] * geometry.reach(2, width) > lines
        while room > LEAST_SUMS and geometry.reach(2, room) > lines:
            room -= 1
    return max(1, min(room, MOST_PRODUCTS // geometry.kernel[2])), in_rows


# -- channels and images in vectors -------------------------------------------------------------------------


def _turns(geometry: Geometry) -> int:
    """Rotations of a group until each input has met each output."""
    inputs, outputs = geometry.inputs, geometry.outputs
    return outputs if outputs % inputs else inputs


class _Made(NamedTuple):
    """All vectors, with so many images in each."""

    kinds: tuple[Kind, ...]
    places: tuple[Place, ...]
    together: int
    images: int
    run: int
    """How many of them are neighbours in the source."""


_Lanes = tuple[tuple[int, int, int], ...]
"""Place, channel and image of each, counted from those of the first."""


class _Vectors:
    """Finds the vectors of a convolution, with ``together`` images in each."""

    def __init__(
        self,
        geometry: Geometry,
        weights: Weights,
        source: Side,
        target: Side,
        sizes: tuple[int, int, int],
        lanes: int,
        together: int,
    ) -> None:
        self.geometry, self.weights, self.source, self.target = geometry, weights, source, target
        self.sizes, self.lanes, self.together = sizes, lanes, together
        self.per = lanes // together
        self.total = geometry.groups * geometry.outputs
        self.images = [places_of(side.batch, geometry.batch) for side in (source, target)]
        self.channels = [places_of(side.channels, side.room) for side in (source, target)]
        self._known: dict[object, Kind | None] = {}

    def made(self) -> _Made | None:
        """All of them; None where lanes lie apart, or there are too many kinds."""
        if not all(_alike(side.batch, self.together) for side in (self.source, self.target)):
            return None
        batch, images = self.geometry.batch, self.together
        if images > 1 and batch // images * ceil(self.total / self.per) <= MOST_PLACES:
            images = batch
        kinds: list[Kind] = []
        places: list[Place] = []
        for first in range(0, self.total, self.per):
            for image in range(0, images, self.together):
                found = self.vector(first, image)
                if found is None:
                    return None
                kind, src, dst = found
                if not (kinds and kind is kinds[-1]) and kind not in kinds:
                    kinds.append(kind)
                weights = self.weights.vectors[first // self.lanes] + first % self.lanes * self.sizes[1]
                places.append(Place(kinds.index(kind), src, weights, dst, first))
        if len(kinds) > MOST_KINDS:
            return None
        run = run_of([place.src for place in places], self.lanes * self.sizes[0])
        return _Made(tuple(kinds), tuple(places), self.together, images, run)

    def vector(self, first: int, image: int) -> tuple[Kind, int, int] | None:
        """The vector that begins with an output channel and an image, and where it lies on both sides."""
        g = self.geometry
        begin = first // g.outputs * g.inputs
        ends = first + self.per, begin + self.per // g.outputs * g.inputs
        last = self.target.room if ends[0] >= self.total else self.total
        came = self.lanes_of_side(0, range(begin, min(ends[1], self.source.room)), image)
        goes = self.lanes_of_side(1, range(first, min(ends[0], last)), image)
        src, dst = came[0][0], goes[0][0]
        read = tuple([(place - src, channel - begin, number - image) for place, channel, number in came])
        written = tuple([(place - dst, channel - first, number - image) for place, channel, number in goes])
        key = read, written, min(self.total - first, self.per)
        if key not in self._known:  # most are alike but for where they begin
            self._known[key] = self._kind(read, written, self.total - first)
        kind = self._known[key]
        return None if kind is None else (kind, src, dst)

    def _kind(self, came: _Lanes, goes: _Lanes, rest: int) -> Kind | None:
        """What vectors are like that read and write such lanes, before so many channels that there are."""
        g, lanes, turns = self.geometry, self.lanes, _turns(self.geometry)
        loads = pieces_at([place for place, _, _ in came], self.sizes[0])
        stores = pieces_at([place for place, _, _ in goes], self.sizes[2])
        if loads is None or stores is None:
            return None
        lane_in = {(channel, number): lane for lane, (_, channel, number) in enumerate(came)}
        lane_out = {(channel, number): lane for lane, (_, channel, number) in enumerate(goes)}
        picks, rotated = list(range(lanes)), list(range(lanes))
        channels, positions = [-1] * lanes, [0] * lanes
        for lane, (_, channel, number) in enumerate(goes):
            if channel >= rest:
                continue
            group, output = divmod(channel, g.outputs)
            position = output % turns
            before = channel - position + (position - 1) % turns
            channels[lane], positions[lane] = channel, position
            rotated[lane] = lane_out[before, number]
            picks[lane] = lane_in[group * g.inputs + position, number] if position < g.inputs else lanes
        return Kind(loads, tuple(picks), stores, tuple(channels), tuple(positions), tuple(rotated))

    def lanes_of_side(self, side: int, channels: range, image: int) -> list[tuple[int, int, int]]:
        """Place, channel and image of each lane, as they lie in memory."""
        numbers = range(image, image + self.together)
        places, images = self.channels[side], self.images[side]
        return sorted(
            [
                (places[channel] + images[number], channel, number)
                for channel in channels
                for number in numbers
            ]
        )


def _alike(digits: Sequence[Digit], together: int) -> bool:
    """Whether all blocks of so many images lie alike."""
    return all(d.weight % together == 0 or together % d.weight == 0 for d in digits)


def run_of(places: Sequence[int], step: int) -> int:
    """How many neighbours there are in each stretch of places, but perhaps the last; 1 where that differs.

    >>> run_of((0, 64, 1000, 1064, 2000), 64), run_of((0, 64, 1000, 2000), 64)
    (2, 1)
    """
    lengths = [1]
    for before, after in pairwise(places):
        if after == before + step:
            lengths[-1] += 1
        else:
            lengths.append(1)
    alike = all(length == lengths[0] for length in lengths[:-1]) and lengths[-1] <= lengths[0]
    return lengths[0] if alike else 1


# -- tasks --------------------------------------------------------------------------------------------------

Plan = TypeVar("Plan", bound=Depthwise)


def with_tasks(plan: Plan, size: int, threads: int, facts: Facts) -> Iterator[tuple[Plan, float]]:
    """A plan cut into tasks in all ways, for so many bytes of source and destination.

    Where the next vector is a neighbour, several rows are done before it: they share pixels, and weights. But
    not if memory is far, and weights are few: then what lies together is best read at once, and asked for
    early. What departs from these rules is taken for a little slower.
    """
    g, height = plan.geometry, plan.all_rows
    far = size > TLB_REACH_BYTES
    tall = plan.turns > 1 or (g.strides[1] == 1 and not far)
    early = g.reach(1, ROWS_AHEAD) * (plan.turns > 1 or far)
    most = max(1, min(plan.run, plan.machine.l2 // 4 // max(1, plan.prepared)))
    for parts in range(1, min(most, 2 * threads) + 1):  # the first of the best: long runs, then many rows
        run = ceil(most / parts)
        across = run == len(plan.places) > 1
        blocks = (ROWS_TOGETHER, 1) if run > 1 else (1,)
        aheads = {0, g.reach(1, ROWS_AHEAD)} if across else {0}
        heights = {ceil(height / k) for k in range(1, min(height, 8 * threads) + 1)}
        for block, ahead, rows in product(blocks, aheads, sorted(heights, reverse=True)):
            odd = (run > 1 and (block > 1) != tall) + (across and ahead != early)
            made = replace(plan, rows=rows, run=run, tall=block, ahead=ahead)
            yield made, cycles(made, size, threads, facts) * (1 + TIE_BREAK * odd)


def cycles(plan: Depthwise, size: int, threads: int, facts: Facts) -> float:
    """About how many cycles a plan takes, for so many bytes of source and destination."""
    prepared = plan.run * plan.prepared / plan.machine.vector * PREPARE_CYCLES / plan.blocks
    task = plan.run * plan.rows * plan.row(facts) + prepared + facts.task
    return ceil(plan.tasks / threads) * task + size / 2 / facts.source / threads
