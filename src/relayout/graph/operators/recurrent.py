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


class _Layer:
    """A layer, with directions and layout as ONNX has them.

    Parameters
    ----------
    gates : int
        How many there are.
    usual : sequence of str
        The activations of a direction, where none are given.

    Attributes
    ----------
    r : ndarray
        The weights of the state, for each direction.
    units : int
        Units of a gate.
    functions : list
        The activations of each direction.
    """

    def __init__(
        self,
        gates: int,
        usual: Sequence[str],
        x: Array,
        w: Array,
        r: Array,
        *,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        activations: Sequence[str] | None = None,
        clip: float | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,
        layout: int = 0,
    ) -> None:
        self.x, self.w, self.r = wide(x), wide(w), wide(r)
        self.dtype, self.gates, self.units = x.dtype, gates, r.shape[-1]
        self.clip, self.hidden_size, self.layout = clip, hidden_size, layout
        self.directions = _directions(direction)
        count, each = len(self.directions), len(usual)
        named = activations_of(activations, usual, count, activation_alpha, activation_beta)
        made: list[Function] = [partial(FUNCTIONS[name][0], **chosen) for name, chosen in named]
        self.functions = [made[i * each : (i + 1) * each] for i in range(count)]

    def clipped(self, x: Array) -> Array:
        """Within the bounds, if there are any."""
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)

    def vectors(self, name: str, given: Array | None, count: int) -> Array:
        """So many vectors of units for each direction; zeros, if they are left out."""
        dims = len(self.directions), count * self.units
        if given is not None and given.shape != dims:
            raise LayoutError(f"{name} must be {dims}, got {given.shape}")
        return np.zeros(dims, self.x.dtype) if given is None else wide(given).astype(self.x.dtype)

    def run(
        self,
        initial: Sequence[Array | None],
        lengths: Array | None,
        steps: Callable[[int], Step],
        bias: Callable[[int], Array],
    ) -> tuple[Array, ...]:
        """All results and the last of each state.

        For each direction ``steps`` has a step, and ``bias`` what is added to the products with its data.
        """
        x, w, r = self.x, self.w, self.r
        starts = [None if one is None else wide(one) for one in initial]
        if self.layout:
            x = x.swapaxes(0, 1)
            starts = [None if one is None else one.swapaxes(0, 1) for one in starts]
        if x.ndim != 3 or w.ndim != 3 or r.ndim != 3:
            raise LayoutError("X, W and R must have 3 axes")
        hidden = self.hidden_size or r.shape[2]
        batch = x.shape[1]
        expected = (len(self.directions), self.gates * hidden)
        if w.shape != (*expected, x.shape[2]) or r.shape != (*expected, hidden):
            raise LayoutError(
                f"W must be {(*expected, x.shape[2])} and R {(*expected, hidden)}, "
                f"got {w.shape} and {r.shape}"
            )
        if lengths is not None and (
            lengths.shape != (batch,) or (lengths > x.shape[0]).any() or (lengths < 0).any()
        ):
            raise LayoutError(f"sequence_lens must be {batch} numbers of at most {x.shape[0]}, got {lengths}")
        results, states = [], []
        for number, reverse in enumerate(self.directions):
            read = _backward(x, lengths) if reverse else x
            given = read @ w[number].T + bias(number)
            start = []
            for one in starts:
                first = np.zeros((batch, hidden), x.dtype) if one is None else one[number]
                if first.shape != (batch, hidden):
                    raise LayoutError(f"an initial state of {first.shape}; it must be {(batch, hidden)}")
                start.append(first)
            made, state = _run(given, steps(number), tuple(start), lengths)
            results.append(_backward(made, lengths) if reverse else made)
            states.append(state)
        y = np.stack(results, axis=1)
        last = [np.stack([state[i] for state in states]) for i in range(len(starts))]
        if self.layout:
            y = y.transpose(2, 0, 1, 3)
            last = [one.swapaxes(0, 1) for one in last]
        return tuple(narrow(one, self.dtype) for one in (y, *last))


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


ATTRIBUTES: Final[dict[str, Any]] = {
    **dict.fromkeys(("activation_alpha", "activation_beta", "clip", "hidden_size")),
    "direction": "forward",
    "layout": 0,
}
"""Those of all three, besides their activations."""


@operator("RNN", infer=_infer(1), like=ATTRIBUTES)
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    /,
    *,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    direction: str = "forward",
    **attributes: Any,
) -> tuple[Array, ...]:
    """A state that is a function of the data and the state before."""
    names = activations[: len(_directions(direction))]
    layer = _Layer(1, ("tanh",), x, w, r, activations=names, direction=direction, **attributes)
    biases, size = layer.vectors("B", b, 2), layer.units

    def steps(number: int) -> Step:
        (f,), turned = layer.functions[number], layer.r[number].T

        def step(given: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            return (np.asarray(f(layer.clipped(given + state[0] @ turned)), given.dtype),)

        return step

    return layer.run((initial_h,), sequence_lens, steps, lambda n: biases[n, :size] + biases[n, size:])


@operator("GRU", infer=_infer(1), like=ATTRIBUTES)
def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    /,
    *,
    activations: Sequence[str] | None = None,
    linear_before_reset: int = 0,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Gates in the order update, reset, hidden."""
    layer = _Layer(3, ("sigmoid", "tanh"), x, w, r, activations=activations, **attributes)
    biases, size = layer.vectors("B", b, 6), layer.units

    def steps(number: int) -> Step:
        f, g = layer.functions[number]
        gates, hidden = layer.r[number, : 2 * size].T, layer.r[number, 2 * size :].T
        bias = biases[number, 5 * size :]

        def step(given: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            (h,) = state
            both = np.asarray(f(layer.clipped(given[:, : 2 * size] + h @ gates)), given.dtype)
            update, reset = both[:, :size], both[:, size:]
            inner = reset * (h @ hidden + bias) if linear_before_reset else (reset * h) @ hidden + bias
            new = np.asarray(g(layer.clipped(given[:, 2 * size :] + inner)), given.dtype)
            return ((1 - update) * new + update * h,)

        return step

    def bias(number: int) -> Array:
        own = biases[number, : 3 * size].copy()
        own[: 2 * size] += biases[number, 3 * size : 5 * size]
        return np.asarray(own)

    return layer.run((initial_h,), sequence_lens, steps, bias)


@operator("LSTM", infer=_infer(2), like=ATTRIBUTES)
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
    activations: Sequence[str] | None = None,
    input_forget: int = 0,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Gates in the order input, output, forget, cell; the output's peephole sees the new cell."""
    layer = _Layer(4, ("sigmoid", "tanh", "tanh"), x, w, r, activations=activations, **attributes)
    biases, holes, size = layer.vectors("B", b, 8), layer.vectors("P", p, 3), layer.units
    clipped = layer.clipped

    def steps(number: int) -> Step:
        f, g, h = layer.functions[number]
        turned = layer.r[number].T
        peep = [holes[number, i * size : (i + 1) * size] for i in range(3)]

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

    def bias(number: int) -> Array:
        return np.asarray(biases[number, : 4 * size] + biases[number, 4 * size :])

    return layer.run((initial_h, initial_c), sequence_lens, steps, bias)
