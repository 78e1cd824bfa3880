"""Conversions on a cluster of processes: whatever happens to workers and jobs, the same bytes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import relayout as rl
from large import RATES, files, planned, source
from relayout import stores
from relayout.cli.app import application
from relayout.errors import TooLarge

distributed = pytest.importorskip("distributed")
running = pytest.importorskip("relayout.dask.running")

pytestmark = pytest.mark.filterwarnings("ignore")  # those of distributed and of what it stands on


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        local_directory=str(tmp_path_factory.mktemp("workers")),
    ) as made:
        yield made


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster, set_as_default=False) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source(tmp_path)
    planned(tmp_path, "expected.chunks").run(threads=1)
    return tmp_path


def same(folder: Path) -> bool:
    return files(folder / "y.chunks") == files(folder / "expected.chunks")


def test_a_cluster_writes_what_threads_write(folder: Path, client: Any) -> None:
    seen = []
    planned(folder, "y.chunks").run(
        engine=rl.dask.run, scheduler=client, progress=lambda done: seen.append(done.number)
    )
    assert same(folder)
    assert sorted(seen) == [*range(48)]


def test_two_passes_come_one_after_the_other(folder: Path, client: Any) -> None:
    plan = planned(folder, "y.chunks", passes=2)
    plan.run(engine=rl.dask.run, scheduler=client, batch=3, window=2)
    assert same(folder)


@pytest.mark.parametrize("scheduler", ["threads", "synchronous", None])
def test_schedulers_of_one_machine_do_it_too(folder: Path, scheduler: str | None) -> None:
    planned(folder, "y.chunks").run(engine=rl.dask.run, scheduler=scheduler, batch=5)
    assert same(folder)


def test_an_address_and_a_file_of_a_scheduler_name_it(folder: Path, client: Any, tmp_path: Path) -> None:
    address = client.scheduler.address
    planned(folder, "y.chunks").run(engine=rl.dask.run, scheduler=address)
    assert same(folder)
    scheduler = str(tmp_path / "scheduler.json")
    Path(scheduler).write_text(json.dumps({"address": address}))
    planned(folder, "y.chunks").run(engine=rl.dask.run, scheduler=scheduler, force=True)
    assert same(folder)


def test_a_worker_that_is_killed_is_not_missed(folder: Path, client: Any) -> None:
    killed = []

    def kill(done: stores.Done) -> None:
        if not killed:
            killed.extend(client.run(os.getpid).values())
            os.kill(killed[0], signal.SIGKILL)

    planned(folder, "y.chunks").run(engine=rl.dask.run, scheduler=client, batch=1, progress=kill)
    assert killed
    assert same(folder)


JOB = """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    import relayout.dask.running as running
    from large import planned

    running.INTERVAL = 0  # what is done goes to the journal at once
    seen = []

    def kill(done):
        seen.append(done)
        if len(seen) == 11:
            os.kill(os.getpid(), signal.SIGKILL)

    planned(Path({folder!r}), "y.chunks").run(
        engine=running.run, scheduler={address!r}, batch=1, window=4, progress=kill
    )
