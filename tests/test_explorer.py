"""The explorer: its table and its script say what Python says, and it can be used."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chromium
import relayout as rl
from relayout.cli import application
from relayout.draw.explorer import explorer_page
from relayout.draw.explorer.page import SCRIPTS, embedded
from relayout.draw.explorer.table import readings_of, table
from relayout.errors import LayoutError
from relayout.layout.format import Format
from relayout.notation import dialect, dialects
from strategies import formats, tried
from test_cli import refused, runner

TABLE = table()
NAMES = [text for name in dialects() for text in dialect(name).names()]

needs_browser = pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no Chromium here")


def some_dims(rank: int, random_: random.Random) -> tuple[int, ...]:
    """Sizes that leave blocks half full."""
    return tuple(random_.choice((1, 2, 3, 5, 17)) for _ in range(rank))


# --- the table ----------------------------------------------------------------------------------------------


def test_every_name_means_in_the_table_what_it_means_in_python() -> None:
    random_ = random.Random(0)
    checked = 0
    for text, told in TABLE["readings"].items():
        for name, digits, *rest in told:
            rank = (rest[0] if rest else 0) or Format(digits, "digits").rank or 0
            kind = rest[1][0] if len(rest) > 1 else "f32"
            dims = some_dims(rank, random_)
            ours = rl.Layout(dims, Format(digits, "digits"))
            theirs = rl.Layout(dims, Format(text, name).resolve(rank, kind))
            assert ours == theirs, (text, name)
            index = tuple(random_.randrange(size) for size in dims)
            assert ours.offset(*index) == theirs.offset(*index)
            checked += 1
    assert checked > 1500


@given(formats(), st.randoms(use_true_random=False))
def test_digits_say_the_whole_format(format: Format, random_: random.Random) -> None:
    """What the page is given of a format is enough to compute its offsets."""
    dims = some_dims(format.rank or 0, random_)
    ours = rl.Layout(dims, Format(format.digits_text(), "digits"))
    index = tuple(random_.randrange(size) for size in dims)
    assert ours.offset(*index) == rl.Layout(dims, format).offset(*index)


def test_all_dialects_are_in_the_table() -> None:
    read = {name for told in TABLE["readings"].values() for name, *_ in told}
    assert read == set(dialects()) - {"onednn", "digits"}
    assert TABLE["names"]["nchw -> n, c//16, h, w, c%16"]["openvino"] == "b_fs_yx_fsv16"


@pytest.mark.parametrize(
    "text", ["NCHW4", "CHWN4", "COL4_4R2_8C", "b_fs_yx_fsv16", "bs_fs_yx_bsv16_fsv16", "{1,0:T(8,128)(2,1)}",
             "os_is_yx_osa4_isa8_osv8_isv4_swizzled_by_4"],
)  # fmt: skip
def test_the_formats_of_the_gallery_can_be_typed(text: str) -> None:
    assert text in TABLE["readings"]


def test_names_that_wait() -> None:
    assert ["benchdnn", "abcd -> a, b//16, c, d, b%16", 4] in readings_of("aBx16b")
    assert not readings_of("no such name")
    more = table(["tvm:NCHW24c", "(4,8):(8,1)"])
    assert more["readings"]["NCHW24c"] == [["tvm", "nchw -> n, c//24, h, w, c%24"]]


# --- the page -----------------------------------------------------------------------------------------------


def test_no_text_ends_the_script() -> None:
    text = '</script><!--<script>&"'
    assert not set("<>&") & set(embedded({text: text}))
    assert json.loads(embedded({text: text})) == {text: text}
    page = explorer_page("nChw8c", (1, 17, 4, 4), beside="nhwc")
    assert page.count("<script") == page.count("</script>") == 2


def test_the_page_needs_nothing_else() -> None:
    page = explorer_page("nChw8c", (1, 17, 4, 4), beside="nhwc")
    assert "http:" not in page
    assert "https:" not in page
    assert " src=" not in page
    assert "default-src 'none'" in page
    assert not any(mark in page for mark in ("/*STYLE*/", "/*SCRIPT*/", "/*DATA*/"))


def test_a_wheel_has_the_files(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    root = Path(__file__).resolve().parent.parent
    if not (root / "pyproject.toml").exists():
        pytest.skip("the source of the package is not here")
    built = next(wheel.WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"]))
    names = zipfile.ZipFile(built).namelist()
    wanted = {"explorer.html", "explorer.css", *SCRIPTS}
    assert wanted <= {Path(name).name for name in names if "/draw/explorer/" in name}


def test_bad_input() -> None:
    with pytest.raises(LayoutError):
        explorer_page("nchw", (1, 2))
    with pytest.raises(LayoutError):
        explorer_page("no such format", (1, 2))


# --- the command --------------------------------------------------------------------------------------------


def test_explore_writes_the_page(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    words = [
        "explore",
        "b_fs_yx_fsv16",
        "2,17,3,3",
        "--beside",
        "bfyx",
        "--dtype",
        "bf16",
        "--html",
        str(file),
    ]
    result = runner().invoke(application, words, prog_name="relayout")
    assert (result.exit_code, result.stdout) == (0, f"written to {file}\n")
    start = data_of(file)["start"]
    assert (start["format"], start["dims"], start["beside"], start["dtype"]) == (
        "b_fs_yx_fsv16",
        "2,17,3,3",
        "bfyx",
        "bf16",
    )
    result = runner().invoke(application, ["explore", "--html", "-"], prog_name="relayout")
    assert result.stdout.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "format", "dims", "dtype"),
    [
        (("src:s8:p:blocked:aBcd8b::f0", "1,17,2,2"), "aBcd8b", "1,17,2,2", "s8"),
        (("wei:f32::blocked:ABcd8b8a::f0:8x16x3x3",), "ABcd8b8a", "8,16,3,3", "f32"),
        (("bf16:mnn:NC4HW4:1x5x2x2",), "mnn:NC4HW4", "1,5,2,2", "bf16"),
    ],
)
def test_explore_begins_with_a_descriptor(
    tmp_path: Path, words: tuple[str, ...], format: str, dims: str, dtype: str
) -> None:
    file = tmp_path / "page.html"
    result = runner().invoke(application, ["explore", *words, "--html", str(file)], prog_name="relayout")
    assert result.exit_code == 0, result.output
    start = data_of(file)["start"]
    assert (start["format"], start["dims"], start["dtype"]) == (format, dims, dtype)


@pytest.mark.parametrize("beside", ["dst:f32::blocked:acdb::f0", "dst:f32::blocked:acdb::f0:1x17x2x2"])
def test_explore_beside_a_descriptor(tmp_path: Path, beside: str) -> None:
    file = tmp_path / "page.html"
    words = ["explore", "nChw8c", "1,17,2,2", "--beside", beside, "--html", str(file)]
    result = runner().invoke(application, words, prog_name="relayout")
    assert result.exit_code == 0, result.output
    assert data_of(file)["start"]["beside"] == "acdb"
    words[2] = "1,18,2,2"
    if beside.endswith("2"):
        assert "other sizes than 1x18x2x2" in refused(*words)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
def test_explore_names_the_file_that_is_full() -> None:
    assert "/dev/full: No space left" in refused("explore", "--html", "/dev/full", code=5)


def test_explore_does_not_hide_what_a_descriptor_appends(tmp_path: Path) -> None:
    file = str(tmp_path / "page.html")
    said = refused("explore", "wei:s8:p:blocked:ABcd8b8a::f8:zpm1", "8,16,3,3", "--html", file)
    assert "zpm1" in said
    assert "name ABcd8b8a" in said


def data_of(file: Path) -> dict[str, Any]:
    """The data in a page."""
    text = file.read_text(encoding="utf-8").partition('id="data">')[2].partition("</script>")[0]
    return json.loads(text)


def test_explore_opens_a_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda address: not opened.append(address))
    result = runner().invoke(application, ["explore", "nhwc", "1,2,3,4"], prog_name="relayout")
    assert result.exit_code == 0
    (file,) = tmp_path.iterdir()
    assert opened == [file.as_uri()]
    assert data_of(file)["start"]["format"] == "nhwc"


def test_explore_without_a_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert "--html FILE" in refused("explore", code=5)
    assert not list(tmp_path.iterdir())


def test_explore_refuses(tmp_path: Path) -> None:
    assert "4 axes" in refused("explore", "nchw", "1,2", "--html", str(tmp_path / "a.html"), code=4)
    assert not (tmp_path / "a.html").exists()


# --- in the browser -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, as the command writes it."""
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(explorer_page("nChw8c", (1, 17, 4, 4), beside="nhwc"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    """A browser that shows it."""
    with chromium.Page(file, tmp_path_factory.mktemp("profile")) as page:
        yield page
        assert page.errors == []


def computed(
    browser: chromium.Page,
    text: str,
    dims: tuple[int, ...],
    kind: str,
    indices: list[Any],
    offsets: list[int],
) -> Any:
    """What the page's own functions say: offsets of indices, and indices at offsets."""
    given_ = json.dumps([text, dims, kind, indices, offsets])
    return browser.run(
        f"(() => {{ const [text, dims, kind, indices, offsets] = {given_};"
        "const layout = makeLayout(readFormat(text, table, dims.length, kind), dims);"
        "return [layout.span, indices.map((index) => offsetOf(layout, index)),"
        "offsets.map((offset) => (placeAt(layout, offset) || {index: null}).index)]; })()"
    )


def same_as_python(
    browser: chromium.Page, text: str, format: Format, kind: str, random_: random.Random
) -> None:
    """The page computes what Layout computes."""
    dims = some_dims(format.rank or 0, random_)
    layout = rl.Layout(dims, format)
    indices = [tuple(random_.randrange(size) for size in dims) for _ in range(6)]
    offsets = [random_.randrange(layout.span + 2) for _ in range(6)]
    span, places, found = computed(browser, text, dims, kind, indices, offsets)
    assert span == layout.span, text
    assert places == [layout.offset(*index) for index in indices], text
    inside = [layout.index(offset) if offset < layout.span else None for offset in offsets]
    assert found == [None if index is None else list(index) for index in inside], text


@needs_browser
def test_the_page_computes_what_python_computes(browser: chromium.Page, file: Path) -> None:
    """All names of all dialects, for the rank and data type that they are for."""
    browser.go(file.as_uri())
    random_ = random.Random(1)
    checked = 0
    for text in dict.fromkeys(NAMES):
        for name, digits, *rest in readings_of(text):
            rank = (rest[0] if rest else 0) or Format(digits, "digits").rank or 0
            kind = rest[1][-1] if len(rest) > 1 else "f32"
            same_as_python(browser, f"{name}:{text}", Format(text, name).resolve(rank, kind), kind, random_)
            checked += 1
    assert checked > 700


@needs_browser
@settings(max_examples=tried(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(format=formats(), random_=st.randoms(use_true_random=False))
def test_the_page_reads_what_python_writes(
    browser: chromium.Page, format: Format, random_: random.Random
) -> None:
    for name in ("onednn", "digits"):
        text = format.name(name)
        if text is not None:
            same_as_python(browser, text, format, "f32", random_)
    spelled = browser.run(f"tagOf(readFormat({json.dumps(format.digits_text())}, table, 0, 'f32'))")
    assert spelled == format.name("onednn")


def misspelled(count: int) -> list[str]:
    """Tags and digits with a letter put, taken or changed here and there."""
    random_ = random.Random(2)
    right = [
        *dialect("onednn").names(),
        *TABLE["names"],
        "(h w)//2, n, c, (h w)%2",
        "n, c//4, h, w, c%2, c//2%2",
    ]
    texts = []
    for _ in range(count):
        text = random_.choice(right)
        for _ in range(random_.randint(0, 2)):
            k = random_.randrange(len(text) + 1)
            text = (
                text[:k]
                + random_.choice(["", *"abcdnhwoigltABCNOI0128/%,-> ()[]"])
                + text[k + random_.randint(0, 1) :]
            )
        texts.append(text)
    return texts


def in_python(text: str, name: str) -> str | None:
    """The digits that a text means in a dialect."""
    try:
        return Format(text, name).digits_text()
    except LayoutError:
        return None


@needs_browser
def test_the_page_refuses_what_python_refuses(browser: chromium.Page, file: Path) -> None:
    browser.go(file.as_uri())
    texts = [text.strip() for text in misspelled(3000)]
    found = browser.run(
        "(() => { const read = (parse, text) => { try { const made = parse(text);"
        "return made && digitsText(made); } catch (error) {"
        "if (error instanceof LayoutError) return null; throw error; } };"
        f"return {json.dumps(texts)}.map((text) => [read(parseTag, text), read(parseDigits, text)]); }})()"
    )
    wanted = [[in_python(text, "onednn"), in_python(text, "digits")] for text in texts]
    wrong = [triple for triple in zip(texts, found, wanted, strict=True) if triple[1] != triple[2]]
    assert not wrong, (len(wrong), wrong[:5])
    assert sum(one is None and two is None for one, two in wanted) > 500


@needs_browser
@pytest.mark.parametrize("text", ["cldnn:bfyx", "torch.channels_last", "TRT:kCHW4", " nchw ", "mkldnn:nhwc"])
def test_other_words_for_dialects(browser: chromium.Page, file: Path, text: str) -> None:
    browser.go(file.as_uri())
    found = browser.run(f"digitsText(readFormat({json.dumps(text)}, table, 4, 'f32'))")
    assert found == Format(text).resolve(4, "f32").digits_text()


@needs_browser
@pytest.mark.parametrize(
    ("text", "dims", "said"),
    [
        ("nChw0c", "1,2,3,4", "tag 'nChw0c' has a block of size 0; a block must be 1 or more"),
        ("nchw", "1,2", "the format has 4 axes (n, c, h, w); 2 sizes are given"),
        ("n, c//4, h, w, c%8", "1,2,3,4", "axis 'c': a digit has weight 4 where the digits below it count 8"),
        ("n, c, h -> c%4", "1,2,3", "axis 'n' of n, c, h stands in no digit"),
        ("b_fs_yx_fsv61", "1,2,3,4", "did you mean 'b_fs_yx_fsv16'?"),
        ("nChw8c2", "1,2,3,4", "did you mean 'nChw8c'? 'relayout explore FORMAT DIMS' reads"),
        ("NC4HW4", "1,4,4,4", "means different layouts: in "),
        ("aBx16b", "1", "'aBx16b' means a layout for 2, 3, 4, 5, 6 sizes; 1 are given"),
        ("nchw", "1,two", "'1,two' is no list of sizes"),
        ("", "1,2", "write a format, such as"),
        ("nchw", "999999999,999999999,1,1", "more than this page counts to"),
        ("</script><b>", "1,2", "no dialect has a format '</script><b>'"),
        ("T(8,128)(2,1)", "16,256", "did you mean '{1,0:T(8,128)(2,1)}'?"),
        ("n -> " + "(" * 5000, "1", "can't read the digits '" + "(" * 57 + "...'"),
    ],
)
def test_bad_input_is_told_in_one_line(
    browser: chromium.Page, file: Path, text: str, dims: str, said: str
) -> None:
    browser.go(file.as_uri())
    browser.write("#format", text)
    browser.write("#dims", dims)
    shown = browser.text("#format-error") + browser.text("#dims-error")
    assert said in shown
    assert "\n" not in shown
    assert browser.run("document.querySelectorAll('[aria-invalid=true]').length") >= 1
    assert browser.run("document.querySelector('#main').inert") is True
    assert browser.run("document.querySelector('#main').classList.contains('stale')") is True


@needs_browser
def test_pointing_clicking_and_keys(browser: chromium.Page, file: Path) -> None:
    browser.go(file.as_uri())
    layout, other = rl.Layout((1, 17, 4, 4), "nChw8c"), rl.Layout((1, 17, 4, 4), "nhwc")

    def said(index: tuple[int, ...]) -> str:
        a, b = layout.offset(*index), other.offset(*index)
        words = " ".join(f"{name}={i}" for name, i in zip("nchw", index, strict=True))
        return (
            f"{words}: in nChw8c offset {a}, byte {4 * a:,}, cache line {a // 16}; "
            f"in nhwc offset {b}, byte {4 * b:,}, cache line {b // 16}."
        )

    offset = layout.offset(0, 9, 1, 2)
    browser.hover(f'#a td[data-offset="{offset}"]')
    assert browser.text("#said") == said((0, 9, 1, 2))
    assert (
        browser.run("document.querySelectorAll('.cell.here').length") == 3
    )  # by index, and in both memories
    browser.click(f'#a td[data-offset="{offset}"]')
    assert f"o={offset}" in browser.run("location.hash")
    browser.press("ArrowRight")
    assert browser.text("#said") == said((0, 10, 1, 2))
    assert browser.run("document.activeElement.dataset.offset") == str(offset + 1)
    browser.press("ArrowDown")
    assert browser.text("#said") == said((0, 10, 1, 3))
    browser.press("End", modifiers=2)
    assert "padding: c would be 23; it is below 17" in browser.text("#said")
    browser.click(f'#tensor td[data-offset="{layout.offset(0, 16, 3, 3)}"]')
    browser.press("ArrowUp")
    assert browser.text("#said") == said((0, 16, 2, 3))
    browser.click(f'#b td[data-offset="{other.offset(0, 3, 1, 1)}"]')
    assert browser.text("#said") == said((0, 3, 1, 1))
    assert "s=b" in browser.run("location.hash")


@needs_browser
def test_going_to_places(browser: chromium.Page, file: Path) -> None:
    browser.go(f"{file.as_uri()}#f=nChw16c&d=2,64,56,56&t=bf16")
    layout = rl.Layout((2, 64, 56, 56), "nChw16c")
    browser.write("#go-offset", "123456")
    browser.press("Tab")
    index = layout.index(123456)
    assert index is not None
    assert browser.run("document.querySelector('#go-index').value") == ",".join(map(str, index))
    assert browser.text("#a .at")
    browser.write("#go-byte", "7")
    browser.press("Tab")
    assert "offset 3, byte 6" in browser.text("#said")
    browser.write("#go-index", "1,63,55,55")
    browser.press("Tab")
    assert f"offset {prod(layout.dims) - 1:,}" in browser.text("#said")
    assert "are not drawn" in browser.text("#tensor-left")
    assert "of 401,408 are drawn" in browser.text("#a .left")
    browser.write("#go-index", "2,0,0,0")
    browser.press("Tab")
    assert browser.text("#go-error") == "index 2 of axis n is out of bounds: 0 <= index < 2"
    assert browser.run("document.querySelectorAll('.cell').length") < 1500


@needs_browser
def test_sizes_are_dragged(browser: chromium.Page, file: Path) -> None:
    browser.go(file.as_uri())
    browser.click('#sliders input[data-axis="1"]')  # in the middle of 1..34
    browser.press("ArrowRight")
    dims = browser.run("document.querySelector('#dims').value").split(",")
    assert 15 < int(dims[1]) < 21
    assert f"d=1,{dims[1]},4,4" in browser.run("location.hash")


@needs_browser
def test_a_state_is_shared_by_its_address(browser: chromium.Page, file: Path) -> None:
    browser.go(f"{file.as_uri()}#f=b_fs_yx_fsv16&d=1,17,2,2&t=s8&b=bfyx&o=33")
    assert browser.run("document.querySelector('#dtype').value") == "s8"
    assert "n=0 c=1 h=1 w=0: in b_fs_yx_fsv16 offset 33, byte 33, cache line 0" in browser.text("#said")
    assert browser.text("#b h2") == "Memory of bfyx"
    browser.run("location.hash = '#f=NCHW4&d=1,6,2,2&t=f32'")
    browser.run("new Promise((done) => setTimeout(done, 50))")
    assert browser.text(".name-a") == "NCHW4"
    assert browser.run("document.querySelector('#b').hidden") is True
    assert "megengine" not in browser.text("#a dl")
    assert "MegEngine NCHW4" in browser.text("#a dl")


@needs_browser
@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("f=nchw&d=0,3,4,4", "There are no elements."),
        ("f=-%3E&d=", "the element: in -> offset 0, byte 0, cache line 0."),
        ("f=x&d=5&o=99999999999999999999&t=f1&s=b&c=%3Cb%3E", "x=0: in x offset 0, byte 0, cache line 0."),
        ("f=nhwc&d=1,2,3,4&t=s4&o=7", "n=0 c=1 h=0 w=3: in nhwc offset 7, byte 3.5, cache line 0."),
        ("o=3", "n=0 c=3 h=0 w=0: in nChw8c offset 3, byte 12, cache line 0."),
        ("nonsense", "n=0 c=0 h=0 w=0: in nChw8c offset 0, byte 0, cache line 0"),
    ],
)
def test_addresses_of_all_kinds(browser: chromium.Page, file: Path, fragment: str, said: str) -> None:
    browser.go(f"{file.as_uri()}#{fragment}")
    assert said in browser.text("#said")
    assert browser.errors == []


@needs_browser
def test_narrow_windows_are_not_wider_for_long_names(browser: chromium.Page, file: Path) -> None:
    browser.size(320, 800)
    try:
        browser.go(f"{file.as_uri()}#f=os_is_yx_osa4_isa8_osv8_isv4_swizzled_by_4&d=32,32,1,1&b=oiyx")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth") is True
    finally:
        browser.size(1280, 900)


@needs_browser
def test_a_cache_line_is_underlined(browser: chromium.Page, file: Path) -> None:
    browser.go(f"{file.as_uri()}#f=nhwc&d=1,4,4,4&o=20")
    found = browser.run(
        "[...document.querySelectorAll('#tensor .line')].map((e) => Number(e.dataset.offset)).sort()"
    )
    assert sorted(found) == list(range(16, 32))


@needs_browser
def test_what_screen_readers_are_told(browser: chromium.Page, file: Path) -> None:
    browser.go(file.as_uri())
    unnamed = browser.run(
        "[...document.querySelectorAll('input, select, button')].filter((e) => !e.labels?.length && "
        "!e.getAttribute('aria-label') && !e.textContent.trim()).map((e) => e.id)"
    )
    assert unnamed == []
    assert browser.run("document.querySelector('#said').getAttribute('aria-live')") == "polite"
    cell = '#a td[data-offset="33"]'
    assert (
        browser.run(f"document.querySelector('{cell}').getAttribute('aria-label')")
        == "offset 33, n=0 c=1 h=1 w=0"
    )
    assert (
        browser.run("document.querySelectorAll('#a td[tabindex=\"0\"]').length") == 1
    )  # one stop of Tab a picture


@needs_browser
def test_light_and_dark_pictures(browser: chromium.Page, file: Path) -> None:
    browser.go(file.as_uri())
    taken = []
    for dark in (False, True):
        browser.dark(dark)
        taken.append(browser.screenshot())
        assert browser.run("getComputedStyle(document.body).backgroundColor") == (
            "rgb(15, 17, 22)" if dark else "rgb(255, 255, 255)"
        )
    browser.dark(False)
    assert all(picture.startswith(b"\x89PNG") for picture in taken)
    assert taken[0] != taken[1]
    for width in (1280, 700, 360):
        browser.size(width, 900)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.size(1280, 900)
