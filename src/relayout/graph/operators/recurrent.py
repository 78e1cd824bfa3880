"""Recurrent layers: RNN, GRU and LSTM, in ONNX's order of gates.

Products with the data are made for all steps at once; what is left of a step is a product with the state and
a few elementwise functions, for all of the batch. A sequence that ends early keeps its state from then on,
and has zeros for results; backward, each sequence is read from its own last element on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, wide
from relayout.graph.operators.windows import Size

__all__ = ["activations_of"]

Function = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (np.tanh(0.5 * x) + 1), x.dtype)


FUNCTIONS: Final[dict[str, tuple[Callable[..., Array], dict[str, float]]]] = {
    "relu": (lambda x: np.maximum(x, 0), {}),
    "tanh": (np.tanh, {}),
    "sigmoid": (_sigmoid, {}),
    "softsign": (lambda x: x / (1 + np.abs(x)), {}),
    "softplus": (lambda x: np.logaddexp(x, 0), {}),
    "affine": (lambda x, alpha, beta: alpha * x + beta, {"alpha": 1.0, "beta": 0.0}),
    "leakyrelu": (lambda x, alpha: np.where(x >= 0, x, alpha * x), {"alpha": 0.01}),
    "thresholdedrelu": (lambda x, alpha: np.where(x >= alpha, x, 0), {"alpha": 1.0}),
    "scaledtanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), {"alpha": 1.0, "beta": 1.0}),
    "hardsigmoid": (lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), {"alpha": 0.2, "beta": 0.5}),
    "elu": (lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0))), {"alpha": 1.0}),
}
"""Activation functions by name in lower case, and their parameters' defaults."""


def activations_of(
    names: Sequence[str] | None,
    default: Sequence[str],
    directions: int,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
) -> list[tuple[str, dict[str, float]]]:
    """The names of the functions of all directions, in lower case, with their parameters.

    Functions that have parameters take the next of the given ones, in order, as long as there are any.

    >>> activations_of(["Tanh", "Affine"], ["tanh"], 2, [2.0], None)
    [('tanh', {}), ('affine', {'alpha': 2.0, 'beta': 0.0})]
    """
    wanted = [name.lower() for name in names or (*default,) * directions]
    if len(wanted) != len(default) * directions:
        raise LayoutError(f"{len(wanted)} activations; {len(default)} in each of {directions} directions")
    left = {"alpha": list(alphas or ()), "beta": list(betas or ())}
    made = []
    for name in wanted:
        if name not in FUNCTIONS:
            raise LayoutError(f"there is no activation {name!r}; there are: {', '.join(FUNCTIONS)}")
        parameters = FUNCTIONS[name][1]
        made.append(
            (name, {key: left[key].pop(0) if left[key] else value for key, value in parameters.items()})
        )
    return made


def _functions(
    names: Sequence[str] | None,
    default: Sequence[str],
    directions: int,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
) -> list[list[Function]]:
    """The functions of each direction."""
    named = activations_of(names, default, directions, alphas, betas)
    made: list[Function] = [partial(FUNCTIONS[name][0], **chosen) for name, chosen in named]
    return [made[i * len(default) : (i + 1) * len(default)] for i in range(directions)]


def _directions(direction: str) -> tuple[bool, ...]:
    """For each direction whether it goes backward."""
    found = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
    if found is None:
        raise LayoutError(f"direction {direction!r} is none of forward, reverse, bidirectional")
    return found


Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]


def _run(
    x: Array, step: Step, state: tuple[Array, ...], lengths: Array | None
) -> tuple[Array, tuple[Array, ...]]:
    """All results and the last state; ``x``: what each step is given, ``[time, batch, ...]``."""
    made = np.zeros((*x.shape[:2], state[0].shape[1]), state[0].dtype)
    for t in range(x.shape[0]):
        new = step(x[t], state)
        if lengths is None:
            made[t], state = new[0], new
            continue
        running = (t < lengths)[:, None]
        made[t] = np.where(running, new[0], 0)
        state = tuple(np.where(running, n, old) for n, old in zip(new, state, strict=True))
    return made, state


