"""What a choice of formats costs: the question that a planner asks each primitive.

A :class:`Candidate` is one way to do an operation: a format for each input and output, how it is done in
them, and how long that takes. Costs are estimates from facts of the machine, cycles and bytes in a second,
which are measured once in a process; so those of different operations can be added up:

* a sum of products takes the cycles that its kernels' model says (:mod:`relayout.kernels.conv.cost`);
* everything else takes as long as ``memcpy`` of the bytes that it reads and writes, on the way too;
* a definition in NumPy does :data:`DEFINED` operations in a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from relayout.layout.descriptor import MemoryDesc
from relayout.records import dataclass, field

if TYPE_CHECKING:
    from relayout.primitives.primitive import Primitive

__all__ = ["DEFINED", "Candidate", "ranked"]

DEFINED = 1e8  # operations of a definition in a second
TIE = 1.03  # costs within this factor of the lowest are not told apart


@dataclass(frozen=True)
class Candidate:
    """One way to do an operation.

    Attributes
    ----------
    formats : mapping of str to MemoryDesc
        The descriptors of all inputs and outputs, by name, every format decided.
    cost : float
        About how many seconds a call takes, with as many threads as the process uses.
    schedule : str
        How it is done, as far as that is known without compiling; empty: in one pass.
    primitive : Primitive
        The primitive in these formats, to be called or added to a sequence.
    """

    formats: Mapping[str, MemoryDesc]
    cost: float
    schedule: str = ""
    primitive: Primitive = field(kw_only=True, repr=False, compare=False)

    @property
    def scratch(self) -> int:
        """Bytes that a call needs besides its arguments; kernels are compiled to know it.

        >>> import relayout as rl
        >>> src, weights = (rl.MemoryDesc((64, 64), "f32", name) for name in ("ab", "ba"))
        >>> rl.primitives.Matmul(src, weights).candidates()[0].scratch >= 0
        True
        """
        program = self.primitive._compiled()
        return 0 if program is None else sum(program.scratch.values())


def ranked(given: Sequence[Candidate]) -> list[Candidate]:
    """The cheapest first; those that cost as little, to within the models' precision, as they were given."""
    least = min((one.cost for one in given), default=0.0)
    return sorted(given, key=lambda one: 0.0 if one.cost <= TIE * least else one.cost)
