"""A picture as a page: one HTML file that needs nothing else, light or dark as the reader's system is.

Below the sheet stand the digits (axes cut into digits, the digits in memory order) and what is worth knowing
about the sizes as a table. Whoever points at a cell is told its index, offset, byte and cache line. All
text that comes from users is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from relayout.draw.beside import beside
from relayout.draw.digits import digits
from relayout.draw.sheet import sheet
from relayout.draw.text import digits_table, facts
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout

__all__ = ["both", "page", "page_of", "rows_of", "table"]

STYLE = """
:root { color-scheme: light dark; --ink: #1f2430; --muted: #5b6270; --rule: #e6e2d8; --paper: #fff; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #f3f0e8; --muted: #aab0bc; --rule: #343945; --paper: #0f1116; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; padding: 0 1em; max-width: 70em;
  color: var(--ink); background: var(--paper); }
svg { max-width: 100%; height: auto; display: block; margin: 1em 0; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { text-align: left; padding: 2px 16px 2px 0; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
td { font-variant-numeric: tabular-nums; }
h1 { font-size: 22px; } h2 { font-size: 17px; margin-top: 2em; }
p.note { color: var(--muted); }
"""


def page(
    desc: MemoryDesc, *, axes: Sequence[str] | None = None, colour: str | None = None,
    vector: str | None = None, rows: int = 20, title: str | None = None,
) -> str:  # fmt: skip
    """The page of a tensor in a format.

    Parameters
    ----------
    desc : MemoryDesc
        What to draw.
    axes, colour, vector, rows, title : optional
        As :func:`relayout.draw.sheet.sheet` takes them.

    Returns
    -------
    str
        A HTML document.

    Examples
    --------
    >>> import relayout as rl
    >>> page(rl.MemoryDesc((1, 3, 2, 2), "u8", "nhwc")).startswith("<!doctype html>")
    True
    """
    layout = desc.layout
    roles = tuple(axes) if axes is not None else None
    name = title if title is not None else str(desc)
    parts = [
        sheet(desc, axes=axes, colour=colour, vector=vector, rows=rows, title=title),
        "<h2>Facts</h2>",
        table((), facts(desc, roles)),
    ]
    if layout.rank:
        parts += [
            "<h2>Digits</h2>",
            "<p>Each axis is cut into digits; the place of an element is the sum of digit times stride.</p>",
            digits(layout, axes=axes, title=f"the digits of {name}"),
            rows_of(desc, roles),
        ]
    note = (
        "Point at a cell to see its index, offset, byte and cache line. "
        "Cache lines have 64 bytes; the buffer is taken to begin with one."
    )
    return page_of(name, [*parts, f'<p class="note">{note}</p>'])


def both(
    a: MemoryDesc, b: MemoryDesc, *, axes: Sequence[str] | None = None, vector: str | None = None,
    names: tuple[str, str] | None = None,
) -> str:  # fmt: skip
    """The page of a tensor in two formats: which bytes move, and each of the two on a sheet.

    Parameters
    ----------
    a, b : MemoryDesc
        The tensor before and after, indexed alike.
    axes, vector, names : optional
        As :func:`relayout.draw.beside.beside` takes them.

    Returns
    -------
    str
        A HTML document.
    """
    titles = names or (str(a), str(b))
    parts = [beside(a, b, axes=axes, vector=vector, names=names)]
    for desc, title in zip((a, b), titles, strict=True):
        full = f"{title}   {'x'.join(map(str, desc.dims)) or 'scalar'}   {desc.dtype}"
        parts += [f"<h2>{escape(title)}</h2>", sheet(desc, axes=axes, vector=vector, title=full)]
    return page_of(f"{titles[0]} to {titles[1]}", parts)


def page_of(title: str, parts: Iterable[str]) -> str:
    """A page of parts that are HTML already."""
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style></head><body>",
            *parts,
            "</body></html>",
            "",
        )
    )


def rows_of(desc: MemoryDesc | Layout, roles: tuple[str, ...] | None = None) -> str:
    """The table of digits of a layout."""
    known = MemoryDesc(desc.dims, "f32", desc) if isinstance(desc, Layout) else desc
    made = digits_table(known, roles)
    cells = [[str(cell) for cell in column.cells] for column in made.columns]
    return table([str(column.header) for column in made.columns], list(zip(*cells, strict=True)))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose words are escaped."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table>{'<tr>' + head + '</tr>' if head else ''}{body}</table>"
