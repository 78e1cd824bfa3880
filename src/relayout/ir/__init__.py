"""LLVM IR as text, written through a thin typed builder.

===============  ==========================================================================================
``types``        types, values that know theirs, and constants
``builder``      instructions, control flow, functions; a wrong type is an error where it is written
``vectors``      vectors loaded, stored and put together in pieces
``conversions``  vector code for every pair of data types, with scales and zero points
``math``         vector code for functions: exp, tanh, erf, powers
``lanes``        vectors loaded in one data type and stored in another
``writer``       a builder that also takes plain text, for kernels that are written so
===============  ==========================================================================================
"""
