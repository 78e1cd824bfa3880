"""Measuring one case: buffers, ``memcpy``, rounds and ratios.

The steps for a case and a number of threads:

1. The source is filled with sensible values, the destination is written to, so that its pages are there.
2. Everybody moves once, untimed, and the bytes that peers leave are compared with ours.
3. In each round everybody is timed in turn. With several threads those of others come to rest before
   (:func:`relayout.bench.load.settle`). Short calls are repeated until they take :data:`LEAST` seconds
   together, after :data:`WARM` seconds of calls that are not counted: the first two or three find others'
   data in the caches, a processor that has slept, and threads that do. So small tensors are measured in warm
   caches, ``memcpy`` as well.
4. A ratio is taken within the round. The result is the median of all rounds, with quartiles.

A case has a budget of seconds, shared equally. A peer that has used up its share takes part in no further
rounds; there are none when ``memcpy`` or Relayout has. Everybody takes part in the first.
"""

from __future__ import annotations

import ctypes
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.bench.load import Load, disturbed, settle
from relayout.bench.peers import Peer
from relayout.bench.suite import Case
from relayout.jit.compile import available
from relayout.layout.descriptor import MemoryDesc
from relayout.primitives.reorder import Reorder
from relayout.runtime.memcpy import memcpy_kernel
from relayout.runtime.sharing import SHARED, parts_of
from relayout.runtime.threads import run, share
from relayout.tensor import address, allocate

__all__ = [
    "COPY",
    "FEWER",
    "OURS",
    "Result",
    "Spread",
    "Stopwatch",
    "copier",
    "figures",
    "filled",
    "in_rounds",
    "measured",
    "spread",
]

COPY, OURS = "memcpy", "Relayout"
FEWER = f"{OURS}, auto"
"""Relayout where convolutions may do with fewer products than the definition has (``algorithm="auto"``)."""

LEAST = 2e-3  # seconds that one timing takes at least
WARM = 2e-3  # seconds of calls before it
COLD = 10e-3  # seconds from which on a call is no warmer when it is repeated
SURE = 100e-3  # seconds from which on a call is so long that an interruption hardly shows
LINE = 64  # bytes that threads of Python cut at
WAVERS = 1.25  # times the lower quartile: an upper one from which on a figure is marked
UNTOUCHED = 0xA5  # what the destination holds before a peer writes

_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcpy.restype = ctypes.c_void_p


class Spread(NamedTuple):
    """A median and its quartiles."""

    median: float
    low: float
    high: float

    @property
    def wavers(self) -> bool:
        """Whether something disturbed a good part of the rounds.

        >>> Spread(1.0, 0.9, 1.0).wavers, Spread(1.0, 0.9, 1.5).wavers
        (False, True)
        """
        return self.high > WAVERS * self.low


@dataclass(frozen=True)
class Result:
    """What one case gave with one number of threads.

    Attributes
    ----------
    case : Case
        What was measured.
    threads : int
        How many threads everybody was allowed.
    engine : str
        How Relayout does it: the kernels, or NumPy.
    seconds : dict of str to Spread
        The time of one call, by contestant; ``memcpy`` is one of them.
    ratios : dict of str to Spread
        Time divided by that of ``memcpy`` in the same round.
    behind : dict of str to Spread
        By peer: its time divided by ours in the same round; less than 1 where the peer is faster.
    rounds : dict of str to int
        In how many rounds each took part.
    notes : dict of str to str
        By peer: how its result differs from ours. Peers that agree have no entry.
    others : float or None
        Cores that other processes used meanwhile; None where the system does not tell.
    """

    case: Case
    threads: int
    engine: str
    seconds: dict[str, Spread]
    ratios: dict[str, Spread]
    behind: dict[str, Spread]
    rounds: dict[str, int]
    notes: dict[str, str] = field(default_factory=dict)
    others: float | None = None

    @property
    def disturbed(self) -> bool:
        """Whether other processes took cores that the threads needed; see :mod:`relayout.bench.load`."""
        return disturbed(self.threads, self.others)

    @property
    def gigabytes(self) -> float:
        """Bytes read and written by ``memcpy`` in a second, in units of 10**9."""
        return 2 * self.case.bytes / self.seconds[COPY].median / 1e9


def measured(
    case: Case,
    threads: Sequence[int],
    rounds: int,
    seconds: float,
    peers: Sequence[Peer],
    load: Load | None = None,
) -> Iterator[Result]:
    """Measure a case with each number of threads.

    Parameters
    ----------
    case : Case
        The reorder.
    threads : sequence of int
        Numbers of threads, one result for each.
    rounds : int
        How often everybody is timed, if time allows.
    seconds : float
        The time that the rounds of one number of threads may take. One round is always made.
    peers : sequence of Peer
        Whom to compare with. One that can't do the case does not take part.
    load : Load, optional
        What knows how busy others are; one that serves several cases knows better.
    """
    load = load or Load()
    source, target = filled(case), allocate(case.target)
    taken, given = (allocate(case.copied) for _ in range(2))
    taken[:], given[:] = 1, 2
    for count in threads:
        target[:] = UNTOUCHED
        plan = Reorder(case.source, case.target, threads=count, **case.attribute_values())
        plan.tune()  # as its first calls would
        contestants = {
            COPY: Stopwatch(copier(address(given), address(taken), case.bytes, count)),
            OURS: Stopwatch(partial(plan, source, target)),
        }
        ours = target.copy() if peers else target
        notes = {}
        for peer in peers:
            action = peer.prepare(case, source, target, count)
            if action is None:
                continue
            target[:] = UNTOUCHED
            contestants[peer.name] = Stopwatch(action)
            note = _difference(case.target, ours, target)
            if note is not None:
                notes[peer.name] = note
        del ours
        samples = in_rounds(contestants, rounds, seconds, count)
        result = Result(case, count, _engine(plan), **figures(samples, COPY))
        yield replace(result, notes=notes, others=load.others())


