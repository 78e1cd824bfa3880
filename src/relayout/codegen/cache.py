"""Compiled kernels on disk.

Loaded bytes are executed, so an entry must be ours and whole:

* the folder belongs to this user and nobody else can write to it (mode 0700), or the cache is not used;
* an entry begins with the SHA-256 of the rest; one that does not match is thrown away and built anew;
* entries are written to a temporary file and renamed, so that readers only ever see whole ones;
* the name of an entry is the SHA-256 of everything that shapes it: LLVM's version, processor, features, and
  the IR.

``RELAYOUT_CACHE`` names another folder, or switches the cache off (``RELAYOUT_CACHE=off``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

__all__ = ["folder", "load", "save"]

DIGEST = 32


def folder() -> Path | None:
    """The folder of the cache, made if need be; None where the cache is off or can't be trusted."""
    named = os.environ.get("RELAYOUT_CACHE", "")
    if named.lower() in ("off", "0", "no"):
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(named) if named else base / "relayout" / "kernels"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        return None
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        return None
    return path


def load(key: str) -> bytes | None:
    """The object code of an entry, or None; damaged entries are removed."""
    where = folder()
    if where is None:
        return None
    path = where / key
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) > DIGEST and hashlib.sha256(data[DIGEST:]).digest() == data[:DIGEST]:
        return data[DIGEST:]
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def save(key: str, code: bytes) -> None:
    """Keep an entry; a full disk or the like is no error, the next process compiles again."""
    where = folder()
    if where is None:
        return
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=where)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(name, where / key)
    except OSError:
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)
