"""Which tags oneDNN has, of all that its grammar can spell: the orders of axes and the block sizes in use.

oneDNN's enumeration has 873 tags in the letters ``a, b, c, ...``; its other names (``nchw``) are aliases of
those. They come in families. A family is an order of the outer axes, with ``x`` for the trailing axes that
stand together (the spatial ones), and the blocks that oneDNN has for that order::

    aBx    4b 8b 16b 32b         nCw4c, nChw16c, nCdhw32c, ...: activations, and weights of grouped vectors
    ABx    16b64a4b, ...         OIhw16i64o4i: weights, a is the output and b the input channel
    aBCx   8b16c2b, ...          gOIhw8o16i2o: weights of a grouped convolution, a is the group

The tables below are that rule, written with alternatives in brackets. The tests hold it to the enumeration
itself, in both directions.

Source: ``dnnl_format_tag_t`` in oneDNN 3's ``dnnl_types.h``.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Final

from relayout.layout.format import letters

__all__ = ["is_tag"]

# Register tiles of 4, 2 or 1 neighbours along b, with widths that suit vectors of 8 and 16 lanes.
_TILES: Final = "16b(16|32|48|64)a([24]b)? 8b(8|16|24|32)a 8b(8|16|24|32|64)a2b 4b(8|16|24|32|64)a4b 8a[24]b"
_PANELS: Final = "16a(16|32|48|64)b[24]a (8|16|24|32|48|64)b[24]a"
_SIDES: Final = "(4|8|12|16|24)b8a 16a(16|32|48|64)b([24]a)? 16b[24]a 2a(8|24)b 4b8a(8|16)b[24]a 8a(8|16|24)b"
_SHIFTED: Final = str.maketrans("ab", "bc")  # weights with a group in front

_FAMILIES: Final = {
    # matrices
    "Ab": "(4|8|32)a",
    "AB": f"{_TILES} 16a(16|32)b 2a4b (32|48)a(16|32)b 32a32b8a[24]b",
    "BA": f"{_SIDES} (4|8)b4a",
    # activations and weights; a is n or o, b is c or i
    "aBx": "(4|8|16|32)b",
    "Abx": "(4|8|16|32)a",
    "Axb": "(4|8|16|24|32|48|64)a",
    "Bxa": "(8|16|24|32|48|64)b",
    "xBa": "[24]b",
    "ABx": f"{_TILES} 16a16b(2a)? 16a4b 2a8b16a[24]b 2b32a8b 2b8a16b4a 2b8a4b (32|40)a(16|32)b 4a[24]b"
    " 4a8b8a[24]b 4b4a 8a16b2a 8a8b",
    "AxB": f"{_TILES} (16|24|32|48|64)a[24]b",
    "BAx": "16a16b 16b16a 2b8a16b[24]a 4a4b 4b8a8b[24]a 8a16b2a 8a8b",
    "BxA": _PANELS,
    # weights with a group; b is o, c is i
    "aBC": "(16|32|48)b(16|32)c 2b8c16b2c",
    "aCB": _SIDES.translate(_SHIFTED),
    "abCx": "(4|32)c",
    "axCb": "[24]c",
    "aBxc": "(4|8|16|24|32|48|64)b",
    "aCxb": "(8|16|24|32|48|64)c",
    "aBCx": "16b16c(2b)? 16c16b([24]c)? 2b4c2b 2b8c16b2c 2c4b2c 2c8b16c2b 2c8b4c 4b4c 4b8c2b 4b8c8b[24]c"
    " 4c16b4c 4c4b 4c8b2c 8b16c2b 8b[248]c 8c16b2c 8c8b",
    "aBxC": "16c(16|32|48|64)b[24]c (8|16|24|32|48|64)b[24]c",
    "aCBx": "16b16c 16c16b 2c8b16c2b 4b4c 4c8b8c[24]b 8b16c2b 8b8c",
    "aCxB": _PANELS.translate(_SHIFTED),
    "xcbA": "(4|8|16)a",
}
_SPATIAL: Final = {"xcbA": (2, 3)}  # axes that x may stand for, where not 1 to 3

# Plain orders beside a, ab, abc, ... and those with the last two axes exchanged.
_ORDERS: Final = (
    "bac bca cab cba acbd acdb adbc adcb bacd bcad bcda cabd cdab cdba dabc dcab abdec acbde acdeb adecb "
    "bacde bcdea cdeab cdeba decab abdefc abdfce acbdef adefcb defcab"
)
# Tags that stand alone: further ranks of a family, batches of matrices, recurrent weights.
_SINGLE: Final = (
    "Abcdef16a Abcdef32a aBcdef4b aBcdef8b aBcdef16b aBcdef32b ABcd16a32b ABcd2a8b8a2b aBCd2b8c16b4c "
    "aBCde2b8c16b4c aBCde2b8c8b2c Adcb16a Acedb16a aBedc16b aBdfec16b abDc16d abDc32d abDC4d8c abDC8d8c "
    "abDC12d8c abDC16d8c abDC24d8c abDC16d4c abDC32d4c abdCe16c abdCe32c abdCE32c2e abdEc16e abdEc32e "
    "abdEC16e4c abdEC32e2c abdEC32e4c abdEC64e2c abdEC64e4c"
)
_TAG: Final = re.compile(r"([A-Za-l]+)((?:[0-9]+[a-l])*)")
_MOST_AXES: Final = 12


@lru_cache(maxsize=1024)
def is_tag(tag: str) -> bool:
    """Whether oneDNN has a tag, written in the letters ``a, b, c, ...``.

    >>> [is_tag(tag) for tag in ("acdb", "aBcd16b", "aBcd24b", "ABcd4b16a4b", "ABcd4b12a4b")]
    [True, True, False, True, False]
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        return False
    outer, blocks = match.groups()
    names = "".join(letters(len(outer)))
    if not blocks:
        exchanged = names[:-2] + names[:-3:-1]
        return outer in _ORDERS.split() or (outer in (names, exchanged) and len(outer) <= _MOST_AXES)
    if tag in _SINGLE.split() or (len(outer) < 4 and _has(outer, blocks)):
        return True
    for named in (2, 3):
        spatial = names[named:]
        order = outer.replace(spatial, "x") if spatial else ""
        if len(spatial) in _SPATIAL.get(order, (1, 2, 3)) and _has(order, blocks):
            return True
    return False


def _has(order: str, blocks: str) -> bool:
    return order in _FAMILIES and _blocks(order).fullmatch(blocks) is not None


@cache
def _blocks(order: str) -> re.Pattern[str]:
    """The blocks of a family: compiled when first asked for, since all of them take 6 ms."""
    return re.compile("|".join(f"(?:{blocks})" for blocks in _FAMILIES[order].split()))
