"""Transposition: tiles are transposed in registers, read in place or through a stage.

A plane of rows and columns is covered by tiles of three sizes, so that little is done twice::

    columns ->
    +----+----+----+--+
    |    |    |    |//|   a tile: a line of the destination (rows) by 16 bytes of the source (columns)
    +----+----+----+--+   //: the last strip ends with the last column, over what is there already
    |    |    |    |//|
    +----+----+----+--+   what is left of the rows: the largest power of two that fits,
    +----+----+----+--+   then the smallest that covers the rest, also stepping back
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from relayout.dtypes import dtype
from relayout.ir.builder import Function, Operand, table
from relayout.ir.types import I8, I64, PTR, Value, constant, integer, poison, vector
from relayout.ir.vectors import cut, join, join_lanes
from relayout.kernels.copy.base import NOWHERE, PREFETCH_BYTES, Kernel, Place, writes
from relayout.kernels.copy.cost import PAGE_BYTES
from relayout.kernels.copy.network import Network
from relayout.kernels.copy.plan import LANE_BITS, LINE_BITS, WORD_BITS, Run
from relayout.kernels.copy.tiling import StagedPlan, TransposePlan
from relayout.targets.machine import LINE

__all__ = ["ENOUGH", "Staged", "Tile", "Transpose"]

CLAIMED_BYTES = 2 * LINE  # how far ahead short columns ask for the lines that they write
PREFETCHED_ROWS = 8  # rows that are prefetched in one turn
PRUNED = 4  # strips; with no more of them the overlapping last one gets code for its new columns only
STAGES = 4  # of them would fill the L1 cache: the destination's lines and those to come need room, too
ENOUGH = 32  # registers that LLVM gets by with whatever the order of shuffles and stores
INLINE = 16  # rows of the largest tile that is inlined; larger ones are called


class Tile(NamedTuple):
    """What is transposed at once: so many rows of the source, so many columns."""

    rows: int
    columns: int
    network: Network
    """What is done with the columns of a lane; several lanes of columns may lie side by side."""
    used: int
    """Columns that are there: rows shorter than a lane are loaded with what follows them."""
    done: int = 0
    """Columns that another tile has stored already."""


@writes(TransposePlan)
class Transpose(Kernel):
    """Strips of one lane of columns, a tile after the other down the rows."""

    plan: TransposePlan

    has_zeros = False
    """Whether rows are zeros, in groups."""
    deep = False
    """Whether columns are several tiles."""
    short = False
    """Whether all rows are fewer than a lane has places: one tile has them all, and rows that are none."""

    def prepare(self) -> None:
        """Choose the tiles, and write down the places of runs that are joined."""
        plan = self.plan
        rows = LINE_BITS // (4 if plan.nest.pair else plan.mid)
        while rows > plan.total:
            rows //= 2
        plain = plan.kind == "transpose" and self.what is None and not (plan.nest.fill or plan.nest.pair)
        self.short = plain and not self.has_zeros and rows < plan.total < LANE_BITS // plan.mid
        if self.short:
            rows = 1 << plan.total.bit_length()
        self.main = self._tile_of(rows)
        self.sources = self._table("rows", plan.rows, "src")
        self.targets = self._table("columns", plan.columns, "dst")
        self.deep = plan.total >= 2 * rows
        run = plan.columns
        near = self.deep or (run.is_straight and abs(run.loop.dst) < 8 * PAGE_BYTES)
        self.claims = plan.claims and near and not (plan.bounced or plan.nest.fill or self.has_zeros)
        self.ahead = plan.prefetch

    @property
    def widest(self) -> int:
        """Columns that may be transposed at a time."""
        return LANE_BITS

    def _tile_of(self, rows: int) -> Tile:
        plan = self.plan
        columns = min(LANE_BITS // plan.mid, self.widest)
        many = rows // 2 if plan.nest.pair else rows
        while columns > min(plan.columns.extent, many):
            columns //= 2
        used = min(columns, plan.columns.extent)
        if self._spans(rows, 2 * columns):
            columns, used = 2 * columns, plan.columns.extent
        net = Network(plan.mid, columns, min(8 * self.machine.vector // plan.mid, many))
        abreast = 1 if self.in_words(rows, columns) else plan.abreast(rows, columns, self.machine)
        return Tile(rows, abreast * columns, net, abreast * columns if abreast > 1 else used)

    def _spans(self, rows: int, columns: int) -> bool:
        """Whether short rows can be loaded as if they had more columns than are there.

        What is loaded with them must lie between the first and the last element of the tile. So all but the
        last rows are loaded with what follows, and those with what comes before.
        """
        plan, nest = self.plan, self.nest
        run, bits = plan.columns, nest.read
        short = columns // 2 < run.extent < columns <= min(LANE_BITS // plan.mid, rows)
        plain = bits == plan.mid and plan.kind == "transpose" and (self.what is None or plan.late)
        plain = plain and not (
            nest.pair or nest.fill or self.has_zeros or nest.adds
        )  # pairs store all columns
        if not (short and plain and run.is_straight):
            return False
        places = self._places(min(rows, plan.total))
        first, last = min(places, default=0), max(places, default=0) + run.extent * bits
        more = (columns - run.extent) * bits
        return bool(places) and all(
            place + columns * bits <= last or place - more >= first for place in places
        )

    def _places(self, rows: int) -> list[int]:
        """Where the rows of a tile begin, in bits from its first one; nothing where tiles differ in that."""
        run = self.plan.rows
        if not run.is_straight and rows < run.extent:
            return []
        return Run((run.loop._replace(extent=rows),)).places("src") if run.is_straight else run.places("src")

    def _table(self, stem: str, run: Run, side: str) -> Value:
        """A constant with the places of a run that has no stride on the other side; nothing where it has."""
        if run.is_straight:
            return NOWHERE
        name = f"{self.name}_{stem}"
        self.routines[name] = table(name, [place // 8 for place in run.places(side)])
        return Value(f"@{name}", PTR)

    # -- loops over tiles -----------------------------------------------------------------------------------

    def body(self, place: Place) -> None:
        """The whole plane, or the rows of the block that is worked on."""
        if self.plan.blocked is not None:
            self._sweep(place, self.main, *self.span)
        elif self.plan.bounced:
            self._bounced(place)
        else:
            self.plane(place)

    def plane(self, place: Place) -> None:
        """All rows and columns."""
        rows, total = self.main.rows, self.plan.total
        if self.short:
            self._sweep(place, self.main, 0, rows)
            return
        whole = total // rows * rows
        ends = self._ends(whole)
        if ends:
            self._together(place, ends, whole)
            return
        if whole <= self.plan.block or self.nest.fill:
            self._sweep(place, self.main, 0, whole)
        else:
            step = max(self.plan.block, rows)
            sweep = partial(self._sweep, place, self.main)
            self.over_rows(whole, lambda a, b: self.each_block(a, b, step, lambda: sweep(*self.span)))
        self.at_the_end(lambda: self.sweep_left_over(place, whole))

    def over_rows(self, whole: int, body: Callable[[Operand, Operand], None]) -> None:
        """Work on the rows of whole tiles, or on a share of them, which is whole blocks."""
        if not self.plan.shares_rows:
            body(0, whole)
            return
        first, end = self.shared[0], self.b.smin(self.shared[1], whole)
        self.b.when(self.b.icmp("slt", first, end), lambda: body(first, end))

    def at_the_end(self, body: Callable[[], None]) -> None:
        """What falls to whoever has the last rows."""
        if self.plan.shares_rows:
            self.b.when(self.b.icmp("eq", self.shared[1], self.plan.total), body)
        else:
            body()

    def sweep_left_over(self, place: Place, whole: int) -> None:
        """The rows behind the whole tiles, in a sweep of their own over all columns."""
        self.unstreamed(
            lambda: self.left_over(whole, lambda tile, row: self._sweep(place, tile, row, row + tile.rows))
        )

    def _ends(self, whole: int) -> list[tuple[Tile, int]]:
        """The tiles that end the columns of one block, and their rows; nothing where they are done apart.

        All rows of a strip are done before the next one then, while the lines that they share with others
        are in the L1 cache: columns of 9x9 pixels are two or three lines.
        """
        plan = self.plan
        if whole > plan.block or plan.shares_rows or self.nest.fill or self.nest.pair or self.has_zeros:
            return []
        return self.ends_of(whole)

    def ends_of(self, whole: int) -> list[tuple[Tile, int]]:
        """The same whatever the blocks; nothing where the columns of these tiles don't divide a strip."""
        found: list[tuple[Tile, int]] = []
        self.left_over(whole, lambda tile, row: found.append((tile, row)))
        some = self.main.columns
        found = [(self._narrowed(tile, some), row) for tile, row in found]
        even = all(some % tile.columns == 0 and tile.used == tile.columns for tile, _ in found)
        return found if even and self.main.used == some else []

    def _narrowed(self, tile: Tile, columns: int) -> Tile:
        """A tile of no more columns, where it has several lanes of them."""
        some = tile.network.columns
        return tile._replace(columns=some, used=some) if columns < tile.columns else tile

    def _together(self, place: Place, ends: list[tuple[Tile, int]], whole: int) -> None:
        """All columns; in each strip the whole tiles, then those that end its columns."""

        def strip(i: Operand, done: int) -> None:
            self.strip(place, self.main._replace(done=done), i, 0, whole)
            self.unstreamed(lambda: end(i, done))

        def end(i: Operand, done: int) -> None:
            for tile, row in ends:
                for k in range(done // tile.columns * tile.columns, self.main.columns, tile.columns):
                    part = tile._replace(done=max(0, done - k))
                    body = self._tiles if tile.rows <= INLINE else self._called
                    body(place, part, self.b.add(i, k), row, row + tile.rows)

        self.columns(self.main.columns, strip)

    def left_over(self, start: int, body: Callable[[Tile, int], None]) -> None:
        """Rows from ``start`` on in one tile, which may begin earlier, or in two smaller ones."""
        total = self.plan.total
        left = total - start
        if not left:
            return
        least = 2 if self.nest.read == 4 else 1  # 4-bit columns come in pairs, and no tile has more than rows
        cover = max(1 << (left - 1).bit_length(), least)
        if cover <= total:
            body(self._tile_of(cover), total - cover)
            return
        first = max(1 << (left.bit_length() - 1), least)
        body(self._tile_of(first), min(start, total - first))
        left -= first
        if left > 0:
            last = max(min(1 << (left - 1).bit_length(), self.main.rows), least)
            body(self._tile_of(last), total - last)

    def blocks(self, loop: object, place: Place) -> None:
        """Blocks of rows around the loops inside; then the rows that are left over."""
        rows, inside = self.main.rows, self.plan.around[self.plan.outer :]
        whole = self.plan.total // rows * rows
        self.each_block(0, whole, max(self.plan.block, rows), lambda: self.loops(inside, place))
        self.unstreamed(lambda: self.left_over(whole, lambda tile, row: self._again(place, tile, row)))

    def _again(self, place: Place, tile: Tile, row: int) -> None:
        kept, self.main = self.main, tile
        self.span = row, row + tile.rows
        self.loops(self.plan.around[self.plan.outer :], place)
        self.main = kept

    def _bounced(self, place: Place) -> None:
        """Some columns at a time are written to a buffer, which then leaves in whole lines."""
        run, some = self.plan.columns, self.plan.bounced
        if not run.is_straight:
            self.through_buffer(place, some * self.plan.total * self.nest.write // 8, self.plane)
            return
        size = some * run.loop.dst // 8

        def few(i: Value) -> None:
            self.through_buffer(self.moved(place, i, run.loop), size, lambda at: self._narrow(at, some))

        if run.loop is self.plan.shared:
            self.b.loop(*self.shared, some, few)
            return
        self.b.loop(0, run.extent // some * some, some, few)
        if run.extent % some:
            rest = run.extent // some * some
            self.unstreamed(lambda: self._narrow(self.moved(place, rest, run.loop), run.extent - rest, rest))

    def _narrow(self, place: Place, columns: int, before: int = 0) -> None:
        """All rows of some columns; ``before`` it lie more that a last strip may step back over."""
        self._columns = columns, before
        self.plane(place)
        self._columns = None

    _columns: tuple[int, int] | None = None

    def _sweep(self, place: Place, tile: Tile, first: Operand, last: Operand) -> None:
        """All columns of some rows."""
        self.columns(
            tile.columns, lambda i, done: self.strip(place, tile._replace(done=done), i, first, last)
        )

    def columns(self, step: int, body: Callable[[Operand, int], None]) -> None:
        """Over all columns in steps; the last step ends with the last column.

        The body is told at which column it begins, and how many of its columns are done already.
        """
        run, b = self.plan.columns, self.b
        extent, before = self._columns or (run.extent, 0)
        whole = extent // step * step
        done = step - (extent - whole) if extent < PRUNED * step else 0

        def last() -> None:
            body(extent - step, done)

        if run.is_straight and run.loop is self.plan.shared and self._columns is None:
            if whole == extent:
                b.loop(*self.shared, step, lambda i: body(i, 0))
                return
            first, stop = self.shared
            end = b.smin(stop, whole)
            b.when(b.icmp("slt", first, end), lambda: b.loop(first, end, step, lambda i: body(i, 0)))
            b.when(b.icmp("eq", stop, extent), last)
            return
        if whole:
            b.loop(0, whole, step, lambda i: body(i, 0))
        if whole < extent and extent + before >= step:
            last()
        elif whole < extent and step > extent and self.main.used < step:
            body(0, 0)

    def strip(self, place: Place, tile: Tile, column: Operand, first: Operand, last: Operand) -> None:
        """The tiles below each other in one lane of columns."""
        if (self.nest.fill or self.short) and isinstance(first, int) and isinstance(last, int):
            for row in range(first, last, tile.rows):  # each tile has zeros of its own, or rows that are none
                valid = max(0, min(tile.rows, self.plan.rows.extent - row))
                self._placed_tile(place, tile, column, row, valid)
            return
        if self.ahead:
            self._ask(place, tile, column, first, last)
        if tile.rows <= INLINE:
            self._tiles(place, tile, column, first, last)
        else:
            self._called(place, tile, column, first, last)

    def _ask(self, place: Place, tile: Tile, column: Operand, first: Operand, last: Operand) -> None:
        """Prefetch the rows of a strip, a line of each, when the strip begins a line."""
        b, rows = self.b, min(tile.rows, PREFETCHED_ROWS)
        line = LINE_BITS // self.nest.read
        src = self.step(place.src, column, self.nest.read)

        def some(row: Value) -> None:
            source = self._sources(src, row)
            for k in range(rows):
                self.prefetch(source(k))

        if isinstance(column, Value) and column.number is None:  # else the end; it has been asked for
            begins = b.icmp("eq", b.and_(column, line - 1), 0)
            b.when(begins, lambda: b.loop(first, last, rows, some))

    def _tiles(self, place: Place, tile: Tile, column: Operand, first: Operand, last: Operand) -> None:
        self.b.loop(
            first, last, tile.rows, lambda row: self._placed_tile(place, tile, column, row, tile.rows)
        )

    def _called(self, place: Place, tile: Tile, column: Operand, first: Operand, last: Operand) -> None:
        """The same as a function of its own: large tiles are compiled once, not for every tail again."""
        self.call(
            f"strip{tile.rows}" + (f"_{tile.done}" if tile.done else ""),
            place,
            (column, first, last),
            lambda at, *given: self._tiles(at, tile, *given),
            spills=self.stream and self.few,
        )

    def call(
        self,
        name: str,
        place: Place,
        given: tuple[Operand, ...],
        emit: Callable[..., None],
        spills: bool = False,
    ) -> None:
        """Call a function of this kernel at a place, with further whole numbers.

        ``emit``, which gets the place and the numbers inside, writes it when it is first called. One that
        spills registers gets a stack on which they lie on lines; LLVM sees to that for variables only.
        """
        name = f"{self.name}_{'streamed_' if self.stream else ''}{name}"
        kept, tables = (self.b, self._numbers), len(place.tables)
        outside = {"s": place.src, "d": place.dst}
        outside |= {f"t{k}": entry for k, entry in enumerate(place.tables)}
        outside |= {f"n{k}": number for k, number in enumerate(self._numbers.values())}
        outside |= {f"i{k}": self.b.add(number, 0) for k, number in enumerate(given)}
        if name not in self.routines:
            marks = {"s": "noalias", "d": "noalias"}
            types = {stem: x.type for stem, x in outside.items()}
            stack = f"alignstack({LINE})" if spills else ""
            self.b = f = Function(name, types, self.machine, "internal", stack, marks=marks)
            inside = dict(zip(outside, f.arguments, strict=True))
            self._numbers = {key: inside[f"n{k}"] for k, key in enumerate(self._numbers)}
            at = Place(inside["s"], inside["d"], tuple(inside[f"t{k}"] for k in range(tables)))
            emit(at, *(inside[f"i{k}"] for k in range(len(given))))
            self.routines[name] = f.text()
            self.b, self._numbers = kept
        self.b.call(name, *outside.values())

    # -- one tile -------------------------------------------------------------------------------------------

    def _placed_tile(self, place: Place, tile: Tile, column: Operand, row: Operand, valid: int) -> None:
        """The tile at a column and a row: where its rows begin, and where its columns go."""
        nest = self.nest
        rows, columns = self.plan.rows, self.plan.columns
        src = self.step(place.src, column, nest.read)
        dst = self.step(place.dst, row, nest.write)
        tables = place.tables
        if columns.is_straight:
            dst, tables = self.step(dst, column, columns.loop.dst), self.entries(tables, column, columns.loop)
        if rows.is_straight:
            tables = self.entries(tables, row, rows.loop)
        self.tile(tile, self._sources(src, row), self._targets(dst, column), tables, valid)

    def _sources(self, src: Value, row: Operand) -> Callable[[int], Value]:
        """Where rows begin, counted from one."""
        rows, b = self.plan.rows, self.b
        if rows.is_straight:
            first = self.step(src, row, rows.loop.src)
            return lambda k: self.step(first, k, rows.loop.src)
        return lambda k: b.gep(src, self._listed(self.sources, row, k))

    def _targets(self, dst: Value, column: Operand) -> Callable[[int], Value]:
        """Where columns begin, counted from one (that ``dst`` is at, where they have a stride)."""
        columns, b = self.plan.columns, self.b
        if columns.is_straight:
            return lambda k: self.step(dst, k, columns.loop.dst)
        return lambda k: b.gep(dst, self._listed(self.targets, column, k))

    def _listed(self, places: Value, first: Operand, k: int) -> Value:
        """An entry of a table of places."""
        return self.b.load(I64, self.b.gep(self.b.gep(places, first, 8), 8 * k))

    def tile(
        self,
        tile: Tile,
        source: Callable[[int], Value],
        target: Callable[[int], Value],
        tables: tuple[Value, ...],
        valid: int,
    ) -> None:
        """Turn over a tile.

        Rows from ``valid`` on are zeros that nobody stores in the source.
        """
        if self.nest.pair:
            self._pairs_tile(tile, source, target, valid)
            return
        row_loop, column_loop = self.plan.rows.loops[0], self.plan.columns.loops[0]
        net, chunk = tile.network, tile.columns
        per = net.elements
        dense = self._follow(tile) and valid == tile.rows
        columns: list[list[Value]] = [[] for _ in range(chunk)]

        def register(first: int, number: int) -> Value:
            """The rows that lie side by side in a register, from row ``first`` of the tile on."""
            side_by_side = net.rows[number]
            if dense:
                return self.b.load(self.vector(per), source(first + len(side_by_side) * side_by_side[0]), 1)
            parts = []
            for row in side_by_side:
                if first + row >= valid:
                    kind = self.vector(chunk)
                    parts.append(poison(kind) if self.short else constant(kind, 0))
                    continue
                at = Place(source(first + row), NOWHERE, self.entries(tables, first + row, row_loop))
                if tile.used < chunk:
                    parts.append(self._wide_row(tile, at.src, first + row))
                else:
                    parts.append(self.tile_row(at, chunk))
            return join_lanes(self.b, parts)

        if self.short:
            self._store_short(tile, net.transposed(self.b, partial(register, 0)), target, valid)
            return
        if self.in_words(tile.rows, chunk) and tile.used == chunk and valid == tile.rows:
            self._words_tile(tile, source, target, tables)
            return
        for first in range(0, tile.rows, per):
            for c, made in self._turned(net, partial(register, first)):
                if dense:
                    columns[c] += self._in_turn(made, per // net.columns)
                    continue
                for k, part in enumerate(cut(self.b, made, per)):
                    column = k * net.columns + c
                    if not self.at_once:
                        columns[column].append(part)
                    elif tile.done <= column < tile.used:
                        entries = self.entries(tables, column, column_loop)
                        self._store_part(part, target(column), entries, first, valid)
        for c, column_parts in list(enumerate(columns))[tile.done : tile.used]:
            pointer, entries = target(c), self.entries(tables, c, column_loop)
            for k, part in enumerate(column_parts):
                self._store_part(part, pointer, entries, k * part.type.count, valid)
            self._claim(tile, pointer)

    def in_words(self, rows: int, columns: int) -> bool:
        """Whether words of bytes or of bf16 are turned over, and become floats one by one out of these.

        AVX2's instructions that make words of narrower elements take a lane apart into two, which costs two
        operations for each, and lanes have to be brought there first.
        """
        plan, what, nest = self.plan, self.what, self.nest
        if what is None or not plan.late or nest.fill or nest.pair or not self.machine.is_avx2:
            return False
        bits = nest.read == 8 and not what.src.is_float  # 8-bit floats become words by tables
        known = (bits or what.src == dtype("bf16")) and what.dst == dtype("f32")
        whole = columns * nest.read == LANE_BITS and rows % (8 * self.machine.vector // WORD_BITS) == 0
        return known and whole and not self.has_zeros

    def _words_tile(
        self,
        tile: Tile,
        source: Callable[[int], Value],
        target: Callable[[int], Value],
        tables: tuple[Value, ...],
    ) -> None:
        """Turn over a tile of bytes, or of bf16, that become f32.

        Four columns of bytes are a word. Words are turned over, eight rows by four of them, and each of their
        bytes is picked within its lane and is the word that becomes a float. Rows ``a`` to ``h``::

            a0 .. a3 a4 .. a15 | e0 .. e3 e4 .. e15    ->    a0-3 b0-3 c0-3 d0-3 | e0-3 f0-3 g0-3 h0-3
            b0 .. b3 b4 .. b15 | f0 .. f3 f4 .. f15          a0 b0 c0 d0 | e0 f0 g0 h0 and a1 .. to a3 ..

        Half a line of a column is stored with its other half, which leaves as a whole line around the caches.
        """
        b, what, bits = self.b, self.what, self.nest.read
        assert what is not None
        row_loop, column_loop = self.plan.rows.loops[0], self.plan.columns.loops[0]
        words, each, size = LANE_BITS // WORD_BITS, WORD_BITS // bits, 8 * self.machine.vector // bits
        net = Network(WORD_BITS, words, 2 * words)
        zeros, wide = constant(self.vector(size), 0), vector(net.elements, integer(WORD_BITS))
        top = each - 1 if what.src.is_signed and not what.src.is_float else 0  # where in a word it is put

        def load(first: int, number: int) -> Value:
            at = (first + row for row in net.rows[number])
            rows = (Place(source(row), NOWHERE, self.entries(tables, row, row_loop)) for row in at)
            return join_lanes(b, [self.tile_row(row, tile.columns) for row in rows])

        def put(column: int, first: int, registers: Sequence[Value]) -> None:
            """The elements of a column from row ``first`` on: one of each word of these registers."""
            pointer, entries = target(column), self.entries(tables, column, column_loop)
            picks = [size] * size
            picks[top::each] = range(column % each, size, each)
            for k, register in enumerate(registers):
                word = b.bitcast(b.shuffle(register, picks, zeros), wide)
                word = b.ashr(word, WORD_BITS - bits) if top else word
                self._store_part(word, pointer, entries, first + k * net.elements, tile.rows)
            if first + len(registers) * net.elements == tile.rows:
                self._claim(tile, pointer)

        together = min(tile.rows, LINE_BITS // WORD_BITS)
        for first in range(0, tile.rows, together):
            starts = range(first, first + together, net.elements)
            for found in zip(*(net.in_depth(b, partial(load, start)) for start in starts), strict=True):
                number = found[0][0]
                for column in range(max(number * each, tile.done), (number + 1) * each):
                    put(column, first, [register for _, register in found])

    @property
    def few(self) -> bool:
        """Whether registers are so few that the order of shuffles and stores matters."""
        return self.machine.registers < ENOUGH and not self.plan.narrow  # narrow ones are parts of wide ones

    @property
    def at_once(self) -> bool:
        """Whether a register of a column is stored as soon as it is there, and not with the rest of its line.

        Where registers are few, the columns of half a tile are all of them. Around the caches, lines leave as
        a whole.
        """
        return self.few and not self.stream

    def _turned(self, net: Network, load: Callable[[int], Value]) -> Iterable[tuple[int, Value]]:
        """The columns of a tile with their numbers, in an order for the registers that there are."""
        if self.few:
            return net.in_depth(self.b, load)
        return enumerate(net.transposed(self.b, load))

    def _follow(self, tile: Tile) -> bool:
        """Whether rows follow each other in the source, a lane each, so that registers are loaded whole.

        Lane ``l`` of register ``p`` is row ``lanes * p + l`` then, and so is the p-th element of that lane in
        a column, which one permutation puts in order::

            0 4 8 .. | 1 5 9 .. | 2 6 10 .. | 3 7 11 ..   ->   0 1 2 3 | 4 5 6 7 | ..

        To put lanes together takes three insertions for a register.
        """
        plan, net = self.plan, tile.network
        plain = plan.kind != "staged" and (self.what is None or plan.late) and not self.nest.pair
        lane = net.columns * self.nest.read == LANE_BITS == plan.mid * net.columns
        whole = tile.columns == tile.used == net.columns and net.elements > net.columns
        follow = plan.rows.is_straight and plan.rows.loop.src == LANE_BITS
        return plain and lane and whole and follow and self.machine.permutes(plan.mid)

    def _in_turn(self, column: Value, lanes: int) -> list[Value]:
        """A column whose lanes take turns, in order.

        Bytes that become floats become words by the same permutation, as many as a line of floats takes.
        """
        b, count = self.b, column.type.count
        picks = [k % lanes * (count // lanes) + k // lanes for k in range(count)]
        what, words = self.what, 8 * count // WORD_BITS
        if what is None or column.type.bits != 8 or not what.dst.is_float:
            return [b.shuffle(column, picks)]
        zeros, signed, parts = constant(column.type, 0), what.src.is_signed, []
        for first in range(0, count, words):
            wide = [count] * count
            wide[3 if signed else 0 :: WORD_BITS // 8] = picks[first : first + words]
            word = b.bitcast(b.shuffle(column, wide, zeros), vector(words, integer(WORD_BITS)))
            parts.append(b.ashr(word, WORD_BITS - 8) if signed else word)
        some = max(1, min(LINE_BITS // self.nest.write, count) // words)
        return [join(b, parts[k : k + some]) for k in range(0, len(parts), some)]

    def _claim(self, tile: Tile, pointer: Value) -> None:
        """Ask for the lines of a column that are written next: below these, or in the strip beside them."""
        if not self.claims:
            return
        size = tile.rows * self.nest.write // 8
        ahead = size if self.deep else tile.columns * self.plan.columns.loop.dst // 8
        for at in range(0, size, LINE):
            self.claim(self.b.gep(pointer, ahead + at))

    def _pairs_tile(
        self, tile: Tile, source: Callable[[int], Value], target: Callable[[int], Value], valid: int
    ) -> None:
        """Turn over a tile of 4-bit elements, two to a byte.

        Two rows become bytes of two elements each: those of even columns, and those of odd ones. The bytes of
        either are transposed.
        """
        b, net, chunk = self.b, tile.network, tile.columns

        def row(k: int) -> Value:
            if k < valid:
                return self.tile_row(Place(source(k), NOWHERE), chunk)
            return constant(self.vector(chunk), 0)

        def rows(first: int, number: int) -> list[Value]:
            """Registers of even rows and of the odd rows behind them."""
            pairs = net.rows[number]
            return [join_lanes(b, [row(2 * (first + k) + odd) for k in pairs]) for odd in (0, 1)]

        def half(first: int, odd: int, number: int) -> Value:
            """The even or the odd columns of a register."""
            one, two = rows(first, number)
            if odd:
                return b.or_(b.lshr(one, 4), b.and_(two, 240))
            return b.or_(b.and_(one, 15), b.shl(two, 4))

        for first in range(0, tile.rows // 2, net.elements):
            registers: tuple[list[Value], list[Value]] = [], []
            for number in () if self.few else range(net.columns):
                one, two = rows(first, number)
                low, up, down, high = b.and_(one, 15), b.shl(two, 4), b.lshr(one, 4), b.and_(two, 240)
                registers[0].append(b.or_(low, up))
                registers[1].append(b.or_(down, high))
            for odd, made in enumerate(registers):  # where they are few, rows are loaded again for the other
                load = partial(half, first, odd) if self.few else made.__getitem__
                for c, column in self._turned(net, load):
                    pointer = b.gep(b.gep(target(c), odd * self.nest.pair // 8), first)
                    self.store_raw(column, pointer)

    def _runs_on(self, tile: Tile, column: int) -> bool:
        """Whether the next column of a tile begins where this one ends, and so hides what is behind it."""
        run, row = self.plan.columns, self.plan.total * self.nest.write
        if column + 1 >= tile.used or run.is_straight:
            return column + 1 < tile.used and run.loop.dst == row
        at, step = run.places("dst"), tile.columns
        return len(at) % step == 0 and all(
            b - a == row for a, b in zip(at[column::step], at[column + 1 :: step], strict=True)
        )

    def _store_short(
        self, tile: Tile, columns: list[Value], target: Callable[[int], Value], valid: int
    ) -> None:
        """Store the first elements of the lanes of all columns, and behind them nothing that stays.

        What is too much is hidden by the next column. Where that is elsewhere, the column begins with the end
        of the one before it, if that is its neighbour; or else it is stored as two pieces, which may overlap.
        """
        b, net, size = self.b, tile.network, self.main.rows
        half, rest = size // 2, valid - size // 2
        last = half if rest & (rest - 1) else rest
        ending: dict[int, Value] = {}
        for column in range(tile.done, tile.used):
            k, c = divmod(column, net.columns)
            pointer = target(column)

            def lane(x: Value, k: int = k) -> Value:
                return cut(b, x, size)[k]

            if self._runs_on(tile, column):
                self.put(lane(columns[c]), pointer)
                continue
            self.claim(b.gep(pointer, CLAIMED_BYTES))
            if c and self._runs_on(tile, column - 1):
                if c not in ending:
                    ending[c] = self._ending(columns[c - 1], columns[c], valid)
                self.put(lane(ending[c]), self.step(pointer, valid - size, self.nest.write))
            else:
                for at, count in ((0, half), (valid - last, last)):
                    some = b.shuffle(lane(columns[c]), range(at, at + count))
                    self.put(some, self.step(pointer, at, self.nest.write))

    def _ending(self, one: Value, two: Value, valid: int) -> Value:
        """The last elements of a column, then all of the next one, in every lane."""
        size, count = self.main.rows, one.type.count
        picks = [
            lane + valid + k - (size - valid) if k < size - valid else count + lane + k - (size - valid)
            for lane in range(0, count, size)
            for k in range(size)
        ]
        return self.b.shuffle(one, picks, two)

    def _wide_row(self, tile: Tile, pointer: Value, row: int) -> Value:
        """A short row of a tile, and what follows it, or whatever else: see :meth:`_spans`."""
        b, bits, places = self.b, self.nest.read, self._places(min(tile.rows, self.plan.total))
        more = tile.columns - tile.used
        kind = self.vector(tile.columns)
        if places[row] + tile.columns * bits <= max(places) + tile.used * bits:
            return b.load(kind, pointer, 1)
        before = b.load(kind, b.gep(pointer, -more * bits // 8), 1)
        return b.shuffle(before, [*range(more, tile.columns), *[-1] * more])

    def tile_row(self, place: Place, columns: int) -> Value:
        """The columns of a tile in one of its rows."""
        return self.load(place, columns, self.lanes(self.plan.columns.loops[0], columns))

    def _store_part(
        self, part: Value, pointer: Value, tables: tuple[Value, ...], first: int, valid: int
    ) -> None:
        """A vector of a column; zeros that follow the data are zeros after conversion, too."""
        nest, b, per = self.nest, self.b, part.type.count
        row_loop = self.plan.rows.loops[0]
        place = Place(NOWHERE, self.step(pointer, first, nest.write), self.entries(tables, first, row_loop))
        if first >= valid:  # there are no operands for it, either
            part = constant(self.vector(per, max(8, nest.write)), 0)
        elif self.what is not None and self.plan.late:
            part = self.value(part, place, self.lanes(row_loop, per))
            if first + per > valid:
                part = b.shuffle(part, [*range(valid - first), *([per] * (first + per - valid))], 0)
        self.put(part, place.dst)


@writes(StagedPlan)
class Staged(Transpose):
    """The same, with the source copied to a small buffer first, some lines of each of some rows at a time.

    Where values become narrower, that is where they are converted: whole vectors, in a loop. Otherwise the
    buffer holds lines of the source as they are.
    """

    @property
    def converts(self) -> bool:
        """Whether elements are converted on their way into the buffer."""
        return self.what is not None and not self.plan.late

    @property
    def widest(self) -> int:
        """The columns of a line of the buffer."""
        line = LINE_BITS // (self.plan.mid if self.converts else self.nest.read)
        while line > self.plan.columns.extent:
            line //= 2
        return line * self.lines

    @property
    def lines(self) -> int:
        """Lines of a row that are fetched together: where rows are far apart, memory likes longer pieces.

        They divide the columns that are worked on at a time. Only the end of all columns may be stepped back
        from, and nothing may be where old values are added.
        """
        plan = self.plan
        if self.converts:
            return 1
        shared = plan.columns.loops[-1] is plan.shared
        together = math.gcd(plan.unit if shared else plan.columns.extent, plan.bounced)
        adds = self.what is not None and self.what.accumulates
        free = not (shared or plan.bounced or adds)
        line = LINE_BITS // self.nest.read
        most = self.machine.l1 // STAGES // (LINE * min(plan.block, plan.total))
        fitting = (n for n in (4, 3, 2) if together % (n * line) == 0 or (free and together >= 4 * n * line))
        return next((n for n in fitting if n <= most), 1)

    def prepare(self) -> None:
        """Make the buffer."""
        super().prepare()
        rows, whole = self.main.rows, self.plan.total // self.main.rows * self.main.rows
        self.ends = self._ends(whole)
        self.most = self.plan.total if self.ends else min(max(self.plan.block, rows), whole)
        self.pitch = LINE * self.lines
        self.stage = self.b.alloca(self.most * self.pitch, LINE)

    def plane(self, place: Place) -> None:
        """All rows and columns, in blocks of rows."""
        rows, total, most = self.main.rows, self.plan.total, self.most
        whole, rest = total // most * most, total // rows * rows
        if self.ends:
            self._block(place, self.main, 0, rest, self.ends)
            return
        block = partial(self._block, place, self.main)
        self.over_rows(whole, lambda a, b: self.b.loop(a, b, most, lambda o: block(o, most)))
        self.at_the_end(lambda: self._last_rows(place, whole, rest))

    def _last_rows(self, place: Place, whole: int, rest: int) -> None:
        """What is left of the last block, and of the last tile."""
        if whole < rest:
            self._block(place, self.main, whole, rest - whole)
        self.unstreamed(
            lambda: self.left_over(rest, lambda tile, row: self._block(place, tile, row, tile.rows))
        )

    def _block(
        self, place: Place, tile: Tile, row: Operand, count: int, ends: Sequence[tuple[Tile, int]] = ()
    ) -> None:
        """Some rows: a line of each at a time is fetched, then transposed from the buffer.

        ``ends`` are the tiles of the rows behind them, which are fetched together with these.
        """
        b, run = self.b, self.plan.columns
        row_loop, line = self.plan.rows.loop, self.widest
        block = self.moved(place, row, row_loop.stepping(dst=self.nest.write))

        def chunk(i: Operand, done: int) -> None:
            at = self.moved(block, i, run.loops[0]) if run.is_straight else self._further(block, i)
            self._fetched(at, 0, count)
            if ends:
                self._fetched(at, count, self.most)
            b.loop(done // tile.columns * tile.columns, line, tile.columns, lambda u: strip(at, i, u))

        def strip(at: Place, i: Operand, u: Value) -> None:
            b.loop(0, count, tile.rows, lambda r: turned(tile, at, i, u, r))
            self.unstreamed(lambda: end(at, i, u))

        def end(at: Place, i: Operand, u: Value) -> None:
            for last, r in ends:
                for k in range(0, tile.columns, last.columns):
                    turned(last, at, i, b.add(u, k), r)

        def turned(tile: Tile, at: Place, i: Operand, u: Value, r: Operand) -> None:
            src = self.step(b.gep(self.stage, r, self.pitch), u, self._kept)
            at = self.moved(at, r, row_loop.stepping(src=0, dst=self.nest.write))
            column = i
            if run.is_straight:
                at = self.moved(at, u, run.loop.stepping(src=0))
            else:
                column = b.add(i, u)
            at = at._replace(src=src)
            if tile.rows > INLINE:
                self.call(
                    f"tile{tile.rows}", at, (column,), lambda to, *given: self._kept_tile(tile, to, *given)
                )
            else:
                self._kept_tile(tile, at, column)

        self.columns(line, chunk)

    def _kept_tile(self, tile: Tile, place: Place, column: Operand) -> None:
        """A tile whose rows are lines of the buffer."""
        targets = self._targets(place.dst, column)
        self.tile(tile, lambda k: self.b.gep(place.src, k * self.pitch), targets, place.tables, tile.rows)

    @property
    def _kept(self) -> int:
        """Bits of an element in the buffer."""
        return self.plan.mid if self.converts else self.nest.read

    def _further(self, place: Place, column: Operand) -> Place:
        """The place at a column of a joined run: the source only, for targets are listed."""
        return place._replace(src=self.step(place.src, column, self.nest.read))

    def _fetched(self, place: Place, start: int, stop: int) -> None:
        """Fill the buffer: a line of each of some rows."""
        b, line = self.b, self.widest
        row_loop, column_loop = self.plan.rows.loop.stepping(dst=0), self.plan.columns.loops[0]
        together = 1 if self.converts else next(k for k in (8 // self.lines, 2, 1) if (stop - start) % k == 0)
        size = line * self.nest.read // 8
        piece = min(size, LINE)
        lanes = self.lanes(column_loop, line)

        def fetch(r: Value) -> None:
            first, buffer = self.moved(place, r, row_loop), b.gep(self.stage, r, self.pitch)
            for k in range(together):
                at, to = self.moved(first, k, row_loop), b.gep(buffer, k * self.pitch)
                if self.converts:
                    b.store(self.load(at, line, lanes), to, LINE)
                else:
                    for part in range(0, size, piece):
                        x = b.load(vector(piece, I8), b.gep(at.src, part))
                        b.store(x, b.gep(to, part), piece)
                if self.ahead:
                    for ahead in range(size, 2 * size, LINE):
                        self.prefetch(at.src, max(ahead, PREFETCH_BYTES))

        b.loop(start, stop, together, fetch)

    def tile_row(self, place: Place, columns: int) -> Value:
        """A row of a tile, from the buffer."""
        if not self.converts:
            return super().tile_row(place, columns)
        return self.b.load(self.vector(columns), place.src, 1)
