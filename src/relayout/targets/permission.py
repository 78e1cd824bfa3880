"""Leave of the system to use tiles.

The tiles of AMX are 8 KiB that a system saves when it changes threads, so Linux makes room for them only in
processes that have asked (``arch_prctl``, from version 5.16 on). Leave is for all threads of the process, and
for the children that it forks, until one of them runs another program. A system may refuse, for example where
a thread has an alternative signal stack that is too small for the larger state: then there are no tiles.

Source: the kernel's documentation, ``Documentation/arch/x86/xstate.rst``.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

__all__ = ["TILE_FEATURES", "may_use_tiles"]

TILE_FEATURES = ("amx-tile", "amx-int8", "amx-bf16", "amx-fp16")
"""What goes where tiles may not be used, by LLVM's names."""

ARCH_PRCTL = 158  # the number of the system call on x86-64
REQUEST = 0x1023  # ARCH_REQ_XCOMP_PERM
TILE_DATA = 18  # the state component


@lru_cache(maxsize=1)
def may_use_tiles() -> bool:
    """Ask once; False on other systems than Linux on x86-64, which have other ways to be asked.

    >>> may_use_tiles() in (True, False)
    True
    """
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (AttributeError, OSError):
        return False
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(ARCH_PRCTL), ctypes.c_long(REQUEST), ctypes.c_long(TILE_DATA))) == 0
