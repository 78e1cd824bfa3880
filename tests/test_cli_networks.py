"""Models from the command line: ``run``, ``plan``, ``info``, ``optimize``, and which operators are known."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import relayout as rl
from test_cli import call, refused

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def write(path, nodes, inputs, outputs, constants=None, opset=17):
    """Write a model; inputs and outputs are (name, type, dims)."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(data, name) for name, data in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def weights(*dims):
    return np.random.default_rng(len(dims)).standard_normal(dims).astype(np.float32) / 8


@pytest.fixture
def images(tmp_path):
    """Two convolutions, a normalisation, a residual; transposes around a ReLU, as converters leave them."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"], "norm"),
        helper.make_node("Transpose", ["n"], ["t"], "there", perm=[0, 2, 3, 1]),
        helper.make_node("Relu", ["t"], ["r"], "relu"),
        helper.make_node("Transpose", ["r"], ["u"], "back", perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["u", "w2"], ["c"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "u"], ["y"], "sum"),
    ]
    ones = np.ones(16, np.float32)
    constants = {"w1": weights(16, 3, 3, 3), "w2": weights(16, 16, 3, 3), "s": 2 * ones, "b": ones, "m": ones}
    return write(
        tmp_path / "images.onnx",
        nodes,
        [("x", FLOAT, ["batch", 3, 12, 12])],
        [("y", FLOAT, ["batch", 16, 12, 12])],
        {**constants, "v": 3 * ones},
    )


@pytest.fixture
def words(tmp_path):
    """An embedding and a product: whole numbers of an open length come in."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], "embed"),
        helper.make_node("MatMul", ["e", "w"], ["y"], "project"),
    ]
    return write(
        tmp_path / "words.onnx",
        nodes,
        [("ids", INT64, ["batch", "length"])],
        [("y", FLOAT, ["batch", "length", 5])],
        {"table": weights(2, 8), "w": weights(8, 5)},
    )


def reference(path, **given):
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.load(path)).run(None, given)


class TestRun:
    def test_what_goes_in_and_comes_out(self, images):
        lines = call("run", images, "--batch", 2, "--repeat", 1, "--threads", 1).splitlines()
        assert lines[0].startswith(f"{images}: 7 nodes, loaded in ")
        assert lines[1].split() == ["input", "x", "f32", "2x3x12x12"]
        assert lines[2].split() == ["output", "y", "f32", "2x16x12x12"]
        assert lines[3].split()[:4] == ["format", "ms", "a", "run"]
        assert lines[4].split()[0] == "any"
        assert len(lines) == 5

    def test_formats_one_after_the_other_and_a_profile(self, images):
        words = ("--batch", 1, "--repeat", 1, "--format", "nhwc", "--format", "nchw", "--profile")
        lines = call("run", images, *words).splitlines()
        assert [line.split()[0] for line in lines[4:6]] == ["nhwc", "nchw"]
        heads = [k for k, line in enumerate(lines) if line.startswith("layer ")]
        assert len(heads) == 2
        shares = [float(line.split("%")[0].split()[-1]) for line in lines[heads[1] + 1 :] if "%" in line]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(100, abs=1)

    def test_inputs_that_there_are_not_are_named(self, images, tmp_path):
        assert "the model's inputs are x f32" in refused("run", images, "--batch", 2, "--input", "z=z.npy")

    def test_json(self, words, tmp_path):
        path = tmp_path / "run.json"
        call("run", words, "--batch", 3, "--dim", "length=4", "--repeat", 2, "--profile", "--json", path)
        made = json.loads(path.read_text())
        assert made["inputs"] == [{"name": "ids", "dims": [3, 4], "dtype": "s64"}]
        assert made["outputs"][0]["dims"] == [3, 4, 5]
        [found] = made["formats"]
        assert len(found["runs"]) == 2
        assert found["seconds"] > 0
        assert found["memory"]["constants"] >= 8 * 5 * 4
        assert {layer["name"] for layer in found["layers"]} >= {"project"}
        assert found["by_definition"] is None

    def test_inputs_from_files(self, words, tmp_path):
        np.save(tmp_path / "ids.npy", np.array([[1, 0, 1]]))
        for given in ("ids.npy", "ids=ids.npy"):
            name, _, path = given.rpartition("=")
            word = f"{name}={tmp_path / path}" if name else tmp_path / path
            assert "1x3x5" in call("run", words, "--input", word, "--dim", "length=3", "--batch", 1)

    def test_a_result_is_that_of_the_reference(self, images):
        import relayout as rl

        x = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)
        (made,) = rl.load(images).compile(batch=2)(x)
        (wanted,) = reference(images, x=x)
        np.testing.assert_allclose(made, wanted, atol=1e-4)

    def test_what_is_wrong_is_said(self, images, words, tmp_path):
        assert "No such file" in refused("run", tmp_path / "none.onnx", code=5)
        assert "there is no network 'none'" in refused("run", "none")
        line = refused("run", words)
        assert "--dim batch=N --dim length=N" in line
        assert "ids" in line
        assert "no dim and no input 'lenth'; there are batch, ids, length" in refused(
            "run", words, "--dim", "lenth=3", code=4
        )
        assert "NAME=N" in refused("run", words, "--dim", "length")
        assert "length=128" in refused("run", words, "--dim", "length=x")
        said = refused("run", images, "--batch", 2, "--dim", "batch=3", code=4)
        assert "--batch 2 and --dim give two first sizes of the input x f32 batchx3x12x12" in said
        assert "--size is for the networks" in refused("run", images, "--batch", 1, "--size", 3)
        assert "--input is for models" in refused("run", "resnet50", "--input", "x.npy")
        np.save(tmp_path / "x.npy", np.zeros((1, 3, 12, 13), np.float32))
        assert "x f32 1x3x12x12" in refused(
            "run", images, "--batch", 1, "--input", tmp_path / "x.npy", code=4
        )
        twice = ("--input", tmp_path / "x.npy")
        assert "the model's inputs are x" in refused("run", images, "--batch", 1, *twice, *twice)
        (tmp_path / "bad.onnx").write_bytes(b"\x08\x99no model")
        assert "bad.onnx" in refused("run", tmp_path / "bad.onnx", code=4)


