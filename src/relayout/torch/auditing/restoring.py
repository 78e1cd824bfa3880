"""A model as it was: what a run may change of it besides the memory that :mod:`~.watching` puts back."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from relayout.torch.auditing.places import parameters_of

__all__ = ["as_it_was", "uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no garbage be collected: small objects by the thousand would have it searched for often."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _has_memory(tensor: torch.Tensor) -> bool:
    other = tensor.is_meta or tensor.is_nested or tensor.is_quantized
    return tensor.layout is torch.strided and not other


@contextmanager
def as_it_was(model: Any, tensors: Sequence[torch.Tensor] = ()) -> Iterator[None]:
    """Run something, then put back gradients, modes of training, the states of random numbers, buffers.

    Of buffers only which tensors they are; what is in them is put back by :class:`~.watching.Watch`.

    Parameters
    ----------
    model : torch.nn.Module or callable
        Of a function only the random numbers are put back.
    tensors : sequence of torch.Tensor
        Others whose gradients and memory are to be kept, such as the inputs.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    training = [module.training for module in modules]
    buffers = [(module, dict(module._buffers.items())) for module in modules if module._buffers]
    leaves = [*parameters_of(modules), *(one for one in tensors if one.is_leaf)]
    gradients = [(leaf, leaf.grad) for leaf in leaves]
    places = [(one, one.detach()) for one in (*leaves, *tensors) if _has_memory(one)]
    states = torch.get_rng_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    numpy = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        for module, mode in zip(modules, training, strict=True):
            if module.training is not mode:
                module.training = mode
        for module, held in buffers:
            for name, one in held.items():
                if module._buffers[name] is not one:
                    module._buffers[name] = one
        for one, held in places:
            if not one.is_set_to(held):
                one.data = held  # resized, or given other memory
        for leaf, gradient in gradients:
            leaf.grad = gradient
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if numpy is not None:
            numpy.random.set_state(legacy)
