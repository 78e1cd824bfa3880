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

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from relayout.tensor import address, aligned

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.codegen.compile import Kernel

__all__ = ["Program", "Step"]

WORD = 8  # bytes of an address
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
    """Into how many parts the work is cut; each is done exactly once."""
    shared: bool = False
    """Whether several threads are worth waking."""


@dataclass
class Program:
    """Steps in order, and the buffers that are theirs.

    Attributes
    ----------
    steps : tuple of Step
    scratch : dict of str to int
        Bytes of each piece of scratch.
    constants : dict of str to ndarray
        Buffers that are filled when the program is made.
    """

    steps: tuple[Step, ...]
    scratch: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[dict[str, NDArray[np.uint8]]] = []

    def __call__(self, addresses: Mapping[str, int], threads: int | None = None) -> None:
        """Run all steps; ``addresses`` are those of the arguments, by name."""
        scratch = self._take()
        try:
            known = dict(addresses)
            for buffers in (self.constants, scratch):
                known.update((name, address(data)) for name, data in buffers.items())
            for step in self.steps:
                _run(step, known, threads)
        finally:
            self._give_back(scratch)

    def _take(self) -> dict[str, NDArray[np.uint8]]:
        """Scratch that nobody else is using."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return {name: aligned(size, zeroed=False) for name, size in self.scratch.items()}

    def _give_back(self, scratch: dict[str, NDArray[np.uint8]]) -> None:
        with self._lock:
            if len(self._free) < KEPT:
                self._free.append(scratch)


def _run(step: Step, known: Mapping[str, int], threads: int | None) -> None:
    from relayout.codegen import threads as pool

    block = None
    operands = 0
    if isinstance(step.operands, str):
        operands = known[step.operands]
    elif step.operands:
        block = np.array([known[name] for name in step.operands], np.uint64)
        operands = address(block)
    source, target = known[step.source], known[step.target]
    many = min(pool.count(threads), step.parts) if step.shared else 1
    if many > 1:
        pool.run(step.kernel.address, source, target, operands, step.parts, many)
        return
    for part in range(step.parts):
        step.kernel(source, target, operands, part, step.parts)
