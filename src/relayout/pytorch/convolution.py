"""Which memory format the next convolution works in.

A convolution has two tensors with a format, the input and the weight, and must settle on one. PyTorch's
rule is short: if :func:`~relayout.pytorch.suggest_memory_format` takes *either* of them for channels-last,
both are brought into channels-last (with ``.contiguous``, so a copy is made where it is needed). Hence the
usual recipe, ``model.to(memory_format=torch.channels_last)``: it is enough that the weights are, and every
convolution puts a lost format right again, at the price of a hidden copy.

>>> from relayout.pytorch import strides_for
>>> image, weight = (8, 3, 32, 32), (16, 3, 3, 3)
>>> plain = (image, strides_for(image, "contiguous_format"))
>>> convolution_memory_format(plain, (weight, strides_for(weight, "contiguous_format")))
'contiguous_format'
>>> convolution_memory_format(plain, (weight, strides_for(weight, "channels_last")))
'channels_last'

The weight of a 1x1 convolution is where this goes wrong: it is contiguous in both formats, and only the
hint in the strides of H and W says which is meant. ``.contiguous()`` does not write the hint, ``.to`` does:

>>> features, pointwise = (8, 64, 7, 7), (16, 64, 1, 1)
>>> plain = (features, strides_for(features, "contiguous_format"))
>>> convolution_memory_format(plain, (pointwise, (64, 1, 1, 1)))
'contiguous_format'
>>> convolution_memory_format(plain, (pointwise, (64, 1, 64, 64)))
'channels_last'

Source: ``_conv_suggest_memory_format_impl`` and its neighbours in ``aten/src/ATen/native/ConvUtils.h``,
PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable

from relayout.errors import LayoutError
from relayout.pytorch.formats import channels_last_of_rank, suggest_memory_format
from relayout.pytorch.geometry import Dims, Operand, Strides, checked_geometry, checked_operand

__all__ = ["convolution_memory_format", "strides_seen_by_convolution"]


def convolution_memory_format(source: Operand, weight: Operand, *, exact: bool = False) -> str:
    """Return the memory format to which a convolution converts its input and its weight.

    The rule of cuDNN, of oneDNN (mkldnn) and of PyTorch's own 2-D kernels on the CPU.

    Parameters
    ----------
    source : (dims, strides)
        The input, with batch: 4 axes (N, C, H, W) or 5 axes (N, C, D, H, W).
    weight : (dims, strides)
        The weight, with as many axes: (O, I, H, W) or (O, I, D, H, W).
    exact : bool
        The stricter rule of Apple's MPS: only exact strides count.

    Raises
    ------
    LayoutError
        The number of axes is not 4 or 5, or differs.

    Notes
    -----
    cuDNN and oneDNN run float64 in ``contiguous_format`` whatever the strides are; so do, for any data type,
    PyTorch's own 3-D kernels on the CPU, and MIOpen unless ``PYTORCH_MIOPEN_SUGGEST_NHWC=1`` is set.

    There is one corner in which the output of ``conv2d`` on the CPU differs: an input that is contiguous, and
    a 1x1 weight with one input channel that only its strides make ``channels_last``, such as a slice of a
    wider one. This function answers ``channels_last``, and the output is in ``contiguous_format``.

    Examples
    --------
    >>> convolution_memory_format(((2, 3, 4, 5), (60, 1, 15, 3)), ((8, 3, 3, 3), (27, 9, 3, 1)))
    'channels_last'
    """
    tensors = [checked_operand(source), checked_operand(weight)]
    ranks = [len(dims) for dims, _ in tensors]
    channels_last = channels_last_of_rank(ranks[0])
    if channels_last is None or ranks[0] != ranks[1]:
        raise LayoutError(
            f"a convolution takes an input and a weight of 4 axes each, or of 5, not of {ranks[0]} "
            f"and {ranks[1]}: give an input without batch an axis of size 1"
        )
    if any(suggest_memory_format(*tensor, exact=exact) == channels_last for tensor in tensors):
        return channels_last
    return "contiguous_format"


def strides_seen_by_convolution(dims: Iterable[int], strides: Iterable[int]) -> tuple[Dims, Strides] | None:
    """Return the (dims, strides) that ``conv2d`` or ``conv3d`` decides by; None for ranks that they refuse.

    A batch is taken as it is. An image (C, H, W) gets a batch axis from ``unsqueeze(0)``, of stride
    ``dims[0] * strides[0]``. That is right for a contiguous image; for one in channels-last order it is too
    small to look like channels-last, so such an image is taken for ``contiguous_format``.

    >>> strides_seen_by_convolution((3, 32, 32), (1, 96, 3))
    ((1, 3, 32, 32), (3, 1, 96, 3))
    >>> suggest_memory_format((1, 3, 32, 32), (3, 1, 96, 3))
    'contiguous_format'
    """
    sizes, steps = checked_geometry(dims, strides)
    if channels_last_of_rank(len(sizes)):
        return sizes, steps
    if len(sizes) == 3:
        return (1, *sizes), (sizes[0] * steps[0], *steps)
    return None
