"""A long run in pieces: results in a file, a line each, that later runs go on with.

The whole suite takes longer than anybody's patience, and often than the machine is quiet. So each result is
written down when it is there; a run with the same file measures what is missing, and the cases again during
which others took the cores. A run of limited time goes through the suite in an order in which whatever it
reaches is a fair sample of all groups.

>>> spread_out("abcdefgh")
['a', 'f', 'c', 'h', 'e', 'b', 'g', 'd']
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from relayout.bench import lines, measure
from relayout.bench.load import Load
from relayout.bench.measure import COPY, Result, Spread
from relayout.bench.peers import Peer
from relayout.bench.suite import Case

__all__ = ["Key", "Settings", "as_plain", "from_plain", "left", "read", "run", "spread_out", "write"]

Key = tuple[str, int]
"""A case on its line, and a number of threads."""

GOLDEN = (math.sqrt(5) - 1) / 2  # steps of this share of the whole come near every place soon

Item = TypeVar("Item")


@dataclass(frozen=True)
class Settings:
    """Rounds at most and seconds for them, and the minutes after which no case is begun."""

    rounds: int
    seconds: float
    minutes: float | None = None


def run(
    cases: Sequence[tuple[Case, Sequence[int]]],
    settings: Settings,
    peers: Sequence[Peer],
    results: Path | None,
    progress: Callable[[str], None],
) -> Iterator[Result]:
    """A result for each case and number of threads, written to the file of results, too.

    Parameters
    ----------
    cases : sequence of (Case, sequence of int)
        What is to be measured, and with which numbers of threads.
    settings : Settings
        How often, and for how long.
    peers : sequence of Peer
        Whom to compare with.
    results : Path or None
        The file.
    progress : callable
        Told what is measured next.
    """
    begun, load = time.monotonic(), Load()
    for case, threads in cases:
        if settings.minutes is not None and time.monotonic() - begun > 60 * settings.minutes:
            return
        progress(str(case))
        for found in measure.measured(case, threads, settings.rounds, settings.seconds, peers, load):
            if results is not None:
                write(found, results)
            yield found


def left(
    cases: Iterable[Case], threads: Sequence[int], known: dict[Key, Result]
) -> list[tuple[Case, list[int]]]:
    """The cases without an undisturbed result for each number of threads, and the numbers that they lack."""
    found = []
    for case in cases:
        several = [count for count in threads if _lacks(known.get((str(case), count)))]
        if several:
            found.append((case, several))
    return found


def _lacks(found: Result | None) -> bool:
    return found is None or found.disturbed


def spread_out(items: Sequence[Item]) -> list[Item]:
    """All items, in an order of which every beginning is spread over the whole."""
    count = len(items)
    step = max(1, round(count * GOLDEN))
    while math.gcd(step, count) > 1:
        step += 1
    return [items[k * step % count] for k in range(count)]


def read(path: Path) -> dict[Key, Result]:
    """The results of a file: the last one of each case and number of threads. A line cut off is none."""
    return {(str(one.case), one.threads): one for one in lines.entries(path, from_plain)}


def write(one: Result, path: Path) -> None:
    """Add a result to a file."""
    lines.add(as_plain(one), path)


def as_plain(result: Result) -> dict[str, Any]:
    """A result as JSON has it."""
    case = result.case
    return {
        "case": str(case),
        "group": case.group,
        "dims": case.dims,
        "src": case.src,
        "dst": case.dst,
        "src_dtype": case.src_dtype,
        "dst_dtype": case.dst_dtype,
        "attributes": dict(case.attributes),
        "bytes": case.bytes,
        "threads": result.threads,
        "engine": result.engine,
        "cores_used_by_others": None if result.others is None else round(result.others, 2),
        "disturbed": result.disturbed,
        "memcpy_gigabytes_per_second": round(result.gigabytes, 3),
        "contestants": {
            name: {
                "seconds": result.seconds[name]._asdict(),
                **({"ratio": result.ratios[name]._asdict()} if name != COPY else {}),
                **({"behind": result.behind[name]._asdict()} if name in result.behind else {}),
                "rounds": result.rounds[name],
                **({"note": result.notes[name]} if name in result.notes else {}),
            }
            for name in result.seconds
        },
    }


def from_plain(told: dict[str, Any]) -> Result:
    """The result that :func:`as_plain` has made this of."""
    case = Case(
        told["group"],
        tuple(told["dims"]),
        told["src"],
        told["dst"],
        told["src_dtype"],
        told["dst_dtype"],
        tuple(told["attributes"].items()),
    )
    names: dict[str, dict[str, Any]] = told["contestants"]

    def spreads(what: str) -> dict[str, Spread]:
        return {name: Spread(**one[what]) for name, one in names.items() if what in one}

    return Result(
        case,
        told["threads"],
        told["engine"],
        seconds=spreads("seconds"),
        ratios=spreads("ratio"),
        behind=spreads("behind"),
        rounds={name: one["rounds"] for name, one in names.items()},
        notes={name: one["note"] for name, one in names.items() if "note" in one},
        others=told["cores_used_by_others"],
    )
