"""The text of a convolution of narrow groups: what :mod:`.narrow` plans.

A tile is a function for one kind of vectors and one span of a row. It is called for each row, tile and
vector, and told which rows of taps fall inside::

    sums = 0
    for turn = inputs of a group - 1 ... 0:
        sums = sums, rotated by one lane in each group
        for planes and rows of taps that fall inside:
            w0, w1, w2 = weights[turn, plane, row]
            for each pixel of the source row:  x = source[plane, row, pixel]
                for its outputs:               sums[output] += x * w[tap]

The innermost two loops are written out. Where the first cache can't hold all rows, turns are the innermost
loop instead; they bring the sums round to where they began, so that nothing else changes.

Loads are cheap (two in a cycle, besides two multiplications), and registers are not, so that ``x`` is loaded
anew in each turn. LLVM would load everything first, and run out of registers: an empty piece of assembly that
may write to memory keeps what is behind it there.

The entry is that of all plans, see :mod:`.module`.
"""

from __future__ import annotations

from math import ceil

from relayout.dtypes import DType, dtype
from relayout.ir.conversions import converted
from relayout.ir.writer import Writer
from relayout.kernels.conv.depthwise import TOGETHER, Depthwise, Kind
from relayout.kernels.conv.epilogue import Finish, Finishing
from relayout.kernels.conv.geometry import Span
from relayout.kernels.conv.module import Module
from relayout.kernels.conv.sides import places_of
from relayout.kernels.conv.tile import COUNTS, WORD, lanes_of, load_pieces, store_pieces
from relayout.targets.machine import LINE

__all__ = ["depthwise_module"]

POINTERS = ("src", "weights", "dst", "bias", "scale", "later")
"""What a tile gets: the pixel of the first tap inside, the weights of the first tap of all in the last turn,
where results go, bias and scale of the first channel, and what to ask for early; then the operands of binary
operations."""

BARRIER = 'call void asm sideeffect "", "~{memory}"()'


def depthwise_module(plan: Depthwise, finishing: Finishing) -> str:
    """The text of all functions."""
    return _Module(plan, finishing).text()


class _Lanes:
    """What tiles and preparations do with the lanes of one kind of vectors."""

    def __init__(self, plan: Depthwise, kind: Kind) -> None:
        self.plan, self.kind = plan, kind
        self.lanes = lanes_of(plan.machine)
        self.vector = f"<{self.lanes} x float>"
        self.w = Writer(plan.machine)

    def as_floats(self, raw: str, kind: DType) -> str:
        """Elements of another data type as f32."""
        wide = converted(self.w, self.plan.machine, raw, self.lanes, kind, dtype("f32"))
        return self.w.value(f"bitcast <{self.lanes} x i32> {wide} to {self.vector}")

    def picked(self, x: str, picks: tuple[int, ...]) -> str:
        """Lanes of a vector in another order."""
        if picks == tuple(range(self.lanes)):
            return x
        return self.w.shuffle(x, "zeroinitializer", self.vector, picks)


