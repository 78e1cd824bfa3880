"""From text IR to functions that can be called.

The code generator runs at -O2 and no IR passes run before it: kernels are written as the vector code that
they shall become, and optimisers take longer over it than the code saves. Object code is kept in memory for
the life of the process and on disk (see :mod:`relayout.codegen.cache`).

>>> kernel = compiled('''
... define void @note(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {
...   store i64 %parts, ptr %target
...   ret void
... }''', ["note"])["note"]
>>> import ctypes
>>> cell = ctypes.c_int64()
>>> kernel(0, ctypes.addressof(cell), 0, 2, 7)
>>> cell.value
7

Traps:

* Code goes with its engine, and engines are kept until the process ends: daemon threads may be inside a
  kernel while the interpreter shuts down. Whoever keeps a bare address keeps the engine too.
* A name that the process does not have ends the process, not the call: LLVM has no gentler answer. Look it
  up first (``ctypes.CDLL(None)``) where a function of the system might be missing.
* A child that was forked while another thread was inside LLVM would find LLVM half done and its lock held for
  good. All that is asked of LLVM is therefore asked under :func:`relayout.codegen.threads.lock`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import llvmlite
import llvmlite.binding as llvm

from relayout.codegen import cache
from relayout.codegen.machine import Machine, host
from relayout.codegen.threads import KERNEL, lock

__all__ = ["Kernel", "address_of", "assemble", "available", "compiled", "loaded"]


class Kernel(Protocol):
    """A compiled function ``void kernel(ptr source, ptr destination, ptr operands, i64 part, i64 parts)``.

    It does share number ``part`` of ``parts`` equal shares of its work: (0, 1) is everything. A call releases
    the interpreter's lock.

    Attributes
    ----------
    address : int
        Where the code is; what :func:`relayout.codegen.threads.run` takes.
    engine : object
        LLVM's execution engine, which owns the code.
    """

    address: int
    engine: Any

    def __call__(self, source: int, target: int, operands: int, part: int, parts: int, /) -> None:
        """Do one share; the first three are addresses."""


_engines: dict[str, Any] = {}


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether this host lets a process make machine code."""
    try:
        with lock():
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
    with lock():
        return _assemble(ir, machine)


def _assemble(ir: str, machine: Machine) -> bytes:
    """A function of its own, so that its objects are freed before the lock is: LLVM does that too."""
    module = llvm.parse_assembly(ir)
    module.verify()
    return bytes(_target(machine).emit_object(module))


def loaded(ir: str, machine: Machine | None = None) -> Any:
    """The execution engine that holds a module's code, ready to run; made once for each text and machine.

    It is kept until the process ends; :func:`address_of` finds functions in it.
    """
    with lock():
        machine = machine or host()
        version = (
            f"{llvmlite.__version__} {llvm.llvm_version_info} {machine.triple} {machine.cpu} "
            f"{machine.features}"
        )
        key = hashlib.sha256(f"{version}\n{ir}".encode()).hexdigest()
        if key not in _engines:
            code = cache.load(key)
            if code is None:
                code = assemble(ir, machine)
                cache.save(key, code)
            _engines[key] = _engine(code, machine)
        return _engines[key]


def _engine(code: bytes, machine: Machine) -> Any:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(machine))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def address_of(engine: Any, name: str) -> int:
    """The address of a function that the module of an engine defines."""
    with lock():
        return int(engine.get_function_address(name))


def compiled(ir: str, names: Sequence[str], machine: Machine | None = None) -> dict[str, Kernel]:
    """The kernels of a module, by name; see :class:`Kernel` for how each is called."""
    engine = loaded(ir, machine)
    kernels: dict[str, Any] = {}
    for name in names:
        address = address_of(engine, name)
        kernels[name] = KERNEL(address)
        kernels[name].address = address
        kernels[name].engine = engine
    return kernels
