"""Elementwise functions: what the definition says, in every layout and type; no other byte is touched."""

from __future__ import annotations

import importlib
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from covering import covering
from elementwise import FORMATS, TYPES, check, framed, machine_code, numbers, sides
from fences import output_of
from relayout import LayoutError
from relayout.layout.dense import dense_like
from relayout.ops import post_ops
from relayout.ops.functions import ALGORITHMS, Function
from relayout.primitives import BatchNormalization, Binary, Eltwise, Sum
from strategies import examples, has_clean_padding, layouts
from test_values import can_run, undefined

machine_ = importlib.import_module("relayout.targets.machine")
tables = importlib.import_module("relayout.kernels.elementwise.bytes")

pytestmark = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")

FUNCTIONS = [
    Function("relu"),
    Function("relu", 0.5),
    Function("exp"),
    Function("linear", 2, -1),
    Function("clip", -1, 2),
    Function("gelu_erf"),
    Function("logistic"),
]
POST_OPS = st.sampled_from([(), (), "abs", [post_ops.Sum()], [post_ops.Sum(0.5), Function("relu")]])
SHAPES = [(2, channels, 3, 5) for channels in (1, 3, 8, 17, 100)]


class TestKernels:
    @given(sides(2), st.sampled_from(FUNCTIONS), POST_OPS, st.integers(0, 1000))
    @examples(60)
    def test_any_layouts(self, descs, function, after, seed):
        dst, src = descs
        assume(has_clean_padding(src.layout))
        check(Eltwise(src, function, dst, post_ops=after), seed)

    @pytest.mark.parametrize("format", FORMATS)
    def test_formats(self, format):
        for k, dims in enumerate(SHAPES):
            desc = rl.MemoryDesc(dims, TYPES[k], format)
            for function in ("relu", "exp"):
                made = Eltwise(desc, function)
                assert made.implementation == f"machine code: {function}"
                check(made)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_algorithms(self, algorithm):
        given = {"clip": (-1, 2), "clip_v2": (-1, 2), "pow": (2, 3), "soft_relu": (1,), "linear": (3, 0.5)}
        numbers = given.get(algorithm, ())
        desc = rl.MemoryDesc((2, 17, 9), "f32", "aBc8b")
        made = Eltwise(desc, algorithm, None, *numbers)
        assert made.function == Function(algorithm, *numbers)
        positive = np.arange(1, 2 * 17 * 9 + 1).reshape(desc.dims) / 100
        check(made, arrays={"src": positive})

    @pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
    @given(data=st.data())
    @examples(15)
    def test_other_vectors(self, cpu, data):
        """The code of smaller processors on this one."""
        machines = importlib.import_module("relayout.targets.machine")
        here = machines.host()
        if not here.triple.startswith("x86_64") or machines.machine(cpu).vector > here.vector:
            pytest.skip("this processor does not run that code")
        dst, src = data.draw(sides(2, ("f32", "bf16", "s8")))
        with mock.patch.object(machines, "host", return_value=machines.machine(cpu)):
            check(Eltwise(src, data.draw(st.sampled_from(FUNCTIONS)), dst))

    @pytest.mark.parametrize("elements", [1, 31, 5000, 40000])
    @pytest.mark.parametrize("kind", ["f32", "s8"])
    def test_long_runs_are_cut_among_threads(self, elements, kind):
        desc = rl.MemoryDesc((elements,), kind, "a")
        check(Eltwise(desc, "square"))

    def test_a_source_in_another_format_is_reordered_first(self):
        src, dst = (rl.MemoryDesc((2, 20, 6, 7), "f32", text) for text in ("nchw", "nChw16c"))
        made = Eltwise(src, "exp", dst)
        check(made)
        assert [step.target for step in made._compiled().steps] == ["src as dst", "dst"]

    def test_a_source_that_only_lacks_padding_is_not(self):
        src, dst = (rl.MemoryDesc((2, 20, 6, 7), "f32", text) for text in ("nhwc", "nChw16c"))
        made = Eltwise(src, "exp", dst)
        check(made)
        assert len(made._compiled().steps) == 1

    def test_a_part_of_rows_as_long_as_the_destination_has_them(self):
        dst = rl.MemoryDesc((2, 3, 6, 7), "f32", "nChw8c")
        part = rl.MemoryDesc((2, 8, 6, 7), "f32", "nhwc").submemory(dst.dims, (0, 4, 0, 0))
        check(Eltwise(part, "exp", dst))

    def test_several_threads(self):
        x = rl.tensor(numbers((3, 50, 40, 40), "f32", 0)).reorder("nChw16c", "f32")
        made = Eltwise(x.desc, "exp")
        one, four = made(x, threads=1), made(x, threads=4)
        np.testing.assert_array_equal(one.buffer, four.buffer)
        np.testing.assert_allclose(one.numpy(), np.exp(x.numpy()), rtol=2e-6)

    def test_nothing_outside_of_the_buffers_is_touched(self):
        """All buffers end at, then begin behind, a page that can't be touched.

        A stray access ends the process.
        """
        script = """
            from fences import arena, run_between
            from test_eltwise import guarded

            arenas = [arena(1 << 18) for _ in range(9)]
            count = 0
            for made in guarded():
                run_between(made, arenas)
                count += 1
            print(count)
            """
        assert int(output_of(script)) == len(list(guarded()))


