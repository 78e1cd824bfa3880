"""Measure moves as multiples of ``memcpy`` of the same bytes. Part of ``make bench``.

Every case is one reorder between two formats. Source and destination lie at the beginning of a cache line,
and were touched before. ``memcpy`` copies half the sum of both sides' bytes, between buffers of its own, with
as many threads. The two are measured in turn, and a ratio is taken in each round; median and quartiles of the
ratios are reported. NumPy does the same move where strides can say it. The results go to
``out/bench-reorder.json``.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from particulars import particulars
from rich.console import Console
from rich.progress import track
from rich.table import Table

import relayout as rl
from relayout.codegen.threads import share
from relayout.tensor import address, allocate

OUT = Path(__file__).resolve().parent.parent / "out"
memcpy = ctypes.CDLL(None).memcpy
memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

ACTIVATIONS = {
    "ResNet-50": [(32, 64, 112, 112), (32, 256, 56, 56), (32, 2048, 7, 7)],
    "MobileNet": [(32, 96, 56, 56), (32, 160, 14, 14)],
    "U-Net": [(4, 64, 256, 256)],
    "odd channels": [(8, 100, 28, 28), (8, 17, 56, 56)],
}
IMAGES = [(64, 3, 224, 224)]
WEIGHTS = [(512, 512, 3, 3), (256, 64, 1, 1)]
MATRICES = [(4096, 4096), (1024, 3072)]


class Case(NamedTuple):
    """One move."""

    group: str
    dims: tuple[int, ...]
    src: str
    dst: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.src} -> {self.dst} {'x'.join(map(str, self.dims))}"


def cases(quick: bool) -> Iterator[Case]:
    """The suite."""
    for dtype in ("f32", "s8") if quick else ("f32", "bf16", "s8", "f64"):
        for model, sizes in ACTIVATIONS.items():
            for dims in sizes[:1] if quick else sizes:
                for src, dst in itertools.permutations(("nchw", "nhwc", "nChw8c", "nChw16c"), 2):
                    yield Case(model, dims, src, dst, dtype)
        for dims in IMAGES:
            for src, dst in (("nhwc", "nchw"), ("nchw", "nhwc"), ("nchw", "nChw16c")):
                yield Case("images", dims, src, dst, dtype)
        for dims in WEIGHTS:
            for dst in ("hwio", "OIhw8i8o", "OIhw16i16o", "OIhw4i16o4i"):
                yield Case("weights", dims, "oihw", dst, dtype)
        for dims in MATRICES:
            for dst in ("ba", "BA16a64b4a", "AB16b64a4b"):
                yield Case("matrices", dims, "ab", dst, dtype)


class Result(NamedTuple):
    """Ratios to ``memcpy`` of one case."""

    case: Case
    threads: int
    bytes: int
    kernels: str
    median: float
    low: float
    high: float
    numpy: float | None


def main() -> None:
    """Measure, print, write."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="fewer shapes, two data types")
    options.add_argument("--rounds", type=int, default=7, help="rounds of each case (default 7)")
    options.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="thread counts (default 1 2)")
    given = options.parse_args()
    console = Console()
    chosen = list(cases(given.quick))
    results = [
        result
        for case in track(chosen, "measuring", console=console, transient=True)
        for result in measured(case, given.rounds, given.threads)
    ]
    show(console, results, given.threads)
    OUT.mkdir(exist_ok=True)
    machine = particulars("numpy", "llvmlite", "relayout")
    rows = [{**r._asdict(), "case": r.case._asdict()} for r in results]
    path = OUT / "bench-reorder.json"
    path.write_text(
        json.dumps({"machine": machine, "rounds": given.rounds, "results": rows}, indent=1) + "\n"
    )
    console.print(f"written to {path.relative_to(OUT.parent)}; {machine}")


