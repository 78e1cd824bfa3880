"""A run over many networks: which ones, what is left of an earlier run, and when it is time to stop."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from relayout.bench import zoo
from relayout.bench.contest import contest, taking_part
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
    kinds: Sequence[str] = ("f32",),
) -> Iterator[tuple[list[Entry], dict[str, str]]]:
    """What is to be measured, and which networks are left out for what reason.

    Batch 1 comes before batch 8, and within a batch all networks with one number of threads: so a run that is
    cut short has whole columns.
    """
    with tempfile.TemporaryDirectory() as folder:
        if files:
            several = list(entries_of(files, batches or (1,), threads, Path(folder)))
            yield [replace(one, kind=kind) for kind in kinds for one in several], {}
            return
        narrow = tuple(kinds) != ("f32",)
        names = zoo.NARROW if narrow else zoo.MEASURED
        chosen = [one for one in names if not texts or any(text in one for text in texts)]
        chosen = chosen[:QUICK] if quick else chosen
        lacking = {
            name: f"{' and '.join(needed)} is not installed"
            for name in chosen
            if not _written(name) and (needed := (*zoo.missing(name), *zoo.missing_writers()))
        }
        place = zoo.folder()
        found = [
            _entry(name, place, batch, many, kind)
            for batch in batches or (BATCHES[:1] if quick or narrow else BATCHES)
            for many in threads
            for kind in kinds
            for name in chosen
            if name not in lacking
        ]
        yield found, lacking


def _entry(name: str, place: Path, batch: int, many: int, kind: str) -> Entry:
    own = zoo.stem(name, batch, "static")
    real, inputs = place / f"{own}.onnx", place / f"{own}.npz"
    if kind != "int8":
        return Entry(name, real, inputs, batch, many, kind=kind)
    narrow = place / f"{zoo.stem_of_bytes(name, batch)}.onnx"
    return Entry(name, narrow, inputs, batch, many, False, kind, real)


def done(entry: Entry, peers: Sequence[str], known: Mapping[tuple[str, int, int], Result]) -> bool:
    """Whether there is a result of an entry, with all these contestants.

    So contestants that take long can be left to a later run.
    """
    found = known.get((entry.title, entry.threads, entry.batch))
    wanted = set(taking_part(entry, peers))
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
        progress(f"{one.title}, batch {one.batch}, threads: {one.threads}")
        refused = "" if one.file else _exported(one)
        if export:
            continue
        if refused:
            made = Result(one.title, one.threads, one.batch, refused={"PyTorch": refused})
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
    command += ["int8"] * (entry.kind == "int8")
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1][:300]
