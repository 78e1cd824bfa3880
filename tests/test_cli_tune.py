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


@pytest.mark.skipif(not supported(), reason="this host forbids making machine code")
def test_the_layers_of_a_model(tmp_path):
    """Problems that occur twice are listed once; a run finds what was measured."""
    pytest.importorskip("onnx")
    import relayout as rl
    import small_model

    file = tmp_path / "small.onnx"
    small_model.write(file)
    assert "are open: --dim batch=N" in refused("tune", str(file))
    (made,) = json.loads(call("tune", str(file), "--batch", "2", "--threads", "1", "--json"))["models"]
    known = json.loads(call("tune", "--show", "--json"))
    assert {one["problem"] for one in made["problems"]} == {one["problem"] for one in known}
    assert len(known) == len(made["problems"]) >= 1
    assert all("1 threads]" in one["problem"] and one["layers"] for one in made["problems"])
    text = call("tune", str(file), "--batch", "2", "--threads", "1")
    assert f"{file}: {len(known)} problems" in text
    assert all(2 >= one["contests"] >= 1 for one in json.loads(call("tune", "--show", "--json")))
    notes = [layer.implementation for layer in rl.load(file).compile(batch=2, threads=1).steps.layers()]
    assert all(any(one["schedule"] in note for note in notes) for one in made["problems"])


def test_with_estimates_nothing_is_measured(monkeypatch):
    monkeypatch.setenv("RELAYOUT_EFFORT", "estimate")
    assert "measures nothing" in refused("tune", *PROBLEM)
