"""llvmlite imported without what nobody here uses, in two thirds of the time.

The first call of a plan, ever, compiles its kernel in some 10 ms, and ``import llvmlite.binding`` takes 28
before that. A third of those go to ``importlib.resources``, with ``zipfile`` and all else that it loads,
which is asked one thing: in which folder the library lies.

While llvmlite is imported, a :class:`Standin` is in its place, which knows the folders of packages. Asked for
anything else, it loads the module that it stands for and answers with what that says. So it does not matter
who else gets hold of it meanwhile, or what another version of llvmlite may want to know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

from relayout.forking import locked

__all__ = ["Standin", "standing_in"]


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
    if sys.modules.get(name) is standin:
        del sys.modules[name]
    __import__(name)
    return sys.modules[name]


class _Place(str):
    """A folder or a file by its path."""

    __slots__ = ()

    def __truediv__(self, name: str) -> _Place:
        return _Place(os.path.join(self, name))


def _resources() -> Standin:
    """What stands for ``importlib.resources``: it knows the folders of packages that have one."""
    made = Standin("importlib.resources")

    def files(package: Any) -> Any:
        found = [*getattr(sys.modules.get(package), "__path__", ())] if isinstance(package, str) else []
        if len(found) == 1 and os.path.isdir(found[0]):
            return _Place(found[0])
        return _loaded(made).files(package)

    def as_file(found: Any) -> Any:
        return nullcontext(found) if isinstance(found, _Place) else _loaded(made).as_file(found)

    vars(made).update(files=files, as_file=as_file)
    return made


@contextmanager
def standing_in() -> Iterator[None]:
    """Let a stand-in be found, unless somebody has loaded the module already."""
    one = _resources()
    placed = sys.modules.setdefault(one.__name__, one) is one
    try:
        yield
    finally:
        if placed and sys.modules.get(one.__name__) is one:
            del sys.modules[one.__name__]
