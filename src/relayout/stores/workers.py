"""A plan on threads of this process.

Each worker takes the next task and does all of it: reads, decodes, converts, encodes, writes. Everything that
takes long lets other threads run meanwhile (the system's reads and writes, the codecs, the kernels), so with
one worker more than there are processors, somebody computes while others wait for the disk. A worker holds
one task, and the plan has counted what that takes, so memory is bound by the number of workers: there is no
queue that could fill.

The calling thread records finished tasks, in groups, since ``fsync`` waits for the disk: from time to time,
or when half of :data:`BEHIND` bytes are written that may not be on the disk. Workers wait for it at all of
them. It also has the kernels made before workers begin, which would all ask for the same ones.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from relayout.stores.buffers import Pool, reused

if TYPE_CHECKING:
    from relayout.stores.run import Run
    from relayout.stores.task import Done

__all__ = ["run"]

BEHIND: Final = 1 << 30
"""Bytes written that are not known to be on the disk yet, from which on workers wait."""

INTERVAL: Final = 1.0
"""Seconds between two lines in the journal, at least, unless there is nothing else to do."""

SHARE: Final = 10
"""How many times as long as bringing files to the disk takes we go on without doing so again."""


def run(
    run: Run,
    *,
    progress: Callable[[Done], None] | None = None,
    threads: int | None = None,
) -> None:
    """Do all tasks of a plan that are not done.

    Parameters
    ----------
    run : Run
        What :meth:`relayout.stores.Plan.start` gave.
    progress : callable, optional
        Called with each task's :class:`~relayout.stores.task.Done`, in the calling thread.
    threads : int, optional
        How many tasks at a time; without it as many as the plan has counted with.

    Raises
    ------
    LayoutError, OSError
        A task failed. What was done before is recorded.
    """
    for one in run.plan.passes:
        run.prepare(one)
        _Crew(run, run.pending(one), progress).work(threads or run.plan.threads)


class _Crew:
    """The workers of a pass."""

    def __init__(self, run: Run, numbers: Iterator[int], progress: Callable[[Done], None] | None) -> None:
        self.run, self.numbers, self.progress = run, numbers, progress
        self.changed = threading.Condition()
        self.finished: list[Done] = []
        self.behind = 0
        self.active = self.told = 0
        self.recorded, self.interval = time.monotonic(), INTERVAL
        self.error: BaseException | None = None
        self.pool = Pool()
        self.unsure = False
        """Whether the disk has failed. Systems tell that once; if they are asked again all is well."""

    def work(self, threads: int) -> None:
        names = (f"relayout-{k}" for k in range(threads))
        crew = [threading.Thread(target=self._worker, name=name, daemon=True) for name in names]
        self.active = len(crew)
        for thread in crew:
            thread.start()
        try:
            while self._record():
                pass
        except BaseException as error:  # of the disk, of progress, or Ctrl-C
            self._fail(error)
        for thread in crew:
            thread.join()
        if self.error is not None:
            if not self.unsure:  # what was done before something failed
                with contextlib.suppress(OSError):
                    self.run.record(self.finished)
            raise self.error

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def _worker(self) -> None:
        with reused(self.pool):
            self._tasks()

    def _tasks(self) -> None:
        try:
            while True:
                with self.changed:
                    while self.behind > BEHIND and self.error is None:
                        self.changed.wait()
                    number = None if self.error is not None else next(self.numbers, None)
                if number is None:
                    return
                done = self.run.plan.task(number).run()
                with self.changed:
                    self.finished.append(done)
                    self.behind += done.bytes_written
                    self.changed.notify_all()
        except BaseException as error:
            self._fail(error)
        finally:
            with self.changed:
                self.active -= 1
                self.changed.notify_all()

    def _record(self) -> bool:
        """Wait for finished tasks, tell of them, and record them from time to time; False: that was all."""
        with self.changed:
            while self.active and self.error is None and not self._due():
                self.changed.wait(INTERVAL)
            if self.error is not None:
                return False
            several, ended = list(self.finished), not self.active
        if self.progress is not None:
            for done in several[self.told :]:
                self.progress(done)
        self.told = len(several)
        if ended or self._enough():
            begin = time.monotonic()
            try:
                self.run.record(several)
            except OSError:
                self.unsure = True
                raise
            self.interval = max(INTERVAL, SHARE * (time.monotonic() - begin))
            with self.changed:
                del self.finished[: len(several)]
                self.behind -= sum(done.bytes_written for done in several)
                self.changed.notify_all()
            self.recorded, self.told = time.monotonic(), 0
        return not ended

    def _due(self) -> bool:
        """Whether there is something to tell or to record."""
        return len(self.finished) > self.told or (bool(self.finished) and self._enough())

    def _enough(self) -> bool:
        """Whether it is time for a line in the journal: workers are not to wait for one."""
        return self.behind > BEHIND // 2 or time.monotonic() - self.recorded >= self.interval
