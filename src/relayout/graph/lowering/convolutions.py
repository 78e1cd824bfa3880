"""Convolutions whose weights move, as in training: forward, and both gradients.

Weights, and their gradients, are in the format that the kernels like, which the planner sees: forward
convolutions and gradients by the data may like different ones. Weights of groups have an axis of groups for
kernels, and none in graphs; where no layout says that of a format, they come row-major and are packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from relayout import primitives
from relayout.errors import LayoutError
from relayout.graph.lowering.case import Case, Operand, label, row_major, unfused
from relayout.graph.lowering.chains import Step, chain_of, finished, wanted
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.graph.operators.windows import slide
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.runtime.kept import kept

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.primitive import Primitive
    from relayout.primitives.values import Value

__all__ = ["RANK", "How", "answers", "padding_of", "with_moving_weights"]

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

    def made(self, *given: MemoryDesc | None, post_ops: Sequence[Any] = ()) -> Any:
        """The primitive for source, weights, bias and destination."""
        more = {"output_padding": self.output_padding} if self.output_padding else {}
        return getattr(primitives, self.kind)(
            *given,
            strides=self.strides,
            dilation=self.dilation,
            padding=self.padding,
            post_ops=post_ops,
            **more,
        )


@kept("convolution")
def answers(
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


class Geometry:
    """The convolution that a node is, or is a gradient of.

    Raises
    ------
    LayoutError
        No kernel does it.
    """

    def __init__(self, case: Case, src: Dims, weights: Dims, dtype: str) -> None:
        spatial, groups = len(src) - 2, int(case.attributes["group"])
        strides, dilation = (
            numbers(case.attributes.get(name) or (1,) * spatial) for name in ("strides", "dilations")
        )
        padding = padding_of(case, weights[2:], strides, dilation, src[2:])
        if not 1 <= spatial <= 3 or 0 in (*src, *weights) or any(n < 0 for pair in padding for n in pair):
            raise LayoutError("no kernel does it")
        self.src, self.weights, self.dtype, self.only = src, weights, dtype, case.only
        self.filters = (groups, weights[0] // groups, *weights[1:]) if groups > 1 else weights
        self.how = How("Convolution", strides, dilation, padding)
        sizes = slide(
            src[2:], weights[2:], strides, dilation, [n for pads in zip(*padding, strict=True) for n in pads]
        )
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
    for one, two, _, _ in answers(src, filters, dtype, how, only):
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


def with_moving_weights(case: Case, steps: list[Step]) -> list[Way] | None:
    """A convolution all of whose operands move, and the chain behind it."""
    src, weights = case.inputs[:2]
    bias = case.input(2)
    assert src is not None
    assert weights is not None
    if src.data is not None or 0 in case.out.dims or len(src.dims) < 3:
        return None
    try:
        geometry = Geometry(case, src.dims, weights.dims, src.dtype)
        known = geometry.offers("forward")
    except LayoutError:
        return None

    def make(site: Site) -> Value:
        value, filters = site.value(src), _filters(site, weights, geometry)
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
        return Way({**read, src.name: one.src, weights.name: one.weights}, (one.dst,), cost, make)

    if bias is not None and bias.data is not None:
        return None
    return [way(one) for one in known]


def _vector(operand: Operand | None) -> Mapping[str, MemoryDesc]:
    return {} if operand is None else {operand.name: row_major(operand.dims, operand.dtype)}


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
