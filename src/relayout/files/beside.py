"""The descriptor beside a file: ``x.bin`` and ``x.bin.layout.json``.

Where it lies
=============

Beside the file itself. A symbolic link is followed, so everybody who reads the file finds the same
descriptor, whatever name they read it by. A descriptor beside a link counts if it says the same, or if it is
a link, too, and there is none beside the file (the pair was linked); otherwise reading is refused.

How both are exchanged
======================

Two files can't be renamed at once, and whoever reads new data by an old descriptor, or by none, gets wrong
elements. So an exchange is written down first, in the place of the descriptor::

    1  x.bin.layout.json  says: an exchange is under way; this is the old file and its descriptor,
                          and this is the new file and its descriptor
    2  x.bin              is replaced
    3  x.bin.layout.json  is replaced by the new descriptor, or removed if there is none

Files are told apart by inode, size and time of the last change. Between 1 and 3, whoever reads finds out
which of the two is there, and takes the descriptor that belongs to it. If it is neither (both files were
copied somewhere else, say), reading is refused. Each step is one rename, so this holds wherever the writer is
killed, and the next writer clears up. Readers look at the file's identity again after they have read the
descriptor, so they notice a writer who is at work just then; writers wait for each other.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from relayout.errors import LayoutError
from relayout.exchange.mapped import Bytes, Identity, map_and_identify, open_regular
from relayout.files.atomic import move, replacing, sync_folder, temporary
from relayout.files.descriptor import (
    LONGEST_TEXT,
    descriptor_from_json,
    descriptor_to_json,
    descriptor_to_text,
    json_from_text,
)
from relayout.files.spelling import spelled
from relayout.layout.descriptor import MemoryDesc

try:
    import fcntl
except ImportError:  # Windows: two writers at a time are not kept apart
    fcntl = None  # type: ignore[assignment]

__all__ = ["Described", "description", "map_described", "path_beside", "replacing_described"]

SUFFIX: Final = ".layout.json"
TRIES: Final = 100  # of a reader, while writers exchange the file again and again
UNKNOWN: Final = "unknown"  # a descriptor that nobody could read before the exchange began


class Described(NamedTuple):
    """A file and its descriptor, which belong together."""

    data: Bytes
    desc: MemoryDesc | None
    described_in: str
    """The descriptor's file, for messages."""


def path_beside(path: Path) -> Path:
    """Where the descriptor of a file lies. Symbolic links are followed.

    >>> path_beside(Path("x.npy")).name
    'x.npy.layout.json'
    """
    return _beside(Path(os.path.realpath(path)))


def map_described(path: Path) -> Described:
    """Map a file, and read the descriptor of just this version of it, if it has one.

    Raises
    ------
    LayoutError
        What lies beside the file is no descriptor, or it is not known whether it belongs to these bytes.
    OSError
        The file can't be read.
    """
    for _ in range(TRIES):
        data, identity = map_and_identify(path)
        try:
            desc, where = _described(path, identity)
        except LayoutError:
            if _is_there(path, identity):
                raise
            continue
        if _is_there(path, identity):
            return Described(data, desc, spelled(where))
    raise OSError(errno.EBUSY, "somebody replaces this file again and again", os.fspath(path))


def replacing_described(path: Path, force: bool, text: bytes | None) -> AbstractContextManager[BinaryIO]:
    """Open a temporary file that becomes ``path`` when the block ends well, and its descriptor with it.

    ``text`` is the descriptor; None: the new file has none. The rest is as in
    :func:`relayout.files.atomic.replacing`.
    """
    return replacing(path, force, lambda part, target: _exchange(part, target, text, path))


def description(desc: MemoryDesc) -> bytes:
    """What is written beside a file."""
    return descriptor_to_text(desc).encode() + b"\n"


# -- reading --------------------------------------------------------------------------------------------


