"""The same as :mod:`~.pixels` where bytes are permuted within lanes of 16: AVX2.

``vpshufb`` finds a place for each byte of a lane among 16 bytes. Eight results with two neighbours each fill
a lane, so each lane is loaded from where its own neighbours begin, and a register is two groups of eight
results. Which groups these are only matters to the pack that makes bytes of two registers, lane by lane ::

    one register        results  0 to  7     16 to 23          sums of 16 bits
    the other           results  8 to 15     24 to 31
    packed              results  0 to 15     16 to 31          bytes, in order

So nothing is put in order afterwards. Sums are rounded as words: with a register of 32 bytes that takes fewer
instructions than bytes and their remainders.
"""

from __future__ import annotations

from typing import NamedTuple

from relayout.ir.builder import Function, table
from relayout.ir.dots import byte_products
from relayout.ir.kernel import kernel
from relayout.ir.types import I8, I16, I64, PTR, Value, vector
from relayout.ir.vectors import join_lanes, pieces_of, store_pieces
from relayout.kernels.reduce import pixels
from relayout.kernels.reduce.rounding import divided, divisor
from relayout.kernels.reduce.separable import MOST_BLOCKS, Separable
from relayout.loops.nest import Nest
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "module", "suits"]

ENTRY = "pixels"
STEPS = "steps"  # the name of a table
LANE = 16  # bytes
GROUP = LANE // 2  # results of a lane
GROUPS = 4  # of a step
RESULTS = GROUPS * GROUP
ORDER = 0, 2, 1, 3  # the groups of both registers
MOST_STEPS = 256  # of a row
LEAST_RESULTS = 4  # of a row
HELD = 2  # steps whose sums of two rows stay in registers
SHUFFLED = "llvm.x86.avx2.pshuf.b"
PACKED = {True: "llvm.x86.avx2.packsswb", False: "llvm.x86.avx2.packuswb"}  # by whether there is a sign
BYTES, WORDS = vector(2 * LANE, I8), vector(LANE, I16)


class _Step(NamedTuple):
    """Neighbouring results: four groups of eight, of which the last may be missing."""

    first: int
    """Byte of a row of results."""
    many: int
    """How many there are."""
    bases: tuple[int, ...]
    """For each group the byte of a row of the source, from which on a lane has all that is needed."""
    places: tuple[int, ...]
    """Bytes of each lane, two for each result; groups in the order of registers."""
    weights: tuple[int, ...]


def suits(made: Separable, machine: Machine) -> bool:
    """Whether the processor has the instructions, and a lane holds the neighbours of eight results."""
    if not machine.is_avx2:
        return False
    if not made.columns or not 0 < len(made.blocks) <= MOST_BLOCKS or not pixels.weighs(made):
        return False
    return all(bool(_steps(made, block)) for block in made.blocks)