def guarded():
    """Primitives of all kinds with odd sizes."""
    for k, format in enumerate(FORMATS):
        desc = rl.MemoryDesc((2, (3, 17, 20)[k % 3], 3, 5), ("f32", "bf16", "s8")[k % 3], format)
        each = rl.MemoryDesc((1, desc.dims[1], 1, 1), "f32", "nchw")
        yield Eltwise(desc, "exp")
        yield Binary("div", desc, each)
        yield Sum([desc, desc], (2, 3))
        yield BatchNormalization(desc, use_scale=True, use_shift=True)
    for channels in (3, 17):
        dst = rl.MemoryDesc((2, channels, 3, 5), "f32", "nChw8c")
        yield Eltwise(rl.MemoryDesc(dst.dims, "f32", "nhwc"), "exp", dst)
        wider = rl.MemoryDesc((2, dst.padded_dims[1], 3, 5), "f32", "nhwc")
        yield Eltwise(wider.submemory(dst.dims, (0, 0, 0, 0)), "exp", dst)


class TestCode:
    @pytest.mark.parametrize(
        ("cpu", "triple"),
        [(f"x86-64-v{k}", "x86_64-unknown-linux-gnu") for k in (2, 3, 4)]
        + [("neoverse-n1", "aarch64-unknown-linux-gnu")],
    )
    def test_other_processors(self, cpu, triple):
        """The code of every kind of run can be generated, and calls nobody."""
        expressions, maps, walk, compile_, machines = (
            importlib.import_module(f"relayout.{name}")
            for name in (
                *("ops.expressions", "kernels.elementwise.map", "kernels.elementwise.runs"),
                *("jit.compile", "targets.machine"),
            )
        )
        machine = machines.machine(cpu, triple)
        for k, format in enumerate(FORMATS):
            desc = rl.MemoryDesc((2, 20, 3, 5), TYPES[k % len(TYPES)], format)
            terms = [(FUNCTIONS[k % len(FUNCTIONS)], "f32", (0,))]
            made = expressions.Expression.of(("f32",), terms)
            vectors = maps.vectors_of(machine, desc.dtype, [desc.dtype], made.cheap)
            runs = walk.runs(desc, [desc], False, vectors)
            text = maps.module(runs, [desc.dtype], [desc.dtype], made, vectors.lanes, machine)
            assert undefined(compile_.assemble(text, machine)) == set()


class TestDenseLike:
    @given(layouts())
    @examples(100)
    def test_it_is_dense_and_in_the_same_order(self, layout):
        assume(layout.is_injective())
        made = dense_like(layout)
        assert (made.dims, made.terms, made.padded, made.offset0) == (
            *(layout.dims, layout.terms, layout.padded),
            0,
        )
        assert made.is_injective()
        digits = sorted((abs(d.stride), d.weight) for d in layout.digits if d.extent > 1)
        assert len(digits) == len([d for d in made.digits if d.extent > 1])


