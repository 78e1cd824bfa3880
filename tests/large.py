"""A small conversion that is planned as a large one: what tests of engines run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from relayout import stores
from relayout.stores.plans import Plan
from relayout.stores.rates import Rates

RATES = Rates(1e9, 1e9, 1e9)


def source(folder: Path) -> np.ndarray:
    """Pictures, a chunk each, in a folder of npy files; the array."""
    array = np.arange(48 * 20 * 8 * 8, dtype=np.float32).reshape(48, 20, 8, 8)
    np.save(folder / "x.npy", array)
    whole = stores.open(folder / "x.npy", format="nchw")
    plan = stores.plan(whole, folder / "x.chunks", chunks=(1, 20, 8, 8), rates=RATES)
    plan.run(threads=1)
    return array


def planned(folder: Path, name: str, **options: Any) -> Plan:
    """The same as ``nChw16c`` in half precision, in 48 blocks of four chunks."""
    told = {"chunks": (1, 1, 4, 8, 16), "memory": "300MB", "rates": RATES, "threads": 1, **options}
    return stores.plan(folder / "x.chunks", folder / name, "nChw16c", dtype="f16", **told)


def files(folder: Path) -> dict[str, bytes]:
    """All files of a store."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
