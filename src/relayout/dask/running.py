"""A plan of a large conversion on a cluster: one task of Dask for a batch of blocks.

Dask has the numbers, the store has the data::

    this process            scheduler                worker                    store
    journal, commit  -----> batch 17: blocks      -> run_batch(batch 17)  <->  chunks read, chunks written
                            204 to 215               answers: done, bytes
    record, progress <-----------------------------

A task gets some kilobytes, the pickled plan and the numbers of its blocks, and answers with less. So the
network between workers has nothing to do, and a worker that is lost has nothing that others miss: its batches
are run again (:mod:`relayout.stores.batch` says why that is safe).

A scheduler handles some thousand tasks a second, and keeps each that it knows in memory, a few kilobytes. Two
things make a plan of a million blocks fit that: batches take about a second, and no more than
:data:`WINDOW` of them are known to the scheduler at a time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import dask
from dask.base import get_scheduler

from relayout.errors import LayoutError, described, spelled_bytes
from relayout.forking import lock
from relayout.stores.batch import Batch, batch_size, batches, end_session, run_batch

if TYPE_CHECKING:
    from distributed import Client, Future

    from relayout.stores.plans import Pass
    from relayout.stores.run import Run
    from relayout.stores.task import Done

__all__ = ["run", "worker_threads"]

WINDOW: Final = 1000
"""Batches that a scheduler knows at a time; with less, clusters that grow with their work stay small."""

INTERVAL: Final = 1.0
"""Seconds between two lines in the journal."""

PATIENCE: Final = 120.0
"""Seconds without any worker until we give up."""

USABLE: Final = 0.8
"""The part of a worker's memory limit that it may use: beyond that Dask pauses it."""

LOCAL: Final = ("threads", "processes", "synchronous")

Progress = Callable[["Done"], None]


def run(
    run: Run,
    *,
    progress: Progress | None = None,
    scheduler: Any = None,
    batch: int | None = None,
    window: int = WINDOW,
    retries: int = 2,
    patience: float = PATIENCE,
) -> None:
    """Do all tasks of a plan that are not done, on a cluster of Dask: an engine for ``plan.run``.

    Parameters
    ----------
    run : Run
        What :meth:`relayout.stores.Plan.start` gave. ``plan.run(engine=relayout.dask.run, ...)`` passes it
        and commits when all is done.
    progress : callable, optional
        Called with each block's :class:`~relayout.stores.task.Done`, in the calling thread.
    scheduler : distributed.Client, str or None
        A client; the address of a scheduler (``"tcp://10.0.0.1:8786"``), or the JSON file that it writes;
        or a scheduler of this machine: ``"threads"``, ``"processes"``, ``"synchronous"``. Without one, the
        client that is the default in this process; threads if there is none.
    batch : int, optional
        Blocks in a task of Dask. Without it as many as are predicted to take a second.
    window : int
        Tasks that the scheduler knows at a time.
    retries : int
        How often a task that failed is tried again: networks and file systems have hiccups. What can't
        become better (a source that was changed, a damaged chunk) is not tried again. That Dask runs tasks
        of lost workers elsewhere is apart from that (``distributed.scheduler.allowed-failures``).
    patience : float
        Seconds without any worker until it is given up.

    Raises
    ------
    LayoutError
        A task failed, the scheduler is gone, there are no workers, or a worker has too little memory for one
        block. What was done before is recorded; ``resume=True`` goes on from there.
    OSError
        A block can't be read or written, on the worker or here.

    Notes
    -----
    All workers must see source and destination under the same paths, and have Relayout in the same version.
    Memory: a worker runs as many blocks at a time as it has threads, or fewer if its memory limit has no
    room for them beside what the process takes already.

    Examples
    --------
    ``plan.run(engine=relayout.dask.run, scheduler="tcp://10.0.0.1:8786")``
    """
    if window < 1:
        raise LayoutError(f"the window has 1 task or more, not {window}")
    with _engine(scheduler, window, retries, patience) as engine:
        for one in run.plan.passes:
            size = batch_size(one, engine.workers()) if batch is None else batch
            recorder = _Recorder(run, progress)
            try:
                engine.work(batches(run, one, size), one, recorder)
            finally:
                end_session(run)
                recorder.flush()


