"""The text of few rows by weights as they lie: what :mod:`.gemv` plans.

A tile is a function that computes one vector of outputs of all rows; a task calls it for each vector of its
strip. It goes over the inputs once for each few outputs (*streams*), with a sum in registers for each of them
and each row, and adds up the lanes of all of these at the end (:func:`lanes_added`). Inputs that don't fill
the last vector are loaded in pieces, zeros behind them: nothing beside the tensors is touched.

The entry is that of all plans, see :mod:`.module`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from relayout.dtypes import DType, dtype
from relayout.ir.builder import L2, Builder, Function, Operand
from relayout.ir.conversions import to_f32
from relayout.ir.types import FLOAT, PTR, Value, constant, integer, vector
from relayout.ir.vectors import load_pieces, paired, pieces_of
from relayout.kernels.conv.epilogue import Epilogue, Writer, channels_of
from relayout.kernels.conv.gemv import Gemv
from relayout.kernels.conv.module import Module
from relayout.kernels.conv.tile import lanes_of
from relayout.targets.machine import LINE

__all__ = ["gemv_module", "lanes_added"]

POINTERS = ("src", "weights", "dst", "bias", "scale")


def gemv_module(plan: Gemv, epilogue: Epilogue) -> str:
    """The text of all functions."""
    return GemvModule(plan, epilogue).text()


def lanes_added(b: Builder, vectors: Sequence[Value]) -> Value:
    """In lane k the sum of all lanes of vector k; there are as many vectors as lanes.

    Each step adds lanes that are some bit apart, of two vectors at once::

        a0 a1 a2 a3     a0 b1 a2 b3     those that stay
        b0 b1 b2 b3  +  a1 b0 a3 b2     and their neighbours, brought there
    """
    made, bit = list(vectors), 1
    while len(made) > 1:
        lanes = range(made[0].type.count)
        moved = [(lane, bool(lane & bit) * len(lanes)) for lane in lanes]
        stay = [lane + other for lane, other in moved]
        come = [(lane ^ bit) + other for lane, other in moved]
        made = [
            b.fadd(b.shuffle(one, stay, two), b.shuffle(one, come, two))
            for one, two in zip(made[::2], made[1::2], strict=True)
        ]
        bit *= 2
    return made[0]


class _Tile:
    """Writes one tile: a vector of outputs, of which some are valid, for all rows."""

    def __init__(self, plan: Gemv, valid: int, epilogue: Epilogue, name: str) -> None:
        self.plan, self.valid, self.epilogue = plan, valid, epilogue
        self.lanes = lanes_of(plan.machine)
        self.arithmetic = plan.arithmetic
        self.dst = tuple(goes for _, goes in plan.rows)
        self.pieces = (pieces_of(0, valid, 0, plan.size),)
        self.channels = channels_of(1, valid, self.lanes)
        arguments = dict.fromkeys((*POINTERS, *epilogue.names), PTR)
        self.b = Function(name, arguments, plan.machine, "internal", "noinline")
        self.zero = constant(vector(self.lanes, FLOAT), 0.0)

    def text(self) -> str:
        """The text of the function."""
        plan = self.plan
        writer = Writer(self, plan, self.epilogue)
        sums: list[list[Value]] = [[] for _ in plan.rows]
        for first in range(0, self.valid, plan.streams):
            here = range(first, min(first + plan.streams, self.valid))
            for row, made in zip(sums, self.sums_of(here), strict=True):
                row += made
        rest = [self.zero] * (self.lanes - self.valid)
        added = [(lanes_added(self.b, [*row, *rest]), number, 0) for number, row in enumerate(sums)]
        writer.store(self.b, added)
        return self.b.text()

    def sums_of(self, outputs: range) -> list[list[Value]]:
        """For each row the sums of some outputs, their lanes not yet added up."""
        plan, lanes = self.plan, self.lanes
        step = plan.unrolled * lanes
        whole = plan.length // step * step
        sums = [self.zero] * (plan.unrolled * len(plan.rows) * len(outputs))

        def turn(k: Value, given: list[Value]) -> list[Value]:
            self.prefetch(k, outputs)
            return self.products(k, given, outputs, plan.unrolled, lanes)

        if whole:
            sums = self.b.repeat(0, whole, step, sums, turn, True)
        each = len(plan.rows) * len(outputs)
        for at in range(whole, plan.length, lanes):
            number = (at - whole) // lanes * each
            count = min(lanes, plan.length - at)
            some = self.products(at, sums[number : number + each], outputs, 1, count)
            sums = [*sums[:number], *some, *sums[number + each :]]
        of_turns = [sums[k * each : (k + 1) * each] for k in range(plan.unrolled)]
        total = [paired(several, self.b.fadd) for several in zip(*of_turns, strict=True)]
        return [total[k : k + len(outputs)] for k in range(0, each, len(outputs))]

    def products(
        self, k: Operand, sums: Sequence[Value], outputs: range, vectors: int, count: int
    ) -> list[Value]:
        """Products of some vectors of inputs from number ``k`` on, of ``count`` inputs each."""
        plan, b = self.plan, self.b
        src, weights = plan.src_type, dtype(plan.weights_type)
        made = []
        for one in range(vectors):
            ws = [
                self.load(b.gep(b["weights"], k, weights.bits // 8), weights, output * plan.pitch, one, count)
                for output in outputs
            ]
            for came, _ in plan.rows:
                x = self.load(b.gep(b["src"], k, src.bits // 8), src, came, one, count)
                made += [(x, w) for w in ws]
        return [b.fmuladd(x, w, total) for (x, w), total in zip(made, sums, strict=True)]

    def prefetch(self, k: Value, outputs: range) -> None:
        """Ask for the same inputs of the next outputs: streams that no prefetcher follows yet."""
        plan, b = self.plan, self.b
        size = dtype(plan.weights_type).bits // 8
        at = b.gep(b["weights"], k, size)
        for output, ahead in product(outputs, range(0, plan.unrolled * self.lanes * size, LINE)):
            b.prefetch(b.gep(at, (output + plan.streams) * plan.pitch + ahead), L2)

    def load(self, pointer: Value, kind: DType, at: int, number: int, count: int) -> Value:
        """A vector of elements as f32, zero behind those that there are."""
        size = kind.bits // 8
        pieces = pieces_of(0, count, at + number * self.lanes * size, size)
        raw = load_pieces(self.b, vector(self.lanes, integer(kind.bits)), pointer, pieces)
        return to_f32(self.b, raw, kind)


class GemvModule(Module):
    """Writes the tasks, and the tiles that they call."""

    def __init__(self, plan: Gemv, epilogue: Epilogue) -> None:
        super().__init__(plan, epilogue)
        self.plan = plan

    def task(self, task: Value, first: Value) -> None:
        """The vectors of a strip, one after the other."""
        b, plan = self.b, self.plan
        place, lanes = self.vectors(task), lanes_of(plan.machine)
        src, dst = b.gep(b["src"], plan.src.start), b.gep(b["dst"], plan.dst.start)
        src, dst = b.gep(src, place.src), b.gep(dst, place.dst)

        def of_kind(number: int) -> None:
            strip = plan.kinds[number]
            name = f"outputs{strip.valid}"
            if name not in self.functions:
                self.functions[name] = _Tile(plan, strip.valid, self.epilogue, name).text()

            def one(k: Value) -> None:
                channel = b.add(place.channel, b.mul(k, lanes))
                weights, target = (
                    b.gep(place.weights, k, lanes * plan.pitch),
                    b.gep(dst, k, lanes * plan.size),
                )
                self.call(name, [src, weights, target, *self.of_channel(channel)], channel, target, [])

            b.loop(0, strip.vectors, 1, one)

        self.by_kind(place, of_kind)
