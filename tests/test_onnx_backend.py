"""The ONNX project's own backend suite, and the backend's interface.

The suite has 2,033 tests, which take a minute: ``python tests/onnx_suite.py`` runs all of them and counts.
Here every eleventh runs, and all that have models of more than a node.
"""

from __future__ import annotations

import unittest
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relayout.errors import LayoutError
from relayout.graph.inference import inferred

onnx = pytest.importorskip("onnx", minversion="1.19")

from onnx import TensorProto, helper  # noqa: E402

import onnx_suite  # noqa: E402
from relayout.onnx import backend  # noqa: E402

REFUSED = ("gradient_of_add",)
"""Gradients of graphs."""


@pytest.fixture(scope="module")
def every() -> dict[str, Any]:
    return onnx_suite.tests()


def run(names: list[str], every: dict[str, Any]) -> None:
    wrong = [
        f"{result.kind}: {name}: {result.why}"
        for name, result, _ in onnx_suite.outcomes(names, every)
        if result.kind not in ("passed", "random") and not any(word in name for word in REFUSED)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore")
def test_single_nodes(every: dict[str, Any]) -> None:
    assert len(every) >= 1_900
    run([name for name in every if "Node" in name][::11], every)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("category", ["Real", "Simple", "PyTorchConverted", "PyTorchOperator"])
def test_models(category: str, every: dict[str, Any]) -> None:
    """The nine light models among them, whose weights are made in the graph."""
    names = [name for name in every if name.startswith(f"OnnxBackend{category}Model")]
    assert len(names) >= 9
    run(names if category == "Real" else names[::3], every)


@pytest.mark.filterwarnings("ignore")
def test_what_is_unknown_is_refused_and_not_passed(every: dict[str, Any]) -> None:
    names = [name for name in every if any(word in name for word in REFUSED)]
    kinds = {result.kind for _, result, _ in onnx_suite.outcomes(names, every)}
    assert names
    assert kinds == {"refused"}


@pytest.mark.filterwarnings("ignore")
def test_what_is_random_is_not_passed(every: dict[str, Any]) -> None:
    names = [name for name in every if onnx_suite.RANDOM in name]
    kinds = [result.kind for _, result, _ in onnx_suite.outcomes(names, every)]
    assert len(kinds) >= 6
    assert set(kinds) <= {"random", "passed"}  # ten coins may fall alike
    assert "random" in kinds


@pytest.mark.filterwarnings("ignore")
def test_sequences_of_scalars_and_the_steps_of_a_softmax_in_f16(every: dict[str, Any]) -> None:
    """A Loop with an optional sequence, and attention taken apart into operators that round one by one."""
    run([name for name in every if "loop16_seq_none" in name or "attention_4d_causal_fp16" in name], every)


def test_sequences_that_differ_do_not_pass() -> None:

    def agree(_: type, wanted: list[Any], got: list[Any]) -> None:
        assert len(wanted) == len(got)
        assert all(np.array_equal(*both) for both in zip(wanted, got, strict=True))

    compare = onnx_suite.by_arrays(agree)
    one = [np.float32(0), np.ones(2)]
    compare(object, [one, np.ones(3)], [[np.float32(0), np.ones(2)], np.ones(3)])
    for other in ([np.float32(1), np.ones(2)], [np.float32(0)], np.ones(2)):
        with pytest.raises(AssertionError):
            compare(object, [one], [other])


@pytest.mark.filterwarnings("ignore")
def test_inference_changes_no_result_and_says_nothing_false(
    every: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def inferred_run(self: backend.RelayoutModel, inputs: Any, **_: Any) -> tuple[Any, ...]:
        values = [
            replace(value, dims=one.shape, dtype=one.dtype) if isinstance(one, np.ndarray) else value
            for value, one in zip(self.graph.inputs, inputs, strict=True)
        ]
        graph = inferred(self.graph.replaced(inputs=tuple(values)), unroll=200)
        outputs = graph.evaluate(*inputs)
        for value, one in zip(map(graph.value, graph.results), outputs, strict=True):
            if isinstance(one, np.ndarray):
                assert value.dtype in (None, one.dtype)
                assert value.dims is None or len(value.dims) == one.ndim
                for said, size in zip(value.dims or (), one.shape, strict=False):
                    assert said == size or not isinstance(said, int)
        return outputs

    monkeypatch.setattr(backend.RelayoutModel, "run", inferred_run)
    run(list(every)[5::11], every)


def doubling() -> Any:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "twice", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)])


def test_a_model_runs_by_place_and_by_name() -> None:
    x = np.float32([1, 2])
    prepared = backend.prepare(doubling())
    for given in (x, [x], (x,), {"x": x}):
        assert prepared.run(given)[0].tolist() == [2, 4]
    assert backend.run_model(doubling(), [x])[0].tolist() == [2, 4]
    with pytest.raises(LayoutError, match="'x'"):
        prepared.run({"y": x})
    with pytest.raises(LayoutError, match="x f32 n; an array of float64 2 was given"):
        prepared.run([x.astype(float)])


def test_a_node_runs_in_its_version() -> None:
    x = np.float32([[1, 2], [3, 4]])
    new = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    flat = np.exp(x - 4)
    (got,) = backend.run_node(new, [x], opset_version=11)
    np.testing.assert_allclose(got, flat / flat.sum(), 1e-6)
    (got,) = backend.run_node(new, [x])
    np.testing.assert_allclose(got, flat / flat.sum(0), 1e-6)
    without = helper.make_node("Clip", ["x", "", "high"], ["y"])
    assert backend.run_node(without, [x, np.float32(2)])[0].tolist() == [[1, 2], [2, 2]]


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    with pytest.raises(unittest.SkipTest, match="CUDA"):
        backend.prepare(doubling(), "CUDA")


def test_unknown_operators_skip_and_bad_models_do_not() -> None:
    model = doubling()
    model.graph.node[0].op_type = "Dadd"
    with pytest.raises(unittest.SkipTest, match="Dadd"):
        backend.prepare(model)
    model = doubling()
    model.graph.node[0].input[0] = "z"
    with pytest.raises(LayoutError, match="nothing computes 'z'"):
        backend.prepare(model)
