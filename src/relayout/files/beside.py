"""The descriptor beside a file: ``x.bin`` and ``x.bin.layout.json``."""

from __future__ import annotations

from pathlib import Path

from relayout.errors import LayoutError
from relayout.files.descriptor import LONGEST_TEXT, descriptor_from_text, descriptor_to_text
from relayout.layout.descriptor import MemoryDesc

__all__ = ["described_beside", "description", "path_beside"]


def path_beside(path: Path) -> Path:
    """Where the descriptor of a file lies.

    >>> path_beside(Path("x.npy")).name
    'x.npy.layout.json'
    """
    return path.with_name(path.name + ".layout.json")


def described_beside(path: Path) -> MemoryDesc | None:
    """The descriptor beside a file, or None where there is none.

    Raises
    ------
    LayoutError
        What lies there is no descriptor.
    """
    beside = path_beside(path)
    try:
        with beside.open("rb") as file:
            text = file.read(LONGEST_TEXT + 1)
    except FileNotFoundError:
        return None
    try:
        return descriptor_from_text(text)
    except LayoutError as error:
        raise LayoutError(f"{beside}: {error}") from None


def description(desc: MemoryDesc) -> bytes:
    """What is written beside a file."""
    return descriptor_to_text(desc).encode() + b"\n"
