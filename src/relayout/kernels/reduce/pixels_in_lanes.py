"""The same as :mod:`~.pixels` where bytes are permuted within lanes of 16: AVX2.

``vpshufb`` finds a place for each byte of a lane among 16 bytes. Eight results with two neighbours each fill
a lane, so each lane is loaded from where its own neighbours begin, and a register is two groups of eight
results. Which groups these are only matters to the pack that makes bytes of two registers, lane by lane ::

    one register        results  0 to  7     16 to 23          sums of 16 bits
    the other           results  8 to 15     24 to 31
    packed              results  0 to 15     16 to 31          bytes, in order

So nothing is put in order afterwards. Sums are rounded as words: with a register of 32 bytes that takes fewer
instructions than bytes and their remainders.

A step is four groups, and its table has for each of them where a lane begins in a row of the source, two
registers of places and two of weights. Of the last step groups may be missing: they repeat the first place
with weights of 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.ir.builder import Operand
from relayout.ir.dots import byte_products
from relayout.ir.kernel import kernel
from relayout.ir.types import I8, I16, Value, vector
from relayout.ir.vectors import join_lanes, picked_in_lanes, pieces_of, store_pieces
from relayout.kernels.reduce import pixels
from relayout.kernels.reduce.rounding import divided, divisor
from relayout.kernels.reduce.separable import MOST_BLOCKS, Separable
from relayout.kernels.reduce.steps import Step, Turns, starts, steps_table
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
TURNS = Turns(2, 2)  # steps whose sums of two rows stay in registers
PACKED = {True: "llvm.x86.avx2.packsswb", False: "llvm.x86.avx2.packuswb"}  # by whether there is a sign
BYTES, WORDS = vector(2 * LANE, I8), vector(LANE, I16)


def suits(made: Separable, machine: Machine) -> bool:
    """Whether the processor has the instructions, and a lane holds the neighbours of eight results."""
    if not machine.is_avx2:
        return False
    if not made.columns or not 0 < len(made.blocks) <= MOST_BLOCKS or not pixels.weighs(made):
        return False
    return all(bool(_steps(made, block)) for block in made.blocks)


def _steps(made: Separable, block: Nest) -> list[Step]:
    """The steps of a row; none where rows are not contiguous, or neighbours lie too far apart."""
    x, each = made.width, block.length
    size, out = x.size * each, x.out * each
    if (x.src, x.dst) != (each, each) or not LEAST_RESULTS <= out <= MOST_STEPS * RESULTS:
        return []
    found = []
    for first in starts(out, RESULTS, TURNS):
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
        data = bytes(places) + bytes(weights)
        found.append(Step(first, min(RESULTS, out - first), tuple(bases), data))
    return found


def module(made: Separable, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its tables."""
    texts, pairs = pixels.tables(made)
    f = kernel(ENTRY, machine)
    for k, block in enumerate(made.blocks):
        steps, name = _steps(made, block), f"{STEPS}{k}"
        texts.append(steps_table(name, steps))
        _Block(f, made, block, steps, name).write(pairs)
    return "".join([*texts, f.text()])


Sums = tuple[Value, Value]
"""Of the results of a step, in two registers."""


class _Block(pixels.Pictures[Sums]):
    """The results of one block, by shuffles within lanes."""

    register, turns = LANE, TURNS

    def sums(self, row: Value, bases: Sequence[Operand], entry: Value) -> Sums:
        """The neighbours of the results of a step along a row, with weights."""
        b, found = self.b, []
        for k in (0, 1):
            lanes = [b.load(vector(LANE, I8), b.gep(row, base), 1) for base in bases[2 * k : 2 * k + 2]]
            at = b.gep(entry, 2 * LANE * k)
            places, weights = (b.load(BYTES, b.gep(at, more), 2 * LANE) for more in (0, LINE))
            x = picked_in_lanes(b, join_lanes(b, lanes), places)
            found.append(byte_products(b, *((weights, x) if self.signed else (x, weights))))
        return found[0], found[1]

    def stored(self, dst: Value, row: Value, sums: list[list[Sums]], starts: list[int], count: int) -> None:
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
