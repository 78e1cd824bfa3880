"""Views: other ways to index the same memory.

Each function takes a layout, or a descriptor or a tensor for its layout, and returns a layout over the *same*
buffer, or raises. Nothing is ever copied here, and nothing falls back to a copy in silence. Because a layout
may have several digits an axis, far more views exist than strides alone can express:

* **slice** with a start and a step: the offsets of the elements that are left are a table of one period of
  the blocks; if that table has digits again (:func:`relayout.layout.canonical.fit`), the slice is a view.
  Channels 4..8 of ``nChw16c`` are one, every 4th channel is one, channels 12..20 are one too (4 and 4),
  channels 3..40 are not.
* **merge** of neighbouring axes always works if the inner one has no padding: its digits simply are the lower
  digits of the merged axis, whatever their strides. So ``nhwc`` can merge n, c, h, w in *logical* order,
  which NumPy must copy for.
* **split** always works: the two new axes are fused (read as one number), and taken apart where a digit
  border allows it.
* **reshape** is merges, then splits.

Axes keep their roles where they stay what they are: permuted, sliced, dropped, repeated. An axis that was
inserted, merged or split has no meaning, and then none of the view's has.

A property test says it in one line: for every view, ``NumPy's operation on the logical array`` equals ``the
logical array of the view``.

Axis arguments count from 0; negative ones count from the end, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import gcd, prod
from typing import Concatenate, ParamSpec

from relayout.errors import LayoutError, counted
from relayout.layout.canonical import fit, merge, normal, split_ladder
from relayout.layout.digits import digit_sum
from relayout.layout.layout import (
    Digit,
    HasLayout,
    Layout,
    check_dims,
    layout_of,
    plain,
    spell_dims,
    whole_number,
    whole_numbers,
)

__all__ = [
    "broadcast_to",
    "merge_axes",
    "permute",
    "reshape",
    "select",
    "slice_axis",
    "split_axis",
    "squeeze",
    "submemory",
    "transpose",
    "unsqueeze",
]

LONGEST_PERIOD = 1 << 16  # elements of one period of blocks that a slice looks at one by one

P = ParamSpec("P")


def _of_layout(
    view: Callable[Concatenate[Layout, P], Layout],
) -> Callable[Concatenate[Layout | HasLayout, P], Layout]:
    """A view that also takes what has a layout."""

    @wraps(view)
    def of(layout: Layout | HasLayout, *args: P.args, **kwargs: P.kwargs) -> Layout:
        return view(layout if type(layout) is Layout else layout_of(layout), *args, **kwargs)

    return of  # type: ignore[return-value]  # its first argument has a name, too


@_of_layout
def permute(layout: Layout, axes: Sequence[int]) -> Layout:
    """Reorder the axes: axis k of the view is axis ``axes[k]`` of the layout (NumPy's ``transpose``).

    oneDNN's ``permute_axes`` takes the inverse, the new place of each axis; see ``MemoryDesc.permute_axes``.

    >>> permute(Layout((2, 3, 4), "abc"), (2, 0, 1)).strides
    (1, 12, 4)
    """
    order = tuple(axis_of(layout, a) for a in whole_numbers(axes, "axes"))
    if sorted(order) != list(range(layout.rank)):
        raise LayoutError(f"{order} is no permutation of the {layout.rank} axes of {layout}")
    place = {old: new for new, old in enumerate(order)}
    dims = tuple(layout.dims[a] for a in order)
    roles = None if layout.roles is None else tuple(layout.roles[a] for a in order)
    return _build(dims, [tuple(place[a] for a in term) for term in layout.terms], layout, roles)


@_of_layout
def transpose(layout: Layout, axis0: int = -2, axis1: int = -1) -> Layout:
    """Swap two axes, the last two unless others are named (PyTorch's ``transpose``).

    >>> transpose(Layout((2, 3, 4), "abc")).dims
    (2, 4, 3)
    """
    order = list(range(layout.rank))
    one, two = axis_of(layout, axis0), axis_of(layout, axis1)
    order[one], order[two] = order[two], order[one]
    return permute(layout, order)


@_of_layout
def slice_axis(
    layout: Layout, axis: int, start: int | None = None, stop: int | None = None, step: int | None = None
) -> Layout:
    """Keep the elements ``start:stop:step`` of an axis, as Python slices do, negative steps included.

    A slice that reaches the end keeps the padding behind it; any other gives it up.

    Raises
    ------
    LayoutError
        The offsets of what is left have no digits (channels 3..40 of ``nChw16c``), or the axis is fused with
        others.

    >>> view = slice_axis(Layout((1, 32, 2, 2), "nChw16c"), 1, 4, 8)
    >>> view.dims, view.strides, view.offset0
    ((1, 4, 2, 2), (128, 1, 32, 16), 4)
    """
    axis = axis_of(layout, axis)
    if step is not None and whole_number(step, "step") == 0:
        raise LayoutError(f"axis {axis} of {layout} can't be cut with step 0")
    try:
        first, last, stride = slice(start, stop, step).indices(layout.dims[axis])
    except TypeError:
        raise LayoutError(f"a slice is made of whole numbers, got {start!r}:{stop!r}:{step!r}") from None
    count = len(range(first, last, stride))
    return _cut(layout, axis, max(0, first), count, stride)


@_of_layout
def select(layout: Layout, axis: int, position: int) -> Layout:
    """Fix one index and drop its axis: NumPy's ``x[..., position, ...]``; negative ones count from the end.

    >>> select(Layout((2, 3, 4), "abc"), 1, -1).offset(1, 0)
    20
    """
    axis = axis_of(layout, axis)
    size = layout.dims[axis]
    where = whole_number(position, "index")
    if not -size <= where < size:
        raise LayoutError(f"index {where} of axis {axis} is out of bounds: {layout} has {size} there")
    return squeeze(_cut(layout, axis, where % size, 1, 1), axis)


@_of_layout
def submemory(layout: Layout, dims: Sequence[int], offsets: Sequence[int]) -> Layout:
    """The part of ``dims`` elements that starts at ``offsets``: oneDNN's sub-tensor, also of parts of blocks.

    >>> submemory(Layout((1, 64, 2, 2), "nChw16c"), (1, 16, 2, 2), (0, 32, 0, 0)).offset0
    128
    """
    sizes = check_dims(dims)
    starts = whole_numbers(offsets, "offsets")
    if not len(sizes) == len(starts) == layout.rank:
        raise LayoutError(
            f"a part of {layout} needs {layout.rank} dims and offsets, got {len(sizes)} and {len(starts)}"
        )
    for axis, (size, start, whole) in enumerate(zip(sizes, starts, layout.dims, strict=True)):
        if start < 0 or start + size > whole:
            raise LayoutError(
                f"axis {axis}: the part {start}..{start + size} does not lie within 0..{whole} of {layout}"
            )
    for axis in range(layout.rank):
        layout = _cut(layout, axis, starts[axis], sizes[axis], 1)
    return layout


@_of_layout
def split_axis(layout: Layout, axis: int, sizes: Sequence[int]) -> Layout:
    """Replace an axis by several whose sizes multiply to it, row-major. Always a view.

    >>> split_axis(Layout((2, 6), "ab"), 1, (2, 3)).strides
    (6, 3, 1)
    """
    axis = axis_of(layout, axis)
    parts = check_dims(sizes)
    if prod(parts) != layout.dims[axis] or not parts:
        raise LayoutError(
            f"axis {axis} of {layout} has size {layout.dims[axis]}; it can't be split into "
            f"{spell_dims(parts)}"
        )
    if 0 in layout.dims:
        return _dense((*layout.dims[:axis], *parts, *layout.dims[axis + 1 :]), layout.offset0)
    shift = len(parts) - 1
    terms = []
    for term in layout.terms:
        wide: list[int] = []
        for a in term:
            wide += range(a, a + shift + 1) if a == axis else [a + shift * (a > axis)]
        terms.append(tuple(wide))
    dims = layout.dims[:axis] + parts + layout.dims[axis + 1 :]
    return _unfused(_build(dims, terms, layout, None))


@_of_layout
def merge_axes(layout: Layout, first: int, last: int) -> Layout:
    """Replace the neighbouring axes ``first .. last`` (included) by one, read row-major.

    Raises
    ------
    LayoutError
        An inner axis has padding, so that the numbers of the merged axis would run through it; an axis is
        fused elsewhere; or ``first`` lies behind ``last``.

    >>> merge_axes(Layout((2, 3, 4, 5), "acdb"), 2, 3).strides
    (60, 1, 3)
    """
    first, last = axis_of(layout, first), axis_of(layout, last)
    if first > last:
        raise LayoutError(
            f"axes {first} .. {last} of {layout} can't be merged: the first lies behind the last"
        )
    if 0 in layout.dims:
        width = prod(layout.dims[first : last + 1])
        return _dense((*layout.dims[:first], width, *layout.dims[last + 1 :]), layout.offset0)
    merged = layout
    for axis in reversed(range(first, last)):
        merged = _merge_two(merged, axis)
    return layout if merged is layout else merged.with_roles(None)


@_of_layout
def squeeze(layout: Layout, axis: int | None = None) -> Layout:
    """Drop an axis of size 1 (None: all of them). Padding on it is given up, not moved.

    >>> squeeze(Layout((2, 1, 3), "aBc8b")).strides
    (24, 8)
    """
    if axis is None:
        for a in reversed(range(layout.rank)):
            if layout.dims[a] == 1:
                layout = squeeze(layout, a)
        return layout
    axis = axis_of(layout, axis)
    if layout.dims[axis] != 1:
        raise LayoutError(
            f"axis {axis} of {layout} has size {layout.dims[axis]}; only axes of size 1 can be dropped"
        )
    terms, ladders, padded = [], [], []
    for term, ladder, room in zip(layout.terms, layout.ladders, layout.padded, strict=True):
        left = tuple(a - (a > axis) for a in term if a != axis)
        if left:
            terms.append(left)
            ladders.append(ladder)
            padded.append(room)
    dims = layout.dims[:axis] + layout.dims[axis + 1 :]
    roles = None if layout.roles is None else layout.roles[:axis] + layout.roles[axis + 1 :]
    return _assemble(dims, terms, ladders, padded, layout, roles=roles)


@_of_layout
def unsqueeze(layout: Layout, axis: int) -> Layout:
    """Insert an axis of size 1 before ``axis`` (``axis = rank``: at the end; negative: as in PyTorch).

    Its stride is never used; it is set as PyTorch does, to what the axis right of it covers.

    >>> unsqueeze(Layout((2, 3), "ab"), 1).strides
    (3, 3, 1)
    """
    where = whole_number(axis, "axis")
    if not -layout.rank - 1 <= where <= layout.rank:
        raise LayoutError(f"a new axis of {layout} can stand at 0 .. {layout.rank}, not at {where}")
    where %= layout.rank + 1
    stride = 1
    for term, ladder in zip(layout.terms, layout.ladders, strict=True):
        if where in term:
            stride = ladder[0].stride * max(1, ladder[0].extent)
    terms = [tuple(a + (a >= where) for a in term) for term in layout.terms]
    at = sum(term[0] < where for term in terms)
    terms.insert(at, (where,))
    ladders, padded = list(layout.ladders), list(layout.padded)
    ladders.insert(at, (Digit(1, 1, stride),))
    padded.insert(at, 1)
    dims = (*layout.dims[:where], 1, *layout.dims[where:])
    return _assemble(dims, terms, ladders, padded, layout)


@_of_layout
def broadcast_to(layout: Layout, dims: Sequence[int]) -> Layout:
    """Repeat axes of size 1 (and new axes in front) without storing them again: stride 0, NumPy's rule.

    >>> broadcast_to(Layout((3, 1), "ab"), (2, 3, 4)).strides
    (0, 1, 0)
    """
    sizes = check_dims(dims)
    if len(sizes) < layout.rank:
        raise LayoutError(
            f"{layout} has {counted(layout.rank, 'axis')}; it can't be broadcast to the {len(sizes)} of "
            f"{spell_dims(sizes)}"
        )
    roles = layout.roles if layout.rank == len(sizes) else None
    while layout.rank < len(sizes):
        layout = unsqueeze(layout, 0)
    for axis, (size, target) in enumerate(zip(layout.dims, sizes, strict=True)):
        if size == target:
            continue
        if size != 1:
            raise LayoutError(
                f"axis {axis} of {layout} has size {size}; only 1 can be repeated to reach {target} of "
                f"{spell_dims(sizes)}"
            )
        layout = unsqueeze(squeeze(layout, axis), axis)
        k = layout.terms.index((axis,))
        ladders, padded = list(layout.ladders), list(layout.padded)
        ladders[k], padded[k] = (Digit(1, target, 0),), target
        grown = (*layout.dims[:axis], target, *layout.dims[axis + 1 :])
        layout = _assemble(grown, layout.terms, ladders, padded, layout, roles=roles)
    return layout


@_of_layout
def reshape(layout: Layout, dims: Sequence[int]) -> Layout:
    """Read the elements in row-major order under other sizes (NumPy's ``reshape``; one size may be -1).

    Raises
    ------
    LayoutError
        The number of elements differs, or the layout can't express it because of padding within (reorder
        first).

    >>> reshape(Layout((2, 3, 4), "acb"), (6, 4)).offset(5, 3)  # no strides could say this
    23
    """
    sizes = _complete(layout, dims)
    if sizes == layout.dims:
        return layout
    if layout.size == 0:
        return _dense(sizes, layout.offset0)
    for axis in reversed(range(layout.rank)):  # sizes of 1 carry nothing
        if layout.dims[axis] == 1:
            layout = squeeze(layout, axis)
    wanted = [size for size in sizes if size != 1]
    axis = 0
    for group, parts in _groups(list(layout.dims), wanted):
        layout = merge_axes(layout, axis, axis + group - 1)
        layout = split_axis(layout, axis, parts)
        axis += len(parts)
    for place, size in enumerate(sizes):
        if size == 1:
            layout = unsqueeze(layout, place)
    return layout.with_roles(None)  # what the new axes mean, nobody knows


# -- workings -----------------------------------------------------------------------------------------------


def axis_of(layout: Layout, axis: int) -> int:
    """An axis counted from 0, of one that may be counted from the end."""
    where = whole_number(axis, "axis")
    if not -layout.rank <= where < layout.rank:
        raise LayoutError(f"axis {where} does not exist: {layout} has {counted(layout.rank, 'axis')}")
    return where % layout.rank


def _assemble(
    dims: tuple[int, ...],
    terms: Sequence[tuple[int, ...]],
    ladders: Sequence[tuple[Digit, ...]],
    padded: Sequence[int],
    like: Layout,
    offset: int | None = None,
    roles: tuple[str, ...] | None = None,
) -> Layout:
    """Make a layout; its digits are listed by falling stride, which is the memory order of all that nests."""
    by_axis = sorted(range(len(terms)), key=lambda t: terms[t])
    terms = tuple(terms[t] for t in by_axis)
    ladders = tuple(ladders[t] for t in by_axis)
    order = sorted(
        ((t, level) for t, ladder in enumerate(ladders) for level in range(len(ladder))),
        key=lambda place: (
            place[1] > 0 and ladders[place[0]][place[1]].stride < 0,
            -abs(ladders[place[0]][place[1]].stride),
        ),
    )
    where = like.offset0 if offset is None else offset
    room = tuple(padded[t] for t in by_axis)
    return Layout._make(dims, terms, ladders, tuple(order), room, where, roles=roles)


def _build(
    dims: tuple[int, ...],
    terms: Sequence[tuple[int, ...]],
    like: Layout,
    roles: tuple[str, ...] | None,
) -> Layout:
    """The same digits under other axes; the order of writing is kept."""
    by_axis = sorted(range(len(terms)), key=lambda t: terms[t])
    place = {old: new for new, old in enumerate(by_axis)}
    return Layout._make(
        dims,
        tuple(terms[t] for t in by_axis),
        tuple(like.ladders[t] for t in by_axis),
        tuple((place[t], level) for t, level in like.order),
        tuple(like.padded[t] for t in by_axis),
        like.offset0,
        roles=roles,
    )


def _dense(dims: tuple[int, ...], offset: int, roles: tuple[str, ...] | None = None) -> Layout:
    """The row-major layout: what a view of nothing may as well be."""
    return Layout._dense(dims, plain(len(dims)).with_roles(roles), offset)


def _term_of(layout: Layout, axis: int) -> int:
    return next(t for t, term in enumerate(layout.terms) if axis in term)


def _cut(layout: Layout, axis: int, start: int, count: int, step: int) -> Layout:
    """Keep ``count`` elements of an axis, from ``start`` on, every ``step``-th."""
    size = layout.dims[axis]
    if (start, count, step) == (0, size, 1):
        return layout
    dims = (*layout.dims[:axis], count, *layout.dims[axis + 1 :])
    if count == 0:
        return _emptied(layout, axis, start)
    t = _term_of(layout, axis)
    term = layout.terms[t]
    if len(term) > 1 and 0 in layout.dims:
        return _dense(dims, layout.offset0, layout.roles)
    if len(term) > 1:
        layout = _unfused(layout)
        t = _term_of(layout, axis)
        term = layout.terms[t]
    if len(term) > 1:
        inner = prod(layout.dims[a] for a in term[1:])
        if axis != term[0] or step != 1:
            names = layout.axis_names()
            raise LayoutError(
                f"axis {axis} of {layout} is fused with the axes {' '.join(names[a] for a in term)}; only "
                "its first axis can be cut, with step 1. Reorder to a format that keeps them apart first"
            )
        start, number, whole = start * inner, count * inner, size * inner
    else:
        inner, number, whole = 1, count, size
    ladder, room = layout.ladders[t], layout.padded[t]
    kept = room - start if step == 1 and start + number == whole else number
    digits = _sliced(ladder, start, kept, step)
    if digits is None and kept != number:  # the padding behind does not fit, what is in front of it may
        kept = number
        digits = _sliced(ladder, start, kept, step)
    if digits is None and 0 in layout.dims:
        return _dense(dims, layout.offset0, layout.roles)
    if digits is None:
        raise LayoutError(
            f"elements {start}..{start + (count - 1) * step} (step {step}) of axis {axis} of {layout} are no "
            f"layout: its blocks of {ladder[0].weight} are cut at uneven places. Reorder first, or cut at "
            "multiples of a block"
        )
    ladders, padded = list(layout.ladders), list(layout.padded)
    ladders[t], padded[t] = digits, kept
    moved = layout.offset0 + digit_sum(ladder, start)
    if all(len(new) == len(old) for new, old in zip(ladders, layout.ladders, strict=True)):
        fields = (dims, layout.terms, tuple(ladders), layout.order, tuple(padded), moved)
        return Layout._make(*fields, roles=layout.roles)
    return _assemble(dims, layout.terms, ladders, padded, layout, moved, layout.roles)


def _emptied(layout: Layout, axis: int, start: int) -> Layout:
    """A cut with nothing in it: the digits stay, none of them is used."""
    dims = (*layout.dims[:axis], 0, *layout.dims[axis + 1 :])
    t = _term_of(layout, axis)
    padded = list(layout.padded)
    padded[t] = 0
    ladders = list(layout.ladders)
    ladders[t] = (Digit(ladders[t][0].weight, 0, ladders[t][0].stride), *ladders[t][1:])
    moved = layout.offset0 + (digit_sum(layout.ladders[t], start) if len(layout.terms[t]) == 1 else 0)
    fields = (dims, layout.terms, tuple(ladders), layout.order, tuple(padded), moved)
    return Layout._make(*fields, roles=layout.roles)


def _sliced(ladder: tuple[Digit, ...], start: int, count: int, step: int) -> tuple[Digit, ...] | None:
    """The digits of j -> f(start + j * step) - f(start) for j < count, or None."""
    weight, _, stride = ladder[0]
    if step == 1 and start % weight == 0:  # whole blocks: the digits stay, the first counts less far
        return (Digit(weight, -(-count // weight), stride), *ladder[1:])
    digits = _stepped(merge(ladder), start, count, step)
    return digits if digits is None else digits or (Digit(1, 1, stride),)


def _stepped(ladder: tuple[Digit, ...], start: int, count: int, step: int) -> tuple[Digit, ...] | None:
    """The same from the lowest digit up: it stays, counts within itself, or ends just as the next moves."""
    if count == 1:
        return ()
    *above, (_, extent, stride) = ladder
    first = start % extent
    if not above or 0 <= first + (count - 1) * step < extent:
        return (Digit(1, count, step * stride),)
    upper = tuple(Digit(weight // extent, length, jump) for weight, length, jump in above)
    if step % extent == 0:
        return _stepped(upper, start // extent, count, step // extent)
    run, uneven = divmod(extent, abs(step))
    if not uneven and (first if step > 0 else extent - 1 - first) < abs(step):
        carried = _stepped(upper, start // extent, -(-count // run), 1 if step > 0 else -1)
        if carried is None:
            return None
        return merge(
            (
                *(Digit(weight * run, length, jump) for weight, length, jump in carried),
                Digit(1, run, step * stride),
            )
        )
    return _tabulated(ladder, start, count, step)


def _tabulated(ladder: tuple[Digit, ...], start: int, count: int, step: int) -> tuple[Digit, ...] | None:
    """The same from a table of one period; None also where that is too long to look at."""
    weight, _, stride = ladder[0]
    period = weight // gcd(weight, abs(step))  # after so many steps the blocks begin anew
    within = min(count, period)
    if within > LONGEST_PERIOD:
        return None
    base = digit_sum(ladder, start)
    digits = fit([digit_sum(ladder, start + j * step) - base for j in range(within)])
    if count <= period:
        return digits
    if digits is not None and prod(d.extent for d in digits) == period:
        rise = step * period // weight * stride
        return merge((Digit(period, -(-count // period), rise), *digits))
    # The period is no border of digits; there may be others if the slice ends soon.
    return (
        fit([digit_sum(ladder, start + j * step) - base for j in range(count)])
        if count <= LONGEST_PERIOD
        else None
    )


def _merge_two(layout: Layout, axis: int) -> Layout:
    """Merge an axis with the next one."""
    if layout.dims[axis + 1] == 1:
        return squeeze(layout, axis + 1)
    loose = _unfused(layout) if len(layout.terms) < layout.rank else layout
    outer, inner = _term_of(layout, axis), _term_of(layout, axis + 1)
    dims = (*layout.dims[:axis], layout.dims[axis] * layout.dims[axis + 1], *layout.dims[axis + 2 :])

    def renumbered(term: Sequence[int]) -> tuple[int, ...]:
        return tuple(a - (a > axis) for a in term)

    terms, ladders, padded = [], [], []
    if outer == inner:
        term = layout.terms[outer]
        if term.index(axis + 1) != term.index(axis) + 1:
            if loose.terms != layout.terms:
                return _merge_two(loose, axis)
            raise LayoutError(f"axes {axis} and {axis + 1} of {layout} are fused in another order")
        for t, term in enumerate(layout.terms):
            terms.append(renumbered([a for a in term if a != axis + 1]))
            ladders.append(layout.ladders[t])
            padded.append(layout.padded[t])
        return _assemble(dims, terms, ladders, padded, layout)
    apart = layout.terms[outer][-1] != axis or layout.terms[inner][0] != axis + 1
    width = layout.term_size(inner)
    lower = normal(layout.ladders[inner], width)
    filled = prod(d.extent for d in lower)
    if apart or layout.padded[inner] != width or filled != width:
        if layout.dims[axis] == 1:
            return squeeze(layout, axis)
        if loose.terms != layout.terms:
            return _merge_two(loose, axis)
        if apart:
            raise LayoutError(
                f"axes {axis} and {axis + 1} of {layout} are fused with others; they can't be merged"
            )
        raise LayoutError(
            f"axis {axis + 1} of {layout} has {counted(layout.dims[axis + 1], 'element')} and room for "
            f"{max(filled, layout.padded[inner])}; "
            f"merged with axis {axis} the numbers would run through what lies behind them. Reorder to a "
            "format without padding first"
        )
    upper = layout.ladders[outer]
    joined = (*(Digit(d.weight * width, d.extent, d.stride) for d in upper), *lower)
    for t, term in enumerate(layout.terms):
        if t == outer:
            terms.append(renumbered([*term, *(a for a in layout.terms[inner] if a != axis + 1)]))
            ladders.append(merge(joined) or (Digit(1, 1, 1),))
            padded.append(layout.padded[outer] * width)
        elif t != inner:
            terms.append(renumbered(term))
            ladders.append(layout.ladders[t])
            padded.append(layout.padded[t])
    return _assemble(dims, terms, ladders, padded, layout)


def _unfused(layout: Layout) -> Layout:
    """Take fused axes apart where a digit border allows it; the others stay fused."""
    terms: list[tuple[int, ...]] = []
    ladders: list[tuple[Digit, ...]] = []
    padded: list[int] = []
    for t, term in enumerate(layout.terms):
        ladder, room = layout.ladders[t], layout.padded[t]
        axes = term
        taken = len(axes) - 1
        while taken > 0:  # as few of the last axes as the digits allow, again and again
            width = prod(layout.dims[a] for a in axes[taken:])
            cut = split_ladder(normal(ladder, room), width) if room and room % width == 0 else None
            if cut is not None:
                terms.append(axes[taken:])
                ladders.append(normal(cut[1], width) or (Digit(1, 1, 0),))
                padded.append(width)
                axes, ladder, room = axes[:taken], cut[0] or (Digit(1, 1, 0),), room // width
            taken -= 1
        terms.append(axes)
        ladders.append(ladder)
        padded.append(room)
    return _assemble(layout.dims, terms, ladders, padded, layout, roles=layout.roles)


def _complete(layout: Layout, dims: Sequence[int]) -> tuple[int, ...]:
    wanted = list(whole_numbers(dims, "dims"))
    if wanted.count(-1) == 1:
        known = prod(d for d in wanted if d != -1)
        if known and layout.size % known == 0:
            wanted[wanted.index(-1)] = layout.size // known
    sizes = check_dims(wanted)
    if prod(sizes) != layout.size:
        raise LayoutError(
            f"{layout} has {counted(layout.size, 'element')}; it can't be reshaped to {spell_dims(sizes)}, "
            f"which are {prod(sizes)}"
        )
    return sizes


def _groups(old: list[int], new: list[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Pair the shortest runs of old and new sizes (none is 1 or 0) with equal products: (old axes, new
    sizes).
    """
    groups = []
    i = j = 0
    while i < len(old):
        count, parts = 1, [new[j]]
        have, want = old[i], new[j]
        while have != want:
            if have < want:
                have *= old[i + count]
                count += 1
            else:
                parts.append(new[j + len(parts)])
                want *= parts[-1]
        groups.append((count, tuple(parts)))
        i += count
        j += len(parts)
    return groups
