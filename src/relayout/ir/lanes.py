"""Vectors of elements on their way from a source to a destination, and loops that hand values on.

What pooling and softmax have in common below their loops: elements are loaded in the data type of the source,
computed with, in f32 or as the integers that they are, and stored in the data type of the destination.

>>> from relayout.targets.machine import machine
>>> from relayout.dtypes import dtype
>>> w = Loops()
>>> lanes = Lanes(w, machine("x86-64-v3"), dtype("f32"), dtype("f32"))
>>> lanes.store("%to", lanes.larger(lanes.load("%a", 8), lanes.load("%b", 8), 8), 8)
>>> print(w.text())
  %v1 = load <8 x float>, ptr %a, align 4
  %v2 = load <8 x float>, ptr %b, align 4
  %v3 = fcmp ogt <8 x float> %v1, %v2
  %v4 = select <8 x i1> %v3, <8 x float> %v1, <8 x float> %v2
  store <8 x float> %v4, ptr %to, align 4
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from relayout.dtypes import DType, dtype
from relayout.ir import math as functions
from relayout.ir.conversions import converted
from relayout.ir.writer import Writer
from relayout.targets.machine import Machine

__all__ = ["Lanes", "Loops", "entry"]

F32 = dtype("f32")


class Loops(Writer):
    """A writer with loops that may make no turn, and hand values on."""

    def repeat(  # type: ignore[override]
        self,
        start: int | str,
        stop: int | str,
        step: int,
        given: Sequence[tuple[str, str]],
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """``for i = start; i < stop; i += step: given = body(i, given)``; the values behind the last turn.

        ``given`` are types and first values. A single constant turn is written straight.
        """
        if isinstance(start, int) and isinstance(stop, int) and start + step >= stop:
            values = [value for _, value in given]
            return body(str(start), values) if start < stop else values
        head, turn, done = self.name("loop"), self.name("turn"), self.name("done")
        before, index = self._block, "%" + self.name("i")
        self.line(f"br label %{head}")
        self.lines.append(f"{head}:")
        where = len(self.lines)
        self.lines += [""] * (1 + len(given))
        carried = ["%" + self.name("c") for _ in given]
        more = self.value(f"icmp slt i64 {index}, {stop}")
        self.line(f"br i1 {more}, label %{turn}, label %{done}")
        self.lines.append(f"{turn}:")
        self._block = turn
        after = body(index, list(carried))
        following = self.value(f"add i64 {index}, {step}")
        rows = [(index, "i64", str(start), following)]
        rows += [
            (name, kind, first, last) for name, (kind, first), last in zip(carried, given, after, strict=True)
        ]
        for k, (name, kind, first, last) in enumerate(rows):
            self.lines[where + k] = f"  {name} = phi {kind} [{first}, %{before}], [{last}, %{self._block}]"
        self.line(f"br label %{head}")
        self.lines.append(f"{done}:")
        self._block = done
        return carried

    def offset(self, pointer: str, index: int | str, step: int) -> str:
        """The address ``index * step`` bytes behind a pointer."""
        if isinstance(index, int) or index.isdigit():
            return self.at(pointer, int(index) * step)
        return self.at(pointer, self.times(index, step)) if step else pointer

    def least(self, one: int | str, two: int | str) -> str:
        """The smaller of two numbers."""
        return self.value(f"call i64 @llvm.smin.i64(i64 {one}, i64 {two})")

    def largest(self, one: int | str, two: int | str) -> str:
        """The larger of two numbers."""
        return self.value(f"call i64 @llvm.smax.i64(i64 {one}, i64 {two})")

    def tasks(self, total: int, task: Callable[[str], None]) -> None:
        """Do the share of ``%part`` of ``%parts`` of so many tasks."""
        following = self.value("add i64 %part, 1")
        lo, hi = (
            self.value(f"udiv i64 {self.value(f'mul i64 {part}, {total}')}, %parts")
            for part in ("%part", following)
        )

        def turn(i: str, given: list[str]) -> list[str]:
            task(i)
            return given

        self.repeat(lo, hi, 1, [], turn)

    def digits(self, number: str, extents: Sequence[int]) -> list[str]:
        """A number taken apart, the last digit the fastest."""
        out: list[str] = []
        for k, extent in reversed(list(enumerate(extents))):
            if extent == 1:
                out.append("0")
            elif all(other == 1 for other in extents[:k]):
                out.append(number)
            else:
                out.append(self.value(f"urem i64 {number}, {extent}"))
                number = self.value(f"udiv i64 {number}, {extent}")
        return out[::-1]


def entry(name: str, w: Writer) -> str:
    """A module with one kernel."""
    head = f"define void @{name}(ptr %src, ptr %dst, ptr %ops, i64 %part, i64 %parts)"
    return f"{head} {{\nentry:\n{w.text()}\n  ret void\n}}\n"


class Lanes:
    """Loads, arithmetic and stores; ``count`` is always a power of two.

    Parameters
    ----------
    w, machine
        What is being written, and for which processor.
    src, dst : DType
        What is loaded and stored.
    whole : bool
        Compute with the integers that the source holds, which the destination holds too; else in f32.
    """

    def __init__(self, w: Loops, machine: Machine, src: DType, dst: DType, whole: bool = False) -> None:
        self.w, self.machine, self.src, self.dst = w, machine, src, dst
        self.whole = whole
        self.element = f"i{src.bits}" if whole else "float"
        self.most = machine.vector // (src.bits // 8 if whole else 4)
        """Elements of a register."""

    def of(self, count: int) -> str:
        """The type of a vector."""
        return f"<{count} x {self.element}>"

    def constant(self, number: float, count: int) -> str:
        """A number in all lanes."""
        if self.whole:
            return f"<{', '.join([f'{self.element} {int(number)}'] * count)}>"
        bits = struct.unpack(">Q", struct.pack(">d", functions.single(number)))[0]
        return f"<{', '.join([f'float 0x{bits:016X}'] * count)}>"

    @property
    def lowest(self) -> float:
        """What is larger than nothing."""
        return self.src.min if self.whole else float("-inf")

    def spread(self, scalar: str, count: int) -> str:
        """A vector of one element in all lanes of a longer one."""
        return self.w.shuffle(scalar, "poison", self.of(1), [0] * count)

    # -- memory ---------------------------------------------------------------------------------------------

    def load(self, pointer: str, count: int, valid: int | None = None, filler: float = 0.0) -> str:
        """Neighbouring elements; lanes from ``valid`` on are not read, and hold the filler."""
        raw = self._raw(pointer, self.src, count, count if valid is None else valid)
        value = self._computed(raw, self.src, count)
        if valid is None or valid == count:
            return value
        picks = [lane if lane < valid else count for lane in range(count)]
        return self.w.shuffle(value, self.constant(filler, count), self.of(count), picks)

    def reload(self, pointer: str, count: int, valid: int) -> str:
        """Elements that :meth:`store` wrote; lanes from ``valid`` on hold anything."""
        return self._computed(self._raw(pointer, self.dst, count, valid), self.dst, count)

    def store(self, pointer: str, value: str, count: int, valid: int | None = None) -> None:
        """Write the first ``valid`` lanes, or all."""
        w, bits = self.w, self.dst.bits
        plain = self.whole or self.dst is F32
        element = self.element if plain else f"i{bits}"
        if not plain:
            words = w.value(f"bitcast {self.of(count)} {value} to <{count} x i32>")
            value = converted(w, self.machine, words, count, F32, self.dst)
        for first, length in _pieces(count if valid is None else valid):
            part, kind = value, f"<{length} x {element}>"
            if length < count:
                part = w.shuffle(value, "poison", f"<{count} x {element}>", range(first, first + length))
            w.line(f"store {kind} {part}, ptr {w.at(pointer, first * bits // 8)}, align {bits // 8}")

    def _raw(self, pointer: str, kind: DType, count: int, valid: int) -> str:
        """Elements in storage form, f32 as floats; pieces of powers of two are put together."""
        w, size = self.w, kind.bits // 8
        element = "float" if kind is F32 and not self.whole else f"i{kind.bits}"
        value = ""
        for first, length in _pieces(valid):
            at = w.at(pointer, first * size)
            part = w.value(f"load <{length} x {element}>, ptr {at}, align {size}")
            if length < count:
                picks = [lane - first if first <= lane < first + length else -1 for lane in range(count)]
                part = w.shuffle(part, "poison", f"<{length} x {element}>", picks)
            if value:
                picks = [lane if lane < first else count + lane for lane in range(count)]
                part = w.shuffle(value, part, f"<{count} x {element}>", picks)
            value = part
        return value

    def _computed(self, raw: str, kind: DType, count: int) -> str:
        if self.whole or kind is F32:
            return raw
        words = converted(self.w, self.machine, raw, count, kind, F32)
        return self.w.value(f"bitcast <{count} x i32> {words} to {self.of(count)}")

    # -- arithmetic -----------------------------------------------------------------------------------------

    def do(self, what: str, one: str, two: str, count: int) -> str:
        """An operation on two vectors."""
        return self.w.value(f"{what} {self.of(count)} {one}, {two}")

    def choose(self, condition: str, yes: str, no: str, count: int) -> str:
        """One of two, lane by lane."""
        kind = self.of(count)
        return self.w.value(f"select <{count} x i1> {condition}, {kind} {yes}, {kind} {no}")

    def larger(self, x: str, other: str, count: int) -> str:
        """The larger of two; where one is NaN, the second."""
        order = ("icmp sgt" if self.src.is_signed else "icmp ugt") if self.whole else "fcmp ogt"
        return self.choose(self.do(order, x, other, count), x, other, count)

    def largest(self, first: str, others: Sequence[str], count: int) -> str:
        """The largest of several; NaN if there is one among them.

        A NaN in the first vector stays, since :meth:`larger` gives the second where it can't compare. One
        comparison finds those of two others.
        """
        value = first
        for other in others:
            value = self.larger(other, value, count)
        if self.whole:
            return value
        found = [
            self.do("fcmp uno", one, two, count)
            for one, two in zip(others[::2], [*others[1::2], others[-1]], strict=False)
        ]
        strange = found[0]
        for more in found[1:]:
            strange = self.w.value(f"or <{count} x i1> {strange}, {more}")
        return self.choose(strange, self.constant(float("nan"), count), value, count)

    def halves(self, value: str, count: int, kind: str) -> tuple[str, str]:
        """The lower and the upper half of a vector."""
        half = count // 2
        return (
            self.w.shuffle(value, "poison", kind, range(half)),
            self.w.shuffle(value, "poison", kind, range(half, count)),
        )

    def reduced(self, value: str, count: int, combine: Callable[[str, str, int], str]) -> str:
        """All lanes combined, as a vector of one."""
        while count > 1:
            one, two = self.halves(value, count, self.of(count))
            count //= 2
            value = combine(one, two, count)
        return value


def _pieces(count: int) -> list[tuple[int, int]]:
    """A count as powers of two, largest first: each with where it begins.

    >>> _pieces(13)
    [(0, 8), (8, 4), (12, 1)]
    """
    out, first = [], 0
    while first < count:
        length = 1 << ((count - first).bit_length() - 1)
        out.append((first, length))
        first += length
    return out
