"""What LLVM has said about this host in an earlier process, so that it need not be loaded to say it again.

Three answers are needed before a kernel can be looked for on disk: what the processor is called, what it can
do, and which LLVM would make the kernel, since all of it is part of a kernel's name. LLVM takes longer to
import than everything else up to the first call. So the answers are kept beside the kernels, under the same
rules (:mod:`relayout.jit.cache`), by the name of what they depend on (:mod:`relayout.jit.identity`)::

    what the processor says                             --.
                                                           >-- triple, processor, features, versions
    llvmlite's library: its place, number, size, times  --'

Another processor has other facts, another llvmlite another library file, and neither finds the answers of the
first. Only what LLVM has said in a process that can make machine code is kept, so whoever finds it need not
ask whether code can be made here, either: :func:`relayout.jit.identity.facts` has just made some.

Traps:

* With ``RELAYOUT_CPU`` nothing is remembered: the answers are about the processor that there is.
* llvmlite may be whole and unable to load: libraries that it needs are gone. Kernels from disk run, and
  making another one says what is missing.
"""

from __future__ import annotations

import os
from functools import lru_cache

from relayout.forking import locked
from relayout.jit import cache
from relayout.jit.identity import identity

__all__ = ["Answers", "keep", "recalled"]

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
