"""Graphs written as ONNX models: they mean the same, to the package's own reference evaluator too."""

from __future__ import annotations

import numpy as np
import pytest

import relayout as rl
from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402

from relayout.exporters.onnx import OLDEST, export, save  # noqa: E402

F32 = np.dtype("float32")
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def graph(*nodes, constants=None, inputs=None, result="y", dtype=F32):
    inputs = (Value("x", (2, 3), F32),) if inputs is None else inputs
    values = {result: Value(result, None, dtype)}
    return Graph(inputs, (result,), nodes, constants or {}, values)


def both(made, *arrays):
    """Results of the definitions, of the reference, and of the model read again."""
    wanted = made.evaluate(*arrays)
    values = {n: Value(n, one.shape, one.dtype) for n, one in zip(made.results, wanted, strict=True)}
    model = export(made.replaced(values=values))
    onnx.checker.check_model(model, full_check=True)
    named = {value.name: data for value, data in zip(made.inputs, arrays, strict=True)}
    for found in (ReferenceEvaluator(model).run(None, named), rl.load(model).evaluate(*arrays)):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
            assert np.asarray(one).dtype == np.asarray(other).dtype
    return model


def test_attributes_of_all_kinds():
    both(graph(Node("Transpose", ("x",), ("y",), {"perm": (1, 0)})), X)
    both(graph(Node("LeakyRelu", ("x",), ("y",), {"alpha": 0.25})), X)
    both(graph(Node("Cast", ("x",), ("y",), {"to": onnx.TensorProto.INT32}), dtype=np.dtype("int32")), X)
    both(graph(Node("Einsum", ("x", "x"), ("y",), {"equation": "ab,cb->ac"})), X)
    shape = Node("ConstantOfShape", ("s",), ("y",), {"value": np.array([3], np.int64)})
    made = graph(shape, constants={"s": np.array([2, 2])}, inputs=(), dtype=np.dtype("int64"))
    both(made)


def test_inputs_that_are_left_out():
    made = graph(Node("Clip", ("x", "", "high"), ("y",)), constants={"high": np.float32(1)})
    assert list(both(made, X).graph.node[0].input) == ["x", "", "high"]


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_swish_is_written_out(alpha):
    """Runtimes have no kernel for it yet, nor do all take the version that it came with."""
    made = graph(Node("Swish", ("x",), ("y",), {"alpha": alpha} if alpha != 1 else {}, "act"))
    model = both(made, X)
    assert model.opset_import[0].version == OLDEST
    assert {"Sigmoid", "Mul"} <= {node.op_type for node in model.graph.node}


def test_the_oldest_version_that_does():
    scale = {"w": np.ones(3, np.float32)}
    made = graph(Node("RMSNormalization", ("x", "w"), ("y",)), constants=scale)
    assert export(made).opset_import[0].version == 23
    with pytest.raises(
        LayoutError, match=r"RMSNormalization\) can be written in version 23 or later, not in 21"
    ):
        export(made, 21)
    with pytest.raises(LayoutError, match="in versions 21 to"):
        export(made, 999)


@pytest.mark.parametrize(("size", "version"), [(1, 22), (3, OLDEST), (4, 22), (6, OLDEST)])
def test_windows_that_would_start_in_the_padding_need_the_version_that_says_so(tmp_path, size, version):
    """The onnx package counts them before, and would refuse the dims of the result."""
    x = Value("x", (1, 1, size, 4), np.dtype("f4"))
    how = {"kernel_shape": (3, 1), "strides": (3, 1), "pads": (1, 0, 2, 0), "ceil_mode": 1}
    for operator in ("MaxPool", "AveragePool"):
        made = inferred(Graph((x,), ("y",), (Node(operator, ("x",), ("y",), how),)))
        model = save(made, tmp_path / "pool.onnx")
        assert model.opset_import[0].version == version
        data = np.random.default_rng(size).standard_normal(x.dims).astype("f4")
        runtime = pytest.importorskip("onnxruntime").InferenceSession(str(tmp_path / "pool.onnx"))
        np.testing.assert_allclose(made.evaluate(data)[0], runtime.run(None, {"x": data})[0], rtol=1e-6)


def test_graphs_within_nodes_read_values_around_them():
    scalar = Value("c", (), np.dtype(bool))
    inner = (Value("x", (2, 3), F32),)  # the name of the outer one, and what is captured
    then = Graph(inner, ("r",), (Node("Mul", ("x", "two"), ("r",)),), {"two": np.float32(2)})
    other = Graph(inner, ("x",), ())
    node = Node("If", ("c", "h"), ("y",), {"then_branch": then, "else_branch": other, "captured": 1})
    made = graph(Node("Relu", ("x",), ("h",)), node, inputs=(Value("x", (2, 3), F32), scalar))
    for truth in (True, False):
        model = both(made, X, np.array(truth))
    assert list(model.graph.node[1].input) == ["c"]


def test_loops():
    body = Graph(
        (
            Value("i", (), np.dtype("int64")),
            Value("go", (), np.dtype(bool)),
            Value("s", (2, 3), F32),
            Value("x", (2, 3), F32),
        ),
        ("on", "sum"),
        (Node("Identity", ("go",), ("on",)), Node("Add", ("s", "x"), ("sum",))),
    )
    loop = Node("Loop", ("n", "true", "x", "x"), ("y",), {"body": body, "captured": 1})
    both(graph(loop, constants={"n": np.array(3), "true": np.array(True)}), X)


def test_names_of_nodes_are_unique():
    """A pass may make two nodes of one, which runtimes refuse to read under one name."""
    made = graph(Node("Relu", ("x",), ("a",), {}, "same"), Node("Neg", ("a",), ("y",), {}, "same"))
    assert [node.name for node in both(made, X).graph.node] == ["same", "same/1"]


def test_what_can_not_be_written_is_named():
    with pytest.raises(LayoutError, match=r"'f'.*is no operator of ONNX"):
        export(graph(Node("relayout.Fused", ("x",), ("y",), {}, "f")))
    with pytest.raises(LayoutError, match="data type of 'y' is not known"):
        export(graph(Node("Relu", ("x",), ("y",)), dtype=None))


def test_a_file(tmp_path):
    made = inferred(graph(Node("Relu", ("x",), ("y",))))
    save(made, tmp_path / "small.onnx")
    np.testing.assert_array_equal(rl.load(tmp_path / "small.onnx").evaluate(X)[0], np.maximum(X, 0))


def test_a_file_beside_for_large_constants(tmp_path, monkeypatch):
    monkeypatch.setattr("relayout.exporters.onnx.APART", 1)
    data = {"w": np.arange(3000, dtype=np.float32).reshape(3, 1000)}
    made = inferred(graph(Node("MatMul", ("x", "w"), ("y",)), constants=data))
    save(made, tmp_path / "large.onnx")
    assert (tmp_path / "large.onnx.data").stat().st_size >= 12000
    np.testing.assert_allclose(rl.load(tmp_path / "large.onnx").evaluate(X)[0], X @ data["w"], rtol=1e-6)


def test_what_the_package_refuses_is_no_crash(tmp_path):
    with pytest.raises(LayoutError, match=r"small\.onnx: the onnx package refuses the model: .*shape"):
        save(graph(Node("Relu", ("x",), ("y",))), tmp_path / "small.onnx")
    assert not (tmp_path / "small.onnx").exists()
