"""``relayout run``: a network from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from relayout.networks import NETWORKS, Architecture
from test_cli import call, refused

SMALL = Architecture((1, 1), width=8, channels=8)
SHORT = ("--size", "32", "--repeat", "2", "--threads", "1")


@pytest.fixture(autouse=True)
def _small_network(monkeypatch):
    monkeypatch.setitem(NETWORKS, "resnet50", SMALL)


def test_a_line_for_each_format():
    lines = call("run", "resnet50", *SHORT, "--batch", "2").splitlines()
    assert lines[0] == "resnet50, 2 x 3x32x32, f32, 1 thread"
    assert lines[1].split()[:4] == ["format", "ms", "an", "image"]
    assert lines[2].split()[0] == "any"
    assert lines[2].split()[6:8] == ["13", "1,"]
    assert len(lines) == 3
    lines = call("run", "resnet50", *SHORT, "--format", "nhwc", "--format", "nchw").splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["nhwc", "nchw"]
    assert "ratio" in lines[1]
    assert lines[2].split()[6] == "1.00"


def test_one_run_is_neither_the_fastest_nor_the_slowest():
    head = call("run", "resnet50", *SHORT).splitlines()[1]
    assert "fastest" in head
    assert "slowest" in head
    assert head.endswith("activations (unshared)  weights  ready in")
    head, row = call("run", "resnet50", *SHORT, "--repeat", "1").splitlines()[1:]
    assert "fastest" not in head
    assert "slowest" not in head
    assert row.split()[4:6] == ["13", "1,"]


@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
def test_layers_with_formats_and_times(format):
    lines = call("run", "resnet50", *SHORT, "--format", format, "--layers").splitlines()
    assert lines[4] == format
    assert lines[5].split()[:5] == ["layer", "kind", "src", "weights", "dst"]
    rows = {line.split()[0]: line for line in lines[6:]}
    assert len(rows) == 12
    assert rows["layer1.0.conv2"].count(format) == 2
    assert not any("machine code:" in line for line in lines)
    assert "%" in rows["fc"]


def test_json(tmp_path):
    path = tmp_path / "run.json"
    call("run", "resnet50", *SHORT, "--seed", "3", "--json", path)
    made = json.loads(path.read_text())
    assert (made["network"], made["weights"], made["seed"], made["threads"]) == ("resnet50", None, 3, 1)
    [found] = made["formats"]
    assert len(found["runs"]) == 2
    assert found["seconds"] > 0
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
    assert found["layers"][0]["descs"] == {"src": "f32:nchw:1x3x32x32", "dst": "f32:nhwc:1x3x32x32"}
    assert found["memory"]["bound"] <= found["memory"]["peak"] < found["memory"]["total"]


def test_errors_are_one_line(tmp_path):
    assert "there is no network 'resnet5'; there are resnet50" in refused("run", "resnet5")
    assert "nchx" in refused("run", "resnet50", "--format", "nchx")
    np.savez(tmp_path / "w.npz", other=np.zeros(3))
    assert "conv1.weight" in refused("run", "resnet50", "--weights", tmp_path / "w.npz", code=4)
    assert "No such file" in refused("run", "resnet50", "--weights", tmp_path / "none.npz", code=5)
    assert "No such file" in refused("run", "resnet50", "--weights", tmp_path / "none", code=5)
    assert "relayout run --help" in refused("run", "resnet50", "--batch", "0")
