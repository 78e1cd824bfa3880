"""Conversions that are killed, resumed, run out of disk or of their source: never taken for complete."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relayout as rl
from relayout import stores
from relayout.errors import LayoutError, TooLarge
from relayout.stores import files as chunk_files
from relayout.stores import workers
from relayout.stores.journal import Journal
from relayout.stores.store import SourceChanged
from relayout.stores.task import Task
from test_stores import RATES, numbers, read_physical, write_folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_folder(tmp_path / "x", numbers(12, 10, 8, 8), "nchw", (1, 10, 8, 8))
    return tmp_path / "x"


def plan(source: Path, name: str = "y.chunks", **options: Any) -> stores.Plan:
    given = {"chunks": (2, 1, 8, 8, 4), "rates": RATES, "threads": 1} | options
    return stores.plan(source, source.with_name(name), "nChw4c", **given)


def failing_after(count: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tasks fail when so many have run."""
    left = [count]
    real = Task.run

    def run(self: Task) -> Any:
        if not left[0]:
            raise error
        left[0] -= 1
        return real(self)

    monkeypatch.setattr(Task, "run", run)


def test_what_was_done_is_not_done_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        failing_after(2, OSError(errno.EIO, "broken"), patched)
        with pytest.raises(OSError, match="broken"):
            plan(source).run()
    with pytest.raises(LayoutError, match=r"is not complete: 2 of 6 blocks .* --resume"):
        rl.open(source.with_name("y.chunks"))
    with pytest.raises(FileExistsError, match="--resume"):
        plan(source).run()
    done: list[Any] = []
    run = plan(source).run(resume=True, progress=done.append)
    assert run.resumed == 2
    assert sorted(one.number for one in done) == [2, 3, 4, 5]
    assert (rl.open(source.with_name("y.chunks")).numpy() == numbers(12, 10, 8, 8)).all()
    with pytest.raises(LayoutError, match="is complete: there is no conversion to resume"):
        plan(source).run(resume=True)
    with pytest.raises(FileExistsError, match="--force"):
        plan(source).run()
    assert plan(source).run(force=True).complete


