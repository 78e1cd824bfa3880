"""Pooling of pictures that are narrow, and one piece of memory: several of them stacked, as one long row.

In ``nchw`` a row of 14 bytes fills less than half of a register of AVX2, and one of 7 a quarter. But where
stride is 1 and windows keep the size of a picture, results lie in it as elements do, and rows need not be
told apart (so it is in :mod:`~.planes`, for registers of 64 bytes). Three passes over a stack of pictures,
all of which take whole registers, whatever a row is::

    1. stacked       0 0 0          converted, once an element: bytes that are added up to 16 bits, bf16 and
                     a b c          f16 to f32, or to integers in their order; rows of padding in between
                     d e f
                     0 0 0
                     g h i
    2. columns       a + d, b + e, ...       each with what lies a row above and below it
    3. along rows    three loads, one element apart; neighbours beyond an edge are masked, by a table

Where bf16 and f16 are averaged a part of a large picture is a stack, too: a band of rows, with the rows above
and below it that its windows reach.

A stack is some kilobytes, so that what a pass stores has left the processor when the next one loads it at
other places: a load that straddles stores which have not waits for them. Loads of pictures one by one did.

Padding takes part as zeros, or as the lowest number, and what sums are divided by is known for each result:
where padding is not counted, and there are several such numbers, they are a table as well. Averages of bytes
are rounded as :mod:`~.rounding` says, those of bf16 and f16 are products in two parts as in
:mod:`~.overlapping`.

Traps: the last register of a picture steps back, so a picture has at least as many elements as one. The first
pass reads elements alone, the last one writes results alone; what lies between is the stack's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from relayout.ir.builder import Function, Operand, numbers_of, table
from relayout.ir.kernel import kernel
from relayout.ir.lanes import INFINITE, Lanes
from relayout.ir.types import FLOAT, I8, I16, I32, I64, PTR, Value, constant, vector
from relayout.ir.vectors import pieces_of, store_pieces
from relayout.kernels.reduce.axis import within
from relayout.kernels.reduce.blocks import in_tasks
from relayout.kernels.reduce.overlapping import reciprocal
from relayout.kernels.reduce.rounding import divided, divisor, nearest, rounded
from relayout.kernels.reduce.window import Window
from relayout.loops.nest import Nest
from relayout.ops.reductions import REDUCTIONS
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "lanes", "module", "suits"]

ENTRY = "stacked"
MOST_TAPS = 7  # of a window along an axis
MOST_BYTES = 1 << 13  # of a picture, or of a band of one, as it is computed with
LEAST_ROWS = 4  # of a band
MOST_TABLE = 1 << 15  # bytes of the divisors of a picture
MOST_CHANNELS = 4  # that are neighbours, of floating point: more fill registers by themselves
MOST_ROW = 40  # elements of a row of which the largest are found: longer ones take less time on their own
MOST_PAIRED = 64  # elements of a row of bf16, which in longer ones are added up in pairs
MOST_BLOCKS = 4
STACK = 1 << 12  # bytes of the pictures of a stack, about
REGISTER = 32  # bytes
WRITTEN_OUT = 4  # registers of a picture that take no loop
TOGETHER = 2  # vectors of a turn
PACKED = "llvm.x86.avx2.packuswb"


def suits(window: Window, machine: Machine) -> bool:
    """Whether results lie in pictures as elements do, and it is bytes or 16-bit floating point."""
    depth, y, x = window.axes
    if not machine.is_avx2 or not machine.fuses or not depth.is_single or window.before:
        return False
    if window.dst is not window.src or not 0 < len(window.blocks) <= MOST_BLOCKS:
        return False
    for axis in (y, x):
        same = axis.stride == 1 and axis.size == axis.out and axis.is_filled
        if not same or axis.kernel > MOST_TAPS:
            return False
    kind = _kind(window)
    return bool(kind) and all(_Stack(window, block, kind, machine).suits for block in window.blocks)


def lanes(window: Window, machine: Machine) -> int:
    """How many lanes do something; 0 where there is no such kernel."""
    return _Stack(window, window.blocks[0], _kind(window), machine).lanes if suits(window, machine) else 0


def _kind(window: Window) -> str:
    """What is done: ``largest`` elements, ``bytes`` or ``reals`` that are averaged; nothing if it is none."""
    name = window.src.name
    if window.reduction == "max":
        return "largest" if window.whole and name in ("u8", "s8", *INFINITE) else ""
    if window.reduction != "sum" or not window.divisor:
        return ""
    if window.rounds:
        return "bytes"
    return "reals" if name in INFINITE else ""


def module(window: Window, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its tables."""
    f, texts = kernel(ENTRY, machine), []
    for k, block in enumerate(window.blocks):
        stack = _Stack(window, block, _kind(window), machine)
        tables, text = stack.tables(str(k))
        texts.append(text)
        _Block(f, stack, tables).write()
    return "".join([*texts, f.text()])