"""


def test_a_job_that_is_killed_is_resumed(folder: Path, client: Any) -> None:
    told = {"tests": str(Path(__file__).parent), "folder": str(folder), "address": client.scheduler.address}
    job = subprocess.run([sys.executable, "-c", textwrap.dedent(JOB.format(**told))], check=False)
    assert job.returncode == -signal.SIGKILL
    with pytest.raises(rl.LayoutError, match="is not complete"):
        stores.open(folder / "y.chunks")
    done = planned(folder, "y.chunks").run(resume=True, engine=rl.dask.run, scheduler=client)
    assert 0 < done.resumed < 48
    assert same(folder)


def test_tasks_that_run_twice_write_the_same_bytes(folder: Path, client: Any) -> None:
    plan = planned(folder, "y.chunks")
    with plan.start() as run:
        twice = [batch for batch in stores.batches(run, plan.passes[0], 1) for _ in range(2)]
        for several in client.gather(client.map(stores.run_batch, twice, pure=False)):
            run.record(several)
        run.commit()
    assert same(folder)


def test_a_damaged_chunk_ends_it_and_the_rest_is_resumed(folder: Path, client: Any) -> None:
    plan = planned(folder, "y.chunks")
    chunk = folder / "x.chunks" / "40.0.0.0.npy"
    before, status = chunk.read_bytes(), chunk.stat()
    chunk.write_bytes(b"no array" + before[8:])
    os.utime(chunk, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(rl.LayoutError, match="is no npy file"):
        plan.run(engine=rl.dask.run, scheduler=client, batch=1, window=8)
    with pytest.raises(rl.LayoutError, match="is not complete"):
        stores.open(folder / "y.chunks")
    chunk.write_bytes(before)
    os.utime(chunk, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = plan.run(resume=True, engine=rl.dask.run, scheduler=client)
    assert 30 < done.resumed < 48
    assert same(folder)


def test_what_fails_for_a_moment_is_tried_again(folder: Path, client: Any) -> None:
    plan = planned(folder, "y.chunks")
    with plan.start() as run:
        away = folder / "x.away"
        batch = next(stores.batches(run, plan.passes[0], 1))
        broken = batch._replace(numbers=(47,))
        chunk = folder / "x.chunks" / "47.0.0.0.npy"
        os.rename(chunk, away)
        os.mkdir(chunk)  # reading it is an OSError
        future = client.submit(running._on_worker, broken, 1 << 20, 4, retries=100, pure=False)
        os.rmdir(chunk)
        os.rename(away, chunk)
        assert [done.number for done in future.result(timeout=60)] == [47]


def test_workers_without_room_for_a_block_are_refused_at_once(folder: Path, client: Any) -> None:
    plan = planned(folder, "y.chunks")
    one = plan.passes[0]
    limit = min(w["memory_limit"] for w in client.scheduler_info()["workers"].values())
    huge = dataclasses.replace(one, memory=limit)
    with pytest.raises(rl.LayoutError, match=r"worker tcp://.* may take .* a block takes .*: plan with less"):
        dataclasses.replace(plan, passes=(huge,)).run(engine=rl.dask.run, scheduler=client)


def test_memory_bounds_how_many_blocks_run_in_a_process() -> None:
    running._rooms.clear()
    running._used.clear()
    used = running._resident()
    limit = int((used + 3.5 * (1 << 30)) / running.USABLE)
    room = running._room("a", limit, 1 << 30, 9)
    assert [room.acquire(blocking=False) for _ in range(4)] == [True, True, True, False]
    planned = running._room("a", limit, 1 << 30, 2)  # the plan was made for less than the worker has
    assert [planned.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    with pytest.raises(rl.LayoutError, match="worker b may take"):
        running._room("b", used, 1 << 30, 9)
    unlimited = running._room("c", 0, 1 << 30, 2)
    assert [unlimited.acquire(blocking=False) for _ in range(3)] == [True, True, False]


def test_workers_are_asked_what_they_take(client: Any) -> None:
    """Memory is shared out; the least is said where it is too little."""
    found = running.for_workers(client, "2GB")
    assert (found["memory"], found["threads"], found["workers"]) == (10**9, 1, 2)
    taken = client.run(running._resident)
    assert max(taken.values()) <= found["base"] < 400 << 20
    assert found["base"] % running.STEP == 0
    assert running.for_workers(client, "2GB") == found  # a conversion that is resumed is planned alike
    limit = min(w["memory_limit"] for w in client.scheduler_info()["workers"].values())
    assert running.for_workers(client)["memory"] == int(running.USABLE * limit)
    assert running.for_workers(client, 10**15)["memory"] == int(running.USABLE * limit)
    with pytest.raises(
        TooLarge, match=r"100.0 MiB for 2 workers are 50.0 MiB for each, .* fewer workers"
    ) as caught:
        running.for_workers(client, "100MiB")
    assert str(rl.errors.spelled_bytes(2 * found["base"])) in str(caught.value)


def test_workers_that_have_too_little_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [running._Process("tcp://a", 4, 10**9, 10**8), running._Process("tcp://b", 2, 10**8, 9 * 10**7)]
    monkeypatch.setattr(running._Local, "processes", lambda self: several)
    with pytest.raises(TooLarge, match=r"worker tcp://b may use 95\.4 MiB, 80% of its memory limit"):
        running.for_workers("threads", "1GB")
    several[1] = several[1]._replace(usable=0)
    found = running.for_workers("threads")
    assert (found["memory"], found["threads"], found["workers"]) == (10**9, 4, 2)
    assert found["base"] >= 10**8 + running.SPARE


def test_what_is_planned_for_workers_keeps_to_it(tmp_path: Path, client: Any) -> None:
    """The resident sets of both workers, which have done other things before."""
    x = np.zeros((64, 64, 64, 64), np.float32)  # 64 MiB
    x[:] = np.arange(64, dtype=np.float32)[:, None, None, None]
    np.save(tmp_path / "x.npy", x)
    room = running.for_workers(client, "2GB")
    given = {**room, "memory": room["base"] + (48 << 20)}
    lazy = stores.open(tmp_path / "x.npy", format="nchw")
    plan = stores.plan(lazy, tmp_path / "y.chunks", "nhwc", chunks=(4, 64, 64, 64), rates=RATES, **given)
    assert plan.peak <= given["memory"]
    plan.run(engine=rl.dask.run, scheduler=client)
    assert (stores.open(tmp_path / "y.chunks")[:, 3, 5, 7] == np.arange(64)).all()
    most = client.run(_most)
    assert max(most.values()) <= given["memory"]


def _most() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) << 10


def test_a_cluster_without_workers_is_given_up(folder: Path) -> None:
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty,
        pytest.raises(rl.LayoutError, match="has had no worker for 1 s"),
    ):
        planned(folder, "y.chunks").run(engine=rl.dask.run, scheduler=empty.scheduler_address, patience=1)


@pytest.mark.parametrize(
    ("scheduler", "says"),
    [
        ("tcp://127.0.0.1:9", "no scheduler of Dask answers at tcp://127.0.0.1:9"),
        ("missing.json", "no scheduler of Dask answers at missing.json"),
        (3, "a scheduler is a distributed.Client, an address"),
    ],
)
def test_what_is_no_scheduler_is_refused(folder: Path, scheduler: Any, says: str) -> None:
    with pytest.raises(rl.LayoutError, match=says):
        planned(folder, "y.chunks").run(engine=rl.dask.run, scheduler=scheduler, patience=2)


def test_the_command_takes_a_scheduler(folder: Path, client: Any) -> None:
    address = client.scheduler.address
    assert rl.dask.worker_threads(client) == rl.dask.worker_threads(address) == 1
    target = str(folder / "y.chunks")
    words = [str(folder / "x.chunks"), target, "--to", "nChw16c", "--dtype", "f16", "--memory", "300MB"]
    words[words.index("300MB")] = "1GB"
    words += ["--chunks", "1,1,4,8,16", "--engine", "dask", "--scheduler"]
    done = CliRunner().invoke(application, ["convert", *words, address])
    assert done.exit_code == 0, done.output
    assert same(folder)
    done = CliRunner().invoke(application, ["convert", *words, "tcp://127.0.0.1:9", "--force"])
    assert done.exit_code != 0
    assert "no scheduler of Dask answers at tcp://127.0.0.1:9" in done.output
    words[words.index("1GB")] = "150MB"
    done = CliRunner().invoke(application, ["convert", *words, address, "--force"])
    assert done.exit_code != 0
    assert "150MB" not in done.output or "for 2 workers" in done.output
    assert "or fewer workers" in " ".join(done.output.split())
    assert same(folder)


def test_the_command_resumes_on_other_workers(folder: Path, client: Any) -> None:
    """Blocks are those of the beginning; memory that has no room for them is refused."""
    target = folder / "y.chunks"
    room = running.for_workers(client, "3GB")
    with planned(folder, "y.chunks", **room).start() as run:
        run.record([run.plan.task(0).run()])
    words = [str(folder / "x.chunks"), str(target), "--to", "nChw16c", "--dtype", "f16", "--resume"]
    words += ["--chunks", "1,1,4,8,16", "--engine", "dask", "--scheduler", client.scheduler.address]
    done = CliRunner().invoke(application, ["convert", *words, "--memory", "100MB"])
    assert done.exit_code != 0
    done = CliRunner().invoke(application, ["convert", *words, "--memory", "1GB"])
    assert done.exit_code == 0, done.output
    assert "1 of 48 blocks had been done before" in done.output
    assert same(folder)


def test_zarr_stores_are_converted_on_clusters(tmp_path: Path, client: Any) -> None:
    zarr = pytest.importorskip("zarr")
    array = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    zarr.create_array(tmp_path / "x.zarr", data=array, chunks=(8, 64))
    for name, options in (("y", {}), ("z", {"engine": rl.dask.run, "scheduler": client})):
        plan = stores.plan(tmp_path / "x.zarr", tmp_path / f"{name}.zarr", chunks=(64, 8), threads=1)
        plan.run(**options)
    assert files(tmp_path / "y.zarr") == files(tmp_path / "z.zarr")
    assert np.array_equal(zarr.open_array(tmp_path / "z.zarr")[:], array)
    shutil.rmtree(tmp_path / "z.zarr")


def test_blocks_are_not_huge_to_come_out_even(tmp_path: Path) -> None:
    """A block more than a multiple of the workers is no reason for one huge block each."""
    np.save(tmp_path / "x.npy", np.zeros((33, 64, 64, 64), np.float32))
    whole = stores.open(tmp_path / "x.npy", format="nchw")
    stores.plan(whole, tmp_path / "x.chunks", chunks=(1, 64, 64, 64), rates=RATES).run()
    lazy = stores.open(tmp_path / "x.chunks")
    for workers in (1, 2, 4):
        plan = stores.plan(
            *(lazy, tmp_path / "y.chunks", "nhwc"),
            chunks=(1, 64, 64, 64),
            workers=workers,
            threads=1,
            rates=RATES,
        )
        assert plan.total == 33
        assert plan.passes[0].requests_read == lazy.grid.total


def test_an_empty_array_is_planned(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((0, 6), np.float32))
    assert stores.plan(tmp_path / "x.npy", tmp_path / "y.chunks", rates=RATES).run().complete


def test_workers_of_this_machine_write_parts_of_the_same_files(tmp_path: Path, client: Any) -> None:
    """Everything is read and written once, also where each chunk of the result needs all of the source."""
    x = np.arange(96 * 80, dtype=np.float32).reshape(96, 80)
    np.save(tmp_path / "whole.npy", x)
    stores.convert(tmp_path / "whole.npy", tmp_path / "x.chunks", chunks=(4, 80), rates=RATES)
    room = running.for_workers(client, "2GB")
    assert room["partial"]
    room["memory"] = room["base"] + 6 * 4 * 80 * 4
    given = {"chunks": (96, 7), "rates": RATES, **room}
    plan = stores.plan(tmp_path / "x.chunks", tmp_path / "y.chunks", **given)
    assert [bool(one.scatter) for one in plan.passes] == [True]
    plan.run(engine=rl.dask.run, scheduler=client)
    assert (rl.open(tmp_path / "y.chunks").numpy() == x).all()
    apart = stores.plan(tmp_path / "x.chunks", tmp_path / "z.chunks", **{**given, "partial": False})
    assert not any(one.scatter for one in apart.passes)


def test_workers_elsewhere_write_whole_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [
        running._Process("tcp://a", 1, 0, 10**8, True),
        running._Process("tcp://b", 1, 0, 10**8, False),
    ]
    monkeypatch.setattr(running._Local, "processes", lambda self: several)
    assert not running.for_workers("threads", "1GB")["partial"]
