"""Reorder: against recorded bytes, against its definition, and against what must not happen."""

from __future__ import annotations

import hashlib
import importlib
import mmap
import threading
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from relayout.convert import convert
from relayout.reorder.attributes import Attributes
from relayout.reorder.reference import reorder_by_definition
from strategies import DTYPES, examples, formats, layouts, plain_layouts, shapes

engine = importlib.import_module("relayout.reorder.engine")
ALL_TYPES = (*DTYPES, "s4", "u4")


def random_bytes(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def compare(src: rl.MemoryDesc, dst: rl.MemoryDesc, seed: int, **given_attributes: object) -> None:
    """The engine writes the bytes that the definition writes, and no others."""
    attributes = Attributes.make(src.dims, **given_attributes)
    source = random_bytes(src.required_bytes + 16, seed)
    canary = random_bytes(dst.required_bytes + 16, seed + 1)
    expected, got, kept = canary.copy(), canary.copy(), source.copy()
    reorder_by_definition(src, source, dst, expected, attributes)
    engine.reorder_numpy(src, source, dst, got, attributes)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(source, kept)


def writable(layout: rl.Layout) -> bool:
    return layout.is_injective() and layout.room().is_injective()


def in_front(layout: rl.Layout) -> rl.Layout:
    """The same layout, moved so that it begins inside its buffer."""
    return layout.moved(layout.offset0 - min(0, layout.bounds()[0]))


@st.composite
def pairs(draw):
    src = draw(layouts(zeros=True))
    kind = draw(st.integers(0, 2))
    dst = draw(layouts(dims=src.dims) if kind else plain_layouts(dims=src.dims, overlapping=False))
    if draw(st.booleans()):
        src, dst = dst, src
    assume(writable(dst))
    return in_front(src), in_front(dst)


class TestFacts:
    def test_recorded_digests(self, vectors):
        """oneDNN's bytes of 1, 2, 3, ... laid out in 839 tags and sizes, padding included."""
        cases = vectors("onednn_reorder_digests")["cases"]
        assert len(cases) > 800
        for case in cases:
            array = np.arange(1, prod(case["dims"]) + 1, dtype=np.float32).reshape(case["dims"])
            made = rl.tensor(array, case["tag"])
            assert made.buffer.size == case["size"], case
            assert hashlib.sha256(made.buffer.tobytes()).hexdigest() == case["sha256"], case
            np.testing.assert_array_equal(made.numpy(), array)

    def test_values_of_clDNN(self, vectors):
        """Literal buffers of the reorder tests of clDNN, padded sides included."""
        for case in vectors("cldnn_layout_cases")["reorder_values_2021"]:
            sides = [case.get(side) for side in ("src", "dst")]
            if any("image" in side["format"] or not isinstance(side.get("buffer"), list) for side in sides):
                continue
            if (
                any("pad_lower" in side for side in sides)
                or len({len(rl.Format(s["format"]).axis_names()) for s in sides}) > 1
            ):
                continue
            shape = sides[0]["shape"]
            dims = tuple(shape[axis] for axis in "bfzyx" if axis in shape)
            src = rl.MemoryDesc(dims, "f32", sides[0]["format"])
            moved = rl.reorder(
                rl.from_buffer(np.array(sides[0]["buffer"], np.float32), src), sides[1]["format"]
            )
            np.testing.assert_array_equal(
                moved.buffer.view(np.float32), np.array(sides[1]["buffer"], np.float32)
            )

    def test_a_photograph(self):
        """u8 nhwc to normalised f32 nChw16c in one pass.

        Per-channel mean and deviation as zero point and scale.
        """
        pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
        photo = rl.from_buffer(pixels.tobytes(), rl.MemoryDesc((2, 3, 5, 7), "u8", "nhwc"))
        mean, scale = [124, 116, 104], [1 / 58, 1 / 57, 1 / 56]
        made = rl.reorder(photo, "nChw16c", dtype="f32", src_zero_point=(mean, 1), src_scale=(scale, 1))
        logical = pixels.transpose(0, 3, 1, 2).astype(np.float32)
        shaped = [np.array(v, np.float32).reshape(1, 3, 1, 1) for v in (mean, scale)]
        np.testing.assert_array_equal(made.numpy(), shaped[1] * (logical - shaped[0]))
        assert not made.buffer.view(np.float32).reshape(-1, 16)[:, 3:].any()

    @pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
    @pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c", "nChw8c"])
    def test_pictures_are_normalised_as_torchvision_defines_it(self, format, dtype):
        """``(x / 255 - mean) / std`` in f64, rounded once: all bytes of all channels, all bits."""
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
        wanted = convert((pixels / 255 - mean) / std, dtype).transpose(0, 3, 1, 2)
        src, dst = (rl.MemoryDesc((1, 3, 16, 16), *what) for what in (("u8", "nhwc"), (dtype, format)))
        ways = (
            {"src_scale": 1 / 255, "src_shift": (mean, 1), "dst_scale": (std, 1)},
            {"src_scale": (1 / (255 * std), 1), "src_shift": (mean / std, 1)},  # a division less
        )
        for attributes in ways:
            out = rl.from_buffer(np.zeros(dst.nbytes, np.uint8), dst)
            rl.Reorder(src, dst, **attributes)(pixels, out)
            np.testing.assert_array_equal(out.numpy(), wanted)
            bits = np.zeros(dst.nbytes, np.uint8)
            engine.reorder_numpy(src, pixels.reshape(-1), dst, bits, Attributes.make(src.dims, **attributes))
            np.testing.assert_array_equal(bits, out.buffer)


class TestPredicted:
    def test_bytes_and_seconds(self):
        src, dst = (rl.MemoryDesc((1, 17, 2, 2), *what) for what in (("u8", "nhwc"), ("f32", "nChw8c")))
        moved = rl.Reorder(src, dst).predicted
        assert (moved.read, moved.written) == (17 * 4, 24 * 4 * 4)
        assert moved == (moved.read, moved.written, moved.seconds)
        assert moved.seconds > 0
        adding = rl.Reorder(src, dst, beta=1, threads=1).predicted
        assert (adding.read, adding.written) == (17 * 4 + 24 * 4 * 4, 24 * 4 * 4)

    def test_elements_that_are_there_once_are_read_once(self):
        src = rl.MemoryDesc((1000, 8), "f32", rl.Layout((1000, 8), strides=(0, 1)))
        assert rl.Reorder(src, rl.MemoryDesc((1000, 8), "s4", "ab")).predicted[:2] == (32, 4000)

    def test_nothing_takes_no_time(self):
        desc = rl.MemoryDesc((0, 3), "f32", "ab")
        assert rl.Reorder(desc, desc).predicted == (0, 0, 0.0)

    def test_explained_in_the_same_numbers(self):
        plan = rl.Reorder(*(rl.MemoryDesc((64, 64), "f32", text) for text in ("ab", "ba")))
        assert "16384 bytes read, 16384 written" in plan.explain()
        assert plan.predicted[:2] == (16384, 16384)

    def test_without_machine_code(self, monkeypatch):
        """NumPy copies then."""
        predict = importlib.import_module("relayout.reorder.predict")
        monkeypatch.setattr(predict, "_kernel", lambda: None)
        assert predict.copy_seconds(1 << 20, 1 << 20) > 0


class TestEngineIsDefinition:
    @given(pair=pairs(), dtype=st.sampled_from(ALL_TYPES), seed=st.integers(0, 9))
    @examples(250)
    def test_moves(self, pair, dtype, seed):
        src, dst = pair
        compare(rl.MemoryDesc(src.dims, dtype, src), rl.MemoryDesc(dst.dims, dtype, dst), seed)

    @given(pair=pairs(), dtypes=st.tuples(*[st.sampled_from(ALL_TYPES)] * 2), seed=st.integers(0, 9))
    @examples(150)
    def test_conversions(self, pair, dtypes, seed):
        src, dst = pair
        compare(rl.MemoryDesc(src.dims, dtypes[0], src), rl.MemoryDesc(dst.dims, dtypes[1], dst), seed)

    @given(
        data=st.data(),
        pair=pairs(),
        dtypes=st.tuples(*[st.sampled_from(ALL_TYPES)] * 2),
        seed=st.integers(0, 9),
    )
    @examples(150)
    def test_attributes(self, data, pair, dtypes, seed):
        src, dst = pair

        def drawn(values):
            axis = data.draw(st.integers(-1, len(src.dims) - 1))
            if axis < 0:
                return data.draw(st.one_of(st.none(), st.sampled_from(values)))
            return data.draw(
                st.lists(st.sampled_from(values), min_size=src.dims[axis], max_size=src.dims[axis])
            ), axis

        scales, points = (1, 0.5, 2, 0.1, -3), (0, 1, -7, 100)
        compare(
            rl.MemoryDesc(src.dims, dtypes[0], src),
            rl.MemoryDesc(dst.dims, dtypes[1], dst),
            seed,
            src_scale=drawn(scales),
            dst_scale=drawn(scales),
            src_zero_point=drawn(points),
            dst_zero_point=drawn(points),
            src_shift=drawn((0.0, 0.485, -3)),
            beta=data.draw(st.sampled_from((0, 0, 1, 0.5, -2))),
        )

    @given(
        pair=pairs(),
        most=st.sampled_from((0, 256)),
        gathered=st.sampled_from((1, 7, 1 << 20)),
        seed=st.integers(0, 9),
    )
    @examples(100)
    def test_by_tables_and_by_strides(self, pair, most, gathered, seed):
        """Both ways of visiting, in small and large portions."""
        src, dst = pair
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "MOST_PIECES", most)
            patch.setattr(engine, "GATHERED", gathered)
            compare(
                rl.MemoryDesc(src.dims, "s16", src), rl.MemoryDesc(dst.dims, "bf16", dst), seed, src_scale=0.5
            )

    @given(dims=shapes(), data=st.data(), dtype=st.sampled_from(ALL_TYPES), seed=st.integers(0, 9))
    @examples(100)
    def test_there_and_back(self, dims, data, dtype, seed):
        first, second = (rl.Layout(dims, data.draw(formats(len(dims)))) for _ in range(2))
        assume(prod(first.padded) < 10_000 and prod(second.padded) < 10_000)
        array = np.random.default_rng(seed).integers(0, 7, dims).astype(rl.dtype(dtype).numpy)
        there = rl.tensor(array, first)
        back = there.reorder(second).reorder(first)
        np.testing.assert_array_equal(back.buffer, there.buffer)
        np.testing.assert_array_equal(back.numpy(), array)


