"""How long a whole model takes in each format, and compiled by Relayout: rounds in which all take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

import relayout.torch as ours
from relayout.errors import LayoutError
from relayout.pytorch.formats import channels_last_of_rank
from relayout.torch.auditing.restoring import as_it_was
from relayout.torch.auditing.watching import tensors_in

__all__ = ["Times", "compared", "in_format"]

MOST_ROUNDS = 7
ENOUGH_SECONDS = 6.0
"""After this no further round begins; two are made in any case."""


@dataclass(frozen=True)
class Times:
    """Medians of some rounds, in seconds."""

    seconds: dict[str, float]
    """By way: ``as it is``, ``contiguous``, ``channels_last``, ``relayout``."""
    left_out: dict[str, str]
    """Ways that could not be measured, and why."""
    rounds: int
    threads: int


def fitting(tensor: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """A tensor in a format, or itself where the format has no such number of axes."""
    name = channels_last_of_rank(tensor.dim()) if channels_last else "contiguous_format"
    if name is None or tensor.layout is not torch.strided or tensor.dim() not in (4, 5):
        return tensor
    return tensor.to(memory_format=getattr(torch, name))


@contextmanager
def in_format(model: Any, channels_last: bool) -> Iterator[None]:
    """Have the parameters of a model in a format for a while; then they are the old memory again."""
    held = []
    try:
        with torch.no_grad():
            if isinstance(model, torch.nn.Module):
                for one in model.parameters():
                    held.append((one, one.data))
                    one.data = fitting(one.data, channels_last)
        yield
    finally:
        for one, before in held:
            one.data = before


def converted(value: Any, channels_last: bool) -> Any:
    """Inputs with all their tensors in a format."""
    if isinstance(value, torch.Tensor):
        return fitting(value.detach(), channels_last).requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: converted(one, channels_last) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(converted(one, channels_last) for one in value)
    return value


def compared(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    work: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    train: bool = False,
) -> Times:
    """Measure the ways; ``work`` runs the model once, as it was audited."""
    ways: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], bool | None]] = {
        "as it is": (model, args, kwargs, None)
    }
    for name, channels_last in (("contiguous", False), ("channels_last", True)):
        ways[name] = model, converted(args, channels_last), converted(kwargs, channels_last), channels_last
    left_out: dict[str, str] = {}
    compiled, reason = (None, "for inference only") if train else _ours(model)
    if compiled is None:
        left_out["relayout"] = reason
    else:
        ways["relayout"] = compiled, *ways["channels_last"][1:3], None
    found: dict[str, list[float]] = {name: [] for name in ways}

    def once(name: str) -> float:
        called, given, named, channels_last = ways[name]
        began = perf_counter()
        if channels_last is None:
            work(called, given, named)
        else:
            with in_format(called, channels_last):
                began = perf_counter()
                work(called, given, named)
                return perf_counter() - began
        return perf_counter() - began

    with as_it_was(model, tensors_in((args, kwargs))):
        for name in tuple(ways):
            reason = _refusal(once, name)
            if reason:
                left_out[name] = reason
                del ways[name], found[name]
        began, rounds = perf_counter(), 0
        while rounds < MOST_ROUNDS and (rounds < 2 or perf_counter() - began < ENOUGH_SECONDS):
            for name in ways:
                found[name].append(once(name))
            rounds += 1
    return Times({n: median(t) for n, t in found.items()}, left_out, rounds, torch.get_num_threads())


def _refusal(once: Callable[[str], float], name: str) -> str:
    """Why a model does not go that way; empty if it does. What it raises as it is, it raises here, too."""
    try:
        once(name)
    except Exception as error:
        if name == "as it is":
            raise
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _ours(model: Any) -> tuple[Any, str]:
    """The model compiled by Relayout, or None and why not."""
    try:
        return ours.compile(model), ""
    except LayoutError as error:
        return None, str(error)
