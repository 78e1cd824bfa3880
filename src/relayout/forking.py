"""The one lock that a fork waits for.

Threads don't survive a fork, but the locks that they hold do: LLVM's, and those of modules that are being
imported. A child that finds one taken waits for ever. So everything that a child must not find half done
(planning, compiling, imports within functions, the making of threads) happens under one lock, and
``os.fork`` waits for it. There is only one, so that nobody can take two in the wrong order.

Whoever imports within a function does so in one of two ways, and a test reads the source for others::

    @locked                                     def explain(self):
    def lowered(nests):                             with lock():
        from relayout... import ...                     from relayout... import ...
        ...  # all of it under the lock                 ...  # waits for nobody who compiles

Modules that ``import relayout`` has loaded are exempt. Nothing takes the lock while a module is imported:
somebody else may hold the lock and wait for that module. For the same reason nothing that is locked is a
``functools.cached_property``: until Python 3.12 these have a lock of their own, shared by all instances.

This module is small, so that whoever needs the lock before anything else is imported can have it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

__all__ = ["later", "lock", "locked"]

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.RLock()


def lock() -> AbstractContextManager[object]:
    """The lock; ask for it each time, since a child's is a new one."""
    return _lock


def locked(work: Callable[P, R]) -> Callable[P, R]:
    """A function that holds the lock for as long as it runs."""

    @wraps(work)
    def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
        with _lock:
            return work(*args, **kwargs)

    return under_lock


def later(package: str, *modules: str, **names: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__``, which imports these modules of it when first asked for, and ``__dir__``.

    So ``rl.draw.svg`` needs no import of its own. A module of an inner package (``layout.views``) goes by its
    last name, and ``names`` are names that a module of the package defines: ``Reorder="primitives.reorder"``.
    No module of Relayout may name one of them as ``from package import module`` at its top level: that would
    take the lock while a module is imported.

    >>> import relayout.draw
    >>> find, names = later("relayout.draw", "svg")
    >>> find("svg").__name__, "svg" in names()
    ('relayout.draw.svg', True)
    """
    places = {module.rpartition(".")[2]: module for module in modules}

    def find(name: str) -> Any:
        if name in places:
            with lock():  # a child that is forked meanwhile must not find it half imported
                found = import_module(f"{package}.{places[name]}")
        elif name in names:
            with lock():
                found = getattr(import_module(f"{package}.{names[name]}"), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*vars(sys.modules[package]), *places, *names})


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _lock.acquire(),  # looked up when it is called
        after_in_parent=lambda: _lock.release(),
        after_in_child=_renew,
    )
