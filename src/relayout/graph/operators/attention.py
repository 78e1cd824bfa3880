"""Attention, in its softmax, programmable and linear forms, and the rotary embedding of positions.

Heads are an axis of their own here: batch x heads x sequence x head size. Inputs of three axes have the heads
side by side in the last one, and are parted first. Where there are fewer heads of keys than of queries, each
is shared by as many neighbouring heads of queries.

What a query must not see has a bias of minus infinity: the mask, the future (``is_causal``), what is outside
a window, and padding behind the keys that there are. A query that sees nothing has a result of zeros.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.activations import summed
from relayout.graph.operators.normalization import broadcasts
from relayout.graph.operators.registry import Array, Fact, operator, same
from relayout.graph.operators.types import narrow, numpy_type, wide
from relayout.graph.operators.windows import Size

__all__: list[str] = []


def _parted(x: Array, heads: int | None, what: str) -> Array:
    """Heads as an axis of their own."""
    if x.ndim == 4:
        return x
    if x.ndim != 3:
        raise LayoutError(f"{what} has {x.ndim} axes; it must have 3 or 4")
    if not heads or heads < 0 or x.shape[2] % heads:
        raise LayoutError(f"the last axis of {what}, {x.shape}, can't be parted into {heads} heads")
    parted = x.reshape(*x.shape[:2], heads, x.shape[2] // heads)
    return np.asarray(parted.transpose(0, 2, 1, 3))


def _joined(x: Array) -> Array:
    """Heads side by side in the last axis."""
    joined = x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])
    return np.asarray(joined)


def _shared(x: Array, heads: int) -> Array:
    """Heads of keys or values, one for each head of queries."""
    if not x.shape[1] or heads % x.shape[1]:
        raise LayoutError(f"{heads} heads of queries can't share {x.shape[1]} of keys or values")
    return x if x.shape[1] == heads else np.repeat(x, heads // x.shape[1], axis=1)


def _fitting(q: Array, k: Array, v: Array) -> None:
    """Refuse queries, keys and values that don't belong together."""
    if any(x.ndim != 4 for x in (q, k, v)) or (k.shape[3], v.shape[2]) != (q.shape[3], k.shape[2]):
        fit = False
    else:
        fit = q.shape[0] == k.shape[0] == v.shape[0] and k.shape[1] == v.shape[1]
    if not fit:
        raise LayoutError(f"queries of {q.shape}, keys of {k.shape} and values of {v.shape} don't fit")


def _softmax(x: Array) -> Array:
    """Along the last axis, zeros where all is minus infinity; each step rounded to the data type of ``x``."""
    if not x.shape[-1]:
        return x
    largest = wide(x).max(axis=-1, keepdims=True)
    shifted = narrow(wide(x) - np.where(np.isneginf(largest), 0, largest), x.dtype)
    powers = narrow(np.exp(wide(shifted)), x.dtype)
    sums = wide(summed(powers, -1))
    return narrow(wide(powers) / np.where(sums == 0, 1, sums), x.dtype)


def _hidden(
    queries: int,
    keys: int,
    offset: Array,
    valid: Array | None,
    causal: bool,
    left: int,
    right: int,
) -> Array:
    """What is not seen, ``[batch or 1, 1, query, key]``; ``offset``: the position of the first query."""
    position = offset.reshape(-1, 1, 1, 1) + np.arange(queries)[:, None]
    key = np.arange(keys)
    hidden = np.zeros(np.broadcast_shapes(position.shape, (1, 1, 1, keys)), bool)
    if causal:
        hidden |= key > position
    if left >= 0:
        hidden |= key < position - left
    if right >= 0:
        hidden |= key > position + right
    if valid is not None:
        hidden = hidden | (key >= valid.reshape(-1, 1, 1, 1))
    return hidden


def _biased(mask: Array | None, keys: int) -> Array:
    """A mask as a bias, as long as the keys."""
    if mask is None:
        return np.zeros((1, 1), np.float32)
    bias = np.where(mask, np.float32(0), np.float32(-np.inf)) if mask.dtype == bool else wide(mask)
    missing = keys - mask.shape[-1]
    if missing < 0 or not 0 < mask.ndim < 5:
        raise LayoutError(f"a mask of {mask.shape} for {keys} keys")
    return np.pad(bias, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=-np.inf)


