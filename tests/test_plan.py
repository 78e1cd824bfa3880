"""The call path: plans are found again, by content; buffers are checked; nothing stale is used.

Every result is that of the definition, whichever engine makes it: a remembered plan runs in NumPy at first
and in machine code later, and then its checks are machine code, too, so calls that matter are made
:data:`CALLS` times.
"""

from __future__ import annotations

import copy
import importlib
import pickle
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from relayout.layout.layout import check_dims
from relayout.reorder.attributes import Attributes
from relayout.reorder.reference import reorder_by_definition
from strategies import DTYPES, element_places, examples, room_places
from test_reorder import pairs, random_bytes

plan = importlib.import_module("relayout.reorder.plan")
conversion = importlib.import_module("relayout.reorder.conversion")
tensors = importlib.import_module("relayout.tensor")
engine = importlib.import_module("relayout.reorder.engine")
CALLS = importlib.import_module("relayout.reorder.native").WORTH + 1


@pytest.fixture(autouse=True, scope="module")
def _checks_soon():
    """The checks of a plan are machine code after one call of its kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "OFTEN", 1)
        yield


def drawn_attributes(data, dims, betas=(0, 0, 1, -2)):
    """Attributes as a caller writes them: absent, numbers, or values along an axis."""

    def one(values):
        axis = data.draw(st.integers(-1, len(dims) - 1))
        if axis < 0:
            return data.draw(st.one_of(st.none(), st.sampled_from(values)))
        return data.draw(st.lists(st.sampled_from(values), min_size=dims[axis], max_size=dims[axis])), axis

    scales, points = (1, 0.5, 1 + 1e-12, -3.0), (0, 1, -7)
    return {
        "src_scale": one(scales),
        "dst_scale": one(scales),
        "src_zero_point": one(points),
        "dst_zero_point": one(points),
        "src_shift": one((0.0, 0.485, -0.0)),
        "beta": data.draw(st.sampled_from(betas)),
    }


def by_definition(src, source, dst, target, **attributes):
    """The destination's bytes afterwards."""
    expected = target.copy()
    reorder_by_definition(src, source, dst, expected, Attributes.make(src.dims, **attributes))
    return expected


@pytest.fixture
def remembered(monkeypatch):
    """A function that forbids making plans from now on, so that only remembered ones can be used."""

    def forbid():
        for name in ("uncompiled", "with_attributes"):
            monkeypatch.setattr(conversion.Conversion, name, lambda *args: pytest.fail("planned again"))

    return forbid


