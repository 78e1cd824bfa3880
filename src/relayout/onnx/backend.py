"""An ONNX backend: models run through the interface that the ``onnx`` package defines.

>>> import numpy as np, pytest
>>> onnx = pytest.importorskip("onnx")
>>> from relayout.onnx import backend
>>> node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
>>> backend.run_node(node, [np.float32([1, 2]), np.float32([3, 4])])
(array([4., 6.], dtype=float32),)

The ONNX project's own tests run against it (``onnx.backend.test.BackendTest(backend, __name__)``). A model
that is refused, because operators or types are unknown here, raises ``unittest.SkipTest``, which is what the
suite counts as *not run*. Everything else that goes wrong is an error, and counts as one.

A model is planned and compiled, as by :meth:`relayout.graph.graph.Graph.compile`, once for the sizes of its
inputs, or of the arrays that come. Models that compute in f16 or bf16 are run by the definitions of their
operators, which round after each of them, as ONNX says it: kernels round less often, which is closer to the
true result and not to the bit the same (``prepare(model, definitions=False)`` compiles those, too). So is
what :func:`run_node` runs, once.
"""

from __future__ import annotations

import unittest
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep

from relayout.errors import LayoutError, Unsupported
from relayout.graph.defaults import overridden
from relayout.graph.graph import Graph
from relayout.graph.inference import inferred
from relayout.graph.run import Run
from relayout.importers.onnx import read
from relayout.importers.onnx.versions import NEWEST

__all__ = ["RelayoutBackend", "RelayoutModel", "prepare", "run_model", "run_node", "supports_device"]


class RelayoutModel(BackendRep):  # type: ignore[misc]
    """A model that can be run again and again.

    Attributes
    ----------
    graph : Graph
        The network.
    compiled : Run or None
        What runs it; None: the definitions of its operators.
    """

    def __init__(self, graph: Graph, compiled: Run | None = None) -> None:
        self.graph, self.compiled = graph, compiled

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """The outputs for given inputs.

        Parameters
        ----------
        inputs : sequence or mapping or ndarray
            Arrays in the order of the model's inputs, or by name; a single array where there is one input.
            Inputs that have a value in the model need none; one that is given by name takes its place.

        Raises
        ------
        LayoutError
            They are not what the model takes.
        """
        if isinstance(inputs, np.ndarray):
            inputs = (inputs,)
        elif isinstance(inputs, dict):
            missing = [value.name for value in self.graph.inputs if value.name not in inputs]
            if missing:
                raise LayoutError(f"no array was given for the input {missing[0]!r}")
            others = {name: data for name, data in inputs.items() if name in self.graph.defaults}
            inputs = [inputs[value.name] for value in self.graph.inputs]
            if self.compiled is not None:
                return self.compiled(*inputs, **others)
            graph = overridden(self.graph, others) if others else self.graph
            return graph.evaluate(*inputs)
        return self.graph.evaluate(*inputs) if self.compiled is None else self.compiled(*inputs)


class RelayoutBackend(Backend):  # type: ignore[misc]
    """The backend as a class; the module has its methods as functions."""

    @classmethod
    def prepare(
        cls, model: ModelProto, device: str = "CPU", definitions: bool | None = None, **_: Any
    ) -> RelayoutModel:
        """Read a model (:func:`relayout.importers.onnx.read`) and compile it.

        Parameters
        ----------
        model : onnx.ModelProto
            The model.
        device : str, optional
            Only the processor.
        definitions : bool, optional
            Whether operators are run by their definitions in NumPy, one after the other. Unless something
            else is said, models that compute in f16 or bf16 are.

        Raises
        ------
        unittest.SkipTest
            It has operators that are unknown here.
        LayoutError
            It is damaged, or breaks a rule of ONNX.
        """
        if not cls.supports_device(device):
            raise unittest.SkipTest(f"there is no device {device!r} here, only CPU")
        try:
            graph = read(model)
        except Unsupported as error:
            raise unittest.SkipTest(str(error)) from error
        if definitions is None:
            definitions = _in_halves(graph)
        return RelayoutModel(graph, None if definitions else graph.compile())

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **options: Any
    ) -> tuple[Any, ...]:
        """Read a model and run it once."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[Any] | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """Run a single node.

        Parameters
        ----------
        node : onnx.NodeProto
            The node.
        inputs : sequence or mapping
            Arrays for those of its inputs that are not left out.
        device : str, optional
            Only the processor.
        outputs_info : sequence, optional
            Not needed: results have the types that the operator gives them.
        options
            ``opset_version``: of the operator's domain; the newest unless something else is said.
        """
        domain = "" if node.domain == "ai.onnx" else node.domain
        version = options.pop("opset_version", NEWEST.get(domain, 1))
        names = list(dict.fromkeys(filter(None, node.input)))
        outputs = [name for name in node.output if name]
        graph = helper.make_graph(
            [node],
            node.name or node.op_type,
            [helper.make_empty_tensor_value_info(name) for name in names],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, version)])
        return cls.prepare(model, device, definitions=True, **options).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a device can be used: ``"CPU"`` can."""
        return device.partition(":")[0] == "CPU"


def _in_halves(graph: Graph) -> bool:
    """Whether a value has less than 32 bits and is a real number."""
    known = inferred(graph)
    names = (name for node in known.nodes for name in node.outputs if name)
    kinds = {value.dtype for value in (*known.inputs, *map(known.value, names))}
    return any(kind is not None and kind.name in ("float16", "bfloat16") for kind in kinds)


prepare = RelayoutBackend.prepare
run_model = RelayoutBackend.run_model
run_node = RelayoutBackend.run_node
supports_device = RelayoutBackend.supports_device
