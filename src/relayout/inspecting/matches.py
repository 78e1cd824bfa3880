"""The answer to "in which format is this buffer?": a value that prints itself.

A :class:`Match` is one layout that puts every element where the buffer has it, with all formats that are this
layout for these dims. A :class:`Guess` is what was found altogether, or why nothing was.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from relayout.dtypes import DType
from relayout.inspecting.naming import names_of
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format, letters
from relayout.layout.layout import Layout, spell_dims
from relayout.records import dataclass

__all__ = ["Guess", "Match"]

SHOWN = 6  # formats that are listed beside the first
WIDEST = 32  # characters of a name in a line of names; longer ones are in the JSON


@dataclass(frozen=True)
class Match:
    """A layout in which a buffer holds given elements.

    ``relayout.from_buffer(buffer[match.offset:], match.desc)`` is the tensor (of the bytes in the machine's
    order).
    """

    desc: MemoryDesc
    """Dims, data type and layout; of the first of the formats, or of strides where no format fits."""
    offset: int
    """Bytes in front of the layout's first place."""
    formats: tuple[Format, ...]
    """All formats that place these elements so, the most likely first; empty where strides leave holes."""
    swapped: bool
    """Whether the bytes of each element are in the other order than this machine's."""
    scale: float
    """What the elements of the buffer are to be multiplied with: 1 unless values were quantised."""
    missing: int
    """Elements behind the end of the buffer; 0 unless it was cut off."""
    padding: int
    """Places of the first format that hold no element."""
    dirty: int
    """How many of them are not zero."""
    behind: int
    """Bytes of the buffer behind the last place."""
    strides: tuple[int, ...] | None
    """The strides of all axes, where one an axis says it all."""

    @property
    def format(self) -> Format | None:
        """The most likely format."""
        return self.formats[0] if self.formats else None

    @property
    def exact(self) -> bool:
        """Whether every element is there, and the padding is zero."""
        return not (self.missing or self.dirty)

    def notes(self) -> tuple[str, ...]:
        """What is not said by the format: offset, conversion, missing elements, and why others agree."""
        dims = self.desc.dims
        said = []
        if self.offset:
            said.append(f"begins at byte {self.offset:,}")
        if self.swapped:
            said.append("the bytes of each element are swapped")
        if self.scale != 1:
            said.append(f"values are divided by the scale {self.scale:.9g}")
        if self.missing:
            said.append(f"{self.missing:,} of {prod(dims):,} elements lie behind the end of the buffer")
        if self.padding:
            said.append(
                f"{self.padding:,} places are padding, "
                + ("all zero" if not self.dirty else f"{self.dirty:,} of them not zero")
            )
        if self.behind:
            said.append(f"{self.behind:,} bytes follow that are no part of it")
        if self.strides is not None and self.format is not None and len(self.format.order) > len(dims):
            said.append(f"as strides: {spell_dims(self.strides)}")
        if not self.formats:
            said.append("no dense format: its strides leave holes, run backwards or share places")
        said += self.ties()
        return tuple(said)

    def ties(self) -> list[str]:
        """Why several formats agree on these dims."""
        if len(self.formats) < 2:
            return []
        dims, names = self.desc.dims, letters(self.desc.rank)
        ones = [names[a] for a, size in enumerate(dims) if size == 1]
        said = []
        if ones:
            said.append(
                f"size 1: where {', '.join(ones)} stand{'s' if len(ones) == 1 else ''} in the order does not "
                "show"
            )
        blocks = {
            (names[a], size, block)
            for format in self.formats
            for a, (size, block) in enumerate(zip(dims, format.blocks, strict=True))
            if 1 < size <= block
        }
        for name in sorted({name for name, _, _ in blocks}):
            known = sorted({(block, size) for axis, size, block in blocks if axis == name})
            widths = " or ".join(str(block) for block, _ in known[:4])
            said.append(f"{name} = {known[0][1]}: a block of {widths} holds all of it")
        return said

    def to_json(self) -> dict[str, Any]:
        """The same as dicts, lists, text and numbers."""
        return {
            "desc": str(self.desc),
            "formats": [
                {"format": str(format), "digits": format.digits_text(), "names": names_of(format)}
                for format in self.formats
            ],
            "dtype": self.desc.dtype.name,
            "offset": self.offset,
            "byte_swapped": self.swapped,
            "scale": self.scale,
            "missing": self.missing,
            "padding": self.padding,
            "padding_not_zero": self.dirty,
            "bytes_behind": self.behind,
            "strides": None if self.strides is None else list(self.strides),
            "exact": self.exact,
            "notes": list(self.notes()),
        }

    def __str__(self) -> str:
        lines = [str(self.desc)]
        if self.format is not None:
            lines.append(f"  digits  {self.format.digits_text()}")
            for meaning, names in names_of(self.format).items():
                short = [f"{d} {name}" for d, name in names.items() if len(name) <= WIDEST]
                if short:
                    lines.append(f"  {meaning}  " + ", ".join(short))
        lines += [f"  {note}" for note in self.notes()]
        others = self.formats[1 : 1 + SHOWN]
        if others:
            left = len(self.formats) - 1 - len(others)
            more = f", and {left} more" if left else ""
            lines.append("  the same here: " + ", ".join(map(str, others)) + more)
        return "\n".join(lines)


@dataclass(frozen=True)
class Guess:
    """In which formats a buffer holds given elements, and if in none, why not."""

    dims: tuple[int, ...]
    dtype: DType
    """Of the logical values."""
    size: int
    """Bytes of the buffer."""
    matches: tuple[Match, ...]
    """The likely ones first."""
    reason: str
    """Why there is none, or why there may be more; empty where there is nothing to say."""

    @property
    def best(self) -> Match | None:
        """The most likely match."""
        return self.matches[0] if self.matches else None

    @property
    def format(self) -> Format | None:
        """The most likely format; None where there is none."""
        return self.matches[0].format if self.matches else None

    @property
    def formats(self) -> tuple[Format, ...]:
        """All formats that agree, of all matches."""
        return tuple(dict.fromkeys(format for match in self.matches for format in match.formats))

    @property
    def layout(self) -> Layout | None:
        """The layout of the most likely match."""
        return self.matches[0].desc.layout if self.matches else None

    def __bool__(self) -> bool:
        return bool(self.matches)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def to_json(self) -> dict[str, Any]:
        """The same as dicts, lists, text and numbers."""
        return {
            "dims": list(self.dims),
            "dtype": self.dtype.name,
            "bytes": self.size,
            "matches": [match.to_json() for match in self.matches],
            "reason": self.reason,
        }

    def __str__(self) -> str:
        if not self.matches:
            return f"no format found for {self.dtype}:{spell_dims(self.dims)} in {self.size:,} bytes: " + (
                self.reason
            )
        told = "\n".join(map(str, self.matches))
        return f"{told}\n{self.reason}" if self.reason else told
