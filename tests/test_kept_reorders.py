"""What is kept of a reorder for later processes: found where it holds, and never where it does not."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from processes import is_done
from relayout.jit import pages
from relayout.runtime import tuning
from strategies import examples

cache = importlib.import_module("relayout.jit.cache")
choice = importlib.import_module("relayout.reorder.choice")
compile_ = importlib.import_module("relayout.jit.compile")
engines = importlib.import_module("relayout.jit.engines")
environment = importlib.import_module("relayout.environment")
kept = importlib.import_module("relayout.reorder.kept")
native = importlib.import_module("relayout.reorder.native")
reorders = importlib.import_module("relayout.reorder.tuning")

pytestmark = pytest.mark.skipif(
    not compile_.available() or pages.process() is None, reason="nothing is kept of reorders here"
)

SRC, DST = (rl.MemoryDesc((1, 64, 40, 40), "f32", format) for format in ("nchw", "nhwc"))
LATER = 3600 * 10**9  # nanoseconds: source files that were written a moment ago are old by then


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache of a process that measures."""
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setenv("RELAYOUT_EFFORT", "measure")
    monkeypatch.setattr(environment, "LOADED", environment.LOADED + LATER)
    afresh()
    yield Path(cache.folder())
    monkeypatch.undo()
    afresh()


def afresh():
    """Forget what a new process does not know."""
    engines.KNOWN.clear()
    for remembers in (cache.stamp, cache._asks, kept._here, native._native, choice._chosen, reorders.trial):
        remembers.cache_clear()


def is_planned(monkeypatch, src=SRC, dst=DST, shape=()):
    """Whether a new process plans this reorder."""
    afresh()
    planned = []
    with monkeypatch.context() as patch:
        original = native.Native.__init__
        patch.setattr(native.Native, "__init__", lambda *a, **k: planned.append(1) or original(*a, **k))
        assert choice.chosen(src, dst, shape)[0] is not None
    return bool(planned)


def records(folder):
    return sorted(path for path in folder.iterdir() if path.name.startswith("plan-"))


def test_a_later_process_plans_nothing(folder, monkeypatch):
    assert is_planned(monkeypatch)
    assert not is_planned(monkeypatch)
    assert len(records(folder)) == 2  # of the estimate, and of what was chosen


