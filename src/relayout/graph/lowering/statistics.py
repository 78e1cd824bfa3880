"""Normalisations that keep statistics for the backward pass, and their gradients.

A normalisation of training has more results than the data: mean and variance, and the mask of a ReLU behind
it, in one byte for each element and in the data's format. The gradient reads them all again. Both run in
whatever format the data comes in; a gradient also in that of ``dy``, whichever the planner finds cheaper::

    y, mean, variance, mask  =  BatchNormalization(x, scale, shift)                     2 passes over x
    dx, dscale, dshift       =  BatchNormalizationBackward(x, dy, mean, variance, ...)  2 passes over x and dy

The first pass adds up what the second needs of the whole channel, row or group. Statistics are vectors in f32
and row-major, so no format of the data matters to who updates running ones from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from relayout import primitives
from relayout.graph.lowering.case import FLOATS, Case, Operand, row_major
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.layout.descriptor import MemoryDesc

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.normalizing import Normalization
    from relayout.primitives.values import Value

__all__: list[str] = []


def _vector(operand: Operand) -> MemoryDesc:
    return row_major(operand.dims, operand.dtype)


REALS = frozenset(("f32", "bf16", "f16"))


@rule("relayout.BatchNormalizationTraining")
def batch_normalization_training(case: Case) -> Iterator[Way] | None:
    """In whatever format the data has."""
    src, scale, shift = case.inputs[:3]
    if src is None or scale is None or shift is None or 0 in src.dims or src.data is not None:
        return None
    if not {src.dtype, scale.dtype, shift.dtype} <= REALS:
        return None

    def make(site: Site) -> tuple[Value, ...]:
        value = site.value(src)
        made = _batch(case, value.desc, rectified)
        y, *rest = site.add_several(made, value, site.wide(scale), site.wide(shift))
        return y, *(site.sequence.reorder(one, _vector(scale)) for one in rest[:2]), *rest[2:]

    def ways() -> Iterator[Way]:
        vectors = {one.name: _vector(one) for one in (scale, shift) if one.data is None}
        for desc in case.formats(src):
            outputs = desc, _vector(scale), _vector(scale), *[_passed(desc)] * rectified
            yield Way({src.name: desc, **vectors}, outputs, 2 * moving(desc, desc), make)

    rectified = bool(case.attributes["relu"])
    return ways() if len(case.outputs) == 3 + rectified else None


def _passed(desc: MemoryDesc) -> MemoryDesc:
    """What says which elements a ReLU let pass."""
    return MemoryDesc(desc.dims, "u8", desc.layout)


def _batch(case: Case, desc: MemoryDesc, rectified: bool) -> primitives.BatchNormalization:
    return primitives.BatchNormalization(
        desc,
        epsilon=case.attributes["epsilon"],
        use_scale=True,
        use_shift=True,
        use_global_stats=False,
        fuse_relu=rectified,
        workspace=rectified,
    )


@rule("relayout.BatchNormalizationGrad")
def batch_normalization_grad(case: Case) -> Iterator[Way] | None:
    """In a format that the data or the gradient has."""
    dy, src, scale, mean, variance = case.inputs[:5]
    if dy is None or src is None or scale is None or mean is None or variance is None:
        return None
    vectors, passed = {one.name: one for one in (scale, mean, variance)}, case.input(5)
    if dy.data is not None or src.data is not None or src.dtype != dy.dtype or 0 in src.dims:
        return None
    if not {src.dtype, *(one.dtype for one in vectors.values())} <= REALS:
        return None

    def make(site: Site) -> tuple[Value, ...]:
        value, gradient = site.value(src), site.value(dy)
        forward = _batch(case, value.desc, passed is not None)
        made = primitives.BatchNormalizationBackward(forward, diff_dst=gradient.desc)
        named = {
            "src": value,
            "diff_dst": gradient,
            "mean": site.wide(mean),
            "variance": site.wide(variance),
            "scale": site.wide(scale),
        }
        if passed is not None:
            named["workspace"] = site.value(passed)
        dx, *sums = site.add_several(made, **named)
        return dx, *(site.sequence.reorder(one, _vector(scale)) for one in sums)

    def ways() -> Iterator[Way]:
        read = {name: _vector(one) for name, one in vectors.items() if one.data is None}
        for desc in dict.fromkeys((*case.formats(src), *case.formats(dy))):
            outputs = (desc, *(_vector(scale) for _ in case.outputs[1:]))
            masks = {} if passed is None else {passed.name: _passed(desc)}
            given = {src.name: desc, dy.name: desc, **masks, **read}
            yield Way(given, outputs, 2 * moving(desc, desc, desc), make)

    return ways() if len(case.outputs) == 3 else None


# -- layers and groups --------------------------------------------------------------------------------------

APART = 2.0  # times a copy: rows whose elements are apart


def _forward(case: Case, desc: MemoryDesc, tables: tuple[Operand, ...], bias: bool) -> Normalization:
    """The forward primitive of a node, or of what a node is the gradient of."""
    a, scale = case.attributes, _vector(tables[0])
    shift = scale if bias else None
    if "num_groups" in a:
        return primitives.GroupNormalization(
            desc, scale, shift, groups=int(a["num_groups"]), epsilon=a["epsilon"], statistics=True
        )
    count = len(desc.dims) - int(a["axis"])
    return primitives.LayerNormalization(
        desc, scale, shift, axes=count, epsilon=a["epsilon"], rms=bool(a["rms"]), statistics=True
    )


BACKWARD: Mapping[type[Any], type[Any]] = {
    primitives.LayerNormalization: primitives.LayerNormalizationBackward,
    primitives.GroupNormalization: primitives.GroupNormalizationBackward,
}


def _times(case: Case, desc: MemoryDesc) -> float:
    rows = "axis" in case.attributes
    return APART if rows and desc.layout.is_plain and desc.strides[-1] != 1 else 1.0


def _kept(tables: tuple[Operand, ...]) -> dict[str, MemoryDesc]:
    return {one.name: _vector(one) for one in tables if one.data is None}


@rule("relayout.LayerNormalizationTraining", "relayout.GroupNormalizationTraining")
def normalization_training(case: Case) -> Iterator[Way] | None:
    """In whatever format the data has."""
    src, *rest = case.inputs
    tables = tuple(one for one in rest if one is not None)
    if src is None or src.data is not None or 0 in src.dims or src.dtype not in FLOATS:
        return None
    if any(one.dtype not in FLOATS for one in tables) or (
        "num_groups" in case.attributes and len(src.dims) > 5
    ):
        return None

    def make(site: Site) -> tuple[Value, ...]:
        value = site.value(src)
        made = _forward(case, value.desc, tables, len(tables) > 1)
        found = dict(zip(made.outputs, site.add_several(made, value, *map(site.value, tables)), strict=True))
        return tuple(found.get(name, found["variance"]) for name in ("dst", "mean", "variance"))

    def ways() -> Iterator[Way]:
        for desc in case.formats(src):
            statistics = (row_major(one.dims, "f32") for one in case.outputs[1:])
            cost = _times(case, desc) * moving(desc, desc)
            yield Way({src.name: desc, **_kept(tables)}, (desc, *statistics), cost, make)

    return ways()


@rule("relayout.LayerNormalizationGrad", "relayout.GroupNormalizationGrad")
def normalization_grad(case: Case) -> Iterator[Way] | None:
    """In a format that the data or the gradient has."""
    dy, src, scale, *statistics = case.inputs
    if dy is None or src is None or scale is None or dy.data is not None or src.data is not None:
        return None
    if src.dtype not in FLOATS or src.dtype != dy.dtype or 0 in src.dims or scale.dtype not in FLOATS:
        return None
    if "num_groups" in case.attributes and len(src.dims) > 5:
        return None
    tables = (scale, *(one for one in statistics if one is not None))

    def make(site: Site) -> tuple[Value, ...]:
        value, gradient = site.value(src), site.value(dy)
        forward = _forward(case, value.desc, tables, len(case.outputs) > 2)
        made = BACKWARD[type(forward)](forward, diff_dst=gradient.desc)
        named = {"src": value, "diff_dst": gradient, "scale": site.value(scale)}
        for name, one in zip(("mean", "variance"), statistics, strict=True):
            if one is not None:
                named[name] = site.value(one)
        return site.add_several(made, **named)

    def ways() -> Iterator[Way]:
        for desc in dict.fromkeys((*case.formats(src), *case.formats(dy))):
            outputs = (desc, *(_vector(scale) for _ in case.outputs[1:]))
            cost = 2 * _times(case, desc) * moving(desc, desc, desc)
            yield Way({src.name: desc, dy.name: desc, **_kept(tables)}, outputs, cost, make)

    return ways()
