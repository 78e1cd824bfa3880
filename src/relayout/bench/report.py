"""What the results say: tables for people, JSON for programs.

The figures that sum up a suite, for each number of threads:

* the geometric mean of all ratios to ``memcpy``, and the share of cases that take at most twice its time;
* the same without small tensors and 4-bit types, and how many of these take more than three times its time;
* for each peer: in how many cases of 256 KiB or more Relayout is faster, or as fast within 5 %, and the
  geometric mean of how much.

Cases in which other processes took the cores (*disturbed* ones, :mod:`relayout.bench.load`) say little about
anybody, and less about the peers. They count in none of these figures, in no table by group and not in the
picture; but they are listed, and marked, in the JSON and among the slowest cases.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from relayout.bench.measure import COPY, OURS, Result
from relayout.bench.overhead import Overhead
from relayout.bench.pieces import as_plain

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Report", "Summary", "Wins", "as_json", "geometric_mean", "show"]

GOAL, SLOW = 2.0, 3.0  # multiples of memcpy
SMALL, COMPARED = 64 << 10, 256 << 10  # bytes
TIE = 0.95  # of our time: a peer that takes less is faster
LISTED = 12  # lines of a list of cases


@dataclass
class Report:
    """Everything that one run measured.

    Attributes
    ----------
    machine : dict
        Processor, cores, versions.
    peers : dict of str to str or None
        The version of each peer; None where it is not installed.
    settings : dict
        What the run was asked for.
    results : list of Result
        One for each case and number of threads.
    overheads : list of Overhead
        Figures of calls.
    planned : int
        How many results there would be if nobody had interrupted the run.
    """

    machine: dict[str, Any]
    peers: dict[str, str | None]
    settings: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    overheads: list[Overhead] = field(default_factory=list)
    planned: int = 0

    @property
    def threads(self) -> list[int]:
        """The numbers of threads that there are results for."""
        return sorted({r.threads for r in self.results})

    @property
    def is_complete(self) -> bool:
        """Whether all that was planned was measured."""
        return len(self.results) >= self.planned

    @property
    def contestants(self) -> list[str]:
        """Relayout, and the peers that took part in some case."""
        seen = {name for r in self.results for name in r.ratios}
        return [name for name in (OURS, *self.peers) if name in seen]

    def ratios(self, group: str | None, name: str, threads: int) -> list[float]:
        """The ratios of a contestant in the undisturbed cases of a group (None: of all groups)."""
        return [
            r.ratios[name].median
            for r in self.results
            if r.threads == threads and not r.disturbed and group in (r.case.group, None) and name in r.ratios
        ]


class Wins(NamedTuple):
    """How Relayout and a peer compare, in cases of some size."""

    slower: int
    """Cases in which the peer is slower."""
    ties: int
    """Cases in which it is not, but faster by no more than 5 %."""
    cases: int
    """How many there are."""
    factor: float
    """Geometric mean of the peer's time / ours."""


