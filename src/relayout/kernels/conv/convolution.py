"""The text of a convolution: one function that does a share of a nest's tasks.

``void convolution(ptr src, ptr dst, ptr operands, i64 part, i64 parts)``; the operands are the addresses of
the weights, the bias, scratch (a slot for each part), and what the post-ops want.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

from relayout.ir.writer import Writer
from relayout.kernels.conv.epilogue import Finish, Finishing
from relayout.kernels.conv.geometry import Geometry, Span
from relayout.kernels.conv.nest import Group, Nest
from relayout.kernels.conv.sides import offset_code
from relayout.kernels.conv.tile import WORD, Tile, lanes_of, pieces_of, tile_function
from relayout.kernels.copy.choice import feasible, lowered
from relayout.kernels.copy.module import embedded
from relayout.kernels.copy.problem import moves
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc

__all__ = ["ENTRY", "OPERANDS", "Rows", "module", "rows_of"]

ENTRY = "convolution"
OPERANDS = ("weights", "bias", "scale", "scratch")
"""What the third argument lists the addresses of; those that a convolution has not may be anything. Behind
them come the operands of binary operations."""


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


class _Module:
    """Writes the entry and the tiles."""

    def __init__(self, nest: Nest, rows: Rows, finishing: Finishing) -> None:
        self.nest, self.rows, self.finishing = nest, rows, finishing
        self.lanes = lanes_of(nest.machine)
        self.functions: dict[str, str] = {}
        self.w = Writer(nest.machine)

    def text(self) -> str:
        w, nest = self.w, self.nest
        words = [w.value(f"load ptr, ptr {w.at('%ops', 8 * k)}, align 8") for k in range(len(OPERANDS))]
        self.weights, bias, scale, scratch = words
        self.bias, self.scale = w.at(bias, self.finishing.bias_at), w.at(scale, self.finishing.scale_at)
        self.operands = self.finishing.bases(w, len(OPERANDS))
        self.packed = w.at(scratch, w.times("%part", nest.slot))
        self.results = w.at(self.packed, nest.packed)
        lo = self._share("%part")
        hi = self._share(w.value("add i64 %part, 1"))
        some = w.value(f"icmp slt i64 {lo}, {hi}")
        w.when(some, lambda: w.loop(lo, hi, 1, self._task))
        entry = (
            f"define void @{ENTRY}(ptr %src, ptr %dst, ptr %ops, i64 %part, i64 %parts) {{\n"
            f"entry:\n{w.text()}\n  ret void\n}}\n"
        )
        places = self._table("places", [number for place in nest.places for number in place])
        return "\n".join([places, *self.functions.values(), entry, *self.rows])

    @staticmethod
    def _table(name: str, numbers: Sequence[int]) -> str:
        values = ", ".join(f"i64 {number}" for number in numbers)
        return f"@{name} = internal constant [{len(numbers)} x i64] [{values}], align 64\n"

    def _share(self, part: str) -> str:
        w = self.w
        return w.value(f"udiv i64 {w.value(f'mul i64 {part}, {self.nest.tasks}')}, %parts")

    # -- a task ---------------------------------------------------------------------------------------------

    def _task(self, task: str) -> None:
        """Find out which one it is, pack, compute, unpack."""
        w, nest = self.w, self.nest
        n, d, h, x = (dim.extent for dim in nest.dims)
        counts = [nest.chunks, n, d, ceil(h / nest.rows), ceil(x / nest.columns)]
        numbers = []
        left = task
        for count in reversed(counts[1:]):
            numbers.append("0" if count == 1 else w.value(f"urem i64 {left}, {count}"))
            left = left if count == 1 else w.value(f"udiv i64 {left}, {count}")
        chunk, image, plane, rows, columns = ("0" if nest.chunks == 1 else left, *reversed(numbers))
        row = self._times(rows, nest.rows)
        last = self._least(row, nest.rows, h)
        column = self._times(columns, nest.columns)
        end = self._least(column, nest.columns, x)
        source = self._source(image, plane, row, last, column)
        target = self._target(image, plane, row, column)
        if self.rows.fetch:
            self._move_rows("fetch", image, plane, row, last)
        lo, hi = self._groups(chunk)

        def group(number: str) -> None:
            entry = w.at("@places", w.times(number, 5 * 8))
            kind, shift, weights, place, channel = (
                w.value(f"load i64, ptr {w.at(entry, 8 * k)}, align 8") for k in range(5)
            )
            given = {
                "src": w.at(source, shift),
                "weights": w.at(self.weights, weights),
                "dst": w.at(target, place),
                "channel": channel,
            }
            for k, made in enumerate(nest.kinds):

                def tiles(k: int = k, made: Group = made) -> None:
                    self._tiles(k, made, given, row, last, column, end)

                if len(nest.kinds) == 1:
                    tiles()
                else:
                    w.when(w.value(f"icmp eq i64 {kind}, {k}"), tiles)

        w.loop(lo, hi, 1, group)
        if nest.unpacks:
            self._move_rows("unpack", image, plane, row, last)

    def _times(self, index: str, factor: int) -> str:
        return "0" if index == "0" else str(self.w.times(index, factor))

    def _least(self, start: str, step: int, extent: int) -> str:
        """Where a block that begins at ``start`` ends."""
        if start == "0" and step >= extent:
            return str(extent)
        after = self.w.value(f"add i64 {start}, {step}")
        return self.w.value(f"call i64 @llvm.smin.i64(i64 {after}, i64 {extent})")

    def _groups(self, chunk: str) -> tuple[str | int, str | int]:
        """The groups of vectors of a chunk."""
        w, total, chunks = self.w, len(self.nest.places), self.nest.chunks
        if chunks == 1:
            return 0, total
        following = w.value(f"add i64 {chunk}, 1")
        lo, hi = (
            w.value(f"udiv i64 {w.value(f'mul i64 {number}, {total}')}, {chunks}")
            for number in (chunk, following)
        )
        return lo, hi

    def _tiles(
        self, kind: int, group: Group, given: dict[str, str], row: str, last: str, column: str, end: str
    ) -> None:
        """All tiles of a group: blocks of rows, then of pixels; what is left over in smaller ones."""
        w, nest = self.w, self.nest
        channel = w.value(f"mul i64 {given['channel']}, {WORD}")
        scale = self.scale if self.finishing.scale == 1 else w.at(self.scale, channel)
        extra = [w.at(self.bias, channel), scale]
        _, _, h, x = nest.dims
        block = nest.block
        if nest.borders:
            self._rows(kind, group, given, extra, row, last)
            return

        def at(i: str, j: str) -> tuple[str, str]:
            """Where a tile begins, counted from the task's first pixel."""
            down = w.value(f"sub i64 {i}, {row}") if row != "0" else i
            along = w.value(f"sub i64 {j}, {column}") if column != "0" else j
            s = w.at(w.at(given["src"], self._times(down, h.src)), self._times(along, x.src))
            t = w.at(w.at(given["dst"], self._times(down, h.dst)), self._times(along, x.dst))
            return s, t

        def tile(i: str, j: str, rows: int, columns: int) -> None:
            name = self._tile(kind, group, rows, columns)
            s, t = at(i, j)
            others = self.finishing.pointers(w, self.operands, given["channel"], t)
            pointers = (s, given["weights"], t, *extra, *others)
            w.line(f"call void @{name}({', '.join(f'ptr {pointer}' for pointer in pointers)})")

        def rows_of(i: str, rows: int) -> None:
            self._blocks(column, end, nest.columns, x.extent, block.columns, lambda j, n: tile(i, j, rows, n))

        self._blocks(row, last, nest.rows, h.extent, block.rows, rows_of)

    def _rows(
        self, kind: int, group: Group, given: dict[str, str], extra: list[str], row: str, last: str
    ) -> None:
        """All tiles of a group, row by row, where taps fall outside: each tile knows which columns do."""
        w, nest, g = self.w, self.nest, self.nest.geometry
        _, _, h, x = nest.dims
        steps = nest.src.steps

        def one(i: str) -> None:
            source, firsts, counts = given["src"], [], []
            for axis, index in ((0, self.plane), (1, i)):
                element, first, count = taps_inside_code(w, g, axis, index)
                source = w.at(source, w.times(element, steps[axis]))
                firsts.append(first)
                counts.append(count)
            down = w.value(f"sub i64 {i}, {row}") if row != "0" else i
            target = w.at(given["dst"], self._times(down, h.dst))
            for number, span in enumerate(nest.spans):
                name = self._tile(kind, group, 1, span.pixels, (number, span))

                def tile(k: str, span: Span = span, name: str = name) -> None:
                    s = w.at(source, span.start * x.src - g.padding[2] * steps[2])
                    s = w.at(s, self._times(k, span.pixels * x.src))
                    t = w.at(w.at(target, span.start * x.dst), self._times(k, span.pixels * x.dst))
                    others = self.finishing.pointers(w, self.operands, given["channel"], t)
                    pointers = [f"ptr {one}" for one in (s, given["weights"], t, *extra, *others)]
                    if any(nest.counters):
                        pointers += [f"i64 {number}" for number in (*firsts, *counts)]
                    w.line(f"call void @{name}({', '.join(pointers)})")

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
        side = nest.src
        _, d, h, x = nest.dims
        if not nest.packs:
            at = w.at("%src", side.start)
            at = w.at(at, offset_code(w, image, side.batch) if image != "0" else 0)
            self.plane = plane
            if nest.borders:
                return at
            for index, step in ((plane, d.src), (row, h.src), (column, x.src)):
                at = w.at(at, self._times(index, step))
            return at
        self._pack(image, plane, row, last)
        return self.packed

    def _pack(self, image: str, plane: str, row: str, last: str) -> None:
        """Bring the rows that a task's outputs touch to scratch, with zeros where there are none."""
        w, nest, g = self.w, self.nest, self.nest.geometry
        side = nest.src
        base = w.at("%src", side.start)
        base = w.at(base, offset_code(w, image, side.batch) if image != "0" else 0)
        width = nest.packed_columns * nest.pitch
        left = g.padding[2] * nest.pitch
        right = width - left - nest.packed_inside * nest.pitch
        count = w.value(f"sub i64 {last}, {row}") if row != "0" else last
        spans = w.value(f"mul i64 {w.value(f'sub i64 {count}, 1')}, {g.strides[1]}")
        spans = w.value(f"add i64 {spans}, {(g.kernel[1] - 1) * g.dilation[1] + 1}")
        top = w.value(f"sub i64 {self._times(row, g.strides[1])}, {g.padding[1]}")
        deep = w.value(f"sub i64 {self._times(plane, g.strides[0])}, {g.padding[0]}")

        def one_plane(k: str) -> None:
            z = w.value(f"add i64 {deep}, {self._times(k, g.dilation[0])}")
            z_ok = w.value(f"icmp ult i64 {z}, {g.source[0]}")
            at_plane = w.at(self.packed, self._times(k, nest.packed_rows * width))

            def one_row(r: str) -> None:
                y = w.value(f"add i64 {top}, {r}")
                y_ok = w.value(f"icmp ult i64 {y}, {g.source[1]}")
                ok = w.value(f"and i1 {z_ok}, {y_ok}")
                to = w.at(at_plane, self._times(r, width))

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
        at = w.at("%dst", nest.dst.start)
        at = w.at(at, offset_code(w, image, nest.dst.batch) if image != "0" else 0)
        for index, step in ((plane, d.dst), (row, h.dst), (column, x.dst)):
            at = w.at(at, self._times(index, step))
        return at

    def _move_rows(self, name: str, image: str, plane: str, row: str, last: str) -> None:
        """Reorder the rows of a task between scratch and destination."""
        w, nest = self.w, self.nest
        side = nest.dst
        base = w.at("%dst", side.start)
        base = w.at(base, offset_code(w, image, side.batch) if image != "0" else 0)
        base = w.at(base, offset_code(w, plane, side.spatial[0]) if plane != "0" else 0)

        def one(i: str) -> None:
            away = w.at(base, offset_code(w, i, side.spatial[1]))
            down = w.value(f"sub i64 {i}, {row}") if row != "0" else i
            here = w.at(self.results, self._times(down, nest.dims[2].dst))
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

    def _tile(
        self, kind: int, group: Group, rows: int, columns: int, at: tuple[int, Span] | None = None
    ) -> str:
        """The name of a tile function, which is written when it is first asked for."""
        nest = self.nest
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


def taps_inside_code(w: Writer, g: Geometry, axis: int, index: str) -> tuple[str, str, str]:
    """The element that the first tap inside falls on, which tap that is, and how many are inside."""
    taps, gap = g.kernel[axis], g.dilation[axis]
    start = w.value(f"sub i64 {w.times(index, g.strides[axis])}, {g.padding[axis]}")
    if g.always_inside(axis):
        return start, "0", str(taps)
    missing = w.value(f"sub i64 {gap - 1}, {start}")
    tap = w.value(f"udiv i64 {w.value(f'call i64 @llvm.smax.i64(i64 {missing}, i64 0)')}, {gap}")
    room = w.value(f"udiv i64 {w.value(f'sub i64 {g.source[axis] - 1}, {start}')}, {gap}")
    after = w.value(f"add i64 {room}, 1")
    end = w.value(f"call i64 @llvm.smin.i64(i64 {after}, i64 {taps})")
    element = w.value(f"add i64 {start}, {w.times(tap, gap)}")
    return element, tap, w.value(f"sub i64 {end}, {tap}")
