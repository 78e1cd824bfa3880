"""Profiles of ONNX Runtime (``SessionOptions.enable_profiling``): a JSON array of events.

Each kernel that ran is an event of category ``Node``, called ``<node>_kernel_time``, with the operator, and
the types and shapes of inputs and outputs; ``model_run`` is a whole call. Times are whole microseconds.

=====================================  ====================================================================
operator                               what is known of its formats
=====================================  ====================================================================
``ReorderInput``, ``ReorderOutput``    ``NCHWc`` on one side (:mod:`relayout.notation.onnxruntime`), row-major
                                       or channels-last on the other: which one, the shapes tell
``Transpose``                          the permutation is not written down; shapes tell it, unless axes of one
                                       size leave a choice
``Cast``, ``QuantizeLinear``,          another data type, the same order
``DequantizeLinear``
``MemcpyToHost``, ``MemcpyFromHost``   the same bytes on another device
=====================================  ====================================================================

How many channels a block of ``NCHWc`` has depends on the processor that wrote the log, and is not in it.
Sizes that are no multiple of 16 prove blocks of 8; otherwise 16 is assumed and noted. Nor are there edges:
producers and consumers are neighbours in the order of execution with an output or input of the same type
and shape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from relayout.logs.events import Event, Log, Side
from relayout.logs.sides import in_order, named_type, permutation, row_major, tagged
from relayout.logs.spans import Spans
from relayout.logs.streams import Elements

__all__ = ["read"]

SUFFIX = "_kernel_time"
NEAR = 12  # nodes between a conversion and whoever made or reads its tensor
REORDERS = ("ReorderInput", "ReorderOutput")
CASTS = ("Cast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
COPIES = ("MemcpyToHost", "MemcpyFromHost")
CONVERSIONS = (*REORDERS, "Transpose", *CASTS, *COPIES)

Shape = tuple[str, tuple[int, ...]]
"""A data type as the log spells it, and sizes."""


class _Kernel(NamedTuple):
    """A kernel that ran."""

    node: str
    operator: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    seconds: float
    line: int


def read(chunks: Iterable[bytes]) -> Log:
    """The log of a profile, from pieces of the file."""
    elements = Elements(chunks)
    spans, calls, stated = Spans(), 0, 0.0
    found: list[tuple[_Kernel, str, str]] = []
    last: deque[_Kernel] = deque(maxlen=NEAR)
    waiting: deque[tuple[int, int]] = deque()
    count = 0
    for _, event in elements:
        kernel = _kernel(event, elements.count)
        if kernel is None:
            if isinstance(event, dict) and event.get("name") == "model_run":
                calls += 1
                stated += _number(event.get("dur")) * 1e-6
            continue
        spans.add(event.get("tid"), kernel.operator, _number(event.get("ts")) * 1e-6, kernel.seconds)
        count += 1
        while waiting and count - waiting[0][1] > NEAR:
            waiting.popleft()
        for place, since in list(waiting):
            one, producer, _ = found[place]
            if one.outputs and one.outputs[0] in kernel.inputs:
                found[place] = one, producer, kernel.node
                waiting.remove((place, since))
        if kernel.operator in CONVERSIONS:
            wanted = kernel.inputs[:1]
            made = (one.node for one in reversed(last) if wanted and wanted[0] in one.outputs)
            waiting.append((len(found), count))
            found.append((kernel, next(made, ""), ""))
        last.append(kernel)
    block = _block(kernel for kernel, _, _ in found)
    events = tuple(
        replace(_event(kernel, block), producer=producer, consumer=consumer)
        for kernel, producer, consumer in found
    )
    return Log(
        "onnxruntime",
        "profile of ONNX Runtime",
        events,
        spans.total(),  # the kernels of a loop's body are in the time of the loop
        count,
        calls or None,
        stated or None,
        "model_run" if stated else "",
        tuple(elements.problems),
        _notes(found, block, count),
    )


def _notes(found: list[tuple[_Kernel, str, str]], block: int, count: int) -> tuple[str, ...]:
    notes = ["producers and consumers are found by type and shape among the neighbouring nodes"]
    if any(kernel.operator in REORDERS for kernel, _, _ in found):
        proof = "proved by the sizes" if block == 8 else "assumed, as with AVX-512; without it 8"
        notes.append(f"NCHWc has blocks of {block} channels here: not in the log, {proof}")
    if any(kernel.operator == "Transpose" and _perm(kernel) is None for kernel, _, _ in found):
        notes.append("some permutations can't be told: the log has shapes only, and axes of one size")
    if not count:
        notes.append("no kernel ran: the session was profiled, but not run")
    return tuple(notes)


def _number(value: Any) -> float:
    """A number of a log; what is none, or absurd, counts as 0."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return float(value) if 0 <= value < 1e18 else 0.0


