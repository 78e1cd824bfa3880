"""Sums of products whose source, weights and bias move or are constants, in any combination."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from relayout.graph.graph import Node
from test_lowering_cases import defined, graph, ran

COMBINATIONS = [which for which in product((False, True), repeat=3) if not all(which[:2])]
"""Whether source, weights and bias are constants; without those where there is nothing to do but to add."""


def checked(node: Node, dims: dict[str, tuple[int, ...]], constant: tuple[bool, ...]) -> None:
    """The node with a function behind it, with some of its operands as constants."""
    rng = np.random.default_rng(0)
    held = {
        name: rng.standard_normal(size).astype("f4")
        for (name, size), fixed in zip(dims.items(), constant, strict=True)
        if fixed
    }
    moving: dict[str, Any] = {name: size for name, size in dims.items() if name not in held}
    run = ran(graph([node, Node("Relu", node.outputs, ("z",))], held, **moving))
    assert defined(run) == []


@pytest.mark.parametrize("constant", COMBINATIONS)
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_convolutions(constant: tuple[bool, ...], groups: int) -> None:
    node = Node("Conv", ("x", "w", "b"), ("y",), {"pads": (1, 1, 1, 1), "group": groups})
    checked(node, {"x": (2, 8, 9, 7), "w": (16, 8 // groups, 3, 3), "b": (16,)}, constant)


@pytest.mark.parametrize("constant", COMBINATIONS)
@pytest.mark.parametrize(("strides", "groups"), [((1, 1), 1), ((2, 2), 1), ((2, 1), 2)])
def test_transposed_convolutions(constant: tuple[bool, ...], strides: tuple[int, int], groups: int) -> None:
    if constant[0]:
        pytest.skip("a transposed convolution of a constant is left to its definition")
    node = Node("ConvTranspose", ("x", "w", "b"), ("y",), {"strides": strides, "group": groups})
    checked(node, {"x": (2, 8, 5, 7), "w": (8, 6 // groups, 3, 3), "b": (6,)}, constant)


@pytest.mark.parametrize("constant", COMBINATIONS)
@pytest.mark.parametrize("turned", [False, True])
def test_layers(constant: tuple[bool, ...], turned: bool) -> None:
    node = Node("Gemm", ("x", "w", "b"), ("y",), {"transB": int(turned)})
    checked(node, {"x": (5, 8), "w": (20, 8) if turned else (8, 20), "b": (20,)}, constant)


@pytest.mark.parametrize("bias", [(5, 20), (5, 1), (1, 20), ()])
def test_layers_to_which_more_than_a_vector_is_added(bias: tuple[int, ...]) -> None:
    for constant in ((False, True, False), (False, False, True), (False, False, False)):
        node = Node("Gemm", ("x", "w", "b"), ("y",), {"transB": 1})
        checked(node, {"x": (5, 8), "w": (20, 8), "b": bias}, constant)
