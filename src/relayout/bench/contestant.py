"""One contestant with one network, in a process of its own: what :mod:`relayout.bench.contest` starts.

This file is run as a script, and imports at first what any program with arrays imports. So the time from the
start of the process to the first result is that of a program which uses this one library, and the memory
beyond the baseline is what the library takes. It then answers, line by line, on its standard output:

* ``{"ready": ..., "first": ..., "memory": ..., ...}`` when it has its first result, with the seconds of that
  call;
* seconds of a call, when it is sent ``time``, and whether its threads rest, for which it waits some time;
* what there is to say, or why not, when it is asked for what only some can do: ``tune``, ``save PATH``,
  ``turn ...``.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

WARM = 2e-3  # seconds of calls that are not counted
LEAST = 10e-3  # seconds that one timing takes at least
LONG = 0.25  # seconds from which on a call is timed by itself: what is warm by then was so before
TUNED = 24  # calls after which all candidates of all layers have been tried

Made = tuple[Callable[[], Any], Callable[[], Mapping[str, Any]], Mapping[str, Callable[[str], Any]]]
"""A call; what else there is to tell; what it may be asked to do besides, each with a word."""


def status(key: str) -> int:
    """Bytes from a line of the system's report on this process; 0 where it has none."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            found = [line.split()[1] for line in file if line.startswith(key + ":")]
    except OSError:
        return 0
    return 1024 * int(found[0]) if found else 0


def ours(task: Mapping[str, Any], arrays: Sequence[Any]) -> Made:
    """Relayout, with a model or a run that was saved; figures of the plan come with it."""
    import relayout

    found, kind = relayout.load(task["model"]), task.get("kind", "f32")
    given, run = arrays[: len(found.inputs)], found
    if hasattr(found, "compile"):
        free = any(not value.known for value in found.inputs)
        dims = {value.name: array.shape for value, array in zip(found.inputs, given, strict=True)}
        precision = "bf16" if kind == "bf16" else None
        run = found.compile(threads=task["threads"], batch=dims if free else None, precision=precision)

    def told() -> dict[str, Any]:
        layers = run.steps.layers() if run.steps is not None else ()
        return {
            "conversions": len(run.plan.conversions) if run.plan is not None else 0,
            "defined": sum("definition" in one.implementation for one in layers) or (run.steps is None),
        }

    def tune(_: str) -> None:
        run.tune()
        for _turn in range(TUNED):
            run(*given)

    return lambda: run(*given), told, {"tune": tune, "save": run.save}


def ours_real(task: Mapping[str, Any], arrays: Sequence[Any]) -> Made:
    """Relayout with the network in f32, where it is measured in a narrower type."""
    return ours({**task, "model": task.get("real") or task["model"], "kind": "f32"}, arrays)


def onnxruntime(task: Mapping[str, Any], arrays: Sequence[Any]) -> Made:
    """ONNX Runtime's CPU provider; its threads stop spinning when a run ends."""
    onnxruntime = import_module("onnxruntime")

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = task["threads"], 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(task["model"], options, providers=["CPUExecutionProvider"])
    given = {one.name: array for one, array in zip(session.get_inputs(), arrays, strict=False)}
    return lambda: session.run(None, given), dict, {}


def openvino(task: Mapping[str, Any], arrays: Sequence[Any]) -> Made:
    """OpenVINO's CPU plugin, in f32 or bf16; what is quantised is computed in int8, the rest in f32."""
    return _openvino(task, task["model"], "bf16" if task.get("kind") == "bf16" else "f32", arrays)


def openvino_narrow(task: Mapping[str, Any], arrays: Sequence[Any]) -> Made:
    """OpenVINO with the network in bf16, which is its default where the processor can, beside int8."""
    return _openvino(task, task.get("real") or task["model"], "bf16", arrays)


def _openvino(task: Mapping[str, Any], model: str, hint: str, arrays: Sequence[Any]) -> Made:
    openvino = import_module("openvino")

    settings = {
        "INFERENCE_NUM_THREADS": task["threads"],
        "INFERENCE_PRECISION_HINT": hint,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    request, given = compiled.create_infer_request(), arrays[: len(compiled.inputs)]

    def call() -> Any:
        found = request.infer(given, share_inputs=True, share_outputs=True)
        return [found[one] for one in compiled.outputs]

    return call, dict, {}


def inductor(task: Mapping[str, Any], _: Sequence[Any]) -> Made:
    """``torch.compile`` with frozen weights, on the network as PyTorch has it."""
    torch = import_module("torch")
    config: Any = import_module("torch._inductor.config")

    from relayout.bench.zoo import build, tensors

    torch.set_num_threads(task["threads"])
    config.freezing = True
    made = build(task["network"], task["batch"])
    narrow = task.get("kind") == "bf16"
    module = torch.compile(made.module.to(torch.bfloat16) if narrow else made.module)
    kinds = {torch.float32: torch.bfloat16} if narrow else {}

    def call() -> Any:
        given = [one.to(kinds.get(one.dtype, one.dtype)) for one in made.inputs]  # what comes is f32
        with torch.no_grad():
            found = tensors(module(*given))
            return [(one.float() if one.dtype == torch.bfloat16 else one).numpy() for one in found]

    return call, dict, {}


MAKERS: Mapping[str, Callable[[Mapping[str, Any], Sequence[Any]], Made]] = {
    "Relayout": ours,
    "Relayout, f32": ours_real,
    "ONNX Runtime": onnxruntime,
    "OpenVINO": openvino,
    "OpenVINO, bf16": openvino_narrow,
    "torch.compile": inductor,
}


def once(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def timed(call: Callable[[], Any], fastest: float) -> float:
    """Seconds of a call, after some that find caches and processors warm, unless it is a long one."""
    if fastest >= LONG:
        fastest = once(call)
        if fastest >= LONG:
            return fastest
    end, turns = time.perf_counter() + WARM, max(1, math.ceil(LEAST / fastest))
    call()
    while time.perf_counter() < end:
        call()
    start = time.perf_counter()
    for _ in range(turns):
        call()
    return (time.perf_counter() - start) / turns


def main() -> None:
    """Make the first result, tell of it, and be timed."""
    task = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints

    def answer(what: Mapping[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    with np.load(task["inputs"]) as file:
        arrays = [file[key] for key in file.files]
    baseline = status("VmRSS")
    try:
        makers = import_module(task["makers"]).MAKERS if "makers" in task else MAKERS
        call, told, actions = makers[task["contestant"]](task, arrays)
        begun = time.perf_counter()
        found = call()
    except Exception as error:
        answer({"refused": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]})
        return
    ready = time.perf_counter()
    second = once(call)
    memory = {"peak": status("VmHWM") - baseline, "resident": status("VmRSS") - baseline}
    if task["outputs"]:
        np.savez(task["outputs"], *[np.asarray(one) for one in found])
    answer({"ready": ready, "first": ready - begun, "second": second, "memory": memory, **told()})
    from relayout.bench.load import settle

    fastest, fresh = second, True
    for line in sys.stdin:
        action, _, word = line.strip().partition(" ")
        if action != "time":
            try:
                said = actions[action](word) or {}
                fastest, fresh = said.get("second", fastest), True
                answer(said)
            except Exception as error:
                answer({"refused": f"{type(error).__name__}: {error}"[:300]})
            continue
        if fresh and fastest < LONG:
            fastest = min(once(call) for _ in range(3))
        fresh = False
        seconds = timed(call, fastest)
        fastest = min(fastest, seconds)
        answer({"seconds": seconds, "rests": settle()})


if __name__ == "__main__":
    main()
