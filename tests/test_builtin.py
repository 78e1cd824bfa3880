"""Built-in functions of machine code: they say yes only where Python would, and leave everything as it was.

What can go wrong is references, the interpreter's lock, and what is read of arrays. So the functions are
called with everything that is no good argument, from many threads, in processes that fork or end meanwhile,
with Python's allocator for debugging; and the code is broken in many ways to see that the proof finds out.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from itertools import product
from string import Template

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from strategies import examples

compile_ = pytest.importorskip("relayout.jit.compile")
builtin = importlib.import_module("relayout.runtime.builtin")
checks = importlib.import_module("relayout.runtime.checks")
plan = importlib.import_module("relayout.reorder.plan")
conversion = importlib.import_module("relayout.reorder.conversion")
threads = importlib.import_module("relayout.runtime.threads")

pytestmark = pytest.mark.skipif(not builtin.available(), reason="no functions in machine code here")

Buffer, Holder = builtin.Buffer, builtin.Holder
F4, U1 = np.dtype("f4"), np.dtype("u1")

KERNELS = """
; operands[0] counts calls; the first 16 bytes of the second buffer become those of the first.
define void @move(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
  %old = atomicrmw add ptr %operands, i64 1 seq_cst
  %bytes = load <16 x i8>, ptr %source, align 1
  store <16 x i8> %bytes, ptr %target, align 1
  ret void
}

; operands[0] becomes 1; wait until operands[1] is not 0; then as above.
define void @wait(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
entry:
  %gate = getelementptr i64, ptr %operands, i64 1
  store atomic i64 1, ptr %operands seq_cst, align 8
  br label %look
look:
  %open = load atomic i64, ptr %gate seq_cst, align 8
  %closed = icmp eq i64 %open, 0
  br i1 %closed, label %look, label %out
out:
  call void @move(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts)
  ret void
}

