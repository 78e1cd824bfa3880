"""Windows over a tensor: the kernel of pooling.

For each output pixel the elements of a window are combined, by maximum or sum. Where lanes come from depends
on what source and destination have as neighbours (:mod:`relayout.kernels.reduce.space`):

``run``
    channels (``nhwc``, ``nChw16c``) or images: a vector is a part of one pixel, and so is each of its taps.
``pixels``
    channels are none or few (``nchw``, ``NCHW4``): a vector is several neighbouring pixels of a row. With
    stride 1 its taps are neighbours as well; with stride 2 they are every other of two vectors ::

        max over 3, stride 2, of a row      a b c d e f g h i          two vectors, and i
                                            a   c   e   g              tap 0: the even ones
                                              b   d   f   h            tap 1: the odd ones
                                                c   e   g   i          tap 2: those of tap 0, and i

    The rows of the window are combined first, so that each is loaded and nothing more; elements are picked
    once, at the end. Maxima of bf16 and f16 whose pixels fill half a register (``nChw16c``) share columns
    instead (:mod:`~.carried`), which takes fewer instructions.
``window``
    one pixel is left of each row of ``nchw`` (global pooling): neighbours are the elements of a window, and
    lanes are combined in the end.

A task is one row of the output. The rows of its windows that are elements are known when it begins; within
it, pixels at the left and right border go one by one, those between have all taps, which are written out.

Sums of bytes are taken in 16 bits where these hold them, exactly, and averages that are bytes are rounded
there (:mod:`relayout.kernels.reduce.rounding`); where windows overlap they are those of
:mod:`relayout.kernels.reduce.separable` and its neighbours. All others are taken row
by row and then over rows, so that rounding errors don't grow with the whole window. A NaN in a window is its
maximum.

Traps: the last vector of a row steps back, it does not run over; and what taps have behind two vectors of
every other pixel is a short vector that ends with it, not one that would end behind the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from relayout.dtypes import DType
from relayout.ir import builder
from relayout.ir.kernel import digits, kernel, tasks
from relayout.ir.lanes import INFINITE, Lanes, lanes_of
from relayout.ir.types import FLOAT, I8, I16, I64, Value, constant, vector
from relayout.ir.vectors import pieces_of, reduce, store_pieces
from relayout.kernels.reduce import maxima
from relayout.kernels.reduce.axis import Axis, Taps
from relayout.kernels.reduce.carried import INTEGERS, Elements, Raw, carries, carry
from relayout.kernels.reduce.overlapping import ZEROS, Averages, form_of, zeros
from relayout.kernels.reduce.rounding import divided, divisor, divisors, looked_up, spread
from relayout.kernels.reduce.space import Cover, cover, last_axes
from relayout.layout.descriptor import MemoryDesc
from relayout.loops.nest import Loop, Nest
from relayout.ops.functions import Function
from relayout.ops.reductions import REDUCTIONS, Reduction
from relayout.records import dataclass
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "Window", "module", "planned"]

ENTRY = "pooling"
DIVISORS = "divisors"  # the table of what is needed to divide by the elements of a window
FEW_ROWS = 4  # of a window, which are written out in registers of 32 bytes: a loop takes as long as they do
WRITTEN_OUT = 16  # taps of a row, or vectors of one, up to which loops are unrolled
MOST_SHORT = (1 << 15) - 1  # the largest sum of 16 bits
MOST_HELD_TAPS = 6  # taps of a row for which vectors of stride 2 are held over the rows of a window
MOST_CARRIED = 12  # registers, of 16
SHORT = 8  # elements of a vector, at least, that has what is behind two others
UNROLL = {64: 8, 32: 4, 16: 4}  # vectors of one turn, by the bytes of a register


@dataclass(frozen=True)
class Window:
    """What is computed: the numbers of a pooling without formats."""

    reduction: str
    """Its name in :data:`relayout.ops.reductions.REDUCTIONS`."""
    divisor: str
    """What results are divided by: the elements of a window (``window``), those that are no padding
    (``elements``), or nothing (empty)."""
    src: DType
    dst: DType
    axes: tuple[Axis, Axis, Axis]
    """Depth, height and width."""
    blocks: tuple[Nest, ...]
    """Images and channels: source and destination, in bytes."""
    post_ops: tuple[Function, ...] = ()
    before: tuple[Function, ...] = ()
    """What becomes of each element first."""

    @property
    def whole(self) -> bool:
        """Whether elements stay what they are, since they are only picked."""
        picks = REDUCTIONS[self.reduction].repeats and not (self.post_ops or self.before)
        return picks and self.src is self.dst and (not self.src.is_float or self.src.name in INFINITE)

    @property
    def raw(self) -> bool:
        """Whether largest elements are found among their bits; see :class:`~.carried.Raw`."""
        return self.whole and self.src.name in INFINITE and self.reduction == "max"

    @property
    def short(self) -> bool:
        """Whether the elements are bytes whose sums 16 bits hold: twice as many lanes as of f32."""
        adds = self.reduction == "sum" and not self.before and self.src.name in ("s8", "u8")
        return adds and self.most_taps * max(self.src.max, -self.src.min) <= MOST_SHORT

    @property
    def most_taps(self) -> int:
        """Elements of a window."""
        return prod(axis.kernel for axis in self.axes)

    def multiplies(self, divisor: int) -> bool:
        """Whether the product with the rounded reciprocal is stored as the quotient is.

        That of a power of two always is. So is that of an odd number where sums of bytes are rounded to
        bytes: a quotient is at least half of 1 / divisor away from where rounding changes, half-way between
        two integers, and the product is less than 2**-14 away from it.
        """
        bytes_ = self.short and self.dst.name in ("s8", "u8") and not self.post_ops
        return divisor & (divisor - 1) == 0 or (bytes_ and divisor % 2 == 1)

    @property
    def rounds(self) -> bool:
        """Whether averages of bytes are divided and rounded in 16 bits."""
        if not self.short or not self.divisor or self.dst is not self.src or self.post_ops:
            return False
        several = range(1, self.most_taps) if self.divisor == "elements" else ()
        return all(divisor(d) is not None for d in (*several, self.most_taps))

    def scheme(self, block: Nest, lanes: int) -> str:
        """Where the lanes of a block come from."""
        d, h, w = self.axes
        e, f = self.src.bits // 8, self.dst.bits // 8
        if block.length == 1 and w.src == e and d.out * h.out * w.out == 1 and w.is_whole:
            return "window"
        first, last = w.inside
        side_by_side = (w.src, w.dst) == (block.length * e, block.length * f) and last - first > 1
        few = block.length < lanes and block.length & (block.length - 1) == 0
        if self.raw and 2 * block.length >= lanes and carries(self.axes, 1):
            return "run"  # half a register, but a third of the instructions
        return "pixels" if side_by_side and few and w.stride <= 2 else "run"

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something, in the block of most elements."""
        lanes = lanes_of(machine, self.src, self.whole, self.short)
        sizes = []
        for block in self.blocks:
            first, last = self.axes[2].inside
            found = {
                "window": prod(a.kernel for a in self.axes),
                "pixels": block.length * (last - first),
                "run": block.length,
            }
            sizes.append((block.size, min(lanes, found[self.scheme(block, lanes)])))
        return max(sizes)[1]