def _steps(made: Separable, block: Nest) -> list[_Step]:
    """The steps of a row; none where rows are not contiguous, or neighbours lie too far apart."""
    x, each = made.width, block.length
    size, out = x.size * each, x.out * each
    if (x.src, x.dst) != (each, each) or not LEAST_RESULTS <= out <= MOST_STEPS * RESULTS:
        return []
    found = []
    for first in _starts(out):
        bases, places, weights = [], [], []
        for group in ORDER:
            start = first + group * GROUP
            pairs = [
                (place * each + result % each, weight)
                for result in range(start, min(start + GROUP, out))
                for place, weight in made.columns[result // each]
            ]
            base = max(0, min(min((place for place, _ in pairs), default=0), size - LANE))
            if any(place - base >= LANE for place, _ in pairs):
                return []
            pairs += [(base, 0)] * (LANE - len(pairs))
            bases.append(base)
            places += [place - base for place, _ in pairs]
            weights += [weight for _, weight in pairs]
        many = min(RESULTS, out - first)
        found.append(_Step(first, many, tuple(bases), tuple(places), tuple(weights)))
    return found


def _starts(out: int) -> list[int]:
    """Where steps begin, of a row of so many results: the last ones step back.

    >>> _starts(20), _starts(50), _starts(112), _starts(130)
    ([0], [0, 18], [0, 32, 48, 80], [0, 32, 64, 96, 66, 98])
    """
    if out <= RESULTS:
        return [0]
    if out <= HELD * RESULTS:
        return [0, out - RESULTS]
    chunk = HELD * RESULTS
    chunks = [min(k * chunk, out - chunk) for k in range(-(-out // chunk))]
    return [first + k * RESULTS for first in chunks for k in range(HELD)]


def module(made: Separable, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its tables."""
    texts, pairs = pixels.tables(made)
    f = kernel(ENTRY, machine)
    for k, block in enumerate(made.blocks):
        steps, name = _steps(made, block), f"{STEPS}{k}"
        texts.append(_table(name, steps))
        _Block(f, made, block, steps, name).write(pairs)
    return "".join([*texts, f.text()])


def _table(name: str, steps: list[_Step]) -> str:
    """The text of a table: places and weights of all steps, and behind them where each group begins."""
    bytes_ = b"".join(bytes(one) for step in steps for one in (step.places, step.weights))
    words = [int.from_bytes(bytes_[k : k + 8], "little", signed=True) for k in range(0, len(bytes_), 8)]
    return table(name, [*words, *(base for step in steps for base in step.bases)])


Sums = tuple[Value, Value]
"""Of the results of a step, in two registers."""


class _Block(pixels.Pictures):
    """Writes the loops of one block."""

    register = LANE

    def __init__(self, b: Function, made: Separable, block: Nest, steps: list[_Step], name: str) -> None:
        super().__init__(b, made, block)
        self.steps, self.table = steps, Value(f"@{name}", PTR)

    def results(self, dst: Value, rows: list[Value], first: Value, end: Value) -> None:
        """The results between two rows of the source, from one row of results to before another."""
        b, steps = self.b, self.steps
        if len(steps) <= HELD:
            sums = [
                [self._sums(row, step.bases, b.gep(self.table, 2 * LINE * k)) for row in rows]
                for k, step in enumerate(steps)
            ]
            starts = [step.first for step in steps]
            b.loop(first, end, 1, lambda row: self._stored(dst, row, sums, starts, steps[0].many))
            return

        def turn(k: Value) -> None:
            sums, starts = [], [ahead * RESULTS for ahead in range(HELD)]
            for ahead in range(HELD):
                number = b.add(k, ahead)
                at = b.gep(b.gep(self.table, 2 * LINE * len(steps)), number, 8 * GROUPS)
                bases = [b.load(I64, b.gep(at, 8 * group)) for group in range(GROUPS)]
                entry = b.gep(self.table, number, 2 * LINE)
                sums.append([self._sums(row, bases, entry) for row in rows])
            to = b.gep(dst, b.smin(b.mul(k, RESULTS), steps[-HELD].first))
            b.loop(first, end, 1, lambda row: self._stored(to, row, sums, starts, RESULTS))

        b.loop(0, len(steps), HELD, turn)

    def _sums(self, row: Value, bases: list[Value] | tuple[int, ...], entry: Value) -> Sums:
        """The neighbours of the results of a step along a row, with weights."""
        b, found = self.b, []
        for k in (0, 1):
            lanes = [b.load(vector(LANE, I8), b.gep(row, base), 1) for base in bases[2 * k : 2 * k + 2]]
            at = b.gep(entry, 2 * LANE * k)
            places, weights = (b.load(BYTES, b.gep(at, more), 2 * LANE) for more in (0, LINE))
            x = b.call_value(BYTES, SHUFFLED, join_lanes(b, lanes), places)
            found.append(byte_products(b, *((weights, x) if self.signed else (x, weights))))
        return found[0], found[1]

    def _stored(self, dst: Value, row: Value, sums: list[list[Sums]], starts: list[int], count: int) -> None:
        """Some results of a row, between two rows of sums."""
        b, to = self.b, self.b.gep(dst, row, self.made.height.dst)
        weights = [b.bitcast(b.splat(number, LANE // 2), WORDS) for number in self.weights(row)]
        for pair, start in zip(sums, starts, strict=True):
            words = []
            for k in (0, 1):
                each = [of[k] for of in pair]
                one, two = (b.mul(x, by) for x, by in zip(each, weights, strict=True)) if weights else each
                words.append(b.add(one, two))
            store_pieces(b, self._bytes(words), b.gep(to, start), pieces_of(0, count, 0, 1))

    def _bytes(self, sums: list[Value]) -> Value:
        """Sums divided and rounded to the nearest, the even one of two, as bytes."""
        b, whole = self.b, self.made.whole
        if not self.shifts:
            by = divisor(whole)
            assert by is not None
            moved = 128 * whole if self.signed else 0
            found = b.call_value(
                BYTES, PACKED[False], *(divided(b, b.add(n, moved), whole, by) for n in sums)
            )
            return b.xor(found, -128) if self.signed else found
        bits, shift = whole.bit_length() - 1, b.ashr if self.signed else b.lshr
        odd = [b.and_(shift(n, bits), 1) for n in sums]
        ready = [b.add(b.add(n, whole // 2 - 1), more) for n, more in zip(sums, odd, strict=True)]
        return b.call_value(BYTES, PACKED[self.signed], *(shift(n, bits) for n in ready))
