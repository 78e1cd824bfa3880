"""``relayout.guess``: in which formats does a buffer hold given elements?"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from relayout.dtypes import DTypeLike
from relayout.errors import LayoutError
from relayout.inspecting.elements import Reading, logical_array, raw_bytes, readings
from relayout.inspecting.matches import Guess, Match
from relayout.inspecting.naming import formats_like
from relayout.inspecting.placing import Comparison, compared, laid_out
from relayout.inspecting.whereabouts import Tokens, Whereabouts
from relayout.layout.descriptor import MAX_RANK, MemoryDesc
from relayout.layout.layout import Layout, spell_dims
from relayout.loops.nest import view
from relayout.loops.padding import padding

__all__ = ["guess"]

HELD = 0.25  # of the elements of a buffer that was cut off must be there for its format to be named


def guess(buffer: Any, logical: Any, *, dtype: DTypeLike | None = None) -> Guess:
    """Find the formats in which a buffer holds given elements.

    Parameters
    ----------
    buffer : bytes, memoryview, mmap, array or Tensor
        The memory. Arrays are taken as their bytes; a memory map is read through, not loaded.
    logical : array
        The elements as a program sees them: an array of logical shape, in any order of the axes.
    dtype : optional
        The data type of the buffer's elements. Without it, that of ``logical`` is tried, then those to which
        the values may have been converted.

    Returns
    -------
    Guess
        With one :class:`~relayout.inspecting.matches.Match` for each layout; false where there is none. Every
        match reproduces every element bit by bit (all NaNs are one), but for those behind the end of a buffer
        that was cut off, which it counts.

    Raises
    ------
    LayoutError
        ``logical`` is no array of numbers or has no elements, or ``buffer`` is no memory.

    Notes
    -----
    Strides and digits are worked out from where values lie (:mod:`relayout.inspecting`), so the format needs
    no name. Values that repeat are coped with as long as rows of them differ.

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> x = np.arange(1, 681, dtype=np.float32).reshape(2, 17, 5, 4)
    >>> dump = rl.tensor(x, "nChw8c").buffer.tobytes()
    >>> found = guess(dump, x)
    >>> str(found.format), found.format.with_roles("nchw").name("openvino"), found.best.padding
    ('aBcd8b', 'b_fs_yx_fsv8', 280)
    """
    data = raw_bytes(buffer)
    array, kind = logical_array(logical)
    if not array.size:
        raise LayoutError(f"{spell_dims(array.shape)} has no elements: every format holds it")
    if array.ndim > MAX_RANK:
        raise LayoutError(f"formats have at most {MAX_RANK} axes, and the logical array {array.ndim}")
    if dtype is None and isinstance(buffer, np.ndarray) and buffer.dtype.itemsize > 1:
        _, dtype = logical_array(buffer[:0].reshape(-1)) if buffer.dtype == array.dtype else (None, None)
    cut: list[Match] = []
    for reading in readings(data, array, kind, dtype):
        found: list[Match] = []
        for layout, seen in _layouts(reading):
            match = _match(reading, layout, seen, data.size)
            (cut if seen.outside else found).append(match)
        if found:
            return Guess(array.shape, kind, data.size, tuple(found), "")
    if cut:
        why = "the buffer ends before the last element: what is there agrees"
        return Guess(array.shape, kind, data.size, tuple(cut[:1]), why)
    return Guess(array.shape, kind, data.size, (), _reason(data.size, array.size, kind.nbytes(array.size)))


def _layouts(reading: Reading) -> Iterator[tuple[Layout, Comparison]]:
    """The layouts under which a reading holds all values, or all that were not cut off."""
    if reading.memory.size == 0:
        return
    seen: set[Layout] = set()
    for layout in laid_out(reading.values, Whereabouts(reading.memory)):
        if layout in seen:
            continue
        seen.add(layout)
        result = compared(reading.values, reading.memory, layout, patience=0)
        if not result.different and result.equal >= HELD * prod(layout.dims):
            yield layout, result


def _match(reading: Reading, layout: Layout, seen: Comparison, size: int) -> Match:
    """A layout with its formats; its place 0 is the first that any element lies at."""
    low = max(0, layout.bounds()[0])
    own = layout.moved(layout.offset0 - low)
    room = None if seen.outside else reading.memory.size - low  # nobody knows what was cut off
    formats = formats_like(own, room, reading.dtype.name)
    dims = layout.dims
    desc = MemoryDesc(dims, reading.dtype, Layout(dims, formats[0]) if formats else own)
    bits = reading.dtype.bits
    used = (low + desc.layout.span) * bits // 8
    return Match(
        desc=desc,
        offset=reading.start + low * bits // 8,
        formats=formats,
        swapped=reading.swapped,
        scale=1.0,
        missing=seen.outside,
        padding=prod(desc.layout.padded) - prod(dims),
        dirty=_dirty(desc.layout, reading.memory[low:]),
        behind=max(0, size - reading.start - used),
        strides=own.strides if own.is_plain else None,
    )


def _dirty(layout: Layout, memory: Tokens) -> int:
    """Places of padding that are not zero."""
    if not layout.has_padding or layout.span > memory.size:
        return 0
    return sum(int(np.count_nonzero(view(nest, memory))) for nest in padding(layout))


def _reason(size: int, elements: int, needed: int) -> str:
    if size < needed // 4:
        return f"it is too short; {elements:,} elements take {needed:,} bytes in their own data type"
    return "its bytes are not these elements in any order that digits can say"
