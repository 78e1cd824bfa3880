"""Constants that a thread moves: all there at the end, without the lock of forks; errors are told."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import relayout as rl
from relayout.forking import lock
from relayout.primitives import Binary, Sequence, packing
from relayout.primitives.packing import Packing

DIMS = (96, 80)


@pytest.mark.parametrize("worth", [1, 1 << 40])
@pytest.mark.parametrize("format", ["ab", "ba", "BA16b8a", "aB24b"])
def test_all_constants_are_there(monkeypatch, format, worth):
    monkeypatch.setattr(packing, "WORTH", worth)
    rng = np.random.default_rng(3)
    desc = rl.MemoryDesc(DIMS, "f32", format)
    sequence = Sequence()
    total = sequence.input("x", rl.MemoryDesc(DIMS, "f32", "ab"))
    wanted = np.zeros(DIMS, np.float32)
    for turned in (False, True, False):
        data = rng.standard_normal(DIMS[::-1] if turned else DIMS).astype(np.float32)
        data = data.T if turned else data
        total = sequence.add(Binary("add", desc, desc), total, rl.tensor(data))
        wanted = wanted + data
    sequence.output(total, rl.MemoryDesc(DIMS, "f32", "ab"))
    with lock():  # as whoever compiles a graph holds it
        run = sequence.compile()
    assert np.array_equal(run(np.zeros(DIMS, np.float32)).numpy(), wanted)
    assert not any(thread.name == "relayout packs" for thread in threading.enumerate())


def test_an_error_is_raised_where_somebody_waits():
    def fail():
        raise ValueError("no room")

    def pack():
        with Packing() as made:
            made.add(packing.WORTH, fail)
            made.start()

    with pytest.raises(ValueError, match="no room"):
        pack()


def test_who_gives_up_waits_for_nothing_that_has_not_begun():
    done, began = [], threading.Event()

    def first(made):
        began.set()
        while made._left:  # until whoever gives up has taken away what is left
            began.wait(0.001)
        done.append(1)

    def pack():
        with Packing() as made:
            made.add(packing.WORTH, lambda: first(made))
            made.add(packing.WORTH, lambda: done.append(2))
            made.start()
            began.wait()
            raise KeyError

    with pytest.raises(KeyError):
        pack()
    assert done == [1]
