"""Convolutions of bytes by 3x3 filters with fewer products: Winograd's way, exact in integers.

Four neighbouring outputs, two rows of two, read 4x4 pixels. Their 36 products by nine weights are 16 where
both sides are transformed first (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
F(2x2, 3x3)); along one axis, with pixels d, weights g and outputs y::

    v = (d0 - d2, d1 + d2, d2 - d1, d1 - d3)
    u = (2 g0, g0 + g1 + g2, g0 - g1 + g2, 2 g2)            twice the usual ones, which are halves
    y = (m0 + m1 + m2, m1 - m2 - m3) / 2                    m = v * u

Over two axes that is done to the rows, then to the columns. Sums over channels stand in the place of the 16
products: 16 products of matrices, of all places by all channels. In floating point this loses accuracy. In
integers it loses nothing: transformed bytes are at most 4 * 255 and transformed weights at most 9 * 128,
numbers of 16 bits, whose products are added up in 32. What comes out is four times the sum; where s32 holds
that (:data:`MOST_INPUTS`), the quotient is the sum, bit for bit, whatever was passed through on the way.

So it is for processors that multiply pairs of s16 anyway, since they have no instruction that adds up four
products of bytes: there each product less is gained. (Instructions for bytes do two to four times as many
products as those for pairs, and would be given up.) A task does this, in its own scratch::

    source     its rows of tiles, transformed: 16 matrices of tiles by channels, of s16; fills the L2 cache
    for each group of output channels
        weights    transformed: 16 matrices of channels by outputs; so tiles of a task should be many
        sums       16 products of matrices, by the register tile that all convolutions have
        results    transformed back, tile by tile, with the epilogue behind

**Strides of two.** Even taps meet even pixels alone, and odd ones odd pixels. So a row of three taps is one
of two, four products of which are three, and one of one; 36 products are 25 then, of 5x5 pixels::

    v = (d0 - d2, d2, d2 - d4, d1, d3)
    u = (g0, g0 + g2, g2, g1)                               the last one for both d1 and d3
    y = (m0 + m1 + m3, m1 - m2 + m4)                        nothing is to be divided

Sources with zero points are left to the direct plan: they may be any s32, and 16 bits hold no sum with that.
What lies outside of the source is 0; a row of it lies in scratch, too.

Sizes and strides are bytes unless they count something.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from relayout.kernels.conv.arithmetic import PAIRS, Arithmetic, Zeros
from relayout.kernels.conv.cost import Facts, pieces_of_extent
from relayout.kernels.conv.direct import Group, Place, ends_in_zeros
from relayout.kernels.conv.geometry import Geometry, is_spread
from relayout.kernels.conv.planning import Problem, groups_of
from relayout.kernels.conv.sides import Side, places_of, side_of
from relayout.kernels.conv.tile import WORD, lanes_of
from relayout.kernels.conv.weights import Weights, weights_of
from relayout.layout.descriptor import MemoryDesc
from relayout.records import dataclass
from relayout.targets.machine import LINE, Machine

__all__ = ["CHANNELS", "ELEMENT", "FILTERS", "OUT", "Span", "Winograd", "blocks_of", "cycles", "winograd"]

OUT = 2  # outputs of a tile along an axis
REACH = {1: 4, 2: 5}  # pixels that it reads, by the stride; and as many numbers are made of them
FILTERS = 16  # numbers that a filter becomes, of each pair of channels
CHANNELS = 16  # that are transformed at once: s16 in a register of 256 bits
VECTORS = 2  # of outputs in a group
MOST_TILES = 6  # whose sums a register tile holds: 12 registers
MOST_INPUTS = (1 << 31) // (4 * 9 * 255 * 128)  # channels: four times each sum is held by s32
ELEMENT = 2  # bytes of s16
APART = 4096  # matrices so far from each other would share the sets of the L1 cache
SOURCE_CYCLES = 40.0  # to transform a tile of 16 channels
WEIGHTS_CYCLES = 40.0  # to transform a vector of pairs of weights
RESULT_CYCLES = 35.0  # to transform a tile of 8 outputs back, with an epilogue
LOST = 1.3  # times that products take longer than the model of tiles has it: their operands come from L2


class Span(NamedTuple):
    """Tiles side by side that are alike."""

    start: int
    tiles: int
    outside: tuple[int, ...]
    """The columns of each that fall outside of the source."""


@dataclass(frozen=True)
class Winograd:
    """How a convolution of bytes by 3x3 filters is done; a task is some rows of tiles by some groups."""

    geometry: Geometry
    arithmetic: Arithmetic
    machine: Machine
    src: Side
    dst: Side
    src_type: str
    weights: Weights
    kinds: tuple[Group, ...]
    places: tuple[Place, ...]
    rows: int
    """Rows of tiles of a task."""
    chunks: int
    """Shares of the groups."""

    zeros = Zeros()
    unpacks = False
    carried = 0

    @property
    def stride(self) -> int:
        """From output to output along both axes."""
        return self.geometry.strides[2]

    @property
    def reach(self) -> int:
        """Pixels that a tile reads along an axis."""
        return REACH[self.stride]

    @property
    def numbers(self) -> int:
        """What a tile becomes, of each channel."""
        return self.reach * self.reach

    @property
    def order(self) -> tuple[object, ...]:
        """That of all sums of integers: any order gives the same bits."""
        return ()

    @property
    def weights_type(self) -> str:
        """The data type of the weights."""
        return self.weights.dtype

    @property
    def tiles_down(self) -> int:
        """Rows of tiles of an image."""
        return ceil(self.geometry.target[1] / OUT)

    @property
    def tiles_across(self) -> int:
        """Tiles of such a row."""
        return ceil(self.geometry.target[2] / OUT)

    @property
    def blocks(self) -> int:
        """Tasks of an image, by a share of the groups."""
        return ceil(self.tiles_down / self.rows)

    @property
    def tasks(self) -> int:
        """How many there are."""
        return self.chunks * self.geometry.batch * self.blocks

    @property
    def heights(self) -> tuple[int, ...]:
        """How many rows of tiles tasks have: all the same, but perhaps the last one of an image."""
        return tuple(size for size, _ in pieces_of_extent(self.tiles_down, self.rows))

    @property
    def spans(self) -> tuple[Span, ...]:
        """A row of tiles, by which columns fall outside."""
        found: list[Span] = []
        for tile in range(self.tiles_across):
            first = tile * OUT * self.stride - self.geometry.padding[2]
            outside = tuple(k for k in range(self.reach) if not 0 <= first + k < self.geometry.source[2])
            if found and found[-1].outside == outside:
                found[-1] = found[-1]._replace(tiles=found[-1].tiles + 1)
            else:
                found.append(Span(tile, 1, outside))
        return tuple(found)

    @property
    def source_matrix(self) -> int:
        """From one of the matrices of a task's source to the next."""
        return _apart(self.rows * self.tiles_across * self.geometry.inputs * ELEMENT)

    @property
    def weights_matrix(self) -> int:
        """The same of a group's weights."""
        vectors = max(kind.vectors for kind in self.kinds)
        return _apart(self.geometry.inputs // 2 * vectors * self.machine.vector)

    @property
    def sums_matrix(self) -> int:
        """The same of its sums."""
        vectors = max(kind.vectors for kind in self.kinds)
        return _apart(self.rows * self.tiles_across * vectors * self.machine.vector)

    @property
    def abreast(self) -> int:
        """Channels that are transformed tile by tile: whole cache lines of s16 where it can be."""
        lines = 2 * CHANNELS
        inputs = self.geometry.inputs
        return lines if inputs % lines == 0 and _together(self.src, inputs, lines) else CHANNELS

    @property
    def outside(self) -> int:
        """Of a row of pixels outside of the source."""
        size = (self.geometry.source[2] - 1) * self.src.steps[2] + self.abreast
        return ceil(size / LINE) * LINE

    @property
    def slot(self) -> int:
        """Scratch of one part of the work."""
        matrices = self.numbers * (self.source_matrix + self.sums_matrix) + FILTERS * self.weights_matrix
        return matrices + self.outside + LINE

    def clears(self, dst: MemoryDesc) -> bool:
        """Whether all padding of a destination is written: zeros behind the last channel."""
        last = self.kinds[self.places[-1].kind]
        stored = sum(piece.lanes for piece in last.pieces[-1]) - last.valid
        return ends_in_zeros(dst, self.dst, self.geometry, stored)

    def __str__(self) -> str:
        channels = f"{self.kinds[0].vectors} x {lanes_of(self.machine)} channels"
        words = [f"{self.numbers} products in place of 36"]
        words.append(f"sums of {MOST_TILES} tiles of 2 x 2 pixels by {channels}")
        words.append("pairs of s16 added up in s32")
        words.append(f"{self.slot >> 10} KiB of transformed bytes, weights and sums")
        chunks = f" by 1/{self.chunks} of the channels" * (self.chunks > 1)
        words.append(f"{self.tasks} tasks of {self.rows} x {self.tiles_across} tiles{chunks}")
        return ", ".join(words)


def _apart(size: int) -> int:
    """Whole cache lines, of which no sixteen fall into the same sets."""
    size = ceil(size / LINE) * LINE
    return size + LINE if size % (APART // 8) == 0 else size


def winograd(problem: Problem, machine: Machine, threads: int, facts: Facts) -> Iterator[Winograd]:
    """The plans for a problem; none for other problems, and for other processors."""
    src, weights, dst, g, arithmetic, grouped, *_ = problem
    if arithmetic != PAIRS or not machine.is_avx2 or problem.given is not None:
        return
    if (g.kernel, g.dilation, g.gaps) != ((1, 3, 3), (1, 1, 1), (1, 1, 1)) or g.groups != 1:
        return
    if g.strides not in ((1, 1, 1), (1, 2, 2)):
        return
    if g.source[0] != 1 or g.target[0] != 1 or g.padding[0] or not g.flops or is_spread(g, lanes_of(machine)):
        return
    if g.inputs % CHANNELS or g.inputs > MOST_INPUTS or problem.zeros:
        return
    lanes = lanes_of(machine)
    found = weights_of(weights, g, arithmetic, lanes, grouped)
    source, target = side_of(src), side_of(dst)
    if found is None or source is None or target is None or not (source.is_plain and target.is_plain):
        return
    step = lanes * arithmetic.depth  # bytes of weights of neighbouring pairs of channels
    if [digit.stride for digit in found.inputs] != [step] or not _together(source, g.inputs, CHANNELS):
        return
    size = dst.dtype.bits // 8
    vectors = min(VECTORS, ceil(g.outputs / lanes))
    cut = groups_of(g, found, (None, WORD), (target, size), lanes, vectors, False, g.inputs)
    if cut is None:
        return
    kinds, places = cut
    for rows, chunks in sorted(_cuts(g, machine, threads, len(places)), reverse=True):
        yield Winograd(
            g,
            arithmetic,
            machine,
            source,
            target,
            src.dtype.name,
            found,
            kinds,
            places,
            rows,
            chunks,
        )


def _together(side: Side, inputs: int, count: int) -> bool:
    """Whether so many channels lie side by side."""
    places = places_of(side.channels, inputs)
    runs = (places[first : first + count] for first in range(0, inputs, count))
    return all(run == tuple(range(run[0], run[0] + count)) for run in runs)


def _cuts(g: Geometry, machine: Machine, threads: int, groups: int) -> set[tuple[int, int]]:
    """Rows of tiles of a task, and shares of the groups: the source of a task fills a part of the L2 cache.

    All threads get something to do: by rows of tiles, and where these are too few by groups, for each share
    of which the source is transformed again.
    """
    down, across = ceil(g.target[1] / OUT), ceil(g.target[2] / OUT)
    row = across * REACH[g.strides[2]] ** 2 * g.inputs * ELEMENT
    found = set()
    for part in (1, 2, 4):
        most = max(1, min(down, machine.l2 // part // row))
        rows = ceil(down / ceil(down / most))
        tasks = g.batch * ceil(down / rows)
        found.add((rows, 1))
        if threads > 1 and tasks % threads:
            found.add((rows, min(threads, groups)))
            found.add((min(rows, max(1, down // ceil(threads / g.batch))), 1))
    return found


def cycles(plan: Winograd, threads: int, facts: Facts) -> float:
    """About how many cycles it takes on so many threads."""
    g, wide = plan.geometry, plan.tiles_across
    vectors = [plan.kinds[place.kind].vectors for place in plan.places]
    turns = g.inputs // 2
    tiles = plan.rows * wide

    result = RESULT_CYCLES * plan.numbers / FILTERS

    def products(count: int) -> float:
        found = 0.0
        for size, times in blocks_of(tiles):
            turn = max(size * count / facts.products, facts.latency) + facts.turn
            found += times * (turns * turn * LOST + facts.call + size * count * facts.store)
        return plan.numbers * found

    source = tiles * g.inputs / CHANNELS * SOURCE_CYCLES * plan.numbers / FILTERS
    groups = sum(products(count) + count * (turns * WEIGHTS_CYCLES + tiles * result) for count in vectors)
    filters = g.outputs * g.inputs * g.taps / facts.far
    task = source + groups / plan.chunks + facts.task + filters / plan.chunks * facts.shown
    heights = plan.tiles_down / (plan.blocks * plan.rows)  # the last task of an image may be smaller
    each = ceil(plan.tasks / threads) if threads > 1 else plan.tasks * heights
    return (each + facts.uneven * (threads > 1)) * task


def blocks_of(tiles: int) -> list[tuple[int, int]]:
    """Tiles in blocks of about the same size, whose sums fit the registers: how large, and how many.

    >>> blocks_of(49), blocks_of(16), blocks_of(12)
    ([(6, 4), (5, 5)], [(6, 1), (5, 2)], [(6, 2)])
    """
    count = ceil(tiles / MOST_TILES)
    size, more = divmod(tiles, count)
    return [(size + 1, more)] * (more > 0) + [(size, count - more)]
