"""Windows that move over images: where each of their taps lies, for definitions that go tap by tap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

__all__ = ["counts_of", "taps_of"]


def counts_of(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """How many windows there are along each axis of padded pixels.

    >>> counts_of([5, 2], [3, 3], [2, 1], [1, 1])
    [2, 0]
    """
    return [
        max(0, (n - (k - 1) * d - 1) // s + 1)
        for n, k, d, s in zip(sizes, kernel, dilation, strides, strict=True)
    ]


def taps_of(
    kernel: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Iterator[tuple[Any, Any]]:
    """For each tap of a window its index in weights, and that of the padded pixels which it meets.

    There are so many windows along each axis (``sizes``): the pixels of what a convolution or a pooling
    writes. What a tap meets are pixels of what it reads.

    >>> list(taps_of([2], [3], [2], [1]))
    [((Ellipsis, 0), (Ellipsis, slice(0, 5, 2))), ((Ellipsis, 1), (Ellipsis, slice(1, 6, 2)))]
    """
    for tap in product(*map(range, kernel)):
        met = (
            slice(t * d, t * d + (n - 1) * s + 1 if n else t * d, s)
            for t, d, n, s in zip(tap, dilation, sizes, strides, strict=True)
        )
        yield (..., *tap), (..., *met)
