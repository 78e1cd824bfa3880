"""ONNX Runtime's blocked layouts, as its matrix library MLAS calls them: ``NCHWc``, ``OIHWBiBo``, ``OIHWBo``.

When ONNX Runtime optimises a model for the CPU it replaces convolutions and poolings by operators of the
domain ``com.microsoft.nchwc``, which pass tensors on in blocks of channels. No tensor says so; only the
operators at both ends of an edge tell. With a block of B = 8::

    name        axes        digits                          oneDNN      use
    NCHWc       N C H W     n, c//8, h, w, c%8              nChw8c      activations
    OIHWBiBo    O I H W     o//8, i//8, h, w, i%8, o%8      OIhw8i8o    filters on NCHWc input
    OIHWBo      O I H W     o//8, i, h, w, o%8              Oihw8o      filters on NCHW input, depthwise ones

The names don't say how big a block is. ``MlasNchwcGetBlockSize()`` does, at run time: 16 on processors with
AVX-512 and, in builds that have these kernels for it, on Arm; 8 on other x86-64. So a name without the
block is ambiguous, and the block is written behind it, in one of these ways::

    NCHWc (block 8)    OIHWBiBo (B=8)    NCHWc8    NCHWc:8

Channels are padded with zeros to whole blocks. Data are f32.
"""

from __future__ import annotations

import re

from relayout.errors import AmbiguousFormat
from relayout.layout.format import Format
from relayout.layout.roles import data_roles, weights_roles

TITLE = "ONNX Runtime (MLAS)"

__all__ = ["TITLE", "names", "parse", "render"]

_TEXT = re.compile(
    r"(NCHWc|OIHWBiBo|OIHWBo)\s*(?::?\s*([0-9]{1,9})|\(\s*(?:(?:block|B)\s*=?\s*)?([0-9]{1,9})\s*\))?"
)
_BLOCKS = (8, 16)
_INNER = {"NCHWc": "c", "OIHWBiBo": "io", "OIHWBo": "o"}


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read one of the three names with its block.

    Raises
    ------
    AmbiguousFormat
        The block is missing.

    Examples
    --------
    >>> parse("NCHWc (block 16)") == Format("nChw16c"), parse("OIHWBiBo (B=8)") == Format("OIhw8i8o")
    (True, True)
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    name, bare, bracketed = match.groups()
    if bare is None and bracketed is None:
        eight, sixteen = (_spell(name, block) for block in _BLOCKS)
        raise AmbiguousFormat(
            f"in {text!r} the block depends on the machine (MlasNchwcGetBlockSize): "
            f"write {sixteen!r} for processors with AVX-512, {eight!r} for other x86-64"
        )
    block = int(bare or bracketed)
    return _make(name, block) if block in _BLOCKS else None


def _make(name: str, block: int) -> Format:
    roles = data_roles(2) if name == "NCHWc" else weights_roles(2)
    return Format.blocked(roles, roles, [(axis, block) for axis in _INNER[name]])


def _spell(name: str, block: int) -> str:
    return f"{name} (block {block})" if name == "NCHWc" else f"{name} (B={block})"


def render(format: Format) -> str | None:
    """Spell a format that MLAS has.

    >>> render(Format("nChw8c")), render(Format("Oihw16o")), render(Format("nChw4c"))
    ('NCHWc (block 8)', 'OIHWBo (B=16)', None)
    """
    for name in _INNER:
        for block in _BLOCKS:
            made = _make(name, block)
            if made == format and made.roles == format.roles:
                return _spell(name, block)
    return None


def names() -> tuple[str, ...]:
    """All six."""
    return tuple(_spell(name, block) for name in _INNER for block in _BLOCKS)
