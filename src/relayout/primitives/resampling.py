"""Resampling, in any format: spatial axes of another size.

What is read for an element of the result, :mod:`relayout.ops.resampling` says: the nearest element, or the
two nearest of each axis, with weights (``linear``; bilinear and trilinear for two and three axes).

>>> import relayout as rl
>>> x = rl.tensor([[[1.0, 3.0]]], "ncw", dtype="f32")
>>> Resampling(x.desc, "linear", factors=2)(x).numpy()
array([[[1. , 1.5, 2.5, 3. ]]], dtype=float32)
>>> Resampling(x.desc, "nearest", rl.MemoryDesc((1, 1, 3), "f32", rl.any))(x).numpy()
array([[[1., 3., 3.]]], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError, Unsupported, counted
from relayout.forking import locked
from relayout.layout.dense import resized_like
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import spell_dims
from relayout.ops import resampling as ops
from relayout.ops.checks import check_descs
from relayout.ops.formats import check_source, check_target, finite, following
from relayout.ops.functions import Function
from relayout.ops.post_ops import Sum, post_ops_for
from relayout.ops.resampling import ALGORITHMS
from relayout.primitives.meaning import check_data
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["ALGORITHMS", "Resampling"]


class Resampling(Primitive):
    """A resampling, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Batch, channels, then one to three spatial axes.
    algorithm : str or Matrices
        ``nearest`` or ``linear``; or, for any other rule, the rows of all spatial axes
        (:class:`relayout.ops.resampling.Matrices`).
    dst : MemoryDesc, optional
        Its spatial sizes are what is made. Its format may be ``any``: that of the source.
    factors : float or sequence of float, optional
        In place of the sizes of ``dst``: by how much each spatial axis grows or shrinks. Sizes are rounded
        down; where an element lies is a matter of the sizes alone.
    post_ops : sequence
        Functions and binary operations; see :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        Neither ``dst`` nor ``factors`` are given, or both say different sizes, or sizes don't fit together.
    Unsupported
        A data type that is not computed with, or a sum among the post-ops.
    """

    kind = "resampling"
    operation: ops.Resampling

    def __init__(
        self,
        src: MemoryDesc,
        algorithm: str | ops.Matrices,
        dst: MemoryDesc | None = None,
        *,
        factors: float | Sequence[float] | None = None,
        post_ops: Any = (),
    ) -> None:
        check_source(self.kind, "src", src)
        check_data(self.kind, "src", src)
        spatial = len(src.dims) - 2
        if not 1 <= spatial <= 3:
            raise LayoutError(f"{self.kind}: src {src} must have 3 to 5 axes, batch and channels first")
        given = isinstance(algorithm, ops.Matrices)
        if not given and not (isinstance(algorithm, str) and algorithm in ALGORITHMS):
            raise LayoutError(
                f"{self.kind}: {algorithm!r} is no algorithm; there are {', '.join(ALGORITHMS)}"
            )
        if isinstance(algorithm, ops.Matrices):
            self._check_rows(src, algorithm)
            dst = dst or MemoryDesc((*src.dims[:2], *algorithm.sizes), src.dtype, any_format)
        if dst is None and factors is None:
            raise LayoutError(f"{self.kind}: either dst says the sizes, or factors; one of them is wanted")
        if factors is not None:
            made = (*src.dims[:2], *self._sizes(src, factors, spatial))
            dst = MemoryDesc(made, src.dtype, any_format) if dst is None else dst
            if getattr(dst, "dims", made) != made:
                raise LayoutError(f"{self.kind}: factors {factors} make {spell_dims(made)}, dst is {dst}")
        check_descs(self.kind, {"dst": dst}, {})
        assert dst is not None
        dims = (*src.dims[:2], *dst.dims[2:])
        if 0 in src.dims[2:] and 0 not in dims:
            raise LayoutError(f"{self.kind}: src {src} has no elements to make dst {dst} of")
        if isinstance(algorithm, ops.Matrices) and dims[2:] != algorithm.sizes:
            raise LayoutError(f"{self.kind}: matrices of {spell_dims(algorithm.sizes)} rows, dst is {dst}")
        check_target(self.kind, dst, dims if len(dst.dims) == len(src.dims) else src.dims)
        if dst.layout is None and src.format is None:
            dst = dst.with_layout(resized_like(src.layout, dims))
        dst = following(src, dst)
        check_data(self.kind, "dst", dst)
        post_ops = post_ops_for(self.kind, post_ops, dst)
        if any(isinstance(op, Sum) for op in post_ops):
            raise Unsupported(f"{self.kind} takes functions and binary operations as post-ops, not a sum")
        self._settle(ops.Resampling, {"src": src}, {"dst": dst}, post_ops, algorithm=algorithm)

    def _check_rows(self, src: MemoryDesc, given: ops.Matrices) -> None:
        """Each axis has a matrix, and all places are elements of the source."""
        sizes = src.dims[2:]
        if len(given.axes) != len(sizes):
            axes = counted(len(sizes), "spatial axis")
            raise LayoutError(f"{self.kind}: {len(given.axes)} matrices for {axes} of src {src}")
        for size, rows in zip(sizes, given.axes, strict=True):
            wrong = [place for row in rows for place, _ in row if not 0 <= place < size]
            if wrong:
                raise LayoutError(
                    f"{self.kind}: a row names element {wrong[0]} of an axis of {size}, src {src}"
                )

    def _sizes(self, src: MemoryDesc, given: Any, spatial: int) -> list[int]:
        """The spatial sizes that factors make."""
        several = list(given) if isinstance(given, (list, tuple)) else [given] * spatial
        if len(several) != spatial:
            raise LayoutError(f"{self.kind}: factors {given} must be a number, or {spatial} of them")
        numbers = [finite(f"{self.kind}: factor", one) for one in several]
        if min(numbers) <= 0:
            raise LayoutError(f"{self.kind}: factors {given} must be more than 0")
        return [int(size * by) for size, by in zip(src.dims[2:], numbers, strict=True)]

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.combining import with_post_ops

        return with_post_ops(self, _resampled)


@locked
def _resampled(made: Resampling, dst: MemoryDesc, functions: tuple[Function, ...]) -> Program | None:
    """A resampling to a destination, with functions behind it."""
    from relayout.kernels.reduce import nearest
    from relayout.primitives.banded import banded, in_two_steps, picked, rows_of_resampling
    from relayout.targets.machine import host

    rows = rows_of_resampling(made.algorithm, made.src.dims[2:], dst.dims[2:])
    if not functions and nearest.moves(made.src, dst, rows):  # bands do, too: products would quieten NaN
        return picked(made.src, dst, rows) or banded(made.src, dst, rows)
    matrices = made.src.dtype.is_float or host().is_avx2  # of bytes, bands are used elsewhere
    between = made.algorithm == "linear" or (matrices and _are_between(made.algorithm))
    program = in_two_steps(made.src, dst, rows, functions) if between else None
    return program or banded(made.src, dst, rows, functions)


def _are_between(algorithm: str | ops.Matrices) -> bool:
    """Whether each element lies between two others, or is one of them times a number."""
    several = algorithm.axes if isinstance(algorithm, ops.Matrices) else ()
    return bool(several) and all(0 < len(row) <= 2 for rows in several for row in rows)
