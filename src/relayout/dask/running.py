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

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dask
from dask.base import get_scheduler

from relayout.errors import LayoutError, TooLarge, Unsupported, described, spelled_bytes
from relayout.forking import lock
from relayout.stores.batch import Batch, batch_size, batches, end_session, machine, plan_of, run_batch
from relayout.stores.planning import BASE, as_bytes

if TYPE_CHECKING:
    from distributed import Client, Future

    from relayout.stores.plans import Pass
    from relayout.stores.run import Run
    from relayout.stores.task import Done

__all__ = ["for_workers", "run", "worker_threads"]

WINDOW: Final = 1000
"""Batches that a scheduler knows at a time; with less, clusters that grow with their work stay small."""

INTERVAL: Final = 1.0
"""Seconds between two lines in the journal."""

PATIENCE: Final = 120.0
"""Seconds without any worker until we give up."""

USABLE: Final = 0.8
"""The part of a worker's memory limit that it may use: beyond that Dask pauses it."""

STEP: Final = 16 << 20
"""Bytes that a process takes are rounded up to these: a conversion that is resumed is planned alike."""

SPARE: Final = 32 << 20
"""Bytes that a conversion takes beside its blocks and what a worker had when it was asked: kernels, and what
the allocator keeps in between."""

EACH: Final = 2_000_000_000
"""Bytes for a worker that may take any number, where nothing is said about memory."""

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
    Memory: a worker runs as many blocks at a time as it has threads, or fewer if the memory that was planned
    with, or its own limit, has no room for them beside what the process takes already.

    See Also
    --------
    for_workers : with which memory and how many threads to plan.

    Examples
    --------
    ``plan.run(engine=relayout.dask.run, scheduler="tcp://10.0.0.1:8786")``
    """
    if window < 1:
        raise LayoutError(f"the window has 1 task or more, not {window}")
    with _engine(scheduler, window, retries, patience) as engine:
        engine.check(max(one.memory for one in run.plan.passes))
        for one in run.plan.passes:
            size = batch_size(run.plan, one, engine.workers()) if batch is None else batch
            run.prepare(one)
            recorder = _Recorder(run, progress)
            try:
                engine.work(batches(run, one, size, machine() if one.scatter else ""), run, one, recorder)
            finally:
                end_session(run)
                recorder.flush()


def worker_threads(scheduler: Any = None) -> int:
    """How many blocks a worker has at a time: the most threads of any of its workers; 1 if there are none.

    The memory that a plan is made with is that of a process, so ``stores.plan(..., memory="4GB",
    threads=relayout.dask.worker_threads(client))`` is for workers of 4 GB. :func:`for_workers` asks for
    memory, too.

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


