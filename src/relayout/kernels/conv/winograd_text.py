"""Plans of :mod:`.winograd` as text: three transforms around the register tile of all convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, product
from typing import NamedTuple

from relayout.ir.builder import Function
from relayout.ir.kernel import digits
from relayout.ir.types import I8, I16, I32, I64, PTR, Value, constant, vector
from relayout.ir.vectors import Piece
from relayout.kernels.conv.arithmetic import Arithmetic
from relayout.kernels.conv.epilogue import Epilogue, Writer, channels_of
from relayout.kernels.conv.module import Module, Vectors
from relayout.kernels.conv.sides import offset_code
from relayout.kernels.conv.tile import Tile, lanes_of, tile_function
from relayout.kernels.conv.winograd import (
    CHANNELS,
    ELEMENT,
    FILTERS,
    OUT,
    Span,
    Winograd,
    blocks_of,
)
from relayout.loops.nest import Loop
from relayout.targets.machine import LINE

__all__ = ["winograd_module"]

TAPS = 3


class _Outputs(NamedTuple):
    """The outputs of a tile, as an epilogue asks for them."""

    arithmetic: Arithmetic
    dst: tuple[int, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    channels: tuple[tuple[int, ...], ...]


class _Stored:
    """Sums that are stored as they are."""

    def __init__(self, tile: Tile, size: int) -> None:
        self.tile, self.size = tile, size

    def __call__(self, b: Function, x: Value, pixel: int, number: int) -> Value:
        return x

    def store(self, b: Function, sums: Sequence[tuple[Value, int, int]]) -> None:
        """Vector by vector, those of a tile side by side."""
        for x, pixel, number in sums:
            b.store(x, b.gep(b["dst"], self.tile.dst[pixel] + number * self.size), self.size)


def winograd_module(plan: Winograd, epilogue: Epilogue) -> str:
    """The text of all functions."""
    return WinogradModule(plan, epilogue).text()


class _One:
    """The transforms of neighbouring outputs; sums come back twice along each axis."""

    DOUBLED = True

    @staticmethod
    def pixels(b: Function, d: Sequence[Value]) -> list[Value]:
        return [b.sub(d[0], d[2]), b.add(d[1], d[2]), b.sub(d[2], d[1]), b.sub(d[1], d[3])]

    @staticmethod
    def weights(b: Function, g: Sequence[Value]) -> list[Value]:
        ends = b.add(g[0], g[2])
        return [b.add(g[0], g[0]), b.add(ends, g[1]), b.sub(ends, g[1]), b.add(g[2], g[2])]

    @staticmethod
    def sums(b: Function, m: Sequence[Value]) -> list[Value]:
        return [b.add(b.add(m[0], m[1]), m[2]), b.sub(b.sub(m[1], m[2]), m[3])]


class _Two:
    """The same where the filter moves by two."""

    DOUBLED = False

    @staticmethod
    def pixels(b: Function, d: Sequence[Value]) -> list[Value]:
        return [b.sub(d[0], d[2]), d[2], b.sub(d[2], d[4]), d[1], d[3]]

    @staticmethod
    def weights(b: Function, g: Sequence[Value]) -> list[Value]:
        return [g[0], b.add(g[0], g[2]), g[2], g[1]]

    @staticmethod
    def sums(b: Function, m: Sequence[Value]) -> list[Value]:
        return [b.add(b.add(m[0], m[1]), m[3]), b.add(b.sub(m[1], m[2]), m[4])]


Transform = Callable[[Function, Sequence[Value]], list[Value]]


def _both_ways(b: Function, transform: Transform, columns: Sequence[Sequence[Value]]) -> list[list[Value]]:
    """Rows of what a transform makes of columns, and then of the rows that these are."""
    made = [transform(b, column) for column in columns]
    return [transform(b, row) for row in zip(*made, strict=True)]


class WinogradModule(Module):
    """Writes the tasks of a plan, and the transforms and tiles that they call."""

    STEPS = 8  # pairs of channels whose weights are transformed at a time

    def __init__(self, plan: Winograd, epilogue: Epilogue) -> None:
        super().__init__(plan, epilogue)
        self.plan, self.lanes = plan, lanes_of(plan.machine)
        self.how = _One if plan.stride == 1 else _Two

    def task(self, task: Value, first: Value) -> None:
        """Transform its rows of the source; then group by group weights, sums and results."""
        b, plan = self.b, self.plan
        chunk, image, block = digits(b, task, [plan.chunks, plan.geometry.batch, plan.blocks])
        row, last = self.block(block, plan.rows, plan.tiles_down)
        # each begins on a line
        aligned = b.mul(b.udiv(b.add(b.ptrtoint(self.scratch), LINE - 1), LINE), LINE)
        scratch = b.gep(self.scratch, b.sub(aligned, b.ptrtoint(self.scratch)))
        self.source = scratch
        self.filters = b.gep(self.source, plan.numbers * plan.source_matrix)
        self.sums = b.gep(self.filters, FILTERS * plan.weights_matrix)
        self.outside = b.gep(self.sums, plan.numbers * plan.sums_matrix)
        b.when(b.icmp("eq", task, first), self._fill_outside)
        came, goes = self.image(b["src"], plan.src, image), self.image(b["dst"], plan.dst, image)
        b.loop(row, last, 1, lambda i: self._row(i, row, came))
        total, following = len(plan.places), b.add(chunk, 1)
        begin, stop = (b.udiv(b.mul(number, total), plan.chunks) for number in (chunk, following))

        def group(number: Value) -> None:
            place = self.vectors(number)
            self.by_kind(place, lambda kind: self._group(kind, place, row, last, goes))

        b.loop(begin, stop, 1, group)

    # -- source ---------------------------------------------------------------------------------------------

    def _fill_outside(self) -> None:
        """A row of zeros."""
        b, size = self.b, self.plan.machine.vector
        x = constant(vector(size, I8), 0)
        b.loop(0, self.plan.outside, size, lambda at: b.store(x, b.gep(self.outside, at), size))

    def _row(self, number: Value, first: Value, image: Value) -> None:
        """The tiles of a row, some channels at a time."""
        b, plan, g = self.b, self.plan, self.plan.geometry
        to = b.gep(self.source, b.sub(number, first), plan.tiles_across * g.inputs * ELEMENT)
        top = b.sub(b.mul(number, OUT * plan.stride), g.padding[1])
        rows = []
        for k in range(plan.reach):
            y = b.add(top, k)
            rows.append((b.icmp("ult", y, g.source[1]), b.gep(image, y, plan.src.steps[1])))
        if "rows" not in self.functions:
            self.functions["rows"] = self._transform_of_row("rows")

        def some(k: Value) -> None:
            apart = offset_code(b, b.mul(k, plan.abreast), plan.src.channels)
            lines = [b.select(inside, b.gep(at, apart), self.outside) for inside, at in rows]
            b.call("rows", *lines, b.gep(to, k, plan.abreast * ELEMENT))

        b.loop(0, g.inputs // plan.abreast, 1, some)

    def _transform_of_row(self, name: str) -> str:
        """The text of a function for some channels of a row of tiles, from its rows of pixels."""
        plan, g = self.plan, self.plan.geometry
        arguments = dict.fromkeys((*(f"row{k}" for k in range(plan.reach)), "to"), PTR)
        f = Function(name, arguments, plan.machine, "internal", "noinline")
        words = vector(CHANNELS, I16)
        wide = f.sext if plan.src_type == "s8" else f.zext
        empty = constant(words, 0)

        def tile(span: Span, number: Value, first: Value) -> None:
            at = f.add(f.mul(f.add(number, span.start), OUT * plan.stride), -g.padding[2])
            found = []
            for k in range(plan.reach):
                if k in span.outside:
                    pixels = [empty] * plan.reach
                else:
                    away = f.add(f.mul(f.add(at, k), plan.src.steps[2]), first)
                    places = (f.gep(f[f"row{row}"], away) for row in range(plan.reach))
                    pixels = [wide(f.load(vector(CHANNELS, I8), one), I16) for one in places]
                found.append(pixels)
            rows = _both_ways(f, self.how.pixels, found)
            to = f.gep(f.gep(f["to"], first, ELEMENT), f.add(number, span.start), g.inputs * ELEMENT)
            for k, x in enumerate(chain.from_iterable(rows)):
                assert x.type == words
                f.store(x, f.gep(to, k * plan.source_matrix), words.bytes)

        def tiles(span: Span) -> None:
            def turn(number: Value) -> None:
                f.loop(0, plan.abreast, CHANNELS, lambda first: tile(span, number, first))

            f.loop(0, span.tiles, 1, turn)

        for span in plan.spans:
            tiles(span)
        return f.text()

    # -- groups ---------------------------------------------------------------------------------------------

    def _group(self, kind: int, place: Vectors, row: Value, last: Value, image: Value) -> None:
        """The outputs of a group, of all tiles of a task."""
        b, plan = self.b, self.plan
        name = f"weights{kind}"
        if name not in self.functions:
            self.functions[name] = self._transform_of_weights(kind, name)
        b.call(name, place.weights, self.filters)
        heights = plan.heights
        for tall in heights:

            def these(tall: int = tall) -> None:
                sums = f"sums{kind}_{tall}"
                if sums not in self.functions:
                    self.functions[sums] = self._all_sums(kind, tall, sums)
                b.call(sums, self.source, self.filters, self.sums)

            if len(heights) == 1:
                these()
            else:
                b.when(b.icmp("eq", b.sub(last, row), tall), these)
        self._results(kind, place, row, last, image)

    def _transform_of_weights(self, kind: int, name: str) -> str:
        """The text of a function for the weights of a group: as they come, and where they go.

        Taps lie a power of two apart where there are many channels, so that nine of them share a set of the
        L1 cache. A few channels of all taps are copied first, and those that come next are prefetched.
        """
        plan, group = self.plan, self.plan.kinds[kind]
        f = Function(name, {"from": PTR, "to": PTR}, plan.machine, "internal", "noinline")
        size = plan.machine.vector
        each, tall = size // 2, self.STEPS * size // 2  # bytes of a step, and of some of them
        _, down, across = plan.weights.taps
        places = [y * down + x * across for x in range(TAPS) for y in range(TAPS)]
        near = f.alloca(len(places) * tall, size)

        def some(number: Value) -> None:
            for v, at in enumerate(group.weights):
                come = f.gep(f["from"], f.add(f.mul(number, each), at))
                for k, place in enumerate(places):
                    for part in range(0, tall, size):
                        bytes_ = f.load(vector(size, I8), f.gep(come, place + part))
                        f.store(bytes_, f.gep(near, k * tall + part), size)
                    f.prefetch(f.gep(come, place + 2 * tall))
                to = f.gep(f["to"], f.add(f.mul(number, group.vectors * size), v * size))

                def step(number: Value, to: Value = to) -> None:
                    came = f.gep(near, number, each)
                    found = []
                    for column in range(TAPS):
                        columns = (f.gep(came, (column * TAPS + row) * tall) for row in range(TAPS))
                        taps = [f.sext(f.load(vector(each, I8), at, each), I16) for at in columns]
                        found.append(taps)
                    rows = _both_ways(f, self.how.weights, found)
                    goes = f.gep(to, number, group.vectors * size)
                    for k, x in enumerate(chain.from_iterable(rows)):
                        f.store(x, f.gep(goes, k * plan.weights_matrix), size)

                f.loop(0, self.STEPS, 1, step)

        f.loop(0, plan.geometry.inputs // 2, self.STEPS, some)
        return f.text()

    def _all_sums(self, kind: int, tall: int, name: str) -> str:
        """The text of a function for all sums of so many rows of tiles: source, weights, where sums go."""
        plan, group = self.plan, self.plan.kinds[kind]
        f = Function(name, {"src": PTR, "weights": PTR, "to": PTR}, plan.machine, "internal", "noinline")
        pixel, result = plan.geometry.inputs * ELEMENT, group.vectors * plan.machine.vector

        def matrix(number: Value) -> None:
            row, column = (f.smin(one, TAPS) for one in digits(f, number, [plan.reach, plan.reach]))
            filters = number if plan.stride == 1 else f.add(f.mul(row, TAPS + 1), column)
            s = f.gep(f["src"], number, plan.source_matrix)
            w = f.gep(f["weights"], filters, plan.weights_matrix)
            to = f.gep(f["to"], number, plan.sums_matrix)
            done = 0
            for size, count in blocks_of(tall * plan.tiles_across):
                tile = self._tile(kind, size)

                def block(k: Value, size: int = size, tile: str = tile, done: int = done) -> None:
                    here = f.gep(f.gep(s, done * pixel), k, size * pixel)
                    there = f.gep(f.gep(to, done * result), k, size * result)
                    f.call(tile, here, w, there)

                f.loop(0, count, 1, block)
                done += size * count

        f.loop(0, plan.numbers, 1, matrix)
        return f.text()

    def _tile(self, kind: int, tiles: int) -> str:
        """The name of a register tile: the sums of some tiles, of one of the matrices."""
        plan, vectors = self.plan, self.plan.kinds[kind].vectors
        name, size, pixel = f"tile{kind}_{tiles}", plan.machine.vector, plan.geometry.inputs * ELEMENT
        if name not in self.functions:
            steps = plan.arithmetic.step, vectors * size
            made = Tile(
                plan.arithmetic,
                "s16",
                tuple(k * pixel for k in range(tiles)),
                tuple(k * vectors * size for k in range(tiles)),
                tuple(v * size for v in range(vectors)),
                ((),) * vectors,
                self.lanes,
                (Loop(plan.geometry.inputs // 2, steps),),
            )
            self.functions[name] = tile_function(name, made, plan.machine, (), _Stored(made, size))
        return name

    # -- results --------------------------------------------------------------------------------------------

    def _results(self, kind: int, place: Vectors, row: Value, last: Value, image: Value) -> None:
        """The outputs of all tiles; of the last row and column of an odd size there is one."""
        b, plan = self.b, self.plan
        _, height, width = plan.geometry.target
        size = plan.kinds[kind].vectors * plan.machine.vector
        extra = self.of_channel(place.channel)
        goes = b.gep(image, place.dst)

        def tile(i: Value, j: Value, rows: int, columns: int) -> None:
            name = f"results{kind}_{rows}x{columns}"
            if name not in self.functions:
                self.functions[name] = self._transform_back(kind, rows, columns, name)
            number = b.add(b.mul(b.sub(i, row), plan.tiles_across), j)
            to = b.gep(b.gep(goes, i, OUT * plan.dst.steps[1]), j, OUT * plan.dst.steps[2])
            self.call(name, [b.gep(self.sums, number, size), to, *extra], place.channel, to, [])

        def across(i: Value, rows: int) -> None:
            if width // OUT:
                b.loop(0, width // OUT, 1, lambda j: tile(i, j, rows, OUT))
            if width % OUT:
                tile(i, constant(I64, width // OUT), rows, 1)

        def one(i: Value) -> None:
            if height % OUT == 0:
                across(i, OUT)
                return
            ends = b.icmp("eq", i, height // OUT)
            b.when(b.not_(ends), lambda: across(i, OUT))
            b.when(ends, lambda: across(i, 1))

        b.loop(row, last, 1, one)

    def _transform_back(self, kind: int, rows: int, columns: int, name: str) -> str:
        """The text of a function for the outputs of a tile, from its sums."""
        plan, group = self.plan, self.plan.kinds[kind]
        arguments = dict.fromkeys(("sums", "dst", "bias", "scale", *self.epilogue.names), PTR)
        f = Function(name, arguments, plan.machine, "internal", "noinline")
        down, across = plan.dst.steps[1:]
        places = tuple(i * down + j * across for i in range(rows) for j in range(columns))
        size, sums = plan.machine.vector, vector(self.lanes, I32)
        outputs = _Outputs(
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
            several = _both_ways(f, self.how.sums, found)
            for i, j in product(range(rows), range(columns)):
                x = several[i][j]
                made[i * columns + j, v] = f.ashr_exact(x, 2) if self.how.DOUBLED else x
        writer.store(f, [(made[key], *key) for key in sorted(made)])
        return f.text()
