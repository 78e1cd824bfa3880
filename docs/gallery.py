"""The pictures of the gallery: formats of six systems, each for a tensor that shows what it is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import relayout as rl
from relayout.draw.svg import beside, sheet

__all__ = ["GALLERY"]


def one(format: str, dims: tuple[int, ...], dtype: str, **given: str) -> Callable[[], str]:
    """A tensor in a format."""
    return partial(sheet, rl.MemoryDesc(dims, dtype, format), pointed=False, **given)


def two(a: str, b: str, dims: tuple[int, ...], dtype: str) -> Callable[[], str]:
    """A tensor in two formats."""
    return partial(beside, rl.MemoryDesc(dims, dtype, a), rl.MemoryDesc(dims, dtype, b), pointed=False)


IMAGE = (1, 32, 8, 8)

GALLERY: dict[str, Callable[[], str]] = {
    "gallery-nchw": one("nchw", IMAGE, "f32"),
    "gallery-nhwc": one("nhwc", IMAGE, "f32"),
    "gallery-nchw16c": one("nChw16c", IMAGE, "f32"),
    "gallery-chwn": one("chwn", (16, 3, 4, 4), "f32", vector="n"),
    "gallery-nchw8c-17": one("nChw8c", (1, 17, 4, 4), "f32"),
    "gallery-fsv16": one("b_fs_yx_fsv16", (2, 20, 3, 4), "f16"),
    "gallery-bsv16-fsv16": one("bs_fs_yx_bsv16_fsv16", (32, 32, 2, 2), "f16"),
    "gallery-nchw4": one("NCHW4", (1, 8, 4, 4), "s8"),
    "gallery-chwn4": one("CHWN4", (4, 8, 2, 4), "s8"),
    "gallery-4i16o4i": one("OIhw4i16o4i", (32, 32, 3, 3), "s8"),
    "gallery-swizzled": one("os_is_yx_osa4_isa8_osv8_isv4_swizzled_by_4", (32, 32, 1, 1), "s8"),
    "gallery-col4": one("COL4_4R2_8C", (32, 64), "s8"),
    "gallery-xla": one("{1,0:T(8,128)(2,1)}", (16, 256), "bf16"),
    "gallery-5d": one("nCdhw8c", (2, 12, 3, 4, 5), "f32"),
    "gallery-6d": one("goidhw", (2, 4, 4, 3, 3, 3), "f32"),
    "gallery-to-nchw16c": two("nchw", "nChw16c", (1, 16, 4, 4), "f32"),
    "gallery-to-nhwc": two("nchw", "nhwc", (1, 64, 56, 56), "f32"),
    "gallery-to-4i16o4i": two("oihw", "OIhw4i16o4i", (32, 32, 3, 3), "s8"),
}
