"""Hypothesis strategies for formats, layouts, descriptors and views; and what they mean, by brute force.

The first half draws. A test says how big the things it counts may be; whatever is drawn is small enough to be
enumerated, and odd enough to hurt:

===================  ===================================================================================
``shapes``           sizes, with 0 and 1 among them
``formats``          any digits: blocks of 1, several levels, digits in no order of significance, fused axes
``tag_formats``      those that oneDNN's tags can say: open digits first, then blocks in order
``layouts``          formats with sizes, explicit strides (dense, with gaps, broadcast), offsets, views
``plain_layouts``    strides only: permuted, with gaps, broadcast, backwards
``descriptors``      layouts that oneDNN's memory descriptor can hold, with a data type
``view_steps``       one operation, ready for a layout and for a NumPy array
``images``           layouts of batch, channels and spatial axes, as networks have them, and any others
``filters``          layouts of weights: every common packing, and any others
``written``          layouts that can be written to
===================  ===================================================================================

The second half is the definition, as slow and as plain as possible: the places of all elements
(``element_places``), of the room that a layout makes (``room_places``) and of its padding
(``padding_places``), each computed from nothing but the digits. The tests compare the library with these.

``@examples(50)`` sets how many cases a property tries; ``RELAYOUT_THOROUGH=20 pytest tests`` tries twenty
times as many, and ``make test`` three tenths, other ones each time. Combinations of parameters are chosen by
``covering.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from relayout import Format, Layout, LayoutError, MemoryDesc, views
from relayout.layout.format import letters

__all__ = [
    "DTYPES",
    "ViewStep",
    "blocks",
    "descriptors",
    "element_places",
    "examples",
    "filters",
    "formats",
    "has_clean_padding",
    "images",
    "ladders",
    "layouts",
    "padding_offsets",
    "padding_places",
    "plain_layouts",
    "room_places",
    "shapes",
    "tag_formats",
    "term_place",
    "tried",
    "view_steps",
    "written",
]

Places = NDArray[np.int64]

DTYPES = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "s64", "s32", "s16", "s8", "u8")
"""The data types of whole bytes; the 4-bit ones have a rule of their own."""

MOST_ROOM = 6000
"""No layout that is drawn makes room for more elements than this, so that all of them can be counted."""

BLOCKS = (1, 2, 3, 4, 5, 6, 8, 16)

THOROUGH = float(os.environ.get("RELAYOUT_THOROUGH", "1"))


def tried(count: int) -> int:
    """How many of so many cases are tried."""
    return max(5, round(count * THOROUGH))


def examples(count: int) -> settings:
    """Settings of a property that tries so many cases; time is no reason to fail."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=tried(count), deadline=None, suppress_health_check=slow)


# --- sizes and formats -------------------------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn, min_rank: int = 1, max_rank: int = 5, zeros: bool = False) -> tuple[int, ...]:
    """Sizes of at most 400 elements; 1 comes often, 0 only if asked for."""
    rank = draw(st.integers(min_rank, max_rank))
    dims: list[int] = []
    for _ in range(rank):
        most = max(1, min(17, 400 // prod(d or 1 for d in dims)))
        dims.append(draw(st.one_of(st.just(1), st.integers(0 if zeros else 1, most))))
    return tuple(draw(st.permutations(dims)))


def blocks(max_levels: int = 3) -> st.SearchStrategy[list[int]]:
    """The blocks of one axis, outermost first; mostly none or one, at times several, at times of 1."""
    return st.one_of(
        st.just([]),
        st.lists(st.sampled_from(BLOCKS), max_size=1),
        st.lists(st.sampled_from(BLOCKS[:5]), max_size=max_levels),
    )


@st.composite
def formats(draw: st.DrawFn, rank: int | None = None, fused: bool = True) -> Format:
    """Any order of any digits: nothing here needs to have a name."""
    count = draw(st.integers(1, 5)) if rank is None else rank
    names = letters(count)
    terms: list[tuple[str, ...]] = [(name,) for name in names]
    if fused and count > 1 and draw(st.integers(0, 3)) == 0:
        together = draw(st.permutations(names))[: draw(st.integers(2, min(3, count)))]
        terms = [tuple(together), *((name,) for name in names if name not in together)]
    digits: list[tuple[str | tuple[str, ...], int, int | None]] = []
    for term in terms:
        weight = 1
        for block in reversed(draw(blocks())):
            digits.append((term, weight, block))
            weight *= block
        digits.append((term, weight, None))
    return Format.from_digits(names, draw(st.permutations(digits)))


@st.composite
def tag_formats(draw: st.DrawFn, rank: int | None = None, max_rank: int = 5) -> Format:
    """Open digits in any order, then blocks; the blocks of one axis in order of significance."""
    count = draw(st.integers(1, max_rank)) if rank is None else rank
    names = letters(count)
    inner = draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from((2, 3, 4, 8, 16))), max_size=4))
    return Format.blocked(names, draw(st.permutations(names)), inner)