class TestRemembering:
    @given(data=st.data(), pair=pairs(), dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 2))
    @examples(60)
    def test_every_call_gives_what_the_definition_gives(self, data, pair, dtypes):
        """Bytes written and bytes left alone, by NumPy and by machine code, planned and as one-off."""
        assume(0 not in pair[0].dims)
        src, dst = (rl.MemoryDesc(x.dims, t, x) for x, t in zip(pair, dtypes, strict=True))
        attributes = drawn_attributes(data, src.dims)
        source, canary = random_bytes(src.required_bytes, 1), random_bytes(dst.required_bytes + 16, 2)
        expected = by_definition(src, source, dst, canary, **attributes)
        planned = rl.Reorder(src, dst, **attributes)
        for k in range(CALLS + 1):
            got = canary.copy()
            if k < CALLS:
                rl.reorder(rl.from_buffer(source, src), dst, out=rl.from_buffer(got, dst), **attributes)
            else:
                planned(source, got)
            np.testing.assert_array_equal(got, expected)

    @pytest.mark.parametrize(
        "attributes",
        [
            dict,
            lambda: {"src_scale": 0.5, "dst_zero_point": 3},
            lambda: {"dst_scale": ([1.0, 2.0, 3.0], 1)},
            lambda: {"dst_scale": (np.array([1.0, 2.0, 3.0]), -2), "src_zero_point": np.int8(1)},
            lambda: {"src_scale": np.float32(-0.0)},
        ],
    )
    @pytest.mark.parametrize("dst", ["acb", rl.Format("aBc4b"), rl.MemoryDesc((2, 3, 4), "s8", "cab"), None])
    def test_asked_for_again_nothing_is_planned(self, attributes, dst, remembered):
        source = rl.tensor(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
        first = rl.reorder(source, dst, dtype="s8", **attributes())
        remembered()
        again = rl.reorder(source, dst, dtype="s8", **attributes())
        assert again.desc == first.desc
        np.testing.assert_array_equal(again.buffer, first.buffer)

    def test_what_is_large_is_not_kept(self):
        """Room for plans is bounded by bytes as well: attributes of megabytes are used and forgotten."""
        count = plan.REMEMBERED
        source = np.ones((count, 1), np.float32)
        before = plan._with.cache_info().currsize
        made = rl.reorder(source, "ab", src_scale=(np.arange(count, dtype=np.float32), 0))
        assert plan._with.cache_info().currsize == before
        np.testing.assert_array_equal(made.numpy()[:, 0], np.arange(count))

    def test_results_are_spelled_as_asked(self):
        """Equal descriptors share kernels, not names."""
        source = rl.tensor(np.zeros((2, 3, 4, 5), np.float32))
        for format in ("nhwc", "acdb", "ohwi", "nhwc"):
            assert str(rl.reorder(source, format).desc) == f"f32:{format}:2x3x4x5"
            made = rl.tensor(np.zeros((2, 3, 4, 5), np.float32), format)
            assert str(rl.reorder(made).desc) == f"f32:{format}:2x3x4x5"

    def test_one_text_and_several_data_types(self):
        source = np.arange(6, dtype=np.float32).reshape(2, 3)
        for dtype in ("f32", "s8", None, "bf16", "s8"):
            assert rl.reorder(source, "ba", dtype=dtype).dtype == (dtype or "f32")
        out = rl.tensor(np.zeros((2, 3), np.int8), "ba")
        rl.reorder(source, "ba", out=out)
        np.testing.assert_array_equal(out.numpy(), source)


class TestValues:
    """Attribute values are those of the call (of a plan: those of its making), never older ones."""

    def test_an_array_that_changes_between_calls(self):
        source = np.ones((2, 3), np.float32)
        scales = np.array([1.0, 2.0, 3.0], np.float32)
        planned = rl.Reorder(
            rl.tensor(source).desc, rl.MemoryDesc((2, 3), "f32", "ba"), src_scale=(scales, 1)
        )
        for turn in range(2 * CALLS):
            scales[:] = turn, turn + 1, turn + 2
            made = rl.reorder(source, "ba", src_scale=(scales, 1))
            np.testing.assert_array_equal(made.numpy(), np.broadcast_to(scales, (2, 3)))
        out = np.empty(6, np.float32)
        planned(source, out)
        assert out.tolist() == [1, 1, 2, 2, 3, 3]

    @pytest.mark.parametrize("number", [float, np.float32, np.array])
    def test_zeros_of_either_sign(self, number):
        source = np.array([1.0], np.float32)
        for zero in (0.0, -0.0) * CALLS:
            made = rl.reorder(source, "a", src_scale=number(zero)).numpy()
            assert np.signbit(made[0]) == np.signbit(zero)

    def test_what_equals_a_number_but_is_none(self):
        source = np.ones((2, 3), np.float32)
        rl.reorder(source, "ba", src_scale=1, beta=0)
        for wrong in ({"src_scale": True}, {"src_scale": 1 + 0j}, {"beta": None}, {"beta": np.zeros(2)}):
            with pytest.raises(rl.LayoutError, match="must be a"):
                rl.reorder(source, "ba", **wrong)

    @given(data=st.data(), dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 2))
    @examples(60)
    def test_what_takes_part_is_all_that_matters(self, data, dtypes):
        """The NumPy engine finds the same steps neutral; ``shape`` names those that are left."""
        desc = rl.MemoryDesc((2, 3), "f32", "ab")
        src, dst = (rl.MemoryDesc((2, 3), dtype, "ba") for dtype in dtypes)
        attributes = Attributes.make(desc.dims, **drawn_attributes(data, desc.dims))
        part = attributes.taking_part(src.dtype, dst.dtype)
        assert {name for name, _ in part.shape} <= {name for name, _ in attributes.shape}
        assert part.taking_part(src.dtype, dst.dtype) == part
        source, canary = random_bytes(src.nbytes, 1), random_bytes(dst.nbytes, 2)
        results = []
        for given_attributes in (attributes, part):
            results.append(canary.copy())
            engine.reorder_numpy(src, source, dst, results[-1], given_attributes)
        np.testing.assert_array_equal(*results)

    def test_attributes_after_a_move_and_a_move_after_attributes(self):
        """A plan with attributes is made from one without, which may be compiled by then."""
        source = np.arange(12, dtype=np.float32).reshape(3, 4)
        for scale in (None, 2, 3, None, 2):
            for _ in range(CALLS):
                made = rl.reorder(source, "ba", src_scale=scale)
                np.testing.assert_array_equal(made.numpy(), source * (scale or 1))

    def test_numbers_are_printed_as_written(self):
        for scale in (2, 2.0, 2):
            assert str(Attributes.make((), src_scale=scale)) == f"src_scale {scale}"

    @given(data=st.data())
    @examples(60)
    def test_equality_is_content(self, data):
        """Made twice, from lists or arrays: equal, with one hash; other bytes or another axis: not equal."""
        dims = (3, 3)
        given_attributes = drawn_attributes(data, dims)
        one, two = (Attributes.make(dims, **copy.deepcopy(given_attributes)) for _ in range(2))
        assert one == two
        assert hash(one) == hash(two)
        other = Attributes.make(dims, **{**given_attributes, "src_scale": ([7, 8, 9], 0)})
        assert one != other
        assert other != Attributes.make(dims, **{**given_attributes, "src_scale": ([7, 8, 9], 1)})


