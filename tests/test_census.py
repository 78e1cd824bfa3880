"""The census of networks: small ones, as programs and as ONNX files; and that it survives what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from relayout.bench import census, zoo
from relayout.cli import application

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
