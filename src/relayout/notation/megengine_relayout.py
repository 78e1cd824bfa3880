"""The modes of MegEngine's ``RelayoutFormat``: which layout is converted to which.

A mode is a word such as ``NCHW_NCHW4``, ``NHWC_NHWCD4I`` or ``NCHW_NCHW88_CONV_GROUP_WEIGHT``. Each is a
copy: there are a source and a destination layout over the same logical elements, every element goes from
its place in the one to its place in the other, and what the destination has beyond them is padding. So a
mode *is* a pair of layouts, and :func:`relayout_mode` returns it; a reorder from the first to the second
does what MegEngine does. ::

    NCHW_NCHW4, dims 1x6x1x2     n, c, h, w             ->  n, c//4, h, w, c%4
    the same, group=2            n, g, c, h, w          ->  n, g, c//4, h, w, c%4     dims 1x2x3x1x2

The rules
=========

Modes of data, ``A_B``:
    from A to B, named as convolution formats (``NCHW88`` is ``NCHWc8``). From blocks to a plain format the
    channels of the destination are those of the blocks, so their number must be whole blocks, unless ``oc``
    cuts it. ``NCHW_NCHW4`` and ``NCHW4_NCHW`` know groups. ``NHWC_NHWCD4`` does not pad. In
    ``..._IC_SMALL`` there are at most 4 channels.
Modes of weights:
    from ``KCRS`` or ``GKCRS`` to the weights of a convolution format: ``INTER_WEIGHT_{DENSE, GROUP, CHAN}``
    to those of ``NHWCD4`` (``_DOT``: quantized), ``NCHW_NCHW88_CONV_{DENSE, GROUP, CHAN}_WEIGHT`` to those
    of ``NCHW88``, and so on. Input channels are padded; output channels in blocks must be whole blocks.
    ``NCHW_NCHW4_WEIGHT`` also rounds its output channels up to 4, though they are not blocked, and
    ``INTER_WEIGHT_DENSE`` its input channels.
An ``I``:
    the side in ``NHWCD4`` is an image (``IMAGE2D_PACK4``), whose rows start at a pitch alignment of the
    device.

MegEngine fills the padding of asymmetric quantized data with the zero point, which a layout knows nothing
about; it says where padding is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relayout.errors import LayoutError
from relayout.layout.format import Format
from relayout.layout.layout import Layout, check_dims, spell_dims
from relayout.layout.views import slice_axis, split_axis
from relayout.notation.megengine_modes import Rule, rule_of
from relayout.notation.megengine_padding import grouped, rounded
from relayout.notation.megengine_physical import physical_shape, pitched

__all__ = ["RelayoutMode", "relayout_mode", "relayout_shapes"]


class RelayoutMode(NamedTuple):
    """A conversion: two layouts over the same logical elements."""

    source: Layout
    destination: Layout


def relayout_mode(
    name: str, dims: Sequence[int], group: int = 1, oc: int = 0, *, pitch: int = 1
) -> RelayoutMode:
    """Return the two layouts that a mode of ``RelayoutFormat`` copies between.

    Parameters
    ----------
    name : str
        The mode: ``"NCHW_NCHW4"``, ``"INTER_WEIGHT_DENSEI_DOT"``, ...
    dims : sequence of int
        The logical sizes of the source, ``n c h w`` for data, ``o i h w`` or ``g o i h w`` for weights,
        whatever its order in memory is. :func:`~relayout.notation.megengine_physical.logical_dims` makes
        them from a physical shape.
    group : int
        Groups of channels, each padded on its own (``NCHW_NCHW4`` and ``NCHW4_NCHW``).
    oc : int
        Channels of the destination, if fewer than the source's blocks have (``NCHW4_NCHW`` and
        ``NCHW64_NCHW``); 0: all.
    pitch : int
        For images: what the stride of a row is rounded up to, in elements.

    Returns
    -------
    RelayoutMode
        ``source`` and ``destination``, layouts of the same dims: those of the destination's elements, with
        the channels split into ``(group, channels of a group)`` if there is more than one group.

    Raises
    ------
    LayoutError
        The sizes break a rule of the mode; ``group`` or ``oc`` given to a mode that has none.
    UnknownFormat
        There is no such mode.

    Examples
    --------
    >>> source, destination = relayout_mode("NCHW_NCHW4", (1, 6, 1, 2), group=2)
    >>> source.dims, destination.padded_dims
    ((1, 2, 3, 1, 2), (1, 2, 4, 1, 2))
    >>> second_group = 0, 1, 0, 0, 0
    >>> source.offset(*second_group), destination.offset(*second_group)
    (6, 8)
    """
    sizes = check_dims(dims)
    rule = rule_of(name, len(sizes))
    after = _checked(name, rule, sizes, group, oc)
    source = _placed(sizes, Format(rule.source, "megengine"), rule.source_image, pitch)
    target = Format(rule.destination, "megengine").resolve(rule.rank)
    if rule.rounded is not None:
        target = rounded(target, rule.rounded, 4)
    if group != 1:
        count = sizes[1] // group
        source = split_axis(source, 1, (group, count))
        source = slice_axis(source, 2, 0, after[1] // group)
        split = (after[0], group, after[1] // group, *after[2:])
        return RelayoutMode(source, Layout(split, grouped(target)))
    if after != sizes:
        source = slice_axis(source, 1, 0, after[1])
    return RelayoutMode(source, _placed(after, target, rule.destination_image, pitch))


def _placed(dims: tuple[int, ...], format: Format, image_axis: int, pitch: int) -> Layout:
    return pitched(dims, format, image_axis, pitch) if image_axis else Layout(dims, format)


def relayout_shapes(
    name: str, dims: Sequence[int], group: int = 1, oc: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of MegEngine's source and destination tensors in a mode.

    The parameters and errors are those of :func:`relayout_mode`.

    Examples
    --------
    >>> relayout_shapes("NCHW_NCHW4", (1, 6, 1, 2), group=2)
    ((1, 6, 1, 2), (1, 2, 1, 2, 4))
    >>> relayout_shapes("NCHW_NCHW4_WEIGHT", (2, 2, 3, 3))
    ((2, 2, 3, 3), (4, 1, 3, 3, 4))
    """
    sizes = check_dims(dims)
    rule = rule_of(name, len(sizes))
    after = _checked(name, rule, sizes, group, oc)
    if rule.rounded is not None:
        after = tuple(-(-size // 4) * 4 if axis == rule.rounded else size for axis, size in enumerate(after))
    return physical_shape(sizes, rule.source), physical_shape(after, rule.destination, group)


def _checked(name: str, rule: Rule, sizes: tuple[int, ...], group: int, oc: int) -> tuple[int, ...]:
    """Check the rules of a mode; return the sizes of the destination."""
    where = f"mode {name} with dims {spell_dims(sizes)}"
    if len(sizes) != rule.rank:
        axes = {4: "n c h w" if rule.source[0] != "K" else "o i h w", 5: "g o i h w"}[rule.rank]
        raise LayoutError(f"{where}: got {len(sizes)} sizes, the mode takes {rule.rank}: {axes}")
    for axis, number in rule.multiples:
        if sizes[axis] % number:
            raise LayoutError(f"{where}: axis {axis} must be a multiple of {number}, got {sizes[axis]}")
    if rule.most is not None and sizes[1] > rule.most:
        raise LayoutError(f"{where}: the mode is for at most {rule.most} channels, got {sizes[1]}")
    if rule.destination.startswith("C1") and sizes[1:3] != (1, 1):
        raise LayoutError(f"{where}: channel-wise weights have 1 output and 1 input channel a group")
    if group != 1 and not rule.grouped:
        raise LayoutError(f"{where}: group={group}, but only NCHW_NCHW4 and NCHW4_NCHW know groups")
    if oc and not rule.cut:
        raise LayoutError(f"{where}: oc={oc}, but only NCHW4_NCHW and NCHW64_NCHW cut the output channels")
    channels = oc or sizes[1]
    if not 0 <= channels <= sizes[1]:
        raise LayoutError(f"{where}: oc={oc} is not within the {sizes[1]} channels of the source")
    if group < 1 or sizes[1] % group or channels % group:
        raise LayoutError(
            f"{where}: {sizes[1]} channels in, {channels} out can't be divided into {group} groups"
        )
    return (sizes[0], channels, *sizes[2:])
