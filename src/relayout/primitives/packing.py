"""Constants that are moved to their places by a thread of its own, while kernels are made.

Most of what packing a network's weights takes is not moving them but their new memory, which the system gives
out page by page when it is first written to. That and copies of NumPy need no interpreter, so they run beside
what does::

    with Packing() as packing:
        constants = ...                main thread   lower | write | lower | write        | wait
            packing.add(size, move)    LLVM                | compile       | compile
        ... make kernels ...           packing       copy      copy      copy
    # all of them are where they belong

The memory itself can be had before it is known what goes where (:func:`ahead`): while a network is planned,
another thread asks the system for as much as its weights take now.

Traps:

* Whoever waits here may hold the lock that a fork waits for (:mod:`relayout.forking`), so what is moved must
  not ask for it: no imports, nothing that compiles.
* Memory that is being written to may be named meanwhile, and must not be read.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

from relayout.processors import processors
from relayout.tensor import address, on_large_pages, own_pages, room_together, side_by_side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["WORTH", "Packing", "ahead", "rooms"]

WORTH = 1 << 20
"""Bytes from which on a thread is started; fewer are moved before it would run."""


class Packing:
    """What is to be moved; see the module. It is begun by :meth:`start` and ended with the context."""

    def __init__(self) -> None:
        self._left: deque[Callable[[], object]] = deque()
        self._size = 0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def add(self, size: int, move: Callable[[], object]) -> None:
        """Add a move of so many bytes, before :meth:`start`."""
        self._left.append(move)
        self._size += size

    def start(self) -> None:
        """Move everything, in a thread where it is worth one."""
        if self._size < WORTH:
            while self._left:
                self._left.popleft()()
            return
        self._thread = threading.Thread(target=self._work, name="relayout packs", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while self._left:
                self._left.popleft()()
        except BaseException as error:  # raised where somebody waits
            self._error = error

    def __enter__(self) -> Packing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._left.clear()
        if self._thread is not None:
            self._thread.join()
        if error is None and self._error is not None:
            raise self._error


# -- memory before it is needed -----------------------------------------------------------------------------

POPULATE_WRITE, DONTNEED = 23, 4  # as Linux counts them (since 5.14)
LEAST = 16 << 20
"""Bytes from which on memory is asked for ahead."""
SHARE = 0.8
"""The least share of it that is used; otherwise it goes back, and other memory is taken."""
SPARE = 1.04
"""Times as much as weights take now: packed ones end in padding."""
STEP = 2 << 20
"""Bytes that are asked for at once: a large page. Whoever maps memory meanwhile waits for that."""


class _Reserve:
    """Memory that the system is asked for in the background, without writing to it."""

    def __init__(self, size: int) -> None:
        self.whole: NDArray[np.uint8] | None = own_pages(size)
        self._ends = threading.Event()
        span = address(self.whole), size
        self._thread = threading.Thread(
            target=self._work, args=span, name="relayout asks for memory", daemon=True
        )
        self._thread.start()

    def _work(self, start: int, size: int) -> None:
        madvise = _madvise()
        for at in range(start, start + size // STEP * STEP, STEP):
            if self._ends.is_set() or madvise(at, STEP, POPULATE_WRITE):
                return  # an older system, or no more memory: pages come when they are written to

    def taken(self, sizes: Sequence[int]) -> list[NDArray[np.uint8]] | None:
        """Buffers in it, once; None where they don't fit, or would leave much of it unused."""
        size = room_together(sizes)
        if self.whole is None or not SHARE * self.whole.nbytes <= size <= self.whole.nbytes:
            return None
        whole, self.whole = self.whole, None
        rest = -(-size // STEP) * STEP  # from there on nothing is used
        if rest < whole.nbytes:
            self.close()
            _madvise()(address(whole) + rest, whole.nbytes - rest, DONTNEED)
        return side_by_side(whole, sizes)

    def close(self) -> None:
        """Ask for no more."""
        self._ends.set()
        self._thread.join()
        self.whole = None


_reserve: ContextVar[_Reserve | None] = ContextVar("relayout_reserve", default=None)


@lru_cache(maxsize=1)
def _madvise() -> Any:
    found = ctypes.CDLL(None).madvise
    found.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return found


@contextmanager
def ahead(size: int) -> Iterator[None]:
    """Ask the system for the memory of so many bytes of weights while other things are done within.

    What :func:`rooms` gives next is in that memory, if it is about as much. Nothing is asked for where memory
    is small, or there is no second processor to do it.
    """
    if size < LEAST or sys.platform != "linux" or processors() < 2:
        yield
        return
    made = _Reserve(int(SPARE * size))
    mark = _reserve.set(made)
    try:
        yield
    finally:
        _reserve.reset(mark)
        made.close()


def rooms(sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Zeroed buffers for what stays, as :func:`relayout.tensor.on_large_pages` makes them."""
    found = _reserve.get()
    made = None if found is None else found.taken(sizes)
    return on_large_pages(sizes) if made is None else made
