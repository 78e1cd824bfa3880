"""Recurrent layers: a node for each layer, weights in the order of gates that the graph's operators have.

The gates of PyTorch and of the graph's operators, in the rows of the weights::

    LSTM    input forget cell output      input output forget cell
    GRU     reset update new              update reset new
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from relayout.graph.graph import Value
from relayout.importers.torch.call import Call, Size, dims_of
from relayout.importers.torch.operators.table import aten

GATES: Final = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""The gates of the graph's operators, as positions among PyTorch's."""


@aten("lstm.input")
def lstm(
    call: Call, x: Value, states: Sequence[Value], weights: Sequence[Value], biases: bool, layers: int,
    dropout: float, train: bool, both: bool, batch_first: bool,
) -> tuple[Value, ...]:  # fmt: skip
    return _recurrent(call, "LSTM", x, states, weights, biases, layers, dropout and train, both, batch_first)


@aten("gru.input")
def gru(
    call: Call, x: Value, state: Value, weights: Sequence[Value], biases: bool, layers: int,
    dropout: float, train: bool, both: bool, batch_first: bool,
) -> tuple[Value, ...]:  # fmt: skip
    more = {"linear_before_reset": 1}
    return _recurrent(
        call, "GRU", x, [state], weights, biases, layers, dropout and train, both, batch_first, **more
    )


@aten("rnn_tanh.input", "rnn_relu.input")
def rnn(
    call: Call, x: Value, state: Value, weights: Sequence[Value], biases: bool, layers: int,
    dropout: float, train: bool, both: bool, batch_first: bool,
) -> tuple[Value, ...]:  # fmt: skip
    kind = "Relu" if "relu" in call.operator else "Tanh"
    more = {"activations": (kind,) * (1 + both)}
    return _recurrent(
        call, "RNN", x, [state], weights, biases, layers, dropout and train, both, batch_first, **more
    )


def _recurrent(
    call: Call, operator: str, x: Value, states: Sequence[Value], weights: Sequence[Value], biases: bool,
    layers: int, dropout: float, both: bool, batch_first: bool, **more: Any,
) -> tuple[Value, ...]:  # fmt: skip
    directions, each = 1 + both, 4 if biases else 2
    if dropout:
        raise call.refuse(f"{operator} with dropout in training; export the model after model.eval()")
    if len(weights) != layers * directions * each:
        raise call.refuse(f"{operator} with projections: {len(weights)} weights for {layers} layers")
    hidden = dims_of(weights[1])[-1]
    if not isinstance(hidden, int):
        raise call.refuse(f"{operator} with a state of unknown size {hidden}")
    if batch_first:
        x = call.transpose(x, (1, 0, 2))
    steps: list[Size] = [call.size(x, 0), call.size(x, 1)]
    wide = (*dims_of(x)[:2], directions * hidden)
    ends: list[tuple[Value, ...]] = []
    for layer in range(layers):
        first = layer * directions
        own = [weights[(first + n) * each : (first + n + 1) * each] for n in range(directions)]
        begin = [_part(call, state, first, directions, layers) for state in states]
        outputs = call.several(
            operator, x, *_packed(call, operator, own), None, *begin, outputs=1 + len(states),
            hidden_size=hidden, direction="bidirectional" if both else "forward", **more,
        )  # fmt: skip
        ends.append(outputs[1:])
        sequence = Value(outputs[0].name, (wide[0], directions, wide[1], hidden), x.dtype)
        if both:
            x = call.reshape(call.transpose(sequence, (0, 2, 1, 3)), [*steps, directions * hidden], wide)
        else:
            x = call.squeeze(sequence, 1)
    finals = [one[0] if layers == 1 else call.emit("Concat", *one, axis=0) for one in zip(*ends, strict=True)]
    return (call.transpose(x, (1, 0, 2)) if batch_first else x, *finals)


def _part(call: Call, state: Value, first: int, count: int, layers: int) -> Value:
    """The initial state of one layer."""
    if layers == 1:
        return state
    data = call.known(state)
    if data is not None:
        return call.constant(data[first : first + count], role="state")
    return call.slice(state, 0, first, first + count)


def _packed(call: Call, operator: str, own: Sequence[Sequence[Value]]) -> list[Value | None]:
    """The weights of a layer's directions: for the input, for the state, and both biases in a row.

    They are nodes, which passes compute for once where nothing is learned, and gradients pass to the weights.
    """
    ordered = [[_in_order(call, operator, one) for one in direction] for direction in own]
    made: list[Value | None] = [_stacked(call, [one[place] for one in ordered]) for place in range(2)]
    both = [call.emit("Concat", *one[2:], axis=0) for one in ordered if len(one) == 4]
    made.append(_stacked(call, both) if both else None)
    return made


def _in_order(call: Call, operator: str, weight: Value) -> Value:
    """The rows of a weight, gate by gate in the order of the graph's operator."""
    order = GATES[operator]
    if len(order) == 1:
        return weight
    gates = call.several("Split", weight, outputs=len(order), axis=0, num_outputs=len(order))
    return call.emit("Concat", *(gates[place] for place in order), axis=0)


def _stacked(call: Call, several: Sequence[Value]) -> Value:
    """One part for each direction."""
    parts = [call.emit("Unsqueeze", one, call.ints(0)) for one in several]
    return parts[0] if len(parts) == 1 else call.emit("Concat", *parts, axis=0)
