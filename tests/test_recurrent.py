"""Recurrent layers: machine code against the definition in double precision, and that against torch."""

from __future__ import annotations

import importlib
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import covering
from elementwise import check, machine_code
from relayout import LayoutError, MemoryDesc, Unsupported
from relayout.ops.recurrent import ATTENTIVE, DIRECTIONS, GATES, LINEAR
from relayout.primitives import AUGRU, GRU, LBRAUGRU, LBRGRU, LSTM, Sequence, VanillaRNN
from relayout.primitives.plain import plain, remade
from relayout.primitives.post_ops import Function
from relayout.records import replace
from strategies import examples

plan_ = importlib.import_module("relayout.kernels.recurrent.plan")
turns_ = importlib.import_module("relayout.kernels.recurrent.turns")

KINDS = {
    "rnn": VanillaRNN,
    "lstm": LSTM,
    "gru": GRU,
    "lbr_gru": LBRGRU,
    "augru": AUGRU,
    "lbr_augru": LBRAUGRU,
}
runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")


def layer(
    kind: str,
    time: int,
    batch: int,
    channels: int,
    units: int,
    *,
    layers: int = 1,
    direction: str = "left2right",
    src: str = "tnc",
    weights: Any = rl.any,
    dtype: str = "f32",
    bias: bool = True,
    states: bool = True,
    peephole: bool = False,
    projection: int = 0,
    **more: Any,
) -> Any:
    """A primitive of these sizes."""
    directions, gates, state = len(DIRECTIONS[direction]), GATES[kind], projection or units
    both = (layers, directions)
    descs = {
        "src_layer": MemoryDesc((time, batch, channels), dtype, src),
        "weights_layer": MemoryDesc((*both, channels, gates, units), dtype, weights),
        "weights_iter": MemoryDesc((*both, state, gates, units), dtype, weights),
    }
    if kind in ATTENTIVE:
        descs["attention"] = MemoryDesc((time, batch, 1), dtype, src)
    if bias:
        descs["bias"] = MemoryDesc((*both, gates + (kind in LINEAR), units), "f32", rl.any)
    if states:
        descs["src_iter"] = MemoryDesc((*both, batch, state), dtype, "ldnc")
        more |= {"dst_iter": more.get("dst_iter", True)}
    if states and kind == "lstm":
        descs["src_iter_c"] = MemoryDesc((*both, batch, units), "f32", "ldnc")
        more |= {"dst_iter_c": more.get("dst_iter_c", True)}
    if peephole:
        descs["weights_peephole"] = MemoryDesc((*both, 3, units), "f32", rl.any)
    if projection:
        descs["weights_projection"] = MemoryDesc((*both, units, state), "f32", rl.any)
    return KINDS[kind](**descs, direction=direction, **more)


