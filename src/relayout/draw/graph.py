"""A planned network as a picture: what computes what, in which formats, and where it is converted.

Boxes are nodes, from top to bottom, in the colour of the format that they write. A line has the colour of
the format in which its value is read; where that is another one than was written, a mark on the line says
what the conversion costs. Boxes with a dashed edge are views: they take no time. Values that enter or leave
the network are round.

Large networks would be miles of boxes: there, neighbours in a chain that go the same way are one box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from relayout.draw.canvas import FILLS, INK, MUTED, PAPER, RULE, STROKES, Canvas, text_width
from relayout.draw.ranks import apart, places
from relayout.layout.images import format_name

__all__ = ["MOST", "graph", "network"]

MOST = 150
"""Nodes that are drawn one by one."""

READ = 20
"""Nodes of a network without a plan that are looked at, for each box that is drawn."""

HEIGHT, GAP, SIDE = 36, 34, 18
LONGEST = 30
LEGEND = 560
OTHER = "#d9d6ce", MUTED


@dataclass
class _Box:
    """What is drawn as one."""

    title: str
    below: str
    format: str
    names: list[str]
    view: bool = False
    round: bool = False
    cost: float = 0.0
    operators: list[str] = field(default_factory=list)


@dataclass
class _Edge:
    """A value on its way, with the conversion that it needs."""

    src: int
    dst: int
    value: str
    format: str
    conversion: Any = None
    first: bool = True
    """Whether the conversion is made here; others share it."""


def graph(plan: Any, most: int = MOST, limit: int | None = None) -> str:
    """Draw a plan.

    Parameters
    ----------
    plan : relayout.graph.plan.Plan
        The network and its formats.
    most : int, optional
        A network of more nodes is drawn with chains as one box.
    limit : int, optional
        Of more boxes, the first ones are drawn, and the picture says how many are left out. Without it, all.

    Returns
    -------
    str
        An SVG document.
    """
    boxes, edges = _collected(plan)
    if len(plan.chosen) > most:
        boxes, edges = _folded(boxes, edges)
    left = 0 if limit is None else max(len(boxes) - limit, 0)
    if left:
        kept = len(boxes) - left
        boxes, edges = boxes[:kept], [edge for edge in edges if max(edge.src, edge.dst) < kept]
    return _drawn(plan, boxes, edges, left)


def network(graph: Any, most: int = 60) -> str:
    """Draw a network that has no plan yet: which operator reads what.

    Parameters
    ----------
    graph : relayout.graph.graph.Graph
        The network.
    most : int, optional
        Of a network of more nodes, chains are drawn as one box; of more boxes, the first ones are drawn.

    Returns
    -------
    str
        An SVG document.
    """
    looked_at = READ * most  # so that a network of any size is drawn at once
    boxes, edges = _read(graph, looked_at)
    if len(graph.nodes) > most:
        boxes, edges = _folded(boxes, edges)
    left = len(boxes) - most
    if left > 0:
        boxes, edges = boxes[:most], [edge for edge in edges if max(edge.src, edge.dst) < most]
    canvas = Canvas()
    more = f"; {left} more boxes are not drawn" if left > 0 else ""
    if len(graph.nodes) > looked_at:
        more += f", nor are nodes behind the first {looked_at}"
    said = f"{len(graph.nodes)} node{'s' * (len(graph.nodes) != 1)}{more}"

    def legend(canvas: Canvas, left: float) -> float:
        canvas.words(left, 0, said, size=12, anchor="start", bold=True)
        return 14.0

    _boxes(canvas, boxes, edges, {}, legend, text_width(said))
    return canvas.document(f"{graph.name or 'network'}: {said}", "Nodes of a network, in the order of a run.")


def _read(graph: Any, most: int) -> tuple[list[_Box], list[_Edge]]:
    """The first nodes of a graph, and which of them reads what another computes; constants are left out."""

    def sizes(name: str) -> str:
        dims = graph.value(name).dims
        return "" if dims is None else "x".join("?" if n is None else str(n) for n in dims) or "scalar"

    boxes: list[_Box] = []
    edges: list[_Edge] = []
    origin: dict[str, int] = {}
    for value in graph.inputs:
        origin[value.name] = len(boxes)
        boxes.append(_Box(value.name, sizes(value.name), "", [value.name], round=True))
    for node in graph.nodes[:most]:
        named = [name for name in node.outputs if name]
        edges += [_Edge(origin[name], len(boxes), name, "") for name in node.inputs if name in origin]
        origin |= dict.fromkeys(named, len(boxes))
        below = sizes(named[0]) if named else ""
        boxes.append(_Box(node.operator, below, "", [node.name or node.operator], operators=[node.operator]))
    for name in graph.results:
        if name in origin:
            edges.append(_Edge(origin[name], len(boxes), name, ""))
            boxes.append(_Box(name, sizes(name), "", [name], round=True))
    return boxes, edges


def _sizes(dims: Sequence[Any]) -> str:
    return "x".join(map(str, dims)) or "scalar"


def _collected(plan: Any) -> tuple[list[_Box], list[_Edge]]:
    solution = plan.solution
    conversions = {(one.value, one.dst): one for one in solution.conversions}
    made: set[tuple[str, Any]] = set()
    boxes: list[_Box] = []
    edges: list[_Edge] = []
    origin: dict[str, int] = {}
    written: dict[str, Any] = {}

    def joined(value: str, desc: Any) -> None:
        if value not in origin:
            return
        conversion = conversions.get((value, desc)) if desc != written.get(value) else None
        edge = _Edge(origin[value], len(boxes), value, format_name(desc), conversion)
        edge.first = (value, desc) not in made
        made.add((value, desc))
        edges.append(edge)

    for value in plan.graph.inputs:
        given = solution.written(value.name)
        written[value.name] = given[0] if given else None
        origin[value.name] = len(boxes)
        name = format_name(given[0]) if given else "?"
        boxes.append(_Box(value.name, _sizes(value.dims or ()), name, [value.name], round=True))
    for one, (operation, k) in zip(plan.chosen, plan.options, strict=True):
        for name, desc in zip(operation.inputs, operation.options[k].inputs, strict=True):
            joined(name, desc)
        for name, desc in zip(operation.outputs, operation.options[k].outputs, strict=True):
            origin[name], written[name] = len(boxes), desc
        operators = [one.case.operator, *(node.operator for node, _ in one.case.chain)]
        format = format_name(one.way.outputs[0])
        below = _sizes(one.case.out.dims)
        boxes.append(
            _Box(
                " ".join(operators),
                below,
                format,
                [one.case.name],
                one.way.view,
                False,
                one.way.cost,
                operators,
            )
        )
    for name in plan.graph.results:
        if name in origin:
            wanted = solution.problem.pins.get(name, written[name])
            joined(name, wanted)
            dims = _sizes(wanted.dims)
            boxes.append(_Box(name, dims, format_name(wanted), [name], round=True))
    return boxes, edges


def _folded(boxes: list[_Box], edges: list[_Edge]) -> tuple[list[_Box], list[_Edge]]:
    """Chains as one box: each node the only reader of the one before, in its format; views go with any."""
    out: dict[int, list[_Edge]] = {}
    into: dict[int, list[_Edge]] = {}
    for edge in edges:
        out.setdefault(edge.src, []).append(edge)
        into.setdefault(edge.dst, []).append(edge)
    place: list[int] = []
    folded: list[_Box] = []
    for k, box in enumerate(boxes):
        before = into.get(k, [])
        if len(before) == 1 and len(out[before[0].src]) == 1 and not box.round:
            edge = before[0]
            last = boxes[edge.src]
            alike = box.view or last.view or box.format == last.format
            if edge.conversion is None and not last.round and alike:
                whole = folded[place[edge.src]]
                whole.names += box.names
                whole.operators += box.operators
                whole.cost += box.cost
                whole.below, whole.view = box.below, whole.view and box.view
                whole.format = whole.format if box.view else box.format
                place.append(place[edge.src])
                continue
        place.append(len(folded))
        folded.append(_Box(**{**vars(box), "names": [*box.names], "operators": [*box.operators]}))
    for box in folded:
        if len(box.names) > 1:
            kinds = dict.fromkeys(box.operators)
            box.title = f"{len(box.names)} nodes: {', '.join(kinds)}"
    kept = []
    for edge in edges:
        src, dst = place[edge.src], place[edge.dst]
        if src != dst:
            edge.src, edge.dst = src, dst
            kept.append(edge)
    return _sorted(folded, kept)


def _sorted(boxes: list[_Box], edges: list[_Edge]) -> tuple[list[_Box], list[_Edge]]:
    """Boxes behind those that lead to them, which a chain need not be."""
    needs = [{edge.src for edge in edges if edge.dst == k} for k in range(len(boxes))]
    order: list[int] = []
    done: set[int] = set()
    left = list(range(len(boxes)))
    while left:
        k = next(one for one in left if needs[one] <= done)
        left.remove(k)
        order.append(k)
        done.add(k)
    at = {k: place for place, k in enumerate(order)}
    for edge in edges:
        edge.src, edge.dst = at[edge.src], at[edge.dst]
    return [boxes[k] for k in order], edges


def _cut(text: str, width: int = LONGEST) -> str:
    return text if len(text) <= width else text[: width - 2] + ".."


def _drawn(plan: Any, boxes: list[_Box], edges: list[_Edge], out: int) -> str:
    counts: dict[str, int] = {}
    for box in boxes:
        if not box.view:
            counts[box.format] = counts.get(box.format, 0) + len(box.names)
    for name in [*(box.format for box in boxes), *(edge.format for edge in edges)]:
        counts.setdefault(name, 0)
    ordered = sorted(counts, key=lambda name: (name == "strided", -counts[name]))
    colours = dict(zip(ordered, zip(FILLS, STROKES, strict=True), strict=False))
    colours.pop("strided", None)

    canvas = Canvas()
    marks = _boxes(
        canvas, boxes, edges, colours,
        lambda canvas, left: _legend(
            canvas, plan, left, {one: colours.get(one, OTHER) for one in ordered}, out
        ),
    )  # fmt: skip
    for edge, x, middle in _beside(marks):
        _mark(canvas, edge, x, middle)
    many = len(plan.solution.conversions)
    title = f"{plan.graph.name or 'network'}: {len(plan.chosen)} nodes, {many} conversions{_left_out(out)}"
    return canvas.document(title, "Nodes of a network in the colours of their formats, and conversions.")


def _boxes(
    canvas: Canvas, boxes: list[_Box], edges: list[_Edge], colours: Mapping[str, tuple[str, str]],
    legend: Callable[[Canvas, float], float], wide: float = LEGEND,
) -> list[tuple[_Edge, float, float]]:  # fmt: skip
    """Draw boxes and lines below a legend so ``wide``; return where marks of conversions belong."""
    titles = [_cut(box.title) for box in boxes]
    widths = [
        max(text_width(title, 11), text_width(box.below, 9), 40) + 16
        for title, box in zip(titles, boxes, strict=True)
    ]
    placed = places(widths, [(edge.src, edge.dst) for edge in edges], SIDE)

    sides = [x + side * width / 2 for x, width in zip(placed.x, widths, strict=True) for side in (-1, 1)]
    left = (min(sides, default=0.0) + max(sides, default=0.0) - wide) / 2
    top = legend(canvas, left)

    def y(rank: int) -> float:
        return top + rank * (HEIGHT + GAP)

    marks = []
    for edge, bends in zip(edges, placed.bends, strict=True):
        stroke = colours.get(edge.format, OTHER)[1]
        x0, y0 = placed.x[edge.src], y(placed.ranks[edge.src]) + HEIGHT
        with canvas.group(value=edge.value, format=edge.format):
            for rank, x in bends:
                canvas.wire(x0, y0, x, y(rank), stroke=stroke, thickness=1.6)
                x0, y0 = x, y(rank) + HEIGHT
                canvas.line([(x, y(rank)), (x, y0)], stroke=stroke, thickness=1.6)
            x1, y1 = placed.x[edge.dst], y(placed.ranks[edge.dst])
            canvas.wire(x0, y0, x1, y1, stroke=stroke, thickness=1.6)
        if edge.conversion is not None:
            marks.append((edge, x0 + (x1 - x0) / 4, (y0 + y1) / 2))
    for k, box in enumerate(boxes):
        fill = colours.get(box.format, OTHER)[0]
        x, above = placed.x[k] - widths[k] / 2, y(placed.ranks[k])
        with canvas.group(node=", ".join(box.names), format=box.format):
            canvas.box(
                x, above, widths[k], HEIGHT,
                fill=PAPER if box.view else fill, stroke=MUTED if box.view else INK,
                thickness=0.8, round=HEIGHT / 2 if box.round else 4, dashed=box.view,
            )  # fmt: skip
            canvas.words(placed.x[k], above + 16, titles[k], size=11, bold=not box.view)
            canvas.words(placed.x[k], above + 29, box.below, size=9, fill=INK)
    return marks


def _beside(marks: list[tuple[_Edge, float, float]]) -> list[tuple[_Edge, float, float]]:
    """Marks at one height beside each other."""
    found = []
    for height in dict.fromkeys(y for _, _, y in marks):
        row = sorted((one for one in marks if one[2] == height), key=lambda one: one[1])
        sizes = [text_width(_text(edge), 9) + 14 if edge.first else 12 for edge, _, _ in row]
        offsets = [0.0]
        for a, b in pairwise(sizes):
            offsets.append(offsets[-1] + (a + b) / 2)
        moved = apart([x for _, x, _ in row], [1.0] * len(row), offsets)
        found += [(edge, x, y) for (edge, _, y), x in zip(row, moved, strict=True)]
    return found


def _text(edge: _Edge) -> str:
    one = edge.conversion
    return f"{format_name(one.src)} > {format_name(one.dst)} {1e6 * one.cost:.1f} us"


def _mark(canvas: Canvas, edge: _Edge, x: float, y: float) -> None:
    """A conversion on its line: what it costs, where it is made."""
    one = edge.conversion
    if not edge.first:
        canvas.dot(x, y, 4, fill=INK)
        return
    text = _text(edge)
    width = text_width(text, 9) + 10
    with canvas.group(conversion=one.value, src=one.src, dst=one.dst):
        canvas.box(x - width / 2, y - 8, width, 16, fill=INK, stroke=INK, round=8)
        canvas.words(x, y + 3, text, size=9, fill=PAPER)


def _left_out(boxes: int) -> str:
    return f"; {boxes} more box{'es' * (boxes != 1)} not drawn" if boxes else ""


def _legend(canvas: Canvas, plan: Any, left: float, colours: dict[str, tuple[str, str]], out: int) -> float:
    """The colours' meaning; returns where the drawing begins."""
    spent = sum(one.cost for one in plan.solution.conversions)
    nodes, many = len(plan.chosen), len(plan.solution.conversions)
    counts = f"{many} conversion{'s' * (many != 1)}, {1e6 * spent:.1f} us"
    line = f"{nodes} node{'s' * (nodes != 1)}, about {1e6 * plan.cost:.0f} us; {counts}{_left_out(out)}"
    canvas.words(left, 0, line, size=12, anchor="start", bold=True)
    x, y = left, 12.0
    for name, (fill, _) in colours.items():
        width = text_width(name, 10) + 34
        if x > left and x + width > left + LEGEND:
            x, y = left, y + 20
        canvas.box(x, y, 16, 12, fill=fill, stroke=INK, thickness=0.6)
        canvas.words(x + 21, y + 10, name, size=10, anchor="start")
        x += width
    y += 20
    canvas.box(left, y, 16, 12, fill=PAPER, stroke=MUTED, thickness=0.8, dashed=True)
    canvas.words(left + 21, y + 10, "view: takes no time", size=10, anchor="start")
    canvas.box(left + 170, y, 30, 12, fill=INK, round=6)
    canvas.words(left + 206, y + 10, "conversion", size=10, anchor="start")
    canvas.dot(left + 300, y + 6, 4)
    canvas.words(left + 309, y + 10, "shares one that is made", size=10, anchor="start")
    canvas.line([(left, y + 20), (left + LEGEND, y + 20)], stroke=RULE)
    return y + 40
