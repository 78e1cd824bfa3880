"""The gradients of group and instance normalisation, in any format: of the source, the scale and the shift.

They are those of layer normalisation (:mod:`~.layer_normalization`), where a row is the channels of a group
with their pixels in one image; ``diff_scale`` and ``diff_shift`` are sums over all images and pixels.

>>> import relayout as rl
>>> from relayout.primitives import GroupNormalization
>>> x = rl.tensor([[[1.0, 3.0], [5.0, 8.0]]], "ncw", "f32")
>>> forward = GroupNormalization(x.desc, scale=True, shift=True, groups=2, statistics=True)
>>> two = rl.tensor([2.0, 2.0], "a", "f32")
>>> y, mean, variance = forward(x, two, two)
>>> found = GroupNormalizationBackward(forward)(x, y, mean, variance, two)
>>> found.diff_scale.numpy().round(3), found.diff_shift.numpy()
(array([4., 4.], dtype=float32), array([4., 4.], dtype=float32))
"""

from __future__ import annotations

from relayout.ops.backward import normalization as ops
from relayout.primitives.backward.normalizing import RowsBackward
from relayout.primitives.group_normalization import GroupNormalization

__all__ = ["GroupNormalizationBackward"]


class GroupNormalizationBackward(RowsBackward):
    """The gradients of a group normalisation, made once for its descriptors.

    Its inputs are ``src``, ``diff_dst``, ``mean`` and ``variance``, then ``scale`` if the forward pass has
    one; its outputs ``diff_src``, then ``diff_scale`` and ``diff_shift`` if the forward pass has a scale, a
    shift.

    Parameters
    ----------
    forward : GroupNormalization
        With ``statistics=True``: mean and variance are read.
    diff_dst, diff_src : MemoryDesc or rl.any, optional
        See :mod:`relayout.primitives.backward.base`.

    Raises
    ------
    LayoutError
        The forward pass does not write its statistics, or dims differ.
    Unsupported
        The forward pass has post-ops, or its source holds integers.

    Examples
    --------
    >>> import relayout as rl
    >>> from relayout.primitives import GroupNormalization
    >>> x = rl.MemoryDesc((8, 64, 56, 56), "f32", "nChw16c")
    >>> made = GroupNormalizationBackward(GroupNormalization(x, True, True, groups=32, statistics=True))
    >>> made.diff_src, made.diff_shift
    (MemoryDesc('f32:nChw16c:8x64x56x56'), MemoryDesc('f32:a:64'))
    """

    kind = "group_normalization_backward"
    hint = GroupNormalization
    means = ops.GroupNormalizationBackward
