"""A recurrence as text: ``void recurrent(ptr given, ptr results, ptr ops, i64 part, i64 parts)``.

The operands are the addresses of :data:`OPERANDS`. States are kept in two places in turn: a step reads one
and writes the other, from where the next step reads it; so rows lie equally far apart in all steps, wherever
results and initial states lie. The memory of an LSTM is read and written in one place.

A tile goes over the state once. Its sums begin as what the data gives, an element of the state goes to all
lanes, is multiplied by the weights of all gates of its block, and in the end the sums of all gates of a unit
are in registers, in the same lane: the cell's formulas follow at once, and nothing of a gate is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

from relayout.ir.builder import Function
from relayout.ir.kernel import digits, kernel, share
from relayout.ir.types import FLOAT, I1, I64, PTR, Value, constant, vector
from relayout.ir.vectors import pieces_of, store_pieces
from relayout.kernels.conv.tile import WORD
from relayout.kernels.recurrent.cell import Phase
from relayout.kernels.recurrent.plan import ACCUMULATORS, Places, Recurrence
from relayout.kernels.recurrent.turns import functions

__all__ = ["ENTRY", "OPERANDS", "module"]

ENTRY = "recurrent"
OPERANDS = ("weights", "projection", "bias", "peephole", "hidden", "memory", "between", "turns")
POINTERS = ("src", "weights", "given", "bias", "peephole", "old", "new", "memory", "between", "results")
"""What a tile gets: addresses of its first row and its first unit."""
UNROLL = 4  # elements of the state for a turn of the loop
AHEAD = 2048  # bytes by which weights are prefetched that don't stay in the L2 cache


def module(plan: Recurrence) -> str:
    """The text."""
    return _Writer(plan).text()


class _Writer:
    def __init__(self, plan: Recurrence) -> None:
        self.plan, self.lanes = plan, plan.lanes
        self.type = vector(self.lanes, FLOAT)
        self.functions: dict[str, str] = {}
        self.b = kernel(ENTRY, plan.machine)

    def text(self) -> str:
        b, plan = self.b, self.plan
        ops = b["ops"]
        for k, name in enumerate(OPERANDS):
            setattr(self, name, b.load(PTR, b.gep(ops, 8 * k)))
        if plan.turns:
            self.in_turns()
        else:
            self.alone()
        others = functions(plan.machine, plan.tasks) if plan.turns else ""
        return "\n".join([others, *self.functions.values(), b.text()])

    weights: Value
    projection: Value
    bias: Value
    peephole: Value
    hidden: Value
    memory: Value
    between: Value
    turns: Value

    # -- who does what --------------------------------------------------------------------------------------

    def alone(self) -> None:
        """Each task goes through all steps."""
        b, plan = self.b, self.plan
        first, last = share(b, plan.tasks)

        def steps(task: Value, given: list[Value]) -> list[Value]:
            def step(s: Value) -> None:
                for number in range(len(plan.cell.phases)):
                    self.task(number, task, s)

            b.loop(0, plan.steps, 1, step)
            return given

        b.repeat(first, last, 1, [], steps)

    def in_turns(self) -> None:
        """All tasks go through the steps together."""
        b, plan = self.b, self.plan
        part, phases = b.urem(b["part"], plan.tasks), len(plan.cell.phases)
        b.call("begin", self.turns, part)

        def step(s: Value) -> None:
            for number in range(phases):
                stage = b.add(b.mul(s, phases), number + 1)

                def one(k: Value, number: int = number, stage: Value = stage) -> None:
                    task = b.urem(b.add(part, k), plan.tasks)
                    own = b.call_value(I1, "take", self.turns, part, task, stage)

                    def work() -> None:
                        self.task(number, task, s)
                        b.call("finish", self.turns, task, stage)

                    b.when(own, work)

                b.loop(0, plan.tasks, 1, one)
                b.call("wait", self.turns, stage)

        b.loop(0, plan.steps, 1, step)

    # -- a task: some rows and some units of a step ---------------------------------------------------------

    def task(self, number: int, task: Value, s: Value) -> None:
        """One phase of one step, by way of a function, since there are several places that do it."""
        name = f"phase{number}"
        if name not in self.functions:
            self.functions[name] = ""
            self.functions[name] = self.phase(name, self.plan.cell.phases[number])
        addresses = [self.b["src"], self.b["dst"], *(getattr(self, each) for each in OPERANDS[:-1])]
        self.b.call(name, *addresses, task, s)

    def phase(self, name: str, phase: Phase) -> str:
        plan, schedule, lanes = self.plan, self.plan.schedule, self.lanes
        arguments = dict.fromkeys(("given", "results", *OPERANDS[:-1]), PTR) | {"task": I64, "s": I64}
        f = Function(name, arguments, plan.machine, "internal", "noinline")
        direction, part, each = digits(f, f["task"], (len(plan.backward), schedule.parts, schedule.shares))
        s = f["s"]
        t = self.time(f, direction)
        odd = f.and_(s, 1)
        turned = f.icmp("ne", odd, 0)
        state = plan.rows * plan.pitch
        hidden = f.gep(f["hidden"], direction, 2 * state)
        at = {
            "old": f.gep(hidden, odd, state),
            "new": f.gep(hidden, f.sub(1, odd), state),
            "memory": f.gep(f["memory"], direction, plan.rows * plan.between),
            "between": f.gep(f["between"], direction, plan.rows * plan.between),
            "given": self.placed(f, f["given"], plan.given, t, direction),
            "results": self.placed(f, f["results"], plan.results, t, direction),
            "bias": f.gep(f.gep(f["bias"], plan.bias[0]), direction, plan.bias[1]),
            "peephole": f.gep(f.gep(f["peephole"], plan.peephole[0]), direction, plan.peephole[1]),
        }
        source = "projection" if phase.projects else "weights"
        start, step = plan.projection if phase.projects else plan.weights
        weights = f.gep(f.gep(f[source], start), direction, step)
        depth = plan.units if phase.projects else plan.outputs
        gates = 1 if phase.projects else plan.cell.gates
        width = plan.outputs if phase.projects else plan.units
        block = depth * gates * lanes * WORD  # bytes of the weights of a block
        at["src"] = at["between" if phase.source == "between" else "old"]
        pitches = {
            **dict.fromkeys(("memory", "between"), plan.between),
            **dict.fromkeys(("old", "new"), plan.pitch),
            "src": plan.between if phase.source == "between" else plan.pitch,
            "given": plan.given.row,
            "results": plan.results.row,
        }
        blocks = ceil(width / lanes)
        first, last = (self.cut(f, blocks, f.add(each, k), schedule.shares) for k in (0, 1))
        row_first, row_last = (self.cut(f, plan.tiles, f.add(part, k), schedule.parts) for k in (0, 1))
        whole = width // lanes

        def call(rows: int, count: int, valid: int, places: dict[str, Value], u: Value) -> None:
            moved = {
                key: place if key == "src" else f.gep(place, u, lanes * WORD) for key, place in places.items()
            }
            moved["weights"] = f.gep(weights, u, block)
            tile = self.tile(phase, rows, count, valid, depth, block)
            f.call(tile, *(moved[key] for key in POINTERS))

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
        some = f.smax(f.sub(full, first), 0)
        middle = f.add(first, f.mul(f.udiv(some, schedule.blocks), schedule.blocks))
        if whole >= schedule.blocks:
            groups(first, middle, schedule.blocks)
        if schedule.blocks > 1 and whole:
            groups(middle, full, 1)
        if width % lanes:
            f.when(f.icmp("eq", last, blocks), lambda: over_rows(constant(I64, whole), 1, width % lanes))
        return f.text()

    @staticmethod
    def cut(f: Function, total: int, number: Value, count: int) -> Value:
        """Where a share begins."""
        return f.mul(number, total) if count == 1 else f.udiv(f.mul(number, total), count)

    def time(self, f: Function, direction: Value) -> Value:
        """The element of the sequence that a step is for."""
        plan, s = self.plan, f["s"]
        turned = f.sub(plan.steps - 1, s)
        if len(set(plan.backward)) == 1:
            return turned if plan.backward[0] else s
        return f.select(f.icmp("eq", direction, int(plan.backward[1])), turned, s)

    @staticmethod
    def placed(f: Function, pointer: Value, places: Places, t: Value, direction: Value) -> Value:
        at = f.gep(f.gep(pointer, places.start), t, places.step)
        return f.gep(at, direction, places.direction)

    # -- tiles ----------------------------------------------------------------------------------------------

    def tile(self, phase: Phase, rows: int, count: int, valid: int, depth: int, block: int) -> str:
        """The name of a tile's function, which is written when it is first asked for."""
        name = f"tile{phase.gates[0]}{'p' * phase.projects}_{rows}x{count}_{valid}"
        if name not in self.functions:
            self.functions[name] = ""
            f = Function(name, dict.fromkeys(POINTERS, PTR), self.plan.machine, "internal", "noinline")
            _Tile(self.plan, f, phase, rows, count, valid).write(depth, block)
            self.functions[name] = f.text()
        return name


