"""The backward pass through a recurrence as text: ``void gradient(ptr workspace, ptr planes, ptr ops, ...)``.

The loop over time runs the other way, and a step is what :mod:`relayout.ops.backward.recurrent` says::

    flow        the gradients of the sums that U is in, of the step behind; in two places in turn
      | product with U, turned round: a row for all gates of all units, a column for each unit of the state
    dh          and the gradient of the result is added, and what came past the product (``carry``)
      | the cell's derivatives, while dh is in registers
    flow        for the next step; planes: the same, for the products that make all other gradients

A gru needs a second product before ``dz1`` is known; a state that was projected needs one before anything is.
The first step has no product, since nothing is behind it, and begins with the gradient of the last state.
Where the gradient of the first state is asked for, one more product follows.

``planes`` has blocks of units, as the products with all steps read them: ``[gate][block][step, row][lane]``.
Gates are in their order; linear before reset has three for the products with data, and three for those with
states.
Behind these come the gradients of projected states, ``[block][step, row][lane]``.

``focus`` has what an attention's gradient is the sum of, for each layer and direction, each as a gate of
``planes``.

All lanes are written everywhere; those behind the last unit are zero, since all that they are made of is read
as zero.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from relayout.ir.builder import Function
from relayout.ir.types import FLOAT, I1, Value, constant
from relayout.ir.vectors import load_pieces, pieces_of
from relayout.kernels.conv.tile import WORD
from relayout.kernels.recurrent.cell import Phase
from relayout.kernels.recurrent.plan import Kept, Places, Steps
from relayout.kernels.recurrent.writer import Tile, Where, Writer
from relayout.ops.slopes import emit_slope
from relayout.records import dataclass

__all__ = ["ENTRY", "OPERANDS", "Gradient", "module"]

ENTRY = "gradient"
OPERANDS = (
    *("weights", "projection", "peephole", "attention", "results", "focus"),
    *("flow", "carry", "begin", "between", "made", "turns"),
)
FIRST, MIDDLE, LAST = "first", "", "last"


@dataclass(frozen=True)
class Gradient(Steps):
    """The backward pass through one layer, in all directions.

    Attributes
    ----------
    kept : Kept
        What the forward pass has kept.
    results : Places or None
        The gradients of the states of all steps, f32; None: they are zero.
    pitch, between : int
        Bytes from row to row of ``flow``, and of all else that has a vector for each unit.
    weights, projection, peephole, focus : tuple of (int, int)
        Bytes in front of those of this layer, and from one direction to the next.
    initial : bool
        Whether the gradient of the initial state is asked for.
    """

    kept: Kept
    results: Places | None
    pitch: int
    between: int
    weights: tuple[int, int]
    projection: tuple[int, int]
    peephole: tuple[int, int]
    focus: tuple[int, int] | None
    initial: bool

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Those of a step."""
        first = Phase((0,))
        return (first, Phase((0,), "between")) if self.cell.resets or self.cell.projection else (first,)

    @property
    def rounds(self) -> int:
        """How often they are gone through."""
        return self.steps + self.initial

    @property
    def planes(self) -> int:
        """Gates in ``planes``."""
        return 6 if self.cell.linear else self.cell.gates

    @property
    def blocks(self) -> int:
        """Blocks of units."""
        return ceil(self.units / self.lanes)

    @property
    def vector(self) -> int:
        """Bytes of one."""
        return self.lanes * WORD

    @property
    def gate(self) -> int:
        """Bytes of the units of a gate."""
        return self.blocks * self.vector

    @property
    def block(self) -> int:
        """Bytes of a block of ``planes``."""
        return self.steps * self.rows * self.vector

    @property
    def direction(self) -> int:
        """Bytes of the planes of a direction."""
        projected = ceil(self.outputs / self.lanes) if self.cell.projection else 0
        return (self.planes * self.blocks + projected) * self.block


def module(plan: Gradient) -> str:
    """The text."""
    return _Writer(plan).text()


