"""What a layout *is*: formats, layouts, memory descriptors, and views of them.

Standard library only; NumPy comes in where many offsets are asked for at once.

==================  =======================================================================================
``format``          an order of digits, sizes unknown
``layout``          a format with sizes or strides: where every element lies
``canonical``       normal forms: when are two layouts the same function?
``digits``          the value of a number in digits
``views``           other ways to index the same memory
``descriptor``      a layout and a data type, with oneDNN's questions and rules (``reshape``: its reshape)
``spelling``        the door through which text reaches :mod:`relayout.notation`
==================  =======================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.forking import later as _later

if TYPE_CHECKING:
    from relayout.layout import reshape as reshape
    from relayout.layout import text as text
    from relayout.layout import vectorised as vectorised
else:
    __getattr__, __dir__ = _later(__name__, "reshape", "text", "vectorised")
