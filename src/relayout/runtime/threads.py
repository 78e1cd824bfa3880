"""Sharing one call among threads.

A kernel does share number ``part`` of ``parts`` equal shares of its work::

    void kernel(ptr source, ptr destination, ptr operands, i64 part, i64 parts)

so a parallel region is nothing but the calls (0, parts), (1, parts) ... (parts - 1, parts), in any order and
at the same time. :func:`run` hands them out one by one to whichever thread is free, which is why there may be
more parts than threads, and should be where the work is long: processors are shared with others, and equal
shares would all wait for the slowest thread.

>>> import ctypes
>>> from relayout.runtime.memcpy import memcpy_kernel
>>> source, target = ctypes.create_string_buffer(b"relayout"), ctypes.create_string_buffer(9)
>>> size = ctypes.c_int64(9)
>>> run(memcpy_kernel(), *map(ctypes.addressof, (source, target, size)), parts=4, threads=2)
>>> target.value
b'relayout'

The threads are the native ones of :mod:`relayout.runtime.pool`: a region costs a few microseconds, and the
interpreter's lock is free while it lasts. Where there can be none (Windows, hosts that forbid machine code)
Python's threads do the same work for tens of microseconds; :func:`share` always uses these, for work that is
a Python function.

``RELAYOUT_THREADS`` names how many threads may work where nobody says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from relayout.forking import lock, locked
from relayout.jit.engines import KERNEL
from relayout.processors import count, processors
from relayout.runtime.limits import SPIN

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from relayout.runtime.pool import Pool

__all__ = ["STATE", "State", "busy", "count", "ended", "native", "run", "share"]


def busy() -> bool:
    """Whether workers are awake, or a call that might have been shared has ended a moment ago.

    Waking them takes 20 microseconds and more, which does not pay for a single small tensor. In a sequence of
    such calls it is paid once.
    """
    return (_pool is not None and _pool.awake) or perf_counter() - _ended < SPIN


def ended() -> None:
    """Note that a call that might have been shared has ended, which was not."""
    global _ended
    _ended = perf_counter()


class State(ctypes.Structure):
    """What machine code that was made long ago must ask anew each time, at an address that stays.

    ``ready``: a native region of up to so many threads needs no preparation. ``block`` and ``region``: what
    :func:`native` returns, where anything is ready. ``process``: 1, and 1 more after each fork; calls that
    threads of a parent were in are not under way in the child.
    """

    _fields_ = tuple((name, ctypes.c_int64) for name in ("ready", "block", "region", "process"))


STATE = State(process=1)
"""That of this process."""

_ended = 0.0
_pool: Pool | None = None
_executor: ThreadPoolExecutor | None = None
_workers = 0  # of the executor


def run(kernel: int, source: int, target: int, operands: int, parts: int, threads: int) -> None:
    """Call a kernel for all of its parts, on several threads; return when all are done.

    Parameters
    ----------
    kernel : int
        Its address: ``compiled(...)[name].address``.
    source, target, operands : int
        The addresses that every call is given; 0 where the kernel wants none.
    parts : int
        Each of 0 .. parts - 1 is called exactly once. Two to four a thread even out what other processes do.
    threads : int
        At most so many work, this one among them. Fewer do while another region is under way: the threads
        belong to one region at a time, and whoever comes second does its parts alone, at once. They are made
        when they are first needed, and stay; no more than :data:`relayout.processors.MOST`.
    """
    if threads > _ready:
        _prepare(threads)
    _region(_block, kernel, source, target, operands, parts, threads)


def native(threads: int) -> tuple[int, int]:
    """For machine code that opens regions itself: the pool's memory, and the address of its function.

    The function is ``void region(memory, kernel, source, target, operands, parts, threads)``. (0, 0): there
    is no native pool.
    """
    if threads > _ready:
        _prepare(threads)
    return (0, 0) if _pool is None else (STATE.block, STATE.region)


def _in_python(
    block: int, kernel: int, source: int, target: int, operands: int, parts: int, threads: int
) -> None:
    """A region on Python's threads; the first argument is for others."""
    call = KERNEL(kernel)
    _spread(lambda part: call(source, target, operands, part, parts), parts, min(threads, parts))


_region: Callable[[int, int, int, int, int, int, int], None] = _in_python
_block = 0  # the pool's memory
_ready = 0  # a region of up to so many threads needs no preparation


def _prepare(threads: int) -> None:
    """Make or enlarge the pool; its readiness is announced last, since nobody else takes the lock."""
    global _pool, _region, _block, _ready
    with lock():
        if _pool is None and (made := _made()) is not None:
            _pool, _region, _block = made, made.region, made.block
            entry: Any = made.region
            STATE.block, STATE.region = made.block, ctypes.cast(entry, ctypes.c_void_p).value or 0
        _ready = sys.maxsize if _pool is None else _pool.grow(threads)
        STATE.ready = 0 if _pool is None else _ready  # last: to make a thread shows the others to everybody


@locked
def _made() -> Pool | None:
    """A native pool, or None where there can be none."""
    from relayout.jit.support import missing

    if missing():
        return None
    from relayout.runtime.pool import Pool, available

    return Pool(processors()) if available() else None


def share(work: Callable[[int, int], object], extent: int, threads: int, unit: int = 1) -> None:
    """Call ``work(start, stop)`` for ranges that cover 0 .. extent, one a thread, cut at multiples of unit.

    >>> share(lambda start, stop: print(start, stop), 100, threads=1)
    0 100
    """
    units = -(-extent // unit)
    parts = min(threads, units)
    if parts <= 1:
        work(0, extent)
        return
    cuts = [min(extent, units * k // parts * unit) for k in range(parts + 1)]
    _spread(lambda part: work(cuts[part], cuts[part + 1]), parts, parts)


def _spread(work: Callable[[int], object], parts: int, threads: int) -> None:
    """Call ``work(part)`` for all parts on Python's threads; an error is raised when all have ended.

    Whoever is free takes the next part. Nobody waits for a thread, only for parts that have been taken, so
    threads that are busy elsewhere, or come late, hold nothing up.
    """
    left = list(reversed(range(parts)))
    done = threading.Semaphore(0)
    errors: list[BaseException] = []

    def turn() -> None:
        while True:
            try:
                part = left.pop()
            except IndexError:
                return
            try:
                work(part)
            except BaseException as error:
                errors.append(error)
            done.release()

    if threads > 1:
        with contextlib.suppress(RuntimeError):  # the interpreter shuts down, or has no more threads
            helpers = _helpers(threads)
            for _ in range(threads - 1):
                helpers.submit(turn)
    turn()
    for _ in range(parts):
        done.acquire()
    if errors:
        raise errors[0]


def _helpers(threads: int) -> ThreadPoolExecutor:
    global _executor, _workers
    with lock():
        from concurrent.futures import ThreadPoolExecutor  # takes long to load, and few need it

        if _executor is None or _workers < threads:
            _executor, _workers = ThreadPoolExecutor(threads, thread_name_prefix="relayout"), threads
        return _executor


def _forget() -> None:
    """A child process has the memory of its parent's threads, but not the threads: it makes its own."""
    global _pool, _ready, _executor
    _pool, _ready, _executor = None, 0, None
    STATE.ready = STATE.block = STATE.region = 0
    STATE.process += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
