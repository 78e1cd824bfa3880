"""Kernels: from a problem to candidates, and from a candidate to text LLVM IR.

================  =========================================================================================
``copy``          reorders: the same elements in other places
``elementwise``   whatever is computed element by element
``reduce``        pooling and softmax: elements combined along some axes
``conv``          sums of products: convolution, inner product, matrix product
``functions``     vector code for elementwise functions and binary operations, as all of these use it
================  =========================================================================================

Nothing is compiled or run here. A kernel's text and the plan that it was written from leave this room.
"""
