"""Resampling and averages of bytes beside which other pixels lie: gathered and multiplied as bytes.

Where channels are neighbours, a vector is a part of one pixel, and its weights are the same in all lanes. In
``nchw``, and with few channels in a block, a vector is several pixels, each with places and weights of its
own. They are the same in each row, so that they are tables, and AVX512-VBMI's permutation of 64 bytes puts
both neighbours of 32 results side by side ::

    a row                   a b c d ...
    gathered (vpermb)       a a | a b | a b | b c | b c | ...         here for twice the size
    weights                 4 0 | 3 1 | 1 3 | 3 1 | 1 3 | ...
    vpmaddubsw              32 sums of 16 bits

So two instructions widen a row and interpolate it. The sums of two rows stay in registers for all rows of
results between them, two for twice the size: they are multiplied with the weights of these, added up, divided
and rounded. Averages of two rows and two columns are the same with weights of 1. What weights are as
integers, and why results are exact, is said in :mod:`~.separable`, whose numbers are used.

Traps: ``vpmaddubsw`` saturates sums at 16 bits with a sign. Those of bytes with weights that add up to 128 at
most never get there. It takes one operand without a sign and one with: of u8 that is the elements and the
weights, of s8 the weights and the elements. And a row that is shorter than a register would be read beyond
its end: the last ones of the source are copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from relayout.ir.builder import Function, Operand, table
from relayout.ir.dots import byte_products
from relayout.ir.kernel import kernel
from relayout.ir.types import I8, I16, I32, I64, PTR, Value, constant, poison, vector
from relayout.ir.vectors import load_pieces, picked_anywhere, pieces_of, store_pieces
from relayout.kernels.reduce.blocks import in_tasks
from relayout.kernels.reduce.rounding import divided, divisor
from relayout.kernels.reduce.separable import MOST_BLOCKS, Separable
from relayout.kernels.reduce.steps import Step, Turns, in_steps, steps_table
from relayout.loops.nest import Nest
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "Pictures", "module", "suits", "tables", "weighs"]

ENTRY = "pixels"
ROWS, BETWEEN, STEPS = "rows", "between", "steps"  # the names of tables
RESULTS = 32  # of a step, whose sums fill a register
MOST_STEPS = 256  # of a row; each has two registers of a table
LEAST_RESULTS = 4  # of a row
HELD = 6  # steps whose sums of two rows stay in registers
SEVERAL = 4  # the same in a loop over those of a long row
PAIRS_OF_ROWS = 8  # of the source, whose results are a task
LARGEST_WEIGHT = 127  # that is a byte with a sign
LARGEST_SUM = 128  # of the weights along a row, so that sums of bytes have 15 bits
TWICE = 0x10001  # times a number of 16 bits: that in both halves of 32
BYTES, WORDS = vector(LINE, I8), vector(RESULTS, I16)


def suits(made: Separable, machine: Machine) -> bool:
    """Whether the processor has the instructions, and a register holds the neighbours of 32 results."""
    if not (machine.permutes(8) and made.columns and 0 < len(made.blocks) <= MOST_BLOCKS):
        return False
    return weighs(made) and all(bool(_steps(made, block)) for block in made.blocks)


def weighs(made: Separable) -> bool:
    """Whether ``vpmaddubsw`` takes the weights along a row."""
    weights = [weight for row in made.columns for _, weight in row]
    return (
        max(weights) <= LARGEST_WEIGHT and max(sum(w for _, w in row) for row in made.columns) <= LARGEST_SUM
    )


def _steps(made: Separable, block: Nest) -> list[Step]:
    """The steps of a row; none where rows are not contiguous, or neighbours lie too far apart."""
    x, each = made.width, block.length
    size, out = x.size * each, x.out * each
    if (x.src, x.dst) != (each, each) or not LEAST_RESULTS <= out <= MOST_STEPS * RESULTS:
        return []
    found = []
    for first in _starts(out):
        count = min(RESULTS, out - first)
        places, weights = [], []
        for result in range(first, first + count):
            pixel, channel = divmod(result, each)
            for place, weight in made.columns[pixel]:
                places.append(place * each + channel)
                weights.append(weight)
        base = max(0, min(min(places), size - LINE))
        if max(places) - base >= LINE:
            return []
        rest = bytes(LINE - len(places))
        picks = bytes(place - base for place in places)
        found.append(Step(first, count, (base,), picks + rest + bytes(weights) + rest))
    return found


def _starts(out: int) -> list[int]:
    """Where steps begin, of a row of so many results: mostly in pairs, the last of which step back.

    >>> _starts(20), _starts(84), _starts(112)
    ([0], [0, 32, 52], [0, 32, 48, 80])
    >>> _starts(300)
    [0, 32, 64, 96, 128, 160, 192, 224, 172, 204, 236, 268]
    """
    if out <= HELD * RESULTS:
        pairs, rest = divmod(out, LINE)
        found = [k * RESULTS for k in range(2 * pairs)]
        if 0 < rest <= RESULTS:
            return [*found, max(0, out - RESULTS)]
        return [*found, max(0, out - LINE), out - RESULTS] if rest else found
    chunk = SEVERAL * RESULTS
    chunks = [min(k * chunk, out - chunk) for k in range(-(-out // chunk))]
    return [first + k * RESULTS for first in chunks for k in range(SEVERAL)]


def module(made: Separable, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its tables."""
    texts, pairs = tables(made)
    f = kernel(ENTRY, machine)
    for k, block in enumerate(made.blocks):
        steps, name = _steps(made, block), f"{STEPS}{k}"
        texts.append(steps_table(name, steps))
        _Block(f, made, block, steps, name).write(pairs)
    return "".join([*texts, f.text()])


