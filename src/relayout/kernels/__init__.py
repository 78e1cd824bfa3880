"""Kernels: from a problem to candidates, and from a candidate to text LLVM IR.

================  =========================================================================================
``copy``          reorders: the same elements in other places
``elementwise``   whatever is computed element by element
``reduce``        pooling, softmax, normalisations: elements combined along some axes
``conv``          sums of products: convolution, inner product, matrix product
``blockwise``     matrix products by weights of 4 or 8 bits, in blocks with a scale each
================  =========================================================================================

Nothing is compiled or run here. What leaves this room is a kernel's text, and the plan it was written from.
"""
