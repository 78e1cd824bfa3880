"""Chunk files: read whole or in parts, written whole, and what a folder of them is like.

Three rules hold for every file of a store, whatever its format:

* **What is read is what was planned.** A file that was changed after a plan was made is refused
  (:func:`check_unchanged`), and one that is longer than a chunk can be is not read into memory.
* **A file is there whole, or not at all.** It is written under a name of its own beside the other one, and
  then renamed (:func:`write_whole`). What a killed process has left is recognised by its name, and removed
  (:func:`remove_parts`).
* **A folder may hold other things.** Only what is called as a chunk is one (:func:`names_chunk`); a
  :func:`fingerprint` of names, sizes and times tells whether any of them has changed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from relayout.errors import LayoutError
from relayout.exchange.mapped import open_regular
from relayout.files.atomic import naming
from relayout.stores.buffers import PAGE, given_back, taken
from relayout.stores.store import Bytes, Fingerprint, SourceChanged, digest
from relayout.tensor import aligned

if TYPE_CHECKING:
    from io import BufferedReader

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "ChunkFile",
    "check_unchanged",
    "fingerprint",
    "names_chunk",
    "read_whole",
    "remove_parts",
    "size_of_file",
    "write_whole",
]

_PART: Final = re.compile(r"\..+\.[0-9a-f]{12}\.part")
"""What a file is called while it is being written."""


def read_whole(path: Path, newest: int, most: int, *, varying: bool = False, usual: int = 0) -> Bytes | None:
    """The bytes of a file, in a buffer that can be :func:`given back <.buffers.given_back>`; None: no file.

    ``varying`` files are of any size, as compressed ones are: they get a buffer of their own, as one that is
    kept for each size that was ever read would be more and more memory. Those of up to ``usual`` bytes get
    one of that size all, which can be kept.

    Raises
    ------
    SourceChanged
        It was changed after ``newest`` (ns, 0: any time will do).
    LayoutError
        It has more than ``most`` bytes.
    OSError
        It can't be read, or is no regular file.
    """
    try:
        with cast("BufferedReader", open_regular(path)) as file:
            status = os.fstat(file.fileno())
            check_unchanged(path, status, newest)
            if status.st_size > most:
                raise LayoutError(
                    f"{path} has {status.st_size} bytes, which is more than the {most} that a chunk of this "
                    "array can take"
                )
            size = status.st_size
            own = varying and size > usual
            data = aligned(size, zeroed=False) if own else taken(usual if varying else size)[:size]
            got = 0
            while got < data.size:  # the system reads 2 GiB at most
                more = file.readinto(data[got:].data)
                if not more:
                    break
                got += more
            return data[:got]
    except (FileNotFoundError, NotADirectoryError):
        return None


class ChunkFile:
    """A file that has the bytes of a chunk as they are, open to be read in parts.

    Parameters
    ----------
    path : Path
        The file.
    newest : int
        It is refused if it was changed after this time (ns, 0: any time will do).

    Raises
    ------
    FileNotFoundError
        There is none.
    SourceChanged
        It was changed.
    OSError
        It can't be read.
    """

    begin = 0
    """Where the chunk begins in the file; whoever knows sets it."""

    def __init__(self, path: Path, newest: int = 0) -> None:
        self.path = path
        self._file = open_regular(path)
        try:
            status = os.fstat(self._file.fileno())
            check_unchanged(path, status, newest)
        except BaseException:
            self._file.close()
            raise
        self.size = status.st_size

    def read(self, start: int, stop: int) -> Bytes:
        """Bytes of the chunk, in a buffer that can be :func:`given back <.buffers.given_back>`.

        Raises
        ------
        LayoutError
            The file ends before that.
        """
        data = taken(stop - start)
        self.read_into(start, data)
        return data

    def read_into(self, start: int, data: Bytes) -> None:
        """Fill a buffer with the bytes of the chunk from ``start`` on."""
        got = 0
        with naming(self.path):
            self._file.seek(self.begin + start)
        while got < data.size:
            with naming(self.path):
                more = cast("BufferedReader", self._file).readinto(data[got:].data)
            if not more:
                raise LayoutError(f"{self.path} ends {data.size - got} bytes too early")
            got += more

    def head(self, size: int) -> bytes:
        """The first bytes of the file."""
        self._file.seek(0)
        return self._file.read(size)

    def close(self) -> None:
        """Close it."""
        self._file.close()


def check_unchanged(path: Path, status: os.stat_result, newest: int) -> None:
    """Refuse a file that was changed after the time ``newest`` (ns; 0: any time will do)."""
    if newest and status.st_mtime_ns > newest:
        raise SourceChanged(f"{path} was changed after the conversion had been planned; plan it again")


def size_of_file(path: Path) -> int:
    """Bytes of a file; 0: it is not there.

    Raises
    ------
    OSError
        The system does not say.
    """
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


AT_ONCE: Final = 128 << 10
"""Bytes of one call of ``write``. The kernel touches all that it is given before it copies it, so what no
longer fits the caches is read from memory twice. And Linux takes one piece of memory for what it is given at
once: a whole mebibyte is seldom one that a virtual machine has touched before, and each page of it has to be
asked of the host, which took eight times as long as to copy it."""

DIRECT: Final = 256 << 10
"""Bytes from which on what begins on a page is written past the system's memory, if that is asked for."""

