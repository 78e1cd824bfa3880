"""Modules that are compiled in the background: ready at the end, each once; errors where they are awaited."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import numpy as np
import pytest

import relayout as rl
from relayout import forking
from relayout.jit import background, engines, unlocked
from relayout.jit import compile as compile_
from relayout.jit.background import Queue, meanwhile
from relayout.jit.compile import Module, available, recalled
from relayout.primitives import Eltwise, Sequence
from relayout.targets.machine import host, llvm

pytestmark = pytest.mark.skipif(not available(), reason="this host allows no machine code")

TEXT = """
define void @{name}(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {{
  store i64 {number}, ptr %target
  ret void
}}
"""


@pytest.fixture(autouse=True)
def _empty(tmp_path, monkeypatch):
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
    engines.KNOWN.clear()


def wanted(number):
    name = f"note_{number}"
    module = Module(TEXT.format(name=name, number=number), [name], "a note")
    (kernel,), note = recalled(f"a test, {number}", 0, lambda: module, host())
    assert note == "a note"
    return kernel


def answer(kernel):
    cell = ctypes.c_int64()
    kernel(0, ctypes.addressof(cell), 0, 0, 1)
    return cell.value


def test_kernels_are_ready_at_the_end():
    with meanwhile():
        kernels = [wanted(n) for n in (3, 4, 5, 3)]
        # The last is one that may be compiled by now, and then is taken from where it is kept.
        assert all(isinstance(one, background.Pending) for one in kernels[:3])
    assert background.queue() is None
    assert [answer(one) for one in kernels] == [3, 4, 5, 3]
    assert kernels[0].address == kernels[3].address != kernels[1].address
    assert kernels[0].engine is kernels[3].engine
    assert not any(thread.name == "relayout compiles" for thread in threading.enumerate())


def test_a_kernel_may_be_called_before_the_end():
    with meanwhile():
        first, _ = wanted(6), wanted(7)
        assert answer(first) == 6


def test_what_is_known_is_not_put_off():
    with meanwhile():
        wanted(8)
    with meanwhile():
        assert not isinstance(wanted(8), background.Pending)
    engines.KNOWN.clear()
    with meanwhile():  # and on disk
        assert answer(wanted(8)) == 8


def test_one_within_the_other():
    with meanwhile():
        with meanwhile():
            kernel = wanted(9)
        assert background.queue() is not None
    assert answer(kernel) == 9


def test_a_mistake_is_raised():
    def module():
        return Module("define void @broken(ptr %x) {", ["broken"])

    with pytest.raises(RuntimeError, match="parsing"), meanwhile():
        recalled("broken", 0, module, host())
    assert background.queue() is None
    assert answer(wanted(10)) == 10


def test_who_gives_up_waits_for_nothing_more():
    queue, begun, left = Queue(), threading.Event(), threading.Event()
    made = []

    def work(k):
        begun.set()
        assert left.wait(10)
        made.append(k)
        return b""

    for k in range(3):
        queue.kernels(str(k), ["f"], lambda k=k: work(k), lambda code: None)
    assert begun.wait(10)
    threading.Timer(0.05, left.set).start()
    queue.close(give_up=True)
    assert made == [0]


def test_an_error_within_ends_it():
    with pytest.raises(ZeroDivisionError), meanwhile():
        answer(wanted(11) and 1 // 0)
    assert background.queue() is None


def test_what_was_given_up_is_made_by_who_asks_for_it():
    """A cell of a notebook is interrupted, and run again: the primitives are still there."""
    sequence = Sequence()
    value = sequence.input("x", rl.MemoryDesc((1, 3, 4, 5), "f32", "nchw"))
    for name in ("relu", "abs", "square", "sqrt", "exp", "tanh"):
        value = sequence.add(Eltwise(value.desc, name), value)
    sequence.output(value)

    def progress(k, *_):
        if k == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sequence.compile(progress=progress)
    x = np.ones((1, 3, 4, 5), np.float32)
    found = []
    again = threading.Thread(target=lambda: found.append(sequence.compile()(x).numpy()), daemon=True)
    again.start()
    again.join(60)  # it waited for ever
    np.testing.assert_allclose(found[0], np.tanh(np.exp(x)), rtol=1e-5)


def test_a_fork_waits():
    order = []

    def fork():
        with forking.lock():  # what os.fork takes
            order.append(background.queue() is None)

    with meanwhile():
        other = threading.Thread(target=fork)
        other.start()
        wanted(12)
        assert not order
    other.join()
    assert order == [True]


def test_reorders_are_put_off_too(monkeypatch, tmp_path):
    """Their kernels are ready at the end, and kept for later processes then."""
    from relayout.reorder import native

    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
    native._native.cache_clear()
    src, dst = (rl.MemoryDesc((4, 32, 6, 7), "f32", name) for name in ("nchw", "nChw8c"))
    with background.meanwhile():
        made = native.native(src, dst)
        assert isinstance(made.kernels[0], background.Pending)
        other = native.native(src, dst)
        assert other is made
    assert not isinstance(made.kernels[0], background.Pending)
    assert made.kernels[0].address
    native._native.cache_clear()
    again = native.native(src, dst)
    assert again.kernels[0].engine.key == made.kernels[0].engine.key
    x = np.random.default_rng(0).standard_normal(src.dims).astype(np.float32)
    assert np.array_equal(rl.tensor(x).reorder(dst).numpy(), x)


def test_sequences_are_the_same(monkeypatch):
    x = np.linspace(-2, 2, 60, dtype=np.float32).reshape(1, 3, 4, 5)

    def run():
        sequence = Sequence()
        value = sequence.input("x", rl.MemoryDesc(x.shape, "f32", "nchw"))
        for name in ("relu", "tanh", "abs", "square"):
            value = sequence.add(Eltwise(value.desc, name), value)
        sequence.output(value)
        return sequence.compile()(x).numpy()

    found = run()
    monkeypatch.setattr(compile_, "_put_off", lambda *_: [])
    engines.KNOWN.clear()
    for name in os.listdir(os.environ["RELAYOUT_CACHE"]):
        path = os.path.join(os.environ["RELAYOUT_CACHE"], name)
        if os.path.isfile(path):
            os.unlink(path)
    assert np.array_equal(found, run())


def test_object_code_is_the_same_without_the_lock_of_llvmlite():
    library, target = llvm(), compile_._target(host(), compile_.LEVEL)
    text = TEXT.format(name="note_20", number=20)
    made = unlocked.emitted(library, unlocked.emitting(library), target, text)
    assert made == unlocked.emitted(library, None, target, text) == compile_.assemble(text, host())
    with pytest.raises(RuntimeError):
        unlocked.emitted(library, unlocked.emitting(library), target, "define nothing")


def test_a_library_without_that_function_is_asked_in_its_own_way():
    class Library:
        class ffi:
            lib = ctypes.CDLL(None)

    assert unlocked.emitting(Library) is None


def test_several_threads_compile_at_once():
    library, emit = llvm(), unlocked.emitting(llvm())
    texts = [TEXT.format(name=f"note_{n}", number=n) for n in range(40)]
    wanted = [compile_.assemble(text, host()) for text in texts]
    found: list[list[bytes]] = [[], []]

    def work(k):
        target = compile_._spare(host())[k]
        found[k] = [unlocked.emitted(library, emit, target, text) for text in texts]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [wanted, wanted]


def test_who_waits_compiles_too(monkeypatch):
    monkeypatch.setattr(background, "processors", lambda: 2)
    made, may = [], threading.Event()

    def make(name):
        def work():
            made.append((name, threading.current_thread().name))
            if name == "slow":
                may.wait(60)
            else:
                may.set()
            return b""

        return work

    queue = Queue()
    for name in ("slow", "quick"):
        queue.kernels(name, [name], make(name), lambda code: code)
    queue.close()
    assert dict(made)["quick"] != dict(made)["slow"]  # else the slow one would have waited for ever


def test_files_are_looked_at_again_where_modules_were_imported(monkeypatch):
    asked = []
    monkeypatch.setattr(compile_.cache, "unchanged", lambda imported: asked.append(imported) or True)
    monkeypatch.setattr(compile_.cache, "sources", lambda imported: "code")
    with meanwhile():
        wanted(31), wanted(32)
        assert len(asked) == 1
        monkeypatch.setitem(sys.modules, "relayout_test_of_imports", sys)
        wanted(33), wanted(34)
        assert len(asked) == 2
    wanted(35), wanted(36)
    assert len(asked) == 4