def planned(
    reduction: str,
    divisor: str,
    src: MemoryDesc,
    dst: MemoryDesc,
    axes: Sequence[Axis],
    post_ops: tuple[Function, ...] = (),
    before: tuple[Function, ...] = (),
) -> Window | None:
    """The window of two descriptors, whose last axes are those of the window: axes with their places, blocks.

    None where a spatial axis is cut into digits or fused with others, or images and channels have no blocks.
    """
    found = last_axes((src, dst), len(axes))
    if found is None:
        return None
    steps, blocks = found
    placed = [axis._replace(src=one, dst=two) for axis, (one, two) in zip(axes, steps, strict=True)]
    d, h, w = (*[Axis(1, 1)] * 3, *placed)[-3:]
    return Window(reduction, divisor, src.dtype, dst.dtype, (d, h, w), blocks, post_ops, before)


def module(window: Window, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`."""
    f, tables = kernel(ENTRY, machine), ""
    for block in window.blocks:
        made = _Block(f, window, block)
        made.write()
        tables += "".join(made.averages.tables if made.averages else ())
    looks_up = window.rounds and window.divisor == "elements"
    tables += divisors(DIVISORS, window.most_taps) if looks_up else ""
    text = f.text()
    return tables + (zeros() if f"@{ZEROS}" in text else "") + text


class _Row(NamedTuple):
    """The row of a task: addresses of its first pixel, and which taps of the other axes are elements."""

    src: Value
    dst: Value
    planes: Taps
    rows: Taps


class _Slot(NamedTuple):
    """A vector: where it lies from the address of its pixel on."""

    src: int
    dst: int


class _Mapped(Lanes):
    """Vectors whose elements have become something else when they are loaded."""

    def __init__(self, b: builder.Builder, window: Window) -> None:
        picks = "lt" if window.reduction == "min" else "gt"
        super().__init__(b, window.src, window.dst, window.whole, picks, window.short)
        self.before = window.before

    def load(
        self, pointer: Value, count: int, valid: int | None = None, filler: float | None = None
    ) -> Value:
        """Neighbouring elements, and what becomes of them."""
        x = super().load(pointer, count, valid, filler)
        for function in self.before:
            x = function.emit(self.b, x)
        return x


class _Block:
    """Writes the loops of one block."""

    def __init__(self, f: builder.Function, window: Window, block: Nest) -> None:
        self.b, self.window, self.block = f, window, block
        self.vectors = _Mapped(f, window)
        self.e, self.f = window.src.bits // 8, window.dst.bits // 8
        self.scheme = window.scheme(block, self.vectors.most)
        self.d, self.h, self.x = self._axes()
        self.most = UNROLL[f.machine.vector]
        axes = self.d, self.h, self.x
        form = form_of(window, self.scheme, axes, block.length, f.machine)
        self.averages = Averages(f, window, axes, block.length, form) if form else None
        self.in_columns = maxima.suits(window, self.scheme, axes, block.length, f.machine)

    def _axes(self) -> tuple[Axis, Axis, Axis]:
        """Depth, height and width, rearranged where that makes longer rows, or more of them."""
        d, h, w = self.window.axes
        if self.scheme == "window":
            if h.is_whole and h.src == w.size * w.src:
                w, h = w._replace(size=h.size * w.size, kernel=h.size * w.size), Axis(1, 1)
            if h == Axis(1, 1) and d.is_whole and d.src == w.size * w.src:
                w, d = w._replace(size=d.size * w.size, kernel=d.size * w.size), Axis(1, 1)
        elif self.scheme == "run" and d.out * h.out * d.kernel * h.kernel == 1 and d.front + h.front == 0:
            h, w = w, h  # one row: its pixels are shared
        return d, h, w

    def write(self) -> None:
        """All tasks."""
        b, block = self.b, self.block
        if self.in_columns:
            axes = self.d, self.h, self.x
            maxima.Maxima(b, self.window, axes, block, self.vectors).write()
            return
        run = cover(block.length, self.vectors.most, self._together())
        single = self.d.out * self.h.out * self.x.out == 1
        loops: list[tuple[str, Loop]] = [("", loop) for loop in block.around]
        loops += [
            (name, Loop(axis.out, (axis.stride * axis.src, axis.dst)))
            for name, axis in (("d", self.d), ("h", self.h))
        ]
        if single and self.scheme == "run":
            loops.append(("run", Loop(run.times, (run.chunk * self.e, run.chunk * self.f))))
        loops.sort(key=lambda one: -abs(one[1].src))
        total = 1
        for _, loop in loops:
            total *= loop.extent

        def task(number: Value) -> None:
            indices = digits(b, number, [loop.extent for _, loop in loops])
            src, dst = b.arguments[:2]
            src = b.gep(src, block.src - sum(a.front * a.src for a in (self.d, self.h, self.x)))
            dst = b.gep(dst, block.dst)
            at = {"d": constant(I64, 0), "h": constant(I64, 0)}
            for (name, loop), index in zip(loops, indices, strict=True):
                if name == "run":
                    src, dst = self._chunk(src, index, run, self.e), self._chunk(dst, index, run, self.f)
                    continue
                src, dst = b.gep(src, index, loop.src), b.gep(dst, index, loop.dst)
                if name:
                    at[name] = index
            row = _Row(src, dst, self.d.windows(b, at["d"]), self.h.windows(b, at["h"]))
            if self.averages is not None:
                self.averages.row(row.src, row.dst, (row.planes, row.rows))
            elif self.scheme == "window":
                self._window(row)
            else:
                self._pixels(row, run, not single)

        tasks(b, total, task)

    def _together(self) -> int:
        """Vectors of a pixel that are combined at a time; fewer where what is carried fills registers."""
        shared = self.x.shared
        if not (self.window.raw and self.b.machine.is_avx2 and shared > 0):
            return self.most
        return max(1, min(self.most, MOST_CARRIED // (INTEGERS * shared)))

    def _chunk(self, pointer: Value, index: Value, run: Cover, size: int) -> Value:
        """Where a chunk of the run begins."""
        if run.times == 1:
            return pointer
        first = self.b.smin(self.b.mul(index, run.chunk), self.block.length - run.chunk)
        return self.b.gep(pointer, first, size)

    # -- a row ----------------------------------------------------------------------------------------------

    def _pixels(self, row: _Row, run: Cover, chunks: bool) -> None:
        """Pixels at the left border, those inside, those at the right border."""
        b, x = self.b, self.x
        first, last = x.inside

        def pixel(index: Value, inside: bool) -> None:
            """One, in vectors of the run."""
            src, dst = b.gep(row.src, index, x.stride * x.src), b.gep(row.dst, index, x.dst)
            taps = Taps(0, x.kernel) if inside else x.windows(b, index)
            slots = [_Slot(k * self.e, k * self.f) for k in run.offsets]

            def chunk(k: Value) -> None:
                at, to = self._chunk(src, k, run, self.e), self._chunk(dst, k, run, self.f)
                self._cell(row, at, to, slots, run.lanes, taps)

            self._loop(0, run.times if chunks else 1, chunk)

        self._loop(0, first, lambda index: pixel(index, False))
        if self.scheme == "pixels":
            self._several(row, first, last)
        elif self._carries(run):
            self._loop(0, run.times if chunks else 1, lambda k: self._carried(row, run, k))
        else:
            self._loop(first, last, lambda index: pixel(index, True))
        self._loop(last, x.out, lambda index: pixel(index, False))

    def _carries(self, run: Cover) -> bool:
        """Whether columns that windows share are combined once."""
        axes = self.d, self.h, self.x
        return self.window.whole and self.reduction.repeats and carries(axes, len(run.offsets))

    def _carried(self, row: _Row, run: Cover, chunk: Value) -> None:
        """The pixels inside of a chunk of the run."""
        b, v, rows = self.b, self.vectors, []
        for z in row.planes.nearest(b, self.d.kernel):
            plane = b.gep(row.src, z, self.d.dilation * self.d.src)
            for y in row.rows.nearest(b, self.h.kernel):
                at = b.gep(plane, y, self.h.dilation * self.h.src)
                rows.append(self._chunk(at, chunk, run, self.e))
        elements = Raw(b, self.window.src.name) if self.window.raw else Elements(v, self.reduction)
        places = [(k * self.e, k * self.f) for k in run.offsets]
        dst = self._chunk(row.dst, chunk, run, self.f)
        carry(b, elements, self.x, rows, dst, self.x.inside, places, run.lanes)

    def _loop(self, start: int, stop: int, body: Callable[[Value], None]) -> None:
        def turn(i: Value, given: list[Value]) -> list[Value]:
            body(i)
            return given

        self.b.repeat(start, stop, 1, [], turn)

    def _several(self, row: _Row, first: int, last: int) -> None:
        """The pixels inside, in vectors of several."""
        b, x, group = self.b, self.x, self.block.length
        held = self._holds()
        pixels = cover(last - first, self.vectors.most // group, max(1, self.most // (4 if held else 2)))
        slots = [_Slot(k * x.stride * x.src, k * x.dst) for k in pixels.offsets]
        held = held and x.kernel - 2 <= pixels.lanes  # taps of the last result are in its vectors or behind

        def chunk(k: Value) -> None:
            at = (
                b.smin(b.mul(k, pixels.chunk), last - first - pixels.chunk)
                if pixels.times > 1
                else b.mul(k, 0)
            )
            src = b.gep(b.gep(row.src, first * x.stride * x.src), at, x.stride * x.src)
            dst = b.gep(b.gep(row.dst, first * x.dst), at, x.dst)
            cell = self._held if held else self._cell
            cell(row, src, dst, slots, pixels.lanes * group, Taps(0, x.kernel))

        self._loop(0, pixels.times, chunk)

    def _holds(self) -> bool:
        """Whether vectors of every other pixel are combined over rows before elements are picked."""
        return self.x.stride == 2 and self.x.dilation == 1 and 2 <= self.x.kernel <= MOST_HELD_TAPS

    # -- windows --------------------------------------------------------------------------------------------

    def _over_rows(
        self, row: _Row, src: Value, given: list[Value], body: Callable[[Value, list[Value]], list[Value]]
    ) -> list[Value]:
        """Hand values on over all rows of a window."""
        b = self.b
        places = self._few_rows(row)
        if places:
            for z, y in places:
                at = b.gep(src, z, self.d.dilation * self.d.src)
                given = body(b.gep(at, y, self.h.dilation * self.h.src), given)
            return given

        def plane(z: Value, given: list[Value]) -> list[Value]:
            at = b.gep(src, z, self.d.dilation * self.d.src)

            def line(y: Value, given: list[Value]) -> list[Value]:
                return body(b.gep(at, y, self.h.dilation * self.h.src), given)

            return b.repeat(*row.rows, 1, given, line)

        return b.repeat(*row.planes, 1, given, plane)

    def _few_rows(self, row: _Row) -> list[tuple[int, int]]:
        """The planes and rows of a window, if they are known, few, and worth more than a loop."""
        if self.b.machine.vector != 32 or self.b.machine.is_arm:
            return []
        planes, rows = row.planes.known, row.rows.known
        if planes is None or rows is None or len(planes) * len(rows) > FEW_ROWS:
            return []
        return list(product(planes, rows))

    def _cell(
        self,
        row: _Row,
        src: Value,
        dst: Value,
        slots: Sequence[_Slot],
        count: int,
        taps: Taps,
    ) -> None:
        """Combine the windows of some vectors."""
        b, x, v = self.b, self.x, self.vectors
        step = x.dilation * x.src
        spread = self.scheme == "pixels" and x.stride == 2 and count > self.block.length

        def tap(pointer: Value, slot: _Slot) -> Value:
            at = b.gep(pointer, slot.src)
            if not spread:
                return v.load(at, count)
            group = self.block.length
            low, high = v.load(at, count), v.load(b.gep(at, (count - group) * self.e), count)
            pixels = range(0, 2 * (count // group), 2)
            picks = [p if p < count // group else p + 1 for p in pixels]
            return b.shuffle(low, self._groups(picks), high)

        def line(pointer: Value, given: list[Value]) -> list[Value]:
            known = taps.known
            if known is not None and len(known) <= WRITTEN_OUT:
                found = [[tap(b.gep(pointer, k * step), slot) for k in known] for slot in slots]
                return [
                    self._combined(value, some) if some else value
                    for value, some in zip(given, found, strict=True)
                ]

            def one(k: Value, sums: list[Value]) -> list[Value]:
                at = b.gep(pointer, k, step)
                found = [tap(at, slot) for slot in slots]
                return [self._combined(s, [x]) for s, x in zip(sums, found, strict=True)]

            if self.reduction.repeats:
                return b.repeat(*taps, 1, given, one)
            rows = b.repeat(*taps, 1, [self._start(count)] * len(slots), one)
            return [self._combined(value, [row]) for value, row in zip(given, rows, strict=True)]

        done = self._over_rows(row, src, [self._start(count)] * len(slots), line)
        self._stored(row, taps, dst, slots, done)

    def _held(
        self,
        row: _Row,
        src: Value,
        dst: Value,
        slots: Sequence[_Slot],
        count: int,
        taps: Taps,
    ) -> None:
        """The same for every other pixel; rows are combined before elements are picked.

        All taps are in two vectors, but for the last result: the elements behind these are a short vector.
        """
        b, x, v, group = self.b, self.x, self.vectors, self.block.length
        pixels, kernel = count // group, x.kernel
        behind = (kernel - 2) * group  # elements
        short = min(count, max(SHORT, 1 << (behind - 1).bit_length())) if behind else 0
        ends = 2 * count + behind - short
        lengths = [(0, count), (count, count), *([(ends, short)] if short else [])]
        each = len(lengths)
        places = [(slot.src + at * self.e, length) for slot in slots for at, length in lengths]

        def line(pointer: Value, given: list[Value]) -> list[Value]:
            loaded = [v.load(b.gep(pointer, place), length) for place, length in places]
            return [self._combined(value, [one]) for value, one in zip(given, loaded, strict=True)]

        rows = self._over_rows(row, src, [self._start(length) for _, length in places], line)
        done = []
        for k in range(len(slots)):
            low, high, *last = rows[each * k : each * (k + 1)]
            picked = [
                b.shuffle(low, self._groups([2 * p + tap for p in range(pixels)]), high) for tap in (0, 1)
            ]
            for tap in range(2, kernel):  # one pixel further than two taps before
                end = b.shuffle(last[0], [k if k < short else -1 for k in range(count)])
                first = count + short - behind + (tap - 2) * group
                picks = [*range(group, count), *range(first, first + group)]
                picked.append(b.shuffle(picked[tap - 2], picks, end))
            done.append(self._combined(picked[0], picked[1:]))
        self._stored(row, taps, dst, slots, done)

    def _groups(self, picks: Sequence[int]) -> list[int]:
        """Pixels as elements."""
        return [p * self.block.length + k for p in picks for k in range(self.block.length)]

    def _window(self, row: _Row) -> None:
        """One window, whose rows are vectors."""
        b, v, n = self.b, self.vectors, self.x.kernel
        count = cover(n, v.most, 1).lanes
        whole, rest = n // count, n % count

        def line(pointer: Value, given: list[Value]) -> list[Value]:
            left = whole % WRITTEN_OUT if whole > WRITTEN_OUT else whole

            def many(i: Value, given: list[Value]) -> list[Value]:
                at = b.gep(pointer, i, count * self.e)
                loaded = [v.load(b.gep(at, k * count * self.e), count) for k in range(WRITTEN_OUT)]
                return [self._combined(given[0], loaded)]

            given = b.repeat(0, whole - left, WRITTEN_OUT, given, many)
            loaded = [v.load(b.gep(pointer, (whole - left + k) * count * self.e), count) for k in range(left)]
            if rest:
                last = v.load(b.gep(pointer, (n - count) * self.e), count)
                if not self.reduction.repeats:  # what has been counted already
                    picks = [lane if lane < count - rest else count + lane for lane in range(count)]
                    last = b.shuffle(self._start(count), picks, last)
                loaded.append(last)
            return [self._combined(given[0], loaded)] if loaded else given

        done = self._over_rows(row, row.src, [self._start(count)], line)
        one = reduce(b, done[0], lambda lower, upper: self._combined(lower, [upper]))
        self._stored(row, Taps(0, n), row.dst, [_Slot(0, 0)], [one])

    # -- arithmetic -----------------------------------------------------------------------------------------

    @property
    def reduction(self) -> Reduction:
        """How elements are combined."""
        return REDUCTIONS[self.window.reduction]

    def _start(self, count: int) -> Value:
        return self.vectors.constant(self.vectors.nearest(self.reduction.identity), count)

    def _combined(self, value: Value, others: Sequence[Value]) -> Value:
        """A value with some taps of one row."""
        return self.reduction.emit(self.vectors, value, others)

    def _stored(
        self,
        row: _Row,
        taps: Taps,
        dst: Value,
        slots: Sequence[_Slot],
        values: Sequence[Value],
    ) -> None:
        """Divide sums, apply post-ops, store."""
        b, count, by = self.b, values[0].type.count, None
        if self.window.divisor:
            number = self._elements((row.planes, row.rows, taps))
            if self.window.rounds:
                self._rounded(number, dst, slots, values)
                return
            known = number.number
            by = (
                b.splat(b.sitofp(number, FLOAT), count)
                if known is None
                else constant(vector(count, FLOAT), known)
            )

        for slot, value in zip(slots, map(self.vectors.real, values), strict=True):
            if by is not None:
                known = by.number
                if known is not None and self.window.multiplies(int(known)):
                    value = b.fmul(value, 1 / known)
                else:
                    value = b.fdiv(value, by)
            for function in self.window.post_ops:
                value = function.emit(b, value)
            self.vectors.store(b.gep(dst, slot.dst), value)

    def _elements(self, ranges: Sequence[Taps]) -> Value:
        """By how many sums are divided."""
        b, number = self.b, constant(I64, 1)
        if self.window.divisor == "window":
            return constant(I64, self.d.kernel * self.h.kernel * self.x.kernel)
        for taps in ranges:
            number = b.mul(number, taps.number(b))
        return number

    def _rounded(self, number: Value, dst: Value, slots: Sequence[_Slot], values: Sequence[Value]) -> None:
        """Store averages of bytes that are bytes; those of s8 are shifted by 128 on their way."""
        b, count, signed = self.b, values[0].type.count, self.window.src.is_signed
        known: int | Value
        if isinstance(number.number, int):
            known, by = number.number, divisor(number.number)
        else:
            known = b.splat(b.trunc(number, I16), count)
            by = spread(b, looked_up(b, DIVISORS, number), count)
        assert by is not None
        for slot, value in zip(slots, values, strict=True):
            n = (
                b.add(value, b.mul(known, 128) if isinstance(known, Value) else 128 * known)
                if signed
                else value
            )
            found = b.trunc(divided(b, n, known, by), I8)
            found = b.xor(found, -128) if signed else found
            store_pieces(b, found, b.gep(dst, slot.dst), pieces_of(0, count, 0, 1))
