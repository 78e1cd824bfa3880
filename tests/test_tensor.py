"""Tensors: sharing, laying out, views, exchange with NumPy and others."""

from __future__ import annotations

import mmap
import pickle

import ml_dtypes
import numpy as np
import pytest

import relayout as rl
from relayout.primitives import Eltwise

DTYPES = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "s64", "s32", "s16", "s8", "u8", "s4", "u4")


def counting(shape, dtype="f32"):
    values = np.arange(int(np.prod(shape))) % 7
    return values.reshape(shape).astype(rl.dtype(dtype).numpy)


class TestSharing:
    def test_a_tensor_without_format_shares_the_array(self):
        array = counting((2, 3, 4))
        made = rl.tensor(array)
        assert np.shares_memory(made.buffer, array)
        assert made.desc == rl.MemoryDesc((2, 3, 4), "f32", "abc")
        array[1, 2, 3] = 99
        assert made.numpy()[1, 2, 3] == 99

    @pytest.mark.parametrize(
        "view",
        [
            lambda a: a.transpose(2, 0, 1),
            lambda a: a[::2, 1:, ::3],
            lambda a: a[::-1, :, ::-2],
            lambda a: a[:, None, 1],
            lambda a: np.broadcast_to(a[:, :1], a.shape),
            lambda a: a[1:1],
            lambda a: a[0, 0, 0],
        ],
    )
    @pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
    def test_any_strides_are_shared_and_read_back(self, view, dtype):
        array = view(counting((4, 5, 6), dtype))
        made = rl.tensor(array)
        assert made.dims == array.shape
        assert made.desc.dtype == dtype
        assert not array.ndim or not array.size or np.shares_memory(made.buffer, array)
        np.testing.assert_array_equal(made.numpy(), array)
        assert made.numpy().dtype == array.dtype

    def test_read_only_stays_read_only(self):
        array = counting((2, 3))
        array.flags.writeable = False
        made = rl.tensor(array)
        assert not made.buffer.flags.writeable
        with pytest.raises(rl.LayoutError, match="read-only"):
            rl.reorder(counting((2, 3)), out=made)

    def test_strides_that_are_no_multiple_of_the_element(self):
        records = np.zeros(4, dtype=[("a", "f4"), ("b", "u1")])
        with pytest.raises(rl.LayoutError, match=r"strides \(5,\) \(bytes\).* 4-byte elements"):
            rl.tensor(records["a"])

    def test_lists_numbers_and_other_tensors(self):
        assert rl.tensor([[1.0, 2.0]]).desc.dtype == "f64"
        assert rl.tensor(3.5).numpy() == 3.5
        made = rl.tensor([1, 2, 3])
        assert rl.tensor(made) is made
        assert rl.tensor(made, dtype="s8").dtype == "s8"

    def test_data_types_that_are_none(self):
        with pytest.raises(rl.LayoutError, match="complex"):
            rl.tensor(np.zeros(3, complex))

    def test_masked_arrays_have_no_values(self):
        with pytest.raises(rl.LayoutError, match="masked array"):
            rl.tensor(np.ma.masked_array([1.0, 2.0], mask=[0, 1]))

    @pytest.mark.parametrize("dtype", ["f32", "s4"])
    def test_axes_are_counted(self, dtype):
        array = counting((1,) * 13, dtype)
        assert rl.tensor(array[0]).desc.rank == 12
        words = "dims 1x1.* are 13 axes; memory descriptors have at most 12"
        with pytest.raises(rl.LayoutError, match=words):
            rl.tensor(array)
        with pytest.raises(rl.LayoutError, match=words):
            rl.tensor(array[0]).unsqueeze(0)
        with pytest.raises(rl.LayoutError, match=words):
            rl.tensor(array[0])[None]

    def test_broadcast_views_are_read_only(self):
        wide = rl.tensor(np.zeros((1, 3))).broadcast_to(4, 3).numpy()
        with pytest.raises(ValueError, match="read-only"):
            wide[0, 0] = 1

    def test_dlpack(self):
        class Foreign:
            """Only DLPack, no __array__."""

            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        array = counting((2, 3)).T
        made = rl.tensor(Foreign(array))
        assert made.desc.strides == (1, 3)
        shared = np.from_dlpack(rl.tensor(array))
        assert np.shares_memory(shared, array)
        np.testing.assert_array_equal(shared, array)
        with pytest.raises(BufferError, match="without a copy"):
            np.from_dlpack(rl.tensor(counting((1, 8, 2, 2)), "nChw8c"))


