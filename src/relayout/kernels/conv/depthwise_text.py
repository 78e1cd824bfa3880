"""The text of a depthwise or grouped convolution: what :mod:`.depthwise` plans.

A tile is a function for one kind of vectors and one span of a row. It is called for each row, tile and
vector, and told which rows of taps fall inside::

    sums = 0
    for turn = inputs of a group - 1 ... 0:
        sums = sums, rotated by one lane in each group
        for planes and rows of taps that fall inside:
            w0, w1, w2 = weights[turn, plane, row]
            for each pixel of the source row:  x = source[plane, row, pixel]
                for its outputs:               sums[output] += x * w[tap]

The innermost two loops are written out. Where the L1 cache can't hold all rows, turns are the innermost
loop instead; they bring the sums round to where they began, so that nothing else changes.

Loads are cheap (two in a cycle, besides two multiplications), and registers are not, so that ``x`` is loaded
anew in each turn. LLVM would load everything first, and run out of registers: an empty piece of assembly that
may write to memory keeps what is behind it there.

The entry is that of all plans, see :mod:`.module`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, gcd

from relayout.dtypes import dtype
from relayout.ir.builder import L2
from relayout.ir.conversions import to_f32
from relayout.ir.kernel import inner
from relayout.ir.types import FLOAT, I32, I64, PTR, Type, Value, constant, integer, vector
from relayout.ir.vectors import load_pieces, pieces_of
from relayout.kernels.conv.depthwise import COLUMNS_HELD, Depthwise, Kind
from relayout.kernels.conv.epilogue import Epilogue, Writer
from relayout.kernels.conv.geometry import Span
from relayout.kernels.conv.module import Module, Vectors
from relayout.kernels.conv.sides import places_of
from relayout.kernels.conv.tile import COUNTS, WORD, lanes_of
from relayout.targets.machine import LINE

__all__ = ["BARRIER", "DepthwiseModule", "DepthwiseTile", "depthwise_module"]

POINTERS = ("src", "weights", "dst", "bias", "scale", "later")
"""What a tile gets: the pixel of the first tap inside, the weights of the first tap of all in the last turn,
where results go, bias and scale of the first channel, and what to prefetch; then the zero point of the
source where it has one, and the operands of binary operations."""

BARRIER = 'call void asm sideeffect "", "~{memory}"()'


def depthwise_module(plan: Depthwise, epilogue: Epilogue) -> str:
    """The text of all functions."""
    return DepthwiseModule(plan, epilogue).text()


class _Lanes:
    """What tiles and preparations do with the lanes of one kind of vectors."""

    def __init__(self, plan: Depthwise, kind: Kind, name: str, arguments: Mapping[str, Type]) -> None:
        self.plan, self.kind = plan, kind
        self.lanes = lanes_of(plan.machine)
        self.vector = vector(self.lanes, FLOAT)
        self.zero = constant(self.vector, 0.0)
        self.b = inner(name, arguments, plan.machine)

    def number(self, pointer: Value) -> Value:
        """An s32 in all lanes, as f32."""
        return self.b.splat(self.b.sitofp(self.b.load(I32, pointer), FLOAT), self.lanes)

    def picked(self, x: Value, picks: tuple[int, ...]) -> Value:
        """Lanes of a vector in another order."""
        return x if picks == tuple(range(self.lanes)) else self.b.shuffle(x, picks, 0.0)


class DepthwiseTile(_Lanes):
    """Writes one tile, a function whose arguments are :data:`POINTERS` and :data:`COUNTS`."""

    def __init__(self, plan: Depthwise, kind: Kind, span: Span, epilogue: Epilogue, name: str) -> None:
        zero = ["zero"] * plan.zeros.src
        pointers = dict.fromkeys((*POINTERS, *zero, *epilogue.names), PTR)
        super().__init__(plan, kind, name, {**pointers, **dict.fromkeys(COUNTS, I64)})
        self.span, self.epilogue = span, epilogue
        self.arithmetic = plan.arithmetic
        self.dst = tuple(pixel * plan.dst.steps[2] for pixel in range(span.pixels))
        self.pieces, self.channels = (kind.stores,), (kind.channels,)

    def text(self) -> str:
        """The text of the function."""
        b, plan, g = self.b, self.plan, self.plan.geometry
        self.prefetch()
        epilogue = Writer(self, plan, self.epilogue)
        weights = b["weights"]
        for axis, first in enumerate(COUNTS[:2]):
            if g.kernel[axis] > 1:
                weights = b.gep(weights, b[first], plan.steps[axis])

        order = ("plane", "row", "turn") if plan.turns_in_rows else ("turn", "plane", "row")
        sums = self.loops(order, b["src"], weights, [self.outside()] * self.span.pixels)
        epilogue.store(b, [(x, pixel, 0) for pixel, x in enumerate(sums)])
        return b.text()

    def outside(self) -> Value:
        """What rows of taps that fall outside give: zero times their weights, zero for all numbers."""
        b, plan = self.b, self.plan
        if all(plan.geometry.always_inside(axis) for axis in (0, 1)) or max(plan.geometry.gaps) > 1:
            return self.zero
        products = b.mul(b["deep"], b["high"])
        some = b.icmp("ne", products, plan.geometry.kernel[0] * plan.geometry.kernel[1])

        def turn(_: Value, given: list[Value]) -> list[Value]:
            weights, total = given
            total = self.picked(total, self.kind.rotated)
            return [b.gep(weights, -plan.turn), self.rows_outside(weights, total)]

        def rare() -> Value:
            return b.repeat(0, plan.turns, 1, [b["weights"], self.zero], turn, True)[1]

        return b.unless(some, self.zero, rare)

    def rows_outside(self, weights: Value, total: Value) -> Value:
        """Zero times the weights of all rows that are not inside."""
        b, plan = self.b, self.plan
        planes, rows, columns = plan.geometry.kernel

        def plane(number: Value, given: list[Value]) -> list[Value]:
            inside = b.icmp("ult", b.sub(number, b["plane"]), b["deep"])
            high = b.select(inside, b["high"], 0)

            def row(number: Value, given: list[Value]) -> list[Value]:
                weights, total = given
                inside = b.icmp("ult", b.sub(number, b["row"]), high)
                for tap in range(columns):
                    factor = self.load_weights(b.gep(weights, tap * plan.steps[2]))
                    total = b.fmuladd(self.zero, b.select(inside, self.zero, factor), total)
                return [b.gep(weights, plan.steps[1]), total]

            weights, total = given
            return [b.gep(weights, plan.steps[0]), b.repeat(0, rows, 1, [weights, total], row, True)[1]]

        return b.repeat(0, planes, 1, [weights, total], plane, True)[1]

    def loops(self, left: tuple[str, ...], src: Value, weights: Value, sums: list[Value]) -> list[Value]:
        """The loops around a row of taps, the outermost first; the sums after them."""
        if not left:
            return self.row(src, weights, sums)
        b, plan, g = self.b, self.plan, self.plan.geometry
        loop, *inner = left
        (deep, down), (across, below) = (
            (gap // gcd(gap, apart), apart // gcd(gap, apart))
            for gap, apart in zip(g.gaps[:2], g.dilation[:2], strict=True)
        )
        most, count, forth, on = {
            "plane": (g.kernel[0], b["deep"], down * plan.src.steps[0], deep * plan.steps[0]),
            "row": (g.kernel[1], b["high"], below * plan.src.steps[1], across * plan.steps[1]),
            "turn": (plan.turns, constant(I64, plan.turns), 0, -plan.turn),
        }[loop]
        if most == 1:
            return self.loops(tuple(inner), src, weights, sums)

        def turn(_: Value, given: list[Value]) -> list[Value]:
            s, y, *inside = given
            if loop == "turn":
                inside = [self.picked(x, self.kind.rotated) for x in inside]
            return [b.gep(s, forth), b.gep(y, on), *self.loops(tuple(inner), s, y, inside)]

        return b.repeat(0, count, 1, [src, weights, *sums], turn, True)[2:]

    def row(self, src: Value, weights: Value, sums: list[Value]) -> list[Value]:
        """One row of taps, a few columns at a time."""
        b, plan = self.b, self.plan
        sums, columns = list(sums), plan.geometry.kernel[2]
        some = ceil(columns / ceil(columns / COLUMNS_HELD))
        for first in range(0, columns, some):
            here = range(first, min(first + some, columns))
            pixels = [(at, [use for use in uses if use[1] in here]) for at, uses in self.span.taps]
            outside = [use for use in self.span.outside if use[1] in here]
            b.line(BARRIER)
            factors = {tap: self.load_weights(b.gep(weights, tap * plan.steps[2])) for tap in here}
            for at, uses in pixels:
                if uses:
                    x = self.load_pixel(b.gep(src, at * plan.src.steps[2]))
                    for output, tap in uses:
                        sums[output] = b.fmuladd(x, factors[tap], sums[output])
            for output, tap in outside:
                sums[output] = b.fmuladd(self.zero, factors[tap], sums[output])
        return sums

    def load_weights(self, pointer: Value) -> Value:
        """A vector of weights."""
        return self.b.load(self.vector, pointer)

    def load_pixel(self, pointer: Value) -> Value:
        """A vector of the source."""
        kind = self.plan.src_type
        raw = load_pieces(self.b, self.vector.of(integer(kind.bits)), pointer, self.kind.loads)
        x = to_f32(self.b, raw, kind)
        if self.plan.zeros.src:  # what is no pixel is zero, and stays it
            x = self.b.fsub(x, self.number(self.b["zero"]))
        return self.picked(x, self.kind.picks)

    def prefetch(self) -> None:
        """Ask for a share of what lies under the tile in later rows; beyond the last one that does nothing.

        The shares of all vectors are memory from end to end, which processors soon fetch by themselves.
        """
        b, plan = self.b, self.plan
        for row in range(plan.geometry.strides[1] if plan.ahead else 0):
            for at in range(0, plan.share(self.span), LINE):
                b.prefetch(b.gep(b["later"], (plan.ahead + row) * plan.src.steps[1] + at), L2)


class _Preparation(_Lanes):
    """Writes the preparation of the weights of one vector.

    Turn ``r`` wants, in the lane of input ``t``, its weight for output ``t + r``. Vectors of weights are in
    the lanes of their outputs, one for each input. First each lane takes its weight from the vector of the
    input that meets it in this turn, as many bits of its position at a time as there are::

        inputs, in lanes 0 1 2 3:  0000 1111 2222 3333     vectors 0 to 3, as they are loaded
                                   0101 1212 2323 3030     odd lanes from the next vector
                                   0123 1230 2301 3012     lanes 2 and 3 from the one after the next

    Then each vector is rotated, so that what output ``t + r`` takes comes to lane ``t``.
    """

    def __init__(self, plan: Depthwise, kind: Kind, name: str) -> None:
        points = ["points"] * (plan.zeros.weights > 0)
        super().__init__(plan, kind, name, dict.fromkeys(("weights", "to", *points), PTR))

    def text(self) -> str:
        """The text of ``void name(ptr weights, ptr to)``."""
        b, plan, g = self.b, self.plan, self.plan.geometry
        loops = [(count, step) for count, step in zip(g.kernel, plan.weights.taps, strict=True) if count > 1]

        def nest(left: list[tuple[int, int]], weights: Value, to: Value) -> Value:
            if not left:
                self.tap(weights, to)
                return b.gep(to, plan.machine.vector)
            (count, step), *inner = left

            def turn(_: Value, given: list[Value]) -> list[Value]:
                return [b.gep(given[0], step), nest(inner, *given)]

            return b.repeat(0, count, 1, [weights, to], turn, True)[1]

        nest(loops, b["weights"], b["to"])
        return b.text()

    def tap(self, weights: Value, to: Value) -> None:
        """One tap, in all turns."""
        b, plan, g = self.b, self.plan, self.plan.geometry
        places = places_of(plan.weights.inputs, g.inputs)
        vectors = [self.of_input(b.gep(weights, place)) for place in places]
        vectors += [self.zero] * (plan.turns - g.inputs)
        bit = 1
        while bit < plan.turns:
            picks = [lane + self.lanes * bool(p & bit) for lane, p in enumerate(self.kind.positions)]
            vectors = [
                b.shuffle(vectors[k], picks, vectors[(k + bit) % plan.turns]) for k in range(plan.turns)
            ]
            bit *= 2
        for turn in range(plan.turns):
            x = self.picked(vectors[-turn % plan.turns], self.further(turn))
            b.store(x, b.gep(to, turn * plan.turn))

    def further(self, turn: int) -> tuple[int, ...]:
        """The lane that is so many rotations further than each."""
        following = {before: lane for lane, before in enumerate(self.kind.rotated)}
        lanes = tuple(range(self.lanes))
        for _ in range(turn):
            lanes = tuple(following[lane] for lane in lanes)
        return lanes

    def of_input(self, pointer: Value) -> Value:
        """The weights of one input channel, in the lanes of their outputs."""
        b, kind = self.b, dtype(self.plan.weights_type)
        raw = b.load(vector(self.lanes // self.plan.together, integer(kind.bits)), pointer)
        picks = [max(channel, 0) for channel in self.kind.channels]
        x = to_f32(b, b.shuffle(raw, picks), kind)
        if self.plan.zeros.weights == 1:
            return b.fsub(x, self.number(b["points"]))
        if self.plan.zeros.weights:
            count = min(max(picks) + 1, self.plan.zeros.period or self.lanes)
            picks = [channel % count for channel in picks]
            pieces = pieces_of(0, count, 0, WORD)
            points = b.shuffle(load_pieces(b, vector(self.lanes, I32), b["points"], pieces), picks)
            x = b.fsub(x, b.sitofp(points, FLOAT))
        return x


class DepthwiseModule(Module):
    """Writes the tasks, and the tiles and preparations that they call."""

    def __init__(self, plan: Depthwise, epilogue: Epilogue) -> None:
        super().__init__(plan, epilogue)
        self.plan = plan

    def tile(self, kind: Kind, span: Span, name: str) -> str:
        """The text of a tile."""
        return DepthwiseTile(self.plan, kind, span, self.epilogue, name).text()

    def preparation(self, kind: Kind, name: str) -> str:
        """The text of a preparation of weights."""
        return _Preparation(self.plan, kind, name).text()

    def beside(self, place: Vectors) -> list[Value]:
        """What a preparation is told beside where weights come from and go to: zero points, if any."""
        return [self._points(place)] * (self.plan.zeros.weights > 0)

    def task(self, task: Value, first: Value) -> None:
        """Find out which one it is, prepare its weights, and go over its rows."""
        b, plan = self.b, self.plan
        runs, blocks = ceil(len(plan.places) / plan.run), ceil(plan.all_rows / plan.rows)
        left, block = self.split(task, blocks)
        run, image = self.split(left, plan.blocks // blocks) if runs > 1 else (constant(I64, 0), left)
        image = b.mul(image, plan.images)
        source, target = self.image(b["src"], plan.src, image), self.image(b["dst"], plan.dst, image)
        row, last = self.block(block, plan.rows, plan.all_rows)
        begin, end = self.block(run, plan.run, len(plan.places))
        if plan.prepares:
            fresh = b.icmp("eq", self.split(task, plan.blocks)[1], 0)
            starts = b.icmp("eq", task, first)
            b.when(b.or_(fresh, starts), lambda: self._prepare(begin, end))
        b.loop(row, last, plan.tall, lambda top: self._rows(top, last, begin, end, source, target))

    def _prepare(self, begin: Value, end: Value) -> None:
        """Bring the weights of a run of vectors to scratch."""

        def one(number: Value) -> None:
            place, to = self.vectors(number), self._prepared(number, begin)

            def call(kind: int) -> None:
                name = f"prepare{kind}"
                if name not in self.functions:
                    self.functions[name] = self.preparation(self.plan.kinds[kind], name)
                self.b.call(name, place.weights, to, *self.beside(place))

            self.by_kind(place, call)

        self.b.loop(begin, end, 1, one)

    def _points(self, place: Vectors) -> Value:
        """Where the zero points of the weights of a vector lie."""
        zeros = self.plan.zeros
        at = self.b.gep(self.weights_zero, zeros.weights_at)
        return at if zeros.weights == 1 else self.b.gep(at, place.channel, WORD)

    def _prepared(self, number: Value, begin: Value) -> Value:
        """Where the prepared weights of a vector lie."""
        return self.b.gep(self.scratch, self.b.sub(number, begin), self.plan.prepared)

    def _rows(self, top: Value, last: Value, begin: Value, end: Value, source: Value, target: Value) -> None:
        """Some rows: tile by tile, vector by vector."""
        b, plan, g = self.b, self.plan, self.plan.geometry
        bottom = b.smin(b.add(top, plan.tall), last) if plan.tall > 1 else top
        across, along = plan.src.steps[2], plan.dst.steps[2]
        gap = g.gaps[2]
        for number, span in enumerate(plan.spans):

            def tile(k: Value, number: int = number, span: Span = span) -> None:
                s = b.gep(source, (span.start * g.strides[2] - g.padding[2]) // gap * across)
                s = b.gep(s, k, span.pixels * g.strides[2] // gap * across)
                d = b.gep(b.gep(target, span.start * along), k, span.pixels * along)
                b.loop(begin, end, 1, lambda which: self._vector(which, begin, number, s, d, (top, bottom)))

            b.loop(0, span.tiles, 1, tile)

    def _vector(
        self, which: Value, begin: Value, span: int, tile: Value, dst: Value, rows: tuple[Value, Value]
    ) -> None:
        """The rows of a block in one tile of one vector."""
        b, plan = self.b, self.plan
        place = self.vectors(which)
        extra, weights = self.of_channel(place.channel), place.weights
        if plan.prepares:
            weights = b.gep(self._prepared(which, begin), (plan.turns - 1) * plan.turn)
        src, dst = b.gep(tile, place.src), b.gep(dst, place.dst)

        def row(number: Value) -> None:
            plane, down = constant(I64, 0), number
            if plan.geometry.target[0] > 1:
                plane, down = self.split(number, plan.geometry.target[1])
            s, counts = self.taps_inside(src, plane, down)
            d = dst
            for axis, index in enumerate((plane, down)):
                d = b.gep(d, index, plan.dst.steps[axis])
            later = self._later(number, which, span, tile) if plan.ahead else s

            def call(kind: int) -> None:
                name = f"tile{span}_{kind}"
                if name not in self.functions:
                    self.functions[name] = self.tile(plan.kinds[kind], plan.spans[span], name)
                zero = [b.gep(self.src_zero, plan.zeros.src_at)] * plan.zeros.src
                self.call(name, [s, weights, d, *extra, later, *zero], place.channel, d, counts)

            self.by_kind(place, call)

        if plan.tall > 1:
            b.loop(*rows, 1, row)
        else:
            row(rows[0])

    def _later(self, row: Value, which: Value, span: int, tile: Value) -> Value:
        """What a vector asks for, but for the rows between."""
        b, plan = self.b, self.plan
        row = b.udiv(row, plan.geometry.gaps[1])
        at = b.gep(tile, row, plan.geometry.strides[1] * plan.src.steps[1])
        return b.gep(at, which, plan.share(plan.spans[span]))