def _backward(x: Array, lengths: Array | None) -> Array:
    """Each sequence from its last element to its first; what is behind it stays."""
    if lengths is None:
        return x[::-1]
    time = np.arange(x.shape[0])[:, None]
    source = np.where(time < lengths, lengths - 1 - time, time)
    return np.take_along_axis(x, source[:, :, None], axis=0)


def _layer(
    gates: int,
    x: Array,
    w: Array,
    r: Array,
    initial: Sequence[Array | None],
    lengths: Array | None,
    direction: str,
    layout: int,
    hidden_size: int | None,
    steps: Callable[[int], Step],
    bias: Callable[[int], Array | float],
) -> tuple[Array, ...]:
    """All results and the last of each state, with directions and layout as ONNX has them."""
    directions = _directions(direction)
    if layout:
        x = x.swapaxes(0, 1)
        initial = [None if one is None else one.swapaxes(0, 1) for one in initial]
    if x.ndim != 3 or w.ndim != 3 or r.ndim != 3:
        raise LayoutError("X, W and R must have 3 axes")
    hidden = hidden_size or r.shape[2]
    batch = x.shape[1]
    expected = (len(directions), gates * hidden)
    if w.shape != (*expected, x.shape[2]) or r.shape != (*expected, hidden):
        raise LayoutError(
            f"W must be {(*expected, x.shape[2])} and R {(*expected, hidden)}, got {w.shape} and {r.shape}"
        )
    if lengths is not None and (
        lengths.shape != (batch,) or (lengths > x.shape[0]).any() or (lengths < 0).any()
    ):
        raise LayoutError(f"sequence_lens must be {batch} numbers of at most {x.shape[0]}, got {lengths}")
    results, states = [], []
    for number, reverse in enumerate(directions):
        read = _backward(x, lengths) if reverse else x
        given = read @ w[number].T + bias(number)
        start = []
        for one in initial:
            first = np.zeros((batch, hidden), x.dtype) if one is None else one[number]
            if first.shape != (batch, hidden):
                raise LayoutError(f"an initial state of {first.shape}; it must be {(batch, hidden)}")
            start.append(first)
        made, state = _run(given, steps(number), tuple(start), lengths)
        results.append(_backward(made, lengths) if reverse else made)
        states.append(state)
    y = np.stack(results, axis=1)
    last = [np.stack([state[i] for state in states]) for i in range(len(initial))]
    if layout:
        y = y.transpose(2, 0, 1, 3)
        last = [one.swapaxes(0, 1) for one in last]
    return (y, *last)


def _infer(states: int) -> Callable[..., tuple[Fact, ...]]:
    """Inference for a layer with so many states."""

    def infer(
        x: Fact,
        w: Fact,
        r: Fact,
        *_: Fact | None,
        direction: str = "forward",
        layout: int = 0,
        hidden_size: int | None = None,
        **__: Any,
    ) -> tuple[Fact, ...]:
        directions = len(_directions(direction))
        hidden: Size = hidden_size or (None if r.dims is None else r.dims[2])
        first, second = (None, None) if x.dims is None else x.dims[:2]
        y: tuple[Size, ...] = (first, directions, second, hidden)
        last: tuple[Size, ...] = (directions, second, hidden)
        if layout:
            y, last = (first, second, directions, hidden), (first, directions, hidden)
        return Fact(y, x.dtype), *(Fact(last, x.dtype),) * states

    return infer


def _clipped(clip: float | None) -> Function:
    return (lambda x: x) if clip is None else (lambda x: np.clip(x, -clip, clip))


def _checked_bias(b: Array | None, directions: int, size: int) -> Array:
    if b is None:
        return np.zeros((directions, size), np.float32)
    if b.shape != (directions, size):
        raise LayoutError(f"B must be {(directions, size)}, got {b.shape}")
    return wide(b)


def _narrowed(made: tuple[Array, ...], dtype: np.dtype[Any]) -> tuple[Array, ...]:
    return tuple(narrow(one, dtype) for one in made)


