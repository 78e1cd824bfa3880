"""Recurrent layers in training: the layer that keeps what the backward pass needs, and its gradients.

ONNX has no gradients, so these operators are Relayout's own. Arguments have the dims and the order of gates
of the primitives (:mod:`relayout.primitives.recurrent`), with one layer (``l``); sizes are called as there::

    x             t, n, c            dst_layer     t, n, d*o     both directions side by side
    weights       l, d, c, g, o      workspace     numbers       what the backward pass needs
    recurrent     l, d, o, g, o      dst_iter      l, d, n, o
    bias          l, d, g, o         dst_iter_c    l, d, n, o    of an LSTM
    initial_h     l, d, n, o
    initial_c     l, d, n, o
    peephole      l, d, 3, o

===============================  =============================================================================
``relayout.RecurrentTraining``   a layer; :mod:`relayout.graph.gradients.recurrent` makes it of ONNX's
``relayout.RecurrentGrad``       backward through time: of data, weights, biases, initial states, peepholes
===============================  =============================================================================

The workspace is a row of numbers. For each direction it has the states between the steps (t+1, n, o), those
of the memory of an LSTM, and the gates of all steps (t, n, k, o) behind their activations, in the order
i, f, c, o or u, r, o; a fourth one of ``lbr_gru`` is what its reset gate is multiplied by. What is kept of a
step has the place of that step in the sequence, also where a direction begins at the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, wide

__all__ = ["CELLS", "DIRECTIONS", "RESULTS", "SLOPES", "biases_of"]

CELLS: Final = {"rnn": 1, "lstm": 4, "gru": 3, "lbr_gru": 3}
"""How many gates each cell has."""
KEPT: Final = {"rnn": 0, "lstm": 4, "gru": 3, "lbr_gru": 4}
"""How many numbers of a unit and step are kept besides states."""
DIRECTIONS: Final = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""For each direction whether it begins at the last step."""
SLOPES: Final[dict[str, tuple[Callable[..., Array], Callable[..., Array]]]] = {
    "tanh": (lambda x, a, b: np.tanh(x), lambda y, a, b: 1 - y * y),
    "sigmoid": (lambda x, a, b: 0.5 * (np.tanh(0.5 * x) + 1), lambda y, a, b: y * (1 - y)),
    "relu": (lambda x, a, b: np.maximum(x, 0), lambda y, a, b: np.where(y > 0, 1.0, 0.0)),
    "leakyrelu": (lambda x, a, b: np.where(x > 0, x, a * x), lambda y, a, b: np.where(y > 0, 1.0, a)),
    "affine": (lambda x, a, b: a * x + b, lambda y, a, b: np.full_like(y, a)),
}
"""Activations, and their derivatives where the result is y, by ONNX's names in lower case."""

RESULTS: Final = ("x", "weights", "recurrent", "bias", "peephole", "initial_h", "initial_c")
"""What ``relayout.RecurrentGrad`` gives the gradients of, in this order."""


def biases_of(cell: str) -> int:
    """How many biases a unit has: with linear before reset the state has one of its own.

    >>> biases_of("lstm"), biases_of("lbr_gru")
    (4, 4)
    """
    return CELLS[cell] + (cell == "lbr_gru")


def _parts(cell: str, time: int, batch: int, units: int) -> dict[str, tuple[int, ...]]:
    """The dims of what is kept for one direction."""
    states = (time + 1, batch, units)
    memories = {"memories": states} if cell == "lstm" else {}
    return {"states": states, **memories, "gates": (time, batch, KEPT[cell], units)}


def _views(
    workspace: Array, number: int, dims: Mapping[str, tuple[int, ...]], turned: bool
) -> dict[str, Array]:
    """What is kept for a direction, in the order of its steps."""
    at, found = number * sum(map(prod, dims.values())), {}
    for name, sizes in dims.items():
        part = workspace[at : at + prod(sizes)].reshape(sizes)
        found[name] = part[::-1] if turned else part
        at += prod(sizes)
    return found


