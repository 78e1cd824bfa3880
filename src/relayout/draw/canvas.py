"""A small SVG writer: boxes, words, lines and hatching, with one palette. It knows nothing about layouts.

A :class:`Canvas` collects elements, remembers how far they reach, and writes a document that fits around
them. Three rules make its pictures fit into any page:

* **Own paper.** The picture paints its background and uses its own ink: light in print and on light pages,
  dark where the reader asks for dark pages (:mod:`relayout.draw.colours`).
* **No fonts, no scripts, nothing from elsewhere.** Words use the reader's own fonts. Widths are calculated
  for the widest of the usual fixed-width fonts, so labels stay inside their boxes. Names inside the picture
  end in a number of its own, so that several fit into one page.
* **Same input, same bytes.** Numbers are written in one way, and nothing depends on time, place or the
  order of a set.

>>> canvas = Canvas()
>>> canvas.box(0, 0, 40, 24, fill=FILLS[0])
>>> canvas.words(20, 16, "a < b")
>>> "a &lt; b" in canvas.document("Two numbers", "A box with a comparison.")
True
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from xml.sax.saxutils import escape, quoteattr
from zlib import crc32

from relayout.draw.colours import CLASS, EDGE, FILLS, INK, MUTED, PAPER, RULE, STROKES, fill_of, style

__all__ = ["FILLS", "INK", "MUTED", "PAPER", "RULE", "STROKES", "Canvas", "fill_of", "text_width"]

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
MARGIN = 14

_DEFINITIONS = f"""<defs>
<pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<path d="M0 0V6" stroke="{MUTED}" stroke-width="1.6"/>
</pattern>
<marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7"
 markerUnits="userSpaceOnUse" orient="auto">
<path d="M0 0L8 4L0 8Z" fill="{INK}"/>
</marker>
</defs>"""


_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document may hold, not even escaped; names in files of others can have them."""


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\ufffd", text)


def _escaped(text: str) -> str:
    return escape(_legal(text))


def text_width(text: str, size: float = 12) -> float:
    """How wide a text in the fixed-width font is at most, in pixels."""
    return len(text) * size * 0.605


