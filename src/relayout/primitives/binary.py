"""Binary operations with broadcasting, in any formats: ``dst[i] = op(src0[i], src1[i])``.

The operations are those of :mod:`relayout.ops.binary`. An axis on which one source has one element
is broadcast: that element meets all of the other source's. As in oneDNN both sources have the same number of
axes, and either may broadcast. Where the one is what another primitive has computed, a post-op does the same
without a pass of its own: :class:`relayout.ops.post_ops.BinaryOp`.

>>> import relayout as rl
>>> x = rl.tensor([[1.0, 2.0], [3.0, 4.0]], "ab", dtype="f32")
>>> row = rl.tensor([[10.0, 20.0]], "ab", dtype="f32")
>>> Binary("add", x.desc, row.desc)(x, row).numpy()
array([[11., 22.],
       [13., 24.]], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from relayout.errors import LayoutError, counted
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import spell_dims
from relayout.ops import elementwise as ops
from relayout.ops.binary import ALGORITHMS, check_algorithm
from relayout.ops.formats import check_source, finite, target_of
from relayout.ops.post_ops import post_ops_for
from relayout.primitives.elementwise import Elementwise
from relayout.primitives.meaning import check_alike

__all__ = ["ALGORITHMS", "Binary"]


class Binary(Elementwise):
    """A binary operation, made once for its descriptors.

    The destination may be the same memory as a source that has its descriptor.

    Parameters
    ----------
    algorithm : str
        One of :data:`ALGORITHMS`.
    src0, src1 : MemoryDesc
        Of the same rank; on each axis of the same size, or one of them of size 1.
    dst : MemoryDesc, optional
        Without it the data type of ``src0``, in the format of ``src0``, or that of ``src1`` if only this has
        the destination's dims.
    scales : pair of float
        What the sources are multiplied by before, as in oneDNN; each is rounded to f32. If one of them is not
        1, products and operation are evaluated in double precision, where a product of two f32 is exact and
        far from the ends of the range, and only the result is rounded to f32. So ``div`` of 1e38 by 1e38
        with scales (1, 4) is 0.25, though 4e38 is beyond f32.
    post_ops : sequence, optional
        See :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        There is no such operation, the descriptors don't fit together, or a scale becomes 0 or infinity when
        it is rounded to f32.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((8, 64, 56, 56), "f32", "nhwc")
    >>> each_channel = rl.MemoryDesc((1, 64, 1, 1), "f32", "nchw")
    >>> Binary("mul", x, each_channel).dst
    MemoryDesc('f32:nhwc:8x64x56x56')
    >>> one, two = rl.tensor([1e38, 6.0], dtype="f32"), rl.tensor([1e38, 4.0], dtype="f32")
    >>> Binary("div", one.desc, two.desc, scales=(1, 4))(one, two).numpy()
    array([0.25 , 0.375], dtype=float32)
    """

    kind = "binary"
    operation: ops.Binary

    def __init__(
        self,
        algorithm: str,
        src0: MemoryDesc,
        src1: MemoryDesc,
        dst: MemoryDesc | None = None,
        *,
        scales: tuple[float, float] = (1.0, 1.0),
        post_ops: Any = (),
    ) -> None:
        check_algorithm(algorithm)
        check_source(self.kind, "src0", src0)
        check_source(self.kind, "src1", src1)
        dims = _broadcast(src0, src1)
        if dst is None:
            dst = MemoryDesc(dims, src0.dtype, any_format)
        dst = target_of(self.kind, src1 if src0.dims != dims and src1.dims == dims else src0, dst, dims)
        attributes = {"algorithm": algorithm, "scales": _pair(scales)}
        post_ops = post_ops_for(self.kind, post_ops, dst)
        self._settle(ops.Binary, {"src0": src0, "src1": src1}, {"dst": dst}, post_ops, **attributes)
        check_alike(self.kind, self.descs)


def _broadcast(src0: MemoryDesc, src1: MemoryDesc) -> tuple[int, ...]:
    """The dims of the result."""
    if len(src0.dims) != len(src1.dims):
        raise LayoutError(
            f"binary: src0 {src0} has {counted(len(src0.dims), 'axis')} and src1 {src1} {len(src1.dims)}; "
            "give both as many, of size 1 where they broadcast"
        )
    for axis, (a, b) in enumerate(zip(src0.dims, src1.dims, strict=True)):
        if a != b and 1 not in (a, b):
            raise LayoutError(
                f"binary: axis {axis} has {counted(a, 'element')} in src0 {spell_dims(src0.dims)} and {b} in "
                f"src1 {spell_dims(src1.dims)}; they must be equal, or one of them 1"
            )
    return tuple(b if a == 1 else a for a, b in zip(src0.dims, src1.dims, strict=True))


def _pair(scales: Any) -> tuple[float, float]:
    """Two finite numbers, as f32."""
    if not isinstance(scales, (list, tuple)) or len(scales) != 2:
        raise LayoutError(f"binary: scales must be two numbers, one for each source, not {scales!r}")
    one, two = (finite("binary: a scale", scale) for scale in scales)
    return one, two
