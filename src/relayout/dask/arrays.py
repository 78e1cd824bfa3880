"""Arrays of Dask in a memory format: a lazy physical array, and the way back.

The physical form of a tensor, as NumPy and Dask see it, has an axis for each digit of the format:
``nChw16c`` of (N, C, H, W) is an array of the shape (N, ceil(C / 16), H, W, 16) in row-major order, with
zeros in the padding. Here it is a ``dask.array`` that is computed chunk by chunk, each by the reorder engine,
whatever the scheduler.

A chunk of the result is a whole tensor in the same format, made of one chunk of the source. So there is one
task a chunk and nothing moves between workers, as long as the source is cut between the blocks of the format.
:mod:`relayout.dask.chunks` says where that is. Where it isn't, the axis in question is rechunked first, by
Dask, to the nearest such places; nothing else is ever rechunked without being asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.base import tokenize
from numpy.typing import NDArray

from relayout.dask.chunks import Cut, aligned, cuts, physical_shape
from relayout.dtypes import DType, DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, Unsupported, type_name
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, plain, spell_dims
from relayout.reorder import reorder as reordered
from relayout.tensor import from_buffer, tensor

__all__ = ["logical", "reorder"]


def reorder(
    x: da.Array, format: str | Format, dtype: DTypeLike | None = None, chunks: Any = None
) -> da.Array:
    """Return the physical array of a format, lazily: an axis for each digit, zeros in the padding.

    Parameters
    ----------
    x : dask.array.Array
        The logical array, of NumPy's or ml_dtypes' types.
    format : str or Format
        In any dialect: ``"nChw16c"``, ``"NCHW16c"``, ``"b_fs_yx_fsv16"``, ``"nhwc"``, ...
    dtype : optional
        The data type to convert to, by the rules of :mod:`relayout.convert`; that of ``x`` by default.
    chunks : optional
        Chunks of the *result*, in any form that Dask takes for its shape: a number, a tuple with an entry for
        each digit, ``"auto"``. By default they follow from those of ``x``. Chunks that cut nothing but open
        digits are made by rechunking ``x``, others by rechunking the result.

    Returns
    -------
    dask.array.Array
        Of the shape ``(extent of each digit, ...)``, outermost first. Nothing is computed. An axis of ``x``
        that is cut inside a block of the format is rechunked, as are axes that the format fuses (clDNN's
        ``yx``) except for the first of them; all else is one task a chunk, without communication. The name
        is a function of ``x``, format and data type.

    Raises
    ------
    LayoutError
        ``x`` is no Dask array of NumPy arrays, its chunks have unknown sizes, or the format has another rank.
    Unsupported
        4-bit elements, of which two share a byte.

    Notes
    -----
    The rules of padding and of data types are those of :func:`relayout.reorder`.

    Examples
    --------
    >>> import dask.array as da
    >>> import relayout.dask
    >>> x = da.ones((8, 40, 6, 6), chunks=(4, 16, 6, 6), dtype="f4")
    >>> y = relayout.dask.reorder(x, "nChw16c", "bf16")
    >>> y.shape, y.chunks[:2], y.dtype
    ((8, 3, 6, 6, 16), ((4, 4), (1, 1, 1)), dtype(bfloat16))
    >>> float(y[0, 2, 0, 0].sum())  # 8 channels, 8 places of padding
    8.0
    """
    source = _checked(x, "x")
    known = _whole_type(dtype, source)
    layout, known_format = _layout(x.shape, format)
    shape = physical_shape(layout)
    target = None if chunks is None else _normalised(chunks, shape, known)
    if 0 in x.shape:
        return da.zeros(shape, dtype=known.numpy, chunks=shape if target is None else target)
    terms = cuts(layout)
    wanted = None if target is None else _logical_chunks(layout, terms, target)
    x = x.rechunk(_source_chunks(x, terms) if wanted is None else wanted)
    symbols = tuple(range(x.ndim, x.ndim + len(shape)))
    adjusted = {symbols[cut.place]: cut.physical(x.chunks[cut.axis]) for cut in terms}
    of_axis = {cut.axis: symbols[cut.place] for cut in terms}
    result = _blockwise(
        partial(_laid_out, format=known_format, dtype=known),
        ("relayout-reorder", x.name, known_format.digits_text(), known.name),
        symbols,
        x,
        tuple(of_axis.get(axis, axis) for axis in range(x.ndim)),
        adjusted,
        {symbol: extent for symbol, extent in zip(symbols, shape, strict=True) if symbol not in adjusted},
        known,
    )
    return result if target is None else result.rechunk(target)


def logical(y: da.Array, desc: str | MemoryDesc, dtype: DTypeLike | None = None) -> da.Array:
    """Return the logical array of a physical one, lazily: the way back from :func:`reorder`.

    Parameters
    ----------
    y : dask.array.Array
        The physical array: an axis for each digit of the format, outermost first. What its padding holds does
        not matter.
    desc : MemoryDesc or str
        What ``y`` is: its data type, its format and the logical sizes, ``"f32:nChw16c:8x40x6x6"``.
    dtype : optional
        The data type to convert to; that of ``y`` by default.

    Returns
    -------
    dask.array.Array
        Of the shape ``desc.dims``. Nothing is computed. Where an inner digit is cut into chunks it is
        rechunked to one; all else is one task a chunk.

    Raises
    ------
    LayoutError
        ``y`` has another shape or data type than the descriptor says, the descriptor's layout is no dense
        format, or ``y`` is no Dask array of NumPy arrays.
    Unsupported
        4-bit elements.

    Examples
    --------
    >>> import dask.array as da
    >>> import relayout as rl
    >>> import relayout.dask
    >>> x = da.arange(40 * 9, chunks=90, dtype="f4").reshape(1, 40, 3, 3)
    >>> y = relayout.dask.reorder(x, "nChw16c")
    >>> z = relayout.dask.logical(y, rl.MemoryDesc(x.shape, "f32", "nChw16c"))
    >>> z.shape, bool((x == z).all())
    ((1, 40, 3, 3), True)
    """
    source = _checked(y, "y")
    known = MemoryDesc(desc) if isinstance(desc, str) else desc
    if not isinstance(known, MemoryDesc):
        raise LayoutError(f"desc must be a MemoryDesc or its text, got {type_name(desc)}")
    result = _whole_type(dtype, known.dtype)
    if known.format is None or known.offset0:
        raise LayoutError(f"{known} is no dense format, which is what has a physical array")
    layout, known_format = _layout(known.dims, known.format)
    shape = physical_shape(layout)
    if y.shape != shape or source != known.dtype:
        raise LayoutError(
            f"the physical array of {known} is {known.dtype} of {spell_dims(shape)}, an axis for each digit "
            f"of {known_format}; got {source} of {spell_dims(y.shape)}"
        )
    if 0 in known.dims:
        return da.zeros(known.dims, dtype=result.numpy, chunks=known.dims)
    terms = cuts(layout)
    opened = {cut.place: aligned(y.chunks[cut.place], cut.physical_unit) for cut in terms}
    y = y.rechunk(tuple(opened.get(k, (extent,)) for k, extent in enumerate(shape)))
    symbols = tuple(range(len(shape), len(shape) + layout.rank))
    of_place = {cut.place: symbols[cut.axis] for cut in terms}
    adjusted = {symbols[cut.axis]: cut.logical(y.chunks[cut.place]) for cut in terms}
    room = _blockwise(
        partial(_read, layout=layout, terms=terms, dtype=result),
        ("relayout-logical", y.name, known_format.digits_text(), known.dims, result.name),
        symbols,
        y,
        tuple(of_place.get(k, k) for k in range(y.ndim)),
        adjusted,
        {symbols[axis]: layout.dims[axis] for cut in terms for axis in cut.whole},
        result,
    )
    return room[tuple(slice(size) for size in layout.dims)]


# -- what a task does ---------------------------------------------------------------------------------------


def _laid_out(block: Any, format: Format, dtype: DType) -> NDArray[Any]:
    """A chunk in a format, as an array with an axis for each digit."""
    array = _only(block)
    desc = MemoryDesc(array.shape, dtype, format)
    shape = physical_shape(desc.layout)
    if array.size == 0:
        return np.zeros(shape, dtype.numpy)
    made = reordered(tensor(array), desc, threads=1)  # Dask's workers run chunks side by side
    result: NDArray[Any] = made.buffer.view(dtype.numpy).reshape(shape)
    return result


def _read(block: Any, layout: Layout, terms: tuple[Cut, ...], dtype: DType) -> NDArray[Any]:
    """A chunk of a physical array as logical elements, padding among them."""
    array = np.ascontiguousarray(_only(block))
    dims = list(layout.dims)
    for cut in terms:
        (dims[cut.axis],) = cut.logical((array.shape[cut.place],))
    if array.size == 0:
        return np.zeros(dims, dtype.numpy)
    desc = MemoryDesc(dims, array.dtype, layout.format)
    row_major = Layout(dims, plain(len(dims)))
    made = reordered(from_buffer(array, desc), MemoryDesc(dims, dtype, row_major), threads=1)
    result: NDArray[Any] = made.buffer.view(dtype.numpy).reshape(dims)
    return result


def _only(block: Any) -> NDArray[Any]:
    """The one array within lists: Dask passes a list for each axis that is not in the result."""
    while isinstance(block, list):
        (block,) = block
    array: NDArray[Any] = block
    return array


# -- what graphs are made of --------------------------------------------------------------------------------


def _blockwise(
    task: Callable[..., NDArray[Any]],
    token: tuple[Any, ...],
    symbols: Sequence[int],
    x: da.Array,
    of_x: Sequence[int],
    adjusted: dict[int, tuple[int, ...]],
    new: dict[int, int],
    dtype: DType,
) -> da.Array:
    """``dask.array.blockwise`` of one array, with a name that says what was asked for and nothing else."""
    return da.blockwise(
        task,
        symbols,
        x,
        of_x,
        name=f"{token[0]}-{tokenize(*map(str, token[1:]))}",
        adjust_chunks=adjusted,
        new_axes=new,
        align_arrays=False,
        dtype=dtype.numpy,
        meta=np.empty((0,) * len(symbols), dtype.numpy),
    )


def _source_chunks(x: da.Array, terms: tuple[Cut, ...]) -> tuple[tuple[int, ...], ...]:
    """The chunks of a source, with as few changed as there must be."""
    result = list(x.chunks)
    for cut in terms:
        result[cut.axis] = aligned(x.chunks[cut.axis], cut.unit)
        for axis in cut.whole:
            result[axis] = (x.shape[axis],)
    return tuple(result)


def _logical_chunks(
    layout: Layout, terms: tuple[Cut, ...], target: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...] | None:
    """The chunks of the logical array from which chunks of the physical one are made, if there are such."""
    places = {cut.place for cut in terms}
    if any(len(sizes) > 1 for place, sizes in enumerate(target) if place not in places):
        return None
    result: list[tuple[int, ...]] = [(size,) for size in layout.dims]
    for cut in terms:
        sizes = target[cut.place]
        if aligned(sizes, cut.physical_unit) != sizes or 0 in sizes:
            return None
        *inner, _ = cut.logical(sizes)
        result[cut.axis] = (*inner, layout.dims[cut.axis] - sum(inner))
    return tuple(result)


def _layout(dims: tuple[int, ...], format: str | Format) -> tuple[Layout, Format]:
    known = Format(format).resolve(len(dims))
    return Layout(dims, known), known


def _checked(x: Any, name: str) -> DType:
    """The data type of a Dask array whose chunks are arrays of NumPy with known sizes."""
    if not isinstance(x, da.Array):
        raise LayoutError(
            f"{name} must be a dask.array, got {type_name(x)}; dask.array.from_array makes one of an array"
        )
    if type(x._meta) is not np.ndarray:
        raise LayoutError(
            f"the chunks of {name} are {type_name(x._meta)}, and Relayout reads arrays of NumPy: "
            f"{name}.map_blocks(numpy.asarray) makes such"
        )
    for axis, sizes in enumerate(x.chunks):
        if any(size != size for size in sizes):  # NaN is how Dask says unknown
            raise LayoutError(
                f"axis {axis} of {name} has chunks of unknown size, and where an element lies depends on it; "
                f"{name}.compute_chunk_sizes() finds them out"
            )
    return as_dtype(x.dtype)


def _normalised(chunks: Any, shape: tuple[int, ...], dtype: DType) -> tuple[tuple[int, ...], ...]:
    """Chunks of a result as Dask spells them out."""
    try:
        return tuple(normalize_chunks(chunks, shape, dtype=dtype.numpy))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise LayoutError(
            f"chunks={chunks!r} do not fit the result of shape {list(shape)}, an axis for each digit: {error}"
        ) from None


def _whole_type(asked: DTypeLike | None, source: DType) -> DType:
    """The data type of the result, which is one that arrays of NumPy have."""
    result = source if asked is None else as_dtype(asked)
    for one in (source, result):
        if one.bits < 8:
            raise Unsupported(f"two elements of {one} share a byte, and chunks of Dask have whole ones")
    return result
