"""From text IR to functions that can be called.

The code generator runs at -O2 and no IR passes run before it: kernels are written as the vector code that
they shall become, and optimisers take longer over it than the code saves. Object code is kept in memory, as
long as it is used (see :mod:`relayout.jit.engines`), and on disk (:mod:`relayout.jit.cache`): by its
text, :func:`compiled`, or by what the text would be made from, :func:`recalled`, so that finding it takes no
text. Nor does it take LLVM where :mod:`relayout.jit.loader` has linked it: LLVM is imported by the first who
compiles.

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

* Code goes with its engine, and an engine with the last kernel that refers to it. Whoever keeps a bare
  address keeps the kernel too. Only what :func:`loaded` returns stays until the process ends.
* A name that the process does not have ends the process, not the call: LLVM, which is asked to load what the
  loader refuses, has no gentler answer. Look it up first (``ctypes.CDLL(None)``) where a function of the
  system might be missing.
* A child that was forked while another thread was inside LLVM would find LLVM half done and its lock held for
  good. All that is asked of LLVM is therefore asked under :func:`relayout.forking.lock`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from relayout.errors import LayoutError, Unsupported
from relayout.forking import lock
from relayout.jit import background, cache, engines, loader, remembered
from relayout.jit.engines import Engine, kernel
from relayout.jit.floating import Usual, guarded
from relayout.jit.pages import placed
from relayout.jit.unlocked import emitted, emitting
from relayout.targets.machine import Machine, answers, asked, host, llvm

if TYPE_CHECKING:
    from relayout.jit.abi import Kernel

__all__ = [
    "Module",
    "address_of",
    "assemble",
    "available",
    "compiled",
    "loaded",
    "named",
    "recalled",
]


LEVEL = 2  # of the code generator
ENTRIES = 2  # the version of what entries on disk hold: linked code


class Module(NamedTuple):
    """A module before it is compiled."""

    ir: str
    names: Sequence[str]
    """Its kernels."""
    note: str = ""
    """A line about them that is kept with the code, for those who find it and don't make the module."""


Code = tuple[bytes, bytes | None]
"""Of an object, and the same linked; None where :mod:`relayout.jit.loader` does not know how."""

