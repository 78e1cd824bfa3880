"""The thread pool: every part once, whoever calls, whatever forks, however the process ends."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import LayoutError, processors
from relayout.processors import MOST
from relayout.runtime.limits import AWAKE
from relayout.runtime.memcpy import memcpy_kernel
from strategies import examples

compile_ = pytest.importorskip("relayout.jit.compile")
machine = importlib.import_module("relayout.targets.machine")
pool = importlib.import_module("relayout.runtime.pool")
threads = importlib.import_module("relayout.runtime.threads")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")
native = pytest.mark.skipif(not pool.available(), reason="no native threads here")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

KERNELS = """
declare i32 @usleep(i32)

; operands[part] += parts
define void @tally(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
  %slot = getelementptr i64, ptr %operands, i64 %part
  %old = atomicrmw add ptr %slot, i64 %parts seq_cst
  ret void
}

; The same after part * 300 microseconds: some thread is always the last.
define void @slow(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
  %number = trunc i64 %part to i32
  %time = mul i32 %number, 300
  %e = call i32 @usleep(i32 %time)
  call void @tally(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts)
  ret void
}

; operands[0] counts up; wait until it is at least parts. operands[1] counts those who waited in vain for 5 s.
define void @meet(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
entry:
  %old = atomicrmw add ptr %operands, i64 1 seq_cst
  br label %look
look:
  %i = phi i64 [0, %entry], [%next, %wait]
  %here = load atomic i64, ptr %operands seq_cst, align 8
  %met = icmp sge i64 %here, %parts
  br i1 %met, label %out, label %more
more:
  %next = add i64 %i, 1
  %again = icmp slt i64 %next, 50000
  br i1 %again, label %wait, label %alone
wait:
  %e = call i32 @usleep(i32 100)
  br label %look
alone:
  %missed = getelementptr i64, ptr %operands, i64 1
  %more.missed = atomicrmw add ptr %missed, i64 1 seq_cst
  br label %out
out:
  ret void
}
"""
NAMES = ("tally", "slow", "meet")


@pytest.fixture(scope="module")
def kernels():
    """Addresses by name, good for as long as the kernels are kept here."""
    made = compile_.compiled(KERNELS, NAMES)
    yield {name: kernel.address for name, kernel in made.items()}
    made.clear()


def together(meet, number, by=threads.run):
    """Whether so many parts really ran at the same time, on as many threads."""
    seen = np.zeros(2, np.int64)
    by(meet, 0, 0, seen.ctypes.data, number, number)
    return seen.tolist() == [number, 0]


def tasks():
    """The threads of this process, as the system calls them."""
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def eventually(true):
    """Whether something becomes true within five seconds."""
    end = time.monotonic() + 5
    while not true() and time.monotonic() < end:
        time.sleep(1e-4)
    return true()


@contextlib.contextmanager
def held(kernels, number):
    """While the pool is in a region of another thread, which ends with the block."""
    seen = np.zeros(2, np.int64)
    job = kernels["meet"], 0, 0, seen.ctypes.data, number + 1, number
    caller = threading.Thread(target=threads.run, args=job)
    caller.start()
    while seen[0] < number:  # all of its threads are inside, and one part is left
        time.sleep(1e-4)
    yield
    seen[0] = number + 1
    caller.join()
    assert seen[1] == 0


class TestRegion:
    @given(
        parts=st.integers(0, 60), count=st.integers(-1, 12), name=st.sampled_from(("tally", "tally", "slow"))
    )
    @examples(150)
    def test_every_part_runs_once(self, kernels, parts, count, name):
        parts = min(parts, 6) if name == "slow" else parts
        seen = np.zeros(parts + 1, np.int64)
        threads.run(kernels[name], 0, 0, seen.ctypes.data, parts, count)
        assert seen.tolist() == [parts] * parts + [0]

    def test_no_part_runs_twice_however_many_threads_want_it(self, kernels):
        for count in (2, 3) * 8:
            seen = np.zeros(200_000, np.int64)
            threads.run(kernels["tally"], 0, 0, seen.ctypes.data, len(seen), count)
            assert (seen == len(seen)).all()

    def test_also_on_the_threads_of_python(self, kernels, monkeypatch):
        for name, value in {"_pool": None, "_ready": 0, "_region": threads._in_python}.items():
            monkeypatch.setattr(threads, name, value)
        monkeypatch.setattr(threads, "_made", lambda: None)
        monkeypatch.setattr(threads.STATE, "ready", 0)  # and is put back
        for parts, count in ((0, 2), (1, 4), (5, 2), (3, 8), (40, 3)):
            seen = np.zeros(parts + 1, np.int64)
            threads.run(kernels["tally"], 0, 0, seen.ctypes.data, parts, count)
            assert seen.tolist() == [parts] * parts + [0]
        assert together(kernels["meet"], 4)

    @native
    def test_the_pool_grows_and_all_its_threads_come(self, kernels):
        for number in (2, 5, 3, 9):
            assert together(kernels["meet"], number)

    @native
    def test_threads_that_sleep_are_woken_every_time(self, kernels):
        for number in (2, 4) * 60:
            assert together(kernels["meet"], number)
            time.sleep(2e-4)

    def test_many_callers_at_once(self, kernels):
        """A late thread that took a part of an old region would be seen in that region's own array."""
        wrong, kept = [], []

        def work(caller):
            for turn in range(125):
                parts = 2 + (caller + turn) % 7
                seen = np.zeros(parts, np.int64)
                threads.run(kernels["tally"], 0, 0, seen.ctypes.data, parts, 2 + turn % 3)
                wrong.extend(seen[seen != parts])
                kept.append(seen)

        callers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not wrong
        assert len(kept) == 1000
        assert all((seen == len(seen)).all() for seen in kept)

    @native
    def test_who_finds_the_pool_busy_works_alone(self, kernels):
        with held(kernels, 2):
            for parts in (1, 2, 30):
                seen = np.zeros(parts, np.int64)
                threads.run(kernels["tally"], 0, 0, seen.ctypes.data, parts, 4)
                assert seen.tolist() == [parts] * parts
        assert together(kernels["meet"], 3)

    @native
    def test_more_threads_than_there_can_be(self, kernels, monkeypatch):
        monkeypatch.setattr(pool, "MOST", 4)
        code, small = pool._code(), pool.Pool(2)
        assert [small.grow(n) for n in (1, 3, 2, 4)] == [1, 3, 3, sys.maxsize]
        monkeypatch.setattr(pool, "_code", lambda: code._replace(hire=lambda block: 11))
        refused = pool.Pool(2)
        assert refused.grow(3) == sys.maxsize
        seen = np.zeros(5, np.int64)
        refused.region(refused.block, kernels["tally"], 0, 0, seen.ctypes.data, 5, 3)
        assert seen.tolist() == [5] * 5

    @native
    @pytest.mark.skipif(not pool._asks(), reason="this system does not tell where a thread runs")
    @pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads can't be listed here")
    def test_workers_are_kept_off_the_processor_of_the_caller(self, kernels):
        before, allowed = tasks(), os.sched_getaffinity(0)
        made = pool.Pool(2)
        try:
            for grown in (2, 3):  # the new one is told, too
                made.grow(grown)
                for processor in sorted(allowed)[:2]:
                    os.sched_setaffinity(0, {processor})
                    os.sched_setaffinity(0, allowed)  # which moves nobody
                    operands = np.zeros(2, np.int64)
                    made.region(made.block, kernels["tally"], 0, 0, operands.ctypes.data, 2, 2)
                    assert list(operands) == [2, 2]
                    here = ctypes.c_int64.from_address(made.block + pool.FIELDS["HERE"]).value
                    masks = [os.sched_getaffinity(task) for task in tasks() - before]
                    assert masks == [allowed - {here} or allowed] * (grown - 1)
        finally:
            os.sched_setaffinity(0, allowed)

    @native
    def test_workers_sleep_when_nothing_comes_and_are_woken(self, kernels):
        made = pool.Pool(2)
        assert not made.awake  # there are none
        made.grow(2)
        for pause in (0, AWAKE / 2, 2 * AWAKE):
            for _ in range(100):
                time.sleep(pause)
                assert together(kernels["meet"], 2, lambda *job: made.region(made.block, *job))
            assert eventually(lambda: not made.awake)

    @native
    @pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads can't be listed here")
    def test_workers_leave_signals_to_python(self, kernels):
        before = tasks()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        own = pool.Pool(2)
        own.grow(3)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
        assert together(kernels["meet"], 3, lambda *job: own.region(own.block, *job))  # they have begun
        made = tasks() - before
        assert len(made) == 2
        for task in made:
            status = Path(f"/proc/self/task/{task}/status").read_text()
            blocked = int(status.split("SigBlk:")[1].split()[0], 16)
            assert blocked >> (signal.SIGINT - 1) & 1
            assert not blocked >> (signal.SIGSEGV - 1) & 1

    @pytest.mark.parametrize(
        "triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin", "x86_64-apple-darwin"]
    )
    def test_code_for_other_systems_is_assembled(self, triple):
        other = machine.machine("x86-64-v2" if triple.startswith("x86") else "neoverse-n1", triple)
        assert compile_.assemble(pool.ir(triple), other)


