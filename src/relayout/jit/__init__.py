"""From text to machine code in this process; loaded with the first kernel.

===============  ==========================================================================================
``abi``          how a kernel is called
``compile``      from text to an address that can be called; kept in memory and on disk
``background``   modules compiled in a thread of their own, while the next ones are written
``unlocked``     object code made by several threads at once, where llvmlite lets one in at a time
``engines``      code in memory, unmapped when nobody uses it any more
``cache``        the files on disk, and why they may be trusted
``floating``     the floating-point state that kernels rely on, set where a thread has another
``loader``       object code linked without LLVM, where it is ELF for x86-64
``pages``        memory that is written first and run afterwards, and linked code in it
``remembered``   what LLVM has said of this host in an earlier process
``identity``     which host this is: its processor, asked of the processor itself, and llvmlite's library
``support``      whether there is machine code here at all, and why not
===============  ==========================================================================================

Nothing is compiled at install time, and no compiler is needed: llvmlite carries LLVM. Hosts that forbid
executable memory fall back to the NumPy engine, with one warning.
"""
