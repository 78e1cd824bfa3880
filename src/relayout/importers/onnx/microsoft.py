"""Operators of ONNX Runtime's own, as its optimisers and quantisers leave them in files, in ONNX's words.

Most are two or three of ONNX's operators under one name: a convolution and an activation, a sum and a layer
normalisation, or an operator between a dequantisation and a quantisation. What remains has passes of its own
here that find such neighbours again.

A rule names the attributes that it understands, and their defaults. An attribute beside these is refused,
since nothing is known of what it changes.

Source: the reference of ONNX Runtime's contributed operators (``docs/ContribOperators.md`` of its
repository).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from relayout.errors import LayoutError, Unsupported
from relayout.importers.onnx.building import Call, Writer

__all__ = ["RULES"]

Rule: TypeAlias = Callable[[Call, Writer], None]

RULES: Final[dict[str, Rule]] = {}

DOMAIN: Final = "com.microsoft"
ROUNDED: Final = 4  # the accuracy level that permits sources of 8 bits
CONV: Final = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
POOL: Final = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides")


def of_runtime(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operators of the domain."""

    def enter(rule: Rule) -> Rule:
        for name in names:
            RULES[f"{DOMAIN}.{name}"] = rule
        return rule

    return enter


def _options(call: Call, *passed: str, **known: Any) -> tuple[dict[str, Any], list[Any]]:
    """The attributes to hand on, and the values of others or their defaults.

    Raises
    ------
    relayout.errors.Unsupported
        There are further attributes.
    """
    rest = set(call.attributes) - {*passed, *known, "captured"}
    if rest:
        raise Unsupported(f"{call.operator} with the attribute {sorted(rest)[0]!r} is unknown here")
    handed = {name: call.attributes[name] for name in passed if name in call.attributes}
    return handed, [call.get(name, default) for name, default in known.items()]


def _only(call: Call, inputs: int = 99, outputs: int = 1) -> None:
    """Refuse a call with inputs or outputs beyond those that its rule knows."""
    if any(call.inputs[inputs:]):
        raise Unsupported(f"{call.operator} with more than {inputs} inputs is unknown here")
    if any(call.outputs[outputs:]):
        raise Unsupported(f"{call.operator} with more than {outputs} outputs is unknown here")


# ---- fused pairs


def _activated(name: str, parameters: tuple[float, ...], x: str, into: str, writer: Writer) -> None:
    """An activation by its name and parameters, in the order of the operator's attributes."""
    if name == "Clip":
        low, high = (*parameters, *(-np.inf, np.inf)[len(parameters) :])[:2]
        writer.add("Clip", x, writer.like(low, x), writer.like(high, x), into=into)
        return
    words = {
        "Relu": (),
        "Tanh": (),
        "Sigmoid": (),
        "LeakyRelu": ("alpha",),
        "Elu": ("alpha",),
        "HardSigmoid": ("alpha", "beta"),
        "HardSwish": (),
        "Gelu": (),
        "Softplus": (),
        "Softsign": (),
        "": (),
    }
    if name not in words:
        raise Unsupported(f"the fused activation {name!r} is unknown here")
    given: dict[str, Any] = dict(zip(words[name], parameters, strict=False))
    writer.add(name or "Identity", x, into=into, **given)


@of_runtime("FusedConv")
def _conv(call: Call, writer: Writer) -> None:
    """A convolution, a sum with a fourth input, an activation."""
    _only(call, 4)
    handed, (activation, parameters) = _options(call, *CONV, activation="", activation_params=())
    made = writer.add("Conv", *call.inputs[:3], **handed)
    if call.input(3):
        made = writer.add("Add", made, call.input(3))
    _activated(activation, tuple(parameters), made, call.outputs[0], writer)


@of_runtime("FusedGemm")
def _gemm(call: Call, writer: Writer) -> None:
    _only(call, 3)
    words = "alpha", "beta", "transA", "transB"
    handed, (activation, *rest) = _options(
        call,
        *words,
        activation="",
        activation_alpha=None,
        activation_beta=None,
        activation_gamma=None,
    )
    parameters = tuple(one for one in rest if one is not None)
    _activated(activation, parameters, writer.add("Gemm", *call.inputs, **handed), call.outputs[0], writer)


