"""Scripts that are run in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def is_done(folder, text):
    """Run a script, which is given the folder of the tests: it must print ``done``, and nothing else."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", script, os.path.dirname(__file__)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
