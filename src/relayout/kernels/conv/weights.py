"""Weights as the tile reads them: neighbouring output channels in neighbouring lanes.

The tile loads a vector of output channels for each tap and each input channel (or pair of them). Which
formats have that, and where each vector begins, is found by asking the layout; nothing is said about names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relayout.kernels.conv.arithmetic import Arithmetic
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.sides import places_of
from relayout.kernels.conv.tile import lanes_of
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Digit
from relayout.targets.machine import Machine

__all__ = ["Weights", "is_spread", "weights_of", "weights_text"]


class Weights(NamedTuple):
    """Where vectors of weights lie, in bytes."""

    dtype: str
    vectors: tuple[int, ...]
    """For each vector of output channels, over all groups, where it begins."""
    inputs: tuple[Digit, ...]
    """The digits of the input channels (of pairs of them, where two are multiplied at once)."""
    taps: tuple[int, int, int]


def is_spread(geometry: Geometry, lanes: int) -> bool:
    """Whether a vector holds output channels of several groups."""
    outputs = geometry.outputs
    few = geometry.groups > 1 and 0 < outputs < lanes and lanes % outputs == 0
    return few and geometry.inputs <= outputs


def weights_text(
    geometry: Geometry, arithmetic: Arithmetic, machine: Machine, spatial: int, grouped: bool
) -> str:
    """The format that the tile reads fastest.

    >>> from relayout.targets.machine import machine
    >>> from relayout.kernels.conv.arithmetic import FLOATS, PAIRS
    >>> one = Geometry(1, 1, 64, 64, *[(1, 1, 1)] * 6)
    >>> [weights_text(one, how, machine("x86-64-v3"), 2, False) for how in (FLOATS, PAIRS)]
    ['Ohwi8o', 'OhwI8o2i']
    >>> weights_text(one._replace(groups=32, inputs=4, outputs=4), FLOATS, machine("x86-64-v4"), 2, True)
    'GOhwi4g4o'
    """
    lanes = lanes_of(machine)
    axes = "dhw"[3 - spatial :]
    if is_spread(geometry, lanes):
        outputs = geometry.outputs
        return f"Go{axes}i{lanes}g" if outputs == 1 else f"GO{axes}i{lanes // outputs}g{outputs}o"
    inner = f"I{lanes}o2i" if arithmetic.depth == 2 else f"i{lanes}o"
    return f"{'g' if grouped else ''}O{axes}{inner}"


def weights_of(
    desc: MemoryDesc, geometry: Geometry, arithmetic: Arithmetic, lanes: int, grouped: bool
) -> Weights | None:
    """Weights, or None where the tile can't read them in this format.

    ``grouped`` says that their first axis is that of groups.
    """
    layout = desc.layout
    if any(len(term) != 1 for term in layout.terms):
        return None
    size = desc.dtype.bits // 8
    found = {
        term[0]: tuple(Digit(d.weight, d.extent, d.stride * size) for d in ladder)
        for term, ladder in zip(layout.terms, layout.ladders, strict=True)
    }
    ladders = [found[axis] for axis in range(layout.rank)]
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
    if arithmetic.depth == 2:
        last = inputs[-1]
        if (last.weight, last.extent, last.stride) != (1, 2, size):
            return None
        inputs = tuple(d._replace(weight=d.weight // 2) for d in inputs[:-1])
    return Weights(desc.dtype.name, tuple(vectors), inputs, (taps[0], taps[1], taps[2]))


def _runs(places: Sequence[int], step: int) -> bool:
    """Whether places follow each other."""
    return list(places) == list(range(places[0], places[0] + len(places) * step, step))