class _Activations:
    """The functions of a cell."""

    def __init__(self, names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> None:
        for name in names:
            if name not in SLOPES:
                raise LayoutError(f"there is no activation {name!r} here; there are: {', '.join(SLOPES)}")
        self.given = list(zip(names, alphas, betas, strict=True))

    def __call__(self, number: int, x: Array) -> Array:
        name, *parameters = self.given[number]
        return np.asarray(SLOPES[name][0](x, *parameters), x.dtype)

    def slope(self, number: int, y: Array) -> Array:
        """The derivative where the result is y."""
        name, *parameters = self.given[number]
        return np.asarray(SLOPES[name][1](y, *parameters), y.dtype)


def _checked(cell: str, direction: str, x: Array, weights: Array, recurrent: Array) -> tuple[bool, ...]:
    """The directions, once all fits."""
    if cell not in CELLS or direction not in DIRECTIONS:
        raise LayoutError(
            f"cell {cell!r} is none of {', '.join(CELLS)}, or direction {direction!r} none of "
            f"{', '.join(DIRECTIONS)}"
        )
    turned = DIRECTIONS[direction]
    units = recurrent.shape[-1]
    wanted = [(1, len(turned), n, CELLS[cell], units) for n in (x.shape[-1], units)]
    if x.ndim != 3 or [weights.shape, recurrent.shape] != wanted:
        raise LayoutError(
            f"data of {x.shape} needs weights of {wanted}, not {weights.shape}, {recurrent.shape}"
        )
    return turned


def _infer(
    x: Fact, weights: Fact, recurrent: Fact, *_: Fact | None, cell: str, direction: str, **__: Any
) -> tuple[Fact, ...]:
    if x.dims is None or recurrent.dims is None:
        return ()
    directions, units = len(DIRECTIONS[direction]), recurrent.dims[-1]
    time, batch = x.dims[:2]
    sizes = [n for n in (time, batch, units) if isinstance(n, int)]
    if len(sizes) < 3:
        return ()
    whole = directions * sum(map(prod, _parts(cell, *sizes).values()))
    last = Fact((1, directions, batch, units), x.dtype)
    kept = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    made = Fact((time, batch, directions * sizes[2]), x.dtype)
    return (made, Fact((whole,), kept), last) + (last,) * (cell == "lstm")


@operator("relayout.RecurrentTraining", infer=_infer)
def recurrent_training(
    x: Array,
    weights: Array,
    recurrent: Array,
    bias: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    peephole: Array | None = None,
    /,
    *,
    cell: str,
    direction: str,
    activations: Sequence[str],
    alphas: Sequence[float],
    betas: Sequence[float],
) -> tuple[Array, ...]:
    """All states, what the backward pass needs, and the last states.

    :mod:`relayout.ops.recurrent` has the formulas of a step.
    """
    turned, act = _checked(cell, direction, x, weights, recurrent), _Activations(activations, alphas, betas)
    data, units = wide(x), recurrent.shape[-1]
    (time, batch), zeros = x.shape[:2], np.zeros((x.shape[1], units), data.dtype)
    dims = _parts(cell, time, batch, units)
    workspace = np.zeros(len(turned) * sum(map(prod, dims.values())), data.dtype)
    made, states, memories = [], [], []
    for d, back in enumerate(turned):
        kept = _views(workspace, d, dims, back)
        w, u = wide(weights)[0, d], wide(recurrent)[0, d]
        b = np.zeros((biases_of(cell), units), data.dtype) if bias is None else wide(bias)[0, d]
        h, c = (zeros if one is None else wide(one)[0, d] for one in (initial_h, initial_c))
        p = np.zeros((3, units), data.dtype) if peephole is None else wide(peephole)[0, d]
        given = np.einsum("tni,igo->tngo", data[::-1] if back else data, w) + b[: CELLS[cell]]
        kept["states"][0] = h
        if cell == "lstm":
            kept["memories"][0] = c
        for t in range(time):
            z, y = np.einsum("ni,igo->gno", h, u), given[t].swapaxes(0, 1)
            if cell == "rnn":
                h = act(0, y[0] + z[0])
            elif cell == "lstm":
                i, f, a = act(0, y[0] + z[0] + p[0] * c), act(0, y[1] + z[1] + p[1] * c), act(1, y[2] + z[2])
                c = f * c + i * a
                o = act(0, y[3] + z[3] + p[2] * c)
                h = o * act(2, c)
                kept["memories"][t + 1], kept["gates"][t] = c, np.stack([i, f, a, o], 1)
            else:
                update, reset = act(0, y[0] + z[0]), act(0, y[1] + z[1])
                if cell == "gru":
                    gates = [update, reset, act(1, y[2] + (reset * h) @ u[:, 2])]
                else:
                    inner = z[2] + b[3]
                    gates = [update, reset, act(1, y[2] + reset * inner), inner]
                h = update * h + (1 - update) * gates[2]
                kept["gates"][t] = np.stack(gates, 1)
            kept["states"][t + 1] = h
        made.append(kept["states"][1:][::-1] if back else kept["states"][1:])
        states.append(h)
        memories.append(c)
    results = [np.concatenate(made, -1), *(np.stack(one)[None] for one in (states, memories))]
    first, last, memory = (narrow(one, x.dtype) for one in results)
    return (first, workspace, last) + (memory,) * (cell == "lstm")


def _infer_gradients(
    x: Fact, weights: Fact, recurrent: Fact, peephole: Fact | None, workspace: Fact, *_: Fact | None,
    cell: str, **__: Any,
) -> tuple[Fact, ...]:  # fmt: skip
    if x.dims is None or recurrent.dims is None:
        return ()
    directions, units = recurrent.dims[1], recurrent.dims[-1]
    state = Fact((1, directions, x.dims[1], units), x.dtype)
    return (
        *(Fact(one.dims, one.dtype) for one in (x, weights, recurrent)),
        Fact((1, directions, biases_of(cell), units), weights.dtype),
        Fact((1, directions, 3, units), weights.dtype),
        state,
        state,
    )


@operator("relayout.RecurrentGrad", infer=_infer_gradients)
def recurrent_grad(
    x: Array,
    weights: Array,
    recurrent: Array,
    peephole: Array | None,
    workspace: Array,
    dy: Array | None = None,
    dlast: Array | None = None,
    dmemory: Array | None = None,
    /,
    *,
    cell: str,
    direction: str,
    activations: Sequence[str],
    alphas: Sequence[float],
    betas: Sequence[float],
) -> tuple[Array, ...]:
    """The gradients of :data:`RESULTS`, from those of the states of all steps and of the last states.

    :mod:`relayout.ops.backward.recurrent` has the formulas of a step.
    """
    turned, act = _checked(cell, direction, x, weights, recurrent), _Activations(activations, alphas, betas)
    data, units = wide(x), recurrent.shape[-1]
    (time, batch), kind = x.shape[:2], wide(x).dtype
    dims = _parts(cell, time, batch, units)
    if workspace.shape != (len(turned) * sum(map(prod, dims.values())),):
        raise LayoutError(f"a workspace of {workspace.shape} for data of {x.shape} and {units} units")
    dx, found = np.zeros(data.shape, kind), []
    for d, back in enumerate(turned):
        kept = _views(wide(workspace), d, dims, back)
        w, u = wide(weights)[0, d], wide(recurrent)[0, d]
        p = np.zeros((3, units), kind) if peephole is None else wide(peephole)[0, d]
        inputs, states = data[::-1] if back else data, kept["states"]
        above = np.zeros((time, batch, units), kind)
        if dy is not None:
            above = wide(dy)[..., d * units : (d + 1) * units]
            above = above[::-1] if back else above
        dh, dc = (
            np.zeros((batch, units), kind) if one is None else wide(one)[0, d] for one in (dlast, dmemory)
        )
        gates = np.zeros((time, batch, CELLS[cell], units), kind)  # of the sums that W is in
        inner = np.zeros_like(gates)  # of those that U is in
        read = np.repeat(states[:-1, :, None], CELLS[cell], 2)  # what U is multiplied by
        dp = np.zeros((3, units), kind)
        for t in reversed(range(time)):
            h, dh = states[t], dh + above[t]
            if cell == "rnn":
                gates[t, :, 0] = inner[t, :, 0] = act.slope(0, states[t + 1]) * dh
                dh = inner[t, :, 0] @ u[:, 0].T
                continue
            if cell == "lstm":
                i, f, a, o = kept["gates"][t].swapaxes(0, 1)
                c, new = kept["memories"][t], kept["memories"][t + 1]
                e = act(2, new)
                dz3 = act.slope(0, o) * e * dh
                dc = dc + o * act.slope(2, e) * dh + p[2] * dz3
                dz0, dz1 = act.slope(0, i) * a * dc, act.slope(0, f) * c * dc
                gates[t] = inner[t] = np.stack([dz0, dz1, act.slope(1, a) * i * dc, dz3], 1)
                dp += np.stack([(dz0 * c).sum(0), (dz1 * c).sum(0), (dz3 * new).sum(0)])
                dc = f * dc + p[0] * dz0 + p[1] * dz1
                dh = np.einsum("ngo,igo->ni", inner[t], u)
                continue
            update, reset, new = kept["gates"][t].swapaxes(0, 1)[:3]
            dz0, dz2 = act.slope(0, update) * (h - new) * dh, act.slope(1, new) * (1 - update) * dh
            if cell == "gru":
                through = dz2 @ u[:, 2].T
                dz1 = act.slope(0, reset) * h * through
                inner[t], read[t, :, 2] = np.stack([dz0, dz1, dz2], 1), reset * h
                carried = update * dh + reset * through
                dh = carried + np.einsum("ngo,igo->ni", inner[t, :, :2], u[:, :2])
            else:
                dz1 = act.slope(0, reset) * kept["gates"][t][:, 3] * dz2
                inner[t] = np.stack([dz0, dz1, reset * dz2], 1)
                dh = update * dh + np.einsum("ngo,igo->ni", inner[t], u)
            gates[t] = np.stack([dz0, dz1, dz2], 1)
        own = np.einsum("tngo,igo->tni", gates, w)
        dx += own[::-1] if back else own
        db = gates.sum((0, 1))
        if cell == "lbr_gru":
            db = np.concatenate([db, inner[:, :, 2].sum((0, 1))[None]])
        dw, du = np.einsum("tni,tngo->igo", inputs, gates), np.einsum("tngi,tngo->igo", read, inner)
        found.append((dw, du, db, dp, dh, dc))
    types = (*(weights.dtype,) * 4, x.dtype, x.dtype)
    several = [
        narrow(np.stack(one)[None], dtype) for one, dtype in zip(zip(*found, strict=True), types, strict=True)
    ]
    return (narrow(dx, x.dtype), *several)