@of_runtime("FusedMatMul", "TransposeMatMul")
def _matmul(call: Call, writer: Writer) -> None:
    """A product of matrices that may be transposed, times a number."""
    _only(call, 2)
    known = {"transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0, "alpha": 1.0}
    _, (*turned, batch_a, batch_b, alpha) = _options(call, **known)
    if batch_a or batch_b:
        raise Unsupported(f"{call.operator} with transposed batches is unknown here")
    a, b = (_transposed(x, writer) if turn else x for x, turn in zip(call.inputs, turned, strict=True))
    if alpha == 1:
        writer.add("MatMul", a, b, into=call.outputs[0])
    else:
        made = writer.add("MatMul", a, b)
        writer.add("Mul", made, writer.like(alpha, made), into=call.outputs[0])


def _transposed(x: str, writer: Writer) -> str:
    """The last two axes exchanged; vectors are no matrices and stay."""
    rank = writer.rank(x)
    if rank is None:
        raise Unsupported("a fused transpose of a value whose number of axes is unknown")
    if rank < 2:
        return x
    return str(writer.add("Transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2)))


@of_runtime("Gelu")
def _gelu(call: Call, writer: Writer) -> None:
    _only(call, 1)
    _options(call)
    writer.add("Gelu", call.input(0), into=call.outputs[0])


@of_runtime("BiasGelu", "FastGelu")
def _bias_gelu(call: Call, writer: Writer) -> None:
    """GELU of a sum; the fast one is the approximation by tanh."""
    _only(call, 2)
    _options(call)
    x = writer.add("Add", *call.inputs) if call.input(1) else call.input(0)
    approximate = "tanh" if call.operator.endswith("FastGelu") else "none"
    writer.add("Gelu", x, into=call.outputs[0], approximate=approximate)


@of_runtime("QuickGelu")
def _quick_gelu(call: Call, writer: Writer) -> None:
    _only(call, 1)
    _, (alpha,) = _options(call, alpha=1.702)
    x = call.input(0)
    gate = writer.add("Sigmoid", writer.add("Mul", x, writer.like(alpha, x)))
    writer.add("Mul", x, gate, into=call.outputs[0])


@of_runtime("BiasSoftmax")
def _bias_softmax(call: Call, writer: Writer) -> None:
    """Softmax of a sum; the axes from ``axis`` on are one."""
    _only(call, 2)
    _, (axis, inner) = _options(call, axis=1, is_inner_broadcast=1)
    x = call.input(0)
    rank = writer.rank(x)
    if rank is None or axis % rank != rank - 1 or not inner:
        raise Unsupported("BiasSoftmax over more than the last axis is unknown here")
    writer.add("Softmax", writer.add("Add", *call.inputs), axis=-1, into=call.outputs[0])


# ---- normalisation


@of_runtime("SkipLayerNormalization")
def _skip_layer_norm(call: Call, writer: Writer) -> None:
    """Layer normalisation of a sum, which is the fourth output."""
    _, (epsilon,) = _options(call, epsilon=1e-12)
    x, skip, gamma, beta, bias = (call.input(i) for i in range(5))
    x = _sum(call, x, skip, bias, writer)
    if not beta:
        beta = writer.like(0, gamma)
    _only(call.but(outputs=(*call.outputs, *[""] * 4)[:3]))
    writer.add("LayerNormalization", x, gamma, beta, into=call.outputs[0], epsilon=epsilon, axis=-1)


@of_runtime("SkipSimplifiedLayerNormalization")
def _skip_rms_norm(call: Call, writer: Writer) -> None:
    """The same with the root of the mean square."""
    _, (epsilon,) = _options(call, epsilon=1e-12)
    x = _sum(call, call.input(0), call.input(1), call.input(3), writer)
    _only(call.but(outputs=(*call.outputs, *[""] * 4)[:3]))
    writer.add("RMSNormalization", x, call.input(2), into=call.outputs[0], epsilon=epsilon, axis=-1)


def _sum(call: Call, x: str, skip: str, bias: str, writer: Writer) -> str:
    """What is normalised: the sum of the inputs, under the name of the fourth output where that is wanted."""
    if bias:
        x = writer.add("Add", x, bias)
    return str(writer.add("Add", x, skip, into=call.outputs[3] if len(call.outputs) > 3 else ""))


@of_runtime("SimplifiedLayerNormalization")
def _rms_norm(call: Call, writer: Writer) -> None:
    _only(call, 2)
    handed, _ = _options(call, "axis", "epsilon", "stash_type")
    writer.add("RMSNormalization", *call.inputs, into=call.outputs[0], **handed)


RULES["SimplifiedLayerNormalization"] = _rms_norm  # optimisers write it without a domain


@of_runtime("LayerNormalization")
def _layer_norm(call: Call, writer: Writer) -> None:
    handed, _ = _options(call, "axis", "epsilon", "stash_type")
    writer.add("LayerNormalization", *call.inputs, into=call.outputs, **handed)


@of_runtime("EmbedLayerNormalization")
def _embed(call: Call, writer: Writer) -> None:
    """Layer normalisation of a sum of embeddings of words, places and segments."""
    _, (epsilon, mask_type) = _options(call, epsilon=1e-12, mask_index_type=0)
    ids, segments, words, places, kinds, gamma, beta, mask, where = (call.input(i) for i in range(9))
    if mask or mask_type:
        raise Unsupported("EmbedLayerNormalization with a mask is unknown here")
    if any(call.outputs[1:2]):  # how many places of each image count: said by a mask only
        none = writer.constant(0, np.int32)
        writer.add("Expand", none, writer.shape(ids, 0, 1), into=call.outputs[1])
    x = writer.add("Gather", words, ids, axis=0)
    if where:
        x = writer.add("Add", x, writer.add("Gather", places, where, axis=0))
    else:
        zero, length = writer.constant([0]), writer.shape(ids, 1, 2)
        x = writer.add("Add", x, writer.add("Slice", places, zero, length, zero))
    if segments:
        x = writer.add("Add", x, writer.add("Gather", kinds, segments, axis=0))
    if len(call.outputs) > 2 and call.outputs[2]:
        x = writer.add("Identity", x, into=call.outputs[2])
    writer.add("LayerNormalization", x, gamma, beta, into=call.outputs[0], epsilon=epsilon, axis=-1)


# ---- attention


@of_runtime("Attention")
def _attention(call: Call, writer: Writer) -> None:
    """Self-attention, its three projections as one product."""
    _only(call, 6)
    known = {"num_heads": 0, "unidirectional": 0, "qkv_hidden_sizes": None, "scale": 0.0}
    _, (heads, causal, sizes, scale, _) = _options(call, **known, mask_filter_value=0.0)
    x, weights, bias, mask, past, added = (call.input(i) for i in range(6))
    dims = writer.dims(weights)
    if past or heads < 1:
        raise Unsupported("Attention with a past, or without num_heads, is unknown here")
    if sizes is None:
        if dims is None or not isinstance(dims[-1], int):
            raise Unsupported("Attention with weights of unknown size")
        sizes = (dims[-1] // 3,) * 3
    made = writer.add("MatMul", x, weights)
    if bias:
        made = writer.add("Add", made, bias)
    parts = writer.add("Split", made, writer.constant(sizes), count=3, axis=-1)
    _attended(call, parts, heads, causal, scale, mask, added, writer)


@of_runtime("MultiHeadAttention")
def _multi_head(call: Call, writer: Writer) -> None:
    """Attention of given queries, keys and values."""
    _only(call, 6)
    _, (heads, causal, scale, _) = _options(
        call, num_heads=0, unidirectional=0, scale=0.0, mask_filter_value=0.0
    )
    query, key, value, bias, mask, added = (call.input(i) for i in range(6))
    if not (key and value) or heads < 1 or any(writer.rank(one) != 3 for one in (query, key, value)):
        raise Unsupported("MultiHeadAttention with packed inputs is unknown here")
    parts = query, key, value
    if bias:
        sizes = [(writer.dims(one) or (None,))[-1] for one in parts]
        if not all(isinstance(n, int) for n in sizes):
            raise Unsupported("MultiHeadAttention with a bias, and inputs of unknown size")
        biases = writer.add("Split", bias, writer.constant(sizes), count=3, axis=0)
        parts = tuple(writer.add("Add", one, other) for one, other in zip(parts, biases, strict=True))
    _attended(call, parts, heads, causal, scale, mask, added, writer)


def _attended(
    call: Call,
    parts: tuple[str, ...],
    heads: int,
    causal: int,
    scale: float,
    mask: str,
    added: str,
    writer: Writer,
) -> None:
    bias = added
    if mask:
        if writer.rank(mask) != 2:
            raise Unsupported(
                f"{call.operator} with a mask that is not one row for each image is unknown here"
            )
        there = writer.add("Unsqueeze", writer.add("Cast", mask, to=9), writer.constant([1, 2]))
        bias = there
        if added:  # both: places that are masked have no weight whatever is added
            low = writer.like(float(np.finfo(np.float32).min), parts[0])
            bias = writer.add("Where", there, added, low)
    handed: dict[str, Any] = {"scale": scale} if scale else {}
    heads_of = {"q_num_heads": heads, "kv_num_heads": heads}
    writer.add("Attention", *parts, bias, into=call.outputs[0], is_causal=causal, **heads_of, **handed)


@of_runtime("RotaryEmbedding")
def _rotary(call: Call, writer: Writer) -> None:
    _only(call, 4)
    handed, (scale, batching) = _options(
        call, "interleaved", "num_heads", "rotary_embedding_dim", scale=1.0, is_packed_batching=0
    )
    x, places, cosines, sines = call.inputs
    if writer.rank(places) != 2 or scale != 1 or batching:
        raise Unsupported("RotaryEmbedding without a place for each token is unknown here")
    writer.add("RotaryEmbedding", x, cosines, sines, places, into=call.outputs[0], **handed)


# ---- quantised


@of_runtime("QuantizeLinear", "DequantizeLinear")
def _quantise(call: Call, writer: Writer) -> None:
    handed, _ = _options(call, "axis")
    writer.add(call.operator.rpartition(".")[2], *call.inputs, into=call.outputs[0], **handed)


def _real(call: Call, first: int, writer: Writer, axis: int = 1) -> str:
    """Three inputs, quantised values with scale and zero point, as what they stand for."""
    x, scale, zero = (call.input(first + i) for i in range(3))
    return str(writer.add("DequantizeLinear", x, scale, zero, axis=axis))


def _whole(call: Call, x: str, first: int, writer: Writer) -> None:
    """The call's output: values quantised by two inputs."""
    writer.add("QuantizeLinear", x, call.input(first), call.input(first + 1), into=call.outputs[0])


@of_runtime("QLinearAdd", "QLinearMul")
def _binary(call: Call, writer: Writer) -> None:
    _only(call, 8)
    _options(call)
    made = writer.add(call.operator[-3:], _real(call, 0, writer), _real(call, 3, writer))
    _whole(call, made, 6, writer)


@of_runtime("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
def _unary(call: Call, writer: Writer) -> None:
    _only(call, 5)
    handed, (opset,) = _options(call, "alpha", "axis", opset=13)
    x, name = _real(call, 0, writer), call.operator.rpartition("QLinear")[2]
    if name == "Softmax" and opset < 13:
        rank = writer.rank(call.input(0))
        if rank is None or handed.get("axis", 1) % rank != rank - 1:
            raise Unsupported("QLinearSoftmax over more than the last axis is unknown here")
    _whole(call, writer.add(name, x, **handed), 3, writer)


@of_runtime("QLinearGlobalAveragePool", "QLinearAveragePool")
def _pool(call: Call, writer: Writer) -> None:
    _only(call, 5)
    handed, (last,) = _options(call, *POOL, channels_last=0)
    x = _real(call, 0, writer)
    _whole(call, _first(call.operator.rpartition("QLinear")[2], x, handed, last, writer), 3, writer)


def _first(operator: str, x: str, handed: dict[str, Any], last: int, writer: Writer) -> str:
    """An operator of images whose channels may be their last axis."""
    if not last:
        return str(writer.add(operator, x, **handed))
    rank = writer.rank(x)
    if rank is None:
        raise Unsupported("channels_last of a value whose number of axes is unknown")
    x = writer.add("Transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))
    made = writer.add(operator, x, **handed)
    return str(writer.add("Transpose", made, perm=(0, *range(2, rank), 1)))


@of_runtime("NhwcMaxPool")
def _max_pool(call: Call, writer: Writer) -> None:
    _only(call, 1)
    handed, _ = _options(call, *POOL)
    writer.add("Identity", _first("MaxPool", call.input(0), handed, 1, writer), into=call.outputs[0])


@of_runtime("QLinearConcat")
def _concat(call: Call, writer: Writer) -> None:
    handed, _ = _options(call, "axis")
    parts = [_real(call, i, writer) for i in range(2, len(call.inputs), 3)]
    _whole(call, writer.add("Concat", *parts, **handed), 0, writer)


@of_runtime("QGemm")
def _quantised_gemm(call: Call, writer: Writer) -> None:
    """A product of quantised matrices; the bias has the scale of the product."""
    _only(call, 9)
    _, (alpha, turned_a, turned_b) = _options(call, alpha=1.0, transA=0, transB=0)
    a, b = _real(call, 0, writer), _real(call, 3, writer, 0 if turned_b else 1)
    product = writer.add("Gemm", a, b, alpha=alpha, transA=turned_a, transB=turned_b)
    if call.input(6):
        scale = writer.add("Mul", call.input(1), call.input(4))
        scale = writer.add("Mul", scale, writer.like(alpha, scale))
        product = writer.add(
            "Add", product, writer.add("Mul", writer.add("CastLike", call.input(6), scale), scale)
        )
    if call.input(7):
        _whole(call, product, 7, writer)
    else:
        writer.add("Identity", product, into=call.outputs[0])


@of_runtime("MatMulIntegerToFloat")
def _matmul_integer(call: Call, writer: Writer) -> None:
    """Inputs: two matrices, their scales, their zero points, a bias."""
    _only(call, 7)
    _options(call)
    a = writer.add("DequantizeLinear", call.input(0), call.input(2), call.input(4), axis=0)
    b = writer.add("DequantizeLinear", call.input(1), call.input(3), call.input(5), axis=-1)
    _product(call, a, b, call.input(6), writer)


@of_runtime("DynamicQuantizeMatMul")
def _dynamic(call: Call, writer: Writer) -> None:
    """The first matrix is quantised by its own range, the second by the file."""
    _only(call, 5)
    _options(call)
    parts = writer.add("DynamicQuantizeLinear", call.input(0), count=3)
    a = writer.add("DequantizeLinear", *parts)
    b = writer.add("DequantizeLinear", call.input(1), call.input(2), call.input(3), axis=-1)
    _product(call, a, b, call.input(4), writer)


def _product(call: Call, a: str, b: str, bias: str, writer: Writer, **attributes: int) -> None:
    made = writer.add("MatMul", a, b, into="" if bias else call.outputs[0], **attributes)
    if bias:
        writer.add("Add", made, bias, into=call.outputs[0])


@of_runtime("MatMulNBits")
def _few_bits(call: Call, writer: Writer) -> None:
    """Weights of 4 or 8 bits: ``N x blocks x bytes``, with a scale and a zero point for each block of K.

    ``accuracy_level`` is the least precision of the first input that the model's author takes. 4 permits to
    round it to 8 bits within each block, and the product is marked so; the others are met by f32.
    """
    _only(call, 6)
    _, (k, n, bits, block, level) = _options(call, K=0, N=0, bits=4, block_size=0, accuracy_level=0)
    packed, zeros = writer.data(call.input(1)), writer.data(call.input(3))
    if bits not in (4, 8) or call.input(4) or packed is None or (call.input(3) and zeros is None):
        raise Unsupported("MatMulNBits of other than 4 or 8 bits, with g_idx, or with computed weights")
    if zeros is not None and zeros.dtype != np.uint8:
        raise Unsupported(
            f"MatMulNBits with zero points of {zeros.dtype}: they must be packed, as weights are"
        )
    blocks = -(-k // block) if block > 0 else 0
    if packed.size != n * blocks * block * bits // 8:
        raise LayoutError(
            f"MatMulNBits: {packed.size} bytes of weights for {n}x{k} of {bits} bits in blocks of {block}"
        )
    codes = _codes(packed.reshape(n, -1), bits)[:, : blocks * block]
    kind = ml_dtypes.uint4 if bits == 4 else np.uint8
    if zeros is None:
        points = np.full((n, blocks), 1 << (bits - 1), np.uint8)
    else:
        points = _codes(zeros.reshape(n, -1), bits)[:, :blocks]
    scales = writer.add("Reshape", call.input(2), writer.constant([n, blocks]))
    weights = writer.constant(codes[:, :k].astype(kind), kind)
    handed = {"axis": 1, "block_size": block}
    real = writer.add(
        "DequantizeLinear", weights, scales, writer.constant(points.astype(kind), kind), **handed
    )
    permitted = {"source_bits": 8} if level == ROUNDED else {}
    right = writer.add("Transpose", real, perm=(1, 0))
    _product(call, call.input(0), right, call.input(5), writer, **permitted)


def _codes(data: Any, bits: int) -> Any:
    """Bytes as numbers of so many bits, the lowest first."""
    if bits == 8:
        return data
    return np.stack([data & 15, data >> 4], axis=-1).reshape(data.shape[0], -1)


# ---- older homes of what ONNX has itself now


@of_runtime("Trilu", "Range", "GatherND", "Pad", "Unique", "Expand")
def _same(call: Call, writer: Writer) -> None:
    name = call.operator.rpartition(".")[2]
    writer.add(name, *call.inputs, into=call.outputs, **call.attributes)


@of_runtime("GridSample")
def _grid(call: Call, writer: Writer) -> None:
    handed, (mode,) = _options(call, "padding_mode", "align_corners", mode="bilinear")
    words = {"bilinear": "linear", "bicubic": "cubic"}
    writer.add("GridSample", *call.inputs, into=call.outputs[0], mode=words.get(mode, mode), **handed)
