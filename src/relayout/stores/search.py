"""The shapes of blocks, gone through: which is the fastest that fits into the memory?

Along one axis a block of ``b`` elements of a grid with chunks of ``t`` (destination) over one with chunks of
``s`` (source) reads ``r(b)`` chunks of the source, counted for each block that they lie in. The sum over all
blocks of a product is the product of the sums, so the whole cost of a shape of blocks is a product over axes,
which needs no loop over blocks::

    chunks read     =  product over axes of the sum over blocks of chunks touched
    chunks written  =  product over axes of dims / t
    pieces          =  product over axes of how many parts the boundaries of both grids cut it into
    shapes of them  =  product over axes of different lengths of such parts, up to min(s, t) / gcd(s, t)
    memory          =  of the largest block, by going through its schedule (:func:`.task.schedule`)

Candidates along an axis are ``t`` times powers of two, common multiples of ``s`` and ``t``, and the whole
axis. That is some hundreds to some thousands of shapes. They are sorted by predicted time, and the first
that fits is taken. Where pieces have many shapes, each candidate stands there a second time with its chunks
put together before they are converted (:mod:`.assembled`): that takes more memory, and no kernel for each.

Of times that are alike the one with less memory is taken: what a conversion does not need is left to others,
and buffers that are touched for the first time cost time, too.

The choice must be the same tomorrow, when a conversion is resumed, so that it is made with fixed rates
(:func:`.rates.assumed`), and never with measured ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import gcd, lcm, log, prod
from typing import Final, NamedTuple

from relayout.stores import assembled
from relayout.stores.grid import Cells, Grid, Index
from relayout.stores.rates import ASSUMED, KERNEL, Rates, Work, assumed
from relayout.stores.task import Schedule, schedule

__all__ = ["ALIKE", "ASSUMED", "Shape", "between", "fastest", "scattered"]


ALIKE: Final = 1.1
"""The ratio of two predicted times up to which the smaller blocks are taken: what is killed loses less, and
one block more than a multiple of the threads is no reason for huge ones."""

FINE: Final = 1.03
"""The same where chunks have no common divisor, so that larger blocks read less at their rims."""

LONG: Final = 1.1
"""The same for the runs of bytes that are written into parts of files: twice as long ones take twice the
memory, and are predicted to be a little faster, but buffers of hundreds of megabytes are not."""

FEW: Final = 16
"""Shapes of pieces up to which chunks are not put together: each is a kernel that is made once."""

MOST_SHAPES: Final = 8000
MOST_STEPS: Final = 400_000
"""Steps of schedules that are gone through, of all shapes together."""


class Shape(NamedTuple):
    """A shape of blocks, and what it costs."""

    block: tuple[int, ...]
    by_target: bool
    reads: int
    """Chunks of the source, counted for each block that reads them."""
    writes: int
    memory: int
    """Bytes of a task, at most."""
    blocks: int
    work: Work
    """What there is to do in all blocks."""
    assembled: Index = ()
    """For how many cells of the source there is room along each axis in the buffer that they are put into;
    empty: they are converted piece by piece."""

    @property
    def runs(self) -> int:
        """Runs of bytes that are written into parts of files; 0: chunks are written whole."""
        return self.work.runs

    def seconds(self, rates: Rates, threads: int = 1) -> float:
        """Predicted time on so many threads, with the rates of one."""
        each = rates.seconds(self.work) / self.blocks
        return each * _whole(self.blocks, threads) + self.work.kernels * KERNEL


def fastest(source: Cells, target: Cells, most: int, threads: int) -> Shape | None:
    """The shape of blocks of least predicted time whose tasks take no more than ``most`` bytes each.

    Examples
    --------
    >>> from relayout import MemoryDesc
    >>> rows = Cells(MemoryDesc((1024, 1024), "f32", "ab"), (64, 1024))
    >>> columns = Cells(MemoryDesc((1024, 1024), "f32", "ab"), (1024, 64))
    >>> one, two = (fastest(rows, columns, most, 1) for most in (8 << 20, 2 << 20))
    >>> one.block, one.reads, two.block, two.reads
    ((1024, 1024), 16, (1024, 256), 64)

    Chunks that have no common divisor are put together:

    >>> one = Cells(MemoryDesc((9973, 7919), "f32", "ab"), (103, 127))
    >>> two = Cells(MemoryDesc((9973, 7919), "f32", "ab"), (89, 131))
    >>> found = fastest(one, two, 16 << 20, 2)
    >>> found.assembled != (), found.reads / one.stored.total < 1.3
    (True, True)
    """
    rates, once = assumed(source.plain, target.plain), source.stored.total
    alike = ALIKE if _meetings(source, target)[1] <= FEW else FINE
    # Of those that are alike one that reads nothing twice, and then the smallest.
    found = sorted(
        (_rank(shape.seconds(rates, threads), alike), shape.reads > once, prod(shape.block), shape)
        for shape in _shapes(source, target, most)
    )
    left = MOST_STEPS
    for *_, shape in found:
        if shape.assembled:
            return shape
        steps = _largest(source, shape.block, target)
        if prod(steps[0]) * prod(steps[1]) > left:
            continue
        fits: list[Shape] = []
        box = _worst(source, shape.block)
        for by_target in (True, False):
            made: Schedule = schedule(source, target, box, by_target)
            left -= len(made.steps)
            memory = made.memory(source, target)
            if memory <= most:
                fits.append(shape._replace(by_target=by_target, memory=memory))
        if fits:
            return min(fits, key=lambda one: one.memory)
        if left <= 0:
            break
    return None


def _whole(size: int, step: int) -> int:
    """How many steps cover a size; in whole numbers, since hostile ones are too large for floating point."""
    return -(-size // step)


def _rank(seconds: float, alike: float) -> int:
    """Times that are alike have the same; those that are longer a larger one."""
    return round(log(max(seconds, 1e-9), alike))


def _shapes(source: Cells, target: Cells, most: int) -> Iterator[Shape]:
    """All candidates that could fit, of those without an assembled source without having looked at their
    schedule.
    """
    axes = []
    for size, s, t in zip(source.grid.shape, source.grid.chunks, target.grid.chunks, strict=True):
        axes.append([(b, *_touched(size, s, b)) for b in _sizes(size, s, t)])
    while prod(map(len, axes)) > MOST_SHAPES:
        longest = max(axes, key=len)
        longest[:] = longest[::2] + ([longest[-1]] if len(longest) % 2 == 0 else [])
    least = source.nbytes + target.nbytes + max(source.coding_bytes, 2 * target.coding_bytes)
    if least > most:
        return
    pieces, kinds = _meetings(source, target)
    edges = _edges(target)
    writes = target.stored.total
    for several in product(*axes):
        block = tuple(b for b, _, _ in several)
        counts = tuple(n for _, _, n in several)
        reads = prod(total for _, total, _ in several) * source.per_cell
        blocks = prod(_whole(max(1, size), b) for size, b in zip(source.grid.shape, block, strict=True))
        read = reads * source.stored_bytes
        work = Work(read, writes * target.stored_bytes, reads + writes, pieces, kinds)
        held = (
            prod(counts) * source.nbytes,
            prod(_whole(b, t) for b, t in zip(block, target.grid.chunks, strict=True)) * target.nbytes,
        )
        if min(held) <= 64 * most:  # or else no order of its cells makes that fit
            yield Shape(block, True, reads, writes, 0, blocks, work)
        memory = assembled.memory(source, target, counts)
        if kinds > FEW and memory <= most:
            together = work._replace(moves=target.grid.total, kernels=edges, copied=read)
            yield Shape(block, True, reads, writes, memory, blocks, together, counts)


def _meetings(source: Cells, target: Cells) -> tuple[int, int]:
    """How many pieces the chunks of both have in common, and how many shapes these have, at most.

    >>> from relayout import MemoryDesc
    >>> desc = MemoryDesc((60, 60), "u8", "ab")
    >>> [_meetings(Cells(desc, s), Cells(desc, t)) for s, t in [((20, 60), (10, 5)), ((7, 6), (5, 4))]]
    [(72, 4), (380, 18)]
    """
    pieces = kinds = 1
    for size, s, t in zip(source.grid.shape, source.grid.chunks, target.grid.chunks, strict=True):
        size = max(1, size)
        along = _whole(size, s) + _whole(size, t) - _whole(size, lcm(s, t))
        pieces *= along
        kinds *= min(along, min(s, t) // gcd(s, t) + 1)
    return pieces, kinds


def _edges(cells: Cells) -> int:
    """How many shapes cells have: within the array, and at its ends."""
    return prod(
        1 if size % chunk == 0 else 2 for size, chunk in zip(cells.grid.shape, cells.grid.chunks, strict=True)
    )


def _sizes(size: int, s: int, t: int) -> list[int]:
    """The sizes of a block along an axis: multiples of the destination's chunk."""
    whole = max(1, _whole(size, t)) * t
    found = {whole}
    one = t
    while one < whole:
        found.add(one)
        one *= 2
    common = lcm(s, t)
    while common < whole:
        found.add(common)
        common *= 2
    return sorted(found)