class TestBlocksThatDoNotDivide:
    @pytest.mark.parametrize(("one", "two"), [(48, 32), (7, 5), (24, 16), (3, 64), (6, 4)])
    @pytest.mark.parametrize("channels", [1, 5, 96, 97, 100])
    def test_every_pair(self, one, two, channels):
        dims = (2, channels, 3)
        compare(rl.MemoryDesc(dims, "f32", f"nCw{one}c"), rl.MemoryDesc(dims, "f32", f"nCw{two}c"), 0)

    def test_on_both_axes_with_many_levels(self):
        dims = (35, 50)
        compare(rl.MemoryDesc(dims, "s8", "AB5a7b2a"), rl.MemoryDesc(dims, "s8", "BA3b4a2b"), 0)


class TestWhatIsNotTouched:
    def test_holes_and_neighbours(self):
        whole = np.full((4, 32), 9, np.uint8)
        part = rl.tensor(whole)[1:3, 4:20:2]
        rl.reorder(np.zeros((2, 8), np.uint8), out=part)
        expected = np.full((4, 32), 9, np.uint8)
        expected[1:3, 4:20:2] = 0
        np.testing.assert_array_equal(whole, expected)

    def test_nothing_is_written_when_something_is_wrong(self):
        out = np.full(16, 7, np.float32)
        src = rl.tensor(np.zeros((2, 3), np.float32))
        for call in (
            lambda: rl.reorder(src, rl.MemoryDesc((3, 2), "f32", "ab"), out=out),
            lambda: rl.reorder(src, "ab", out=out[:5]),
            lambda: rl.reorder(src, rl.MemoryDesc((2, 3), "f32", strides=(0, 1)), out=out),
            lambda: rl.reorder(src, "ab", out=out, src_scale=([1, 2], 1)),
            lambda: rl.reorder(src, "ab", out=out, dst_scale=0),
        ):
            with pytest.raises(rl.LayoutError):
                call()
            assert (out == 7).all()

    def test_four_bit_neighbours_share_a_byte(self):
        data = np.array([0xAB, 0xCD, 0xEF], np.uint8)
        view = rl.from_buffer(data, rl.MemoryDesc((6,), "u4", "a"))[1:4]
        rl.reorder(np.array([1, 2, 3], np.uint8), rl.MemoryDesc((3,), "u4", view.layout), out=view)
        assert data.tolist() == [0x1B, 0x32, 0xEF]

    def test_four_bit_parts_are_filled_by_threads_of_their_own(self):
        """Halves that share no byte: nobody writes back what the other has just written."""
        whole = rl.tensor(np.zeros((64, 1024), np.uint8), "ab", dtype="u4")
        for turn in range(20):
            parts = whole.parts(1, (512, 512))
            values = [(turn + k) % 15 + 1 for k in range(2)]
            work = [
                threading.Thread(
                    target=rl.reorder, args=(np.full((64, 512), v, np.uint8),), kwargs={"out": p}
                )
                for v, p in zip(values, parts, strict=True)
            ]
            for thread in work:
                thread.start()
            for thread in work:
                thread.join()
            for value, part in zip(values, parts, strict=True):
                assert (part.numpy().astype(np.uint8) == value).all()

    def test_four_bit_elements_far_apart(self, tmp_path):
        """What a 4-bit reorder touches follows its elements, not the span between them."""
        desc = rl.MemoryDesc((2, 4), "u4", strides=(2**33, 2))
        with (tmp_path / "sparse").open("wb+") as file:
            file.truncate(desc.required_bytes)
            memory = mmap.mmap(file.fileno(), desc.required_bytes)
            made = rl.from_buffer(memory, desc)
            rl.reorder(np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.uint8), out=made)
            assert made.numpy().astype(int).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
            del made
            memory.close()


