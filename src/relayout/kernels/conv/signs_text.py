"""Plans of :mod:`.signs` as text: pixels and weights are brought to scratch, and tiles multiply them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil

from relayout.ir.builder import L2, Function
from relayout.ir.dots import byte_products, pair_products
from relayout.ir.kernel import digits
from relayout.ir.types import I8, I16, I32, I64, PTR, Value, constant, vector
from relayout.ir.vectors import picked_in_lanes
from relayout.kernels.conv.epilogue import Epilogue, Outputs, Writer, channels_of
from relayout.kernels.conv.module import Module, Vectors
from relayout.kernels.conv.signs import ENTRY_INPUTS, PIXELS, Signs
from relayout.kernels.conv.tile import BARRIER, WORD, lanes_of
from relayout.targets.machine import LINE

__all__ = ["signs_module"]

FOUR = 4  # inputs of a step
STEPS = ENTRY_INPUTS // FOUR  # of an entry
MOST_ADDED = 256  # magnitudes that meet in 16 bits, so that no sum of their products leaves them


def signs_module(plan: Signs, epilogue: Epilogue) -> str:
    """The text of all functions."""
    return SignsModule(plan, epilogue).text()


class SignsModule(Module):
    """Writes the tasks of a plan, what brings operands to scratch, and tiles."""

    def __init__(self, plan: Signs, epilogue: Epilogue) -> None:
        super().__init__(plan, epilogue)
        self.plan, self.lanes, self.size = plan, lanes_of(plan.machine), plan.machine.vector

    def task(self, task: Value, first: Value) -> None:
        """Share by share of the entries its pixels, and then group by group the weights and all tiles."""
        b, plan = self.b, self.plan
        chunk, number = digits(b, task, [plan.chunks, plan.blocks])
        pixel, last = self.block(number, plan.block, plan.pixels)
        aligned = b.mul(b.udiv(b.add(b.ptrtoint(self.scratch), LINE - 1), LINE), LINE)
        self.packed = b.gep(self.scratch, b.sub(aligned, b.ptrtoint(self.scratch)))
        self.sums = b.gep(self.packed, ceil(plan.block * plan.pixel / LINE) * LINE)
        self.split_weights = b.gep(self.sums, plan.sums)
        self.starts = b.gep(self.split_weights, plan.share * plan.entry)
        self.list = b.gep(self.starts, (plan.vectors + 1) * self.size)
        self.functions["pack"] = self._pack("pack")
        self.source, count = b.gep(b["src"], plan.src.start), b.sub(last, pixel)
        target = b.gep(b.gep(b["dst"], plan.dst.start), pixel, plan.writes)
        self.zero = constant(I32, 0)
        if plan.zeros.src:
            self.zero = b.load(I32, b.gep(self.src_zero, plan.zeros.src_at))
        total, following = len(plan.places), b.add(chunk, 1)
        begin, stop = (b.udiv(b.mul(one, total), plan.chunks) for one in (chunk, following))
        channel = self.vectors(begin).channel

        def share(number: Value, ends: tuple[bool, bool]) -> None:
            entry = b.mul(number, plan.share)
            entries = b.smin(b.sub(plan.entries, entry), plan.share)
            came = b.gep(self.source, entry, ENTRY_INPUTS)
            b.call("pack", came, self.packed, pixel, last, entries)

            def group(number: Value) -> None:
                place, more = self.vectors(number), b.add(number, 1)
                after = self.vectors(b.select(b.icmp("slt", more, stop), more, begin)).weights
                weights, after = (b.gep(at, entry, STEPS * self.size) for at in (place.weights, after))
                sums = b.gep(self.sums, b.sub(place.channel, channel), WORD * plan.block * (plan.sums > 0))
                here = place._replace(src=sums, weights=weights, dst=b.gep(target, place.dst))
                self.by_kind(place, lambda kind: self._group(kind, here, after, count, entries, ends))

            b.loop(begin, stop, 1, group)

        parts = plan.parts - 1
        share(constant(I64, 0), (True, parts == 0))
        if parts > 1:
            b.loop(1, parts, 1, lambda number: share(number, (False, False)))
        if parts:
            share(constant(I64, parts), (False, True))

    # -- operands -------------------------------------------------------------------------------------------

    def _pack(self, name: str) -> str:
        """The text of a function that brings pixels to scratch: eight bytes, and then their complements."""
        plan = self.plan
        arguments = {"src": PTR, "to": PTR, "first": I64, "last": I64, "entries": I64}
        f = Function(name, arguments, plan.machine, "internal", "noinline")
        shift = 0x80 if plan.src_type == "u8" else 0
        flips = sum((shift if k < ENTRY_INPUTS else shift ^ 0xFF) << 8 * k for k in range(2 * ENTRY_INPUTS))
        low, high = (flips >> bits & (1 << 64) - 1 for bits in (0, 64))
        flip = f.insert(f.splat(constant(I64, low), 2), constant(I64, high), 1)

        def pixel(number: Value) -> None:
            came, goes = f["src"], f.gep(f["to"], f.sub(number, f["first"]), plan.pixel)
            places = digits(f, number, [loop.extent for loop in plan.reads])
            for loop, place in zip(plan.reads, places, strict=True):
                came = f.gep(came, place, loop.src)

            def eight(k: Value) -> None:
                x = f.splat(f.load(I64, f.gep(came, k, ENTRY_INPUTS), 1), 2)
                f.store(f.xor(x, flip), f.gep(goes, k, 2 * ENTRY_INPUTS), 16)

            f.loop(0, f["entries"], 1, eight)

        f.loop(f["first"], f["last"], 1, pixel)
        return f.text()

    def _split(self, kind: int, name: str) -> str:
        """The text of a function that splits the weights of a group, some entries of them.

        Entries whose products can be added up by eights go to the front, the others to the back. The count of
        the former is stored behind what sums begin with. Meanwhile those that are split next are asked for,
        so that they come from memory while tiles multiply: their streams end before a prefetcher finds them.
        """
        plan, group, size, lanes = self.plan, self.plan.kinds[kind], self.size, self.lanes
        arguments = dict.fromkeys(("from", "after", "to", "starts", "list"), PTR) | {
            "zero": I32,
            "count": I64,
        }
        f = Function(name, arguments, plan.machine, "internal", "noinline")
        bytes_, words, sums = vector(size, I8), vector(size // 2, I16), vector(lanes, I32)
        ones, ones_of_bytes = constant(words, 1), constant(bytes_, 1)
        nothing = constant(sums, 0)
        several = range(group.vectors)

        def entry(number: Value, given: list[Value]) -> list[Value]:
            front, back, *totals = given
            parts, largest = [], constant(words, 0)
            for v in several:
                come = f.gep(f.gep(f["from"], group.weights[v]), number, STEPS * size)
                f.prefetch(f.gep(f.gep(f["after"], group.weights[v]), number, STEPS * size), L2)
                wholes, sizes = [], []
                for step in range(STEPS):
                    w = self._four(f, f.gep(come, step * size))
                    magnitudes = f.select(f.icmp("slt", w, 0), f.sub(0, w), w)
                    wholes.append(byte_products(f, ones_of_bytes, w))
                    sizes.append(byte_products(f, magnitudes, ones_of_bytes))
                    straight = self._straight(f, step)
                    which = f.select(f.icmp("slt", w, 0), f.add(straight, ENTRY_INPUTS), straight)
                    parts.append((self._at(kind, step, v), magnitudes))
                    parts.append((self._at(kind, step, v) + self._shuffles(kind), which))
                added = f.add(*sizes)
                totals[2 * v] = f.add(totals[2 * v], pair_products(f, f.add(*wholes), ones))
                totals[2 * v + 1] = f.add(totals[2 * v + 1], pair_products(f, added, ones))
                largest = f.smax(largest, added)
            over = f.any(f.icmp("sgt", largest, MOST_ADDED))
            back = f.select(over, f.sub(back, 1), back)
            place = f.select(over, back, front)
            front = f.select(over, front, f.add(front, 1))
            goes = f.gep(f["to"], place, plan.entry)
            for at, x in parts:
                f.store(x, f.gep(goes, at), size)
            f.store(f.mul(number, 2 * ENTRY_INPUTS), f.gep(f["list"], place, 8))
            return [front, back, *totals]

        begin = [constant(I64, 0), f["count"], *[nothing] * (2 * group.vectors)]
        front, _, *totals = f.repeat(0, f["count"], 1, begin, entry, True)
        away = f.sub(0x80 if plan.src_type == "u8" else 0, f["zero"])
        for v in several:
            whole, size_of = totals[2 * v : 2 * v + 2]
            below = f.ashr(f.sub(size_of, whole), 1)  # magnitudes of those below zero
            f.store(f.add(f.mul(whole, f.splat(away, lanes)), below), f.gep(f["starts"], v * size), size)
        f.store(front, f.gep(f["starts"], plan.vectors * size))
        return f.text()

    def _four(self, f: Function, come: Value) -> Value:
        """The weights of a step: of each output two inputs and the next two, which come apart.

        They are opaque so that LLVM takes ``vpunpck`` and ``vinserti128``, where it would take ``vpermq``.
        """
        half = self.lanes // 2
        one, two = (f.load(vector(self.lanes, I16), f.gep(come, k * self.size // 2), 1) for k in range(2))
        both = [
            f.opaque(
                f.shuffle(one, [n for k in range(half) for n in (first + k, first + k + self.lanes)], two)
            )
            for first in (0, half)
        ]
        return f.bitcast(f.shuffle(both[0], range(2 * self.lanes), both[1]), vector(self.size, I8))

    def _straight(self, f: Function, step: int) -> Value:
        """Which bytes of a register of a pixel the lanes of a step want, where no weight is below zero."""
        word = sum((step * FOUR + k) << 8 * k for k in range(FOUR))
        return f.bitcast(f.splat(constant(I32, word), self.lanes), vector(self.size, I8))

    def _at(self, kind: int, step: int, v: int) -> int:
        """Where magnitudes of a step and a vector lie in an entry."""
        return (step * self.plan.kinds[kind].vectors + v) * self.size

    def _shuffles(self, kind: int) -> int:
        """From these to the shuffles that go with them."""
        return STEPS * self.plan.kinds[kind].vectors * self.size

    # -- tiles ----------------------------------------------------------------------------------------------

    def _group(
        self, kind: int, here: Vectors, after: Value, count: Value, entries: Value, ends: tuple[bool, bool]
    ) -> None:
        """All pixels of a task by a share of the entries of a group: the first one, the last one.

        ``here`` has its sums in place of the source; ``after`` come the weights that are split next.
        """
        b, plan, each = self.b, self.plan, PIXELS[self.plan.kinds[kind].vectors]
        name = f"split{kind}"
        if name not in self.functions:
            self.functions[name] = self._split(kind, name)
        b.call(name, here.weights, after, self.split_weights, self.starts, self.list, self.zero, entries)
        extra = self.of_channel(here.channel)

        def tile(pixel: Value, size: int) -> None:
            name = f"tile{kind}_{size}_{ends[0]:d}{ends[1]:d}"
            if name not in self.functions:
                self.functions[name] = self._tile(kind, size, name, *ends)
            came, to = b.gep(self.packed, pixel, plan.pixel), b.gep(here.dst, pixel, plan.writes)
            sums = b.gep(here.src, pixel, plan.kinds[kind].vectors * self.size)
            pointers = [came, self.split_weights, self.starts, self.list, sums, to, *extra]
            self.call(name, pointers, here.channel, to, [entries])

        rest = b.urem(count, each)
        whole = b.sub(count, rest)

        def turn(pixel: Value, _: list[Value]) -> list[Value]:
            tile(pixel, each)
            return []

        b.repeat(0, whole, each, [], turn)
        for size in sorted({plan.block % each, plan.pixels % plan.block % each} - {0}):
            b.when(b.icmp("eq", rest, size), partial(tile, whole, size))

    def _tile(self, kind: int, pixels: int, name: str, first: bool, final: bool) -> str:
        """The text of a function for the sums of some pixels, and, of all entries, what becomes of them."""
        plan, group, size = self.plan, self.plan.kinds[kind], self.size
        names = ("src", "weights", "starts", "list", "sums", "dst", "bias", "scale", *self.epilogue.names)
        arguments = dict.fromkeys(names, PTR) | {"entries": I64}
        f = Function(name, arguments, plan.machine, "internal", "noinline")
        sums = vector(self.lanes, I32)
        ones = f.opaque(constant(vector(size // 2, I16), 1))
        several = range(group.vectors)
        starts = [f.load(sums, f.gep(f["starts"], v * size), size) for v in several] * pixels
        kept = [f.gep(f["sums"], (p * group.vectors + v) * size) for p in range(pixels) for v in several]
        if not first:
            starts = [f.add(x, f.load(sums, at, size)) for x, at in zip(starts, kept, strict=True)]
        fours = f.load(I64, f.gep(f["starts"], plan.vectors * size))

        def turns(start: Value | int, stop: Value, given: list[Value], added: bool) -> list[Value]:
            def entry(number: Value, totals: list[Value]) -> list[Value]:
                here = f.gep(f["weights"], number, plan.entry)
                came = f.gep(f["src"], f.load(I64, f.gep(f["list"], number, 8)))
                for steps in [range(STEPS)] if added else [[step] for step in range(STEPS)]:
                    totals = self._steps(f, kind, steps, here, came, totals, ones)
                return [f.opaque(x) for x in totals]

            return f.repeat(start, stop, 1, given, entry)

        made = turns(0, fours, starts, True)
        made = turns(fours, f["entries"], made, False)
        if not final:
            for x, at in zip(made, kept, strict=True):
                f.store(x, at, size)
            return f.text()
        places = tuple(pixel * plan.writes for pixel in range(pixels))
        outputs = Outputs(
            plan.arithmetic, places, group.pieces, channels_of(group.vectors, group.valid, self.lanes)
        )
        writer = Writer(outputs, plan, self.epilogue)
        writer.store(f, [(made[p * group.vectors + v], p, v) for p in range(pixels) for v in several])
        return f.text()

    def _steps(
        self,
        f: Function,
        kind: int,
        steps: Sequence[int],
        here: Value,
        came: Value,
        totals: Sequence[Value],
        ones: Value,
    ) -> list[Value]:
        """The products of some steps of an entry, which are added up in 16 bits, added to totals."""
        group, size = self.plan.kinds[kind], self.size
        bytes_, totals = vector(size, I8), list(totals)
        several = range(group.vectors)
        held = {
            (step, v): f.load(bytes_, f.gep(here, self._at(kind, step, v)), size)
            for step in steps
            for v in several
        }
        for p in range(len(totals) // group.vectors):
            half = f.load(vector(size // 2, I8), f.gep(came, p * self.plan.pixel), size // 2)
            x = f.shuffle(half, [*range(size // 2)] * 2)
            for v in several:
                found: Value | None = None
                for step in steps:
                    at = f.gep(here, self._at(kind, step, v) + self._shuffles(kind))
                    y = byte_products(f, held[step, v], picked_in_lanes(f, x, f.load(bytes_, at, size)))
                    found = y if found is None else f.add(found, y)
                assert found is not None
                number = p * group.vectors + v
                totals[number] = f.add(totals[number], pair_products(f, found, ones))
            f.line(BARRIER)
        return totals
