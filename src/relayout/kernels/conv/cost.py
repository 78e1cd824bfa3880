"""What a schedule of a sum of products costs: a small model of a processor.

A core multiplies two vectors in a cycle, loads one or two, and can add to the same sum again after four. So a
tile of 14 pixels by 2 vectors takes 14 cycles for each turn of the sum, and some more for 16 loads. Where its
operands come from decides between tiles that compute equally fast::

    task: some rows, some pixels of them, some groups of output channels
        for each group
            first tile     its weights come from the L3 cache, or from memory: 6 bytes in a cycle, so
                           that 7 pixels by 3 vectors, 192 bytes in 11 cycles, wait for them
            other tiles    its weights are in the L2 cache by now: that is hardly noticed

Large tasks use weights longer, and those of a *chunk*, a share of the groups, stay in the L2 cache from
task to task; small tasks keep their pixels there and all threads busy. No choice changes a result, only the
time it takes. The figures (:class:`Facts`) put schedules in order; which of the first few is fastest on the
machine at hand is measured (:mod:`relayout.runtime.tuning`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil, inf
from operator import itemgetter
from typing import Any, NamedTuple

from relayout.dtypes import dtype
from relayout.kernels.conv.arithmetic import Arithmetic
from relayout.kernels.conv.direct import Block, Cut, Direct
from relayout.kernels.conv.geometry import Geometry, share_inside
from relayout.kernels.conv.tile import WORD
from relayout.targets.machine import Machine

__all__ = ["FACTS", "TILES_TRIED", "Facts", "Known", "Model", "facts_of", "pieces_of_extent"]

MOST_PIXELS = 28  # pixels of a tile
LEAST_PIXELS = 4  # pixels of a tile whose turns do all taps of a row
LANE_BYTES = 16  # a shuffle within a lane is one instruction; across lanes it needs a pattern in a register
MOST_SHARES = 4096  # parts that rows are cut into: tasks for any number of threads
FEW_CHUNKS = 4, 8, 16  # shares of the groups that are tried where weights don't fit the L2 cache
BELOW = 1 - 1e-9  # of a bound that is added up in another order
COUNTED = 256  # places of groups whose vectors are known
TILES_TRIED = 2  # best shapes of tiles, each of which is combined with all cuts into tasks


class Facts(NamedTuple):
    """What a processor core does in a cycle, and what takes how many. Bytes a cycle unless said otherwise."""

    clock: float = 3e9
    """Cycles in a second."""
    products: float = 2.0
    """Vectors in a cycle that are multiplied and added (FMA)."""
    latency: float = 4.0
    """Cycles from one addition to a sum to the next: the latency of a fused multiply-add."""
    loads: float = 1.3
    """Vectors or elements loaded in a cycle, beside multiplications."""
    load: float = 0.13
    """Cycles that a load takes although multiplications could hide it."""
    turn: float = 0.1
    """Cycles of a turn of a loop."""
    call: float = 15.0
    """Cycles of a call of a tile: a mispredicted branch."""
    store: float = 1.1
    """Cycles of a vector of sums, which is zeroed and stored."""
    task: float = 300.0
    """Cycles of overhead of a task."""
    ways: int = 12
    """Lines of a set of the L1 cache."""
    apart: int = 4096
    """Bytes after which lines fall into the same set of the L1 cache."""
    conflict: float = 1.0
    """Cycles of a turn whose pixels are more lines of one set than this has ways."""
    missed: float = 0.0
    """Cycles for each line that is more than the ways, taps of a row included."""
    near: float = 9.0
    """Bytes of weights a cycle from the L2 cache that multiplications hide."""
    late: float = 100.0
    """Bytes of weights beyond that for each cycle that is lost."""
    reread: float = 128.0
    """Bytes a cycle of a source from the L2 cache; the hardware prefetcher hides most of it."""
    source: float = 24.0
    """Bytes a cycle of a source that is read in place for the first time, likewise."""
    jumps: float = 24.0
    """The same from beyond the L2 cache, of a filter of one tap whose channels lie in blocks:
    no prefetcher follows from block to block."""
    again: float = inf
    """The same for each further chunk of the weights, if all images together don't fit the L2 cache; with one
    tap, where prefetchers follow along whole pixels, a quarter of the L3 cache."""
    far: float = 6.0
    """Bytes a cycle of weights from the L3 cache or from memory."""
    shown: float = 0.2
    """The share of that time that no computation hides."""
    handed: float = 1.0
    """Bytes a cycle that another core has written a moment ago."""
    copy: float = 12.0
    """Bytes a cycle of rows that are packed or unpacked; half as many where they fill a quarter of L2."""
    spilled: float = 0.05
    """The share of its time that a group takes longer if its pixels don't stay in the L2 cache."""
    afar: float = 0.05
    """The same if they take more than half of the L3 cache, and come from memory for each group."""
    transformed: float = 0.7
    """The share of the time of direct sums that transformed ones (:mod:`.winograd`) must be expected to stay
    below, to be taken where the choice is free: what was measured nowhere must promise more."""
    uneven: float = 0.02
    """How long threads wait for the last one, as a share of a task: other processes use cores, too."""


