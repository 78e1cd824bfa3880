"""A run over many networks: which ones, what is left of an earlier run, and when it is time to stop."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from relayout.bench import zoo
from relayout.bench.contest import COMPILED, contest
from relayout.bench.models import Entry, Result, entries_of, write

__all__ = ["BATCHES", "QUICK", "Settings", "done", "entries", "run"]

QUICK = 6
BATCHES = 1, 8


@dataclass(frozen=True)
class Settings:
    """Who takes part, rounds at most and seconds for them, and the minutes after which none is begun."""

    peers: list[str]
    rounds: int
    seconds: float
    minutes: float | None = None


@contextmanager
def entries(
    files: Sequence[Path],
    quick: bool,
    texts: Sequence[str],
    batches: Sequence[int] | None,
    threads: Sequence[int],
) -> Iterator[tuple[list[Entry], dict[str, str]]]:
    """What is to be measured, and which networks are left out for what reason.

    Batch 1 comes before batch 8, and within a batch all networks with one number of threads: so a run that is
    cut short has whole columns.
    """
    with tempfile.TemporaryDirectory() as folder:
        if files:
            yield list(entries_of(files, batches or (1,), threads, Path(folder))), {}
            return
        chosen = [one for one in zoo.MEASURED if not texts or any(text in one for text in texts)]
        chosen = chosen[:QUICK] if quick else chosen
        lacking = {
            name: f"{' and '.join(needed)} is not installed"
            for name in chosen
            if not _written(name) and (needed := (*zoo.missing(name), *zoo.missing_writers()))
        }
        place = zoo.folder()
        found = [
            Entry(name, place / f"{own}.onnx", place / f"{own}.npz", batch, many)
            for batch in batches or (BATCHES[:1] if quick else BATCHES)
            for many in threads
            for name in chosen
            if name not in lacking and (own := zoo.stem(name, batch, "static"))
        ]
        yield found, lacking


def done(entry: Entry, peers: Sequence[str], known: Mapping[tuple[str, int, int], Result]) -> bool:
    """Whether there is a result of an entry, with all these contestants.

    So contestants that take long can be left to a later run.
    """
    found = known.get((entry.network, entry.threads, entry.batch))
    wanted = {name for name in peers if not (entry.file and name == COMPILED)}
    return found is not None and wanted <= {*found.seconds, *found.refused}


def _written(name: str) -> bool:
    return (zoo.folder() / f"{zoo.stem(name, 1, 'static')}.npz").exists()


def run(
    entries: Sequence[Entry],
    settings: Settings,
    results: Path | None,
    progress: Callable[[str], None],
    export: bool = False,
) -> Iterator[Result]:
    """A result for each entry, also written to the file of results.

    A network that can't be exported has a result that says so.
    """
    begun = time.monotonic()
    for one in entries:
        if settings.minutes is not None and time.monotonic() - begun > 60 * settings.minutes:
            return
        progress(f"{one.network}, batch {one.batch}, threads: {one.threads}")
        refused = "" if one.file else _exported(one)
        if export:
            continue
        if refused:
            made = Result(one.network, one.threads, one.batch, refused={"PyTorch": refused})
        else:
            made = contest(one, settings.peers, settings.rounds, settings.seconds)
        if results is not None:
            write(made, results)
        yield made


def _exported(entry: Entry) -> str:
    """Write the file of a network in another process; why that was not possible, or nothing."""
    if entry.model.exists() and entry.inputs.exists():
        return ""
    command = [sys.executable, "-m", "relayout.bench.zoo", entry.network, str(entry.batch)]
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1][:300]