def for_workers(
    scheduler: Any = None, memory: int | str | None = None, *, patience: float = PATIENCE
) -> dict[str, Any]:
    """Ask the workers of a cluster what a conversion that they run is to be planned with.

    Each worker says how many threads it has, how much memory it may take, and what its process takes already
    with all that a block needs loaded. On other machines that is the compiler, too; on this one kernels are
    on the disk before a worker asks for them.

    Parameters
    ----------
    scheduler
        As :func:`run` takes it.
    memory : int or str, optional
        What all workers together may take, ``"512MB"``: each gets an equal part. Without it each gets what
        its own limit allows (80 % of it, beyond which Dask pauses a worker), or 2 GB if it has none.
    patience : float
        Seconds to wait for the first worker.

    Returns
    -------
    dict
        Options of :func:`relayout.stores.plan`: ``memory`` and ``base`` in bytes and ``threads``, of one
        worker (of different ones the least memory, and the most of the others), and how many ``workers``
        there are; and ``partial``, whether they may write parts of the same files, as all of them are on this
        machine.

    Raises
    ------
    TooLarge
        The workers' processes alone take more than their part; the message says what the least is.
    LayoutError
        No scheduler answers, there is no worker, or one can't import Relayout.

    Notes
    -----
    Memory is that of the workers. The scheduler and this process hold no elements; they take some hundred MB
    wherever they run.

    Examples
    --------
    >>> from relayout.dask import for_workers
    >>> for_workers("synchronous", "1GB")["memory"]
    1000000000
    """
    whole = None if memory is None else as_bytes(memory)
    with _engine(scheduler, WINDOW, 0, patience) as engine:
        found = engine.processes()
    part = None if whole is None else whole // len(found)
    base = max(one.taken for one in found)
    base = -(-(base + SPARE) // STEP) * STEP
    limits = [one.usable for one in found if one.usable]
    each = min([*([] if part is None else [part]), *limits], default=EACH)
    if each <= base:
        takes = f"takes {spelled_bytes(base)} before it has a block"
        if whole is not None and each == part:
            raise TooLarge(
                f"{spelled_bytes(whole)} for {len(found)} workers are {spelled_bytes(each)} for each, and "
                f"the process of a worker {takes}; more than {spelled_bytes(base * len(found))} are needed, "
                "or fewer workers"
            )
        named = min(found, key=lambda one: one.usable or EACH).name
        raise TooLarge(
            f"worker {named} may use {spelled_bytes(each)}, {USABLE:.0%} of its memory limit, and its "
            f"process {takes}: give the workers more"
        )
    return {
        "memory": each,
        "base": base,
        "threads": max(one.threads for one in found),
        "workers": len(found),
        "partial": all(one.here for one in found),
    }


class _Process(NamedTuple):
    """What a process that runs blocks has to offer."""

    name: str
    threads: int
    usable: int
    """Bytes that it may take all in all; 0: any number."""
    taken: int
    """Bytes that it takes before it has a block."""
    here: bool = False
    """Whether it runs on this machine."""


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
        self.rest()

    def rest(self) -> None:
        """What is to be done from time to time, whether anything has ended or not."""
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

    def processes(self) -> list[_Process]:
        """The workers, each asked what it takes; there is one at least."""
        lonely = time.monotonic()
        while not self.client.nthreads():
            if time.monotonic() - lonely > self.patience:
                raise LayoutError(self._lonely())
            time.sleep(0.1)
        with lock():
            from relayout.reorder.ready import kernels_folder, make_ready
        make_ready(compiler=False)  # the kernels of that are on the disk now
        answers = self.client.run(_measured, machine(), kernels_folder(), on_error="return")
        for name, answer in answers.items():
            if isinstance(answer, BaseException):
                raise LayoutError(
                    f"worker {name} can't be asked what it takes: {type(answer).__name__}: {answer}; all "
                    "workers need Relayout in the same version as here"
                ) from answer
        return [
            _Process(name, threads, int(USABLE * limit), taken, here)
            for name, (threads, limit, taken, here) in answers.items()
        ]

    def work(self, several: Iterator[Batch], run: Run, one: Pass, recorder: _Recorder) -> None:
        """Do batches: as many as the window has room for are known to the scheduler."""
        places = max(1, (run.plan.memory - run.plan.fixed) // max(1, one.memory))
        ended: SimpleQueue[Future] = SimpleQueue()
        waiting: set[Future] = set()
        try:
            while True:
                for batch in islice(several, self.window - len(waiting)):
                    waiting.add(self._submit(batch, one.memory, places, ended))
                if not waiting:
                    return
                finished = self._finished(ended, recorder)
                for answer in self._answers(finished):
                    recorder.add(answer)
                waiting.difference_update(finished)
        except BaseException:
            self.client.cancel(list(waiting))
            raise

    def _submit(self, batch: Batch, memory: int, places: int, ended: SimpleQueue[Future]) -> Future:
        future = self.client.submit(
            _on_worker,
            *(batch, memory, places),
            key=f"relayout-{batch.session}-{batch.numbers[0]}",  # no other run's results are taken for ours
            retries=self.retries,
            pure=False,
        )
        future.add_done_callback(ended.put)
        return future

    def _finished(self, ended: SimpleQueue[Future], recorder: _Recorder) -> list[Future]:
        """All that have ended by now; one at least."""
        lonely = time.monotonic()
        while True:
            try:
                found = [ended.get(timeout=min(INTERVAL, self.patience))]
                break
            except Empty:
                recorder.rest()
                if self.client.status != "running":
                    raise LayoutError(self._gone()) from None
                if self.client.nthreads():
                    lonely = time.monotonic()
                elif time.monotonic() - lonely > self.patience:
                    raise LayoutError(self._lonely()) from None
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
            if future.status != "finished":  # cancelled, or lost with its scheduler
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

    def _lonely(self) -> str:
        return f"the scheduler {self.client.scheduler.address} has had no worker for {self.patience:.0f} s"

    def _gone(self) -> str:
        return (
            f"the scheduler {self.client.scheduler.address} is gone, or somebody has cancelled the tasks; "
            "what was done before is recorded, and can be resumed"
        )

    def check(self, memory: int) -> None:
        """Refuse workers that have no room for a block, before anything is read."""
        for name, worker in self.client.scheduler_info(n_workers=-1)["workers"].items():
            limit = worker.get("memory_limit") or 0
            used = worker.get("metrics", {}).get("memory", 0)
            if limit and used + memory > USABLE * limit:
                raise LayoutError(_too_small(name, limit, used, memory))


def _measured(asking: str, folder: str, dask_worker: Any) -> tuple[int, int, int, bool]:
    """Threads, memory limit (0: none) and resident set of a worker that is ready for a block, and whether it
    is on the machine that asks.

    Dask passes the worker.
    """
    here = machine() == asking
    with lock():  # what a block needs
        from relayout.reorder.ready import kernels_folder, make_ready
        from relayout.stores import task, zarr  # noqa: F401
    with contextlib.suppress(Unsupported):
        zarr.package()
    make_ready(compiler=not here or not folder or folder != kernels_folder())
    return dask_worker.state.nthreads, _limit(dask_worker), _resident(), here


def _limit(worker: Any) -> int:
    limit: int = getattr(getattr(worker, "memory_manager", None), "memory_limit", None) or 0
    return limit


def _on_worker(batch: Batch, memory: int, places: int) -> list[Done] | LayoutError:
    """A task: the blocks of a batch, within the memory of the worker, ``places`` at a time at most.

    What can't become better by trying again is an answer and no exception.
    """
    with lock():
        from distributed import get_worker
    worker = get_worker()
    try:
        with _room(f"{worker.address} {plan_of(batch).key}", _limit(worker), memory, places):
            return run_batch(batch)
    except LayoutError as error:
        return error


_rooms: dict[tuple[str, int, int], threading.BoundedSemaphore] = {}
_used: dict[str, int] = {}
_rooms_lock = threading.Lock()


def _room(name: str, limit: int, memory: int, places: int) -> threading.BoundedSemaphore:
    """As many places in this process as were planned, and as its memory has for blocks.

    Dask's threads may be more. What the process takes counts as it was before the first block of the
    conversion: what blocks gave back may still be with the allocator, for the next ones.
    """
    with _rooms_lock:
        found = _rooms.get((name, memory, places))
        if found is None:
            used = _used.setdefault(name, _resident())
            there = int((USABLE * limit - used) // max(1, memory)) if limit else places
            if there < 1:
                raise LayoutError(_too_small(name, limit, used, memory))
            found = _rooms[name, memory, places] = threading.BoundedSemaphore(min(there, places))
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

    def check(self, memory: int) -> None:
        """Nothing: this process has no limit."""

    def processes(self) -> list[_Process]:
        """What runs blocks here: a process or several, which take what any process of ours takes."""
        alone = self.name != "processes"
        return [_Process("here", self.threads(), 0, BASE - SPARE, True)] * (1 if alone else self.workers())

    def workers(self) -> int:
        """How many tasks run at a time."""
        return int(dask.config.get("num_workers", None) or os.cpu_count() or 1)

    def work(self, several: Iterator[Batch], run: Run, one: Pass, recorder: _Recorder) -> None:
        """Do batches, some for each worker at a time, and record them before the next."""
        task = dask.delayed(run_batch, pure=False)
        count = self.workers() if self.name == "processes" else min(self.workers(), run.plan.threads)
        while wave := [task(batch) for batch in islice(several, 4 * count)]:
            for answer in dask.compute(*wave, scheduler=self.name, num_workers=count):
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
