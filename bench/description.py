"""Measure the speed of description: importing, descriptors from text, offsets. Part of ``make bench``.

Every figure is the median of many rounds with the spread (lower and upper quartile) beside it, and a
yardstick measured in the same run: absolute times mean little on shared machines. The results go to
``out/bench-description.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import relayout as rl
from relayout.bench.particulars import particulars

OUT = Path(__file__).resolve().parent.parent / "out"


class Figure(NamedTuple):
    """One measured figure."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    goal: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the median reaches the goal."""
        return self.median >= self.goal if self.at_least else self.median <= self.goal


def main() -> None:
    """Measure, print, write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=21, help="rounds of each figure (default 21)")
    rounds = options.parse_args().rounds
    console = Console()
    machine = particulars("numpy", "relayout")
    console.print(", ".join(f"{k} {v}" for k, v in machine.items()))
    figures = [
        measure(rounds)
        for measure in track(MEASURES, description="measuring", console=console, transient=True)
    ]
    table = Table("figure", "median", "quartiles", "goal", "", title=f"{rounds} rounds")
    for f in figures:
        table.add_row(
            f.name,
            f"{f.median:.3g} {f.unit}",
            f"{f.low:.3g} .. {f.high:.3g}",
            f"{'at least' if f.at_least else 'at most'} {f.goal:g}",
            "[green]met[/]" if f.met else "[red]missed[/]",
        )
    console.print(table)
    OUT.mkdir(exist_ok=True)
    path = OUT / "bench-description.json"
    path.write_text(
        json.dumps(
            {"machine": machine, "rounds": rounds, "figures": [f._asdict() for f in figures]}, indent=1
        )
        + "\n"
    )
    console.print(f"written to {path.relative_to(OUT.parent)}")


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


def importing(rounds: int) -> Figure:
    """How much longer a process takes that imports relayout after NumPy, in pairs so that drift cancels."""

    def seconds(code: str) -> float:
        script = f"import time; import numpy; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
        return float(
            subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        )

    seconds("import relayout")
    return Figure(
        "import relayout, beyond NumPy",
        "ms",
        *spread([seconds("import relayout") * 1e3 for _ in range(rounds)]),
        40,
    )


def timed(action: Callable[[], object], rounds: int, calls: int) -> tuple[float, float, float]:
    """Microseconds of one call."""
    values = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in itertools.repeat(None, calls):
            action()
        values.append((time.perf_counter() - start) / calls * 1e6)
    return spread(values)


def fresh_texts() -> Iterator[str]:
    """Tags that were never seen before: block sizes count on."""
    for size in itertools.count(5):
        yield f"OIhw{size}i16o4i"


def new_descriptor(rounds: int) -> Figure:
    """A descriptor from a text and dims that are both new."""
    texts = fresh_texts()
    figures = timed(lambda: rl.MemoryDesc((64, 256, 3, 3), "f32", next(texts)), rounds, 1000)
    return Figure("MemoryDesc from new text", "us", *figures, 25)


def new_dims(rounds: int) -> Figure:
    """A descriptor from a known text with new dims, the usual case."""
    sizes = itertools.count(1)
    figures = timed(lambda: rl.MemoryDesc((next(sizes), 64, 56, 56), "f32", "nChw16c"), rounds, 1000)
    return Figure("MemoryDesc, known text, new dims", "us", *figures, 25)


def seen_descriptor(rounds: int) -> Figure:
    """The same descriptor again."""
    figures = timed(lambda: rl.MemoryDesc((64, 256, 56, 56), "f32", "nChw16c"), rounds, 5000)
    return Figure("MemoryDesc seen before", "us", *figures, 2)


def one_offset(rounds: int) -> Figure:
    """The offset of one element of a blocked layout."""
    layout = rl.Layout((64, 256, 3, 3), "OIhw4i16o4i")
    return Figure("offset", "us", *timed(lambda: layout.offset(17, 35, 1, 2), rounds, 5000), 2)


def many_offsets(rounds: int) -> Figure:
    """Offsets of a million random elements."""
    layout = rl.Layout((64, 256, 56, 56), "nChw16c")
    rng = np.random.default_rng(0)
    indices = np.stack([rng.integers(0, size, 1_000_000) for size in layout.dims], axis=-1)
    microseconds, low, high = timed(lambda: layout.offsets(indices), rounds, 1)
    return Figure("offsets", "million/s", 1e6 / microseconds, 1e6 / high, 1e6 / low, 20, at_least=True)


MEASURES = (importing, new_descriptor, new_dims, seen_descriptor, one_offset, many_offsets)

if __name__ == "__main__":
    main()
