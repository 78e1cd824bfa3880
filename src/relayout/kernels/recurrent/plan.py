"""The recurrence of a layer as plain data, and the ways to cut it among threads, with what each costs.

What there is to compute in a step is a matrix, rows of the batch by units of the state::

            units 0..15   16..31   32..47   48..63
    row 0   [ tile of                ]                a tile: some rows, some blocks of units,
    row 1   [ all gates' sums        ]                all gates of a phase
    row 2   [                        ]
    ...

Rows do not know of each other: threads that take rows each go through all steps alone. But each of them reads
all weights in each step. Units need the whole state of the step before: threads that take units (*shares* of
a step) wait for each other after each phase, a microsecond; for that each one reads a part of the weights
only, which may stay in its cache. Which is better depends on the sizes, so there are schedules with a cost.

Weights of bf16 are multiplied in pairs where the processor has an instruction for that, as those of
convolutions are (:mod:`relayout.kernels.conv.arithmetic`)::

    f32         O i g 16o          a vector of each gate for an element of the state
    bf16        O I g 16o 2i       and for two neighbours of it: as many bytes, half as many steps
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple, TypeVar

from relayout.kernels.conv.arithmetic import FLOATS, Arithmetic
from relayout.kernels.conv.tile import WORD, lanes_of
from relayout.kernels.recurrent.cell import Cell, Phase
from relayout.records import dataclass, replace
from relayout.targets.machine import Machine

S = TypeVar("S", bound="Steps")

__all__ = [
    "ALONE",
    "FACTS",
    "Facts",
    "Kept",
    "Places",
    "Recurrence",
    "Schedule",
    "Steps",
    "alternatives",
    "planned",
]


class Places(NamedTuple):
    """Where a tensor with steps, rows and directions lies, in bytes."""

    step: int
    row: int
    direction: int
    start: int = 0


@dataclass(frozen=True)
class Schedule:
    """How a recurrence is done: no choice changes a result.

    >>> print(Schedule(5, 1, 2, 1))
    tiles of 5 rows by 1 block, rows in 2 parts
    """

    rows: int
    """Rows of a tile; the last one may have fewer."""
    blocks: int
    """Blocks of units of a tile; more of them in phases that have fewer gates."""
    parts: int
    """Into how many parts the rows are cut."""
    shares: int
    """Into how many shares the units are cut; more than one must wait for each other."""

    def __str__(self) -> str:
        blocks = f"{self.blocks} block{'s' * (self.blocks > 1)}"
        words = [f"tiles of {self.rows} row{'s' * (self.rows > 1)} by {blocks}"]
        words += [f"rows in {self.parts} parts"] * (self.parts > 1)
        words += [f"units in {self.shares} shares"] * (self.shares > 1)
        return ", ".join(words)


ALONE = Schedule(1, 1, 1, 1)
"""What a recurrence has before one is found for it."""


class Kept(NamedTuple):
    """Where a layer finds what training keeps, in bytes; see :class:`relayout.ops.recurrent.Workspace`.

    Attributes
    ----------
    start, direction : int
        What lies in front of the layer, and from one direction to the next.
    memories, gates : int
        From the states of a direction to these.
    row : tuple of int
        Bytes of a row of states, memories and gates.
    """

    start: int
    direction: int
    memories: int
    gates: int
    row: tuple[int, int, int]

    @property
    def pitches(self) -> dict[str, int]:
        """Bytes from row to row, by name."""
        return dict(zip(("states", "memories", "gates"), self.row, strict=True))

    def at(self, name: str) -> int:
        """From the states of a direction to a part."""
        return 0 if name == "states" else int(getattr(self, name))


@dataclass(frozen=True)
class Steps:
    """What recurrences have in common, forward and backward.

    Attributes
    ----------
    cell : Cell
    machine : Machine
    steps, rows, units, outputs : int
        Time steps, the batch, units of a gate, and of the state: fewer where it is projected.
    backward : tuple of bool
        For each direction whether the forward pass begins at the last step.
    schedule : Schedule
    """

    cell: Cell
    machine: Machine
    steps: int
    rows: int
    units: int
    outputs: int
    backward: tuple[bool, ...]
    schedule: Schedule

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Those of a step."""
        return self.cell.phases

    @property
    def factors(self) -> Arithmetic:
        """In which numbers products with weights are computed."""
        return FLOATS

    def together(self, phase: Phase) -> int:
        """Blocks of units of a tile in a phase: as many vectors as in the one that has most gates."""
        most = max(len(each.gates) for each in self.phases)
        return self.schedule.blocks * most // len(phase.gates)

    @property
    def rounds(self) -> int:
        """How often they are gone through."""
        return self.steps

    @property
    def lanes(self) -> int:
        """Units of a block."""
        return lanes_of(self.machine)

    @property
    def tiles(self) -> int:
        """Tiles of rows."""
        return ceil(self.rows / self.schedule.rows)

    @property
    def tasks(self) -> int:
        """What threads take: directions, parts of the rows, shares of the units."""
        return len(self.backward) * self.schedule.parts * self.schedule.shares

    @property
    def turns(self) -> bool:
        """Whether threads wait for each other."""
        return self.schedule.shares > 1

    @property
    def weights_bytes(self) -> int:
        """Bytes of weights that a thread reads in a step."""
        shares = self.schedule.shares
        blocks, outputs = (ceil(ceil(n / self.lanes) / shares) for n in (self.units, self.outputs))
        each = blocks * self.cell.gates * self.outputs
        if self.cell.projection:
            each += outputs * self.units
        return each * self.lanes * WORD // self.factors.depth

    @property
    def stays(self) -> bool:
        """Whether they stay in the L2 cache."""
        return self.weights_bytes <= FACTS.kept * self.machine.l2

    def __str__(self) -> str:
        return str(self.schedule)


