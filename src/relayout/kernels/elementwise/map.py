"""The reorder's loop nest with a body: one kernel for all that is computed element by element.

Elementwise functions, binary operations, sums, batch normalisation: each element of the destination is
computed from the elements of the operands at the same index. What differs is three lines of arithmetic, the
:class:`Body`; the loops (:mod:`relayout.kernels.elementwise.walk`), data types, broadcasting, what is left
over at the end of rows, zeros in the padding and threads are the same for all, and are written here.

A body gets vectors of f32 and returns one. Adding two operands of any formats and types is

>>> def add(w, machine, values, count):
...     return w.value(f"fadd <{count} x float> {values[0]}, {values[1]}")
>>> body = Body("add", add, keeps_zero=True, cheap=True)

What comes of it for 1000 f32 in a row, in vectors of 8 (AVX2)::

    loop of 31 turns:      load 4 vectors of a, 4 of b;  4 times the body;  store 4 vectors
    8 elements left:       one of each

Loads of a turn come before its stores, so that an operand may be the destination itself. For the same reason
nothing is computed twice: the last elements of a row are not overlapped by a whole vector, but loaded and
stored in pieces of powers of two. No byte is read that belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import NamedTuple

from relayout.dtypes import DType
from relayout.dtypes import dtype as as_dtype
from relayout.ir.conversions import converted
from relayout.ir.writer import Writer
from relayout.kernels.conv.tile import load_pieces, pieces_of, store_pieces
from relayout.kernels.elementwise.walk import Vectors, Walk
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "Body", "module", "vectors_of"]

ENTRY = "map"
F32 = as_dtype("f32")
CHEAP = 4, 8  # vectors of one turn, and of the longest pattern
COSTLY = 2, 4

Emit = Callable[[Writer, Machine, Sequence[str], int], str]
"""From the writer, the processor, vectors of f32 and how many elements they have to the vector of results."""


@dataclass(frozen=True)
class Body:
    """What is computed.

    Attributes
    ----------
    name : str
        All that shapes the code; bodies of one name are the same.
    emit : callable
        Writes it. The values are those of the operands, then the numbers, each in all lanes.
    keeps_zero : bool
        Whether zeros of all operands give +0.0, whatever the numbers are.
    cheap : bool
        Whether it is a few instructions, so that several vectors at a time are worth their code.
    """

    name: str
    emit: Emit
    keeps_zero: bool
    cheap: bool


def vectors_of(machine: Machine, dst: DType, operands: Sequence[DType], cheap: bool) -> Vectors:
    """How runs are cut for a processor.

    A vector of the destination has as many elements as fill a register with the widest of all data types; at
    most four registers of f32.
    """
    widest = max(kind.bits // 8 for kind in (dst, *operands))
    together, pattern = CHEAP if cheap else COSTLY
    registers = max(1, min(together, 4 // widest))
    return Vectors(machine.vector // 4 * registers, max(1, together // registers), pattern)


def module(
    walks: Sequence[Walk], dst: DType, operands: Sequence[DType], numbers: int, body: Body, machine: Machine
) -> str:
    """The text of a kernel: the function :data:`ENTRY` and one for each walk.

    Its operands are the addresses of the operands in their order, and then, if there are ``numbers``, that of
    so many f32.
    """
    vectors = vectors_of(machine, dst, operands, body.cheap)
    texts = [
        _Function(f"walk{k}", walk, dst, operands, numbers, body, machine, vectors.lanes).text()
        for k, walk in enumerate(walks)
    ]
    texts.append(_entry(walks, len(operands) + (numbers > 0)))
    return "\n".join([*texts])


def _entry(walks: Sequence[Walk], buffers: int) -> str:
    """Every walk's share of one part."""
    w = Writer()
    pointers = [w.value(f"load ptr, ptr {w.at('%ops', 8 * k)}, align 8") for k in range(buffers)]
    given = "".join(f", ptr {pointer}" for pointer in pointers)
    following = w.value("add i64 %part, 1")
    for k, walk in enumerate(walks):
        total = prod(walk.counts)
        shares = [w.value(f"mul i64 {part}, {total}") for part in ("%part", following)]
        lo, hi = (w.value(f"udiv i64 {share}, %parts") for share in shares)
        call = f"call void @walk{k}(ptr %dst{given}, i64 {lo}, i64 {hi})"
        w.when(w.value(f"icmp slt i64 {lo}, {hi}"), lambda call=call: w.line(call))  # type: ignore[misc]
    head = f"define void @{ENTRY}(ptr %src, ptr %dst, ptr %ops, i64 %part, i64 %parts)"
    return f"{head} {{\nentry:\n{w.text()}\n  ret void\n}}\n"


