"""Compiled kernels on disk.

Loaded bytes are executed, so an entry must be ours and whole:

* the folder belongs to this user and nobody else can write to it (mode 0700), or the cache is not used;
* an entry begins with the digest of the rest; one that does not match is thrown away and built anew;
* entries are written to a temporary file and renamed, so that readers only ever see whole ones;
* the name of an entry is the digest of everything that shapes it: LLVM's version, processor, features, and
  either the IR or what the IR is made from.

The second kind of name saves making the IR, which takes longer than loading the code. A kernel is made from
the two layouts, the attributes, the processor, and *this package*::

    layouts, attributes, processor, threads  --.
                                                >-- nests -- plans -- IR -- object code
    source code of layout, reorder, codegen  --'

so the source code is a part of the name: all of it, read anew by each process, since a list of what matters
would be wrong one day. Versions would not do, as whoever works on a kernel does not count them up.

Traps:

* What runs is the code that was *imported*. Where a file was edited since, names are made from the IR; see
  :func:`sources`.
* Nor does source code tell what a process does to it: whoever sets a constant of a kernel while it runs (a
  test, an experiment) switches the cache off.

``RELAYOUT_CACHE`` names another folder, or switches the cache off (``RELAYOUT_CACHE=off``).
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from functools import lru_cache
from pathlib import Path

try:
    from _blake2 import blake2b  # hashlib's; but that loads OpenSSL, which takes longer than a kernel
except ImportError:
    from hashlib import blake2b

__all__ = ["digest", "folder", "load", "save", "sources", "unchanged"]

DIGEST = 32  # bytes
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = (".", "layout", "codegen", "reorder", "reorder/kernels")
"""Folders of the package with all that kernels are made by."""
ENVIRONMENT = b"environ", b"getenv"
"""What is found in code that asks the environment; ``codegen`` does, and hands its answers over."""
SETTLED = 2_000_000_000  # nanoseconds; file systems round times, and importing takes a while


def digest(data: bytes) -> bytes:
    """What tells data apart: BLAKE2b, 32 bytes."""
    return blake2b(data, digest_size=DIGEST).digest()


@lru_cache(maxsize=1)
def sources(imported: int) -> str | None:
    """The digest of the source code that kernels are made by.

    Parameters
    ----------
    imported : int
        When this process began to import the package, in nanoseconds since the epoch.

    Returns
    -------
    str or None
        None where the files don't tell what kernels are made by: there are none (a zip file, bytecode alone);
        one is no older than its import, so that another text may have been imported; or reorders ask the
        environment, as experiments do. A file is as old as its contents (``mtime``) and its last change of
        any kind (``ctime``, which nobody sets back).
    """
    return _sources(imported)


def unchanged(imported: int) -> bool:
    """Whether the source code still is what :func:`sources` has found: modules are imported in between."""
    return sources(imported) is not None and sources(imported) == _sources(imported)


def _sources(imported: int) -> str | None:
    whole = blake2b(digest_size=DIGEST)
    try:
        for name in _files():
            with open(f"{PACKAGE}/{name}", "rb", buffering=0) as file:
                found = os.fstat(file.fileno())
                if max(found.st_mtime_ns, found.st_ctime_ns) > imported - SETTLED:
                    return None
                text = file.read()
            if name.startswith("reorder/") and any(word in text for word in ENVIRONMENT):
                return None
            whole.update(b"%s %d\n%s" % (name.encode(), len(text), text))
    except OSError:
        return None
    return whole.hexdigest()


def _files() -> list[str]:
    """The source files of all parts, in an order that is always the same."""
    found = []
    for part in PARTS:
        names = [name for name in os.listdir(f"{PACKAGE}/{part}") if name.endswith(".py")]
        if not names:
            raise FileNotFoundError(f"no source code in {PACKAGE}/{part}")
        found += [f"{part}/{name}" for name in sorted(names)]
    return found


def folder() -> Path | None:
    """The folder of the cache, made if need be; None where the cache is off or can't be trusted."""
    named = os.environ.get("RELAYOUT_CACHE", "")
    if named.lower() in ("off", "0", "no"):
        return None
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or ("" if named else Path.home() / ".cache"))
        path = Path(named) if named else base / "relayout" / "kernels"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except (OSError, RuntimeError):  # the latter where there is no home
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
    if len(data) > DIGEST and digest(data[DIGEST:]) == data[:DIGEST]:
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
            file.write(digest(code) + code)
        os.replace(name, where / key)
    except OSError:
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)
