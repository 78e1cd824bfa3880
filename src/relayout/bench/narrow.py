"""Layers on bf16, f16 and bytes, beside a copy of as many bytes.

They do little for each element, so that the time of reading and writing is what they could take. The copy
moves each tensor once: half of the bytes of source and destination are read, and half are written. Who has
less to write than to read may be faster than that.

>>> case = CASES[0]
>>> str(case), case.bytes
('softmax bf16 abc 384x128x128', 25165824)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

import relayout as rl
from relayout import primitives
from relayout.bench.measure import COPY, OURS, Spread, Stopwatch, copier, figures, in_rounds
from relayout.layout.descriptor import MemoryDesc
from relayout.primitives.primitive import Primitive
from relayout.processors import limited
from relayout.tensor import Tensor, address, aligned, allocate

__all__ = ["CASES", "Case", "Figure", "figure"]


@dataclass(frozen=True)
class Case:
    """One layer.

    Attributes
    ----------
    what : str
        ``softmax`` and ``layer norm`` along the last axis, ``batch norm`` with statistics that are given,
        ``max`` and ``average`` pooling, ``linear`` resampling, ``relu``.
    type : str
        Of source and destination.
    dims : tuple of int
        Of the source.
    format : str
        Of both.
    window : tuple of int
        Of pooling: its size, stride and padding along both axes.
    factor : float
        Of resampling.
    """

    what: str
    type: str
    dims: tuple[int, ...]
    format: str
    window: tuple[int, int, int] = (1, 1, 0)
    factor: float = 1.0

    def primitive(self) -> Primitive:
        """The layer, planned."""
        src = MemoryDesc(self.dims, self.type, self.format)
        if self.what == "softmax":
            return primitives.Softmax(src, -1)
        if self.what == "layer norm":
            return primitives.LayerNormalization(src, True, True)
        if self.what == "batch norm":
            return primitives.BatchNormalization(src, use_scale=True, use_shift=True)
        if self.what == "linear":
            return primitives.Resampling(src, "linear", factors=self.factor)
        if self.what == "relu":
            return primitives.Eltwise(src, "relu")
        algorithm = "max" if self.what == "max" else "average_exclude_padding"
        return primitives.Pooling(src, algorithm, *self.window)

    @property
    def bytes(self) -> int:
        """Of the source and the destination."""
        made = self.primitive()
        return sum(prod(desc.dims) * desc.dtype.bits // 8 for desc in (made.descs["src"], made.dst))

    def __str__(self) -> str:
        size, stride, padding = self.window
        window = f"{size}x{size} stride {stride} padding {padding}" if size > 1 else ""
        factor = f"by {self.factor:g}" if self.what == "linear" else ""
        words = (self.what, window, factor, self.type, self.format, "x".join(map(str, self.dims)))
        return " ".join(filter(None, words))


IMAGES = "nhwc", "nChw16c", "nchw"
CASES = (
    *(Case("softmax", kind, (384, 128, 128), "abc") for kind in ("bf16", "f16")),
    *(Case("softmax", kind, (1024, 1000), "ab") for kind in ("bf16", "f16")),
    Case("softmax", "bf16", (48, 197, 197), "abc"),
    Case("softmax", "bf16", (512, 4096), "ab"),
    *(Case("average", "u8", (8, 192, 35, 35), format, (3, 1, 1)) for format in IMAGES),
    *(Case("average", "s8", (8, 256, 56, 56), format, (2, 2, 0)) for format in IMAGES),
    Case("average", "u8", (8, 128, 56, 56), "nhwc", (3, 2, 1)),
    Case("average", "u8", (32, 2048, 7, 7), "nhwc", (7, 1, 0)),
    *(Case("linear", "u8", (4, 64, 56, 56), format, factor=2) for format in IMAGES),
    *(Case("linear", "u8", (4, 64, 56, 56), format, factor=1.5) for format in IMAGES),
    Case("linear", "bf16", (4, 64, 56, 56), "nhwc", factor=2),
    *(Case("batch norm", "u8", (8, 64, 56, 56), format) for format in IMAGES),
    *(Case("max", "bf16", (8, 64, 112, 112), format, (3, 2, 1)) for format in IMAGES),
    Case("layer norm", "bf16", (8, 128, 768), "abc"),
    Case("batch norm", "bf16", (8, 64, 56, 56), "nhwc"),
    Case("relu", "u8", (8, 64, 112, 112), "nhwc"),
)
"""What is measured."""


@dataclass(frozen=True)
class Figure:
    """What one layer gave with one number of threads; see :func:`relayout.bench.measure.figures`."""

    case: Case
    threads: int
    how: str
    """How Relayout does it."""
    seconds: dict[str, Spread]
    ratios: dict[str, Spread]
    behind: dict[str, Spread]
    rounds: dict[str, int]

    @property
    def times(self) -> Spread:
        """The time in those of the copy."""
        return self.ratios[OURS]


def figure(case: Case, threads: int, rounds: int, seconds: float) -> Figure:
    """Measure one layer and the copy in turn, in this process.

    >>> found = figure(Case("relu", "u8", (1, 2, 3, 4), "nhwc"), 1, 1, 0.1)
    >>> sorted(found.seconds)
    ['Relayout', 'memcpy']
    """
    with limited(threads):
        made = case.primitive()
        made.tune()
    size = case.bytes // 2
    source, target = aligned(size, zeroed=False), aligned(size, zeroed=False)
    source[:], target[:] = 1, 2  # pages that nobody has touched would be no memory
    watches = {
        COPY: Stopwatch(copier(address(target), address(source), size, threads)),
        OURS: Stopwatch(_run(case, made, threads)),
    }
    samples = in_rounds(watches, rounds, seconds, threads)
    return Figure(case, threads, made.implementation, **figures(samples, COPY))


def _run(case: Case, made: Primitive, threads: int) -> Callable[[], object]:
    random = np.random.default_rng(0)
    kind = rl.dtype(case.type)
    low, high = (0, 1) if kind.is_float else (int(kind.min), int(kind.max) + 1)
    given: list[Any] = []
    for name in made.inputs:
        desc = made.descs[name]
        if name == "src":
            whole = (
                random.standard_normal(desc.dims) if kind.is_float else random.integers(low, high, desc.dims)
            )
            given.append(rl.tensor(whole, "abcde"[: len(desc.dims)], kind).reorder(desc))
        else:
            given.append(
                rl.tensor(random.random(desc.dims).astype(np.float32) + np.float32(0.5)).reorder(desc)
            )
    out = Tensor(made.dst, allocate(made.dst))
    return partial(made, *given, out=out, threads=threads)
