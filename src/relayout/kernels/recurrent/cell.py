"""Cells: what one time step makes of its data and the state before.

All are sums of products with elementwise functions behind. ``x`` stands for the part of each gate that comes
from the data, ``W x + b``, which is there for all steps before the first one begins; ``*`` is by element::

    rnn       h' = f(x0 + U0 h)

    lstm      i, f = g(x0 + U0 h), g(x1 + U1 h)        c' = f * c + i * a(x2 + U2 h)
              o    = g(x3 + U3 h)                      h' = o * e(c')
              with a peephole i, f see P0 * c, P1 * c in their sums, and o sees P2 * c'
              with a projection the state is V h' instead

    gru       u, r = g(x0 + U0 h), g(x1 + U1 h)        h' = u * h + (1 - u) * a(x2 + U2 (r * h))

    lbr_gru   u, r = g(x0 + U0 h), g(x1 + U1 h)        h' = u * h + (1 - u) * a(x2 + r * (U2 h + b3))

Gates have the order of oneDNN. ``g``, ``a``, ``e`` are the cell's activations, in this order; a clip bounds
what they are applied to.

A step has one *phase* or two. What the second one reads must be complete: ``r * h`` of a GRU, and the result
of an LSTM that is projected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from relayout.ir.builder import Builder
from relayout.ir.types import Value
from relayout.ops.functions import Function

__all__ = ["ACTIVATIONS", "GATES", "Cell", "Phase"]

GATES: Final = {"rnn": 1, "lstm": 4, "gru": 3, "lbr_gru": 3}
"""How many gates there are."""

ACTIVATIONS: Final = {
    "rnn": ("tanh",),
    "lstm": ("logistic", "tanh", "tanh"),
    "gru": ("logistic", "tanh"),
    "lbr_gru": ("logistic", "tanh"),
}
"""The usual functions."""


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
        One of :data:`GATES`.
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
        return self.gates + (self.kind == "lbr_gru")

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
        if self.kind == "gru":
            return Phase((0, 1)), Phase((2,), "between")
        first = Phase(tuple(range(self.gates)))
        return (first, Phase((0,), "between", True)) if self.projection else (first,)

    def apply(self, b: Builder, which: int, x: Value) -> Value:
        """An activation of a sum."""
        if self.clip:
            x = Function("clip", -self.clip, self.clip).emit(b, x)
        return self.activations[which].emit(b, x)
