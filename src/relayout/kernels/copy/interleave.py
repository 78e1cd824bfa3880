"""Planes of a few channels become pixels: ``interleave``.

The reverse of :mod:`~.deinterleave`. A vector of each plane is loaded, and as many vectors of pixels are put
together from all of them::

    a0 a1 a2 a3,  b0 b1 b2 b3   ->   a0 b0 a1 b1 | a2 b2 a3 b3

Planes need not be planes of pictures. Rows of a matrix that are packed for an instruction are such, too: 16
columns of 4 rows are one line of ``BA16a16b4a``. The next columns go elsewhere in the destination, but they
are read next, so that a line of the source is used up at once. Where zeros follow the channels, they are
planes that nobody loads.

Values that get narrower are converted before they are shuffled: a register's worth of several planes at once
(:meth:`Interleave._together`), since four registers of words become one of bytes in half the time that four
quarters take.
"""

from __future__ import annotations

from collections.abc import Iterator

from relayout.ir.types import Value, constant
from relayout.ir.vectors import join
from relayout.kernels.copy.base import Place, writes
from relayout.kernels.copy.cost import NEAR, PASS_CYCLES, converting, fitting, instructions
from relayout.kernels.copy.network import beside, in_turn, interleaved, interleaved_at_once
from relayout.kernels.copy.pixels import MOST_CHANNELS, Pixels, again, in_strips, is_even, picks_of
from relayout.kernels.copy.plan import (
    JOINED_BITS,
    LANE_BITS,
    LINE_BITS,
    UNUSUAL_CYCLES,
    Facts,
    Plan,
    Run,
    along,
    costing,
    in_lines,
    left_of,
    part_of,
    read_on,
    rest_of,
    runs,
    shared_of,
)
from relayout.kernels.copy.problem import Move
from relayout.loops.nest import Loop
from relayout.records import dataclass, replace
from relayout.targets.machine import LINE, Machine

__all__ = ["Interleave", "InterleavePlan", "plans"]

PAGE_BITS = 8 * 4096  # of the destination that are filled one after the other


