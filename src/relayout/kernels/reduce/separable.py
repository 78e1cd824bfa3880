"""Bytes in two steps, down the columns and then along the rows: overlapping averages, and linear resampling.

A window of 3x3 reads nine elements for each result, and a bilinear resampling four. Both are products of what
happens along two axes, so that the columns can be added up first, once for all windows that share them ::

    average of 3x3, stride 1        3 + 3 elements for a result, not 9
    bilinear, twice the size        2 x 1/2 + 2, not 4

The columns of one row of results stay in the L1 cache as integers of 16 bits. Nothing is converted to f32: a
sum of 256 bytes fits 16 bits, as does a byte times weights that add up to 256. Averages are divided and
rounded as :mod:`relayout.kernels.reduce.rounding` does it. Linear weights are fractions, and integers if they
are multiplied by their denominators: fourths for twice the size, sixths for 1.5 times. Where those of both
axes together are small enough that 16 bits hold the sums, results are exact; sums are divided by a shift
where denominators are powers of two, and as averages are where they are not.

How bytes become 16 bits without a shuffle: :mod:`~.separable_text`, which writes the kernel.

Where a window reaches over the edge it adds bytes of padding, which are 0: from a row of padding, and from
words to the left and right of the columns. Averages that leave padding out are divided by what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

from relayout.dtypes import DType
from relayout.kernels.reduce.axis import Axis
from relayout.kernels.reduce.rounding import divisor
from relayout.kernels.reduce.window import Window
from relayout.loops.nest import Nest
from relayout.records import dataclass
from relayout.targets.machine import LINE

__all__ = ["WHOLE", "Separable", "Taps", "denominator", "doubled", "of_pairs", "of_weights", "of_window"]

MOST_COLUMNS = 1 << 14  # bytes of a row, with its padding: 32 KiB of the stack
LEAST_COLUMNS = 32  # of a row that is worth two steps
MOST_RESULTS = 1 << 11  # rows or pixels of results, each of which is an entry of a table
MOST_ROWS = 16  # of a window
MOST_BLOCKS = 4  # each of which has columns of its own in the stack
WHOLE = 256  # what weights of both axes add up to if their denominators are powers of two
SAME = 2.0**-22  # weights of f32 that differ by less are one fraction, and by more if they are two

Taps = tuple[tuple[int, int], ...]
"""Places along an axis, and their weights; a place of -1 is padding (:data:`~.axis.PADDING`)."""


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
    whole: int = WHOLE
    """What the weights of both axes together add up to."""

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
        return x.front * each, max(x.front + x.size, x.reach) * each

    def doubles(self, block: Nest) -> bool:
        """Whether rows become twice as long, and what is made of an element fills registers."""
        x, each = self.width, block.length
        fills = each % LINE == 0 or (each < LINE and each & (each - 1) == 0 and x.dst == each)
        return fills and self.whole == WHOLE and self.columns == doubled(x.size)

    def suits(self) -> bool:
        """Whether :mod:`~.separable_text` does it: for rows that are contiguous, neither short nor long."""
        x = self.width
        if not 0 < len(self.rows) <= MOST_RESULTS or len(self.columns) > MOST_RESULTS:
            return False
        if not 0 < len(self.blocks) <= MOST_BLOCKS:
            return False
        for block in self.blocks:
            each = block.length
            flat = not self.columns and x.stride == 1 and x.dst == each
            least = 16 if self.whole == WHOLE else LINE  # that are worth a division
            vectors = each % 2 == 0 and (each >= LINE or (each >= least and each & (each - 1) == 0))
            if x.src != each or not (flat or vectors or self.doubles(block)):
                return False
            if not LEAST_COLUMNS <= x.size * each <= self.reach(block)[1] <= MOST_COLUMNS:
                return False
        return len(self.rows[0]) <= MOST_ROWS


def of_window(window: Window, apart: bool = False) -> Separable | None:
    """Averages of bytes whose windows overlap; None for others. Which kernel suits them is another question.

    With ``apart`` windows need not overlap.

    >>> from relayout.kernels.reduce.window import planned
    >>> from relayout.layout.descriptor import MemoryDesc
    >>> image = MemoryDesc((1, 64, 4, 4), "u8", "nhwc")
    >>> axis = Axis(4, 4, 3, 1, 1, 1)
    >>> of_window(planned("sum", "window", image, image, [axis, axis])).rows
    (((-1, 1), (0, 1), (1, 1)), ((0, 1), (1, 1), (2, 1)), ((1, 1), (2, 1), (3, 1)), ((2, 1), (3, 1), (-1, 1)))
    """
    depth, height, width = window.axes
    overlaps = apart or width.shared > 0
    if not window.rounds or not depth.is_single or not overlaps or height.out > MOST_RESULTS:
        return None
    rows = tuple(tuple((place, 1) for place in height.places(output)) for output in range(height.out))
    return Separable(window.src, height, width, window.blocks, rows, divisor=window.divisor)


def of_pairs(window: Window) -> Separable | None:
    """Averages of two rows and two columns that are all elements, as neighbours with weights of 1.

    >>> from relayout.kernels.reduce.window import planned
    >>> from relayout.layout.descriptor import MemoryDesc
    >>> image, half = (MemoryDesc((1, 3, n, n), "u8", "nchw") for n in (4, 2))
    >>> axis = Axis(4, 2, 2, 2)
    >>> of_pairs(planned("sum", "window", image, half, [axis, axis])).columns
    (((0, 1), (1, 1)), ((2, 1), (3, 1)))
    """
    depth, height, width = window.axes
    twos = all(axis.kernel == 2 and axis.is_inside and not axis.front for axis in (height, width))
    few = 0 < max(height.out, width.out) <= MOST_RESULTS
    if not window.rounds or not depth.is_single or not twos or not few:
        return None
    rows, columns = (
        tuple(((axis.place(k, 0), 1), (axis.place(k, 1), 1)) for k in range(axis.out))
        for axis in (height, width)
    )
    return Separable(window.src, height, width, window.blocks, rows, columns, whole=4)


def of_weights(
    window: Window,
    rows: Sequence[Sequence[tuple[int, float]]],
    columns: Sequence[Sequence[tuple[int, float]]],
) -> Separable | None:
    """Sums of neighbours with weights that add up to 1; None where 16 bits don't hold these as integers.

    Whether a kernel suits the places of these neighbours is another question.

    Parameters
    ----------
    window : Window
        Sizes and places of both axes, blocks and data types.
    rows, columns : sequence
        For each result along an axis the places of one or two elements, and their weights.
    """
    if not all(_averages(row) for row in (*rows, *columns)):
        return None
    depth, height, width = window.axes
    bytes_ = window.src is window.dst and window.src.name in ("u8", "s8") and not window.post_ops
    if not bytes_ or depth.size * depth.out != 1 or not 0 < max(len(rows), len(columns)) <= MOST_RESULTS:
        return None
    across, down = denominator(columns), denominator(rows)
    whole = across * down
    if width.size < 2 or whole > WHOLE:
        return None
    if whole & (whole - 1) == 0:
        whole, down = WHOLE, WHOLE // across
    elif divisor(whole) is None:
        return None
    above = tuple(_pair(row, height.size, down) for row in rows)
    along = tuple(_pair(row, width.size, across) for row in columns)
    if any(other != place + 1 for (place, _), (other, _) in along):
        return None
    return Separable(window.src, height, width, window.blocks, above, along, whole=whole)


def _averages(row: Sequence[tuple[int, float]]) -> bool:
    """Whether weights add up to 1, as far as f32 tells, and none is below 0.

    >>> _averages([(0, 1 / 3), (1, 2 / 3)]), _averages([(0, 1.5), (1, -0.5)]), _averages([(0, 0.5)])
    (True, False, False)
    """
    weights = [weight for _, weight in row]
    return min(weights) >= 0 and abs(sum(weights) - 1) < SAME


def denominator(rows: Sequence[Sequence[tuple[int, float]]]) -> int:
    """By what weights are integers, but for what f32 lost; more than :data:`WHOLE` if by nothing small.

    >>> denominator([[(0, 0.75), (1, 0.25)], [(1, 1.0)]]), denominator([[(0, 1 / 3), (1, 2 / 3)]])
    (4, 3)
    >>> denominator([[(0, 0.123), (1, 0.877)]]) > WHOLE
    True
    """
    found = 1
    for weight in {weight for row in rows for _, weight in row}:
        near = Fraction(weight).limit_denominator(WHOLE)
        if abs(float(near) - weight) > SAME:
            return WHOLE + 1
        found = lcm(found, near.denominator)
    return found


def _pair(row: Sequence[tuple[int, float]], size: int, by: int) -> Taps:
    """One or two neighbours as two, with weights in integers.

    >>> _pair([(0, 1.0)], 5, 4), _pair([(4, 1.0)], 5, 4), _pair([(0, 1.0)], 1, 4)
    (((0, 4), (1, 0)), ((3, 0), (4, 4)), ((0, 4), (0, 0)))
    """
    whole = [(place, round(weight * by)) for place, weight in row]
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
