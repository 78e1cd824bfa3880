"""What operations mean: data and definitions, without formats.

=================  ========================================================================================
``operation``      what all operations are: attributes, named inputs and outputs, a definition
``elementwise``    functions, binary operations and sums
``products``       convolution, inner product, matrix product
``blockwise``      matrix products by weights of few bits in blocks
``pooling``        pooling and reductions
``softmax``        softmax and its logarithm
``normalization``  batch, layer and group normalisation
``lrn``            local response normalisation
``recurrent``      RNN, LSTM and GRU: cells, layers, directions
``prelu``          a ReLU with a learned slope
``shuffle``        elements along an axis in another order
``resampling``     spatial axes of another size
``pieces``         concatenation and split
``reorder``        reorders, with their attributes
``pointwise``      expressions in the data types of their arguments
``native``         what is defined in the data types of its arguments, not in double precision
``expressions``    all that is computed element by element, as a list of operations on operands of any types
``indexing``       gathers and scatters: which element an index names
``custom``         Python functions
``backward``       the gradients of all these, by the same file names
``functions``      the elementwise functions
``derivatives``    their derivatives, from the source or the destination
``slopes``         some of them as code within a kernel
``binary``         the binary operations
``reductions``     the reductions: how elements become one
``post_ops``       what may follow another operation in the same pass: a sum, a function, a binary operation
``windows``        where the taps of windows lie
``formats``        what `any` follows, and which data types are computed with
``checks``         checks of arguments that several operations share
=================  ========================================================================================

Of the functions, binary operations and reductions definition and machine code stand beside each other.
"""
