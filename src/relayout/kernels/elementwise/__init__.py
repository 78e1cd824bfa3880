"""The kernel for whatever is computed element by element, whose time is that of reading and writing.

What is computed is an expression (:mod:`relayout.ops.expressions`).

========  ===================================================================================================
``runs``  runs of rows in the destination, and the nests around them
``map``   the kernel
``bytes``  functions of one byte, as tables
``words``  functions of 16 bits, as tables, where registers are short
========  ===================================================================================================
"""
