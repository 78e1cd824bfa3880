"""PReLU, in any format: a ReLU whose slope below 0 is learned.

``dst[i] = src[i]`` where that is more than 0, else ``src[i] weights[i]``. The weights broadcast: one for all,
one for each channel, or one for each element.

>>> import relayout as rl
>>> x = rl.tensor([[-4.0, 2.0], [-1.0, 3.0]], "ab", dtype="f32")
>>> slopes = rl.tensor([[0.5, 0.25]], "ab", dtype="f32")
>>> PReLU(x.desc, slopes.desc)(x, slopes).numpy()
array([[-2. ,  2. ],
       [-0.5,  3. ]], dtype=float32)
"""

from __future__ import annotations

from relayout.errors import LayoutError
from relayout.layout.dense import row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops import prelu as ops
from relayout.ops.checks import check_descs
from relayout.ops.formats import check_source, following, target_of
from relayout.primitives.elementwise import Elementwise
from relayout.primitives.meaning import check_alike

__all__ = ["PReLU"]


class PReLU(Elementwise):
    """A PReLU, made once for its descriptors.

    Source and destination may be the same memory, if their descriptors are the same.

    Parameters
    ----------
    src : MemoryDesc
        Any dims.
    weights : MemoryDesc
        Of as many axes, along each of the same size or of size 1. ``any`` is the format of the source; for
        repeated weights row-major.
    dst : MemoryDesc, optional
        Without it the format and the data type of the source.

    Raises
    ------
    LayoutError
        The descriptors don't fit together.
    """

    kind = "prelu"
    operation: ops.PReLU

    def __init__(self, src: MemoryDesc, weights: MemoryDesc, dst: MemoryDesc | None = None) -> None:
        check_source(self.kind, "src", src)
        check_descs(self.kind, {"weights": weights}, {})
        fits = all(n in (1, m) for n, m in zip(weights.dims, src.dims, strict=False))
        if weights.rank != src.rank or not fits:
            raise LayoutError(
                f"{self.kind}: weights {weights} must have the axes of src, {spell_dims(src.dims)}, each of "
                "that size or of size 1"
            )
        if weights.layout is None:
            dims, kind = weights.dims, weights.dtype
            weights = MemoryDesc(dims, kind, row_major(dims)) if dims != src.dims else (
                following(src, weights)
            )  # fmt: skip
        check_source(self.kind, "weights", weights)
        dst = target_of(self.kind, src, dst, src.dims)
        self._settle(ops.PReLU, {"src": src, "weights": weights}, {"dst": dst})
        check_alike(self.kind, self.descs)
