"""Kernels that combine elements along some axes, and do the same for every position of the others.

===========  ================================================================================================
``space``    the nests that source and destination share
``window``   pooling, and reductions along whole axes
``softmax``  softmax and its logarithm
===========  ================================================================================================
"""
