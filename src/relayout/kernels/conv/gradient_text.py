"""The gradient of a convolution's weights as text.

``void gradient(ptr src, ptr sums, ptr ops, i64 part, i64 parts)`` does a share of a plan's tasks; ``ops``
lists the addresses of ``diff_dst`` and of scratch, a slot for each part. Each share of the chunks has sums of
its own, one behind the other; ``void total(ptr sums, ptr dst, ptr, i64 part, i64 parts)`` adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import NamedTuple

from relayout.dtypes import dtype
from relayout.ir.builder import L2, Function, table
from relayout.ir.conversions import convert
from relayout.ir.kernel import digits, kernel, share
from relayout.ir.types import FLOAT, I1, I64, PTR, Value, constant, integer, vector
from relayout.ir.vectors import Piece, load_pieces, pieces_of
from relayout.kernels.conv.gradient import Inputs, Outputs, Plan, Row, Turn
from relayout.kernels.conv.tile import WORD, lanes_of
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "TOTAL", "gradient_module", "total_module"]

ENTRY, TOTAL = "gradient", "total"


def gradient_module(plan: Plan) -> str:
    """The text of a plan."""
    return _Writer(plan).text()


class Chunk(NamedTuple):
    """What is known of a chunk when the kernel runs."""

    fresh: Value
    """Whether it is the first of its share."""
    begins: list[Value]
    ends: list[Value]
    src: Value
    dst: Value
    """Where its pixels lie: those of the source, packed perhaps, and of ``diff_dst``."""
    next: tuple[Value, Value]
    """Where those of the next chunk lie, as they come."""


Later = Callable[[Value, tuple[Value, Value], int, Value, Value], tuple[Value, list[Value]]]


class _Writer:
    """Writes the entry, a task, and the tiles."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.lanes = plan, lanes_of(plan.machine)
        self.sum = vector(self.lanes, FLOAT)
        self.functions: dict[str, str] = {}
        self.b = kernel(ENTRY, plan.machine)
        self.rank = len(plan.dims)
        met: dict[int, set[int]] = {}  # for each kind of outputs the kinds of inputs that it meets
        for one in plan.filters:
            met.setdefault(one.kind, set()).update(tile.kind for tile in plan.tiles[one.first : one.end])
        self.met = {kind: sorted(kinds) for kind, kinds in met.items()}

    def text(self) -> str:
        b, plan = self.b, self.plan
        diff_dst = b.gep(b.load(PTR, b["ops"]), plan.dst.start)
        src = self.source = b.gep(b["src"], plan.src.start)
        room = b.gep(b.load(PTR, b.gep(b["ops"], 8)), b["part"], plan.slot) if plan.slot else src
        first, end = share(b, plan.tasks)

        def task(number: Value, given: list[Value]) -> list[Value]:
            self.task(number, src, diff_dst, room)
            return given

        b.repeat(first, end, 1, [], task)
        tables = [
            table("filters", [n for one in plan.filters for n in one]),
            table("tiles", [n for one in plan.tiles for n in one]),
            table("taps", [n for tap in plan.taps for n in (tap.src, tap.weights, *sum(tap.inside, ()))]),
        ]
        return "\n".join([*tables, *self.functions.values(), b.text()])

    def row(self, name: str, number: Value, count: int) -> list[Value]:
        """An entry of a table."""
        entry = self.b.gep(Value(f"@{name}", PTR), number, 8 * count)
        return [self.b.load(I64, self.b.gep(entry, 8 * k)) for k in range(count)]

    def cut(self, count: int, number: Value, parts: int) -> tuple[Value, Value]:
        """Where a part of so many begins and ends."""
        b = self.b
        first, end = (b.udiv(b.mul(each, count), parts) for each in (number, b.add(number, 1)))
        return first, end

    def task(self, number: Value, src: Value, diff_dst: Value, room: Value) -> None:
        """One share of the chunks for one part of outputs and taps."""
        b, plan = self.b, self.plan
        cuts = plan.shares, plan.blocks, plan.columns, plan.parts
        own, block, column, part = digits(b, number, cuts)
        vectors = self.cut(max(1, plan.geometry.inputs // self.lanes), column, plan.columns)
        sums = b.gep(b["dst"], own, plan.size)
        chunks = self.cut(plan.chunks, own, plan.shares)
        filters = self.cut(len(plan.filters), block, plan.blocks)
        taps = self.cut(len(plan.taps), part, plan.parts)

        def chunk(c: Value) -> None:
            begins, ends = self.pixels(c)
            here = self.at(begins, src, diff_dst)
            there = self.at(self.pixels(b.add(c, 1))[0], src, diff_dst) if plan.ahead else here
            made = Chunk(b.icmp("eq", c, chunks[0]), begins, ends, *here, there)
            if plan.gathers and not plan.filters[0].channels:
                packed = b.gep(room, plan.room)
                self.gather(begins, ends, src, packed, vectors)
                made = made._replace(src=packed)
            b.loop(*filters, 1, lambda f: self.filters(f, filters, made, taps, vectors, room, sums))

        b.loop(*chunks, 1, chunk)

    def pixels(self, chunk: Value) -> tuple[list[Value], list[Value]]:
        """Where a chunk begins and ends, along each loop."""
        b, dims = self.b, self.plan.dims
        places = digits(b, chunk, [-(-dim.extent // dim.chunk) for dim in dims])
        begins = [b.mul(place, dim.chunk) for place, dim in zip(places, dims, strict=True)]
        ends = [b.smin(b.add(begin, dim.chunk), dim.extent) for begin, dim in zip(begins, dims, strict=True)]
        return begins, ends

    def at(self, begins: list[Value], src: Value, diff_dst: Value) -> tuple[Value, Value]:
        """Where a chunk's pixels lie in both operands."""
        dims = self.plan.dims
        steps = [dim.src for dim in dims], [dim.dst for dim in dims]
        return self.moved(src, begins, steps[0]), self.moved(diff_dst, begins, steps[1])

    def moved(self, pointer: Value, by: list[Value], steps: Sequence[int]) -> Value:
        """A pointer moved along each loop."""
        for count, step in zip(by, steps, strict=True):
            pointer = self.b.gep(pointer, count, step)
        return pointer

    def filters(
        self,
        number: Value,
        filters: tuple[Value, Value],
        chunk: Chunk,
        taps: tuple[Value, Value],
        vectors: tuple[Value, Value],
        room: Value,
        sums: Value,
    ) -> None:
        """A chunk for a block of outputs and some vectors of inputs."""
        b, plan = self.b, self.plan
        fresh, begins, ends, src = chunk[:4]
        kind, dst, weights, first, end, came, channels = self.row("filters", number, 7)
        if plan.gathers and plan.filters[0].channels:
            src, given = b.gep(room, plan.room), b.gep(self.source, came)
            for count in sorted({one.channels for one in plan.filters}):

                def gather(count: int = count) -> None:
                    whole = constant(I64, 0), constant(I64, count // self.lanes)
                    self.gather(begins, ends, given, b.gep(room, plan.room), whole, count)

                if count == plan.filters[0].channels == plan.filters[-1].channels:
                    gather()
                else:
                    b.when(b.icmp("eq", channels, count), gather)
        if plan.columns > 1:  # all vectors of inputs have as many tiles
            each = (plan.filters[0].end - plan.filters[0].first) // (plan.geometry.inputs // self.lanes)
            first, end = (b.mul(vector, each) for vector in vectors)
        diff_dst, sums = b.gep(chunk.dst, dst), b.gep(sums, weights)
        if plan.packs:
            sizes = [b.sub(stop, begin) for begin, stop in zip(begins, ends, strict=True)]
            self.by_kind(kind, sorted(self.met), lambda k: b.call(self.pack(k), diff_dst, room, *sizes))
        start = room if plan.packs else diff_dst
        later = self.later(number, filters, chunk) if plan.ahead else None
        steps = self.steps

        def tap(t: Value) -> None:
            away, place, *inside = self.row("taps", t, 8)
            x, y = b.gep(src, away), start
            counts: list[Value] = []
            for begin, stop, dim, (forth, step) in zip(begins, ends, plan.dims, steps, strict=True):
                if dim.axis < 0:
                    counts.append(b.sub(stop, begin))
                    continue
                low, high = inside[2 * dim.axis : 2 * dim.axis + 2]
                skipped = b.smax(b.sub(low, begin), 0)
                x, y = b.gep(x, skipped, forth), b.gep(y, skipped, step)
                counts.append(b.smax(b.sub(b.smin(high, stop), b.add(begin, skipped)), 0))
            some = constant(I64, 1)
            for count, dim in zip(counts, plan.dims, strict=True):
                some = some if dim.axis < 0 else b.mul(some, count)
            needed = b.icmp("ne", some, 0)
            if needed.number is None:
                needed = b.or_(needed, fresh)
            out = b.gep(sums, place)

            def tile(n: Value) -> None:
                which, at, to, came = self.row("tiles", n, 4)
                pointers = [b.gep(x, at), y, b.gep(out, to)]

                def one(k: int, j: int) -> None:
                    if later is None:
                        return b.call(self.tile(k, j), *pointers, fresh, *counts)
                    asks, after = later(t, taps, k, b.sub(n, first), came)
                    b.when(asks, lambda: b.call(self.tile(k, j, True), *pointers, *after, fresh, *counts))
                    return b.when(b.not_(asks), lambda: b.call(self.tile(k, j), *pointers, fresh, *counts))

                def of_inputs(k: int) -> None:
                    self.by_kind(which, self.met[k], partial(one, k))

                self.by_kind(kind, sorted(self.met), of_inputs)

            b.when(needed, lambda: b.loop(first, end, 1, tile))

        b.loop(*taps, 1, tap)

    def later(self, filter: Value, filters: tuple[Value, Value], chunk: Chunk) -> Later:
        """What tells which tiles prefetch, and where.

        With the middle one of its taps, whose pixels are seldom in the padding, those of the first block of
        outputs prefetch the source of the next chunk, and a few of each block the vectors of ``diff_dst``
        that come next: tile ``n`` prefetches vector ``n``.
        """
        b, plan = self.b, self.plan
        behind = b.add(filter, 1)
        here = b.icmp("slt", behind, filters[1])
        dst = self.row("filters", b.select(here, behind, filters[0]), 7)[1]
        vectors = b.gep(b.select(here, chunk.dst, chunk.next[1]), dst)
        pixels = b.sub(chunk.ends[-1], chunk.begins[-1])

        def asked(
            tap: Value, taps: tuple[Value, Value], kind: int, n: Value, came: Value
        ) -> tuple[Value, list[Value]]:
            origins = [pieces[0].offset for pieces in plan.outputs[kind].pieces]
            apart = origins[1] - origins[0] if len(origins) > 1 else 0
            few = b.icmp("slt", n, len(origins))
            middle = b.udiv(b.add(*taps), 2)
            asks = b.and_(b.icmp("eq", tap, middle), b.or_(b.icmp("eq", filter, filters[0]), few))
            if len(plan.filters) == len(plan.taps) == 1:  # all tiles do
                asks = constant(I1, 1)
            away = b.mul(b.mul(n, pixels), plan.in_a_row) if plan.in_a_row else came
            return asks, [b.gep(chunk.next[0], away), b.gep(vectors, b.select(few, n, 0, I64), apart)]

        return asked

    def by_kind(self, kind: Value, kinds: list[int], body: Callable[[int], None]) -> None:
        """Write the body for each of some kinds, and run that of this one."""
        for k in kinds:
            if len(kinds) == 1:
                body(k)
            else:
                self.b.when(self.b.icmp("eq", kind, k), partial(body, k))

    def counted(
        self,
        f: Function,
        pointers: list[Value],
        steps: Sequence[tuple[int, ...]],
        sums: list[Value],
        body: Callable[[list[Value], list[Value]], list[Value]],
        row: Callable[[list[Value], list[Value]], list[Value]] | None = None,
        times: int = 1,
    ) -> list[Value]:
        """Loops over the pixels of a chunk, whose counts are arguments; ``row`` does the innermost one, which
        else goes so many ``times`` at once.
        """

        def nest(k: int, at: list[Value], given: list[Value]) -> list[Value]:
            if k == self.rank - 1 and row is not None:
                return row(at, given)
            if k == self.rank:
                return body(at, given)

            def turn(_: Value, carried: list[Value]) -> list[Value]:
                here, inside = carried[: len(at)], carried[len(at) :]
                after = nest(k + 1, here, inside)
                return [*(f.gep(x, step) for x, step in zip(here, steps[k], strict=True)), *after]

            several = times if k == self.rank - 1 else 1

            def turns(index: Value, carried: list[Value]) -> list[Value]:
                for _ in range(several):
                    carried = turn(index, carried)
                return carried

            return f.repeat(0, f[f"n{k}"], several, [*at, *given], turns)[len(at) :]

        return nest(0, pointers, sums)

    @property
    def steps(self) -> list[tuple[int, ...]]:
        """From pixel to pixel of what tiles read: source and gradient."""
        plan = self.plan
        src = [
            step * dim.stride if plan.gathers else dim.src
            for step, dim in zip(plan.gathered, plan.dims, strict=True)
        ]
        dst = plan.packed if plan.packs else [dim.dst for dim in plan.dims]
        return list(zip(src, dst, strict=True))

    def gather(
        self,
        begins: list[Value],
        ends: list[Value],
        src: Value,
        room: Value,
        vectors: tuple[Value, Value],
        channels: int = 0,
    ) -> None:
        """Pack what a chunk reads of some vectors of the source; of so many channels, if not of all."""
        b, plan = self.b, self.plan
        counts = []
        for begin, stop, dim, step in zip(begins, ends, plan.dims, plan.gathered, strict=True):
            origin = b.sub(b.mul(begin, dim.stride), dim.padding)
            low = b.smax(origin, 0)
            high = b.sub(b.add(b.mul(b.sub(stop, 1), dim.stride), dim.span), dim.padding)
            counts.append(b.smax(b.sub(b.smin(high, dim.size), low), 0))
            src, room = b.gep(src, low, dim.unit), b.gep(room, b.sub(low, origin), step)
        channels = channels or plan.geometry.inputs
        name = f"gather{channels}"
        if name not in self.functions:
            arguments = {"given": PTR, "packed": PTR, "first": I64, "end": I64}
            arguments |= {f"n{k}": I64 for k in range(self.rank)}
            f = Function(name, arguments, plan.machine, "internal", "noinline")
            whole, rest = divmod(channels, self.lanes)
            kind = plan.source

            def body(at: list[Value], given: list[Value]) -> list[Value]:
                x, y = at

                def block(k: Value) -> None:
                    one = self.widened(f, f.gep(x, k, plan.forth), pieces_of(0, self.lanes, 0), kind)
                    f.store(one, f.gep(y, k, plan.block))

                if whole:
                    f.loop(f["first"], f["end"], 1, block)
                if rest:
                    pieces = pieces_of(0, rest, 0, dtype(kind).bits // 8)
                    last = self.widened(f, f.gep(x, whole * plan.forth), pieces, kind)
                    f.store(last, f.gep(y, whole * plan.block))
                return given

            steps = [(dim.unit, to) for dim, to in zip(plan.dims, plan.gathered, strict=True)]
            self.counted(f, [f["given"], f["packed"]], steps, [], body)
            self.functions[name] = f.text()
        b.call(name, src, room, *vectors, *counts)

    def widened(self, f: Function, at: Value, pieces: Sequence[Piece], kind: str) -> Value:
        """A vector of elements of a data type as f32."""
        raw = load_pieces(f, self.sum.of(integer(dtype(kind).bits)), at, pieces)
        return f.bitcast(convert(f, raw, dtype(kind), dtype("f32")), self.sum)

    def pack(self, kind: int) -> str:
        """The name of the function that packs the vectors of a chunk."""
        name, plan = f"pack{kind}", self.plan
        if name in self.functions:
            return name
        arguments = {"given": PTR, "packed": PTR} | {f"n{k}": I64 for k in range(self.rank)}
        f = Function(name, arguments, plan.machine, "internal", "noinline")
        pieces = plan.outputs[kind].pieces

        def body(at: list[Value], given: list[Value]) -> list[Value]:
            for v, own in enumerate(pieces):
                f.store(self.widened(f, at[0], own, plan.gradient), f.gep(at[1], v * self.sum.bytes))
            return given

        steps = [(dim.dst, to) for dim, to in zip(plan.dims, plan.packed, strict=True)]
        self.counted(f, [f["given"], f["packed"]], steps, [], body)
        self.functions[name] = f.text()
        return name

    def tile(self, kind: int, number: int, asks: bool = False) -> str:
        """The name of a tile, which is written when it is first asked for; ``asks``: one that prefetches."""
        name, plan = f"tile{kind}_{number}" + "_asks" * asks, self.plan
        if name in self.functions:
            return name
        walked = ["src", "diff", *("later", "beyond") * asks]
        arguments = dict.fromkeys((*walked[:2], "sums", *walked[2:]), PTR) | {"fresh": I1}
        arguments |= {f"n{k}": I64 for k in range(self.rank)}
        f = Function(name, arguments, plan.machine, "internal", "noinline")
        outputs, inputs = plan.outputs[kind], plan.inputs[number]
        count = len(plan.spread) or len(inputs.places)
        taps = plan.geometry.kernel[2] if plan.row is not None else 1
        starts = [constant(self.sum, 0)] * (taps * count * len(outputs.pieces))

        def loaded(y: Value) -> list[Value]:
            return [
                f.load(self.sum, f.gep(y, v * self.sum.bytes))
                if plan.packs
                else load_pieces(f, self.sum, y, pieces)
                for v, pieces in enumerate(outputs.pieces)
            ]

        def row(at: list[Value], given: list[Value]) -> list[Value]:
            assert plan.row is not None
            return self.by_row(f, plan.row, at, given, inputs, loaded)

        def body(at: list[Value], given: list[Value]) -> list[Value]:
            x, y, *later = at
            diffs = loaded(y)
            for one in later:
                f.prefetch(one, L2)
            if plan.spread:
                return self.by_pattern(f, x, diffs, inputs, given)
            after: list[Value] = []
            for k, place in enumerate(inputs.places):
                every = f.splat(f.load(FLOAT, f.gep(x, place), WORD), self.lanes)
                own = given[k * len(diffs) : (k + 1) * len(diffs)]
                after += [f.fmuladd(every, diff, one) for diff, one in zip(diffs, own, strict=True)]
            return after

        whole = row if plan.row is not None else None
        steps: list[tuple[int, ...]] = self.steps
        if asks:
            steps = [(*both, *more) for both, more in zip(steps, plan.asked, strict=True)]
        sums = self.counted(f, [f[name] for name in walked], steps, starts, body, whole, 1 + plan.pairs)
        self.store(f, sums, taps, count, outputs)
        self.functions[name] = f.text()
        return name

    def by_pattern(
        self, f: Function, x: Value, diffs: list[Value], inputs: Inputs, given: list[Value]
    ) -> list[Value]:
        """The products of a pixel whose lanes belong to several groups."""
        straight = tuple(range(self.lanes))
        vectors = [
            load_pieces(f, self.sum, f.gep(x, place), pieces_of(0, width, 0))
            for place, width in zip(inputs.places, inputs.widths, strict=True)
        ]
        after: list[Value] = []
        for k, picks in enumerate(self.plan.spread):
            for v, (channels, diff) in enumerate(zip(vectors, diffs, strict=True)):
                own = channels if picks == straight else f.shuffle(channels, picks)
                after.append(f.fmuladd(own, diff, given[k * len(diffs) + v]))
        return after

    def by_row(
        self,
        f: Function,
        row: Row,
        at: list[Value],
        given: list[Value],
        inputs: Inputs,
        loaded: Callable[[Value], list[Value]],
    ) -> list[Value]:
        """The products of a row of pixels, with all taps of a row of a filter.

        Vectors of ``diff_dst`` are loaded anew in each step: kept in registers from step to step, LLVM moves
        sums about, and spills some.
        """
        geometry, (forth, step) = self.plan.geometry, self.steps[-1]
        count = len(given) // geometry.kernel[2]
        vectors = count // (len(self.plan.spread) or len(inputs.places))

        def turn(made: Turn, x: Value, y: Value, sums: list[Value]) -> list[Value]:
            sums = list(sums)
            backs = sorted({back for _, uses in made.pixels for _, back in uses})
            diffs = {back: loaded(f.gep(y, -back * step)) for back in backs}
            for number, uses in made.pixels:
                pixel = f.gep(x, number * forth // geometry.strides[2])
                for k, v, one in self.factors(f, pixel, inputs):
                    for tap, back in uses:
                        for which in range(vectors) if v is None else (v,):
                            place = tap * count + k * vectors + which
                            sums[place] = f.fmuladd(one, diffs[back][which], sums[place])
            return sums

        def alike(_: Value, carried: list[Value]) -> list[Value]:
            x, y, *sums = carried
            return [f.gep(x, forth), f.gep(y, step), *turn(row.turn, x, y, sums)]

        (x, y), sums = at, list(given)
        for made in row.front:
            sums = turn(made, x, y, sums)
            x, y = f.gep(x, forth), f.gep(y, step)
        x, y, *sums = f.repeat(0, row.turns, 1, [x, y, *sums], alike)
        for made in row.behind:
            sums = turn(made, x, y, sums)
            x, y = f.gep(x, forth), f.gep(y, step)
        return sums

    def factors(self, f: Function, x: Value, inputs: Inputs) -> Iterator[tuple[int, int | None, Value]]:
        """What a pixel of the source is multiplied by: for which input, and for which vector (None: all)."""
        if not self.plan.spread:
            for k, place in enumerate(inputs.places):
                yield k, None, f.splat(f.load(FLOAT, f.gep(x, place), WORD), self.lanes)
            return
        straight = tuple(range(self.lanes))
        for v, (place, width) in enumerate(zip(inputs.places, inputs.widths, strict=True)):
            channels = load_pieces(f, self.sum, f.gep(x, place), pieces_of(0, width, 0))
            for k, picks in enumerate(self.plan.spread):
                yield k, v, channels if picks == straight else f.shuffle(channels, picks)

    def cleared(self, f: Function, x: Value, valid: int) -> Value:
        """A vector with zeros behind the first lanes."""
        picks = [k if k < valid else self.lanes + k for k in range(self.lanes)]
        return f.shuffle(x, picks, constant(self.sum, 0))

    def store(self, f: Function, sums: list[Value], taps: int, count: int, outputs: Outputs) -> None:
        """Write the first sums of a share, add the others to them; zeros behind the last channel.

        Behind the last channel ``diff_dst`` is zero; but zero times an infinite source is NaN. All sums are
        loaded before one is stored: vectors of outputs lie multiples of 4 KiB apart, and processors let a
        load wait for a store whose address ends alike.
        """
        valid = cycle(outputs.valid)
        sums = [
            one if n == self.lanes else self.cleared(f, one, n) for one, n in zip(sums, valid, strict=False)
        ]
        places = [
            f.gep(f.gep(f["sums"], t * self.plan.across + k * self.plan.step), at)
            for t in range(taps)
            for k in range(count)
            for at in outputs.weights
        ]

        def add() -> None:
            added = [f.fadd(f.load(self.sum, place), one) for one, place in zip(sums, places, strict=True)]
            for one, place in zip(added, places, strict=True):
                f.store(one, place)

        def write() -> None:
            for one, place in zip(sums, places, strict=True):
                f.store(one, place)

        f.when(f["fresh"], write)
        f.when(f.not_(f["fresh"]), add)


def total_module(shares: int, size: int, machine: Machine) -> str:
    """Sums of so many bytes, whole vectors, of several shares, one behind the other: added up in order."""
    b, wide = kernel(TOTAL, machine), vector(lanes_of(machine), FLOAT)
    first, end = share(b, size // wide.bytes)

    def add(number: Value, given: list[Value]) -> list[Value]:
        at = b.mul(number, wide.bytes)
        total = b.load(wide, b.gep(b["src"], at))
        for one in range(1, shares):
            total = b.fadd(total, b.load(wide, b.gep(b.gep(b["src"], one * size), at)))
        b.store(total, b.gep(b["dst"], at))
        return given

    b.repeat(first, end, 1, [], add)
    return b.text()
