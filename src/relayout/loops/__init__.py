"""Loops over tensors, apart from formats, data types and processors.

==============  ===========================================================================================
``nest``        a nest of loops with a step for each operand, and the passes over it
``refine``      from layouts to nests: the common refinement
``padding``     the padding of a layout as nests, and nests of data with the padding that follows them
``difference``  what moves between two layouts of the same tensor
==============  ===========================================================================================

It imports nothing but :mod:`relayout.layout`.
"""
