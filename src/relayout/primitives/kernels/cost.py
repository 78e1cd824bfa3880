"""How large a tile and a task are: a small model of a processor, and the choice that it makes best.

A core multiplies two vectors in a cycle, loads two, and can add to the same sum again after four. What does
not fit half of the second cache comes from further away. Nothing here changes a result, only how long it
takes; the figures need only be right enough to put the choices in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from relayout.codegen.machine import Machine
from relayout.primitives.kernels.arithmetic import Arithmetic
from relayout.primitives.kernels.geometry import Geometry
from relayout.primitives.kernels.nest import Block, Dim, Nest
from relayout.primitives.kernels.tile import WORD, registers_of

__all__ = ["best_block", "cut_into_tasks"]

LINES = 8  # pixels whose lines may fall into one set of the first cache
COLLIDE = 4096  # bytes apart: lines fall into one set
MOST_PIXELS = 28
LANE = 16  # bytes within which a shuffle is an instruction that needs no pattern
LATENCY = 4.0  # cycles until a sum can be added to again
LOOP = 0.8  # cycles of a turn besides
COPIED = 12  # bytes that gathering or scattering moves in a cycle
STREAMED = 6  # bytes of weights that come from memory in a cycle
TASK = 300  # cycles that a task takes besides
WAITING = 0.1  # of a task: how long threads wait for the last one, if others use the processors, too


def best_block(
    dims: tuple[Dim, Dim, Dim, Dim],
    counts: list[int],
    machine: Machine,
    geometry: Geometry,
    arithmetic: Arithmetic,
    spread: bool,
) -> tuple[Block, float]:
    """The pixels of a tile, and about how many cycles one turn of the sum takes for a whole image.

    ``counts`` has the vectors of each group of output channels.
    """
    registers, most = registers_of(machine), max(counts)
    spare = 1 if arithmetic.depth == 1 else 3  # pairs are multiplied first, then added
    if spread:
        patterns = geometry.inputs if geometry.outputs * WORD > LANE else 0  # beyond a lane, in registers
        room = registers - geometry.inputs - patterns - 2
    else:
        room = (registers - most - spare) // most
    height, width = dims[2].extent, dims[3].extent
    if dims[3].src and dims[3].src % COLLIDE == 0:
        room = min(room, LINES)
    room = max(1, min(room, MOST_PIXELS))

    def cycles(rows: int, columns: int) -> float:
        total = 0.0
        whole, rest = divmod(height, rows)
        for n in set(counts):

            def row(of: int, n: int = n) -> float:
                return _across(width, columns, lambda m: _turn(m * of, n, spread, geometry))

            total += counts.count(n) * (whole * row(rows) + (row(rest) if rest else 0))
        return total

    choices = [
        Block(rows, columns)
        for columns in range(1, min(room, width) + 1)
        for rows in range(1, (min(height, room // columns) if columns == width else 1) + 1)
    ]
    best = min(choices, key=lambda block: (cycles(*block), -block.rows * block.columns))
    return best, cycles(*best)


def _across(width: int, columns: int, turn: Callable[[int], float]) -> float:
    """All tiles of a row."""
    whole, rest = divmod(width, columns)
    return whole * turn(columns) + (turn(rest) if rest else 0)


def _turn(pixels: int, vectors: int, spread: bool, geometry: Geometry) -> float:
    """One turn of the sum: multiplications or loads, whichever takes longer."""
    if spread:
        each = geometry.inputs
        return max(pixels * each, pixels * vectors * (1 + each / 2), LATENCY * each) + LOOP
    return max(pixels * vectors / 2, (pixels + vectors) / 2, LATENCY) + LOOP


def cut_into_tasks(nest: Nest, threads: int) -> Nest:
    """Choose how many rows, pixels and groups make a task."""
    height, width = nest.dims[2].extent, nest.dims[3].extent
    wide, tall = nest.block.columns, nest.block.rows
    across = [width]
    if not (nest.gathers or nest.scatters) and width > 4 * wide:
        across = sorted({width, *(min(width, wide * k) for k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64))})
    parts = {k for k in range(1, height + 1) if k <= 16 or height % k == 0}
    down = sorted({min(height, ceil(ceil(height / k) / tall) * tall) for k in parts})
    most = 1 if nest.scatters else min(len(nest.places), 2 * threads)  # whole pixels are scattered
    choices = [
        replace(nest, rows=rows, columns=columns, chunks=chunks)
        for rows in down
        for columns in across
        for chunks in range(1, most + 1)
    ]
    return min(choices, key=lambda made: _cost(made, threads))


def _cost(nest: Nest, threads: int) -> float:
    """About how many cycles everything takes on so many threads."""
    g, machine = nest.geometry, nest.machine
    lanes = machine.vector // WORD
    products = g.groups * g.outputs * g.inputs * g.taps
    work = nest.rows * nest.columns * products / (2 * lanes)
    weights = products * WORD
    channels = g.inputs + (0 if nest.scatters else g.outputs)
    touched = nest.gathered or nest.rows * nest.columns * g.groups * channels * WORD
    streamed = weights / STREAMED if weights > machine.l2 // 2 else 0
    again = work / 8 if touched > machine.l2 // 4 and len(nest.places) > nest.chunks else 0
    copied = COPIED if nest.slot <= machine.l2 // 8 else COPIED / 2
    each = (max(work, streamed) + again + nest.scattered / copied) / nest.chunks + nest.gathered / copied
    return (ceil(nest.tasks / threads) + WAITING) * (each + TASK)
