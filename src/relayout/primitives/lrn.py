"""Local response normalisation, in any format: windows of channels, or of pixels.

::

    dst = src / (k + alpha mean of src^2)^beta        over the window around each element

A window has ``size`` channels, or ``size`` pixels along each spatial axis; what lies outside of the tensor
counts as zero, and the mean is always that of all places of a window. This is oneDNN's formula, and ONNX's
and PyTorch's for channels.

The mean of squares is the kernel of pooling, what becomes of it one pass element by element.

>>> import relayout as rl
>>> x = rl.tensor([[[[1.0]], [[2.0]], [[3.0]]]], "nchw", "f32")
>>> LRN(x.desc, size=3, alpha=3.0, beta=1.0, k=0.0)(x).numpy().ravel().round(3)
array([0.2  , 0.143, 0.231], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.dense import dense_like, row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import whole_number
from relayout.ops import lrn as ops
from relayout.ops.expressions import Expression
from relayout.ops.formats import check_source, finite, target_of
from relayout.ops.functions import Function
from relayout.primitives.drafting import Draft, Impossible, if_possible
from relayout.primitives.lowering import elementwise
from relayout.primitives.meaning import check_alike, check_data
from relayout.primitives.primitive import Primitive
from relayout.primitives.program import Program

__all__ = ["LRN", "add_mean", "in_f32"]

MOST_AXES = 3  # of a window


class LRN(Primitive):
    """A local response normalisation, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Batch and channels first, then any number of axes, but for ``within_channel`` at least one.
    dst : MemoryDesc, optional
        Without it the format of the source, and its data type; f32 where the source holds integers.
    algorithm : str
        ``across_channels`` or ``within_channel``.
    size : int
        Channels of a window, or pixels along each axis; 1 or more. (size - 1) // 2 of them are in front of
        the element.
    alpha, beta, k : float
        See above; k is ``bias`` in ONNX.

    Raises
    ------
    LayoutError
        There is no such algorithm, a size below 1, or descriptors don't fit together.
    Unsupported
        A data type that is not computed with.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((8, 64, 55, 55), "f32", "nChw16c")
    >>> LRN(x, size=5, alpha=1e-4, beta=0.75, k=2.0).dst
    MemoryDesc('f32:nChw16c:8x64x55x55')
    """

    kind = "lrn"
    operation: ops.LRN

    def __init__(
        self,
        src: MemoryDesc,
        dst: MemoryDesc | None = None,
        *,
        algorithm: str = "across_channels",
        size: int = 5,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 1.0,
    ) -> None:
        check_source(self.kind, "src", src)
        check_data(self.kind, "src", src)
        if algorithm not in ops.ALGORITHMS:
            raise LayoutError(f"lrn: {algorithm!r} is no algorithm; there are {', '.join(ops.ALGORITHMS)}")
        least = 2 + (algorithm == "within_channel")
        if len(src.dims) < least:
            raise LayoutError(f"lrn: src {src} needs at least {least} axes, batch and channels first")
        if (window := whole_number(size, "lrn: size")) < 1:
            raise LayoutError(f"lrn: size must be 1 or more, got {size}")
        numbers = {"alpha": alpha, "beta": beta, "k": k}
        what: dict[str, Any] = {"algorithm": algorithm, "size": window}
        what |= {name: finite(f"lrn: {name}", number) for name, number in numbers.items()}
        dst = target_of(self.kind, src, dst, src.dims, real=True)
        self._settle(ops.LRN, {"src": src}, {"dst": dst}, **what)
        check_alike(self.kind, self.descs)

    @if_possible
    def _lower(self) -> Program:
        what, draft = self.operation, Draft()
        square = Expression.of(("f32",), [(Function("square"), "f32", (0,))])
        add_mean(draft, self.src, {"src": self.src}, square, what, "mean square")
        operands = {"src": self.src, "mean square": in_f32(self.src)}
        draft.append(elementwise(self.dst, operands, ops.normalised(what.alpha, what.beta, what.k)))
        return draft.program("the mean of squares of windows, then one pass")


def in_f32(desc: MemoryDesc) -> MemoryDesc:
    """A dense tensor of f32 in the order of another one."""
    return MemoryDesc(desc.dims, "f32", dense_like(desc.layout))


@locked
def add_mean(
    draft: Draft,
    like: MemoryDesc,
    operands: Mapping[str, MemoryDesc],
    expression: Expression,
    what: ops.LRN,
    result: str,
    turned: bool = False,
) -> None:
    """Write the mean of an expression over windows to scratch, like :func:`in_f32`.

    Parameters
    ----------
    draft : Draft
    like : MemoryDesc
        In whose order everything is.
    operands, expression
        What is computed element by element first.
    what : LRN
        The size and the axes of windows.
    result : str
        The buffer.
    turned : bool
        Whether the larger half of a window is in front.
    """
    from relayout.kernels.reduce.axis import Axis
    from relayout.kernels.reduce.window import Window, planned
    from relayout.primitives.combining import by_way_of, window_step

    near, rank, size = in_f32(like), len(like.dims), what.size
    front = size // 2 if turned else (size - 1) // 2
    term = f"terms of {result}"
    draft.append(elementwise(near, operands, expression, target=draft.room_for(term, near)))
    if len(what.axes) > MOST_AXES:
        raise Impossible
    order = (*(axis for axis in range(rank) if axis not in what.axes), *what.axes)
    seen = views.permute(near.layout.with_roles(None), order)
    axes = [Axis(n, n, size, front=front) for n in seen.dims[rank - len(what.axes) :]]

    def plan(src: MemoryDesc, dst: MemoryDesc) -> Window | None:
        return planned("sum", "window", src, dst, axes)

    whole, plainly = (MemoryDesc(seen.dims, "f32", layout) for layout in (seen, row_major(seen.dims)))
    names = {"src": term, "dst": result, "source": f"source of {result}", "target": f"target of {result}"}
    draft.append(by_way_of([(whole, whole), (plainly, plainly)], plan, window_step), names)
    draft.room_for(result, near)
