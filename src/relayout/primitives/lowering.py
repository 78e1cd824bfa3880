"""From a primitive to a program: kernels compiled, buffers named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from relayout.errors import LayoutError
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.primitives.program import Program, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from relayout.primitives.kernels.geometry import Geometry
    from relayout.primitives.kernels.map import Body
    from relayout.primitives.kernels.nest import Nest
    from relayout.primitives.post_ops import PostOp

__all__ = ["Products", "elementwise", "joined", "products", "reorder_step", "weights_format"]


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
    whole: MemoryDesc | None = None
    """What ``dst`` is a view of; None: of nothing else."""


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

    Weights in a format that the tile can't read are reordered first, each time; padding of the destination
    that the nest does not write is zeroed first.
    """
    from relayout.codegen import threads
    from relayout.codegen.compile import Module, recalled
    from relayout.codegen.machine import host
    from relayout.primitives.kernels.arithmetic import arithmetic_of
    from relayout.primitives.kernels.convolution import ENTRY, module, rows_of
    from relayout.primitives.kernels.finish import Finishing
    from relayout.primitives.kernels.planning import clears, planned
    from relayout.reorder.plan import LOADED

    machine, many, target = host(), threads.count(), made.whole or made.dst
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
        0 if made.bias is None else made.bias.layout.offset0 * WORD,
        0 if made.scale is None else made.scale.layout.offset0 * WORD,
        geometry.outputs if made.repeats and geometry.groups > 1 else 0,
    )
    rows = rows_of(nest, src, dst, finishing)
    if rows is None:
        return None
    lost = prod(target.layout.padded) != prod(dst.layout.padded)  # views drop the padding of axes of size 1
    if lost or not clears(nest, dst):
        step = zeros_step(target, "dst")
        if step is None:
            return None
        steps.append(step)
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
    columns = max(
        n for n in range(1, LONG_ROW + 1) if g.pixels % n == 0 and (n % LANES == 0 or n <= SHORT_ROW)
    )
    size = (1, g.pixels // columns, columns)
    try:
        sides = [
            MemoryDesc(shape, desc.dtype, views.reshape(desc.layout, shape))
            for desc in (made.src, made.dst)
            for shape in ((*desc.dims[:2], *(1 for _ in range(spatial - 2)), *size[1:]),)
        ]
    except LayoutError:  # rows end in padding
        return made
    if any(len(term) > 1 for desc in sides for term in desc.layout.terms):  # or in holes, somewhere within
        return made
    return replace(made, geometry=g._replace(source=size, target=size), src=sides[0], dst=sides[1])


LONG_ROW = 256  # pixels
SHORT_ROW = 64
LANES = 16
WORD = 4  # bytes of a bias or a scale
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


def zeros_step(desc: MemoryDesc, target: str) -> Step | None:
    """A step that zeroes the padding of a tensor; None where there is no kernel for it."""
    from relayout.codegen.compile import Module, recalled
    from relayout.codegen.machine import host
    from relayout.reorder.kernels.choice import lowered
    from relayout.reorder.kernels.module import module
    from relayout.reorder.plan import LOADED
    from relayout.reorder.problem import nests

    found = nests(desc, desc)
    if found is None:
        return None
    parts = (part for nest in found for part in (nest.apart() if nest.fill else (nest,)))
    zeros = tuple(part for part in parts if part.zero)
    side = desc.dtype.bits, desc.layout._key()
    [kernel], _ = recalled(
        repr(("zeros", side)), LOADED, lambda: Module(*module(lowered(zeros), host(), False)), host()
    )
    return Step(kernel, target, target)


# -- element by element -------------------------------------------------------------------------------------


def elementwise(
    dst: MemoryDesc,
    operands: Mapping[str, MemoryDesc],
    body: Body,
    numbers: Sequence[float] = (),
    post_ops: Sequence[PostOp] = (),
    target: str = "dst",
) -> Program | None:
    """The program of an operation that works element by element; None where there are no kernels for it.

    Parameters
    ----------
    dst : MemoryDesc
        What is written: the buffer ``target``.
    operands : mapping of str to MemoryDesc
        The operands of the body in their order, by the names of their buffers. Each has the rank of the
        destination, and 1 where it is repeated. What is laid out so that it would have to be gathered is
        reordered first.
    body : Body
        What is computed.
    numbers : sequence of float
        What it is given besides.
    post_ops : sequence
        What follows.
    """
    from relayout.codegen import threads
    from relayout.codegen.compile import Module, recalled
    from relayout.codegen.machine import host
    from relayout.primitives.kernels.bodies import followed_by
    from relayout.primitives.kernels.map import ENTRY, module, vectors_of
    from relayout.primitives.kernels.walk import unsuited, walks
    from relayout.primitives.post_ops import Sum
    from relayout.reorder.plan import LOADED

    body = followed_by(body, len(operands), post_ops)
    if any(isinstance(op, Sum) for op in post_ops):
        operands = {**operands, target: dst}
    machine = host()
    steps: list[Step] = []
    scratch: dict[str, int] = {}
    names, given = list(operands), list(operands.values())
    for k in unsuited(dst, [_repeated(desc, dst) for desc in given], body.keeps_zero):
        source, moved = _like(given[k], dst)
        name = f"{names[k]} as {target}"
        step = reorder_step(source, moved, names[k], name)
        if step is None:
            return None
        steps.append(step)
        scratch[name] = max(moved.required_bytes, moved.nbytes)
        names[k], given[k] = name, moved
    repeated = [_repeated(desc, dst) for desc in given]
    kinds = [desc.dtype for desc in given]
    sides = [(desc.dtype.name, desc.layout._key()) for desc in (dst, *repeated)]

    def made() -> Module:
        found = walks(dst, repeated, body.keeps_zero, vectors_of(machine, dst.dtype, kinds, body.cheap))
        if found is None:
            return Module("", [])
        return Module(module(found, dst.dtype, kinds, len(numbers), body, machine), [ENTRY])

    kernels, _ = recalled(repr(("map", sides, body.name, len(numbers))), LOADED, made, machine)
    if not kernels:
        return None
    constants: dict[str, NDArray[np.uint8]] = {}
    if numbers:
        names.append(f"numbers of {target}")
        constants[names[-1]] = np.array(numbers, np.float32).view(np.uint8)
    size = sum(desc.nbytes for desc in (dst, *given))
    parts = threads.count() * (PARTS if size > EVEN else 1) if size >= threads.SHARED else 1
    shared = parts > 1 and machine.shares(size)
    steps.append(Step(kernels[0], target, target, tuple(names) or target, parts, shared))
    return Program(tuple(steps), scratch, constants)


EVEN = 1 << 24  # bytes of all operands up to which threads have one share each
PARTS = 4  # shares of every thread beyond that: one that is held up leaves its later ones to others


def joined(*programs: Program | None) -> Program | None:
    """One program after the other; None if one of them is."""
    steps: list[Step] = []
    scratch: dict[str, int] = {}
    constants: dict[str, NDArray[np.uint8]] = {}
    for program in programs:
        if program is None:
            return None
        steps += program.steps
        scratch |= program.scratch
        constants |= program.constants
    return Program(tuple(steps), scratch, constants)


def _repeated(desc: MemoryDesc, dst: MemoryDesc) -> MemoryDesc:
    """An operand with the destination's dims: it does not move along axes where it has one element."""
    if desc.dims == dst.dims:
        return desc
    return MemoryDesc(dst.dims, desc.dtype, views.broadcast_to(desc.layout, dst.dims))


def _like(desc: MemoryDesc, dst: MemoryDesc) -> tuple[MemoryDesc, MemoryDesc]:
    """What to reorder from and to, so that an operand lies as the destination does.

    An axis along which it is repeated takes no room, unless the destination fuses that axis with others: then
    it is written out.
    """
    from relayout.primitives.kernels.walk import dense_like

    differ = {axis for axis, (a, b) in enumerate(zip(desc.dims, dst.dims, strict=True)) if a != b}
    if any(len(term) > 1 and differ & set(term) for term in dst.layout.terms):
        desc = _repeated(desc, dst)
    return desc, MemoryDesc(desc.dims, desc.dtype, dense_like(dst.layout, desc.dims))