def _infer_attention(
    q: Fact,
    k: Fact,
    v: Fact,
    mask: Fact | None = None,
    past_key: Fact | None = None,
    past_value: Fact | None = None,
    *_: Fact | None,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    **__: Any,
) -> tuple[Fact, Fact, Fact, Fact]:
    if q.dims is None or k.dims is None or v.dims is None:
        return Fact(None, q.dtype), Fact(None, k.dtype), Fact(None, v.dtype), Fact(None, q.dtype)
    (batch, heads, queries, _size), keys, values = (
        _parted_dims(one, count)
        for one, count in ((q.dims, q_num_heads), (k.dims, kv_num_heads), (v.dims, kv_num_heads))
    )
    total = keys[2]
    if past_key is not None:
        past = None if past_key.dims is None else past_key.dims[2]
        total = total + past if isinstance(total, int) and isinstance(past, int) else None
    y: tuple[Size, ...] = (batch, heads, queries, values[3])
    if len(q.dims) == 3:
        wide_y = heads * values[3] if isinstance(heads, int) and isinstance(values[3], int) else None
        y = (batch, queries, wide_y)
    return (
        Fact(y, q.dtype),
        Fact((*keys[:2], total, keys[3]), k.dtype),
        Fact((*values[:2], total, values[3]), v.dtype),
        Fact((batch, heads, queries, total), q.dtype),
    )


def _parted_dims(dims: tuple[Size, ...], heads: int | None) -> tuple[Size, Size, Size, Size]:
    if len(dims) == 4:
        return dims[0], dims[1], dims[2], dims[3]
    if len(dims) != 3 or not heads:
        raise LayoutError(f"{dims} can't be parted into {heads} heads")
    return dims[0], heads, dims[1], dims[2] // heads if isinstance(dims[2], int) else None


