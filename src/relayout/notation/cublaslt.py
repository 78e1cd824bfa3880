"""cuBLASLt's matrix orders: ``CUBLASLT_ORDER_COL`` to ``CUBLASLT_ORDER_COL32_2R_4R4``.

cuBLASLt multiplies matrices on NVIDIA's GPUs. Five values of ``cublasLtOrder_t`` say how a matrix with R rows
and C columns lies in memory. Two are plain; three feed the int8 tensor cores, which want 32 columns (bytes)
of a row together.

::

    ORDER_COL             c   r
    ORDER_ROW             r   c
    ORDER_COL32           c//32   r   c%32
    ORDER_COL4_4R2_8C     c//32   r//8    r%2      c//8%4   c//4%2   r//2%4   c%4         Turing
    ORDER_COL32_2R_4R4    c//32   r//32   r//2%4   r//8%4   r%2      c%32                 Ampere

How the names spell the digits
==============================

The documentation describes the two composite orders in prose and with a formula. Both follow from one rule,
which this module applies. The pieces of a name, left to right, are the digits from the *innermost* outwards:

``COLn``
    n columns side by side: ``c % n``.
``mR``
    m rows: ``r % m``.
``mRs``
    m rows that are s apart, counted in the groups of rows written so far. In ``4R2`` no rows have been
    written, so these are 4 rows with the same parity: ``r//2 % 4``. In ``4R4`` pairs have been written
    (``2R``), so these are 4 pairs, 4 pairs apart: ``r//8 % 4``.
``nC``
    columns, until there are n: after ``c % 4``, ``8C`` is ``c//4 % 2``.

Then the tile is filled: the columns up to 32, and after them the rows that were stepped over. At last come
the tiles in column-major order: down the rows first, then to the next 32 columns. Worked out for
``COL4_4R2_8C``::

    COL4 -> c%4      4R2 -> r//2%4      8C -> c//4%2      fill -> c//8%4, r%2      tiles -> r//8, c//32

The leading dimension of these orders is the distance between groups of 32 columns: strides, not digits, and
so a matter of the layout.

Source: cuBLAS's documentation of ``cublasLtOrder_t``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from relayout.layout.format import Format

TITLE = "cuBLASLt"

__all__ = ["TITLE", "names", "parse", "render"]

_ORDERS = ("COL", "ROW", "COL32", "COL4_4R2_8C", "COL32_2R_4R4")
_PREFIX = "CUBLASLT_ORDER_"
_PIECE = re.compile(r"COL([0-9]+)|([0-9]+)R([0-9]*)|([0-9]+)C")
_WIDTH = 32  # columns of a tile

_Digit = tuple[str, int, "int | None"]


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read an order, with or without ``CUBLASLT_ORDER_`` in front; None if it is none.

    >>> parse("COL32_2R_4R4").digits_text()
    'row col -> col//32, row//32, row//2%4, row//8%4, row%2, col%32'
    """
    name = text.removeprefix(_PREFIX)
    return _order(name) if name in _ORDERS else None


@lru_cache(maxsize=len(_ORDERS))
def _order(name: str) -> Format:
    if name == "ROW":
        return Format.blocked(("row", "col"), ("row", "col"))
    tile: list[_Digit] = []  # innermost first
    columns = height = 1
    gap = 0  # weight of the rows that a step leaves out
    for wide, many, apart, upto in _PIECE.findall(name):
        if wide:
            tile.append(("col", 1, int(wide)))
            columns = int(wide)
        elif many:
            step = int(apart or 1)
            gap = height if step > 1 else gap
            height *= step
            tile.append(("row", height, int(many)))
            height *= int(many)
        else:
            tile.append(("col", columns, int(upto) // columns))
            columns = int(upto)
    if 1 < columns < _WIDTH:
        tile.append(("col", columns, _WIDTH // columns))
        columns = _WIDTH
    if gap:
        stepped = min(weight for axis, weight, _ in tile if axis == "row" and weight > gap)
        tile.append(("row", gap, stepped // gap))
    tiles: list[_Digit] = [("col", columns, None), ("row", height, None)]
    return Format.from_digits(("row", "col"), tiles + tile[::-1])


def render(format: Format) -> str | None:
    """Spell a matrix format as one of the five orders.

    >>> render(Format("ab")), render(Format("Ba32b")), render(Format("Ba16b"))
    ('CUBLASLT_ORDER_ROW', 'CUBLASLT_ORDER_COL32', None)
    """
    return next((_PREFIX + name for name in _ORDERS if _order(name) == format), None)


def names() -> tuple[str, ...]:
    """All five orders."""
    return tuple(_PREFIX + name for name in _ORDERS)