def _touched(size: int, s: int, b: int) -> tuple[int, int]:
    """Chunks of ``s`` that blocks of ``b`` touch: of all blocks together, and of one at most.

    The array is cut where a block begins and where a chunk begins, and each part is a chunk that a block
    touches. So blocks and chunks are counted, less the places where both begin; there is no loop over blocks,
    of which hostile metadata may have any number.

    All blocks but the last are whole. Of these each touches ``b // s`` chunks if that divides, or else one
    more, or two; whether any touches two more is told by the sum.

    >>> _touched(100, 7, 10), _touched(10**18, 10**9 + 7, 10**9 + 9)[1]
    ((23, 3), 3)
    """
    size, both = max(1, size), lcm(s, b)
    full = _whole(size, b) - 1
    last = _count(full, b, s, size)
    least, rest = divmod(b, s)
    before = full + _whole(full * b, s) - _whole(full * b, both)
    most = least if not rest else least + 1 + (before > full * (least + 1))
    return before + last, max(most, last) if full else last


def _count(k: int, b: int, s: int, size: int) -> int:
    start, stop = k * b, min((k + 1) * b, max(1, size))
    return _whole(stop, s) - start // s


def _largest(source: Cells, block: Sequence[int], target: Cells) -> tuple[list[int], list[int]]:
    ones = [
        _touched(size, s, b)[1]
        for size, s, b in zip(source.grid.shape, source.grid.chunks, block, strict=True)
    ]
    return ones, [_whole(b, t) for b, t in zip(block, target.grid.chunks, strict=True)]


