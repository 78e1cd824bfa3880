"""Performance counters of OpenVINO: a row for each layer, with a type and two times, but no sizes.

=========================================  ================================================================
what it comes from                         what it looks like
=========================================  ================================================================
``benchmark_app -report_type               CSV of ``layerName;execStatus;layerType;execType;realTime (ms)``
average_counters``                         with a line ``Total``; ``detailed_counters`` has one such table for
                                           each infer request
``-report_type ... -json_stats``           the same as JSON: ``nodes``, ``total_real_time``
``benchmark_app -pc``                      the same on standard output, names cut to 20 characters
``request.profiling_info`` as JSON         objects with ``node_name``, ``node_type``, ``real_time``; times are
                                           numbers of microseconds, or text as ``timedelta`` prints it
=========================================  ================================================================

Sizes are in none of them; the execution graph has them. Formats are only in the names of reorders that the
CPU plugin inserted (:mod:`relayout.logs.openvino_names`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from relayout.logs.events import Event, Log, Side
from relayout.logs.openvino_names import KINDS, ends
from relayout.logs.streams import Elements

__all__ = ["HEADER", "PrintedReader", "read_csv", "read_json"]

HEADER = re.compile(r"layerName[;,]execStatus[;,]layerType[;,]execType[;,]realTime")
_PRINTED = re.compile(
    r"(?P<name>\S.*?)\s+(?:Status\.)?(?P<status>[A-Z_]+)\s+layerType: (?P<type>\S*)\s+"
    r"(?:realTime: (?P<micro>[0-9.]+)|execType: \S*\s+realTime \(ms\): (?P<milli>[0-9.]+))"
)
_PRINTED_TOTAL = re.compile(r"Total time:\s+([0-9.]+) (milliseconds|microseconds)")
_CLOCK = re.compile(r"(?:([0-9]{1,6}) days?, )?([0-9]{1,6}):([0-9]{2}):([0-9]{2}(?:\.[0-9]{1,9})?)")

NO_SIZES = "performance counters have no sizes: the execution graph (get_runtime_model) has them"
CUT_NAMES = "benchmark_app cuts names to 20 characters; its reports (-report_type) have whole ones"


class _Row(NamedTuple):
    """A layer and its time."""

    name: str
    type: str
    ran: bool
    seconds: float
    line: int


def _log(rows: Iterable[_Row], tables: int, stated: float | None, problems: list[str], cut: bool) -> Log:
    events, seconds, count = [], 0.0, 0
    for row in rows:
        if not row.ran:
            continue
        seconds += row.seconds
        count += 1
        kind = KINDS.get(row.type.lower())
        if kind:
            events.append(_event(row, kind))
    notes = [NO_SIZES, *([CUT_NAMES] if cut else [])]
    return Log(
        "openvino_counters",
        "performance counters of OpenVINO",
        tuple(events),
        seconds,
        count,
        tables or None,
        stated,
        "Total" if stated is not None else "",
        tuple(problems),
        tuple(notes),
    )


def _event(row: _Row, kind: str) -> Event:
    named = ends(row.name) if kind == "reorder" else None
    if named is None:
        return Event(kind, row.name, Side(), Side(), None, row.seconds, line=row.line)
    src, dst = Side(named.src), Side(named.dst)
    return Event(kind, row.name, src, dst, None, row.seconds, named.producer, named.consumer, line=row.line)


def _milliseconds(text: str) -> float | None:
    try:
        value = float(text.strip().replace(",", "."))
    except ValueError:
        return None
    return value * 1e-3 if 0 <= value < 1e15 else None


def read_csv(lines: Iterable[tuple[int, str]]) -> Log:
    """The log of a CSV report, from its lines."""
    rows: list[_Row] = []
    problems: list[str] = []
    tables, stated, separator, ended = 0, None, ";", True
    unread = 0
    for number, line in lines:
        header = HEADER.search(line)
        if header is not None:
            separator, ended = line[header.start() + len("layerName")], False
            tables += 1
            continue
        try:
            cells = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:
            unread += 1
            continue
        if not cells or not any(cell.strip() for cell in cells):
            continue
        if cells[0] in ("Total", "total"):
            ended = True
            one = _milliseconds(cells[4]) if len(cells) > 4 else None
            stated = (stated or 0.0) + one if one is not None else stated
        elif found := _PRINTED_TOTAL.search(cells[0]):
            ended = True
            stated = float(found[1]) * (1e-3 if found[2] == "milliseconds" else 1e-6)
        elif tables:
            seconds = _milliseconds(cells[4]) if len(cells) > 4 else None
            if seconds is None:
                unread += "Total" not in cells[0] and "proportion" not in cells[0]
                continue
            ran = cells[1].rpartition(".")[2] == "EXECUTED"
            rows.append(_Row(cells[0], cells[2], ran, seconds, number))
    if unread:
        problems.append(f"{unread} lines are cut or damaged, and were left out")
    if tables and not ended:
        problems.append("it ends without its line of totals")
    return _log(rows, tables, stated, problems, False)


class PrintedReader:
    """What ``benchmark_app -pc`` prints, line after line, amid its other output."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._stated: float | None = None
        self._tables = 0

    @property
    def found(self) -> bool:
        """Whether there was a row."""
        return bool(self._rows)

    def feed(self, number: int, text: str) -> None:
        """Take a line."""
        if "layerType:" in text:
            found = _PRINTED.search(text)
            if found is not None:
                scale, digits = (1e-6, found["micro"]) if found["micro"] else (1e-3, found["milli"])
                try:
                    seconds = float(digits) * scale
                except ValueError:
                    return
                ran = found["status"] == "EXECUTED"
                self._rows.append(_Row(found["name"], found["type"], ran, seconds, number))
        elif self._rows and "Total time:" in text and (total := _PRINTED_TOTAL.search(text)):
            try:
                seconds = float(total[1]) * (1e-3 if total[2] == "milliseconds" else 1e-6)
            except ValueError:
                return
            self._stated = (self._stated or 0.0) + seconds
            self._tables += 1

    def log(self) -> Log:
        """All that was read."""
        problems = [] if self._tables else ["it ends without its line of totals"]
        return _log(self._rows, self._tables, self._stated, problems, True)


