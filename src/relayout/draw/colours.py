"""The colours of pictures: one palette for light pages and print, one for dark pages, and what they promise.

**Values have colours of their own.** Up to seven values of a digit are told apart by the seven hues of
:data:`FILLS`. Where there are more, neighbours share one of the eight steps of :data:`RAMP`, which goes from
light to dark as the values go up, and the legend says which values a step stands for. No colour means two
things in one picture.

**Readers with colour blindness.** :data:`FILLS` began as Paul Tol's *light* scheme, made for labelled cells
(https://personal.sron.nl/~pault/), and was moved until any two differ by at least 8.5 (of 100) in OKLab, for
normal eyes and for the three dichromacies of Machado et al. (2009); their dark versions do so too. A test
computes it. Nor is colour ever the only carrier of a meaning: cells are labelled, and padding is hatched.

**Dark pages.** Elements carry the colours of the light palette as attributes, which every program that reads
SVG understands. :func:`style` maps them to the dark palette where the reader asks for dark pages on a screen
(``prefers-color-scheme``); print stays light. Text reads with a contrast of 4.5
or more on each fill, as WCAG level AA asks for.

>>> shade(2, 4), shade(2, 40), shade(39, 40) == RAMP[-1]
('#e47924', '#f8edab', True)
>>> steps_of(40)[:2]
[(0, 4), (5, 9)]
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

__all__ = [
    "CLASS",
    "DARK",
    "DARK_PAGES",
    "EDGE",
    "FILLS",
    "HOLE",
    "INK",
    "MUTED",
    "PAPER",
    "PLAIN",
    "RAMP",
    "RULE",
    "STROKES",
    "fill_of",
    "shade",
    "steps_of",
    "style",
]

PAPER, EDGE, INK, MUTED = "#fdfcf9", "#e6e2d8", "#1f2430", "#5b6270"
RULE, HOLE, PLAIN, OTHER = "#c9c5bc", "#f0eee8", "#e4e2dc", "#d9d6ce"
FILLS = ("#95aff4", "#f5e89b", "#e47924", "#6d9d8a", "#faaeae", "#9ddbff", "#bbcc33")
STROKES = ("#3a6ea5", "#9c8412", "#b8492a", "#1f7d63", "#bf4d69", "#2f86ad", "#6f7d12")
"""Hues like those of ``FILLS``, dark enough for thin lines on the paper."""
RAMP = ("#f8edab", "#d3e7a3", "#aae0a5", "#7cd6b6", "#5ac8c9", "#52b5d5", "#58a1da", "#6a8bd7")

_DARK_FILLS = ("#184ca9", "#555400", "#541b01", "#2a4945", "#8c5765", "#00769d", "#667400")
_DARK_RAMP = ("#7b6c32", "#5e6933", "#40643c", "#1f5d4a", "#015354", "#00475b", "#003a65", "#16266a")

DARK: Final = {
    PAPER: "#171a21", EDGE: "#343945", INK: "#f3f0e8", MUTED: "#aab0bc",
    RULE: "#4a505d", HOLE: "#21252e", PLAIN: "#3a3f4a", OTHER: "#454a55",
    **dict(zip(FILLS, _DARK_FILLS, strict=True)),
    **dict(zip(STROKES, FILLS, strict=True)),
    **dict(zip(RAMP, _DARK_RAMP, strict=True)),
}  # fmt: skip
"""For each colour of the light palette that of the dark one."""

CLASS: Final = "relayout-picture"
DARK_PAGES: Final = "@media screen and (prefers-color-scheme:dark)"


def fill_of(value: int) -> str:
    """The colour of a number of few: the palette, over and over."""
    return FILLS[value % len(FILLS)]


def steps_of(count: int) -> list[tuple[int, int]]:
    """The values below ``count`` in runs that share a colour, each as its first and its last."""
    if count <= len(FILLS):
        return [(value, value) for value in range(count)]
    borders = [-(-k * count // len(RAMP)) for k in range(len(RAMP) + 1)]
    return [(first, after - 1) for first, after in pairwise(borders)]


def shade(value: int, count: int) -> str:
    """The colour of one of ``count`` values."""
    if count <= len(FILLS):
        return FILLS[value]
    return RAMP[value * len(RAMP) // count]


def style(used: str) -> str:
    """The style sheet that makes a picture dark: rules for the colours that the text ``used`` names."""
    rules = [f".{CLASS}{{fill:{DARK[INK]}}}"]
    for light, dark in DARK.items():
        rules += [
            f'.{CLASS} [{what}="{light}"]{{{what}:{dark}}}'
            for what in ("fill", "stroke")
            if f'{what}="{light}"' in used
        ]
    return f"<style>{DARK_PAGES}{{{''.join(rules)}}}</style>"
