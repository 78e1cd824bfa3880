"""Whether there is machine code on this host at all, and why not.

llvmlite may be missing, or its library be broken, or the host may forbid a process to make code. None of that
is an error: NumPy does the work then, more slowly, and one warning says why.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

from relayout.errors import Unsupported
from relayout.forking import locked

__all__ = ["missing", "supported"]


@lru_cache(maxsize=1)
@locked
def missing() -> str:
    """What machine code lacks here, and what to do about it; empty: nothing.

    Raises
    ------
    LayoutError
        ``RELAYOUT_CPU`` names no processor.
    """
    from relayout.jit.remembered import recalled

    if recalled():  # an earlier process has found all to be as it should be
        return ""
    try:
        from relayout.targets.machine import llvm

        llvm()
    except Unsupported as error:
        return str(error)
    from relayout.jit.compile import available

    return "" if available() else "this host forbids making machine code"


@lru_cache(maxsize=1)
def supported() -> bool:
    """Whether there is machine code; where there is none, the first to ask makes the warning."""
    why = missing()
    if why:
        warnings.warn(
            f"reorders and primitives run in NumPy, which is slower: {why}", RuntimeWarning, stacklevel=4
        )
    return not why
