"""Compute kernels: what primitives are lowered to, as text LLVM IR.

Sums of products (convolution, inner product, matrix product):

==================  =========================================================================================
``geometry``        the numbers of a convolution, without formats
``arithmetic``      in which numbers it is computed
``sides``           where a layout puts images, rows, pixels and channels
``weights``         where it puts vectors of weights, and the format that is read fastest
``nest``            the loop nest around the tile, as plain data
``planning``        formats to a nest
``cost``            how large tiles and tasks are
``tile``            the building block: a register tile that adds up products
``finish``          what becomes of a sum before it is stored
``convolution``     nest to text
``narrow``          groups narrower than a vector, depthwise above all: a plan of their own
``narrow_text``     and its text
==================  =========================================================================================

Everything else, whose time is that of reading and writing:

==================  =========================================================================================
``walk``            loops over a destination, with a step for each operand
``map``             a kernel for whatever is computed element by element
``bodies``          what is computed: elementwise functions, binary operations, post-ops
``joint``           loops that source and destination share, where not all axes are walked alike
``lanes``           vectors with types and tails
``window``          pooling
``normalise``       softmax
==================  =========================================================================================
"""
