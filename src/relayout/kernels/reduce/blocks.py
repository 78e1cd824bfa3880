"""The tasks of a block: its images and channels, and perhaps parts of each.

A block is a nest around the pixels of source and destination (:func:`~.space.last_axes`). Threads share what
is in it: a task is an image, a channel or a vector of some, or a part of that, such as a few rows of results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from relayout.ir.builder import Function
from relayout.ir.kernel import digits, tasks
from relayout.ir.types import Value
from relayout.loops.nest import Loop

__all__ = ["in_tasks"]


def in_tasks(
    b: Function,
    starts: Sequence[int],
    around: Sequence[Loop],
    write: Callable[..., None],
    parts: int | None = None,
) -> None:
    """Write all tasks, in the order of the loops.

    Parameters
    ----------
    b : Function
        What is being written: its first arguments are the addresses of source and destination.
    starts : sequence of int
        Where a block begins in both, in bytes.
    around : sequence of Loop
        Its loops.
    write : callable
        Writes a task, of its addresses in source and destination; and of the number of its part.
    parts : int, optional
        How many parts there are of each turn of the loops.
    """
    counts = [loop.extent for loop in around] + ([] if parts is None else [parts])

    def task(number: Value) -> None:
        src, dst = (b.gep(at, start) for at, start in zip(b.arguments[:2], starts, strict=True))
        found = digits(b, number, counts)
        for loop, k in zip(around, found, strict=False):  # behind the loops comes the part
            src, dst = b.gep(src, k, loop.src), b.gep(dst, k, loop.dst)
        write(src, dst, *found[len(around) :])

    tasks(b, prod(counts), task)
