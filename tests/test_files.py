"""Tensors in files: what is written is read back, others can read it, and no bytes break a reader."""

from __future__ import annotations

import errno
import io
import json
import mmap
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import files
from relayout.exchange import mapped
from relayout.files import atomic, conversion, npz
from relayout.files.arrays import physical_shape, stored_form
from relayout.files.descriptor import descriptor_from_text
from strategies import examples, layouts
from test_plan import drawn_attributes

DTYPES = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "s64", "s32", "s16", "s8", "u8", "s4", "u4")
FORMATS = {
    "nchw": (2, 17, 3, 4),
    "nhwc": (2, 17, 3, 4),
    "nChw8c": (2, 17, 3, 4),
    "OIhw4i16o4i": (20, 18, 1, 2),
    "ba": (3, 6),
    "a": (5,),
    "oihw -> i, (h w)//2, o//16, (h w)%2, o%16": (5, 3, 3, 3),
    "oihw -> o//32, i//4, h, w, o%2, o//2%16, i%4": (40, 6, 2, 1),
}
CONTAINERS = (".npy", ".npz", ".safetensors", ".bin", ".raw")
HALVES = {"nhwc": (2, 18, 3, 4), "oihw -> i, (h w)//2, o//16, (h w)%2, o%16": (5, 3, 3, 3)}


def counting(dims, dtype="f32"):
    values = np.arange(int(np.prod(dims))) % 7
    return values.reshape(dims).astype(rl.dtype(dtype).numpy)


def made(dims, format, dtype="f32"):
    return rl.tensor(counting(dims, dtype), format)


def same(one, two):
    return np.array_equal(one.numpy().astype(np.float64), two.numpy().astype(np.float64))


