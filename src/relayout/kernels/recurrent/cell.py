"""Cells as kernels see them: phases of a step, and functions behind sums.

:mod:`relayout.ops.recurrent` has the formulas. A step has one *phase* or two. What the second one reads must
be complete: ``r * h`` of a GRU, and the result of an LSTM that is projected.
"""

from __future__ import annotations

from typing import NamedTuple

from relayout.ir.builder import Builder
from relayout.ir.types import Value
from relayout.ops.functions import Function
from relayout.ops.recurrent import ATTENTIVE, GATES, LINEAR
from relayout.records import dataclass

__all__ = ["Cell", "Phase"]


class Phase(NamedTuple):
    """A product of weights and rows of a state, and what becomes of it."""

    gates: tuple[int, ...]
    """The gates whose sums are made; of a projection one, of weights of its own."""
    source: str = "hidden"
    """What is multiplied: the state (``hidden``), or what the phase before has left (``between``)."""
    projects: bool = False


@dataclass(frozen=True)
class Cell:
    """A kind of cell with all that changes its code.

    Parameters
    ----------
    kind : str
        One of :data:`relayout.ops.recurrent.GATES`.
    activations : tuple of Function
    clip : float
        What bounds the sums that activations are applied to, on both sides; 0: nothing does.
    peephole, projection : bool
        Of an LSTM.
    """

    kind: str
    activations: tuple[Function, ...]
    clip: float = 0.0
    peephole: bool = False
    projection: bool = False

    @property
    def gates(self) -> int:
        """How many there are."""
        return GATES[self.kind]

    @property
    def biases(self) -> int:
        """How many there are for each unit: with linear before reset the state has one of its own."""
        return self.gates + (self.linear)

    @property
    def linear(self) -> bool:
        """Whether a reset gate is a factor behind the product with the state."""
        return self.kind in LINEAR

    @property
    def resets(self) -> bool:
        """Whether the product of a gate is one with ``r * h``, which must be complete before."""
        return self.kind in ("gru", "augru")

    @property
    def mixes(self) -> bool:
        """Whether the state is a mean of the one before and a new one: a GRU of any kind."""
        return self.resets or self.linear

    @property
    def attentive(self) -> bool:
        """Whether there is an attention, which weakens the update gate."""
        return self.kind in ATTENTIVE

    @property
    def has_memory(self) -> bool:
        """Whether there is a second state, the c of an LSTM."""
        return self.kind == "lstm"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Those of a step.

        >>> Cell("gru", ()).phases
        (Phase(gates=(0, 1), ...), Phase(gates=(2,), source='between', projects=False))
        """
        if self.resets:
            return Phase((0, 1)), Phase((2,), "between")
        first = Phase(tuple(range(self.gates)))
        return (first, Phase((0,), "between", True)) if self.projection else (first,)

    def apply(self, b: Builder, which: int, x: Value) -> Value:
        """An activation of a sum."""
        if self.clip:
            x = Function("clip", -self.clip, self.clip).emit(b, x)
        return self.activations[which].emit(b, x)
