"""A loop nest around an expression: one kernel for all that is computed element by element.

Elementwise functions, binary operations, sums, batch normalisation, masks: each element of the destination is
computed from the elements of the operands at the same index. What differs is the
:class:`~relayout.ops.expressions.Expression`; the loops (:mod:`relayout.kernels.elementwise.runs`), data
types, broadcasting, what is left over at the end of rows, zeros in the padding and threads are the same for
all, and are written here. Vectors of an operand hold what the expression says
(:mod:`relayout.ir.registers`).

What comes of it for 1000 f32 in a row, in vectors of 8 (AVX2)::

    loop of 31 turns:      load 4 vectors of a, 4 of b;  4 times the body;  store 4 vectors
    8 elements left:       one of each

Loads of a turn come before its stores, so that an operand may be the destination itself. For the same reason
nothing is computed twice: the last elements of a row are not overlapped by a whole vector, but loaded and
stored in pieces of powers of two. No byte outside of the operands is read.

A byte has 256 values. Where all other operands are the same for a whole run (batch normalisation of ``nchw``:
scale and shift of a channel), its results are computed once, and looked up from then on as those of functions
of a byte are (:mod:`~.bytes`).

With AVX2 a vector whose operands and results are all bf16 holds elements of even number first, then the
others (:class:`~relayout.ir.lanes.Lanes`): a word of two becomes two f32 by a shift and a mask.

A kernel that *streams* writes whole vectors of the first result around the caches. Its runs are there twice:
only a destination that begins on a line has whole lines, and lines of one that is an operand, too, are in the
caches already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import lcm, prod
from typing import NamedTuple

from relayout.dtypes import DType, dtype
from relayout.ir.builder import numbers_of, table
from relayout.ir.kernel import digits, inner, kernel, share
from relayout.ir.kinds import KINDS
from relayout.ir.lanes import Lanes
from relayout.ir.registers import loaded, stored
from relayout.ir.types import I8, I64, PTR, Type, Value, constant, integer, vector
from relayout.ir.vectors import join, load_pieces, pieces_of, store_pieces
from relayout.kernels.elementwise.bytes import TABLE, looked_up
from relayout.kernels.elementwise.runs import Run, Vectors
from relayout.ops.expressions import Expression
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "module", "vectors_of"]

ENTRY = "map"
BF16 = dtype("bf16")
CHEAP = 4, 8  # vectors of one turn, and of the longest pattern, where the expression is a few instructions
COSTLY = 2, 4  # the same for all others
STREAMED = 32  # bytes of the shortest vector that is written around the caches
STREAMS = 5  # operands of which so many vectors fit into registers
BYTES = "bytes"  # the name of a table of all of them
LONG = 1 << 10  # bytes of a run that is worth a table of its results


def vectors_of(machine: Machine, dst: DType, operands: Sequence[DType], cheap: bool) -> Vectors:
    """How runs are cut for a processor.

    A vector of the destination has as many elements as fill a register with the widest of all data types; at
    most four registers of f32. ``operands`` are those that move.
    """
    cheap = cheap and len(operands) <= STREAMS
    widest = max(kind.bits // 8 for kind in (dst, *operands))
    together, pattern = CHEAP if cheap else COSTLY
    registers = max(1, min(together, 4 // widest))
    return Vectors(machine.vector // 4 * registers, max(1, together // registers), pattern)


def module(
    runs: Sequence[Run],
    results: Sequence[DType],
    operands: Sequence[DType],
    expression: Expression,
    lanes: int,
    machine: Machine,
    stream: bool = False,
) -> str:
    """The text of a kernel: the function :data:`ENTRY` and those of each run, in vectors of so many lanes.

    Its operands are the addresses of the operands in their order, and then those of all results but the
    first, which lie as that one does. With ``stream`` it writes around the caches where it can.
    """
    texts, size, looks_up = [], results[0].bits // 8, False
    streamed = {k for k, run in enumerate(runs) if stream and _streams(run, lanes, size)}
    for k, run in enumerate(runs):
        for past in (False, True)[: 1 + (k in streamed)]:
            name = f"{'stream' if past else 'run'}{k}"
            made = _Function(name, run, results, operands, expression, machine, lanes, past)
            texts.append(made.text())
            looks_up = looks_up or made.byte is not None
    texts.append(_entry(runs, streamed, len(operands), len(results) - 1, machine))
    if looks_up:
        texts.append(table(BYTES, numbers_of(bytes(range(TABLE)))))
    return "\n".join(texts)


def _streams(run: Run, lanes: int, size: int) -> bool:
    """Whether vectors of a run begin on lines, or parts of them that they divide, if the destination does."""
    steps = [run.around.dst, *(loop.dst for loop in run.around.loops), run.unit * size]
    whole = lanes * size >= STREAMED and run.elements >= run.unit and not run.around.zero
    return whole and all(step % LINE == 0 for step in steps)


def _entry(runs: Sequence[Run], streamed: set[int], buffers: int, further: int, machine: Machine) -> str:
    """Every run's share of one part."""
    f = kernel(ENTRY, machine, calls=True)
    _, dst, ops, *_ = f.arguments
    read = [f.load(PTR, f.gep(ops, 8 * k), 8) for k in range(buffers)]
    pointers = [*(f.load(PTR, f.gep(ops, 8 * (buffers + k)), 8) for k in range(further)), *read]
    past = None
    if streamed:
        past = f.icmp("eq", f.and_(f.ptrtoint(dst), LINE - 1), 0)
        for pointer in read:
            past = f.and_(past, f.icmp("ne", f.ptrtoint(pointer), f.ptrtoint(dst)))
    for k, run in enumerate(runs):
        first, last = share(f, prod(run.counts))
        some = f.icmp("slt", first, last)
        call = partial(f.call, f"run{k}", dst, *pointers, first, last)
        if past is None or k not in streamed:
            f.when(some, call)
            continue
        f.when(f.and_(some, f.not_(past)), call)
        f.when(f.and_(some, past), partial(f.call, f"stream{k}", dst, *pointers, first, last))
    return f.text()


