"""oneDNN's tags and benchdnn's: against the extracted tables, and as a grammar."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import AmbiguousFormat, Format, Layout, LayoutError, MemoryDesc, UnknownFormat
from relayout.layout.format import letters
from relayout.layout.roles import DOMAINS
from relayout.notation import benchdnn, onednn
from strategies import examples, formats, tag_formats

Vectors = Callable[[str], Any]

DEVIATING = {"gIOhw2i8o16i2o", "gIOdhw2i8o16i2o"}
"""Aliases that the header defines with another outer order than their name says."""

UNBLOCKED_CAPITAL = {"OhwI24o", "OhwI32o", "gOhwI24o", "gOhwI32o"}
"""Aliases with a capital I that no block follows."""


# --- oneDNN's tables ---------------------------------------------------------------------------------------


def test_all_tags_are_read_and_written(vectors: Vectors) -> None:
    tags = vectors("onednn_tags")["tags"]
    assert len(tags) == 873
    wrong = [tag for tag in tags if Format(tag).name("onednn") != tag or Format(tag).roles is not None]
    assert wrong == []
    assert len({Format(tag) for tag in tags}) == 873


def test_all_aliases_are_the_tags_that_the_header_says(vectors: Vectors) -> None:
    aliases = vectors("onednn_tags")["aliases"]
    assert len(aliases) == 798
    wrong = {alias: tag for alias, tag in aliases.items() if Format(alias) != Format(tag)}
    assert wrong == {}


def test_all_aliases_are_written_as_they_are_read(vectors: Vectors) -> None:
    aliases = vectors("onednn_tags")["aliases"]
    written = {alias: Format(alias).name("onednn") for alias in aliases}
    other = {alias for alias, name in written.items() if name != alias}
    assert other == (DEVIATING | UNBLOCKED_CAPITAL) & set(aliases)
    assert all(Format(written[alias] or "") == Format(alias) for alias in other)


def test_aliases_know_what_their_axes_mean(vectors: Vectors) -> None:
    for alias in vectors("onednn_tags")["aliases"]:
        roles = Format(alias).roles
        assert roles in DOMAINS, alias


def test_all_tags_survive_benchdnn_and_digits(vectors: Vectors) -> None:
    for tag in vectors("onednn_tags")["tags"]:
        format = Format(tag)
        assert Format(format.digits_text()) == format
        short = format.name("benchdnn")
        assert short is None or Format(short).resolve(rank=format.rank) == format


# --- the grammar -------------------------------------------------------------------------------------------


@examples(200)
@given(tag_formats(max_rank=12))
def test_every_blocked_format_has_a_tag(format: Format) -> None:
    tag = format.name("onednn")
    assert tag is not None
    assert Format(tag) == format


@examples(100)
@given(st.sampled_from(DOMAINS), st.data())
def test_every_blocked_format_of_a_domain_is_spelled_in_its_letters(
    roles: tuple[str, ...], data: st.DataObject
) -> None:
    format = data.draw(tag_formats(len(roles))).with_roles(roles)
    tag = format.name("onednn")
    assert tag is not None
    assert Format(tag) == format
    if tag not in {"gOIhw2i8o16i2o"}:
        assert Format(tag).roles in (roles, None)


@examples(100)
@given(formats())
def test_what_is_no_tag_has_no_name(format: Format) -> None:
    tag = format.name("onednn")
    blocked = len(format.terms) == format.rank and all(
        [level for term, level in format.order if term == t] == list(range(len(radices) + 1))
        for t, radices in enumerate(format.radices)
    )
    open_first = all(level == 0 for _, level in format.order[: format.rank])
    assert (tag is not None) == (blocked and open_first)


@pytest.mark.parametrize(
    ("alias", "tag"),
    [
        ("nchw", "abcd"),
        ("nhwc", "acdb"),
        ("chwn", "bcda"),
        ("ndhwc", "acdeb"),
        ("oihw", "abcd"),
        ("hwio", "cdba"),
        ("iohw", "bacd"),
        ("goihw", "abcde"),
        ("hwigo", "decab"),
        ("tnc", "abc"),
        ("ntc", "bac"),
        ("ldnc", "abcd"),
        ("ldigo", "abcde"),
        ("ldgoi", "abdec"),
        ("ldio", "abcd"),
        ("ldoi", "abdc"),
        ("ldgo", "abcd"),
        ("x", "a"),
        ("nChw16c", "aBcd16b"),
        ("NChw16n16c", "ABcd16a16b"),
        ("OIhw4i16o4i", "ABcd4b16a4b"),
        ("gOIhw16o16i", "aBCde16b16c"),
        ("Goihw8g", "Abcde8a"),
        ("ldOI32o4i", "abDC32d4c"),
        ("gIOhw2i8o16i2o", "aBCde2c8b16c2b"),
        ("OhwI24o", "Acdb24a"),
    ],
)
def test_an_alias_implies_the_logical_order_of_its_domain(alias: str, tag: str) -> None:
    assert Format(alias) == Format(tag)


def test_letters_mean_what_their_domain_says() -> None:
    assert Format("ldigo").roles == ("l", "dir", "i", "gate", "o")
    assert Format("goidhw").roles == ("g", "o", "i", "d", "h", "w")
    assert Format("ldnc").roles == ("l", "dir", "n", "c")
    assert Format("ncdhw").roles == ("n", "c", "d", "h", "w")


def test_the_two_tags_that_the_header_defines_otherwise() -> None:
    assert Format("gIOhw2i8o16i2o") == Format("gOIhw2i8o16i2o")
    truly = Format("aCBde2c8b16c2b").with_roles(("g", "o", "i", "h", "w"))
    assert truly.name("onednn") == "aCBde2c8b16c2b"  # the meaningful spelling would be read as the other one


def test_any_block_sizes_and_levels() -> None:
    assert Layout((100, 100), "AB7a3b11b5a2a").padded_dims == (140, 132)
    assert Format("aB1024b").blocks == (1, 1024)
    assert Format("nChw08c") == Format("nChw8c")
    assert Format("ABCDEFGHIJKL2a2b2c2d2e2f2g2h2i2j2k2l").rank == 12


def test_names_are_tags_once_each() -> None:
    names = list(onednn.names())
    assert len(names) == len(set(names)) > 290
    assert all(onednn.parse(name) is not None for name in names)


# --- benchdnn ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rank", "tag"),
    [
        ("abx", 2, "ab"),
        ("abx", 5, "abcde"),
        ("axb", 2, "ab"),
        ("axb", 4, "acdb"),
        ("axb", 5, "acdeb"),
        ("xba", 4, "cdba"),
        ("bax", 3, "bac"),
        ("aBx16b", 3, "aBc16b"),
        ("aBx16b", 5, "aBcde16b"),
        ("ABx32a32b", 4, "ABcd32a32b"),
        ("aBCx16c16b", 6, "aBCdef16c16b"),
        ("axb", 12, "acdefghijklb"),
    ],
)
def test_x_stands_for_the_axes_that_are_not_named(text: str, rank: int, tag: str) -> None:
    assert Format(text).rank is None
    assert Format(text).resolve(rank=rank) == Format(tag)
    assert MemoryDesc((1,) * rank, "f32", text).tag == tag


@examples(150)
@given(tag_formats(max_rank=8))
def test_benchdnns_tag_is_read_again(format: Format) -> None:
    text = format.name("benchdnn")
    if text is not None:
        assert "x" in text
        assert Format(text).resolve(rank=format.rank) == format
        assert Format(text, dialect="benchdnn").resolve(rank=format.rank) == format


def test_benchdnn_shortens_all_that_ends_in_plain_axes() -> None:
    for rank in range(3, 7):
        named = letters(rank)
        for order in permutations(named[:2]):
            assert Format.blocked(named, [*order, *named[2:]]).name("benchdnn") == "".join(order) + "x"
        assert Format.blocked(named, [named[0], *named[2:], named[1]]).name("benchdnn") == "axb"
    assert Format("abdc").name("benchdnn") == "abxc"
    assert Format("abcD4d").name("benchdnn") is None


def test_benchdnn_says_what_it_can_not_stand_for() -> None:
    with pytest.raises(LayoutError, match="tag 'aBCx16b16c' names 3 axes, but there are only 2"):
        Format("aBCx16b16c").resolve(rank=2)
    for text in ("bx", "acx", "x16x", "aXb4x", "axbx"):
        assert benchdnn.parse(text) is None


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("nChw16cc", "nChw16c"),
        ("nChw16cx", "nChw16c"),
        ("nhcw16c", "nChw16c"),
        ("OIhw16i16oo", "OIhw16i16o"),
        ("goihww", "goihw"),
        ("aBcd16bb", "aBcd16b"),
        ("nchww", "nchw"),
        ("oihhw", "oihw"),
    ],
)
def test_a_misspelled_tag_suggests_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(
        UnknownFormat, match=rf"no dialect knows the format '{text}'; did you mean .*'{nearest}'"
    ):
        Format(text)
    with pytest.raises(UnknownFormat, match=rf"'{text}' is no format of oneDNN; did you mean .*'{nearest}'"):
        Format(text, dialect="onednn")


@pytest.mark.parametrize(
    "text", ["nChw", "nchw16c", "nChw16h", "abd", "aa", "nchwc", "nChw16c8", "16c", "nChw-8c", "nChw8.0c"]
)
def test_what_is_no_tag(text: str) -> None:
    with pytest.raises(UnknownFormat, match="is no format of oneDNN"):
        Format(text, dialect="onednn")


@pytest.mark.parametrize("text", ["ndc", "ldx"[:2] + "w", "ngd", "cdn"])
def test_depth_or_direction(text: str) -> None:
    with pytest.raises(
        AmbiguousFormat, match=r"the letter d can be depth \(with h and w.*\) or direction \(with l"
    ):
        Format(text, dialect="onednn")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nChw0c", "tag 'nChw0c' has a block of size 0; a block must be 1 or more"),
        ("AB999999999a999999999b99a", r"the blocks of a format hold more than 2\*\*63 - 1 elements"),
        ("aB" + "9" * 500 + "b", r"no dialect knows the format 'aB9+\.\.\.'"),
        ("aBx" + "9" * 500 + "b", r"no dialect knows the format 'aBx9+\.\.\.'"),
    ],
)
def test_blocks_have_a_size_that_exists(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Format(text)
