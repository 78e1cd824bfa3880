"""Fixtures shared by all tests: facts from outside the repository."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from covering import turn
from relayout.jit import cache
from relayout.runtime import collection
from strategies import THOROUGH, tried

cache.SETTLED = 0  # the environment of a fresh machine was installed a second ago, and then nothing is kept
cache.unchanged = lru_cache(cache.unchanged)  # nobody edits the package meanwhile: 2 ms for each kernel

settings.register_profile("relayout", max_examples=tried(100), deadline=None)  # time is no reason to fail
settings.load_profile("relayout")

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "vectors"  # answers of public binaries, kept with the tests
EXTRACTED = ROOT.parent / "shared" / "vectors"  # tables of other projects, read where they are present


def load_vectors(name: str) -> Any:
    """Return the parsed JSON file of facts, or skip the test where the file is absent."""
    for folder in (RECORDED, EXTRACTED):
        path = folder / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text())
    pytest.skip(f"facts {name}.json are not at hand")


@pytest.fixture(autouse=True)
def _threads_of_pytorch():
    """Who measures PyTorch sets its number of threads; the next test of this process finds what was there."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if hasattr(torch, "get_num_threads") else None
    yield
    if before is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)


def pytest_configure() -> None:
    """Workers are started later and inherit what is set now."""
    turn()


def pytest_report_header() -> str | None:
    """Which cases take their turn, where not all do."""
    return None if THOROUGH >= 1 else f"to run the same cases of slow tests again: RELAYOUT_TURN={turn()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests marked with ``turns(n)`` every n-th case stays, others each time; see :mod:`covering`."""
    if THOROUGH >= 1:
        return
    seen: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        mark = item.get_closest_marker("turns")
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            number, seen[name] = seen[name], seen[name] + 1
            if number % mark.args[0] != turn() % mark.args[0]:
                left.append(item)
                continue
        kept.append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_collection_finish() -> None:
    """Twenty thousand tests stay until the end: the garbage collector need not look at them each time.

    Nor need each network that is compiled count them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    collection._frozen = lambda: True


@pytest.fixture(scope="session", autouse=True)
def _own_kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled kernels of the tests stay out of the user's cache."""
    os.environ["RELAYOUT_CACHE"] = str(tmp_path_factory.mktemp("kernels"))
    os.environ["RELAYOUT_RUNS_LIMIT"] = "0"  # nor on what another test has compiled
    os.environ["RELAYOUT_EFFORT"] = "estimate"  # what a test runs must not depend on what was measured


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], Any]:
    """Load a file of facts by its name without the suffix."""
    return load_vectors
