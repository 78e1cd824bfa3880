"""Pixels of two to eight channels become planes: ``deinterleave``.

Vectors are loaded whole, as many as there are channels, and each plane's vector is picked out of them::

    r0 g0 b0 r1 | g1 b1 r2 g2 | b2 r3 g3 b3   ->   r0 r1 r2 r3,  g0 g1 g2 g3,  b0 b1 b2 b3

How they are picked depends on what the processor's shuffles reach, so there are several ways:

* any number of channels: a chain of shuffles of two sources each, which one register of indices makes cheap
  with AVX-512 (:meth:`.Pixels.picked`); a power of two by halves of halves;
* *in lanes* (:meth:`Deinterleave._in_lanes`): where shuffles stay within 16 bytes, as AVX2's do, each lane is
  loaded from far apart, so that nothing has to cross from one into the other;
* *blended* (:meth:`Deinterleave._blended`): an odd number of channels puts the elements of one channel at
  different places in each register, so that blends bring them together and one shuffle puts them in order;
* *widened* (:meth:`Deinterleave._widened`): unsigned bytes that become words or floats are picked as words at
  once, with zeros for their upper bytes: no instruction is spent on widening.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import sub

from relayout.ir.builder import numbers_of, table
from relayout.ir.types import I8, PTR, Value, constant, integer, vector
from relayout.ir.vectors import join, join_lanes, picked_anywhere
from relayout.kernels.copy.base import Lanes, Place, writes
from relayout.kernels.copy.cost import converting, elsewhere, instructions
from relayout.kernels.copy.network import Network
from relayout.kernels.copy.pixels import MOST_CHANNELS, Pixels, again, in_strips, is_even, picks_of
from relayout.kernels.copy.plan import (
    LANE_BITS,
    LINE_BITS,
    WORD_BITS,
    Facts,
    Plan,
    Run,
    along,
    costing,
    left_of,
    runs,
    shared_of,
)
from relayout.kernels.copy.problem import Move
from relayout.loops.nest import Loop
from relayout.targets.machine import LINE, Machine

__all__ = ["Deinterleave", "DeinterleavePlan", "plans"]

HALVING = {8: 10.0, 16: 7.5, 32: 4.5, 64: 3.0, LANE_BITS: 2.0}
"""Instructions for a line whose even and odd units, of so many bits, are told apart with registers of half a
line: LLVM puts units in order within lanes, then lanes, then both registers together."""
CLAIMED_BYTES = 2 * LINE  # how far ahead planes ask for the lines that they write


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


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Few channels that follow each other in the source, and many pixels that do in the destination."""
    inner, outer = runs(nest)
    if inner is None or outer is None or inner is outer or nest.fill or inner.extent > MOST_CHANNELS:
        return
    line = LINE_BITS // min(nest.read, nest.write)
    if outer.src != inner.extent * nest.read or 2 * outer.extent < line:
        return
    columns, rows = Run((inner,)), Run((outer,))
    around = left_of(nest, columns, rows)
    made = DeinterleavePlan(nest, columns, rows, around, shared_of(around))
    cost = _cost(nest, inner.extent, facts.machine)
    cost = cost * again(outer.extent, line) + elsewhere(abs(inner.dst) // 8)
    yield from costing(in_strips(made, outer), facts, cost)


def _cost(nest: Move, channels: int, machine: Machine) -> float:
    """A load, a store and the shuffles between them, for a line."""
    shuffles: float = picks_of(channels)
    if machine.is_avx2 and is_even(channels) and nest.conversion is None:
        if _fit_lanes(channels, nest.write):
            shuffles += channels * nest.write < LANE_BITS
        else:
            shuffles = sum(HALVING[min(nest.write << k, LANE_BITS)] for k in range(int(shuffles)))
    return instructions(1, shuffles) + converting(nest, LINE)


def _fit_lanes(channels: int, bits: int) -> bool:
    """Whether a lane of 16 bytes holds pixels of so many channels; of two words it is no gain."""
    whole = channels * bits == LANE_BITS or (channels * bits < LANE_BITS and bits < WORD_BITS)
    return whole and is_even(channels)


@writes(DeinterleavePlan)
class Deinterleave(Pixels):
    """Pixels to planes."""

    def prepare(self) -> None:
        """There are no picks yet."""
        self.picks: dict[bytes, int] = {}

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
        some, wide = words * channels, vector(words, integer(WORD_BITS))
        zeros = constant(vector(most, I8), 0)
        firsts = range(0, total, some)
        begins = [min(first, total - most) for first in firsts]
        loaded = []
        for begin, offset in zip(begins, map(sub, firsts, begins), strict=True):
            x = b.load(vector(most, I8), b.gep(src, begin), 1)
            if some < most:  # what lies beside the pixels is where zeros are picked from
                mine = range(offset, offset + some)
                x = b.shuffle(x, [k if k in mine else most for k in range(most)], zeros)
            loaded.append((x, offset))
        for c in range(channels):
            parts = []
            for x, offset in loaded:
                picks = [0 if offset else most - 1] * most
                picks[:: WORD_BITS // 8] = range(offset + c, offset + c + some, channels)
                word = b.bitcast(picked_anywhere(b, x, self._listed(picks)), wide)
                word = word if some < most else b.and_(word, 0xFF)
                parts.append(word if real else b.trunc(word, I8))
            yield join(b, parts)

    def _listed(self, picks: Sequence[int]) -> Value:
        """Picks from the table of this kernel, which LLVM does not look into."""
        number = self.picks.setdefault(bytes(picks), len(self.picks))
        name = f"{self.name}_picks"
        self.routines[name] = table(name, numbers_of(b"".join(self.picks)))
        return self.b.load(vector(len(picks), I8), self.b.gep(Value(f"@{name}", PTR), number * len(picks)), 1)

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


def _every_other(count: int) -> list[list[int]]:
    """The units of even number of two vectors, and those of odd number."""
    return [list(range(0, 2 * count, 2)), list(range(1, 2 * count, 2))]
