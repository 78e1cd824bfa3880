"""What all kernels have in common: the loops around, addresses, loads and stores with conversion.

A kernel is a function ``void name(ptr source, ptr destination, ptr operands, i64 from, i64 to)``; the range
is that of the loop that threads share. :class:`Kernel` writes everything but the innermost part, which each
kind of kernel has in a class of its own (:meth:`Kernel.body`).

While it writes, a :class:`Place` says where it is: an address in the source, one in the destination, and one
in each table of operands. A turn of a loop moves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from relayout.dtypes import DType
from relayout.ir.builder import L1, L2, Builder, Function, Operand
from relayout.ir.conversions import (
    LEARNT,
    LINES,
    MIDDLES,
    MISSING,
    RECIPROCALS,
    Steps,
    arithmetic_type,
    convert,
    deals,
    on_lines,
    rescale,
)
from relayout.ir.types import FLOAT, I8, I16, I64, PTR, Type, Value, integer, poison, vector
from relayout.kernels.copy.plan import Plan, width_of
from relayout.kernels.copy.problem import Table
from relayout.loops.nest import Loop
from relayout.targets.machine import LINE, Machine

__all__ = ["NOWHERE", "PREFETCH_BYTES", "WRITERS", "Kernel", "Lanes", "Place", "writer", "writes"]

PREFETCH_BYTES = 128  # bytes ahead of the source that are prefetched, into the L2 cache
STREAMED = 16  # bytes of the shortest vector that is stored past the caches

NOWHERE = Value("", PTR)
"""The address of what is on one side only."""

Lanes = Sequence[Sequence[int]]
"""For each table with several entries, which entry each lane takes, counted from the place."""


_Kernel = TypeVar("_Kernel", bound="Kernel")


class Place(NamedTuple):
    """Addresses of an element on both sides, and of its entry in each table with several."""

    src: Value
    dst: Value
    tables: tuple[Value, ...] = ()


WRITERS: dict[type[Plan], type[Kernel]] = {}
"""What writes the kernel of each kind of plan."""


def writes(plan: type[Plan]) -> Callable[[type[_Kernel]], type[_Kernel]]:
    """Decorate a kernel with the kind of plan that it is written from."""

    def entered(kernel: type[_Kernel]) -> type[_Kernel]:
        WRITERS[plan] = kernel
        return kernel

    return entered


def writer(plan: Plan, machine: Machine, streaming: bool, name: str) -> Kernel:
    """What writes the kernel of a plan, under a name."""
    return WRITERS[type(plan)](plan, width_of(machine, plan.narrow), streaming, name)


class Kernel:
    """Writes one kernel; subclasses write its innermost part."""

    plan: Plan

    def __init__(self, plan: Plan, machine: Machine, streaming: bool, name: str) -> None:
        self.plan, self.machine, self.name = plan, machine, name
        self.nest, self.what = plan.nest, plan.nest.conversion
        self.stream = streaming
        arguments = {"src": PTR, "dst": PTR, "ops": PTR, "lo": I64, "hi": I64}
        marks = {"src": "noalias", "dst": "noalias", "ops": "noalias readonly"}
        self.kernel = Function(name, arguments, machine, "internal", marks=marks)
        self.b: Builder = self.kernel  # what is being written: this function, or one that it calls
        self.routines: dict[str, str] = {}  # further functions and constants of this kernel, by name
        self.span: tuple[Operand, Operand] = (0, 0)  # the part of the blocked loop that is worked on
        *_, first, last = self.kernel.arguments
        self.shared = first, last  # the part of the shared one
        self.buffer: Value | None = None  # what is written there leaves in whole lines
        self._numbers: dict[str, Value] = {}  # operands that are one number, loaded at the beginning

    def function(self) -> str:
        """The text of the kernel, and of what it calls."""
        nest, b = self.nest, self.b
        src, dst, ops, *_ = self.kernel.arguments
        self.prepare()
        place = Place(b.gep(src, nest.src // 8), b.gep(dst, nest.dst // 8), self._first_entries(ops))
        self.whole(place)
        return "\n".join([*self.routines.values(), self.kernel.text()])

    def prepare(self) -> None:
        """What a kernel does once, before all loops."""

    def body(self, place: Place) -> None:
        """The innermost part."""
        raise NotImplementedError

    # -- loops ----------------------------------------------------------------------------------------------

    def whole(self, place: Place) -> None:
        """All loops, those in blocks among them."""
        around, blocked = self.plan.around, self.plan.blocked
        if blocked is None:
            self.loops(around, place)
        else:
            self.loops(around[: self.plan.outer], place, lambda at: self.blocks(blocked, at))

    def loops(
        self, left: tuple[Loop, ...], place: Place, body: Callable[[Place], None] | None = None
    ) -> None:
        """Loops around the body (or another one), the outermost first."""
        plan, body = self.plan, body or self.body
        if self.stream and len(left) == plan.inside:
            self.through_buffer(place, plan.footprint // 8, lambda at: self.loops(left, at, body))
            return
        if not left:
            body(place)
            return
        loop, b = left[0], self.b

        def turn(i: Value) -> None:
            self.loops(left[1:], self.moved(place, i, loop), body)

        if loop is self.plan.blocked:
            b.loop(*self.span, 1, turn)
        elif loop is self.plan.shared:
            b.loop(*self.shared, 1, turn)
        else:
            b.loop(0, loop.extent, 1, turn)

    def blocks(self, loop: Loop, place: Place) -> None:
        """The loops inside for one block of a loop, then for the next."""
        first, last = self.shared if loop is self.plan.shared else (0, loop.extent)
        self.each_block(first, last, self.plan.block, lambda: self.one_block(loop, place))

    def one_block(self, loop: Loop, place: Place) -> None:
        """The loops inside for one block; a full one leaves through a buffer when streaming."""
        b, around, rows = self.b, self.plan.around[self.plan.outer :], self.plan.block
        size = rows * loop.dst // 8
        if not self.stream:
            self.loops((*around, loop), place)
            return
        first, last = self.span
        full = b.icmp("eq", b.sub(last, first), rows)

        def buffered() -> None:
            self.loops(
                around,
                place,
                lambda at: self.through_buffer(
                    self.moved(at, first, loop),
                    size,
                    lambda to: b.loop(0, rows, 1, lambda i: self.body(self.moved(to, i, loop))),
                ),
            )

        b.when(full, buffered)
        b.when(b.not_(full), lambda: self.unstreamed(lambda: self.loops((*around, loop), place)))

    def each_block(self, first: Operand, last: Operand, step: int, body: Callable[[], None]) -> None:
        """Set :attr:`span` to one block after the other."""
        b = self.b

        def block(start: Value) -> None:
            end = b.add(start, step)
            self.span = start, b.select(b.icmp("slt", end, last), end, last)
            body()

        b.loop(first, last, step, block)

    # -- addresses ------------------------------------------------------------------------------------------

    def step(self, pointer: Value, index: Operand, bits: int) -> Value:
        """An address so many strides further; strides of half bytes take even indices."""
        b = self.b
        if bits % 8:
            return b.gep(pointer, b.ashr_exact(b.mul(index, bits // 4), 1))
        return b.gep(pointer, index, bits // 8)

    def moved(self, place: Place, index: Operand, loop: Loop) -> Place:
        """The place so many turns of a loop further."""
        src, dst = self.step(place.src, index, loop.src), self.step(place.dst, index, loop.dst)
        return Place(src, dst, self.entries(place.tables, index, loop))

    def entries(self, tables: tuple[Value, ...], index: Operand, loop: Loop) -> tuple[Value, ...]:
        """The entries so many turns of a loop further."""
        along = (table for table in self._given if table.number is not None)
        return tuple(
            self.b.gep(entry, index, step * self._kind(table).bytes)
            for entry, step, table in zip(tables, loop.tables, along, strict=True)
        )

    # -- operands -------------------------------------------------------------------------------------------

    @property
    def kind(self) -> Type:
        """The type of arithmetic, and of an operand."""
        assert self.what is not None
        return arithmetic_type(self.what.src, self.what.dst, self.steps)

    @property
    def steps(self) -> Steps:
        """Which attributes take part."""
        more = *RECIPROCALS, *LEARNT
        return Steps(**{table.name: True for table in self._given if table.name not in more})

    @property
    def _given(self) -> tuple[Table, ...]:
        return self.what.tables if self.what is not None else ()

    def _first_entries(self, ops: Value) -> tuple[Value, ...]:
        b, first = self.b, []
        for table in self._given:
            pointer = b.gep(ops, table.offset)
            kind = self._kind(table)
            if table.number is None:
                self._numbers[table.name] = b.load(kind, pointer, 4)
            else:
                first.append(b.gep(pointer, self.nest.tables[table.number] * kind.bytes))
        return tuple(first)

    def operands(self, tables: tuple[Value, ...], lanes: Lanes, count: int) -> dict[str, Value]:
        """The operand vector of each attribute, for the elements in ``count`` lanes."""
        if self._lines:
            return {table.name: self._operand(table, tables, lanes, count) for table in self._lines}
        return self._step_by_step(tables, lanes, count)

    def _step_by_step(self, tables: tuple[Value, ...], lanes: Lanes, count: int) -> dict[str, Value]:
        """Those of all attributes, also where bytes lie on lines."""
        given = (table for table in self._given if table.name not in LEARNT)
        return {
            table.name: self._operand(table, tables, lanes, count)
            for table in given
            if table is not self._divisor
        }

    @property
    def _lines(self) -> list[Table]:
        """The tables of lines on which bytes lie: all that most vectors need."""
        return [table for table in self._given if table.name in LINES]

    def _kind(self, table: Table) -> Type:
        """The type of an entry of a table."""
        return FLOAT if table.name in LEARNT else self.kind

    @property
    def _divisor(self) -> Table | None:
        """The table of scales that few vectors are divided by; most are multiplied by their reciprocals."""
        if all(table.name not in RECIPROCALS for table in self._given):
            return None
        return next(table for table in self._given if table.name == "dst_scale")

    def _operand(self, table: Table, tables: tuple[Value, ...], lanes: Lanes, count: int) -> Value:
        if table.number is None:
            return self.b.splat(self._numbers[table.name], count)
        return self._gathered(table, tables[table.number], lanes[table.number], count)

    def _gathered(self, table: Table, pointer: Value, entries: Sequence[int], count: int) -> Value:
        """Entries of a table; it goes on behind its end from its beginning (:class:`Table`)."""
        b, kind, first = self.b, self._kind(table), entries[0]
        in_turn = range(first, first + count)
        if all(entry == first for entry in entries):
            return b.splat(b.load(kind, b.gep(pointer, first, kind.bytes), 4), count)
        if list(entries) == list(in_turn) or list(entries) == [k % table.entries for k in in_turn]:
            return b.load(vector(count, kind), b.gep(pointer, first, kind.bytes), 4)
        known = {k: b.load(kind, b.gep(pointer, k, kind.bytes), 4) for k in dict.fromkeys(entries)}
        made = poison(vector(count, kind))
        for lane, entry in enumerate(entries):
            made = b.insert(made, known[entry], lane)
        return made

    def lanes(self, loop: Loop, count: int) -> Lanes:
        """Lanes that step along a loop."""
        return [[lane * stride for lane in range(count)] for stride in loop.tables]

    # -- loads and stores -----------------------------------------------------------------------------------

    def vector(self, count: int, bits: int | None = None) -> Type:
        """The type of so many elements as they are moved about."""
        return vector(count, integer(bits or self.plan.mid))

    def load(self, place: Place, count: int, lanes: Lanes) -> Value:
        """Neighbouring elements of the source, converted where that is done behind loads."""
        raw = self.load_raw(place, count)
        return raw if self.what is None or self.plan.late else self.value(raw, place, lanes)

    def load_raw(self, place: Place, count: int) -> Value:
        """Neighbouring elements of the source as they are; 4-bit elements get a byte each."""
        if self.what is not None and self.nest.read == 4:
            return self._unpacked(place.src, count, self.what.src)
        return self.b.load(self.vector(count, self.nest.read), place.src, 1)

    def store(self, x: Value, place: Place, lanes: Lanes, aligned: bool = True, dealt: bool = False) -> None:
        """Neighbouring elements of the destination, converted where that is done before stores.

        ``dealt`` says that they are dealt out to registers as packs put them in order (:attr:`deals`).
        """
        if self.what is not None and self.plan.late:
            x = self.value(x, place, lanes, dealt=dealt)
        self.put(x, place.dst, aligned)

    def put(self, x: Value, pointer: Value, aligned: bool = True) -> None:
        """Store elements that are converted already."""
        self.store_raw(self._packed(x) if self.nest.write == 4 else x, pointer, aligned)

    def store_raw(self, x: Value, pointer: Value, aligned: bool = True) -> None:
        """Store a vector as it is.

        Past the caches where lines are completed and this one begins where a vector may.
        """
        past = self.stream and aligned and x.type.bytes >= STREAMED
        self.b.store(x, pointer, min(x.type.bytes, LINE) if past else 1, past)

    @property
    def deals(self) -> int:
        """From how many registers of words packs make one, if elements may stay in their order; else 0."""
        return 0 if self.what is None else deals(self.machine, self.what.src, self.what.dst, self.steps)

    def value(
        self,
        x: Value,
        place: Place,
        lanes: Lanes,
        operands: dict[str, Value] | None = None,
        dealt: bool = False,
    ) -> Value:
        """Elements converted, with the operands of their lanes, or those that have been loaded before.

        ``dealt``: they stay in the order in which packs leave them, see :attr:`deals`.
        """
        what, count = self.what, x.type.count
        assert what is not None
        if not what.tables:
            return convert(self.b, x, what.src, what.dst, dealt)
        old = self._old(place.dst, count, what.dst) if what.accumulates else None
        if operands is None:
            operands = self.operands(place.tables, lanes, count)
        if self._lines:
            return self._on_lines(x, place, lanes, operands)
        table = self._divisor
        divisor = None if table is None else partial(self._operand, table, place.tables, lanes, count)
        middles = self._numbers.get(MIDDLES)
        return rescale(self.b, x, what.src, what.dst, self.steps, operands, old, divisor, dealt, middles)

    def _on_lines(self, x: Value, place: Place, lanes: Lanes, operands: Mapping[str, Value]) -> Value:
        """Bytes converted by the lines that they lie on."""
        what, b = self.what, self.b
        assert what is not None

        def others() -> Value:
            given = self._step_by_step(place.tables, lanes, x.type.count)
            return rescale(b, x, what.src, what.dst, self.steps, given)

        return on_lines(b, x, what.src, what.dst, operands, self._numbers[MISSING], others)

    def _old(self, pointer: Value, count: int, dtype: DType) -> Value:
        if dtype.bits == 4:
            return self._unpacked(pointer, count, dtype)
        return self.b.load(self.vector(count, dtype.bits), pointer, 1)

    def _unpacked(self, pointer: Value, count: int, dtype: DType) -> Value:
        """4-bit elements, each in a byte of its own: the low half of a byte is the first of two.

        A byte becomes a word, whose upper byte gets the second element.
        """
        b = self.b
        first = b.zext(b.load(vector(count // 2, I8), pointer), I16)
        bits = b.and_(b.bitcast(b.or_(first, b.shl(first, 4)), vector(count, I8)), 15)
        return b.sub(b.xor(bits, 8), 8) if dtype.is_signed else bits  # extends the sign of four bits

    def _packed(self, x: Value) -> Value:
        """Bytes to 4-bit elements, two to a byte: the two bytes of a word become its lower half."""
        b = self.b
        pairs = b.bitcast(x, vector(x.type.count // 2, I16))
        return b.trunc(b.or_(b.and_(pairs, 15), b.and_(b.lshr(pairs, 4), 240)), I8)

    def through_buffer(self, place: Place, size: int, body: Callable[[Place], None]) -> None:
        """Let the body write ``size`` bytes, some lines, to a buffer; then store those in whole lines."""
        b, register = self.b, vector(self.machine.vector, I8)
        buffer = self.buffer = self.buffer or b.alloca(size, LINE)
        self.unstreamed(lambda: body(place._replace(dst=buffer)))

        def line(at: Value) -> None:
            for k in range(0, LINE, register.bytes):
                x = b.load(register, b.gep(b.gep(buffer, at), k), register.bytes)
                self.store_raw(x, b.gep(b.gep(place.dst, at), k))

        b.loop(0, size, LINE, line)

    def prefetch(self, pointer: Value, ahead: int = PREFETCH_BYTES) -> None:
        """Ask for bytes of the source that will be wanted soon."""
        self.b.prefetch(self.b.gep(pointer, ahead), L2)

    def claim(self, pointer: Value) -> None:
        """Ask for a line of the destination that will be written next.

        A store waits for its line, and those behind it wait for the store, longest where it straddles two.
        """
        if self.plan.claims:
            self.b.prefetch(pointer, L1, write=True)

    def unstreamed(self, body: Callable[[], None]) -> None:
        """For overlapping tiles: streaming stores of a part of a line are slow."""
        kept, self.stream = self.stream, False
        body()
        self.stream = kept
