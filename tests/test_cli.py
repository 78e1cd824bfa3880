"""The command line: answers for scripts, errors of one line, exit codes, and nothing written by half."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import click.testing
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import files
from relayout.cli import application
from strategies import examples

NEED_FILES = (
    "convert",
    "explain",
    "info",
    "run",
    "plan",
    "optimize",
    "audit",
    "completion",
    "verify",
    "guess",
)


def runner():
    try:
        return click.testing.CliRunner()
    except TypeError:  # pragma: no cover
        return click.testing.CliRunner(mix_stderr=False)


def call(*words):
    """Run a command; it must end well and print no error."""
    result = runner().invoke(application, [str(word) for word in words], prog_name="relayout")
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words, code=2):
    """Run a command that must fail in one line and with that exit code; return the line."""
    result = runner().invoke(application, [str(word) for word in words], prog_name="relayout")
    codes = (code,) if isinstance(code, int) else code
    assert result.exit_code in codes, (result.exit_code, result.output)
    lines = result.stderr.lstrip("\n").splitlines()  # behind the ^C of a terminal stands a line feed
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("relayout: error: ")
    assert result.stdout == ""
    return lines[0]


def shell(*words, **options):
    command = [sys.executable, "-m", "relayout", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class TestProgram:
    def test_help_everywhere(self):
        text = call("--help")
        assert text == call()
        for name in application.commands:
            assert name in text
            page = call(name, "--help")
            assert "Examples:" in page, name
            assert page == call(name, "-h")

    def test_a_command_loads_no_other(self):
        """Nor do ``--version`` and mistakes; help asks for all of them."""
        program = (
            "import sys\nfrom relayout.cli import application\n"
            "try:\n    application(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
            "names = [name.split('.')[2] for name in sys.modules if name.startswith('relayout.cli.')]\n"
            "print('loaded', *names)"
        )
        known = {command.callback.__module__.split(".")[2] for command in application.commands.values()}
        for words, wanted in (
            (["offset", "nchw", "1,2,3,4", "0,0,0,0"], {"offset"}),
            (["translate", "nchw"], {"names"}),
            (["--version"], set()),
            (["ofset"], set()),
            (["--help"], known),
        ):
            done = subprocess.run(
                [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
            )
            _, _, loaded = done.stdout.rpartition("loaded")
            assert set(loaded.split()) & known == wanted

    def test_help_fits_80_columns(self):
        for name, command in application.commands.items():
            below = [[name, sub] for sub in getattr(command, "commands", {})]
            for words in ([name], *below):
                long = [line for line in call(*words, "--help").splitlines() if len(line) > 80]
                assert not long or name == "convert", long
        assert max(map(len, call("--help").splitlines())) <= 80

    def test_examples_of_the_help_pages_work(self, tmp_path, monkeypatch):
        """Every example that needs no files is run as it stands, with nothing on standard input.

        Those that would measure for minutes list what they would measure; none opens a browser.
        """
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("RELAYOUT_EFFORT")  # it would keep tune from measuring
        monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
        seen = 0
        for name in application.commands:
            for line in call(name, "--help").partition("Examples:")[2].splitlines():
                words = line.strip().split("   ")[0].split(" && ")[0].split()
                files = any(one.endswith((".onnx", ".zarr")) for one in words)
                needs = words[1:2] and (words[1] in NEED_FILES or files)
                needs = needs or (words[1:2] == ["explore"] and "--html" not in words)
                if words[:1] == ["relayout"] and not needs:
                    if "--quick" in words and "--list" not in words:
                        words.append("--list")
                    done = runner().invoke(application, words[1:], prog_name="relayout")
                    assert (done.exit_code, done.stderr) in ((0, ""), (1, "")) or words[1] == "bench", words
                    assert done.exit_code == 0 or words[1] == "diff", words
                    seen += 1
        assert seen > 12

    def test_as_a_module_and_as_a_script(self):
        done = shell("offset", "nChw8c", "2,17,5,4", "1,9,0,2")
        assert (done.returncode, done.stdout, done.stderr) == (0, "657\n", "")
        done = shell("offset", "nChw8c", "2,17,5,4", "1,99,0,2")
        assert done.returncode == 4
        assert done.stdout == ""
        assert done.stderr.startswith("relayout: error: index 99 of axis 1 (c) is out of bounds")
        assert done.stderr.count("\n") == 1

    def test_version(self):
        assert call("--version") == f"relayout {rl.__version__}\n"

    def test_unknown_commands_and_options(self):
        assert "shw" in refused("shw")
        assert "relayout show --help" in refused("show", "nchw", "1,2,3,4", "--lst")
        assert "relayout show --help" in refused("show")

    @pytest.mark.parametrize(
        "words", ["show nChw8c 1,17,2,2", "translate nChw16c", "formats", "formats mlir"]
    )
    def test_pipes_get_whole_lines_without_blanks_behind(self, words):
        lines = call(*words.split()).splitlines()
        assert all(line == line.rstrip() for line in lines)
        assert len(lines) > 2

    def test_debug_shows_the_traceback(self):
        done = shell("--debug", "show", "nchx", "1,2,3,4")
        assert "Traceback" in done.stderr
        assert "UnknownFormat" in done.stderr

    def test_our_own_mistakes_are_one_line_too(self, monkeypatch):
        monkeypatch.setattr("relayout.layout.layout.Layout.offset", lambda *_: 1 / 0)
        line = refused("offset", "ab", "2,3", "0,0", code=70)
        assert "ZeroDivisionError" in line
        assert "--debug" in line

    def test_a_reader_that_leaves(self):
        """``relayout ... | head -1``: no traceback, no noise."""
        done = subprocess.run(
            f"{sys.executable} -m relayout show nchw 8,64,56,56 --listing --limit 20000 | head -1",
            shell=True,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert done.stdout.count("\n") == 1

    @pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
    def test_completion_scripts(self, name):
        assert "_RELAYOUT_COMPLETE" in call("completion", name)

    def test_completions(self):
        complete = {
            "_RELAYOUT_COMPLETE": "bash_complete",
            "COMP_WORDS": "relayout show nChw",
            "COMP_CWORD": "2",
        }
        done = runner().invoke(application, [], prog_name="relayout", env=complete)
        assert "nChw16c" not in done.stdout  # FORMAT DIMS is one argument there
        complete["COMP_WORDS"] = "relayout translate nChw16"
        done = runner().invoke(application, [], prog_name="relayout", env=complete)
        assert done.stdout.split() == ["plain,nChw16c"]
        complete.update(COMP_WORDS="relayout translate nchw --to openv", COMP_CWORD="4")
        done = runner().invoke(application, [], prog_name="relayout", env=complete)
        assert done.stdout.split() == ["plain,openvino"]


class TestShow:
    def test_teaches_a_format_in_one_call(self):
        text = call("show", "nChw8c", "1,17,2,2")
        assert "offset = n*96 + c//8*32 + h*16 + w*8 + c%8" in text
        assert "block of 8 channels" in text
        assert "17 channels in 3 blocks of 8: the last 7 of 24 are padding" in text
        assert "b_fs_yx_fsv8" in text
        assert "    32 │    1 0 0 │   c=  8  9 10 11 12 13 14 15" in text

    def test_the_listing_of_openvinos_page(self):
        text = call("show", "b_fs_yx_fsv16", "2,2,2,2")
        assert "i = [b, f, y, x] == [b, fs, y, x, fsv]" in text
        assert "i = 17         => [b=0; f=1; y=0; x=1] == [b=0; fs=0; y=0; x=1; fsv=1]" in text
        assert "i = 114 .. 127 => padding              == [b=1; fs=0; y=1; x=1; fsv=2..15]" in text

    def test_json(self):
        told = json.loads(call("show", "b_fs_yx_fsv16", "1x17x2x2", "--dtype", "bf16", "--json"))
        desc = rl.MemoryDesc((1, 17, 2, 2), "bf16", "nChw16c")
        assert told["dims"] == [1, 17, 2, 2]
        assert told["padded_dims"] == [1, 32, 2, 2]
        assert told["physical_shape"] == [1, 2, 2, 2, 16]
        assert told["bytes"] == desc.nbytes
        assert told["names"]["onednn"] == "nChw16c"
        assert [d["stride"] for d in told["digits"]] == [128, 64, 32, 16, 1]
        assert files.descriptor_from_json(told["descriptor"]) == desc

    def test_listing_grid_and_limit(self):
        assert len(call("show", "nchw", "2,3,4,5", "--listing", "--limit", "7").splitlines()) == 9
        assert len(call("show", "nchw", "2,3,4,5", "--listing", "--limit", "0").splitlines()) == 121
        assert len(call("show", "nchw", "2,3,4,5", "--grid", "--limit", "7").splitlines()) == 9

    def test_letters_have_no_meaning(self):
        """The third axis of aBx16b is called c, and is nobody's channel."""
        said = call("show", "aBx16b", "1,17,3")
        assert "index of c" in said
        assert "block of 16 indices of b" in said
        assert "channel" not in said
        said = call("show", "abcdefghijkl", "x".join(["1"] * 12))
        assert "index of d" in said
        assert not any(word in said for word in ("channel", "depth", "row ", "group ", "input"))

    @pytest.mark.parametrize(("format", "dims"), [("nchw", "1,3,4,5"), ("tnc", "2,3,4"), ("ldnc", "1,2,3,4")])
    def test_the_batch_is_no_image(self, format, dims):
        said = call("show", format, dims)
        assert "batch index" in said
        assert "image" not in said

    def test_strides_keep_the_names_of_the_format(self):
        words = ("nchw", "1,3,4,5", "--strides", "100,30,6,1")
        said = call("show", *words)
        assert "offset = n*100 + c*30 + h*6 + w\n" in said
        assert "channel" in said
        assert "index of" not in said
        assert "i = [n, c, h, w] == [n, c, h, w]" in call("show", *words, "--listing")
        assert json.loads(call("show", *words, "--json"))["axes"] == ["n", "c", "h", "w"]
        assert "n=0, c=2, h=3, w=4" in call("offset", *words[:2], "0,2,3,4", *words[2:], "--explain")
        letters = call("show", "1,3,4,5", "--strides", "100,30,6,1")
        assert "index of c" in letters
        assert "channel" not in letters

    def test_strides(self):
        assert "offset = a*8 + b" in call("show", "4,5", "--strides", "8,1")
        text = call("show", "nChw8c", "2,16,2,3", "--strides", "200,100,50,8")
        assert "nChw8c with strides 200x100x50x8" in text
        assert "offset = n*200 + c//8*100 + h*50 + w*8 + c%8" in text
        assert "1 stride (8,)" in refused("show", "4,5", "--strides", "8", code=4)

    def test_sizes_that_nobody_can_hold(self):
        """Only what is printed is visited."""
        tensor = ("nchw", "99999999999,9999999,1,1")
        assert "more rows" in call("show", *tensor)
        assert len(call("show", *tensor, "--listing", "--limit", "3").splitlines()) == 5
        assert "more rows" in call("show", *tensor, "--grid", "--limit", "3")

    def test_strides_that_interleave_have_a_table_and_no_drawing(self):
        text = call("show", "300,400", "--strides", "300,2")
        assert "offset = a*300 + b*2" in text
        text = call("show", "30,40", "--strides", "30,2")
        assert "i = 30 " in text

    @pytest.mark.parametrize("words", [("a", "0"), ("abc", "2,0,3"), ("nChw8c", "0,17,2,2"), ("a", "1")])
    def test_empty_and_tiny(self, words):
        assert "offset = " in call("show", *words)

    def test_colours_only_where_wanted(self):
        assert "\x1b" not in call("show", "nChw8c", "1,17,2,2")
        assert "\x1b" not in call("show", "nChw8c", "1,17,2,2", "--no-color")

    def test_terminals_without_unicode(self):
        done = shell(
            "show", "nChw8c", "1,17,2,2", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("nCwh8c", "1,2,3"), "3 dims"),
            (("nchx", "1,2,3,4"), "did you mean"),
            (("nchw", "1,2,3,q"), "2,17,5,4"),
            (("nchw", "1,-2,3,4"), "negative"),
            (("nchw", "4294967296,4294967296,1,1"), "2\\*\\*63"),
            (("nchw",), "FORMAT DIMS"),
            (("nchw", "1,2,3,4", "5"), "FORMAT DIMS"),
            (("any", "1,2,3,4"), "open"),
            (("nchw", "1,2,3,4", "--dtype", "f31"), "no data type"),
            (("winograd_2x3_s1_data", "1,2,3,4"), "inograd"),
        ],
    )
    def test_refusals(self, words, message):
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(refused("show", *words, code=(2, 3, 4)))


