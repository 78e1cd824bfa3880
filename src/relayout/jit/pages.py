"""Memory for machine code on Linux: written first, run afterwards, never both at once.

A process asks the system for pages that it may write to, fills them, and then has them made executable, which
also takes the right to write away. Hosts that forbid machine code (SELinux without ``execmem``, systemd's
``MemoryDenyWriteExecute``) refuse that last step; nothing has been run by then.

>>> made = Pages.filled(bytes.fromhex("b82a000000c3"), page())  # mov eax, 42; ret
>>> made is None or ctypes.CFUNCTYPE(ctypes.c_int)(made.address)() == 42
True

Pages go back to the system when somebody says so, and not with the object: whoever owns code knows when
nobody runs it any more (:mod:`relayout.jit.engines`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache
from typing import Any

__all__ = ["Pages", "page", "process"]

READ, WRITE, EXECUTE = 1, 2, 4  # rights, as Linux counts them
PRIVATE, ANONYMOUS = 0x02, 0x20  # MAP_PRIVATE and MAP_ANONYMOUS


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
