"""The bench of conversions: cases, figures, tables."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from relayout.bench import conversions
from relayout.bench.conversions import ACTIVATIONS, Case, Result, as_json, cases, means, measured, show
from relayout.bench.measure import Spread
from relayout.cli import application

CASES = [
    Case("conversion", (1, 64, 8, size), "float32", "float32", "channels_last") for size in (8, 16, 1024)
]


def results() -> list[Result]:
    return [
        Result(
            case,
            1,
            {"Relayout": Spread(1.0, 1.0, 1.0), "PyTorch": Spread(ratio, ratio, ratio)},
            {"PyTorch": Spread(ratio, ratio, ratio)},
            {"Relayout": 3, "PyTorch": 3},
            False,
        )
        for case, ratio in zip(CASES, (0.5, 2.0, 8.0), strict=True)
    ]


def test_cases_are_the_activations_of_resnet_in_both_directions() -> None:
    found = cases((8,))
    own = [one for one in found if one.kind == "conversion"]
    assert len(own) == len(ACTIVATIONS) * 2 * 3
    assert {one.memory_format for one in own} == {"channels_last", "contiguous_format"}
    assert {str(one) for one in cases((8,), ["8x64x112x112 bfloat16"])} == {
        "conversion 8x64x112x112 bfloat16 -> channels_last",
        "conversion 8x64x112x112 bfloat16 -> contiguous_format",
    }
    assert {one.workers for one in found if one.kind == "loader"} == {0, 2}


def test_means() -> None:
    [row] = means(results())
    assert row["mean"] == pytest.approx(2.0)
    assert (row["least"], row["least_large"], row["cases"]) == (0.5, 8.0, 3)
    assert row["where"] == str(CASES[0])
    assert as_json(results(), {"cores": 2})["means"] == [row]
    text = io.StringIO()
    show(results(), Console(file=text, width=120))
    assert "2.00   0.50               8.00" in text.getvalue()


def test_everybody_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(conversions, "SIZE", 16)
    before = torch.get_num_threads()
    wanted = [
        Case("conversion", (2, 3, 20, 20), given, asked, format)
        for given, asked in conversions.TYPES
        for format in ("channels_last", "contiguous_format")
    ]
    wanted += [
        Case("batch", (3, 3, 16, 16), "uint8", asked, "channels_last") for asked in ("float32", "bfloat16")
    ]
    wanted += [Case("loader", (3, 3, 16, 16), "uint8", "float32", "channels_last")]
    said: list[str] = []
    found = list(measured([(case, 1) for case in wanted], 1, 0.01, said.append))
    assert [one.case for one in found] == wanted
    assert {*found[0].behind} == {"PyTorch"}
    assert {*found[-1].behind} == {"PyTorch", "PyTorch in place"}
    assert all(one.behind["PyTorch"].median > 0 for one in found)
    assert torch.get_num_threads() == before
    assert len(said) == len(wanted)


def test_the_command(tmp_path: Path) -> None:
    listed = CliRunner().invoke(application, ["bench", "torch", "--list", "--case", "loader"])
    assert listed.exit_code == 0, listed.output
    assert len(listed.output.splitlines()) == 4
    pytest.importorskip("torch")
    path = tmp_path / "conversions.json"
    options = ["--batch", "1", "--case", "1x512x7x7 bfloat16", "--threads", "1", "--rounds", "1"]
    done = CliRunner().invoke(application, ["bench", "torch", *options, "--no-progress", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "conversion bfloat16 -> channels_last" in done.output
    assert len(json.loads(path.read_text())["results"]) == 2
    wrong = CliRunner().invoke(application, ["bench", "torch", "--batch", "0"])
    assert wrong.exit_code == 2
