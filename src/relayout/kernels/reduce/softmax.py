"""Softmax: the kernel.

Three passes over the elements along an axis, which stay in the first cache::

    m = max(x)      s = sum(exp(x - m))      exp(x - m) / s       or, for the logarithm, x - m - log(s)

The second pass stores its exponentials where the destination is f32 and the third only multiplies; other data
types, which would be rounded twice, are computed anew.

Lanes are neighbours along the axis, combined in the end (``nhwc`` along channels), or else neighbours along
other axes, each with an axis of its own (``nchw`` along channels). What comes of padding and of the last
elements is never loaded: such lanes hold -inf, which adds nothing.

How it stays within a few units in the last place of f32, however long the axis is and however far apart the
elements are: what ``x - m`` is rounded by is computed, too, and multiplied into the exponential. Sums of many
terms are compensated, and the logarithm gets what the sum was rounded by: in a row of 0 and -20, where the
sum rounds to 1, log(s) is still 2e-9.

Special values need no code: an infinite maximum makes NaN of ``x - m``, and a NaN anywhere makes the sum NaN.
So a row of -inf alone is NaN, as in PyTorch; -inf among numbers is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from relayout.dtypes import DType, dtype
from relayout.ir import math as functions
from relayout.ir.lanes import Lanes, Loops, entry
from relayout.kernels.reduce.joint import Block, Joint, Loop
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "Normalisation", "module"]

ENTRY = "softmax"
TOGETHER = 4  # vectors that are worked on together
ROWS = 4  # rows that are worked on together, where they are short: each waits for its own sums
SHORT = 32  # elements
FEW = 16  # terms that are summed up one after the other without compensation
NOTHING_BELOW = -104.0  # the exponential rounds to zero


@dataclass(frozen=True)
class Normalisation:
    """What is computed: a softmax without formats."""

    log: bool
    src: DType
    dst: DType
    joint: Joint
    """Blocks of what is around the axis, and the pieces of the axis."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of an element on either side."""
        return self.src.bits // 8, self.dst.bits // 8

    @property
    def longest(self) -> int:
        """Neighbours along the axis, at most."""
        return max(piece.run for piece in self.joint.pieces)

    @property
    def around(self) -> int:
        """Neighbours along other axes, in the block of most elements."""
        return max((_count(block), block.run) for block in self.joint.blocks)[1]

    def is_along(self, lanes: int) -> bool:
        """Whether lanes are neighbours along the axis."""
        return self.around == 1 or self.longest >= min(lanes, max(2, self.around))

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something."""
        lanes = Lanes(Loops(), machine, self.src, self.dst).most
        return min(lanes, self.longest if self.is_along(lanes) else self.around)


def _count(block: Block) -> int:
    """Elements of a block."""
    total = block.run
    for loop in block.loops:
        total *= loop.extent
    return total


def module(made: Normalisation, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`."""
    w = Loops()
    along = made.is_along(Lanes(w, machine, made.src, made.dst).most)
    for block in made.joint.blocks:
        if along:
            for rows, others in _grouped(block, made.sizes, ROWS if made.longest <= SHORT else 1):
                _Along(w, machine, made, rows, others).write()
        else:
            for part in _chunks(block, TOGETHER * Lanes(w, machine, made.src, made.dst).most, made.sizes):
                _Across(w, machine, made, part).write()
    return entry(ENTRY, w)


def _chunks(block: Block, most: int, sizes: tuple[int, int]) -> list[Block]:
    """A block with a run of at most so many elements: whole ones in a loop, and what is left over."""
    e, f = sizes
    times, rest = divmod(block.run, most)
    out = []
    if times:
        out.append(block._replace(loops=(*block.loops, Loop(times, most * e, most * f)), run=most))
    if rest:
        first = times * most
        out.append(block._replace(src=block.src + first * e, dst=block.dst + first * f, run=rest))
    return out


