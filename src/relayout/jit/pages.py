"""Memory for machine code on Linux, written first, run afterwards, never both at once; and linked code in it.

A process asks the system for pages that it may write to, fills them, and then has them made executable, which
also takes the right to write away. Hosts that forbid machine code (SELinux without ``execmem``, systemd's
``MemoryDenyWriteExecute``) refuse that last step; nothing has been run by then.

>>> made = Pages.filled(bytes.fromhex("b82a000000c3"), page())  # mov eax, 42; ret
>>> made is None or ctypes.CFUNCTYPE(ctypes.c_int)(made.address)() == 42
True

Pages go back to the system when somebody says so, and not with the object: whoever owns code knows when
nobody runs it any more (:mod:`relayout.jit.engines`).

Kernels on disk are *linked*: everything but the addresses of this process is filled in already, so that
:func:`placed` has next to nothing to do before the first call. Four lines of text come before the bytes::

    linked 4096             how many bytes are to be run, whole pages; the rest are constants
    reorder 0 cached 352    functions, and where each begins
    4104 4112               where words are to which the address of the first byte is added
    memcpy 4096             where words are to which that of a function of the system is added

:mod:`relayout.jit.loader` makes this of object code.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

__all__ = ["Code", "Pages", "is_linked", "linked", "page", "placed", "process"]

READ, WRITE, EXECUTE = 1, 2, 4  # rights, as Linux counts them
PRIVATE, ANONYMOUS = 0x02, 0x20  # MAP_PRIVATE and MAP_ANONYMOUS
WORD = 8  # bytes of an address
LINKED = b"linked "  # what no file of object code begins with


class Pages:
    """Pages with code at the beginning and constants behind it.

    Attributes
    ----------
    address : int
        Where the first of them begins.
    size : int
        Bytes of all of them.
    """

    __slots__ = ("address", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size

    @classmethod
    def room(cls, size: int) -> Pages | None:
        """New pages for so many bytes, all zero, to be written to; None where there are none to be had."""
        found = process()
        if found is None or size <= 0:
            return None
        size = -(-size // page()) * page()
        address = found.mmap(None, size, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0)
        return None if address in (None, ctypes.c_void_p(-1).value) else cls(address, size)

    @classmethod
    def filled(cls, content: bytes | bytearray, code: int) -> Pages | None:
        """New pages with this content, ready to run; None where the host forbids it."""
        made = cls.room(len(content))
        return made if made is not None and made.fill(content, code) else None

    def fill(self, content: bytes | bytearray, code: int) -> bool:
        """Write the content, of which the first ``code`` bytes (whole pages) are to be run, the rest read.

        Nothing can be written afterwards. False: the host forbids it, and the pages are gone.
        """
        found = process()
        if found is None or len(content) > self.size or code % page() or code > self.size:
            raise ValueError(
                f"{len(content)} bytes, {code} of them code, do not fit {self.size} bytes of pages"
            )
        ctypes.memmove(self.address, bytes(content), len(content))
        done = not code or found.mprotect(self.address, code, READ | EXECUTE) == 0
        rest = self.size - code
        if done and (not rest or found.mprotect(self.address + code, rest, READ) == 0):
            return True
        self.close()
        return False

    def close(self) -> None:
        """Give the pages back; nobody may be running what is in them."""
        found, size, self.size = process(), self.size, 0
        if found is not None and size:
            found.munmap(self.address, size)


class Code:
    """Loaded code, with what is needed of the methods of LLVM's engines.

    Attributes
    ----------
    size : int
        Bytes of memory that it takes.
    """

    __slots__ = ("_functions", "_pages", "size")

    def __init__(self, pages: Pages, functions: dict[str, int]) -> None:
        self._pages, self._functions, self.size = pages, functions, pages.size

    def get_function_address(self, name: str) -> int:
        """Where a function is; KeyError where there is none."""
        return self._functions[name]

    def close(self) -> None:
        """Give the memory back: nobody may be inside, or come back."""
        self._pages.close()


def linked(
    image: bytes | bytearray,
    border: int,
    functions: Iterable[tuple[str, int]],
    within: Iterable[int],
    outside: Iterable[tuple[str, int]],
) -> bytes:
    """Code as it is kept on disk, see above."""
    begins, added = (" ".join(f"{name} {at}" for name, at in row) for row in (functions, outside))
    lines = str(border), begins, " ".join(map(str, within)), added, ""
    return LINKED + "\n".join(lines).encode() + image


def is_linked(code: bytes) -> bool:
    """Whether this is linked code, and not that of an object."""
    return code.startswith(LINKED)


def placed(code: bytes) -> Code | None:
    """Linked code, ready to run; None where it is damaged, or lacks something here: rights, or a function."""
    system = process()
    if system is None or not is_linked(code):
        return None
    try:
        run, begins, within, outside, content = code[len(LINKED) :].split(b"\n", 4)
        image, border = bytearray(content), int(run)
        functions, added = _pairs(begins), [(int(at), 0) for at in within.split()]
        for name, at in _pairs(outside):
            added.append((at, ctypes.cast(system[name], ctypes.c_void_p).value or 0))
    except (ValueError, AttributeError):
        return None
    last = len(image) - WORD
    fits = border % page() == 0 and 0 <= border <= len(image) and all(0 <= at < border for _, at in functions)
    if not fits or not all(0 <= at <= last for at, _ in added):
        return None
    pages = Pages.room(len(image))
    if pages is None:
        return None
    base = pages.address
    for at, address in added:
        value = int.from_bytes(image[at : at + WORD], "little") + (address or base)
        image[at : at + WORD] = (value % (1 << 64)).to_bytes(WORD, "little")
    if not pages.fill(image, border):
        return None
    return Code(pages, {name: base + at for name, at in functions})


def _pairs(line: bytes) -> list[tuple[str, int]]:
    """Names with numbers."""
    words = line.decode().split()
    return list(zip(words[::2], map(int, words[1::2]), strict=True))


@lru_cache(maxsize=1)
def page() -> int:
    """Bytes of a page of memory."""
    return os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@lru_cache(maxsize=1)
def process() -> Any:
    """The functions that this process has from its C library and others; None unless it is x86-64 Linux."""
    if sys.platform != "linux" or os.uname().machine != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    found = ctypes.CDLL(None)
    try:
        found.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        found.mmap.restype = ctypes.c_void_p
        found.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        found.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    except AttributeError:
        return None
    return found
