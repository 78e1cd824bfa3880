"""How work is shared among threads: into how many parts it is cut, and whether it pays to wake anybody.

One policy for reorders, elementwise operations, reductions and sums of products. Three sizes decide:

* below :data:`SHARED` nothing is shared, not even with threads that are awake;
* up to :data:`EVEN` each thread has one part, the same one in each call, and finds it in its own cache;
* beyond that parts are finer, so that a thread that is held up leaves its later ones to others.

Whether sleeping threads are woken is a question of time: of bytes where work moves them, a threshold that is
measured (:mod:`relayout.runtime.thresholds`), and of operations where it computes (:func:`computes_enough`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["EVEN", "PARTS", "SHARED", "computes_enough", "parts_of", "parts_of_tasks"]

SHARED: Final = 1 << 17
"""Bytes of all operands together from which on threads that are awake pay."""

EVEN: Final = 1 << 24
"""Bytes of all operands together up to which threads have one part each, which their caches may keep."""

PARTS: Final = 4
"""Parts of each thread beyond that."""

WORTH: Final = 1 << 21
"""Operations from which on waking threads pays: some tens of microseconds."""

OPERATIONS_A_BYTE: Final = 2
"""In the time of which a byte is moved."""


def parts_of(size: int, threads: int) -> int:
    """Into how many parts work on so many bytes is cut that can be cut anywhere.

    >>> [parts_of(size, 2) for size in (1 << 16, 1 << 20, 1 << 30)]
    [1, 2, 8]
    """
    if size < SHARED:
        return 1
    return threads * (PARTS if size > EVEN else 1)


def parts_of_tasks(tasks: int, size: int, threads: int) -> int:
    """Into how many parts tasks are cut that work on so many bytes together.

    Beyond :data:`EVEN` tasks are cut as evenly as can be, then as finely: 14 tasks in 4 parts would keep one
    of two threads busy with 8.

    >>> [parts_of_tasks(tasks, 1 << 30, 2) for tasks in (1, 2, 14, 28, 42)]
    [1, 2, 2, 4, 2]
    """
    if tasks <= threads or size <= EVEN:
        return min(tasks, threads)
    choices = [threads * k for k in (1, 2, PARTS) if threads * k <= tasks]
    return min(choices, key=lambda parts: (-(-tasks // parts) * (parts // threads), -parts))


def computes_enough(operations: int, size: int) -> bool:
    """Whether it pays to wake threads for so many operations on so many bytes."""
    return operations + OPERATIONS_A_BYTE * size >= WORTH
