"""What the same conversion takes on this machine: ``memcpy`` of as many bytes, and Relayout.

Logs come from other machines too, so these times are to be compared with each other, and with the log's only
if it was written here.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.logs.events import Event
from relayout.reorder.conversion import Conversion
from relayout.reorder.predict import copy_seconds
from relayout.tensor import Tensor

__all__ = ["Measured", "measured"]

LARGEST = 1 << 31  # bytes of both sides; what is larger is not measured
ENOUGH = 0.1  # seconds of measuring
LEAST, ROUNDS = 5, 200  # calls that are measured: at least, and at most


class Measured(NamedTuple):
    """Seconds of one conversion."""

    memcpy: float
    relayout: float


def measured(event: Event, threads: int | None = None) -> Measured | None:
    """Measure a conversion; None if the log does not say all of it, or it is too large.

    >>> from relayout.logs.sides import tagged
    >>> src, dst = (tagged(tag, "f32", (1, 16, 8, 8)) for tag in ("abcd", "aBcd16b"))
    >>> found = measured(Event("reorder", "", src, dst, (1, 16, 8, 8), 0.0))
    >>> found.memcpy > 0 and found.relayout > 0
    True
    """
    src, dst = event.src.desc, event.dst.desc
    if src is None or dst is None or not src.dims or 0 in src.dims:
        return None
    if src.required_bytes + dst.required_bytes > LARGEST:
        return None
    try:
        return _run(src, dst, threads)
    except LayoutError:  # data types between which nothing converts
        return None


def _run(src: MemoryDesc, dst: MemoryDesc, threads: int | None) -> Measured:
    """Both, after the first calls, which compile and choose among kernels."""
    plan = Conversion(src, dst, axes="position", threads=threads)
    source = Tensor(src, np.ones(src.required_bytes, np.uint8))
    out = Tensor(dst, np.zeros(dst.required_bytes, np.uint8))
    plan.tune()
    fast = plan.hastened(threads)
    given = source.buffer, out.buffer
    taken: list[float] = []
    end = time.perf_counter() + ENOUGH
    while len(taken) < LEAST or (time.perf_counter() < end and len(taken) < ROUNDS):
        start = time.perf_counter()
        if fast is None or not fast(*given):
            plan(source, out, threads)
        taken.append(time.perf_counter() - start)
    assert src.layout is not None
    read = -(-src.layout.size * src.dtype.bits // 8)
    copied = copy_seconds(read, dst.nbytes, threads)
    return Measured(copied, sorted(taken)[len(taken) // 4])
