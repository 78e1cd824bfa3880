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

import re
from collections.abc import Sequence
from typing import NamedTuple

from relayout.errors import LayoutError, UnknownFormat
from relayout.layout.format import Format
from relayout.layout.layout import Layout, check_dims, spell_dims
from relayout.layout.views import slice_axis, split_axis
from relayout.notation.megengine_convolution import convolution_formats, data_format
from relayout.notation.megengine_padding import grouped, rounded
from relayout.notation.megengine_physical import physical_shape, pitched

__all__ = ["RelayoutMode", "relayout_formats", "relayout_mode", "relayout_modes", "relayout_shapes"]

_DATA_MODE = re.compile(r"(NHWCD4|[A-Z]{4}[0-9]*)(I?)_(NHWCD4|[A-Z]{4}[0-9]*)(I?)(_IC_SMALL)?")
_INTER = re.compile(r"INTER_WEIGHT_(DENSE|GROUP|CHAN)(I?)(_DOT)?")
_CONV = re.compile(r"NCHW_(NCHW4|NCHW88)(_IC_SMALL)?_CONV_(DENSE|GROUP|CHAN)_WEIGHT")
_PARTNERS = {
    "NCHW": ("NHWC", "NHWCD4", "NCHW4", "NCHW64", "NCHW88"),
    "NHWC": ("NHWCD4",),
    "NCHW4": ("CHWN4",),
}
"""Which data formats are converted into each other, both ways."""
_KIND = {"DENSE": "weights", "GROUP": "group", "CHAN": "channelwise"}
_IMAGE_AXIS = {"DENSE": 3, "GROUP": 4, "CHAN": 1}  # the axes of the image's height


class RelayoutMode(NamedTuple):
    """A conversion: two layouts over the same logical elements."""

    source: Layout
    destination: Layout


