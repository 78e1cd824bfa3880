"""Normal forms: digits from tables and back, sameness and injectivity, against counting."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from relayout import Layout, LayoutError, views
from relayout.layout.canonical import (
    canonical,
    fit,
    is_injective,
    merge,
    normal,
    same_bytes,
    split_ladder,
    trim,
)
from relayout.layout.layout import Digit, values_towards
from strategies import (
    element_places,
    examples,
    ladders,
    layouts,
    padding_places,
    plain_layouts,
    room_places,
    shapes,
    tag_formats,
    term_place,
)


def table_of(ladder: Any, size: int) -> list[int]:
    return [term_place(ladder, number) for number in range(size)]


def digits_of(ladder: list[tuple[int, int, int]]) -> tuple[Digit, ...]:
    return tuple(Digit(*digit) for digit in ladder)


# --- one term ----------------------------------------------------------------------------------------------


@examples(200)
@given(ladders(), st.data())
def test_trim_merge_and_normal_keep_the_function(
    ladder: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    digits = digits_of(ladder)
    size = data.draw(st.integers(1, prod(d.extent for d in digits)))
    table = table_of(digits, size)
    assert table_of(trim(digits, size), size) == table
    assert table_of(merge(digits), size) == table
    assert table_of(normal(digits, size), size) == table


@examples(200)
@given(ladders(), st.data())
def test_normal_is_the_only_shortest_ladder_and_fit_finds_it(
    ladder: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    digits = digits_of(ladder)
    size = data.draw(st.integers(1, prod(d.extent for d in digits)))
    found = fit(table_of(digits, size))
    assert found == normal(digits, size)
    assert found == normal(found, size)
    assert len(found) <= len(trim(merge(digits), size))


@examples(150)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_fit_either_reproduces_a_table_or_no_digits_do(values: list[int]) -> None:
    found = fit(values)
    if found is not None:
        assert table_of(found, len(values)) == [v - values[0] for v in values]
    else:  # try all ladders that could: borders at every chain of divisors is too many, so two levels
        for inner in range(1, len(values)):
            low, high = values[1] - values[0], values[inner] - values[0]
            tried = (Digit(inner, -(-len(values) // inner), high), Digit(1, inner, low))
            assert table_of(tried, len(values)) != [v - values[0] for v in values]


@pytest.mark.parametrize("table", [[0, 1, 5, 4], [0, 1, 2, 4, 6], [0, 1, 2, 10, 11, 12, 20, 22]])
def test_fit_refuses_what_has_no_digits(table: list[int]) -> None:
    assert fit(table) is None


def test_fit_of_a_single_number_needs_no_digit() -> None:
    assert fit([7]) == ()


@examples(200)
@given(ladders(), st.data())
def test_split_ladder_cuts_a_number_in_two(ladder: list[tuple[int, int, int]], data: st.DataObject) -> None:
    digits = digits_of(ladder)
    room = prod(d.extent for d in digits)
    width = data.draw(st.sampled_from([w for w in range(1, room + 1) if room % w == 0]))
    cut = split_ladder(digits, width)
    if cut is not None:
        upper, lower = cut
        for number in range(room):
            y, x = divmod(number, width)
            assert term_place(digits, number) == term_place(upper, y) + term_place(lower, x)


@examples(200)
@given(ladders(), st.data())
def test_split_ladder_of_normal_digits_gives_up_only_where_no_cut_exists(
    ladder: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    room = prod(extent for _, extent, _ in ladder)
    digits = normal(digits_of(ladder), room)
    width = data.draw(st.sampled_from([w for w in range(1, room + 1) if room % w == 0]))
    table = table_of(digits, room)
    separable = all(table[n] == table[n - n % width] + table[n % width] for n in range(room))
    assert (split_ladder(digits, width) is not None) == separable


@examples(300)
@given(
    st.integers(-200, 200),
    st.integers(-12, 12).filter(bool),
    st.lists(st.tuples(st.integers(-12, 12).filter(bool), st.integers(1, 4)), max_size=3),
    st.integers(-3, 3),
    st.integers(0, 8),
)
def test_values_towards_leaves_out_nothing_that_leads_there(
    rest: int, stride: int, below: list[tuple[int, int]], first: int, count: int
) -> None:
    from itertools import product as combinations
    from math import gcd

    reachable = {sum(c) for c in combinations(*([s * n for n in range(e)] for s, e in below))}
    values = range(first, first + count + 1)
    right = [v for v in values if rest - v * stride in reachable]
    within = (min(reachable), max(reachable))
    tried = values_towards(rest, stride, within, gcd(*(s for s, _ in below)), first, first + count)
    assert set(right) <= set(tried) <= set(values)


# --- sameness ----------------------------------------------------------------------------------------------


def really_same_bytes(a: Layout, b: Layout) -> bool:
    if a.dims != b.dims:
        return False
    return bool((element_places(a) == element_places(b)).all()) and padding_places(a) == padding_places(b)


@examples(150)
@given(layouts(zeros=True), st.data())
def test_same_bytes_says_what_counting_says(a: Layout, data: st.DataObject) -> None:
    b = data.draw(layouts(a.dims))
    assert a.same_bytes(b) == really_same_bytes(a, b)
    assert a.same_bytes(a)


@examples(150)
@given(st.data())
def test_same_bytes_of_layouts_that_are_often_the_same(data: st.DataObject) -> None:
    dims = data.draw(st.permutations([1, 1, data.draw(st.sampled_from((1, 2, 4, 8))), 3]))
    a, b = (Layout(dims, data.draw(tag_formats(4))) for _ in range(2))
    assume(prod(a.padded) <= 20_000 and prod(b.padded) <= 20_000)
    assert a.same_bytes(b) == really_same_bytes(a, b)


def test_a_part_that_ends_within_a_block_does_not_own_the_padding_that_a_tensor_does() -> None:
    whole = Layout((2, 17, 5, 4), "nChw16c")
    part = views.slice_axis(Layout((2, 32, 5, 4), "nChw16c"), 1, 0, 17)
    assert [part.offset(*i) for i in ((1, 16, 0, 0), (0, 9, 2, 3))] == [
        whole.offset(*i) for i in ((1, 16, 0, 0), (0, 9, 2, 3))
    ]
    assert (whole.has_padding, part.has_padding) == (True, False)
    assert (whole.same_bytes(part), part.same_bytes(whole)) == (False, False)


@examples(100)
@given(layouts(), st.data())
def test_views_there_and_back_are_the_same_bytes(layout: Layout, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(layout.rank)))
    back = sorted(range(layout.rank), key=order.__getitem__)
    assert views.permute(views.permute(layout, order), back).same_bytes(layout)
    at = data.draw(st.integers(0, layout.rank))
    assert views.squeeze(views.unsqueeze(layout, at), at).same_bytes(layout)


@pytest.mark.parametrize(
    ("dims", "one", "two", "same"),
    [
        ((2, 8, 3, 3), "nChw8c", "nhwc", True),
        ((2, 7, 3, 3), "nChw8c", "nhwc", False),
        ((6,), "A4a", "A8a", True),  # 4 + 2 and 6 of 8: both take 8 places
        ((6,), "A4a", "A16a", False),
        ((1, 1), "Ab8a", "aB8b", True),  # which axis the padding is counted on does not matter
        ((1, 1), "Ab8a", "aB16b", False),
        ((4, 6), "a, b//2, b%2", "ab", True),
        ((4, 6), "(a b)//3, (a b)%3", "ab", True),
        ((2, 3, 4), "a, (b c)//5, (b c)%5", "(a b c)//5, (a b c)%5", False),
        ((2, 5, 4), "(b c)//5, a, (b c)%5", "(b c)//10, (b c)//5%2, a, (b c)%5", True),
        ((0, 5), "ab", "ba", True),
        ((2**33, 1, 1), "aBc8b", "abC8c", True),
        ((2**33, 1, 1), "aBc8b", "abC4c", False),
        ((2**33, 3, 1), "aBc8b", "aBC4b2c", False),
    ],
)
def test_same_bytes_by_example(dims: tuple[int, ...], one: str, two: str, same: bool) -> None:
    assert Layout(dims, one).same_bytes(Layout(dims, two)) is same


def test_fused_axes_are_taken_apart_wherever_the_digits_allow_it() -> None:
    # a can be told apart from (b, c), although c can't from (a, b)
    fused = Layout((2, 5, 4), "(a b c)//20, (a b c)//5%4, (a b c)%5")
    crossed = Layout((2, 5, 4), "a, (b c)%5, (b c)//5")
    assert canonical(fused) == canonical(Layout((2, 5, 4), "abc"))
    assert [axes for axes, _ in canonical(crossed)] == [(0,), (1, 2)]
    joined = Layout((2, 5, 4), "(a b c)//20, (a b c)%5, (a b c)//5%4")
    assert canonical(joined) == canonical(crossed)
    assert joined.same_bytes(crossed)


@examples(100)
@given(layouts(), layouts())
def test_equal_layouts_have_equal_hashes_and_normal_forms(a: Layout, b: Layout) -> None:
    for other in (b, a.moved(a.offset0)):
        if a == other:
            assert hash(a) == hash(other)
            assert canonical(a) == canonical(other)


# --- injectivity -------------------------------------------------------------------------------------------


@examples(150)
@given(layouts(zeros=True))
@example(Layout((2, 2), strides=(2, 3)))
@example(Layout((4, 3), strides=(2, 3)))
def test_is_injective_says_what_counting_says(layout: Layout) -> None:
    places = element_places(layout).ravel().tolist()
    assert layout.is_injective() == (len(set(places)) == len(places))


@examples(150)
@given(st.data())
def test_the_search_for_collisions_says_what_counting_says(data: st.DataObject) -> None:
    import relayout.layout.canonical as module

    layout = data.draw(plain_layouts(data.draw(shapes(max_rank=4))))
    counted, module.COUNTED = module.COUNTED, 0
    try:
        places = element_places(layout).ravel().tolist()
        assert is_injective(layout) == (len(set(places)) == len(places))
    finally:
        module.COUNTED = counted


@pytest.mark.parametrize(
    ("dims", "strides", "injective"),
    [
        ((2**31, 2**31), (2**31, 1), True),
        ((2**31, 2**31), (2**31 - 1, 1), False),
        ((2**31, 3), (3, 2**32 - 1), False),
        ((2**31, 3), (3, 2**32 + 1), True),  # neither nests nor collides
        ((2**31, 2**20), (2**20 + 1, 2**31), True),
        ((2**31, 2**31), (4, 6), False),
        ((2**31, 2**31), (0, 1), False),
        ((2**31, 1), (1, 0), True),
        ((2**60, 2), (4, -2), True),
        ((2**60, 2), (4, -8), False),
    ],
)
def test_is_injective_beyond_what_can_be_counted(
    dims: tuple[int, int], strides: tuple[int, int], injective: bool
) -> None:
    assert Layout(dims, strides=strides).is_injective() is injective


@examples(100)
@given(layouts())
def test_same_bytes_is_symmetric_and_needs_the_same_room(layout: Layout) -> None:
    assume(layout.rank > 1)
    try:
        merged = views.split_axis(views.merge_axes(layout, 0, 1), 0, layout.dims[:2])
    except LayoutError:
        return
    same = same_bytes(layout, merged)
    assert same == same_bytes(merged, layout)
    assert same == (room_places(layout) == room_places(merged))
