"""Traces of ``torch.profiler``: Chrome's trace format, an object with ``traceEvents``.

Operators are spans that lie within each other. What moves data is at the bottom, and the operator that was
called for it further up::

    aten::matmul                    what the program called:     the consumer
      aten::reshape                 the outermost of those that only convert: the event, its name and time
        aten::clone
          aten::copy_               destination and source:      sizes, strides, data types

With ``with_stack=True`` there are spans of Python's functions, too, and the innermost one of the program's
own files is named beside the operator; ``with_modules=True`` names the module instead.

Sizes, strides and types are recorded with ``record_shapes=True``; without, there are names and times. Copies
of one number in its own type, broadcasts (a stride of 0) and calls that found nothing to do have no event.

A convolution in oneDNN converts its arguments within itself, and a trace shows none of it: those are in
oneDNN's own log.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from relayout.logs.events import Event, Log, Side
from relayout.logs.sides import strided, tagged
from relayout.logs.spans import Place, Spans
from relayout.logs.streams import Elements

__all__ = ["read"]

_LINE = re.compile(r"(?P<file>[^<>]*)\.pyw?\([0-9]+\): .+")
"""How the profiler writes a function: ``net.py(12): forward``."""

COPIES = ("aten::copy_",)
"""Operators that move data from one tensor to another: destination and source are their first arguments."""

MKLDNN = {
    "aten::to_mkldnn": ("", "oneDNN's own"),
    "aten::_to_dense": ("oneDNN's own", ""),
    "aten::mkldnn_reorder_conv2d_weight": ("", "oneDNN's own"),
    "aten::mkldnn_reorder_conv3d_weight": ("", "oneDNN's own"),
    "aten::_reorder_linear_weight": ("", "oneDNN's own"),
}
"""Conversions from and to tensors whose format only oneDNN knows."""

CONVERTING = frozenset(
    f"aten::{name}"
    for name in ("contiguous", "clone", "to", "_to_copy", "copy_", "reshape", "flatten", "type_as", "copy")
) | frozenset(("aten::_reshape_copy", "aten::_unsafe_view", "aten::view_copy", "aten::permute_copy"))
"""Operators that do nothing but convert: the outermost of them is the event."""

PER_STEP = "ProfilerStep#"
MODULE = "nn.Module: "
SECONDS = 1e-6  # times of the trace are microseconds


def read(chunks: Iterable[bytes]) -> Log:
    """The log of a trace, from pieces of the file."""
    elements, found = Elements(chunks), list[tuple[Place, Event]]()
    spans, python, called = Spans(), Spans(), list[Place]()
    steps, shapes, convolutions, device, damaged = 0, False, 0, False, 0
    for _, event in elements:
        if not isinstance(event, dict):
            continue
        name, kind = event.get("name"), event.get("cat")
        if kind == "user_annotation" and isinstance(name, str) and name.startswith(PER_STEP):
            steps += 1
        device = device or kind == "kernel"
        if kind not in ("cpu_op", "python_function") or event.get("ph") != "X" or not isinstance(name, str):
            continue
        start, length = _number(event.get("ts")), _number(event.get("dur"))
        if start is None or length is None or length < 0:
            damaged += 1
            continue
        thread = str(event.get("pid")), str(event.get("tid"))
        if kind == "python_function":
            if _is_own(name):
                python.add(thread, name, start, length)
            continue
        place = spans.add(thread, name, start, length)
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        shapes = shapes or "Input Dims" in args
        convolutions += name.startswith("aten::mkldnn_convolution")
        copy = _event(name, args, elements.count) if name in COPIES or name in MKLDNN else None
        if copy is not None:
            found.append((place, copy))
            called.append(python.add(thread, name, start, length))
    problems = list(elements.problems)
    if damaged:
        problems.append(f"{damaged:,} events have no time that makes sense, and were left out")
    notes = []
    if found and not shapes:
        notes.append("no shapes in this trace: profile(..., record_shapes=True) records sizes and strides")
    if convolutions:
        notes.append(
            f"{convolutions} convolutions ran in oneDNN, which converts within them and shows it only in its "
            "own log: ONEDNN_VERBOSE=1"
        )
    if device:
        notes.append("operators are timed on the host, where those of a GPU are only started")
    return Log(
        "pytorch",
        "trace of torch.profiler",
        _events(found, spans, _sources(python, called)),
        spans.total() * SECONDS,
        len(spans.outermost()),
        steps or None,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e18:
        return None
    return float(value)


def _is_own(name: str) -> bool:
    """Whether a function's span is a line of the program, or a module: neither PyTorch nor Python itself."""
    if name.startswith(MODULE):
        return True
    found = _LINE.fullmatch(name)
    if found is None or re.search(r"(?:^|[\\/])(?:torch|site-packages|dist-packages)[\\/]|^<", name):
        return False
    return re.split(r"[\\/]", found["file"])[-1] not in sys.stdlib_module_names


