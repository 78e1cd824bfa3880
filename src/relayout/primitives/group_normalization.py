"""Group normalisation, in any format: the channels of an image, in groups.

::

    dst[n, c, ...] = (src[n, c, ...] - mean[n, g]) / sqrt(variance[n, g] + epsilon) scale[c] + shift[c]

where g is the group of channel c, and statistics are those of all channels and pixels of the group in one
image; the variance is biased. As many groups as channels are instance normalisation; one group is layer
normalisation over channels and pixels, with a scale for each channel.

>>> import relayout as rl
>>> x = rl.tensor([[[[1.0, 3.0]], [[5.0, 7.0]]]], "nchw", "f32")
>>> GroupNormalization(x.desc, groups=2, epsilon=0)(x).numpy().ravel()
array([-1.,  1., -1.,  1.], dtype=float32)
>>> GroupNormalization(x.desc, groups=1, epsilon=0)(x).numpy().ravel().round(2)
array([-1.34, -0.45,  0.45,  1.34], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.dense import row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout, whole_number
from relayout.ops import normalization as ops
from relayout.ops.expressions import Expression
from relayout.ops.formats import check_source
from relayout.primitives.meaning import check_data
from relayout.primitives.normalizing import Normalization, Vectors

__all__ = ["GroupNormalization"]


class GroupNormalization(Normalization):
    """A group normalisation, made once for its descriptors.

    Its inputs are ``src``, then ``scale`` and ``shift`` if they are used. Source and destination may be the
    same memory, if their descriptors are the same.

    Parameters
    ----------
    src : MemoryDesc
        Batch and channels first, then any number of axes.
    scale, shift : MemoryDesc or True, optional
        A value for each channel, in f32, bf16 or f16; True stands for a dense vector of f32.
    dst : MemoryDesc, optional
        Without it the format of the source, and its data type; f32 where the source holds integers.
    groups : int
        How many; they must divide the channels.
    epsilon : float
        What is added to the variance; not negative.
    statistics : bool
        Whether mean and variance are results, too: f32, for each image and group.
    use_global_stats : bool
        Whether these are inputs instead, behind ``src``: nothing is computed of the source's own.
    post_ops : sequence, optional
        See :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        Groups don't divide the channels, descriptors don't fit together, or statistics are given and wanted.
    Unsupported
        A data type that is not computed with.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((8, 64, 56, 56), "f32", "nChw16c")
    >>> made = GroupNormalization(x, True, True, groups=32, statistics=True)
    >>> made.scale, made.mean
    (MemoryDesc('f32:a:64'), MemoryDesc('f32:ab:8x32'))
    """

    kind = "group_normalization"
    operation: ops.GroupNormalization

    def __init__(
        self,
        src: MemoryDesc,
        scale: MemoryDesc | bool | None = None,
        shift: MemoryDesc | bool | None = None,
        dst: MemoryDesc | None = None,
        *,
        groups: int,
        epsilon: float = 1e-5,
        statistics: bool = False,
        use_global_stats: bool = False,
        post_ops: Any = (),
    ) -> None:
        check_source(self.kind, "src", src)
        if len(src.dims) < 2:
            raise LayoutError(f"{self.kind}: src {src} needs at least 2 axes, batch and channels first")
        check_data(self.kind, "src", src)
        images, channels = src.dims[:2]
        count = whole_number(groups, f"{self.kind}: groups")
        if count < 1 or channels % count:
            raise LayoutError(
                f"{self.kind}: {groups} groups do not divide the {channels} channels of src {src}"
            )
        self._decide(
            ops.GroupNormalization,
            src,
            {"scale": scale, "shift": shift},
            (channels,),
            dst,
            (images, count),
            statistics,
            use_global_stats,
            epsilon,
            post_ops,
            groups=count,
        )

    def _seen(self, layout: Layout) -> Layout:
        """Images, groups, channels of a group, pixels."""
        return views.split_axis(layout.with_roles(None), 1, self._sizes)

    def _seen_table(self, layout: Layout) -> Layout:
        layout = views.split_axis(views.unsqueeze(layout.with_roles(None), 0), 1, self._sizes)
        while layout.rank < len(self.src.dims) + 1:
            layout = views.unsqueeze(layout, layout.rank)
        return layout

    @locked
    def _vectors(self, names: Sequence[str]) -> Vectors:
        """Written out for each channel of each image, as formats may cut groups; factors have the scale."""
        from relayout.primitives.lowering import elementwise

        images, (groups, each), pixels = self.src.dims[0], self._sizes, len(self.src.dims) - 2
        dense, group = (MemoryDesc((images, groups, n), "f32", "abc") for n in (each, 1))

        def table(name: str) -> Layout:
            return views.unsqueeze(self.descs[name].layout.with_roles(None), 0)

        given = {"variance": group}
        if "scale" in names:
            given["scale"] = self.scale.with_layout(views.split_axis(table("scale"), 1, self._sizes))
        expression = ops.factor(self.operation.epsilon, "scale" in names)
        programs = [elementwise(dense, given, expression, target="factors")]
        spread = (images, self.src.dims[1], *(1 for _ in range(pixels)))
        over = MemoryDesc(spread, "f32", row_major(spread))
        found, scratch = {"factor": ("factors", over)}, {"factors": dense.nbytes}
        if "mean" in names:
            buffer = "mean of channels"
            programs.append(elementwise(dense, {"mean": group}, Expression(("f32",)), target=buffer))
            found, scratch = {"mean": (buffer, over), **found}, {**scratch, buffer: dense.nbytes}
        if "shift" in names:
            layout = table("shift")
            for axis in range(2, 2 + pixels):
                layout = views.unsqueeze(layout, axis)
            found["shift"] = "shift", self.shift.with_layout(layout)
        return Vectors(tuple(programs), found, scratch)

    @property
    def _sizes(self) -> tuple[int, int]:
        groups = self.operation.groups
        return groups, self.src.dims[1] // groups
