"""Kernels that combine elements along some axes, and do the same for every position of the others.

===========  ================================================================================================
``joint``    loops that source and destination share, where not all axes are walked alike
``window``   pooling
``softmax``  softmax and its logarithm
===========  ================================================================================================
"""
