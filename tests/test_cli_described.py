"""Tensors on the command line: descriptors as logs print them, and what letters mean."""

from __future__ import annotations

import json

import numpy as np
import pytest

import relayout as rl
from test_cli import call, refused

LOGGED = "src:f32:p:blocked:aBcd8b::f0"


class TestLoggedDescriptors:
    @pytest.mark.parametrize(
        "words",
        [
            [LOGGED, "1,17,2,2"],
            [f"{LOGGED}:1x17x2x2"],
            ["f32:p:blocked:aBcd8b::f0", "1", "17", "2", "2"],
            ["src_f32:p:blocked:aBcd8b:f0:1x17x2x2"],
            ["f32:nChw8c:1x17x2x2"],
        ],
        ids=" ".join,
    )
    def test_show_and_offset(self, words):
        told = json.loads(call("show", *words, "--json"))
        assert (told["dims"], told["dtype"], told["padded_dims"]) == ([1, 17, 2, 2], "f32", [1, 24, 2, 2])
        assert call("offset", *words, "0,9,1,0") == "49\n"
        assert call("offset", *words, *["0", "9", "1", "0"]) == "49\n"
        assert call("offset", *words, "--inverse", "49") == "0,9,1,0\n"

    def test_its_data_type_is_used(self):
        assert json.loads(call("show", "src:bf16::blocked:abcd::f0:1x2x3x4", "--json"))["bytes"] == 48
        assert "contradicts --dtype" in refused("show", f"{LOGGED}:1x17x2x2", "--dtype", "bf16")
        assert call("show", f"{LOGGED}:1x17x2x2", "--dtype", "float32")

    def test_its_strides_are_used(self):
        assert call("offset", "src:f32::blocked:ab:8x1:f0:4x5", "3,2") == "26\n"
        assert call("offset", "src:f32::blocked:ab:8x1:f0", "4,5", "3,2") == "26\n"
        assert "contradicts --strides" in refused(
            "offset", "src:f32::blocked:ab:8x1:f0:4x5", "3,2", "--strides", "9,1"
        )

    def test_as_a_format(self):
        assert call("translate", LOGGED, "--to", "tvm", "--as", "activations") == "NCHW8c\n"
        assert "strides" in refused("translate", "src:f32::blocked:ab:8x1:f0", code=3)

    def test_what_it_cannot_say(self):
        assert "give FORMAT DIMS" in refused("show", LOGGED)
        assert "wino" in refused("show", "wei_f32::wino:::f0", "1,2,3,4", code=3)
        assert "run time" in refused("show", "src:f32::blocked:*::f0", "1,2,3,4", code=3)
        assert "FORMAT DIMS" in refused("show", f"{LOGGED}:1x17x2x2", "1,17,2,2")

    def test_a_compensation_is_not_hidden(self):
        assert "f8:zpm2" in call("show", "wei_s8::blocked:BA16a64b4a:f8:zpm2", "64,64")
        assert "behind" not in call("show", "bia_f32::blocked:ab:f0_mask2", "1,64")


class TestConvert:
    """A descriptor says what a dump of raw bytes does not."""

    def test_a_dump_described_by_its_log(self, tmp_path):
        values = np.arange(60, dtype=np.float32).reshape(1, 3, 4, 5)
        dump = rl.tensor(values, "nhwc")
        (tmp_path / "dump.bin").write_bytes(bytes(dump.buffer))
        for logged in ("src:f32::blocked:acdb::f0:1x3x4x5", "f32:nhwc:1x3x4x5"):
            call(
                "convert", tmp_path / "dump.bin", tmp_path / "x.npy", "--from", logged,
                "--to", "abcd" if "acdb" in logged else "nchw", "--force",
            )  # fmt: skip
            assert np.array_equal(np.load(tmp_path / "x.npy"), values)

    def test_contradictions(self, tmp_path):
        (tmp_path / "dump.bin").write_bytes(bytes(240))
        words = ("convert", tmp_path / "dump.bin", tmp_path / "x.npy", "--from")
        logged = "src:f32::blocked:acdb::f0:1x3x4x5"
        assert "contradicts --in-dtype" in refused(*words, logged, "--in-dtype", "s8")
        assert "contradicts --dims" in refused(*words, logged, "--dims", "1,3,5,4")
        assert "strides" in refused(*words, "src:f32::blocked:ab:8x1:f0:4x5", code=3)


class TestMeaning:
    def test_letters_get_names_in_other_dialects(self):
        assert "no name in OpenVINO" in refused("translate", "aBcd16b", "--to", "openvino", code=3)
        assert call("translate", "aBcd16b", "--to", "openvino", "--as", "activations") == "b_fs_yx_fsv16\n"
        assert call("translate", "ABcd16b16a", "--to", "onednn", "--as", "weights") == "OIhw16i16o\n"
        assert call("translate", "abcde", "--to", "onednn", "--as", "grouped-weights") == "goihw\n"
        assert (
            call("translate", "aBx16b", "--rank", "5", "--as", "activations", "--to", "onednn")
            == "nCdhw16c\n"
        )

    def test_of_what_is_shown(self):
        said = call("show", "aBcd8b", "1,17,2,2", "--as", "activations")
        assert said.partition("\n")[2] == call("show", "nChw8c", "1,17,2,2").partition("\n")[2]
        assert "channel" in call("show", "4,5", "--strides", "8,1", "--as", "activations")
        assert "channel" in call("show", "src:f32::blocked:ab:8x1:f0:4x5", "--as", "activations")

    def test_what_has_a_meaning_keeps_it(self):
        assert call("translate", "nchw", "--to", "openvino", "--as", "activations") == "bfyx\n"
        assert "n, c, h, w already" in refused("translate", "nchw", "--as", "weights")
        assert "2 to 5" in refused("translate", "abcdefg", "--as", "weights")
        assert "2 to 5" in refused("show", "a", "3", "--as", "activations")
