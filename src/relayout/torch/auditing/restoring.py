"""A model as it was: what a run may change of it besides the memory that :mod:`~.watching` puts back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["as_it_was"]


@contextmanager
def as_it_was(model: Any, tensors: Iterable[torch.Tensor] = ()) -> Iterator[None]:
    """Run something, then put back buffers, gradients, modes of training, and the states of random numbers.

    Parameters
    ----------
    model : torch.nn.Module or callable
        Of a function only the random numbers are put back.
    tensors : iterable of torch.Tensor
        Others whose gradients are to be kept, such as the inputs.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    training = [module.training for module in modules]
    buffers = [dict(module._buffers.items()) for module in modules]
    kept = {id(one): one for held in buffers for one in held.values() if one is not None}
    values = {key: one.detach().clone() for key, one in kept.items() if not _lazy(one)}
    leaves = [*(model.parameters() if modules else ()), *(one for one in tensors if one.is_leaf)]
    gradients = [(leaf, leaf.grad) for leaf in leaves]
    states = torch.get_rng_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    numpy = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        for module, mode, held in zip(modules, training, buffers, strict=True):
            module.training = mode
            for name, one in held.items():
                if module._buffers[name] is not one:
                    module._buffers[name] = one
        with torch.no_grad():
            for key, before in values.items():
                one = kept[key]
                if not _equal(one, before):
                    one.copy_(before)
        for leaf, gradient in gradients:
            leaf.grad = gradient
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.random.set_state(legacy)


def _lazy(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)


def _equal(one: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether nothing changed, so that a version that others remember need not change either."""
    try:
        return one.shape == before.shape and bool(torch.equal(one, before))
    except (RuntimeError, NotImplementedError):
        return False
