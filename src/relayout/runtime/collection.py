"""The garbage collector, which looks for cycles, pauses while a network is planned and compiled.

Planning makes many small objects in a short time, so the collector runs through everything that a process
has, dynamo's guards and all of PyTorch's modules among it, once or twice for each network: 0.2 seconds each
time. What it finds there is next to nothing, since what is compiled has hardly any cycles. They are found
later, when it runs anyway.

As soon as the pause ends, a collection would be due: of everything young, which is all that was made
meanwhile. Most of that stays, so it goes among the old objects at once, by moving everything to the permanent
generation and back, which takes no time. A full collection looks at all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused"]


@contextmanager
def paused() -> Iterator[None]:
    """No collection begins by itself within, unless another thread asks for it.

    >>> with paused():
    ...     gc.isenabled()
    False
    """
    if not gc.isenabled():  # who has switched it off switches it on
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not _frozen():  # it would come back, too
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def _frozen() -> bool:
    """Whether others have frozen anything. It is counted, which takes 20 ms for a million objects."""
    return gc.get_freeze_count() > 0