class _Writer(Writer):
    entry, operands = ENTRY, OPERANDS
    pointers = (
        *("src", "weights", "gates", "before", "after", "memory", "memory_after", "results", "peephole"),
        *("new", "carry", "begin", "between", "planes", "projected", "made"),
        *("attention", "focus"),
    )

    def __init__(self, plan: Gradient) -> None:
        super().__init__(plan)
        self.plan = plan

    def modes(self, number: int, s: Value) -> list[tuple[str, Value]]:
        b, plan = self.b, self.plan
        if number:
            within = b.icmp("slt", s, plan.steps) if plan.initial else constant(I1, 1)
            return [(MIDDLE, within)]
        found = [(FIRST, b.icmp("eq", s, 0))]
        if plan.steps > 1:
            middle = b.icmp("ne", s, 0)
            found += [(MIDDLE, b.and_(middle, b.icmp("slt", s, plan.steps)) if plan.initial else middle)]
        return [*found, (LAST, b.icmp("eq", s, plan.steps))] if plan.initial else found

    def where(self, f: Function, number: int, mode: str, direction: Value) -> Where:
        plan, cell, kept = self.plan, self.plan.cell, self.plan.kept
        s, turned = f["s"], self.turned(f, direction)
        odd, state = f.and_(s, 1), plan.rows * plan.pitch
        flow = f.gep(f["flow"], direction, 2 * state)
        old, new = f.gep(flow, odd, state), f.gep(flow, f.sub(1, odd), state)
        rows = plan.rows * plan.between
        at = {name: f.gep(f[name], direction, rows) for name in ("carry", "begin", "between")} | {"new": new}
        pitches = dict.fromkeys(("carry", "begin", "between"), plan.between) | {"new": plan.pitch}
        jumps: dict[str, int] = {}
        if mode != LAST:
            t = f.select(f.icmp("ne", turned, 0), s, f.sub(plan.steps - 1, s))
            before = f.add(t, turned)
            after = f.sub(f.add(t, 1), turned)
            own = f.gep(f.gep(f["src"], kept.start), direction, kept.direction)
            states, memories, gates = (f.gep(own, kept.at(name)) for name in kept.pitches)
            state_row, memory_row, gates_row = kept.row
            at["before"] = f.gep(states, before, plan.rows * state_row)
            at["after"] = f.gep(states, after, plan.rows * state_row)
            at["gates"] = f.gep(gates, t, plan.rows * gates_row)
            pitches |= {"before": state_row, "after": state_row, "gates": gates_row}
            if cell.has_memory:
                at["memory"] = f.gep(memories, before, plan.rows * memory_row)
                at["memory_after"] = f.gep(memories, after, plan.rows * memory_row)
                pitches |= {"memory": memory_row, "memory_after": memory_row}
            if cell.peephole:
                at["peephole"] = f.gep(f.gep(f["peephole"], plan.peephole[0]), direction, plan.peephole[1])
            if plan.results is not None and not number:
                at["results"] = self.placed(f, f["results"], plan.results, t, direction)
                pitches["results"] = plan.results.row
            planes = f.gep(f["dst"], direction, plan.direction)
            here = f.mul(t, plan.rows * plan.vector)
            at["planes"] = f.gep(planes, here)
            at["projected"] = f.gep(f.gep(planes, plan.planes * plan.blocks * plan.block), here)
            if cell.attentive:
                at["attention"] = f.gep(f["attention"], t, plan.rows * WORD)
                pitches["attention"], jumps = WORD, {"attention": 0}
            if plan.focus is not None:
                at["focus"] = f.gep(f.gep(f.gep(f["focus"], plan.focus[0]), direction, plan.focus[1]), here)
                pitches["focus"], jumps["focus"] = plan.vector, plan.block
            made = f.gep(f["made"], direction, plan.steps * plan.rows * plan.gate)
            at["made"] = f.gep(made, t, plan.rows * plan.gate)
            pitches |= {"planes": plan.vector, "projected": plan.vector, "made": plan.gate}
            jumps |= {"planes": plan.block, "projected": plan.block}
        projects = cell.projection and number == 1
        start, step = plan.projection if projects else plan.weights
        weights = f.gep(f.gep(f["projection" if projects else "weights"], start), direction, step)
        depth, block, width = (
            plan.gate // WORD * cell.gates,
            plan.gate * cell.gates * plan.lanes,
            plan.outputs,
        )
        at["src"], pitches["src"] = old, plan.pitch
        if projects:
            depth, width = ceil(plan.outputs / plan.lanes) * plan.lanes, plan.units
            block, at["src"], pitches["src"] = depth * plan.vector, at["between"], plan.between
        elif number:  # of a gru: the product with the gradient of its last gate
            depth = plan.gate // WORD
            weights, at["src"] = f.gep(weights, 2 * depth * plan.vector), f.gep(new, 2 * plan.gate)
        elif cell.resets:
            depth = 2 * plan.gate // WORD
        return Where(at, pitches, weights, 0 if mode == FIRST else depth, block, width, jumps)

    def written(self, f: Function, number: int, mode: str, size: tuple[int, int, int], where: Where) -> None:
        tile = _Tile(self.plan, f, self.plan.phases[number], size)
        tile.number, tile.mode, tile.where = number, mode, where
        tile.write(where, 1, where.pitches["src"])


