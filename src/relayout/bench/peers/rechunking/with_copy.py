"""A copy of the store, which nobody can do without: file by file, or chunk by chunk through its codecs.

It rechunks nothing. It is what the others are measured against: the bytes are read and written once.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def files(task: dict[str, Any]) -> tuple[Iterator[Any], Callable[[Any], object]]:
    """What is copied, and how, file by file."""
    source, target = Path(task["source"]), Path(task["target"])
    found = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
    for folder in {target / name.parent for name in found}:
        folder.mkdir(parents=True, exist_ok=True)
    return iter(found), lambda name: shutil.copyfile(source / name, target / name)


def codecs(task: dict[str, Any]) -> tuple[Iterator[Any], Callable[[Any], object]]:
    """The same for chunks that are decoded and encoded."""
    from relayout import stores
    from relayout.stores.store import Address
    from relayout.stores.zarr import Zarr, new_metadata

    source = stores.open(task["source"], format=task["from"]).stored
    assert isinstance(source, Zarr)
    told = new_metadata(source.desc, source.chunks, codecs="same", like=source, version=2)
    target = Address("zarr", task["target"], "", json.dumps({"create": told})).open()
    target.begin()
    target.commit()

    def copy(chunk: Any) -> None:
        data = source.read(chunk)
        if data is not None:
            target.write(chunk, data)

    return iter(source.grid), copy


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Copy on two threads more than there are workers, as Relayout does."""
    import relayout.stores.zarr  # noqa: F401 - not timed
    from relayout.stores.planning import SPARE

    begin = time.perf_counter()
    several, copy = (files if task["method"] == "files" else codecs)(task)
    lock = threading.Lock()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                with lock:
                    one = next(several, None)
                if one is None or failed:
                    return
                copy(one)
        except BaseException as error:
            failed.append(error)

    crew = [threading.Thread(target=work) for _ in range(task["workers"] + SPARE)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    if failed:
        raise failed[0]
    return {"seconds": time.perf_counter() - begin, "versions": {}}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
