"""Code in memory: what is used stays, and what nobody uses goes, however many shapes a process has seen."""

from __future__ import annotations

import gc
import importlib
import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from processes import is_done
from relayout import MemoryDesc
from relayout.primitives import Convolution, Eltwise, Sequence
from strategies import examples

compile_ = importlib.import_module("relayout.jit.compile")
engines = importlib.import_module("relayout.jit.engines")
forking = importlib.import_module("relayout.forking")
machine = importlib.import_module("relayout.targets.machine")
native = importlib.import_module("relayout.reorder.native")
products = importlib.import_module("relayout.primitives.products")

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids machine code")

IR = "define void @k(ptr %s, ptr %d, ptr %o, i64 %a, i64 %b) {\n  store i64 %b, ptr %d\n  ret void\n}\n"
MAPS = Path("/proc/self/maps")


@pytest.fixture
def few(monkeypatch):
    """A process that keeps four engines, and has none yet; nothing comes from disk."""
    monkeypatch.setenv("RELAYOUT_CACHE", "off")
    monkeypatch.setattr(engines, "KEPT", 4)
    monkeypatch.setattr(engines, "KNOWN", engines.Engines())
    for cached in (native._native, products._products):
        cached.cache_clear()


def made(number):
    """One of many kernels, each with an engine of its own; it writes down its last argument."""
    [kernel], _ = compile_.recalled(f"kernel {number}", 0, lambda: compile_.Module(IR, ["k"]), machine.host())
    return kernel


@pytest.fixture
def distinct(few, monkeypatch):
    """Kernels with little to compile: all have the same code, at places of their own."""
    code = compile_.assemble(IR, machine.host())
    monkeypatch.setattr(compile_, "assemble", lambda *_: code)
    monkeypatch.setattr(compile_.cache, "sources", lambda _: "known")
    monkeypatch.setattr(compile_.cache, "unchanged", lambda _: True)


def works(kernel, value):
    out = np.zeros(1, np.int64)
    kernel(0, out.ctypes.data, 0, 0, value)
    return out[0] == value


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list maps")
def test_thousands_of_kernels_take_no_more_maps_than_a_few(distinct):
    for k in range(20):
        made(k)
    before = len(MAPS.read_text().splitlines())
    for k in range(20, 2020):
        assert works(made(k), k)
    after = len(MAPS.read_text().splitlines())
    assert after < before + 50
    assert len(engines.KNOWN._recent) == 4


def test_what_is_used_is_found_and_stays_where_it_is(distinct):
    kernel = made(0)
    address = kernel.address
    for k in range(1, 50):
        made(k)
    assert works(kernel, 5)
    assert made(0).address == address
    kernel = None
    for k in range(1, 50):
        made(k)
    assert works(made(0), 6)  # it is made again


@given(st.lists(st.tuples(st.sampled_from(["make", "hold", "drop"]), st.integers(0, 9)), max_size=40))
@examples(30)
def test_any_order_of_making_holding_and_dropping(steps):
    alive, held, closed = {}, {}, []

    class Code:
        def __init__(self, key):
            self.key = key

        def close(self):
            closed.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "KEPT", 3)
        kept = engines.Engines()
        for what, number in steps:
            key = str(number)
            if what == "drop":
                held.pop(key, None)
                continue
            engine = kept.get(key)
            if engine is None:
                engine = engines.Engine(Code(key))
                kept.add(key, engine)
            assert engine._code.key == key
            if what == "hold":
                held[key] = engine
            alive[key] = engine._code
            engine = None
            gc.collect(0)
            assert all(one._code not in closed for one in held.values())
            assert all(kept.get(key) is one for key, one in list(held.items())[:1])
        assert len(kept._alive) <= 3 + len(held)


def test_a_plan_a_primitive_and_a_run_work_after_others_have_gone(few):
    src, dst = (MemoryDesc((1, 17, 4, 3), "f32", form) for form in ("nchw", "nChw8c"))
    x = rl.tensor(np.random.default_rng(0).random(src.dims, np.float32))
    weights = rl.tensor(np.ones((8, 17, 1, 1), np.float32))
    plan, conv = rl.Reorder(src, dst), Convolution(src, MemoryDesc((8, 17, 1, 1), "f32", "oihw"))
    sequence = Sequence()
    sequence.output(sequence.add(Eltwise(src, "exp"), sequence.input("x", src)))
    run = sequence.compile()
    sequence = None
    out = np.zeros(dst.nbytes // 4, np.float32)

    def results():
        plan(x, out)
        return out.copy(), conv(x, weights).numpy(), run(x).numpy()

    expected = results()
    for _ in range(100):
        results()  # often: functions in machine code have been made
    for k in range(1, 30):
        side = MemoryDesc((1, 3, k, 5), "f32", "nchw")
        rl.Reorder(side, MemoryDesc(side.dims, "f32", "nhwc"))
        native._native.cache_clear()
        products._products.cache_clear()
    gc.collect()
    np.full(1 << 20, 7, np.uint8)
    for found, was in zip(results(), expected, strict=True):
        np.testing.assert_array_equal(found, was)


def test_an_engine_that_goes_waits_for_nobody(distinct):
    """Garbage is collected anywhere, with any lock held; LLVM is asked later, by who has the lock."""
    kernels, gone = [made(0)], threading.Event()
    for k in range(1, 10):
        made(k)

    def drop():
        kernels.clear()
        gc.collect()
        gone.set()

    with forking.lock():
        dropping = threading.Thread(target=drop)
        dropping.start()
        assert gone.wait(30)
        assert len(engines._aside) >= 1
    dropping.join()
    made(10)
    assert not engines._aside


def test_threads_make_drop_and_call(distinct):
    wrong = []

    def work(seed):
        rng = random.Random(seed)
        held = []
        for turn in range(150):
            held.append(made(rng.randrange(60)))
            if not works(rng.choice(held), turn):
                wrong.append(turn)
            if len(held) > 5:
                held.pop(rng.randrange(len(held)))

    several = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_children_go_on_with_what_is_used_and_unmap_what_is_not(tmp_path):
    is_done(
        tmp_path,
        """
        import gc, os, threading
        os.environ["RELAYOUT_CACHE"] = "off"
        import numpy as np
        import relayout as rl
        from relayout import MemoryDesc
        from relayout.jit import engines
        from relayout.reorder import native
        engines.KEPT = 2

        def plan(width):
            src = MemoryDesc((1, 3, 4, width), "f32", "nchw")
            return rl.Reorder(src, MemoryDesc(src.dims, "f32", "nhwc"))

        def works(made):
            data = np.arange(made.src.nbytes // 4, dtype=np.float32)
            out = np.zeros_like(data)
            made(data, out)
            return np.array_equal(out, data.reshape(3, -1).T.ravel())

        def churn(first):
            for width in range(first, first + 6):
                assert works(plan(width))
                native._native.cache_clear()

        held, stop = plan(1), threading.Event()
        def busy():
            while not stop.wait(0.001):  # or whoever forks might wait for the lock for long
                churn(10)
        thread = threading.Thread(target=busy)
        thread.start()
        for _ in range(4):
            child = os.fork()
            if not child:
                churn(20)
                assert works(held)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        thread.join()
        assert works(held)
        print("done")
        """,
    )