def _sources(python: Spans, called: list[Place]) -> list[str]:
    """For each copy the innermost line of the program that it ran within, or module; empty for unknown."""
    around = python.around(called)
    found = []
    for place in called:
        names = [python.name(one) for one in around[place]]
        lines = [name for name in names if not name.startswith(MODULE) and _LINE.fullmatch(name)]
        modules = [name.removeprefix(MODULE) for name in names if name.startswith(MODULE)]
        found.append((lines or modules or [""])[0])
    return found


def _events(found: list[tuple[Place, Event]], spans: Spans, sources: list[str]) -> tuple[Event, ...]:
    """The copies with the names and times of what was called for them, in the order of time."""
    around = spans.around([place for place, _ in found])
    held: dict[Place, int] = {}  # which event's time a span is
    events: list[Event] = []
    starts: list[float] = []
    enclosing: list[list[Place]] = []
    for (place, event), source in zip(found, sources, strict=True):
        outer, above = place, around[place]
        while above and spans.name(above[0]) in CONVERTING:
            outer, above = above[0], above[1:]
        first = outer not in held
        span = outer if first else place  # a second copy within one call has its own time
        held.setdefault(span, len(events))
        within = spans.name(above[-1]) if above else ""
        consumer = ", ".join(part for part in (f"within {within}" if within else "", source) if part)
        seconds = spans.length(span) * SECONDS if held[span] == len(events) else 0.0
        events.append(replace(event, name=spans.name(outer), seconds=seconds, consumer=consumer))
        starts.append(spans.start(outer))
        enclosing.append(above if first else around[place])
    for event, places in zip(tuple(events), enclosing, strict=True):
        whole = next((held[one] for one in places if one in held), None)
        if whole is not None:  # what it lies within gives its time away: each moment counts once
            events[whole] = replace(events[whole], seconds=max(events[whole].seconds - event.seconds, 0.0))
    order = sorted(range(len(events)), key=starts.__getitem__)
    return tuple(events[k] for k in order)


def _event(name: str, args: dict[str, Any], line: int) -> Event | None:
    """What a copy converts; None where it moves nothing that has a format."""
    dims, strides = _lists(args.get("Input Dims")), _lists(args.get("Input Strides"))
    types = args.get("Input type")
    kinds = [str(kind) for kind in types] if isinstance(types, list) else []
    if name in MKLDNN:
        before, after = MKLDNN[name]
        sizes = dims[0] if dims else None
        kind = kinds[0] if kinds else ""
        return Event("reorder", name, Side(before, kind), Side(after, kind), sizes, 0.0, line=line)
    if len(dims) < 2 or len(kinds) < 2 or dims[0] is None or dims[1] is None:
        unknown = Event("reorder", name, Side(), Side(), None, 0.0, line=line)
        return unknown if not args.get("Input Dims") else None
    if dims[0] != dims[1]:
        return None  # a broadcast
    size = 1
    for extent in dims[0]:
        size *= extent
    if size < 2 and kinds[0] == kinds[1]:
        return None
    if len(strides) >= 2 and strides[0] is not None and strides[1] is not None:
        pairs = zip(dims[1], strides[1], strict=False)
        if any(stride == 0 and extent > 1 for extent, stride in pairs):
            return None
        dst, src = strided(dims[0], strides[0], kinds[0]), strided(dims[1], strides[1], kinds[1])
    else:
        dst, src = tagged("", kinds[0], None), tagged("", kinds[1], None)
    return Event(_operation(src, dst), name, src, dst, dims[0], 0.0, line=line)


def _operation(src: Side, dst: Side) -> str:
    moved = src.format != dst.format
    if src.desc is not None and dst.desc is not None:
        one, two = src.desc.layout, dst.desc.layout
        moved = one is not None and two is not None and not one.same_bytes(two)
    if moved or not src.format:
        return "reorder" if moved or src.dtype == dst.dtype else "convert"
    return "convert" if src.dtype != dst.dtype else "copy"


def _lists(given: Any) -> list[tuple[int, ...] | None]:
    """Sizes or strides of all arguments; None for an argument that is no tensor."""
    found: list[tuple[int, ...] | None] = []
    for one in given if isinstance(given, list) else ():
        whole = isinstance(one, list) and all(type(number) is int for number in one)
        found.append(tuple(one) if whole else None)
    return found
