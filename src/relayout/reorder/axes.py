"""Which axis of the destination is which axis of the source.

Descriptors index by position; names such as ``NHWC4`` and ``OIhw16i16o`` also say what the axes *are*. A
reorder matches axes by meaning where both sides have one (:mod:`relayout.layout.roles` has the rules), and
then works by position, as all of the engine does:

* A *format* is asked for by name: the result keeps the logical order and the roles of the source, and takes
  the memory order of the format. ``ohwi -> ...`` asked of an ``oihw`` tensor gives a tensor that is still
  indexed o, i, h, w.
* A *descriptor* (or layout) says its logical order itself: element (n, c, h, w) of the source becomes element
  (n, h, w, c) of a destination that is indexed so, and sizes are compared by role.

``axes="position"`` leaves meaning aside: axis k is axis k.
"""

from __future__ import annotations

from relayout.dtypes import DType
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, counted
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import spell_dims
from relayout.layout.roles import correspondence

__all__ = ["AXES", "asked_for", "check_axes", "indexed_alike"]

AXES = ("meaning", "position")


def check_axes(axes: str) -> None:
    """Refuse what is neither of :data:`AXES`."""
    if not isinstance(axes, str) or axes not in AXES:
        raise LayoutError(f"axes must be 'meaning' or 'position', got {axes!r}")


def asked_for(
    src: MemoryDesc, format: Format, dtype: DType | None = None, axes: str = "meaning"
) -> MemoryDesc:
    """The descriptor of the source's elements in a format that is asked for by name.

    Without a data type it is the one that the format's text says (a descriptor of oneDNN's log), or else the
    source's.

    Raises
    ------
    LayoutError
        The rank differs, the axes mean different things, or the format's text says another data type.

    Examples
    --------
    >>> import relayout as rl
    >>> w = rl.MemoryDesc((8, 3, 5, 5), "f32", "oihw")
    >>> made = asked_for(w, rl.Format("OHWIo4@ohwi"), w.dtype)
    >>> made.dims, made
    ((8, 3, 5, 5), MemoryDesc('f32:Ohwi4o:8x3x5x5'))
    """
    if dtype is None:
        dtype = src.dtype if format.dtype is None else as_dtype(format.dtype)
    known = format.resolve(src.rank, dtype.name)
    mine = src.layout.roles if src.layout is not None else None
    if axes == "meaning" and mine is not None and mine != known.roles:
        places = correspondence(mine, known.roles)
        known = (known if places is None else known.indexed(places)).with_roles(mine)
    return MemoryDesc(src.dims, dtype, known)


def indexed_alike(src: MemoryDesc, dst: MemoryDesc, axes: str = "meaning") -> MemoryDesc:
    """The destination for a program that indexes it as the source is indexed: the same bytes.

    Raises
    ------
    LayoutError
        The sizes differ, or the axes mean different things.

    Examples
    --------
    >>> import relayout as rl
    >>> src, dst = rl.MemoryDesc((1, 3, 4, 5), "u8", "nchw"), rl.MemoryDesc((1, 4, 5, 3), "u8", "NHWC4@nhwc")
    >>> indexed_alike(src, dst).dims
    (1, 3, 4, 5)
    """
    places = None
    if axes == "meaning" and src.layout is not None and dst.layout is not None:
        places = correspondence(src.layout.roles, dst.layout.roles)
    if places is None:
        if src.dims != dst.dims:
            raise LayoutError(
                f"source and destination must have the same dims, got {spell_dims(src.dims)} and "
                f"{spell_dims(dst.dims)}"
            )
        return dst
    with lock():
        from relayout.layout import views

    turned = views.permute(dst.layout, places)
    if src.dims != turned.dims:
        names = src.layout.axis_names()
        unlike = next(k for k, (a, b) in enumerate(zip(src.dims, turned.dims, strict=True)) if a != b)
        hint = "; by position the dims agree: if that is meant, say axes='position'"
        raise LayoutError(
            f"axis {names[unlike]} has {counted(src.dims[unlike], 'element')} in the source {src} and "
            f"{turned.dims[unlike]} in the destination {dst}, whose axes are "
            f"{', '.join(dst.layout.axis_names())}{hint if src.dims == dst.dims else ''}"
        )
    return MemoryDesc(turned.dims, dst.dtype, turned)
