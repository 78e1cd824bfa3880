"""Pooling: the largest or the average element of every window, in any format.

::

    max                        dst[n, c, y, x] = max over r, s of
                                                    src[n, c, y * stride + r * dilation - padding, x ...]
    average_include_padding    the sum of the same, divided by the elements of a window
    average_exclude_padding    the sum of the same, divided by those that are no padding

with one, two or three spatial axes, as oneDNN's pooling of version 2. Sizes round down; a window that begins
in the padding behind an axis does not exist.

What formulas leave open:

* A NaN in a window is its maximum. So it is in PyTorch; oneDNN passes over NaN (and gives the lowest finite
  number where there is nothing else, or nothing but -inf).
* Padding must be less than a window reaches, ``(kernel - 1) * dilation + 1``, in front of an axis and behind
  it: a window further out would hold nothing else. That is oneDNN's rule for averages without padding; ONNX
  Runtime has it for all kinds (of the kernel, whatever the dilation), and PyTorch allows half as much.
* A window with gaps may still lie astride an axis and hold padding only. It has no largest element, and no
  average without padding: it is an error. With padding counted it is 0.
* Maxima of integers are exact where source and destination have the same data type and there are no post-ops;
  everything else is computed in f32, and rounded once.

The backward pass needs the place of each maximum. With ``workspace=True`` that is a second result:
for each window the number of the tap, counted in row-major order of the kernel, padding included; that of
the first of several, and of the first NaN if there are NaN. As in oneDNN it is u8, or s32 for windows of more
than 255 taps, in the format of the destination.

>>> import relayout as rl
>>> x = rl.tensor([[[3, 1, 4, 1, 5, 9, 2, 6]]], "ncw", "f32")
>>> Pooling(x.desc, "max", 4, workspace=True)(x).workspace.numpy()
array([[[2, 1]]], dtype=uint8)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError, Unsupported, counted
from relayout.forking import locked
from relayout.kernels.reduce.axis import Axis
from relayout.layout.dense import resized_like
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops import pooling as ops
from relayout.ops.formats import check_source, check_target, following
from relayout.ops.functions import Function
from relayout.ops.post_ops import PostOp, Sum, post_ops_for
from relayout.primitives.meaning import check_data
from relayout.primitives.primitive import Primitive
from relayout.primitives.sizes import for_each_axis, in_front_and_behind

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["ALGORITHMS", "Pooling"]

MOST_OF_U8 = 255  # taps whose numbers a workspace of u8 holds, as oneDNN has it
ALGORITHMS = tuple(ops.REDUCED_BY)


class Pooling(Primitive):
    """A pooling, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Batch, channels, then one to three spatial axes.
    algorithm : str
        ``max``, ``average_include_padding`` or ``average_exclude_padding``.
    kernel : int or sequence of int
        The size of a window along all spatial axes, or along each.
    strides : int or sequence of int, optional
        From one window to the next; without it that of the kernel.
    padding : int or sequence
        In front of and behind each spatial axis; for each axis a number or a pair (in front, behind).
    dilation : int or sequence of int
        From one element of a window to the next: 1 leaves no gaps (oneDNN writes 0 there).
    dst : MemoryDesc, optional
        Without it the format is that of the source, and so is the data type.
    workspace : bool
        Whether the place of each maximum is a further output, ``workspace``.
    post_ops : sequence
        Functions and binary operations; see :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        Sizes don't fit together, or a window has no elements.
    Unsupported
        A data type that is not computed with, or a sum among the post-ops.

    Examples
    --------
    >>> import relayout as rl
    >>> src = rl.MemoryDesc((1, 64, 112, 112), "f32", "nChw16c")
    >>> pool = Pooling(src, "max", 3, strides=2, padding=1)
    >>> pool.dst
    MemoryDesc('f32:nChw16c:1x64x56x56')
    >>> x = rl.tensor([[[[1, 2, 3, 4], [5, 6, 7, 8]]]], "nhwc", "f32")
    >>> Pooling(x.desc, "average_exclude_padding", 2)(x).numpy()
    array([[[[3.5, 5.5]]]], dtype=float32)
    """

    kind = "pooling"
    operation: ops.Pooling

    def __init__(
        self,
        src: MemoryDesc,
        algorithm: str,
        kernel: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int | tuple[int, int]] = 0,
        dilation: int | Sequence[int] = 1,
        dst: MemoryDesc | None = None,
        *,
        workspace: bool = False,
        post_ops: Any = (),
    ) -> None:
        check_source("pooling", "src", src)
        spatial = len(src.dims) - 2
        if not 1 <= spatial <= 3:
            raise LayoutError(f"pooling: src {src} must have 3 to 5 axes, batch and channels first")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise LayoutError(f"pooling: {algorithm!r} is no algorithm; there are {', '.join(ALGORITHMS)}")
        taps = for_each_axis(self.kind, kernel, spatial, "kernel", 1)
        steps = taps if strides is None else for_each_axis(self.kind, strides, spatial, "strides", 1)
        gaps = for_each_axis(self.kind, dilation, spatial, "dilation", 1)
        pads = in_front_and_behind(self.kind, padding, spatial)
        windows = {"kernel": taps, "strides": steps, "padding": pads, "dilation": gaps}
        each = zip(taps, steps, gaps, pads, strict=True)
        self.axes = tuple(_axis(src, k, algorithm, *numbers) for k, numbers in enumerate(each))
        dims = (*src.dims[:2], *(axis.out for axis in self.axes))
        check_data("pooling", "src", src)
        if dst is None:
            dst = MemoryDesc(dims, src.dtype, any_format)
        check_target(self.kind, dst, dims)
        if dst.layout is None and src.format is None:
            dst = dst.with_layout(resized_like(src.layout, dims))
        dst = following(src, dst)
        check_data("pooling", "dst", dst)
        outputs = {"dst": dst}
        if workspace:
            if algorithm != "max":
                raise LayoutError(f"pooling: {algorithm} has no workspace; only max needs one")
            numbers = "u8" if prod(taps) <= MOST_OF_U8 else "s32"
            outputs["workspace"] = following(dst, MemoryDesc(dims, numbers, any_format))
        post_ops = _without_sum(post_ops_for(self.kind, post_ops, dst))
        self._settle(ops.Pooling, {"src": src}, outputs, post_ops, algorithm=algorithm, **windows)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.combining import pooling, with_post_ops

        return with_post_ops(self, _with_places) if "workspace" in self.outputs else pooling(self)


@locked
def _with_places(made: Pooling, dst: MemoryDesc, functions: tuple[Function, ...]) -> Program | None:
    """A pooling of maxima that writes a workspace, with functions behind it."""
    from relayout.primitives.banded import banded, rows_of_pooling

    kept = made.descs["workspace"]
    return banded(made.src, dst, rows_of_pooling(made), functions, kept, largest=True)


def _axis(
    src: MemoryDesc, k: int, algorithm: str, kernel: int, step: int, gap: int, padding: tuple[int, int]
) -> Axis:
    """One spatial axis, checked."""
    size, (front, behind) = src.dims[2 + k], padding
    reach = (kernel - 1) * gap + 1
    room = size + front + behind - reach
    if room < 0 and 0 not in src.dims:
        raise LayoutError(
            f"pooling: spatial axis {k} of src {src} has {counted(size, 'element')} and {front + behind} of "
            f"padding, the window reaches over {reach}"
        )
    if max(front, behind) >= reach:
        raise LayoutError(
            f"pooling: spatial axis {k} of src {src} has padding ({front}, {behind}), but must have "
            f"less than the window reaches over, {reach}: a window further out holds padding only"
        )
    axis = Axis(size, max(0, room // step + 1), kernel, step, gap, front)
    if algorithm != "average_include_padding" and gap > size:  # windows may lie astride the axis
        for output in axis.border:
            if not axis.taps(output):
                start = axis.place(output)
                raise LayoutError(
                    f"pooling: window {output} along spatial axis {k} of src {src} holds padding only, "
                    f"positions {start}..{start + reach - 1}; {algorithm} is not defined there"
                )
    return axis


def _without_sum(post_ops: tuple[PostOp, ...]) -> tuple[PostOp, ...]:
    """Post-ops that are functions and binary operations."""
    for op in post_ops:
        if isinstance(op, Sum):
            raise Unsupported(f"pooling takes functions and binary operations as post-ops, not {op}")
    return post_ops
