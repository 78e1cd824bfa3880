"""Interleaving and its reverse: planes to pixels of a few channels, and pixels to planes."""

from __future__ import annotations

from collections.abc import Callable

from relayout.kernels.copy.base import Kernel, Lanes, Place
from relayout.kernels.copy.network import interleaved, interleaved_at_once
from relayout.kernels.copy.problem import WIDEST
from relayout.loops.nest import Loop
from relayout.targets.machine import LINE

__all__ = ["Deinterleave", "Interleave"]


class _Pixels(Kernel):
    """What the two directions have in common: elements are picked out of a few vectors."""

    per = 1
    """Elements of a vector."""

    def along(self, loop: Loop, place: Place, body: Callable[[Place], None]) -> None:
        """Over the long loop, or a thread's share of it, a vector at a time; then what is left of it."""
        w = self.w
        full = 8 * self.machine.vector // self.plan.mid
        if loop.extent < full:
            full = loop.extent & -loop.extent
        self.per = full
        whole = loop.extent // full * full

        def vectors(first: str | int, last: str | int) -> None:
            w.loop(first, last, full, lambda i: body(self.moved(place, i, loop)))

        if self.plan.shared is not loop:
            vectors(0, whole)
            self._rest(loop, loop.extent - whole, place, body)
            return
        last = w.value(f"call i64 @llvm.smin.i64(i64 %hi, i64 {whole})")
        w.when(w.value(f"icmp slt i64 %lo, {last}"), lambda: vectors("%lo", last))
        ends = w.value(f"icmp eq i64 %hi, {loop.extent}")
        w.when(ends, lambda: self._rest(loop, loop.extent - whole, place, body))

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
        return not channels & channels - 1 and channels <= self.per

    def halves(self, one: str, two: str, unit: int, picks: Callable[[int], list[list[int]]]) -> list[str]:
        """Two shuffles of two vectors, in units of several elements."""
        w, count, wide = self.w, self.per // unit, unit * self.plan.mid
        if wide > WIDEST:  # wider than an element may be: as elements
            count, parts = self.per, unit
            fine = [[p * parts + k for p in half for k in range(parts)] for half in picks(count // parts)]
            return [w.shuffle(one, two, self.vector(count), half) for half in fine]
        own, other = self.vector(self.per), f"<{count} x i{wide}>"
        if unit > 1:
            one, two = (w.value(f"bitcast {own} {value} to {other}") for value in (one, two))
        made: list[str] = [w.shuffle(one, two, other, half) for half in picks(count)]
        return [w.value(f"bitcast {other} {value} to {own}") for value in made] if unit > 1 else made

    def picked(self, vectors: list[str], picks: list[tuple[int, int]]) -> str:
        """A vector of elements ``(vector, place)``, by a chain of two-source shuffles."""
        w, count = self.w, len(picks)
        kind = self.vector(count)
        used = sorted({v for v, _ in picks})
        made = vectors[used[0]]
        if len(used) == 1:
            return w.shuffle(made, "poison", kind, [place for _, place in picks])
        mask = [place if v == used[0] else -1 for v, place in picks]
        for k, v in enumerate(used[1:]):
            if k:
                mask = [j if owner < v else -1 for j, (owner, _) in enumerate(picks)]
            mask = [count + place if owner == v else m for m, (owner, place) in zip(mask, picks, strict=True)]
            made = w.shuffle(made, vectors[v], kind, mask)
        return made


class Deinterleave(_Pixels):
    """Pixels to planes."""

    def body(self, place: Place) -> None:
        """All pixels of a row."""
        channel, pixel = self.plan.columns.loop, self.plan.rows.loop
        channels = channel.extent

        def lanes(k: int) -> Lanes:
            per = self.per
            places = [divmod(k * per + j, channels) for j in range(per)]
            return [
                [p * one + c * two for p, c in places]
                for one, two in zip(pixel.tables, channel.tables, strict=True)
            ]

        def some(at: Place) -> None:
            per = self.per
            vectors = [
                self.load(at._replace(src=self.step(at.src, k * per, self.nest.read)), per, lanes(k))
                for k in range(channels)
            ]
            self.prefetch(at.src, 8 * LINE)
            for c, value in enumerate(self._planes(vectors)):
                self.store(value, self.moved(at, c, channel), per, self.lanes(pixel, per))

        self.along(pixel, place, some)

    def _planes(self, vectors: list[str]) -> list[str]:
        """The vectors of all planes.

        Two, four or eight channels fall apart in halves: the lower and the upper half of every pixel, then
        halves of those.
        """
        channels = len(vectors)
        if not self.in_halves(channels):
            picks = [[divmod(j * channels + c, self.per) for j in range(self.per)] for c in range(channels)]
            return [self.picked(vectors, pick) for pick in picks]
        streams, unit = [vectors], channels // 2
        while unit:
            split = []
            for stream in streams:
                pairs = [
                    self.halves(a, b, unit, _every_other)
                    for a, b in zip(stream[::2], stream[1::2], strict=True)
                ]
                split += [[pair[half] for pair in pairs] for half in (0, 1)]
            streams, unit = split, unit // 2
        return [stream[0] for stream in streams]


class Interleave(_Pixels):
    """Planes to pixels.

    Planes may be the rows of a matrix, pages apart, and a few pixels all that follow each other in the
    destination: 16 columns of 4 rows are one line of ``BA16a16b4a``. A turn then writes those, and the next
    one reads on.
    """

    def body(self, place: Place) -> None:
        """All pixels of a row."""
        pixel = self.plan.columns.loop
        self.along(pixel, place, lambda at: self._some(pixel, at))

    def _some(self, pixel: Loop, place: Place) -> None:
        """:attr:`per` pixels, a piece of them after the other."""
        w, bits, vector, channel = self.w, self.plan.mid, self.machine.vector, self.plan.rows.loop
        channels = channel.extent
        piece = interleaved_at_once(bits, channels, self.per, vector)
        step = piece or self.per
        for first in range(0, self.per, step):
            at = self.moved(place, first, pixel)
            planes = [self.moved(at, c, channel) for c in range(channels)]
            vectors = [self.load(plane, step, self.lanes(pixel, step)) for plane in planes]
            if first == 0 and pixel.extent * self.nest.read >= 8 * LINE:
                for plane in planes:
                    self.prefetch(plane.src)
            made = interleaved(w, vectors, bits, step, vector) if piece else self._pixels(vectors)
            self._put(made, at, step * channels // len(made))

    def _put(self, made: list[str], place: Place, per: int) -> None:
        """Store vectors of so many elements, one behind the other."""
        pixel, channel = self.plan.columns.loop, self.plan.rows.loop
        channels = channel.extent
        for k, value in enumerate(made):
            places = [divmod(k * per + j, channels) for j in range(per)]
            lanes = [
                [p * one + c * two for p, c in places]
                for one, two in zip(pixel.tables, channel.tables, strict=True)
            ]
            self.store(value, place._replace(dst=self.step(place.dst, k * per, self.nest.write)), per, lanes)

    def _pixels(self, planes: list[str]) -> list[str]:
        """The vectors of all pixels, for any number of planes."""
        channels = len(planes)
        places = [[divmod(k * self.per + j, channels) for j in range(self.per)] for k in range(channels)]
        return [self.picked(planes, [(c, pixel) for pixel, c in place]) for place in places]


def _every_other(count: int) -> list[list[int]]:
    """The units of even number of two vectors, and those of odd number."""
    return [list(range(0, 2 * count, 2)), list(range(1, 2 * count, 2))]
