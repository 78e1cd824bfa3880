"""Split along an axis, in any formats: the inverse of :class:`relayout.primitives.concat.Concat`.

>>> import relayout as rl
>>> x = rl.tensor([[1, 2, 3, 4, 5]], "ab", "f32")
>>> made = Split(x.desc, 1, (2, 3))
>>> made.outputs
('dst0', 'dst1')
>>> made(x).dst1.numpy()
array([[3., 4., 5.]], dtype=float32)

A part of a tensor is a tensor: where all parts may keep the source's memory, :meth:`relayout.Tensor.parts`
costs nothing. An output that is given and already is its part of the source is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.errors import LayoutError, counted
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import spell_dims, whole_number
from relayout.ops import pieces as ops
from relayout.ops.checks import check_descs, check_written
from relayout.ops.formats import following
from relayout.primitives.meaning import check_alike
from relayout.primitives.pieces import Pieces, axis_of

__all__ = ["Split"]


class Split(Pieces):
    """A split, made once for its descriptors; its outputs are ``dst0``, ``dst1``, ...

    Parameters
    ----------
    src : MemoryDesc
        What is split; of any data type.
    axis : int
        Along which axis; negative ones count from the end.
    sizes : sequence of int
        How many elements of the axis each output gets, in order; they add up to all.
    dsts : sequence of MemoryDesc, optional
        One for each output; without them the format and the data type of the source.

    Raises
    ------
    LayoutError
        The sizes or descriptors don't fit together.

    Examples
    --------
    >>> import relayout as rl
    >>> made = Split(rl.MemoryDesc((1, 48, 2, 2), "f32", "nChw16c"), 1, (16, 32))
    >>> made.dst0, made.dst1
    (MemoryDesc('f32:nChw16c:1x16x2x2'), MemoryDesc('f32:nChw16c:1x32x2x2'))
    """

    kind = "split"
    whole = "src"

    def __init__(
        self,
        src: MemoryDesc,
        axis: int,
        sizes: Sequence[int],
        dsts: Sequence[MemoryDesc] | None = None,
    ) -> None:
        check_descs(self.kind, {"src": src}, {})
        if src.layout is None:
            raise LayoutError(f"split: src {src} needs a format: it is taken as it was written")
        along = axis_of(self.kind, axis, "src", src)
        self.sizes = _sizes(sizes, src, along)
        names = [f"dst{k}" for k in range(len(self.sizes))]
        dims = [(*src.dims[:along], size, *src.dims[along + 1 :]) for size in self.sizes]
        if dsts is None:
            dsts = [MemoryDesc(each, src.dtype, any_format) for each in dims]
        if not isinstance(dsts, (list, tuple)) or len(dsts) != len(dims):
            raise LayoutError(f"split: dsts must be {len(dims)} descriptors, one for each size, not {dsts!r}")
        outputs = dict(zip(names, dsts, strict=True))
        check_descs(self.kind, outputs, {})
        for each, (name, dst) in zip(dims, list(outputs.items()), strict=True):
            if dst.dims != each:
                raise LayoutError(f"split: {name} {dst} must be {spell_dims(each)}")
            outputs[name] = following(src, dst)
            check_written(self.kind, outputs[name], name)
        self._settle(ops.Split, {"src": src}, outputs, axis=along)
        check_alike(self.kind, self.descs)
        self._cut()


def _sizes(given: Sequence[int], src: MemoryDesc, axis: int) -> tuple[int, ...]:
    """Sizes that are whole numbers and add up to an axis."""
    if not isinstance(given, (list, tuple)) or not given:
        raise LayoutError(f"split: sizes is a list of numbers, not {given!r}")
    sizes = tuple(whole_number(size, "split: a size") for size in given)
    if min(sizes) < 0 or sum(sizes) != src.dims[axis]:
        raise LayoutError(
            f"split: sizes {' + '.join(map(str, sizes))} must add up to axis {axis} of src {src}, "
            f"{counted(src.dims[axis], 'element')}, none of them negative"
        )
    return sizes