def worker_threads(scheduler: Any = None) -> int:
    """How many blocks a worker has at a time: the most threads of any of its workers; 1 if there are none.

    The memory that a plan is made with is that of a process, so ``stores.plan(..., memory="4GB",
    threads=relayout.dask.worker_threads(client))`` is for workers of 4 GB.

    Parameters
    ----------
    scheduler
        As :func:`run` takes it.

    Raises
    ------
    LayoutError
        No scheduler answers.

    Examples
    --------
    >>> import relayout.dask
    >>> relayout.dask.worker_threads("synchronous")
    1
    """
    with _engine(scheduler, WINDOW, 0, PATIENCE) as engine:
        return engine.threads()


class _Recorder:
    """What is done goes to the journal in groups: each line waits for the disk."""

    def __init__(self, run: Run, progress: Progress | None) -> None:
        self.run, self.progress = run, progress
        self.several: list[Done] = []
        self.last = time.monotonic()

    def add(self, several: list[Done]) -> None:
        if self.progress is not None:
            for done in several:
                self.progress(done)
        self.several += several
        if time.monotonic() - self.last >= INTERVAL:
            self.flush()

    def flush(self) -> None:
        several, self.several = self.several, []
        if several:
            self.run.record(several)
        self.last = time.monotonic()


# -- on a cluster -------------------------------------------------------------------------------------------


class _Cluster:
    """Batches as tasks of a ``distributed.Client``."""

    def __init__(self, client: Client, window: int, retries: int, patience: float) -> None:
        self.client, self.window, self.retries, self.patience = client, window, retries, patience

    def workers(self) -> int:
        """How many threads there are, of all workers."""
        threads: dict[str, int] = self.client.nthreads()
        return max(1, sum(threads.values()))

    def threads(self) -> int:
        """How many there are in a worker."""
        return max(self.client.nthreads().values(), default=1)

    def work(self, several: Iterator[Batch], one: Pass, recorder: _Recorder) -> None:
        """Do batches: as many as the window has room for are known to the scheduler."""
        self._check_memory(one)
        ended: SimpleQueue[Future] = SimpleQueue()
        waiting: set[Future] = set()
        try:
            while True:
                for batch in islice(several, self.window - len(waiting)):
                    waiting.add(self._submit(batch, one, ended))
                if not waiting:
                    return
                finished = self._finished(ended)
                for answer in self._answers(finished):
                    recorder.add(answer)
                waiting.difference_update(finished)
        except BaseException:
            self.client.cancel(list(waiting))
            raise

    def _submit(self, batch: Batch, one: Pass, ended: SimpleQueue[Future]) -> Future:
        future = self.client.submit(
            _on_worker,
            *(batch, one.memory),
            key=f"relayout-{batch.session}-{batch.numbers[0]}",  # no other run's results are taken for ours
            retries=self.retries,
            pure=False,
        )
        future.add_done_callback(ended.put)
        return future

    def _finished(self, ended: SimpleQueue[Future]) -> list[Future]:
        """All that have ended by now; one at least."""
        lonely = time.monotonic()
        while True:
            try:
                found = [ended.get(timeout=min(INTERVAL, self.patience))]
                break
            except Empty:
                if self.client.status != "running":
                    raise LayoutError(self._gone()) from None
                if self.client.nthreads():
                    lonely = time.monotonic()
                elif time.monotonic() - lonely > self.patience:
                    raise LayoutError(
                        f"the scheduler {self.client.scheduler.address} has had no worker for "
                        f"{self.patience:.0f} s"
                    ) from None
        while not ended.empty():
            found.append(ended.get())
        return found

    def _answers(self, finished: list[Future]) -> Iterator[list[Done]]:
        good = [future for future in finished if future.status == "finished"]
        for answer in self.client.gather(good):
            if not isinstance(answer, list):
                raise answer
            yield answer
        for future in finished:
            if future.status == "error":
                self._explain(future)
            if future.status == "cancelled":
                raise LayoutError(self._gone())

    def _explain(self, future: Future) -> None:
        with lock():
            from distributed.scheduler import KilledWorker

        error = future.exception()
        if isinstance(error, KilledWorker):
            raise LayoutError(
                f"the blocks of task {future.key} were given up: {error}; a worker that takes more memory "
                "than it may is killed, too"
            ) from error
        raise error

    def _gone(self) -> str:
        return (
            f"the scheduler {self.client.scheduler.address} is gone, or somebody has cancelled the tasks; "
            "what was done before is recorded, and can be resumed"
        )

    def _check_memory(self, one: Pass) -> None:
        """Refuse workers that have no room for a block, before anything is read."""
        for name, worker in self.client.scheduler_info(n_workers=-1)["workers"].items():
            limit = worker.get("memory_limit") or 0
            used = worker.get("metrics", {}).get("memory", 0)
            if limit and used + one.memory > USABLE * limit:
                raise LayoutError(_too_small(name, limit, used, one.memory))


