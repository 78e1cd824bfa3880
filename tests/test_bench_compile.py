"""The bench of ``torch.compile``: what comes first, what is not measured again, and what is told."""

from __future__ import annotations

import io
import json
import time

import pytest
from click.testing import CliRunner
from rich.console import Console

from relayout.bench import lines
from relayout.bench.backends import traced
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
