"""How large a tile and a task are: a small model of a processor, and the choice that it makes best.

A core multiplies two vectors in a cycle, loads one or two, and can add to the same sum again after four. So a
tile of 14 pixels by 2 vectors takes 14 cycles for each turn of the sum, and some more for 16 loads. Where its
operands come from decides between tiles that compute equally fast::

    task: some rows, some pixels of them, some groups of output channels
        for each group
            first tile     its weights come from the third cache, or from memory: 6 bytes in a cycle, so
                           that 7 pixels by 3 vectors, 192 bytes in 11 cycles, wait for them
            other tiles    its weights are in the second cache by now: that is hardly noticed

Large tasks use weights longer, and those of a *chunk*, a share of the groups, stay in the second cache from
task to task; small tasks keep their pixels there and all threads busy. No choice changes a result, only the
time it takes; the figures need only be right enough to put the choices in order. They have been fitted to
measurements of ResNet-50's layers (see docs/performance.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from relayout.dtypes import dtype
from relayout.kernels.conv.nest import Block, Nest
from relayout.kernels.conv.tile import WORD, registers_of

__all__ = ["COLLIDE", "chosen", "fits"]

COLLIDE = 4096  # bytes apart: lines fall into one set of the first cache
WAYS = 12  # lines that a set has
COLLISION = 1.0  # cycles of a turn for pixels whose lines don't fit one set
MOST_PIXELS = 28
LEAST_PIXELS = 4
LANE = 16  # bytes within which a shuffle is an instruction that needs no pattern
LATENCY = 4.0  # cycles until a sum can be added to again
LOADED = 1.3  # vectors or elements in a cycle, beside all else
LOOP = 0.1  # cycles of a turn besides
LOAD = 0.13  # and of each load in it, though multiplications could hide it
TILE = 15  # cycles of a tile besides: a branch is guessed wrong
SUM = 1.1  # and of each of its vectors of sums, which are zeroed and stored
COPIED = 12  # bytes in a cycle that are gathered or scattered; half as many where a quarter of the cache is
FAR = 6  # bytes in a cycle from the third cache
SHOWS = 0.2  # of the time that this takes, even if there is as much to compute
FLOWS = 9  # bytes of weights in a cycle that come from the second cache unnoticed,
NEAR = 100  # and bytes beyond that which cost a cycle
BROUGHT = 24  # bytes in a cycle of a source that is read where it lies: most of it is asked for early
READ = 128  # bytes in a cycle from the second cache, nearly all of which the processor reads ahead
AGAIN = 0.05  # how much longer a group takes whose pixels don't stay in the second cache
TASK = 300  # cycles that a task takes besides
FEW = 2  # tiles for which tasks are tried
WAITING = 0.02  # of a task: how long threads wait for the last one, if others use the processors, too


class Cut(NamedTuple):
    """Pixels of a tile; rows, pixels and shares of the groups of a task."""

    block: Block
    rows: int
    columns: int
    chunks: int


def chosen(nest: Nest, threads: int) -> tuple[Nest, float]:
    """A nest with the tiles and tasks that suit it best, and about how many cycles it takes then."""
    model = _Model(nest)
    cost, cut = min((model.cycles(cut, threads), cut) for cut in model.cuts(threads))
    return replace(nest, block=cut.block, rows=cut.rows, columns=cut.columns, chunks=cut.chunks), cost


def fits(nest: Nest) -> bool:
    """Whether there are registers for the weights of all taps of a turn, and for some sums."""
    return len(nest.taps) == 1 or _Model(nest).room() >= LEAST_PIXELS


class _Model:
    """What is known of one nest."""

    def __init__(self, nest: Nest) -> None:
        g = nest.geometry
        self.nest = nest
        self.cache = nest.machine.l2
        self.height, self.width = nest.dims[2].extent, nest.dims[3].extent
        self.groups = Counter(nest.kinds[place.kind].vectors for place in nest.places)
        self.turns = g.taps if nest.spread else g.taps * ceil(g.inputs / nest.arithmetic.depth)
        self.collides = nest.dims[3].src and nest.dims[3].src % COLLIDE == 0
        vector = nest.machine.vector // WORD * nest.arithmetic.depth * dtype(nest.weights_type).bits // 8
        self.vector = 0 if nest.spread else vector
        self._turn: dict[tuple[int, int], float] = {}

    # -- tiles ----------------------------------------------------------------------------------------------

    def blocks(self) -> list[Block]:
        """The pixels that a tile may have: the best few by the time that multiplying alone takes."""
        room = self.room()
        most = 0 if self.nest.borders else self.width  # of rows of tiles of several rows
        choices = [
            Block(rows, columns)
            for columns in range(1, min(room, self.width) + 1)
            for rows in range(1, (min(self.height, room // columns) if columns == most else 1) + 1)
        ]

        def cycles(block: Block) -> tuple[float, int]:
            return self.multiplying(block, self.height, self.width), -block.rows * block.columns

        return sorted(choices, key=cycles)[:FEW]

    def room(self) -> int:
        """How many pixels' sums fit the registers, beside weights and what is being multiplied."""
        nest, vectors = self.nest, max(self.groups)
        registers, inputs = registers_of(nest.machine), nest.geometry.inputs
        if nest.spread:
            patterns = inputs if nest.geometry.outputs * WORD > LANE else 0  # beyond a lane, in registers
            room = registers - inputs - patterns - 2
        else:
            spare = 1 if nest.arithmetic.depth == 1 else 3  # pairs are multiplied first, then added
            room = (registers - len(nest.taps) * vectors - spare) // vectors
        return max(1, min(room, MOST_PIXELS))

    def turn(self, pixels: int, vectors: int) -> float:
        """Cycles of one tap of one turn of the sum in a tile, if its weights are near."""
        if (pixels, vectors) not in self._turn:
            inputs = self.nest.geometry.inputs
            if self.nest.spread:
                cycles = max(pixels * inputs, pixels * vectors * (1 + inputs / 2), LATENCY * inputs)
            else:
                cycles = max(pixels * vectors / 2, self.loads(pixels, vectors) / LOADED, LATENCY)
            if self.collides and pixels > WAYS:
                cycles += COLLISION
            if vectors * self.vector * self.turns > self.nest.machine.l1 // 2:
                cycles += max(0.0, vectors * self.vector - FLOWS * cycles) / NEAR
            cycles += LOOP / len(self.nest.taps) + LOAD * self.loads(pixels, vectors)
            self._turn[pixels, vectors] = cycles
        return self._turn[pixels, vectors]

    def waiting(self, pixels: int, vectors: int) -> float:
        """Cycles of one tap of one turn besides, if weights come from far: not all of it is hidden."""
        coming = vectors * self.vector / FAR
        return max(coming - self.turn(pixels, vectors), SHOWS * coming)

    def loads(self, pixels: int, vectors: int) -> float:
        """What a tile loads for one tap: pixels that several taps share are loaded once."""
        taps = len(self.nest.taps)
        if taps == 1:
            return pixels + vectors
        step, gap = self.nest.geometry.strides[2], self.nest.geometry.dilation[2]
        shared = {p * step + t * gap for p in range(pixels) for t in range(taps)}
        return len(shared) / taps + vectors

    def multiplying(self, block: Block, rows: int, columns: int) -> float:
        """Cycles of all groups for so many rows of so many pixels."""
        total = 0.0
        for tall, n in _split(rows, block.rows):
            for wide, m in _split(columns, block.columns):
                for vectors, count in self.groups.items():
                    sums = tall * wide * vectors
                    total += (
                        n * m * count * (self.turns * self.turn(tall * wide, vectors) + TILE + SUM * sums)
                    )
        return total

    # -- tasks ----------------------------------------------------------------------------------------------

    def cuts(self, threads: int) -> Iterator[Cut]:
        """The ways to cut the work into tiles and tasks."""
        nest, height, width = self.nest, self.height, self.width
        shares = {k for k in range(1, height + 1) if k <= 8 or height % k == 0}
        chunks = {1}
        if not nest.scatters:
            chunks |= set(range(1, 2 * threads + 1)) if threads > 1 else set()
            chunks |= {4, 8, 16} if nest.weights_bytes > self.cache else set()
        for block in self.blocks():
            wide, tall = block.columns, block.rows
            across = {width}
            if not (nest.gathers or nest.scatters or nest.borders) and width > 4 * wide:
                across |= {min(width, wide * k) for k in (1, 2, 4, 8, 16, 28, 56, 112)}
                across.add(ceil(ceil(width / wide) / threads) * wide)
            down = {min(height, ceil(ceil(height / k) / tall) * tall) for k in shares}
            for rows in down:
                for columns in across:
                    for share in sorted(chunks):
                        if share <= len(nest.places):
                            yield Cut(block, rows, columns, share)

    def cycles(self, cut: Cut, threads: int) -> float:
        """About how many cycles everything takes on so many threads."""
        nest, g = self.nest, self.nest.geometry
        block, rows, columns, chunks = cut
        groups = len(nest.places)
        pixels = min(rows, block.rows) * min(columns, block.columns)
        waited = self.turns * sum(
            count * self.waiting(pixels, vectors) for vectors, count in self.groups.items()
        )
        gathered = 0
        if nest.gathers:
            gathered = g.kernel[0] * g.reach(1, rows) * nest.gathered_columns * nest.pitch
        scattered = rows * self.width * nest.result_pitch if nest.scatters else 0
        source = gathered or rows * columns * g.groups * g.inputs * nest.arithmetic.element
        touched = source + (scattered or rows * columns * g.groups * g.outputs * WORD // chunks)
        sums = self.multiplying(block, rows, columns) + groups * source / READ
        if touched > self.cache // 2:
            sums *= 1 + AGAIN
        copied = COPIED / (1 + 4 * (gathered + scattered) / self.cache)
        brought = gathered / copied if gathered else source / BROUGHT
        largest = ceil(groups / chunks) / groups if threads > 1 else 1 / chunks  # share of the groups
        task = (sums + scattered / copied) * largest + brought + TASK
        n, d, h, w = (dim.extent for dim in nest.dims)
        each = ceil(n * d * ceil(h / rows) * ceil(w / columns) * chunks / threads)
        late = WAITING if threads > 1 else 0
        stays = nest.weights_bytes // chunks + touched <= self.cache * 3 // 4
        often = max(1, chunks // threads) if stays else each  # times that a thread brings a chunk's weights
        return (each + late) * task + waited / chunks * often


def _split(extent: int, step: int) -> list[tuple[int, int]]:
    """Sizes of the pieces of an extent, and how many there are of each.

    >>> _split(49, 14)
    [(14, 3), (7, 1)]
    """
    whole, rest = divmod(extent, step)
    return [(size, n) for size, n in ((step, whole), (rest, 1)) if size and n]
