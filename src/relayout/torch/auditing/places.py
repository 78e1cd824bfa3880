"""Where in a program something happens: the line, and the module of the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as hooks

__all__ = ["Modules", "line_of_program"]

INNER = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_inner: dict[str, bool] = {}


def _is_inner(file: str) -> bool:
    known = _inner.get(file)
    if known is None:
        known = _inner[file] = file.startswith((*INNER, "<"))
    return known


def line_of_program(outermost: FrameType | None) -> tuple[str, int]:
    """File and line of the innermost call that is neither PyTorch's nor the audit's.

    Where PyTorch's modules call each other, as in ``Sequential``, it is the line within the module. Frames
    from ``outermost`` on are not the model's.
    """
    frame: FrameType | None = sys._getframe(1)
    own = "", 0
    while frame is not None and frame is not outermost:
        code = frame.f_code
        if not _is_inner(code.co_filename):
            return code.co_filename, frame.f_lineno
        if not own[1] and code.co_name == "forward":
            own = code.co_filename, frame.f_lineno
        frame = frame.f_back
    return own


class Modules:
    """The modules that are being called, outermost first."""

    def __init__(self, model: Any) -> None:
        named = model.named_modules() if isinstance(model, torch.nn.Module) else ()
        self.names = {id(module): name for name, module in named}
        self.stack: list[tuple[str, str]] = [("", type(model).__name__)]

    @property
    def here(self) -> tuple[str, str]:
        """Path and class of the innermost one."""
        return self.stack[-1]

    def _enter(self, module: Any, _: Any) -> None:
        name = self.names.get(id(module))
        layer = type(module).__name__
        if name is None:  # made on the way, or the model is a function
            outer = self.stack[-1][0]
            name = f"{outer}.{layer}" if outer else layer
        self.stack.append((name, layer))

    def _leave(self, *_: Any) -> None:
        self.stack.pop()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow the calls of all modules."""
        first = hooks.register_module_forward_pre_hook(self._enter)
        last = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            first.remove()
            last.remove()
