"""The census of networks: small ones, as programs and as ONNX files; and that it survives what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from relayout.bench import census, zoo
from relayout.bench.drift import PAIRS, drift
from relayout.bench.learning import Compared, compared
from relayout.cli import application
from relayout.graph.graph import Node
from relayout.importers.loading import load

pytest.importorskip("torch")
SMALL = [name for name in (*zoo.CENSUS, *zoo.MORE) if name.startswith("extra/")]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAYOUT_NETWORKS", str(tmp_path / "networks"))
    return tmp_path


def test_the_lists_are_whole() -> None:
    assert len(set(zoo.CENSUS)) == 277
    assert len(set(zoo.MEASURED)) == len(zoo.MEASURED) >= 25
    assert all(zoo.missing(name) is not None for name in (*zoo.CENSUS, *zoo.MORE, *zoo.MEASURED))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_programs_of_small_networks_agree(name: str) -> None:
    found = census._program(name)
    assert (found.status, found.why) == ("agrees", "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "way", ["script", *(("static", "batch", "plain") if not zoo.missing_writers() else ())]
)
@pytest.mark.parametrize("name", ["extra/lenet5", "extra/espcn", "extra/unet_convt"])
def test_files_of_small_networks_agree(name: str, way: str) -> None:
    pytest.importorskip("onnxruntime")
    files = zoo.exported(name, census.batch_of(way), way)
    found = census._compared(name, way)
    assert (found.status, found.why) == ("agrees", "")
    files.remove()
    assert not files.model.exists()


def test_outcomes_are_kept_and_not_made_again(place: Path) -> None:
    path = place / "census.jsonl"
    told = {"name": "extra/lenet5", "way": "program", "status": "agrees"}
    path.write_text(json.dumps(told) + '\n{"name": "extra/es')
    assert list(census.looked_at(["extra/lenet5"], "program", path, census.Limits())) == []
    assert census.summary(census.read(path)) == {"agrees": 1}


@pytest.mark.slow
def test_a_network_that_takes_too_much_is_a_line_of_the_results(place: Path) -> None:
    path = place / "census.jsonl"
    limits = census.Limits(seconds=0.3)
    [found] = census.looked_at(["extra/lenet5"], "program", path, limits)
    assert (found.status, census.read(path)) == ("too slow", [found])
    [found] = census.looked_at(["extra/lenet5"], "program", path, census.Limits(memory=1e6), again=True)
    assert found.status == "too large"


def test_the_command_lists_what_is_known(place: Path) -> None:
    path = place / "census.jsonl"
    path.write_text(json.dumps({"name": "extra/yolo", "way": "static", "status": "differs"}) + "\n")
    command = ["bench", "census", "--only", "extra/yolo", "--results", str(path)]
    listed = CliRunner().invoke(application, [*command, "--list"], prog_name="relayout")
    assert listed.output.split() == ["extra/yolo", "static", "differs"]
    told = CliRunner().invoke(application, command, prog_name="relayout")
    assert told.exit_code == 0, told.output
    assert "static: 0 of 1 agree, 0.0 %" in told.output


# -- training -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["extra/lenet5", "extra/gru", "extra/dcgan_d"])
def test_steps_of_small_networks_agree(name: str) -> None:
    found = census._learned(name, "program")
    assert found.status == "agrees", found.why


def test_what_rounding_does_not_explain_differs() -> None:
    given = {"loss": 2e-7, "own_loss": 1e-7, "gradients": 2e-6, "own_gradients": 1e-6, "worst": 3.0}
    rest = {"which": "w", "statistics": 0.0, "missing": [], "others": [], "apart": []}
    assert Compared(**given, **rest).agrees
    wrong = {
        "loss": 1e-5,
        "gradients": 1e-5,
        "worst": 17.0,
        "statistics": 0.1,
        "missing": ["w"],
        "apart": ["w"],
    }
    for name, value in wrong.items():
        assert not Compared(**{**given, **rest, name: value}).agrees, name
    for name in ("loss", "gradients", "worst", "statistics"):
        assert not Compared(**{**given, **rest, name: float("nan")}).agrees, name


def test_a_wrong_gradient_is_seen() -> None:
    """A network whose graph is another one: a bias is left out."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    x = torch.randn(4, 3)
    with torch.no_grad():
        graph = load(torch.export.export(model.eval(), (x,)))
    assert compared(model, (x,), graph, {}).agrees
    wrong = graph.replaced(
        nodes=tuple(Node("Relu", n.inputs, n.outputs) if n.operator == "Tanh" else n for n in graph.nodes)
    )
    found = compared(model, (x,), wrong, {})
    assert not found.agrees
    assert found.worst > 1000


def test_trainings_have_lines_of_their_own(place: Path) -> None:
    path = place / "census.jsonl"
    told = {"name": "extra/lenet5", "way": "program", "status": "agrees"}
    path.write_text(
        json.dumps(told) + "\n" + json.dumps({**told, "status": "refused", "training": True}) + "\n"
    )
    assert len(census.read(path)) == 2
    command = ["bench", "census", "--only", "lenet5", "--way", "program", "--results", str(path), "--list"]
    for more, status in (([], "agrees"), (["--training"], "refused")):
        listed = CliRunner().invoke(application, [*command, *more], prog_name="relayout")
        assert listed.output.split() == ["extra/lenet5", "program", status]


@pytest.mark.slow
def test_steps_stay_near_double_precision() -> None:
    made = drift("resnet50", 4, 0.001, 1, 64, 1, lambda _: None)
    assert set(made.losses) == {"ours", "PyTorch", "exact"}
    for pair in PAIRS:
        assert made.loss(pair) < 1e-4
        assert len(made.steps[pair]) == 1
        assert len(made.norms[pair]) == len(made.largest[pair]) > 200
    assert made.loss("ours - exact") > 0
