"""Attention: the weights of values are computed once more, so that only its inputs are kept until then.

With P = softmax(s q k' + mask), where s is the scale, and y = P v::

    dv = P' dy      dP = dy v'      dS = the gradient of the softmax      dq = s dS k      dk = s dS' q
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient

__all__: list[str] = []

PLAIN = {
    "left_window_size": -1,
    "right_window_size": -1,
    "qk_matmul_output_mode": 0,
    "softcap": 0.0,
    "softmax_precision": None,
}
"""Attributes that have to be as they are by default."""


@gradient("Attention")
def attention(r: Reverse) -> Sequence[str | None]:
    """Of queries, keys and values with an axis of heads, and of a mask that is added."""
    q, k, v = r.inputs[:3]
    dims, others = r.dims(q), r.dims(k)
    a, mask = r.attributes, r.input(3)
    plain = all(a[name] == value for name, value in PLAIN.items())
    if len(dims) != 4 or dims[1] != others[1] or any(r.inputs[4:]) or any(r.gradients[1:]) or not plain:
        raise LayoutError(
            "an Attention has a gradient where there are as many heads of queries as of keys, on an axis of "
            "their own, without windows, a past or a soft cap"
        )
    scale = 1 / sqrt(max(dims[3], 1)) if a["scale"] is None else float(a["scale"])
    scores = r.times(r("MatMul", q, r.transposed(k)), scale)
    added = bool(mask) and r.writing.dtype(mask) != np.dtype(bool)
    if added:
        scores = r("Add", scores, mask)
    visible = "" if added or not mask else mask
    if a["is_causal"]:
        before = r.writing.constant(np.tri(dims[2], others[2], dtype=bool))
        visible = r("And", visible, before) if visible else before
    if visible:
        least = r.number(float(np.finfo(np.float32).min) / 2)
        weights = r("Softmax", r("Where", visible, scores, least), axis=-1)
        weights = r("Where", visible, weights, r.number(0))
    else:
        weights = r("Softmax", scores, axis=-1)
    found: list[str | None] = [None] * len(r.inputs)
    if r.wants(2):
        found[2] = r("MatMul", r.transposed(weights), r.dy)
    if r.wants(0) or r.wants(1) or r.wants(3):
        ds = r("relayout.SoftmaxGrad", r("MatMul", r.dy, r.transposed(v)), weights, axis=-1)
        if r.wants(0):
            found[0] = r.times(r("MatMul", ds, k), scale)
        if r.wants(1):
            found[1] = r.times(r("MatMul", r.transposed(ds), q), scale)
        if r.wants(3):
            found[3] = r.summed(ds, mask)
    return found


@gradient("RotaryEmbedding")
def rotary_embedding(r: Reverse) -> Sequence[str | None]:
    """Turned back by the same angles."""
    if any(r.wanted[1:]):
        raise LayoutError("a RotaryEmbedding has no gradient by its angles")
    back = r("Neg", r.inputs[2])
    return [r("RotaryEmbedding", r.dy, r.inputs[1], back, *r.inputs[3:], **r.attributes)]
