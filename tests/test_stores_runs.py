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
from relayout.stores.run import ChunksGone
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
    first = Journal(path, "k", 9)
    first.add({0: 10, 2: 12})
    first.add({5: 0})
    first.close()
    text = path.read_text()
    assert text == "relayout journal 3 k\n0:10 2:12\n5:0\n"
    for cut in range(len(text) + 1):
        path.write_text(text[:cut])
        again = Journal(path, "k", 9)
        whole = text[:cut].count("\n")
        assert again.done == [{}, {}, {0: 10, 2: 12}, {0: 10, 2: 12, 5: 0}][whole]
        again.add({7: 1})
        again.close()
        assert path.read_text().endswith("\n7:1\n")
        third = Journal(path, "k", 9)
        third.close()
        assert third.done == again.done
    with pytest.raises(LayoutError, match="another conversion"):
        Journal(path, "other", 9)


@pytest.mark.parametrize("line", ["9:1", "-1:5", "7", "a:b", "1:2:3", "0:1 :", "\u0663:1", "0:1" * 3000])
def test_journals_are_not_believed(line: str, tmp_path: Path) -> None:
    """Numbers of no task don't count, and neither do lines of something else."""
    path = tmp_path / "journal"
    path.write_text(f"relayout journal 3 k\n3:8\n{line}\n", encoding="utf-8")
    journal = Journal(path, "k", 9)
    journal.close()
    assert journal.done == {3: 8}


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


@pytest.mark.turns(2)
@pytest.mark.parametrize("memory", [226, 254, 298])
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


def interrupted(made: stores.Plan, count: int) -> Path:
    """A destination of which so many blocks are done."""
    with made.start() as run:
        run.record([made.task(number).run() for number in range(count)])
    return run.folder


def break_file(path: Path, how: str) -> None:
    """What people and their programs do to chunks."""
    if how == "removed":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size // 2 if how == "truncated" else 0)


@pytest.mark.parametrize("how", ["removed", "truncated", "emptied"])
def test_chunks_that_are_gone_are_made_again(how: str, source: Path) -> None:
    target = interrupted(plan(source), 4)
    broken = [target / "0.1.0.0.0.npy", target / "2.0.0.0.0.npy"]
    for path in broken:
        break_file(path, how)
    done: list[Any] = []
    with pytest.warns(ChunksGone, match=r"chunks of 2 of 6 blocks \(0, 2\) in .* are gone"):
        run = plan(source).run(resume=True, progress=done.append)
    assert (run.resumed, run.redone) == (2, 2)
    assert sorted(one.number for one in done) == [0, 2, 4, 5]
    assert (rl.open(target).numpy() == numbers(12, 10, 8, 8)).all()


@pytest.mark.parametrize("codecs", ["none", "zstd"])
def test_compressed_chunks_that_are_gone_are_made_again(codecs: str, source: Path) -> None:
    """Their size is known from when they were written."""
    pytest.importorskip("zarr")
    target = interrupted(plan(source, "y.zarr", codecs=codecs), 4)
    chunks = sorted(path for path in (target / "c").rglob("*") if path.is_file())
    chunks[0].unlink()
    chunks[-1].write_bytes(chunks[-1].read_bytes()[:-1])
    with pytest.warns(ChunksGone):
        run = plan(source, "y.zarr", codecs=codecs).run(resume=True)
    assert run.redone == 2
    assert (rl.open(target).numpy() == numbers(12, 10, 8, 8)).all()


def test_chunks_of_fill_values_are_not_gone(source: Path) -> None:
    """Shards of nothing but zeros are not written, and need not be there."""
    pytest.importorskip("zarr")
    write_folder(source.with_name("z"), np.zeros((8, 8, 8, 8), np.float32), "nchw", (1, 8, 8, 8))
    options = {"chunks": (1, 8, 8, 8), "shards": (2, 8, 8, 8), "rates": RATES, "threads": 1}
    target = interrupted(stores.plan(source.with_name("z"), source.with_name("y.zarr"), **options), 2)
    run = stores.plan(source.with_name("z"), target, **options).run(resume=True)
    assert (run.resumed, run.redone) == (2, 0)
    assert not rl.open(target).numpy().any()


@pytest.mark.parametrize("after", [False, True])
def test_an_intermediate_that_is_gone_is_made_again_where_it_is_needed(after: bool, source: Path) -> None:
    made = plan(source, passes=2)
    first, second = made.passes
    target = interrupted(made, second.tasks.stop if after else first.tasks.stop)
    shutil.rmtree(target / ".relayout" / "between")
    if after:
        run = plan(source, passes=2).run(resume=True)
        assert (run.resumed, run.redone) == (made.total, 0)
    else:
        with pytest.warns(ChunksGone):
            run = plan(source, passes=2).run(resume=True)
        assert (run.resumed, run.redone) == (0, len(first.tasks))
    assert (rl.open(target).numpy() == numbers(12, 10, 8, 8)).all()


