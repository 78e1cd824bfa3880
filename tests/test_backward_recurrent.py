"""Backward passes of recurrent layers: definitions against differences and PyTorch, kernels against them."""

from __future__ import annotations

import importlib
import json
import pickle
import random
from inspect import signature
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import covering, share
from elementwise import check, machine_code
from relayout import LayoutError, MemoryDesc, Unsupported
from relayout.ops.recurrent import DIRECTIONS, GATES
from relayout.primitives import (
    AUGRUBackward,
    GRUBackward,
    LBRAUGRUBackward,
    LBRGRUBackward,
    LSTMBackward,
    VanillaRNNBackward,
)
from relayout.primitives.plain import plain, remade
from relayout.primitives.post_ops import Function
from relayout.records import replace
from strategies import examples
from test_recurrent import arrays, layer

plan_ = importlib.import_module("relayout.kernels.recurrent.plan")

BACKWARD = {
    "rnn": VanillaRNNBackward,
    "lstm": LSTMBackward,
    "gru": GRUBackward,
    "lbr_gru": LBRGRUBackward,
    "augru": AUGRUBackward,
    "lbr_augru": LBRAUGRUBackward,
}
runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")


def inputs_of(made: Any, forward: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """What a backward primitive reads: of a forward pass in double precision, and random gradients."""
    data = arrays(forward, seed)
    rng = np.random.default_rng(seed + 1)
    found = {name: data[name] for name in made.inputs if name in data}
    found["workspace"] = forward.reference(**data).workspace.astype(np.float32)
    for name in made.inputs:
        if name.startswith("diff"):
            desc = made.descs[name]
            found[name] = rl.tensor(rng.standard_normal(desc.dims), dtype=desc.dtype).numpy()
    return found


@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
@pytest.mark.parametrize("cell", sorted(GATES))
def test_definitions_are_differences_of_the_forward_definition(cell: str, direction: str) -> None:
    lstm = {"peephole": True, "projection": 3} if cell == "lstm" else {}
    forward = layer(
        cell, 3, 2, lstm.get("projection", 4), 4, layers=2, direction=direction, workspace=True, **lstm
    )
    data = {name: one.astype(np.float64) for name, one in arrays(forward).items()}
    made = BACKWARD[cell](forward)
    rng = np.random.default_rng(5)
    results = forward.reference(**data)
    diffs = {n: rng.standard_normal(made.descs[n].dims) for n in made.inputs if n.startswith("diff")}
    given = {name: data[name] for name in made.inputs if name in data} | diffs
    found = made.reference(**given, workspace=results.workspace)
    step = 1e-5
    for name in made.outputs:
        way, which = rng.standard_normal(made.descs[name].dims), name.removeprefix("diff_")
        ends = [forward.reference(**data | {which: data[which] + k * step * way}) for k in (1, -1)]
        change = sum(
            float((one * (getattr(ends[0], key[5:]) - getattr(ends[1], key[5:]))).sum())
            for key, one in diffs.items()
        )
        np.testing.assert_allclose((getattr(found, name) * way).sum(), change / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("cell", sorted(GATES))
def test_gradients_are_torchs(cell: str) -> None:
    pytest.importorskip("torch")
    from gradients_recurrent import CASES

    for seed in range(8):
        CASES[BACKWARD[cell].__name__](random.Random(seed)).check()


@st.composite
def backward_layers(draw: st.DrawFn, cells: tuple[str, ...] = tuple(sorted(GATES))) -> Any:
    """A backward primitive of any kind, and its forward one."""
    cell = draw(st.sampled_from(cells))
    units = draw(st.integers(1, 40))
    layers = draw(st.integers(1, 2))
    projection = draw(st.integers(0, 40)) if cell == "lstm" and draw(st.booleans()) else 0
    channels = (projection or units) if layers > 1 else draw(st.integers(1, 20))
    dtype = draw(st.sampled_from(("f32", "f32", "bf16", "f16")))
    more: dict[str, Any] = {}
    if cell == "rnn":
        more["activation"] = draw(st.sampled_from(("tanh", "relu", "logistic", Function("relu", 0.1))))
    forward = layer(
        cell,
        draw(st.integers(1, 5)),
        draw(st.integers(1, 9)),
        channels,
        units,
        layers=layers,
        direction=draw(st.sampled_from(sorted(DIRECTIONS))),
        src=draw(st.sampled_from(("tnc", "ntc", "bca", "abC8c"))),
        weights=draw(st.sampled_from((rl.any, rl.any, "ldigo", "ldgoi"))),
        dtype=dtype,
        bias=draw(st.booleans()),
        states=draw(st.booleans()),
        peephole=cell == "lstm" and draw(st.booleans()),
        projection=projection,
        workspace=True,
        **more,
    )
    options: dict[str, Any] = {}
    for name in ("weights_layer", "weights_iter", "diff_weights_layer", "diff_weights_iter"):
        options[name] = draw(st.sampled_from((None, rl.any)))
    for name in ("src_layer", "attention", "weights_layer", "bias"):
        if name in forward.inputs and draw(st.integers(0, 4)) == 0:
            options[f"diff_{name}"] = False
    return BACKWARD[cell](forward, **options), forward


@runs_code
@given(backward_layers())
@examples(18)
def test_machine_code_is_the_definition(both: Any) -> None:
    made, forward = both
    assert all(one.implementation.startswith("machine code") for one in both)
    check(made, arrays=inputs_of(made, forward))
    check(forward, arrays=arrays(forward))


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize(
    ("cell", "parts", "shares"),
    [(cell, *pair) for cell, pair in covering(sorted(GATES), ((1, 2), (2, 3), (3, 1), (3, 2)), strength=1)],
)
def test_no_schedule_changes_a_result(
    cell: str, parts: int, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it matter in which order its parts run, or how many at a time."""
    schedule = plan_.Schedule(2, 2, parts, shares)
    monkeypatch.setattr(plan_, "planned", lambda one, threads: replace(one, schedule=schedule))
    more = {"projection": 50, "peephole": True} if cell == "lstm" else {}
    forward = layer(cell, 4, 5, 3, 56, direction="bidirectional_concat", workspace=True, **more)
    made = BACKWARD[cell](forward)
    check(made, arrays=inputs_of(made, forward))
    check(forward, arrays=arrays(forward))


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize(
    ("cell", "sizes"), [*zip(sorted(GATES), cycle(((3, 1, 70, 272), (9, 40, 33, 80))), strict=False)]
)
def test_threads_change_no_bit(
    cell: str, sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that work nor those that were planned for."""
    found = []
    for count, working in ((1, 1), *share(((2, 2), (3, 1)), len(cell))):
        monkeypatch.setenv("RELAYOUT_THREADS", str(count))
        forward = layer(cell, *sizes, workspace=True)
        data = arrays(forward)
        given = {name: rl.tensor(data[name], forward.descs[name]) for name in forward.inputs}
        results = forward(**given, threads=working)
        made = BACKWARD[cell](forward)
        given["workspace"] = results.workspace
        rng = np.random.default_rng(3)
        for name in made.inputs:
            if name.startswith("diff"):
                given[name] = rl.tensor(rng.standard_normal(made.descs[name].dims), made.descs[name])
        gradients = made(**{name: given[name] for name in made.inputs}, threads=working)
        both = [(forward.outputs, results), (made.outputs, gradients)]
        found.append({n: getattr(r, n).numpy() for names, r in both for n in names})
    for other in found[1:]:
        for name, one in found[0].items():
            np.testing.assert_array_equal(one, other[name], err_msg=name)


@pytest.mark.parametrize("dims", [(0, 2, 3), (3, 0, 3)])
@pytest.mark.parametrize("cell", sorted(GATES))
def test_nothing_to_do(cell: str, dims: tuple[int, int, int]) -> None:
    forward = layer(cell, *dims, 4, workspace=True)
    made = BACKWARD[cell](forward)
    found = made(*(rl.tensor(np.ones(made.descs[n].dims), made.descs[n]) for n in made.inputs))
    assert not found.diff_weights_layer.numpy().any()
    assert (found.diff_src_iter.numpy() == 1).all()


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("workspace=True", {"workspace": False}),
        ("there is no diff_bias, since forward has no bias", {"diff_bias": rl.any}),
        ("there is no diff_dst_iter_c", {"diff_dst_iter_c": rl.any}),
        ("diff_src_layer .* must be 3x2x6", {"diff_src_layer": MemoryDesc((3, 2, 5), "f32", "tnc")}),
        ("no gradient comes in", {"diff_dst_layer": False}),
        ("no gradient is asked for",
         {f"diff_{name}": False for name in ("src_layer", "weights_layer", "weights_iter")}),
    ],
)  # fmt: skip
def test_refusals_say_why(words: str, more: dict[str, Any]) -> None:
    forward = layer("lstm", 3, 2, 6, 4, bias=False, states=False, workspace=more.pop("workspace", True))
    with pytest.raises(LayoutError, match=words):
        LSTMBackward(forward, **more)


def test_other_kinds_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"must be a GRU, not .*LSTM"):
        GRUBackward(layer("lstm", 3, 2, 6, 4, workspace=True))
    with pytest.raises(LayoutError, match="forward is a LBRGRU"):
        GRUBackward(layer("lbr_gru", 3, 2, 6, 4, workspace=True))
    with pytest.raises(LayoutError, match="forward is a LBRAUGRU"):
        AUGRUBackward(layer("lbr_augru", 3, 2, 6, 4, workspace=True))