def png(*chunks):
    """A png of the chunks, each its kind and its body."""
    parts = [struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def npy_bytes(array):
    """What ``numpy.save`` writes."""
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


class TestRoundTrips:
    @pytest.mark.parametrize("suffix", CONTAINERS)
    @pytest.mark.parametrize("format", FORMATS)
    def test_every_format_in_every_container(self, tmp_path, suffix, format):
        tensor = made(FORMATS[format], format)
        path = tmp_path / f"x{suffix}"
        files.write(path, tensor)
        back = files.read(path)
        assert back.desc == tensor.desc
        assert back.layout.same_bytes(tensor.layout)
        assert bytes(back.buffer) == bytes(tensor.buffer)
        assert not back.buffer.flags.writeable

    @pytest.mark.parametrize("suffix", CONTAINERS)
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("format", ["abcd", "nhwc", "nChw8c"])
    def test_every_data_type_in_every_container(self, tmp_path, suffix, dtype, format):
        dims = (2, 18, 3, 4)
        tensor = rl.reorder(rl.tensor(counting(dims, dtype)), format)
        path = tmp_path / f"x{suffix}"
        files.write(path, tensor)
        back = files.read(path)
        assert back.desc == tensor.desc
        assert same(back, tensor)

    @examples(30)
    @given(data=st.data(), suffix=st.sampled_from(CONTAINERS), dtype=st.sampled_from(("f32", "bf16", "u8")))
    def test_any_layout(self, tmp_path_factory, data, suffix, dtype):
        layout = data.draw(layouts())
        low, high = layout.bounds()
        layout = layout.moved(layout.offset0 - low)
        desc = rl.MemoryDesc(layout.dims, dtype, layout)
        buffer = np.resize(np.arange(1, 100, dtype=np.uint8), max(1, (high - low + 1) * desc.dtype.bits // 8))
        tensor = rl.from_buffer(buffer, desc)
        path = tmp_path_factory.mktemp("any") / f"x{suffix}"
        if not layout.room().is_injective():
            with pytest.raises(rl.LayoutError, match="share places"):
                files.write(path, tensor)
            assert list(path.parent.iterdir()) == []
            return
        files.write(path, tensor)
        back = files.read(path)
        assert (back.dims, back.dtype) == (tensor.dims, tensor.dtype)
        assert same(back, tensor)
        assert back.layout.offset0 - back.layout.bounds()[0] == layout.offset0 or 0 in layout.dims

    @pytest.mark.parametrize("suffix", CONTAINERS)
    @pytest.mark.parametrize("dims", [(), (0,), (2, 0, 3), (1, 1)])
    def test_scalars_and_empty_tensors(self, tmp_path, suffix, dims):
        tensor = rl.tensor(np.ones(dims, np.float32))
        path = tmp_path / f"x{suffix}"
        files.write(path, tensor)
        back = files.read(path)
        assert back.dims == dims
        assert np.array_equal(back.numpy(), tensor.numpy())

    @pytest.mark.parametrize("suffix", CONTAINERS)
    def test_a_part_keeps_its_strides_and_zeros_its_holes(self, tmp_path, suffix):
        whole = made((2, 32, 4, 5), "nChw16c")
        part = whole[:, 16:, 1:3, ::2]
        path = tmp_path / f"x{suffix}"
        files.write(path, part)
        back = files.read(path)
        assert np.array_equal(back.numpy(), part.numpy())
        assert back.layout.ladders == part.layout.ladders
        owned = {back.layout.offset(*index) for index in np.ndindex(*back.dims)}
        stored = back.buffer.view(np.float32)
        assert all(stored[k] == 0 for k in range(stored.size) if k not in owned)

    def test_views_backwards(self, tmp_path):
        part = rl.tensor(np.arange(12.0).reshape(3, 4))[::-1, ::-2]
        files.write(tmp_path / "x.bin", part)
        assert np.array_equal(files.read(tmp_path / "x.bin").numpy(), part.numpy())


class TestWhatOthersSee:
    """The arrays are those of NumPy and of the safetensors format: physical shape, C order."""

    @pytest.mark.parametrize(
        ("format", "shape"),
        [
            ("nchw", (2, 17, 3, 4)),
            ("nhwc", (2, 3, 4, 17)),
            ("nChw8c", (2, 3, 3, 4, 8)),
            ("chwn", (17, 3, 4, 2)),
        ],
    )
    def test_physical_shape(self, tmp_path, format, shape):
        tensor = made((2, 17, 3, 4), format)
        files.write(tmp_path / "x.npy", tensor)
        files.write(tmp_path / "x.npz", tensor, name="x")
        array = np.load(tmp_path / "x.npy", allow_pickle=False)
        assert array.shape == shape == physical_shape(tensor.desc)
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert array.tobytes() == bytes(tensor.buffer)
        with np.load(tmp_path / "x.npz", allow_pickle=False) as archive:
            assert np.array_equal(archive["x"], array)
        logical = tensor.numpy()
        if format == "nhwc":
            assert np.array_equal(array, logical.transpose(0, 2, 3, 1))
        if format == "nChw8c":
            padded = np.zeros((2, 24, 3, 4), np.float32)
            padded[:, :17] = logical
            assert np.array_equal(array, padded.reshape(2, 3, 8, 3, 4).transpose(0, 1, 3, 4, 2))

    def test_row_major_needs_no_descriptor(self, tmp_path):
        files.write(tmp_path / "x.npy", made((2, 3), "ab"))
        files.write(tmp_path / "y.npy", made((2, 3), "ba"))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["x.npy", "y.npy", "y.npy.layout.json"]
        assert json.loads((tmp_path / "y.npy.layout.json").read_text()) == {
            "relayout": 1,
            "dims": [2, 3],
            "dtype": "f32",
            "format": "ba",
        }

    def test_bf16_in_npy_is_opaque_and_named_beside(self, tmp_path):
        tensor = made((2, 3), "ab", "bf16")
        files.write(tmp_path / "x.npy", tensor)
        assert np.load(tmp_path / "x.npy").dtype.str == "|V2"
        (tmp_path / "x.npy.layout.json").unlink()
        with pytest.raises(rl.LayoutError, match="2 bytes whose type"):
            files.read(tmp_path / "x.npy")
        assert same(files.read(tmp_path / "x.npy", dtype="bf16"), tensor)

    def test_safetensors_header(self, tmp_path):
        files.write(tmp_path / "x.safetensors", made((1, 17, 2, 2), "nChw8c", "f8_e4m3"), name="w")
        data = (tmp_path / "x.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        assert (8 + length) % 8 == 0
        assert header["w"] == {"dtype": "F8_E4M3", "shape": [1, 3, 2, 2, 8], "data_offsets": [0, 96]}
        assert len(data) == 8 + length + 96
        assert all(isinstance(value, str) for value in header["__metadata__"].values())

    def test_arrays_of_others(self, tmp_path):
        array = counting((2, 3, 4, 5))
        np.save(tmp_path / "c.npy", array)
        np.save(tmp_path / "f.npy", np.asfortranarray(array))
        assert files.read(tmp_path / "c.npy").desc == rl.MemoryDesc((2, 3, 4, 5), "f32", "abcd")
        for name in "cf":
            assert np.array_equal(files.read(tmp_path / f"{name}.npy").numpy(), array)
            pixels = files.read(tmp_path / f"{name}.npy", "nhwc")
            assert pixels.dims == (2, 5, 3, 4)
            assert np.array_equal(pixels.numpy(), array.transpose(0, 3, 1, 2))
        assert files.read(tmp_path / "f.npy").desc.strides == (1, 2, 6, 24)
        np.savez_compressed(tmp_path / "z.npz", one=array, two=array[0])
        assert np.array_equal(files.read(tmp_path / "z.npz", name="two").numpy(), array[0])
        np.savez(tmp_path / "s.npz", array)
        assert np.array_equal(files.read(tmp_path / "s.npz").numpy(), array)

    def test_blocked_arrays_of_others(self, tmp_path):
        tensor = made((1, 17, 2, 2), "nChw8c")
        physical = tensor.buffer.view(np.float32)
        for name, array in (("p", physical.reshape(1, 3, 2, 2, 8)), ("flat", physical)):
            np.save(tmp_path / f"{name}.npy", array)
            back = files.read(tmp_path / f"{name}.npy", "nChw8c", dims=(1, 17, 2, 2))
            assert np.array_equal(back.numpy(), tensor.numpy())
        with pytest.raises(rl.LayoutError, match="say the dims"):
            files.read(tmp_path / "p.npy", "nChw8c")
        with pytest.raises(rl.LayoutError, match=r"stored as an array of shape \[1, 5, 2, 2, 8\]"):
            files.read(tmp_path / "p.npy", "nChw8c", dims=(1, 33, 2, 2))

    def test_mixed_safetensors(self, tmp_path):
        """As other programs write them: several arrays, types that are not ours, metadata of their own."""
        header = {
            "__metadata__": {"format": "pt"},
            "mask": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]},
            "w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [3, 11]},
            "ids": {"dtype": "U16", "shape": [1], "data_offsets": [11, 13]},
        }
        text = json.dumps(header).encode()
        payload = bytes([1, 0, 1]) + np.array([0x3F80, 0x4000, 0x4040, 0x4080], np.uint16).tobytes() + b"\1\0"
        path = tmp_path / "m.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text + payload)
        assert files.read(path, name="w").numpy().astype(np.float32).tolist() == [[1, 2], [3, 4]]
        with pytest.raises(rl.LayoutError, match="3 arrays: mask, w, ids; name the one"):
            files.read(path)
        with pytest.raises(rl.LayoutError, match="'BOOL'"):
            files.read(path, name="mask")
        assert files.read(path, name="ids", dtype="f16").dims == (1,)

    def test_pictures(self, tmp_path):
        image = pytest.importorskip("PIL.Image")
        pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)
        for mode, channels in (("L", 1), ("RGB", 3), ("RGBA", 4)):
            array = pixels[..., 0] if channels == 1 else pixels[..., :channels]
            image.fromarray(array, mode).save(tmp_path / f"{mode}.png")
            tensor = files.read(tmp_path / f"{mode}.png")
            assert tensor.desc == rl.MemoryDesc((1, channels, 5, 7), "u8", "nhwc")
            assert np.array_equal(tensor.numpy()[0], array.reshape(5, 7, channels).transpose(2, 0, 1))
            files.write(tmp_path / "again.png", tensor, force=True)
            assert np.array_equal(np.asarray(image.open(tmp_path / "again.png")), array)
        grey = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1000
        image.fromarray(grey).save(tmp_path / "grey16.png")
        assert np.array_equal(files.read(tmp_path / "grey16.png").numpy()[0, 0], grey)
        image.fromarray(pixels[..., :3], "RGB").quantize(8).save(tmp_path / "palette.png")
        assert files.read(tmp_path / "palette.png").dims == (1, 3, 5, 7)
        files.write(tmp_path / "x.jpg", files.read(tmp_path / "RGB.png"))
        assert files.read(tmp_path / "x.jpg").dims == (1, 3, 5, 7)

    @pytest.mark.parametrize("colour", [0, 2, 4, 6])
    def test_sixteen_bits_a_channel(self, tmp_path, colour):
        """Pillow cuts colours of 16 bits to 8 without a word; grey ones it does not."""
        pytest.importorskip("PIL")
        channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
        path = tmp_path / "x.png"
        path.write_bytes(
            png(
                (b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, colour, 0, 0, 0)),
                (b"IDAT", zlib.compress(b"\0" + b"\x12\x34" * 2 * channels)),
                (b"IEND", b""),
            )
        )
        if colour == 0:
            assert files.read(path).numpy().ravel().tolist() == [0x1234, 0x1234]
            return
        with pytest.raises(rl.Unsupported, match=r"x\.png has 16 bits a channel"):
            files.read(path)

    @pytest.mark.parametrize(
        ("depth", "colour", "rows", "key", "expected"),
        [
            (8, 0, b"\0\x07\x08", b"\0\x07", [[7, 0], [8, 255]]),
            (4, 0, b"\0\x70", b"\0\x07", [[0x77, 0], [0, 255]]),
            (2, 0, b"\0\x90", b"\0\x02", [[170, 0], [85, 255]]),
            (1, 0, b"\0\x80", b"\0\x01", [[255, 0], [0, 255]]),
            (8, 2, b"\0\1\2\3\1\2\4", b"\0\1\0\2\0\3", [[1, 2, 3, 0], [1, 2, 4, 255]]),
            (16, 0, b"\0\0\7\0\x08", b"\0\x07", None),
        ],
    )
    def test_a_transparent_colour_is_not_lost(self, tmp_path, depth, colour, rows, key, expected):
        pytest.importorskip("PIL")
        header = struct.pack(">IIBBBBB", 2, 1, depth, colour, 0, 0, 0)
        path = tmp_path / "x.png"
        path.write_bytes(
            png((b"IHDR", header), (b"tRNS", key), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
        )
        if expected is None:
            with pytest.raises(rl.Unsupported, match="tRNS"):
                files.read(path)
        else:
            assert files.read(path).numpy()[0, :, 0].T.tolist() == expected

    def test_four_inks(self, tmp_path):
        image = pytest.importorskip("PIL.Image")
        image.new("CMYK", (4, 4)).save(tmp_path / "x.jpg")
        with pytest.raises(rl.Unsupported, match=r"CMYK.*convert it to RGB"):
            files.read(tmp_path / "x.jpg")

    @pytest.mark.parametrize("suffix", [".png", ".jpg"])
    def test_orientation(self, tmp_path, suffix):
        """6: the row that lies first in the file is the right-hand column of the picture."""
        image = pytest.importorskip("PIL.Image")
        pixels = np.zeros((8, 16), np.uint8)
        pixels[0] = 255
        notes = image.Exif()
        notes[0x0112] = 6
        image.fromarray(pixels).save(tmp_path / f"x{suffix}", exif=notes)
        seen = files.read(tmp_path / f"x{suffix}")
        assert seen.dims == (1, 1, 16, 8)
        assert np.abs(seen.numpy()[0, 0].astype(int) - np.rot90(pixels, -1)).max() < 40

    @pytest.mark.parametrize(
        ("dims", "dtype", "format"),
        [
            ((1, 3, 4, 4), "f32", "nhwc"),
            ((1, 3, 4, 4), "u8", "nchw"),
            ((2, 3, 4, 4), "u8", "nhwc"),
            ((1, 5, 4, 4), "u8", "nhwc"),
        ],
    )
    def test_what_is_no_picture(self, tmp_path, dims, dtype, format):
        pytest.importorskip("PIL")
        with pytest.raises(rl.LayoutError, match=r"x.png (can't hold|holds pixels)"):
            files.write(tmp_path / "x.png", made(dims, format, dtype))
        assert list(tmp_path.iterdir()) == []

    def test_pictures_need_pillow(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(rl.Unsupported, match="pip install pillow"):
            files.read(tmp_path / "x.png")


class TestContradictions:
    def test_descriptor_and_caller(self, tmp_path):
        path = tmp_path / "x.npy"
        files.write(path, made((1, 17, 2, 2), "nChw8c"))
        assert files.read(path, "b_fs_yx_fsv8", dims=(1, 17, 2, 2), dtype="f32").dims == (1, 17, 2, 2)
        for wrong in ({"format": "nhwc"}, {"dims": (1, 18, 2, 2)}, {"dtype": "s32"}):
            with pytest.raises(rl.LayoutError, match="contradicts"):
                files.read(path, **wrong)

    def test_descriptor_out_of_date(self, tmp_path):
        path = tmp_path / "x.npy"
        files.write(path, made((1, 17, 2, 2), "nChw8c"))
        np.save(path, np.zeros((1, 17, 2, 2), np.float32))
        with pytest.raises(rl.LayoutError, match="out of date"):
            files.read(path)

    def test_a_descriptor_goes_with_its_file(self, tmp_path):
        path = tmp_path / "x.npy"
        files.write(path, made((2, 3), "ba"))
        files.write(path, made((2, 3), "ab"), force=True)
        assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]
        files.write(path, made((2, 3), "ba"), force=True)
        path.unlink()
        files.write(path, made((4, 3), "ba"))  # what was left over describes nothing
        assert files.read(path).dims == (4, 3)

    def test_raw_bytes_leave_things_open(self, tmp_path):
        path = tmp_path / "x.bin"
        path.write_bytes(bytes(24))
        with pytest.raises(rl.LayoutError, match=r"say its format \(--from.*dims.*data type \(--in-dtype"):
            files.read(path)
        assert files.read(path, "ab", dims=(2, 3), dtype="f32").dims == (2, 3)
        with pytest.raises(rl.LayoutError, match="24 bytes, but f32:ab:2x4 takes 32"):
            files.read(path, "ab", dims=(2, 4), dtype="f32")

    @pytest.mark.parametrize(
        ("format", "dims", "message"),
        [
            ("nhwc", None, "has 4"),
            ("any", (2, 3), "has a layout"),
            ("ab", (3, 2), "stored as"),
            ("nchx", None, "did you mean"),
        ],
    )
    def test_formats_that_do_not_fit(self, tmp_path, format, dims, message):
        np.save(tmp_path / "x.npy", np.zeros((2, 3)))
        with pytest.raises(rl.LayoutError, match=message):
            files.read(tmp_path / "x.npy", format, dims=dims)

    def test_types_are_not_converted_by_reading(self, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
        with pytest.raises(rl.LayoutError, match="converts nothing"):
            files.read(tmp_path / "x.npy", dtype="s32")

    @pytest.mark.parametrize("name", ["x.dat", "x", "x.npy.gz"])
    def test_unknown_kinds(self, tmp_path, name):
        with pytest.raises(rl.LayoutError, match="kinds of files are"):
            files.read(tmp_path / name)

    def test_no_pickles(self, tmp_path):
        np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
        with pytest.raises(rl.LayoutError, match="no numbers"):
            files.read(tmp_path / "x.npy")

    def test_foreign_byte_order(self, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros(3, ">f4"))
        with pytest.raises(rl.LayoutError, match="foreign order"):
            files.read(tmp_path / "x.npy")


GOOD = {"relayout": 1, "dims": [4, 6], "dtype": "f32"}
DIGIT = {"axes": [1], "weight": 1, "extent": 6, "stride": 1}
ROWS = {"axes": [0], "weight": 1, "extent": 4, "stride": 6}


class TestDescriptors:
    @examples(100)
    @given(layout=layouts(), dtype=st.sampled_from(("f32", "s8", "f16")))
    def test_round_trip(self, layout, dtype):
        low = layout.bounds()[0]
        layout = layout.moved(layout.offset0 - min(0, low))
        desc = rl.MemoryDesc(layout.dims, dtype, layout)
        text = files.descriptor_to_text(desc)
        back = descriptor_from_text(text)
        assert (back.dims, back.dtype, back.padded_dims) == (desc.dims, desc.dtype, desc.padded_dims)
        assert back.layout.same_bytes(layout)
        assert files.descriptor_to_text(back) == text

    def test_roles_survive(self):
        desc = files.descriptor_from_json(
            files.descriptor_to_json(rl.MemoryDesc((1, 17, 2, 2), "f32", "b_fs_yx_fsv8"))
        )
        assert desc.name("openvino") == "b_fs_yx_fsv8"

    def test_nothing_to_write(self):
        with pytest.raises(rl.LayoutError, match="decide on a format"):
            files.descriptor_to_json(rl.MemoryDesc((2, 3), "f32", rl.any))

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ([], "object with keys"),
            ({}, "'relayout' is missing"),
            ({**GOOD}, "exactly one of"),
            ({**GOOD, "format": "ab", "strides": [6, 1]}, "exactly one of"),
            ({**GOOD, "relayout": 2, "format": "ab"}, "version 2"),
            ({**GOOD, "relayout": True, "format": "ab"}, "version True"),
            ({**GOOD, "format": "ab", "colour": 1}, "unknown key 'colour'"),
            ({**GOOD, "format": "ba", "dims": "4x6"}, "dims must be a list"),
            ({**GOOD, "format": "ba", "dims": [4, 6.0]}, r"dims\[1\] must be a whole number"),
            ({**GOOD, "format": "ba", "dims": [4, True]}, r"dims\[1\]"),
            ({**GOOD, "format": "ba", "dims": [4, -6]}, "negative"),
            ({**GOOD, "format": "ba", "dims": [2**62, 2**62]}, "2\\*\\*63"),
            ({**GOOD, "format": "ba", "dims": [1] * 13}, "at most 12"),
            ({**GOOD, "format": "ba", "dtype": 3}, "dtype must be a name"),
            ({**GOOD, "format": "ba", "dtype": "f31"}, "no data type"),
            ({**GOOD, "format": "abc"}, "3 axes"),
            ({**GOOD, "format": "a" * 1000}, "at most 500"),
            ({**GOOD, "format": 7}, "text"),
            ({**GOOD, "format": "any"}, "no dialect|any"),
            ({**GOOD, "format": "aB99999999999999999999999b"}, "no dialect|2\\*\\*63"),
            ({**GOOD, "strides": [6]}, "1 stride "),
            ({**GOOD, "strides": [2**63, 1]}, "2\\*\\*63"),
            ({**GOOD, "strides": [2**60, 1]}, "more than any file"),
            ({**GOOD, "strides": [-6, 1]}, "in front of the buffer"),
            ({**GOOD, "strides": [6, 1], "offset": -1}, "offset must be"),
            ({**GOOD, "format": "ab", "padded": [4, 6]}, "padded goes with"),
            ({**GOOD, "digits": "c//8"}, "digits must be a list"),
            ({**GOOD, "digits": [{"axes": [0]}]}, "must have the keys"),
            ({**GOOD, "digits": [DIGIT]}, "cover each of the 2 axes"),
            ({**GOOD, "digits": [ROWS, DIGIT, {**DIGIT, "axes": [7]}]}, "cover each"),
            ({**GOOD, "digits": [ROWS, {**DIGIT, "weight": 2}]}, "weight 2 where those below it count 1"),
            ({**GOOD, "digits": [ROWS, DIGIT, {**DIGIT, "weight": 5}]}, "weight 5"),
            ({**GOOD, "digits": [ROWS, {**DIGIT, "extent": 5}]}, "must lie between"),
            ({**GOOD, "digits": [ROWS, DIGIT], "padded": [4, 9]}, "must lie between"),
            ({**GOOD, "digits": [ROWS, {**DIGIT, "extent": 0}, {**DIGIT, "weight": 1}]}, "extent 0|weight"),
            ({**GOOD, "digits": [ROWS] * 65}, "at most 64"),
        ],
    )
    def test_refusals(self, data, message):
        with pytest.raises(rl.LayoutError, match=f"^descriptor: .*({message})"):
            files.descriptor_from_json(data)

    @pytest.mark.parametrize(
        "text",
        ["", "{", "nul", "[" * 100_000, '{"a": 1, "a": 2}', "9" * 10_000, " " * (1 << 21), b"\xff\xfe\x00"],
    )
    def test_no_json(self, text):
        with pytest.raises(rl.LayoutError, match=r"^descriptor: "):
            descriptor_from_text(text)

    def test_a_descriptor_by_hand(self, tmp_path):
        """A dump with a header of 16 bytes and rows of 6 with a pitch of 8."""
        rows = np.zeros((4, 8), np.float32)
        rows[:, :6] = counting((4, 6))
        (tmp_path / "dump.bin").write_bytes(bytes(16) + rows.tobytes()[:-8])
        (tmp_path / "dump.bin.layout.json").write_text(
            '{"relayout": 1, "dims": [4, 6], "dtype": "f32", "strides": [8, 1], "offset": 4}'
        )
        assert np.array_equal(files.read(tmp_path / "dump.bin").numpy(), counting((4, 6)))