def _worst(source: Cells, block: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """A block that touches as many chunks as any."""
    box = []
    for size, s, b in zip(source.grid.shape, source.grid.chunks, block, strict=True):
        most = _touched(size, s, b)[1]
        low, high = 0, _whole(max(1, size), b) - 1
        while low < high:  # the first of them: the first blocks up to which the most is reached
            middle = (low + high) // 2
            if _touched(min(size, (middle + 1) * b), s, b)[1] == most:
                high = middle
            else:
                low = middle + 1
        box.append((low * b, min((low + 1) * b, size)))
    return tuple(box)


def scattered(source: Cells, target: Cells, most: int, threads: int) -> Shape | None:
    """The blocks of whole chunks of the source that are written into parts of chunks fastest.

    Everything is read and written once; what is left to choose is how long the runs of bytes are.

    Returns
    -------
    Shape or None
        None if no block fits into ``most`` bytes, or if the destination can't be written in parts.

    Examples
    --------
    >>> from relayout import MemoryDesc
    >>> rows = Cells(MemoryDesc((1024, 1024), "f32", "ab"), (64, 1024))
    >>> columns = Cells(MemoryDesc((1024, 1024), "f32", "ab"), (1024, 64), plain=True)
    >>> found = scattered(rows, columns, 2 << 20, 1)
    >>> found.block, found.reads, found.runs
    ((128, 1024), 16, 128)
    """
    if not (target.plain and target.direct):
        return None
    dims = source.grid.shape
    axes = []
    for axis, (size, s) in enumerate(zip(dims, source.grid.chunks, strict=True)):
        whole = max(1, _whole(size, s)) * s
        sizes, one = [whole], s
        while one < whole:
            sizes.append(one)
            one *= 2
        # A block that begins within one of 16 channels would have to write a part of that.
        weights = target.weights[axis]
        axes.append([b for b in sizes if b >= size or all(b % weight == 0 for weight in weights)])
    while prod(map(len, axes)) > MOST_SHAPES:
        longest = max(axes, key=len)
        del longest[2::2]
    width = target.whole.dtype.bits // 8
    chunk = target.stored.chunks
    rates = assumed(source.plain, True)
    found: list[tuple[float, int, Shape]] = []
    for block in product(*axes):
        room = prod(_longest(n, t, b) for n, t, b in zip(dims, target.grid.chunks, block, strict=True))
        memory = room * width + source.nbytes + source.coding_bytes * (1 if source.direct else 2)
        if memory > most:
            continue
        blocks = prod(_whole(max(1, size), b) for size, b in zip(dims, block, strict=True))
        parts = prod(
            _touched(size, t, b)[0] for size, t, b in zip(dims, target.grid.chunks, block, strict=True)
        )
        part = list(chunk)
        for position, (axis, unit) in target.cuts.items():
            if block[axis] < dims[axis]:
                part[position] = min(chunk[position], block[axis] // unit)
        last = max((p for p, (a, b) in enumerate(zip(part, chunk, strict=True)) if a < b), default=0)
        reads, writes = source.stored.total, target.stored.total
        work = Work(
            *(reads * source.stored_bytes, writes * target.stored_bytes, reads),
            *(source.grid.total, _phases(source, target, block), 0, parts, parts * prod(part[:last])),
        )
        shape = Shape(block, False, reads, writes, memory, blocks, work)
        found.append((shape.seconds(rates, threads), memory, shape))
    if not found:
        return None
    alike = LONG * min(seconds for seconds, *_ in found)
    return min((memory, seconds, shape) for seconds, memory, shape in found if seconds <= alike)[2]


def _phases(source: Cells, target: Cells, block: Sequence[int]) -> int:
    """How many shapes the pieces have, at most, in which cells of the source lie in a block that is cut where
    whole chunks of the destination begin.

    A cell that is cut there has two pieces, of any lengths if the chunks have no common divisor.
    """
    kinds = 1
    for s, t, b, count in zip(source.grid.chunks, target.grid.chunks, block, source.grid.counts, strict=True):
        lengths = min(s, t) // gcd(s, t)
        kinds *= 2 * min(count, lengths) if lengths > 1 and b > t else 1
    return kinds


def _longest(size: int, t: int, b: int) -> int:
    """The longest block of ``b``, with what lies beyond the array in the last chunk of ``t``."""
    last = (_whole(max(1, size), b) - 1) * b
    return max(min(b, _whole(size, t) * t), _whole(size, t) * t - last)


def between(source: Cells, target: Cells, most: int) -> list[tuple[int, ...]]:
    """Shapes of chunks of an intermediate store, those of fewest chunks first.

    The source is read in blocks ``r`` of whole chunks, the destination written in blocks ``w`` of whole
    chunks, both as large as memory allows; a chunk in between must divide both, so that neither pass reads or
    writes a part of one: the greatest common divisor along each axis.
    """
    dims = source.grid.shape
    width = max(source.whole.dtype.bits, target.whole.dtype.bits) // 8
    firsts, seconds = (
        [
            block
            for share in (1.2, 2, 3)  # beside a block there is a chunk or two
            for block in _grown(cells.grid.chunks, dims, int(most / (share * width)))
        ]
        for cells in (source, target)
    )
    found = set()
    for r in firsts:
        for w in seconds:
            found.add(
                tuple(
                    b if a >= size else a if b >= size else gcd(a, b)
                    for a, b, size in zip(r, w, dims, strict=True)
                )
            )
    within = [tuple(min(c, max(1, size)) for c, size in zip(chunk, dims, strict=True)) for chunk in found]
    return sorted(set(within), key=lambda chunk: (Grid(dims, chunk).total, chunk))


def _grown(chunk: Sequence[int], dims: Sequence[int], room: int) -> list[tuple[int, ...]]:
    """Multiples of a chunk with as many elements as there is room for, in several shapes."""
    axes = []
    for c, size in zip(chunk, dims, strict=True):
        whole = max(1, _whole(size, c)) * c
        sizes, one = [c], 2 * c
        while one < whole:
            sizes.append(one)
            one *= 2
        axes.append(sizes if whole == c else [*sizes, whole])
    while prod(map(len, axes)) > MOST_SHAPES:
        longest = max(axes, key=len)
        del longest[1:-1:2]
    fitting = [block for block in product(*axes) if prod(block) <= room]
    largest = sorted(fitting, key=prod, reverse=True)
    return [block for block in largest if 2 * prod(block) >= prod(largest[0])][:24]
