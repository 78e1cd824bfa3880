"""Arrays larger than memory: chunked stores as lazy tensors, and conversions between them, block by block.

A chunked array is a memory format whose outer digits stand in the names of files (:mod:`.grid`), so turning
one chunked array into another, which is called rechunking, is a reorder. What is different is the size: no
machine holds the array, and it may take a day. So there is a *plan* first, which is data, and somebody runs
it: threads of this process, or the workers of a cluster that is already there.

The types
=========

===================  ===================================================================================
:class:`Stored`      an array as a store keeps it: descriptor, chunks, ``read`` and ``write`` of one chunk
                     (:mod:`.store`; Zarr, folders of npy or raw files, single files, checkpoints)
:class:`Address`     where such an array is, as plain data: small, picklable, opened in any process
:class:`LazyTensor`  what :func:`open` gives: a descriptor and chunks, nothing read; slicing reads what it
                     needs (:mod:`.lazy`)
:class:`Plan`        passes, each cut into block tasks, with bytes, requests, memory and time (:mod:`.plans`)
:class:`Pass`        from one address to another in blocks: one pass, or two through an intermediate store
:class:`Task`        one block: ``task.run()`` reads its part, converts it, and writes whole chunks, or parts
:class:`Done`        what a task answers: bytes, requests, seconds, and what it wrote
:class:`Run`         a plan that is being carried out: the incomplete destination, its journal, the commit
                     (:mod:`.run`)
===================  ===================================================================================

Who runs a plan
===============

::

    plan = stores.plan(rl.open("big.zarr", format="nchw"), "out.zarr", "nChw16c", memory="2GB")
    print(plan.explain())

    with plan.start(resume=False) as run:      # the destination exists, and nobody takes it for complete
        for one in plan.passes:                # all of a pass must be done before the next begins
            for number in run.pending(one):    # what the journal does not know as done
                done = plan.task(number).run() # anywhere: a thread, another process, another machine
                run.record([done])             # here: data to the disk first, then a line in the journal
        run.commit()                           # the last step: metadata, by one rename

A task is a pickle of some kilobytes and needs nothing but the package and the same file system. It is
idempotent: it writes whole chunks (or shards), each to a file of another name that is then renamed, or its
own parts of chunks that are renamed when all tasks are done. So a task which runs twice, or twice at the same
time, or is killed, leaves the same bytes or none. Only one process, the one that holds the :class:`Run`,
writes the journal.

``plan.run()`` is that loop on threads of this process (:mod:`.workers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.forking import later as _later

if TYPE_CHECKING:
    from relayout.stores.batch import Batch as Batch
    from relayout.stores.batch import Superseded as Superseded
    from relayout.stores.batch import batches as batches
    from relayout.stores.batch import run_batch as run_batch
    from relayout.stores.grid import Cells as Cells
    from relayout.stores.grid import Grid as Grid
    from relayout.stores.lazy import LazyTensor as LazyTensor
    from relayout.stores.opening import is_store as is_store
    from relayout.stores.opening import names as names
    from relayout.stores.opening import open as open
    from relayout.stores.planning import convert as convert
    from relayout.stores.planning import plan as plan
    from relayout.stores.plans import Pass as Pass
    from relayout.stores.plans import Plan as Plan
    from relayout.stores.run import Run as Run
    from relayout.stores.store import Address as Address
    from relayout.stores.store import Stored as Stored
    from relayout.stores.task import Done as Done
    from relayout.stores.task import Task as Task

__all__ = [
    "Address",
    "Batch",
    "Cells",
    "Done",
    "Grid",
    "LazyTensor",
    "Pass",
    "Plan",
    "Run",
    "Stored",
    "Superseded",
    "Task",
    "batches",
    "convert",
    "is_store",
    "names",
    "open",
    "plan",
    "run_batch",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = _later(
        __name__,
        Batch="batch",
        Superseded="batch",
        batches="batch",
        run_batch="batch",
        Cells="grid",
        Grid="grid",
        LazyTensor="lazy",
        Address="store",
        Stored="store",
        Pass="plans",
        Plan="plans",
        Done="task",
        Task="task",
        Run="run",
        convert="planning",
        plan="planning",
        open="opening",
        names="opening",
        is_store="opening",
    )
