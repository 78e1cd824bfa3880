"""NumPy's npz: a zip archive of npy files.

A descriptor is a member of its own, ``x.layout.json`` for the array ``x.npy``; ``numpy.load`` shows it as
bytes. Members that are stored without compression, as ``numpy.savez`` does, are mapped where they lie in the
archive; compressed ones are unpacked, big ones to a nameless file, which is mapped.

What an archive says about sizes is checked before anything is unpacked: the header of the npy file inside
must claim as many bytes as the archive does, and no more of them are unpacked. The checksum (CRC-32) of a
member is checked when its elements are read, also where they are only mapped.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.exchange.mapped import map_for_reading, map_for_writing, open_regular, release
from relayout.files import npy
from relayout.files.arrays import Given
from relayout.files.atomic import naming, replacing, reserve, scratch
from relayout.files.descriptor import LONGEST_TEXT, descriptor_from_text
from relayout.files.members import Member, Opened
from relayout.files.outputs import Output
from relayout.files.spelling import spelled
from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import Tensor

__all__ = ["DEFAULT_NAME", "Writer", "members_of", "opened", "read", "writing"]

DEFAULT_NAME: Final = "arr_0"  # what numpy.savez calls an array without a name
ARRAY, DESCRIPTION = ".npy", ".layout.json"  # how the names of members end
COPIED: Final = 1 << 22  # bytes copied into or out of the archive at a time
IN_MEMORY: Final = 1 << 26  # bytes; compressed members that are longer are unpacked to the disk
MOST_NAME: Final = 4096  # bytes
ENCRYPTED: Final = 1  # among a member's flags
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")


def read(path: Path, given: Given) -> Tensor:
    """Map or unpack one array of an npz file."""
    return opened(path).tensor(given)


def opened(path: Path) -> Opened:
    """The arrays of an npz file, by name."""
    data = map_for_reading(path)
    infos: dict[str, zipfile.ZipInfo] = {}
    with _archive(path) as archive:
        for info in archive.infolist():
            if info.filename in infos:
                raise LayoutError(f"{spelled(path)} holds {spelled(info.filename)} twice")
            infos[info.filename] = info
    names = [name[: -len(ARRAY)] for name in infos if name.endswith(ARRAY)]
    known = {name + ending for name in names for ending in (ARRAY, DESCRIPTION)}
    others = tuple(name for name in infos if name not in known)

    def member(name: str) -> Member:
        info, text = infos[name + ARRAY], infos.get(name + DESCRIPTION)
        where = f"{spelled(path)}: {spelled(name)}"
        stored = info.compress_type == zipfile.ZIP_STORED
        if info.flag_bits & ENCRYPTED:
            raise LayoutError(f"{where} is encrypted")
        if stored:
            content = _stored(data, info, where)
            head = content[: npy.MOST_HEADER].tobytes()
            load = partial(_checked, content, info, where)
        else:
            head = _text(path, info, npy.MOST_HEADER)
            load = partial(_unpacked, path, info)
        array = npy.parse(head, info.file_size, load, where)
        return Member(name, array, partial(_described, path, text), f"{spelled(name)}.layout.json in it")

    return Opened(path, "npz", names, member, {}, others)


class Writer:
    """An archive that is being written, array by array."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self.archive, self.path = archive, path

    @contextmanager
    def room(self, output: Output) -> Iterator[NDArray[np.uint8]]:
        """The bytes of the next array, to be filled.

        An archive is written from front to end, so they are those of a nameless file, and copied when the
        block ends.
        """
        head = npy.header(output.element, output.shape)
        with scratch(self.path.absolute().parent) as aside:
            reserve(aside, output.nbytes, self.path)
            data = map_for_writing(aside)
            yield data
            info = zipfile.ZipInfo(output.name + ARRAY)  # dated 1980, so that equal tensors make equal files
            info.file_size = len(head) + data.size
            with naming(self.path):
                with self.archive.open(info, "w", force_zip64=info.file_size >= 1 << 31) as out:
                    out.write(head)
                    for start in range(0, data.size, COPIED):
                        out.write(data[start : start + COPIED].data)
                if output.text is not None:
                    self.archive.writestr(zipfile.ZipInfo(output.name + DESCRIPTION), output.text)

    def carry(self, source: Path, names: list[str]) -> None:
        """Copy members of another archive as they are: arrays, their descriptors, anything else."""
        with naming(self.path), _archive(source) as archive:
            for name in names:
                if name in self.archive.NameToInfo:
                    continue
                info = archive.getinfo(name)
                copied = zipfile.ZipInfo(name, info.date_time)
                copied.compress_type, copied.external_attr = info.compress_type, info.external_attr
                copied.file_size = info.file_size
                large = info.file_size >= 1 << 31
                with archive.open(info) as old, self.archive.open(copied, "w", force_zip64=large) as new:
                    shutil.copyfileobj(old, new, COPIED)


