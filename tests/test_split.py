"""Splits, and what comes with several named results: calls, sequences, copies."""

from __future__ import annotations

import copy
import pickle
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from elementwise import FORMATS, TYPES, check, machine_code
from relayout import LayoutError, MemoryDesc
from relayout.primitives import Binary, Concat, Sequence, Split
from strategies import examples, has_clean_padding, layouts, shapes
from test_reorder import in_front, writable

SRC = MemoryDesc((2, 48, 3, 5), "f32", "nChw16c")


def values(desc, seed=0):
    return rl.tensor(np.random.default_rng(seed).integers(-9, 9, desc.dims), dtype="f32").reorder(desc)


@st.composite
def problems(draw):
    """A source in any layout, an axis, and destinations in any layouts."""
    dims = draw(shapes(zeros=True))
    axis = draw(st.integers(0, len(dims) - 1))
    sizes = draw(st.lists(st.integers(0, 17), min_size=1, max_size=3))
    with_axis = [(*dims[:axis], size, *dims[axis + 1 :]) for size in (*sizes, sum(sizes))]
    made = [in_front(draw(layouts(dims=d))) for d in with_axis]
    assume(all(writable(layout) and has_clean_padding(layout) for layout in made))
    assume(sum(layout.size for layout in made) < 4000)
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=len(made), max_size=len(made)))
    *dsts, src = (MemoryDesc(o.dims, kind, o) for o, kind in zip(made, kinds, strict=True))
    return Split(src, draw(st.sampled_from([axis, axis - len(dims)])), sizes, dsts)


class TestAnyLayouts:
    @given(problems(), st.integers(0, 1000))
    @examples(50)
    def test_with_kernels(self, made, seed):
        check(made, seed)

    @given(problems(), st.integers(0, 1000))
    @examples(25)
    def test_without(self, made, seed):
        with mock.patch("relayout.jit.support.supported", return_value=False):
            check(made, seed)

    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("sizes", [(32, 17), (17, 15), (3, 100, 1), (1, 31, 32)])
    def test_formats(self, format, sizes):
        made = Split(MemoryDesc((2, sum(sizes), 3, 5), "f32", format), 1, sizes)
        assert [made.descs[name].format for name in made.outputs] == [rl.Format(format)] * len(sizes)
        check(made)


def test_is_the_inverse_of_concat():
    x = values(SRC)
    for sizes in ((16, 32), (17, 30, 1)):
        parts = Split(SRC, 1, sizes)(x)
        joined = Concat([part.desc for part in parts], 1, SRC)
        np.testing.assert_array_equal(joined(*parts).buffer, x.buffer)


class TestResults:
    split = Split(SRC, 1, (16, 32))

    def test_have_names(self):
        x = values(SRC)
        made = self.split(x)
        assert made._fields == ("dst0", "dst1")
        np.testing.assert_array_equal(made.dst1.numpy(), x.numpy()[:, 16:])
        again = pickle.loads(pickle.dumps(self.split.reference(x)))
        np.testing.assert_array_equal(again.dst0, x.numpy()[:, :16])

    def test_one_alone_is_returned_as_itself(self):
        assert isinstance(Split(SRC, 1, (48,))(values(SRC)), rl.Tensor)

    def test_out_by_name_by_place_and_in_part(self):
        x = values(SRC)
        one, two = (values(self.split.descs[name], 5) for name in self.split.outputs)
        for out in ((one, two), [one, two], {"dst1": two, "dst0": one}):
            found = self.split(x, out=out)
            assert found.dst0 is one
            assert found.dst1 is two
        kept = one.buffer.copy()
        found = self.split(x, out={"dst1": two})
        assert found.dst1 is two
        assert np.array_equal(found.dst0.buffer, kept)
        found = self.split(x, out=(None, bytearray(two.desc.nbytes)))
        assert np.array_equal(found.dst1.buffer, two.buffer)

    @pytest.mark.parametrize(
        ("out", "message"),
        [
            (lambda a, b: a, r"split has 2 outputs, dst0, dst1, so out must be a mapping"),
            (lambda a, b: [a], "but out has 1"),
            (lambda a, b: {"dst2": a}, "no output 'dst2'; it has dst0, dst1"),
            (lambda a, b: [b, a], "dst0 must be f32:nChw16c:2x16x3x5, but"),
            (lambda a, b: [rl.Tensor(a.desc, b.buffer), b], "dst0 and dst1 overlap|dst1 and dst0 overlap"),
        ],
    )
    def test_a_wrong_out_is_refused_and_nothing_written(self, out, message):
        one, two = (values(self.split.descs[name], 5) for name in self.split.outputs)
        kept = one.buffer.copy(), two.buffer.copy()
        with pytest.raises(LayoutError, match=message):
            self.split(values(SRC), out=out(one, two))
        assert np.array_equal(one.buffer, kept[0])
        assert np.array_equal(two.buffer, kept[1])

    def test_often_called(self):
        made = Split(SRC, 1, (16, 32))
        out = made(values(SRC))
        for seed in range(60):
            x = values(SRC, seed)
            found = made(x, out=out, threads=1) if seed % 2 else made(x, threads=1)
            assert all(one is two for one, two in zip(found, out, strict=True)) == bool(seed % 2)
            np.testing.assert_array_equal(np.concatenate([one.numpy() for one in found], 1), x.numpy())
        calling = made._calling
        if calling is not None and calling._functions:
            assert calling.quick((x,), out, 1) == out
            same = rl.Tensor(out[0].desc, out[1].buffer), out[1]
            assert calling.quick((x,), same, 1) is None


