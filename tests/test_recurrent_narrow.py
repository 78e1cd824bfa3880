"""Recurrent layers of bf16: states are rounded before they are multiplied, and nothing else is.

A state that f32 has rounded may lie on the other side of the middle between two numbers of bf16 than the
definition's, and all that follows then differs by as much. So steps are held against the definition one by
one, each from the state that machine code has reached: then both round the same numbers, and results are
within a few roundings of f32. What a GRU multiplies besides, ``r * h``, and what an LSTM projects, is rounded
within a step; there a few results may differ by as much as one such step of bf16 makes.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import relayout as rl
from covering import covering
from elementwise import check
from relayout import MemoryDesc
from relayout.kernels.conv.arithmetic import FLOATS, NEON_BF16
from relayout.ops.recurrent import DIRECTIONS
from relayout.records import replace
from relayout.targets.machine import host, machine
from test_products import HERE, on
from test_recurrent import KINDS, arrays, layer, runs_code

plan_ = importlib.import_module("relayout.kernels.recurrent.plan")
program_ = importlib.import_module("relayout.primitives.recurrent_program")
module_ = importlib.import_module("relayout.kernels.recurrent.module")
compile_ = importlib.import_module("relayout.jit.compile")

TIME, BATCH = 4, 3
CLOSE = 2e-5  # a few roundings of f32, and activations
FLIPPED = 0.01  # what one number of bf16 in the place of its neighbour makes


def narrow(kind: str, time: int, channels: int, units: int, projection: int = 0, **more: Any) -> Any:
    """A layer of bf16 whose results are f32, so that they show the states that it has."""
    directions = len(DIRECTIONS[more.get("direction", "left2right")])
    state = projection or units
    bf16 = {"weights_projection": MemoryDesc((1, directions, units, state), "bf16", rl.any)}
    made = layer(
        kind,
        time,
        BATCH,
        channels,
        units,
        dtype="bf16",
        projection=projection,
        dst_layer=MemoryDesc((time, BATCH, directions * state), "f32", "tnc"),
        dst_iter=MemoryDesc((1, directions, BATCH, state), "f32", "ldnc"),
        **more,
    )
    if not projection:
        return made
    descs = {name: made.descs[name] for name in (*made.inputs, *made.outputs)} | bf16
    return type(made)(**descs)


def called(made: Any, data: dict[str, np.ndarray]) -> Any:
    """The results as arrays, by name."""
    found = made(**{name: rl.tensor(data[name], made.descs[name]) for name in made.inputs})
    return {name: getattr(found, name).numpy().astype(np.float64) for name in made.outputs}


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize(
    ("kind", "sizes", "cpu"), covering([*sorted(KINDS), "projected"], [(8, 32), (5, 19), (1, 1)], HERE)
)
def test_each_step_is_the_definitions(kind: str, sizes: tuple[int, int], cpu: str | None) -> None:
    channels, units = sizes
    projection = (units + 1) // 2 if kind == "projected" else 0
    kind = "lstm" if projection else kind
    with on(cpu):
        made = narrow(kind, TIME, channels, units, projection)
        assert made.rounds == "bf16"
        data = arrays(made)
        states = called(made, data)["dst_layer"]
        one = narrow(kind, 1, channels, units, projection)
        differ = []
        for t in range(TIME):
            given = {**data, "src_layer": data["src_layer"][t : t + 1]}
            if "attention" in data:
                given["attention"] = data["attention"][t : t + 1]
            if t:
                before = narrow(kind, t, channels, units, projection)
                known = called(
                    before, {n: x[:t] if n in ("src_layer", "attention") else x for n, x in data.items()}
                )
                np.testing.assert_array_equal(known["dst_layer"], states[:t])
                given["src_iter"] = states[t - 1][None, None]
                if kind == "lstm":
                    given["src_iter_c"] = known["dst_iter_c"]
            differ.append(abs(one.reference(**given).dst_layer[0] - states[t]))
    several = np.stack(differ)
    if kind in ("gru", "augru") or projection:
        assert np.quantile(several, 0.7) < CLOSE
        assert several.max() < FLIPPED
    else:
        assert several.max() < CLOSE


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_schedule_changes_a_bit(
    kind: str, rows: int, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = narrow(kind, TIME, 7, 56, direction="bidirectional_concat")
    data = arrays(made)
    usual = called(made, data)
    schedule = plan_.Schedule(rows, 1, 1, shares)
    monkeypatch.setattr(plan_, "planned", lambda one, threads: replace(one, schedule=schedule))
    other = called(narrow(kind, TIME, 7, 56, direction="bidirectional_concat"), data)
    for name, expected in usual.items():
        np.testing.assert_array_equal(other[name], expected)


@runs_code
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_layers_above_are_given_rounded_states(kind: str) -> None:
    """And nothing but what is an element is read or written."""
    made = layer(kind, 3, 2, 17, 17, layers=2, dtype="bf16", direction="bidirectional_sum")
    check(made, arrays=arrays(made), slack=FLIPPED)


@pytest.mark.parametrize(
    ("cpu", "triple", "text"),
    [
        ("znver4", "x86_64-linux", "ldOIg16o2i"),
        ("sapphirerapids", "x86_64-linux", "ldOIg16o2i"),
        ("x86-64-v4", "x86_64-linux", "ldOig16o"),
        ("neoverse-v1", "aarch64-linux", "ldOIg4o2i"),
    ],
)
def test_formats_follow_from_the_instruction(cpu: str, triple: str, text: str) -> None:
    assert program_.packed_for("bf16", machine(cpu, triple)).formats["weights_iter"] == text


@runs_code
def test_weights_are_read_as_any_has_them() -> None:
    """So a call reorders none of them."""
    made = layer("lstm", 3, 2, 16, 32, dtype="bf16")
    steps = [step.source for step in made._compiled().steps]
    if host().has("avx512bf16"):
        assert made.weights_iter.tag == MemoryDesc((1, 1, 32, 4, 32), "bf16", "ldOIg16o2i").tag
        assert not {"weights_iter", "weights_layer"} & {*steps}
        assert "vdpbf16ps" in made._cost()[1]


@pytest.mark.parametrize("mixed", [{"weights_iter": "f32"}, {"src_layer": "f16"}])
def test_other_types_are_widened(mixed: dict[str, str]) -> None:
    made = layer("lstm", 3, 2, 6, 8, dtype="bf16")
    descs = {name: made.descs[name] for name in made.inputs}
    descs |= {name: MemoryDesc(descs[name].dims, kind, rl.any) for name, kind in mixed.items()}
    other = KINDS["lstm"](**descs)
    assert (made.rounds, other.rounds) == ("bf16", "")
    check(other, arrays=arrays(other))


def test_training_rounds_nothing() -> None:
    made = layer("lstm", 3, 2, 6, 8, dtype="bf16", workspace=True)
    assert made.rounds == ""
    check(made, arrays=arrays(made))


@runs_code
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "lbr_gru"])
def test_instructions_of_aarch64_compute_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what they do, on registers of four sums; and there is machine code with them."""
    monkeypatch.setattr(program_, "multiplies", lambda rounds, _: NEON_BF16 if rounds else FLOATS)
    with on("x86-64-v2"):
        made = narrow(kind, TIME, 5, 19)
        data = arrays(made)
        assert "bfdot" in made._cost()[1]
        found, wanted = called(made, data), made.reference(**data)
        plan = program_.ForwardLayers(made).recurrence(0)
    np.testing.assert_allclose(found["dst_layer"], wanted.dst_layer, atol=FLIPPED)
    arm = machine("neoverse-v1", "aarch64-unknown-linux-gnu")
    code = compile_.assemble(module_.module(replace(plan, machine=arm)), arm)
    assert code[:4] == b"\x7fELF"
    words = np.frombuffer(code[: len(code) // 4 * 4], np.uint32)
    assert ((words & 0xFFE0FC00) == 0x6E40FC00).any()  # bfdot v.4s, v.8h, v.8h
