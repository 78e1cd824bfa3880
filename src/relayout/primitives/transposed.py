"""Transposed convolutions as convolutions: what deconvolution and the gradient of a convolution's source are.

Element x of the result meets the taps r of the filter for which ``x + padding - r * dilation`` is a multiple
of the stride; and the quotient is the element y of the source that it meets there. So all elements of the
result that are a stride apart meet the same taps, and are a convolution without strides, from the last of
these taps to the first::

    stride 2, 3 taps, padding 1        result      0   1   2   3   4   5 ...
                                       taps        1  2,0  1  2,0  1  2,0
    0, 2, 4 ...   one tap              source      0   :   1   :   2   :
    1, 3, 5 ...   two taps                            0,1     1,2     2,3

With several spatial axes there are as many of these *phases* as products of those of the axes. All are views:
of the result every second pixel, of the weights every second tap, backwards; and the weights of a gradient
with outputs and inputs exchanged. Nothing is moved, and the kernels are those of convolutions. Phases that
meet no taps (a filter of one tap with a stride of 2 has three of them) are written without a source.

Several convolutions are one program, and one contest. Depthwise ones, which wait for memory, would write
every line of the result, or every second one, several times over; their kernels do all phases at once
(:attr:`~relayout.kernels.conv.geometry.Geometry.gaps`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.kernels.conv.geometry import in_three
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import spell_dims
from relayout.ops.post_ops import BinaryOp, PostOp
from relayout.primitives.drafting import Draft, if_possible
from relayout.primitives.lowering import elementwise
from relayout.primitives.products import Products, Ways, WeightedSums, products, ways, weights_format
from relayout.primitives.program import Program
from relayout.primitives.trials import Compiled
from relayout.records import dataclass

if TYPE_CHECKING:
    from relayout.layout.layout import Layout
    from relayout.ops.expressions import Expression
    from relayout.targets.machine import Machine

__all__ = ["MOST_PHASES", "Phase", "Transposed", "exchanged", "phases"]

MOST_PHASES = 1024
"""Convolutions that a transposed one is taken apart into; that of more is left to its definition."""


class Phase(NamedTuple):
    """Every stride-th element of an axis of the result, as a convolution without strides."""

    first: int
    """The first of these elements,"""
    elements: int
    """and how many there are."""
    taps: tuple[int, int, int]
    """The first tap that they meet, how many, and from one to the next; they are taken from last to first."""
    start: int
    """The first element of the source that they meet,"""
    stop: int
    """and the one behind the last."""
    padding: int
    """Zeros in front of the source."""
    dilation: int
    """Elements of the source from tap to tap."""

    @property
    def is_empty(self) -> bool:
        """Whether no tap meets the source."""
        return self.stop <= self.start or not self.taps[1]


def phases(source: int, target: int, kernel: int, stride: int, dilation: int, padding: int) -> list[Phase]:
    """The phases of one axis; all elements of the result are in one of them.

    >>> for phase in phases(4, 8, 3, 2, 1, 1):
    ...     print(phase)
    Phase(first=0, elements=4, taps=(1, 1, 1), start=0, stop=4, padding=0, dilation=1)
    Phase(first=1, elements=4, taps=(0, 2, 2), start=0, stop=4, padding=0, dilation=1)
    """
    found = []
    common = gcd(dilation, stride)
    step = stride // common  # from tap to tap of a phase
    gap = dilation // common
    for first in range(min(stride, target)):
        count = len(range(first, target, stride))
        quotient, rest = divmod(first + padding, stride)
        met = next((r for r in range(min(step, kernel)) if r * dilation % stride == rest), kernel)
        taps = len(range(met, kernel, step))
        last = quotient + (rest - met * dilation) // stride  # what the first element meets by its first tap
        low = last - (taps - 1) * gap
        start, stop = max(0, low), min(source, last + count)
        padded = max(0, -low)
        if not taps:
            met, start, stop, padded = 0, 0, 0, 0
        found.append(Phase(first, count, (met, taps, step if taps > 1 else 1), start, stop, padded, gap))
    return found


class Piece(NamedTuple):
    """A part of the result."""

    cuts: tuple[tuple[int, int], ...]
    """For each spatial axis the first element and the step to the next, as far as it is cut."""
    phases: tuple[Phase, ...]
    """How it is computed; empty: no tap meets any of it."""


def _pieces(axes: list[list[Phase]], cuts: tuple[tuple[int, int], ...] = ()) -> Iterator[Piece]:
    """The parts of a result; where no tap meets a phase of an axis, it is not cut further."""
    if len(cuts) == len(axes):
        yield Piece(cuts, tuple(found[first] for found, (first, _) in zip(axes, cuts, strict=True)))
        return
    mine = axes[len(cuts)]
    for phase in mine:
        here = (*cuts, (phase.first, len(mine)))
        if phase.is_empty:
            yield Piece(here, ())
        else:
            yield from _pieces(axes, here)


@dataclass(frozen=True)
class Transposed(WeightedSums):
    """A transposed convolution.

    Strides, dilation and padding of the geometry are those of the convolution that this is the transpose of;
    all other sizes are those of this one.
    """

    def __str__(self) -> str:
        g = self.geometry
        words = [f"transposed: {self.src} * {self.weights} -> {self.dst}"]
        words += [f"{name} {spell_dims(getattr(g, name))}" for name in ("strides", "dilation", "padding")]
        words += [f"{name} {desc}" for name, desc in (("bias", self.bias), ("scale", self.scale)) if desc]
        return ", ".join([*words, *map(str, self.post_ops)])

    def fusable(self) -> int:
        """Those that the kernels of all phases can do."""
        found = _parts(self)
        return min((one.fusable() for one in found.products), default=len(self.post_ops)) if found else 0

    @locked
    def lowered(self, schedule: str = "") -> Compiled | None:
        """Its program by the schedules of all phases."""
        from relayout.runtime import threads
        from relayout.targets.machine import host

        return _lowered(self, schedule, host(), threads.count())

    @property
    def problem(self) -> str:
        """All that there is to say of it."""
        return str(self)

    def schedules(self) -> tuple[list[str], float]:
        """Those of all phases, the best of each first."""
        seconds = sum(found.candidates[0].cost for found in _ways(self) or ())
        return ["; ".join(one) for one in _schedules(self)], seconds

    def compiled(self, schedule: str) -> Compiled | None:
        """Its program by one of them."""
        return self.lowered(schedule)

    def _as_products(self, **changes: Any) -> Products:
        """A convolution with the same source, weights and all that comes along, but for some changes."""
        return Products(**(vars(self) | changes))

    @locked
    def estimate(self) -> tuple[float, str] | None:
        """The sum over all phases, with what is packed and filled besides."""
        from relayout.kernels.conv.cost import FACTS
        from relayout.reorder.predict import seconds_to_move
        from relayout.runtime.clock import cycles_per_second

        found, several = _parts(self), _ways(self)
        if found is None or several is None:
            return None
        cycles = sum(one.candidates[0].cost for one in several) * FACTS.clock
        moved = sum(one.dst.nbytes for one in found.fills) + 2 * found.packed
        seconds = cycles / cycles_per_second() + (seconds_to_move(moved) if moved else 0.0)
        return seconds, "; ".join(dict.fromkeys(str(one.candidates[0].plan) for one in several))


def exchanged(weights: MemoryDesc, grouped: bool) -> MemoryDesc:
    """Weights with output and input channels exchanged, as the gradient of the source reads them.

    >>> exchanged(MemoryDesc((16, 3, 5, 5), "f32", "oihw"), False).dims
    (3, 16, 5, 5)
    """
    first = int(grouped)
    if weights.layout is None:
        *front, o, i = weights.dims[: first + 2]
        return MemoryDesc((*front, i, o, *weights.dims[first + 2 :]), weights.dtype, any_format)
    layout = views.transpose(weights.layout, first, first + 1).with_roles(None)
    return weights.with_layout(layout)


# -- parts --------------------------------------------------------------------------------------------------


class Fill(NamedTuple):
    """A part of the result that no tap meets: what becomes of sums that are 0."""

    dst: MemoryDesc
    post_ops: tuple[PostOp, ...]


class Parts(NamedTuple):
    """All there is to do, one after the other."""

    products: tuple[Products, ...]
    fills: tuple[Fill, ...]
    weights: MemoryDesc | None
    """What the weights are reordered to first; None: the products read them as they come."""

    @property
    def packed(self) -> int:
        """Bytes of these."""
        return 0 if self.weights is None else self.weights.nbytes


@lru_cache(maxsize=512)
@locked
def _parts(made: Transposed) -> Parts | None:
    """The parts; None where formats can't be cut, or there are too many."""
    text = weights_format(made)
    orders = [made.weights]
    if text is not None:
        orders.append(MemoryDesc(made.weights.dims, made.weights.dtype, text))
    for weights in orders:
        one = _at_once(made, weights)
        if one is not None:
            return Parts((one,), (), weights if weights is not made.weights else None)
    g = made.geometry
    spatial = len(made.src.dims) - 2
    sizes = zip(g.source, g.target, g.kernel, g.strides, g.dilation, g.padding, strict=True)
    axes = [phases(*one) for one in [*sizes][3 - spatial :]]
    if prod(map(len, axes)) > MOST_PHASES:
        return None
    try:
        pieces = [(piece, _cut(made.dst, piece.cuts)) for piece in _pieces(axes)]
        fills = tuple(Fill(dst, _ops(made, piece.cuts)) for piece, dst in pieces if not piece.phases)
        computed = [(piece, dst) for piece, dst in pieces if piece.phases]
    except LayoutError:  # blocks of pixels
        return None
    found = _products(made, made.weights, computed)
    if found and (len(found) == 1 or not any(one is not None and one.packed for one in map(ways, found))):
        return Parts(found, fills, None)
    if text is None:
        return None
    again = _products(made, orders[-1], computed)
    return None if again is None else Parts(again, fills, orders[-1] if again else None)


