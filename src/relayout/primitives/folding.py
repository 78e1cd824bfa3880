"""One sum of products in other shapes: where pixels lie is a matter of words.

A convolution does not know what its axes are called. Some see no neighbours, so their pixels may as well lie
in other rows; and an axis that no filter goes over is as good a spatial axis as any::

    filter of one tap, 56 x 56 pixels     one row of 196 pixels after the other           in_long_rows
    the same with strides of 2            28 x 28 pixels, twice as far from each other    without_strides
    CHWN4, 2 rows of 3 pixels, 8 images   1 image of 2 planes of 3 rows of 8 pixels       images_inside
    64 windows of 7 x 7 rows of a matrix  8 images of 8 planes of 7 rows of 7 pixels      rows_apart
    192 rows of a matrix of f16           3 images of one row of 64 pixels                rows_together

Kernels work row by row: they pack and unpack rows, and their tiles go along them. So the best shape is one
whose rows are long, and whose pixels lie as near to each other as they can. In CHWN4 the nearest neighbour of
a pixel, four channels away, is the same pixel of the next image.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from relayout.errors import LayoutError
from relayout.forking import lock
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.loops.refine import combined, pieces
from relayout.records import replace

if TYPE_CHECKING:
    from relayout.kernels.conv.geometry import Geometry
    from relayout.layout.layout import Layout
    from relayout.primitives.products import Products

__all__ = ["folded"]

LONG_ROW = 256  # pixels of the longest row that pixels are put into
SHORT_ROW = 64  # pixels up to which a row may have any length; longer ones are whole vectors
LEAST_ROWS, MOST_ROWS = 8, 1024  # of a matrix that are packed together
LANES = 16  # pixels: f32 of the widest vector


@lru_cache(maxsize=768)  # asked for the cost, for the contest and for the kernel
def folded(made: Products) -> Products:
    """The same in the shape that suits kernels best."""
    if max(made.geometry.gaps) > 1:
        return made
    return rows_together(rows_apart(in_long_rows(without_strides(images_inside(made)))))


def without_strides(made: Products) -> Products:
    """A filter of one tap with strides does not see the pixels between: the source is a view without them."""
    g = made.geometry
    if g.taps > 1 or set(g.strides) == {1} or any(g.padding) or 0 in (*g.source, *g.target):
        return made
    layout = made.src.layout
    try:
        for axis in range(2, len(layout.dims)):
            at = axis - len(layout.dims)
            layout = views.slice_axis(layout, axis, 0, (g.target[at] - 1) * g.strides[at] + 1, g.strides[at])
    except LayoutError:  # blocks of pixels
        return made
    src = made.src.with_layout(layout)
    if src.dims[2:] != g.target[-len(src.dims[2:]) :]:  # pixels behind the last one are seen: zeros
        return made
    return replace(made, geometry=g._replace(source=g.target, strides=(1, 1, 1)), src=src)


def in_long_rows(made: Products) -> Products:
    """A filter of one tap sees no neighbours: the pixels of an image may as well lie in other rows.

    Rows of some hundred pixels are packed and unpacked faster than those of 7 or 56, which are no whole
    cache lines.
    """
    g, spatial = made.geometry, len(made.src.dims) - 2
    one = g.taps == 1 and set(g.strides) == {1} and not any(g.padding) and g.source == g.target
    if not one or spatial < 2 or g.pixels == 1:
        return made
    columns = _long_row(g.pixels)
    size = (1, g.pixels // columns, columns)
    sides = []
    for desc in (made.src, made.dst):
        side = _reshaped(desc, (*desc.dims[:2], *(1 for _ in range(spatial - 2)), *size[1:]))
        if side is None:
            return made
        sides.append(side)
    picked = [
        _is_plain(desc) and not _is_plain(side)
        for desc, side in zip((made.src, made.dst), sides, strict=True)
    ]
    if picked[0] or (picked[1] and _has_channels_together(made.dst)):  # or are rows of picked out pixels
        return made
    return replace(made, geometry=g._replace(source=size, target=size), src=sides[0], dst=sides[1])


@lru_cache(maxsize=256)  # each side is asked about with every format of the other one
def _reshaped(desc: MemoryDesc, shape: tuple[int, ...]) -> MemoryDesc | None:
    """A side with its pixels in other rows; None where rows end in padding, or in holes somewhere within."""
    try:
        made = MemoryDesc(shape, desc.dtype, views.reshape(desc.layout, shape))
    except LayoutError:
        return None
    return None if any(len(term) > 1 for term in made.layout.terms) else made


@lru_cache(maxsize=256)
def _long_row(pixels: int) -> int:
    """Pixels of the longest row that pixels are put into."""
    lengths = range(1, LONG_ROW + 1)
    return max(n for n in lengths if pixels % n == 0 and (n % LANES == 0 or n <= SHORT_ROW))


def _is_plain(desc: MemoryDesc) -> bool:
    """Whether each spatial axis has one stride."""
    return all(len(ladder) == 1 for ladder in desc.layout.ladders[2:])


def _has_channels_together(desc: MemoryDesc) -> bool:
    """Whether neighbouring channels are stored as vectors, wherever the pixels lie."""
    return bool(desc.layout.ladders[1][-1].stride == 1)


def images_inside(made: Products) -> Products:
    """Images that lie side by side, pixel by pixel, are pixels of one image with an axis more.

    So they are where filters of one tap, or with strides, would otherwise have rows packed in small pieces.
    Others pack rows in any case, and long ones faster.
    """
    g, spatial = made.geometry, len(made.src.dims) - 2
    near = g.taps == 1 or set(g.strides) != {1}
    if g.batch == 1 or g.groups > 1 or not 1 <= spatial <= 2 or not near:
        return made
    if not all(map(_images_are_near, (made.src, made.dst))):
        return made
    src, dst = (_with_images_inside(desc) for desc in (made.src, made.dst))
    layout = made.weights.layout
    for _ in range(3 - spatial):
        layout = views.unsqueeze(layout, len(layout.dims))
    if spatial == 1:
        layout = views.transpose(layout, -3, -2)
    weights = made.weights.with_layout(layout)
    return replace(made, geometry=_turned(g), src=src, weights=weights, dst=dst)


def _images_are_near(desc: MemoryDesc) -> bool:
    """Whether a step to the next image is shorter than one to the next pixel."""
    steps = desc.layout.ladders
    if any(len(term) != 1 for term in desc.layout.terms) or len(steps[0]) != 1 or len(steps[-1]) != 1:
        return False
    return 0 < steps[0][0].stride < steps[-1][0].stride


def _with_images_inside(desc: MemoryDesc) -> MemoryDesc:
    """Axes N, C, H, W (H, W: as many as there are) as 1, C, H, W, N."""
    layout: Layout = desc.layout
    while len(layout.dims) < 4:
        layout = views.unsqueeze(layout, 2)
    layout = views.permute(views.unsqueeze(layout, 0), (0, 2, 3, 4, 1))
    return desc.with_layout(layout)


def _turned(g: Geometry) -> Geometry:
    """Planes and rows are what rows and pixels were; pixels are images, which filters don't reach over."""

    def turned(sizes: Sequence[int], last: int) -> tuple[int, int, int]:
        return sizes[1], sizes[2], last

    return g._replace(
        batch=1,
        source=turned(g.source, g.batch),
        target=turned(g.target, g.batch),
        kernel=turned(g.kernel, 1),
        strides=turned(g.strides, 1),
        dilation=turned(g.dilation, 1),
        padding=turned(g.padding, 0),
    )


