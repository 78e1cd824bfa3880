"""What it costs to share work among threads: a region, a wakeup, and what is left of a millisecond of work.

Contestants run the same kernels: Relayout's pool (:mod:`relayout.runtime.pool`) and, where it is installed,
GNU's OpenMP, whose threads PyTorch and oneDNN use. Three questions:

=================  ========================================================================================
region             how long a region takes that does nothing: 1000 of them, called by machine code
wakeup             how long it takes until all threads have begun: each part waits for all the others
speed-up           one thread's time / that of all, for work that takes one thread a millisecond: arithmetic
                   in registers, or a copy
=================  ========================================================================================

and four states in which they are asked:

=================  ========================================================================================
hot                regions follow each other
busy               the caller has done something else for a while, without sleeping; so its processor is awake
asleep             the caller has slept, too
after another      another contestant's region has just ended: its threads may still spin
=================  ========================================================================================

A speed-up compares two calls in the same state, one after the other: a processor that has slept is slow for
everybody, with one thread as well. Before a contestant's turn all other threads of the process come to rest
(:func:`relayout.bench.load.settle`).

Traps:

* A wakeup within a virtual machine takes one of the host as well, if the host has put the processor to sleep
  meanwhile. So it depends on the length of the pause, and differs by a factor of five from host to host.
* A thread that spins is not idle for the system: it puts other threads on other processors, and if there is
  none they wait for the end of a time slice. Hence the state *after another*.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from relayout.bench import peak
from relayout.bench.load import settle
from relayout.bench.measure import OURS, Spread, spread
from relayout.errors import LayoutError
from relayout.jit.abi import Kernel
from relayout.jit.compile import available, compiled
from relayout.runtime.driver import ROW, walk
from relayout.runtime.memcpy import memcpy_kernel
from relayout.tensor import address, aligned

__all__ = ["PAUSES", "Contestant", "Figure", "contestants", "figures"]

PAUSES = (0.1e-3, 1e-3, 3e-3, 10e-3, 100e-3)  # seconds
PAUSE = PAUSES[2]  # that of speed-ups
REGIONS = 1000
WARM = 3  # calls before one that is hot
WORK = 1e-3  # seconds of one thread
COPY = 1 << 26  # bytes that are copied at most
STEP = 64  # bytes between what parts store

KERNELS = """
define void @nothing(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
  ret void
}

; operands[0] counts up; wait until it is a multiple of parts, but not for ever.
define void @meet(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
entry:
  %number = atomicrmw add ptr %operands, i64 1 seq_cst
  %round = udiv i64 %number, %parts
  %following = add i64 %round, 1
  %all = mul i64 %following, %parts
  br label %look
look:
  %i = phi i64 [0, %entry], [%next, %wait]
  %here = load atomic i64, ptr %operands seq_cst, align 8
  %met = icmp sge i64 %here, %all
  br i1 %met, label %out, label %wait
wait:
  %next = add i64 %i, 1
  %again = icmp slt i64 %next, 100000000
  br i1 %again, label %look, label %out
out:
  ret void
}

; What a thread of OpenMP does, whose number and team it asks for: (kernel, source, target, operands, parts,
; the function that tells the number, that which tells the team).
define void @turn(ptr %job) {
entry:
  %source.at = getelementptr i64, ptr %job, i64 1
  %target.at = getelementptr i64, ptr %job, i64 2
  %operands.at = getelementptr i64, ptr %job, i64 3
  %parts.at = getelementptr i64, ptr %job, i64 4
  %number.at = getelementptr i64, ptr %job, i64 5
  %team.at = getelementptr i64, ptr %job, i64 6
  %kernel = load ptr, ptr %job
  %source = load ptr, ptr %source.at
  %target = load ptr, ptr %target.at
  %operands = load ptr, ptr %operands.at
  %parts = load i64, ptr %parts.at
  %number = load ptr, ptr %number.at
  %team = load ptr, ptr %team.at
  %own = call i32 %number()
  %many = call i32 %team()
  %first = zext i32 %own to i64
  %step = zext i32 %many to i64
  br label %head
head:
  %part = phi i64 [%first, %entry], [%next, %call]
  %more = icmp slt i64 %part, %parts
  br i1 %more, label %call, label %out
call:
  call void %kernel(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts)
  %next = add i64 %part, %step
  br label %head
out:
  ret void
}

; Regions of OpenMP, one after the other.
define void @regions(ptr %parallel, ptr %turn, ptr %job, i64 %threads, i64 %times) {
entry:
  %team = trunc i64 %threads to i32
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %head]
  call void %parallel(ptr %turn, ptr %job, i32 %team, i32 0)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %head, label %out
out:
  ret void
}
"""
NAMES = ("nothing", "meet", "turn", "regions")


class Work(NamedTuple):
    """A kernel and its arguments; numbers are addresses."""

    kernel: int
    source: int = 0
    target: int = 0
    operands: int = 0
    parts: int = 1
    keep: object = None


class Contestant(Protocol):
    """Somebody who shares work among threads."""

    name: str

    def call(self, work: Work, threads: int, times: int = 1) -> Callable[[], object]:
        """Regions, one after the other."""


class Ours:
    """Relayout's pool."""

    name = OURS

    def call(self, work: Work, threads: int, times: int = 1) -> Callable[[], object]:
        """Rows of the driver."""
        row = [*work[:5], threads]
        rows = np.array([row + [0] * (ROW - len(row))] * times, np.int64)

        def run() -> None:
            walk(address(rows), times, threads)

        return run


