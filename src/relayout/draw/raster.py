"""Pictures as PNG, for slides and chats that take no SVG.

resvg draws them (``pip install resvg-py``): a wheel of its own,
without a browser and without system libraries. It draws words with the fonts of the machine, and leaves
them out where there are none; that is found out first, and refused.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from relayout.draw.canvas import MONO
from relayout.draw.colours import DARK_PAGES
from relayout.errors import LayoutError, Unsupported
from relayout.forking import lock

__all__ = ["in_dark", "png"]

MOST_PIXELS = 1 << 28  # resvg would take a gigabyte for more

_PROBE = f'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20" font-family="{MONO}">{{}}</svg>'


def in_dark(svg: str) -> str:
    """A picture in the colours for dark pages, wherever it is shown.

    >>> from relayout.draw import svg
    >>> DARK_PAGES in in_dark(svg.digits("nChw8c"))
    False
    """
    before, found, after = svg.partition(f"<style>{DARK_PAGES}{{")
    return f"{before}<style>{after.replace('}}</style>', '}</style>', 1)}" if found else svg


def png(svg: str, scale: float = 2.0, dark: bool = False) -> bytes:
    """A picture as a PNG file.

    Parameters
    ----------
    svg : str
        The picture, as any function of this package returns it.
    scale : float
        Pixels of the file for one of the picture, above 0.
    dark : bool
        In the colours for dark pages; otherwise in those for light ones.

    Returns
    -------
    bytes
        The file.

    Raises
    ------
    Unsupported
        resvg is not installed, or finds no font.
    LayoutError
        The scale is not above 0, or the picture would be enormous.
    """
    root = ElementTree.fromstring(svg)
    width, height = (float(root.get(side, 0)) for side in ("width", "height"))
    if not scale > 0 or width * height * scale**2 > MOST_PIXELS:
        raise LayoutError(
            f"a picture of {width:g} x {height:g} pixels at scale {scale:g} can't be drawn; the scale must "
            f"be above 0, and {MOST_PIXELS:,} pixels are the most"
        )
    draw = _resvg()
    if draw(svg_string=_PROBE.format("")) == draw(svg_string=_PROBE.format('<text y="15">M</text>')):
        raise Unsupported("png files need a font, and resvg finds none; install DejaVu Sans Mono")
    return bytes(draw(svg_string=in_dark(svg) if dark else svg, zoom=scale))


def _resvg() -> Any:
    try:
        with lock():
            from resvg_py import svg_to_bytes
    except ImportError:
        raise Unsupported(
            "png files need resvg, which is not installed: pip install resvg-py (or write --svg or --html)"
        ) from None
    return svg_to_bytes
