"""Where Relayout stands, in a table of ``docs/performance.md``: a row for each file of measured figures.

All figures are another contestant's time / Relayout's, so above 1 Relayout is faster: the geometric mean, and
the least with where it is. They are computed from the files that the tables of the other pages are made from,
so that no page contradicts another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import Any

import compiled
import narrowed
from measures import OURS, _means, _read, _spelled, table


def standing() -> str:
    """The table."""
    rows = [*_networks(), *_narrow_networks(), *_modules(), *_training(), *_conversions()]
    return table(["what", "beside", "setting", "mean", "least", "cases", "page"], rows)


def _row(what: str, beside: str, setting: str, ratios: Iterable[tuple[float, str]], page: str) -> list[str]:
    found = list(ratios)
    mean = math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
    least, where = min(found)
    return [what, beside, setting, f"{mean:.2f}", f"{least:.2f} (`{where}`)", str(len(found)), page]


def _networks() -> list[list[str]]:
    """Networks from ONNX files, beside the best of the others."""
    peers = ", ".join(_read("networks.json").get("peers", ()))
    rows = []
    for setting, found in _means():
        mean, least, where, count = found["the best of them"]
        figures = [f"{mean:.2f}", f"{least:.2f} (`{where}`)", str(count)]
        page = "[networks](networks.md#speed-memory-start)"
        rows.append(["networks, f32", f"the best of {peers}", _spelled(setting), *figures, page])
    return rows


def _narrow_networks() -> list[list[str]]:
    """Networks in bf16 and int8, beside the best of the others, OpenVINO's bf16 among them."""
    rows = []
    for dtype, (part, machine) in product(("bf16", "int8"), narrowed.MACHINES.items()):
        found = narrowed.results(dtype, part)
        names = dict.fromkeys(name for one in found for name in one["behind"] if not name.startswith(OURS))
        for threads in dict.fromkeys(one["threads"] for one in found):
            ratios = [
                (narrowed.best(one), one["network"].removesuffix(f" {dtype}"))
                for one in found
                if one["threads"] == threads
            ]
            setting, page = f"{_spelled((1, threads))}, {machine}", "[networks](networks.md#measured)"
            beside = f"the best of {', '.join(names)}"
            rows.append(_row(f"networks, {dtype}", beside, setting, ratios, page))
    return rows


def _modules() -> list[list[str]]:
    """Modules of PyTorch, beside the best of ``channels_last`` and PyTorch's own back end, frozen or not."""
    rows = []
    for machine, measured in compiled.MACHINES.items():
        results = measured.all()
        frozen = ", frozen too" * any(compiled.COMPILED[1] in one["behind"] for one in results)
        beside = f"the best of `channels_last` and PyTorch's own back end{frozen}"
        for batch, threads in sorted({(one["batch"], one["threads"]) for one in results}):
            own = [one for one in results if (one["batch"], one["threads"]) == (batch, threads)]
            ratios = [(ratio, _name(one)) for one in own if (ratio := compiled._best(one)) is not None]
            if ratios:
                setting = f"{_spelled((batch, threads))}, {machine}"
                page = "[torch.compile](torch-compile.md#measured)"
                rows.append(_row("models of PyTorch, f32", beside, setting, ratios, page))
    return rows


def _training() -> list[list[str]]:
    """Steps of training, beside the best of PyTorch's ways."""
    ratios = []
    for one in _read("training.json").get("results", []):
        others = [spread["median"] for name, spread in one["behind"].items() if not name.startswith(OURS)]
        if others:
            ratios.append((min(others), f"{one['network']}, {_spelled((one['batch'], one['threads']))}"))
    page = "[training](training.md#speed)"
    return [_row("steps of training, f32", "the best of PyTorch's ways", "", ratios, page)] if ratios else []


def _conversions() -> list[list[str]]:
    """Conversions of PyTorch's tensors, beside PyTorch's own."""
    rows = []
    for threads in (1, 2):
        own = [
            (one["mean"], one["group"].removeprefix("conversion "))
            for one in _read("torch.json").get("means", ())
            if one["threads"] == threads and one["group"].startswith("conversion")
        ]
        if own:
            setting = f"{threads} thread{'s' * (threads > 1)}"
            page = "[conversions](pytorch.md#how-fast-conversions-are)"
            rows.append(_row("memory formats of tensors", "PyTorch", setting, own, page))
    return rows


def _name(one: dict[str, Any]) -> str:
    return str(one["network"].partition("/")[2])
