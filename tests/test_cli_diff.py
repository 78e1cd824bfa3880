"""``relayout diff``: the answer as an exit code, as a table and as JSON."""

from __future__ import annotations

import json

import pytest

from relayout.cli import application
from test_cli import refused, runner


def diff(*words, code):
    """Run the command; return what it prints."""
    result = runner().invoke(application, ["diff", *map(str, words)], prog_name="relayout")
    assert (result.exit_code, result.stderr) == (code, ""), result.output
    return result.stdout


def test_same_bytes():
    said = diff("nChw8c", "nhwc", "2,8,5,4", code=0)
    assert "same bytes  yes" in said
    assert "conversion  none is needed" in said
    diff("OIhw16i16o", "os_is_yx_isv16_osv16", "64,64,3,3", code=0)


def test_what_moves():
    said = diff("nchw", "nChw8c", "1,17,2,2", code=1)
    assert "63 of 68 lie elsewhere, 5 stay (7.35 %)" in said
    assert "0 and 28 elements" in said
    rows = [line.split() for line in said.splitlines()]
    assert ["0,0,0,1", "1", "8"] in rows
    assert "and 55 more" in said
    assert diff("nchw", "nChw8c", *["1", "17", "2", "2"], code=1) == said


def test_only_the_padding():
    said = diff("nChw8c", "nhwc", "1,4,1,1", code=1)
    assert "all 4 at the same offset, but not the padding" in said


def test_json_and_quiet():
    told = json.loads(diff("nchw", "nChw8c", "1,17,2,2", "--limit", "1", "--json", code=1))
    assert (told["same_bytes"], told["elements"], told["moved"], told["stay"]) == (False, 68, 63, 5)
    assert (told["padding"], told["bytes"]) == ([0, 28], [272, 384])
    assert told["first"] == [{"index": [0, 0, 0, 1], "offset_a": 1, "offset_b": 8}]
    assert diff("nchw", "nhwc", "1,1,5,5", "-q", code=0) == ""
    assert diff("nchw", "nhwc", "1,2,5,5", "-q", code=1) == ""


def test_descriptors():
    logged = "src:f32::blocked:acdb::f0", "dst:f32:p:blocked:aBcd8b::f0"
    assert "60 of 68" in diff(*logged, "1,17,2,2", code=1)
    assert "60 of 68" in diff(f"{logged[0]}:1x17x2x2", logged[1], code=1)
    assert "60 of 68" in diff(logged[0], f"{logged[1]}:1x17x2x2", code=1)
    assert "other data types" in diff("f32:nchw:1x2x3x4", "s8:nchw:1x2x3x4", code=1)
    assert json.loads(diff("f32:nchw:1x2x3x4", "s8:nchw:1x2x3x4", "--json", code=1))["same_bytes"] is False


def test_axes_are_matched_by_meaning():
    """The same bytes, indexed n, c, h, w by one and n, h, w, c by the other."""
    stated = "nhwc -> n, h, w, c"
    assert "all 120 at the same offset" in diff("nhwc", stated, "2,3,4,5", code=0)
    assert "all 120 at the same offset" in diff(stated, "nhwc", "2,4,5,3", code=0)
    diff(f"f32:{stated}:2x4x5x3", "nhwc", code=0)
    diff("nhwc", f"f32:{stated}:2x4x5x3", code=0)
    told = json.loads(diff("nchw", stated, "2,3,4,5", "--json", code=1))
    assert told["first"][0] == {"index": [0, 0, 0, 1], "offset_a": 1, "offset_b": 3}
    told = json.loads(diff(stated, "nchw", "2,4,5,3", "--json", code=1))
    assert told["first"][0] == {"index": [0, 0, 0, 1], "offset_a": 1, "offset_b": 20}
    assert "o,i,h,w" in diff("oihw", "OHWIo4", "4,5,6,7", code=1)


def test_axes_that_are_not_the_same():
    line = refused("diff", "tnc", "ncw", "4,5,6", code=4)
    assert "the first has the axes t, n, c and the second n, c, w" in line
    assert "--axes position" in line
    diff("tnc", "ncw", "4,5,6", "--axes", "position", code=0)
    diff("nhwc", "nhwc -> n, h, w, c", "2,3,4,5", "--axes", "position", code=1)
    diff("nchw", "abcd", "4,5,6,7", code=0)
    diff("oihw", "abcd", "4,5,6,7", "--as", "weights", code=0)


def test_a_conversion_that_is_refused():
    """The comparison is made all the same."""
    said = diff("ab", "src:f32::blocked:ab:0x1:f0", "4,5", code=1)
    assert "conversion  refused: " in said
    assert "15 of 20 lie elsewhere" in said


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("nchw",), 2, "FORMAT FORMAT DIMS"),
        (("nchw", "nhwc"), 2, "DIMS"),
        (("nchw", "nhwc", "1,2,3"), 4, "3 dims"),
        (("nchw", "nhwc", "1,2,3,4", "5"), 2, "FORMAT FORMAT DIMS"),
        (("nchw", "nhwx", "1,2,3,4"), 2, "did you mean"),
        (("nchw", "winograd_2x3_s1_data", "1,2,3,4"), 3, "inograd"),
        (("nchw", "any", "1,2,3,4"), 2, "open"),
        (("f32:nchw:1,2,3,4", "f32:nhwc:1x2x3x4"), 2, "no dialect"),
        (("f32:nchw:1x2x3x4", "f32:nhwc:1x2x3x5"), 4, "same dims"),
        (("f32:nchw:1x2x3x4", "nhwc", "1,2,3,4"), 2, "FORMAT FORMAT DIMS"),
    ],
)
def test_refusals(words, code, message):
    assert message in refused("diff", *words, code=code)


def test_what_is_more_than_a_layout_is_refused():
    words = ["wei_s8::blocked:ABcd4b16a4b::f1:s8m1", "wei_s8::blocked:ABcd4b16a4b::f0", "32,16,3,3"]
    result = runner().invoke(application, ["diff", *words], prog_name="relayout")
    assert result.exit_code == 3
    assert "f1:s8m1" in result.stderr
