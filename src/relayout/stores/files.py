"""Chunk files: read and written whole, and what a folder of them is like."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from relayout.errors import LayoutError
from relayout.exchange.mapped import open_regular
from relayout.files.atomic import naming
from relayout.stores.buffers import taken
from relayout.stores.store import Bytes, Fingerprint, SourceChanged, digest

if TYPE_CHECKING:
    from io import BufferedReader

__all__ = [
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


def read_whole(path: Path, newest: int, most: int) -> Bytes | None:
    """The bytes of a file, in a buffer that can be :func:`given back <.buffers.given_back>`; None: no file.

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
            data, got = taken(status.st_size), 0
            while got < data.size:  # the system reads 2 GiB at most
                more = file.readinto(data[got:].data)
                if not more:
                    break
                got += more
            return data[:got]
    except (FileNotFoundError, NotADirectoryError):
        return None


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


AT_ONCE: Final = 1 << 20
"""Bytes of one call of ``write``. The kernel touches all that it is given before it copies it, so what no
longer fits the caches is read from memory twice: 16 MiB at once took twice as long as in pieces of 1 MiB."""


def write_whole(path: Path, parts: Iterable[Any]) -> None:
    """Write a file, whole or not at all: under another name, then renamed.

    Raises
    ------
    OSError
        It can't be written. What was there before is as it was.
    """
    part = path.parent / f".{path.name}.{secrets.token_hex(6)}.part"
    with naming(path):
        try:
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            try:
                for data in parts:
                    left = memoryview(data).cast("B")
                    while len(left):
                        left = left[os.write(handle, left[:AT_ONCE]) :]
            finally:
                os.close(handle)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def remove_parts(folder: Path) -> None:
    """Remove what processes that were killed had begun to write below a folder.

    Raises
    ------
    OSError
        A file can't be removed.
    """
    with naming(folder):
        for path, _ in _walk(folder, ""):
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
    for path, status in sorted(_walk(folder, "")):
        if is_chunk(path):
            total.update(f"{path} {status[0]} {status[1]}\n".encode("utf-8", "surrogateescape"))
            newest, chunks, nbytes = max(newest, status[1]), chunks + 1, nbytes + status[0]
    return Fingerprint(digest([metadata, total.hexdigest()]), newest, chunks, nbytes)


def _walk(
    folder: Path, prefix: str, links: set[tuple[int, int]] | None = None
) -> Iterable[tuple[str, tuple[int, int]]]:
    links = set() if links is None else links
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith(".") and entry.is_dir():
            continue
        if entry.is_dir():
            if entry.is_symlink():
                status = entry.stat()
                if (status.st_dev, status.st_ino) in links:
                    raise LayoutError(f"{entry.path} is a link to a folder that another link leads to, too")
                links.add((status.st_dev, status.st_ino))
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", links)
        else:
            try:
                status = entry.stat()
            except FileNotFoundError:  # a link to nothing, or removed since
                continue
            yield f"{prefix}{entry.name}", (status.st_size, status.st_mtime_ns)
