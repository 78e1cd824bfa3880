"""All dialects together: finding them, asking them, translating between them, and what no text may do."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relayout import AmbiguousFormat, Format, LayoutError, MemoryDesc, UnknownFormat, dialects, notation
from relayout.layout import spelling
from relayout.layout.roles import DOMAINS
from strategies import examples, formats, tag_formats

# --- names -------------------------------------------------------------------------------------------------


def names_of(dialect: str) -> list[str]:
    return list(notation.dialect(dialect).names())


def ranks(format: Format) -> Iterator[Format]:
    """The format itself, or what it is for tensors of two to five axes."""
    if format.rank is not None:
        yield format
        return
    for rank in range(2, 6):
        with suppress(LayoutError):
            yield format.resolve(rank=rank)


@pytest.mark.parametrize("dialect", dialects())
def test_every_name_of_a_dialect_is_a_format_of_it(dialect: str) -> None:
    names = names_of(dialect)
    assert names
    assert len(names) == len(set(names))
    for name in names:
        format = Format(name, dialect=dialect)
        assert format == Format(f"{dialect}:{name}")
        assert (format.text, format.dialect) == (name, dialect)
        assert list(ranks(format)), f"{name} fits no rank"


@pytest.mark.parametrize("dialect", dialects())
def test_a_name_without_its_dialect_means_the_same_or_nothing(dialect: str) -> None:
    for name in names_of(dialect):
        try:
            alone = Format(name)
        except AmbiguousFormat as error:
            assert name in str(error)  # noqa: PT017
            continue
        assert list(ranks(alone)) == list(ranks(Format(name, dialect=dialect))), name


@pytest.mark.parametrize("dialect", dialects())
def test_every_name_is_written_so_that_it_is_read_again(dialect: str) -> None:
    for name in names_of(dialect):
        for format in ranks(Format(name, dialect=dialect)):
            check_translation(format, dialect)


def check_translation(format: Format, dialect: str) -> None:
    text = format.name(dialect)
    if text is None:
        return
    again = Format(text, dialect=dialect).resolve(
        rank=format.rank
    )  # some texts say how to store tensors of any rank
    assert again == format, (
        f"{dialect} writes {format.digits_text()} as {text}, and reads {again.digits_text()}"
    )


POOL_TEXT = """
    nchw nhwc chwn ncdhw ndhwc nc ncw oihw hwio goihw tnc ldigo abcd cdba x nChw4c nChw8c nChw16c
    nChw32c NChw16n16c nhwC4c OIhw16i16o OIhw4i16o4i Oihw8o Goihw16g aBcd16b ABcd16b16a AB16b64a4b
    b_fs_yx_fsv16 os_is_yx_osv16_isv16 g_os_iyx_osv16 os_is_yx_osv32_isv4_swizzled_by_2 NCHW4 NHWCD4
    NCHW44@weights channels_last NCHW16c kCHW16