@pytest.mark.parametrize(
    ("cell", "more", "words"),
    [
        ("gru", {"clip": 1.0}, "with a clip; it is 1"),
        ("rnn", {"activation": "gelu_erf"}, "with the activation gelu_erf"),
        ("rnn", {"activation": Function("relu", -1)}, "alpha of relu at least 0"),
    ],
)
def test_what_has_no_gradients(cell: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        layer(cell, 3, 2, 6, 4, workspace=True, **more)


@pytest.mark.parametrize("cell", sorted(GATES))
def test_pickled_and_as_text(cell: str) -> None:
    made = BACKWARD[cell](layer(cell, 3, 2, 4, 5, workspace=True), weights_iter=rl.any, diff_src_layer=False)
    for again in (pickle.loads(pickle.dumps(made)), remade(json.loads(json.dumps(plain(made))))):
        assert again.descs == made.descs
        assert again.operation == made.operation


def test_arguments_follow_from_the_forward_primitive() -> None:
    weights = {f"weights_{name}" for name in ("layer", "iter", "peephole", "projection")}
    others = {"src_layer", "src_iter", "src_iter_c", "bias", "dst_layer", "dst_iter", "dst_iter_c"}
    gradients = {f"diff_{name}" for name in weights | others}
    assert set(signature(LSTMBackward).parameters) == {"forward", "src_layer", *weights, *gradients}
    assert "attention" in signature(AUGRUBackward).parameters
    with pytest.raises(TypeError, match=r"no argument 'diff_src_iter_c'; did you mean 'diff_src_iter'"):
        GRUBackward(layer("gru", 3, 2, 6, 4, workspace=True), diff_src_iter_c=False)
