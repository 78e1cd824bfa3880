"""Rows: elements along some axes that are computed together, and where the lanes of vectors come from.

Softmax and the normalisations go over each row several times: they find a maximum or a sum, and then compute
every element with it. Source, destination and further operands (a scale for each channel, say) go through
loops together: those around the rows are *blocks*, those of a row are *pieces*. Lanes are found in two ways:

``along``
    neighbours within a row. Its lanes are combined in the end. Short rows are interleaved, since a single one
    would wait for its own sums.
``packed``
    neighbours of several rows: either each lane has a row of its own, or rows have a few neighbours, followed
    by those of the next row. These are *segments* of a vector ::

        layer normalisation of nhwc                along     16 channels of a pixel
        layer normalisation of nchw                packed    16 pixels, segments of 1
        nhwc, 32 groups of 4 channels              packed    4 groups, segments of 4 channels
        nhwc, 32 groups of 10 channels             packed    8 groups are 5 vectors

    Segments that vectors don't divide are combined in memory, which pays for rows of many segments.

How vectors go through them is written by :mod:`~.rows_text`.

>>> from relayout.layout.layout import Layout
>>> pixels = Layout((2, 20, 4, 4), "nhwc")
>>> made = rows([pixels, pixels], (4, 4), {1})
>>> print(*made.blocks, *made.pieces, made.lanes(16), sep=", ")
0->0: 32x(80,80), 0->0: 20x(4,4), 16
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from relayout.kernels.reduce.space import contiguous, neighbours, spaces
from relayout.layout.layout import Layout
from relayout.loops.nest import Loop, Nest, split
from relayout.loops.refine import refine
from relayout.records import dataclass, replace
from relayout.targets.machine import LINE

__all__ = ["LEVEL", "Rows", "rows"]

MANY_SEGMENTS = 32  # of a row, for which they are combined in memory
LONG_SEGMENT = 4  # vectors; less than a fifth of the lanes along a longer one is lost
LEVEL = 64  # turns of a loop that are added up one by one


@dataclass(frozen=True)
class Rows:
    """The loops around rows and those of a row, in bytes. The source comes first, the destination last."""

    blocks: tuple[Nest, ...]
    pieces: tuple[Nest, ...]
    single: int = 0
    """So many operands in front of the destination have one element for a row."""

    @property
    def size(self) -> int:
        """Elements of a row."""
        return sum(piece.size for piece in self.pieces)

    @property
    def longest(self) -> int:
        """Neighbours within a row, at most."""
        return max(neighbours(piece) for piece in self.pieces)

    @property
    def dense(self) -> bool:
        """Whether the elements of a row follow each other in the destination."""
        if len(self.pieces) > 1 or self.pieces[0].starts[-1]:
            return False
        piece = self.pieces[0]
        steps = [loop.steps[-1] for loop in piece.loops]
        reach = sum((loop.extent - 1) * loop.steps[-1] for loop in piece.loops) // piece.widths[-1] + 1
        return min(steps, default=0) >= 0 and reach == self.size

    def packed(self, block: Nest) -> tuple[int, Loop] | None:
        """Elements of a segment, and the loop from one to the next; None where rows don't lie like that."""
        lengths = {neighbours(piece) for piece in self.pieces}
        each = lengths.pop()
        if lengths or (each & (each - 1) and self.size < MANY_SEGMENTS * each):
            return None
        first, *tables, last = block.widths[: len(block.widths) - 1 - self.single] + block.widths[-1:]
        for loop in block.loops:
            if (loop.src, loop.dst) != (each * first, each * last):
                continue
            runs = [contiguous(piece) for piece in self.pieces]
            dense = all(
                step in (0, each * width) and all(run is None or run.steps[k] * each == step for run in runs)
                for k, (step, width) in enumerate(zip(loop.tables, tables, strict=False), 1)
            )
            return (each, loop) if dense else None
        return None

    def packing(self, block: Nest, lanes: int) -> tuple[int, Loop] | None:
        """The same, where that fills more lanes than neighbours within a row."""
        found = self.packed(block)
        if found is None:
            return None
        each, loop = found
        along = each % lanes == 0 or each >= min(LONG_SEGMENT * lanes, max(2, each * loop.extent))
        return None if along else found

    def lanes(self, most: int) -> int:
        """How many lanes do something, in the block of most elements."""
        block = max(self.blocks, key=lambda one: one.size)
        found = self.packing(block, most)
        return min(most, found[0] * found[1].extent if found else self.longest)

    def completes(self, lanes: int) -> bool:
        """Whether vectors of so many elements fill lines of the destination, if that begins on one."""
        for nest in (*self.blocks, *self.pieces):
            width = nest.widths[-1]
            if nest.starts[-1] % LINE:
                return False
            for loop in nest.loops:
                neighbours = loop.steps[-1] == width
                if loop.extent % lanes or loop.extent * width % LINE if neighbours else loop.steps[-1] % LINE:
                    return False
        return True

    def near(self, most: int, lanes: int) -> int:
        """Neighbours that a task has at most in vectors of so many, if it takes ``most`` vectors."""
        found = [self.packing(block, lanes) for block in self.blocks]
        return max(min(most * lanes, one[0] * one[1].extent) if one else 1 for one in found)

    def in_levels(self, turns: int, elements: int) -> Rows:
        """The same, with long loops of a row cut in two, so that sums can be taken level by level.

        That is loops of more than twice as many turns; of neighbours, of more than twice as many elements.
        Both numbers are 2 or more.
        """
        pieces = tuple(part for piece in self.pieces for part in _in_levels(piece, turns, elements))
        return replace(self, pieces=pieces)


def rows(
    layouts: Sequence[Layout], widths: Sequence[int], axes: Collection[int], single: int = 0
) -> Rows | None:
    """The rows along some axes; None where an axis is fused with one that is not among them, or no nests.

    Parameters
    ----------
    layouts : sequence of Layout
        Of equal dims: the source, further operands, the destination.
    widths : sequence of int
        Bytes of an element of each.
    axes : collection of int
        Those of a row.
    single : int
        See :attr:`Rows.single`.
    """
    groups = refine(*layouts)
    along = [group for group in groups if set(group.axes) & set(axes)]
    if any(not set(group.axes) <= set(axes) for group in along):
        return None
    starts = [layout.offset0 for layout in layouts]
    blocks = spaces([group for group in groups if group not in along], starts, widths)
    pieces = spaces(along, [0] * len(starts), widths)
    return None if blocks is None or pieces is None else Rows(blocks, pieces, single)


def _in_levels(piece: Nest, turns: int, elements: int) -> list[Nest]:
    run = contiguous(piece)
    for k, loop in enumerate(piece.loops):
        most = elements if loop is run else turns
        if loop.extent <= 2 * most:
            continue
        times = loop.extent // most
        whole, rest = split(piece, loop, times * most)
        chunks = Loop(times, tuple(most * step for step in loop.steps))
        cut = replace(whole, loops=(*piece.loops[:k], chunks, loop.taking(most), *piece.loops[k + 1 :]))
        parts = [cut, rest] if rest.size else [cut]
        return [part for one in parts for part in _in_levels(one, turns, elements)]
    return [piece]
