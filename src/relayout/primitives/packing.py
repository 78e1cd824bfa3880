"""Constants that are moved to their places by a thread of its own, while kernels are made.

Most of what packing a network's weights takes is not moving them but their new memory, which the system gives
out page by page when it is first written to. That and copies of NumPy need no interpreter, so they run beside
what does::

    with Packing() as packing:
        constants = ...                main thread   lower | write | lower | write        | wait
            packing.add(size, move)    LLVM                | compile       | compile
        ... make kernels ...           packing       copy      copy      copy
    # all of them are where they belong

Traps:

* Whoever waits here may hold the lock that a fork waits for (:mod:`relayout.forking`), so what is moved must
  not ask for it: no imports, nothing that compiles.
* Memory that is being written to may be named meanwhile, and must not be read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

__all__ = ["WORTH", "Packing"]

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
