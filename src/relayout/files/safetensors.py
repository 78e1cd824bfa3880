"""safetensors: a header of JSON, then the bytes of all arrays without a gap.

::

    8 bytes      length of the header, little endian
    header       {"x": {"dtype": "F32", "shape": [1, 3, 2, 2, 8], "data_offsets": [0, 384]},
                  "__metadata__": {...}}
    the rest     the bytes

Reader and writer are our own, since what makes the difference here is what the usual ones hide: where the
bytes lie, so that they can be mapped; and the metadata, in which the descriptor of the array ``x`` is kept,
as text under the key ``relayout.x``. Other programs see an array of physical shape
(:mod:`relayout.files.arrays`).

A header is checked as the format demands, before anything is believed: at most 100 MB, no key twice, every
array as long as its shape says, all arrays together exactly the rest of the file.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, Unsupported
from relayout.files.arrays import Given, StoredArray, stored_form, to_tensor
from relayout.files.atomic import replacing, reserve
from relayout.files.descriptor import descriptor_from_text, descriptor_to_text
from relayout.files.mapped import flush, map_for_reading, map_for_writing
from relayout.files.spelling import listed
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import MAX_ELEMENTS
from relayout.tensor import Tensor

__all__ = ["create", "read"]

SUFFIXES: Final = (".safetensors",)
DEFAULT_NAME: Final = "tensor"
MOST_HEADER: Final = 100_000_000
ALIGNED: Final = 64  # where our arrays begin; the format asks for 8
METADATA: Final = "__metadata__"
PREFIX: Final = "relayout."

_BITS: Final = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_NAMES: Final = {
    "f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "f8_e4m3": "F8_E4M3", "f8_e5m2": "F8_E5M2",
    "s64": "I64", "s32": "I32", "s16": "I16", "s8": "I8", "u8": "U8",
}  # fmt: skip
_OURS: Final = {theirs: ours for ours, theirs in _NAMES.items()}


def read(path: Path, given: Given) -> Tensor:
    """Map one array of a safetensors file."""
    _little_endian()
    data = map_for_reading(path)
    entries, metadata, begin = _header(data, path)
    names = list(entries)
    name = given.name
    if name is None:
        if len(names) != 1:
            raise LayoutError(f"{path} holds {listed(names)}; name the one to read")
        name = names[0]
    if name not in entries:
        raise LayoutError(f"{path} has no array {name!r}; it holds {listed(names)}")
    kind, shape, (start, stop) = entries[name]
    bits = _BITS[kind]
    if bits % 8:
        raise Unsupported(
            f"{path}: {name} holds {kind}, elements of {bits} bits, which Relayout does not offer"
        )
    known = as_dtype(_OURS[kind]) if kind in _OURS else None
    array = StoredArray(f"{path}: {name}", data[begin + start : begin + stop], shape, kind, bits // 8, known)
    described = None
    text = metadata.get(PREFIX + name)
    if text is not None:
        try:
            described = descriptor_from_text(text)
        except LayoutError as error:
            raise LayoutError(f"{path}: metadata {PREFIX + name}: {error}") from None
    return to_tensor(array, given, described, "its metadata")


@contextmanager
def create(path: Path, desc: MemoryDesc, name: str | None, force: bool) -> Iterator[Tensor]:
    """Make a safetensors file for a tensor, to be filled; it gets its name when the block ends."""
    _little_endian()
    form = stored_form(desc)
    key = name or DEFAULT_NAME
    if key == METADATA:
        raise LayoutError(f"an array in a safetensors file can't be called {METADATA}")
    kind = "U8" if form.as_bytes else _NAMES[form.desc.dtype.name]
    entry = {"dtype": kind, "shape": list(form.shape), "data_offsets": [0, form.nbytes]}
    fields: dict[str, Any] = (
        {} if form.says_it_all else {METADATA: {PREFIX + key: descriptor_to_text(form.desc)}}
    )
    text = json.dumps({**fields, key: entry}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNED)
    with replacing(path, force) as file:
        reserve(file, 8 + len(text) + form.nbytes, path)
        file.write(struct.pack("<Q", len(text)) + text)
        file.flush()
        data = map_for_writing(file)
        yield Tensor(form.desc, data[8 + len(text) :])
        flush(data)


_Entry = tuple[str, tuple[int, ...], tuple[int, int]]


def _header(data: NDArray[np.uint8], path: Path) -> tuple[dict[str, _Entry], dict[str, str], int]:
    if data.size < 8:
        raise LayoutError(
            f"{path} is no safetensors file: it has {data.size} bytes, and the length of its header takes 8"
        )
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if length > MOST_HEADER or 8 + length > data.size:
        raise LayoutError(
            f"{path} is no safetensors file, or is truncated: its header claims {length} bytes, the file has "
            f"{data.size}"
        )
    try:
        fields = json.loads(data[8 : 8 + length].tobytes(), object_pairs_hook=_unrepeated)
        if not isinstance(fields, dict) or data[8] != ord("{"):
            raise LayoutError("it is no object")
        metadata = fields.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise LayoutError(f"{METADATA} must be texts by name")
        entries = {name: _entry(name, entry) for name, entry in fields.items()}
        _check_cover(entries, data.size - 8 - length)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path}: the header is damaged: {error}") from None
    return entries, metadata, 8 + length


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise LayoutError("a key stands twice")
    return made


def _entry(name: str, entry: object) -> _Entry:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise LayoutError(f"{name} must have the keys dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _BITS:
        raise LayoutError(f"{name} has the unknown dtype {str(kind)[:40]!r}")
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(
            type(n) is int and 0 <= n <= MAX_ELEMENTS for n in numbers
        ):
            raise LayoutError(f"{name}: shape and data_offsets must be lists of whole numbers")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LayoutError(f"{name}: data_offsets must be a begin and an end, got {offsets}")
    if len(shape) > 64 or prod(shape) * _BITS[kind] != 8 * (offsets[1] - offsets[0]):
        raise LayoutError(
            f"{name}: shape {shape[:64]} of {kind} does not take {offsets[1] - offsets[0]} bytes"
        )
    return kind, tuple(shape), (offsets[0], offsets[1])


def _check_cover(entries: dict[str, _Entry], size: int) -> None:
    end = 0
    for name, (_, _, (start, stop)) in sorted(entries.items(), key=lambda item: item[1][2]):
        if start != end:
            raise LayoutError(f"{name} begins at byte {start}, but the array before it ends at {end}")
        end = stop
    if end != size:
        raise LayoutError(f"the arrays take {end} bytes, but the file has {size} behind its header")


def _little_endian() -> None:
    if sys.byteorder != "little":
        raise Unsupported("safetensors files are little endian, and this machine is not")
