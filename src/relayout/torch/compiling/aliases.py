"""Results that share memory, as they do in eager PyTorch: ``y, y[0]``, or the two halves of ``y.chunk(2)``.

A part writes each of its results into memory of its own, views included. Where several results of a graph
are views of one value, a program could tell: it writes to one of them and reads the other. So the value
leaves its part once, and the views that the graph returns are made of it by PyTorch. Views that are also read
inside stay there: those that are returned are copies of their nodes.

Views of inputs are not seen here, since AOTAutograd makes them behind the graph.

``as_strided`` is the one operator that tells a view from a copy of it: it counts from the beginning of the
memory, and reads what lies beside the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from relayout.torch.compiling.support import is_getitem

__all__ = ["beside", "views_apart"]

STRIDED: Final = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default",
                            "aten.as_strided_scatter.default"})  # fmt: skip
"""Operators that read memory beside their operand."""


def views_apart(module: Any) -> tuple[Any, frozenset[str]]:
    """The graph with nodes of their own for views that it returns of one value; and the names of these.

    Parameters
    ----------
    module : torch.fx.GraphModule
        It stays as it is.
    """
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    several: dict[Any, list[Any]] = {}
    for node in output.all_input_nodes:
        *_, base = _seen_through(node)
        if base.op == "call_function":
            several.setdefault(base, []).append(node)
    if all(len(nodes) == 1 for nodes in several.values()):
        return module, frozenset()
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    result = graph.graph_copy(module.graph, copies)
    apart: dict[Any, Any] = {}
    for nodes in several.values():
        for node in nodes if len(nodes) > 1 else ():
            for one in reversed(list(_seen_through(node))[:-1]):
                if one not in apart:
                    apart[one] = graph.node_copy(one, lambda old: apart.get(old) or copies[old])
    back = {copies[node]: view for node, view in apart.items()}
    graph.output(torch.fx.node.map_arg(result, lambda node: back.get(node, node)))
    for node in reversed([copies[one] for one in module.graph.nodes if one in apart]):
        if not node.users:
            graph.erase_node(node)
    return torch.fx.GraphModule(module, graph), frozenset(node.name for node in apart.values())


def beside(nodes: Iterable[Any]) -> Iterator[Any]:
    """Those nodes that read memory beside a view, and the views that have to be PyTorch's for that.

    Parameters
    ----------
    nodes : iterable
        Of a graph.
    """
    for node in nodes:
        if node.op == "call_function" and str(node.target) in STRIDED:
            *views, _ = _seen_through(node.args[0])
            if views:
                yield from (node, *(one for one in views if not is_getitem(one)))


def _seen_through(node: Any) -> Iterator[Any]:
    """A node, what it is a view of, and so on."""
    yield node
    while node.op == "call_function" and (is_getitem(node) or getattr(node.target, "is_view", False)):
        source = node.args[0]
        if is_getitem(node) and not getattr(source.target, "is_view", False):
            return  # one of several results, which are no views
        node = source
        yield node
