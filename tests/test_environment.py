"""Numbers in environment variables: digits, however many, or an error that names the variable."""

from __future__ import annotations

import importlib

import pytest

from relayout import LayoutError
from relayout.processors import MOST
from relayout.runtime.thresholds import shares, streams

cache = importlib.import_module("relayout.jit.cache")
machine = importlib.import_module("relayout.targets.machine")
threads = importlib.import_module("relayout.runtime.threads")

MANY = "9" * 5000  # more digits than int() takes


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), ("0007", 7), ("0" * 5000 + "2", 2), (MANY, MOST), ("256", 256)]
)
def test_threads(monkeypatch, text, number):
    monkeypatch.setenv("RELAYOUT_THREADS", text)
    assert threads.count() == number


@pytest.mark.parametrize("text", ["0", "000", "-1", "two", "1e3", " 2", "\u00b2", "\u0663", "+1", "x" * 5000])
def test_what_is_no_number_of_threads(monkeypatch, text):
    monkeypatch.setenv("RELAYOUT_THREADS", text)
    with pytest.raises(LayoutError, match=r"RELAYOUT_THREADS=.* is no number of threads; write 1") as caught:
        threads.count()
    assert len(str(caught.value)) < 200


def test_bytes(monkeypatch, tmp_path):
    for name in ("RELAYOUT_STREAMING", "RELAYOUT_SHARING", "RELAYOUT_CACHE_LIMIT"):
        monkeypatch.setenv(name, MANY)
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "kernels"))
    small = machine.Machine("x86_64", "x86-64-v3", "", 32, 1 << 15, 1 << 20, 1 << 23)
    assert not streams(small, 1 << 40)
    assert not shares(small, 1 << 40)
    cache.save("f" * 64, b"code")
    assert cache.load("f" * 64) == b"code"
    monkeypatch.setenv("RELAYOUT_SHARING", "1G")
    with pytest.raises(LayoutError, match="RELAYOUT_SHARING='1G' is no number of bytes"):
        shares(small, 1)
