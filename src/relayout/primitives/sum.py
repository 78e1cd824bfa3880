"""The sum of several tensors, in any formats: ``dst[i] = scales[0] src0[i] + scales[1] src1[i] + ...``

>>> import relayout as rl
>>> x = rl.tensor([[1.0, 2.0]], "ab", dtype="f32")
>>> y = rl.tensor([[30.0, 40.0]], "ba", dtype="f32")
>>> Sum([x.desc, y.desc], scales=(1, 0.1))(x, y).numpy()
array([[4., 6.]], dtype=float32)

Two things are called sum in oneDNN, and here: this primitive, and the post-op that adds what the destination
held, :class:`relayout.ops.post_ops.Sum`. Where both occur, write the latter as ``post_ops.Sum``. A sum
that follows a convolution costs nothing as a post-op, and a pass over memory as a primitive.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops import elementwise as ops
from relayout.ops.formats import check_source, finite, target_of
from relayout.primitives.elementwise import Elementwise
from relayout.primitives.meaning import check_alike

__all__ = ["Sum"]


class Sum(Elementwise):
    """A weighted sum, made once for its descriptors; it adds up in f32, in the order of the sources.

    The destination may be the same memory as a source that has its descriptor.

    Parameters
    ----------
    srcs : sequence of MemoryDesc
        At least one, all of the same dims. The arguments are called ``src0``, ``src1``, ...
    scales : sequence of float, optional
        One for each source; without them all are 1.
    dst : MemoryDesc, optional
        Without it the format and the data type of the first source.

    Raises
    ------
    LayoutError
        There are no sources, or the descriptors or scales don't fit together.

    Examples
    --------
    >>> import relayout as rl
    >>> dims = (8, 64, 56, 56)
    >>> made = Sum([rl.MemoryDesc(dims, "f32", "nChw16c"), rl.MemoryDesc(dims, "bf16", "nChw16c")])
    >>> made.dst, made.flops == 8 * 64 * 56 * 56
    (MemoryDesc('f32:nChw16c:8x64x56x56'), True)
    """

    kind = "sum"
    operation: ops.Sum

    def __init__(
        self,
        srcs: Sequence[MemoryDesc],
        scales: Sequence[float] | None = None,
        dst: MemoryDesc | None = None,
    ) -> None:
        if not isinstance(srcs, (list, tuple)) or not srcs:
            raise LayoutError(
                f"sum: srcs is a list of descriptors, not {srcs!r}; the post-op that adds is "
                "relayout.ops.post_ops.Sum"
            )
        inputs = {f"src{k}": src for k, src in enumerate(srcs)}
        for name, src in inputs.items():
            check_source(self.kind, name, src)
            if src.dims != srcs[0].dims:
                raise LayoutError(
                    f"sum: {name} has the dims {spell_dims(src.dims)}, src0 {spell_dims(srcs[0].dims)}; "
                    "they must be the same"
                )
        dst = target_of(self.kind, srcs[0], dst, srcs[0].dims)
        self._settle(ops.Sum, inputs, {"dst": dst}, scales=_scales(scales, len(srcs)))
        check_alike(self.kind, self.descs)


def _scales(given: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """One finite f32 for each source; none at all where they are 1."""
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)) or len(given) != count:
        raise LayoutError(f"sum: scales must be {count} numbers, one for each source, not {given!r}")
    scales = tuple(finite("sum: a scale", scale) for scale in given)
    return () if set(scales) == {1.0} else scales
