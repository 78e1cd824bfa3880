"""The others: libraries that convert memory formats, each in a file of its own.

A peer is anything with a name and two functions::

    available()                              its version, or None where it is not installed
    prepare(case, source, target, threads)   a callable that does the reorder, or None: it can't

``prepare`` does once what a user would do once (descriptors, views, primitives, buffers in between), so that
only moving is timed; it may write to ``target``. The callable reads ``source`` and writes every byte of
``target``, padding included. None is the answer to data types, formats and attributes that the peer does not
have; nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from relayout.bench.suite import Case

__all__ = ["Peer", "all_peers"]


class Peer(Protocol):
    """A library to compare with."""

    name: str

    def available(self) -> str | None:
        """Its version, or None where it can't be used here."""

    def prepare(
        self, case: Case, source: NDArray[np.uint8], target: NDArray[np.uint8], threads: int
    ) -> Callable[[], object] | None:
        """What does the case when it is called; None where the peer can't do it."""


def all_peers() -> tuple[Peer, ...]:
    """All peers, installed or not."""
    from relayout.bench.peers.numpy import NumPy
    from relayout.bench.peers.onednn import OneDNN
    from relayout.bench.peers.pytorch import PyTorch

    return OneDNN(), PyTorch(), NumPy()
