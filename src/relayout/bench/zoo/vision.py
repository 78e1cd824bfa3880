"""Networks of torchvision and timm."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from relayout.bench.zoo.building import module_of, tensors, torchvision

__all__ = ["build"]

AUXILIARY = ("googlenet", "inception_v3")
"""Networks with further outputs for training, whose initialisation takes a minute unless it is left out."""


def build(family: str, name: str, batch: int, size: int | None = None) -> tuple[Any, tuple[Any, ...]]:
    """A network and its inputs; pictures are as large as the network is made for, or of another size."""
    torch = import_module("torch")
    if family == "timm":
        made = _of_timm(name, size)
        channels, *usual = made.pretrained_cfg["input_size"]
        return made, (torch.randn(batch, channels, *((size, size) if size else usual)),)
    models = torchvision().models
    if family == "tv":
        settings: dict[str, Any] = {"init_weights": False} if name in AUXILIARY else {}
        if size and name.startswith("vit_"):
            settings["image_size"] = size
        if size and name.startswith("maxvit"):
            settings["input_size"] = (size, size)
        size = size or (299 if name == "inception_v3" else 224)
        return getattr(models, name)(weights=None, **settings), (torch.randn(batch, 3, size, size),)
    if family == "tv-seg":
        made = getattr(models.segmentation, name)(weights=None, weights_backbone=None)
        size = size or 224
        return module_of(lambda inner, x: inner(x)["out"], made), (torch.randn(batch, 3, size, size),)
    if family == "tv-video":
        usual, frames = (224, 16) if name.startswith(("mvit", "swin")) else (112, 8)
        size = size or usual
        return getattr(models.video, name)(weights=None), (torch.randn(batch, 3, frames, size, size),)
    made = getattr(models.detection, name)(weights=None, weights_backbone=None)
    size = size or (300 if "300" in name else 320)
    return module_of(lambda trunk, x: tensors(trunk(x)), made.backbone), (torch.randn(batch, 3, size, size),)


def _of_timm(name: str, size: int | None) -> Any:
    """A network of timm; those whose weights depend on the size of pictures are made for it."""
    create = import_module("timm").create_model
    try:
        return create(name, pretrained=False, **({"img_size": size} if size else {}))
    except TypeError:  # it is made for all sizes
        return create(name, pretrained=False)
