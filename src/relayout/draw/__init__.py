"""Drawings of layouts, for people: the same facts in two media.

===========  =========================================================================================
``svg``      pictures for pages, notebooks and slides: :func:`~relayout.draw.svg.logical`,
             :func:`~relayout.draw.svg.memory`, :func:`~relayout.draw.svg.digits`
``text``     drawings for the terminal; ``relayout show`` prints them
===========  =========================================================================================

Behind ``svg`` stand ``canvas`` (a small SVG writer that knows no layouts), ``cells`` (what lies at a place,
and which colour it gets) and one module for each picture. Drawing stands on top of everything else: nothing
in Relayout imports it but the command line.
"""
