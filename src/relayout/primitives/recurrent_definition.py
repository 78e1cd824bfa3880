"""Recurrent layers by definition: NumPy in double precision, step by step.

:mod:`relayout.kernels.recurrent.cell` has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.kernels.recurrent.cell import Cell

    Reals = NDArray[np.float64]

__all__ = ["definition"]


def definition(
    cell: Cell, backward: tuple[bool, ...], sums: bool, arrays: Mapping[str, Reals]
) -> dict[str, Reals]:
    """All results by name: ``dst_layer``, ``dst_iter`` and, of an LSTM, ``dst_iter_c``.

    Parameters
    ----------
    cell : Cell
    backward : tuple of bool
        For each direction whether it begins at the last step.
    sums : bool
        Whether the results of the directions are added up, or lie side by side.
    arrays : mapping of str to ndarray
        The inputs; what was left out is missing.
    """
    x, first = arrays["src_layer"], arrays["weights_iter"]
    layers, directions, _, _, units = first.shape
    outputs = arrays["weights_projection"].shape[-1] if cell.projection else units
    states = np.zeros((layers, directions, x.shape[1], outputs))
    memories = np.zeros((layers, directions, x.shape[1], units))
    made = []
    for d, turned in enumerate(backward):
        given = x[::-1] if turned else x
        for layer in range(layers):
            own = {
                name: array[layer, d]
                for name, array in arrays.items()
                if name.startswith(("weights", "bias"))
            }
            h = arrays["src_iter"][layer, d] if "src_iter" in arrays else states[layer, d]
            c = arrays["src_iter_c"][layer, d] if "src_iter_c" in arrays else memories[layer, d]
            given, states[layer, d], memories[layer, d] = _layer(cell, given, h, c, own)
        made.append(given[::-1] if turned else given)
    result = np.asarray(sum(made)) if sums else np.concatenate(made, axis=-1)
    return {"dst_layer": result, "dst_iter": states, "dst_iter_c": memories}


def _layer(cell: Cell, x: Reals, h: Reals, c: Reals, own: Mapping[str, Reals]) -> tuple[Reals, Reals, Reals]:
    """The states of all steps, and both at the end."""
    weights = own["weights_iter"]
    bias = own.get("bias", np.zeros((cell.biases, weights.shape[-1])))
    parts = np.einsum("tni,igo->tngo", x, own["weights_layer"]) + bias[: cell.gates]
    states = np.zeros((*x.shape[:2], h.shape[1]))

    def act(which: int, value: Any) -> Reals:
        return cell.activations[which].definition(
            np.clip(value, -cell.clip, cell.clip) if cell.clip else value
        )

    for t, part in enumerate(parts):
        if cell.kind == "rnn":
            h = act(0, part[:, 0] + h @ weights[:, 0])
        elif cell.kind == "lstm":
            i, f, a, o = np.moveaxis(part + np.einsum("ni,igo->ngo", h, weights), 1, 0)
            p = own.get("weights_peephole", np.zeros((3, c.shape[1])))
            i, f = act(0, i + p[0] * c), act(0, f + p[1] * c)
            c = f * c + i * act(1, a)
            h = act(0, o + p[2] * c) * cell.activations[2].definition(c)
            if cell.projection:
                h = h @ own["weights_projection"]
        else:
            u, r = (act(0, part[:, k] + h @ weights[:, k]) for k in (0, 1))
            if cell.kind == "gru":
                new = act(1, part[:, 2] + (r * h) @ weights[:, 2])
            else:
                new = act(1, part[:, 2] + r * (h @ weights[:, 2] + bias[3]))
            h = u * h + (1 - u) * new
        states[t] = h
    return states, h, c
