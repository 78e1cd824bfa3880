"""What primitives that work element by element share: an operation that is an expression of its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.forking import locked
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["Elementwise"]


class Elementwise(Primitive):
    """A primitive whose operation has an :class:`~relayout.ops.expressions.Expression`."""

    operation: Any

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.lowering import elementwise

        made = self.operation.expression
        numbers = self.operation.numbers
        operands = {name: self.descs[name] for name in self.inputs[: len(made.operands) - len(numbers)]}
        note = ", ".join(dict.fromkeys(map(str, made.steps))) or "cast"
        return elementwise(self.dst, operands, made, numbers, post_ops=self.post_ops, note=note)
