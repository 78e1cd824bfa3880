"""The suite's cases with one input and one attribute made wrong: an error that says so, or a right result.

Whatever is given, definitions and inference raise nothing but LayoutError, and inference never says what a
result is not.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_nodes import Case, assert_inferred, attributes_of, cases, operator_name, single
from relayout import LayoutError
from relayout.graph.operators import OPERATORS, Fact

TAKEN = [
    case
    for case in cases()
    if case.newest and (node := single(case)) is not None and operator_name(node) in OPERATORS
]
NAMES = sorted({operator_name(single(case)) for case in TAKEN})
UNBOUNDED = {
    *("ConstantOfShape", "Expand", "Tile", "Range", "EyeLike", "OneHot", "CenterCropPad", "Pad"),
    *("Loop", "Scan", "If", "SequenceMap"),
}
"""Operators whose results are as large, or run for as long, as an input says."""


def wrong_input(x: Any, rng: random.Random) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    kind = rng.randrange(8)
    if kind == 0:
        return None
    if kind == 1:
        return x[None]
    if kind == 2 and x.dtype != object:
        return np.zeros(x.shape, x.dtype)
    if kind == 3 and x.dtype.kind in "if":
        return -x
    if not x.ndim:
        return x
    if kind == 4:
        return x[:0]
    if kind == 5:
        return x[0] if len(x) and isinstance(x[0], np.ndarray) else x[..., :0]
    if kind == 6:
        return np.take(x, range(max(0, x.shape[-1] - 1)), axis=-1)
    return np.concatenate([x, x], axis=rng.randrange(x.ndim))


def wrong_attribute(value: Any, rng: random.Random) -> Any:
    if isinstance(value, int):
        return rng.choice([0, -1, 1, 2, 7, -5, 3])
    if isinstance(value, str):
        return "x"
    if isinstance(value, tuple):
        if rng.random() < 0.5 and all(isinstance(n, int) for n in value):
            return tuple(rng.choice([0, -1, 1, 2, 3]) for _ in value)
        return rng.choice([(), value[:-1], value + value[:1]])
    return wrong_input(value, rng)


def spoiled(case: Case, rng: random.Random) -> tuple[list[Any], dict[str, Any]]:
    """A case's inputs and attributes, some of them wrong."""
    node, known = single(case), case.known
    assert node is not None
    attributes, free = attributes_of(node)
    inputs = [known[name] if name else None for name in (*node.input, *free)]
    if inputs and rng.random() < 0.7:
        at = rng.randrange(len(inputs))
        inputs[at] = wrong_input(inputs[at], rng)
    if attributes and rng.random() < 0.6:
        name = rng.choice(sorted(attributes))
        attributes[name] = wrong_attribute(attributes[name], rng)
    return inputs, attributes


@pytest.mark.parametrize("name", sorted(set(NAMES) - UNBOUNDED))
def test_what_is_wrong_is_refused_or_computed(name: str) -> None:
    rng = random.Random(name)
    own = [case for case in TAKEN if operator_name(single(case)) == name]
    for _ in range(30):
        case = rng.choice(own)
        inputs, attributes = spoiled(case, rng)
        count = len(single(case).output)
        made = None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                made = OPERATORS[name](*inputs, outputs=count, **attributes)
            except LayoutError as error:
                assert name in str(error)  # noqa: PT017
        for data in (True, False):
            facts = [
                Fact(x.shape, x.dtype, x if data else None)
                if isinstance(x, np.ndarray)
                else None
                if x is None
                else Fact()
                for x in inputs
            ]
            try:
                said = OPERATORS[name].inferred(*facts, outputs=count, **attributes)
            except LayoutError:
                assert made in (None, (None,)), f"{attributes} of {[getattr(x, 'shape', x) for x in inputs]}"
                continue
            for fact, result in zip(said, made or (), strict=False):
                assert_inferred(fact, result, whole=False)
