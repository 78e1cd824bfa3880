"""From text IR to functions that can be called.

The code generator runs at -O2 and no IR passes run before it: kernels are written as the vector code that
they shall become, and optimisers take longer over it than the code saves. Object code is kept in memory for
the life of the process and on disk (see :mod:`relayout.codegen.cache`).
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from relayout.codegen import cache
from relayout.codegen.machine import Machine, host

__all__ = ["assemble", "available", "compiled"]

Kernel = Callable[[int, int, int, int], None]

_lock = threading.RLock()
_engines: dict[str, Any] = {}


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether this host lets a process make machine code."""
    try:
        _target(host())
        llvm.check_jit_execution()
    except Exception:
        return False
    return True


def _target(machine: Machine) -> Any:
    """A target machine of one's own: an execution engine takes it over and frees it."""
    _prepare()
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=2, reloc="pic", codemodel="default"
    )


@lru_cache(maxsize=1)
def _prepare() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def assemble(ir: str, machine: Machine) -> bytes:
    """Object code of a module for a machine, which need not be this one."""
    module = llvm.parse_assembly(ir)
    module.verify()
    return bytes(_target(machine).emit_object(module))


def compiled(ir: str, names: Sequence[str], machine: Machine | None = None) -> dict[str, Kernel]:
    """The functions ``void name(ptr source, ptr destination, i64 from, i64 to)`` of a module, by name.

    They are called with addresses, and release the interpreter's lock.
    """
    machine = machine or host()
    version = (
        f"{llvmlite.__version__} {llvm.llvm_version_info} {machine.triple} {machine.cpu} {machine.features}"
    )
    key = hashlib.sha256(f"{version}\n{ir}".encode()).hexdigest()
    with _lock:
        engine = _engines.get(key)
        if engine is None:
            code = cache.load(key)
            if code is None:
                code = assemble(ir, machine)
                cache.save(key, code)
            target = _target(machine)
            engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            engine.finalize_object()
            _engines[key] = engine
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    functions: dict[str, Any] = {name: kind(engine.get_function_address(name)) for name in names}
    for function in functions.values():
        function.engine = engine  # code lives as long as anybody can call it
    return functions
