"""PyTorch's memory-format rules, without PyTorch.

Give sizes and strides (in elements), get what PyTorch 2.13 answers: no torch is needed, no tensor is made.

==================================================  ======================================================
question                                            answer
==================================================  ======================================================
Which strides does a new tensor of a format get?    :func:`strides_for`
Do the elements lie in a format?                    :func:`is_contiguous`
Which format does PyTorch take strides for?         :func:`suggest_memory_format`
Are there gaps? Do elements share an address?       :func:`is_non_overlapping_and_dense`, :func:`overlaps`
What do .to and .contiguous return?                 :func:`to`, :func:`contiguous`
Do they copy?                                       :func:`to_copies`, :func:`contiguous_copies`
What do clone, empty_like, zeros_like return?       :func:`clone`, :func:`empty_like`
What does a + b, relu(x), where(c, a, b) return?    :func:`elementwise`
Which format does a convolution work in?            :func:`convolution_memory_format`
What does all this mean for my tensor?              :func:`explain`
==================================================  ======================================================

A network is made channels-last, and one layer on its way undoes it. Follow the strides:

>>> dims = (8, 64, 7, 7)
>>> x = strides_for(dims, "channels_last")
>>> x
(3136, 1, 448, 64)
>>> elementwise([(dims, x)])                               # relu(x) keeps it
(3136, 1, 448, 64)
>>> mask = strides_for(dims, "contiguous_format")
>>> elementwise([(dims, mask), (dims, x)])                 # mask * x does not: the first operand decides
(3136, 49, 7, 1)
>>> elementwise([(dims, x), (dims, mask)])                 # x * mask would have kept it
(3136, 1, 448, 64)

Read on in :mod:`relayout.pytorch.formats` (the formats, and the two questions that are confused most), then
:mod:`~relayout.pytorch.propagation` (element-wise operations), :mod:`~relayout.pytorch.conversion` (.to and
.contiguous) and :mod:`~relayout.pytorch.convolution`.
"""

from __future__ import annotations

from relayout.pytorch.conversion import clone, contiguous, contiguous_copies, empty_like, to, to_copies
from relayout.pytorch.convolution import convolution_memory_format
from relayout.pytorch.density import is_non_overlapping_and_dense, overlaps
from relayout.pytorch.explanation import Conversion, Explanation, Remedy, explain
from relayout.pytorch.formats import is_contiguous, strides_for, suggest_memory_format
from relayout.pytorch.geometry import MEMORY_FORMATS
from relayout.pytorch.propagation import NUMBER, dense_strides_like, elementwise

__all__ = [
    "MEMORY_FORMATS",
    "NUMBER",
    "Conversion",
    "Explanation",
    "Remedy",
    "clone",
    "contiguous",
    "contiguous_copies",
    "convolution_memory_format",
    "dense_strides_like",
    "elementwise",
    "empty_like",
    "explain",
    "is_contiguous",
    "is_non_overlapping_and_dense",
    "overlaps",
    "strides_for",
    "suggest_memory_format",
    "to",
    "to_copies",
]
