"""ONNX models as graphs: names, order, inner graphs, functions; what is refused, and damaged files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relayout.errors import LayoutError, Unsupported
from relayout.graph.graph import Graph
from relayout.graph.inference import inferred

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from relayout.importers.onnx import read  # noqa: E402
from strategies import tried  # noqa: E402

F32 = np.float32


def text(body: str, opset: int = 17, more: str = "") -> Any:
    """A model from ONNX's textual form."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{more}]>\n{body}')


def agrees(model: Any, **feeds: np.ndarray[Any, Any]) -> Graph:
    """The graph of a model, which computes what the reference evaluator does, inferred or not."""
    graph = read(model)
    expected = ReferenceEvaluator(model).run(None, feeds)
    given = [feeds[value.name] for value in graph.inputs]
    small = inferred(graph, {name: one.shape for name, one in feeds.items()}, unroll=100)
    for one in (graph, inferred(graph), small):
        for got, other in zip(one.evaluate(*given), expected, strict=True):
            np.testing.assert_allclose(got, other, 1e-5, 1e-6)
    return graph


def test_a_model_keeps_its_names_and_open_sizes() -> None:
    model = text(
        "net (float[batch, 3] x, float[3, 2] w) => (float[batch, 2] y) { h = MatMul(x, w)  y = Relu(h) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 2), F32), "w"))
    graph = read(model)
    assert str(graph) == "x f32 batchx3\nh = MatMul(x, w)\ny = Relu(h)\n-> y"
    assert [value.dims for value in graph.inputs] == [("batch", 3)]
    assert graph.constants["w"].shape == (3, 2)
    assert graph.name == "net"
    assert graph.value("y").dims == ("batch", 2)


@pytest.mark.parametrize("version", [3, 8])
def test_an_input_with_a_value_in_the_file_may_be_given_another(version: int) -> None:
    """In all versions of the format; up to 3 they had to be among the inputs."""
    model = text("net (float[2] x, float[2] w, float[] f) => (float[2] y) { h = Mul(x, w)  y = Add(h, f) }")
    model.graph.initializer.append(numpy_helper.from_array(F32([1, 2]), "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(F32(1)), "f"))
    model.ir_version = version
    graph = read(model)
    assert list(graph.defaults) == ["w", "f"]
    run = graph.compile()
    x = F32([3, 5])
    for _ in range(2):
        for others in ({}, {"w": F32([2, 0])}, {"w": F32([1, 1]), "f": np.asarray(F32(-1))}):
            (expected,) = ReferenceEvaluator(model).run(None, {"x": x, **others})
            np.testing.assert_array_equal(run(x, **others)[0], expected)
            np.testing.assert_array_equal(run(x=x, **others)[0], expected)
    with pytest.raises(LayoutError, match="input is w f32 2; an array of float32 3 was given"):
        run(x, w=F32([1, 2, 3]))
    with pytest.raises(LayoutError, match="is none of"):
        run(x, v=x)


def test_other_dims_by_a_default() -> None:
    model = text("net (float[4] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }", opset=13)
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 2]), "s"))
    run, x = read(model).compile(), F32([1, 2, 3, 4])
    assert run(x)[0].shape == (2, 2)
    assert run(x, s=np.array([4, 1]))[0].shape == (4, 1)


def test_a_value_that_a_rule_has_looked_at_stays() -> None:
    model = text("net (float[4] x, int64[1] axes) => (float[b] y) { y = ReduceMax(x, axes) }", opset=18)
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))
    graph = read(model)
    graph = graph.replaced(defaults=dict.fromkeys(graph.defaults))
    with pytest.raises(LayoutError, match="the input 'axes' has its value from the file"):
        graph.compile()(F32([1, 2, 3, 4]), axes=np.array([0]))


def test_sources(tmp_path: Path) -> None:
    model = text("net (float[2] x) => (float[2] y) { y = Relu(x) }")
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (model, model.SerializeToString(), path, str(path)):
        assert str(read(source)) == "x f32 2\ny = Relu(x)\n-> y"