def copier(target: int, source: int, size: int, threads: int) -> Callable[[], object]:
    """``memcpy`` between two addresses, shared as kernels are: by the same threads, in as many parts."""
    if threads == 1 or 2 * size < SHARED:
        return partial(_memcpy, target, source, size)
    if not available():
        return partial(share, lambda a, b: _memcpy(target + a, source + a, b - a), size, threads, LINE)
    kernel, operands = memcpy_kernel(), np.array([size], np.int64)
    parts = parts_of(2 * size, threads)

    def copy() -> None:
        run(kernel, source, target, address(operands), parts, threads)

    return copy


class Stopwatch:
    """Times one action again and again.

    How often a short one is repeated follows from its fastest time so far, so that one interruption by the
    system is not taken for the length of the call. Making a stopwatch calls the action.
    """

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.fastest = _seconds(action, 1)
        if self.fastest < SURE:
            self.fastest = min(_seconds(action, 1) for _ in range(3))

    def __call__(self) -> float:
        """Seconds of one call."""
        if self.fastest < COLD:
            _seconds(self.action, max(1, math.ceil(WARM / max(self.fastest, 1e-7))))
        found = _seconds(self.action, max(1, math.ceil(LEAST / max(self.fastest, 1e-7))))
        self.fastest = min(self.fastest, found)
        return found


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles.

    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


def _seconds(action: Callable[[], object], turns: int) -> float:
    start = time.perf_counter()
    for _ in repeat(None, turns):
        action()
    return (time.perf_counter() - start) / turns


def in_rounds(
    contestants: Mapping[str, Callable[[], float]],
    rounds: int,
    seconds: float,
    threads: int,
    needed: Sequence[str] = (COPY, OURS),
    least: int = 1,
) -> dict[str, list[float]]:
    """The times of each, by round; those of whoever drops out are fewer.

    There are no further rounds when one of the needed has used up its share of the seconds, but in any case
    the ``least`` number of rounds, in which all take part. Each round has
    an order of its own, the same in every run: whoever came behind the same neighbour each time would have
    its heat and its caches.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    spent = dict.fromkeys(contestants, 0.0)
    share = seconds / len(contestants)
    for turn in range(rounds):
        if turn >= least and any(spent[name] > share for name in needed):
            break
        for name in random.Random(turn).sample(list(contestants), len(contestants)):
            if turn >= least and name not in needed and spent[name] > share:
                continue
            if threads > 1:
                settle()
            start = time.perf_counter()
            samples[name].append(contestants[name]())
            spent[name] += time.perf_counter() - start
    return samples


def figures(samples: dict[str, list[float]], yardstick: str) -> dict[str, Any]:
    """What a result says of the times of all: ``seconds``, ``ratios``, ``behind`` and ``rounds``."""

    def against(name: str, other: str) -> Spread:
        return spread([a / b for a, b in zip(samples[name], samples[other], strict=False)])

    peers = [name for name in samples if name not in (yardstick, OURS)] if OURS in samples else []
    return {
        "seconds": {name: spread(times) for name, times in samples.items()},
        "ratios": {name: against(name, yardstick) for name in samples if name != yardstick},
        "behind": {name: against(name, OURS) for name in peers},
        "rounds": {name: len(times) for name, times in samples.items()},
    }


def _engine(plan: Reorder) -> str:
    """What ``explain`` calls the engine."""
    lines = plan.explain().splitlines()
    return next(line.partition("engine")[2].strip() for line in lines if line.startswith("engine"))


def filled(case: Case) -> NDArray[np.uint8]:
    """A source with sensible values in it."""
    data = allocate(case.source)
    _fill(data, case.source_part())
    return data


def _fill(data: NDArray[np.uint8], part: NDArray[np.uint8]) -> None:
    whole = data.size // part.size * part.size
    data[:whole].reshape(-1, part.size)[...] = part
    data[whole:] = part[: data.size - whole]


def _difference(desc: MemoryDesc, ours: NDArray[np.uint8], theirs: NDArray[np.uint8]) -> str | None:
    """How many elements (or bytes of two elements) differ; None where all bits are the same."""
    if np.array_equal(ours, theirs):
        return None
    width = max(1, desc.dtype.bits // 8)
    one, two = (data.view(f"u{width}") for data in (ours, theirs))
    count, first = int(np.count_nonzero(one != two)), int(np.argmax(one != two))
    a, b = (_spelled(desc, data[first * width : (first + 1) * width]) for data in (ours, theirs))
    return f"{count} of {one.size} elements differ, first at {first}: {b}, ours {a}"


def _spelled(desc: MemoryDesc, element: NDArray[np.uint8]) -> Any:
    return element.view(desc.dtype.numpy)[0].item() if desc.dtype.bits >= 8 else hex(element[0])
