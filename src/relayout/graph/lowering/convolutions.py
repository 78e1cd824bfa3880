"""Convolutions: with constant weights, and with weights that move as in training, with both gradients.

Constant weights are packed once, as the kernels like them. Those that move, and their gradients, are in the
format that the kernels like, which the planner sees: forward convolutions and gradients by the data may like
different ones. Weights of groups have an axis of groups for kernels, and none in graphs; where no layout says
that of a format, they come row-major and are packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout import primitives
from relayout.errors import LayoutError
from relayout.graph.lowering.case import Case, Operand, label, row_major, unfused
from relayout.graph.lowering.chains import Step, chain_of, finished, wanted
from relayout.graph.lowering.digits import permuted, renumbering
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.graph.operators.convolution import transposed_windows
from relayout.graph.operators.windows import slide
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.primitives.transposed import MOST_PHASES
from relayout.runtime.kept import kept

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.primitive import Primitive
    from relayout.primitives.values import Value

__all__ = ["RANK", "How", "grouped", "padding_of"]

Dims = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
RANK = 4  # axes of images; formats that a caller names are theirs


def padding_of(
    case: Case,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    sizes: Sequence[int] | None = None,
) -> Pads:
    """The padding in front of and behind each spatial axis, automatic padding resolved.

    ``sizes`` are those of the data, where it is not the first input.
    """
    src, a = case.inputs[0], case.attributes
    assert src is not None
    given = src.dims[2:] if sizes is None else sizes
    auto, ceil = a.get("auto_pad") or "NOTSET", int(a.get("ceil_mode", 0))
    found = slide(given, kernel, strides, dilations, a.get("pads"), auto, ceil)
    return tuple(zip(found.begin, found.end, strict=True))


class How(NamedTuple):
    """A convolution or a deconvolution."""

    kind: str
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Pads
    output_padding: tuple[int, ...] = ()
    """Of a deconvolution."""
    algorithm: str = "direct"
    """Of a convolution; ``winograd`` where it is possible."""

    @classmethod
    def of(cls, case: Case, kernel: Dims, sizes: Dims) -> How:
        """The convolution of a node, by the spatial sizes of its filters and of its data."""
        strides, dilation = _steps(case, len(kernel))
        pads = padding_of(case, kernel, strides, dilation, sizes)
        return cls("Convolution", strides, dilation, pads, algorithm=case.algorithm)

    @property
    def has_kernels(self) -> bool:
        """Whether there are kernels for so many axes, and for such padding."""
        return 1 <= len(self.padding) <= 3 and all(n >= 0 for pair in self.padding for n in pair)

    def made(self, *given: MemoryDesc | None, post_ops: Sequence[Any] = (), **others: Any) -> Any:
        """The primitive for source, weights, bias and destination, and what else it takes by name."""
        more = {"output_padding": self.output_padding} if self.output_padding else {}
        make = partial(
            getattr(primitives, self.kind),
            *given,
            strides=self.strides,
            dilation=self.dilation,
            padding=self.padding,
            post_ops=post_ops,
            **more,
            **others,
        )
        if self.algorithm == "winograd":
            with suppress(LayoutError):
                return make(algorithm=self.algorithm)
        return make(algorithm=self.algorithm) if self.algorithm == "auto" else make()


def _steps(case: Case, spatial: int) -> tuple[Dims, Dims]:
    """Strides and dilations."""
    strides, dilation = (
        numbers(case.attributes.get(name) or (1,) * spatial) for name in ("strides", "dilations")
    )
    return strides, dilation


def grouped(weights: Dims, groups: int) -> Dims:
    """The dims of weights as kernels take them: with an axis of groups, if there are several."""
    return (groups, weights[0] // groups, *weights[1:]) if groups > 1 else weights


@kept("convolution")
def _answers(
    src: tuple[int, ...], weights: tuple[int, ...], dtype: str, how: How, only: str | None
) -> list[tuple[str, str, float, str]]:
    """The formats of source and destination that a convolution offers, as tags, and what it costs in them."""
    source, filters = (MemoryDesc(dims, dtype, any_format) for dims in (src, weights))
    made = how.made(source, filters)
    if only is not None and len(src) == RANK:
        source = MemoryDesc(src, dtype, only)
        target = MemoryDesc(made.dst.dims, dtype, only)
        made = how.made(source, filters, None, target)
    found = []
    for one in made.candidates():
        tags = one.formats["src"].tag, one.formats["dst"].tag
        if None not in tags:
            found.append((str(tags[0]), str(tags[1]), one.cost, one.schedule))
    return found


# -- constant weights ---------------------------------------------------------------------------------------


@rule("Conv")
def convolution(case: Case) -> list[Way] | None:
    """A convolution with constant weights, and the chain behind it."""
    src, weights = case.inputs[:2]
    bias, steps = case.input(2), chain_of(case)
    if src is None or weights is None or steps is None or not case.floats:
        return None
    if weights.data is None:
        return _with_moving_weights(case, steps)
    if src.data is not None or 0 in src.dims or len(src.dims) < 3:
        return None
    how = How.of(case, weights.dims[2:], src.dims[2:])
    if not how.has_kernels or 0 in case.out.dims:
        return None
    groups = int(case.attributes["group"])
    filters = weights.data if groups == 1 else weights.data.reshape(grouped(weights.dims, groups))
    return _convolved(case, src, filters, bias, how, steps)


def _convolved(
    case: Case,
    src: Operand,
    filters: NDArray[Any],
    bias: Operand | None,
    how: How,
    steps: list[Step],
) -> list[Way]:
    several = filters.ndim > len(src.dims)  # groups

    def make(site: Site) -> Value:
        value = site.value(src)
        weights: Any = filters
        renumbered = None if several else renumbering(value.desc.layout, 1)
        if renumbered is not None:
            desc = MemoryDesc(src.dims, src.dtype, renumbered(value.desc.layout, 1))
            value, weights = site.sequence.view(value, desc), permuted(filters, renumbered, 1)
        dst, into = site.target(0, site.way.outputs[0])
        ops, operands, added = finished(site, steps, dst, sums=not into)
        made = how.made(
            value.desc,
            MemoryDesc(filters.shape, src.dtype, any_format),
            None if bias is None else MemoryDesc(bias.dims, "f32", "a"),
            dst,
            post_ops=ops,
        )
        given = [weights] if bias is None else [weights, site.wide(bias)]
        return site.add(made, value, *given, *operands, into=into, **added)

    costs = [
        (MemoryDesc(src.dims, src.dtype, one), MemoryDesc(case.out.dims, case.out.dtype, two), cost, name)
        for one, two, cost, name in _answers(src.dims, filters.shape, src.dtype, how, case.only)
    ]
    ways = []
    for source, target, cost, name in costs:
        read = {**wanted(case, steps, target), **_vector(bias)}
        more = sum(moving(desc) for desc in read.values())
        ways.append(Way({**read, src.name: source}, (target,), cost + more, make, name))
    known = {one[0] for one in costs}
    for desc in case.formats(src):
        if desc in known:
            continue
        renumbered = None if several else renumbering(desc.layout, 1)
        alike = (
            desc if renumbered is None else label(MemoryDesc(src.dims, src.dtype, renumbered(desc.layout, 1)))
        )
        for source, target, cost, name in costs:
            read = {**wanted(case, steps, target), **_vector(bias), src.name: desc}
            if source == alike:
                more = sum(moving(desc) for desc in read.values())
                ways.append(Way(read, (target,), cost + more, make, name))
            elif how.algorithm != "winograd" and alike not in known and source == costs[0][0]:
                cost = _cost_as_it_comes(desc, filters.shape, target, how) + sum(map(moving, read.values()))
                ways.append(Way(read, (target,), cost, make, name))
    return ways


@kept("convolution as it comes")
def _cost_as_it_comes(src: MemoryDesc, weights: tuple[int, ...], dst: MemoryDesc, how: How) -> float:
    """Seconds of a convolution whose source has a format that no candidate has."""
    seconds: float = how.made(src, MemoryDesc(weights, src.dtype, any_format), None, dst)._cost()[0]
    return seconds


@rule("ConvTranspose")
def deconvolution(case: Case) -> list[Way] | None:
    """A transposed convolution with constant weights, and the chain behind it."""
    src, weights = case.inputs[:2]
    bias, steps = case.input(2), chain_of(case)
    if src is None or weights is None or weights.data is None or steps is None or not case.floats:
        return None
    if src.data is not None or 0 in (*src.dims, *case.out.dims):
        return None
    spatial, groups, kernel = len(src.dims) - 2, int(case.attributes["group"]), weights.dims[2:]
    strides, dilation = _steps(case, spatial)
    if not 1 <= spatial <= 3 or prod(strides) > MOST_PHASES:
        return None
    a = case.attributes
    fronts = transposed_windows(
        src.dims[2:],
        kernel,
        strides,
        dilation,
        a.get("pads"),
        a.get("auto_pad") or "NOTSET",
        a.get("output_padding"),
        a.get("output_shape"),
    ).begin
    if any(front < 0 for front in fronts):
        return None
    left = [  # of what lies behind the front
        (n - 1) * s + (k - 1) * d + 1 - front
        for n, s, k, d, front in zip(src.dims[2:], strides, kernel, dilation, fronts, strict=True)
    ]
    sizes = case.out.dims[2:]
    padding = tuple((front, max(0, n - size)) for front, n, size in zip(fronts, left, sizes, strict=True))
    more = tuple(max(0, size - n) for n, size in zip(left, sizes, strict=True))
    filters = weights.data.reshape(groups, weights.dims[0] // groups, *weights.dims[1:]).swapaxes(1, 2)
    how = How("Deconvolution", strides, dilation, padding, more)
    return _convolved(
        case, src, np.ascontiguousarray(filters if groups > 1 else filters[0]), bias, how, steps
    )


# -- weights that move --------------------------------------------------------------------------------------


class Geometry:
    """The convolution that a node is, or is a gradient of.

    Raises
    ------
    LayoutError
        No kernel does it.
    """

    def __init__(self, case: Case, src: Dims, weights: Dims, dtype: str) -> None:
        self.how = how = How.of(case, weights[2:], src[2:])
        if not how.has_kernels or 0 in (*src, *weights):
            raise LayoutError("no kernel does it")
        self.src, self.weights, self.dtype, self.only = src, weights, dtype, case.only
        self.filters = grouped(weights, int(case.attributes["group"]))
        pads = [n for side in zip(*how.padding, strict=True) for n in side]
        sizes = slide(src[2:], weights[2:], how.strides, how.dilation, pads)
        self.out = (src[0], weights[0], *sizes.counts)

    def offers(self, kind: str) -> list[Offer]:
        """The formats of a kind of primitive, one of :data:`KINDS`, and what it costs in them."""
        found = []
        known = _offers(kind, self.src, self.out, self.filters, self.dtype, self.how, self.only)
        for src, dst, weights, cost in known:
            found.append(
                Offer(
                    label(MemoryDesc(self.src, self.dtype, src)),
                    label(MemoryDesc(self.out, self.dtype, dst)),
                    self.flat(MemoryDesc(self.filters, self.dtype, weights)),
                    cost,
                )
            )
        return found

    def made(self, src: MemoryDesc, dst: MemoryDesc) -> primitives.Convolution:
        """The forward primitive for a source and a destination, or for their gradients."""
        made: primitives.Convolution = self.how.made(
            src, MemoryDesc(self.filters, self.dtype, any_format), None, dst
        )
        return made

    def flat(self, desc: MemoryDesc) -> MemoryDesc:
        """The format of weights or their gradients, as the graph has them; row-major, if nothing says it."""
        if desc.dims == self.weights:
            return label(desc)
        try:
            layout = unfused(views.reshape(desc.layout, self.weights))
            return label(MemoryDesc(self.weights, desc.dtype, layout))
        except LayoutError:
            return row_major(self.weights, desc.dtype.name)


KINDS = ("forward", "data", "weights")
"""A convolution and its two gradients."""


class Offer(NamedTuple):
    """Formats of images (or of their gradients) and of weights, and seconds."""

    src: MemoryDesc
    dst: MemoryDesc
    weights: MemoryDesc
    cost: float


@kept("convolution whose weights move")
def _offers(
    kind: str, src: Dims, out: Dims, filters: Dims, dtype: str, how: How, only: str | None
) -> list[tuple[str, str, str, float]]:
    """Formats as tags, and costs."""
    found: dict[tuple[str, str], tuple[str, str, str, float]] = {}
    for one, two, _, _ in _answers(src, filters, dtype, how, only):
        if (one, two) in found:
            continue
        source, target = MemoryDesc(src, dtype, one), MemoryDesc(out, dtype, two)
        forward = how.made(source, MemoryDesc(filters, dtype, any_format), None, target)
        made: Primitive = forward
        if kind == "data":
            made = primitives.ConvolutionBackwardData(forward, weights=any_format)
        elif kind == "weights":
            made = primitives.ConvolutionBackwardWeights(forward)
        weights = made.descs["diff_weights" if kind == "weights" else "weights"].tag
        if weights is not None:
            found[one, two] = one, two, weights, made._cost()[0]
    return list(found.values())


def _with_moving_weights(case: Case, steps: list[Step]) -> list[Way] | None:
    """A convolution whose weights move, and the chain behind it; its source may be a constant."""
    src, weights = case.inputs[:2]
    bias = case.input(2)
    assert src is not None
    assert weights is not None
    if 0 in case.out.dims or len(src.dims) < 3:
        return None
    try:
        geometry = Geometry(case, src.dims, weights.dims, src.dtype)
        known = geometry.offers("forward")
    except LayoutError:
        return None

    def make(source: MemoryDesc, site: Site) -> Value:
        value = site.value(src) if src.data is None else site.constant(src, source)
        filters = _filters(site, weights, geometry)
        dst, into = site.target(0, site.way.outputs[0])
        ops, operands, added = finished(site, steps, dst, sums=not into)
        each = None if bias is None else MemoryDesc(bias.dims, "f32", "a")
        made = geometry.how.made(
            value.desc, MemoryDesc(geometry.filters, geometry.dtype, any_format), each, dst, post_ops=ops
        )
        given = [value, filters] if bias is None else [value, filters, site.wide(bias)]
        return site.add(made, *given, *operands, into=into, **added)

    def way(one: Offer) -> Way:
        read = {**wanted(case, steps, one.dst), **_vector(bias)}
        cost = one.cost + sum(map(moving, read.values()))
        read |= {weights.name: one.weights} | ({src.name: one.src} if src.data is None else {})
        return Way(read, (one.dst,), cost, partial(make, one.src))

    return [way(one) for one in known]


def _vector(bias: Operand | None) -> Mapping[str, MemoryDesc]:
    """How a bias is read that is no constant."""
    if bias is None or bias.data is not None:
        return {}
    return {bias.name: row_major(bias.dims, bias.dtype)}


def _filters(site: Site, weights: Operand, geometry: Geometry) -> Value:
    """Weights as kernels take them, with an axis of groups if there are several."""
    value = site.value(weights)
    return value if geometry.filters == weights.dims else site.reshaped(value, geometry.filters)


@rule("relayout.ConvGradInput")
def by_data(case: Case) -> list[Way] | None:
    """The gradient of a convolution by its data, and what follows, such as another gradient of the same."""
    (dy, weights), steps = case.inputs[:2], chain_of(case)
    if dy is None or weights is None or steps is None or not case.floats:
        return None
    if dy.data is not None or weights.data is not None:
        return None
    try:
        geometry = Geometry(case, case.out.dims, weights.dims, dy.dtype)
        known = geometry.offers("data")
    except LayoutError:
        return None

    def make(site: Site) -> Value:
        value, filters = site.value(dy), _filters(site, weights, geometry)
        dst, into = site.target(0, site.way.outputs[0])
        ops, operands, added = finished(site, steps, dst, sums=not into)
        forward = geometry.made(dst, value.desc)
        made = primitives.ConvolutionBackwardData(forward, weights=any_format, post_ops=ops)
        place = {"diff_src": into["dst"]} if into else None
        held = {"diff_src": added["dst"]} if added else {}
        return site.add(made, filters, value, *operands, into=place, **held)

    def way(one: Offer) -> Way:
        read = wanted(case, steps, one.src)
        cost = one.cost + sum(map(moving, read.values()))
        return Way({**read, dy.name: one.dst, weights.name: one.weights}, (one.src,), cost, make)

    return [way(one) for one in known]


@rule("relayout.ConvGradWeights")
def by_weights(case: Case) -> list[Way] | None:
    """The gradient of a convolution by its weights, in the format that the forward pass likes."""
    dy, src = case.inputs[:2]
    if dy is None or src is None or dy.data is not None or src.data is not None or not case.floats:
        return None
    try:
        geometry = Geometry(case, src.dims, case.out.dims, dy.dtype)
        known = geometry.offers("weights")
    except LayoutError:
        return None

    def make(site: Site) -> Value:
        gradient, value = site.value(dy), site.value(src)
        made = primitives.ConvolutionBackwardWeights(geometry.made(value.desc, gradient.desc))
        found = site.add(made, src=value, diff_dst=gradient)
        wanted = site.way.outputs[0]
        if geometry.filters != case.out.dims:
            found = site.reshaped(found, case.out.dims)
        return site.sequence.reorder(found, wanted)

    return [Way({dy.name: one.dst, src.name: one.src}, (one.weights,), one.cost, make) for one in known]
