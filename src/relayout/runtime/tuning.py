"""Choosing by measuring: the same work in several ways, and which of them is fastest on this machine.

What is fastest depends on caches, prefetchers and memory, so an estimate is only where measuring begins. A
:class:`Contest` hands out candidates to calls that have work to do anyhow, collects how long each took, and
drops those that fall behind::

    round 1    all, a turn each; afterwards whoever is far behind the best is out
    round 2..  the same with less patience; every other round in the other direction
    the end    the best by the lower quartile of its times, if it beats the estimate by more than noise does

A turn is two calls, of which the second is timed: the first loads the code, and finds in the caches what
another candidate has left there. One that writes around the caches would be timed with lines that others have
brought in, and leave its neighbour with none. Where calls take longer than :data:`LONG`, that no longer
counts, and from the second round on a turn is one call.

Other programs make calls slower, never faster, so of a candidate's times the short ones tell what it can do;
the very shortest may be luck. Of one thread that works alone its processor time is taken: that goes on only
while the thread runs, and so does not count what others take away from it. Every call does real work and
gives the same bytes, whatever candidate it gets.

What was found is kept beside the kernels on disk (:class:`Choice`), one entry for each problem and machine:
the candidates that came out in front, and how many contests agree. Noise must not fix a bad choice for ever:
the first :data:`AGREE` processes that use a problem often hold a contest of their own among those in front
(with the estimate), and their ratios are averaged; where the estimate was left alone, among all. After
:data:`STALE` seconds it begins anew, with all candidates and no memory of their ratios.

``RELAYOUT_EFFORT=estimate`` measures nothing and reads no choices: what runs depends on the problem alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from relayout.forking import lock, locked
from relayout.jit import cache

__all__ = [
    *("BEGIN", "Choice", "Contest", "Trial"),
    *("choices", "entry", "forget", "here", "keep", "kept", "state"),
]

BEGIN = 8  # calls of a problem before its contest begins: what is called less often is not worth it
TRIALS = 1000  # calls that are more than any contest takes
ROUNDS = 6  # rounds of a contest
TURN = 2  # calls in a row of a candidate, the last of which is timed
LONG = 10e6  # nanoseconds of a call beside which filling the caches anew is nothing
PATIENCE = (4, 1.4, 1.2, 1.1, 1.1)
"""After each round but the last: how many times the best's time a candidate may take to stay.

By the least of its times so far. After one round that may be a call that was held up, so that only what is
hopeless goes.
"""
NOISE = 0.97  # of the estimate's time; what takes more is not called faster
AGREE = 3  # contests, in different processes, until a choice is taken as it is
STALE = 30 * 86400  # seconds after which it no longer is
KEPT = 4  # candidates of a choice that are remembered
VERSION = 29  # of entries on disk; counted up when candidates change their meaning, or there are new ones
_PREFIX = "choice-"
_STATE = f"chosen-{cache.digest(b'state').hex()}"


class Contest:
    """A contest among so many candidates; number 0 is the estimate. Threads take turns.

    Examples
    --------
    >>> contest = Contest(3)
    >>> while (turn := contest.turn()) is not None:
    ...     contest.record(turn, (30, 20, 90)[turn])
    >>> contest.winner, [(k, round(ratio, 2)) for k, ratio in contest.ranking()]
    (1, [(1, 0.67), (0, 1.0)])
    """

    def __init__(self, candidates: int) -> None:
        self.winner: int | None = 0 if candidates < 2 else None
        self._alive = list(range(candidates))
        self._times: list[list[float]] = [[] for _ in range(candidates)]
        self._calls = [0] * candidates
        self._round, self._next, self._turn = 1, 0, TURN

    def turn(self) -> int | None:
        """The candidate that the next call takes; None: the contest is over, or others end its last round."""
        with lock():
            if self.winner is not None:
                return None
            if self._next == self._turn * len(self._alive):
                self._end_round()
                if self.winner is not None:
                    return None
            place = self._next // self._turn
            self._next += 1
            return self._alive[-1 - place if self._round % 2 else place]

    def record(self, candidate: int, taken: float) -> None:
        """Note how many nanoseconds a call with a candidate took; only the last one of a turn counts."""
        with lock():
            self._calls[candidate] += 1
            if self._calls[candidate] % self._turn == 0:
                self._times[candidate].append(taken)

    def refuse(self, candidate: int) -> None:
        """Leave a candidate out that can't do the work."""
        with lock():
            self._times[candidate] = []

    def ranking(self) -> list[tuple[int, float]]:
        """Those that stayed to the end, fastest first, each with its time as a multiple of the estimate's."""
        found = {k: _short(self._times[k]) for k in self._alive if self._times[k]}
        estimate = _short(self._times[0]) if self._times[0] else 0.0
        if not estimate:
            return [(0, 1.0)]
        return [(k, found[k] / estimate) for k in sorted(found, key=found.__getitem__)]

    def _end_round(self) -> None:
        self._next = 0
        best = min((min(self._times[k]) for k in self._alive if self._times[k]), default=0.0)
        most = PATIENCE[self._round - 1] * best if self._round < ROUNDS else float("inf")
        self._alive = [k for k in self._alive if k == 0 or min(self._times[k], default=most + 1) <= most]
        self._round += 1
        self._turn = 1 if best > LONG else TURN
        if self._round <= ROUNDS and len(self._alive) > 1:
            return
        ahead = self.ranking()[0]
        self.winner = ahead[0] if ahead[1] < NOISE else 0


