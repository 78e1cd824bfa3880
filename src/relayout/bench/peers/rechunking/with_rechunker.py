"""Rechunker, on the threads of Dask: its algorithm, with an intermediate array where it needs one."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Run one problem; a transpose is a lazy array of Dask in front of it."""
    from importlib.metadata import version

    import dask
    import zarr
    from rechunker import rechunk

    workers = task["workers"]
    versions = {name: version(name) for name in ("rechunker", "dask", "zarr")}
    with dask.config.set(scheduler="threads", num_workers=workers):
        begin = time.perf_counter()
        source = array = zarr.open(task["source"], mode="r")
        if task["axes"] is not None:
            import dask.array as da

            array = da.from_zarr(task["source"]).transpose(task["axes"])
        made = rechunk(
            array,
            tuple(task["chunks"]),
            task["memory"] // workers,  # of one worker
            task["target"],
            target_options={"compressor": source.compressor},
            temp_store=task["temporary"] + "/rechunker.zarr",
            temp_options={"compressor": source.compressor},
            executor="dask",
        )
        made.execute()
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "versions": versions}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
