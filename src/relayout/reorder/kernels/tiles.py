"""Transposition: tiles that are turned over in registers, read in place or through a stage."""

from __future__ import annotations

from collections.abc import Callable

from relayout.codegen.ir import Writer
from relayout.codegen.machine import LINE
from relayout.reorder.kernels.base import Kernel, Place
from relayout.reorder.kernels.choice import BLOCK, LANE, LINE_BITS, Run
from relayout.reorder.kernels.network import Network
from relayout.reorder.problem import BitLoop

__all__ = ["Staged", "Transpose"]

FAR = 512  # bytes between rows from which on the processor's own prefetching does not see them as one stream
ASKED = 8  # rows that are asked for in one turn
INLINE = 16  # rows of a tile that is written out wherever it is used; larger ones are called


class Transpose(Kernel):
    """Strips of one lane of columns, a tile after the other down the rows."""

    @property
    def widest(self) -> int:
        """Columns that may be turned over at a time."""
        return LANE

    def prepare(self) -> None:
        """Choose the tile, and write down the places of runs that are joined."""
        plan = self.plan
        rows = LINE_BITS // plan.mid
        while rows > plan.total:
            rows //= 2
        lane = min(LANE // plan.mid, self.widest)
        while lane > min(plan.columns.extent, max(rows, 1)):
            lane //= 2
        self.tile_rows, self.lane = rows, lane
        self.network = Network(plan.mid, lane, min(8 * self.machine.vector // plan.mid, rows))
        self.sources = self._table("rows", plan.rows, "src")
        self.targets = self._table("columns", plan.columns, "dst")
        far = abs(plan.rows.loops[0].src) >= 8 * FAR
        self.ahead = far and self.nest.bytes > self.machine.l2

    def _table(self, stem: str, run: Run, side: str) -> str:
        """A constant with the places of a run that has no stride on the other side; "" where it has one."""
        if run.is_straight:
            return ""
        name = f"@{self.name}_{stem}"
        places = [place // 8 for place in run.places(side)]
        text = ", ".join(f"i64 {place}" for place in places)
        self.routines.append(f"{name} = internal constant [{len(places)} x i64] [{text}], align 64\n")
        return name

    # -- loops over tiles -----------------------------------------------------------------------------------

    def body(self, place: Place) -> None:
        """The whole plane, or the rows of the block that is worked on."""
        plan = self.plan
        rows, total = self.tile_rows, plan.total
        whole = total // rows * rows
        if plan.blocked is not None:
            self._sweep(place, *self.span)
            return
        if whole <= BLOCK or self.nest.fill:
            self._sweep(place, 0, whole)
        else:
            self.each_block(0, whole, max(BLOCK, rows), lambda: self._sweep(place, *self.span))
        if whole < total:
            self.unstreamed(lambda: self._sweep(place, total - rows, total))

    def blocks(self, loop: BitLoop, place: Place) -> None:
        """Blocks of rows around all other loops; the last rows overlap."""
        rows = self.tile_rows
        whole = self.plan.total // rows * rows
        self.each_block(0, whole, max(BLOCK, rows), lambda: self.loops(self.plan.around, place))
        if whole != loop.extent:
            self.span = loop.extent - rows, loop.extent
            self.unstreamed(lambda: self.loops(self.plan.around, place))

    def _sweep(self, place: Place, first: str | int, last: str | int) -> None:
        """All columns of some rows."""
        self.columns(self.lane, lambda i: self._strip(place, i, first, last))

    def columns(self, step: int, body: Callable[[str], None]) -> None:
        """Over all columns in steps; the last step ends with the last column."""
        run, w = self.plan.columns, self.w
        if run.is_straight and run.loop is self.plan.shared:
            w.loop("%lo", "%hi", step, body)
            return
        whole = run.extent // step * step
        if whole:
            w.loop(0, whole, step, body)
        if whole < run.extent:
            body(str(run.extent - step))

    def _strip(self, place: Place, column: str, first: str | int, last: str | int) -> None:
        """The tiles below each other in one lane of columns."""
        fixed = isinstance(first, int) and isinstance(last, int)
        if self.nest.fill and fixed:
            for row in range(int(first), int(last), self.tile_rows):  # each tile has zeros of its own
                valid = max(0, min(self.tile_rows, self.plan.rows.extent - row))
                self._placed_tile(place, column, str(row), valid)
            return
        if self.ahead:
            self._ask(place, column, first, last)
        if self.tile_rows <= INLINE:
            self._tiles(place, column, first, last)
        else:
            self._called(place, column, first, last)

    def _ask(self, place: Place, column: str, first: str | int, last: str | int) -> None:
        """Prefetch the rows of a strip, a line of each, when the strip begins a line."""
        w, rows = self.w, min(self.tile_rows, ASKED)
        line = LINE_BITS // self.nest.read
        src = self.step(place.src, column, self.nest.read)

        def some(row: str) -> None:
            source = self._sources(src, row)
            for k in range(rows):
                self.prefetch(source(k))

        if column.isdigit():  # the overlapping end; its lines have been asked for
            return
        begins = w.value(f"icmp eq i64 {w.value(f'and i64 {column}, {line - 1}')}, 0")
        w.when(begins, lambda: w.loop(first, last, rows, some))

    def _tiles(self, place: Place, column: str, first: str | int, last: str | int) -> None:
        rows = self.tile_rows
        self.w.loop(first, last, rows, lambda row: self._placed_tile(place, column, row, rows))

    def _called(self, place: Place, column: str, first: str | int, last: str | int) -> None:
        """The same as a function of its own: large tiles are compiled once, not for every tail again."""
        name = f"@{self.name}_{'stream' if self.stream else 'strip'}"
        numbers = list(self._numbers.items())
        outside = [
            *(f"ptr {pointer}" for pointer in (place.src, place.dst, *place.tables)),
            *(f"{self.kind} {value}" for _, value in numbers),
            *(f"i64 {value}" for value in (column, first, last)),
        ]
        if not any(f"void {name}(" in text for text in self.routines):
            kept, self.w = self.w, Writer()
            known, self._numbers = self._numbers, {key: f"%n{k}" for k, (key, _) in enumerate(numbers)}
            pointers = ["%s", "%d", *(f"%t{k}" for k in range(len(place.tables)))]
            self._tiles(Place(pointers[0], pointers[1], tuple(pointers[2:])), "%column", "%first", "%last")
            inside = [
                "ptr noalias %s",
                "ptr noalias %d",
                *(f"ptr {pointer}" for pointer in pointers[2:]),
                *(f"{self.kind} %n{k}" for k in range(len(numbers))),
                *(f"i64 %{word}" for word in ("column", "first", "last")),
            ]
            text = self.w.text()
            self.routines.append(
                f"define internal void {name}({', '.join(inside)}) {{\nentry:\n{text}\n  ret void\n}}\n"
            )
            self.w, self._numbers = kept, known
        self.w.line(f"call void {name}({', '.join(outside)})")

    # -- one tile -------------------------------------------------------------------------------------------

    def _placed_tile(self, place: Place, column: str, row: str, valid: int) -> None:
        """The tile at a column and a row: addresses of its rows in the source and its columns in the destination."""
        nest, w = self.nest, self.w
        rows, columns = self.plan.rows, self.plan.columns
        src = self.step(place.src, column, nest.read)
        dst = self.step(place.dst, row, nest.write)
        tables = place.tables
        if columns.is_straight:
            dst, tables = self.step(dst, column, columns.loop.dst), self.entries(tables, column, columns.loop)
        if rows.is_straight:
            tables = self.entries(tables, row, rows.loop)
        source = self._sources(src, row)

        def target(k: int) -> str:
            if columns.is_straight:
                return self.step(dst, k, columns.loop.dst)
            return w.at(dst, self._listed(self.targets, column, k))

        self.tile(source, target, tables, valid)

    def _sources(self, src: str, row: str) -> Callable[[int], str]:
        """Where rows begin, counted from one."""
        rows, w = self.plan.rows, self.w
        if rows.is_straight:
            first = self.step(src, row, rows.loop.src)
            return lambda k: self.step(first, k, rows.loop.src)
        return lambda k: w.at(src, self._listed(self.sources, row, k))

    def _listed(self, table: str, base: str, k: int) -> str:
        """An entry of a table of places."""
        w = self.w
        entry = w.at(w.at(table, w.times(int(base) if base.isdigit() else base, 8)), 8 * k)
        return w.value(f"load i64, ptr {entry}, align 8")

    def tile(
        self,
        source: Callable[[int], str],
        target: Callable[[int], str],
        tables: tuple[str, ...],
        valid: int,
    ) -> None:
        """Turn over a tile.

        Rows from ``valid`` on are zeros that nobody stores in the source.
        """
        plan, rows = self.plan, self.tile_rows
        row_loop, column_loop = plan.rows.loops[0], plan.columns.loops[0]
        net, chunk = self.network, self.lane
        per = net.elements
        columns: list[list[str]] = [[] for _ in range(chunk)]
        for first in range(0, rows, per):
            registers = []
            for register in net.rows:
                parts = []
                for row in register:
                    if first + row >= valid:
                        parts.append("zeroinitializer")
                        continue
                    pointer = source(first + row)
                    at = Place(pointer, "", self.entries(tables, first + row, row_loop))
                    parts.append(self.load(at, chunk, self.lanes(column_loop, chunk)))
                registers.append(self._side_by_side(parts, chunk))
            for c, column in enumerate(net.transposed(self.w, registers)):
                columns[c].append(column)
        for c, column_parts in enumerate(columns):
            pointer, entries = target(c), self.entries(tables, c, column_loop)
            for k, part in enumerate(column_parts):
                self._store_part(part, pointer, entries, k * per, per, valid)

    def _store_part(
        self, part: str, pointer: str, tables: tuple[str, ...], first: int, per: int, valid: int
    ) -> None:
        """A vector of a column; zeros that follow the data are zeros after conversion, too."""
        nest, w = self.nest, self.w
        row_loop = self.plan.rows.loops[0]
        place = Place("", self.step(pointer, first, nest.write), self.entries(tables, first, row_loop))
        bits = max(8, nest.write)
        if self.what is not None and self.plan.late:
            part = self._value(part, place, per, self.lanes(row_loop, per))
            if first + per > valid:
                there = min(max(valid - first, 0), per)
                picks = [*range(there), *([per] * (per - there))]
                part = w.shuffle(part, "zeroinitializer", self.vector(per, bits), picks)
        self.store_raw(part, place.dst, per, nest.write)

    def _side_by_side(self, parts: list[str], count: int) -> str:
        """Lanes side by side in one register."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.w.shuffle(a, b, self.vector(count), range(2 * count)) for a, b in pairs]
            count *= 2
        return parts[0]


class Staged(Transpose):
    """The same, with lines of the source gathered in a small buffer first."""

    @property
    def widest(self) -> int:
        """The columns of a line."""
        return LINE_BITS // self.nest.read

    def prepare(self) -> None:
        """Make the buffer."""
        super().prepare()
        self.most = min(max(BLOCK, self.tile_rows), self.plan.total // self.tile_rows * self.tile_rows)
        self.stage = self.w.value(f"alloca [{self.most * LINE} x i8], align {LINE}")

    def body(self, place: Place) -> None:
        """The plane, in blocks of rows."""
        rows, total, most = self.tile_rows, self.plan.total, self.most
        whole, rest = total // most * most, total // rows * rows
        self.w.loop(0, whole, most, lambda o: self._block(place, o, most))
        if whole < rest:
            self._block(place, str(whole), rest - whole)
        if rest < total:
            self.unstreamed(lambda: self._block(place, str(total - rows), rows))

    def _block(self, place: Place, row: str, count: int) -> None:
        """Some rows: a line of each at a time is fetched, then turned over from the buffer."""
        w, plan, nest = self.w, self.plan, self.nest
        line, kind = LINE_BITS // nest.read, f"<{LINE} x i8>"
        row_loop = plan.rows.loop
        together = next(k for k in (8, 4, 2, 1) if count % k == 0)
        block = self.moved(place._replace(dst=self.step(place.dst, row, nest.write)), row, row_loop._replace(dst=0))

        def chunk(i: str) -> None:
            def fetch(r: str) -> None:
                first = self.step(self.step(block.src, i, nest.read), r, row_loop.src)
                buffer = w.at(self.stage, w.times(r, LINE))
                for k in range(together):
                    pointer = self.step(first, k, row_loop.src)
                    value = w.value(f"load {kind}, ptr {pointer}, align 1")
                    w.line(f"store {kind} {value}, ptr {w.at(buffer, k * LINE)}, align {LINE}")
                    if self.ahead:
                        self.prefetch(pointer)

            w.loop(0, count, together, fetch)
            w.loop(0, line, self.lane, lambda u: w.loop(0, count, self.tile_rows, lambda r: tile(i, u, r)))

        def tile(i: str, u: str, r: str) -> None:
            run = plan.columns
            src = self.step(w.at(self.stage, w.times(r, LINE)), u, nest.read)
            dst = self.step(block.dst, r, nest.write)
            tables = self.entries(block.tables, r, row_loop)
            if run.is_straight:
                for index in (i, u):
                    dst, tables = self.step(dst, index, run.loop.dst), self.entries(tables, index, run.loop)
            column = i if run.is_straight else w.value(f"add i64 {i}, {u}")

            def target(k: int) -> str:
                if run.is_straight:
                    return self.step(dst, k, run.loop.dst)
                return w.at(dst, self._listed(self.targets, column, k))

            self.tile(lambda k: w.at(src, k * LINE), target, tables, self.tile_rows)

        self.columns(line, chunk)
