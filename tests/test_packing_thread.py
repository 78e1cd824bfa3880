"""Constants that a thread moves: all there at the end, without the lock of forks; errors are told."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import relayout as rl
from relayout.forking import lock
from relayout.primitives import Binary, Sequence, packing
from relayout.primitives.packing import Packing
from relayout.tensor import on_large_pages

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


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0, 1.2])
def test_memory_that_was_asked_for_ahead_is_taken_where_it_fits(monkeypatch, share):
    monkeypatch.setattr(packing, "processors", lambda: 2)
    size = 2 * packing.LEAST
    taken = []
    monkeypatch.setattr(packing, "on_large_pages", lambda sizes: taken.append(sizes) or on_large_pages(sizes))
    with packing.ahead(size):
        first = packing.rooms([int(share * size), 100])
        second = packing.rooms([100])
    for one, wanted in zip([*first, *second], (int(share * size), 100, 100), strict=True):
        assert one.nbytes == wanted
        assert not one.any()
        one[:] = 1
    assert len(taken) == 1 + (share not in (0.9, 1.0))
    assert packing._reserve.get() is None


def test_nothing_is_asked_for_ahead_where_memory_is_small():
    with packing.ahead(packing.LEAST - 1):
        assert packing._reserve.get() is None
