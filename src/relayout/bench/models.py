"""Whole networks beside other runtimes: what is measured, and how it is told.

All contestants run the same ONNX file, on the same arrays and with as many threads; only ``torch.compile``
has the module that the file was written from. A figure is the median of the ratios of rounds, in which
everybody is timed in turn (:mod:`relayout.bench.contest`). Outputs are compared: a contestant that is fast
because it computes something else would be seen in the column of differences.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.bench import lines
from relayout.bench.measure import OURS, Spread

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

__all__ = [
    "Entry",
    "ModuleEntry",
    "Result",
    "StepEntry",
    "as_json",
    "difference",
    "inputs_of",
    "means",
    "plain",
    "read",
    "restored",
    "show",
    "write",
]


@dataclass(frozen=True)
class Entry:
    """A network to be measured: a model in a file, its inputs, how many threads there are.

    ``file`` tells that it is a file of the user's own, of which there is no module. ``kind`` is what it is
    computed in: f32, bf16 (of the same file), or int8, where ``real`` is the file in f32.
    """

    network: str
    model: Path
    inputs: Path
    batch: int
    threads: int
    file: bool = False
    kind: str = "f32"
    real: Path | None = None

    @property
    def title(self) -> str:
        """The network, and what it is computed in, unless that is f32."""
        return self.network if self.kind == "f32" else f"{self.network} {self.kind}"


@dataclass(frozen=True)
class StepEntry:
    """A step of training to be measured: a residual network, the pictures and labels of a batch in a file."""

    network: str
    inputs: Path
    batch: int
    threads: int
    makers: str = "relayout.bench.steps"


@dataclass(frozen=True)
class ModuleEntry:
    """A module of PyTorch to be measured: a network of the zoo, which each contestant builds for itself.

    ``most`` is the largest batch of all settings that a process will go through, if it goes through several.
    """

    network: str
    inputs: Path
    batch: int
    threads: int
    most: int = 0
    makers: str = "relayout.bench.backends"


@dataclass
class Result:
    """One network with one number of threads and one batch.

    Attributes
    ----------
    network : str
        Its name, or that of its file; behind it bf16 or int8, if it is computed in that.
    threads, batch : int
        How many; the batch is the first size of the first input.
    seconds : dict of str to Spread
        Of a call, by contestant.
    behind : dict of str to Spread
        The time of each other contestant / Relayout's: above 1, Relayout is faster.
    difference : float or None
        The largest difference of outputs, relative to the largest value; None: nobody to compare with.
    conversions, defined : int
        Conversions between formats that the plan has left, and steps that are done in NumPy.
    start : dict of str to float
        Seconds from the start of a process to its first result, with warm caches. ``Relayout, saved`` is
        a run that another process has saved.
    peak, resident : dict of str to int
        Bytes beyond those of Python with NumPy and the inputs: the most that was resident until the second
        result, and what was then.
    disturbed : bool
        Whether other processes took the cores.
    refused : dict of str to str
        Why a contestant could not do it.
    """

    network: str
    threads: int
    batch: int
    seconds: dict[str, Spread] = field(default_factory=dict)
    behind: dict[str, Spread] = field(default_factory=dict)
    difference: float | None = None
    conversions: int = 0
    defined: int = 0
    start: dict[str, float] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    resident: dict[str, int] = field(default_factory=dict)
    disturbed: bool = False
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int]:
        """What was measured."""
        return self.network, self.threads, self.batch

    @property
    def best(self) -> float | None:
        """The time of the fastest other / Relayout's."""
        return min((one.median for one in self.behind.values()), default=None)


