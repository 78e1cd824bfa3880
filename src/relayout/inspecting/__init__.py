"""What a buffer holds: does it keep to its descriptor, and if nobody knows one, which format is it in?

Two questions, each answered by a frozen value that prints itself and has ``to_json()``::

    verify(buffer, desc, logical) -> Verification    is the buffer in the format it claims to be in?
    guess(buffer, logical)        -> Guess           in which formats does the buffer hold these elements?

A guess is worked out, not looked up. Each step hands a value to the next::

    buffer, logical
        |  elements      which data types, byte orders and positions of byte 0 can be meant at all
        v
    Memory, values       both as unsigned integers of the width of an element
        |  whereabouts   where does a value lie that occurs once?
        |  rows          none does: join neighbours into rows, which occur less often
        v
    places               of elements along each axis, with gaps
        |  digits        strides, extents and weights that explain them; axes that are fused
        v
    Layout               checked against every element; nothing unchecked is passed on
        |  naming        formats in all dialects that place these elements so, padding included
        v
    Match                layout, data type, formats that agree here and why

Modules import each other downwards in this list only::

    ``elements``       what can be read of a buffer: its data types and where elements begin
    ``scales``         the scale by which values were quantised
    ``whereabouts``    where values lie that occur once; by sorting, or by streaming through what is large
    ``digits``         the digits of an axis from places of some of its elements
    ``rows``           innermost digits first, where values repeat
    ``placing``        a layout from values and memory, checked element by element
    ``naming``         formats that place elements as a layout does
    ``matches``        the values Match and Guess
    ``guessing``       :func:`guess`
    ``patterns``       what elements that differ have in common
    ``verification``   :func:`verify`

Beside them, of no buffer but of a format alone::

    ``costs``          :func:`cost`: bytes, padding, cache lines and pages that typical accesses touch
"""
