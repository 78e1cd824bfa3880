"""From a primitive to a program: kernels compiled, buffers named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.primitives.program import Program, Step

if TYPE_CHECKING:
    from relayout.primitives.kernels.geometry import Geometry
    from relayout.primitives.kernels.nest import Nest
    from relayout.primitives.post_ops import PostOp

__all__ = ["Products", "products", "reorder_step", "weights_format"]


@dataclass(frozen=True)
class Products:
    """A sum of products: convolutions, inner products and matrix products are all of this kind.

    Source and destination have the axes batch, channels and up to three spatial ones; the weights output and
    input channels and as many spatial axes, and in front of them the groups where ``grouped``.
    """

    geometry: Geometry
    src: MemoryDesc
    weights: MemoryDesc
    dst: MemoryDesc
    bias: MemoryDesc | None = None
    scale: MemoryDesc | None = None
    grouped: bool = False
    post_ops: tuple[PostOp, ...] = ()
    repeats: bool = False
    """Whether bias and scales are those of one group, and the same for all."""


def weights_format(made: Products) -> str | None:
    """The format of weights that the kernels for this host read fastest; None: there are no kernels."""
    from relayout.codegen.machine import host
    from relayout.primitives.kernels.arithmetic import arithmetic_of
    from relayout.primitives.kernels.weights import weights_text

    how = arithmetic_of(made.src.dtype, made.weights.dtype, made.geometry)
    if how is None:
        return None
    spatial = len(made.weights.dims) - 2 - made.grouped
    return weights_text(made.geometry, how, host(), spatial, made.grouped)


def products(made: Products) -> tuple[Nest, Program] | None:
    """The nest and the program of a sum of products; None where there are no kernels for it.

    Weights in a format that the tile can't read are reordered first, each time.
    """
    from relayout.codegen import threads
    from relayout.codegen.compile import Module, recalled
    from relayout.codegen.machine import host
    from relayout.primitives.kernels.arithmetic import arithmetic_of
    from relayout.primitives.kernels.convolution import ENTRY, module, rows_of
    from relayout.primitives.kernels.finish import Finishing
    from relayout.primitives.kernels.planning import planned
    from relayout.primitives.post_ops import Sum
    from relayout.reorder.plan import LOADED

    machine, many = host(), threads.count()
    made = _in_long_rows(made)
    src, dst, geometry = made.src, made.dst, made.geometry
    how = arithmetic_of(src.dtype, made.weights.dtype, geometry)
    if how is None or dst.dtype.name not in ("f32", "f16", "bf16", "s32", "s8", "u8"):
        return None
    steps: list[Step] = []
    scratch: dict[str, int] = {}
    weights = made.weights
    nest = planned(src, weights, dst, geometry, how, machine, many, made.grouped)
    if nest is None:
        text = weights_format(made)
        packed = MemoryDesc(weights.dims, weights.dtype, text)
        nest = planned(src, packed, dst, geometry, how, machine, many, made.grouped)
        step = reorder_step(weights, packed, "weights", "packed")
        if step is None or nest is None:
            return None
        steps.append(step)
        scratch["packed"] = max(packed.required_bytes, packed.nbytes)
        weights = packed
    if made.repeats:
        places = tuple(place._replace(channel=place.channel % geometry.outputs) for place in nest.places)
        nest = replace(nest, places=places)
    finishing = Finishing(
        dst.dtype.name,
        "" if made.bias is None else made.bias.dtype.name,
        0 if made.scale is None else made.scale.dims[0],
        made.post_ops,
    )
    rows = rows_of(nest, src, dst, any(isinstance(op, Sum) for op in made.post_ops))
    if rows is None:
        return None
    shape = (
        geometry,
        finishing,
        made.repeats,
        nest.rows,
        nest.columns,
        nest.chunks,
        nest.block,
        nest.kinds[0].vectors,
    )
    sides = [(desc.dtype.name, desc.layout._key()) for desc in (src, weights, dst)]
    kernels, _ = recalled(
        repr(("products", sides, shape)),
        LOADED,
        lambda: Module(module(nest, rows, finishing), [ENTRY]),
        machine,
    )
    parts = min(nest.tasks, 2 * many if nest.tasks >= 4 * many else many)
    if nest.slot:
        scratch["slots"] = parts * nest.slot
    packed_name = "packed" if "packed" in scratch else "weights"
    names = {
        "weights": packed_name,
        "bias": "bias" if made.bias is not None else "",
        "scale": "scale" if made.scale is not None else "",
        "scratch": "slots" if nest.slot else "",
        "other": "",
    }
    operands = tuple(name or packed_name for name in names.values())
    shared = parts > 1 and geometry.flops >= WORTH
    steps.append(Step(kernels[0], "src", "dst", operands, parts, shared))
    return nest, Program(tuple(steps), scratch)


def _in_long_rows(made: Products) -> Products:
    """A filter of one tap sees no neighbours: the pixels of an image may as well lie in other rows.

    Rows of some hundred pixels are gathered and scattered faster than those of 7 or 56, which are no whole
    cache lines.
    """
    g, spatial = made.geometry, len(made.src.dims) - 2
    one = g.taps == 1 and set(g.strides) == {1} and not any(g.padding) and g.source == g.target
    if not one or spatial < 2 or g.pixels == 1:
        return made
    columns = max(n for n in range(1, LONG_ROW + 1) if g.pixels % n == 0 and (n % LANES == 0 or n <= SHORT_ROW))
    size = (1, g.pixels // columns, columns)
    sides = [
        MemoryDesc(shape, desc.dtype, views.reshape(desc.layout, shape))
        for desc in (made.src, made.dst)
        for shape in ((*desc.dims[:2], *(1 for _ in range(spatial - 2)), *size[1:]),)
    ]
    return replace(made, geometry=g._replace(source=size, target=size), src=sides[0], dst=sides[1])


LONG_ROW = 256  # pixels
SHORT_ROW = 64
LANES = 16
WORTH = 1 << 21  # operations from which on waking threads pays: some tens of microseconds


def reorder_step(src: MemoryDesc, dst: MemoryDesc, source: str, target: str) -> Step | None:
    """A reorder as a step; None where there is no kernel for it."""
    from relayout.codegen import threads
    from relayout.reorder.native import native

    made = native(src, dst)
    if made is None:
        return None
    parts = threads.count() if made._divides else 1
    return Step(made._kernel, source, target, (), parts, made._shares)
