"""``relayout explain``: what goes where, with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from relayout.cli import application

LOGS = Path(__file__).parent / "logs"
LOG = str(LOGS / "onednn-resnet.log")


def run(*words: str, given: bytes | None = None) -> Result:
    return CliRunner().invoke(application, ["explain", *words], prog_name="relayout", input=given)


def test_table_advice_and_notes() -> None:
    done = run(LOG, "--top", "3")
    assert done.exit_code == 0
    first, second, blank, heads, *rows = done.stdout.splitlines()
    assert first.startswith("oneDNN v3.")
    assert "weights are packed" in second
    assert blank == ""
    assert heads.split()[:4] == ["#", "conversion", "from", "to"]
    assert [row.split()[0] for row in rows[:3]] == ["1", "2", "3"]
    assert any("more rows" in row for row in rows)
    assert any(row.startswith("note: ") for row in rows)


def test_json_has_all_rows_and_quiet_the_share(tmp_path: Path) -> None:
    done = run(LOG, "--top", "1", "--json")
    found = json.loads(done.stdout)
    assert len(found["rows"]) > 1
    assert found["complete"] is True
    assert sum(row["seconds"] for row in found["rows"]) == pytest.approx(found["conversion_seconds"])
    assert run(LOG, "--quiet").stdout == f"{found['conversion_share']:.4f}\n"
    beside = tmp_path / "found.json"
    done = run(LOG, "--json", str(beside))
    assert "conversions in" in done.stdout
    assert json.loads(beside.read_text()) == found


def test_page(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    done = run(LOG, "--html", str(path), "--top", "2")
    assert str(path) in done.stdout
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_measured_here() -> None:
    row = json.loads(run(LOG, "--measure", "--threads", "1", "--top", "1", "--json").stdout)["rows"]
    assert row[0]["memcpy_seconds"] > 0
    assert row[0]["relayout_seconds"] > 0
    assert row[1]["memcpy_seconds"] is None


def test_standard_input_and_logs_that_are_cut() -> None:
    data = (LOGS / "onednn-resnet.log").read_bytes()
    whole = data[: data.rindex(b",") + 1]
    done = run("-", given=whole)
    assert done.exit_code == 0
    done = run("-", given=data[: data.rindex(b",exec,") + 40])
    assert done.exit_code == 0
    assert "INCOMPLETE: " in done.stdout


def test_errors(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(bytes(range(256)))
    done = run(str(junk))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (4, "", 1)
    assert run(str(tmp_path / "none")).exit_code == 5
    assert run(str(tmp_path)).exit_code == 5
    assert run(LOG, "--html", str(tmp_path / "no" / "page.html")).exit_code == 5
    assert run(LOG, "--top", "-1").exit_code == 2
