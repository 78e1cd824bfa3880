"""Constants in memory that somebody else keeps: read where they lie, and found again in another process.

Constants are copied when a sequence is compiled, since the caller may do with his arrays what he likes
afterwards. Who watches his arrays, and compiles anew when somebody has written to them, lends them::

    with lent([(weights, True), ...]):
        run = sequence.compile()          a constant that is wanted as it lies there is not copied

And who knows in which of them each constant lies knows what to do with other arrays of the same kind: move
them in the same way. So what is kept of a compiled sequence needs no weights, but only how they are moved
(:class:`Moved`), and a later process takes its own (:func:`relayout.graph.kept.recalled`).

That is right only if nothing else depends on what is in an array: no other constant was computed of it, and
nobody has looked at its values to choose what is done. An array of which the lender knows that only one
operator reads it, which does so as a whole, is *exchangeable*. Passes over graphs ask for that where they
would compare values (:meth:`Loan.exchanges`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import ALIGNMENT, Tensor, address, as_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["WORTH", "Array", "Loan", "Moved", "lent", "loan", "told"]

WORTH: Final = 1 << 20
"""Bytes from which on a constant stays where it lies; smaller ones lie side by side in large pages."""


class Array(NamedTuple):
    """Memory that is lent."""

    data: NDArray[np.uint8]
    """Its bytes."""
    stays: bool
    """Whether it may be read later, too: the lender watches it."""
    exchangeable: bool
    """Whether nothing but moving it depends on its values."""


class Moved(NamedTuple):
    """A constant that was moved out of memory that was lent, or is read there."""

    array: int
    """The number of the array."""
    at: int
    """Where in it the tensor begins, in bytes."""
    src: MemoryDesc
    dst: MemoryDesc


@lru_cache(maxsize=256)
def told(text: str) -> MemoryDesc:
    """The descriptor that a text tells; a network's layers repeat a few of them.

    Raises
    ------
    LayoutError
        The text is no descriptor.
    """
    return MemoryDesc(text)


class Loan:
    """Arrays that are lent, found by their addresses.

    >>> import numpy as np
    >>> weights = np.arange(8, dtype=np.uint8)
    >>> made = Loan([Array(weights, False, True)])
    >>> made.place(weights[2:5]), made.place(np.zeros(3, np.uint8)), made.exchanges(weights[4:])
    ((0, 2), None, True)
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = tuple(arrays)
        spans = sorted((address(one.data), k) for k, one in enumerate(arrays) if one.data.size)
        self._starts = [start for start, _ in spans]
        self._numbers = [k for _, k in spans]

    def place(self, data: NDArray[Any]) -> tuple[int, int] | None:
        """In which array memory begins, and where there; None: in none."""
        where = address(data)
        found = bisect_right(self._starts, where)
        if not found or not data.size:
            return None
        number, at = self._numbers[found - 1], where - self._starts[found - 1]
        return (number, at) if at < self.arrays[number].data.size else None

    def exchanges(self, data: NDArray[Any]) -> bool:
        """Whether an array of another one's memory may get other values later."""
        found = self.place(data)
        return found is not None and self.arrays[found[0]].exchangeable

    def moved(self, given: Tensor, dst: MemoryDesc) -> Moved | None:
        """How a tensor of this memory is moved; None: it is of other memory, or there are no words for it."""
        found = self.place(as_bytes(given.buffer))
        if found is None or told(str(given.desc)) != given.desc or told(str(dst)) != dst:
            return None
        return Moved(*found, given.desc, dst)

    def tensor(self, moved: Moved) -> Tensor | None:
        """The tensor that is moved so; None: it would not be within its array."""
        if not 0 <= moved.array < len(self.arrays):
            return None
        data, desc = self.arrays[moved.array].data, moved.src
        end = moved.at + max(desc.required_bytes, desc.nbytes)
        inside = moved.at >= 0 and desc.layout is not None and desc.layout.bounds()[0] >= 0
        return Tensor(desc, data[moved.at : end]) if inside and end <= data.size else None

    def stays(self, given: Tensor, dst: MemoryDesc) -> bool:
        """Whether a tensor is read where it lies."""
        if given.desc != dst or not WORTH <= dst.required_bytes == dst.nbytes:
            return False
        data = as_bytes(given.buffer)
        found = self.place(data)
        aligned = address(data) % ALIGNMENT == 0 and data.nbytes >= dst.nbytes
        return aligned and found is not None and self.arrays[found[0]].stays


_loan: ContextVar[Loan | None] = ContextVar("relayout_loan", default=None)


def loan() -> Loan | None:
    """What is lent where this is called."""
    return _loan.get()


@contextmanager
def lent(arrays: Sequence[Array]) -> Iterator[Loan]:
    """Lend arrays to what is compiled within."""
    made = Loan(arrays)
    mark = _loan.set(made)
    try:
        yield made
    finally:
        _loan.reset(mark)
