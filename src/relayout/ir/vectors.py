"""Vectors in pieces: cut, put together, loaded from and stored to several places, combined lane by lane.

A vector of the kernels may be longer than a register, and shorter at the end of a row; memory is read and
written in *pieces* of powers of two, so that no byte is touched that belongs to nobody:

>>> runs(13)
[(0, 8), (8, 4), (12, 1)]
>>> pieces_of(0, 6, 100)
(Piece(lane=0, lanes=4, offset=100), Piece(lane=4, lanes=2, offset=116))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from relayout.ir.builder import Builder
from relayout.ir.types import I64, Type, Value, constant, poison, vector

__all__ = [
    "Piece",
    "cut",
    "halves",
    "join",
    "join_lanes",
    "load_pieces",
    "paired",
    "picked_anywhere",
    "picked_in_lanes",
    "pieces_of",
    "reduce",
    "runs",
    "store_pieces",
]

Part = TypeVar("Part")


class Piece(NamedTuple):
    """Lanes of a vector that lie together in memory, from ``lane`` on, so many bytes behind an address."""

    lane: int
    lanes: int
    offset: int


def picked_in_lanes(b: Builder, x: Value, picks: Value) -> Value:
    """Bytes in another order within lanes of 16, by AVX2's ``vpshufb``; 0 where a pick has its highest bit.

    Picks that are no constants keep LLVM from looking for other instructions.
    """
    return b.call_value(x.type, "llvm.x86.avx2.pshuf.b", x, picks)


def picked_anywhere(b: Builder, x: Value, picks: Value) -> Value:
    """Bytes of a register of 64 in another order, by AVX-512's ``vpermb``.

    Of picks that it knows, zeros among them, LLVM makes ``vpermt2b``: three operations in place of one.
    """
    return b.call_value(x.type, "llvm.x86.avx512.permvar.qi.512", x, picks)


def paired(given: Sequence[Part], both: Callable[[Part, Part], Part]) -> Part:
    """Several as one, pair by pair: a tree, whose branches don't wait for each other.

    >>> paired("abcde", lambda one, other: f"({one}{other})")
    '(((ab)(cd))e)'
    """
    while len(given) > 1:
        rest = given[len(given) // 2 * 2 :]
        given = [*(both(one, other) for one, other in zip(given[::2], given[1::2], strict=False)), *rest]
    return given[0]


def runs(count: int) -> list[tuple[int, int]]:
    """A count as powers of two, largest first: each with where it begins."""
    found, first = [], 0
    while first < count:
        length = 1 << ((count - first).bit_length() - 1)
        found.append((first, length))
        first += length
    return found


def pieces_of(first: int, count: int, offset: int, size: int = 4) -> tuple[Piece, ...]:
    """Neighbouring lanes, the first of which is ``first``, as pieces; ``size`` bytes a lane."""
    return tuple(Piece(first + at, length, offset + at * size) for at, length in runs(count))


def load_pieces(
    b: Builder, type: Type, pointer: Value, pieces: Sequence[Piece], align: int = 0, rest: Value | None = None
) -> Value:
    """A vector from its pieces; nothing else is read. Other lanes are zero, or those of ``rest``."""
    count = type.count
    if [(piece.lane, piece.lanes) for piece in pieces] == [(0, count)]:
        return b.load(type, b.gep(pointer, pieces[0].offset), align)
    whole = constant(type, 0) if rest is None else rest
    for piece in pieces:
        part = b.load(vector(piece.lanes, type), b.gep(pointer, piece.offset), align)
        inside = range(piece.lane, piece.lane + piece.lanes)
        part = b.shuffle(part, [k - piece.lane if k in inside else -1 for k in range(count)])
        if whole == "poison":
            whole = part
            continue
        whole = b.shuffle(whole, [count + k if k in inside else k for k in range(count)], part)
    return whole


def store_pieces(
    b: Builder,
    x: Value,
    pointer: Value,
    pieces: Sequence[Piece],
    align: int = 0,
    nontemporal: bool = False,
) -> None:
    """Store the lanes that are in a piece; where it is said so, around the caches."""
    for piece in pieces:
        part = x
        if piece.lanes != x.type.count:
            part = b.shuffle(x, range(piece.lane, piece.lane + piece.lanes))
        b.store(part, b.gep(pointer, piece.offset), align, nontemporal)


def merged(pieces: Sequence[Piece], size: int) -> list[Piece]:
    """The same pieces, of elements of so many bytes, with equal neighbours that go on in memory as one.

    >>> merged([Piece(0, 8, 0), Piece(8, 8, 8), Piece(16, 8, 64)], 1)
    [Piece(lane=0, lanes=16, offset=0), Piece(lane=16, lanes=8, offset=64)]
    """
    found: list[Piece] = []
    for piece in pieces:
        found.append(piece)
        while len(found) > 1:
            one, two = found[-2:]
            on = one.lane + one.lanes == two.lane and one.offset + one.lanes * size == two.offset
            if not on or one.lanes != two.lanes:
                break
            found[-2:] = [one._replace(lanes=2 * one.lanes)]
    return found


def cut(b: Builder, x: Value, width: int) -> list[Value]:
    """A vector as vectors of ``width`` elements; a shorter one is filled up with anything."""
    count = x.type.count
    if width == count:
        return [x]
    starts = range(0, count, width)
    return [b.shuffle(x, [k if k < count else -1 for k in range(at, at + width)]) for at in starts]


def join(b: Builder, parts: Sequence[Value]) -> Value:
    """Equal vectors, as many as a power of two, laid end to end."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [b.shuffle(one, range(2 * one.type.count), two) for one, two in pairs]
    return parts[0]


def join_lanes(b: Builder, parts: Sequence[Value], lane: int = 128) -> Value:
    """The same for what has just been loaded: whole lanes of so many bits are inserted one after the other.

    From memory, that takes no shuffle; pairs of pairs would.
    """
    while len(parts) > 1 and 8 * parts[0].type.bytes < lane:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [b.shuffle(one, range(2 * one.type.count), two) for one, two in pairs]
    if len(parts) == 1:
        return parts[0]
    part = parts[0].type
    whole = vector(part.count * len(parts), part)
    made = poison(whole)
    for k, x in enumerate(parts):
        at = constant(I64, k * part.count)
        made = b.call_value(whole, f"llvm.vector.insert.{whole.mangled}.{part.mangled}", made, x, at)
    return made


def halves(b: Builder, x: Value) -> tuple[Value, Value]:
    """The lower and the upper half of a vector."""
    lower, upper = cut(b, x, x.type.count // 2)
    return lower, upper


def reduce(b: Builder, x: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """All lanes combined, as a vector of one."""
    while x.type.count > 1:
        x = combine(*halves(b, x))
    return x
