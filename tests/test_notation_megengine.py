"""MegEngine's notation, physical layouts and relayout modes against MegEngine's own tables and tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import AmbiguousFormat, Format, Layout, LayoutError, MemoryDesc, UnknownFormat, Unsupported
from relayout.layout import views
from relayout.notation import megengine
from relayout.notation.megengine import lowbit_aligned, unit_axes, without_lowbit
from relayout.notation.megengine_convolution import convolution_formats, convolution_names, data_format
from relayout.notation.megengine_modes import relayout_formats, relayout_modes
from relayout.notation.megengine_padding import byte_rows, grouped, rounded
from relayout.notation.megengine_physical import (
    image2d_pack4,
    logical_dims,
    physical_shape,
    pitched,
    strides_in_bytes,
    tensor_layout,
)
from relayout.notation.megengine_relayout import relayout_mode, relayout_shapes

Vectors = Callable[[str], Any]
Offsets = dict[tuple[int, ...], int]

DATA_ROLE = {"N": "n", "C": "c", "H": "h", "W": "w"}
WEIGHTS_ROLE = {"G": "g", "K": "o", "C": "i", "R": "h", "S": "w"}
CHANNELWISE_ROLE = {"C": "g", "R": "h", "S": "w"}


@pytest.fixture(scope="module")
def facts(vectors: Vectors) -> Any:
    return vectors("megengine_formats")


def mge(text: str) -> Format:
    return Format(text, "megengine")


def offsets(layout: Layout) -> Offsets:
    return {index: layout.offset(*index) for index in product(*map(range, layout.dims))}


def digits_of(format: Format) -> list[tuple[str, int, int | None]]:
    names = format.axis_names()
    return [(names[format.terms[d.term][0]], d.weight, d.extent) for d in format.digits]


def dimension(text: str) -> tuple[str, int, int | None]:
    """Read one of MegEngine's named dimensions, ``C//4`` or ``C%4``."""
    match = re.fullmatch(r"([A-Z])(?://(\d+))?(?:%(\d+))?", text)
    assert match is not None
    return match[1], int(match[2] or 1), int(match[3]) if match[3] else None


# -- tensor formats -------------------------------------------------------------------------------------


def test_all_tensor_formats_have_the_listed_digits(facts: Any) -> None:
    assert len(facts["tensor_formats"]) == 31
    for row in facts["tensor_formats"]:
        listed = [(d["dim"], d["stride"], d["extent"]) for d in row["digits"]]
        letters = {letter for letter, _, _ in listed}
        full = [d for d in listed if d[2] != 1]
        channelwise = full != listed
        role = DATA_ROLE if row["kind"] == "feature" else CHANNELWISE_ROLE if channelwise else WEIGHTS_ROLE
        wanted = [(role[letter], weight, extent) for letter, weight, extent in full]
        format = mge(row["name"]).resolve(rank=len(letters))
        assert digits_of(format) == wanted, row["name"]
        assert format.blocks == tuple(
            row["channel_alignment"].get({role[x]: x for x in letters}[r], 1) for r in format.axis_names()
        )


def test_logical_order_is_fixed_by_the_domain(facts: Any) -> None:
    for row in facts["tensor_formats"]:
        format, name = mge(row["name"]), row["name"]
        if row["kind"] == "feature":
            assert format.roles == ("n", "c", "h", "w")
        elif name.startswith("C11"):
            assert format.roles == ("g", "o", "i", "h", "w")
        elif name.startswith("C1"):
            assert format.rank == 4
        else:
            assert format.roles == ("g", "o", "i", "h", "w")[name[0] != "G" :], name


