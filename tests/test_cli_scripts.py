"""What scripts rely on: answers as they arrive, input that is recognised, exit codes that say why."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import relayout as rl
from relayout import files
from test_cli import call, refused, shell
from test_cli_options import piped
from test_files import counting, made


class TestIndicesFromAPipe:
    WORDS = ("offset", "nChw8c", "2,17,5,4", "-")

    def test_each_is_answered_as_it_arrives(self):
        with subprocess.Popen(
            [sys.executable, "-m", "relayout", *self.WORDS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            for line, answer in ((b"1,9,0,2\n", b"657\n"), (b"0 0 0 1\n", b"8\n")):
                process.stdin.write(line)
                process.stdin.flush()
                assert process.stdout.readline() == answer
            process.stdin.close()
            assert process.wait(60) == 0

    def test_an_endless_input_ends_with_its_reader(self):
        done = piped("yes 0,0,0,0 | relayout offset nChw8c 2,17,5,4 - | head -2; echo ${PIPESTATUS[1]}")
        assert (done.stdout, done.stderr) == ("0\n0\n0\n", "")

    @pytest.mark.parametrize(("bad", "code"), [("xx", 2), ("1,99,0,2", 4), ("1 2 3", 2), ("\udcff", 2)])
    def test_a_bad_line_is_named_and_those_before_it_answered(self, bad, code):
        done = subprocess.run(
            [sys.executable, "-m", "relayout", *self.WORDS],
            input=b"1,9,0,2\n" + bad.encode(errors="surrogateescape") + b"\n0,0,0,0\n",
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (code, b"657\n")
        assert b"line 2" in done.stderr
        assert done.stderr.count(b"\n") == 1

    def test_a_line_without_end_is_refused(self):
        done = piped("head -c 3000000 /dev/zero | tr '\\0' 1 | relayout offset ab 2,3 -")
        assert done.returncode == 2
        assert "line 1: the line is longer than" in done.stderr

    def test_json_is_one_document(self):
        done = shell(*self.WORDS, "--json", input="1,9,0,2\n\n0,0,0,0\n")
        assert '"offset": 657' in done.stdout


class TestWhatIsOnStandardInput:
    @pytest.mark.parametrize("given", ["<html>404", "", "{}"])
    def test_nothing_that_is_known(self, given):
        done = shell("info", "-", input=given)
        assert (done.returncode, done.stdout) == (4, "")
        assert "--in-kind" in done.stderr
        assert ("empty" in done.stderr) == (given == "")

    def test_closed(self):
        done = piped("relayout info - <&-")
        assert done.returncode == 4
        assert "empty" in done.stderr

    def test_raw_bytes_if_it_is_said(self):
        assert "raw, 1 array, 3 bytes" in shell("info", "-", "--in-kind", "bin", input="abc").stdout
        words = ("convert", "-", "-", "--from", "a", "--dims", "4", "--in-dtype", "u8", "--out-kind", "npy")
        done = subprocess.run(
            [sys.executable, "-m", "relayout", *words], input=b"abcd", capture_output=True, check=True
        )
        assert np.load(io.BytesIO(done.stdout)).tolist() == list(b"abcd")


class TestExitCodes:
    def test_what_may_not_be_read_is_no_misuse(self, tmp_path, monkeypatch):
        """Whether a file can be read shows when it is opened, and not before."""
        np.save(tmp_path / "x.npy", counting((2, 3)))
        monkeypatch.setattr(os, "access", lambda *_, **__: False)
        assert "2x3" in call("info", tmp_path / "x.npy")
        call("convert", tmp_path / "x.npy", tmp_path / "y.npy")
        call("convert", tmp_path / "x.npy", tmp_path / "y.npy", "--force")
        refused("run", "resnet50", "--weights", tmp_path, code=5)

    def test_axes_that_do_not_correspond(self, tmp_path):
        np.save(tmp_path / "tnc.npy", counting((2, 3, 4)))
        words = ("convert", tmp_path / "tnc.npy", tmp_path / "q.npy", "--from", "tnc", "--to", "nwc")
        one = refused(*words, code=4)
        two = refused("diff", "tnc", "nwc", "2,3,4", code=4)
        for line in (one, two):
            assert "--axes position" in line
        call(*words, "--axes", "position")

    @pytest.mark.parametrize("name", ["z.xyz", "z"])
    def test_a_kind_of_file_that_is_not_known_is_misuse(self, tmp_path, name):
        np.save(tmp_path / "x.npy", counting((2, 3)))
        assert "kinds of files" in refused("convert", tmp_path / "x.npy", tmp_path / name, code=2)
        assert "kinds of files" in refused("convert", tmp_path / name, tmp_path / "x.npy", code=2)
        assert "kinds of files" in refused("info", tmp_path / name, code=2)

    def test_terminated(self, tmp_path):
        reading, writing = os.pipe()
        with subprocess.Popen(
            [sys.executable, "-m", "relayout", "convert", "-", tmp_path / "x.npy"],
            stdin=reading,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        ) as process:
            os.write(writing, b"\x93NUMPY" + bytes(100))
            while not list(tmp_path.iterdir()) and process.poll() is None:
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        os.close(reading)
        os.close(writing)
        assert list(tmp_path.iterdir()) == []

    def test_of_diff_holds_though_the_reader_left(self):
        done = piped("set -o pipefail; relayout diff nchw nhwc 1,3,40,40 --limit 100000 | head -1; echo $?")
        assert done.stdout.splitlines()[-1] == "1"
        assert done.stderr == ""
        done = piped("set -o pipefail; relayout diff nchw nhwc 1,3,40,40 --json | true; echo $?")
        assert (done.stdout, done.stderr) == ("1\n", "")


class TestReports:
    def test_the_descriptor_of_a_link_is_beside_its_target(self, tmp_path):
        np.save(tmp_path / "x.npy", counting((1, 8, 2, 2)))
        (tmp_path / "tgt.npy").write_bytes(b"")
        (tmp_path / "link.npy").symlink_to("tgt.npy")
        words = (tmp_path / "x.npy", tmp_path / "link.npy", "--from", "nchw", "--to", "nChw8c", "--force")
        said = call("convert", *words)
        assert "tgt.npy.layout.json" in said
        assert "link.npy.layout.json" not in said

    def test_pillow_is_asked_for_by_its_own_name(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        assert "pip install pillow" in refused("info", tmp_path / "x.png", code=3)


class TestWhatADataTypeAppliesTo:
    @pytest.fixture
    def model(self, tmp_path):
        path = tmp_path / "bn.npz"
        np.savez(
            path,
            weight=np.ones(3, np.float32),
            num_batches_tracked=np.int64(100001),
            mask=np.array([True, False]),
        )
        return path

    def test_a_pattern_leaves_integers_and_truth_values(self, model, tmp_path):
        out = tmp_path / "o.safetensors"
        said = call("convert", model, out, "--name", "*", "--dtype", "f16")
        found = {a.name: a.dtype for a in files.info(out).arrays}
        assert found == {"weight": "f16", "num_batches_tracked": "s64", "mask": "BOOL"}
        assert "num_batches_tracked  s64" in said
        assert "mask  BOOL" in said
        assert "1 converted, 2 copied unchanged" in said
        assert files.read(out, name="num_batches_tracked").numpy() == 100001

    def test_a_name_means_it(self, model, tmp_path):
        out = tmp_path / "o.safetensors"
        words = ("--name", "*", "--name", "num_batches_tracked", "--dtype", "f32")
        call("convert", model, out, *words)
        assert files.read(out, name="num_batches_tracked").numpy() == 100001.0
        assert "BOOL" in refused("convert", model, tmp_path / "p.npz", "--name", "mask", code=4)

    def test_scales_say_how_integers_become_floats(self, tmp_path):
        np.savez(tmp_path / "x.npz", a=np.full(3, 255, np.uint8))
        words = ("--name", "*", "--dtype", "f32", "--src-scale", "1/255")
        call("convert", tmp_path / "x.npz", tmp_path / "o.npz", *words)
        assert np.load(tmp_path / "o.npz")["a"].tolist() == [1, 1, 1]

    def test_a_pattern_of_nothing_else_is_refused(self, model, tmp_path):
        words = ("convert", model, tmp_path / "o.npz", "--name", "num*", "--dtype", "f16")
        assert "by its name" in refused(*words, code=4)

    def test_in_a_program(self, model, tmp_path):
        made = files.convert_arrays(model, tmp_path / "o.safetensors", names=["*"], dtype="f16")
        assert sorted(a.dtype for a in made.arrays) == ["BOOL", "f16", "s64"]


class TestPictures:
    @pytest.fixture(autouse=True)
    def pillow(self):
        pytest.importorskip("PIL")

    @pytest.mark.parametrize("dtype", ["s32", "f32"])
    def test_what_would_saturate_is_asked_for(self, tmp_path, dtype):
        files.write(tmp_path / "x.npy", made((1, 3, 4, 4), "nchw", dtype))
        words = ("convert", tmp_path / "x.npy", tmp_path / "x.png", "--from", "nchw")
        line = refused(*words, code=4)
        assert "--dtype u8" in line
        assert "--src-scale" in line
        call(*words, "--dtype", "u8")
        call(*words, "--src-scale", "0.5", "--force")
        with pytest.raises(rl.LayoutError, match="u8"):
            files.convert(tmp_path / "x.npy", tmp_path / "y.png", src_format="nchw")
        files.convert(tmp_path / "x.npy", tmp_path / "y.png", src_format="nchw", dst_scale=2.0)

    def test_sixteen_bits(self, tmp_path):
        image = pytest.importorskip("PIL.Image")
        image.fromarray(np.full((4, 4), 25000, np.uint16)).save(tmp_path / "g.png")
        refused("convert", tmp_path / "g.png", tmp_path / "o.png", code=4)
        call("convert", tmp_path / "g.png", tmp_path / "o.png", "--src-scale", "1/257")
        assert files.read(tmp_path / "o.png").numpy()[0, 0, 0, 0] == 97

    def test_bytes_need_nothing(self, tmp_path):
        files.write(tmp_path / "x.npy", made((1, 3, 4, 4), "nhwc", "u8"))
        call("convert", tmp_path / "x.npy", tmp_path / "x.png")


class TestInfo:
    def test_long_names_keep_their_ends_and_their_sizes(self, tmp_path, monkeypatch):
        """On a narrow terminal a name is wrapped; dims and dtype stay whole."""
        from relayout.cli.console import console_for

        long = ["model.decoder.layers." + "x" * 60 + f".{k}.weight" for k in range(2)]
        np.savez(tmp_path / "x.npz", **{name: counting((2, 3, 4, 5)) for name in long})
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdout", out)
        console = console_for()
        console.width = 80
        monkeypatch.setattr("relayout.cli.console.console_for", lambda *_: console)
        from relayout.cli.info import _print
        from relayout.cli.options import Output

        _print(files.info(tmp_path / "x.npz"), "x.npz", Output())
        text = out.getvalue()
        assert "\N{HORIZONTAL ELLIPSIS}" not in text
        assert max(map(len, text.splitlines())) <= 80
        assert text.count("2x3x4x5") == text.count("f32") == 2
        left = "".join(line.split(" ")[0] for line in text.splitlines()[3:])
        assert left == "".join(long)

    def test_a_descriptor_that_contradicts_its_array(self, tmp_path):
        files.write(tmp_path / "x.npy", made((2, 8, 4, 4), "nChw8c"))
        np.save(tmp_path / "x.npy", counting((2, 8, 4, 4)))
        assert "out of date" in refused("info", tmp_path / "x.npy", code=4)


class TestMessages:
    def test_standard_input_is_called_so(self):
        done = subprocess.run(
            [sys.executable, "-m", "relayout", "info", "-"],
            input=b"\x93NUMPY\x01\x00\xff\xff{",
            capture_output=True,
            check=False,
        )
        assert done.returncode == 4
        assert b"standard input is no npy file" in done.stderr
        done = shell("info", "-", "--in-kind", "safetensors", input="abc")
        assert done.stderr.startswith("relayout: error: standard input is no safetensors file")

    def test_an_empty_picture(self, tmp_path):
        pytest.importorskip("PIL")
        (tmp_path / "x.png").write_bytes(b"")
        line = refused("info", tmp_path / "x.png", code=4)
        assert "no png or jpeg" in line
        assert "BufferedReader" not in line

    def test_checkpoints_that_hold_more_or_less(self, tmp_path):
        torch = pytest.importorskip("torch")
        torch.save(torch.nn.Linear(2, 3), tmp_path / "whole.pt")
        line = refused("info", tmp_path / "whole.pt", code=4)
        assert "torch.nn.modules.linear.Linear" in line
        assert "state_dict()" in line
        torch.save({"w": torch.ones(100, 100)}, tmp_path / "x.pt")
        (tmp_path / "cut.pt").write_bytes((tmp_path / "x.pt").read_bytes()[:5000])
        for advice in ("weights_only", "Errno", "\x1b", "two options"):
            assert advice not in line
            assert advice not in refused("info", tmp_path / "cut.pt", code=4)
        assert "damaged or truncated" in refused("info", tmp_path / "cut.pt", code=4)

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
    def test_a_full_disk_has_a_name(self, tmp_path):
        np.save(tmp_path / "x.npy", counting((2, 3)))
        done = piped(f"relayout info {tmp_path}/x.npy --json=/dev/full")
        assert (done.returncode, done.stderr.startswith("relayout: error: /dev/full: ")) == (5, True)
        done = piped(f"relayout info {tmp_path}/x.npy > /dev/full")
        assert (done.returncode, "standard output: " in done.stderr) == (5, True)

    def test_negative_indices(self):
        assert "negative" in refused("offset", "nchw", "2,3,4,5", "-1,0,0,0", code=2)

    def test_a_search_that_finds_nothing_says_what_reads_names(self):
        assert "relayout translate" in refused("formats", "--search", "fsv24", code=1)


class TestOptionsThatWouldDoNothing:
    @pytest.mark.parametrize(
        ("words", "message"),
        [(("--name", "foo"), "--name"), (("--axis", "q"), "--axis"), (("--axis", "0"), "none")],
    )
    def test_are_refused(self, tmp_path, words, message):
        np.save(tmp_path / "x.npy", counting((2, 3)))
        assert message in refused("convert", tmp_path / "x.npy", tmp_path / "y.npy", *words, code=2)
        assert not (tmp_path / "y.npy").exists()

    def test_a_link_to_itself_is_no_free_name(self, tmp_path):
        np.save(tmp_path / "x.npy", counting((2, 3)))
        (tmp_path / "y.npy").symlink_to("y.npy")
        refused("convert", tmp_path / "x.npy", tmp_path / "y.npy", code=5)
        assert (tmp_path / "y.npy").is_symlink()


class TestPipes:
    def test_numpy_gets_arrays_that_are_only_permuted(self, tmp_path):
        array = counting((2, 3, 4, 5))
        np.save(tmp_path / "x.npy", array)
        words = ("convert", tmp_path / "x.npy", "-", "--from", "nchw", "--to", "nhwc")
        command = [sys.executable, "-m", "relayout", *words]
        done = subprocess.run(command, capture_output=True, check=True)
        assert np.array_equal(np.load(io.BytesIO(done.stdout)), array.transpose(0, 2, 3, 1))
        assert b"note: the array [2, 4, 5, 3] is in nhwc" in done.stderr
        assert subprocess.run([*command, "-q"], capture_output=True, check=True).stderr == b""

    def test_a_picture_that_becomes_something_else_is_an_array(self, tmp_path):
        pytest.importorskip("PIL")
        files.write(tmp_path / "x.png", made((1, 3, 4, 5), "nhwc", "u8"))
        command = [sys.executable, "-m", "relayout", "convert", "-", "-", "--to", "nchw"]
        given = (tmp_path / "x.png").read_bytes()
        done = subprocess.run(command, input=given, capture_output=True, check=True)
        assert np.load(io.BytesIO(done.stdout)).shape == (1, 3, 4, 5)


def test_convert_and_info_call_a_format_by_one_name(tmp_path):
    np.save(tmp_path / "w.npy", counting((8, 8, 3, 3)))
    said = call("convert", tmp_path / "w.npy", tmp_path / "o.npy", "--from", "oihw", "--to", "OHWIo4")
    (array,) = files.info(tmp_path / "o.npy").arrays
    assert f"f32:{array.format}:8x8x3x3" in said


def test_a_report_names_no_file_that_is_gone(tmp_path):
    np.save(tmp_path / "x.npy", counting((2, 3)))
    words = ("convert", tmp_path / "x.npy", "-", "--out-kind", "bin", "--json", tmp_path / "told.json")
    command = [sys.executable, "-m", "relayout", *words]
    assert len(subprocess.run(command, capture_output=True, check=True).stdout) == 24
    assert '"descriptor": null' in (tmp_path / "told.json").read_text()
