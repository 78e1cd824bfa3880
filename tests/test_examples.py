"""The programs in ``examples`` run, and say what they should."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_photograph(tmp_path, monkeypatch, capsys):
    """Each conversion is timed twice, so that the time to compile is not taken for that of the call."""
    pytest.importorskip("PIL")
    spec = importlib.util.spec_from_file_location("photograph", EXAMPLES / "photograph.py")
    photograph = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(photograph)
    monkeypatch.setattr(photograph, "OUT", tmp_path)
    photograph.main()
    said = " ".join(capsys.readouterr().out.split())
    times = re.findall(r"[0-9.]+ ms for the second of two calls \([0-9.]+ ms for the first\)", said)
    assert len(times) == 2
    assert "all 405900 bytes equal: yes" in said
    assert [path.name for path in tmp_path.iterdir()] == ["chelsea-there-and-back.png"]
