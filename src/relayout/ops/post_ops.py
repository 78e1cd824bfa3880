"""Post-ops: what follows a computation in the same pass, element by element, before the result is stored.

A list of them is applied in order to ``x``, the value that was computed, in f32 ::

    Sum(scale)                    x + scale * what dst held
    Function("relu")              f(x), see relayout.ops.functions
    BinaryOp("mul", desc)         op(x, y), see relayout.ops.binary

as oneDNN has it: a residual block ends with ``(Sum(), Function("relu"))``.

The ``y`` of a binary operation is a tensor that is given at each call, an input of the primitive like others.
On each axis it has the destination's size, or one element, which meets all of the destination's. What it is
used for is mostly one of these::

    1x1x1x1     a factor for everything
    1x64x1x1    a value for each channel: a folded normalisation, the slopes of a PReLU
    8x64x1x1    squeeze and excitation: a gate for each channel of each image
    8x64x56x56  another branch of a network, which shall not be written over

Such inputs are called ``operand0``, ``operand1`` and so on, in the order of the post-ops, and come after all
others:

>>> import relayout as rl
>>> from relayout.primitives import Eltwise
>>> x = rl.tensor([[1.0, -2.0], [3.0, 4.0]], "ab", dtype="f32")
>>> row = rl.tensor([[10.0, 20.0]], "ab", dtype="f32")
>>> made = Eltwise(x.desc, "relu", post_ops=[BinaryOp("add", row.desc)])
>>> made.inputs
('src', 'operand0')
>>> made(x, row).numpy()
array([[11., 20.],
       [13., 24.]], dtype=float32)

Two things differ from :class:`Sum`: the operand keeps what it holds, and it may have any format and any data
type. The padding of an operand must be zero, as that of all sources.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from relayout.dtypes import single
from relayout.errors import LayoutError, counted
from relayout.layout.dense import row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops.binary import check_algorithm, defined
from relayout.ops.formats import check_source, following
from relayout.ops.functions import Function
from relayout.records import dataclass, replace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "BinaryOp",
    "PostOp",
    "Sum",
    "adds",
    "applied",
    "operands_of",
    "post_ops_for",
    "post_ops_of",
]


@dataclass(frozen=True)
class Sum:
    """Add what the destination held.

    >>> print(Sum(0.5))
    sum(0.5)
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        try:
            finite = isfinite(single(self.scale))
        except (OverflowError, struct.error):
            finite = False
        if not finite:
            raise LayoutError(f"the scale of a sum is a finite number that f32 can hold, not {self.scale!r}")

    def __str__(self) -> str:
        return "sum" if self.scale == 1 else f"sum({self.scale:g})"


@dataclass(frozen=True)
class BinaryOp:
    """Combine with a further tensor: ``op(x, y)``.

    Parameters
    ----------
    algorithm : str
        One of :data:`relayout.ops.binary.ALGORITHMS`.
    desc : MemoryDesc
        What ``y`` is: as many axes as the destination, each of its size or of one element, in any format.
        With ``any`` it gets the destination's format if it has its sizes, and else is row-major.

    Raises
    ------
    LayoutError
        There is no such operation, or it is no descriptor.

    Examples
    --------
    >>> print(BinaryOp("mul", MemoryDesc((1, 64, 1, 1), "f32", "nchw")))
    mul(f32:nchw:1x64x1x1)
    """

    algorithm: str
    desc: MemoryDesc

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)
        if not isinstance(self.desc, MemoryDesc):
            raise LayoutError(
                f"the post-op {self.algorithm} needs the MemoryDesc of its operand, not {self.desc!r}"
            )

    def __str__(self) -> str:
        return f"{self.algorithm}({self.desc})"


PostOp = Sum | Function | BinaryOp


def post_ops_of(given: object) -> tuple[PostOp, ...]:
    """Post-ops as a tuple; a text is the name of a function.

    >>> post_ops_of(["relu"])
    (Function('relu'),)
    """
    if given is None:
        return ()
    several = given if isinstance(given, (tuple, list)) else (given,)
    made = tuple(Function(one) if isinstance(one, str) else one for one in several)
    for one in made:
        if not isinstance(one, (Sum, Function, BinaryOp)):
            raise LayoutError(f"{one!r} is no post-op; there are Sum, Function and BinaryOp")
    if sum(isinstance(one, Sum) for one in made) > 1:
        raise LayoutError("there may be one Sum among the post-ops")
    return made


