"""Run the notebook of the examples and keep what it shows.

    python docs/notebook.py            needs nbclient and ipykernel

A test runs the notebook too, and compares.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "formats.ipynb"


def main() -> None:
    """Run all cells; write them with their outputs, without times and without traces of this machine."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", record_timing=False).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
