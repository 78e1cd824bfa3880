"""Steps of training in turns: Relayout in the formats that it chooses and in given ones, PyTorch in its ways.

Everybody has a process (:mod:`relayout.bench.contest`), and the same parameters, batch and optimiser
(:mod:`relayout.bench.steps`). A figure is the median of ratios of rounds; losses of the first step are
compared.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.bench.contest import COMPILED, Contestant, fresh, installed, timed
from relayout.bench.measure import OURS
from relayout.bench.models import Result, StepEntry, difference, write
from relayout.bench.steps import FORMATS

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CONTESTANTS", "NETWORKS", "run", "show"]

NETWORKS = ("resnet50", "resnext101_32x4d")
CONTESTANTS = (
    OURS,
    *(f"{OURS} {format}" for format in FORMATS),
    *("PyTorch", "PyTorch channels_last", COMPILED),
)
SIZE, CLASSES = 224, 1000


def peers() -> dict[str, str | None]:
    """The version of each other contestant; None where it is not installed."""
    found = installed()[COMPILED]
    version = found or _pytorch()
    return {name: found if name == COMPILED else version for name in CONTESTANTS if not name.startswith(OURS)}


def _pytorch() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def run(
    wanted: Sequence[tuple[str, int, int]],
    names: Sequence[str],
    rounds: int,
    seconds: float,
    results: Path | None,
    progress: Callable[[str], None],
    size: int = SIZE,
) -> Iterator[Result]:
    """A result for each network, batch and number of threads; also written to the file of results.

    Parameters
    ----------
    wanted : sequence of (str, int, int)
        Networks, batches, numbers of threads.
    names : sequence of str
        Who takes part, of :data:`CONTESTANTS`.
    rounds, seconds : int, float
        Rounds at most, and the time for them.
    """
    with tempfile.TemporaryDirectory() as folder:
        for network, batch, threads in wanted:
            progress(f"{network}, batch {batch}, threads: {threads}")
            rng, inputs = np.random.default_rng(0), Path(folder, f"{batch}.npz")
            pictures = rng.standard_normal((batch, 3, size, size), dtype=np.float32)
            np.savez(inputs, pictures, rng.integers(0, CLASSES, batch))
            made = _contest(StepEntry(network, inputs, batch, threads), names, rounds, seconds, Path(folder))
            if results is not None:
                write(made, results)
            yield made


def _contest(entry: StepEntry, names: Sequence[str], rounds: int, seconds: float, folder: Path) -> Result:
    result = Result(entry.network, entry.threads, entry.batch)
    with contextlib.ExitStack() as stack:
        taking: dict[str, Contestant] = {}
        for name in names:
            one = stack.enter_context(Contestant(name, entry, folder / f"{name}.npz"))
            if one.refused:
                result.refused[name] = one.refused
                continue
            taking[name] = one
            fresh(result, name, one)
            if name == OURS:
                result.conversions, result.defined = one.told["conversions"], one.told["defined"]
        if not taking:
            return result
        result.difference = _difference(folder, list(taking))
        timed(result, taking, rounds, seconds)
    return result


def _difference(folder: Path, names: list[str]) -> float | None:
    """Of the loss of the first step from PyTorch's."""
    others = [name for name in names if not name.startswith(OURS)]
    if OURS not in names or not others:
        return None
    losses = []
    for name in (OURS, others[0]):
        with np.load(folder / f"{name}.npz") as file:
            losses.append([file[key] for key in file.files])
    return difference(*losses)


def show(results: Sequence[Result], console: Console) -> None:
    """A table: seconds of a step, the time of the others / ours, memory."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    names = [name for name in CONTESTANTS[1:] if any(name in one.behind for one in results)]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("network", overflow="fold", max_width=18)
    for heading in ("batch", "threads", "s", *map(_heading, names), "diff", "cv", "np", "MB"):
        table.add_column(heading, justify="right")
    for one in results:
        memory: Any = (one.peak.get(name) for name in (OURS, "PyTorch"))
        table.add_row(
            one.network + " *" * one.disturbed,
            str(one.batch),
            str(one.threads),
            f"{one.seconds[OURS].median:.3g}" if OURS in one.seconds else "-",
            *(f"{one.behind[name].median:.2f}" if name in one.behind else "-" for name in names),
            "-" if one.difference is None else f"{one.difference:.0e}",
            str(one.conversions),
            str(one.defined),
            "/".join("-" if size is None else f"{size / 1e6:.0f}" for size in memory),
        )
    console.print(table)
    console.print("s: of a step. Other columns: time of the other / ours, above 1: Relayout is faster")
    console.print("diff: of the first loss; cv: conversions left; np: steps in NumPy; *: disturbed")
    console.print("MB: peak memory of a fresh process after two steps, and of PyTorch's")
    for one in results:
        for name, why in one.refused.items():
            text = f"{one.network}, batch {one.batch}, threads: {one.threads}: {name} can't: {why}"
            console.print(text, markup=False)


def _heading(name: str) -> str:
    """A contestant in a narrow column: a word to a line."""
    return name.removeprefix(f"{OURS} ").replace(" ", "\n")
