"""What backward passes mean: gradients, each in a file that is named as that of its forward operation.

A gradient of an operation with inputs ``x`` and outputs ``y`` is, for a number L computed from y::

    diff_y = dL/dy     what comes in, with the dims of y
    diff_x = dL/dx     what goes out, with the dims of x: the sum over all y of diff_y dy/dx

so a backward operation is an :class:`~relayout.ops.operation.Operation` like others: inputs ``diff_dst`` and
whatever of the forward pass is needed again (``src``, ``weights``, ``dst``, ``workspace``), outputs
``diff_src``, ``diff_weights``, ``diff_bias`` and so on, the names that oneDNN's specification has. Its
attributes are those of the forward operation. The definition is in double precision, and is tested against
finite differences of the forward definition and against PyTorch's gradients.

Accumulation is not part of it: where a value is read by several operations, the graph adds the gradients.

=======================  =====================================================
``convolution``          the data of convolutions
``deconvolution``        data, weights and bias of deconvolutions
``convolution_weights``  weights and bias of convolutions
``elementwise``          elementwise functions, by their source or destination
``inner_product``        inner products
``pooling``              windows hand on what they got
``prelu``                PReLU, its slopes included
``normalization``        batch, layer and group normalisation
``softmax``              softmax and its logarithm
``lrn``                  local response normalisation
``recurrent``            recurrent layers, back through time
``resampling``           what each element was read for
``shuffle``              everything is put back
=======================  =====================================================
"""
