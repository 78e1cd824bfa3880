"""Drawings of layouts, for people: one module per medium, each with the same pictures.

=============  ==========================================================================================
``svg``        pictures for pages, notebooks and slides: :func:`~relayout.draw.svg.logical`,
               :func:`~relayout.draw.svg.memory`, :func:`~relayout.draw.svg.digits`
``text``       tables for the terminal, where it is installed; ``relayout show`` prints them
``canvas``     the SVG writer beneath ``svg``; it knows boxes and words, no layouts
=============  ==========================================================================================

Drawing stands on top of everything else: nothing in Relayout imports it but the command line.
"""