def _short(times: Sequence[float]) -> float:
    """The lower quartile.

    >>> _short([3, 90, 4, 5, 80, 70])
    4
    """
    return sorted(times)[len(times) // 4]


Schedule = TypeVar("Schedule")
Executable = TypeVar("Executable")


class Trial(Generic[Schedule, Executable]):
    """A contest among the schedules of one problem, held by the calls that have this problem to solve.

    When these have been :data:`BEGIN`, the next ones each take another schedule (the first call of each
    compiles it, some tens of milliseconds), until the contest is decided. Then all take the winner, and a
    later process begins with it.

    Parameters
    ----------
    problem : str
        The problem on one line, with everything about the machine that the answer depends on (:func:`here`).
    listed : callable
        The schedules worth measuring, the estimate first. Each prints itself, differently from all others.
    made : callable
        A schedule compiled; None where it can't do the work.
    threads : int, optional
        How many work in a call. Without it, or if they are several, calls are timed by the clock.

    Attributes
    ----------
    problems : tuple of str
        The problem, alone; see :class:`relayout.primitives.several.Contests`.
    first : str
        The schedule that this contest, or earlier processes, found to be fastest; empty: nothing is known.
    winner : Executable or None
        What won; None before the contest is over.
    done : bool
        Whether there is nothing left to measure.
    lasts : tuple of int
        From when to when what is known is taken as it is, in seconds since the epoch; zeros: for ever.

    Examples
    --------
    >>> trial = Trial("a sum", lambda: ["estimate", "other"], {"estimate": sum, "other": sum}.get)
    >>> trial.call(print)  # the first calls take the estimate
    False
    """

    def __init__(
        self,
        problem: str,
        listed: Callable[[], Sequence[Schedule]],
        made: Callable[[Schedule], Executable | None],
        threads: int = 0,
    ) -> None:
        self._alone = threads == 1
        self.problem, self._listed, self._made = problem, listed, made
        self.problems = (problem,)
        self._calls = 0
        self._schedules: list[Schedule] = []
        self._executables: dict[int, Executable] = {}
        self._contest: Contest | None = None
        known = kept(problem)
        self._known = known if known is not None and known.age < STALE else None  # what this contest joins
        self.winner: Executable | None = None
        self.first = known.ranking[0][0] if known is not None else ""
        self.done = known is not None and known.settled
        self.lasts = known.lasts if known is not None and self._known is not None else (0, 0)

    def due(self) -> None:
        """Begin with the next call: there have been enough of them."""
        self._calls = max(self._calls, BEGIN)

    def call(self, run: Callable[[Executable], object]) -> bool:
        """Do one call by the schedule whose turn it is; False: it is left to the caller."""
        if self.done:
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
        executable = self._executables.get(turn) or self._compiled(turn)
        if executable is None:
            contest.refuse(turn)
            return False
        contest.record(turn, _nanoseconds(partial(run, executable), self._alone))
        return True

    def hold(self, work: Callable[[], object]) -> None:
        """Hold all of the contest now: do the work, which uses :meth:`call`, until it is decided."""
        for _ in range(TRIALS):
            work()
            if self.done:
                return

    @locked
    def _begin(self) -> None:
        if self._contest is not None:
            return
        listed = list(self._listed())
        front = {name for name, _ in self._known.ranking} if self._known is not None else set()
        near = [one for one in listed[1:] if str(one) in front]
        if near:  # the others were left behind by an earlier contest; the estimate alone could only agree
            listed = [listed[0], *near]
        self._schedules, self._contest = listed, Contest(len(listed))
        self.done = not listed

    @locked
    def _compiled(self, turn: int) -> Executable | None:
        found = self._made(self._schedules[turn])
        if found is not None:
            self._executables[turn] = found
        return found

    @locked
    def _end(self) -> None:
        contest = self._contest
        if contest is None or contest.winner is None or self.done:
            return
        self.winner = self._executables.get(contest.winner) or self._compiled(contest.winner)
        self.first = str(self._schedules[contest.winner])
        found = [(str(self._schedules[k]), ratio) for k, ratio in contest.ranking()]
        keep((self._known or Choice(self.problem, 0, ())).joined(found))
        self._executables.clear()
        self.done = True


def _nanoseconds(work: Callable[[], object], alone: bool) -> int:
    """How long it takes; where the calling thread does it alone, without the time in which it was held up."""
    before = time.thread_time_ns() if alone else 0
    start = time.perf_counter_ns()
    work()
    taken = time.perf_counter_ns() - start
    own = time.thread_time_ns() - before if alone else 0
    return min(own, taken) if own > 0 else taken  # where clocks of threads tick slowly, it may be none


def here(threads: int) -> str:
    """What a choice depends on besides the problem: the processor, its caches, the number of threads."""
    with lock():
        from relayout.targets.machine import host

        machine = host()
    caches = "/".join(str(size >> 10) for size in (machine.l1, machine.l2, machine.l3))
    return f"[{machine.cpu}, caches {caches} KiB, {threads} threads]"


# -- what was found, on disk --------------------------------------------------------------------------------


class Choice(NamedTuple):
    """What contests about a problem have found."""

    problem: str
    """The problem, and the machine, on one line."""
    contests: int
    """How many contests agree that the first is ahead."""
    ranking: tuple[tuple[str, float], ...]
    """Candidates, best first, by what they print, each with its time as a multiple of the estimate's."""
    age: float = 0.0
    """Seconds since the last contest."""
    when: int = 0
    """When that was, in seconds since the epoch."""

    @property
    def settled(self) -> bool:
        """Whether it is taken as it is, without another contest."""
        return self.contests >= AGREE and self.age < STALE

    @property
    def lasts(self) -> tuple[int, int]:
        """From when to when it does not belong to another age."""
        return self.when - STALE, self.when + STALE

    def joined(self, found: Sequence[tuple[str, float]]) -> Choice:
        """Join this choice and another contest: ratios are averaged, and agreement is counted.

        >>> old = Choice("p", 1, (("a", 0.5), ("estimate", 1.0)))
        >>> old.joined([("a", 0.7), ("estimate", 1.0)])[1:3]
        (2, (('a', 0.6), ('estimate', 1.0)))
        >>> old.joined([("estimate", 1.0)])[1:3]
        (1, (('estimate', 1.0),))
        """
        before = dict(self.ranking)
        mean = [(name, round((ratio + before.get(name, ratio)) / 2, 4)) for name, ratio in found]
        mean.sort(key=_rank)
        first = self.ranking[0][0] if self.ranking else ""
        agrees = any(name == first and ratio * NOISE <= mean[0][1] for name, ratio in mean)
        if agrees:  # whoever was ahead stays there unless another one beats it by more than noise
            mean.sort(key=lambda entry: entry[0] != first)
        return Choice(self.problem, self.contests + 1 if agrees else 1, tuple(mean[:KEPT]))


def _rank(entry: tuple[str, float]) -> tuple[float, bool]:
    """Fastest first; who is ahead of the estimate (1.0) by no more than noise comes behind it."""
    ratio = entry[1]
    return (ratio if ratio < NOISE else max(ratio, 1.0)), ratio != 1.0


def entry(problem: str) -> str:
    """The name of the entry on disk with the choice about a problem."""
    return f"{_PREFIX}{cache.digest(f'{VERSION} {problem}'.encode()).hex()}"


def kept(problem: str) -> Choice | None:
    """What is known of a problem; None where nothing is, or nothing that can be read."""
    return _read(entry(problem), problem)


def keep(choice: Choice) -> None:
    """Remember a choice for later processes."""
    lines = [choice.problem, str(choice.contests), str(int(time.time()))]
    lines += [f"{ratio:.4f} {name}" for name, ratio in choice.ranking]
    cache.save(entry(choice.problem), "\n".join(lines).encode())
    cache.save(_STATE, f"{time.time_ns()} {os.getpid()}".encode())


def state() -> str:
    """What changes whenever a choice is kept or forgotten: for those who keep what follows from choices."""
    return (cache.load(_STATE) or b"").decode(errors="replace")


def choices() -> Iterator[Choice]:
    """Everything that is known on this machine."""
    folder = cache.folder()
    for name in sorted(os.listdir(folder)) if folder is not None else ():
        if name.startswith(_PREFIX):
            found = _read(name, None)
            if found is not None:
                yield found


def forget() -> int:
    """Forget all choices; how many there were. What can't be deleted, a folder of such a name, stays."""
    folder, count = cache.folder(), 0
    for name in os.listdir(folder) if folder is not None else ():
        if folder is not None and name.startswith(_PREFIX):
            with contextlib.suppress(OSError):
                os.unlink(f"{folder}/{name}")
                count += 1
    if folder is not None:
        cache.save(_STATE, f"{time.time_ns()} {os.getpid()}".encode())
    return count


def _read(name: str, problem: str | None) -> Choice | None:
    data = cache.load(name)
    lines = data.decode(errors="replace").split("\n") if data else []
    try:
        head, contests, when, *rest = lines
        ranking = tuple((text, float(ratio)) for ratio, _, text in (line.partition(" ") for line in rest))
        age = abs(time.time() - int(when))  # a clock that was ahead must not keep a choice for good
        found = Choice(head, int(contests), ranking, age, int(when))
    except (ValueError, OverflowError):
        return None
    return found if ranking and (problem is None or head == problem) else None
