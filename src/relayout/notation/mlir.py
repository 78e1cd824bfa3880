"""MLIR's packing: ``linalg.pack outer_dims_perm = [0, 2, 3, 1] inner_dims_pos = [1] inner_tiles = [16]``.

MLIR (and IREE on top of it) has no type for layouts of tensors. It has an operation: ``linalg.pack``
(``tensor.pack`` in older versions) makes a tensor with more axes out of one with fewer, and the result lies
row-major. So its attributes *are* a layout of the source.

The three attributes
====================

``outer_dims_perm``
    The order of the outer axes: the k-th axis of the result is axis ``outer_dims_perm[k]`` of the source.
    Absent: as in the source.
``inner_dims_pos``
    The axes that are tiled, in the order in which the tiles follow the outer axes. An axis has one tile at
    most.
``inner_tiles``
    The sizes of these tiles. The outer axis counts ``ceil(size / tile)``; the room at the end is filled with
    the operation's padding value.

Over N, C, H, W the example above is ::

    outer_dims_perm = [0, 2, 3, 1]    n   h   w   c//16
    inner_dims_pos = [1], inner_tiles = [16]               c%16

Without ``outer_dims_perm`` the number of axes is not in the attributes. It is then taken from the type of the
source, ``: tensor<2x64x56x56xf32> -> ...``, if the text goes on so far; otherwise the format waits for the
rank. ``linalg.unpack`` has the same attributes and describes the same layout, of its result.

Source: MLIR's ``LinalgRelayoutOps.td``.
"""

from __future__ import annotations

import re

from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format, letters
from relayout.notation.onednn import blocked_digits

TITLE = "MLIR"

__all__ = ["TITLE", "names", "parse", "render"]

_OPERATION = re.compile(
    r"(?:%[\w$.-]+\s*=\s*)?(?:(?:linalg|tensor)\.(pack|unpack)\b.*|(?:outer_dims_perm|inner_dims_pos)\b.*)",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"\b(outer_dims_perm|inner_dims_pos|inner_tiles)\s*=\s*\[([^\]]*)\]")
_TYPE = re.compile(r"tensor<((?:(?:[0-9]+|\?)x)*)[a-z]")
_NUMBER = re.compile(r"[0-9]{1,18}")


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a pack operation or its attributes; None if the text is none.

    Raises
    ------
    LayoutError
        The attributes contradict each other: no permutation, an axis tiled twice, more tiles than positions.
    Unsupported
        Tile sizes that are only known at run time.

    Examples
    --------
    >>> parse("linalg.pack outer_dims_perm=[0,2,3,1] inner_dims_pos=[1] inner_tiles=[16]").digits_text()
    'abcd -> a, c, d, b//16, b%16'
    >>> parse("inner_dims_pos=[1] inner_tiles=[16]", rank=4) == Format("aBcd16b")
    True
    """
    operation = _OPERATION.fullmatch(text)
    if operation is None:
        return None
    found = {name: _numbers(text, name, values) for name, values in _ATTRIBUTE.findall(text)}
    positions, tiles = found.get("inner_dims_pos"), found.get("inner_tiles")
    if positions is None or tiles is None:
        raise LayoutError(
            f"pack {text!r} needs inner_dims_pos = [...] and inner_tiles = [...]; both may be empty"
        )
    if len(positions) != len(tiles):
        raise LayoutError(f"pack {text!r} has {len(tiles)} inner_tiles for {len(positions)} inner_dims_pos")
    if len(set(positions)) != len(positions):
        raise LayoutError(
            f"pack {text!r} tiles an axis twice in inner_dims_pos {positions}; MLIR allows one tile an axis"
        )
    if 0 in tiles:
        raise LayoutError(f"pack {text!r} has a tile of size 0; a tile must be 1 or more")
    order = found.get("outer_dims_perm") or None
    known = len(order) if order else _rank_of_type(text, operation[1], len(tiles)) or rank
    if known is None:
        return Format.waiting(text, "mlir", ("rank",))
    order = order or list(range(known))
    if sorted(order) != list(range(known)):
        raise LayoutError(f"pack {text!r}: outer_dims_perm {order} is no permutation of 0 to {known - 1}")
    if any(axis >= known for axis in positions):
        raise LayoutError(
            f"pack {text!r}: inner_dims_pos {positions} names an axis beyond the {known} axes of the tensor"
        )
    axes = letters(known)
    blocks = [(axes[a], tile) for a, tile in zip(positions, tiles, strict=True) if tile != 1]
    return Format.blocked(axes, [axes[a] for a in order], blocks)


def _numbers(text: str, name: str, values: str) -> list[int]:
    words = [word.strip() for word in values.split(",")] if values.strip() else []
    if name == "inner_tiles" and any(word.startswith(("%", "?")) for word in words):
        raise Unsupported(
            f"pack {text!r} has tile sizes that are only known at run time; a format needs numbers"
        )
    if not all(_NUMBER.fullmatch(word) for word in words):
        raise LayoutError(f"pack {text!r}: {name} = [{values}] must be a list of numbers from 0 up")
    return [int(word) for word in words]


def _rank_of_type(text: str, operation: str | None, tiles: int) -> int | None:
    """The rank of the unpacked tensor, from the first type behind the colon (of unpack: the packed one)."""
    first = _TYPE.search(text)
    if first is None:
        return None
    rank = first[1].count("x")
    return rank - tiles if operation == "unpack" else rank


def render(format: Format) -> str | None:
    """Spell a format as a pack operation; None where an axis has two blocks or a digit is out of order.

    >>> render(Format("nChw16c"))
    'linalg.pack outer_dims_perm = [0, 1, 2, 3] inner_dims_pos = [1] inner_tiles = [16]'
    """
    digits = blocked_digits(format)
    if digits is None or not format.rank:
        return None
    outer, inner = digits
    positions = [axis for axis, _ in inner]
    if len(set(positions)) != len(positions) or any(not 1 < size < 10**18 for _, size in inner):
        return None
    tiles = [size for _, size in inner]
    return f"linalg.pack outer_dims_perm = {outer} inner_dims_pos = {positions} inner_tiles = {tiles}"


def names() -> tuple[str, ...]:
    """Some packings: a convolution's data and weights, the operands of a matrix product."""
    return (
        "linalg.pack outer_dims_perm = [0, 1, 2, 3] inner_dims_pos = [1] inner_tiles = [16]",
        "linalg.pack outer_dims_perm = [0, 2, 3, 1] inner_dims_pos = [] inner_tiles = []",
        "linalg.pack outer_dims_perm = [0, 1, 2, 3] inner_dims_pos = [1, 0] inner_tiles = [16, 16]",
        "linalg.pack outer_dims_perm = [0, 1] inner_dims_pos = [0, 1] inner_tiles = [8, 4]",
        "linalg.pack outer_dims_perm = [1, 0] inner_dims_pos = [1, 0] inner_tiles = [16, 2]",
    )