def test_data_beside_the_model(tmp_path: Path) -> None:
    model = text("net (float[2] x) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(F32([1, 2]), "w"))
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert read(tmp_path / "net.onnx").constants["w"].tolist() == [1, 2]
    raw = (tmp_path / "net.onnx").read_bytes()
    assert read(raw, folder=tmp_path).constants["w"].tolist() == [1, 2]
    with pytest.raises(LayoutError, match=r"'w'.*folder"):
        read(raw)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(LayoutError, match=r"'w'.*'w\.bin'"):
        read(tmp_path / "net.onnx")


def test_nodes_may_stand_in_any_order() -> None:
    model = text("net (float[2] x) => (float[2] y) { a = Relu(x)  b = Neg(a)  y = Abs(b) }")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    assert [node.operator for node in read(model).nodes] == ["Relu", "Neg", "Abs"]


def test_constants_of_all_kinds() -> None:
    model = text(
        """net () => (a, b, c, d, e, f) {
        a = Constant <value_int = 3> ()  b = Constant <value_ints = [3, 4]> ()
        c = Constant <value_float = 1.5> ()  d = Constant <value_floats = [1.5]> ()
        e = Constant <value_string = "x"> ()  f = Constant <value = float[2] {1, 2}> () }"""
    )
    graph = read(model)
    assert not graph.nodes
    got = graph.evaluate()
    assert [one.tolist() for one in got] == [3, [3, 4], 1.5, [1.5], "x", [1, 2]]
    assert [one.dtype.kind for one in got] == list("iiffOf")


# ---- inner graphs

BRANCHES = """net (bool c, float[2] x) => (float[2] y) {
    h = Relu(x)
    y = If (c) <then_branch = yes () => (float[2] t) { t = Add(h, w) },
                else_branch = no () => (float[2] e) { e = Sub(x, h) }>
}"""


def with_weight(model: Any) -> Any:
    model.graph.initializer.append(numpy_helper.from_array(F32([1, 2]), "w"))
    return model


def test_inner_graphs_are_closed() -> None:
    graph = read(with_weight(text(BRANCHES)))
    branch = graph.nodes[-1]
    assert branch.inputs == ("c", "h", "x")
    assert branch.attributes["captured"] == 2
    for name in ("then_branch", "else_branch"):
        assert len(branch.attributes[name].inputs) == 2
    assert branch.attributes["then_branch"].constants["w"].tolist() == [1, 2]
    for condition in (True, False):
        agrees(with_weight(text(BRANCHES)), c=np.asarray(condition), x=F32([-1, 3]))


def test_a_branch_takes_the_place_of_an_if_whose_condition_is_known() -> None:
    model = text(
        BRANCHES.replace("bool c, ", "").replace("h = Relu(x)", "c = Constant <value_int = 1> () h = Relu(x)")
    )
    model.graph.node[0].attribute[0].CopyFrom(
        helper.make_attribute("value", numpy_helper.from_array(np.array(True)))
    )
    graph = agrees(with_weight(model), x=F32([-1, 3]))
    assert [node.operator for node in inferred(graph).nodes] == ["Relu", "Add"]


LOOP = """net (int64 m, float[2] x) => (float[2] last, float[k, 2] all) {
    going = Constant <value = bool {1}> ()
    last, all = Loop (m, going, x) <body =
    b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] u) {
        d = Identity(c)
        f = Cast <to = 1> (i)
        g = Add(x, f)
        t = Add(s, g)
        u = If (c) <then_branch = yes () => (float[2] v) { v = Mul(t, x) },
                    else_branch = no () => (float[2] v) { v = Identity(s) }>
    }>
}"""


def test_loops_see_what_is_around_them() -> None:
    model = text(LOOP)
    graph = read(model)
    assert graph.nodes[-1].inputs == ("m", "going", "x", "x")
    feeds = {"m": np.array(3), "x": F32([1, 2])}
    expected = ReferenceEvaluator(model).run(None, feeds)
    for one in (graph, inferred(graph)):
        for got, other in zip(one.evaluate(*feeds.values()), expected, strict=True):
            np.testing.assert_allclose(got, other)


def test_a_short_loop_becomes_its_iterations() -> None:
    model = text(
        LOOP.replace("int64 m, ", "").replace("going =", "m = Constant <value_int = 3> ()\n going =")
    )
    graph = agrees(model, x=F32([1, 2]))
    assert [node.operator for node in inferred(graph).nodes] == ["Loop"]
    flat = inferred(graph, unroll=100)
    assert {node.operator for node in flat.nodes} <= {"Add", "Mul", "Unsqueeze", "Concat", "Identity"}
    assert flat.value("all").dims == (3, 2)


def test_a_loop_that_ends_by_its_data_stays() -> None:
    model = text(
        """net (float x) => (float y) {
        m = Constant <value_int = 5> ()  going = Constant <value = bool {1}> ()
        limit = Constant <value_float = 9.0> ()
        y = Loop (m, going, x) <body = b (int64 i, bool c, float s) => (bool d, float t) {
            t = Add(s, s)  d = Less(t, limit) }>
        }"""
    )
    graph = read(model)
    flat = inferred(graph, unroll=100)
    assert [node.operator for node in flat.nodes] == ["Loop"]
    for x in (1.0, 100.0):
        assert flat.evaluate(np.asarray(x, F32)) == graph.evaluate(np.asarray(x, F32))


# ---- functions

FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
net (float[2] x) => (float[2] y, float[2] z) {
    y = own.twice <factor = 3.0> (x)
    h, z = own.both (y)
}
<domain: "own", opset_import: ["" : 17, "own" : 1]>
both (a) => (b, c) { b = Identity(a)  t = own.twice(a)  c = Neg(t) }
<domain: "own", opset_import: ["" : 12]>
twice <factor: float = 2.0> (a) => (b) {
    f = Constant <value_float: float = @factor> ()
    u = Unsqueeze <axes = [0]> (a)  v = Squeeze <axes = [0]> (u)
    b = Mul(v, f)
}"""


def test_functions_are_written_out_in_their_own_version() -> None:
    graph = read(parser.parse_model(FUNCTIONS))
    assert "own" not in str(graph)
    y, z = graph.evaluate(F32([1, 2]))
    assert (y.tolist(), z.tolist()) == ([3, 6], [-6, -12])


def test_functions_that_call_each_other_in_a_circle() -> None:
    model = parser.parse_model(FUNCTIONS.replace("t = own.twice(a)", "s, t = own.both(a)"))
    with pytest.raises(LayoutError, match="'both' calls itself"):
        read(model)


def test_functions_with_outputs_that_nothing_computes() -> None:
    model = parser.parse_model(FUNCTIONS)
    both = next(one for one in model.functions if one.name == "both")
    both.output[0] = ""
    with pytest.raises(LayoutError, match="nothing computes the output '' of the function 'both'"):
        read(model)


def test_functions_that_would_never_end() -> None:
    """Nine functions, each of which calls the one before it ten times; none is written out before."""
    model = text("net (float[2] x) => (float[2] y) { y = Relu(x) }", 17, ', "own" : 1')
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for i in range(9):
        inner = ("Relu", "") if i == 0 else (f"f{i - 1}", "own")
        names = ["a", *(f"v{j}" for j in range(9)), "b"]
        nodes = [
            helper.make_node(inner[0], [one], [other], domain=inner[1]) for one, other in pairwise(names)
        ]
        model.functions.append(helper.make_function("own", f"f{i}", ["a"], ["b"], nodes, imports))
    model.graph.node[0].op_type, model.graph.node[0].domain = "f8", "own"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relayout.importers.onnx.model._Model.function", pytest.fail)
        with pytest.raises(LayoutError, match="more than 1000000 nodes"):
            read(model)
    model.graph.node[0].op_type = "f3"
    assert len(read(model).nodes) == 10**4


def test_outputs_that_nothing_reads_count() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Split", ["x"], ["y", "", ""])]
    model = helper.make_model(
        helper.make_graph(nodes, "net", [x], [y]), opset_imports=[helper.make_opsetid("", 13)]
    )
    agrees(model, x=np.arange(6, dtype=F32))


def test_operators_that_are_functions_of_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    from relayout.graph.operators import OPERATORS

    model = text("net (float[2, 3] x) => (float[2, 3] y) { y = Softplus(x)  }", 22)
    monkeypatch.delitem(OPERATORS, "Softplus")
    graph = read(model)
    assert "Softplus" not in {node.operator for node in graph.nodes}
    x = np.linspace(-1, 1, 6, dtype=F32).reshape(2, 3)
    np.testing.assert_allclose(graph.evaluate(x)[0], np.log1p(np.exp(x)), 1e-6)


# ---- what is refused


def test_all_unknown_operators_are_named_at_once() -> None:
    model = text(
        """net (float[2] x) => (float[2] y) {
        [first] a = Strange(x)  [second] b = own.Odd(a)  [third] c = Strange(b)  y = Relu(c) }""",
        17,
        ', "own" : 3',
    )
    with pytest.raises(Unsupported) as error:
        read(model)
    message = str(error.value)
    assert "Strange (domain 'ai.onnx', version 17): 'first', 'third'" in message
    assert "Odd (domain 'own', version 3): 'second'" in message


def test_unknown_operators_within_branches_and_functions() -> None:
    with pytest.raises(Unsupported, match=r"Strange.*'t'"):
        read(with_weight(text(BRANCHES.replace("Add(h, w)", "Strange(h, w)"))))
    with pytest.raises(Unsupported, match="Strange"):
        read(parser.parse_model(FUNCTIONS.replace("Neg(t)", "Strange(t)")))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("(float[2] x) => (float[2] y) { y = Relu(z) }", "node 'y' .Relu.: nothing computes 'z'"),
        ("(float[2] x) => (float[2] y) { z = Relu(x) }", "output 'y'"),
        ("(float[2] x) => (float[2] y) { y = Relu(x)  y = Neg(x) }", "node 1 .Neg.*'y', which node 0 .Relu"),
        ("(float[2] x) => (float[2] x) { x = Relu(x) }", "'x', which an input or a constant defines"),
        ("(float[2] x, float[2] x) => (float[2] y) { y = Relu(x) }", "'x' is defined twice"),
        (
            "(float[2] x) => (float[2] y) { [p] a = Add(x, b)  [q] b = Neg(a)  y = Relu(b) }",
            "circle: '[pq]', '[pq]'",
        ),
        ("(float[2] x) => (float[2] y) { [p] y = Add(x, y) }", "circle: 'p'"),
        ("(float[2] x) => (float[2] y) { y = Relu(x, x) }", "Relu takes x; got 2 inputs"),
        ("(float[2] x) => (float[2] y) { y = Add(x) }", "got 1 input"),
        ("(float[2] x) => (float[2] y) { y = Add(, x) }", "node 'y' .Add.: Add needs the input"),
        ("(float[2] x) => (float[2] y) { y = Relu <slope = 1> (x) }", "no attribute 'slope'"),
        ("(float[2] x) => (float[2] y) { y = Concat(x) }", "needs the attribute 'axis'"),
        ("(float[2] x) => (float[2] y) { y = own.Relu(x) }", "Relu.*'own'"),
        ("(float[2] x) => (float[2] y) { y = Constant () }", "a Constant has one value"),
        (
            "(bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] t)"
            " { t = Relu(z) }, else_branch = b () => (float[2] t) { t = Relu(x) }> }",
            "node 'y' .If.: node 't' .Relu.: nothing computes 'z'",
        ),
    ],
)
def test_models_that_break_a_rule(body: str, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        read(text(f"net {body}"))


def test_models_without_what_they_need(tmp_path: Path) -> None:
    model = text("net (float[2] x) => (float[2] y) { y = Relu(x) }")
    del model.opset_import[:]
    with pytest.raises(LayoutError, match=r"no version of the operators of 'ai\.onnx'"):
        read(model)
    model.ir_version = 1
    assert len(read(model).nodes) == 1
    for source, why in (
        (onnx.ModelProto(), "no graph"),
        (b"", "is empty"),
        (b"\xff\xff\xff", "no ONNX model, or damaged"),
        (tmp_path / "none.onnx", "can't be read"),
        (tmp_path, "no regular file"),
        ("a\0b", "can't be read"),
        (3, "a path, bytes or an onnx.ModelProto, got int"),
    ):
        with pytest.raises(LayoutError, match=why):
            read(source)


def test_inputs_that_do_not_fit_say_what_is_wanted() -> None:
    graph = read(text("net (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }"))
    for array, why in (
        (np.zeros((2, 4), F32), "is x f32 batchx3; an array of float32 2x4"),
        (np.zeros(3, F32), "x f32 batchx3; an array of float32 3 "),
        (np.zeros((2, 3)), "x f32 batchx3; an array of float64 2x3"),
    ):
        with pytest.raises(LayoutError, match=why):
            graph.evaluate(array)
    with pytest.raises(LayoutError, match=r"1 input \(x f32 batchx3\); got 0 arrays"):
        graph.evaluate()


# ---- damaged and hostile files


def samples() -> list[bytes]:
    quantised = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
                helper.make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["b"]),
                helper.make_node("Upsample", ["b"], ["u"], scales=[1.0, 1.0, 2.0, 2.0]),
                helper.make_node("Reshape", ["u", "shape"], ["y"]),
            ],
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 4, 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [
                numpy_helper.from_array(np.ones((2, 1, 3, 3), F32), "w"),
                numpy_helper.from_array(np.ones(2, F32), "s"),
                helper.make_tensor("shape", TensorProto.INT64, [2], [0, -1]),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 8)],
    )
    models = [quantised, with_weight(text(BRANCHES)), text(LOOP), parser.parse_model(FUNCTIONS)]
    return [model.SerializeToString() for model in models]


SAMPLES = samples()


def survives(data: bytes) -> None:
    """Bytes are read, inferred and run, or refused with one of the house's errors."""
    try:
        graph = read(data)
        graph = inferred(graph, unroll=20)
        if all(value.known for value in graph.inputs) and sum(_size(value) for value in graph.inputs) < 10**6:
            graph.evaluate(*(np.ones(value.dims, value.dtype) for value in graph.inputs))
    except LayoutError:
        return


def _size(value: Any) -> int:
    return int(np.prod([float(n) for n in value.dims]))


@settings(max_examples=tried(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_changed_bytes(data: st.DataObject) -> None:
    sample = bytearray(data.draw(st.sampled_from(SAMPLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(sample) - 1))
        sample[at] = data.draw(st.integers(0, 255))
    survives(bytes(sample))


@settings(max_examples=tried(100), deadline=None)
@given(st.data())
def test_missing_and_foreign_bytes(data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from(SAMPLES))
    first, last = sorted(data.draw(st.integers(0, len(sample))) for _ in range(2))
    survives(sample[:first] + data.draw(st.binary(max_size=8)) + sample[last:])
    survives(sample[:first])


@settings(max_examples=tried(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_changed_fields(data: st.DataObject) -> None:
    """Messages that are well formed and wrong: other names, numbers, types, and parts left out."""
    model = onnx.ModelProto.FromString(data.draw(st.sampled_from(SAMPLES)))
    for _ in range(data.draw(st.integers(1, 3))):
        _changed(model, data)
    survives(model.SerializeToString())


def _changed(message: Any, data: st.DataObject) -> None:
    fields = [(field, value) for field, value in message.ListFields()]
    if not fields:
        return
    field, value = data.draw(st.sampled_from(fields))
    several = hasattr(value, "append") or hasattr(value, "add")
    if several and len(value):
        at = data.draw(st.integers(0, len(value) - 1))
        action = data.draw(st.sampled_from(("delete", "repeat", "into", "into", "into")))
        if action == "delete":
            del value[at]
        elif action == "repeat":
            value.append(value[at])
        elif field.message_type is not None:
            _changed(value[at], data)
        else:
            value[at] = data.draw(_other(value[at]))
    elif not several and field.message_type is not None:
        _changed(value, data)
    elif not several:
        action = data.draw(st.sampled_from(("clear", "other", "other")))
        if action == "clear":
            message.ClearField(field.name)
        else:
            _set(message, field.name, data.draw(_other(value)))


def _set(message: Any, name: str, value: Any) -> None:
    try:
        setattr(message, name, value)
    except ValueError:  # no such number in an enumeration, or one that is too large for the field
        message.ClearField(name)


def _other(value: Any) -> st.SearchStrategy[Any]:
    if isinstance(value, bytes):
        return st.binary(max_size=40)
    if isinstance(value, str):
        return st.sampled_from(
            ("", "x", "y", "w", "c", "h", "Relu", "If", "Loop", "Shape", "axes", "value", "?" * 40)
        )
    if isinstance(value, float):
        return st.floats(width=32)
    return st.sampled_from((0, 1, 2, 3, 7, 8, 16, 21, 27, -1, 2**31 - 1))