class TestBuffers:
    @given(pair=pairs(), shift=st.integers(-40, 40), dtype=st.sampled_from(("u8", "u4")))
    @examples(100)
    def test_overlap_is_refused_and_nothing_else(self, pair, shift, dtype):
        """Two views of one buffer, anywhere: elements in common, or elements and padding that is written."""
        src, dst = (rl.MemoryDesc(layout.dims, dtype, layout) for layout in pair)
        assume(0 not in src.dims)
        at = max(0, -shift), max(0, shift)
        data = random_bytes(max(at[0] + src.required_bytes, at[1] + dst.required_bytes), 1)
        source, target = data[at[0] :][: src.required_bytes], data[at[1] :][: dst.required_bytes]
        moved = [x.moved(x.offset0 + k * 8 // src.dtype.bits) for x, k in zip(pair, at, strict=True)]
        shared = set(element_places(moved[0]).ravel().tolist()) & room_places(moved[1])
        expected = data.copy()
        if shared:
            with pytest.raises(rl.LayoutError, match="overlap in memory"):
                rl.reorder(rl.from_buffer(source, src), out=rl.from_buffer(target, dst))
        else:
            given_source = source.copy()
            rl.reorder(rl.from_buffer(source, src), out=rl.from_buffer(target, dst))
            engine.reorder_numpy(src, given_source, dst, expected[at[1] :], Attributes())
        np.testing.assert_array_equal(data, expected)

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros((2, 3), np.float32),
            np.zeros((2, 3))[:, 1:],
            np.frombuffer(b"abc", np.uint8),
            np.zeros(3, ml_dtypes.bfloat16),
            np.zeros((0, 3)),
            np.zeros(()),
            np.zeros(3, np.complex64),
        ],
    )
    def test_address(self, array):
        assert tensors.address(array) == array.ctypes.data

    def test_a_buffer_that_is_exchanged(self):
        """Neither an address nor a check outlives the buffer; with a bad one nothing is written."""
        source, target = (
            rl.tensor(np.zeros((2, 3), np.float32)),
            rl.tensor(np.zeros((2, 3), np.float32), "ba"),
        )
        planned = rl.Reorder(source.desc, target.desc)
        for turn in range(CALLS):
            values = np.full((2, 3), turn, np.float32)
            source.buffer, target.buffer = values.reshape(-1).view(np.uint8), np.empty(24, np.uint8)
            planned(source, target)
            assert (target.numpy() == turn).all()
            assert (rl.reorder(source, "ba").numpy() == turn).all()
        for bad, message in (
            (np.ones(23, np.uint8), "needs 24 bytes"),
            (np.ones(48, np.uint8)[::2], "not contig"),
        ):
            for call in (
                lambda bad=bad: rl.reorder(rl.Tensor(source.desc, bad), "ba"),
                lambda bad=bad: planned(rl.Tensor(source.desc, bad), target),
                lambda bad=bad: planned(source, rl.Tensor(target.desc, bad)),
            ):
                with pytest.raises(rl.LayoutError, match=message):
                    call()
            assert bad.all()
            assert (target.numpy() == turn).all()

    @pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
    def test_copies_have_their_own_place(self, again):
        source, out = rl.tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), np.empty(6, np.float32)
        planned = rl.Reorder(source.desc, rl.MemoryDesc((2, 3), "f32", "ba"))
        planned(source, out)
        other = again(source)
        other.buffer = other.buffer.copy()
        other.numpy()[:] = 7
        planned(other, out)
        assert (out == 7).all()
        assert source.numpy()[1, 2] == 5

    @given(pair=pairs())
    @examples(60)
    def test_a_new_buffer_has_nothing_old_in_it(self, pair):
        """Padding and holes are zero, though the memory was not."""
        src, dst = (rl.MemoryDesc(layout.dims, "f16", layout) for layout in pair)
        source = rl.from_buffer(random_bytes(src.required_bytes, 1), src)
        size = max(dst.required_bytes, dst.nbytes)
        expected = by_definition(src, source.buffer, dst, np.zeros(size, np.uint8))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                conversion,
                "aligned",
                lambda size, zeroed: np.full(size, 0 if zeroed else 0xAA, np.uint8),
            )
            for _ in range(CALLS):
                np.testing.assert_array_equal(rl.reorder(source, dst).buffer, expected)


