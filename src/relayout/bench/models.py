"""Whole networks: Relayout beside ONNX Runtime and OpenVINO, on ONNX files.

Everybody reads the same file, is given the same arrays and as many threads, and is timed in turn within each
round (:func:`relayout.bench.measure.in_rounds`); a figure is the median of the rounds' ratios. Outputs are
compared: a contestant that is fast because it computes something else would be seen in the column of
differences. They are relative to the largest value of each output of the first other contestant.

Inputs are random: numbers of a normal distribution, 0 and 1 for whole numbers, so that they are indices of
any table, and truth values that are all true, as masks are that mask nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from relayout.bench.load import Load, disturbed
from relayout.bench.measure import OURS, Spread, Stopwatch, figures, in_rounds
from relayout.forking import locked

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

__all__ = ["PEERS", "Result", "as_json", "difference", "inputs_of", "measured", "show"]

Outputs: TypeAlias = "tuple[NDArray[Any], ...]"
Call: TypeAlias = "Callable[[], Outputs]"


@dataclass
class Result:
    """One network with one number of threads.

    Attributes
    ----------
    model : str
        The name of its file.
    threads, batch : int
        How many; the batch is the first size of the first input.
    seconds : dict of str to Spread
        Of a call, by contestant.
    behind : dict of str to Spread
        The time of each other contestant / Relayout's: above 1, Relayout is faster.
    difference : float or None
        The largest difference of outputs, relative to the largest value; None: nobody to compare with.
    conversions : int
        Conversions between formats that the plan has left.
    defined : int
        Steps that are done in NumPy.
    disturbed : bool
        Whether other processes took the cores.
    refused : dict of str to str
        Why a contestant could not do it.
    """

    model: str
    threads: int
    batch: int
    seconds: dict[str, Spread] = field(default_factory=dict)
    behind: dict[str, Spread] = field(default_factory=dict)
    difference: float | None = None
    conversions: int = 0
    defined: int = 0
    disturbed: bool = False
    refused: dict[str, str] = field(default_factory=dict)


@locked
def _onnxruntime(path: Path, arrays: Sequence[NDArray[Any]], threads: int) -> Call:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = {one.name: array for one, array in zip(session.get_inputs(), arrays, strict=False)}
    return lambda: tuple(session.run(None, given))


@locked
def _openvino(path: Path, arrays: Sequence[NDArray[Any]], threads: int) -> Call:
    openvino = importlib.import_module("openvino")
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request, given = compiled.create_infer_request(), list(arrays)

    def call() -> Outputs:
        found = request.infer(given, share_inputs=True, share_outputs=True)
        return tuple(found[one] for one in compiled.outputs)

    return call


PEERS: Final[dict[str, tuple[str, Callable[[Path, Sequence[Any], int], Call]]]] = {
    "ONNX Runtime": ("onnxruntime", _onnxruntime),
    "OpenVINO": ("openvino", _openvino),
}
"""The others: their packages, and what makes a call of a network."""


def installed() -> dict[str, str | None]:
    """The version of each other contestant; None where it is not installed."""
    return {name: _version(package) for name, (package, _) in PEERS.items()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def inputs_of(values: Sequence[Any], batch: int = 1) -> list[NDArray[Any]]:
    """Random arrays for the inputs of a graph; what is not known of their dims is the batch, or else 1.

    >>> from relayout.graph.graph import Value
    >>> x, mask = Value("x", (None, 3), np.dtype("f4")), Value("mask", (1, 4), np.dtype("i8"))
    >>> [array.shape for array in inputs_of([x, mask], batch=2)]
    [(2, 3), (1, 4)]
    """
    rng, found = np.random.default_rng(0), []
    for value in values:
        dims = [
            n if isinstance(n, int) else batch if axis == 0 else 1 for axis, n in enumerate(value.dims or ())
        ]
        kind = np.dtype(value.dtype)
        if kind.kind in "iu":
            found.append(rng.integers(0, 2, dims).astype(kind))
        elif kind.kind == "b":
            found.append(np.ones(dims, bool))
        else:
            found.append(rng.standard_normal(dims).astype(kind))
    return found


def difference(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of outputs, relative to the largest value of each.

    >>> difference([np.array([1.0, 4.5])], [np.array([1.0, 4.0])])
    0.125
    """
    largest = 0.0
    for one, other in zip(found, expected, strict=True):
        one, other = (np.asarray(x, np.float64) for x in (one, other))
        if one.shape != other.shape:
            return float("inf")
        if other.size:
            scale = max(float(np.abs(other).max()), np.finfo(np.float32).tiny)
            largest = max(largest, float(np.abs(one - other).max()) / scale)
    return largest


