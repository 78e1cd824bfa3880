"""Normalisations over rows and over groups of channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout import primitives
from relayout.graph.lowering.case import Case, Operand, row_major
from relayout.graph.lowering.chains import chain_of, following
from relayout.graph.lowering.ways import Way, rule
from relayout.layout.descriptor import MemoryDesc

if TYPE_CHECKING:
    from relayout.ops.post_ops import PostOp
    from relayout.primitives.primitive import Primitive

__all__: list[str] = []


@rule("LayerNormalization", "RMSNormalization")
def of_rows(case: Case) -> Iterator[Way] | None:
    """Over the last axes; factors and terms are constants."""
    rms, a = case.operator == "RMSNormalization", case.attributes
    src = case.inputs[0]
    if src is None or len([one for one in case.outputs if one.name]) > 1:
        return None
    rank = len(src.dims)
    count = rank - int(a["axis"]) % rank

    def made(desc: MemoryDesc, tables: list[Any], dst: MemoryDesc, ops: list[Any]) -> Primitive:
        return primitives.LayerNormalization(
            desc, tables[0], tables[1], dst, axes=count, epsilon=a["epsilon"], rms=rms, post_ops=ops
        )

    return _normalized(case, src, src.dims[rank - count :], made, rows=True)


@rule("InstanceNormalization", "GroupNormalization")
def of_groups(case: Case) -> Iterator[Way] | None:
    """Over groups of channels of each image."""
    src, a = case.inputs[0], case.attributes
    if src is None or not 3 <= len(src.dims) <= 5:
        return None
    channels = src.dims[1]
    groups = channels if case.operator == "InstanceNormalization" else int(a["num_groups"])

    def made(desc: MemoryDesc, tables: list[Any], dst: MemoryDesc, ops: list[Any]) -> Primitive:
        return primitives.GroupNormalization(
            desc, tables[0], tables[1], dst, groups=groups, epsilon=a["epsilon"], post_ops=ops
        )

    return _normalized(case, src, (channels,), made, rows=False)


def _normalized(
    case: Case, src: Operand, dims: tuple[int, ...], made: Any, rows: bool
) -> Iterator[Way] | None:
    """A way for each format that comes."""
    tables = [case.constant(1), case.constant(2)]
    given = [one for one in case.inputs[1:3] if one is not None]
    steps = chain_of(case)
    if src.data is not None or 0 in src.dims or steps is None or not case.floats_of(src, case.out):
        return None
    if any(one.data is None for one in given):
        return None
    arrays: list[NDArray[Any] | None] = [
        None if data is None else np.broadcast_to(data, dims).astype(np.float32) for data in tables
    ]

    def build(desc: MemoryDesc, dst: MemoryDesc, ops: list[PostOp]) -> tuple[Primitive, list[Any]]:
        descs = [None if data is None else row_major(data.shape, "f32") for data in arrays]
        return made(desc, descs, dst, ops), [data for data in arrays if data is not None]

    return following(
        case, src, steps, build, times=lambda desc: APART if rows and desc.strides[-1] != 1 else 1.0
    )


APART = 2.0  # times a copy: rows whose elements are apart
