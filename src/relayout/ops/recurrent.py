"""Recurrent layers: what one time step makes of its data and the state before, and all steps of all layers.

Cells are sums of products with elementwise functions behind. ``W`` are weights of the data ``x``, ``U`` those
of the state ``h``, numbers count gates in the order of oneDNN; ``*`` is by element::

    rnn       h' = f(W0 x + U0 h + b0)

    lstm      i, f = g(W0 x + U0 h + b0), g(W1 x + U1 h + b1)      c' = f * c + i * a(W2 x + U2 h + b2)
              o    = g(W3 x + U3 h + b3)                           h' = o * e(c')
              with peepholes i, f see P0 * c, P1 * c in their sums, and o sees P2 * c'
              with a projection the state is V h' instead

    gru       u, r = g(W0 x + U0 h + b0), g(W1 x + U1 h + b1)
              h'   = u * h + (1 - u) * a(W2 x + U2 (r * h) + b2)

    lbr_gru   u, r as in gru
              h'   = u * h + (1 - u) * a(W2 x + r * (U2 h + b3) + b2)

    augru     as gru, with (1 - s) * u in place of u in h', where s is the attention of a step and a row
    lbr_augru as lbr_gru, likewise

``g``, ``a``, ``e`` are the activations, in this order; a clip bounds what they are applied to, but for
``e``.

With weights of bf16, what they are multiplied by is rounded to bf16 before: ``h``, ``r * h``, what is
projected, and the states that the layer above is given (:attr:`Recurrent.rounds`). Nothing else is rounded
between the first step and the last: neither ``c`` and the gates, nor the ``h`` that a GRU's mean reads, nor
what is returned, until it is stored in its own type.

In training the ``workspace`` keeps what the backward pass needs; :class:`Workspace` says where.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from relayout.dtypes import dtype
from relayout.ops.functions import Function, Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = [
    *("ACTIVATIONS", "ATTENTIVE", "DIRECTIONS", "GATES", "KEPT", "LINEAR", "MULTIPLIED"),
    "Recurrent",
    "Workspace",
]

MULTIPLIED: Final = ("weights_layer", "weights_iter", "weights_projection")
"""Weights that are factors of sums of products, and not of single elements."""

GATES: Final = {"rnn": 1, "lstm": 4, "gru": 3, "lbr_gru": 3, "augru": 3, "lbr_augru": 3}
"""How many gates each cell has."""

LINEAR: Final = ("lbr_gru", "lbr_augru")
"""Cells whose reset gate is a factor behind the product with the state, which has a bias of its own."""

ATTENTIVE: Final = ("augru", "lbr_augru")
"""Cells that read an attention: a number for each step and row, which weakens the update gate."""

ACTIVATIONS: Final = {
    "rnn": ("tanh",),
    "lstm": ("logistic", "tanh", "tanh"),
    "gru": ("logistic", "tanh"),
    "lbr_gru": ("logistic", "tanh"),
    "augru": ("logistic", "tanh"),
    "lbr_augru": ("logistic", "tanh"),
}
"""The usual functions."""

DIRECTIONS: Final = {
    "left2right": (False,),
    "right2left": (True,),
    "bidirectional_concat": (False, True),
    "bidirectional_sum": (False, True),
}
"""For each direction of a layer whether it begins at the last step."""


KEPT: Final = {"rnn": 0, "lstm": 4, "gru": 3, "lbr_gru": 4, "augru": 3, "lbr_augru": 4}
"""How many numbers of a unit and step training keeps besides states: gates; of linear cells ``U2 h + b3``."""


class Workspace(NamedTuple):
    """What training keeps, as one row of f32: for each layer, for each of its directions, these.

    ::

        states      t+1, n, s       element k is the state between the elements k-1 and k of the sequence
        memories    t+1, n, o       the same for the memory of an LSTM
        gates       t, n, k, o      behind their activations, in their order; of linear cells U2 h + b3, too

    s is the width of a state, o the units of a gate. A direction that begins at the last step has the initial
    state as the last element.

    >>> made = Workspace("lstm", 3, 2, 1, 1, 8, 5)
    >>> made.size, made.starts(0, 0)
    (296, {'states': 0, 'memories': 40, 'gates': 104})
    """

    cell: str
    time: int
    batch: int
    layers: int
    directions: int
    units: int
    state: int

    @property
    def dims(self) -> dict[str, tuple[int, ...]]:
        """Those of each part."""
        between = (self.time + 1, self.batch)
        found: dict[str, tuple[int, ...]] = {"states": (*between, self.state)}
        if self.cell == "lstm":
            found["memories"] = (*between, self.units)
        return found | {"gates": (self.time, self.batch, KEPT[self.cell], self.units)}

    @property
    def apart(self) -> int:
        """Numbers of a direction."""
        return sum(map(prod, self.dims.values()))

    @property
    def size(self) -> int:
        """Numbers of all."""
        return self.layers * self.directions * self.apart

    def starts(self, layer: int, direction: int) -> dict[str, int]:
        """Where each part begins."""
        at, found = (layer * self.directions + direction) * self.apart, {}
        for name, dims in self.dims.items():
            found[name] = at
            at += prod(dims)
        return found

    def parts(self, whole: Reals, layer: int, direction: int) -> dict[str, Reals]:
        """Views of the parts."""
        starts = self.starts(layer, direction)
        return {n: whole[starts[n] : starts[n] + prod(dims)].reshape(dims) for n, dims in self.dims.items()}


@dataclass(frozen=True, kw_only=True)
class Layers(Operation):
    """What recurrent layers and their gradients are: a cell in one direction or both."""

    factors: ClassVar[int] = 1
    """How often each weight is a factor, for each row of a step."""
    cell: str
    direction: str
    activations: tuple[Function, ...]

    @property
    def backward(self) -> tuple[bool, ...]:
        """For each direction whether it begins at the last step."""
        return DIRECTIONS[self.direction]

    @property
    def sums(self) -> bool:
        """Whether the results of both directions are added up; else they lie side by side."""
        return self.direction == "bidirectional_sum"

    @property
    def flops(self) -> int:
        """Those of the products: two for a multiplication and an addition."""
        dims = {one.name: one.dims for one in self.inputs}
        weights = sum(prod(dims[name]) for name in dims if name.startswith("weights"))
        return 2 * self.factors * prod(dims["src_layer"][:2]) * weights


@dataclass(frozen=True, kw_only=True)
class Recurrent(Layers):
    """Layers of a cell in one direction or both; :mod:`relayout.primitives.recurrent` has the arguments."""

    kind = "recurrent"
    clip: float = 0.0
    """What bounds sums on both sides; 0: nothing does."""
    rounds: str = ""
    """The data type to which states are rounded before they are multiplied by weights of that type; empty:
    they are not rounded."""

    @property
    def gates(self) -> int:
        """How many there are."""
        return GATES[self.cell]

    @property
    def biases(self) -> int:
        """How many there are for each unit: with linear before reset the state has one of its own."""
        return self.gates + (self.cell in LINEAR)

    def compute(self, **arrays: Any) -> dict[str, Reals]:
        """Step by step."""
        x = arrays["src_layer"]
        layers, directions, _, _, units = arrays["weights_iter"].shape
        outputs = arrays["weights_iter"].shape[2]
        states = np.zeros((layers, directions, x.shape[1], outputs))
        memories = np.zeros((layers, directions, x.shape[1], units))
        room = Workspace(self.cell, x.shape[0], x.shape[1], layers, directions, units, outputs)
        workspace = np.zeros(room.size)
        made = []
        for d, turned in enumerate(self.backward):
            given = x[::-1] if turned else x
            passed = 1 - arrays["attention"][:: -1 if turned else 1] if "attention" in arrays else None
            for layer in range(layers):
                own = {name: array[layer, d] for name, array in arrays.items() if array.ndim > 3}
                h = own.get("src_iter", states[layer, d])
                c = own.get("src_iter_c", memories[layer, d])
                kept = room.parts(workspace, layer, d)
                if turned:
                    kept = {name: part[::-1] for name, part in kept.items()}
                if passed is not None:
                    own["passed"] = passed
                if layer:
                    given = self._factor(given)
                given, states[layer, d], memories[layer, d] = self._layer(given, h, c, own, kept)
            made.append(given[::-1] if turned else given)
        result = np.asarray(sum(made)) if self.sums else np.concatenate(made, axis=-1)
        return {"dst_layer": result, "dst_iter": states, "dst_iter_c": memories, "workspace": workspace}

    def _layer(
        self, x: Reals, h: Reals, c: Reals, own: Mapping[str, Reals], kept: Mapping[str, Reals]
    ) -> tuple[Reals, Reals, Reals]:
        """The states of all steps, and both at the end; ``kept`` is filled.

        ``passed`` among ``own`` is 1 less the attention, in the order of the steps.
        """
        weights = own["weights_iter"]
        bias = own.get("bias", np.zeros((self.biases, weights.shape[-1])))
        parts = np.einsum("tni,igo->tngo", x, own["weights_layer"]) + bias[: self.gates]
        states = kept["states"]
        states[0] = h
        if "memories" in kept:
            kept["memories"][0] = c
        for t, part in enumerate(parts):
            factor = self._factor(h)
            if self.cell == "rnn":
                h = self._act(0, part[:, 0] + factor @ weights[:, 0])
            elif self.cell == "lstm":
                i, f, a, o = np.moveaxis(part + np.einsum("ni,igo->ngo", factor, weights), 1, 0)
                p = own.get("weights_peephole", np.zeros((3, c.shape[1])))
                i, f = self._act(0, i + p[0] * c), self._act(0, f + p[1] * c)
                a = self._act(1, a)
                c = f * c + i * a
                o = self._act(0, o + p[2] * c)
                h = o * self.activations[2].definition(c)
                h = self._factor(h) @ own["weights_projection"] if "weights_projection" in own else h
                kept["memories"][t + 1], kept["gates"][t] = c, np.stack([i, f, a, o], 1)
            else:
                u, r = (self._act(0, part[:, k] + factor @ weights[:, k]) for k in (0, 1))
                gates = [u, r]
                if self.cell not in LINEAR:
                    gates += [self._act(1, part[:, 2] + self._factor(r * h) @ weights[:, 2])]
                else:
                    inner = factor @ weights[:, 2] + bias[3]
                    gates += [self._act(1, part[:, 2] + r * inner), inner]
                u = u * own["passed"][t] if "passed" in own else u
                h = u * h + (1 - u) * gates[2]
                kept["gates"][t] = np.stack(gates, 1)
            states[t + 1] = h
        return states[1:], h, c

    def _factor(self, x: Reals) -> Reals:
        """States as weights meet them."""
        return x.astype(dtype(self.rounds).numpy).astype(np.float64) if self.rounds else x

    def _act(self, which: int, x: Reals) -> Reals:
        bounded = np.clip(x, -self.clip, self.clip) if self.clip else x
        return self.activations[which].definition(bounded)
