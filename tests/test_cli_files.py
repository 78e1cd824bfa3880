"""``relayout info``, and ``relayout convert`` of many arrays and by way of standard streams."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest

import relayout as rl
from relayout import files
from test_cli import call, refused
from test_files import counting, made
from test_files_several import checkpoint, content, names


@pytest.fixture(params=[".npz", ".safetensors"])
def several(request, tmp_path):
    return checkpoint(tmp_path / f"in{request.param}", packed=made((1, 17, 2, 2), "nChw8c"))


class TestInfo:
    def test_table(self, several):
        lines = call("info", several).splitlines()
        assert lines[0].endswith(f"{several.suffix[1:]}, 5 arrays, {files.info(several).nbytes} bytes")
        assert lines[2].split() == ["name", "dims", "dtype", "bytes", "format"]
        assert ["packed", "1x17x2x2", "f32", "384", "nChw8c"] in [line.split() for line in lines]

    def test_json(self, several):
        told = json.loads(call("info", several, "--json"))
        assert told["bytes"] == sum(array["bytes"] for array in told["arrays"])
        assert [array["name"] for array in told["arrays"]] == names(several)
        assert told["file"] == str(several)
        (packed,) = (array for array in told["arrays"] if array["name"] == "packed")
        assert files.descriptor_from_json(packed["descriptor"]).format == rl.Format("nChw8c")

    def test_quiet(self, several):
        assert call("info", several, "--quiet").split() == names(several)

    def test_names_that_could_fool_a_terminal(self, tmp_path):
        files.write(tmp_path / "x.safetensors", rl.tensor(counting((3,))), name="\x1b[2J\nw")
        assert "\\x1b[2J\\nw" in call("info", tmp_path / "x.safetensors")

    def test_standard_input(self, several):
        command = [sys.executable, "-m", "relayout", "info", "-", "-q"]
        done = subprocess.run(command, input=several.read_bytes(), capture_output=True, check=True)
        assert done.stdout.decode().split() == names(several)

    def test_refusals(self, tmp_path):
        (tmp_path / "x.npy").write_bytes(b"nothing")
        assert "no npy file" in refused("info", tmp_path / "x.npy", code=4)
        assert "kinds of files" in refused("info", tmp_path / "x.txt", code=2)
        assert "missing.npz" in refused("info", tmp_path / "missing.npz", code=5)

    def test_pytorch_is_not_installed(self, tmp_path, monkeypatch):
        (tmp_path / "x.pt").write_bytes(b"PK\3\4")
        monkeypatch.setitem(sys.modules, "torch", None)
        assert "pip install torch" in refused("info", tmp_path / "x.pt", code=3)


class TestManyArrays:
    def test_patterns(self, several, tmp_path):
        out = tmp_path / "out.safetensors"
        words = ("--name", "layer1.*", "--name", "*.weight", "--dtype", "bf16")
        said = call("convert", several, out, *words)
        assert said.splitlines()[-1].endswith("3 converted, 2 copied unchanged")
        before, after = content(several), content(out)
        assert all(np.array_equal(before[name], after[name]) for name in before)
        assert {a.name for a in files.info(out).arrays if a.dtype == "bf16"} == {
            "layer1.weight", "layer1.bias", "layer2.weight",
        }  # fmt: skip

    def test_json(self, several, tmp_path):
        told = json.loads(
            call("convert", several, tmp_path / "o.npz", "--name", "*bias", "--dtype", "f64", "--json")
        )
        assert sorted(each["name"] for each in told["converted"]) == ["layer1.bias", "layer2.bias"]
        assert told["converted"][0]["to"]["dtype"] == "f64"
        assert sorted(told["copied"]) == ["layer1.weight", "layer2.weight", "packed"]

    def test_only(self, several, tmp_path):
        call("convert", several, tmp_path / "o.npz", "--name", "packed", "--only", "--to", "nchw")
        assert names(tmp_path / "o.npz") == ["packed"]

    def test_axes_are_found_for_each_array(self, several, tmp_path):
        words = ("--name", "layer?.weight", "--from", "oihw", "--src-scale", ",".join(map(str, range(1, 21))))
        call("convert", several, tmp_path / "o.npz", *words)
        expected = content(several)["layer1.weight"] * np.arange(1, 21).reshape(20, 1, 1, 1)
        assert np.array_equal(content(tmp_path / "o.npz")["layer1.weight"], expected)

    def test_one_array_out_of_many(self, several, tmp_path):
        call("convert", several, tmp_path / "o.npy", "--name", "*1.bias")
        assert np.array_equal(np.load(tmp_path / "o.npy"), content(several)["layer1.bias"])
        line = refused("convert", several, tmp_path / "p.npy", "--name", "*bias", code=4)
        assert "2 arrays: layer1.bias, layer2.bias are named" in line

    def test_refusals(self, several, tmp_path):
        out = tmp_path / "o.npz"
        assert "name those to convert" in refused("convert", several, out, "--dtype", "f16", code=4)
        assert "no array matches" in refused("convert", several, out, "--name", "x*", code=4)
        assert not out.exists()

    def test_bf16_is_not_written_to_numpy_unless_told(self, tmp_path):
        files.write(tmp_path / "x.safetensors", made((4, 6), "ab", "bf16"))
        words = ("convert", tmp_path / "x.safetensors", tmp_path / "x.npy")
        assert "--dtype f32" in refused(*words, code=3)
        call(*words, "--dtype", "bf16")
        assert np.load(tmp_path / "x.npy").dtype.str == "|V2"

    def test_a_checkpoint_of_pytorch(self, tmp_path):
        torch = pytest.importorskip("torch")
        torch.save({"w": torch.ones(2, 3), "b": torch.zeros(2)}, tmp_path / "x.pt")
        call("convert", tmp_path / "x.pt", tmp_path / "x.safetensors", "--name", "w", "--dtype", "bf16")
        assert {a.name: a.dtype for a in files.info(tmp_path / "x.safetensors").arrays} == {
            "w": "bf16",
            "b": "f32",
        }
        line = refused("convert", tmp_path / "x.safetensors", tmp_path / "y.pt", code=3)
        assert "read only" in line


class TestStandardStreams:
    def run(self, *words, given=b"", code=0):
        command = [sys.executable, "-m", "relayout", "convert", *words]
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        return done

    def test_through(self):
        array = counting((2, 3, 4, 5))
        given = io.BytesIO()
        np.save(given, array)
        done = self.run(
            "-", "-", "--from", "nchw", "--to", "chwn", "--out-kind", "npz", given=given.getvalue()
        )
        assert np.array_equal(np.load(io.BytesIO(done.stdout))["arr_0"], array.transpose(1, 2, 3, 0))
        done = self.run("-", "-", "--dtype", "f64", given=given.getvalue())
        assert np.array_equal(np.load(io.BytesIO(done.stdout)), array)

    def test_a_descriptor_is_not_lost(self):
        given = io.BytesIO()
        np.save(given, counting((2, 3, 4, 5)))
        done = self.run("-", "-", "--from", "nchw", "--to", "nChw8c", given=given.getvalue(), code=3)
        assert done.stdout == b""
        assert b"--out-kind npz" in done.stderr

    def test_json_wants_it_too(self, tmp_path):
        np.save(tmp_path / "x.npy", counting((3,)))
        assert "both want standard output" in refused("convert", tmp_path / "x.npy", "-", "--json")
