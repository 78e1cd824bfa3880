"""How busy others keep the machine: whether figures of several threads can be trusted.

OpenMP gives every thread an equal share, and whoever is done waits by spinning. If another process keeps one
of two cores busy, both threads end up on the other: one spins through its time slice while the second waits
for it. A reorder of 0.8 ms then takes oneDNN and PyTorch 8 ms, and the median does not show that anything was
wrong. A pool whose threads fetch small parts suffers less, so such a run would make Relayout look good for no
reason.

The other threads of this process may be such a burden, too: :func:`settle` waits for them, and says whether
they rest. Where contestants are processes (:mod:`.contest`), a case in which one does not is disturbed.

Hence others' use of the processors is measured along with every case (:class:`Load`), and a case is
*disturbed* where what others use and its own threads don't fit the cores together.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Load", "disturbed", "settle", "spent"]

WINDOW = 1.0  # seconds that are looked back at least: the system counts in hundredths
TOLERATED = 0.25  # cores
REST = 5e-3  # seconds that everybody has to come to rest
RESTLESS = 0.3  # seconds after which threads that still run are left alone: OpenMP's may spin for 0.2


class _Reading(NamedTuple):
    """Seconds since some beginning: by the clock, of work on all cores, of our own work."""

    clock: float
    busy: float
    own: float


class Load:
    """Asked now and then, it answers how many cores others have used of late.

    Parameters
    ----------
    ours : callable, optional
        Seconds of work of other processes that are none of the others: those that are measured.

    Examples
    --------
    >>> load = Load()
    >>> others = load.others()
    >>> others is None or others >= 0
    True
    """

    def __init__(self, ours: Callable[[], float] = lambda: 0.0) -> None:
        self._ours = ours
        first = _reading(ours())
        self._seen = deque([] if first is None else [first])

    def others(self) -> float | None:
        """Cores that other processes used, on average of the last second or since it was asked before.

        The longer of the two; None where the system does not tell.
        """
        now = _reading(self._ours())
        if now is None or not self._seen:
            return None
        then = self._seen[0]
        self._seen.append(now)
        while len(self._seen) > 2 and now.clock - self._seen[1].clock >= WINDOW:
            self._seen.popleft()
        passed = now.clock - then.clock
        return max(0.0, (now.busy - then.busy - (now.own - then.own)) / max(passed, 1e-9))


def disturbed(threads: int, others: float | None) -> bool:
    """Whether so many threads and what others use are more than there are cores.

    >>> disturbed(os.cpu_count(), 1.0), disturbed(os.cpu_count(), 0.1), disturbed(1, None)
    (True, False, False)
    """
    return others is not None and threads + others > (os.cpu_count() or 1) + TOLERATED


def settle() -> bool:
    """Wait until all other threads of this process sleep, and whether they do.

    Thread pools spin when they are done: GNU's OpenMP for 3 to 13 ms, LLVM's and Intel's for 200. Who is
    timed next would share the processors with them. It lasts at least :data:`REST`, so that nobody comes
    straight from work, and at most :data:`RESTLESS`.
    """
    end = time.perf_counter() + RESTLESS
    time.sleep(REST)
    while _running() and time.perf_counter() < end:
        time.sleep(REST / 5)
    return not _running()


def _running() -> bool:
    """Whether another thread of this process runs or is about to; False where the system does not tell."""
    own = str(threading.get_native_id())
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has just ended
            text = (task / "stat").read_text(encoding="utf-8", errors="replace")
            if task.name != own and text.rpartition(")")[2].split()[0] == "R":
                return True
    return False


def spent(process: int) -> float:
    """Seconds of work of a process so far, of all its threads; 0 where the system does not tell.

    >>> spent(os.getpid()) >= 0.0
    True
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def _reading(ours: float) -> _Reading | None:
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[1:9]
        user, nice, system, _idle, _waiting, irq, softirq, stolen = map(int, words)
    except (OSError, ValueError):
        return None
    busy = (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")
    return _Reading(time.perf_counter(), busy, time.process_time() + ours)
