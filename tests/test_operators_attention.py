"""Definitions of attention against torch and ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx")

import ml_dtypes

from operators_compared import define, same_as_reference
from relayout import LayoutError
from relayout.graph.operators import OPERATORS, Fact
from strategies import tried


def normal(*dims: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("masked", [None, bool, np.float32])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_attention_is_torchs(causal: int, masked: Any, heads: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    if causal and masked is not None:
        return  # torch takes one of the two
    q = normal(2, heads[0], 5, 8)
    k, v = normal(2, heads[1], 7, 8, seed=1), normal(2, heads[1], 7, 6, seed=2)
    if causal:
        k, v = k[:, :, :5], v[:, :, :5]
    mask = (
        None
        if masked is None
        else normal(5, 7, seed=3)
        if masked is np.float32
        else normal(5, 7, seed=3) > -0.5
    )
    (made,) = define("Attention", [q, k, v, mask], is_causal=causal, scale=0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)),
        None if mask is None else torch.from_numpy(mask),
        is_causal=bool(causal),
        scale=0.3,
        enable_gqa=True,
    )
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-4, atol=1e-5)


@settings(max_examples=tried(60), deadline=None)
@given(st.data())
def test_attention_is_the_references(data: st.DataObject) -> None:
    draw = data.draw
    kv_heads, shared = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    queries, keys, past = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(0, 3))
    heads = kv_heads * shared
    flat = draw(st.booleans())
    seed = draw(st.integers(0, 9))
    q, k, v = (
        normal(2, heads, queries, 4, seed=seed),
        normal(2, kv_heads, keys, 4),
        normal(2, kv_heads, keys, 3),
    )
    attributes: dict[str, Any] = {
        "is_causal": draw(st.integers(0, 1)),
        "softcap": draw(st.sampled_from([0.0, 2.0])),
        "left_window_size": draw(st.integers(-1, 2)),
        "right_window_size": draw(st.integers(-1, 2)),
        "qk_matmul_output_mode": draw(st.integers(0, 3)),
    }
    if not attributes["qk_matmul_output_mode"]:
        attributes["softcap"] = 0.0  # the reference gives capped products for raw ones
    if flat:
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for x in (q, k, v))
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    cache: list[np.ndarray | None] = [None, None]
    valid = None
    total = keys
    if past and draw(st.booleans()):
        cache = [normal(2, kv_heads, past, 4, seed=3), normal(2, kv_heads, past, 3, seed=4)]
        total += past
    elif draw(st.booleans()):
        valid = np.array(draw(st.tuples(st.integers(1, keys), st.integers(1, keys))))
    mask = None
    if draw(st.booleans()):
        mask = np.random.default_rng(seed).random((2, 1, queries, total)) > 0.4
        if draw(st.booleans()):
            mask = np.where(mask, normal(*mask.shape), -np.inf).astype(np.float32)
    same_as_reference("Attention", [q, k, v, mask, *cache, valid], 4, rtol=1e-3, atol=1e-4, **attributes)


def test_sums_of_many_weights_in_bf16_do_not_stop_growing() -> None:
    bf16 = ml_dtypes.bfloat16
    q, k = np.zeros((1, 1, 1, 4), bf16), np.zeros((1, 1, 2048, 4), bf16)
    (made,) = define("Attention", [q, k, np.ones((1, 1, 2048, 4), bf16)])
    np.testing.assert_allclose(made.astype(np.float32), 1, rtol=0.02)


def test_a_query_that_sees_nothing_has_zeros() -> None:
    q, k = normal(1, 1, 2, 4), normal(1, 1, 3, 4)
    mask = np.array([[True, False, True], [False] * 3])
    y, _, _, weights = define("Attention", [q, k, k, mask], 4, qk_matmul_output_mode=3)
    np.testing.assert_array_equal(y[0, 0, 1], 0)
    np.testing.assert_array_equal(weights[0, 0, 1], 0)
    np.testing.assert_allclose(weights[0, 0, 0].sum(), 1, rtol=1e-6)


class Negated:
    """An inner graph: its input less what it captured."""

    def evaluate(self, x: np.ndarray, *captured: np.ndarray) -> tuple[np.ndarray, ...]:
        return (-x - sum(captured),)


def test_scores_are_changed_by_inner_graphs() -> None:
    q, k, v = normal(1, 4, 3, 4), normal(1, 2, 5, 4, seed=1), normal(1, 2, 5, 6, seed=2)
    (plain,) = define("ai.onnx.preview.FlexAttention", [q, k, v])
    np.testing.assert_allclose(plain, define("Attention", [q, k, v])[0], rtol=1e-4, atol=1e-5)
    (made,) = OPERATORS["ai.onnx.preview.FlexAttention"](
        q, k, v, np.float32(3), score_mod=Negated(), captured=1
    )
    np.testing.assert_allclose(made, define("Attention", [-q, k, v])[0], rtol=1e-4, atol=1e-5)
    (made,) = OPERATORS["ai.onnx.preview.FlexAttention"](q, k, v, prob_mod=Negated())
    np.testing.assert_allclose(made, -plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("part", [0, 4])
@pytest.mark.parametrize("positions", [False, True])
def test_positions_turn_pairs(interleaved: int, part: int, positions: bool) -> None:
    x = normal(2, 3, 5, 8)
    half = (part or 8) // 2
    ids = np.random.default_rng(1).integers(0, 50, (2, 5)) if positions else None
    angles = normal(50, half) if positions else normal(2, 5, half)
    inputs = [x, np.cos(angles), np.sin(angles), ids]
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": part}
    same_as_reference("RotaryEmbedding", inputs, **attributes)
    flat = x.transpose(0, 2, 1, 3).reshape(2, 5, 24)
    same_as_reference("RotaryEmbedding", [flat, *inputs[1:]], num_heads=3, **attributes)
    (made,) = define("RotaryEmbedding", inputs, **attributes)
    np.testing.assert_allclose(np.square(made).sum(-1), np.square(x).sum(-1), rtol=1e-4)  # nothing but turned


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("each", [False, True])
def test_linear_attention_goes_on_where_it_ended(rule: str, each: bool) -> None:
    attributes = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule}
    q, k, v = normal(2, 6, 4 * 3), normal(2, 6, 2 * 3, seed=1) / 3, normal(2, 6, 2 * 5, seed=2)
    decay = -np.abs(normal(2, 6, 2 * 3 if each else 2, seed=3)) if "gated" in rule else None
    beta = np.abs(normal(2, 6, 1 if each else 2, seed=4)) if "delta" in rule else None
    whole, last = define("LinearAttention", [q, k, v, None, decay, beta], 2, **attributes)
    same_as_reference("LinearAttention", [q, k, v, None, decay, beta], 2, **attributes)
    parts = []
    state = None
    for piece in (slice(0, 2), slice(2, 6)):
        inputs = [x if x is None else x[:, piece] for x in (q, k, v)]
        more = [x if x is None else x[:, piece] for x in (decay, beta)]
        part, state = define("LinearAttention", [*inputs, state, *more], 2, **attributes)
        parts.append(part)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state, last, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    q, k = normal(2, 3, 4, 6), normal(2, 2, 5, 6)
    attention = OPERATORS["Attention"]
    for inputs, attributes, message in (
        ((q, k, k), {}, "3 heads of queries can't share 2"),
        ((q[0], k[0], k[0]), {"q_num_heads": 4}, "can't be parted into 4 heads"),
        ((q, q, q, None, q), {}, "must be given together"),
        ((q, q, q, np.zeros((4, 9), bool)), {}, "a mask of"),
        ((q, q, q), {"left_window_size": -2}, "-1 is the least"),
        ((q, q[..., :4], q), {}, "don't fit"),
    ):
        with pytest.raises(LayoutError, match=message):
            attention(*inputs, **attributes)
    with pytest.raises(LayoutError, match="delta needs beta"):
        OPERATORS["LinearAttention"](q[0], q[0], q[0], q_num_heads=1, kv_num_heads=1, update_rule="delta")


def test_names_of_sizes_survive() -> None:
    f32 = np.dtype(np.float32)
    q, k = Fact(("n", 4, "t", 8), f32), Fact(("n", 2, "s", 8), f32)
    y, keys, values, products = OPERATORS["Attention"].inferred(q, k, k, outputs=4)
    assert y.dims == ("n", 4, "t", 8)
    assert keys.dims == values.dims == ("n", 2, "s", 8)
    assert products.dims == ("n", 4, "t", "s")