; The first operands[0] addresses of a table go to operands[1] and on; the destination is added to the first.
; It answers operands[-1].
define i64 @table(ptr %table, ptr %target, ptr %operands, i64 %part, i64 %parts) {
entry:
  %count = load i64, ptr %operands
  br label %next
next:
  %i = phi i64 [0, %entry], [%more, %next]
  %more = add i64 %i, 1
  %from = getelementptr ptr, ptr %table, i64 %i
  %to = getelementptr ptr, ptr %operands, i64 %more
  %address = load ptr, ptr %from
  store ptr %address, ptr %to
  %again = icmp slt i64 %more, %count
  br i1 %again, label %next, label %out
out:
  %first = getelementptr i64, ptr %operands, i64 1
  %number = ptrtoint ptr %target to i64
  %sum = atomicrmw add ptr %first, i64 %number seq_cst
  %answer.at = getelementptr i64, ptr %operands, i64 -1
  %answer = load i64, ptr %answer.at
  ret i64 %answer
}
"""


class Held:
    __slots__ = ("array", "meaning", "more")

    def __init__(self, array, meaning):
        self.array, self.meaning = array, meaning


def kernel(name):
    return compile_.compiled(KERNELS, ["move", "wait", "table"])[name].address


def function(name="move", needs=16, size=2, **options):
    """A function over two buffers, and the numbers that its kernel uses."""
    numbers = np.zeros(size, np.int64)
    rows = [Buffer(needs, (F4, U1), written, ("meant",)) for written in (False, True)]
    holder = Holder(Held, "array", "meaning")
    made = builtin.checked(kernel(name), numbers.ctypes.data, rows, holder=holder, keep=numbers, **options)
    return made, numbers


@pytest.fixture
def soon(monkeypatch):
    """Plans whose checks are machine code after their first call."""
    monkeypatch.setattr(conversion, "OFTEN", 1)


# --- a plan with and without --------------------------------------------------------------------------------

SRC, DST = (rl.MemoryDesc((2, 3, 4), "f32", format) for format in ("abc", "cab"))
SIZE = SRC.nbytes


class Subclass(np.ndarray):
    pass


class SubTensor(rl.Tensor):
    __slots__ = ()


def numbers(count=24, dtype="f4"):
    return np.arange(count, dtype=dtype)


def tensor(buffer, desc):
    return lambda side: rl.Tensor(desc(side), buffer())


def own(side):
    return (SRC, DST)[side]


def alike(side):
    return rl.MemoryDesc((2, 3, 4), "f32", strides=own(side).strides)


def frozen(array):
    array.flags.writeable = False
    return array


def without(slot):
    def make(side):
        made = rl.Tensor(own(side), numbers())
        delattr(made, slot)
        return made

    return make


QUICK = {
    "array": lambda side: numbers(),
    "array of some shape": lambda side: numbers().reshape(1, 3, 1, 4, 2, 1),
    "long array": lambda side: numbers(99),
    "bytes": lambda side: numbers().view("u1"),
    "bytes at an odd place": lambda side: np.ones(SIZE + 1, "u1")[1:],
    "array at an odd place": lambda side: np.frombuffer(bytearray(SIZE + 1), "f4", 24, offset=1),
    "tensor": tensor(lambda: numbers().view("u1"), own),
    "tensor of floats": tensor(numbers, own),
}
READ_ONLY = {
    "read-only array": lambda side: frozen(numbers()),
    "array that warns": lambda side: np.broadcast_arrays(numbers(), numbers().reshape(1, 24))[0],
    "read-only tensor": tensor(lambda: frozen(numbers()), own),
}
OTHERS = {
    "short array": lambda side: numbers(23),
    "short bytes": lambda side: np.zeros(SIZE - 1, "u1"),
    "array with steps": lambda side: numbers(48)[::2],
    "array backwards": lambda side: numbers()[::-1],
    "array in Fortran's order": lambda side: np.asfortranarray(numbers().reshape(2, 3, 4)),
    "big-endian array": lambda side: numbers(dtype=">f4"),
    "other floats": lambda side: numbers(dtype="f8"),
    "integers": lambda side: numbers(dtype="i4"),
    "unsigned integers": lambda side: numbers(dtype="u4"),
    "big-endian unsigned integers": lambda side: numbers(dtype=">u4"),
    "objects": lambda side: numbers(dtype="O"),
    "void": lambda side: np.zeros(24, "V4"),
    "records": lambda side: np.zeros(24, [("a", "f4")]),
    "with metadata": lambda side: numbers(dtype=np.dtype("f4", metadata={"a": 1})),
    "subclass": lambda side: numbers().view(Subclass),
    "masked array": lambda side: np.ma.masked_array(numbers()),
    "0-d array": lambda side: np.zeros((), "f4"),
    "empty array": lambda side: np.zeros((0, 5), "f4"),
    "empty array of huge axes": lambda side: np.zeros((2**30, 2**30, 0), "f4"),
    "number of NumPy's": lambda side: np.float32(1),
    "bytes object": lambda side: bytes(SIZE),
    "bytearray": lambda side: bytearray(SIZE),
    "memoryview": lambda side: memoryview(bytearray(SIZE)),
    "nothing": lambda side: None,
    "text": lambda side: "x" * SIZE,
    "list": lambda side: [1.0] * 24,
    "class": lambda side: np.ndarray,
    "tensor of an equal descriptor": tensor(numbers, alike),
    "tensor of another descriptor": tensor(numbers, lambda side: own(1 - side)),
    "tensor of a subclass": lambda side: SubTensor(own(side), numbers()),
    "tensor with a short buffer": tensor(lambda: numbers(23), own),
    "tensor with steps": tensor(lambda: numbers(48)[::2], own),
    "tensor with other floats": tensor(lambda: numbers(dtype="f8"), own),
    "tensor with a list": tensor(lambda: [1.0] * 24, own),
    "tensor without a buffer": without("buffer"),
    "tensor without a descriptor": without("desc"),
}
KINDS = {**QUICK, **READ_ONLY, **OTHERS}


def contents(thing):
    if isinstance(thing, rl.Tensor):
        return contents(getattr(thing, "buffer", None))
    if isinstance(thing, np.ndarray) and thing.dtype != object:
        return thing.tobytes()
    return bytes(thing) if isinstance(thing, memoryview) else repr(thing)


def outcome(call, *given):
    """What it answers or raises, and what the buffers hold then."""
    try:
        answer = call(*given)
        answer = answer is None or answer is given[1]
    except Exception as error:
        answer = type(error), str(error)
    return answer, [contents(thing) for thing in given]


def quick_and_plain():
    """The same plan with and without its checks in machine code."""
    quick, plain = rl.Reorder(SRC, DST), rl.Reorder(SRC, DST)
    quick(numbers(), numbers())
    assert quick.plan.fast is not None
    assert plain.plan.fast is None
    return quick, plain


class TestPlans:
    def test_whatever_is_given_the_outcome_is_the_same(self, soon, tmp_path):
        mapped = {"memory map": lambda side: np.memmap(tmp_path / f"{side}", "f4", "w+", shape=24)}
        quick, plain = quick_and_plain()
        kinds = {**KINDS, **mapped}
        for one, two in product(kinds, kinds):
            made = [[kinds[kind](side) for side, kind in enumerate((one, two))] for _ in range(3)]
            fine = one in {**QUICK, **READ_ONLY} and two in QUICK
            assert quick.plan.fast(*made[0]) is fine, (one, two)
            assert outcome(quick, *made[1]) == outcome(plain, *made[2]), (one, two)

    def test_wherever_two_views_lie_the_outcome_is_the_same(self, soon):
        quick, plain = quick_and_plain()
        for shift in range(-SIZE - 3, SIZE + 4):
            at = max(0, -shift), max(0, shift)
            both = [np.arange(3 * SIZE, dtype="u1") for _ in range(2)]
            results = [
                (outcome(call, *(data[k : k + SIZE] for k in at)), contents(data))
                for call, data in zip((quick, plain), both, strict=True)
            ]
            assert results[0] == results[1], shift
            assert quick.plan.fast(*(both[0][k : k + SIZE] for k in at)) is (abs(shift) >= SIZE)

    @pytest.mark.parametrize("wrong", [(), (1,), (1, 2, 3)])
    def test_calls_of_another_form(self, soon, wrong):
        quick, plain = quick_and_plain()
        assert outcome(quick, *wrong) == outcome(plain, *wrong)
        with pytest.raises(TypeError):
            quick.plan.fast(*wrong)
        with pytest.raises(TypeError, match="keyword"):
            quick.plan.fast(numbers(), out=numbers())
        out = numbers()
        quick(src=numbers(), out=out)
        assert out[1] == 4

    @given(data=st.data())
    @examples(20)
    def test_values_of_attributes_live_as_long_as_the_function(self, data):
        scales = data.draw(st.lists(st.integers(1, 9), min_size=3, max_size=3))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conversion, "OFTEN", 1)
            made = rl.Reorder(SRC, DST, src_scale=(scales, 1))
            out = numbers()
            made(numbers(), out)
        fast = made.plan.fast
        del made
        gc.collect()
        assert fast(numbers(), out)
        expected = numbers().reshape(2, 3, 4) * np.float32(scales).reshape(1, 3, 1)
        np.testing.assert_array_equal(out.reshape(4, 2, 3).transpose(1, 2, 0), expected)

    def test_one_off_calls(self, soon):
        """They take the same way, whatever spelling the tensor has; padding and place of the result stay."""
        source = rl.tensor(np.random.default_rng(0).random((1, 17, 3, 5)).astype("f4"))
        for _ in range(9):
            made = rl.reorder(source, "nChw8c")
            np.testing.assert_array_equal(made.numpy(), source.numpy())
            assert made.buffer.ctypes.data % 64 == 0
            assert not made.buffer.view("f4").reshape(3, 15, 8)[2, :, 1:].any()
            made.buffer[:] = 255
            assert rl.reorder(source, "nChw8c", out=made) is made
            np.testing.assert_array_equal(made.numpy(), source.numpy())
            out = np.empty(made.buffer.size, "u1")
            np.testing.assert_array_equal(rl.reorder(source, "nChw8c", out=out).numpy(), source.numpy())
        assert plan._move(source.desc, None, "nChw8c", None, None, "meaning").fast is not None

    def test_copies_with_other_values_have_none(self, soon, monkeypatch):
        quick, _ = quick_and_plain()
        assert quick.plan.with_attributes(rl.Reorder(SRC, DST, src_scale=2).attributes).fast is None
        monkeypatch.setattr(builtin, "available", lambda: False)
        off = rl.Reorder(SRC, DST)
        for _ in range(3):
            off(numbers(), numbers())
        assert off.plan.fast is None


class TestPlansThatThreadsShare:
    DESCS = tuple(rl.MemoryDesc((64, 64, 64), "f32", format) for format in ("abc", "cab"))

    @pytest.fixture
    def made(self, soon, monkeypatch):
        """A plan of two threads that has been called, its source and what comes of it."""
        if not threads.native(2)[0]:
            pytest.skip("no native threads here")
        monkeypatch.setattr(threads, "busy", lambda: True)  # whether it pays is another question
        made = rl.Reorder(*self.DESCS, threads=2)
        source = np.random.default_rng(0).random((64, 64, 64)).astype("f4")
        made(source, source.copy())
        assert made.plan.fast is not None
        return made, source, np.ascontiguousarray(source.transpose(2, 0, 1))

    def test_they_do_all_parts_with_any_addresses(self, made):
        plan, source, expected = made
        for _ in range(4):
            out = np.zeros((64, 64, 64), "f4")
            assert plan.plan.fast(source, out)
            np.testing.assert_array_equal(out, expected)
        both = np.zeros(2 * source.size, "f4")
        assert not plan.plan.fast(both[: source.size], both[1 : source.size + 1])

    def test_more_callers_than_there_is_room_for(self, made):
        plan, source, expected = made
        found = [np.zeros((64, 64, 64), "f4") for _ in range(24)]

        def several(out):
            for _ in range(20):
                plan(source, out)

        callers = [threading.Thread(target=several, args=(out,)) for out in found]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        for out in found:
            np.testing.assert_array_equal(out, expected)

    def test_another_number_of_threads_goes_another_way(self, made, monkeypatch):
        plan, source, expected = made
        assert plan.plan.hastened(1) is None
        assert plan.plan.hastened(2) is plan.plan.hastened(None) is plan.plan.fast
        out = np.zeros((64, 64, 64), "f4")
        plan(source, out, threads=1)
        np.testing.assert_array_equal(out, expected)
        with pytest.raises(rl.LayoutError, match="threads"):
            plan(source, out, threads=0)
        monkeypatch.setenv("RELAYOUT_THREADS", "2")
        usual = rl.Reorder(*self.DESCS)
        usual(source, out)
        assert usual.plan.fast(source, out)
        monkeypatch.setenv("RELAYOUT_THREADS", "1")
        assert not usual.plan.fast(source, out)


# --- functions ----------------------------------------------------------------------------------------------


@given(data=st.data())
@examples(100)
def test_any_number_of_buffers(data):
    """They are apart wherever one of two is written, or begin together and share, or nothing happens.

    The kernel gets every address, and the function answers what it does.
    """
    kinds = st.tuples(st.integers(0, 20), st.booleans(), st.booleans())
    rows = data.draw(st.lists(kinds, min_size=1, max_size=builtin.MOST))
    answer = data.draw(st.sampled_from((0, 1, 2, 1 << 40)))
    memory = np.zeros(200, "u1")
    views = []
    for needs, *_ in rows:
        start = data.draw(st.integers(0, 170) | st.sampled_from((0, 100)))
        views.append(memory[start : start + data.draw(st.integers(max(0, needs - 1), 24))])
    whole = np.zeros(2 + builtin.MOST, np.int64)
    whole[0], given_numbers = answer, whole[1:]
    given_numbers[0] = len(rows)
    made = builtin.checked(
        kernel("table"),
        given_numbers.ctypes.data,
        [Buffer(needs, (U1,), written, shares=shares) for needs, written, shares in rows],
        keep=given_numbers,
        together=True,
    )
    places = [view.ctypes.data for view in views]
    ends = [place + view.size for place, view in zip(places, views, strict=True)]
    clash = any(
        (rows[i][1] or rows[j][1])
        and places[i] < ends[j]
        and places[j] < ends[i]
        and not (places[i] == places[j] and (rows[i][2] or rows[j][2]))
        for i in range(len(rows))
        for j in range(i)
    )
    fine = not clash and all(view.size >= row[0] for view, row in zip(views, rows, strict=True))
    assert made(*views) == (answer if fine else 0)
    assert given_numbers[1 : 1 + len(rows)].tolist() == (places if fine else [0] * len(rows))
    for wrong in (views[1:], [*views, memory]):
        with pytest.raises(TypeError):
            made(*wrong)


def test_numbers_of_buffers_that_no_kernel_takes():
    row = Buffer(1, (U1,))
    for count, together in ((1, False), (3, False), (0, True), (builtin.MOST + 1, True)):
        with pytest.raises(ValueError, match="a kernel takes 2 buffers"):
            builtin.checked(0, 0, [row] * count, together=together)


def test_what_arguments_mean():
    """Arrays by themselves only where they are wanted; holders that mean one of two things."""
    numbers = np.zeros(2, np.int64)
    one, two = object(), object()
    for meanings, bare in product(((), (one,), (one, two)), (False, True)):
        rows = [Buffer(16, (U1,), written, meanings) for written in (False, True)]
        holder = Holder(Held, "array", "meaning")
        made = builtin.checked(kernel("move"), numbers.ctypes.data, rows, holder=holder, bare=bare)
        arrays = np.zeros((2, 16), "u1")
        assert made(*arrays) is bare
        for says in product((one, two, None), repeat=2):
            given = [Held(array, said) for array, said in zip(arrays, says, strict=True)]
            assert made(*given) is all(said in meanings for said in says)


def test_no_reference_is_lost_or_kept():
    made, numbers = function()
    good, out, fixed = np.zeros(4, "f4"), np.zeros(4, "f4"), frozen(np.zeros(4, "f4"))
    calls = [(good, out), (Held(good, "meant"), Held(out, "meant")), (good, good), (good, fixed)]
    calls += [(None, out), (good, None), (Held(None, "meant"), out), (Held(good, fixed), out)]
    whole = [good, out, fixed, made, made.__self__, good.dtype, np.ndarray, Held, None, True, False]
    own = 5

    def counts():
        return [sys.getrefcount(thing) for thing in whole]

    def run(turns):
        for _ in range(turns):
            for one, two in calls:
                made(one, two)

    def refused(turns):
        for _ in range(turns):
            with pytest.raises(TypeError):
                made(good)

    run(3)
    refused(3)
    gc.collect()
    before, turns = counts(), 100_000 // len(calls)
    run(turns)
    refused(1000)
    gc.collect()
    changes = [after - old for after, old in zip(counts(), before, strict=True)]
    assert changes[:own] == [0] * own
    assert all(abs(change) < 500 for change in changes)  # others use these, too
    assert numbers[0] == 2 * (turns + 3)


def test_a_function_keeps_what_it_needs_and_no_longer():
    class Owner:
        pass

    owner = Owner()
    there = weakref.ref(owner)
    rows = [Buffer(16, (U1,)), Buffer(16, (U1,), True)]
    numbers = np.zeros(1, np.int64)
    made = builtin.checked(kernel("move"), numbers.ctypes.data, rows, keep=owner)
    del owner
    gc.collect()
    assert there() is not None
    del made
    gc.collect()
    assert there() is None


def test_an_array_that_is_exchanged_while_the_kernel_runs():
    """The kernel runs without the interpreter's lock; what it reads must not be freed meanwhile."""
    made, numbers = function("wait")
    held = [Held(np.full(16, value, "u1"), "meant") for value in (7, 0)]
    old = [weakref.ref(one.array) for one in held]
    target = held[1].array
    answers = []
    caller = threading.Thread(target=lambda: answers.append(made(*held)))
    caller.start()
    while not numbers[0]:
        time.sleep(0.001)
    for one in held:
        one.array = np.zeros(16, "u1")
    gc.collect()
    assert old[0]() is not None
    numbers[1] = 1
    caller.join()
    assert answers == [True]
    assert target.tolist() == [7] * 16
    assert old[0]() is None
    assert not held[1].array.any()


