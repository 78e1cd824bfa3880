"""A network by its name: a module of PyTorch with inputs, with weights that hide nothing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from relayout.errors import LayoutError

__all__ = ["Network", "build", "called", "missing", "missing_writers", "module_of", "tensors", "torchvision"]

FAMILIES = {
    "tv": ("vision", ("torchvision",)),
    "tv-seg": ("vision", ("torchvision",)),
    "tv-video": ("vision", ("torchvision",)),
    "tv-detbb": ("vision", ("torchvision",)),
    "timm": ("vision", ("timm", "torchvision")),
    "hf": ("language", ("transformers",)),
    "extra": ("small", ()),
}
"""For each family the module that builds it, and the packages that it takes."""


@dataclass(frozen=True)
class Network:
    """A module in evaluation mode, and the tensors that it is called with."""

    name: str
    module: Any
    inputs: tuple[Any, ...]


def missing(name: str) -> tuple[str, ...]:
    """The packages that a network would take and that are not installed.

    >>> missing("extra/yolo") in ((), ("torch",))
    True
    """
    family = FAMILIES.get(name.partition("/")[0])
    if family is None:
        raise LayoutError(f"no network is called {name!r}: families are {', '.join(FAMILIES)}")
    return tuple(package for package in ("torch", *family[1]) if find_spec(package) is None)


def missing_writers() -> tuple[str, ...]:
    """The packages that writing an ONNX file takes and that are not installed."""
    return tuple(package for package in ("onnx", "onnxscript") if find_spec(package) is None)


def build(name: str, batch: int = 1, size: int | None = None) -> Network:
    """Build a network; the same weights and inputs every time.

    Parameters
    ----------
    name : str
        A family and a model: ``tv/resnet50``.
    batch : int
        The first size of all inputs.
    size : int, optional
        Height and width of pictures, of torchvision's and timm's networks; without it what they are made for.

    Raises
    ------
    LayoutError
        There is no such family, or a package that it needs is not installed.
    """
    lacking = missing(name)
    if lacking:
        raise LayoutError(f"{name} needs {' and '.join(lacking)}, which is not installed")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    family, _, model = name.partition("/")
    torch = import_module("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "torchvision" in FAMILIES[family][1] or find_spec("torchvision") is not None:
            torchvision()
        torch.manual_seed(0)
        made = import_module(f"relayout.bench.zoo.{FAMILIES[family][0]}").build(family, model, batch, size)
    module, inputs = made
    module = module.eval()
    _stirred(module)
    return Network(name, module, tuple(inputs))


def torchvision() -> Any:
    """The package, also where its operators are built for another kind of torch and can't be loaded.

    Networks for classification don't call any of these operators. It is enough that they have been declared.
    """
    torch = import_module("torch")
    try:
        return import_module("torchvision")
    except RuntimeError:
        pass
    pools = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
    names = ["nms", "qnms", "qroi_align", *pools, *(f"_{pool}_backward" for pool in pools)]
    declared.append(torch.library.Library("torchvision", "FRAGMENT"))
    for name in names:
        declared[-1].define(f"{name}(Tensor input) -> Tensor")
    return import_module("torchvision")


declared: list[Any] = []
"""A declaration lasts as long as its library."""


def module_of(function: Callable[..., Any], *layers: Any) -> Any:
    """A module that calls a function with these layers and its inputs."""
    torch = import_module("torch")

    def forward(self: Any, *inputs: Any) -> Any:
        return function(*self.layers, *inputs)

    kind = type("Function", (torch.nn.Module,), {"forward": forward})
    made = kind()
    made.layers = torch.nn.ModuleList(layers)
    return made


def called(module: Any, names: Sequence[str], **settings: Any) -> Any:
    """A module that is given its inputs by name, and answers with a tuple of all tensors."""
    return module_of(
        lambda inner, *inputs: tensors(inner(**dict(zip(names, inputs, strict=True)), **settings)), module
    )


def tensors(result: Any) -> tuple[Any, ...]:
    """All tensors of a nested result, in their order."""
    torch = import_module("torch")
    if isinstance(result, torch.Tensor):
        return (result,)
    if hasattr(result, "to_tuple"):
        result = result.to_tuple()
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, (tuple, list)):
        return tuple(one for part in result for one in tensors(part))
    return ()


def _stirred(module: Any) -> None:
    """Move what an initialisation leaves constant: statistics, scales, biases."""
    torch = import_module("torch")
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
            elif name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
        for parameter in module.parameters():
            if parameter.dim() >= 2 and not parameter.any():
                parameter.normal_(0, 0.05)
            elif parameter.dim() == 1 and parameter.numel() > 1 and bool((parameter == parameter[0]).all()):
                parameter.add_(torch.randn_like(parameter) * 0.1)
