"""A graph as an ONNX model, for other runtimes.

Operators are ONNX's own already, in their newest meaning, so an export says the same in protobufs. Two things
need care. Runtimes know the newest versions late: the model is written in the oldest one from :data:`OLDEST`
on that has what its nodes use. Since then operators have got data types and attributes, and no other meaning.
And graphs within nodes are closed here, while ONNX's see the values around them: what a node hands in behind
its own inputs is read by its outer name again.

>>> import numpy as np, pytest
>>> onnx = pytest.importorskip("onnx")
>>> from relayout.graph.graph import Graph, Node, Value
>>> from relayout.graph.inference import inferred
>>> x = Value("x", ("n", 3), np.dtype("f4"))
>>> graph = inferred(Graph((x,), ("y",), (Node("Relu", ("x",), ("y",)),)))
>>> model = export(graph)
>>> [node.op_type for node in model.graph.node], model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
(['Relu'], 'n')
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import labelled
from relayout.graph.operators.windows import slide

__all__ = ["OLDEST", "export", "save"]

OLDEST: Final = 21
"""The oldest version of the operators that can be written: GroupNormalization had another meaning before."""

WINDOWS_END: Final = 22
"""The version that says of poolings that no window starts in the padding behind, as all runtimes have it."""

OWN: Final = frozenset(("captured", "padding_idx", "from_end", "source_bits"))
"""Attributes that ONNX does not have: of training, of what is refused, permitted, or written otherwise."""

WRITTEN_OUT: Final = frozenset(("Swish",))
"""Operators that runtimes lack, written in older ones."""

APART: Final = 1 << 30
"""Bytes of constants from which on they are written into a file of their own; protobufs end at 2 GB."""


@locked
def export(graph: Graph, opset: int | None = None) -> Any:
    """The model of a graph.

    Parameters
    ----------
    graph : Graph
        Of ONNX's operators, without fused nodes.
    opset : int, optional
        The version of the operators, at least :data:`OLDEST`; None: the oldest that has all that is used.

    Returns
    -------
    onnx.ModelProto
        With the same names of inputs, outputs and nodes.

    Raises
    ------
    LayoutError
        An operator is none of ONNX's, or not in that version; or the data type of an input or output is not
        known. The message names the node or the value.
    """
    import onnx

    newest = onnx.defs.onnx_opset_version()
    needed, node = _needed(graph, onnx.defs)
    if opset is None:
        opset = needed
    elif not OLDEST <= opset <= newest:
        raise LayoutError(f"operators can be written in versions {OLDEST} to {newest}, not {opset}")
    elif opset < needed and node is not None:
        raise LayoutError(f"{labelled(node)} can be written in version {needed} or later, not in {opset}")
    writer = _Writer(onnx, opset)
    names = {value.name for value in graph.inputs} | set(graph.constants)
    names |= {name for node in graph.nodes for name in node.outputs}
    proto = writer.graph(graph, graph.name or "graph", {}, frozenset(names))
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in writer.versions.items()]
    model = onnx.helper.make_model(proto, opset_imports=imports, producer_name="relayout")
    model.ir_version = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return model


def _needed(graph: Graph, defs: Any) -> tuple[int, Node | None]:
    """The oldest version that has what all nodes use, and the node that needs it."""
    worst: tuple[int, Node | None] = (OLDEST, None)
    known: dict[tuple[Any, ...], int] = {}
    for node in graph.nodes:
        key = (node.operator, tuple(node.attributes), len(node.inputs))
        if key not in known:
            known[key] = _oldest(node, defs)
        version = max(known[key], WINDOWS_END) if _ends_before_padding(node, graph) else known[key]
        if version > worst[0]:
            worst = (version, node)
        for inner in node.attributes.values():
            if isinstance(inner, Graph):
                worst = max(worst, _needed(inner, defs), key=lambda one: one[0])
    return worst


def _oldest(node: Node, defs: Any) -> int:
    """The oldest version of the operators that has what a node uses."""
    domain, operator = _parted(node)
    if domain or operator in WRITTEN_OUT:
        return OLDEST
    names = set(node.attributes) - OWN
    inputs = len(node.inputs) - int(node.attributes.get("captured", 0))
    for version in range(OLDEST, defs.onnx_opset_version() + 1):
        if defs.has(operator, version):
            schema = defs.get_schema(operator, version)
            if names <= set(schema.attributes) and inputs <= schema.max_input:
                return version
    raise LayoutError(f"{labelled(node)} is no operator of ONNX: it can't be written")


def _ends_before_padding(node: Node, graph: Graph) -> bool:
    """Whether a size that is rounded up would have a window that starts in the padding behind."""
    a = node.attributes
    if not a.get("ceil_mode") or not any(a.get("pads") or ()):
        return False
    sizes = [n for n in (graph.value(node.inputs[0]).dims or ())[2:] if isinstance(n, int)]
    if len(sizes) != len(a["kernel_shape"]):
        return False
    auto = a.get("auto_pad", "NOTSET")
    found = slide(sizes, a["kernel_shape"], a.get("strides"), a.get("dilations"), a["pads"], auto, 1)
    last = ((count - 1) * stride for count, stride in zip(found.counts, found.strides, strict=True))
    padded = (sum(one) for one in zip(sizes, found.begin, found.end, strict=True))
    return any(
        start < room - found.extent(i) for i, (start, room) in enumerate(zip(last, padded, strict=True))
    )


def _parted(node: Node) -> tuple[str, str]:
    domain, _, operator = node.operator.rpartition(".")
    return domain, operator


@locked
def save(graph: Graph, path: str | os.PathLike[str], opset: int | None = None) -> Any:
    """Write the model of a graph into a file, and return it; constants of 1 GiB and more lie beside it.

    Raises
    ------
    LayoutError
        As :func:`export`; or the onnx package's checker refuses the model.
    """
    import onnx

    model, path = export(graph, opset), os.fspath(path)
    try:
        if sum(data.nbytes for data in graph.constants.values()) < APART:
            onnx.checker.check_model(model, full_check=True)
            onnx.save(model, path)
        else:
            location = f"{os.path.basename(path)}.data"
            onnx.save(model, path, save_as_external_data=True, location=location)
            onnx.checker.check_model(path)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise LayoutError(f"{path}: the onnx package refuses the model: {error}") from error
    return model


class _Writer:
    """Protobufs of one model."""

    def __init__(self, onnx: Any, opset: int) -> None:
        self.onnx, self.versions = onnx, {"": opset}
        self.names: set[str] = set()

    def graph(
        self,
        graph: Graph,
        name: str,
        renamed: Mapping[str, str],
        taken: frozenset[str],
        own: int | None = None,
    ) -> Any:
        """A graph.

        ``renamed``: values that have other names; ``taken``: names of the graphs around it; ``own``: so many
        of its inputs are its own, and are not read from around.
        """
        helper = self.onnx.helper
        nodes = [made for node in graph.nodes for made in self.nodes(node, renamed, taken)]
        made = {out for node in graph.nodes for out in node.outputs}
        outputs = []
        for value in graph.outputs:
            result = renamed.get(value.name, value.name)
            if renamed and value.name not in made:  # an inner graph has to make what it returns
                result = _fresh(f"{value.name}/result", taken | set(renamed.values()))
                source = renamed.get(value.name, value.name)
                nodes.append(helper.make_node("Identity", [source], [result]))
            outputs.append(self.value(value, result, bool(renamed)))
        return helper.make_graph(
            nodes,
            name,
            [
                self.value(value, renamed.get(value.name, value.name), bool(renamed))
                for value in graph.inputs[:own]
            ],
            outputs,
            [
                self.onnx.numpy_helper.from_array(_plain(data), renamed.get(name, name))
                for name, data in graph.constants.items()
            ],
        )

    def value(self, value: Value, name: str, inner: bool) -> Any:
        """An input or an output."""
        helper = self.onnx.helper
        if value.dtype is None:
            if inner:
                return self.onnx.ValueInfoProto(name=name)
            raise LayoutError(
                f"the data type of {value.name!r} is not known: it can't be written as a tensor"
            )
        return helper.make_tensor_value_info(name, self.kind(value.dtype), value.dims)

    def kind(self, dtype: np.dtype[Any]) -> int:
        """The number of a data type."""
        if dtype.kind in "OUST":
            return int(self.onnx.TensorProto.STRING)
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(dtype))

    def nodes(self, node: Node, renamed: Mapping[str, str], taken: frozenset[str]) -> list[Any]:
        """A node, or those that mean the same where few runtimes have its operator."""
        if node.operator not in WRITTEN_OUT:
            return [self.node(node, renamed, taken)]
        (x,), (y,) = node.inputs, node.outputs
        x, y, name = renamed.get(x, x), renamed.get(y, y), node.name or y
        alpha = float(node.attributes.get("alpha", 1.0))
        make, parts = self.onnx.helper.make_node, [f"{y}/{part}" for part in ("factor", "scaled", "sigmoid")]
        factor, scaled, sigmoid = (_fresh(part, taken) for part in parts)
        made = []
        if alpha != 1.0:
            value = make("Constant", [], [factor], self.named(f"{name}/factor"), value_float=alpha)
            like = make("CastLike", [factor, x], [f"{factor}/cast"], self.named(f"{name}/cast"))
            made = [value, like, make("Mul", [x, f"{factor}/cast"], [scaled], self.named(f"{name}/scaled"))]
        made.append(make("Sigmoid", [scaled if made else x], [sigmoid], self.named(f"{name}/sigmoid")))
        return [*made, make("Mul", [x, sigmoid], [y], self.named(name))]

    def named(self, name: str) -> str:
        """A name for a node that no other has."""
        made = _fresh(name, self.names) if name else ""
        self.names.add(made)
        return made

    def node(self, node: Node, renamed: Mapping[str, str], taken: frozenset[str]) -> Any:
        """A node, in the version of the model."""
        helper = self.onnx.helper
        domain, operator = _parted(node)
        schema = self.schema(node, domain, operator)
        captured = int(node.attributes.get("captured", 0))
        inputs = [renamed.get(name, name) for name in node.inputs]
        inputs, around = inputs[: len(inputs) - captured], inputs[len(inputs) - captured :]
        while inputs and not inputs[-1]:
            inputs.pop()
        made = helper.make_node(
            operator,
            inputs,
            [renamed.get(name, name) for name in node.outputs],
            self.named(node.name),
            domain=domain,
        )
        for name, value in node.attributes.items():
            known = schema.attributes.get(name)
            if name in OWN or value is None:
                continue
            if isinstance(value, Graph):
                value = self.inner(value, f"{node.name or node.outputs[0]}/{name}", around, taken)
            elif isinstance(value, np.ndarray):
                value = self.onnx.numpy_helper.from_array(_plain(value))
            elif isinstance(value, tuple):
                value = list(value)
            kind = self.onnx.AttributeProto.AttributeType.Value(known.type.name)
            made.attribute.append(helper.make_attribute(name, value, attr_type=kind))
        return made

    def schema(self, node: Node, domain: str, operator: str) -> Any:
        """What the onnx package says of an operator."""
        defs = self.onnx.defs
        if domain not in self.versions:
            versions = [one.since_version for one in defs.get_all_schemas() if one.domain == domain]
            if not versions or not defs.has(operator, domain):
                raise LayoutError(f"{labelled(node)} is no operator of ONNX: it can't be written")
            self.versions[domain] = max(versions)
        return defs.get_schema(operator, self.versions[domain], domain)

    def inner(self, graph: Graph, name: str, around: Iterable[str], taken: frozenset[str]) -> Any:
        """A graph within a node, which reads by their names the values around it."""
        around = list(around)
        own = graph.inputs[: len(graph.inputs) - len(around)]
        renamed: dict[str, str] = {}
        used = set(taken)
        names = [*(value.name for value in own), *graph.constants]
        names += [out for node in graph.nodes for out in node.outputs if out]
        for one in dict.fromkeys(names):
            renamed[one] = _fresh(one, used)
            used.add(renamed[one])
        inputs = graph.inputs[len(own) :]
        for value, outer in zip(inputs, around, strict=True):
            renamed[value.name] = outer
        return self.graph(graph, name, {"": "", **renamed}, frozenset(used), len(own))


def _fresh(name: str, taken: Iterable[str]) -> str:
    """A name that nothing has yet."""
    taken, made, count = set(taken), name, 0
    while made in taken:
        count += 1
        made = f"{name}/{count}"
    return made


def _plain(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(data, order="C")