def rows_apart(made: Products) -> Products:
    """The rows of a matrix, where several steps lead from one to the next, as pixels with a stride each.

    So lie the tokens of an attention in windows, and kernels read them, or write them, where they are.
    """
    g = made.geometry
    sides = made.src, made.dst
    if (
        len(made.src.dims) > 2
        or g.batch == 1
        or any(len(term) > 1 for desc in sides for term in desc.layout.terms)
    ):
        return made
    ladders = [desc.layout.ladders[_term(desc, 0)] for desc in sides]
    found = pieces(ladders, 0, g.batch) if max(map(len, ladders)) > 1 else None
    if found is None or len(found) != 1:
        return made
    sizes = [loop.extent for loop in combined(found, (0, 0)).loops]
    images, spatial = prod(sizes[:-3]), [1, 1, 1, *sizes][-3:]
    if prod(spatial) == 1 or images * prod(spatial) != g.batch:
        return made
    return _with_pixels(made, images, spatial)


def rows_together(made: Products) -> Products:
    """The rows of a matrix that is packed, some of them at a time, as pixels of a row.

    Tiles take the rows of a matrix as pixels wherever they lie, but in scratch an image is packed by itself,
    and would be a tile of one pixel. Packed are sources of another type than tiles multiply: of f16, say.
    """
    with lock():
        from relayout.kernels.conv.arithmetic import arithmetic_of
        from relayout.targets.machine import host

    g = made.geometry
    layouts = made.src.layout, made.dst.layout
    if len(made.src.dims) > 2 or g.batch == 1 or any(len(term) > 1 for one in layouts for term in one.terms):
        return made
    how = arithmetic_of(made.src.dtype, made.weights.dtype, g, host(), made.zeros)
    if how is None or how.operand == made.src.dtype.name or any(len(one.ladders[0]) > 1 for one in layouts):
        return made
    several = [n for n in range(1, MOST_ROWS + 1) if g.batch % n == 0]
    rows = next((n for n in reversed(several) if LEAST_ROWS <= n <= SHORT_ROW), several[-1])
    return _with_pixels(made, g.batch // rows, [1, 1, rows]) if rows > 1 else made


def _with_pixels(made: Products, images: int, spatial: Sequence[int]) -> Products:
    """The rows of a matrix as images of pixels."""

    def apart(desc: MemoryDesc) -> MemoryDesc:
        layout = views.split_axis(desc.layout, 0, (images, *spatial))
        layout = views.permute(layout, (0, 4, 1, 2, 3))
        return desc.with_layout(layout)

    weights = made.weights.layout
    for _ in spatial:
        weights = views.unsqueeze(weights, len(weights.dims))
    size = spatial[0], spatial[1], spatial[2]
    return replace(
        made,
        geometry=made.geometry._replace(batch=images, source=size, target=size),
        src=apart(made.src),
        weights=made.weights.with_layout(weights),
        dst=apart(made.dst),
    )


def _term(desc: MemoryDesc, axis: int) -> int:
    """The place of an axis among the terms of a layout."""
    return next(k for k, term in enumerate(desc.layout.terms) if axis in term)
