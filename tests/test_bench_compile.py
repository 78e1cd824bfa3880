"""The bench of ``torch.compile``: what comes first, what is not measured again, and what is told."""

from __future__ import annotations

import io
import json
import time
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from relayout.bench import backends, contestant, lines, modules
from relayout.bench.backends import traced
from relayout.bench.contestant import timed
from relayout.bench.measure import Spread
from relayout.bench.models import plain
from relayout.bench.modules import (
    COMPILED,
    CONTESTANTS,
    NETWORKS,
    OURS,
    REPRESENTATIVES,
    Compared,
    entries,
    quicker,
    read,
    show,
    uncompiled,
)
from relayout.cli import application

HERE = {"processor": "P", "cores": 2, "torch": "2"}


def made(network: str = "tv/vgg16", batch: int = 1) -> Compared:
    """A result with all contestants."""
    one = Compared(network, 1, batch, machine=dict(HERE))
    one.seconds = {name: Spread(0.2, 0.19, 0.21) for name in CONTESTANTS}
    one.behind = {name: Spread(1.25, 1.2, 1.3) for name in CONTESTANTS[1:]}
    one.first, one.again = {OURS: 3.0, COMPILED[0]: 40.0}, {OURS: 1.0, COMPILED[0]: 2.0}
    return one


def test_one_of_each_family_stands_in_front():
    assert NETWORKS[: len(REPRESENTATIVES)] == REPRESENTATIVES
    assert len(NETWORKS) == len(set(NETWORKS))
    found = entries(NETWORKS, (1, 8), (1, 2), CONTESTANTS, {})
    assert len(found) == len(set(found)) == 4 * len(NETWORKS)
    front = [(one, 1, 1) for one in REPRESENTATIVES]
    assert found[: len(front)] == front
    assert {network for network, *_ in found[: 4 * len(front)]} == set(REPRESENTATIVES)


def test_what_is_known_is_not_measured_again():
    known = {one.key: one for one in [made()]}
    assert ("tv/vgg16", 1, 1) not in entries(("tv/vgg16",), (1, 8), (1,), CONTESTANTS, known)
    del known["tv/vgg16", 1, 1].seconds[COMPILED[1]]
    assert ("tv/vgg16", 1, 1) in entries(("tv/vgg16",), (1, 8), (1,), CONTESTANTS, known)
    assert ("tv/vgg16", 1, 1) not in entries(("tv/vgg16",), (1,), (1,), CONTESTANTS[:4], known)


def test_compiling_is_measured_once_a_network():
    known = {one.key: one for one in [made()]}
    assert uncompiled("tv/vgg16", CONTESTANTS, known) == []
    assert uncompiled("tv/vgg19", CONTESTANTS, known) == [OURS, COMPILED[0]]
    del known["tv/vgg16", 1, 1].first[OURS]
    assert uncompiled("tv/vgg16", CONTESTANTS, known) == [OURS]


def test_a_file_of_several_machines_and_sessions(tmp_path):
    path = tmp_path / "results.jsonl"
    first, second, elsewhere = made(), made(), made("tv/vgg19")
    second.first, second.again = {}, {}
    second.seconds[OURS] = Spread(0.1, 0.1, 0.1)
    elsewhere.machine["processor"] = "another"
    for one in (first, second, elsewhere):
        lines.add(plain(one), path)
    found = read(path, HERE)
    assert list(found) == [("tv/vgg16", 1, 1)]
    assert found["tv/vgg16", 1, 1].seconds[OURS].median == 0.1
    assert found["tv/vgg16", 1, 1].first == first.first  # of the session before
    assert len(read(path)) == 2


def test_results_of_before_the_back_ends_own_part_was_measured(tmp_path):
    path = tmp_path / "results.jsonl"
    old = plain(made())
    del old["first_own"], old["again_own"]
    lines.add(old, path)
    new = made("tv/vgg19")
    new.first_own = {OURS: 1.0, COMPILED[0]: 30.0}
    lines.add(plain(new), path)
    found = read(path)
    assert found["tv/vgg16", 1, 1].first_own == {}
    assert found["tv/vgg16", 1, 1].first == {OURS: 3.0, COMPILED[0]: 40.0}
    assert found["tv/vgg19", 1, 1].first_own == new.first_own
    assert quicker(list(found.values()), "first_own") == [30.0]
    assert len(quicker(list(found.values()), "first")) == 2


def test_what_dynamo_takes_is_no_back_ends():
    torch = pytest.importorskip("torch")
    before = traced().get("traced", 0.0)

    def slow(module, _):
        time.sleep(0.2)
        return module.forward

    begun = time.perf_counter()
    torch.compile(lambda x: x + 1, backend=slow)(torch.ones(3))
    whole = time.perf_counter() - begun
    assert 0 < traced()["traced"] - before <= whole - 0.2


def test_results_are_told():
    one = made()
    one.first_own = {OURS: 2.0, COMPILED[0]: 38.0}
    one.refused = {COMPILED[1]: "no compiler"}
    text = io.StringIO()
    show([one], Console(file=text, width=120))
    for part in ("vgg16", "1.25", "3.0/40.0", "1.0/2.0", "own part", "mean 19.00", "can't: no compiler"):
        assert part in text.getvalue()


def test_the_list_of_what_is_left(tmp_path):
    path, told = tmp_path / "results.jsonl", tmp_path / "told.json"
    command = ["bench", "compile", "--one-of-each-family", "--batch", "1", "--threads", "1", "--list"]
    found = CliRunner().invoke(application, [*command, f"--results={path}", f"--json={told}"])
    assert found.exit_code == 0, found.output
    networks = json.loads(told.read_text(encoding="utf-8"))["networks"]
    assert [one[0] for one in networks] == list(REPRESENTATIVES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--without", "JAX"], "--without takes Relayout, PyTorch"),
        (["--batch", "0"], "--batch takes numbers from 1 on"),
    ],
)
def test_bad_options(given, said):
    found = CliRunner().invoke(application, ["bench", "compile", *given], prog_name="relayout")
    assert found.exit_code == 2
    assert said in " ".join(found.output.split())