class TestOffset:
    def test_the_number_alone(self):
        assert call("offset", "nChw8c", "2,17,5,4", "1,9,0,2") == "657\n"
        assert call("offset", "OIhw4i16o4i", "32x16x3x3", "17x5x0x2") == "2885\n"
        assert call("offset", "ab", "2,3", "0,0", "1,2", "0,1") == "0\n5\n1\n"
        assert call("offset", "4,5", "3,2", "--strides", "8,1") == "26\n"

    def test_explained(self):
        lines = call("offset", "nChw8c", "2,17,5,4", "1,9,0,2", "--explain", "--dtype", "f32").splitlines()
        assert lines[0] == "657"
        rows = [line.split() for line in lines]
        assert ["c//8", "1", "*", "160", "=", "160"] in rows
        assert ["n", "1", "*", "480", "=", "480"] in rows
        assert lines[-1].strip() == "byte 2628 as f32"
        assert "low half" in call("offset", "ab", "2,4", "1,2", "--explain", "--dtype", "s4")

    @pytest.mark.parametrize(
        "words",
        ["17,5,0,2", "17 5 0 2", "17x5x0x2", "17, 5, 0, 2", "(17,5,0,2)", "[17,5,0,2]"],
    )
    def test_ways_to_write_an_index(self, words):
        tensor = ("OIhw4i16o4i", "32,16,3,3")
        assert call("offset", *tensor, *words.split()) == "2885\n"
        assert call("offset", *tensor, *words.split(), *words.split(), "0,0,0,0") == "2885\n2885\n0\n"

    def test_sizes_as_words(self):
        assert call("offset", "OIhw4i16o4i", *["32", "16", "3", "3", "17", "5", "0", "2"]) == "2885\n"
        assert call("offset", "a", "9", "3", "4") == "3\n4\n"
        assert call("show", "nChw8c", *["1", "17", "2", "2"]) == call("show", "nChw8c", "1,17,2,2")
        assert call("show", "contiguous_format", *["1", "17", "2", "2"]) == call(
            "show", "contiguous_format", "1,17,2,2"
        )

    def test_numbers_that_are_left_over(self):
        assert "4 numbers" in refused("offset", "nchw", "2,3,4,5", "1", "2", "3")
        assert "4 numbers" in refused("offset", "nchw", "2,3,4,5", *["1", "2", "3", "4", "0"])
        assert "4 numbers" in refused("offset", "nchw", "2,3,4,5", "1", "2", "0,0,0,0")

    def test_indices_from_standard_input(self):
        words = ["offset", "ab", "2,3", "-"]
        done = runner().invoke(application, words, input="0,0\n\n1 2\n", prog_name="relayout")
        assert (done.exit_code, done.stdout) == (0, "0\n5\n")
        done = runner().invoke(application, words, input="0,0\n9,9\n", prog_name="relayout")
        assert (done.exit_code, done.stdout) == (4, "0\n")
        assert "line 2: index 9" in done.stderr

    @pytest.mark.parametrize(
        "text", ["1_0", "\N{ARABIC-INDIC DIGIT ONE}", "\N{SUPERSCRIPT TWO}", "9" * 5000, ""]
    )
    def test_odd_digits(self, text):
        assert "no whole number" in refused("offset", "ab", "2,30", "--inverse", text)
        if text:
            assert "no list of whole numbers" in refused("offset", "ab", "2,30", f"1,{text}")

    @examples(60)
    @given(st.data())
    def test_there_and_back(self, data):
        layout = rl.Layout((3, 10, 2, 5), "nChw4c")
        offset = data.draw(st.integers(0, layout.span - 1))
        answer = call("offset", "nChw4c", "3,10,2,5", "--inverse", offset).strip()
        if layout.is_padding(offset):
            assert answer == "padding"
        else:
            assert call("offset", "nChw4c", "3,10,2,5", answer).strip() == str(offset)

    def test_what_lies_nowhere(self):
        assert call("offset", "nChw8c", "1,17,2,2", "--inverse", "65") == "padding\n"
        assert "c=17, but c ends at 16" in call(
            "offset", "nChw8c", "1,17,2,2", "--inverse", "65", "--explain"
        )
        assert call("offset", "4,5", "--strides", "8,1", "--inverse", "6") == "hole\n"
        assert "takes the places 0 to 95" in refused(
            "offset", "nChw8c", "1,17,2,2", "--inverse", "96", code=4
        )

    @pytest.mark.parametrize(
        ("words", "message", "code"),
        [
            (("ab", "2,3", "2,0"), "out of bounds", 4),
            (("ab", "2,3", "1"), "2 axes", 4),
            (("ab", "2,3"), "INDEX", 2),
            (("ab", "2,3", "0,0", "--inverse", "1"), "not both", 2),
            (("ab", "2,3", "0,0", "9,9"), "out of bounds", 4),
        ],
    )
    def test_refusals(self, words, message, code):
        assert message in refused("offset", *words, code=code)