@dataclass(frozen=True)
class InterleavePlan(Plan):
    """Planes to pixels."""

    kind = "interleave"
    puts_together = True
    fills: bool = False
    """Whether a page of the destination is filled before the source is read on."""

    def described(self) -> Iterator[str]:
        """How many of what."""
        yield f"{self.columns.extent} pixels of {self.rows.extent} channels"

    def choices(self) -> Iterator[str]:
        """A buffer for pixels that are no lines, and the order of the loops around."""
        yield "buffered" if self.inside >= 0 else "unbuffered"
        if self.fills:
            yield "page by page"

    @property
    def widens(self) -> bool:
        """Vectors are cheaper to convert before they are interleaved, if they get no wider so."""
        return self.nest.read < self.nest.write and not any(along(self.nest, self.rows))

    @property
    def even(self) -> tuple[Loop, ...]:
        """The pixels."""
        return self.columns.loops

    @property
    def piece(self) -> int:
        """All pixels."""
        return super().piece * self.columns.extent

    @property
    def packs(self) -> bool:
        """Whether it interleaves whole lines of the destination at a time, for any vectors."""
        few = self.rows.extent
        return is_even(few) and self.footprint % LINE_BITS == 0 and not self.nest.fill

    def completes(self, machine: Machine) -> bool:
        """Vectors of pixels, where a vector is a line, or whole lines of them."""
        return machine.vector == LINE or self.packs


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Few channels that follow each other in the destination, and many pixels that do in the source."""
    inner, outer = runs(nest)
    if inner is None or outer is None or inner is outer:
        return
    columns, rows = Run((inner,)), Run((outer,))
    around = left_of(nest, columns, rows)
    made = InterleavePlan(nest, columns, rows, around, shared_of(around))
    of_matrix = made.total == LANE_BITS // 8 and _narrow(nest, outer, facts.machine)
    few = made.total <= MOST_CHANNELS or of_matrix
    if inner.dst != made.total * nest.write or not few or (nest.fill and not _ends_with_zeros(made)):
        return
    line = LINE_BITS // min(nest.read, nest.write)
    short = facts.machine.is_avx2 and nest.conversion is None and not nest.fill  # where it has been measured
    many = inner.extent >= line or (short and 2 * inner.extent >= line)
    if many or (_packs(nest, inner, outer) and not nest.fill):
        plain, made = made, made if nest.fill else read_on(made)
        cost = instructions(1 if many else _loads(nest, inner), picks_of(made.total)) + converting(nest, LINE)
        cost *= again(inner.extent, line) if many else 1.0
        filling = _filling(plain) if facts.machine.is_avx2 else None  # where it has been measured
        if filling is not None:
            far = nest.bytes > NEAR * facts.machine.l2 and made.footprint >= JOINED_BITS
            yield from costing(filling, facts, cost + UNUSUAL_CYCLES * (not far))
            cost += UNUSUAL_CYCLES * far
        yield from costing(in_strips(made, inner), facts, cost)
        if not made.packs and (lines := in_lines(made)) is not made:
            buffered = costing(in_strips(lines, inner), facts, cost + PASS_CYCLES)
            yield from (one for one in buffered if one.stream)


def _filling(made: InterleavePlan) -> InterleavePlan | None:
    """The same with the planes that fill a page of the destination innermost; None where they are already.

    Where planes are rows of a matrix, a turn writes some lines, and to read on in the source means to go on
    many pages further in the destination, at a distance that tends to be a power of two.
    """
    nest, around = made.nest, made.around
    on = next((loop for loop in around if loop.src == made.columns.extent * nest.read), None)
    meets = next((loop for loop in around if loop.dst == made.footprint), None)
    if on is None or meets is None or on is meets or on.dst <= PAGE_BITS or made.footprint % LINE_BITS:
        return None
    page = part_of(meets, PAGE_BITS // made.footprint)
    if page.extent < 2:
        return None
    others = [rest_of(loop, page) if loop is meets else loop for loop in around if loop is not on]
    order = tuple(loop for loop in (*others, on, page) if loop.extent > 1)
    return replace(made, around=order, shared=shared_of(order), fills=True)


def _narrow(nest: Move, outer: Loop, machine: Machine) -> bool:
    """Whether bytes are moved, from rows that do not collide in the L1 cache.

    Or half words that come of wider elements, where half a register of these would be converted otherwise.
    """
    early = nest.read < nest.write and any(outer.tables)  # converted behind loads, to something wider
    stay = 3 * outer.extent <= 2 * fitting(Run((outer,)))  # the destination has a share, too
    halves = machine.is_avx2 and nest.read > nest.write == 16
    return (min(nest.read, nest.write) == 8 or halves) and not early and not nest.adds and stay


def _ends_with_zeros(made: InterleavePlan) -> bool:
    """Whether channels that are zeros can be interleaved with the others: planes that nobody loads.

    They are not converted, so that must have been done behind loads.
    """
    nest, all_of_them = made.nest, made.total
    return is_even(all_of_them) and not made.late and min(nest.read, nest.write) >= 8


def _loads(nest: Move, inner: Loop) -> float:
    """How many loads of planes a line takes where pixels are few: one where they are whole lanes."""
    bits = min(nest.read, nest.write)
    if _fewer(inner.extent, LANE_BITS // bits) == inner.extent & -inner.extent:
        return 1.0
    return inner.extent.bit_count() * LINE_BITS / (inner.extent * bits)


def _fewer(extent: int, lane: int) -> int:
    """How many pixels a vector has where all of them are fewer than would fill one.

    What divides them if that is a lane, or all there are; else as many as can be, and then the rest.
    """
    even = extent & -extent
    return even if even >= lane else 1 << (extent.bit_length() - 1)


def _packs(nest: Move, inner: Loop, outer: Loop) -> bool:
    """Whether short rows, two, four or eight of them, can be interleaved: they fill a lane."""
    narrow, few = min(nest.read, nest.write), outer.extent
    some = _fewer(inner.extent, LANE_BITS // max(8, narrow))
    return narrow >= 8 and is_even(few) and some * few * narrow >= LANE_BITS


@writes(InterleavePlan)
class Interleave(Pixels):
    """Planes to pixels.

    Planes may be the rows of a matrix, pages apart, and a few pixels all that follow each other in the
    destination: 16 columns of 4 rows are one line of ``BA16a16b4a``. A turn then writes those, and the next
    one reads on.
    """

    def fewer(self, extent: int) -> int:
        """What divides them, or as many as can be."""
        return _fewer(extent, LANE_BITS // self.plan.mid)

    def body(self, place: Place) -> None:
        """All pixels of a row."""
        pixel = self.plan.columns.loop
        self.along(pixel, place, lambda at: self._some(pixel, at))

    def _some(self, pixel: Loop, place: Place) -> None:
        """:attr:`per` pixels, a piece of them after the other."""
        bits, width, channel = self.plan.mid, self.machine.vector, self.plan.rows.loop
        channels = self.plan.total
        piece = interleaved_at_once(bits, channels, self.per, width)
        step = piece or self.per
        converted = self._together(place, pixel, step) if piece else {}
        for first in range(0, self.per, step):
            at = self.moved(place, first, pixel)
            planes = [self.moved(at, c, channel) for c in range(channel.extent)]
            together = converted.get(first, [])
            if not together:
                vectors = [self.load(plane, step, self.lanes(pixel, step)) for plane in planes]
                vectors += [constant(self.vector(step), 0)] * self.nest.fill
            if first == 0 and pixel.extent * self.nest.read >= 8 * LINE:
                for plane in planes:
                    self.prefetch(plane.src)
            if together:
                made = in_turn(self.b, together, channels, width)
            else:
                made = interleaved(self.b, vectors, width) if piece else self._pixels(vectors)
            self._put(made, at, step * channels // len(made))

    def _together(self, place: Place, pixel: Loop, step: int) -> dict[int, list[Value]]:
        """All pixels, so many of them at a time, a register of several planes converted at once: by the pixel
        with which they begin. Nothing where that is no gain: where nothing is converted behind loads, or it
        gets no narrower.

        What is loaded for a register of bytes is four registers, and four are converted in half the time of
        four times one. The operands of planes are loaded once for all pixels.
        """
        bits, width, channel = self.plan.mid, self.machine.vector, self.plan.rows.loop
        narrows = self.what is not None and not self.plan.late and self.nest.read > bits
        count = beside(bits, channel.extent, step, width)
        if not narrows or self.nest.fill or channel.extent * step * bits != count * 8 * width:
            return {}
        made: dict[int, list[Value]] = {first: [] for first in range(0, self.per, step)}
        for k in range(count):
            some = range(k, channel.extent, count)
            lanes = [
                [p * one + (c - k) * two for c in some for p in range(step)]
                for one, two in zip(pixel.tables, channel.tables, strict=True)
            ]
            operands: dict[str, Value] | None = None
            for first, registers in made.items():
                at = self.moved(place, first, pixel)
                planes = [self.moved(at, c, channel) for c in some]
                raw = join(self.b, [self.load_raw(plane, step) for plane in planes])
                if operands is None or any(pixel.tables):
                    operands = self.operands(planes[0].tables, lanes, raw.type.count)
                registers.append(self.value(raw, planes[0], lanes, operands))
        return made

    def _put(self, made: list[Value], place: Place, per: int) -> None:
        """Store vectors of so many elements, one behind the other."""
        pixel, channel = self.plan.columns.loop, self.plan.rows.loop
        channels = self.plan.total
        for k, value in enumerate(made):
            places = [divmod(k * per + j, channels) for j in range(per)]
            lanes = [
                [p * one + c * two for p, c in places]
                for one, two in zip(pixel.tables, channel.tables, strict=True)
            ]
            self.store(value, place._replace(dst=self.step(place.dst, k * per, self.nest.write)), lanes)

    def _pixels(self, planes: list[Value]) -> list[Value]:
        """The vectors of all pixels, for any number of planes."""
        channels = len(planes)
        places = [[divmod(k * self.per + j, channels) for j in range(self.per)] for k in range(channels)]
        return [self.picked(planes, [(c, pixel) for pixel, c in place]) for place in places]
