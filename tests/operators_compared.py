"""One operator by its definition, by ONNX's reference evaluator and by ONNX Runtime, and what inference says.

::

    same_as_reference("Conv", [x, w], strides=(2, 2))       dims, data type and values; inference besides
    same_as_runtime("LSTM", [x, w, r], outputs=3)           the same against ONNX Runtime
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_nodes import assert_agrees, assert_inferred
from relayout.graph.operators import OPERATORS, Fact

Arrays = Sequence["np.ndarray | None"]


def define(
    name: str, inputs: Arrays, outputs: int = 1, *, whole: bool = True, **attributes: Any
) -> list[Any]:
    """The results of a definition; inference must foresee them, or (not ``whole``) say nothing false."""
    made = OPERATORS[name](*inputs, outputs=outputs, **attributes)[:outputs]
    for data in (True, False):
        facts = [None if x is None else Fact(x.shape, x.dtype, x if data else None) for x in inputs]
        said = OPERATORS[name].inferred(*facts, outputs=outputs, **attributes)
        for fact, result in zip(said, made, strict=True):
            assert_inferred(fact, result, whole=whole and data)
    return list(made)


def model(name: str, inputs: Arrays, outputs: int, opset: int, attributes: dict[str, Any]) -> onnx.ModelProto:
    """A model of one node; all that it is given are inputs of the graph."""
    domain, _, operator = name.rpartition(".")
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    graph = helper.make_graph([node], "one", given, [onnx.ValueInfoProto(name=y) for y in results])
    known = [helper.make_opsetid("", opset)]
    if domain:
        known.append(helper.make_opsetid(domain, onnx.defs.get_schema(operator, domain=domain).since_version))
    return helper.make_model(graph, opset_imports=known, ir_version=10)


def _feeds(inputs: Arrays) -> dict[str, np.ndarray]:
    return {f"x{i}": x for i, x in enumerate(inputs) if x is not None}


def by_reference(
    name: str, inputs: Arrays, outputs: int = 1, opset: int | None = None, **attributes: Any
) -> list[Any]:
    """What ONNX's reference evaluator computes."""
    from onnx.reference import ReferenceEvaluator

    opset = opset or onnx.defs.onnx_opset_version()
    return ReferenceEvaluator(model(name, inputs, outputs, opset, attributes)).run(None, _feeds(inputs))


def by_runtime(name: str, inputs: Arrays, outputs: int = 1, opset: int = 22, **attributes: Any) -> list[Any]:
    """What ONNX Runtime computes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    made = onnx.shape_inference.infer_shapes(model(name, inputs, outputs, opset, attributes))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, _feeds(inputs))


def same_as_reference(
    name: str,
    inputs: Arrays,
    outputs: int = 1,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    opset: int | None = None,
    **attributes: Any,
) -> None:
    """The definition agrees with the reference evaluator."""
    made = define(name, inputs, outputs, **attributes)
    expected = by_reference(name, inputs, outputs, opset, **attributes)
    for got, wanted in zip(made, expected, strict=True):
        assert_agrees(got, np.asarray(wanted), rtol, atol)


def same_as_runtime(
    name: str,
    inputs: Arrays,
    outputs: int = 1,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    opset: int = 22,
    **attributes: Any,
) -> None:
    """The definition agrees with ONNX Runtime."""
    made = define(name, inputs, outputs, **attributes)
    for got, wanted in zip(made, by_runtime(name, inputs, outputs, opset, **attributes), strict=True):
        assert_agrees(got, wanted, rtol, atol)
