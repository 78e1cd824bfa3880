"""Sequences: what is run is what the definitions say, however values share memory."""

from __future__ import annotations

import importlib
import mmap
import os
import threading
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import LayoutError
from relayout.ops.operation import Operation
from relayout.primitives import Binary, Convolution, Reorder, Sequence
from relayout.primitives.memory import ALIGNED, Span, arranged
from relayout.primitives.primitive import Primitive
from relayout.primitives.program import Program, Step
from relayout.tensor import LARGE, allocate
from strategies import examples

driver = importlib.import_module("relayout.runtime.driver")
sharing = importlib.import_module("relayout.runtime.threads")
storages = importlib.import_module("relayout.primitives.storages")
compile_ = pytest.importorskip("relayout.jit.compile")

DIMS = (2, 20, 3, 2)
FORMATS = ("nchw", "nhwc", "nChw16c")

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
machine_code = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


def desc(format="nchw", dims=DIMS):
    return rl.MemoryDesc(dims, "f32", format)


def values(seed=0, dims=DIMS):
    return np.random.default_rng(seed).integers(-4, 5, dims).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Sum(Operation):
    """a + 2 b; on request with what dst held."""

    adds: bool

    @property
    def accumulates(self):
        return ("dst",) * self.adds

    def compute(self, a, b, dst=0):
        return a + 2 * b + dst