def test_many_threads():
    made, numbers = function()
    wrong, ended = [], threading.Event()

    def churn():
        while not ended.is_set():
            [np.ones(n, "u1") for n in range(1, 400)]

    def work(k):
        for turn in range(1000):
            source, out = np.full(16, (k + turn) % 256, "u1"), np.zeros(4, "f4")
            given = (source, out) if turn % 2 else (Held(source, "meant"), Held(out, "meant"))
            if made(*given) is not True or (out.view("u1") != source).any():
                wrong.append((k, turn))

    other = threading.Thread(target=churn)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in (other, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    other.join()
    assert not wrong
    assert numbers[0] == 8000


PROCESS = """
    import gc, os, sys, threading, warnings
    import numpy as np
    import relayout as rl

    conversion = sys.modules["relayout.reorder.conversion"]
    conversion.OFTEN = 1
    src, dst = (rl.MemoryDesc((2, 3, 4), "f32", format) for format in ("abc", "cab"))
    move = rl.Reorder(src, dst)
    source, out = np.arange(24, dtype="f4"), np.zeros(24, "f4")

    def works():
        out[:] = 0
        move(source, out)
        return move.plan.fast is not None and out[1] == 4

    assert works() and works()
    for turn in range(3000):
        one, two = np.arange(24, dtype="f4") + turn, np.empty(24, "f4")
        move(rl.Tensor(src, one.view("u1")), two)
        assert two[1] == 4 + turn
        for bad in (None, one[:5], one[::2], "x"):
            assert move.plan.fast(bad, two) is move.plan.fast(one, bad) is False
        if turn % 500 == 0:
            gc.collect()
            other = rl.Reorder(src, dst, src_scale=turn + 1)
            other(one, two)
            assert other.plan.fast(one, two) and two[1] == (4 + turn) * (turn + 1)
    if hasattr(os, "fork"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            os._exit(0 if works() else 1)
        assert os.waitpid(child, 0)[1] == 0

    def for_ever():
        mine = np.empty(24, "f4")
        while True:
            move(source, mine)

    for _ in range(4):  # they are inside when the interpreter ends
        threading.Thread(target=for_ever, daemon=True).start()
    print("done")
"""


@pytest.mark.parametrize("options", [["-X", "dev"], []])
def test_a_process_from_beginning_to_end(options, tmp_path):
    """With Python's allocator for debugging, after a fork, and with threads inside to the end."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROCESS))
    done = subprocess.run(
        [sys.executable, *options, script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    "triple",
    ["aarch64-unknown-linux-gnu", "arm64-apple-darwin", "x86_64-apple-darwin", "x86_64-pc-windows-msvc"],
)
def test_code_for_other_systems_is_assembled(triple):
    machine = importlib.import_module("relayout.targets.machine").machine
    other = machine("x86-64-v2" if triple.startswith("x86") else "neoverse-n1", triple)
    assert compile_.assemble(checks.ir(), other, 0)


# --- the proof ----------------------------------------------------------------------------------------------


def remade():
    """What would be made in a process like this one."""
    return builtin._maker.__wrapped__()


def test_elsewhere_there_are_none(monkeypatch):
    assert remade() is not None
    for module, name, value in (
        (sys, "gettotalrefcount", int),
        (sys, "getobjects", list),
        (compile_, "available", lambda: False),
        (compile_, "loaded", lambda *ignored, **options: 1 / 0),
        (checks, "API", {**checks.API, "save": "PyNo_SuchThing"}),
        (sys.implementation, "name", "pypy"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value, raising=False)
            assert remade() is None, name


@pytest.mark.parametrize("left_out", ["data", "nd", "dims", "strides", "base", "descr"])
def test_another_struct_is_found_out_before_any_code_runs(left_out, monkeypatch):
    class Other(ctypes.Structure):
        _fields_ = tuple(field for field in checks.Array._fields_ if field[0] != left_out)

    for name in ("data", "nd", "dims", "descr"):
        if not hasattr(Other, name):
            setattr(Other, name, Other.flags)
    monkeypatch.setattr(checks, "Array", Other)
    monkeypatch.setattr(compile_, "loaded", lambda *ignored, **options: pytest.fail("code was made"))
    assert remade() is None


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("icmp uge i64 %bytes, %needs", "icmp ule i64 %bytes, %needs"),
        ("icmp uge i64 %bytes, %needs", "icmp ugt i64 %bytes, %needs"),
        ("icmp eq i64 %masked, %want", "icmp eq i64 %masked, %masked"),
        ("icmp eq i64 %descr, %dtype", "icmp ne i64 %descr, %dtype"),
        ("icmp eq i64 %descr, %other.dtype", "icmp eq i64 %descr, 0"),
        ("icmp eq i64 %type, %bare.type", "icmp eq i64 %type, %array.type"),
        ("icmp eq i64 %says, %wanted", "icmp eq i64 %says, %says"),
        ("icmp eq i64 %says, %also", "icmp eq i64 %says, %wanted"),
        ("icmp eq i64 %says, %also", "icmp eq i64 %says, %says"),
        ("[$ROW_SIZE, %kind], [$ROW_OTHER_SIZE, %second]", "[$ROW_OTHER_SIZE, %kind], [$ROW_SIZE, %second]"),
        ("and i1 %written, %crossing", "and i1 %written, false"),
        ("icmp ne i64 %sharing, 0", "icmp eq i64 %sharing, 0"),
        ("icmp ne i64 %sharing, 0", "icmp eq i64 0, 0"),
        ("or i64 %shares, %j.shares", "add i64 %shares, 0"),
        ("and i1 %may, %there", "and i1 %may, true"),
        ("and i1 %may, %there", "and i1 %may, false"),
        ("icmp ult i64 %j.from, %to", "icmp ugt i64 %j.from, %to"),
        ("phi i32 [0, %sized]", "phi i32 [1, %sized]"),
        ("call void %freeing(ptr %freed)", "call void %holding(ptr %freed)"),
        ("call void %kernel(ptr %one, ptr %two,", "call void %kernel(ptr %two, ptr %one,"),
        ("call i64 %kernel(ptr %froms,", "call i64 %kernel(ptr %tos,"),
        ("[%told, %table], [1, %pair]", "[%told, %table], [0, %pair]"),
        ("[%told, %table], [1, %pair]", "[1, %table], [1, %pair]"),
        ("call ptr %answering(i64 0)", "call ptr %answering(i64 1)"),
    ],
)
def test_wrong_code_is_found_out(right, wrong, monkeypatch):
    assert right in checks.CODE.template
    monkeypatch.setattr(checks, "CODE", Template(checks.CODE.template.replace(right, wrong)))
    assert remade() is None


def test_slots_are_found_and_nothing_else():
    assert len({builtin._offset(Held, slot) for slot in Held.__slots__}) == 3

    class Open:
        array = meaning = None

    class Hidden:
        @property
        def array(self):
            return None

        @array.setter
        def array(self, value):
            self.other = value

    for cls in (Open, Hidden):
        with pytest.raises(TypeError, match="is no slot"):
            builtin._offset(cls, "array")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")
def test_the_code_comes_from_the_disk(tmp_path):
    """One entry on disk serves all processes: its name depends on nothing of this one."""
    code = "from relayout.runtime import builtin; print(builtin.available())"
    environment = {**os.environ, "RELAYOUT_CACHE": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
        )
        assert done.stdout == "True\n"
        assert len([entry for entry in tmp_path.iterdir() if not entry.name.startswith("host-")]) == 1