class _Stack:
    """The numbers of a stack: places are elements, counted from the first one of a picture."""

    def __init__(self, window: Window, block: Nest, kind: str, machine: Machine) -> None:
        self.window, self.block, self.kind = window, block, kind
        self.y, self.x = window.axes[1:]
        self.each, self.size = block.length, window.src.bits // 8
        self.held = {"largest": self.size, "bytes": 2, "reals": 4}[kind]  # bytes of an element
        self.lanes = machine.vector // {"largest": self.size, "bytes": 1, "reals": 2}[kind]
        self.row = self.x.size * self.each
        self.down = [offset * self.row for offset in self.y.offsets]
        self.along = [offset * self.each for offset in self.x.offsets]
        self.above, self.below = above, below = max(0, -self.down[0]), max(0, self.down[-1])
        self.rows, self.bands, most = self.y.size, 1, MOST_BYTES // (self.held * self.row)
        if self.rows + max(above, below) // self.row > most:
            self.bands = -(-self.rows // max(1, most - (above + below) // self.row))
            self.rows = -(-self.rows // self.bands)
        self.picture = self.rows * self.row
        self.pitch = self.picture + max(above, below)
        self.inner = block.around[-1].extent if block.around else 1
        self.many = max(1, min(self.inner, STACK // (self.held * self.pitch)))
        turn = TOGETHER * self.lanes
        self.columns = -(-self.many * self.pitch // turn) * turn  # in whole turns
        left, right = max(0, -self.along[0]), max(0, self.along[-1])
        self.first = _aligned(above), _aligned(left)  # where pictures begin in both rooms
        self.rooms = (
            self.first[0] + self.columns + _aligned(below),
            self.first[1] + self.columns + _aligned(right),
        )

    @property
    def suits(self) -> bool:
        """Whether there is code for such pictures."""
        each, size = self.each, self.size
        row = each * size * self.x.size
        if (self.x.src, self.x.dst, self.y.src, self.y.dst) != (each * size, each * size, row, row):
            return False
        if self.lanes > self.picture or (self.bands > 1 and self.rows < LEAST_ROWS):
            return False
        if self.kind == "reals":
            few = self.is_divided_alike or 8 * self.y.size * self.row <= MOST_TABLE
            short = self.window.src.name != "bf16" or self.row <= MOST_PAIRED
            return few and short and self.each <= MOST_CHANNELS
        if self.bands > 1:
            return False
        if self.kind == "largest":
            return self.row <= MOST_ROW and row % REGISTER > 0
        return row < REGISTER and (self.is_divided_alike or all(map(nearest, self.numbers)))

    @cached_property
    def divisors(self) -> NDArray[np.int64]:
        """By what the sums of a picture are divided, one by one: only where there are several numbers."""
        return np.repeat(np.outer(self.y.counts, self.x.counts), self.each)

    @property
    def is_divided_alike(self) -> bool:
        """Whether all sums are divided by the same number."""
        return len(self.numbers) == 1

    @cached_property
    def numbers(self) -> set[int]:
        """The different ones among the divisors."""
        if self.window.divisor == "window":
            return {self.window.most_taps}
        return {rows * columns for rows in {*self.y.counts} for columns in {*self.x.counts}}

    def inside(self, offset: int) -> NDArray[np.bool_]:
        """For each element of a picture whether that so many places further is one of its row."""
        row = [bool(within(self.row, place + offset, 1)) for place in range(self.row)]
        return np.tile(row, self.rows)

    def tables(self, suffix: str) -> tuple[dict[str, str], str]:
        """The names of all tables by what they are, and their texts."""
        data: dict[str, NDArray[np.generic]] = {}
        for offset in self.along:
            if offset:
                inside = self.inside(offset)
                if self.kind == "largest":
                    bounds = np.iinfo(f"{'u' if self._is_unsigned else 'i'}{self.size}")
                    data[f"mask{offset}"] = np.where(inside, bounds.max, bounds.min).astype(bounds.dtype)
                else:
                    bytes_ = 2 if self.kind == "bytes" else 1
                    data[f"mask{offset}"] = np.where(inside, -1, 0).astype(f"i{bytes_}")
        if self.kind != "largest" and not self.is_divided_alike:
            numbers = self.divisors.tolist()
            if self.kind == "bytes":
                by = [one for one in map(nearest, numbers) if one is not None]
                data["down"] = np.array([one.down for one in by], np.int16)
                data["up"] = np.array([one.up for one in by], np.int16)
                data["moved"] = np.array([128 * d for d in numbers], np.uint16)
            else:
                parts = {d: reciprocal(d) for d in {*numbers}}
                data["near"] = np.array([parts[d][0] for d in numbers], np.float32)
                data["rest"] = np.array([parts[d][1] for d in numbers], np.float32)
        names = {name: f"table{k}_{suffix}" for k, name in enumerate(data)}
        texts = []
        for name, array in data.items():
            raw = array.tobytes()
            texts.append(table(names[name], numbers_of(raw + bytes(-len(raw) % 8))))
        return names, "".join(texts)

    @property
    def _is_unsigned(self) -> bool:
        return self.window.src.name == "u8"


def _aligned(count: int) -> int:
    """So many elements and more, so that what lies behind them is aligned."""
    return -(-count // LINE) * LINE


class _Block:
    """Writes the loops of one block."""

    def __init__(self, b: Function, stack: _Stack, tables: dict[str, str]) -> None:
        self.b, self.stack, self.names = b, stack, tables
        window = stack.window
        self.window, self.lanes, self.held = window, stack.lanes, stack.held
        self.reduction = REDUCTIONS[window.reduction]
        largest = stack.kind == "largest"
        picks = "gt" if largest else ""
        self.v = Lanes(b, window.src, window.dst, largest, picks, stack.kind == "bytes")
        pairs = stack.kind == "reals" and window.src.name == "bf16"
        self.out = Lanes(b, window.src, window.dst, pairs=True) if pairs else self.v
        self.stacked, self.columns = (b.alloca(count * stack.held, LINE) for count in stack.rooms)

    def write(self) -> None:
        """All tasks: a stack of pictures each."""
        b, stack, block = self.b, self.stack, self.stack.block
        self._padded()
        stacked = b.gep(self.stacked, stack.first[0] * self.held)
        columns = b.gep(self.columns, stack.first[1] * self.held)

        def band(src: Value, dst: Value, part: Value) -> None:
            first = b.smin(b.mul(part, stack.rows), stack.y.size - stack.rows)
            self._band(src, stacked, first)
            skip = b.mul(first, stack.row)
            self._down(stacked, columns, b.gep(src, b.add(skip, stack.picture), stack.size))
            self._along(columns, b.gep(dst, skip, stack.size), skip)

        if stack.bands > 1:
            in_tasks(b, block.starts, block.around, band, stack.bands)
            return
        outer, inner = block.around[:-1], block.around[-1:]
        step = (inner[0].src, inner[0].dst) if inner else (0, 0)
        pitch = stack.pitch * self.held

        def task(src: Value, dst: Value, part: Value) -> None:
            first = b.smin(b.mul(part, stack.many), stack.inner - stack.many)
            src, dst = b.gep(src, first, step[0]), b.gep(dst, first, step[1])
            b.loop(0, stack.many, 1, lambda k: self._stack(b.gep(src, k, step[0]), b.gep(stacked, k, pitch)))
            self._down(stacked, columns, b.gep(src, stack.many, step[0]))
            b.loop(0, stack.many, 1, lambda k: self._along(b.gep(columns, k, pitch), b.gep(dst, k, step[1])))

        in_tasks(b, block.starts, outer, task, -(-stack.inner // stack.many))

    def _padded(self) -> None:
        """What is no element in both rooms: the same for all stacks, so it is written once."""
        b, lowest = self.b, self.v.constant(self.v.nearest(self.reduction.identity), self.lanes)
        for room, count in zip((self.stacked, self.columns), self.stack.rooms, strict=True):
            step = self.lanes

            def turn(k: Value, room: Value = room) -> None:
                b.store(lowest, b.gep(room, k, self.held), self.held)

            b.loop(0, count, step, turn)

    def _places(self, body: Callable[[Value], None]) -> None:
        """All vectors of a picture; the last one steps back."""
        b, lanes, picture = self.b, self.lanes, self.stack.picture
        whole = picture // lanes * lanes
        if whole // lanes <= WRITTEN_OUT:
            for first in range(0, whole, lanes):
                body(constant(I64, first))
        else:
            several = whole // (TOGETHER * lanes) * TOGETHER * lanes

            def turn(place: Value) -> None:
                for k in range(TOGETHER):
                    body(b.add(place, k * lanes))

            b.loop(0, several, TOGETHER * lanes, turn)
            for first in range(several, whole, lanes):
                body(constant(I64, first))
        if picture > whole:
            body(constant(I64, picture - lanes))

    def _stack(self, src: Value, to: Value) -> None:
        """A picture as it is computed with."""
        b, size = self.b, self.stack.size

        def some(place: Value) -> None:
            b.store(self.v.load(b.gep(src, place, size), self.lanes), b.gep(to, place, self.held), self.held)

        self._places(some)

    def _band(self, src: Value, to: Value, first: Value) -> None:
        """A band of a picture, which begins at ``to``, and the rows around it that its windows reach."""
        b, stack, lanes = self.b, self.stack, self.lanes
        above, below = (rows // stack.row for rows in (stack.above, stack.below))
        lowest = self.v.constant(self.v.nearest(self.reduction.identity), lanes)
        begin = b.smax(b.sub(first, above), 0)
        end = b.smin(b.add(first, stack.rows + below), stack.y.size)

        def padded(place: int, count: int) -> None:
            b.loop(place, place + count, lanes, lambda k: b.store(lowest, b.gep(to, k, self.held), self.held))

        if above:
            b.when(b.icmp("slt", first, above), lambda: padded(-stack.above, stack.above))
        if below:
            far = b.icmp("sgt", b.add(first, stack.rows + below), stack.y.size)
            b.when(far, lambda: padded(stack.picture, stack.below))
        count = b.mul(b.sub(end, begin), stack.row)
        src = b.gep(src, begin, stack.row * stack.size)
        to = b.gep(to, b.sub(begin, first), stack.row * self.held)

        def turn(place: Value) -> None:
            for k in range(TOGETHER):
                at = b.smin(b.add(place, k * lanes), b.sub(count, lanes))
                b.store(self.v.load(b.gep(src, at, stack.size), lanes), b.gep(to, at, self.held), self.held)

        b.loop(0, count, TOGETHER * lanes, turn)

    def _loaded(self, at: Value, count: int) -> Value:
        return self.b.load(vector(count, self.v.element), at, self.held)

    def _all(self, values: Sequence[Value]) -> Value:
        return self.reduction.emit(self.v, values[0], values[1:]) if len(values) > 1 else values[0]

    def _down(self, stacked: Value, columns: Value, following: Value) -> None:
        """The columns of all pictures. Meanwhile what follows in the source comes nearer, a line a turn."""
        b, lanes, held = self.b, self.lanes, self.held

        def turn(place: Value) -> None:
            b.prefetch(b.gep(following, place, self.stack.size))
            for k in range(TOGETHER):
                at = b.gep(b.gep(stacked, place, held), k * lanes * held)
                found = self._all([self._loaded(b.gep(at, down * held), lanes) for down in self.stack.down])
                b.store(found, b.gep(b.gep(columns, place, held), k * lanes * held), held)

        b.loop(0, self.stack.columns, TOGETHER * lanes, turn)

    # -- results --------------------------------------------------------------------------------------------

    def _along(self, columns: Value, dst: Value, skip: Operand = 0) -> None:
        """The results of a picture, or of a band that begins so many elements behind a picture's first."""
        b, stack = self.b, self.stack

        def some(place: Value) -> None:
            to = b.gep(dst, place, stack.size)
            if stack.kind == "bytes":
                words = [self._averaged(columns, b.add(place, k * stack.lanes // 2)) for k in range(2)]
                packed = b.bitcast(b.call_value(vector(stack.lanes, I8), PACKED, *words), vector(4, I64))
                found = b.bitcast(b.shuffle(packed, [0, 2, 1, 3]), vector(stack.lanes, I8))
                found = b.xor(found, -128) if self.window.src.is_signed else found
                store_pieces(b, found, to, pieces_of(0, stack.lanes, 0, 1))
                return
            found = self._combined(columns, place, stack.lanes)
            if stack.kind == "largest":
                self.v.store(to, found)
                return
            near, rest = self._reciprocals(b.add(place, skip))
            found = b.fma(found, near, b.fmul(found, rest))
            for function in self.window.post_ops:
                found = function.emit(b, found)
            if self.out.in_pairs(stack.lanes):
                found = b.shuffle(found, [*range(0, stack.lanes, 2), *range(1, stack.lanes, 2)])
            self.out.store(to, found)

        self._places(some)

    def _combined(self, columns: Value, place: Value, count: int) -> Value:
        """Windows, of columns; the nearest first."""
        b, stack, found = self.b, self.stack, []
        for offset in sorted(stack.along, key=abs):
            x = self._loaded(b.gep(b.gep(columns, place, self.held), offset * self.held), count)
            if offset:
                x = self._masked(
                    x, b.gep(self._at(f"mask{offset}"), place, 1 if stack.kind == "reals" else self.held)
                )
            found.append(x)
        return self._all(found)

    def _at(self, name: str) -> Value:
        return Value(f"@{self.names[name]}", PTR)

    def _masked(self, x: Value, at: Value) -> Value:
        """Elements; in place of those beyond an edge what changes nothing."""
        b, count = self.b, x.type.count
        if self.stack.kind == "largest":
            unsigned = self.window.src.name == "u8"
            return b.intrinsic("umin" if unsigned else "smin", x, b.load(x.type, at, self.held))
        if self.stack.kind == "bytes":
            return b.and_(x, b.load(x.type, at, 2))
        return b.real(b.and_(b.bits(x), b.sext(b.load(vector(count, I8), at, 1), I32)))

    def _averaged(self, columns: Value, place: Value) -> Value:
        """Averages of bytes in words; those of s8 are 128 more."""
        b, stack = self.b, self.stack
        count = stack.lanes // 2
        n, kind = self._combined(columns, place, count), vector(count, I16)
        if stack.is_divided_alike:
            [d] = stack.numbers
            n, by = b.add(n, 128 * d) if self.window.src.is_signed else n, nearest(d)
            if by is not None:
                return rounded(b, n, constant(kind, by.down), constant(kind, by.up))
            numbers = divisor(d)
            assert numbers is not None
            return divided(b, n, d, numbers)
        if self.window.src.is_signed:
            n = b.add(n, b.load(kind, b.gep(self._at("moved"), place, 2), 2))
        down, up = (b.load(kind, b.gep(self._at(name), place, 2), 2) for name in ("down", "up"))
        return rounded(b, n, down, up)

    def _reciprocals(self, place: Value) -> tuple[Value, Value]:
        """By what sums are multiplied, in two parts."""
        b, stack = self.b, self.stack
        kind = vector(stack.lanes, FLOAT)
        if stack.is_divided_alike:
            [d] = stack.numbers
            near, rest = reciprocal(d)
            return constant(kind, near), constant(kind, rest)
        near_, rest_ = (b.load(kind, b.gep(self._at(name), place, 4), 4) for name in ("near", "rest"))
        return near_, rest_
