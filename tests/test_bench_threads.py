"""The bench of threads: every contestant does every part, and all is reported."""

from __future__ import annotations

import importlib
import json
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from relayout import LayoutError
from relayout.bench import load
from relayout.cli import application
from test_threads import KERNELS, NAMES

compile_ = pytest.importorskip("relayout.jit.compile")
bench = importlib.import_module("relayout.bench.threads")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


@pytest.mark.parametrize("one", bench.contestants(), ids=lambda one: one.name)
def test_every_part_of_every_region_is_done_once(one):
    kernels = compile_.compiled(KERNELS, NAMES)
    seen = np.zeros(6, np.int64)
    work = bench.Work(kernels["tally"].address, operands=seen.ctypes.data, parts=5)
    for threads in (1, 2, 3):
        seen[:] = 0
        one.call(work, threads, 7)()
        assert seen.tolist() == [7 * 5] * 5 + [0]


def test_work_is_as_long_as_it_should_be():
    turns, target = np.array([1]), np.zeros(16)
    peak = bench.peak.kernel().address
    work = bench.Work(peak, 0, target.ctypes.data, turns.ctypes.data)
    assert bench._lasting(work, turns, 1 << 40) is work
    assert 100 < turns[0] < 10**8
    bench._lasting(work, turns, 5)
    assert turns[0] == 5


def test_the_command_reports_all(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "PAUSES", (1e-4, 2e-4))
    path = tmp_path / "threads.json"
    command = ["bench", "threads", "--threads", "2", "--rounds", "1", "--json", str(path)]
    result = CliRunner().invoke(application, command, prog_name="relayout")
    assert result.exit_code == 0, result.output
    told = json.loads(path.read_text())
    names = [one.name for one in bench.contestants()]
    assert told["threads"] == 2
    for name in names:
        figures = [figure for figure in told["figures"] if figure["contestant"] == name]
        states = 3 + (len(names) > 1)
        assert [figure["what"] for figure in figures] == (
            ["region"] + ["wakeup"] * 4 + ["arithmetic"] * states + ["copy"] * states
        )
        assert all(figure["spread"]["median"] > 0 for figure in figures)
    for word in ("region", "wakeup", "asleep 0.2 ms", "arithmetic", *names):
        assert word in result.output


def test_one_thread_shares_nothing():
    with pytest.raises(LayoutError, match="2 or more"):
        next(bench.figures(1, 1))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads can't be listed here")
def test_others_come_to_rest_first(monkeypatch):
    end = threading.Event()

    def work():  # which gives the interpreter's lock away
        while not end.is_set():
            zlib.crc32(bytes(1 << 24))

    monkeypatch.setattr(load, "RESTLESS", 0.05)
    other = threading.Thread(target=work)
    other.start()
    found = load.settle()
    end.set()
    other.join()
    assert not found  # it gives up
    monkeypatch.setattr(load, "RESTLESS", 30.0)
    start = time.perf_counter()
    assert load.settle()
    assert time.perf_counter() - start >= load.REST