def _on_worker(batch: Batch, memory: int) -> list[Done] | LayoutError:
    """A task: the blocks of a batch, within the memory of the worker.

    What can't become better by trying again is an answer and no exception.
    """
    with lock():
        from distributed import get_worker
    worker = get_worker()
    limit = getattr(getattr(worker, "memory_manager", None), "memory_limit", None) or 0
    try:
        with _room(str(worker.address), limit, memory):
            return run_batch(batch)
    except LayoutError as error:
        return error


_rooms: dict[tuple[str, int], threading.BoundedSemaphore] = {}
_rooms_lock = threading.Lock()


def _room(name: str, limit: int, memory: int) -> threading.BoundedSemaphore:
    """As many places in this process as its memory has for blocks; Dask's threads may be more."""
    with _rooms_lock:
        found = _rooms.get((name, memory))
        if found is None:
            used = _resident()
            places = int((USABLE * limit - used) // max(1, memory)) if limit else 1 << 16
            if places < 1:
                raise LayoutError(_too_small(name, limit, used, memory))
            found = _rooms[name, memory] = threading.BoundedSemaphore(places)
        return found


def _resident() -> int:
    """Bytes of memory that this process takes now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 0


def _too_small(name: str, limit: int, used: int, memory: int) -> str:
    return (
        f"worker {name} may take {spelled_bytes(limit)}, of which Dask uses {USABLE:.0%}; it has taken "
        f"{spelled_bytes(used)}, and a block takes {spelled_bytes(memory)}: plan with less memory, or give "
        "the workers more"
    )


# -- on this machine ----------------------------------------------------------------------------------------


class _Local:
    """Batches on one of Dask's schedulers for a single machine, in waves."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def threads(self) -> int:
        """How many tasks run in this process at a time."""
        return 1 if self.name in ("processes", "synchronous") else self.workers()

    def workers(self) -> int:
        """How many tasks run at a time."""
        return int(dask.config.get("num_workers", None) or os.cpu_count() or 1)

    def work(self, several: Iterator[Batch], one: Pass, recorder: _Recorder) -> None:
        """Do batches, some for each worker at a time, and record them before the next."""
        task = dask.delayed(run_batch, pure=False)
        while wave := [task(batch) for batch in islice(several, 4 * self.workers())]:
            for answer in dask.compute(*wave, scheduler=self.name):
                recorder.add(answer)


@contextmanager
def _engine(scheduler: Any, window: int, retries: int, patience: float) -> Iterator[_Cluster | _Local]:
    """What runs batches; a client that was made for it is closed afterwards."""
    if isinstance(scheduler, str) and scheduler in LOCAL:
        yield _Local(scheduler)
        return
    with lock():
        import distributed
    if scheduler is None:
        try:
            scheduler = distributed.get_client()
        except ValueError:
            yield _Local(None if get_scheduler() is not None else "threads")
            return
    if isinstance(scheduler, distributed.Client):
        yield _Cluster(scheduler, window, retries, patience)
        return
    if not isinstance(scheduler, str):
        raise LayoutError(
            f"a scheduler is a distributed.Client, an address such as tcp://10.0.0.1:8786, a file that a "
            f"scheduler has written, or one of {', '.join(LOCAL)}; got {described(scheduler)}"
        )
    where = {"scheduler_file": scheduler} if scheduler.endswith(".json") else {"address": scheduler}
    if "scheduler_file" in where and not os.path.exists(scheduler):  # Dask would wait for it for ever
        raise LayoutError(f"no scheduler of Dask answers at {scheduler}: there is no such file")
    try:
        client = distributed.Client(**where, set_as_default=False, timeout=min(patience, 30))
    except (OSError, ValueError) as error:
        raise LayoutError(f"no scheduler of Dask answers at {scheduler}: {error}") from error
    with client:
        yield _Cluster(client, window, retries, patience)