class Process:
    """In the place of a contestant's process: what it was asked, by whom, and how long everything takes."""

    log: ClassVar[list[tuple]] = []
    fails: str = ""

    def __init__(self, name, entry, outputs, environment):
        self.name, self.rests, self.spent = name, True, 0.0
        self.threads, self.batch = entry.threads, entry.batch
        self.log.append(("begins", name, entry.threads, entry.batch, entry.most, outputs is None))
        self._tell()

    def _tell(self):
        self.refused = "no" if self.fails == f"{self.name} {self.batch}" else ""
        told = {"first": 3.0, "second": 0.1, "traced": 1.0}
        self.told = {**told, "conversions": 1, "defined": 2, "parts": self.batch, "compiled": 0.5}

    def turns(self, to):
        self.threads, self.batch = to["threads"], to["batch"]
        self.log.append(("turns", self.name, self.threads, self.batch))
        self._tell()

    def does(self, what):
        self.log.append((what, self.name, self.threads, self.batch))
        return True

    def __call__(self):
        return 0.1 if self.name == OURS else 0.2

    def close(self):
        self.log.append(("ends", self.name))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(Process, "log", [])
    monkeypatch.setattr(Process, "fails", "")
    monkeypatch.setattr(modules, "Contestant", Process)
    monkeypatch.setattr(modules, "apart", lambda folder, other: 0.0)
    monkeypatch.setattr(modules, "written", lambda: None)
    return Process


WANTED = [("tv/vgg16", 1, 1), ("tv/vgg16", 1, 8), ("tv/vgg16", 2, 1)]


def test_a_process_goes_through_all_settings_of_its_network(processes, tmp_path):
    path = tmp_path / "results.jsonl"
    found = list(modules.run(WANTED, CONTESTANTS, 4, 1.0, None, path, lambda text: None))
    assert [one.key for one in found] == WANTED
    assert [one.first for one in found] == [{OURS: 3.0, COMPILED[0]: 3.0}, {}, {}]
    assert found[0].first_own == {OURS: 2.0, COMPILED[0]: 2.0}
    assert [one.parts for one in found] == [1, 8, 1]
    assert all(one.behind["PyTorch"].median == 2.0 for one in found)
    begun = [entry[1] for entry in processes.log if entry[0] == "begins"]
    assert sorted(begun) == sorted([*CONTESTANTS, OURS, COMPILED[0]])  # two of them again, with caches
    assert all(entry[4] == 8 for entry in processes.log if entry[0] == "begins")
    turns = [entry[1:] for entry in processes.log if entry[0] == "turns"]
    assert sorted(turns) == sorted((name, *setting) for setting in ((1, 8), (2, 1)) for name in CONTESTANTS)
    assert len([entry for entry in processes.log if entry[0] == "ends"]) == len(begun)
    assert read(path).keys() == set(WANTED)


def test_who_cannot_do_a_setting_begins_anew_in_the_next(processes):
    processes.fails = "torch.compile frozen 8"
    found = list(modules.run(WANTED, CONTESTANTS, 4, 1.0, None, None, lambda text: None))
    assert [one.refused for one in found] == [{}, {"torch.compile frozen": "no"}, {}]
    begun = [entry for entry in processes.log if entry[0] == "begins" and entry[1] == "torch.compile frozen"]
    assert [entry[2:4] for entry in begun] == [(1, 1), (2, 1)]
    assert "torch.compile frozen" in found[2].behind


def test_a_run_that_is_cut_short_begins_no_further_entry(processes, monkeypatch):
    clock = iter([0.0, 0.0, 61.0])
    monkeypatch.setattr(modules.time, "monotonic", lambda: next(clock))
    found = list(modules.run(WANTED, CONTESTANTS, 2, 1.0, 1.0, None, lambda text: None))
    assert [one.key for one in found] == WANTED[:1]


@pytest.mark.parametrize("name", ["Relayout", "PyTorch channels_last"])
def test_a_contestant_in_several_settings(name, tmp_path):
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        task = {"network": "extra/lenet5", "batch": 1, "threads": 1, "most": 3}
        call, told, actions = backends.MAKERS[name](task, [])
        outputs = [call()]
        for batch, threads in ((3, 1), (2, 2), (1, 1)):
            path = tmp_path / f"{batch}.npz"
            to = {"batch": batch, "threads": threads, "outputs": str(path)}
            said = actions["turn"](json.dumps(to))
            assert min(said["first"], said["second"]) > 0
            with np.load(path) as file:
                outputs.append(file["arr_0"])
            assert np.array_equal(call()[0], outputs[-1])
            assert torch.get_num_threads() == threads
        assert [len(one) for one in (outputs[0][0], *outputs[1:])] == [1, 3, 2, 1]
        for one in outputs[1:]:  # all batches begin with the same pictures
            assert np.allclose(one, outputs[1][: len(one)], atol=1e-6)
        if name == OURS:
            assert said["parts"] == told()["parts"] == 1
    finally:
        torch.set_num_threads(before)


def test_a_long_call_is_timed_by_itself(monkeypatch):
    times, calls = iter([2.0, 0.001]), []
    monkeypatch.setattr(contestant, "once", lambda call: call() or next(times))
    assert timed(lambda: calls.append(None), 1.0) == 2.0
    assert len(calls) == 1
    timed(lambda: calls.append(None), 1.0)  # what seemed long was something else
    assert len(calls) > 10