class TestPlan:
    def test_formats_conversions_and_what_others_choose(self, images):
        text = call("plan", images, "--batch", 1)
        lines = text.splitlines()
        assert lines[0].startswith(f"{images}: ")
        assert lines[0].endswith("no plan costs less")
        names = [" ".join(line.split()[:2]) for line in lines[2:7]]
        assert names[0].startswith("chosen")
        assert names[1].startswith("greedy")
        assert names[2:] == ["nchw everywhere", "nhwc everywhere", "nChw16c everywhere"]
        assert max(map(len, lines[1:])) <= 80
        assert len(call("plan", images, "--batch", 1, "--all").splitlines()) >= len(lines)

    def test_json_adds_up(self, images):
        made = json.loads(call("plan", images, "--batch", 1, "--why", "--json"))
        spent = sum(node["cost"] for node in made["nodes"]) + sum(c["cost"] for c in made["conversions"])
        assert made["cost"] == pytest.approx(spent)
        assert made["exact"]
        assert made["cost"] <= min(one["cost"] for one in made["compared"].values()) + 1e-12
        assert all("why" in one for one in made["conversions"])

    def test_a_pin_is_obeyed(self, images):
        free = json.loads(call("plan", images, "--batch", 1, "--json"))
        inner = next(name for node in free["nodes"] for name in node["writes"] if name != "y")
        for pin in ("nhwc", "nchw"):
            made = json.loads(call("plan", images, "--batch", 1, "--pin", f"{inner}={pin}", "--json"))
            reads = [node["reads"][inner] for node in made["nodes"] if inner in node["reads"]]
            assert reads
            for desc in reads:  # of 16 channels, nChw16c has the bytes of nhwc
                _, tag, sizes = desc.split(":")
                dims = tuple(map(int, sizes.split("x")))
                assert rl.Layout(dims, tag).same_bytes(rl.Layout(dims, pin))
            assert made["cost"] >= free["cost"] - 1e-12

    def test_a_pin_that_can_not_be_names_what_there_is(self, images):
        line = refused("plan", images, "--batch", 1, "--pin", "nothing=nhwc", code=4)
        assert "no value 'nothing'" in line
        line = refused("plan", images, "--batch", 1, "--pin", "x=NCHW4", code=4)
        assert "'x' can't be pinned to NCHW4: it is read as " in line
        assert "nhwc" in line
        assert "VALUE=FORMAT" in refused("plan", images, "--pin", "x")

    def test_drawing_and_page(self, images, tmp_path):
        svg, html = tmp_path / "plan.svg", tmp_path / "plan.html"
        call("plan", images, "--batch", 1, "--svg", svg, "--html", html)
        drawn = ET.fromstring(svg.read_text())
        nodes = [one.get("data-node") for one in drawn.iter() if one.get("data-node")]
        planned = json.loads(call("plan", images, "--batch", 1, "--json"))
        assert nodes == ["x", *(node["name"] for node in planned["nodes"]), "y"]
        marked = [one.get("data-conversion") for one in drawn.iter() if one.get("data-conversion")]
        assert sorted(marked) == sorted(c["value"] for c in planned["conversions"])
        page = html.read_text()
        assert "<svg " in page
        assert "no plan costs less" in page
        written = [
            desc for node in planned["nodes"] for desc in (*node["reads"].values(), *node["writes"].values())
        ]
        assert all(node["format"] in page for node in planned["nodes"])
        for text in (*written, *(c[side] for c in planned["conversions"] for side in ("src", "dst"))):
            _, tag, dims = text.split(":")
            assert len(dims.split("x")) != 4 or tag.lower()[:4] in ("nchw", "nhwc", "nchw16c"), text

    def test_only_conversions_when_quiet(self, images):
        made = json.loads(call("plan", images, "--batch", 1, "--json"))
        lines = call("plan", images, "--batch", 1, "-q").splitlines()
        assert [line.split("\t")[0] for line in lines] == [one["value"] for one in made["conversions"]]