class TestNames:
    def test_translate(self):
        assert call("translate", "nChw16c", "--to", "openvino") == "b_fs_yx_fsv16\n"
        assert call("translate", "b_fs_yx_fsv16", "--to", "onednn") == "nChw16c\n"
        assert call("translate", "aBx16b", "--rank", "5", "--to", "onednn") == "aBcde16b\n"
        assert call("translate", "channels_last", "--to", "onednn") == "nhwc\n"
        table = call("translate", "nChw16c")
        assert "n, c//16, h, w, c%16" in table
        assert "b_fs_yx_fsv16" in table
        assert json.loads(call("translate", "nChw16c", "--json"))["names"]["tvm"] == "NCHW16c"

    def test_translate_marks_names_that_no_system_has(self):
        assert "b_fs_yx_fsv24  (by grammar only)" in call("translate", "nChw24c")
        assert "by grammar only" not in call("translate", "nhwc", "--to", "openvino")
        known = json.loads(call("translate", "nChw24c", "--json"))
        assert known["names"]["openvino"] == "b_fs_yx_fsv24"
        assert "openvino" in known["by_grammar_only"]
        assert "tvm" not in known["by_grammar_only"]
        one = json.loads(call("translate", "nChw24c", "--to", "openvino", "--json"))
        assert (one["names"], one["by_grammar_only"]) == ({"openvino": "b_fs_yx_fsv24"}, ["openvino"])
        run = runner().invoke(application, ["translate", "nChw24c", "--to", "openvino"])
        assert run.stdout == "b_fs_yx_fsv24\n"  # what a script takes is the name alone
        assert run.stderr == "by grammar only: OpenVINO GPU (clDNN) has no such format\n"

    @pytest.mark.parametrize("text", ["nChw24c", "nChw16c", "OIhw4i16o4i", "BA16a16b", "goihw"])
    def test_formats_finds_what_translate_prints(self, text):
        known = json.loads(call("translate", text, "--json"))
        for dialect, name in [*known["names"].items(), ("digits", known["digits"])]:
            for found in (
                json.loads(call("formats", "--search", name, "--json")),
                json.loads(call("formats", dialect, "--search", name, "--json")),
            ):
                hits = [one for one in found["formats"] if one["format"] == name]
                marked = {one["dialect"]: one["by_grammar_only"] for one in hits}
                assert marked[dialect] == (dialect in known["by_grammar_only"]), name
        assert "b_fs_yx_fsv24" in call("formats", "--search", "b_fs_yx_fsv24")
        assert "(by grammar only)" in call("formats", "openvino", "--search", "b_fs_yx_fsv24")

    @pytest.mark.parametrize(
        ("words", "own"),
        [
            ("os_is_yx_osv32_isv4_swizzled_by_2 32,4,1,1", "OpenVINO GPU os_is_yx_osv32_isv4_swizzled_by_2"),
            ("FRACTAL_NZ 2,30,40", "Ascend FRACTAL_NZ"),
            ("kDLA_HWC4 2,3,8,8 --dtype f16", "TensorRT kDLA_HWC4"),
            ("kDLA_HWC4 2,3,8,8 --dtype s8", "TensorRT kDLA_HWC4"),
            ("nChw8c 1,17,2,2", "oneDNN nChw8c"),
        ],
    )
    def test_show_begins_with_the_name_that_was_given(self, words, own):
        shown = call("show", *words.split())
        line = next(line for line in shown.splitlines() if line.split()[:1] == ["names"])
        assert line.split("names", 1)[1].strip().split(",")[0] == own
        names = json.loads(call("show", *words.split(), "--json"))["names"]
        assert words.split()[0] in names.values()

    def test_show_tells_spellings_from_names(self):
        shown = call("show", "nChw24c", "1,30,2,2")
        names = next(line for line in shown.splitlines() if line.split()[:1] == ["names"])
        spellings = next(line for line in shown.splitlines() if line.split()[:1] == ["spellings"])
        assert "b_fs_yx_fsv24" not in names
        assert "NCHW24c" in names
        assert "OpenVINO GPU b_fs_yx_fsv24" in spellings
        assert "by grammar only" in spellings
        assert "openvino" in json.loads(call("show", "nChw24c", "1,30,2,2", "--json"))["by_grammar_only"]

    def test_translate_says_what_waits_for_the_data_type(self):
        run = runner().invoke(application, ["translate", "NC1HWC0", "--to", "onednn"])
        assert (run.exit_code, run.stdout) == (0, "nChw16c\n")
        assert "this is for f16; for f32 it is nchw -> n, c//8, h, w, c%8" in run.stderr
        known = json.loads(call("translate", "NC1HWC0", "--json"))
        assert known["by_dtype"]["s8"] == "nchw -> n, c//32, h, w, c%32"
        told = runner().invoke(application, ["translate", "NC1HWC0", "--dtype", "f32", "--to", "onednn"])
        assert (told.stdout, told.stderr) == ("nChw8c\n", "")
        assert "by_dtype" not in json.loads(call("translate", "nChw16c", "--json"))

    def test_translate_by_data_type(self):
        assert call("translate", "os_iyx_osv16", "--to", "onednn") == "Oihw16o\n"
        assert call("translate", "os_iyx_osv16", "--to", "onednn", "--dtype", "s4") == "OIhw16o2i\n"

    @pytest.mark.parametrize(
        ("words", "message", "code"),
        [
            (("nChw16c", "--to", "pytorch"), "no name in PyTorch", 3),
            (("nChw16c", "--to", "onedn"), "did you mean 'onednn'", 2),
            (("nChw16d",), "did you mean", 2),
            (("aBx16b",), "--rank", 2),
            (("nChw16c", "--rank", "3"), "4 axes", 4),
            (("nChw16c", "--from", "megengine"), "no format of MegEngine", 2),
            (("winograd_2x3_s1_data",), "inograd", 3),
        ],
    )
    def test_refusals(self, words, message, code):
        assert message in refused("translate", *words, code=code)

    def test_formats(self):
        table = call("formats")
        for name in rl.dialects():
            assert name in table
        assert "n, c//16, h, w, c%16" in call("formats", "openvino", "--search", "b_fs_yx_fsv16")
        assert "channels_last" in call("formats", "--search", "channels_last")
        assert "tag    = outer blocks" in call("formats", "onednn", "--grammar")
        assert "no format has" in refused("formats", "onednn", "--search", "qqq", code=1)
        assert "no dialect 'onedn'" in refused("formats", "onedn")
        assert "DIALECT" in refused("formats", "--grammar")

    def test_every_dialect_can_be_listed(self):
        for name in rl.dialects():
            assert call("formats", name)

    def test_strides(self):
        assert "channels_last" in call("strides", "8,64,7,7", "3136,1,448,64")
        refused("strides", "8,64", "1", code=4)

    @pytest.mark.parametrize("width", [80, 200])
    def test_strides_are_explained_in_the_width_of_the_terminal(self, monkeypatch, width):
        monkeypatch.setattr("relayout.cli.strides.reading_width", lambda _: width)
        longest = max(map(len, call("strides", "8,1,7,7", "49,1,7,1").splitlines()))
        assert 70 < longest <= min(width, 100)
        assert longest > 80 or width == 80


