"""Steps of optimisers: Adagrad, Adam and Momentum, of any number of tensors at once.

Inputs are the learning rate, how many steps there were, then all tensors, all gradients and all moments of
each kind. Results are the new tensors and then the new moments, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow

__all__: list[str] = []


def _kinds(inputs: tuple[Array, ...], kinds: int) -> list[tuple[Array, ...]]:
    """The tensors of each kind."""
    if len(inputs) % kinds:
        raise LayoutError(f"{len(inputs)} tensors are not {kinds} for each that is optimised")
    count = len(inputs) // kinds
    return [inputs[i * count : (i + 1) * count] for i in range(kinds)]


def _stepped(
    inputs: tuple[Array, ...], kinds: int, step: Callable[..., tuple[Array, ...]]
) -> tuple[Array, ...]:
    """A step of each tensor; the results by kind, in the data types of what they replace."""
    tensors = list(zip(*_kinds(inputs, kinds), strict=True))
    for one in tensors:
        if len({part.shape for part in one}) > 1:
            raise LayoutError(
                f"a tensor, its gradient and moments must have one shape, got {[part.shape for part in one]}"
            )
    made = [step(*one) for one in tensors]
    kept = [(one[0], *one[2:]) for one in tensors]  # all but the gradient
    return tuple(
        narrow(made[i][kind], kept[i][kind].dtype) for kind in range(kinds - 1) for i in range(len(made))
    )


def _infer(kinds: int) -> Callable[..., tuple[Fact, ...]]:
    def infer(rate: Fact, count: Fact, /, *inputs: Fact, **_: object) -> tuple[Fact, ...]:
        each = len(inputs) // kinds
        kept = (*inputs[:each], *inputs[2 * each :])
        return tuple(Fact(one.dims, one.dtype) for one in kept)

    return infer


def _number(x: Array) -> float:
    return float(np.asarray(x).reshape(()))


@operator("ai.onnx.preview.training.Adagrad", infer=_infer(3))
def adagrad(
    r: Array,
    t: Array,
    /,
    *inputs: Array,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Array, ...]:
    """Tensors, gradients, sums of squares."""
    rate = _number(r) / (1 + _number(t) * decay_factor)

    def step(x: Array, g: Array, h: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        h = h + g * g
        return x - rate * g / (np.sqrt(h) + epsilon), h

    return _stepped(inputs, 3, step)


@operator("ai.onnx.preview.training.Adam", infer=_infer(4))
def adam(
    r: Array,
    t: Array,
    /,
    *inputs: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    """Tensors, gradients, averages, averages of squares."""
    rate, count = _number(r), _number(t)
    if count > 0:
        rate = rate * (1 - beta**count) ** 0.5 / (1 - alpha**count)

    def step(x: Array, g: Array, v: Array, h: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        return (1 - norm_coefficient_post) * (x - rate * v / (np.sqrt(h) + epsilon)), v, h

    return _stepped(inputs, 4, step)


@operator("ai.onnx.preview.training.Momentum", infer=_infer(3))
def momentum(
    r: Array, t: Array, /, *inputs: Array, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Array, ...]:
    """Tensors, gradients, momenta; in mode "standard" or "nesterov"."""
    if mode not in ("standard", "nesterov"):
        raise LayoutError(f"mode {mode!r} is none of standard, nesterov")
    rate, factor = _number(r), beta if _number(t) > 0 else 1.0

    def step(x: Array, g: Array, v: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + factor * g
        return x - rate * (g + alpha * v if mode == "nesterov" else v), v

    return _stepped(inputs, 3, step)
