"""The native engine: kernels for moves, compiled for one problem.

It takes reorders that only move elements (one data type of whole bytes on both sides, no attributes). What it
does not take, the NumPy engine does: 4-bit elements, conversions, layouts whose refinement has no nests or
very many, and hosts that forbid machine code.

A kernel is compiled for one problem, because knowing extents and strides is what makes it fast. That takes
milliseconds, so a one-off reorder of a small tensor is not worth it: it runs in NumPy until the same problem
has come :data:`WORTH` times.
"""

from __future__ import annotations

import warnings
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from relayout.codegen.machine import LINE
from relayout.codegen.threads import SHARED, share
from relayout.codegen.threads import count as thread_count
from relayout.layout.descriptor import MemoryDesc
from relayout.reorder.problem import PASSES, Nest, nests, simplified

if TYPE_CHECKING:
    from relayout.codegen.machine import Machine

__all__ = ["Native", "native", "worth_compiling"]

WORTH = 3  # calls of one small problem before it is compiled
LONGEST_FILL = 1024  # bytes of data and zeros in a row that are written together
LARGE = 1 << 18  # bytes of a destination that is worth compiling for at once

_seen: dict[tuple[MemoryDesc, MemoryDesc], int] = {}


class Native:
    """The kernels of one problem: called with addresses and a number of threads.

    Attributes
    ----------
    nests : tuple of Nest
        What is moved, simplified.
    kinds : tuple of str
        The kernel of each nest.
    """

    def __init__(
        self,
        src: MemoryDesc,
        dst: MemoryDesc,
        found: tuple[Nest, ...],
        machine: Machine | None = None,
        streaming: bool | None = None,
    ) -> None:
        from relayout.codegen.compile import compiled
        from relayout.codegen.machine import host
        from relayout.reorder.moves import module, plan

        machine = machine or host()
        self._found = tuple(part for nest in found for part in _separable(nest))
        self.nests = tuple(map(simplified, self._found))
        plans = [plan(nest) for nest in self.nests]
        self.kinds = tuple(p.kind for p in plans)
        total = sum(nest.bytes for nest in self.nests)
        self.bytes = total + src.required_bytes
        if streaming is None:
            streaming = total >= machine.streaming
        wanted = {f"move{k}": (p, False) for k, p in enumerate(plans)}
        if streaming:
            wanted |= {f"stream{k}": (p, True) for k, p in enumerate(plans) if p.streams(machine)}
        kernels = compiled(module(wanted, machine), list(wanted), machine)
        self._parts = [
            (kernels[f"move{k}"], kernels.get(f"stream{k}", kernels[f"move{k}"]), p.extent, p.unit)
            for k, p in enumerate(plans)
        ]

    def explain(self) -> list[str]:
        """What every nest looks like after each pass."""
        lines = []
        for k, nest in enumerate(self._found):
            lines.append(f"nest {k + 1}, bytes: extent x (source step, destination step)")
            lines.append(f"  refined  {nest}")
            for step in PASSES:
                after = step(nest)
                if after != nest:
                    lines.append(f"  {step.__name__:<7}  {after}")
                nest = after
        return lines

    def __call__(self, source: int, target: int, threads: int | None = None) -> None:
        """Move everything from one address to another."""
        count = thread_count(threads) if self.bytes >= SHARED else 1
        for move, stream, extent, unit in self._parts:
            kernel = (
                move if target % LINE else stream
            )  # lines are completed only where the buffer begins on one
            if count == 1 or extent == 1:
                kernel(source, target, 0, extent)
            else:
                share(partial(kernel, source, target), extent, count, unit)


def _separable(nest: Nest) -> tuple[Nest, ...]:
    """A nest whose zeros can't be written together with its data as two: the data, and the zeros."""
    from relayout.reorder.moves import plan

    if not nest.fill:
        return (nest,)
    row = next(loop.extent for loop in nest.loops if loop.dst == nest.width) + nest.fill
    short = row * nest.width <= LONGEST_FILL  # tiles with zeros in them are written out one by one
    return (nest,) if short and plan(simplified(nest)).kind == "transpose" else nest.apart()


def native(src: MemoryDesc, dst: MemoryDesc) -> Native | None:
    """The kernels for a move, or None where the NumPy engine has to do it."""
    if src.dtype != dst.dtype or src.dtype.bits < 8 or 0 in src.dims or not _available():
        return None
    return _compiled(src, dst)


def worth_compiling(src: MemoryDesc, dst: MemoryDesc) -> bool:
    """Whether a one-off reorder should be compiled: it is large, or has come before."""
    if dst.nbytes >= LARGE:
        return True
    if len(_seen) > 4096:
        _seen.clear()
    count = _seen[src, dst] = _seen.get((src, dst), 0) + 1
    return count >= WORTH


@lru_cache(maxsize=512)
def _compiled(src: MemoryDesc, dst: MemoryDesc) -> Native | None:
    found = nests(src, dst)
    return None if found is None else Native(src, dst, found)


@lru_cache(maxsize=1)
def _available() -> bool:
    try:
        from relayout.codegen.compile import available
    except ImportError:
        return False
    if not available():
        warnings.warn(
            "this host forbids making machine code; reorders run in NumPy, which is slower",
            RuntimeWarning,
            stacklevel=4,
        )
        return False
    return True
