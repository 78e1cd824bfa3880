"""What operations mean: data and definitions, without formats.

===============  ==========================================================================================
``functions``    the elementwise functions
``binary``       the binary operations
``expressions``  what is computed from truth values, integers and real numbers, as a list of operations
``indexing``     which element an index names, for gathers and scatters
``reductions``   the reductions: how elements become one
``post_ops``     what may follow another operation in the same pass: a sum, a function, a binary operation
``formats``      what `any` follows, and which data types are computed with
``checks``       checks of arguments that several operations share
===============  ==========================================================================================
"""
