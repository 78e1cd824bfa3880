"""A loop over time as text: who does what, and register tiles of products with a state.

What a recurrence reads and computes is the business of the modules that use this
(:mod:`~.recurrent.module`, :mod:`~.recurrent.gradient`); here are the loops around that::

    threads    tasks alone, each through all steps, or together, in turns
    a task     some rows of the batch and some units, of one phase of a step
    a tile     a few of these rows and blocks of units: sums of products, and then what becomes of them

A tile goes over the state once. An element of the state goes to all lanes and is multiplied by the weights of
all gates of its blocks; in the end the sums of all gates of a unit are in registers, in the same lane.

That is a step of a sum, and :class:`relayout.kernels.conv.dot.Dot` writes it, as it does for convolutions.
Where an instruction adds up pairs, a step takes two elements of the state. The second of an odd one is not
there, and is taken as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, ClassVar, NamedTuple

from relayout.ir.builder import Function
from relayout.ir.kernel import digits, kernel, share
from relayout.ir.types import FLOAT, I1, I64, PTR, Value, constant, vector
from relayout.kernels.conv.dot import Dot, declared
from relayout.kernels.conv.tile import WORD
from relayout.kernels.recurrent.cell import Phase
from relayout.kernels.recurrent.plan import ACCUMULATORS, Places, Steps
from relayout.kernels.recurrent.turns import functions

__all__ = ["Tile", "Where", "Writer"]

UNROLL = 4  # steps of a sum for a turn of the loop
SPREAD = 16  # at most so many parts of a sum, between which lines are asked for
PART = 4  # turns of one of them, at least
AHEAD = 2048  # bytes by which weights are prefetched that don't stay in the L2 cache


class Where(NamedTuple):
    """What a phase of a step works on."""

    at: Mapping[str, Value]
    """Addresses of the first row and the first unit; ``src`` is what is multiplied."""
    pitches: Mapping[str, int]
    """Bytes from row to row; what is not among them is the same for all rows."""
    weights: Value
    depth: int
    """Elements of the state, or of whatever is multiplied."""
    block: int
    """Bytes of weights from one block of units to the next."""
    width: int
    """How many units there are."""
    jumps: Mapping[str, int] = {}
    """Bytes from one block of units to the next, where they are not those of a vector."""


class Writer:
    """Writes a kernel; see the module's docstring."""

    entry: ClassVar[str]
    operands: ClassVar[tuple[str, ...]]
    """What the list of operands has the addresses of; the last are the words of ``turns``."""
    pointers: ClassVar[tuple[str, ...]]
    """What a tile gets: addresses of its first row and its first unit."""

    def __init__(self, plan: Steps) -> None:
        self.shape, self.lanes = plan, plan.lanes
        self.functions: dict[str, str] = {}
        self.b = kernel(self.entry, plan.machine)

    # -- what a subclass gives ------------------------------------------------------------------------------

    def modes(self, number: int, s: Value) -> list[tuple[str, Value]]:
        """The kinds of steps for which a phase has code of its own, each with when it is that."""
        return [("", constant(I1, 1))]

    def where(self, f: Function, number: int, mode: str, direction: Value) -> Where:
        """What a phase works on; ``s`` of the function counts steps."""
        raise NotImplementedError

    def written(self, f: Function, number: int, mode: str, size: tuple[int, int, int], where: Where) -> None:
        """Write a tile of so many rows, so many blocks of units, so many units of the last one."""
        raise NotImplementedError

    def text(self) -> str:
        """The text."""
        b, plan = self.b, self.shape
        ops = b["ops"]
        self.loaded = [b.load(PTR, b.gep(ops, 8 * k)) for k in range(len(self.operands))]
        if plan.turns:
            self.in_turns()
        else:
            self.alone()
        others = functions(plan.machine, plan.tasks) if plan.turns else ""
        instruction = declared(plan.factors, plan.lanes)
        return "\n".join([instruction, others, *self.functions.values(), b.text()])

    # -- who does what --------------------------------------------------------------------------------------

    def alone(self) -> None:
        """Each task goes through all steps."""
        b, plan = self.b, self.shape
        first, last = share(b, plan.tasks)

        def steps(task: Value, given: list[Value]) -> list[Value]:
            def step(s: Value) -> None:
                for number in range(len(plan.phases)):
                    self.task(number, task, s)

            b.loop(0, plan.rounds, 1, step)
            return given

        b.repeat(first, last, 1, [], steps)

    def in_turns(self) -> None:
        """All tasks go through the steps together."""
        b, plan = self.b, self.shape
        part, phases = b.urem(b["part"], plan.tasks), len(plan.phases)
        turns = self.loaded[-1]
        b.call("begin", turns, part)

        def step(s: Value) -> None:
            for number in range(phases):
                stage = b.add(b.mul(s, phases), number + 1)

                def one(k: Value, number: int = number, stage: Value = stage) -> None:
                    task = b.urem(b.add(part, k), plan.tasks)
                    own = b.call_value(I1, "take", turns, part, task, stage)

                    def work() -> None:
                        self.task(number, task, s)
                        b.call("finish", turns, task, stage)

                    b.when(own, work)

                b.loop(0, plan.tasks, 1, one)
                b.call("wait", turns, stage)

        b.loop(0, plan.rounds, 1, step)

    # -- a task: some rows and some units of a step ---------------------------------------------------------

    def task(self, number: int, task: Value, s: Value) -> None:
        """One phase of one step, by way of a function, since there are several places that do it."""
        addresses = [self.b["src"], self.b["dst"], *self.loaded[:-1]]
        for mode, condition in self.modes(number, s):
            name = f"phase{number}{mode}"
            if name not in self.functions:
                self.functions[name] = ""
                self.functions[name] = self.phase(name, number, mode)

            def call(name: str = name) -> None:
                self.b.call(name, *addresses, task, s)

            self.b.when(condition, call)

    def phase(self, name: str, number: int, mode: str) -> str:
        """The function of one phase: all tiles of a task."""
        plan, schedule, lanes = self.shape, self.shape.schedule, self.lanes
        arguments = dict.fromkeys(("src", "dst", *self.operands[:-1]), PTR) | {"task": I64, "s": I64}
        f = Function(name, arguments, plan.machine, "internal", "noinline")
        direction, part, each = digits(f, f["task"], (len(plan.backward), schedule.parts, schedule.shares))
        turned = f.icmp("ne", f.and_(f["s"], 1), 0)
        where = self.where(f, number, mode, direction)
        at, pitches, width = where.at, where.pitches, where.width
        blocks = ceil(width / lanes)
        first, last = (self.cut(f, blocks, f.add(each, k), schedule.shares) for k in (0, 1))
        row_first, row_last = (self.cut(f, plan.tiles, f.add(part, k), schedule.parts) for k in (0, 1))
        whole = width // lanes

        def call(rows: int, count: int, valid: int, places: dict[str, Value], u: Value) -> None:
            moved = {
                key: place if key == "src" else f.gep(place, u, where.jumps.get(key, lanes * WORD))
                for key, place in places.items()
            }
            moved["weights"] = f.gep(where.weights, u, where.block)
            tile = self.tile(number, mode, (rows, count, valid), where)
            f.call(tile, *(moved[key] for key in self.pointers if key in moved))

        def over_rows(u: Value, count: int, valid: int) -> None:
            def rows_of(tile: Value, given: list[Value]) -> list[Value]:
                places = {
                    key: f.gep(place, f.mul(tile, schedule.rows), pitches[key]) if key in pitches else place
                    for key, place in at.items()
                }
                rest = plan.rows - (plan.tiles - 1) * schedule.rows
                if rest == schedule.rows:
                    call(rest, count, valid, places, u)
                    return given
                is_last = f.icmp("eq", tile, plan.tiles - 1)
                f.when(is_last, lambda: call(rest, count, valid, places, u))
                if plan.tiles > 1:
                    f.when(f.not_(is_last), lambda: call(schedule.rows, count, valid, places, u))
                return given

            f.repeat(row_first, row_last, 1, [], rows_of)

        def groups(start: Value, end: Value, count: int) -> None:
            """From block to block, so many at a time."""

            def one(u: Value, given: list[Value]) -> list[Value]:
                back = f.sub(f.sub(f.add(start, end), count), u)
                over_rows(f.select(turned, back, u), count, lanes)
                return given

            f.repeat(start, end, count, [], one)

        full = f.smin(last, constant(I64, whole))
        some, together = f.smax(f.sub(full, first), 0), plan.together(plan.phases[number])
        middle = f.add(first, f.mul(f.udiv(some, together), together))
        if whole >= together:
            groups(first, middle, together)
        if together > 1 and whole:
            groups(middle, full, 1)
        if width % lanes:
            f.when(f.icmp("eq", last, blocks), lambda: over_rows(constant(I64, whole), 1, width % lanes))
        return f.text()

    @staticmethod
    def cut(f: Function, total: int, number: Value, count: int) -> Value:
        """Where a share begins."""
        return f.mul(number, total) if count == 1 else f.udiv(f.mul(number, total), count)

    @staticmethod
    def placed(f: Function, pointer: Value, places: Places, t: Value, direction: Value) -> Value:
        """The address of the rows of an element of the sequence."""
        at = f.gep(f.gep(pointer, places.start), t, places.step)
        return f.gep(at, direction, places.direction)

    def tile(self, number: int, mode: str, size: tuple[int, int, int], where: Where) -> str:
        """The name of a tile's function, which is written when it is first asked for."""
        rows, count, valid = size
        name = f"tile{number}{mode}_{rows}x{count}_{valid}"
        if name not in self.functions:
            self.functions[name] = ""
            arguments = [key for key in self.pointers if key in where.at or key == "weights"]
            f = Function(name, dict.fromkeys(arguments, PTR), self.shape.machine, "internal", "noinline")
            self.written(f, number, mode, size, where)
            self.functions[name] = f.text()
        return name

    def turned(self, f: Function, direction: Value) -> Value:
        """1 for a direction whose forward pass begins at the last step, else 0."""
        backward = self.shape.backward
        if len(set(backward)) == 1:
            return constant(I64, int(backward[0]))
        return direction if backward[1] else f.sub(1, direction)


