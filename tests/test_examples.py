"""The programs in ``examples`` run, and say what they should."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
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


def test_data_loader():
    """The workers are spawned, so it must be a program of its own."""
    pytest.importorskip("PIL")
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "data_loader.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"({len(lefts)}, 3, 128, 128), channels_last: True, from {lefts}"
        for lefts in ([0, 32, 64, 96], [128, 160, 192, 224], [256, 288])
    ]


def test_training(monkeypatch, capsys):
    """Four of the eight rounds, on digits that the example makes, are enough to tell most of them apart."""
    spec = importlib.util.spec_from_file_location("training", EXAMPLES / "training.py")
    training = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(training)
    monkeypatch.setattr(training, "loaded", lambda: (*training.made(2500), "made"))
    right = training.main(epochs=4)
    said = capsys.readouterr().out
    assert right > 0.9
    assert "2000 pictures to learn from, 500 to try: made" in said
    assert re.search(r"-{50,} 124 steps\n", said)
    assert f"{right:.1%} right" in said