def arrays(made: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers that keep gates away from where they are flat."""
    rng = np.random.default_rng(seed)
    found = {}
    for name in made.inputs:
        desc = made.descs[name]
        data = rng.standard_normal(desc.dims)
        if name.startswith("weights"):
            data *= (0.7 if made.kind != "vanilla_rnn" else 0.5) / np.sqrt(desc.dims[2])
        if name == "attention":
            data = rng.random(desc.dims)
        found[name] = rl.tensor(data, dtype=desc.dtype).numpy()
    return found


@st.composite
def layers_of_any_kind(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(sorted(KINDS)))
    units = draw(st.integers(1, 40))
    layers = draw(st.integers(1, 2))
    projection = draw(st.integers(0, units)) if kind == "lstm" and draw(st.booleans()) else 0
    channels = (projection or units) if layers > 1 else draw(st.integers(1, 20))
    direction = draw(st.sampled_from(sorted(DIRECTIONS)))
    time, batch = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(("f32", "f32", "bf16", "f16")))
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        side = 2 if direction == "bidirectional_concat" else 1
        dims = (time, batch, side * (projection or units))
        format = draw(st.sampled_from(("tnc", "ntc", "cab", "abC8c", "aBC4b16c")))
        more["dst_layer"] = MemoryDesc(dims, draw(st.sampled_from(("f32", "bf16"))), format)
    if draw(st.booleans()):
        dims = (layers, len(DIRECTIONS[direction]), batch, projection or units)
        more["dst_iter"] = MemoryDesc(dims, "f32", draw(st.sampled_from(("abcd", "dbac", "abcD16d"))))
    if draw(st.booleans()):
        more["clip"] = 0.5
    if kind == "rnn":
        more["activation"] = draw(st.sampled_from(("tanh", "relu", "logistic", Function("relu", 0.1))))
    return layer(
        kind,
        time,
        batch,
        channels,
        units,
        layers=layers,
        direction=direction,
        src=draw(st.sampled_from(("tnc", "ntc", "bca", "abC8c"))),
        weights=draw(st.sampled_from((rl.any, rl.any, "ldigo", "ldgoi"))),
        dtype=dtype,
        bias=draw(st.booleans()),
        states=draw(st.booleans()),
        peephole=kind == "lstm" and draw(st.booleans()),
        projection=projection,
        **more,
    )


@runs_code
@given(layers_of_any_kind())
@examples(60)
def test_machine_code_is_the_definition(made: Any) -> None:
    assert made.implementation.startswith("machine code")
    flips = 0.03 if made.rounds else 0.0  # of states near the middle of two numbers of bf16
    check(made, arrays=arrays(made), slack=flips)


@runs_code
@pytest.mark.parametrize(
    ("kind", "split"), covering(sorted(KINDS), [(1, 2), (2, 3), (3, 1), (3, 2)], strength=1)
)
def test_no_schedule_changes_a_result(
    kind: str, split: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it matter in which order its parts run, or how many at a time."""
    parts, shares = split
    schedule = plan_.Schedule(2, 2, parts, shares)
    monkeypatch.setattr(plan_, "planned", lambda one, threads: replace(one, schedule=schedule))
    more = {"projection": 50} if kind == "lstm" else {}
    made = layer(kind, 4, 5, 3, 56, direction="bidirectional_concat", **more)
    check(made, arrays=arrays(made))


@runs_code
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_threads_that_take_turns_agree_with_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYOUT_THREADS", "2")
    monkeypatch.setattr(
        plan_, "planned", lambda one, threads: replace(one, schedule=plan_.Schedule(1, 1, 1, 2))
    )
    made = layer(kind, 200, 1, 64, 64)
    given = [rl.tensor(data, made.descs[name]) for name, data in arrays(made).items()]
    several = [made(*given, threads=2) for _ in range(3)]
    alone = made(*given, threads=1)
    for one in several:
        for name in made.outputs:
            np.testing.assert_array_equal(getattr(one, name).numpy(), getattr(alone, name).numpy())


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["rnn", "lstm", "lbr_gru"])
def test_layers_are_torchs(kind: str, bidirectional: bool) -> None:
    """Whose gates are i, f, c, o as well, and r, u, o of a GRU."""
    torch = pytest.importorskip("torch")
    name = {"rnn": "RNN", "lstm": "LSTM", "lbr_gru": "GRU"}[kind]
    net = getattr(torch.nn, name)(7, 19, bidirectional=bidirectional)
    direction = "bidirectional_concat" if bidirectional else "left2right"
    made = layer(kind, 6, 3, 7, 19, direction=direction)
    order = [1, 0, 2] if kind == "lbr_gru" else list(range(GATES[kind]))
    given = arrays(made)

    def gates(one: Any) -> np.ndarray:
        return one.detach().numpy().reshape(GATES[kind], 19, -1)[order]

    for d, suffix in enumerate(("", "_reverse")[: 1 + bidirectional]):
        parts = [gates(getattr(net, f"{part}_l0{suffix}")) for part in ("weight_ih", "weight_hh")]
        given["weights_layer"][0, d], given["weights_iter"][0, d] = (x.transpose(2, 0, 1) for x in parts)
        own, state = (gates(getattr(net, f"bias_{part}_l0{suffix}"))[..., 0] for part in ("ih", "hh"))
        if kind == "lbr_gru":
            given["bias"][0, d] = np.stack([own[0] + state[0], own[1] + state[1], own[2], state[2]])
        else:
            given["bias"][0, d] = own + state
    start = [torch.from_numpy(given[key][0]) for key in ("src_iter", "src_iter_c") if key in given]
    with torch.no_grad():
        y, last = net(torch.from_numpy(given["src_layer"]), tuple(start) if kind == "lstm" else start[0])
    wanted = [y, *(last if kind == "lstm" else [last])]
    tensors = {key: rl.tensor(data, made.descs[key]) for key, data in given.items()}
    for key, expected in zip(made.outputs, wanted, strict=True):
        expected = expected.numpy().reshape(made.descs[key].dims)
        np.testing.assert_allclose(getattr(made.reference(**given), key), expected, atol=2e-6)
        np.testing.assert_allclose(getattr(made(**tensors), key).numpy(), expected, atol=5e-6)


