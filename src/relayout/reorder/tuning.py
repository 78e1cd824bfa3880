"""Measured choice for reorders: which schedule is fastest for a problem, found out in its first calls.

A problem is two descriptors, the attributes that take part, and a number of threads. All plans of a problem
share its :class:`Trial`. When it has been run :data:`BEGIN` times, its next calls each take another of the
:func:`~relayout.kernels.copy.schedule.candidates` (one call of each compiles it, some tens of
milliseconds) until the contest is decided; then every plan takes the winner, and a later process begins with
it.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

from relayout.forking import lock, locked
from relayout.kernels.copy.schedule import ESTIMATE, Schedule, candidates, read
from relayout.reorder.native import native
from relayout.runtime import threads
from relayout.runtime.tuning import Choice, Contest, effort, keep, kept

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.reorder.conversion import Conversion
    from relayout.reorder.native import Native, Shape

__all__ = ["Trial", "best", "known"]

BEGIN = 8  # calls of a problem before the contest begins: what is called less often is not worth it


def problem_of(src: MemoryDesc, dst: MemoryDesc, shape: Shape, many: int | None = None) -> str:
    """The problem on one line, with everything about the machine that the answer may depend on."""
    with lock():
        from relayout.targets.machine import host

        machine = host()
    attributes = " ".join(name if axis is None else f"{name}@{axis}" for name, axis in shape)
    caches = "/".join(str(size >> 10) for size in (machine.l1, machine.l2, machine.l3))
    words = (
        f"{src} -> {dst}",
        attributes,
        f"[{machine.cpu}, caches {caches} KiB, {threads.count(many)} threads]",
    )
    return " ".join(" ".join(filter(None, words)).split())


def best(
    src: MemoryDesc, dst: MemoryDesc, shape: Shape, many: int | None = None
) -> tuple[Native | None, Trial | None]:
    """The kernels by the schedule that is known to be best, and the contest that is still to be held.

    Without kernels the NumPy engine does it; without a contest nothing is to be measured, or it is known.
    """
    if effort() != "measure":
        return native(src, dst, shape), None
    held = _trial(src, dst, shape, many)
    return held.winner or native(src, dst, shape, held.first), None if held.done else held


def known(plan: Conversion) -> Choice | None:
    """What contests have found about the problem of a plan."""
    part = plan.attributes.taking_part(plan.src.dtype, plan.dst.dtype)
    return kept(problem_of(plan.src, plan.alike, part.shape, plan.threads))


@lru_cache(maxsize=512)
def _trial(src: MemoryDesc, dst: MemoryDesc, shape: Shape, many: int | None) -> Trial:
    return Trial(src, dst, shape, many)


class Trial:
    """A contest among the schedules of one problem, held by its calls.

    Attributes
    ----------
    first : Schedule
        What earlier processes have found to be fastest; else the estimate.
    winner : Native or None
        The kernels that won; None before the contest is over.
    done : bool
        Whether there is nothing left to measure.
    """

    def __init__(self, src: MemoryDesc, dst: MemoryDesc, shape: Shape, many: int | None = None) -> None:
        self._problem, self._many = (src, dst, shape), many
        self._calls = 0
        self._ways: list[Schedule] = []
        self._kernels: dict[int, Native] = {}
        self._contest: Contest | None = None
        self.winner: Native | None = None
        known = kept(problem_of(src, dst, shape, many))
        self._known = known
        self.first = (read(known.ranking[0][0]) if known is not None else None) or ESTIMATE
        self.done = known is not None and known.settled

    def call(self, source: int, target: int, operands: int, many: int | None) -> bool:
        """Do one call by the candidate whose turn it is; False: it is left to the caller."""
        if many != self._many or self.done:  # another number of threads is another problem
            return False
        if self._contest is None:
            self._calls += 1
            if self._calls <= BEGIN:
                return False
            self._begin()
        contest = self._contest
        turn = contest.turn() if contest is not None else None
        if contest is None or turn is None:
            self._end()
            return False
        kernels = self._kernels.get(turn) or self._compiled(turn)
        if kernels is None:
            contest.refuse(turn)
            return False
        start = time.perf_counter_ns()
        kernels(source, target, operands, many)
        contest.record(turn, time.perf_counter_ns() - start)
        return True

    @locked
    def _begin(self) -> None:
        if self._contest is not None:
            return
        from relayout.kernels.copy.choice import lowered
        from relayout.runtime.thresholds import streams
        from relayout.targets.machine import host

        src, dst, shape = self._problem
        first = native(src, dst, shape, ESTIMATE)
        if first is None:
            self.done = True
            return
        streaming = streams(host(), first.bytes)
        ways: dict[object, Schedule] = {}
        front = {name for name, _ in self._known.ranking} if self._known is not None else set()
        for way in candidates(streaming):
            if front and str(way) not in front and way != ESTIMATE:
                continue  # an earlier contest has left it behind
            plans = lowered(first.refined(), way)
            ways.setdefault((plans, streaming if way.stream is None else way.stream), way)
        self._ways = list(ways.values())
        self._contest = Contest(len(self._ways))

    @locked
    def _compiled(self, turn: int) -> Native | None:
        found = native(*self._problem, self._ways[turn])
        if found is not None:
            self._kernels[turn] = found
        return found

    @locked
    def _end(self) -> None:
        contest = self._contest
        if contest is None or contest.winner is None or self.done:
            return
        self.winner = self._kernels.get(contest.winner) or self._compiled(contest.winner)
        found = [(str(self._ways[k]), ratio) for k, ratio in contest.ranking()]
        before = self._known or Choice(problem_of(*self._problem, self._many), 0, ())
        keep(before.joined(found))
        self._kernels.clear()
        self.done = True
