"""Prepared calls: every part with the right addresses, whoever calls at the same time, whatever forks."""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processes import is_done
from strategies import examples

compile_ = pytest.importorskip("relayout.jit.compile")
machine = importlib.import_module("relayout.targets.machine")
prepared = importlib.import_module("relayout.runtime.prepared")
threads = importlib.import_module("relayout.runtime.threads")

pytestmark = pytest.mark.skipif(prepared._code() is None, reason="no driver in machine code here")

KERNELS = """
; target[part] += source[part]
define void @add(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
  %from = getelementptr i64, ptr %source, i64 %part
  %to = getelementptr i64, ptr %target, i64 %part
  %a = load i64, ptr %from
  %b = load i64, ptr %to
  %c = add i64 %a, %b
  store i64 %c, ptr %to
  ret void
}

; The same, and the operands' elements are added.
define void @add_one(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
  call void @add(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts)
  call void @add(ptr %operands, ptr %target, ptr %operands, i64 %part, i64 %parts)
  ret void
}

; The same with a list of two.
define void @add_two(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
  %other.at = getelementptr ptr, ptr %operands, i64 1
  %one = load ptr, ptr %operands
  %other = load ptr, ptr %other.at
  call void @add_one(ptr %source, ptr %target, ptr %one, i64 %part, i64 %parts)
  call void @add(ptr %other, ptr %target, ptr %one, i64 %part, i64 %parts)
  ret void
}

; Make a prepared call, operands[0], of the plan operands[1], 100000 times; each part has a table of its own,
; two addresses in the source, and target[part] counts the answers.
define void @hammer(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
entry:
  %plan.at = getelementptr ptr, ptr %operands, i64 1
  %call = load ptr, ptr %operands
  %plan = load ptr, ptr %plan.at
  %offset = mul i64 %part, 16
  %table = getelementptr i8, ptr %source, i64 %offset
  br label %again
again:
  %i = phi i64 [0, %entry], [%next, %again]
  %sum = phi i64 [0, %entry], [%more, %again]
  %answer = call i64 %call(ptr %table, ptr null, ptr %plan, i64 0, i64 1)
  %more = add i64 %sum, %answer
  %next = add i64 %i, 1
  %left = icmp slt i64 %next, 100000
  br i1 %left, label %again, label %out
out:
  %count = getelementptr i64, ptr %target, i64 %part
  store i64 %more, ptr %count
  ret void
}

; source[0] becomes 1; wait until target[0] is not 0.
define void @wait(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
entry:
  store atomic i64 1, ptr %source seq_cst, align 8
  br label %look
look:
  %open = load atomic i64, ptr %target seq_cst, align 8
  %closed = icmp eq i64 %open, 0
  br i1 %closed, label %look, label %out
out:
  ret void
}
"""
PARTS = 8  # at most
NAMES = "abcdef"  # a, b and c are arguments, the others belong to an image


@pytest.fixture(scope="module")
def kernels():
    """Addresses, good for as long as the kernels are kept here."""
    made = compile_.compiled(KERNELS, ["add", "add_one", "add_two", "hammer", "wait"])
    yield {name: kernel.address for name, kernel in made.items()}
    made.clear()


def call(made, *arrays):
    """What a call with these arguments answers; the interpreter's lock is free meanwhile."""
    table = (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 5)(made.kernel)
    return function(ctypes.addressof(table), 0, made.operands, 0, 1)


NAME = st.sampled_from(NAMES)
CALLS = st.lists(
    st.tuples(
        NAME, NAME, st.just(()) | NAME | st.tuples(NAME, NAME), st.integers(0, PARTS), st.integers(1, 3)
    ),
    max_size=6,
)


@given(CALLS, st.data())
@examples(60)
def test_every_part_of_every_call_with_the_addresses_of_this_one(kernels, calls, data):
    fixed = {name: data.draw(st.integers(-9, 9)) + np.arange(PARTS) for name in NAMES[3:]}
    expected = {name: array.copy() for name, array in fixed.items()}
    kinds = {(): "add", str: "add_one", tuple: "add_two"}
    made = prepared.prepared(
        [
            prepared.Call(kernels[kinds[operands and type(operands)]], source, target, operands, parts, many)
            for source, target, operands, parts, many in calls
        ],
        NAMES[:3],
        [{name: array.ctypes.data for name, array in fixed.items()}],
    )
    for turn in range(3):  # each time elsewhere
        given_arrays = {name: np.arange(PARTS) * (turn + 2) + k for k, name in enumerate(NAMES[:3])}
        expected |= {name: array.copy() for name, array in given_arrays.items()}
        assert call(made, *given_arrays.values()) == prepared.DONE
        for source, target, operands, parts, _ in calls:
            for name in (source, *operands):
                expected[target][:parts] += expected[name][:parts]
        for name, array in (fixed | given_arrays).items():
            assert array.tolist() == expected[name].tolist(), name


