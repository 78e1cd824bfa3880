"""A graph of ATen whose sizes are known, with parts of it compiled.

::

    unsupported, translated, planned      which nodes Relayout takes (:mod:`.support`, :mod:`.part`)
    grouped                               which of them go together (:mod:`.partition`)
    assembled                             a graph of PyTorch that calls the parts, and does the rest itself

What a node needs is known for sure only when its part is planned. So a part that finds a node that it can't
do says so, and nodes are grouped anew without it; parts that stay as they are stay compiled.

A part is worth its call if it has a sum of products, or writes :data:`WORTH` bytes: below that PyTorch does a
few small operators in the time that the call takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from time import perf_counter
from typing import Any, Final

import torch

from relayout.torch.compiling.aliases import beside, views_apart
from relayout.torch.compiling.options import Options
from relayout.torch.compiling.part import CPU, Left, Part, made, order_of
from relayout.torch.compiling.partition import grouped
from relayout.torch.compiling.report import GraphReport, left_of
from relayout.torch.compiling.support import is_getitem, unsupported, values_of

__all__ = ["WORTH", "Program", "programmed"]

WORTH: Final = 1 << 18
"""Bytes that a part without sums of products writes at least. A call of a part takes some 10 microseconds,
one of PyTorch's operators about 3, and so long is needed to write a quarter of a megabyte."""

PRODUCTS: Final = frozenset({
    "aten.convolution.default", "aten.convolution_backward.default", "aten.addmm.default",
    "aten.mm.default", "aten.bmm.default", "aten.baddbmm.default", "aten.linear.default",
    "aten.matmul.default", "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "relayout.attention_backward.default",
})  # fmt: skip
"""Sums of products: what a network computes, mostly."""

VIEW: Final = "a view that is returned beside others of its memory"
BESIDE: Final = "as_strided reads memory beside a view"


class Program:
    """A graph, ready to be called.

    Attributes
    ----------
    reads : tuple of int
        Which of the graph's arguments it needs, weights that are packed left out.
    forward : callable
        Takes these.
    report : GraphReport
    """

    def __init__(self, reads: tuple[int, ...], forward: Any, report: GraphReport) -> None:
        self.reads, self.forward, self.report = reads, forward, report

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """What the graph returns."""
        return self.forward(*[arguments[k] for k in self.reads])


def programmed(
    module: Any,
    weights: Mapping[int, Any],
    options: Options,
    threads: int,
    exact: bool = False,
    lasting: bool = False,
) -> Program:
    """Compile what can be compiled of a graph.

    Parameters
    ----------
    module : torch.fx.GraphModule
        All of whose sizes are known.
    weights : mapping of int to torch.Tensor
        The arguments that stay what they are.
    options : Options
    threads : int
    exact : bool
        Whether what PyTorch computes gets the strides that the graph says, where it reads others than in
        eager PyTorch.
    lasting : bool
        Whether other processes may want the same, with the same weights (:mod:`.kept`).
    """
    begin = perf_counter()
    module, apart = views_apart(module)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    fixed = {placeholders[k]: tensor for k, tensor in weights.items()}
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(one := _attribute(module, node.target), torch.Tensor):
            fixed[node] = one
            node.meta.setdefault("val", one)
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    reasons = {node: why for node in nodes if not is_getitem(node) and (why := unsupported(node))}
    reasons |= {node: VIEW for node in nodes if node.name in apart and not is_getitem(node)}
    reasons |= dict.fromkeys(beside(nodes), BESIDE)

    def compiled(group: Sequence[Any], before: Sequence[Any]) -> Part:
        return made(group, before, fixed, options, threads, lasting)

    parts, steps = _parts(nodes, output, fixed, reasons, compiled)
    reads, forward = _assembled(module, placeholders, output, steps, parts, exact)
    took = perf_counter() - begin
    return Program(
        reads,
        forward,
        GraphReport(tuple(one.taken for one in parts.values()), left_of(reasons), seconds=took),
    )


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _parts(
    nodes: Sequence[Any],
    output: Any,
    fixed: Mapping[Any, Any],
    reasons: dict[Any, str],
    compiled: Callable[[Sequence[Any], Sequence[Any]], Part],
) -> tuple[dict[tuple[Any, ...], Part], list[Any]]:
    """The parts by their nodes; what runs, in order. ``reasons``, why nodes are left, gets more of them."""
    named = {node.name: node for node in nodes}
    steady = _steady(nodes, fixed, reasons)
    moving = [node for node in nodes if node not in steady]
    parts: dict[tuple[Any, ...], Part] = {}
    while True:
        groups, steps = grouped(moving, lambda node: node not in reasons)
        found = len(reasons)
        for group in groups:
            if not _worth(group):
                reasons.update(dict.fromkeys(_computing(group), "too little to be worth a call"))
            elif group not in parts:
                try:
                    parts[group] = compiled(group, _behind(group, steady))
                except Left as left:
                    for name, why in left.reasons.items():
                        node = named[name]
                        reasons[node.args[0] if is_getitem(node) else node] = why
        if len(reasons) == found:
            others = [one for one in steps if not isinstance(one, tuple)]
            return (
                {group: parts[group] for group in groups},
                [*_behind([*others, output], steady), *steps],
            )


