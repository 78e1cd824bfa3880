"""4-bit elements in rows, with AVX2: straight to words, and from bytes that packs have dealt out.

Elsewhere every 4-bit element gets a byte of its own, and bytes are what kernels move. Where rows only change
their type, two steps can be left out. On the way to floats a word of four bytes *is* eight elements::

    76543210        a word in memory, element 0 being the lowest half of a byte
    0....... 10...... 210..... ..  76543210     in eight lanes, shifted left so that one element is on top
    0        1        2        ..  7            shifted right: zeros or signs come in

On the way back two registers of bytes become one of 4-bit elements, and only that is put in order.
"""

from __future__ import annotations

from relayout.dtypes import DType
from relayout.ir.builder import Builder
from relayout.ir.dots import byte_products
from relayout.ir.types import I8, I16, I32, Value, constant, vector
from relayout.ir.vectors import cut, join

__all__ = ["DEALT", "NIBBLES", "joined", "words"]

NIBBLES = 8  # 4-bit elements of a word
DEALT = 64  # bytes of two registers


def words(b: Builder, pointer: Value, count: int, dtype: DType) -> Value:
    """Neighbouring 4-bit elements, a multiple of eight, as words: a load, and two shifts for each eight.

    >>> from relayout.dtypes import dtype
    >>> from relayout.ir.types import PTR
    >>> b = Builder()
    >>> words(b, Value("%source", PTR), 8, dtype("s4"))
    <8 x i32> %v5
    """
    kind = vector(NIBBLES, I32)
    places = Value(f"<{', '.join(f'i32 {28 - 4 * k}' for k in range(NIBBLES))}>", kind)
    made = []
    for first in range(0, count, NIBBLES):
        word = b.load(I32, b.gep(pointer, first // 2), 1)
        top = b.shl(b.splat(word, NIBBLES), places)
        made.append(b.ashr(top, 28) if dtype.is_signed else b.lshr(top, 28))
    return join(b, made)


def joined(b: Builder, x: Value, dtype: DType) -> Value:
    """64 bytes in the order in which packs leave them, as 4-bit elements in order, two to a byte.

    A lane of either register has four elements of four registers of words, and the other lane has the next
    ones of the same four. So pieces of two bytes of both lanes take turns.
    """
    weights = b.bitcast(constant(vector(DEALT // 4, I16), 0x1001), vector(DEALT // 2, I8))  # 1 and 16
    pairs = []
    for part in cut(b, x, DEALT // 2):
        unsigned = b.and_(part, 15) if dtype.is_signed else part
        pairs.append(byte_products(b, unsigned, weights))
    packed = b.call_value(vector(DEALT // 2, I8), "llvm.x86.avx2.packuswb", *pairs)
    half = DEALT // 8
    order = [lane * half + k for k in range(half) for lane in (0, 1)]
    return b.bitcast(b.shuffle(b.bitcast(packed, vector(2 * half, I16)), order), packed.type)