FACTS = Facts()
"""Fitted to the layers of ResNet-50 on one processor with AVX-512, and not measured on any other; the clock
is a guess. For another processor they are a starting point, from which the contest goes on."""

HALF_LINES = FACTS._replace(
    latency=4.4,
    loads=2.0,
    load=0.01,
    call=45.0,
    near=16.0,
    jumps=1.0,
    again=2.0,
    ways=7,
    conflict=0.0,
    missed=2.1,
    transformed=0.9,
)
"""Those of processors whose vectors are half a cache line, fitted to one with AVX2 (Zen 3).

A tile of 12 sums takes 6.0 cycles for a turn with 7 or 8 loads, which cost nothing there, one of 8 sums 4.4;
and 45 cycles for a call: until the first products are there, and after the branch that ends the loop. What
comes from its L3 cache, block by block, comes a line at a time, and what is read from there once more not
much faster. Where more pixels are in one set than its 8 ways hold beside a line of weights, each of them
comes from the L2 cache in each turn: 14 pixels, 4096 bytes apart, take 15 cycles more; 7 pixels of three
taps, two apart, which are 15, take 20 more.
"""


ZEN5 = FACTS._replace(clock=4e9, loads=2.0, load=0.02, afar=0.35, again=12.0)
"""Those of Zen 5, which loads two vectors beside two products: tiles of 14 pixels by 2 vectors, 9 by 3 and 6
by 4 multiply equally fast there. LLVM calls cores by the same name that work on halves of registers: for them
this is a guess, as :data:`FACTS` would be."""

BY_NAME = {"znver5": ZEN5}


def facts_of(machine: Machine) -> Facts:
    """What is known of a processor, by its name, or by the width of its vectors.

    >>> from relayout.targets.machine import machine
    >>> [facts_of(machine(cpu)).loads for cpu in ("znver3", "znver4", "znver5")]
    [2.0, 1.3, 2.0]
    """
    return HALF_LINES if machine.is_avx2 else BY_NAME.get(machine.cpu, FACTS)


Choice = tuple[Block, int, int, int]
"""The fields of a :class:`.Cut`."""


class Known:
    """What is asked again for each way to cut the work, of which there may be hundreds.

    The formats that a network is planned with make dozens of plans of a problem, most of whose tiles multiply
    alike.
    """

    def __init__(self) -> None:
        self.turns: dict[tuple[int, int], float] = {}
        self.tiles: dict[int, list[tuple[int, float]]] = {}
        self.waited: dict[int, float] = {}
        self.multiplied: dict[tuple[Block, int, int], float] = {}
        self.costs: dict[object, list[tuple[float, Choice]]] = {}
        self.least: dict[object, tuple[float, Choice]] = {}
        self.alone: dict[object, float] = {}
        self.pixel = -1.0
        self.best: list[Block] = []