@operator("RNN", infer=_infer(1))
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    /,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Array, ...]:
    """A state that is a function of the data and the state before."""
    data, weights, recurrent = wide(x), wide(w), wide(r)
    count = len(_directions(direction))
    biases = _checked_bias(b, count, 2 * recurrent.shape[-1])
    functions = _functions(activations[:count], ("tanh",), count, activation_alpha, activation_beta)
    clipped = _clipped(clip)

    def steps(number: int) -> Step:
        (f,), turned = functions[number], recurrent[number].T

        def step(given: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            return (np.asarray(f(clipped(given + state[0] @ turned)), given.dtype),)

        return step

    start = [None if initial_h is None else wide(initial_h)]
    size = recurrent.shape[-1]
    made = _layer(
        *(1, data, weights, recurrent, start, sequence_lens, direction, layout, hidden_size, steps),
        lambda n: (biases[n, :size] + biases[n, size:]).astype(data.dtype),
    )
    return _narrowed(made, x.dtype)


@operator("GRU", infer=_infer(1))
def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    /,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Array, ...]:
    """Gates in the order update, reset, hidden."""
    data, weights, recurrent = wide(x), wide(w), wide(r)
    size, count = recurrent.shape[-1], len(_directions(direction))
    biases = _checked_bias(b, count, 6 * size).astype(data.dtype)
    functions = _functions(activations, ("sigmoid", "tanh"), count, activation_alpha, activation_beta)
    clipped = _clipped(clip)

    def steps(number: int) -> Step:
        f, g = functions[number]
        gates, hidden = recurrent[number, : 2 * size].T, recurrent[number, 2 * size :].T
        bias = biases[number, 5 * size :]

        def step(given: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            (h,) = state
            both = np.asarray(f(clipped(given[:, : 2 * size] + h @ gates)), given.dtype)
            update, reset = both[:, :size], both[:, size:]
            inner = reset * (h @ hidden + bias) if linear_before_reset else (reset * h) @ hidden + bias
            new = np.asarray(g(clipped(given[:, 2 * size :] + inner)), given.dtype)
            return ((1 - update) * new + update * h,)

        return step

    def bias(number: int) -> Array:
        own = biases[number, : 3 * size].copy()
        own[: 2 * size] += biases[number, 3 * size : 5 * size]
        return np.asarray(own)

    start = [None if initial_h is None else wide(initial_h)]
    made = _layer(
        *(3, data, weights, recurrent, start, sequence_lens, direction, layout, hidden_size, steps, bias)
    )
    return _narrowed(made, x.dtype)


@operator("LSTM", infer=_infer(2))
def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    /,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Array, ...]:
    """Gates in the order input, output, forget, cell; the output's peephole sees the new cell."""
    data, weights, recurrent = wide(x), wide(w), wide(r)
    size, count = recurrent.shape[-1], len(_directions(direction))
    biases = _checked_bias(b, count, 8 * size).astype(data.dtype)
    functions = _functions(activations, ("sigmoid", "tanh", "tanh"), count, activation_alpha, activation_beta)
    clipped = _clipped(clip)
    holes = None if p is None else wide(p)
    if holes is not None and holes.shape != (count, 3 * size):
        raise LayoutError(f"P must be {(count, 3 * size)}, got {holes.shape}")

    def steps(number: int) -> Step:
        f, g, h = functions[number]
        turned = recurrent[number].T
        peep = [0.0] * 3 if holes is None else [holes[number, i * size : (i + 1) * size] for i in range(3)]

        def step(given: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            hidden, cell = state
            gates = given + hidden @ turned
            i, o, forget, c = (gates[:, n * size : (n + 1) * size] for n in range(4))
            i = f(clipped(i + peep[0] * cell))
            forget = 1 - i if input_forget else f(clipped(forget + peep[2] * cell))
            new = forget * cell + i * g(clipped(c))
            o = f(clipped(o + peep[1] * new))
            return np.asarray(o * h(new), given.dtype), np.asarray(new, given.dtype)

        return step

    start = [None if one is None else wide(one) for one in (initial_h, initial_c)]
    made = _layer(
        *(4, data, weights, recurrent, start, sequence_lens, direction, layout, hidden_size, steps),
        lambda n: biases[n, : 4 * size] + biases[n, 4 * size :],
    )
    return _narrowed(made, x.dtype)
