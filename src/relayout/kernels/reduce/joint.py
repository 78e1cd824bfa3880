"""The loops that a source and a destination have in common, and where both are contiguous.

Pooling and softmax combine elements along some axes and do the same again for every position of the others.
For those others source and destination are indexed alike, so the common refinement of their layouts
(:mod:`relayout.layout.refine`) gives loops with a stride on either side. The loops that continue each other
are fused, and the one that is contiguous on both sides, if there is one, is the *run*: its elements are the
lanes of vectors ::

    images and channels of    nhwc 2x64x..       2 x               run of 64
                              nChw16c 2x64x..    2 x 4 x           run of 16
                              CHWN4 2x64x..      16 x              run of 8     (2 images of 4 channels)
                              nchw 2x64x..       128 x             run of 1

Sizes that blocks don't divide (100 channels in blocks of 16) make several *blocks*: 6 whole ones and 4
channels. Padding belongs to none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from relayout.layout.layout import Layout
from relayout.layout.refine import Piece, refine

__all__ = ["Block", "Joint", "Loop", "cover", "joint"]

MOST = 16  # blocks; each has code of its own


class Loop(NamedTuple):
    """So many turns, each so many bytes further in the source and in the destination."""

    extent: int
    src: int
    dst: int

    def continues(self, inner: Loop) -> bool:
        """Whether its next turn goes on where the inner loop has ended, on both sides."""
        return (self.src, self.dst) == (inner.extent * inner.src, inner.extent * inner.dst)


class Block(NamedTuple):
    """Loops, outermost first, around a run of elements that are neighbours on both sides."""

    src: int
    """Where it begins, in bytes; the same in the destination."""
    dst: int
    loops: tuple[Loop, ...]
    run: int
    """Elements; 1: none are neighbours."""


class Joint(NamedTuple):
    """What two layouts have in common: blocks, and apart from them the pieces of one axis."""

    blocks: tuple[Block, ...]
    pieces: tuple[Block, ...]
    """Of the axis, in the order of its indices; their loops are not fused with others. None was asked for:
    one piece of no loops."""


def joint(src: Layout, dst: Layout, sizes: tuple[int, int], axis: int | None = None) -> Joint | None:
    """The blocks of two layouts of equal dims; None where they have none, or very many.

    Parameters
    ----------
    src, dst : Layout
        Both without empty axes.
    sizes : (int, int)
        Bytes of an element on either side.
    axis : int, optional
        An axis whose loops are kept apart.

    Examples
    --------
    >>> found = joint(Layout((2, 20), "nc"), Layout((2, 20), "nc"), (4, 4), axis=1)
    >>> found.blocks
    (Block(src=0, dst=0, loops=(Loop(extent=2, src=80, dst=80),), run=1),)
    >>> found.pieces
    (Block(src=0, dst=0, loops=(), run=20),)
    >>> blocked = Layout((1, 20, 3), "nCw16c")
    >>> for block in joint(blocked, blocked, (4, 4), axis=2).blocks:
    ...     print(block)
    Block(src=0, dst=0, loops=(), run=16)
    Block(src=192, dst=192, loops=(), run=4)
    """
    groups = refine(src, dst)
    around: list[tuple[Piece, ...]] = []
    along: tuple[Piece, ...] = (Piece(0, 0, 0, ()),)
    for group in groups:
        if group.pieces is None or (axis in group.axes and len(group.axes) > 1):
            return None
        if axis in group.axes:
            along = group.pieces
        else:
            around.append(group.pieces)
    if max(len(along), prod(map(len, around))) > MOST:
        return None
    start = (src.offset0, dst.offset0)
    blocks = tuple(_block(start, pieces, sizes) for pieces in product(*around))
    return Joint(blocks, tuple(_block((0, 0), [piece], sizes) for piece in along))


def _block(start: tuple[int, int], pieces: Sequence[Piece], sizes: tuple[int, int]) -> Block:
    """The block of a choice of pieces."""
    e, f = sizes
    src = (start[0] + sum(piece.src for piece in pieces)) * e
    dst = (start[1] + sum(piece.dst for piece in pieces)) * f
    loops: list[Loop] = []
    found = [Loop(n, s * e, d * f) for piece in pieces for n, _, s, d in piece.loops if n > 1]
    for loop in sorted(found, key=lambda loop: (abs(loop.src), abs(loop.dst))):
        if loops and loop.continues(loops[-1]):
            loops[-1] = loops[-1]._replace(extent=loops[-1].extent * loop.extent)
        else:
            loops.append(loop)
    run = next((loop for loop in loops if (loop.src, loop.dst) == sizes), None)
    rest = tuple(loop for loop in reversed(loops) if loop is not run)
    return Block(src, dst, rest, run.extent if run else 1)


class Cover(NamedTuple):
    """``times`` chunks of ``chunk`` elements, each of which is vectors of ``lanes`` at ``offsets``.

    Chunk k begins at ``min(k * chunk, total - chunk)``: the last one steps back, as its last vector does.
    """

    lanes: int
    offsets: tuple[int, ...]
    chunk: int
    times: int


def cover(total: int, lanes: int, most: int) -> Cover:
    """Cover elements with whole vectors, at most so many in a chunk; some elements are covered twice.

    >>> cover(100, 16, 8)
    Cover(lanes=16, offsets=(0, 16, 32, 48, 64, 80, 84), chunk=100, times=1)
    >>> cover(3, 16, 8)
    Cover(lanes=2, offsets=(0, 1), chunk=3, times=1)
    """
    lanes = min(lanes, 1 << (total.bit_length() - 1))
    vectors = -(-total // lanes)
    times = -(-vectors // most)
    chunk = min(total, -(-vectors // times) * lanes)
    offsets = tuple(min(k * lanes, chunk - lanes) for k in range(-(-chunk // lanes)))
    return Cover(lanes, offsets, chunk, -(-total // chunk))