@pytest.mark.parametrize(("kind", "like"), [("augru", "gru"), ("lbr_augru", "lbr_gru")])
def test_without_attention_it_is_a_gru(kind: str, like: str) -> None:
    """And with all of it the state before is forgotten: it is that of a GRU whose update gate is 0."""
    made, other = layer(kind, 4, 3, 5, 19), layer(like, 4, 3, 5, 19)
    data = arrays(made)
    rest = {name: one for name, one in data.items() if name != "attention"}
    data["attention"] = np.zeros_like(data["attention"])
    found, wanted = (
        one(**{name: rl.tensor(array, one.descs[name]) for name, array in given.items()})
        for one, given in ((made, data), (other, rest))
    )
    np.testing.assert_array_equal(found.dst_layer.numpy(), wanted.dst_layer.numpy())
    data["attention"] += 1
    bias = rest["bias"].copy()
    bias[:, :, 0] -= 1000
    both = made.reference(**data).dst_layer, other.reference(**rest | {"bias": bias}).dst_layer
    np.testing.assert_allclose(*both, atol=1e-12)


@runs_code
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_any_number_of_threads(direction: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two directions on one thread are done one after the other."""
    monkeypatch.setenv("RELAYOUT_THREADS", str(threads))
    check(layer("lstm", 3, 2, 5, 17, direction=direction))


@runs_code
def test_long_sequences_and_large_states() -> None:
    long = layer("lstm", 300, 1, 5, 16)
    check(long, arrays=arrays(long))
    big = layer("gru", 2, 17, 100, 300, src="ntc")
    check(big, arrays=arrays(big))


def test_a_sequence_packs_weights_once() -> None:
    made = layer("lstm", 5, 2, 7, 20, states=False)
    data = arrays(made)
    steps = Sequence()
    x = steps.input("x", made.src_layer)
    weights = {name: one for name, one in data.items() if name != "src_layer"}
    steps.output(steps.add(made, src_layer=x, **weights))
    run = steps.compile()
    assert [one.kind for one in run.layers()] == ["lstm"]
    np.testing.assert_allclose(run(data["src_layer"]).numpy(), made.reference(**data), atol=1e-5)


def test_candidates_know_both_orders() -> None:
    x = MemoryDesc((20, 4, 32), "f32", rl.any)
    weights = MemoryDesc((1, 1, 32, 4, 32), "f32", rl.any)
    found = LSTM(x, weights, weights).candidates()
    assert {one.formats["src_layer"].name("onednn") for one in found} == {"tnc", "ntc"}
    assert all(one.cost > 0 for one in found)


def test_pickled() -> None:
    made = layer("gru", 3, 2, 4, 5)
    made(*(rl.tensor(data, made.descs[name]) for name, data in arrays(made).items()))
    again = pickle.loads(pickle.dumps(made))
    assert again.descs == made.descs
    assert again.operation == made.operation


@pytest.mark.parametrize("dims", [(0, 2, 3), (3, 0, 3)])
def test_nothing_to_do(dims: tuple[int, int, int]) -> None:
    made = layer("lstm", dims[0], dims[1], dims[2], 4)
    found = made(*(rl.tensor(np.ones(made.descs[n].dims), made.descs[n]) for n in made.inputs))
    assert found.dst_layer.dims == (*dims[:2], 4)
    if not dims[0]:
        np.testing.assert_array_equal(found.dst_iter.numpy(), 1)


def weights(*dims: int) -> MemoryDesc:
    return MemoryDesc(dims, "f32", rl.any)


@pytest.mark.parametrize(
    ("error", "words", "more"),
    [
        (LayoutError, "direction 'both' is none of", {"direction": "both"}),
        (LayoutError, "must have 5 axes", {"weights_iter": weights(1, 4, 4)}),
        (LayoutError, "must be 1x1x6x4x4", {"weights_layer": weights(1, 1, 5, 4, 4)}),
        (LayoutError, "2 directions; left2right has 1", {"weights_iter": weights(1, 2, 4, 4, 4)}),
        (LayoutError, "src_layer .* must have 4 channels", {"weights_iter": weights(2, 1, 4, 4, 4)}),
        (LayoutError, "activations are 3", {"activations": ("tanh",)}),
        (LayoutError, "clip must be positive", {"clip": -1}),
        (LayoutError, "must be 1x1x3x4", {"weights_peephole": weights(1, 1, 4, 4)}),
        (Unsupported, "is s8", {"src_iter": MemoryDesc((1, 1, 2, 4), "s8", "ldnc")}),
    ],
)
def test_refusals_say_why(error: type[Exception], words: str, more: dict[str, Any]) -> None:
    given = {
        "src_layer": MemoryDesc((3, 2, 6), "f32", "tnc"),
        "weights_layer": weights(1, 1, 6, 4, 4),
        "weights_iter": weights(1, 1, 4, 4, 4),
    }
    with pytest.raises(error, match=words):
        LSTM(**{**given, **more})


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_as_text(kind: str) -> None:
    made = layer(kind, 3, 2, 4, 5, clip=0.5, direction="bidirectional_sum")
    again = remade(json.loads(json.dumps(plain(made))))
    assert again.descs == made.descs
    assert again.operation == made.operation
