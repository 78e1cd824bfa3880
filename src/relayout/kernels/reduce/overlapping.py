"""Averages of floating point in small windows: no element is widened twice for one row of results.

bf16 and f16 are added up in f32. To widen an element takes as long as to add it, so what windows share is
widened and added once, in one of two ways:

``channels``
    Vectors are parts of a pixel (``nhwc``, ``nChw16c``). The sums of the columns that a window and the next
    one share are carried from pixel to pixel, as maxima are (:mod:`~relayout.kernels.reduce.carried`): of
    3x3 with stride 1 three elements are widened for a result in place of nine.
``pixels``
    Pixels are neighbours (``nchw``). Two bf16 are a word, and words widen to elements of even number and
    those of odd number by a shift and a mask. These are just what is added up, nothing is put in order ::

        row                 a b c d e f g h ..
        words from a on     a   c   e   g            b   d   f   h
        words from c on       c   e   g   i            d   f   h   j
        stride 1, 3 taps    a+b+c   c+d+e ..  are results of even number
                              b+c+d   d+e+f ..  are those of odd number
        stride 2, 3 taps    a+b+c   c+d+e ..  are the results

    Vectors at the ends of a row are shifted, so that zeros come in for what is no element.

Rows of padding are read, too: from a line of zeros. So windows have as many rows everywhere, and code has no
loop over them. Where an axis has one window, it is known which rows are padding, and these are left out.

**No division.** A quotient takes as long as a dozen products. Let r be the largest f32 below 1 / n, and s the
nearest one to 1 / n - r. Then ``fma(x, r, x * s)`` is x / n rounded once: before it is rounded it is off by
some 2**-46 of its size, and x / n is never that near to the middle of two f32, unless it is subnormal: there
n times the middle would be further away from x than 1 / n of a unit in its last place. Since s is not below
zero, what is infinite stays so.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from relayout.ir.builder import Function
from relayout.ir.lanes import Lanes, lanes_of
from relayout.ir.types import FLOAT, I16, I32, I64, PTR, Value, constant, vector
from relayout.ir.vectors import join, paired
from relayout.kernels.reduce.axis import Axis, Taps, all_have
from relayout.kernels.reduce.carried import MOST_ROWS
from relayout.kernels.reduce.space import cover
from relayout.targets.machine import LINE, Machine

if TYPE_CHECKING:
    from relayout.kernels.reduce.window import Window

__all__ = ["ZEROS", "Averages", "form_of", "reciprocal", "zeros"]

ZEROS = "zeros"  # what is read for rows of padding
MOST_TAPS = 32  # which are written out
MOST_BORDER = 4  # pixels that have fewer taps, each of which has code of its own
MOST_BYTES = 64  # of a pixel, which are added up at a time
LEAST_PIXELS = 8  # results of a row of pixels
SIGNS = 0x8000


def form_of(window: Window, scheme: str, axes: Sequence[Axis], length: int, machine: Machine) -> str:
    """``channels`` or ``pixels``, or nothing where windows are none of these.

    Parameters
    ----------
    window : Window
        What is computed.
    scheme : str
        Where lanes come from.
    axes : sequence of Axis
        Depth, height and width.
    length : int
        Elements of a run.
    machine : Machine
        For whom.
    """
    d, h, x = axes
    plain = window.reduction == "sum" and window.divisor and not window.before
    narrow = window.dst is window.src and window.src.name in ("bf16", "f16")
    if not plain or not narrow or not machine.fuses:
        return ""
    first, last = x.inside
    rows = d.kernel * h.kernel
    if d.out * h.out * x.out == 1 or any(axis.out == 1 and not axis.is_filled for axis in (d, h)):
        return ""  # no window that shares anything, or none that has elements
    small = rows * x.kernel <= MOST_TAPS and rows <= MOST_ROWS and x.dilation == 1
    if not small or last <= first or x.shared < 0:
        return ""
    if scheme == "run" and length >= lanes_of(machine, window.src) and first + x.out - last <= MOST_BORDER:
        return "channels"
    pairs = window.src.name == "bf16" and machine.vector >= LINE // 2
    if scheme == "pixels" and length == 1 and pairs and x.stride <= 2 and _pixels(x, machine):
        return "pixels"
    return ""


def _pixels(x: Axis, machine: Machine) -> int:
    """How many results of a row are found at a time; 0 where a row is too short."""
    count = machine.vector // 2
    while count > x.out or x.stride * count > x.size:
        count //= 2
    first, last = x.inside
    return count if count >= LEAST_PIXELS and max(first, x.out - last) <= count else 0


def zeros(bytes: int = 2 * LINE) -> str:
    """The text of the zeros that are read for rows of padding."""
    return f"@{ZEROS} = internal constant [{bytes} x i8] zeroinitializer, align {LINE}\n"


class Averages:
    """Writes the rows of one block of images and channels.

    Parameters
    ----------
    b : Function
        What is being written.
    window : Window
        What is computed.
    axes : tuple of Axis
        Depth, height and width.
    length : int
        Elements of a run.
    form : str
        Of :func:`form_of`.
    """

    def __init__(
        self, b: Function, window: Window, axes: tuple[Axis, Axis, Axis], length: int, form: str
    ) -> None:
        self.b, self.window, self.form, self.length = b, window, form, length
        self.d, self.h, self.x = axes
        pairs = window.src.name == "bf16" and not b.machine.is_arm and b.machine.vector >= LINE // 2
        if form == "channels":
            pairs = pairs and 2 * length >= b.machine.vector
            self.count = b.machine.vector // (2 if pairs else 4)
        else:
            self.count = _pixels(self.x, b.machine)
            pairs = self.x.stride == 1
        self.pairs = pairs
        self.v = Lanes(b, window.src, window.dst, pairs=pairs)
        self.tables: list[str] = []

    def row(self, src: Value, dst: Value, given: Sequence[Taps]) -> None:
        """Write a row of results.

        Parameters
        ----------
        src, dst : Value
            The first tap of the first window, be it an element or not, and where its result goes.
        given : sequence of Taps
            Those of depth and of height that are elements.
        """
        b = self.b
        src = b.gep(src, self.x.front * self.x.src)
        self.rows: list[tuple[Value, Value | None]] = []  # of each its element 0, and whether it is one
        for z in range(self.d.kernel):
            plane = b.gep(src, z * self.d.dilation * self.d.src)
            for y in range(self.h.kernel):
                at = b.gep(plane, y * self.h.dilation * self.h.src)
                real = all_have(b, zip(given, (z, y), strict=True))
                if real is not False:  # else it is padding in all windows
                    self.rows.append((at, None if real is True else real))
        self.taps = constant(I64, self.d.kernel * self.h.kernel)  # rows of a window that count
        if self.window.divisor == "elements":
            self.taps = b.mul(*(taps.number(b) for taps in given))
        if self.form == "channels":
            self._channels(dst)
        else:
            self._row_of_pixels(dst)

    # -- quotients ------------------------------------------------------------------------------------------

    def _reciprocal(self, taps: Sequence[int]) -> tuple[Value, Value]:
        """1 / n in two parts, of windows with so many columns that are elements, for each lane."""
        b, count = self.b, len(taps)
        if self.window.divisor == "window":
            taps = [self.x.kernel] * count
        most = self.d.kernel * self.h.kernel
        alike = len({*taps}) == 1
        lanes = 1 if alike else count
        numbers = [
            part[lane]
            for rows in range(1, most + 1)
            for part in zip(*(reciprocal(rows * n) for n in taps), strict=True)
            for lane in range(lanes)
        ]
        name = b.name("reciprocals")
        texts = ", ".join(f"float {constant(FLOAT, number)}" for number in numbers)
        whole = f"[{len(numbers)} x float]"
        self.tables.append(f"@{name} = internal constant {whole} [{texts}], align {LINE}\n")
        at = b.gep(Value(f"@{name}", PTR), b.sub(self.taps, 1), 8 * lanes)
        kind = FLOAT if alike else vector(count, FLOAT)
        near, rest = (b.load(kind, b.gep(at, 4 * lanes * k), 4) for k in (0, 1))
        return (b.splat(near, count), b.splat(rest, count)) if alike else (near, rest)

    def _stored(self, dst: Value, x: Value, by: tuple[Value, Value]) -> None:
        """Divide sums, apply post-ops, store."""
        b, (near, rest) = self.b, by
        x = b.fma(x, near, b.fmul(x, rest))
        for function in self.window.post_ops:
            x = function.emit(b, x)
        count = x.type.count
        if self.pairs and not self.v.in_pairs(count):
            x = b.shuffle(x, [k // 2 + k % 2 * (count // 2) for k in range(count)])
        self.v.store(dst, x)

    # -- channels -------------------------------------------------------------------------------------------

    def _channels(self, dst: Value) -> None:
        """A row of pixels, some channels after the other."""
        b, x, size = self.b, self.x, self.window.src.bits // 8
        run = cover(self.length, self.count, max(1, MOST_BYTES // (self.count * size)))
        first, last = x.inside
        shared = max(0, x.shared)
        taps = x.counts
        parts = {n: self._reciprocal([n] * run.lanes) for n in {*taps}}
        nothing = Value(f"@{ZEROS}", PTR)

        def chunk(k: Value) -> None:
            skip = constant(I64, 0)
            if run.times > 1:
                skip = b.smin(b.mul(k, run.chunk), self.length - run.chunk)
            rows = []
            for at, real in self.rows:
                at, step = b.gep(at, skip, size), x.src
                if real is None:
                    rows.append((at, constant(I64, step)))
                else:
                    rows.append((b.select(real, at, nothing), b.select(real, constant(I64, step), 0)))
            to = b.gep(dst, skip, size)

            def column(index: Value) -> list[Value]:
                found = []
                places = [b.gep(at, b.mul(index, step)) for at, step in rows]
                for slot in run.offsets:
                    loaded = [self.v.load(b.gep(at, slot * size), run.lanes) for at in places]
                    found.append(paired(loaded, b.fadd))
                return found

            def pixel(o: Value, columns: Sequence[list[Value]], n: int) -> None:
                at = b.gep(to, o, x.dst)
                for j, slot in enumerate(run.offsets):
                    total = paired([one[j] for one in columns], b.fadd)
                    self._stored(b.gep(at, slot * size), total, parts[n])

            def border(o: int) -> None:
                places = [x.place(o, tap) for tap in x.taps(o)]
                pixel(constant(I64, o), [column(constant(I64, place)) for place in places], taps[o])

            def turn(o: Value, given: list[Value]) -> list[Value]:
                each = len(run.offsets)
                columns = [given[each * j : each * (j + 1)] for j in range(shared)]
                begin = x.begin(b, o)
                columns += [column(b.add(begin, t)) for t in range(shared, x.kernel)]
                pixel(o, columns, x.kernel)
                return [one for some in columns[x.stride :] for one in some]

            for o in range(first):
                border(o)
            before = [one for tap in range(shared) for one in column(constant(I64, x.place(first, tap)))]
            b.repeat(first, last, 1, before, turn)
            for o in range(last, x.out):
                border(o)

        b.loop(0, run.times, 1, chunk)

    # -- pixels ---------------------------------------------------------------------------------------------

    def _row_of_pixels(self, dst: Value) -> None:
        """A row of pixels that are neighbours, some at a time; those at both ends with code of their own."""
        b, x, count = self.b, self.x, self.count
        times = -(-x.out // count)
        starts = [min(k * count, x.out - count) for k in range(times)]
        first, last = x.inside
        taps = x.counts
        inside = [k for k in range(times) if starts[k] >= first and starts[k] + count <= last]
        whole = self._reciprocal([x.kernel] * count)
        for k in range(times):
            if k not in inside:
                some = taps[starts[k] : starts[k] + count]
                self._some(constant(I64, starts[k]), dst, self._reciprocal(self._dealt(some)))
        if inside:

            def turn(k: Value) -> None:
                at = b.mul(k, count)
                if inside[-1] == times - 1:
                    at = b.smin(at, x.out - count)
                self._some(at, dst, whole)

            b.loop(inside[0], inside[-1] + 1, 1, turn)

    def _dealt(self, numbers: Sequence[int]) -> list[int]:
        """What belongs to results, in the order of lanes."""
        return [*numbers[::2], *numbers[1::2]] if self.pairs else [*numbers]

    def _some(self, o: Value, dst: Value, by: tuple[Value, Value]) -> None:
        """Results from one on."""
        b, x = self.b, self.x
        several = x.kernel + (x.stride == 1)  # vectors of every other element, each one element further
        sums: list[list[Value]] = [[] for _ in range(several)]
        for row in self.rows:
            for p in range(0, several, 2):
                if p + 1 < several:
                    low, high = self._words(row, o, p)
                    sums[p].append(low)
                    sums[p + 1].append(high)
                else:
                    sums[p].append(self._words(row, o, p - 1)[1])
        added = [paired(some, b.fadd) for some in sums]
        if x.stride == 2:
            total = paired(added, b.fadd)
        elif x.kernel == 1:
            total = join(b, added)
        else:
            between = paired(added[1:-1], b.fadd)
            total = join(b, [b.fadd(between, added[0]), b.fadd(between, added[-1])])
        self._stored(b.gep(dst, o, x.dst), total, by)

    def _words(self, row: tuple[Value, Value | None], o: Value, p: int) -> tuple[Value, Value]:
        """Elements of a row from the p-th tap of a result on: every other one, and those between."""
        b, x = self.b, self.x
        at, real = row
        n = x.stride * self.count
        kind, nothing = vector(n, I16), Value(f"@{ZEROS}", PTR)
        begin = 0 if o.number is None else x.place(int(o.number), p)
        if o.number is None or 0 <= begin <= x.size - n:
            place = b.add(b.mul(o, x.stride), x.offset(p))
            from_ = b.gep(at, place, 2)
            raw = b.load(kind, from_ if real is None else b.select(real, from_, nothing), 2)
        else:
            start, picks = x.neighbours(begin, n)
            from_ = b.gep(at, 2 * start)
            loaded = b.load(kind, from_ if real is None else b.select(real, from_, nothing), 2)
            raw = b.shuffle(loaded, picks, 0)
        words = b.bitcast(raw, vector(n // 2, I32))
        return b.real(b.shl(words, 16)), b.real(b.and_(words, -0x10000))


def reciprocal(n: int) -> tuple[float, float]:
    """The largest f32 below 1 / n, and the one nearest to what is left.

    >>> reciprocal(2)
    (0.4999999701976776, 2.9802322387695312e-08)
    """
    near = np.float32(1 / n)
    if Fraction(float(near)) * n >= 1:
        near = np.nextafter(near, np.float32(0))
    return float(near), float(np.float32(Fraction(1, n) - Fraction(float(near))))
