"""Products of integers with what becomes of them, and averages of bytes.

What an operator of :mod:`relayout.graph.operators.integers` does is an epilogue of its primitive;
:mod:`.requantizing` has the constants and the post-ops. Here are the rules: in which formats, at what cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from relayout import primitives
from relayout.graph.lowering.case import Case, row_major
from relayout.graph.lowering.chains import chain_of, finished, following, wanted
from relayout.graph.lowering.convolutions import RANK, How, grouped
from relayout.graph.lowering.products import as_rows, flattened, targets_of, under
from relayout.graph.lowering.requantizing import BYTES, Epilogue, Vectors, Zeros, vector_descs
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.graph.lowering.windows import windows_of
from relayout.graph.operators.integers import AVERAGE, CONV, MATMUL
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops.functions import Function
from relayout.ops.post_ops import PostOp
from relayout.runtime.kept import kept

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.primitive import Primitive
    from relayout.primitives.values import Value

__all__: list[str] = []


@kept("convolution of integers")
def _answers(
    src: MemoryDesc, weights: tuple[int, ...], dst: MemoryDesc, how: How, zeros: Zeros, only: str | None
) -> list[tuple[str, str, float, str]]:
    """The formats of source and destination, given without one, that a convolution offers, and its costs."""
    if only is not None and len(src.dims) == RANK:
        src, dst = (MemoryDesc(desc.dims, desc.dtype, only) for desc in (src, dst))
    filters = MemoryDesc(weights, "s8", any_format)
    found = []
    for one in how.made(src, filters, dst=dst, **vector_descs(zeros)).candidates():
        tags = one.formats["src"].tag, one.formats["dst"].tag
        if None not in tags:
            found.append((str(tags[0]), str(tags[1]), one.cost, one.schedule))
    return found


@kept("convolution of integers as it comes")
def _cost(src: MemoryDesc, weights: tuple[int, ...], dst: MemoryDesc, how: How, zeros: Zeros) -> float:
    """Seconds of a convolution whose source has a format that no candidate has."""
    filters = MemoryDesc(weights, "s8", any_format)
    seconds: float = how.made(src, filters, dst=dst, **vector_descs(zeros))._cost()[0]
    return seconds


@rule(CONV)
def convolution(case: Case) -> list[Way] | None:
    """A convolution of bytes with constant weights, and the chain behind it, if that is real."""
    src, weights = case.inputs[:2]
    steps = chain_of(case)
    if src is None or weights is None or weights.data is None or src.data is not None or steps is None:
        return None
    if src.dtype not in BYTES or 0 in (*src.dims, *case.out.dims) or len(src.dims) < 3:
        return None
    if case.constant(2) is None or (steps and case.out.dtype != "f32"):
        return None
    how = How.of(case, weights.dims[2:], src.dims[2:])
    if not how.has_kernels:
        return None
    groups, outputs, filters = int(case.attributes["group"]), weights.dims[0], weights.data
    vectors = Vectors.of(case, filters, tuple(range(1, filters.ndim)), any(map(any, how.padding)))
    epilogue = Epilogue.of(case)
    if groups > 1:
        filters = filters.reshape(grouped(weights.dims, groups))
    free = MemoryDesc(filters.shape, "s8", any_format)

    def make(site: Site) -> Value:
        value = site.value(src)
        dst, into = site.target(0, site.way.outputs[0])
        residual = None if epilogue.added is None else site.value(epilogue.added)
        ops, known = epilogue.post_ops(len(dst.dims), None if residual is None else residual.desc)
        operands = [residual if one is None else one for one in known]
        later, others, _ = finished(site, steps, dst)
        made = how.made(value.desc, free, dst=dst, post_ops=[*ops, *later], **vectors.descs(outputs))
        given = [filters, *vectors.values(site, outputs)]
        return site.add(made, value, *given, *operands, *others, into=into)

    source, target = (MemoryDesc(one.dims, one.dtype, any_format) for one in (src, case.out))
    costs = [
        (MemoryDesc(src.dims, src.dtype, one), MemoryDesc(case.out.dims, case.out.dtype, two), cost, name)
        for one, two, cost, name in _answers(source, filters.shape, target, how, vectors.zeros, case.only)
    ]
    everything = [*epilogue.steps, *steps]
    ways = []
    for source, target, cost, name in costs:
        read = {**wanted(case, everything, target), **vectors.read}
        more = sum(moving(desc) for desc in read.values())
        ways.append(Way({**read, src.name: source}, (target,), cost + more, make, name))
    known = {one[0] for one in costs}
    for desc in case.formats(src):
        for _, target, _, name in costs[:1] if desc not in known else ():
            read = {**wanted(case, everything, target), **vectors.read, src.name: desc}
            cost = _cost(desc, filters.shape, target, how, vectors.zeros) + sum(map(moving, read.values()))
            ways.append(Way(read, (target,), cost, make, name))
    return ways


@kept("product of integers")
def _product_cost(src: MemoryDesc, weights: tuple[int, ...], dst: MemoryDesc, zeros: Zeros) -> float:
    """Seconds of a matrix product with packed weights."""
    filters = MemoryDesc(weights, "s8", any_format)
    return primitives.Matmul(src, filters, dst=dst, **vector_descs(zeros))._cost()[0]


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
    vectors, epilogue = Vectors.of(case, matrix, (0,), False), Epilogue.of(case)
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
        ops, _ = epilogue.post_ops(2)
        later, operands, added = finished(site, flat, dst, sums=not into)
        filters = MemoryDesc((k, n), "s8", any_format)
        made = primitives.Matmul(value.desc, filters, dst=dst, post_ops=[*ops, *later], **vectors.descs(n))
        given = [matrix, *vectors.values(site, n)]
        result = site.add(made, value, *given, *operands, into=into, **added)
        return site.sequence.view(result, site.dense(result, case.out.dims))

    ways = []
    for desc in dict.fromkeys((row_major(src.dims, src.dtype), *case.formats(src))):
        source = as_rows(desc, (rows, k))
        for target, dst in targets_of(case, steps, (rows, n)) if source is not None else ():
            assert source is not None
            read = {**wanted(case, steps, target), **vectors.read}
            cost = _product_cost(source, (k, n), dst, vectors.zeros) + sum(map(moving, read.values()))
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