@dataclass(frozen=True)
class Recurrence(Steps):
    """What a kernel does for one layer, in all directions.

    Attributes
    ----------
    given : Places
        The gates' parts that come from the data, f32; units of a gate lie side by side.
    gate : int
        Bytes from one gate to the next, there.
    results : Places
        Where the state of each step is written, f32.
    pitch, between : int
        Bytes from row to row of a state, and of what one phase leaves for the next.
    weights, projection, bias, peephole : tuple of (int, int)
        Bytes in front of those of this layer, and from one direction to the next.
    kept : Kept or None
        Where training keeps what the backward pass needs.
    arithmetic : Arithmetic
        In which numbers products with weights are computed.
    rounded : str
        The data type to which states are rounded before they are multiplied, and of which there is a second
        array of states, therefore; empty: the states themselves are multiplied.
    """

    given: Places
    gate: int
    results: Places
    pitch: int
    between: int
    weights: tuple[int, int]
    projection: tuple[int, int]
    bias: tuple[int, int]
    peephole: tuple[int, int]
    kept: Kept | None = None
    arithmetic: Arithmetic = FLOATS
    rounded: str = ""

    @property
    def factors(self) -> Arithmetic:
        """In which numbers products with weights are computed."""
        return self.arithmetic

    def __str__(self) -> str:
        how = self.arithmetic
        return f"{self.schedule}, states of {how.operand} by {how.dot}" if how.dot else str(self.schedule)

    def source(self, phase: Phase) -> int:
        """Bytes from row to row of what a phase multiplies."""
        return self.between if phase.source == "between" else self.pitch


class Facts(NamedTuple):
    """What a core does in a cycle, and what takes how many."""

    products: float = 1.8
    """Vectors in a cycle that are multiplied and added, as tiles reach it."""
    near: float = 40.0
    """Bytes of weights a cycle from the L2 cache."""
    far: float = 8.0
    """The same from the L3 cache."""
    kept: float = 0.8
    """The share of the L2 cache that weights may fill and stay there."""
    activation: float = 14.0
    """Cycles of an activation of a vector."""
    call: float = 20.0
    """Cycles of a call of a tile."""
    turn: float = 600.0
    """Cycles until threads that waited for each other go on."""


