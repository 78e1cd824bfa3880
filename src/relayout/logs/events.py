"""What all readers make of their logs: sides, events, and the log itself, all frozen.

>>> from relayout import MemoryDesc
>>> src = Side("abcd", "f32", MemoryDesc((1, 17, 2, 2), "f32", "abcd"))
>>> dst = Side("aBcd8b", "f32", MemoryDesc((1, 17, 2, 2), "f32", "aBcd8b"))
>>> event = Event("reorder", "reorder", src, dst, (1, 17, 2, 2), 2e-6)
>>> event.nbytes, event.same_bytes  # 17 channels read, 24 written
(656, False)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from relayout.layout.descriptor import MemoryDesc

__all__ = ["OPERATIONS", "Event", "Log", "Side"]

OPERATIONS = ("reorder", "transpose", "convert", "copy")
"""What an event may be: another format; axes in another order; another data type alone; none of the three."""


@dataclass(frozen=True)
class Side:
    """One end of a conversion."""

    format: str = ""
    """The format as the log spells it, or strides; empty where the log is silent."""
    dtype: str = ""
    """The data type by its name here (``f32``), or as the log spells it; empty where the log is silent."""
    desc: MemoryDesc | None = None
    """The whole of it; None where the log says too little, or what it says is no layout."""

    def __str__(self) -> str:
        return self.format or "?"


@dataclass(frozen=True)
class Event:
    """A conversion that ran: one line, node or span of a log."""

    operation: str
    """One of :data:`OPERATIONS`."""
    name: str
    """What the log calls it: a primitive, a layer, an operator."""
    src: Side
    dst: Side
    dims: tuple[int, ...] | None
    """Logical sizes, in the order of the source's axes; None where the log has none."""
    seconds: float
    producer: str = ""
    """Who made the source; empty where neither the log nor its order tells."""
    consumer: str = ""
    """Who reads the destination, or within what it ran."""
    weights: bool = False
    """Whether it is known to convert weights."""
    line: int = 0
    """Where in the log: the number of a line, or of an event of a JSON document, from 1; 0 for unknown."""

    @property
    def nbytes(self) -> int | None:
        """Bytes read and written: the source's elements, and the destination with its padding."""
        if self.src.desc is None or self.dst.desc is None:
            return None
        elements = self.src.desc.layout.size if self.src.desc.layout is not None else 0
        return -(-elements * self.src.desc.dtype.bits // 8) + self.dst.desc.nbytes

    @property
    def same_bytes(self) -> bool | None:
        """Whether both sides put the same bytes at the same places; None where that is not known."""
        if self.src.desc is None or self.dst.desc is None:
            return None
        one, two = self.src.desc.layout, self.dst.desc.layout
        if one is None or two is None:
            return None
        return self.src.desc.dtype == self.dst.desc.dtype and one.same_bytes(two)


@dataclass(frozen=True)
class Log:
    """A log that was read."""

    kind: str
    """Which reader read it: the name of its module."""
    title: str
    """What wrote the log, in words."""
    events: tuple[Event, ...]
    """The conversions, in the order in which they ran."""
    seconds: float
    """The time of everything in the log, conversions and all else; nothing is counted twice."""
    operations: int
    """How many operations that time is the sum of."""
    calls: int | None = None
    """How often the network ran, where the log or its repetitions tell."""
    stated: float | None = None
    """The total that the log itself states, in seconds, where it does."""
    stated_as: str = ""
    """What the log calls that total."""
    problems: tuple[str, ...] = ()
    """What is missing or damaged: the log is cut, lines can't be read. Empty for a whole log."""
    notes: tuple[str, ...] = ()
    """What was assumed, and what this kind of log does not show."""
    uses: Mapping[MemoryDesc, int] = field(default_factory=dict, compare=False)
    """How often operations read weights of a descriptor, where the log shows every operation's arguments."""