class TestRefusals:
    def test_different_dims(self):
        with pytest.raises(rl.LayoutError, match="same dims, got 2x3 and 3x2"):
            rl.Reorder(rl.MemoryDesc((2, 3), "f32", "ab"), rl.MemoryDesc((3, 2), "f32", "ab"))

    def test_broadcast_destination(self):
        with pytest.raises(rl.LayoutError, match="share places"):
            rl.Reorder(rl.MemoryDesc((2, 3), "f32", "ab"), rl.MemoryDesc((2, 3), "f32", strides=(0, 1)))

    def test_padding_over_elements(self):
        tight = rl.Layout((2, 3), "aB4b", strides=(3, 4))
        with pytest.raises(
            rl.LayoutError, match=r"padding of the destination .* shares places with its elements"
        ):
            rl.Reorder(rl.MemoryDesc((2, 3), "f32", "ab"), rl.MemoryDesc((2, 3), "f32", tight))

    def test_undecided(self):
        with pytest.raises(rl.LayoutError, match="not 'any'"):
            rl.Reorder(rl.MemoryDesc((2, 3), "f32", "ab"), rl.MemoryDesc((2, 3), "f32", rl.any))

    def test_overlap(self):
        data = np.arange(12, dtype=np.float32)
        whole = rl.tensor(data)
        with pytest.raises(rl.LayoutError, match="overlap in memory"):
            rl.reorder(whole[:8], out=whole[4:])
        with pytest.raises(rl.LayoutError, match="overlap in memory"):
            rl.reorder(whole[:8], out=whole[:8])
        rl.reorder(whole[0::2], out=whole[1::2])  # interleaved, but no element in common
        assert data.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
        rl.reorder(whole[:6], out=whole[6:])
        assert data[6:].tolist() == data[:6].tolist()

    def test_an_array_that_looks_logical(self):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        with pytest.raises(rl.LayoutError, match="shape of the logical array"):
            rl.reorder(array, "ba", out=np.zeros((2, 3), np.float32))
        with pytest.raises(rl.LayoutError, match="out is an array of int32"):
            rl.reorder(array, "ba", out=np.zeros(6, np.int32))
        out = np.zeros((3, 2), np.float32)
        rl.reorder(array, "ba", out=out)
        np.testing.assert_array_equal(out, array.T)

    @pytest.mark.parametrize(
        ("attributes", "message"),
        [
            ({"src_scale": [1, 2, 3]}, "say along which logical axis"),
            ({"src_scale": ([1, 2], 1)}, "needs 3 values"),
            ({"src_scale": ([1, 2], 2)}, "2x3 has 2 axes"),
            ({"src_scale": ([1, 2], 0, 0)}, "a tuple of 3"),
            ({"dst_scale": ([1, 0], 0)}, "has a 0"),
            ({"src_zero_point": 0.5}, "not whole.*src_shift"),
            ({"src_shift": ([0.5, 0.5], 1)}, "src_shift .* needs 3 values"),
            ({"src_shift": float("inf")}, "src_shift must be finite"),
            ({"src_shift": "0.5"}, "src_shift must be a number"),
            ({"src_scale": 1e39}, "src_scale 1e[+]39 becomes inf in f32"),
            ({"src_scale": (np.array([1, 1e-46, 0]), 1)}, "src_scale 1e-46 becomes 0 in f32"),
            ({"dst_scale": 1e-46}, "dst_scale 1e-46 becomes 0 in f32, the type of scales from f32 to f32"),
            ({"beta": -1e-46}, "beta -1e-46 becomes -0 in f32"),
            ({"src_scale": float("nan")}, "finite"),
            ({"src_scale": "two"}, "must be a number"),
            ({"src_scale": "2"}, "must be a number"),
            ({"src_scale": 2 + 3j}, "must be a number"),
            ({"src_scale": ([1, 2], "x")}, "an axis must be a whole number"),
            ({"src_zero_point": 2**70}, "src_zero_point"),
            ({"src_zero_point": 1e30}, "does not fit 32 bits"),
            ({"beta": None}, "beta must be a finite number"),
            ({"threads": 2.5}, "threads must be 1 or more"),
            ({"beta": float("inf")}, "beta must be a finite number"),
            ({"threads": 0}, "threads must be 1 or more"),
        ],
    )
    def test_attributes(self, attributes, message):
        desc = rl.MemoryDesc((2, 3), "f32", "ab")
        with pytest.raises(rl.LayoutError, match=message):
            rl.Reorder(desc, desc, **attributes)

    def test_beta_needs_out(self):
        with pytest.raises(rl.LayoutError, match="no out was given"):
            rl.reorder(np.zeros((2, 3)), "ab", beta=1)

    def test_out_of_another_format(self):
        out = rl.tensor(np.zeros((1, 8, 2, 2), np.float32), "nhwc")
        with pytest.raises(rl.LayoutError, match="out is f32:nhwc:1x8x2x2, which is not nchw as asked for"):
            rl.reorder(np.zeros((1, 8, 2, 2), np.float32), "nchw", out=out)
        rl.reorder(np.ones((1, 8, 2, 2), np.float32), "nChw8c", out=out)  # the same bytes at C = 8
        assert out.numpy().all()

    def test_dtype_against_descriptor(self):
        with pytest.raises(rl.LayoutError, match="but dtype s8 was asked for"):
            rl.reorder(np.zeros((2, 3)), rl.MemoryDesc((2, 3), "f32", "ab"), dtype="s8")


