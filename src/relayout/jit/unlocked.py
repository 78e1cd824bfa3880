"""Object code of a module, without the lock that llvmlite holds around all of its calls.

LLVM compiles in several threads at once if each has a context and a target machine of its own: nothing else
is shared that is written to. llvmlite lets one thread in at a time, whatever they share. So the one call that
takes long, from a module to object code, is made here past that lock; all others are llvmlite's::

    thread 1   parse | emit object code .............. | parse | emit ...
    thread 2         | parse | emit object code ............ | parse
               (lock)  (lock)                            (lock)

The function is that of llvmlite's library, with the types that llvmlite gives it. Where a version of llvmlite
has none of that name, its own method is called, and threads wait for each other.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

__all__ = ["emitted", "emitting"]

NAME = "LLVMPY_TargetMachineEmitToMemory"
PARAMETERS = 4  # a target machine, a module, whether objects are wanted, and where to write what is wrong


@lru_cache(maxsize=1)
def emitting(library: Any) -> Any:
    """The function of llvmlite's library; None where it can't be found."""
    try:
        theirs = getattr(library.ffi.lib, NAME)
        found = ctypes.CDLL(library.ffi.lib._name)[NAME]  # one of our own: each such object has its types
        found.argtypes, found.restype = theirs.argtypes, theirs.restype
        known = len(found.argtypes) == PARAMETERS and found.restype is not None
    except (AttributeError, OSError, TypeError):
        return None
    return found if known else None


def emitted(library: Any, emit: Any, target: Any, ir: str) -> bytes:
    """Object code of a text, made in a context of its own.

    Parameters
    ----------
    library : module
        ``llvmlite.binding``.
    emit : callable or None
        What :func:`emitting` has found.
    target : llvmlite.binding.TargetMachine
        That no other thread uses.
    ir : str
        The text.

    Raises
    ------
    RuntimeError
        It is no module, or LLVM has no code for it.
    """
    context = library.create_context()
    module = library.parse_assembly(ir, context)
    try:
        module.verify()
        if emit is None:
            return bytes(target.emit_object(module))
        ffi = library.ffi
        with ffi.OutputString() as error:
            buffer = emit(target, module, 1, error)
            if not buffer:
                raise RuntimeError(str(error))
        try:
            size = ffi.lib.LLVMPY_GetBufferSize(buffer)
            return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), size)
        finally:
            ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)
    finally:
        module.close()
        context.close()