class Shape:
    """What all plans of a problem have in common that read their source in one way or the other."""

    def __init__(
        self,
        geometry: Geometry,
        arithmetic: Arithmetic,
        machine: Machine,
        weights: str,
        packs: bool,
        spread: bool,
    ) -> None:
        g, bits = geometry, dtype(weights).bits
        self.borders = not (packs or g.inside)
        self.turns = g.taps if spread else g.taps * ceil(g.inputs / arithmetic.depth)
        self.weights_bytes = g.groups * g.outputs * g.inputs * g.taps * bits // 8
        self.rows_inside = share_inside(g, 0) * share_inside(g, 1) if self.borders else 1.0
        self.vector = 0 if spread else machine.vector // WORD * arithmetic.depth * bits // 8
        self.pixel = g.groups * g.inputs * arithmetic.element  # bytes that are read of it
        self.result = g.groups * g.outputs * WORD
        sources = self.pixel * g.source[0] * g.source[1] * g.source[2] * g.batch
        self.spills = g.groups == 1 and sources > (machine.l2 if g.taps > 1 else machine.l3 // 4)
        self.jumps = g.taps == 1 and sources > machine.l2
        self.known: dict[object, Known] = {}


@lru_cache(maxsize=512)
def _shape_of(*about: Any) -> Shape:
    geometry, arithmetic, machine, weights, packs, spread, *_ = about
    return Shape(geometry, arithmetic, machine, weights, packs, spread)


_known_groups: dict[int, tuple[object, object, Counter[int], object]] = {}


def _counted(nest: Direct) -> tuple[Counter[int], object]:
    """How many groups have how many vectors, and all that counts of their order.

    Plans of several formats share their groups, which are told by where they lie in memory: to compare
    hundreds of places takes longer than to count them.
    """
    found = _known_groups.get(id(nest.places))
    if found is None or found[0] is not nest.places or found[1] is not nest.kinds:
        kinds = [kind.vectors for kind in nest.kinds]
        several = [kinds[place.kind] for place in nest.places]
        groups = Counter(several)
        vectors = (several[0], len(several)) if len(groups) == 1 else tuple(several)
        if len(_known_groups) >= COUNTED:
            _known_groups.clear()
        found = _known_groups[id(nest.places)] = nest.places, nest.kinds, groups, vectors
    return found[2], found[3]


class Model:
    """What a plan costs when it is cut into tiles and tasks in one way or another."""

    def __init__(self, nest: Direct, facts: Facts | None = None) -> None:
        facts = facts_of(nest.machine) if facts is None else facts
        self.nest, self.facts = nest, facts
        self.cache = nest.machine.l2
        self.room_for_weights = self.cache * 3 // 4  # bytes of L2, pixels included
        images, planes, rows, columns = nest.dims
        self.height, self.width = rows.extent, columns.extent
        self._images = images.extent * planes.extent
        self.groups, self._vectors = _counted(nest)
        self._shape = shape = _shape_of(
            *(nest.geometry, nest.arithmetic, nest.machine, nest.weights_type, nest.packs, bool(nest.spread)),
            *(facts, nest.zeros),
        )
        self.borders, self.weights_bytes, self.turns = shape.borders, shape.weights_bytes, shape.turns
        self.rows_inside, self.vector, self.pixel = shape.rows_inside, shape.vector, shape.pixel
        self.result = shape.result
        self.collides = bool(columns.src) and columns.src % facts.apart == 0
        jumps = shape.jumps and any(one.src != two.src * two.extent for one, two in pairwise(nest.loops))
        self.brings = facts.jumps if jumps else facts.source  # bytes of the source a cycle
        # bytes of the source a cycle for each further chunk
        self.again = facts.again if shape.spills else inf
        self._largest: dict[int, float] = {}
        self._known = self._remembered()
        self._alike = self._what_counts()

    def _remembered(self) -> Known:
        """What is known of plans whose tiles multiply alike, wherever these read and write."""
        key = len(self.nest.taps), self.collides, self.height, self.width, (*self.groups.items(),)
        found = self._shape.known.get(key)
        if found is None:
            found = self._shape.known[key] = Known()
        return found

    @property
    def fits(self) -> bool:
        """Whether there are registers for the weights of all taps of a turn, and for some sums."""
        return len(self.nest.taps) == 1 or self.room() >= LEAST_PIXELS

    # -- tiles ----------------------------------------------------------------------------------------------

    def blocks(self) -> list[Block]:
        """The pixels that a tile may have: the best few by the time that multiplying alone takes."""
        if self._known.best:
            return self._known.best
        room = self.room()
        most = 0 if self.borders else self.width  # of rows of tiles of several rows
        choices = [
            Block(rows, columns)
            for columns in range(1, min(room, self.width) + 1)
            for rows in range(1, (min(self.height, room // columns) if columns == most else 1) + 1)
        ]

        def cycles(block: Block) -> tuple[float, int]:
            return self.multiplying(block, self.height, self.width), -block.rows * block.columns

        self._known.best = sorted(choices, key=cycles)[:TILES_TRIED]
        return self._known.best

    def room(self) -> int:
        """How many pixels' sums fit the registers, beside weights and what is being multiplied."""
        nest, vectors = self.nest, max(self.groups)
        registers, inputs = nest.machine.registers, nest.geometry.inputs
        if nest.spread:
            crosses = nest.geometry.outputs * WORD > LANE_BYTES
            patterns = inputs if crosses else 0  # in registers
            room = registers - inputs - patterns - 2
        else:
            how = nest.arithmetic
            added = how.depth == 1 or how.dot  # by the instruction that multiplies
            spare = (1 if added else 3) + bool(how.shift)
            held = vectors + bool(nest.zeros.weights)  # sums of a pixel, and perhaps that of the pixel itself
            weights = len(nest.taps) * vectors * (1 + how.paired)
            room = (registers - weights - spare - bool(nest.zeros.weights)) // held
            room -= room % (1 + how.paired)
        return max(1, min(room, MOST_PIXELS))

    def turn(self, pixels: int, vectors: int) -> float:
        """Cycles of one tap of one turn of the sum in a tile, if its weights are near."""
        pixels += pixels % (1 + self.nest.arithmetic.paired)
        if (pixels, vectors) not in self._known.turns:
            facts, inputs = self.facts, self.nest.geometry.inputs
            if self.nest.spread:
                shuffled = pixels * vectors * (1 + inputs / facts.products)
                cycles = max(pixels * inputs, shuffled, facts.latency * inputs)
            else:
                loaded = self.loads(pixels, vectors) / facts.loads
                cycles = max(pixels * vectors / facts.products, loaded, facts.latency)
            if self.collides and pixels > facts.ways:
                cycles += facts.conflict
            if self.collides and facts.missed:
                taps = len(self.nest.taps)
                cycles += max(0.0, self.read(pixels) - facts.ways) * facts.missed / taps
            if vectors * self.vector * self.turns > self.nest.machine.l1 // 2:
                cycles += max(0.0, vectors * self.vector - facts.near * cycles) / facts.late
            cycles += facts.turn / len(self.nest.taps) + facts.load * self.loads(pixels, vectors)
            self._known.turns[pixels, vectors] = cycles
        return self._known.turns[pixels, vectors]

    def waiting(self, pixels: int, vectors: int) -> float:
        """Cycles of one tap of one turn besides, if weights come from far: not all of it is hidden."""
        coming = vectors * self.vector / self.facts.far
        return max(coming - self.turn(pixels, vectors), self.facts.shown * coming)

    def loads(self, pixels: int, vectors: int) -> float:
        """What a tile loads for one tap: pixels that several taps share are loaded once."""
        taps = len(self.nest.taps)
        if taps == 1:
            return pixels + vectors * (1 + self.nest.arithmetic.paired)
        return self.read(pixels) / taps + vectors

    def read(self, pixels: int) -> int:
        """How many pixels of the source a tile of so many reads in one turn."""
        taps, step, gap = len(self.nest.taps), self.nest.geometry.strides[2], self.nest.geometry.dilation[2]
        return len({p * step + t * gap for p in range(pixels) for t in range(taps)})

    def multiplying(self, block: Block, rows: int, columns: int) -> float:
        """Cycles of all groups for so many rows of so many pixels."""
        key = block, rows, columns
        if key in self._known.multiplied:
            return self._known.multiplied[key]
        total, step = 0.0, block.columns
        if self.borders:  # tiles of a row are of about the same size
            step = ceil(columns / ceil(columns / step))
        wider = pieces_of_extent(columns, step)
        for tall, n in pieces_of_extent(rows, block.rows):
            for wide, m in wider:
                for count, cycles in self.tile(tall * wide):
                    total += n * m * count * cycles
        self._known.multiplied[key] = total
        return total

    def tile(self, pixels: int) -> list[tuple[int, float]]:
        """For each kind of groups how many there are, and the cycles of a tile of so many pixels."""
        found = self._known.tiles.get(pixels)
        if found is None:
            facts, turns = self.facts, self.turns * self.rows_inside
            found = self._known.tiles[pixels] = [
                (count, turns * self.turn(pixels, v) + facts.call + facts.store * (pixels * v))
                for v, count in self.groups.items()
            ]
        return found

    # -- tasks ----------------------------------------------------------------------------------------------

    def cuts(self, threads: int) -> Iterator[Cut]:
        """The ways to cut the work into tiles and tasks."""
        for block, rows, across, shares in self._cuts(threads):
            yield from (Cut(block, rows, columns, share) for columns in across for share in shares)

    def _cuts(self, threads: int) -> Iterator[tuple[Block, int, set[int], list[int]]]:
        """The same: a tile, rows, and any pixels of a row with any share of the groups."""
        nest, height, width = self.nest, self.height, self.width
        most = min(height, MOST_SHARES)
        shares = {k for k in range(1, most + 1) if k <= 8 or height % k == 0}
        chunks = {1}
        if not nest.unpacks:
            chunks |= set(range(1, 2 * threads + 1)) if threads > 1 else set()
            chunks |= {*FEW_CHUNKS, *self.near()} if self.weights_bytes > self.room_for_weights else set()
        few = [share for share in sorted(chunks) if share <= len(nest.places)]
        for block in self.blocks():
            wide, tall = block.columns, block.rows
            across = {width}
            if not (nest.packs or nest.unpacks or self.borders) and width > 4 * wide:
                across |= {min(width, wide * k) for k in (1, 2, 4, 8, 16, 28, 56, 112)}
                across.add(ceil(ceil(width / wide) / threads) * wide)
            for rows in {min(height, ceil(ceil(height / k) / tall) * tall) for k in shares}:
                yield block, rows, across, few

    def near(self) -> set[int]:
        """Shares of the groups so small that the weights of one fill half or a quarter of the L2 cache.

        They stay there from task to task, while a source that is larger than the cache goes by; without
        them it would come again from beyond the cache for each group.
        """
        most = len(self.nest.places)  # each has one group at least
        shares = {min(most, ceil(self.weights_bytes / (self.cache // part))) for part in (2, 4)}
        return {share for share in shares if share > FEW_CHUNKS[-1]}

    def largest(self, chunks: int) -> float:
        """The share of the vectors that the largest of so many shares of the groups has."""
        if chunks not in self._largest:
            several = [self.nest.kinds[place.kind].vectors for place in self.nest.places]
            ends = [k * len(several) // chunks for k in range(chunks + 1)]
            most = max(sum(several[first:end]) for first, end in pairwise(ends))
            self._largest[chunks] = most / sum(several)
        return self._largest[chunks]

    def costs(self, threads: int) -> list[tuple[float, Choice]]:
        """The ways to cut the work, and about how many cycles each takes on so many threads."""
        key = self._alike, threads
        found = self._known.costs.get(key)
        if found is None:
            found = self._known.costs[key] = list(self._priced(self._cuts(threads), threads))
        return found

    def least(self, threads: int) -> tuple[float, Choice]:
        """The cheapest of them."""
        key = self._alike, threads
        found = self._known.least.get(key)
        if found is None:
            found = self._known.least[key] = min(self.costs(threads), key=itemgetter(0))
        return found

    def bound(self, threads: int) -> float:
        """Cycles that no way to cut the work is below: those of its tiles, if all were the best for a pixel.

        It is found by what is known of tiles anyhow, and tells of most plans that they aren't the cheapest.
        """
        known = self._known
        if known.pixel < 0:
            sizes = range(1, max(block.rows * block.columns for block in self.blocks()) + 1)
            known.pixel = min(sum(n * cycles for n, cycles in self.tile(size)) / size for size in sizes)
        return self._images * self.height * self.width * known.pixel / threads * BELOW

    def alone(self) -> float:
        """Cycles of the work as one task of one thread."""
        found = self._known.alone.get(self._alike)
        if found is None:
            whole = [(block, self.height, {self.width}, [1]) for block in self.blocks()]
            found = self._known.alone[self._alike] = min([cycles for cycles, _ in self._priced(whole, 1)])
        return found

    def _what_counts(self) -> object:
        """What :meth:`cuts` and :meth:`_priced` ask of a plan, besides what is known of its tiles."""
        nest, packing = self.nest, self.nest.packing
        images, planes, rows, columns = nest.dims
        return (
            *(nest.packs and nest.pitch, nest.unpacks, self.brings, self.again),
            *(images.extent, planes.extent, rows.extent, columns.extent),
            packing and (packing.size, packing.by_tasks),
            self._vectors,
        )

    def _priced(
        self, cuts: Iterable[tuple[Block, int, Collection[int], Sequence[int]]], threads: int
    ) -> Iterator[tuple[float, Choice]]:
        """About how many cycles everything takes on so many threads, for ways to cut the work.

        Thousands of them are asked for while a network is planned: what changes seldom is computed outside.
        """
        nest, g, facts, known = self.nest, self.nest.geometry, self.facts, self._known
        cache, last, width, places = self.cache, nest.machine.l3, self.width, len(nest.places)
        late, rest = facts.uneven if threads > 1 else 0, nest.packing is not None
        for block, rows, across, shares in cuts:
            packed = 0
            if nest.packs:
                packed = g.kernel[0] * g.reach(1, rows) * nest.packed_columns * nest.pitch
            unpacked = rows * width * nest.result_pitch if nest.unpacks else 0
            copied = facts.copy / (1 + 4 * (packed + unpacked) / cache)
            tall, many = min(rows, block.rows), self._images * ceil(self.height / rows)
            for columns in across:
                pixels = tall * min(columns, block.columns)
                waited = known.waited.get(pixels)
                if waited is None:
                    several = (count * self.waiting(pixels, v) for v, count in self.groups.items())
                    waited = known.waited[pixels] = self.turns * sum(several)
                source = packed or rows * columns * self.pixel
                computing = self.multiplying(block, rows, columns) + places * source / g.groups / facts.reread
                tasks = many * ceil(width / columns)  # of a chunk
                for chunks in shares:
                    touched = source + (unpacked or rows * columns * self.result // chunks)
                    sums = computing
                    if touched > cache // 2:
                        sums *= 1 + (facts.spilled if touched <= last // 2 else facts.afar)
                    brought = packed / copied if packed else source / self.brings / min(chunks, g.groups)
                    brought += source * (1 - 1 / chunks) / self.again
                    largest = self.largest(chunks) if threads > 1 else 1 / chunks
                    task = (sums + unpacked / copied) * largest + brought + facts.task
                    each = ceil(tasks * chunks / threads)
                    stays = self.weights_bytes // chunks + touched <= self.room_for_weights
                    often = ceil(chunks / threads) if stays else each  # times that weights are brought
                    cycles = (each + late) * task + waited / chunks * often
                    if rest:
                        cycles += self.packing(min(1.0, ceil(each / tasks) * largest), threads)
                    yield cycles, (block, rows, columns, chunks)

    def packing(self, read: float, threads: int) -> float:
        """Cycles until weights are packed, and where a thread is that reads such a share of them."""
        packing, facts = self.nest.packing, self.facts
        if packing is None:
            return 0.0
        size = packing.size * max(read, 1 / self.nest.geometry.groups)
        if packing.by_tasks:
            return size / facts.copy
        return packing.size / facts.copy + size * (1 - 1 / threads) / facts.handed


@lru_cache(maxsize=4096)
def pieces_of_extent(extent: int, step: int) -> tuple[tuple[int, int], ...]:
    """Sizes of the pieces of an extent, and how many there are of each.

    >>> pieces_of_extent(49, 14)
    ((14, 3), (7, 1))
    """
    whole, rest = divmod(extent, step)
    return tuple([(size, n) for size, n in ((step, whole), (rest, 1)) if size and n])
