"""clDNN's names against tables of the plugin, against formulas of its OpenCL code, and against themselves."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import Format, Layout, LayoutError, MemoryDesc, UnknownFormat, Unsupported
from relayout.notation import openvino

LETTERS = {
    False: {"n": "b", "c": "f", "s6": "v", "s5": "u", "s4": "w", "d": "z", "h": "y", "w": "x"},
    True: {"g": "g", "o": "o", "i": "i", "d": "z", "h": "y", "w": "x"},
}


def digits(format: Format) -> list[list[Any]]:
    """The digits as the tables write them: axis or fused axes by clDNN's letters, weight, extent."""
    roles = format.roles
    assert roles is not None
    letters = LETTERS["o" in roles]
    keys = ["".join(letters[roles[axis]] for axis in term) for term in format.terms]
    return [[keys[digit.term], digit.weight, digit.extent] for digit in format.digits]


def expected(rows: list[list[Any]]) -> list[list[Any]]:
    return [["".join(axes), weight, extent] for axes, weight, extent in rows]


# -- the plugin's tables ------------------------------------------------------------------------------------


def test_every_expressible_format_has_the_digits_of_the_table(vectors: Callable[[str], Any]) -> None:
    count = 0
    for row in vectors("cldnn_formats")["formats"]:
        if not row["expressible"].startswith(("plain", "digits")):
            continue
        count += 1
        for format in (Format(row["name"]), Format(row["name"], dialect="openvino")):
            assert digits(format) == expected(row["digits"]), row["name"]
            assert format.name("openvino") == row["name"]
    assert count == 127


def test_the_rest_of_the_table_is_refused_with_a_reason(vectors: Callable[[str], Any]) -> None:
    count = 0
    for row in vectors("cldnn_formats")["formats"]:
        if not row["expressible"].startswith(("plain", "digits")):
            count += 1
            with pytest.raises(Unsupported, match=row["name"]):
                Format(row["name"])
    assert count == 14


def test_formats_of_2021_and_2022_follow_from_their_names(vectors: Callable[[str], Any]) -> None:
    table = vectors("cldnn_formats")
    for row in table["formats_only_2021"]:
        if "bit-packed" in row.get("note", ""):
            with pytest.raises(Unsupported, match="one bit"):
                Format(row["name"])
            continue
        format = Format(row["name"])
        if isinstance(row.get("digits"), list):
            assert digits(format) == expected(row["digits"])
        assert format.name("openvino") == row["name"]
    for name in table["names_only_2022"]:
        assert Format(name).name("openvino") == name


def test_names_are_the_formats_of_all_tables(vectors: Callable[[str], Any]) -> None:
    table = vectors("cldnn_formats")
    rows = table["formats"] + table["formats_only_2021"]
    known = {row["name"] for row in rows} | set(table["names_only_2022"])
    no_layouts = re.compile("winograd|image|nv12|xs_os_xsv2|32f?p$")
    assert set(openvino.names()) == {name for name in known if not no_layouts.search(name)}
    assert len(openvino.names()) == len(set(openvino.names())) == 181


@pytest.mark.parametrize("name", openvino.names())
def test_every_name_is_read_and_written_back(name: str) -> None:
    format = Format(name)
    assert format.dialect == "openvino"
    assert format.name("openvino") == name
    assert Format(name, dialect="cldnn") == format


# -- its OpenCL code ----------------------------------------------------------------------------------------
# Formulas for the formats whose digits are in no order of significance, written down from what the kernels
# compute: sizes O, I, Y, X are those of the tensor.


def swizzled(o: int) -> int:
    """The renumbering of outputs by 4: 0, 4, 8, ... 28, 1, 5, ..."""
    return o % 4 * 8 + o % 32 // 4 + o // 32 * 32


