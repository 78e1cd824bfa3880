"""Weights of PyTorch as arrays of NumPy that share their memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError, Unsupported
from relayout.exchange.pytorch import memory
from relayout.graph.graph import Array

__all__ = ["array_of"]

NUMPYS_OWN: Final = ("torch.bool", "torch.uint16", "torch.uint32", "torch.uint64")
"""Data types that graphs have, and elements of tensors don't."""


def array_of(data: Any, name: str, lasting: bool = True) -> Array:
    """A weight as an array that shares its memory, and can only be read.

    Parameters
    ----------
    data : torch.Tensor
        The weight.
    name : str
        Its name, for messages.
    lasting : bool
        Whether the array may outlive all that the caller knows of; PyTorch refuses to resize the weight then.

    Raises
    ------
    Unsupported
        It is not in the memory of the CPU, or its data type has no counterpart.
    """
    plain = data.detach()
    if plain.device.type != "cpu":
        raise Unsupported(f"the weight {name!r} is on the device {plain.device}; move the model to the CPU")
    if str(plain.dtype) in NUMPYS_OWN:
        elements: Array = plain.numpy()
    else:
        try:
            elements = memory(plain, lasting=lasting)
        except LayoutError as error:
            raise Unsupported(f"the weight {name!r}: {error}") from error
    elements = np.asarray(elements).view()
    elements.flags.writeable = False
    return elements