def test_each_problem_and_each_setting_has_its_own(folder, monkeypatch):
    assert is_planned(monkeypatch)
    assert is_planned(monkeypatch, DST, SRC)
    assert is_planned(monkeypatch, shape=(("src_scale", None),))
    for name, value in (
        ("RELAYOUT_THREADS", "7"),
        ("RELAYOUT_STREAMING", "1"),
        ("RELAYOUT_SHARING", "1"),
        ("RELAYOUT_CACHE", "off"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert is_planned(monkeypatch)
            assert is_planned(monkeypatch) == (value == "off")
    assert not is_planned(monkeypatch)


def test_a_named_processor_keeps_nothing(folder, monkeypatch):
    monkeypatch.setenv("RELAYOUT_CPU", "x86-64-v2")
    assert is_planned(monkeypatch)
    assert is_planned(monkeypatch)
    assert not records(folder)


@pytest.mark.parametrize("what", ["processor", "library", "caches"])
def test_another_machine_plans_for_itself(folder, monkeypatch, what):
    assert is_planned(monkeypatch)
    other = {"processor": "identity", "library": "identity"}.get(what)
    with monkeypatch.context() as patch:
        if other:
            patch.setattr(kept, other, lambda: f"another {what}")
        else:
            patch.setattr(kept, "caches", lambda: (1 << 15, 1 << 20, 1 << 21))
        assert is_planned(monkeypatch)
    assert not is_planned(monkeypatch)


@examples(60)
@given(st.data())
def test_damaged_records_are_no_records(data):
    """Whole entries of whatever other programs write, and entries that are not whole."""
    name = f"plan-{'0' * 64}"
    lines = [f"{'1' * 64} reorder", "estimate", "1 0 8 0 0", "row src_scale -1 0 576 65", "on sharing-0 -"]
    k = data.draw(st.integers(0, len(lines) - 1))
    lines[k] = data.draw(st.one_of(st.text(max_size=20), st.sampled_from([lines[k] + " 1", "", "\0", ".."])))
    cache.save(name, "\n".join(lines).encode(errors="replace"))
    assert kept.recalled(name) is None  # there is no such kernel either
    cache.save(name, data.draw(st.binary(max_size=60)))
    assert kept.recalled(name) is None


def test_what_is_damaged_on_disk_is_planned_again(folder, monkeypatch):
    assert is_planned(monkeypatch)
    for path in records(folder):
        path.write_bytes(path.read_bytes()[:-1])
    assert is_planned(monkeypatch)
    assert not is_planned(monkeypatch)
    for path in folder.iterdir():
        if len(path.name) == 64:
            path.unlink()  # the code
    assert is_planned(monkeypatch)
    assert not is_planned(monkeypatch)


def test_a_choice_that_was_measured_replaces_what_was_kept(folder, monkeypatch):
    """And one that was forgotten, or is too old, brings the estimate back."""
    assert is_planned(monkeypatch)
    way, problem = "staged, 32 rows", reorders.problem_of(SRC, DST, ())
    tuning.keep(tuning.Choice(problem, tuning.AGREE, ((way, 0.5), ("estimate", 1.0))))
    assert is_planned(monkeypatch)
    assert not is_planned(monkeypatch)
    made, trial = choice.chosen(SRC, DST)
    assert (made.wish, trial) == (way, None)
    assert rl.Reorder(SRC, DST).plan.kernels.wish == way
    with monkeypatch.context() as patch:
        now = time.time() + tuning.STALE + 1
        patch.setattr(kept.time, "time", lambda: now)
        afresh()
        assert choice.chosen(SRC, DST)[1] is not None
    tuning.forget()
    afresh()
    assert choice.chosen(SRC, DST)[0].wish == "estimate"
    assert not is_planned(monkeypatch)


def test_a_threshold_that_was_measured_since(folder, monkeypatch):
    """Whether threads are woken is decided anew."""
    from relayout.runtime import thresholds
    from relayout.targets.machine import host

    entry, head = thresholds._entry("sharing", host())
    assert entry in thresholds.consulted(2 * SRC.nbytes, 2 * SRC.nbytes)
    assert is_planned(monkeypatch)
    assert not is_planned(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(thresholds, "_known", {})
        patch.setattr(thresholds.threads, "count", lambda *_: 2)
        cache.save(entry, f"{head}{1 << 18}".encode())
        assert is_planned(monkeypatch)
        assert not is_planned(monkeypatch)


def test_a_contest_that_is_due_is_held_as_ever(folder, monkeypatch):
    assert is_planned(monkeypatch)
    assert not is_planned(monkeypatch)
    x = np.random.default_rng(0).random(SRC.dims).astype(np.float32)
    plan, out = rl.Reorder(SRC, DST), np.empty((1, 40, 40, 64), np.float32)
    assert isinstance(plan.plan._trial, choice.Awaited)
    for k in range(500):
        if plan.plan._trial is None:
            break
        assert (plan.plan._trial._trial is None) == (k <= tuning.BEGIN)
        out[:] = 0
        plan(x, out)
        np.testing.assert_array_equal(out, x.transpose(0, 2, 3, 1))
    assert plan.plan._trial is None
    (known,) = tuning.choices()
    assert plan.plan.kernels.wish == known.ranking[0][0]
    assert rl.Reorder(SRC, DST).plan.kernels is plan.plan.kernels
    afresh()
    assert rl.Reorder(SRC, DST).plan.kernels.wish == known.ranking[0][0]


def test_a_plan_that_is_tuned_holds_it_at_once(folder, monkeypatch):
    assert is_planned(monkeypatch)
    assert not is_planned(monkeypatch)
    known = rl.Reorder(SRC, DST).tune()
    assert known is not None
    assert known.contests == 1


@pytest.mark.parametrize(
    "given",
    [
        {"src_scale": 0.5},
        {"dst_scale": ([0.5 + k for k in range(64)], 1), "dst_zero_point": 3},
        {"src_zero_point": (list(range(64)), 1), "beta": 2.0},
        {"src_shift": 0.25},
    ],
)
def test_attributes_are_read_where_they_were(folder, monkeypatch, given):
    """From what is kept, the same bytes."""
    dst = rl.MemoryDesc(SRC.dims, "s8", "nhwc")
    source = np.random.default_rng(1).integers(-20, 20, SRC.dims).astype(np.float32)
    outs = []
    for planned in (True, False):
        afresh()
        out = np.ones(dst.nbytes, np.int8)
        plan = rl.Reorder(SRC, dst, **given)
        plan(source, out)
        outs.append(out)
        assert (plan.plan.kernels._decided is not None) == planned
    np.testing.assert_array_equal(*outs)


def test_source_code_that_asks_the_environment_keeps_nothing(folder, monkeypatch):
    monkeypatch.setattr(cache, "_asks_environment", lambda text: b"class Native:" in text)
    assert is_planned(monkeypatch)
    assert is_planned(monkeypatch)
    assert not records(folder)


FIRST = """
import subprocess, sys
WORK = '''
import importlib, sys
import numpy as np
import relayout as rl
importlib.import_module("relayout.environment").LOADED += 3600 * 10**9
sides = [rl.MemoryDesc((1, 64, 56, 56), "f32", format) for format in ("nchw", "nChw16c")]
source, target = (np.ones(desc.required_bytes, np.uint8) for desc in sides)
rl.Reorder(*sides)(source, target)
parts = "kernels", "loops", "ir", "ops", "runtime.tuning", "runtime.pool", "targets.machine", "jit.compile"
print([m for m in sys.modules if m.startswith(tuple(f"relayout.{part}" for part in parts))])
'''
import os
os.environ["RELAYOUT_CACHE"] = sys.argv[0] + ".kernels"
os.environ["RELAYOUT_EFFORT"] = "measure"
said = [subprocess.run([sys.executable, "-c", WORK], stdout=subprocess.PIPE, text=True).stdout for _ in "12"]
assert said[0] != "[]\\n" and said[1] == "[]\\n", said[1]
print("done")
"""


def test_what_finds_its_kernels_imports_nothing_that_makes_any(tmp_path):
    is_done(tmp_path, FIRST)