def _at_once(made: Transposed, weights: MemoryDesc) -> Products | None:
    """All phases as one convolution whose source has gaps; None where there is no kernel for that."""
    g, axes = made.geometry, range(2 + made.grouped, len(weights.dims))
    if set(g.strides) == {1} or 0 in weights.dims:
        return None
    filters = weights.layout
    try:
        for axis in axes:
            filters = views.slice_axis(filters, axis, weights.dims[axis] - 1, None, -1)
    except LayoutError:  # blocks of taps
        return None
    reach = zip(g.kernel, g.dilation, g.padding, strict=True)
    d, h, w = ((taps - 1) * apart - front for taps, apart, front in reach)
    one = made._as_products(
        geometry=g._replace(strides=(1, 1, 1), padding=(d, h, w), gaps=g.strides),
        weights=weights.with_layout(filters),
    )
    found = ways(one)
    return None if found is None or found.packed else one


def _products(
    made: Transposed, weights: MemoryDesc, computed: list[tuple[Piece, MemoryDesc]]
) -> tuple[Products, ...] | None:
    """The convolutions that are the phases; None where formats can't be cut."""
    try:
        return tuple(_phase(made, weights, piece, dst) for piece, dst in computed)
    except LayoutError:
        return None


def _phase(made: Transposed, weights: MemoryDesc, piece: Piece, dst: MemoryDesc) -> Products:
    source, filters = made.src.layout, weights.layout
    for axis, one in enumerate(piece.phases):
        source = views.slice_axis(source, 2 + axis, one.start, one.stop)
        first, count, step = one.taps
        last = first + (count - 1) * step
        end = first - step if first >= step else None
        filters = views.slice_axis(filters, 2 + made.grouped + axis, last, end, -step)
    geometry = made.geometry._replace(
        source=in_three([one.stop - one.start for one in piece.phases]),
        target=in_three([one.elements for one in piece.phases]),
        kernel=in_three([one.taps[1] for one in piece.phases]),
        strides=(1, 1, 1),
        dilation=in_three([one.dilation for one in piece.phases]),
        padding=in_three([one.padding for one in piece.phases], 0),
    )
    return made._as_products(
        geometry=geometry,
        src=made.src.with_layout(source),
        weights=weights.with_layout(filters),
        dst=dst,
        post_ops=_ops(made, piece.cuts),
    )


