"""``dask.array.rechunk`` and ``to_zarr``: by peer-to-peer shuffling on a cluster, or by tasks on threads."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any


def convert(task: dict[str, Any], method: str) -> None:
    """Build the graph, and compute it into an array with the codecs of the source."""
    import dask
    import dask.array as da
    import zarr

    source = zarr.open_array(task["source"], mode="r")
    x = da.from_zarr(task["source"])
    if task["axes"] is not None:
        x = x.transpose(task["axes"])
    chunks = tuple(task["chunks"])
    with dask.config.set({"array.rechunk.method": method}):
        x = x.rechunk(chunks)
        target = zarr.create_array(
            task["target"],
            shape=x.shape,
            chunks=chunks,
            dtype=x.dtype,
            zarr_format=2,
            compressors=source.compressors or None,
        )
        # Chunks are those of the target, so no two tasks write the same one. to_zarr would merge them
        # again, to 128 MiB each, which these workers have no memory for.
        x.store(target, lock=False)


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