@dataclass(frozen=True)
class Summary:
    """The figures that sum up the undisturbed results of one number of threads."""

    threads: int
    cases: int
    """How many there are."""
    mean: float
    """Geometric mean of the ratios to ``memcpy``."""
    within: float
    """The share of cases at most at :data:`GOAL`."""
    slow: list[str]
    """Cases above :data:`SLOW` that are not excused."""
    counted: int
    """Cases that would not be excused."""
    counted_mean: float
    """Geometric mean of their ratios."""
    counted_within: float
    """The share of them at most at :data:`GOAL`."""
    wins: dict[str, Wins]
    """By peer."""
    disturbed: int
    """Cases that were left out because other processes took cores that were needed."""

    @classmethod
    def of(cls, results: Sequence[Result], threads: int) -> Summary:
        """Sum up."""
        every = [r for r in results if r.threads == threads]
        mine = [r for r in every if not r.disturbed]
        counted = [r for r in mine if r.case.bytes >= SMALL and not r.case.has_nibbles]
        wins = {}
        for peer in dict.fromkeys(name for r in mine for name in r.behind):
            factors = [r.behind[peer].median for r in mine if peer in r.behind and _compares(r)]
            slower, tied = sum(f > 1 for f in factors), sum(TIE <= f <= 1 for f in factors)
            wins[peer] = Wins(slower, tied, len(factors), geometric_mean(factors))
        return cls(
            threads,
            len(mine),
            geometric_mean(_ours(r) for r in mine),
            _within(mine),
            [str(r.case) for r in counted if _ours(r) > SLOW],
            len(counted),
            geometric_mean(_ours(r) for r in counted),
            _within(counted),
            wins,
            len(every) - len(mine),
        )

    def lines(self) -> list[str]:
        """The summary in sentences."""
        found = [f"{_threads(self.threads)}: no case was undisturbed"]
        if self.cases:
            found = [
                f"{_threads(self.threads)}: {_number(self.cases, 'case')}, geometric mean {self.mean:.2f}, "
                f"{self.within:.0%} at most {GOAL}"
            ]
        if self.counted:
            found.append(
                f"  of 64 KiB or more, without 4-bit types: {_number(self.counted, 'case')}, geometric mean "
                f"{self.counted_mean:.2f}, {self.counted_within:.0%} at most {GOAL}, "
                f"{len(self.slow)} above {SLOW}"
            )
        if self.disturbed:
            found.append(
                f"  DISTURBED: {_number(self.disturbed, 'case')} left out, during which other processes took "
                "the cores; measure on a quiet machine"
            )
        for peer, (won, ties, cases, factor) in self.wins.items():
            if cases:
                found.append(
                    f"  {peer}: slower in {won} of {_number(cases, 'case')} of 256 KiB or more, as fast "
                    f"within 5 % in {ties}, takes {factor:.2f} times as long (geometric mean)"
                )
        return found


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing.

    >>> geometric_mean([1, 4])
    2.0
    """
    logarithms = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logarithms)) if logarithms else math.nan


def as_json(report: Report) -> str:
    """The report as JSON: particulars, the summary, and every result."""
    return json.dumps(
        {
            "machine": report.machine,
            "peers": report.peers,
            "settings": report.settings,
            "complete": report.is_complete,
            "summary": [_summary_row(Summary.of(report.results, n)) for n in report.threads],
            "overheads": [{"name": o.name, "unit": o.unit, **o.spread._asdict()} for o in report.overheads],
            "results": [as_plain(r) for r in report.results],
        },
        indent=1,
        ensure_ascii=False,
    )


def show(report: Report, console: Console) -> None:
    """Print the tables."""
    for n in report.threads:
        _groups(report, n, console)
    for n in report.threads:
        for line in Summary.of(report.results, n).lines():
            console.print(line)
    _slowest(report, console)
    _lost(report, console)
    _notes(report, console)
    _calls(report, console)
    if not report.is_complete:
        console.print(f"INTERRUPTED: {len(report.results)} of {report.planned} results, the rest is missing")


def _ours(result: Result) -> float:
    return result.ratios[OURS].median


def _within(results: Sequence[Result]) -> float:
    """The share of results at most at :data:`GOAL`."""
    return sum(_ours(r) <= GOAL for r in results) / len(results) if results else math.nan


def _compares(result: Result) -> bool:
    """Whether a case is fit for comparing with peers."""
    return result.case.bytes >= COMPARED and not result.disturbed


def _threads(count: int) -> str:
    return _number(count, "thread")


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _summary_row(summary: Summary) -> dict[str, Any]:
    return {
        "threads": summary.threads,
        "cases": summary.cases,
        "geometric_mean": _or_none(summary.mean),
        "at_most_2": _or_none(summary.within),
        "above_3": summary.slow,
        "above_3_of": summary.counted,
        "counted": {
            "cases": summary.counted,
            "geometric_mean": _or_none(summary.counted_mean),
            "at_most_2": _or_none(summary.counted_within),
        },
        "disturbed": summary.disturbed,
        "peers": {
            peer: {"slower": won, "ties": ties, "of": cases, "geometric_mean": _or_none(factor)}
            for peer, (won, ties, cases, factor) in summary.wins.items()
        },
    }


def _or_none(figure: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(figure) else figure


def _groups(report: Report, threads: int, console: Console) -> None:
    from rich.table import Table

    groups = list(dict.fromkeys(r.case.group for r in report.results))
    console.print(f"time / {COPY}, {_threads(threads)}: geometric means (undisturbed cases)")
    table = Table()
    table.add_column("group", no_wrap=True)
    for name in report.contestants:
        table.add_column(name, justify="right", no_wrap=True)
    for group in [*groups, None] if len(groups) > 1 else groups:
        found = [report.ratios(group, name, threads) for name in report.contestants]
        cells = [f"{geometric_mean(values):.2f} ({len(values)})" if values else "-" for values in found]
        table.add_row(group or "all", *cells, style=None if group else "bold")
    console.print(table)


def _slowest(report: Report, console: Console) -> None:
    from rich.table import Table

    console.print(
        "slowest cases (* disturbed)" if any(r.disturbed for r in report.results) else "slowest cases"
    )
    table = Table()
    for heading in ("case", "threads", f"/ {COPY}", "quartiles", "engine"):
        table.add_column(heading, no_wrap=heading != "engine")
    for r in sorted(report.results, key=lambda r: -_ours(r))[:LISTED]:
        ratio = r.ratios[OURS]
        table.add_row(
            str(r.case),
            str(r.threads),
            f"{ratio.median:.2f}{' *' * r.disturbed}",
            f"{ratio.low:.2f} .. {ratio.high:.2f}",
            r.engine,
        )
    console.print(table)


def _lost(report: Report, console: Console) -> None:
    """Cases of some size in which a peer is faster."""
    from rich.table import Table

    lost = [
        (factor, name, r)
        for r in report.results
        if _compares(r)
        for name, factor in r.behind.items()
        if factor.median < 1
    ]
    if not lost:
        return
    lost.sort(key=lambda row: row[0].median)
    console.print(f"a peer is faster, 256 KiB or more: {len(lost)} in all")
    table = Table()
    for heading in ("case", "threads", "peer", "its time / ours", "quartiles"):
        table.add_column(heading, no_wrap=True)
    for factor, name, r in lost[:LISTED]:
        table.add_row(
            str(r.case),
            str(r.threads),
            name,
            f"{factor.median:.2f}",
            f"{factor.low:.2f} .. {factor.high:.2f}",
        )
    console.print(table)


def _notes(report: Report, console: Console) -> None:
    notes = dict.fromkeys((name, str(r.case), note) for r in report.results for name, note in r.notes.items())
    if not notes:
        return
    console.print(
        f"results that differ from ours: {len(notes)} (relayout.convert tells where oneDNN departs)"
    )
    for name, case, note in list(notes)[:LISTED]:
        console.print(f"  {name}, {case}: {note}")


def _calls(report: Report, console: Console) -> None:
    from rich.table import Table

    if not report.overheads:
        return
    console.print("calls")
    table = Table()
    for heading in ("what", "median", "quartiles"):
        table.add_column(heading, no_wrap=True)
    for name, unit, s in report.overheads:
        table.add_row(name, f"{s.median:.3g} {unit}", f"{s.low:.3g} .. {s.high:.3g}")
    console.print(table)