@st.composite
def ladders(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """The digits of one term, most significant first, as (weight, extent, stride), strides of any sign."""
    out = []
    weight = 1
    for extent in draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)):
        out.append((weight, extent, draw(st.integers(-6, 30))))
        weight *= extent
    return list(reversed(out))


# --- layouts -----------------------------------------------------------------------------------------------


@st.composite
def plain_layouts(draw: st.DrawFn, dims: tuple[int, ...] | None = None, overlapping: bool = True) -> Layout:
    """One stride an axis: any order of the axes, gaps, broadcast axes, axes that run backwards."""
    sizes = draw(shapes()) if dims is None else dims
    strides, start, room = [0] * len(sizes), 0, 1
    for axis in draw(st.permutations(range(len(sizes)))):
        room *= draw(st.sampled_from((1, 1, 1, 2))) if strides else 1
        room += draw(st.sampled_from((0, 0, 0, 1, 3)))
        strides[axis] = room
        room *= sizes[axis] or 1
        how = draw(st.integers(0, 9))
        if how == 0:
            strides[axis] = 0 if overlapping or sizes[axis] == 1 else strides[axis]
        elif how == 1:
            start += strides[axis] * max(0, sizes[axis] - 1)
            strides[axis] = -strides[axis]
        elif how == 2 and overlapping:
            strides[axis] = draw(st.integers(0, 5))
    return Layout(sizes, strides=strides, offset=start + draw(st.sampled_from((0, 0, 0, 7))))


@st.composite
def _formatted(draw: st.DrawFn, dims: tuple[int, ...], format: Format) -> Layout:
    """A format with sizes: dense, or with outer strides larger than that needs."""
    offset = draw(st.sampled_from((0, 0, 0, 5)))
    dense = Layout(dims, format, offset=offset)
    if prod(dense.padded) > MOST_ROOM:
        return Layout(dims, letters_text(len(dims)), offset=offset)
    how = draw(st.integers(0, 3))
    if how or any(len(term) > 1 for term in format.terms):
        return dense
    gap = draw(st.sampled_from((1, 2, 3)))
    strides = [stride * gap for stride in dense.strides]
    if dims and draw(st.integers(0, 4)) == 0:
        strides[draw(st.integers(0, len(dims) - 1))] = 0
    return Layout(dims, format, strides=strides, offset=offset)


def letters_text(rank: int) -> str:
    """The row-major tag of a rank."""
    return "".join(letters(rank))


@st.composite
def layouts(
    draw: st.DrawFn,
    dims: tuple[int, ...] | None = None,
    zeros: bool = False,
    fused: bool = True,
    max_views: int = 2,
) -> Layout:
    """Any layout: a format with sizes or plain strides; if ``dims`` are free, some views of it."""
    sizes = draw(shapes(zeros=zeros)) if dims is None else dims
    if draw(st.integers(0, 3)) == 0:
        layout = draw(plain_layouts(sizes))
    else:
        layout = draw(_formatted(sizes, draw(formats(len(sizes), fused=fused))))
    if dims is None:
        for _ in range(draw(st.integers(0, max_views))):
            layout = draw(view_steps(layout)).try_on(layout)
    return layout


