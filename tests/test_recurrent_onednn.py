"""Recurrent layers against oneDNN's: cells, directions, layers, states and peepholes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relayout as rl
from onednn_recurrent import Layer, library
from relayout.ops.recurrent import DIRECTIONS, GATES
from test_recurrent import arrays, layer


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
@pytest.mark.parametrize("cell", sorted(GATES))
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
