"""Whether figures can be trusted: what others use, and threads that do not rest."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest

from relayout.bench import contest, load
from relayout.bench.load import Load, settle, spent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")


def test_work_of_contestants_is_none_of_others(monkeypatch):
    told = iter([(0.0, 10.0, 1.0), (2.0, 14.0, 4.0)])
    monkeypatch.setattr(load, "_reading", lambda ours: load._Reading(*next(told)[:2], 1.0 + ours))
    work = iter([0.0, 3.0])
    one = Load(lambda: next(work))
    assert one.others() == pytest.approx((4.0 - 3.0) / 2.0)


def test_the_work_of_a_process(tmp_path):
    import subprocess

    code = textwrap.dedent(
        """
        import time
        while time.process_time() < 0.2: pass
        print("done", flush=True); input()
        """
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout.readline() == b"done\n"
        assert spent(process.pid) > 0.1
        process.communicate(b"\n")
    assert spent(process.pid) == 0.0


def test_threads_that_go_on_spinning_are_told(monkeypatch):
    monkeypatch.setattr(load, "_running", lambda: True)
    begun = time.perf_counter()
    assert not settle()
    assert time.perf_counter() - begun >= load.RESTLESS
    monkeypatch.undo()
    assert threading.active_count() >= 1


def asked(answers):
    """A contestant without a process, which gives these answers."""
    made = contest.Contestant.__new__(contest.Contestant)
    made.rests, made._asked = True, lambda what: next(answers)
    return made


def test_a_contestant_that_does_not_rest_disturbs_the_others():
    restless = asked(iter([{"seconds": 1.0, "rests": True}, {"seconds": 1.0, "rests": False}]))
    quiet = asked(iter([{"seconds": 2.0, "rests": True}] * 2))
    both = {"one": restless, "two": quiet}
    assert (restless(), quiet()) == (1.0, 2.0)
    assert contest.rest(both)
    restless(), quiet()
    assert not contest.rest(both)
    assert contest.rest({"one": restless})  # nobody is there whom it could disturb
    assert contest.rest({"two": quiet, "three": SimpleNamespace(rests=True)})
