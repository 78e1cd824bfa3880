"""The notations of run times: PyTorch, ONNX Runtime, ncnn, MNN, RKNN, Ascend and others.

The digits of each are compared with a table read out of the projects themselves, the byte-aligned ones also
with the formulas that their sources compute, and every grammar with itself: what is rendered reads as the
same format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayout import AmbiguousFormat, Format, Layout, LayoutError, MemoryDesc, UnknownFormat, Unsupported
from relayout.notation import dialect
from strategies import tried

ECOSYSTEMS = {
    "PyTorch": "pytorch",
    "ExecuTorch": "executorch",
    "ONNX Runtime (MLAS)": "onnxruntime",
    "ncnn": "ncnn",
    "MNN": "mnn",
    "MindSpore Lite": "mindspore",
    "Rockchip RKNN": "rknn",
    "Huawei Ascend": "ascend",
    "Arm Compute Library": "acl",
    "tinygrad": "tinygrad",
}
DIALECTS = sorted(ECOSYSTEMS.values())


def digits_of(format: Format) -> list[tuple[int, int, int | None]]:
    """The digits as (axis, weight, extent); every axis is a term of its own."""
    assert all(len(term) == 1 for term in format.terms)
    return [(format.terms[d.term][0], d.weight, d.extent) for d in format.digits]


def as_indexed_there(format: Format, entry: dict[str, Any]) -> Format:
    """The format for a program that indexes as the system itself does; ours is the order of the domain."""
    theirs = tuple(dim.lower() for dim in entry["logical_dims"])
    if format.roles is None or set(format.roles) != set(theirs):
        return format
    return format.indexed([format.roles.index(role) for role in theirs])


def expected_digits(entry: dict[str, Any]) -> Iterator[tuple[int, int, int | None]]:
    """The digits of a table entry; a pitch aligned in elements is two digits side by side."""
    for digit in entry["digits"]:
        axis = entry["logical_dims"].index(digit["dim"])
        align = entry.get("pitch_align", {}).get(digit["dim"])
        if isinstance(align, int):
            assert (digit["div"], digit["mod"]) == (1, None)
            yield axis, align, None
            yield axis, 1, align
        else:
            yield axis, digit["div"], digit["mod"]


# -- the table ------------------------------------------------------------------------------------------


def test_every_entry_of_the_table(vectors: Callable[[str], Any]) -> None:
    checked = 0
    for entry in vectors("other_notations")["entries"]:
        name = ECOSYSTEMS.get(entry["ecosystem"])
        if name is None:
            continue
        checked += 1
        text = entry["notation"]
        if entry["kind"] != "digits":
            with pytest.raises(Unsupported, match="no layout"):
                Format(text, dialect=name)
            continue
        format = Format(text, dialect=name)
        assert format.rank == len(entry["logical_dims"]), text
        assert digits_of(as_indexed_there(format, entry)) == list(expected_digits(entry)), text
        assert Format(f"{name}:{text}") == format
        spelled = format.name(name)
        assert spelled is not None, text
        assert Format(spelled, dialect=name).resolve(rank=format.rank) == format
    assert checked == 31


def test_axes_have_their_meaning(vectors: Callable[[str], Any]) -> None:
    filters = {"FRACTAL_Z": "oihw"}  # the table says N and C where the output and input channel are meant
    for entry in vectors("other_notations")["entries"]:
        name = ECOSYSTEMS.get(entry["ecosystem"])
        if name in (None, "executorch") or entry["kind"] != "digits" or "M" in entry["logical_dims"]:
            continue
        if "K" in entry["logical_dims"]:
            continue
        roles = filters.get(entry["notation"].partition(" ")[0], "".join(entry["logical_dims"]).lower())
        format = as_indexed_there(Format(entry["notation"], dialect=name), entry)
        assert format.roles == tuple(roles), entry["notation"]


@pytest.mark.parametrize("name", DIALECTS)
def test_listed_names_are_readable(name: str) -> None:
    listed = list(dialect(name).names())
    assert listed
    assert len(set(listed)) == len(listed)
    for text in listed:
        Format(text, dialect=name).resolve(rank=4 if text == "contiguous_format" else None)


# -- shorter forms and translations ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "tag"),
    [
        ("pytorch", "channels_last", "nhwc"),
        ("pytorch", "torch.channels_last_3d", "ndhwc"),
        ("pytorch", "MemoryFormat::ChannelsLast", "nhwc"),
        ("pytorch", "at::MemoryFormat::ChannelsLast3d", "ndhwc"),
        ("pytorch", "mkldnn:nChw16c", "nChw16c"),
        ("executorch", "dim_order = [0, 2, 3, 1]", "nhwc"),
        ("executorch", "(1, 0)", "ba"),
        ("executorch", "dim_order=(0,)", "a"),
        ("onnxruntime", "NCHWc8", "nChw8c"),
        ("onnxruntime", "NCHWc:16", "nChw16c"),
        ("onnxruntime", "OIHWBo16", "Oihw16o"),
        ("onnxruntime", "OIHWBiBo (16)", "OIhw16i16o"),
        ("ncnn", "dims=3 pack8", "Abc8a"),
        ("ncnn", "dims=2, elempack=4", "Ab4a"),
        ("ncnn", "dims=1 elempack=1", "a"),
        ("ncnn", "dims=4 elempack=16", "Abcd16a"),
        ("mnn", "C4NHW4", "Cnhw4c"),
        ("mnn", "NC16HW16@opencl", "nChw16c"),
        ("mnn", "MNN_DATA_FORMAT_NC4HW4", "Cnhw4c"),
        ("mindspore", "NC4HW4", "nChw4c"),
        ("mindspore", "NC4", "nC4c"),
        ("mindspore", "HW4", "aB4b"),
        ("mindspore", "NHWC4", "nhwC4c"),
        ("mindspore", "NHWC4@nchw", "nhwC4c"),
        ("mindspore", "NHWC4@nhwc", "abcD4d"),
        ("rknn", "NC1HWC2:8", "nChw8c"),
        ("rknn", "NC1HWC2 (C2 = 4)", "nChw4c"),
        ("rknn", "RKNN_TENSOR_NHWC", "nhwc"),
        ("ascend", "NC1HWC0:32", "nChw32c"),
        ("ascend", "ACL_FORMAT_NC1HWC0", "nChw16c"),
        ("ascend", "NC1HWC0_C04", "nChw4c"),
        ("ascend", "NZ", "aCB16b16c"),
        ("ascend", "FRACTAL_NN", "BA16b16a"),
        ("ascend", "FRACTAL_NZ (C0=32)", "aCB16b32c"),
        ("ascend", "FRACTAL_ZN:32", "AB16b32a"),
        ("ascend", "FRACTAL_ZN (N0=16,K0=32)", "AB16b32a"),
        ("ascend", "FRACTAL_Z_3D", "dIhwO16o16i"),
        ("acl", "OHWIo64i2_bf16@ohwi", "AbcD64a2d"),
        ("acl", "arm_compute::WeightFormat::OHWI", "ohwi"),
        ("acl", "OHWIo16@oihw", "Ohwi16o"),
        ("tinygrad", "imagef", "abC4c"),
        ("tinygrad", "dtypes.imageh((32, 1024, 4))", "abC4c"),
    ],
)
def test_forms_that_people_write(name: str, text: str, tag: str) -> None:
    assert Format(text, dialect=name) == Format(tag)


@pytest.mark.parametrize(
    ("tag", "name", "text"),
    [
        ("nhwc", "pytorch", "channels_last"),
        ("nchw", "pytorch", "contiguous_format"),
        ("abcd", "pytorch", "contiguous_format"),
        ("acdb", "pytorch", "channels_last"),
        ("ohwi", "pytorch", "channels_last"),
        ("ndhwc", "pytorch", "channels_last_3d"),
        ("nwc", "pytorch", None),
        ("nChw8c", "pytorch", None),
        ("nhwc", "executorch", "dim_order=(0,2,3,1)"),
        ("a", "executorch", "dim_order=(0,)"),
        ("nChw8c", "executorch", None),
        ("nChw16c", "onnxruntime", "NCHWc (block 16)"),
        ("aBcd16b", "onnxruntime", None),
        ("OIhw8i8o", "onnxruntime", "OIHWBiBo (B=8)"),
        ("nChw32c", "onnxruntime", None),
        ("nChw4c", "mnn", "NC4HW4@opencl"),
        ("Cnhw8c", "mnn", "NC8HW8"),
        ("nChw4c", "mindspore", "NC4HW4"),
        ("nhwC4c", "mindspore", "NHWC4"),
        ("nChw8c", "rknn", "RKNN_TENSOR_NC1HWC2 (C2=8)"),
        ("nchw", "rknn", "RKNN_TENSOR_NCHW"),
        ("nChw16c", "ascend", "NC1HWC0 (C0=16)"),
        ("OIhw16i16o", "ascend", None),
        ("BA16a32b", "ascend", "FRACTAL_NZ (M0=16,N0=32)"),
        ("AB16b16a", "ascend", "FRACTAL_ZN (K0=16,N0=16)"),
        ("OhwI8o4i", "acl", "OHWIo8i4"),
        ("ohwi", "acl", "WeightFormat::OHWI"),
        ("OhwI4i8o", "acl", None),
        ("nchw", "ncnn", None),
        ("nhwc", "tinygrad", None),
    ],
)
def test_translations(tag: str, name: str, text: str | None) -> None:
    assert Format(tag).name(name) == text


def test_a_translation_across_run_times() -> None:
    assert Format("NC1HWC0 (C0=16)", dialect="ascend").name("onnxruntime") == "NCHWc (block 16)"
    assert Format("FRACTAL_Z (C0=16,N0=16)", dialect="ascend").name("onednn") == "IhwO16o16i"
    assert Format("acl:OHWIo8i4@oihw").name("onednn") == "OhwI8o4i"


# -- texts that wait ------------------------------------------------------------------------------------


def test_contiguous_waits_for_the_rank() -> None:
    waiting = Format("torch.contiguous_format")
    assert waiting.rank is None
    for rank in (0, 1, 3, 7):
        assert waiting.resolve(rank=rank).order == tuple((axis, 0) for axis in range(rank))
    assert Layout((2, 3, 5), "contiguous_format").strides == (15, 5, 1)
    with pytest.raises(LayoutError, match="several ranks"):
        waiting.resolve()


@pytest.mark.parametrize(
    ("dtype", "c0"), [("f16", 16), ("bf16", 16), ("s8", 32), ("u8", 32), ("f32", 8), ("s4", 64)]
)
def test_ascend_blocks_are_rows_of_32_bytes(dtype: str, c0: int) -> None:
    assert MemoryDesc((1, 100, 3, 5), dtype, Format("NC1HWC0", dialect="ascend")).inner_blocks == ((1, c0),)
    assert MemoryDesc((40, 70), dtype, Format("ascend:FRACTAL_NZ")).inner_blocks == ((0, 16), (1, c0))
    assert MemoryDesc((40, 70), dtype, Format("ascend:FRACTAL_ZN")).inner_blocks == ((1, 16), (0, c0))
    filters = MemoryDesc((40, 70, 3, 3), dtype, Format("ascend:FRACTAL_Z"))
    assert filters.inner_blocks == ((0, 16), (1, c0))
    explicit = MemoryDesc((1, 100, 3, 5), dtype, Format("NC1HWC0 (C0=16)", dialect="ascend"))
    assert explicit.inner_blocks == ((1, 16),)


def test_equal_formats_keep_their_own_meaning() -> None:
    """A descriptor answers for the format that it was given, not for an equal one that was asked before."""
    waiting, explicit = Format("NC1HWC0", dialect="ascend"), Format("nChw16c")
    assert waiting == explicit
    assert MemoryDesc((1, 40, 2, 2), "s8", waiting).inner_blocks == ((1, 32),)
    assert MemoryDesc((1, 40, 2, 2), "s8", explicit).inner_blocks == ((1, 16),)
    assert MemoryDesc((2, 3, 4, 5), "f32", Format("nchw")).name("rknn") == "RKNN_TENSOR_NCHW"
    assert MemoryDesc((2, 3, 4, 5), "f32", Format("oihw")).name("rknn") is None


def test_ascend_examples_of_its_manual() -> None:
    nz = Layout((8, 100, 30), Format("FRACTAL_NZ", dialect="ascend"))
    assert nz.padded_dims == (8, 112, 32)  # 8 x (2 x 16 columns) x (7 x 16 rows)
    assert nz.offset(3, 40, 20) == ((3 * 2 + 1) * 112 + 40) * 16 + 4
    filters = Layout((2, 4, 8, 8), Format("FRACTAL_Z", dialect="ascend"))
    assert filters.span == 64 * 1 * 16 * 16
    assert filters.offset(1, 3, 5, 6) == (5 * 8 + 6) * 256 + 1 * 16 + 3


def test_ascend_matrices_of_any_rank() -> None:
    for rank in (2, 3, 5):
        format = Format("FRACTAL_NZ", dialect="ascend").resolve(rank=rank)
        assert format.rank == rank
        assert format.roles is not None
        assert not {"n", "c", "h", "w"} & set(format.roles)
        again = Format(format.name("ascend") or "", dialect="ascend").resolve(rank=rank)
        assert again == format
    with pytest.raises(LayoutError, match="two axes"):
        Format("FRACTAL_NZ", dialect="ascend").resolve(rank=1)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "s8"])
@pytest.mark.parametrize("pack", [1, 4, 8, 16])
@pytest.mark.parametrize("dims", [(9, 3, 5), (9, 2, 3, 3), (6, 5), (7,)])
def test_ncnn_channel_step(dims: tuple[int, ...], pack: int, dtype: str) -> None:
    """ncnn::Mat computes cstep = alignSize(w * h * d * elemsize, 16) / elemsize; it counts packs."""
    elemsize = pack * {"f32": 4, "f16": 2, "bf16": 2, "s8": 1}[dtype]
    plane = prod(dims[1:])
    cstep = ceil(plane * elemsize / 16) * 16 // elemsize if len(dims) > 2 else plane
    layout = MemoryDesc(dims, dtype, Format(f"dims={len(dims)} elempack={pack}", dialect="ncnn")).layout
    for index in product(*map(range, dims)):
        inside = int(np.ravel_multi_index(index[1:], dims[1:])) if len(dims) > 1 else 0
        channel = index[0]
        assert layout.offset(*index) == (channel // pack * cstep + inside) * pack + channel % pack
    assert layout.span == ceil(dims[0] / pack) * cstep * pack
    assert layout.format is not None
    again = Format(layout.format.name("ncnn") or "", dialect="ncnn")
    assert Layout(dims, again) == layout


def test_ncnn_waits_for_rank_and_type() -> None:
    waiting = Format("elempack=4", dialect="ncnn")
    assert waiting.rank is None
    assert waiting.resolve(rank=3, dtype="f16").name("ncnn") == "dims=3 elempack=4 elemsize=8"
    assert waiting.resolve(rank=3, dtype="f32").name("ncnn") == "dims=3 elempack=4"
    assert waiting.resolve(rank=2, dtype="s8") == Format("Ab4a")
    with pytest.raises(LayoutError, match="1 to 4 dims"):
        waiting.resolve(rank=5)
    with pytest.raises(Unsupported, match="4 bits"):
        MemoryDesc((3, 4, 5), "s4", Format("dims=3 elempack=4", dialect="ncnn"))


# -- what is refused, and what is ambiguous -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "error", "says"),
    [
        ("pytorch", "torch.preserve_format", Unsupported, "a rule, not a format"),
        ("pytorch", "mkldnn", Unsupported, "opaque"),
        ("pytorch", "torch._mkldnn", Unsupported, "nChw16c"),
        ("pytorch", "torch.sparse_csr", Unsupported, "no dense layout"),
        ("pytorch", "channels_lst", UnknownFormat, "channels_last"),
        ("executorch", "dim_order=(0,2,2,1)", LayoutError, "each of the axes 0 to 3 once"),
        ("executorch", "dim_order=(0,,1)", LayoutError, "once"),
        ("executorch", "dim_order=(4,8)", LayoutError, "once"),
        ("onnxruntime", "NCHWc", AmbiguousFormat, r"NCHWc \(block 16\)"),
        ("onnxruntime", "OIHWBo", AmbiguousFormat, r"OIHWBo \(B=8\)"),
        ("onnxruntime", "NCHWc4", UnknownFormat, "NCHWc"),
        ("ncnn", "dims=3 elempack=3", LayoutError, "power of two"),
        ("ncnn", "dims=5 elempack=4", LayoutError, "1 to 4 dims"),
        ("ncnn", "dims=3 elempack=4 (pack8)", LayoutError, "contradicts"),
        ("ncnn", "dims=3 elempack=4 elemsize=6", LayoutError, "so it must be 4, 8, 16"),
        ("mnn", "NC4HW8", UnknownFormat, "NC4HW4"),
        ("mindspore", "NC4@nchw", UnknownFormat, "NC4"),
        ("rknn", "NC1HWC2", AmbiguousFormat, "RK3588"),
        ("rknn", "NC1HWC2:1", LayoutError, "2 channels or more"),
        ("rknn", "NC1HWC2:16 w_stride=224", Unsupported, "strides"),
        ("ascend", "C1HWNCoC0 (C0=16)", Unsupported, "diagonal"),
        ("ascend", "FRACTAL_Z_C04", Unsupported, "pads"),
        ("ascend", "FRACTAL_ZN_LSTM", Unsupported, "gate"),
        ("ascend", "NC1HWC0 (N0=16)", LayoutError, r"\(C0=16\)"),
        ("ascend", "NC1HWC0 ()", LayoutError, r"\(C0=16\)"),
        ("ascend", "FRACTAL_NZ (C0=16,N0=16)", LayoutError, "twice"),
        ("ascend", "NC1HWC0:0", LayoutError, "2 elements or more"),
        ("acl", "OHWIo1", LayoutError, "interleave is 1"),
        ("acl", "OHWIo8i16", LayoutError, "block is 16"),
        ("acl", "WeightFormat::ANY", Unsupported, "choice"),
        ("acl", "OHWI", UnknownFormat, "no format"),
        ("tinygrad", "dtypes.imageh((16, 64, 3))", UnknownFormat, "imageh"),
    ],
)
def test_refusals(name: str, text: str, error: type[LayoutError], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        Format(text, dialect=name)
    assert type(raised.value) is error


def test_channels_last_has_a_rank() -> None:
    with pytest.raises(LayoutError, match="4 axes"):
        Layout((1, 2, 3, 4, 5), "channels_last")


def test_mnn_and_mindspore_differ_over_the_batch() -> None:
    with pytest.raises(AmbiguousFormat, match="MindSpore"):
        Format("NC8HW8")
    mnn, lite = Format("mnn:NC8HW8"), Format("mindspore:NC8HW8")
    assert Layout((1, 17, 3, 4), mnn).same_bytes(Layout((1, 17, 3, 4), lite))
    assert not Layout((2, 17, 3, 4), mnn).same_bytes(Layout((2, 17, 3, 4), lite))
    assert Layout((2, 8, 1, 1), "mnn:NC4HW4").offset(1, 0, 0, 0) == 4


def test_mindspore_rows_are_padded() -> None:
    image = Layout((1, 3, 2, 5), "mindspore:NHWC4")
    assert image.padded_dims == (1, 4, 2, 5)
    assert [image.offset(0, c, 1, 2) for c in range(3)] == [28, 29, 30]
    assert image.is_padding(31)


# -- every grammar with itself --------------------------------------------------------------------------

BLOCK = st.integers(2, 300)


@st.composite
def dim_orders(draw: st.DrawFn) -> str:
    order = draw(st.integers(1, 8).flatmap(lambda rank: st.permutations(range(rank))))
    return f"dim_order=({','.join(map(str, order))})"


@st.composite
def blobs(draw: st.DrawFn) -> str:
    pack = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    text = f"dims={draw(st.integers(1, 4))} elempack={pack}"
    times = draw(st.sampled_from([None, 1, 2, 4, 8]))
    return text if times is None else f"{text} elemsize={pack * times}"


@st.composite
def ascend_texts(draw: st.DrawFn) -> str:
    name = draw(
        st.sampled_from(["NC1HWC0", "NDC1HWC0", "FRACTAL_Z", "FRACTAL_Z_3D", "NZ", "ZZ", "ZN", "FRACTAL_NN"])
    )
    first, second = draw(BLOCK), draw(BLOCK)
    if name.endswith("HWC0"):
        return f"{name} (C0={first})"
    if name.startswith("FRACTAL_Z"):
        return f"{name} (C0={first},N0={second})"
    return f"{name} (M0={first},N0={second})"


@st.composite
def weight_formats(draw: st.DrawFn) -> str:
    block = draw(st.one_of(st.just(""), st.integers(2, 15).map("i{}".format)))
    return f"OHWIo{draw(st.integers(2, 4095))}{block}{draw(st.sampled_from(['', '@ohwi']))}"


GRAMMARS = {
    "executorch": dim_orders(),
    "ncnn": blobs(),
    "ascend": ascend_texts(),
    "acl": weight_formats(),
    "rknn": BLOCK.map("NC1HWC2:{}".format),
}


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=tried(60), deadline=None)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    texts = GRAMMARS.get(name, st.sampled_from(list(dialect(name).names())))
    rank = data.draw(st.integers(1, 6)) if name == "pytorch" else None
    format = dialect(name).parse(data.draw(texts), rank, None)
    assert format is not None
    spelled = dialect(name).render(format)
    assert spelled is not None
    again = dialect(name).parse(spelled, format.rank, None)
    assert again == format
    assert again is not None
    assert again.roles == format.roles
    assert dialect(name).render(again) == spelled


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=tried(60), deadline=None)
@given(data=st.data())
def test_what_is_rendered_reads_the_same(name: str, data: st.DataObject) -> None:
    """Any format, most of them foreign to the dialect: no spelling, or one that means this format."""
    roles = data.draw(
        st.sampled_from(["nchw", "nhwc", "ncdhw", "oihw", "ohwi", "chw", "hwc", "nc", "hw", "abc", "abcd"])
    )
    outer = data.draw(st.one_of(st.just(list(roles)), st.permutations(roles)))
    inner = data.draw(
        st.lists(st.tuples(st.sampled_from(roles), st.sampled_from([2, 4, 8, 16, 32])), max_size=3)
    )
    format = Format.blocked(roles, outer, inner)
    spelled = format.name(name)
    if spelled is not None:
        again = Format(spelled, dialect=name).resolve(rank=format.rank)
        assert again == format
        if name not in ("pytorch", "executorch", "ascend"):
            assert again.roles == format.roles


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=tried(150), deadline=None)
@given(data=st.data())
def test_junk_raises_nothing_but_layout_errors(name: str, data: st.DataObject) -> None:
    good = data.draw(st.sampled_from([n for d in DIALECTS for n in dialect(d).names()]))
    start, stop = sorted((data.draw(st.integers(0, len(good))), data.draw(st.integers(0, len(good)))))
    patch = data.draw(
        st.one_of(st.text(max_size=6), st.sampled_from(["0", "9" * 5000, "²", "٣", "(", "=1", ",", ":"]))
    )
    text = data.draw(st.one_of(st.text(max_size=20), st.just(good[:start] + patch + good[stop:])))
    rank = data.draw(st.one_of(st.none(), st.integers(0, 40)))
    dtype = data.draw(st.sampled_from([None, "f32", "f16", "s8", "s4", "f64"]))
    with suppress(LayoutError):
        format = dialect(name).parse(text, rank, dtype)
        assert format is None or isinstance(format, Format)