class TestThreads:
    def work(self, job, count=6):
        wrong = []

        def turns(k):
            try:
                wrong.extend(1 for turn in range(60) if not job(k, turn))
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=turns, args=(k,)) for k in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_one_plan(self):
        array = np.arange(2 * 17 * 6, dtype=np.float32).reshape(2, 17, 6)
        dst = rl.MemoryDesc(array.shape, "s16", "aBc8b")
        planned = rl.Reorder(rl.tensor(array).desc, dst, src_scale=2, dst_zero_point=(np.arange(17), 1))

        def job(k, turn):
            made = rl.from_buffer(np.empty(dst.nbytes, np.uint8), dst)
            planned(array + k, made)
            return (made.numpy() == 2 * (array + k) + np.arange(17).reshape(1, 17, 1)).all()

        self.work(job)

    def test_one_offs_that_become_compiled_meanwhile(self):
        """All threads ask for the same new problems at once, each with values of its own as well."""
        plan._move.cache_clear()
        plan._with.cache_clear()
        array = np.arange(3 * 19 * 5, dtype=np.float32).reshape(3, 19, 5)

        def job(k, turn):
            scale = k + 1 if turn % 2 else 0.5
            made = rl.reorder(array, "acb", src_scale=scale)
            per_axis = rl.reorder(array, "bca", src_scale=(np.full(19, scale), 1))
            return all((m.numpy() == array * np.float32(scale)).all() for m in (made, per_axis))

        self.work(job)


class TestRefusals:
    def test_threads_are_checked_however_often_they_come(self):
        source = np.zeros((2, 3), np.float32)
        for _ in range(CALLS):
            rl.reorder(source, "ba", threads=1)
            for wrong in (0, 1.0, "1", [1]):
                with pytest.raises(rl.LayoutError, match="threads must be 1 or more"):
                    rl.reorder(source, "ba", threads=wrong)

    def test_truth_values_are_no_dims(self):
        for make in (
            lambda dims: rl.Layout(dims, "ab"),
            lambda dims: rl.MemoryDesc(dims, "f32", strides=(3, 1)),
            check_dims,
        ):
            make((1, 3))
            with pytest.raises(rl.LayoutError, match=r"dims must be whole numbers, .* got \(True, 3\)"):
                make((True, 3))


def test_whether_elements_share_places_is_found_out_once(monkeypatch):
    layouts = rl.Layout((2, 3), strides=(2, 3)), rl.Layout((2, 3), strides=(2, 1))
    assert [layout.is_injective() for layout in layouts] == [True, False]
    monkeypatch.setattr("relayout.layout.canonical.is_injective", lambda layout: pytest.fail("asked again"))
    assert [layout.is_injective() for layout in layouts] == [True, False]


class TestWhatAPlanIsGiven:
    """A plan takes tensors of its descriptors, arrays of its data types, and bytes."""

    desc = rl.MemoryDesc((2, 3, 4), "f32", "abc")

    def test_another_tensor_is_refused_on_either_side(self):
        view = rl.tensor(np.zeros((4, 3, 4), np.float32))[2:]
        out = np.zeros(24, np.float32)
        plan = rl.Reorder(self.desc, self.desc)
        for pair in ((view, out), (out, view), (rl.tensor(np.zeros((2, 3, 4), np.float32), "cab"), out)):
            with pytest.raises(rl.LayoutError, match="must be"):
                plan(*pair)

    def test_another_data_type_is_refused_and_bytes_are_not(self):
        out = np.zeros(24, np.float32)
        plan = rl.Reorder(self.desc, self.desc)
        with pytest.raises(rl.LayoutError, match="int32"):
            plan(np.zeros(24, np.int32), out)
        with pytest.raises(rl.LayoutError, match="float64"):
            plan(out, np.zeros(24, np.float64))
        plan(np.arange(24, dtype=np.float32).view(np.uint8), out)
        assert out.tolist() == list(range(24))