def _cut(desc: MemoryDesc, cuts: tuple[tuple[int, int], ...]) -> MemoryDesc:
    """A part of a tensor; it has one element for all along axes of size 1."""
    layout: Layout = desc.layout
    for axis, (first, step) in enumerate(cuts, 2):
        if layout.dims[axis] > 1:
            layout = views.slice_axis(layout, axis, first, None, step)
    return desc if layout is desc.layout else desc.with_layout(layout)


def _ops(made: Transposed, cuts: tuple[tuple[int, int], ...]) -> tuple[PostOp, ...]:
    """The post-ops for a part of the result."""
    return tuple(
        BinaryOp(one.algorithm, _cut(one.desc, cuts)) if isinstance(one, BinaryOp) else one
        for one in made.post_ops
    )


# -- programs -----------------------------------------------------------------------------------------------


@locked
def _ways(made: Transposed) -> tuple[Ways, ...] | None:
    """The candidates of all phases; None where one of them has no kernel."""
    found = _parts(made)
    several = None if found is None else [ways(one) for one in found.products]
    return None if several is None or None in several else tuple(one for one in several if one is not None)


@locked
def _schedules(made: Transposed) -> list[tuple[str, ...]]:
    """The schedules of all phases that are tried together: the best of each, the second best of each, ..."""
    several = _ways(made)
    if not several:
        return []
    most = max(len(one.candidates) for one in several)
    return [
        tuple(str(one.candidates[min(k, len(one.candidates) - 1)]) for one in several) for k in range(most)
    ]


