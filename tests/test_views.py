"""Views: what NumPy does to an array, a view does to a layout.

The array that is looked at is the layout itself: A[index] = offset(index). A view of the layout must be
NumPy's operation on A.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relayout import Format, Layout, LayoutError, views
from relayout.layout.canonical import fit
from strategies import (
    element_places,
    examples,
    formats,
    has_clean_padding,
    layouts,
    padding_places,
    plain_layouts,
    room_places,
    shapes,
    tag_formats,
    view_steps,
)

# --- against NumPy -----------------------------------------------------------------------------------------


@examples(400)
@given(st.data())
def test_a_view_is_numpys_operation_on_the_offsets(data: st.DataObject) -> None:
    layout = data.draw(layouts(zeros=True))
    step = data.draw(view_steps(layout))
    wanted = step.on_array(element_places(layout))
    try:
        view = step.on_layout(layout)
    except LayoutError:
        assert 0 not in layout.dims
        return
    assert view.dims == wanted.shape
    assert (element_places(view) == wanted).all()


@examples(150)
@given(st.data())
def test_chains_of_views(data: st.DataObject) -> None:
    layout = data.draw(layouts(zeros=True, max_views=0))
    places = element_places(layout)
    for _ in range(6):
        step = data.draw(view_steps(layout))
        try:
            layout = step.on_layout(layout)
        except LayoutError:
            continue
        places = step.on_array(places)
        assert layout.dims == places.shape
    assert (element_places(layout) == places).all()
    if places.size:
        assert (layout.offsets(np.moveaxis(np.indices(layout.dims), 0, -1)) == places).all()


@examples(200)
@given(st.data())
def test_a_view_claims_no_place_that_is_not_its_parents(data: st.DataObject) -> None:
    layout = data.draw(layouts(zeros=True))
    step = data.draw(view_steps(layout))
    view = step.try_on(layout)
    assert room_places(view) <= room_places(layout)
    if has_clean_padding(layout):
        assert padding_places(view) <= padding_places(layout)


@examples(150)
@given(st.data())
def test_reordering_of_axes_slices_of_whole_blocks_and_splits_keep_all_padding(data: st.DataObject) -> None:
    layout = data.draw(layouts(zeros=False))
    order = data.draw(st.permutations(range(layout.rank)))
    assert padding_places(views.permute(layout, order)) == padding_places(layout)
    axis = data.draw(st.integers(0, layout.rank - 1)) if layout.rank else 0
    if layout.rank:
        assert padding_places(views.slice_axis(layout, axis, 0, None)) == padding_places(layout)
        assert padding_places(views.split_axis(layout, axis, (layout.dims[axis], 1))) == padding_places(
            layout
        )


# --- what can't be expressed -------------------------------------------------------------------------------


@examples(300)
@given(st.data())
def test_a_slice_is_refused_only_if_its_offsets_have_no_digits(data: st.DataObject) -> None:
    layout = data.draw(layouts(fused=False, max_views=1))
    assume(layout.size and layout.rank and all(len(term) == 1 for term in layout.terms))
    axis = data.draw(st.integers(0, layout.rank - 1))
    size = layout.dims[axis]
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    step = data.draw(st.sampled_from((1, 2, 3, 4, 6)))
    cut = (
        (stop - 1, start - 1 if start else None, -step)
        if data.draw(st.booleans()) and stop
        else (start, stop, step)
    )
    line = np.moveaxis(element_places(layout), axis, 0)[(slice(*cut), *[0] * (layout.rank - 1))]
    try:
        views.slice_axis(layout, axis, *cut)
        expressed = True
    except LayoutError:
        expressed = False
    assert expressed == (len(line) == 0 or fit(line.tolist()) is not None)


@examples(200)
@given(st.data())
def test_merge_is_refused_only_if_the_numbers_have_no_digits(data: st.DataObject) -> None:
    layout = data.draw(layouts(fused=False, max_views=0))
    assume(layout.rank > 1)
    axis = data.draw(st.integers(0, layout.rank - 2))
    places = np.moveaxis(element_places(layout), (axis, axis + 1), (0, 1))
    numbers = places.reshape(places.shape[0] * places.shape[1], -1)[:, 0].tolist()
    inner_padded = layout.padded[axis + 1] > layout.dims[axis + 1] != 1
    try:
        views.merge_axes(layout, axis, axis + 1)
    except LayoutError:
        assert inner_padded or fit(numbers) is None


@examples(150)
@given(plain_layouts(), st.data())
def test_plain_layouts_can_always_be_reshaped_split_and_merged(layout: Layout, data: st.DataObject) -> None:
    kinds = ("reshape", "split_axis", "merge_axes", "slice_axis", "permute", "unsqueeze", "broadcast_to")
    step = data.draw(view_steps(layout, only=kinds))
    assert (element_places(step.on_layout(layout)) == step.on_array(element_places(layout))).all()


@examples(150)
@given(st.data())
def test_reshape_there_and_back_is_the_same_map(data: st.DataObject) -> None:
    layout = data.draw(layouts(zeros=True))
    step = data.draw(view_steps(layout, only=("reshape",)))
    try:
        there = step.on_layout(layout)
    except LayoutError:
        return
    back = views.reshape(there, layout.dims)
    assert (element_places(back) == element_places(layout)).all()
    assert (element_places(there).ravel() == element_places(layout).ravel()).all()


@examples(100)
@given(st.data())
def test_formats_without_padding_can_be_flattened(data: st.DataObject) -> None:
    dims = data.draw(shapes())
    layout = Layout(dims, data.draw(formats(len(dims), fused=False)))
    if layout.padded_dims == dims:
        assert (element_places(views.reshape(layout, (-1,))) == element_places(layout).ravel()).all()


# --- parts -------------------------------------------------------------------------------------------------


@examples(150)
@given(st.data())
def test_parts_of_a_tensor_are_disjoint_and_fill_it(data: st.DataObject) -> None:
    dims = data.draw(shapes())
    layout = Layout(dims, data.draw(tag_formats(len(dims))))
    assume(prod(layout.padded) <= 6000)
    axis = data.draw(st.integers(0, len(dims) - 1))
    borders = sorted({0, dims[axis], *data.draw(st.lists(st.integers(0, dims[axis]), max_size=3))})
    try:
        parts = [views.slice_axis(layout, axis, start, stop) for start, stop in pairwise(borders)]
    except LayoutError:
        return
    places = [set(element_places(part).ravel().tolist()) for part in parts]
    padding = [padding_places(part) for part in parts]
    assert sum(map(len, places)) == len(set().union(*places)) == layout.size
    assert set().union(*places) == set(element_places(layout).ravel().tolist())
    assert not set().union(*places) & set().union(*padding)
    assert sum(map(len, padding)) == len(set().union(*padding))
    assert set().union(*padding) <= padding_places(layout)


@examples(150)
@given(st.data())
def test_submemory_is_a_slice_of_every_axis(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    starts = [data.draw(st.integers(0, size)) for size in layout.dims]
    dims = [data.draw(st.integers(0, size - start)) for size, start in zip(layout.dims, starts, strict=True)]
    try:
        part = views.submemory(layout, dims, starts)
    except LayoutError:
        return
    cut = tuple(slice(start, start + size) for start, size in zip(starts, dims, strict=True))
    assert (element_places(part) == element_places(layout)[cut]).all()


def test_concat_in_place_of_uneven_parts() -> None:
    whole = Layout((1, 40, 2, 2), "nChw16c")
    first, second, third = (views.slice_axis(whole, 1, *cut) for cut in ((0, 16), (16, 32), (32, 40)))
    assert [first.offset0, second.offset0, third.offset0] == [0, 64, 128]
    assert [p.padded_dims[1] for p in (first, second, third)] == [16, 16, 16]
    assert padding_places(third) == padding_places(whole)
    tail = views.slice_axis(whole, 1, 0, 12)
    assert tail.padded_dims == (1, 12, 2, 2)  # what lies behind is the neighbour's
    assert not tail.has_padding


# --- worked examples ---------------------------------------------------------------------------------------


def test_slices_of_blocked_channels() -> None:
    layout = Layout((1, 48, 2, 2), "nChw16c")
    within = views.slice_axis(layout, 1, 4, 8)
    assert (within.strides, within.offset0) == ((192, 1, 32, 16), 4)
    fourth = views.slice_axis(layout, 1, 1, None, 4)
    assert [fourth.offset(0, k, 0, 0) for k in range(5)] == [1, 5, 9, 13, 65]
    backwards = views.slice_axis(layout, 1, None, None, -1)
    assert [backwards.offset(0, k, 0, 0) for k in (0, 15, 16)] == [128 + 15, 128, 64 + 15]
    blocks = views.slice_axis(layout, 1, 5, None, 16)
    assert [blocks.offset(0, k, 0, 0) for k in range(3)] == [5, 69, 133]
    evenly = views.slice_axis(layout, 1, 8, 40)
    assert [evenly.offset(0, k, 0, 0) for k in (0, 7, 8, 24, 31)] == [8, 15, 64, 128, 135]
    with pytest.raises(
        LayoutError,
        match=r"elements 3\.\.39 \(step 1\) of axis 1 of nChw16c:1x48x2x2 are no layout: its blocks of 16",
    ):
        views.slice_axis(layout, 1, 3, 40)


def test_merge_in_logical_order_needs_no_copy() -> None:
    layout = views.merge_axes(Layout((2, 3, 4, 5), "nhwc"), 0, 3)
    assert layout.dims == (120,)
    assert [layout.offset(k) for k in (0, 1, 5, 20, 60)] == [0, 3, 15, 1, 60]


def test_split_of_a_blocked_axis() -> None:
    layout = views.split_axis(Layout((32,), "A8a"), 0, (2, 2, 8))
    assert layout.is_plain
    assert layout.strides == (16, 8, 1)
    uneven = views.split_axis(Layout((24,), "A8a"), 0, (2, 12))
    assert element_places(uneven).tolist() == np.arange(24).reshape(2, 12).tolist()


def test_depth_to_space_is_views() -> None:
    dims, block = (2, 12, 3, 5), 2
    layout = views.split_axis(Layout(dims, "nhwc"), 1, (block, block, 3))
    layout = views.permute(layout, (0, 3, 4, 1, 5, 2))
    layout = views.merge_axes(views.merge_axes(layout, 4, 5), 2, 3)
    array = np.arange(prod(dims)).reshape(2, 3, 5, 12).transpose(0, 3, 1, 2)
    wanted = array.reshape(2, 2, 2, 3, 3, 5).transpose(0, 3, 4, 1, 5, 2).reshape(2, 3, 6, 10)
    assert (element_places(layout) == wanted).all()


def test_unit_axes_carry_nothing() -> None:
    layout = Layout((1, 17), "aB8b")
    assert views.merge_axes(layout, 0, 1).padded == (24,)  # the numbers need not leave the padding behind
    assert views.merge_axes(Layout((17, 1), "Ab8a"), 0, 1).padded == (24,)
    assert views.squeeze(Layout((1, 1, 1), "abc")).dims == ()
    assert views.unsqueeze(Layout((), strides=()), 0).dims == (1,)


def test_a_new_axis_has_the_stride_that_pytorch_gives_it() -> None:
    layout = Layout((2, 3), strides=(10, 2))
    assert [views.unsqueeze(layout, at).strides for at in range(3)] == [(20, 10, 2), (10, 6, 2), (10, 2, 1)]
    assert views.unsqueeze(Layout((2, 17), "aB8b"), 1).strides == (24, 24, 8)
    assert views.unsqueeze(Layout((0,), "a"), 0).strides == (1, 1)


def test_fused_axes_come_apart_where_their_digits_do() -> None:
    layout = Layout((4, 6), "(a b)//3, (a b)%3")
    assert views.slice_axis(layout, 1, 0, 3).strides == (6, 1)
    swapped = Layout((4, 5), "(a b)%4, (a b)//4")
    with pytest.raises(
        LayoutError,
        match=r"axis 1 of .* is fused with the axes a b; only its first axis can be cut, with step 1",
    ):
        views.slice_axis(swapped, 1, 0, 3)
    with pytest.raises(LayoutError, match="only its first axis can be cut, with step 1"):
        views.slice_axis(swapped, 0, 0, 4, 2)


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (0, 8), (4, 8), (4, 6), (5, 6), (7, None), (3, 3)])
def test_the_first_of_fused_axes_can_be_cut_where_the_digits_allow_it(start: int, stop: int | None) -> None:
    layout = Layout((8, 5), "(a b)%4, (a b)//4")
    try:
        part = views.slice_axis(layout, 0, start, stop)
    except LayoutError:
        assert (start, stop) == (7, None)  # elements 35 .. 39 begin within a block and end within another
    else:
        assert (element_places(part) == element_places(layout)[start:stop]).all()


# --- size is no obstacle -----------------------------------------------------------------------------------


def test_views_of_huge_tensors_look_at_no_elements() -> None:
    layout = Layout((2**10, 2**12, 2**11, 2**11), "nChw16c")
    flat = views.reshape(layout, (-1,))
    every = views.slice_axis(flat, 0, 1, None, 2)
    assert every.offset(2**43 - 1) == flat.offset(2**44 - 1)
    assert views.slice_axis(flat, 0, None, None, -1).offset(0) == flat.offset(2**44 - 1)
    part = views.submemory(layout, (1, 96, 2**11, 7), (1023, 4000, 0, 2000))
    assert part.offset(0, 95, 5, 6) == layout.offset(1023, 4095, 5, 2006)
    assert views.split_axis(flat, 0, (2**22, 2**22)).offset(77, 88) == flat.offset(77 * 2**22 + 88)
    assert views.broadcast_to(Layout((1, 17), "aB8b"), (2**50, 17)).span == 24
    with pytest.raises(LayoutError, match="are no layout"):
        views.slice_axis(flat, 0, 3, None, 2)


# --- errors ------------------------------------------------------------------------------------------------

X = Layout((2, 17, 5, 4), "nChw8c")
FLAT = Layout((2, 3, 4), "abc")


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (
            lambda: views.permute(X, (0, 1, 2)),
            r"\(0, 1, 2\) is no permutation of the 4 axes of nChw8c:2x17x5x4",
        ),
        (lambda: views.permute(X, (0, 1, 2, 2)), "is no permutation"),
        (lambda: views.permute(X, 3), "axes must be whole numbers, one an axis, got 3"),  # type: ignore[arg-type]
        (lambda: views.permute(X, (0, 1, 2, 4)), "axis 4 does not exist: nChw8c:2x17x5x4 has 4 axes"),
        (lambda: views.transpose(Layout((3,), "a")), "axis -2 does not exist"),
        (lambda: views.transpose(X, 0, 1.0), "axis must be a whole number, got 1.0"),  # type: ignore[arg-type]
        (lambda: views.slice_axis(X, 1, 0, 17, 0), "axis 1 of nChw8c:2x17x5x4 can't be cut with step 0"),
        (lambda: views.slice_axis(X, 1, 0.5), "a slice is made of whole numbers, got 0.5:None:None"),  # type: ignore[arg-type]
        (
            lambda: views.slice_axis(X, 1, 3, 17),
            r"elements 3\.\.16 \(step 1\) of axis 1 of nChw8c:2x17x5x4 are no layout",
        ),
        (lambda: views.select(X, 1, 17), "index 17 of axis 1 is out of bounds: nChw8c:2x17x5x4 has 17 there"),
        (lambda: views.select(X, 1, -18), "index -18 of axis 1 is out of bounds"),
        (lambda: views.select(X, 1, None), "index must be a whole number, got None"),  # type: ignore[arg-type]
        (
            lambda: views.submemory(X, (2, 17), (0, 0)),
            "a part of nChw8c:2x17x5x4 needs 4 dims and offsets, got 2 and 2",
        ),
        (
            lambda: views.submemory(X, X.dims, (0, 1, 0, 0)),
            r"axis 1: the part 1\.\.18 does not lie within 0\.\.17",
        ),
        (lambda: views.submemory(X, X.dims, (0, -1, 0, 0)), r"axis 1: the part -1\.\.16 does not lie within"),
        (lambda: views.submemory(X, (1, 1, 1, -1), (0,) * 4), "dims 1x1x1x-1: axis 3 has size -1"),
        (lambda: views.submemory(X, X.dims, (0, 0.5, 0, 0)), "offsets must be whole numbers"),  # type: ignore[arg-type]
        (
            lambda: views.split_axis(X, 1, (2, 8)),
            "axis 1 of nChw8c:2x17x5x4 has size 17; it can't be split into 2x8",
        ),
        (lambda: views.split_axis(X, 1, ()), "can't be split into scalar"),
        (
            lambda: views.merge_axes(X, 0, 1),
            "axis 1 of nChw8c:2x17x5x4 has 17 elements and room for 24",
        ),
        (
            lambda: views.merge_axes(X, 2, 1),
            r"axes 2 \.\. 1 of nChw8c:2x17x5x4 can't be merged: the first lies behind",
        ),
        (lambda: views.merge_axes(X, 2, 4), "axis 4 does not exist"),
        (
            lambda: views.squeeze(X, 1),
            "axis 1 of nChw8c:2x17x5x4 has size 17; only axes of size 1 can be dropped",
        ),
        (lambda: views.unsqueeze(X, 5), r"a new axis of nChw8c:2x17x5x4 can stand at 0 \.\. 4, not at 5"),
        (lambda: views.unsqueeze(X, -6), "not at -6"),
        (lambda: views.broadcast_to(X, (17, 5, 4)), "has 4 axes; it can't be broadcast to the 3 of 17x5x4"),
        (
            lambda: views.broadcast_to(X, (2, 17, 5, 8)),
            "axis 3 of .* has size 4; only 1 can be repeated to reach 8 of 2x17x5x8",
        ),
        (
            lambda: views.reshape(X, (2, 17, 5)),
            "has 680 elements; it can't be reshaped to 2x17x5, which are 170",
        ),
        (lambda: views.reshape(X, (680,)), "would run through what lies behind them"),
        (lambda: views.reshape(FLAT, (-1, -1)), "axis 0 has size -1; a size can't be negative"),
        (lambda: views.reshape(FLAT, (-1, 5)), "axis 0 has size -1"),
        (lambda: views.reshape(FLAT, (4.0, 6)), "dims must be whole numbers"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_view(view: Callable[[], Layout], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        view()


def test_axes_count_from_the_end_too() -> None:
    assert views.select(FLAT, -1, -1) == views.select(FLAT, 2, 3)
    assert views.transpose(FLAT) == views.permute(FLAT, (0, -1, -2))
    assert views.unsqueeze(FLAT, -1).dims == (2, 3, 4, 1)
    assert views.merge_axes(FLAT, -2, -1).dims == (2, 12)


def test_axes_fused_in_another_order_stay_apart() -> None:
    layout = Layout((4, 3), Format.from_digits("ab", [(("b", "a"), 5, None), (("b", "a"), 1, 5)]))
    with pytest.raises(LayoutError, match=r"axes 0 and 1 of .* are fused in another order"):
        views.merge_axes(layout, 0, 1)
    three = Layout(
        (4, 3, 2), Format.from_digits("abc", [(("a", "c"), 3, None), ("b", 1, None), (("a", "c"), 1, 3)])
    )
    with pytest.raises(LayoutError, match=r"axes 0 and 1 of .* are fused with others; they can't be merged"):
        views.merge_axes(three, 0, 1)
