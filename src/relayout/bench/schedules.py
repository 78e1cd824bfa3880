"""Every schedule of a reorder, timed: how far the estimate is from the best of them.

A plan that is called often holds a contest, and one that must not (``RELAYOUT_EFFORT=estimate``) takes the
schedule that costs least by :mod:`relayout.kernels.copy.cost`. What the second loses is the time of that
schedule divided by that of the best. Schedules take turns within one process, with ``memcpy`` among them, so
that what other programs take away is taken from all::

    round 1    all of them; who takes more than 1.5 times as long as the best is timed no more
    round 2..  the others; every other round in the other direction

A turn is :data:`LEAST` seconds of calls, behind others that are not counted: each finds in the caches what
its own calls leave there. One thread is timed by its own processor time, several by the clock. What counts is
the lower quartile, since others make calls slower and never faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from relayout.bench.load import settle
from relayout.bench.measure import copier, filled
from relayout.bench.suite import Case
from relayout.primitives.reorder import Reorder
from relayout.reorder.native import Native, native
from relayout.tensor import address, allocate

__all__ = ["Figure", "Timed", "figure", "mean_loss"]

LEAST = 1e-3  # seconds of a turn that are counted, and of those before it that are not
HOPELESS = 1.5  # times the best of the first round: slower ones are timed no more


class Timed(NamedTuple):
    """A schedule, and what it takes."""

    wish: str
    """The words that it has and none that costs less; see :mod:`relayout.kernels.copy.candidates`."""
    cost: float
    """What it was estimated to take, as a multiple of the least."""
    seconds: float
    """What a call took: the lower quartile of the rounds."""


@dataclass(frozen=True)
class Figure:
    """What the schedules of one case took with one number of threads; the estimate is the first of them."""

    case: Case
    threads: int
    copy: float
    schedules: tuple[Timed, ...]

    @property
    def best(self) -> Timed:
        """The fastest."""
        return min(self.schedules, key=lambda one: one.seconds)

    @property
    def estimate(self) -> Timed:
        """The one that runs where nothing is measured."""
        return self.schedules[0]

    @property
    def loss(self) -> float:
        """The time of the estimate / that of the best."""
        return self.estimate.seconds / self.best.seconds

    def as_data(self) -> dict[str, Any]:
        """The figure as JSON has it."""
        return {
            "case": str(self.case),
            "group": self.case.group,
            "threads": self.threads,
            "loss": self.loss,
            "copy": self.copy,
            "schedules": [one._asdict() for one in self.schedules],
        }


def figure(case: Case, threads: int, rounds: int) -> Figure | None:
    """Time all schedules of a case.

    Parameters
    ----------
    case : Case
        The reorder.
    threads : int
        How many may work in a call.
    rounds : int
        How often each schedule is timed, unless it is hopeless.

    Returns
    -------
    Figure or None
        None where kernels don't do it, or too few bytes are moved for their plans to be told apart.

    Examples
    --------
    >>> found = figure(Case("mine", (256, 256), "ab", "ba", "f32", "f32"), 1, 1)
    >>> found.estimate.wish, found.loss >= 1
    ('estimate', True)
    """
    from relayout.reorder.choice import measurable

    source, target = filled(case), allocate(case.target)
    target[:] = 0
    plan = Reorder(case.source, case.target, threads=threads, **case.attribute_values())
    part = plan.attributes.taking_part(case.source.dtype, case.target.dtype)
    first = native(case.source, case.target, part.shape, many=threads)
    if first is None or not measurable(case.source, case.target):
        return None
    wishes = first.wishes()
    several = [native(case.source, case.target, part.shape, wish, threads) for wish in wishes]
    operands = first.operands(part)
    behind = 0 if operands is None else address(operands)

    def runs(made: Native) -> Callable[[], object]:
        return partial(made, address(source), address(target), behind, threads)

    taken, given = allocate(case.copied), allocate(case.copied)
    taken[:], given[:] = 1, 2
    actions = [copier(address(given), address(taken), case.bytes, threads)]
    actions += [runs(made) for made in several if made is not None]
    copy, *times = _times(actions, rounds, threads)
    costs = [made.cost for made in several if made is not None]
    named = zip(wishes, costs, times, strict=True)
    return Figure(case, threads, copy, tuple(Timed(wish, cost / costs[0], t) for wish, cost, t in named))


def _times(actions: Sequence[Callable[[], object]], rounds: int, threads: int) -> list[float]:
    """Seconds of a call of each; the first is never hopeless, and neither is the second."""
    times: list[list[float]] = [[] for _ in actions]
    alive = list(range(len(actions)))
    for turn in range(rounds):
        for k in alive[:: -1 if turn % 2 else 1]:
            if threads > 1:
                settle()
            times[k].append(_seconds(actions[k], threads == 1))
        most = HOPELESS * min(min(times[k]) for k in alive[1:])
        alive = [k for k in alive if k < 2 or min(times[k]) <= most]
    return [sorted(some)[len(some) // 4] for some in times]


def _seconds(action: Callable[[], object], alone: bool) -> float:
    """Of one call, behind others."""
    clock = time.thread_time if alone else time.perf_counter
    begin = time.perf_counter()
    calls = 0
    while not calls or time.perf_counter() - begin < LEAST:
        action()
        calls += 1
    start = clock()
    for _ in range(calls):
        action()
    return (clock() - start) / calls


def mean_loss(figures: Sequence[Figure]) -> float:
    """The geometric mean of what the estimate loses.

    >>> case = Case("mine", (2, 2), "ab", "ba", "f32", "f32")
    >>> one = Figure(case, 1, 1.0, (Timed("estimate", 1, 4.0), Timed("other", 2, 2.0)))
    >>> two = Figure(case, 1, 1.0, (Timed("estimate", 1, 4.0), Timed("other", 2, 8.0)))
    >>> round(mean_loss([one, two]), 3)
    1.414
    """
    return math.exp(sum(math.log(one.loss) for one in figures) / len(figures))
