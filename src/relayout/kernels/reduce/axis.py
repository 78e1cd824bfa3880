"""An axis that windows go along: which of their taps are elements, and which are padding.

Everything that a kernel of pooling wants to know about a border is asked here, whatever the kernel does
with the answer. An axis of 5 elements, windows of 3 taps, stride 2, one element of padding in front ::

    place       -1   0   1   2   3   4   5
    element      .   a   b   c   d   e   .
    output 0    [0   1   2]                         taps 1 and 2 are elements
    output 1             [0   1   2]                all of them: the output is inside
    output 2                     [0   1   2]        taps 0 and 1

*Places* are counted from the first element on, and are negative in the padding in front. An *output* is a
window and what is made of it; its *begin* is the place of its tap 0. *Taps* are numbered within the window.

Some of this is known when a kernel is written and some when it runs. Windows of a row are written out or are
the turns of a loop, and then a number takes the place of a value:

``axis.taps(2)``
    of an output whose number is known: a range.
``axis.windows(b, output)``
    of one that may be a value: :class:`Taps`, whose bounds are numbers where they are known, either because
    the output is, or because they are the same for all of them.

**A question that may have three answers.** :meth:`Taps.has` and :func:`all_have` say ``True``, ``False``, or
a value that tells when the kernel runs. Where an axis has one window they are never values: who asks only for
those, and takes the rest for elements, reads beside the tensor in windows that are larger than the picture.

**How far vectors may read.** :meth:`Axis.neighbours` and :func:`within` say which of some neighbouring places
are elements; what lies at the others belongs to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from relayout.ir.builder import Builder
from relayout.ir.types import I64, Value, constant

__all__ = ["PADDING", "Axis", "Bound", "Taps", "all_have", "within"]

PADDING = -1
"""In place of the place of a tap that is no element."""

Bound = int | Value
"""A number that is known when a kernel is written, or a value."""


class Axis(NamedTuple):
    """A spatial axis: sizes, and bytes from one element to the next in source and destination.

    >>> axis = Axis(112, 56, 3, 2, 1, 1, 4, 4)
    >>> axis.inside, axis.taps(0), axis.places(0)
    ((1, 56), range(1, 3), (-1, 0, 1))
    """

    size: int
    """Elements of the source."""
    out: int
    """Windows, which are as many elements of the destination."""
    kernel: int = 1
    """Taps of a window."""
    stride: int = 1
    """From one window to the next, in elements."""
    dilation: int = 1
    """From one tap to the next, in elements."""
    front: int = 0
    """Padding in front. How much there is behind the axis follows from the other numbers."""
    src: int = 0
    dst: int = 0

    # -- all windows ----------------------------------------------------------------------------------------

    @property
    def inside(self) -> tuple[int, int]:
        """The outputs all of whose taps are elements: the first of them, and the one behind the last."""
        reach = self.size - self.span + self.front
        first = min(self.out, -(-self.front // self.stride))
        return first, max(first, min(self.out, reach // self.stride + 1))

    @property
    def border(self) -> Iterator[int]:
        """The others: those some of whose taps are padding."""
        first, last = self.inside
        return chain(range(first), range(last, self.out))

    @property
    def is_inside(self) -> bool:
        """Whether all taps of all outputs are elements."""
        return self.inside == (0, self.out)

    @property
    def is_whole(self) -> bool:
        """Whether the only window is the axis, without gaps."""
        return (self.out, self.kernel, self.front, self.dilation) == (1, self.size, 0, 1)

    @property
    def is_single(self) -> bool:
        """Whether it has one element and one window of it, as an axis has that isn't there."""
        return self.size == self.out == self.kernel == 1 and not self.front

    @property
    def is_filled(self) -> bool:
        """Whether every window has elements.

        >>> Axis(2, 4, 2, 1, 4, 3).is_filled, Axis(2, 4, 2, 1, 1, 1).is_filled
        (False, False)
        >>> Axis(2, 3, 2, 1, 1, 1).is_filled
        True
        """
        return all(self.taps(output) for output in self.border)

    @property
    def counts(self) -> tuple[int, ...]:
        """For each output how many of its taps are elements.

        >>> Axis(5, 3, 3, 2, 1, 1).counts
        (2, 3, 2)
        """
        return tuple(len(self.taps(output)) for output in range(self.out))

    @property
    def span(self) -> int:
        """Elements that a window reaches over."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def shared(self) -> int:
        """Taps that a window has in common with the next one, if taps are neighbours; -1: one is in none."""
        return self.kernel - self.stride

    @property
    def reach(self) -> int:
        """Places from the first window's begin to the end of the last one.

        >>> Axis(5, 3, 3, 2, 1, 1).reach
        7
        """
        return (self.out - 1) * self.stride + self.span

    # -- a window -------------------------------------------------------------------------------------------

    def offset(self, tap: int) -> int:
        """How far a tap lies behind ``output * stride``."""
        return tap * self.dilation - self.front

    @property
    def offsets(self) -> tuple[int, ...]:
        """The same of all taps."""
        return tuple(self.offset(tap) for tap in range(self.kernel))

    def place(self, output: int, tap: int = 0) -> int:
        """Where a tap of an output lies, be it an element or not."""
        return output * self.stride + self.offset(tap)

    def taps(self, output: int) -> range:
        """Those of an output that are elements.

        >>> Axis(112, 56, 3, 2, 1, 1).taps(0)
        range(1, 3)
        """
        left = -self.place(output)
        first = -(-max(left, 0) // self.dilation)
        return range(first, max(first, min(self.kernel, (self.size - 1 + left) // self.dilation + 1)))

    def places(self, output: int) -> tuple[int, ...]:
        """Where its taps lie; :data:`PADDING` for those that are no elements."""
        taps = self.taps(output)
        return tuple(self.place(output, tap) if tap in taps else PADDING for tap in range(self.kernel))

    def neighbours(self, place: int, count: int) -> tuple[int, list[int]]:
        """How so many neighbours from a place on are read, of an axis that has as many elements.

        Returns from where so many elements are loaded, and for each place which one of these it is; ``count``
        stands for padding.

        >>> Axis(5, 5).neighbours(-1, 4), Axis(5, 5).neighbours(3, 4), Axis(5, 5).neighbours(7, 2)
        ((0, [4, 0, 1, 2]), (1, [2, 3, 4, 4]), (3, [2, 2]))
        """
        start = min(max(place, 0), self.size - count)
        inside = within(self.size, place, count)
        return start, [place + k - start if k in inside else count for k in range(count)]

    # -- when the kernel runs -------------------------------------------------------------------------------

    def begin(self, b: Builder, output: Value) -> Value:
        """The place of its tap 0."""
        return b.sub(b.mul(output, self.stride), self.front)

    def windows(self, b: Builder, output: Value) -> Taps:
        """The taps of an output that are elements; the bounds are numbers where they are known."""
        if self.is_inside:
            return Taps(0, self.kernel)
        if output.number is not None:
            taps = self.taps(int(output.number))
            return Taps(taps.start, taps.stop)
        left = b.sub(self.front, b.mul(output, self.stride))
        first, end = (
            b.udiv(b.smax(b.add(left, more), 0), self.dilation)
            for more in (self.dilation - 1, self.size - 1 + self.dilation)
        )
        return Taps(first, b.smin(end, self.kernel))

    def nearest(self, b: Builder, place: Value) -> Value:
        """A place of a window that has elements, or that of an element of the same window in its stead.

        That is so where taps are neighbours: what is nearest then lies between them and the window's others.
        """
        return place if self.is_inside else b.smax(b.smin(place, self.size - 1), 0)


class Taps(NamedTuple):
    """Taps that are elements, from one to before another; there are none where ``end`` is not larger."""

    first: Bound
    end: Bound

    @property
    def known(self) -> range | None:
        """Which ones, if that is known when the kernel is written.

        >>> Taps(1, 3).known, Taps(0, Value("%end", I64)).known
        (range(1, 3), None)
        """
        if isinstance(self.first, int) and isinstance(self.end, int):
            return range(self.first, self.end)
        return None

    def has(self, b: Builder, tap: int) -> bool | Value:
        """Whether a tap is one of them: an i1 where only the kernel knows.

        >>> b = Builder()
        >>> Taps(1, 3).has(b, 0), Taps(1, 3).has(b, 1), Taps(0, Value("%end", I64)).has(b, 1)
        (False, True, i1 %v1)
        """
        if self.known is not None:
            return tap in self.known
        return b.and_(b.icmp("sle", self.first, tap), b.icmp("sgt", self.end, tap))

    def number(self, b: Builder) -> Value:
        """How many there are."""
        return b.sub(_value(self.end), self.first)

    def nearest(self, b: Builder, kernel: int) -> list[Bound]:
        """All taps of a window of which some are elements; the nearest of these in place of the others.

        Where it is known which ones are elements the others are left out.
        """
        if self.known is not None:
            return list(self.known)
        last = b.sub(self.end, 1)
        return [b.smin(b.smax(tap, self.first), last) for tap in range(kernel)]


def all_have(b: Builder, several: Iterable[tuple[Taps, int]]) -> bool | Value:
    """Whether a tap of each of some axes is an element: then that of all of them together is.

    >>> b, value = Builder(), Value("%end", I64)
    >>> all_have(b, [(Taps(0, value), 1), (Taps(1, 3), 0)]), all_have(b, [(Taps(0, 2), 1), (Taps(1, 3), 1)])
    (False, True)
    """
    asked = list(several)
    if any(taps.known is not None and tap not in taps.known for taps, tap in asked):
        return False
    found: bool | Value = True
    for taps, tap in asked:
        one = taps.has(b, tap)
        if isinstance(one, Value):
            found = b.and_(found, one) if isinstance(found, Value) else one
    return found


def within(size: int, place: int, count: int) -> range:
    """Which of ``count`` neighbours from a place on are elements, of ``size`` of them.

    >>> within(5, -1, 4), within(5, 3, 4), within(5, 7, 2), within(5, 1, 3)
    (range(1, 4), range(0, 2), range(0, 0), range(0, 3))
    """
    first = min(max(0, -place), count)
    end = min(size - place, count)
    return range(first, end) if first < end else range(0)


def _value(bound: Bound) -> Value:
    return bound if isinstance(bound, Value) else constant(I64, bound)