PRELUDE = f"""
import atexit, ctypes, os, sys, threading, time
from relayout.jit import compile
from relayout.runtime import threads

KERNELS = {KERNELS!r}
kernels = {{k: f.address for k, f in compile.compiled(KERNELS, {NAMES!r}).items()}}

def region(name="tally", parts=5, count=3):
    seen = (ctypes.c_int64 * parts)()
    threads.run(kernels[name], 0, 0, ctypes.addressof(seen), parts, count)
    return list(seen) == [parts] * parts

def together(number):
    seen = (ctypes.c_int64 * 2)()
    threads.run(kernels["meet"], 0, 0, ctypes.addressof(seen), number, number)
    return list(seen) == [number, 0]

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def started(script):
    """A process that runs a script behind the prelude."""
    script = PRELUDE + textwrap.dedent(script)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    """Its exit code and what it said; a process that hangs is an error."""
    try:
        said, complaint = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, said, complaint


FORKS = {
    "child and parent go on": """
        assert region() and together(3)
        child = os.fork()
        good = region() and together(3) and together(5)
        if child == 0:
            grandchild = os.fork()
            good = good and together(2) and region("slow")
            os._exit(0 if good and (grandchild == 0 or ended(grandchild) == 0) else 1)
        assert good and ended(child) == 0
    """,
    "another thread is in a region": """
        assert together(3)
        seen = (ctypes.c_int64 * 2)()
        job = kernels["meet"], 0, 0, ctypes.addressof(seen), 4, 3  # 3 threads are in, for a 4th part
        caller = threading.Thread(target=threads.run, args=job)
        caller.start()
        while seen[0] < 3:
            time.sleep(1e-4)
        child = os.fork()
        if child == 0:
            os._exit(0 if together(3) and region() else 1)
        assert ended(child) == 0 and seen[0] == 3
        seen[0] = 4
        caller.join()
        assert seen[1] == 0 and together(3)
    """,
    "another thread starts regions and compiles": """
        going = True
        def regions():
            while going:
                assert region(count=4)
        def compiles():
            for number in range(10000):
                if not going:
                    return
                compile.compiled(KERNELS + f"; {number}", ["tally"])
        callers = [threading.Thread(target=work) for work in (regions, compiles)]
        for caller in callers:
            caller.start()
        for number in range(6):
            child = os.fork()
            if child == 0:
                compile.compiled(KERNELS + f"; child {number}", ["tally"])
                os._exit(0 if together(2) and region() else 1)
            assert ended(child) == 0
        going = False
        for caller in callers:
            caller.join()
    """,
}

ENDS = {
    "the script ends": (0, "assert together(3)"),
    "the workers are still spinning": (0, "for _ in range(3): region(count=2)"),
    "a thread leaves": (
        3,
        """
        def work():
            region()
            sys.exit(4)  # ends this thread only
        caller = threading.Thread(target=work)
        caller.start()
        caller.join()
        assert region()
        sys.exit(3)
        """,
    ),
    "at once": (7, "assert together(3); os._exit(7)"),
    "a region at exit": (0, "region(); atexit.register(lambda: print(together(3)))"),
    "a daemon is in a region": (
        0,
        """
        seen = (ctypes.c_int64 * 2)()
        job = kernels["meet"], 0, 0, ctypes.addressof(seen), 4, 3
        threading.Thread(target=threads.run, args=job, daemon=True).start()
        while seen[0] < 3:
            time.sleep(1e-4)
        """,
    ),
}


class TestProcess:
    @native
    @forks
    def test_forks(self):
        processes = {name: started(script) for name, script in FORKS.items()}
        assert {name: ended(process) for name, process in processes.items()} == dict.fromkeys(
            FORKS, (0, "", "")
        )

    @native
    def test_ends(self):
        processes = {name: started(script) for name, (_, script) in ENDS.items()}
        said = {"a region at exit": "True\n"}
        expected = {name: (code, said.get(name, ""), "") for name, (code, _) in ENDS.items()}
        assert {name: ended(process) for name, process in processes.items()} == expected


class TestShare:
    def test_errors_are_raised_when_all_have_ended(self):
        seen = []

        def work(start, stop):
            seen.append((start, stop))
            if start == 2:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            threads.share(work, 8, 4)
        assert sorted(seen) == [(0, 2), (2, 4), (4, 6), (6, 8)]

    def test_within_itself(self):
        seen = []
        threads.share(lambda a, b: threads.share(lambda c, d: seen.append(a + c), b - a, 3), 9, 3)
        assert sorted(seen) == list(range(9))


@given(size=st.integers(0, 5 * 4096), parts=st.integers(1, 9), count=st.integers(1, 3))
@examples(60)
def test_memcpy_copies_all_and_no_more(size, parts, count):
    source = np.arange(size + 64, dtype=np.uint32).astype(np.uint8)
    target, operands = np.full(size + 64, 7, np.uint8), np.array([size])
    threads.run(memcpy_kernel(), source.ctypes.data, target.ctypes.data, operands.ctypes.data, parts, count)
    np.testing.assert_array_equal(target[:size], source[:size])
    assert (target[size:] == 7).all()


class TestCount:
    def test_who_is_asked_first(self, monkeypatch):
        monkeypatch.setenv("RELAYOUT_THREADS", "5")
        assert threads.count(2) == 2
        assert threads.count() == 5
        monkeypatch.setenv("RELAYOUT_THREADS", "")
        assert threads.count() == processors.processors()
        for named in ("0", "-1", "many", "\u00b2"):
            monkeypatch.setenv("RELAYOUT_THREADS", named)
            with pytest.raises(LayoutError, match="RELAYOUT_THREADS"):
                threads.count()
        monkeypatch.delenv("RELAYOUT_THREADS")
        assert threads.count(2**63) == MOST
        monkeypatch.setattr(processors, "_quota", lambda: 1)
        assert threads.count() == 1
        monkeypatch.setattr(processors, "_quota", lambda: pytest.fail("nothing to ask for"))
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
        assert threads.count() == 1

    @pytest.mark.parametrize(
        ("groups", "files", "expected"),
        [
            ("0::/a/b", {"a/b/cpu.max": "250000 100000", "a/cpu.max": "max 100000"}, 3),
            ("0::/a/b", {"a/b/cpu.max": "800000 100000", "a/cpu.max": "150000 100000"}, 2),
            ("0::/", {"cpu.max": "10000 100000"}, 1),
            ("0::/elsewhere", {"cpu.max": "400000 100000"}, 4),
            ("0::/../..", {"cpu.max": "400000 100000"}, 4),
            ("0::/", {"cpu.max": "max 100000"}, sys.maxsize),
            ("0::/", {"cpu.max": "nonsense"}, sys.maxsize),
            (
                "2:cpu,cpuacct:/a",
                {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"},
                2,
            ),
            ("2:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, sys.maxsize),
            (
                "3:cpuset:/a",
                {"cpuset/a/cpu.cfs_quota_us": "1", "cpuset/a/cpu.cfs_period_us": "1"},
                sys.maxsize,
            ),
            ("0::/a\nnonsense", {"a/cpu.max": "400000 100000"}, 4),
            (
                "\n".join([f"{k}:other{k}:/{'long' * 200}" for k in range(12)] + ["0::/a"]),
                {"a/cpu.max": "1 1"},
                1,
            ),
            (None, {}, sys.maxsize),
        ],
    )
    def test_what_control_groups_leave(self, tmp_path, groups, files, expected):
        files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        if groups is not None:
            files["proc/self/cgroup"] = groups + "\n"
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert processors._quota.__wrapped__(str(tmp_path)) == expected
