"""One end of a conversion from what logs spell: data types, tags, strides, shapes before and after.

>>> tagged("aBcd16b", "FP32", (1, 17, 5, 4)).desc
MemoryDesc('f32:aBcd16b:1x17x5x4')
>>> strided((2, 3, 4, 5), (60, 1, 15, 3), "float")
Side(format='acdb', dtype='f32', desc=MemoryDesc('f32:acdb:2x3x4x5'))

A transpose moves elements as a reorder does. Its result in row-major order is its source's tensor in the
format that names the axes in their new order, so all that a transpose needs is which axis goes where. Logs of
runtimes tell shapes only, and mostly these are enough:

>>> permutation((2, 32, 4, 16), (2, 4, 16, 32))
(0, 2, 3, 1)
>>> permutation((2, 4, 4, 3), (2, 4, 4, 3)) is None  # the axes of 4 may have been swapped or not
True
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout
from relayout.logs.events import Side

__all__ = ["in_order", "named_type", "permutation", "row_major", "strided", "tagged"]

LETTERS = "abcdefghijkl"
LARGEST = 1 << 48  # elements of an axis or between neighbours: what is larger is damage
TRIED = 2  # permutations that move memory differently: more than one is one too many

_TYPES = {
    "fp64": "f64",
    "fp32": "f32",
    "fp16": "f16",
    "i64": "s64",
    "i32": "s32",
    "i16": "s16",
    "i8": "s8",
    "i4": "s4",
    "double": "f64",
    "float": "f32",
    "half": "f16",
    "c10::half": "f16",
    "c10::bfloat16": "bf16",
    "long int": "s64",
    "long": "s64",
    "int": "s32",
    "short int": "s16",
    "short": "s16",
    "signed char": "s8",
    "unsigned char": "u8",
    "c10::float8_e4m3fn": "f8_e4m3",
    "c10::float8_e5m2": "f8_e5m2",
    "f8e4m3": "f8_e4m3",
    "f8e5m2": "f8_e5m2",
    "bool": "u8",
    "boolean": "u8",
    "bin": "u8",
    "float8e4m3fn": "f8_e4m3",
    "float8e5m2": "f8_e5m2",
}
"""What logs call data types, in lower case. Truth values take a byte each, so they move as bytes do."""


@lru_cache(maxsize=256)
def named_type(text: str) -> str:
    """The name of a data type here, where it has one; otherwise as it was spelled.

    >>> named_type("c10::BFloat16"), named_type("FP16"), named_type("complex<double>")
    ('bf16', 'f16', 'complex<double>')
    """
    low = text.strip().lower()
    low = _TYPES.get(low, low)
    try:
        return as_dtype(low).name
    except LayoutError:
        return text.strip()


def row_major(dims: Sequence[int], dtype: str) -> Side:
    """Axes in their order."""
    return tagged(LETTERS[: len(dims)], dtype, tuple(dims))


def in_order(dims: Sequence[int], order: Sequence[int], dtype: str) -> Side:
    """Axes in another order, outermost first."""
    return tagged("".join(LETTERS[axis] for axis in order), dtype, tuple(dims))


@lru_cache(maxsize=4096)
def tagged(tag: str, dtype: str, dims: tuple[int, ...] | None) -> Side:
    """A side whose format is a tag in letters, or a name that another notation knows."""
    kind, tag = named_type(dtype), "scalar" if dims == () else tag
    if dims is None or len(dims) > len(LETTERS) or not all(0 <= size < LARGEST for size in dims):
        return Side(tag, kind)
    try:
        return Side(tag, kind, MemoryDesc(dims, kind, tag) if dims else MemoryDesc((), kind, strides=()))
    except (LayoutError, OverflowError):
        return Side(tag, kind)


@lru_cache(maxsize=4096)
def strided(dims: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Side:
    """A side of plain strides, in elements; spelled by its tag if it is dense."""
    kind = named_type(dtype)
    said = "strides " + "x".join(map(str, strides)) if strides else "scalar"
    if len(dims) != len(strides) or len(dims) > len(LETTERS):
        return Side(said, kind)
    if not all(0 <= one < LARGEST for one in (*dims, *strides)):
        return Side(said, kind)
    try:
        desc = MemoryDesc(dims, kind, strides=strides)
        desc = _dense(desc) or desc
        return Side((dims and desc.tag) or said, kind, desc)
    except (LayoutError, OverflowError):
        return Side(said, kind)


def _dense(desc: MemoryDesc) -> MemoryDesc | None:
    """The descriptor with a tag that places elements as its strides do; None where none does.

    The strides of unit axes are whatever they are. Row-major order is tried before channels-last.
    """
    rank = desc.rank
    if desc.tag is not None:
        return MemoryDesc(desc.dims, desc.dtype, desc.tag)
    assert desc.layout is not None
    by_stride = sorted(range(rank), key=lambda axis: (-desc.strides[axis], axis))
    last = (0, *range(2, rank), 1) if rank in (4, 5) else ()
    for order in (tuple(range(rank)), last, tuple(by_stride)):
        if order:
            tag = "".join(LETTERS[axis] for axis in order)
            if Layout(desc.dims, Format(tag)).same_bytes(desc.layout):
                return MemoryDesc(desc.dims, desc.dtype, tag)
    return None


@lru_cache(maxsize=4096)
def permutation(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes of the source in the order of the result, as ``perm`` of a transpose has them.

    None where no permutation fits, and where several fit that move memory differently.
    """
    if len(before) != len(after) or sorted(before) != sorted(after) or len(before) > 8:
        return None
    found: dict[tuple[int, ...], tuple[int, ...]] = {}

    def place(chosen: tuple[int, ...]) -> None:
        if len(found) >= TRIED:
            return
        if len(chosen) == len(after):
            moved = tuple(axis for axis in chosen if before[axis] != 1)  # unit axes move nothing
            found.setdefault(moved, chosen)
            return
        unit = False
        for axis, size in enumerate(before):
            if size == after[len(chosen)] and axis not in chosen:
                if size == 1 and unit:
                    continue
                unit = unit or size == 1
                place((*chosen, axis))

    place(())
    return next(iter(found.values())) if len(found) == 1 else None
