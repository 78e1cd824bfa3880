"""What a file holds: arrays by name, none of them read before it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from relayout.errors import LayoutError
from relayout.files.arrays import Given, StoredArray, to_desc, to_tensor
from relayout.files.spelling import listed, spelled
from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import Tensor

__all__ = ["Member", "Opened", "matching"]


class Member(NamedTuple):
    """An array in a file."""

    name: str
    """Its name; empty in files that hold only one and give it none."""
    array: StoredArray
    described: Callable[[], MemoryDesc | None]
    """Gives its descriptor, or None if it has none; a damaged one is a LayoutError."""
    described_in: str
    """Where the descriptor is, for messages."""

    def desc(self, given: Given) -> MemoryDesc:
        """What its bytes mean."""
        return to_desc(self.array, given, self.described(), self.described_in)

    def tensor(self, given: Given) -> Tensor:
        """The array as a tensor."""
        return to_tensor(self.array, given, self.described(), self.described_in)


class Opened(NamedTuple):
    """A file whose arrays are known by name."""

    path: Path
    kind: str
    """``npy``, ``npz``, ``safetensors``, ``raw``, ``picture``, ``pt``."""
    names: list[str]
    member: Callable[[str], Member]
    """Gives the array of a name."""
    metadata: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    """What else the file says, apart from descriptors."""
    others: tuple[str, ...] = ()
    """What else it holds, that is no array: members of an archive, by name."""

    def tensor(self, given: Given) -> Tensor:
        """The array that the caller named, or the only one, as a tensor."""
        return self.member(self.choose(given.name)).tensor(given)

    def choose(self, name: str | None) -> str:
        """The name of an array that is there: the one given, or the only one.

        Raises
        ------
        LayoutError
            There is no such array, or there are several and none was named.
        """
        if name is not None and name not in self.names:
            close = difflib.get_close_matches(name, self.names[:10_000], 1)
            meant = f"; did you mean {spelled(close[0])}?" if close else ""
            raise LayoutError(
                f"{spelled(self.path)} has no array {spelled(name)!r}; it holds {listed(self.names)}{meant}"
            )
        if name is None and len(self.names) != 1:
            raise LayoutError(
                f"{spelled(self.path)} holds {listed(self.names)}; name the one to read (--name, name)"
            )
        return self.names[0] if name is None else name


def matching(opened: Opened, patterns: list[str]) -> list[str]:
    """The names that match one of some patterns, in the order of the file.

    ``*`` stands for any text, ``?`` for any letter, ``[ab]`` for one of some; a name stands for itself.

    Raises
    ------
    LayoutError
        A pattern matches nothing.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = {n for n in opened.names if n == pattern} or {
            n for n in opened.names if fnmatchcase(n, pattern)
        }
        if not found and any(sign in pattern for sign in "*?["):
            raise LayoutError(
                f"{spelled(opened.path)}: no array matches {spelled(pattern)!r}; it holds "
                f"{listed(opened.names)}"
            )
        chosen |= found or {opened.choose(pattern)}
    return [name for name in opened.names if name in chosen]
