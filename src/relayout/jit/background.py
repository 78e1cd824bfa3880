"""Modules that are compiled in a thread of its own, while the next ones are written.

To make a kernel is to write its text, in Python, and to make machine code of it, in LLVM, which gives the
interpreter's lock away. Who needs many kernels before the first of them is called can do both at once::

    with meanwhile():           writes   kernel 1 | kernel 2 | kernel 3 | kernel 4
        for step in steps:      LLVM                kernel 1  | kernel 2  | kernel 3  | kernel 4
            ...

What is found on disk is not put off. A kernel that is not ready yet has a name and no address: who asks for
the address, or calls it, waits for it. What else needs the code, such as a record of it on disk, is done at
the end (:func:`afterwards`).

LLVM takes longer than Python does. Whoever has nothing left to write compiles, too, instead of waiting
(:mod:`.unlocked`): two threads from then on, and no third one before, which would only take processors from
the one that writes.

Traps:

* Who gives up (an error, ``KeyboardInterrupt``) leaves primitives behind that have kernels whose code nobody
  has made. Whoever asks for one later makes it then.
* A child that is forked meanwhile would have LLVM half done. So the lock that a fork waits for
  (:mod:`relayout.forking`) is held until nothing is left to be compiled. The thread itself takes no such
  lock: who holds it waits for that thread.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from relayout.forking import lock
from relayout.processors import processors

if TYPE_CHECKING:
    from relayout.jit.abi import Kernel
    from relayout.jit.engines import Engine

__all__ = ["Pending", "Queue", "afterwards", "meanwhile", "queue", "ready"]


MOST = 2
"""Threads that compile at once: that one, and at the end who waits for it."""

SWITCH = 2e-4
"""Seconds after which the interpreter is handed to another thread that wants it, while kernels are made.

Usually that takes 5 milliseconds, which the thread that asks LLVM would wait behind each of its calls: three
times for a module whose code takes 10."""


class Pending:
    """A kernel whose code is being made; see :class:`relayout.jit.abi.Kernel`."""

    __slots__ = ("_job", "_kernel", "name")

    def __init__(self, job: _Job, name: str) -> None:
        self._job, self.name = job, name
        self._kernel: Kernel | None = None

    def ready(self) -> Kernel:
        """The kernel, waited for."""
        if self._kernel is None:
            with lock():
                from relayout.jit.engines import kernel

                self._kernel = kernel(self._job.engine(), self.name)
        return self._kernel

    @property
    def address(self) -> int:
        """Where the code is."""
        return self.ready().address

    @property
    def engine(self) -> Engine:
        """What owns the code."""
        return self.ready().engine

    def __call__(self, source: int, target: int, operands: int, part: int, parts: int, /) -> None:
        """Do one share."""
        self.ready()(source, target, operands, part, parts)


class _Job:
    """A module whose code is wanted."""

    def __init__(self, make: Callable[[], Any], load: Callable[[Any], Engine]) -> None:
        self._make, self._load = make, load
        self._done = threading.Event()
        self._code: Any = None
        self._error: BaseException | None = None
        self._engine: Engine | None = None
        self.left = False  # whether the thread will not make it

    def work(self) -> None:
        """Make the code."""
        try:
            self._code = self._make()
        except BaseException as error:  # raised where somebody waits for it
            self._error = error
        del self._make  # and what it refers to
        self._done.set()

    def engine(self) -> Engine:
        """The engine, waited for."""
        if self._engine is None:
            if self.left and not self._done.is_set():  # under the lock, so nobody else does
                self._code = self._make()
                self._done.set()
            self._done.wait()
            if self._error is not None:
                raise self._error
            assert self._code is not None
            self._engine, self._code = self._load(self._code), None
        return self._engine


class Queue:
    """The modules that are to be compiled, and the thread that does it."""

    def __init__(self) -> None:
        self._known: dict[str, _Job] = {}
        self._left: deque[_Job | None] = deque()
        self._more = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self.afterwards: list[Callable[[], object]] = []
        self.loaded = 0  # modules of Python when source files were found to be those that were imported

    def kernels(
        self, key: str, names: Sequence[str], make: Callable[[], Any], load: Callable[[Any], Engine]
    ) -> list[Pending]:
        """The kernels of a module.

        Parameters
        ----------
        key : str
            What tells modules apart: one of a name is compiled once.
        names : sequence of str
            Its kernels.
        make : callable
            Makes the code. It is called in the thread, or by who closes the queue.
        load : callable
            Makes code ready to run. It is called by those who wait, under the lock.
        """
        job = self._known.get(key)
        if job is None:
            job = self._known[key] = _Job(make, load)
            self._left.append(job)
            self._more.release()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="relayout compiles", daemon=True)
                self._thread.start()
        return [Pending(job, name) for name in names]

    def _work(self) -> None:
        while self._one():
            pass

    def _one(self, waits: bool = True) -> bool:
        """Compile the next module, waited for or if there is one; False: there was none."""
        if not self._more.acquire(waits):
            return False
        job = self._left.popleft()
        if job is not None and not job.left:
            job.work()
        return job is not None

    def close(self, give_up: bool = False) -> None:
        """Compile what is left, beside the thread; or leave it to those who ask for it."""
        if give_up:
            for job in self._known.values():
                job.left = True
        elif processors() > 1:
            while self._one(waits=False):
                pass
        if self._thread is not None:
            self._left.append(None)
            self._more.release()
            self._thread.join()
        if not give_up:
            for job in self._known.values():
                job.engine()
            for what in self.afterwards:
                what()


_queue: Queue | None = None


def queue() -> Queue | None:
    """Where modules go now; None: whoever wants one waits for it. To be asked under the lock."""
    return _queue


def afterwards(what: Callable[[], object]) -> None:
    """Call a function when all kernels are ready, at once if none are put off; to be asked under the lock."""
    if _queue is None:
        what()
    else:
        _queue.afterwards.append(what)


def ready(kernel: Kernel) -> Kernel:
    """A kernel itself, waited for where it was put off."""
    return kernel.ready() if isinstance(kernel, Pending) else kernel


@contextmanager
def meanwhile() -> Iterator[None]:
    """Let modules that are wanted within be compiled in the background; all are ready at the end."""
    global _queue
    with lock():
        if _queue is not None:
            yield
            return
        made = _queue = Queue()
        done, usual = False, sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH, usual))
        try:
            yield
            done = True
        finally:
            _queue = None
            made.close(give_up=not done)
            sys.setswitchinterval(usual)