def wait(made, mark, gate, answers):
    answers.append(call(made, mark, gate))


@pytest.mark.parametrize("images", [1, 2, 3])
def test_as_many_calls_at_a_time_as_there_are_images(kernels, images):
    made = prepared.prepared([prepared.Call(kernels["wait"], "x", "y")], "xy", [{}] * images)
    for _ in range(3):
        started, gate = np.zeros((images, 1), np.int64), np.zeros(1, np.int64)
        answers = []
        callers = [threading.Thread(target=wait, args=(made, mark, gate, answers)) for mark in started]
        for caller, mark in zip(callers, started, strict=True):
            caller.start()
            while not mark[0]:
                time.sleep(1e-4)
        late = np.zeros(1, np.int64)
        assert call(made, late, gate) == prepared.REFUSED
        assert not late[0]
        gate[0] = 1
        for caller in callers:
            caller.join()
        assert answers == [prepared.DONE] * images


def test_no_two_calls_in_one_image(kernels):
    """What each thread gets is its own, however close behind another one it comes."""
    made = prepared.prepared([prepared.Call(kernels["add"], "x", "y", parts=2)], "xy", [{}] * 2)
    x, y = np.arange(1, 7).reshape(3, 2), np.zeros((3, 2), np.int64)
    tables = np.array([[one.ctypes.data, other.ctypes.data] for one, other in zip(x, y, strict=True)])
    operands, done = np.array([made.kernel, made.operands]), np.zeros(3, np.int64)
    threads.run(kernels["hammer"], tables.ctypes.data, done.ctypes.data, operands.ctypes.data, 3, 3)
    assert done.any()
    assert y.tolist() == (x * done[:, None]).tolist()


def test_without_native_threads_only_for_one(kernels, monkeypatch):
    monkeypatch.setattr(threads, "native", lambda number: (0, 0))
    for number in (1, 2):
        one = prepared.Call(kernels["add"], "x", "y", parts=2, threads=number)
        assert (prepared.prepared([one], "xy", [{}]) is None) is (number > 1)


FORK = """
    import os, sys, threading, time
    import numpy as np

    sys.path.insert(0, sys.argv[1])
    import test_prepared as t

    made = t.compile_.compiled(t.KERNELS, ["add", "wait"])
    Call, prepare = t.prepared.Call, t.prepared.prepared
    held = prepare([Call(made["wait"].address, "x", "y")], "xy", [{}])
    shared = prepare([Call(made["add"].address, "x", "y", parts=8, threads=2)], "xy", [{}])
    started, gate = np.zeros(1, np.int64), np.zeros(1, np.int64)
    threading.Thread(target=t.call, args=(held, started, gate), daemon=True).start()
    while not started[0]:
        time.sleep(1e-4)

    def works():
        x, y = np.arange(8), np.ones(8, np.int64)
        answer = t.call(shared, x, y)
        return bool(answer) and (y == x + 1).all()

    assert works() and not t.call(held, started, gate)
    child = os.fork()
    if not child:  # the image of the thread that is lost is free; there are no workers until they are wanted
        good = t.call(held, np.zeros(1, np.int64), np.ones(1, np.int64)) and not works()
        t.threads.native(2)
        os._exit(0 if good and works() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert works() and not t.call(held, started, gate)
    gate[0] = 1
    print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork(tmp_path):
    is_done(tmp_path, FORK)


@pytest.mark.parametrize(
    ("cpu", "triple"),
    [("x86-64-v2", "x86_64-unknown-linux-gnu"), ("neoverse-n1", "arm64-apple-darwin")],
)
def test_code_of_other_processors(cpu, triple):
    assert compile_.assemble(prepared.ir(), machine.machine(cpu, triple))
