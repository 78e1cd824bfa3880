"""Blocks of a plan for workers elsewhere: what any engine with a ``map`` needs, and nothing of the engine.

A :class:`Batch` is some numbers and a plan: plain data of a few kilobytes. :func:`run_batch` does its blocks,
in any process that sees the same files, and answers with a list of :class:`~relayout.stores.task.Done`. Data
never travel. ::

    from concurrent.futures import ProcessPoolExecutor

    with plan.start() as run, ProcessPoolExecutor() as pool:
        for one in plan.passes:
            for several in pool.map(stores.run_batch, stores.batches(run, one)):
                run.record(several)
        run.commit()

Instead of ``pool.map`` this can be a map of Ray's, of Beam's, or an array of jobs. What such engines do
behind one's back is harmless:

*twice*       a block that is done again, even at the same time, writes the same bytes, each file by one
              rename;
*half*        a worker that dies leaves whole chunks and no others; the batch is done again, by whoever the
              engine chooses;
*too late*    a worker that everybody took for dead, or whose job was killed, may go on. Before each block it
              looks into the file ``.relayout/session`` of the destination. The word there is that of the
              call of :func:`batches`; if it is another one or the file is gone, the worker stops.

The worker brings what it wrote to the disk, so that the process with the journal need not wait for the disk
for all of them.
"""

from __future__ import annotations

import pickle
import platform
import secrets
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from relayout.errors import LayoutError
from relayout.stores.buffers import reused
from relayout.stores.files import write_whole
from relayout.stores.journal import sync_files
from relayout.stores.run import WORK

if TYPE_CHECKING:
    from relayout.stores.plans import Pass, Plan
    from relayout.stores.run import Run
    from relayout.stores.task import Done

__all__ = ["Batch", "Superseded", "batch_size", "batches", "end_session", "machine", "plan_of", "run_batch"]

SESSION: Final = "session"
SECONDS: Final = 1.0
"""What the blocks of a batch are predicted to take: a scheduler spends a thousandth of that on a task."""

SHARE: Final = 8
"""Batches for each worker at least, so that none waits long for the last one."""


class Superseded(LayoutError):
    """The conversion that a batch belongs to has ended, or another run of it has begun."""


class Batch(NamedTuple):
    """Some blocks of a plan, as plain data."""

    plan: bytes
    """The pickled plan, the same for all batches."""
    session: str
    """The word that the destination has for the run that the batch belongs to."""
    numbers: tuple[int, ...]
    """The tasks' numbers."""
    machine: str = ""
    """The machine whose processes may do them (:func:`machine`), where they write parts of the same files;
    empty: any."""


def batches(run: Run, one: Pass, size: int | None = None, where: str = "") -> Iterator[Batch]:
    """Cut what is left of a pass into batches, lazily, and begin a session for them.

    Batches of earlier calls for the same destination are void from then on.

    Parameters
    ----------
    run : Run
        What :meth:`relayout.stores.Plan.start` gave.
    one : Pass
        One of ``run.plan.passes``; all of a pass must be recorded before the next one begins.
    size : int, optional
        Blocks in a batch. Without it as many as are predicted to take a second.
    where : str
        The machine whose processes do them, if that is one: :func:`machine`. Tasks that write parts of the
        same files are for one machine, since network file systems keep whole pages of a file.

    Raises
    ------
    LayoutError
        The size is less than 1, or tasks write parts of the same files and no machine is named.
    """
    if one.scatter and not where:
        raise LayoutError(
            "this plan has tasks that write parts of the same files, which machines that share a network "
            "file system must not; plan with partial=False, or say that all processes are here: "
            "where=stores.batch.machine()"
        )
    count = batch_size(run.plan, one) if size is None else size
    if count < 1:
        raise LayoutError(f"a batch has 1 block or more, not {count}")
    word = secrets.token_hex(8)
    write_whole(_session(run.plan), [word.encode()])
    plan = pickle.dumps(run.plan)

    def cut() -> Iterator[Batch]:
        left = iter([*run.pending(one)])
        while numbers := tuple(islice(left, count)):
            yield Batch(plan, word, numbers, where if one.scatter else "")

    return cut()


def batch_size(plan: Plan, one: Pass, workers: int = 1) -> int:
    """How many blocks of a pass make a batch: of about a second, and several for each worker."""
    total = one.blocks.total
    most = total // (SHARE * workers)
    if most <= 1:
        return 1
    each = max(one.seconds(plan.rates) / max(1, total), 1e-6)
    return max(1, min(int(SECONDS / each), most))


def end_session(run: Run) -> None:
    """Stop workers that are still at batches of a run, each before its next block."""
    _session(run.plan).unlink(missing_ok=True)


def run_batch(batch: Batch) -> list[Done]:
    """Do the blocks of a batch, here and now, and bring what was written to the disk.

    Returns
    -------
    list of Done
        For :meth:`relayout.stores.Run.record`. Files are not listed: they are on the disk.

    Raises
    ------
    Superseded
        The run that the batch belongs to has ended.
    LayoutError, OSError
        A block can't be converted; those before it are. Or the batch is for another machine.
    """
    if batch.machine and batch.machine != machine():
        raise LayoutError(
            "these blocks write parts of the same files, and processes of another machine do so, too; begin "
            "again with partial=False (--force), or with workers of one machine"
        )
    plan = plan_of(batch)
    result = []
    with reused():
        for number in batch.numbers:
            _check_session(plan, batch.session)
            result.append(plan.task(number).run())
    sync_files(name for done in result for name in done.files)
    return [done._replace(files=()) for done in result]


@lru_cache(maxsize=1)
def machine() -> str:
    """What tells this machine from others, for as long as it runs: processes that say the same see the same
    pages of files.

    >>> machine() == machine() != ""
    True
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # other systems than Linux
        return platform.node() or "here"


def plan_of(batch: Batch) -> Plan:
    """The plan that a batch belongs to; in a process it is read once."""
    return _plan(batch.plan)


@lru_cache(maxsize=4)
def _plan(pickled: bytes) -> Plan:
    plan: Plan = pickle.loads(pickled)
    return plan


def _session(plan: Plan) -> Path:
    return Path(plan.target.path) / WORK / SESSION


def _check_session(plan: Plan, word: str) -> None:
    path = _session(plan)
    try:
        found = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        found = ""
    if found != word:
        what = "another run of it has begun" if found else "it has ended, or this machine does not see it"
        raise Superseded(f"{plan.target.path}: the conversion that this block belongs to is void: {what}")