class Canvas:
    """Elements of a picture, and how far they reach; coordinates in pixels, y downwards."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._low = [0.0, 0.0]
        self._high = [0.0, 0.0]

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str = "none", stroke: str = INK,
        thickness: float = 1, opacity: float = 1, round: float = 0, dashed: bool = False,
    ) -> None:  # fmt: skip
        """Draw a rectangle; ``x, y`` is its upper left corner."""
        more = f' stroke="{stroke}"' if stroke != "none" else ""
        more += f' stroke-width="{_n(thickness)}"' if stroke != "none" and thickness != 1 else ""
        more += f' fill-opacity="{_n(opacity)}"' if opacity != 1 else ""
        more += f' rx="{_n(round)}"' if round else ""
        more += ' stroke-dasharray="3 2"' if dashed else ""
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" fill="{fill}"{more}/>'
        )
        self._reach(x, y, x + width, y + height)

    def hatch(self, x: float, y: float, width: float, height: float, *, fill: str) -> None:
        """Draw a box of padding: a pale colour under diagonal lines."""
        self.box(x, y, width, height, fill=fill, stroke="none", opacity=0.3)
        self.box(x, y, width, height, fill="url(#padding)", stroke="none")

    def words(
        self, x: float, y: float, text: str, *, size: float = 12, anchor: str = "middle", fill: str = INK,
        bold: bool = False, mono: bool = True,
    ) -> None:  # fmt: skip
        """Write a line of text; ``x`` is its start, middle or end, ``y`` its base line."""
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += f' font-size="{_n(size)}"' if size != 12 else ""
        more += f' fill="{fill}"' if fill != INK else ""
        more += ' font-weight="600"' if bold else ""
        more += f' font-family="{SANS}"' if not mono else ""
        self._parts.append(f'<text x="{_n(x)}" y="{_n(y)}"{more}>{_escaped(text)}</text>')
        width = text_width(text, size)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        self._reach(left, y - size, left + width, y + size * 0.3)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        stroke: str = INK,
        thickness: float = 1,
        arrow: bool = False,
    ) -> None:
        """Draw a broken line."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{_n(thickness)}" '
            f'stroke-linejoin="round" stroke-linecap="round"{end}/>'
        )
        for x, y in points:
            self._reach(x, y, x, y)

    def wire(
        self, x0: float, y0: float, x1: float, y1: float, *, stroke: str = INK, thickness: float = 2.5
    ) -> None:
        """Draw a curve that leaves and arrives vertically."""
        middle = (y0 + y1) / 2
        self._parts.append(
            f'<path d="M{_n(x0)} {_n(y0)} C{_n(x0)} {_n(middle)} {_n(x1)} {_n(middle)} {_n(x1)} {_n(y1)}" '
            f'fill="none" stroke="{stroke}" stroke-width="{_n(thickness)}"/>'
        )
        self._reach(min(x0, x1), y0, max(x0, x1), y1)

    def dot(self, x: float, y: float, radius: float, *, fill: str = INK) -> None:
        """Draw a filled circle."""
        self._parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" fill="{fill}"/>')
        self._reach(x - radius, y - radius, x + radius, y + radius)

    def hint(self, text: str) -> None:
        """Say more about the group that is open, to who points at it."""
        self._parts.append(f"<title>{_escaped(text)}</title>")

    @contextmanager
    def group(self, **data: object) -> Iterator[None]:
        """Group what is drawn inside, with ``data-`` attributes that programs can read."""
        attributes = "".join(f" data-{name}={quoteattr(_legal(str(value)))}" for name, value in data.items())
        self._parts.append(f"<g{attributes}>")
        yield
        self._parts.append("</g>")

    def document(self, title: str, description: str) -> str:
        """Return the whole SVG document; ``title`` and ``description`` are read out by screen readers."""
        (left, top), (right, bottom) = self._low, self._high
        body = _named("\n".join((_DEFINITIONS, *self._parts)))
        x, y = left - MARGIN, top - MARGIN
        width, height = right - left + 2 * MARGIN, bottom - top + 2 * MARGIN
        size = f'width="{_n(width)}" height="{_n(height)}"'
        view = " ".join(map(_n, (x, y, width, height)))
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" class="{CLASS}" viewBox="{view}" {size} role="img" '
                f'font-family="{MONO}" font-size="12" fill="{INK}">',
                f"<title>{_escaped(title)}</title>",
                f"<desc>{_escaped(description)}</desc>",
                style(f'{body} fill="{PAPER}" stroke="{EDGE}"'),
                f'<rect x="{_n(x)}" y="{_n(y)}" {size} rx="8" fill="{PAPER}" stroke="{EDGE}"/>',
                body,
                "</svg>",
                "",
            )
        )

    def _reach(self, left: float, top: float, right: float, bottom: float) -> None:
        self._low = [min(self._low[0], left), min(self._low[1], top)]
        self._high = [max(self._high[0], right), max(self._high[1], bottom)]

    @property
    def right(self) -> float:
        """How far to the right anything reaches."""
        return self._high[0]

    @property
    def bottom(self) -> float:
        """How far down anything reaches."""
        return self._high[1]


def _named(body: str) -> str:
    """The elements with names that no other picture has, by what they are."""
    for name in ("padding", "arrow"):
        if f"url(#{name})" not in body:
            continue
        own = f"{name}-{crc32(body.encode()):08x}"
        body = body.replace(f'id="{name}"', f'id="{own}"').replace(f"url(#{name})", f"url(#{own})")
    return body


def _n(number: float) -> str:
    """Write a number with at most two decimals, always in the same way."""
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
