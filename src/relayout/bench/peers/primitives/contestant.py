"""What a contestant in the bench of primitives is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from relayout.bench.operands import Floats, Operands, Work

__all__ = ["Computation", "Contestant"]


class Computation(NamedTuple):
    """Work that is ready to be done, again and again."""

    run: Callable[[], object]
    """Does it."""
    result: Callable[[], Floats]
    """The logical array that came out of it; may do it once more."""
    implementation: str
    """How it is done."""


class Contestant(Protocol):
    """Somebody who does primitives."""

    name: str

    def available(self) -> str | None:
        """Its version, or None where it can't be used here."""

    def prepare(self, work: Work, operands: Operands, threads: int) -> Computation | None:
        """Get ready; None where it is not meant to do such work."""
