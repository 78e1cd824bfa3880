"""The text of a direct convolution: a plan's tasks, in tiles; rows packed and unpacked on the way.

A :class:`~.direct.Direct` plan has cut the results into tasks. Each is a chunk of output channels for a block
of rows and columns of one image, and a thread that gets a task does this, all within its own scratch::

    pack       source rows that do not lie as tiles read them: each once, when the first tile needs it
    tile       for blocks of pixels x channels: sums in registers over all taps and input channels
    epilogue   bias, scales, post-ops, conversion: while the sums are still in registers
    unpack     results that do not lie as tiles write them: row by row, while they are in the cache

So a format that no tile understands costs two passes through the nearest cache, not through memory, and the
reorders of rows are the same kernels that ``rl.reorder`` uses, embedded as functions (:class:`Rows`). Tiles
are written by :mod:`~.tile`, offsets of taps at the borders by :mod:`~.offsets`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from relayout.ir.builder import L1, L2, Function, Operand
from relayout.ir.kernel import digits
from relayout.ir.types import I8, I32, I64, PTR, Value, constant, vector
from relayout.ir.vectors import load_pieces, pieces_of
from relayout.kernels.conv.direct import Block, Direct
from relayout.kernels.conv.dot import Dot, declared
from relayout.kernels.conv.epilogue import Epilogue, Writer
from relayout.kernels.conv.geometry import Span
from relayout.kernels.conv.module import Module, Vectors
from relayout.kernels.conv.offsets import offsets_function
from relayout.kernels.conv.planning import Problem, in_whole_steps
from relayout.kernels.conv.sides import offset_code
from relayout.kernels.conv.tile import WORD, Emit, Tile, lanes_of, tile_function
from relayout.kernels.copy.candidates import lowered
from relayout.kernels.copy.module import embedded
from relayout.kernels.copy.problem import moves
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout

__all__ = ["DirectModule", "Rows", "module", "rows_of"]

PREFETCH_BYTES = 2048  # how far ahead weights are prefetched where they don't stay in the L1 cache
FEW_PIXELS = 64  # that meet weights from beyond the L2 cache, for which it pays to ask for these


class Rows(NamedTuple):
    """Reorders, as texts: rows into scratch, out of it, the old destination into it; a group's weights."""

    pack: str = ""
    unpack: str = ""
    fetch: str = ""
    pack_weights: str = ""


def _reorder(name: str, src: MemoryDesc, dst: MemoryDesc, nest: Direct) -> str | None:
    """The text of a function that reorders one row, say; None where there is no kernel for it."""
    found = moves(src, dst)
    plans = None if found is None else lowered(found, machine=nest.machine)
    return None if plans is None else embedded(name, plans, nest.machine)


def _row_of(desc: MemoryDesc) -> MemoryDesc:
    """Channels by pixels of the first row of the first plane of the first image."""
    layout = desc.layout
    for axis in (*range(len(desc.dims) - 2, 1, -1), 0):
        layout = views.select(layout, axis, 0)
    if len(desc.dims) == 2:
        layout = views.unsqueeze(layout, 1)
    return desc.with_layout(layout.moved(0))


def _group_of(weights: MemoryDesc, grouped: bool) -> MemoryDesc:
    """The weights of the first group, from its first element on."""
    layout = views.select(weights.layout, 0, 0) if grouped else weights.layout
    return weights.with_layout(layout.moved(0))


def _packed_row(nest: Direct, dims: tuple[int, ...]) -> MemoryDesc:
    """Channels by pixels of a row in scratch, where each group fills whole steps."""
    g, how = nest.geometry, nest.arithmetic
    pitch = nest.pitch // how.element
    if g.groups == 1 or g.inputs % how.depth == 0:
        return MemoryDesc(dims, how.operand, strides=(1, pitch))
    groups = Layout((g.groups, g.inputs, dims[1]), strides=(in_whole_steps(g, how), 1, pitch))
    return MemoryDesc(dims, how.operand, views.merge_axes(groups, 0, 1))


