"""Files that appear whole or not at all.

A conversion may fail half-way: the disk is full, somebody presses Ctrl-C, a source lies about its size. So
nothing is written under its own name. The bytes go to a temporary file in the same folder, which is moved
into place by one rename when it is complete, and removed otherwise::

    .photo.npy.3f9c1a.tmp  --rename-->  photo.npy

Room for the whole file is taken *before* the first byte is written. A full disk then is an error at the
beginning; written through a memory map it would kill the process.

A descriptor beside the file is a second file, and two renames aren't one. The old descriptor goes first and
the new one comes last: between them there may be data without a descriptor, but never data with a wrong one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing", "reserve", "scratch"]

ZEROS = 1 << 22  # bytes written at a time where the system can't reserve room


@contextmanager
def replacing(path: Path, force: bool, beside: dict[Path, bytes | None] | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that becomes ``path`` when the block ends well.

    Parameters
    ----------
    path : Path
        The name it gets. A symbolic link is followed.
    force : bool
        Whether a file of that name may be replaced.
    beside : dict of Path to bytes or None
        Small files that belong to it, and their contents; None: there must be none of that name. They come
        and go with the file, so one that is left over without it is replaced.

    Raises
    ------
    FileExistsError
        The file exists and ``force`` is not set.
    OSError
        It can't be written; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    partners = beside or {}
    _check_free(target, force)
    part, file = _temporary(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _check_free(target, force)
        _keep_mode(target, part)
        _exchange(part, target, partners)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


@contextmanager
def scratch(folder: Path) -> Iterator[BinaryIO]:
    """Open a file that has no name when the block ends."""
    part, file = _temporary(folder / "scratch")
    try:
        with file:
            yield file
    finally:
        part.unlink()


def reserve(file: BinaryIO, size: int) -> None:
    """Give a file a size and the room on disk for it, filled with zeros.

    Raises
    ------
    OSError
        There is not so much room.
    """
    if size == 0:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
    begin = file.tell()
    file.seek(0, os.SEEK_END)
    left = size - file.tell()
    while left > 0:
        left -= file.write(b"\0" * min(left, ZEROS))
    file.flush()
    file.seek(begin)


def _check_free(path: Path, force: bool) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder", str(path))
    if not force and path.exists():
        raise FileExistsError(errno.EEXIST, "the file exists; use force (--force) to replace it", str(path))


def _temporary(target: Path) -> tuple[Path, BinaryIO]:
    """A new file in the folder of the target, with the permissions that any new file gets."""
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(target.parent))
    name = target.name if len(target.name) < 200 else target.name[:200]
    part = target.parent / f".{name}.{secrets.token_hex(6)}.tmp"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return part, os.fdopen(os.open(part, flags, 0o666), "w+b")


def _keep_mode(target: Path, part: Path) -> None:
    """A file that is replaced keeps its permissions."""
    with contextlib.suppress(OSError):
        part.chmod(target.stat().st_mode & 0o7777)


def _exchange(part: Path, target: Path, partners: dict[Path, bytes | None]) -> None:
    fresh = {}
    retired: list[tuple[Path, Path]] = []
    try:
        for path, content in partners.items():
            if content is not None:
                small, file = _temporary(path)
                fresh[path] = small
                with file:
                    file.write(content)
        for path in partners:
            if os.path.lexists(path):
                aside = path.parent / f".{path.name}.{secrets.token_hex(6)}.old"
                path.rename(aside)
                retired.append((path, aside))
        part.replace(target)
    except BaseException:
        for path, aside in retired:
            aside.rename(path)
        for small in fresh.values():
            small.unlink(missing_ok=True)
        raise
    try:
        for path, small in fresh.items():
            small.replace(path)
    finally:
        for old in (*fresh.values(), *(aside for _, aside in retired)):
            old.unlink(missing_ok=True)