@st.composite
def descriptors(draw: st.DrawFn) -> MemoryDesc:
    """A descriptor by tag or by strides, or a part of one, of any data type of whole bytes."""
    dims = draw(shapes())
    dtype = draw(st.sampled_from(DTYPES))
    if draw(st.booleans()):
        desc = MemoryDesc(dims, dtype, draw(tag_formats(len(dims))))
    else:
        strides, room = [0] * len(dims), 1
        for axis in draw(st.permutations(range(len(dims)))):
            strides[axis] = 0 if draw(st.integers(0, 9)) == 0 else room
            room = room * dims[axis] + draw(st.sampled_from((0, 0, 3)))
        desc = MemoryDesc(dims, dtype, strides=strides)
    if draw(st.integers(0, 3)) == 0:
        axis = draw(st.integers(0, len(dims) - 1))
        starts = [draw(st.integers(0, size - 1)) if a == axis else 0 for a, size in enumerate(dims)]
        try:
            return desc.submemory([size - start for size, start in zip(dims, starts, strict=True)], starts)
        except LayoutError:
            return desc  # the part cuts blocks at uneven places
    return desc


# --- views -------------------------------------------------------------------------------------------------


class ViewStep(NamedTuple):
    """One view operation: for a layout, and the same thing said to NumPy."""

    name: str
    on_layout: Callable[[Layout], Layout]
    on_array: Callable[[NDArray[Any]], NDArray[Any]]

    def try_on(self, layout: Layout) -> Layout:
        """The view, or the layout itself where no layout can express it."""
        try:
            return self.on_layout(layout)
        except LayoutError:
            return layout


@st.composite
def view_steps(draw: st.DrawFn, layout: Layout, only: tuple[str, ...] = ()) -> ViewStep:
    """An operation (one of ``only``) that NumPy can do on an array of these dims; a layout perhaps not."""
    kinds = ["unsqueeze", "broadcast_to", "reshape"]
    if layout.rank:
        kinds += ["permute", "transpose", "slice_axis", "slice_axis", "split_axis"]
    if layout.rank > 1:
        kinds += ["merge_axes"]
    if layout.rank and any(layout.dims):
        kinds += ["select"]
    if 1 in layout.dims:
        kinds += ["squeeze"]
    kind = draw(st.sampled_from([kind for kind in kinds if kind in only] if only else kinds))
    return draw(_STEPS[kind](layout))


def _step(operation: Callable[..., Layout], numpy: Callable[..., NDArray[Any]], *args: Any) -> ViewStep:
    text = f"{operation.__name__}({', '.join(map(repr, args))})"
    return ViewStep(text, lambda layout: operation(layout, *args), numpy)


@st.composite
def _permute(draw: st.DrawFn, layout: Layout) -> ViewStep:
    order = draw(st.permutations(range(layout.rank)))
    return _step(views.permute, lambda a: a.transpose(order), tuple(order))


@st.composite
def _transpose(draw: st.DrawFn, layout: Layout) -> ViewStep:
    one, two = (draw(st.integers(-layout.rank, layout.rank - 1)) for _ in range(2))
    return _step(views.transpose, lambda a: a.swapaxes(one, two), one, two)


@st.composite
def _slice_axis(draw: st.DrawFn, layout: Layout) -> ViewStep:
    axis = draw(st.integers(-layout.rank, layout.rank - 1))
    bound = st.one_of(st.none(), st.integers(-layout.dims[axis] - 1, layout.dims[axis] + 1))
    step = draw(st.sampled_from((None, 1, 1, 2, 3, 4, 8, -1, -2, -3, -8)))
    cut = slice(draw(bound), draw(bound), step)
    lead = (slice(None),) * (axis % layout.rank)
    return _step(views.slice_axis, lambda a: a[(*lead, cut)], axis, cut.start, cut.stop, cut.step)


@st.composite
def _select(draw: st.DrawFn, layout: Layout) -> ViewStep:
    axis = draw(st.sampled_from([a for a, size in enumerate(layout.dims) if size]))
    position = draw(st.integers(-layout.dims[axis], layout.dims[axis] - 1))
    return _step(views.select, lambda a: a.take(position, axis), axis, position)


@st.composite
def _split_axis(draw: st.DrawFn, layout: Layout) -> ViewStep:
    axis = draw(st.integers(0, layout.rank - 1))
    sizes = draw(_factors(layout.dims[axis]))
    dims = (*layout.dims[:axis], *sizes, *layout.dims[axis + 1 :])
    return _step(views.split_axis, lambda a: a.reshape(dims), axis, sizes)


