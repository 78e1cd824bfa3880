"""The driver: every part of every row once, one row after the other, with times if they are wanted."""

from __future__ import annotations

import importlib
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout.runtime.memcpy import memcpy_kernel
from strategies import examples
from test_threads import KERNELS, NAMES

compile_ = pytest.importorskip("relayout.jit.compile")
driver = importlib.import_module("relayout.runtime.driver")
machine = importlib.import_module("relayout.targets.machine")
pool = importlib.import_module("relayout.runtime.pool")
threads = importlib.import_module("relayout.runtime.threads")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


@pytest.fixture(scope="module")
def kernels():
    """Addresses by name, good for as long as the kernels are kept here."""
    made = compile_.compiled(KERNELS, NAMES)
    yield {name: kernel.address for name, kernel in made.items()}
    made.clear()


@pytest.fixture(params=["machine code", "Python"])
def walk(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setattr(driver, "_native", lambda: None)
    return driver.walk


def table(rows):
    """Rows of (kernel, source, target, operands, parts, threads)."""
    return np.array([[*row, 0, 0] for row in rows], np.int64).reshape(-1, driver.ROW)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 5)), max_size=12), st.booleans())
@examples(40)
def test_every_part_of_every_row_runs_once(kernels, jobs, timed):
    seen = np.zeros((len(jobs), 21), np.int64)
    rows = table((kernels["tally"], 0, 0, seen[k].ctypes.data, *job) for k, job in enumerate(jobs))
    stamps = np.zeros((len(jobs) + 1, 2), np.int64) if timed else None
    most = max((many for _, many in jobs), default=1)
    driver.walk(rows.ctypes.data, len(rows), most, stamps)
    assert seen.tolist() == [[parts] * parts + [0] * (21 - parts) for parts, _ in jobs]


def test_each_row_sees_what_the_one_before_wrote(walk):
    size = 1 << 16
    cells = np.zeros((9, size), np.uint8)
    cells[0] = np.random.default_rng(0).integers(0, 256, size)
    length = np.array([size])
    copy = memcpy_kernel()
    rows = table(
        (copy, cells[k].ctypes.data, cells[k + 1].ctypes.data, length.ctypes.data, 1 + k % 5, 1 + k % 3)
        for k in range(8)
    )
    for _ in range(20):
        cells[1:] = 0
        walk(rows.ctypes.data, len(rows), 3)
        assert (cells == cells[0]).all()


@pytest.mark.skipif(not pool.available(), reason="no native threads here")
def test_threads_work_at_the_same_time(kernels):
    seen = np.zeros(2, np.int64)
    rows = table([(kernels["meet"], 0, 0, seen.ctypes.data, 2, 2)])
    driver.walk(rows.ctypes.data, 1, 2)
    assert seen.tolist() == [2, 0]


def test_times_only_go_forward(kernels, walk):
    seen = np.zeros(4, np.int64)
    rows = table([(kernels["slow"], 0, 0, seen.ctypes.data, 3, 1)] * 3)  # 900 microseconds each
    stamps = np.zeros((4, 2), np.int64)
    before = time.monotonic_ns()
    walk(rows.ctypes.data, 3, 1, stamps)
    after = time.monotonic_ns()
    moments = [before, *(1_000_000_000 * stamps[:, 0] + stamps[:, 1]).tolist(), after]
    assert moments == sorted(moments)
    assert all(b - a >= 900_000 for a, b in pairwise(moments[1:5]))


@pytest.mark.parametrize(
    ("cpu", "triple"),
    [("x86-64-v2", "x86_64-unknown-linux-gnu"), ("neoverse-n1", "aarch64-unknown-linux-gnu")],
)
def test_code_of_other_processors(cpu, triple):
    assert compile_.assemble(driver.ir(), machine.machine(cpu, triple))
