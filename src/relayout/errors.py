"""The errors of Relayout: one base, and one subclass for each thing a caller may want to tell apart.

Every message is a sentence that names the format, the axis, the numbers and the rule they break, and
where it can, what to write instead. Nothing else is raised for bad input::

    ValueError
      LayoutError          the input breaks a rule of formats
        UnknownFormat      a text that no dialect can read (the nearest names are suggested)
        AmbiguousFormat    a text that means different layouts (the readings are listed)
        Unsupported        valid where it comes from, but no layout, or not offered here
"""

from __future__ import annotations

__all__ = ["AmbiguousFormat", "LayoutError", "UnknownFormat", "Unsupported", "described", "type_name"]


class LayoutError(ValueError):
    """Base of all errors about formats, layouts, descriptors and the buffers that they describe."""


class UnknownFormat(LayoutError):
    """No dialect can read the text; the message suggests the nearest names that exist."""


class AmbiguousFormat(LayoutError):
    """The text means different layouts in different dialects or roles; the message lists the readings."""


class Unsupported(LayoutError):
    """The request is valid in the system it comes from, but is no layout or is not offered by Relayout."""


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
