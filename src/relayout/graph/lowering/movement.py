"""What is a layout and no work, and what moves elements without computing with them.

A transpose of a value is the same memory under another layout, and so are reshapes, slices and parts of
values, where the layout can say it. Where it can't, the value is made row-major first, which always can. A
concatenation is memory that those who make its parts write into (:mod:`.emission`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from relayout import primitives
from relayout.errors import LayoutError
from relayout.graph.lowering.case import FLOATS, Case, Operand, label, reshaped, row_major, spellings, unfused
from relayout.graph.lowering.expressions import expressed
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.layout.layout import Layout
    from relayout.primitives.values import Value

__all__ = ["enlarged", "picked", "sliced"]

See = Callable[["Layout"], "Layout"]


def viewed(case: Case, src: Operand, see: See) -> Iterator[Way]:
    """The result is a view of what is read: a way for each format in which that may come."""

    def make(site: Site) -> Value:
        return site.viewed(site.value(src), see)

    known = set()
    for desc in (*case.formats(src), row_major(src.dims, src.dtype)):
        try:
            target = label(MemoryDesc(case.out.dims, src.dtype, unfused(see(desc.layout))))
        except LayoutError:
            continue
        if desc not in known:
            known.add(desc)
            yield Way({src.name: desc}, (target,), 0.0, make, "view", view=True)


def _moves(case: Case) -> Operand | None:
    """The first input, if it is what moves, and nothing follows."""
    src = case.inputs[0]
    return src if src is not None and src.data is None and not case.chain and 0 not in src.dims else None


@rule("Identity", "Dropout")
def identity(case: Case) -> Iterator[Way] | None:
    """The same value."""
    src, training = _moves(case), case.input(2)
    if src is None or len([one for one in case.outputs if one.name]) > 1:
        return None
    if training is not None and (training.data is None or training.data.any()):
        return None
    return viewed(case, src, lambda layout: layout)


@rule("Transpose")
def transpose(case: Case) -> Iterator[Way] | None:
    """Other axes for the same memory."""
    src = _moves(case)
    if src is None:
        return None
    order = numbers(case.attributes["perm"] or range(len(src.dims))[::-1])
    return viewed(case, src, lambda layout: views.permute(layout, order))


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(case: Case) -> Iterator[Way] | None:
    """Other dims for the same elements in row-major order."""
    src = _moves(case)
    return None if src is None else viewed(case, src, lambda layout: reshaped(layout, case.out.dims))


@rule("Slice")
def slice_(case: Case) -> Iterator[Way] | None:
    """A part, with steps."""
    src = _moves(case)
    given = [case.constant(k) for k in range(1, 5)]
    if src is None or given[0] is None or given[1] is None or 0 in case.out.dims:
        return None
    if any(one is not None and one.data is None for one in case.inputs[3:]):
        return None
    starts, ends = numbers(given[0]), numbers(given[1])
    axes = numbers(given[2]) if given[2] is not None else tuple(range(len(starts)))
    steps = numbers(given[3]) if given[3] is not None else (1,) * len(starts)
    if any(step < 0 for step in steps):
        return None

    def see(layout: Layout) -> Layout:
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            layout = views.slice_axis(layout, axis, start, end, step)
        return layout

    return viewed(case, src, see)


def picked(case: Case) -> Iterator[Way] | None:
    """One element along an axis, or some with the same step: what picks them is a slice."""
    src, places = _moves(case), case.constant(1)
    if src is None or places is None or places.size == 0:
        return None
    axis = int(case.attributes["axis"]) % len(src.dims)
    length = src.dims[axis]
    if places.min() < (-length if case.attributes["from_end"] else 0) or places.max() >= length:
        return None  # what names nothing is refused where it is looked up
    found = [int(k) % length for k in places.reshape(-1)]
    step = found[1] - found[0] if len(found) > 1 else 1
    if step < 1 or found != list(range(found[0], found[0] + step * len(found), step)):
        return None

    def see(layout: Layout) -> Layout:
        layout = views.slice_axis(layout, axis, found[0], found[-1] + 1, step)
        return views.reshape(layout, case.out.dims) if places.ndim != 1 else layout

    return viewed(case, src, see)


@rule("Split")
def split(case: Case) -> list[Way] | None:
    """Parts, each a view."""
    src = _moves(case)
    if src is None or any(0 in one.dims for one in case.outputs):
        return None
    axis = int(case.attributes["axis"]) % len(src.dims)
    sees, start = [], 0
    for one in case.outputs:
        sees.append(sliced(axis, start, start + one.dims[axis]))
        start += one.dims[axis]

    def make(site: Site) -> tuple[Value, ...]:
        value = site.value(src)
        return tuple(site.viewed(value, see) for see in sees)

    ways = []
    for desc in (*case.formats(src), row_major(src.dims, src.dtype)):
        try:
            targets = tuple(
                label(MemoryDesc(one.dims, src.dtype, see(desc.layout)))
                for one, see in zip(case.outputs, sees, strict=True)
            )
        except LayoutError:
            continue
        ways.append(Way({src.name: desc}, targets, 0.0, make, "view", view=True))
    return ways


def sliced(axis: int, start: int, stop: int) -> See:
    """What sees a part along an axis."""
    return lambda layout: views.slice_axis(layout, axis, start, stop)


@rule("Concat")
def concat(case: Case) -> list[Way] | None:
    """Memory that has the inputs side by side; most of them are written there at once."""
    srcs = [one for one in case.inputs if one is not None]
    if case.chain or 0 in case.out.dims or any(one.dtype != case.out.dtype for one in srcs):
        return None
    if not case.moving:
        return None
    axis, out = int(case.attributes["axis"]) % len(case.out.dims), case.out
    formats = [desc for one in case.moving for desc in case.formats(one)]
    ways: list[Way] = []
    known = set()
    for format in (*(desc.tag for desc in formats), row_major(out.dims, out.dtype).tag):
        if format is None or format in known:
            continue
        known.add(format)
        try:
            target = MemoryDesc(out.dims, out.dtype, format)
            parts, start = {}, 0
            for one in srcs:
                parts[one.name] = label(MemoryDesc(one.dims, one.dtype, format))
                target.submemory(one.dims, [start if k == axis else 0 for k in range(len(out.dims))])
                start += one.dims[axis]
        except LayoutError:
            continue
        ways += _joined(case, srcs, label(target), parts)
    return ways


SEVERAL = 32  # ways to read the parts of a concatenation, for each of its formats


def _joined(
    case: Case, srcs: Sequence[Operand], target: MemoryDesc, parts: Mapping[str, MemoryDesc]
) -> Iterator[Way]:
    """A concatenation in a format. What is copied to its place is read in any format: it is one copy."""
    copied = [one for one in case.moving if one.name in case.copied]
    choices = [
        list(dict.fromkeys((parts[one.name], *case.formats(one)))) if one in copied else [parts[one.name]]
        for one in case.moving
    ]
    if prod(map(len, choices)) > SEVERAL:
        choices = [[parts[one.name]] for one in case.moving]

    def make(site: Site) -> Value:
        whole, pieces = site.whole()
        for one, piece in zip(srcs, pieces, strict=True):
            if not site.lies_in(one, piece):
                value = site.value(one)
                site.add(primitives.Reorder(value.desc, piece.desc), value, into={"dst": piece})
        return whole

    for formats in product(*choices):
        read = {one.name: desc for one, desc in zip(case.moving, formats, strict=True)}
        copies = sum(moving(read[one.name], parts[one.name]) for one in copied)
        yield Way(read, (target,), moving(target) / 8 + copies, make, "concat")


@rule("Expand")
def expand(case: Case) -> list[Way] | None:
    """Repeated elements, written out."""
    src = _moves(case)
    if src is None or 0 in case.out.dims:
        return None
    return [_copied(case, src, lambda layout: views.broadcast_to(layout, case.out.dims), case.out.dims)]


def _copied(case: Case, src: Operand, see: See, dims: tuple[int, ...]) -> Way:
    """A view of what is read, written out row-major under some dims, which are those of the result."""
    target = row_major(case.out.dims, src.dtype)

    def make(site: Site) -> Value:
        value = site.viewed(site.value(src), see)
        dst, into = site.target(0, target)
        if into and dims == dst.dims:
            return site.add(primitives.Reorder(value.desc, dst), value, into=into)
        found = site.add(primitives.Reorder(value.desc, row_major(dims, src.dtype)), value)
        return site.reshaped(found, case.out.dims)

    desc = row_major(src.dims, src.dtype)
    return Way({src.name: desc}, (target,), moving(desc, target), make, "copy")


@rule("DepthToSpace", "SpaceToDepth")
def depth_to_space(case: Case) -> list[Way] | None:
    """Channels to pixels and back: six axes in another order."""
    src = _moves(case)
    if src is None or len(src.dims) != 4:
        return None
    block, (n, c, h, w) = int(case.attributes["blocksize"]), src.dims
    if case.operator == "SpaceToDepth":
        apart = (n, c, h // block, block, w // block, block)
        order = (0, 1, 3, 5, 2, 4) if case.attributes.get("mode") == "CRD" else (0, 3, 5, 1, 2, 4)
    elif case.attributes["mode"] == "CRD":
        apart, order = (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
    else:
        apart, order = (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)

    def see(layout: Layout) -> Layout:
        return views.permute(views.reshape(layout, apart), order)

    return [_copied(case, src, see, tuple(apart[k] for k in order))]


def enlarged(case: Case) -> list[Way] | None:
    """Each element several times over, as nearest neighbours are for whole factors."""
    src, a = _moves(case), case.attributes
    if src is None or a["mode"] != "nearest" or a["antialias"] or 0 in case.out.dims:
        return None
    floor = a["coordinate_transformation_mode"] == "asymmetric" and a["nearest_mode"] == "floor"
    half = a["coordinate_transformation_mode"] == "half_pixel" and a["nearest_mode"].startswith("round")
    if not (floor or half) or any(m % n for n, m in zip(src.dims, case.out.dims, strict=True)):
        return None
    factors = [m // n for n, m in zip(src.dims, case.out.dims, strict=True)]
    apart = tuple(n for size in src.dims for n in (size, 1))
    wide = tuple(n for size, times in zip(src.dims, factors, strict=True) for n in (size, times))

    def see(layout: Layout) -> Layout:
        return views.broadcast_to(views.reshape(layout, apart), wide)

    if prod(factors) == 1:
        return list(viewed(case, src, lambda layout: layout))
    return [*_enlarged_as_it_comes(case, src, factors), _copied(case, src, see, wide)]


def _enlarged_as_it_comes(case: Case, src: Operand, factors: Sequence[int]) -> Iterator[Way]:
    """The same with the axes of the source in the order in which they lie in memory."""

    def make(site: Site) -> Value:
        value = site.value(src)
        dst, into = site.target(0, site.way.outputs[0])
        whole = into["dst"] if into else site.place(dst)
        rank = len(src.dims)
        narrow = tuple(n for size in src.dims for n in (size, 1))
        wide = tuple(n for size, times in zip(src.dims, factors, strict=True) for n in (size, times))
        see = site.viewed(value, lambda layout: views.broadcast_to(views.reshape(layout, narrow), wide))
        layout = whole.desc.layout
        for axis in range(rank):
            layout = views.split_axis(layout, 2 * axis, (src.dims[axis], factors[axis]))
        piece = site.sequence.view(whole, MemoryDesc(wide, dst.dtype, layout))
        site.add(primitives.Reorder(see.desc, piece.desc), see, into={"dst": piece})
        return whole

    for desc in case.formats(src):
        if desc.layout.is_plain and desc.tag:
            for one in spellings(desc):
                target = label(MemoryDesc(case.out.dims, src.dtype, one.tag))
                yield Way({src.name: desc}, (target,), moving(desc, target), make, "copy")


MIRRORED = 8  # elements on a side that are copied one by one


@rule("Pad")
def padded(case: Case) -> Iterator[Way] | None:
    """A place of the result's size: the source in the middle, and bands around it, axis by axis."""
    src, pads, number = _moves(case), case.constant(1), case.constant(2)
    mode, axes = case.attributes["mode"], case.constant(3)
    if src is None or pads is None or any(one is not None and one.data is None for one in case.inputs[1:]):
        return None
    rank = len(src.dims)
    around = [(0, 0)] * rank
    where = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    for k, axis in enumerate(where):
        around[axis] = (int(pads[k]), int(pads[k + len(pads) // 2]))
    most = max(map(max, around), default=0)
    if min(map(min, around), default=0) < 0 or 0 in src.dims or mode not in ("constant", "edge", "reflect"):
        return None
    if mode == "reflect" and (
        most > MIRRORED or any(max(pad) >= n for pad, n in zip(around, src.dims, strict=True))
    ):
        return None
    filled = np.zeros(1, src.kind) if number is None else np.asarray(number, src.kind).reshape(1)
    filled = filled.view(np.uint8) if filled.dtype == bool else filled

    def make(site: Site) -> Value:
        value = site.value(src)
        dst, into = site.target(0, site.way.outputs[0])
        whole = into["dst"] if into else site.place(dst)
        begin, size = [front for front, _ in around], list(src.dims)

        def piece(axis: int, start: int, count: int) -> Value:
            """A band along an axis, as wide along the others as is done already."""
            dims = (*size[:axis], count, *size[axis + 1 :])
            return site.sequence.view(
                whole, whole.desc.submemory(dims, (*begin[:axis], start, *begin[axis + 1 :]))
            )

        def copied(what: Value, to: Value) -> None:
            if what.desc.dims != to.desc.dims:
                what = site.viewed(what, lambda layout: views.broadcast_to(layout, to.desc.dims))
            site.add(primitives.Reorder(what.desc, to.desc), what, into={"dst": to})

        copied(value, piece(0, begin[0], size[0]))
        one = None if mode != "constant" else site.sequence.constant(filled.reshape((1,) * rank), "padding")
        for axis, (front, back) in enumerate(around):
            end = front + src.dims[axis]
            for start, count, border in ((0, front, front), (end, back, end - 1)):
                if not count:
                    continue
                if mode == "reflect":
                    for k in range(start, start + count):
                        copied(piece(axis, 2 * border - k, 1), piece(axis, k, 1))
                else:
                    copied(one or piece(axis, border, 1), piece(axis, start, count))
            begin[axis], size[axis] = 0, case.out.dims[axis]
        return whole

    def ways() -> Iterator[Way]:
        for desc in dict.fromkeys((*case.formats(src), row_major(src.dims, src.dtype))):
            for one in spellings(desc) if desc.tag else ():
                try:
                    target = label(MemoryDesc(case.out.dims, src.dtype, one.tag))
                    for axis, (front, _) in enumerate(around):
                        sliced(axis, front, front + src.dims[axis])(target.layout)
                except LayoutError:
                    continue
                yield Way({src.name: desc}, (target,), moving(desc, target), make, "padded")

    return ways()


@rule("Cast")
def cast(case: Case) -> Iterable[Way] | None:
    """From one type of elements to another, where kernels round as networks do."""
    src = _moves(case)
    if (
        src is None
        or src.dtype not in FLOATS
        or case.out.dtype not in FLOATS
        or case.out.kind == np.dtype(bool)
    ):
        return expressed(case)

    def make(site: Site) -> Value:
        value = site.value(src)
        return site.add(primitives.Reorder(value.desc, site.way.outputs[0]), value)

    def ways() -> Iterator[Way]:
        for desc in case.formats(src):
            target = MemoryDesc(desc.dims, case.out.dtype, desc.layout)
            yield Way({src.name: desc}, (target,), moving(desc, target), make, "cast")

    return ways()