def post_ops_for(kind: str, given: object, dst: MemoryDesc) -> tuple[PostOp, ...]:
    """The post-ops of a primitive, with the formats of all operands decided.

    Parameters
    ----------
    kind : str
        The primitive, for errors.
    given : object
        What :func:`post_ops_of` takes.
    dst : MemoryDesc
        The destination, its format decided.

    Raises
    ------
    LayoutError
        Something is no post-op, or an operand does not fit the destination.
    Unsupported
        An operand has a data type that is not computed with.

    Examples
    --------
    >>> import relayout as rl
    >>> dst = MemoryDesc((8, 64, 7, 7), "f32", "nhwc")
    >>> for dims in (dst.dims, (8, 64, 1, 1)):
    ...     print(*post_ops_for("pooling", BinaryOp("mul", MemoryDesc(dims, "f32", rl.any)), dst))
    mul(f32:nhwc:8x64x7x7)
    mul(f32:abcd:8x64x1x1)
    """
    made = list(post_ops_of(given))
    count = 0
    for k, op in enumerate(made):
        if isinstance(op, BinaryOp):
            made[k] = replace(op, desc=_decided(f"{kind}: operand{count}", op.desc, dst))
            check_source(kind, f"operand{count}", made[k].desc)  # type: ignore[union-attr]
            count += 1
    return tuple(made)


def _decided(what: str, desc: MemoryDesc, dst: MemoryDesc) -> MemoryDesc:
    """The descriptor of an operand, checked and with a format."""
    if len(desc.dims) != len(dst.dims):
        raise LayoutError(
            f"{what} {desc} has {counted(len(desc.dims), 'axis')} and dst {dst} {len(dst.dims)}; give it as "
            "many, of size 1 where it broadcasts"
        )
    for axis, (size, wanted) in enumerate(zip(desc.dims, dst.dims, strict=True)):
        if size not in (1, wanted):
            raise LayoutError(
                f"{what} {desc} has {counted(size, 'element')} on axis {axis} and dst {spell_dims(dst.dims)} "
                f"{wanted}; they must be equal, or the operand's 1"
            )
    if desc.layout is not None:
        return desc
    if desc.dims == dst.dims:
        return following(dst, desc)
    return desc.with_layout(row_major(desc.dims))


def operands_of(post_ops: Sequence[PostOp], first: int = 0) -> dict[str, MemoryDesc]:
    """The operands of binary operations, as inputs of a primitive; numbers begin with ``first``.

    >>> operands_of([Function("relu"), BinaryOp("add", MemoryDesc((1, 3), "s8", "ab"))])
    {'operand0': MemoryDesc('s8:ab:1x3')}
    """
    descs = [op.desc for op in post_ops if isinstance(op, BinaryOp)]
    return {f"operand{first + k}": desc for k, desc in enumerate(descs)}


def adds(post_ops: Sequence[PostOp]) -> bool:
    """Whether what the destination held takes part.

    >>> adds(post_ops_of("relu")), adds((Sum(),))
    (False, True)
    """
    return any(isinstance(op, Sum) for op in post_ops)


def applied(
    post_ops: Sequence[PostOp], x: NDArray[np.float64], arrays: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """The definition: post-ops on logical arrays in double precision.

    ``arrays`` are the arguments of the primitive by name: of these are used what
    the first output held, as ``dst``, and operands.
    """
    operands = iter(operands_of(post_ops))
    for op in post_ops:
        if isinstance(op, Function):
            x = op.definition(x)
        elif isinstance(op, BinaryOp):
            x = defined(op.algorithm, x, arrays[next(operands)])
        elif "dst" not in arrays:
            raise LayoutError("a sum adds to the old destination, but there is none")
        else:
            x = x + op.scale * arrays["dst"]
    return x