class OpenMP:
    """GNU's OpenMP: the library that the system or PyTorch brings."""

    name = "OpenMP"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def _function(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0

    def call(self, work: Work, threads: int, times: int = 1) -> Callable[[], object]:
        """What a compiler makes of ``#pragma omp parallel num_threads(threads)``."""
        numbers = [self._function(name) for name in ("omp_get_thread_num", "omp_get_num_threads")]
        job = np.array([*work[:5], *numbers], np.int64)
        made, parallel = _kernels(), self._function("GOMP_parallel")

        def run() -> None:
            made["regions"](parallel, made["turn"].address, address(job), threads, times)

        return run


class Figure(NamedTuple):
    """What one contestant was measured at in one state."""

    what: str
    """``region``, ``wakeup``, ``arithmetic`` or ``copy``."""
    state: str
    unit: str
    """``us``, or ``x``: the speed-up."""
    contestant: str
    spread: Spread


def contestants() -> list[Contestant]:
    """Who is installed here."""
    found: list[Contestant] = [Ours()]
    try:
        library = ctypes.CDLL("libgomp.so.1")  # the one that is loaded already, or the system's
    except OSError:
        return found
    return [*found, OpenMP(library)] if hasattr(library, "GOMP_parallel") else found


def figures(threads: int, rounds: int, who: Sequence[Contestant] | None = None) -> Iterator[Figure]:
    """Measure everything.

    Parameters
    ----------
    threads : int
        How many share a region: 2 or more.
    rounds : int
        How often each figure is taken.
    who : sequence of Contestant, optional
        Without it those who are installed.

    Raises
    ------
    LayoutError
        This host forbids machine code, or there is only one thread.

    Examples
    --------
    >>> found = {(figure.what, figure.state): figure for figure in figures(2, 1, [Ours()])}
    >>> found["wakeup", "busy 1 ms"].spread.median > 0
    True
    """
    if not available():
        raise LayoutError("threads are measured with machine code, which this host forbids")
    if threads < 2:
        raise LayoutError(f"a region of {threads} thread has nothing to share; measure with 2 or more")
    everybody = contestants() if who is None else who
    works = {"arithmetic": _arithmetic(threads), "copy": _copy(threads)}
    for one in everybody:
        settle()
        yield Figure("region", "hot", "us", one.name, _region(one, threads, rounds))
        meet = one.call(_meeting(threads), threads)
        for state, pause in _states():
            settle()
            yield Figure("wakeup", state, "us", one.name, spread(_wakeups(meet, pause, rounds)))
        others = [other for other in everybody if other is not one]
        for what, work in works.items():
            alone, shared = Ours().call(work, 1), one.call(work, threads)
            states: list[tuple[str, Callable[[], object]]] = [
                ("hot", partial(_often, shared)),
                (f"busy {PAUSE * 1e3:g} ms", partial(_busy, PAUSE)),
                (f"asleep {PAUSE * 1e3:g} ms", partial(time.sleep, PAUSE)),
                *((f"after {other.name}", other.call(work, threads)) for other in others),
            ]
            for state, before in states:
                settle()
                ratios = [_taken(alone, before) / _taken(shared, before) for _ in range(rounds)]
                yield Figure(what, state, "x", one.name, spread(ratios))


def _states() -> Iterator[tuple[str, Callable[[], object]]]:
    for name, pause in (("busy", _busy), ("asleep", time.sleep)):
        for seconds in PAUSES:
            yield f"{name} {seconds * 1e3:g} ms", partial(pause, seconds)


def _busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _often(action: Callable[[], object]) -> None:
    for _ in range(WARM):
        action()


def _taken(action: Callable[[], object], before: Callable[[], object]) -> float:
    before()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _region(one: Contestant, threads: int, rounds: int) -> Spread:
    """Microseconds; the call from Python is less than a hundredth."""
    many = one.call(Work(_kernels()["nothing"].address, parts=threads), threads, REGIONS)
    many()
    return spread([_taken(many, many) / REGIONS * 1e6 for _ in range(rounds)])


def _wakeups(meet: Callable[[], object], pause: Callable[[], object], rounds: int) -> list[float]:
    """Microseconds from the call to the meeting of all and back."""
    meet()
    return [_taken(meet, pause) * 1e6 for _ in range(rounds)]


@lru_cache(maxsize=1)
def _kernels() -> dict[str, Kernel]:
    return compiled(KERNELS, NAMES)


def _meeting(threads: int) -> Work:
    here = np.zeros(1, np.int64)
    return Work(_kernels()["meet"].address, 0, 0, address(here), threads, here)


def _arithmetic(threads: int) -> Work:
    turns, target = np.array([10_000], np.int64), aligned(STEP * threads)
    work = Work(peak.kernel().address, 0, address(target), address(turns), threads, (turns, target))
    return _lasting(work, turns, 1 << 40)


def _copy(threads: int) -> Work:
    size, source, target = np.array([1 << 22], np.int64), aligned(COPY), aligned(COPY)
    source[:], target[:] = 1, 2
    kept = size, source, target
    return _lasting(
        Work(memcpy_kernel(), address(source), address(target), address(size), threads, kept), size, COPY
    )


def _lasting(work: Work, size: NDArray[np.int64], most: int) -> Work:
    """Set the size of work so that one thread takes :data:`WORK` for all of its parts."""
    alone = Ours().call(work, 1)
    for _ in range(3):
        fastest = min(_taken(alone, alone) for _ in range(10))
        size[0] = min(most, round(int(size[0]) * WORK / fastest))
    return work
