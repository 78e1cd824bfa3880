r"""Logs as streams of bytes and lines: files of any size, gzip, pipes, bytes in memory.

What is read is not kept: a reader sees chunk after chunk, so that a trace of gigabytes takes no more memory
than the conversions in it. The first bytes can be looked at before, to tell which reader is right.

>>> source = Source(b"one\ntwo")
>>> source.head(), list(source.lines())
(b'one\ntwo', [(1, 'one'), (2, 'two')])
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from relayout.errors import LayoutError, type_name

__all__ = ["Progress", "Source"]

CHUNK = 1 << 20  # bytes that are read at once
HEAD = 1 << 16  # bytes by which the kind of a log is told
LONGEST = 1 << 20  # characters of a line: no log has longer ones, and binary junk may have no lines at all
GZIP = b"\x1f\x8b"

Progress = Callable[[int, "int | None"], None]
"""Called with the bytes that are read, and with how many there are in all (None: unknown)."""


class Source:
    """A log to be read once, from its beginning to its end.

    Parameters
    ----------
    given : path, bytes, or a binary file
        A file of bytes that are compressed by gzip is read as what it holds.
    progress : callable, optional
        See :data:`Progress`.

    Raises
    ------
    LayoutError
        It is none of these.
    OSError
        The file can't be opened.
    """

    def __init__(self, given: Any, progress: Progress | None = None) -> None:
        self.name = "the log"
        self.size: int | None = None
        self.problem = ""
        """Why reading ended early, if it did."""
        self._progress = progress
        self._owned = False
        if isinstance(given, (bytes, bytearray, memoryview)):
            raw: IO[bytes] = io.BytesIO(bytes(given))
            self.size = len(given)
        elif isinstance(given, (str, os.PathLike)):
            self.name = os.fspath(given)
            raw = open(given, "rb")  # noqa: SIM115 - closed when it is read
            self._owned = True
            self.size = os.fstat(raw.fileno()).st_size or None
        elif hasattr(given, "read"):
            raw = cast("IO[bytes]", given)
            name = getattr(given, "name", None)
            self.name = name if isinstance(name, str) else "the log"
        else:
            raise LayoutError(f"a log is a path, bytes or a binary file, got {type_name(given)}")
        self._raw = raw
        first = raw.read(HEAD)
        if not isinstance(first, bytes):
            self.close()
            raise LayoutError("a log is read as bytes; open the file with mode 'rb'")
        self._counted = len(first)
        self._pending = first
        self._unzip = zlib.decompressobj(wbits=31) if first.startswith(GZIP) else None
        self._first = self._unzipped(first) if self._unzip else first

    def head(self) -> bytes:
        """The first bytes of the content, those in up to 64 KiB of the file."""
        return self._first[:HEAD]

    def chunks(self) -> Iterator[bytes]:
        """The content, piece by piece; the file is closed at the end."""
        try:
            self._tell()
            yield self._first
            self._first = b""
            while not self.problem:
                piece = self._raw.read(CHUNK)
                if not piece:
                    break
                self._counted += len(piece)
                self._tell()
                yield self._unzipped(piece) if self._unzip else piece
            if self._unzip and not self._unzip.eof and not self.problem:
                self.problem = "the compressed file is cut"
        finally:
            self.close()

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their numbers, from 1; of one that is too long only its beginning."""
        number, rest = 0, b""
        for chunk in self.chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                number += 1
                yield number, line[:LONGEST].decode("utf-8", "replace").rstrip("\r")
            rest = rest[:LONGEST]
        if rest:
            yield number + 1, rest.decode("utf-8", "replace").rstrip("\r")

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._owned:
            self._raw.close()

    def _unzipped(self, piece: bytes) -> bytes:
        """What compressed bytes hold; files of several members are read through."""
        assert self._unzip is not None
        out = []
        try:
            while piece:
                if self._unzip.eof:
                    if not piece.startswith(GZIP):
                        break  # padding behind the last member
                    self._unzip = zlib.decompressobj(wbits=31)
                out.append(self._unzip.decompress(piece))
                piece = self._unzip.unused_data
        except (zlib.error, gzip.BadGzipFile) as error:
            self.problem = f"the compressed file is damaged: {error}"
        return b"".join(out)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._counted, self.size)