def measured(case: Case, rounds: int, threads: list[int]) -> Iterator[Result]:
    """One case with every number of threads."""
    src, dst = rl.MemoryDesc(case.dims, case.dtype, case.src), rl.MemoryDesc(case.dims, case.dtype, case.dst)
    source, target = allocate(src), allocate(dst)
    source[:] = np.random.default_rng(0).integers(0, 256, source.size, dtype=np.uint8)
    target[:] = 1
    size = (source.size + target.size) // 2
    one, two = (allocate(rl.MemoryDesc((size,), "u8", "a")) for _ in range(2))
    one[:], two[:] = 1, 2
    for count in threads:
        plan = rl.Reorder(src, dst, threads=count)
        kinds = ", ".join(dict.fromkeys(plan._kernels.kinds)) if plan._kernels is not None else "NumPy"
        ratios, copies = [], []
        for _ in range(rounds):
            ours = seconds(lambda plan=plan: plan(source, target))
            copy = seconds(lambda count=count: copied(address(two), address(one), size, count))
            ratios.append(ours / copy)
            copies.append(copy)
        low, middle, high = statistics.quantiles(ratios, n=4)
        slow = in_numpy(src, source, dst, target)
        theirs = (
            statistics.median(seconds(slow) for _ in range(3)) / statistics.median(copies)
            if slow and count == 1
            else None
        )
        yield Result(case, count, source.size + target.size, kinds, middle, low, high, theirs)


def seconds(action: Callable[[], object]) -> float:
    """How long one call takes; short ones are repeated."""
    start = time.perf_counter()
    action()
    once = time.perf_counter() - start
    turns = min(50, int(2e-3 / max(once, 1e-7)))
    if turns < 2:
        return once
    start = time.perf_counter()
    for _ in range(turns):
        action()
    return (time.perf_counter() - start) / turns


def copied(target: int, source: int, size: int, threads: int) -> None:
    """``memcpy``, in so many equal parts at once, handed to threads as kernels are."""
    share(lambda a, b: memcpy(target + a, source + a, b - a), size, threads, 64)


def in_numpy(src: rl.MemoryDesc, source: Any, dst: rl.MemoryDesc, target: Any) -> Callable[[], None] | None:
    """The same move as one NumPy assignment, where both sides are plain strides."""
    try:
        taken = rl.from_buffer(source, src).numpy(copy=False)
        given = rl.from_buffer(target, dst).numpy(copy=False)
    except rl.LayoutError:
        return None
    return lambda: np.copyto(given, taken)


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def show(console: Console, results: list[Result], threads: list[int]) -> None:
    """Geometric means of groups, and the slowest cases."""
    table = Table(
        "group", *(f"{n} thread{'s' * (n > 1)}" for n in threads), "NumPy, 1 thread", title="time / memcpy"
    )
    groups = [*dict.fromkeys(r.case.group for r in results), "all"]
    for group in groups:
        mine = [r for r in results if group in (r.case.group, "all")]
        cells = [f"{mean([r.median for r in mine if r.threads == n]):.2f}" for n in threads]
        theirs = [r.numpy for r in mine if r.numpy is not None]
        table.add_row(group, *cells, f"{mean(theirs):.1f}" if theirs else "-")
    console.print(table)
    for n in threads:
        mine = [r.median for r in results if r.threads == n]
        within = sum(m <= 2 for m in mine) / len(mine)
        console.print(
            f"{n} thread{'s' * (n > 1)}: {len(mine)} cases, {within:.0%} at most 2.0, slowest {max(mine):.2f}"
        )
    worst = sorted(results, key=lambda r: -r.median)[:12]
    slow = Table("slowest cases", "threads", "median", "quartiles", "kernels")
    for r in worst:
        slow.add_row(
            str(r.case), str(r.threads), f"{r.median:.2f}", f"{r.low:.2f} .. {r.high:.2f}", r.kernels
        )
    console.print(slow)


if __name__ == "__main__":
    main()