class _Tile(Tile):
    number: int
    mode: str
    where: Where

    def __init__(self, plan: Gradient, *more: Any) -> None:
        super().__init__(plan, *more)
        self.plan = plan

    # -- memory ---------------------------------------------------------------------------------------------

    def at(self, name: str, r: int, u: int, offset: int = 0) -> Value:
        jump = self.where.jumps.get(name, self.width)
        return self.f.gep(self.f[name], r * self.where.pitches.get(name, 0) + u * jump + offset)

    def load(self, name: str, r: int, u: int, offset: int = 0) -> Value:
        """All lanes."""
        return self.f.load(self.type, self.at(name, r, u, offset))

    def units(self, name: str, r: int, u: int, offset: int = 0) -> Value:
        """The units that there are; zero in other lanes."""
        count = self.valid if u == self.count - 1 else self.plan.lanes
        return load_pieces(self.f, self.type, self.at(name, r, u, offset), pieces_of(0, count, 0))

    def store(self, x: Value, name: str, r: int, u: int, offset: int = 0) -> None:
        self.f.store(x, self.at(name, r, u, offset))

    def gates(self, r: int, u: int, *which: int) -> list[Value]:
        """What the forward pass has kept of gates."""
        return [self.units("gates", r, u, g * self.plan.units * WORD) for g in which]

    def give(self, r: int, u: int, gate: int, x: Value, data: bool = True, state: bool = True) -> None:
        """Store the gradient of a gate's sum: of the one with data, the one with the state, or both."""
        plan = self.plan
        if state:
            self.store(x, "new", r, u, gate * plan.gate)
        both = plan.cell.linear
        planes = [gate] * (data or not both) + [3 + gate] * (state and both)
        for plane in planes:
            self.store(x, "planes", r, u, plane * plan.blocks * plan.block)

    def slope(self, which: int, y: Value, *factors: Value) -> Value:
        """Factors times the derivative of an activation whose result is y."""
        f, x = self.f, factors[0]
        for other in factors[1:]:
            x = f.fmul(x, other)
        return emit_slope(self.plan.cell.activations[which], f, y, x)

    # -- the cells ------------------------------------------------------------------------------------------

    def start(self, r: int, u: int, g: int) -> Value:
        if self.mode == FIRST:
            return self.units("begin", r, u)
        return constant(self.type, 0)

    def finish(self, r: int, u: int, sums: list[Value]) -> None:
        f, plan, cell, [x] = self.f, self.plan, self.plan.cell, sums
        if self.number:
            (self.lstm if cell.projection else self.reset)(r, u, x)
            return
        if self.mode != FIRST and cell.mixes:
            x = f.fadd(x, self.load("carry", r, u))
        if self.mode == LAST:
            self.store(x, "begin", r, u)
            return
        if plan.results is not None:
            x = f.fadd(x, self.units("results", r, u))
        if cell.projection:
            self.store(x, "between", r, u)
            self.store(x, "projected", r, u)
        elif cell.kind == "rnn":
            self.give(r, u, 0, self.slope(0, self.units("after", r, u), x))
        elif cell.kind == "lstm":
            self.lstm(r, u, x)
        else:
            self.mixed(r, u, x)

    def lstm(self, r: int, u: int, x: Value) -> None:
        f, cell = self.f, self.plan.cell
        i, forget, a, o = self.gates(r, u, 0, 1, 2, 3)
        e = cell.activations[2].emit(f, self.units("memory_after", r, u))
        if cell.projection:
            self.store(f.fmul(o, e), "made", r, u)
        last = self.slope(0, o, e, x)
        # The gradient of the last memory is without zeros behind it; the second phase knows no first step.
        c = f.fadd(self.units("carry", r, u), self.slope(2, e, o, x))
        memory = self.units("memory", r, u)

        def seen(x: Value, number: int, y: Value) -> Value:
            if not cell.peephole:
                return x
            return f.fmuladd(self.load("peephole", 0, u, number * self.plan.gate), y, x)

        c = seen(c, 2, last)
        first, second = self.slope(0, i, a, c), self.slope(0, forget, memory, c)
        third = self.slope(1, a, i, c)
        for gate, y in enumerate((first, second, third, last)):
            self.give(r, u, gate, y)
        self.store(seen(seen(f.fmul(forget, c), 0, first), 1, second), "carry", r, u)

    def mixed(self, r: int, u: int, x: Value) -> None:
        """What GRUs begin with."""
        f, plan, cell = self.f, self.plan, self.plan.cell
        update, new = self.gates(r, u, 0, 2)
        before = self.units("before", r, u)
        factors, mixed = [f.fsub(before, new), x], update
        if plan.focus is not None:
            self.store(f.fmul(f.fmul(f.fsub(new, before), x), update), "focus", r, u)
        if cell.attentive:
            attention = f.load(FLOAT, f.gep(f["attention"], r * WORD))
            passed = f.fsub(1.0, f.splat(attention, plan.lanes))
            factors, mixed = [*factors, passed], f.fmul(update, passed)
        self.give(r, u, 0, self.slope(0, update, *factors))
        last = self.slope(1, new, f.fsub(1.0, mixed), x)
        self.store(f.fmul(mixed, x), "carry", r, u)
        if cell.resets:
            self.give(r, u, 2, last)
            return
        reset, inner = self.gates(r, u, 1, 3)
        self.give(r, u, 1, self.slope(0, reset, inner, last))
        self.give(r, u, 2, last, state=False)
        self.give(r, u, 2, f.fmul(reset, last), data=False)

    def reset(self, r: int, u: int, x: Value) -> None:
        """The rest of a gru: x is the gradient of ``r * h``."""
        f = self.f
        [reset], before = self.gates(r, u, 1), self.units("before", r, u)
        self.give(r, u, 1, self.slope(0, reset, before, x))
        self.store(f.fmul(reset, before), "made", r, u)
        self.store(f.fmuladd(reset, x, self.load("carry", r, u)), "carry", r, u)