def inputs_of(values: Sequence[Any], batch: int = 1) -> list[NDArray[Any]]:
    """Random arrays for the inputs of a graph; what is not known of their dims is the batch, or else 1.

    Numbers of a normal distribution; 0 and 1 for whole numbers, so that they are indices of any table; truth
    values that are all true, as masks are that mask nothing.

    >>> from relayout.graph.graph import Value
    >>> x, mask = Value("x", (None, 3), np.dtype("f4")), Value("mask", (1, 4), np.dtype("i8"))
    >>> [array.shape for array in inputs_of([x, mask], batch=2)]
    [(2, 3), (1, 4)]
    """
    rng, found = np.random.default_rng(0), []
    for value in values:
        dims = [
            n if isinstance(n, int) else batch if axis == 0 else 1 for axis, n in enumerate(value.dims or ())
        ]
        kind = np.dtype(value.dtype)
        if kind.kind in "iu":
            found.append(rng.integers(0, 2, dims).astype(kind))
        elif kind.kind == "b":
            found.append(np.ones(dims, bool))
        else:
            found.append(rng.standard_normal(dims).astype(kind))
    return found


def difference(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of outputs, relative to the largest value of each.

    Infinities and what is no number have to be at the same places.

    >>> difference([np.array([1.0, 4.5])], [np.array([1.0, 4.0])])
    0.125
    >>> difference([np.array([np.nan, 4.5])], [np.array([np.nan, 4.0])])
    0.125
    >>> difference([np.array([np.nan])], [np.array([4.0])])
    inf
    """
    largest = 0.0
    for one, other in zip(found, expected, strict=True):
        one, other = (np.asarray(x, np.float64) for x in (one, other))
        if one.shape != other.shape:
            return float("inf")
        if other.size:
            same = (one == other) | (np.isnan(one) & np.isnan(other))
            scale = max(float(np.abs(other[np.isfinite(other)]).max(initial=0)), np.finfo(np.float32).tiny)
            gap = np.abs(np.subtract(one, other, where=~same, out=np.zeros_like(one))).max()
            largest = max(largest, float("inf") if np.isnan(gap) else float(gap) / scale)
    return largest


# -- results in a file -----------------------------------------------------------------------------------


def plain(one: Any) -> dict[str, Any]:
    """A result as plain data; its ``seconds`` and ``behind`` are :class:`~.measure.Spread`."""
    spreads = {
        key: {name: spread._asdict() for name, spread in getattr(one, key).items()}
        for key in ("seconds", "behind")
    }
    return {**asdict(one), **spreads}


def restored(told: dict[str, Any]) -> dict[str, Any]:
    """The fields of what :func:`plain` has made plain."""
    spreads = {key: {name: Spread(**one) for name, one in told[key].items()} for key in ("seconds", "behind")}
    return {**told, **spreads}


def _result(told: dict[str, Any]) -> Result:
    return Result(**restored(told))


def write(one: Result, path: Path) -> None:
    """Add a result to a file (:mod:`relayout.bench.lines`)."""
    lines.add(plain(one), path)


def read(path: Path) -> list[Result]:
    """The results of a file: the last one of each network, threads and batch. A line cut off is none."""
    return list({one.key: one for one in lines.entries(path, _result)}.values())


def as_json(
    results: Sequence[Result], machine: dict[str, Any], peers: dict[str, str | None]
) -> dict[str, Any]:
    """Everything as plain data."""
    return {"machine": machine, "peers": peers, "results": [plain(one) for one in results]}


# -- tables ----------------------------------------------------------------------------------------------


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def means(results: Sequence[Result]) -> dict[str, tuple[float, float, str, int]]:
    """For each other contestant, and for the best of them: the geometric mean of its time / Relayout's.

    Returns
    -------
    dict of str to (float, float, str, int)
        The mean, the smallest ratio and its network, and over how many.
    """
    found = {}
    names = dict.fromkeys(name for one in results for name in one.behind)
    for name in (*names, "the best of them"):
        ratios = [
            (ratio, one.network)
            for one in results
            if (
                ratio := one.behind[name].median
                if name in one.behind
                else one.best
                if name not in names
                else None
            )
            is not None
        ]
        if ratios:
            least = min(ratios)
            found[name] = _mean([ratio for ratio, _ in ratios]), least[0], least[1], len(ratios)
    return found


COLUMNS = {
    "ONNX Runtime": "ort",
    "OpenVINO": "ov",
    "OpenVINO, bf16": "ov16",
    "torch.compile": "tc",
    "PyTorch": "pt",
    "Relayout, f32": "f32",
}


def show(results: Sequence[Result], console: Console) -> None:
    """A table for each batch, number of threads and type, and the geometric means of the ratios."""
    for batch, many, kind in dict.fromkeys((one.batch, one.threads, _kind(one)) for one in results):
        own = [one for one in results if (one.batch, one.threads, _kind(one)) == (batch, many, kind)]
        typed = f", {kind}" if kind else ""
        console.print(_table(own, f"batch {batch}, {many} thread{'s' * (many > 1)}{typed}"))
        for name, (mean, least, where, count) in means(own).items():
            told = f"{name:<16}  geometric mean {mean:.2f} of {count}, least {least:.2f}"
            console.print(f"{told} {where[: 79 - len(told)]}", markup=False)
        console.print()
    console.print(
        "ort, ov, tc: time of ONNX Runtime, OpenVINO, torch.compile / time of Relayout", markup=False
    )
    if any(map(_kind, results)):
        console.print("ov16: OpenVINO in bf16; pt: PyTorch; f32: Relayout itself in f32", markup=False)
    console.print("+-: half of the quartiles' distance from the median, of the widest ratio, in %")
    console.print("diff: of outputs; cv: conversions left; np: steps in NumPy; *: disturbed")
    console.print("MB: peak memory of a fresh process, and of ONNX Runtime's; s: its first result")
    for one in results:
        for name, why in one.refused.items():
            text = f"{one.network}, batch {one.batch}, threads: {one.threads}: {name} can't: {why}"
            console.print(*textwrap.wrap(text, 80), sep="\n", markup=False)


def _kind(one: Result) -> str:
    """bf16, int8, or nothing for f32."""
    last = one.network.rpartition(" ")[2]
    return last if last in ("bf16", "int8") else ""


def _table(results: Sequence[Result], title: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    names = [name for name in COLUMNS if any(name in one.behind for one in results)]
    yardstick = "ONNX Runtime"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("network", overflow="fold", max_width=18)
    room = len(names) < len(COLUMNS) - 2  # a line has 80 columns
    headings = ["+-", "diff", *["cv"] * room, "np", "MB", *["s"] * room]
    for heading in ("ms", *(COLUMNS[name] for name in names), *headings):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in results:
        spreads = list(one.behind.values())
        table.add_row(
            _named(one) + " *" * one.disturbed,
            f"{1e3 * one.seconds[OURS].median:.3g}" if OURS in one.seconds else "-",
            *(f"{one.behind[name].median:.2f}" if name in one.behind else "-" for name in names),
            f"{max(50 * (s.high - s.low) / s.median for s in spreads):.0f}" if spreads else "-",
            "-" if one.difference is None else f"{one.difference:.0e}",
            *[str(one.conversions)] * room,
            str(one.defined),
            _pair(one.peak, yardstick, lambda size: f"{size / 1e6:.0f}"),
            *[_pair(one.start, yardstick, lambda time: f"{time:.2f}")] * room,
        )
    return table


def _named(one: Result) -> str:
    name = one.network.removesuffix(f" {_kind(one)}") if _kind(one) else one.network
    return name.partition("/")[2] or name.removesuffix(".onnx")


def _pair(figures: dict[str, Any], other: str, text: Callable[[Any], str]) -> str:
    return "/".join(text(figures[name]) if name in figures else "-" for name in (OURS, other))


def entries_of(
    files: Sequence[Path], batches: Sequence[int], threads: Sequence[int], folder: Path
) -> Iterator[Entry]:
    """Files of the user's own as entries, with random inputs that are written to a folder.

    Raises
    ------
    LayoutError
        A file is no model.
    """
    from relayout.importers.loading import load

    for k, path in enumerate(files):
        values = load(path).inputs
        free = any(not value.known for value in values)
        for batch in batches if free else batches[:1]:
            arrays, place = inputs_of(values, batch), folder / f"{k}-{batch}.npz"
            np.savez(place, *arrays)
            first = arrays[0].shape[0] if arrays and arrays[0].ndim else 1
            for many in threads:
                yield Entry(path.name, path, place, first, many, True)
