"""Modules of PyTorch in turns: eager in both formats, ``torch.compile`` with its own back end and with ours.

Everybody has a process (:mod:`relayout.bench.contest`) and builds the same network
(:mod:`relayout.bench.backends`). A figure is the median of ratios of rounds, and outputs are compared with
those of eager PyTorch. What compiling takes is the time of the first call: with empty caches on disk, and
again in another process with what the first has left there.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.bench import lines, zoo
from relayout.bench.contest import Contestant, apart, installed, timed
from relayout.bench.measure import OURS, Spread
from relayout.bench.models import ModuleEntry, plain, restored

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CONTESTANTS", "EAGER", "NETWORKS", "Compared", "as_json", "read", "run", "show", "versions"]

EAGER = "PyTorch"
LAST = "PyTorch channels_last"
COMPILED = ("torch.compile", "torch.compile frozen")
CONTESTANTS = (OURS, EAGER, LAST, *COMPILED)
COLUMNS = {EAGER: "eager", LAST: "last", COMPILED[0]: "tc", COMPILED[1]: "frozen"}

NETWORKS = tuple(name for name in zoo.CENSUS if name.startswith("tv/"))
"""torchvision's networks for classification."""


@dataclass
class Compared:
    """One network with one number of threads and one batch.

    Attributes
    ----------
    network : str
    threads, batch : int
    seconds : dict of str to Spread
        Of a call, by contestant.
    behind : dict of str to Spread
        The time of each other contestant / Relayout's: above 1, Relayout is faster.
    first, again : dict of str to float
        Seconds of the first call: with empty caches on disk, and with those that this has left.
    compiled : float
        Those of the first call that are Relayout's own, dynamo's and AOTAutograd's apart.
    difference : float or None
        Of outputs from those of eager PyTorch, relative to their largest value.
    parts, left, conversions : int
        Parts that Relayout takes, operators that it leaves, conversions between formats.
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
    first: dict[str, float] = field(default_factory=dict)
    again: dict[str, float] = field(default_factory=dict)
    compiled: float = 0.0
    difference: float | None = None
    parts: int = 0
    left: int = 0
    conversions: int = 0
    disturbed: bool = False
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int]:
        """What was measured."""
        return self.network, self.threads, self.batch

    @property
    def best(self) -> float | None:
        """The time of the better of eager channels-last and PyTorch's own back end / Relayout's."""
        return min((one.median for name, one in self.behind.items() if name != EAGER), default=None)


def versions() -> dict[str, str | None]:
    """The version of each other contestant; None where it is not installed, or lacks a compiler."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own: str | None = version("torch")
    except PackageNotFoundError:
        own = None
    compiling = installed()["torch.compile"]
    return {name: compiling if name in COMPILED else own for name in CONTESTANTS[1:]}


def run(
    wanted: Sequence[tuple[str, int, int]],
    names: Sequence[str],
    rounds: int,
    seconds: float,
    minutes: float | None,
    results: Path | None,
    progress: Callable[[str], None],
) -> Iterator[Compared]:
    """A result for each network, number of threads and batch; also written to the file of results.

    Parameters
    ----------
    wanted : sequence of (str, int, int)
        Networks, numbers of threads, batches.
    names : sequence of str
        Who takes part, of :data:`CONTESTANTS`.
    rounds, seconds : int, float
        Rounds at most, and the time for them.
    minutes : float, optional
        No network is begun after so long.
    """
    begun = time.monotonic()
    for network, threads, batch in wanted:
        if minutes is not None and time.monotonic() - begun > 60 * minutes:
            return
        progress(f"{network}, batch {batch}, threads: {threads}")
        with tempfile.TemporaryDirectory() as folder:
            inputs = Path(folder, "none.npz")
            np.savez(inputs)
            entry = ModuleEntry(network, inputs, batch, threads)
            made = _contest(entry, names, rounds, seconds, Path(folder))
        if results is not None:
            lines.add(plain(made), results)
        yield made


