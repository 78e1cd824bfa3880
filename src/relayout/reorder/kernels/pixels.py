"""Interleaving and its reverse: planes to pixels of a few channels, and pixels to planes."""

from __future__ import annotations

from collections.abc import Callable

from relayout.codegen.machine import LINE
from relayout.reorder.kernels.base import Kernel, Lanes, Place
from relayout.reorder.problem import BitLoop

__all__ = ["Deinterleave", "Interleave"]


class _Pixels(Kernel):
    """What the two directions have in common: elements are picked out of a few vectors."""

    @property
    def per(self) -> int:
        """Elements of a vector."""
        return 8 * self.machine.vector // self.plan.mid

    def along(self, loop: BitLoop, place: Place, body: Callable[[Place], None]) -> None:
        """Over the long loop a vector at a time; the last one overlaps."""
        whole = loop.extent // self.per * self.per
        self.w.loop(0, whole, self.per, lambda i: body(self.moved(place, i, loop)))
        if whole < loop.extent:
            self.unstreamed(lambda: body(self.moved(place, loop.extent - self.per, loop)))

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
        channels, per = channel.extent, self.per

        def lanes(k: int) -> Lanes:
            places = [divmod(k * per + j, channels) for j in range(per)]
            return [
                [p * one + c * two for p, c in places]
                for one, two in zip(pixel.tables, channel.tables, strict=True)
            ]

        def some(at: Place) -> None:
            vectors = [
                self.load(at._replace(src=self.step(at.src, k * per, self.nest.read)), per, lanes(k))
                for k in range(channels)
            ]
            self.prefetch(at.src, 8 * LINE)
            for c in range(channels):
                picks = [divmod(j * channels + c, per) for j in range(per)]
                plane = self.moved(at, c, channel)
                self.store(self.picked(vectors, picks), plane, per, self.lanes(pixel, per))

        self.along(pixel, place, some)


class Interleave(_Pixels):
    """Planes to pixels."""

    def body(self, place: Place) -> None:
        """All pixels of a row."""
        pixel, channel = self.plan.columns.loop, self.plan.rows.loop
        channels, per = channel.extent, self.per

        def some(at: Place) -> None:
            planes = [self.moved(at, c, channel) for c in range(channels)]
            vectors = [self.load(plane, per, self.lanes(pixel, per)) for plane in planes]
            for plane in planes:
                self.prefetch(plane.src)
            for k in range(channels):
                picks = [((k * per + j) % channels, (k * per + j) // channels) for j in range(per)]
                lanes = [
                    [p * one + c * two for c, p in picks]
                    for one, two in zip(pixel.tables, channel.tables, strict=True)
                ]
                part = at._replace(dst=self.step(at.dst, k * per, self.nest.write))
                self.store(self.picked(vectors, picks), part, per, lanes)

        self.along(pixel, place, some)
