"""The text of a convolution: a nest's tasks, in tiles; rows packed and unpacked on the way."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

from relayout.ir.writer import Writer
from relayout.kernels.conv.epilogue import Finish, Finishing
from relayout.kernels.conv.geometry import Span
from relayout.kernels.conv.module import Module, Vectors
from relayout.kernels.conv.nest import Nest
from relayout.kernels.conv.sides import offset_code
from relayout.kernels.conv.tile import WORD, Tile, lanes_of, pieces_of, tile_function
from relayout.kernels.copy.choice import feasible, lowered
from relayout.kernels.copy.module import embedded
from relayout.kernels.copy.problem import moves
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc

__all__ = ["Rows", "module", "rows_of"]

AHEAD = 2048  # bytes of weights that are asked for early, where they don't stay in the first cache


class Rows(NamedTuple):
    """The reorders of one row: into scratch, out of it, and of the old destination into it; texts."""

    pack: str = ""
    unpack: str = ""
    fetch: str = ""


def _row_reorder(name: str, src: MemoryDesc, dst: MemoryDesc, nest: Nest) -> str | None:
    """The text of a function that reorders one row; None where there is no kernel for it."""
    found = moves(src, dst)
    if found is None or not all(map(feasible, found)):
        return None
    return embedded(name, lowered(found), nest.machine)


def _row_of(desc: MemoryDesc) -> MemoryDesc:
    """Channels by pixels of the first row of the first plane of the first image."""
    layout = desc.layout
    for axis in (*range(len(desc.dims) - 2, 1, -1), 0):
        layout = views.select(layout, axis, 0)
    if len(desc.dims) == 2:
        layout = views.unsqueeze(layout, 1)
    return MemoryDesc(layout.dims, desc.dtype, layout.moved(0))


def rows_of(nest: Nest, src: MemoryDesc, dst: MemoryDesc, finishing: Finishing) -> Rows | None:
    """The reorders that a nest needs; None where one of them is not possible."""
    found = {"pack": "", "unpack": "", "fetch": ""}
    wanted = []
    if nest.packs and nest.packed_inside:
        row = _row_of(src)
        row = row.submemory((row.dims[0], nest.packed_inside), (0, 0))
        into = (1, nest.pitch // nest.arithmetic.element)
        wanted.append(("pack", row, MemoryDesc(row.dims, nest.arithmetic.operand, strides=into)))
    if nest.unpacks:
        row = _row_of(dst)
        kind = finishing.unpacked(nest.weights_type)
        out_of = MemoryDesc(row.dims, kind, strides=(1, nest.result_pitch // WORD))
        wanted.append(("unpack", out_of, row))
        if finishing.adds:
            wanted.append(("fetch", row, out_of))
    for name, source, target in wanted:
        text = _row_reorder(name, source, target, nest)
        if text is None:
            return None
        found[name] = text
    return Rows(**found)


def module(nest: Nest, rows: Rows, finishing: Finishing) -> str:
    """The text of all functions."""
    return _Module(nest, rows, finishing).text()


class _Module(Module):
    """Writes the tasks of a nest, and the tiles."""

    def __init__(self, nest: Nest, rows: Rows, finishing: Finishing) -> None:
        super().__init__(nest, finishing)
        self.nest, self.rows = nest, rows
        self.lanes = lanes_of(nest.machine)

    def text(self) -> str:
        """With the reorders of rows."""
        return "\n".join([super().text(), *self.rows])

    # -- a task ---------------------------------------------------------------------------------------------

    def task(self, task: str, first: str) -> None:
        """Find out which one it is, pack, compute, unpack."""
        w, nest = self.w, self.nest
        n, d, h, x = (dim.extent for dim in nest.dims)
        left, columns = self.split(task, ceil(x / nest.columns))
        left, rows = self.split(left, ceil(h / nest.rows))
        left, plane = self.split(left, d)
        chunk, image = self.split(left, n)
        row, last = self.block(rows, nest.rows, h)
        column, end = self.block(columns, nest.columns, x)
        self.packed, self.results = self.scratch, w.at(self.scratch, nest.packed)
        source = self._source(image, plane, row, last, column)
        target = self._target(image, plane, row, column)
        if self.rows.fetch:
            self._move_rows("fetch", image, plane, row, last)
        lo, hi = self._groups(chunk)

        def group(number: str) -> None:
            place = self.vectors(number)
            here = place._replace(src=w.at(source, place.src), dst=w.at(target, place.dst))
            tiles = self._rows if nest.borders else self._tiles
            self.by_kind(place, lambda k: tiles(k, here, plane, row, last, column, end))

        w.loop(lo, hi, 1, group)
        if nest.unpacks:
            self._move_rows("unpack", image, plane, row, last)

    def _groups(self, chunk: str) -> tuple[str | int, str | int]:
        """The groups of vectors of a chunk."""
        w, total, chunks = self.w, len(self.nest.places), self.nest.chunks
        if chunks == 1:
            return 0, total
        following = w.value(f"add i64 {chunk}, 1")
        return self.share(chunk, total, chunks), self.share(following, total, chunks)

    def _tiles(
        self, kind: int, here: Vectors, plane: str, row: str, last: str, column: str, end: str
    ) -> None:
        """All tiles of a group: blocks of rows, then of pixels; what is left over in smaller ones."""
        w, nest = self.w, self.nest
        extra = self.of_channel(here.channel)
        _, _, h, x = nest.dims
        block = nest.block

        def tile(i: str, j: str, rows: int, columns: int) -> None:
            down = w.value(f"sub i64 {i}, {row}") if row != "0" else i  # from the task's first pixel
            along = w.value(f"sub i64 {j}, {column}") if column != "0" else j
            name = self._tile(kind, rows, columns)
            s = w.at(w.at(here.src, self.times(down, h.src)), self.times(along, x.src))
            t = w.at(w.at(here.dst, self.times(down, h.dst)), self.times(along, x.dst))
            self.call(name, [s, here.weights, t, *extra], here.channel, t, [])

        def rows_of(i: str, rows: int) -> None:
            self._blocks(column, end, nest.columns, x.extent, block.columns, lambda j, n: tile(i, j, rows, n))

        self._blocks(row, last, nest.rows, h.extent, block.rows, rows_of)

    def _rows(self, kind: int, here: Vectors, plane: str, row: str, last: str, column: str, end: str) -> None:
        """All tiles of a group, row by row, where taps fall outside: each tile knows which columns do."""
        w, nest, g = self.w, self.nest, self.nest.geometry
        extra = self.of_channel(here.channel)
        _, _, h, x = nest.dims

        def one(i: str) -> None:
            source, counts = self.taps_inside(here.src, plane, i)
            counts = counts if any(nest.counters) else []
            down = w.value(f"sub i64 {i}, {row}") if row != "0" else i
            target = w.at(here.dst, self.times(down, h.dst))
            for number, span in enumerate(nest.spans):
                name = self._tile(kind, 1, span.pixels, (number, span))

                def tile(k: str, span: Span = span, name: str = name) -> None:
                    s = w.at(source, span.start * x.src - g.padding[2] * nest.src.steps[2])
                    s = w.at(s, self.times(k, span.pixels * x.src))
                    t = w.at(w.at(target, span.start * x.dst), self.times(k, span.pixels * x.dst))
                    self.call(name, [s, here.weights, t, *extra], here.channel, t, counts)

                w.loop(0, span.tiles, 1, tile)

        w.loop(row, last, 1, one)

    def _blocks(
        self, start: str, end: str, most: int, extent: int, step: int, body: Callable[[str, int], None]
    ) -> None:
        """From start to end in steps, then what is left over: the body gets an index and a constant size."""
        w = self.w
        if start == "0" and end == str(extent):
            whole = extent // step * step
            if whole:
                w.loop(0, whole, step, lambda i: body(i, step))
            if extent % step:
                body(str(whole), extent % step)
            return
        rests = {size % step for size in (most, extent % most or most)} - {0}
        size = w.value(f"sub i64 {end}, {start}")
        rest = w.value(f"urem i64 {size}, {step}")
        whole_end = w.value(f"sub i64 {end}, {rest}")
        some = w.value(f"icmp slt i64 {start}, {whole_end}")
        w.when(some, lambda: w.loop(start, whole_end, step, lambda i: body(i, step)))
        for count in sorted(rests):
            w.when(
                w.value(f"icmp eq i64 {rest}, {count}"),
                lambda count=count: body(whole_end, count),  # type: ignore[misc]
            )

    # -- sources and destinations ---------------------------------------------------------------------------

    def _source(self, image: str, plane: str, row: str, last: str, column: str) -> str:
        """Where the first pixel of a task lies, packed if need be."""
        w, nest = self.w, self.nest
        _, d, h, x = nest.dims
        if not nest.packs:
            at = self.image("%src", nest.src, image)
            if nest.borders:
                return at
            for index, step in ((plane, d.src), (row, h.src), (column, x.src)):
                at = w.at(at, self.times(index, step))
            return at
        self._pack(image, plane, row, last)
        return self.packed

    def _pack(self, image: str, plane: str, row: str, last: str) -> None:
        """Bring the rows that a task's outputs touch to scratch, with zeros where there are none."""
        w, nest, g = self.w, self.nest, self.nest.geometry
        side = nest.src
        base = self.image("%src", side, image)
        width = nest.packed_columns * nest.pitch
        left = g.padding[2] * nest.pitch
        right = width - left - nest.packed_inside * nest.pitch
        count = w.value(f"sub i64 {last}, {row}") if row != "0" else last
        spans = w.value(f"mul i64 {w.value(f'sub i64 {count}, 1')}, {g.strides[1]}")
        spans = w.value(f"add i64 {spans}, {(g.kernel[1] - 1) * g.dilation[1] + 1}")
        top = w.value(f"sub i64 {self.times(row, g.strides[1])}, {g.padding[1]}")
        deep = w.value(f"sub i64 {self.times(plane, g.strides[0])}, {g.padding[0]}")

        def one_plane(k: str) -> None:
            z = w.value(f"add i64 {deep}, {self.times(k, g.dilation[0])}")
            z_ok = w.value(f"icmp ult i64 {z}, {g.source[0]}")
            at_plane = w.at(self.packed, self.times(k, nest.packed_rows * width))

            def one_row(r: str) -> None:
                y = w.value(f"add i64 {top}, {r}")
                y_ok = w.value(f"icmp ult i64 {y}, {g.source[1]}")
                ok = w.value(f"and i1 {z_ok}, {y_ok}")
                to = w.at(at_plane, self.times(r, width))

                def copy() -> None:
                    at = w.at(base, offset_code(w, z, side.spatial[0]))
                    at = w.at(at, offset_code(w, y, side.spatial[1]))
                    if g.inputs % nest.arithmetic.depth:
                        self._zero(to, width)  # the odd channel's partner
                    else:
                        self._zero(to, left)
                        self._zero(w.at(to, width - right), right)
                    w.line(f"call void @pack(ptr {at}, ptr {w.at(to, left)}, ptr null, i64 0, i64 1)")

                if not nest.packed_inside:  # padding alone
                    self._zero(to, width)
                    return
                w.when(ok, copy)
                w.when(w.value(f"xor i1 {ok}, true"), lambda: self._zero(to, width))

            w.loop(0, spans, 1, one_row)

        w.loop(0, g.kernel[0], 1, one_plane)

    def _zero(self, pointer: str, size: int) -> None:
        """Write zeros; a size of at most 0 means none."""
        if size > 0:
            self._routine_zero(size)
            self.w.line(f"call void @zero{size}(ptr {pointer})")

    def _routine_zero(self, size: int) -> None:
        """A function that writes so many zero bytes."""
        if f"zero{size}" in self.functions:
            return
        w, vector = Writer(), self.nest.machine.vector
        whole = size // vector * vector
        lanes = vector // WORD
        if whole:
            w.loop(
                0,
                whole,
                vector,
                lambda i: w.line(f"store <{lanes} x float> zeroinitializer, ptr {w.at('%to', i)}, align 4"),
            )
        for piece in pieces_of(0, size - whole, whole, 1):
            w.line(f"store <{piece.lanes} x i8> zeroinitializer, ptr {w.at('%to', piece.offset)}, align 1")
        self.functions[f"zero{size}"] = (
            f"define internal void @zero{size}(ptr %to) noinline {{\nentry:\n{w.text()}\n  ret void\n}}\n"
        )

    def _target(self, image: str, plane: str, row: str, column: str) -> str:
        """Where the first pixel of a task is written."""
        w, nest = self.w, self.nest
        if nest.unpacks:
            return self.results
        _, d, h, x = nest.dims
        at = self.image("%dst", nest.dst, image)
        for index, step in ((plane, d.dst), (row, h.dst), (column, x.dst)):
            at = w.at(at, self.times(index, step))
        return at

    def _move_rows(self, name: str, image: str, plane: str, row: str, last: str) -> None:
        """Reorder the rows of a task between scratch and destination."""
        w, nest = self.w, self.nest
        side = nest.dst
        base = self.image("%dst", side, image)
        base = w.at(base, offset_code(w, plane, side.spatial[0]) if plane != "0" else 0)

        def one(i: str) -> None:
            away = w.at(base, offset_code(w, i, side.spatial[1]))
            down = w.value(f"sub i64 {i}, {row}") if row != "0" else i
            here = w.at(self.results, self.times(down, nest.dims[2].dst))
            ways = (here, away) if name == "unpack" else (away, here)
            w.line(f"call void @{name}(ptr {ways[0]}, ptr {ways[1]}, ptr null, i64 0, i64 1)")

        w.loop(row, last, 1, one)

    # -- tiles ----------------------------------------------------------------------------------------------

    def _pitch(self) -> int:
        """The pitch of pixels if the next tile's are worth asking for: where the source is what is large."""
        nest = self.nest
        pitch = nest.dims[3].src
        dense = bool(nest.loops) and pitch == nest.loops[-1].extent * nest.loops[-1].src
        return (
            pitch
            if dense and not nest.packs and not nest.borders and nest.source_bytes > nest.weights_bytes
            else 0
        )

    def _tile(self, kind: int, rows: int, columns: int, at: tuple[int, Span] | None = None) -> str:
        """The name of a tile function, which is written when it is first asked for."""
        nest, group = self.nest, self.nest.kinds[kind]
        name = f"tile{kind}_{rows}x{columns}" + (f"_{at[0]}" if at else "")
        if name not in self.functions:
            _, _, h, x = nest.dims
            places = [(i, j) for i in range(rows) for j in range(columns)]
            outside: tuple[tuple[int, ...], ...] = ()
            if at is not None and at[1].outside:
                taps = range(nest.geometry.kernel[2])
                outside = tuple(tuple(p for p, t in at[1].outside if t == tap) for tap in taps)
            tile = Tile(
                nest.arithmetic,
                nest.weights_type,
                tuple(i * h.src + j * x.src for i, j in places),
                tuple(i * h.dst + j * x.dst for i, j in places),
                group.weights,
                group.pieces,
                group.valid,
                nest.loops,
                nest.taps,
                nest.counters,
                outside,
                nest.spread,
                nest.steps,
                group.widths,
                group.shifts,
                AHEAD if nest.weights_bytes > nest.machine.l1 else 0,
                self._pitch() if rows == 1 else 0,
            )
            finish = Finish(tile, nest, self.finishing)
            extra = ["%bias", "%scale", *(f"%{name}" for name in self.finishing.names)]
            self.functions[name] = tile_function(name, tile, nest.machine, extra, finish)
        return name