def rows_of(nest: Direct, problem: Problem, epilogue: Epilogue) -> Rows | None:
    """The reorders that a plan needs; None where one of them is not possible."""
    src, dst = problem.src, problem.dst
    found, wanted = {}, []
    if nest.packs and nest.packed_inside:
        row = _row_of(src)
        row = row.submemory((row.dims[0], nest.packed_inside), (0, 0))
        wanted.append(("pack", row, _packed_row(nest, row.dims)))
    if nest.unpacks:
        row = _row_of(dst)
        kind = epilogue.unpacked(nest.weights_type)
        out_of = MemoryDesc(row.dims, kind, strides=(1, nest.result_pitch // WORD))
        wanted.append(("unpack", out_of, row))
        if epilogue.adds:
            wanted.append(("fetch", row, out_of))
    if nest.carried and problem.given is not None:
        given, packed = (_group_of(desc, problem.grouped) for desc in (problem.given, problem.weights))
        wanted.append(("pack_weights", given, packed))
    for name, source, target in wanted:
        text = _reorder(name, source, target, nest)
        if text is None:
            return None
        found[name] = text
    return Rows(**found)


def module(nest: Direct, rows: Rows, epilogue: Epilogue) -> str:
    """The text of all functions."""
    return DirectModule(nest, rows, epilogue).text()


class DirectModule(Module):
    """Writes the tasks of a plan, and the tiles."""

    def __init__(self, nest: Direct, rows: Rows, epilogue: Epilogue) -> None:
        super().__init__(nest, epilogue)
        self.nest, self.rows = nest, rows
        self.lanes = lanes_of(nest.machine)

    def text(self) -> str:
        """With the reorders of rows."""
        return "\n".join([declared(self.nest.arithmetic, self.lanes), super().text(), *self.rows])

    # -- a task ---------------------------------------------------------------------------------------------

    def task(self, task: Value, first: Value) -> None:
        """Find out which one it is, pack, compute, unpack."""
        b, nest = self.b, self.nest
        n, d, h, x = (dim.extent for dim in nest.dims)
        counts = [nest.chunks, n, d, ceil(h / nest.rows), ceil(x / nest.columns)]
        chunk, image, plane, rows, columns = digits(b, task, counts)
        row, last = self.block(rows, nest.rows, h)
        column, end = self.block(columns, nest.columns, x)
        self.packed, self.results = self.scratch, b.gep(self.scratch, nest.packed)
        self.offsets = b.gep(self.scratch, nest.packed + nest.unpacked + nest.carried)
        if nest.offset:
            self._begin_offsets()
        total, following = len(nest.places), b.add(chunk, 1)
        begin, stop = (b.udiv(b.mul(number, total), nest.chunks) for number in (chunk, following))
        if nest.carried:
            given, self.weights = self.weights, b.gep(self.scratch, nest.packed + nest.unpacked)
            fresh = b.icmp("eq", b.urem(task, nest.tasks // nest.chunks), 0)
            fresh = b.or_(fresh, b.icmp("eq", task, first))
            b.when(fresh, lambda: self._pack_weights(given, begin, stop))
        source = self._source(image, plane, row, last, column)
        target = self._target(image, plane, row, column)
        if self.rows.fetch:
            self._move_rows("fetch", image, plane, row, last)

        def group(number: Value) -> None:
            place = self.vectors(number)
            here = place._replace(src=b.gep(source, place.src), dst=b.gep(target, place.dst))
            tiles = self._rows if nest.borders else self._tiles

            def of_kind(k: int) -> None:
                if nest.offset:
                    self.settle()
                    self._of_group(k, here)
                tiles(k, here, plane, row, last, column, end)

            self.by_kind(place, of_kind)

        b.loop(begin, stop, 1, group)
        if nest.unpacks:
            self.settle()
            self._move_rows("unpack", image, plane, row, last)

    def settle(self) -> None:
        """Have all results written that are still in tiles: they, or what they are made of, are about to go.

        There are none here; other tiles may write theirs late.
        """

    def _pack_weights(self, given: Value, begin: Value, stop: Value) -> None:
        """Bring the weights that a run of places reads to scratch: those of all of its groups."""
        b, packing = self.b, self.nest.packing
        assert packing is not None
        per = len(self.nest.places) // self.nest.geometry.groups
        first, last = b.udiv(begin, per), b.udiv(b.add(stop, per - 1), per)
        at = b.gep(given, packing.start)

        def one(number: Value) -> None:
            to = b.gep(self.weights, number, packing.packed)
            self._reorder("pack_weights", b.gep(at, number, packing.came), to)

        b.loop(first, last, 1, one)

    def _tiles(
        self, kind: int, here: Vectors, plane: Value, row: Value, last: Value, column: Value, end: Value
    ) -> None:
        """All tiles of a group: blocks of rows, then of pixels; what is left over in smaller ones."""
        b, nest = self.b, self.nest
        extra = self._extra(here)
        _, _, h, x = nest.dims
        block = nest.block

        def tile(i: Operand, rows: int, j: Operand, columns: int) -> None:
            down, along = b.sub(i, row), b.sub(j, column)  # from the task's first pixel
            name = self._tile(kind, rows, columns)
            tall, wide = self.computed(rows, columns)
            s = b.gep(b.gep(here.src, down, h.src), along, x.src)
            s = b.gep(s, (rows - tall) * h.src + (columns - wide) * x.src)
            t = b.gep(b.gep(here.dst, down, h.dst), along, x.dst)
            self.call(name, [s, here.weights, t, *extra], here.channel, t, [])

        def rows_of(i: Operand, rows: int) -> None:
            self._blocks(column, end, nest.columns, x.extent, block.columns, partial(tile, i, rows))

        self._blocks(row, last, nest.rows, h.extent, block.rows, rows_of)

    def _rows(
        self, kind: int, here: Vectors, plane: Value, row: Value, last: Value, column: Value, end: Value
    ) -> None:
        """All tiles of a group, row by row, where taps fall outside: each tile knows which columns do."""
        b, nest, g = self.b, self.nest, self.nest.geometry
        extra = self._extra(here)
        _, _, h, x = nest.dims

        def one(i: Value) -> None:
            source, counts = self.taps_inside(here.src, plane, i)
            counts = counts if any(nest.counters) else []
            target = b.gep(here.dst, b.sub(i, row), h.dst)
            for number, span in enumerate(nest.spans):
                name = self._tile(kind, 1, span.pixels, (number, span))

                def tile(k: Value, span: Span = span, name: str = name) -> None:
                    s = b.gep(source, span.start * x.src - g.padding[2] * nest.src.steps[2])
                    s = b.gep(s, k, span.pixels * x.src)
                    t = b.gep(b.gep(target, span.start * x.dst), k, span.pixels * x.dst)
                    self.call(name, [s, here.weights, t, *extra], here.channel, t, counts)

                b.loop(0, span.tiles, 1, tile)

        b.loop(row, last, 1, one)

    def _blocks(
        self,
        start: Value,
        end: Value,
        most: int,
        extent: int,
        step: int,
        body: Callable[[Operand, int], None],
    ) -> None:
        """From start to end in steps, then what is left over: the body gets an index and a constant size."""
        b = self.b
        if start.number == 0 and end.number == extent:
            whole = extent // step * step
            if whole:
                b.loop(0, whole, step, lambda i: body(i, step))
            if extent % step:
                body(whole, extent % step)
            return
        rests = {size % step for size in (most, extent % most or most)} - {0}
        rest = b.urem(b.sub(end, start), step)
        whole_end = b.sub(end, rest)
        some = b.icmp("slt", start, whole_end)
        b.when(some, lambda: b.loop(start, whole_end, step, lambda i: body(i, step)))
        for count in sorted(rests):
            b.when(b.icmp("eq", rest, count), partial(body, whole_end, count))

    # -- sources and destinations ---------------------------------------------------------------------------

    def _source(self, image: Value, plane: Value, row: Value, last: Value, column: Value) -> Value:
        """Where the first pixel of a task lies, packed if need be."""
        b, nest = self.b, self.nest
        if nest.packs:
            self._pack(image, plane, row, last)
            return self.packed
        _, d, h, x = nest.dims
        at = self.image(b["src"], nest.src, image)
        if nest.borders:
            return at
        for index, step in ((plane, d.src), (row, h.src), (column, x.src)):
            at = b.gep(at, index, step)
        return at

    def _pack(self, image: Value, plane: Value, row: Value, last: Value) -> None:
        """Bring the rows that a task's outputs touch to scratch, with zeros where there are none."""
        b, nest, g, side = self.b, self.nest, self.nest.geometry, self.nest.src
        base = self.image(b["src"], side, image)
        width = nest.packed_columns * nest.pitch
        left = g.padding[2] * nest.pitch
        right = width - left - nest.packed_inside * nest.pitch
        spans = b.mul(b.sub(b.sub(last, row), 1), g.strides[1])
        spans = b.add(spans, (g.kernel[1] - 1) * g.dilation[1] + 1)
        top = b.sub(b.mul(row, g.strides[1]), g.padding[1])
        deep = b.sub(b.mul(plane, g.strides[0]), g.padding[0])

        def one_plane(k: Value) -> None:
            z = b.add(deep, b.mul(k, g.dilation[0]))
            z_ok = b.icmp("ult", z, g.source[0])
            at_plane = b.gep(self.packed, k, nest.packed_rows * width)

            def one_row(r: Value) -> None:
                y = b.add(top, r)
                ok = b.and_(z_ok, b.icmp("ult", y, g.source[1]))
                to = b.gep(at_plane, r, width)

                def copy() -> None:
                    at = b.gep(base, offset_code(b, z, side.spatial[0]))
                    at = b.gep(at, offset_code(b, y, side.spatial[1]))
                    if g.inputs % nest.arithmetic.depth:
                        self._zero(to, width)  # the odd channel's partner
                    else:
                        self._zero(to, left)
                        self._zero(b.gep(to, width - right), right)
                    self._reorder("pack", at, b.gep(to, left))

                if not nest.packed_inside:  # padding alone
                    self._zero(to, width)
                    return
                b.when(ok, copy)
                b.when(b.not_(ok), lambda: self._zero(to, width))

            b.loop(0, spans, 1, one_row)

        b.loop(0, g.kernel[0], 1, one_plane)

    def _reorder(self, name: str, source: Value, target: Value) -> None:
        """One of the :class:`Rows`."""
        self.b.call(name, source, target, Value("null", PTR), constant(I64, 0), constant(I64, 1))

    def _zero(self, pointer: Value, size: int) -> None:
        """Write zeros, or the zero point of the source; a size of at most 0 means none."""
        if size > 0:
            self._routine_zero(size)
            word = self.stored if self.nest.zeros.src else constant(I32, 0)
            self.b.call(f"zero{size}", pointer, word)

    def _routine_zero(self, size: int) -> None:
        """A function that fills so many bytes with a word, whose bytes, or halves, are all the same."""
        if f"zero{size}" in self.functions:
            return
        f = Function(f"zero{size}", {"to": PTR, "word": I32}, self.nest.machine, "internal", "noinline")
        register = f.splat(f["word"], self.lanes)
        step = register.type.bytes
        whole = size // step * step
        if whole:
            f.loop(0, whole, step, lambda i: f.store(register, f.gep(f["to"], i), 1))
        parts = f.bitcast(register, vector(step, I8))
        for piece in pieces_of(0, size - whole, whole, 1):
            part = f.shuffle(parts, list(range(piece.lanes)))
            f.store(part, f.gep(f["to"], piece.offset))
        self.functions[f"zero{size}"] = f.text()

    def _target(self, image: Value, plane: Value, row: Value, column: Value) -> Value:
        """Where the first pixel of a task is written."""
        b, nest = self.b, self.nest
        if nest.unpacks:
            return self.results
        _, d, h, x = nest.dims
        at = self.image(b["dst"], nest.dst, image)
        for index, step in ((plane, d.dst), (row, h.dst), (column, x.dst)):
            at = b.gep(at, index, step)
        return at

    def _move_rows(self, name: str, image: Value, plane: Value, row: Value, last: Value) -> None:
        """Reorder the rows of a task between scratch and destination."""
        b, side = self.b, self.nest.dst
        base = self.image(b["dst"], side, image)
        base = b.gep(base, offset_code(b, plane, side.spatial[0]))

        def one(i: Value) -> None:
            away = b.gep(base, offset_code(b, i, side.spatial[1]))
            here = b.gep(self.results, b.sub(i, row), self.nest.dims[2].dst)
            self._reorder(name, *((here, away) if name == "unpack" else (away, here)))

        b.loop(row, last, 1, one)

    # -- tiles ----------------------------------------------------------------------------------------------

    def _pitch(self) -> int:
        """The pitch of pixels if what is read next is worth asking for.

        That is the next block of channels, a plane away. Where pixels have all of their channels together it
        is the next tile, if the source is larger than the weights.
        """
        nest = self.nest
        pitch = nest.dims[3].src
        dense = bool(nest.loops) and pitch == nest.loops[-1].extent * nest.loops[-1].src
        if not dense or nest.packs or nest.borders:
            return 0
        return pitch if len(nest.loops) > 1 or self._source_passes(pitch) else 0

    def _source_passes(self, pitch: int) -> bool:
        """Whether the source goes by, and the weights stay: it is the larger one.

        With AVX2, whose caches are smaller than several images, all of them count; and what is twice the L2
        cache goes by once for each chunk of larger weights, if the L1 cache has room for this tile's pixels
        and the next one's.
        """
        nest, machine = self.nest, self.nest.machine
        if not machine.is_avx2:
            return nest.source_bytes > nest.weights_bytes
        source = nest.geometry.batch * nest.source_bytes
        fit = 2 * nest.block.columns * pitch <= machine.l1
        return source > nest.weights_bytes or (fit and source > 2 * machine.l2)

    def _ahead(self, kind: int) -> tuple[int, int]:
        """How many bytes ahead weights are asked for, and into which cache (:attr:`.Tile.into`).

        With AVX2 only those that come from afar for a few pixels: requests are a tenth of the instructions of
        a turn, and what comes from the L2 cache comes in time without them. Where memory can be read beside
        (:attr:`.Machine.fetches`), tiles of a group ask for the next group's, which have the time of all of
        these tiles to come.
        """
        nest = self.nest
        if nest.weights_bytes <= nest.machine.l1 or (nest.machine.is_avx2 and nest.served > FEW_PIXELS):
            return 0, L1
        if nest.machine.fetches and (apart := self._apart(kind)):
            return min(apart, nest.machine.l2 // 4), L2
        return PREFETCH_BYTES, L1

    def _apart(self, kind: int) -> int:
        """Bytes from the weights of a group to those of the next one; 0: they differ, or there is none."""
        places = [(place.kind, place.weights) for place in self.nest.places]
        steps = {two - one for (k, one), (_, two) in pairwise(places) if k == kind}
        return steps.pop() if len(steps) == 1 and min(steps) > 0 else 0

    def _extra(self, here: Vectors) -> list[Value]:
        """Where bias and scale of a group lie, and what its sums begin with."""
        return [*self.of_channel(here.channel), *[self.offsets] * self.nest.offset]

    def _begin_offsets(self) -> None:
        """What zeros of the source are, in scratch: as they are multiplied, and as a number."""
        b, how = self.b, self.nest.arithmetic
        dot = Dot(b, how, self.nest.weights_type, self.lanes)
        zero = constant(I32, 0)
        if self.nest.zeros.src:
            zero = b.load(I32, b.gep(self.src_zero, self.nest.zeros.src_at))
        self.stored = dot.spread(zero)
        zero = b.add(zero, how.shift)
        for k, one in enumerate((dot.spread(zero), zero)):
            b.store(b.splat(one, self.lanes), b.gep(self.offsets, k * dot.sum.bytes), dot.sum.bytes)

    def _of_group(self, kind: int, here: Vectors) -> None:
        """What the sums of a group begin with, in scratch, and the zero points of its weights."""
        b, zeros, group = self.b, self.nest.zeros, self.nest.kinds[kind]
        b.call(self._offsets(kind), here.weights, self.offsets)
        if not zeros.weights:
            return
        points = b.gep(self.weights_zero, zeros.weights_at)
        size, sums = self.lanes * WORD, vector(self.lanes, I32)
        for v in range(group.vectors):
            if zeros.weights == 1:
                one = b.splat(b.load(I32, points), self.lanes)
            else:
                valid = group.valid if v == group.vectors - 1 else self.lanes
                pieces = pieces_of(0, valid, v * size, WORD)
                one = load_pieces(b, sums, b.gep(points, here.channel, WORD), pieces)
            b.store(one, b.gep(self.offsets, 2 * size + v * size), size)

    def _offsets(self, kind: int) -> str:
        """The name of a function that works out what the sums of a group begin with."""
        name = f"offsets{kind}"
        if name not in self.functions:
            self.functions[name] = offsets_function(name, self._made(kind, 1, 1), self.nest.machine)
        return name

    def _tile(self, kind: int, rows: int, columns: int, at: tuple[int, Span] | None = None) -> str:
        """The name of a tile function, which is written when it is first asked for."""
        name = f"tile{kind}_{rows}x{columns}" + (f"_{at[0]}" if at else "")
        if name not in self.functions:
            tile = self._made(kind, rows, columns, at)
            epilogue = Writer(tile, self.nest, self.epilogue)
            self.functions[name] = self.tile_text(name, tile, epilogue)
        return name

    @property
    def extra(self) -> tuple[str, ...]:
        """The further arguments of tiles: what an epilogue reads."""
        return ("bias", "scale", *["offsets"] * self.nest.offset, *self.epilogue.names)

    def computed(self, rows: int, columns: int) -> Block:
        """The pixels that a tile computes, of which it stores the last so many."""
        return Block(rows, columns)

    def tile_text(self, name: str, tile: Tile, epilogue: Emit) -> str:
        """The text of a tile function."""
        return tile_function(name, tile, self.nest.machine, self.extra, epilogue)

    def _made(self, kind: int, rows: int, columns: int, at: tuple[int, Span] | None = None) -> Tile:
        """What a tile of so many pixels computes."""
        nest, group = self.nest, self.nest.kinds[kind]
        _, _, h, x = nest.dims
        whole = self.computed(rows, columns)
        came, goes = ([(i, j) for i in range(n) for j in range(m)] for n, m in (whole, (rows, columns)))
        outside: tuple[tuple[int, ...], ...] = ()
        if at is not None and at[1].outside:
            taps = range(nest.geometry.kernel[2])
            outside = tuple(tuple(p for p, t in at[1].outside if t == tap) for tap in taps)
        return Tile(
            nest.arithmetic,
            nest.weights_type,
            tuple(i * h.src + j * x.src for i, j in came),
            tuple(i * h.dst + j * x.dst for i, j in goes),
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
            *self._ahead(kind),
            self._pitch() if rows == 1 else 0,
            nest.offset,
            nest.zeros.weights > 0,
            nest.rest,
        )
