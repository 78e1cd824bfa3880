"""What commands take: sizes, formats, data types and numbers, read from text and completed by the shell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

__all__ = [
    "ALGORITHM",
    "DIALECT",
    "DIMS",
    "DTYPE",
    "FORMAT",
    "NUMBERS",
    "PRECISION",
    "WHOLE",
    "examples",
    "whole_number",
]

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType

MOST_SUGGESTED = 400


def whole_number(text: str) -> int | None:
    """The whole number that a text of ASCII digits means; None if it is none, or longer than 30 digits.

    ``int`` and ``str.isdigit`` take the digits of all scripts, superscripts, and underscores.

    >>> whole_number("-3"), whole_number("\N{SUPERSCRIPT TWO}"), whole_number("1_000")
    (-3, None, None)
    """
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,30}", text) else None


class _WholeNumbers(_Type):
    """``2,17,5,4`` or ``2x17x5x4``."""

    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Read whole numbers; ``scalar`` is none of them."""
        if isinstance(value, tuple):
            return value
        text = str(value).strip().strip("[]()")
        if text in ("", "scalar"):
            return ()
        parts = [part.strip() for part in re.split(r"[,xX]", text.rstrip(","))]
        numbers = tuple(number for number in map(whole_number, parts) if number is not None)
        if len(numbers) != len(parts):
            self.fail(
                f"{value!r} is no list of whole numbers; write them as 2,17,5,4 or 2x17x5x4", param, ctx
            )
        return numbers


class _WholeNumber(_Type):
    """``657``; click's own integers have digits of all scripts and underscores."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read one whole number."""
        number = whole_number(value.strip()) if isinstance(value, str) else int(value)
        if number is None:
            self.fail(f"{value!r} is no whole number", param, ctx)
        return number


class _Numbers(_Type):
    """``0.5``, ``1/255``, ``0.485,0.456,0.406``, or ``@file.npy``."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read numbers and fractions, or the numbers of a file."""
        if not isinstance(value, str):
            return value
        if value.startswith("@"):
            from relayout import files

            return files.read(value[1:]).numpy(copy=True).ravel()
        return [self._number(part.strip(), param, ctx) for part in value.split(",")]

    def _number(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        above, slash, below = text.partition("/")
        try:
            return float(above) / float(below) if slash else float(above)
        except (ValueError, ZeroDivisionError):
            self.fail(f"{text!r} is no number; write 0.5, 1/255, 0.485,0.456,0.406 or @file.npy", param, ctx)


class _Named(_Type):
    """A text that the shell can complete from a list."""

    def __init__(
        self, name: str, names: Callable[[], list[str]], check: Callable[[str], object] | None = None
    ) -> None:
        self.name = name
        self.names = names
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as it is; one that is not known is misuse, as an option that is not known."""
        from relayout.errors import LayoutError

        if self.check is not None and isinstance(value, str):
            try:
                self.check(value)
            except LayoutError as error:
                self.fail(str(error), param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin so."""
        found = [name for name in self.names() if name.startswith(incomplete)]
        return [CompletionItem(name) for name in found[:MOST_SUGGESTED]]


def _formats() -> list[str]:
    from relayout import notation

    listed = [name for d in notation.dialects() for name in notation.dialect(d).names()]
    return [name for name in dict.fromkeys(listed) if " " not in name]


def _dialects() -> list[str]:
    from relayout import notation

    return list(notation.dialects())


def _dtypes() -> list[str]:
    from relayout.dtypes import DTYPES

    return [kind.name for kind in DTYPES]


def _dialect(name: str) -> object:
    from relayout.notation import dialect

    return dialect(name)


def _dtype(name: str) -> object:
    from relayout.dtypes import dtype

    return dtype(name)


DIMS = _WholeNumbers()
WHOLE = _WholeNumber()
NUMBERS = _Numbers()
FORMAT = _Named("format", _formats)
DIALECT = _Named("dialect", _dialects, _dialect)
DTYPE = _Named("dtype", _dtypes, _dtype)


def examples(*lines: str) -> str:
    """The end of a help page: examples, line for line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


PRECISION = click.Choice(("f32", "bf16", "f16"))
"""The type in which a model's products of f32, and what follows them, are computed."""

ALGORITHM = click.Choice(("auto", "direct", "winograd"))
"""How a model's 3x3 convolutions are added up."""
