"""What MegEngine allocates: shapes with blocks as axes, strides in bytes, low-bit rows and images.

MegEngine does not hide blocks behind the axes. A tensor of 17 channels in ``NCHW4`` *has* five axes, ``[N,
5, H, W, 4]``, and its strides are those of a five-dimensional array. So three numbers belong to a format:

=====================  ==================================  =========================
logical dims           ``(2, 17, 5, 6)``                   what a program indexes
physical shape         ``(2, 5, 5, 6, 4)``                 ``TensorLayout.shape``
strides                ``(600, 120, 24, 4, 1)`` elements   ``TensorLayout.stride``
=====================  ==================================  =========================

The way back loses something: ``[N, 5, H, W, 4]`` does not tell that 17 of the 20 channels are real.
Channels are padded *per group*, so with 2 groups of 3 channels there are two blocks of 4.

MegEngine's manual counts strides in bytes and begins with matrices: an ``int32`` array of 2 rows and 5
columns has the strides (20, 4) in *row-major* order, the product of the sizes to the right, and would have
(4, 8) in *column-major* order, the product of those to the left.

>>> strides_in_bytes((2, 5), "s32", "row_major"), strides_in_bytes((2, 5), "s32", "column_major")
((20, 4), (4, 8))

How the physical shape is put into memory is a second choice, the *physical format*:

``DEFAULT``
    Row-major.
``LOWBITS_ALIGNED_TO_BYTE``
    Row-major, the innermost size rounded up to whole bytes: ``NCHW@lowbit``,
    :func:`relayout.notation.megengine.lowbit_aligned`.
``IMAGE2D_PACK4``
    Rows of an image, each starting at a multiple of the pitch alignment of the device: :func:`image2d_pack4`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from relayout.dtypes import DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format
from relayout.layout.layout import Layout, check_dims, spell_dims
from relayout.notation.megengine import unit_axes, without_lowbit

__all__ = [
    "TensorLayout",
    "image2d_pack4",
    "logical_dims",
    "physical_shape",
    "pitched",
    "strides_in_bytes",
    "tensor_layout",
]

PIXEL = 4  # elements of a pixel of IMAGE2D_PACK4: the channels of an RGBA texture


class TensorLayout(NamedTuple):
    """What MegEngine's ``TensorLayout`` holds: one size and one stride a physical axis."""

    shape: tuple[int, ...]
    """Sizes; blocks are axes of their own."""
    stride: tuple[int, ...]
    """Elements from one index to the next."""


