"""Tenstorrent's layouts: ``TILE_LAYOUT`` and ``ROW_MAJOR_LAYOUT``.

Tenstorrent's cores multiply tiles of 32 x 32 elements, and their tensors (in the library TT-NN) are kept as
such tiles. Within a tile lie *faces* of 16 x 16, which are what the matrix engine takes in one step::

    TILE_LAYOUT          r//32   c//32   r//16%2   c//16%2   r%16   c%16
                         tiles           faces               elements of a face
    ROW_MAJOR_LAYOUT     r   c

So the element (17, 3) of a matrix with one tile is in face (1, 0), the third, and there in row 1, at
2 * 256 + 1 * 16 + 3 = 531.

Tensors of more axes are row-major stacks of such matrices: the last two axes are tiled. The texts are read
with two axes until the rank is known.

Smaller tiles are written with their sizes: ``TILE_LAYOUT 16x32``. The hardware has tiles of 1, 2, 4, 8, 16 or
32 rows by 16 or 32 columns; a face has 16 columns and as many rows as the tile, up to 16. The faces may be
written out, ``TILE_LAYOUT 32x32 with 16x16 faces``.

Source: TT-Metalium's documentation, "Tiles".
"""

from __future__ import annotations

import re
from functools import lru_cache

from relayout.errors import LayoutError
from relayout.layout.format import Format, letters

TITLE = "Tenstorrent"

__all__ = ["TITLE", "names", "parse", "render"]

_ROWS, _COLUMNS, _FACE = (32, 16, 8, 4, 2, 1), (32, 16), 16  # the tiles that exist; the side of a face
_TEXT = re.compile(
    r"(?:ttnn\.|Layout(?:::|\.))?(?:(ROW_MAJOR(?:_LAYOUT)?)|TILE(?:_LAYOUT)?"
    r"(?:\s+([0-9]{1,4})x([0-9]{1,4})(?:\s+with\s+([0-9]{1,4})x([0-9]{1,4})\s+faces)?)?)"
)


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a layout; None if it is none. ``rank`` is 2 until it is known.

    Raises
    ------
    LayoutError
        A tile or a face that the hardware does not have, or a tiled tensor with fewer than two axes.

    Examples
    --------
    >>> parse("TILE_LAYOUT").digits_text()
    'row col -> row//32, col//32, row//16%2, col//16%2, row%16, col%16'
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    row_major, *sizes = match.groups()
    rank = 2 if rank is None else rank
    if row_major:
        axes = _axes(rank)
        return Format.blocked(axes, axes).spelled(text, "tenstorrent", ("rank",))
    rows, columns, *face = (int(size) for size in sizes if size) if sizes[0] else (32, 32)
    if rows not in _ROWS or columns not in _COLUMNS:
        raise LayoutError(
            f"{text!r}: there is no tile of {rows}x{columns}; rows are one of {_ROWS}, columns of {_COLUMNS}"
        )
    if face and face != [min(rows, _FACE), _FACE]:
        raise LayoutError(
            f"{text!r}: the faces of a tile of {rows}x{columns} are {min(rows, _FACE)}x{_FACE}, "
            f"not {face[0]}x{face[1]}"
        )
    if rank < 2:
        raise LayoutError(f"{text!r} tiles the last two axes, but the tensor has {rank}")
    return _tiled(rank, rows, columns).spelled(text, "tenstorrent", ("rank",))


def _axes(rank: int) -> tuple[str, ...]:
    return ("row", "col") if rank == 2 else letters(rank)


@lru_cache(maxsize=128)  # rendering compares with all of them
def _tiled(rank: int, rows: int, columns: int) -> Format:
    axes = _axes(rank)
    height = min(rows, _FACE)
    row, column = axes[-2:]
    blocks = [(row, rows // height), (column, columns // _FACE), (row, height), (column, _FACE)]
    return Format.blocked(axes, axes, [(axis, size) for axis, size in blocks if size > 1])


def render(format: Format) -> str | None:
    """Spell a format as a layout; the sizes of the tile are written where they are not 32x32.

    >>> render(Format("AB2a2b16a16b")), render(Format("abc")), render(Format("AB16a16b"))
    ('TILE_LAYOUT', 'ROW_MAJOR_LAYOUT', 'TILE_LAYOUT 16x16 with 16x16 faces')
    """
    if not format.rank:
        return None
    axes = _axes(format.rank)
    if format == Format.blocked(axes, axes):
        return "ROW_MAJOR_LAYOUT"
    for rows, columns in ((r, c) for r in _ROWS for c in _COLUMNS if format.rank and format.rank > 1):
        if format == _tiled(format.rank, rows, columns):
            faces = f" {rows}x{columns} with {min(rows, _FACE)}x{_FACE} faces"
            return "TILE_LAYOUT" + ("" if (rows, columns) == (32, 32) else faces)
    return None


def names() -> tuple[str, ...]:
    """The two layouts, and a smaller tile."""
    return ("TILE_LAYOUT", "ROW_MAJOR_LAYOUT", "TILE_LAYOUT 16x32")
