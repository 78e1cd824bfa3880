"""Contestants that run a module of PyTorch: eager, and by back ends of ``torch.compile``.

All build the same network (:mod:`relayout.bench.zoo`) and call it under ``torch.inference_mode``. A call
gives the outputs, so all that is compared was computed by the same module from the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from relayout.bench.contestant import TUNED, Made

__all__ = ["MAKERS"]


def ours(task: Mapping[str, Any], arrays: Sequence[Any]) -> Made:
    """The back end of Relayout; it tells what it left to PyTorch."""
    from relayout.torch.compiling import Backend

    backend = Backend()
    call, _, _ = _module(task, arrays, lambda torch, module: torch.compile(module, backend=backend))

    def told() -> dict[str, Any]:
        taken = [part for graph in backend.report.graphs for part in graph.taken]
        return {
            "conversions": sum(len(part.conversions) for part in taken),
            "defined": sum(backend.report.left.values()),
            "parts": len(taken),
            "compiled": backend.report.seconds,
            **traced(),
        }

    def tune(_: str) -> None:
        for _turn in range(TUNED):
            call()

    return call, told, {"tune": tune}


def pytorch(task: Mapping[str, Any], arrays: Sequence[Any], channels_last: bool = False) -> Made:
    """Eager."""
    return _module(task, arrays, lambda _, module: module, channels_last)


def inductor(task: Mapping[str, Any], arrays: Sequence[Any], frozen: bool = False) -> Made:
    """PyTorch's own back end."""
    import_module("torch._inductor.config").freezing = frozen  # type: ignore[attr-defined]
    call, _, actions = _module(task, arrays, lambda torch, module: torch.compile(module))
    return call, traced, actions


DYNAMO = "_compile.compile_inner"
"""What PyTorch calls the time of dynamo, back ends included."""
BACK_ENDS = "OutputGraph.call_user_compiler"


def traced() -> dict[str, float]:
    """Seconds that dynamo has taken so far to trace modules and to make guards, back ends apart."""
    spent: Mapping[str, Sequence[float]] = import_module("torch._dynamo.utils").compilation_time_metrics
    if not {DYNAMO, BACK_ENDS} <= {*spent}:
        return {}
    return {"traced": sum(spent[DYNAMO]) - sum(spent[BACK_ENDS])}


def _module(
    task: Mapping[str, Any],
    _: Sequence[Any],
    compiled: Callable[[Any, Any], Any],
    channels_last: bool = False,
) -> Made:
    torch = import_module("torch")

    from relayout.bench.zoo import build, tensors

    torch.set_num_threads(task["threads"])
    made = build(task["network"], task["batch"])
    inputs = made.inputs
    if channels_last:
        made.module.to(memory_format=torch.channels_last)
        inputs = tuple(one.to(memory_format=torch.channels_last) if one.dim() == 4 else one for one in inputs)
    module = compiled(torch, made.module)

    def call() -> Any:
        with torch.inference_mode():
            return [one.numpy() for one in tensors(module(*inputs))]

    return call, dict, {}


MAKERS: Mapping[str, Callable[[Mapping[str, Any], Sequence[Any]], Made]] = {
    "Relayout": ours,
    "PyTorch": pytorch,
    "PyTorch channels_last": partial(pytorch, channels_last=True),
    "torch.compile": inductor,
    "torch.compile frozen": partial(inductor, frozen=True),
}