class Toy(Primitive):
    """a + 2 b, all of one descriptor; on request with scratch, with what dst held, or without a program."""

    kind = "toy"

    def __init__(self, which, in_place=(), adds=False, parts=1, scratch=False, native=True):
        self._settle(Sum, {"a": which, "b": which}, {"dst": which}, adds=adds)
        self.in_place, self.adds, self.parts = {"dst": in_place}, adds, parts
        self.scratch, self.native = scratch, native

    def _lower(self):
        if not self.native:
            return None
        size = self.dst.nbytes
        kernels = compile_.compiled(kernel_ir(size // 4, self.adds), ["toy", "copy"])
        toy, copy = kernels["toy"], kernels["copy"]
        if not self.scratch:
            return Program((Step(toy, "a", "dst", ("b",), self.parts, True),))
        first = Step(copy, "b", "spare", "a", self.parts, True)
        return Program((first, Step(toy, "a", "dst", ("spare",), self.parts, True)), {"spare": size})


def kernel_ir(count, adds):
    """Two kernels over so many floats: of a list of one operand, and a copy."""
    return "".join(
        f"""
define void @{name}(ptr %a, ptr %dst, ptr %ops, i64 %part, i64 %parts) {{
entry:
  %b = load ptr, ptr %ops
  br label %head
head:
  %i = phi i64 [%part, %entry], [%next, %body]
  %more = icmp slt i64 %i, {count}
  br i1 %more, label %body, label %out
body:
  %a.at = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %a.at
  %to = getelementptr float, ptr %dst, i64 %i
{body}
  store float %y, ptr %to
  %next = add i64 %i, %parts
  br label %head
out:
  ret void
}}"""
        for name, body in (
            ("copy", "  %y = fadd float %x, 0.0"),
            (
                "toy",
                "  %b.at = getelementptr float, ptr %b, i64 %i\n  %z = load float, ptr %b.at\n"
                "  %w = fmul float %z, 2.0\n  %v = fadd float %x, %w\n"
                f"  %old = load float, ptr %to\n  %y = fadd float %v, {'%old' if adds else '0.0'}",
            ),
        )
    )


# --- memory ------------------------------------------------------------------------------------------------

spans = st.lists(
    st.builds(
        lambda size, first, length: Span(size, first, first + length),
        st.integers(0, 1000),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=30,
)


@given(spans)
@examples(100)
def test_what_is_alive_together_lies_apart(given):
    memory = arranged(given)
    places = list(zip(given, memory.offsets, strict=True))
    for k, (one, at) in enumerate(places):
        assert at % ALIGNED == 0
        assert at + one.size <= memory.peak
        for other, there in places[:k]:
            if one.meets(other) and one.size and other.size:
                assert at + one.size <= there or there + other.size <= at
    assert memory.bound <= memory.peak <= memory.total


def test_chains_take_what_is_alive_at_once():
    memory = arranged([Span(640 * (k % 7 + 1), k, k + 1) for k in range(40)])
    assert memory.peak == memory.bound


# --- runs --------------------------------------------------------------------------------------------------


@st.composite
def sequences(draw):
    """Toys that read whatever is there, in all the ways in which memory can be shared."""
    seq = Sequence()
    known = [seq.input(name, desc(draw(st.sampled_from(FORMATS)))) for name in "xy"]
    known.append(seq.constant(values(7)))
    for _ in range(draw(st.integers(1, 9))):
        adds = draw(st.booleans())
        toy = Toy(
            desc(draw(st.sampled_from(FORMATS))),
            in_place=draw(st.sampled_from([(), ("a",), ("a", "b")])),
            adds=adds,
            parts=draw(st.sampled_from([1, 3])),
            scratch=draw(st.booleans()),
            native=draw(st.sampled_from([True, True, True, False])),
        )
        pick = st.sampled_from(known)
        given = {"a": draw(pick), "b": draw(pick)} | ({"dst": draw(pick)} if adds else {})
        known.append(seq.add(toy, **given))
        if draw(st.booleans()) and draw(st.booleans()):
            known.append(seq.reorder(seq.reshape(draw(pick), DIMS), desc(draw(st.sampled_from(FORMATS)))))
    for value in draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)):
        seq.output(value)
    return seq


def given_tensors(seq, seed=0):
    return [rl.tensor(values(seed + k), one.desc) for k, one in enumerate(seq.inputs)]


def same(found, wanted):
    """One output or several, exactly; and padding that is zero."""
    found, wanted = ((one,) if not isinstance(one, tuple) else one for one in (found, wanted))
    for made, array in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(made.numpy(), array)
        assert np.array_equal(made.buffer, rl.tensor(array.astype(np.float32)).reorder(made.desc).buffer)


@given(sequences(), st.sampled_from([1, 3]))
@examples(60)
def test_a_run_is_what_the_definitions_say(seq, threads):
    run = seq.compile(threads)
    tensors = given_tensors(seq)
    kept = [one.buffer.copy() for one in tensors]
    wanted = seq.reference(*tensors)
    same(run(*tensors), wanted)
    others = given_tensors(seq, 50)  # inputs and outputs lie elsewhere now
    same(run(*others), seq.reference(*others))
    same(run(*tensors), wanted)
    assert all(np.array_equal(one.buffer, old) for one, old in zip(tensors, kept, strict=True))
    assert run.memory.peak >= run.memory.bound


@given(sequences())
@examples(10)
def test_python_goes_over_the_rows_where_there_is_no_pool(seq):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_native", lambda: None)
        run, tensors = seq.compile(2), given_tensors(seq)
        same(run(*tensors), seq.reference(*tensors))
        assert all(layer.seconds >= 0 for layer in run.profile(*tensors, repeat=1))


def chain(length=6, **how):
    seq = Sequence()
    x = seq.input("x", desc())
    for k in range(length):
        x = seq.add(Toy(desc(), **how), x, values(k), name=f"layer{k}")
    seq.output(x)
    return seq


@machine_code
def test_layers_tell_what_is_done_and_how_long_it_took():
    run = chain(4).compile()
    assert [layer.seconds for layer in run.layers()] == [None] * 4
    layers = run.profile(values(), repeat=2)
    assert [layer.name for layer in layers] == ["layer0", "layer1", "layer2", "layer3"]
    assert all(layer.seconds > 0 and layer.descs["dst"] == desc() for layer in layers)


@machine_code
def test_nothing_is_copied_that_may_be_written_over():
    """A residual block: the sum takes over the memory of what it is added to."""
    seq = Sequence()
    x = seq.input("x", desc())
    first = seq.add(Toy(desc()), x, x, name="first")
    second = seq.add(Toy(desc()), first, x, name="second")
    third = seq.add(Toy(desc(), adds=True), second, second, dst=first, name="third")
    seq.output(seq.add(Toy(desc(), in_place=("a",)), third, x, name="last"))
    layers = seq.compile().layers()
    assert [layer.name for layer in layers] == ["first", "second", "third", "last"]
    assert [layer.in_place for layer in layers] == [{}, {}, {"dst": "dst"}, {"dst": "a"}]


def test_what_is_still_needed_is_copied():
    seq = Sequence()
    x = seq.input("x", desc())
    y = seq.add(Toy(desc()), x, x, name="y")
    for value in (x, y):  # the caller's own; and read once more
        seq.output(seq.add(Toy(desc(), adds=True), y, x, dst=value))
    seq.output(seq.add(Toy(desc()), y, y))
    seq.output(x)
    run = seq.compile()
    assert [layer.kind for layer in run.layers()] == [
        "toy",
        "reorder",
        "toy",
        "reorder",
        "toy",
        "toy",
        "reorder",
    ]
    same(run(values()), seq.reference(values()))


@pytest.mark.parametrize("adds", [False, True])
def test_an_output_is_not_written_over_a_part_of_something_larger(adds):
    """All of the larger one would have to lie in the caller's memory, and would go beyond its end."""
    seq, whole = Sequence(), desc(dims=(2, 20, 3, 2))
    x = seq.input("x", whole)
    large = seq.add(Toy(whole), x, x, name="large")
    part = seq.view(large, whole.submemory((1, 20, 3, 2), (0, 0, 0, 0)))
    size = part.desc
    toy = Toy(size, in_place=("a", "b"), adds=adds)
    if adds:
        first = seq.view(x, whole.submemory((1, 20, 3, 2), (0, 0, 0, 0)))
        seq.output(seq.add(toy, first, first, dst=part, name="last"))
    else:
        seq.output(seq.add(toy, part, part, name="last"))
    run = seq.compile()
    for item in run._schedule.items:
        for key, storage in item.storages.items():
            if storage.where == "output":
                assert item.primitive.descs[key].nbytes <= size.nbytes, (item.name, key)
    a = values(1)
    np.testing.assert_array_equal(run(a).numpy(), (6 if adds else 9) * a[:1])


def test_reorders_are_shared_and_those_of_constants_are_done_before():
    seq = Sequence()
    x = seq.input("x", desc())
    weights = seq.constant(values(3))
    for _ in range(3):
        seq.output(seq.add(Toy(desc("nChw16c")), x, weights))
    run = seq.compile()
    assert [layer.kind for layer in run.layers()] == ["reorder", "toy", "toy", "toy"]
    assert run.constant_bytes == desc("nChw16c").nbytes
    weights_now = values(3)
    same(run(values()), (values() + 2 * weights_now,) * 3)


def test_memory_is_used_again():
    run = chain(10).compile()
    assert run.memory.bound == run.memory.peak < run.memory.total / 4


@machine_code
def test_several_python_threads_run_at_once():
    seq = chain(30, parts=4)
    run = seq.compile(2)
    inputs = [values(k) for k in range(4)]
    wanted = [seq.reference(one) for one in inputs]
    wrong = []

    def work(k):
        wrong.extend(k for _ in range(50) if not np.array_equal(run(inputs[k]).numpy(), wanted[k]))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@forks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_runs_it_too():
    seq = chain(5, parts=4)
    run = seq.compile(2)
    wanted = seq.reference(values())
    assert np.array_equal(run(values()).numpy(), wanted)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(run(values()).numpy(), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_out_and_names():
    seq = Sequence()
    x, y = (seq.input(name, desc("nChw16c")) for name in "xy")
    seq.output(seq.add(Toy(x.desc), x, b=y), desc("nhwc"))
    run = seq.compile()
    laid = [rl.tensor(values(k), "nChw16c") for k in range(2)]
    out = rl.tensor(np.full(DIMS, np.nan, np.float32), "nhwc")
    assert run(y=laid[1], x=laid[0], out=out) is out
    same(out, seq.reference(values(0), values(1)))
    same(run(*laid, out=bytearray(out.desc.nbytes)), seq.reference(values(0), values(1)))


def test_other_dims_share_the_memory():
    seq = Sequence()
    x = seq.input("x", desc())
    flat = (6, 40)
    both = seq.add(Toy(desc("ab", flat)), seq.reshape(x, flat), seq.reshape(seq.constant(values(1)), flat))
    seq.output(seq.add(Toy(desc()), seq.reshape(both, DIMS), x))
    run = seq.compile()
    assert [layer.kind for layer in run.layers()] == ["toy", "toy"]
    same(run(values()), values() + 2 * values(1) + 2 * values())
    blocked = seq.reorder(x, desc("nChw16c"))
    with pytest.raises(LayoutError, match="reshape"):
        seq.reshape(blocked, flat)


def test_constants_may_repeat_elements():
    class Plus(Toy):
        def __init__(self, a, b):
            super().__init__(a, native=False)
            self.descs = {"a": a, "b": b, "dst": a}

    row = rl.tensor(np.arange(3, dtype=np.float32)).broadcast_to(4, 3)
    seq = Sequence()
    x = seq.input("x", desc("ab", (4, 3)))
    seq.output(seq.add(Plus(x.desc, row.desc), x, row))
    data = values(0, (4, 3))
    same(seq.compile()(data), data + 2 * row.numpy())


def test_constants_are_laid_out_where_the_wanted_elements_share_places():
    which = desc("ab", (2, 3))
    wanted = np.array([[1, 2, 3]] * 2, np.float32)
    cases = (
        rl.tensor(np.array([[7, 8, 9], [1, 2, 3]], np.float32))[1:].broadcast_to(2, 3),
        rl.tensor(wanted, "ba"),
        rl.tensor(wanted.astype(np.float64)),
    )
    row = rl.tensor(wanted[:1]).broadcast_to(2, 3).desc
    for constant in cases:
        seq = Sequence()
        x = seq.input("x", which)
        seq.output(seq.add(Binary("add", which, row), x, constant))
        same(seq.compile(1)(values(0, (2, 3))), values(0, (2, 3)) + wanted)
    seq = Sequence()
    x = seq.input("x", which)
    seq.output(seq.add(Binary("add", which, row), x, np.array([[1, 2, 3], [1, 5, 3]], np.float32)))
    with pytest.raises(LayoutError, match=r"binary1: src1 is wanted as .*share places, but element \(0, 1\)"):
        seq.compile()


@given(st.data())
@examples(40)
def test_any_constant_that_repeats_in_any_data_type(data):
    dims = tuple(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    repeats = [data.draw(st.booleans()) for _ in dims]
    small = tuple(1 if again else size for size, again in zip(dims, repeats, strict=True))
    kind = rl.dtype(data.draw(st.sampled_from(["f32", "bf16", "s8", "s4"])))
    array = np.broadcast_to(values(1, small), dims).astype(kind.numpy)
    wanted = rl.tensor(values(1, small).astype(kind.numpy)).broadcast_to(dims).desc
    laid = rl.Tensor(wanted, allocate(wanted))
    storages._lay(rl.tensor(array), laid, "here")
    np.testing.assert_array_equal(laid.numpy(), array)


def test_constants_lie_side_by_side():
    """In one piece of memory, which large pages need."""
    seq, held = Sequence(), desc("ab", (256, 2048))
    value = seq.input("x", held)
    for k in range(3):
        value = seq.add(Binary("add", held, held), value, np.full((256, 2048), k, np.float32))
    seq.output(value)
    run = seq.compile()
    places = [one.ctypes.data for one in run._schedule.constants.values()]
    assert np.diff(sorted(places)).tolist() == [held.nbytes] * 2
    assert min(places) % LARGE == 0 or not hasattr(mmap, "MADV_HUGEPAGE")
    np.testing.assert_array_equal(run(np.ones((256, 2048), np.float32)), np.full((256, 2048), 4))


def test_nothing_is_written_whose_elements_share_places():
    which = desc("ab", (2, 3))
    row = rl.tensor(np.ones((1, 3), np.float32)).broadcast_to(2, 3)
    with pytest.raises(LayoutError, match="share places"):
        Reorder(which, row.desc)
    seq = Sequence()
    x = seq.input("x", which)
    with pytest.raises(
        LayoutError, match=r"mine: reorder of x \(f32:ab:2x3\): .*several elements in one place"
    ):
        seq.add(Binary("add", which, row.desc), x, x, name="mine")
    assert seq.nodes == []
    for value in (seq.input("row", row.desc), seq.constant(row)):
        with pytest.raises(LayoutError, match=r"output .*several elements in one place"):
            seq.output(value)
        seq.output(value, which)
    for made in seq.compile(1)(values(0, (2, 3)), row):
        assert np.array_equal(made.numpy(), row.numpy())


def test_a_run_stays_what_it_was_when_the_sequence_grows():
    seq = chain(2)
    run = seq.compile()
    wanted = seq.reference(values())
    seq.output(seq.add(Toy(desc()), seq.inputs[0], values(9)))
    same(run(values()), wanted)


def test_progress_names_all_layers(monkeypatch):
    monkeypatch.setenv("RELAYOUT_CACHE", "off")  # what is recalled is not gone through
    told = []
    chain(2).compile(progress=lambda *what: told.append(what))
    assert told == [(0, 2, "layer0"), (1, 2, "layer1"), (2, 2, "")]


def test_bad_input_is_refused():
    seq = Sequence()
    x = seq.input("x", desc())
    toy = Toy(desc())
    with pytest.raises(LayoutError, match="not decided"):
        seq.input("y", desc(rl.any))
    with pytest.raises(LayoutError, match="input 'y': desc must be a MemoryDesc, not str"):
        seq.input("y", "nchw")
    with pytest.raises(LayoutError, match="must be a MemoryDesc, not str"):
        seq.reorder(x, "nhwc")
    with pytest.raises(LayoutError, match="expected a Primitive, not str"):
        seq.add("relu", x)
    with pytest.raises(LayoutError, match="input 'x' already"):
        seq.input("x", desc())
    with pytest.raises(LayoutError, match="toy needs b"):
        seq.add(toy, x)
    with pytest.raises(LayoutError, match="takes a, b; got 3 values"):
        seq.add(toy, x, x, x)
    with pytest.raises(LayoutError, match="'dst' is none of a, b"):
        seq.add(toy, x, x, dst=x)
    with pytest.raises(LayoutError, match="'a' was given twice"):
        seq.add(toy, x, x, a=x)
    with pytest.raises(LayoutError, match=r"needs dst \(what the result is added to\)"):
        seq.add(Toy(desc(), adds=True), x, x)
    with pytest.raises(LayoutError, match="mine: b must be of dims 2x20x3x2, but small is"):
        seq.add(toy, x, seq.constant(np.zeros((1, 2), np.float32), "small"), name="mine")
    with pytest.raises(LayoutError, match="another sequence"):
        Sequence().add(toy, x, x)
    with pytest.raises(LayoutError, match="nothing is an output"):
        seq.compile()
    seq.output(seq.add(toy, x, x))
    for threads in (0, -1, "a", "2", 1.5):
        with pytest.raises(LayoutError, match="compile: threads must be"):
            seq.compile(threads=threads)
    run = seq.compile()
    data = rl.tensor(values())
    for repeat in (0, -1, "a"):
        with pytest.raises(LayoutError, match="profile: repeat must be"):
            run.profile(data, repeat=repeat)
    with pytest.raises(LayoutError, match="needs x"):
        run()
    with pytest.raises(LayoutError, match="takes x; got 2 tensors"):
        run(data, data)
    with pytest.raises(LayoutError, match="'z' is none of x"):
        run(z=data)
    with pytest.raises(LayoutError, match="x must be f32:nchw:2x20x3x2, but f64"):
        run(np.zeros(DIMS))
    with pytest.raises(LayoutError, match="x and out overlap"):
        run(data, out=data)
    with pytest.raises(LayoutError, match="1 output, out, but out has 2"):
        run(data, out=[data, data])
    with pytest.raises(LayoutError, match="read-only"):
        run(data, out=bytes(desc().nbytes))
    with pytest.raises(LayoutError, match="needs 960 bytes"):
        run(data, out=bytearray(10))
    with pytest.raises(LayoutError, match="out is an array of float64"):
        run(data, out=np.zeros(DIMS))
    with pytest.raises(LayoutError, match="x is no tensor of"):
        run([[1, 2], [3]])
    seq.output(x)
    with pytest.raises(LayoutError, match=r"2 outputs, out\[0\], out\[1\], so out must be a mapping"):
        seq.compile()(data, out=data)


@pytest.mark.parametrize("dims", [DIMS, (64, 64, 256, 256)])
def test_inputs_in_short_buffers_are_not_read(dims):
    seq = Sequence()
    x = seq.input("x", desc(dims=dims))
    seq.output(seq.add(Toy(x.desc), x, x))
    short = rl.Tensor(x.desc, np.zeros(16, np.uint8))
    run = seq.compile(1)
    for call in (run, run.profile):
        with pytest.raises(LayoutError, match=f"x f32:nchw.* needs {x.desc.nbytes} bytes; its buffer has 16"):
            call(short)


def test_out_as_an_array_is_taken_as_reorder_takes_it():
    seq = Sequence()
    x = seq.input("x", desc())
    seq.output(seq.reorder(x, desc("nhwc")))
    run = seq.compile(1)
    with pytest.raises(LayoutError, match="shape of the logical array"):
        run(values(), out=np.zeros(DIMS, np.float32))
    out = np.zeros(values().size, np.float32)
    made = run(values(), out=out)
    assert np.shares_memory(made.buffer, out)
    same(made, values())


def test_a_reorder_is_a_primitive():
    x = rl.tensor(values(), "nhwc")
    made = Reorder(x.desc, desc("nChw16c"))
    assert np.array_equal(made(x).buffer, x.reorder("nChw16c").buffer)
    assert np.array_equal(made.reference(x), values())
    big = np.array([2**60 + 1], np.int64)
    assert Reorder(rl.tensor(big).desc, rl.tensor(big).desc)(big).numpy() == big
    with pytest.raises(LayoutError, match="must have the same dims"):
        Reorder(desc(), desc(dims=(1, 2, 3, 4)))
    with pytest.raises(LayoutError, match="has no layout"):
        Reorder(desc(), desc(rl.any))


@machine_code
def test_parts_that_begin_elsewhere_share_their_kernel():
    """Convolutions into a concatenation differ in where they write, others in where their source begins."""
    rng, dims = np.random.default_rng(0), (2, 64, 6, 6)
    whole = rl.MemoryDesc(dims, "f32", "nChw16c")
    filters = rl.MemoryDesc((16, 16, 3, 3), "f32", rl.any)
    parts = [whole.submemory((2, 16, 6, 6), (0, 16 * k, 0, 0)) for k in range(4)]
    pairs = list(product(range(4), range(4)))
    made = [Convolution(parts[k], filters, dst=parts[n], padding=1) for k, n in pairs]
    programs = [one._compiled() for one in made]
    assert len({program.steps[-1].kernel.address for program in programs}) == 1
    assert len({program.steps[-1].at for program in programs}) == len(pairs)
    weights = rng.standard_normal((16, 16, 3, 3), dtype=np.float32)
    for one, (k, n) in zip(made, pairs, strict=True):
        data, into = (rng.standard_normal(dims, dtype=np.float32) for _ in range(2))
        x, y = (rl.tensor(array, "nchw").reorder("nChw16c") for array in (data, into))
        source = rl.Tensor(parts[k], x.buffer)
        expected = into.copy()
        expected[:, 16 * n : 16 * n + 16] = one.reference(data[:, 16 * k : 16 * k + 16], weights)
        packed = rl.tensor(weights, "oihw").reorder(one.weights)
        for _ in range(2):
            one(source, packed, out=rl.Tensor(parts[n], y.buffer))
            np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-4)
        seq = Sequence()
        part = seq.view(seq.input("x", whole), parts[k])
        seq.output(seq.add(one, part, seq.constant(packed)))
        found = seq.compile()(x).numpy()
        np.testing.assert_allclose(found, expected[:, 16 * n : 16 * n + 16], rtol=1e-4, atol=1e-4)
