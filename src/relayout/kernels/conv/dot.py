"""The code of one step of a sum: load, multiply, add.

What a tile does with a vector of weights and an element of the source depends on the arithmetic alone
(:mod:`.arithmetic`), and is written here, once for all tiles::

    depth 1      sum += x * w                       x, w: lanes of f32
    pairs        sum += x0 * w0 + x1 * w1           in each lane two neighbouring s16, or bf16
    fours        sum += x0 * w0 + ... + x3 * w3     in each lane four neighbouring bytes

``x`` is an element of the source, or the neighbours that are multiplied at once, in all lanes. Registers of
neighbours have the type of 32-bit words: they are loaded, spread and compared as words, and only the
instruction looks at their parts.
"""

from __future__ import annotations

from relayout.dtypes import dtype
from relayout.ir.builder import Builder
from relayout.ir.conversions import convert
from relayout.ir.types import BFLOAT, FLOAT, I8, I16, I32, Value, constant, integer, poison, vector
from relayout.kernels.conv.arithmetic import QUADS, Arithmetic

__all__ = ["INSTRUCTIONS", "NEON", "PAIR_PRODUCTS", "Dot", "declared"]

PAIR_PRODUCTS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
"""Products of pairs, added up: what x86 processors have for it, by the number of sums."""

REPEATED = {1: 0x01010101, 2: 0x00010001}  # by the bytes of an element, 1 in each of a word
SIZE = 16  # bytes of a register of AArch64

INSTRUCTIONS = {
    ("vpdpbusd", 4): "llvm.x86.avx512.vpdpbusd.128",
    ("vpdpbusd", 8): "llvm.x86.avx512.vpdpbusd.256",
    ("vpdpbusd", 16): "llvm.x86.avx512.vpdpbusd.512",
    ("vdpbf16ps", 4): "llvm.x86.avx512bf16.dpbf16ps.128",
    ("vdpbf16ps", 8): "llvm.x86.avx512bf16.dpbf16ps.256",
    ("vdpbf16ps", 16): "llvm.x86.avx512bf16.dpbf16ps.512",
    ("vpdpbssd", 8): "llvm.x86.avx2.vpdpbssd.256",
}
"""Instructions of x86 that add products to sums, by the number of sums."""

NEON = {
    "sdot": "llvm.aarch64.neon.sdot.v4i32.v16i8",
    "usdot": "llvm.aarch64.neon.usdot.v4i32.v16i8",
    "bfdot": "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
    "smmla": "llvm.aarch64.neon.smmla.v4i32.v16i8",
    "usmmla": "llvm.aarch64.neon.usmmla.v4i32.v16i8",
    "bfmmla": "llvm.aarch64.neon.bfmmla",
}
"""Those of AArch64, of registers of four sums."""


def declared(arithmetic: Arithmetic, lanes: int) -> str:
    """The declaration of an instruction; empty where there is none.

    LLVM knows its intrinsics undeclared, but not by types that they had in earlier versions: the operands of
    ``vpdpbusd`` are vectors of bytes as of LLVM 22, and were of words. A declaration with words serves all.

    >>> from relayout.kernels.conv.arithmetic import QUADS
    >>> declared(QUADS, 16)
    'declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)'
    """
    if arithmetic.tiles and arithmetic.sums == "s32":
        arithmetic = QUADS  # which add up their weights
    if (arithmetic.dot, lanes) not in INSTRUCTIONS:
        return ""
    sums = vector(lanes, FLOAT if arithmetic.sums == "f32" else I32)
    factor = vector(2 * lanes, BFLOAT) if arithmetic.operand == "bf16" else vector(lanes, I32)
    return f"declare {sums} @{INSTRUCTIONS[arithmetic.dot, lanes]}({sums}, {factor}, {factor})"


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
        b, how, lanes = self.b, self.arithmetic, self.lanes
        if how.depth == 1:
            return b.fmuladd(x, y, total)
        if how.dot in NEON:
            return self._on_arm(x, y, total)
        if how.dot:
            name = INSTRUCTIONS[how.dot, lanes]
            if how.operand == "bf16":
                x, y = (b.bitcast(one, vector(2 * lanes, BFLOAT)) for one in (x, y))
            return b.call_value(self.sum, name, total, x, y)
        x, y = (b.bitcast(one, vector(2 * lanes, I16)) for one in (x, y))
        if b.machine.triple.startswith("x86_64"):
            return b.add(total, b.call_value(self.sum, PAIR_PRODUCTS[lanes], x, y))
        for half in (0, 1):
            picks = range(half, 2 * lanes, 2)
            one, two = (b.sext(b.shuffle(value, picks), I32) for value in (x, y))
            total = b.add(total, b.mul(one, two))
        return total

    def _on_arm(self, x: Value, y: Value, total: Value) -> Value:
        """By an instruction of AArch64; elsewhere, where tests ask for it, by what it does."""
        b, how = self.b, self.arithmetic
        parts = vector(SIZE // how.element, BFLOAT if how.operand == "bf16" else I8)
        if b.machine.is_arm:
            return b.call_value(self.sum, NEON[how.dot], total, b.bitcast(x, parts), b.bitcast(y, parts))
        x, y = (b.bitcast(one, parts.of(integer(8 * how.element))) for one in (x, y))
        rows = [lane // 2 if how.paired else lane for lane in range(self.lanes)]
        columns = [lane % 2 if how.paired else lane for lane in range(self.lanes)]
        for k in range(how.depth):
            one, two = (
                b.shuffle(each, [lane * how.depth + k for lane in lanes])
                for each, lanes in ((x, rows), (y, columns))
            )
            if how.sums == "f32":
                one, two = (b.real(b.shl(b.zext(each, I32), 16)) for each in (one, two))
                total = b.fmuladd(one, two, total)
            else:
                one = (b.zext if how.dot.startswith("us") else b.sext)(one, I32)
                total = b.add(total, b.mul(one, b.sext(two, I32)))
        return total
