"""Compiled kernels on disk.

Loaded bytes are executed, so an entry must be ours and whole:

* the folder belongs to this user and nobody else can write to it (mode 0700), or the cache is not used;
* an entry is a regular file of this user that nobody else can write to, or it is not read;
* it begins with the digest of its name and of the rest; one that does not match is thrown away and built
  anew. The name takes part, since an entry under another one's name is whole, too, and another kernel;
* entries are written to a temporary file and renamed, so that readers only ever see whole ones;
* the name of an entry is the digest of everything that shapes it: LLVM's version, processor, features, and
  either the IR or what the IR is made from.

The second kind of name saves making the IR, which takes longer than loading the code. A kernel is made from
the two layouts, the attributes, the processor, and *this package*::

    layouts, attributes, processor, threads  --.
                                                >-- nests -- plans -- IR -- object code
    source code of layout, kernels, ir ...   --'

so the source code is a part of the name: all of it, since a list of what matters would be wrong one day.
Versions would not do, as whoever works on a kernel does not count them up. Reading half a megabyte in each
process takes longer than loading a kernel, so its digest is kept, too, with the size, the number and both
times of every file: while these are the same so is the text (:func:`sources`).

No more than :data:`LIMIT` bytes are kept. Finding an entry must not pay for that, so it is seen to by those
who write one, and not each time: looking at a whole folder takes longer than writing. Chance decides, in
proportion to what is written, which takes no book-keeping that several processes could spoil: the folder is
looked at about :data:`LOOKS` times while as much as the limit is written, and if it holds too much, what was
not used for longest goes until a quarter of the limit is free. An entry is as old as its file, which is
touched when it is used, at most once a day.

Traps:

* What runs is the code that was *imported*. Where a file was edited since, names are made from the IR; see
  :func:`sources`.
* Nor does source code tell what a process does to it: whoever sets a constant of a kernel while it runs (a
  test, an experiment) switches the cache off.

``RELAYOUT_CACHE`` names another folder, or switches the cache off (``RELAYOUT_CACHE=off``);
``RELAYOUT_CACHE_LIMIT`` is another limit, in bytes.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache

try:
    from _blake2 import blake2b  # hashlib's; but that loads OpenSSL, which takes longer than a kernel
except ImportError:
    from hashlib import blake2b

from relayout.environment import named_number

__all__ = [
    *("REORDERS", "digest", "folder", "load", "ours", "save", "settled", "shrink", "sources", "stamp"),
    *("unchanged", "young"),
]

DIGEST = 32  # bytes
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = (
    *(".", "layout", "loops", "ops", "ir", "targets", "jit", "runtime", "reorder", "primitives"),
    *("kernels", "kernels/copy", "kernels/elementwise", "kernels/reduce"),
    *("kernels/conv", "kernels/recurrent", "kernels/blockwise"),
)
"""Folders of the package with all the code that kernels are made by; a test compares them with imports."""
REORDERS = (
    *(".", "layout", "loops", "ir", "targets", "jit", "runtime", "reorder"),
    *("kernels", "kernels/copy"),
)
"""Those among them that reorders are made by."""
ENVIRONMENT = b"environ", b"getenv"
"""Words of code that asks the environment; ``environment`` does, and hands its answers over."""
WRITERS = "reorder/", "kernels/"
"""Where code is looked for that asks the environment."""
PLAIN = 2  # the version of marshal's format without references: the same bytes for the same values
SETTLED = 2_000_000_000  # nanoseconds; file systems round times, and importing takes a while

LIMIT = 512 << 20  # bytes of all entries
BLOCK = 4096  # bytes; the least that an entry takes on disk
LOOKS = 16  # at the whole folder while as much as the limit is written
READ = os.O_RDONLY
for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    READ |= getattr(os, flag, 0)
HOME = os.path.join("~", ".cache")
DAY = 86400  # seconds; an entry that was used earlier is touched


def digest(data: bytes) -> bytes:
    """What tells data apart: BLAKE2b, 32 bytes."""
    return blake2b(data, digest_size=DIGEST).digest()


def sources(imported: int) -> str | None:
    """The digest of the source code that kernels are made by.

    It is read, or kept from an earlier process that found the same files: their names, sizes, inode numbers,
    contents' times (``mtime``) and times of the last change of any kind (``ctime``, which nobody sets back).
    Python itself goes by less when it takes a module from its bytecode: size and ``mtime`` in seconds.

    Parameters
    ----------
    imported : int
        When this process began to import the package, in nanoseconds since the epoch.

    Returns
    -------
    str or None
        None where the files don't tell what kernels are made by: there are none (a zip file, bytecode alone);
        one is no older than its import, so that another text may have been imported; or reorders ask the
        environment, as experiments do. A file is as old as the later of its two times.
    """
    return _first(imported)[1]


@lru_cache(maxsize=1)
def _first(imported: int) -> tuple[bytes | None, str | None]:
    """The stamp and the digest of the source code when this process first asked."""
    found: str | None
    stamped = stamp(imported)
    if stamped is None:
        return None, _sources(imported)
    name = f"sources-{digest(os.fsencode(PACKAGE)).hex()}"  # one for each place, so that they don't pile up
    kept = load(name)
    if kept is not None and kept[:DIGEST] == stamped:
        return stamped, kept[DIGEST:].decode()
    found = _sources(imported)
    if found is not None:  # of files as they were at the stamp, or it is None
        save(name, stamped + found.encode())
    return stamped, found


@lru_cache(maxsize=2)
def stamp(imported: int, parts: Sequence[str] = PARTS) -> bytes | None:
    """What tells the source code of some folders from any other, without reading it, when first asked.

    None where only reading tells: see :func:`sources`.
    """
    return _stamp(imported, parts)


def settled(imported: int, parts: Sequence[str]) -> bool:
    """Whether these folders still have the stamp of before, and what they hold does not ask the environment.

    For those who keep what was made by them under the stamp: modules are imported in between.
    """
    first = stamp(imported, parts)
    return first is not None and _stamp(imported, parts) == first and not _asks(imported, tuple(parts))


@lru_cache(maxsize=2)
def _asks(imported: int, parts: tuple[str, ...]) -> bool:
    """Whether code that makes kernels asks the environment."""
    try:
        return any(_asks_environment(_text(name)) for name in _files(parts) if name.startswith(WRITERS))
    except OSError:
        return True


def _text(name: str) -> bytes:
    with open(f"{PACKAGE}/{name}", "rb", buffering=0) as file:
        return file.read()


def unchanged(imported: int) -> bool:
    """Whether the source code still is what :func:`sources` has found: modules are imported in between."""
    stamped, found = _first(imported)
    return found is not None and (
        _stamp(imported) == stamped if stamped is not None else _sources(imported) == found
    )


def _stamp(imported: int, parts: Sequence[str] = PARTS) -> bytes | None:
    """What changes when any source file does; None where only reading them tells.

    Each process looks at a hundred files before its first call, so nothing is done twice for any of them.
    """
    if os.name != "posix":  # elsewhere ctime is when a file was made
        return None
    facts: list[int] = []  # flat lists: thousands of tuples would set off the garbage collector
    times: list[int] = []
    try:
        names = _files(parts)
        for name in names:
            file = os.stat(f"{PACKAGE}/{name}")
            times += (file.st_mtime_ns, file.st_ctime_ns)
            facts += (file.st_size, file.st_ino, file.st_dev)
    except OSError:
        return None
    if max(times) > imported - SETTLED:
        return None
    return digest(marshal.dumps((names, times, facts), PLAIN))


def young(file: os.stat_result, imported: int) -> bool:
    """Whether a file may have been changed since it was imported."""
    return max(file.st_mtime_ns, file.st_ctime_ns) > imported - SETTLED


def _sources(imported: int) -> str | None:
    """The digest of what the files hold now."""
    whole = blake2b(digest_size=DIGEST)
    try:
        for name in _files():
            with open(f"{PACKAGE}/{name}", "rb", buffering=0) as file:
                if young(os.fstat(file.fileno()), imported):
                    return None
                text = file.read()
            if name.startswith(WRITERS) and _asks_environment(text):
                return None
            whole.update(b"%s %d\n%s" % (name.encode(), len(text), text))
    except OSError:
        return None
    return whole.hexdigest()


def _asks_environment(text: bytes) -> bool:
    """Whether code has a word of :data:`ENVIRONMENT`; plain bytes are looked for first: faster."""
    return any(word in text and re.search(rb"\b%s\b" % word, text) for word in ENVIRONMENT)


def _files(parts: Sequence[str] = PARTS) -> list[str]:
    """The source files of some folders, in an order that is always the same."""
    found = []
    for part in parts:
        names = [name for name in os.listdir(f"{PACKAGE}/{part}") if name.endswith(".py")]
        if not names:
            raise FileNotFoundError(f"no source code in {PACKAGE}/{part}")
        found += [f"{part}/{name}" for name in sorted(names)]
    return found


def folder() -> str | None:
    """The folder of the cache, made if need be; None where the cache is off or can't be trusted."""
    named = os.environ.get("RELAYOUT_CACHE", "")
    if named.lower() in ("off", "0", "no"):
        return None
    path = named
    if not named:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(HOME)
        if home == HOME:  # there is no home
            return None
        path = os.path.join(home, "relayout", "kernels")
    path = path.rstrip(os.sep) or os.sep  # behind a slash a link would be followed
    try:
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            os.makedirs(path, mode=0o700, exist_ok=True)
            found = os.lstat(path)
    except (OSError, ValueError):  # the latter of names with a null character
        return None
    return path if stat.S_ISDIR(found.st_mode) and ours(found) else None


