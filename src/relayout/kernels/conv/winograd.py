"""Convolutions by 3x3 filters with fewer products: Winograd's way, of bytes exactly, of f32 nearly.

Four neighbouring outputs, two rows of two, read 4x4 pixels. Their 36 products by nine weights are 16 where
both sides are transformed first (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
F(2x2, 3x3)); along one axis, with pixels d, weights g and outputs y::

    v = (d0 - d2, d1 + d2, d2 - d1, d1 - d3)
    u = (g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2)
    y = (m0 + m1 + m2, m1 - m2 - m3)                        m = v * u

Over two axes that is done to the rows, then to the columns. Sums over channels stand in the place of the 16
products: 16 products of matrices, of all places by all channels.

**Bytes.** With twice these u nothing is halved, and the sums, four times what is asked for, are divided.
Transformed bytes are at most 4 * 255 and transformed weights at most 9 * 128, numbers of 16 bits, whose
products are added up in 32. Where s32 holds four times the sum (:data:`MOST_INPUTS`), the quotient is the
sum, bit for bit, whatever was passed through on the way.

So it is for processors that multiply pairs of s16 anyway, since they have no instruction that adds up four
products of bytes: there each product less is gained. (Instructions for bytes do two to four times as many
products as those for pairs, and would be given up.)

**Real numbers** are transformed, multiplied and added up in f32. What comes out differs in the last bits from
a direct sum, so this is done where it is asked for (:data:`ALGORITHMS`); then it is another sum, of which all
schedules give the same bits.

* *Error.* One output is within ``(inputs + 10) * 2**-24 * T`` of the exact sum, to first order. T is the same
  computation on magnitudes, with all its signs plus: at most 16 times the sum over channels of (the largest
  pixel that its tile reads) times (the sum of the nine weights). A direct sum is within
  ``9 * inputs * 2**-24`` times the sum of its products. So the last bits of an output depend on all pixels of
  its tile: where one of them is far larger than those that the output reads, it is that much less exact.
* *Range.* Four pixels are added up, so sources from a quarter of the largest f32 on overflow, and sums from a
  sixteenth of it on may. Halves of subnormal weights lose their last bits.
* *Infinities and NaN* make NaN of any of the four outputs of a tile that reads them, of those, too, that are
  finite by the definition.

A task does this, in its own scratch::

    source     its rows of tiles, transformed: 16 matrices of tiles by channels; fills the L2 cache
    for each group of output channels, and each share of the input channels
        weights    transformed: 16 matrices of channels by outputs; so tiles of a task should be many
        sums       16 products of matrices, by the register tile that all convolutions have
    for each such group
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

from relayout.dtypes import dtype
from relayout.kernels.conv.arithmetic import FLOATS, PAIRS, Arithmetic, Zeros
from relayout.kernels.conv.cost import Facts, pieces_of_extent
from relayout.kernels.conv.direct import Group, Place, ends_in_zeros
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.planning import Problem, groups_of
from relayout.kernels.conv.sides import Side, places_of, side_of
from relayout.kernels.conv.tile import WORD, lanes_of
from relayout.kernels.conv.weights import Weights, weights_of
from relayout.layout.descriptor import MemoryDesc
from relayout.records import dataclass
from relayout.targets.machine import LINE, Machine

__all__ = [
    *("FILTERS", "OUT", "STEPS", "Domain", "Span", "Winograd"),
    *("blocks_of", "cycles", "obstacle", "winograd"),
]

OUT = 2  # outputs of a tile along an axis
REACH = {1: 4, 2: 5}  # pixels that it reads, by the stride; and as many numbers are made of them
FILTERS = 16  # numbers that a filter becomes, of each step of channels
STEPS = 8  # of channels, whose weights are transformed at a time
VECTORS = 2  # of outputs in a group
MOST_SUMS = {16: 12, 32: 24}  # of a register tile, by the registers that there are
MOST_INPUTS = (1 << 31) // (4 * 9 * 255 * 128)  # channels: four times each sum is held by s32
MOST_TOGETHER = 256  # channels that are added up in f32 at a time: their weights stay in the L1 cache
APART = 4096  # matrices so far from each other would share the sets of the L1 cache
REALS = ("f32", "f16", "bf16")


class Domain(NamedTuple):
    """The numbers that pixels and weights become, and what it costs to make them."""

    dtype: str
    element: int
    source: float
    """Cycles to transform the channels of a register, of a tile."""
    weights: float
    """Cycles to transform a vector of weights of nine taps."""
    result: float
    """Cycles to transform a tile of a vector of outputs back, with an epilogue."""
    lost: float
    """Times that products take longer than the model of tiles has it: their operands come from L2."""

    @property
    def is_real(self) -> bool:
        """Whether results are rounded, and not exact."""
        return self.dtype == "f32"


BYTES = Domain("s16", 2, 40.0, 40.0, 35.0, 1.3)
SINGLE = Domain("f32", 4, 30.0, 40.0, 24.0, 1.1)


class Span(NamedTuple):
    """Tiles side by side that are alike."""

    start: int
    tiles: int
    outside: tuple[int, ...]
    """The columns of each that fall outside of the source."""


@dataclass(frozen=True)
class Winograd:
    """How a convolution by 3x3 filters is done; a task is some rows of tiles by some groups."""

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
    """Rows of tiles of a task; those of all images are counted one after the other."""
    chunks: int
    """Shares of the groups."""

    zeros = Zeros()
    unpacks = False
    carried = 0

    @property
    def domain(self) -> Domain:
        """What pixels and weights become."""
        return _domain(self.arithmetic)

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
        """In which order sums are added up; of integers any order gives the same bits."""
        return ("winograd", self.together) if self.domain.is_real else ()

    @property
    def weights_type(self) -> str:
        """The data type of the weights."""
        return self.weights.dtype

    @property
    def together(self) -> int:
        """Input channels that are added up at a time."""
        inputs = self.geometry.inputs
        if not self.domain.is_real:
            return inputs
        each = _channels(self.machine)
        return max(n for n in range(each, min(inputs, MOST_TOGETHER) + 1, each) if inputs % n == 0)

    @property
    def tiles_down(self) -> int:
        """Rows of tiles of an image."""
        return ceil(self.geometry.target[1] / OUT)

    @property
    def tiles_across(self) -> int:
        """Tiles of such a row."""
        return ceil(self.geometry.target[2] / OUT)

    @property
    def rows_of_all(self) -> int:
        """Rows of tiles of all images."""
        return self.geometry.batch * self.tiles_down

    @property
    def blocks(self) -> int:
        """Tasks of a share of the groups."""
        return ceil(self.rows_of_all / self.rows)

    @property
    def tasks(self) -> int:
        """How many there are."""
        return self.chunks * self.blocks

    @property
    def heights(self) -> tuple[int, ...]:
        """How many rows of tiles tasks have: all the same, but perhaps the last one."""
        return tuple(size for size, _ in pieces_of_extent(self.rows_of_all, self.rows))

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
    def channels(self) -> int:
        """Channels of a source that are transformed at once."""
        return self.machine.vector // self.domain.element

    @property
    def pixel(self) -> int:
        """From tile to tile of a matrix of the source."""
        return self.geometry.inputs * self.domain.element

    @property
    def source_matrix(self) -> int:
        """From one of the matrices of a task's source to the next."""
        return _apart(self.rows * self.tiles_across * self.pixel)

    @property
    def weights_matrix(self) -> int:
        """The same of the weights of a group and of channels that are added up together."""
        vectors = max(kind.vectors for kind in self.kinds)
        return _apart(self.together // self.arithmetic.depth * vectors * self.machine.vector)

    @property
    def sums_matrix(self) -> int:
        """The same of its sums."""
        vectors = max(kind.vectors for kind in self.kinds)
        return _apart(self.rows * self.tiles_across * vectors * self.machine.vector)

    @property
    def abreast(self) -> int:
        """Channels that are transformed tile by tile: whole cache lines of the source where it can be."""
        inputs, size = self.geometry.inputs, self.src_size
        lines = max(2 * self.channels, LINE // self.domain.element)
        return lines if inputs % lines == 0 and _together(self.src, inputs, lines, size) else self.channels

    @property
    def src_size(self) -> int:
        """Of an element of the source."""
        return dtype(self.src_type).bits // 8

    @property
    def outside(self) -> int:
        """Of a row of pixels outside of the source."""
        size = (self.geometry.source[2] - 1) * self.src.steps[2] + self.abreast * self.src_size
        return ceil(size / LINE) * LINE

    @property
    def slot(self) -> int:
        """Scratch of one part of the work."""
        matrices = self.numbers * (self.source_matrix + self.sums_matrix) + FILTERS * self.weights_matrix
        return matrices + self.outside + LINE

    def most_tiles(self, vectors: int) -> int:
        """Tiles whose sums of so many vectors a register tile holds."""
        return MOST_SUMS[self.machine.registers] // (vectors if self.domain.is_real else VECTORS)

    def clears(self, dst: MemoryDesc) -> bool:
        """Whether all padding of a destination is written: zeros behind the last channel."""
        last = self.kinds[self.places[-1].kind]
        stored = sum(piece.lanes for piece in last.pieces[-1]) - last.valid
        return ends_in_zeros(dst, self.dst, self.geometry, stored)

    def __str__(self) -> str:
        channels = f"{self.kinds[0].vectors} x {lanes_of(self.machine)} channels"
        most = self.most_tiles(self.kinds[0].vectors)
        words = [f"{self.numbers} products in place of 36"]
        words.append(f"sums of {most} tiles of 2 x 2 pixels by {channels}")
        if not self.domain.is_real:
            words.append("pairs of s16 added up in s32")
        words.append(f"{self.slot >> 10} KiB of transformed pixels, weights and sums")
        chunks = f" by 1/{self.chunks} of the channels" * (self.chunks > 1)
        words.append(f"{self.tasks} tasks of {self.rows} x {self.tiles_across} tiles{chunks}")
        return ", ".join(words)


def _apart(size: int) -> int:
    """Whole cache lines, of which no sixteen fall into the same sets."""
    size = ceil(size / LINE) * LINE
    return size + LINE if size % (APART // 8) == 0 else size


def _domain(arithmetic: Arithmetic) -> Domain:
    return SINGLE if arithmetic == FLOATS else BYTES


def _channels(machine: Machine) -> int:
    """Of how many channels those that are transformed are a multiple, in f32."""
    return max(lanes_of(machine), STEPS)


def obstacle(problem: Problem, machine: Machine) -> str:
    """Why a convolution is not transformed, whatever it would cost; empty: it can be."""
    src, weights, dst, g, arithmetic, grouped, given, zeros, *_ = problem
    if g.kernel[0] > 1 or g.kernel[1:] != (3, 3):
        return f"filters are {_by(g.kernel)}, not 3x3"
    if g.groups != 1:
        return f"there are {g.groups} groups, not one"
    if g.dilation != (1, 1, 1) or g.gaps != (1, 1, 1):
        return f"taps are {_by(g.dilation)} apart, not side by side"
    if g.strides not in ((1, 1, 1), (1, 2, 2)):
        return f"strides are {_by(g.strides)}, neither 1 nor 2 along both axes"
    if g.source[0] != 1 or g.target[0] != 1 or g.padding[0]:
        return "there are three spatial axes, not two"
    if not g.flops:
        return "there is nothing to compute"
    if arithmetic == PAIRS:
        if not machine.is_avx2:
            return "it would be no faster for bytes on this processor"
        if given is not None:
            return f"weights in {given.layout} would have to be reordered in each call"
        if zeros:
            return "there are zero points"
        if g.inputs > MOST_INPUTS:
            return f"sums of more than {MOST_INPUTS} channels are not exact, and there are {g.inputs}"
    elif arithmetic != FLOATS or not (src.dtype.name in REALS and weights.dtype.name in REALS):
        how = arithmetic.dot or arithmetic.operand
        return f"{src.dtype} by {weights.dtype} is multiplied by {how} here, and not in f32"
    lanes, source, target = lanes_of(machine), side_of(src), side_of(dst)
    channels = machine.vector // 2 if arithmetic == PAIRS else _channels(machine)
    if g.inputs % channels:
        return f"the source has {g.inputs} channels, no multiple of {channels}"
    size = src.dtype.bits // 8
    if source is None or not source.is_plain or not _together(source, g.inputs, channels, size):
        return f"channels of src {src} don't lie side by side, {channels} of them"
    found = weights_of(weights, g, arithmetic, lanes, grouped)
    step = lanes * arithmetic.depth * weights.dtype.bits // 8  # of weights of neighbouring steps of channels
    if found is None or [digit.stride for digit in found.inputs] != [step]:
        return f"weights {weights} don't have {lanes} output channels side by side, input after input"
    if target is None or not target.is_plain or _cut(problem, found, target, lanes) is None:
        return f"output channels of dst {dst} don't lie side by side"
    return ""


def _by(sizes: tuple[int, int, int]) -> str:
    return "x".join(map(str, sizes if sizes[0] > 1 else sizes[1:]))


def _cut(
    problem: Problem, weights: Weights, target: Side, lanes: int
) -> tuple[tuple[Group, ...], tuple[Place, ...]] | None:
    """The groups of outputs."""
    g, size = problem.geometry, problem.dst.dtype.bits // 8
    vectors = min(VECTORS, ceil(g.outputs / lanes))
    return groups_of(g, weights, (None, WORD), (target, size), lanes, vectors, False, g.inputs)


def winograd(problem: Problem, machine: Machine, threads: int, facts: Facts) -> Iterator[Winograd]:
    """The plans for a problem; none for other problems, and for other processors.

    Of real numbers these are other sums, which a problem must ask for.
    """
    if (problem.arithmetic != PAIRS and problem.algorithm == "direct") or obstacle(problem, machine):
        return
    src, weights, dst, g, arithmetic, grouped, *_ = problem
    lanes = lanes_of(machine)
    found = weights_of(weights, g, arithmetic, lanes, grouped)
    source, target = side_of(src), side_of(dst)
    assert found is not None
    assert source is not None
    assert target is not None
    cut = _cut(problem, found, target, lanes)
    assert cut is not None
    kinds, places = cut
    for rows, chunks in sorted(_cuts(g, _domain(arithmetic), machine, threads, len(places)), reverse=True):
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


def _together(side: Side, inputs: int, count: int, size: int) -> bool:
    """Whether so many channels, of so many bytes each, lie side by side."""
    places = places_of(side.channels, inputs)
    runs = (places[first : first + count] for first in range(0, inputs, count))
    return all(run == tuple(range(run[0], run[0] + count * size, size)) for run in runs)


def _cuts(g: Geometry, domain: Domain, machine: Machine, threads: int, groups: int) -> set[tuple[int, int]]:
    """Rows of tiles of a task, and shares of the groups: the source of a task fills a part of the L2 cache.

    All threads get something to do: by rows of tiles, and where these are too few by groups, for each share
    of which the source is transformed again. A task in f32, whose weights take longer to transform, may have
    rows of several images.
    """
    down, across = ceil(g.target[1] / OUT), ceil(g.target[2] / OUT)
    images = g.batch
    if domain.is_real:
        down, images = down * images, 1
    row = across * REACH[g.strides[2]] ** 2 * g.inputs * domain.element
    found = set()
    for part in PARTS[domain.is_real]:
        most = max(1, min(down, int(machine.l2 * part) // row))
        rows = ceil(down / ceil(down / most))
        tasks = ceil(images * down / rows)
        found.add((rows, 1))
        if threads > 1 and tasks % threads:
            found.add((rows, min(threads, groups)))
            found.add((min(rows, max(1, down // ceil(threads / images))), 1))
            if domain.is_real:
                found.add((min(rows, ceil(down / threads)), 1))
    return found


PARTS = {False: (1, 1 / 2, 1 / 4), True: (2, 1, 1 / 2, 1 / 4)}
"""Of the L2 cache, which a task's source fills, by whether it is real: then its matrices are read once for
each group, at a rate that the L3 cache has, too."""


def cycles(plan: Winograd, threads: int, facts: Facts) -> float:
    """About how many cycles it takes on so many threads."""
    g, wide, domain = plan.geometry, plan.tiles_across, plan.domain
    vectors = [plan.kinds[place.kind].vectors for place in plan.places]
    turns = g.inputs // plan.arithmetic.depth
    shares = g.inputs // plan.together
    tiles = plan.rows * wide

    result = domain.result * plan.numbers / FILTERS

    def products(count: int) -> float:
        found = 0.0
        for size, times in blocks_of(tiles, plan.most_tiles(count)):
            turn = max(size * count / facts.products, facts.latency) + facts.turn
            if domain.is_real:  # with one vector each pixel is loaded for one product
                turn = max(turn, (size + count) / facts.loads)
            stores = size * count * facts.store * (1 + (shares - 1) * 1.5)
            found += times * (turns * turn * domain.lost + shares * facts.call + stores)
        return plan.numbers * found

    source = tiles * g.inputs / plan.channels * domain.source * plan.numbers / FILTERS
    groups = sum(products(count) + count * (turns * domain.weights + tiles * result) for count in vectors)
    filters = g.outputs * g.inputs * g.taps * (dtype(plan.weights_type).bits // 8) / facts.far
    task = source + groups / plan.chunks + facts.task + filters / plan.chunks * facts.shown
    if threads == 1:  # the last task may be smaller
        return plan.tasks * task * plan.rows_of_all / (plan.blocks * plan.rows)
    return (ceil(plan.tasks / threads) + facts.uneven) * task


def blocks_of(tiles: int, most: int = 6) -> list[tuple[int, int]]:
    """Tiles in blocks of about the same size, whose sums fit the registers: how large, and how many.

    >>> blocks_of(49), blocks_of(16), blocks_of(12)
    ([(6, 4), (5, 5)], [(6, 1), (5, 2)], [(6, 2)])
    """
    count = ceil(tiles / most)
    size, more = divmod(tiles, count)
    return [(size + 1, more)] * (more > 0) + [(size, count - more)]
