"""What a call costs besides moving bytes, and what the first call costs.

A tensor of 4 KiB is moved in well under a microsecond, so the time of such a call is the price of calling:
Python, checks of the buffers, the way to the kernel.

The first call with a new pair of descriptors compiles a kernel. How long that takes is only seen in a process
of its own whose cache folder is empty; a second process then finds the kernel on disk. Both figures are of
the whole call, with everything that it imports: llvmlite where something is compiled, and where the kernel is
on disk nothing but Relayout. (The latter then imports llvmlite, to tell how long that takes.) Python's own
bytecode is there beforehand, as it is wherever a program runs for the second time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from relayout.bench.measure import Spread, Stopwatch, copier, spread

__all__ = ["Overhead", "overheads"]

DIMS = (1, 16, 8, 8)  # 4 KiB of f32

FIRST_CALL = """
import time
import numpy as np
import relayout as rl
sides = [rl.MemoryDesc((1, 64, 56, 56), "f32", format) for format in ("nchw", "nChw16c")]
source, target = (np.ones(desc.required_bytes, np.uint8) for desc in sides)
begun = time.perf_counter()
rl.Reorder(*sides)(source, target)
done = time.perf_counter()
rl.Reorder(*sides)(source, target)
again = time.perf_counter()
import llvmlite.binding
print(done - begun, again - done, time.perf_counter() - again)
"""
"""A program that prints the seconds of: the first call, the same call again, importing llvmlite if need be.

It imports nothing else, since some programs don't have it either.
"""


class Overhead(NamedTuple):
    """One figure."""

    name: str
    unit: str
    """``"us"`` or ``"ms"``."""
    spread: Spread


def overheads(rounds: int) -> Iterator[Overhead]:
    """Measure all figures; the processes of first calls are started ``rounds`` times, at most five times."""
    for name, action in _tiny().items():
        watch = Stopwatch(action)
        yield Overhead(name, "us", spread([watch() * 1e6 for _ in range(max(3, rounds))]))
    yield from _first_calls(min(rounds, 5))


def _tiny() -> dict[str, Callable[[], object]]:
    import numpy as np

    import relayout as rl
    from relayout.tensor import address

    src, dst = (rl.MemoryDesc(DIMS, "f32", format) for format in ("nchw", "nhwc"))
    one, two = (np.ones(desc.nbytes, np.uint8) for desc in (src, dst))
    source = rl.from_buffer(one, src)
    return {
        "memcpy of 4 KiB, through ctypes": copier(address(two), address(one), one.size, 1),
        "rl.Reorder of 4 KiB, planned": partial(rl.Reorder(src, dst), one, two),
        "rl.reorder of 4 KiB to nhwc": partial(rl.reorder, source, "nhwc"),
        "rl.reorder of 4 KiB to nhwc, bf16, scaled": partial(
            rl.reorder, source, "nhwc", dtype="bf16", src_scale=0.5
        ),
    }


def _first_calls(rounds: int) -> Iterator[Overhead]:
    cold: list[list[float]] = []
    warm: list[list[float]] = []
    with tempfile.TemporaryDirectory() as bytecode:
        _process("off", bytecode)
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as kernels:
                cold.append(_process(kernels, bytecode))
                warm.append(_process(kernels, bytecode))
    for name, index, runs in (
        ("importing llvmlite", 2, warm),
        ("first call ever, compiled, llvmlite imported by it", 0, cold),
        ("first call of a process, kernel from disk", 0, warm),
        ("the same call again, planned anew", 1, cold),
    ):
        yield Overhead(name, "ms", spread([run[index] * 1e3 for run in runs]))


def _process(kernels: str, bytecode: str) -> list[float]:
    """Run the program with folders of its own for kernels and for bytecode."""
    environment: dict[str, Any] = {
        **os.environ,
        "RELAYOUT_CACHE": kernels,
        "PYTHONPYCACHEPREFIX": bytecode,
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [sys.executable, "-c", FIRST_CALL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(seconds) for seconds in done.stdout.split()]
