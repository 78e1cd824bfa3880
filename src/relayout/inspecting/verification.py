"""``relayout.verify``: is a buffer in the format that it claims to be in?"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.convert import convert
from relayout.dtypes import DType
from relayout.errors import LayoutError, checked, counted
from relayout.inspecting.elements import bits_of, elements_of, logical_array, raw_bytes
from relayout.inspecting.guessing import guess
from relayout.inspecting.matches import Guess
from relayout.inspecting.patterns import COMPARED, how_values_differ, where_they_differ
from relayout.inspecting.pieces import where_in_memory
from relayout.inspecting.placing import places_of
from relayout.inspecting.whereabouts import Places, Tokens, Whereabouts
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout, spell_dims
from relayout.loops.nest import places
from relayout.loops.padding import padding
from relayout.records import dataclass

__all__ = ["Mismatch", "Verification", "verify"]

GATHERED = 1 << 16  # places of padding that are looked at together


@dataclass(frozen=True)
class Mismatch:
    """An element in whose place something else lies."""

    index: tuple[int, ...]
    """Its logical index."""
    place: int
    """Where it should lie, in elements."""
    byte: int
    """The byte of the buffer at which that place begins."""
    expected: int | float
    """An int where the data type is one of integers."""
    found: int | float

    def __str__(self) -> str:
        index = ", ".join(map(str, self.index)) + ("," if len(self.index) == 1 else "")
        return (
            f"element ({index}) at place {self.place:,}, byte {self.byte:,}: {_spelled(self.expected)} "
            f"expected, {_spelled(self.found)} found"
        )


@dataclass(frozen=True)
class Verification:
    """Whether a buffer is what it claims to be. True as a condition if it is."""

    desc: MemoryDesc
    different: int
    """Elements in whose place something else lies."""
    missing: int
    """Elements whose place lies behind the end of the buffer."""
    first: Mismatch | None
    """The first element that differs, in row-major order of the indices."""
    patterns: tuple[str, ...]
    """What those that differ have in common: where they are, and how their values differ."""
    padding: int
    """Places that hold no element."""
    dirty: int
    """How many of them are not zero."""
    first_dirty: int | None
    """The first such place, in elements."""
    behind: int
    """Bytes of the buffer that the descriptor does not reach."""
    instead: Guess | None
    """Formats that explain the buffer; None where the descriptor does."""
    damaged: bool = False
    """Whether the format is right and some of the contents are wrong: no other format explains the buffer,
    and most elements are in their places."""

    @property
    def holds(self) -> bool:
        """Whether every element is in its place; padding may be anything."""
        return not (self.different or self.missing)

    @property
    def exact(self) -> bool:
        """Whether every element is in its place and all padding is zero."""
        return self.holds and not self.dirty

    def __bool__(self) -> bool:
        return self.exact

    def to_json(self) -> dict[str, Any]:
        """The same as dicts, lists, text and numbers."""
        return {
            "desc": str(self.desc),
            "exact": self.exact,
            "elements": prod(self.desc.dims),
            "different": self.different,
            "missing": self.missing,
            "first": None
            if self.first is None
            else {
                "index": list(self.first.index),
                "place": self.first.place,
                "byte": self.first.byte,
                "expected": _plain(self.first.expected),
                "found": _plain(self.first.found),
            },
            "patterns": list(self.patterns),
            "padding": self.padding,
            "padding_not_zero": self.dirty,
            "first_padding_not_zero": self.first_dirty,
            "bytes_behind": self.behind,
            "damaged": self.damaged,
            "instead": None if self.instead is None else self.instead.to_json(),
        }

    def __str__(self) -> str:
        count = prod(self.desc.dims)
        verdict = f"all {count:,} elements are in their places"
        if not self.holds:
            wrong = [f"{self.different:,} of {count:,} elements differ"] if self.different else []
            if self.missing:
                wrong.append(f"{self.missing:,} of {count:,} lie behind the end of the buffer")
            verdict = ", ".join(wrong)
        lines = [f"{self.desc}: {verdict}"]
        if self.first is not None:
            lines.append(f"  first    {self.first}")
        lines += [f"  pattern  {pattern}" for pattern in self.patterns]
        if self.padding:
            zero = (
                "all zero" if not self.dirty else f"{self.dirty:,} not zero, the first {self.first_dirty:,}"
            )
            lines.append(f"  padding  {self.padding:,} places, {zero}")
        if self.behind:
            lines.append(f"  behind   {self.behind:,} bytes that are no part of it")
        if self.damaged:
            lines.append(
                f"  rest     {count - self.different:,} elements are in their places, and no other format "
                "explains the buffer: the format is right, the values above are wrong"
            )
        elif self.instead is not None:
            told = str(self.instead).splitlines()
            lines += [f"  {'instead' if k == 0 else '       '}  {line}" for k, line in enumerate(told)]
        return "\n".join(lines)


def verify(buffer: Any, desc: MemoryDesc, logical: Any) -> Verification:
    """Compare a buffer with the elements that it should hold in a format.

    Parameters
    ----------
    buffer : bytes, memoryview, mmap, array or Tensor
        The memory. It may be longer than the descriptor asks for, or shorter: what was cut off is counted.
    desc : MemoryDesc
        What the buffer claims to be.
    logical : array
        The elements as a program sees them, of the descriptor's dims. Values of another data type are
        converted to the descriptor's, as a reorder does.

    Returns
    -------
    Verification
        True if every element is in its place, bit by bit (all NaNs are one), and all padding is zero.

    Raises
    ------
    LayoutError
        The dims are others, the descriptor has no layout, or one of the two is no memory or no array.

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> x = np.arange(1, 129, dtype=np.float32).reshape(1, 32, 2, 2)
    >>> desc = rl.MemoryDesc(x.shape, "f32", "nChw16c")
    >>> dump = rl.tensor(x, "nChw16c").buffer
    >>> bool(verify(dump, desc, x))
    True
    >>> print(verify(rl.tensor(x, "nChw8c").buffer, desc, x))  # doctest: +ELLIPSIS
    f32:nChw16c:1x32x2x2: 96 of 128 elements differ
      first    element (0, 0, 0, 1) at place 16, byte 64: 2 expected, 3 found
    ...
    """
    checked(desc, MemoryDesc, "desc", "a relayout.MemoryDesc")
    layout = desc.layout
    if layout is None:
        raise LayoutError(f"{desc} has no layout yet, so no buffer can be in it")
    array, kind = logical_array(logical)
    if array.shape != desc.dims:
        raise LayoutError(
            f"the logical array is {spell_dims(array.shape)} and the descriptor {desc}; the dims must agree"
        )
    low, _ = layout.bounds()
    if low < 0:
        raise LayoutError(f"{desc} reaches {counted(-low, 'element')} in front of its buffer")
    data = raw_bytes(buffer)
    converted = array if kind == desc.dtype else convert(array, desc.dtype)
    values, memory = bits_of(converted, desc.dtype), elements_of(data, desc.dtype)
    mask, missing, first = _compared(values, memory, layout)
    different = int(np.count_nonzero(mask))
    seen = None if first is None else _mismatch(first, layout, converted, memory, desc.dtype)
    patterns: list[str] = []
    if different:
        names = layout.axis_names()
        patterns += [f"where: {said}" for said in where_they_differ(mask, layout, names)]
        piece = where_in_memory(mask, layout, memory, desc.dtype)
        patterns += [f"memory: {piece}"] if piece else []
        patterns += [
            f"values: {said}" for said in _values(mask, layout, converted, values, memory, desc.dtype)
        ]
    wasted, dirty, first_dirty = _padding(layout, memory)
    instead = guess(data, array) if different and array.ndim else None
    return Verification(
        desc=desc,
        different=different,
        missing=missing,
        first=seen,
        patterns=tuple(patterns),
        padding=wasted,
        dirty=dirty,
        first_dirty=first_dirty,
        behind=max(0, data.size - desc.required_bytes),
        instead=instead,
        damaged=instead is not None and not instead and _sound(mask, values, missing),
    )


def _compared(values: Tokens, memory: Tokens, layout: Layout) -> tuple[NDArray[np.bool_], int, int | None]:
    """Which elements differ, how many lie behind the end, and the number of the first that differs."""
    flat = values.reshape(-1)
    mask = np.zeros(flat.size, np.bool_)
    missing = 0
    first: int | None = None
    for part, at in places_of(layout):
        inside = at < memory.size
        if inside.all():
            wrong = memory[at] != flat[part]
        else:
            missing += int(np.count_nonzero(~inside))
            wrong = np.zeros(len(at), np.bool_)
            wrong[inside] = memory[at[inside]] != flat[part][inside]
        if first is None and wrong.any():
            first = part.start + int(np.argmax(wrong))
        mask[part] = wrong
    return mask.reshape(values.shape), missing, first


def _sound(mask: NDArray[np.bool_], values: Tokens, missing: int) -> bool:
    """Whether what agrees speaks for the format: most elements do, and not because most are one value.

    Of activations most may be zero, and zeros agree in any format; so the most frequent value does not count.
    """
    if missing:
        return False
    flat, wrong = values.reshape(-1), mask.reshape(-1)
    some = flat[:: max(1, flat.size // COMPARED)]
    kinds, counts = np.unique(some, return_counts=True)
    telling = flat != kinds[np.argmax(counts)]
    told = int(np.count_nonzero(telling))
    return told > 1 and 2 * int(np.count_nonzero(telling & wrong)) <= told


def _mismatch(number: int, layout: Layout, expected: NDArray[Any], memory: Tokens, dtype: DType) -> Mismatch:
    index = tuple(int(i) for i in np.unravel_index(number, layout.dims))
    place = layout.offset(*index)
    found = _as_values(memory[place : place + 1], dtype)
    kind = float if dtype.is_float else int
    return Mismatch(index, place, place * dtype.bits // 8, kind(expected[index]), kind(found[0]))


def _spelled(number: int | float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.9g}"


def _as_values(bits: Tokens, dtype: DType) -> NDArray[Any]:
    """Bits as values; 4-bit integers as s8."""
    if dtype.bits < 8:
        return (bits.astype(np.int8) ^ 8) - 8 if dtype.is_signed else bits
    return bits.view(dtype.numpy)


def _values(
    mask: NDArray[np.bool_],
    layout: Layout,
    expected: NDArray[Any],
    values: Tokens,
    memory: Tokens,
    dtype: DType,
) -> list[str]:
    """What is said about the values of elements that differ."""
    if not mask.ndim:
        return []  # a scalar: the mismatch says both values
    numbers = np.flatnonzero(mask)[:COMPARED]
    indices = np.stack(np.unravel_index(numbers, mask.shape), axis=-1)
    at: Places = layout.offsets(indices)
    chosen = tuple(indices.T)
    wanted = np.ascontiguousarray(expected[chosen])
    found = _as_values(np.ascontiguousarray(memory[at]), dtype)
    if dtype.bits < 8:
        wanted = wanted.astype(np.int8)
    return how_values_differ(wanted, found, values[chosen], Whereabouts(memory), at)


def _padding(layout: Layout, memory: Tokens) -> tuple[int, int, int | None]:
    """Places of padding, how many are not zero, and the first of these; what was cut off is left out."""
    if not layout.has_padding:
        return 0, 0, None
    dirty, first = 0, None
    for nest in padding(layout):
        for at in places(nest, most=GATHERED):
            held = at[at < memory.size]
            wrong = held[memory[held] != 0]
            if wrong.size:
                dirty += wrong.size
                lowest = int(wrong.min())
                first = lowest if first is None else min(first, lowest)
    return prod(layout.padded) - layout.size, int(dirty), first


def _plain(number: int | float) -> int | float | str:
    """A number that JSON has; NaN and the infinities as text."""
    return number if isinstance(number, int) or np.isfinite(number) else str(number)
