"""One convolution in the right and the wrong format, for each type that it may be computed in.

Right is what the instruction wants: weights with as many inputs side by side as it adds up, and a source with
as many channels. What is wrong costs in two ways. Weights in another order are packed in each call, or read
in pieces; a source without neighbouring channels is packed row by row. All are the same convolution, done by
Relayout's own primitive, and none is converted beforehand.

>>> [str(case) for case in cases() if case.type == "f32"][:3]
['f32 nhwc Ohwi16o', 'f32 nhwc OIhw4i16o4i', 'f32 nhwc OIhw16i16o2i']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import relayout as rl
from relayout import primitives
from relayout.bench.measure import Spread, Stopwatch, in_rounds, spread
from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.processors import limited
from relayout.tensor import Tensor, allocate

__all__ = ["Case", "Figure", "cases", "figures"]

DIMS, FILTERS = (1, 256, 28, 28), (256, 256, 3, 3)
TYPES = {"f32": ("f32", "f32"), "bf16": ("bf16", "bf16"), "u8": ("u8", "s8")}
"""By what a network is computed in: the data types of source and weights."""
SOURCES = "nhwc", "nChw16c", "NCHW32", "NCHW4", "nchw"
WEIGHTS = "Ohwi16o", "OIhw4i16o4i", "OIhw16i16o2i", "OhwI16o4i", "OhwI16o2i", "oihw"


@dataclass(frozen=True)
class Case:
    """A type, and the formats of source and weights; the destination has that of the source."""

    type: str
    source: str
    weights: str

    def __str__(self) -> str:
        return f"{self.type} {self.source} {self.weights}"


@dataclass(frozen=True)
class Figure:
    """What one case took; without seconds no kernel does it."""

    case: Case
    seconds: Spread | None
    how: str
    """What the primitive says of its implementation."""


def cases() -> tuple[Case, ...]:
    """Each format of weights with ``nhwc``, and each of the source with weights in the format of ``any``."""
    found = []
    for name in TYPES:
        found += [Case(name, SOURCES[0], weights) for weights in WEIGHTS]
        found += [Case(name, source, "any") for source in SOURCES]
    return tuple(found)


def figures(
    threads: int = 1,
    rounds: int = 7,
    seconds: float = 20.0,
    several: tuple[Case, ...] | None = None,
    dims: tuple[tuple[int, ...], tuple[int, ...]] = (DIMS, FILTERS),
) -> list[Figure]:
    """Measure some cases, all of them by default: everybody in turn.

    Examples
    --------
    >>> one = Case("f32", "nhwc", "any")
    >>> [found] = figures(1, 1, 1.0, (one,), ((1, 16, 6, 6), (16, 16, 3, 3)))
    >>> found.case == one, found.seconds.median > 0
    (True, True)
    """
    watches, told = {}, {}
    for case in cases() if several is None else several:
        try:
            made, run = _prepared(case, threads, dims)
        except LayoutError as error:
            told[case] = str(error)
            continue
        told[case] = made
        if run is not None:
            watches[str(case)] = Stopwatch(run)
    samples = in_rounds(watches, rounds, seconds, threads, ()) if watches else {}
    return [
        Figure(case, spread(samples[str(case)]) if str(case) in samples else None, how)
        for case, how in told.items()
    ]


def _prepared(
    case: Case, threads: int, dims: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[str, Callable[[], object] | None]:
    """How a case is done, and what does it; nothing where that would be the definition."""
    (source, weights), random = TYPES[case.type], np.random.default_rng(0)
    wanted: Any = rl.any if case.weights == "any" else case.weights
    with limited(threads):
        made = primitives.Convolution(
            MemoryDesc(dims[0], source, case.source),
            MemoryDesc(dims[1], weights, wanted),
            None,
            MemoryDesc(
                (dims[0][0], dims[1][0], *dims[0][2:]), "f32" if case.type == "u8" else source, case.source
            ),
            padding=1,
        )
        how = made.implementation
        if how.startswith("definition"):
            return how, None
        made.tune()
    given = [_filled(made.descs[name], random) for name in made.inputs]
    out = Tensor(made.dst, allocate(made.dst))
    said = f"weights {made.weights.format}; {how}" if case.weights == "any" else how
    return said, partial(made, *given, out=out, threads=threads)


def _filled(desc: MemoryDesc, random: np.random.Generator) -> Tensor:
    """Small whole numbers, which all types have."""
    low = 0 if desc.dtype.name == "u8" else -8
    return rl.tensor(random.integers(low, 9, desc.dims).astype(np.float32)).reorder(desc)
