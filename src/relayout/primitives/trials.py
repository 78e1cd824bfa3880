"""Contests among the schedules of a problem: which are worth holding, and that each problem has one.

A sum of products, a transposed convolution, a gradient of weights and a recurrence each have schedules that
write the same bits. The first calls of all primitives that have one problem to solve hold its contest
together (:class:`relayout.runtime.tuning.Trial`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from relayout.forking import locked
from relayout.primitives.program import Program
from relayout.records import replace

if TYPE_CHECKING:
    from relayout.runtime.tuning import Trial

__all__ = ["Compiled", "Contested"]

MEASURABLE = 1e-5  # seconds that work takes at least for its schedules to be measured


class Compiled(NamedTuple):
    """Work by one of its schedules."""

    program: Program
    """Its note is the schedule."""

    def __str__(self) -> str:
        return self.program.note

    def own(self) -> Program:
        """The program for one primitive, with scratch of its own, which goes when the primitive goes."""
        return replace(self.program)


class Contested:
    """Work that can be done by several schedules; subclasses are frozen data."""

    @property
    def problem(self) -> str:
        """What the contest is about, on one line."""
        raise NotImplementedError

    def schedules(self) -> tuple[Sequence[Any], float]:
        """Those that are worth measuring, the estimate first, and about how many seconds that one takes."""
        raise NotImplementedError

    def compiled(self, schedule: Any) -> Any | None:
        """The work by a schedule, as something with a ``program``; None where there are no kernels."""
        raise NotImplementedError

    @locked
    def trial(self) -> Trial[Any, Any] | None:
        """The contest; None where there is one schedule, or too little to do."""
        from relayout.environment import effort
        from relayout.runtime import threads

        if effort() != "measure":
            return None
        several, seconds = self.schedules()
        return _trial(self, threads.count()) if len(several) > 1 and seconds >= MEASURABLE else None


@lru_cache(maxsize=1024)
@locked
def _trial(made: Contested, many: int) -> Trial[Any, Any]:
    from relayout.runtime.tuning import Trial, here

    listed, _ = made.schedules()
    return Trial(f"{made.problem} {here(many)}", lambda: listed, made.compiled, many)
