"""What a swizzle does: the numbers of an axis in the order in which memory has them.

An axis whose digits stand in memory most significant first is in order: 0, 1, 2, ... A *swizzled* one is not:
``o%4, o//4`` puts 0, 4, 8, ... before 1, 5, 9, ... The picture has the numbers in two rows, in order above,
as memory has them below, and lines between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Final, NamedTuple

from relayout.draw.canvas import Canvas, text_width
from relayout.draw.colours import INK, MUTED, PAPER, PLAIN, RULE, shade
from relayout.layout.digits import digit_sum
from relayout.layout.layout import Layout

__all__ = ["Order", "draw_order", "swizzled"]

MOST: Final = 32  # numbers of an axis that are drawn
HEIGHT: Final = 18
WIRES: Final = 34


class Order(NamedTuple):
    """The numbers of an axis below ``count``, in the order of memory; the axis has ``room`` of them."""

    axis: int
    numbers: tuple[int, ...]
    room: int


def swizzled(layout: Layout) -> Iterator[Order]:
    """The axes that memory does not have in order.

    Of long axes the first period is looked at: numbers that differ in inner digits only.

    >>> layout = Layout((8, 4), "oi -> o//8, i//2, o%2, o//2%4, i%2")
    >>> [(order.axis, order.numbers) for order in swizzled(layout)]
    [(0, (0, 2, 4, 6, 1, 3, 5, 7))]
    """
    for term, ladder, room in zip(layout.terms, layout.ladders, layout.padded, strict=True):
        counting = [digit for digit in ladder if digit.extent > 1 and digit.stride]
        if len(term) > 1 or len(counting) < 2:
            continue
        count = room
        for digit in counting:  # from the most significant on
            if count <= MOST:
                break
            count = digit.weight
        numbers = sorted(range(min(count, prod(layout.padded))), key=partial(digit_sum, ladder))
        if numbers != sorted(numbers) and len(numbers) <= MOST:
            yield Order(term[0], tuple(numbers), room)


def draw_order(
    canvas: Canvas, top: float, order: Order, name: str, shades: tuple[int, int | None, int] | None
) -> float:
    """Draw one axis in two orders, from ``top`` downwards; return where it ends.

    ``shades`` is the digit that gives the colours, as (weight, extent, count), if it is one of this axis.
    """
    count = len(order.numbers)
    size = max(HEIGHT + 2.0, text_width(str(count - 1), 10) + 8)
    said = f"{name} in order, and as memory has it"
    if count < order.room:
        said += f"; shown: {name} = 0..{count - 1} of {order.room}"
    canvas.words(0, top + 11, said, size=11, anchor="start", fill=MUTED, mono=False)
    x0 = max(text_width("memory", 10) + 10, 40)
    y0, y1 = top + 20, top + 20 + HEIGHT + WIRES

    def fill(number: int) -> str:
        if shades is None:
            return PLAIN
        weight, extent, values = shades
        value = number // weight
        return shade(value % extent if extent is not None else value, values)

    at = {number: x0 + (place + 0.5) * size for place, number in enumerate(order.numbers)}
    for number in range(count):
        top_x = x0 + (number + 0.5) * size
        canvas.wire(top_x, y0 + HEIGHT, at[number], y1, stroke=MUTED, thickness=0.9)
    for number in range(count):
        for x, y in ((x0 + number * size, y0), (at[number] - size / 2, y1)):
            canvas.box(x, y, size, HEIGHT, fill=fill(number), stroke=PAPER, thickness=1.2)
            canvas.words(x + size / 2, y + 13, str(number), size=10, fill=INK)
    for text, y in ((name, y0), ("memory", y1)):
        canvas.words(x0 - 8, y + 13, text, size=10, anchor="end", fill=MUTED)
    canvas.line([(x0, y1 + HEIGHT + 4), (x0 + count * size, y1 + HEIGHT + 4)], stroke=RULE, arrow=False)
    return y1 + HEIGHT + 8
