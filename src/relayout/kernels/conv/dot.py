"""The code of one step of a sum: load, multiply, add.

What a tile does with a vector of weights and an element of the source depends on the arithmetic alone
(:mod:`.arithmetic`), and is written here, once for all tiles::

    depth 1      sum += x * w                       x, w: lanes of f32
    pairs        sum += x0 * w0 + x1 * w1           in each lane two neighbouring s16, or bf16
    fours        sum += x0 * w0 + ... + x3 * w3     in each lane four neighbouring bytes

``x`` is an element of the source, or the neighbours that are multiplied at once, in all lanes. Registers of
neighbours have the type of words of 32 bits, and :mod:`relayout.ir.dots` has the instructions that look at
their parts.
"""

from __future__ import annotations

from relayout.dtypes import dtype
from relayout.ir import dots
from relayout.ir.builder import Builder
from relayout.ir.conversions import convert
from relayout.ir.types import FLOAT, I32, Value, constant, integer, poison, vector
from relayout.kernels.conv.arithmetic import QUADS, Arithmetic

__all__ = ["Dot", "declared"]

REPEATED = {1: 0x01010101, 2: 0x00010001}  # by the bytes of an element, 1 in each of a word
SIZE = 16  # bytes of a register of AArch64


def declared(arithmetic: Arithmetic, lanes: int) -> str:
    """The declaration of what an arithmetic multiplies by; empty where there is none."""
    tiles_of_bytes = arithmetic.tiles and arithmetic.sums == "s32"  # whose weights are added up by vectors
    return dots.declared(QUADS.dot if tiles_of_bytes else arithmetic.dot, lanes)


class Dot:
    """Writes steps of sums into a function.

    Attributes
    ----------
    sum : Type
        A vector of sums.
    factor : Type
        What is multiplied.
    """

    def __init__(self, b: Builder, arithmetic: Arithmetic, weights: str, lanes: int) -> None:
        self.b, self.arithmetic, self.lanes, self.kind = b, arithmetic, lanes, dtype(weights)
        self.sum = vector(lanes, FLOAT if arithmetic.sums == "f32" else I32)
        self.factor = self.sum if arithmetic.depth == 1 else vector(lanes, I32)

    @property
    def ones(self) -> Value:
        """Weights of 1: they add up the elements of integers themselves."""
        return constant(self.factor, REPEATED[self.arithmetic.element])

    def spread(self, x: Value) -> Value:
        """A number in s32 as an operand of integers: in all neighbours of a word, wrapped around."""
        size = self.arithmetic.element
        return self.b.mul(self.b.and_(x, (1 << 8 * size) - 1), REPEATED[size])

    def summed(self, pointer: Value, total: Value) -> Value:
        """``total`` and the neighbouring weights themselves, of integers."""
        b, how = self.b, self.arithmetic
        if how.tiles:
            return Dot(b, QUADS, self.kind.name, self.lanes).summed(pointer, total)
        if not how.paired:
            return self.add(self.ones, self.weights(pointer), total)
        nothing = constant(self.sum, 0)
        first, second = (self.add(self.ones, half, nothing) for half in self.halves(pointer))
        return b.add(total, b.shuffle(first, [0, 1, 4, 5], second))

    def everywhere(self, pointer: Value) -> Value:
        """An element of the source, or the neighbours that are multiplied at once, in all lanes."""
        b, how = self.b, self.arithmetic
        x = b.splat(b.load(self.factor.element, pointer, how.element), self.lanes)
        if not how.shift:
            return x
        return b.xor(x, how.shift % 256 * REPEATED[1])  # a byte that is added to without a carry

    def rest(self, pointer: Value, count: int, zero: Value) -> Value:
        """The same of fewer neighbours, behind which nothing is read; ``zero`` takes the place of others."""
        b, how = self.b, self.arithmetic
        bits, word = 8 * how.element, self.factor.element
        x = constant(word, 0)
        for k in range(count):
            one = b.load(integer(bits), b.gep(pointer, k * how.element), how.element)
            x = b.or_(x, b.shl(b.zext(one, word), k * bits))
        x = b.xor(b.splat(x, self.lanes), how.shift % 256 * REPEATED[1])
        mask = (1 << count * bits) - 1
        return b.or_(b.and_(x, mask), b.and_(zero, ~mask))

    def two(self, one: Value, other: Value) -> Value:
        """The neighbours at two pixels, one behind the other, for an instruction that takes both."""
        b, word = self.b, integer(8 * self.arithmetic.step)
        x = poison(vector(2, word))
        for k, pointer in enumerate((one, other)):
            x = b.insert(x, b.load(word, pointer, self.arithmetic.element), k)
        return b.bitcast(x, self.factor)

    def halves(self, pointer: Value) -> tuple[Value, Value]:
        """The weights of two channels, and of the next two."""
        b, size = self.b, self.kind.bits // 8
        return b.load(self.factor, pointer, size), b.load(self.factor, b.gep(pointer, SIZE), size)

    def weights(self, pointer: Value) -> Value:
        """A vector of weights, as it is multiplied."""
        b, how = self.b, self.arithmetic
        if how.dot:
            return b.load(self.factor, pointer, self.kind.bits // 8)
        raw = b.load(vector(self.lanes * how.depth, integer(self.kind.bits)), pointer)
        return b.bitcast(convert(b, raw, self.kind, dtype(how.operand)), self.factor)

    def add(self, x: Value, y: Value, total: Value) -> Value:
        """``total + x * y`` in each lane, of neighbours the sum of all products."""
        if self.arithmetic.depth == 1:
            return self.b.fmuladd(x, y, total)
        if self.arithmetic.dot:
            return dots.dot(self.b, self.arithmetic.dot, total, x, y)
        return dots.added_pairs(self.b, total, x, y)