class TestUse:
    def test_into_tensors_and_buffers(self):
        array = np.arange(24, dtype=np.float32).reshape(1, 6, 2, 2)
        out = bytearray(1 * 8 * 4 * 4)
        made = rl.reorder(array, "nChw8c", out=out)
        np.testing.assert_array_equal(made.numpy(), array)
        target = rl.tensor(np.full((1, 6, 2, 2), 1, np.int8), "nhwc")
        assert rl.reorder(array, out=target) is target
        np.testing.assert_array_equal(target.numpy(), array)

    def test_without_a_format_the_format_stays(self):
        made = rl.tensor(np.zeros((1, 20, 2, 2)), "nChw16c")
        assert made.reorder(dtype="s8").desc == rl.MemoryDesc((1, 20, 2, 2), "s8", "nChw16c")
        assert made[:, 4:8].reorder().desc.tag == "abcd"

    def test_accumulates(self):
        out = rl.tensor(np.full((2, 3), 100, np.int8), "ba")
        rl.reorder(np.full((2, 3), 50, np.int8), out=out, beta=1)
        assert (out.numpy() == 127).all()

    def test_a_plan_is_called_often(self):
        src, dst = rl.MemoryDesc((3, 5), "s16", "ab"), rl.MemoryDesc((3, 5), "s16", "ba")
        plan = rl.Reorder(src, dst)
        out = np.empty(15, np.int16)
        for seed in range(3):
            data = np.random.default_rng(seed).integers(-99, 99, (3, 5), dtype=np.int16)
            plan(data, out)
            np.testing.assert_array_equal(out.reshape(5, 3).T, data)
        with pytest.raises(rl.LayoutError, match="needs 30 bytes; its buffer has 28"):
            plan(data, out[:14])
        assert "loops" in plan.explain()
        assert repr(plan) == "Reorder('s16:ab:3x5', 's16:ba:3x5', attributes: none)"

    def test_from_many_threads(self):
        array = np.arange(2 * 37 * 8 * 8, dtype=np.float32).reshape(2, 37, 8, 8)
        expected = rl.tensor(array, "nChw8c").buffer.tobytes()
        wrong = []

        def work():
            for _ in range(20):
                same = rl.reorder(array, "nChw8c").buffer.tobytes() == expected
                wrong.extend([] if same else [1])

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_more_elements_than_fit_32_bits(self):
        """A view of a tensor of 2**31 + some elements, which takes no memory: one byte, broadcast."""
        big = rl.tensor(np.zeros(1, np.uint8)).broadcast_to(2**31 + 8)
        assert rl.reorder(big[2**31 :], "a").dims == (8,)
        desc = rl.MemoryDesc((2**17, 2**17, 3), "u8", "aBc16b")
        part = desc.submemory((1, 16, 3), (2**17 - 1, 2**17 - 16, 0))
        assert part.offset0 == (2**17 - 1) * 2**17 * 3 + (2**17 - 16) * 3

    def test_scalars_and_empty_tensors(self):
        assert rl.reorder(np.float32(2.5), dtype="s8").numpy() == 2
        assert rl.reorder(np.zeros((0, 3), np.float32), "ba").numpy().shape == (0, 3)
        assert rl.reorder(np.zeros((2, 0), np.float32), "aB8b").buffer.size == 0
