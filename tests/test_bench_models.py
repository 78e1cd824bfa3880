"""The bench of whole networks: everybody computes the same, and all is reported."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from relayout.bench.contest import OURS_REAL, contest, taking_part
from relayout.bench.measure import Spread
from relayout.bench.models import Entry, Result, difference, means
from relayout.bench.running import done, entries
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


def measured(*arguments: str) -> tuple[str, list[dict[str, Any]]]:
    """What the command prints, and its results."""
    told = Path(arguments[0]).with_suffix(".told.json")
    command = ["bench", "networks", *arguments, "--rounds", "2", "--seconds", "0.2"]
    command += ["--without", "torch.compile", f"--json={told}"]
    found = CliRunner().invoke(application, command, prog_name="relayout")
    assert found.exit_code == 0, found.output
    assert max(len(line) for line in found.stdout.splitlines()) <= 80, found.stdout
    return found.stdout, json.loads(told.read_text())["results"]


def test_all_contestants_are_timed_and_compared(model: Path) -> None:
    text, results = measured(str(model), "--batch", "2", "--threads", "1,2")
    assert [(one["threads"], one["batch"]) for one in results] == [(1, 2), (2, 2)]
    for one in results:
        assert 0 <= one["difference"] < 1e-5
        assert one["behind"]["ONNX Runtime"]["median"] > 0
        assert one["defined"] == 0
        assert set(one["start"]) == set(one["peak"]) >= {"Relayout", "Relayout, saved", "ONNX Runtime"}
        assert all(seconds > 0 for seconds in one["start"].values())
    for part in textwrap.wrap(model.stem, 18):  # the whole name is there, on several lines
        assert part in text


def test_a_run_is_continued(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    _, first = measured(str(model), "--threads", "1", "--results", str(kept))
    with kept.open("a") as file:
        file.write('{"network": "cut o')
    _, again = measured(str(model), "--threads", "1", "--results", str(kept))
    assert again == first


def test_a_contestant_that_joins_later_is_measured() -> None:
    entry = Entry("net", Path("net.onnx"), Path("net.npz"), 1, 2)
    known = {
        ("net", 2, 1): Result("net", 2, 1, {"ONNX Runtime": Spread(1, 1, 1)}, refused={"OpenVINO": "no"})
    }
    assert done(entry, ["ONNX Runtime", "OpenVINO"], known)
    assert not done(entry, ["ONNX Runtime", "torch.compile"], known)
    assert done(replace(entry, file=True), ["ONNX Runtime", "torch.compile"], known)
    assert not done(replace(entry, threads=1), ["ONNX Runtime"], known)


def test_no_network_is_begun_after_its_time(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    command = ["bench", "networks", str(model), "--threads", "1", "--minutes", "0", "--results", str(kept)]
    assert CliRunner().invoke(application, command, prog_name="relayout").exit_code == 0
    assert not kept.exists()


def test_what_a_contestant_refuses_is_said(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.npz"
    np.savez(broken, np.zeros((1, 4, 9, 9), np.float32))  # a channel too many
    result = contest(Entry("broken", model, broken, 1, 1, True), ["ONNX Runtime"], 1, 0.1)
    assert set(result.refused) == {"Relayout", "ONNX Runtime"}
    assert "4 channels" in result.refused["Relayout"]
    assert result.behind == {}
    assert result.best is None


def test_means_are_geometric_and_name_the_worst() -> None:
    results = [
        Result("a", 1, 1, behind={"ONNX Runtime": Spread(4, 4, 4), "OpenVINO": Spread(2, 2, 2)}),
        Result("b", 1, 1, behind={"ONNX Runtime": Spread(0.25, 0.2, 0.3)}),
    ]
    found = means(results)
    assert found["ONNX Runtime"] == (pytest.approx(1.0), 0.25, "b", 2)
    assert found["OpenVINO"] == (pytest.approx(2.0), 2, "a", 1)
    assert found["the best of them"] == (pytest.approx(0.5**0.5), 0.25, "b", 2)


def test_a_difference_is_seen() -> None:
    assert difference([np.zeros((2, 3))], [np.zeros((3, 2))]) == np.inf
    assert difference([np.array([1.0, -3.0])], [np.array([1.0, -4.0])]) == 0.25
    assert difference([np.array([np.inf, 1.0])], [np.array([np.inf, 1.0])]) == 0
    assert difference([np.array([0.0, 1.0])], [np.array([np.nan, 1.0])]) == np.inf


def test_a_file_is_measured_in_bf16(model: Path) -> None:
    text, results = measured(str(model), "--threads", "1", "--type", "bf16", "--without", "OpenVINO")
    (one,) = results
    assert one["network"] == f"{model.name} bf16"
    assert one["behind"][OURS_REAL]["median"] > 0
    assert "bf16" in text


def test_a_file_is_not_quantised(model: Path) -> None:
    command = ["bench", "networks", str(model), "--type", "int8"]
    found = CliRunner().invoke(application, command, prog_name="relayout")
    assert found.exit_code == 2
    assert "quantised" in found.stderr


def test_who_computes_in_which_type(tmp_path: Path) -> None:
    peers = ["ONNX Runtime", "OpenVINO", "torch.compile"]
    with entries((), False, ["resnet50", "bert"], None, [1], ("int8", "bf16")) as (found, lacking):
        known = {one.title: taking_part(one, peers) for one in found}
        assert {one.batch for one in found} <= {1}
    if not lacking:
        assert known["tv/resnet50 int8"] == ["ONNX Runtime", "OpenVINO", "OpenVINO, bf16", OURS_REAL]
        assert known["hf/bert_base bf16"] == ["OpenVINO", "torch.compile", OURS_REAL]
    entry = Entry("a.onnx", tmp_path, tmp_path, 1, 1, True, "bf16")
    assert taking_part(entry, peers) == ["OpenVINO", OURS_REAL]
    result = Result(entry.title, 1, 1, refused=dict.fromkeys(["OpenVINO", OURS_REAL], "no"))
    assert done(entry, peers, {result.key: result})
