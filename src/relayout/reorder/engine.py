"""The NumPy engine: reorder as strided copies over the common refinement.

:func:`relayout.loops.refine.refine` cuts both layouts, and the tables of attributes that have values along an
axis, into loops with one step in each. A nest of such loops *is* several strided NumPy arrays of equal shape,
so moving a piece is one assignment, and converting it one call of :func:`relayout.convert.rescale`. Where a
tensor has tails, blocks that don't divide each other, or both, it is the product of the pieces of its groups;
there are few. Where there would be many, or a group has no nest at all, offsets are tabulated and elements
are gathered and scattered by index.

The engine is total: it takes every pair of layouts. It stays as the oracle of faster ones and as the fallback
on hosts that forbid machine code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.convert import rescale
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout, plain
from relayout.loops.nest import Nest, places, view
from relayout.loops.padding import padding
from relayout.loops.refine import Group, nests, offsets_along, refine, table_along
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
    copy = _Copy(src, dst, attributes, moves_bits)
    found = nests(copy.groups, [layout.offset0 for layout in copy.layouts], MOST_PIECES)
    if found is None:
        _by_tables(source, target, copy)
    for nest in found or ():
        _by_strides(source, target, copy, nest)


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
    for at in (at for nest in padding(dst.layout) for at in places(nest, most=GATHERED)):
        _put_nibbles(dst_bytes, at, np.zeros(at.shape, np.uint8))
    for part, at in _element_places(dst.layout):
        values: NDArray[np.uint8] = target[part].astype(np.int8).view(np.uint8) & np.uint8(15)
        _put_nibbles(dst_bytes, at, values)


def four_bit_values(desc: MemoryDesc, data: NDArray[np.uint8]) -> Elements:
    """The 4-bit elements in row-major order, one to a byte."""
    out = np.zeros(desc.layout.size, np.uint8)
    for part, at in _element_places(desc.layout):
        out[part] = data[at >> 1] >> ((at & 1) << 2).astype(np.uint8) & 15
    signed = out.astype(np.int8) if not desc.dtype.is_signed else ((out ^ 8).astype(np.int8) - 8)
    return signed.astype(desc.dtype.numpy)


def _put_nibbles(data: NDArray[np.uint8], at: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
    """Write 4-bit values at places; halves of one byte one after the other, as each keeps the other half."""
    for half, kept in ((0, 0xF0), (1, 0x0F)):
        mine = (at & 1) == half
        where = at[mine] >> 1
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


class _Copy:
    """What happens to the elements of one reorder between the two sides, whichever way they are visited."""

    def __init__(self, src: MemoryDesc, dst: MemoryDesc, attributes: Attributes, moves_bits: bool) -> None:
        self.src, self.dst, self.moves_bits = src, dst, moves_bits
        self.beta = attributes.beta
        # Where bits alone are moved nothing may wait for the lock of forks: a thread does that (packing).
        part = attributes if attributes.is_plain else attributes.taking_part(src.dtype, dst.dtype)
        given: dict[str, PerAxis] = {n: made for n in NEUTRAL if (made := getattr(part, n)) is not None}
        self.numbers = {name: made.values for name, made in given.items() if made.axis is None}
        self.tables = {name: made.values for name, made in given.items() if made.axis is not None}
        axes = (made.axis for made in given.values() if made.axis is not None)
        self.layouts = [src.layout, *(table_along(src.dims, axis) for axis in axes), dst.layout]
        self.groups = refine(*self.layouts)

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


def _by_strides(source: Elements, target: Elements, copy: _Copy, nest: Nest) -> None:
    """Move one nest."""
    taken, given = view(nest, source, 0), view(nest, target)
    if copy.moves_bits:
        given[...] = taken
        return
    tables = enumerate(copy.tables.items(), 1)
    parts = copy.numbers | {name: view(nest, values, k) for k, (name, values) in tables}
    if taken.ndim == 0:
        given[...] = copy.move(taken, given, parts)
        return
    # In slices of the outermost loop, so that temporaries stay small whatever the size of the tensor.
    rows = max(1, GATHERED // max(1, taken[0].size))
    for start in range(0, len(taken), rows):
        rows_of = slice(start, start + rows)
        cut = {name: p[rows_of] if p.ndim and len(p) > 1 else p for name, p in parts.items()}
        given[rows_of] = copy.move(taken[rows_of], given[rows_of], cut)


def _by_tables(source: Elements, target: Elements, copy: _Copy) -> None:
    """Move everything by tables of offsets.

    One for each group in every operand, added up for as many elements at a time as fit.
    """
    sizes = [group.size for group in copy.groups]
    tables = [[_table(layout, group) for group in copy.groups] for layout in copy.layouts]
    inner = len(sizes)
    while inner > 0 and prod(sizes[inner - 1 :]) <= GATHERED:
        inner -= 1
    tails = [_sum_of(table[inner:]) for table in tables]
    for outer in _blocks(sizes[:inner], GATHERED // max(1, tails[0].size)):
        src_index, *between, dst_index = (
            _outer([table[k][part] for k, part in enumerate(outer)], tail) + layout.offset0
            for table, tail, layout in zip(tables, tails, copy.layouts, strict=True)
        )
        if copy.moves_bits:
            target[dst_index] = source[src_index]
            continue
        several = zip(copy.tables.items(), between, strict=True)
        parts = copy.numbers | {name: values[index] for (name, values), index in several}
        old = target[dst_index] if copy.beta else None
        target[dst_index] = copy.move(source[src_index], old, parts)


def _table(layout: Layout, group: Group) -> NDArray[np.int64]:
    """The offset of every number of a group, without ``offset0``."""
    return offsets_along(layout, group.axes, np.arange(group.size, dtype=np.int64))


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
    """Write zeros to all room of the layout that no element uses; nothing else is touched."""
    for nest in padding(layout):
        view(nest, target)[...] = 0
