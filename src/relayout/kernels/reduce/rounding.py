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

Averages of s8 are those of u8, which are 128 more::

    (sum of (x + 128)) / d = (sum of x) / d + 128         and 128 is even, so that ties stay ties

>>> divisor(9)
Divisor(half=4, factor=7282, shift=0, even=0)
>>> divisor(254) is None
True
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from relayout.ir.builder import Builder, Operand, table
from relayout.ir.types import I16, I32, I64, PTR, Value

__all__ = ["MOST", "Divisor", "divided", "divisor", "divisors", "looked_up", "spread"]

MOST = 255  # the largest element
WORD = 1 << 16
NUMBERS = 4  # of a divisor in a table


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
