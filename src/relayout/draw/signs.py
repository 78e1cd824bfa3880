"""Signs and colours of drawings in the terminal."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["FADED", "Marks", "colour"]

COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")
FADED: Final = "bright_black"


class Marks(NamedTuple):
    """The signs of a drawing; terminals that know nothing but ASCII get other ones."""

    padding: str = "·"
    more: str = "…"
    line: str = "│"
    times: str = "×"

    @classmethod
    def fit_for(cls, ascii_only: bool) -> Marks:
        """The signs that a terminal can show."""
        return cls(".", "...", "|", "x") if ascii_only else cls()


def colour(term: int) -> str:
    """The colour of an axis, the same in every drawing."""
    return COLOURS[term % len(COLOURS)]
