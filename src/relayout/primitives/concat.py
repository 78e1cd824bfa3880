"""Concatenation along an axis, in any formats; in place where sources already lie where they belong.

A part of a tensor is a tensor: oneDNN calls it a sub-memory. To concatenate is to reorder each source into
its part of the destination, and no more is needed for any pair of formats::

    dst    nChw16c, 48 channels     [ 0 ... 15 | 16 ... 31 | 32 ... 47 ]
    parts  16 and 32 channels       [ src0     ] [ src1                ]

Better still is to have the producers write into the parts at once. :attr:`Concat.parts` are the descriptors
for that; a source that is its part of the destination, in the same memory, is left where it is:

>>> import numpy as np
>>> import relayout as rl
>>> dst = rl.MemoryDesc((1, 48, 2, 2), "f32", "nChw16c")
>>> dims = (1, 16, 2, 2), (1, 32, 2, 2)
>>> both = Concat([rl.MemoryDesc(d, "f32", "nChw16c") for d in dims], 1, dst)
>>> result = rl.tensor(np.zeros(dst.dims, np.float32), dst)
>>> x, y = result.parts(1, (16, 32))
>>> in_place = Concat(both.parts, 1, dst)
>>> in_place(x, y, out=result) is result  # nothing was moved
True

Where blocks don't come out even (17 channels in blocks of 16, and then more) a part is no tensor of its own:
its elements have no strides. The sources are put together in a format without those blocks then, and that is
reordered as a whole, which takes twice as long. There are no parts to write into either.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import spell_dims
from relayout.ops import pieces as ops
from relayout.ops.checks import check_descs, check_written
from relayout.ops.formats import following
from relayout.primitives.meaning import check_alike
from relayout.primitives.pieces import Pieces, axis_of

__all__ = ["Concat"]


class Concat(Pieces):
    """A concatenation, made once for its descriptors.

    Parameters
    ----------
    srcs : sequence of MemoryDesc
        At least one, all of the same dims but for ``axis``, of any data types. The arguments are called
        ``src0``, ``src1``, ...
    axis : int
        Along which axis; negative ones count from the end.
    dst : MemoryDesc, optional
        Without it the format and the data type of the first source.

    Raises
    ------
    LayoutError
        There are no sources, or the descriptors don't fit together.

    Examples
    --------
    >>> import relayout as rl
    >>> srcs = [rl.MemoryDesc((1, channels, 8, 8), "f32", "nChw8c") for channels in (32, 24)]
    >>> made = Concat(srcs, 1)
    >>> made.dst, [part.offset0 for part in made.parts]
    (MemoryDesc('f32:nChw8c:1x56x8x8'), [0, 2048])
    """

    kind = "concat"

    def __init__(self, srcs: Sequence[MemoryDesc], axis: int, dst: MemoryDesc | None = None) -> None:
        if not isinstance(srcs, (list, tuple)) or not srcs:
            raise LayoutError(f"concat: srcs is a list of descriptors, not {srcs!r}")
        inputs = {f"src{k}": src for k, src in enumerate(srcs)}
        check_descs(self.kind, inputs, {"dst": dst})
        along = axis_of(self.kind, axis, "src0", srcs[0])
        for name, src in inputs.items():
            _check_source(name, src, srcs[0], along)
        sizes = [src.dims[along] for src in srcs]
        dims = (*srcs[0].dims[:along], sum(sizes), *srcs[0].dims[along + 1 :])
        if dst is None:
            dst = MemoryDesc(dims, srcs[0].dtype, any_format)
        dst = following(srcs[0], dst)
        if dst.dims != dims:
            raise LayoutError(f"concat: dst {dst} must be {spell_dims(dims)}")
        check_written(self.kind, dst)
        self._settle(ops.Concat, inputs, {"dst": dst}, axis=along)
        check_alike(self.kind, self.descs)
        self._cut()


def _check_source(name: str, src: MemoryDesc, first: MemoryDesc, axis: int) -> None:
    if src.layout is None:
        raise LayoutError(f"concat: {name} {src} needs a format: it is taken as it was written")
    rest, others = (d.dims[:axis] + d.dims[axis + 1 :] for d in (src, first))
    if len(src.dims) != len(first.dims) or rest != others:
        raise LayoutError(
            f"concat: {name} is {spell_dims(src.dims)} and src0 {spell_dims(first.dims)}; they may differ on "
            f"axis {axis} only"
        )
