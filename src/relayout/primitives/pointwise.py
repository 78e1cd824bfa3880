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

An expression of several results is one pass, too: a momentum and what it changes:

>>> moved = Expression.of(("f32",) * 3, [("add", "f32", (1, 2)), ("sub", "f32", (0, 3))], (4, 3))
>>> one = rl.tensor([1.0, 2.0], "a", "f32")
>>> step = Pointwise(moved, [one.desc] * 3, [one.desc] * 2)
>>> step.outputs, step(one, one, one).dst1.numpy()
(('dst', 'dst1'), array([2., 4.], dtype=float32))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops import pointwise as ops
from relayout.ops.checks import check_descs, check_written
from relayout.ops.expressions import Expression, kind_of
from relayout.ops.formats import following, overwritable
from relayout.primitives.elementwise import Elementwise
from relayout.primitives.meaning import check_alike
from relayout.primitives.native import Native

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["Pointwise"]


class Pointwise(Elementwise, Native):
    """An expression of some operands, made once for their descriptors.

    A destination may be the same memory as an operand that has its descriptor.

    Parameters
    ----------
    expression : Expression
        What is computed.
    operands : sequence of MemoryDesc
        Of the kinds of the expression's operands, and of the rank of the destination; on each axis of its
        size, or of 1.
    dst : MemoryDesc, or sequence of them
        Of the kind of the expression; one for each of its results. With ``any`` the first follows the first
        operand that has its dims, and others have the layout of the first, which they must have.
    numbers : sequence of float
        The last operands of the expression, of f32, which are the same for all elements: scales, for
        instance. They are data of the primitive, and one kernel does for all.

    Raises
    ------
    LayoutError
        The descriptors don't fit together, or are of other kinds than those of the expression.
    """

    kind = "pointwise"
    operation: ops.Pointwise

    def __init__(
        self,
        expression: Expression,
        operands: Sequence[MemoryDesc],
        dst: MemoryDesc | Sequence[MemoryDesc],
        numbers: Sequence[float] = (),
    ) -> None:
        if not isinstance(expression, Expression) or not isinstance(operands, (list, tuple)):
            raise LayoutError("pointwise: an Expression and a list of descriptors are wanted")
        numbers = tuple(float(np.float32(x)) for x in numbers)
        many = len(expression.operands) - len(numbers)
        if len(operands) != many or not operands:
            raise LayoutError(f"pointwise: {many} operands are wanted, got {len(operands)}")
        if any(kind != "f32" for kind in expression.operands[many:]):
            raise LayoutError("pointwise: numbers are f32 operands of the expression, its last ones")
        named = {f"src{k}": desc for k, desc in enumerate(operands)}
        several = tuple(dst) if isinstance(dst, (list, tuple)) else (dst,)
        if len(several) != len(expression.kinds):
            raise LayoutError(f"pointwise: {len(expression.kinds)} results are wanted, got {len(several)}")
        targets = {f"dst{k or ''}": desc for k, desc in enumerate(several)}
        check_descs(self.kind, {**named, **targets}, {})
        first = targets["dst"]
        like = next((desc for desc in operands if desc.dims == first.dims), operands[0])
        first = following(like, first)
        targets = {name: _beside(name, desc, first) for name, desc in targets.items()}
        kinds = (*expression.operands[:many], *expression.kinds)
        descs = {**named, **targets}
        for (name, desc), kind in zip(descs.items(), kinds, strict=True):
            _check(name, desc, kind, first)
            if name in targets:
                check_written(self.kind, desc, name)
        truth = tuple(name for name, kind in zip(descs, kinds, strict=True) if kind == "bool")
        self._settle(ops.Pointwise, named, targets, booleans=truth, expression=expression, numbers=numbers)
        for name in targets:
            self.in_place = {**self.in_place, **overwritable({**named, name: targets[name]}, name)}
        check_alike(self.kind, self.descs)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.lowering import elementwise

        made, first, *others = self.operation.expression, *self.outputs
        operands = {name: self.descs[name] for name in self.inputs}
        further = {name: self.descs[name] for name in others}
        note = ", ".join(dict.fromkeys(map(str, made.steps))) or "cast"
        numbers = self.operation.numbers
        return elementwise(self.descs[first], operands, made, numbers, further=further, note=note)


def _beside(name: str, desc: MemoryDesc, first: MemoryDesc) -> MemoryDesc:
    """A destination, in the layout of the first one."""
    if desc.layout is None and desc.dims == first.dims:
        desc = desc.with_layout(first.layout)
    if desc.layout is None or desc.dims != first.dims or not desc.layout.same_bytes(first.layout):
        raise LayoutError(f"pointwise: {name} {desc} must have the layout of dst {first}")
    return desc


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
