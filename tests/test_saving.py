"""Runs in files: the same results as before, in another process too; and files that nobody should believe."""

from __future__ import annotations

import importlib
import json
import os
import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout.errors import LayoutError
from relayout.graph import Graph, Node, Value
from relayout.graph.plain import MAGIC, Reading, Writing
from relayout.graph.saving import ALIGNED, BEGIN, load
from relayout.jit.cache import digest
from relayout.primitives import Eltwise, Reorder, plain
from relayout.primitives.plain import remade
from strategies import examples

F32 = np.dtype("f4")


def weights(*dims):
    rng = np.random.default_rng(len(dims))
    return (rng.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))).astype(F32)


def images():
    """Convolutions with a concatenation, a pooling, an operator without a kernel, and a product behind."""
    nodes = (
        Node("Conv", ("x", "w0", "b0"), ("a",), {"pads": (1, 1, 1, 1)}),
        Node("Relu", ("a",), ("b",)),
        Node("Conv", ("b", "w1"), ("c",), {"group": 8, "pads": (1, 1, 1, 1)}),
        Node("Concat", ("b", "c"), ("d",), {"axis": 1}),
        Node("MaxPool", ("d",), ("e",), {"kernel_shape": (2, 2), "strides": (2, 2)}),
        Node("Hardmax", ("e",), ("f",), {"axis": 1}),
        Node("GlobalAveragePool", ("f",), ("g",)),
        Node("Flatten", ("g",), ("h",), {"axis": 1}),
        Node("Gemm", ("h", "w2"), ("i",)),
        Node("Softmax", ("i",), ("y",)),
    )
    constants = {
        "w0": weights(8, 3, 3, 3),
        "b0": weights(8),
        "w1": weights(8, 1, 3, 3),
        "w2": weights(16, 5),
    }
    return Graph((Value("x", (2, 3, 12, 10), F32),), ("y", "b"), nodes, constants)


def texts():
    """Rows of a table, normalised, compared, and what only data decide behind."""
    nodes = (
        Node("Gather", ("table", "ids"), ("a",)),
        Node("LayerNormalization", ("a", "one", "zero"), ("b",), {"axis": -1}),
        Node("MatMul", ("b", "w"), ("c",)),
        Node("Erf", ("c",), ("d",)),
        Node("Greater", ("d", "zero"), ("e",)),
        Node("NonZero", ("e",), ("found",)),
    )
    constants = {
        "table": weights(20, 16),
        "one": np.ones(16, F32),
        "zero": np.zeros(16, F32),
        "w": weights(16, 16),
    }
    return Graph((Value("ids", (3, 7), np.dtype("i8")),), ("d", "found"), nodes, constants)


def scalars():
    nodes = (Node("Add", ("x", "x"), ("y",)), Node("Identity", ("x",), ("z",)))
    return Graph((Value("x", (), F32),), ("y", "z", "k"), nodes, {"k": np.array([True, False])})


def empty():
    nodes = (Node("Relu", ("x",), ("r",)), Node("Concat", ("r", "x"), ("y",), {"axis": 0}))
    return Graph((Value("x", (0, 4), F32),), ("y",), nodes)


GRAPHS = {"images": images, "texts": texts, "scalars": scalars, "empty": empty}


def arrays(graph):
    generator = np.random.default_rng(3)
    return [
        generator.integers(0, 5, value.dims).astype(value.dtype)
        if value.dtype.kind == "i"
        else generator.standard_normal(value.dims).astype(value.dtype)
        for value in graph.inputs
    ]


@pytest.fixture
def saved(tmp_path):
    """The file of a network with everything in it."""
    path = tmp_path / "images.relayout"
    images().compile().save(path)
    return path