class TestChoices:
    def test_any_follows_the_source(self):
        src = rl.MemoryDesc((2, 17, 4, 4), "f32", "nChw8c")
        assert Eltwise(src, "relu").dst == src
        assert Eltwise(src, "relu", rl.MemoryDesc(src.dims, "s8", rl.any)).dst == rl.MemoryDesc(
            src.dims, "s8", "nChw8c"
        )

    def test_any_is_dense_where_the_source_is_not(self):
        part = rl.MemoryDesc((2, 32, 4, 4), "f32", "nhwc").submemory((2, 16, 4, 4), (0, 16, 0, 0))
        assert Eltwise(part, "relu").dst == rl.MemoryDesc((2, 16, 4, 4), "f32", "nhwc")

    def test_in_place(self):
        x = rl.tensor(numbers((2, 17, 5, 5), "f32", 0)).reorder("nChw8c", "f32")
        expected = np.exp(x.numpy())
        made = Eltwise(x.desc, "exp")
        assert made(x, out=x) is x
        np.testing.assert_allclose(x.numpy(), expected, rtol=2e-6)

    def test_in_place_only_with_one_descriptor(self):
        one, two = rl.MemoryDesc((4, 4), "f32", "ab"), rl.MemoryDesc((4, 4), "f32", "ba")
        buffer = bytearray(64)
        with pytest.raises(LayoutError, match="overlap"):
            Eltwise(one, "relu", two)(rl.from_buffer(buffer, one), out=buffer)

    def test_nothing_to_do(self):
        made = Eltwise(rl.MemoryDesc((2, 0, 3), "f32", "aBc8b"), "exp")
        assert made(np.zeros((2, 0, 3), np.float32)).numpy().shape == (2, 0, 3)

    def test_one_number(self):
        made = Eltwise(rl.MemoryDesc((), "f32", strides=()), "exp")
        assert made(np.float32(0)).numpy() == 1


class TestErrors:
    DESC = rl.MemoryDesc((2, 3), "f32", "ab")

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ((DESC, "reul"), "no elementwise function"),
            ((DESC, Function("relu"), None, 1.0), "go with a name"),
            ((rl.MemoryDesc((2, 3), "f32", rl.any), "relu"), "needs a format"),
            ((DESC, "relu", rl.MemoryDesc((2, 4), "f32", "ab")), "must be 2x3"),
            ((rl.MemoryDesc((2, 3), "f64", "ab"), "relu"), "there are f32"),
            ((DESC, "relu", rl.MemoryDesc((2, 3), "s64", "ab")), "there are f32"),
            ((DESC, "relu", rl.MemoryDesc((2, 3), "f32", strides=(0, 1))), "several elements in one place"),
        ],
    )
    def test_said_clearly(self, given, message):
        with pytest.raises(LayoutError, match=message):
            Eltwise(*given)