@st.composite
def _merge_axes(draw: st.DrawFn, layout: Layout) -> ViewStep:
    first = draw(st.integers(0, layout.rank - 2))
    last = draw(st.integers(first, layout.rank - 1))
    dims = (*layout.dims[:first], prod(layout.dims[first : last + 1]), *layout.dims[last + 1 :])
    return _step(views.merge_axes, lambda a: a.reshape(dims), first, last)


@st.composite
def _squeeze(draw: st.DrawFn, layout: Layout) -> ViewStep:
    axis = draw(st.sampled_from([None, *(a for a, size in enumerate(layout.dims) if size == 1)]))
    return _step(views.squeeze, lambda a: a.squeeze(axis), axis)


@st.composite
def _unsqueeze(draw: st.DrawFn, layout: Layout) -> ViewStep:
    axis = draw(st.integers(-layout.rank - 1, layout.rank))
    return _step(views.unsqueeze, lambda a: np.expand_dims(a, axis), axis)


@st.composite
def _broadcast_to(draw: st.DrawFn, layout: Layout) -> ViewStep:
    dims = tuple(
        draw(st.sampled_from((1, 2, 3))) if size == 1 and layout.size < 300 else size for size in layout.dims
    )
    front = draw(st.lists(st.integers(1, 2), max_size=1))
    target = (*front, *dims)
    return _step(views.broadcast_to, lambda a: np.broadcast_to(a, target), target)


@st.composite
def _reshape(draw: st.DrawFn, layout: Layout) -> ViewStep:
    parts = [draw(_factors(size)) for size in layout.dims]
    flat = [size for part in parts for size in part]
    dims: list[int] = []
    for size in flat:
        if dims and draw(st.booleans()):
            dims[-1] *= size
        else:
            dims.append(size)
    return _step(views.reshape, lambda a: a.reshape(dims), tuple(dims))


