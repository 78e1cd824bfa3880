"""Reorder: the same elements in another layout, another data type, or both.

==============  ==========================================================================================
``attributes``  scales, zero points, a shift and ``beta``: what happens to a value on its way
``overlap``     whether a source and a destination share memory
``reference``   the definition, by logical index; slow, and what everything else is compared with
``engine``      strided NumPy copies over the common refinement; takes every pair of layouts
``problem``     what has to be moved, as nests of loops, and the passes that simplify them
``kernels``     nests as LLVM IR: which kernel each gets, and how it is written
``native``      the kernels of one problem, compiled; nearly every pair of layouts has them
``predict``     the bytes that are moved, and how long a copy of as many takes
``arguments``   what the tensors and buffers of a call must be
``conversion``  one conversion, planned: checks, the engine that does it, the way around both
``explanation`` what a conversion does, as text
``plan``        :func:`reorder`, which remembers conversions; :class:`relayout.primitives.Reorder` holds one
==============  ==========================================================================================

Reorder is total: any layout to any layout, blocks that don't divide each other included, any data type to
any. Padding of the destination is written as zeros, holes of it are not touched, padding of the source is
never read.
"""

from relayout.reorder.plan import reorder

__all__ = ["reorder"]