class TestTablesOfBytes:
    """Functions of one byte are looked up where that pays: the results are those of the usual kernel."""

    @pytest.mark.parametrize(
        ("size", "types", "function"),
        covering(
            [1024, 1025, 1087, 1151, 1280, 5000],
            [("u8", "u8"), ("s8", "u8"), ("u8", "s8"), ("f8_e4m3", "s8")],
            [*FUNCTIONS, Function("square")],
        ),
    )
    def test_all_bytes(self, size, types, function):
        source, target = (rl.dtype(one) for one in types)
        src, dst = rl.MemoryDesc((size,), source, "a"), rl.MemoryDesc((size,), target, "a")
        buffer = np.resize(np.arange(256, dtype=np.uint8), size)
        found = Eltwise(src, function, dst, post_ops=["abs"])(rl.Tensor(src, buffer))
        piece, few = rl.MemoryDesc((256,), source, "a"), rl.MemoryDesc((256,), target, "a")
        usual = Eltwise(piece, function, few, post_ops=["abs"])(rl.Tensor(piece, buffer[:256].copy()))
        assert (found.buffer == np.resize(usual.buffer, size)).all()

    @pytest.mark.skipif(not can_run("x86-64-v3"), reason="this processor has no AVX2")
    @pytest.mark.parametrize("size", [1024, 1087, 5000])
    @pytest.mark.parametrize("types", [("u8", "u8"), ("s8", "u8"), ("u8", "s8"), ("s8", "s8")])
    @pytest.mark.parametrize("function", ["exp", "relu", "swish", "round", Function("clip", -3, 20)])
    def test_all_bytes_by_rows_and_bounds(self, size, types, function, monkeypatch):
        monkeypatch.setattr(machine_, "host", lambda: machine_.machine("x86-64-v3"))
        self.test_all_bytes(size, types, function)

    @pytest.mark.parametrize("signed", [False, True])
    @pytest.mark.parametrize("more", [0, 1, 128, 200])
    @pytest.mark.parametrize(("low", "high"), [(0, 255), (0, 0), (255, 255), (3, 200), (128, 129)])
    def test_bounds_are_found(self, signed, more, low, high):
        order = [*range(128, 256), *range(128)] if signed else list(range(256))
        table = [0] * 256
        for k, x in enumerate(order):
            table[x] = (order[min(max(k, low), high)] + more) % 256
        found = tables.clamp(table)
        assert found is not None
        ranks = list(range(128, 256)) + list(range(128)) if found.signed else list(range(256))
        bounded = [sorted((found.low, x, found.high), key=ranks.index)[1] for x in range(256)]
        assert [(x + found.more) % 256 for x in bounded] == table
        table[order[100]] ^= 1
        assert low == high or not low < 100 < high or tables.clamp(table) is None

    def test_differences_add_up_to_the_table(self):
        table = np.random.default_rng(0).integers(0, 256, 256).astype(np.uint8)
        rows = np.frombuffer(tables.differences(table.tobytes()), np.uint8).reshape(2, 8, 16)
        assert (np.bitwise_xor.accumulate(rows, 1).reshape(256) == table).all()

    @pytest.mark.skipif(not can_run("x86-64-v3"), reason="this processor has no AVX2")
    @pytest.mark.parametrize("types", [("bf16", "bf16"), ("f16", "bf16"), ("f16", "f16")])
    @pytest.mark.parametrize("function", ["exp", "gelu_erf", Function("swish", 1.7)])
    def test_all_words(self, types, function, monkeypatch):
        """Those of all 65536 values, by a kernel that looks them up and by the one that computes them."""
        monkeypatch.setattr(machine_, "host", lambda: machine_.machine("x86-64-v3"))
        source, target = (rl.dtype(one) for one in types)
        size, half = (1 << 17) + 37, 1 << 15
        src, dst = rl.MemoryDesc((size,), source, "a"), rl.MemoryDesc((size,), target, "a")
        words = np.resize(np.arange(1 << 16, dtype=np.uint16), size)
        outer, out = framed(dst, 0)
        before = outer.copy()
        Eltwise(src, function, dst, post_ops=["abs"])(
            rl.Tensor(src, words.view(np.uint8)), out=out, threads=2
        )
        piece, few = rl.MemoryDesc((half,), source, "a"), rl.MemoryDesc((half,), target, "a")
        usual = Eltwise(piece, function, few, post_ops=["abs"])
        parts = [usual(rl.Tensor(piece, words[k : k + half].view(np.uint8).copy())) for k in (0, half)]
        wanted = np.concatenate([part.buffer.view(np.uint16)[:half] for part in parts])
        assert (out.buffer.view(np.uint16) == np.resize(wanted, size)).all()
        start = out.buffer.ctypes.data - outer.ctypes.data
        before[start : start + 2 * size] = out.buffer
        assert (outer == before).all()

    @pytest.mark.parametrize("cpu", [cpu for cpu in ("x86-64-v2", "x86-64-v3") if can_run(cpu)])
    @pytest.mark.parametrize("function", ["relu", "abs", Function("linear", 1.7, 0.3), "swish"])
    def test_all_bf16_whether_in_pairs_or_not(self, cpu, function, monkeypatch):
        """Vectors of elements of even number first, and what is left of a row, are as those of a few."""
        monkeypatch.setattr(machine_, "host", lambda: machine_.machine(cpu))
        size = (1 << 16) - 3
        desc = rl.MemoryDesc((size,), "bf16", "a")
        x = rl.Tensor(desc, np.arange(3, 1 << 16, dtype=np.uint16).view(np.uint8))
        made = Eltwise(desc, function)
        found = made(x).numpy()
        seven = rl.MemoryDesc((7,), "bf16", "a")
        few = Eltwise(seven, function)
        for begin in (0, 0x3F00, 0x7F78, 0xBF00, 0xFF70, size - 7):
            one = few(rl.Tensor(seven, x.buffer[2 * begin : 2 * begin + 14].copy())).numpy()
            np.testing.assert_array_equal(found[begin : begin + 7].view(np.uint16), one.view(np.uint16))
        whole = rl.Tensor(desc, x.buffer.copy())
        made(whole, out=whole, threads=2)
        np.testing.assert_array_equal(whole.numpy().view(np.uint16), found.view(np.uint16))

    @pytest.mark.parametrize("format", ["nchw", "nChw16c", "nhwc"])
    @pytest.mark.parametrize("function", ["relu", "exp"])
    def test_padding_stays_zero(self, format, function):
        check(Eltwise(rl.MemoryDesc((2, 20, 7, 9), "s8", format), function))

    def test_in_place_and_on_several_threads(self):
        desc = rl.MemoryDesc((1 << 20,), "u8", "a")
        made = Eltwise(desc, Function("linear", -1, 255))
        data = np.random.default_rng(0).integers(0, 256, 1 << 20).astype(np.uint8)
        tensor = rl.Tensor(desc, data.copy())
        made(tensor, out=tensor, threads=2)
        assert (tensor.buffer == 255 - data).all()