def _steady(nodes: Sequence[Any], fixed: Mapping[Any, Any], reasons: Mapping[Any, str]) -> dict[Any, None]:
    """The nodes that compute constants from constants: each part has those that it reads for itself."""
    found: dict[Any, None] = {}
    for node in nodes:
        if node not in reasons and all(one in fixed or one in found for one in node.all_input_nodes):
            found[node] = None
    return found


def _behind(nodes: Sequence[Any], steady: Mapping[Any, None]) -> tuple[Any, ...]:
    """Those constants that some nodes need, in an order in which they can be computed."""
    wanted = {one for node in nodes for one in node.all_input_nodes if one in steady}
    for node in reversed(list(steady)):
        if node in wanted:
            wanted.update(one for one in node.all_input_nodes if one in steady)
    return tuple(node for node in steady if node in wanted)


def _computing(group: Sequence[Any]) -> list[Any]:
    return [node for node in group if not is_getitem(node)]


def _worth(group: Sequence[Any]) -> bool:
    """Whether a part is worth its call."""
    if any(str(node.target) in PRODUCTS for node in group):
        return True
    moved: int = sum(
        one.numel() * one.element_size()
        for node in _computing(group)
        for one in [value for value in values_of(node) if isinstance(value, torch.Tensor)][:1]
        if not getattr(node.target, "is_view", False)
    )
    return moved >= WORTH


def _assembled(
    module: Any,
    placeholders: Sequence[Any],
    output: Any,
    steps: Sequence[Any],
    parts: Mapping[Any, Part],
    exact: bool,
) -> tuple[tuple[int, ...], Any]:
    """Which arguments are needed; and what takes these, calls the parts and does what is left."""
    graph, root = torch.fx.Graph(), torch.nn.Module()
    copies: dict[Any, Any] = {}
    wanted = _wanted(output, steps, parts)
    reads = tuple(k for k, node in enumerate(placeholders) if node in wanted)
    for k in reads:
        copies[placeholders[k]] = graph.placeholder(placeholders[k].name)
    for node in module.graph.nodes:
        if node.op == "get_attr" and node in wanted:
            name = node.target.replace(".", "_")
            setattr(root, name, _attribute(module, node.target))
            copies[node] = graph.get_attr(name)
    for step in steps:
        if isinstance(step, tuple):
            part = parts[step]
            root.add_module(f"part_{len(root._modules)}", _Called(part))
            call = graph.call_module(list(root._modules)[-1], tuple(copies[one] for one in part.inputs))
            for place, one in enumerate(part.outputs):
                copies[one] = graph.call_function(getitem, (call, place))
        else:
            copies[step] = graph.node_copy(step, copies.__getitem__)
            if exact and (strides := _own_strides(step)) is not None:
                copies[step] = graph.call_function(_with_strides, (copies[step], strides))
    graph.output(torch.fx.node.map_arg(output.args[0], copies.__getitem__))
    return reads, torch.fx.GraphModule(root, graph).forward


def _own_strides(node: Any) -> tuple[int, ...] | None:
    """The strides of a tensor in memory of its own."""
    schema, value = getattr(node.target, "_schema", None), node.meta.get("val")
    if getattr(node.target, "is_view", False) or (schema is not None and schema.is_mutable):
        return None
    if not isinstance(value, torch.Tensor) or order_of(value.shape, value.stride()) is None:
        return None
    return tuple(value.stride())


def _with_strides(tensor: Any, strides: tuple[int, ...]) -> Any:
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=CPU).copy_(tensor)


class _Called(torch.nn.Module):
    """A part, where graphs of PyTorch look for what they call."""

    def __init__(self, part: Part) -> None:
        super().__init__()
        self.forward = part.__call__


def _wanted(output: Any, steps: Sequence[Any], parts: Mapping[Any, Part]) -> set[Any]:
    """The nodes that are read by parts, by what is left, and as results."""
    found = set(output.all_input_nodes)
    for step in steps:
        found.update(parts[step].inputs if isinstance(step, tuple) else step.all_input_nodes)
    return found
