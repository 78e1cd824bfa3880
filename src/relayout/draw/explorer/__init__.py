"""The explorer: one HTML page in which formats are typed, seen and stepped through.

The page is put together from files that stand beside this one:

``explorer.html``, ``explorer.css``  what is there, and how it looks
``notation.js``    formats from text: oneDNN's tags and digits by grammar, other names from a table
``layout.js``      the digit formula: where an element lies, what lies at an offset
``state.js``       what is shown, as text in the URL's fragment
``drawing.js``     slices of the tensor, and rows of memory
``explorer.js``    inputs, keys, the pointer, and the read-out

What Python adds is data: the names of all dialects as digits (:mod:`relayout.draw.explorer.table`), the data
types, and the colours of :mod:`relayout.draw.colours`. The page loads nothing, and its policy forbids it to.

>>> "</script>" in explorer_page("nChw8c", (1, 17, 4, 4)).partition('id="data">')[2].partition("</script>")[0]
False
"""

from relayout.draw.explorer.page import explorer_page

__all__ = ["explorer_page"]