def test_only_the_same_conversion_is_resumed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_after(1, KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        plan(source).run()
    with pytest.raises(LayoutError, match="tells of another conversion"):
        plan(source, chunks=(1, 1, 8, 8, 4)).run(resume=True)
    with pytest.raises(LayoutError, match="is not there: there is no conversion to resume"):
        plan(source, "z.chunks").run(resume=True)
    again = plan(source)
    os.utime(source / "3.0.0.0.npy", ns=(0, 10**18))
    with pytest.raises(SourceChanged, match="not what it was"):
        again.run(resume=True)
    with pytest.raises(LayoutError, match="tells of another conversion"):
        plan(source).run(resume=True)


SCRIPT = """
import sys, threading, os
import relayout as rl
from relayout import stores
from relayout.stores.task import Task
from relayout.stores import search
source, target, what = sys.argv[1:4]
if what == "die":
    real, left = Task.run, [int(sys.argv[4])]
    def run(self):
        if not left[0]:
            print("dying", flush=True)
            threading.Event().wait()
        left[0] -= 1
        return real(self)
    Task.run = run
stores.convert(source, target, "nChw4c", chunks=(2, 1, 8, 8, 4), rates=search.ASSUMED, threads=1,
               resume=what == "resume")
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_process_leaves_what_another_goes_on_with(source: Path) -> None:
    target = source.with_name("y.chunks")
    words = [sys.executable, "-c", SCRIPT, str(source), str(target)]
    with subprocess.Popen([*words, "die", "3"], stdout=subprocess.PIPE) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"dying\n"
        deadline = time.monotonic() + 30
        while len((target / ".relayout" / "journal").read_text().split()) < 4 + 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(BlockingIOError, match="another process is at work"):
            plan(source).run(resume=True)
        with pytest.raises(BlockingIOError, match="another process is at work"):
            plan(source).run(force=True)
        os.kill(dying.pid, signal.SIGKILL)
    with pytest.raises(LayoutError, match="is not complete"):
        rl.open(target)
    subprocess.run([*words, "resume"], check=True)
    assert (rl.open(target).numpy() == numbers(12, 10, 8, 8)).all()


def test_journals_believe_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = Journal(path, "k")
    first.add([0, 2])
    first.add([5])
    first.close()
    text = path.read_text()
    assert text == "relayout journal 1 k\n0 2\n5\n"
    for cut in range(len(text) + 1):
        path.write_text(text[:cut])
        again = Journal(path, "k")
        whole = text[:cut].count("\n")
        assert again.done == [set(), set(), {0, 2}, {0, 2, 5}][whole]
        again.add([7])
        again.close()
        assert path.read_text().endswith("\n7\n")
        third = Journal(path, "k")
        third.close()
        assert third.done == again.done
    with pytest.raises(LayoutError, match="another conversion"):
        Journal(path, "other")


def test_data_is_on_the_disk_before_the_journal_says_so(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real = Journal.add
    monkeypatch.setattr("relayout.stores.run.sync_files", lambda names: events.extend(sorted(names)))
    monkeypatch.setattr(Journal, "add", lambda self, n: (events.append("line"), real(self, n))[1])
    plan(source).run()
    written = [e for e in events if e != "line"]
    assert len(written) == len(list(source.with_name("y.chunks").glob("*.npy")))
    assert events[-1] == "line"
    assert events[0] != "line"


def test_a_full_disk(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says so in the middle of a chunk: nothing half written stays, and one can go on."""
    real, left = os.write, [20_000]

    def write(handle: int, data: Any) -> int:
        if len(data) > 500:
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left[0] -= len(data)
            return real(handle, data[: len(data) // 2])  # a write may take less than it was given
        return real(handle, data)

    target = source.with_name("y.chunks")
    with monkeypatch.context() as patched:
        patched.setattr(chunk_files.os, "write", write)
        with pytest.raises(OSError, match="No space left on device") as caught:
            plan(source).run()
    assert str(target) in str(caught.value.filename)
    assert list(target.glob(".*.part")) == []
    with pytest.raises(LayoutError, match="is not complete"):
        rl.open(target)
    plan(source).run(resume=True)
    assert (rl.open(target).numpy() == numbers(12, 10, 8, 8)).all()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_is_full(source: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted")
    try:
        made = stores.plan(source, disk / "y.chunks", "nhwc", rates=RATES)
        with pytest.raises(OSError, match="No space left on device"):
            made.run()
        with pytest.raises(LayoutError, match="not complete"):
            rl.open(disk / "y.chunks")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_source_that_changes_meanwhile(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Task.run
    target = source.with_name("y.chunks")

    def run(self: Task) -> Any:
        if self.number == 1:
            np.save(source / "9.0.0.0.npy", np.zeros((1, 10, 8, 8), np.float32))
        return real(self)

    monkeypatch.setattr(Task, "run", run)
    with pytest.raises(SourceChanged, match=r"9\.0\.0\.0\.npy was changed after"):
        plan(source).run()
    with pytest.raises(LayoutError, match="not complete"):
        rl.open(target)


def test_a_source_that_changes_after_it_was_read(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last chunk was read before: the commit finds out."""
    made = plan(source)
    with made.start() as run:
        workers.run(run)
        (source / "0.0.0.0.npy").unlink()
        with pytest.raises(SourceChanged, match="it had 12 chunks and has 11"):
            run.commit()
    with pytest.raises(LayoutError, match="not complete"):
        rl.open(source.with_name("y.chunks"))


def test_nothing_is_committed_before_all_is_done(source: Path) -> None:
    with plan(source).start() as run, pytest.raises(LayoutError, match="6 of 6 blocks are not done"):
        run.commit()
    assert not (source.with_name("y.chunks") / "relayout.json").exists()


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_permissions(source: Path) -> None:
    locked = source.parent / "locked"
    locked.mkdir(mode=0o500)
    made = stores.plan(source, locked / "y.chunks", "nhwc", rates=RATES)
    with pytest.raises(PermissionError):
        made.run()


def test_what_is_no_store_is_not_replaced(source: Path) -> None:
    target = source.with_name("y.chunks")
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")
    for force in (False, True):
        with pytest.raises(FileExistsError):
            plan(source).run(force=force)
    assert (target / "thesis.txt").read_text() == "years of work"
    with pytest.raises(FileNotFoundError, match="no such folder"):
        stores.plan(source, source.parent / "nowhere" / "y.chunks", "nhwc", rates=RATES).run()


MEMORY = """
import sys
import relayout as rl
from relayout import stores
from relayout.stores import search
plan = stores.plan(rl.open(sys.argv[1], format="nchw"), sys.argv[2], "nhwc", chunks=(4, 64, 64, 64),
                   memory=sys.argv[3], rates=search.ASSUMED)
plan.run()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(plan.peak, int(peak.split()[1]) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.slow
def test_memory_is_kept(tmp_path: Path) -> None:
    """What the plan says is an upper bound of the resident set, measured by the system."""
    x = tmp_path / "x.npy"
    np.lib.format.open_memmap(x, "w+", np.float32, (160, 64, 64, 64)).flush()  # 160 MiB
    words = [sys.executable, "-c", MEMORY, str(x), str(tmp_path / "y.chunks"), "300MiB"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    predicted, measured = map(int, done.stdout.split())
    assert measured <= 300 << 20
    assert predicted <= 300 << 20
    assert np.load(tmp_path / "y.chunks" / "39.0.0.0.npy").shape == (4, 64, 64, 64)
    assert read_physical(tmp_path / "y.chunks").shape == (160, 64, 64, 64)


def test_what_killed_processes_began_is_not_in_the_destination(source: Path) -> None:
    made = plan(source)
    with made.start() as run:
        run.record([task.run() for task in made])
        (run.folder / ".0.0.0.0.0.npy.0cff22d826a6.part").write_bytes(b"half")
        run.commit()
    assert not [name for name in os.listdir(run.folder) if "part" in name]


def test_other_files_are_no_chunks(source: Path) -> None:
    before = rl.open(source).stored.fingerprint()
    for name in (".DS_Store", "12.0.0.0.npy", "0.0.0.npy", ".0.0.0.0.npy.0cff22d826a6.part"):
        (source / name).write_text("no chunk")
    assert rl.open(source).stored.fingerprint() == before


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("done", [2, 6])
def test_a_destination_that_is_removed_meanwhile_is_not_complete(
    source: Path, done: int, again: bool
) -> None:
    """Not even if somebody has begun it again, and though its first chunks had been there."""
    target = source.with_name("y.chunks")
    with plan(source).start() as run:
        run.record([run.plan.task(number).run() for number in range(done)])
        shutil.rmtree(target)
        other = plan(source).start() if again else None
        last: Any = stores.Run.commit if done == 6 else workers.run
        with pytest.raises(FileNotFoundError, match="the destination was removed while it was written"):
            last(run)
    assert not (target / "relayout.json").exists()
    if other is not None:
        with other:
            other.record([task.run() for task in other.plan])
            other.commit()
        assert (rl.open(target).numpy() == numbers(12, 10, 8, 8)).all()


@pytest.mark.parametrize("memory", range(226, 300, 4))
def test_what_is_resumed_is_planned_alike(memory: int, tmp_path: Path) -> None:
    """With less memory fewer tasks run at a time than might; the number that might decides the plan."""
    write_folder(tmp_path / "x", np.zeros((2085, 4910), np.float32), "ab", (1242, 4221))
    options = {"chunks": (300, 1700), "memory": f"{memory}MiB", "rates": RATES}
    with contextlib.suppress(TooLarge):
        begun = stores.plan(tmp_path / "x", tmp_path / "y.chunks", "ba", threads=8, **options)
        with begun.start():
            told = json.loads((tmp_path / "y.chunks" / ".relayout" / "plan.json").read_text())
        again = stores.plan(tmp_path / "x", tmp_path / "y.chunks", "ba", **options, threads=told["threads"])
        assert again.key == begun.key
