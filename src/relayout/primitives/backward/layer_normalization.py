"""The gradients of layer and RMS normalisation, in any format: of the source, the scale and the shift.

::

    y          = (src - mean) / sqrt(variance + epsilon)
    g          = diff_dst scale
    diff_src   = (g - mean of g - y mean of g y) / sqrt(variance + epsilon)        means over a row
    diff_scale = sum of diff_dst y                                                 over all rows
    diff_shift = sum of diff_dst

RMS normalisation subtracts no mean, and neither does its gradient.

>>> import relayout as rl
>>> from relayout.primitives import LayerNormalization
>>> x = rl.tensor([[1.0, 2.0, 6.0]], "ab", "f32")
>>> forward = LayerNormalization(x.desc, statistics=True)
>>> y, mean, variance = forward(x)
>>> d = rl.tensor([[1.0, 0.0, 0.0]], "ab", "f32")
>>> LayerNormalizationBackward(forward)(x, d, mean, variance).numpy().round(3)
array([[ 0.176, -0.22 ,  0.044]], dtype=float32)
"""

from __future__ import annotations

from relayout.ops.backward import normalization as ops
from relayout.primitives.backward.normalizing import RowsBackward
from relayout.primitives.layer_normalization import LayerNormalization

__all__ = ["LayerNormalizationBackward"]


class LayerNormalizationBackward(RowsBackward):
    """The gradients of a layer or RMS normalisation, made once for its descriptors.

    Its inputs are ``src``, ``diff_dst``, ``mean`` (not of RMS normalisation) and ``variance``, then ``scale``
    if the forward pass has one; its outputs ``diff_src``, then ``diff_scale`` and ``diff_shift`` if the
    forward pass has a scale, a shift.

    Parameters
    ----------
    forward : LayerNormalization
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
    >>> from relayout.primitives import LayerNormalization
    >>> x = rl.MemoryDesc((8, 197, 768), "f32", "abc")
    >>> forward = LayerNormalization(x, scale=True, rms=True, statistics=True)
    >>> made = LayerNormalizationBackward(forward)
    >>> made.inputs, made.outputs
    (('src', 'diff_dst', 'variance', 'scale'), ('diff_src', 'diff_scale'))
    """

    kind = "layer_normalization_backward"
    hint = LayerNormalization
    means = ops.LayerNormalizationBackward
