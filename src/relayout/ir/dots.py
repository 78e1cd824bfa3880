"""Instructions that multiply narrow numbers and add up the products, in each lane several.

::

    pairs        sum += x0 * y0 + x1 * y1                    bf16 into f32; s16 into s32
    fours        sum += x0 * y0 + ... + x3 * y3              bytes into s32
    matrices     two rows of x by two columns of y           AArch64: in registers of four sums

Neighbours that are multiplied at once are a word of 32 bits, or two of them: registers of them are loaded,
spread and compared as words, and only the instruction looks at their parts. The first factors are unsigned of
``vpdpbusd`` and of those whose names begin with ``us``; all others are signed.

>>> from relayout.ir.builder import Function
>>> from relayout.ir.types import vector
>>> words = vector(16, I32)
>>> f = Function("f", {"total": words, "x": words, "y": words})
>>> product = dot(f, "vpdpbusd", f["total"], f["x"], f["y"])
>>> print(f.lines[-1])
  %v1 = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %total, <16 x i32> %x, <16 x i32> %y)
"""

from __future__ import annotations

from typing import NamedTuple

from relayout.ir.builder import Builder
from relayout.ir.types import BFLOAT, FLOAT, I8, I16, I32, Type, Value, integer, vector

__all__ = ["INSTRUCTIONS", "added_pairs", "byte_products", "declared", "dot", "pair_products"]


class Instruction(NamedTuple):
    """What LLVM calls it, and what it multiplies."""

    names: dict[int, str]
    """Of its intrinsics, by the number of sums in a register."""
    real: bool = False
    """Whether it multiplies bf16 and adds up f32; else bytes and s32."""
    paired: bool = False
    """Whether it multiplies matrices of two rows and two columns."""
    arm: bool = False
    """Whether it is one of AArch64."""
    unsigned: bool = False
    """Whether its first factors are, of those that can be emulated."""

    @property
    def factor(self) -> Type:
        """What is multiplied."""
        return BFLOAT if self.real else I8


def _x86(name: str, real: bool = False) -> Instruction:
    return Instruction({lanes: f"llvm.x86.{name}.{32 * lanes}" for lanes in (4, 8, 16)}, real)


def _arm(name: str, real: bool = False, paired: bool = False, unsigned: bool = False) -> Instruction:
    return Instruction({4: f"llvm.aarch64.neon.{name}"}, real, paired, True, unsigned)


INSTRUCTIONS = {
    "vpdpbusd": _x86("avx512.vpdpbusd"),
    "vdpbf16ps": _x86("avx512bf16.dpbf16ps", real=True),
    "vpdpbssd": Instruction({8: "llvm.x86.avx2.vpdpbssd.256"}),
    "sdot": _arm("sdot.v4i32.v16i8"),
    "usdot": _arm("usdot.v4i32.v16i8", unsigned=True),
    "bfdot": _arm("bfdot.v4f32.v8bf16", real=True),
    "smmla": _arm("smmla.v4i32.v16i8", paired=True),
    "usmmla": _arm("usmmla.v4i32.v16i8", paired=True, unsigned=True),
    "bfmmla": _arm("bfmmla", real=True, paired=True),
}
"""By the names that processors' manuals have for them."""

PAIR_PRODUCTS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
"""Products of pairs of s16, added up: what every x86 processor has, by the number of sums."""

BYTE_PRODUCTS = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
"""Products of pairs of bytes, added up in s16, by the words of a register."""


def declared(instruction: str, lanes: int) -> str:
    """The declaration of an instruction of x86; empty where none is needed.

    LLVM knows its intrinsics undeclared, but not by types that they had in earlier versions: the operands of
    ``vpdpbusd`` are vectors of bytes as of LLVM 22, and were of words. A declaration with words serves all.

    >>> declared("vpdpbusd", 16)
    'declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)'
    """
    how = INSTRUCTIONS.get(instruction)
    if how is None or how.arm or lanes not in how.names:
        return ""
    sums = vector(lanes, FLOAT if how.real else I32)
    factor = vector(2 * lanes, BFLOAT) if how.real else sums
    return f"declare {sums} @{how.names[lanes]}({sums}, {factor}, {factor})"


def dot(b: Builder, instruction: str, total: Value, x: Value, y: Value) -> Value:
    """``total`` and the products of ``x`` and ``y`` in each lane, by an instruction.

    Those of AArch64 are emulated elsewhere, where tests ask for them.
    """
    how, lanes = INSTRUCTIONS[instruction], total.type.count
    if how.arm and not b.machine.is_arm:
        return _emulated(b, how, total, x, y)
    factors = vector(lanes, I32)  # bytes of x86 as words, as they are declared
    if how.arm or how.real:
        factors = vector(32 * lanes // how.factor.bits, how.factor)
    return b.call_value(total.type, how.names[lanes], total, b.bitcast(x, factors), b.bitcast(y, factors))


def _emulated(b: Builder, how: Instruction, total: Value, x: Value, y: Value) -> Value:
    """What an instruction of AArch64 does, product by product."""
    lanes, bits = range(total.type.count), how.factor.bits
    parts = vector(32 * len(lanes) // bits, integer(bits))
    x, y = (b.bitcast(one, parts) for one in (x, y))
    depth = (2 if how.paired else 1) * 32 // bits
    rows = [lane // 2 if how.paired else lane for lane in lanes]
    columns = [lane % 2 if how.paired else lane for lane in lanes]
    for k in range(depth):
        one, two = (
            b.shuffle(each, [lane * depth + k for lane in places])
            for each, places in ((x, rows), (y, columns))
        )
        if how.real:
            one, two = (b.real(b.shl(b.zext(each, I32), 16)) for each in (one, two))
            total = b.fmuladd(one, two, total)
        else:
            one = (b.zext if how.unsigned else b.sext)(one, I32)
            total = b.add(total, b.mul(one, b.sext(two, I32)))
    return total


def pair_products(b: Builder, x: Value, y: Value) -> Value:
    """The two products of neighbouring s16 and their sum, in each word, on x86."""
    pairs = vector(x.type.bits * x.type.count // 16, I16)
    lanes = pairs.count // 2
    x, y = b.bitcast(x, pairs), b.bitcast(y, pairs)
    return b.call_value(vector(lanes, I32), PAIR_PRODUCTS[lanes], x, y)


def byte_products(b: Builder, x: Value, y: Value) -> Value:
    """The two products of neighbouring bytes, and their sum, in each half of a word, on x86 from AVX2 on.

    Those of ``x`` are unsigned, those of ``y`` signed. A sum that s16 can't hold is saturated: who calls this
    knows that there is none.
    """
    lanes = x.type.bits * x.type.count // 32
    bytes_ = vector(4 * lanes, I8)
    return b.call_value(
        vector(2 * lanes, I16), BYTE_PRODUCTS[lanes], b.bitcast(x, bytes_), b.bitcast(y, bytes_)
    )


def added_pairs(b: Builder, total: Value, x: Value, y: Value) -> Value:
    """``total`` and the two products of neighbouring s16 in each word, on any processor."""
    if b.machine.triple.startswith("x86_64"):
        return b.add(total, pair_products(b, x, y))
    pairs = vector(2 * total.type.count, I16)
    x, y = b.bitcast(x, pairs), b.bitcast(y, pairs)
    for half in (0, 1):
        picks = range(half, pairs.count, 2)
        one, two = (b.sext(b.shuffle(value, picks), I32) for value in (x, y))
        total = b.add(total, b.mul(one, two))
    return total
