"""Cubed: arrays whose operations each have a bound of memory, with Zarr arrays in between."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Run one problem on the executor that it names: ``"threads"`` or ``"processes"``."""
    from importlib.metadata import version

    import cubed
    import cubed.array_api as xp
    import zarr
    from cubed.runtime.create import create_executor

    workers = task["workers"]
    allowed = task["memory"] // workers
    codec = zarr.open(task["source"], mode="r").compressor
    spec = cubed.Spec(
        work_dir=task["temporary"],
        allowed_mem=allowed,
        reserved_mem=task.get("reserved", 100_000_000),  # the interpreter, which counts, too
        zarr_compressor=None if codec is None else codec.get_config(),
        executor=create_executor(task["executor"], {"max_workers": workers}),
    )
    begin = time.perf_counter()
    x = cubed.from_zarr(task["source"], spec=spec)
    if task["axes"] is not None:
        x = xp.permute_dims(x, tuple(task["axes"]))
    cubed.to_zarr(cubed.rechunk(x, tuple(task["chunks"])), task["target"])
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "versions": {name: version(name) for name in ("cubed", "zarr")}}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