def up(size: int, multiple: int) -> int:
    return -(-size // multiple)


def osa4_isa8_osv8_isv4(o: int, i: int, y: int, x: int, size: tuple[int, ...]) -> int:
    _, inputs, rows, columns = size
    o = swizzled(o)
    tile = ((o // 32 * up(inputs, 32) + i // 32) * rows + y) * columns + x
    return tile * 1024 + o // 8 % 4 * 256 + i // 4 % 8 * 32 + o % 8 * 4 + i % 4


def isa8_osv8_isv4(o: int, i: int, y: int, x: int, size: tuple[int, ...]) -> int:
    _, inputs, rows, columns = size
    o = swizzled(o)
    tile = ((o // 8 * up(inputs, 32) + i // 32) * rows + y) * columns + x
    return tile * 256 + i // 4 % 8 * 32 + o % 8 * 4 + i % 4


def osv32_isv4(o: int, i: int, y: int, x: int, size: tuple[int, ...]) -> int:
    _, inputs, rows, columns = size
    tile = ((o // 32 * up(inputs, 4) + i // 4) * rows + y) * columns + x
    return tile * 128 + o % 32 % 2 * 64 + o % 32 // 2 * 4 + i % 4


def o32_isv32(o: int, i: int, y: int, x: int, size: tuple[int, ...]) -> int:
    outputs, _, rows, columns = size
    return i % 32 + 32 * (x + columns * (y + rows * (swizzled(o) + up(outputs, 32) * 32 * (i // 32))))


def y_x8(o: int, i: int, y: int, x: int, size: tuple[int, ...]) -> int:
    _, inputs, rows, columns = size
    row = y + rows * (i // 4 + up(inputs, 4) * (o // 8))
    return i % 4 + 4 * (o % 8 + 8 * (x + up(columns, 8) * 8 * row))


def y_x8_swizzled(o: int, i: int, y: int, x: int, size: tuple[int, ...]) -> int:
    return y_x8(swizzled(o), i, y, x, size)


def osv4_yxsv4(o: int, i: int, y: int, x: int, size: tuple[int, ...]) -> int:
    _, inputs, rows, columns = size
    yx = y * columns + x
    return yx % 4 + o % 4 * 4 + yx // 4 * 16 + (i + o // 4 * inputs) * 4 * (up(rows * columns, 4) * 4)


def yxsv2_osv16(o: int, i: int, y: int, x: int, size: tuple[int, ...]) -> int:
    outputs, _, rows, columns = size
    row = i * up(rows * columns, 2) * 2 + y * columns + x
    return (row & ~1) * up(outputs, 16) * 16 + o // 16 * 32 + (y * columns + x) % 2 * 16 + o % 16


@pytest.mark.parametrize("size", [(32, 32, 2, 3), (40, 36, 3, 1), (5, 3, 1, 9)])
@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("os_is_yx_osa4_isa8_osv8_isv4_swizzled_by_4", osa4_isa8_osv8_isv4),
        ("os_is_yx_isa8_osv8_isv4_swizzled_by_4", isa8_osv8_isv4),
        ("os_is_yx_osv32_isv4_swizzled_by_2", osv32_isv4),
        ("is_o32_yx_isv32_swizzled_by_4", o32_isv32),
        ("os_is_y_x8_osv8_isv4", y_x8),
        ("os_is_y_x8_osv8_isv4_swizzled_by_4", y_x8_swizzled),
        ("os_i_yxs_osv4_yxsv4", osv4_yxsv4),
        ("i_yxs_os_yxsv2_osv16", yxsv2_osv16),
    ],
)
def test_offsets_agree_with_the_kernels(
    name: str, formula: Callable[..., int], size: tuple[int, int, int, int]
) -> None:
    layout = Layout(size, name)
    for index in itertools.product(range(0, size[0], 3), range(0, size[1], 5), *map(range, size[2:])):
        assert layout.offset(*index) == formula(*index, size), index


def test_irregular_formats_are_what_the_refusal_says_where_they_are_regular() -> None:
    """x even, O a multiple of 32: the kernel's formula for iy_xs_os_xsv2_osv8__ao32 is iy_xs_os_xsv2_osv8."""
    outputs, inputs, rows, columns = size = (64, 2, 3, 4)
    layout = Layout(size, "iy_xs_os_xsv2_osv8")
    for o, i, y, x in itertools.product(range(0, 64, 3), range(inputs), range(rows), range(columns)):
        row = (i * rows + y) * columns + x
        assert layout.offset(o, i, y, x) == (row & ~1) * outputs + o // 8 * 16 + x % 2 * 8 + o % 8


# -- 4-bit elements -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["s4", "u4"])
@pytest.mark.parametrize(
    ("name", "first"),
    [
        # o and i of the first elements; a pair is a byte
        ("os_iyx_osv16", [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
        ("os_iyx_osv32", [(0, 0), (16, 0), (1, 0), (17, 0), (2, 0), (18, 0)]),
        ("os_iyx_osv64", [(0, 0), (16, 0), (1, 0), (17, 0), (2, 0), (18, 0)]),
        ("os_is_yx_osv32_isv2", [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
    ],
)
def test_four_bit_elements_are_stored_in_pairs(name: str, dtype: str, first: list[tuple[int, int]]) -> None:
    layout = MemoryDesc((64, 8, 1, 1), dtype, name).layout
    places = [layout.index(k) for k in range(6)]
    assert places == [(o, i, 0, 0) for o, i in first]


def test_four_bit_osv64_continues_with_outputs_32_to_63() -> None:
    layout = MemoryDesc((64, 8, 1, 1), "u4", "os_iyx_osv64").layout
    assert [layout.index(k) for k in (31, 32, 33, 63, 64)] == [
        (31, 0, 0, 0), (32, 0, 0, 0), (48, 0, 0, 0), (63, 0, 0, 0), (0, 1, 0, 0),
    ]  # fmt: skip


def test_four_bit_digits_are_those_of_the_table(vectors: Callable[[str], Any]) -> None:
    count = 0
    for row in vectors("cldnn_formats")["formats"]:
        meaning = row.get("i4_meaning", "")
        if meaning.startswith("["):
            known = Format(row["name"]).resolve(dtype="s4").digits_text()
            text = re.sub(r"\((\w//\d+)\)", r"\1", meaning.strip("[]"))
            assert known == Format("oiyx -> " + text).with_roles("oihw").digits_text()
            count += 1
    assert count == 3


def test_wide_elements_and_other_names_do_not_change() -> None:
    for name in ("os_iyx_osv16", "os_iyx_osv32", "os_iyx_osv64"):
        assert Format(name).resolve(dtype="s8") == Format(name)
        assert Format(name).resolve(dtype="s4") != Format(name)
        other = Format(name).resolve(dtype="s4").name("openvino")
        assert other is not None
        assert Format(other) == Format(name).resolve(dtype="u4")
    same = Format("os_is_yx_osv32_isv2")
    assert same.resolve(dtype="s4") == same.resolve(dtype="f32") == same


def test_a_format_read_for_a_type_keeps_its_digits_in_a_layout() -> None:
    format = Format("os_iyx_osv32").resolve(dtype="s4")
    assert Layout((32, 2, 1, 1), format).offset(16, 0, 0, 0) == 1
    assert MemoryDesc((32, 2, 1, 1), "u4", format).layout.offset(16, 0, 0, 0) == 1


# -- meaning ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("onednn", "cldnn"),
    [
        ("nchw", "bfyx"),
        ("nhwc", "byxf"),
        ("ncdhw", "bfzyx"),
        ("nChw16c", "b_fs_yx_fsv16"),
        ("nCdhw32c", "b_fs_zyx_fsv32"),
        ("NChw32n16c", "bs_fs_yx_bsv32_fsv16"),
        ("oihw", "oiyx"),
        ("hwio", "yxio"),
        ("goidhw", "goizyx"),
        ("OIhw16i16o", "os_is_yx_isv16_osv16"),
        ("OIhw8i16o2i", "os_is_yx_isv8_osv16_isv2"),
        ("gOIdhw8i16o2i", "g_os_is_zyx_isv8_osv16_isv2"),
        ("IOhw16i16o", "is_os_yx_isv16_osv16"),
        ("OIhw8i16o4i", "os_is_yx_isa8_osv16_isv4"),
        ("Goihw16g", "gs_oiyx_gsv16"),
    ],
)
def test_onednn_says_the_same(onednn: str, cldnn: str) -> None:
    assert Format(onednn).name("openvino") == cldnn
    assert Format(cldnn).name("onednn") == onednn
    assert Format(onednn) == Format(cldnn)


@pytest.mark.parametrize("text", ["abcd", "aBcd16b", "tnc", "ldigo", "ncw", "oiw", "x"])
def test_what_cldnn_has_no_axes_for_has_no_name(text: str) -> None:
    assert Format(text).name("openvino") is None


def test_formats_that_the_grammar_can_not_say_have_no_name() -> None:
    assert Format("n, c//4%2, h, w, c//8, c%4").name("openvino") is None
    assert Format("oihw -> i, (h w), o").name("openvino") is None
    assert Format("l dir o i -> dir, l, i, o").name("openvino") is None


def test_the_axes_of_lstm_weights() -> None:
    weights = Format("lstm_weights_dio")
    assert weights.digits_text() == "l dir i o -> l, dir, i, o"
    assert weights == Format("ldio")
    # clDNN's table writes the order as oixy of a tensor that it indexes as layer, direction, output, input.
    assert weights.indexed((0, 1, 3, 2)) == Format("oixy", dialect="openvino")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("b_fs_yx", "fs slices f, but no part fsv"),
        ("b_fs_yx_isv16", "fs slices f, but no part fsv"),
        ("b_f_yx_fsv16", "no outer part fs"),
        ("o_is_yx_isv4_osv8", "no outer part os"),
        ("o_fs_yx_fsv4", "name the axes o f y x"),
        ("b_fs_fs_yx_fsv4", "name the axes b f f y x"),
        ("b_fs_yx_fsv0", "1 or more"),
        ("os_iyx_osv16__ab4", "aligns b"),
        ("os_iyx_osv16__ai4__ai8", "twice"),
        ("os_iyx_osv16__ao24", "multiple of 24"),
        ("os_iyx_osv16_swizzled_by_3", "2, 4, 8 or 16"),
        ("os_iyx_osv12_swizzled_by_4", "don't fit"),
        ("is_o_yx_isv32_swizzled_by_4", "neither sliced"),
        ("is_oyxs_isv2_oyxsv2", "fuses axes"),
        ("os_i_xys_osv4_xysv4", "fuses axes"),
    ],
)
def test_contradictions_are_named(text: str, reason: str) -> None:
    with pytest.raises(UnknownFormat, match=reason):
        Format(text, dialect="openvino")
    with pytest.raises(UnknownFormat, match=reason):
        Format(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("winograd_2x3_s1_data", "Winograd"),
        ("image_2d_weights_winograd_6x3_s1_fbxyb", "Winograd"),
        ("image_2d_rgba", "row pitch"),
        ("nv12", "two buffers"),
        ("b_fs_yx_32fp", "one bit"),
        ("os_is_yx_osv32_isv32p", "one bit"),
        ("giy_xs_os_xsv2_osv16__ao32", "'giy_xs_os_xsv2_osv16', is the same"),
        ("any", "relayout.any"),
        ("custom", "placeholder"),
    ],
)
def test_refusals_say_what_it_really_is(text: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        Format(text, dialect="openvino")


def test_a_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownFormat, match="b_fs_yx_fsv16"):
        Format("b_fs_yx_fvs16", dialect="openvino")


# -- properties ---------------------------------------------------------------------------------------------


@st.composite
def grammatical(draw: st.DrawFn) -> str:
    """A name by the grammar: any order of axes, any widths, fused axes, alignment, a swizzle now and then."""
    logical = draw(st.sampled_from(["bfyx", "bfzyx", "bfwzyx", "oiyx", "goizyx", "oi", "bf"]))
    axes = list(draw(st.permutations(logical)))
    if {"y", "x"} <= set(axes) and draw(st.booleans()):
        axes[axes.index("y")] = "yx"
        axes.remove("x")
    outer, inner = [], []
    widths = st.integers(1, 33) | st.sampled_from([2, 4, 8, 16, 32])
    for axis in axes:
        kind = draw(st.sampled_from(["plain", "sliced", "aligned"]))
        if kind == "sliced" or (len(axis) > 1 and kind == "aligned"):
            inner += [(axis, draw(widths)) for _ in range(draw(st.integers(1, 3)))]
            outer.append(axis + "s")
        else:
            outer.append(axis + (str(draw(widths)) if kind == "aligned" else ""))
    order = draw(st.permutations(inner))
    parts = [f"{axis}s{draw(st.sampled_from('va'))}{size}" for axis, size in order]
    suffix = draw(st.sampled_from(["", "", "", "__ai32", "__ax8", "_swizzled_by_2", "_swizzled_by_4"]))
    return "_".join(outer + parts) + suffix


@given(grammatical())
def test_names_of_the_grammar_are_written_back_as_equal_formats(name: str) -> None:
    try:
        format = Format(name, dialect="openvino")
    except (UnknownFormat, Unsupported):
        return  # an alignment that does not fit its slices, or a swizzle its tile
    written = format.name("openvino")
    assert written is not None
    assert Format(written, dialect="openvino") == format
    assert Format(written, dialect="openvino").name("openvino") == written


PIECES = (
    *("b", "f", "fs", "bs", "yx", "zyx", "y", "xs", "x8", "os", "is", "o", "i", "iyx", "gs", "g", "yxs"),
    *("fsv16", "osv32", "isa8", "yxsv2", "sv", "4", "osv0", "osv9999999", "_", "__ai32", "__ab2", "s", "v"),
    *("swizzled_by_4", "swizzled_by_32", "winograd_2", "image_2d_", "32fp", "any", "lstm_weights_dio"),
)


@given(
    st.lists(
        st.sampled_from(PIECES),
        max_size=8,
    ).map("_".join)
    | st.text(alphabet="bfvuwzyxgois_a0123456789", max_size=24)
    | st.text(max_size=16),
    st.sampled_from([None, "s4", "f32"]),
)
def test_junk_raises_a_layout_error_or_is_none(text: str, dtype: str | None) -> None:
    try:
        format = openvino.parse(text, dtype=dtype)
    except LayoutError:
        return
    assert format is None or format.rank


@given(grammatical(), st.data())
def test_offsets_of_any_name_are_injective_and_come_back(name: str, data: st.DataObject) -> None:
    try:
        format = Format(name, dialect="openvino")
    except LayoutError:
        return
    assert format.rank is not None
    sizes = data.draw(st.tuples(*[st.integers(1, 4)] * format.rank))
    layout = Layout(sizes, format)
    index = data.draw(st.tuples(*[st.integers(0, size - 1) for size in sizes]))
    assert layout.index(layout.offset(*index)) == index
    assert layout.is_injective()
