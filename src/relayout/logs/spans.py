"""Spans of time that lie within each other, as a profiler notes them: who encloses whom, and all time once.

Of millions of spans only start, length and the number of a name are kept, 20 bytes each; names are numbered.

>>> spans = Spans()
>>> inner = spans.add("thread", "aten::copy_", 11.0, 4.0)
>>> outer = spans.add("thread", "aten::contiguous", 10.0, 6.0)
>>> other = spans.add("thread", "aten::add", 20.0, 3.0)
>>> spans.total(), [spans.name(one) for one in spans.around([inner])[inner]]
(9.0, ['aten::contiguous'])
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

__all__ = ["Place", "Spans"]


class Place(NamedTuple):
    """A span: a thread, and its number there."""

    thread: int
    number: int


class _Thread:
    """The spans of one thread, in the order in which they were noted."""

    def __init__(self) -> None:
        self.starts, self.lengths, self.names = array("d"), array("d"), array("i")

    def sorted(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The numbers of spans by start, the longer one first: what encloses stands before what is in it."""
        found = np.lexsort((-np.frombuffer(self.lengths), np.frombuffer(self.starts)))
        return found.astype(np.int64)


class Spans:
    """Spans of several threads."""

    def __init__(self) -> None:
        self._threads: list[_Thread] = []
        self._numbers: dict[object, int] = {}
        self._names: list[str] = []
        self._numbered: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(len(one.starts) for one in self._threads)

    def add(self, thread: object, name: str, start: float, length: float) -> Place:
        """Note a span."""
        number = self._numbers.setdefault(thread, len(self._threads))
        if number == len(self._threads):
            self._threads.append(_Thread())
        mine = self._threads[number]
        mine.starts.append(start)
        mine.lengths.append(length)
        called = self._numbered.setdefault(name, len(self._names))
        if called == len(self._names):
            self._names.append(name)
        mine.names.append(called)
        return Place(number, len(mine.starts) - 1)

    def name(self, place: Place) -> str:
        """What a span is called."""
        return self._names[self._threads[place.thread].names[place.number]]

    def length(self, place: Place) -> float:
        """How long it is."""
        return self._threads[place.thread].lengths[place.number]

    def start(self, place: Place) -> float:
        """When it began."""
        return self._threads[place.thread].starts[place.number]

    def outermost(self) -> list[Place]:
        """The spans that lie within no other one of their thread, in the order of their starts."""
        found = []
        for number, mine in enumerate(self._threads):
            order = mine.sorted()
            starts = np.frombuffer(mine.starts)[order]
            ends = starts + np.frombuffer(mine.lengths)[order]
            before = np.concatenate(([-np.inf], np.maximum.accumulate(ends)[:-1]))
            found += [Place(number, int(one)) for one in order[starts >= before]]
        return sorted(found, key=self.start)

    def total(self) -> float:
        """The time of all threads, each moment of a thread once."""
        return sum(self.length(one) for one in self.outermost())

    def around(self, places: Iterable[Place]) -> dict[Place, list[Place]]:
        """For each of some spans those that enclose it, the innermost first."""
        wanted: dict[int, set[int]] = {}
        for place in places:
            wanted.setdefault(place.thread, set()).add(place.number)
        found: dict[Place, list[Place]] = {}
        for number, mine in wanted.items():
            thread = self._threads[number]
            starts, lengths = thread.starts, thread.lengths
            stack: list[int] = []
            for one in thread.sorted().tolist():
                start = starts[one]
                while stack and start >= starts[stack[-1]] + lengths[stack[-1]]:
                    stack.pop()
                if one in mine:
                    found[Place(number, one)] = [Place(number, above) for above in reversed(stack)]
                stack.append(one)
        return found
