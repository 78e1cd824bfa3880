"""Scaled dot-product attention."""

from __future__ import annotations

from math import sqrt
from typing import Any

from relayout.graph.graph import Value
from relayout.importers.torch.call import Call, Size, dims_of, rank
from relayout.importers.torch.operators.table import TABLE, aten

WEIGHTS = 3  # of ONNX's qk_matmul_output_mode: what softmax has made


@aten("scaled_dot_product_attention.default")
def attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Value:
    """One node, with operands of four axes: batch, heads, positions, features.

    PyTorch lets the first two be missing, be several, and be broadcast. Which of several heads share a key
    follows from their numbers in both systems.
    """
    if dropout:
        raise call.refuse(f"attention with dropout {dropout}; export the model after model.eval()")
    front: list[Size] = [call.size(query, axis) for axis in range(rank(query) - 2)]
    operands = [query, key, value]
    if not grouped:
        operands = [query, *(_broadcast(call, one, query, front) for one in (key, value))]
    operands = [_with_four_axes(call, one) for one in operands]
    if mask is not None:
        mask = _mask(call, mask, rank(query))
    options: dict[str, Any] = {"is_causal": 1} if causal else {}
    if scale is not None:
        options["scale"] = float(scale)
    made = call.emit("Attention", *operands, mask, **options, dims=(None,) * 4, dtype=query.dtype)
    if rank(query) == 4:
        return made
    last = [call.size(query, -2), call.size(value, -1)]
    return call.reshape(made, [*front, *last], call.result.dims)


@aten("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    call: Call, query: Value, key: Value, value: Value, dropout: float, causal: bool, mask: Value | None,
    scale: float | None,
) -> tuple[Value | None, ...]:  # fmt: skip
    """What PyTorch's dispatcher makes of it on the CPU."""
    if any(call.used[1:]):
        raise call.refuse("the logarithms of sums that attention returns")
    return attention(call, query, key, value, mask, dropout, causal, scale, False), None


def attention_backward(
    call: Call, dy: Value, query: Value, key: Value, value: Value, mask: Value | None, causal: bool,
    scale: float | None,
) -> tuple[Value | None, ...]:  # fmt: skip
    """By query, key and value, of the inputs alone: the weights are computed once more.

    With P = softmax(s q k' + mask) ::

        dv = P' dy      dP = dy v'      dS = the gradient of the softmax      dq = s dS k      dk = s dS' q
    """
    if dims_of(query)[:2] != dims_of(key)[:2] or dims_of(query)[:2] != dims_of(value)[:2]:
        raise call.refuse(f"a gradient of {dims_of(query)[1]} heads that share {dims_of(key)[1]}")
    if mask is not None:
        mask = _mask(call, mask, 4)
    factor = 1 / sqrt(_size(call, query, 3)) if scale is None else float(scale)
    turned = (0, 1, 3, 2)
    *_, found = call.several(
        "Attention", query, key, value, mask, outputs=(False, False, False, True), scale=factor,
        qk_matmul_output_mode=WEIGHTS, is_causal=int(causal),
    )  # fmt: skip
    weights = Value(found.name, (*dims_of(query)[:3], dims_of(key)[2]), query.dtype)
    first = second = third = None
    if call.used[2]:
        third = call.emit("MatMul", call.transpose(weights, turned), dy)
    if call.used[0] or call.used[1]:
        scores = call.emit("MatMul", dy, call.transpose(value, turned), dims=weights.dims, dtype=dy.dtype)
        scores = call.emit(
            "relayout.SoftmaxGrad", scores, weights, axis=-1, dims=weights.dims, dtype=dy.dtype
        )
        by = call.constant(factor, query.dtype)
        if call.used[0]:
            first = call.emit("Mul", call.emit("MatMul", scores, key), by)
        if call.used[1]:
            second = call.emit("Mul", call.emit("MatMul", call.transpose(scores, turned), query), by)
    return first, second, third


TABLE["relayout.attention_backward.default"] = attention_backward


def _size(call: Call, x: Value, axis: int) -> int:
    """The size of an axis, which must be known."""
    found = dims_of(x)[axis]
    if not isinstance(found, int):
        raise call.refuse(f"a gradient of attention over {found} features")
    return found


def _broadcast(call: Call, x: Value, query: Value, front: list[Size]) -> Value:
    """A key or value with the batch and the heads of the query."""
    wanted = (*dims_of(query)[:-2], *dims_of(x)[-2:])
    if x.dims == wanted:
        return x
    return call.expand(x, [*front, call.size(x, -2), call.size(x, -1)], wanted)


def _with_four_axes(call: Call, x: Value) -> Value:
    if rank(x) < 4:
        return call.unsqueeze(x, *range(4 - rank(x)))
    if rank(x) == 4:
        return x
    sizes: list[Size] = [-1, *(call.size(x, axis) for axis in (-3, -2, -1))]
    return call.reshape(x, sizes, (None, *dims_of(x)[-3:]))


def _mask(call: Call, mask: Value, axes: int) -> Value:
    """A mask goes with any operands it can be broadcast to, if its own axes are no more than four."""
    if rank(mask) < 2:
        return call.unsqueeze(mask, *range(2 - rank(mask)))
    if axes <= 4:
        return mask
    if any(n != 1 for n in dims_of(mask)[:-3]):
        raise call.refuse(f"attention over {axes} axes with a mask of dims {mask.dims}")
    return call.reshape(mask, [1, *(call.size(mask, axis) for axis in range(max(-3, -rank(mask)), 0))])