def ours(found: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user, and nobody else can write to it."""
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return mine and not found.st_mode & 0o022


def _opened(path: str) -> int:
    """Open what is no link, and without waiting for anybody: a pipe would wait for one who writes to it."""
    return os.open(path, READ)


def _whole(file: int, size: int) -> bytes:
    """All of an open file, which is said to have so many bytes."""
    data = os.read(file, size + 1)
    while more := os.read(file, BLOCK) if len(data) != size else b"":  # it was cut or has grown since
        data += more
    return data


def _seal(key: str, code: bytes) -> bytes:
    """The digest that an entry begins with."""
    return digest(b"%s\n%s" % (key.encode(), code))


def load(key: str) -> bytes | None:
    """What an entry holds, or None; damaged entries are removed."""
    where = folder()
    if where is None:
        return None
    path = f"{where}/{key}"
    try:
        file = _opened(path)  # open() and its objects would take four times as long
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if not ours(found) or not stat.S_ISREG(found.st_mode) or found.st_size > LIMIT:
            return None
        data, used = _whole(file, found.st_size), found.st_mtime
    except OSError:
        return None
    finally:
        os.close(file)
    whole = len(data) > DIGEST and _seal(key, data[DIGEST:]) == data[:DIGEST]
    with contextlib.suppress(OSError):
        if not whole:
            os.unlink(path)
        elif abs(time.time() - used) > DAY:  # a clock that was ahead must not keep an entry for good
            os.utime(path)
    return data[DIGEST:] if whole else None


def save(key: str, code: bytes) -> None:
    """Keep an entry; a full disk or the like is no error, the next process compiles again.

    Raises
    ------
    LayoutError
        ``RELAYOUT_CACHE_LIMIT`` is set, and no number of bytes.
    """
    where = folder()
    limit = named_number("RELAYOUT_CACHE_LIMIT", f"number of bytes; write one in digits, such as {LIMIT}")
    if limit is None:
        limit = LIMIT
    if where is None:
        return
    name = ""
    try:
        name = f"{where}/{key}.{os.urandom(8).hex()}"
        with open(name, "xb", opener=_private) as file:
            file.write(_seal(key, code) + code)
        os.replace(name, f"{where}/{key}")
    except OSError:
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)
    if _drawn() * limit < LOOKS * _room(DIGEST + len(code)):
        shrink(where, limit)


# The modules random and tempfile take as long to load as a kernel takes to compile.


def _drawn() -> float:
    """A number from 0 to 1, drawn at random."""
    return int.from_bytes(os.urandom(7), "big") / (1 << 56)


def _private(path: str, flags: int) -> int:
    """Open a file for this user alone."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _room(size: int) -> int:
    """The bytes that a file of a size takes on disk."""
    return -(-size // BLOCK) * BLOCK


def shrink(where: str, limit: int) -> None:
    """If entries are larger than the limit, remove the ones that were not used for longest.

    Other processes may do so at the same time; what they have removed is gone, and counts as removed.
    """
    found = sorted(_entries(where))
    left = sum(room for _, room, _ in found)
    if left <= limit:
        return
    for _, room, path in found:
        if left <= limit * 3 // 4:
            return
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError:  # it may not be removed
            continue
        left -= room


def _entries(where: str) -> Iterator[tuple[int, int, str]]:
    """When each entry was used, the bytes that it takes, and its path; unfinished ones among them.

    Whatever else is in the folder that a user has named is none of our business.
    """
    with contextlib.suppress(OSError), os.scandir(where) as files:
        for file in files:
            if re.fullmatch(r"([a-z]+-)?[0-9a-f]{64}(\.\w+)?", file.name):
                with contextlib.suppress(OSError):  # another process has just removed it
                    found = file.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield found.st_mtime_ns, _room(found.st_size), file.path
