"""Text LLVM IR: the pieces that all kernels are written with.

===============  ==========================================================================================
``writer``       the lines of a function, names, loops
``conversions``  vector code for every pair of data types, with scales and zero points
``math``         vector code for functions: exp, tanh, erf, powers
``lanes``        vectors with types and tails
===============  ==========================================================================================
"""
