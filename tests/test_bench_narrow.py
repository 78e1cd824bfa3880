"""The bench of layers on narrow numbers beside memcpy."""

from __future__ import annotations

import importlib
import json

import pytest
from click.testing import CliRunner

from relayout.cli import application

compile_ = pytest.importorskip("relayout.jit.compile")
bench = importlib.import_module("relayout.bench.narrow")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


def test_all_layers_have_kernels() -> None:
    for case in bench.CASES:
        made = case.primitive()
        assert made.implementation.startswith("machine code"), case
        assert case.type in str(case)
        assert case.format in str(case)
        assert case.bytes > 0


def test_the_command_reports_all(monkeypatch: pytest.MonkeyPatch) -> None:
    several = tuple(
        bench.Case(what, "u8", (1, 64, 6, 8), "nhwc", window, factor)
        for what, window, factor in (
            *(("average", (3, 1, 1), 1.0), ("max", (2, 2, 0), 1.0)),
            *(("linear", (1, 1, 0), 2.0), ("batch norm", (1, 1, 0), 1.0), ("relu", (1, 1, 0), 1.0)),
        )
    )
    rows = tuple(bench.Case(what, "bf16", (2, 3, 40), "abc") for what in ("softmax", "layer norm"))
    monkeypatch.setattr(bench, "CASES", (*several, *rows))
    command = ["bench", "narrow", "--rounds", "1", "--threads", "1", "--json", "-"]
    result = CliRunner().invoke(application, command, prog_name="relayout")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["figures"]
    assert [one["layer"] for one in told] == [str(case) for case in (*several, *rows)]
    assert all(one["ratios"]["Relayout"]["median"] > 0 for one in told)
    assert "average 3x3 stride 1 padding 1 u8 nhwc 1x64x6x8" in [one["layer"] for one in told]


def test_no_such_layer() -> None:
    result = CliRunner().invoke(application, ["bench", "narrow", "--case", "nothing"], prog_name="relayout")
    assert result.exit_code == 2
    assert "no layer has that" in result.output
