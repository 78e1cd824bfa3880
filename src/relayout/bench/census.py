"""Do networks come in, and come out right: each imported, run, and compared with ONNX Runtime.

Every network is looked at in a process of its own, so that one which crashes, takes all memory or never ends
is a line in the results and not the end of them. Results are kept in a file, a line of JSON for each; a run
that was interrupted goes on where it stopped.

The references: for ONNX files ONNX Runtime, for programs of ``torch.export`` PyTorch itself. Numbers agree
where no output differs by more than :data:`AGREES` times its largest value.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from relayout.bench import zoo
from relayout.bench.lines import add, entries
from relayout.errors import LayoutError

__all__ = ["AGREES", "PROGRAM", "WAYS", "Limits", "Outcome", "looked_at", "read", "summary"]

AGREES: Final = 1e-4
"""The largest difference, relative to the largest value of an output."""

PROGRAM: Final = "program"
WAYS: Final = (*zoo.WRITERS, PROGRAM)
"""How a network comes in: as an ONNX file that one of the exporters writes, or as a program of PyTorch."""

RIGHT: Final = "agrees"
OUTSIDE: Final = "not exported", "no reference", "not installed"
"""What says nothing about Relayout: PyTorch can't write the file, or ONNX Runtime can't run it."""


@dataclass(frozen=True)
class Limits:
    """What one network may take: seconds for each of its two processes, and bytes that are resident."""

    seconds: float = 900.0
    memory: float = 14e9


@dataclass
class Outcome:
    """What became of a network.

    Attributes
    ----------
    name, way : str
        The network, and how it comes in.
    status : str
        ``agrees`` or ``differs``; ``refused``: there are operators that Relayout does not know; ``fails``: it
        could not be planned or run; ``crashes``, ``too large``, ``too slow``: the process ended, or was
        ended; ``not exported``, ``no reference``, ``not installed``: others could not do it.
    why : str
        The reason.
    difference : float or None
        The largest difference of an output, relative to its largest value.
    nodes, conversions, defined : int
        Nodes of the graph, conversions left, steps in NumPy (all nodes, where there is no plan).
    seconds : dict of str to float
        To export, to load, to plan and compile, for the first and the fastest run.
    training : bool
        Whether a step of training was looked at (:mod:`relayout.bench.learning`).
    """

    name: str
    way: str
    status: str
    why: str = ""
    difference: float | None = None
    nodes: int = 0
    conversions: int = 0
    defined: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    training: bool = False


def batch_of(way: str) -> int:
    """The batch that a network is exported with: PyTorch takes an open size whose example is 1 for a 1."""
    return 2 if way == "batch" else 1


def read(path: Path) -> list[Outcome]:
    """The outcomes that a file has; a line that was cut off is none."""
    outcomes = entries(path, lambda plain: Outcome(**plain))
    return list({(one.name, one.way, one.training): one for one in outcomes}.values())


def summary(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many outcomes of each status there are.

    >>> summary([Outcome("a", "static", "agrees"), Outcome("b", "static", "agrees")])
    {'agrees': 2}
    """
    found: dict[str, int] = {}
    for one in outcomes:
        found[one.status] = found.get(one.status, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def looked_at(
    names: Sequence[str],
    way: str,
    path: Path,
    limits: Limits,
    keep: bool = False,
    again: bool = False,
    training: bool = False,
) -> Iterator[Outcome]:
    """Look at each network that a file has no outcome of yet, and write the outcome there.

    Parameters
    ----------
    names : sequence of str
        Networks of :mod:`relayout.bench.zoo`.
    way : str
        One of :data:`WAYS`.
    path : Path
        The file of outcomes.
    limits : Limits
        What each may take.
    keep : bool
        Leave exported files for another time.
    again : bool
        Look once more at what did not agree.
    training : bool
        Look at a step of training.
    """
    known = {one.name: one for one in read(path) if (one.way, one.training) == (way, training)}
    for name in names:
        if name in known and (known[name].status == RIGHT or not again):
            continue
        one = (_trained if training else _outcome)(name, way, limits, keep)
        add(asdict(one), path)
        yield one


def _outcome(name: str, way: str, limits: Limits, keep: bool) -> Outcome:
    lacking = zoo.missing(name)
    if lacking:
        return Outcome(name, way, "not installed", " ".join(lacking))
    if way == PROGRAM:
        return _child("program", name, way, limits)
    files = [zoo.folder() / f"{zoo.stem(name, batch_of(way), way)}{ending}" for ending in (".onnx", ".npz")]
    present = all(file.exists() for file in files)
    start = time.perf_counter()
    if not present:
        written = _child("export", name, way, limits)
        if written.status != RIGHT:
            return written
    took = time.perf_counter() - start
    made = _child("compare", name, way, limits)
    made.seconds["export"] = took
    if not present and not keep:
        zoo.exported(name, batch_of(way), way).remove()
    return made


def _trained(name: str, way: str, limits: Limits, keep: bool) -> Outcome:
    lacking = zoo.missing(name)
    if lacking:
        return Outcome(name, way, "not installed", " ".join(lacking), training=True)
    made = _child("train", name, way, limits)
    made.training = True
    return made


def _child(what: str, name: str, way: str, limits: Limits) -> Outcome:
    """Do a part of the work in another process, and end that when it takes too much."""
    command = [sys.executable, "-m", "relayout.bench.census", what, name, way]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    page, end = resource.getpagesize(), time.monotonic() + limits.seconds
    verdict = ""
    while True:
        try:
            out, err = done.communicate(timeout=0.25)
            break
        except subprocess.TimeoutExpired:
            try:
                resident = int(Path(f"/proc/{done.pid}/statm").read_text().split()[1]) * page
            except (OSError, IndexError):
                resident = 0
            if resident > limits.memory:
                verdict = f"too large: {what} takes more than {limits.memory / 1e9:g} GB"
            elif time.monotonic() > end:
                verdict = f"too slow: {what} takes more than {limits.seconds:g} s"
            if verdict:
                os.killpg(done.pid, signal.SIGKILL)
                done.communicate()
                status, _, why = verdict.partition(": ")
                return Outcome(name, way, status, why)
    lines = out.decode(errors="replace").splitlines()
    if done.returncode == 0 and lines:
        return Outcome(**json.loads(lines[-1]))
    last = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
    return Outcome(name, way, "crashes", f"{what}: status {done.returncode}: {' '.join(last[-1:])[:300]}")


# -- in the other process --------------------------------------------------------------------------------


def _main(what: str, name: str, way: str) -> Outcome:
    if what == "export":
        try:
            zoo.exported(name, batch_of(way), way)
        except LayoutError as error:
            return Outcome(name, way, "not exported", str(error)[:500])
        return Outcome(name, way, RIGHT)
    if what == "train":
        return _learned(name, way)
    return _program(name) if what == "program" else _compared(name, way)


def _compared(name: str, way: str) -> Outcome:
    """An ONNX file, beside ONNX Runtime."""
    import onnxruntime

    files = zoo.exported(name, batch_of(way), way)
    arrays, outcome = files.arrays(), Outcome(name, way, "fails")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(files.model), options, providers=["CPUExecutionProvider"])
        given = {one.name: array for one, array in zip(session.get_inputs(), arrays, strict=True)}
        expected = session.run(None, given)
        del session
    except Exception as error:  # of any kind: it is another's program
        expected, refused = None, f"{type(error).__name__}: {error}"
    graph = _loaded(files.model, outcome)
    if graph is None:
        return outcome
    _ran(graph, arrays, expected, outcome)
    if expected is None and outcome.status == RIGHT:
        outcome.status, outcome.why = "no reference", refused[:500]
    return outcome