def read_json(chunks: Iterable[bytes]) -> Log:
    """The log of a JSON document: ``profiling_info`` of a request, or a report of ``benchmark_app``."""
    elements = Elements(chunks)
    rows: list[_Row] = []
    stated: float | None = None
    tables = 0
    for key, value in elements:
        if isinstance(value, list):  # several requests
            tables += 1
            rows += _nodes(value, 1e-6, elements.count)
        elif isinstance(value, dict) and "nodes" in value:
            tables += 1
            rows += _nodes(value["nodes"], 1e-3, elements.count)
            total = _milliseconds(str(value.get("total_real_time", "")))
            stated = (stated or 0.0) + total if total is not None else stated
        elif isinstance(value, dict):
            rows += _nodes([value], 1e-3 if key == "nodes" else 1e-6, elements.count)
    return _log(rows, tables or bool(rows), stated, elements.problems, False)


def _nodes(values: Any, unit: float, line: int) -> Iterator[_Row]:
    for value in values if isinstance(values, list) else ():
        if not isinstance(value, dict):
            continue
        name = next((value[key] for key in ("node_name", "name", "layerName") if key in value), None)
        kind = next((value[key] for key in ("node_type", "layerType") if key in value), None)
        seconds = _time(value.get("real_time", value.get("realTime")), unit)
        if isinstance(name, str) and isinstance(kind, str) and seconds is not None:
            ran = str(value.get("status", "EXECUTED")).rpartition(".")[2] == "EXECUTED"
            yield _Row(name, kind, ran, seconds, line)


def _time(value: Any, unit: float) -> float | None:
    """A number in some unit, or what a ``timedelta`` prints."""
    if isinstance(value, str):
        clock = _CLOCK.fullmatch(value.strip())
        if clock is not None:
            days, hours, minutes = (int(clock[k] or 0) for k in (1, 2, 3))
            return ((days * 24 + hours) * 60 + minutes) * 60 + float(clock[4])
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        return None
    return float(value) * unit
