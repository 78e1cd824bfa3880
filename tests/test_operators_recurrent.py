"""Definitions of RNN, GRU and LSTM against torch and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

import ml_dtypes

from operators_compared import define, same_as_reference, same_as_runtime
from relayout import LayoutError
from relayout.graph.operators import OPERATORS, Fact
from strategies import tried

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 4, 5


def tensors(name: str, directions: int, seed: int = 0) -> list[np.ndarray | None]:
    """X, W, R, B, no lengths, and a state for each."""
    rng = np.random.default_rng(seed)

    def normal(*dims: int) -> np.ndarray:
        return (rng.standard_normal(dims) * 0.7).astype(np.float32)

    gates = GATES[name] * HIDDEN
    state = [normal(directions, BATCH, HIDDEN) for _ in range(STATES[name])]
    return [
        *(normal(STEPS, BATCH, INPUTS), normal(directions, gates, INPUTS), normal(directions, gates, HIDDEN)),
        *(normal(directions, 2 * gates), None, *state),
    ]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_layers_are_torchs(name: str, bidirectional: bool) -> None:
    """Which has the gates in another order: (i, f, g, o) of an LSTM and (r, z, n) of a GRU."""
    torch = pytest.importorskip("torch")
    directions = 1 + bidirectional
    x, w, r, b, _, *state = tensors(name, directions)
    order = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}[name]
    layer = getattr(torch.nn, name)(INPUTS, HIDDEN, bidirectional=bidirectional)

    def ordered(gates: np.ndarray) -> Any:
        return torch.from_numpy(gates.reshape(-1, HIDDEN, *gates.shape[1:])[order].reshape(gates.shape))

    half = GATES[name] * HIDDEN
    for number, suffix in enumerate(("", "_reverse")[:directions]):
        biases = {"bias_ih": b[number, :half], "bias_hh": b[number, half:]}
        for part, value in {"weight_ih": w[number], "weight_hh": r[number], **biases}.items():
            getattr(layer, f"{part}_l0{suffix}").data = ordered(value)
    start = tuple(map(torch.from_numpy, state))
    with torch.no_grad():
        expected, last = layer(torch.from_numpy(x), start if name == "LSTM" else start[0])
    direction = "bidirectional" if bidirectional else "forward"
    more = {"linear_before_reset": 1} if name == "GRU" else {}
    y, *states = define(name, [x, w, r, b, None, *state], 1 + len(state), direction=direction, **more)
    np.testing.assert_allclose(
        y.transpose(0, 2, 1, 3).reshape(STEPS, BATCH, -1), expected.numpy(), rtol=1e-4, atol=1e-5
    )
    for one, other in zip(states, last if name == "LSTM" else [last], strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5)


FUNCTIONS = [
    *("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu"),
    *("ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus"),
]


@st.composite
def layers(draw: st.DrawFn) -> tuple[str, int, dict[str, Any], list[int]]:
    name = draw(st.sampled_from(sorted(GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": HIDDEN}
    if draw(st.booleans()):
        attributes["clip"] = draw(st.sampled_from([0.25, 1.0]))
    if name == "GRU":
        attributes["linear_before_reset"] = draw(st.integers(0, 1))
    if name == "LSTM":
        attributes["input_forget"] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        count = {"RNN": 1, "GRU": 2, "LSTM": 3}[name]
        functions = draw(st.lists(st.sampled_from(FUNCTIONS[:3]), min_size=count, max_size=count))
        attributes["activations"] = functions * directions
    lengths = draw(st.lists(st.integers(1, STEPS), min_size=BATCH, max_size=BATCH))
    return name, directions, attributes, lengths


@settings(max_examples=tried(60), deadline=None)
@given(layers(), st.booleans(), st.booleans())
def test_layers_are_the_runtimes(
    one: tuple[str, int, dict[str, Any], list[int]], ragged: bool, peepholes: bool
) -> None:
    name, directions, attributes, lengths = one
    inputs = tensors(name, directions)
    if ragged:
        inputs[4] = np.array(lengths, np.int32)
    if name == "LSTM" and peepholes:
        inputs.append(np.random.default_rng(7).standard_normal((directions, 3 * HIDDEN)).astype(np.float32))
    same_as_runtime(name, inputs, 1 + STATES[name], opset=21, rtol=1e-3, atol=1e-4, **attributes)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_take_their_parameters_in_order(function: str) -> None:
    inputs = tensors("RNN", 2)
    attributes: dict[str, Any] = {"activations": [function, "HardSigmoid"], "direction": "bidirectional"}
    alphas = {"LeakyRelu": 1, "ThresholdedRelu": 1, "Elu": 1, "Affine": 1, "ScaledTanh": 1, "HardSigmoid": 1}
    betas = {"Affine": 1, "ScaledTanh": 1, "HardSigmoid": 1}
    attributes["activation_alpha"] = [0.3, 0.4][: alphas.get(function, 0) + 1]
    attributes["activation_beta"] = [0.6, 0.7][: betas.get(function, 0) + 1]
    same_as_runtime("RNN", inputs, 2, opset=21, rtol=1e-3, atol=1e-4, hidden_size=HIDDEN, **attributes)


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_the_batch_may_be_in_front(name: str, direction: str) -> None:
    inputs = tensors(name, 2 if direction == "bidirectional" else 1)
    y, *states = define(name, inputs, 1 + STATES[name], direction=direction)
    turned = [x if x is None or i in (1, 2, 3) else x.swapaxes(0, 1) for i, x in enumerate(inputs)]
    other, *others = define(name, turned, 1 + STATES[name], direction=direction, layout=1)
    np.testing.assert_array_equal(other, y.transpose(2, 0, 1, 3))
    for one, state in zip(others, states, strict=True):
        np.testing.assert_array_equal(one, state.swapaxes(0, 1))


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_without_what_may_be_left_out(name: str) -> None:
    inputs = tensors(name, 1)[:3]
    same_as_reference(name, inputs, 1 + STATES[name], hidden_size=HIDDEN)


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_of_other_types(name: str, dtype: Any) -> None:
    inputs = tensors(name, 1)
    expected = define(name, inputs, 1 + STATES[name])
    made = define(name, [x if x is None else x.astype(dtype) for x in inputs], 1 + STATES[name])
    for one, other in zip(made, expected, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one.astype(np.float32), other, rtol=0.05, atol=0.05)


def test_a_sequence_of_no_elements_keeps_its_state() -> None:
    inputs = tensors("GRU", 1)
    inputs[4] = np.array([0, 3, STEPS], np.int32)
    y, last = define("GRU", inputs, 2)
    assert not y[:, 0, 0].any()
    assert not y[3:, 0, 1].any()
    np.testing.assert_array_equal(last[:, 0], inputs[5][:, 0])
    np.testing.assert_array_equal(last[0, 1], y[2, 0, 1])


def test_what_does_not_fit_is_refused() -> None:
    inputs = tensors("LSTM", 1)
    for at, value, attributes, message in (
        (1, inputs[1][:, :-1], {}, r"W must be \(1, 20, 4\)"),
        (3, inputs[3][:, :-1], {}, r"B must be \(1, 40\)"),
        (4, np.array([1, 2, 9], np.int32), {}, "sequence_lens must be 3 numbers of at most 6"),
        (5, inputs[5][:, :2], {}, "an initial state"),
        (0, inputs[0], {"direction": "both"}, "direction 'both' is none of"),
        (0, inputs[0], {"activations": ("Tanh",)}, "1 activations; 3 in each of 1 directions"),
        (0, inputs[0], {"activations": ("Tanh", "Tanh", "Sin")}, "no activation 'sin'"),
    ):
        with pytest.raises(LayoutError, match=message):
            OPERATORS["LSTM"](*inputs[:at], value, *inputs[at + 1 :], **attributes)


def test_names_of_sizes_survive() -> None:
    f32 = np.dtype(np.float32)
    x, w, r = Fact(("t", "n", 4), f32), Fact((2, 20, 4), f32), Fact((2, 20, 5), f32)
    y, h, c = OPERATORS["LSTM"].inferred(x, w, r, outputs=3, direction="bidirectional")
    assert (y.dims, h.dims, c.dims) == (("t", 2, "n", 5), (2, "n", 5), (2, "n", 5))
