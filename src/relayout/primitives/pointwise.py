"""Expressions element by element, on truth values, integers and real numbers, in any formats.

What is computed is an :class:`~relayout.ops.expressions.Expression`; what this file adds is the tensors
around. Operands broadcast as those of :class:`~.binary.Binary` do. A mask of attention that comes as 0 and 1
in 64-bit integers becomes what is added to scores in one pass:

>>> import numpy as np
>>> import relayout as rl
>>> from relayout.ops.expressions import Expression
>>> terms = ("constant", "s64", (), 0), ("ne", "bool", (0, 1)), ("constant", "f32", (), 0.0)
>>> masked = Expression.of(("s64",), [*terms, ("constant", "f32", (), -1e4), ("select", "f32", (2, 3, 4))])
>>> mask = rl.tensor(np.array([[1, 1, 0]]), "ab")
>>> Pointwise(masked, [mask.desc], rl.MemoryDesc((2, 3), "f32", "ab"))(mask).numpy()
array([[     0.,      0., -10000.],
       [     0.,      0., -10000.]], dtype=float32)

Truth values are bytes in memory, not 0 where they are true.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops import pointwise as ops
from relayout.ops.checks import check_descs, check_written
from relayout.ops.expressions import Expression, kind_of
from relayout.ops.formats import following
from relayout.primitives.elementwise import Elementwise
from relayout.primitives.meaning import check_alike
from relayout.primitives.native import Native

__all__ = ["Pointwise"]


class Pointwise(Elementwise, Native):
    """An expression of some operands, made once for their descriptors.

    The destination may be the same memory as an operand that has its descriptor.

    Parameters
    ----------
    expression : Expression
        What is computed.
    operands : sequence of MemoryDesc
        Of the kinds of the expression's operands, and of the rank of the destination; on each axis of its
        size, or of 1.
    dst : MemoryDesc
        Of the kind of the expression. With ``any`` it follows the first operand that has its dims.

    Raises
    ------
    LayoutError
        The descriptors don't fit together, or are of other kinds than those of the expression.
    """

    kind = "pointwise"
    operation: ops.Pointwise

    def __init__(self, expression: Expression, operands: Sequence[MemoryDesc], dst: MemoryDesc) -> None:
        if not isinstance(expression, Expression) or not isinstance(operands, (list, tuple)):
            raise LayoutError("pointwise: an Expression and a list of descriptors are wanted")
        if len(operands) != len(expression.operands) or not operands:
            many = len(expression.operands)
            raise LayoutError(f"pointwise: {many} operands are wanted, got {len(operands)}")
        named = {f"src{k}": desc for k, desc in enumerate(operands)}
        check_descs(self.kind, {**named, "dst": dst}, {})
        like = next((desc for desc in operands if desc.dims == dst.dims), operands[0])
        dst = following(like, dst)
        kinds = (*expression.operands, expression.kind)
        descs = {**named, "dst": dst}
        for (name, desc), kind in zip(descs.items(), kinds, strict=True):
            _check(name, desc, kind, dst)
        check_written(self.kind, dst)
        truth = tuple(name for name, kind in zip(descs, kinds, strict=True) if kind == "bool")
        self._settle(ops.Pointwise, named, {"dst": dst}, booleans=truth, expression=expression)
        check_alike(self.kind, self.descs)

    def __repr__(self) -> str:
        sides = ", ".join(f"{name} {desc}" for name, desc in self.descs.items())
        return f"Pointwise({self.expression}: {sides})"


def _check(name: str, desc: MemoryDesc, kind: str, dst: MemoryDesc) -> None:
    """Refuse an argument of another kind, without a format, or that does not broadcast."""
    held = kind_of(desc.dtype, kind == "bool")
    real = kind == "f64" and held == "f32"
    if (held != kind and not real) or (kind == "bool" and desc.dtype.name != "u8"):
        wanted = "u8, truth values," if kind == "bool" else kind
        raise LayoutError(f"pointwise: {name} {desc} must be {wanted} for the expression")
    if desc.layout is None:
        raise LayoutError(f"pointwise: {name} {desc} needs a format: it is taken as it was written")
    fits = all(n in (1, m) for n, m in zip(desc.dims, dst.dims, strict=False))
    if len(desc.dims) != len(dst.dims) or not fits:
        raise LayoutError(f"pointwise: {name} {desc} does not broadcast to {spell_dims(dst.dims)}")