def _program(name: str) -> Outcome:
    """A program of ``torch.export``, beside PyTorch."""
    import torch

    outcome = Outcome(name, PROGRAM, "fails")
    made = zoo.build(name)
    start = time.perf_counter()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = made.module(*made.inputs)
        expected = [one.numpy() for one in zoo.tensors(found)]
        try:
            program = torch.export.export(made.module, made.inputs)
        except Exception as error:  # of any kind: it is another's program
            outcome.status, outcome.why = "not exported", f"{type(error).__name__}: {error}"[:500]
            return outcome
    outcome.seconds["export"] = time.perf_counter() - start
    graph = _loaded(program, outcome)
    if graph is not None:
        _ran(graph, [one.numpy() for one in made.inputs], expected, outcome)
    return outcome


def _learned(name: str, way: str) -> Outcome:
    """A step of training, beside PyTorch's in double precision."""
    import torch

    from relayout.bench.learning import BATCH, compared, picture

    outcome = Outcome(name, way, "fails", training=True)
    size = picture(name)
    made = zoo.build(name, BATCH, size)
    with torch.no_grad(), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        try:
            if way == PROGRAM:
                source: Any = torch.export.export(made.module, made.inputs)
            else:
                source = zoo.exported(name, BATCH, way, Path(folder), size).model
        except Exception as error:  # of any kind: it is another's program
            outcome.status, outcome.why = "not exported", f"{type(error).__name__}: {error}"[:500]
            return outcome
        outcome.seconds["export"] = time.perf_counter() - start
        graph = _loaded(source, outcome)
    if graph is None:
        return outcome
    try:
        found = compared(made.module, made.inputs, graph, outcome.seconds)
    except LayoutError as error:
        outcome.status, outcome.why = "refused", str(error)[:1000]
    except Exception as error:  # of any kind: what it is, is the outcome
        outcome.why = f"{type(error).__name__}: {error}"[:1000]
    else:
        outcome.status, outcome.why = RIGHT if found.agrees else "differs", str(found)
        outcome.difference = found.gradients
    return outcome