def measured(
    path: Path, threads: Sequence[int], batch: int = 1, rounds: int = 7, seconds: float = 3.0
) -> Iterator[Result]:
    """A result for each number of threads.

    Raises
    ------
    LayoutError
        Relayout can't read or run it. That another one can't is said in the result.
    """
    from relayout.importers.loading import load

    graph = load(path)
    arrays = inputs_of(graph.inputs, batch)
    dims = tuple(array.shape for array in arrays)
    free = any(not value.known for value in graph.inputs)
    for many in threads:
        run = graph.compile(threads=many, batch=batch if free else None)
        result = Result(path.name, many, dims[0][0] if dims and dims[0] else 1)
        result.conversions = len(run.plan.conversions) if run.plan is not None else 0
        layers = run.steps.layers() if run.steps is not None else ()
        result.defined = sum("definition" in layer.implementation for layer in layers)
        calls: dict[str, Call] = {OURS: lambda run=run: run(*arrays)}  # type: ignore[misc]
        for name, (_, make) in PEERS.items():
            if installed()[name] is not None:
                try:
                    call = make(path, arrays, many)
                    call()
                    calls[name] = call
                except Exception as error:  # of any kind: they are others' packages
                    result.refused[name] = " ".join(str(error).split())[:200]
        found, others = calls[OURS](), list(calls)[1:]
        if others:
            result.difference = difference(found, calls[others[0]]())
        load_ = Load()
        watches = {name: Stopwatch(call) for name, call in calls.items()}
        told = figures(in_rounds(watches, rounds, seconds, many, (OURS,)), OURS)
        result.seconds, result.behind = told["seconds"], told["ratios"]
        result.disturbed = disturbed(many, load_.others())
        yield result


def show(results: Sequence[Result], console: Console) -> None:
    """A table of all results, and the geometric means of the ratios."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    names = [name for name in PEERS if any(name in one.behind for one in results)]
    title = "time of others / time of Relayout: medians with quartiles"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("network", overflow="ellipsis", no_wrap=True, max_width=16)
    for heading in ("thr", "ms", *names, "diff", "cv", "np"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in results:
        ratios = [one.behind.get(name) for name in names]
        table.add_row(
            one.model.removesuffix(".onnx") + (" *" if one.disturbed else ""),
            str(one.threads),
            f"{1e3 * one.seconds[OURS].median:.3g}",
            *(f"{r.median:.2f} {r.low:.2f}..{r.high:.2f}" if r else "-" for r in ratios),
            "-" if one.difference is None else f"{one.difference:.0e}",
            str(one.conversions),
            str(one.defined),
        )
    console.print(table)
    console.print("diff: of outputs; cv: conversions left; np: steps in NumPy; *: disturbed")
    for many in dict.fromkeys(one.threads for one in results):
        for name in names:
            own = [one for one in results if one.threads == many and name in one.behind]
            if own:
                mean = float(np.exp(np.mean([np.log(one.behind[name].median) for one in own])))
                count = f"geometric mean of {len(own)}"
                console.print(f"{many} threads, {name} / Relayout: {mean:.2f} ({count})")
    for one in results:
        for name, why in one.refused.items():
            console.print(f"{one.model}, {one.threads} threads: {name} can't: {why}", markup=False)


def as_json(results: Sequence[Result], machine: dict[str, Any]) -> dict[str, Any]:
    """Everything as plain data."""
    found = [
        {
            **asdict(one),
            "seconds": {name: spread._asdict() for name, spread in one.seconds.items()},
            "behind": {name: spread._asdict() for name, spread in one.behind.items()},
        }
        for one in results
    ]
    return {"machine": machine, "peers": installed(), "results": found}
