"""Conversions in processes of their own: the resident set, measured by the system, is what was allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from covering import covering
from relayout.stores import planning

zarr = pytest.importorskip("zarr")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="/proc"),
    pytest.mark.slow,
]

SCRIPT = """
import json, sys
import relayout as rl
from relayout import stores
from relayout.stores import search
told = json.loads(sys.argv[1])
plan = stores.plan(rl.open(told["source"], format="ab"), told["target"], "ba", chunks=told["chunks"],
                   memory=told["memory"], rates=search.ASSUMED)
assert [bool(one.scatter or one.assembled) for one in plan.passes] == told["passes"], plan.explain()
plan.run()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(plan.peak, int(peak.split()[1]) * 1024)
"""

SHAPE = (4096, 4096)  # f32: 64 MiB


CASES: dict[str, tuple[tuple[int, int], tuple[int, int], str | None, list[bool]]] = {
    "zstd": ((512, 1024), (512, 1024), "zstd", [False]),
    "gzip": ((512, 1024), (512, 1024), "gzip", [False]),
    "plain": ((512, 1024), (512, 1024), None, [False]),
    "parts": ((64, 4096), (4096, 64), None, [True]),
    "two passes": ((64, 4096), (4096, 64), "zstd", [False, False]),
    "put together": ((103, 127), (89, 131), "zstd", [True]),
}


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("case", "kernels"), covering(CASES, ("kernels on the disk", "no kernels yet"), strength=1)
)
def test_memory_is_kept(case: str, kernels: str, tmp_path: Path) -> None:
    chunks, others, codec, passes = CASES[case]
    cold = kernels == "no kernels yet"
    made = {"zstd": zarr.codecs.ZstdCodec(), "gzip": zarr.codecs.GzipCodec(level=1), None: None}[codec]
    x = zarr.create_array(tmp_path / "x.zarr", shape=SHAPE, chunks=chunks, dtype="f4", compressors=made)
    values = np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)
    x[...] = values
    memory = planning.BASE + (40 << 20)
    told = {
        "source": str(tmp_path / "x.zarr"),
        "target": str(tmp_path / "y.zarr"),
        "chunks": others[::-1],
        "memory": memory,
        "passes": passes,
    }
    given = {**os.environ, "RELAYOUT_CACHE": str(tmp_path / "cache")} if cold else dict(os.environ)
    words = [sys.executable, "-c", SCRIPT, json.dumps(told)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=given)
    assert done.returncode == 0, done.stderr
    predicted, measured = map(int, done.stdout.split())
    assert measured <= predicted <= memory
    assert (zarr.open_array(tmp_path / "y.zarr", mode="r")[...] == values.T).all()
