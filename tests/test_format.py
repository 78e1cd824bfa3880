"""Formats: orders of digits, made from parts, compared, named and resolved."""

from __future__ import annotations

import copy
import pickle
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import Format, LayoutError
from relayout.layout.format import FormatDigit, letters
from strategies import examples, formats, tag_formats

# --- digits ------------------------------------------------------------------------------------------------


@examples(150)
@given(formats())
def test_every_format_can_be_written_as_digits_and_read_again(format: Format) -> None:
    text = format.digits_text()
    again = Format(text)
    assert again == format
    assert hash(again) == hash(format)
    assert again.digits_text() == text
    assert Format(text, dialect="digits") == Format(f"digits:{text}") == format


@examples(100)
@given(formats())
def test_weights_are_products_of_the_extents_below(format: Format) -> None:
    for t in range(len(format.terms)):
        digits = sorted((d for d in format.digits if d.term == t), key=lambda d: (d.weight, d.extent is None))
        weight = 1
        for digit in digits:
            assert digit.weight == weight
            weight *= digit.extent or 1
        assert [d.extent is None for d in digits] == [False] * (len(digits) - 1) + [True]
        assert prod(format.radices[t]) == weight


@examples(100)
@given(formats())
def test_from_digits_takes_a_format_apart_and_together(format: Format) -> None:
    names = format.axis_names()
    digits = [
        (tuple(names[a] for a in format.terms[term]), weight, extent)
        for term, weight, extent in format.digits
    ]
    assert Format.from_digits(names, digits) == format


@examples(100)
@given(tag_formats())
def test_blocked_formats_put_open_digits_first_and_blocks_in_order(format: Format) -> None:
    levels = [level for _, level in format.order]
    assert levels[: format.rank] == [0] * (format.rank or 0)
    for t in range(len(format.terms)):
        assert [level for term, level in format.order if term == t] == list(range(len(format.radices[t]) + 1))
    assert format.blocks == tuple(map(prod, format.radices))


def test_digits_of_a_well_known_format() -> None:
    format = Format("OIhw4i16o4i")
    assert format.digits == (
        FormatDigit(0, 16, None),
        FormatDigit(1, 16, None),
        FormatDigit(2, 1, None),
        FormatDigit(3, 1, None),
        FormatDigit(1, 4, 4),
        FormatDigit(0, 1, 16),
        FormatDigit(1, 1, 4),
    )
    assert format.blocks == (16, 16, 1, 1)
    assert format.axis_names() == format.roles == ("o", "i", "h", "w")
    assert format == Format.blocked("oihw", "oihw", [("i", 4), ("o", 16), ("i", 4)])


def test_digits_of_extent_one_say_nothing() -> None:
    assert Format.blocked("ab", "ab", [("a", 1), ("b", 4), ("a", 1)]) == Format("aB4b")
    assert Format.from_digits("a", [("a", 2, None), ("a", 2, 1), ("a", 1, 2), ("a", 1, 1)]) == Format("A2a")


def test_fused_axes_count_as_not_blocked() -> None:
    format = Format("yx -> (y x)//4, (y x)%4")
    assert format.terms == ((0, 1),)
    assert format.blocks == (1, 1)
    assert str(format) == "yx -> (y x)//4, (y x)%4"


@pytest.mark.parametrize("rank", [1, 5, 26, 27, 30])
def test_axes_beyond_the_alphabet_have_numbers(rank: int) -> None:
    format = Format.blocked(letters(rank), letters(rank)[::-1])
    assert format.roles is None
    assert Format(format.digits_text()) == format


def test_no_axes_at_all() -> None:
    nothing = Format.from_digits((), ())
    assert (nothing.rank, nothing.digits, nothing.digits_text()) == (0, (), "->")
    assert Format("->") == nothing
    assert nothing.name("onednn") is None


# --- sameness ----------------------------------------------------------------------------------------------


@examples(100)
@given(formats(rank=3), formats(rank=3))
def test_formats_are_equal_if_their_digits_are(one: Format, two: Format) -> None:
    same = (one.terms, one.digits) == (two.terms, two.digits)
    assert (one == two) == same
    assert (one.digits_text() == two.digits_text()) == same
    if same:
        assert hash(one) == hash(two)


def test_meaning_is_not_layout() -> None:
    assert Format("nchw") == Format("oihw") == Format("abcd")
    assert len({Format("nchw"), Format("oihw"), Format("abcd"), Format("acdb"), Format("nhwc")}) == 2
    assert Format("nchw").roles == ("n", "c", "h", "w")
    assert Format("oihw").roles == ("o", "i", "h", "w")
    assert Format("abcd").roles is None
    assert Format("nchw") != "nchw"


@examples(60)
@given(formats())
def test_formats_pickle_and_copy(format: Format) -> None:
    for twin in (pickle.loads(pickle.dumps(format)), copy.copy(format), copy.deepcopy(format)):
        assert twin == format
        assert hash(twin) == hash(format)
        assert (twin.roles, twin.text, twin.dialect, twin.waits_for) == (
            format.roles,
            format.text,
            format.dialect,
            format.waits_for,
        )


def test_formats_that_wait_pickle_too() -> None:
    waiting = Format("aBx16b")
    twin = pickle.loads(pickle.dumps(waiting))
    assert twin == waiting
    assert hash(twin) == hash(waiting)
    assert twin.resolve(rank=3) == Format("aBc16b")
    assert waiting != Format("aBx8b")
    assert waiting != Format("aBc16b")


def test_a_format_is_frozen() -> None:
    format = Format("nchw")
    with pytest.raises(AttributeError, match="a Format is frozen; rank can't be set"):
        format.rank = 5  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del format.rank


def test_a_format_of_a_format_is_itself() -> None:
    format = Format("nchw")
    assert Format(format) is format