class TestInfo:
    def test_what_is_in_a_model(self, images):
        made = json.loads(call("info", images, "--batch", 2, "--json"))
        assert made["nodes"] == 7
        assert made["parameters"] == 16 * 27 + 16 * 144 + 4 * 16
        assert made["constant_bytes"] == 4 * made["parameters"]
        assert made["value_bytes"] == 2 * 4 * (16 + 16 + 16) * 144  # the sum, and what it adds
        assert made["multiply_adds"] == 2 * 144 * 16 * (27 + 144)
        assert {"operator": "Conv", "count": 2, "kernel": True} in made["operators"]
        assert made["outputs"][0]["dims"] == [2, 16, 12, 12]

    def test_open_sizes_stay_open(self, images):
        text = call("info", images)
        assert "x f32 batchx3x12x12" in text
        assert "open: give the sizes by --batch and --dim" in text
        assert call("info", images, "-q").splitlines()[0] == "2\tConv"
        assert "conv2" in call("info", images, "--batch", 1, "--layers")

    def test_options_of_models_are_for_models(self, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros(3))
        assert "for models" in refused("info", tmp_path / "x.npy", "--batch", 2)


class TestOperators:
    def test_what_is_known_and_what_has_kernels(self):
        made = json.loads(call("formats", "--operators", "--json"))["operators"]
        kernels = {one["operator"]: one["kernel"] for one in made}
        assert kernels["Conv"]
        assert not kernels["NonZero"]
        assert call("formats", "--operators", "--search", "transpose", "-q").splitlines() == [
            "ConvTranspose",
            "Transpose",
        ]
        assert "no operator" in refused("formats", "--operators", "--search", "nothing", code=1)
        assert "lists no formats" in refused("formats", "onednn", "--operators")


