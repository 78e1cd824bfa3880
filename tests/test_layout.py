"""Layouts: the map from indices to offsets, its inverse and the sizes around it, against counting by hand."""

from __future__ import annotations

import copy
import pickle
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import Format, Layout, LayoutError
from relayout.layout.layout import Digit, reach
from strategies import (
    element_places,
    examples,
    formats,
    has_clean_padding,
    ladders,
    layouts,
    padding_places,
    room_places,
    shapes,
    term_place,
)

# --- the map -----------------------------------------------------------------------------------------------


@examples(150)
@given(st.data())
def test_a_dense_layout_reads_the_digits_as_one_mixed_radix_number(data: st.DataObject) -> None:
    dims = data.draw(shapes())
    format = data.draw(formats(len(dims)))
    layout = Layout(dims, format)
    index = tuple(data.draw(st.integers(0, size - 1)) for size in dims)
    place = 0
    for term, weight, extent in format.digits:
        number = whole = 0
        for axis in format.terms[term]:
            number = number * dims[axis] + index[axis]
            whole = whole * dims[axis] + dims[axis] - 1
        radix = -(-(whole + 1) // weight) if extent is None else extent
        place = place * radix + number // weight % radix
    assert layout.offset(*index) == place


@examples(150)
@given(layouts(zeros=True))
def test_offset_and_offsets_are_the_sum_of_the_digits(layout: Layout) -> None:
    places = element_places(layout)
    for index in np.ndindex(*layout.dims):
        assert layout.offset(*index) == places[index]
    indices = np.moveaxis(np.indices(layout.dims), 0, -1)
    assert (layout.offsets(indices) == places).all()
    assert layout.offsets(indices).dtype == np.int64


@examples(150)
@given(layouts())
def test_index_is_the_inverse_of_offset(layout: Layout) -> None:
    places = element_places(layout)
    injective = len(set(places.ravel().tolist())) == places.size
    for index in np.ndindex(*layout.dims):
        found = layout.index(int(places[index]))
        assert found is not None
        assert found == index or not injective
        assert layout.offset(*found) == places[index]


@examples(150)
@given(layouts(zeros=True))
def test_what_is_no_element_is_padding_or_a_hole(layout: Layout) -> None:
    elements, padding = set(element_places(layout).ravel().tolist()), padding_places(layout)
    low, high = layout.bounds()
    for offset in [*range(low - 3, min(high + 4, low + 400)), *sorted(padding)[-50:]]:
        assert (layout.index(offset) is not None) == (offset in elements)
        assert layout.is_padding(offset) == (offset in padding)


@examples(150)
@given(layouts(zeros=True))
def test_bounds_and_span_are_the_ends_of_the_room(layout: Layout) -> None:
    room = room_places(layout)
    if room:
        assert layout.bounds() == (min(room), max(room))
    else:
        assert layout.bounds() == (layout.offset0, layout.offset0 - 1)
    assert layout.span == (max(room) - min(room) + 1 if room else 0)
    assert layout.size == element_places(layout).size
    assert layout.density == (layout.size / layout.span if room else 1.0)


@examples(150)
@given(layouts(zeros=True))
def test_digits_of_every_layout_chain_and_hold_its_room(layout: Layout) -> None:
    assert sorted(a for term in layout.terms for a in term) == list(range(layout.rank))
    assert list(layout.terms) == sorted(layout.terms)
    assert sorted(layout.order) == [
        (t, k) for t, ladder in enumerate(layout.ladders) for k in range(len(ladder))
    ]
    for t, ladder in enumerate(layout.ladders):
        weight = 1
        for digit in reversed(ladder):
            assert digit.weight == weight
            weight *= digit.extent
        assert layout.term_size(t) <= layout.padded[t] or 0 in layout.dims
        assert layout.padded[t] <= weight


@examples(100)
@given(layouts())
def test_has_padding_if_there_is_any(layout: Layout) -> None:
    if has_clean_padding(layout):
        assert layout.has_padding == bool(padding_places(layout))


@examples(200)
@given(ladders(), st.data())
def test_reach_is_the_farthest_that_any_number_goes(
    ladder: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    digits = [Digit(*digit) for digit in ladder]
    room = data.draw(st.integers(1, prod(d.extent for d in digits)))
    places = [term_place(digits, number) for number in range(room)]
    assert reach(digits, room, 1) == max(0, *places, 0)
    assert reach(digits, room, -1) == max(0, *(-place for place in places), 0)


@examples(100)
@given(st.data())
def test_padded_dims_round_up_to_whole_blocks(data: st.DataObject) -> None:
    dims = data.draw(shapes(zeros=True))
    layout = Layout(dims, data.draw(formats(len(dims), fused=False)))
    assert layout.format is not None
    assert layout.padded_dims == tuple(
        -(-size // block) * block for size, block in zip(dims, layout.format.blocks, strict=True)
    )
    assert layout.is_injective()
    if 0 not in dims:
        assert layout.span == prod(layout.padded_dims)


@examples(60)
@given(st.data())
def test_strides_of_a_plain_layout_are_numpys(data: st.DataObject) -> None:
    dims = data.draw(shapes())
    order = data.draw(st.permutations(range(len(dims))))
    array = np.zeros([dims[a] for a in order], dtype=np.int8).transpose(np.argsort(order))
    format = Format.from_digits("abcdefgh"[: len(dims)], [("abcdefgh"[a], 1, None) for a in order])
    assert Layout(dims, format).strides == array.strides
    assert Layout(dims, strides=array.strides) == Layout(dims, format)
    assert Layout(dims, format).is_plain


@examples(60)
@given(st.data())
def test_the_dense_strides_given_by_hand_make_the_same_layout(data: st.DataObject) -> None:
    dims = data.draw(shapes())
    format = data.draw(formats(len(dims), fused=False))
    inner_last = Format.from_digits(
        format.axis_names(),
        sorted(
            ((format.axis_names()[d.term], d.weight, d.extent) for d in format.digits),
            key=lambda d: d[2] is not None,
        ),
    )
    dense = Layout(dims, inner_last)
    by_hand = Layout(dims, inner_last, strides=dense.strides)
    assert by_hand == dense
    assert by_hand.format == inner_last


# --- worked examples ---------------------------------------------------------------------------------------


def test_the_worked_example_of_the_docs() -> None:
    layout = Layout((2, 17, 5, 4), "nChw8c")
    assert [d[1:] for d in layout.digits] == [(1, 2, 480), (8, 3, 160), (1, 5, 32), (1, 4, 8), (1, 8, 1)]
    assert layout.offset(1, 9, 0, 2) == 1 * 480 + 1 * 160 + 0 * 32 + 2 * 8 + 1
    assert (layout.padded_dims, layout.span) == ((2, 24, 5, 4), 960)
    assert [layout.index(k) for k in range(320, 329)] == [(0, 16, 0, 0), *[None] * 7, (0, 16, 0, 1)]
    assert all(layout.is_padding(k) for k in range(321, 328))


def test_packed_weights_with_three_levels() -> None:
    layout = Layout((32, 16, 3, 3), "OIhw4i16o4i")
    o, i, h, w = 17, 5, 0, 2
    digits = [(o // 16, 2), (i // 16, 1), (h, 3), (w, 3), (i // 4 % 4, 4), (o % 16, 16), (i % 4, 4)]
    place = 0
    for value, radix in digits:
        place = place * radix + value
    assert layout.offset(o, i, h, w) == place == 2885


def test_digits_in_no_order_of_significance() -> None:
    swizzled = Layout((32,), "o//32, o%2, o//2%16")
    assert [swizzled.offset(k) for k in range(6)] == [0, 16, 1, 17, 2, 18]
    assert [swizzled.index(k) for k in (0, 1, 16)] == [(0,), (2,), (1,)]


def test_fused_axes_are_one_row_major_number() -> None:
    layout = Layout((2, 3), "yx -> (y x)//4, (y x)%4")
    assert layout.padded == (8,)
    assert layout.padded_dims == (2, 3)  # fused axes keep their own size
    assert [layout.index(k) for k in range(8)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), None, None]


def test_axes_can_be_fused_in_any_order() -> None:
    layout = Layout((2, 3), Format.from_digits("ab", [(("b", "a"), 1, None)]))
    assert [layout.index(k) for k in range(6)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_holes_are_no_padding() -> None:
    rows = Layout((2, 3), strides=(10, 1))
    assert rows.span == 13
    assert [k for k in range(13) if rows.index(k) is None] == [3, 4, 5, 6, 7, 8, 9]
    assert not any(rows.is_padding(k) for k in range(-3, 16))
    assert not rows.has_padding


def test_a_broadcast_place_is_its_first_element() -> None:
    rows = Layout((4, 3), strides=(0, 1))
    assert rows.index(2) == (0, 2)
    assert rows.density == 4.0
    assert rows.span == 3


def test_negative_strides_count_down_from_the_offset() -> None:
    layout = Layout((4,), strides=(-2,), offset=6)
    assert layout.bounds() == (0, 6)
    assert [layout.index(k) for k in range(7)] == [(3,), None, (2,), None, (1,), None, (0,)]


def test_a_scalar_is_one_element() -> None:
    scalar = Layout((), strides=(), offset=5)
    assert (scalar.offset(), scalar.index(5), scalar.index(4), scalar.span) == (5, (), None, 1)
    assert scalar.offsets(np.zeros((2, 3, 0), dtype=int)).tolist() == [[5] * 3] * 2
    assert str(scalar) == "scalar+5"


def test_no_elements_are_nowhere() -> None:
    empty = Layout((3, 0, 2), "aBc4b")
    assert (empty.size, empty.span, empty.padded_dims, empty.has_padding) == (0, 0, (3, 0, 2), False)
    assert empty.index(0) is None
    assert not empty.is_padding(0)
    assert empty.offsets(np.zeros((0, 3), dtype=int)).shape == (0,)
    assert empty.is_injective()


# --- size is no obstacle -----------------------------------------------------------------------------------


def test_twelve_axes() -> None:
    dims = (2, 3, 1, 2, 2, 1, 3, 2, 1, 2, 2, 5)
    layout = Layout(dims, "lkAjihgFedcb2a4f")
    index = tuple(size - 1 for size in dims)
    assert layout.index(layout.offset(*index)) == index
    assert layout.padded_dims == (2, 3, 1, 2, 2, 4, 3, 2, 1, 2, 2, 5)
    assert layout.span == prod(layout.padded_dims)


def test_seven_levels_of_blocks() -> None:
    layout = Layout((5000, 3), "AB2a3b2a5a2b4a2a3a")
    assert layout.padded_dims == (5280, 6)
    assert len(layout.ladders[0]) == 7
    for index in [(0, 0), (4999, 2), (1234, 1), (239, 0), (240, 0)]:
        assert layout.index(layout.offset(*index)) == index


def test_blocks_of_one_are_no_blocks() -> None:
    assert Format("nChw1c") == Format("nchw")
    assert Format("a, b//4%1, b//4, b%1, b%4") == Format("aB4b")
    assert Layout((2, 3, 4, 5), "nChw1c").strides == (60, 20, 5, 1)


@pytest.mark.parametrize("format", ["nChw16c", "nhwc", "NChw8n4c", "n, (h w)//3, c//2, (h w)%3, c%2"])
def test_beyond_two_to_the_31(format: str) -> None:
    dims = (2**12 + 1, 3001, 2**10, 2**10 - 1)
    layout = Layout(dims, format)
    assert layout.size > 2**43
    for index in [(0, 0, 0, 0), tuple(d - 1 for d in dims), (4000, 17, 1000, 3), (1, 2999, 0, 1022)]:
        place = layout.offset(*index)
        assert layout.index(place) == index
        assert layout.offsets([index]).tolist() == [place]
    assert layout.index(layout.span) is None
    assert layout.span >= layout.size
    assert layout.is_injective()
    assert layout.same_bytes(Layout(dims, format))


def test_padding_of_a_huge_broadcast_is_found_at_once() -> None:
    layout = Layout((2**40, 17), "aB8b", strides=(0, 8))
    assert layout.index(16) == (0, 16)
    assert layout.index(17) is None
    assert layout.is_padding(17)
    assert layout.span == 24


def test_huge_strides_that_do_not_nest_are_solved_not_searched() -> None:
    layout = Layout((2**31, 2**31), strides=(4, 6))
    assert layout.index(7) is None
    assert layout.offset(*layout.index(2**34)) == 2**34  # type: ignore[misc]
    odd = Layout((2**31, 3), strides=(10**9 + 7, 10**9 + 9))
    assert odd.index((10**9 + 7) * 2_000_000_000 + 2 * (10**9 + 9)) == (2_000_000_000, 2)
    assert odd.index((10**9 + 7) * 2_000_000_000 + 1) is None


def test_the_limit_is_two_to_the_63() -> None:
    assert Layout((2**62, 1), "ab").offset(2**62 - 1, 0) == 2**62 - 1
    with pytest.raises(LayoutError, match="2\\*\\*63"):
        Layout((2**32, 2**31), "ab")
    with pytest.raises(LayoutError, match=r"format aB16b with dims 4611686018427387904x1 takes \d+ elements"):
        Layout((2**62, 1), "aB16b")
    with pytest.raises(
        LayoutError, match="strides 4611686018427387904 of dims 3 reach 9223372036854775808 elements far"
    ):
        Layout((3,), strides=(2**62,))


# --- being a value -----------------------------------------------------------------------------------------


@examples(60)
@given(layouts(zeros=True))
def test_layouts_pickle_copy_and_hash(layout: Layout) -> None:
    for twin in (pickle.loads(pickle.dumps(layout)), copy.copy(layout), copy.deepcopy(layout)):
        assert twin == layout
        assert hash(twin) == hash(layout)
        assert str(twin) == str(layout)
        assert (twin.order, twin.format) == (layout.order, layout.format)
    assert layout != "a layout"


@examples(60)
@given(layouts())
def test_moved_shifts_every_offset(layout: Layout) -> None:
    moved = layout.moved(layout.offset0 + 11)
    assert (element_places(moved) == element_places(layout) + 11).all()
    assert moved.moved(layout.offset0) == layout


def test_equality_is_of_digits_not_of_names_or_bytes() -> None:
    assert Layout((1, 8, 2, 2), "nchw") == Layout((1, 8, 2, 2), "oihw")
    assert Layout((1, 8, 2, 2), "nChw8c") != Layout((1, 8, 2, 2), "nhwc")
    assert Layout((2, 3), "ab") == Layout((2, 3), strides=(3, 1))
    assert Layout((2, 3), "ab") != Layout((2, 3), "ab", offset=1)


def test_text_of_a_layout() -> None:
    assert repr(Layout((2, 17), "aB8b")) == "Layout('aB8b:2x17')"
    assert str(Layout((2, 3), strides=(10, 1), offset=4)) == "2x3 strides 10x1+4"
    assert str(Layout((2, 6), "aB4b", strides=(16, 4))) == "2x6 [a%2*16, b//4%2*4, b%4*1]"


def test_a_layout_is_frozen() -> None:
    layout = Layout((2, 3), "ab")
    with pytest.raises(AttributeError, match="a Layout is frozen; dims can't be set or deleted"):
        layout.dims = (3, 2)  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del layout.dims


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (((2, 3),), {}, "a layout needs a format or strides, got neither"),
        (((2, 3), "abc"), {}, "format abc has 3 axes, but 2 dims were given"),
        (((2, 3), "nchw"), {}, r"format nchw has 4 axes \(n, c, h, w\), but 2 dims"),
        (((2, -3), "ab"), {}, "dims 2x-3: axis 1 has size -3; a size can't be negative"),
        (((2, 3.0), "ab"), {}, r"dims must be whole numbers, one an axis, got \(2, 3.0\)"),
        ((6, "a"), {}, "dims must be whole numbers, one an axis, got 6"),
        ((None, "a"), {}, "dims must be whole numbers, one an axis, got None"),
        (((2, 10**5000), "ab"), {}, r"dims: the number of axis 1 takes \d+ bits; the limit is 2\*\*63"),
        (((2**62, 4), "ab"), {}, r"dims 4611686018427387904x4 are more than 2\*\*63 - 1 elements"),
        (((2, 3),), {"strides": (1,)}, r"1 stride \(1,\) for 2 dims 2x3"),
        (((2, 3),), {"strides": (1.5, 1)}, r"strides must be whole numbers, one an axis, got \(1.5, 1\)"),
        (((2, 3),), {"strides": 3}, "strides must be whole numbers, one an axis, got 3"),
        (((2, 3), "ab"), {"offset": 0.5}, "offset must be a whole number, got 0.5"),
        (((2, 3), "ab"), {"offset": 2**70}, r"offset: a number of 71 bits"),
        (((2, 3), "(a b)//4, (a b)%4"), {"strides": (1, 1)}, "fuses axes; their common digit has one stride"),
        (((2, 3), 5), {}, "a format is written as text, got int 5"),
    ],
)
def test_what_makes_no_layout(
    arguments: tuple[object, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        Layout(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            (0, 17, 0, 0),
            r"index 17 of axis 1 \(c\) is out of bounds: nChw8c:2x17x5x4 has 0 <= index < 17 there",
        ),
        ((0, 0, 0, -1), r"index -1 of axis 3 \(w\) is out of bounds"),
        ((0, 0, 0), r"index \(0, 0, 0\) has 3 numbers, the layout 4 axes: nChw8c:2x17x5x4"),
        ((0, 0, 0, 1.0), r"an index must be whole numbers, one an axis, got \(0, 0, 0, 1.0\)"),
        ((0, 0, 0, None), "an index must be whole numbers"),
    ],
)
def test_an_index_out_of_bounds_names_axis_and_numbers(index: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Layout((2, 17, 5, 4), "nChw8c").offset(*index)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([[0, 0], [1, 3]], r"index 3 of axis 1 \(c\) is out of bounds"),
        ([[0, 0], [-1, 0]], r"index -1 of axis 0 \(n\) is out of bounds"),
        (np.array([[2**63, 0]], dtype=np.uint64), r"axis 0 \(n\) is out of bounds"),
        ([0, 1, 2], r"indices have shape \(3,\); the last dimension must be the rank 2 of nc:2x3"),
        (7, r"indices have shape \(\)"),
        ([[0.0, 1.0]], "indices must be whole numbers, got float64"),
        ([[True, False]], "indices must be whole numbers, got bool"),
        ([[1, 2], [3]], r"indices must be an array of whole numbers of shape \(..., 2\)"),
    ],
)
def test_offsets_checks_its_indices(indices: object, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Layout((2, 3), "nc").offsets(indices)  # type: ignore[arg-type]


def test_an_index_of_fused_axes_is_checked_too() -> None:
    layout = Layout((2, 3), "yx -> (y x)//4, (y x)%4")
    with pytest.raises(LayoutError, match=r"index 3 of axis 1 \(x\) is out of bounds"):
        layout.offset(0, 3)
    with pytest.raises(LayoutError, match=r"index 3 of axis 1 \(x\) is out of bounds"):
        layout.offsets([[0, 3]])
    with pytest.raises(LayoutError, match="fuses the axes y x; it has no strides an axis"):
        layout.strides  # noqa: B018


def test_an_offset_must_be_a_whole_number() -> None:
    layout = Layout((2, 3), "ab")
    for ask in (layout.index, layout.is_padding, layout.moved):
        with pytest.raises(LayoutError, match=r"offset must be a whole number, got 1\.0"):
            ask(1.0)  # type: ignore[arg-type]