def _loaded(source: Any, outcome: Outcome) -> Any:
    from relayout.importers.loading import load

    start = time.perf_counter()
    try:
        graph = load(source)
    except LayoutError as error:
        outcome.status, outcome.why = "refused", str(error)[:1000]
        return None
    except Exception as error:  # a defect, to be told like any other failure
        outcome.why = f"loading: {type(error).__name__}: {error}"[:1000]
        return None
    outcome.seconds["load"], outcome.nodes = time.perf_counter() - start, len(graph.nodes)
    return graph


def _ran(graph: Any, arrays: Sequence[Any], expected: Sequence[Any] | None, outcome: Outcome) -> None:
    from relayout.bench.models import difference

    given = arrays[: len(graph.inputs)]
    dims = {value.name: array.shape for value, array in zip(graph.inputs, given, strict=True)}
    start = time.perf_counter()
    try:
        run = graph.compile(batch=dims if any(not value.known for value in graph.inputs) else None)
        middle = time.perf_counter()
        found = run(*given)
        end = time.perf_counter()
    except Exception as error:  # of any kind: what it is, is the outcome
        outcome.why = f"{type(error).__name__}: {error}"[:1000]
        return
    outcome.seconds.update(compile=middle - start, first=end - middle)
    layers = run.steps.layers() if run.steps is not None else ()
    outcome.conversions = len(run.plan.conversions) if run.plan is not None else 0
    outcome.defined = (
        sum("definition" in layer.implementation for layer in layers) if layers else len(graph.nodes)
    )
    if run.steps is None:
        outcome.why = f"no plan: {run.why}"[:500]
    outcome.status = RIGHT
    if expected is not None:
        pairs = [(np.asarray(a).dtype, np.asarray(b).dtype) for a, b in zip(found, expected, strict=False)]
        outcome.difference = difference(found, expected) if len(found) == len(expected) else float("inf")
        if not outcome.difference <= AGREES or any(a != b for a, b in pairs):
            outcome.status = "differs"
            outcome.why = ", ".join(f"{a} for {b}" for a, b in pairs if a != b)


if __name__ == "__main__":
    outcome = _main(*sys.argv[1:])
    print(json.dumps(asdict(outcome)))
