"""Products by weights of few bits: ``relayout.MatMulNBits``, with the chain behind it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from relayout import primitives
from relayout.graph.lowering.case import Case, row_major
from relayout.graph.lowering.chains import chain_of, finished, wanted
from relayout.graph.lowering.products import biased, flattened
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.graph.operators.blockwise import BLOCKWISE
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.runtime.kept import kept

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__: list[str] = []


@rule(BLOCKWISE)
def product(case: Case) -> list[Way] | None:
    """All rows of a tensor by constant weights, which stay packed."""
    src, weights, scale, points = (case.input(k) for k in range(4))
    steps = chain_of(case)
    if src is None or weights is None or scale is None or steps is None or src.data is not None:
        return None
    tables = [one for one in (weights, scale, points) if one is not None]
    if any(one.data is None for one in tables) or not case.floats_of(src, case.out):
        return None
    (n, k), rows = weights.dims, prod(src.dims[:-1])
    steps, bias = biased(steps, n)
    flat = flattened(steps, case.out.dims, (rows, n))
    if flat is None:
        return None
    block, bits = (int(case.attributes[name]) for name in ("block_size", "source_bits"))
    descs = (
        MemoryDesc((n, k), weights.dtype, any_format),
        MemoryDesc(scale.dims, scale.dtype, any_format),
        points is not None,
        None if bias is None else MemoryDesc((n,), "f32", any_format),
    )

    def make(site: Site) -> Value:
        value = site.reshaped(site.value(src), (rows, k))
        dst = row_major((rows, n), case.out.dtype)
        ops, operands, _ = finished(site, flat, dst)
        made = primitives.MatmulNBits(value.desc, *descs, dst, block=block, source_bits=bits, post_ops=ops)
        given = [one.data for one in tables]
        if points is not None and points.data is not None:
            given[2] = points.data.astype(np.uint8)
        result = site.add(made, value, *given, *([] if bias is None else [bias]), *operands)
        return site.sequence.view(result, site.dense(result, case.out.dims))

    source, target = row_major(src.dims, src.dtype), row_major(case.out.dims, case.out.dtype)
    read = {**wanted(case, steps, target), src.name: source}
    cost = _cost((rows, k), n, src.dtype, weights.dtype, scale.dtype, block) + sum(
        moving(row_major(s.operand.dims, s.operand.dtype)) for s in steps if s.operand is not None
    )
    return [Way(read, (target,), cost, make)]


@kept("matrix product of few bits")
def _cost(src: tuple[int, int], outputs: int, dtype: str, weights: str, scale: str, block: int) -> float:
    """Seconds of a product."""
    free = MemoryDesc((outputs, src[1]), weights, any_format)
    scales = MemoryDesc((outputs, -(-src[1] // block)), scale, any_format)
    return primitives.MatmulNBits(row_major(src, dtype), free, scales, block=block)._cost()[0]