class _Tile:
    """Writes one tile."""

    def __init__(
        self, plan: Recurrence, f: Function, phase: Phase, rows: int, count: int, valid: int
    ) -> None:
        self.plan, self.f, self.phase = plan, f, phase
        self.rows, self.count, self.valid = rows, count, valid
        self.type = vector(plan.lanes, FLOAT)
        self.width = self.type.bytes
        self.ahead = AHEAD if rows > 1 and not plan.stays else 0

    def write(self, depth: int, block: int) -> None:
        plan, f, phase = self.plan, self.f, self.phase
        gates = 1 if phase.projects else plan.cell.gates
        pitch = plan.between if phase.source == "between" else plan.pitch
        places = [(u, g) for u in range(self.count) for g in phase.gates]
        if not phase.projects:
            for r in range(self.rows):
                for u, g in places:
                    f.prefetch(self.given_at(r, u, g))
        starts = [self.start(u, g) for _ in range(self.rows) for u, g in places]
        sets = max(1, min(UNROLL, ACCUMULATORS // len(starts)))
        zero = constant(self.type, 0)
        sums = starts + [zero] * (len(starts) * (sets - 1))

        def turn(unroll: int, x: Value, w: Value, sums: list[Value]) -> list[Value]:
            for k in range(unroll):
                vectors = [
                    f.load(self.type, f.gep(w, u * block + (k * gates + g) * self.width)) for u, g in places
                ]
                for u, g in places if self.ahead else ():
                    f.prefetch(f.gep(w, u * block + (k * gates + g) * self.width + self.ahead))
                first = k % sets * len(starts)
                for r in range(self.rows):
                    one = f.splat(f.load(FLOAT, f.gep(x, r * pitch + k * WORD)), plan.lanes)
                    for v, y in enumerate(vectors):
                        number = first + r * len(places) + v
                        sums[number] = f.fmuladd(one, y, sums[number])
            return [f.gep(x, unroll * WORD), f.gep(w, unroll * gates * self.width), *sums]

        def body(unroll: int) -> Callable[[Value, list[Value]], list[Value]]:
            return lambda _, given: turn(unroll, given[0], given[1], given[2:])

        carried = [f["src"], f["weights"], *sums]
        if depth >= UNROLL:
            carried = f.repeat(0, depth // UNROLL, 1, carried, body(UNROLL), True)
        if depth % UNROLL:
            carried = turn(depth % UNROLL, carried[0], carried[1], carried[2:])
        sums = carried[2:]
        for k in range(1, sets):
            for number in range(len(starts)):
                sums[number] = f.fadd(sums[number], sums[k * len(starts) + number])
        for r in range(self.rows):
            for u in range(self.count):
                at = r * len(places) + u * len(phase.gates)
                own = sums[at : at + len(phase.gates)]
                self.finish(r, u, [self.whole(r, u, g, x) for g, x in zip(phase.gates, own, strict=True)])

    # -- the cell -------------------------------------------------------------------------------------------

    def start(self, u: int, g: int) -> Value:
        """What a sum begins with: the state's own bias, which a reset gate multiplies, too."""
        cell = self.plan.cell
        if cell.kind == "lbr_gru" and g == 2:
            return self.f.load(self.type, self.f.gep(self.f["bias"], cell.gates * self.bias + u * self.width))
        return constant(self.type, 0)

    def whole(self, r: int, u: int, g: int, x: Value) -> Value:
        """A sum together with what the data gives."""
        if self.phase.projects or (self.plan.cell.kind == "lbr_gru" and g == 2):
            return x
        return self.f.fadd(x, self.given(r, u, g))

    @property
    def bias(self) -> int:
        """Bytes from the biases, or the peepholes, of one gate to those of the next."""
        return ceil(self.plan.units / self.plan.lanes) * self.width

    def given_at(self, r: int, u: int, g: int) -> Value:
        return self.f.gep(self.f["given"], r * self.plan.given.row + g * self.plan.gate + u * self.width)

    def given(self, r: int, u: int, g: int) -> Value:
        """What the data gives to a gate."""
        return self.f.load(self.type, self.given_at(r, u, g))

    def at(self, name: str, r: int, u: int) -> Value:
        """The address of a row's units."""
        pitch = {
            "results": self.plan.results.row,
            "memory": self.plan.between,
            "between": self.plan.between,
        }.get(name, self.plan.pitch)
        return self.f.gep(self.f[name], r * pitch + u * self.width)

    def finish(self, r: int, u: int, sums: list[Value]) -> None:
        """From the sums of a unit's gates to what is stored."""
        f, cell = self.f, self.plan.cell
        apply = partial(cell.apply, f)
        if self.phase.projects:
            self.state(r, u, sums[0])
        elif cell.kind == "rnn":
            self.state(r, u, apply(0, sums[0]))
        elif cell.kind == "lstm":
            self.lstm(r, u, sums)
        elif cell.kind == "gru" and self.phase.source == "hidden":
            update, reset = (apply(0, x) for x in sums)
            f.store(update, self.given_at(r, u, 0))
            old = f.load(self.type, self.at("old", r, u))
            f.store(f.fmul(reset, old), self.at("between", r, u))
        elif cell.kind == "gru":
            self.mixed(r, u, self.given(r, u, 0), apply(1, sums[0]))
        else:
            update, reset = (apply(0, x) for x in sums[:2])
            self.mixed(r, u, update, apply(1, f.fmuladd(reset, sums[2], self.given(r, u, 2))))

    def mixed(self, r: int, u: int, update: Value, new: Value) -> None:
        """``update * h + (1 - update) * new``."""
        f = self.f
        old = f.load(self.type, self.at("old", r, u))
        self.state(r, u, f.fmuladd(update, f.fsub(old, new), new))

    def lstm(self, r: int, u: int, sums: list[Value]) -> None:
        f, cell = self.f, self.plan.cell
        i, forget, c, o = sums
        before = f.load(self.type, self.at("memory", r, u))

        def seen(x: Value, number: int, memory: Value) -> Value:
            if not cell.peephole:
                return x
            at = f.gep(f["peephole"], number * self.bias + u * self.width)
            return f.fmuladd(f.load(self.type, at), memory, x)

        i, forget = (cell.apply(f, 0, seen(x, k, before)) for k, x in enumerate((i, forget)))
        new = f.fmuladd(forget, before, f.fmul(i, cell.apply(f, 1, c)))
        f.store(new, self.at("memory", r, u))
        o = cell.apply(f, 0, seen(o, 2, new))
        h = f.fmul(o, cell.activations[2].emit(f, new))
        if cell.projection:
            f.store(h, self.at("between", r, u))
        else:
            self.state(r, u, h)

    def state(self, r: int, u: int, h: Value) -> None:
        """Store a state: for the next step, and as a result."""
        self.f.store(h, self.at("new", r, u))
        count = self.valid if u == self.count - 1 else self.plan.lanes
        store_pieces(self.f, h, self.at("results", r, u), pieces_of(0, count, 0))
