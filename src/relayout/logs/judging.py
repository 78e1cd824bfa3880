r"""From events to rows: equal conversions together, their share, repetitions and round trips.

A *row* is all events of one kind: the same operation on the same formats, types and sizes, of weights or not.
Where a log has no sizes, a row is one layer.

A *round trip* is a conversion from A to B and, later in the log, one of the same sizes from B to A, where
neither is of weights. Each event is in one pair at most, the nearest. In between something ran that wanted B,
or nothing at all; what the trip costs is both conversions. A convolution that reads what the first one wrote
makes another tensor, so A to B, convolution, B to A is none.

>>> from relayout.logs.reading import read
>>> line = (
...     "onednn_verbose,v1,primitive,exec,cpu,reorder,jit,undef,"
...     "src:f32::blocked:{}::f0 dst:f32::blocked:{}::f0,,,8x32x4x4,{}\n"
... )
>>> log = read((line.format("abcd", "acdb", 3) + line.format("acdb", "abcd", 1)).encode())
>>> found, trips = rows(log)
>>> [(str(row.src), str(row.dst), row.share, row.returning) for row in found]
[('abcd', 'acdb', 0.75, 1), ('acdb', 'abcd', 0.25, 1)]
>>> trips[0].seconds
0.004
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass

from relayout.layout.descriptor import MemoryDesc
from relayout.logs.events import Event, Log, Side

__all__ = ["RoundTrip", "Row", "rows"]

_PRODUCTS = re.compile(
    r"conv|matmul|gemm|linear|inner_product|fullyconnected|addmm|bmm|attention|rnn|lstm|gru", re.IGNORECASE
)
"""Readers that make another tensor, by the names of layers and operators."""


@dataclass(frozen=True)
class RoundTrip:
    """A conversion, and the one that undoes it."""

    out: Event
    back: Event

    @property
    def seconds(self) -> float:
        """What both take."""
        return self.out.seconds + self.back.seconds


@dataclass(frozen=True)
class Row:
    """All conversions of one kind in a log."""

    events: tuple[Event, ...]
    seconds: float
    """What they take together."""
    share: float
    """Of the time of everything in the log, from 0 to 1."""
    calls: int | None
    """How often the network ran, if that is known."""
    returning: int = 0
    """How many of them are half of a round trip."""
    going: int = 0
    """How many of these are the first half, which a later conversion undoes."""
    uses: int | None = None
    """How often operations read weights such as these; None where that is not known."""
    advice: str = ""
    """What to do about it, one sentence."""
    memcpy_seconds: float | None = None
    """What a copy of as many bytes takes on this machine, for one of them; None if it was not measured."""
    relayout_seconds: float | None = None
    """What Relayout takes on this machine for one of them; None if it was not measured."""

    @property
    def operation(self) -> str:
        """One of :data:`relayout.logs.events.OPERATIONS`."""
        return self.events[0].operation

    @property
    def src(self) -> Side:
        """What they read."""
        return self.events[0].src

    @property
    def dst(self) -> Side:
        """What they write."""
        return self.events[0].dst

    @property
    def dims(self) -> tuple[int, ...] | None:
        """Logical sizes."""
        return self.events[0].dims

    @property
    def weights(self) -> bool:
        """Whether they are of weights."""
        return self.events[0].weights

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.events)

    @property
    def nbytes(self) -> int | None:
        """Bytes that one of them reads and writes."""
        return self.events[0].nbytes

    @property
    def same_bytes(self) -> bool | None:
        """Whether both sides are the same bytes, so that nothing need be converted."""
        return self.events[0].same_bytes

    @property
    def for_each_use(self) -> bool:
        """Whether weights are converted as often as they are read, and more than once: nobody keeps them."""
        return self.weights and self.uses is not None and self.count >= self.uses > 1

    @property
    def in_each_call(self) -> bool:
        """Whether it comes up at least once in each of several calls."""
        return self.calls is not None and self.calls > 1 and self.count >= self.calls

    @property
    def names(self) -> tuple[str, ...]:
        """What the log calls them, each once."""
        return tuple(dict.fromkeys(event.name for event in self.events))

    @property
    def producers(self) -> tuple[str, ...]:
        """Who made what they read, each once."""
        return tuple(dict.fromkeys(event.producer for event in self.events if event.producer))

    @property
    def consumers(self) -> tuple[str, ...]:
        """Who reads what they wrote, each once."""
        return tuple(dict.fromkeys(event.consumer for event in self.events if event.consumer))


def rows(log: Log) -> tuple[tuple[Row, ...], tuple[RoundTrip, ...]]:
    """The rows of a log, the most expensive first, and all round trips in the order of their ends."""
    trips = _round_trips(log.events)
    going, coming = {id(trip.out) for trip in trips}, {id(trip.back) for trip in trips}
    groups: dict[Hashable, list[Event]] = {}
    for event in log.events:
        groups.setdefault(_kind(event), []).append(event)
    found = []
    for events in groups.values():
        seconds = sum(event.seconds for event in events)
        share = seconds / log.seconds if log.seconds else 0.0
        out = sum(id(event) in going for event in events)
        back = sum(id(event) in coming for event in events)
        uses = log.uses.get(events[0].dst.desc) if events[0].weights and events[0].dst.desc else None
        found.append(Row(tuple(events), seconds, share, log.calls, out + back, out, uses))
    found.sort(key=lambda row: -row.seconds)
    return tuple(found), trips


def _kind(event: Event) -> Hashable:
    named = event.name if event.dims is None else ""
    return event.operation, event.src, event.dst, event.dims, event.weights, named


def _round_trips(events: tuple[Event, ...]) -> tuple[RoundTrip, ...]:
    waiting: dict[tuple[MemoryDesc, MemoryDesc], list[Event]] = {}
    found = []
    for event in events:
        one, two = event.src.desc, event.dst.desc
        if one is None or two is None or event.weights or one == two:
            continue
        before = waiting.get((two, one))
        if before:
            found.append(RoundTrip(before.pop(), event))
        elif not _PRODUCTS.search(event.consumer):
            waiting.setdefault((one, two), []).append(event)
    return tuple(found)
