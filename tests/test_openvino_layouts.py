"""clDNN's layouts against the cases of OpenVINO's own tests: sizes, pads, pitches, sameness, values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import Format, Layout, LayoutError, Unsupported, views
from relayout.notation import openvino
from relayout.notation.cldnn_layout import CldnnLayout, transform_shape

Vectors = Callable[[str], Any]


def indices(dims: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, dims))


def described(row: dict[str, Any]) -> CldnnLayout:
    return CldnnLayout(row["shape"], row["dtype"], row["format"], row["lower"] or (), row["upper"] or ())


# -- sizes and pitches --------------------------------------------------------------------------------------


def test_aligned_sizes_and_pitches(vectors: Vectors) -> None:
    rows = vectors("cldnn_layout_cases")["size_and_pitch"]
    for row in rows:
        pad = row["pad_symmetric_shape_order"] or ()
        layout = CldnnLayout(row["shape"], row["dtype"], row["format"], pad, pad)
        aligned = tuple(row["expected_aligned_shape"])
        assert layout.buffer.padded_dims == aligned, row
        assert layout.buffer.span == prod(aligned)
        assert layout.nbytes == prod(aligned) * layout.dtype.bits // 8
        assert layout.pitches == tuple(row["expected_pitches_shape_order"]), row
        if not pad:
            assert Layout(row["shape"], row["format"]).padded_dims == aligned
    assert len(rows) == 25


def test_order_of_axes_is_that_of_the_open_digits(vectors: Vectors) -> None:
    for row in vectors("cldnn_layout_cases")["size_and_pitch"]:
        format = Format(row["format"])
        assert [format.terms[term][0] for term, level in format.order if level == 0] == row["dims_order"]


def test_blocks_of_an_axis_multiply(vectors: Vectors) -> None:
    places = {0: ("n", "o"), 1: ("c", "i"), 2: ("w",), 3: ("h",), 4: ("d",), 8: ("g",)}  # clDNN's own order
    tested = 0
    for row in vectors("cldnn_layout_cases")["per_axis_block_size"]:
        try:
            format = Format(row["format"])
        except Unsupported:
            continue
        roles = format.roles
        assert roles is not None
        blocks = {role: block for role, block in zip(roles, format.blocks, strict=True) if block != 1}
        for place, block in row["per_axis_block"]:
            assert blocks.pop(next(role for role in places[place] if role in roles)) == block
        assert not blocks
        tested += 1
    assert tested == 14


def test_a_format_is_found_by_its_order_and_blocks(vectors: Vectors) -> None:
    """clDNN searches its table of traits for what Format writes down by rule."""
    tested = 0
    for row in vectors("cldnn_layout_cases")["find_format"]:
        odd = row["is_image_2d"] or row["is_winograd"] or row["expected"] == "THROW"
        if odd or row["expected"] == "bs_fs_fsv8_bsv8":  # whose traits list the blocks from the inside out
            continue
        data, spatial = not row["is_weights"], len(row["dims_order"]) - 2 - row["is_grouped"]
        head = "bf" if data else ("g" if row["is_grouped"] else "") + "oi"
        letters = head + "vuwzyx"[6 - spatial :]
        roles = [(openvino._DATA_ROLE if data else openvino._WEIGHTS_ROLE)[axis] for axis in letters]
        shift = row["is_grouped"]
        blocks = [(roles[axis + shift], size) for axis, size in row["block_sizes"]]
        format = Format.blocked(roles, [roles[axis] for axis in row["dims_order"]], blocks)
        assert format.name("openvino") == row["expected"]
        tested += 1
    assert tested == 20


# -- sameness -----------------------------------------------------------------------------------------------


def test_identical_and_compatible(vectors: Vectors) -> None:
    rows = vectors("cldnn_layout_cases")["compare"]
    for row in rows:
        one, two = described(row["l1"]), described(row["l2"])
        assert one.identical(two) is two.identical(one) is row["identical"], row
        assert one.compatible(two) is two.compatible(one) is row["compatible"], row
    assert len(rows) == 24


def test_compatible_layouts_of_equal_shape_place_every_element_alike(vectors: Vectors) -> None:
    """What the plugin takes for compatible really needs no reorder: both views have the same offsets."""
    tested = 0
    for row in vectors("cldnn_layout_cases")["compare"]:
        one, two = described(row["l1"]), described(row["l2"])
        if row["compatible"] and one.dims == two.dims:
            assert one.layout.same_bytes(two.layout)
            tested += 1
    assert tested == 6


def test_blocked_layouts_with_the_same_bytes_that_the_plugin_reorders() -> None:
    one = CldnnLayout((1, 2, 1, 1), "f16", "b_fs_yx_fsv16")
    two = CldnnLayout((1, 2, 1, 1, 1), "f16", "b_fs_zyx_fsv16")
    assert not one.compatible(two)
    assert views.squeeze(two.layout, 2).same_bytes(one.layout)


def test_one_slice_of_features_is_channels_last() -> None:
    one, two = CldnnLayout((2, 16, 3, 4), "f32", "byxf"), CldnnLayout((2, 16, 3, 4), "f32", "b_fs_yx_fsv16")
    assert one.compatible(two)
    assert one.layout.same_bytes(two.layout)
    two_slices = CldnnLayout((2, 32, 3, 4), "f32", "b_fs_yx_fsv16")
    assert not CldnnLayout((2, 32, 3, 4), "f32", "byxf").compatible(two_slices)


# -- shapes -------------------------------------------------------------------------------------------------


def test_transform_shape(vectors: Vectors) -> None:
    rows = vectors("cldnn_layout_cases")["transform_shape"]
    for row in rows:
        shape = transform_shape(row["shape"], row["src_format"], row["dst_format"])
        assert shape == tuple(row["expected"]), row
    assert len(rows) == 36


def test_shapes_of_weights_and_shapes_that_are_too_long_are_refused() -> None:
    with pytest.raises(LayoutError, match="no format of data"):
        transform_shape((1, 2, 3, 4), "oiyx", "bfyx")
    with pytest.raises(LayoutError, match="5 sizes"):
        transform_shape((1, 2, 3, 4, 5), "bfyx", "bfzyx")


# -- values -------------------------------------------------------------------------------------------------


def pads(row: dict[str, Any], axes: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    both = row.get("pad_both_sides", {})
    lower, upper = row.get("pad_lower", both), row.get("pad_upper", both)
    return tuple(lower.get(axis, 0) for axis in axes), tuple(upper.get(axis, 0) for axis in axes)


def of_side(side: dict[str, Any], shape: dict[str, int]) -> CldnnLayout:
    axes = openvino.axes_of(Format(side["format"])) or ""
    return CldnnLayout([shape.get(axis, 1) for axis in axes], "f32", side["format"], *pads(side, axes))


def moved(source: CldnnLayout, buffer: list[Any], target: CldnnLayout) -> list[Any]:
    """Reorder by definition: element by element, the rest zero. Sizes are matched in row-major order."""
    out: list[Any] = [0] * target.buffer.span
    for one, two in zip(indices(source.dims), indices(target.dims), strict=True):
        out[target.offset(*two)] = buffer[source.offset(*one)]
    return out


def test_reordered_values(vectors: Vectors) -> None:
    tested = 0
    for row in vectors("cldnn_layout_cases")["reorder_values_2021"]:
        source, target = row["src"], row["dst"]
        if "image" in source["format"] + target["format"]:
            for side in (source, target):
                if "image" in side["format"]:
                    with pytest.raises(Unsupported):
                        Format(side["format"])
            continue
        if not isinstance(source["buffer"], list):
            continue  # the rules of these are tested below
        start = of_side(source, source["shape"])
        assert len(source["buffer"]) == start.buffer.span
        values = source["buffer"]
        if "via" in row:
            via = of_side(row["via"], source["shape"])
            start, values = via, moved(start, values, via)
        end = of_side(target, target.get("shape", source["shape"]))
        assert moved(start, values, end) == target["buffer"], row["test"]
        tested += 1
    assert tested == 8


def test_padded_tensors_are_parts_of_their_buffer(vectors: Vectors) -> None:
    """The view of the padded source has the offsets of the values, and only those."""
    row = next(r for r in vectors("cldnn_layout_cases")["reorder_values_2021"] if "opt_padded" in r["test"])
    source, values = of_side(row["src"], row["src"]["shape"]), row["src"]["buffer"]
    assert [values[source.layout.offset(*index)] for index in indices(source.dims)] == row["dst"]["buffer"]


def test_offset_rule_of_b_fs_yx_fsv16() -> None:
    """The case bfyx_to_fsv16_without_f_remainder."""
    layout = Layout((1, 32, 4, 16), "b_fs_yx_fsv16")
    y_pitch = 16 * 16
    fs_pitch = y_pitch * 4
    for b, f, y, x in indices(layout.dims):
        rule = b * 2 * fs_pitch + f // 16 * fs_pitch + y * y_pitch + x * 16 + f % 16
        assert layout.offset(b, f, y, x) == rule


@pytest.mark.parametrize(("px", "py"), [(0, 0), (1, 2)])
def test_offset_rule_of_bs_fs_zyx_bsv16_fsv16(px: int, py: int) -> None:
    """bfzyx_to_bsv16_fsv16 and its padded twin: pads widen the rows of tiles, not the tiles."""
    pad = (0, 0, 0, py, px)
    layout = CldnnLayout((2, 2, 2, 2, 2), "f32", "bs_fs_zyx_bsv16_fsv16", pad, pad)
    wide, high = 2 + 2 * px, 2 + 2 * py
    for b, f, z, y, x in indices(layout.dims):
        rule = b % 16 * 16 + f % 16 + (x + px) * 256 + (y + py) * 256 * wide + z * 256 * wide * high
        assert layout.offset(b, f, z, y, x) == layout.layout.offset(b, f, z, y, x) == rule


def test_pairs_that_the_plugin_tests_have_dense_buffers(vectors: Vectors) -> None:
    for row in vectors("cldnn_layout_cases")["reorder_pairs_2021"]:
        for name in (row["src_format"], row["dst_format"]):
            axes = openvino.axes_of(Format(name)) or ""
            layout = CldnnLayout([row["shape"].get(axis, 1) for axis in axes], row["src_dtype"], name)
            assert layout.buffer.span == prod(layout.buffer.padded_dims)
            assert layout.buffer.is_injective()


# -- pads in general ----------------------------------------------------------------------------------------

FORMATS = ("bfyx", "yxfb", "byxf", "b_fs_yx_fsv4", "fs_b_yx_fsv32", "bs_fs_yx_bsv4_fsv2", "os_iyx_osv8")
FOUR = st.tuples(*[st.integers(0, 5)] * 4)


@given(st.sampled_from(FORMATS), st.tuples(*[st.integers(1, 5)] * 4), FOUR, FOUR, st.data())
def test_a_padded_layout_is_a_part_of_a_bigger_one(
    name: str, dims: tuple[int, ...], lower: tuple[int, ...], upper: tuple[int, ...], data: st.DataObject
) -> None:
    layout = CldnnLayout(dims, "f16", name, lower, upper)
    whole = Layout([low + size + high for low, size, high in zip(lower, dims, upper, strict=True)], name)
    reach = [(-low, size - 1 + high) for low, size, high in zip(lower, dims, upper, strict=True)]
    index = data.draw(st.tuples(*[st.integers(first, last) for first, last in reach]))
    place = layout.offset(*index)
    assert whole.index(place) == tuple(i + low for i, low in zip(index, lower, strict=True))
    try:
        part = layout.layout
    except LayoutError:
        return  # blocks cut at uneven places: the layout says so, offset() still answers
    if all(0 <= i < size for i, size in zip(index, dims, strict=True)):
        assert part.offset(*index) == place


def test_missing_sizes_are_one() -> None:
    assert CldnnLayout((10, 20), "f16", "bfyx").dims == (10, 20, 1, 1)


def test_four_bit_names_are_read_for_their_type() -> None:
    assert CldnnLayout((32, 2), "s4", "os_iyx_osv32").offset(16, 0, 0, 0) == 1
    assert CldnnLayout((32, 2), "s8", "os_iyx_osv32").offset(16, 0, 0, 0) == 16
    assert CldnnLayout((32, 2), "s4", Format("os_iyx_osv32")) == CldnnLayout((32, 2), "s4", "os_iyx_osv32")
    with pytest.raises(LayoutError, match="4-bit"):
        CldnnLayout((32, 2), "s4", Format("Oihw32o"))
    assert CldnnLayout((32, 2), "s8", Format("Oihw32o")).format_name == "os_iyx_osv32"


def test_bad_layouts_are_refused() -> None:
    with pytest.raises(LayoutError, match="no name in clDNN"):
        CldnnLayout((1, 2, 3, 4), "f32", Format("abcd"))
    with pytest.raises(LayoutError, match="are 5"):
        CldnnLayout((1, 2, 3, 4, 5), "f32", "bfyx")
    with pytest.raises(LayoutError, match="negative"):
        CldnnLayout((1, 2, 3, 4), "f32", "bfyx", lower=(0, -1))
    with pytest.raises(LayoutError, match="out of bounds"):
        CldnnLayout((1, 2, 3, 4), "f32", "bfyx", lower=(0, 1)).offset(0, -2, 0, 0)
