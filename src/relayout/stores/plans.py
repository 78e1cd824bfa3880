"""A plan of a conversion: what is read, converted and written in which blocks, as data.

Two grids meet (:mod:`.pieces`). A block of the plan is a box of whole cells of the destination; how many
decides everything else::

    small blocks     little memory; a chunk of the source that several blocks need is read by each of them
    large blocks     each chunk is read once, if whole chunks of the source are a block, too
    two passes       an intermediate store whose chunks divide the blocks of both passes: all is read and
                     written twice, and nothing more often, in little memory

The planner (:mod:`.planning`) goes through the shapes of blocks and takes the one of least predicted time
that fits into the memory. All figures are there before anything is moved; :meth:`Plan.explain` prints them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError, counted, spelled_bytes
from relayout.forking import lock
from relayout.reorder.attributes import Attributes
from relayout.stores import rates
from relayout.stores.grid import Grid, Index, size_of
from relayout.stores.rates import KERNEL, Rates, Work
from relayout.stores.store import Address, Fingerprint, digest
from relayout.stores.task import Task

if TYPE_CHECKING:
    from relayout.stores.run import Run
    from relayout.stores.task import Done

__all__ = ["Pass", "Plan"]


@dataclass(frozen=True)
class Pass:
    """From one array to another, block by block."""

    source: Address
    target: Address
    dims: tuple[int, ...]
    """The logical sizes of both."""
    block: tuple[int, ...]
    """The logical sizes of a block."""
    by_target: bool
    """The order within a block: chunk by chunk of the destination, or of the source."""
    first: int
    """The number of its first task."""
    attributes: Attributes
    newest: int
    complete: bool
    bytes_read: int
    """Bytes of chunks that are read, decoded; a chunk that several blocks need counts for each."""
    bytes_written: int
    """Bytes of chunks that are written, before they are encoded."""
    requests_read: int
    requests_written: int
    memory: int
    """Bytes that a task holds at the same time, at most."""
    work: Work
    """What there is to do, counted, of which a predicted time is made."""
    source_chunks: int
    """How many chunks the source has; ``requests_read`` counts each as often as it is read."""
    scatter: str = ""
    """Where files are collected that several tasks write parts of (:mod:`.collected`); empty: each chunk is
    written by one task. ``requests_written`` counts those parts."""
    assembled: Index = ()
    """For how many cells of the source along each axis there is room in the buffer of a block
    (:mod:`.assembled`); empty: the chunks of the source are not put together."""

    @property
    def times_read(self) -> float:
        """How often a chunk of the source is read and decoded, on average."""
        return self.requests_read / max(1, self.source_chunks)

    @cached_property
    def blocks(self) -> Grid:
        """The blocks, in logical indices."""
        return Grid(self.dims, self.block)

    @property
    def tasks(self) -> range:
        """The numbers of its tasks."""
        return range(self.first, self.first + self.blocks.total)

    def elements(self, number: int) -> int:
        """How many elements a task converts."""
        return size_of(self.blocks.box(self.blocks.index(number - self.first)))

    def seconds(self, rates: Rates) -> float:
        """Predicted time, of all tasks one after another in one thread."""
        return rates.seconds(self.work)


@dataclass(frozen=True)
class Plan:
    """What is done to convert an array in a store into another.

    Made by :func:`relayout.stores.plan`. Nothing is touched before :meth:`run` or :meth:`start`.

    Attributes
    ----------
    passes : tuple of Pass
        One, or two through an intermediate store. All tasks of a pass come before those of the next.
    fingerprint : Fingerprint
        What the source was like.
    memory : int
        The bytes that a process may take, the interpreter included.
    base : int
        What of that the process takes before it has a task: the interpreter and what it has loaded.
    threads : int
        How many tasks run at the same time in a process within that.
    workers : int
        How many such processes there are.
    given : Rates, optional
        What predicted times are made of. Without it they are measured on chunks of the source when somebody
        asks for a time, which takes up to a second; a conversion that just runs asks nobody.
    """

    source: Address
    target: Address
    passes: tuple[Pass, ...]
    fingerprint: Fingerprint
    memory: int
    base: int
    threads: int
    given: Rates | None = None
    notes: tuple[str, ...] = ()
    """What there is to know besides: missing chunks, say."""
    allowed: int = 0
    """How many tasks at a time there might have been; what is resumed is planned with the same number."""
    workers: int = 1
    held: int = 0
    """Bytes of the source that each process has in memory, since it can't be read in parts."""
    partial: bool = True
    """Whether several tasks might write parts of one file, whether they do or not."""

    @cached_property
    def key(self) -> str:
        """A digest of all that decides which bytes are written where: that of the source among it."""
        return digest(
            [
                *(list(self.source), list(self.target), self.fingerprint.text),
                *(
                    [
                        list(p.source),
                        list(p.target),
                        list(p.block),
                        p.by_target,
                        repr(p.attributes),
                        p.scatter,
                        list(p.assembled),
                    ]
                    for p in self.passes
                ),
            ]
        )

    @property
    def rates(self) -> Rates:
        """What predicted times are made of: what was given, or what is measured when it is asked for."""
        found: Rates | None = self.given or self.__dict__.get("_measured")
        if found is None:
            folder, between = Path(self.target.path).parent, len(self.passes) > 1
            found = rates.measured(self.source.open(), self.target.open(), folder, between)
            self.__dict__["_measured"] = found  # no cached_property, which has a lock of its own
        return found

    @property
    def total(self) -> int:
        """How many tasks there are, of all passes."""
        return sum(one.blocks.total for one in self.passes)

    def pass_of(self, number: int) -> Pass:
        """The pass that a task belongs to."""
        for one in self.passes:
            if number in one.tasks:
                return one
        raise LayoutError(f"there is no task {number!r}; the plan has {self.total}, from 0 on")

    def task(self, number: int) -> Task:
        """A task by its number: plain data of some kilobytes that any process can run.

        Raises
        ------
        LayoutError
            There is no task of that number.
        """
        one = self.pass_of(number)
        block = one.blocks.box(one.blocks.index(number - one.first))
        return Task(
            *(number, one.source, one.target, block, one.attributes, one.by_target),
            *(one.newest, one.complete, self.key, one.scatter, one.assembled),
        )

    def __len__(self) -> int:
        """How many tasks there are."""
        return self.total

    def __iter__(self) -> Iterator[Task]:
        """All tasks, in order."""
        return map(self.task, range(self.total))

    @property
    def bytes_read(self) -> int:
        """Bytes that are read in all passes, decoded."""
        return sum(one.bytes_read for one in self.passes)

    @property
    def bytes_written(self) -> int:
        """Bytes that are written in all passes, before they are encoded."""
        return sum(one.bytes_written for one in self.passes)

    @property
    def seconds(self) -> float:
        """Predicted time: the threads of all :attr:`workers` share the work, as many as there are processors,
        and one disk takes what is written. Kernels are made before that, one after another.
        """
        many = self.threads * self.workers
        if self.workers == 1:
            many = min(many, os.cpu_count() or 1)
        found, last = self.rates, len(self.passes) - 1
        several = [found.of_pass(k == 0, k == last) for k in range(last + 1)]
        return sum(
            max(one.seconds(each) / many, one.bytes_written / each.disk) + one.work.kernels * KERNEL
            for one, each in zip(self.passes, several, strict=True)
        )

    @property
    def fixed(self) -> int:
        """Bytes that a process takes before it has a task."""
        return self.base + self.held

    @property
    def peak(self) -> int:
        """Bytes that a process takes at most, predicted: all its threads, and the interpreter."""
        return self.fixed + self.threads * max(one.memory for one in self.passes)

    def start(self, *, resume: bool = False, force: bool = False) -> Run:
        """Make the destination, incomplete, or take up one that was begun.

        Parameters
        ----------
        resume : bool
            Go on where a run of this very plan was killed or failed.
        force : bool
            Remove a store that is there. It is gone from the beginning.

        Raises
        ------
        FileExistsError
            The destination exists, and neither was set.
        SourceChanged
            The source is not what it was when the plan was made.
        LayoutError
            What was begun there is not this plan.
        """
        with lock():
            from relayout.stores.run import Run

        return Run(self, resume=resume, force=force)

    def run(
        self,
        *,
        resume: bool = False,
        force: bool = False,
        engine: Callable[..., None] | None = None,
        progress: Callable[[Done], None] | None = None,
        **options: Any,
    ) -> Run:
        """Carry the plan out.

        Parameters
        ----------
        resume, force : bool
            As :meth:`start` takes them.
        engine : callable, optional
            What runs tasks: called with the :class:`Run`, ``progress`` and the options. Without one, threads
            of this process: :func:`relayout.stores.workers.run`.
        progress : callable, optional
            Called with the :class:`Done` of each task that has become known as done.
        """
        with lock():
            from relayout.stores import workers

        with self.start(resume=resume, force=force) as run:
            (engine or workers.run)(run, progress=progress, **options)
            run.commit()
        return run

    def explain(self) -> str:
        """What is done, in lines for people."""
        lines = [f"{self.source.spelled} -> {self.target.spelled}"]
        for number, one in enumerate(self.passes, 1):
            what = "in one pass" if len(self.passes) == 1 else f"pass {number} of {len(self.passes)}"
            if number < len(self.passes):
                what += f", to {one.target.spelled}"
            again = f", each chunk {one.times_read:.2f} times" if one.times_read >= 1.005 else ""
            together = ", of chunks that are put together first" if one.assembled else ""
            read, written = counted(one.requests_read, "request"), counted(one.requests_written, "request")
            lines += [
                f"{what}: {counted(one.blocks.total, 'block')} of {'x'.join(map(str, one.block))}",
                f"  reads   {spelled_bytes(one.bytes_read)} in {read}{again}",
                f"  moves   {counted(one.work.moves, 'piece')}{together}",
                f"  writes  {spelled_bytes(one.bytes_written)} in {written}"
                + (", parts of chunks" if one.scatter else ""),
                f"  memory  {spelled_bytes(one.memory)} a task",
            ]
        told = f" ({self.rates.measured})" if self.rates.measured else ""
        source = f" and {spelled_bytes(self.held)} the source" if self.held else ""
        begin = "in all:" if self.workers == 1 else f"each of {self.workers} workers:"
        lines.append(
            f"{begin} {spelled_bytes(self.peak)} of {spelled_bytes(self.memory)} with "
            f"{counted(self.threads, 'task')} at a time, {spelled_bytes(self.base)} of it the "
            f"interpreter{source}; "
            f"about {duration(self.seconds)}{told}"
        )
        lines += self.notes
        return "\n".join(lines)


def duration(seconds: float) -> str:
    """A predicted time in the unit that suits it.

    >>> [duration(s) for s in (0.2, 119, 3600, 100_000, 10**7)]
    ['0 s', '119 s', '60 minutes', '28 hours', '116 days']
    """
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
