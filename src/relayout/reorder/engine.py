"""The NumPy engine: reorder as strided copies over the common refinement.

:func:`relayout.layout.refine.refine` cuts both layouts into loops with one stride on either side. A nest of
such loops *is* a pair of strided NumPy arrays of equal shape, so moving a piece is one assignment, and
converting it one call of :func:`relayout.convert.rescale` between the two. Where a tensor has tails, blocks
that don't divide each other, or both, it is the product of the pieces of its groups; there are few. Where
there would be many, or a group has no nest at all, offsets are tabulated and elements are gathered and
scattered by index.

The engine is total: it takes every pair of layouts. It stays as the oracle of faster ones and as the fallback
on hosts that forbid machine code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from relayout.convert import rescale
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout, plain
from relayout.layout.refine import Group, Loop, Piece, axis_number, refine, self_pieces
from relayout.layout.vectorised import term_offsets
from relayout.reorder.attributes import NEUTRAL, Attributes, PerAxis

__all__ = ["four_bit_values", "reorder_numpy"]

MOST_PIECES = 256  # beyond that tables are cheaper than a copy for every piece
GATHERED = 1 << 20  # elements that are gathered by index at a time

Elements = NDArray[Any]


def reorder_numpy(
    src: MemoryDesc,
    src_bytes: NDArray[np.uint8],
    dst: MemoryDesc,
    dst_bytes: NDArray[np.uint8],
    attributes: Attributes,
    *,
    zeroed: bool = False,
) -> None:
    """Write every element and the padding of the destination.

    Parameters
    ----------
    src, dst : MemoryDesc
        Descriptors of equal dims.
    src_bytes, dst_bytes : ndarray of uint8
        Buffers that hold at least ``required_bytes`` of them, and don't overlap.
    attributes : Attributes
        Scales, zero points and ``beta``.
    zeroed : bool
        The destination is known to hold zeros, so its padding needs no writing.
    """
    if 0 in src.dims:
        return
    if src.dtype.bits < 8 or dst.dtype.bits < 8:
        _with_nibbles(src, src_bytes, dst, dst_bytes, attributes)
        return
    moves_bits = src.dtype == dst.dtype and attributes.is_plain
    source = _elements(src, src_bytes, moves_bits)
    target = _elements(dst, dst_bytes, moves_bits)
    if not zeroed:
        _zero_padding(dst.layout, target)
    _visit(src, source, dst, target, attributes, moves_bits)


def _visit(
    src: MemoryDesc,
    source: Elements,
    dst: MemoryDesc,
    target: Elements,
    attributes: Attributes,
    moves_bits: bool,
) -> None:
    """Move every element, piece by piece or by tables."""
    groups = refine(src.layout, dst.layout)
    copy = _Copy(src, dst, attributes, groups, moves_bits)
    if (
        any(group.pieces is None for group in groups)
        or prod(len(g.pieces or ()) for g in groups) > MOST_PIECES
    ):
        _by_tables(source, target, copy)
    else:
        for pieces in product(*(group.pieces or () for group in groups)):
            _by_strides(source, target, copy, pieces)


def _with_nibbles(
    src: MemoryDesc,
    src_bytes: NDArray[np.uint8],
    dst: MemoryDesc,
    dst_bytes: NDArray[np.uint8],
    attributes: Attributes,
) -> None:
    """Reorder where either side has 4-bit elements, which share bytes.

    Such a side passes through a row-major array with one element a byte, and only bytes that hold an element
    or padding of it are read or written: a neighbour's bytes may be another thread's.
    """
    row_major = Layout._dense(src.dims, plain(src.rank))
    if src.dtype.bits < 8:
        source = four_bit_values(src, src_bytes)
        src = MemoryDesc._make(src.dims, src.dtype, row_major)
    else:
        source = _elements(src, src_bytes, False)
    if dst.dtype.bits >= 8:
        target = _elements(dst, dst_bytes, False)
        _zero_padding(dst.layout, target)
        _visit(src, source, dst, target, attributes, False)
        return
    if attributes.reads_destination:
        target = four_bit_values(dst, dst_bytes)
    else:
        target = np.zeros(row_major.size, dst.dtype.numpy)
    _visit(src, source, MemoryDesc._make(dst.dims, dst.dtype, row_major), target, attributes, False)
    for places in _padding_places(dst.layout):
        _put_nibbles(dst_bytes, places, np.zeros(places.shape, np.uint8))
    for part, places in _element_places(dst.layout):
        values: NDArray[np.uint8] = target[part].astype(np.int8).view(np.uint8) & np.uint8(15)
        _put_nibbles(dst_bytes, places, values)


def four_bit_values(desc: MemoryDesc, data: NDArray[np.uint8]) -> Elements:
    """The 4-bit elements in row-major order, one to a byte."""
    out = np.zeros(desc.layout.size, np.uint8)
    for part, places in _element_places(desc.layout):
        out[part] = data[places >> 1] >> ((places & 1) << 2).astype(np.uint8) & 15
    signed = out.astype(np.int8) if not desc.dtype.is_signed else ((out ^ 8).astype(np.int8) - 8)
    return signed.astype(desc.dtype.numpy)


def _put_nibbles(data: NDArray[np.uint8], places: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
    """Write 4-bit values at places; halves of one byte one after the other, as each keeps the other half."""
    for half, kept in ((0, 0xF0), (1, 0x0F)):
        mine = (places & 1) == half
        where = places[mine] >> 1
        data[where] = data[where] & kept | values[mine] << (4 * half)


def _element_places(layout: Layout) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """The offsets of all elements in row-major order, some at a time."""
    for start in range(0, layout.size, GATHERED):
        stop = min(start + GATHERED, layout.size)
        if not layout.dims:
            yield slice(0, 1), np.array([layout.offset0])
            return
        index = np.stack(np.unravel_index(np.arange(start, stop), layout.dims), axis=-1)
        yield slice(start, stop), layout.offsets(index)


def _padding_places(layout: Layout) -> Iterator[NDArray[np.int64]]:
    """The offsets of all padding, some at a time (some of them twice)."""
    if not layout.has_padding:
        return
    for t, room in enumerate(layout.padded):
        size = layout.term_size(t)
        others = [
            term_offsets(ladder, np.arange(r, dtype=np.int64))
            for u, (ladder, r) in enumerate(zip(layout.ladders, layout.padded, strict=True))
            if u != t
        ]
        for number in range(size, room):
            start = term_offsets(layout.ladders[t], np.array([number]))[0] + layout.offset0
            yield (_sum_of(others) + start).ravel()


class _Copy:
    """What happens to the elements of one reorder between the two sides, whichever way they are visited."""

    def __init__(
        self,
        src: MemoryDesc,
        dst: MemoryDesc,
        attributes: Attributes,
        groups: Sequence[Group],
        moves_bits: bool,
    ) -> None:
        self.src, self.dst, self.groups, self.moves_bits = src, dst, groups, moves_bits
        self.beta = attributes.beta
        part = attributes.taking_part(src.dtype, dst.dtype)
        self.operands: dict[str, tuple[int, NDArray[Any]]] = {}
        for name in NEUTRAL:
            made: PerAxis | None = getattr(part, name)
            if made is not None:
                self.operands[name] = self._along_group(made)

    def _along_group(self, made: PerAxis) -> tuple[int, NDArray[Any]]:
        """The group whose number an attribute follows (-1: none), and its values for every such number."""
        if made.axis is None:
            return -1, made.values
        for k, group in enumerate(self.groups):
            if made.axis in group.axes:
                numbers = np.arange(group.size)
                return k, np.ascontiguousarray(
                    made.values[axis_number(group.axes, self.src.dims, made.axis, numbers)]
                )
        raise AssertionError(f"axis {made.axis} is in no group")

    def move(self, values: Elements, old: Elements | None, parts: dict[str, Any]) -> Elements:
        """Convert values; attribute values come shaped to broadcast against them."""
        given = old if self.beta else None
        return rescale(
            values, self.src.dtype, self.dst.dtype, beta=self.beta, old=given, keep_neutral=True, **parts
        )


def _elements(desc: MemoryDesc, data: NDArray[np.uint8], as_bits: bool) -> Elements:
    """The physical elements as a one-dimensional array; for pure moves as unsigned integers."""
    count = desc.layout.bounds()[1] + 1
    width = desc.dtype.bits // 8
    return data[: count * width].view(f"u{width}" if as_bits else desc.dtype.numpy)


def _by_strides(source: Elements, target: Elements, copy: _Copy, pieces: Sequence[Piece]) -> None:
    """Move one piece: a nest of loops on either side."""
    loops = [loop for piece in pieces for loop in piece.loops]
    src_at = copy.src.offset0 + sum(piece.src for piece in pieces)
    dst_at = copy.dst.offset0 + sum(piece.dst for piece in pieces)
    taken = _nest(source, src_at, loops, [loop.src for loop in loops])
    given = _nest(target, dst_at, loops, [loop.dst for loop in loops])
    if copy.moves_bits:
        given[...] = taken
        return
    parts = {name: _along_loops(values, k, pieces) for name, (k, values) in copy.operands.items()}
    if taken.ndim == 0:
        given[...] = copy.move(taken, given, parts)
        return
    # In slices of the outermost loop, so that temporaries stay small whatever the size of the tensor.
    rows = max(1, GATHERED // max(1, taken[0].size))
    for start in range(0, len(taken), rows):
        rows_of = slice(start, start + rows)
        cut = {name: p[rows_of] if p.ndim and len(p) > 1 else p for name, p in parts.items()}
        given[rows_of] = copy.move(taken[rows_of], given[rows_of], cut)


def _nest(elements: Elements, start: int, loops: Sequence[Loop], strides: Sequence[int]) -> Elements:
    """A strided view, which NumPy checks against the bounds of the buffer: no loop can leave it."""
    item = elements.itemsize
    shape = [loop.extent for loop in loops]
    view: Elements = np.ndarray(
        shape, elements.dtype, elements.view(np.uint8), start * item, [s * item for s in strides]
    )
    return view


def _along_loops(values: NDArray[Any], group: int, pieces: Sequence[Piece]) -> NDArray[Any]:
    """Attribute values along the loops of a piece; axes of other groups have size 1."""
    if group < 0:
        return values
    shape: list[int] = []
    strides: list[int] = []
    for k, piece in enumerate(pieces):
        shape += [loop.extent if k == group else 1 for loop in piece.loops]
        strides += [loop.step * values.itemsize if k == group else 0 for loop in piece.loops]
    return as_strided(values[pieces[group].start :], shape, strides)


def _by_tables(source: Elements, target: Elements, copy: _Copy) -> None:
    """Move everything by tables of offsets.

    One for each group on either side, added up for as many elements at a time as fit.
    """
    sizes = [group.size for group in copy.groups]
    tables = [(_table(copy.src.layout, group), _table(copy.dst.layout, group)) for group in copy.groups]
    inner = len(sizes)
    while inner > 0 and prod(sizes[inner - 1 :]) <= GATHERED:
        inner -= 1
    src_tail = _sum_of([one for one, _ in tables[inner:]])
    dst_tail = _sum_of([two for _, two in tables[inner:]])
    for outer in _blocks(sizes[:inner], GATHERED // max(1, src_tail.size)):
        src_index = _outer([tables[k][0][part] for k, part in enumerate(outer)], src_tail) + copy.src.offset0
        dst_index = _outer([tables[k][1][part] for k, part in enumerate(outer)], dst_tail) + copy.dst.offset0
        if copy.moves_bits:
            target[dst_index] = source[src_index]
            continue
        parts = {}
        for name, (k, values) in copy.operands.items():
            if k < 0:
                parts[name] = values
            else:
                chosen = values[outer[k]] if k < inner else values
                parts[name] = chosen.reshape([-1 if axis == k else 1 for axis in range(len(sizes))])
        old = target[dst_index] if copy.beta else None
        target[dst_index] = copy.move(source[src_index], old, parts)


def _table(layout: Layout, group: Group) -> NDArray[np.int64]:
    """The offset of every number of a group, without ``offset0``."""
    numbers = np.arange(group.size, dtype=np.int64)
    total = np.zeros(group.size, dtype=np.int64)
    for term, ladder in zip(layout.terms, layout.ladders, strict=True):
        if term[0] in group.axes:
            own = np.zeros(group.size, dtype=np.int64)
            for axis in term:
                own = own * layout.dims[axis] + axis_number(group.axes, layout.dims, axis, numbers)
            total += term_offsets(ladder, own)
    return total


def _sum_of(tables: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """All sums of one entry from each table, shaped one axis a table."""
    total = np.zeros((), dtype=np.int64)
    for table in tables:
        total = total[..., None] + table
    return total


def _outer(heads: Sequence[NDArray[np.int64]], tail: NDArray[np.int64]) -> NDArray[np.int64]:
    head = _sum_of(heads)
    return head.reshape(head.shape + (1,) * tail.ndim) + tail


def _blocks(sizes: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of at most ``most`` (or one) indices that cover ``sizes``.

    Single indices in front, a run of the last axis.
    """
    if not sizes:
        yield ()
        return
    run = max(1, most)
    for lead in product(*map(range, sizes[:-1])):
        for start in range(0, sizes[-1], run):
            yield (*(slice(i, i + 1) for i in lead), slice(start, min(start + run, sizes[-1])))


def _zero_padding(layout: Layout, target: Elements) -> None:
    """Write zeros to all room of the layout that no element uses; nothing else is touched.

    Padding is, term by term, the numbers from the size of the term to its room, with every number of the
    other terms.
    """
    if not layout.has_padding:
        return
    for t, (ladder, room) in enumerate(zip(layout.ladders, layout.padded, strict=True)):
        size = layout.term_size(t)
        if room == size:
            continue
        places = term_offsets(ladder, np.arange(size, room, dtype=np.int64))
        others = [
            self_pieces(other, r)
            for u, (other, r) in enumerate(zip(layout.ladders, layout.padded, strict=True))
            if u != t
        ]
        for pieces in product(*others):
            loops = [loop for piece in pieces for loop in piece.loops]
            start = layout.offset0 + sum(piece.dst for piece in pieces)
            for place in places.tolist():
                _nest(target, start + place, loops, [loop.dst for loop in loops])[...] = 0
