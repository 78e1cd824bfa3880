"""Kernels that combine elements along some axes, and do the same for every position of the others.

====================  ======================================================================================
``space``             the nests that source, destination and other operands share
``window``            pooling, and reductions along whole axes
``separable``         averages and linear resampling of bytes in integers, columns first, then rows
``separable_text``    the text of that kernel
``rounding``          averages of bytes, divided and rounded as integers
``linear``            linear resampling in f32, columns first, then rows
``bands``             spatial axes as sparse matrices: resampling, gradients of pooling and resampling
``rows``              rows that are gone over several times, and where the lanes of vectors come from
``softmax``           softmax and its logarithm
``normalization``     layer, RMS, group and instance normalisation
``gradients``         gradients of softmax and of normalisations
``sums``              statistics and sums over rows that are long, in parts that are merged
====================  ======================================================================================
"""
