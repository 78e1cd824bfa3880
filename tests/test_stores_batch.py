"""Blocks of a plan elsewhere: in other processes, twice, and too late."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import relayout as rl
from large import files, planned, source
from relayout import stores
from relayout.stores import planning
from relayout.stores.batch import machine
from test_stores import RATES, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source(tmp_path)
    planned(tmp_path, "expected.chunks").run(threads=1)
    return tmp_path


def test_any_map_runs_batches(folder: Path) -> None:
    plan = planned(folder, "y.chunks")
    with plan.start() as run, ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for one in plan.passes:
            for several in pool.map(stores.run_batch, stores.batches(run, one, 5)):
                run.record(several)
        run.commit()
    assert files(folder / "y.chunks") == files(folder / "expected.chunks")


def test_two_passes_are_two_sessions(folder: Path) -> None:
    plan = planned(folder, "y.chunks", passes=2)
    assert len(plan.passes) == 2
    with plan.start() as run:
        first = [*stores.batches(run, plan.passes[0], 7)]
        for batch in first:
            run.record(stores.run_batch(batch))
        for batch in stores.batches(run, plan.passes[1], 7):
            run.record(stores.run_batch(batch))
        with pytest.raises(stores.Superseded, match="another run of it has begun"):
            stores.run_batch(first[0])
        run.commit()
    assert files(folder / "y.chunks") == files(folder / "expected.chunks")


def test_batches_that_run_twice_at_the_same_time_leave_the_same_bytes(folder: Path) -> None:
    plan = planned(folder, "y.chunks")
    with plan.start() as run, ThreadPoolExecutor(4) as pool:
        all_of_them = [*stores.batches(run, plan.passes[0], 1)]
        twice = [batch for batch in all_of_them for _ in range(2)]
        for several in pool.map(stores.run_batch, twice):
            run.record(several)
        run.commit()
    assert files(folder / "y.chunks") == files(folder / "expected.chunks")


def test_batches_of_a_run_that_has_ended_write_nothing(folder: Path) -> None:
    plan = planned(folder, "y.chunks")
    with plan.start() as run:
        old = next(stores.batches(run, plan.passes[0], 1))
    with plan.start(force=True) as run, pytest.raises(stores.Superseded, match="it has ended"):
        stores.run_batch(old)
    assert not list((folder / "y.chunks").glob("*.npy"))


def test_what_is_done_is_in_no_batch(folder: Path) -> None:
    plan = planned(folder, "y.chunks")
    with plan.start() as run:
        run.record(stores.run_batch(next(stores.batches(run, plan.passes[0], 10))))
    with plan.start(resume=True) as run:
        left = [number for batch in stores.batches(run, plan.passes[0], 7) for number in batch.numbers]
        assert left == [*range(10, plan.total)]


def test_batches_are_small_and_answers_smaller(folder: Path) -> None:
    plan = planned(folder, "y.chunks")
    with plan.start() as run:
        batch = next(stores.batches(run, plan.passes[0], 4))
        assert len(pickle.dumps(batch)) < 6000
        answer = stores.run_batch(batch)
    assert [done.number for done in answer] == [0, 1, 2, 3]
    assert not any(done.files for done in answer)


def test_batches_have_a_block_at_least(folder: Path) -> None:
    plan = planned(folder, "y.chunks")
    with plan.start() as run, pytest.raises(rl.LayoutError, match="1 block or more, not 0"):
        stores.batches(run, plan.passes[0], 0)


# -- parts of the same files --------------------------------------------------------------------------------


def rows(folder: Path, name: str) -> stores.Plan:
    """From chunks of rows to chunks of columns, in memory for a few rows."""
    x = np.arange(96 * 80, dtype=np.float32).reshape(96, 80)
    if not (folder / "rows").exists():
        write_folder(folder / "rows", x, "ab", (4, 80))
    return stores.plan(
        *(folder / "rows", folder / name, "ab"), chunks=(96, 7), memory=planning.BASE + 6 * 4 * 80 * 4,
        threads=1, rates=RATES,
    )  # fmt: skip


def test_processes_of_one_machine_write_parts_of_the_same_files(tmp_path: Path) -> None:
    plan = rows(tmp_path, "y.chunks")
    assert plan.passes[0].scatter
    with plan.start() as run, ProcessPoolExecutor(2, get_context("spawn")) as pool:
        (one,) = plan.passes
        several = [*stores.batches(run, one, 3, machine())] * 2  # twice, and at the same time
        for done in pool.map(stores.run_batch, several):
            run.record(done)
        run.commit()
    x = np.arange(96 * 80, dtype=np.float32).reshape(96, 80)
    assert (rl.open(tmp_path / "y.chunks").numpy() == x).all()


def test_processes_of_another_machine_do_not(tmp_path: Path) -> None:
    plan = rows(tmp_path, "y.chunks")
    with plan.start() as run:
        with pytest.raises(rl.LayoutError, match="plan with partial=False, or say"):
            stores.batches(run, plan.passes[0])
        batch = next(stores.batches(run, plan.passes[0], 3, "another"))
        with pytest.raises(rl.LayoutError, match="processes of another machine do so, too"):
            stores.run_batch(batch)
        assert not (run.folder / ".relayout" / "parts").exists()
