"""Where the padding of a layout lies, as nests of loops.

Padding is the room that no element uses: term by term, the numbers from the size of the term to its room,
with every number of the other terms. Where two terms have padding, their corner is in the nests of both.

Three inputs in ``OIhw4i16o4i`` leave most of every block empty, in two ways::

    i 0 to 3     o0: 0 1 2 .   o1: 0 1 2 .  ...      the zero follows the data: it belongs to the row
    i 4 to 15    o0: . . . .   o1: . . . .  ...      three rows of 64 elements in one piece

The padding of the first kind is written together with the data: whole blocks, whole cache lines. Such a row
is a :class:`Tail`, and the nests of the data say so (:attr:`Nest.fill`). The second kind are nests of one
operand. Their places are gathered over the loops around them as long as that makes longer pieces: an element
or a row of padding at a time, they would be many nests, and each of them goes over the whole destination.

>>> for nest in padding(Layout((16, 3, 1, 1), "OIhw4i16o4i")):
...     print(nest)
->3: 15x(4)
->63: 193x(1)

This is the only enumeration of padding: kernels and NumPy zero these nests, tensors are checked by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from typing import NamedTuple

from relayout.layout.canonical import merge, trim
from relayout.layout.layout import Layout
from relayout.loops.nest import Loop, Nest, places
from relayout.loops.refine import Group, choices, combined, pieces, refine
from relayout.records import replace

__all__ = ["Padded", "Tail", "padded", "padding"]

MOST = 32  # nests, each of which becomes code of its own
MOST_ROWS = 1 << 12  # rows of padding that are looked at one by one

Rows = list[tuple[int, int]]
"""Neighbouring places from start to end, in rising order."""


class Tail(NamedTuple):
    """Padding that directly follows a row: ``zeros`` numbers of a term, from its size on."""

    term: int
    piece: Nest
    """What it follows, a piece of the group of that term."""
    zeros: int


class Padded(NamedTuple):
    """What an operation visits, and what else it writes."""

    data: tuple[Nest, ...]
    """In the order of their numbers, operands as they were given."""
    zeros: tuple[Nest, ...]
    """Padding of the destination that follows no data."""
    tail: Tail | None
    """The rows of data that have some."""


def padded(layouts: Sequence[Layout], most: int = MOST) -> Padded | None:
    """The nests of some operands, and the padding of the last one; None where there are more than ``most``.

    >>> made = padded([Layout((2, 3), "ab"), Layout((2, 3), "aB4b")])
    >>> print(made.data[0], made.zeros)
    0->0: 2x(3,4)  3x(1,1)  then 1 zeros ()
    """
    groups = refine(*layouts)
    chosen = choices(groups, most)
    if chosen is None:
        return None
    tail = _tail(layouts[-1], groups)
    zeros = padding(layouts[-1], tail)
    if len(chosen) + len(zeros) > most:
        return None
    starts = [layout.offset0 for layout in layouts]
    data = []
    for several in chosen:
        ends = tail is not None and any(piece is tail.piece for piece in several)
        if tail is not None and ends:
            several = tuple(_straight(p) if p is tail.piece else p for p in several)
        data.append(replace(combined(several, starts), fill=tail.zeros if tail is not None and ends else 0))
    return Padded(tuple(data), tuple(zeros), tail)


def _straight(piece: Nest) -> Nest:
    """A piece of one loop whose padding follows: its step in the destination is one element in any case."""
    (loop,) = piece.loops
    return replace(piece, loops=(Loop(loop.extent, (*loop.steps[:-1], 1)),))


def _tail(layout: Layout, groups: Sequence[Group]) -> Tail | None:
    """Padding that continues a piece, element by element."""
    for t, term in enumerate(layout.terms):
        if layout.term_size(t) == layout.padded[t]:
            continue
        for piece in next((group.pieces or () for group in groups if group.axes == term), ()):
            if len(piece.loops) != 1 or (piece.loops[0].extent > 1 and piece.loops[0].dst != 1):
                continue
            end = piece.dst + piece.loops[0].extent
            zeros = 0
            for after in _pieces(layout, t, layout.term_size(t)):
                if after.dst != end + zeros:
                    break
                follow = after.row.extent if after.row else 1
                zeros += follow
                if follow < after.size:
                    break
            if zeros:
                return Tail(t, piece, zeros)
    return None


def padding(layout: Layout, tail: Tail | None = None) -> list[Nest]:
    """All padding of a layout as nests of one operand, in elements; without that of a tail.

    No nest has places that are no padding.
    """
    if not layout.has_padding:
        return []
    found = []
    for t, room in enumerate(layout.padded):
        first = layout.term_size(t) + (tail.zeros if tail is not None and tail.term == t else 0)
        if first == room:
            continue
        own = _pieces(layout, t, first)
        rows = _rows(own)
        for others in product(*(_pieces(layout, u, 0) for u in range(len(layout.terms)) if u != t)):
            start = layout.offset0 + sum(piece.dst for piece in others)
            around = [(n, loop[-1]) for piece in others for n, loop in piece.loops if n > 1]
            if rows is None:
                inner = [(piece.dst, [(n, step[-1]) for n, step in piece.loops]) for piece in own]
                found += [_nest(start + at, [*around, *loops]) for at, loops in inner]
                continue
            gathered, around = _gathered(rows, around)
            for row in gathered:
                found.append(_nest(start + row.start, [*around, (row.turns, row.step), (row.size, 1)]))
    return found


def _pieces(layout: Layout, term: int, first: int) -> tuple[Nest, ...]:
    """The numbers of a term from ``first`` up to its room."""
    room = layout.padded[term]
    return pieces([merge(trim(layout.ladders[term], room))], first, room) or ()


def _nest(start: int, loops: Sequence[tuple[int, int]]) -> Nest:
    return Nest((start,), tuple(Loop(n, (step,)) for n, step in loops if n > 1), (1,))


# -- padding in long rows -----------------------------------------------------------------------------------


class _Steps(NamedTuple):
    """Rows of ``size`` neighbouring places: so many ``turns``, each ``step`` further."""

    start: int
    size: int
    turns: int
    step: int


def _rows(nests: Sequence[Nest]) -> Rows | None:
    """The places of nests as rows; None where there are too many."""
    if sum(nest.size // (nest.row.extent if nest.row else 1) for nest in nests) > MOST_ROWS:
        return None
    found = []
    for nest in nests:
        size = nest.row.extent if nest.row else 1
        starts = chain(*places(replace(nest, loops=nest.without(nest.row))))
        found += [(int(start), int(start) + size) for start in starts]
    return _joined(found)


def _gathered(rows: Rows, loops: list[tuple[int, int]]) -> tuple[list[_Steps], list[tuple[int, int]]]:
    """Rows, repeated by loops of (extent, step), as few and long rows; and the loops left around those.

    Inputs 3 to 15 of 16 outputs in ``4i16o4i``, where inputs 0 to 2 are no padding. Input 3 of the last
    output touches what follows; the loop over 9 taps stays as it is:

    >>> _gathered([(3, 4), (64, 68), (128, 132), (192, 196)], [(16, 4), (9, 256)])
    ([_Steps(start=3, size=1, turns=15, step=4), _Steps(start=63, size=193, turns=1, step=193)], [(9, 256)])
    """
    around = sorted(loops, key=lambda loop: abs(loop[1]))
    groups = _in_steps(rows)
    while around:
        n, d = around[0]
        if all(end - start == d for start, end in rows):
            more = [(start, start + n * d) for start, end in rows]
        elif n * len(rows) <= MOST_ROWS:
            more = [(start + k * d, end + k * d) for start, end in rows for k in range(n)]
        else:
            break
        more = _joined(more)
        found = _in_steps(more)
        if len(found) > len(groups):
            break
        rows, groups = more, found
        del around[0]
    return groups, around


def _joined(rows: Rows) -> Rows:
    """Rows of places from start to end in rising order; those that touch become one."""
    out: Rows = []
    for start, end in sorted(rows):
        if out and out[-1][1] == start:
            out[-1] = out[-1][0], end
        else:
            out.append((start, end))
    return out


def _in_steps(rows: Rows) -> list[_Steps]:
    """Rows of one length and one distance together."""
    out: list[list[int]] = []
    for start, end in rows:
        if out and out[-1][1] == end - start:
            first, _, turns, step = out[-1]
            step = start - first if turns == 1 else step
            if start == first + turns * step:
                out[-1][2:] = turns + 1, step
                continue
        out.append([start, end - start, 1, end - start])
    return [_Steps(*steps) for steps in out]
