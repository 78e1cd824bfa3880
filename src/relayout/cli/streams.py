"""Standard input and output as files.

Files are mapped, which a pipe can't be. So what comes from standard input is first kept in a temporary file,
and what goes to standard output is sent from one when it is complete. Both lie in the folder for temporary
files (``TMPDIR``), which needs room for them.

The folder of a process that was killed is removed by the next one that needs one.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from relayout.cli.options import STANDARD, Terminated
from relayout.errors import LayoutError

__all__ = ["killable", "readable", "writable"]

PREFIX = "relayout-stream-"
COPIED = 1 << 20  # bytes at a time
INPUT, OUTPUT = "standard input", "standard output"

_MAGIC = (
    (b"\x93NUMPY", ".npy"),
    (b"PK\x03\x04", ".npz"),
    (b"PK\x05\x06", ".npz"),
    (b"\x89PNG", ".png"),
    (b"\xff\xd8\xff", ".jpg"),
)


@contextmanager
def readable(path: str, suffix: str | None = None, *, raw: bool = False) -> Iterator[Path]:
    """Give the file to read: ``path``, or for ``-`` a temporary file with what standard input holds.

    Parameters
    ----------
    path : str
        A path or ``-``.
    suffix : str, optional
        The kind of file on standard input; recognised from its first bytes if not given.
    raw : bool
        Whether bytes that are not recognised are raw ones; otherwise they are refused.

    Raises
    ------
    LayoutError
        Standard input is empty, or holds nothing that is recognised.
    OSError
        It can't be read, or there is no room for it.
    """
    if path != STANDARD:
        yield Path(path)
        return
    source = sys.stdin.buffer
    head = _read(source, 16)
    kind = suffix or _kind(head) or (".bin" if raw and head else None)
    if kind is None:
        what = "is empty" if not head else "holds none of the kinds of files that its first bytes would tell"
        raise LayoutError(f"{INPUT} {what}; say what it is (--in-kind; raw bytes: --in-kind bin)")
    with _folder() as folder:
        spooled = folder / f"stdin{kind}"
        with spooled.open("wb") as out:
            while head:
                with _naming(folder.parent.parent, f"{INPUT} is kept in this folder, which TMPDIR names"):
                    out.write(head)
                    out.flush()
                head = _read(source, COPIED)
        with _called(spooled, INPUT):
            yield spooled


@contextmanager
def writable(path: str, suffix: str) -> Iterator[Path]:
    """Give the file to write: ``path``, or for ``-`` a temporary one that goes to standard output at the end.

    Nothing is printed if the block raises. ``suffix`` is the kind of file on standard output. Call
    :meth:`relayout.cli.options.Output.take_standard_output` before.
    """
    if path != STANDARD:
        yield Path(path)
        return
    import shutil

    with _folder() as folder:
        spooled = folder / f"stdout{suffix}"
        with _called(spooled, OUTPUT):
            yield spooled
        target = sys.stdout.buffer
        with spooled.open("rb") as source:
            shutil.copyfileobj(source, target)
        target.flush()


@contextmanager
def killable() -> Iterator[None]:
    """Let a polite kill (SIGTERM) clean up as Ctrl-C does."""

    def leave(*_: object) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread, so signals are somebody else's business
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _kind(head: bytes) -> str | None:
    """The suffix of a file, by its first bytes; None: raw bytes, or anything else."""
    for magic, suffix in _MAGIC:
        if head.startswith(magic):
            return suffix
    return ".safetensors" if head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") < 2**32 else None


def _read(source: BinaryIO, most: int) -> bytes:
    try:
        return source.read(most)
    except OSError as error:
        error.filename = INPUT
        raise


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that is removed at the end, or by the next process if this one is killed."""
    import shutil
    import tempfile

    from relayout.files.leftovers import hold, remove_left

    root = Path(tempfile.gettempdir())
    remove_left(root, re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}"), folders=True)
    with killable():
        while True:
            folder = Path(os.path.realpath(tempfile.mkdtemp(prefix=PREFIX)))
            lock = _open(folder)
            if lock is not None and hold(lock, folder):
                break
        try:
            inner = folder / "files"  # writers lock the folder of their file, and the outer one is locked
            inner.mkdir()
            yield inner
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _open(folder: Path) -> int | None:
    """A handle of a new folder; None if somebody took it for a leftover and removed it."""
    try:
        return os.open(folder if hasattr(os, "O_DIRECTORY") else os.devnull, os.O_RDONLY)
    except FileNotFoundError:
        return None


@contextmanager
def _naming(path: Path, why: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({why})", os.fspath(path)) from None


@contextmanager
def _called(path: Path, name: str) -> Iterator[None]:
    """Errors call a temporary file by what it stands for."""
    try:
        yield
    except LayoutError as error:
        text = str(error).replace(f" ({path}.layout.json)", "").replace(str(path), name)
        error.args = (text,)
        raise
    except OSError as error:
        if error.filename is not None and os.fsdecode(error.filename) == str(path):
            error.filename = name
        raise
