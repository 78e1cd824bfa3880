"""Interleaving and its reverse: planes to pixels of a few channels, and pixels to planes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import log2
from operator import sub

from relayout.ir.builder import Operand
from relayout.ir.types import I8, Value, constant, integer, vector
from relayout.ir.vectors import join, join_lanes
from relayout.kernels.copy.base import Kernel, Lanes, Place, writes
from relayout.kernels.copy.cost import PASS_CYCLES, converting, elsewhere, fitting, instructions
from relayout.kernels.copy.network import Network, beside, in_turn, interleaved, interleaved_at_once
from relayout.kernels.copy.plan import (
    LANE_BITS,
    LINE_BITS,
    LONG_ROW_BITS,
    WORD_BITS,
    AnyPlan,
    Facts,
    Plan,
    Run,
    along,
    costing,
    in_lines,
    left_of,
    read_on,
    runs,
    shared_of,
)
from relayout.kernels.copy.problem import WIDEST, Move
from relayout.loops.nest import Loop
from relayout.records import replace
from relayout.targets.machine import LINE, Machine

__all__ = ["Deinterleave", "DeinterleavePlan", "Interleave", "InterleavePlan", "Pixels", "in_strips", "plans"]

MOST_CHANNELS = 8  # turns of the longest loop that is interleaved or deinterleaved
HALVING = {8: 10.0, 16: 7.5, 32: 4.5, 64: 3.0, LANE_BITS: 2.0}
"""Instructions for a line whose even and odd units, of so many bits, are told apart with registers of half a
line: LLVM puts units in order within lanes, then lanes, then both registers together."""
CLAIMED_BYTES = 2 * LINE  # how far ahead planes ask for the lines that they write
STRIP_PIXELS = 1 << 10  # threads share pixels in multiples of so many


class DeinterleavePlan(Plan):
    """Pixels to planes."""

    kind = "deinterleave"
    can_claim = puts_together = True

    def described(self) -> Iterator[str]:
        """How many of what."""
        yield f"{self.rows.extent} pixels of {self.columns.extent} channels"

    @property
    def widens(self) -> bool:
        """Channels with operands of their own are converted when they are apart."""
        return self.nest.read <= self.nest.write or any(along(self.nest, self.columns))

    @property
    def even(self) -> tuple[Loop, ...]:
        """The pixels."""
        return self.rows.loops

    def completes(self, machine: Machine) -> bool:
        """Vectors of a plane, where a vector is a line."""
        return machine.vector == LINE and self.columns.loop.dst % LINE_BITS == 0


class InterleavePlan(Plan):
    """Planes to pixels."""

    kind = "interleave"
    puts_together = True

    def described(self) -> Iterator[str]:
        """How many of what."""
        yield f"{self.columns.extent} pixels of {self.rows.extent} channels"

    def choices(self) -> Iterator[str]:
        """A buffer for pixels that are no lines."""
        yield "buffered" if self.inside >= 0 else "unbuffered"

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
        return not few & (few - 1) and self.footprint % LINE_BITS == 0 and not self.nest.fill

    def completes(self, machine: Machine) -> bool:
        """Vectors of pixels, where a vector is a line, or whole lines of them."""
        return machine.vector == LINE or self.packs


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Few channels that follow each other on one side, and many pixels that do on the other."""
    inner, outer = runs(nest)
    if inner is None or outer is None or inner is outer:
        return
    columns, rows = Run((inner,)), Run((outer,))
    around = left_of(nest, columns, rows)
    line = LINE_BITS // min(nest.read, nest.write)
    parts = nest, columns, rows, around, shared_of(around)
    if (
        not nest.fill
        and inner.extent <= MOST_CHANNELS
        and outer.src == inner.extent * nest.read
        and 2 * outer.extent >= line
    ):
        cost = _cost(nest, inner.extent, facts.machine)
        cost = cost * _again(outer.extent, line) + elsewhere(abs(inner.dst) // 8)
        yield from costing(in_strips(DeinterleavePlan(*parts), outer), facts, cost)
    made = InterleavePlan(*parts)
    few = made.total <= MOST_CHANNELS or (
        made.total == LANE_BITS // 8 and _narrow(nest, outer, facts.machine)
    )
    if inner.dst != made.total * nest.write or not few or (nest.fill and not _ends_with_zeros(made)):
        return
    short = facts.machine.is_avx2 and nest.conversion is None and not nest.fill  # where it has been measured
    many = inner.extent >= line or (short and 2 * inner.extent >= line)
    if many or (_packs(nest, inner, outer) and not nest.fill):
        made = made if nest.fill else read_on(made)
        cost = _cost(nest, made.total) * (_again(inner.extent, line) if many else 1.0)
        yield from costing(in_strips(made, inner), facts, cost)
        if not made.packs and (lines := in_lines(made)) is not made:
            yield from (
                one for one in costing(in_strips(lines, inner), facts, cost + PASS_CYCLES) if one.stream
            )


def _cost(nest: Move, channels: int, machine: Machine | None = None) -> float:
    """A load and a store; halves of halves, or an element of one vector after the other.

    ``machine`` is what pixels fall apart on.
    """
    even = not channels & (channels - 1)
    shuffles: float = int(log2(channels)) if even else channels - 1
    if machine is not None and machine.is_avx2 and even and nest.conversion is None:
        if _fit_lanes(channels, nest.write):
            shuffles += channels * nest.write < LANE_BITS
        else:
            shuffles = sum(HALVING[min(nest.write << k, LANE_BITS)] for k in range(int(shuffles)))
    return instructions(1, shuffles) + converting(nest, LINE)


def _fit_lanes(channels: int, bits: int) -> bool:
    """Whether a lane of 16 bytes holds pixels of so many channels; of two words it is no gain."""
    whole = channels * bits == LANE_BITS or (channels * bits < LANE_BITS and bits < WORD_BITS)
    return whole and not channels & (channels - 1)


def _again(pixels: int, line: int) -> float:
    """How many times as long fewer pixels than a line take: their last vectors are not full, or overlap.

    >>> [round(_again(pixels, 64), 1) for pixels in (32, 48, 49, 63, 64, 100)]
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
    return not (all_of_them & (all_of_them - 1) or made.late or min(nest.read, nest.write) < 8)


def _packs(nest: Move, inner: Loop, outer: Loop) -> bool:
    """Whether short rows, two, four or eight of them, can be interleaved: they fill a lane."""
    narrow, few = min(nest.read, nest.write), outer.extent
    even = inner.extent & -inner.extent
    return narrow >= 8 and not few & (few - 1) and even * few * narrow >= LANE_BITS


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
        return not channels & channels - 1 and channels <= self.per

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


@writes(DeinterleavePlan)
class Deinterleave(Pixels):
    """Pixels to planes."""

    def fewer(self, extent: int) -> int:
        """As many as can be: the last vectors may overlap."""
        return 1 << (extent.bit_length() - 1)

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
            self.prefetch(at.src, 8 * LINE)
            widens = self._widens_at_once(channels)
            dealt = widens and self._deals_out(pixel)
            if widens:
                planes: Iterable[Value] = self._widened(at.src, channels, dealt)
            elif self._blends(channels):
                planes = self._blended(at.src, channels)
            elif self._by_lanes(channels):
                planes = self._in_lanes(at.src, channels)
            else:
                vectors = [
                    self.load(at._replace(src=self.step(at.src, k * per, self.nest.read)), per, lanes(k))
                    for k in range(channels)
                ]
                planes = self._planes(vectors)
            for c, value in enumerate(planes):
                plane = self.moved(at, c, channel)
                self.store(value, plane, self.lanes(pixel, per), dealt=dealt)
                if self.plan.claims:
                    for ahead in range(0, per * self.nest.write // 8, LINE):
                        self.claim(self.b.gep(plane.dst, CLAIMED_BYTES + ahead))

        self.along(pixel, place, some)

    def _by_lanes(self, channels: int) -> bool:
        """Whether pixels fall apart within lanes, where no instruction goes across them that would do it."""
        plan, full = self.plan, 8 * self.machine.vector
        lanes = _fit_lanes(channels, plan.mid) and self.machine.is_avx2
        return lanes and self.what is None and self.per * plan.mid == full

    def _in_lanes(self, src: Value, channels: int) -> list[Value]:
        """The vectors of all planes, of pixels that are loaded by lanes, each of which has several.

        The lanes of a register are far apart, so that nothing has to go from one to the other. Four channels
        of bytes, four pixels in a lane::

            a0 b0 c0 d0 a1 b1 .. d3 | a16 b16 ..        as they are loaded
            a0 a1 a2 a3 b0 b1 .. d3 | a16 a17 ..        each lane in order: groups of a channel
            a0 a1 a2 a3 a4 a5 .. a15 | a16 a17 .. a31   groups of four such registers, turned over
        """
        b, bits = self.b, self.plan.mid
        places = LANE_BITS // bits
        group = places // channels
        net = Network(LANE_BITS // channels, channels, 2 * channels)
        picks = [
            lane + g * channels + c for lane in (0, places) for c in range(channels) for g in range(group)
        ]

        def load(number: int) -> Value:
            rows = net.rows[number]
            lanes = [b.load(self.vector(places), b.gep(src, LANE_BITS // 8 * row), 1) for row in rows]
            whole = join_lanes(b, lanes)
            return b.shuffle(whole, picks) if group > 1 else whole

        return [plane for _, plane in sorted(net.in_depth(b, load), key=lambda made: made[0])]

    def _widens_at_once(self, channels: int) -> bool:
        """Whether bytes become wider while they are picked: one instruction for a vector of words."""
        what = self.what
        if what is None or not self.plan.late or what.src.is_signed or self.nest.read != 8:
            return False
        per_register, anywhere = 8 * self.machine.vector // WORD_BITS, self.machine.permutes(8)
        most = self.machine.vector if anywhere else LANE_BITS // 8  # bytes that are picked from
        words = per_register if anywhere else LANE_BITS // WORD_BITS
        whole = self.per % per_register == 0 and self.per * channels >= most  # nothing behind them is read
        return (anywhere or self.machine.is_avx2) and words * channels <= most and whole

    def _deals_out(self, pixel: Loop) -> bool:
        """Whether pixels are dealt out to registers as packs put them in order."""
        registers = self.deals
        words = 8 * self.machine.vector // WORD_BITS
        alike = not (any(pixel.tables) or self.nest.adds)  # nothing else comes in the order of pixels
        return bool(registers) and self.per % (registers * words) == 0 and alike

    def _widened(self, src: Value, channels: int, dealt: bool) -> Iterator[Value]:
        """The vectors of all planes, put together of words, whose upper bytes are zero.

        They stay words where they become floats; else they are bytes again in the text, and each is made when
        it is wanted.
        """
        if not self.machine.permutes(8):
            yield from self._widened_in_lanes(src, channels, dealt)
            return
        b, most, real = self.b, self.machine.vector, self.what is not None and self.what.dst.is_float
        words, total = 8 * most // WORD_BITS, self.per * channels
        zeros, wide = constant(vector(most, I8), 0), vector(words, integer(WORD_BITS))
        firsts = range(0, total, words * channels)
        begins = [min(first, total - most) for first in firsts]
        loaded = [b.load(vector(most, I8), b.gep(src, begin), 1) for begin in begins]
        for c in range(channels):
            parts = []
            for x, offset in zip(loaded, map(sub, firsts, begins), strict=True):
                picks = [most] * most
                picks[:: WORD_BITS // 8] = range(offset + c, offset + c + words * channels, channels)
                word = b.bitcast(b.shuffle(x, picks, zeros), wide)
                parts.append(word if real else b.trunc(word, I8))
            yield join(b, parts)

    def _widened_in_lanes(self, src: Value, channels: int, dealt: bool) -> Iterator[Value]:
        """The same where bytes are picked within lanes: each lane is loaded from where its pixels begin.

        Four pixels are a lane of words. Registers have the lanes in turn; or they are dealt out, so that
        packs, which take a lane of each register, put them in order.
        """
        b, real = self.b, self.what is not None and self.what.dst.is_float
        lane, total = LANE_BITS // 8, self.per * channels
        words, lanes = LANE_BITS // WORD_BITS, self.machine.vector // lane
        size, wide = lane * lanes, vector(words * lanes, integer(WORD_BITS))
        zeros, together = constant(vector(size, I8), 0), self.deals if dealt else 1
        loaded = []
        for number in range(self.per // (words * lanes)):
            begin, register = number // together * together * lanes, number % together
            firsts = [(begin + k * together + register) * words * channels for k in range(lanes)]
            begins = [min(first, total - lane) for first in firsts]
            parts = [b.load(vector(lane, I8), b.gep(src, begin), 1) for begin in begins]
            loaded.append((join_lanes(b, parts), list(map(sub, firsts, begins))))
        for c in range(channels):
            made = []
            for x, offsets in loaded:
                picks = [size] * size
                for k, offset in enumerate(offsets):
                    taken = range(k * lane + offset + c, (k + 1) * lane, channels)
                    picks[k * lane : (k + 1) * lane : WORD_BITS // 8] = taken[:words]
                word = b.bitcast(b.shuffle(x, picks, zeros), wide)
                made.append(word if real else b.trunc(word, I8))
            yield join(b, made)

    def _blends(self, channels: int) -> bool:
        """Whether elements of an odd number of channels are picked within lanes, as they are."""
        raw = self.what is None or self.plan.late
        whole = self.per * self.nest.read == 8 * self.machine.vector
        return channels % 2 == 1 and raw and whole and self.machine.is_avx2

    def _blended(self, src: Value, channels: int) -> Iterator[Value]:
        """The vectors of all planes: blends, and one shuffle within lanes.

        A lane gets all elements of its pixels, in as many registers as there are channels. Where these are
        odd, the elements of one channel lie at different places in each of those registers. With four
        elements in a lane::

            r0 g0 b0 r1 | g1 b1 r2 g2 | b2 r3 g3 b3    ->    r0 r3 r2 r1    ->    r0 r1 r2 r3
        """
        b, per = self.b, self.per
        lane = LANE_BITS // self.nest.read
        lanes = per // lane
        registers = []
        for k in range(channels):
            firsts = [(n * channels + k) * lane for n in range(lanes)]
            parts = [b.load(self.vector(lane), self.step(src, at, self.nest.read), 1) for at in firsts]
            registers.append(join_lanes(b, parts))
        for c in range(channels):
            made = registers[0]
            for k in range(1, channels):
                here = [(k * lane + j) % channels == c for j in range(lane)] * lanes
                made = b.shuffle(made, [per * there + j for j, there in enumerate(here)], registers[k])
            places = [(pixel * channels + c) % lane for pixel in range(lane)]
            yield b.shuffle(made, [n * lane + place for n in range(lanes) for place in places])

    def _planes(self, vectors: list[Value]) -> list[Value]:
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


@writes(InterleavePlan)
class Interleave(Pixels):
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


def _every_other(count: int) -> list[list[int]]:
    """The units of even number of two vectors, and those of odd number."""
    return [list(range(0, 2 * count, 2)), list(range(1, 2 * count, 2))]
