"""One way to do a node, and the table of the rules that find them.

A rule is a function of a :class:`~.case.Case` that returns ways, or nothing where no kernel does it::

    @rule("Softmax")
    def softmax(case): ...

A way knows formats only; its :attr:`Way.make` is called with what really comes, once formats are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from relayout.graph.lowering.case import Case
from relayout.layout.descriptor import MemoryDesc
from relayout.records import dataclass
from relayout.reorder.predict import seconds_to_move

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__ = ["RULES", "Make", "Rule", "Way", "moving", "rule"]

Make: TypeAlias = "Callable[[Site], Value | tuple[Value, ...]]"


@dataclass(frozen=True)
class Way:
    """One way to do a node.

    Attributes
    ----------
    inputs : mapping of str to MemoryDesc
        The format in which each value that moves is read, by name.
    outputs : tuple of MemoryDesc
        The formats of the results.
    cost : float
        Seconds.
    make : callable
        Appends it to a sequence, and returns the results.
    name : str
        What it is called in plans.
    view : bool
        Whether the results are the memory of what is read.
    """

    inputs: Mapping[str, MemoryDesc]
    outputs: tuple[MemoryDesc, ...]
    cost: float
    make: Make
    name: str = ""
    view: bool = False


Rule: TypeAlias = Callable[[Case], "Iterable[Way] | None"]

RULES: Final[dict[str, Rule]] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Enter a rule for some operators."""

    def enter(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, made))
        return made

    return enter


def moving(*descs: MemoryDesc) -> float:
    """Seconds to read and write some tensors at the speed of memory."""
    return seconds_to_move(max(1, sum(desc.nbytes for desc in descs)))


def numbers(given: Any) -> tuple[int, ...]:
    """Whole numbers of an attribute or a constant, as a tuple; a number without axes is one."""
    return tuple(int(n) for n in (given.reshape(-1) if isinstance(given, np.ndarray) else given))
