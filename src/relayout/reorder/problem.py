"""The problem: what a reorder has to move, as nests of loops over bytes.

The common refinement (:mod:`relayout.layout.refine`) gives for every axis the loops that both layouts share.
A *nest* is one choice of pieces, one for each group of axes: a start on either side and loops with two
strides. A tensor without tails is a single nest. Padding of the destination is nests too, which write zeros
and read nothing.

Everything after that is a *pass*, a function from nests to nests that changes how the work is written down
and not what it is:

``fuse``     loops of which one continues the other on both sides become one
``widen``    runs that lie together on both sides are moved as wider elements
``order``    loops by falling destination stride, so that writing goes forward through memory

A nest prints itself, and ``Reorder.explain`` shows it after every pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.layout.refine import Piece, refine, self_pieces
from relayout.layout.vectorised import term_offsets

__all__ = ["ByteLoop", "Nest", "fuse", "nests", "order", "simplified", "widen"]

MOST_NESTS = 24  # beyond that the NumPy engine's tables are cheaper than a kernel for every nest
WIDEST = 8  # bytes of an element: the widest integer that shuffles move


class ByteLoop(NamedTuple):
    """``extent`` steps that move ``src`` and ``dst`` bytes."""

    extent: int
    src: int
    dst: int


@dataclass(frozen=True)
class Nest:
    """Loops, outermost first, over elements of ``width`` bytes, from byte ``src`` and byte ``dst`` on."""

    src: int
    dst: int
    width: int
    loops: tuple[ByteLoop, ...]
    zero: bool = False
    """Nothing is read; zeros are written."""
    fill: int = 0
    """So many zeros follow, in the destination, on every turn of the loop that is contiguous there."""

    @property
    def bytes(self) -> int:
        """Bytes written."""
        total = self.width
        for extent, _, dst in self.loops:
            total *= extent + (self.fill if dst == self.width else 0)
        return total

    def apart(self) -> tuple[Nest, Nest]:
        """The data alone, and the zeros that follow it alone."""
        row = next(loop for loop in self.loops if loop.dst == self.width)
        rest = tuple(loop for loop in self.loops if loop is not row)
        behind = (*(loop._replace(src=0) for loop in rest), ByteLoop(self.fill, 0, self.width))
        zeros = Nest(0, self.dst + row.extent * self.width, self.width, behind, zero=True)
        return replace(self, fill=0), zeros

    def __str__(self) -> str:
        what = "zeros" if self.zero else f"u{self.width * 8}"
        loops = "  ".join(f"{n}x({s},{d})" for n, s, d in self.loops) or "one"
        return f"{what} {self.src}->{self.dst}: {loops}" + (f"  then {self.fill} zeros" if self.fill else "")


def nests(src: MemoryDesc, dst: MemoryDesc) -> tuple[Nest, ...] | None:
    """All nests of a move between descriptors of one data type, or None where there would be too many."""
    groups = refine(src.layout, dst.layout)
    if any(group.pieces is None for group in groups):
        return None
    if prod(len(group.pieces or ()) for group in groups) > MOST_NESTS:
        return None
    width = src.dtype.bits // 8
    filled = _filled(dst.layout, [(group.axes, group.pieces or ()) for group in groups])
    out = []
    for pieces in product(*(group.pieces or () for group in groups)):
        fill = 0
        for group, piece in zip(groups, pieces, strict=True):
            if (
                filled is not None
                and group.axes == dst.layout.terms[filled[0]]
                and piece is (group.pieces or ())[-1]
            ):
                fill = filled[1]
                pieces = tuple(_straight(p) if p is piece else p for p in pieces)
        out.append(_nest(src.offset0, dst.offset0, width, pieces, fill))
    zeros = _zeros(dst.layout, width, None if filled is None else filled[0])
    if len(out) + len(zeros) > MOST_NESTS:
        return None
    return (*zeros, *out)


def _nest(src: int, dst: int, width: int, pieces: tuple[Piece, ...], fill: int = 0) -> Nest:
    loops = tuple(ByteLoop(n, s * width, d * width) for piece in pieces for n, _, s, d in piece.loops)
    start = src + sum(piece.src for piece in pieces), dst + sum(piece.dst for piece in pieces)
    return Nest(start[0] * width, start[1] * width, width, loops, fill=fill)


def _straight(piece: Piece) -> Piece:
    """A piece of one loop whose zeros follow in the destination.

    Its stride there is one element, also where it has one turn.
    """
    return piece._replace(loops=(piece.loops[0]._replace(dst=1),))


def _filled(
    layout: Layout, groups: list[tuple[tuple[int, ...], tuple[Piece, ...]]]
) -> tuple[int, int] | None:
    """A term whose padding simply continues its last piece, element by element, and how many zeros that are.

    Such zeros are written together with the data: whole blocks, whole cache lines.
    """
    for t, term in enumerate(layout.terms):
        missing = layout.padded[t] - layout.term_size(t)
        pieces = next((p for axes, p in groups if axes == term), ())
        if not missing or not pieces or len(pieces[-1].loops) != 1:
            continue
        last = pieces[-1]
        loop = last.loops[0]
        if loop.extent > 1 and loop.dst != 1:
            continue
        numbers = np.arange(layout.term_size(t), layout.padded[t])
        follows = last.dst + loop.extent + np.arange(missing)
        if (term_offsets(layout.ladders[t], numbers) == follows).all():
            return t, missing
    return None


def _zeros(layout: Layout, width: int, skip: int | None) -> list[Nest]:
    """Nests that zero the padding, term by term (see the engine of the same purpose in NumPy)."""
    if not layout.has_padding:
        return []
    out = []
    for t, (ladder, room) in enumerate(zip(layout.ladders, layout.padded, strict=True)):
        size = layout.term_size(t)
        if room == size or t == skip:
            continue
        others = [
            self_pieces(other, r)
            for u, (other, r) in enumerate(zip(layout.ladders, layout.padded, strict=True))
            if u != t
        ]
        for start, count, step in _runs(term_offsets(ladder, np.arange(size, room)).tolist()):
            for pieces in product(*others):
                nest = _nest(0, layout.offset0 + start, width, pieces)
                run = ByteLoop(count, 0, step * width)
                out.append(
                    replace(
                        nest, src=0, zero=True, loops=(*(loop._replace(src=0) for loop in nest.loops), run)
                    )
                )
    return out


def _runs(places: list[int]) -> list[tuple[int, int, int]]:
    """Places as arithmetic runs: start, count, step."""
    out = []
    start = 0
    while start < len(places):
        end = start + 1
        step = places[end] - places[start] if end < len(places) else 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        out.append((places[start], end - start, step))
        start = end
    return out


# -- passes -------------------------------------------------------------------------------------------------


def order(nest: Nest) -> Nest:
    """Loops by falling destination stride; loops of one turn are dropped."""
    kept = [loop for loop in nest.loops if loop.extent > 1 or (nest.fill and loop.dst == nest.width)]
    return replace(nest, loops=tuple(sorted(kept, key=lambda loop: (-abs(loop.dst), -abs(loop.src)))))


def fuse(nest: Nest) -> Nest:
    """Join loops of which the outer continues the inner one on both sides.

    >>> fuse(Nest(0, 0, 4, (ByteLoop(3, 80, 80), ByteLoop(20, 4, 4)))).loops
    (ByteLoop(extent=60, src=4, dst=4),)
    """
    loops = list(nest.loops)
    found = True
    while found:
        found = False
        for outer, inner in product(loops, loops):
            joined = inner.extent * inner.src == outer.src and inner.extent * inner.dst == outer.dst
            if outer is not inner and joined and not (nest.fill and inner.dst == nest.width):
                loops[loops.index(inner)] = ByteLoop(inner.extent * outer.extent, inner.src, inner.dst)
                loops.remove(outer)
                found = True
                break
    return replace(nest, loops=tuple(loops))


def widen(nest: Nest) -> Nest:
    """Move runs that lie together on both sides as wider elements, as far as strides and starts allow.

    >>> print(widen(Nest(0, 0, 1, (ByteLoop(9, 64, 16), ByteLoop(4, 1, 1)))))
    u32 0->0: 9x(64,16)
    """
    together = (
        loop for loop in nest.loops if loop.dst == nest.width and (nest.zero or loop.src == nest.width)
    )
    run = next(together, None)
    if run is None or nest.fill:
        return nest
    others = [loop for loop in nest.loops if loop is not run]
    numbers = [run.extent * nest.width, nest.dst, *(loop.dst for loop in others)]
    if not nest.zero:
        numbers += [nest.src, *(loop.src for loop in others)]
    width = nest.width
    while width < WIDEST and all(number % (2 * width) == 0 for number in numbers):
        width *= 2
    extent = run.extent * nest.width // width
    widened = ByteLoop(extent, 0 if nest.zero else width, width)
    loops = [widened if loop is run else loop for loop in nest.loops]
    return replace(nest, width=width, loops=tuple(loop for loop in loops if loop.extent > 1))


PASSES = (order, fuse, widen, order)


def simplified(nest: Nest) -> Nest:
    """All passes."""
    for step in PASSES:
        nest = step(nest)
    return nest
