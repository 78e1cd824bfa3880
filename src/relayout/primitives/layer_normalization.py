"""Layer normalisation over the last axes, in any format, and RMS normalisation.

::

    dst = (src - mean) / sqrt(variance + epsilon) scale + shift        over the elements of a row
    rms   dst = src / sqrt(mean of src^2 + epsilon) scale + shift

A row is the elements along the last axes, of one token for instance; scale and shift have a value for each of
its elements. The variance is the mean of squared differences from the mean (biased), as in oneDNN, ONNX and
PyTorch. Statistics are taken in f32, and without losing digits where the mean is large (see
:mod:`relayout.kernels.reduce.normalization`).

>>> import relayout as rl
>>> x = rl.tensor([[1.0, 3.0], [4.0, 4.0]], "ab", "f32")
>>> made = LayerNormalization(x.desc, epsilon=0.5, statistics=True)
>>> found = made(x)
>>> found.mean.numpy(), found.variance.numpy()
(array([2., 4.], dtype=float32), array([1., 0.], dtype=float32))
>>> found.dst.numpy().round(3)
array([[-0.816,  0.816],
       [ 0.   ,  0.   ]], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from relayout.errors import LayoutError, counted
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.dense import row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout, whole_number
from relayout.ops import normalization as ops
from relayout.ops.formats import check_source
from relayout.primitives.normalizing import Normalization, Vectors

__all__ = ["LayerNormalization"]


class LayerNormalization(Normalization):
    """A layer normalisation, made once for its descriptors.

    Its inputs are ``src``, then ``scale`` and ``shift`` if they are used. Source and destination may be the
    same memory, if their descriptors are the same.

    Parameters
    ----------
    src : MemoryDesc
        Of at least one axis.
    scale, shift : MemoryDesc or True, optional
        With the dims of a row, in f32, bf16 or f16; True stands for f32, row-major.
    dst : MemoryDesc, optional
        Without it the format of the source, and its data type; f32 where the source holds integers.
    axes : int or sequence of int
        How many of the last axes are normalised over: -1 or 1, the last one; -2 or 2, the last two. Or these
        axes themselves.
    epsilon : float
        What is added to the variance; not negative.
    rms : bool
        Divide by the root of the mean square, and subtract nothing.
    statistics : bool
        Whether mean and variance are results, too: f32, row-major, with the axes that are left (if none is,
        with one element). With ``rms`` there is only the mean square, as ``variance``.
    use_global_stats : bool
        Whether these are inputs instead, behind ``src``: nothing is computed of the source's own.
    post_ops : sequence, optional
        See :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        There are no such axes, descriptors don't fit together, or statistics are given and wanted.
    Unsupported
        A data type that is not computed with.

    Notes
    -----
    Differences from the mean of more than 1e19 overflow when they are squared in f32.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((8, 197, 768), "f32", "abc")
    >>> made = LayerNormalization(x, scale=True, shift=True, statistics=True)
    >>> made.inputs, made.outputs
    (('src', 'scale', 'shift'), ('dst', 'mean', 'variance'))
    >>> made.scale, made.mean
    (MemoryDesc('f32:a:768'), MemoryDesc('f32:ab:8x197'))
    """

    kind = "layer_normalization"

    def __init__(
        self,
        src: MemoryDesc,
        scale: MemoryDesc | bool | None = None,
        shift: MemoryDesc | bool | None = None,
        dst: MemoryDesc | None = None,
        *,
        axes: int | Sequence[int] = -1,
        epsilon: float = 1e-5,
        rms: bool = False,
        statistics: bool = False,
        use_global_stats: bool = False,
        post_ops: Any = (),
    ) -> None:
        check_source(self.kind, "src", src)
        rank = len(src.dims)
        count = _count(axes, src)
        over = tuple(range(rank - count, rank))
        self._decide(
            ops.LayerNormalization,
            src,
            {"scale": scale, "shift": shift},
            src.dims[rank - count :],
            dst,
            src.dims[: rank - count] or (1,),
            statistics,
            use_global_stats,
            epsilon,
            post_ops,
            axes=over,
            rms=bool(rms),
        )

    def _seen(self, layout: Layout) -> Layout:
        return layout

    @locked
    def _vectors(self, names: Sequence[str]) -> Vectors:
        from relayout.primitives.lowering import elementwise

        dense = MemoryDesc((prod(self.variance.dims),), "f32", "a")
        first = elementwise(
            dense, {"variance": dense}, ops.factor(self.operation.epsilon, False), target="factors"
        )
        left = self.src.dims[: len(self.src.dims) - len(self.axes)]
        dims = (*left, *(1 for _ in self.axes))
        each = MemoryDesc(dims, "f32", row_major(dims))
        found = {"mean": ("mean", each)} if "mean" in names else {}
        found["factor"] = "factors", each
        for name in ("scale", "shift"):
            if name in names:
                found[name] = name, self.descs[name].with_layout(self._seen_table(self.descs[name].layout))
        return Vectors((first,), found, {"factors": dense.nbytes})

    def _seen_table(self, layout: Layout) -> Layout:
        for _ in range(len(self.src.dims) - len(self.axes)):
            layout = views.unsqueeze(layout, 0)
        return layout


def _count(given: Any, src: MemoryDesc) -> int:
    """How many of the last axes."""
    rank = len(src.dims)
    if isinstance(given, (tuple, list)):
        numbers = [whole_number(one, "layer_normalization: axis") for one in given]
        found = sorted(one + rank if one < 0 else one for one in numbers)
        if not found or found != list(range(rank - len(found), rank)):
            raise LayoutError(
                f"layer_normalization: axes {tuple(numbers)} are not the last ones of src {src}, which has "
                f"{counted(rank, 'axis')}"
            )
        return len(found)
    count = abs(whole_number(given, "layer_normalization: axes"))
    if not 1 <= count <= rank:
        raise LayoutError(
            f"layer_normalization: src {src} has {counted(rank, 'axis')}; {given} of them can't be the last"
        )
    return count