def test_text_is_kept_as_it_was_written() -> None:
    assert str(Format(" nChw16c ")) == "nChw16c"
    assert repr(Format("aBcd16b")) == "Format('aBcd16b')"
    assert repr(Format.blocked("nchw", "nhwc", [("c", 4)])) == "Format('nhwC4c')"
    assert (
        str(Format.from_digits("ab", [("a", 1, 2), ("b", 1, None), ("a", 2, None)])) == "ab -> a%2, b, a//2"
    )


# --- roles, ranks ------------------------------------------------------------------------------------------


def test_roles_can_be_given_and_taken() -> None:
    format = Format("aBcd16b").with_roles(("n", "c", "h", "w"))
    assert format.name("onednn") == "nChw16c"
    assert format.with_roles(None).name("onednn") == "aBcd16b"
    with pytest.raises(LayoutError, match="format aBcd16b has 4 axes, 3 roles were given"):
        Format("aBcd16b").with_roles("nch")
    with pytest.raises(LayoutError, match="each axis needs a role of its own, got "):
        Format("ab").with_roles("nn")


def test_a_format_is_resolved_once_the_rank_is_known() -> None:
    waiting = Format("axb")
    assert (waiting.rank, waiting.waits_for) == (None, frozenset({"rank"}))
    assert waiting.resolve(rank=4) == Format("nhwc")
    assert Format("nhwc").resolve(rank=4) == Format("nhwc")
    with pytest.raises(LayoutError, match="format 'axb' fits several ranks; say how many axes"):
        waiting.resolve()
    with pytest.raises(LayoutError, match=r"format nhwc has 4 axes \(n, c, h, w\), but 3 dims were given"):
        Format("nhwc").resolve(rank=3)


@pytest.mark.parametrize("ask", ["digits", "blocks"])
def test_a_waiting_format_has_no_digits_yet(ask: str) -> None:
    with pytest.raises(LayoutError, match="format 'abx' has no digits before the rank is known"):
        getattr(Format("abx"), ask)
    for method in ("axis_names", "digits_text"):
        with pytest.raises(LayoutError, match="no digits before the rank"):
            getattr(Format("abx"), method)()
    with pytest.raises(LayoutError, match="no digits before the rank"):
        Format("abx").with_roles("nc")


def test_name_of_a_waiting_format_is_known_in_its_own_dialect_only() -> None:
    assert Format("abx").name("benchdnn") == "abx"
    assert Format("abx").name("onednn") is None


# --- errors ------------------------------------------------------------------------------------------------

Digits = list[tuple[str | tuple[str, ...], int, int | None]]


@pytest.mark.parametrize(
    ("axes", "digits", "message"),
    [
        ("ab", [("a", 1, None)], "axis 'b' of .* stands in no digit"),
        (
            "ab",
            [("a", 1, None), ("b", 1, 4)],
            r"axis 'b' has 0 open digits \(without '%'\); it needs exactly one",
        ),
        ("a", [("a", 1, None), ("a", 4, None)], "axis 'a' has 2 open digits"),
        (
            "a",
            [("a", 8, None), ("a", 1, 4)],
            "axis 'a': a digit has weight 8 where the digits below it count 4",
        ),
        (
            "a",
            [("a", 4, None), ("a", 2, 4)],
            "axis 'a': a digit has weight 2 where the digits below it count 1",
        ),
        ("a", [("a", 1, None), ("a", 1, 0)], "axis 'a': a digit of extent 0; it must be 1 or more"),
        ("a", [("z", 1, None)], "digit 'z' names 'z' which is none of the axes"),
        ("ab", [(("a", "b"), 1, None), ("a", 1, None)], "axis 'a' of .* both alone and fused"),
        ("ab", [(("a", "a"), 1, None), ("b", 1, None)], "axis 'a' of .* fused twice"),
        ("aa", [("a", 1, None)], "every axis must be written out once"),
        ("a", [("a", 2**40, None), ("a", 2**20, 2**20), ("a", 1, 2**20), ("a", 2**40, 2**40)], "weight"),
    ],
)
def test_what_makes_no_digits(axes: str, digits: Digits, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Format.from_digits(axes, digits)


@pytest.mark.parametrize(
    ("axes", "outer", "inner", "message"),
    [
        ("ab", "a", [], r"the outer axes \['a'\] must name each of the axes \['a', 'b'\] once"),
        ("ab", "aa", [], "must name each of the axes"),
        ("aa", "aa", [], "must name each of the axes"),
        ("ab", "ab", [("c", 4)], r"block 4c names an axis that is none of \['a', 'b'\]"),
        ("ab", "ab", [("b", 0)], "block 0b: a block size must be 1 or more"),
        ("ab", "ab", [("b", -4)], "block -4b: a block size must be 1 or more"),
        (
            "ab",
            "ab",
            [("a", 2**32), ("b", 2**31)],
            r"the blocks of a format hold more than 2\*\*63 - 1 elements",
        ),
    ],
)
def test_what_makes_no_blocks(axes: str, outer: str, inner: list[tuple[str, int]], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Format.blocked(axes, outer, inner)


@pytest.mark.parametrize("thing", [5, None, b"nchw", ["nchw"]])
def test_a_format_is_made_of_text(thing: object) -> None:
    with pytest.raises(LayoutError, match="a format is written as text, got"):
        Format(thing)  # type: ignore[arg-type]


@examples(60)
@given(formats(rank=3), st.permutations("nch"))
def test_names_of_axes_change_no_digits(format: Format, roles: list[str]) -> None:
    named = format.with_roles(roles)
    assert named == format
    assert named.roles == tuple(roles)
    assert Format(named.digits_text()) == format
    assert Format(named.digits_text()).axis_names() == tuple(roles)