def _grouped(block: Block, sizes: tuple[int, int], many: int) -> list[tuple[Block, tuple[Loop, ...]]]:
    """A block without a run, and the rows that a task has besides its first: groups of many, and the rest."""
    loops = (*block.loops, Loop(block.run, *sizes)) if block.run > 1 else block.loops
    block = block._replace(loops=loops, run=1)
    if many == 1 or not loops:
        return [(block, ())]
    inner = loops[-1]
    times, rest = divmod(inner.extent, many)
    out = []
    if times:
        groups = Loop(times, many * inner.src, many * inner.dst)
        rows = tuple(Loop(1, k * inner.src, k * inner.dst) for k in range(1, many))
        out.append((block._replace(loops=(*loops[:-1], groups)), rows))
    if rest:
        at = block._replace(
            src=block.src + times * many * inner.src,
            dst=block.dst + times * many * inner.dst,
            loops=(*loops[:-1], inner._replace(extent=rest)),
        )
        out.append((at, ()))
    return out


class _Visit(NamedTuple):
    """A vector of elements: their addresses, how many they are, and which accumulator is theirs."""

    src: str
    dst: str
    valid: int
    slot: int


Values = list[str]
Body = Callable[[_Visit, Values], Values]


class _Passes:
    """The three passes, over vectors that subclasses visit."""

    count: int
    """Elements of a vector."""
    slots: int
    """How many vectors have accumulators of their own."""
    terms: int
    """How many terms each accumulator adds up."""

    def __init__(self, w: Loops, machine: Machine, made: Normalisation, block: Block) -> None:
        self.w, self.machine, self.made, self.block = w, machine, made, block
        self.v = Lanes(w, machine, made.src, made.dst)
        self.stores = made.dst is dtype("f32") and not made.log

    def write(self) -> None:
        """All tasks: one for each turn of the loops around."""
        w, loops = self.w, self.block.loops
        total = 1
        for loop in loops:
            total *= loop.extent

        def task(number: str) -> None:
            src, dst = w.at("%src", self.block.src), w.at("%dst", self.block.dst)
            for loop, index in zip(loops, w.digits(number, [loop.extent for loop in loops]), strict=True):
                src, dst = w.offset(src, index, loop.src), w.offset(dst, index, loop.dst)
            self._task(src, dst)

        w.tasks(total, task)

    def _task(self, src: str, dst: str) -> None:
        v, n = self.v, self.count
        kind = v.of(n)

        def largest(at: _Visit, given: Values) -> Values:
            return [v.larger(self._loaded(at), given[0], n)]

        first = [[(kind, v.constant(float("-inf"), n))] for _ in range(self.slots)]
        most = self._greatest([given[0] for given in self._visit(src, dst, first, largest)])

        def added(at: _Visit, given: Values) -> Values:
            e = self._exponential(self._loaded(at), most[at.slot])
            if self.stores:
                v.store(at.dst, e, n, at.valid)
            return self._compensated(e, *given) if self.careful else [v.do("fadd", given[0], e, n)]

        first = [[(kind, v.constant(0, n))] * (2 if self.careful else 1) for _ in range(self.slots)]
        factors = self._factors(self._visit(src, dst, first, added))

        def last(at: _Visit, given: Values) -> Values:
            if self.stores:
                y = v.do("fmul", v.reload(at.dst, n, at.valid), factors[at.slot], n)
            elif self.made.log:
                y = v.do("fsub", v.do("fsub", self._loaded(at), most[at.slot], n), factors[at.slot], n)
            else:
                y = v.do("fmul", self._exponential(self._loaded(at), most[at.slot]), factors[at.slot], n)
            v.store(at.dst, y, n, at.valid)
            return given

        self._visit(src, dst, [[] for _ in range(self.slots)], last)

    @property
    def careful(self) -> bool:
        """Whether sums are compensated."""
        return self.made.log or self.terms > FEW

    # -- what subclasses know -------------------------------------------------------------------------------

    def _visit(
        self,
        src: str,
        dst: str,
        given: list[list[tuple[str, str]]],
        body: Body,
    ) -> list[Values]:
        """Call the body for all elements along the axis; values are handed on, apart for each slot."""
        flat = [value for values in given for value in values]
        kinds = [kind for kind, _ in flat]
        values = [value for _, value in flat]
        for piece in self.made.joint.pieces:
            values = self._nest(
                piece, 0, self.w.at(src, piece.src), self.w.at(dst, piece.dst), kinds, values, body
            )
        return self._apart(values)

    def _nest(
        self,
        piece: Block,
        depth: int,
        src: str,
        dst: str,
        kinds: list[str],
        values: Values,
        body: Body,
    ) -> Values:
        """The loops of a piece of the axis."""
        if depth == len(piece.loops):
            return self._run(piece, src, dst, kinds, values, body)
        loop = piece.loops[depth]

        def turn(i: str, given: Values) -> Values:
            at, to = self.w.offset(src, i, loop.src), self.w.offset(dst, i, loop.dst)
            return self._nest(piece, depth + 1, at, to, kinds, given, body)

        return self.w.repeat(0, loop.extent, 1, list(zip(kinds, values, strict=True)), turn)

    def _run(
        self,
        piece: Block,
        src: str,
        dst: str,
        kinds: list[str],
        values: Values,
        body: Body,
    ) -> Values:
        """The run of a piece."""
        raise NotImplementedError

    def _greatest(self, found: Values) -> Values:
        """The maximum in all lanes that it is for, for each slot."""
        raise NotImplementedError

    def _factors(self, sums: list[Values]) -> Values:
        """1 / sum, or log(sum), for each slot, from sums and perhaps what they were rounded by."""
        raise NotImplementedError

    # -- arithmetic -----------------------------------------------------------------------------------------

    def _apart(self, values: Values) -> list[Values]:
        """Values of each slot."""
        each = len(values) // self.slots
        return [values[k * each : (k + 1) * each] for k in range(self.slots)]

    def _called(self, body: Body, visits: list[_Visit], values: Values) -> Values:
        """The body for some vectors."""
        apart = self._apart(values)
        for at in visits:
            apart[at.slot] = body(at, apart[at.slot])
        return [value for of in apart for value in of]

    def _loaded(self, at: _Visit) -> str:
        return self.v.load(at.src, self.count, at.valid, float("-inf"))

    def _exponential(self, x: str, most: str) -> str:
        """exp(x - most), in which what the difference was rounded by is put right.

        Where nothing is left, of -inf for instance, exp(0) is computed and dropped: on its way to zero it
        would become subnormal, which takes processors a hundred times as long.
        """
        w, v, n = self.w, self.v, self.count
        zero = v.constant(0, n)
        d, error = self._exact("fsub", x, most, n)
        gone = v.do("fcmp ole", d, v.constant(NOTHING_BELOW, n), n)
        d, error = v.choose(gone, zero, d, n), v.choose(gone, zero, error, n)
        e = functions.exp(w, self.machine, d, n)
        return v.choose(gone, zero, v.do("fadd", e, v.do("fmul", e, error, n), n), n)

    def _exact(self, what: str, x: str, y: str, n: int) -> tuple[str, str]:
        """A sum or a difference, and what it was rounded by (Knuth), whichever of the two is larger."""
        v = self.v
        z = v.do(what, x, y, n)
        of_y = v.do("fsub", z, x, n)
        of_x = v.do("fsub", z, of_y, n)
        back = "fadd" if what == "fsub" else "fsub"
        lost_x, lost_y = v.do("fsub", x, of_x, n), v.do(back, y, of_y, n)
        return z, v.do(what, lost_x, lost_y, n)

    def _compensated(self, e: str, total: str, rest: str) -> Values:
        """A sum with one more term, and what all terms together were rounded by."""
        total, lost = self._exact("fadd", total, e, self.count)
        return [total, self.v.do("fadd", rest, lost, self.count)]

    def _whole(self, given: Values) -> str:
        """A sum, with what it was rounded by."""
        return self.v.do("fadd", given[0], given[1], self.count) if self.careful else given[0]

    def _reciprocal(self, total: str, count: int) -> str:
        return self.v.do("fdiv", self.v.constant(1, count), total, count)

    def _logarithm(self, total: str, rest: str, count: int) -> str:
        """log(total + rest) = log(total) + rest / total."""
        v = self.v
        log = functions.log(self.w, self.machine, total, count)
        return v.do("fadd", log, v.do("fdiv", rest, total, count), count)


