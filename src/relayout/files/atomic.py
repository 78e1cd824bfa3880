"""Files that appear whole or not at all.

A conversion may fail half-way: the disk is full, somebody presses Ctrl-C, a source lies about its size. So
nothing is written under its own name. The bytes go to a temporary file in the same folder, which is moved
into place by one rename when it is complete, and removed otherwise::

    .photo.npy.3f9c1a.tmp  --rename-->  photo.npy

A process that is killed (SIGKILL, a power failure) leaves its temporary file. The next one that writes a file
of that name removes it (:mod:`relayout.files.leftovers`).

Room for the whole file is taken *before* the first byte is written. A full disk then is an error at the
beginning; written through a memory map it would kill the process.

What belongs to a file and lies beside it is exchanged together with it: see :mod:`relayout.files.beside`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from relayout.files.leftovers import hold, remove_left

__all__ = ["move", "naming", "replacing", "reserve", "scratch", "sync_folder", "temporary"]

LONGEST_NAME = 200  # bytes of a temporary file's name that come from the target's; systems take 255 in all
ZEROS = 1 << 22  # bytes written at a time where the system can't reserve room


@contextmanager
def replacing(
    path: Path, force: bool, install: Callable[[Path, Path], None] | None = None
) -> Iterator[BinaryIO]:
    """Open a temporary file that becomes ``path`` when the block ends well.

    Parameters
    ----------
    path : Path
        The name it gets. A symbolic link is followed.
    force : bool
        Whether a file of that name may be replaced.
    install : callable, optional
        Gives the temporary file (the first argument) the name of the second; otherwise it is renamed.

    Raises
    ------
    FileExistsError
        The file exists and ``force`` is not set.
    OSError
        It can't be written; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    _check_free(target, force)
    with temporary(target) as (part, file):
        yield file
        with naming(path):
            file.flush()
            os.fsync(file.fileno())
        file.close()
        _check_free(target, force)
        _keep_mode(target, part)
        with naming(path):
            (install or move)(part, target)


def move(part: Path, target: Path) -> None:
    """Rename a file, and see to it that the new name outlives a power failure."""
    part.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system name the file that the caller asked for, not a temporary one and not none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = os.fspath(path)
            if error.filename2 is not None:  # one that was never set is not shown
                error.filename2 = None
        raise


@contextmanager
def scratch(folder: Path) -> Iterator[BinaryIO]:
    """Open a file without a name; it vanishes with the block, however that ends."""
    with naming(folder):
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - errors in the block are not the folder's
    with file:
        yield file


def reserve(file: BinaryIO, size: int, path: Path) -> None:
    """Give an empty file a size and the room on disk for it, filled with zeros.

    Raises
    ------
    OSError
        There is not so much room. The message names ``path``, for which the file is meant.
    """
    try:
        _reserve(file, size)
    except OSError as error:
        what = f"{error.strerror or error} ({size} bytes are needed)"
        raise OSError(error.errno, what, os.fspath(path)) from None


def _reserve(file: BinaryIO, size: int) -> None:
    if size == 0:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
    left = size
    while left > 0:
        left -= file.write(b"\0" * min(left, ZEROS))
    file.flush()
    file.seek(0)


def _check_free(path: Path, force: bool) -> None:
    if path.is_symlink():  # links were followed, so this one leads to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder", str(path))
    if not force and path.exists():
        raise FileExistsError(errno.EEXIST, "the file exists; use force (--force) to replace it", str(path))


@contextmanager
def temporary(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file in the folder of the target, with the permissions that any new file gets.

    It is removed when the block ends, if it was not renamed. What was left by writers of this target that are
    gone is removed before, so its room can be used.
    """
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(target.parent))
    name = os.fsdecode(os.fsencode(target.name)[:LONGEST_NAME])
    remove_left(target.parent, re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{12}}\.tmp"))
    with naming(target):
        part, handle = _new(target.parent, name)
    with contextlib.ExitStack() as stack:
        stack.callback(part.unlink, missing_ok=True)
        if os.name == "posix":  # keeps the lock until the file has its name, though it is closed before
            stack.callback(os.close, os.dup(handle))
        yield part, stack.enter_context(os.fdopen(handle, "w+b"))


def _new(folder: Path, name: str) -> tuple[Path, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        part = folder / f".{name}.{secrets.token_hex(6)}.tmp"
        handle = os.open(part, flags, 0o666)
        if hold(handle, part):
            return part, handle
        os.close(handle)


def _keep_mode(target: Path, part: Path) -> None:
    """A file that is replaced keeps its permissions."""
    with contextlib.suppress(OSError):
        part.chmod(target.stat().st_mode & 0o7777)
