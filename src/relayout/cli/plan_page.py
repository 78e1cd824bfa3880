"""The page that ``relayout plan --html`` writes: the drawing beside the tables, in one file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

__all__ = ["page"]

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em; color: #1f2430; background: #fff; }
main { display: flex; gap: 2em; align-items: flex-start; }
table { border-collapse: collapse; margin: 0 0 1.6em; }
th, td { text-align: left; padding: 2px 12px 2px 0; border-bottom: 1px solid #e6e2d8; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
h1 { font-size: 20px; } h2 { font-size: 16px; }
.drawing { overflow: auto; max-height: 92vh; max-width: 60%; border-radius: 8px; }
.tables { flex: 1; min-width: 0; overflow-x: auto; }
@media (max-width: 1000px) { main { display: block; } .drawing { max-width: 100%; } }
"""


def page(document: Mapping[str, Any], svg: str) -> str:
    """The page of a plan.

    Parameters
    ----------
    document : mapping
        What ``relayout plan --json`` writes.
    svg : str
        The drawing.
    """
    cost, conversions = document["cost"], document["conversions"]
    proof = "no plan costs less" if document["exact"] else f"none costs less than {_us(document['bound'])} us"
    plans = {"chosen": {"cost": cost, "conversions": len(conversions)}, **document["compared"]}
    compared = [
        (
            name if name in ("chosen", "greedy") else f"{name} everywhere",
            *(("impossible", "", "") if one is None else _compared(one, cost)),
        )
        for name, one in plans.items()
    ]
    left = [
        (c["value"], c["from"], c["to"], c["bytes"], _us(c["cost"]), ", ".join(c["for"]) or "the result")
        + ((c["why"].removeprefix("without it ").replace(" without it", ""),) if "why" in c else ())
        for c in conversions
    ]
    nodes = [
        (n["name"], " ".join([n["operator"], *n["then"]]), n["format"], _us(n["cost"]))
        for n in document["nodes"]
    ]
    heads = ("value", "from", "to", "#bytes", "#us", "for", "without it")
    parts = (
        f"<h1>{escape(document['model'])}</h1>",
        f"<p>{len(nodes)} operations, about {_us(cost)} us; {escape(proof)}.</p>",
        '<main><div class="drawing">',
        svg,
        '</div><div class="tables">',
        "<h2>Beside other plans</h2>",
        _table(("plan", "#us", "#conversions", "#ratio"), compared),
        f"<h2>Conversions: {len(left)}</h2>",
        _table(heads[: len(left[0])], left) if left else "<p>None is left.</p>",
        "<h2>Nodes</h2>",
        _table(("node", "operators", "format", "#us"), nodes),
        "</div></main>",
    )
    title = f"{escape(document['model'])}: formats"
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return "\n".join(("<!doctype html>", f"<html><head>{head}</head><body>", *parts, "</body></html>", ""))


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"


def _compared(one: Mapping[str, Any], cost: float) -> tuple[str, ...]:
    return _us(one["cost"]), str(one["conversions"]), f"{one['cost'] / cost:.2f}" if cost else ""


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table; heads of columns of numbers begin with #."""
    kinds = [' class="n"' if head.startswith("#") else "" for head in heads]
    lines = ["<table><tr>"]
    lines += [f"<th{kind}>{escape(h.lstrip('#'))}</th>" for h, kind in zip(heads, kinds, strict=True)]
    lines.append("</tr>")
    for row in rows:
        cells = (f"<td{kind}>{escape(str(cell))}</td>" for cell, kind in zip(row, kinds, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    lines.append("</table>")
    return "\n".join(lines)
