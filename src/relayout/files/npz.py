"""NumPy's npz: a zip archive of npy files.

A descriptor is a member of its own, ``x.layout.json`` for the array ``x.npy``; ``numpy.load`` shows it as
bytes. Members that are stored without compression, as ``numpy.savez`` does, are mapped where they lie in the
archive; compressed ones are unpacked into memory.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.files import npy
from relayout.files.arrays import Given, stored_form, to_tensor
from relayout.files.atomic import replacing, reserve, scratch
from relayout.files.beside import description
from relayout.files.descriptor import LONGEST_TEXT, descriptor_from_text
from relayout.files.mapped import map_for_reading, map_for_writing
from relayout.files.spelling import listed
from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import Tensor

__all__ = ["create", "read"]

SUFFIXES: Final = (".npz",)
DEFAULT_NAME: Final = "arr_0"  # what numpy.savez calls an array without a name
COPIED: Final = 1 << 22  # bytes copied into the archive at a time
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")


def read(path: Path, given: Given) -> Tensor:
    """Map or unpack one array of an npz file."""
    data = map_for_reading(path)
    try:
        with zipfile.ZipFile(path) as archive:
            member = _choose(archive, path, given.name)
            content = _content(archive, member + ".npy", data)
            described = _described(archive, member, path)
    except (LayoutError, OSError):
        raise
    except Exception as error:  # zipfile lets many kinds through for damaged archives
        raise LayoutError(f"{path} can't be read as an npz file: {error or type(error).__name__}") from None
    array = npy.parse(content, f"{path}: {member}")
    return to_tensor(array, given, described, f"{member}.layout.json in it")


@contextmanager
def create(path: Path, desc: MemoryDesc, name: str | None, force: bool) -> Iterator[Tensor]:
    """Make an npz file for a tensor, to be filled; it gets its name when the block ends.

    An archive is written from front to end, so the tensor is filled in a nameless file first.
    """
    form = stored_form(desc)
    member = name or DEFAULT_NAME
    head = npy.header(form)
    with replacing(path, force) as file, scratch(path.absolute().parent) as aside:
        reserve(aside, form.nbytes, path)
        data = map_for_writing(aside)
        yield Tensor(form.desc, data)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            info = zipfile.ZipInfo(member + ".npy")  # dated 1980, so that equal tensors make equal files
            info.file_size = len(head) + data.size
            with archive.open(info, "w", force_zip64=info.file_size >= 1 << 31) as out:
                out.write(head)
                for start in range(0, data.size, COPIED):
                    out.write(data[start : start + COPIED].data)
            if not npy.says_it_all(form):
                archive.writestr(zipfile.ZipInfo(member + ".layout.json"), description(form.desc))


def _choose(archive: zipfile.ZipFile, path: Path, name: str | None) -> str:
    names = [entry[: -len(".npy")] for entry in archive.namelist() if entry.endswith(".npy")]
    if name is None:
        if len(names) != 1:
            raise LayoutError(f"{path} holds {listed(names)}; name the one to read")
        return names[0]
    if name not in names:
        raise LayoutError(f"{path} has no array {name!r}; it holds {listed(names)}")
    return name


def _content(archive: zipfile.ZipFile, member: str, whole: NDArray[np.uint8]) -> NDArray[np.uint8]:
    info = archive.getinfo(member)
    if info.compress_type != zipfile.ZIP_STORED:
        return np.frombuffer(archive.read(info), np.uint8)
    head = whole[info.header_offset : info.header_offset + _LOCAL_HEADER.size].tobytes()
    magic, name_length, extra_length = _LOCAL_HEADER.unpack(head)
    begin = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    content = whole[begin : begin + info.file_size]
    if magic != b"PK\x03\x04" or content.size != info.file_size or info.flag_bits & 1:
        raise LayoutError(f"{archive.filename}: the member {member} is damaged or encrypted")
    return content


def _described(archive: zipfile.ZipFile, member: str, path: Path) -> MemoryDesc | None:
    try:
        info = archive.getinfo(member + ".layout.json")
    except KeyError:
        return None
    if info.file_size > LONGEST_TEXT:
        raise LayoutError(f"{path}: the descriptor of {member} is longer than {LONGEST_TEXT} bytes")
    with archive.open(info) as file:
        text = file.read(LONGEST_TEXT + 1)
    try:
        return descriptor_from_text(text)
    except LayoutError as error:
        raise LayoutError(f"{path}: {member}.layout.json: {error}") from None
