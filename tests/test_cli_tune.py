"""``relayout tune``: measured ahead of time, shown and forgotten."""

from __future__ import annotations

import json

import pytest

from relayout.jit.support import supported
from test_cli import call, refused

PROBLEM = ("f32:nchw:1x64x32x32", "f32:nhwc:1x64x32x32")


@pytest.fixture(autouse=True)
def _own_choices(monkeypatch, tmp_path):
    monkeypatch.setenv("RELAYOUT_EFFORT", "measure")
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))


@pytest.mark.skipif(not supported(), reason="this host forbids making machine code")
def test_tuned_shown_and_forgotten():
    assert call("tune", "--show") == "no schedule has been measured on this machine yet\n"
    (one,) = json.loads(call("tune", *PROBLEM, "--json"))["tuned"]
    assert (one["source"], one["destination"]) == PROBLEM
    assert 0 < one["ratio"] <= 1
    (known,) = json.loads(call("tune", "--show", "--json"))
    assert known["problem"].startswith(" -> ".join(PROBLEM))
    assert known["ranking"][0][0] == one["schedule"]
    assert call("tune", "--forget") == "1 schedule forgotten\n"
    assert json.loads(call("tune", "--show", "--json")) == []


@pytest.mark.parametrize("words", [(), (PROBLEM[0],), ("-",)])
def test_problems_are_pairs(words):
    assert "give a SOURCE and a DESTINATION" in refused("tune", *words)
