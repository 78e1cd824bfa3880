"""How kernels are called: one signature for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    from relayout.jit.engines import Engine
else:
    Protocol = object  # for type checkers alone; to make one takes as long as to load a kernel

__all__ = ["Kernel"]


class Kernel(Protocol):
    """A compiled function ``void kernel(ptr source, ptr destination, ptr operands, i64 part, i64 parts)``.

    It does share number ``part`` of ``parts`` equal shares of its work: (0, 1) is everything. A call releases
    the interpreter's lock.

    Attributes
    ----------
    address : int
        Where the code is; what :func:`relayout.runtime.threads.run` takes.
    engine : Engine
        What owns the code.
    name : str
        Of the function in it.
    """

    address: int
    engine: Engine
    name: str

    def __call__(self, source: int, target: int, operands: int, part: int, parts: int, /) -> None:
        """Do one share; the first three are addresses."""