def test_offsets_follow_from_the_listed_digits(facts: Any) -> None:
    """The definition: element by element, from MegEngine's named shapes alone."""
    sizes = {"N": 3, "C": 5, "H": 2, "W": 3, "G": 2, "K": 9, "R": 2, "S": 2}
    for row in facts["tensor_formats"]:
        listed = [(d["dim"], d["stride"], d["extent"]) for d in row["digits"]]
        role = DATA_ROLE if row["kind"] == "feature" else WEIGHTS_ROLE
        letters = sorted({d[0] for d in listed}, key=lambda x: "ngochwi".index(role[x]))
        if row["kind"] != "feature":
            letters = [x for x in "GKCRS" if x in letters]
        layout = Layout([sizes[x] for x in letters], mge(row["name"]))
        for index, offset in offsets(layout).items():
            at = dict(zip(letters, index, strict=True))
            place = 0
            for letter, weight, extent in listed:
                room = extent or -(-sizes[letter] // weight)
                place = place * room + at[letter] // weight % room
            assert offset == place, (row["name"], index)


@pytest.mark.parametrize("name", ["C11RS", "C11RSc4", "C11RSc8", "C1RSc4"])
def test_channelwise_weights_fit_all_their_ranks(name: str) -> None:
    full = Layout((6, 1, 1, 2, 3), name)
    for dims in ((6, 1, 2, 3), (6, 2, 3)):
        layout = Layout(dims, name)
        assert layout.span == full.span
        short = {(i[0], *i[-2:]): o for i, o in offsets(layout).items()}
        assert short == {(i[0], *i[-2:]): o for i, o in offsets(full).items()}
    with pytest.raises(LayoutError, match="axes"):
        Layout((6, 3), name)


def test_named_tensor_shapes(facts: Any) -> None:
    for name, shape in facts["named_tensor_shape_make"].items():
        listed = [dimension(text) for text in shape]
        weights = any(letter == "N" and weight != 1 for letter, weight, _ in listed)
        role = {"N": "o", "C": "i", "H": "h", "W": "w"} if weights else DATA_ROLE
        format = mge(f"{name}@weights" if weights else name)
        assert digits_of(format) == [(role[x], weight, extent) for x, weight, extent in listed], name


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("NCHW4", "nChw4c"),
        ("NCHW8", "nChw8c"),
        ("NCHW32", "nChw32c"),
        ("NHWC", "nhwc"),
        ("NCHW44@data", "nChw4c"),
        ("NCHW88@data", "nChw8c"),
        ("NCHW44_DOT@data", "nChw4c"),
        ("NCHW88@weights", "OIhw8i8o"),
        ("NCHW88@group", "gOIhw8i8o"),
        ("NCHW88@channelwise", "Goihw8g"),
        ("NCHW44_DOT@weights", "OIhw4o4i"),
        ("NCHW4@weights", "oIhw4i"),
        ("KRSCk8", "Ohwi8o"),
        ("NDHWC", "ndhwc"),
    ],
)
def test_same_layouts_in_onednn(name: str, same: str) -> None:
    assert mge(name) == Format(same)
    assert mge(name).name("onednn") == same


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NCHW44", "NCHW88", "NCHW44_DOT"])
def test_ambiguous_formats_list_their_readings(name: str) -> None:
    with pytest.raises(AmbiguousFormat) as error:
        Format(name)
    for reading in ("data", "weights", "group"):
        assert f"{name}@{reading}" in str(error.value)
        assert mge(f"{name}@{reading}").digits_text() in str(error.value)


@pytest.mark.parametrize(
    ("text", "error", "mentions"),
    [
        ("NCHW4_NCHW32", Unsupported, ("'NCHWc4'", "'NCHWc32'", "'KCRSc4'")),
        ("NHWC_NCHW4_IC_SMALL", Unsupported, ("'NHWC'", "'NCHWc4'")),
        ("NCHW44_HYBRID", Unsupported, ("'NCHW'", "'NCHWc4'", "'KRSCk4'")),
        ("NCHW_WINOGRAD", Unsupported, ("transformed", "NCHW")),
        ("NCHW88_WINOGRAD", Unsupported, ("transformed", "NCHWc8")),
        ("NCHW_NHWCD4I", Unsupported, ("'NCHW'", "'NHCWc4'", "relayout_mode")),
        ("INTER_WEIGHT_GROUPI_DOT", Unsupported, ("'GKCRS'", "'GKRSCk4c4'")),
        ("NCHW44_DOT@channelwise", Unsupported, ("NCHW44_DOT@group",)),
        ("NHWC@group", Unsupported, ("NHWC@weights",)),
        ("NHWCD4@weights", AmbiguousFormat, ("KRSCk4", "KRSCk4c4")),
        ("NCHW4_NCHW32@data", Unsupported, ("'NCHWc4'", "'NCHWc32'")),
        ("NCHW44@lowbit", AmbiguousFormat, ("NCHW44@data",)),
        ("NCHW44@wieghts", UnknownFormat, ()),
        ("NCHW16", UnknownFormat, ("NCHW",)),
        ("NCHWc0", UnknownFormat, ()),
        ("NCHWc4c4", UnknownFormat, ()),
        ("NCHWk4", UnknownFormat, ()),
        ("C11RSk4", UnknownFormat, ()),
        ("HWCN", UnknownFormat, ()),
        ("FOO_WINOGRAD", UnknownFormat, ()),
        ("NCHWc" + "9" * 5000, UnknownFormat, ()),
    ],
)
def test_refusals_say_why(text: str, error: type[LayoutError], mentions: Iterable[str]) -> None:
    with pytest.raises(error) as raised:
        mge(text)
    assert type(raised.value) is error
    for part in mentions:
        assert part in str(raised.value)