def _beside(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def _is_there(path: Path, identity: Identity) -> bool:
    try:
        return Identity.of(os.stat(path)).is_same_file(identity)
    except FileNotFoundError:
        return False


def _described(path: Path, identity: Identity) -> tuple[MemoryDesc | None, Path]:
    own = path_beside(path)
    desc = _descriptor_at(own, identity)
    stray = _stray(path, own)
    if stray is None:
        return desc, own
    other = _descriptor_at(stray, identity)
    if other is None or other == desc:
        return desc, own
    if stray.is_symlink() and not own.exists():
        return other, stray
    says = "there is none" if desc is None else f"one says {desc}"
    raise LayoutError(
        f"{spelled(path)} is a link, and beside it lies a descriptor that says {other}; where one belongs, "
        f"beside the file that the link leads to, {says} ({spelled(own)}). Move it there, or remove it if it "
        "is out of date"
    )


def _stray(path: Path, own: Path) -> Path | None:
    """A descriptor beside a link to the file, which is not the one beside the file."""
    other = path.parent / _beside(path).name
    if not path.is_symlink() or not other.exists() or (own.exists() and own.samefile(other)):
        return None
    return other


def _descriptor_at(beside: Path, identity: Identity) -> MemoryDesc | None:
    text = _text_at(beside)
    if text is None:
        return None
    try:
        found = json_from_text(text)
        if isinstance(found, dict) and "exchange" in found:
            found = _of_exchange(found["exchange"], identity)
        return None if found is None else descriptor_from_json(found)
    except LayoutError as error:
        raise LayoutError(f"{spelled(beside)}: {error}") from None


def _text_at(beside: Path) -> bytes | None:
    try:
        with open_regular(beside) as file:
            return file.read(LONGEST_TEXT + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


# -- exchanging -----------------------------------------------------------------------------------------


def _version(identity: Identity) -> list[int]:
    """What tells the two files of an exchange apart; devices are numbered anew whenever they are mounted."""
    return [identity.inode, identity.size, identity.modified]


def _record(before: tuple[Identity | None, Any], after: tuple[Identity, Any]) -> bytes:
    sides = [
        {"file": None if identity is None else _version(identity), "descriptor": descriptor}
        for identity, descriptor in (before, after)
    ]
    return json.dumps({"relayout": 1, "exchange": sides}).encode() + b"\n"


def _of_exchange(sides: object, identity: Identity) -> object:
    """The descriptor that belongs to a file, as JSON (None: it has none), by the record of an exchange."""
    for side in sides if isinstance(sides, list) else ():
        if isinstance(side, dict) and side.get("file") == _version(identity) and "descriptor" in side:
            found: object = side["descriptor"]
            if found != UNKNOWN:
                return found
    raise LayoutError(
        "a program was interrupted while it replaced the file and this descriptor, and the file is neither "
        "of the two that are noted here; write the file again, or remove this and say what the bytes are"
    )


def _exchange(part: Path, target: Path, text: bytes | None, path: Path) -> None:
    beside = path_beside(target)
    with _alone(target.parent):
        before, stray = _text_at(beside), _stray(path, beside)
        if before == text and stray is None:  # the descriptor stays, so one rename is all
            move(part, target)
            return
        new = Identity.of(part.stat())
        old = Identity.of(target.stat()) if target.exists() else None
        record = _record((old, _known(beside, old)), (new, None if text is None else json.loads(text)))
        try:
            _put(beside, record)
            move(part, target)
            if stray is not None:
                stray.unlink(missing_ok=True)
        finally:
            if not _is_there(target, new):
                _put(beside, before)
            elif stray is None or not os.path.lexists(stray):  # otherwise the record must stay
                _put(beside, text)


def _known(beside: Path, identity: Identity | None) -> Any:
    """The descriptor of the file that is replaced, as JSON; None: it has none."""
    if identity is None:
        return None
    try:
        desc = _descriptor_at(beside, identity)
    except LayoutError:
        return UNKNOWN
    return None if desc is None else descriptor_to_json(desc)


def _put(beside: Path, content: bytes | None) -> None:
    """Replace a small file, or remove it, in one step."""
    if content is None:
        beside.unlink(missing_ok=True)
        sync_folder(beside.parent)
        return
    with temporary(beside) as (small, file):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        move(small, beside)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other writers of Relayout from exchanging files in a folder; readers are not kept."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks, a folder that can't be read
                handle = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
