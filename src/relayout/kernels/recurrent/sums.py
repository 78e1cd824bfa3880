"""Gradients of biases and peepholes as text: ``void sums(ptr planes, ptr sums, ptr ops, ...)``.

A gate's gradients are blocks of units, all steps and rows of the batch of a block one vector after the other.
Each block is summed up, or its products with what lies row by row in the workspace: a memory. A task is a
block, and its order of summation is always the same: so many sums in turn, and then these.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from relayout.ir.builder import Function
from relayout.ir.kernel import kernel, share
from relayout.ir.types import FLOAT, PTR, Value, constant, vector
from relayout.ir.vectors import load_pieces, pieces_of
from relayout.kernels.conv.tile import WORD, lanes_of
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "Column", "module"]

ENTRY = "sums"
CHAINS = 8  # sums in turn


class Column(NamedTuple):
    """What is summed up for the units of a gate; all in bytes but for ``units``."""

    source: int
    """Where the gradients of the gate begin."""
    target: int
    units: int
    factor: int = -1
    """Where the first row of what they are multiplied by begins; -1: they are not."""


def module(columns: tuple[Column, ...], rows: int, machine: Machine) -> str:
    """The text, for so many vectors of a block; rows of a factor have as many units as the gate."""
    f, lanes = kernel(ENTRY, machine), lanes_of(machine)
    factors = f.load(PTR, f["ops"])
    first, last = share(f, sum(ceil(one.units / lanes) for one in columns))
    before = 0
    for one in columns:
        whole, rest = divmod(one.units, lanes)
        for count, valid, start in ((whole, lanes, 0), (min(rest, 1), rest, whole)):
            if count:
                _blocks(f, one, (first, last), (before, start, count, valid), rows, factors)
            before += count
    return f.text()


def _blocks(
    f: Function,
    one: Column,
    share: tuple[Value, Value],
    which: tuple[int, int, int, int],
    rows: int,
    factors: Value,
) -> None:
    """Those of a column that are in the share: so many from ``start`` on, each with so many units."""
    lanes = lanes_of(f.machine)
    (before, start, count, valid), size, type = which, lanes * WORD, vector(lanes, FLOAT)
    begin, end = f.smax(f.sub(share[0], before), 0), f.smin(f.sub(share[1], before), count)

    def block(number: Value, given: list[Value]) -> list[Value]:
        at = f.add(number, start)
        source = f.gep(f.gep(f["src"], one.source), at, rows * size)
        factor = f.gep(f.gep(factors, max(one.factor, 0)), at, size)

        def turn(count: int, carried: list[Value]) -> list[Value]:
            x, y, *sums = carried
            for k in range(count):
                value = f.load(type, f.gep(x, k * size))
                if one.factor < 0:
                    sums[k] = f.fadd(sums[k], value)
                    continue
                there = f.gep(y, k * one.units * WORD)
                sums[k] = f.fmuladd(value, load_pieces(f, type, there, pieces_of(0, valid, 0)), sums[k])
            return [f.gep(x, count * size), f.gep(y, count * one.units * WORD), *sums]

        zero = [constant(type, 0)] * CHAINS
        carried = f.repeat(
            0, rows // CHAINS, 1, [source, factor, *zero], lambda _, given: turn(CHAINS, given)
        )
        sums = turn(rows % CHAINS, carried)[2:]
        while len(sums) > 1:
            sums = [f.fadd(*pair) for pair in zip(sums[::2], sums[1::2], strict=True)]
        f.store(sums[0], f.gep(f.gep(f["dst"], one.target), at, size))
        return given

    f.repeat(begin, end, 1, [], block)
