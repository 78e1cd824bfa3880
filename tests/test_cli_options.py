"""What all commands share: JSON, quiet, standard input and output, closed pipes, exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import click
import pytest
from rich.console import Console
from rich.table import Table

import relayout as rl
from relayout.cli import application
from relayout.cli.console import console_for
from relayout.cli.options import Exit, Output, Terminated, code_of, with_json_files
from relayout.cli.streams import readable, writable
from relayout.cli.tables import Column, print_table
from test_cli import call, refused, runner

JSON = [
    ("show", "nChw8c", "1,17,2,2"),
    ("offset", "nChw8c", "2,17,5,4", "1,9,0,2"),
    ("offset", "nChw8c", "2,17,5,4", "--inverse", "657"),
    ("translate", "nChw16c"),
    ("translate", "nChw16c", "--to", "openvino"),
    ("formats",),
    ("formats", "pytorch"),
    ("formats", "onednn", "--grammar"),
    ("strides", "8,64,7,7", "3136,1,448,64"),
]


def piped(line, **options):
    """Run a line of a shell, in which ``relayout`` is this one."""
    line = line.replace("relayout", f"{sys.executable} -m relayout")
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120, **options
    )


@pytest.mark.parametrize("words", JSON, ids=" ".join)
class TestJson:
    def test_alone_it_is_all_of_standard_output(self, words):
        told = call(*words, "--json")
        assert isinstance(json.loads(told), dict)
        assert call(*words, "--json", "-") == told
        assert call(words[0], "--json", *words[1:]) == told
        assert call(*words, "--json", "--quiet") == told

    def test_to_a_file_beside_the_text(self, words, tmp_path):
        text, path = call(*words), tmp_path / "told.json"
        assert call(*words, "--json", path) == text
        assert path.read_text() == call(*words, "--json")
        assert call(*words, "--quiet", f"--json={path}") == call(*words, "-q")

    def test_quiet_says_no_more(self, words):
        assert len(call(*words, "--quiet")) <= len(call(*words))
        assert call(*words, "-q") == call(*words, "--quiet")


def test_every_command_has_the_same_options():
    below = application.commands["bench"].commands
    for name, command in {**application.commands, **below}.items():
        if name in ("completion", "bench", "convert"):
            continue
        found = {flag: option for option in command.params for flag in option.opts}
        for flag in ("--json", "--quiet", "-q"):
            assert flag in found, (name, flag)


def test_json_never_takes_the_input_for_its_file(tmp_path):
    """``relayout info --json weights.npy`` reads weights.npy and does not overwrite it."""
    assert with_json_files(["a", "--json", "b.npy"]) == ["a", "--json=-", "b.npy"]
    assert with_json_files(["a", "--json", "b.json", "c"]) == ["a", "--json=b.json", "c"]
    assert with_json_files(["a", "--json", "--json", "-"]) == ["a", "--json=-", "--json=-"]
    assert with_json_files(["a", "--json=b.txt", "--", "--json"]) == ["a", "--json=b.txt", "--", "--json"]
    there = tmp_path / "x.npy"
    there.write_bytes(b"mine")
    assert "give FORMAT DIMS" in refused("show", "nchw", "1,2,3,4", "--json", there)
    assert there.read_bytes() == b"mine"
    assert "--json=FILE" in refused("show", "nchw", "1,2,3,4", "--json=")


def test_a_json_file_that_cannot_be_written_is_refused_at_once(tmp_path):
    line = refused("show", "nchx", "1,2,3,4", f"--json={tmp_path}/no/x.json", code=5)
    assert "No such file" in line
    refused("show", "nchx", "1,2,3,4", f"--json={tmp_path}/x.json")
    assert list(tmp_path.iterdir()) == []


class TestPipes:
    @pytest.mark.turns(2)
    @pytest.mark.parametrize(
        "line",
        [
            "relayout show nchw 8,64,56,56 --listing --limit 20000 | head -1",
            "relayout formats --json | true",
            "relayout --help | true",
            "relayout translate --help | true",
            "relayout formats | true",
            "relayout show nchw 1,2,2,2 >&-",
            "relayout offset ab 2,3 1,1 --json >&-",
            "relayout strides 8,64,7,7 3136,1,448,64 >&-",
            "relayout offset ab 2,3 1,1 <&- >&-",
        ],
    )
    def test_nobody_listens(self, line):
        """A reader that leaves, or standard output closed from the start, is no error and makes no noise."""
        done = piped(f"{line}; echo ${{PIPESTATUS[0]}} >&2")
        assert done.stderr == "0\n"

    def test_errors_are_still_told(self):
        done = piped("relayout offset ab 2,3 2,2 >&-")
        assert done.returncode == 4
        assert "out of bounds" in done.stderr

    def test_errors_without_standard_error(self):
        assert piped("relayout offset ab 2,3 2,2 2>&-").returncode == 4
        assert piped("relayout offset ab 2,3 2,2 >&- 2>&-").returncode == 4

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
    def test_a_full_disk_is_an_error(self):
        done = piped("relayout show nchw 1,2,2,2 > /dev/full")
        assert done.returncode == 5
        assert done.stderr.count("\n") == 1

    def test_closed_standard_output_is_not_a_file_that_is_opened_later(self, tmp_path):
        """What is printed must not end up in the file that gets the number of standard output."""
        path = tmp_path / "x.json"
        assert piped(f"relayout show nchw 1,2,2,2 --json {path} >&-").returncode == 0
        assert json.loads(path.read_text())["dims"] == [1, 2, 2, 2]

    @pytest.mark.skipif(sys.platform == "win32", reason="file names are text there")
    def test_names_that_are_no_text(self, tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "relayout", "convert", b"\xff.npy", "x.npy"],
            capture_output=True,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 5
        assert b"No such file" in done.stderr
        assert done.stderr.count(b"\n") == 1


class TestStandardInputAndOutput:
    def test_a_path_is_left_alone(self):
        with readable("x.npy") as source, writable("y.npy", ".npy") as target:
            assert (str(source), str(target)) == ("x.npy", "y.npy")

    @pytest.mark.parametrize(
        ("head", "suffix"),
        [
            (b"\x93NUMPY\x01\x00", ".npy"),
            (b"PK\x03\x04zip", ".npz"),
            (b"\x08\0\0\0\0\0\0\0{}      ", ".safetensors"),
            (b"\x89PNG\r\n\x1a\n", ".png"),
            (b"\xff\xd8\xff\xe0", ".jpg"),
        ],
    )
    def test_standard_input_becomes_a_file(self, monkeypatch, head, suffix):
        data = head + bytes(100_000)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        with readable("-") as path:
            assert path.suffix == suffix
            assert path.read_bytes() == data
        assert not path.exists()

    def test_a_file_becomes_standard_output(self, monkeypatch):
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
        with writable("-", ".npy") as path:
            path.write_bytes(b"abc")
            assert out.getvalue() == b""
        assert out.getvalue() == b"abc"
        assert not path.exists()

    def test_nothing_by_half(self, monkeypatch):
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
        with pytest.raises(ValueError, match="half"):
            self._written_by_half()
        assert out.getvalue() == b""

    def _written_by_half(self):
        with writable("-", ".npy") as path:
            path.write_bytes(b"ab")
            raise ValueError("half")

    def test_only_one_may_have_it(self):
        output = Output()
        output.take_standard_output("OUT")
        assert not output.talks
        with pytest.raises(click.UsageError, match="OUT and --json"):
            Output("-").take_standard_output("OUT")


class TestExitCodes:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (click.UsageError("x"), 2),
            (rl.UnknownFormat("x"), 2),
            (rl.AmbiguousFormat("x"), 2),
            (rl.Unsupported("x"), 3),
            (rl.LayoutError("x"), 4),
            (FileNotFoundError(2, "x"), 5),
            (MemoryError(), 5),
            (ZeroDivisionError(), 70),
            (KeyboardInterrupt(), 130),
            (Terminated(), 143),
        ],
    )
    def test_are_told_apart(self, error, code):
        assert code_of(error) == code

    def test_are_on_the_help_page(self):
        page = call("--help")
        for code in Exit:
            assert f"\n    {int(code)} " in page

    def test_of_commands(self):
        assert "no name" in refused("translate", "nChw16c", "--to", "pytorch", code=3)
        assert "known are" in refused("translate", "nChw16c", "--to", "nobody", code=2)
        assert "no data type" in refused("show", "nchw", "1,2,3,4", "--dtype", "f31", code=2)
        assert "out of bounds" in refused("offset", "ab", "2,3", "2,2", code=4)
        assert "no format" in refused("formats", "--search", "qqq", code=1)

    def test_are_numbers(self):
        result = runner().invoke(application, ["offset", "ab", "2,3", "2,2"], prog_name="relayout")
        assert type(result.exit_code) is int


class TestTables:
    COLUMNS = (Column("layer"), Column("formats", 2), Column("us", 0, True), Column("kernel", 3))
    ROWS = (("conv1", "nchw nhwc", "12", "k" * 60), ("a" * 20, "nhwc nhwc", "3", "tile"))

    def printed(self, width):
        out = io.StringIO()
        print_table(Console(file=out, width=width), self.COLUMNS, self.ROWS)
        return [line.rstrip() for line in out.getvalue().splitlines()]

    def test_all_columns_where_there_is_room(self):
        lines = self.printed(200)
        assert lines[0].split() == ["layer", "formats", "us", "kernel"]
        assert len(lines) == 3

    def test_the_least_important_go_first_and_are_named(self):
        lines = self.printed(80)
        assert lines[0].split() == ["layer", "formats", "us"]
        assert lines[-1] == "omitted for lack of space: kernel; --json has them"
        assert self.printed(30)[0].split() == ["layer", "us"]

    def test_other_tables_lose_their_last_columns(self, monkeypatch):
        """In a report of measurements, the first columns are those that it was made for."""
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        console = console_for()
        console.width = 60
        table = Table()
        for head in ("case", "ratio", "quartiles", "engine"):
            table.add_column(head, no_wrap=True)
        table.add_row("f32:nchw -> f32:nhwc 1x16x8x8", "2.60", "2.60 .. 2.60", "k" * 30)
        console.print(table)
        said = sys.stdout.getvalue()
        assert "2.60 .. 2.60" in said
        assert "\N{HORIZONTAL ELLIPSIS}" not in said
        assert said.endswith("omitted for lack of space: engine\n")

    @pytest.mark.parametrize("width", [80, 60, 40])
    def test_nothing_is_cut(self, width):
        lines = self.printed(width)
        assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)
        assert max(map(len, lines[:3])) <= width
