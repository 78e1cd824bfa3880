"""All dialects together: finding them, asking them, translating between them, and what no text may do."""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import suppress

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
