"""Windows over a tensor: the kernel of pooling.

For each output pixel the elements of a window are combined, by maximum or sum. Where lanes come from depends
on what source and destination have as neighbours (:mod:`relayout.kernels.reduce.joint`):

``run``
    channels (``nhwc``, ``nChw16c``) or images: a vector is a part of one pixel, and so is each of its taps.
``pixels``
    channels are none or few (``nchw``, ``NCHW4``): a vector is several neighbouring pixels of a row. With
    stride 1 its taps are neighbours as well; with stride 2 they are every other of two vectors ::

        max over 3, stride 2, of a row      a b c d e f g h i          loaded at 0, and again at 1
                                            a   c   e   g              tap 0: the even ones
                                              b   d   f   h            tap 1: the odd ones
                                                c   e   g   i        tap 2: odd, of what was loaded at 1

    The rows of the window are combined first, so that each is loaded and nothing more; elements are picked
    once, at the end.
``window``
    one pixel is left of each row of ``nchw`` (global pooling): neighbours are the elements of a window, and
    lanes are combined in the end.

A task is one row of the output. The rows of its windows that are elements are known when it begins; within
it, pixels at the left and right border go one by one, those between have all taps, which are written out.

Sums are taken row by row and then over rows, so that rounding errors don't grow with the whole window. A NaN
in a window is its maximum.

Traps: the last vector of a row steps back, it does not run over; and the odd elements are taken from a load
one further, not the even ones from a load that would end behind the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from relayout.dtypes import DType
from relayout.errors import LayoutError
from relayout.ir.lanes import Lanes, Loops, entry
from relayout.kernels.reduce.joint import Block, Cover, Loop, cover, joint
from relayout.layout import views
from relayout.layout.canonical import normal
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.ops.functions import Function
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "Axis", "Window", "module", "planned"]

ENTRY = "pooling"
WRITTEN_OUT = 16  # taps of a row, or vectors of one
HELD = 6  # taps of a row for which vectors of stride 2 are held over the rows of a window
TOGETHER = {64: 8, 32: 4, 16: 4}  # vectors that are worked on together, by the bytes of a register


class Axis(NamedTuple):
    """A spatial axis: sizes, and bytes from one element to the next in source and destination.

    >>> Axis(112, 56, 3, 2, 1, 1, 4, 4).inside
    (1, 56)
    """

    size: int
    out: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    front: int = 0
    src: int = 0
    dst: int = 0

    @property
    def inside(self) -> tuple[int, int]:
        """The outputs all of whose taps are elements."""
        reach = self.size - 1 - (self.kernel - 1) * self.dilation + self.front
        first = min(self.out, -(-self.front // self.stride))
        return first, max(first, min(self.out, reach // self.stride + 1))

    @property
    def is_inside(self) -> bool:
        """Whether that is all of them."""
        return self.inside == (0, self.out)

    @property
    def is_whole(self) -> bool:
        """Whether the only window is the axis."""
        return (self.out, self.kernel, self.front, self.dilation) == (1, self.size, 0, 1)

    def taps(self, output: int) -> range:
        """Those of an output that are elements.

        >>> Axis(112, 56, 3, 2, 1, 1).taps(0)
        range(1, 3)
        """
        left = self.front - output * self.stride
        first = -(-max(left, 0) // self.dilation)
        return range(first, max(first, min(self.kernel, (self.size - 1 + left) // self.dilation + 1)))


@dataclass(frozen=True)
class Window:
    """What is computed: the numbers of a pooling without formats."""

    algorithm: str
    src: DType
    dst: DType
    axes: tuple[Axis, Axis, Axis]
    """Depth, height and width."""
    blocks: tuple[Block, ...]
    """Images and channels."""
    post_ops: tuple[Function, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether integers stay integers."""
        return (
            self.algorithm == "max" and not self.src.is_float and self.src is self.dst and not self.post_ops
        )

    def scheme(self, block: Block, lanes: int) -> str:
        """Where the lanes of a block come from."""
        d, h, w = self.axes
        e, f = self.src.bits // 8, self.dst.bits // 8
        if block.run == 1 and w.src == e and d.out * h.out * w.out == 1 and w.is_whole:
            return "window"
        first, last = w.inside
        side_by_side = (w.src, w.dst) == (block.run * e, block.run * f) and last - first > 1
        few = block.run < lanes and block.run & (block.run - 1) == 0
        return "pixels" if side_by_side and few and w.stride <= 2 else "run"

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something, in the block of most elements."""
        lanes = Lanes(Loops(), machine, self.src, self.dst, self.whole).most
        sizes = []
        for block in self.blocks:
            first, last = self.axes[2].inside
            found = {
                "window": prod(a.kernel for a in self.axes),
                "pixels": block.run * (last - first),
                "run": block.run,
            }
            total = block.run
            for loop in block.loops:
                total *= loop.extent
            sizes.append((total, min(lanes, found[self.scheme(block, lanes)])))
        return max(sizes)[1]


def planned(
    algorithm: str,
    src: MemoryDesc,
    dst: MemoryDesc,
    axes: Sequence[Axis],
    post_ops: tuple[Function, ...] = (),
) -> Window | None:
    """The window of two descriptors: axes with their places, and blocks.

    None where a spatial axis is cut into digits or fused with others, or images and channels have no blocks.
    """
    e, f = src.dtype.bits // 8, dst.dtype.bits // 8
    around = [src.layout, dst.layout]
    found = []
    for k in reversed(range(2, len(src.dims))):
        steps = [_step_of(layout, k) for layout in (src.layout, dst.layout)]
        if steps[0] is None or steps[1] is None:
            return None
        found.append(axes[k - 2]._replace(src=steps[0] * e, dst=steps[1] * f))
        try:
            around = [views.select(layout, k, 0) for layout in around]
        except LayoutError:
            return None
    made = joint(around[0], around[1], (e, f))
    if made is None:
        return None
    w, h, d = (*found, Axis(1, 1), Axis(1, 1))[:3]
    return Window(algorithm, src.dtype, dst.dtype, (d, h, w), made.blocks, post_ops)


def _step_of(layout: Layout, axis: int) -> int | None:
    """The elements from one index of an axis to the next; None where there is no such number."""
    if (axis,) not in layout.terms:
        return None
    digits = normal(layout.ladders[layout.terms.index((axis,))], layout.dims[axis])
    if len(digits) > 1:
        return None
    return digits[0].stride if digits else 0


def module(window: Window, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`."""
    w = Loops()
    for block in window.blocks:
        _Block(w, machine, window, block).write()
    return entry(ENTRY, w)


