"""The text of a depthwise convolution of bytes: what :mod:`.depthwise_bytes` plans.

A tile is called as that of :mod:`.depthwise_text` is, and does for each row of taps that falls inside::

    for each quad of the source row:     four pixels of 16 channels, in one register
        for its outputs:                 sums[output] += quad * weights[row, arrangement]

Pixels are loaded in pairs, which quads that overlap share: a pair is 32 channels of two pixels, and a unit of
a quad one permutation (``vpermi2b``) of the bytes of two pairs. Where 16 channels lie together and the next
pixel behind them (``nChw16c``), a quad is 64 neighbouring bytes and one permutation.

What becomes of the sums is written for as many pixels at once as fill registers of bytes: 32 channels of two
pixels, 16 of four. Packs that saturate make one register of four. Where a post-op has a number for each
pixel, it is one pixel at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.dtypes import dtype
from relayout.ir.builder import Function
from relayout.ir.dots import dot
from relayout.ir.types import I8, I32, PTR, Value, constant, vector
from relayout.ir.vectors import Piece, join, load_pieces, store_pieces
from relayout.kernels.conv.arithmetic import QUADS
from relayout.kernels.conv.depthwise import Kind
from relayout.kernels.conv.depthwise_bytes import FOUR, LANES, DepthwiseBytes, quads
from relayout.kernels.conv.depthwise_text import BARRIER, DepthwiseModule, DepthwiseTile
from relayout.kernels.conv.dot import declared
from relayout.kernels.conv.epilogue import Epilogue, Outputs, Writer
from relayout.kernels.conv.geometry import Span
from relayout.kernels.conv.module import Vectors
from relayout.kernels.conv.tile import COUNTS

__all__ = ["bytes_module"]

SUM, QUAD = vector(LANES, I32), vector(FOUR * LANES, I8)
MOST = 64  # lanes of what is written at once
SIGN = -128  # the bit that tells u8 from s8


def bytes_module(plan: DepthwiseBytes, epilogue: Epilogue) -> str:
    """The text of all functions."""
    return declared(QUADS, LANES) + "\n" + _Module(plan, epilogue).text()


class _Module(DepthwiseModule):
    """Writes the tasks, and the tiles and preparations that they call."""

    def __init__(self, plan: DepthwiseBytes, epilogue: Epilogue) -> None:
        super().__init__(plan, epilogue)
        self.bytes = plan

    def tile(self, kind: Kind, span: Span, name: str) -> str:
        """The text of a tile."""
        return _Tile(self.bytes, kind, span, self.epilogue, name).text()

    def preparation(self, kind: Kind, name: str) -> str:
        """The text of a preparation of weights."""
        return _prepared(self.bytes, kind, name)

    def beside(self, place: Vectors) -> list[Value]:
        """What a preparation is told beside where weights come from and go to."""
        return [self.b.gep(self.src_zero, self.bytes.zeros.src_at)] * self.bytes.zeros.src


def _zero(b: Function, plan: DepthwiseBytes) -> Value:
    """The zero of the source as a byte of its type."""
    return b.trunc(b.load(I32, b["zero"]), I8) if plan.zeros.src else constant(I8, 0)


def _dot(b: Function, sums: Value, quad: Value, weights: Value) -> Value:
    """Fours of products added to sums."""
    return dot(b, QUADS.dot, sums, quad, weights)


# -- weights ------------------------------------------------------------------------------------------------


def _prepared(plan: DepthwiseBytes, kind: Kind, name: str) -> str:
    """The text of ``void name(ptr weights, ptr to)``, or ``(..., ptr zero)``: the weights of one vector."""
    pointers = ("weights", "to", *["zero"] * plan.zeros.src)
    b = Function(name, dict.fromkeys(pointers, PTR), plan.machine, "internal", "noinline")
    (planes, rows, columns), taps = plan.geometry.kernel, plan.weights.taps
    units = range(len(kind.channels) // LANES)
    size = plan.machine.vector
    zero = b.splat(b.zext(b.xor(_zero(b, plan), plan.arithmetic.shift and SIGN), I32), LANES)
    nothing = constant(vector(LANES, I8), 0)

    def row(weights: Value, to: Value, totals: list[Value]) -> list[Value]:
        totals = list(totals)
        for unit in units:
            at = b.gep(weights, unit * plan.apart)
            found = [nothing] * columns
            if max(kind.channels[unit * LANES : (unit + 1) * LANES]) >= 0:  # padding has no weights
                found = [b.load(vector(LANES, I8), b.gep(at, k * taps[2]), 1) for k in range(columns)]
            for number, order in enumerate(plan.arrangements):
                four = join(b, [nothing if k < 0 else found[k] for k in order])
                picks = [lane + LANES * k for lane in range(LANES) for k in range(FOUR)]
                b.store(b.shuffle(four, picks), b.gep(to, number * plan.line + unit * size), 1)
            if plan.offset:
                total = b.sext(found[0], I32)
                for one in found[1:]:
                    total = b.add(total, b.sext(one, I32))
                total = b.sub(0, b.mul(total, zero))
                b.store(total, b.gep(to, len(plan.arrangements) * plan.line + unit * size))
                totals[unit] = b.add(totals[unit], total)
        return totals

    def nest(
        left: Sequence[tuple[int, int, int]], weights: Value, to: Value, totals: list[Value]
    ) -> list[Value]:
        if not left:
            return row(weights, to, totals)
        (count, read, written), *inner = left

        def turn(_: Value, given: list[Value]) -> list[Value]:
            weights, to, *totals = given
            return [b.gep(weights, read), b.gep(to, written), *nest(inner, weights, to, totals)]

        return b.repeat(0, count, 1, [weights, to, *totals], turn, True)[2:]

    loops = [(planes, taps[0], plan.steps[0]), (rows, taps[1], plan.steps[1])]
    totals = nest(loops, b["weights"], b["to"], [constant(SUM, 0)] * len(units))
    if plan.offset:
        for unit, total in enumerate(totals):
            b.store(total, b.gep(b["to"], planes * plan.steps[0] + unit * size))
    return b.text()


# -- tiles --------------------------------------------------------------------------------------------------


class _Tile(DepthwiseTile):
    """Writes one tile; its arguments are those of the other kind."""

    def __init__(self, plan: DepthwiseBytes, kind: Kind, span: Span, epilogue: Epilogue, name: str) -> None:
        super().__init__(plan, kind, span, epilogue, name)
        self.bytes, self.lanes = plan, len(kind.channels)
        self.units = self.lanes // LANES
        self.pixels_of_row: dict[int, Value] = {}
        self.pairs: dict[int, Value] = {}

    def text(self) -> str:
        """The text of the function."""
        b, plan, pixels = self.b, self.bytes, self.span.pixels
        self.prefetch()
        self.nowhere = b.splat(_zero(b, plan), self.lanes)
        weights = b["weights"]
        for axis, first in enumerate(COUNTS[:2]):
            if plan.geometry.kernel[axis] > 1:
                weights = b.gep(weights, b[first], plan.steps[axis])
        begin = self.begin(weights)
        sums = self.loops(("plane", "row"), b["src"], weights, begin * pixels)
        written = 0
        several = 1 if self.epilogue.by_row else MOST // self.lanes
        while written < pixels:
            count = several
            while written + count > pixels:
                count //= 2
            self.write(written, sums[written * self.units : (written + count) * self.units])
            written += count
        return b.text()

    def begin(self, weights: Value) -> list[Value]:
        """What the sums of an output begin with: minus the zero point times the weights that are inside."""
        b, plan, units = self.b, self.bytes, range(self.units)
        if not plan.offset:
            return [constant(SUM, 0)] * len(units)
        planes, rows, _ = plan.geometry.kernel
        size = plan.machine.vector
        whole = b.gep(b["weights"], planes * plan.steps[0])
        totals = join(b, [b.load(SUM, b.gep(whole, k * size)) for k in units])
        if not all(plan.geometry.always_inside(axis) for axis in (0, 1)):
            at = b.gep(weights, len(plan.arrangements) * plan.line)

            def row(_: Value, given: list[Value]) -> list[Value]:
                here, *sums = given
                sums = [b.add(x, b.load(SUM, b.gep(here, k * size))) for k, x in enumerate(sums)]
                return [b.gep(here, plan.steps[1]), *sums]

            def plane(_: Value, given: list[Value]) -> list[Value]:
                return [b.gep(given[0], plan.steps[0]), *b.repeat(0, b["high"], 1, given, row, True)[1:]]

            def rare() -> Value:
                return join(b, b.repeat(0, b["deep"], 1, [at, *begin], plane, True)[1:])

            begin = [constant(SUM, 0)] * len(units)
            some = b.icmp("ne", b.mul(b["deep"], b["high"]), planes * rows)
            totals = b.unless(some, totals, rare)
        return [b.shuffle(totals, range(k * LANES, (k + 1) * LANES)) for k in units]

    def write(self, first: int, sums: Sequence[Value]) -> None:
        """What becomes of the sums of some neighbouring pixels."""
        b, count = self.b, len(sums) // self.units
        step, size = self.bytes.dst.steps[2], dtype(self.epilogue.dtype).bits // 8
        pieces = tuple(
            Piece(pixel * self.lanes + piece.lane, piece.lanes, pixel * step + piece.offset)
            for pixel in range(count)
            for piece in self.kind.stores
        )
        total = sum(piece.lanes for piece in pieces)
        if total == count * self.lanes and all(one.offset == one.lane * size for one in pieces):
            pieces = (Piece(0, total, 0),)
        group = Outputs(self.bytes.arithmetic, (self.dst[first],), (pieces,), (self.kind.channels * count,))
        x = Writer(group, self.bytes, self.epilogue, count * self.lanes)(b, join(b, sums), 0, 0)
        store_pieces(b, x, b.gep(b["dst"], self.dst[first]), pieces)

    # -- rows of taps ---------------------------------------------------------------------------------------

    def row(self, src: Value, weights: Value, sums: list[Value]) -> list[Value]:
        """One row of taps."""
        b, plan, sums = self.b, self.bytes, list(sums)
        orders = {order: number for number, order in enumerate(plan.arrangements)}
        self.pixels_of_row, self.pairs = {}, {}
        loaded: dict[tuple[int, int], Value] = {}
        b.line(BARRIER)
        for quad in quads(plan.geometry.kernel[2], plan.geometry.strides[2], self.span.pixels):
            units = self.quad(src, quad.at)
            for output, order in quad.uses:
                for unit, x in enumerate(units):
                    at = orders[order], unit
                    if at not in loaded:
                        place = at[0] * plan.line + unit * plan.machine.vector
                        loaded[at] = b.load(SUM, b.gep(weights, place))
                    number = output * self.units + unit
                    sums[number] = _dot(b, sums[number], x, loaded[at])
        return sums

    def quad(self, src: Value, at: int) -> list[Value]:
        """Four neighbouring pixels: of each unit, fours of bytes of its channels."""
        b, whole = self.b, range(LANES)
        if self.units == 1:
            if self.neighbours(at, FOUR):
                four = self.shifted(b.load(QUAD, self.place(src, at), 1))
            else:
                four = join(b, [self.pair(src, at), self.pair(src, at + 2)])
            return [b.shuffle(four, [lane + LANES * k for lane in whole for k in range(FOUR)])]
        one, two = self.pair(src, at), self.pair(src, at + 2)
        return [
            b.shuffle(one, [lane + unit * LANES + self.lanes * k for lane in whole for k in range(FOUR)], two)
            for unit in range(self.units)
        ]

    def pair(self, src: Value, at: int) -> Value:
        """Two neighbouring pixels, side by side."""
        if at not in self.pairs:
            if self.neighbours(at, 2):
                made = self.b.load(vector(2 * self.lanes, I8), self.place(src, at), 1)
            else:
                made = join(self.b, [self.pixel(src, at), self.pixel(src, at + 1)])
            self.pairs[at] = self.shifted(made)
        return self.pairs[at]

    def pixel(self, src: Value, at: int) -> Value:
        """The channels of a pixel; the zero point where there is no pixel."""
        if not self.inside(at):
            return self.nowhere
        if at not in self.pixels_of_row:
            channels = vector(self.lanes, I8)
            self.pixels_of_row[at] = load_pieces(self.b, channels, self.place(src, at), self.kind.loads, 1)
        return self.pixels_of_row[at]

    def place(self, src: Value, at: int) -> Value:
        """Where a pixel lies."""
        return self.b.gep(src, at * self.bytes.src.steps[2])

    def shifted(self, x: Value) -> Value:
        """Bytes as the instruction reads them, unsigned."""
        return self.b.xor(x, SIGN) if self.bytes.arithmetic.shift else x

    def inside(self, at: int) -> bool:
        """Whether there is such a pixel in all tiles of the span."""
        g, span = self.bytes.geometry, self.span
        first = span.start * g.strides[2] - g.padding[2] + at
        return first >= 0 and first + (span.tiles - 1) * span.pixels * g.strides[2] < g.source[2]

    def neighbours(self, at: int, count: int) -> bool:
        """Whether so many pixels are one piece of memory, of channels alone."""
        dense = self.bytes.src.steps[2] == self.lanes == sum(piece.lanes for piece in self.kind.loads)
        return dense and all(self.inside(at + k) for k in range(count))
