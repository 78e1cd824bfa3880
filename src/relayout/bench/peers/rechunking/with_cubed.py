"""Cubed: arrays whose operations each have a bound of memory, with Zarr arrays in between."""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any


def reserved(name: str, executor: Any, folder: str) -> int:
    """Bytes that a process takes without data, measured as cubed's documentation recommends.

    Threads share a process, whose memory cubed does not look at: that of this one, until now.
    """
    import cubed

    if name == "processes":
        measured: int = cubed.measure_reserved_mem(executor, work_dir=folder)
        return measured
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Run one problem on the executor that it names: ``"threads"`` or ``"processes"``."""
    from importlib.metadata import version

    import cubed
    import cubed.array_api as xp
    import zarr
    from cubed.runtime.create import create_executor

    workers = task["workers"]
    allowed = task["memory"] // workers
    source = zarr.open(task["source"], mode="r")
    codec = source.compressor
    executor = create_executor(task["executor"], {"max_workers": workers})
    spec = cubed.Spec(
        work_dir=task["temporary"],
        allowed_mem=allowed,
        reserved_mem=reserved(task["executor"], executor, task["temporary"]),
        zarr_compressor=None if codec is None else codec.get_config(),
        executor=executor,
    )
    begin = time.perf_counter()
    x = cubed.from_zarr(task["source"], spec=spec)
    if task["axes"] is not None:
        x = xp.permute_dims(x, tuple(task["axes"]))
    # The array is made here because to_zarr would compress it by Zarr's default, whatever the spec says.
    chunks = tuple(task["chunks"])
    target = zarr.open(
        task["target"], mode="w", shape=x.shape, chunks=chunks, dtype=x.dtype, compressor=codec
    )
    cubed.to_zarr(cubed.rechunk(x, chunks), target)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "versions": {name: version(name) for name in ("cubed", "zarr")}}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
