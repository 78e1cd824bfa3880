"""Pictures of layouts as SVG text, with the standard library alone.

Five pictures answer five questions about a layout. They use the same colours, so that the eye can follow a
block from one to the next:

=================  =====================================================================================
picture            question
=================  =====================================================================================
:func:`logical`    the tensor as a program indexes it: *where does each element lie?* Cells hold offsets.
:func:`memory`     the memory, first to last place: *what lies here?* Cells hold indices.
:func:`digits`     the numbers in between: *how does an index become an offset?*
:func:`sheet`      both and the costs: *what does a vector unit read, what is padding, what is swizzled?*
:func:`beside`     the tensor in two formats: *which bytes move?*
=================  =====================================================================================

Cells are coloured by one *digit*, written as everywhere in Relayout: ``"c//8"`` (which block of channels),
``"c%8"`` (which place in the block), ``"h"``. Padding, room that belongs to the layout and holds zeros, is
hatched in the colour of the block that it completes. Holes, places between elements that hold other
data, are left empty with a dashed border.

>>> import relayout as rl
>>> picture = memory(rl.Layout((1, 17, 2, 2), "nChw8c"))
>>> picture.startswith("<svg ") and "<title>nChw8c:1x17x2x2 in memory</title>" in picture
True

Of a large tensor the first rows and the last are drawn, and the marked one. Every cell carries
what it says as ``data-offset`` and ``data-index`` as well, so that a program (or a test) can read the picture
back.
"""

from __future__ import annotations

from relayout.draw.beside import beside
from relayout.draw.digits import digits
from relayout.draw.logical import logical
from relayout.draw.memory import memory
from relayout.draw.sheet import sheet

__all__ = ["beside", "digits", "logical", "memory", "sheet"]
