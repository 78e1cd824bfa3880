"""Sequences, which are Python lists, and optional values, which are None where they are empty.

A sequence is never changed: what inserts into one or erases from it makes another. An optional that is not
empty is the value itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.axes import axis_in, only
from relayout.graph.operators.movement import cut
from relayout.graph.operators.registry import Array, Fact, operator


@operator("SequenceEmpty")
def sequence_empty(*, dtype: int | None = None) -> list[Any]:
    """Nothing yet; the data type is that of what will be inserted."""
    return []


@operator("SequenceConstruct")
def sequence_construct(inputs: Any, /, *more: Any) -> list[Any]:
    """All inputs."""
    return [inputs, *more]


def _place(position: Array | None, count: int, default: int) -> int:
    """A position counted from the front, among so many."""
    if position is None:
        return default
    place = int(only(position, "the position"))
    if not -count <= place < count:
        raise LayoutError(f"position {place} is outside of {-count} to {count - 1}")
    return place % count


@operator("SequenceAt")
def sequence_at(sequence: list[Any], position: Array, /) -> Any:
    """The element at a position."""
    return sequence[_place(position, len(sequence), 0)]


@operator("SequenceInsert")
def sequence_insert(sequence: list[Any], tensor: Any, position: Array | None = None, /) -> list[Any]:
    """With another element in front of a position, or at the end."""
    count = len(sequence)
    if position is not None and int(only(position, "the position")) == count:
        position = None
    place = _place(position, count, count)
    return [*sequence[:place], tensor, *sequence[place:]]


@operator("SequenceErase")
def sequence_erase(sequence: list[Any], position: Array | None = None, /) -> list[Any]:
    """Without the element at a position, or the last."""
    if not sequence:
        raise LayoutError("an empty sequence has nothing to erase")
    place = _place(position, len(sequence), len(sequence) - 1)
    return [*sequence[:place], *sequence[place + 1 :]]


def _length(_: Fact) -> Fact:
    return Fact((), np.dtype(np.int64))


@operator("SequenceLength", infer=_length)
def sequence_length(sequence: list[Any], /) -> Array:
    """The number of elements."""
    return np.array(len(sequence), np.int64)


@operator("SplitToSequence")
def split_to_sequence(
    x: Array, split: Array | None = None, /, *, axis: int = 0, keepdims: int = 1
) -> list[Array]:
    """Parts along an axis: of one size but for the last, or of those given; single ones by default."""
    axis = axis_in(axis, x.ndim)
    size = x.shape[axis]
    if split is None:
        parts = cut(x, [1] * size, axis)
        return parts if keepdims else [part.squeeze(axis) for part in parts]
    if split.ndim:
        sizes = split.tolist()
    else:
        part = int(split)
        if part < 1:
            raise LayoutError(f"parts of {part} elements; there must be 1 or more in each")
        sizes = [min(part, size - first) for first in range(0, size, part)]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise LayoutError(f"{size} can't be split into {', '.join(map(str, sizes)) or 'nothing'}")
    return cut(x, sizes, axis)


@operator("ConcatFromSequence")
def concat_from_sequence(sequence: list[Array], /, *, axis: int, new_axis: int = 0) -> Array:
    """Elements side by side along an axis, or along a new one."""
    return np.stack(sequence, axis) if new_axis else np.concatenate(sequence, axis)


@operator("Optional")
def optional(x: Any | None = None, /, *, type: Any = None) -> Any:
    """The value, or an empty one of a type."""
    return x


def _has(_: Fact | None = None) -> Fact:
    return Fact((), np.dtype(bool))


@operator("OptionalHasElement", infer=_has)
def optional_has_element(x: Any | None = None, /) -> Array:
    """Whether it is not empty."""
    return np.array(x is not None)


@operator("OptionalGetElement")
def optional_get_element(x: Any | None, /) -> Any:
    """The value; an error where it is empty."""
    if x is None:
        raise LayoutError("the optional is empty")
    return x
