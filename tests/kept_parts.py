"""What tests of parts that are kept begin with: a folder of their own, and what was translated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import relayout as rl  # noqa: E402
from relayout.graph import kept as runs  # noqa: E402
from relayout.torch.compiling import kept, part  # noqa: E402


@pytest.fixture(name="translations", autouse=True)
def kept_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """A folder of its own in which everything is kept; the graphs that were translated."""
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RELAYOUT_RUNS_LIMIT", "100000000")
    monkeypatch.setattr(runs, "code", lambda: "code")
    monkeypatch.setattr(kept, "LONG", 0.0)
    made: list[Any] = []
    original = part.translated
    monkeypatch.setattr(part, "translated", lambda parts: (made.append(parts), original(parts))[1])
    torch.manual_seed(0)
    yield made
    kept.finish()
    torch._dynamo.reset()


def compiled_anew(model: Any, x: Any, **options: Any) -> Any:
    """A model as another process would compile it, and what it returns."""
    torch._dynamo.reset()
    fast = rl.torch.compile(model, **options)
    with torch.no_grad():
        found = fast(x)
    kept.finish()
    return fast, found
