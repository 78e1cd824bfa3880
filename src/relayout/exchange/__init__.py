"""Memory that is shared: with PyTorch's tensors, by DLPack, with files.

NumPy arrays are what tensors are made of (:mod:`relayout.tensor`). What NumPy can't pass on is done here:

=============================  ==============================================================================
:mod:`~.exchange.pytorch`      a ``torch.Tensor`` as an array that shares its memory, and back; checks of what
                               autograd, devices and lazy bits make of a tensor
:mod:`~.exchange.dlpack`       DLPack for bf16 and f8, which NumPy's DLPack does not know
:mod:`~.exchange.mapped`       files that are arrays without having been read
=============================  ==============================================================================

Nothing here knows what a layout is, and nothing imports PyTorch unless a caller asks for one of its tensors.
"""

from __future__ import annotations
