"""An audit as data, and as a page: readable in a notebook, on a dark screen, and without a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import torch

from relayout.errors import counted, spelled_bytes, spelled_seconds
from relayout.torch.auditing.judging import grouped
from relayout.torch.auditing.seen import CHANNELS_LAST
from relayout.torch.auditing.spelling import short_source

if TYPE_CHECKING:
    from relayout.torch.auditing.judging import Finding
    from relayout.torch.auditing.report import Audit, Cause
    from relayout.torch.auditing.seen import Operator

__all__ = ["document", "fragment", "page"]

STYLE = """
.rl-audit { --ink: #1f2430; --muted: #666b78; --rule: #dedbd2; --card: #f6f4ee; --code: #efece4;
  --last: #3f9c86; --plain: #d98f3c; --both: #b7b8ae; --other: #8a8cab; --copy: #c9382f;
  font: 14px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 1100px; }
@media (prefers-color-scheme: dark) { .rl-audit { --ink: #e4e6eb; --muted: #9ba1ae; --rule: #3a3f4a;
  --card: #23272f; --code: #2d323c; --last: #4fb39b; --plain: #e0a052; --both: #6d7068; --other: #8184a8;
  --copy: #ee6a5f; } }
.jp-ThemedContainer[data-jp-theme-light="false"] .rl-audit, body[data-jp-theme-light="false"] .rl-audit {
  --ink: #e4e6eb; --muted: #9ba1ae; --rule: #3a3f4a; --card: #23272f; --code: #2d323c; --last: #4fb39b;
  --plain: #e0a052; --both: #6d7068; --other: #8184a8; --copy: #ee6a5f; }
.rl-audit h1 { font-size: 20px; margin: 0 0 .3em; } .rl-audit h2 { font-size: 16px; margin: 1.6em 0 .5em; }
.rl-audit .figures { display: flex; flex-wrap: wrap; gap: 10px; margin: 12px 0; }
.rl-audit .figure { background: var(--card); border-radius: 8px; padding: 8px 14px; min-width: 120px; }
.rl-audit .figure b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.rl-audit .figure span, .rl-audit .muted { color: var(--muted); font-size: 12.5px; }
.rl-audit .card { background: var(--card); border-left: 4px solid var(--copy); border-radius: 6px;
  padding: 8px 14px; margin: 8px 0; }
.rl-audit .card.lost { border-color: var(--plain); } .rl-audit .card.ambiguous { border-color: var(--other); }
.rl-audit .card p { margin: 3px 0; }
.rl-audit code { background: var(--code); color: var(--ink); border-radius: 4px; padding: 1px 5px;
  font: 12.5px ui-monospace, monospace; overflow-wrap: anywhere; }
.rl-audit .line { display: block; margin: 4px 0; padding: 4px 8px; white-space: pre-wrap; }
.rl-audit table { border-collapse: collapse; background: none; }
.rl-audit th, .rl-audit td { text-align: left; padding: 2px 14px 2px 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; font-size: 13px; background: none; color: var(--ink); }
.rl-audit .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.rl-audit .strip { width: 100%; height: 44px; display: block; border-radius: 6px; }
.rl-audit .key i { display: inline-block;
  width: 11px; height: 11px; border-radius: 3px; margin: 0 5px 0 14px; }
.rl-audit .key i:first-child { margin-left: 0; }
.rl-audit .wide { overflow-x: auto; }
.rl-audit summary { cursor: pointer; color: var(--muted); margin-top: 1.2em; }
"""

PAGE_STYLE = """
:root { color-scheme: light dark; } body { margin: 2em; background: #fff; }
@media (prefers-color-scheme: dark) { body { background: #16191f; } }
"""

COLOURS = (
    ("last", "channels-last"),
    ("plain", "contiguous"),
    ("both", "both, or no such number of axes"),
    ("other", "other strides"),
    ("copy", "copies that change the order"),
)
MOST_CARDS = 40
NARROWEST = 0.35  # of a strip of 1000


def document(audit: Audit) -> dict[str, Any]:
    """The audit as plain data."""
    times = audit.times
    return {
        "model": audit.model,
        "torch": torch.__version__,
        "threads": audit.threads,
        "train": audit.train,
        "error": audit.error,
        "seconds": audit.seconds,
        "copy_seconds": audit.copy_seconds,
        "lost": [one.plain() for one in audit.lost],
        "ambiguous": [one.plain() for one in audit.ambiguous],
        "copies": [one.plain() for one in audit.copies],
        "failed": None if audit.failed is None else audit.failed.plain(),
        "causes": [
            {
                "title": cause.title,
                "operator": cause.finding.operator,
                "modules": list(cause.modules),
                "source": cause.finding.source,
                "seconds": cause.seconds,
                "bytes": cause.nbytes,
                "copies": len(cause.copies),
                "advice": cause.finding.advice,
            }
            for cause in audit.causes
        ],
        "gradients": [{**one._asdict(), "advice": one.advice} for one in audit.gradients],
        "times": None
        if times is None
        else {
            "seconds": times.seconds,
            "left_out": times.left_out,
            "rounds": times.rounds,
            "threads": times.threads,
        },
        "operators": [
            {
                "index": one.index,
                "operator": one.operator,
                "kernels": list(one.kernels),
                "module": one.module,
                "layer": one.layer,
                "source": one.source,
                "backward": one.backward,
                "inputs": [str(seen) for seen in one.inputs],
                "outputs": [str(seen) for seen in one.outputs],
                "seconds": one.seconds,
            }
            for one in audit.operators
        ],
    }


def page(audit: Audit) -> str:
    """The whole page."""
    title = escape(f"{audit.model}: audit of memory formats")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{PAGE_STYLE}</style>'
    return f"<!doctype html>\n<html><head>{head}</head><body>\n{fragment(audit)}\n</body></html>\n"


def fragment(audit: Audit) -> str:
    """What is on the page, for a notebook."""
    parts = [f"<style>{STYLE}</style>", *_head(audit), *_strip(audit)]
    causes = audit.causes
    if causes:
        parts.append("<h2>What causes the copies</h2>")
        parts += [_card(c.finding, f"{c.title}: {c.figures}", "", c.modules) for c in causes[:3]]
        if len(causes) > 3:
            others = [
                (
                    c.title,
                    short_source(c.finding.source),
                    spelled_seconds(c.seconds),
                    len(c.copies),
                    spelled_bytes(c.nbytes),
                    c.finding.advice,
                )
                for c in causes[3:]
            ]
            heads = ("operator", "line", "#time", "#copies", "#bytes", "instead")
            parts.append(_folded(f"{len(others)} other causes", _table(heads, others)))
    for kind, title, found in (
        ("lost", "Lost: channels-last in, contiguous out", audit.lost),
        ("ambiguous", "Ambiguous: the strides will be read as another format", audit.ambiguous),
        ("", "Raised", (audit.failed,) if audit.failed else ()),
    ):
        parts += _cards(kind, title, found, causes[:3])
    if audit.gradients:
        parts += _gradients(audit)
    if audit.times is not None:
        parts += _times(audit)
    everything = [
        (
            one.index,
            one.operator,
            one.module + (" (backward)" if one.backward else ""),
            short_source(one.source),
            "; ".join(map(str, one.inputs[:3])),
            "; ".join(map(str, one.outputs[:2])),
            spelled_seconds(one.seconds),
        )
        for one in audit.operators
    ]
    columns = ("#", "operator", "module", "line", "in", "out", "#time")
    parts.append(_folded(f"All {len(everything)} operators", _table(columns, everything)))
    return f'<div class="rl-audit">{"".join(parts)}</div>'


def _head(audit: Audit) -> Iterable[str]:
    kind = "a training step" if audit.train else "one run"
    yield f"<h1>{escape(audit.model)}</h1>"
    threads = counted(audit.threads, "thread")
    yield f'<p class="muted">{kind}, torch {torch.__version__}, {threads}</p>'
    if audit.error:
        yield f'<div class="card"><p><b>It raised</b> {escape(audit.error)}</p></div>'
    share = audit.copy_seconds / audit.seconds if audit.seconds else 0.0
    figures = (
        (spelled_seconds(audit.seconds), f"{len(audit.operators)} operators"),
        (f"{share:.1%}", f"format changes, {spelled_seconds(audit.copy_seconds)}"),
        (str(len(audit.copies)), f"copies, {spelled_bytes(sum(one.nbytes for one in audit.copies))}"),
        (str(len(audit.lost)), "lose channels-last"),
        (str(len(audit.ambiguous)), "ambiguous tensors"),
    )
    cells = (f'<div class="figure"><b>{b}</b><span>{escape(said)}</span></div>' for b, said in figures)
    yield f'<div class="figures">{"".join(cells)}</div>'
    if audit.clean:
        yield "<p>Nothing to report: no operator loses its format, and nothing is copied to change it.</p>"


def _colour(one: Operator) -> str:
    out = next((seen for seen in one.outputs if len(seen.dims) > 2), None)
    if out is None or out.format == "both" or len(out.dims) not in (4, 5):
        return "both"
    if out.format in CHANNELS_LAST or out.format == "gaps":
        return "last"
    return "plain" if out.format == "contiguous" else "other"


def _strip(audit: Audit) -> Iterable[str]:
    """All operators one after the other, as wide as they take time."""
    if not audit.seconds or not audit.operators:
        return
    spent: dict[int, float] = {}
    for copy in audit.copies:
        spent[copy.at.index] = spent.get(copy.at.index, 0.0) + copy.seconds
    boxes, x = [], 0.0
    scale = 1000 / audit.seconds
    for one in audit.operators:
        width = one.seconds * scale
        if width < NARROWEST and one.index not in spent:
            x += width
            continue
        colour = f"var(--{_colour(one)})"
        where = " ".join((one.operator, one.module, short_source(one.source), spelled_seconds(one.seconds)))
        boxes.append(
            f"<g><title>{escape(where)}</title>"
            f'<rect x="{x:.2f}" y="0" width="{max(width, 0.2):.2f}" height="44" fill="{colour}"/>'
        )
        if one.index in spent:
            wide = max(min(width, spent[one.index] * scale), 0.8)
            boxes.append(f'<rect x="{x:.2f}" y="0" width="{wide:.2f}" height="26" fill="var(--copy)"/>')
        boxes.append("</g>")
        x += width
    yield '<svg class="strip" viewBox="0 0 1000 44" preserveAspectRatio="none" role="img">'
    yield f"<title>Time from left to right, coloured by the format written</title>{''.join(boxes)}</svg>"
    keys = (f'<i style="background: var(--{name})"></i>{said}' for name, said in COLOURS)
    yield f'<p class="muted key">{"".join(keys)}</p>'


def _card(found: Finding, title: str, kind: str, modules: Sequence[str]) -> str:
    named = [name for name in modules if name]
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    where = " · ".join(
        part
        for part in (short_source(found.source), f"{named[0]}{more}" if named else "", found.at.layer)
        if part
    )
    taken = "taken for " if found.kind == "ambiguous" else ""
    passed = ", in the backward pass" if found.at.backward else ""
    line = f'<code class="line">{escape(found.at.text)}</code>' if found.at.text else ""
    return (
        f'<div class="card {kind}"><p><b>{escape(title)}</b></p><p class="muted">{escape(where)}</p>{line}'
        f"<p>{escape(found.tensor)} {escape(str(found.src))} &rarr; {taken}{escape(found.dst)}{passed}</p>"
        f"<p><b>Instead:</b> {escape(found.advice)}</p></div>"
    )


def _cards(kind: str, title: str, found: Iterable[Finding], causes: Iterable[Cause] = ()) -> Iterable[str]:
    groups = grouped(found)
    if not groups:
        return
    yield f"<h2>{escape(title)}</h2>"
    above = {(one.finding.kind, one.finding.operator, one.finding.source) for one in causes}
    known = []
    for several in groups[:MOST_CARDS]:
        first = several[0]
        name = first.operator + (f", {len(several)} times" if len(several) > 1 else "")
        if (first.kind, first.operator, first.source) in above:
            known.append(name)
        else:
            yield _card(first, name, kind, [one.module for one in several])
    if known:
        yield f'<p class="muted">those above: {escape("; ".join(known))}</p>'


def _gradients(audit: Audit) -> Iterable[str]:
    yield "<h2>Gradients with other strides than their parameters</h2>"
    yield (
        "<p>DistributedDataParallel copies each of them into its bucket in every step, and warns that grad "
        "strides do not match bucket view strides.</p>"
    )
    rows = [
        (one.name, "x".join(map(str, one.dims)), one.strides, one.gradient_strides) for one in audit.gradients
    ]
    yield _table(("parameter", "dims", "strides", "gradient's"), rows[:MOST_CARDS])
    yield f"<p><b>Instead:</b> {escape(audit.gradients[0].advice)}</p>"


def _times(audit: Audit) -> Iterable[str]:
    times = audit.times
    assert times is not None
    first = times.seconds["as it is"]
    rows: list[tuple[object, ...]] = [
        (name, spelled_seconds(one), f"{first / one:.2f}") for name, one in times.seconds.items()
    ]
    rows += [(name, "", why) for name, why in times.left_out.items()]
    yield f"<h2>The whole {'training step' if audit.train else 'model'}</h2>"
    yield _table(("way", "#median", "times as fast"), rows)
    yield f'<p class="muted">median of {times.rounds} rounds, {counted(times.threads, "thread")}</p>'


def _folded(title: str, inside: str) -> str:
    return f'<details><summary>{escape(title)}</summary><div class="wide">{inside}</div></details>'


def _table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table; heads of columns of numbers begin with #."""
    kinds = [' class="n"' if head.startswith("#") else "" for head in heads]
    above = "".join(f"<th{k}>{escape(h.lstrip('#') or h)}</th>" for h, k in zip(heads, kinds, strict=True))
    lines = (
        "<tr>" + "".join(f"<td{k}>{escape(str(c))}</td>" for c, k in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{above}</tr>{''.join(lines)}</table>"
