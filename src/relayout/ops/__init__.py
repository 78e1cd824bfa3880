"""What operations mean: data and definitions, without formats.

``functions``    the elementwise functions
``binary``       the binary operations
``expressions``  what is computed from truth values, integers and real numbers, as a list of operations
``indexing``     which element an index names, for gathers and scatters
``reductions``   the reductions: how elements become one
``post_ops``     what may follow another operation in the same pass: a sum, a function, a binary operation
``formats``      what `any` follows, and which data types are computed with
``checks``       checks of arguments that several operations share
===============  ==========================================================================================
=======
=================  ========================================================================================
``operation``      what all operations are: attributes, named inputs and outputs, a definition
``elementwise``    functions, binary operations and sums
``products``       convolution, inner product, matrix product
``pooling``        pooling and reductions
``softmax``        softmax and its logarithm
``normalization``  batch, layer and group normalisation
``recurrent``      RNN, LSTM and GRU: cells, layers, directions
``pieces``         concatenation and split
``reorder``        reorders, with their attributes
``native``         what is defined in the data types of its arguments, not in double precision
``expressions``    what is computed from truth values, integers and real numbers, as a list of operations
``indexing``       gathers and scatters: which element an index names
``custom``         Python functions
``functions``      the elementwise functions
``binary``         the binary operations
``reductions``     the reductions: how elements become one
``post_ops``       what may follow another operation in the same pass: a sum, a function, a binary operation
``formats``        what `any` follows, and which data types are computed with
``checks``         checks of arguments that several operations share
=================  ========================================================================================

Of the functions, binary operations and reductions definition and machine code stand beside each other.
"""
