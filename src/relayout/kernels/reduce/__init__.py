"""Kernels that combine elements along some axes, and do the same for every position of the others.

====================  ======================================================================================
``space``             the nests that source, destination and other operands share
``blocks``            the tasks that images and channels are, or parts of them
``axis``              an axis that windows go along: which of their taps are elements
``window``            pooling, and reductions along whole axes
``carried``           largest elements of windows that overlap, of which columns are combined once
``maxima``            largest elements where pixels are neighbours: down the columns, then along the row
``overlapping``       averages of bf16 and f16 in small windows: what they share is widened once
``separable``         averages and linear resampling of bytes in integers: the numbers of all such kernels
``separable_text``    such a kernel: columns first, then rows
``pixels``            linear resampling of bytes where pixels are neighbours: gathered and multiplied as bytes
``pixels_in_lanes``   the same where instructions gather bytes within lanes of 16
``nearest``           resampling by the nearest element: rows that are moved to all that are made of them
``steps``             rows of results in steps, by tables: what ``nearest`` and both ``pixels`` share
``planes``            averages of bytes over pictures that are one piece of memory
``pictures``          the same in small windows: sums of columns slide over the picture in registers
``stacked``           narrow pictures of bytes, bf16 and f16, several of them stacked as one long row
``sliding``           averages of bytes in small windows: sums of columns slide along a row in registers
``rounding``          averages of bytes, divided and rounded as integers
``linear``            linear resampling in f32, columns first, then rows
``linear_pairs``      the same with AVX2: between pairs of rows, each of which is converted once
``linear_channels``   along the rows where neighbours are channels
``linear_pixels``     along the rows where neighbours are pixels: columns are permuted to where results lie
``bands``             spatial axes as sparse matrices: resampling, gradients of pooling and resampling
``rows``              rows that are gone over several times, and where the lanes of vectors come from
``rows_text``         how vectors go through them, and how lanes are combined
``softmax``           softmax and its logarithm
``normalization``     layer, RMS, group and instance normalisation
``gradients``         gradients of softmax and of normalisations
``sums``              statistics and sums over rows that are long, in parts that are merged
====================  ======================================================================================
"""
