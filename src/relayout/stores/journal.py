"""Which tasks are done: a file of lines, beside the chunks of a destination that is not complete yet.

::

    out.zarr/.relayout/journal      relayout journal 3 3f9c...      the plan that it belongs to
                                    0:65536
                                    2:65536                         a task, and the bytes of its files
                                    1:65536 7:16384

A line is written after what it tells of: first the files of finished tasks go to the disk (``fsync``), then
the folders that have their names, then the line. Whatever moment the power fails at, what the journal calls
done is there. A line that was cut off by the end of the file counts as not written.

The bytes are there for people who tidy up: whoever goes on with the conversion compares them with what lies
in the folder, and does again what is no longer there (:mod:`.run`).

One process at a time has the journal; a lock on it keeps a second one out.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Final

from relayout.errors import LayoutError
from relayout.exchange.mapped import open_regular
from relayout.files.atomic import naming, sync_folder

try:
    import fcntl
except ImportError:  # Windows: two processes at a time are not kept apart
    fcntl = None  # type: ignore[assignment]

__all__ = ["Journal", "count_done", "nobody_at_work", "sync_files", "sync_folders"]

MOST_COUNTED: Final = 64 << 20
"""Bytes of a journal that are read for a message."""

HEADER: Final = "relayout journal 3 "


class Journal:
    """The journal of a plan, open for writing, locked.

    Parameters
    ----------
    path : Path
        The file; it is made if it is not there.
    key : str
        The plan (:attr:`relayout.stores.Plan.key`).
    total : int
        How many tasks the plan has. Other numbers in the file are not believed.

    Raises
    ------
    LayoutError
        The file is the journal of another plan.
    BlockingIOError
        Another process has it.
    """

    def __init__(self, path: Path, key: str, total: int) -> None:
        self.path, self.total = path, total
        self.done: dict[int, int] = {}
        """The numbers of the tasks that are done, each with the bytes that its files take."""
        with naming(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            try:
                _lock(self._file, path)
                self._begin(key)
            except BaseException:
                os.close(self._file)
                raise

    def _begin(self, key: str) -> None:
        text = b""
        while part := os.read(self._file, 1 << 20):
            text += part
        lines = text.decode("ascii", "replace").split("\n")
        whole, header = lines[:-1], (HEADER + key)
        if not whole:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            self._write(header + "\n")
            sync_folder(self.path.parent)
            return
        if whole[0] != header:
            raise LayoutError(
                f"{self.path} tells of another conversion: the source, the format, the chunks, the memory, "
                "the number of threads or the engine were others; repeat the command as it was, or begin "
                "again (--force)"
            )
        with contextlib.suppress(ValueError):
            for line in whole[1:]:
                told = dict(_entry(word) for word in line.split())
                self.done.update((k, size) for k, size in told.items() if 0 <= k < self.total)
        os.ftruncate(self._file, len("\n".join(whole)) + 1)
        os.lseek(self._file, 0, os.SEEK_END)

    def add(self, several: Mapping[int, int]) -> None:
        """Note tasks as done, on the disk, each with the bytes of its files, which must be there already."""
        fresh = {number: size for number, size in several.items() if number not in self.done}
        if fresh:
            self._write(" ".join(f"{number}:{size}" for number, size in fresh.items()) + "\n")
            self.done.update(fresh)

    def check(self) -> None:
        """Look whether the file is still where it was.

        Raises
        ------
        FileNotFoundError
            It is not: somebody removed the destination, and with it what the journal calls done.
        """
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._file), os.stat(self.path)):
                return
        raise FileNotFoundError(
            errno.ENOENT, "the destination was removed while it was written", str(self.path.parent.parent)
        )

    def _write(self, text: str) -> None:
        with naming(self.path):
            left, before = text.encode(), os.lseek(self._file, 0, os.SEEK_CUR)
            try:
                while left:
                    left = left[os.write(self._file, left) :]
            except BaseException:  # half a line would become one with the next
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, before)
                    os.lseek(self._file, before, os.SEEK_SET)
                raise
            os.fsync(self._file)

    def close(self) -> None:
        """Let others have it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _entry(word: str) -> tuple[int, int]:
    number, size = word.split(":")
    return int(number), int(size)


def count_done(path: Path) -> int:
    """How many tasks a journal calls done, whatever plan it belongs to; of long ones about as many.

    Raises
    ------
    OSError, ValueError
        It can't be read.
    """
    with open_regular(path) as file:
        lines = file.read(MOST_COUNTED).decode("ascii").split("\n")[1:-1]
    return len({_entry(word)[0] for line in lines for word in line.split()})


@contextlib.contextmanager
def nobody_at_work(path: Path) -> Iterator[None]:
    """Keep all others from a destination by its journal, which may not be there.

    Raises
    ------
    BlockingIOError
        Another process is at work on it.
    """
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        yield
        return
    try:
        _lock(file, path)
        yield
    finally:
        os.close(file)


def _lock(file: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return  # a file system without locks
        raise BlockingIOError(
            errno.EWOULDBLOCK, "another process is at work on this destination", str(path)
        ) from None


FEW: Final = 8
"""Files up to which each is brought to the disk by itself, all at the same time, so that one commit of the
file system's own journal does for several. More of them are left to one request for all that it has."""


def sync_files(files: Iterable[str]) -> None:
    """Write files to the disk, and the folders that have their names.

    Raises
    ------
    OSError
        One of them can't be written: the disk is full, or broken.
    """
    paths = set(map(Path, files))
    folders = {path.parent for path in paths}
    if len(paths) > FEW and _sync_systems(folders):
        return
    _each(_sync_file, paths)
    sync_folders(folders)


def sync_folders(folders: Iterable[Path]) -> None:
    """Write the names in folders to the disk, where the system can."""
    several = set(folders)
    if len(several) <= FEW or not _sync_systems(several):
        _each(sync_folder, several)


def _sync_file(path: Path) -> None:
    with naming(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _each(sync: Callable[[Path], None], several: Collection[Path]) -> None:
    """Call a function for each path, for several at the same time; an error is raised when all have ended."""
    if len(several) < 2:
        for path in several:
            sync(path)
        return
    with ThreadPoolExecutor(min(FEW, len(several)), "relayout-sync") as pool:
        waiting = [pool.submit(sync, path) for path in several]
    for one in waiting:
        one.result()


def _sync_systems(folders: Iterable[Path]) -> bool:
    """Write to the disk all that the file systems of some folders have; False: that can't be asked for."""
    function = _syncfs()
    if function is None:
        return False
    seen = set()
    for folder in folders:
        with naming(folder):
            handle = os.open(folder, os.O_RDONLY)
            try:
                device = os.fstat(handle).st_dev
                if device not in seen and function(handle):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), str(folder))
                seen.add(device)
            finally:
                os.close(handle)
    return True


@lru_cache(maxsize=1)
def _syncfs() -> Callable[[int], int] | None:
    """Linux's ``syncfs``, which tells of errors of writing, too."""
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes, function.restype = [ctypes.c_int], ctypes.c_int
    made: Callable[[int], int] = function
    return made
