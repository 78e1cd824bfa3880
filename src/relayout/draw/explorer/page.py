"""The explorer's files and data as one page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from relayout.draw.colours import (
    DARK,
    DARK_PAGES,
    EDGE,
    FILLS,
    HOLE,
    INK,
    MUTED,
    PAPER,
    PLAIN,
    RAMP,
    RULE,
    STROKES,
)
from relayout.draw.explorer.table import table
from relayout.dtypes import dtype as as_dtype
from relayout.layout.format import Format
from relayout.layout.layout import Layout

__all__ = ["explorer_page"]

SCRIPTS: Final = ("notation.js", "layout.js", "state.js", "drawing.js", "explorer.js")
"""In the order in which the page runs them."""

EXAMPLES: Final = (
    ("nChw16c", "1,40,4,4", "nhwc"),
    ("b_fs_yx_fsv16", "2,17,3,3", "bfyx"),
    ("OIhw4i16o4i", "32,32,1,1", "oihw"),
    ("NCHW4", "1,6,4,4", "CHWN4"),
    ("os_is_yx_osv32_isv4_swizzled_by_2", "32,8,1,1", "oiyx"),
    ("channels_last", "2,3,4,4", "contiguous_format"),
)

ROLES: Final = {
    "paper": PAPER, "rule": EDGE, "border": RULE, "ink": INK, "muted": MUTED, "hole": HOLE, "hatch": RULE,
    "plain": PLAIN, "field": PAPER, "focus": STROKES[0], "wrong": STROKES[2],
}  # fmt: skip
"""What the style sheet uses the colours of pictures for."""


def explorer_page(
    format: str,
    dims: Sequence[int],
    *,
    beside: str | None = None,
    dtype: str = "f32",
) -> str:
    """The explorer, opened at a format.

    Parameters
    ----------
    format : str
        What is shown first, in any notation.
    dims : sequence of int
        The logical sizes.
    beside : str, optional
        A second format, side by side with the first.
    dtype : str
        The data type.

    Returns
    -------
    str
        A HTML document that needs nothing else.

    Raises
    ------
    LayoutError
        A format that nobody can read, or sizes that do not fit it.

    Examples
    --------
    >>> page = explorer_page("b_fs_yx_fsv16", (2, 17, 3, 3), beside="bfyx")
    >>> page.startswith("<!doctype html>"), "b_fs_yx_fsv16" in page
    (True, True)
    """
    kind = as_dtype(dtype).name
    shown = [format] if beside is None else [format, beside]
    for text in shown:
        Layout(dims, Format(text).resolve(len(dims), kind))
    data = {
        **table(shown),
        "start": {
            "format": format, "dims": ",".join(map(str, dims)), "dtype": kind, "beside": beside or "",
            "colour": "", "side": "a", "offset": 0,
        },
        "examples": EXAMPLES,
    }  # fmt: skip
    made = _file("explorer.html")
    for mark, text in (
        ("/*STYLE*/", palette() + _file("explorer.css")),
        ("/*SCRIPT*/", "\n".join(map(_file, SCRIPTS))),
        ("/*DATA*/", embedded(data)),
    ):
        made = made.replace(mark, text)
    return made


def embedded(data: Any) -> str:
    r"""JSON that can stand in a script element: no text in it can end the element or open another.

    >>> embedded("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def palette() -> str:
    """The colours of pictures as custom properties, and a class for each value of a digit."""
    light = [f"--{role}:{colour}" for role, colour in ROLES.items()]
    dark = [f"--{role}:{DARK[colour]}" for role, colour in ROLES.items()]
    classes = []
    for letter, colours in (("f", FILLS), ("r", RAMP)):
        for value, colour in enumerate(colours):
            light.append(f"--{letter}{value}:{colour}")
            dark.append(f"--{letter}{value}:{DARK[colour]}")
            classes.append(f".cell.{letter}{value}{{background-color:var(--{letter}{value})}}")
    return (
        f":root{{color-scheme:light dark;--page:#fff;{';'.join(light)}}}\n"
        f"{DARK_PAGES}{{:root{{--page:#0f1116;{';'.join(dark)}}}}}\n{''.join(classes)}\n"
    )


def _file(name: str) -> str:
    return (files("relayout.draw.explorer") / name).read_text(encoding="utf-8")
