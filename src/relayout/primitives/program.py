"""What a primitive is lowered to: parallel regions, one after the other.

A *step* is one kernel, which the threads share, with the names of the buffers that it works on. A *program*
is a list of steps with the buffers that belong to nobody else: *scratch*, which is dead when the program has
ended, and *constants*, which never change::

    convolution, from nchw     src ------ step --> dst
                                           |
                               operands: [weights, bias, scratch]

Names tie a program to tensors: calling a primitive looks up the addresses of its arguments, and a sequence
(:mod:`relayout.primitives.sequence`) ties many programs together in one piece of memory. Nothing in a program
depends on addresses, so that many threads may run one at a time, each with a scratch of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from relayout.errors import LayoutError
from relayout.forking import lock
from relayout.ops.indexing import outside
from relayout.records import dataclass, field
from relayout.tensor import address, aligned

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from relayout.jit.abi import Kernel

__all__ = ["KEPT", "Fault", "Program", "Step"]

KEPT = 8  # pieces of scratch that are kept for the next calls


class Step(NamedTuple):
    """One region: a kernel that is called for all of its parts."""

    kernel: Kernel
    source: str
    """The buffer that the kernel's first argument is the address of."""
    target: str
    """The same for its second argument."""
    operands: str | tuple[str, ...] = ()
    """What its third argument is the address of: a buffer, or a list of the addresses of these buffers."""
    parts: int = 1
    """Into how many parts the work is cut for threads; one alone does it as one part."""
    shared: bool = False
    """Whether several threads are worth waking."""
    at: tuple[int, int] = (0, 0)
    """Bytes behind the beginnings of both buffers at which the kernel finds them. So what differs only in
    where its tensors begin, as parts of a concatenation do, is one kernel."""


class Fault(NamedTuple):
    """An index that names nothing: kernels pass it over, and say so afterwards."""

    buffer: str
    """Scratch of two words: which of the axes, from 1 on, 0 where nothing was wrong; and the index."""
    kind: str
    """Of the primitive."""
    axes: tuple[tuple[int, int], ...]
    """Numbers and sizes of the axes that indices name."""

    def check(self, which: int, index: int, name: str = "") -> None:
        """Look at the two words.

        Raises
        ------
        LayoutError
            Something was wrong; the message begins with the name, or else the kind.
        """
        if which:
            raise LayoutError(f"{name or self.kind}: {outside(index, *self.axes[which - 1])}")


@dataclass
class Program:
    """Steps in order, and the buffers that are theirs.

    Attributes
    ----------
    steps : tuple of Step
    scratch : dict of str to int
        Bytes of each piece of scratch, which begins on a multiple of :data:`.ALIGNMENT`: kernels store whole
        vectors there.
    constants : dict of str to ndarray
        Buffers that are filled when the program is made.
    faults : tuple of Fault
        What steps may find wrong. The scratch is looked at when all have run.
    note : str
        How it is done.
    """

    steps: tuple[Step, ...]
    scratch: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    note: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self._free: list[dict[str, NDArray[np.uint8]]] = []  # no lock: a fork could leave it taken

    @property
    def lasting(self) -> set[str]:
        """Scratch that is looked at in the end: nobody else may use it before."""
        return {fault.buffer for fault in self.faults}

    def __call__(self, addresses: Mapping[str, int], threads: int | None = None) -> None:
        """Run all steps; ``addresses`` are those of the arguments, by name."""
        if not (self.scratch or self.constants or self.faults):
            for step in self.steps:
                _run(step, addresses, threads)
            return
        scratch = self.take()
        try:
            known = dict(addresses)
            for buffers in (self.constants, scratch):
                known.update((name, address(data)) for name, data in buffers.items())
            words = [(ctypes.c_int64 * 2).from_address(known[fault.buffer]) for fault in self.faults]
            for each in words:
                each[0] = 0
            for step in self.steps:
                _run(step, known, threads)
            for fault, each in zip(self.faults, words, strict=True):
                fault.check(*each)
        finally:
            self.give_back(scratch)

    def take(self) -> dict[str, NDArray[np.uint8]]:
        """Scratch that nobody else is using, by name."""
        with suppress(IndexError):
            return self._free.pop()
        return {name: aligned(size, zeroed=False) for name, size in self.scratch.items()}

    def give_back(self, scratch: dict[str, NDArray[np.uint8]]) -> None:
        """Let the next call use what :meth:`take` gave."""
        if len(self._free) < KEPT:
            self._free.append(scratch)


def _run(step: Step, known: Mapping[str, int], threads: int | None) -> None:
    kernel, source, target, operands, parts, shared, (before, behind) = step
    block = None
    if isinstance(operands, str):
        at = known[operands]
    elif operands:
        block = (ctypes.c_uint64 * len(operands))(*[known[name] for name in operands])
        at = ctypes.addressof(block)
    else:
        at = 0
    if shared and (many := min(_pool().count(threads), parts)) > 1:
        _pool().run(kernel.address, known[source] + before, known[target] + behind, at, parts, many)
        return
    kernel(known[source] + before, known[target] + behind, at, 0, 1)


@lru_cache(maxsize=1)
def _pool() -> ModuleType:
    """The threads; imported when something runs for the first time."""
    with lock():
        from relayout.runtime import threads
    return threads
