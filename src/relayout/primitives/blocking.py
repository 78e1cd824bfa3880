"""Rows of weights into blocks of eight outputs, by one kernel for all sizes.

Weights come with an output in a row, and kernels read eight outputs side by side::

    source   output 0   a b c d ...        target   a0 a1 ... a7   b0 b1 ... b7   c0 ...
             output 1   a b c d ...                 a8 a9 ... a15  b8 ...

Filters, matrices, and matrices that read what was an image differ in where the columns go, which is a table.
So this is one module of machine code, compiled once, where a reorder of each size would be another one; and
NumPy, which needs none, moves a tenth of what memory does where rows lie a power of two apart.

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

LANES, HALF, WORD = 8, 4, 4  # elements of a block, and of a lane; bytes of one
NAME = "rows_into_blocks"


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

    kernel = ready(compiled(_text(), [NAME])[NAME])
    places, targets = (np.ascontiguousarray(one) for one in (blocks.places, blocks.targets))
    about = len(places), blocks.columns, blocks.stride, places.ctypes.data, targets.ctypes.data
    operands = np.array(about, np.int64)
    kept: Any = places, targets

    def move() -> object:
        kernel(source + blocks.source, target, operands.ctypes.data, 0, 1)
        return kept

    return move


def _text() -> str:
    """The module: blocks, and columns of each, eight at a time; the last eight may be some of these again.

    Four columns of eight rows are four registers, each of which has a piece of row k in its lower half and of
    row k + 4 in its upper one. Two stages of unpacking within the halves transpose them.
    """
    lines = []
    for first in (0, HALF):
        for k in range(HALF):
            for row, half in ((k, "low"), (k + HALF, "high")):
                name = f"{half}{first}.{k}"
                lines.append(f"%{name}.at = getelementptr i8, ptr %row{row}, i64 {first * WORD}")
                lines.append(f"%{name} = load <4 x i32>, ptr %{name}.at, align 4")
            whole = ", ".join(f"i32 {i}" for i in range(LANES))
            pair = f"<4 x i32> %low{first}.{k}, <4 x i32> %high{first}.{k}"
            lines.append(f"%x{first}.{k} = shufflevector {pair}, <{LANES} x i32> <{whole}>")
        for k, (one, other, upper) in enumerate(((0, 1, 0), (2, 3, 0), (0, 1, 1), (2, 3, 1))):
            picks = [p + 2 * upper for p in (0, 8, 1, 9, 4, 12, 5, 13)]
            lines.append(_shuffled(f"y{first}.{k}", f"x{first}.{one}", f"x{first}.{other}", picks))
        for k, (one, upper) in enumerate(((0, 0), (0, 1), (2, 0), (2, 1))):
            picks = [p + 2 * upper for p in (0, 1, 8, 9, 4, 5, 12, 13)]
            lines.append(_shuffled(f"z{first + k}", f"y{first}.{one}", f"y{first}.{one + 1}", picks))
    for k in range(LANES):
        lines.append(f"%to{k}.at = getelementptr i64, ptr %tos, i64 {k}")
        lines.append(f"%to{k} = load i64, ptr %to{k}.at")
        lines.append(f"%write{k} = getelementptr i8, ptr %block, i64 %to{k}")
        lines.append(f"store <8 x i32> %z{k}, ptr %write{k}, align 4")
    rows = ["%row0 = getelementptr i8, ptr %rows, i64 %bytes"]
    rows += [f"%row{k} = getelementptr i8, ptr %row{k - 1}, i64 %stride" for k in range(1, LANES)]
    names = "count", "columns", "stride", "places", "targets"
    loads = []
    for k, name in enumerate(names):
        kind = "ptr" if name in ("places", "targets") else "i64"
        loads.append(f"%{name}.at = getelementptr i64, ptr %operands, i64 {k}")
        loads.append(f"%{name} = load {kind}, ptr %{name}.at")
    start, body = ("\n  ".join(several) for several in (loads, [*rows, *lines]))
    return f"""
define void @{NAME}(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {{
entry:
  {start}
  %next = add i64 %part, 1
  %a = mul i64 %count, %part
  %b = mul i64 %count, %next
  %first = udiv i64 %a, %parts
  %end = udiv i64 %b, %parts
  %last = sub i64 %columns, {LANES}
  %tall = mul i64 %stride, {LANES}
  br label %blocks
blocks:
  %i = phi i64 [%first, %entry], [%i.next, %done]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %begin, label %out
begin:
  %down = mul i64 %i, %tall
  %rows = getelementptr i8, ptr %source, i64 %down
  %place.at = getelementptr i64, ptr %places, i64 %i
  %place = load i64, ptr %place.at
  %block = getelementptr i8, ptr %target, i64 %place
  br label %turn
turn:
  %j = phi i64 [0, %begin], [%j.next, %turn]
  %bytes = mul i64 %j, {WORD}
  %tos = getelementptr i64, ptr %targets, i64 %j
  {body}
  %past = add i64 %j, {LANES}
  %j.next = call i64 @llvm.smin.i64(i64 %past, i64 %last)
  %again = icmp sgt i64 %j.next, %j
  br i1 %again, label %turn, label %done
done:
  %i.next = add i64 %i, 1
  br label %blocks
out:
  ret void
}}

declare i64 @llvm.smin.i64(i64, i64)
"""


def _shuffled(name: str, one: str, other: str, picks: list[int]) -> str:
    """A line that picks elements of two registers."""
    mask = ", ".join(f"i32 {pick}" for pick in picks)
    return f"%{name} = shufflevector <8 x i32> %{one}, <8 x i32> %{other}, <8 x i32> <{mask}>"
