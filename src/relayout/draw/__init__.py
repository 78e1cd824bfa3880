"""Drawings of layouts, for people: the same facts in two media.

===========  =========================================================================================
``svg``      pictures for pages, notebooks and slides: :func:`~relayout.draw.svg.sheet` (one tensor in one
             format), :func:`~relayout.draw.svg.beside` (in two: which bytes move), and their parts
             :func:`~relayout.draw.svg.logical`, :func:`~relayout.draw.svg.memory` and
             :func:`~relayout.draw.svg.digits`
``text``     drawings for the terminal; ``relayout show`` prints them
``graph``    a planned network: nodes, formats as colours, conversions (``ranks``: what stands where)
===========  =========================================================================================

Behind ``svg`` stand ``canvas`` (a small SVG writer that knows no layouts) with its ``colours``, ``cells``
(what lies at a place, and which colour it gets) and one module for each picture or part of one: ``lines``
(memory by cache lines), ``orders`` (swizzles), ``vector``. ``raster`` makes a PNG of a picture, ``page`` a
page, ``notebook`` what notebooks show. Drawing stands on top of everything else: nothing in Relayout imports
it but the command line and, when they are called, ``Plan.svg`` and the methods that notebooks call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.forking import later as _later

if TYPE_CHECKING:
    from relayout.draw import svg as svg
    from relayout.draw import text as text
else:
    __getattr__, __dir__ = _later(__name__, "svg", "text")
