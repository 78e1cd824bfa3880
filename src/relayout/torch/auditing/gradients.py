"""Gradients whose strides are not those of their parameters: what distributed training warns of.

``DistributedDataParallel`` sends gradients in buckets, which are laid out as the *parameters* are. A
gradient with other strides is copied into its bucket in each step, and PyTorch warns: "Grad strides do not
match bucket view strides". Strides of axes of size 1 count there, so the weight of a 1x1 convolution is the
usual case: the same bytes, but the gradient comes in channels-last, and the weight's strides do not say so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from relayout.pytorch import suggest_memory_format
from relayout.torch.auditing.seen import format_of

__all__ = ["Gradient", "differing_gradients"]


class Gradient(NamedTuple):
    """A parameter and the strides of its gradient."""

    name: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    """Of the parameter."""
    gradient_strides: tuple[int, ...]

    @property
    def advice(self) -> str:
        """What to do before the model is wrapped."""
        wanted = "channels_last_3d" if len(self.dims) == 5 else "channels_last"
        if suggest_memory_format(self.dims, self.gradient_strides) == wanted:
            return (
                f"before DistributedDataParallel: model.to(memory_format=torch.{wanted}), or for this one "
                f"p.data = p.data.as_strided(p.shape, {self.gradient_strides})"
            )
        if format_of(self.dims, self.gradient_strides) == "both":
            return (
                "its convolution ran in contiguous_format: restore the format of its input; or "
                f"p.register_hook(lambda g: g.as_strided(g.shape, {self.strides})), which copies nothing"
            )
        return (
            "p.register_hook(lambda g: torch.empty_like(p).copy_(g)) brings it into the parameter's strides"
        )


def differing_gradients(model: Any) -> tuple[Gradient, ...]:
    """The parameters of a model whose gradients have other strides, after a backward pass."""
    if not isinstance(model, torch.nn.Module):
        return ()
    return tuple(
        Gradient(name, tuple(one.shape), tuple(one.stride()), tuple(one.grad.stride()))
        for name, one in model.named_parameters()
        if one.grad is not None
        and one.grad.layout is torch.strided
        and one.layout is torch.strided
        and one.grad.stride() != one.stride()
    )
