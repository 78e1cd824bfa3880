"""Plans: check once, move often.

A :class:`Reorder` knows both descriptors and the attributes; calling it only needs buffers. :func:`reorder`
is the one-off form that takes tensors and arrays.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, plain, spell_dims
from relayout.layout.refine import refine
from relayout.reorder.attributes import Attributes
from relayout.reorder.engine import reorder_numpy
from relayout.tensor import Tensor, allocate, as_bytes, tensor

if TYPE_CHECKING:
    from relayout.tensor import FormatLike

__all__ = ["Reorder", "reorder"]

COMPARED = 1 << 22  # elements up to which interleaved views of one buffer are compared place by place


class Reorder:
    """A conversion between two descriptors, planned once.

    Parameters
    ----------
    src, dst : MemoryDesc
        Descriptors of the same dims. The destination must not broadcast or overlap itself.
    threads : int, optional
        How many threads may work; the NumPy engine uses one.
    **attributes
        ``src_scale``, ``dst_scale``, ``src_zero_point``, ``dst_zero_point``: a number, or ``(values, axis)``
        along a logical axis; ``beta``: how much of the old destination is added. See
        :mod:`relayout.reorder.attributes` for the formula.

    Raises
    ------
    LayoutError
        Different dims, an undecided format, a destination in which elements share a place, or bad attributes.

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> plan = rl.Reorder(rl.MemoryDesc((1, 3, 1, 2), "u8", "nhwc"), rl.MemoryDesc((1, 3, 1, 2), "f32", "nchw"), src_scale=0.5)
    >>> out = np.empty(6, np.float32)
    >>> plan(np.array([0, 1, 2, 3, 4, 5], np.uint8), out)
    >>> out
    array([0. , 1.5, 0.5, 2. , 1. , 2.5], dtype=float32)
    """

    __slots__ = ("attributes", "dst", "src", "threads")

    def __init__(
        self, src: MemoryDesc, dst: MemoryDesc, *, threads: int | None = None, **attributes: Any
    ) -> None:
        if src.dims != dst.dims:
            raise LayoutError(
                f"source and destination must have the same dims, got {spell_dims(src.dims)} and {spell_dims(dst.dims)}"
            )
        for side, desc in (("source", src), ("destination", dst)):
            if desc.layout is None:
                raise LayoutError(
                    f"the {side} {desc} has no layout; a reorder needs a format, not '{desc.format_kind}'"
                )
        if not dst.layout.is_injective():
            raise LayoutError(
                f"elements of the destination {dst} share places (broadcast or overlapping strides); it can't be written to"
            )
        if dst.layout.has_padding and not dst.layout.room().is_injective():
            raise LayoutError(
                f"padding of the destination {dst} shares places with its elements; strides leave too little room for it"
            )
        if threads is not None and threads < 1:
            raise LayoutError(f"threads must be 1 or more, got {threads}")
        self.src, self.dst, self.threads = src, dst, threads
        self.attributes = Attributes.make(src.dims, **attributes)

    def __call__(self, src: Any, out: Any) -> None:
        """Convert the bytes of ``src`` into ``out``: buffers, or tensors of these descriptors.

        Raises
        ------
        LayoutError
            A buffer is too short, ``out`` can't be written to, or the two overlap.
        """
        source, target = as_bytes(src), as_bytes(out)
        for side, desc, data in (("source", self.src, source), ("destination", self.dst, target)):
            if data.size < desc.required_bytes:
                raise LayoutError(
                    f"the {side} {desc} needs {desc.required_bytes} bytes; its buffer has {data.size}"
                )
        if not target.flags.writeable:
            raise LayoutError(f"the buffer of the destination {self.dst} is read-only")
        if self._overlap(source, target):
            raise LayoutError(
                f"source {self.src} and destination {self.dst} overlap in memory; reorder into a buffer of its own"
            )
        reorder_numpy(self.src, source, self.dst, target, self.attributes)

    def explain(self) -> str:
        """Say what the reorder does: both sides, the loops of their common refinement, and what happens in between.

        Examples
        --------
        >>> import relayout as rl
        >>> plan = rl.Reorder(rl.MemoryDesc((1, 17, 2, 2), "f32", "nchw"), rl.MemoryDesc((1, 17, 2, 2), "f32", "nChw8c"))
        >>> print(plan.explain())
        source       f32:nchw:1x17x2x2       272 bytes
        destination  f32:nChw8c:1x17x2x2     384 bytes
        attributes   none
        engine       NumPy, strided copies: 2 pieces
        <BLANKLINE>
        axis  numbers  loops (extent x step: source stride, destination stride)
        a     0..0     1x1: 0, 0
        b     0..15    2x8: 32, 32; 8x1: 4, 1
              16..16   1x1: 4, 1
        c     0..1     2x1: 2, 16
        d     0..1     2x1: 1, 8
        """
        groups = refine(self.src.layout, self.dst.layout)
        rows = []
        for group in groups:
            names = " ".join(plain(len(self.src.dims)).axis_names()[a] for a in group.axes)
            if group.pieces is None:
                rows.append((names, f"0..{group.size - 1}", "no common nest: table of offsets"))
            for k, piece in enumerate(group.pieces or ()):
                loops = "; ".join(
                    f"{loop.extent}x{loop.step}: {loop.src}, {loop.dst}" for loop in piece.loops
                )
                last = piece.start + sum((loop.extent - 1) * loop.step for loop in piece.loops)
                rows.append((names if k == 0 else "", f"{piece.start}..{last}", loops))
        if all(group.pieces is not None for group in groups):
            count = prod(len(group.pieces or ()) for group in groups)
            how = f"NumPy, strided copies: {count} piece{'s' * (count != 1)}"
        else:
            how = "NumPy, gather by tables of offsets"
        sides = [
            f"{side:<12} {desc!s:<23} {desc.nbytes} bytes"
            for side, desc in (("source", self.src), ("destination", self.dst))
        ]
        lines = [*sides, f"attributes   {self.attributes}", f"engine       {how}", ""]
        table = [("axis", "numbers", "loops (extent x step: source stride, destination stride)"), *rows]
        widths = [max(len(row[k]) for row in table) for k in range(2)]
        lines += [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in table]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Reorder({str(self.src)!r}, {str(self.dst)!r}, attributes: {self.attributes})"

    def _overlap(self, source: NDArray[np.uint8], target: NDArray[np.uint8]) -> bool:
        """Whether any byte of the destination is one of the source.

        Interleaved views of one buffer are compared place by place.
        """
        if not np.may_share_memory(source, target) or 0 in self.src.dims:
            return False
        begins = [
            data.__array_interface__["data"][0] * 8 for data in (source, target)
        ]  # in bits: elements may be half bytes
        ranges = []
        for start, desc in zip(begins, (self.src, self.dst), strict=True):
            low, high = desc.layout.bounds()
            ranges.append((start + low * desc.dtype.bits, start + (high + 1) * desc.dtype.bits))
        if ranges[0][1] <= ranges[1][0] or ranges[1][1] <= ranges[0][0]:
            return False
        one, two = self.src, self.dst
        alike = one.dtype.bits == two.dtype.bits and (begins[0] - begins[1]) % one.dtype.bits == 0
        if not alike or max(one.layout.size, two.layout.size) > COMPARED or two.layout.has_padding:
            return True
        shift = (begins[1] - begins[0]) // one.dtype.bits
        return bool(np.intersect1d(_places(one.layout), _places(two.layout) + shift).size)


def reorder(
    src: Any,
    dst: FormatLike | None = None,
    *,
    out: Any = None,
    dtype: DTypeLike | None = None,
    threads: int | None = None,
    src_scale: Any = None,
    dst_scale: Any = None,
    src_zero_point: Any = None,
    dst_zero_point: Any = None,
    beta: float = 0,
) -> Tensor:
    """Convert a tensor to another format, another data type, or both.

    Parameters
    ----------
    src : Tensor or array_like
        The source; arrays are taken as logical arrays, with any strides.
    dst : str, Format, Layout or MemoryDesc, optional
        The destination. Without one the format stays (dense).
    out : Tensor or writable buffer, optional
        Where to write; it must be of the destination's descriptor. Padding is zeroed, holes are left alone.
        It may be a view of a bigger tensor, but must not overlap the source.
    dtype : optional
        The data type of the destination; without one that of ``dst`` if it is a descriptor, of ``out`` if it
        is a tensor, or of the source.
    threads : int, optional
        How many threads may work; the NumPy engine uses one.
    src_scale, dst_scale, src_zero_point, dst_zero_point : number or (values, axis), optional
        ``dst = saturate(round_half_even((src_scale * (src - src_zero_point) + beta * dst) / dst_scale +
        dst_zero_point))``
    beta : float
        How much of the old destination is added; needs ``out``.

    Returns
    -------
    Tensor
        The destination (``out`` itself, if it was a tensor).

    Raises
    ------
    LayoutError
        Something does not fit; nothing has been written then.

    Examples
    --------
    A photograph's bytes, ``nhwc``, to the floats of a network, ``nChw16c``, in one call:

    >>> import numpy as np
    >>> import relayout as rl
    >>> picture = rl.from_buffer(bytes(range(48)), rl.MemoryDesc((1, 3, 4, 4), "u8", "nhwc"))
    >>> x = rl.reorder(picture, "nChw16c", dtype="f32", src_scale=1 / 255)
    >>> x.desc, x.buffer.view(np.float32)[:4].round(4)
    (MemoryDesc('f32:nChw16c:1x3x4x4'), array([0.    , 0.0039, 0.0078, 0.    ], dtype=float32))
    """
    source = src if isinstance(src, Tensor) else tensor(src)
    desc = _destination(source, dst, out, dtype)
    plan = Reorder(
        source.desc,
        desc,
        threads=threads,
        src_scale=src_scale,
        dst_scale=dst_scale,
        src_zero_point=src_zero_point,
        dst_zero_point=dst_zero_point,
        beta=beta,
    )
    if out is not None:
        plan(source.buffer, out)
        return out if isinstance(out, Tensor) else Tensor(desc, as_bytes(out))
    if beta:
        raise LayoutError(f"beta {beta:g} adds to the old destination, but no out was given")
    made = Tensor(desc, allocate(desc))
    reorder_numpy(source.desc, source.buffer, desc, made.buffer, plan.attributes, zeroed=True)
    return made


def _destination(source: Tensor, dst: FormatLike | None, out: Any, dtype: DTypeLike | None) -> MemoryDesc:
    given = out.desc if isinstance(out, Tensor) else None
    if dst is None and given is not None:
        dst = given
    if isinstance(dst, MemoryDesc):
        if dtype is not None and dst.dtype != dtype:
            raise LayoutError(f"the destination is {dst}, but dtype {as_dtype(dtype)} was asked for")
        desc = dst
    else:
        kind = as_dtype(dtype) if dtype is not None else given.dtype if given is not None else source.dtype
        desc = MemoryDesc(source.dims, kind, _dense(source.desc) if dst is None else dst)
    if given is not None and (given.dtype != desc.dtype or not given.layout.same_bytes(desc.layout)):
        if isinstance(dst, (str, Format)) and given.dtype == desc.dtype and given.dims == desc.dims:
            raise LayoutError(f"out is {given}, which is not {dst} as asked for")
        raise LayoutError(f"out is {given}, but the destination is {desc}")
    return desc


def _dense(desc: MemoryDesc) -> Format | Layout:
    """The format of a tensor if it has one, else row-major."""
    if desc.layout is None:
        raise LayoutError(f"the source {desc} has no layout")
    return desc.format or Layout._dense(desc.dims, plain(desc.rank))


def _places(layout: Layout) -> NDArray[np.int64]:
    indices = np.moveaxis(np.indices(layout.dims), 0, -1).reshape(-1, layout.rank)
    return np.unique(layout.offsets(indices))
