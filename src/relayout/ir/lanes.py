"""Vectors of elements on their way from a source to a destination.

What pooling and softmax have in common below their loops: elements are loaded in the data type of the source,
computed with, in f32 or as the integers that they are, and stored in the data type of the destination.

>>> from relayout.dtypes import dtype
>>> from relayout.ir.types import PTR
>>> from relayout.targets.machine import machine
>>> b = Builder(machine("x86-64-v3"))
>>> v = Lanes(b, dtype("f32"), dtype("f32"))
>>> v.store(Value("%to", PTR), v.larger(v.load(Value("%a", PTR), 8), v.load(Value("%b", PTR), 8)))
>>> print(b.body())
  %v1 = load <8 x float>, ptr %a, align 4
  %v2 = load <8 x float>, ptr %b, align 4
  %v3 = fcmp ogt <8 x float> %v1, %v2
  %v4 = select <8 x i1> %v3, <8 x float> %v1, <8 x float> %v2
  store <8 x float> %v4, ptr %to, align 4
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import inf
from typing import Final

from relayout.dtypes import DType, dtype
from relayout.errors import LayoutError
from relayout.ir.builder import Builder
from relayout.ir.conversions import flushed, from_f32, to_f32
from relayout.ir.types import FLOAT, I16, I32, Type, Value, constant, integer, poison, vector
from relayout.ir.vectors import halves, join, load_pieces, pieces_of, store_pieces
from relayout.targets.machine import LINE, Machine

__all__ = ["INFINITE", "Lanes", "lanes_of"]

F32, F16 = dtype("f32"), dtype("f16")
INFINITE: Final = {"bf16": 0x7F80, "f16": 0x7C00}
"""The bits of infinity."""
STREAMED = 32  # bytes of the shortest vector that is stored around the caches


def lanes_of(machine: Machine, src: DType, whole: bool = False, short: bool = False) -> int:
    """Elements of a register, as they are computed with."""
    return machine.vector // (src.bits // 8 if whole else 2 if short else 4)


class Lanes:
    """Loads, arithmetic and stores.

    Parameters
    ----------
    b : Builder
        What is being written.
    src, dst : DType
        What is loaded and stored.
    whole : bool
        Compute with the elements that the source holds, which the destination holds too, and pick among them;
        else in f32.
    picks : str
        Whether the largest (``gt``) or smallest (``lt``) are picked of elements as they are. Integers are
        compared by themselves. Of bf16 and f16 the bits are made integers in the order of the numbers: twice
        as many fit a register as there are f32, and nothing is rounded.
    short : bool
        Whether bytes of the source are added up in 16 bits, which hold all sums; :meth:`real` makes f32 of
        these before they are stored.
    flushes : bool
        Whether bf16 that would be subnormal may be stored as 0.
    pairs : bool
        Whether vectors that fill a register with bf16 hold elements of even number first, then those of odd
        number: see :meth:`load`. For whoever does the same with all lanes, or combines them.
    upward : bool
        Whether a bf16 half-way between two may be stored as the upper one where no instruction rounds: for
        results that are known to less than that. They are in pairs, and of a NaN the lower half is 0.
    near : bool
        Whether what becomes integers is known to be numbers that s32 can hold.
    """

    def __init__(
        self,
        b: Builder,
        src: DType,
        dst: DType,
        whole: bool = False,
        picks: str = "",
        short: bool = False,
        flushes: bool = False,
        pairs: bool = False,
        upward: bool = False,
        near: bool = False,
    ) -> None:
        self.b, self.src, self.dst, self.whole, self.short = b, src, dst, whole, short
        self.flushes, self.pairs, self.upward, self.near = flushes, pairs, upward, near
        self.ordered, self.smallest = whole and src.name in INFINITE and bool(picks), picks == "lt"
        self.element = integer(src.bits) if whole else I16 if short else FLOAT
        self.most = lanes_of(b.machine, src, whole, short)

    def constant(self, number: float, count: int) -> Value:
        """A number in all lanes."""
        return constant(vector(count, self.element), self._number(number))

    def _number(self, number: float) -> float:
        """A number as lanes hold it."""
        if not self.ordered:
            return int(number) if self.whole or self.short else number
        if abs(number) != inf:
            raise LayoutError(f"{number} is no number that {self.src} are compared with")
        top = INFINITE[self.src.name]
        return (top if number > 0 else -top - 1) + self._shift

    @property
    def _shift(self) -> int:
        """By how much numbers are shifted, so that NaN of one sign wrap around to those of the other.

        The integers in front of the lowest number are NaN with a sign, and those behind the largest are NaN
        without. Shifted by as many as one of the two, all are on one side, for one addition.
        """
        strange = 0x7FFF - INFINITE[self.src.name]
        return strange if self.smallest else -strange

    def nearest(self, number: float) -> float:
        """A number, or the nearest of the integers that are computed with: for -infinity the lowest."""
        integers = self.whole and not self.ordered
        return min(max(number, self.src.min), self.src.max) if integers else number

    # -- memory ---------------------------------------------------------------------------------------------

    def load(
        self, pointer: Value, count: int, valid: int | None = None, filler: float | None = None
    ) -> Value:
        """Neighbouring elements; from ``valid`` on nothing is read: they hold the filler, or anything.

        In pairs, two bf16 are a word, whose upper half is the second of them once the lower is zero, and the
        first once it is shifted: two instructions for two registers of f32, in place of four that widen.
        """
        valid = count if valid is None else valid
        if self.in_pairs(count):
            return self._paired(pointer, count, valid, filler)
        x = self._loaded(pointer, self.src, count, valid)
        if filler is None or valid == count:
            return x
        return self.b.shuffle(x, [k if k < valid else count for k in range(count)], self._number(filler))

    def reload(self, pointer: Value, count: int, valid: int) -> Value:
        """Elements that :meth:`store` wrote; lanes from ``valid`` on hold anything."""
        return self._loaded(pointer, self.dst, count, valid)

    def store(self, pointer: Value, x: Value, valid: int | None = None, stream: bool = False) -> None:
        """Write the first ``valid`` lanes, or all; whole vectors around the caches, if that is wanted."""
        count, size = x.type.count, self.dst.bits // 8
        plain, whole = self.whole or self.dst is F32, valid in (None, count)
        past = stream and whole and count * size >= STREAMED
        pieces = pieces_of(0, count if valid is None else valid, 0, size)
        paired = self.in_pairs(count)
        if paired and not flushed(self.b.machine, count) and (self.upward or self._rounds_in_pairs):
            made, paired = (self._put_together if self.upward else self.rounded_in_pairs)(x), False
        else:
            made = self._as_stored(x) if plain else from_f32(self.b, x, self.dst, self.flushes, self.near)
        if paired:
            made = self.b.shuffle(made, [k // 2 + k % 2 * (count // 2) for k in range(count)])
        store_pieces(self.b, made, pointer, pieces, min(LINE, count * size) if past else 0, past)

    def in_pairs(self, count: int) -> bool:
        """Whether vectors of so many elements hold even ones first."""
        return self.pairs and 2 * count % self.b.machine.vector == 0

    def _paired(self, pointer: Value, count: int, valid: int, filler: float | None) -> Value:
        """Elements of even number, then those of odd number."""
        b = self.b
        words = b.bitcast(self.raw(pointer, count, valid, filler), vector(count // 2, I32))
        return b.real(join(b, [b.shl(words, 16), b.and_(words, -0x10000)]))

    def raw(self, pointer: Value, count: int, valid: int, filler: float | None = None) -> Value:
        """Neighbouring bf16 or f16 as the bits that they are; what is not valid holds the filler, or 0."""
        b, kind = self.b, vector(count, I16)
        x = load_pieces(b, kind, pointer, pieces_of(0, valid, 0, 2))
        if filler is None or valid == count:
            return x
        [bits] = struct.unpack(
            "<h", struct.pack("<e", filler) if self.src is F16 else struct.pack("<f", filler)[2:]
        )
        return b.shuffle(x, [k if k < valid else count for k in range(count)], bits)

    def _put_together(self, x: Value) -> Value:
        """Elements of even number and those of odd number as bf16, halves rounded up: words of two."""
        b, count = self.b, x.type.count
        even, odd = (b.add(b.bits(half), 0x8000) for half in halves(b, x))
        low, high = (b.bitcast(words, vector(count, I16)) for words in (b.lshr(even, 16), odd))
        return b.shuffle(low, [k + count * (k % 2) for k in range(count)], high)

    @property
    def _rounds_in_pairs(self) -> bool:
        """Whether words of two are rounded as they are: where nothing but integer instructions rounds."""
        return self.b.machine.is_avx2 and self.dst.name == "bf16"

    def rounded_in_pairs(self, x: Value) -> Value:
        """Elements of even number and those of odd number as bf16 in order, to the nearest, halves to even.

        Upper halves are put together, and so are lower ones: one is added where the lower half is more than
        2**15, or just that and the upper half is odd. In other words, where it has its highest bit even with
        one less, if the upper half is even. That takes eight instructions for 16 numbers and no permutation.
        One comparison tells NaN in either half.
        """
        b, count = self.b, x.type.count
        turns = [k + count * (k % 2) for k in range(count)]
        parts = halves(b, x)
        even, odd = map(b.bits, parts)

        def words(low: Value, high: Value) -> Value:
            low, high = (b.bitcast(half, vector(count, I16)) for half in (low, high))
            return b.shuffle(low, turns, high)

        upper, lower = words(b.lshr(even, 16), odd), words(even, b.shl(odd, 16))
        up = b.ashr(b.intrinsic("usub.sat", lower, b.and_(b.xor(upper, -1), 1)), 15)
        in_order = [k // 2 + k % 2 * (count // 2) for k in range(count)]
        return b.unless(
            b.any(b.fcmp("uno", *parts)),
            b.sub(upper, up),
            lambda: from_f32(b, b.shuffle(x, in_order), self.dst),
        )

    def _loaded(self, pointer: Value, kind: DType, count: int, valid: int) -> Value:
        plain = self.whole or kind is F32
        type: Type = vector(count, self.element if plain else integer(kind.bits))
        pieces = pieces_of(0, valid, 0, kind.bits // 8)
        raw = load_pieces(self.b, type, pointer, pieces, rest=poison(type))
        if self.short and kind is self.src:
            return self.b.resize(raw, 16, kind.is_signed)
        return self._in_order(raw) if plain else to_f32(self.b, raw, kind)

    def _in_order(self, x: Value) -> Value:
        """Bits of 16-bit floating point as integers in the order of the numbers, -0 in front of 0.

        Those below 0 have their bits turned over, but for the sign. A NaN comes in front of all others, or
        behind all, whatever its sign.
        """
        if not self.ordered:
            return x
        b, shift = self.b, self._shift
        return b.select(b.icmp("slt", x, 0), b.sub(constant(x.type, 0x7FFF + shift), x), b.add(x, shift))

    def _as_stored(self, x: Value) -> Value:
        """The way back; there is one NaN."""
        if not self.ordered:
            return x
        b, top, shift = self.b, INFINITE[self.src.name], self._shift
        strange = b.icmp("slt", x, shift - top - 1) if self.smallest else b.icmp("sgt", x, top + shift)
        nan = top | (top & ~(top << 1)) >> 1
        return b.select(strange, nan, self._turned(b.sub(x, shift)))

    def _turned(self, x: Value) -> Value:
        """All bits but the sign turned over, where that is set."""
        return self.b.xor(x, self.b.and_(self.b.ashr(x, 15), 0x7FFF))

    # -- arithmetic -----------------------------------------------------------------------------------------

    def added(self, x: Value, other: Value) -> Value:
        """The sum of two."""
        return (self.b.add if self.short else self.b.fadd)(x, other)

    def real(self, x: Value) -> Value:
        """Lanes as f32, which holds all sums of 16 bits."""
        return self.b.sitofp(x, FLOAT) if self.short else x

    def larger(self, x: Value, other: Value) -> Value:
        """The larger of two; where one is NaN, the second."""
        return self._of_two("gt", x, other)

    def _of_two(self, which: str, x: Value, other: Value) -> Value:
        """The first where it compares as ``which`` says, else the second."""
        b, signed = self.b, "s" if self.ordered or self.src.is_signed else "u"
        found = b.icmp(signed + which, x, other) if self.whole else b.fcmp("o" + which, x, other)
        return b.select(found, x, other)

    def picked(self, which: str, first: Value, others: Sequence[Value]) -> Value:
        """The largest (``gt``) or smallest (``lt``) of several; NaN if there is one among them.

        A NaN in the first vector stays, since the second is taken where two can't be compared. One comparison
        finds those of two others.
        """
        b, x = self.b, first
        for other in others:
            x = self._of_two(which, other, x)
        if self.whole:
            return x
        pairs = zip(others[::2], [*others[1::2], others[-1]], strict=False)
        strange, *more = [b.fcmp("uno", one, two) for one, two in pairs]
        for found in more:
            strange = b.or_(strange, found)
        return b.select(strange, float("nan"), x)
