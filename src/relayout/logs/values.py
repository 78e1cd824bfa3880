"""An explanation as plain data, and its numbers as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayout.errors import counted, spelled_bytes, spelled_seconds
from relayout.logs.events import Event, Log, Side
from relayout.logs.judging import RoundTrip, Row

__all__ = ["HEADS", "cells", "document", "summary"]

MOST_EVENTS = 1000  # of a row that are written out one by one
MOST_TRIPS = 1000

HEADS = (
    *("#", "conversion", "from", "to", "shape", "times", "time", "each", "share", "bytes", "same bytes"),
    *("memcpy", "Relayout", "producer", "consumer"),
)
"""The columns of a table; ``time`` and ``share`` are of all, ``each`` and what follows of one."""


def shown_side(side: Side) -> str:
    """Data type and format: ``f32:aBcd16b``."""
    return f"{side.dtype}:{side}" if side.dtype else str(side)


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The heads and the cells of a table; columns that are empty throughout are left out."""
    table = [
        [
            str(k + 1),
            row.operation + (" of weights" if row.weights else ""),
            shown_side(row.src),
            shown_side(row.dst),
            "x".join(map(str, row.dims)) if row.dims else "" if row.dims is None else "scalar",
            str(row.count),
            spelled_seconds(row.seconds),
            spelled_seconds(row.seconds / row.count) if any(one.count > 1 for one in rows) else "",
            f"{row.share:.1%}",
            "" if row.nbytes is None else spelled_bytes(row.nbytes),
            {True: "yes", False: "no", None: ""}[row.same_bytes],
            "" if row.memcpy_seconds is None else spelled_seconds(row.memcpy_seconds),
            "" if row.relayout_seconds is None else spelled_seconds(row.relayout_seconds),
            _several(row.producers),
            _several(row.consumers or (() if row.dims is not None else row.names)),
        ]
        for k, row in enumerate(rows)
    ]
    kept = [k for k in range(len(HEADS)) if any(line[k] for line in table)]
    return [HEADS[k] for k in kept], [[line[k] for k in kept] for line in table]


def _several(names: Sequence[str]) -> str:
    """The first of several names, and how many more there are."""
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "") if names else ""


def summary(log: Log, rows: Sequence[Row], trips: Sequence[RoundTrip]) -> list[str]:
    """The whole log in a few lines."""
    spent = sum(row.seconds for row in rows)
    share = spent / log.seconds if log.seconds else 0.0
    found, all_of_it = counted(_count(rows), "conversion"), counted(log.operations, "operation")
    lines = [
        f"{found} in {all_of_it}: {spelled_seconds(spent)} of {spelled_seconds(log.seconds)} ({share:.1%})"
    ]
    if log.stated is not None:
        lines.append(f"{log.stated_as} in the log: {spelled_seconds(log.stated)}")
    if log.calls is not None and log.calls > 1:
        lines.append(("about " if log.kind == "onednn" else "") + f"{log.calls} calls")
    packed = [row for row in rows if row.weights]
    if packed:
        lines.append(f"weights are packed {counted(_count(packed), 'time')}: {_time(packed)}")
    if trips:
        seconds = sum(trip.seconds for trip in trips)
        lines.append(f"{counted(len(trips), 'round trip')}: {spelled_seconds(seconds)}")
    needless = [row for row in rows if row.same_bytes]
    if needless:
        times = counted(_count(needless), "conversion")
        lines.append(f"{times} between the same bytes: {_time(needless)}")
    return lines


def _count(rows: Sequence[Row]) -> int:
    return sum(row.count for row in rows)


def _time(rows: Sequence[Row]) -> str:
    return spelled_seconds(sum(row.seconds for row in rows))


def _side(side: Side) -> dict[str, Any]:
    desc = None if side.desc is None else str(side.desc)
    return {"format": side.format, "dtype": side.dtype, "descriptor": desc}


def _event(event: Event) -> dict[str, Any]:
    return {
        "name": event.name,
        "seconds": event.seconds,
        "producer": event.producer,
        "consumer": event.consumer,
        "line": event.line,
    }


def document(log: Log, rows: Sequence[Row], trips: Sequence[RoundTrip], top: int | None) -> dict[str, Any]:
    """An explanation as values of dicts, lists, text and numbers."""
    seconds = sum(row.seconds for row in rows)
    return {
        "kind": log.kind,
        "title": log.title,
        "seconds": log.seconds,
        "operations": log.operations,
        "calls": log.calls,
        "stated_seconds": log.stated,
        "stated_as": log.stated_as,
        "complete": not log.problems,
        "problems": list(log.problems),
        "notes": list(log.notes),
        "conversions": sum(row.count for row in rows),
        "conversion_seconds": seconds,
        "conversion_share": seconds / log.seconds if log.seconds else 0.0,
        "rows": [
            {
                "operation": row.operation,
                "weights": row.weights,
                "src": _side(row.src),
                "dst": _side(row.dst),
                "dims": None if row.dims is None else list(row.dims),
                "bytes": row.nbytes,
                "count": row.count,
                "seconds": row.seconds,
                "share": row.share,
                "same_bytes": row.same_bytes,
                "in_each_call": row.in_each_call,
                "uses": row.uses,
                "in_round_trips": row.returning,
                "memcpy_seconds": row.memcpy_seconds,
                "relayout_seconds": row.relayout_seconds,
                "advice": row.advice,
                "events": [_event(event) for event in row.events[:MOST_EVENTS]],
            }
            for row in rows[:top]
        ],
        "round_trips": [
            {
                "from": str(trip.out.src),
                "by": str(trip.out.dst),
                "dims": list(trip.out.dims or ()),
                "seconds": trip.seconds,
                "lines": [trip.out.line, trip.back.line],
            }
            for trip in trips[:MOST_TRIPS]
        ],
    }
