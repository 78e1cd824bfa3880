"""An operation that a Python function computes: its own definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relayout.ops.native import Native
from relayout.records import dataclass

__all__ = ["Custom"]


@dataclass(frozen=True, kw_only=True)
class Custom(Native):
    """``function(*arrays)``: an array, or a tuple of as many as there are outputs, in their data types."""

    kind = "custom"
    name: str
    """What it is called, in errors."""
    function: Callable[..., Any]

    @property
    def called(self) -> str:
        """The name."""
        return self.name

    def natively(self, *arrays: Any) -> Any:
        """What the function returns."""
        return self.function(*arrays)
