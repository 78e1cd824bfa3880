"""One block of a conversion: read, convert, write.

A block is a box of elements made of whole cells of the destination. Its task goes over the cells of one side
and keeps of the other what is still needed, whichever order takes less memory (:func:`schedule`, which the
planner asks, too)::

    by target    for each chunk to write: read what it needs and is not there yet, convert, write, forget
    by source    for each chunk to read: convert what it gives to each chunk to write, forget;
                 write those that are complete
    assembled    read all chunks into one buffer, as they are; for each chunk to write: convert, write
                 (:mod:`.assembled`, where chunks meet in boxes of too many shapes)

A task depends on nothing but its fields. It may run in any process that sees the same file system, twice, or
twice at the same time: the bytes are the same, and each chunk appears by one rename.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from relayout.errors import LayoutError
from relayout.files.arrays import physical_shape
from relayout.reorder.attributes import Attributes
from relayout.stores.assembled import Hull
from relayout.stores.buffers import given_back, taken
from relayout.stores.collected import Collected
from relayout.stores.files import ChunkFile
from relayout.stores.grid import Box, Cells, Index, touched
from relayout.stores.pieces import Mover, Piece
from relayout.stores.scatter import regions
from relayout.stores.slabs import Streamed, Way, closing
from relayout.stores.store import Address, Bytes, SourceChanged, Stored
from relayout.tensor import aligned

__all__ = ["Done", "Schedule", "Side", "Task", "schedule"]

MOST_PREPARED: Final = 200
"""Pieces of a block that are looked at before it begins."""


class Done(NamedTuple):
    """What a task did."""

    number: int
    """The task, as in ``plan.task(number)``."""
    elements: int
    """Elements converted, those made of fill values included."""
    bytes_read: int
    """Bytes of decoded chunks."""
    bytes_written: int
    """Bytes of chunks before they were encoded."""
    requests: int
    """Chunks read and written."""
    missing: int
    """Chunks of the source that were not there, and stand for the fill value."""
    seconds: tuple[float, float, float]
    """Reading and decoding; converting; encoding and writing."""
    files: tuple[str, ...]
    """What was written: the journal sees these on the disk before it notes the task as done."""
    stored: int = -1
    """Bytes that these files take, by which somebody who goes on finds out whether they are still there
    (:meth:`Task.stored`); -1: unknown, and not asked."""


class Task(NamedTuple):
    """A block: everything that is needed to convert it, as plain data."""

    number: int
    """Its number in the plan."""
    source: Address
    target: Address
    block: Box
    """The elements, by logical index."""
    attributes: Attributes
    """What becomes of the values on the way."""
    by_target: bool
    """Which side it goes by."""
    newest: int
    """Chunks that were changed after this time (ns) are refused; 0: none."""
    complete: bool
    """Whether no chunk of the source may be missing, since none was when the plan was made."""
    key: str
    """The plan that it belongs to; tasks of one plan share what they have opened."""
    scatter: str = ""
    """Where chunks are collected that this and other tasks write parts of (:mod:`.collected`); empty: the
    task writes whole chunks, and its block is made of them. Otherwise it is made of whole chunks of the
    source."""
    assembled: Index = ()
    """For how many cells of the source along each axis there is room in the buffer of the block, into which
    they are put together before they are converted (:mod:`.assembled`); empty: they are not."""

    def run(self) -> Done:
        """Read the block, convert it, write it.

        Raises
        ------
        SourceChanged
            The source is not what it was when the plan was made.
        LayoutError
            A chunk is damaged.
        OSError
            Something can't be read or written.
        """
        source, target = _pair(self.key, self.source, self.target)
        return _Work(self, source, target).run()

    def prepare(self) -> None:
        """Open both stores, and have what converts the block planned and compiled. No chunk is read.

        Kernels are kept on the disk of the machine, so other processes there find them, and need no compiler.
        """
        source, target = _pair(self.key, self.source, self.target)
        _Work(self, source, target).prepare()

    def stored(self, known: dict[Index, int] | None = None) -> int:
        """Bytes that the chunks which the task writes take as they lie there now; 0: none is there.

        ``known`` are those of chunks that somebody has looked at already, and gets those that are looked at
        now: many tasks of a pass may write parts of the same chunk.

        Raises
        ------
        OSError
            The system does not say.
        """
        stored, cells = _pair(self.key, self.source, self.target)[1]
        kept: Collected | Stored = Collected(stored, Path(self.scatter)) if self.scatter else stored
        known = {} if known is None else known
        total = 0
        for cell in product(*cells.grid.touched(self.block)):
            for chunk, _ in cells.chunks_of(cell):
                size = known.get(chunk)
                if size is None:
                    size = known[chunk] = kept.stored_bytes(chunk)
                total += size
        return total


class Side(NamedTuple):
    """An array that was opened, and its cells."""

    stored: Stored
    cells: Cells

    @classmethod
    def of(cls, stored: Stored) -> Side:
        """With the cells of its chunks."""
        return cls(stored, Cells(stored.desc, stored.chunks, stored.plain))


@lru_cache(maxsize=8)
def _pair(key: str, source: Address, target: Address) -> tuple[Side, Side]:
    return Side.of(source.open()), Side.of(target.open())


class Schedule(NamedTuple):
    """In which order the cells of a block are read and written."""

    steps: tuple[tuple[str, Index, Index | None], ...]
    """``("read", s, None)``, ``("move", s, t)``, ``("forget", s, None)``, ``("write", t, None)``."""
    most_source: int
    """Cells of the source that are held at the same time, at most."""
    most_target: int
    """Cells of the destination."""

    def memory(self, source: Cells, target: Cells) -> int:
        """Bytes that are held at the same time, at most, what codecs need for one chunk included."""
        read = source.coding_bytes * (1 if source.direct else 2)
        write = 2 * target.coding_bytes
        return self.most_source * source.nbytes + self.most_target * target.nbytes + max(read, write)


def schedule(source: Cells, target: Cells, block: Box, by_target: bool) -> Schedule:
    """Order the cells of a block.

    Examples
    --------
    >>> from relayout import MemoryDesc
    >>> rows = Cells(MemoryDesc((8, 8), "u8", "ab"), (2, 8))
    >>> columns = Cells(MemoryDesc((8, 8), "u8", "ab"), (8, 2))
    >>> found = schedule(rows, columns, ((0, 8), (0, 8)), by_target=False)
    >>> found.most_source, found.most_target
    (1, 4)
    """
    outer, inner = (target.grid, source.grid) if by_target else (source.grid, target.grid)
    # Boxes are products over the axes, and so are the cells that they touch: each axis is asked once.
    along = [
        {
            k: touched(max(k * step, start), min((k + 1) * step, stop), other)
            for k in touched(start, stop, step)
        }
        for (start, stop), step, other in zip(block, outer.chunks, inner.chunks, strict=True)
    ]
    first = {
        cell: [*product(*(axis[k] for axis, k in zip(along, cell, strict=True)))] for cell in product(*along)
    }
    left: dict[Index, int] = {}
    for needed in first.values():
        for cell in needed:
            left[cell] = left.get(cell, 0) + 1
    steps: list[tuple[str, Index, Index | None]] = []
    held: set[Index] = set()
    most = 0
    for cell, needed in first.items():
        if not by_target:
            steps.append(("read", cell, None))
        for other in needed:
            if by_target and other not in held:
                steps.append(("read", other, None))
            held.add(other)
            most = max(most, len(held))
            steps.append(("move", other, cell) if by_target else ("move", cell, other))
            left[other] -= 1
            if not left[other]:
                held.discard(other)
                steps.append(("forget", other, None) if by_target else ("write", other, None))
        steps.append(("write", cell, None) if by_target else ("forget", cell, None))
    return Schedule(tuple(steps), most if by_target else 1, 1 if by_target else most)


class _Work:
    """A task at work."""

    def __init__(self, task: Task, source: Side, target: Side) -> None:
        self.task, self.source, self.target = task, source, target
        self.mover = Mover(source.cells, target.cells, task.attributes)
        self.seconds = [0.0, 0.0, 0.0]
        self.missing = self.read = self.written = self.stored = self.requests = self.elements = 0
        self.files: list[str] = []
        self.held: dict[Index, Bytes] = {}
        self.made: dict[Index, Bytes] = {}

    def run(self) -> Done:
        task = self.task
        if task.scatter:
            self._scatter(Collected(self.target.stored, Path(task.scatter)))
            return self._done()
        if task.assembled:
            self._assemble(Hull(self.source.cells, task.assembled, task.block))
            return self._done()
        steps = schedule(self.source.cells, self.target.cells, task.block, task.by_target).steps
        way = self._way(steps) if task.by_target else None
        if way is None:
            for what, cell, other in steps:
                self._step(what, cell, other)
        else:
            self._stream(way, steps)
        return self._done()

    def prepare(self) -> None:
        """Have what converts the pieces made; most of them are alike, so some tell of all."""
        for mover, piece in islice(self._pieces(), MOST_PREPARED):
            mover.prepare(piece)

    def _pieces(self) -> Iterator[tuple[Mover, Piece]]:
        """The pieces that :meth:`run` moves, in its order."""
        task, cells = self.task, self.source.cells
        if task.scatter:
            parts = regions(self.target.cells, task.block)
            for cell in product(*cells.grid.touched(task.block)):
                for region in parts:
                    mover = Mover(cells, region, task.attributes)
                    yield from ((mover, piece) for piece in mover.views(cell, cell, task.block))
            return
        if task.assembled:
            mover = Mover(Hull(cells, task.assembled, task.block), self.target.cells, task.attributes)
            for cell in product(*self.target.cells.grid.touched(task.block)):
                yield from ((mover, piece) for piece in mover.views((), cell, task.block))
            return
        steps = schedule(cells, self.target.cells, task.block, task.by_target).steps
        way = self._way(steps) if task.by_target else None
        for what, cell, other in steps:
            if what == "move" and other is not None:
                boxes = [task.block] if way is None else way.boxes(self.target.cells.box(other), task.block)
                for box in boxes:
                    yield from ((self.mover, piece) for piece in self.mover.views(cell, other, box))

    def _done(self) -> Done:
        reading, moving, writing = self.seconds
        return Done(
            *(self.task.number, self.elements, self.read, self.written, self.requests, self.missing),
            (reading, moving, writing),
            tuple(self.files),
            self.stored,
        )

    def _scatter(self, collected: Collected) -> None:
        """Write what the block has of every chunk into the file of that chunk."""
        block, cells = self.task.block, self.source.cells
        parts = [(region, taken(region.size)) for region in regions(self.target.cells, block)]
        for region, out in parts:
            if not region.is_full:
                out[:] = 0
        for cell in product(*cells.grid.touched(block)):
            self._step("read", cell, None)
            begin = time.perf_counter()
            for region, out in parts:
                mover = Mover(cells, region, self.task.attributes)
                self.elements += mover.move(cell, self.held[cell], cell, out, block)
            self.seconds[1] += time.perf_counter() - begin
            self._step("forget", cell, None)
        begin = time.perf_counter()
        for region, out in parts:
            self.files += collected.write(region, out, self.task.number)
            self.requests += region.writes(self.target.stored.chunks)
            self.stored += region.stored.total * collected.file_bytes
            self.written += region.size
            given_back(out)
        self.seconds[2] += time.perf_counter() - begin

    def _assemble(self, hull: Hull) -> None:
        """Put the chunks of the source together, and make each of the destination of one piece of that."""
        begin = time.perf_counter()
        whole = taken(hull.size)
        for chunk in hull.chunks():
            found = self._chunk(chunk)
            hull.put(whole, chunk, found)
            given_back(found)
        self.seconds[0] += time.perf_counter() - begin
        self.mover = Mover(hull, self.target.cells, self.task.attributes)
        self.held[()] = whole
        for cell in product(*self.target.cells.grid.touched(self.task.block)):
            self._step("move", (), cell)
            self._step("write", cell, None)
        self._step("forget", (), None)

    def _step(self, what: str, cell: Index, other: Index | None) -> None:
        begin = time.perf_counter()
        if what == "read":
            self.held[cell] = read_cell(self.source, cell, self._chunk)
            self.seconds[0] += time.perf_counter() - begin
        elif what == "move":
            assert other is not None
            self._move(cell, other)
            self.seconds[1] += time.perf_counter() - begin
        elif what == "forget":
            given_back(self.held.pop(cell))
        else:
            self._write(cell)
            self.seconds[2] += time.perf_counter() - begin

    def _way(self, steps: Sequence[tuple[str, Index, Index | None]]) -> Way | None:
        needed: dict[Index, list[Index]] = {}
        for what, cell, other in steps:
            if what == "move" and other is not None:
                needed.setdefault(other, []).append(cell)
        return Way.of(self.source.stored, self.mover, self.target.stored, needed, self.task.block)

    def _stream(self, way: Way, steps: Sequence[tuple[str, Index, Index | None]]) -> None:
        """The same with chunks that are written slab by slab."""
        sources: list[Index] = []
        opened: set[Index] = set()
        late: list[Index] = []
        for what, cell, other in steps:
            if what == "move":
                sources.append(cell)
            elif what == "write":
                files = self._opened(sources, opened) if way.in_parts else {}
                with closing(files):
                    self._write_slabs(way, cell, {s: self.held[s] for s in sources if s not in files}, files)
                for one in late:
                    if one in self.held:  # in parts those that are missing, and no others
                        self._step("forget", one, None)
                sources, late = [], []
            elif what == "forget":
                late.append(cell)  # not before the slabs that are made of it
            elif what == "read" and not way.in_parts:
                self._step(what, cell, other)

    def _opened(self, sources: Sequence[Index], opened: set[Index]) -> dict[Index, ChunkFile]:
        """The files of chunks of the source; those that are missing are held as fill values."""
        files: dict[Index, ChunkFile] = {}
        try:
            for cell in sources:
                chunk = next(self.source.cells.chunks_of(cell))[0]
                file = self.source.stored.opened(chunk, self.task.newest)
                if file is not None:
                    files[cell] = file
                elif cell not in self.held:
                    self.held[cell] = self._missing(chunk)
                if cell not in opened:
                    opened.add(cell)
                    self.requests += 1
        except BaseException:
            with closing(files):
                raise
        return files

    def _write_slabs(
        self, way: Way, cell: Index, held: Mapping[Index, Bytes], files: Mapping[Index, ChunkFile]
    ) -> None:
        begin = time.perf_counter()
        stored, cells = self.target
        made = Streamed(self.mover, cell, way, self.task.block, held, files)
        chunk = next(cells.chunks_of(cell))[0]
        self.files.append(stored.write_parts(chunk, made.parts()))
        self.stored += stored.stored_bytes(chunk)
        self.requests += 1
        self.written += cells.nbytes
        self.read += made.read
        self.elements += made.elements
        reading, moving = made.seconds
        self.seconds[0] += reading
        self.seconds[1] += moving
        self.seconds[2] += time.perf_counter() - begin - reading - moving

    def _chunk(self, chunk: Index) -> Bytes:
        stored = self.source.stored
        data = stored.read(chunk, self.task.newest)
        self.requests += 1
        if data is not None:
            self.read += data.size
            return data
        return self._missing(chunk)

    def _missing(self, chunk: Index) -> Bytes:
        """The fill value, for a chunk that may be missing."""
        stored = self.source.stored
        if self.task.complete:
            raise SourceChanged(
                f"chunk {list(chunk)} of {stored.address.spelled} is gone; it was there when the "
                "conversion was planned"
            )
        self.missing += 1
        return filled(stored, chunk)

    def _move(self, cell: Index, other: Index) -> None:
        out = self.made.get(other)
        cells = self.target.cells
        if out is None:
            box = cells.box(other)
            full = all(
                stop - start == size for (start, stop), size in zip(box, cells.grid.chunks, strict=True)
            )
            # What lies beyond the array, and the padding of the last blocks, is zeros in the file.
            out = self.made[other] = taken(cells.nbytes)
            if not full or cells.desc.layout.has_padding:
                out[:] = 0
        self.elements += self.mover.move(cell, self.held[cell], other, out, self.task.block)

    def _write(self, cell: Index) -> None:
        stored, cells = self.target
        data = self.made.pop(cell)
        for chunk, part in chunks_to_write(stored, cells, cell, data):
            file = stored.write(chunk, part)
            if file:
                self.files.append(file)
                self.stored += stored.stored_bytes(chunk)
            self.requests += 1
            self.written += part.size
        given_back(data)


def read_cell(side: Side, cell: Index, read: Callable[[Index], Bytes]) -> Bytes:
    """The bytes of a cell, as :attr:`Cells.desc` describes them; ``read`` gives those of a chunk."""
    stored, cells = side
    if cells.direct:
        return read(next(cells.chunks_of(cell))[0])
    data = taken(cells.nbytes)
    shaped = _shaped(cells, data)
    for chunk, where in cells.chunks_of(cell):
        part, found = shaped[where], read(chunk)
        whole = found.view(shaped.dtype).reshape(stored.chunks)
        part[...] = whole[tuple(slice(0, size) for size in part.shape)]
        given_back(found)
    return data


def _shaped(cells: Cells, data: Bytes) -> np.ndarray:
    """The physical array of a cell, of elements without a type."""
    shape = physical_shape(cells.desc)
    assert shape is not None  # cells are made of what has one
    return data.view(f"V{cells.desc.dtype.bits // 8}").reshape(shape)


def chunks_to_write(stored: Stored, cells: Cells, cell: Index, data: Bytes) -> Iterator[tuple[Index, Bytes]]:
    """A cell as full chunks."""
    if cells.direct:
        yield next(cells.chunks_of(cell))[0], data
        return
    shaped = _shaped(cells, data)
    for chunk, where in cells.chunks_of(cell):
        part = shaped[where]
        whole = np.zeros(stored.chunks, shaped.dtype)
        whole[tuple(slice(0, size) for size in part.shape)] = part
        yield chunk, whole.reshape(-1).view(np.uint8)


def filled(stored: Stored, chunk: Index) -> Bytes:
    """A chunk of the fill value.

    Raises
    ------
    LayoutError
        The store has none, so that no chunk may be missing.
    """
    if not stored.fill:
        raise LayoutError(
            f"chunk {list(chunk)} of {stored.address.spelled} is missing, and there is no fill value for it"
        )
    element = np.frombuffer(stored.fill, np.uint8)
    count = int(np.prod(stored.chunks, dtype=np.int64))
    if not element.any():
        return aligned(count * element.size)
    return np.ascontiguousarray(np.broadcast_to(element, (count, element.size))).reshape(-1)
