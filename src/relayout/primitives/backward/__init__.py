"""Backward primitives: gradients, in any format, each made from its forward primitive.

The file of a kind has the name of its forward kind: ``convolution`` is the backward pass of
:mod:`relayout.primitives.convolution`. All are names of :mod:`relayout.primitives`, too. What they mean is in
:mod:`relayout.ops.backward`. What they share:

``base``               made from a forward primitive: its attributes; its formats, unless others are given
``weights``            what gradients of weights share; their program
``following``          formats of gradients where time is that of reading and writing
``normalizing``        what gradients of normalisations share; their programs
``rows``               gradients along axes as programs: softmax and normalisations
=====================  ===================================================================================
``base``               made from a forward primitive: its attributes; its formats, unless others are given
``weights``            what gradients of weights share; their program
``following``          formats of gradients where time is that of reading and writing
``normalizing``        what gradients of normalisations share; their programs
``rows``               gradients along axes as programs: softmax and normalisations
``recurrent_program``  the program of the backward pass through recurrent layers
=====================  ===================================================================================
"""
