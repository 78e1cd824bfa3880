"""The shapes of blocks, gone through: which is the fastest that fits into the memory?

Along one axis a block of ``b`` elements of a grid with chunks of ``t`` (destination) over one with chunks of
``s`` (source) reads ``r(b)`` chunks of the source, counted for each block that they lie in. The sum over all
blocks of a product is the product of the sums, so the whole cost of a shape of blocks is a product over axes,
which needs no loop over blocks::

    chunks read     =  product over axes of the sum over blocks of chunks touched
    chunks written  =  product over axes of dims / t
    memory          =  of the largest block, by going through its schedule (:func:`.task.schedule`)

Candidates along an axis are ``t`` times powers of two, common multiples of ``s`` and ``t``, and the whole
axis. That is some hundreds to some thousands of shapes. They are sorted by predicted time, and the first
that fits is taken.

The choice must be the same tomorrow, when a conversion is resumed, so that it is made with fixed rates
(:data:`ASSUMED`), and never with measured ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import gcd, lcm, log, prod
from typing import Final, NamedTuple

from relayout.stores.grid import Cells, Grid
from relayout.stores.rates import ASSUMED, Rates
from relayout.stores.task import Schedule, schedule

__all__ = ["ASSUMED", "Shape", "between", "fastest", "scattered"]


ALIKE: Final = 1.1
"""The ratio of two predicted times up to which the smaller blocks are taken: what is killed loses less, and
one block more than a multiple of the threads is no reason for huge ones."""

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
    runs: int = 0
    """Runs of bytes that are written into parts of files; 0: chunks are written whole."""

    def seconds(self, source: Cells, target: Cells, rates: Rates, threads: int = 1) -> float:
        """Predicted time on so many threads, with the rates of one."""
        read, written = self.reads * source.stored_bytes, self.writes * target.stored_bytes
        work = rates.seconds(read, written, self.reads + self.writes, self.runs)
        return work / self.blocks * _whole(self.blocks, threads)


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
    """
    found = sorted(
        (_rank(shape.seconds(source, target, ASSUMED, threads)), shape.reads, prod(shape.block), shape)
        for shape in _shapes(source, target, most)
    )
    left = MOST_STEPS
    for *_, shape in found:
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


def _rank(seconds: float) -> int:
    """Times that are alike have the same; those that are longer a larger one."""
    return round(log(max(seconds, 1e-9), ALIKE))


def _shapes(source: Cells, target: Cells, most: int) -> Iterator[Shape]:
    """All candidates that could fit, without having looked at their schedule."""
    axes = []
    for size, s, t in zip(source.grid.shape, source.grid.chunks, target.grid.chunks, strict=True):
        axes.append([(b, *_touched(size, s, b)) for b in _sizes(size, s, t)])
    while prod(map(len, axes)) > MOST_SHAPES:
        longest = max(axes, key=len)
        longest[:] = longest[::2] + ([longest[-1]] if len(longest) % 2 == 0 else [])
    least = source.nbytes + target.nbytes + max(source.coding_bytes, 2 * target.coding_bytes)
    if least > most:
        return
    for several in product(*axes):
        block = tuple(b for b, _, _ in several)
        held = (
            prod(n for _, _, n in several) * source.nbytes,
            prod(_whole(b, t) for b, t in zip(block, target.grid.chunks, strict=True)) * target.nbytes,
        )
        if min(held) > 64 * most:  # no order of its cells makes that fit
            continue
        reads = prod(total for _, total, _ in several) * source.per_cell
        blocks = prod(_whole(max(1, size), b) for size, b in zip(source.grid.shape, block, strict=True))
        yield Shape(block, True, reads, target.stored.total, 0, blocks)


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
    ((256, 1024), 16, 64)
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
    found: list[tuple[float, int, Shape]] = []
    for block in product(*axes):
        room = prod(_longest(n, t, b) for n, t, b in zip(dims, target.grid.chunks, block, strict=True))
        memory = room * width + source.nbytes + source.coding_bytes * (1 if source.direct else 2)
        if memory > most:
            continue
        blocks = prod(_whole(max(1, size), b) for size, b in zip(dims, block, strict=True))
        pieces = prod(
            _touched(size, t, b)[0] for size, t, b in zip(dims, target.grid.chunks, block, strict=True)
        )
        part = list(chunk)
        for position, (axis, unit) in target.cuts.items():
            if block[axis] < dims[axis]:
                part[position] = min(chunk[position], block[axis] // unit)
        last = max((p for p, (a, b) in enumerate(zip(part, chunk, strict=True)) if a < b), default=0)
        shape = Shape(
            block, False, source.stored.total, target.stored.total, memory, blocks, pieces * prod(part[:last])
        )
        found.append((shape.seconds(source, target, ASSUMED, threads), memory, shape))
    return min(found)[2] if found else None


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
