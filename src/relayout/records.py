"""Data as :mod:`dataclasses` makes it, without the compiler.

``dataclasses`` writes the methods of each class as text and compiles that: a millisecond and more a class,
and the text of a kernel is made in less. Operations, plans and nests are a hundred classes, of which every
process that plans anything needs most. The methods here are the same for all classes, and go by a list of
names.

What they have in common with those of ``dataclass`` is what this package uses: fields with types, defaults
and factories, inherited ones first; frozen or not; fields that are given by name alone; ``__post_init__``;
equality, hash and text by the fields that are compared and shown; :func:`replace`. Who asks is told the
signature, and the fields as ``dataclasses`` knows them: its functions work, and its classes may inherit. To
type checkers they are the same.

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
    from reprlib import recursive_repr

    class field:
        """What there is to say of a field besides its type: its default, and what it takes part in."""

        def __init__(self, *, default=..., default_factory=None, compare=True, repr=True, kw_only=False):
            self.default, self.factory = default, default_factory
            self.compare, self.repr, self.kw_only = compare, repr, kw_only

    _PLAIN = field()

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, kw_only=False):
        """Give a class the methods of data; see :func:`dataclasses.dataclass`."""
        if cls is not None:
            return _completed(cls, frozen, eq, repr, kw_only)
        return lambda made: _completed(made, frozen, eq, repr, kw_only)

    def replace(record, /, **changes):
        """The same with other values of some fields; data that :mod:`dataclasses` has made goes there."""
        kind = type(record)
        known = getattr(kind, "_record", None)
        if known is None or (known.cls is not kind and _has_fields_of_others(kind, known.cls)):
            return sys.modules["dataclasses"].replace(record, **changes)
        names, state = known.names, record.__dict__
        if not changes.keys() <= names.keys():
            raise TypeError(f"{kind.__name__} has no {', '.join(changes.keys() - names.keys())}")
        made = object.__new__(kind)
        own = made.__dict__
        if len(state) == len(names):
            own.update(state)
        else:  # what is computed once and kept belongs to the other one
            own.update((name, state[name]) for name in names)
        own.update(changes)
        if known.checks:
            made.__post_init__()
        return made

    def _has_fields_of_others(cls, record):
        """Whether a class that inherits from a record is one of :mod:`dataclasses`, not only another name."""
        between = cls.__mro__[: cls.__mro__.index(record)]
        return any("__dataclass_fields__" in vars(one) for one in between)

    class _Record:
        """What the methods know of a class."""

        __slots__ = "checks", "cls", "compared", "defaults", "factories", "key", "names", "places", "shown"

        def __init__(self, cls, above):
            self.cls = cls
            self.names = {} if above is None else dict(above.names)
            self.places, self.compared, self.shown = (
                ([], [], []) if above is None else ([*above.places], [*above.compared], [*above.shown])
            )
            self.defaults, self.factories = (
                ({}, {}) if above is None else (dict(above.defaults), dict(above.factories))
            )

    def _completed(cls, frozen, eq, repr, kw_only):
        known = _Record(cls, getattr(cls, "_record", None))
        for name, kind in vars(cls).get("__annotations__", {}).items():
            if str(kind).startswith(("ClassVar", "typing.ClassVar")):
                continue
            known.names[name] = None
            value, said = cls.__dict__.get(name, ...), _PLAIN
            if isinstance(value, field):
                value, said = value.default, value
                if value is ...:
                    delattr(cls, name)
                else:
                    setattr(cls, name, value)
            if value is not ...:
                if value.__class__.__hash__ is None:
                    raise ValueError(f"{cls.__name__}: all share the default of {name}; use default_factory")
                known.defaults[name] = value
                known.factories.pop(name, None)
            elif said.factory is not None:
                known.factories[name] = said.factory
            for several, takes_part in (
                (known.places, not (kw_only or said.kw_only)),
                (known.compared, said.compare),
                (known.shown, said.repr),
            ):
                if takes_part and name not in several:
                    several.append(name)
                elif not takes_part and name in several:  # the class above says something else of it
                    several.remove(name)
        known.checks = hasattr(cls, "__post_init__")
        known.key = itemgetter(*known.compared) if known.compared else _nothing
        cls._record, cls.__match_args__ = known, tuple(known.places)
        cls.__dataclass_fields__, cls.__dataclass_params__ = _FIELDS, _Params(frozen)
        methods = {"__init__": _init, "__signature__": _SIGNATURE}
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods["__eq__"] = _eq
            methods["__hash__"] = _hash if frozen else None
        if frozen:
            methods["__setattr__"] = methods["__delattr__"] = _frozen
        for name, method in methods.items():
            if cls.__dict__.get(name) is None:  # a class with equality of its own has a hash that is None
                setattr(cls, name, method)
        return cls

    class _Signature:
        """What a class takes, worked out for who asks."""

        def __get__(self, _, cls):
            from inspect import Parameter, Signature

            known, found = cls._record, []
            for name in (*known.places, *(name for name in known.names if name not in known.places)):
                kind = Parameter.POSITIONAL_OR_KEYWORD if name in known.places else Parameter.KEYWORD_ONLY
                usual = ... if name in known.factories else Parameter.empty
                found.append(Parameter(name, kind, default=known.defaults.get(name, usual)))
            return Signature(found)

    class _Fields:
        """The fields of a class for :mod:`dataclasses`, made for who asks."""

        def __get__(self, _, cls):
            import dataclasses

            known, found = cls._record, {}
            for name in known.names:
                one = found[name] = dataclasses.field(
                    repr=name in known.shown,
                    compare=name in known.compared,
                    kw_only=name not in known.places,
                )
                one.name, one._field_type = name, dataclasses._FIELD
                one.default = known.defaults.get(name, dataclasses.MISSING)
                one.default_factory = known.factories.get(name, dataclasses.MISSING)
            known.cls.__dataclass_fields__ = found
            return found

    class _Params:
        """What :mod:`dataclasses` asks of a class that another one inherits from."""

        def __init__(self, frozen):
            self.frozen = frozen

    _SIGNATURE, _FIELDS = _Signature(), _Fields()

    def _init(self, *args, **given):
        known, state = self._record, self.__dict__
        names, places = known.names, known.places
        if given or len(args) != len(names) or len(places) != len(names):
            state.update(known.defaults)
            for name, make in known.factories.items():
                state[name] = make()
            twice = given.keys() & places[: len(args)]
            if len(args) > len(places) or twice or not given.keys() <= names.keys():
                wrong = twice or given.keys() - names.keys() or f"{len(args)} values"
                raise TypeError(f"{type(self).__name__}({', '.join(names)}) was given {wrong}")
            state.update(given)
        state.update(zip(places, args))  # noqa: B905 - defaults are there already
        if len(state) < len(names):
            lacking = ", ".join(name for name in names if name not in state)
            raise TypeError(f"{type(self).__name__}() has no {lacking}")
        if known.checks:
            self.__post_init__()

    def _nothing(_):
        """What there is to compare where no field is: what is computed once and kept is no field."""
        return ()

    def _eq(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        if self is other:
            return True
        key = self._record.key
        return key(self.__dict__) == key(other.__dict__)

    def _hash(self):
        return hash(self._record.key(self.__dict__))

    @recursive_repr()
    def _repr(self):
        words = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._record.shown)
        return f"{type(self).__qualname__}({words})"

    def _frozen(self, name, value=None):
        raise AttributeError(f"a {type(self).__name__} is frozen; {name} can't be set or deleted")


__all__ = ["dataclass", "field", "replace"]
