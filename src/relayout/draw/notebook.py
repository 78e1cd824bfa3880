"""What notebooks show: ``_repr_svg_`` and ``_repr_html_`` of formats, tensors, primitives, graphs, plans.

A format is drawn as its digits, a layout or descriptor on a sheet (:mod:`relayout.draw.sheet`), a tensor on a
sheet whose slices hold its values; a primitive and a graph are tables, a graph with a drawing; a plan is a
drawing. All are bounded, however large what
they show is, and say what they leave out. What can't be drawn is None, for which a notebook shows the plain
text.

>>> from relayout import Format
>>> of_format(Format("nChw8c")).startswith("<svg "), of_format(Format("contiguous_format"))
(True, None)
"""

from __future__ import annotations

from collections import Counter
from html import escape
from math import prod
from typing import TYPE_CHECKING, Any, Final

from relayout.draw.digits import digits
from relayout.draw.graph import graph as planned
from relayout.draw.graph import network
from relayout.draw.page import table
from relayout.draw.sheet import sheet
from relayout.errors import LayoutError

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.layout.format import Format
    from relayout.layout.layout import Layout

__all__ = ["of_format", "of_graph", "of_layout", "of_plan", "of_primitive", "of_tensor"]

ROWS: Final = 12  # of memory
MOST: Final = 10  # rows and columns of a slice
NODES: Final = 12  # of a graph, the first ones
BOXES: Final = 40  # of a graph
PLANNED: Final = 150  # boxes of a plan
LONGEST: Final = 160  # characters of a cell of a table
BORDER: Final = '<div style="overflow-x:auto">'


def of_format(format: Format) -> str | None:
    """The digits of a format; None where it waits for a rank or a data type."""
    try:
        return digits(format)
    except LayoutError:
        return None


def of_layout(layout: Layout | MemoryDesc) -> str:
    """A layout on a sheet."""
    return sheet(layout, rows=ROWS, most=MOST, pointed=False)


def of_tensor(tensor: Any) -> str:
    """A tensor on a sheet; the slices hold its values."""

    def value(index: tuple[int, ...]) -> str:
        one = tensor[index].numpy().item()
        return f"{one:.3g}" if isinstance(one, float) else str(one)

    return sheet(tensor.desc, rows=ROWS, most=MOST, values=value, pointed=False)


def of_primitive(primitive: Any) -> str:
    """A primitive: what it computes, and the format of each argument."""
    rows = [
        (
            name,
            "written" if name in primitive.outputs else "read",
            desc.layout.format if desc.layout.format is not None else "strides",
            "x".join(map(str, desc.dims)),
            desc.dtype,
            f"{desc.nbytes:,}",
            f"{(prod(desc.layout.padded) - desc.layout.size) * desc.dtype.bits // 8:,}",
        )
        for name, desc in primitive.descs.items()
    ]
    heads = ("argument", "", "format", "sizes", "type", "bytes", "of them padding")
    return (
        f"{BORDER}<b>{escape(type(primitive).__name__)}</b>{table(heads, rows)}"
        f"<code>{escape(_cut(str(primitive.operation), 600))}</code></div>"
    )


def of_graph(graph: Any) -> str:
    """A network: its inputs and results, how many nodes of which operators, and the first of them."""
    counts = Counter(node.operator for node in graph.nodes).most_common()
    said = ", ".join(f"{count} {operator}" for operator, count in counts[:NODES])
    if len(counts) > NODES:
        said += f", and {len(counts) - NODES} more operators"
    ends = [("input", str(value)) for value in graph.inputs]
    ends += [("result", str(value)) for value in graph.outputs]
    sides = [*ends[:NODES], *[("", f"and {len(ends) - NODES:,} more")] * (len(ends) > NODES)]
    first = [
        (
            node.operator,
            _cut(", ".join(node.inputs)),
            _cut(", ".join(str(graph.value(name)) for name in node.outputs if name)),
        )
        for node in graph.nodes[:NODES]
    ]
    left = len(graph.nodes) - len(first)
    more = f"<p>{left:,} more nodes are not shown.</p>" if left else ""
    size = sum(data.nbytes for data in graph.constants.values())
    return (
        f"{BORDER}<b>{escape(_cut(graph.name or 'network'))}</b>: {len(graph.nodes):,} nodes, "
        f"{len(graph.constants):,} constants of {size:,} bytes"
        f"{table((), sides)}<p>{escape(_cut(said, 2000))}</p>"
        f"{table(('operator', 'reads', 'computes'), first)}{more}{network(graph, BOXES)}</div>"
    )


def of_plan(plan: Any) -> str:
    """A planned network: its nodes in the colours of their formats, and its conversions."""
    return planned(plan, BOXES, limit=PLANNED)


def _cut(text: str, most: int = LONGEST) -> str:
    """A text without its middle, where it is long."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