def _kernel(event: Any, line: int) -> _Kernel | None:
    if not isinstance(event, dict) or event.get("cat") != "Node":
        return None
    name, args = event.get("name"), event.get("args")
    if not isinstance(name, str) or not name.endswith(SUFFIX) or not isinstance(args, dict):
        return None
    return _Kernel(
        name.removesuffix(SUFFIX),
        str(args.get("op_name", "")),
        _shapes(args.get("input_type_shape")),
        _shapes(args.get("output_type_shape")),
        _number(event.get("dur")) * 1e-6,
        line,
    )


def _shapes(given: Any) -> tuple[Shape, ...]:
    """``[{"float": [1, 3, 8, 8]}]`` as pairs."""
    found: list[Shape] = []
    for one in given if isinstance(given, list) else ():
        for kind, dims in one.items() if isinstance(one, dict) else ():
            if isinstance(dims, list) and all(type(size) is int and size >= 0 for size in dims):
                found.append((str(kind), tuple(dims)))
    return tuple(found)


def _block(kernels: Iterable[_Kernel]) -> int:
    """The channels of a block, as far as padded sizes tell."""
    for kernel in kernels:
        if kernel.operator in REORDERS:
            blocked = kernel.outputs if kernel.operator == "ReorderInput" else kernel.inputs
            if any(len(dims) > 1 and dims[1] % 16 for _, dims in blocked):
                return 8
    return 16


def _perm(kernel: _Kernel) -> tuple[int, ...] | None:
    if not kernel.inputs or not kernel.outputs:
        return None
    return permutation(kernel.inputs[0][1], kernel.outputs[0][1])


def _event(kernel: _Kernel, block: int) -> Event:
    (kind, dims), (made, result) = (
        several[0] if several else ("", ()) for several in (kernel.inputs, kernel.outputs)
    )
    known = bool(kernel.inputs and kernel.outputs)
    operation, sizes = "convert", dims if known else None
    if kernel.operator in REORDERS:
        operation = "reorder"
        src, dst, sizes = _reorder(kernel, dims, result, kind, block) if known else (Side(), Side(), None)
    elif kernel.operator == "Transpose":
        operation, perm = "transpose", _perm(kernel)
        src = row_major(dims, kind) if known else Side()
        dst = in_order(dims, perm, kind) if perm is not None else Side("", named_type(made))
    else:
        operation = "copy" if kernel.operator in COPIES else "convert"
        src, dst = (row_major(dims, kind), row_major(dims, made)) if known else (Side(), Side())
    return Event(operation, kernel.node, src, dst, sizes, kernel.seconds, line=kernel.line)


def _reorder(
    kernel: _Kernel, before: tuple[int, ...], after: tuple[int, ...], kind: str, block: int
) -> tuple[Side, Side, tuple[int, ...] | None]:
    """Both sides of a conversion from or to NCHWc, and the logical sizes; channels are axis 1."""
    plain, blocked = (before, after) if kernel.operator == "ReorderInput" else (after, before)
    if len(plain) != len(blocked) or not 3 <= len(plain) <= 5:
        return Side(), Side(), None
    last = plain[1:-1] == blocked[2:] and plain[2:] != blocked[2:]
    dims = (plain[0], plain[-1], *plain[1:-1]) if last else plain
    letters = "abcde"[: len(dims)]
    one = tagged("a" + letters[2:] + "b" if last else letters, kind, dims)
    two = tagged(f"aB{letters[2:]}{block}b", kind, dims)
    return (one, two, dims) if kernel.operator == "ReorderInput" else (two, one, dims)
