"""``relayout show`` and ``relayout diff`` with ``--svg``, ``--png`` and ``--html``."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from relayout.cli import application
from test_cli import refused, runner

SVG = "{http://www.w3.org/2000/svg}"


def call(*words: object, code: int = 0) -> str:
    """Run a command; return what it prints."""
    result = runner().invoke(application, [*map(str, words)], prog_name="relayout")
    assert (result.exit_code, result.stderr) == (code, ""), result.output
    return result.stdout


def title(picture: str) -> str:
    """The title of a picture."""
    return ET.fromstring(picture).findtext(f"{SVG}title", "")


def test_show_writes_pictures(tmp_path: Path) -> None:
    svg, html = tmp_path / "a.svg", tmp_path / "a.html"
    said = call("show", "nChw8c", "1,17,4,4", "--svg", svg, "--html", html)
    assert said.splitlines() == [f"written to {svg}", f"written to {html}"]
    assert title(svg.read_text()) == "nChw8c   1x17x4x4   f32"
    page = html.read_text()
    assert page.startswith("<!doctype html>")
    assert svg.read_text() in page
    assert "<td>channel within its block</td>" in page
    assert "17 channels in 3 blocks of 8: the last 7 of 24 are padding" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page


def test_pictures_go_to_standard_output(tmp_path: Path) -> None:
    picture = call("show", "4,5", "--strides", "8,1", "--svg", "-", "--colour", "a", "--vector", "b")
    assert title(picture) == "strides 8x1 with strides 8x1   4x5   f32" or title(picture).endswith(
        "4x5   f32"
    )
    assert "5 indices of b of a=0: in 1 cache line" in picture
    both = tmp_path / "both.json"
    call("show", "nchw", "1,2,3,4", "--svg", "-", f"--json={both}")
    assert both.exists()


def test_the_rows_of_a_picture_are_limited() -> None:
    counts = []
    for limit in (5, 20, 100):
        picture = call("show", "nChw16c", "1,64,8,8", "--svg", "-", "--limit", limit)
        said = next((text for text in picture.split(">") if text.startswith("drawn: ")), "drawn: 256 of 256")
        counts.append(int(said.split()[1]))
    assert counts[0] <= 5 < counts[1] <= 20 < counts[2] <= 100


def test_diff_writes_pictures_and_keeps_its_exit_code(tmp_path: Path) -> None:
    svg, html = tmp_path / "a.svg", tmp_path / "a.html"
    assert call("diff", "nchw", "nChw16c", "1,32,8,8", "--svg", svg, "--html", html, code=1).startswith(
        "written"
    )
    assert title(svg.read_text()) == "nchw to nChw16c   1x32x8x8   f32"
    assert html.read_text().count("<svg ") == 3
    assert call("diff", "nchw", "nhwc", "1,1,8,8", "--svg", svg, "-q") == ""
    assert "The same bytes: nothing moves." in svg.read_text()


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    result = runner().invoke(
        application, ["show", "nhwc", "1,3,2,2", "--png", str(tmp_path / "a.png"), "--dark"]
    )
    if "finds none" in result.stderr:
        pytest.skip("no fonts")
    assert result.exit_code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_png_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    said = refused("show", "nhwc", "1,3,2,2", "--png", tmp_path / "a.png", code=3)
    assert "png files need resvg, which is not installed: pip install resvg-py" in said


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--colour", "c"], 2, "--colour is about pictures; add --svg FILE, --png FILE or --html FILE"),
        (["--vector", "c"], 2, "--vector is about pictures"),
        (["--svg", "-", "--limit", "0"], 2, "--limit 0: a picture has 1 to 1,000 rows of memory"),
        (["--svg", "-", "--grid"], 2, "--listing and --grid are no pictures"),
        (["--svg", "-", "--json"], 2, "both want standard output"),
        (["--svg", "-", "--html", "-"], 2, "two pictures can't go to one file"),
        (["--svg", "/nowhere/a.svg"], 5, "/nowhere/a.svg"),
        (["--svg", "-", "--colour", "q"], 4, "colour 'q' is no digit of nchw:1x2x3x4"),
        (["--svg", "-", "--vector", "q"], 4, "has no axis 'q' for a vector; it has n, c, h, w"),
    ],
)
def test_misuse(words: list[str], code: int, message: str) -> None:
    assert message in refused("show", "nchw", "1,2,3,4", *words, code=code)


def test_dark_without_a_png_is_refused() -> None:
    assert "--png FILE" in refused("show", "nchw", "1,2,3,4", "--dark")
    assert "--png FILE" in refused("show", "nchw", "1,2,3,4", "--dark", "--svg", "-")