class TestConversion:
    @pytest.mark.parametrize("suffix", CONTAINERS)
    @pytest.mark.parametrize(
        ("src", "dst", "dims"),
        [
            ("nchw", "nChw16c", (3, 50, 31, 29)),
            ("nhwc", "nChw8c", (1, 50, 64, 33)),
            ("nChw16c", "chwn", (5, 37, 20, 16)),
            ("aBcd6b", "aBcd8b", (2, 65, 20, 16)),
            ("oihw", "OIhw4i16o4i", (70, 70, 3, 3)),
        ],
    )
    def test_in_slices_as_at_once(self, tmp_path, monkeypatch, suffix, src, dst, dims):
        monkeypatch.setattr(conversion, "SLICE_BYTES", 40_000)
        tensor = made(dims, src)
        files.write(tmp_path / f"in{suffix}", tensor)
        seen = []
        desc = files.convert(
            tmp_path / f"in{suffix}",
            tmp_path / f"out{suffix}",
            dst,
            src_format=src if suffix != ".bin" else None,
            dtype="s16",
            src_scale=3,
            progress=lambda done, total: seen.append((done, total)),
        )
        back = files.read(tmp_path / f"out{suffix}")
        expected = rl.reorder(tensor, dst, dtype="s16", src_scale=3)
        assert back.desc == desc == expected.desc
        assert bytes(back.buffer) == bytes(expected.buffer)
        assert len(seen) > 4
        assert seen[-1] == (tensor.layout.size, tensor.layout.size)

    @examples(60)
    @given(data=st.data(), most=st.integers(1, 3000))
    def test_slices_cover_everything_once(self, data, most):
        src = data.draw(layouts())
        dst = data.draw(layouts(src.dims))
        one, two = (rl.MemoryDesc(src.dims, "f32", layout) for layout in (src, dst))
        counts = np.zeros(src.dims, int)
        for cut in conversion.slices(one, two, most):
            counts[tuple(slice(*pair) for pair in cut)] += 1
        assert np.all(counts == 1)

    @pytest.mark.parametrize("dtype", ["s4", "u4"])
    def test_half_bytes_in_slices(self, tmp_path, monkeypatch, dtype):
        monkeypatch.setattr(conversion, "SLICE_BYTES", 500)
        tensor = rl.tensor(counting((3, 10, 8, 6), dtype), "nhwc")
        files.write(tmp_path / "in.bin", tensor)
        files.convert(tmp_path / "in.bin", tmp_path / "out.npy", "nChw4c", dtype="u4")
        files.convert(tmp_path / "out.npy", tmp_path / "back.npy", "abcd", dtype="f32")
        assert np.array_equal(np.load(tmp_path / "back.npy"), counting((3, 10, 8, 6)))

    def test_numbers_along_an_axis_are_cut_too(self, tmp_path, monkeypatch):
        monkeypatch.setattr(conversion, "SLICE_BYTES", 2000)
        scales = np.linspace(1, 2, 48)
        files.write(tmp_path / "in.npy", made((1, 48, 8, 6), "chwn"))
        files.convert(tmp_path / "in.npy", tmp_path / "out.npy", "nchw", src_scale=(scales, 1))
        expected = counting((1, 48, 8, 6)) * scales.astype(np.float32).reshape(1, 48, 1, 1)
        assert np.allclose(np.load(tmp_path / "out.npy"), expected)

    @pytest.mark.parametrize("slice_bytes", [300, 1 << 20])
    def test_mean_and_deviation_there_and_back(self, tmp_path, monkeypatch, slice_bytes):
        monkeypatch.setattr(conversion, "SLICE_BYTES", slice_bytes)
        mean, std = np.float32([0.4, 0.5, 0.6]), np.float32([0.2, 0.3, 0.4])
        pixels = np.random.default_rng(1).integers(0, 256, (1, 3, 9, 8), np.uint8)
        files.write(tmp_path / "in.npy", rl.tensor(pixels, "nhwc"))
        forth = files.Normalise(mean, std, 1)
        files.convert(
            tmp_path / "in.npy",
            tmp_path / "x.npy",
            "nChw16c",
            dtype="f32",
            src_scale=1 / 255,
            normalise=forth,
        )
        expected = (pixels / np.float32(255) - mean.reshape(3, 1, 1)) / std.reshape(3, 1, 1)
        assert np.allclose(files.read(tmp_path / "x.npy").numpy(), expected, atol=1e-6)
        files.convert(
            tmp_path / "x.npy",
            tmp_path / "back.npy",
            "nchw",
            dtype="u8",
            dst_scale=1 / 255,
            normalise=forth._replace(back=True),
        )
        assert np.array_equal(np.load(tmp_path / "back.npy"), pixels)

    @pytest.mark.parametrize("slice_bytes", [300, 1 << 20])
    def test_mean_and_deviation_are_rounded_once(self, slice_bytes):
        """All bytes of all channels, as torchvision defines it, in f64."""
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        pixels = np.tile(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), (1, 3, 1, 1))
        exact = (pixels / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
        src, out = rl.tensor(pixels, "nhwc"), rl.tensor(np.zeros(pixels.shape, np.float32), "nChw16c")
        forth = files.Normalise(mean, std, 1)
        files.convert_into(src, out, normalise=forth, src_scale=1 / 255, slice_bytes=slice_bytes)
        np.testing.assert_array_equal(out.numpy(), exact.astype(np.float32))
        back = rl.tensor(np.zeros(pixels.shape, np.uint8), "nchw")
        files.convert_into(
            out, back, normalise=forth._replace(back=True), dst_scale=1 / 255, slice_bytes=slice_bytes
        )
        np.testing.assert_array_equal(back.numpy(), pixels)

    @pytest.mark.parametrize("back", [False, True])
    @pytest.mark.parametrize("where", ["src_scale", "dst_scale"])
    def test_mean_and_deviation_beside_scales_along_another_axis(self, where, back):
        array = np.random.default_rng(2).normal(size=(4, 3, 5)).astype(np.float32)
        mean, std, scale = (
            np.array([0.1, 0.2, 0.3]),
            np.array([2.0, 3.0, 0.7]),
            np.array([1.5, 2.5, 3.5, 0.3]),
        )
        out = rl.tensor(np.zeros(array.shape, np.float32), "bca")
        files.convert_into(
            rl.tensor(array), out, normalise=files.Normalise(mean, std, 1, back), **{where: (scale, 0)}
        )
        mean, std, scale = mean[:, None], std[:, None], scale[:, None, None]
        x = array * scale if where == "src_scale" else array.astype(float)
        x = x * std + mean if back else (x - mean) / std
        np.testing.assert_allclose(
            out.numpy(), x / scale if where == "dst_scale" else x, rtol=1e-7, atol=1e-9
        )

    @pytest.mark.parametrize(
        ("normalise", "attributes", "message"),
        [
            (([0.5, 0.5], 1, 1), {}, "mean has 2 values, but axis 1 of f32:ab:2x3 has size 3"),
            ((["a"], 1, 1), {}, "mean must be a number"),
            ((0, [1, np.nan, 1], 1), {}, "std must be finite"),
            ((0, [1, 0, 1], -1), {}, "std has a 0"),
            ((0, 1, 2), {}, "no axis 2 in f32:ab:2x3"),
            ((0, 1, None), {}, "axis must be a whole number, got None"),
            ((0, 1, 0), {"src_shift": 1}, "src_shift and normalise"),
            ((0, [1, 2, 3], 1), {"src_scale": ([1, 2], 0), "dst_scale": ([1, 2], 0)}, "convert in two steps"),
        ],
    )
    def test_what_can_not_be_normalised(self, normalise, attributes, message):
        x = rl.tensor(np.zeros((2, 3), np.float32))
        with pytest.raises(rl.LayoutError, match=message):
            files.convert_into(x, x.reorder("ba"), normalise=files.Normalise(*normalise), **attributes)

    @pytest.mark.parametrize(
        ("value", "kinds", "attributes"),
        [
            (2**53 + 1, ("s64", "s64"), {"src_zero_point": ([0, 5], 0)}),
            (-0.0, ("f32", "f32"), {"dst_zero_point": ([0, 5], 0)}),
            (2**54 + 2**30 + 1, ("s64", "f32"), {"src_scale": ([1, 2], 0)}),
            (7, ("u8", "f32"), {"src_shift": ([0, 0.5], 0), "dst_scale": 0.1}),
        ],
    )
    def test_what_is_neutral_in_one_slice_alone(self, value, kinds, attributes):
        """In the first row an attribute does nothing by itself; as a part of the whole it takes part."""
        src = rl.tensor(np.full((2, 40), value, rl.dtype(kinds[0]).numpy))
        whole = rl.reorder(src, "ab", dtype=kinds[1], **attributes)
        out = rl.reorder(src, "ab", dtype=kinds[1])
        files.convert_into(src, out, slice_bytes=320, **attributes)
        assert bytes(out.buffer) == bytes(whole.buffer)

    @examples(80)
    @given(
        data=st.data(), kinds=st.tuples(*[st.sampled_from(("f32", "s64", "f64", "s32", "u8", "bf16"))] * 2)
    )
    def test_slices_are_what_the_whole_is(self, data, kinds):
        """Byte by byte, whatever the attributes and wherever it is cut."""
        src, dst = (
            rl.MemoryDesc((3, 4, 5), kind, data.draw(st.sampled_from(("abc", "cab", "aCb2c"))))
            for kind in kinds
        )
        bits = np.random.default_rng(data.draw(st.integers(0, 9))).integers(
            0, 256, src.required_bytes, np.uint8
        )
        tensor = rl.from_buffer(bits, src)
        attributes = drawn_attributes(data, src.dims, betas=(0,))
        whole, out = (rl.from_buffer(np.zeros(dst.nbytes, np.uint8), dst) for _ in range(2))
        rl.reorder(tensor, dst, out=whole, **attributes)
        attributes.pop("beta")
        files.convert_into(tensor, out, slice_bytes=data.draw(st.sampled_from((16, 64, 200))), **attributes)
        assert bytes(out.buffer) == bytes(whole.buffer)

    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
    def test_the_meaning_of_axes_is_not_guessed(self, tmp_path, suffix):
        """The bytes of nhwc and of nchw arrays look alike, and a wrong guess would scramble them."""
        array = np.arange(1 * 4 * 6 * 3, dtype=np.float32).reshape(1, 4, 6, 3)
        files.write(tmp_path / f"x{suffix}", rl.tensor(array, "abcd"))
        source, out = tmp_path / f"x{suffix}", tmp_path / "out.npy"
        for words in ({}, {"dims": (1, 4, 6, 3)}):
            with pytest.raises(rl.LayoutError, match=r"nothing says what its axes mean.*--from nhwc"):
                files.convert(source, out, "nhwc", **words)
        with pytest.raises(rl.LayoutError, match=r"--from nhwc"):
            files.convert(source, out, "channels_last")  # which names them, too
        assert not out.exists()
        files.convert(source, out, "nchw", src_format="nhwc")
        assert np.array_equal(np.load(out), array.transpose(0, 3, 1, 2))
        files.convert(source, out, dtype="f64", force=True)
        assert np.array_equal(np.load(out), array)
        files.convert(
            source, out, "acdb", force=True
        )  # letters are the axes of the array, whatever they mean
        assert np.array_equal(np.load(out), array.transpose(0, 2, 3, 1))

    def test_onto_itself(self, tmp_path):
        tensor = made((2, 20, 3, 3), "nchw")
        files.write(tmp_path / "x.npy", tensor)
        files.convert(tmp_path / "x.npy", tmp_path / "x.npy", "nChw16c", src_format="nchw", force=True)
        assert np.array_equal(files.read(tmp_path / "x.npy").numpy(), tensor.numpy())


class TestOthersMaps:
    """Pages of a map that somebody else made may exist nowhere but in memory."""

    DIMS = (4, 64, 64)

    def private(self, folder):
        """A private map of a file, changed in memory."""
        np.save(folder / "own.npy", np.zeros(self.DIMS, np.float32))
        return np.load(folder / "own.npy", mmap_mode="c")

    def anonymous(self, folder):
        """Memory of nobody's."""
        pages = mmap.mmap(-1, 4 * 4 * 64 * 64, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(pages, np.float32).reshape(self.DIMS)

    if not hasattr(mmap, "MAP_PRIVATE"):
        pytestmark = pytest.mark.skip("no private maps here")

    @pytest.mark.parametrize("kind", ["private", "anonymous"])
    @pytest.mark.parametrize("suffix", CONTAINERS)
    def test_writing_leaves_the_source_as_it_is(self, tmp_path, monkeypatch, kind, suffix):
        monkeypatch.setattr(conversion, "SLICE_BYTES", 1000)
        array = getattr(self, kind)(tmp_path)
        array[:] = counting(self.DIMS)
        files.write(tmp_path / f"x{suffix}", rl.from_buffer(array, rl.MemoryDesc(self.DIMS, "f32", "abc")))
        assert np.array_equal(array, counting(self.DIMS))
        assert np.array_equal(files.read(tmp_path / f"x{suffix}").numpy(), array)

    @pytest.mark.parametrize("kind", ["private", "anonymous"])
    def test_converting_leaves_both_as_they_are(self, tmp_path, kind):
        array, result = getattr(self, kind)(tmp_path), self.anonymous(tmp_path)
        array[:] = counting(self.DIMS)
        src, dst = (rl.MemoryDesc(self.DIMS, "f32", format) for format in ("abc", "cba"))
        files.convert_into(rl.from_buffer(array, src), rl.from_buffer(result, dst), slice_bytes=1000)
        assert np.array_equal(array, counting(self.DIMS))
        assert np.array_equal(result.ravel(), counting(self.DIMS).T.ravel())

    def test_own_maps_are_released(self, tmp_path):
        files.write(tmp_path / "x.npy", made((5, 6), "ab"))
        assert mapped._map_of(files.read(tmp_path / "x.npy").buffer) is not None

    def test_pipes_are_refused(self, tmp_path):
        if not hasattr(os, "mkfifo"):
            pytest.skip("no pipes with names here")
        for suffix in files.SUFFIXES:
            os.mkfifo(tmp_path / f"x{suffix}")
            with pytest.raises(OSError, match="no regular file"):
                files.read(tmp_path / f"x{suffix}")


class TestWhole:
    """A file appears whole or not at all, and what was there stays until then."""

    def listed(self, folder):
        return {p.name: p.read_bytes() for p in folder.iterdir()}

    @pytest.fixture
    def folder(self, tmp_path):
        for suffix in CONTAINERS:
            files.write(tmp_path / f"x{suffix}", made((2, 3), "ba"))
        return tmp_path

    @pytest.mark.parametrize("suffix", CONTAINERS)
    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError(errno.ENOSPC, "full")])
    def test_failure_while_filling(self, folder, suffix, error):
        before = self.listed(folder)

        def fill(name):
            with files.create(folder / name, rl.MemoryDesc((2, 3), "f32", "ab"), force=True) as out:
                out.buffer[:5] = 1
                raise error

        for name in (f"x{suffix}", f"new{suffix}"):
            with pytest.raises(error if isinstance(error, type) else type(error)):
                fill(name)
        assert self.listed(folder) == before

    @pytest.mark.parametrize("suffix", CONTAINERS)
    @pytest.mark.parametrize("step", ["replace", "fsync", "posix_fallocate"])
    def test_failure_of_the_system(self, folder, monkeypatch, suffix, step):
        before = self.listed(folder)

        def fail(*_, **__):
            raise OSError(errno.ENOSPC, "no space left on device")

        if step == "replace":
            monkeypatch.setattr(Path, "replace", fail)
        elif not hasattr(os, step):
            pytest.skip(f"no {step} here")
        else:
            monkeypatch.setattr(os, step, fail)
        with pytest.raises(OSError, match="no space"):
            files.write(folder / f"x{suffix}", made((4, 3), "ab"), force=True)
        monkeypatch.undo()
        assert self.listed(folder) == before

    def test_refused_conversions_leave_nothing(self, folder):
        before = self.listed(folder)
        with pytest.raises(rl.LayoutError):
            files.convert(folder / "x.npy", folder / "y.npy", "ab", src_scale=([1, 2, 3, 4], 0))
        with pytest.raises(FileExistsError):
            files.convert(folder / "x.npy", folder / "x.bin", "ab")
        assert self.listed(folder) == before

    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".bin"])
    def test_a_disk_that_is_full(self, tmp_path, suffix):
        """No file may be longer than 100 kB: the error comes from the system itself, and kills nobody."""
        pytest.importorskip("resource")
        code = (
            "import resource, sys, numpy as np, relayout as rl; from relayout import files\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
            "try: files.write(sys.argv[1], rl.tensor(np.ones((300, 300), np.float32)))\n"
            "except OSError as error: print('refused', error.errno, error.filename)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / f"x{suffix}")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.startswith("refused"), done
        assert done.stdout.endswith(f"x{suffix}\n")  # by the name that was asked for
        assert list(tmp_path.iterdir()) == []

    def test_without_fallocate(self, tmp_path, monkeypatch):
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
        monkeypatch.setattr(atomic, "ZEROS", 7)
        files.write(tmp_path / "x.npy", made((9, 9), "ab"))
        assert np.array_equal(np.load(tmp_path / "x.npy"), counting((9, 9)))

    def test_permissions_and_links(self, tmp_path):
        target = tmp_path / "real.npy"
        files.write(target, made((2, 3), "ab"))
        target.chmod(0o640)
        (tmp_path / "link.npy").symlink_to(target)
        files.write(tmp_path / "link.npy", made((4, 3), "ab"), force=True)
        assert (tmp_path / "link.npy").is_symlink()
        assert target.stat().st_mode & 0o777 == 0o640
        assert files.read(target).dims == (4, 3)


# -- hostile bytes ---------------------------------------------------------------------------------------


def valid_files(folder):
    """One small file of each kind, with what belongs to it."""
    tensor = made((1, 5, 2, 2), "nChw4c")
    paths = [folder / f"x{suffix}" for suffix in (".npy", ".npz", ".safetensors", ".bin")]
    for path in paths:
        files.write(path, tensor)
    np.savez_compressed(folder / "z.npz", a=np.arange(50.0))
    paths.append(folder / "z.npz")
    try:
        from PIL import Image
    except ImportError:
        return paths
    for suffix in (".png", ".jpg"):
        Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(folder / f"x{suffix}")
        paths.append(folder / f"x{suffix}")
    return paths


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    return {path: path.read_bytes() for path in valid_files(folder)}


def read_or_refuse(path):
    """Whatever lies there: a tensor whose elements can all be read, or one of two errors."""
    try:
        tensor = files.read(path)
        if tensor.layout.size < 1 << 20:
            tensor.numpy(copy=True)
    except (rl.LayoutError, OSError):
        return False
    return True


@st.composite
def mutations(draw):
    """A way to damage bytes: cut, changed, repeated, or with a number that lies."""
    kind = draw(st.sampled_from(("cut", "flip", "number", "insert", "double", "text")))
    where, value = draw(st.floats(0, 1)), draw(st.integers(0, 255))
    count = draw(st.integers(1, 8))
    number = draw(
        st.sampled_from((0, 1, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF))
    )
    digits = draw(st.sampled_from((b"-1", b"0", b"99999999999999999999", b"1e9", b"null", b"[]", b'"', b"{")))

    def damage(data):
        at = int(where * len(data))
        if kind == "cut":
            return data[:at]
        if kind == "flip":
            return data[:at] + bytes(b ^ (value or 1) for b in data[at : at + count]) + data[at + count :]
        if kind == "number":
            return data[:at] + struct.pack("<Q", number)[:count] + data[at + count :]
        if kind == "insert":
            return data[:at] + bytes([value]) * count + data[at:]
        if kind == "text":
            found = [k for k, b in enumerate(data[:400]) if 48 <= b <= 57] or [0]
            at = found[int(where * (len(found) - 1))]
            return data[:at] + digits + data[at + 1 :]
        return data[:at] + data[at // 2 :]

    return damage


class TestHostileBytes:
    @examples(400)
    @given(data=st.data(), damages=st.lists(mutations(), min_size=1, max_size=3))
    def test_damaged_files(self, samples, tmp_path_factory, data, damages):
        path = data.draw(st.sampled_from(sorted(samples)))
        content = samples[path]
        for damage in damages:
            content = damage(content)
        path.write_bytes(content)
        try:
            read_or_refuse(path)
        finally:
            path.write_bytes(samples[path])

    @examples(150)
    @given(data=st.data(), damages=st.lists(mutations(), min_size=1, max_size=3))
    def test_damaged_descriptors(self, samples, data, damages):
        suffix = data.draw(st.sampled_from((".npy", ".bin")))
        path = next(p for p in samples if p.suffix == suffix)
        beside = path.with_name(path.name + ".layout.json")
        before = beside.read_bytes()
        content = before
        for damage in damages:
            content = damage(content)
        beside.write_bytes(content)
        try:
            read_or_refuse(path)
        finally:
            beside.write_bytes(before)

    @examples(150)
    @given(content=st.binary(max_size=300), suffix=st.sampled_from((*files.SUFFIXES,)), head=st.booleans())
    def test_random_bytes(self, tmp_path_factory, content, suffix, head):
        heads = {
            ".npy": b"\x93NUMPY\x01\x00",
            ".npz": b"PK\x03\x04",
            ".png": b"\x89PNG\r\n\x1a\n",
            ".jpg": b"\xff\xd8\xff",
        }
        path = tmp_path_factory.getbasetemp() / f"random{suffix}"
        path.write_bytes((heads.get(suffix, b"") if head else b"") + content)
        if content != b"" or suffix not in (".bin", ".raw"):
            assert not read_or_refuse(path)

    def test_every_truncation(self, samples):
        for path, content in samples.items():
            try:
                for length in range(0, len(content), max(1, len(content) // 60)):
                    path.write_bytes(content[:length])
                    if path.suffix not in (
                        ".png",
                        ".jpg",
                    ):  # pixels may be complete before the end of the file
                        assert not read_or_refuse(path), (path, length)
                    else:
                        read_or_refuse(path)
            finally:
                path.write_bytes(content)

    @pytest.mark.parametrize(
        ("shape", "descr"),
        [
            ("(99999999999, 99999999999)", "<f4"),
            ("(-1,)", "<f4"),
            ("(2.0,)", "<f4"),
            ("(True,)", "<f4"),
            ("[2]", "<f4"),
            ("(3,)", "O"),
            ("(3,)", "<f3"),
            ("(3,)", "<M8[s]"),
            ("(3,)", "|V0"),
            ("(" + "1," * 70 + ")", "<f4"),
            ("(1e400,)", "<f4"),
            ("__import__('os')", "<f4"),
        ],
    )
    def test_npy_headers_that_lie(self, tmp_path, shape, descr):
        text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        path = tmp_path / "x.npy"
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(12))
        with pytest.raises(rl.LayoutError):
            files.read(path)

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            ("[]", "no object"),
            ("{}", "has 16 behind"),
            ('{"x": 1}', "must have the keys"),
            ('{"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}', "does not take 8"),
            ('{"x": {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]}}', "begins at byte 4"),
            ('{"x": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}', "has 16 behind"),
            ('{"x": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}', "a begin and an end"),
            ('{"x": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}', "whole numbers"),
            ('{"x": {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]}}', "whole numbers"),
            ('{"x": {"dtype": "F33", "shape": [4], "data_offsets": [0, 16]}}', "unknown dtype"),
            ('{"x": {"dtype": [], "shape": [4], "data_offsets": [0, 16]}}', "unknown dtype"),
            (
                '{"x": {"dtype": "F32", "shape": [99999999999, 99999999999], "data_offsets": [0, 16]}}',
                "does not take",
            ),
            (
                '{"__metadata__": {"a": 1}, "x": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}',
                "texts by name",
            ),
            ('{"x": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}, "x": {}}', "stands twice"),
            (' {"x": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}', "no object"),
            (
                '{"__metadata__": {"relayout.x": "{}"},'
                ' "x": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}',
                "is missing",
            ),
            (
                '{"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]},'
                ' "x": {"dtype": "U8", "shape": [8], "data_offsets": [8, 16]}}',
                "begins at byte 8",
            ),
        ],
    )
    def test_safetensors_headers_that_lie(self, tmp_path, header, message):
        path = tmp_path / "x.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(16))
        with pytest.raises(rl.LayoutError, match=message):
            files.read(path)

    @pytest.mark.parametrize("length", [0, 7, 1 << 40, (1 << 64) - 1])
    def test_safetensors_lengths_that_lie(self, tmp_path, length):
        path = tmp_path / "x.safetensors"
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(rl.LayoutError):
            files.read(path)

    def test_npz_members_that_lie(self, tmp_path):
        path = tmp_path / "x.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "no array")
        with pytest.raises(rl.LayoutError, match="no arrays"):
            files.read(path)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"nothing")
        with pytest.raises(rl.LayoutError, match="no npy file"):
            files.read(path)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
            archive.writestr("x.npy", npy_bytes(np.zeros(3)))
            archive.writestr("x.layout.json", b" " * (1 << 21))
        with pytest.raises(rl.LayoutError, match="longer than"):
            files.read(path)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", npy_bytes(np.zeros(3)))
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr("x.npy", npy_bytes(np.ones(3)))
        with pytest.raises(rl.LayoutError, match=r"x\.npy twice"):
            files.read(path)

    @pytest.mark.parametrize("shape", [(3,), (1 << 29,)])
    def test_npz_bombs(self, tmp_path, shape):
        """Two GiB of zeros in two MiB, of an array that takes 12 bytes, or in an archive that lies, too."""
        head = npy_bytes(np.zeros(1, np.float32))[:-4].replace(b"(1,)", f"{shape}".encode())
        head = head.replace(b" " * (len(f"{shape}") - 4) + b"\n", b"\n", 1)
        path = tmp_path / "x.npz"
        size = len(head) + (1 << 31)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", head + bytes(1 << 20))
        content = bytearray(path.read_bytes())
        central = content.rindex(b"PK\x01\x02")
        content[central + 24 : central + 28] = struct.pack("<I", size)  # where the archive is listed
        path.write_bytes(content)
        assert zipfile.ZipFile(path).infolist()[0].file_size == size
        tracemalloc.start()
        try:
            with pytest.raises(rl.LayoutError, match=r"damaged|ends after"):
                files.read(path)
            assert tracemalloc.get_traced_memory()[1] < 1 << 27
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_npz_checksums(self, tmp_path, save):
        path = tmp_path / "x.npz"
        save(path, a=np.arange(1000.0), b=np.arange(10))
        content = path.read_bytes()
        at = content.index(b"\n") + 4000 if save is np.savez else len(content) // 3
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(rl.LayoutError, match=r"checksum|can't be read"):
            files.read(path, name="a")
        assert np.array_equal(files.read(path, name="b").numpy(), np.arange(10))

    def test_large_members_are_unpacked_to_the_disk(self, tmp_path, monkeypatch):
        monkeypatch.setattr(npz, "IN_MEMORY", 1000)
        np.savez_compressed(tmp_path / "x.npz", a=np.arange(5000))
        found = files.read(tmp_path / "x.npz")
        assert mapped._map_of(found.buffer) is not None
        assert np.array_equal(found.numpy(), np.arange(5000))

    def test_folders_and_missing_files(self, tmp_path):
        for suffix in files.SUFFIXES:
            with pytest.raises(FileNotFoundError):
                files.read(tmp_path / f"missing{suffix}")
            (tmp_path / f"folder{suffix}").mkdir()
            with pytest.raises(IsADirectoryError):
                files.read(tmp_path / f"folder{suffix}")
            if suffix in CONTAINERS:
                with pytest.raises(IsADirectoryError):
                    files.write(tmp_path / f"folder{suffix}", made((2,), "a"), force=True)


def test_stored_forms_are_as_long_as_the_bytes():
    for format, dims in FORMATS.items():
        for dtype in ("f32", "u8"):
            desc = rl.MemoryDesc(dims, dtype, format)
            assert stored_form(desc).nbytes == desc.required_bytes
    for format, dims in HALVES.items():
        desc = rl.MemoryDesc(dims, "u4", format)
        assert stored_form(desc).nbytes == desc.required_bytes