FACTS = Facts()
"""Of one processor with AVX-512; what they decide is coarse."""

ACCUMULATORS = 8  # sums that are added to in turn, so that none waits for itself


HIGH = 24  # rows of the batch from which on tiles of one gate are high


def _tile(registers: int, gates: int, rows: int, blocks: int) -> tuple[int, int]:
    """Rows and blocks of a tile: as many sums as registers hold beside weights and what is multiplied.

    Tiles are about as high as they are wide: for each product there are fewest loads then. Where there are
    many rows they are high: all of them read the same weights again, from the L2 cache.

    >>> _tile(32, 4, 64, 8), _tile(32, 4, 1, 8), _tile(32, 2, 16, 8), _tile(32, 1, 50, 32)
    ((6, 1), (1, 2), (6, 2), (13, 2))
    """
    most = max(1, ACCUMULATORS // gates)
    if rows > 1 and (gates == 1 or gates * rows >= ACCUMULATORS):
        wide = 4 if registers > 16 and (gates > 1 or rows < HIGH) else 2
        most = max(1, wide // gates)
    count = max(1, min(most, blocks))
    room = max(1, (registers - 1 - count * gates) // (count * gates))
    tiles = ceil(rows / room)
    return ceil(rows / tiles), count


def _schedules(one: Steps, threads: int) -> Iterator[Schedule]:
    """Those that may be worth while."""
    directions, blocks = len(one.backward), ceil(one.units / one.lanes)
    gates = max(len(phase.gates) for phase in one.phases)
    least = min(blocks, ceil(one.outputs / one.lanes))
    for parts in range(1, min(threads, one.rows) + 1):
        rows, count = _tile(one.machine.registers, gates, ceil(one.rows / parts), blocks)
        for shares in range(1, max(1, threads // (directions * parts)) + 1):
            if shares == 1 or shares <= least:
                yield Schedule(rows, min(count, ceil(blocks / shares)), parts, shares)
        if directions * parts >= threads:
            break


def alternatives(one: S) -> tuple[S, ...]:
    """The same with tiles of other shapes, which another processor may do faster; the one itself is first.

    Each is as high as registers let it be. Threads share the work as before.
    """
    schedule, lanes = one.schedule, one.lanes
    gates = max(len(phase.gates) for phase in one.phases)
    most = ceil(ceil(one.units / lanes) / schedule.shares)
    rows = ceil(one.rows / schedule.parts)
    made = [schedule]
    for blocks in (1, 2, 4, 8):
        sums = (one.machine.registers - 1) // (blocks * gates) - 1  # rows, beside vectors of weights
        if blocks <= most and sums >= 1:
            other = replace(schedule, rows=ceil(rows / ceil(rows / sums)), blocks=blocks)
            made += [other] * (other not in made)
    return tuple(replace(one, schedule=each) for each in made)


def cycles(one: Steps, threads: int, facts: Facts = FACTS) -> float:
    """About how many cycles it takes."""
    schedule, lanes = one.schedule, one.lanes
    blocks = ceil(ceil(one.units / lanes) / schedule.shares)
    tiles = ceil(one.tiles / schedule.parts)
    rows = tiles * schedule.rows
    sums = rows * blocks * one.cell.gates * one.outputs / facts.products
    if one.cell.projection:
        outputs = ceil(ceil(one.outputs / lanes) / schedule.shares)
        sums += rows * outputs * one.units / facts.products
    sums /= one.factors.depth
    rate = facts.near if one.stays else facts.far
    calls = tiles * ceil(blocks / schedule.blocks) * facts.call
    functions = rows * blocks * (one.cell.gates + one.cell.has_memory) * facts.activation
    step = max(sums, one.weights_bytes / rate) + functions + calls
    if one.turns:
        step += facts.turn * len(one.phases)
    rounds = ceil(one.tasks / threads)
    return float(one.steps * step * rounds)


def planned(one: S, threads: int) -> S:
    """With the schedule that costs least."""
    made = [replace(one, schedule=schedule) for schedule in _schedules(one, threads)]
    return min(made, key=lambda each: cycles(each, threads))
