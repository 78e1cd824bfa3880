"""Gradients of recurrent layers: backward through time, from what the forward pass has kept.

With ``dh``, ``dc`` the gradients of what a step has made, ``'`` the derivative of an activation, ``z`` the
sums that activations are applied to, and numbers counting gates as in :mod:`relayout.ops.recurrent`, a step
is::

    rnn       dz0 = f' * dh                                     dh <- U0 dz0

    lstm      dm  = V dh with a projection, else dh             m = o * e(c'), the state before it
              dz3 = g' * e(c') * dm                             dc <- dc + o * e' * dm + P2 * dz3
              dz0, dz1, dz2 = g' * a * dc, g' * c * dc, a' * i * dc
              dc <- f * dc + P0 * dz0 + P1 * dz1                dh <- U0 dz0 + U1 dz1 + U2 dz2 + U3 dz3

    gru       dz0 = g' * (h - a) * dh                           dz2 = a' * (1 - u) * dh
              v   = U2 dz2                                      dz1 = g' * h * v
              dh <- u * dh + r * v + U0 dz0 + U1 dz1

    lbr_gru   dz0, dz2 as in gru                                dz1 = g' * (U2 h + b3) * dz2
              dh <- u * dh + U0 dz0 + U1 dz1 + U2 (r * dz2)

    augru     with v = (1 - s) * u in place of u but in g', and (1 - s) * dz0; the attention's gradient is
              ds = - sum over units of u * (h - a) * dh, over all layers and directions, too

and then, over all steps and rows of the batch::

    dx = sum W dz     dW = sum x dz     dU = sum h dz     db = sum dz     dP = sum c dz     dV = sum m dh

where U2 meets ``r * h`` (gru) or ``r * dz2`` (linear before reset), and b3 the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.recurrent import LINEAR, Layers, Workspace
from relayout.ops.slopes import slope
from relayout.records import dataclass

__all__ = ["RecurrentBackward"]


@dataclass(frozen=True, kw_only=True)
class RecurrentBackward(Layers):
    """The gradients of :class:`relayout.ops.recurrent.Recurrent`, of those arguments that are outputs."""

    kind = "recurrent_backward"
    factors = 2  # for the gradients of both sides of each product

    def compute(self, **arrays: Any) -> dict[str, Reals]:
        """Layer by layer, the last one first, and step by step, the last one first."""
        x, weights = arrays["src_layer"], arrays["weights_iter"]
        layers, directions, state, _, units = weights.shape
        workspace = Workspace(self.cell, x.shape[0], x.shape[1], layers, directions, units, state)
        found = {one.name: np.zeros(one.dims) for one in self.outputs}
        found |= {"diff_src_layer": np.zeros(x.shape)}
        above = arrays.get("diff_dst_layer")
        if above is None:
            above = np.zeros((*x.shape[:2], state * (1 if self.sums else directions)))
        for d, turned in enumerate(self.backward):
            dy = above if self.sums else above[..., d * state : (d + 1) * state]
            for layer in reversed(range(layers)):
                kept = workspace.parts(arrays["workspace"], layer, d)
                data = x
                if layer:
                    below = workspace.parts(arrays["workspace"], layer - 1, d)["states"]
                    data = below[:-1] if turned else below[1:]
                own = {name: one[layer, d] for name, one in arrays.items() if one.ndim > 3}
                if "attention" in arrays:
                    own["passed"] = 1 - arrays["attention"]
                made = self._layer(data, dy, own, kept, turned)
                dy = made.pop("diff_data")
                if "diff_attention" in found:
                    found["diff_attention"] += made.pop("diff_attention")
                for name in made:
                    if name in found and name != "diff_attention":
                        found[name][layer, d] = made[name]
            found["diff_src_layer"] += dy
        return found

    def _layer(
        self, x: Reals, dy: Reals, own: Mapping[str, Reals], kept: Mapping[str, Reals], turned: bool
    ) -> dict[str, Reals]:
        """The gradients of a layer in one direction."""
        w, u = own["weights_layer"], own["weights_iter"]
        (time, batch), units = x.shape[:2], u.shape[2]
        states, cells = kept["states"], kept.get("memories", kept["states"])
        dh = own.get("diff_dst_iter", np.zeros((batch, u.shape[0])))
        dc = own.get("diff_dst_iter_c", np.zeros((batch, units)))
        p = own.get("weights_peephole", np.zeros((3, units)))
        v = own.get("weights_projection")
        gates = np.zeros((time, batch, *u.shape[1:]))  # dz, of the sums with W
        inner = np.zeros_like(gates)  # the same with U
        read = np.repeat(states[:-1, :, None], u.shape[1], 2)  # what U is multiplied by
        read[:] = (states[1:] if turned else states[:-1])[:, :, None]
        passed, ds = own.get("passed", np.ones((time, batch, 1))), np.zeros((time, batch, 1))
        dp, dv = np.zeros((3, units)), np.zeros((units, u.shape[0]))
        for t in range(time) if turned else reversed(range(time)):
            h, after = states[t + turned], states[t + 1 - turned]
            dh = dh + dy[t]
            if self.cell == "rnn":
                dz = self._slope(0, after)[:, None] * dh[:, None]
                inner[t], carried = dz, 0.0
            elif self.cell == "lstm":
                i, f, a, o = np.moveaxis(kept["gates"][t], 1, 0)
                c, new = cells[t + turned], cells[t + 1 - turned]
                e = self.activations[2].definition(new)
                dm = dh if v is None else dh @ v.T
                if v is not None:
                    dv += np.einsum("no,ns->os", o * e, dh)
                dz3 = self._slope(0, o) * e * dm
                dc = dc + o * self._slope(2, e) * dm + p[2] * dz3
                dz0, dz1 = self._slope(0, i) * a * dc, self._slope(0, f) * c * dc
                dz = np.stack([dz0, dz1, self._slope(1, a) * i * dc, dz3], 1)
                dp += np.stack([(dz0 * c).sum(0), (dz1 * c).sum(0), (dz3 * new).sum(0)])
                dc = f * dc + p[0] * dz0 + p[1] * dz1
                inner[t], carried = dz, 0.0
            else:
                update, r, a = np.moveaxis(kept["gates"][t], 1, 0)[:3]
                p = passed[t]
                z = p * update
                ds[t] = -(update * (h - a) * dh).sum(1, keepdims=True)
                dz0, dz2 = self._slope(0, update) * p * (h - a) * dh, self._slope(1, a) * (1 - z) * dh
                if self.cell not in LINEAR:
                    back = dz2 @ u[:, 2].T
                    dz = np.stack([dz0, self._slope(0, r) * h * back, dz2], 1)
                    inner[t], read[t, :, 2] = dz, r * h
                    carried = z * dh + r * back - dz2 @ u[:, 2].T
                else:
                    dz = np.stack([dz0, self._slope(0, r) * kept["gates"][t][:, 3] * dz2, dz2], 1)
                    inner[t] = dz
                    inner[t][:, 2] *= r
                    carried = z * dh
            gates[t] = dz
            dh = carried + np.einsum("ngo,igo->ni", inner[t], u)
        bias = gates.sum((0, 1))
        if self.cell in LINEAR:
            bias = np.concatenate([bias, inner[:, :, 2].sum((0, 1))[None]])
        found = {
            "diff_data": np.einsum("tngo,igo->tni", gates, w),
            "diff_src_iter": dh,
            "diff_src_iter_c": dc,
            "diff_weights_layer": np.einsum("tni,tngo->igo", x, gates),
            "diff_weights_iter": np.einsum("tngi,tngo->igo", read, inner),
            "diff_weights_peephole": dp,
            "diff_bias": bias,
            "diff_attention": ds,
        }
        return found | {"diff_weights_projection": dv}

    def _slope(self, which: int, y: Reals) -> Reals:
        return slope(self.activations[which], y)
