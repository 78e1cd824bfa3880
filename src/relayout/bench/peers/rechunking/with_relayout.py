"""Relayout: threads of one process, or workers of Dask."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any


def convert(task: dict[str, Any], **options: Any) -> None:
    """Plan and run the problem."""
    from relayout import stores

    source = stores.open(task["source"], format=task["from"])
    made = stores.plan(
        source,
        task["target"],
        task["to"],
        chunks=task["chunks"],
        **task.get("room", {"memory": task["memory"]}),  # of workers, it says whether they share files, too
        codecs="same",
        zarr_format=2,
    )
    made.run(**options)


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Run one problem as it says: with ``"engine": "dask"`` on as many processes as there are workers."""
    import relayout
    import relayout.stores.planning
    import relayout.stores.workers
    from relayout.stores.zarr import package

    package()

    versions = {"relayout": relayout.__version__}
    if task.get("engine") != "dask":
        begin = time.perf_counter()
        convert(task)
        return {"seconds": time.perf_counter() - begin, "versions": versions}
    import distributed

    from relayout.dask.running import USABLE, for_workers, run

    workers = task["workers"]
    with (
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit=math.ceil(task["memory"] / workers / USABLE) + 1,  # of which Dask uses a part
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        room = for_workers(client, task["memory"])
        begin = time.perf_counter()
        convert({**task, "room": room}, engine=run, scheduler=client)
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "versions": {**versions, "distributed": distributed.__version__}}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
