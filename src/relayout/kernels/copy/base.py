"""What all kernels have in common: the loops around, addresses, loads and stores with conversion.

A kernel is a function ``void name(ptr source, ptr destination, ptr operands, i64 from, i64 to)``; the range
is that of the loop that threads share. :class:`Kernel` writes everything but the innermost part, which each
kind of kernel has in a class of its own (:meth:`Kernel.body`).

While it writes, a :class:`Place` says where it is: an address in the source, one in the destination, and one
in each table of operands. A turn of a loop moves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relayout.dtypes import DType
from relayout.ir.conversions import RECIPROCALS, Steps, arithmetic_kind, converted, rescaled
from relayout.ir.writer import Writer
from relayout.kernels.copy.network import joined
from relayout.kernels.copy.plan import ROWS, Plan
from relayout.kernels.copy.problem import Table
from relayout.loops.nest import Loop
from relayout.targets.machine import LINE, Machine

__all__ = ["AHEAD", "ARGUMENTS", "Kernel", "Lanes", "Place"]

ARGUMENTS = "ptr noalias %src, ptr noalias %dst, ptr noalias readonly %ops, i64 %lo, i64 %hi"
AHEAD = 128  # bytes ahead of the source that are prefetched, into the second cache
STREAMED = 16  # bytes of the shortest vector that is stored past the caches

Lanes = Sequence[Sequence[int]]
"""For each table with several entries, which entry each lane takes, counted from the place."""


class Place(NamedTuple):
    """Addresses of an element on both sides, and of its entry in each table with several."""

    src: str
    dst: str
    tables: tuple[str, ...]


class Kernel:
    """Writes one kernel; subclasses write its innermost part."""

    def __init__(self, plan: Plan, machine: Machine, streaming: bool, name: str) -> None:
        self.plan, self.machine, self.name = plan, machine, name
        self.nest, self.what = plan.nest, plan.nest.conversion
        self.stream = streaming
        self.w = Writer()
        self.routines: list[str] = []  # further functions and constants of this kernel
        self.span: tuple[str | int, str | int] = (0, 0)  # the part of the blocked loop that is worked on
        self.buffer = ""  # what is written there leaves in whole lines
        self.entry_lines: list[str] = []  # what comes before everything else
        self._numbers: dict[str, str] = {}  # operands that are one number, loaded at the beginning

    def function(self) -> str:
        """The text of the kernel, and of what it calls."""
        nest, w = self.nest, self.w
        self.prepare()
        place = Place(w.at("%src", nest.src // 8), w.at("%dst", nest.dst // 8), self._first_entries())
        if self.plan.blocked is not None:
            self.blocks(self.plan.blocked, place)
        else:
            self.loops(self.plan.around, place)
        lines = "\n".join([*self.entry_lines, w.text()])
        text = f"define internal void @{self.name}({ARGUMENTS}) {{\nentry:\n{lines}\n  ret void\n}}\n"
        return "\n".join([*self.routines, text])

    def prepare(self) -> None:
        """What a kernel does once, before all loops."""

    def body(self, place: Place) -> None:
        """The innermost part."""
        raise NotImplementedError

    # -- loops ----------------------------------------------------------------------------------------------

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
        loop, w = left[0], self.w

        def turn(i: str) -> None:
            self.loops(left[1:], self.moved(place, i, loop), body)

        if loop is self.plan.blocked:
            w.loop(*self.span, 1, turn)
        elif loop is self.plan.shared:
            w.loop("%lo", "%hi", 1, turn)
        else:
            w.loop(0, loop.extent, 1, turn)

    def blocks(self, loop: Loop, place: Place) -> None:
        """All other loops for one block of a loop, then for the next."""
        first, last = ("%lo", "%hi") if loop is self.plan.shared else (0, loop.extent)
        self.each_block(first, last, ROWS, lambda: self.one_block(loop, place))

    def one_block(self, loop: Loop, place: Place) -> None:
        """All other loops for one block; a full one leaves through a buffer when streaming."""
        w, around = self.w, self.plan.around
        size = ROWS * loop.dst // 8
        if not self.stream:
            self.loops((*around, loop), place)
            return
        first, last = self.span
        full = w.value(f"icmp eq i64 {w.value(f'sub i64 {last}, {first}')}, {ROWS}")

        def buffered() -> None:
            self.loops(
                around,
                place,
                lambda at: self.through_buffer(
                    self.moved(at, first, loop),
                    size,
                    lambda to: w.loop(0, ROWS, 1, lambda i: self.body(self.moved(to, i, loop))),
                ),
            )

        w.when(full, buffered)
        part = w.value(f"xor i1 {full}, true")
        w.when(part, lambda: self.unstreamed(lambda: self.loops((*around, loop), place)))

    def each_block(self, first: str | int, last: str | int, step: int, body: Callable[[], None]) -> None:
        """Set :attr:`span` to one block after the other."""
        w = self.w

        def block(start: str) -> None:
            end = w.value(f"add i64 {start}, {step}")
            within = w.value(f"icmp slt i64 {end}, {last}")
            self.span = start, w.value(f"select i1 {within}, i64 {end}, i64 {last}")
            body()

        w.loop(first, last, step, block)

    # -- addresses ------------------------------------------------------------------------------------------

    def step(self, pointer: str, index: str | int, bits: int) -> str:
        """An address so many strides further; strides of half bytes take even indices."""
        w = self.w
        if not bits:
            return pointer
        if isinstance(index, int) or index.lstrip("-").isdigit():
            return w.at(pointer, int(index) * bits // 8)
        if bits % 8:
            return w.at(pointer, w.value(f"ashr exact i64 {w.times(index, bits // 4)}, 1"))
        return w.at(pointer, w.times(index, bits // 8))

    def moved(self, place: Place, index: str | int, loop: Loop) -> Place:
        """The place so many turns of a loop further."""
        src, dst = self.step(place.src, index, loop.src), self.step(place.dst, index, loop.dst)
        return Place(src, dst, self.entries(place.tables, index, loop))

    def entries(self, tables: tuple[str, ...], index: str | int, loop: Loop) -> tuple[str, ...]:
        """The entries so many turns of a loop further."""
        bits = 8 * self.entry if tables else 0
        return tuple(self.step(t, index, n * bits) for t, n in zip(tables, loop.tables, strict=True))

    # -- operands -------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """The arithmetic type, as LLVM calls it."""
        assert self.what is not None
        return arithmetic_kind(self.what.src, self.what.dst, self.steps)

    @property
    def entry(self) -> int:
        """Bytes of an operand."""
        return 8 if self.kind == "double" else 4

    @property
    def steps(self) -> Steps:
        """Which attributes take part."""
        return Steps(**{table.name: True for table in self._given if table.name not in RECIPROCALS})

    @property
    def _given(self) -> tuple[Table, ...]:
        return self.what.tables if self.what is not None else ()

    def _first_entries(self) -> tuple[str, ...]:
        w, first = self.w, []
        for table in self._given:
            pointer = w.at("%ops", table.offset)
            if table.number is None:
                self._numbers[table.name] = w.value(f"load {self.kind}, ptr {pointer}, align 4")
            else:
                first.append(w.at(pointer, self.nest.tables[table.number] * self.entry))
        return tuple(first)

    def _operands(self, tables: tuple[str, ...], lanes: Lanes, count: int) -> dict[str, str]:
        """The operand vector of each attribute, for the elements in ``count`` lanes."""
        found = {}
        for table in self._given:
            if table.number is None:
                found[table.name] = self._spread(self._numbers[table.name], count)
            else:
                found[table.name] = self._gathered(table, tables[table.number], lanes[table.number], count)
        return found

    def _gathered(self, table: Table, pointer: str, entries: Sequence[int], count: int) -> str:
        """Entries of a table; it goes on behind its end from its beginning (:class:`Table`)."""
        w, kind, size = self.w, self.kind, self.entry
        first = entries[0]
        if all(entry == first for entry in entries):
            return self._spread(w.value(f"load {kind}, ptr {w.at(pointer, first * size)}, align 4"), count)
        in_turn = range(first, first + count)
        if list(entries) == list(in_turn) or list(entries) == [k % table.entries for k in in_turn]:
            return w.value(f"load <{count} x {kind}>, ptr {w.at(pointer, first * size)}, align 4")
        vector = "poison"
        known: dict[int, str] = {}
        for lane, entry in enumerate(entries):
            if entry not in known:
                known[entry] = w.value(f"load {kind}, ptr {w.at(pointer, entry * size)}, align 4")
            vector = w.value(f"insertelement <{count} x {kind}> {vector}, {kind} {known[entry]}, i32 {lane}")
        return vector

    def _spread(self, number: str, count: int) -> str:
        w, kind = self.w, f"<{count} x {self.kind}>"
        one = w.value(f"insertelement {kind} poison, {self.kind} {number}, i32 0")
        return w.shuffle(one, "poison", kind, [0] * count)

    def lanes(self, loop: Loop, count: int) -> Lanes:
        """Lanes that walk along a loop."""
        return [[lane * stride for lane in range(count)] for stride in loop.tables]

    # -- loads and stores -----------------------------------------------------------------------------------

    def vector(self, count: int, bits: int | None = None) -> str:
        """The type of so many elements as they are moved about."""
        return f"<{count} x i{bits or self.plan.mid}>"

    def side_by_side(self, parts: list[str], count: int, bits: int | None = None) -> str:
        """Vectors of ``count`` elements side by side in one."""
        return joined(self.w, parts, count, bits or self.plan.mid)

    def load(self, place: Place, count: int, lanes: Lanes) -> str:
        """Neighbouring elements of the source, converted where that is done behind loads."""
        raw = self.load_raw(place, count)
        return raw if self.what is None or self.plan.late else self.value(raw, place, count, lanes)

    def load_raw(self, place: Place, count: int) -> str:
        """Neighbouring elements of the source as they are; 4-bit elements get a byte each."""
        if self.what is not None and self.nest.read == 4:
            return self._unpacked(place.src, count, self.what.src)
        return self.w.value(f"load <{count} x i{self.nest.read}>, ptr {place.src}, align 1")

    def store(self, value: str, place: Place, count: int, lanes: Lanes, aligned: bool = True) -> None:
        """Neighbouring elements of the destination, converted where that is done before stores."""
        nest = self.nest
        if self.what is not None and self.plan.late:
            value = self.value(value, place, count, lanes)
        self.store_raw(value, place.dst, count, nest.write, aligned)

    def store_raw(self, value: str, pointer: str, count: int, bits: int, aligned: bool = True) -> None:
        """Store elements that are converted already.

        Past the caches where lines are completed and this one begins where a vector may.
        """
        if bits == 4:
            value, count, bits = self._packed(value, count), count // 2, 8
        size = count * bits // 8
        how = f"store <{count} x i{bits}> {value}, ptr {pointer}, align"
        if self.stream and aligned and size >= STREAMED:
            self.w.line(f"{how} {min(size, LINE)}, !nontemporal !{{i32 1}}")
        else:
            self.w.line(f"{how} 1")

    def value(self, value: str, place: Place, count: int, lanes: Lanes) -> str:
        """Elements converted, with the operands of their lanes."""
        what = self.what
        assert what is not None
        if not what.tables:
            return converted(self.w, self.machine, value, count, what.src, what.dst)
        old = None
        if what.accumulates:
            old = self._old(place.dst, count, what.dst)
        operands = self._operands(place.tables, lanes, count)
        return rescaled(self.w, self.machine, value, count, what.src, what.dst, self.steps, operands, old)

    def _old(self, pointer: str, count: int, dtype: DType) -> str:
        if dtype.bits == 4:
            return self._unpacked(pointer, count, dtype)
        return self.w.value(f"load <{count} x i{dtype.bits}>, ptr {pointer}, align 1")

    def _unpacked(self, pointer: str, count: int, dtype: DType) -> str:
        """4-bit elements, each in a byte of its own: the low half of a byte is the first of two.

        A byte becomes a word, whose upper byte gets the second element.
        """
        w = self.w
        words, every = f"<{count // 2} x i16>", f"<{count} x i8>"
        pairs = w.value(f"load <{count // 2} x i8>, ptr {pointer}, align 1")
        first = w.value(f"zext <{count // 2} x i8> {pairs} to {words}")
        second = w.value(f"shl {words} {first}, splat (i16 4)")
        both = w.value(f"bitcast {words} {w.value(f'or {words} {first}, {second}')} to {every}")
        bits = w.value(f"and {every} {both}, splat (i8 15)")
        if not dtype.is_signed:
            return bits
        turned = w.value(f"xor {every} {bits}, splat (i8 8)")  # x ^ 8 - 8 extends the sign of four bits
        return w.value(f"sub {every} {turned}, splat (i8 8)")

    def _packed(self, value: str, count: int) -> str:
        """Bytes to 4-bit elements, two to a byte: the two bytes of a word become its lower half."""
        w = self.w
        words = f"<{count // 2} x i16>"
        pairs = w.value(f"bitcast <{count} x i8> {value} to {words}")
        first = w.value(f"and {words} {pairs}, splat (i16 15)")
        moved = w.value(f"lshr {words} {pairs}, splat (i16 4)")
        second = w.value(f"and {words} {moved}, splat (i16 240)")
        return w.value(f"trunc {words} {w.value(f'or {words} {first}, {second}')} to <{count // 2} x i8>")

    def through_buffer(self, place: Place, size: int, body: Callable[[Place], None]) -> None:
        """Let the body write ``size`` bytes, some lines, to a buffer; then store those in whole lines."""
        w, vector = self.w, self.machine.vector
        if not self.buffer:
            self.buffer = "%buffer"
            self.entry_lines.append(f"  %buffer = alloca [{size} x i8], align {LINE}")
        self.unstreamed(lambda: body(place._replace(dst=self.buffer)))

        def line(at: str) -> None:
            for k in range(0, LINE, vector):
                value = w.value(f"load <{vector} x i8>, ptr {w.at(w.at(self.buffer, at), k)}, align {vector}")
                self.store_raw(value, w.at(w.at(place.dst, at), k), vector, 8)

        w.loop(0, size, LINE, line)

    def prefetch(self, pointer: str, ahead: int = AHEAD) -> None:
        """Ask for bytes of the source that will be wanted soon."""
        self.w.line(f"call void @llvm.prefetch.p0(ptr {self.w.at(pointer, ahead)}, i32 0, i32 2, i32 1)")

    def claim(self, pointer: str) -> None:
        """Ask for a line of the destination that will be written next.

        A store waits for its line, and those behind it wait for the store, longest where it straddles two.
        """
        self.w.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 1, i32 3, i32 1)")

    def unstreamed(self, body: Callable[[], None]) -> None:
        """For overlapping tiles: streaming stores of a part of a line are slow."""
        kept, self.stream = self.stream, False
        body()
        self.stream = kept