class _Slot(NamedTuple):
    """A vector of a run: its elements, counted from where the turn begins, and how many are not padding."""

    first: int
    size: int
    valid: int
    number: int
    """Which vector of the pattern it is."""


class _Function:
    """Writes one walk."""

    def __init__(
        self,
        name: str,
        walk: Walk,
        dst: DType,
        operands: Sequence[DType],
        numbers: int,
        body: Body,
        machine: Machine,
        lanes: int,
    ) -> None:
        self.name, self.walk, self.body, self.machine, self.lanes = name, walk, body, machine, lanes
        self.dst, self.operands, self.numbers = dst, operands, numbers
        self.w = Writer()
        self._given: list[str] = []  # the numbers, one f32 each
        self._splats: dict[tuple[int, int], str] = {}  # the same in all lanes of a vector, by width
        self._spread: dict[tuple[int, int], str] = {}  # operands that are one element for the whole run
        self._pattern: dict[tuple[int, int], str] = {}  # those that start anew with each row

    def text(self) -> str:
        """The function: ``void walk(ptr dst, ptr each operand, ptr numbers, i64 from, i64 to)``."""
        w, walk = self.w, self.walk
        for k in range(self.numbers):
            self._given.append(w.value(f"load float, ptr {w.at('%numbers', 4 * k)}, align 4"))
        # Zeros need no operands, and have no steps for them.
        names = [] if walk.zero else [f"%o{k}" for k in range(len(self.operands))]
        bases = [w.at(name, start) for name, start in zip(names, walk.starts, strict=True)]
        target = w.at("%dst", walk.dst)
        w.loop("%lo", "%hi", 1, lambda task: self._task(task, target, bases))
        given = "".join(f", ptr %o{k}" for k in range(len(self.operands)))
        given += ", ptr %numbers" if self.numbers else ""
        head = f"define internal void @{self.name}(ptr %dst{given}, i64 %lo, i64 %hi)"
        return f"{head} {{\nentry:\n{w.text()}\n  ret void\n}}\n"

    # -- loops ----------------------------------------------------------------------------------------------

    def _task(self, task: str, target: str, bases: Sequence[str]) -> None:
        """One turn of everything that is shared: which turn of which loop it is, then the loops inside."""
        w, walk = self.w, self.walk
        indices: list[str] = []
        left = task
        for count in reversed(walk.counts[1:]):
            indices.append(w.value(f"urem i64 {left}, {count}"))
            left = w.value(f"udiv i64 {left}, {count}")
        indices = [left, *reversed(indices)]
        for k in range(walk.shared):
            target, bases = self._moved(k, indices[k], target, bases)
        self._loops(walk.shared, target, bases, indices[-1] if walk.chunk else "")

    def _loops(self, k: int, target: str, bases: Sequence[str], chunk: str) -> None:
        if k == len(self.walk.loops):
            self._run(target, bases, chunk)
            return

        def turn(i: str) -> None:
            self._loops(k + 1, *self._moved(k, i, target, bases), chunk)

        self.w.loop(0, self.walk.loops[k].extent, 1, turn)

    def _moved(self, k: int, index: str, target: str, bases: Sequence[str]) -> tuple[str, list[str]]:
        """All addresses so many turns of a loop further."""
        loop = self.walk.loops[k]
        return self._at(target, index, loop.dst), [
            self._at(base, index, step) for base, step in zip(bases, loop.steps, strict=True)
        ]

    def _at(self, pointer: str, index: str, step: int) -> str:
        if index.isdigit():
            return self.w.at(pointer, int(index) * step)
        return self.w.at(pointer, self.w.times(index, step)) if step else pointer

    # -- a run ----------------------------------------------------------------------------------------------

    def _run(self, target: str, bases: Sequence[str], chunk: str) -> None:
        """Whole units in a loop, then what is left over."""
        w, walk = self.w, self.walk
        run, unit = walk.run, walk.unit
        # Where rows repeat, vectors of a unit all know their padding; in a single row it comes last.
        computed = run.elements if run.turns > 1 or walk.zero else run.valid
        whole = computed // unit * unit
        units = self._slots(0, unit) if run.turns > 1 else self._slots(0, unit, unit)
        rest = self._slots(whole, run.elements)
        self._hoist(bases, [*(units if whole else []), *rest])

        def turn(i: str) -> None:
            self._turn(self._at(target, i, self.dst.bits // 8), self._along(bases, i), units)

        def left() -> None:
            if rest:
                first = str(whole)
                moved = [slot._replace(first=slot.first - whole) for slot in rest]
                self._turn(self._at(target, first, self.dst.bits // 8), self._along(bases, first), moved)

        if not chunk:
            if whole:
                w.loop(0, whole, unit, turn)
            left()
            return
        first = w.value(f"mul i64 {chunk}, {walk.chunk}")
        end = w.value(f"add i64 {first}, {walk.chunk}")
        end = w.value(f"call i64 @llvm.smin.i64(i64 {end}, i64 {whole})")
        w.when(w.value(f"icmp slt i64 {first}, {end}"), lambda: w.loop(first, end, unit, turn))
        w.when(w.value(f"icmp eq i64 {chunk}, {walk.counts[-1] - 1}"), left)

    def _along(self, bases: Sequence[str], index: str) -> list[str]:
        """The addresses of operands at an element of the run; those that start anew stay."""
        run = self.walk.run
        return [
            self._at(base, index, 0 if again else step)
            for base, step, again in zip(bases, run.steps, run.again, strict=True)
        ]

    def _slots(self, start: int, end: int, valid: int | None = None) -> list[_Slot]:
        """Vectors that cover elements of a run; ``valid`` is that of a single row, if not the run's."""
        run = self.walk.run
        slots = []
        for first in range(start, end, self.lanes):
            count = min(self.lanes, end - first)
            if self.walk.zero:
                good = 0
            elif run.turns > 1:
                good = sum(self._is_valid(first + lane) for lane in range(count))
            else:
                good = max(0, min(count, (run.valid if valid is None else valid) - first))
            slots.append(_Slot(first, count, good, first % lcm(run.total, self.lanes) // self.lanes))
        return slots

    def _is_valid(self, element: int) -> bool:
        return element % self.walk.run.total < self.walk.run.valid

    # -- vectors --------------------------------------------------------------------------------------------

    def _turn(self, target: str, bases: Sequence[str], slots: Sequence[_Slot]) -> None:
        """Load all, compute all, store all."""
        loaded = [self._operands(bases, slot) if slot.valid else [] for slot in slots]
        results = [
            self._computed(given, slot) if slot.valid else "zeroinitializer"
            for given, slot in zip(loaded, slots, strict=True)
        ]
        bits = self.dst.bits
        for slot, result in zip(slots, results, strict=True):
            pieces = pieces_of(0, slot.size, slot.first * bits // 8, bits // 8)
            store_pieces(self.w, result, target, pieces, self._width(slot), bits)

    def _width(self, slot: _Slot) -> int:
        """Lanes of the vector that is computed with: a power of two."""
        return 1 << (slot.size - 1).bit_length()

    def _operands(self, bases: Sequence[str], slot: _Slot) -> list[str]:
        run, width, out = self.walk.run, self._width(slot), []
        for k, kind in enumerate(self.operands):
            if (k, width) in self._spread:
                out.append(self._spread[k, width])
            elif (k, slot.number) in self._pattern:
                out.append(self._narrowed(self._pattern[k, slot.number], width))
            else:
                count = slot.size if run.whole[k] else slot.valid
                at = self.w.at(bases[k], slot.first * kind.bits // 8)
                out.append(self._loaded(at, kind, count, width))
        return out

    def _computed(self, given: list[str], slot: _Slot) -> str:
        """The body's result as elements of the destination, zeros in the padding."""
        w, width = self.w, self._width(slot)
        kind = f"<{width} x float>"
        numbers = [self._splats[k, width] for k in range(self.numbers)]
        value = self.body.emit(w, self.machine, [*given, *numbers], width)
        if slot.valid < slot.size:
            valid = self._valid_lanes(slot)
            picks = [lane if lane in valid else width for lane in range(width)]
            value = w.shuffle(value, "zeroinitializer", kind, picks)
        bits = w.value(f"bitcast {kind} {value} to <{width} x i32>")
        return converted(w, self.machine, bits, width, F32, self.dst)

    def _valid_lanes(self, slot: _Slot) -> set[int]:
        if self.walk.run.turns == 1:
            return set(range(slot.valid))
        return {lane for lane in range(slot.size) if self._is_valid(slot.first + lane)}

    # -- operands -------------------------------------------------------------------------------------------

    def _hoist(self, bases: Sequence[str], slots: Sequence[_Slot]) -> None:
        """Load what does not change during a run: single elements, and short rows as a pattern of vectors."""
        run, w = self.walk.run, self.w
        self._splats, self._spread, self._pattern = {}, {}, {}
        if self.walk.zero:
            return
        widths = sorted({self._width(slot) for slot in slots})
        for width in widths:
            vector = f"<{width} x float>"
            for k, number in enumerate(self._given):
                one = w.value(f"insertelement {vector} poison, float {number}, i32 0")
                self._splats[k, width] = w.shuffle(one, "poison", vector, [0] * width)
        if run.total == 1:
            return
        for k, kind in enumerate(self.operands):
            if not run.steps[k]:
                one = self._loaded(bases[k], kind, 1, 1)
                for width in widths:
                    self._spread[k, width] = w.shuffle(one, "poison", "<1 x float>", [0] * width)
            elif run.again[k]:
                for place in sorted({slot.number for slot in slots}):
                    self._pattern[k, place] = self._row(bases[k], kind, place)

    def _row(self, base: str, kind: DType, number: int) -> str:
        """A vector of a pattern: elements of a row that is repeated, zeros in its padding."""
        run, lanes = self.walk.run, self.lanes
        first = number * lanes % run.total
        if run.total % lanes == 0:
            count = max(0, min(lanes, run.valid - first))
            at = self.w.at(base, first * kind.bits // 8)
            return self._loaded(at, kind, count, lanes) if count else "zeroinitializer"
        room = 1 << (run.valid - 1).bit_length()
        row = self._loaded(base, kind, run.valid, room)
        places = [(first + lane) % run.total for lane in range(lanes)]
        picks = [place if place < run.valid else room for place in places]
        return self.w.shuffle(row, "zeroinitializer", f"<{room} x float>", picks)

    def _narrowed(self, value: str, width: int) -> str:
        """The first lanes of a vector."""
        if width == self.lanes:
            return value
        return self.w.shuffle(value, "poison", f"<{self.lanes} x float>", range(width))

    def _loaded(self, pointer: str, kind: DType, count: int, width: int) -> str:
        """Neighbouring elements as f32; lanes behind them are zero."""
        w, bits = self.w, kind.bits
        raw = load_pieces(w, pointer, pieces_of(0, count, 0, bits // 8), width, f"i{bits}", bits // 8)
        raw = converted(w, self.machine, raw, width, kind, F32)
        return w.value(f"bitcast <{width} x i32> {raw} to <{width} x float>")