class Tile:
    """Writes one tile."""

    def __init__(self, plan: Steps, f: Function, phase: Phase, size: tuple[int, int, int]) -> None:
        self.shape, self.f, self.phase = plan, f, phase
        self.rows, self.count, self.valid = size
        self.type = vector(plan.lanes, FLOAT)
        self.width = self.type.bytes
        self.ahead = AHEAD if self.rows > 1 and not plan.stays else 0

    def start(self, r: int, u: int, g: int) -> Value:
        """What a sum begins with."""
        return constant(self.type, 0)

    def lines(self) -> list[Callable[[], None]]:
        """What asks for the lines that :meth:`finish` reads and writes, which products give time to come."""
        return []

    def asked(self, write: bool, where: Callable[..., Value], *place: Any) -> Callable[[], None]:
        """What asks for the line of an address, to read it or to write it."""
        return lambda: self.f.prefetch(where(*place), write=write)

    def finish(self, r: int, u: int, sums: list[Value]) -> None:
        """What becomes of the sums of a unit's gates."""
        raise NotImplementedError

    def chains(self, width: int) -> int:
        """How many partial sums a sum has, which are added to in turn so that none waits for itself.

        It is a question of what there is to compute, not of the tile: else bits would depend on how the work
        is cut, and so on the number of threads.
        """
        gates = len(self.phase.gates)
        together = min(max(1, ACCUMULATORS // gates), ceil(width / self.shape.lanes))
        return max(1, min(UNROLL, ACCUMULATORS // (gates * together * self.shape.rows)))

    def write(self, where: Where, gates: int, pitch: int) -> None:
        """Products, ``pitch`` bytes from row to row of what is multiplied, and what follows.

        A step of the weights has a vector for each of so many gates.
        """
        block, how = where.block, self.shape.factors
        f, phase = self.f, self.phase
        dot = Dot(f, how, how.operand, self.shape.lanes)
        depth, rest = divmod(where.depth, how.depth)
        places = [(u, g) for u in range(self.count) for g in phase.gates]
        starts = [self.start(r, u, g) for r in range(self.rows) for u, g in places]
        sets = self.chains(where.width) if where.depth else 1
        zero = constant(self.type, 0)
        sums = starts + [zero] * (len(starts) * (sets - 1))

        def factor(x: Value, count: int) -> Value:
            """Neighbours of the state in all lanes, of which there are so many."""
            whole = count == how.depth
            return dot.everywhere(x) if whole else dot.rest(x, count, constant(dot.factor, 0))

        def turn(unroll: int, x: Value, w: Value, sums: list[Value], count: int = how.depth) -> list[Value]:
            for k in range(unroll):
                vectors = [dot.weights(f.gep(w, u * block + (k * gates + g) * self.width)) for u, g in places]
                for u, g in places if self.ahead else ():
                    f.prefetch(f.gep(w, u * block + (k * gates + g) * self.width + self.ahead))
                first = k % sets * len(starts)
                for r in range(self.rows):
                    one = factor(f.gep(x, r * pitch + k * how.step), count)
                    for v, y in enumerate(vectors):
                        number = first + r * len(places) + v
                        sums[number] = dot.add(one, y, sums[number])
            return [f.gep(x, unroll * how.step), f.gep(w, unroll * gates * self.width), *sums]

        def body(unroll: int) -> Callable[[Value, list[Value]], list[Value]]:
            return lambda _, given: turn(unroll, given[0], given[1], given[2:])

        carried = [f["src"], f["weights"], *sums]
        turns, lines = depth // UNROLL, self.lines()
        parts = max(1, min(SPREAD, turns // PART))
        for part in range(parts):
            for ask in lines[part * len(lines) // parts : (part + 1) * len(lines) // parts]:
                ask()
            count = (part + 1) * turns // parts - part * turns // parts
            if count:
                carried = f.repeat(0, count, 1, carried, body(UNROLL), True)
        if depth % UNROLL:
            carried = turn(depth % UNROLL, carried[0], carried[1], carried[2:])
        if rest:
            carried = turn(1, carried[0], carried[1], carried[2:], rest)
        sums = carried[2:]
        for k in range(1, sets):
            for number in range(len(starts)):
                sums[number] = f.fadd(sums[number], sums[k * len(starts) + number])
        for r in range(self.rows):
            for u in range(self.count):
                at = r * len(places) + u * len(phase.gates)
                self.finish(r, u, sums[at : at + len(phase.gates)])
