"""A whole network without Python: one function calls kernel after kernel.

To call a kernel from Python takes some microseconds: addresses are looked up, numbers handed to ctypes, the
interpreter's lock given away and waited for. A network of 60 layers that do 100 microseconds of work each
would spend a twentieth of its time so, and more where other Python threads want the lock. So what is to be
called is written down beforehand, as rows of eight numbers::

    kernel   source   target   operands   parts   threads   0   0      all addresses, or counts
    kernel   source   target   operands   parts   threads   0   0
    ...

and :func:`walk` goes over them in machine code: a row with several parts and threads is a region of the
thread pool (:mod:`relayout.runtime.pool`), any other one is done by this thread, part after part.

>>> import ctypes
>>> import numpy as np
>>> from relayout.runtime.memcpy import memcpy_kernel
>>> one, two, three = (np.array(values) for values in ([7, 8], [0, 0], [0, 0]))
>>> size = np.array([16])
>>> a, b, c, n = (array.ctypes.data for array in (one, two, three, size))
>>> rows = np.array([[memcpy_kernel(), a, b, n, 1, 1, 0, 0], [memcpy_kernel(), b, c, n, 4, 2, 0, 0]])
>>> walk(rows.ctypes.data, 2, threads=2)
>>> three
array([7, 8])

Asked to, it writes down the time before the first row and after each, by the clock of the operating system:
counters of cycles are not readable by programs on every processor, and count something else on each.

Where there is no pool (Windows, hosts that forbid machine code) Python goes over the rows.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.forking import lock
from relayout.jit.engines import KERNEL
from relayout.jit.support import missing
from relayout.runtime import threads as sharing

__all__ = ["FIELDS", "ROW", "ir", "walk"]

FIELDS = ("kernel", "source", "target", "operands", "parts", "threads")
"""What the numbers of a row are; two more fill a cache line."""

ROW = 8  # numbers, of 8 bytes each
WORD = 8  # bytes
STAMP = 16  # bytes of a time: seconds and nanoseconds


def walk(rows: int, count: int, threads: int, stamps: NDArray[np.int64] | None = None) -> None:
    """Call the kernels of some rows, one row after the other.

    Parameters
    ----------
    rows : int
        The address of the first row.
    count : int
        How many there are.
    threads : int
        The most threads that any of the rows asks for.
    stamps : ndarray of int64, optional
        Of shape (count + 1, 2): the time before the first row and behind each, as seconds and nanoseconds of
        a clock that only goes forward.
    """
    native = _native()
    if native is None:
        _in_python(rows, count, stamps)
        return
    block, region = sharing.native(threads) if threads > 1 else (0, 0)
    native(block, region, rows, count, 0 if stamps is None else stamps.ctypes.data)


@lru_cache(maxsize=1)
def _native() -> Callable[[int, int, int, int, int], None] | None:
    """The compiled function, or None where there is no pool either."""
    with lock():
        if missing():
            return None
        from relayout.jit.compile import address_of, loaded
        from relayout.runtime import pool

        if not pool.available() or not hasattr(ctypes.CDLL(None), "clock_gettime"):
            return None
        engine = loaded(ir(), level=0)
        function: Any = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(address_of(engine, "walk"))
        function.engine = engine
        return function  # type: ignore[no-any-return]


def _in_python(rows: int, count: int, stamps: NDArray[np.int64] | None) -> None:
    """The same, slowly."""
    table = np.ctypeslib.as_array((ctypes.c_int64 * (ROW * count)).from_address(rows)).reshape(count, ROW)
    _stamp(stamps, 0)
    for k, row in enumerate(table.tolist()):
        kernel, source, target, operands, parts, many, *_ = row
        if many > 1 and parts > 1:
            sharing.run(kernel, source, target, operands, parts, many)
        else:
            call = KERNEL(kernel)
            for part in range(parts):
                call(source, target, operands, part, parts)
        _stamp(stamps, k + 1)


def _stamp(stamps: NDArray[np.int64] | None, k: int) -> None:
    if stamps is not None:
        stamps[k] = divmod(time.monotonic_ns(), 10**9)


def ir() -> str:
    """The text of the function."""
    loads = "\n".join(
        f"  %{name}.at = getelementptr i8, ptr %row, i64 {WORD * k}\n"
        f"  %{name} = load {'i64' if name in ('parts', 'threads') else 'ptr'}, ptr %{name}.at"
        for k, name in enumerate(FIELDS)
    )
    return f"""
declare i32 @clock_gettime(i32, ptr)

define void @walk(ptr %pool, ptr %region, ptr %rows, i64 %count, ptr %stamps) {{
entry:
  %timed = icmp ne ptr %stamps, null
  %alone = icmp eq ptr %region, null
  br i1 %timed, label %begin, label %head
begin:
  %e1 = call i32 @clock_gettime(i32 {getattr(time, "CLOCK_MONOTONIC", 1)}, ptr %stamps)
  br label %head
head:
  %i = phi i64 [0, %entry], [0, %begin], [%next, %done], [%next, %stamp]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %fetch, label %out
fetch:
  %row.offset = mul i64 %i, {WORD * ROW}
  %row = getelementptr i8, ptr %rows, i64 %row.offset
{loads}
  %several = icmp sgt i64 %threads, 1
  %one = icmp sle i64 %parts, 1
  %not = or i1 %one, %alone
  %yes = xor i1 %not, true
  %shared = and i1 %several, %yes
  br i1 %shared, label %share, label %parts.head
share:
  call void %region(
    ptr %pool, ptr %kernel, ptr %source, ptr %target, ptr %operands, i64 %parts, i64 %threads)
  br label %done
parts.head:
  %part = phi i64 [0, %fetch], [%part.next, %call]
  %part.more = icmp slt i64 %part, %parts
  br i1 %part.more, label %call, label %done
call:
  call void %kernel(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts)
  %part.next = add i64 %part, 1
  br label %parts.head
done:
  %next = add i64 %i, 1
  br i1 %timed, label %stamp, label %head
stamp:
  %stamp.offset = mul i64 %next, {STAMP}
  %stamp.at = getelementptr i8, ptr %stamps, i64 %stamp.offset
  %e2 = call i32 @clock_gettime(i32 {getattr(time, "CLOCK_MONOTONIC", 1)}, ptr %stamp.at)
  br label %head
out:
  ret void
}}
"""
