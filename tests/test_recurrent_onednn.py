"""Recurrent layers against oneDNN's, forward and backward: cells, directions, layers, states, peepholes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relayout as rl
from relayout.bench.peers import dnnl
from relayout.bench.peers.dnnl_recurrent import Backward, Layer
from relayout.ops.recurrent import ATTENTIVE, DIRECTIONS, GATES
from test_backward_recurrent import BACKWARD
from test_recurrent import arrays, layer

LAYERS = [
    (cell, direction, layers)
    for cell in sorted(GATES)
    for direction in sorted(DIRECTIONS)
    for layers in (1, 3)
    if cell not in ATTENTIVE or (direction, layers) == ("left2right", 1)  # oneDNN has no others
]


def library() -> dnnl.Library:
    """oneDNN, or the test is skipped."""
    found = dnnl.library()
    if found is None:
        pytest.skip("oneDNN is not installed")
    return found


@pytest.mark.parametrize(("cell", "direction", "layers"), LAYERS)
def test_layers_are_onednns(cell: str, direction: str, layers: int) -> None:
    same(layer(cell, 5, 7, 20, 20, layers=layers, direction=direction), cell)


@pytest.mark.parametrize("cell", sorted(GATES))
def test_without_states(cell: str) -> None:
    same(layer(cell, 4, 1, 9, 33, states=False), cell)


def test_peepholes() -> None:
    same(layer("lstm", 5, 6, 9, 24, peephole=True), "lstm")


def same(made: Any, cell: str) -> None:
    onednn, data = library(), arrays(made)
    peer = Layer(onednn, cell, made.direction, data, {name: made.descs[name].dims for name in made.outputs})
    peer()
    reference = made.reference(**data)
    found = made(*(rl.tensor(data[name], made.descs[name]) for name in made.inputs))
    several = (found,) if len(made.outputs) == 1 else found
    wanted = (reference,) if len(made.outputs) == 1 else reference
    for name, one, definition in zip(made.outputs, several, wanted, strict=True):
        np.testing.assert_allclose(definition, peer.results[name], atol=1e-5, err_msg=name)
        np.testing.assert_allclose(one.numpy(), peer.results[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("cell", "direction", "layers"), LAYERS)
def test_gradients_are_onednns(cell: str, direction: str, layers: int) -> None:
    same_gradients(layer(cell, 5, 7, 20, 20, layers=layers, direction=direction, workspace=True), cell)


@pytest.mark.parametrize("cell", sorted(GATES))
def test_gradients_without_states(cell: str) -> None:
    same_gradients(layer(cell, 4, 1, 9, 33, states=False, workspace=True), cell)


def test_gradients_of_peepholes() -> None:
    same_gradients(layer("lstm", 5, 6, 9, 24, peephole=True, workspace=True), "lstm")


def same_gradients(forward: Any, cell: str) -> None:
    """Each side with the workspace of its own forward pass.

    oneDNN is given initial states of zeros where there are none: without any, version 3.2 finds another
    ``diff_weights_iter`` of LSTM and vanilla RNN than it finds with zeros. And it is given an attention of
    zeros: with another one the gradients of version 3.2 are not the differences of what its forward pass
    computes, for it takes the update gate before the attention where it must take it behind.
    """
    onednn, data = library(), arrays(forward)
    if cell in ATTENTIVE:
        data["attention"] = np.zeros_like(data["attention"])
    starts = ["src_iter", *["src_iter_c"] * (cell == "lstm")]
    state = (*forward.weights_iter.dims[:2], forward.src_layer.dims[1], forward.units)
    zeros = {name: np.zeros(state) for name in starts if name not in data}
    dims = {name: forward.descs[name].dims for name in forward.outputs if name != "workspace"}
    peer = Layer(onednn, cell, forward.direction, data | zeros, dims, training=True)
    peer()
    made = BACKWARD[cell](forward, weights_layer=rl.any, weights_iter=rl.any)
    rng = np.random.default_rng(1)
    diffs = {n: rng.standard_normal(made.descs[n].dims) for n in made.inputs if n.startswith("diff")}
    back = Backward(peer, diffs)
    back()
    wanted = back.gradients()
    workspace = forward(*(rl.tensor(data[name], forward.descs[name]) for name in forward.inputs)).workspace
    given = {name: rl.tensor(one, made.descs[name]) for name, one in (data | diffs).items()
             if name in made.inputs}  # fmt: skip
    found = made(**given, workspace=workspace)
    reference = made.reference(
        **{name: data[name] for name in data if name in made.inputs},
        **diffs,
        workspace=forward.reference(**data).workspace,
    )
    for name, one, definition in zip(made.outputs, found, reference, strict=True):
        if name == "diff_attention":
            continue
        largest = max(1.0, float(np.abs(definition).max()))
        np.testing.assert_allclose(definition, wanted[name], atol=2e-5 * largest, err_msg=name)
        np.testing.assert_allclose(one.numpy(), wanted[name], atol=2e-5 * largest, err_msg=name)
