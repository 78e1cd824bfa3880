"""Bytes in two steps, down the columns and then along the rows: overlapping averages, and linear resampling.

A window of 3x3 reads nine elements for each result, and a bilinear resampling four. Both are products of what
happens along two axes, so that the columns can be added up first, once for all windows that share them ::

    average of 3x3, stride 1        3 + 3 elements for a result, not 9
    bilinear, twice the size        2 x 1/2 + 2, not 4

The columns of one row of results stay in the L1 cache as integers of 16 bits. Nothing is converted to f32: a
sum of 256 bytes fits 16 bits, as does a byte times weights that add up to 256. Averages are divided and
rounded as :mod:`relayout.kernels.reduce.rounding` does it. Linear weights are taken where they are multiples
of powers of two, as those of 2, 4 or 8 times the size are, and of the half; they are integers then, and
results exact.

How bytes become 16 bits without a shuffle: :mod:`~.separable_text`, which writes the kernel.

Where a window reaches over the edge it adds bytes of padding, which are 0: from a row of padding, and from
words to the left and right of the columns. Averages that leave padding out are divided by what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.dtypes import DType
from relayout.kernels.reduce.window import Axis, Window
from relayout.loops.nest import Nest
from relayout.records import dataclass
from relayout.targets.machine import LINE

__all__ = ["Separable", "Taps", "doubled", "of_weights", "of_window"]

MOST_COLUMNS = 1 << 14  # bytes of a row, with its padding: 32 KiB of the stack
LEAST_COLUMNS = 32  # of a row that is worth two steps
MOST_RESULTS = 1 << 11  # rows or pixels of results, each of which is an entry of a table
MOST_ROWS = 16  # of a window
MOST_BLOCKS = 4  # each of which has columns of its own in the stack
BITS = 8  # of the weights of both axes together: they add up to 256

Taps = tuple[tuple[int, int], ...]
"""Places along an axis, and their weights; a place of -1 is padding."""


@dataclass(frozen=True)
class Separable:
    """What is computed: the numbers without formats."""

    kind: DType
    """u8 or s8, of source and destination."""
    height: Axis
    width: Axis
    blocks: tuple[Nest, ...]
    """Images and channels: source and destination, in bytes."""
    rows: tuple[Taps, ...]
    """For each row of results those that it is made of, equally many."""
    columns: tuple[Taps, ...] = ()
    """The same along a row, two neighbours each; empty: windows, as ``width`` says, with weights of 1."""
    divisor: str = ""
    """What windows are divided by, as :attr:`~.window.Window.divisor` says."""

    @property
    def weighted(self) -> bool:
        """Whether rows have weights other than 1."""
        return any(weight != 1 for row in self.rows for _, weight in row)

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return len(self.rows[0]) * self.width.kernel

    def reach(self, block: Nest) -> tuple[int, int]:
        """Elements of a row in front of the source's, and all together."""
        x, each = self.width, block.length
        if self.columns:
            return (each, (x.size + 2) * each) if self.doubles(block) else (0, x.size * each)
        last = (x.out - 1) * x.stride + (x.kernel - 1) * x.dilation + 1
        return x.front * each, max(x.front + x.size, last) * each

    def doubles(self, block: Nest) -> bool:
        """Whether rows become twice as long, and what is made of an element fills registers."""
        x, each = self.width, block.length
        fills = each % LINE == 0 or (each < LINE and each & (each - 1) == 0 and x.dst == each)
        return fills and self.columns == doubled(x.size)

    def suits(self) -> bool:
        """Whether rows are contiguous, and neither too short nor too long."""
        x = self.width
        if not 0 < len(self.rows) <= MOST_RESULTS or len(self.columns) > MOST_RESULTS:
            return False
        if not 0 < len(self.blocks) <= MOST_BLOCKS:
            return False
        for block in self.blocks:
            each = block.length
            flat = not self.columns and x.stride == 1 and x.dst == each
            vectors = each % 2 == 0 and (each >= LINE or (each >= 16 and each & (each - 1) == 0))
            if x.src != each or not (flat or vectors or self.doubles(block)):
                return False
            if not LEAST_COLUMNS <= x.size * each <= self.reach(block)[1] <= MOST_COLUMNS:
                return False
        return len(self.rows[0]) <= MOST_ROWS


