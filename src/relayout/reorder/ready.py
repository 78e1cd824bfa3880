"""A process that has all that any reorder needs, for those who ask how much memory that is.

Most processes find their kernels in the cache on the disk and never load LLVM. One that meets a shape for the
first time does, and takes some 60 MB more. Whoever plans with the memory of a process counts that.
"""

from __future__ import annotations

import numpy as np

from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.reorder.plan import reorder
from relayout.tensor import tensor

__all__ = ["make_ready"]


@locked
def make_ready() -> None:
    """Load and initialise everything, the compiler too, whatever the caches hold.

    Examples
    --------
    >>> make_ready()
    """
    from relayout.jit.compile import assemble, available
    from relayout.kernels.copy.module import module
    from relayout.reorder.native import Native
    from relayout.targets.machine import host

    reorder(tensor(np.zeros((1, 17, 4, 4), np.float32), "nchw"), "nChw16c", dtype="f16", threads=1)
    if available():
        made = Native(
            MemoryDesc((2, 64, 28, 28), "f32", "nchw"), MemoryDesc((2, 64, 28, 28), "f16", "nChw16c")
        )
        text, _ = module(made._plans, host())
        assemble(text, host())
