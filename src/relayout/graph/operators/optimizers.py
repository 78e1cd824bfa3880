"""Steps of optimisers, with PyTorch's formulas: one node for each parameter.

What changes from step to step comes as numbers: tensors of one element. So a compiled step is the same for
all of them, whatever the schedule of the learning rate.

``relayout.SGD``
    g is the gradient and ``weight_decay`` times the parameter; v' is ``momentum`` v + fresh g, where fresh is
    1 in the first step and 1 - dampening afterwards; the parameter less rate times v', or with ``nesterov``
    rate times (g + momentum v'). Without v there is no momentum.
``relayout.Adam``
    m' and v' are averages of g and its square; the parameter less rate m' / (sqrt(v') widening + epsilon),
    where rate is the learning rate by 1 - beta1^t and widening 1 / sqrt(1 - beta2^t). ``decoupled``: the
    decay is no part of g (AdamW): the parameter is multiplied by kept, 1 - learning rate weight_decay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, wide

__all__: list[str] = []


def _alike(x: Array, *others: Array | None) -> None:
    shapes = [one.shape for one in others if one is not None]
    if any(shape != x.shape for shape in shapes):
        raise LayoutError(f"a parameter of {x.shape}, its gradient and state of {shapes}")


def _infer_sgd(
    rate: Fact, fresh: Fact, x: Fact, g: Fact, v: Fact | None = None, /, **_: object
) -> tuple[Fact, ...]:
    return (Fact(x.dims, x.dtype),) * (1 if v is None else 2)


@operator("relayout.SGD", infer=_infer_sgd)
def sgd(
    rate: Array,
    fresh: Array,
    x: Array,
    g: Array,
    v: Array | None = None,
    /,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: int = 0,
) -> tuple[Array, ...]:
    """The parameter, and its momentum where there is one."""
    _alike(x, g, v)
    data, gradient = wide(x), wide(g)
    kind: Any = data.dtype.type
    step = kind(rate.reshape(-1)[0])
    gradient = gradient + kind(weight_decay) * data if weight_decay else gradient
    if v is None:
        return (narrow(data - step * gradient, x.dtype),)
    moved = kind(momentum) * wide(v) + kind(fresh.reshape(-1)[0]) * gradient
    taken = gradient + kind(momentum) * moved if nesterov else moved
    return narrow(data - step * taken, x.dtype), narrow(moved, v.dtype)


def _infer_adam(
    rate: Fact, widening: Fact, kept: Fact, x: Fact, g: Fact, m: Fact, v: Fact, /, **_: object
) -> tuple[Fact, ...]:
    return Fact(x.dims, x.dtype), Fact(m.dims, m.dtype), Fact(v.dims, v.dtype)


@operator("relayout.Adam", infer=_infer_adam)
def adam(
    rate: Array,
    widening: Array,
    kept: Array,
    x: Array,
    g: Array,
    m: Array,
    v: Array,
    /,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: int = 0,
) -> tuple[Array, Array, Array]:
    """The parameter and both averages."""
    _alike(x, g, m, v)
    data, gradient = wide(x), wide(g)
    kind: Any = data.dtype.type
    step, wider, part = (kind(one.reshape(-1)[0]) for one in (rate, widening, kept))
    if decoupled:
        data = data * part
    elif weight_decay:
        gradient = gradient + kind(weight_decay) * data
    mean = kind(beta1) * wide(m) + kind(1 - beta1) * gradient
    square = kind(beta2) * wide(v) + kind(1 - beta2) * gradient * gradient
    made = data - step * mean / (np.sqrt(square) * wider + kind(epsilon))
    return narrow(made, x.dtype), narrow(mean, m.dtype), narrow(square, v.dtype)
