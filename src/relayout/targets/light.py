"""llvmlite imported without what nobody here uses, in two thirds of the time.

The first call of a plan, ever, compiles its kernel in some 10 ms, and ``import llvmlite.binding`` takes 28
before that. A third of those go to ``importlib.resources``, with ``zipfile`` and all else that it loads,
which is asked one thing: in which folder the library lies.

While llvmlite is imported, a :class:`Standin` is in its place, which knows the folders of llvmlite. Asked for
anything else, of other packages too, it loads the module that it stands for and answers with what that says.
So it does not matter who else gets hold of it meanwhile, or what another version of llvmlite wants to know.

Another thread may ``import importlib.resources`` meanwhile, and look for it in ``importlib`` much later. So
the stand-in is an attribute of that package, as the module would be, until somebody imports the module.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

from relayout.forking import locked

__all__ = ["Standin", "standing_in"]

RESOURCES = "importlib.resources"
FOR, BINDING = "llvmlite", "llvmlite.binding"  # the package whose folders a stand-in knows; what is imported


class Standin(ModuleType):
    """A module that is not loaded before it is asked for something.

    >>> calendar = Standin("calendar")
    >>> calendar.isleap(2024)
    True
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(_loaded(self), name)


@locked
def _loaded(standin: Standin) -> ModuleType:
    """The module itself."""
    name = standin.__name__
    _withdraw(standin)
    __import__(name)
    return sys.modules[name]


@locked
def _withdraw(standin: Standin) -> None:
    """Let whoever imports the module from now on have the module itself."""
    if sys.modules.get(standin.__name__) is standin:
        del sys.modules[standin.__name__]


class _Place(str):
    """A folder or a file by its path; asked for what only a ``pathlib.Path`` can do, it becomes one."""

    __slots__ = ()

    def __truediv__(self, name: str) -> _Place:
        return _Place(os.path.join(self, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(_path(self), name)


@locked
def _path(place: str) -> Any:
    from pathlib import Path

    return Path(place)


def _resources() -> Standin:
    """What stands for ``importlib.resources``: it knows the folders of llvmlite, if there are any."""
    made = Standin(RESOURCES)

    def files(package: Any) -> Any:
        if isinstance(package, str) and package.partition(".")[0] == FOR:
            found = [*getattr(sys.modules.get(package), "__path__", ())]
            if len(found) == 1 and os.path.isdir(found[0]):
                return _Place(found[0])
        return _loaded(made).files(package)

    def as_file(found: Any) -> Any:
        return nullcontext(found) if isinstance(found, _Place) else _loaded(made).as_file(found)

    vars(made).update(files=files, as_file=as_file)
    return made


@contextmanager
def standing_in() -> Iterator[None]:
    """Let a stand-in be found, unless somebody has loaded the module, or llvmlite, already."""
    one = _resources()
    if BINDING not in sys.modules and sys.modules.setdefault(RESOURCES, one) is one:
        vars(importlib).setdefault("resources", one)
    try:
        yield
    finally:
        _withdraw(one)
