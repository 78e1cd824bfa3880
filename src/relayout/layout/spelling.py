"""The door through which layouts reach their notations.

A layout has to be made from text (``Format("nChw16c")``) and to say its name, but what a layout *is* must not
depend on how people write it: imports point from :mod:`relayout.notation` to :mod:`relayout.layout`, never
back. So this module holds three slots. The notation package fills them when it is imported; until then they
say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.layout.format import Format

    Parser = Callable[[str, str | None, int | None, str | None], Format]
    Renderer = Callable[[Format, str], str | None]
    LogReader = Callable[[str], "Logged | None"]

__all__ = ["Logged", "install", "logged", "parse", "render", "text_of"]

_parser: Parser | None = None
_renderer: Renderer | None = None
_log_reader: LogReader | None = None


class Logged(Protocol):
    """A descriptor as a library logs it: it says a data type, and perhaps strides and sizes."""

    @property
    def dtype(self) -> str:
        """The name of its data type."""

    def desc(self, dims: tuple[int, ...] | None = None) -> MemoryDesc:
        """The descriptor of some sizes (None: those that it says)."""


def install(parser: Parser, renderer: Renderer, log_reader: LogReader) -> None:
    """Fill the slots: ``parser(text, dialect, rank, dtype)``, ``renderer(format, dialect)``, and
    ``log_reader(text)`` for whole descriptors.
    """
    global _parser, _renderer, _log_reader
    _parser, _renderer, _log_reader = parser, renderer, log_reader


def parse(text: str, dialect: str | None = None, rank: int | None = None, dtype: str | None = None) -> Format:
    """Read a format from text (None: any dialect)."""
    if _parser is None:
        raise RuntimeError("no notation is loaded; import relayout (or relayout.notation) first")
    return _parser(text, dialect, rank, dtype)


def render(format: Format, dialect: str) -> str | None:
    """Spell a format in a dialect; None where it has no spelling there."""
    if _renderer is None:
        raise RuntimeError("no notation is loaded; import relayout (or relayout.notation) first")
    return _renderer(format, dialect)


def logged(text: str) -> Logged | None:
    """Read a descriptor as a library logs it; None for any other text."""
    return None if _log_reader is None else _log_reader(text)


def text_of(given: object) -> str | None:
    """The text that one of PyTorch's own objects for formats stands for; None for any other object.

    ``torch.channels_last`` and its like print as they are written, so they are recognised by their type's
    name and PyTorch need not be imported.
    """
    cls = type(given)
    known = cls.__module__ == "torch" and cls.__name__ in ("memory_format", "layout")
    return str(given) if known else None