class _Rule(NamedTuple):
    """What a mode says. Axes are logical: n c h w, o i h w or g o i h w."""

    source: str
    destination: str
    rank: int
    multiples: tuple[tuple[int, int], ...] = ()
    """Axes whose size must be a multiple of a number."""
    rounded: int | None = None
    """An axis that the destination rounds up to 4 without blocking it."""
    source_image: int = 0
    """The number of axes of the image's height; 0: no image."""
    destination_image: int = 0
    most: int | None = None
    """The most channels, on axis 1."""
    grouped: bool = False
    cut: bool = False
    """Whether ``oc`` applies."""


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
    rule = _rule(name, len(sizes))
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
    rule = _rule(name, len(sizes))
    after = _checked(name, rule, sizes, group, oc)
    if rule.rounded is not None:
        after = tuple(-(-size // 4) * 4 if axis == rule.rounded else size for axis, size in enumerate(after))
    return physical_shape(sizes, rule.source), physical_shape(after, rule.destination, group)


def relayout_formats(name: str, rank: int | None = None) -> tuple[str, str]:
    """Return the names of the formats between which a mode converts.

    Parameters
    ----------
    name : str
        The mode.
    rank : int, optional
        The number of logical axes; only ``NCHW_NCHW4_WEIGHT`` is for both dense (4) and group (5) weights.

    Raises
    ------
    UnknownFormat
        There is no such mode.

    Examples
    --------
    >>> relayout_formats("NHWC_NHWCD4I"), relayout_formats("INTER_WEIGHT_GROUPI_DOT")
    (('NHWC', 'NHCWc4'), ('GKCRS', 'GKRSCk4c4'))
    """
    rule = _rule(name, rank)
    return rule.source, rule.destination


def relayout_modes() -> tuple[str, ...]:
    """List the modes.

    >>> len(relayout_modes())
    32
    """
    found = []
    for one, others in _PARTNERS.items():
        for other in others:
            for first, second in ((one, other), (other, one)):
                found += [
                    f"{first}_{second}",
                    f"{first}I_{second}",
                    f"{first}_{second}I",
                    f"{first}_{second}_IC_SMALL",
                ]
    for kind in _KIND:
        found += [f"INTER_WEIGHT_{kind}{variant}" for variant in ("", "I", "I_DOT")]
        found += [f"NCHW_{blocks}_CONV_{kind}_WEIGHT" for blocks in ("NCHW88", "NCHW4_IC_SMALL")]
    return (*(name for name in found if _found(name) is not None), "NCHW_NCHW4_WEIGHT")


# -- the rules ----------------------------------------------------------------------------------------------


def _rule(name: str, rank: int | None) -> _Rule:
    found = _found(name)
    if name == "NCHW_NCHW4_WEIGHT":
        found = (
            _Rule("GKCRS", "GKCRSc4", 5, rounded=1) if rank == 5 else _Rule("KCRS", "KCRSc4", 4, rounded=0)
        )
    if found is None:
        raise UnknownFormat(
            f"{name!r} is no mode of MegEngine's RelayoutFormat; modes are A_B for data formats A and B "
            "(NCHW_NCHW4, NHWCD4I_NHWC), INTER_WEIGHT_... and NCHW_..._WEIGHT"
        )
    return found


def _found(name: str) -> _Rule | None:
    return _data_rule(name) or _inter_rule(name) or _conv_rule(name)


def _data_rule(name: str) -> _Rule | None:
    match = _DATA_MODE.fullmatch(name)
    if match is None:
        return None
    first, first_image, second, second_image, small = match.groups()
    source, destination = data_format(first), data_format(second)
    if second not in _PARTNERS.get(first, ()) and first not in _PARTNERS.get(second, ()):
        return None
    if (first_image and first != "NHWCD4") or (second_image and second != "NHWCD4"):
        return None
    if (small and (first, second) != ("NCHW", "NCHW4")) or source is None or destination is None:
        return None
    block = _block(source)
    whole = block if block and not _block(destination) else 4 if name == "NHWC_NHWCD4" else 1
    return _Rule(
        source,
        destination,
        4,
        multiples=((1, whole),),
        source_image=2 if first_image else 0,
        destination_image=2 if second_image else 0,
        most=4 if small else None,
        grouped=name in ("NCHW_NCHW4", "NCHW4_NCHW"),
        cut=name in ("NCHW4_NCHW", "NCHW64_NCHW"),
    )


def _inter_rule(name: str) -> _Rule | None:
    match = _INTER.fullmatch(name)
    if match is None or (match[3] and (match[1] == "CHAN" or not match[2])):
        return None
    kind, image, dot = match.groups()
    height = _IMAGE_AXIS[kind] if image else 0
    destination = getattr(convolution_formats("NHWCD4", quantized=bool(dot)), _KIND[kind])
    if kind == "DENSE":
        return _Rule("KCRS", destination, 4, ((0, 4),), None if dot else 1, 0, height)
    multiples = ((0, 4),) if kind == "CHAN" else ((1, 4), (2, 4))
    return _Rule("GKCRS", destination, 5, multiples, destination_image=height)


def _conv_rule(name: str) -> _Rule | None:
    match = _CONV.fullmatch(name)
    if match is None or (match[2] is not None) != (match[1] == "NCHW4") or (match[2] and match[3] != "DENSE"):
        return None
    convolution, small, kind = match.groups()
    destination = getattr(convolution_formats(convolution), _KIND[kind])
    if kind == "DENSE":
        return _Rule("KCRS", destination, 4, () if small else ((0, 8),), most=4 if small else None)
    return _Rule("GKCRS", destination, 5, () if kind == "CHAN" else ((1, 8),))


def _block(format: str) -> int:
    """The size of the channels' blocks, 0 if there are none."""
    return int(format.rpartition("c")[2] or 0) if "c" in format else 0


def _checked(name: str, rule: _Rule, sizes: tuple[int, ...], group: int, oc: int) -> tuple[int, ...]:
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
