"""``relayout.guess``: in which formats does a buffer hold given elements?"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import DTypeLike
from relayout.errors import LayoutError
from relayout.inspecting.elements import Reading, logical_array, raw_bytes, readings
from relayout.inspecting.matches import Guess, Match
from relayout.inspecting.naming import catalogue, formats_like
from relayout.inspecting.placing import Comparison, compared, laid_out
from relayout.inspecting.rows import holds, laid_out_in_rows
from relayout.inspecting.whereabouts import Tokens, Whereabouts
from relayout.layout.descriptor import MAX_RANK, MemoryDesc
from relayout.layout.layout import Layout, spell_dims
from relayout.loops.nest import view
from relayout.loops.padding import padding

__all__ = ["guess"]

HELD = 0.25  # of the elements of a buffer that was cut off must be there for its format to be named
NEAR = 0.5  # of the elements must be in their places for a format to be called close
CLOSE = 0.99  # in their places: no other layout will do better
PROBED = 64  # elements by which a listed format is ruled out
SAMPLED = 1 << 12  # elements that are looked for, before anything else is
SINGLE = 0.5  # of them occur once: then their places tell everything, and rows nothing more
NOTHING = "its bytes are not these elements in any order that digits can say"
REPEATED = (
    "values repeat, so that their places tell no order, and no format that is listed agrees; a format "
    "that you suppose can be verified"
)


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
        ``logical`` is no array of numbers, has no axes or no elements, or ``buffer`` is no memory.

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
    if not array.ndim:
        raise LayoutError("the logical value is a scalar: it has no axes, so that there is no format to find")
    if array.ndim > MAX_RANK:
        raise LayoutError(f"formats have at most {MAX_RANK} axes, and the logical array {array.ndim}")
    if dtype is None and isinstance(buffer, np.ndarray) and buffer.dtype.itemsize > 1:
        _, dtype = logical_array(buffer[:0].reshape(-1)) if buffer.dtype == array.dtype else (None, None)
    reason = _refused(data, array, kind.nbytes(array.size))
    if reason:
        return Guess(array.shape, kind, data.size, (), reason)
    cut, near, first = None, "", None
    for reading in readings(data, array, kind, dtype):
        first = first or reading
        layout, seen = _best(reading)
        if layout is None:
            continue
        if seen.exact:
            return Guess(array.shape, kind, data.size, (_match(reading, layout, seen, data.size),), "")
        if not seen.different and seen.equal >= HELD * array.size:
            cut = cut or _match(reading, layout, seen, data.size)
        elif not near and seen.equal > NEAR * array.size:
            close = _match(reading, layout, seen, data.size)
            near = f"{close.desc} comes close, but {seen.different:,} of {array.size:,} elements differ"
            if seen.equal > CLOSE * array.size:
                break
    if cut is not None:
        why = "the buffer ends before the last element: what is there agrees"
        return Guess(array.shape, kind, data.size, (cut,), why)
    layout = None if near or first is None else _listed(first)
    if first is not None and layout is not None:
        match = _match(first, layout, Comparison(array.size, 0, 0), data.size)
        return Guess(array.shape, kind, data.size, (match,), "")
    repeated = first is not None and _repeated(first)
    return Guess(array.shape, kind, data.size, (), near or (REPEATED if repeated else NOTHING))


def _repeated(reading: Reading) -> bool:
    """Whether the memory has most of the values, and more than once: their places tell little then."""
    counts = Whereabouts(reading.memory).counts(reading.values.reshape(-1)[:SAMPLED])
    return bool(np.mean(counts > 0) > NEAR and np.mean(counts > 1) > NEAR / 2)


def _listed(reading: Reading) -> Layout | None:
    """A layout by a format of a notation's list: where values repeat so often that they show no digits.

    One that fills the buffer is preferred.
    """
    values, memory = reading.values, reading.memory
    flat = values.reshape(-1)
    numbers = np.random.default_rng(0).integers(0, flat.size, PROBED)
    indices = np.stack(np.unravel_index(numbers, values.shape), axis=-1)
    found = None
    for format, _ in catalogue(values.ndim, reading.dtype.name):
        try:
            layout = Layout(values.shape, format)
        except LayoutError:
            continue
        full = layout.span == memory.size
        if layout.span > memory.size or (found is not None and not full):
            continue
        likely = (memory[layout.offsets(indices)] == flat[numbers]).all()
        if likely and compared(values, memory, layout, 0).exact:
            found = layout
            if full:
                break
    return found


def _refused(data: Tokens, array: NDArray[Any], needed: int) -> str:
    """Why there is nothing to look for; empty if there is."""
    if data.size < HELD * needed / 8:
        return f"it is too short; {array.size:,} elements take {needed:,} bytes in their own data type"
    first = array.reshape(-1)[:1]
    if array.size > 1 and ((array == first) | ((array != array) & (first != first))).all():
        return f"all elements are {first[0]}, so that their places can't be told apart"
    return ""


def _best(reading: Reading) -> tuple[Layout | None, Comparison]:
    """The layout that explains a reading best, and how far it does."""
    values, memory = reading.values, reading.memory
    best, seen = None, Comparison(0, 0, 0)
    where = Whereabouts(memory)
    rng = np.random.default_rng(0)
    drawn = values.reshape(-1)[rng.integers(0, values.size, SAMPLED)]
    counts = where.counts(drawn)
    share = np.count_nonzero(counts) / counts.size
    if share < HELD:
        return None, seen
    for layout in _supposed(values, memory, where, share == 1 and np.mean(counts == 1) < SINGLE):
        result = compared(values, memory, layout)
        if best is None or result.equal > seen.equal:
            best, seen = layout, result
        if result.exact or result.equal > CLOSE * values.size:
            break
    return best, seen


def _supposed(values: Tokens, memory: Tokens, where: Whereabouts, repeated: bool) -> Iterator[Layout]:
    """Layouts that are worth comparing: by values that occur once, and where they repeat, by rows."""
    yield from laid_out(values, where)
    if repeated and holds(values, memory):
        yield from laid_out_in_rows(values, memory)


def _match(reading: Reading, layout: Layout, seen: Comparison, size: int) -> Match:
    """A layout with its formats; its place 0 is the first that any element lies at."""
    low = max(0, layout.bounds()[0])
    own = layout.moved(layout.offset0 - low)
    room = None if seen.outside else reading.memory.size - low  # nobody knows what was cut off
    formats = formats_like(own, room, reading.dtype.name)
    dims = layout.dims
    if len(formats) > 1:  # what lies in padding that is not zero is rather something behind the tensor
        memory = reading.memory[low:]
        clean = next((one for one in formats if not _dirty(Layout(dims, one), memory)), formats[0])
        formats = (clean, *(one for one in formats if one != clean))
    desc = MemoryDesc(dims, reading.dtype, Layout(dims, formats[0]) if formats else own)
    bits = reading.dtype.bits
    used = (low + desc.layout.span) * bits // 8
    return Match(
        desc=desc,
        offset=reading.start + low * bits // 8,
        formats=formats,
        swapped=reading.swapped,
        scale=reading.scale,
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
