"""What the results of primitives say: tables for people, JSON for programs.

A network is summed up by its time as a multiple of its time at the peak::

    ratio = sum over layers of (weight * median ratio) / sum over layers of weight
    weight = multiplications and additions of the layer, times how often the network has it

The share of the peak is 1 / ratio. Two contestants are compared over the layers that both can do; a sum that
not all layers are in says how many are. Cases in which other processes took the cores are left out of the
sums, as everywhere (:mod:`relayout.bench.load`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from relayout.bench.measure import FEWER, OURS
from relayout.bench.operands import Work
from relayout.bench.ours import ALIASES
from relayout.bench.passes import Pass
from relayout.bench.primitives import PEAK, Result

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Report", "Sum", "as_json", "show"]


class Sum(NamedTuple):
    """Two contestants over the layers of a group that both did."""

    ratio: float
    """Time / time at the peak."""
    against: float
    """Time / time of the other one."""
    layers: int
    """How many layers are summed up."""


@dataclass
class Report:
    """Everything that one run measured.

    Attributes
    ----------
    machine : dict
        Processor, cores, versions.
    peers : dict of str to str or None
        The version of each contestant but Relayout; None where it is not installed.
    settings : dict
        What the run was asked for.
    results : list of Result
        One for each task and number of threads.
    planned : int
        How many results there are when a run is not interrupted.
    """

    machine: dict[str, Any]
    peers: dict[str, str | None]
    settings: dict[str, Any]
    results: list[Result] = field(default_factory=list)
    planned: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all that was planned was measured."""
        return len(self.results) >= self.planned

    @property
    def threads(self) -> list[int]:
        """The numbers of threads that there are results for."""
        return sorted({r.threads for r in self.results})

    @property
    def groups(self) -> list[str]:
        """What is summed up, in the order of measuring."""
        return list(dict.fromkeys(r.case.group for r in self.results))

    @property
    def contestants(self) -> list[str]:
        """Relayout in formats that it chose, by both algorithms, and the peers: who took part in anything."""
        seen = self._seen()
        return [name for name in (OURS, FEWER, *self.peers) if name in seen]

    @property
    def formats(self) -> list[str]:
        """Relayout with the formats that it was given."""
        return [name for name in self._seen() if name.startswith(f"{OURS} ")]

    def _seen(self) -> list[str]:
        return list(dict.fromkeys(name for r in self.results for name in r.ratios))

    def quiet(self, group: str | None, threads: int) -> list[Result]:
        """The undisturbed results of a group (None: of all groups)."""
        return [
            r
            for r in self.results
            if r.threads == threads and not r.disturbed and group in (r.case.group, None)
        ]

    def ratios(self, group: str | None, name: str, threads: int) -> list[float]:
        """The ratios of a contestant in the undisturbed results of a group (None: of all groups)."""
        return [r.ratios[name].median for r in self.quiet(group, threads) if name in r.ratios]

    def sum(self, group: str, name: str, other: str, threads: int) -> Sum | None:
        """A group summed up over the layers that both contestants did; None where there are none."""
        both = [r for r in self.quiet(group, threads) if name in r.ratios and other in r.ratios]
        if not both:
            return None
        weights = [r.case.weight for r in both]
        one, two = (
            sum(weight * r.ratios[who].median for weight, r in zip(weights, both, strict=True))
            for who in (name, other)
        )
        return Sum(one / sum(weights), one / two, len(both))


def as_json(report: Report) -> str:
    """The report as JSON: particulars, the sums, and every result."""
    return json.dumps(
        {
            "machine": report.machine,
            "peers": report.peers,
            "settings": report.settings,
            "complete": report.is_complete,
            "sums": list(_sums(report)),
            "results": [_row(r) for r in report.results],
        },
        indent=1,
        ensure_ascii=False,
    )


def show(report: Report, console: Console) -> None:
    """Print the tables."""
    for threads in report.threads:
        _layers(report, threads, console)
    for threads in report.threads:
        _shares(report, threads, console)
        _behind(report, threads, console)
        _formats(report, threads, console)
    if not report.is_complete:
        console.print(f"INTERRUPTED: {len(report.results)} of {report.planned} results, the rest is missing")
    disturbed = sum(r.disturbed for r in report.results)
    if disturbed:
        console.print(
            f"DISTURBED: other processes took the cores in {disturbed} of {len(report.results)} cases, which "
            "are left out of the sums; measure on a quiet machine"
        )
    _notes(report, console)


def _sums(report: Report) -> Iterator[dict[str, Any]]:
    for threads in report.threads:
        for group in report.groups:
            base = _base(report, group, threads)
            for name in (*report.contestants, *report.formats):
                alone = report.sum(group, name, name, threads)
                both = report.sum(group, name, base, threads)
                if alone is not None:
                    yield {
                        "group": group,
                        "threads": threads,
                        "contestant": name,
                        "layers": alone.layers,
                        "ratio": alone.ratio,
                        "share_of_peak": 1 / alone.ratio,
                        "compared_with": base,
                        "behind": both and both.against,
                        "compared_layers": both.layers if both else 0,
                    }