class _Row(NamedTuple):
    """The row of a task: addresses of its first pixel, and which taps of the other axes are elements."""

    src: str
    dst: str
    planes: tuple[int | str, int | str]
    rows: tuple[int | str, int | str]


class _Slot(NamedTuple):
    """A vector: where it lies from the address of its pixel on."""

    src: int
    dst: int


class _Block:
    """Writes the loops of one block."""

    def __init__(self, w: Loops, machine: Machine, window: Window, block: Block) -> None:
        self.w, self.machine, self.window, self.block = w, machine, window, block
        self.vectors = Lanes(w, machine, window.src, window.dst, window.whole)
        self.e, self.f = window.src.bits // 8, window.dst.bits // 8
        self.scheme = window.scheme(block, self.vectors.most)
        self.d, self.h, self.x = self._axes()
        self.most = TOGETHER[machine.vector]

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
        w, block = self.w, self.block
        run = cover(block.run, self.vectors.most, self.most)
        single = self.d.out * self.h.out * self.x.out == 1
        loops: list[tuple[str, Loop]] = [("", loop) for loop in block.loops]
        loops += [
            (name, Loop(axis.out, axis.stride * axis.src, axis.dst))
            for name, axis in (("d", self.d), ("h", self.h))
        ]
        if single and self.scheme == "run":
            loops.append(("run", Loop(run.times, run.chunk * self.e, run.chunk * self.f)))
        loops.sort(key=lambda one: -abs(one[1].src))
        total = 1
        for _, loop in loops:
            total *= loop.extent

        def task(number: str) -> None:
            digits = w.digits(number, [loop.extent for _, loop in loops])
            src = w.at("%src", block.src - sum(a.front * a.src for a in (self.d, self.h, self.x)))
            dst = w.at("%dst", block.dst)
            at = {"d": "0", "h": "0"}
            for (name, loop), index in zip(loops, digits, strict=True):
                if name == "run":
                    src, dst = self._chunk(src, index, run, self.e), self._chunk(dst, index, run, self.f)
                    continue
                src, dst = w.offset(src, index, loop.src), w.offset(dst, index, loop.dst)
                if name:
                    at[name] = index
            row = _Row(src, dst, self._range(self.d, at["d"]), self._range(self.h, at["h"]))
            if self.scheme == "window":
                self._window(row)
            else:
                self._pixels(row, run, not single)

        w.tasks(total, task)

    def _chunk(self, pointer: str, index: str, run: Cover, size: int) -> str:
        """Where a chunk of the run begins."""
        if run.times == 1:
            return pointer
        first = self.w.least(self.w.times(index, run.chunk), self.block.run - run.chunk)
        return self.w.offset(pointer, first, size)

    def _range(self, axis: Axis, output: str) -> tuple[int | str, int | str]:
        """The taps of an output that are elements; see :meth:`Axis.taps`."""
        w = self.w
        if axis.is_inside:
            return 0, axis.kernel
        if output.isdigit():
            taps = axis.taps(int(output))
            return taps.start, taps.stop
        left = w.value(f"sub i64 {axis.front}, {w.times(output, axis.stride)}")
        numbers = []
        for more in (axis.dilation - 1, axis.size - 1 + axis.dilation):
            number = w.largest(w.value(f"add i64 {left}, {more}"), 0)
            numbers.append(number if axis.dilation == 1 else w.value(f"udiv i64 {number}, {axis.dilation}"))
        return numbers[0], w.least(numbers[1], axis.kernel)

    # -- a row ----------------------------------------------------------------------------------------------

    def _pixels(self, row: _Row, run: Cover, chunks: bool) -> None:
        """Pixels at the left border, those inside, those at the right border."""
        w, x = self.w, self.x
        first, last = x.inside

        def pixel(index: str, inside: bool) -> None:
            """One, in vectors of the run."""
            src, dst = w.offset(row.src, index, x.stride * x.src), w.offset(row.dst, index, x.dst)
            taps = (0, x.kernel) if inside else self._range(x, index)
            slots = [_Slot(k * self.e, k * self.f) for k in run.offsets]

            def chunk(k: str) -> None:
                at, to = self._chunk(src, k, run, self.e), self._chunk(dst, k, run, self.f)
                self._cell(row, at, to, slots, run.lanes, taps)

            self._loop(0, run.times if chunks else 1, chunk)

        self._loop(0, first, lambda index: pixel(index, False))
        if self.scheme == "pixels":
            self._several(row, first, last)
        else:
            self._loop(first, last, lambda index: pixel(index, True))
        self._loop(last, x.out, lambda index: pixel(index, False))

    def _loop(self, start: int, stop: int, body: Callable[[str], None]) -> None:
        def turn(i: str, given: list[str]) -> list[str]:
            body(i)
            return given

        self.w.repeat(start, stop, 1, [], turn)

    def _several(self, row: _Row, first: int, last: int) -> None:
        """The pixels inside, in vectors of several."""
        w, x, group = self.w, self.x, self.block.run
        held = self._holds()
        pixels = cover(last - first, self.vectors.most // group, max(1, self.most // (4 if held else 2)))
        slots = [_Slot(k * x.stride * x.src, k * x.dst) for k in pixels.offsets]

        def chunk(k: str) -> None:
            at = w.least(w.times(k, pixels.chunk), last - first - pixels.chunk) if pixels.times > 1 else "0"
            src = w.offset(w.at(row.src, first * x.stride * x.src), at, x.stride * x.src)
            dst = w.offset(w.at(row.dst, first * x.dst), at, x.dst)
            cell = self._held if held else self._cell
            cell(row, src, dst, slots, pixels.lanes * group, (0, x.kernel))

        self._loop(0, pixels.times, chunk)

    def _holds(self) -> bool:
        """Whether vectors of every other pixel are combined over rows before elements are picked."""
        return self.x.stride == 2 and self.x.dilation == 1 and 2 <= self.x.kernel <= HELD

    # -- windows --------------------------------------------------------------------------------------------

    def _over_rows(
        self,
        row: _Row,
        src: str,
        given: list[str],
        kind: str,
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """Hand values on over all rows of a window."""
        w = self.w

        def plane(z: str, given: list[str]) -> list[str]:
            at = w.offset(src, z, self.d.dilation * self.d.src)

            def line(y: str, given: list[str]) -> list[str]:
                return body(w.offset(at, y, self.h.dilation * self.h.src), given)

            return w.repeat(*row.rows, 1, [(kind, value) for value in given], line)

        return w.repeat(*row.planes, 1, [(kind, value) for value in given], plane)

    def _cell(
        self,
        row: _Row,
        src: str,
        dst: str,
        slots: Sequence[_Slot],
        count: int,
        taps: tuple[int | str, int | str],
    ) -> None:
        """Combine the windows of some vectors."""
        w, x, v = self.w, self.x, self.vectors
        step = x.dilation * x.src
        spread = self.scheme == "pixels" and x.stride == 2 and count > self.block.run

        def tap(pointer: str, slot: _Slot) -> str:
            at = w.at(pointer, slot.src)
            if not spread:
                return v.load(at, count)
            group = self.block.run
            low, high = v.load(at, count), v.load(w.at(at, (count - group) * self.e), count)
            pixels = range(0, 2 * (count // group), 2)
            picks = [p if p < count // group else p + 1 for p in pixels]
            return w.shuffle(low, high, v.of(count), self._groups(picks))

        def line(pointer: str, given: list[str]) -> list[str]:
            lo, hi = taps
            if isinstance(lo, int) and isinstance(hi, int) and hi - lo <= WRITTEN_OUT:
                found = [[tap(w.at(pointer, k * step), slot) for k in range(lo, hi)] for slot in slots]
                return [
                    self._combined(value, some, count) if some else value
                    for value, some in zip(given, found, strict=True)
                ]

            def one(k: str, sums: list[str]) -> list[str]:
                at = w.offset(pointer, k, step)
                found = [tap(at, slot) for slot in slots]
                return [self._combined(s, [x], count) for s, x in zip(sums, found, strict=True)]

            fresh = given if self._is_max else [v.constant(0, count)] * len(slots)
            sums = w.repeat(lo, hi, 1, [(v.of(count), value) for value in fresh], one)
            if self._is_max:
                return sums
            return [v.do("fadd", value, s, count) for value, s in zip(given, sums, strict=True)]

        done = self._over_rows(row, src, [self._start(count)] * len(slots), v.of(count), line)
        self._stored(row, taps, dst, slots, done, count)

    def _held(
        self,
        row: _Row,
        src: str,
        dst: str,
        slots: Sequence[_Slot],
        count: int,
        taps: tuple[int | str, int | str],
    ) -> None:
        """The same for every other pixel; rows are combined before elements are picked."""
        w, x, v = self.w, self.x, self.vectors
        pixels, kernel = count // self.block.run, x.kernel
        starts = sorted({min(k, kernel - 2) for k in range(0, kernel, 2)})
        places = [
            slot.src + start * x.src + half * count * self.e
            for slot in slots
            for start in starts
            for half in (0, 1)
        ]

        def line(pointer: str, given: list[str]) -> list[str]:
            loaded = [v.load(w.at(pointer, place), count) for place in places]
            return [self._combined(value, [one], count) for value, one in zip(given, loaded, strict=True)]

        rows = self._over_rows(row, src, [self._start(count)] * len(places), v.of(count), line)
        done = []
        for k in range(len(slots)):
            picked = []
            for tap in range(kernel):
                start = min(tap // 2 * 2, kernel - 2)
                at = 2 * (k * len(starts) + starts.index(start))
                picks = [2 * p + tap - start for p in range(pixels)]
                picked.append(w.shuffle(rows[at], rows[at + 1], v.of(count), self._groups(picks)))
            done.append(self._combined(picked[0], picked[1:], count))
        self._stored(row, taps, dst, slots, done, count)

    def _groups(self, picks: Sequence[int]) -> list[int]:
        """Pixels as elements."""
        return [p * self.block.run + k for p in picks for k in range(self.block.run)]

    def _window(self, row: _Row) -> None:
        """One window, whose rows are vectors."""
        w, v, n = self.w, self.vectors, self.x.kernel
        count = cover(n, v.most, 1).lanes
        whole, rest = n // count, n % count

        def line(pointer: str, given: list[str]) -> list[str]:
            left = whole % WRITTEN_OUT if whole > WRITTEN_OUT else whole

            def many(i: str, given: list[str]) -> list[str]:
                at = w.offset(pointer, i, count * self.e)
                loaded = [v.load(w.at(at, k * count * self.e), count) for k in range(WRITTEN_OUT)]
                return [self._combined(given[0], loaded, count)]

            given = w.repeat(0, whole - left, WRITTEN_OUT, [(v.of(count), given[0])], many)
            loaded = [v.load(w.at(pointer, (whole - left + k) * count * self.e), count) for k in range(left)]
            if rest:
                last = v.load(w.at(pointer, (n - count) * self.e), count)
                if not self._is_max:  # what has been counted already
                    picks = [lane if lane < count - rest else count + lane for lane in range(count)]
                    last = w.shuffle("zeroinitializer", last, v.of(count), picks)
                loaded.append(last)
            return [self._combined(given[0], loaded, count)] if loaded else given

        done = self._over_rows(row, row.src, [self._start(count)], v.of(count), line)
        one = v.reduced(done[0], count, lambda a, b, half: self._combined(a, [b], half))
        self._stored(row, (0, n), row.dst, [_Slot(0, 0)], [one], 1)

    # -- arithmetic -----------------------------------------------------------------------------------------

    @property
    def _is_max(self) -> bool:
        return self.window.algorithm == "max"

    def _start(self, count: int) -> str:
        return self.vectors.constant(self.vectors.lowest if self._is_max else 0, count)

    def _combined(self, value: str, others: Sequence[str], count: int) -> str:
        """A value with some taps of one row."""
        v = self.vectors
        if self._is_max:
            return v.largest(value, others, count)
        total = others[0]
        for other in others[1:]:
            total = v.do("fadd", total, other, count)
        return v.do("fadd", value, total, count)

    def _stored(
        self,
        row: _Row,
        taps: tuple[int | str, int | str],
        dst: str,
        slots: Sequence[_Slot],
        values: Sequence[str],
        count: int,
    ) -> None:
        """Divide sums, apply post-ops, store."""
        w, v = self.w, self.vectors
        divisor = "" if self._is_max else self._divisor((row.planes, row.rows, taps), count)
        for slot, value in zip(slots, values, strict=True):
            if divisor:
                value = v.do("fdiv", value, divisor, count)
            for function in self.window.post_ops:
                value = function.emit(w, self.machine, value, count)
            v.store(w.at(dst, slot.dst), value, count)

    def _divisor(self, ranges: Sequence[tuple[int | str, int | str]], count: int) -> str:
        """By what sums are divided, in all lanes."""
        w, v = self.w, self.vectors
        if self.window.algorithm == "average_include_padding":
            return v.constant(self.d.kernel * self.h.kernel * self.x.kernel, count)
        known, number = 1, ""
        for lo, hi in ranges:
            if isinstance(lo, int) and isinstance(hi, int):
                known *= hi - lo
            else:
                size = w.value(f"sub i64 {hi}, {lo}")
                number = size if not number else w.value(f"mul i64 {number}, {size}")
        if not number:
            return v.constant(known, count)
        real = w.value(f"sitofp i64 {w.times(number, known)} to float")
        return v.spread(w.value(f"insertelement <1 x float> poison, float {real}, i32 0"), count)