def _contest(entry: ModuleEntry, names: Sequence[str], rounds: int, seconds: float, folder: Path) -> Compared:
    result = Compared(entry.network, entry.threads, entry.batch)
    with contextlib.ExitStack() as stack:
        taking: dict[str, Contestant] = {}
        for name in names:
            caches = {
                variable: str(folder / f"{name}-{variable}")
                for variable in ("TORCHINDUCTOR_CACHE_DIR", "RELAYOUT_CACHE")
            }
            one = stack.enter_context(Contestant(name, entry, folder / f"{name}.npz", caches))
            if one.refused:
                result.refused[name] = one.refused
                continue
            taking[name] = one
            result.first[name] = one.told["first"]
            if name == OURS:
                result.conversions, result.left = one.told["conversions"], one.told["defined"]
                result.parts = one.told["parts"]
            if name == OURS or name in COMPILED:
                with Contestant(name, entry, None, caches) as warm:
                    if not warm.refused:
                        result.again[name] = warm.told["first"]
                        result.compiled = warm.told.get("compiled", result.compiled)
        if not taking:
            return result
        if OURS in taking:
            taking[OURS].does("tune")
        result.difference = apart(folder, EAGER) if {OURS, EAGER} <= {*taking} else None
        timed(result, taking, rounds, seconds)
    return result


# -- results in a file -----------------------------------------------------------------------------------


def _result(told: dict[str, Any]) -> Compared:
    return Compared(**restored(told))


def read(path: Path) -> dict[tuple[str, int, int], Compared]:
    """The results of a file: the last one of each network, threads and batch."""
    return {one.key: one for one in lines.entries(path, _result)}


def as_json(
    results: Sequence[Compared], machine: Mapping[str, Any], peers: Mapping[str, str | None]
) -> dict[str, Any]:
    """Everything as plain data."""
    return {"machine": machine, "peers": peers, "results": [plain(one) for one in results]}


# -- tables ----------------------------------------------------------------------------------------------


def means(results: Sequence[Compared]) -> Iterator[tuple[str, float, float, str, int]]:
    """For each other contestant, and for the best of them (:attr:`Compared.best`): the geometric mean of its
    time / Relayout's, the least and its network, and over how many.
    """
    names = [name for name in CONTESTANTS[1:] if any(name in one.behind for one in results)]
    for name in (*names, "the best"):
        found = [
            (ratio, one.network)
            for one in results
            if (ratio := one.best if name == "the best" else _median(one.behind.get(name))) is not None
        ]
        if found:
            mean = math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
            yield name, mean, *min(found), len(found)


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def show(results: Sequence[Compared], console: Console) -> None:
    """A table for each batch and number of threads, and the geometric means of the ratios."""
    for batch, many in dict.fromkeys((one.batch, one.threads) for one in results):
        own = [one for one in results if (one.batch, one.threads) == (batch, many)]
        console.print(_table(own, f"batch {batch}, {many} thread{'s' * (many > 1)}"))
        for name, mean, least, where, count in means(own):
            told = f"{name:<22}  geometric mean {mean:.2f} of {count}, least {least:.2f}"
            console.print(f"{told} {where[: 79 - len(told)]}", markup=False)
        console.print()
    console.print("eager, last, tc, frozen: time of PyTorch in each of its ways / time of Relayout")
    console.print("diff: of outputs; parts: Relayout's, left: operators of PyTorch; cv: conversions")
    console.print("s: first call, Relayout's/torch.compile's, empty caches; warm: with caches; *: disturbed")
    for one in results:
        for name, why in one.refused.items():
            text = f"{one.network}, batch {one.batch}, threads: {one.threads}: {name} can't: {why}"
            console.print(text, markup=False)


def _table(results: Sequence[Compared], title: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    names = [name for name in CONTESTANTS[1:] if any(name in one.behind for one in results)]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("network", overflow="fold", max_width=18)
    for heading in ("ms", *(COLUMNS[name] for name in names), "diff", "parts", "left", "cv", "s", "warm"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in results:
        table.add_row(
            one.network.partition("/")[2] + " *" * one.disturbed,
            f"{1e3 * one.seconds[OURS].median:.3g}" if OURS in one.seconds else "-",
            *(f"{one.behind[name].median:.2f}" if name in one.behind else "-" for name in names),
            "-" if one.difference is None else f"{one.difference:.0e}",
            str(one.parts),
            str(one.left),
            str(one.conversions),
            *(
                "/".join(_seconds(t.get(name)) for name in (OURS, COMPILED[0]))
                for t in (one.first, one.again)
            ),
        )
    return table


def _seconds(time: float | None) -> str:
    return "-" if time is None else f"{time:.1f}"
