"""Chains of operators as one, which a kernel computes before it stores; and trees of elementwise ones.

The graph in the node is closed, as in :mod:`relayout.graph.operators.control`: its inputs are those of the
node, in their order. Its first node is the head, a convolution or the like, and each further one reads what
the one before computed.

``relayout.Elementwise`` has a graph of the same kind whose nodes compute element by element, in any order:
what stands between DequantizeLinear and QuantizeLinear (:mod:`relayout.graph.passes.elementwise`).
"""

from __future__ import annotations

from typing import Any

from relayout.graph.operators.registry import OPERATORS, Fact, operator

__all__ = ["ELEMENTWISE", "FUSED"]

FUSED = "relayout.Fused"
"""A chain of nodes as one."""

ELEMENTWISE = "relayout.Elementwise"
"""A tree of elementwise nodes as one."""


def _infer(*inputs: Fact | None, graph: Any) -> tuple[Fact, ...]:
    known: dict[str, Fact | None] = {
        name: Fact(data.shape, data.dtype, data) for name, data in graph.constants.items()
    }
    known.update(zip((value.name for value in graph.inputs), inputs, strict=True))
    known[""] = None
    for node in graph.nodes:
        given = (known[name] for name in node.inputs)
        facts = OPERATORS[node.operator].inferred(*given, outputs=len(node.outputs), **node.attributes)
        known.update(zip(node.outputs, facts, strict=True))
    return tuple(known[name] or Fact() for name in graph.results)


@operator(ELEMENTWISE, infer=_infer)
@operator(FUSED, infer=_infer)
def fused(*inputs: Any, graph: Any) -> tuple[Any, ...]:
    """The outputs of a graph."""
    return tuple(graph.evaluate(*inputs))
