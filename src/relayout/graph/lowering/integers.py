"""Products of integers with what becomes of them, averages of bytes, and both ways between numbers and bytes.

What an operator of :mod:`relayout.graph.operators.integers` does is an epilogue of its primitive: a scale and
a bias for each channel, then post-ops. A zero point of the source that is known is a part of the bias, and so
is that of the result, unless it is odd; factors of a residual are tensors of one element. So convolutions of
one shape share one kernel, whatever their scales are. A zero point that is found in each run is taken off the
sums, which are integers then: in f32, sums above 2**24 would lose bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout import primitives
from relayout.graph.lowering.case import Case, Operand, row_major
from relayout.graph.lowering.chains import Step, chain_of, finished, following, wanted
from relayout.graph.lowering.convolutions import RANK, How, padding_of
from relayout.graph.lowering.expressions import ways_of
from relayout.graph.lowering.products import as_rows, flattened, targets_of, under
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.graph.lowering.windows import windows_of
from relayout.graph.operators.integers import AVERAGE, CONV, MATMUL
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, PostOp
from relayout.runtime.kept import kept

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.primitive import Primitive
    from relayout.primitives.values import Value

__all__: list[str] = []

BYTES = ("u8", "s8")

Zeros = tuple[MemoryDesc | None, MemoryDesc | None]
"""The zero points of source and weights. With them fewer formats have kernels, so costs depend on them."""


@kept("convolution of integers")
def _answers(
    src: MemoryDesc, weights: tuple[int, ...], dst: MemoryDesc, how: How, zeros: Zeros, only: str | None
) -> list[tuple[str, str, float, str]]:
    """The formats of source and destination, given without one, that a convolution offers, and its costs."""
    filters, scale = MemoryDesc(weights, "s8", any_format), MemoryDesc((1,), "f32", "a")
    if only is not None and len(src.dims) == RANK:
        src, dst = (MemoryDesc(desc.dims, desc.dtype, only) for desc in (src, dst))
    made = _primitive(how, src, filters, None, dst, scale, (), zeros)
    found = []
    for one in made.candidates():
        tags = one.formats["src"].tag, one.formats["dst"].tag
        if None not in tags:
            found.append((str(tags[0]), str(tags[1]), one.cost, one.schedule))
    return found


@kept("convolution of integers as it comes")
def _cost(src: MemoryDesc, weights: tuple[int, ...], dst: MemoryDesc, how: How, zeros: Zeros) -> float:
    """Seconds of a convolution whose source has a format that no candidate has."""
    filters, scale = MemoryDesc(weights, "s8", any_format), MemoryDesc((1,), "f32", "a")
    seconds: float = _primitive(how, src, filters, None, dst, scale, (), zeros)._cost()[0]
    return seconds


def _primitive(
    how: How,
    src: MemoryDesc,
    weights: MemoryDesc,
    bias: MemoryDesc | None,
    dst: MemoryDesc,
    scale: MemoryDesc,
    post_ops: Any,
    zeros: Zeros,
) -> primitives.Convolution:
    return primitives.Convolution(
        src,
        weights,
        bias,
        dst,
        scale=scale,
        src_zero_point=zeros[0],
        weights_zero_point=zeros[1],
        strides=how.strides,
        dilation=how.dilation,
        padding=how.padding,
        post_ops=post_ops,
    )


class Parts:
    """The constants of a product of integers, and what moves besides its source."""

    def __init__(self, case: Case, weights: NDArray[Any], axes: tuple[int, ...], padded: bool) -> None:
        """``axes``: those that are summed over.

        A zero point of the source is a part of the bias, unless there is padding, which has its value.
        """
        a = case.attributes
        scale, bias, factors, offset = (case.constant(place) for place in (2, 3, 5, 6))
        zero = int(a["zero_point"])
        self.moving = case.input(7)
        """The zero point of the source, if it is found in each run."""
        sums = weights.astype(np.int64).sum(axis=axes)
        if offset is not None:
            sums = sums - offset.astype(np.int64) * (weights.size // max(len(sums), 1))
        known = padded and zero and self.moving is None
        self.zeros: list[NDArray[np.int32] | None] = [
            np.array([zero], np.int32) if known else None,
            None if offset is None else np.ascontiguousarray(offset.reshape(-1), np.int32),
        ]
        assert scale is not None
        self.scale = np.ascontiguousarray(scale.reshape(-1), np.float32)
        whole = np.zeros(1) if bias is None else bias.astype(np.float64).reshape(-1)
        if self.zeros[0] is None:
            whole = whole - sums.astype(np.float64) * self.scale * float(zero)
        self.bias = np.ascontiguousarray(whole, np.float32) if whole.any() else None
        self.added, self.factors = case.input(4), factors
        self.low, self.high = float(a["low"]), float(a["high"])
        self.inner, self.offset = a["inner"], int(a["offset"])

    @property
    def steps(self) -> list[Step]:
        """The residual, as far as formats go."""
        return [] if self.added is None else [Step("add", self.added)]

    @property
    def vectors(self) -> Zeros:
        """What the zero points are."""
        src, weights = self.zeros
        found = src is not None or self.moving is not None
        return (
            MemoryDesc((1,), "s32", "a") if found else None,
            None if weights is None else MemoryDesc(weights.shape, "s32", "a"),
        )

    def given(self, site: Site, weights: NDArray[Any], outputs: int) -> list[Any]:
        """What the primitive reads behind its source, in the order of its inputs."""
        bias = None if self.bias is None else np.ascontiguousarray(np.broadcast_to(self.bias, outputs))
        zero = self.zeros[0] if self.moving is None else site.reshaped(site.value(self.moving), (1,))
        return [one for one in (weights, bias, self.scale, zero, self.zeros[1]) if one is not None]

    def post_ops(self, rank: int, added: MemoryDesc | None) -> tuple[list[PostOp], list[Any]]:
        """What becomes of scaled sums, and constants among the operands; None stands for the residual."""
        ops: list[PostOp] = []
        given: list[Any] = []
        one = MemoryDesc((1,) * rank, "f32", any_format)
        if added is not None and self.factors is not None:
            if self.inner is not None:
                ops += [Function("round"), Function("clip", *map(float, self.inner))]
            ops += [BinaryOp("mul", one), BinaryOp("add", one), BinaryOp("add", added), BinaryOp("mul", one)]
            first, summand, last = (factor.reshape((1,) * rank) for factor in np.float32(self.factors))
            given = [first, summand, None, last]
        if self.offset:
            ops += [Function("round"), Function("linear", 1.0, float(self.offset))]
        if (self.low, self.high) != (-inf, inf):
            ops.append(Function("clip", self.low, self.high))
        return ops, given


@rule(CONV)
def convolution(case: Case) -> list[Way] | None:
    """A convolution of bytes with constant weights, and the chain behind it, if that is real."""
    src, weights = case.inputs[:2]
    steps = chain_of(case)
    if src is None or weights is None or weights.data is None or src.data is not None or steps is None:
        return None
    if src.dtype not in BYTES or 0 in (*src.dims, *case.out.dims) or not 3 <= len(src.dims) <= 5:
        return None
    if case.constant(2) is None or (steps and case.out.dtype != "f32"):
        return None
    spatial, groups = len(src.dims) - 2, int(case.attributes["group"])
    strides, dilation = (
        numbers(case.attributes.get(name) or (1,) * spatial) for name in ("strides", "dilations")
    )
    padding = padding_of(case, weights.dims[2:], strides, dilation)
    padded = any(map(any, padding))
    if any(n < 0 for pair in padding for n in pair):
        return None
    how = How("Convolution", strides, dilation, padding)
    filters = weights.data
    parts = Parts(case, filters, tuple(range(1, filters.ndim)), padded)
    if groups > 1:
        filters = filters.reshape(groups, weights.dims[0] // groups, *weights.dims[1:])
    everything = [*parts.steps, *steps]

    def make(site: Site) -> Value:
        value = site.value(src)
        dst, into = site.target(0, site.way.outputs[0])
        residual = None if parts.added is None else site.value(parts.added)
        ops, known = parts.post_ops(len(dst.dims), None if residual is None else residual.desc)
        operands = [residual if one is None else one for one in known]
        later, others, _ = finished(site, steps, dst)
        scale = MemoryDesc(parts.scale.shape, "f32", "a")
        bias = None if parts.bias is None else MemoryDesc((weights.dims[0],), "f32", "a")
        free = MemoryDesc(filters.shape, "s8", any_format)
        made = _primitive(how, value.desc, free, bias, dst, scale, [*ops, *later], parts.vectors)
        given = parts.given(site, filters, weights.dims[0])
        return site.add(made, value, *given, *operands, *others, into=into)

    free = MemoryDesc(src.dims, src.dtype, any_format), MemoryDesc(case.out.dims, case.out.dtype, any_format)
    costs = [
        (MemoryDesc(src.dims, src.dtype, one), MemoryDesc(case.out.dims, case.out.dtype, two), cost, name)
        for one, two, cost, name in _answers(free[0], filters.shape, free[1], how, parts.vectors, case.only)
    ]
    ways = []
    number = _zero_point(parts)
    for source, target, cost, name in costs:
        read = {**wanted(case, everything, target), **number}
        more = sum(moving(desc) for desc in read.values())
        ways.append(Way({**read, src.name: source}, (target,), cost + more, make, name))
    known = {one[0] for one in costs}
    for desc in case.formats(src):
        for _, target, _, name in costs[:1] if desc not in known else ():
            read = {**wanted(case, everything, target), **number, src.name: desc}
            cost = _cost(desc, filters.shape, target, how, parts.vectors) + sum(map(moving, read.values()))
            ways.append(Way(read, (target,), cost, make, name))
    return ways


def _zero_point(parts: Parts) -> dict[str, MemoryDesc]:
    """How a zero point that moves is read."""
    zero = parts.moving
    return {} if zero is None else {zero.name: row_major(zero.dims, zero.dtype)}


@kept("product of integers")
def _product_cost(src: MemoryDesc, weights: tuple[int, ...], dst: MemoryDesc, zeros: Zeros) -> float:
    """Seconds of a matrix product with packed weights."""
    filters, scale = MemoryDesc(weights, "s8", any_format), MemoryDesc((1,), "f32", "a")
    made = primitives.Matmul(
        src, filters, None, dst, scale=scale, src_zero_point=zeros[0], weights_zero_point=zeros[1]
    )
    return made._cost()[0]


@rule(MATMUL)
def product(case: Case) -> list[Way] | None:
    """All rows of a tensor of bytes by one constant matrix."""
    src, weights = case.inputs[:2]
    steps = chain_of(case)
    if src is None or weights is None or weights.data is None or src.data is not None or steps is None:
        return None
    if src.dtype not in BYTES or 0 in (*src.dims, *case.out.dims) or len(src.dims) < 2:
        return None
    if case.constant(2) is None or case.input(4) is not None or (steps and case.out.dtype != "f32"):
        return None
    matrix = weights.data
    k, n = matrix.shape
    rows = prod(src.dims[:-1])
    parts = Parts(case, matrix, (0,), False)
    flat = flattened(steps, case.out.dims, (rows, n))
    if flat is None:
        return None

    def make(site: Site) -> Value:
        value = site.reshaped(site.value(src), (rows, k))
        if as_rows(value.desc, (rows, k)) is None:
            value = site.sequence.reorder(value, row_major((rows, k), src.dtype))
        place, into = site.target(0, site.way.outputs[0])
        dst = under(place, (rows, n))
        if dst is None:  # a part of something, of which no layout says rows
            into, dst = None, under(site.way.outputs[0], (rows, n))
        assert dst is not None
        if into:
            into = {"dst": site.sequence.view(into["dst"], dst)}
        ops, _ = parts.post_ops(2, None)
        later, operands, added = finished(site, flat, dst, sums=not into)
        scale = MemoryDesc(parts.scale.shape, "f32", "a")
        bias = None if parts.bias is None else MemoryDesc((n,), "f32", "a")
        filters = MemoryDesc((k, n), "s8", any_format)
        made = primitives.Matmul(
            value.desc,
            filters,
            bias,
            dst,
            scale=scale,
            src_zero_point=parts.vectors[0],
            weights_zero_point=parts.vectors[1],
            post_ops=[*ops, *later],
        )
        result = site.add(made, value, *parts.given(site, matrix, n), *operands, into=into, **added)
        return site.sequence.view(result, site.dense(result, case.out.dims))

    ways = []
    for desc in dict.fromkeys((row_major(src.dims, src.dtype), *case.formats(src))):
        source = as_rows(desc, (rows, k))
        for target, dst in targets_of(case, steps, (rows, n)) if source is not None else ():
            assert source is not None
            read = {**wanted(case, steps, target), **_zero_point(parts)}
            cost = _product_cost(source, (k, n), dst, parts.vectors) + sum(map(moving, read.values()))
            ways.append(Way({**read, src.name: desc}, (target,), cost, make))
    return ways


@rule(AVERAGE)
def average(case: Case) -> Iterator[Way] | None:
    """A pooling of bytes into bytes."""
    src = case.inputs[0]
    if src is None or src.data is not None or src.dtype not in BYTES or 0 in src.dims:
        return None
    if not 3 <= len(src.dims) <= 5:
        return None
    a = case.attributes
    if a["kernel_shape"] is None:
        found: Any = "average_include_padding", src.dims[2:], None, 0, 1
    else:
        found = windows_of(case, "AveragePool")
    if found is None:
        return None
    algorithm, kernel, strides, pads, dilation = found
    factor, summand, zero = float(a["factor"]), float(a["summand"]), int(a["zero_point"])
    if zero % 2:  # ties go to the even number, which is another one once this is added
        scaled = [Function("linear", factor, summand), Function("round"), Function("linear", 1, zero)]
    else:
        scaled = [Function("linear", factor, summand + zero)]

    def build(desc: MemoryDesc, dst: MemoryDesc, _: list[PostOp]) -> tuple[Primitive, list[Any]]:
        made = primitives.Pooling(desc, algorithm, kernel, strides, pads, dilation, dst, post_ops=scaled)
        return made, []

    return following(case, src, (), build, dims=case.out.dims)


# -- between numbers and bytes ------------------------------------------------------------------------------


def _spread(data: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """A number, or one for each index of an axis, as it broadcasts."""
    return data.reshape(()) if data.size == 1 else data.reshape(-1, *(1,) * (rank - axis - 1))


def _constants(case: Case, x: Operand) -> tuple[Operand, Operand] | None:
    """Scale and zero point as f32 operands, both constant; None where they are of blocks, or move."""
    scale, zero = case.constant(1), case.constant(2)
    if scale is None or (zero is None and case.input(2) is not None) or case.attributes["block_size"]:
        return None
    if scale.dtype != np.float32:
        return None
    rank = len(x.dims)
    axis = int(case.attributes["axis"]) % max(rank, 1)
    if scale.size > 1 and (scale.ndim != 1 or scale.size != x.dims[axis]):
        return None
    real = np.zeros((), np.float32) if zero is None else zero.astype(np.float32)
    both = []
    for name, data in (("scale", scale), ("zero", real)):
        data = np.ascontiguousarray(_spread(data.astype(np.float32), axis, rank))
        both.append(Operand(f"{case.name}.{name}", data.shape, "f32", data.dtype, data))
    return both[0], both[1]


@rule("QuantizeLinear")
def quantised(case: Case) -> Iterable[Way] | None:
    """Numbers as bytes: divided by the scale, rounded, plus the zero point, saturated."""
    x = case.inputs[0]
    found = None if x is None else _constants(case, x)
    if x is None or found is None or x.dtype != "f32" or case.out.dtype not in BYTES or x.data is not None:
        return None
    if case.attributes["precision"] not in (0, 1):
        return None
    w = Writing("f32", "f32", "f32")
    scale, zero = _numbered(found)
    whole = w.apply("add", w.apply(Function("round"), w.apply("div", 0, scale)), zero)
    made = w.put("cast", case.out.dtype, whole)
    return _pointwise(case, w, made, x, found)


@rule("DequantizeLinear")
def dequantised(case: Case) -> Iterable[Way] | None:
    """Bytes as numbers: less the zero point, times the scale."""
    x = case.inputs[0]
    found = None if x is None else _constants(case, x)
    if x is None or found is None or x.dtype not in BYTES or case.out.dtype != "f32" or x.data is not None:
        return None
    w = Writing(x.dtype, "f32", "f32")
    scale, zero = _numbered(found)
    made = w.apply("mul", w.apply("sub", w.put("cast", "f32", 0), zero), scale)
    return _pointwise(case, w, made, x, found)


def _numbered(found: tuple[Operand, Operand]) -> tuple[int, int]:
    """The places of scale and zero point among the operands of an expression: those of tensors come first."""
    tensors = [one.scalar is None for one in found]
    return (2, 1) if tensors == [False, True] else (1, 2)


def _pointwise(
    case: Case, w: Writing, made: int, x: Operand, found: tuple[Operand, Operand]
) -> Iterable[Way] | None:
    expression: Expression = w.written()
    assert made == len(w.operands) + len(w.terms) - 1
    tensors = [one for one in found if one.scalar is None]
    return ways_of(case, expression, [x, *tensors], [one.scalar for one in found if one.scalar is not None])
