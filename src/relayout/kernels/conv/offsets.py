"""What sums begin with where the source's zero is another number: minus that number times the weights.

A quantised source stores its zeros as some number z, its zero point, and a source of s8 that is multiplied as
u8 is shifted, which is the same: its zeros are 128. Then::

    sum over k of (x[k] - z) * w[k]  =  sum over k of x[k] * w[k]  -  z * sum over k of w[k]

and what falls outside of the source counts as z. So the last term is one number for each output channel,
whatever the pixel, and a task works it out once for each group of vectors, from weights that it is about to
read anyway: one step for each vector of weights, while its pixels take one each. Tiles begin with it.

Where rows of taps fall outside, and are skipped, their weights do not count. So there is one such number for
each row of taps, and tiles begin with the sum over those that are inside (:data:`.COUNTS`).

Weights have zero points, too, though mostly 0. One of output channel o, v[o], takes off besides

    v[o] * sum over k of (x[k] - z)  =  v[o] * (sum over k of x[k]  -  z * number of products)

whose sum is one of the source, for each pixel: a tile adds it up beside its others, with weights of 1.

In scratch lie vectors, one after the other: z as the instruction reads it, in all lanes; z as s32; the zero
points v of a group; then what the sums of the group begin with, for each row of taps (or once, where none is
ever skipped).
"""

from __future__ import annotations

from itertools import product
from math import prod

from relayout.ir.builder import Function
from relayout.ir.types import PTR, Value, constant
from relayout.kernels.conv.dot import Dot
from relayout.kernels.conv.tile import Tile, lanes_of
from relayout.loops.nest import Loop
from relayout.targets.machine import Machine

__all__ = ["offsets_function"]


def offsets_function(name: str, tile: Tile, machine: Machine) -> str:
    """The text of ``void name(ptr weights, ptr offsets)``: all rows of taps for one group of vectors."""
    b = Function(name, {"weights": PTR, "offsets": PTR}, machine, "internal", "noinline")
    dot = Dot(b, tile.arithmetic, tile.weights_type, lanes_of(machine))
    size = dot.sum.bytes
    zero = b.load(dot.sum, b.gep(b["offsets"], size), size)
    rows = tile.counted
    inside = [loop for loop in tile.loops if loop not in rows and loop.extent > 1]

    def sums(left: list[Loop], weights: Value, found: list[Value]) -> list[Value]:
        if not left:
            found = list(found)
            for (_, tap), (v, at) in product(tile.taps, enumerate(tile.weights)):
                found[v] = dot.summed(b.gep(weights, tap + at), found[v])
            return found

        def turn(_: Value, given: list[Value]) -> list[Value]:
            at, *before = given
            return [b.gep(at, left[0].steps[1]), *sums(left[1:], at, before)]

        return b.repeat(0, left[0].extent, 1, [weights, *found], turn, True)[1:]

    def last(found: list[Value]) -> list[Value]:
        if tile.rest is None:
            return found
        *_, at = tile.rest
        places = (b.gep(b["weights"], at + place) for place in tile.weights)
        return [dot.summed(place, x) for place, x in zip(places, found, strict=True)]

    def row(left: list[Loop], weights: Value, to: Value) -> None:
        if not left:
            totals = last(sums(inside, weights, [constant(dot.sum, 0) for _ in tile.weights]))
            for v, total in enumerate(totals):
                b.store(b.sub(0, b.mul(total, zero)), b.gep(to, v * size), size)
            return
        apart = prod(loop.extent for loop in left[1:]) * len(tile.weights) * size

        def turn(number: Value) -> None:
            row(left[1:], b.gep(weights, number, left[0].steps[1]), b.gep(to, number, apart))

        b.loop(0, left[0].extent, 1, turn)

    row(list(rows), b["weights"], b.gep(b["offsets"], (2 + len(tile.weights)) * size))
    return b.text()
