"""Few rows by weights whose inputs lie side by side: weights are read as they are, each once. The plan.

A row times a matrix has one product for each weight. No tile helps there, since no weight is used twice, and
to pack weights takes longer than to multiply them. All that counts is to read them as they lie, as fast as
memory gives them. Elsewhere lanes are outputs; here they are inputs, of the source and the weights alike::

    source    x  = x0 x1 ... x7 | x8 ...
    weights   w0 = w[0, 0] w[0, 1] ... w[0, 7] | ...      sum0 += w0 * x     in 8 lanes
              w1 = w[1, 0] w[1, 1] ... w[1, 7] | ...      sum1 += w1 * x
              ...                                         some outputs at a time: streams of memory

    at the end:  lanes of sum0, sum1, ... sum7 are added up by a tree of shuffles, which leaves eight outputs
                 side by side, as an epilogue takes them

Weights of a layer of PyTorch lie so (``oi``), and the keys of attention that one query meets. A few rows
(:data:`MOST_ROWS`) share each weight that was loaded. What this does not take (None), the direct plan
(:mod:`.direct`) does: inputs that lie in blocks, integers, taps that fall outside.

Sizes and strides are bytes unless they count something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil
from typing import NamedTuple

from relayout.dtypes import DType
from relayout.kernels.conv.arithmetic import FLOATS, Arithmetic, Zeros
from relayout.kernels.conv.cost import Facts
from relayout.kernels.conv.direct import Place, padded_axes
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.planning import Problem
from relayout.kernels.conv.sides import Side, digits_of, places_of, side_of
from relayout.kernels.conv.tile import BLOCK, lanes_of
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Digit
from relayout.loops.nest import Loop, joined
from relayout.records import dataclass
from relayout.targets.machine import Machine

__all__ = ["MOST_ROWS", "Gemv", "SideBySide", "Strip", "gemv", "side_by_side"]

MOST_ROWS = 8  # rows of the source; more of them use a tile well
STREAMS = 4  # outputs whose weights are read at the same time
CHAINS = 8  # sums that are added to in turn: as many as hide the latency of adding
LEAST_VECTORS = 2  # of inputs: shorter sums take less than to add up their lanes
TASK_BYTES = 1 << 15  # of weights, at least
MOST_PLACES = 1024  # entries of the table of strips
FLOATING = "f32", "f16", "bf16"


class Strip(NamedTuple):
    """Neighbouring outputs of a group, computed one vector after the other."""

    vectors: int
    valid: int
    """Outputs of the last vector."""


@dataclass(frozen=True)
class Gemv:
    """How few rows are multiplied by weights as they lie. A task is a strip of outputs, for all rows."""

    geometry: Geometry
    machine: Machine
    src: Side
    dst: Side
    src_type: DType
    weights_type: str
    length: int
    """Products of a sum."""
    rows: tuple[tuple[int, int], ...]
    """Where each row lies in the source and in the destination."""
    pitch: int
    """From the weights of an output to those of the next."""
    size: int
    """Of an element of the destination."""
    kinds: tuple[Strip, ...]
    places: tuple[Place, ...]

    arithmetic: Arithmetic = FLOATS
    zeros: Zeros = Zeros()

    unpacks = False
    carried = 0
    slot = 0

    @property
    def streams(self) -> int:
        """Outputs that are summed up at a time: fewer where sums of many rows are in registers."""
        room = self.machine.registers - 1  # beside a vector of the source; each needs one for weights, too
        return max(1, min(STREAMS, room // (len(self.rows) + 1)))

    @property
    def unrolled(self) -> int:
        """Vectors of inputs of a turn, each of which has sums of its own."""
        return max(1, CHAINS // (self.streams * len(self.rows)))

    @property
    def order(self) -> tuple[object, ...]:
        """In which order sums are added up: plans of one problem that agree here give the same bits."""
        return "inputs in lanes", self.unrolled

    @property
    def tasks(self) -> int:
        """How many there are."""
        return len(self.places)

    def clears(self, dst: MemoryDesc) -> bool:
        """Whether all padding of the destination is written: only where there is none."""
        return not padded_axes(dst)

    def cycles(self, weights: int, threads: int, facts: Facts) -> float:
        """About how many it takes, with so many bytes of weights."""
        lanes, rows = lanes_of(self.machine), len(self.rows)
        many = sum(self.kinds[place.kind].vectors for place in self.places)
        turn = self.streams * rows, self.streams + rows
        step = max(turn[0] / facts.products, turn[1] / facts.loads, facts.latency / self.unrolled)
        passes = lanes / self.streams
        alone = ceil(self.length / lanes) * step * passes + rows * (lanes + facts.store) + facts.call
        computing = ceil(self.tasks / threads) / self.tasks * many * alone
        return max(computing, weights / facts.far / threads) + facts.task

    def __str__(self) -> str:
        lanes, rows = lanes_of(self.machine), len(self.rows)
        words = [f"{rows} row{'s' * (rows > 1)} by weights as they lie"]
        words.append(f"{self.streams} streams of {self.unrolled} x {lanes} inputs")
        most = max((kind.vectors - 1) * lanes + kind.valid for kind in self.kinds)
        words.append(f"{self.tasks} tasks of {'up to ' * (len(self.kinds) > 1)}{most} outputs")
        return ", ".join(words)


def gemv(problem: Problem, machine: Machine, threads: int, facts: Facts) -> Iterator[tuple[Gemv, float]]:
    """The plan for a problem, if it has one, and about how many cycles it takes.

    Examples
    --------
    >>> from relayout.kernels.conv.cost import FACTS
    >>> from relayout.targets.machine import machine
    >>> src, dst = MemoryDesc((1, 2048), "f32", "nc"), MemoryDesc((1, 1000), "f32", "nc")
    >>> weights = MemoryDesc((1000, 2048), "f32", "oi")
    >>> problem = Problem(src, weights, dst, Geometry.of_matrices(1, 2048, 1000), FLOATS, False)
    >>> [(plan, cycles)] = gemv(problem, machine("x86-64-v3"), 1, FACTS)
    >>> print(plan)
    1 row by weights as they lie, 4 streams of 2 x 8 inputs, 125 tasks of 8 outputs
    >>> across = problem._replace(weights=MemoryDesc((1000, 2048), "f32", "io"))
    >>> [*gemv(across, machine("x86-64-v3"), 1, FACTS)]
    []
    """
    src, weights, dst, g, arithmetic, grouped, *_ = problem
    found = None if problem.zeros else side_by_side(src, weights, g, arithmetic, grouped, machine)
    target = side_of(dst)
    if found is None or target is None or not target.is_plain:
        return
    source, size = found.source, dst.dtype.bits // 8
    came = places_of(source.channels, g.groups * g.inputs)
    goes = places_of(target.channels, g.groups * g.outputs)
    strips = _strips(g, lanes_of(machine), found.pitch)
    kinds = [*dict.fromkeys(strip for _, strip in strips)]
    places = []
    for group, begin in enumerate(found.groups):
        first = group * g.outputs
        to = goes[first]
        if goes[first : first + g.outputs] != tuple(range(to, to + g.outputs * size, size)):
            return
        places += [
            Place(
                kinds.index(strip),
                came[group * g.inputs],
                begin + output * found.pitch,
                to + output * size,
                first + output,
            )
            for output, strip in strips
        ]
    made = Gemv(
        g,
        machine,
        source,
        target,
        src.dtype,
        weights.dtype.name,
        found.length,
        tuple(_rows(g, source, target)),
        found.pitch,
        size,
        tuple(kinds),
        tuple(places),
    )
    yield made, made.cycles(weights.nbytes, threads, facts)


class SideBySide(NamedTuple):
    """Inputs that lie side by side in the source and in the weights."""

    source: Side
    length: int
    """Inputs of a sum, all taps included."""
    pitch: int
    """From the weights of an output to those of the next."""
    groups: tuple[int, ...]
    """Where the weights of each group begin."""


def side_by_side(
    src: MemoryDesc, weights: MemoryDesc, g: Geometry, arithmetic: Arithmetic, grouped: bool, machine: Machine
) -> SideBySide | None:
    """How few rows and weights lie, if the weights are read as they are; None where they aren't."""
    lanes = lanes_of(machine)
    if arithmetic != FLOATS or not g.inside or max(g.gaps) > 1 or not g.flops:
        return None
    if not {src.dtype.name, weights.dtype.name} <= {*FLOATING} or g.batch * g.pixels > MOST_ROWS:
        return None
    if not LEAST_VECTORS * lanes <= g.inputs * g.taps <= BLOCK * lanes:
        return None
    source, filters = side_of(src), digits_of(weights)
    if source is None or filters is None or not source.is_plain:
        return None
    of_groups, *axes = filters if grouped else [(Digit(1, 1, 0),), *filters]
    *outer, last = source.channels
    if any(len(axis) != 1 for axis in axes) or any(digit.weight % g.inputs for digit in outer):
        return None
    output, inputs, *taps = [axis[0].stride for axis in axes]
    steps = zip(g.dilation, source.steps, (*[0] * (3 - len(taps)), *taps), strict=True)
    loops = [Loop(g.inputs, (last.stride, inputs))]
    loops += [Loop(n, (gap * forth, on)) for n, (gap, forth, on) in zip(g.kernel, steps, strict=True)]
    sizes = src.dtype.bits // 8, weights.dtype.bits // 8
    found = joined(loops)
    if [loop.steps for loop in found] != [sizes]:
        return None
    start = weights.layout.offset0 * sizes[1]
    groups = tuple(start + place for place in places_of(of_groups, g.groups))
    return SideBySide(source, found[0].extent, output, groups)


def _strips(g: Geometry, lanes: int, pitch: int) -> list[tuple[int, Strip]]:
    """The strips of a group, each with its first output."""
    whole, rest = divmod(g.outputs, lanes)
    most = max(1, TASK_BYTES // max(1, pitch * lanes), ceil(g.groups * whole / MOST_PLACES))
    strips = [(first * lanes, Strip(min(most, whole - first), lanes)) for first in range(0, whole, most)]
    return strips + [(whole * lanes, Strip(1, rest))] * (rest > 0)


def _rows(g: Geometry, source: Side, target: Side) -> Iterator[tuple[int, int]]:
    """Where each row begins in source and destination: all pixels of all images."""
    images = zip(places_of(source.batch, g.batch), places_of(target.batch, g.batch), strict=True)
    steps = [stride * forth for stride, forth in zip(g.strides, source.steps, strict=True)]
    for (came, goes), at in product(images, product(*map(range, g.target))):
        yield came + _along(at, steps), goes + _along(at, target.steps)


def _along(index: Sequence[int], steps: Sequence[int]) -> int:
    return sum(k * step for k, step in zip(index, steps, strict=True))
