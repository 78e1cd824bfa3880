"""Weights as the tile reads them: neighbouring output channels in neighbouring lanes.

The tile loads a vector of output channels for each tap and each input channel (or pair of them). Which
formats have that, and where each vector begins, is found by asking the layout; nothing is said about names.

What one instruction adds up is the innermost digit: of each output the input channels that are multiplied at
once, then the same ones of the next output. So the format follows from two numbers, the lanes of a register
and the depth of the arithmetic::

    lanes   depth
    16      1      Ohwi16o       f32
    16      2      OhwI16o2i     pairs of bf16, or of s16
    16      4      OhwI16o4i     fours of bytes
    8       4      OhwI8o4i      the same in registers of 256 bits

Formats with more digits around these, such as ``OIhw4i16o4i`` and ``BA16a64b4a``, have the same vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from relayout.kernels.conv.arithmetic import Arithmetic
from relayout.kernels.conv.geometry import Geometry, is_spread
from relayout.kernels.conv.sides import digits_of, places_of
from relayout.kernels.conv.tile import lanes_of
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Digit
from relayout.targets.machine import Machine

__all__ = ["Weights", "in_steps", "weights_of", "weights_text"]


class Weights(NamedTuple):
    """Where vectors of weights lie, in bytes."""

    dtype: str
    vectors: tuple[int, ...]
    """For each vector of output channels, over all groups, where it begins."""
    inputs: tuple[Digit, ...]
    """The digits of the input channels, counted in steps of as many as are multiplied at once."""
    taps: tuple[int, int, int]


def weights_text(
    geometry: Geometry, arithmetic: Arithmetic, machine: Machine, spatial: int, grouped: bool
) -> str:
    """The format that the tile reads fastest.

    >>> from relayout.targets.machine import machine
    >>> from relayout.kernels.conv.arithmetic import FLOATS, PAIRS, QUADS
    >>> one = Geometry(1, 1, 64, 64, *[(1, 1, 1)] * 6)
    >>> [weights_text(one, how, machine("x86-64-v3"), 2, False) for how in (FLOATS, PAIRS)]
    ['Ohwi8o', 'OhwI8o2i']
    >>> weights_text(one, QUADS, machine("znver4"), 2, False)
    'OhwI16o4i'
    >>> weights_text(one._replace(groups=32, inputs=4, outputs=4), FLOATS, machine("x86-64-v4"), 2, True)
    'GOhwi4g4o'
    """
    lanes = lanes_of(machine)
    axes = "dhw"[3 - spatial :]
    if is_spread(geometry, lanes):
        outputs = geometry.outputs
        return f"Go{axes}i{lanes}g" if outputs == 1 else f"GO{axes}i{lanes // outputs}g{outputs}o"
    inner = f"I{lanes}o{arithmetic.depth}i" if arithmetic.depth > 1 else f"i{lanes}o"
    return f"{'g' if grouped else ''}O{axes}{inner}"


@lru_cache(maxsize=256)  # asked for each format of source and destination
def weights_of(
    desc: MemoryDesc, geometry: Geometry, arithmetic: Arithmetic, lanes: int, grouped: bool
) -> Weights | None:
    """Weights, or None where the tile can't read them in this format.

    ``grouped`` says that their first axis is that of groups.
    """
    layout, size, ladders = desc.layout, desc.dtype.bits // 8, digits_of(desc)
    if ladders is None:
        return None
    rooms = list(layout.padded_dims)
    group = ladders.pop(0) if grouped else (Digit(1, 1, 0),)
    groups = rooms.pop(0) if grouped else 1
    output, inputs, *spatial = ladders
    if any(len(axis) != 1 for axis in spatial):
        return None
    taps = (*(0 for _ in range(3 - len(spatial))), *(axis[0].stride for axis in spatial))
    per = geometry.outputs
    start = layout.offset0 * size

    in_group, of_group = places_of(output, rooms[0]), places_of(group, groups)
    step = size * arithmetic.depth
    vectors = []
    if is_spread(geometry, lanes):
        if arithmetic.depth != 1:
            return None
        for first in range(0, geometry.groups * per, lanes):
            if (first + lanes) // per > groups:
                return None
            numbers = range(first, first + lanes)
            places = tuple(of_group[number // per] + in_group[number % per] for number in numbers)
            if not _runs(places, step):
                return None
            vectors.append(start + places[0])
    else:
        for g in range(geometry.groups):
            for first in range(0, per, lanes):
                places = in_group[first : first + lanes]
                if len(places) < lanes or not _runs(places, step):
                    return None
                vectors.append(start + of_group[g] + places[0])
    steps = in_steps(inputs, arithmetic.depth, size)
    if steps is None:
        return None
    return Weights(desc.dtype.name, tuple(vectors), steps, (taps[0], taps[1], taps[2]))


def in_steps(digits: tuple[Digit, ...], depth: int, size: int) -> tuple[Digit, ...] | None:
    """The digits of channels counted in steps of so many that lie side by side; None where they don't.

    Channels of ``size`` bytes each.

    >>> in_steps((Digit(64, 2, 4096), Digit(4, 16, 64), Digit(1, 4, 1)), 4, 1)
    (Digit(weight=16, extent=2, stride=4096), Digit(weight=1, extent=16, stride=64))
    >>> in_steps((Digit(1, 64, 2),), 2, 2), in_steps((Digit(1, 64, 4),), 2, 2)
    ((Digit(weight=1, extent=32, stride=4),), None)
    """
    if depth == 1:
        return digits
    *outer, last = digits
    if (last.weight, last.stride) != (1, size) or any(d.weight % depth for d in outer) or last.extent % depth:
        return None
    found = [digit._replace(weight=digit.weight // depth) for digit in outer]
    if last.extent > depth or not outer:
        found.append(Digit(1, last.extent // depth, depth * size))
    return tuple(found)


def _runs(places: Sequence[int], step: int) -> bool:
    """Whether places follow each other."""
    return list(places) == list(range(places[0], places[0] + len(places) * step, step))
