"""The bench of all schedules: what an estimate loses."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from relayout.cli import application

compile_ = pytest.importorskip("relayout.jit.compile")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


def test_the_command_times_every_schedule() -> None:
    command = ["bench", "schedules", "--quick", "--case", "f32:nchw -> bf16:nchw", "--case", "4x32x12x12"]
    command += ["--rounds", "1", "--threads", "1", "--no-progress", "--json", "-"]
    result = CliRunner().invoke(application, command, prog_name="relayout")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (one,) = found["figures"]  # the other case is too small for contests
    assert one["case"].startswith("f32:nchw -> bf16:nchw")
    assert one["schedules"][0]["wish"] == "estimate"
    assert one["schedules"][0]["cost"] == 1
    times = [schedule["seconds"] for schedule in one["schedules"]]
    assert min(times) > 0
    assert one["loss"] == pytest.approx(times[0] / min(times))
    assert found["estimate_over_best"]["1"] == pytest.approx(one["loss"])
