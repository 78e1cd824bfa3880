"""The notebook that teaches formats runs, and its outputs are what the code makes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "formats.ipynb"

pytestmark = pytest.mark.skipif(not NOTEBOOK.exists(), reason="not part of this distribution")


def shown(cell: Any) -> list[Any]:
    """What a cell shows: its text and pictures, without what differs from run to run."""
    outputs = [output.get("data", output.get("text")) for output in cell["outputs"]]
    return [
        {kind: "".join(text) for kind, text in data.items()} if isinstance(data, dict) else "".join(data)
        for data in outputs
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_and_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh its outputs with: ``python docs/notebook.py``."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    kept = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for new, old in zip(notebook.cells, kept["cells"], strict=True):
        if new.cell_type == "code":
            assert shown(new) == shown(old), new.source


def test_the_notebook_is_small_and_has_its_pictures() -> None:
    kept = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    pictures = [data for cell in kept["cells"] if cell["cell_type"] == "code" for data in shown(cell)]
    assert sum("image/svg+xml" in data for data in pictures) >= 9
    assert NOTEBOOK.stat().st_size < 900_000
