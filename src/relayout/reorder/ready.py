"""A process that has all that any reorder needs, for those who ask how much memory that is.

Most processes find their kernels in the cache on the disk and never load LLVM. One that meets a shape for the
first time does, and takes some 60 MB more. Whoever plans with the memory of a process counts that, unless
another process on the same machine has made the kernels before.
"""

from __future__ import annotations

import numpy as np

from relayout.forking import locked
from relayout.jit import cache
from relayout.layout.descriptor import MemoryDesc
from relayout.reorder.attributes import Attributes
from relayout.reorder.conversion import Conversion
from relayout.tensor import tensor

__all__ = ["kernels_folder", "make_ready"]


@locked
def make_ready(compiler: bool = True) -> None:
    """Load and initialise everything, whatever the caches hold.

    Without the ``compiler`` only what calls kernels, as for a process that finds all of them in the cache.

    Examples
    --------
    >>> make_ready()
    """
    x = tensor(np.zeros((1, 17, 4, 4), np.float32), "nchw")
    made = Conversion.settled(x.desc, MemoryDesc(x.desc.dims, "f16", "nChw16c"), Attributes(), 1, fixed=True)
    made(x, np.zeros(made.dst.nbytes, np.uint8))
    if not compiler:
        return
    from relayout.jit.compile import assemble, available
    from relayout.kernels.copy.module import module
    from relayout.reorder.native import Native
    from relayout.targets.machine import host

    if available():
        kernels = Native(
            MemoryDesc((2, 64, 28, 28), "f32", "nchw"), MemoryDesc((2, 64, 28, 28), "f16", "nChw16c")
        )
        text, _ = module(kernels._plans, host())
        assemble(text, host())


def kernels_folder() -> str:
    """Where this process finds kernels that others have made; empty: nowhere, and it makes its own.

    >>> isinstance(kernels_folder(), str)
    True
    """
    return cache.folder() or ""
