"""Products of bytes whose signs have moved: exact sums by AVX2's instruction for bytes. The plan.

``vpmaddubsw`` multiplies unsigned bytes by signed ones and adds two products up in 16 bits, where it
saturates: of u8 by s8 two products can leave them. Of magnitudes by signed bytes they never do. So the sign
of a weight goes to the source that it meets. That is made signed first, d = x - 128, and its complement
stands for what has the other sign, ~d = -d - 1::

    w * d  =  |w| * d                 w >= 0
    w * d  =  |w| * ~d  +  |w|        w < 0

    two products     magnitudes of 128 at most by bytes of s8: from -32768 to 32512, which s16 holds
    four             likewise, where the magnitudes that meet in 16 bits add up to 256 at most

What is to be added (the sum of an output's weights times 128 less the zero point, and the magnitudes of those
below zero) is one number for each output, with which its sums begin. All is bit for bit the definition, for
any weights.

**Which sign a lane wants is a shuffle.** In scratch lie eight bytes of a pixel and their complements, side by
side. A register of them is loaded into both of its lanes, and ``vpshufb`` takes each byte, or its complement,
to where a weight wants it. That spreads the pixel over outputs as well::

    x = d0 .. d7 ~d0 .. ~d7 | the same                              one load, for two steps of four inputs
    t = vpmaddubsw(|w|, vpshufb(x, which))                          8 outputs by 4 inputs, 16 bits
    t = vpaddw(t, the same of the next four inputs)                 where these are small enough
    sum = vpaddd(sum, vpmaddwd(t, ones))

Pairs of s16 (:mod:`.arithmetic`) take four instructions for 32 products, two on the ports that multiply and
two on any of four. This takes four as well, but shuffles have ports of their own, and seven for 64 where
eight inputs are added up at once: 28 and 32 products in a cycle of Zen 3 come out, where pairs do 25.

**Weights are looked at in each call,** group by group, so that they may be anything: they are split into
magnitudes and shuffles, eight inputs (an *entry*) after the other. Entries whose products can be added up
eight at a time come first, and a list says which inputs each one meets, so that a tile has two loops and no
branches. That is done once for all pixels of a task.

**Long sums come in shares** of the entries, so that tiles read magnitudes and shuffles from the L1 cache, and
pixels from the L2 cache: a share of the pixels' bytes is brought to scratch, all groups go over it, and only
then comes the next one. Sums wait in scratch.

Sizes and strides are bytes unless they count something.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import ceil

from relayout.kernels.conv.arithmetic import PAIRS, Arithmetic, Zeros
from relayout.kernels.conv.cost import Facts
from relayout.kernels.conv.direct import Group, Place, ends_in_zeros
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.planning import Problem, groups_of
from relayout.kernels.conv.sides import Side, places_of, side_of
from relayout.kernels.conv.tile import WORD, lanes_of
from relayout.kernels.conv.weights import Weights, weights_of
from relayout.layout.descriptor import MemoryDesc
from relayout.loops.nest import Loop, joined
from relayout.records import dataclass
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY_INPUTS", "Signs", "cycles", "signs"]

ENTRY_INPUTS = 8  # of an entry: two steps of four
VECTORS = 2  # of outputs in a group
PIXELS = {1: 8, 2: 4}  # of a tile, by its vectors: sums, weights and what is multiplied fill 16 registers
LEAST_PIXELS = 4  # of a product; for fewer pixels it does not pay to split weights
APART = 512  # rows of scratch so far from each other would share the sets of the L1 cache
FILLS = (4, 1, 1 / 2)  # of the L2 cache: what pixels of a task take of it

ENTRY_CYCLES = 1.7  # an entry for a pixel and a vector: 1.6 to 1.76 measured; the model gives pairs 2
SPLIT_CYCLES = 12.0  # to split an entry of a vector of weights
PACKED_CYCLES = 2.0  # to bring eight inputs of a pixel to scratch
FAR_CYCLES = 2.4  # to do so beyond the L2 cache, besides
FAR_TILE = 100.0  # until the first pixels of a tile come from there


@dataclass(frozen=True)
class Signs:
    """How such a product is done; a task is some pixels by some groups of outputs."""

    geometry: Geometry
    arithmetic: Arithmetic
    machine: Machine
    src: Side
    dst: Side
    src_type: str
    weights: Weights
    kinds: tuple[Group, ...]
    places: tuple[Place, ...]
    pixels: int
    """Of all images."""
    reads: tuple[Loop, ...]
    """Where pixels lie in the source, the outermost loop first."""
    writes: int
    """From pixel to pixel of the destination."""
    block: int
    """Pixels of a task."""
    chunks: int
    """Of the groups of outputs; a task has one of them."""
    zeros: Zeros

    unpacks = False
    carried = 0

    @property
    def order(self) -> tuple[object, ...]:
        """In which order sums are added up: of integers any order gives the same bits."""
        return ()

    @property
    def weights_type(self) -> str:
        """The data type of the weights."""
        return self.weights.dtype

    @property
    def blocks(self) -> int:
        """Tasks of a chunk of the groups: each has a block of the pixels."""
        return ceil(self.pixels / self.block)

    @property
    def tasks(self) -> int:
        """How many there are."""
        return self.chunks * self.blocks

    @property
    def entries(self) -> int:
        """Of a group, eight inputs each."""
        return self.geometry.inputs // ENTRY_INPUTS

    @property
    def vectors(self) -> int:
        """The most of a group."""
        return max(kind.vectors for kind in self.kinds)

    @property
    def entry(self) -> int:
        """Of magnitudes and shuffles of a group."""
        return _entry(self.machine, self.vectors)

    @property
    def share(self) -> int:
        """Entries that are split at a time, which all groups go over; of the last share perhaps fewer."""
        return _share(self.geometry, self.machine, self.vectors)

    @property
    def parts(self) -> int:
        """Shares of the entries."""
        return ceil(self.entries / self.share)

    @property
    def pixel(self) -> int:
        """From pixel to pixel in scratch."""
        return _pixel(self.share)

    @property
    def sums(self) -> int:
        """Sums of all outputs of a task that go on with the next share of the entries."""
        groups = ceil(len(self.places) / self.chunks)
        return self.block * groups * self.vectors * self.machine.vector if self.parts > 1 else 0

    @property
    def slot(self) -> int:
        """Scratch of one part of the work.

        A share of pixels; their sums; a share of the entries of a group, which inputs these meet, and what
        sums begin with.
        """
        begin = (self.vectors + 1) * self.machine.vector
        return self.block * self.pixel + self.sums + self.share * (self.entry + 8) + begin + 3 * LINE

    def clears(self, dst: MemoryDesc) -> bool:
        """Whether all padding of a destination is written: zeros behind the last channel."""
        last = self.kinds[self.places[-1].kind]
        stored = sum(piece.lanes for piece in last.pieces[-1]) - last.valid
        return ends_in_zeros(dst, self.dst, self.geometry, stored)

    def __str__(self) -> str:
        vectors = self.kinds[0].vectors
        channels = f"{vectors} x {lanes_of(self.machine)} channels"
        words = [f"tiles of {PIXELS[vectors]} pixels by {channels}"]
        words.append("fours or eights of bytes added up in s16 and s32, signs moved to the source")
        if self.zeros:
            words.append("zero points taken off")
        words.append(f"{self.slot >> 10} KiB of pixels and weights")
        chunks = f" by 1/{self.chunks} of the channels" * (self.chunks > 1)
        words.append(f"{self.tasks} tasks of {self.block} pixels{chunks}")
        return ", ".join(words)


def _entry(machine: Machine, vectors: int) -> int:
    """Bytes of magnitudes and shuffles of an entry."""
    return 4 * vectors * machine.vector


def _share(geometry: Geometry, machine: Machine, vectors: int) -> int:
    """Entries whose magnitudes and shuffles stay in the L1 cache, in shares of about the same size."""
    entries = geometry.inputs // ENTRY_INPUTS
    return ceil(entries / ceil(entries / (machine.l1 * 7 // 8 // _entry(machine, vectors))))


def _pixel(share: int) -> int:
    """From pixel to pixel of scratch that has so many entries of each."""
    size = 2 * ENTRY_INPUTS * share
    return size + LINE if size % APART == 0 else size


def signs(problem: Problem, machine: Machine, threads: int) -> Iterator[Signs]:
    """The plans for a problem; none for other problems, and for other processors.

    Examples
    --------
    >>> from relayout.targets.machine import machine
    >>> src, weights = MemoryDesc((197, 768), "u8", "nc"), MemoryDesc((768, 768), "s8", "OI8o2i")
    >>> dst, shape = MemoryDesc((197, 768), "s32", "nc"), Geometry.of_matrices(197, 768, 768)
    >>> problem = Problem(src, weights, dst, shape, PAIRS, False)
    >>> found = next(signs(problem, machine("x86-64-v3"), 1))
    >>> found.vectors, found.entries, list(signs(problem, machine("znver4"), 1))
    (2, 96, [])
    """
    src, weights, dst, g, arithmetic, grouped, given, zeros, *_ = problem
    if arithmetic != PAIRS or not machine.is_avx2 or g.groups != 1 or zeros.weights or given is not None:
        return
    if g.taps != 1 or not g.inside or max(g.gaps) > 1 or not g.flops or g.inputs % ENTRY_INPUTS:
        return
    lanes, source, target = lanes_of(machine), side_of(src), side_of(dst)
    if source is None or target is None or not (source.is_plain and target.is_plain):
        return
    loops = _loops(g, source, target)
    if loops is None or places_of(source.channels, g.inputs) != tuple(range(g.inputs)):
        return
    pixels = g.batch * g.pixels
    found = weights_of(weights, g, arithmetic, lanes, grouped)
    if pixels < LEAST_PIXELS or found is None or [d.stride for d in found.inputs] != [2 * lanes]:
        return
    vectors = min(VECTORS, ceil(g.outputs / lanes))
    size = dst.dtype.bits // 8
    cut = groups_of(g, found, (None, WORD), (target, size), lanes, vectors, False, g.inputs)
    if cut is None:
        return
    for block, chunks in sorted(
        _cuts(_pixel(_share(g, machine, vectors)), machine, threads, pixels, len(cut[1])), reverse=True
    ):
        yield Signs(
            g,
            arithmetic,
            machine,
            source,
            target,
            src.dtype.name,
            found,
            *cut,
            pixels,
            *loops,
            block,
            chunks,
            zeros,
        )


def _loops(g: Geometry, source: Side, target: Side) -> tuple[tuple[Loop, ...], int] | None:
    """The loops over pixels of a source, and from pixel to pixel of a destination; None where they differ."""
    if len(source.batch) != 1 or len(target.batch) != 1:
        return None
    sizes = (g.batch, *g.target)
    reads = (source.batch[0].stride, *(a * b for a, b in zip(g.strides, source.steps, strict=True)))
    loops = zip(sizes, reads, (target.batch[0].stride, *target.steps), strict=True)
    found = [Loop(count, (read, write)) for count, read, write in loops if count > 1]
    if any(outer.steps[1] != inner.extent * inner.steps[1] for outer, inner in pairwise(found)):
        return None
    return joined(found), found[-1].steps[1] if found else 0


def _cuts(size: int, machine: Machine, threads: int, pixels: int, groups: int) -> set[tuple[int, int]]:
    """Pixels of a task, and chunks of the groups: all threads get something to do."""
    found = set()
    step = max(PIXELS.values())
    for fill in FILLS:
        most = max(step, int(machine.l2 * fill) // size // step * step)
        blocks = ceil(pixels / most)
        block = min(pixels, ceil(ceil(pixels / blocks) / step) * step) if blocks > 1 else pixels
        found.add((block, 1))
        if threads > 1 and ceil(pixels / block) % threads:
            found.add((block, min(threads, groups)))
    return found


def cycles(plan: Signs, threads: int, facts: Facts) -> float:
    """About how many cycles it takes on so many threads."""
    entries, tile = plan.entries, 0.0
    far = plan.block * plan.pixel > plan.machine.l2 * 3 // 4
    for place in plan.places:
        vectors = plan.kinds[place.kind].vectors
        each = PIXELS[vectors]
        whole, rest = divmod(plan.block, each)
        turns = entries * max(ENTRY_CYCLES * each * vectors + facts.turn, 2 * facts.latency)
        last = entries * max(ENTRY_CYCLES * rest * vectors + facts.turn, 2 * facts.latency)
        call = facts.call + each * vectors * 2 * facts.store * (plan.parts > 1) + FAR_TILE * far
        tile += whole * (turns + plan.parts * call) + (rest > 0) * (last + plan.parts * call)
        tile += entries * vectors * SPLIT_CYCLES + plan.block * vectors * facts.store
    came = plan.geometry.outputs * plan.geometry.inputs / facts.far * facts.shown
    task = (
        plan.block * entries * (PACKED_CYCLES + FAR_CYCLES * far) + (tile + came) / plan.chunks + facts.task
    )
    if threads == 1:  # the last task may be smaller
        return plan.tasks * task * plan.pixels / (plan.blocks * plan.block)
    return (ceil(plan.tasks / threads) + facts.uneven) * task
