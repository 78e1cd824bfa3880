"""A recurrence as text: ``void recurrent(ptr given, ptr results, ptr ops, i64 part, i64 parts)``.

The operands are the addresses of :data:`OPERANDS`. States are kept in two places in turn: a step reads one
and writes the other, from where the next step reads it; so rows lie equally far apart in all steps, wherever
results and initial states lie. The memory of an LSTM is read and written in one place.

States are f32. Where they are multiplied by weights of bf16, each is stored twice: as it is, for what reads
it as a number, and rounded, for the next product (``factors``, which lie as the states do). What one phase
leaves for the next is multiplied alone, and so only stored rounded.

When a tile has the sums of all gates of a unit (:mod:`~.recurrent.writer`) in registers, the cell's formulas
follow at once, and nothing of a gate is stored; but in training, where the workspace keeps them
(:class:`relayout.ops.recurrent.Workspace`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import ceil
from typing import Any

from relayout.dtypes import dtype
from relayout.ir.builder import Function
from relayout.ir.conversions import from_f32, to_f32
from relayout.ir.types import FLOAT, Value, constant
from relayout.ir.vectors import pieces_of, store_pieces
from relayout.kernels.conv.tile import WORD
from relayout.kernels.recurrent.plan import Recurrence
from relayout.kernels.recurrent.writer import Tile, Where, Writer
from relayout.ops.recurrent import KEPT

__all__ = ["ENTRY", "OPERANDS", "module"]

ENTRY = "recurrent"
OPERANDS = (
    *("weights", "projection", "bias", "peephole", "hidden", "factors", "memory", "between"),
    *("attention", "workspace", "turns"),
)


def module(plan: Recurrence) -> str:
    """The text."""
    return _Writer(plan).text()


class _Writer(Writer):
    entry, operands = ENTRY, OPERANDS
    pointers = (
        *(
            "src",
            "weights",
            "given",
            "bias",
            "peephole",
            "old",
            "new",
            "next",
            "memory",
            "between",
            "results",
        ),
        *("states", "memories", "gates", "attention"),
    )

    def __init__(self, plan: Recurrence) -> None:
        super().__init__(plan)
        self.plan = plan

    def where(self, f: Function, number: int, mode: str, direction: Value) -> Where:
        plan, phase, lanes = self.plan, self.plan.phases[number], self.lanes
        s, turned = f["s"], self.turned(f, direction)
        odd = f.and_(s, 1)
        t = f.select(f.icmp("ne", turned, 0), f.sub(plan.steps - 1, s), s)
        state = plan.rows * plan.pitch
        hidden = f.gep(f["hidden"], direction, 2 * state)
        at = {
            "old": f.gep(hidden, odd, state),
            "new": f.gep(hidden, f.sub(1, odd), state),
            "memory": f.gep(f["memory"], direction, plan.rows * plan.between),
            "between": f.gep(f["between"], direction, plan.rows * plan.between),
            "given": self.placed(f, f["src"], plan.given, t, direction),
            "results": self.placed(f, f["dst"], plan.results, t, direction),
            "bias": f.gep(f.gep(f["bias"], plan.bias[0]), direction, plan.bias[1]),
            "peephole": f.gep(f.gep(f["peephole"], plan.peephole[0]), direction, plan.peephole[1]),
        }
        pitches = {
            **dict.fromkeys(("memory", "between"), plan.between),
            **dict.fromkeys(("old", "new", "next"), plan.pitch),
            "src": plan.source(phase),
            "given": plan.given.row,
            "results": plan.results.row,
        }
        if plan.cell.attentive:
            at["attention"] = f.gep(f["attention"], t, plan.rows * WORD)
            pitches["attention"] = WORD
        if plan.kept is not None:
            after = f.sub(f.add(t, 1), turned)
            kept = f.gep(f.gep(f["workspace"], plan.kept.start), direction, plan.kept.direction)
            at |= {name: f.gep(f.gep(kept, plan.kept.at(name)), t if name == "gates" else after,
                               plan.rows * pitch) for name, pitch in plan.kept.pitches.items()}  # fmt: skip
            pitches |= plan.kept.pitches
        source = "projection" if phase.projects else "weights"
        start, step = plan.projection if phase.projects else plan.weights
        weights = f.gep(f.gep(f[source], start), direction, step)
        depth = plan.units if phase.projects else plan.outputs
        gates = 1 if phase.projects else plan.cell.gates
        width = plan.outputs if phase.projects else plan.units
        jumps, multiplied = {"attention": 0}, at["old"]
        if plan.rounded:
            factors = f.gep(f["factors"], direction, 2 * state)
            multiplied = f.gep(factors, odd, state)
            at["next"] = f.gep(factors, f.sub(1, odd), state)
            jumps |= dict.fromkeys(("next", "between"), lanes * plan.factors.element)
        at["src"] = at["between"] if phase.source == "between" else multiplied
        block = ceil(depth / plan.factors.depth) * gates * lanes * WORD
        return Where(at, pitches, weights, depth, block, width, jumps)

    def written(self, f: Function, number: int, mode: str, size: tuple[int, int, int], where: Where) -> None:
        phase = self.plan.phases[number]
        tile = _Tile(self.plan, f, phase, size)
        gates = 1 if phase.projects else self.plan.cell.gates
        tile.write(where, gates, self.plan.source(phase))


class _Tile(Tile):
    def __init__(self, plan: Recurrence, *more: Any) -> None:
        super().__init__(plan, *more)
        self.plan = plan

    def lines(self) -> list[Callable[[], None]]:
        """What the data gives, and the places of what training keeps."""
        plan, phase, found = self.plan, self.phase, list[Callable[[], None]]()
        cell, written, gates = plan.cell, ["results"] * (phase == plan.phases[-1]), phase.gates
        if plan.kept is not None:
            written += ["states"] * len(written) + ["memories"] * (cell.has_memory and not phase.projects)
        if cell.linear:
            gates = (*gates, 3)
        for r, u in product(range(self.rows), range(self.count)):
            if not phase.projects:
                found += [self.asked(False, self.given_at, r, u, g) for g in phase.gates]
            found += [self.asked(True, self.at, name, r, u) for name in written]
            if plan.kept is not None and KEPT[cell.kind] and not phase.projects:
                found += [self.asked(True, self.at, "gates", r, u, g * plan.units * WORD) for g in gates]
        return found

    # -- the cell -------------------------------------------------------------------------------------------

    def start(self, r: int, u: int, g: int) -> Value:
        """What a sum begins with: the state's own bias, which a reset gate multiplies, too."""
        cell = self.plan.cell
        if cell.linear and g == 2:
            return self.f.load(self.type, self.f.gep(self.f["bias"], cell.gates * self.bias + u * self.width))
        return constant(self.type, 0)

    def whole(self, r: int, u: int, g: int, x: Value) -> Value:
        """A sum together with what the data gives."""
        if self.phase.projects or (self.plan.cell.linear and g == 2):
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

    def at(self, name: str, r: int, u: int, offset: int = 0) -> Value:
        """The address of a row's units, and so many bytes behind it."""
        pitch = {
            "results": self.plan.results.row,
            "memory": self.plan.between,
            "between": self.plan.between,
            **(self.plan.kept.pitches if self.plan.kept is not None else {}),
        }.get(name, self.plan.pitch)
        return self.f.gep(self.f[name], r * pitch + u * self.width + offset)

    def finish(self, r: int, u: int, sums: list[Value]) -> None:
        """From the sums of a unit's gates to what is stored."""
        f, cell = self.f, self.plan.cell
        sums = [self.whole(r, u, g, x) for g, x in zip(self.phase.gates, sums, strict=True)]
        apply = partial(cell.apply, f)
        if self.phase.projects:
            self.state(r, u, sums[0])
        elif cell.kind == "rnn":
            self.state(r, u, apply(0, sums[0]))
        elif cell.kind == "lstm":
            self.lstm(r, u, sums)
        elif cell.resets and self.phase.source == "hidden":
            update, reset = (apply(0, x) for x in sums)
            self.keep(r, u, update, reset)
            f.store(self.passed(r, update), self.given_at(r, u, 0))
            old = f.load(self.type, self.at("old", r, u))
            self.multiplied("between", f.fmul(reset, old), r, u)
        elif cell.resets:
            new = apply(1, sums[0])
            self.keep(r, u, new, first=2)
            self.mixed(r, u, self.given(r, u, 0), new)
        else:
            update, reset = (apply(0, x) for x in sums[:2])
            new = apply(1, f.fmuladd(reset, sums[2], self.given(r, u, 2)))
            self.keep(r, u, update, reset, new, sums[2])
            self.mixed(r, u, self.passed(r, update), new)

    def passed(self, r: int, update: Value) -> Value:
        """An update gate times what the attention of the row leaves of it."""
        f = self.f
        if not self.plan.cell.attentive:
            return update
        attention = f.splat(f.load(FLOAT, f.gep(f["attention"], r * WORD)), self.plan.lanes)
        return f.fmul(update, f.fsub(1.0, attention))

    def keep(self, r: int, u: int, *values: Value, first: int = 0) -> None:
        """Store gates, from one of them on, in training."""
        for k, x in enumerate(values if self.plan.kept is not None else ()):
            self.stored("gates", x, r, u, (first + k) * self.plan.units * WORD)

    def stored(self, name: str, x: Value, r: int, u: int, offset: int = 0) -> None:
        """Store the units that there are, and nothing behind them."""
        count = self.valid if u == self.count - 1 else self.plan.lanes
        store_pieces(self.f, x, self.at(name, r, u, offset), pieces_of(0, count, 0))

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
        c = cell.apply(f, 1, c)
        new = f.fmuladd(forget, before, f.fmul(i, c))
        f.store(new, self.at("memory", r, u))
        o = cell.apply(f, 0, seen(o, 2, new))
        self.keep(r, u, i, forget, c, o)
        if self.plan.kept is not None:
            self.stored("memories", new, r, u)
        h = f.fmul(o, cell.activations[2].emit(f, new))
        if cell.projection:
            self.multiplied("between", h, r, u)
        else:
            self.state(r, u, h)

    def state(self, r: int, u: int, h: Value) -> None:
        """Store a state: for the next step, and as a result."""
        self.f.store(h, self.at("new", r, u))
        if self.plan.rounded:
            self.multiplied("next", h, r, u)
        self.stored("results", h, r, u)
        if self.plan.kept is not None:
            self.stored("states", h, r, u)

    def multiplied(self, name: str, x: Value, r: int, u: int) -> None:
        """Store what the next product multiplies, as it does so."""
        f, plan = self.f, self.plan
        size = self.width
        if plan.rounded:
            kind, how = dtype(plan.rounded), plan.factors
            x, size = from_f32(f, x, kind), plan.lanes * how.element
            if how.operand != plan.rounded:
                x = to_f32(f, x, kind)
        pitch = plan.pitch if name == "next" else plan.between
        f.store(x, f.gep(self.f[name], r * pitch + u * size))
