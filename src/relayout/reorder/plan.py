"""The one-off form of reorder: it takes tensors and arrays, and remembers what it planned.

Asked for the same again, it finds the :class:`~relayout.reorder.conversion.Conversion` in two look-ups ::

    (source descriptor, "nhwc", data type)  ->  one without attributes: everything checked    _move
    (that one, attributes)                  ->  the same with attributes: values packed       _with

so that values which change with every call (the scale of one picture) push nothing checked out. What is
remembered starts in NumPy and is compiled when its problem turns out to be worth it.

What makes a key needs care. Descriptors that are equal may be spelled differently (``nchw``, ``oihw``), so a
conversion that was asked for by text is kept by that text: the tensor that it makes is spelled as asked. And
0.0 equals -0.0 but scales differently, so attributes are equal only if their bytes are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.dtypes import DType, DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, type_name
from relayout.exchange import pytorch
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, plain, spell_dims
from relayout.layout.spelling import text_of
from relayout.reorder.arguments import check_out
from relayout.reorder.attributes import Attributes
from relayout.reorder.axes import asked_for, check_axes
from relayout.reorder.conversion import Conversion, check_threads
from relayout.tensor import Tensor, as_bytes, for_a_call, of_torch, same_bytes, tensor

if TYPE_CHECKING:
    from relayout.tensor import FormatLike

__all__ = ["reorder"]

REMEMBERED = 1 << 14  # bytes of attribute values up to which their plan is remembered


def reorder(
    src: Any,
    dst: FormatLike | None = None,
    *,
    out: Any = None,
    dtype: DTypeLike | None = None,
    axes: str = "meaning",
    threads: int | None = None,
    src_scale: Any = None,
    dst_scale: Any = None,
    src_zero_point: Any = None,
    dst_zero_point: Any = None,
    src_shift: Any = None,
    beta: float = 0,
) -> Tensor:
    """Convert a tensor to another format, another data type, or both.

    Parameters
    ----------
    src : Tensor or array_like
        The source; arrays, and tensors of PyTorch, are taken as logical arrays, with any strides.
    dst : str, Format, Layout, MemoryDesc or torch.memory_format, optional
        The destination. Without one the format stays (dense). A format takes over the logical order of the
        source, and what its axes mean; a layout or descriptor has its own, and axes are matched by meaning.
    out : Tensor, torch.Tensor or writable buffer, optional
        Where to write; it must be of the destination's descriptor. Padding is zeroed, holes are left alone.
        It may be a view of a bigger tensor, but must not overlap the source. A ``torch.Tensor`` of the
        source's dims is filled by its own strides.
    dtype : optional
        The data type of the destination; without one that of ``dst`` if it is a descriptor, of ``out`` if it
        is a tensor, or of the source.
    axes : str
        "meaning": axes that both sides give a meaning are matched by it (:mod:`relayout.layout.roles` has the
        rules). "position": axis k of the source is axis k of the destination, whatever they mean.
    threads : int, optional
        How many threads may work; the NumPy engine uses one.
    src_scale, dst_scale, src_zero_point, dst_zero_point, src_shift : number or (values, axis), optional
        ``dst = saturate(round_half_even((src_scale * (src - src_zero_point) - src_shift + beta * dst) /
        dst_scale + dst_zero_point))``. Zero points are whole numbers; with a shift the arithmetic is in f64.
    beta : float
        How much of the old destination is added; needs ``out``.

    Returns
    -------
    Tensor
        The destination (``out`` itself, if it was a Tensor; one that shares the memory of any other ``out``,
        so that PyTorch does not resize a ``torch.Tensor`` from then on; a plan's ``out`` stays resizable).

    Raises
    ------
    LayoutError
        Something does not fit, or the axes of both sides mean different things; nothing has been written
        then.

    Examples
    --------
    Meaning counts, not position: ``NHWC4@nhwc`` is indexed n, h, w, c, and still c stays c.

    >>> import relayout as rl
    >>> x = rl.tensor([[[[1, 2]], [[3, 4]], [[5, 6]]]], "nchw")
    >>> rl.reorder(x, "NHWC4@nhwc").buffer.view("int64")
    array([1, 3, 5, 0, 2, 4, 6, 0])

    A photograph's bytes, ``nhwc``, to the floats of a network, ``nChw16c``, in one call:

    >>> import numpy as np
    >>> import relayout as rl
    >>> picture = rl.from_buffer(bytes(range(48)), rl.MemoryDesc((1, 3, 4, 4), "u8", "nhwc"))
    >>> x = rl.reorder(picture, "nChw16c", dtype="f32", src_scale=1 / 255)
    >>> x.desc, x.buffer.view(np.float32)[:4].round(4)
    (MemoryDesc('f32:nChw16c:1x3x4x4'), array([0.    , 0.0039, 0.0078, 0.    ], dtype=float32))
    """
    source = src if isinstance(src, Tensor) else for_a_call(src)
    if threads is not None:
        check_threads(threads)
    if type(axes) is not str:
        check_axes(axes)
    foreign = None
    if out is not None and pytorch.is_tensor(out):
        foreign, out = out, _of_torch(out, source, dst, dtype, axes)
    plan, desc = _destination(source, dst, out, dtype, axes)
    none = src_scale is dst_scale is src_zero_point is dst_zero_point is src_shift is None
    if not none or type(beta) not in (int, float) or beta != 0:
        attributes = Attributes.make(
            source.dims,
            src_scale=src_scale,
            dst_scale=dst_scale,
            src_zero_point=src_zero_point,
            dst_zero_point=dst_zero_point,
            src_shift=src_shift,
            beta=beta,
        )
        known = attributes.nbytes <= REMEMBERED
        plan = _with(plan, attributes) if known else plan.with_attributes(attributes)
    if not plan.decided:
        _compile_if_worth(plan)
    if out is not None:
        check_out(out, desc)
        fast = plan.hastened(threads)  # descriptors have been compared, so buffers will do
        if fast is None or not fast(source.buffer, out.buffer if isinstance(out, Tensor) else out):
            plan(source, out, threads)
        if foreign is not None:
            pytorch.written(foreign)
        return out if isinstance(out, Tensor) else Tensor(desc, as_bytes(out))
    if plan.attributes.reads_destination:
        raise LayoutError(f"beta {beta:g} adds to the old destination, but no out was given")
    return Tensor(desc, plan.made(source, threads))


def _of_torch(out: Any, source: Tensor, dst: FormatLike | None, dtype: DTypeLike | None, axes: str) -> Tensor:
    """What a ``torch.Tensor`` is as ``out``: of the source's dims a strided tensor, else a buffer."""
    try:
        dims = pytorch.dims(out)
        if dims == source.dims:
            return tensor(pytorch.memory(out, writing=True))
    except LayoutError as error:
        raise LayoutError(f"out can't be written to: {error}") from None
    if dst is None:
        raise LayoutError(
            f"out is a {type_name(out)} of {spell_dims(dims)}, but the source is {source.desc}; "
            "without a destination's format both must have the same dims"
        )
    return of_torch(out, _destination(source, dst, None, dtype, axes)[1], "out", writing=True, lasting=True)


def _compile_if_worth(plan: Conversion) -> None:
    if _judge()(plan.src, plan.alike):
        plan.compile()


# Imported under the lock, once: whoever is past that must not wait for others who compile.


@lru_cache(maxsize=1)
def _judge() -> Callable[[MemoryDesc, MemoryDesc], bool]:
    with lock():
        from relayout.reorder.native import worth_compiling
    return worth_compiling


@lru_cache(maxsize=1024)
def _move(
    src: MemoryDesc,
    src_roles: tuple[str, ...] | None,
    dst: MemoryDesc | str,
    dst_roles: tuple[str, ...] | None,
    kind: DType | None,
    axes: str,
) -> Conversion:
    """The plan without attributes to a descriptor, or to the format that a text names (None: same type).

    Roles, in which descriptors that are equal may differ, are there for the key.
    """
    check_axes(axes)
    desc = asked_for(src, Format(dst), kind, axes) if isinstance(dst, str) else dst
    return Conversion.uncompiled(src, desc, axes)


@lru_cache(maxsize=256)
def _with(move: Conversion, attributes: Attributes) -> Conversion:
    """The plan with attributes."""
    return move.with_attributes(attributes)


def _destination(
    source: Tensor, dst: FormatLike | None, out: Any, dtype: DTypeLike | None, axes: str
) -> tuple[Conversion, MemoryDesc]:
    """The plan without attributes, and the descriptor of the result as the caller spells it."""
    given = out.desc if isinstance(out, Tensor) else None
    kind = as_dtype(dtype) if dtype is not None else None
    roles = _roles(source.desc)
    if dst is None and given is not None:
        dst = given
    dst = text_of(dst) or dst
    if isinstance(dst, MemoryDesc):
        if kind is not None and dst.dtype != kind:
            raise LayoutError(f"the destination is {dst}, but dtype {kind} was asked for")
        plan, desc = _move(source.desc, roles, dst, _roles(dst), None, axes), dst
    else:
        if kind is None and given is not None:
            kind = given.dtype
        if isinstance(dst, str):
            plan = _move(source.desc, roles, dst, None, kind, axes)
            desc = plan.dst
        else:
            if isinstance(dst, (Tensor, np.ndarray)) or pytorch.is_tensor(dst):
                raise LayoutError(
                    "a destination is a format: text, a Format, a Layout or a MemoryDesc, got "
                    f"{type_name(dst)}; to fill it, name it: rl.reorder(x, out=...)"
                )
            format = _dense(source.desc) if dst is None else dst
            if isinstance(format, Format):
                desc = asked_for(source.desc, format, kind, axes)
            else:
                dims = format.dims if isinstance(format, Layout) else source.dims
                desc = MemoryDesc(dims, kind or source.dtype, format)
            plan = _move(source.desc, roles, desc, _roles(desc), None, axes)
    if given is not None and given is not desc and not same_bytes(given, desc):
        if isinstance(dst, (str, Format)) and given.dtype == desc.dtype and given.dims == desc.dims:
            raise LayoutError(f"out is {given}, which is not {dst} as asked for")
        raise LayoutError(f"out is {given}, but the destination is {desc}")
    return plan, desc


def _roles(desc: MemoryDesc) -> tuple[str, ...] | None:
    return desc.layout.roles if desc.layout is not None else None


def _dense(desc: MemoryDesc) -> Format | Layout:
    """The format of a tensor if it has one, else row-major."""
    if desc.layout is None:
        raise LayoutError(f"the source {desc} has no layout")
    return desc.format or Layout._dense(desc.dims, plain(desc.rank).with_roles(desc.layout.roles))
