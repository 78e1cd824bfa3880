"""Memory that native code works on stays alive until it has ended, whatever other threads do meanwhile.

Code that assigns ``tensor.buffer`` at the worst moment of a call stands in for another thread.
"""

from __future__ import annotations

import importlib
import weakref

import numpy as np
import pytest

import relayout as rl
from relayout import LayoutError, MemoryDesc, Tensor
from relayout.primitives import Binary, Concat, Sequence, Softmax

pytest.importorskip("relayout.jit.compile")
program = importlib.import_module("relayout.primitives.program")
runner = importlib.import_module("relayout.primitives.runner")

IMAGE = MemoryDesc((1, 2, 1, 3), "f32", "nchw")
SIZE = IMAGE.nbytes


def held(*tensors):
    """Weak references to the buffers of tensors, which nobody else holds."""
    return [weakref.ref(one.buffer) for one in tensors]


def filled(desc=IMAGE):
    return Tensor(desc, np.ones(desc.nbytes, np.uint8))


def test_a_primitive_holds_the_buffers_of_a_call(monkeypatch):
    tensors = [filled(), filled(), filled()]
    references, called = held(*tensors), []

    def steal(self, addresses, threads=None):
        for one in tensors:
            one.buffer = np.zeros(SIZE, np.uint8)
        called.append([reference() is not None for reference in references])

    monkeypatch.setattr(program.Program, "__call__", steal)
    x, y, out = tensors
    assert Binary("add", IMAGE, IMAGE)(x, y, out=out) is out
    assert called == [[True, True, True]]
    assert [reference() for reference in references] == [None, None, None]  # and no longer than that


def test_so_does_concat(monkeypatch):
    concat = Concat([IMAGE, IMAGE], axis=1)
    tensors = [filled(), filled(), filled(concat.dst)]
    references, called = held(*tensors), []

    def steal(self, addresses, threads=None):
        for one in tensors:
            one.buffer = np.zeros(concat.dst.nbytes, np.uint8)
        called.append([reference() is not None for reference in references])

    monkeypatch.setattr(program.Program, "__call__", steal)
    x, y, out = tensors
    assert concat(x, y, out=out) is out
    assert called == [[True, True, True]]


@pytest.mark.parametrize("outputs", [1, 2])
def test_so_does_a_run(monkeypatch, outputs):
    sequence = Sequence()
    x = sequence.input("x", IMAGE)
    for k in range(outputs):
        sequence.output(sequence.add(Softmax(IMAGE, axis=k), x))
    run = sequence.compile()
    tensors = [filled() for _ in range(1 + outputs)]
    references, called = held(*tensors), []

    def steal(*_):
        for one in tensors:
            one.buffer = np.zeros(SIZE, np.uint8)
        called.append([reference() is not None for reference in references])

    monkeypatch.setattr(runner, "walk", steal)
    given, *out = tensors
    done = run(given, out=out)
    assert (done if outputs > 1 else (done,)) == tuple(out)
    assert called == [[True] * (1 + outputs)]


class Changing(Tensor):
    """A tensor with a long buffer the first time that somebody looks, and short ones after that."""

    __slots__ = ("looks",)

    def __init__(self, desc, long):
        self.desc, self.looks = desc, iter([long])

    @property
    def buffer(self):
        return next(self.looks, np.zeros(1, np.uint8))


@pytest.mark.parametrize("which", [0, 1])
def test_the_buffer_that_was_checked_is_the_one_that_is_used(which):
    """A second look could find another buffer, which is too short."""
    data = np.arange(6, dtype=np.float32)
    sequence = Sequence()
    sequence.output(sequence.add(Softmax(IMAGE), sequence.input("x", IMAGE)))
    for call in (Softmax(IMAGE), sequence.compile(), rl.Reorder(IMAGE, IMAGE)):
        x, y = data.copy(), np.zeros(6, np.float32)
        given = [Tensor(IMAGE, one.view(np.uint8)) for one in (x, y)]
        given[which] = Changing(IMAGE, (x, y)[which].view(np.uint8))
        if isinstance(call, rl.Reorder):
            call(*given)
            assert y.tolist() == data.tolist()
            continue
        call(given[0], out=given[1])
        assert y.reshape(2, 3).sum(0).round(5).tolist() == [1, 1, 1]


def test_a_buffer_that_is_too_short_is_refused_as_before():
    with pytest.raises(LayoutError, match="its buffer has 4"):
        Softmax(IMAGE)(Tensor(IMAGE, np.zeros(4, np.uint8)))
    with pytest.raises(LayoutError, match=r"dst .* needs 24 bytes; its buffer has 4"):
        Softmax(IMAGE)(filled(), out=Tensor(IMAGE, np.zeros(4, np.uint8)))
