"""The errors of Relayout: one base, and one subclass for each thing a caller may want to tell apart.

Every message is a sentence that names the format, the axis, the numbers and the rule they break, and
where it can, what to write instead. Nothing else is raised for bad input::

    ValueError
      LayoutError          the input breaks a rule of formats
        UnknownFormat      a text that no dialect can read (the nearest names are suggested)
        AmbiguousFormat    a text that means different layouts (the readings are listed)
        Unsupported        valid where it comes from, but no layout, or not offered here
        TooLarge           no memory holds it; a MemoryError, too
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import index as as_index
from typing import Any, TypeVar

__all__ = [
    "AmbiguousFormat",
    "LayoutError",
    "TooLarge",
    "UnknownFormat",
    "Unsupported",
    "checked",
    "counted",
    "described",
    "listed",
    "spelled_bytes",
    "spelled_seconds",
    "type_name",
    "whole",
]

T = TypeVar("T")


class LayoutError(ValueError):
    """Base of all errors about formats, layouts, descriptors and the buffers that they describe."""


class UnknownFormat(LayoutError):
    """No dialect can read the text; the message suggests the nearest names that exist."""


class AmbiguousFormat(LayoutError):
    """The text means different layouts in different dialects or roles; the message lists the readings."""


class Unsupported(LayoutError):
    """The request is valid in the system it comes from, but is no layout or is not offered by Relayout."""


class TooLarge(LayoutError, MemoryError):
    """No memory holds what a descriptor or a network asks for; the message says how many bytes it is."""


def described(value: object) -> str:
    """An object for a message: its type, and what it prints as if that is short.

    >>> described("nhwc"), described([1] * 1000)
    ("str 'nhwc'", 'list')
    """
    text = repr(value)
    return f"{type_name(value)} {text}" if len(text) <= 60 and "\n" not in text else type_name(value)


def type_name(value: object) -> str:
    """What an object is, for a message that must tell ``relayout.Tensor`` from ``torch.Tensor``.

    >>> type_name("text"), type_name(LayoutError())
    ('str', 'relayout.LayoutError')
    """
    cls = type(value)
    module = cls.__module__
    if module == "builtins":
        return cls.__qualname__
    return f"{'relayout' if module.startswith('relayout.') else module}.{cls.__qualname__}"


def spelled_bytes(count: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> [spelled_bytes(n) for n in (12, 4096, 3 << 20, 5 << 30, 6 << 40)]
    ['12 B', '4.0 KiB', '3.0 MiB', '5.0 GiB', '6.0 TiB']
    """
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def spelled_seconds(seconds: float) -> str:
    """A time in the unit that suits it, with three digits.

    >>> [spelled_seconds(t) for t in (0, 4.2e-8, 3.17e-6, 0.01234, 2.5, 123, 0.9999e-3, 4321)]
    ['0 us', '0.042 us', '3.17 us', '12.3 ms', '2.5 s', '123 s', '1 ms', '4320 s']
    """
    if not math.isfinite(seconds):
        return "-"
    rounded = float(f"{seconds:.3g}")  # first, or 0.9999 ms were 1e+03 us
    size = abs(rounded)
    factor, unit = (1, "s") if size >= 1 else (1e3, "ms") if size >= 1e-3 else (1e6, "us")
    return f"{rounded * factor:g} {unit}"


def checked(given: object, kind: type[T], what: str, wanted: str) -> T:
    """What was given, if it is of a type; ``wanted`` says what the type is to a reader.

    >>> checked("nchw", str, "a format", "text")
    'nchw'
    >>> checked(None, str, "a format", "text")
    Traceback (most recent call last):
    relayout.errors.LayoutError: a format must be text, got NoneType None
    """
    if not isinstance(given, kind):
        raise LayoutError(f"{what} must be {wanted}, got {described(given)}")
    return given


def counted(count: int, what: str) -> str:
    """A number of things, with the noun in the singular or plural.

    >>> counted(1, "axis"), counted(3, "axis"), counted(1, "element"), counted(0, "index"), counted(2, "copy")
    ('1 axis', '3 axes', '1 element', '0 indices', '2 copies')
    """
    many = {"axis": "axes", "index": "indices", "copy": "copies"}.get(what, f"{what}s")
    return f"{count} {what if count == 1 else many}"


def listed(given: object, what: str, wanted: str, length: int | None = None) -> tuple[Any, ...]:
    """What was given, as a tuple of all that it holds (of so many things).

    >>> listed([("c", 8)], "the blocks", "pairs (axis, block)")
    (('c', 8),)
    >>> listed(("c",), "a block", "a pair (axis, block)", 2)
    Traceback (most recent call last):
    relayout.errors.LayoutError: a block must be a pair (axis, block), got tuple ('c',)
    """
    try:
        several = tuple(checked(given, Iterable, what, wanted))  # type: ignore[type-abstract]
    except TypeError:  # an array without axes says that it can be iterated over
        several = None
    if several is None or (length is not None and len(several) != length):
        raise LayoutError(f"{what} must be {wanted}, got {described(given)}")
    return several


def whole(given: Any, what: str) -> int:
    """A whole number, from any type with ``__index__``.

    >>> whole("4", "the rank")
    Traceback (most recent call last):
    relayout.errors.LayoutError: the rank must be a whole number, got '4'
    """
    try:
        return as_index(given)
    except TypeError:
        raise LayoutError(f"{what} must be a whole number, got {given!r:.60}") from None
