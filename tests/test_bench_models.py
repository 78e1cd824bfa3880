"""The bench of whole networks: everybody computes the same, and all is reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from relayout.cli import application

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    w = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype("f4")
    x, y = (onnx.helper.make_tensor_value_info(name, 1, ["n", c, 9, 9]) for name, c in (("x", 3), ("y", 8)))
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = onnx.helper.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(w, "w")])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "a_network_with_quite_a_long_name.onnx"
    onnx.save(made, path)
    return path


def test_all_contestants_are_timed_and_compared(model: Path, tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    command = ["bench", "networks", str(model), "--batch", "2", "--rounds", "2", "--seconds", "0.2"]
    found = CliRunner().invoke(
        application, [*command, "--threads", "1,2", "--json", str(told)], prog_name="relayout"
    )
    assert found.exit_code == 0, found.output
    assert max(len(line) for line in found.stdout.splitlines()) <= 80, found.stdout
    results = json.loads(told.read_text())["results"]
    assert [(one["threads"], one["batch"]) for one in results] == [(1, 2), (2, 2)]
    for one in results:
        assert 0 <= one["difference"] < 1e-5
        assert one["behind"]["ONNX Runtime"]["median"] > 0
        assert one["defined"] == 0


def test_what_others_refuse_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relayout.bench import models

    def refusing(*_: object) -> models.Call:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(models, "PEERS", {"Other": ("numpy", refusing)})
    [result] = models.measured(model, [1], rounds=1, seconds=0.1)
    assert result.refused == {"Other": "no such operator"}
    assert result.difference is None
    assert result.behind == {}


def test_a_difference_is_seen() -> None:
    from relayout.bench.models import difference

    assert difference([np.zeros((2, 3))], [np.zeros((3, 2))]) == np.inf
    assert difference([np.array([1.0, -3.0])], [np.array([1.0, -4.0])]) == 0.25