# -- round trips --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("threads", [None, 1])
def test_what_is_loaded_computes_the_same(name, threads, tmp_path):
    graph, path = GRAPHS[name](), tmp_path / "run.relayout"
    run = graph.compile(threads=threads)
    run.save(path)
    other = rl.load(path)
    given_ = arrays(graph)
    for one, two in zip(run(*given_), other(*given_), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.dtype == two.dtype
    for one, two in zip(other(*given_), graph.evaluate(*given_), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    assert (str(other), other.why, other.note, other.memory) == (str(run), run.why, "", run.memory)
    assert other.plan is None


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_loaded_can_be_saved_again(name, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    GRAPHS[name]().compile().save(first)
    rl.load(first).save(second)
    assert first.read_bytes() == second.read_bytes()


def test_layers_tell_the_same(saved):
    run = images().compile()
    own, loaded = run.profile(*arrays(images())), rl.load(saved).profile(*arrays(images()))
    assert [(one.name, one.kind, one.implementation, one.descs) for one in own] == [
        (one.name, one.kind, one.implementation, one.descs) for one in loaded
    ]


def test_a_loaded_run_can_be_tuned_and_copied(saved):
    run = rl.load(saved)
    before = run(*arrays(images()))
    run.tune()
    np.testing.assert_allclose(run(*arrays(images()))[0], before[0], rtol=1e-5)


def test_inputs_are_checked_as_before(saved):
    with pytest.raises(LayoutError, match="the network's input is x f32 2x3x12x10"):
        rl.load(saved)(np.zeros((2, 3, 12, 11), F32))


def test_a_file_that_is_in_use_can_be_replaced(saved):
    run = rl.load(saved)
    before = run(*arrays(images()))
    scalars().compile().save(saved)
    np.testing.assert_array_equal(run(*arrays(images()))[0], before[0])
    assert len(rl.load(saved).outputs) == 3


def test_sizes_must_be_known(tmp_path):
    x = Value("x", ("n", 3), F32)
    run = Graph((x,), ("y",), (Node("Relu", ("x",), ("y",)),)).compile()
    with pytest.raises(LayoutError, match=r"the input x f32 nx3 has no memory format; give them to compile"):
        run.save(tmp_path / "run")
    given_ = np.ones((2, 3), F32)
    run.at(given_).save(tmp_path / "run")
    np.testing.assert_array_equal(rl.load(tmp_path / "run")(given_)[0], given_)


def test_what_runs_by_definition_alone(tmp_path):
    nodes = (Node("StringConcat", ("x", "behind"), ("y",)),)
    graph = Graph((Value("x", (2,), np.dtype(object)),), ("y",), nodes, {"behind": np.array(["b"], object)})
    graph.compile().at(np.array(["a", "c"], object)).save(tmp_path / "run")
    found = rl.load(tmp_path / "run")
    assert found.steps is None
    assert found(np.array(["a", "c"], object))[0].tolist() == ["ab", "cb"]


def test_another_process_loads_without_llvm_onnx_and_plans(saved, tmp_path):
    given_, made = tmp_path / "given.npy", tmp_path / "made.npy"
    np.save(given_, arrays(images())[0])
    code = f"""
import sys
import numpy as np
import relayout as rl
run = rl.load({str(saved)!r})
np.save({str(made)!r}, run(np.load({str(given_)!r}))[0])
unwanted = "llvmlite", "onnx", "relayout.graph.plan", "relayout.graph.passes"
print(sorted(name for name in sys.modules if name in unwanted))
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stderr == ""
    if os.environ.get("RELAYOUT_CACHE") != "off" and sys.platform == "linux":
        assert done.stdout == "[]\n"
    np.testing.assert_array_equal(np.load(made), images().compile()(*arrays(images()))[0])


def test_weights_are_mapped_and_not_packed(saved, monkeypatch):
    run = rl.load(saved)
    for data in run.steps._schedule.constants.values():
        assert not data.flags.writeable
        assert data.ctypes.data % ALIGNED == 0


# -- primitives as text -------------------------------------------------------------------------------------


def test_primitives_say_what_they_were_made_of():
    desc = rl.MemoryDesc((2, 3, 4, 5), "f32", "nChw8c")
    for made in (
        Eltwise(desc, "clip", alpha=-float("inf"), beta=2),
        Reorder(desc, rl.MemoryDesc(desc.dims, "bf16", "nhwc")),
    ):
        data = json.loads(json.dumps(plain.plain(made)))
        again = remade(data)
        assert again.descs == made.descs
        assert plain.plain(again) == plain.plain(made)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["Sequence", {}], "no primitive 'Sequence'"),
        (["__import__", {}], "no primitive '__import__'"),
        (["Eltwise", {}], "Eltwise can't be made"),
        (["Eltwise", {"src": {"desc": "f32:ab:2x2"}, "algorithm": "system"}], "system"),
        (["Eltwise", {"src": {"desc": "f32:ab:2x2"}, "wrong": 1, "algorithm": "relu"}], "wrong"),
        (["Eltwise", {"src": {"code": "1"}, "algorithm": "relu"}], "an argument of a primitive is damaged"),
        (["Eltwise", {"src": {"desc": "f32:ab:2x"}, "algorithm": "relu"}], "2x"),
        ("Eltwise", "a primitive is a kind and its arguments"),
        ([["Eltwise"], {}], "no primitive"),
    ],
)
def test_what_is_no_primitive(data, message):
    with pytest.raises(LayoutError, match=message):
        remade(data)


# -- graphs as plain data -----------------------------------------------------------------------------------


def test_attributes_come_back():
    inner = Graph((Value("i", None, None),), ("o",), (Node("Neg", ("i",), ("o",), name="n"),), name="body")
    values = {
        "numbers": (1, 2.5, -3, True),
        "text": "a",
        "nothing": None,
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "number": np.float64(3),
        "texts": np.array([["a"], ["b"]], object),
        "type": np.dtype("u2"),
        "brain": rl.dtype("bf16").numpy,
        "graph": inner,
    }
    writing = Writing()
    data = json.loads(json.dumps(writing.data({k: v for k, v in values.items() if k != "brain"})))
    found = Reading(writing.arrays).data(data)
    assert found["numbers"] == values["numbers"]
    assert found["text"] == "a"
    assert found["nothing"] is None
    np.testing.assert_array_equal(found["array"], values["array"])
    assert found["array"].dtype == np.int16
    assert found["number"] == 3
    assert found["texts"].tolist() == [["a"], ["b"]]
    assert found["type"] == np.dtype("u2")
    assert str(found["graph"]) == str(inner)
    assert found["graph"].inputs == inner.inputs


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), np.zeros(2, "M8[s]"), b"bytes"])
def test_what_has_no_plain_data(value):
    with pytest.raises(LayoutError):
        Writing().data(value)


# -- files that nobody should believe -----------------------------------------------------------------------


def parts(path):
    """The header of a file as data, and the bytes behind it."""
    data = path.read_bytes()
    length = BEGIN.unpack(data[: BEGIN.size])[2]
    end = BEGIN.size + length
    return json.loads(data[BEGIN.size : end]), data[-(-end // ALIGNED) * ALIGNED :]


def written(path, document, rest, version=None):
    """A file whose digest is right."""
    header = json.dumps(document).encode()
    begin = BEGIN.pack(MAGIC, version or b" 1  ", len(header), digest(header))
    path.write_bytes(begin + header + bytes(-len(header) % ALIGNED) + rest)
    return path


def refused(path, match=None):
    with pytest.raises(LayoutError, match=match) as error:
        load(path)
    assert "\n" not in str(error.value)
    return error


def test_other_versions_are_named(saved):
    document, rest = parts(saved)
    refused(written(saved, document, rest, b" 2  "), "the run is of version 2 of the format")


def test_another_processor_is_told(saved):
    document, rest = parts(saved)
    document["processor"] = "a machine of another kind"
    run = rl.load(written(saved, document, rest))
    assert "another processor (a machine of another kind)" in run.note
    np.testing.assert_array_equal(run(*arrays(images()))[0], images().compile()(*arrays(images()))[0])


def test_damaged_bytes_of_the_header(saved):
    data = bytearray(saved.read_bytes())
    data[BEGIN.size + 100] ^= 4
    saved.write_bytes(data)
    refused(saved, "the header is damaged")


@pytest.mark.parametrize("size", [0, 5, 12, 63, 64, 100, -1, -64, -1000])
def test_truncated_files(saved, size):
    data = saved.read_bytes()
    saved.write_bytes(data[:size])
    refused(saved)


def test_longer_files(saved):
    saved.write_bytes(saved.read_bytes() + bytes(64))
    refused(saved, "the arrays end at byte")


def test_a_length_that_is_too_large(saved):
    data = bytearray(saved.read_bytes())
    data[16:24] = struct.pack("<Q", 1 << 62)
    saved.write_bytes(data)
    refused(saved, "truncated")


def steps_of(document):
    return json.loads(document["compiled"]["steps"])


def with_steps(document, steps):
    document["compiled"]["steps"] = json.dumps(steps)
    return document


def replaced(path, change):
    """The file with other steps."""
    document, rest = parts(path)
    steps = steps_of(document)
    change(steps)
    return written(path, with_steps(document, steps), rest)


def larger(steps):
    """A convolution of more channels than there are."""
    steps["steps"] = json.loads(json.dumps(steps["steps"]).replace("x12x10", "x120x100"))


def constant_written(steps):
    place = next(iter(steps["steps"][0][2].values()))
    steps["storages"][place] = ["constant", 0]
    steps["steps"][0][2] = dict.fromkeys(steps["steps"][0][2], place)


def other_constant(steps):
    least = steps["constants"].index(min(steps["constants"]))
    steps["storages"] = [
        [where, least] if where == "constant" else [where, k] for where, k in steps["storages"]
    ]


@pytest.mark.parametrize(
    "change",
    [
        larger,
        constant_written,
        other_constant,
        lambda steps: steps["storages"].__setitem__(0, ["input", 7]),
        lambda steps: steps["storages"].__setitem__(0, ["input", -1]),
        lambda steps: steps["storages"].__setitem__(0, ["nowhere", 0]),
        lambda steps: steps["storages"].__setitem__(0, ["input", True]),
        lambda steps: steps["steps"].pop(),
        lambda steps: steps["steps"][0][2].popitem(),
        lambda steps: steps["steps"][0][2].update(other=0),
        lambda steps: steps["steps"][0].__setitem__(3, {"dst": "nothing"}),
        lambda steps: steps["constants"].__setitem__(0, 1 << 40),
        lambda steps: steps["constants"].pop(),
        lambda steps: steps["inputs"].pop(),
        lambda steps: steps["inputs"][0].__setitem__(1, "f32:abcd:1x1x1x1"),
        lambda steps: steps["outputs"][0].__setitem__(1, "f32:ab:1x1"),
        lambda steps: steps.pop("storages"),
        lambda steps: steps.update(steps=7),
    ],
)
def test_steps_that_reach_where_nothing_is(saved, change):
    refused(replaced(saved, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("inputs"),
        lambda d: d.update(compiled=None),
        lambda d: d.update(sizes=[1 << 60]),
        lambda d: d.update(sizes=[-1]),
        lambda d: d.update(sizes=7),
        lambda d: d["outputs"].append(d["outputs"][0]),
        lambda d: d["compiled"].update(inputs=["other"]),
        lambda d: d["compiled"].update(outputs=[]),
        lambda d: d["compiled"].update(threads=-1),
        lambda d: d["compiled"].update(steps="{"),
        lambda d: d["compiled"].update(steps="[" * 100_000),
        lambda d: d.update(inputs=[["x", ["a" * 10, {}], "f32"]]),
        lambda d: d.update(inputs=[["x", [1], "no type"]]),
        lambda d: d.update(tail={"inputs": []}),
    ],
)
def test_headers_that_make_no_sense(saved, change):
    document, rest = parts(saved)
    change(document)
    refused(written(saved, document, rest))


@pytest.mark.parametrize(
    "function",
    [
        None,
        ["NoSuch", {"map": {}}, [], 1, [0]],
        ["CumSum", {"map": {}}, [0], 1, [5]],
        ["CumSum", {"map": {}}, [{"array": [99, "f32", [1]]}], 1, [0]],
        ["CumSum", {"map": {}}, [{"array": [0, "f32", [1 << 40]]}], 1, [0]],
        ["CumSum", {"map": {}}, [{"array": [0, "object", [1]]}], 1, [0]],
        [["CumSum"], {"map": {}}, [], 1, [0]],
    ],
)
def test_functions_that_are_none(saved, function):
    document, rest = parts(saved)
    ((k, _),) = document["compiled"]["functions"].items()
    document["compiled"]["functions"] = {} if function is None else {k: function}
    path = written(saved, document, rest)
    with pytest.raises(LayoutError):
        load(path)(*arrays(images()))


def damaged(data, draw):
    """Plain data with one place changed."""
    places = []

    def visit(one, way):
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, value in items:
            places.append((*way, key))
            visit(value, (*way, key))

    visit(data, ())
    *way, last = draw(st.sampled_from(places))
    inner = data
    for key in way:
        inner = inner[key]
    other = st.sampled_from(
        [None, -1, 0, 1, 7, 1 << 70, 2.5, "", "x", "f32:ab:3x3", [], {}, [[]], True, "any"]
    )
    inner[last] = draw(other)


@given(st.data())
@examples(150)
def test_any_damage_is_an_error_or_makes_no_difference_to_memory(tmp_path_factory, data):
    """What is refused is refused by one kind of error; what is not can be called, and answers or refuses."""
    path = tmp_path_factory.mktemp("fuzz") / "run"
    graph = images() if data.draw(st.booleans()) else texts()
    graph.compile().save(path)
    document, rest = parts(path)
    if data.draw(st.booleans()):
        steps = steps_of(document)
        damaged(steps, data.draw)
        document = with_steps(document, steps)
    else:
        damaged(document, data.draw)
    written(path, document, rest)
    with suppress(LayoutError):
        run = load(path)
        run(*arrays(graph))


@given(st.data())
@examples(60)
def test_any_damaged_bytes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "run"
    scalars().compile().save(path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        run = rl.load(path)
    except LayoutError:
        return
    run(np.float32(3))


def test_what_is_no_file_of_a_run(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")
    (tmp_path / "other").write_bytes(b"not a run" * 20)
    refused(tmp_path / "other", "this is no saved run")
    with pytest.raises(OSError):
        load(tmp_path)
    assert importlib.import_module("relayout.importers.loading")._is_run(tmp_path) is False