class TestConvert:
    @pytest.fixture
    def array(self):
        return np.random.default_rng(0).standard_normal((2, 19, 5, 4)).astype(np.float32)

    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".bin", ".raw"])
    @pytest.mark.parametrize("format", ["nhwc", "nChw16c", "OIhw4i16o4i"])
    def test_there_and_back(self, tmp_path, array, suffix, format):
        np.save(tmp_path / "in.npy", array)
        middle, back = tmp_path / f"x{suffix}", tmp_path / "back.npy"
        call("convert", tmp_path / "in.npy", middle, "--from", "nchw", "--to", format)
        assert files.read(middle).desc == rl.MemoryDesc(array.shape, "f32", format)
        call("convert", middle, back, "--to", "nchw")
        assert np.array_equal(np.load(back), array)
        call(
            "convert", middle, back, "--from", format, "--to", "nchw", "--force"
        )  # repeating it does no harm
        assert np.array_equal(np.load(back), array)

    def test_nhwc_is_an_ordinary_array(self, tmp_path, array):
        np.save(tmp_path / "in.npy", array)
        call("convert", tmp_path / "in.npy", tmp_path / "out.npy", "--from", "nchw", "--to", "nhwc")
        out = np.load(tmp_path / "out.npy")
        assert np.array_equal(out, array.transpose(0, 2, 3, 1))
        np.save(tmp_path / "others.npy", out)
        call("convert", tmp_path / "others.npy", tmp_path / "back.npy", "--from", "nhwc", "--to", "nchw")
        assert np.array_equal(np.load(tmp_path / "back.npy"), array)

    def test_raw_dump(self, tmp_path, array):
        dump = rl.tensor(array, "nChw8c")
        (tmp_path / "dump.bin").write_bytes(bytes(dump.buffer))
        given = ("--from", "nChw8c", "--dims", "2,19,5,4", "--in-dtype", "f32", "--to", "nchw")
        call("convert", tmp_path / "dump.bin", tmp_path / "x.npy", *given)
        assert np.array_equal(np.load(tmp_path / "x.npy"), array)

    def test_a_photograph_there_and_back(self, tmp_path):
        image = pytest.importorskip("PIL.Image")
        pixels = np.random.default_rng(1).integers(0, 256, (9, 7, 3), np.uint8)
        image.fromarray(pixels).save(tmp_path / "in.png")
        floats = ("--to", "nChw16c", "--dtype", "f32", "--src-scale", "1/255")
        said = call("convert", tmp_path / "in.png", tmp_path / "x.npy", *floats)
        assert f"array [1, 1, 9, 7, 16], described in {tmp_path / 'x.npy'}.layout.json" in said
        assert np.load(tmp_path / "x.npy").shape == (1, 1, 9, 7, 16)
        call("convert", tmp_path / "x.npy", tmp_path / "back.png", "--src-scale", "255")
        assert np.array_equal(np.asarray(image.open(tmp_path / "back.png")), pixels)

    def test_mean_and_deviation(self, tmp_path):
        image = pytest.importorskip("PIL.Image")
        pixels = np.random.default_rng(1).integers(0, 256, (9, 7, 3), np.uint8)
        image.fromarray(pixels).save(tmp_path / "in.png")
        usual = ("--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225")
        there = ("--to", "nchw", "--dtype", "f32", "--src-scale", "1/255")
        call("convert", tmp_path / "in.png", tmp_path / "x.npy", *there, *usual)
        expected = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        assert np.allclose(np.load(tmp_path / "x.npy")[0].transpose(1, 2, 0), expected, atol=1e-5)
        back = ("--from", "nchw", *usual, "--denormalize", "--dst-scale", "1/255")
        call("convert", tmp_path / "x.npy", tmp_path / "back.png", *back)
        assert np.array_equal(np.asarray(image.open(tmp_path / "back.png")), pixels)

    def test_quantised(self, tmp_path, array):
        np.save(tmp_path / "in.npy", array)
        scales = np.linspace(0.01, 0.05, 19).astype(np.float32)
        np.save(tmp_path / "scales.npy", scales)
        paths = (tmp_path / "in.npy", tmp_path / "q.npy")
        call(
            "convert", *paths, "--from", "nchw", "--dtype", "u8",
            "--dst-scale", f"@{tmp_path / 'scales.npy'}", "--dst-zero-point", "128", "--quiet",
        )  # fmt: skip
        expected = rl.reorder(array, "nchw", dtype="u8", dst_scale=(scales, 1), dst_zero_point=128)
        assert np.array_equal(np.load(paths[1]), expected.numpy())
        call(
            "convert",
            paths[1],
            tmp_path / "w.npy",
            "--dtype",
            "f32",
            "--scale",
            "1,2",
            "--axis",
            "0",
            "--zero-point",
            "3",
        )
        expected = (np.load(paths[1]).astype(np.float32) - 3) * np.float32([1, 2]).reshape(2, 1, 1, 1)
        assert np.array_equal(np.load(tmp_path / "w.npy"), expected)

    def test_arrays_by_name(self, tmp_path, array):
        np.savez(tmp_path / "in.npz", one=array, two=array[0])
        call("convert", tmp_path / "in.npz", tmp_path / "o.safetensors", "--name", "two", "--dtype", "bf16")
        assert files.read(tmp_path / "o.safetensors", name="two").dims == (19, 5, 4)
        assert "one, two; name the one" in refused(
            "convert", tmp_path / "in.npz", tmp_path / "o.npy", code=(2, 4)
        )
        assert "no array 'six'" in refused(
            "convert", tmp_path / "in.npz", tmp_path / "o.npy", "--name", "six", code=4
        )

    def test_quiet(self, tmp_path, array):
        np.save(tmp_path / "in.npy", array)
        assert call("convert", tmp_path / "in.npy", tmp_path / "out.npy", "--quiet", "--no-progress") == ""

    def test_refusals_leave_nothing(self, tmp_path, array):
        np.save(tmp_path / "in.npy", array)
        np.save(tmp_path / "there.npy", array[:1])
        (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xff{")
        (tmp_path / "notes.txt").write_text("x")
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        source, out = tmp_path / "in.npy", tmp_path / "out.npy"
        for words, message in (
            ((source, out, "--from", "nchw", "--to", "nChw16"), "did you mean"),
            ((source, out, "--from", "tnc"), "has 4 axes"),
            ((source, out, "--from", "nChw8c"), "say the dims"),
            ((source, out, "--to", "any"), "has a layout"),
            ((source, out, "--to", "nhwc"), "--from nchw"),
            ((source, out, "--dtype", "f31"), "no data type"),
            ((source, out, "--src-scale", "1,2", "--from", "nchw"), "needs 19 values"),
            ((source, out, "--src-scale", "1,2"), "--axis"),
            ((source, out, "--src-scale", "x"), "no number"),
            ((source, out, "--src-scale", "1/0"), "no number"),
            ((source, out, "--src-scale", "nan"), "finite"),
            ((source, out, "--dst-scale", "0"), "dst_scale"),
            ((source, out, "--dst-zero-point", "0.5"), "whole"),
            ((source, out, "--axis", "q", "--src-scale", "1,2"), "no axis q"),
            ((source, out, "--axis", "\N{SUPERSCRIPT TWO}", "--src-scale", "1,2"), "no axis"),
            ((source, out, "--axis", "\N{ARABIC-INDIC DIGIT ONE}", "--src-scale", "1,2"), "no axis"),
            ((source, out, "--axis", "9" * 5000, "--src-scale", "1,2"), "no axis"),
            ((source, out, "--std", "0"), "std"),
            ((source, out, "--mean", "1,2", "--from", "nchw"), "mean has 2 values"),
            ((source, out, "--denormalize"), "--mean"),
            ((source, tmp_path / "out.png", "--from", "nchw", "--dtype", "u8"), "one picture"),
            ((source, tmp_path / "out.xyz"), "kinds of files"),
            ((tmp_path / "bad.npy", out), "no npy file"),
            ((tmp_path / "notes.txt", out), "kinds of files"),
        ):
            assert message in refused("convert", *words, code=(2, 4)), words
        assert "the file exists" in refused("convert", source, tmp_path / "there.npy", code=5)
        assert "No such file" in refused("convert", tmp_path / "nothing.npy", out, code=5)
        assert "no such folder" in refused("convert", source, tmp_path / "no" / "out.npy", code=5)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_a_full_disk(self, tmp_path, array, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        np.save(tmp_path / "in.npy", array)
        monkeypatch.setattr("relayout.files.npy.reserve", full)
        line = refused("convert", tmp_path / "in.npy", tmp_path / "out.npy", code=5)
        assert os.strerror(errno.ENOSPC) in line
        assert [p.name for p in tmp_path.iterdir()] == ["in.npy"]

    def test_interrupted(self, tmp_path, array, monkeypatch):
        def stop(*_, **__):
            raise KeyboardInterrupt

        np.save(tmp_path / "in.npy", array)
        monkeypatch.setattr("relayout.files.convert_into", stop)
        assert "interrupted" in refused("convert", tmp_path / "in.npy", tmp_path / "out.npy", code=130)
        assert [p.name for p in tmp_path.iterdir()] == ["in.npy"]

    def test_memory_stays_bounded(self, tmp_path):
        """Files of 192 MB each are converted in less than 150 MB."""
        pytest.importorskip("resource")
        if not sys.platform.startswith("linux"):
            pytest.skip("ru_maxrss means other things elsewhere")
        big = np.lib.format.open_memmap(tmp_path / "in.npy", "w+", np.float32, (12, 64, 256, 256))
        big[:, ::7] = 1
        big.flush()
        del big
        code = (
            "import resource, sys; from relayout.cli import application\n"
            "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "try: application(sys.argv[1:])\n"
            "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)\n"
        )
        words = [
            "convert",
            tmp_path / "in.npy",
            tmp_path / "out.npy",
            "--from",
            "nchw",
            "--to",
            "nhwc",
            "--quiet",
        ]
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout.split()[-1]) < 150 * 1024


@examples(150)
@given(
    command=st.sampled_from(("show", "offset", "translate", "formats", "strides")),
    words=st.lists(
        st.one_of(
            st.sampled_from(
                (
                    "nchw",
                    "nChw8c",
                    "1,2,3,4",
                    "aBx16b",
                    "--to",
                    "--json",
                    "--inverse",
                    "3",
                    "--strides",
                    "NCHW44",
                )
            ),
            st.text(alphabet="abcnhw0123456789,x%/ ->(){}:@_-ABC", max_size=12),
            st.text(max_size=8),
        ),
        max_size=4,
    ),
)
def test_whatever_is_typed(command, words):
    """No traceback, and an error is one line."""
    result = runner().invoke(application, [command, *words], prog_name="relayout")
    assert result.exit_code in (0, 1, 2, 3, 4), (words, result.output)
    if result.exit_code:
        assert result.stderr.startswith("relayout: error: ")
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""
