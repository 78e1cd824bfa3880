"""What LLVM has said about this host in an earlier process, so that it need not be loaded to say it again.

Three answers are needed before a kernel can be looked for on disk: what the processor is called, what it can
do, and which LLVM would make the kernel, since all of it is part of a kernel's name. LLVM takes longer to
import than everything else up to the first call. So the answers are kept beside the kernels, under the same
rules (:mod:`relayout.jit.cache`), by the name of what they depend on::

    what the processor says (relayout.jit.cpuid)        --.
                                                           >-- triple, processor, features, versions
    llvmlite's library: its place, number, size, times  --'

Another processor has other facts, another llvmlite another library file, and neither finds the answers of the
first. Only what LLVM has said in a process that can make machine code is kept, so whoever finds it need not
ask whether code can be made here, either: :func:`relayout.jit.cpuid.facts` has just made some.

Traps:

* With ``RELAYOUT_CPU`` nothing is remembered: the answers are about the processor that there is.
* A library that loads others (LLVM as a shared library of the system) stays the same when those change.
  Kernels on disk are right all the same, but go by the name of the older LLVM.
* llvmlite may be whole and unable to load: libraries that it needs are gone. Kernels from disk run, and
  making another one says what is missing.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache

from relayout.environment import LOADED
from relayout.forking import locked
from relayout.jit import cache
from relayout.jit.cpuid import facts

__all__ = ["Answers", "identity", "keep", "recalled"]

VERSION = 1  # of entries on disk
LIBRARY = "llvmlite/binding/libllvmlite.so"

Answers = tuple[str, ...]
"""A triple, a processor, its features, and the versions of llvmlite and LLVM."""


@lru_cache(maxsize=1)
@locked
def recalled() -> Answers | None:
    """What an earlier process was answered here; None where nobody knows, or this is another *here*."""
    name = _name()
    lines = (cache.load(name) or b"").decode(errors="replace").split("\n") if name else []
    return tuple(lines) if len(lines) == 4 else None


@locked
def keep(answers: Answers) -> None:
    """Remember answers for later processes; to be called where code has been made and may be run."""
    name = _name()
    if name:
        cache.save(name, "\n".join(answers).encode())


@lru_cache(maxsize=1)
def _name() -> str:
    """The name of the entry on disk; empty where nothing may be remembered."""
    if os.environ.get("RELAYOUT_CPU") or cache.folder() is None:
        return ""
    here = identity()
    return f"host-{cache.digest(here.encode()).hex()}" if here else ""


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
