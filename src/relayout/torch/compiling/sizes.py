"""Graphs with open sizes, for the sizes that a call brings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from relayout.torch.compiling.support import values_of

__all__ = ["opened", "sized"]


def opened(module: Any) -> bool:
    """Whether sizes of a graph's arguments are open, or one of them is a number."""
    return any(
        not isinstance(value, torch.Tensor)
        or not all(type(n) is int for n in (*value.shape, *value.stride()))
        for node in module.graph.nodes
        if node.op == "placeholder"
        for value in values_of(node)
    )


def sized(module: Any, given: Sequence[Any]) -> Any:
    """The graph for arguments of the sizes of these: each number that it computes from them is a constant.

    Parameters
    ----------
    module : torch.fx.GraphModule
        With sizes that are open; it stays as it is.
    given : sequence
        Its arguments.
    """
    made = torch.fx.GraphModule(module, _copied(module.graph))
    values = list(map(_apart, given))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        FakeTensorProp(made, mode).propagate(*values)
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}

    def known(node: Any) -> Any:
        value = node.meta.get("val")
        return value if isinstance(value, (bool, int, float)) else copies[node]

    for node in made.graph.nodes:
        if node.op == "output":
            graph.output(torch.fx.node.map_arg(node.args[0], known))
        else:
            copies[node] = graph.node_copy(node, known)
    return torch.fx.GraphModule(made, graph)


def _apart(one: Any) -> Any:
    """A tensor without its history, of which nothing has to be known."""
    return one.detach() if isinstance(one, torch.Tensor) else one


def _copied(graph: Any) -> Any:
    """A graph with nodes of its own."""
    made = torch.fx.Graph()
    made.output(made.graph_copy(graph, {}))
    return made
