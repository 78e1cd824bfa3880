"""Kernels for whatever is computed element by element, whose time is that of reading and writing.

==========  =================================================================================================
``walk``    loops over a destination, with a step for each operand
``map``     the kernel
``bodies``  what is computed: elementwise functions, binary operations, post-ops
==========  =================================================================================================
"""
