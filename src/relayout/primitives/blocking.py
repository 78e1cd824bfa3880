"""Rows of weights into blocks of eight outputs, by one kernel for all sizes.

Weights come with an output in a row, and kernels read eight outputs side by side::

    source   output 0   a b c d ...        target   a0 a1 ... a7   b0 b1 ... b7   c0 ...
             output 1   a b c d ...                 a8 a9 ... a15  b8 ...

Filters, matrices, and matrices that read what was an image differ in where the columns go, which is a table.
So one kernel does for all (:mod:`relayout.kernels.copy.blocking`), where a reorder of each size would be
another module of machine code; and NumPy, which needs none, moves a tenth of what memory does where rows lie
a power of two apart.

>>> from relayout.layout.descriptor import MemoryDesc
>>> found = blocks_of(MemoryDesc((16, 4, 3, 3), "f32", "oihw"), MemoryDesc((16, 4, 3, 3), "f32", "Ohwi8o"))
>>> found.columns, found.stride, found.places.tolist(), found.targets[:10].tolist()
(36, 144, [0, 1152], [0, 128, 256, 384, 512, 640, 768, 896, 1024, 32])
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from relayout.forking import locked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.layout.descriptor import MemoryDesc
    from relayout.layout.layout import Layout

__all__ = ["Blocks", "blocks_of", "move_of"]

LANES, WORD = 8, 4  # rows of a block; bytes of an element


class Blocks(NamedTuple):
    """How rows become blocks; all in bytes but for the columns."""

    columns: int
    stride: int
    """From one row of the source to the next."""
    source: int
    """Where the first row begins."""
    places: NDArray[np.int64]
    """Where each block of eight rows begins."""
    targets: NDArray[np.int64]
    """Where each column goes, from there."""


def blocks_of(src: MemoryDesc, dst: MemoryDesc) -> Blocks | None:
    """How a reorder is one of rows into blocks; None: it is none.

    Parameters
    ----------
    src, dst : MemoryDesc
        Of the same dims and of one data type of 32 bits.
    """
    layouts = src.layout, dst.layout
    if src.dtype != dst.dtype or src.dtype.bits != 8 * WORD or src.dims != dst.dims:
        return None
    if any(len(term) != 1 for layout in layouts for term in layout.terms):
        return None
    dims = src.dims
    for axis, count in enumerate(dims):
        columns = prod(dims) // max(count, 1)
        if count < LANES or count % LANES or columns < LANES:
            continue
        writes = _along(dst.layout, axis).reshape(-1, LANES)
        reads = _along(src.layout, axis)
        stride = int(reads[1] - reads[0])
        even = stride >= columns and bool((reads == stride * np.arange(count)).all())
        if not even or (writes - writes[:, :1] != np.arange(LANES)).any():
            continue
        froms, tos = (_across(layout, axis) for layout in layouts)
        if froms.min() < 0 or froms.max() != columns - 1:
            continue
        order = np.full(columns, -1)
        order[froms] = np.arange(columns)
        if order.min() < 0:  # two columns in one place
            continue
        starts = writes[:, 0] + dst.layout.offset0
        return Blocks(columns, stride * WORD, src.layout.offset0 * WORD, starts * WORD, tos[order] * WORD)
    return None


def _along(layout: Layout, axis: int) -> NDArray[np.int64]:
    """The offsets of the elements of an axis from the first one."""
    index = np.zeros((layout.dims[axis], len(layout.dims)), np.int64)
    index[:, axis] = np.arange(layout.dims[axis])
    return np.asarray(layout.offsets(index), np.int64) - layout.offset0


def _across(layout: Layout, axis: int) -> NDArray[np.int64]:
    """The same of all other axes together."""
    found = np.zeros(1, np.int64)
    for other in range(len(layout.dims)):
        if other != axis:
            found = (found[:, None] + _along(layout, other)).reshape(-1)
    return found


@locked
def move_of(blocks: Blocks, source: int, target: int) -> Callable[[], object]:
    """What moves rows between two addresses, compiled; it asks for no lock."""
    from relayout.jit.background import ready
    from relayout.jit.compile import compiled
    from relayout.kernels.copy.blocking import ENTRY, module
    from relayout.targets.machine import host

    kernel = ready(compiled(module(host()), [ENTRY])[ENTRY])
    places, targets = (np.ascontiguousarray(one) for one in (blocks.places, blocks.targets))
    about = len(places), blocks.columns, blocks.stride, places.ctypes.data, targets.ctypes.data
    operands = np.array(about, np.int64)
    kept: Any = places, targets

    def move() -> object:
        kernel(source + blocks.source, target, operands.ctypes.data, 0, 1)
        return kept

    return move