@contextmanager
def writing(
    path: Path, outputs: Sequence[Output], force: bool, metadata: Mapping[str, str]
) -> Iterator[Writer]:
    """Make an npz file; it gets its name when the block ends. There is no place for metadata in it."""
    for output in outputs:
        _check_name(output.name, path)
    with replacing(path, force) as file:
        archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        try:
            yield Writer(archive, path)
            with naming(path):
                archive.close()
        except BaseException:
            archive.fp = None  # it is abandoned, so no end is to be written, which could fail again
            raise


def members_of(opened: Opened, names: list[str]) -> list[str]:
    """The members of an archive that belong to some of its arrays."""
    with _archive(opened.path) as archive:
        there = set(archive.namelist())
    return [name + ending for name in names for ending in (ARRAY, DESCRIPTION) if name + ending in there]


# -- workings -------------------------------------------------------------------------------------------


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive to read. Whatever goes wrong in one that is damaged is a LayoutError."""
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except (LayoutError, OSError):
            raise
        except Exception as error:  # zipfile and the decoders let many kinds through
            what = spelled(str(error)) or type(error).__name__
            raise LayoutError(f"{spelled(path)} can't be read as an npz file: {what}") from None


def _stored(whole: NDArray[np.uint8], info: zipfile.ZipInfo, where: str) -> NDArray[np.uint8]:
    """The bytes of a member that is not compressed, where they lie."""
    head = whole[info.header_offset : info.header_offset + _LOCAL_HEADER.size].tobytes()
    if len(head) == _LOCAL_HEADER.size and info.header_offset >= 0:
        magic, name_length, extra_length = _LOCAL_HEADER.unpack(head)
        begin = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
        content = whole[begin : begin + info.file_size]
        if magic == b"PK\x03\x04" and content.size == info.file_size == info.compress_size:
            return content
    raise LayoutError(f"{where} is damaged: its header is not where the archive says")


def _checked(content: NDArray[np.uint8], info: zipfile.ZipInfo, where: str) -> NDArray[np.uint8]:
    found = 0
    for start in range(0, content.size, COPIED):
        found = zlib.crc32(content[start : start + COPIED].data, found)
        release(content)
    if found != info.CRC:
        raise LayoutError(f"{where} is damaged: its checksum is {found:08x}, the archive says {info.CRC:08x}")
    return content


def _unpacked(path: Path, info: zipfile.ZipInfo) -> NDArray[np.uint8]:
    with _archive(path) as archive, archive.open(info) as member:
        if info.file_size <= IN_MEMORY:
            content = np.frombuffer(member.read(), np.uint8)
        else:
            with naming(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as file:
                shutil.copyfileobj(member, file, COPIED)
                file.flush()
                content = map_for_writing(file)
        if content.size != info.file_size:
            raise LayoutError(f"{info.filename} ends after {content.size} of {info.file_size} bytes")
    return content


def _text(path: Path, info: zipfile.ZipInfo, most: int) -> bytes:
    with _archive(path) as archive, archive.open(info) as member:
        return member.read(most)


def _described(path: Path, info: zipfile.ZipInfo | None) -> MemoryDesc | None:
    if info is None:
        return None
    where = f"{spelled(path)}: {spelled(info.filename)}"
    if info.file_size > LONGEST_TEXT:
        raise LayoutError(f"{where}: the descriptor is longer than {LONGEST_TEXT} bytes")
    try:
        return descriptor_from_text(_text(path, info, LONGEST_TEXT + 1))
    except LayoutError as error:
        raise LayoutError(f"{where}: {error}") from None


def _check_name(name: str, path: Path) -> None:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        length = 0
    if not 0 < length <= MOST_NAME or "\0" in name:
        raise LayoutError(
            f"an array in {spelled(path)} can't be called {spelled(name[:80])!r}: names in an archive are 1 "
            f"to {MOST_NAME} bytes of UTF-8"
        )
