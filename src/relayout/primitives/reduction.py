"""Reductions along whole axes, in any format: ``dst[i, 0] = src[i, 0] + src[i, 1] + ...``

What elements become together is one of :data:`relayout.ops.reductions.REDUCTIONS`, their mean, or a norm::

    norm_lp_max            max(sum of |x|^p, eps)^(1/p)       norm_lp_power_p_max    max(sum of |x|^p, eps)
    norm_lp_sum            (sum of |x|^p + eps)^(1/p)         norm_lp_power_p_sum    sum of |x|^p + eps

As in oneDNN the destination keeps all axes, and has one element along those that are reduced:

>>> import relayout as rl
>>> x = rl.tensor([[[[1, 2], [3, 6]]]], "nhwc", "f32")
>>> Reduction(x.desc, "mean", axes=(2, 3))(x).numpy()
array([[[[3.]]]], dtype=float32)

It is computed in f32, but for maxima and minima of integers, in which nothing is rounded. The kernel is that
of pooling: the axes are one window. Where they are cut into blocks, or lie apart in more than three pieces,
the source is reordered first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError, Unsupported, counted
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims, whole_number
from relayout.ops import pooling as ops
from relayout.ops.formats import check_source, finite, target_of
from relayout.ops.post_ops import Sum, post_ops_for
from relayout.ops.reductions import REDUCTIONS
from relayout.primitives.meaning import check_alike
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["ALGORITHMS", "Reduction"]

ALGORITHMS = (*REDUCTIONS, "mean", *ops.NORMS)


class Reduction(Primitive):
    """A reduction along some axes, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Any dims; the axes that are reduced must not be empty, but for ``sum`` and ``mul``.
    algorithm : str
        ``max``, ``min``, ``sum``, ``mul``, ``mean``, or one of the norms.
    axes : int or sequence of int, optional
        Which axes are reduced; negative numbers count from the last axis. Without them those along which
        ``dst`` has one element and ``src`` has several, or all if there is no ``dst`` either.
    dst : MemoryDesc, optional
        Without it the format and the data type of the source.
    p, eps : float
        Of norms: the power, at least 1, and what keeps them away from 0.
    post_ops : sequence
        Functions and binary operations; see :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        There is no such algorithm or axis, an axis has no elements to choose from, or dst has other sizes.
    Unsupported
        A data type that is not computed with, or a sum among the post-ops.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((8, 64, 56, 56), "f32", "nChw16c")
    >>> Reduction(x, "max", axes=(2, 3)).dst
    MemoryDesc('f32:nChw16c:8x64x1x1')
    """

    kind = "reduction"
    operation: ops.Reduction

    def __init__(
        self,
        src: MemoryDesc,
        algorithm: str,
        axes: int | Sequence[int] | None = None,
        dst: MemoryDesc | None = None,
        *,
        p: float = 0.0,
        eps: float = 0.0,
        post_ops: Any = (),
    ) -> None:
        check_source(self.kind, "src", src)
        known = (*REDUCTIONS, "mean", *ops.NORMS)  # what others have entered among them
        if not isinstance(algorithm, str) or algorithm not in known:
            raise LayoutError(f"reduction: {algorithm!r} is no algorithm; there are {', '.join(known)}")
        over = _axes(src, axes, dst)
        p, eps = _power(algorithm, p, eps)
        if algorithm not in ("sum", "mul", *ops.NORMS) and any(src.dims[axis] == 0 for axis in over):
            raise LayoutError(
                f"reduction: axes {over} of src {src} have no elements, of which there is no {algorithm}"
            )
        dims = tuple(1 if axis in over else size for axis, size in enumerate(src.dims))
        dst = target_of(self.kind, src, dst, dims)
        post_ops = post_ops_for(self.kind, post_ops, dst)
        if any(isinstance(op, Sum) for op in post_ops):
            raise Unsupported("reduction takes functions and binary operations as post-ops, not a sum")
        numbers = {"p": p, "eps": eps} if algorithm in ops.NORMS else {}
        self._settle(ops.Reduction, {"src": src}, {"dst": dst}, post_ops,
                     algorithm=algorithm, axes=over, **numbers)  # fmt: skip
        check_alike(self.kind, self.descs)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.combining import reduction

        return reduction(self)


def _power(algorithm: str, p: Any, eps: Any) -> tuple[float, float]:
    """The numbers of a norm, checked; others take none."""
    power, least = finite("reduction: p", p), finite("reduction: eps", eps)
    if algorithm not in ops.NORMS:
        if power or least:
            raise LayoutError(f"reduction: {algorithm} takes neither p nor eps; {', '.join(ops.NORMS)} do")
    elif power < 1:
        raise LayoutError(f"reduction: p of {algorithm} must be at least 1, not {p!r}")
    return power, least


def _axes(src: MemoryDesc, given: Any, dst: MemoryDesc | None) -> tuple[int, ...]:
    """The axes that are reduced, in rising order."""
    rank = len(src.dims)
    if given is None:
        if dst is None:
            return tuple(range(rank))
        if len(dst.dims) != rank:
            raise LayoutError(f"reduction: dst {dst} must have the {rank} axes of src {spell_dims(src.dims)}")
        return tuple(k for k, (a, b) in enumerate(zip(src.dims, dst.dims, strict=True)) if b == 1 != a)
    several = given if isinstance(given, (tuple, list)) else [given]
    found = set()
    for one in several:
        axis = whole_number(one, "reduction: axis")
        if not -rank <= axis < rank:
            raise LayoutError(f"reduction: src {src} has {counted(rank, 'axis')}, so there is no axis {axis}")
        if axis % rank in found:
            raise LayoutError(f"reduction: axis {axis % rank} is given twice in {tuple(several)}")
        found.add(axis % rank)
    return tuple(sorted(found))