def _row(result: Result) -> dict[str, Any]:
    task = result.case
    return {
        "case": str(task),
        "network": task.network,
        "batch": task.batch,
        "count": task.work.count,
        **({"bytes": task.amount} if isinstance(task.work, Pass) else {"flops": task.amount}),
        "threads": result.threads,
        f"peak_giga{'bytes' if isinstance(task.work, Pass) else 'flops'}_per_second": round(result.peak, 1),
        "cores_used_by_others": None if result.others is None else round(result.others, 2),
        "disturbed": result.disturbed,
        "contestants": {
            name: {
                "implementation": result.implementations[name],
                "seconds": result.seconds[name]._asdict(),
                "ratio": result.ratios[name]._asdict(),
                **({"behind": result.behind[name]._asdict()} if name in result.behind else {}),
                "rounds": result.rounds[name],
            }
            for name in result.seconds
            if name != PEAK
        },
        "notes": result.notes,
    }


def _base(report: Report, group: str, threads: int) -> str:
    """Whom others are compared with: Relayout, or where it does nothing of a group the first who does."""
    done = [name for name in report.contestants if report.ratios(group, name, threads)]
    return done[0] if done else OURS


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _count(report: Report, group: str, threads: int, layers: int) -> str:
    """How many layers a figure is of, where it is not all."""
    whole = sum(r.threads == threads and r.case.group == group for r in report.results)
    return f" ({layers} of {whole})" * (layers < whole)


def _name(work: Work) -> str:
    """A layer without its sizes, which ``--list`` prints."""
    times = f" x{work.count}" * (work.count > 1)
    return f"{str(work).partition(' ')[0]}{times}"


def _layers(report: Report, threads: int, console: Console) -> None:
    from rich.table import Table

    names = report.contestants
    what = "medians, and quartiles of the first (*: disturbed, ~: wavers between quartiles)"
    title = f"time / time at the peak, {_threads(threads)}: {what}"

    table = Table(title=title, title_justify="left")
    table.add_column("layer", no_wrap=True)
    for name in ("at the peak", *names):
        table.add_column(name, justify="right")
    for group in report.groups:
        table.add_section()
        table.add_row(group, style="bold")
        for r in (r for r in report.results if r.threads == threads and r.case.group == group):
            cells = [
                f"{'~' * r.seconds[name].wavers}{r.ratios[name].median:.2f}" if name in r.ratios else "-"
                for name in names
            ]
            if names and names[0] in r.ratios:
                cells[0] += f" ({r.ratios[names[0]].low:.2f} .. {r.ratios[names[0]].high:.2f})"
            ideal = f"{1e6 * r.seconds[PEAK].median:.0f} us"
            table.add_row(f"{_name(r.case.work)}{' *' * r.disturbed}", ideal, *cells)
    console.print(table)


def _shares(report: Report, threads: int, console: Console) -> None:
    def cell(group: str, name: str) -> str:
        found = report.sum(group, name, name, threads)
        return f"{1 / found.ratio:.0%}{_count(report, group, threads, found.layers)}" if found else "-"

    _table(report, console, f"share of the peak, {_threads(threads)}", report.contestants, cell, threads)


def _behind(report: Report, threads: int, console: Console) -> None:
    def cell(group: str, name: str) -> str:
        base = _base(report, group, threads)
        found = report.sum(group, name, base, threads)
        if found is None:
            return "-"
        counted = _count(report, group, threads, found.layers)
        return f"{found.against:.2f}{counted}" if name != base else "1"

    title = f"time / time of Relayout (where it is missing, of the first), {_threads(threads)}"
    _table(report, console, title, report.contestants, cell, threads)


def _formats(report: Report, threads: int, console: Console) -> None:
    """Each format against the best one of a group."""
    if not report.formats:
        return

    def cell(group: str, name: str) -> str:
        found = [report.sum(group, name, other, threads) for other in report.formats]
        ratios = [each.against for each in found if each is not None]
        return f"{max(ratios):.2f}" if ratios else "-"

    title = f"Relayout's time in each format / in the best one, {_threads(threads)}"
    _table(report, console, title, report.formats, cell, threads)


def _table(
    report: Report,
    console: Console,
    title: str,
    names: list[str],
    cell: Callable[[str, str], str],
    threads: int,
) -> None:
    """A row for each group that has figures, a column for each contestant."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("network", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    for name in names:
        table.add_column(_heading(name), justify="right")
    for group in report.groups:
        quiet = report.quiet(group, threads)
        cells = [cell(group, name) for name in names]
        if any(text != "-" for text in cells):
            peak = sorted(r.peak for r in quiet)[len(quiet) // 2]
            unit = "GB/s" if isinstance(quiet[0].case.work, Pass) else "GFLOP/s"
            table.add_row(group, f"{peak:.0f} {unit}", *cells)
    if table.row_count:
        console.print(table)


def _heading(name: str) -> str:
    """A contestant's name; formats under all names that they have here."""
    format = name.removeprefix(f"{OURS} ")
    return f"{format}, {ALIASES[format]}" if format in ALIASES else format


def _notes(report: Report, console: Console) -> None:
    """Who was left out, who differs: each text once, with those whom it is said of."""
    found: dict[str, dict[str, None]] = {}
    cases: dict[str, dict[str, None]] = {}
    for r in report.results:
        for name, note in r.notes.items():
            found.setdefault(note, {})[name] = None
            cases.setdefault(note, {})[str(r.case)] = None
    for note, names in found.items():
        many = list(cases[note])
        others = f" and {len(many) - 1} more" * (len(many) > 1)
        console.print(f"{', '.join(names)}: {note}\n  in {many[0]}{others}")
