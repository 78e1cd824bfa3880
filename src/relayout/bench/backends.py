"""Contestants that run a module of PyTorch: eager, and by back ends of ``torch.compile``.

All build the same network (:mod:`relayout.bench.zoo`) and call it under ``torch.inference_mode``. A call
gives the outputs, so all that is compared was computed by the same module from the same input.

A process goes through all settings of its network, batches and numbers of threads, one after the other:
importing PyTorch and making random weights takes ten seconds, longer than many networks are measured. Each
setting begins as a fresh process does, but for that: dynamo forgets what it has traced and compiled, and
sizes are fixed, so nobody gets a graph with open sizes because of a batch before.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from relayout.bench.contestant import TUNED, Made, once

__all__ = ["MAKERS"]

TUNING = 20.0
"""Seconds after which no further call is made only for schedules to be chosen. It is Relayout that loses by
it, where a call takes a second and more."""


def ours(task: Mapping[str, Any], arrays: Sequence[Any]) -> Made:
    """The back end of Relayout; it tells what it left to PyTorch."""
    from relayout.torch.compiling import Backend

    backend = Backend()

    def compiled(torch: Any, module: Any) -> Any:
        nonlocal backend
        backend = Backend()
        return torch.compile(module, backend=backend, dynamic=False)

    def told() -> dict[str, Any]:
        taken = [part for graph in backend.report.graphs for part in graph.taken]
        return {
            "conversions": sum(len(part.conversions) for part in taken),
            "defined": sum(backend.report.left.values()),
            "parts": len(taken),
            "compiled": backend.report.seconds,
            **traced(),
        }

    call, _, actions = _module(task, compiled, told)

    def tune(_: str) -> dict[str, float]:
        end, last = time.perf_counter() + TUNING, 0.0
        for _turn in range(TUNED):
            last = once(call)
            if time.perf_counter() + last > end:
                break
        return {"second": last}

    return call, told, {**actions, "tune": tune}


def pytorch(task: Mapping[str, Any], arrays: Sequence[Any], channels_last: bool = False) -> Made:
    """Eager."""
    return _module(task, lambda _, module: module, channels_last=channels_last)


def inductor(task: Mapping[str, Any], arrays: Sequence[Any], frozen: bool = False) -> Made:
    """PyTorch's own back end."""
    import_module("torch._inductor.config").freezing = frozen  # type: ignore[attr-defined]
    return _module(task, lambda torch, module: torch.compile(module, dynamic=False), traced)


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
    compiled: Callable[[Any, Any], Any],
    told: Callable[[], dict[str, Any]] = dict,
    channels_last: bool = False,
) -> Made:
    """A network in the setting of the task; ``turn`` brings it into another one.

    Parameters
    ----------
    task : mapping
        ``network``, ``batch`` and ``threads``; ``most``, the largest batch that will be.
    compiled : callable
        Given PyTorch and the module, what is called instead of it.
    told : callable
        What there is to say after the first call of a setting.
    channels_last : bool
        The format of weights and pictures.
    """
    torch = import_module("torch")

    from relayout.bench.zoo import build, tensors

    torch.set_num_threads(task["threads"])
    made = build(task["network"], max(task["batch"], task.get("most", 0)))
    if channels_last:
        made.module.to(memory_format=torch.channels_last)
    module, inputs = made.module, made.inputs

    def begin(batch: int, threads: int) -> None:
        nonlocal module, inputs
        torch.set_num_threads(threads)
        inputs = tuple(one[:batch].clone() for one in made.inputs)
        if channels_last:
            inputs = tuple(
                one.to(memory_format=torch.channels_last) if one.dim() == 4 else one for one in inputs
            )
        module = compiled(torch, made.module)

    def call() -> Any:
        with torch.inference_mode():
            return [one.numpy() for one in tensors(module(*inputs))]

    def turn(word: str) -> dict[str, Any]:
        nonlocal module
        to = json.loads(word)
        module = made.module
        torch._dynamo.reset()
        gc.collect()
        begin(to["batch"], to["threads"])
        start = time.perf_counter()
        found = call()
        first = time.perf_counter() - start
        second = once(call)
        if to["outputs"]:
            np.savez(to["outputs"], *found)
        return {"first": first, "second": second, **told()}

    begin(task["batch"], task["threads"])
    return call, told, {"turn": turn}


MAKERS: Mapping[str, Callable[[Mapping[str, Any], Sequence[Any]], Made]] = {
    "Relayout": ours,
    "PyTorch": pytorch,
    "PyTorch channels_last": partial(pytorch, channels_last=True),
    "torch.compile": inductor,
    "torch.compile frozen": partial(inductor, frozen=True),
}