class TestLayingOut:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw8c", "NChw16n16c"])
    def test_there_and_back(self, dtype, format):
        array = counting((3, 18, 2, 4), dtype)
        made = rl.tensor(array, format)
        assert made.desc == rl.MemoryDesc((3, 18, 2, 4), dtype, format)
        assert made.buffer.nbytes == made.desc.nbytes
        np.testing.assert_array_equal(made.numpy(), array)

    def test_padding_is_zero_and_alignment_64(self):
        made = rl.tensor(np.ones((1, 3, 2, 2), np.float32), "nChw16c")
        assert made.buffer.view(np.float32).reshape(4, 16)[:, 3:].any() == np.False_
        assert made.buffer.ctypes.data % 64 == 0

    def test_four_bit_elements_are_packed(self):
        array = np.array([[1, -2, 3, -4]], ml_dtypes.int4)
        made = rl.tensor(array)
        assert made.buffer.tolist() == [0xE1, 0xC3]
        assert made.numpy().dtype == ml_dtypes.int4
        np.testing.assert_array_equal(made.numpy(), array)

    def test_numpy_copies_only_where_it_must(self):
        plain = rl.tensor(counting((2, 3, 4, 5)), "nhwc")
        assert np.shares_memory(plain.numpy(), plain.buffer)
        assert not np.shares_memory(plain.numpy(copy=True), plain.buffer)
        blocked = rl.tensor(counting((2, 3, 4, 5)), "nChw8c")
        with pytest.raises(rl.LayoutError, match="more than strides"):
            blocked.numpy(copy=False)
        np.testing.assert_array_equal(np.asarray(blocked, np.float64), counting((2, 3, 4, 5)))

    def test_any_is_no_layout(self):
        with pytest.raises(rl.LayoutError, match="any"):
            rl.tensor(counting((2, 3)), rl.MemoryDesc((2, 3), "f32", rl.any))


class TestFromBuffer:
    def test_every_kind_of_buffer(self, tmp_path):
        desc = rl.MemoryDesc((2, 3), "u8", "ba")
        expected = np.array([[0, 2, 4], [1, 3, 5]], np.uint8)
        raw = bytes(range(6))
        path = tmp_path / "six"
        path.write_bytes(raw)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            made = rl.from_buffer(mapped, desc)
            np.testing.assert_array_equal(made.numpy(), expected)
            del made
        for buffer in (raw, bytearray(raw), memoryview(raw), np.frombuffer(raw, np.uint16)):
            np.testing.assert_array_equal(rl.from_buffer(buffer, desc).numpy(), expected)

    def test_shares_writable_memory(self):
        data = bytearray(8)
        made = rl.from_buffer(data, rl.MemoryDesc((2,), "f32", "a"))
        rl.reorder(np.array([1, 2], np.float32), out=made)
        assert bytes(data) == np.array([1, 2], np.float32).tobytes()

    def test_too_short(self):
        with pytest.raises(rl.LayoutError, match=r"needs 3840 bytes; the buffer has 3839"):
            rl.from_buffer(bytes(3839), rl.MemoryDesc((2, 17, 5, 4), "f32", "nChw8c"))

    def test_not_contiguous_or_no_buffer(self):
        desc = rl.MemoryDesc((2,), "u8", "a")
        with pytest.raises(rl.LayoutError, match="not contiguous"):
            rl.from_buffer(np.zeros(8, np.uint8)[::2], desc)
        with pytest.raises(rl.LayoutError, match="str is no contiguous buffer"):
            rl.from_buffer("text", desc)

    def test_undecided(self):
        with pytest.raises(rl.LayoutError, match="no layout yet"):
            rl.from_buffer(bytes(9), rl.MemoryDesc((2,), "u8", rl.any))

    def test_empty(self):
        assert rl.from_buffer(b"", rl.MemoryDesc((0, 3), "f32", "ab")).numpy().shape == (0, 3)

    def test_what_is_no_descriptor(self):
        with pytest.raises(rl.LayoutError, match=r"no data type; got str 'nChw8c'. Give rl.MemoryDesc\(dims"):
            rl.from_buffer(bytes(8), "nChw8c")
        with pytest.raises(rl.LayoutError, match=r"got relayout.layout.Layout|got relayout.Layout"):
            rl.from_buffer(bytes(8), rl.Layout((8,), "a"))


