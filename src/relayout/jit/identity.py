"""Which host this is: its processor, asked of the processor itself, and its library of LLVM's.

Code and what LLVM has said are kept on disk by :func:`identity`, so that no other host takes them.

LLVM derives a processor's name and features from what the instruction ``cpuid`` answers, and from which
registers the system saves (``xgetbv``). So does :func:`facts`, without LLVM: two processors with equal facts
have equal names and features. Nothing else says as much. ``/proc/cpuinfo`` leaves out some of it, and takes
10 milliseconds to open on some kernels; a machine's name or boot id stay when it is moved to another
processor; and home directories are shared by machines. Asking takes a fifth of a millisecond.

Traps:

* A library that loads others (LLVM as a shared library of the system) stays the same when those change.
  Kernels on disk are right all the same, but go by the name of the older LLVM.

Sources: Intel's Software Developer's Manual, volume 2 (CPUID, XGETBV); AMD64 Architecture Programmer's
Manual, volume 3, appendix E.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import lru_cache

from relayout.environment import LOADED
from relayout.jit import cache
from relayout.jit.pages import Pages, page

__all__ = ["facts", "identity"]

VERSION = 1  # of what is kept by it
LIBRARY = "llvmlite/binding/libllvmlite.so"

ALL, NOT_EBX = (0, 1, 2, 3), (0, 2, 3)
LEAVES = {
    (0x00000000, 0): ALL,  # the highest leaf, and who has made it
    (0x00000001, 0): NOT_EBX,  # family, model, stepping, features; which core is asked
    (0x00000007, 0): ALL,
    (0x00000007, 1): ALL,
    (0x0000000D, 1): (0,),  # ways to save registers; how many bytes are saved now
    (0x00000014, 0): (1,),
    (0x00000019, 0): (1,),
    (0x0000001E, 1): (0,),
    (0x00000024, 0): (1,),
    (0x80000000, 0): (0,),
    (0x80000001, 0): NOT_EBX,
    (0x80000008, 0): (1,),
    (0x80000021, 0): (0,),
}
"""Leaves and subleaves with anything that compilers ask for, and which of eax, ebx, ecx and edx have it.

The others differ from core to core, or from moment to moment.
"""
OSXSAVE = 1 << 27  # in ecx of leaf 1: there is xgetbv

CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
"""``void (unsigned leaf, unsigned subleaf, unsigned answer[4])``::

    push rbx;  mov r8, rdx;  mov eax, edi;  mov ecx, esi;  cpuid
    mov [r8], eax;  mov [r8 + 4], ebx;  mov [r8 + 8], ecx;  mov [r8 + 12], edx;  pop rbx;  ret
"""
XGETBV = bytes.fromhex("31c9 0f01d0 c3")
"""``unsigned (void)``: ``xor ecx, ecx;  xgetbv;  ret``."""


def facts() -> tuple[int, ...] | None:
    """Everything about this processor that shapes code.

    None where it can't be asked: on other processors than x86-64 under Linux, and on hosts that forbid making
    machine code, since the question is machine code itself.
    """
    pages = Pages.filled(CPUID + XGETBV, page())
    if pages is None:
        return None
    ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(pages.address)
    saved = ctypes.CFUNCTYPE(ctypes.c_uint32)(pages.address + len(CPUID))
    answer = (ctypes.c_uint32 * 4)()
    found: list[int] = []
    highest = dict[int, int]()
    for (leaf, subleaf), registers in LEAVES.items():
        if leaf & 0xFFFF and leaf > highest[leaf & 0x80000000]:  # the answer would be another leaf's
            found.append(0)
            continue
        ask(leaf, subleaf, ctypes.addressof(answer))
        highest.setdefault(leaf, answer[0])
        found += [answer[k] for k in registers]
        if leaf == 1 and answer[2] & OSXSAVE:
            found.append(saved())
    pages.close()
    return tuple(found)


@lru_cache(maxsize=1)
def identity() -> str:
    """Which processor and which library of LLVM's these are; empty where that can't be told."""
    library = _library()
    processor = facts() if library else None
    return repr((VERSION, library, processor)) if processor else ""


def _library() -> str:
    """What changes when llvmlite does; empty where there is nothing to go by.

    It is looked for where an import would find it, but not imported: that alone takes as long as a kernel.
    """
    if sys.modules.get("llvmlite", sys) is None:  # it must not be imported
        return ""
    for folder in sys.path:
        place = os.path.join(folder, LIBRARY)
        try:
            found = os.stat(place)
        except (OSError, ValueError):
            continue
        if cache.young(found, LOADED):  # it may have been replaced after this process has loaded it
            return ""
        stamp = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        return repr((os.path.abspath(place), stamp))
    return ""