class _Slot(NamedTuple):
    """A vector of a run: its elements, counted from where the turn begins, and how many are not padding."""

    first: int
    size: int
    valid: int
    number: int
    """Which vector of the pattern it is."""


class _Function:
    """Writes one run."""

    def __init__(
        self,
        name: str,
        run: Run,
        results: Sequence[DType],
        operands: Sequence[DType],
        expression: Expression,
        machine: Machine,
        lanes: int,
        stream: bool,
    ) -> None:
        self.run, self.around, self.expression, self.lanes = run, run.around, expression, lanes
        self.stream = stream
        self.results, self.operands = results, operands
        self.sizes = [kind.bits // 8 for kind in results]
        names = [*(f"d{k}" for k in range(len(results))), *(f"o{k}" for k in range(len(operands)))]
        arguments = {**dict.fromkeys(names, PTR), "lo": I64, "hi": I64}
        self.b = inner(name, arguments, machine, attributes="")
        self._spread: dict[tuple[int, int], Value] = {}  # operands that are one element for the whole run
        self._pattern: dict[tuple[int, int], Value] = {}  # those that start anew with each row
        self.byte = self._only_byte()
        self.pairs = Lanes(self.b, BF16, BF16, pairs=True) if self._in_pairs() else None
        self._table: list[Value] = []  # what becomes of all bytes in this run

    def text(self) -> str:
        """The function: ``void run(ptr each result, ptr each operand, i64 from, i64 to)``."""
        b, around, count = self.b, self.around, len(self.results)
        *both, lo, hi = b.arguments
        pointers = both[count:]
        # Zeros need no operands, and have no steps for them.
        bases = [b.gep(pointer, start) for pointer, start in zip(pointers, around.starts[:-1], strict=False)]
        start = around.dst // self.sizes[0]
        targets = [b.gep(one, start * size) for one, size in zip(both, self.sizes, strict=False)]
        b.loop(lo, hi, 1, lambda task: self._task(task, targets, bases))
        return b.text()

    # -- loops ----------------------------------------------------------------------------------------------

    def _task(self, task: Value, targets: Sequence[Value], bases: Sequence[Value]) -> None:
        """One turn of everything that is shared: which turn of which loop it is, then the loops inside."""
        run = self.run
        indices = digits(self.b, task, run.counts)
        for k in range(run.shared):
            targets, bases = self._moved(k, indices[k], targets, bases)
        self._loops(run.shared, targets, bases, indices[-1] if run.chunk else None)

    def _loops(self, k: int, targets: Sequence[Value], bases: Sequence[Value], chunk: Value | None) -> None:
        if k == len(self.around.loops):
            self._rows(targets, bases, chunk)
            return

        def turn(i: Value) -> None:
            self._loops(k + 1, *self._moved(k, i, targets, bases), chunk)

        self.b.loop(0, self.around.loops[k].extent, 1, turn)

    def _moved(
        self, k: int, index: Value, targets: Sequence[Value], bases: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        """All addresses so many turns of a loop further."""
        b, loop = self.b, self.around.loops[k]
        return self._ahead(targets, index, loop.dst // self.sizes[0]), [
            b.gep(base, index, step) for base, step in zip(bases, loop.steps[:-1], strict=True)
        ]

    def _ahead(self, targets: Sequence[Value], index: Value, elements: int = 1) -> list[Value]:
        """The addresses of results so many times some elements further."""
        return [
            self.b.gep(one, index, elements * size) for one, size in zip(targets, self.sizes, strict=True)
        ]

    # -- a run ----------------------------------------------------------------------------------------------

    def _rows(self, targets: Sequence[Value], bases: Sequence[Value], chunk: Value | None) -> None:
        """Whole units in a loop, then what is left over."""
        b, run, unit = self.b, self.run, self.run.unit
        # Where rows repeat, vectors of a unit all know their padding; in a single row it comes last.
        computed = run.elements if run.turns > 1 or self.around.zero else run.valid
        whole = computed // unit * unit
        units = self._slots(0, unit) if run.turns > 1 else self._slots(0, unit, unit)
        rest = self._slots(whole, run.elements)
        self._hoist(bases, [*(units if whole else []), *rest])
        self._table = self._tabulated() if self.byte is not None else []

        def turn(i: Value) -> None:
            self._turn(self._ahead(targets, i), self._along(bases, i), units)

        def left() -> None:
            if rest:
                first = constant(I64, whole)
                moved = [slot._replace(first=slot.first - whole) for slot in rest]
                self._turn(self._ahead(targets, first), self._along(bases, first), moved)

        if chunk is None:
            if whole:
                b.loop(0, whole, unit, turn)
            left()
            return
        first = b.mul(chunk, run.chunk)
        end = b.smin(b.add(first, run.chunk), whole)
        b.when(b.icmp("slt", first, end), lambda: b.loop(first, end, unit, turn))
        b.when(b.icmp("eq", chunk, run.counts[-1] - 1), left)

    def _along(self, bases: Sequence[Value], index: Value) -> list[Value]:
        """The addresses of operands at an element of the run; those that start anew stay."""
        run = self.run
        return [
            self.b.gep(base, index, 0 if again else step)
            for base, step, again in zip(bases, run.steps, run.again, strict=True)
        ]

    def _slots(self, start: int, end: int, valid: int | None = None) -> list[_Slot]:
        """Vectors that cover elements of a run; ``valid`` is that of a single row, if not the run's."""
        run = self.run
        slots = []
        for first in range(start, end, self.lanes):
            count = min(self.lanes, end - first)
            if self.around.zero:
                good = 0
            elif run.turns > 1:
                good = sum(self._is_valid(first + lane) for lane in range(count))
            else:
                good = max(0, min(count, (run.valid if valid is None else valid) - first))
            slots.append(_Slot(first, count, good, first % lcm(run.total, self.lanes) // self.lanes))
        return slots

    def _is_valid(self, element: int) -> bool:
        return element % self.run.total < self.run.valid

    # -- vectors --------------------------------------------------------------------------------------------

    def _turn(self, targets: Sequence[Value], bases: Sequence[Value], slots: Sequence[_Slot]) -> None:
        """Load all, compute all, store all."""
        read = [self._operands(bases, slot) if slot.valid else [] for slot in slots]
        results = [self._computed(given, slot) for given, slot in zip(read, slots, strict=True)]
        for slot, several in zip(slots, results, strict=True):
            for k, (target, result, size) in enumerate(zip(targets, several, self.sizes, strict=True)):
                past = self.stream and k == 0 and slot.size == self.lanes
                align = min(LINE, slot.size * size) if past else 0
                pieces = pieces_of(0, slot.size, slot.first * size, size)
                store_pieces(self.b, result, target, pieces, align, nontemporal=past)

    def _in_pairs(self) -> bool:
        """Whether all that changes is bf16, of which AVX2 makes elements of even and of odd number with less.

        To widen 16 of them takes two instructions in place of four, to round them eight in place of ten, and
        none of these cross the halves of a register, which take twice as long.
        """
        run, moving = self.run, [k for k, step in enumerate(self.run.steps) if step]
        narrow = all(kind is BF16 for kind in (*self.results, *(self.operands[k] for k in moving)))
        real = all(kind == "f32" for kind in (*self.expression.kinds, *(self._kind(k) for k in moving)))
        plain = run.turns == 1 and not any(run.again) and not self.around.zero
        return self.b.machine.is_avx2 and narrow and real and plain and self.lanes % 16 == 0

    def _paired(self, slot: _Slot) -> Lanes | None:
        """What loads and rounds a vector, if it holds elements of even number first."""
        return self.pairs if slot.size == self.lanes == slot.valid else None

    def _only_byte(self) -> int | None:
        """The operand that is the only one to change in a long run, if it is a byte and so is the result."""
        run, moving = self.run, [k for k, step in enumerate(self.run.steps) if step]
        long = run.turns == 1 and run.valid >= LONG and not self.around.zero
        if not long or len(moving) > 1 or len(self.results) > 1 or not self.b.machine.permutes(8):
            return None
        narrow = all(kind.bits == 8 for kind in (*self.results, *(self.operands[k] for k in moving)))
        return moving[0] if moving and narrow and self._kind(moving[0]) == "f32" else None

    def _tabulated(self) -> list[Value]:
        """The results of all bytes, in registers."""
        b, found = self.b, []
        for first in range(0, TABLE, self.lanes):
            some = b.load(vector(self.lanes, I8), b.gep(Value(f"@{BYTES}", PTR), first), 1)
            given = [
                loaded(b, some, kind, self._kind(k)) if k == self.byte else self._spread[k, self.lanes]
                for k, kind in enumerate(self.operands)
            ]
            [value] = self.expression.emit(b, given)
            found.append(self._stored(value, self.results[0], self.expression.kinds[0]))
        whole = join(b, found)
        return [b.shuffle(whole, range(first, first + LINE)) for first in range(0, TABLE, LINE)]

    def _width(self, slot: _Slot) -> int:
        """Lanes of the vector that is computed with: a power of two."""
        return 1 << (slot.size - 1).bit_length()

    def _operands(self, bases: Sequence[Value], slot: _Slot) -> list[Value]:
        run, width, out = self.run, self._width(slot), []
        if self._table and self.byte is not None:
            count = slot.size if run.whole[self.byte] else slot.valid
            at = self.b.gep(bases[self.byte], slot.first)
            return [load_pieces(self.b, vector(width, I8), at, pieces_of(0, count, 0, 1))]
        for k, kind in enumerate(self.operands):
            if (k, width) in self._spread:
                out.append(self._spread[k, width])
            elif (k, slot.number) in self._pattern:
                out.append(self._narrowed(self._pattern[k, slot.number], width))
            else:
                count = slot.size if run.whole[k] else slot.valid
                at, pairs = self.b.gep(bases[k], slot.first * kind.bits // 8), self._paired(slot)
                out.append(pairs.load(at, width) if pairs else self._loaded(at, k, count, width))
        return out

    def _computed(self, given: list[Value], slot: _Slot) -> list[Value]:
        """The results as elements of their destinations, zeros in the padding."""
        b, width = self.b, self._width(slot)
        if not slot.valid:
            return [constant(vector(width, integer(kind.bits)), 0) for kind in self.results]
        values = [self._looked_up(given[0])] if self._table else self.expression.emit(b, given)
        if slot.valid < slot.size:
            valid = self._valid_lanes(slot)
            picks = [lane if lane in valid else width for lane in range(width)]
            values = [b.shuffle(value, picks, 0) for value in values]
        if self._table:
            return list(values)
        pairs = self._paired(slot)
        if pairs:
            return [pairs.rounded_in_pairs(value) for value in values]
        every = zip(values, self.results, self.expression.kinds, strict=True)
        return [self._stored(*one) for one in every]

    def _stored(self, value: Value, kind: DType, computed: str) -> Value:
        return stored(self.b, value, kind, computed, self.expression.near)

    def _looked_up(self, x: Value) -> Value:
        """The results of bytes, by the table."""
        b, width = self.b, x.type.count
        if width < LINE:
            x = b.shuffle(x, [k if k < width else -1 for k in range(LINE)])
        found = looked_up(b, self._table, x)
        return found if width == LINE else b.shuffle(found, range(width))

    def _valid_lanes(self, slot: _Slot) -> set[int]:
        if self.run.turns == 1:
            return set(range(slot.valid))
        return {lane for lane in range(slot.size) if self._is_valid(slot.first + lane)}

    # -- operands -------------------------------------------------------------------------------------------

    def _hoist(self, bases: Sequence[Value], slots: Sequence[_Slot]) -> None:
        """Load what does not change during a run: single elements, and short rows as a pattern of vectors."""
        run, b = self.run, self.b
        self._spread, self._pattern = {}, {}
        if self.around.zero:
            return
        widths = sorted({self._width(slot) for slot in slots})
        if run.total == 1:
            return
        for k in range(len(self.operands)):
            if not run.steps[k]:
                one = self._loaded(bases[k], k, 1, 1)
                for width in widths:
                    self._spread[k, width] = b.splat(one, width)
            elif run.again[k]:
                for place in sorted({slot.number for slot in slots}):
                    self._pattern[k, place] = self._row(bases[k], k, place)

    def _row(self, base: Value, k: int, number: int) -> Value:
        """A vector of a pattern: elements of a row that is repeated, zeros in its padding."""
        run, lanes = self.run, self.lanes
        first = number * lanes % run.total
        if run.total % lanes == 0:
            count = max(0, min(lanes, run.valid - first))
            at = self.b.gep(base, first * self.operands[k].bits // 8)
            return self._loaded(at, k, count, lanes) if count else constant(vector(lanes, self._lane(k)), 0)
        room = 1 << (run.valid - 1).bit_length()
        row = self._loaded(base, k, run.valid, room)
        places = [(first + lane) % run.total for lane in range(lanes)]
        return self.b.shuffle(row, [place if place < run.valid else room for place in places], 0)

    def _narrowed(self, value: Value, width: int) -> Value:
        """The first lanes of a vector."""
        return value if width == self.lanes else self.b.shuffle(value, range(width))

    def _loaded(self, pointer: Value, k: int, count: int, width: int) -> Value:
        """Neighbouring elements of an operand in registers; lanes behind them are zero."""
        kind = self.operands[k]
        whole = vector(width, integer(kind.bits))
        found = load_pieces(self.b, whole, pointer, pieces_of(0, count, 0, kind.bits // 8))
        return loaded(self.b, found, kind, self._kind(k))

    def _kind(self, k: int) -> str:
        return self.expression.operands[k]

    def _lane(self, k: int) -> Type:
        return KINDS[self._kind(k)]