# -- convolution formats -------------------------------------------------------------------------------


def test_convolution_configurations(facts: Any) -> None:
    for row in facts["conv_format_configs"]:
        inputs = row["input_tensor_formats_variants"]
        forward = row["opr"].startswith("ConvBias")
        known = [convolution_formats(row["config_id"], quantized) for quantized in (False, True)]
        dense, group, channelwise = (
            {getattr(formats, field) for formats in known} for field in ("weights", "group", "channelwise")
        )
        of_weights = {variant[0 if not forward else 1] for variant in inputs}
        assert of_weights == set(row["weight_formats"])
        assert of_weights <= dense | group | channelwise
        if forward:
            assert of_weights == (dense | group | channelwise) - {None}, row["config_id"]
        assert {variant[1 if not forward else 0] for variant in inputs} == {known[0].src}
        assert row["output_tensor_formats"] == [known[0].dst]
        for name in of_weights:
            kind = "channelwise" if name[:2] == "C1" else "group" if name[0] == "G" else "weights"
            assert name in {getattr(formats, kind) for formats in known}


def test_every_convolution_format_is_known(facts: Any) -> None:
    listed = {
        row["name"] for key in ("v0_legacy", "v2_current") for row in facts[f"convolution_format_{key}"]
    }
    listed |= set(facts["extra_config_ids"])
    winograd = {name for name in listed if name.endswith("WINOGRAD")}
    assert listed - winograd == set(convolution_names())
    for name in listed - winograd:
        formats = convolution_formats(name)
        for tensor in filter(None, formats):
            assert mge(tensor).name("megengine") is not None
    for name in winograd:
        with pytest.raises(Unsupported, match="transformed"):
            convolution_formats(name)
    for name in ("NCHW5", "NCHW32_NHWC", "", "NCHW44_WINO"):
        with pytest.raises(UnknownFormat):
            convolution_formats(name)
    assert data_format("KCRS") is None


# -- names -------------------------------------------------------------------------------------------------


def test_names_are_all_there_and_round_trip(facts: Any) -> None:
    names = list(megengine.names())
    assert len(set(names)) == len(names)
    assert {row["name"] for row in facts["tensor_formats"]} <= set(names)
    for name in names:
        format = mge(name)
        if format.rank is None:
            continue
        spelled = format.name("megengine")
        assert spelled is not None, name
        assert mge(spelled) == format


def test_every_name_is_read_without_naming_the_dialect() -> None:
    for name in megengine.names():
        assert Format(name) == mge(name), name


def test_users_names_are_preferred() -> None:
    spelled = {
        name: mge(name).name("megengine")
        for name in ("NCHWc4", "NCHWc64", "CHWNc4", "NHCWc4", "NHWC", "C11RS")
    }
    assert spelled == {
        "NCHWc4": "NCHW4",
        "NCHWc64": "NCHW64",
        "CHWNc4": "CHWN4",
        "NHCWc4": "NHWCD4",
        "NHWC": "NHWC",
        "C11RS": "GKCRS",  # the same digits
    }
    assert Format("Goihw8g").name("megengine") == "C11RSc8"
    assert mge("C1RSc4").name("megengine") == "C1RSc4"


@pytest.mark.parametrize(
    "tag",
    [
        "nChw16c",
        "aBcd4b",
        "abcd",
        "OIhw16i16o",
        "NChw4n4c",
        "nhwC4c",
        "chwn",
        "hwio",
        "tnc",
        "OIhw4i16o4i",
        "ncw",
    ],
)
def test_no_name_where_megengine_has_none(tag: str) -> None:
    assert Format(tag).name("megengine") is None