def test_parts_in_place_are_left_alone():
    x = values(SRC)
    kept = x.buffer.copy()
    made = Split(SRC, 1, (16, 32), [part.desc for part in x.parts(1, (16, 32))])
    left, right = x.parts(1, (16, 32))
    assert made(x, out=(left, right)) == (left, right)
    other = made(x, out={"dst0": left}).dst1
    assert np.array_equal(other.numpy(), right.numpy())
    assert np.array_equal(x.buffer, kept)
    longer = np.concatenate([x.buffer, x.buffer])
    whole = rl.Tensor(SRC, longer[: x.buffer.size])
    with pytest.raises(LayoutError, match="src and dst1 overlap"):
        made(whole, out={"dst1": rl.Tensor(made.dst1, longer[64:])})


class TestInASequence:
    @pytest.mark.parametrize("threads", [1, 2])
    def test_several_results_one_of_them_unused(self, threads):
        seq = Sequence()
        x = seq.input("x", SRC)
        parts = seq.add(Split(SRC, 1, (16, 16, 16)), x)
        assert [one.name for one in parts] == ["split1.dst0", "split1.dst1", "split1.dst2"]
        total = seq.add(Binary("add", parts.dst0.desc, parts.dst2.desc), parts.dst0, parts.dst2)
        seq.output(seq.add(Binary("mul", total.desc, total.desc), total, total))
        run = seq.compile(threads)
        data = values(SRC)
        np.testing.assert_array_equal(run(data).numpy(), seq.reference(data))
        [split, *rest] = run.layers()
        assert list(split.descs) == ["src", "dst0", "dst1", "dst2"]
        if machine_code():
            assert rest[0].in_place == {"dst": "src0"}
        assert run.memory.peak >= 2 * parts.dst0.desc.nbytes  # dst0 becomes the output
        again = pickle.loads(pickle.dumps(run))
        np.testing.assert_array_equal(again(data).numpy(), copy.deepcopy(run)(data).numpy())

    def test_results_are_outputs(self):
        seq = Sequence()
        for part in seq.add(Split(SRC, 1, (17, 31)), seq.input("x", SRC)):
            seq.output(part)
        run, data = seq.compile(1), values(SRC)
        for found, wanted in zip(run(data), seq.reference(data), strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sizes": (16, 16)}, r"16 \+ 16 must add up to axis 1 of src .*, 48 elements"),
        ({"sizes": (50, -2)}, "none of them negative"),
        ({"sizes": ()}, "list of numbers"),
        ({"sizes": (1.5, 2)}, "a size"),
        ({"axis": 4}, "no axis 4"),
        ({"dsts": [SRC]}, "dsts must be 2 descriptors"),
        ({"dsts": [SRC, SRC]}, "dst0 .* must be 2x16x3x5"),
        ({"dsts": ["nchw", "nchw"]}, "dst0 must be a MemoryDesc"),
        ({"src": MemoryDesc(SRC.dims, "f32", rl.any)}, "needs a format"),
    ],
)
def test_bad_descriptors_are_refused(how, message):
    with pytest.raises(LayoutError, match=message):
        Split(**{"src": SRC, "axis": 1, "sizes": (16, 32)} | how)