@lru_cache(maxsize=1024)
@locked
@if_possible
def _lowered(made: Transposed, schedule: str, machine: Machine, many: int) -> Compiled | None:
    """The program of all parts; ``machine`` and ``many`` are what it is made for."""
    found = _parts(made)
    if found is None:
        return None
    known = _schedules(made)
    chosen = next((one for one in known if "; ".join(one) == schedule), known[0] if known else ())
    if len(chosen) != len(found.products):
        return None
    parts = [products(one, text) for one, text in zip(found.products, chosen, strict=True)]
    draft, names = Draft(), {}
    rooms = zip(made.dst.dims[2:], made.dst.layout.padded_dims[2:], strict=True)
    if any(size < room for size, room in rooms):  # which no view has any more
        draft.zeros(made.dst, "dst")
    if found.weights is not None:
        names["weights"] = draft.read(made.weights, found.weights, "weights", "weights of all phases")
    for fill in found.fills:
        draft.append(_filled(made, fill))
    for one in parts:
        draft.append(None if one is None else one.program, names)
    words = [f"weights reordered to {found.weights.format} in each call"] if found.weights is not None else []
    words += [f"{len(parts)} phases"] * (len(parts) > 1)
    words += [f"{len(found.fills)} without taps"] * (len(found.fills) > 0)
    notes = "; ".join(dict.fromkeys(map(str, parts)))
    return Compiled(draft.program(", ".join([*words, notes])))


@locked
def _filled(made: Transposed, fill: Fill) -> Program | None:
    """The program that writes a part which no tap meets: bias, scales and post-ops of 0."""
    operands: dict[str, MemoryDesc] = {}
    for name, desc in (("scale", made.scale), ("bias", made.bias)):
        if desc is not None:
            layout = desc.layout
            for _ in fill.dst.dims[2:]:
                layout = views.unsqueeze(layout, len(layout.dims))
            layout = views.unsqueeze(layout, 0)
            operands[name] = desc.with_layout(layout)
    return elementwise(fill.dst, operands, _of_nothing(tuple(operands)), post_ops=fill.post_ops)


@lru_cache(maxsize=8)
@locked
def _of_nothing(names: tuple[str, ...]) -> Expression:
    """What becomes of a sum that is 0."""
    from relayout.ops.expressions import Writing

    written = Writing(*("f32" for _ in names))
    total = written.number("f32", 0.0)
    for k, name in enumerate(names):
        total = written.apply("mul" if name == "scale" else "add", total, k)
    return written.written()
