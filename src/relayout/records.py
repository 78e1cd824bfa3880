"""Frozen data as :mod:`dataclasses` makes it, without the compiler.

``dataclasses`` writes the methods of each class as text and compiles that: half a millisecond a class, and
the text of a kernel is made in one. Plans and nests are two dozen classes, of which every process that plans
anything needs most. The methods here are the same for all classes, and go by a list of names.

What they have in common with those of ``dataclass(frozen=True)`` is what this package uses: fields with types
and defaults, inherited ones first; equality, hash and text by the fields that are compared; :func:`replace`.
To type checkers they are the same.

>>> @dataclass(frozen=True)
... class Point:
...     x: int
...     y: int = 0
...     note: str = field(default="", compare=False)
>>> point = replace(Point(3, note="here"), y=4)
>>> point, point == Point(3, 4), hash(point) == hash(Point(3, 4))
(Point(x=3, y=4, note='here'), True, True)
>>> Point()
Traceback (most recent call last):
    ...
TypeError: Point() has no x
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:
    import sys
    from operator import itemgetter

    class field:
        """What there is to say of a field besides its type: its default, and whether it is compared."""

        def __init__(self, *, default, compare=True):
            self.default, self.compare = default, compare

    def dataclass(*, frozen):
        """Give a class the methods of frozen data; see :func:`dataclasses.dataclass`."""
        if not frozen:
            raise TypeError("records are frozen")
        return _completed

    def replace(record, /, **changes):
        """The same with other values of some fields; data that :mod:`dataclasses` has made goes there."""
        names = getattr(record, "_names", None)
        if names is None:
            return sys.modules["dataclasses"].replace(record, **changes)
        state = record.__dict__
        if not changes.keys() <= names.keys():
            raise TypeError(f"{type(record).__name__} has no {', '.join(changes.keys() - names.keys())}")
        made = object.__new__(type(record))
        own = made.__dict__
        if len(state) == len(names):
            own.update(state)
        else:  # what is computed once and kept belongs to the other one
            own.update((name, state[name]) for name in names)
        own.update(changes)
        return made

    def _completed(cls):
        inherited = getattr(cls, "_names", {})
        names, compared = dict(inherited), list(getattr(cls, "_compared", ()))
        defaults = dict(getattr(cls, "_defaults", {}))
        for name, kind in cls.__annotations__.items():
            if str(kind).startswith(("ClassVar", "typing.ClassVar")):
                continue
            names[name] = None
            value, counts = cls.__dict__.get(name, field), True
            if isinstance(value, field):
                value, counts = value.default, value.compare
                setattr(cls, name, value)
            if value is not field:
                defaults[name] = value
            if counts and name not in compared:
                compared.append(name)
        cls._names, cls._compared, cls._defaults = names, tuple(compared), defaults
        cls._key = staticmethod(itemgetter(*compared) if compared else len)
        cls.__match_args__ = tuple(names)
        for name, method in _METHODS.items():
            if name not in cls.__dict__:
                setattr(cls, name, method)
        return cls

    def _init(self, *args, **given):
        names, state = self._names, self.__dict__
        if given or len(args) != len(names):
            state.update(self._defaults)
            listed = [*names]
            twice = given.keys() & listed[: len(args)]
            if len(args) > len(names) or twice or not given.keys() <= names.keys():
                wrong = twice or given.keys() - names.keys() or f"{len(args)} values"
                raise TypeError(f"{type(self).__name__}({', '.join(names)}) was given {wrong}")
            state.update(given)
        state.update(zip(names, args))  # noqa: B905 - defaults are there already
        if len(state) < len(names):
            lacking = ", ".join(name for name in names if name not in state)
            raise TypeError(f"{type(self).__name__}() has no {lacking}")

    def _eq(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or self._key(self.__dict__) == self._key(other.__dict__)

    def _hash(self):
        return hash(self._key(self.__dict__))

    def _repr(self):
        words = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names)
        return f"{type(self).__qualname__}({words})"

    def _frozen(self, name, value=None):
        raise AttributeError(f"a {type(self).__name__} is frozen; {name} can't be set or deleted")

    _METHODS = {
        "__init__": _init,
        "__eq__": _eq,
        "__hash__": _hash,
        "__repr__": _repr,
        "__setattr__": _frozen,
        "__delattr__": _frozen,
    }

__all__ = ["dataclass", "field", "replace"]
