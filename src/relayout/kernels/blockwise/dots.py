"""Four products of bytes and their sum, in each lane: what is added to s32.

One operand holds weights, unsigned; the other one limbs of the source, signed. The sums are exact::

    vpdpbusd      AVX512-VNNI, AVX-VNNI     four products of u8 and s8, added to s32 in one instruction
    sdot          AArch64 with dotprod      the same of s8, so of weights of 4 bits alone
    vpmaddubsw    AVX2 without them         pairs of u8 and s8, added in s16, then widened: weights of 4 bits
    pmaddwd       x86 without them          pairs of s16: even bytes and odd ones, widened
    anything      elsewhere                 byte by byte, in s32

``vpmaddubsw`` saturates the sum of two products at 16 bits. Of weights of 4 bits it is 2 * 15 * 128 at most,
an eighth of what s16 holds: nothing saturates, and eight such sums are added up before they are widened.
Weights of 8 bits reach twice what s16 holds, so they are widened first.
"""

from __future__ import annotations

from relayout.ir import dots
from relayout.ir.builder import Builder
from relayout.ir.types import I16, Value, constant, vector
from relayout.targets.machine import Machine

__all__ = ["MOST_IN_S16", "added_bytes", "by_zero", "declared", "dot", "has_bytes", "has_dots", "widened"]

MOST_IN_S16 = 8  # sums of two products, 2 * 15 * 128 at most, whose sum s16 holds


def has_dots(machine: Machine) -> bool:
    """Whether an x86 processor adds up four products at once, in its widest registers.

    >>> from relayout.targets.machine import machine
    >>> [has_dots(machine(cpu)) for cpu in ("x86-64-v3", "alderlake", "x86-64-v4", "znver4")]
    [False, True, False, True]
    """
    return machine.has({64: "avx512vnni", 32: "avxvnni"}.get(machine.vector, "")) and not machine.is_arm


def declared(machine: Machine) -> str:
    """The line that a module begins with; empty where no instruction is to be declared."""
    return dots.declared("vpdpbusd", machine.vector // 4) + "\n" if has_dots(machine) else ""


def dot(b: Builder, sums: Value, codes: Value, limbs: Value, bits: int) -> Value:
    """Words of weights times words of limbs: four products of a lane added to what it holds.

    Parameters
    ----------
    sums, codes, limbs : Value
        Vectors of i32, as wide as a register.
    bits : int
        How many bits of a weight count, 4 or 8.
    """
    machine: Machine = b.machine
    if has_dots(machine):
        return dots.dot(b, "vpdpbusd", sums, codes, limbs)
    if machine.is_arm and bits == 4 and machine.has("dotprod"):
        return dots.dot(b, "sdot", sums, codes, limbs)
    if machine.triple.startswith(("x86_64", "i686")):
        return _by_pairs(b, sums, codes, limbs)
    for k in range(4):
        weight = b.and_(b.lshr(codes, 8 * k), 0xFF)
        limb = b.ashr(b.shl(limbs, 24 - 8 * k), 24)
        sums = b.add(sums, b.mul(weight, limb))
    return sums


def has_bytes(machine: Machine, bits: int) -> bool:
    """Whether products are added up in s16 first: :func:`added_bytes`.

    >>> from relayout.targets.machine import machine
    >>> [has_bytes(machine(cpu), bits) for cpu in ("x86-64-v3", "znver4") for bits in (4, 8)]
    [True, False, False, False]
    """
    return machine.vector >= 32 and not machine.is_arm and bits == 4 and not has_dots(machine)


def added_bytes(b: Builder, pairs: Value | None, codes: Value, limbs: Value) -> Value:
    """Weights of 4 bits times limbs: two products of a lane added to each half of it, in s16.

    That fits :data:`MOST_IN_S16` times, and then :func:`widened` has to follow.
    """
    made = dots.byte_products(b, codes, limbs)
    return made if pairs is None else b.add(pairs, made)


def widened(b: Builder, sums: Value, pairs: Value) -> Value:
    """Both halves of a lane added to what it holds."""
    return b.add(sums, dots.pair_products(b, pairs, constant(pairs.type, 1)))


def by_zero(b: Builder, points: Value, sums: Value) -> Value:
    """Zero points, bytes in words, times sums of at most 128 bytes, in each lane.

    Products of pairs do it on x86: they take a cycle, those of words of 32 bits several.
    """
    machine: Machine = b.machine
    if not machine.triple.startswith(("x86_64", "i686")):
        return b.mul(points, sums)
    return dots.pair_products(b, points, sums)


def _by_pairs(b: Builder, sums: Value, codes: Value, limbs: Value) -> Value:
    """Even bytes of each word, then odd ones, as pairs of s16."""
    pairs = vector(2 * sums.type.count, I16)
    one, two = b.bitcast(codes, pairs), b.bitcast(limbs, pairs)
    even = dots.pair_products(b, b.and_(one, 0xFF), b.ashr(b.shl(two, 8), 8))
    odd = dots.pair_products(b, b.lshr(one, 8), b.ashr(two, 8))
    return b.add(sums, b.add(even, odd))