def tables(made: Separable) -> tuple[list[str], int]:
    """The texts of the tables that say between which rows results lie; and the pairs of rows."""
    step, pairs = made.height.src, _pairs(made)
    between = [n for (one, two), first, end in pairs for n in (one * step, two * step, first, end)]
    weights = [weight * TWICE for row in made.rows for _, weight in row]
    return [table(BETWEEN, between), table(ROWS, weights)], len(pairs)


def _pairs(made: Separable) -> list[tuple[tuple[int, int], int, int]]:
    """Pairs of rows, and which rows of results lie between them: from one to before another."""
    found: list[tuple[tuple[int, int], int, int]] = []
    for k, ((one, _), (two, _)) in enumerate(made.rows):
        if found and found[-1][0] == (one, two):
            found[-1] = ((one, two), found[-1][1], k + 1)
        else:
            found.append(((one, two), k, k + 1))
    return found


Sums = TypeVar("Sums")
"""The sums of a step's results along one row of the source."""


class Pictures(Generic[Sums]):
    """Writes the loops of one block: pictures, pairs of rows of them, and the steps of a row.

    What the sums of a step are, and how results are made of them, is said by those who have registers of a
    kind: :meth:`sums` and :meth:`stored`.
    """

    register = LINE
    """Bytes of a row that are loaded at once, at least."""
    turns = Turns(HELD, SEVERAL)
    """How many steps have their sums of two rows in registers."""

    def __init__(self, b: Function, made: Separable, block: Nest, steps: list[Step], name: str) -> None:
        self.b, self.made, self.block = b, made, block
        self.steps, self.name = steps, name
        self.signed = made.kind.is_signed
        self.shifts = made.whole & (made.whole - 1) == 0  # whether quotients are shifts
        self.size = made.width.size * block.length
        short = self.size < self.register
        self.rooms = [b.alloca(self.register, self.register) for _ in "12"] if short else []

    def sums(self, row: Value, bases: Sequence[Operand], entry: Value) -> Sums:
        """The neighbours of the results of a step along a row, with weights."""
        raise NotImplementedError

    def stored(self, dst: Value, row: Value, sums: list[list[Sums]], starts: list[int], count: int) -> None:
        """Write some steps of a row of results, between two rows of sums; ``count`` results each."""
        raise NotImplementedError

    def results(self, dst: Value, rows: list[Value], first: Value, end: Value) -> None:
        """The results between two rows of the source, from one row of results to before another."""
        b = self.b

        def make(entry: Value, bases: Sequence[Operand]) -> list[Sums]:
            return [self.sums(row, bases, entry) for row in rows]

        def use(skip: Operand, sums: list[list[Sums]], starts: list[int], count: int) -> None:
            to = b.gep(dst, skip)
            b.loop(first, end, 1, lambda row: self.stored(to, row, sums, starts, count))

        in_steps(b, self.name, self.steps, self.turns, make, use)

    def write(self, pairs: int) -> None:
        """All tasks: the results between some pairs of rows."""
        b, block = self.b, self.block

        def task(src: Value, dst: Value, group: Value) -> None:
            first = b.mul(group, PAIRS_OF_ROWS)
            end = b.smin(b.add(first, PAIRS_OF_ROWS), pairs)
            b.loop(first, end, 1, lambda pair: self._between(src, dst, pair))

        in_tasks(b, block.starts, block.around, task, -(-pairs // PAIRS_OF_ROWS))

    def _between(self, src: Value, dst: Value, pair: Value) -> None:
        """The results between two rows of the source."""
        b = self.b
        entry = b.gep(Value(f"@{BETWEEN}", PTR), pair, 32)
        one, two, first, end = (b.load(I64, b.gep(entry, 8 * k)) for k in range(4))
        rows = [b.gep(src, one), b.gep(src, two)]
        if self.rooms:
            rows = [self._readable(row, room) for row, room in zip(rows, self.rooms, strict=True)]
        self.results(dst, rows, first, end)

    def _readable(self, row: Value, room: Value) -> Value:
        """Where a register of a short row may be loaded: there, or a copy if the source ends too soon."""
        b, size = self.b, self.size
        loops = sum((loop.extent - 1) * max(0, loop.src) for loop in self.block.around)
        height = self.made.height
        end = self.block.src + loops + (height.size - 1) * max(0, height.src) + size
        left = b.sub(b.add(b.ptrtoint(b.arguments[0]), end), b.ptrtoint(row))
        short = b.icmp("slt", left, self.register)

        def copied() -> None:
            kind = vector(self.register, I8)
            loaded = load_pieces(b, kind, row, pieces_of(0, size, 0, 1), rest=poison(kind))
            b.store(loaded, room, self.register)

        b.when(short, copied)
        return b.select(short, room, row)

    def weights(self, row: Value) -> list[Value]:
        """Those of two rows in a row of results, twice in 32 bits each; none where they are 1."""
        b, entry = self.b, self.b.gep(Value(f"@{ROWS}", PTR), row, 16)
        return [b.load(I32, b.gep(entry, 8 * k), 8) for k in (0, 1)] if self.made.weighted else []


class _Block(Pictures[Value]):
    """The results of one block, by permutations of 64 bytes."""

    def sums(self, row: Value, bases: Sequence[Operand], entry: Value) -> Value:
        """The neighbours of 32 results along a row, with weights."""
        b = self.b
        places, weights = (b.load(BYTES, b.gep(entry, LINE * k), LINE) for k in (0, 1))
        x = picked_anywhere(b, b.load(BYTES, b.gep(row, bases[0]), 1), places)
        return byte_products(b, *((weights, x) if self.signed else (x, weights)))

    def stored(self, dst: Value, row: Value, sums: list[list[Value]], starts: list[int], count: int) -> None:
        """Some results of a row, between two rows of sums; two steps at once where they are neighbours."""
        b, to = self.b, self.b.gep(dst, row, self.made.height.dst)
        weights = [b.bitcast(b.splat(number, RESULTS // 2), WORDS) for number in self.weights(row)]
        every = []
        for pair in sums:
            one, two = (b.mul(x, by) for x, by in zip(pair, weights, strict=True)) if weights else pair
            every.append(b.add(one, two))
        while every:
            many = 2 if len(every) > 1 and starts[1] - starts[0] == RESULTS else 1
            found = self._rounded(every[:many]) if self.shifts else self._divided(every[:many])
            pieces = pieces_of(0, LINE if many == 2 else count, 0, 1)
            store_pieces(b, found, b.gep(to, starts[0]), pieces)
            every, starts = every[many:], starts[many:]

    def _packed(self, words: list[Value], half: int) -> Value:
        """The lower bytes (0) or the upper ones (1) of words."""
        parts = [self.b.bitcast(x, BYTES) for x in words]
        return self.b.shuffle(parts[0], range(half, LINE * len(words), 2), parts[-1])

    def _rounded(self, sums: list[Value]) -> Value:
        """Sums divided by a power of two, and rounded to the nearest, the even one of two: as bytes.

        With eight bits behind the point results are upper bytes, and lower ones decide. Signs need no care.
        """
        b, bits = self.b, self.made.whole.bit_length() - 1
        words = [b.shl(n, 8 - bits) for n in sums]
        whole, rest = self._packed(words, 1), self._packed(words, 0)
        up = b.icmp("ugt", b.intrinsic("uadd.sat", rest, b.and_(whole, 1)), constant(whole.type, 128))
        return b.select(up, b.add(whole, 1), whole)

    def _divided(self, sums: list[Value]) -> Value:
        """Sums divided by another number, and rounded, as bytes."""
        b, whole = self.b, self.made.whole
        by = divisor(whole)
        assert by is not None
        moved = 128 * whole if self.signed else 0
        quotients = [divided(b, b.add(n, moved), whole, by) for n in sums]
        found = self._packed(quotients, 0)
        return b.xor(found, -128) if self.signed else found
