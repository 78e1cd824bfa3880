"""Kernels that move elements without looking at them: one nest of loops, written as LLVM IR.

Which kernel a nest gets depends on where it is contiguous. Call the loop that walks through neighbouring
bytes of the source I, and that of the destination O.

``rows``
    I is O: whole runs are copied in the widest vectors; zeros likewise.
``lines``
    The same for short rows that neighbour each other in the destination only: they are put together to whole
    lines before they are stored.
``transpose``
    I is not O. A tile of one cache line of the destination by 16 bytes of the source is turned over in
    registers::

        rows of the source, 16 bytes each          columns, one cache line each
        r0: a0 a1 a2 a3                            a0 b0 c0 d0 ...
        r1: b0 b1 b2 b3     -> butterflies ->      a1 b1 c1 d1 ...
        r2: c0 c1 c2 c3                            a2 b2 c2 d2 ...
        r3: d0 d1 d2 d3                            a3 b3 c3 d3 ...

    Each 128-bit lane of a register takes one row, so that all shuffles stay within lanes (cheap on every
    processor), and a line of the destination is completed in one go, which streaming stores need.
``staged``
    The same, but lines of the source are first gathered in a buffer of a few KiB. Where source rows lie a
    multiple of the page size apart they all fall into the same few sets of the first cache, and would push
    each other out before they are used up.
``deinterleave``
    I is short and O continues it: pixels of 2 to 8 channels. Vectors are loaded whole, and elements picked
    by shuffles.
``interleave``
    The reverse: planes to pixels.
``elements``
    All else, an element at a time.

Tails are done by stepping back: the last tile overlaps the one before it and writes the same values again.
Nothing outside of the two tensors is read or written, ever.

Every kernel is ``void name(ptr source, ptr destination, i64 from, i64 to)``; the range is that of the loop
that threads share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from relayout.codegen.ir import Writer
from relayout.codegen.machine import LINE, Machine
from relayout.reorder.problem import ByteLoop, Nest

__all__ = ["Plan", "emit", "module", "plan"]

LANE = 16  # bytes of a 128-bit lane
BLOCK = 64  # rows of the destination's line direction that are worked on together
AHEAD = 128  # bytes ahead of the source that are prefetched, into the second cache
FAR = 512  # bytes between rows from which on the processor's own prefetching does not see them as one stream
ROWS = 32  # short rows that are worked through together
SHORT_ROW = 256  # bytes of a row that is short
SHORT = 8  # the longest loop that interleaving takes
PAGE = 2048  # source rows a multiple of this apart collide in the first cache
FOOTER = """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
!0 = !{i32 1}
"""


@dataclass(frozen=True)
class Plan:
    """How a nest is moved: the kernel, its loops, and the loop that threads share."""

    nest: Nest
    kind: str
    inner: ByteLoop | None
    """I: contiguous in the source."""
    outer: ByteLoop | None
    """O: contiguous in the destination (for ``rows`` the same as I)."""
    around: tuple[ByteLoop, ...]
    """The loops around, outermost first."""
    shared: ByteLoop | None
    """The loop that threads share: one of ``around``, or I of a transpose; None: too small to share."""
    unit: int
    """Where the shared loop may be cut: at multiples of this."""
    blocked: ByteLoop | None = None
    """The loop that is worked through in blocks, around all others; None: no need."""

    @property
    def extent(self) -> int:
        """Turns of the shared loop."""
        return self.shared.extent if self.shared is not None else 1

    def streams(self, machine: Machine) -> bool:
        """Whether the kernel completes whole lines of the destination, if that begins on a line."""
        nest = self.nest
        if nest.dst % LINE or any(loop.dst % LINE for loop in self.around):
            return False
        if self.kind == "lines":
            return True
        if self.kind == "rows":
            return self.outer is not None and self.outer.extent * nest.width >= LINE
        if self.kind in ("transpose", "staged"):
            total = _total(self)
            return total * nest.width >= LINE and self.inner is not None and self.inner.dst % LINE == 0
        if self.kind == "deinterleave":
            return machine.vector == LINE and self.inner is not None and self.inner.dst % LINE == 0
        return self.kind == "interleave" and machine.vector == LINE


def plan(nest: Nest) -> Plan:
    """Choose the kernel of a nest."""
    inner = next((loop for loop in nest.loops if loop.src == nest.width and not nest.zero), None)
    outer = next((loop for loop in nest.loops if loop.dst == nest.width), None)
    kind = _kind(nest, inner, outer)
    taken = () if kind == "elements" else (outer,) if kind == "rows" else (inner, outer)
    around = tuple(loop for loop in nest.loops if not any(loop is t for t in taken))
    shared = max(around, key=lambda loop: loop.extent, default=None)
    made = Plan(nest, kind, inner, outer, around, shared, 1)
    if kind == "rows" and outer is not None and not nest.zero and outer.extent * nest.width <= SHORT_ROW:
        return _short_rows(made, outer.extent * nest.width)
    if kind in ("transpose", "staged") and inner is not None and outer is not None:
        columns = LINE // nest.width
        if (
            (shared is None or shared.extent < 8)
            and inner.extent >= 4 * columns
            and inner.extent % columns == 0
        ):
            return replace(made, shared=inner, unit=columns)
        smaller = any(abs(loop.src) < abs(outer.src) for loop in around)
        if kind == "transpose" and smaller and not nest.fill and outer.extent >= 2 * BLOCK:
            return replace(made, blocked=outer)  # whole source rows are used up, block by block
    return made


def _kind(nest: Nest, inner: ByteLoop | None, outer: ByteLoop | None) -> str:
    if nest.zero:
        return "rows" if outer is not None else "elements"
    if inner is None or outer is None:
        return "elements"
    if inner is outer:
        return "elements" if nest.fill else "rows"
    line = LINE // nest.width
    if not nest.fill:
        if inner.extent <= SHORT and outer.src == inner.extent * nest.width and outer.extent >= line:
            return "deinterleave"
        if outer.extent <= SHORT and inner.dst == outer.extent * nest.width and inner.extent >= line:
            return "interleave"
    if min(outer.extent + nest.fill, inner.extent) < 2:
        return "elements"
    collide = outer.src % PAGE == 0 and outer.extent >= 16 and inner.extent >= line and not nest.fill
    return "staged" if collide else "transpose"


def _short_rows(made: Plan, row: int) -> Plan:
    """Go through short rows in blocks where they neighbour each other in the destination only.

    Lines are then still in the cache when their other parts are wanted.
    """
    blocked = next(
        (loop for loop in made.around if loop.dst == row and loop.src > row and loop.extent > ROWS), None
    )
    if blocked is None or not any(loop.src < blocked.src for loop in made.around):
        return made
    around = tuple(loop for loop in made.around if loop is not blocked)
    shared, unit = max(around, key=lambda loop: loop.extent), 1
    if shared.extent < max(8, blocked.extent // 64):
        shared, unit = blocked, ROWS
    kind = "lines" if row in (8, 16, 32) else "rows"
    return replace(made, kind=kind, around=around, shared=shared, unit=unit, blocked=blocked)


def _total(plan: Plan) -> int:
    return (plan.outer.extent if plan.outer is not None else 1) + plan.nest.fill


def emit(plan: Plan, name: str, machine: Machine, streaming: bool) -> str:
    """The IR of one kernel (a function; :data:`FOOTER` goes once behind all of a module)."""
    return _Kernel(plan, machine, streaming).function(name)


def module(wanted: Mapping[str, tuple[Plan, bool]], machine: Machine) -> str:
    """A module of kernels: for each name a plan, and whether it streams."""
    return "\n".join(emit(plan, name, machine, streams) for name, (plan, streams) in wanted.items()) + FOOTER


class _Kernel:
    """The lines of one kernel; a method for each kind."""

    def __init__(self, plan: Plan, machine: Machine, streaming: bool) -> None:
        self.plan, self.machine = plan, machine
        self.stream = streaming
        self.width = plan.nest.width
        self.w = Writer()
        self.stage = ""  # the buffer of ``staged``
        self.span: tuple[str | int, str | int] = (0, 0)  # the part of the blocked loop that is worked on

    def function(self, name: str) -> str:
        plan, w = self.plan, self.w
        nest = plan.nest
        source, target = w.at("%src", nest.src), w.at("%dst", nest.dst)
        if plan.kind == "staged":
            self.stage = w.value(f"alloca [{self._stage_rows() * LINE} x i8], align {LINE}")
        if plan.blocked is not None:
            self._blocks(plan.blocked, source, target)
        else:
            self._loops(plan.around, source, target)
        head = f"define void @{name}(ptr noalias %src, ptr noalias %dst, i64 %lo, i64 %hi) {{"
        return f"{head}\nentry:\n{w.text()}\n  ret void\n}}\n"

    def _blocks(self, loop: ByteLoop, s: str, d: str) -> None:
        """All other loops for one block of a loop, then for the next."""
        w, plan = self.w, self.plan
        first, last = ("%lo", "%hi") if loop is plan.shared else (0, loop.extent)
        step, left = ROWS, plan.around if plan.kind == "lines" else (*plan.around, loop)
        if plan.kind == "transpose":
            _, _, rows, total = self._parts()
            step, left, last = max(BLOCK, rows), plan.around, total // rows * rows

        def block(start: str) -> None:
            end = w.value(f"add i64 {start}, {step}")
            within = w.value(f"icmp slt i64 {end}, {last}")
            self.span = start, w.value(f"select i1 {within}, i64 {end}, i64 {last}")
            self._loops(left, s, d)

        w.loop(first, last, step, block)
        if plan.kind == "transpose" and last != loop.extent:  # the last rows again, overlapping
            self.span = loop.extent - rows, loop.extent
            self._unstreamed(lambda: self._loops(left, s, d))

    def _loops(self, left: tuple[ByteLoop, ...], s: str, d: str) -> None:
        if not left:
            getattr(self, "_" + self.plan.kind)(s, d)
            return
        loop, w = left[0], self.w

        def turn(i: str) -> None:
            self._loops(left[1:], self._moved(s, i, loop.src), self._moved(d, i, loop.dst))

        if loop is self.plan.blocked:
            w.loop(*self.span, 1, turn)
        elif loop is self.plan.shared:
            w.loop("%lo", "%hi", 1, turn)
        else:
            w.loop(0, loop.extent, 1, turn)

    def _moved(self, pointer: str, index: str | int, stride: int) -> str:
        return self.w.at(pointer, self.w.times(index, stride)) if stride else pointer

    # -- loads and stores -----------------------------------------------------------------------------------

    def _load(self, kind: str, pointer: str) -> str:
        return self.w.value(f"load {kind}, ptr {pointer}, align 1")

    def _store(self, kind: str, value: str, pointer: str, size: int, aligned: bool = True) -> None:
        """Store ``size`` bytes.

        Past the caches where lines are completed and this one begins where a vector may.
        """
        if self.stream and aligned and size >= LANE:
            self.w.line(f"store {kind} {value}, ptr {pointer}, align {size}, !nontemporal !0")
        else:
            self.w.line(f"store {kind} {value}, ptr {pointer}, align 1")

    def _prefetch(self, pointer: str, ahead: int = AHEAD) -> None:
        self.w.line(f"call void @llvm.prefetch.p0(ptr {self.w.at(pointer, ahead)}, i32 0, i32 2, i32 1)")

    def _vector(self, count: int) -> str:
        return f"<{count} x i{8 * self.width}>"

    # -- rows -----------------------------------------------------------------------------------------------

    def _rows(self, s: str, d: str) -> None:
        plan, w = self.plan, self.w
        total = (plan.outer.extent if plan.outer is not None else 1) * self.width
        size = self.machine.vector
        turn = 4 * size
        whole = total // turn * turn

        def four(i: str) -> None:
            for k in range(4):
                self._piece(w.at(s, i), w.at(d, i), k * size, size, True, total > 4096)

        if whole:
            w.loop(0, whole, turn, four)
        at = whole
        while at < total:
            left = total - at
            piece = size if left >= size else 1 << (left.bit_length() - 1)
            if piece != left and left < size and total >= 2 * piece:
                piece = min(
                    size, 2 * piece
                )  # one larger piece that ends with the row, over what is written already
                at = total - piece
            self._piece(s, d, at, piece, at % size == 0 and piece == size, False)
            at += piece

    def _piece(self, s: str, d: str, at: int, size: int, aligned: bool, far: bool) -> None:
        kind = f"<{size} x i8>"
        value = "zeroinitializer"
        if not self.plan.nest.zero:
            pointer = self.w.at(s, at)
            value = self._load(kind, pointer)
            if far:
                self._prefetch(pointer, 8 * LINE)
        self._store(kind, value, self.w.at(d, at), size, aligned)

    # -- lines
    # ------------------------------------------------------------------------------------------------

    def _lines(self, s: str, d: str) -> None:
        """Short rows that neighbour each other in the destination, put together to whole vectors."""
        w, loop, outer = self.w, self.plan.blocked, self.plan.outer
        if loop is None or outer is None:
            raise AssertionError("lines are made of rows of a blocked loop")
        row = outer.extent * self.width
        size = self.machine.vector if self.machine.vector >= row else row
        per = LINE // row
        kind = f"<{row} x i8>"
        first, last = self.span

        def one(o: str) -> None:
            value = self._load(kind, self._moved(s, o, loop.src))
            w.line(f"store {kind} {value}, ptr {self._moved(d, o, row)}, align 1")

        def line(o: str) -> None:
            so, do = self._moved(s, o, loop.src), self._moved(d, o, row)
            parts = [self._load(kind, w.at(so, k * loop.src)) for k in range(per)]
            together = size // row
            for k in range(0, per, together):
                value, count = parts[k : k + together], row
                while len(value) > 1:
                    value = [
                        w.shuffle(a, b, f"<{count} x i8>", range(2 * count))
                        for a, b in zip(value[::2], value[1::2], strict=True)
                    ]
                    count *= 2
                self._store(f"<{count} x i8>", value[0], w.at(do, k * row), count)

        whole = (
            loop.extent // per * per
        )  # blocks begin at multiples of a line's rows, and only the last can end within one
        if whole == loop.extent:
            w.loop(first, last, per, line)
            return
        end = w.value(f"call i64 @llvm.smin.i64(i64 {last}, i64 {whole})")
        some = w.value(f"icmp slt i64 {first}, {end}")
        w.when(some, lambda: w.loop(first, end, per, line))
        rest = w.value(f"call i64 @llvm.smax.i64(i64 {first}, i64 {whole})")
        left = w.value(f"icmp slt i64 {rest}, {last}")
        w.when(left, lambda: w.loop(rest, last, 1, one))

    # -- elements -------------------------------------------------------------------------------------------

    def _elements(self, s: str, d: str) -> None:
        kind = f"i{8 * self.width}"
        value = "0" if self.plan.nest.zero else self._load(kind, s)
        self.w.line(f"store {kind} {value}, ptr {d}, align 1")

    # -- transpose ------------------------------------------------------------------------------------------

    def _parts(self) -> tuple[ByteLoop, ByteLoop, int, int]:
        inner, outer = self.plan.inner, self.plan.outer
        if inner is None or outer is None:
            raise AssertionError("a transpose has both contiguous loops")
        rows = LINE // self.width
        total = _total(self.plan)
        while rows > total:
            rows //= 2
        return inner, outer, rows, total

    def _lane(self) -> int:
        """Columns that are turned over at a time: a lane of them, or fewer where either side has fewer."""
        inner, _, _, total = self._parts()
        lane = LANE // self.width
        while lane > min(inner.extent, total):
            lane //= 2
        return lane

    def _columns(self, loop: ByteLoop, step: int, body: Callable[[str], None]) -> None:
        """Over all columns in steps; the last step ends with the last column."""
        if loop is self.plan.shared:
            self.w.loop("%lo", "%hi", step, body)
            return
        whole = loop.extent // step * step
        if whole:
            self.w.loop(0, whole, step, body)
        if whole < loop.extent:
            body(str(loop.extent - step))

    def _unstreamed(self, body: Callable[[], None]) -> None:
        """For overlapping tiles: streaming stores of a part of a line are slow."""
        kept, self.stream = self.stream, False
        body()
        self.stream = kept

    def _transpose(self, s: str, d: str) -> None:
        w = self.w
        inner, outer, rows, total = self._parts()
        lane, fill = self._lane(), self.plan.nest.fill
        whole = total // rows * rows

        def sweep(first: str | int, last: str | int) -> None:
            def column(i: str) -> None:
                si, di = self._moved(s, i, inner.src), self._moved(d, i, inner.dst)

                def tile(o: str | int, valid: int = rows) -> None:
                    row, line = self._moved(si, o, outer.src), self._moved(di, o, self.width)
                    self._tile(row, outer.src, line, rows, valid, outer.src >= FAR)

                if fill and isinstance(first, int) and isinstance(last, int):
                    for o in range(first, last, rows):  # each tile has zeros of its own
                        tile(o, max(0, min(rows, outer.extent - o)))
                else:
                    w.loop(first, last, rows, tile)

            self._columns(inner, lane, column)

        if self.plan.blocked is not None:
            sweep(*self.span)
            return
        if whole <= BLOCK or fill:
            sweep(0, whole)
        else:
            block = max(BLOCK, rows)

            def blocks(o: str) -> None:
                end = w.value(f"add i64 {o}, {block}")
                within = w.value(f"icmp slt i64 {end}, {whole}")
                sweep(o, w.value(f"select i1 {within}, i64 {end}, i64 {whole}"))

            w.loop(0, whole, block, blocks)
        if whole < total:
            self._unstreamed(lambda: sweep(total - rows, total))

    def _stage_rows(self) -> int:
        _, _, rows, total = self._parts()
        return min(max(BLOCK, rows), total // rows * rows)

    def _staged(self, s: str, d: str) -> None:
        w = self.w
        inner, outer, rows, total = self._parts()
        lane, columns = self._lane(), LINE // self.width
        most = self._stage_rows()
        line = f"<{LINE} x i8>"

        def block(o: str | int, count: int) -> None:
            so, do = self._moved(s, o, outer.src), self._moved(d, o, self.width)
            together = next(k for k in (8, 4, 2, 1) if count % k == 0)

            def chunk(i: str) -> None:
                si, di = self._moved(so, i, inner.src), self._moved(do, i, inner.dst)

                def fetch(r: str) -> None:
                    row, place = self._moved(si, r, outer.src), self._moved(self.stage, r, LINE)
                    for k in range(together):
                        pointer = w.at(row, k * outer.src)
                        w.line(
                            f"store {line} {self._load(line, pointer)}, "
                            f"ptr {w.at(place, k * LINE)}, align {LINE}"
                        )
                        self._prefetch(pointer)

                def column(u: str) -> None:
                    su, du = self._moved(self.stage, u, self.width), self._moved(di, u, inner.dst)
                    w.loop(
                        0,
                        count,
                        rows,
                        lambda r: self._tile(
                            self._moved(su, r, LINE), LINE, self._moved(du, r, self.width), rows, rows, False
                        ),
                    )

                w.loop(0, count, together, fetch)
                w.loop(0, columns, lane, column)

            self._columns(inner, columns, chunk)

        whole, rest = total // most * most, total // rows * rows
        w.loop(0, whole, most, lambda o: block(o, most))
        if whole < rest:
            block(whole, rest - whole)
        if rest < total:
            self._unstreamed(lambda: block(total - rows, rows))

    def _tile(self, s: str, stride: int, d: str, rows: int, valid: int, ahead: bool) -> None:
        """Turn over ``rows`` rows of 16 bytes.

        Rows from ``valid`` on are zeros that nobody stores in the source.
        """
        w, width = self.w, self.width
        lane = self._lane()
        size = min(self.machine.vector, rows * width)
        per = size // width
        columns: list[list[str]] = [[] for _ in range(lane)]
        for first in range(0, rows, per):
            registers = []
            for r in range(lane):
                parts = []
                for o in range(first + r, first + per, lane):
                    if o >= valid:
                        parts.append("zeroinitializer")
                        continue
                    pointer = w.at(s, o * stride)
                    parts.append(self._load(self._vector(lane), pointer))
                    if ahead:
                        self._prefetch(pointer)
                registers.append(self._joined(parts, lane))
            for c, column in enumerate(self._butterflies(registers, lane, per)):
                columns[c].append(column)
        inner = self.plan.inner
        for c, column_parts in enumerate(columns):
            pointer = self._moved(d, c, inner.dst) if inner is not None else d
            for k, part in enumerate(column_parts):
                self._store(self._vector(per), part, w.at(pointer, k * size), size)

    def _joined(self, parts: list[str], count: int) -> str:
        """Lanes side by side in one register."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self.w.shuffle(a, b, self._vector(count), range(2 * count)) for a, b in pairs]
            count *= 2
        return parts[0]

    def _butterflies(self, registers: list[str], lane: int, per: int) -> list[str]:
        """Transpose the square of ``lane`` registers by ``lane`` elements in every 128-bit lane at once.

        Each stage swaps the off-diagonal halves of squares half as large as before; a pair of registers takes
        two shuffles.
        """
        kind = self._vector(per)
        half = lane // 2
        while half:
            after = list(registers)
            for a in range(lane):
                if a & half:
                    continue
                low: list[int] = []
                high: list[int] = []
                for base in range(0, per, lane):
                    for x in range(lane):
                        if x & half:
                            low.append(per + base + x - half)
                            high.append(per + base + x)
                        else:
                            low.append(base + x)
                            high.append(base + x + half)
                after[a] = self.w.shuffle(registers[a], registers[a | half], kind, low)
                after[a | half] = self.w.shuffle(registers[a], registers[a | half], kind, high)
            registers, half = after, half // 2
        return registers

    # -- pixels and planes
    # ------------------------------------------------------------------------------------

    def _picked(self, vectors: list[str], picks: list[tuple[int, int]]) -> str:
        """A vector of elements ``(vector, place)``, by a chain of two-source shuffles."""
        w, count = self.w, len(picks)
        kind = self._vector(count)
        used = sorted({v for v, _ in picks})
        made = vectors[used[0]]
        if len(used) == 1:
            return w.shuffle(made, "poison", kind, [place for _, place in picks])
        mask = [place if v == used[0] else -1 for v, place in picks]
        for k, v in enumerate(used[1:]):
            if k:
                mask = [j if owner < v else -1 for j, (owner, _) in enumerate(picks)]
            mask = [count + place if owner == v else m for m, (owner, place) in zip(mask, picks, strict=True)]
            made = w.shuffle(made, vectors[v], kind, mask)
        return made

    def _deinterleave(self, s: str, d: str) -> None:
        w, width = self.w, self.width
        inner, outer, _, _ = self._parts()
        channels, per = inner.extent, self.machine.vector // width
        kind, size = self._vector(per), self.machine.vector

        def some(o: str) -> None:
            so, do = self._moved(s, o, outer.src), self._moved(d, o, width)
            vectors = [self._load(kind, w.at(so, k * size)) for k in range(channels)]
            self._prefetch(so, 8 * LINE)
            for c in range(channels):
                picks = [divmod(j * channels + c, per) for j in range(per)]
                self._store(kind, self._picked(vectors, picks), w.at(do, c * inner.dst), size)

        self._pixels(outer, per, some)

    def _interleave(self, s: str, d: str) -> None:
        w, width = self.w, self.width
        inner, outer, _, _ = self._parts()
        channels, per = outer.extent, self.machine.vector // width
        kind, size = self._vector(per), self.machine.vector

        def some(i: str) -> None:
            si, di = self._moved(s, i, width), self._moved(d, i, inner.dst)
            pointers = [w.at(si, c * outer.src) for c in range(channels)]
            vectors = [self._load(kind, pointer) for pointer in pointers]
            for pointer in pointers:
                self._prefetch(pointer, 4 * LINE)
            for k in range(channels):
                picks = [((k * per + j) % channels, (k * per + j) // channels) for j in range(per)]
                self._store(kind, self._picked(vectors, picks), w.at(di, k * size), size)

        self._pixels(inner, per, some)

    def _pixels(self, loop: ByteLoop, per: int, body: Callable[[str], None]) -> None:
        whole = loop.extent // per * per
        self.w.loop(0, whole, per, body)
        if whole < loop.extent:
            self._unstreamed(lambda: body(str(loop.extent - per)))