HEADS = [*megengine._DATA, *megengine._WEIGHTS, *("G" + w for w in megengine._WEIGHTS), "C11RS", "C1RS"]
TEXTS = st.builds(
    lambda head, blocks: head + "".join(f"{letter.lower()}{size}" for letter, size in blocks),
    st.sampled_from(HEADS),
    st.lists(st.tuples(st.sampled_from("NCHWKRS"), st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64])), max_size=2),
)


@given(TEXTS)
def test_parse_of_render_is_the_format(text: str) -> None:
    format = megengine.parse(text)
    if format is None:
        return
    spelled = format.name("megengine")
    if spelled is not None:
        assert mge(spelled) == format
        assert mge(spelled).name("megengine") == spelled


@given(st.sampled_from(["nchw", "oihw", "goihw", "ncdhw", "abcd", "gihw"]), st.data())
def test_whatever_is_rendered_reads_back(axes: str, data: st.DataObject) -> None:
    outer = data.draw(st.permutations(axes))
    inner = data.draw(
        st.lists(st.tuples(st.sampled_from(axes), st.sampled_from([2, 4, 8, 32, 64, 16])), max_size=2)
    )
    format = Format.blocked(axes, outer, inner)
    spelled = format.name("megengine")
    assert spelled is None or mge(spelled) == format


PIECES = ["NCHW", "NHWC", "KCRS", "C11RS", "44", "4", "c4", "k8", "_", "@", "I", "1", "é", "²"]
PIECES += ["data", "weights", "lowbit", "DOT", "WINOGRAD"]
JUNK = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(PIECES), max_size=6).map("".join))


@given(JUNK, st.sampled_from([None, 0, 3, 4, 5]))
def test_junk_raises_nothing_but_layout_errors(text: str, rank: int | None) -> None:
    try:
        megengine.parse(text, rank)
        megengine.parse(text, rank, "s4")
        relayout_mode(text, (2, 4, 3, 3))
    except LayoutError:
        pass


# -- physical shapes and strides -----------------------------------------------------------------------


FORMATS = st.sampled_from([name for name in megengine.names() if "@" not in name and "major" not in name])


@given(FORMATS, st.lists(st.integers(0, 9), min_size=5, max_size=5), st.data())
def test_physical_strides_are_the_layout(name: str, sizes: list[int], data: st.DataObject) -> None:
    """An element's place, from its index into MegEngine's shape."""
    dims = tuple(sizes[: mge(name).rank])
    if unit_axes(mge(name)):
        dims = (dims[0], *(1,) * (len(dims) - 3), *dims[-2:])
    layout = Layout(dims, mge(name))
    shape, stride = tensor_layout(dims, name)
    assert prod(shape) == prod(layout.padded_dims)
    assert logical_dims(shape, name) == layout.padded_dims
    if 0 in dims:
        return
    index = tuple(data.draw(st.integers(0, size - 1)) for size in dims)
    places = []
    for term, weight, extent in layout.format.digits if layout.format else ():
        number = index[layout.terms[term][0]] // weight
        places.append(number if extent is None else number % extent)
    assert sum(p * s for p, s in zip(places, stride, strict=True)) == layout.offset(*index)


