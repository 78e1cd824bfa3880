"""Running compiled kernels: threads, calls without Python in between, and what is found by measuring.

===============  ==========================================================================================
``threads``      one call shared among threads
``sharing``      into how many parts work is cut, and whether it pays to wake anybody
``pool``         the native threads that share it
``pool_text``    what they do, as text LLVM IR
``limits``       how long these wait for work
``driver``       many calls one after the other, without returning to Python
``prepared``     many calls of which only the arguments' addresses change
``builtin``      Python functions in machine code: they check the arrays of a call and make it
``checks``       the code of these functions
``thresholds``   from how many bytes on it pays to write around the caches, and to wake threads
``calibration``  measures them
``clock``        cycles in a second, measured: what turns a model's cycles into time
``kept``         answers that take long to find out, and what was measured, kept on disk
``collection``   the garbage collector, which waits while a network is planned and compiled
``tuning``       choosing by measuring: contests among candidates, and what is kept of them
``memcpy``       the C library's copy as a kernel, for comparison
===============  ==========================================================================================
"""
