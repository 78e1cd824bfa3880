"""MegEngine's relayout modes by name: between which formats each converts, and by which rule.

What a mode does to a tensor, padding and groups included, is in :mod:`relayout.notation.megengine_relayout`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relayout.errors import UnknownFormat
from relayout.notation.megengine_convolution import convolution_formats, data_format

__all__ = ["Rule", "relayout_formats", "relayout_modes", "rule_of"]

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


class Rule(NamedTuple):
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
    rule = rule_of(name, rank)
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


def rule_of(name: str, rank: int | None) -> Rule:
    """Return the rule of a mode, for so many logical axes."""
    found = _found(name)
    if name == "NCHW_NCHW4_WEIGHT":
        found = Rule("GKCRS", "GKCRSc4", 5, rounded=1) if rank == 5 else Rule("KCRS", "KCRSc4", 4, rounded=0)
    if found is None:
        raise UnknownFormat(
            f"{name!r} is no mode of MegEngine's RelayoutFormat; modes are A_B for data formats A and B "
            "(NCHW_NCHW4, NHWCD4I_NHWC), INTER_WEIGHT_... and NCHW_..._WEIGHT"
        )
    return found


def _found(name: str) -> Rule | None:
    return _data_rule(name) or _inter_rule(name) or _conv_rule(name)


def _data_rule(name: str) -> Rule | None:
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
    return Rule(
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


def _inter_rule(name: str) -> Rule | None:
    match = _INTER.fullmatch(name)
    if match is None or (match[3] and (match[1] == "CHAN" or not match[2])):
        return None
    kind, image, dot = match.groups()
    height = _IMAGE_AXIS[kind] if image else 0
    destination = getattr(convolution_formats("NHWCD4", quantized=bool(dot)), _KIND[kind])
    if kind == "DENSE":
        return Rule("KCRS", destination, 4, ((0, 4),), None if dot else 1, 0, height)
    multiples = ((0, 4),) if kind == "CHAN" else ((1, 4), (2, 4))
    return Rule("GKCRS", destination, 5, multiples, destination_image=height)


def _conv_rule(name: str) -> Rule | None:
    match = _CONV.fullmatch(name)
    if match is None or (match[2] is not None) != (match[1] == "NCHW4") or (match[2] and match[3] != "DENSE"):
        return None
    convolution, small, kind = match.groups()
    destination = getattr(convolution_formats(convolution), _KIND[kind])
    if kind == "DENSE":
        return Rule("KCRS", destination, 4, () if small else ((0, 8),), most=4 if small else None)
    return Rule("GKCRS", destination, 5, () if kind == "CHAN" else ((1, 8),))


def _block(format: str) -> int:
    """The size of the channels' blocks, 0 if there are none."""
    return int(format.rpartition("c")[2] or 0) if "c" in format else 0
