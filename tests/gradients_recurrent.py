"""Recurrent layers: random sizes, formats and data types against PyTorch's LSTM, GRU and RNN."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import relayout as rl
from gradients import Case, held
from relayout.ops.recurrent import ATTENTIVE, DIRECTIONS, GATES, LINEAR
from relayout.primitives import AUGRU, GRU, LBRAUGRU, LBRGRU, LSTM, VanillaRNN
from relayout.primitives.backward import recurrent as backward

KINDS = {
    "rnn": (VanillaRNN, backward.VanillaRNNBackward),
    "lstm": (LSTM, backward.LSTMBackward),
    "gru": (GRU, backward.GRUBackward),
    "lbr_gru": (LBRGRU, backward.LBRGRUBackward),
    "augru": (AUGRU, backward.AUGRUBackward),
    "lbr_augru": (LBRAUGRU, backward.LBRAUGRUBackward),
}


def in_torch(
    cell: str, direction: str, given: dict[str, torch.Tensor], activation: Any
) -> dict[str, torch.Tensor]:
    """The results by PyTorch's operations, cell by cell; what PyTorch's own layers lack is in it, too."""
    x, weights = given["src_layer"], given["weights_iter"]
    layers, directions, _, gates, units = weights.shape
    made, last, memories = [], {}, {}
    for d, turned in enumerate(DIRECTIONS[direction]):
        data = x.flip(0) if turned else x
        passed = 1 - (given["attention"] if "attention" in given else x.new_zeros(*x.shape[:2], 1))
        passed = passed.flip(0) if turned else passed
        for layer in range(layers):
            own = {k: v[layer, d] for k, v in given.items() if v.ndim > 3}
            h = own.get("src_iter", x.new_zeros(x.shape[1], weights.shape[2]))
            c = own.get("src_iter_c", x.new_zeros(x.shape[1], units))
            w, u = own["weights_layer"].flatten(1), own["weights_iter"].flatten(1)
            b = own.get("bias", x.new_zeros(gates + 1, units))
            states = []
            for step, left in zip(data, passed, strict=True):
                y = (step @ w + b[:gates].flatten()).unflatten(1, (gates, units)).unbind(1)
                if cell == "rnn":
                    h = activation(y[0] + h @ u)
                elif cell == "lstm":
                    p = own.get("weights_peephole", x.new_zeros(3, units))
                    z = (h @ u).unflatten(1, (gates, units)).unbind(1)
                    i, f = (torch.sigmoid(y[k] + z[k] + p[k] * c) for k in (0, 1))
                    c = f * c + i * torch.tanh(y[2] + z[2])
                    h = torch.sigmoid(y[3] + z[3] + p[2] * c) * torch.tanh(c)
                    h = h @ own["weights_projection"] if "weights_projection" in own else h
                else:
                    z = (h @ u).unflatten(1, (gates, units)).unbind(1)
                    update, reset = (torch.sigmoid(y[k] + z[k]) for k in (0, 1))
                    if cell not in LINEAR:
                        new = torch.tanh(y[2] + (reset * h) @ own["weights_iter"][:, 2])
                    else:
                        new = torch.tanh(y[2] + reset * (z[2] + b[3]))
                    update = left * update
                    h = update * h + (1 - update) * new
                states.append(h)
            data = torch.stack(states)
            last[layer, d], memories[layer, d] = h, c
        made.append(data.flip(0) if turned else data)
    y = sum(made) if direction.endswith("sum") else torch.cat(made, -1)
    rows = [[(last[k, d], memories[k, d]) for d in range(directions)] for k in range(layers)]
    both = [torch.stack([torch.stack([one[n] for one in row]) for row in rows]) for n in (0, 1)]
    return {"dst_layer": y, "dst_iter": both[0], "dst_iter_c": both[1]}


def draw(cell: str, rng: random.Random) -> Case:
    """A layer of this cell."""
    direction, layers = rng.choice(list(DIRECTIONS)), rng.choice((1, 1, 2))
    time, batch, units = rng.randint(1, 6), rng.randint(1, 9), rng.randint(1, 40)
    state = rng.randint(1, units) if cell == "lstm" and rng.random() < 0.4 else units
    channels = state if layers > 1 else rng.randint(1, 30)
    gates, both = GATES[cell], (layers, len(DIRECTIONS[direction]))
    kind = rng.choice(("f32", "f32", "f32", "bf16", "f16"))
    dims = {
        "src_layer": (time, batch, channels),
        "weights_layer": (*both, channels, gates, units),
        "weights_iter": (*both, state, gates, units),
    }
    options: dict[str, Any] = {"direction": direction, "workspace": True}
    if rng.random() < 0.7:
        dims["bias"] = (*both, gates + (cell in LINEAR), units)
    if cell in ATTENTIVE:
        dims["attention"] = (time, batch, 1)
    if rng.random() < 0.6:
        dims["src_iter"] = (*both, batch, state)
        if cell == "lstm":
            dims["src_iter_c"] = (*both, batch, units)
    if cell == "lstm" and rng.random() < 0.4:
        dims["weights_peephole"] = (*both, 3, units)
    if state != units:
        dims["weights_projection"] = (*both, units, state)
    for name in ("dst_iter", "dst_iter_c")[: 1 + (cell == "lstm")]:
        options[name] = rng.random() < 0.6
    functions: dict[str, Callable[[Any], Any]] = {
        "tanh": torch.tanh,
        "relu": torch.relu,
        "logistic": torch.sigmoid,
    }
    if cell == "rnn":
        options["activation"] = rng.choice(list(functions))
    formats = {
        "src_layer": ("tnc", "ntc", "abC16c", "cab"),
        "attention": (rl.any, "tnc", "ntc", "abC16c"),
        "weights_layer": (rl.any, "ldigo", "ldgoi"),
        "weights_iter": (rl.any, "ldigo", "ldgoi"),
        "weights_projection": (rl.any, "ldio"),
    }
    kinds = {name: kind if name in ("src_layer", "attention", "src_iter") or name[:7] == "weights" else "f32"
             for name in dims}  # fmt: skip
    descs = {
        name: rl.MemoryDesc(size, kinds[name], rng.choice(formats.get(name, (rl.any,))))
        for name, size in dims.items()
    }
    forward = KINDS[cell][0](**descs, **options)
    more: dict[str, Any] = {}
    for name in ("weights_layer", "weights_iter", "diff_weights_layer", "diff_weights_iter"):
        more |= {name: rng.choice((None, rl.any))}
    if rng.random() < 0.2:
        more["diff_src_layer"] = False
    made = KINDS[cell][1](forward, **more)
    data = {}
    for name in forward.inputs:
        data[name] = held(rng, dims[name], "f32")
        if name.startswith("weights"):
            data[name] *= 0.7 / np.sqrt(dims[name][2])
        data[name] = rl.tensor(data[name], dtype=kinds[name]).numpy().astype(np.float64)
    workspace = forward.reference(**data).workspace
    given = {name: torch.from_numpy(one).requires_grad_() for name, one in data.items()}
    results = in_torch(cell, direction, given, functions.get(options.get("activation", ""), torch.tanh))
    diffs = {name: held(rng, made.descs[name].dims, made.descs[name].dtype.name)
             for name in made.inputs if name.startswith("diff_")}  # fmt: skip
    total = sum((results[name[5:]] * torch.from_numpy(one)).sum() for name, one in diffs.items())
    assert isinstance(total, torch.Tensor)
    total.backward()
    expected, terms = {}, {}
    for name in made.outputs:
        grad = given[name[5:]].grad
        assert grad is not None
        expected[name] = grad.numpy()
        terms[name] = max(1.0, float(np.abs(expected[name]).max())) * (1 + time * batch / 64)
    held_workspace = rl.tensor(workspace, dtype="f32").numpy().astype(np.float64)
    inputs = {name: data[name] for name in made.inputs if name in data} | diffs
    return Case(made, inputs | {"workspace": held_workspace}, expected, terms)


CASES = {f"{kind[1].__name__}": partial(draw, cell) for cell, kind in KINDS.items()}
