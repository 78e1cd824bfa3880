"""Networks of torchvision and timm."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from relayout.bench.zoo.building import module_of, tensors, torchvision

__all__ = ["build"]

AUXILIARY = ("googlenet", "inception_v3")
"""Networks with further outputs for training, whose initialisation takes a minute unless it is left out."""


def build(family: str, name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """A network and its inputs."""
    torch = import_module("torch")
    if family == "timm":
        made = import_module("timm").create_model(name, pretrained=False)
        return made, (torch.randn(batch, *made.pretrained_cfg["input_size"]),)
    models = torchvision().models
    if family == "tv":
        settings = {"init_weights": False} if name in AUXILIARY else {}
        size = 299 if name == "inception_v3" else 224
        return getattr(models, name)(weights=None, **settings), (torch.randn(batch, 3, size, size),)
    if family == "tv-seg":
        made = getattr(models.segmentation, name)(weights=None, weights_backbone=None)
        return module_of(lambda inner, x: inner(x)["out"], made), (torch.randn(batch, 3, 224, 224),)
    if family == "tv-video":
        size, frames = (224, 16) if name.startswith(("mvit", "swin")) else (112, 8)
        return getattr(models.video, name)(weights=None), (torch.randn(batch, 3, frames, size, size),)
    made = getattr(models.detection, name)(weights=None, weights_backbone=None)
    size = 300 if "300" in name else 320
    return module_of(lambda trunk, x: tensors(trunk(x)), made.backbone), (torch.randn(batch, 3, size, size),)
