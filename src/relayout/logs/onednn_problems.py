"""The sizes of an operation's arguments in oneDNN's log, from the problem that a line ends with.

A line names each argument's format, but the sizes stand once, in the short form of ``benchdnn``::

    mb2_ic3oc16_ih64oh32kh7sh2dh0ph3_iw64ow32kw7sw2dw0pw3      a convolution
    64x256:256x64                                              a product of matrices
    2x32x256                                                   what has one shape

>>> shapes = arguments("convolution", "g2mb1ic8oc4_ih5oh5kh3sh1dh0ph1")
>>> shapes["src"], shapes["wei"], shapes["dst"]
((1, 8, 5), (2, 2, 4, 3), (1, 4, 5))
>>> arguments("matmul", "8x32x16:8x16x32")["dst"]
(8, 32, 32)
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["arguments", "sizes"]

_FIELD = re.compile(r"([a-z]+)([0-9]{1,18})")
_SIZES = re.compile(r"[0-9]{1,18}(?:x[0-9]{1,18})*")
_CONVOLUTIONS = ("convolution", "deconvolution", "inner_product")
_WINDOWS = ("pooling", "resampling", "pooling_v2")


def sizes(text: str) -> tuple[int, ...] | None:
    """``2x3x4`` as numbers; None for anything else.

    >>> sizes("2x3"), sizes("*x3")
    ((2, 3), None)
    """
    return tuple(map(int, text.split("x"))) if _SIZES.fullmatch(text) else None


@lru_cache(maxsize=4096)
def arguments(primitive: str, problem: str) -> dict[str, tuple[int, ...]]:
    """Sizes by argument (``src``, ``wei``, ``bia``, ``dst``); ``*`` for all that are not named.

    Arguments whose sizes the problem does not say are left out.
    """
    one = sizes(problem)
    if one is not None:
        return {"*": one}
    if ":" in problem:
        return _products(problem) if primitive == "matmul" else _several(problem)
    fields = {name: int(number) for name, number in _FIELD.findall(problem)}
    if primitive in _CONVOLUTIONS and {"mb", "ic", "oc"} <= fields.keys():
        return _convolution(fields)
    if "mb" in fields and "ic" in fields:
        mb, ic = fields["mb"], fields["ic"]
        space = [fields[f"i{axis}"] for axis in "dhw" if f"i{axis}" in fields]
        if primitive in _WINDOWS:
            outer = [fields.get(f"o{axis}", 1) for axis in "dhw" if f"i{axis}" in fields]
            return {"src": (mb, ic, *space), "dst": (mb, ic, *outer)}
        return {"src": (mb, ic, *space), "dst": (mb, ic, *space), "data": (mb, ic, *space)}
    return {}


def _convolution(fields: dict[str, int]) -> dict[str, tuple[int, ...]]:
    mb, ic, oc, groups = fields["mb"], fields["ic"], fields["oc"], fields.get("g", 0)
    axes = [axis for axis in "dhw" if f"i{axis}" in fields]
    inner = tuple(fields[f"i{axis}"] for axis in axes)
    outer = tuple(fields[f"o{axis}"] for axis in axes if f"o{axis}" in fields)
    window = tuple(fields.get(f"k{axis}", fields[f"i{axis}"]) for axis in axes)
    each = (groups, oc // groups, ic // groups) if groups else (oc, ic)
    return {"src": (mb, ic, *inner), "wei": (*each, *window), "bia": (oc,), "dst": (mb, oc, *outer)}


def _products(problem: str) -> dict[str, tuple[int, ...]]:
    parts = [sizes(part) for part in problem.split(":")]
    src, wei = parts[0], parts[1]
    if src is None or wei is None or len(src) != len(wei) or len(src) < 2:
        return {}
    dst = parts[2] if len(parts) > 2 and parts[2] else (*map(max, src[:-2], wei[:-2]), src[-2], wei[-1])
    return {"src": src, "wei": wei, "dst": tuple(dst)}


def _several(problem: str) -> dict[str, tuple[int, ...]]:
    """Sources of a binary operation, concatenation or sum: the first is as large as any of them."""
    parts = [sizes(part) for part in re.split(r"[: ]", problem)]
    found = {f"src_{k}": part for k, part in enumerate(parts) if part}
    return {**found, **({"src": found["src_0"]} if "src_0" in found else {})}
