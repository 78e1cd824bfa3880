"""The weights of a model in a memory format: :func:`convert_model`."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from relayout.torch.conversion import to

__all__ = ["convert_model"]

Module = TypeVar("Module")

_RANKS = {torch.channels_last: (4,), torch.channels_last_3d: (5,)}


def convert_model(model: Module, memory_format: Any = torch.channels_last) -> Module:
    """Convert the parameters and buffers of a model in place, as ``model.to(memory_format=...)`` does.

    Parameters
    ----------
    model : torch.nn.Module
        The model; its parameters stay the same objects, so that optimisers keep them.
    memory_format : torch.memory_format
        ``torch.channels_last`` converts what has 4 axes, ``torch.channels_last_3d`` what has 5,
        ``torch.contiguous_format`` both. Everything else stays as it is.

    Returns
    -------
    torch.nn.Module
        ``model`` itself.

    Raises
    ------
    TypeError, RuntimeError
        Where PyTorch's ``Module.to`` raises them.

    Notes
    -----
    The one difference: where a model has weights of 4 and of 5 axes, ``model.to(memory_format=
    torch.channels_last)`` raises an error, with some of the weights converted. Here those of the other rank
    are left alone, so both formats can be asked for, one after the other.

    Examples
    --------
    >>> import torch
    >>> import relayout as rl
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv3d(3, 8, 3))
    >>> weight = model[0].weight
    >>> rl.torch.convert_model(model, torch.channels_last)[0].weight is weight
    True
    >>> weight.stride(), model[1].weight.is_contiguous()
    ((27, 1, 9, 3), True)
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"convert_model takes a torch.nn.Module, got {type(model).__name__}")
    ranks = _RANKS.get(memory_format, (4, 5))

    def convert(x: Any) -> Any:
        return to(x, memory_format=memory_format) if x.dim() in ranks else x

    converted: Module = model._apply(convert)
    return converted
