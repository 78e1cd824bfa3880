"""``dask.array.rechunk`` and ``to_zarr``: by peer-to-peer shuffling on a cluster, or by tasks on threads."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any


def convert(task: dict[str, Any], method: str) -> None:
    """Build the graph, and compute it."""
    import dask
    import dask.array as da
    import zarr

    source = zarr.open(task["source"], mode="r")
    x = da.from_zarr(task["source"])
    if task["axes"] is not None:
        x = x.transpose(task["axes"])
    with dask.config.set({"array.rechunk.method": method}), zarr.config.set({"default_zarr_format": 2}):
        x = x.rechunk(tuple(task["chunks"]))
        x.to_zarr(task["target"], mode="w", **_as_source(source))


def _as_source(source: Any) -> dict[str, Any]:
    """The codecs of the source, in the words of the version of zarr that is installed."""
    import zarr

    if int(zarr.__version__.split(".")[0]) < 3:
        return {"compressor": source.compressor}
    return {"compressors": source.compressors or None}


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Run one problem; ``"method"`` is that of ``rechunk``."""
    import dask
    import zarr

    versions = {"dask": dask.__version__, "zarr": zarr.__version__}
    workers = task["workers"]
    with contextlib.ExitStack() as stack:
        if task["method"] == "p2p":
            import distributed

            limit = task["memory"] // workers
            cluster = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    memory_limit=limit,
                    local_directory=task["temporary"],
                )
            )
            stack.enter_context(distributed.Client(cluster))
        else:
            stack.enter_context(dask.config.set(scheduler="threads", num_workers=workers))
        begin = time.perf_counter()
        convert(task, task["method"])
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "versions": versions}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
