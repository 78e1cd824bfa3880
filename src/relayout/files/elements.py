"""What an element type is called in safetensors and in npy files; more types than those that are converted.

Arrays that are copied from one kind of file to another unchanged may be of any type that both know.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["ELEMENTS", "OPAQUE", "Element", "by_code", "by_descr", "by_dtype"]


class Element(NamedTuple):
    """An element type and its names."""

    code: str | None
    """In safetensors files; None: it can't be there."""
    descr: str | None
    """In npy files, as NumPy spells it; None: it can't be there."""
    dtype: str | None
    """In Relayout; None: it can be copied, but not converted."""
    bits: int


ELEMENTS: Final = (
    Element("F64", "<f8", "f64", 64),
    Element("F32", "<f4", "f32", 32),
    Element("F16", "<f2", "f16", 16),
    Element("BF16", None, "bf16", 16),
    Element("F8_E4M3", None, "f8_e4m3", 8),
    Element("F8_E5M2", None, "f8_e5m2", 8),
    Element("I64", "<i8", "s64", 64),
    Element("I32", "<i4", "s32", 32),
    Element("I16", "<i2", "s16", 16),
    Element("I8", "|i1", "s8", 8),
    Element("U8", "|u1", "u8", 8),
    Element("U64", "<u8", None, 64),
    Element("U32", "<u4", None, 32),
    Element("U16", "<u2", None, 16),
    Element("BOOL", "|b1", None, 8),
    Element("C64", "<c8", None, 64),
    Element("F8_E8M0", None, None, 8),
    Element("F8_E4M3FNUZ", None, None, 8),
    Element("F8_E5M2FNUZ", None, None, 8),
    Element("F6_E2M3", None, None, 6),
    Element("F6_E3M2", None, None, 6),
    Element("F4", None, None, 4),
)
by_code: Final = {element.code: element for element in ELEMENTS if element.code is not None}
by_descr: Final = {element.descr: element for element in ELEMENTS if element.descr is not None}
by_dtype: Final = {element.dtype: element for element in ELEMENTS if element.dtype is not None}
OPAQUE: Final = frozenset({"bf16", "f8_e4m3", "f8_e5m2"})
"""Types of ours that NumPy does not know: in its files they are bytes of some width, ``|V2``."""
