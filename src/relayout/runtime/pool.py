"""Native threads that share one kernel's parts; they sleep between regions.

Python's own thread pool hands work over through queues, locks and the interpreter: tens of microseconds. A
kernel that moves 1 MiB takes as long. Here the threads run nothing but machine code of their own; they are
made with ``pthread_create``, have no interpreter state, never want the interpreter's lock, and end without
its knowing of them. A region costs one atomic operation a part and a few for the region.

A region::

    run(kernel, ..., parts=5, threads=3)

    caller   owns | opens | part 0 | part 2 ...... | none left: closes | waits .. | gives back
    worker 1           enters | part 1 | part 4 ........................ | leaves
    worker 2                enters | part 3 ... | none left: closes, leaves

What the threads do there, and the traps of it, is in :mod:`.pool_text`; here they are made.

* Signals are blocked in workers, so that Ctrl-C reaches the thread that Python expects it in.
* After a fork the child has this memory, and no workers: it takes a new block, and never looks at the old
  one, whose mutex may be held for good. Blocks are never freed, nor is the code; workers sleep in both when
  the process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from relayout.jit import compile as compiler
from relayout.processors import MOST
from relayout.runtime.pool_text import FIELDS, SIZE, SYMBOLS, ir
from relayout.targets.machine import host

__all__ = ["Pool", "available"]

FAULTS = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
"""Signals that a thread sends itself by what it does; blocking them would hide where it went wrong."""


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether this host has POSIX threads and lets a process make machine code."""
    if sys.platform == "win32" or not compiler.available():
        return False
    process = ctypes.CDLL(None)
    return all(hasattr(process, name) for name in SYMBOLS)


class _Code(NamedTuple):
    """The functions of the module, and what keeps them in memory."""

    engine: Any
    block: Callable[[int], int | None]
    hire: Callable[[int], int]
    region: Callable[[int, int, int, int, int, int, int], None]


@lru_cache(maxsize=1)
def _code() -> _Code:
    text = ir(host().triple, _asks())
    engine = compiler.loaded(text, level=0)  # a region takes as long as with more
    address, number = ctypes.c_void_p, ctypes.c_int64

    def entry(name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(compiler.address_of(engine, name))

    return _Code(
        engine,
        entry("pool_block", address, number),
        entry("pool_hire", ctypes.c_int, address),
        # numbers too are addresses here: ctypes takes twice as long over an int64
        entry("pool_region", None, *[address] * 7),
    )


class Pool:
    """A block and its workers.

    Parameters
    ----------
    processors : int
        How many threads can run at once; where more take part, none of them spins.

    Attributes
    ----------
    block : int
        The address of the block.
    region : callable
        ``region(block, kernel, source, target, operands, parts, threads)``: one region, all of them integers.
    """

    def __init__(self, processors: int) -> None:
        code = _code()
        block = code.block(processors)
        if block is None:
            raise MemoryError(f"no {SIZE} bytes for a thread pool")
        self.block = block
        self.region = code.region
        self._threads = 1
        self._asleep = ctypes.c_int64.from_address(block + FIELDS["SLEEPERS"])

    def grow(self, threads: int) -> int:
        """Make workers until regions of so many threads can be served; return what can be served now.

        Past :data:`MOST`, or where the system refuses another thread, nothing is left to be done: every
        number is served, by those that are there.
        """
        hire = _code().hire
        with _deaf():
            while self._threads < min(threads, MOST):
                if hire(self.block) != 0:
                    return sys.maxsize
                self._threads += 1
        return self._threads if self._threads < MOST else sys.maxsize

    @property
    def awake(self) -> bool:
        """Whether no worker sleeps, so that the next region begins at once."""
        return self._threads > 1 and not self._asleep.value


def _asks() -> bool:
    """Whether the system tells where a thread runs, and takes orders where another one is to."""
    process = ctypes.CDLL(None)
    names = "sched_getcpu", "sched_getaffinity", "pthread_setaffinity_np"
    return all(hasattr(process, name) for name in names)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Block signals in this thread, for the sake of those that it makes: they inherit what is blocked."""
    faults = {getattr(signal, name) for name in FAULTS if hasattr(signal, name)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
