"""The bench of one convolution in several formats."""

from __future__ import annotations

import importlib
import json

import pytest
from click.testing import CliRunner

from relayout.cli import application

compile_ = pytest.importorskip("relayout.jit.compile")
bench = importlib.import_module("relayout.bench.formats")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


def test_every_type_meets_right_and_wrong_formats() -> None:
    found = bench.cases()
    assert {one.type for one in found} == set(bench.TYPES)
    for name, depth in (("f32", 1), ("bf16", 2), ("u8", 4)):
        wanted = "Ohwi16o" if depth == 1 else f"OhwI16o{depth}i"
        assert {wanted, "oihw", "any"} <= {one.weights for one in found if one.type == name}
        assert {"nhwc", "nchw", "NCHW4"} <= {one.source for one in found if one.type == name}


def test_the_command_reports_all(monkeypatch: pytest.MonkeyPatch) -> None:
    several = tuple(bench.Case(name, "nhwc", "any") for name in ("bf16", "u8"))
    monkeypatch.setattr(bench, "cases", lambda: several)
    command = ["bench", "formats", "--rounds", "1", "--dtype", "u8", "--json", "-"]
    result = CliRunner().invoke(application, command, prog_name="relayout")
    assert result.exit_code == 0, result.output
    [told] = json.loads(result.stdout)["figures"]
    assert (told["type"], told["source"], told["weights"]) == ("u8", "nhwc", "any")
    assert told["seconds"]["median"] > 0
    assert told["how"].startswith("weights ")