_lasting: list[Engine] = []  # threads of the pool sleep in such code


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether this host lets a process make machine code."""
    try:
        with lock():
            if remembered.recalled():  # it was so in an earlier process, and has been tried in this one
                return True
            _known(host().triple)
            llvm().check_jit_execution()
            remembered.keep(asked())
    except Unsupported:  # llvmlite can't be loaded
        return False
    except LayoutError:  # RELAYOUT_CPU names no processor
        raise
    except Exception:
        return False
    return True


@lru_cache(maxsize=8)
def _target(machine: Machine, level: int) -> Any:
    """A target machine that makes code for a processor.

    It is kept: whoever asks llvmlite for another one waits until the module is done that is being compiled.
    """
    return _known(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=level, reloc="pic", codemodel="default"
    )


@lru_cache(maxsize=4)
def _spare(machine: Machine) -> deque[Any]:
    """Target machines for the threads of a queue, each of which takes one out while it compiles."""
    wanted = {"opt": LEVEL, "reloc": "pic", "codemodel": "default"}
    make = partial(_known(machine.triple).create_target_machine, machine.cpu, machine.features, **wanted)
    return deque(make() for _ in range(background.MOST))


def _known(triple: str) -> Any:
    """The code generator of an architecture; an error where LLVM has none."""
    library = llvm()
    _prepare(triple.split("-")[0] != library.get_process_triple().split("-")[0])
    return library.Target.from_triple(triple)


@lru_cache(maxsize=2)
def _prepare(foreign: bool) -> None:
    """Make code generators known to LLVM: that of this host, or all of them, which takes longer."""
    library = llvm()
    if foreign:
        library.initialize_all_targets()
        library.initialize_all_asmprinters()
    else:
        library.initialize_native_target()
        library.initialize_native_asmprinter()


def assemble(ir: str, machine: Machine, level: int = LEVEL) -> bytes:
    """Object code of a module for a machine, which need not be this one."""
    with lock():
        return _assemble(ir, machine, level)


def _assemble(ir: str, machine: Machine, level: int) -> bytes:
    """A function of its own, so that its objects are freed before the lock is: LLVM does that too."""
    return _object(llvm(), _target(machine, level), ir)


def _object(library: Any, target: Any, ir: str) -> bytes:
    """Object code of a module; nothing here waits for the lock."""
    module = library.parse_assembly(ir)
    module.verify()
    return bytes(target.emit_object(module))


def loaded(ir: str, machine: Machine | None = None, level: int = LEVEL) -> Engine:
    """The engine that holds a module's code, ready to run; made once for each text and machine.

    It is kept until the process ends, so this is for the few pieces of code that serve all kernels.
    :func:`address_of` finds functions in it. ``level`` is how much the code generator does, 0 to 3: at 0 it
    takes a quarter of the time, which is right where little of the code is in loops.
    """
    with lock():
        engine = _of_text(ir, machine or host(), level)
        if engine not in _lasting:
            _lasting.append(engine)
        return engine


def recalled(
    problem: str, imported: int, make: Callable[[], Module], machine: Machine
) -> tuple[list[Kernel], str]:
    """The kernels of a problem; the module is made only where its code is not at hand.

    Parameters
    ----------
    problem : str
        All that shapes the module, besides the machine and the source code of this package.
    imported : int
        When this process began to import the package, see :func:`relayout.jit.cache.sources`.
    make : callable
        Makes the module. What it raises is passed on, and nothing is kept.
    machine : Machine
        What the code is for; it must be able to run here.

    Returns
    -------
    list of Kernel, str
        In the order of the module's names; and its note.
    """
    with lock(), Usual():  # constants are computed where a module is made
        code = cache.sources(imported)
        key = _key(machine, f"{code} {problem}")
        found = _kept(key, machine) if code is not None else None
        if found is None:
            module = _guarded(make(), machine)
            if not _unchanged(imported):
                key = _key(machine, f"-O{LEVEL} {module.ir}")
            waiting = _put_off(key, module, machine)
            return waiting or _kernels(_made(key, module, machine), module.names), module.note
        return _kernels(found, found.names), found.note


def _unchanged(imported: int) -> bool:
    """Whether the text was made by the source code that its name is made of.

    Files are looked at again where modules were imported since, and once for each kernel that is not put off.
    Those of many kernels are made by the same modules: what these are was found out when they were imported.
    """
    waiting, loaded = background.queue(), len(sys.modules)
    if waiting is not None and waiting.loaded == loaded:
        return True
    if not cache.unchanged(imported):
        return False
    if waiting is not None:
        waiting.loaded = loaded
    return True


def named(key: str, name: str, machine: Machine) -> Kernel | None:
    """A kernel by the name of its entry on disk (``kernel.engine.key``) and its own; None: it has gone."""
    with lock():
        found = _kept(key, machine)
        try:
            return None if found is None else kernel(found, name)
        except KeyError:
            return None


def _kernels(engine: Engine, names: Sequence[str]) -> list[Kernel]:
    return [kernel(engine, name) for name in names]


def _put_off(key: str, module: Module, machine: Machine) -> list[Any]:
    """The kernels of a module that is compiled in the background; none, where nothing is."""
    waiting = background.queue()
    if waiting is None or _kept(key, machine) is not None:
        return []

    library, targets = llvm(), _spare(machine)  # asked for here, under the lock
    emit = emitting(library)

    def make() -> Code:
        target = targets.pop()
        try:
            return _saved(key, module, emitted(library, emit, target, module.ir))
        finally:
            targets.append(target)

    def load(code: Code) -> Engine:
        return _added(key, module, code, machine)

    return list(waiting.kernels(key, module.names, make, load))


def _guarded(module: Module, machine: Machine) -> Module:
    """A module whose kernels compute in the usual floating-point state, whoever calls them."""
    return module._replace(ir=guarded(module.ir, module.names, machine.triple))


def _key(machine: Machine, what: str) -> str:
    """The name of an entry."""
    return cache.digest(f"{ENTRIES} {answers()[-1]} {machine}\n{what}".encode()).hex()


def _of_text(ir: str, machine: Machine, level: int = LEVEL) -> Engine:
    """The engine of a text."""
    return _made(_key(machine, f"-O{level} {ir}"), Module(ir, ()), machine, level)


def _kept(key: str, machine: Machine) -> Engine | None:
    """A module that this process or an earlier one has compiled."""
    return engines.at_hand(key, lambda code: _by_llvm(code, machine))


def _made(key: str, module: Module, machine: Machine, level: int = LEVEL) -> Engine:
    """The engine of a module, which is compiled now unless it is kept."""
    found = _kept(key, machine)
    if found is None:
        code = _saved(key, module, assemble(module.ir, machine, level))
        found = _added(key, module, code, machine)
    return found


def _saved(key: str, module: Module, code: bytes) -> Code:
    """The code of a module, which is kept on disk from now on: linked, if the loader knows how."""
    linked = loader.link(code)
    cache.save(key, f"{' '.join(module.names)}\n{module.note}\n".encode() + (linked or code))
    return code, linked


def _added(key: str, module: Module, code: Code, machine: Machine) -> Engine:
    """The engine of a module whose code there is."""
    found = engines.KNOWN.get(key)
    if found is None:
        found = Engine(_engine(*code, machine), module.names, module.note, key)
        engines.KNOWN.add(key, found)
    return found


def _engine(code: bytes, linked: bytes | None, machine: Machine) -> Any:
    """What owns code that is ready to run: pages, or an engine of LLVM's where it could not be linked."""
    return (placed(linked) if linked is not None else None) or _by_llvm(code, machine)


def _by_llvm(code: bytes, machine: Machine) -> Any:
    """An engine of LLVM's that holds nothing but this code.

    LLVM makes one only for a module, and would generate code for that too, empty as it is: it takes five
    times as long as all the rest.
    """
    library = llvm()
    module = library.parse_assembly("")
    target = _known(machine.triple).create_target_machine(reloc="pic", codemodel="default")
    engine = library.create_mcjit_compiler(module, target)
    engine.remove_module(module)
    engine.add_object_file(library.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def address_of(engine: Engine, name: str) -> int:
    """The address of a function that the module of an engine defines."""
    with lock():
        return engine.address(name)


def compiled(ir: str, names: Sequence[str], machine: Machine | None = None) -> dict[str, Kernel]:
    """The kernels of a module, by name; see :class:`Kernel` for how each is called."""
    machine = machine or host()
    with lock():
        module = _guarded(Module(ir, names), machine)
        key = _key(machine, f"-O{LEVEL} {module.ir}")
        waiting = _put_off(key, module, machine)
        made = waiting or _kernels(_made(key, module, machine), names)
        return dict(zip(names, made, strict=True))
