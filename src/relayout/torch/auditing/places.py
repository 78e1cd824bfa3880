"""Where in a program something happens: the line, and the module of the model. Both are read off the stack.

Hooks would tell the modules as well, but with hooks each module keeps its inputs until it is done; the memory
that a model takes, and its time, would not be its own any more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, NamedTuple

import torch

__all__ = ["Place", "Places", "buffers_of", "parameters_of"]

INNER = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
CALL = torch.nn.Module._call_impl.__code__
"""Runs once for each module that is called; ``self`` is the module."""

_inner: dict[str, bool] = {}


def _is_inner(file: str) -> bool:
    known = _inner.get(file)
    if known is None:
        known = _inner[file] = file.startswith((*INNER, "<"))
    return known


def parameters_of(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """The parameters of modules; ``model.parameters()`` would go over all modules once more for them."""
    return [one for module in modules for one in module._parameters.values() if one is not None]


def buffers_of(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """The buffers of modules."""
    return [one for module in modules for one in module._buffers.values() if one is not None]


class Place(NamedTuple):
    """Where a call is made."""

    module: str
    """The path in the model; ``""`` is the model itself."""
    layer: str
    """The class of the module."""
    file: str
    line: int


class Places:
    """The places of a model."""

    def __init__(self, model: Any) -> None:
        self.modules = dict(model.named_modules()) if isinstance(model, torch.nn.Module) else {}
        self.names = {id(module): name for name, module in self.modules.items()}
        self.model = type(model).__name__

    def here(self, outermost: FrameType | None) -> Place:
        """Where the program is: frames from ``outermost`` on are not the model's.

        The line is that of the innermost call that is neither PyTorch's nor the audit's. Where PyTorch's
        modules call each other, as in ``Sequential``, it is the line within the module.
        """
        file, line = "", 0
        found = False
        path: list[str] = []  # of modules that were made on the way, and have no name in the model
        layer = ""
        named = None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not outermost:
            code = frame.f_code
            if code is CALL:
                if named is None:
                    module = frame.f_locals["self"]
                    layer = layer or type(module).__name__
                    named = self.names.get(id(module))
                    if named is None:
                        path.append(type(module).__name__)
            elif not found and not (_inner.get(code.co_filename) or _is_inner(code.co_filename)):
                file, line, found = code.co_filename, frame.f_lineno, True
            elif not line and code.co_name == "forward":
                file, line = code.co_filename, frame.f_lineno
            if found and named is not None:
                break
            frame = frame.f_back
        whole = ".".join(part for part in (named or "", *reversed(path)) if part)
        return Place(whole, layer or self.model, file, line)