@given(st.integers(1, 4), st.integers(0, 9), st.sampled_from(["NCHW4", "NCHW8", "CHWN4", "NHWCD4", "NCHW"]))
def test_channels_are_padded_per_group(group: int, count: int, name: str) -> None:
    block = mge(name).blocks[1]
    shape = physical_shape((2, group * count, 3, 5), name, group)
    assert logical_dims(shape, name) == (2, group * -(-count // block) * block, 3, 5)
    split = Layout((2, group, count, 3, 5), grouped(mge(name)))
    assert prod(shape) == split.span
    if count and count % block == 0:  # without padding the groups are one axis again
        assert views.merge_axes(split, 1, 2).same_bytes(Layout((2, group * count, 3, 5), mge(name)))


def test_strides_in_bytes_of_the_manual() -> None:
    assert strides_in_bytes((2, 5), "s32") == (20, 4)
    row, column = Layout((2, 5), "row_major"), Layout((2, 5), "column_major")
    assert row.offset(1, 2) * 4 == 28
    assert column.strides == (1, 2)
    assert row == Layout((2, 5), "ab")
    assert strides_in_bytes((2, 3, 4), "f64", "column_major") == (8, 16, 48)
    assert logical_dims((2, 3, 4), "column_major") == (2, 3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: physical_shape((1, 6, 3), "NCHW4"), "axes"),
        (lambda: physical_shape((1, 6, 3, 3), "NCHW4", group=4), "4 groups"),
        (lambda: physical_shape((1, 6, 3, 3), "NCHW4", group=0), "0 groups"),
        (lambda: physical_shape((8, 6, 3, 3), "KCRSc4", group=2), "no channel axis"),
        (lambda: physical_shape((8, 2, 1, 3, 3), "C11RSc4"), "must be 1"),
        (lambda: physical_shape((8, -1, 3, 3), "KCRSc4"), "negative"),
        (lambda: logical_dims((1, 2, 3, 3), "NCHW4"), "has 4 axes"),
        (lambda: logical_dims((1, 2, 3, 3, 8), "NCHW4"), "block of 4"),
        (lambda: grouped(Format("KCRSc4")), "no data format"),
        (lambda: rounded(Format("NCHW4"), 1, 4), "without blocks"),
        (lambda: rounded(Format("NCHW"), 1, 0), "1 or more"),
        (lambda: strides_in_bytes((1, 2, 3, 4), "s8", "NCHW@lowbit"), "4 bits"),
    ],
)
def test_physical_errors(call: Callable[[], object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        call()


def test_fused_axes_have_no_physical_shape() -> None:
    with pytest.raises(Unsupported, match="fuses"):
        physical_shape((2, 3, 4), Format("abc -> a, (b c)//2, (b c)%2"))


# -- rows on bytes, images -----------------------------------------------------------------------------


@given(FORMATS, st.sampled_from([1, 2, 4]), st.lists(st.integers(1, 9), min_size=5, max_size=5))
def test_low_bit_rows_start_on_bytes(name: str, bits: int, sizes: list[int]) -> None:
    """MegEngine's rule: the innermost size is rounded up to 8/bits, every stride is 1 or a multiple of it."""
    together = 8 // bits
    if mge(name).digits[-1].extent == 4 and bits == 1:
        with pytest.raises(Unsupported, match="inside a byte"):
            lowbit_aligned(mge(name), bits)
        return
    format = lowbit_aligned(mge(name), bits)
    base, _ = without_lowbit(format)
    assert base == mge(name)
    dims = sizes[: mge(name).rank]
    layout = Layout(dims, format)
    plain = Layout(dims, mge(name))
    row = plain.digits[-1].extent
    pitch = -(-row // together) * together
    for index in [(0,) * len(dims), tuple(size - 1 for size in dims), tuple(size // 2 for size in dims)]:
        rows, rest = divmod(plain.offset(*index), row)
        assert layout.offset(*index) == rows * pitch + rest
    assert all(d.stride == 1 or d.stride % together == 0 for d in layout.digits)


def test_low_bit_texts_and_data_types() -> None:
    assert mge("NHWC@lowbit").digits_text() == "nchw -> n, h, w, c//2, c%2"
    assert mge("NCHW@lowbit2").digits_text() == "nchw -> n, c, h, w//4, w%4"
    assert mge("NCHW64@lowbit") == mge("NCHW64")
    assert lowbit_aligned("NCHW@lowbit").text == "NCHW@lowbit"
    assert mge("NCHW@lowbit").with_roles(("n", "c", "h", "w")).name("megengine") == "NCHW@lowbit"
    md = MemoryDesc((1, 2, 3, 5), "s4", "NCHW@lowbit")
    assert md.nbytes == 18
    assert strides_in_bytes(md.dims, "u4", "NCHW@lowbit") == (18, 9, 3, Fraction(1, 2))
    with pytest.raises(LayoutError, match="8 bits"):
        MemoryDesc((1, 2, 3, 5), "s8", "NCHW@lowbit")
    with pytest.raises(LayoutError, match="3 bits"):
        byte_rows(mge("NCHW"), 3)


def test_images_have_the_strides_of_megengines_test() -> None:
    assert image2d_pack4((5, 3, 8), "f32", "row_major", 1, 1024).strides == (256, 8, 1)
    assert image2d_pack4((5, 3, 1024), "f32", "row_major", 1, 1024).strides == (3072, 1024, 1)
    mali = image2d_pack4((5, 3, 8), "f32", "row_major", 1, 16, mali=True)
    assert mali.strides == (64, 8, 1)


@given(
    st.sampled_from([("NHWCD4", 2), ("KRSCk4", 3), ("GKRSCk4", 4), ("C1RSc4", 1), ("KRSCk4c4", 3)]),
    st.lists(st.integers(1, 7), min_size=5, max_size=5),
    st.sampled_from([1, 4, 16, 64]),
)
def test_images_only_stretch_their_rows(case: tuple[str, int], sizes: list[int], pitch: int) -> None:
    name, axis = case
    dims = sizes[: mge(name).rank]
    dense, image = Layout(dims, mge(name)), pitched(dims, mge(name), axis, pitch)
    width = dense.digits[axis - 1].stride
    row = -(-width // pitch) * pitch
    for index in product(*({0, size // 2, size - 1} for size in dims)):
        rows, rest = divmod(dense.offset(*index), width)
        assert image.offset(*index) == rows * row + rest


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: image2d_pack4((1, 4, 3, 3), "s4", "NHWCD4", 2, 64), "whole bytes"),
        (lambda: image2d_pack4((1, 4, 3, 3), "f32", "NHWCD4", 2, 48), "power of two"),
        (lambda: image2d_pack4((1, 4, 3, 3), "f32", "NHWC", 2, 64, mali=True), None),
        (lambda: image2d_pack4((1, 3, 3, 3), "f32", "NHWC", 2, 64), "whole pixels"),
        (lambda: image2d_pack4((1, 4, 3, 3), "f32", "NHWCD4", 5, 64), "align_axis 5"),
        (lambda: image2d_pack4((1, 4, 3, 3), "f32", "NHWCD4", 0, 64), "align_axis 0"),
    ],
)
def test_image_errors(call: Callable[[], object], message: str | None) -> None:
    if message is None:
        call()
        return
    with pytest.raises(LayoutError, match=message):
        call()


# -- relayout modes ------------------------------------------------------------------------------------


def moved(source: Layout, destination: Layout, values: Any, room: int) -> Any:
    """Copy every logical element; what is left of the destination is zero."""
    assert source.dims == destination.dims
    flat, out = np.ravel(values), np.zeros(room, dtype=np.int64)
    for index in product(*map(range, source.dims)):
        out[destination.offset(*index)] = flat[source.offset(*index)]
    return out


def test_modes_are_megengines(facts: Any) -> None:
    assert set(relayout_modes()) == {row["name"] for row in facts["relayout_modes"]}
    assert len(relayout_modes()) == 32


def test_relayout_values(facts: Any) -> None:
    assert len(facts["relayout_format_value_tests"]) == 18
    for case in facts["relayout_format_value_tests"]:
        src, dst = case["src"], case["dst"]
        rank = len(src["shape"])
        dims = logical_dims(src["shape"], relayout_formats(case["mode"], rank)[0])
        source, destination = relayout_mode(case["mode"], dims, **case["param"])
        assert relayout_shapes(case["mode"], dims, **case["param"]) == (
            tuple(src["shape"]),
            tuple(dst["shape"]),
        )
        result = moved(source, destination, src["values"], len(dst["values"]))
        assert result.tolist() == dst["values"], case


def expected_shape(row: Any, src: tuple[int, ...], group: int, oc: int) -> tuple[int, ...]:
    """Evaluate MegEngine's own formulas of the destination's shape."""
    formula = row["dst_shapes"][-1 if len(src) == 5 else 0]["dst"]

    def value(text: str) -> int:
        text = (
            text.replace("param().oc", "oc").replace("<size_t>", "").replace("_z", "").replace(" / ", " // ")
        )
        text = re.sub(r"(.*) \? (.*) : (.*)", r"(\2) if (\1) else (\3)", text)
        known = {
            "src": src,
            "oc": oc,
            "group": group,
            "icpg": src[1] // group,
            "div_ceil": lambda a, b: -(-a // b),
            "round_up": lambda a, b: -(-a // b) * b,
        }
        return int(eval(text, {}, known))

    return tuple(map(value, formula))


def cases_of(name: str) -> list[tuple[tuple[int, ...], int, int]]:
    """Sizes that the mode takes: dims, group, oc."""
    source, _ = relayout_formats(name, 4)
    if name == "NCHW_NCHW4":
        return [((2, 6, 3, 5), 1, 0), ((2, 6, 3, 5), 2, 0), ((1, 10, 2, 3), 5, 0)]
    if name == "NCHW4_NCHW":
        return [((2, 8, 3, 5), 1, 0), ((2, 8, 3, 5), 1, 6), ((2, 16, 1, 3), 2, 10), ((2, 8, 1, 3), 4, 4)]
    if name == "NCHW64_NCHW":
        return [((2, 64, 1, 3), 1, 0), ((2, 128, 1, 2), 1, 99)]
    if name == "NCHW_NCHW4_WEIGHT":
        return [((5, 6, 3, 2), 1, 0), ((3, 5, 6, 3, 2), 1, 0), ((8, 4, 1, 2), 1, 0)]
    if "SMALL" in name:
        return [((4, 3, 2, 3), 1, 0), ((2, 4, 2, 3), 1, 0)]
    if "CHAN" in name:
        return [((8, 1, 1, 2, 3), 1, 0), ((16, 1, 1, 3, 3), 1, 0)]
    if source == "GKCRS":
        return [((3, 8, 4, 2, 3), 1, 0), ((1, 16, 8, 3, 2), 1, 0)]
    if source == "KCRS":
        return [((8, 6, 2, 3), 1, 0), ((16, 3, 3, 2), 1, 0), ((8, 8, 1, 3), 1, 0)]
    if "c" in source or name == "NHWC_NHWCD4":
        return [((2, 8, 3, 5), 1, 0), ((3, 16, 2, 2), 1, 0)]
    return [((2, 6, 3, 5), 1, 0), ((3, 16, 2, 2), 1, 0), ((1, 70, 2, 3), 1, 0)]


def test_shapes_of_all_modes(facts: Any) -> None:
    for row in facts["relayout_modes"]:
        for dims, group, oc in cases_of(row["name"]):
            src, dst = relayout_shapes(row["name"], dims, group, oc)
            assert dst == expected_shape(row, src, group, oc), (row["name"], dims)
            source, destination = relayout_mode(row["name"], dims, group, oc)
            assert source.span <= prod(src)
            assert destination.span == prod(dst), (row["name"], dims, group, oc)


def test_values_of_all_modes(facts: Any) -> None:
    """Against MegEngine's own reshapes and dimension shuffles, carried out by NumPy."""
    for row in facts["relayout_modes"]:
        for dims, group, oc in cases_of(row["name"]):
            if group != 1:
                continue  # the published values have groups
            src, dst = relayout_shapes(row["name"], dims, group, oc)
            values = np.arange(1, prod(src) + 1).reshape(src)
            perms = [tuple(map(int, text.split(","))) for text in row["exec"]["dimshuffle"]]
            if row["name"] == "NCHW_NCHW4_WEIGHT":
                perms = perms[:1] if len(src) == 4 else perms[1:]
            wanted = shuffled(row["name"], values, dst, perms)
            source, destination = relayout_mode(row["name"], dims, group, oc)
            result = moved(source, destination, values, prod(dst))
            assert (result == wanted.ravel()).all(), (row["name"], dims, oc)


def shuffled(name: str, values: Any, dst: tuple[int, ...], perms: list[tuple[int, ...]]) -> Any:
    if values.ndim > len(dst):
        if name in ("NCHW4_NCHW", "NCHW64_NCHW"):  # these shuffle the source, then cut
            joined = values.transpose(perms[0])
            n, blocks, block, h, w = joined.shape
            return joined.reshape(n, blocks * block, h, w)[:, : dst[1]]
        inverse = np.argsort(perms[0])  # the others shuffle a reshaped destination
        return values.transpose(inverse).reshape(dst)
    last = perms[-1]
    cut = [0] * len(last)  # what the source is reshaped to before the last shuffle
    for place, size in zip(last, dst, strict=True):
        cut[place] = size
    for perm in perms[:-1]:
        values = values.transpose(perm)
    room: list[int] = []
    at = 0
    for (
        size
    ) in values.shape:  # each axis takes as many factors as it needs; what they exceed it by is padding
        factor = 1
        if size == 1 and at < len(cut) and cut[at] == 1 and len(cut) - at >= values.ndim - len(room):
            at += 1
        while factor < size:
            factor *= cut[at]
            at += 1
        room.append(factor)
    padded = np.zeros(room, dtype=values.dtype)
    padded[tuple(slice(0, size) for size in values.shape)] = values
    return padded.reshape(cut).transpose(last)


@pytest.mark.parametrize(
    ("name", "dims", "options", "message"),
    [
        ("NHWC_NHWCD4", (1, 6, 2, 2), {}, "multiple of 4"),
        ("NHWCD4_NCHW", (1, 6, 2, 2), {}, "multiple of 4"),
        ("NCHW88_NCHW", (1, 4, 2, 2), {}, "multiple of 8"),
        ("NCHW_NCHW4_IC_SMALL", (1, 5, 2, 2), {}, "at most 4"),
        ("NCHW_NCHW4_IC_SMALL_CONV_DENSE_WEIGHT", (1, 5, 2, 2), {}, "at most 4"),
        ("INTER_WEIGHT_DENSE", (6, 4, 2, 2), {}, "multiple of 4"),
        ("INTER_WEIGHT_GROUP", (2, 4, 6, 2, 2), {}, "multiple of 4"),
        ("INTER_WEIGHT_CHAN", (8, 2, 1, 2, 2), {}, "1 output"),
        ("NCHW_NCHW88_CONV_DENSE_WEIGHT", (4, 8, 1, 1), {}, "multiple of 8"),
        ("NCHW_NCHW88_CONV_GROUP_WEIGHT", (1, 4, 8, 1, 1), {}, "multiple of 8"),
        ("NCHW_NCHW88_CONV_CHAN_WEIGHT", (8, 1, 1, 1), {}, "takes 5"),
        ("NCHW_NCHW4", (1, 6, 2, 2), {"group": 4}, "4 groups"),
        ("NCHW_NCHW4", (1, 6, 2, 2), {"group": 0}, "0 groups"),
        ("NCHW_NCHW4", (1, 6, 2, 2), {"oc": 4}, "oc=4"),
        ("NCHW_NCHW64", (1, 64, 2, 2), {"group": 2}, "know groups"),
        ("NCHW4_NCHW", (1, 8, 2, 2), {"oc": 9}, "not within"),
        ("NCHW4_NCHW", (1, 8, 2, 2), {"oc": 7, "group": 2}, "2 groups"),
        ("NCHW_NCHW4_WEIGHT", (1, 2, 3), {}, "got 3"),
    ],
)
def test_modes_check_what_megengine_asserts(
    name: str, dims: tuple[int, ...], options: dict[str, int], message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        relayout_mode(name, dims, **options)


@pytest.mark.parametrize(
    "name", ["NHWC_NCHW4", "NCHWI_NHWCD4", "NCHW_NCHW88_IC_SMALL", "INTER_WEIGHT_CHANI_DOT", "NCHW_"]
)
def test_unknown_modes(name: str) -> None:
    with pytest.raises(UnknownFormat, match="no mode"):
        relayout_mode(name, (1, 4, 2, 2))


@pytest.mark.parametrize("dims", [5, ("n", 4, 2, 2), (1, -4, 2, 2), (1.5, 4, 2, 2)])
def test_bad_dims(dims: Any) -> None:
    for call in (relayout_mode, relayout_shapes):
        with pytest.raises(LayoutError):
            call("NCHW_NCHW4", dims)
    with pytest.raises(LayoutError):
        physical_shape(dims, "NCHW4")
    with pytest.raises(LayoutError, match="pitch"):
        relayout_mode("NCHW_NHWCD4I", (1, 4, 2, 2), pitch=0)


def test_image_modes_round_rows_up() -> None:
    source, destination = relayout_mode("NCHW_NHWCD4I", (2, 6, 3, 5), pitch=64)
    assert source == Layout((2, 6, 3, 5), mge("NCHW"))
    assert destination == pitched((2, 6, 3, 5), "NHWCD4", 2, 64)
    source, destination = relayout_mode("NHWCD4I_NCHW", (2, 8, 3, 5), pitch=64)
    assert source.strides[2] == 64
    assert destination.strides == (120, 15, 5, 1)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.data())
def test_group_padding_there_and_back(n: int, group: int, count: int, data: st.DataObject) -> None:
    """What NCHW_NCHW4 pads, NCHW4_NCHW cuts off again, group by group."""
    dims = (n, group * count, 1, 2)
    there = relayout_mode("NCHW_NCHW4", dims, group)
    values = np.arange(1, prod(dims) + 1)
    room = group * -(-count // 4) * 4
    blocked = moved(*there, values, n * room * 2)
    back = relayout_mode("NCHW4_NCHW", (n, room, 1, 2), group, oc=group * count)
    assert (moved(*back, blocked, values.size) == values).all()
