"""Constants of sequences: moved by NumPy where they are few, by kernels where many are alike."""

from __future__ import annotations

import numpy as np
import pytest

import relayout as rl
from relayout.jit.compile import available
from relayout.primitives import Binary, Sequence, storages

DIMS = (48, 40)


def run(count: int) -> list[np.ndarray]:
    """What is computed with so many constants that are laid out alike, and one of its own."""
    rng = np.random.default_rng(0)
    sequence = Sequence()
    desc = rl.MemoryDesc(DIMS, "f32", "BA16b8a")
    found = [sequence.input("x", rl.MemoryDesc(DIMS, "f32", "ab"))]
    for _ in range(count):
        data = rng.standard_normal(DIMS[::-1]).astype(np.float32).T
        found.append(sequence.add(Binary("add", desc, desc), found[-1], rl.tensor(data)))
    for one in found[1:]:
        sequence.output(one, rl.MemoryDesc(DIMS, "f32", "ab"))
    made = sequence.compile()(np.zeros(DIMS, np.float32))
    return [one.numpy().copy() for one in (made if isinstance(made, tuple) else (made,))]


@pytest.mark.skipif(not available(), reason="this host allows no machine code")
def test_many_that_are_alike_are_moved_by_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
    asked = []
    native = storages.native
    monkeypatch.setattr(storages, "native", lambda *both: asked.append(both) or native(*both))
    wanted = run(4)
    assert not asked
    monkeypatch.setattr(storages, "ONCE", 3 * 4 * DIMS[0] * DIMS[1])
    for one, other in zip(run(4), wanted, strict=True):
        assert np.array_equal(one, other)
    assert len(asked) == 4
    asked.clear()
    monkeypatch.setattr(storages, "ONCE", 1 << 30)
    monkeypatch.setattr(storages, "LOOKED_FOR", 1)
    for one, other in zip(run(1), wanted, strict=False):  # kernels that an earlier process has left
        assert np.array_equal(one, other)
    assert len(asked) == 1
