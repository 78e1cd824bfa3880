"""Averages of bytes, rounded as integers: a product in place of a division, in lanes of 16 bits.

A sum of up to 256 bytes fits 16 bits. Its average, rounded to the nearest integer (the even one of two),
takes a dozen instructions by way of f32: lanes become twice as wide, are converted, multiplied, bounded,
converted back and packed. With integers it takes three for odd divisors and six for even ones, on half as
many registers ::

    m = n + d // 2          q = m * M >> 16 + s           the integer at n / d + 1/2, or below it
    if q * d == m, d even:  q - (q & 1)                   n / d is half-way between two: take the even one

A product by ``M = ceil(2**(16 + s) / d)`` gives the quotient of all m for which ``m * (M * d - 2**(16 + s))``
is less than ``2**(16 + s)`` (Granlund and Montgomery). :func:`divisor` sees to that: no sum that can occur is
rounded otherwise than the exact quotient is. It finds numbers for all divisors up to 185, and for most up to
256.

x86's ``vpmulhrsw`` multiplies and rounds at once, ``n * f + 2**14 >> 15``. With ``f`` next to
``2**15 / d`` that is one instruction for odd divisors, which have no ties. For even ones a factor that is too
large rounds ties up, and one that is too small rounds them down; nothing else depends on which it is. So the
second is taken where the first made an odd number: three instructions. :func:`nearest` finds such factors for
all divisors up to 12 and a few more: those of windows of 3x3.

Averages of s8 are those of u8, which are 128 more::

    (sum of (x + 128)) / d = (sum of x) / d + 128         and 128 is even, so that ties stay ties

>>> divisor(9)
Divisor(half=4, factor=7282, shift=0, even=0)
>>> divisor(254) is None
True
>>> nearest(9), nearest(6), nearest(25)
(Nearest(down=3641, up=3641), Nearest(down=5461, up=5462), None)
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from relayout.ir.builder import Builder, Operand, table
from relayout.ir.types import I16, I32, I64, PTR, Value, constant

__all__ = [
    "MOST",
    "Divisor",
    "Nearest",
    "divided",
    "divisor",
    "divisors",
    "looked_up",
    "nearest",
    "rounded",
    "spread",
]

MOST = 255  # the largest element
WORD = 1 << 16
NUMBERS = 4  # of a divisor in a table
ONE = 1 << 15  # what vpmulhrsw takes for 1
ROUNDED = {64: "llvm.x86.avx512.pmul.hr.sw.512", 32: "llvm.x86.avx2.pmul.hr.sw"}  # by bytes of a register


class Divisor(NamedTuple):
    """What a sum is divided with; see the module."""

    half: Operand
    factor: Operand
    shift: Operand
    even: Operand
    """1 where there are ties."""


@lru_cache(maxsize=512)
def divisor(d: int) -> Divisor | None:
    """The numbers for a divisor of sums of so many bytes; None where 16 bits don't do.

    >>> [d for d in range(1, 258) if divisor(d) is None][:3]
    [186, 196, 200]
    """
    if d == 1:
        return Divisor(1, WORD - 1, 0, 0)  # (n + 1) * (1 - 2**-16)
    half = d // 2
    largest = MOST * d + half
    if largest >= WORD:
        return None
    for shift in range(16):
        power = WORD << shift
        factor = -(-power // d)
        if factor >= WORD:
            return None
        if largest * (factor * d - power) < power:
            return Divisor(half, factor, shift, 1 - d % 2)
    return None


def divided(b: Builder, n: Value, d: int | Value, by: Divisor) -> Value:
    """Sums divided and rounded.

    Parameters
    ----------
    n : Value
        A vector of i16, taken as unsigned.
    d : int or Value
        By what; a vector if it is known when the kernel runs.
    by : Divisor
        Its numbers: integers, or vectors.
    """
    m = b.add(n, by.half)
    product = b.lshr(b.mul(b.zext(m, I32), _wide(b, by.factor, n)), 16)
    q = b.lshr(b.trunc(product, I16), by.shift)
    if by.even == 0:
        return q
    tie = b.icmp("eq", b.mul(q, d), m)
    odd = b.and_(q, by.even)
    return b.sub(q, b.select(tie, odd, 0))


def _wide(b: Builder, factor: Operand, like: Value) -> Operand:
    """A factor as 32 bits."""
    return b.zext(factor, I32) if isinstance(factor, Value) else factor


def divisors(name: str, most: int) -> str:
    """The text of a table of the numbers for all divisors up to one; all of them must exist."""
    numbers = [0] * NUMBERS
    for d in range(1, most + 1):
        found = divisor(d)
        assert found is not None
        numbers += [int(n) for n in found]
    return table(name, numbers)


def looked_up(b: Builder, name: str, d: Value) -> Divisor:
    """The numbers of a divisor that is known when the kernel runs."""
    at = b.gep(Value(f"@{name}", PTR), d, NUMBERS * 8)
    return Divisor(*(b.trunc(b.load(I64, b.gep(at, 8 * k)), I16) for k in range(NUMBERS)))


def spread(b: Builder, by: Divisor, count: int) -> Divisor:
    """Numbers that were looked up in all lanes; others are in all lanes anyway."""
    return Divisor(*(b.splat(n, count) if isinstance(n, Value) else n for n in by))


class Nearest(NamedTuple):
    """Factors that round sums while they multiply them; see the module."""

    down: int
    up: int
    """The same as the other one where there are no ties."""


@lru_cache(maxsize=512)
def nearest(d: int) -> Nearest | None:
    """The factors for a divisor of sums of so many bytes; None where there are none.

    >>> [d for d in range(1, 40) if nearest(d) is not None]
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 29, 31, 33]
    """
    most = MOST * d
    if most >= ONE:
        return None
    up = -(-ONE // d)
    if d % 2:  # whatever is not half-way is at least 1 / 2d away from there
        factor = min((f for f in (up - 1, up) if f < ONE), key=lambda f: abs(f * d - ONE))
        return Nearest(factor, factor) if 2 * most * abs(factor * d - ONE) < ONE else None
    down = up - 1  # other sums than ties are at least 1 / d away from there
    exact = max(up * d - ONE, ONE - down * d) * most < ONE
    return Nearest(down, up) if exact else None


def rounded(b: Builder, n: Value, down: Value, up: Value) -> Value:
    """Sums divided and rounded, of a register of words below 2**15, with the factors of each lane."""
    name = ROUNDED[n.type.bytes]
    low = b.call_value(n.type, name, n, down)
    if down == up:
        return low
    odd = b.icmp("ne", b.and_(low, 1), constant(n.type, 0))
    return b.select(odd, b.call_value(n.type, name, n, up), low)
