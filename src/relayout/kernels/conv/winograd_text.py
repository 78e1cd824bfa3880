"""Plans of :mod:`.winograd` as text: three transforms around the register tile of all convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, product
from math import ceil

from relayout.dtypes import dtype as as_dtype
from relayout.ir.builder import Function, Operand
from relayout.ir.conversions import to_f32
from relayout.ir.kernel import digits, inner
from relayout.ir.types import FLOAT, I8, I16, I32, I64, PTR, Value, constant, integer, vector
from relayout.kernels.conv.direct import Group
from relayout.kernels.conv.epilogue import Epilogue, Outputs, Writer, channels_of
from relayout.kernels.conv.module import Module, Vectors
from relayout.kernels.conv.sides import distance, offset_code
from relayout.kernels.conv.tile import Tile, lanes_of, tile_function
from relayout.kernels.conv.winograd import FILTERS, OUT, STEPS, Span, Winograd, blocks_of
from relayout.loops.nest import Loop
from relayout.targets.machine import LINE

__all__ = ["winograd_module"]

TAPS = 3
LATER = 16  # bytes of the weights to come that a turn of a tile prefetches: three tiles a matrix get all


class _Stored:
    """Sums that are stored as they are, or are added to what was stored before."""

    def __init__(self, tile: Tile, size: int, more: bool) -> None:
        self.tile, self.size, self.more = tile, size, more

    def __call__(self, b: Function, x: Value, pixel: int, number: int) -> Value:
        return x

    def store(self, b: Function, sums: Sequence[tuple[Value, int, int]]) -> None:
        """Vector by vector, those of a tile side by side."""
        for x, pixel, number in sums:
            place = b.gep(b["dst"], self.tile.dst[pixel] + number * self.size)
            if self.more:
                x = b.fadd(b.load(x.type, place, self.size), x)
            b.store(x, place, self.size)


def winograd_module(plan: Winograd, epilogue: Epilogue) -> str:
    """The text of all functions."""
    return WinogradModule(plan, epilogue).text()


class _Numbers:
    """Additions in the numbers of a domain."""

    def __init__(self, b: Function, real: bool) -> None:
        self.real = real
        self.add: Callable[[Value, Value], Value] = b.fadd if real else b.add
        self.sub: Callable[[Value, Value], Value] = b.fsub if real else b.sub
        self.half: Callable[[Value], Value] = lambda x: b.fmul(x, 0.5)


class _One:
    """The transforms of neighbouring outputs; whole sums come back twice along each axis."""

    DOUBLED = True

    @staticmethod
    def pixels(n: _Numbers, d: Sequence[Value]) -> list[Value]:
        return [n.sub(d[0], d[2]), n.add(d[1], d[2]), n.sub(d[2], d[1]), n.sub(d[1], d[3])]

    @staticmethod
    def weights(n: _Numbers, g: Sequence[Value]) -> list[Value]:
        ends = n.add(g[0], g[2])
        if n.real:
            ends, middle = n.half(ends), n.half(g[1])
            return [g[0], n.add(ends, middle), n.sub(ends, middle), g[2]]
        return [n.add(g[0], g[0]), n.add(ends, g[1]), n.sub(ends, g[1]), n.add(g[2], g[2])]

    @staticmethod
    def sums(n: _Numbers, m: Sequence[Value]) -> list[Value]:
        return [n.add(n.add(m[0], m[1]), m[2]), n.sub(n.sub(m[1], m[2]), m[3])]


class _Two:
    """The same where the filter moves by two."""

    DOUBLED = False

    @staticmethod
    def pixels(n: _Numbers, d: Sequence[Value]) -> list[Value]:
        return [n.sub(d[0], d[2]), d[2], n.sub(d[2], d[4]), d[1], d[3]]

    @staticmethod
    def weights(n: _Numbers, g: Sequence[Value]) -> list[Value]:
        return [g[0], n.add(g[0], g[2]), g[2], g[1]]

    @staticmethod
    def sums(n: _Numbers, m: Sequence[Value]) -> list[Value]:
        return [n.add(n.add(m[0], m[1]), m[3]), n.add(n.sub(m[1], m[2]), m[4])]


Transform = Callable[[_Numbers, Sequence[Value]], list[Value]]


def _both_ways(n: _Numbers, transform: Transform, columns: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """Rows of what a transform makes of columns, and then of the rows that these are."""
    made = [transform(n, column) for column in columns]
    return [transform(n, row) for row in zip(*made, strict=True)]


class WinogradModule(Module):
    """Writes the tasks of a plan, and the transforms and tiles that they call."""

    def __init__(self, plan: Winograd, epilogue: Epilogue) -> None:
        super().__init__(plan, epilogue)
        self.plan, self.lanes, self.domain = plan, lanes_of(plan.machine), plan.domain
        self.how = _One if plan.stride == 1 else _Two

    def task(self, task: Value, first: Value) -> None:
        """Transform its rows of the source; then group by group weights, sums and results."""
        b, plan = self.b, self.plan
        chunk, block = digits(b, task, [plan.chunks, plan.blocks])
        row, last = self.block(block, plan.rows, plan.rows_of_all)
        # each begins on a line
        aligned = b.mul(b.udiv(b.add(b.ptrtoint(self.scratch), LINE - 1), LINE), LINE)
        scratch = b.gep(self.scratch, b.sub(aligned, b.ptrtoint(self.scratch)))
        self.source = scratch
        self.filters = b.gep(self.source, plan.numbers * plan.source_matrix)
        self.sums = b.gep(self.filters, FILTERS * plan.weights_matrix)
        self.outside = b.gep(self.sums, plan.numbers * plan.sums_matrix)
        b.when(b.icmp("eq", task, first), self._fill_outside)
        b.loop(row, last, 1, lambda i: self._row(i, row))
        total, following = len(plan.places), b.add(chunk, 1)
        begin, stop = (b.udiv(b.mul(number, total), plan.chunks) for number in (chunk, following))

        def group(number: Value) -> None:
            place, more = self.vectors(number), b.add(number, 1)
            after = self.vectors(b.select(b.icmp("slt", more, stop), more, begin)).weights
            self.by_kind(place, lambda kind: self._group(kind, place, after, row, last))

        b.loop(begin, stop, 1, group)

    def _in_image(self, row: Value) -> tuple[Value, Value]:
        """The image that a row of tiles is of, and which one of that."""
        if self.plan.geometry.batch == 1:
            return constant(I64, 0), row
        return self.split(row, self.plan.tiles_down)

    # -- source ---------------------------------------------------------------------------------------------

    def _fill_outside(self) -> None:
        """A row of zeros."""
        b, size = self.b, self.plan.machine.vector
        x = constant(vector(size, I8), 0)
        b.loop(0, self.plan.outside, size, lambda at: b.store(x, b.gep(self.outside, at), size))

    def _row(self, number: Value, first: Value) -> None:
        """The tiles of a row, some channels at a time."""
        b, plan, g = self.b, self.plan, self.plan.geometry
        to = b.gep(self.source, b.sub(number, first), plan.tiles_across * plan.pixel)
        which, row = self._in_image(number)
        image = self.image(b["src"], plan.src, which)
        top = b.sub(b.mul(row, OUT * plan.stride), g.padding[1])
        rows = []
        for k in range(plan.reach):
            y = b.add(top, k)
            rows.append((b.icmp("ult", y, g.source[1]), b.gep(image, y, plan.src.steps[1])))
        if "rows" not in self.functions:
            self.functions["rows"] = self._transform_of_row("rows")

        def some(k: Value) -> None:
            apart = offset_code(b, b.mul(k, plan.abreast), plan.src.channels)
            lines = [b.select(inside, b.gep(at, apart), self.outside) for inside, at in rows]
            b.call("rows", *lines, b.gep(to, k, plan.abreast * plan.domain.element))

        b.loop(0, g.inputs // plan.abreast, 1, some)

    def _transform_of_row(self, name: str) -> str:
        """The text of a function for some channels of a row of tiles, from its rows of pixels."""
        plan, g = self.plan, self.plan.geometry
        arguments = dict.fromkeys((*(f"row{k}" for k in range(plan.reach)), "to"), PTR)
        f = inner(name, arguments, plan.machine)
        count, numbers = plan.channels, _Numbers(f, self.domain.is_real)
        words = vector(count, FLOAT if self.domain.is_real else I16)
        empty = constant(words, 0)

        def tile(span: Span, number: Value, first: Value) -> None:
            at = f.add(f.mul(f.add(number, span.start), OUT * plan.stride), -g.padding[2])
            found = []
            for k in range(plan.reach):
                if k in span.outside:
                    pixels = [empty] * plan.reach
                else:
                    away = f.add(f.mul(f.add(at, k), plan.src.steps[2]), f.mul(first, plan.src_size))
                    places = (f.gep(f[f"row{row}"], away) for row in range(plan.reach))
                    pixels = [self._widened(f, one, count, plan.src_type) for one in places]
                found.append(pixels)
            rows = _both_ways(numbers, self.how.pixels, found)
            to = f.gep(f["to"], f.add(number, span.start), plan.pixel)
            to = f.gep(to, first, self.domain.element)
            for k, x in enumerate(chain.from_iterable(rows)):
                assert x.type == words
                f.store(x, f.gep(to, k * plan.source_matrix), words.bytes)

        def tiles(span: Span) -> None:
            def turn(number: Value) -> None:
                f.loop(0, plan.abreast, count, lambda first: tile(span, number, first))

            f.loop(0, span.tiles, 1, turn)

        for span in plan.spans:
            tiles(span)
        return f.text()

    def _widened(self, f: Function, place: Value, count: int, dtype: str) -> Value:
        """So many elements as numbers of the domain."""
        kind = as_dtype(dtype)
        came = f.load(vector(count, integer(kind.bits)), place)
        if self.domain.is_real:
            return to_f32(f, came, kind)
        return f.zext(came, I16) if dtype == "u8" else f.sext(came, I16)

    # -- groups ---------------------------------------------------------------------------------------------

    def _group(self, kind: int, place: Vectors, after: Value, row: Value, last: Value) -> None:
        """The outputs of a group, of all tiles of a task; ``after`` come the weights of the next group."""
        b, plan = self.b, self.plan
        shares = plan.geometry.inputs // plan.together
        size = plan.together // plan.arithmetic.depth * self._step
        first = place.weights, after if shares == 1 else b.gep(place.weights, size)
        self._sums(kind, first, self.source, row, last, False)
        if shares > 1:

            def more(number: Value) -> None:
                weights = b.gep(place.weights, number, size)
                ends = b.icmp("eq", number, shares - 1)
                several = weights, b.select(ends, after, b.gep(weights, size))
                source = b.gep(self.source, number, plan.together * self.domain.element)
                self._sums(kind, several, source, row, last, True)

            b.loop(1, shares, 1, more)
        self._results(kind, place, row, last)

    def _sums(
        self, kind: int, weights: tuple[Value, Value], source: Value, row: Value, last: Value, more: bool
    ) -> None:
        """Those over channels that are added up together; of ``more`` than one share all but the first.

        The weights come with those that are read next.
        """
        b, heights = self.b, self.plan.heights
        name = f"weights{kind}"
        if name not in self.functions:
            self.functions[name] = self._transform_of_weights(kind, name)
        b.call(name, weights[0], self.filters)
        for tall in heights:

            def these(tall: int = tall) -> None:
                sums = f"{'more' if more else 'sums'}{kind}_{tall}"
                if sums not in self.functions:
                    self.functions[sums] = self._all_sums(kind, tall, sums, more)
                b.call(sums, source, self.filters, self.sums, *weights[1:] * self._prefetches)

            if len(heights) == 1:
                these()
            else:
                b.when(b.icmp("eq", b.sub(last, row), tall), these)

    @property
    def _prefetches(self) -> bool:
        """Whether the weights that are transformed next are brought near while others are multiplied."""
        _, down, across = self.plan.weights.taps
        return self.domain.is_real and down == TAPS * across

    @property
    def _step(self) -> int:
        """Bytes of the weights of a vector of outputs, of the channels that are multiplied at once."""
        plan = self.plan
        return self.lanes * plan.arithmetic.depth * as_dtype(plan.weights_type).bits // 8

    def _transform_of_weights(self, kind: int, name: str) -> str:
        """The text of a function for the weights of a group: as they come, and where they go.

        Taps lie a power of two apart where there are many channels, so that nine of them share a set of the
        L1 cache. A few channels of all taps are copied first, and those that come next are prefetched; those
        that tiles have prefetched before are in the L2 cache.

        With AVX2 vectors and columns of taps are loops: in one piece they took LLVM a seventh of its time for
        a network, and were no faster for it.
        """
        plan, group = self.plan, self.plan.kinds[kind]
        apart = distance(group.weights) if plan.machine.is_avx2 else None  # None: all in one piece
        f = inner(name, {"from": PTR, "to": PTR}, plan.machine)
        size, each, numbers = plan.machine.vector, self._step, _Numbers(f, self.domain.is_real)
        tall = STEPS * each  # bytes of some steps
        _, down, across = plan.weights.taps
        places = [y * down + x * across for x in range(TAPS) for y in range(TAPS)]
        near = f.alloca(len(places) * tall, size)

        def copied(come: Value, place: int, to: Value, at: int) -> None:
            for part in range(0, tall, size):
                bytes_ = f.load(vector(size, I8), f.gep(come, place + part))
                f.store(bytes_, f.gep(to, at + part), size)
            if not self._prefetches:  # before, by tiles
                f.prefetch(f.gep(come, place + 2 * tall))

        def column_of_taps(come: Value, x: Value) -> None:
            here, to = f.gep(come, x, across), f.gep(near, x, TAPS * tall)
            for y in range(TAPS):
                copied(here, y * down, to, y * tall)

        def one(number: Value, at: Operand, goes_to: Operand) -> None:
            """Some channels of a vector of outputs."""
            come = f.gep(f["from"], f.add(f.mul(number, each), at))
            if apart is not None:
                f.loop(0, TAPS, 1, partial(column_of_taps, come))
            else:
                for k, place in enumerate(places):
                    copied(come, place, near, k * tall)
            to = f.gep(f["to"], f.add(f.mul(number, group.vectors * size), goes_to))

            def step(number: Value) -> None:
                came = f.gep(near, number, each)
                found = []
                for column in range(TAPS):
                    columns = (f.gep(came, (column * TAPS + row) * tall) for row in range(TAPS))
                    count = self.lanes * plan.arithmetic.depth
                    found.append([self._widened(f, at, count, plan.weights_type) for at in columns])
                rows = _both_ways(numbers, self.how.weights, found)
                goes = f.gep(to, number, group.vectors * size)
                for k, x in enumerate(chain.from_iterable(rows)):
                    f.store(x, f.gep(goes, k * plan.weights_matrix), size)

            f.loop(0, STEPS, 1, step)

        def some(number: Value) -> None:
            if apart is not None:
                f.loop(0, group.vectors, 1, lambda v: one(number, f.mul(v, apart), f.mul(v, size)))
            else:
                for v, at in enumerate(group.weights):
                    one(number, at, v * size)

        f.loop(0, plan.together // plan.arithmetic.depth, STEPS, some)
        return f.text()

    def _all_sums(self, kind: int, tall: int, name: str, more: bool) -> str:
        """The text of a function for all sums of so many rows of tiles: source, weights, where sums go."""
        plan, group = self.plan, self.plan.kinds[kind]
        arguments = dict.fromkeys(("src", "weights", "to", *("later",) * self._prefetches), PTR)
        f = inner(name, arguments, plan.machine)
        result = group.vectors * plan.machine.vector

        def matrix(number: Value) -> None:
            row, column = (f.smin(one, TAPS) for one in digits(f, number, [plan.reach, plan.reach]))
            filters = number if plan.stride == 1 else f.add(f.mul(row, TAPS + 1), column)
            s = f.gep(f["src"], number, plan.source_matrix)
            w = f.gep(f["weights"], filters, plan.weights_matrix)
            to = f.gep(f["to"], number, plan.sums_matrix)
            done = calls = 0
            blocks = blocks_of(tall * plan.tiles_across, plan.most_tiles(group.vectors))
            total = sum(count for _, count in blocks)
            for size, count in blocks:
                tile = self._tile(kind, size, more)

                def block(k: Value, size: int, tile: str, done: int, calls: int) -> None:
                    here = f.gep(f.gep(s, done * plan.pixel), k, size * plan.pixel)
                    there = f.gep(f.gep(to, done * result), k, size * result)
                    later = []
                    if self._prefetches:
                        turn = f.add(f.add(f.mul(number, total), k), calls)
                        later.append(self._later(f, group, turn))
                    f.call(tile, here, w, there, *later)

                f.loop(0, count, 1, partial(block, size=size, tile=tile, done=done, calls=calls))
                done += size * count
                calls += count

        f.loop(0, plan.numbers, 1, matrix)
        return f.text()

    def _later(self, f: Function, group: Group, call: Value) -> Value:
        """What a call of a tile prefetches: a part of the weights of one tap and vector."""
        part = self.plan.together * LATER
        parts = ceil(self.plan.together * self._step / part)
        taps = TAPS * TAPS
        call = f.urem(call, group.vectors * taps * parts)
        piece = f.udiv(call, parts)
        tap = f.gep(f["later"], f.urem(piece, taps), self.plan.weights.taps[2])
        apart = group.weights[-1] // max(1, group.vectors - 1)
        return f.gep(f.gep(tap, f.udiv(piece, taps), apart), f.urem(call, parts), part)

    def _tile(self, kind: int, tiles: int, more: bool) -> str:
        """The name of a register tile: the sums of some tiles, of one of the matrices."""
        plan, vectors = self.plan, self.plan.kinds[kind].vectors
        name, size = f"{'added' if more else 'tile'}{kind}_{tiles}", plan.machine.vector
        if name not in self.functions:
            steps = plan.arithmetic.step, vectors * size
            made = Tile(
                plan.arithmetic,
                self.domain.dtype,
                tuple(k * plan.pixel for k in range(tiles)),
                tuple(k * vectors * size for k in range(tiles)),
                tuple(v * size for v in range(vectors)),
                ((),) * vectors,
                self.lanes,
                (Loop(plan.together // plan.arithmetic.depth, steps),),
                later=LATER if self._prefetches else 0,
            )
            extra = ("later",) * bool(made.later)
            self.functions[name] = tile_function(name, made, plan.machine, extra, _Stored(made, size, more))
        return name

    # -- results --------------------------------------------------------------------------------------------

    def _results(self, kind: int, place: Vectors, row: Value, last: Value) -> None:
        """The outputs of all tiles; of the last row and column of an odd size there is one."""
        b, plan = self.b, self.plan
        _, height, width = plan.geometry.target
        size = plan.kinds[kind].vectors * plan.machine.vector
        extra = self.of_channel(place.channel)

        def tile(i: Value, goes: Value, j: Value, rows: int, columns: int) -> None:
            name = f"results{kind}_{rows}x{columns}"
            if name not in self.functions:
                self.functions[name] = self._transform_back(kind, rows, columns, name)
            number = b.add(b.mul(b.sub(i, row), plan.tiles_across), j)
            to = b.gep(goes, j, OUT * plan.dst.steps[2])
            self.call(name, [b.gep(self.sums, number, size), to, *extra], place.channel, to, [])

        def across(i: Value, goes: Value, rows: int) -> None:
            if width // OUT:
                b.loop(0, width // OUT, 1, lambda j: tile(i, goes, j, rows, OUT))
            if width % OUT:
                tile(i, goes, constant(I64, width // OUT), rows, 1)

        def one(i: Value) -> None:
            image, line = self._in_image(i)
            goes = b.gep(self.image(b["dst"], plan.dst, image), place.dst)
            goes = b.gep(goes, line, OUT * plan.dst.steps[1])
            if height % OUT == 0:
                across(i, goes, OUT)
                return
            ends = b.icmp("eq", line, height // OUT)
            b.when(b.not_(ends), lambda: across(i, goes, OUT))
            b.when(ends, lambda: across(i, goes, 1))

        b.loop(row, last, 1, one)

    def _transform_back(self, kind: int, rows: int, columns: int, name: str) -> str:
        """The text of a function for the outputs of a tile, from its sums."""
        plan, group = self.plan, self.plan.kinds[kind]
        arguments = dict.fromkeys(("sums", "dst", "bias", "scale", *self.epilogue.names), PTR)
        f = inner(name, arguments, plan.machine)
        down, across = plan.dst.steps[1:]
        places = tuple(i * down + j * across for i in range(rows) for j in range(columns))
        size, numbers = plan.machine.vector, _Numbers(f, self.domain.is_real)
        sums = vector(self.lanes, FLOAT if self.domain.is_real else I32)
        doubled = self.how.DOUBLED and not self.domain.is_real
        outputs = Outputs(
            plan.arithmetic, places, group.pieces, channels_of(group.vectors, group.valid, self.lanes)
        )
        writer = Writer(outputs, plan, self.epilogue)
        made: dict[tuple[int, int], Value] = {}
        for v in range(group.vectors):
            found = []
            for column in range(plan.reach):
                at = (row * plan.reach + column for row in range(plan.reach))
                found.append(
                    [f.load(sums, f.gep(f["sums"], k * plan.sums_matrix + v * size), size) for k in at]
                )
            several = _both_ways(numbers, self.how.sums, found)
            for i, j in product(range(rows), range(columns)):
                x = several[i][j]
                made[i * columns + j, v] = f.ashr_exact(x, 2) if doubled else x
        writer.store(f, [(made[key], *key) for key in sorted(made)])
        return f.text()