class _Along(_Passes):
    """Lanes along the axis: a task is one row or a group of rows, a vector belongs to one of them."""

    def __init__(
        self, w: Loops, machine: Machine, made: Normalisation, block: Block, rows: tuple[Loop, ...]
    ) -> None:
        super().__init__(w, machine, made, block)
        self.rows = (Loop(1, 0, 0), *rows)
        self.count = min(self.v.most, 1 << (made.longest - 1).bit_length())
        self.vectors = min(TOGETHER, -(-made.longest // self.count))
        self.slots = self.vectors * len(self.rows)
        self.terms = -(-sum(_count(piece) for piece in made.joint.pieces) // (self.count * self.vectors))

    def _run(
        self,
        piece: Block,
        src: str,
        dst: str,
        kinds: list[str],
        values: Values,
        body: Body,
    ) -> Values:
        w, n, many = self.w, self.count, self.vectors
        e, f = self.made.sizes
        whole, rest = divmod(piece.run, n)
        turns = whole // many

        def visits(at: str, to: str, sizes: list[int]) -> list[_Visit]:
            return [
                _Visit(
                    w.at(at, row.src + k * n * e), w.at(to, row.dst + k * n * f), size, r * many + k % many
                )
                for r, row in enumerate(self.rows)
                for k, size in enumerate(sizes)
            ]

        def turn(i: str, given: Values) -> Values:
            at, to = w.offset(src, i, e), w.offset(dst, i, f)
            return self._called(body, visits(at, to, [n] * many), given)

        step = many * n
        values = w.repeat(0, turns * step, step, list(zip(kinds, values, strict=True)), turn)
        left = [n] * (whole - turns * many) + [rest] * (rest > 0)
        at, to = w.at(src, turns * step * e), w.at(dst, turns * step * f)
        return self._called(body, visits(at, to, left), values)

    def _of_rows(self, found: list[Values], combine: Callable[[list[Values]], str]) -> Values:
        """One value for each row, in all lanes, for each of its slots."""
        many, out = self.vectors, []
        for first in range(0, self.slots, many):
            out += [self.v.spread(combine(found[first : first + many]), self.count)] * many
        return out

    def _greatest(self, found: Values) -> Values:
        v, n = self.v, self.count

        def most(of: list[Values]) -> str:
            value = of[0][0]
            for (other,) in of[1:]:
                value = v.larger(value, other, n)
            return v.reduced(value, n, v.larger)

        return self._of_rows([[value] for value in found], most)

    def _factors(self, sums: list[Values]) -> Values:
        v, n = self.v, self.count

        def plain(of: list[Values]) -> str:
            total = self._whole(of[0])
            for given in of[1:]:
                total = v.do("fadd", total, self._whole(given), n)
            return self._reciprocal(v.reduced(total, n, lambda a, b, half: v.do("fadd", a, b, half)), 1)

        def logarithm(of: list[Values]) -> str:
            total, rest = of[0]
            for one, other in of[1:]:
                total, rest = self._together(total, rest, one, other, n)
            count = n
            while count > 1:
                (total, one), (rest, other) = (v.halves(x, count, v.of(count)) for x in (total, rest))
                count //= 2
                total, rest = self._together(total, rest, one, other, count)
            return self._logarithm(total, rest, 1)

        return self._of_rows(sums, logarithm if self.made.log else plain)

    def _together(self, total: str, rest: str, one: str, other: str, count: int) -> tuple[str, str]:
        """Two sums, each with what it was rounded by, as one."""
        v = self.v
        total, lost = self._exact("fadd", total, one, count)
        return total, v.do("fadd", v.do("fadd", rest, other, count), lost, count)


class _Across(_Passes):
    """Lanes along other axes: a task is as many rows as a run has elements."""

    def __init__(self, w: Loops, machine: Machine, made: Normalisation, block: Block) -> None:
        super().__init__(w, machine, made, block)
        self.count = min(self.v.most, 1 << (block.run - 1).bit_length())
        self.slots = -(-block.run // self.count)
        self.terms = sum(_count(piece) for piece in made.joint.pieces)

    def _run(
        self,
        piece: Block,
        src: str,
        dst: str,
        kinds: list[str],
        values: Values,
        body: Body,
    ) -> Values:
        w, n, run = self.w, self.count, self.block.run
        e, f = self.made.sizes

        def turn(i: str, given: Values) -> Values:
            at, to = w.offset(src, i, e), w.offset(dst, i, f)
            visits = [
                _Visit(w.at(at, k * n * e), w.at(to, k * n * f), min(n, run - k * n), k)
                for k in range(self.slots)
            ]
            return self._called(body, visits, given)

        return w.repeat(0, piece.run, 1, list(zip(kinds, values, strict=True)), turn)

    def _greatest(self, found: Values) -> Values:
        return found

    def _factors(self, sums: list[Values]) -> Values:
        n = self.count
        if self.made.log:
            return [self._logarithm(total, rest, n) for total, rest in sums]
        return [self._reciprocal(self._whole(given), n) for given in sums]