@operator("Attention", infer=_infer_attention)
def attention(
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    /,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Values, weighed by the softmax of products of queries and keys; keys, values and products besides."""
    if (past_key is None) != (past_value is None):
        raise LayoutError("a past of keys and one of values must be given together")
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise LayoutError("a past and nonpad_kv_seqlen can't be given together")
    if min(left_window_size, right_window_size) < -1:
        raise LayoutError(f"windows of {left_window_size} and {right_window_size}: -1 is the least")
    flat = q.ndim == 3
    q, k, v = _parted(q, q_num_heads, "Q"), _parted(k, kv_num_heads, "K"), _parted(v, kv_num_heads, "V")
    if past_key is not None and past_value is not None:
        for one, past in ((k, past_key), (v, past_value)):
            if past.ndim != 4 or (past.shape[:2], past.shape[3]) != (one.shape[:2], one.shape[3]):
                raise LayoutError(f"a past of {past.shape} before {one.shape}")
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    heads, queries, keys, size = q.shape[1], q.shape[2], k.shape[2], q.shape[3]
    _fitting(q, k, v)
    root = np.asarray(sqrt(1 / sqrt(max(size, 1)) if scale is None else scale), q.dtype)
    left, right = wide(q * root), wide(_shared(k, heads) * root)
    products = narrow(left @ right.swapaxes(2, 3), q.dtype)
    first = products
    scores = wide(products)
    if softcap:
        scores = softcap * np.tanh(scores / scores.dtype.type(softcap))
        scores = scores.astype(left.dtype, copy=False)
    if qk_matmul_output_mode == 1:
        first = narrow(scores, q.dtype)
    offset = np.asarray(0 if past_key is None else past_key.shape[2])
    if nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen.astype(np.int64) - queries
        if nonpad_kv_seqlen.shape != q.shape[:1]:
            raise LayoutError(f"nonpad_kv_seqlen of {nonpad_kv_seqlen.shape} for {q.shape[0]} sequences")
    hidden = _hidden(
        queries, keys, offset, nonpad_kv_seqlen, bool(is_causal), left_window_size, right_window_size
    )
    bias = _biased(attn_mask, keys).astype(scores.dtype, copy=False)
    if not broadcasts(bias.shape, scores.shape):
        raise LayoutError(f"a mask of {bias.shape} for scores of {scores.shape}")
    bias = np.where(hidden, scores.dtype.type(-np.inf), bias)
    scores = scores + bias
    if qk_matmul_output_mode == 2:
        first = narrow(scores, q.dtype)
    kind = q.dtype if softmax_precision is None else numpy_type(softmax_precision)
    weights = _softmax(narrow(scores, kind))
    weights = narrow(np.where(np.isneginf(bias).all(axis=-1, keepdims=True), 0, wide(weights)), q.dtype)
    if qk_matmul_output_mode == 3:
        first = weights
    y = narrow(wide(weights) @ wide(_shared(v, heads)), q.dtype)
    return _joined(y) if flat else y, k, v, first


def _infer_flex(q: Fact, k: Fact, v: Fact, *_: Fact | None, **__: Any) -> Fact:
    if q.dims is None:
        return Fact(None, v.dtype)
    return Fact((*q.dims[:3], None if v.dims is None else v.dims[3]), v.dtype)


@operator("ai.onnx.preview.FlexAttention", infer=_infer_flex)
def flex_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *more: Any,
    captured: int = 0,
    prob_mod: Any = None,
    scale: float | None = None,
    score_mod: Any = None,
    softmax_precision: int | None = None,
) -> Array:
    """Attention whose scores and probabilities are changed by inner graphs."""
    _fitting(q, k, v)
    root = np.asarray(np.sqrt(np.float32(1 / sqrt(max(q.shape[3], 1)) if scale is None else scale)), q.dtype)
    heads = q.shape[1]
    kind = wide(q).dtype if softmax_precision is None else numpy_type(softmax_precision)
    scores = narrow(wide(q * root) @ wide(_shared(k, heads) * root).swapaxes(2, 3), q.dtype).astype(kind)
    if score_mod is not None:
        scores = _modified(score_mod, scores, more)
    weights = _softmax(scores)
    if prob_mod is not None:
        weights = _modified(prob_mod, weights, more)
    return narrow(wide(weights) @ wide(_shared(v, heads)), v.dtype)


def _modified(graph: Any, x: Array, captured: tuple[Any, ...]) -> Array:
    made = graph.evaluate(x, *captured)
    if len(made) != 1 or made[0].shape != x.shape:
        raise LayoutError(f"an inner graph must make one tensor of {x.shape} from one of the same dims")
    return np.asarray(made[0], x.dtype)


@operator("RotaryEmbedding", infer=same)
def rotary_embedding(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    /,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Pairs of elements of each head, turned by an angle that is the position's."""
    heads = _parted(x, num_heads, "X")
    turned = rotary_embedding_dim or heads.shape[3]
    tokens = (heads.shape[0], heads.shape[2])
    if position_ids is not None:
        last = min(len(cos_cache), len(sin_cache))
        if position_ids.size and not (position_ids.min() >= 0 and position_ids.max() < last):
            raise LayoutError(
                f"positions {position_ids.min()} to {position_ids.max()} must be 0 to {last - 1}"
            )
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    if turned % 2 or turned > heads.shape[3] or {cos_cache.shape[-1], sin_cache.shape[-1]} != {turned // 2}:
        raise LayoutError(
            f"{turned} of {heads.shape[3]} elements of a head are turned in pairs; "
            f"the caches have {cos_cache.shape[-1]} and {sin_cache.shape[-1]} angles"
        )
    for cache in (cos_cache, sin_cache):
        if cache.ndim != 3 or not broadcasts(cache.shape[:2], tokens):
            raise LayoutError(f"angles of {cache.shape} for {tokens[1]} tokens of {tokens[0]} sequences")
    cos, sin = wide(cos_cache)[:, None], wide(sin_cache)[:, None]
    made = wide(heads).copy()
    half = turned // 2
    places = (
        (slice(0, turned, 2), slice(1, turned, 2)) if interleaved else (slice(0, half), slice(half, turned))
    )
    one, other = (wide(heads)[..., place] for place in places)
    made[..., places[0]] = cos * one - sin * other
    made[..., places[1]] = sin * one + cos * other
    return narrow(made if x.ndim == 4 else _joined(made), x.dtype)


def _infer_linear(
    q: Fact,
    k: Fact,
    v: Fact,
    past: Fact | None = None,
    *_: Fact | None,
    kv_num_heads: int,
    q_num_heads: int,
    **__: Any,
) -> tuple[Fact, Fact]:
    if q.dims is None or v.dims is None:
        return Fact(None, q.dtype), Fact(None, q.dtype if past is None else past.dtype)
    queries, values = _parted_dims(q.dims, q_num_heads), _parted_dims(v.dims, kv_num_heads)
    last = values[3] * q_num_heads if isinstance(values[3], int) else None
    state = (queries[0], kv_num_heads, queries[3], values[3])
    return Fact((*q.dims[:2], last), q.dtype), Fact(state, q.dtype if past is None else past.dtype)


@operator("LinearAttention", infer=_infer_linear)
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    /,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    """Queries times a state of (key size) x (value size) that each token adds to, after a decay."""
    if update_rule not in ("linear", "gated", "delta", "gated_delta"):
        raise LayoutError(f"update_rule {update_rule!r} is none of linear, gated, delta, gated_delta")
    for what, given in (("decay", ("gated" in update_rule, decay)), ("beta", ("delta" in update_rule, beta))):
        if given[0] != (given[1] is not None):
            raise LayoutError(f"{update_rule} {'needs' if given[0] else 'has no'} {what}")
    kind = np.result_type(wide(query), np.float32)
    q, k, v = (
        _parted(x, heads, what).astype(kind)
        for x, heads, what in (
            (query, q_num_heads, "query"),
            (key, kv_num_heads, "key"),
            (value, kv_num_heads, "value"),
        )
    )
    batch, length, size = q.shape[0], q.shape[2], q.shape[3]
    if len({x.shape[:1] + x.shape[2:3] for x in (q, k, v)}) > 1 or k.shape[3] != size:
        raise LayoutError(
            f"queries of {query.shape}, keys of {key.shape} and values of {value.shape} don't fit"
        )
    heads = kv_num_heads
    for what, gate, widths in (("decay", decay, (heads, heads * size)), ("beta", beta, (1, heads))):
        if gate is not None and gate.shape not in [(*query.shape[:2], n) for n in widths]:
            raise LayoutError(
                f"{what} of {gate.shape} for queries of {query.shape} and {heads} heads of keys"
            )
    dims = (batch, kv_num_heads, size, v.shape[3])
    state = np.zeros(dims, kind) if past_state is None else past_state.astype(kind)
    if state.shape != dims:
        raise LayoutError(f"a state of {state.shape}; it must be {dims}")
    factor = kind.type(scale or 1 / sqrt(max(size, 1)))
    shrink = None if decay is None else np.exp(_gates(decay, kv_num_heads, kind))
    rate = None if beta is None else beta.astype(kind).transpose(0, 2, 1)[..., None]
    made = np.zeros((batch, q_num_heads, length, v.shape[3]), kind)
    for t in range(length):
        if shrink is not None:
            state = state * shrink[:, :, t, :, None]
        new = v[:, :, t]
        if rate is not None:
            new = rate[:, :, t] * (new - (k[:, :, t, None] @ state)[:, :, 0])
        state = state + k[:, :, t, :, None] * new[:, :, None]
        made[:, :, t] = factor * (q[:, :, t, None] @ _shared(state, q_num_heads))[:, :, 0]
    kept = query.dtype if past_state is None else past_state.dtype
    return narrow(_joined(made), query.dtype), narrow(state, kept)


def _gates(decay: Array, heads: int, kind: np.dtype[Any]) -> Array:
    """One number for each head and token, or for each of a head's key elements."""
    return _parted(decay, heads, "decay").astype(kind)
