"""An explanation as a page: readable in a notebook, on a dark screen, on paper, and without a network.

Everything that comes from a log is escaped: names of layers are whatever somebody called them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from relayout.errors import spelled_seconds
from relayout.logs.events import Log
from relayout.logs.judging import RoundTrip, Row
from relayout.logs.values import cells, summary

__all__ = ["fragment", "page"]

MOST_ROWS = 500
MOST_LINES = 40  # of a row's events that are listed

STYLE = """
.rl-logs { --ink: #1f2430; --muted: #5d6371; --rule: #dedbd2; --card: #f6f4ee; --weights: #3b6fb5;
  --trip: #c9382f; --same: #8a8cab; --other: #d98f3c; --rest: #b7b8ae;
  font: 14px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 1500px; }
@media (prefers-color-scheme: dark) { .rl-logs { --ink: #e4e6eb; --muted: #9ba1ae; --rule: #3a3f4a;
  --card: #23272f; --weights: #6ea0e6; --trip: #ee6a5f; --same: #a3a5cc; --other: #e0a052;
  --rest: #4a4f5a; } }
.rl-logs h1 { font-size: 20px; margin: 0 0 .3em; }
.rl-logs .bar { display: flex; gap: 2px; height: 26px; border-radius: 6px; overflow: hidden;
  margin: 12px 0 4px; }
.rl-logs .bar i { display: block; min-width: 2px; }
.rl-logs .key i { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin: 0 5px 0 14px; }
.rl-logs .key i:first-child { margin-left: 0; }
.rl-logs .weights { background: var(--weights); } .rl-logs .trip { background: var(--trip); }
.rl-logs .same { background: var(--same); } .rl-logs .other { background: var(--other); }
.rl-logs .rest { background: var(--rest); flex: 1; }
.rl-logs .muted { color: var(--muted); font-size: 12.5px; } .rl-logs .wide { overflow-x: auto; }
.rl-logs .problem { background: var(--card); border-left: 4px solid var(--trip); padding: 6px 12px;
  border-radius: 4px; margin: 8px 0; }
.rl-logs table { border-collapse: collapse; background: none; }
.rl-logs th, .rl-logs td { text-align: left; padding: 3px 14px 3px 0; font-size: 13px;
  vertical-align: top; background: none; color: var(--ink); }
.rl-logs tr.row td { border-top: 1px solid var(--rule); } .rl-logs th { white-space: nowrap; }
.rl-logs td.code { font: 12.5px ui-monospace, monospace; white-space: nowrap; }
.rl-logs td.name { overflow-wrap: anywhere; min-width: 7em; }
.rl-logs .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.rl-logs tr.said td { padding-bottom: 7px; color: var(--muted); }
.rl-logs td i.mark { display: inline-block; width: 9px; height: 9px; border-radius: 2px;
  margin-right: 6px; }
.rl-logs details { display: inline-block; margin-left: 10px; } .rl-logs details[open] { display: block; }
.rl-logs details summary { cursor: pointer; }
@media print { .rl-logs { max-width: none; } .rl-logs details { display: none; } }
"""

PAGE_STYLE = """
:root { color-scheme: light dark; } body { margin: 2em; background: #fff; }
@media (prefers-color-scheme: dark) { body { background: #16191f; } }
"""

KINDS = (
    ("weights", "packs weights"),
    ("trip", "half of a round trip"),
    ("same", "same bytes: nothing to convert"),
    ("other", "other conversions"),
    ("rest", "everything else in the log"),
)
NUMBERS = frozenset(("#", "times", "time", "each", "share", "bytes", "memcpy", "Relayout"))
CODE = frozenset(("from", "to", "shape"))


def page(log: Log, rows: Sequence[Row], trips: Sequence[RoundTrip], top: int | None) -> str:
    """The whole page."""
    title = escape(f"Conversions in {log.title}")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{PAGE_STYLE}</style>"
    )
    inside = fragment(log, rows, trips, top)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{inside}\n</body></html>\n'


def fragment(log: Log, rows: Sequence[Row], trips: Sequence[RoundTrip], top: int | None) -> str:
    """What is on the page, for a notebook."""
    shown = rows[: MOST_ROWS if top is None else top]
    parts = [f"<style>{STYLE}</style>", *_head(log, rows, trips), *_bar(log, rows)]
    if shown:
        parts += _table(shown)
    left = rows[len(shown) :]
    if left:
        spent = spelled_seconds(sum(row.seconds for row in left))
        parts.append(f'<p class="muted">{len(left)} more rows: {escape(spent)}</p>')
    parts += [f'<p class="muted">{escape(note)}</p>' for note in log.notes]
    return f'<div class="rl-logs">{"".join(parts)}</div>'


def _head(log: Log, rows: Sequence[Row], trips: Sequence[RoundTrip]) -> Iterable[str]:
    first, *others = summary(log, rows, trips)
    yield f"<h1>{escape(log.title)}</h1><p>{escape(first)}</p>"
    if others:
        yield f'<p class="muted">{escape("; ".join(others))}</p>'
    for problem in log.problems:
        yield f'<p class="problem"><b>Incomplete:</b> {escape(problem)}</p>'


def _class(row: Row) -> str:
    """The colour of a row: one meaning each."""
    if row.same_bytes:
        return "same"
    if row.weights:
        return "weights"
    return "trip" if row.returning else "other"


def _bar(log: Log, rows: Sequence[Row]) -> Iterable[str]:
    """All time from left to right, the conversions first."""
    if not log.seconds or not rows:
        return
    spent = {kind: 0.0 for kind, _ in KINDS}
    for row in rows:
        spent[_class(row)] += row.share
    spent["rest"] = max(0.0, 1 - sum(spent.values()))
    there = [(kind, said) for kind, said in KINDS if spent[kind] > 0]
    blocks = "".join(
        f'<i class="{kind}" style="width: {min(spent[kind], 1.0):.3%}" title="{said}: {spent[kind]:.1%}"></i>'
        for kind, said in there
    )
    yield f'<div class="bar" role="img" aria-label="time by kind of conversion">{blocks}</div>'
    keys = "".join(f'<i class="{kind}"></i>{said}: {spent[kind]:.1%}' for kind, said in there)
    yield f'<p class="muted key">{keys}</p>'


def _table(rows: Sequence[Row]) -> Iterable[str]:
    heads, table = cells(rows)
    above = "".join(f"<th{_kind(name)}>{escape(name)}</th>" for name in heads)
    yield f'<div class="wide"><table><tr>{above}</tr>'
    said: dict[str, int] = {}
    for number, (row, line) in enumerate(zip(rows, table, strict=True), 1):
        columns = (
            f"<td{_kind(name)}>{_mark(row) if name == 'conversion' else ''}{escape(cell)}</td>"
            for name, cell in zip(heads, line, strict=True)
        )
        yield f'<tr class="row">{"".join(columns)}</tr>'
        first = said.setdefault(row.advice, number)
        sentence = escape(row.advice) if first == number else f"As row {first}."
        yield (f'<tr class="said"><td></td><td colspan="{len(heads) - 1}">{sentence}{_lines(row)}</td></tr>')
    yield "</table></div>"


def _kind(name: str) -> str:
    kind = "n" if name in NUMBERS else "code" if name in CODE else "name" if name.endswith("er") else ""
    return f' class="{kind}"' if kind else ""


def _mark(row: Row) -> str:
    return f'<i class="mark {_class(row)}"></i>'


def _lines(row: Row) -> str:
    """The events of a row, folded."""
    if row.count < 2:
        return ""
    items = "".join(
        f"<li>{escape(_said(event.name, event.producer, event.consumer, event.line))}, "
        f"{spelled_seconds(event.seconds)}</li>"
        for event in row.events[:MOST_LINES]
    )
    more = row.count - MOST_LINES
    last = f"<li>{more} more</li>" if more > 0 else ""
    return f"<details><summary>all {row.count}</summary><ul>{items}{last}</ul></details>"


def _said(name: str, producer: str, consumer: str, line: int) -> str:
    where = f" (line {line})" if line else ""
    ends = f", {producer or '?'} to {consumer or '?'}" if producer or consumer else ""
    return f"{name}{where}{ends}"