_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
_NEW: Final[int] = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def write_whole(
    path: Path, parts: Iterable[Any], direct: bool = False, *, header: bytes = b"", lasting: bool = False
) -> None:
    """Write a file, whole or not at all: under another name, then renamed.

    Parameters
    ----------
    path : Path
        The file.
    parts : iterable of buffers
        What it holds, one behind the other. Each is written before the next is asked for.
    direct : bool
        Write past the system's memory of files, where the file system can: what nobody reads soon need not
        be copied there, and drives nothing else out. Only what begins and ends on pages is; the rest follows
        in the usual way.
    header : bytes
        What stands before the parts.
    lasting : bool
        Bring it to the disk before it gets its name, so that no power failure leaves an empty file of that
        name.

    Raises
    ------
    OSError
        It can't be written. What was there before is as it was.
    """
    first = [_on_page(header)] if header else []
    part = path.parent / f".{path.name}.{secrets.token_hex(6)}.part"
    with naming(path):
        try:
            handle = os.open(part, _NEW, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(part, _NEW, 0o666)
    past = direct and _past(handle, True)
    try:
        try:
            for data in chain(first, parts):  # which may read another file, and fail with that one's name
                left = memoryview(data).cast("B")
                with naming(path):
                    if past:
                        least = PAGE if first and data is first[0] else DIRECT
                        left = left[_written_past(handle, left, least) :]
                        past = not left or _past(handle, False)
                    while len(left):
                        left = left[os.write(handle, left[:AT_ONCE]) :]
            if lasting:
                with naming(path):
                    os.fsync(handle)
        finally:
            with naming(path):
                os.close(handle)
        with naming(path):
            part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        for data in first:
            given_back(data)


def _past(handle: int, on: bool) -> bool:
    """Have a file written past the system's memory, or no longer; whether it is."""
    if fcntl is None or not _DIRECT:
        return False
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | _DIRECT if on else flags & ~_DIRECT)
    except OSError:
        return False  # a file system that can't
    return on


def _on_page(data: bytes) -> Bytes:
    """The same bytes where a page begins."""
    made = taken(len(data))
    made[:] = np.frombuffer(data, np.uint8)
    return made


def _written_past(handle: int, data: memoryview, least: int) -> int:
    """Write what can be written past the system's memory; how many bytes that was."""
    done, size = 0, len(data) // PAGE * PAGE
    if size < least or np.frombuffer(data, np.uint8).ctypes.data % PAGE:
        return 0
    try:
        while done < size and done % PAGE == 0:
            done += os.write(handle, data[done:size])
    except OSError as error:
        if error.errno != errno.EINVAL:  # that of a file system with larger blocks
            raise
    return done


def remove_parts(folder: Path) -> None:
    """Remove what processes that were killed had begun to write below a folder.

    Raises
    ------
    OSError
        A file can't be removed.
    """
    with naming(folder):
        for path, _ in _walk(folder):
            if _PART.fullmatch(path.rpartition("/")[2]):
                (folder / path).unlink(missing_ok=True)


def names_chunk(first: str, counts: Sequence[int]) -> Callable[[str], bool]:
    """What tells the names of an array's chunks from those of other files in its folder.

    Parameters
    ----------
    first : str
        The name of the first chunk, in which each number is 0.
    counts : sequence of int
        How many chunks there are along each axis.

    Examples
    --------
    >>> is_chunk = names_chunk("c/0/0", (3, 10))
    >>> [is_chunk(name) for name in ("c/2/9", "c/3/0", "c/1", ".DS_Store", "c/0/.0.0cff22d826a6.part")]
    [True, False, False, False, False]
    """
    pattern = re.compile(re.escape(first).replace("0", "(0|[1-9][0-9]*)"))

    def is_chunk(name: str) -> bool:
        found = pattern.fullmatch(name)
        # Of an array without axes the only chunk has a 0 in its name, or none.
        numbers = () if found is None else map(int, found.groups())
        return found is not None and all(k < n for k, n in zip(numbers, counts or (1,), strict=False))

    return is_chunk


def fingerprint(metadata: object, folder: Path, is_chunk: Callable[[str], bool]) -> Fingerprint:
    """What a folder of chunks is like: metadata, and name, size and time of every chunk below it.

    ``is_chunk`` says of a path, relative to the folder and with slashes, whether it is one.
    """
    total = hashlib.sha256()
    newest = chunks = nbytes = 0
    for path, status in sorted(_walk(folder)):
        if is_chunk(path):
            total.update(f"{path} {status[0]} {status[1]}\n".encode("utf-8", "surrogateescape"))
            newest, chunks, nbytes = max(newest, status[1]), chunks + 1, nbytes + status[0]
    return Fingerprint(digest([metadata, total.hexdigest()]), newest, chunks, nbytes)


def _walk(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """The files below a folder, each with its size and time; folders whose names begin with a dot are not
    looked into.
    """
    links: set[tuple[int, int]] = set()
    left = [(os.fspath(folder), "")]  # no recursion: folders may lie in one another thousands of times
    while left:
        where, prefix = left.pop()
        try:
            entries = list(os.scandir(where))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_dir():
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink():
                    status = entry.stat()
                    if (status.st_dev, status.st_ino) in links:
                        raise LayoutError(
                            f"{entry.path} is a link to a folder that another link leads to, too"
                        )
                    links.add((status.st_dev, status.st_ino))
                left.append((entry.path, f"{prefix}{entry.name}/"))
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:  # a link to nothing, or removed since
                continue
            yield f"{prefix}{entry.name}", (status.st_size, status.st_mtime_ns)