"""
POOL = POOL_TEXT.split()


@pytest.mark.parametrize("dialect", dialects())
def test_what_one_dialect_writes_it_reads(dialect: str) -> None:
    pool = [Format(text) for text in POOL]
    pool += [Format(name, dialect=other) for other in dialects() for name in names_of(other)]
    for format in pool:
        for known in ranks(format):
            check_translation(known, dialect)


@examples(100)
@given(st.one_of(formats(), tag_formats()), st.sampled_from(DOMAINS))
def test_any_format_that_a_dialect_writes_it_reads(format: Format, roles: tuple[str, ...]) -> None:
    meant = format.with_roles(roles) if len(roles) == format.rank else format
    for dialect in dialects():
        check_translation(meant, dialect)


def test_one_format_in_many_words() -> None:
    spellings = {"onednn": "nChw16c", "openvino": "b_fs_yx_fsv16", "tvm": "NCHW16c", "benchdnn": "aBx16b"}
    for text in spellings.values():
        format = Format(text).resolve(rank=4)
        assert format == Format("aBcd16b")
    for dialect, text in spellings.items():
        assert Format("nChw16c").name(dialect) == text
    assert Format("nChw16c").name("digits") == "nchw -> n, c//16, h, w, c%16"
    assert Format("OIhw4i16o4i").name("pytorch") is None


def test_names_need_axes_that_mean_something() -> None:
    assert Format("aBcd16b").name("openvino") is None or Format(
        Format("aBcd16b").name("openvino") or ""
    ) == Format("aBcd16b")
    assert Format("aBcd16b").with_roles("nchw").name("openvino") == "b_fs_yx_fsv16"


# --- names that a system has, and names that only follow its grammar ---------------------------------------


@pytest.mark.parametrize("dialect", dialects())
def test_what_a_dialect_lists_the_system_has(dialect: str) -> None:
    assert [name for name in names_of(dialect) if not notation.attested(name, dialect)] == []


def test_a_block_that_no_list_has_is_spelled_by_grammar_only() -> None:
    format = Format("nChw24c")
    spelled = {dialect: name for dialect in dialects() if (name := format.name(dialect)) is not None}
    guessed = {dialect for dialect, name in spelled.items() if not notation.attested(name, dialect)}
    assert guessed == {"onednn", "benchdnn", "openvino", "rknn", "ascend", "qnn"}
    assert spelled["openvino"] == "b_fs_yx_fsv24"  # the name itself stays


def test_attested_names_are_asked_of_known_dialects() -> None:
    assert notation.attested("b_fs_yx_fsv16", "cldnn")
    with pytest.raises(LayoutError, match="there is no dialect 'openvin'"):
        notation.attested("bfyx", "openvin")


def test_onednn_has_the_tags_of_its_enumeration_and_no_others(vectors: Callable[[str], Any]) -> None:
    table = vectors("onednn_tags")
    tags = set(table["tags"])
    for name in (*tags, *table["aliases"]):
        assert notation.attested(name, "onednn"), name
    parts = [re.fullmatch(r"([A-Za-l]+?)((?:[0-9]+[a-l])*)", tag) for tag in tags]
    orders = {match[1] for match in parts if match}
    blocks = {match[2] for match in parts if match and match[2]}
    tried = 0
    for order in orders:
        upper = {letter.lower() for letter in order if letter.isupper()}
        for inner in blocks:
            if {letter for letter in inner if letter.isalpha()} == upper:
                tried += 1
                assert notation.attested(order + inner, "onednn") == (order + inner in tags), order + inner
    assert tried > 2000
    for tag in tags:  # another size of one block
        for found in re.finditer("[0-9]+", tag):
            for size in (2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 128):
                other = f"{tag[: found.start()]}{size}{tag[found.end() :]}"
                assert notation.attested(other, "onednn") == (other in tags), other


def test_cldnn_has_the_formats_of_its_tables(vectors: Callable[[str], Any]) -> None:
    table = vectors("cldnn_formats")
    rows = [*table["formats"], *table["formats_only_2021"]]
    listed = {row["name"] for row in rows} | set(table["names_only_2022"])
    for name in listed:
        try:
            Format(name, "openvino")
        except LayoutError:
            continue  # Winograd, images
        assert notation.attested(name, "openvino"), name
    assert set(names_of("openvino")) <= listed
    assert not notation.attested("b_fs_yx_fsv24", "openvino")
    assert not notation.attested("fs_b_yx_fsv16", "openvino")


def test_megengine_has_the_formats_of_its_enumerations(vectors: Callable[[str], Any]) -> None:
    listed = {row["name"] for row in vectors("megengine_formats")["tensor_formats"]}
    assert all(notation.attested(name, "megengine") for name in listed)
    for order in ("KCRS", "GKCRS", "KRSC"):
        for blocks in ("k4", "k8", "c4k4", "k4c4", "c8k8", "k8c8", "c8", "c32"):
            assert notation.attested(order + blocks, "megengine") == (order + blocks in listed), (
                order + blocks
            )


def test_the_notations_of_other_systems_are_attested(vectors: Callable[[str], Any]) -> None:
    count = 0
    for entry in vectors("other_notations")["entries"]:
        for dialect in dialects():
            try:
                Format(entry["notation"], dialect)
            except LayoutError:
                continue
            count += 1
            assert notation.attested(entry["notation"], dialect), (entry["notation"], dialect)
    assert count > 50


# --- finding a dialect -------------------------------------------------------------------------------------


def test_a_dialect_is_written_in_front_or_given() -> None:
    for text in ("openvino:bfyx", "OpenVINO: bfyx", "cldnn:bfyx", " clDNN:bfyx "):
        format = Format(text)
        assert (format, format.dialect, format.text) == (Format("nchw"), "openvino", "bfyx")
    assert Format("bfyx", dialect="cldnn") == Format("bfyx", dialect="openvino")
    assert Format("mkl-dnn:nchw") == Format("nchw")
    assert notation.dialect("mkldnn") is notation.dialect("onednn")
    assert notation.dialects() == dialects()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("openvin", "openvino"),
        ("onedn", "onednn"),
        ("pytorhc", "pytorch"),
        ("TensorTR", "tensorrt"),
        ("cldn", "cldnn"),
    ],
)
def test_an_unknown_dialect_suggests_the_nearest(name: str, near: str) -> None:
    for ask in (
        lambda: Format("nchw", dialect=name),
        lambda: Format("nchw").name(name),
        lambda: notation.dialect(name),
    ):
        with pytest.raises(
            LayoutError,
            match=rf"there is no dialect '{name}'; did you mean '{near}'\? known are: onednn, benchdnn",
        ):
            ask()  # type: ignore[no-untyped-call]


def test_an_unknown_dialect_in_front_is_named_too() -> None:
    with pytest.raises(LayoutError, match="there is no dialect 'openvin'; did you mean 'openvino'"):
        Format("openvin:bfyx")
    with pytest.raises(LayoutError, match="no dialect"):
        Format("zzzzzzzz:bfyx")


def test_a_name_of_another_dialect_is_not_taken() -> None:
    with pytest.raises(UnknownFormat, match="'b_fs_yx_fsv16' is no format of oneDNN"):
        Format("b_fs_yx_fsv16", dialect="onednn")
    with pytest.raises(UnknownFormat, match="'nChw16c' is no format of OpenVINO"):
        Format("openvino:nChw16c")


def test_readings_lists_who_can_read_a_text() -> None:
    assert list(notation.readings("nchw")) == ["onednn"]  # final: nobody else is asked
    assert notation.readings("no such thing") == {}
    everybody = notation.readings("NHWC")
    assert len(everybody) > 1
    assert set(everybody.values()) == {Format("nhwc")}


@pytest.mark.parametrize("text", ["NCHW44", "NC4HW4", "NCHW88"])
def test_an_ambiguous_text_lists_its_readings_and_how_to_choose(text: str) -> None:
    with pytest.raises(AmbiguousFormat) as caught:
        Format(text)
    message = str(caught.value)
    assert text in message
    assert "@" in message or ":" in message
    for choice in message.replace("'", " ").replace(",", " ").split():
        if (choice.startswith(f"{text}@") or choice.endswith(f":{text}")) and not choice.endswith(":"):
            assert isinstance(Format(choice.rstrip(".")), Format)


def test_a_reading_is_written_behind() -> None:
    data, weights = Format("NCHW44@data"), Format("NCHW44@weights")
    assert data != weights
    assert data.dialect == weights.dialect == "megengine"
    with pytest.raises(LayoutError, match="NCHW44"):
        Format("NCHW44@nonsense")


def test_texts_are_trimmed() -> None:
    assert Format("  nchw\n") == Format("nchw")


@pytest.mark.parametrize(
    "text", ["", " ", "@", ":", "->", "@@", "::", "onednn:", ":nchw", "nchw@", "%", "()", "a b", "\0"]
)
def test_odd_texts_are_no_formats(text: str) -> None:
    if text == "->":
        assert Format(text).rank == 0
        return
    with pytest.raises(LayoutError):
        Format(text)


# --- what no text may do -----------------------------------------------------------------------------------


def only_layout_errors(text: str) -> None:
    """Reading a text gives a format, which can be used, or a LayoutError of bearable length."""
    message = ""
    try:
        format = Format(text)
        for known in ranks(format):
            str(known), known.digits, [known.name(dialect) for dialect in dialects()]
            if known.rank is not None:
                MemoryDesc((1,) * known.rank, "s8", known)
    except LayoutError as error:
        message = str(error)
    assert len(message) < 6000


def seen_names() -> list[str]:
    return [name for dialect in dialects() for name in names_of(dialect)]


@examples(200)
@given(st.text(max_size=40))
@example("aB" + "9" * 5000 + "b")
@example("a" * 100_000)
@example("a//" + "9" * 5000 + ", a%" + "9" * 5000)
@example("((((((((((a b), c")
@example("a, " * 20_000)
@example("n,c//٣,h,w,c%٣")
@example("nChw１６c")
@example("ｎchw")
@example("İ:nchw")
@example("\ud800")
def test_any_text_gives_a_format_or_a_layout_error(text: str) -> None:
    only_layout_errors(text)


@examples(200)
@given(st.text(alphabet="abcdnchwoigtlxABCDNCHWOI0123456789_@:/%,()[]{}-> ", max_size=30))
def test_text_that_looks_like_formats(text: str) -> None:
    only_layout_errors(text)


@examples(200)
@given(st.data())
def test_mutations_of_known_names(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(NAMES))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        change = data.draw(st.sampled_from(("insert", "delete", "double", "number")))
        piece = {
            "insert": data.draw(st.sampled_from(string.printable)),
            "delete": "",
            "double": text[max(0, at - 5) : at] * 2,
            "number": data.draw(st.sampled_from(("0", "1", "99999999999999999999", "-1", "007", "1e9"))),
        }[change]
        text = text[: at - 1 if change == "delete" and at else at] + piece + text[at:]
    only_layout_errors(text)
    only_layout_errors(data.draw(st.sampled_from(dialects())) + ":" + text)


NAMES = seen_names()


@examples(40)
@given(st.sampled_from(NAMES), st.integers(200, 3000))
def test_very_long_texts(name: str, times: int) -> None:
    only_layout_errors(name * times)


def test_no_format_is_longer_than_a_page() -> None:
    with pytest.raises(
        UnknownFormat, match=r"a format of 1000000 characters, 'n+\.\.\.'; no format is longer than 2000"
    ):
        Format("n" * 10**6)


# --- the door between layouts and notations ----------------------------------------------------------------


def test_without_notations_the_door_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelling, "_parser", None)
    monkeypatch.setattr(spelling, "_renderer", None)
    with pytest.raises(RuntimeError, match="no notation is loaded; import relayout"):
        Format("nchw")
    with pytest.raises(RuntimeError, match="no notation is loaded"):
        Format.blocked("ab", "ab").name("onednn")


def test_suggestions_ignore_case() -> None:
    with pytest.raises(UnknownFormat, match=r"did you mean .*'b_fs_yx_fsv16'"):
        Format("B_FS_YX_FSV16X", dialect="openvino")
    with pytest.raises(UnknownFormat, match="'relayout formats' lists what there is"):
        Format("completely unlike anything")
