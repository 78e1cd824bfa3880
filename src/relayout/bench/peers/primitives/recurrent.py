"""Recurrent layers of oneDNN and PyTorch: packed weights, no initial state, results in memory of their own.

oneDNN's training gets an initial state of zeros: without one, version 3.2 finds other gradients of the
weights of an LSTM's state than with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from relayout.bench.operands import Floats, Operands
from relayout.bench.peers.dnnl import Library
from relayout.bench.peers.dnnl_recurrent import Backward, Layer
from relayout.bench.peers.primitives.contestant import Computation
from relayout.bench.recurrent import GATES, Recurrent

__all__ = ["GRADIENTS", "arguments", "by_onednn", "by_pytorch", "joined"]

GRADIENTS = ("diff_src_layer", "diff_weights_layer", "diff_weights_iter", "diff_bias")
"""What the backward pass is asked for."""


def arguments(operands: Operands) -> dict[str, Floats]:
    """The arrays by the names and with the dims that primitives have for them."""
    weights, bias = operands.weights[:, None, None], operands.bias
    assert bias is not None
    return {
        "src_layer": operands.src,
        "weights_layer": weights[0],
        "weights_iter": weights[1],
        "bias": bias[None, None],
    }


def joined(gradients: dict[str, Any]) -> Floats:
    """All gradients in a row."""
    return np.concatenate([np.asarray(gradients[name]).reshape(-1) for name in GRADIENTS])


def by_onednn(library: Library, work: Recurrent, operands: Operands) -> Computation:
    """A layer of oneDNN."""
    data = arguments(operands)
    if work.way != "inference":
        state = (1, 1, work.batch, work.units)
        names = ["src_iter", *["src_iter_c"] * (work.cell == "lstm")]
        data |= {name: np.zeros(state, np.float32) for name in names}
    results = {"dst_layer": work.dst_dims}
    if work.way != "inference":
        results |= {name.replace("src", "dst"): data[name].shape for name in data if "iter" in name[:8]}
    forward = Layer(library, work.cell, "left2right", data, results, work.way != "inference")
    if work.way != "backward":
        return Computation(forward, lambda: forward.results["dst_layer"], forward.name)
    forward()
    diffs = {f"diff_{name}": np.zeros(dims, np.float32) for name, dims in results.items()}
    diffs["diff_dst_layer"] = operands.src
    back = Backward(forward, diffs)
    return Computation(back, lambda: joined(back.gradients()), back.name)


ORDER = {"lstm": (0, 1, 2, 3), "lbr_gru": (1, 0, 2)}
"""PyTorch's gates, as positions among the primitives'."""


def by_pytorch(work: Recurrent, operands: Operands) -> Computation:
    """A layer of PyTorch."""
    torch: Any = import_module("torch")
    order = list(ORDER[work.cell])
    layer = getattr(torch.nn, "LSTM" if work.cell == "lstm" else "GRU")(work.units, work.units)
    layer.load_state_dict({name: torch.from_numpy(one) for name, one in _parameters(work, operands).items()})
    source, dy = torch.from_numpy(operands.src), torch.from_numpy(operands.src.copy())

    def inference() -> Any:
        with torch.no_grad():
            return layer(source)[0]

    run: Callable[[], Any] = inference
    if work.way == "inference":
        return Computation(run, lambda: np.array(run().numpy()), "torch.nn")
    source.requires_grad_()
    if work.way == "training":
        run = lambda: layer(source)[0]  # noqa: E731 (one line that says it)
        return Computation(run, lambda: np.array(run().detach().numpy()), "torch.nn")
    made, parameters = layer(source)[0], list(layer.parameters())

    def backward() -> Any:
        return torch.autograd.grad(made, [source, *parameters], dy, retain_graph=True)

    def result() -> Floats:
        dx, dw, du, db, state = (np.array(one.numpy()) for one in backward())
        back = np.argsort(order)
        shape = (GATES[work.cell], work.units)
        found: dict[str, Any] = {"diff_src_layer": dx, "diff_bias": db.reshape(shape)[back]}
        for name, one in (("diff_weights_layer", dw), ("diff_weights_iter", du)):
            found[name] = one.reshape(*shape, work.units)[back].transpose(2, 0, 1)
        if work.cell == "lbr_gru":
            found["diff_bias"] = np.concatenate([found["diff_bias"], state.reshape(shape)[2:]])
        return joined(found)

    return Computation(backward, result, "torch.nn")


def _parameters(work: Recurrent, operands: Operands) -> dict[str, Floats]:
    """Weights and biases as PyTorch's layers have them."""
    order, bias = list(ORDER[work.cell]), operands.bias
    assert bias is not None
    weights = operands.weights[:, :, order].transpose(0, 2, 3, 1).reshape(2, -1, work.units)
    state = np.zeros((len(order), work.units), np.float32)
    if work.cell == "lbr_gru":
        state[2] = bias[3]
    return {
        "weight_ih_l0": np.ascontiguousarray(weights[0]),
        "weight_hh_l0": np.ascontiguousarray(weights[1]),
        "bias_ih_l0": bias[order].reshape(-1),
        "bias_hh_l0": state.reshape(-1),
    }
