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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, Unsupported
from relayout.exchange.mapped import flush, map_for_reading, map_for_writing, release
from relayout.files.arrays import Given, StoredArray
from relayout.files.atomic import naming, replacing, reserve
from relayout.files.descriptor import descriptor_from_text
from relayout.files.elements import by_code
from relayout.files.members import Member, Opened
from relayout.files.outputs import Output
from relayout.files.spelling import spelled
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import MAX_ELEMENTS
from relayout.tensor import Tensor

__all__ = ["DEFAULT_NAME", "Writer", "opened", "read", "writing"]

SUFFIXES: Final = (".safetensors",)
DEFAULT_NAME: Final = "tensor"
MOST_HEADER: Final = 100_000_000
ALIGNED: Final = 64  # where our arrays begin; the format asks for 8
METADATA: Final = "__metadata__"
PREFIX: Final = "relayout."


def read(path: Path, given: Given) -> Tensor:
    """Map one array of a safetensors file."""
    return opened(path).tensor(given)


def opened(path: Path) -> Opened:
    """The arrays of a safetensors file, by name."""
    _little_endian()
    data = map_for_reading(path)
    entries, metadata, begin = _header(data, spelled(path))

    def member(name: str) -> Member:
        code, shape, (start, stop) = entries[name]
        element = by_code[code]
        array = StoredArray(
            f"{spelled(path)}: {spelled(name)}",
            lambda: data[begin + start : begin + stop],
            stop - start,
            shape,
            code,
            element.bits,
            None if element.dtype is None else as_dtype(element.dtype),
        )
        text = metadata.get(PREFIX + name)
        return Member(name, array, lambda: _described(text, spelled(path), name), "its metadata")

    own = {PREFIX + name for name in entries}
    rest = {key: value for key, value in metadata.items() if key not in own}
    return Opened(path, "safetensors", list(entries), member, rest)


class Writer:
    """A safetensors file that is being written."""

    def __init__(self, rooms: dict[str, NDArray[np.uint8]]) -> None:
        self.rooms = rooms

    @contextmanager
    def room(self, output: Output) -> Iterator[NDArray[np.uint8]]:
        """The bytes of an array, mapped to their place in the file."""
        data = self.rooms[output.name]
        yield data
        release(data)

    def carry(self, source: Path, names: list[str]) -> None:
        """Nothing: what a safetensors file holds are arrays and metadata."""


@contextmanager
def writing(
    path: Path, outputs: Sequence[Output], force: bool, metadata: Mapping[str, str]
) -> Iterator[Writer]:
    """Make a safetensors file; it gets its name when the block ends."""
    _little_endian()
    notes = dict(metadata) | {PREFIX + o.name: o.text for o in outputs if o.text is not None}
    fields: dict[str, Any] = {METADATA: notes} if notes else {}
    end = 0
    for output in outputs:
        _check_name(output.name, path)
        offsets = [end, end + output.nbytes]
        fields[output.name] = {"dtype": output.element, "shape": output.shape, "data_offsets": offsets}
        end += output.nbytes
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNED)
    begin = 8 + len(text)
    if len(text) > MOST_HEADER:
        raise LayoutError(
            f"the header of {spelled(path)} would take {len(text)} bytes; {MOST_HEADER} are the most that "
            "a safetensors file may have"
        )
    with replacing(path, force) as file:
        reserve(file, begin + end, path)
        file.write(struct.pack("<Q", len(text)) + text)
        file.flush()
        data = map_for_writing(file)[begin:]
        yield Writer({o.name: data[slice(*fields[o.name]["data_offsets"])] for o in outputs})
        with naming(path):
            flush(data)


def _described(text: str | None, path: str, name: str) -> MemoryDesc | None:
    if text is None:
        return None
    try:
        return descriptor_from_text(text)
    except LayoutError as error:
        raise LayoutError(f"{path}: metadata {spelled(PREFIX + name)}: {error}") from None


def _check_name(name: str, path: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise LayoutError(
            f"an array in {spelled(path)} can't be called {spelled(name)!r}, which is no UTF-8"
        ) from None
    if name == METADATA:
        raise LayoutError(f"an array in a safetensors file can't be called {METADATA}")


_Entry = tuple[str, tuple[int, ...], tuple[int, int]]


def _header(data: NDArray[np.uint8], path: str) -> tuple[dict[str, _Entry], dict[str, str], int]:
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
    shown = spelled(name[:80])
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise LayoutError(f"{shown} must have the keys dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in by_code:
        raise LayoutError(f"{shown} has the unknown dtype {str(kind)[:40]!r}")
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(
            type(n) is int and 0 <= n <= MAX_ELEMENTS for n in numbers
        ):
            raise LayoutError(f"{shown}: shape and data_offsets must be lists of whole numbers")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LayoutError(f"{shown}: data_offsets must be a begin and an end, got {offsets}")
    if len(shape) > 64 or prod(shape) * by_code[kind].bits != 8 * (offsets[1] - offsets[0]):
        raise LayoutError(
            f"{shown}: shape {shape[:12]} of {kind} does not take {offsets[1] - offsets[0]} bytes"
        )
    return kind, tuple(shape), (offsets[0], offsets[1])


def _check_cover(entries: dict[str, _Entry], size: int) -> None:
    end = 0
    for name, (_, _, (start, stop)) in sorted(entries.items(), key=lambda item: item[1][2]):
        if start != end:
            raise LayoutError(
                f"{spelled(name[:80])} begins at byte {start}, but the array before it ends at {end}"
            )
        end = stop
    if end != size:
        raise LayoutError(f"the arrays take {end} bytes, but the file has {size} behind its header")


def _little_endian() -> None:
    if sys.byteorder != "little":
        raise Unsupported("safetensors files are little endian, and this machine is not")