class TestNumbers:
    """What ``ndarray`` says of one element, ``Tensor`` says: numbers of Python's own types."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("format", ["abcd", "aBcd8b", "dcba"])
    def test_every_element(self, dtype, format):
        array = counting((2, 3, 2, 2), dtype)
        if rl.dtype(dtype).is_signed:
            array = -array
        made = rl.tensor(array, format)
        number = float if made.dtype.is_float else int
        for index in np.ndindex(array.shape):
            value = made.item(*index)
            assert type(value) is number
            assert value == number(array[index])
            one = made[index]
            assert (float(one), int(one), bool(one)) == (value, value, value != 0)
            assert float(one.reshape(1, 1)) == one.item() == value
        listed = made.tolist()
        assert listed == array.astype(np.float64).tolist()
        assert type(listed[1][2][1][1]) is number
        assert made.item(-1, -1, -1, -1) == number(array[-1, -1, -1, -1])

    def test_the_ends_of_the_ranges(self):
        for dtype in DTYPES:
            kind = rl.dtype(dtype)
            for value in (kind.min, kind.max):
                made = rl.tensor(np.array([value]).astype(kind.numpy))
                assert made.item() == value
                assert made.tolist() == [value]

    def test_whole_numbers_stay_exact(self):
        assert int(rl.tensor(2**62 + 1)) == 2**62 + 1
        assert int(rl.tensor(np.float32([[2.5]]))) == 2

    @pytest.mark.parametrize("dims", [(2, 3), (0,), (1, 0)])
    @pytest.mark.parametrize("call", [float, int, bool, rl.Tensor.item])
    def test_several_or_no_elements_are_no_number(self, call, dims):
        made = rl.tensor(np.zeros(dims, np.float32))
        with pytest.raises(
            rl.LayoutError, match=rf"f32:.* has {made.layout.size} elements; only .* with one"
        ):
            call(made)

    def test_an_index_has_a_number_for_each_axis(self):
        for index in ((1,), (0, 0, -1)):
            with pytest.raises(rl.LayoutError, match=r"2 axes|indices"):
                rl.tensor(np.zeros((2, 3))).item(*index)
        with pytest.raises(rl.LayoutError, match="out of bounds"):
            rl.tensor(np.zeros((2, 3))).item(1, 3)

    def test_tolist_of_a_number_and_of_nothing(self):
        assert rl.tensor(3.5).tolist() == 3.5
        assert rl.tensor(np.zeros((2, 0))).tolist() == [[], []]


def frozen():
    array = np.zeros((2, 3), np.float32)
    array.flags.writeable = False
    return array


def mapped(tmp_path):
    path = tmp_path / "zeros.npy"
    np.save(path, frozen())
    return np.load(path, mmap_mode="r")


TARGET = rl.MemoryDesc((2, 3), "f32", "ab")
WIDE = np.broadcast_to(np.zeros(3, np.float32), (2, 3))
READ_ONLY = {
    "array": lambda _: frozen(),
    "view of an array": lambda _: frozen()[:, :],
    "mapped file": mapped,
    "bytes": lambda _: bytes(24),
    "memoryview": lambda _: memoryview(bytearray(24)).toreadonly(),
    "broadcast array": lambda _: WIDE,
    "tensor": lambda _: rl.tensor(frozen()),
    "tensor in another order": lambda _: rl.tensor(frozen().reshape(3, 2).T),
    "tensor backwards": lambda _: rl.tensor(frozen()[::-1, ::-1]),
    "tensor of a mapped file": lambda tmp_path: rl.tensor(mapped(tmp_path)),
    "tensor of bytes": lambda _: rl.from_buffer(bytes(24), TARGET),
    "tensor of a buffer": lambda _: rl.from_buffer(frozen(), TARGET),
    "view of a tensor": lambda _: rl.tensor(frozen()).permute(1, 0).permute(1, 0),
    "tensor of a broadcast array": lambda _: rl.tensor(WIDE),
    "broadcast view": lambda _: rl.tensor(np.zeros((1, 3), np.float32)).broadcast_to(2, 3),
}


class TestReadOnly:
    """Nothing is written to memory whose owner calls it read-only, whichever way it comes."""

    @pytest.mark.parametrize("make", READ_ONLY.values(), ids=READ_ONLY)
    def test_no_call_writes(self, make, tmp_path):
        source, out = np.ones((2, 3), np.float32), make(tmp_path)
        desc = out.desc if isinstance(out, rl.Tensor) else TARGET
        with pytest.raises(rl.LayoutError, match=r"read-only|not contiguous|share places"):
            rl.reorder(source, desc, out=out)
        with pytest.raises(rl.LayoutError, match=r"read-only|not contiguous|share places"):
            rl.Reorder(TARGET, desc)(source, out)
        relu = Eltwise(TARGET, "relu")
        for _ in range(40):  # until it is called in machine code
            with pytest.raises(rl.LayoutError, match=r"read-only|not contiguous|must be"):
                relu(source, out=out)
            relu(rl.tensor(source))
        assert not np.asarray(out if isinstance(out, (rl.Tensor, np.ndarray)) else bytearray(out)).any()

    def test_a_plan_in_machine_code_does_not(self):
        plan, source, out = rl.Reorder(TARGET, TARGET), np.ones((2, 3), np.float32), np.empty(6, np.float32)
        for _ in range(100):
            plan(source, out)
        for given in (frozen(), frozen().reshape(6), rl.tensor(frozen())):
            with pytest.raises(rl.LayoutError, match="read-only"):
                plan(source, given)

    def test_what_is_handed_out_is_read_only_too(self):
        made = rl.tensor(frozen())
        for array in (
            made.numpy(),
            np.asarray(made),
            made.buffer,
            made.numpy(copy=False),
            np.from_dlpack(made),
        ):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 1
        made.numpy(copy=True)[...] = 1
        with pytest.raises(BufferError, match="read-only"):
            made.__dlpack__(copy=False, max_version=(1, 0))  # PyTorch does not look at the capsule's flag


class TestViews:
    def test_indexing_like_numpy(self):
        array = counting((4, 6, 5, 3))
        for format in ("nchw", "nhwc", "nChw4c", "Nchw2n"):
            made = rl.tensor(array, format)
            for key in (
                np.s_[1],
                np.s_[..., 2],
                np.s_[:, 4:],
                np.s_[1:3, ..., ::2],
                np.s_[None, 0, :, None],
                np.s_[::2, :4, ::-1],
                np.s_[-1, -2, -3, -1],
            ):
                part = made[key]
                assert part.buffer is made.buffer
                np.testing.assert_array_equal(part.numpy(), array[key])

    def test_what_indexing_refuses(self):
        made = rl.tensor(counting((4, 40)), "Ba16b")
        with pytest.raises(rl.LayoutError, match="indexing by arrays copies"):
            made[[0, 1]]
        with pytest.raises(rl.LayoutError, match="has 2 axes; got 3 indices"):
            made[0, 0, 0]
        with pytest.raises(rl.LayoutError, match=r"one '\.\.\.' only"):
            made[..., ...]
        with pytest.raises(rl.LayoutError, match="out of bounds"):
            made[4]
        with pytest.raises(rl.LayoutError, match="cut at uneven places"):
            made[:, 3:40]

    def test_method_views(self):
        array = counting((2, 6, 4, 4))
        made = rl.tensor(array, "nhwc")
        np.testing.assert_array_equal(made.permute(3, 1, 0, 2).numpy(), array.transpose(3, 1, 0, 2))
        np.testing.assert_array_equal(made.transpose(1, 2).numpy(), array.swapaxes(1, 2))
        np.testing.assert_array_equal(made.reshape(2, 3, 32).numpy(), array.reshape(2, 3, 32))
        np.testing.assert_array_equal(made.reshape((-1, 8)).numpy(), array.reshape(-1, 8))
        np.testing.assert_array_equal(made.split(1, 2, 3).numpy(), array.reshape(2, 2, 3, 4, 4))
        np.testing.assert_array_equal(made.merge(1, 3).numpy(), array.reshape(2, 96))
        np.testing.assert_array_equal(made.unsqueeze(1).squeeze().numpy(), array)
        np.testing.assert_array_equal(
            made[:, :1].broadcast_to(2, 5, 4, 4).numpy(), np.broadcast_to(array[:, :1], (2, 5, 4, 4))
        )
        assert made.permute_axes((1, 2, 3, 0)).dims == (4, 2, 6, 4)
        assert made.submemory((1, 2, 4, 4), (1, 2, 0, 0)).desc.offset0 == 98

    def test_concat_in_place(self):
        parts = [counting((1, c, 2, 2)) + c for c in (16, 32, 16)]
        result = rl.tensor(np.zeros((1, 64, 2, 2), np.float32), "nChw16c")
        for source, place in zip(parts, result.parts(1, (16, 32, 16)), strict=True):
            rl.reorder(rl.tensor(source, "nhwc"), out=place)
        np.testing.assert_array_equal(result.numpy(), np.concatenate(parts, axis=1))

    def test_concat_of_parts_inside_blocks(self):
        parts = [counting((1, c, 2, 2)) + c for c in (4, 8, 3)]
        result = rl.tensor(np.zeros((1, 15, 2, 2), np.float32), "nChw16c")
        for source, place in zip(parts, result.parts(1, (4, 8, 3)), strict=True):
            rl.reorder(source, out=place)
        np.testing.assert_array_equal(result.numpy(), np.concatenate(parts, axis=1))
        assert not result.buffer.view(np.float32).reshape(-1, 16)[:, 15].any()

    def test_parts_that_do_not_add_up(self):
        with pytest.raises(rl.LayoutError, match=r"16 \+ 8 elements don't make up axis 1 .* which has 32"):
            rl.tensor(np.zeros((1, 32))).parts(1, (16, 8))

    def test_a_view_never_zeroes_its_neighbours(self):
        whole = rl.tensor(np.full((1, 32, 2, 2), 7, np.float32), "nChw16c")
        view = whole[:, :17]  # ends inside the second block: what follows is the neighbour's
        rl.reorder(np.zeros((1, 17, 2, 2), np.float32), out=view)
        expected = np.full((1, 32, 2, 2), 7, np.float32)
        expected[:, :17] = 0
        np.testing.assert_array_equal(whole.numpy(), expected)


def test_printing_and_length():
    made = rl.tensor(np.zeros((2, 3), np.float32))
    assert repr(made) == "Tensor('f32:ab:2x3')"
    assert len(made) == 2
    with pytest.raises(TypeError):
        len(rl.tensor(1.0))


@pytest.mark.parametrize("format", ["abcd", "acdb", "ABcd2a4b"])
def test_iterating_goes_over_axis_0(format):
    array = counting((3, 5, 2, 2))
    made = list(rl.tensor(array, format))
    assert len(made) == 3
    for part, wanted in zip(made, array, strict=True):
        np.testing.assert_array_equal(part.numpy(), wanted)
    assert list(rl.tensor(np.zeros((0, 2), np.float32))) == []
    with pytest.raises(TypeError):
        iter(rl.tensor(1.0))


def test_a_refused_number_of_threads_is_shown_as_it_was_given():
    with pytest.raises(rl.LayoutError, match="threads must be 1 or more, got '2'"):
        rl.reorder(counting((2, 3)), "ba", threads="2")


def test_pickling():
    made = rl.tensor(counting((2, 9, 2, 2)), "nChw8c")
    again = pickle.loads(pickle.dumps(made))
    assert again.desc == made.desc
    np.testing.assert_array_equal(again.numpy(), made.numpy())
