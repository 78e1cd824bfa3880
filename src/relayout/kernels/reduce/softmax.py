"""Softmax: the kernel.

Three passes over the elements along an axis, which stay in the L1 cache::

    m = max(x)      s = sum(exp(x - m))      exp(x - m) / s       or, for the logarithm, x - m - log(s)

The second pass stores its exponentials where the destination is f32 and the third only multiplies. Other data
types would be rounded twice. Rows whose elements are neighbours have their exponentials in registers, where
bf16 or f16 are wanted and 16 registers hold a row, or on the stack, where these are at most 16 KiB. What is
left is computed anew.

Where lanes come from is said in :mod:`relayout.kernels.reduce.rows`. Those that are no elements hold -inf,
which adds nothing.

How it stays within a few units in the last place of f32, however long the axis is and however far apart the
elements are: what ``x - m`` is rounded by is computed, too, and multiplied into the exponential. Sums of many
terms are compensated, and the logarithm gets what the sum was rounded by: in a row of 0 and -20, where the
sum rounds to 1, log(s) is still 2e-9.

Results that would be subnormal numbers are zero: a masked score of -100 would become 4e-44, and whoever
multiplies that takes a hundred times as long. It is nothing beside the sum of the row, which is 1.

Results of bf16 and f16 have 8 and 11 bits, so that all this care would be lost. Theirs is the short
exponential of :mod:`relayout.ir.exponential`, with 13 and 18 bits, and sums are compensated from so many
terms on that they would lose more. What is rounded to the narrow type differs from the definition by less
than 2**-12.6 of itself (bf16) or 2**-16 (f16), so that results are within 0.54 units in their last place,
where 0.5 is the best there is.

Of a narrow source ``(x - m) log2(e)`` takes one instruction, ``x log2(e) - M``. ``M`` is ``m log2(e)``,
rounded. All elements of a row are off by the same then, and their quotients are not. That holds while they
are off by little. Beyond 2**16 elements of bf16 are equal, or so far apart that all but the largest become 0;
there 2**(x - m) does as well.

**Narrow results need no maximum.** A quotient of exponentials is the same whatever is subtracted in both. A
maximum keeps them from leaving the range of f32, and most rows are nowhere near: so the first pass adds up
``2**(x log2(e) + 32)``, and its sum tells. From 1 on, what became 0 would have been 0 behind the division,
too, and below 2**120 nothing has overflowed; NaN is neither. A row with another sum takes all three passes.
That saves reading, two comparisons and the wait for a maximum. (For f16, which ends at 2**-24, nothing is
added, and 2**-64 is enough.)

A register of bf16 is two of f32, elements of even number and those of odd number
(:class:`relayout.ir.lanes.Lanes`), since it does not matter which lane is whose.

**With registers of 32 bytes** nothing saturates, so that bounds would cost what a maximum does. Largest bf16
and f16 are found among their bits, 16 in a register: the largest of them as integers if one is not below 0,
else the smallest. All powers are multiplied by two numbers that make the exponential shorter
(:func:`relayout.ir.exponential.exp2_and_half`), and by another that keeps quotients from being subnormal. No
instruction rounds to bf16 there: halves are rounded up, an addition in place of seven instructions, since the
exponential is not exact to that anyway.

A row by itself waits for its maximum, for its sum and for a quotient there, as long as four lines take. So a
few rows go through each pass one after the other (:meth:`relayout.kernels.reduce.rows.Lines.staged`), their
exponentials on the stack, and what is made of their maxima and sums is made for eight of them at once. Within
a pass four registers take each step together: one alone would wait for itself, since a processor looks only
so far ahead. They are added up before they are added to the sum, of which there is one.

Special values need no code: an infinite maximum makes NaN of ``x - m``, and a NaN anywhere makes the sum NaN.
So a row of -inf alone is NaN, as in PyTorch; -inf among numbers is 0. Guarded, what is NaN is stored as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

from relayout.dtypes import DType, dtype
from relayout.ir import math as functions
from relayout.ir.builder import Function, Operand
from relayout.ir.conversions import flushed, to_f32
from relayout.ir.exponential import LOG2_E, exp2, exp2_and_half, saturates
from relayout.ir.kernel import kernel
from relayout.ir.lanes import Lanes, lanes_of
from relayout.ir.types import FLOAT, I16, I32, Type, Value, constant, vector
from relayout.ir.vectors import halves
from relayout.kernels.reduce.rows import Rows, rows
from relayout.kernels.reduce.rows_text import Lines, Values, Visit, lines
from relayout.layout.descriptor import MemoryDesc
from relayout.records import dataclass
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "SoftmaxPlan", "module", "planned"]

ENTRY = "softmax"
F32, F16, BF16 = map(dtype, ("f32", "f16", "bf16"))
UNROLL = 4  # vectors of one turn
ROWS = 4  # short rows that are interleaved: a single one would wait for its own sums
SHORT_ROW = 32  # elements of the longest row that is called short
UNCOMPENSATED_TERMS = 16  # terms of the longest sum that needs no compensation for rounding
UNCOMPENSATED_NARROW = 64  # the same where results are rounded to bf16 or f16: 2**-18 are lost at most
HELD = 16  # registers of a row that is held in them
TOGETHER = 32  # registers of such rows that are interleaved
MOST_KEPT = 1 << 12  # elements of a row whose exponentials are kept
# With registers of 32 bytes:
TURN = 64  # elements of one turn
STRAIGHT = 256  # elements of the longest row without turns
GROUP = 16  # rows that go through each pass one after the other, at most
GROUPED = 1 << 12  # elements of these rows, at most: half of the L1 cache holds their exponentials
EIGHT = 8  # rows whose maxima and sums are computed with at once
NUMBERS = 4  # of a row, at most: what is subtracted and multiplied by, and a sum with what it was rounded by
LOWEST = {BF16: 0xFF80 - 0x10000, F16: 0xFC00 - 0x10000}  # the bits of -inf

FAR = 2.0**16  # from zero: other bf16 are at least 256 away, and the last bit of f32 is 2**-7
SMALLEST = 2.0**-126  # of the normal numbers of f32
OFFSET = {BF16: 32.0, F16: 0.0}  # added to exponents in place of a maximum: what is at least 2**-126 of a sum
LEAST_TOTAL = {BF16: 1.0, F16: 2.0**-64}  # from this sum on is not below 2**-126, or rounds to 0 anyway
MOST_TOTAL = 2.0**120  # a sum whose terms and reciprocal are normal numbers


@dataclass(frozen=True)
class SoftmaxPlan:
    """What is computed: a softmax without formats."""

    log: bool
    guarded: bool
    src: DType
    dst: DType
    rows: Rows

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something."""
        return self.rows.lanes(lanes_of(machine, self.src))

    @property
    def short(self) -> bool:
        """Whether results have so few bits that a shorter exponential does."""
        return self.dst in (F16, BF16) and not self.log

    def vectors(self, machine: Machine) -> tuple[int, int]:
        """Elements of a vector, and how many vectors of a row are held in registers; 0: none is.

        Two registers are one vector where an instruction rounds both at once, and four where they have
        32 bytes: each waits for itself, and a processor looks only so far ahead.
        """
        lanes, row = lanes_of(machine, self.src), self.rows.size
        if _halves(machine):
            fitting = (k * lanes for k in (4, 2) if k * lanes <= self.rows.longest)
            return next((many for many in fitting if not self._packs(many)), lanes), 0
        packed = self._packs(lanes) or self._packs(2 * lanes)
        holds = self.short and not packed and self.rows.longest == row <= HELD * lanes
        if self.short and not packed and self.dst is BF16 and row > lanes and flushed(machine, lanes):
            lanes *= 2
        return lanes, -(-row // lanes) if holds else 0

    def _packs(self, lanes: int) -> bool:
        """Whether vectors of so many elements would have some of several rows."""
        return any(self.rows.packing(block, lanes) for block in self.rows.blocks)


def _halves(machine: Machine) -> bool:
    """Whether registers have 32 bytes: two of f32 for one of bf16, and no instruction that rounds to that."""
    return machine.is_avx2 and machine.fuses


def planned(
    src: MemoryDesc, dst: MemoryDesc, axis: int, log: bool, guarded: bool = False
) -> SoftmaxPlan | None:
    """The softmax along an axis; None where that is fused with others, or there are no nests.

    >>> made = planned(MemoryDesc((2, 20), "f32", "ab"), MemoryDesc((2, 20), "f32", "ab"), 1, False)
    >>> print(*made.rows.blocks, *made.rows.pieces, sep=", ")
    0->0: 2x(80,80), 0->0: 20x(4,4)
    """
    sizes = src.dtype.bits // 8, dst.dtype.bits // 8
    found = rows([src.layout, dst.layout], sizes, {axis})
    return None if found is None else SoftmaxPlan(log, guarded, src.dtype, dst.dtype, found)


def module(made: SoftmaxPlan, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`."""
    f = kernel(ENTRY, machine)
    staged = _halves(machine)
    together = ROWS if made.rows.longest <= SHORT_ROW and not staged else 1
    lanes, held = made.vectors(machine)
    if held:
        together = min(ROWS, max(1, TOGETHER * lanes_of(machine, made.src) // (held * lanes)))
    unroll, accumulators = held or UNROLL, None
    if staged:
        unroll, accumulators = max(1, (STRAIGHT if made.rows.longest <= STRAIGHT else TURN) // lanes), 1
    for found in lines(f, made.rows, f.arguments[:2], lanes, unroll, together, UNROLL, accumulators):
        passes = _Passes(f, made, found, held > 0)
        if staged and found.along:
            passes.in_stages()
        else:
            found.tasks(passes.write)
    return f.text()


class _Passes:
    """The passes over the rows of a task."""

    def __init__(self, f: Function, made: SoftmaxPlan, found: Lines, holds: bool) -> None:
        self.b, self.made, self.lines = f, made, found
        run = made.rows.longest == made.rows.size
        pairs = made.src is BF16 is made.dst and not made.log and found.along and run
        self.briefly = _halves(f.machine)
        self.scaled = made.short and self.briefly
        self.v = Lanes(f, made.src, made.dst, flushes=True, pairs=pairs, upward=self.scaled)
        self.among_bits = self.scaled and found.along and made.src in LOWEST
        self.stores = made.dst is F32 and not made.log
        self.holds = holds
        self.held: dict[int, Value] = {}  # what is known of the elements of each slot
        keeps = (
            not (self.stores or made.log or self.holds)
            and found.along
            and found.rows == 1
            and made.rows.dense
        )
        self.room: Value | None = None
        self.row = 4 * -(-made.rows.size // found.count) * found.count  # the last vector may be whole
        self.group = max(1, min(GROUP, GROUPED // max(1, made.rows.size))) if self.briefly else 1
        if keeps and made.rows.size <= MOST_KEPT:
            self.room = f.alloca(self.row * self.group, LINE)
        self.kept = Lanes(f, F32, F32)
        self.shares = self.briefly and found.along and not made.log
        self.careful = made.log or found.terms > (UNCOMPENSATED_NARROW if made.short else UNCOMPENSATED_TERMS)
        least = SMALLEST * max(1, made.rows.size)  # so that no result is subnormal
        self.nothing_below, self.least = math.log(least), math.log2(least)
        self.folds = made.short and made.src in (F16, BF16) and f.machine.fuses
        self.unshifted = made.short and found.along and self._flushes and saturates(f.machine)

    def write(self, at: Values) -> None:
        """A task."""
        if not self.unshifted:
            self._shifted(at)
            return
        b, kind, n = self.b, self.made.dst, self.lines.count
        far: list[Value] = []
        self.held = {}

        def factor(given: Values) -> Values:
            total = b.fadd(*given) if self.careful else given[0]
            far.append(b.or_(b.fcmp("ult", total, LEAST_TOTAL[kind]), b.fcmp("uge", total, MOST_TOTAL)))
            return [b.fdiv(1.0, total)]

        most = [[self.v.constant(OFFSET[kind], n), self.v.constant(LOG2_E, n)]] * self.lines.rows
        factors = self.lines.combined(self._sums(at, most), self._together, factor)
        held, outside = self.held, b.extract(reduce(b.or_, far), 0)
        b.when(outside, lambda: self._shifted(at), seldom=True)
        self.held = held
        b.when(b.not_(outside), lambda: self._written(at, most, factors))

    def in_stages(self) -> None:
        """All tasks, in groups of rows: a pass of all rows of a group, and then the next."""
        b, n, found, room = self.b, self.lines.count, self.lines, self.room
        eights = -(-self.group // EIGHT)
        numbers = b.alloca(4 * NUMBERS * eights * EIGHT, LINE)  # of each row, one kind after the other

        def place(row: Operand, k: int) -> Value:
            return b.gep(b.gep(numbers, 4 * k * eights * EIGHT), row, 4)

        def keep(row: Value, given: Values, begin: int) -> None:
            for k, x in enumerate(given, begin):
                one = b.extract(x, 0)
                b.store(one if one.type.is_float else b.sext(one, I32), place(row, k))

        def kept(row: Value, begin: int, end: int) -> list[Values]:
            return [[b.splat(b.load(vector(1, FLOAT), place(row, k)), n) for k in range(begin, end)]]

        def made(begin: int, types: Sequence[Type], make: Callable[[Values], Values]) -> int:
            """What is made of some numbers of each row, in the place of these; how many they are."""
            for row in range(0, eights * EIGHT, EIGHT):
                given = [b.load(vector(EIGHT, x), place(row, begin + k)) for k, x in enumerate(types)]
                after = make(given)
                for k, x in enumerate(after, begin):
                    b.store(x, place(row, k))
            return len(after)

        kinds = [I32, I32] if self.among_bits else [FLOAT]
        constants = 0

        def largest(at: Values, row: Value) -> None:
            keep(row, self._largest(at, list)[0], 0)

        def subtracted() -> None:
            nonlocal constants
            constants = made(0, kinds, lambda given: self._subtracted(self._real(given)))

        def summed(at: Values, row: Value) -> None:
            self.room = room and b.gep(room, row, self.row)
            sums = self._sums(at, kept(row, 0, constants))
            keep(row, found.combined(sums, self._together, list)[0], constants)

        def divided() -> None:
            made(constants, [FLOAT] * (1 + self.careful), self._factor)

        def written(at: Values, row: Value) -> None:
            self.room = room and b.gep(room, row, self.row)
            self._written(at, kept(row, 0, constants), kept(row, constants, constants + 1), self._guard)

        stages = [(largest, subtracted), (summed, divided), (written, lambda: None)]
        found.staged(self.group, stages)

    def _shifted(self, at: Values) -> None:
        """All three passes."""
        self.held = {}
        most = self._most(at)
        factors = self.lines.combined(self._sums(at, most), self._together, self._factor)
        self._written(at, most, factors, self._guard)

    def _guard(self, y: Value) -> Value:
        return self.b.select(self.b.fcmp("ord", y, y), y, 0.0)

    def _most(self, at: Values) -> list[Values]:
        """The first pass: the largest element of each row, and what comes of it."""
        return self._largest(at, lambda given: self._subtracted(self._real(given)))

    def _largest(self, at: Values, finish: Callable[[Values], Values]) -> list[Values]:
        """The largest element of each row; of bf16 and f16 the largest and the smallest of their bits."""
        b, v, n, found = self.b, self.v, self.lines.count, self.lines
        bits = constant(vector(n, I16), LOWEST[self.made.src]) if self.among_bits else None
        first = [v.constant(float("-inf"), n)] if bits is None else [bits, bits]

        def both(one: Values, other: Values) -> Values:
            if not self.among_bits:
                return [v.larger(one[0], other[0])]
            return [b.intrinsic(name, x, y) for name, x, y in zip(("smax", "smin"), one, other, strict=True)]

        def visited(at: Visit, given: Values) -> Values:
            if self.among_bits:
                x = v.raw(at.at[0], n, at.valid, float("-inf"))
                return both(given, [x, x])
            x = self._loaded(at)
            if self.holds:
                self.held[at.slot] = x
            return both([x], given)

        return found.combined(found.visit(at, [first] * found.slots, visited), both, finish)

    def _real(self, given: Values) -> Values:
        """What :meth:`_largest` found as f32; among bits a NaN with a sign may have been passed over."""
        b = self.b
        if not self.among_bits:
            return given
        largest, smallest = given
        bits = b.select(b.icmp("slt", largest, 0), smallest, largest)
        if self.made.src is BF16:
            return [b.real(b.shl(b.resize(bits, 32), 16))]
        return [to_f32(b, b.resize(bits, 16), F16)]

    def _sums(self, at: Values, most: list[Values]) -> list[Values]:
        """The second pass: sums of exponentials, which are kept where there is room."""
        b, v, n, found, row = self.b, self.v, self.lines.count, self.lines, at[-1]

        def added(at: Visit, given: Values) -> Values:
            x = self.held[at.slot] if at.slot in self.held else self._loaded(at)
            e = self._exponential(x, most[at.row])
            if self.holds:
                self.held[at.slot] = e
            elif self.stores:
                v.store(at.at[-1], e, at.valid)
            elif self.room is not None:
                self.kept.store(self._place(self.room, at, row), e, self._extent(at))
            if self.shares:
                e = self._of_a_register(e)
            return self._compensated(e, *given) if self.careful else [b.fadd(given[0], e)]

        terms = v.constant(0, min(n, lanes_of(b.machine, F32)) if self.shares else n)
        first = [[terms] * (2 if self.careful else 1) for _ in range(found.slots)]
        return found.visit(at, first, added)

    def _of_a_register(self, e: Value) -> Value:
        """The lanes of several registers added up to one."""
        while e.type.count > lanes_of(self.b.machine, F32):
            e = self.b.fadd(*halves(self.b, e))
        return e

    def _written(
        self,
        at: Values,
        most: list[Values],
        factors: list[Values],
        guard: Callable[[Value], Value] | None = None,
    ) -> None:
        """The third pass; without a guard no result is NaN."""
        b, v, n, found, row = self.b, self.v, self.lines.count, self.lines, at[-1]

        def last(at: Visit, given: Values) -> Values:
            [factor] = factors[at.row]
            if self.stores:
                y = b.fmul(v.reload(at.at[-1], n, at.valid), factor)
            elif self.holds:
                y = b.fmul(self.held[at.slot], factor)
            elif self.room is not None:
                kept = self.kept.load(self._place(self.room, at, row), n, self._extent(at))
                y = b.fmul(kept, factor)
            elif self.made.log:
                y = b.fsub(b.fsub(self._loaded(at), most[at.row][0]), factor)
            else:
                y = b.fmul(self._exponential(self._loaded(at), most[at.row]), factor)
            if self.made.guarded and guard is not None:
                y = guard(y)
            v.store(at.at[-1], y, at.valid)
            return given

        found.visit(at, [[] for _ in range(found.slots)], last)

    def _place(self, room: Value, at: Visit, row: Value) -> Value:
        """Where the exponentials of a vector are kept, by where its results lie in the row."""
        b = self.b
        return b.gep(room, b.sub(b.ptrtoint(at.at[-1]), b.ptrtoint(row)), 32 // self.made.dst.bits)

    def _extent(self, at: Visit) -> int:
        """How many lanes are kept: in pairs the elements of a row's last vector are not the first lanes."""
        return self.lines.count if self.v.pairs else at.valid

    @property
    def _flushes(self) -> bool:
        """Whether what is hardly a number of f32 becomes 0 when it is stored."""
        return self.made.dst is F16 or flushed(self.b.machine, self.lines.count)

    def _loaded(self, at: Visit) -> Value:
        return self.v.load(at.at[0], self.lines.count, at.valid, float("-inf"))

    def _subtracted(self, given: Values) -> Values:
        """The largest element of a row; or what takes its place, -M, and what elements are multiplied by."""
        if not self.folds:
            return given
        b, [most] = self.b, given
        by = self.v.constant(LOG2_E, most.type.count)
        if self.made.src is BF16:
            by = b.select(b.fcmp("ogt", b.intrinsic("fabs", most), FAR), 1.0, by)
        least = b.fneg(b.fmul(most, by))
        return [b.fadd(least, self._lowered) if self.scaled else least, by]

    @property
    def _degree(self) -> int:
        """That of the polynomial of a short exponential."""
        return 3 if self.made.dst is BF16 else 4

    @property
    def _lowered(self) -> float:
        """What is added to all exponents of a row, so that no result is subnormal.

        Its least term that is not 0 is 2**-126.5 then, and its sum 2**-0.5 at most (both times the number
        that makes the polynomial begin with 1).
        """
        return -0.5 - math.log2(max(1, self.made.rows.size))

    def _exponential(self, x: Value, given: Values) -> Value:
        """exp(x - most), in which what the difference was rounded by is put right.

        Where nothing is left, of -inf for instance, exp(0) is computed and dropped: on its way to zero it
        would become subnormal. Rounded to bf16 by an instruction, that is 0 anyway; f16 has no such numbers.
        """
        b = self.b
        if self.scaled:
            if len(given) > 1:
                return exp2_and_half(b, b.fmuladd(x, given[1], given[0]), self._degree, True)
            argument = b.fmuladd(b.fsub(x, given[0]), LOG2_E, self._lowered)
            return exp2_and_half(b, argument, self._degree, True)
        if self.made.short:
            folded = len(given) > 1
            argument = b.fmuladd(x, given[1], given[0]) if folded else b.fmul(b.fsub(x, given[0]), LOG2_E)
            return exp2(b, argument, None if self._flushes else self.least, self._degree)
        d, error = self._exact(b.fsub, x, given[0])
        gone = b.fcmp("ole", d, self.nothing_below)
        if self.briefly:
            e = functions.exp_of_near(
                b, b.select(b.fcmp("ogt", self.nothing_below, d), self.nothing_below, d)
            )
            return b.select(gone, 0.0, b.fmuladd(e, error, e))
        d, error = b.select(gone, 0.0, d), b.select(gone, 0.0, error)
        e = functions.exp(b, d)
        return b.select(gone, 0.0, b.fadd(e, b.fmul(e, error)))

    def _exact(self, combine: Callable[[Value, Value], Value], x: Value, y: Value) -> tuple[Value, Value]:
        """A sum or a difference, and what it was rounded by (Knuth), whichever of the two is larger."""
        b = self.b
        z = combine(x, y)
        of_y = b.fsub(z, x)
        of_x = b.fsub(z, of_y)
        back = b.fadd if combine == b.fsub else b.fsub
        return z, combine(b.fsub(x, of_x), back(y, of_y))

    def _compensated(self, e: Value, total: Value, rest: Value) -> Values:
        """A sum with one more term, and what all terms together were rounded by.

        Knuth's sum tells that of each addition, and these are added up. Kahan's adds what was lost to the
        next term: four additions in place of seven, which lose what is small beside the next term. The
        logarithm of a sum that is nearly 1 needs that, too.
        """
        if self.briefly and not self.made.log:
            term = self.b.fadd(e, rest)
            longer = self.b.fadd(total, term)
            return [longer, self.b.fsub(term, self.b.fsub(longer, total))]
        total, lost = self._exact(self.b.fadd, total, e)
        return [total, self.b.fadd(rest, lost)]

    def _together(self, one: Values, other: Values) -> Values:
        """Two sums, perhaps each with what it was rounded by, as one."""
        if not self.careful:
            return [self.b.fadd(one[0], other[0])]
        total, lost = self._exact(self.b.fadd, one[0], other[0])
        return [total, self.b.fadd(self.b.fadd(one[1], other[1]), lost)]

    def _factor(self, given: Values) -> Values:
        """1 / sum, or log(total + rest) = log(total) + rest / total."""
        b = self.b
        if self.made.log:
            total, rest = given
            return [b.fadd(functions.log(b, total), b.fdiv(rest, total))]
        return [b.fdiv(1.0, b.fadd(*given) if self.careful else given[0])]