def test_a_hole_after_two_passes_needs_both_again(source: Path) -> None:
    made = plan(source, passes=2)
    target = interrupted(made, made.total)
    shutil.rmtree(target / ".relayout" / "between")
    (target / "0.0.0.0.0.npy").unlink()
    with pytest.warns(ChunksGone):
        run = plan(source, passes=2).run(resume=True)
    assert run.redone == len(made.passes[0].tasks) + 1
    assert (rl.open(target).numpy() == numbers(12, 10, 8, 8)).all()


def test_chunks_that_are_gone_at_the_end_are_no_complete_array(source: Path) -> None:
    made = plan(source)
    with made.start() as run:
        run.record([task.run() for task in made])
        (run.folder / "3.0.0.0.0.npy").unlink()
        with pytest.raises(LayoutError, match=r"chunks of 1 of 6 blocks \(3\) in .* are gone .*--resume"):
            run.commit()
    with pytest.raises(LayoutError, match="not complete"):
        rl.open(run.folder)
    with pytest.warns(ChunksGone):
        plan(source).run(resume=True)
    assert (rl.open(run.folder).numpy() == numbers(12, 10, 8, 8)).all()


def test_a_removal_that_is_killed_is_taken_up(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before any of its steps, the folder says what it is, and ``force`` goes on."""
    target = source.with_name("y.chunks")
    steps = 0

    class Killed(BaseException):
        pass

    for count in range(1000):
        shutil.rmtree(target, ignore_errors=True)
        plan(source).run()
        left = [count]

        def dying(real: Any, left: list[int] = left) -> Any:
            def step(*args: Any, **kwargs: Any) -> Any:
                if not left[0]:
                    raise Killed
                left[0] -= 1
                return real(*args, **kwargs)

            return step

        with monkeypatch.context() as patched:
            for name in ("mkdir", "unlink", "rmdir"):
                patched.setattr(os, name, dying(getattr(os, name)))
            try:
                plan(source).start(force=True)
                break
            except Killed:
                steps += 1
        if target.exists() and any(target.iterdir()) and not (target / "relayout.json").exists():
            with pytest.raises(LayoutError, match=r"removal was interrupted|not complete"):
                rl.open(target)
            if (target / "0.0.0.0.0.npy").exists():
                with pytest.raises(LayoutError, match=r"removal was interrupted.*begin again"):
                    plan(source).run(resume=True)
        assert plan(source).run(force=True).complete
        assert (rl.open(target).numpy() == numbers(12, 10, 8, 8)).all()
    assert steps > 10


@pytest.mark.skipif(os.name != "posix", reason="links")
@pytest.mark.parametrize("what", ["between", "c", "journal", "plan.json.part"])
def test_nothing_is_written_through_links(what: str, source: Path) -> None:
    pytest.importorskip("zarr")
    target = interrupted(plan(source, "y.zarr", passes=2), 1)
    away = source.with_name("away")
    away.mkdir()
    (away / "file").write_text("years of work")
    where = target / "c" if what == "c" else target / ".relayout" / what
    if where.is_dir():
        shutil.rmtree(where)
    where.unlink(missing_ok=True)
    where.symlink_to(away if what in ("between", "c") else away / "file")
    with pytest.raises(LayoutError, match="is a link, which no conversion has made"):
        plan(source, "y.zarr", passes=2).run(resume=True)
    assert [path.name for path in away.iterdir()] == ["file"]
    assert (away / "file").read_text() == "years of work"
    assert plan(source, "y.zarr", passes=2).run(force=True).complete
    assert (away / "file").read_text() == "years of work"


def test_half_a_line_of_the_journal_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would be one with the next: "0:4 1" and "2:8" are a task 12."""
    journal = Journal(tmp_path / "journal", "key", 100)
    real = os.write

    def full(handle: int, data: bytes) -> int:
        if len(data) > 5:
            return real(handle, data[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal.add({7: 10})
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            journal.add({0: 4, 1: 5})
    assert journal.done == {7: 10}
    journal.add({2: 8})
    journal.close()
    assert (tmp_path / "journal").read_text().splitlines()[1:] == ["7:10", "2:8"]


def test_what_the_disk_has_lost_is_not_called_done(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system tells once that bytes did not reach the disk; asked again, it says that all is well."""
    from relayout.stores import run as running

    told = [False]

    def once(files: Any) -> None:
        if list(files) and not told[0]:
            told[0] = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(running, "sync_files", once)
        with pytest.raises(OSError, match="Input/output error"):
            plan(source).run()
    assert plan(source).run(resume=True).resumed == 0


def test_metadata_are_on_the_disk_before_they_have_their_name(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, replace = os.fsync, Path.replace

    def syncing(handle: int) -> None:
        events.append("sync")
        sync(handle)

    def replacing(self: Path, other: Any) -> Path:
        events.append(Path(other).name)
        return replace(self, other)

    made = plan(source)
    with made.start() as run:
        for task in made:
            run.record([task.run()])
        monkeypatch.setattr(os, "fsync", syncing)
        monkeypatch.setattr(Path, "replace", replacing)
        run.commit()
    assert events[:3] == ["sync", "relayout.json", "sync"]
