"""How a conversion on Dask scales with its workers: the same store, with one worker process, two, four.

Scheduler, workers and client are processes of their own on this machine, as they are on a cluster, so that
what each of them does can be told apart::

    this process                 scheduler               worker 1 .. n
    plan, batches, journal  ---> one process        ---> one thread each, blocks one after another
    time.process_time            its processor time      their processor time and resident sets

What a run tells:

*seconds*        from the first batch to the complete array, without the start of processes
*tasks*          Dask's tasks, which are batches of blocks
*scheduler*      the part of the time that the scheduler's process computes: at 1 it is the bound
*client*         the same for this process
*task's bytes*   what is pickled for a task: plan and numbers of blocks

A machine can't run more workers at a time than it has processors; with more they share.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from relayout.bench.rechunking import Problem, check, resident
from relayout.errors import LayoutError

__all__ = ["Scaled", "scale"]

STARTING: Final = 60.0
"""Seconds that processes may take to start."""


class Scaled(NamedTuple):
    """A conversion with so many workers."""

    problem: str
    workers: int
    seconds: float
    blocks: int
    tasks: int
    scheduler: float
    """Seconds of processor time of the scheduler."""
    client: float
    """Of this process."""
    worker: float
    """Of all workers together."""
    memory: int
    """The largest resident set of a worker, in bytes."""
    task_bytes: int
    """Bytes that are pickled for a task."""
    error: str
    """Why there is no result; empty: there is one, and all of it is right."""


def scale(
    problem: Problem,
    source: Path,
    folder: Path,
    *,
    workers: int,
    memory: int,
    batch: int | None = None,
) -> Scaled:
    """Convert one problem on a cluster of so many workers, each a process with a thread.

    Parameters
    ----------
    problem : Problem
        What is converted.
    source : Path
        The store that :func:`relayout.bench.rechunking.write_source` has written.
    folder : Path
        Where the result and what the cluster writes goes; removed afterwards.
    workers : int
        How many.
    memory : int
        Bytes that all workers together may take.
    batch : int, optional
        Blocks in a task; without it as many as the engine chooses.

    Returns
    -------
    Scaled
        Its figures. If the conversion is refused, for instance as a worker has no room for a block, they are
        0 and ``error`` says why.

    Raises
    ------
    LayoutError
        The cluster does not start.
    """
    import relayout.dask.running as running
    from relayout import stores
    from relayout.stores.batch import Batch, batch_size

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sizes: list[int] = []
    try:
        with _cluster(folder, workers, memory) as (client, scheduler, crew):
            try:
                room: dict[str, Any] = {**running.for_workers(client, memory)}
                plan = stores.plan(
                    stores.open(source, format=problem.formats[0]),
                    folder / "result.zarr",
                    problem.formats[1],
                    chunks=problem.chunks,
                    codecs="same",
                    zarr_format=2,
                    **room,
                )
            except LayoutError as error:
                return Scaled(problem.name, workers, 0.0, 0, 0, 0.0, 0.0, 0.0, 0, 0, str(error))
            before = _processor(scheduler), sum(map(_processor, crew)), time.process_time()
            begin = time.perf_counter()
            with plan.start() as run:
                running.run(run, scheduler=client, batch=batch)
                for one in plan.passes:
                    count = batch_size(plan, one, workers) if batch is None else batch
                    sizes += [len(numbers) for numbers in _cut(one.blocks.total, count)]
                run.commit()
            seconds = time.perf_counter() - begin
            after = _processor(scheduler), sum(map(_processor, crew)), time.process_time()
            most = max(resident(pid, most=True) for pid in crew)
        task = Batch(pickle.dumps(plan), "0" * 16, tuple(range(max(sizes))))
        shares = [b - a for a, b in zip(before, after, strict=True)]
        return Scaled(
            *(problem.name, workers, seconds, plan.total, len(sizes)),
            *(shares[0], shares[2], shares[1], most, len(pickle.dumps(task))),
            check(problem, folder / "result.zarr", source),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cut(total: int, count: int) -> Iterator[range]:
    return (range(k, min(k + count, total)) for k in range(0, total, count))


@contextlib.contextmanager
def _cluster(folder: Path, workers: int, memory: int) -> Iterator[tuple[Any, int, list[int]]]:
    """A scheduler and workers, each a process of its own: a client, and the processes' numbers."""
    import distributed

    from relayout.dask.running import USABLE

    told = folder / "scheduler.json"
    limit = math.ceil(memory / workers / USABLE) + 1  # of which Dask uses that part
    with contextlib.ExitStack() as stack:
        begin = ["--scheduler-file", str(told), "--host", "127.0.0.1", "--no-dashboard"]
        scheduler = stack.enter_context(_process("dask_scheduler", "--port", "0", *begin))
        _wait(told.exists, [scheduler], "the scheduler")
        crew = [
            stack.enter_context(
                _process(
                    "dask_worker",
                    *(*begin, "--nthreads", "1", "--no-nanny", "--memory-limit", str(limit)),
                    *("--local-directory", str(folder)),
                )
            )
            for _ in range(workers)
        ]
        client = stack.enter_context(distributed.Client(scheduler_file=str(told), set_as_default=False))
        _wait(lambda: len(client.nthreads()) == workers, [scheduler, *crew], "the workers")
        yield client, scheduler.pid, [worker.pid for worker in crew]


@contextlib.contextmanager
def _process(program: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Dask's programs, which ends with the block."""
    made = subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.{program}", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield made
    finally:
        made.terminate()
        try:
            made.wait(timeout=10)
        except subprocess.TimeoutExpired:
            made.kill()
            made.wait()


def _wait(done: Any, processes: Sequence[subprocess.Popen[bytes]], what: str) -> None:
    begin = time.monotonic()
    while not done():
        ended = any(process.poll() is not None for process in processes)
        if ended or time.monotonic() - begin > STARTING:
            raise LayoutError(
                f"{what} of Dask did not start: {'it ended' if ended else f'not in {STARTING:.0f} s'}"
            )
        time.sleep(0.05)


def _processor(pid: int) -> float:
    """Seconds of processor time that a process has taken; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
