"""Primitives that have been called often: the function says yes only where the checks in Python would.

Each primitive is compared with a twin that has no function, over whatever can be given to it: the answer or
the error, and what all buffers hold afterwards.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading

import numpy as np
import pytest

import relayout as rl
from processes import is_done
from relayout import LayoutError, MemoryDesc
from relayout.ops.post_ops import Sum as Added
from relayout.primitives import (
    BatchNormalization,
    Binary,
    Concat,
    Convolution,
    Eltwise,
    InnerProduct,
    Matmul,
    Pooling,
    Softmax,
    Sum,
)

pytest.importorskip("relayout.jit.compile")
builtin = importlib.import_module("relayout.runtime.builtin")
prepared = importlib.import_module("relayout.runtime.prepared")
calling = importlib.import_module("relayout.primitives.calling")
pool = importlib.import_module("relayout.runtime.pool")
threads = importlib.import_module("relayout.runtime.threads")

pytestmark = pytest.mark.skipif(
    not builtin.available() or prepared._code() is None, reason="no functions in machine code here"
)


def f32(*dims, format="nhwc"):
    return MemoryDesc(dims, "f32", format)


SRC, WEIGHTS = f32(1, 16, 6, 5), f32(24, 16, 3, 3, format="oihw")
WIDE = MemoryDesc((2, 64, 28, 28), "f32", "nhwc")
MAKERS = {
    "convolution": lambda: Convolution(SRC, f32(24, 16, 3, 3, format=rl.any), f32(24, format="a"), padding=1),
    "weights packed in each call": lambda: Convolution(SRC, WEIGHTS, padding=1, post_ops="relu"),
    "sum after it": lambda: Convolution(SRC, f32(24, 16, 3, 3, format=rl.any), post_ops=(Added(), "relu")),
    "shared": lambda: Convolution(WIDE, f32(64, 64, 3, 3, format=rl.any), padding=1),
    "inner product": lambda: InnerProduct(f32(3, 20, format="ab"), f32(7, 20, format=rl.any)),
    "matmul": lambda: Matmul(f32(5, 6, format="ab"), f32(6, 7, format="ba")),
    "relu": lambda: Eltwise(SRC, "relu"),
    "shared relu": lambda: Eltwise(f32(8, 64, 56, 56), "relu"),
    "bias": lambda: Binary("add", SRC, f32(1, 16, 1, 1)),
    "other format": lambda: Binary("mul", SRC, f32(1, 16, 6, 5, format="nchw")),
    "scaled sum": lambda: Sum([SRC] * 3, scales=(1, 2, 3)),
    "softmax": lambda: Softmax(SRC),
    "pooling": lambda: Pooling(SRC, "max", 2),
    "normalisation": lambda: BatchNormalization(SRC),
    "concat": lambda: Concat([SRC, f32(1, 16, 6, 5, format="nChw8c")], 1),
}


@pytest.fixture
def soon(monkeypatch):
    """Functions after the first call."""
    monkeypatch.setattr(calling, "OFTEN", 1)


def filled(desc, seed=0):
    buffer = np.zeros(max(desc.required_bytes, desc.nbytes), np.uint8)
    values = np.random.default_rng(seed).random(buffer.size // 4).astype(np.float32)
    buffer[: values.nbytes] = values.view(np.uint8)
    return rl.Tensor(desc, buffer)


def arguments(primitive, seed=0):
    return [filled(primitive.descs[name], seed + k) for k, name in enumerate(primitive.inputs)]


def plain(make):
    """A primitive that never has a function."""
    made = make()
    made._compiled()
    made._calling = None
    return made


def quick(make, number=1):
    """One that has a function for so many threads."""
    made = make()
    made._compiled()
    made(*arguments(made), out=filled(made.dst), threads=number)
    assert made._calling.quick(arguments(made), filled(made.dst), number) is not None
    return made


class TestResults:
    @pytest.mark.parametrize("number", [1, 2, None])
    @pytest.mark.parametrize("name", MAKERS)
    def test_they_are_those_of_a_primitive_without_a_function(self, soon, name, number):
        fast, slow = quick(MAKERS[name], number), plain(MAKERS[name])
        for seed in (1, 2):
            given = arguments(fast, seed)
            one, two = filled(fast.dst, seed), filled(fast.dst, seed)
            before = [tensor.buffer.copy() for tensor in given]
            assert fast._calling.quick(tuple(given), one, number) is one
            assert slow(*given, out=two, threads=number) is two
            assert one.buffer.tobytes() == two.buffer.tobytes()
            assert all((old == tensor.buffer).all() for old, tensor in zip(before, given, strict=True))

    @pytest.mark.parametrize("name", MAKERS)
    def test_destinations_that_nobody_has_given(self, soon, name):
        fast, slow = quick(MAKERS[name]), plain(MAKERS[name])
        given = arguments(fast, 3)
        if fast.accumulates:
            with pytest.raises(LayoutError, match="no out was given"):
                fast(*given)
            return
        made = fast._calling.quick(tuple(given), None, 1)
        assert made.desc is fast.dst
        assert made.buffer.ctypes.data % 64 == 0
        assert made.buffer.tobytes() == slow(*given).buffer.tobytes()

    def test_arguments_by_name_are_arguments_in_another_order(self, soon):
        add = MAKERS["bias"]()
        x, y = arguments(add)
        first, second = add.inputs
        expected = add(x, y).buffer.tobytes()
        add(**{second: y, first: x})
        assert add._calling._functions != {}
        for given, named in (((), {second: y, first: x}), ((x,), {second: y}), ((x, y), {})):
            assert add(*given, **named).buffer.tobytes() == expected
        for given, named in (((x,), {first: y}), ((x, y), {second: y}), ((x,), {}), ((x,), {"z": y})):
            with pytest.raises(rl.LayoutError, match=r"twice|takes|needs|none of"):
                add(*given, **named)

    def test_what_is_called_seldom_has_none(self):
        relu = MAKERS["relu"]()
        [x], out = arguments(relu), filled(relu.dst)
        for _ in range(calling.OFTEN + 2):
            relu(x.numpy(), out=out)
            relu(x, out=out.buffer)
        assert relu._calling._functions == {}
        for k in range(calling.OFTEN):
            assert relu._calling._functions == {}, k
            relu(x, out=out)
        assert relu._calling._functions != {}

    def test_nothing_is_made_where_there_is_no_machine_code_for_it(self, soon, monkeypatch):
        monkeypatch.setattr(builtin, "available", lambda: False)
        relu = MAKERS["relu"]()
        [x] = arguments(relu)
        for _ in range(3):
            np.testing.assert_array_equal(relu(x).numpy(), x.numpy())
        assert relu._calling._functions == {}


# --- whatever is given --------------------------------------------------------------------------------------


def equal(desc):
    """The same descriptor, but another object."""
    return MemoryDesc(desc.dims, desc.dtype, strides=desc.strides)


def frozen(tensor):
    tensor.buffer.flags.writeable = False
    return tensor


def with_buffer(change):
    return lambda desc: rl.Tensor(desc, change(filled(desc).buffer))


def without(slot):
    def make(desc):
        made = filled(desc)
        delattr(made, slot)
        return made

    return make


class SubTensor(rl.Tensor):
    __slots__ = ()


GOOD = {
    "tensor": filled,
    "long buffer": with_buffer(lambda data: np.append(data, np.zeros(9, np.uint8))),
    "buffer at an odd place": with_buffer(lambda data: np.append(np.uint8(0), data)[1:]),
    "two axes": with_buffer(lambda data: data.reshape(2, -1)),
}
READ_ONLY = {"read-only": lambda desc: frozen(filled(desc))}
OTHERS = {
    "an equal descriptor": lambda desc: filled(equal(desc)),
    "another descriptor": lambda desc: filled(MemoryDesc(desc.dims, "f32", "nchw")),
    "other dims": lambda desc: filled(f32(1, 2, 3, 4)),
    "another type": lambda desc: filled(MemoryDesc(desc.dims, "s32", "nhwc")),
    "a subclass": lambda desc: SubTensor(desc, filled(desc).buffer),
    "short buffer": with_buffer(lambda data: data[:-1]),
    "empty buffer": with_buffer(lambda data: data[:0]),
    "floats": with_buffer(lambda data: data.view("f4")),
    "steps": with_buffer(lambda data: np.repeat(data, 2)[::2]),
    "no array": with_buffer(bytes),
    "no buffer": without("buffer"),
    "no descriptor": without("desc"),
    "logical array": lambda desc: filled(desc).numpy(),
    "physical bytes": lambda desc: filled(desc).buffer,
    "list": lambda desc: filled(desc).numpy().tolist(),
    "number": lambda desc: 3,
    "text": lambda desc: "x",
    "class": lambda desc: rl.Tensor,
}
KINDS = {**GOOD, **READ_ONLY, **OTHERS}


def contents(thing):
    if isinstance(thing, rl.Tensor):
        return str(getattr(thing, "desc", "")), contents(getattr(thing, "buffer", None))
    return thing.tobytes() if isinstance(thing, np.ndarray) else repr(thing)


def outcome(primitive, given, out, **options):
    """What it returns or raises, and what all buffers hold then."""
    try:
        answer = contents(primitive(*given, out=out, **options))
    except Exception as error:
        answer = type(error), str(error)
    return answer, [contents(thing) for thing in (*given, out)]


def make_bias():
    """Small, and both inputs have descriptors of their own."""
    return Binary("add", f32(1, 3, 2, 2), f32(1, 3, 1, 1))


class TestWhateverIsGiven:
    def test_the_outcome_is_the_same(self, soon):
        fast, slow = quick(make_bias), plain(make_bias)
        descs = list(fast.descs.values())
        for place, kind in [(place, kind) for place in range(3) for kind in KINDS]:
            both = []
            for _ in range(3):
                given = [KINDS[kind if k == place else "tensor"](desc) for k, desc in enumerate(descs)]
                both.append((given[:2], given[2]))
            known = kind in {**GOOD, **READ_ONLY} if place < 2 else kind in GOOD
            assert (fast._calling.quick(*both[0], 1) is not None) is known, (place, kind)
            fast_and_slow = [outcome(one, *pair) for one, pair in zip((fast, slow), both[1:], strict=True)]
            assert fast_and_slow[0] == fast_and_slow[1], (place, kind)

    @pytest.mark.parametrize(
        "number", [1, 2, True, np.int64(2), 10**30, 0, -1, True - 1.0, 1.0, 2.5, "1", [1], None]
    )
    @pytest.mark.parametrize("name", ["relu", "shared relu"])
    def test_numbers_of_threads(self, soon, name, number):
        fast, slow = quick(MAKERS[name]), plain(MAKERS[name])
        found = [outcome(one, arguments(one), filled(one.dst), threads=number) for one in (fast, slow)]
        assert found[0] == found[1]

    def test_arguments_of_another_form(self, soon):
        fast, slow = quick(make_bias), plain(make_bias)
        x, y = arguments(fast)
        for given, named in [
            ((), {}),
            ((x,), {}),
            ((x, y, y), {}),
            ((x,), {"src1": y}),
            ((), {"src0": x, "src1": y}),
            ((x, y), {"src1": y}),
            ((x, y), {"other": y}),
        ]:
            found = [outcome(one, given, filled(one.dst), **named) for one in (fast, slow)]
            assert found[0] == found[1], (len(given), list(named))

    def test_wherever_the_destination_lies(self, soon):
        """It may be the first source, but not overlap it, nor the second at all."""
        fast, slow = quick(make_bias), plain(make_bias)
        sizes = [desc.nbytes for desc in fast.descs.values()]
        room = sum(sizes)
        for which in (0, 1):
            for shift in range(-sizes[2] - 2, sizes[which] + 3):
                found = []
                for one in (fast, slow):
                    whole = np.resize(filled(fast.dst).buffer, 3 * room)
                    at = [2 * room, 2 * room, room + shift]
                    at[which] = room
                    tensors = [
                        rl.Tensor(desc, whole[start : start + size])
                        for start, size, desc in zip(at, sizes, fast.descs.values(), strict=True)
                    ]
                    found.append((outcome(one, tensors[:2], tensors[2]), whole.tobytes()))
                assert found[0] == found[1], (which, shift)

    def test_in_place(self, soon):
        """Where the source has been the destination before: each has a descriptor of its own, else."""
        add, slow = make_bias(), plain(make_bias)
        for seed in range(4):
            x, y = arguments(add, seed)
            expected = slow(x, y).buffer.tobytes()
            if seed < 2:
                assert add(x, y, out=x, threads=1) is x
            else:
                assert add._calling.quick((x, y), x, 1) is x
            assert x.buffer.tobytes() == expected

    def test_errors_after_many_good_calls(self):
        conv = MAKERS["convolution"]()
        x, w, b = arguments(conv)
        y = filled(conv.dst)
        for _ in range(100):
            assert conv(x, w, b, out=y, threads=1) is y
        assert conv._calling._functions != {}
        whole = np.zeros(x.buffer.size + y.buffer.size, np.uint8)
        beside = rl.Tensor(x.desc, whole[: x.buffer.size]), rl.Tensor(y.desc, whole[x.buffer.size - 1 :])
        for given, out, message in [
            ((filled(MemoryDesc(SRC.dims, "f32", "nchw")), w, b), y, "src must be"),
            ((rl.Tensor(x.desc, x.buffer[:-1]), w, b), y, "its buffer has"),
            ((x, w, b), rl.Tensor(y.desc, y.buffer[:-1]), "dst .* needs"),
            ((x, w, b), frozen(filled(conv.dst)), "read-only"),
            ((beside[0], w, b), beside[1], "overlap"),
        ]:
            with pytest.raises(LayoutError, match=message):
                conv(*given, out=out, threads=1)
        assert conv(x, w, b, out=y, threads=1) is y


class TestWhoCalls:
    def test_equal_descriptors_are_known_by_and_by(self, monkeypatch):
        """With those of the primitive they may be mixed, and others take their places."""
        monkeypatch.setattr(calling, "OFTEN", 2)
        relu = MAKERS["relu"]()
        for _ in range(3):
            desc = equal(SRC)
            for _ in range(20):
                relu(filled(desc), out=filled(desc))
            for one in (desc, relu.src):
                for other in (desc, relu.dst):
                    assert relu._calling.quick((filled(one),), filled(other), 1) is not None
        assert len(relu._calling._plans) == 1

    def test_the_environment_may_change(self, soon, monkeypatch):
        fast = MAKERS["shared relu"]()
        [x], out = arguments(fast), filled(fast.dst)
        fast(x, out=out)
        for number in ("1", "2", "1"):
            monkeypatch.setenv("RELAYOUT_THREADS", number)
            fast(x, out=out)
            assert int(number) in fast._calling._functions
            assert fast(x, out=out) is out
        monkeypatch.setenv("RELAYOUT_THREADS", "many")
        with pytest.raises(LayoutError, match="RELAYOUT_THREADS='many'"):
            fast(x, out=out)

    @pytest.mark.parametrize("room", [1, calling.ROOM])
    @pytest.mark.parametrize("number", [1, 2])
    @pytest.mark.parametrize("name", ["weights packed in each call", "shared", "bias"])
    def test_several_threads_of_python_at_once(self, soon, monkeypatch, name, number, room):
        """With scratch for one call only, too: the others are done in Python meanwhile."""
        monkeypatch.setattr(calling, "ROOM", room)
        fast, slow = quick(MAKERS[name], number), plain(MAKERS[name])
        given = [arguments(fast, seed) for seed in range(4)]
        expected = [slow(*tensors).buffer.tobytes() for tensors in given]
        wrong = []

        def work(k):
            for turn in range(40):
                out = filled(fast.dst, turn)
                fast(*given[k], out=out, threads=number)
                if out.buffer.tobytes() != expected[k]:
                    wrong.append((k, turn))

        callers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not wrong

    def test_functions_live_as_long_as_the_primitive_and_need_it_no_longer(self, soon):
        made = quick(MAKERS["weights packed in each call"])
        given, out = arguments(made, 5), filled(made.dst)
        expected = made(*given).buffer.tobytes()
        function = made._calling._functions[1]
        del made
        assert function(*given, out) == prepared.DONE
        assert out.buffer.tobytes() == expected

    @pytest.mark.parametrize("number", [1, 2])
    def test_steps_are_shared_among_as_many_threads_as_may_work(self, soon, number):
        fast = quick(MAKERS["shared"], number)
        taken = ctypes.c_int64.from_address(threads.native(2)[0] + pool.FIELDS["NEXT"])
        taken.value = 0
        assert fast._calling.quick(tuple(arguments(fast)), filled(fast.dst), number) is not None
        assert (taken.value > 0) is (number > 1)


def test_concat_in_place_still_moves_nothing(soon):
    dst = MemoryDesc((1, 48, 2, 2), "f32", "nChw16c")
    result = filled(dst)
    x, y = result.parts(1, (16, 32))
    both = Concat([x.desc, y.desc], 1, dst)
    before = result.buffer.copy()
    for _ in range(3):
        assert both(x, y, out=result) is result
    assert (before == result.buffer).all()


PROCESS = """
    import os, sys, threading

    sys.path.insert(0, sys.argv[1])
    import test_calling as t

    t.calling.OFTEN = 1
    made = {name: t.MAKERS[name]() for name in ("shared", "weights packed in each call")}
    given = {name: t.arguments(one) for name, one in made.items()}
    expected = {name: t.plain(t.MAKERS[name])(*given[name]).buffer.tobytes() for name in made}

    def works(quickly):
        for name, one in made.items():
            for number in (1, 2):
                out = t.filled(one.dst, 7)
                one(*given[name], out=out, threads=number)
                if out.buffer.tobytes() != expected[name]:
                    return False
                if quickly and one._calling.quick(given[name], out, number) is None:
                    return False
        return True

    ended = threading.Event()

    def busy():  # inside at the moment of the fork
        while not ended.is_set():
            for name, one in made.items():
                one(*given[name], out=t.filled(one.dst), threads=2)

    assert works(False) and works(True)
    threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        child = os.fork()
        if not child:
            os._exit(0 if works(False) and works(True) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert works(False)
    print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_that_forks_and_ends_with_threads_inside(tmp_path):
    is_done(tmp_path, PROCESS)
