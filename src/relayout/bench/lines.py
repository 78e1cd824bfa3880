"""Results in a file, a line of JSON each: a run that is interrupted keeps what it has, a later one goes on.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder, "results.jsonl")
...     add({"case": "a"}, path)
...     add({"case": "b"}, path)
...     _ = path.write_text(path.read_text(encoding="utf-8")[:-3], encoding="utf-8")  # cut off
...     list(entries(path, lambda plain: plain["case"]))
['a']
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["add", "entries"]

Entry = TypeVar("Entry")


def add(plain: Mapping[str, Any], path: Path) -> None:
    """Write one more line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(plain, ensure_ascii=False) + "\n")


def entries(path: Path, made: Callable[[Any], Entry]) -> Iterator[Entry]:
    """What ``made`` makes of each line; a line that is cut off, or of another kind, is none.

    Where there is no file, there are no entries.
    """
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            one = made(json.loads(line))
        except (ValueError, TypeError, KeyError):
            continue
        yield one
