"""What is in a file, without reading the elements."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from relayout.exchange.mapped import open_regular
from relayout.files.arrays import Given
from relayout.files.beside import SUFFIX
from relayout.files.descriptor import LONGEST_TEXT, descriptor_from_text, descriptor_to_json
from relayout.files.members import Member, Opened
from relayout.layout.descriptor import MemoryDesc

__all__ = ["ArrayInfo", "FileInfo", "describe", "describe_descriptor", "is_descriptor"]

DESCRIPTOR: Final = ".json"


class ArrayInfo(NamedTuple):
    """An array in a file."""

    name: str
    """Its name; empty where the file gives it none."""
    dtype: str
    """Its data type, as Relayout calls it, or as the file does where it is none of Relayout's."""
    dims: tuple[int, ...]
    """Its logical sizes, if a descriptor says them; otherwise the shape of the array."""
    format: str | None
    """Its memory format, if a descriptor says it."""
    nbytes: int
    """Its bytes in the file; in an archive, unpacked."""
    desc: MemoryDesc | None
    """Its descriptor, if it has one."""

    def to_json(self) -> dict[str, Any]:
        """The same as values that JSON can hold."""
        made: dict[str, Any] = {
            "name": self.name,
            "dtype": self.dtype,
            "dims": list(self.dims),
            "format": self.format,
            "bytes": self.nbytes,
        }
        if self.desc is not None:
            made["descriptor"] = descriptor_to_json(self.desc)
        return made


class FileInfo(NamedTuple):
    """What is in a file."""

    path: Path
    kind: str
    """``npy``, ``npz``, ``safetensors``, ``raw``, ``picture``, ``pt`` or ``descriptor``."""
    arrays: tuple[ArrayInfo, ...]
    """In the order of the file."""
    metadata: dict[str, str]
    """What else a safetensors file says."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.nbytes for array in self.arrays)

    def to_json(self) -> dict[str, Any]:
        """The same as values that JSON can hold."""
        made: dict[str, Any] = {
            "file": str(self.path),
            "kind": self.kind,
            "arrays": [array.to_json() for array in self.arrays],
            "bytes": self.nbytes,
        }
        if self.metadata:
            made["metadata"] = self.metadata
        return made


def describe(opened: Opened) -> FileInfo:
    """What a file holds."""
    checked = opened.kind != "raw"  # whose size is all there is to check, and was
    arrays = tuple(_array(opened.member(name), checked) for name in opened.names)
    return FileInfo(opened.path, opened.kind, arrays, opened.metadata)


def is_descriptor(path: Path) -> bool:
    """Whether a file is a descriptor, by its name: ``x.npy.layout.json``, or any other ``.json``.

    >>> is_descriptor(Path("x.npy.layout.json")), is_descriptor(Path("x.npy"))
    (True, False)
    """
    return path.suffix.lower() == DESCRIPTOR


def describe_descriptor(path: Path) -> FileInfo:
    """What a descriptor says of the file that it belongs to."""
    with open_regular(path) as file:
        desc = descriptor_from_text(file.read(LONGEST_TEXT + 1))
    name = path.name[: -len(SUFFIX)] if path.name.endswith(SUFFIX) else ""
    return FileInfo(path, "descriptor", (_described(name, desc, desc.required_bytes),), {})


def _array(member: Member, checked: bool) -> ArrayInfo:
    array, desc = member.array, member.described()
    if desc is not None:
        if checked:
            member.desc(Given())  # one that contradicts its array is no fact to be listed
        return _described(member.name, desc, array.nbytes)
    return ArrayInfo(member.name, array.kind, array.shape, None, array.nbytes, None)


def _described(name: str, desc: MemoryDesc, nbytes: int) -> ArrayInfo:
    written = str(desc).split(":", 2)[1] if desc.format is None else str(desc.format)
    return ArrayInfo(name, desc.dtype.name, desc.dims, written, nbytes, desc)
