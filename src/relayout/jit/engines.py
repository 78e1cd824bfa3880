"""Compiled code in memory, for as long as anybody uses it.

Loaded code takes two maps of the process and 8 KiB (:mod:`relayout.jit.pages`), or 64 KiB where LLVM has
loaded it. A system grants a process some 65,000 maps (Linux: ``vm.max_map_count``). So the code of shapes
that nobody uses any more has to go::

    plan, program, function --> kernel --> Engine        in use: stays, however many there are
    Engines: the last KEPT that were asked for ---^      stay, so that asking again costs nothing
    otherwise                                            unmapped when the next engine is made

What uses code refers to it: a kernel has its engine, and whoever writes down the address of a kernel keeps
the kernel (:mod:`relayout.runtime.prepared`, :mod:`relayout.runtime.builtin`, schedules). Python counts these
references, those of the frames of calls that are under way included. The thread pool knows a kernel's address
only while a region lasts.

Traps:

* The last reference may go at any time: in a garbage collection, with any lock held. LLVM must be asked under
  :func:`relayout.forking.lock`, and waiting for that there could wait for ever. So an engine that goes is
  only put aside, and unmapped by the next who makes one, who holds the lock.
* Nothing is unmapped while the interpreter shuts down: daemon threads may still be inside.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from relayout.forking import lock
from relayout.jit import cache
from relayout.jit.pages import is_linked, placed

if TYPE_CHECKING:
    from relayout.jit.abi import Kernel

__all__ = ["KEPT", "KERNEL", "KNOWN", "Engine", "Engines", "at_hand", "kernel", "unmap"]

KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
"""What ctypes has to know of a kernel (:class:`relayout.jit.abi.Kernel`)."""

KEPT = 256  # engines that nobody need use: 512 maps, 2 MiB, or 16 MiB of LLVM's

_aside: deque[Any] = deque()  # loaded code that nobody uses; a deque, since it needs no lock


class Engine:
    """The code of a module, ready to run.

    Parameters
    ----------
    code : relayout.jit.pages.Code or llvmlite.binding.ExecutionEngine
        What owns the code; it belongs to this object from now on.
    names : sequence of str
        The kernels of the module.
    note : str
        A line about them.
    key : str
        The name of its entry on disk.
    """

    __slots__ = ("__weakref__", "_code", "key", "names", "note")

    def __init__(self, code: Any, names: Sequence[str] = (), note: str = "", key: str = "") -> None:
        self._code, self.names, self.note, self.key = code, names, note, key

    def address(self, name: str) -> int:
        """Where a function is, to be asked under the lock; KeyError where there is none."""
        found = int(self._code.get_function_address(name))
        if not found:
            raise KeyError(name)
        return found

    def __del__(self, put_aside: Any = _aside.append) -> None:
        put_aside(self._code)


class Engines:
    """Engines by the names of their entries on disk; to be used under the lock."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, Engine] = OrderedDict()
        self._alive: WeakValueDictionary[str, Engine] = WeakValueDictionary()

    def get(self, key: str) -> Engine | None:
        """The engine of an entry, if it still is in memory."""
        found = self._alive.get(key)
        if found is not None:
            self._note(key, found)
        return found

    def add(self, key: str, engine: Engine) -> None:
        """Keep an engine, as the one that was asked for last, and unmap those that nobody uses."""
        self._alive[key] = engine
        self._note(key, engine)
        unmap()

    def clear(self) -> None:
        """Forget all, as a new process has; those that are used stay alive."""
        self._recent.clear()
        self._alive.clear()

    def __contains__(self, key: str) -> bool:
        return key in self._alive

    def _note(self, key: str, engine: Engine) -> None:
        self._recent[key] = engine
        self._recent.move_to_end(key)
        while len(self._recent) > KEPT:
            self._recent.popitem(last=False)


KNOWN = Engines()
"""Those of this process."""


def at_hand(key: str, otherwise: Callable[[bytes], Any] | None = None) -> Engine | None:
    """What this process or an earlier one has compiled; None where it has gone.

    Parameters
    ----------
    key : str
        The name of its entry on disk.
    otherwise : callable, optional
        Loads object code that is not linked; without it that is not found.
    """
    with lock():
        found = KNOWN.get(key)
        if found is not None or (data := cache.load(key)) is None:
            return found
        try:
            names, note, kept = data.split(b"\n", 2)
            listed, words = names.decode().split(), note.decode()
        except ValueError:  # whole, but written by somebody else
            return None
        code = placed(kept)
        if code is None and otherwise is not None and not is_linked(kept):
            code = otherwise(kept)
        if code is None:
            return None
        found = Engine(code, listed, words, key)
        try:
            for name in listed:
                found.address(name)
        except KeyError:
            return None
        KNOWN.add(key, found)
        return found


def kernel(engine: Engine, name: str) -> Kernel:
    """A function of an engine, ready to be called; KeyError where there is none."""
    with lock():
        address = engine.address(name)
    made: Any = KERNEL(address)
    made.address = address
    made.engine = engine
    made.name = name
    return made  # type: ignore[no-any-return]


def unmap() -> None:
    """Give back the memory of engines that have been put aside; to be called under the lock."""
    while _aside:
        _aside.popleft().close()