class _Tile(_Lanes):
    """Writes one tile."""

    def __init__(self, plan: Depthwise, kind: Kind, span: Span, finishing: Finishing) -> None:
        super().__init__(plan, kind)
        self.span, self.finishing = span, finishing
        self.arithmetic = plan.arithmetic
        self.dst = tuple(pixel * plan.dst.steps[2] for pixel in range(span.pixels))
        self.pieces, self.channels = (kind.stores,), (kind.channels,)

    def function(self, name: str) -> str:
        """The text of the function, whose arguments are :data:`POINTERS` and :data:`COUNTS`."""
        w, plan, g = self.w, self.plan, self.plan.geometry
        self.ask_ahead()
        finish = Finish(self, plan, self.finishing)
        weights = "%weights"
        for axis, first in enumerate(("%plane", "%row")):
            if g.kernel[axis] > 1:
                weights = w.at(weights, w.times(first, plan.steps[axis]))

        order = ("plane", "row", "turn") if plan.turns_in_rows else ("turn", "plane", "row")
        sums = self.loops(order, "%src", weights, [self.outside()] * self.span.pixels)
        for pixel, place in enumerate(self.dst):
            value, bits = finish(w, sums[pixel], pixel, 0)
            store_pieces(w, value, w.at("%dst", place), self.kind.stores, self.lanes, bits)
        pointers = (*POINTERS, *self.finishing.names)
        given = ", ".join([*(f"ptr %{name}" for name in pointers), *(f"i64 {name}" for name in COUNTS)])
        return f"define internal void @{name}({given}) noinline {{\nentry:\n{w.text()}\n  ret void\n}}\n"

    def outside(self) -> str:
        """What rows of taps that fall outside give: zero times their weights, zero for all numbers."""
        w, plan = self.w, self.plan
        if all(plan.geometry.always_inside(axis) for axis in (0, 1)):
            return "zeroinitializer"
        products = w.value("mul i64 %deep, %high")
        some = w.value(f"icmp ne i64 {products}, {plan.geometry.kernel[0] * plan.geometry.kernel[1]}")

        def turn(given: list[str]) -> list[str]:
            weights, total = given
            total = self.picked(total, self.kind.rotated)
            return [w.at(weights, -plan.turn), self.rows_outside(0, weights, "true", total)]

        def rare() -> str:
            return w.carry(plan.turns, [("ptr", "%weights"), (self.vector, "zeroinitializer")], turn)[1]

        return w.unless(some, self.vector, "zeroinitializer", rare)

    def rows_outside(self, axis: int, weights: str, inside: str, total: str) -> str:
        """Zero times the weights of all rows that are not inside."""
        w, plan, columns = self.w, self.plan, self.plan.geometry.kernel[2]
        if axis == 2:
            for tap in range(columns):
                factor = self.load_weights(w.at(weights, tap * plan.steps[2]))
                factor = w.value(f"select i1 {inside}, {self.vector} zeroinitializer, {self.vector} {factor}")
                total = self.add_product("zeroinitializer", factor, total)
            return total
        first, count = (("%plane", "%deep"), ("%row", "%high"))[axis]

        def turn(given: list[str]) -> list[str]:
            y, number, before = given
            here = w.value(f"icmp ult i64 {w.value(f'sub i64 {number}, {first}')}, {count}")
            both = w.value(f"and i1 {inside}, {here}")
            after = self.rows_outside(axis + 1, y, both, before)
            return [w.at(y, plan.steps[axis]), w.value(f"add i64 {number}, 1"), after]

        carried = [("ptr", weights), ("i64", "0"), (self.vector, total)]
        return w.carry(plan.geometry.kernel[axis], carried, turn)[2]

    def loops(self, left: tuple[str, ...], src: str, weights: str, sums: list[str]) -> list[str]:
        """The loops around a row of taps, the outermost first; the sums after them."""
        if not left:
            return self.row(src, weights, sums)
        w, plan, g = self.w, self.plan, self.plan.geometry
        loop, *inner = left
        loops: dict[str, tuple[int, int | str, int, int]] = {
            "plane": (g.kernel[0], "%deep", g.dilation[0] * plan.src.steps[0], plan.steps[0]),
            "row": (g.kernel[1], "%high", g.dilation[1] * plan.src.steps[1], plan.steps[1]),
            "turn": (plan.turns, plan.turns, 0, -plan.turn),
        }
        most, count, forth, on = loops[loop]
        if most == 1:
            return self.loops(tuple(inner), src, weights, sums)

        def turn(given: list[str]) -> list[str]:
            s, y, *inside = given
            if loop == "turn":
                inside = [self.picked(value, self.kind.rotated) for value in inside]
            return [w.at(s, forth), w.at(y, on), *self.loops(tuple(inner), s, y, inside)]

        carried = [("ptr", src), ("ptr", weights), *((self.vector, value) for value in sums)]
        return w.carry(count, carried, turn)[2:]

    def row(self, src: str, weights: str, sums: list[str]) -> list[str]:
        """One row of taps, a few columns at a time."""
        w, plan = self.w, self.plan
        sums, columns = list(sums), plan.geometry.kernel[2]
        some = ceil(columns / ceil(columns / TOGETHER))
        for first in range(0, columns, some):
            here = range(first, min(first + some, columns))
            pixels = [(at, [use for use in uses if use[1] in here]) for at, uses in self.span.taps]
            outside = [use for use in self.span.outside if use[1] in here]
            w.line(BARRIER)
            factors = {tap: self.load_weights(w.at(weights, tap * plan.steps[2])) for tap in here}
            for at, uses in pixels:
                if uses:
                    x = self.load_pixel(w.at(src, at * plan.src.steps[2]))
                    for output, tap in uses:
                        sums[output] = self.add_product(x, factors[tap], sums[output])
            for output, tap in outside:
                sums[output] = self.add_product("zeroinitializer", factors[tap], sums[output])
        return sums

    def load_weights(self, pointer: str) -> str:
        """A vector of weights."""
        return self.w.value(f"load {self.vector}, ptr {pointer}, align {WORD}")

    def load_pixel(self, pointer: str) -> str:
        """A vector of the source."""
        kind = self.plan.src_type
        raw = load_pieces(self.w, pointer, self.kind.loads, self.lanes, f"i{kind.bits}", kind.bits // 8)
        return self.picked(self.as_floats(raw, kind), self.kind.picks)

    def add_product(self, x: str, y: str, total: str) -> str:
        """``total + x * y`` in each lane."""
        w, kind, lanes = self.w, self.vector, self.lanes
        if self.plan.machine.fuses:
            return w.value(f"call {kind} @llvm.fma.v{lanes}f32({kind} {x}, {kind} {y}, {kind} {total})")
        return w.value(f"fadd {kind} {w.value(f'fmul {kind} {x}, {y}')}, {total}")

    def ask_ahead(self) -> None:
        """Ask for a share of what lies under the tile in later rows; beyond the last one that does nothing.

        The shares of all vectors are memory from end to end, which processors soon fetch by themselves.
        """
        w, plan = self.w, self.plan
        for row in range(plan.geometry.strides[1] if plan.ahead else 0):
            for at in range(0, plan.share(self.span), LINE):
                later = w.at("%later", (plan.ahead + row) * plan.src.steps[1] + at)
                w.line(f"call void @llvm.prefetch.p0(ptr {later}, i32 0, i32 2, i32 1)")


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

    def function(self, name: str) -> str:
        """The text of ``void name(ptr weights, ptr to)``."""
        w, plan, g = self.w, self.plan, self.plan.geometry
        loops = [(count, step) for count, step in zip(g.kernel, plan.weights.taps, strict=True) if count > 1]

        def nest(left: list[tuple[int, int]], weights: str, to: str) -> str:
            if not left:
                self.tap(weights, to)
                return w.at(to, plan.machine.vector)
            (count, step), *inner = left

            def turn(given: list[str]) -> list[str]:
                return [w.at(given[0], step), nest(inner, *given)]

            return w.carry(count, [("ptr", weights), ("ptr", to)], turn)[1]

        nest(loops, "%weights", "%to")
        given = "ptr %weights, ptr %to"
        return f"define internal void @{name}({given}) noinline {{\nentry:\n{w.text()}\n  ret void\n}}\n"

    def tap(self, weights: str, to: str) -> None:
        """One tap, in all turns."""
        w, plan, g = self.w, self.plan, self.plan.geometry
        places = places_of(plan.weights.inputs, g.inputs)
        vectors = [self.of_input(w.at(weights, place)) for place in places]
        vectors += ["zeroinitializer"] * (plan.turns - g.inputs)
        bit = 1
        while bit < plan.turns:
            picks = [lane + self.lanes * bool(p & bit) for lane, p in enumerate(self.kind.positions)]
            vectors = [
                w.shuffle(vectors[k], vectors[(k + bit) % plan.turns], self.vector, picks)
                for k in range(plan.turns)
            ]
            bit *= 2
        for turn in range(plan.turns):
            value = self.picked(vectors[-turn % plan.turns], self.further(turn))
            at = w.at(to, turn * plan.turn)
            w.line(f"store {self.vector} {value}, ptr {at}, align {WORD}")

    def further(self, turn: int) -> tuple[int, ...]:
        """The lane that is so many rotations further than each."""
        following = {before: lane for lane, before in enumerate(self.kind.rotated)}
        lanes = tuple(range(self.lanes))
        for _ in range(turn):
            lanes = tuple(following[lane] for lane in lanes)
        return lanes

    def of_input(self, pointer: str) -> str:
        """The weights of one input channel, in the lanes of their outputs."""
        w, kind = self.w, dtype(self.plan.weights_type)
        count = self.lanes // self.plan.together
        raw = w.value(f"load <{count} x i{kind.bits}>, ptr {pointer}, align {kind.bits // 8}")
        picks = [max(channel, 0) for channel in self.kind.channels]
        return self.as_floats(w.shuffle(raw, "poison", f"<{count} x i{kind.bits}>", picks), kind)


class _Module(Module):
    """Writes the tasks, and the tiles and preparations that they call."""

    def __init__(self, plan: Depthwise, finishing: Finishing) -> None:
        super().__init__(plan, finishing)
        self.plan = plan

    def task(self, task: str, first: str) -> None:
        """Find out which one it is, prepare its weights, and go over its rows."""
        w, plan = self.w, self.plan
        runs, blocks = ceil(len(plan.places) / plan.run), ceil(plan.all_rows / plan.rows)
        left, block = self.split(task, blocks)
        run, image = self.split(left, plan.blocks // blocks) if runs > 1 else ("0", left)
        image = str(w.times(image, plan.images))
        source, target = self.image("%src", plan.src, image), self.image("%dst", plan.dst, image)
        row, last = self.block(block, plan.rows, plan.all_rows)
        begin, end = self.block(run, plan.run, len(plan.places))
        if plan.prepares:
            fresh = w.value(f"icmp eq i64 {self.split(task, plan.blocks)[1]}, 0")
            starts = w.value(f"icmp eq i64 {task}, {first}")
            w.when(w.value(f"or i1 {fresh}, {starts}"), lambda: self._prepare(begin, end))
        w.loop(row, last, plan.tall, lambda top: self._rows(top, last, begin, end, source, target))

    def _prepare(self, begin: str, end: str) -> None:
        """Bring the weights of a run of vectors to scratch."""

        def vector(number: str) -> None:
            place, to = self.vectors(number), self._prepared(number, begin)

            def call(kind: int) -> None:
                name = f"prepare{kind}"
                if name not in self.functions:
                    made = _Preparation(self.plan, self.plan.kinds[kind])
                    self.functions[name] = made.function(name)
                self.w.line(f"call void @{name}(ptr {place.weights}, ptr {to})")

            self.by_kind(place, call)

        self.w.loop(begin, end, 1, vector)

    def _prepared(self, number: str, begin: str) -> str:
        """Where the prepared weights of a vector lie."""
        w = self.w
        return w.at(self.scratch, w.times(w.value(f"sub i64 {number}, {begin}"), self.plan.prepared))

    def _rows(self, top: str, last: str, begin: str, end: str, source: str, target: str) -> None:
        """Some rows: tile by tile, vector by vector."""
        w, plan, g = self.w, self.plan, self.plan.geometry
        bottom = self.least(w.value(f"add i64 {top}, {plan.tall}"), last) if plan.tall > 1 else ""
        across, along = plan.src.steps[2], plan.dst.steps[2]
        for number, span in enumerate(plan.spans):

            def tile(k: str, number: int = number, span: Span = span) -> None:
                s = w.at(source, (span.start * g.strides[2] - g.padding[2]) * across)
                s = w.at(s, w.times(k, span.pixels * g.strides[2] * across))
                d = w.at(w.at(target, span.start * along), w.times(k, span.pixels * along))
                w.loop(begin, end, 1, lambda which: self._vector(which, begin, number, s, d, (top, bottom)))

            w.loop(0, span.tiles, 1, tile)

    def _vector(self, which: str, begin: str, span: int, src: str, dst: str, rows: tuple[str, str]) -> None:
        """The rows of a block in one tile of one vector."""
        w, plan = self.w, self.plan
        place = self.vectors(which)
        extra, weights = self.of_channel(place.channel), place.weights
        if plan.prepares:
            weights = w.at(self._prepared(which, begin), (plan.turns - 1) * plan.turn)
        tile, src, dst = src, w.at(src, place.src), w.at(dst, place.dst)

        def row(number: str) -> None:
            plane, down = ("0", number)
            if plan.geometry.target[0] > 1:
                plane, down = self.split(number, plan.geometry.target[1])
            s, counts = self.taps_inside(src, plane, down)
            d = dst
            for axis, index in enumerate((plane, down)):
                d = w.at(d, w.times(index, plan.dst.steps[axis]))
            later = self._later(number, which, span, tile) if plan.ahead else s

            def call(kind: int) -> None:
                name = f"tile{span}_{kind}"
                if name not in self.functions:
                    made = _Tile(plan, plan.kinds[kind], plan.spans[span], self.finishing)
                    self.functions[name] = made.function(name)
                self.call(name, [s, weights, d, *extra, later], place.channel, d, counts)

            self.by_kind(place, call)

        if rows[1]:
            w.loop(*rows, 1, row)
        else:
            row(rows[0])

    def _later(self, row: str, which: str, span: int, tile: str) -> str:
        """What a vector asks for, but for the rows between."""
        w, plan = self.w, self.plan
        at = w.at(tile, w.times(row, plan.geometry.strides[1] * plan.src.steps[1]))
        return w.at(at, w.times(which, plan.share(plan.spans[span])))
