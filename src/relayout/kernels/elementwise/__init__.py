"""Kernels for whatever is computed element by element, whose time is that of reading and writing.

==========  =================================================================================================
``runs``    runs of rows in the destination, and the nests around them
``map``     the kernel
``bodies``  what is computed: elementwise functions, binary operations, post-ops
==========  =================================================================================================
"""
