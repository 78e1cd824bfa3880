"""Means over all pixels, in one form: GlobalAveragePool.

Exporters write them as ReduceMean over the spatial axes or as an AveragePool as large as the image.
"""

from __future__ import annotations

from relayout.graph.graph import Graph, Node
from relayout.graph.passes.rewriting import Around, attribute, rewritten, sizes

__all__ = ["with_global_pools"]


def with_global_pools(graph: Graph) -> Graph:
    """The graph with GlobalAveragePool for each mean over exactly the spatial axes, of 4 axes or 5.

    >>> import numpy as np
    >>> from relayout.graph.graph import Value
    >>> x = Value("x", (1, 8, 7, 7), np.dtype("float32"))
    >>> mean = Node("ReduceMean", ("x", "axes"), ("y",), {"keepdims": 0})
    >>> print(with_global_pools(Graph((x,), ("y",), (mean,), {"axes": np.array([-1, -2])})))
    x f32 1x8x7x7
    y/pooled = GlobalAveragePool(x)
    y = Flatten(y/pooled)
    -> y
    """
    return rewritten(graph, _mean, _window)


def _mean(node: Node, around: Around) -> tuple[Node, ...] | None:
    if node.operator != "ReduceMean" or len(node.inputs) < 2:
        return None
    dims, axes = around.dims(node.inputs[0]), around.data(node.inputs[1])
    if dims is None or len(dims) not in (4, 5) or axes is None or not around.floating(node.inputs[0]):
        return None
    if sorted(int(axis) % len(dims) for axis in axes.reshape(-1)) != list(range(2, len(dims))):
        return None
    if attribute(node, "keepdims"):
        return (Node("GlobalAveragePool", node.inputs[:1], node.outputs, {}, node.name),)
    pooled = around.fresh(f"{node.outputs[0]}/pooled")
    return (
        Node("GlobalAveragePool", node.inputs[:1], (pooled,), {}, node.name),
        Node("Flatten", (pooled,), node.outputs, {}, node.name),
    )


def _window(node: Node, around: Around) -> tuple[Node, ...] | None:
    """An AveragePool whose one window is the whole image."""
    if node.operator != "AveragePool":
        return None
    known = sizes(around.dims(node.inputs[0]))
    plain = attribute(node, "auto_pad") in ("NOTSET", "VALID") and not any(attribute(node, "pads") or ())
    if known is None or not plain or any(n != 1 for n in attribute(node, "dilations") or ()):
        return None
    if tuple(node.attributes["kernel_shape"]) != known[2:]:
        return None
    return (Node("GlobalAveragePool", node.inputs, node.outputs, {}, node.name),)