class TestOptimize:
    def test_same_results_with_less(self, images, tmp_path):
        target = tmp_path / "less.onnx"
        made = json.loads(call("optimize", images, target, "--json"))
        counts = {one["operator"]: (one["before"], one["after"]) for one in made["operators"]}
        assert counts["Transpose"] == (2, 0)
        assert counts["BatchNormalization"] == (1, 0)
        assert made["stayed"] == []
        before, after = onnx.load(images), onnx.load(target)
        for side in ("input", "output"):
            assert list(getattr(before.graph, side)) == list(getattr(after.graph, side))
        x = np.random.default_rng(0).standard_normal((3, 3, 12, 12)).astype(np.float32)
        for one, other in zip(reference(images, x=x), reference(target, x=x), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-4)

    def test_names_of_sizes_that_only_a_run_knows_are_kept(self, tmp_path):
        nodes = [helper.make_node("NonZero", ["x"], ["y"])]
        path = write(tmp_path / "a.onnx", nodes, [("x", FLOAT, [2, 3])], [("y", INT64, [2, "found"])])
        call("optimize", path, tmp_path / "b.onnx")
        assert onnx.load(tmp_path / "b.onnx").graph.output[0] == onnx.load(path).graph.output[0]
        assert "1 node runs by its definition" in call("run", path)

    def test_what_went_is_told(self, images, tmp_path):
        text = call("optimize", images, tmp_path / "less.onnx")
        assert "Transpose: 2 of 2 are gone, 0 stay" in text
        assert call("optimize", images, tmp_path / "less.onnx", "-q") == "4\n"

    def test_checked_by_another_runtime(self, images, tmp_path):
        pytest.importorskip("onnxruntime")
        assert "needed" not in refused("optimize", images, tmp_path / "y.onnx", "--check", code=2)
        text = call("optimize", images, tmp_path / "y.onnx", "--check", "--dim", "batch=2")
        assert "the same up to rounding" in text

    def test_errors(self, images, tmp_path):
        assert "one file" in refused("optimize", images, images)
        assert "versions 21 to" in refused("optimize", images, tmp_path / "y.onnx", "--opset", 9, code=4)
        assert not (tmp_path / "y.onnx").exists()


@pytest.mark.parametrize("command", ["info", "run", "plan", "optimize"])
def test_examples_of_the_help_pages_work(command, tmp_path, monkeypatch):
    """Those about model.onnx, with nothing but that file there."""
    import small_model

    monkeypatch.chdir(tmp_path)
    small_model.write(tmp_path / "model.onnx", batch=1)
    seen = 0
    for line in call(command, "--help").partition("Examples:")[2].splitlines():
        words = line.split()
        if words[:3] == ["relayout", command, "model.onnx"] and "photo.npy" not in words:
            call(*words[1:])
            seen += 1
    assert seen


def test_commands_of_networks_load_nothing_early():
    """Help is there at once: nothing of NumPy, onnx or the graphs is imported for it."""
    code = (
        "import sys\nfrom relayout.cli import application\n"
        "print([m for m in ('onnx', 'rich', 'relayout.graph', 'relayout.importers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class TestSave:
    def test_a_plan_is_saved_and_run(self, images, tmp_path):
        file = tmp_path / "images.relayout"
        assert f"written to {file}" in call("plan", images, "--batch", 1, "--save", file)
        text = call("run", file, "--repeat", 2, "--layers")
        assert "a saved run of" in text
        assert "saved" in text
        made = json.loads(call("run", file, "--repeat", 2, "--json"))
        assert [one["format"] for one in made["formats"]] == ["saved"]
        assert made["inputs"] == json.loads(call("run", images, "--batch", 1, "--json"))["inputs"]

    def test_what_is_in_a_saved_run(self, images, tmp_path):
        file = tmp_path / "images.relayout"
        call("plan", images, "--batch", 2, "--save", file)
        text = call("info", file)
        assert "x f32 2x3x12x12" in text
        assert "y f32 2x16x12x12" in text
        made = json.loads(call("info", file, "--json"))
        assert len(call("info", file, "--layers").splitlines()) == len(text.splitlines()) + 2 + len(
            made["steps"]
        )
        assert call("info", file, "--quiet").split() == [step["name"] for step in made["steps"]]
        assert (made["constant_bytes"], made["value_bytes"]) == rl.load(file).memory[:2]
        assert "--batch can't change them" in " ".join(refused("info", file, "--batch", 2).split())

    def test_what_is_decided_cant_be_changed(self, images, tmp_path):
        file = tmp_path / "images.relayout"
        call("plan", images, "--batch", 1, "--save", file)
        for option in (("--batch", 2), ("--format", "nhwc"), ("--threads", 1), ("--dim", "n=2")):
            assert f"{option[0]} can't change them" in " ".join(refused("run", file, *option).split())
        for command in ("plan", "optimize"):
            others = (tmp_path / "out.onnx",) if command == "optimize" else ()
            assert "is a saved run" in refused(command, file, *others, code=4)
