"""Descriptors in the lines that oneDNN logs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout.notation.verbose import read
from strategies import examples

# Words of real lines of versions 2.x, 3.0 and 3.13, as users have pasted them into issues of oneDNN.
REAL = {
    "src_u8::blocked:ab:f0": ("src", "u8", "", "ab", None, "f0"),
    "wei_s8::blocked:BA16a64b4a:f8:zpm2": ("wei", "s8", "", "BA16a64b4a", None, "f8:zpm2"),
    "bia_f32::blocked:ab:f0_mask2": ("bia", "f32", "", "ab", None, "f0_mask2"),
    "src_f32:p:blocked:aBcd16b::f0": ("src", "f32", "p", "aBcd16b", None, "f0"),
    "wei_f32:p:blocked:ABcd16b16a::f0": ("wei", "f32", "p", "ABcd16b16a", None, "f0"),
    "src:u8:a:blocked:acb::f0": ("src", "u8", "a", "acb", None, "f0"),
    "wei:s8:a:blocked:AcB8a4b::f8:zpm1": ("wei", "s8", "a", "AcB8a4b", None, "f8:zpm1"),
    "query:f16::blocked:abcd::f0": ("query", "f16", "", "abcd", None, "f0"),
}


@pytest.mark.parametrize("text", REAL)
def test_real_lines(text):
    found = read(text)
    assert (found.argument, found.dtype, found.properties, found.tag, found.strides, found.flags) == REAL[
        text
    ]
    assert found.elements.format == rl.Format(REAL[text][3])
    if found.appended:
        with pytest.raises(rl.Unsupported, match="oneDNN appends"):
            rl.Format(text)
        return
    assert rl.Format(text) == found.format
    assert str(rl.Format(text)) == found.tag
    assert rl.Format(text, "onednn") == found.format


@examples(200)
@given(st.data())
def test_every_part_is_read_back(data):
    argument = data.draw(st.sampled_from(["", "src", "wei", "src_layer", "dst_iter_c"]))
    dtype = data.draw(st.sampled_from(["f32", "bf16", "f8_e4m3", "s32", "u8"]))
    properties = data.draw(st.sampled_from(["", "a", "p", "ap"]))
    tag = data.draw(st.sampled_from(["abcd", "acdb", "aBcd16b", "ABcd4b16a4b"]))
    rank = st.lists(st.integers(1, 900), min_size=4, max_size=4).map(tuple)
    strides, dims = (data.draw(st.none() | rank) for _ in range(2))
    flags = data.draw(st.sampled_from(["f0", "f1:s8m2", "f8:zpm1", "f3:s8m1:sa0.5", "f0_mask3"]))
    head = argument and argument + data.draw(st.sampled_from("_:"))
    text = f"{head}{dtype}:{properties}:blocked:{tag}:{'x'.join(map(str, strides or ()))}:{flags}"
    text += ":" + "x".join(map(str, dims)) if dims else ""
    found = read(text)
    assert found == (text, argument, dtype, properties, "blocked", tag, strides, flags, dims)
    if strides is None and dims is not None:
        assert found.elements.desc() == rl.MemoryDesc(dims, dtype, tag)
    if dims is not None:
        try:
            made = rl.MemoryDesc(text)
        except rl.Unsupported:
            assert found.appended
        else:
            assert not found.appended
            assert made == found.desc() == rl.MemoryDesc(dims, dtype, text)
            assert rl.Layout(text) == made.layout


def test_strides_place_the_elements():
    desc = read("src:f32::blocked:ab:128x1:f0").desc((4, 100))
    assert desc == rl.MemoryDesc((4, 100), "f32", strides=(128, 1))
    assert rl.MemoryDesc((4, 100), "f32", "src:f32::blocked:ab:128x1:f0") == desc
    with pytest.raises(rl.Unsupported, match="strides"):
        rl.Format("src:f32::blocked:ab:128x1:f0")
    blocked = read("src:f32:p:blocked:aBcd8b:600x200x40x8:f0:2x17x5x4").desc()
    assert blocked.strides == (600, 200, 40, 8)
    assert blocked.inner_blocks == ((1, 8),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("wei_f32::wino:::f0", "wino"),
        ("src_f32::any:any::f0", "open"),
        ("src_f32:o:blocked:aBcd8b::f0", "property o"),
        ("src_f32:p0:blocked:aBcd8b::f0", "property 0"),
        ("src:f32::blocked:*::f0", "run time"),
        ("src:f32::blocked:ab:*x1:f0", "run time"),
        ("f32:*:blocked", "run time"),
        ("bia_undef::undef:::", "descriptor of nothing"),
        ("wei_f32::wino::", "wino"),
        (
            "wei_s8::blocked:ABcd4b16a4b::f3:s8m1:sa0.5",
            "f3:s8m1:sa0.5.*appends to its elements.*'ABcd4b16a4b'",
        ),
        ("wei_s8::blocked:abcd::f8:zpm2", "f8:zpm2"),
    ],
)
def test_what_is_no_layout(text, why):
    with pytest.raises(rl.Unsupported, match=why):
        rl.Format(text)
    with pytest.raises(rl.Unsupported, match=why):
        rl.MemoryDesc((2, 2, 2, 2), "s8" if "s8" in text else "f32", text)


LINE = (
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0 "
    "dst:f32:p:blocked:aBcd16b::f0,,,1x17x56x56,0.012"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LINE, "whole line .*'src:f32::blocked:abcd::f0' or 'dst:f32:p:blocked:aBcd16b::f0'"),
        ("src_f32::blocked:abcd", "no whole descriptor"),
    ],
)
def test_what_is_no_descriptor(text, why):
    with pytest.raises(rl.UnknownFormat, match=why):
        rl.Format(text)


def test_the_data_type_is_that_of_a_destination():
    x = rl.tensor(np.arange(34, dtype=np.float32).reshape(1, 17, 2, 1))
    text = "src_s8:p:blocked:aBcd16b::f0"
    for format in (text, rl.Format(text)):
        made = rl.reorder(x, format)
        assert made.dtype == rl.dtype("s8")
        np.testing.assert_array_equal(made.numpy(), x.numpy())
        assert rl.reorder(x, format, dtype="s8").desc == made.desc
        with pytest.raises(rl.LayoutError, match="s8, not f32"):
            rl.reorder(x, format, dtype="f32")
    assert str(made.desc) == "s8:aBcd16b:1x17x2x1"
    assert rl.reorder(made, dtype="f32").dtype == rl.dtype("f32")
    assert rl.MemoryDesc(made.dims, "u8", made.desc.format).dtype == rl.dtype("u8")


@pytest.mark.parametrize("make", [str, rl.Format])
def test_another_data_type_is_refused(make):
    with pytest.raises(rl.LayoutError, match="f32, not s8"):
        rl.MemoryDesc((1, 16, 2, 2), "s8", make("src_f32::blocked:aBcd16b::f0"))


def test_files_are_converted_to_the_data_type(tmp_path):
    np.save(tmp_path / "w.npy", np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2))
    convert = rl.files.convert
    made = convert(tmp_path / "w.npy", tmp_path / "w.bin", "src_s8::blocked:acdb::f0", src_format="abcd")
    assert str(made) == "s8:acdb:2x3x2x2"
    with pytest.raises(rl.LayoutError, match="s8, not f32"):
        convert(tmp_path / "w.npy", tmp_path / "v.bin", "src_s8::blocked:acdb::f0", dtype="f32")
    with pytest.raises(rl.Unsupported, match="appends"):
        convert(tmp_path / "w.npy", tmp_path / "v.bin", "wei_s8::blocked:abcd::f1:s8m1")
    assert not (tmp_path / "v.bin").exists()


def test_sizes_of_a_descriptor_must_agree():
    text = "src_f32:p:blocked:aBcd16b::f0:1x17x2x2"
    assert str(rl.MemoryDesc(text)) == "f32:aBcd16b:1x17x2x2"
    with pytest.raises(rl.LayoutError, match="other sizes than 1x3x2x2"):
        rl.MemoryDesc((1, 3, 2, 2), "f32", text)
    strided = rl.MemoryDesc((1, 3, 4, 4), "f32", "src_f32::blocked:abcd:4096x1x64x16:f0")
    assert strided.strides == (4096, 1, 64, 16)


def test_the_data_type_survives_pickling():
    text = "src_s8:p:blocked:aBcd16b::f0"
    assert pickle.loads(pickle.dumps(rl.Format(text))).dtype == rl.Format(text).dtype == "s8"


def test_sizes_must_be_there_and_agree():
    with pytest.raises(rl.LayoutError, match="does not say its sizes"):
        read("src:f32::blocked:ab::f0").desc()
    with pytest.raises(rl.LayoutError, match="other sizes than 2x4"):
        read("src:f32::blocked:ab::f0:2x3").desc((2, 4))


@examples(200)
@given(st.text(alphabet="srcwei_:f32bloked48pao0xABab*", max_size=40))
def test_other_texts_are_none_of_it(text):
    try:
        found = read(text)
    except rl.Unsupported:
        return
    assert found is None or found.text == text
