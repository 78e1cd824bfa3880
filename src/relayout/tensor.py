"""A tensor: a memory descriptor and the bytes that it describes.

A :class:`Tensor` owns no arithmetic. It says what some bytes mean, hands them out as a NumPy array in
*logical* order, and makes views that share them. There are two ways to make one, and they differ in which
side of the layout the data is on:

``tensor(array, format)``       the data is a logical array; it is *laid out* (without a format: shared)
``from_buffer(buffer, desc)``   the data already is in physical order; it is only *described*

>>> import numpy as np
>>> import relayout as rl
>>> x = rl.tensor(np.arange(6, dtype=np.float32).reshape(1, 3, 1, 2), "nChw4c")
>>> x.buffer.view(np.float32)  # w=0: channels 0, 1, 2 and padding; w=1 likewise
array([0., 2., 4., 0., 1., 3., 5., 0.], dtype=float32)
>>> x.numpy()
array([[[[0., 1.]],
<BLANKLINE>
        [[2., 3.]],
<BLANKLINE>
        [[4., 5.]]]], dtype=float32)

Views never copy: a view whose bytes no layout can describe raises (see :mod:`relayout.layout.views`).
Concatenation in place is nothing but views: :meth:`Tensor.parts` cuts a result into parts that producers
fill.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import addressof, c_char
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from relayout.dtypes import DType, DTypeLike, dtype, pack
from relayout.errors import LayoutError, TooLarge, Unsupported, counted, described, type_name
from relayout.exchange import pytorch
from relayout.forking import lock, locked
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, check_dims, plain, spell_dims, whole_numbers

if TYPE_CHECKING:
    FormatLike = str | Format | Layout | MemoryDesc

__all__ = ["Tensor", "as_bytes", "from_buffer", "tensor"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vectors
LARGE = 1 << 21  # bytes of a large page
ADDRESS_BITS = 47  # of what a process can address, on all processors of today
REMEMBERED = 4096  # pairs of descriptors whose comparison is remembered
GATHERED = 1 << 20  # 4-bit places that are looked at by index at a time
SAMPLE = 0x3C  # a byte that numbers of any type may have: f32 0.0115, f16 1.06, s8 60


class Tensor:
    """Bytes with a memory descriptor, made by :func:`tensor` and :func:`from_buffer`, or as a view.

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> x = rl.tensor(np.arange(32.0).reshape(1, 32, 1, 1), "nChw16c")
    >>> x.desc, x.buffer.nbytes
    (MemoryDesc('f64:nChw16c:1x32x1x1'), 256)
    >>> x[:, 4:8].numpy().ravel()  # a view of four channels inside a block
    array([4., 5., 6., 7.])
    """

    __slots__ = ("buffer", "desc")

    desc: MemoryDesc
    """What the bytes mean."""
    buffer: NDArray[np.uint8]
    """The physical bytes, padding included; a view shares the whole buffer of its tensor."""

    def __init__(self, desc: MemoryDesc, buffer: NDArray[np.uint8]) -> None:
        self.desc = desc
        self.buffer = buffer

    @property
    def dims(self) -> tuple[int, ...]:
        """The logical sizes."""
        return self.desc.dims

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical sizes, by NumPy's name."""
        return self.desc.dims

    @property
    def dtype(self) -> DType:
        """The data type of the elements."""
        return self.desc.dtype

    @property
    def layout(self) -> Layout:
        """Where every element lies."""
        return self.desc.layout

    # -- data out -----------------------------------------------------------------------------------------

    def numpy(self, copy: bool | None = None) -> NDArray[Any]:
        """Return the logical array: ``result[i]`` is element i, whatever the layout.

        Parameters
        ----------
        copy : bool, optional
            None: share the memory where strides can say the layout, copy otherwise (blocked formats, 4-bit
            elements). True: always copy. False: raise instead of copying.

        Raises
        ------
        LayoutError
            ``copy=False`` and NumPy's strides can't express the layout.
        """
        _check_copy(copy)
        elements = _shared_elements(self)
        if elements is not None:
            return elements.copy() if copy else elements
        if copy is False:
            raise LayoutError(f"{self.desc} can't be a NumPy array without a copy: {_no_strides(self.desc)}")
        row_major = Layout._dense(self.dims, plain(len(self.dims)))
        if self.dtype.bits < 8:
            with lock():
                from relayout.reorder.engine import four_bit_values

            return four_bit_values(self.desc, self.buffer).reshape(self.dims)
        moved = self.reorder(row_major)
        return moved.buffer.view(self.dtype.numpy).reshape(self.dims)

    def torch(self, copy: bool | None = None) -> Any:
        """Return the logical tensor as a ``torch.Tensor`` on the CPU; imports PyTorch.

        Parameters
        ----------
        copy : bool, optional
            None: share the memory where PyTorch's strides can say the layout and the memory can be written
            to, copy otherwise (blocked formats, negative strides, read-only memory, since every
            ``torch.Tensor`` can be written to). True: always copy. False: raise instead of copying. Memory
            that is shared lives as long as either of the two.

        Returns
        -------
        torch.Tensor
            Of the same dims; bf16 and 8-bit floating point included. A copy keeps a dense order of axes
            (``nhwc`` is ``channels_last``), and is ``contiguous_format`` otherwise.

        Raises
        ------
        LayoutError
            ``copy=False`` and the memory can't be shared.
        Unsupported
            4-bit elements, which PyTorch does not compute with; or PyTorch is not installed.

        Examples
        --------
        >>> import relayout as rl
        >>> x = rl.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "ba", "bf16")
        >>> y = x.torch()  # doctest: +SKIP
        >>> y.dtype, y.stride()  # doctest: +SKIP
        (torch.bfloat16, (1, 2))
        """
        _check_copy(copy)
        if self.dtype.bits < 8:
            raise Unsupported(
                f"{self.desc} can't be a torch.Tensor: PyTorch does not compute with {self.dtype}; convert "
                'it first: .reorder(dtype="s8")'
            )
        reason = _no_strides(self.desc) or _not_for_torch(self)
        if copy is False and reason:
            raise LayoutError(f"{self.desc} can't be a torch.Tensor without a copy: {reason}")
        source = self
        if copy or reason:
            format = None if _no_strides(self.desc) else self.desc.format
            source = self.reorder(format or _row_major(self))
        return pytorch.made(_strided(source), self.dtype)

    def item(self, *index: int) -> int | float:
        """One element as a number of Python's.

        Parameters
        ----------
        *index : int
            Which one: a number for each axis, negative ones from the end. Without an index the tensor must
            have one element only.

        Raises
        ------
        LayoutError
            The index is wrong, or there is none and the tensor has more or fewer elements than one.

        Examples
        --------
        >>> import relayout as rl
        >>> x = rl.tensor([[1.5, 2.5]], "ba", "bf16")
        >>> x.item(0, -1), float(x[0, 0])
        (2.5, 1.5)
        """
        if index:
            index = whole_numbers(index, "an index")
            ends = dict(enumerate(self.dims))  # a wrong number of indices is refused by the layout
            place = self.layout.offset(*(n + ends.get(k, 0) if n < 0 else n for k, n in enumerate(index)))
        elif prod(self.dims) == 1:
            place = self.layout.offset(*(0 for _ in self.dims))
        else:
            count = prod(self.dims)
            raise LayoutError(
                f"{self.desc} has {counted(count, 'element')}; only a tensor with one is a number"
            )
        kind = self.dtype
        if kind.bits < 8:
            half = int(self.buffer[place >> 1]) >> 4 * (place & 1) & 15
            return (half ^ 8) - 8 if kind.is_signed else half
        width = kind.bits // 8
        value = self.buffer[place * width : (place + 1) * width].view(kind.numpy)[0]
        return float(value) if kind.is_float else int(value)

    def tolist(self) -> Any:
        """The logical array as nested lists of Python's numbers; a number where there are no axes.

        Examples
        --------
        >>> import relayout as rl
        >>> rl.tensor([[1, 2], [3, 4]], "ba", "s4").tolist()
        [[1, 2], [3, 4]]
        """
        array = self.numpy()
        if array.dtype.kind not in "fiu":  # ml_dtypes' scalars are no numbers of Python's
            array = array.astype(np.float32 if self.dtype.is_float else np.int8)
        return array.tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """NumPy's protocol: ``np.asarray(tensor)`` is the logical array."""
        array = self.numpy(copy)
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """DLPack's protocol, bf16 and 8-bit floating point included.

        The memory is shared where strides of 0 and more can say the layout; other layouts are copied with
        ``copy=True`` only, and raise without it. Memory that is read-only is copied, and raises if ``copy``
        is False: DLPack has a flag for it since version 1.0, which the copy has, too; but PyTorch, which asks
        for that version, does not look at it and writes to such memory.

        Raises
        ------
        BufferError
            The memory can't be shared, or the device is another one.
        """
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self.desc} is in the CPU's memory, not on DLPack's device {dl_device}")
        if stream is not None:
            raise BufferError(f"{self.desc} is in the CPU's memory, which has no stream {stream}; give None")
        if self.dtype.bits < 8:
            raise BufferError(f"{self.desc}: two elements share a byte, which DLPack can't say with strides")
        instead = "Tensor.torch() and copy=True make a copy, Tensor.numpy() an array"
        reason = _no_strides(self.desc) or ("it has negative strides" if _goes_back(self) else "")
        if reason and not copy:
            raise BufferError(
                f"{self.desc} can't be shared through DLPack without a copy: {reason}; {instead}"
            )
        read_only = not self.buffer.flags.writeable
        if read_only and copy is False:
            raise BufferError(
                f"{self.desc} can't be shared through DLPack: its memory is read-only; {instead}"
            )
        elements = self.numpy(copy=bool(copy or read_only))
        if read_only and not copy and max_version is not None and max_version >= (1, 0):
            elements.flags.writeable = False
        with lock():
            from relayout.exchange.dlpack import exported
        return exported(elements, self.dtype, **({} if max_version is None else {"max_version": max_version}))

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device: the CPU."""
        return (1, 0)

    # -- padding ------------------------------------------------------------------------------------------

    def padding_is_zero(self) -> bool:
        """Whether all padding holds zeros, as it does in every tensor that Relayout makes.

        Kernels may rely on it: a convolution reads the padding of its channels. Buffers that came from
        elsewhere can be checked with this.

        Returns
        -------
        bool
            True if every bit of the padding is 0 (-0.0 is none), and where there is no padding. Elements and
            holes, the memory between the rows of a view for instance, are not looked at; nor is, for a view
            that ends within a block, what follows there: it belongs to its neighbour.

        Examples
        --------
        >>> import numpy as np
        >>> import relayout as rl
        >>> buffer = np.ones(32, np.float32)
        >>> x = rl.from_buffer(buffer, rl.MemoryDesc((1, 17, 1, 1), "f32", "nChw16c"))
        >>> x.padding_is_zero()
        False
        >>> buffer[17:] = 0  # 15 places for channels that there are not
        >>> x.padding_is_zero()
        True
        """
        if not self.layout.has_padding:
            return True
        with lock():
            from relayout.loops.nest import places, view
            from relayout.loops.padding import padding
        bits, data = self.dtype.bits, self.buffer
        nests = padding(self.layout)
        if bits < 8:
            parts = (at for nest in nests for at in places(nest, most=GATHERED))
            return not any((data[at >> 1] >> ((at & 1) << 2).astype(np.uint8) & 15).any() for at in parts)
        elements = data[: data.size // (bits // 8) * (bits // 8)].view(f"u{bits // 8}")
        return not any(view(nest, elements).any() for nest in nests)

    # -- data moved ---------------------------------------------------------------------------------------

    def reorder(
        self, format: FormatLike | None = None, dtype: DTypeLike | None = None, **attributes: Any
    ) -> Tensor:
        """Return the same elements in another format or data type; see :func:`relayout.reorder`.

        Examples
        --------
        >>> import relayout as rl
        >>> rl.tensor([[1.5, 2.5], [-300.0, 300.0]]).reorder("ba", "s8").buffer.view("int8")
        array([   2, -128,    2,  127], dtype=int8)
        """
        from relayout.reorder import reorder  # which relayout has imported already

        return reorder(self, format, dtype=dtype, **attributes)

    # -- views --------------------------------------------------------------------------------------------

    def _view(self, layout: Layout) -> Tensor:
        return Tensor(MemoryDesc._make(layout.dims, self.dtype, layout), self.buffer)

    def submemory(self, dims: Sequence[int], offsets: Sequence[int]) -> Tensor:
        """The part of ``dims`` elements that starts at ``offsets`` (oneDNN's sub-memory).

        Shares the buffer.
        """
        return Tensor(self.desc.submemory(dims, offsets), self.buffer)

    def permute_axes(self, perm: Sequence[int]) -> Tensor:
        """Axis i becomes axis ``perm[i]`` (oneDNN's meaning, the inverse of :meth:`permute`).

        Shares the buffer.
        """
        return Tensor(self.desc.permute_axes(perm), self.buffer)

    def permute(self, *axes: int) -> Tensor:
        """Axis k of the view is axis ``axes[k]`` (NumPy's and PyTorch's meaning); shares the buffer."""
        return self._view(_views().permute(self.layout, axes))

    def transpose(self, axis0: int = -2, axis1: int = -1) -> Tensor:
        """Swap two axes; shares the buffer."""
        return self._view(_views().transpose(self.layout, axis0, axis1))

    def reshape(self, *dims: int | Sequence[int]) -> Tensor:
        """The elements in row-major order under other sizes; shares the buffer, or raises.

        Examples
        --------
        >>> import relayout as rl
        >>> x = rl.tensor([[1, 2, 3], [4, 5, 6]], "ba")
        >>> x.reshape(6).numpy()
        array([1, 2, 3, 4, 5, 6])
        """
        return self._view(_views().reshape(self.layout, _sizes(dims)))

    def split(self, axis: int, *sizes: int | Sequence[int]) -> Tensor:
        """Replace an axis by several whose sizes multiply to it; shares the buffer."""
        return self._view(_views().split_axis(self.layout, axis, _sizes(sizes)))

    def merge(self, first: int, last: int) -> Tensor:
        """Replace the neighbouring axes ``first .. last`` by one; shares the buffer."""
        return self._view(_views().merge_axes(self.layout, first, last))

    def squeeze(self, axis: int | None = None) -> Tensor:
        """Drop an axis of size 1 (None: all); shares the buffer."""
        return self._view(_views().squeeze(self.layout, axis))

    def unsqueeze(self, axis: int) -> Tensor:
        """Insert an axis of size 1; shares the buffer."""
        return self._view(_views().unsqueeze(self.layout, axis))

    def broadcast_to(self, *dims: int | Sequence[int]) -> Tensor:
        """Repeat axes of size 1 without storing them again; shares the buffer.

        The view can be read, not written.
        """
        return self._view(_views().broadcast_to(self.layout, _sizes(dims)))

    def parts(self, axis: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """Cut the tensor along an axis into views: what fills them fills the tensor (concat in place).

        Raises
        ------
        LayoutError
            The sizes don't add up, or a part cuts a block at an uneven place.

        Examples
        --------
        >>> import numpy as np
        >>> import relayout as rl
        >>> result = rl.tensor(np.zeros((1, 32, 1, 1), np.float32), "nChw16c")
        >>> left, right = result.parts(1, (16, 16))
        >>> _ = rl.reorder(np.ones((1, 16, 1, 1), np.float32), left.desc, out=left)
        >>> result.numpy().sum(), right.numpy().sum()
        (np.float32(16.0), np.float32(0.0))
        """
        lengths = check_dims(sizes)
        where = _views().axis_of(self.layout, axis)
        if sum(lengths) != self.dims[where]:
            raise LayoutError(
                f"parts of {' + '.join(map(str, lengths))} elements don't make up axis {where} of "
                f"{self.desc}, which has {self.dims[where]}"
            )
        ends = accumulate(lengths)
        return tuple(
            self._view(_views().slice_axis(self.layout, where, end - n, end))
            for n, end in zip(lengths, ends, strict=True)
        )

    def __getitem__(self, key: Any) -> Tensor:
        """Views by NumPy's basic indexing: numbers, slices with steps, ``None`` and ``...``.

        Shares the buffer.
        """
        return self._view(_indexed(self.layout, key if isinstance(key, tuple) else (key,)))

    def __iter__(self) -> Iterator[Tensor]:
        """The views ``self[0]``, ``self[1]``, ... along axis 0, as those of an array."""
        return (self[k] for k in range(len(self)))

    def __len__(self) -> int:
        if not self.dims:
            raise TypeError("a tensor without axes has no length")
        return self.dims[0]

    def _repr_svg_(self) -> str:
        """The tensor on a sheet with its values, for notebooks."""
        with lock():
            from relayout.draw.notebook import of_tensor
        return of_tensor(self)

    def __repr__(self) -> str:
        return f"Tensor({str(self.desc)!r})"


def tensor(array: Any, format: FormatLike | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Make a tensor from a logical array.

    Parameters
    ----------
    array : array_like
        Anything NumPy or DLPack reads: arrays of any strides, nested lists, CPU tensors of PyTorch (see
        :mod:`relayout.exchange.pytorch`), another Tensor.
    format : str, Format, Layout, MemoryDesc or torch.memory_format, optional
        The memory format to lay the elements out in (zeros in the padding). Without one the tensor shares the
        memory of the array, with its strides, whatever they are (4-bit arrays, which NumPy keeps one to a
        byte, are packed instead).
    dtype : optional
        The data type to convert to, by the rules of :mod:`relayout.convert`.

    Raises
    ------
    LayoutError
        The data type is none of ours, the format does not fit, the array has more than 12 axes, or it has no
        memory that could be shared (tensors of PyTorch on other devices, masked arrays).

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> a = np.arange(24.0).reshape(2, 3, 4)
    >>> rl.tensor(a.transpose(2, 0, 1)[::2]).desc.strides
    (2, 12, 4)
    >>> rl.tensor(a, "acb", dtype="bf16").desc
    MemoryDesc('bf16:acb:2x3x4')
    """
    made = array if isinstance(array, Tensor) else _shared(as_array(array, lasting=format is None))
    if format is None and (dtype is None or made.dtype == dtype):
        return made
    return made.reorder(format if format is not None else _row_major(made), dtype)


def from_buffer(buffer: Any, desc: MemoryDesc) -> Tensor:
    """Describe bytes that already are in the descriptor's layout; the memory is shared.

    Parameters
    ----------
    buffer : buffer
        ``bytes``, ``bytearray``, ``memoryview``, ``mmap``, or a contiguous array of NumPy of any type. A
        ``torch.Tensor`` is taken as plans take it: of the descriptor's dims with its strides, or as a buffer,
        of its data type or of bytes, with one axis or in the physical shape of the format.
    desc : MemoryDesc
        What the bytes mean. The buffer must hold ``desc.required_bytes``; it may be longer.

    Raises
    ------
    LayoutError
        The buffer is too short or not contiguous, a ``torch.Tensor`` has other strides or another data type
        than the descriptor, or the format of the descriptor is ``any``.

    Examples
    --------
    >>> import relayout as rl
    >>> rl.from_buffer(bytes(range(8)), rl.MemoryDesc((2, 4), "u8", "ba")).numpy()
    array([[0, 2, 4, 6],
           [1, 3, 5, 7]], dtype=uint8)
    """
    if not isinstance(desc, MemoryDesc):
        how = f"rl.MemoryDesc(dims, dtype, {desc!r})" if isinstance(desc, str) else "rl.MemoryDesc(...)"
        raise LayoutError(
            "from_buffer takes a MemoryDesc, since bytes have no dims and no data type; got "
            f"{described(desc)}. Give {how}"
        )
    if desc.layout is None:
        raise LayoutError(f"{desc} has no layout yet, so no buffer can be in it")
    if pytorch.is_tensor(buffer):
        data = of_torch(buffer, desc, "the buffer", lasting=True, longer=True).buffer
    else:
        data = as_bytes(buffer)
    if data.size < desc.required_bytes:
        raise LayoutError(f"{desc} needs {desc.required_bytes} bytes; the buffer has {data.size}")
    return Tensor(desc, data)


def as_bytes(buffer: Any) -> NDArray[np.uint8]:
    """The bytes of a buffer as a one-dimensional array that shares them."""
    if isinstance(buffer, Tensor):
        return buffer.buffer
    if pytorch.is_tensor(buffer):
        buffer = pytorch.memory(buffer)
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise LayoutError(
                f"the buffer, an array of shape {buffer.shape}, is not contiguous; give its physical bytes"
            )
        return buffer.reshape(-1).view(np.uint8)
    pytorch.refuse_storage(buffer)
    try:
        return (
            np.frombuffer(buffer, dtype=np.uint8)
            if len(memoryview(buffer).cast("B"))
            else np.empty(0, np.uint8)
        )
    except (TypeError, ValueError, BufferError) as error:
        if isinstance(error, TypeError):  # it has no memory to look at
            reason = "give bytes, an array, a Tensor or a torch.Tensor"
            if isinstance(buffer, (list, tuple, int, float)):
                reason += "; rl.tensor(x) makes one of numbers"
        else:
            reason = str(error)
        raise LayoutError(f"{type_name(buffer)} is no contiguous buffer of bytes: {reason}") from None


def of_torch(
    given: Any,
    desc: MemoryDesc,
    what: str,
    *,
    writing: bool = False,
    lasting: bool = False,
    longer: bool = False,
) -> Tensor:
    """The Tensor that a ``torch.Tensor`` is where one of a descriptor is needed; it shares the memory.

    Of the descriptor's dims it is the logical tensor, and its strides must be those of the descriptor. Of
    other dims it must be a contiguous buffer of the descriptor's data type, or of bytes: with one axis and of
    the descriptor's size, or in the physical shape of the format, from which axes of size 1 may be left out
    (``2x14x14x16`` for ``nChw16c:2x16x14x14``).

    Parameters
    ----------
    given : torch.Tensor
        What a caller gave.
    desc : MemoryDesc
        What it must be, with a layout.
    what : str
        What the caller gave it as, for errors: "reorder: src".
    writing : bool
        Whether it is to be written; :func:`relayout.exchange.pytorch.written` must be called then.
    lasting : bool
        Whether the result outlives the call (:func:`relayout.exchange.pytorch.memory`).
    longer : bool
        Whether a buffer with one axis may be longer than the descriptor says.

    Raises
    ------
    LayoutError
        Data type, dims or strides differ, or it has no memory that could be shared.
    """
    try:
        array = pytorch.memory(given, writing=writing, lasting=lasting)
    except LayoutError as error:
        raise LayoutError(f"{what}: {error}") from None
    same_type = array.dtype == desc.dtype.numpy
    if same_type and array.shape == desc.dims:
        tensor = _shared(array)
        if tensor.desc is desc or same_bytes(tensor.desc, desc):
            return tensor
        raise _other_strides(given, array, desc, what, writing)
    made = f"{what} must be {desc}, but {_spelled(given, array)}"
    if not same_type and (array.dtype != np.uint8 or array.ndim != 1):
        raise LayoutError(f"{made}: its data type differs")
    room = tuple(digit.extent for digit in desc.layout.digits)
    as_buffer = array.ndim == 1 and not (same_type and desc.rank == 1 and desc.layout.is_plain)
    if not as_buffer and not _without_ones(array.shape, room):
        raise LayoutError(f"{made}: these are neither its dims nor its physical shape, {spell_dims(room)}")
    if not array.flags.c_contiguous:
        raise LayoutError(f"{made}, which is no contiguous buffer")
    if (
        as_buffer
        and not longer
        and not _has_holes(desc)
        and array.nbytes not in (desc.required_bytes, desc.nbytes)
    ):
        raise LayoutError(f"{made}: as a buffer it must have {desc.nbytes} bytes, and it has {array.nbytes}")
    return Tensor(desc, array.reshape(-1).view(np.uint8))


def _has_holes(desc: MemoryDesc) -> bool:
    """Whether a descriptor is of a part of its memory, which may be longer than the descriptor tells."""
    return prod(desc.layout.padded) * desc.dtype.bits < desc.required_bytes * 8 - 7


def _without_ones(shape: tuple[int, ...], room: tuple[int, ...]) -> bool:
    """Whether a shape is another one of which axes of size 1 may have been left out.

    >>> [_without_ones(shape, (2, 1, 3)) for shape in ((2, 1, 3), (2, 3), (1, 2, 3), (2, 3, 1))]
    [True, True, False, False]
    """
    at = 0
    for size in room:
        if at < len(shape) and shape[at] == size:
            at += 1
        elif size != 1:
            return False
    return at == len(shape)


def _spelled(given: Any, array: NDArray[Any]) -> str:
    return f"a {type_name(given)} of {dtype(array.dtype)}, {spell_dims(array.shape)}, was given"


def _other_strides(
    given: Any, array: NDArray[Any], desc: MemoryDesc, what: str, writing: bool
) -> LayoutError:
    """A tensor has the dims and the data type of a descriptor, but other strides.

    What is written must be allocated as it has to be: a copy of it would be filled instead.
    """
    strides = spell_dims(tuple(step // array.itemsize for step in array.strides))
    if not desc.layout.is_plain:
        remedy = "no strides describe this format: give its buffer, or convert with rl.reorder"
    elif desc.offset0:
        remedy = f"it begins at element {desc.offset0} of its buffer: give the whole buffer"
    else:
        name = desc.name("pytorch")
        if writing:
            geometry = f"{desc.dims}, dtype={given.dtype}, memory_format=torch.{name}"
            empty = f"torch.empty({geometry})"
            if not name:
                empty = f"torch.empty_strided({desc.dims}, {desc.strides}, dtype={given.dtype})"
            remedy = f"allocate {empty}"
        elif name:
            remedy = f"give x.contiguous(memory_format=torch.{name})"
        else:
            remedy = f"give torch.empty_strided({desc.dims}, {desc.strides}, dtype=x.dtype).copy_(x)"
        remedy += f", or describe what you have: rl.tensor({'out' if writing else 'x'}).desc"
    named = desc.layout.is_plain and " strides " not in str(desc)  # others say their strides themselves
    wanted = f" with strides {spell_dims(desc.strides)}" if named else ""
    return LayoutError(
        f"{what} must be {desc}{wanted}, but {_spelled(given, array)} with strides {strides}; {remedy}"
    )


def same_bytes(one: MemoryDesc, two: MemoryDesc) -> bool:
    """Whether a buffer of one descriptor is a buffer of the other; remembered for these two objects.

    By identity, since to compare descriptors takes ten times as long as all else that a call checks.
    """
    known = _COMPARED.get((id(one), id(two)))
    if known is None:
        if len(_COMPARED) >= REMEMBERED:
            _COMPARED.clear()
        same = one.dims == two.dims and one.dtype == two.dtype and one.layout.same_bytes(two.layout)
        known = _COMPARED[id(one), id(two)] = one, two, same  # kept alive, so that the numbers stay theirs
    return known[2]


_COMPARED: dict[tuple[int, int], tuple[MemoryDesc, MemoryDesc, bool]] = {}


def located(buffer: Any) -> tuple[NDArray[Any], int]:
    """The array of any type and shape, contiguous in memory, that a buffer is, and its address.

    The address holds for as long as somebody holds the array. It is read anew each time: a tensor's buffer
    may be exchanged, an array resized.
    """
    data = buffer.buffer if isinstance(buffer, Tensor) else buffer
    if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
        data = as_bytes(data)
    return data, address(data)


def address(data: NDArray[Any]) -> int:
    """Where an array begins in memory."""
    if data.flags.writeable:
        try:
            return addressof(c_char.from_buffer(data.data))  # three times as fast as below
        except (TypeError, ValueError, BufferError):
            pass  # strided, empty, or of a type that the buffer protocol does not know
    return int(data.__array_interface__["data"][0])


def allocate(desc: MemoryDesc) -> NDArray[np.uint8]:
    """A zeroed buffer for a descriptor, aligned to :data:`ALIGNMENT`."""
    check_addresses(desc)
    return aligned(max(desc.required_bytes, desc.nbytes))


def sampled(desc: MemoryDesc) -> NDArray[np.uint8]:
    """A buffer to time kernels with, in which every byte has been written: with :data:`SAMPLE`.

    That is in no data type a subnormal number, an infinity or none at all; integers of more than 8 bits,
    which may be indices, are zero. Zeros everywhere would be timed too well: pages that nobody has written
    to are all one page, which is in the caches; and there are processors (Zen 4) that write lines of zeros
    around the caches in half the time.

    >>> import relayout as rl
    >>> rl.Tensor(desc := rl.MemoryDesc((2,), "f16", "a"), sampled(desc)).numpy()
    array([1.059, 1.059], dtype=float16)
    """
    buffer = allocate(desc)
    buffer[:] = SAMPLE if desc.dtype.is_float or desc.dtype.bits <= 8 else 0
    return buffer


def check_addresses(desc: MemoryDesc, what: str = "a tensor") -> None:
    """Refuse a descriptor whose bytes no process can address, before anything is made for its buffer.

    Descriptors themselves are exact whatever their strides; kernels count bytes in 64 bits, and no processor
    gives a process more than :data:`ADDRESS_BITS` of an address.

    >>> import relayout as rl
    >>> check_addresses(rl.MemoryDesc((2, 3), "f32", strides=(2**62, 1)), "src")
    Traceback (most recent call last):
    relayout.errors.TooLarge: src f32:2x3 strides 4611686018427387904x1 spans 18446744073709551628 bytes; ...
    """
    if desc.required_bytes > 1 << ADDRESS_BITS:
        raise TooLarge(
            f"{what} {desc} spans {desc.required_bytes} bytes; no process has more than 2**{ADDRESS_BITS}"
        )


def aligned(size: int, zeroed: bool = True) -> NDArray[np.uint8]:
    """A buffer of so many bytes that begins on a multiple of :data:`ALIGNMENT`.

    Not zeroed, it holds what lay there before: only for those who write every byte of it.

    Raises
    ------
    TooLarge
        The system has no such memory.
    """
    try:
        raw = np.zeros(size + ALIGNMENT, np.uint8) if zeroed else np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, OverflowError, ValueError):  # the last two: sizes that NumPy can't say
        raise TooLarge(f"a buffer of {size} bytes is needed, and the system has no memory for it") from None
    start = -address(raw) % ALIGNMENT
    return raw[start : start + size]


def on_large_pages(sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Zeroed buffers for what stays and is read often, such as weights: side by side, on large pages.

    Buffers of some megabytes come from memory that the C library has kept, in pages of 4 KiB each of which
    lies somewhere else. Reading 20 MB of weights takes up to 1.5 times as long there as in pages of 2 MiB.
    So these are in memory of their own, for which the system is asked for large pages before it is touched.

    Raises
    ------
    TooLarge
        The system has no such memory.

    Examples
    --------
    >>> [one.nbytes for one in on_large_pages([100, 0, 8 << 20])]
    [100, 0, 8388608]
    """
    size = room_together(sizes)
    return side_by_side(own_pages(size) if size >= LARGE else aligned(size), sizes)


def room_together(sizes: Sequence[int]) -> int:
    """Bytes that buffers take side by side, each of which begins on a multiple of :data:`ALIGNMENT`."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


def side_by_side(whole: NDArray[np.uint8], sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Buffers of these sizes in one that has room for them (:func:`room_together`)."""
    starts = accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0)
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=False)]


def own_pages(size: int) -> NDArray[np.uint8]:
    """Zeroed memory of its own that begins on a large page, if the system has such."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned(size)
    try:
        memory = mmap.mmap(-1, size + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError):
        raise TooLarge(f"a buffer of {size} bytes is needed, and the system has no memory for it") from None
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    start = -address(raw) % LARGE
    return raw[start : start + size]


def _check_copy(copy: object) -> None:
    if copy is not None and not isinstance(copy, (bool, np.bool_)):
        raise LayoutError(f"copy must be True, False or None, got {described(copy)}")


# -- workings -----------------------------------------------------------------------------------------------


def as_array(data: Any, *, lasting: bool = True) -> NDArray[Any]:
    """The logical array that NumPy, PyTorch or DLPack makes of something; memory is shared if it has any.

    ``lasting``: whether it may outlive the call that asks for it (:func:`relayout.exchange.pytorch.memory`).
    """
    # Looked up, because naming it imports it, which a fork in another thread would interrupt.
    if "numpy.ma" in sys.modules and isinstance(data, np.ma.MaskedArray):
        raise LayoutError("a masked array has no values under its mask; fill it first: array.filled(...)")
    if isinstance(data, np.ndarray):
        return data
    if pytorch.is_tensor(data):
        return pytorch.memory(data, lasting=lasting)
    if hasattr(data, "__array__") or not (hasattr(data, "__dlpack__") or type(data).__name__ == "PyCapsule"):
        pytorch.refuse_storage(data)
        try:
            return np.asarray(data)
        except LayoutError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            stack = "; give torch.stack(x) of them" if _first_is_torch(data) else ""
            raise LayoutError(f"{described(data)} can't be read as an array: {reason}{stack}") from None
    with lock():
        from relayout.exchange.dlpack import imported
    return imported(data)


def _first_is_torch(data: object) -> bool:
    """Whether the first thing in nested lists is a ``torch.Tensor``."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return pytorch.is_tensor(data)


def for_a_call(array: Any) -> Tensor:
    """The tensor of a logical array, to be read by the call that asks and not to be kept."""
    return _shared(as_array(array, lasting=False))


def _shared(array: NDArray[Any]) -> Tensor:
    """Describe the memory of an array by its strides."""
    kind = dtype(array.dtype)
    if kind.bits < 8:
        layout = Layout._dense(array.shape, plain(array.ndim))
        return Tensor(MemoryDesc._make(array.shape, kind, layout), pack(array, kind))
    desc, start, order = _described(array.shape, array.strides, array.dtype)
    if array.size == 0:
        return Tensor(desc, np.empty(0, np.uint8))
    if type(array) is np.ndarray:
        turned = array if array.flags.c_contiguous else array.transpose(order)
        if turned.flags.c_contiguous:  # dense in some order of its axes; as_strided takes ten times as long
            return Tensor(desc, turned.reshape(-1).view(np.uint8))
    bits = array.view(f"u{array.itemsize}")  # as_strided does not know the types of ml_dtypes
    lowest = bits[start]
    flat = as_strided(lowest, (desc.layout.span,), (array.itemsize,), writeable=array.flags.writeable)
    return Tensor(desc, flat.view(np.uint8))


@lru_cache(maxsize=4096)
def _described(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype_: np.dtype[Any]
) -> tuple[MemoryDesc, tuple[slice, ...], tuple[int, ...]]:
    """The descriptor of an array with strides in bytes, and the index of its element of lowest address.

    From there the buffer begins: a negative stride then begins at its far end. Last come the axes by their
    strides, longest first.
    """
    kind, item = dtype(dtype_), dtype_.itemsize
    if any(stride % item for stride, size in zip(strides, shape, strict=True) if size > 1):
        raise LayoutError(
            f"strides {strides} (bytes) of the array are no multiples of its {item}-byte elements; "
            "copy it first"
        )
    steps = tuple(stride // item for stride in strides)
    order = tuple(sorted(range(len(shape)), key=lambda a: (-steps[a], -shape[a])))
    if 0 in shape:
        nowhere = Layout._strided(shape, plain(len(shape)), steps, 0, None)
        return MemoryDesc._make(shape, kind, nowhere), (), order
    lowest = tuple(slice(None, None, -1) if s < 0 else slice(None) for s in steps)
    start = sum((n - 1) * -s for n, s in zip(shape, steps, strict=True) if s < 0)
    layout = Layout._strided(shape, plain(len(shape)), steps, start, None)
    return MemoryDesc._make(shape, kind, _named(layout)), lowest, order


def _named(layout: Layout) -> Layout:
    """The same layout; one that is dense in some order of its axes says which."""
    format = MemoryDesc._make(layout.dims, dtype("u8"), layout).format
    dense = Layout._dense(layout.dims, format) if format is not None else None
    return dense if dense == layout else layout


def _row_major(made: Tensor) -> Layout:
    return Layout._dense(made.dims, plain(len(made.dims)))


def _shared_elements(tensor: Tensor) -> NDArray[Any] | None:
    """The logical array as a strided view of the buffer, where there is one."""
    if _no_strides(tensor.desc):
        return None
    view = _strided(tensor)
    if not tensor.layout.is_injective():
        view.flags.writeable = False  # one write would change several elements
    return view


def _strided(tensor: Tensor) -> NDArray[Any]:
    """The same, of a layout that has nothing but strides."""
    layout, numpy_type = tensor.layout, tensor.dtype.numpy
    item = numpy_type.itemsize
    strides = [s * item for s in layout.strides]
    if 0 in layout.dims:
        nothing: NDArray[Any] = np.ndarray(layout.dims, numpy_type, np.empty(0, np.uint8), 0, strides)
        return nothing
    view: NDArray[Any] = np.ndarray(layout.dims, numpy_type, tensor.buffer, layout.offset0 * item, strides)
    return view


def _no_strides(desc: MemoryDesc) -> str:
    """Why no array has its elements where a descriptor has them; empty: some array has."""
    if desc.dtype.bits < 8:
        return f"elements of {desc.dtype} share bytes"
    return "" if desc.layout.is_plain else "its layout has more than strides"


def _not_for_torch(tensor: Tensor) -> str:
    """Why PyTorch can't have the memory of a tensor that has strides; empty: it can."""
    if not tensor.buffer.flags.writeable:
        return "its memory is read-only, and PyTorch knows no such tensors"
    return "PyTorch has no negative strides" if _goes_back(tensor) else ""


def _goes_back(tensor: Tensor) -> bool:
    """Whether a layout that is nothing but strides has negative ones."""
    return any(step < 0 for step in tensor.layout.strides)


def _sizes(given: Sequence[int | Sequence[int]]) -> Sequence[int]:
    if len(given) == 1 and not hasattr(given[0], "__index__"):
        return given[0]
    return given  # type: ignore[return-value]


@lru_cache(maxsize=1)
@locked
def _views() -> Any:
    """The module of views, which describing and reordering tensors does without."""
    from relayout.layout import views

    return views


def _indexed(layout: Layout, key: tuple[Any, ...]) -> Layout:
    """Apply NumPy's basic indexing, an item at a time."""
    if sum(item is Ellipsis for item in key) > 1:
        raise LayoutError("an index can hold one '...' only")
    used = sum(item is not None and item is not Ellipsis for item in key)
    if used > layout.rank:
        raise LayoutError(f"{layout} has {counted(layout.rank, 'axis')}; got {counted(used, 'index')}")
    axis = 0
    for position, item in enumerate(key):
        if item is Ellipsis:
            axis = layout.rank - sum(k is not None for k in key[position + 1 :])
        elif item is None:
            layout = _views().unsqueeze(layout, axis)
            axis += 1
        elif isinstance(item, slice):
            layout = _views().slice_axis(layout, axis, item.start, item.stop, item.step)
            axis += 1
        elif hasattr(item, "__index__") and not isinstance(item, (bool, np.bool_)):
            layout = _views().select(layout, axis, item)
        else:
            raise LayoutError(
                f"{item!r} is no number, slice, None or '...'; indexing by arrays copies, use numpy() for it"
            )
    return layout
