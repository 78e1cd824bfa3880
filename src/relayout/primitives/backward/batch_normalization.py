"""The gradients of batch normalisation, in any format: of the source, the scale and the shift.

::

    y          = (src - mean) / sqrt(variance + epsilon)
    diff_shift = sum of diff_dst            over all axes but the channels
    diff_scale = sum of diff_dst y
    diff_src   = scale / sqrt(variance + epsilon) (diff_dst - diff_shift / count - y diff_scale / count)

and without the last two terms where statistics were given to the forward pass. Two sums for each channel are
one pass over ``src`` and ``diff_dst``, the result a second one.

Where the forward pass had a fused ReLU, its ``workspace`` says which gradients it let pass.

>>> import numpy as np
>>> import relayout as rl
>>> from relayout.primitives import BatchNormalization
>>> x = rl.tensor([[[[1.0, 5.0]]], [[[3.0, 8.0]]]], "nchw", dtype="f32")
>>> forward = BatchNormalization(x.desc, use_shift=True, use_global_stats=False)
>>> y, mean, variance = forward(x, np.float32([0.0]))
>>> made = BatchNormalizationBackward(forward)
>>> made.inputs, made.outputs
(('src', 'diff_dst', 'mean', 'variance'), ('diff_src', 'diff_shift'))
>>> made(x, y, mean, variance).diff_src.numpy().ravel().round(3) + 0.0
array([0., 0., 0., 0.], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import normalization as ops
from relayout.primitives.backward.normalizing import NormalizationBackward
from relayout.primitives.batch_normalization import BatchNormalization

__all__ = ["BatchNormalizationBackward"]


class BatchNormalizationBackward(NormalizationBackward):
    """The gradients of a batch normalisation, made once for its descriptors.

    Its inputs are ``src``, ``diff_dst``, ``mean`` and ``variance``, then ``scale`` and ``workspace`` if the
    forward pass has them; its outputs ``diff_src``, then ``diff_scale`` and ``diff_shift`` if the forward
    pass has a scale, a shift.

    Parameters
    ----------
    forward : BatchNormalization
        With or without given statistics.
    diff_dst, diff_src : MemoryDesc or rl.any, optional
        See :mod:`relayout.primitives.backward.base`.

    Raises
    ------
    LayoutError
        The forward pass has a fused ReLU and no workspace, or dims differ.
    Unsupported
        The forward pass has post-ops, or its source holds integers.

    Examples
    --------
    >>> import relayout as rl
    >>> from relayout.primitives import BatchNormalization
    >>> x = rl.MemoryDesc((8, 64, 56, 56), "bf16", "nhwc")
    >>> forward = BatchNormalization(x, use_scale=True, use_shift=True, use_global_stats=False)
    >>> made = BatchNormalizationBackward(forward)
    >>> made.diff_src, made.diff_scale
    (MemoryDesc('bf16:nhwc:8x64x56x56'), MemoryDesc('f32:a:64'))
    """

    kind = "batch_normalization_backward"
    hint = BatchNormalization
    forward: BatchNormalization

    def __init__(
        self,
        forward: BatchNormalization,
        *,
        diff_dst: MemoryDesc | Any = None,
        diff_src: MemoryDesc | Any = None,
    ) -> None:
        self._made_for(forward)
        operation = forward.operation
        if operation.fuse_relu and "workspace" not in forward.outputs:
            raise LayoutError(
                f"{self.kind}: the forward primitive has a fused ReLU and does not say what it let pass; "
                "make it with workspace=True"
            )
        vectors = [name for name in ("mean", "variance", "scale") if name in forward.descs]
        masks = ["workspace"] * operation.fuse_relu
        self._decide(
            ops.BatchNormalizationBackward,
            [*vectors, *masks],
            diff_dst,
            diff_src,
            epsilon=operation.epsilon,
            use_global_stats=not operation.training,
        )
