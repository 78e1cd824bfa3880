"""Pixels of a few channels: what taking them apart and putting them together have in common.

A picture of three channels lies as planes or as pixels, and most of what is read from files is the latter::

    planes   r0 r1 r2 r3 ..   g0 g1 g2 g3 ..   b0 b1 b2 b3 ..        nchw
    pixels   r0 g0 b0 r1 g1 b1 r2 g2 b2 r3 g3 b3 ..                  nhwc

As a matrix this is too narrow for tiles. So as many pixels as fill a vector of each plane are in registers
together, one register for each channel on either side, and every result is picked out of all of them by
shuffles (:meth:`Pixels.picked`): :mod:`~.deinterleave` goes from pixels to planes, :mod:`~.interleave` the
other way. A power of two of channels takes fewer shuffles, since halves fall apart into halves.

The loop over pixels is the long one. It is gone through a vector at a time, what is left of it by shorter
vectors or by a last one that overlaps (:meth:`Pixels.along`); threads share it where there are few pictures
(:func:`in_strips`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2

from relayout.ir.builder import Operand
from relayout.ir.types import Value, integer, vector
from relayout.kernels.copy.base import Kernel, Place
from relayout.kernels.copy.plan import LONG_ROW_BITS, AnyPlan
from relayout.kernels.copy.problem import WIDEST
from relayout.loops.nest import Loop
from relayout.records import replace

__all__ = ["MOST_CHANNELS", "Pixels", "again", "in_strips", "is_even", "picks_of"]

MOST_CHANNELS = 8  # turns of the longest loop that is interleaved or deinterleaved
STRIP_PIXELS = 1 << 10  # threads share pixels in multiples of so many


def is_even(channels: int) -> bool:
    """Whether channels are a power of two, so that halves of them are, too."""
    return not channels & (channels - 1)


def picks_of(channels: int) -> int:
    """Shuffles for a vector of results: halves of halves, or an element of one vector after the other."""
    return int(log2(channels)) if is_even(channels) else channels - 1


def again(pixels: int, line: int) -> float:
    """How many times as long fewer pixels than a line take: their last vectors are not full, or overlap.

    >>> [round(again(pixels, 64), 1) for pixels in (32, 48, 49, 63, 64, 100)]
    [1.0, 1.3, 2.0, 1.0, 1.0, 1.0]
    """
    if pixels >= line:
        return 1.0
    vector = line // 2
    rest = bin(pixels - vector).count("1")  # vectors, each of which has a power of two
    return (1 + (rest if rest <= 2 else 1)) * vector / pixels


def in_strips(made: AnyPlan, pixels: Loop) -> AnyPlan:
    """Pixels of a few pictures: threads share the pixels, in whole lines."""
    many = made.shared is not None and made.shared.extent >= 8
    if many or made.inside >= 0 or pixels.extent * min(made.nest.read, made.nest.write) < LONG_ROW_BITS:
        return made
    return replace(made, shared=pixels, unit=STRIP_PIXELS)


class Pixels(Kernel):
    """What the two directions have in common: elements are picked out of a few vectors."""

    per = 1
    """Elements of a vector."""

    def along(self, loop: Loop, place: Place, body: Callable[[Place], None], full: int = 0) -> None:
        """Over the long loop, or a thread's share of it, a vector at a time; then what is left of it.

        A vector is as many turns as elements that it has, or as ``full`` says.
        """
        b = self.b
        full = full or 8 * self.machine.vector // self.plan.mid
        if loop.extent < full:
            full = self.fewer(loop.extent)
        self.per = full
        whole = loop.extent // full * full

        def vectors(first: Operand, last: Operand) -> None:
            b.loop(first, last, full, lambda i: body(self.moved(place, i, loop)))

        if self.plan.shared is not loop:
            vectors(0, whole)
            self._rest(loop, loop.extent - whole, place, body)
            return
        first, end = self.shared
        last = b.smin(end, whole)
        b.when(b.icmp("slt", first, last), lambda: vectors(first, last))
        ends = b.icmp("eq", end, loop.extent)
        b.when(ends, lambda: self._rest(loop, loop.extent - whole, place, body))

    def fewer(self, extent: int) -> int:
        """How many turns of a loop are a vector that has fewer than would fill one."""
        return extent & -extent

    def _rest(self, loop: Loop, left: int, place: Place, body: Callable[[Place], None]) -> None:
        """The end of the long loop: one or two shorter vectors, or a full one over what is done already.

        Overlapping is slow when streaming: what has left the caches already is fetched again.
        """
        full = self.per
        if bin(left).count("1") > 2:
            self.unstreamed(lambda: body(self.moved(place, loop.extent - full, loop)))
            return
        while left:
            self.per = 1 << (left.bit_length() - 1)
            at = self.moved(place, loop.extent - left, loop)
            self.unstreamed(lambda at=at: body(at))  # type: ignore[misc]
            left -= self.per
        self.per = full

    def in_halves(self, channels: int) -> bool:
        """Whether channels are a power of two, and fewer than the elements of a vector."""
        return is_even(channels) and channels <= self.per

    def halves(
        self, one: Value, two: Value, unit: int, picks: Callable[[int], list[list[int]]]
    ) -> list[Value]:
        """Two shuffles of two vectors, in units of several elements."""
        b, count, wide = self.b, self.per // unit, unit * self.plan.mid
        if wide > WIDEST:  # wider than an element may be: as elements
            fine = [[p * unit + k for p in half for k in range(unit)] for half in picks(count)]
            return [b.shuffle(one, half, two) for half in fine]
        own, units = one.type, vector(count, integer(wide))
        one, two = b.bitcast(one, units), b.bitcast(two, units)
        return [b.bitcast(made, own) for made in [b.shuffle(one, half, two) for half in picks(count)]]

    def picked(self, vectors: list[Value], picks: list[tuple[int, int]]) -> Value:
        """A vector of elements ``(vector, place)``, by a chain of two-source shuffles."""
        b, count = self.b, len(picks)
        used = sorted({v for v, _ in picks})
        made = vectors[used[0]]
        if len(used) == 1:
            return b.shuffle(made, [place for _, place in picks])
        mask = [place if v == used[0] else -1 for v, place in picks]
        for k, v in enumerate(used[1:]):
            if k:
                mask = [j if owner < v else -1 for j, (owner, _) in enumerate(picks)]
            mask = [count + place if owner == v else m for m, (owner, place) in zip(mask, picks, strict=True)]
            made = b.shuffle(made, mask, vectors[v])
        return made
