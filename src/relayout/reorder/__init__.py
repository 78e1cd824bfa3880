"""Reorder: the same elements in another layout, another data type, or both.

===============  =========================================================================================
``plan``         :func:`reorder`, which remembers conversions
``conversion``   one conversion, planned: checks, the engine that does it, the way around both
``arguments``    what the tensors and buffers of a call must be, for primitives too
``attributes``   scales, zero points, a shift and ``beta``: what happens to a value on its way
``axes``         which axis of the destination is which axis of the source
``overlap``      whether a source and a destination share memory
``explanation``  what a conversion does, as text
``native``       the kernels of one problem, compiled; nearly every pair of layouts has them
``operands``     the values of attributes as kernels read them
``quotients``    the two numbers by which kernels divide
``lines``        the four numbers by which bytes are shifted and scaled
``kept``         on disk what calling the kernels of a problem takes, so that nothing is planned again
``choice``       which kernels are taken: those that were measured to be fastest, or the estimate
``tuning``       the contest among schedules that a problem's first calls hold
``predict``      the bytes that are moved, and how long a copy of as many takes
``engine``       strided NumPy copies over the common refinement; takes every pair of layouts
``ready``        a process that has all that any reorder needs, to ask how much memory that is
``reference``    the definition, by logical index; slow, and what everything else is compared with
===============  =========================================================================================

What is moved, as nests of loops, and the text of kernels are :mod:`relayout.kernels.copy`'s subject;
:class:`relayout.primitives.Reorder` is a conversion as a primitive.

Reorder is total: any layout to any layout, blocks that don't divide each other included, any data type to
any. Padding of the destination is written as zeros, holes of it are not touched, padding of the source is
never read.
"""

from relayout.reorder.plan import reorder

__all__ = ["reorder"]
