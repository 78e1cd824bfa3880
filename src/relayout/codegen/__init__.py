"""Machine code, written as text LLVM IR and compiled in the process; loaded with the first kernel.

===============  ==========================================================================================
``machine``      the processor: vector width, caches, features
``calibration``  thresholds that no data sheet tells, measured once
``ir``           text LLVM IR, a line at a time
``values``       vector code for every pair of data types, with scales and zero points
``math``         vector code for functions: exp, tanh, erf, powers
``compile``      from text to an address that can be called; kept in memory and on disk
``engines``      code in memory, unmapped when nobody uses it any more
``support``      whether there is machine code here at all, and why not
``environment``  numbers that environment variables give
``cache``        the files on disk, and why they may be trusted
``tuning``       choosing by measuring: contests among candidates, and what is kept of them
``threads``      sharing one call among threads: how many, and whether it pays
``pool``         the native threads that share it
``driver``       many calls one after the other, without returning to Python
``floating``     the floating-point state that kernels rely on, set where a thread has another
``builtin``      Python functions in machine code: they check the arrays of a call and make it
``checks``       the code of these functions
``prepared``     many calls of which only the arguments' addresses change
===============  ==========================================================================================

Nothing is compiled at install time, and no compiler is needed: llvmlite carries LLVM. Hosts that forbid
executable memory fall back to the NumPy engine, with one warning.
"""
