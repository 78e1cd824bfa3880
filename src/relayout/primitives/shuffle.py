"""Shuffle, in any format: the elements along an axis in another order.

The axis is taken as a matrix with rows of ``group_size`` elements, and transposed. What ShuffleNet calls a
shuffle of g groups of channels is one with rows of ``channels / g``:

>>> import numpy as np
>>> import relayout as rl
>>> x = rl.tensor(np.arange(6).reshape(1, 6, 1, 1), "nhwc", "f32")
>>> Shuffle(x.desc, 1, 3)(x).numpy().ravel()
array([0., 3., 1., 4., 2., 5.], dtype=float32)

Nothing is computed, so it is a reorder between two views: source and destination with the axis cut into two,
which are exchanged on one side. Its backward pass is the shuffle that exchanges them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

from relayout.errors import LayoutError, counted
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.dense import row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import whole_number
from relayout.ops import shuffle as ops
from relayout.ops.formats import check_source, target_of
from relayout.primitives.drafting import Draft, Impossible
from relayout.primitives.meaning import check_alike
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["Shuffle", "shuffled"]


class Shuffle(Primitive):
    """A shuffle, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Any dims.
    axis : int
        Along which elements are shuffled; negative numbers count from the last axis.
    group_size : int
        How many neighbours there are in a row; it divides the size of the axis.
    dst : MemoryDesc, optional
        Without it the format and the data type of the source.

    Raises
    ------
    LayoutError
        There is no such axis, the size of the groups does not divide it, or descriptors don't fit together.
    """

    kind = "shuffle"
    operation: ops.Shuffle

    def __init__(
        self, src: MemoryDesc, axis: SupportsIndex, group_size: SupportsIndex, dst: MemoryDesc | None = None
    ) -> None:
        check_source(self.kind, "src", src)
        along = whole_number(axis, f"{self.kind}: axis")
        if not -src.rank <= along < src.rank:
            raise LayoutError(
                f"{self.kind}: src {src} has {counted(src.rank, 'axis')}, so there is no axis {along}"
            )
        along %= src.rank
        size = whole_number(group_size, f"{self.kind}: group_size")
        if size < 1 or src.dims[along] % size:
            raise LayoutError(
                f"{self.kind}: groups of {size} don't divide axis {along} of src {src}, which has "
                f"{counted(src.dims[along], 'element')}"
            )
        dst = target_of(self.kind, src, dst, src.dims)
        self._settle(ops.Shuffle, {"src": src}, {"dst": dst}, axis=along, group_size=size)
        check_alike(self.kind, self.descs)

    def _lower(self) -> Program | None:
        return shuffled(self.src, self.dst, self.axis, self.group_size)


@locked
def shuffled(
    src: MemoryDesc, dst: MemoryDesc, axis: int, size: int, names: tuple[str, str] = ("src", "dst")
) -> Program | None:
    """The program of a shuffle: a reorder of views; by way of plain tensors where blocks forbid these."""

    def apart(desc: MemoryDesc, rows: int, columns: int, turned: bool) -> MemoryDesc:
        layout = views.split_axis(desc.layout.with_roles(None), axis, (rows, columns))
        if turned:
            layout = views.transpose(layout, axis, axis + 1)
        return desc.with_layout(layout)

    source, target = names
    rows = src.dims[axis] // size
    plainly = row_major(src.dims)
    between = src.with_layout(plainly), dst.with_layout(plainly)
    ways = [(src, dst), (between[0], dst), (src, between[1]), between]
    for start, end in ways:
        try:
            views_of_both = apart(start, rows, size, True), apart(end, size, rows, False)
            draft = Draft()
            read = draft.read(src, start, source, "unshuffled")
            draft.reorder(*views_of_both, read, draft.write(dst, end, target, "shuffled"))
        except (LayoutError, Impossible):
            continue
        note = "a reorder of views" + "".join(f", {name} in row-major order" for name in draft.scratch)
        return draft.program(note)
    return None