def tensor_layout(dims: Sequence[int], format: Format | str, group: int = 1) -> TensorLayout:
    """Return the shape and the strides that MegEngine gives a tensor.

    Parameters
    ----------
    dims : sequence of int
        The logical sizes: ``n c h w``, ``[g] o i h w``, or those of a format whose axes have no meaning.
    format : Format or str
        Any format without fused axes.
    group : int
        Into how many groups the channels are divided; each is padded on its own. Data formats only.

    Raises
    ------
    LayoutError
        The dims don't fit the format, or the channels can't be divided into so many groups.

    Examples
    --------
    >>> tensor_layout((2, 17, 5, 6), "NCHW4")
    TensorLayout(shape=(2, 5, 5, 6, 4), stride=(600, 120, 24, 4, 1))
    >>> tensor_layout((1, 2, 3, 5), "NCHW@lowbit")
    TensorLayout(shape=(1, 2, 3, 5), stride=(36, 18, 6, 1))
    """
    known, sizes = _resolved(format, dims)
    base, together = without_lowbit(known)
    shape = _shape(base, sizes, group)
    if base.roles is None and all(not radices for radices in base.radices):
        return TensorLayout(sizes, Layout(sizes, base).strides)  # axes without meaning: the shape is the dims
    stride = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        size = shape[axis]
        if axis == len(shape) - 1:
            size = -(-size // together) * together
        stride[axis - 1] = stride[axis] * (size or 1)
    return TensorLayout(shape, tuple(stride))


def physical_shape(dims: Sequence[int], format: Format | str, group: int = 1) -> tuple[int, ...]:
    """Return the shape of MegEngine's tensor: its axes in memory order, blocks as axes of their own.

    See :func:`tensor_layout` for the parameters and errors.

    Examples
    --------
    >>> physical_shape((1, 6, 7, 7), "NCHW4"), physical_shape((1, 6, 7, 7), "NCHW4", group=2)
    ((1, 2, 7, 7, 4), (1, 2, 7, 7, 4))
    >>> physical_shape((1, 10, 7, 7), "NCHW4")  # 10 of 12 channels
    (1, 3, 7, 7, 4)
    >>> physical_shape((1, 10, 7, 7), "NCHW4", group=2)  # 5 of 8 and 5 of 8
    (1, 4, 7, 7, 4)
    >>> physical_shape((8, 1, 1, 3, 3), "C11RSc4"), physical_shape((8, 3, 3), "C1RSc4")
    ((2, 1, 1, 3, 3, 4), (2, 1, 3, 3, 4))
    """
    return tensor_layout(dims, format, group).shape


def logical_dims(shape: Sequence[int], format: Format | str) -> tuple[int, ...]:
    """Return the logical sizes of a physical shape, padding included: the inverse of :func:`physical_shape`.

    Parameters
    ----------
    shape : sequence of int
        The shape of MegEngine's tensor.
    format : Format or str
        A format with blocks and roles, or ``row_major`` and its like, where shape and dims are the same.

    Raises
    ------
    LayoutError
        Wrong number of axes, or an axis that should be a block has another size.

    Examples
    --------
    >>> logical_dims((2, 5, 5, 6, 4), "NCHW4"), logical_dims((5, 5, 6, 2, 4), "CHWN4")
    ((2, 20, 5, 6), (2, 20, 5, 6))
    >>> logical_dims((2, 5, 5, 6, 8), "NCHW4")
    Traceback (most recent call last):
    relayout.errors.LayoutError: shape 2x5x5x6x8: axis 4 of NCHW4 is a block of 4, got 8
    """
    sizes = check_dims(shape)
    known, _ = without_lowbit(Format(format))
    if known.rank is None:
        known = known.resolve(len(sizes))
    _need_own_axes(known)
    if known.roles is None and all(not radices for radices in known.radices):
        known.resolve(len(sizes))  # complains about a wrong rank
        return sizes
    digits = known.digits
    if len(sizes) != len(digits):
        raise LayoutError(
            f"shape {spell_dims(sizes)} has {len(sizes)} axes, a tensor in {known} has {len(digits)}: "
            f"{known.digits_text()}"
        )
    dims = [1] * len(known.terms)
    for axis, (size, digit) in enumerate(zip(sizes, digits, strict=True)):
        if digit.extent is not None and size != digit.extent:
            raise LayoutError(
                f"shape {spell_dims(sizes)}: axis {axis} of {known} is a block of {digit.extent}, got {size}"
            )
        dims[digit.term] *= size
    return check_dims(dims)


def strides_in_bytes(
    dims: Sequence[int], dtype: DTypeLike, format: Format | str = "row_major", group: int = 1
) -> tuple[int | Fraction, ...]:
    """Return the strides of MegEngine's tensor in bytes; those of 4-bit elements may be half a byte.

    Parameters
    ----------
    dims, format, group
        As in :func:`tensor_layout`; without a format the tensor is row-major.
    dtype : str, numpy.dtype or DType
        The data type.

    Examples
    --------
    >>> strides_in_bytes((2, 17, 5, 6), "s8", "NCHW4")
    (600, 120, 24, 4, 1)
    >>> strides_in_bytes((1, 2, 3, 5), "s4", "NCHW@lowbit")  # a row of 5 takes 3 bytes
    (18, 9, 3, Fraction(1, 2))
    """
    bits = as_dtype(dtype).bits
    known = Format(format)
    if "dtype" in known.waits_for:
        known.resolve(dtype=str(as_dtype(dtype)))  # refuses 8-bit elements in rows of 4-bit ones
    exact = (Fraction(step * bits, 8) for step in tensor_layout(dims, known, group).stride)
    return tuple(step.numerator if step.denominator == 1 else step for step in exact)


def image2d_pack4(
    dims: Sequence[int],
    dtype: DTypeLike,
    format: Format | str,
    align_axis: int,
    align_size: int,
    *,
    mali: bool = False,
) -> Layout:
    """Lay a tensor out as an image of pixels of 4 elements, its rows at multiples of a pitch alignment.

    MegEngine's physical format ``IMAGE2D_PACK4``, for OpenCL images. The physical axes in front of
    ``align_axis`` are the height of the image, the others its width. Only the stride of the last axis of
    the height is rounded up; what is left at the end of a row are holes, and the image takes ``height *
    pitch`` elements.

    Parameters
    ----------
    dims : sequence of int
        The logical sizes.
    dtype : str, numpy.dtype or DType
        The data type, of 8 bits or more.
    format : Format or str
        A format whose innermost physical axis is a multiple of 4: ``NHWCD4``, ``KRSCk4``, ``C1RSc4``.
    align_axis : int
        How many physical axes are the height: 1 or more, and before the blocks. MegEngine uses 2 for
        ``NHWCD4`` data, and for weights 3 (dense), 4 (group) and 1 (channel-wise).
    align_size : int
        The alignment of a row: a power of two, in bytes, or in pixels on Mali.
    mali : bool
        Whether the device is a Mali GPU, whose alignment counts pixels (``align * sizeof(dtype) * 4`` bytes).

    Raises
    ------
    LayoutError
        A rule above is broken.

    Examples
    --------
    >>> image = image2d_pack4((1, 6, 3, 5), "f32", "NHWCD4", align_axis=2, align_size=64)
    >>> image.strides, image.offset(0, 5, 1, 2)  # a row has 2 * 5 pixels = 40 elements, 48 with the pitch
    ((144, 20, 48, 4), 77)
    """
    bits = as_dtype(dtype).bits
    if bits < 8:
        raise LayoutError(f"images hold elements of whole bytes; {as_dtype(dtype)} has {bits} bits")
    if align_size < 1 or align_size & (align_size - 1):
        raise LayoutError(f"the pitch alignment {align_size} is no power of two")
    elements = align_size * PIXEL if mali else max(1, align_size * 8 // bits)
    return pitched(dims, format, align_axis, elements)


def pitched(dims: Sequence[int], format: Format | str, align_axis: int, elements: int) -> Layout:
    """Lay a tensor out as :func:`image2d_pack4` does, with the pitch alignment in elements.

    >>> pitched((1, 6, 3, 5), "NHWCD4", 2, 16).strides
    (144, 20, 48, 4)
    """
    sizes = check_dims(dims)
    if elements < 1:
        raise LayoutError(f"rows can't be aligned to a pitch of {elements} elements; it must be 1 or more")
    known = Format(format).resolve(len(sizes))
    _need_own_axes(known)
    dense = Layout(sizes, known)
    digits = dense.digits
    innermost = digits[-1].extent
    if innermost % PIXEL:
        raise LayoutError(
            f"the innermost axis of an image holds whole pixels of 4 elements; {dense} has {innermost} there"
        )
    if not 1 <= align_axis <= dense.rank or any(level for _, level in dense.order[:align_axis]):
        raise LayoutError(
            f"align_axis {align_axis}: the height of an image in {known} can have 1 to {dense.rank} axes, "
            "those before the blocks"
        )
    strides = list(dense.strides)
    room = digits[align_axis - 1].stride
    room = -(-room // elements) * elements
    for digit in reversed(digits[:align_axis]):
        strides[known.terms[digit.term][0]] = room
        room *= digit.extent or 1
    return Layout(sizes, known, strides=strides)


# -- workings -----------------------------------------------------------------------------------------------


def _resolved(format: Format | str, dims: Sequence[int]) -> tuple[Format, tuple[int, ...]]:
    """The format for these dims; channel-wise weights get as many unit axes as their format writes."""
    sizes = check_dims(dims)
    known = Format(format)
    units = unit_axes(known)
    if units and 3 <= len(sizes) <= 5:
        if any(size != 1 for size in sizes[1:-2]):
            raise LayoutError(
                f"dims {spell_dims(sizes)}: channel-wise weights in {known} have one output and one input "
                "channel a group, so the axes between the first and the last two must be 1"
            )
        sizes = (sizes[0], *(1,) * units, *sizes[-2:])
    return known.resolve(len(sizes)), sizes


def _shape(format: Format, dims: tuple[int, ...], group: int) -> tuple[int, ...]:
    _need_own_axes(format)
    channels = format.roles.index("c") if format.roles is not None and "c" in format.roles else None
    if group != 1:
        if channels is None:
            raise LayoutError(
                f"{format} has no channel axis; only data is padded by group, got group={group}"
            )
        if group < 1 or dims[channels] % group:
            raise LayoutError(f"{dims[channels]} channels of {format} can't be divided into {group} groups")
    shape = []
    for term, weight, extent in format.digits:
        if extent is not None:
            shape.append(extent)
            continue
        axis = format.terms[term][0]
        groups = group if axis == channels else 1
        shape.append(groups * -(-(dims[axis] // groups) // weight))
    return tuple(shape)


def _need_own_axes(format: Format) -> None:
    if any(len(term) > 1 for term in format.terms):
        raise Unsupported(
            f"format {format} fuses axes; MegEngine's tensors have a size and a stride for each axis"
        )