def of_window(window: Window) -> Separable | None:
    """Averages of bytes whose windows overlap; None for others.

    >>> from relayout.kernels.reduce.window import planned
    >>> from relayout.layout.descriptor import MemoryDesc
    >>> image = MemoryDesc((1, 64, 4, 4), "u8", "nhwc")
    >>> axis = Axis(4, 4, 3, 1, 1, 1)
    >>> of_window(planned("sum", "window", image, image, [axis, axis])).rows
    (((-1, 1), (0, 1), (1, 1)), ((0, 1), (1, 1), (2, 1)), ((1, 1), (2, 1), (3, 1)), ((2, 1), (3, 1), (-1, 1)))
    """
    depth, height, width = window.axes
    single = depth.size == depth.out == depth.kernel == 1 and not depth.front
    if not window.rounds or not single or width.kernel <= width.stride or height.out > MOST_RESULTS:
        return None
    rows = []
    for output in range(height.out):
        inside, start = height.taps(output), output * height.stride - height.front
        places = (start + k * height.dilation if k in inside else -1 for k in range(height.kernel))
        rows.append(tuple((place, 1) for place in places))
    made = Separable(window.src, height, width, window.blocks, tuple(rows), divisor=window.divisor)
    return made if made.suits() else None


def of_weights(
    window: Window,
    rows: Sequence[Sequence[tuple[int, float]]],
    columns: Sequence[Sequence[tuple[int, float]]],
) -> Separable | None:
    """Sums of neighbours with weights that add up to 1; None where these are no small multiples of 2**-k.

    Parameters
    ----------
    window : Window
        Sizes and places of both axes, blocks and data types.
    rows, columns : sequence
        For each result along an axis the places of one or two elements, and their weights.
    """
    depth, height, width = window.axes
    bytes_ = window.src is window.dst and window.src.name in ("u8", "s8") and not window.post_ops
    if not bytes_ or depth.size * depth.out != 1 or max(len(rows), len(columns)) > MOST_RESULTS:
        return None
    across = _bits(columns)
    if width.size < 2 or _bits(rows) + across > BITS:
        return None
    down = [_pair(row, height.size, BITS - across) for row in rows]
    along = [_pair(row, width.size, across) for row in columns]
    if any(other != place + 1 for (place, _), (other, _) in along):
        return None
    made = Separable(window.src, height, width, window.blocks, tuple(down), tuple(along))
    return made if made.suits() else None


def _bits(rows: Sequence[Sequence[tuple[int, float]]]) -> int:
    """By which power of two weights are integers; more than all that there are if by none.

    >>> _bits([[(0, 0.75), (1, 0.25)], [(1, 1.0)]]), _bits([[(0, 1 / 3), (1, 2 / 3)]]) > BITS
    (2, True)
    """
    weights = {weight for row in rows for _, weight in row}
    found = (bits for bits in range(BITS + 1) if all((w * 2**bits).is_integer() for w in weights))
    return next(found, BITS + 1)


def _pair(row: Sequence[tuple[int, float]], size: int, bits: int) -> Taps:
    """One or two neighbours as two, with weights in integers.

    >>> _pair([(0, 1.0)], 5, 2), _pair([(4, 1.0)], 5, 2), _pair([(0, 1.0)], 1, 2)
    (((0, 4), (1, 0)), ((3, 0), (4, 4)), ((0, 4), (0, 0)))
    """
    whole = [(place, int(weight * 2**bits)) for place, weight in row]
    if len(whole) == 1:
        [(place, weight)] = whole
        if place + 1 < size:
            return (place, weight), (place + 1, 0)
        return ((place - 1, 0), (place, weight)) if place else ((place, weight), (place, 0))
    return tuple(whole)


def doubled(size: int) -> tuple[Taps, ...]:
    """The columns of rows of so many elements that become twice as long.

    >>> doubled(2)
    (((0, 4), (1, 0)), ((0, 3), (1, 1)), ((0, 1), (1, 3)), ((0, 0), (1, 4)))
    """
    between = [((k, three), (k + 1, 4 - three)) for k in range(size - 1) for three in (3, 1)]
    return ((0, 4), (1, 0)), *between, ((size - 2, 0), (size - 1, 4))
