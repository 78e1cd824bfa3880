"""From a graph to primitives: in which formats each node can be done, and what does it then.

::

    node  --rule-->  ways: formats in, formats out, cost  --planner-->  one way  --emitted-->  a Sequence

``case``      a node as rules see it: dims, constants, the formats in which values arrive
``ways``      one way to do a node; the table of rules
``wishes``    in which formats values are wanted behind views
``chains``    functions and binary operations as post-ops; what takes formats as they come
``pointwise``  functions and binary operations by themselves
``expressions``  masks, positions, casts: on truth values, integers and what mixes types
``convolutions``  convolutions, with constant weights and in training
``products``  matrix products
``integers``  products of integers, averages of bytes; ``requantizing``: their constants and post-ops
``quantization``  both ways between numbers and bytes
``windows``   pooling, reductions, softmax
``normalizations``  over rows, and over groups of channels
``gradients``  of functions, pooling, softmax, losses
``statistics``  normalisations that keep statistics, and their gradients
``optimizers``  steps of optimisers
``movement``  what is a layout and no work: transpose, reshape, slice, split, concat; what is a copy
``gathering``  elements by index
``cumulative``  running sums
``recurrent``  LSTM, GRU and RNN
``recurrent_training``  the same in training, and their gradients
``resizing``  interpolation, as resampling by a matrix for each axis
``emission``  the sequence: conversions where formats differ, parts of a concat written in place

A node without a rule, or whose rule declines, is done by its definition, in NumPy.
"""