@st.composite
def _factors(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Sizes, one to three, that multiply to a size."""
    if size == 0:
        return draw(st.sampled_from(((0,), (0, 3), (2, 0), (0, 0))))
    first = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    rest = size // first
    second = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
    return tuple(draw(st.sampled_from(((size,), (first, rest), (first, second, rest // second)))))


_STEPS: dict[str, Callable[[Layout], st.SearchStrategy[ViewStep]]] = {
    "permute": _permute,
    "transpose": _transpose,
    "slice_axis": _slice_axis,
    "select": _select,
    "split_axis": _split_axis,
    "merge_axes": _merge_axes,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "broadcast_to": _broadcast_to,
    "reshape": _reshape,
}


# --- layouts of networks -----------------------------------------------------------------------------------

IMAGES = (
    *("nchw", "nhwc", "chwn", "nChw4c", "nChw8c", "nChw16c", "nChw32c", "Chwn4c", "nhcw"),
    *("nChw24c", "nChw48c", "NChw16n16c", "NChw2n4c", "nChw8c2c", "nCHw4c2h", "nchW4w", "nCHW2h4c2w"),
)
"""In plain words: NCHW, NHWC, CHWN, NCHW4, fsv16, NCHW32 (fsv32), CHWN4, blocks of 24 and 48, bsv16_fsv16,
and blocks of several axes."""

FILTERS = (
    *("oihw", "ohwi", "hwio", "OIhw16i16o", "OIhw8i8o", "Ohwi16o", "Ohwi8o", "Ohwi4o", "OIhw4i16o4i"),
    *("OhwI16o2i", "OhwI8o2i", "OIhw2i8o4i", "OIhw16o16i", "Oihw32o", "ohwI2i", "oihW2w"),
)


def _spatial(text: str, count: int) -> str | None:
    """The tag of two spatial axes for one or three; None where it blocks them."""
    if count == 2:
        return text
    if any(letter in text for letter in "HW") or "2w" in text or "4w" in text:
        return None
    return text.replace("h", "") if count == 1 else text.replace("h", "dh")


@st.composite
def images(draw: st.DrawFn, dims: tuple[int, ...]) -> Layout:
    """A layout of batch, channels and up to three spatial axes."""
    tags = [tag for text in IMAGES if len(dims) > 2 and (tag := _spatial(text, len(dims) - 2))]
    return draw(_known_or_any(dims, tags or ["nc", "cn", "nC4c", "nC16c", "NC16n16c"]))


@st.composite
def filters(draw: st.DrawFn, dims: tuple[int, ...], grouped: bool = False) -> Layout:
    """A layout of weights: output and input channels, spatial axes, and perhaps groups in front."""
    spatial = len(dims) - 2 - grouped
    tags = [tag for text in FILTERS if spatial and (tag := _spatial(text, spatial))]
    if grouped:
        tags = [f"g{tag}" for tag in tags] + [f"Go{'dhw'[3 - spatial :]}i{block}g" for block in (4, 8, 16)]
    return draw(_known_or_any(dims, tags or ["oi", "io", "Oi16o", "OI16o2i", "Oi4o"]))


@st.composite
def _known_or_any(draw: st.DrawFn, dims: tuple[int, ...], tags: list[str]) -> Layout:
    how = draw(st.integers(0, 9))
    if how < 6:
        return Layout(dims, draw(st.sampled_from(tags)))
    if how < 8:
        return draw(layouts(dims))
    larger = [size + draw(st.sampled_from((0, 0, 0, 1, 3))) for size in dims]  # a part of a larger tensor
    whole = Layout(larger, draw(st.sampled_from(tags)))
    starts = [draw(st.integers(0, large - size)) for size, large in zip(dims, larger, strict=True)]
    try:
        return views.submemory(whole, dims, starts)
    except LayoutError:  # it cuts blocks at uneven places
        return draw(plain_layouts(dims))


def written(layout: Layout) -> bool:
    """Whether every element and all padding has a place of its own."""
    return layout.is_injective() and layout.room().is_injective()


# --- the definition ----------------------------------------------------------------------------------------


def term_place(ladder: Any, number: Any) -> Any:
    """The sum of the digits of one number, or of each of an array: ``number // weight % extent * stride``."""
    return sum(number // weight % extent * stride for weight, extent, stride in ladder)


def _term_places(layout: Layout, sizes: Sequence[int]) -> list[Places]:
    """For each term a table of the places of its numbers."""
    return [
        np.zeros(size, np.int64) + term_place(ladder, np.arange(size, dtype=np.int64))
        for ladder, size in zip(layout.ladders, sizes, strict=True)
    ]


def element_places(layout: Layout) -> Places:
    """Where every element lies: an array of the layout's dims, filled with offsets."""
    out = np.full(layout.dims, layout.offset0, dtype=np.int64)
    indices = np.indices(layout.dims)
    tables = _term_places(layout, [prod(layout.dims[a] for a in term) for term in layout.terms])
    for term, table in zip(layout.terms, tables, strict=True):
        number = np.zeros(layout.dims, dtype=np.int64)
        for axis in term:
            number = number * layout.dims[axis] + indices[axis]
        out += table[number]
    return out


def _all_sums(layout: Layout, tables: list[Places]) -> Places:
    """The places of every combination of numbers, one dimension a term."""
    total = np.full((), layout.offset0, dtype=np.int64)
    for table in tables:
        total = total[..., None] + table
    return total


def room_places(layout: Layout) -> set[int]:
    """All offsets that the layout makes room for: elements and padding; none if there are no elements."""
    if 0 in layout.dims:
        return set()
    return set(_all_sums(layout, _term_places(layout, layout.padded)).ravel().tolist())


def padding_places(layout: Layout) -> set[int]:
    """The offsets that belong to the layout but to no element of it."""
    return set(padding_offsets(layout).tolist())


def padding_offsets(layout: Layout) -> Places:
    """The same as :func:`padding_places`, as an array."""
    if 0 in layout.dims:
        return np.empty(0, np.int64)
    room = _all_sums(layout, _term_places(layout, layout.padded)).ravel()
    elements = element_places(layout).ravel()
    low, high = int(room.min()), int(room.max())
    if high - low > 4096 + 16 * room.size:  # strides are large
        return np.setdiff1d(room, elements)
    padding = np.zeros(high - low + 1, bool)
    padding[room - low] = True
    padding[elements - low] = False
    return np.flatnonzero(padding) + low


def has_clean_padding(layout: Layout) -> bool:
    """Whether no padding lies on an element (with strides that overlap it may)."""
    if 0 in layout.dims:
        return True
    places = _all_sums(layout, _term_places(layout, layout.padded))
    elements = np.zeros(places.shape, dtype=bool)
    elements[tuple(slice(layout.term_size(t)) for t in range(len(layout.terms)))] = True
    return not np.isin(places[~elements], places[elements]).any()
