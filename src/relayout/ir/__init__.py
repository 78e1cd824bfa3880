"""LLVM IR as text, written through a thin typed builder.

===============  ==========================================================================================
``types``        types, values that know theirs, and constants
``builder``      instructions, control flow, functions; a wrong type is an error where it is written
``folding``      integer operations whose result is known while they are written
``kernel``       the function that a kernel is, and its share of tasks
``vectors``      vectors loaded, stored and put together in pieces
``conversions``  vector code for every pair of data types, with scales and zero points
``registers``    what vectors hold of elements in memory: truth values, integers, real numbers
``kinds``        the kinds of numbers that these are, and casts between them
``math``         vector code for functions: exp, tanh, erf, powers
``exponential``  2**x for results of 11 bits or fewer
``lanes``        vectors loaded in one data type and stored in another
``dots``         instructions that multiply narrow numbers and add up the products
``amx``          tiles of x86 processors, which are multiplied as matrices, and their emulation
===============  ==========================================================================================
"""
