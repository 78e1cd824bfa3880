"""Temporary files and folders of processes that are gone.

A process that is killed can't clean up, so the next one does it. Whoever writes a temporary file holds a lock
on it, which the system takes away with the process, however that ended. A file that can be locked was left
behind. Unlike a process number, this holds across containers and machines that share a folder; where a file
system has no locks, everything is left alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nobody knows who is alive
    fcntl = None  # type: ignore[assignment]

__all__ = ["hold", "remove_left"]


def hold(handle: int, path: Path) -> bool:
    """Lock a temporary file or folder for as long as it is open; False: somebody removed it as a leftover."""
    if fcntl is None:
        return True
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def remove_left(folder: Path, names: re.Pattern[str], *, folders: bool = False) -> None:
    """Remove the files (or folders) of these names whose writers are gone.

    Folders, which lie where everybody may write, are removed only if they are this user's.
    """
    if fcntl is None:
        return
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found = [entry.path for entry in entries if names.fullmatch(entry.name)]
    for path in found:
        with contextlib.suppress(OSError):  # somebody else's, in use, or removed meanwhile
            _remove_left(path, folders)


def _remove_left(path: str, folders: bool) -> None:
    access = os.O_RDONLY | os.O_DIRECTORY if folders else os.O_RDWR
    handle = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if folders and status.st_uid != os.getuid():
            return
        if not folders and not stat.S_ISREG(status.st_mode):
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(status, os.lstat(path)):
            return
        if folders:
            shutil.rmtree(path)
        else:
            os.unlink(path)
    finally:
        os.close(handle)
