"""The tables of what is computed in narrow types: networks in bf16 and int8, and layers beside ``memcpy``.

Each file is what one command writes::

    relayout bench networks --dtype int8 --dtype bf16 --json docs/measured/networks-narrow.json
    relayout bench narrow --threads 1,2 --json docs/measured/narrow.json

In the tables of networks a row is a network, a column another contestant: its time / Relayout's. Relayout in
f32 is a column as well, but none of those that :func:`best` compares with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from measures import OURS, _read, table

FILE = "networks-narrow.json"


def results(dtype: str) -> list[dict[str, Any]]:
    """What was measured in a data type, in the order of threads."""
    found = [one for one in _read(FILE).get("results", ()) if one["network"].endswith(f" {dtype}")]
    return sorted(found, key=lambda one: (one["threads"], one["batch"]))


def networks(dtype: str) -> str:
    """For each number of threads the networks, and the geometric means."""
    rows = []
    found = results(dtype)
    others = list(dict.fromkeys(name for one in found for name in one["behind"]))
    for threads in dict.fromkeys(one["threads"] for one in found):
        own = [one for one in found if one["threads"] == threads]
        for one in own:
            cells = [_spelled(one["behind"].get(name), one["disturbed"]) for name in others]
            name = one["network"].removesuffix(f" {dtype}")
            ms = 1e3 * one["seconds"][OURS]["median"]
            rows.append([f"`{name}`", str(threads), f"{ms:.3g}", *cells, f"{best(one):.2f}"])
        means = [
            _mean(one["behind"][name]["median"] for one in own if name in one["behind"]) for name in others
        ]
        figures = [f"{mean:.2f}" for mean in (*means, _mean(map(best, own)))]
        rows.append(["geometric mean", str(threads), "", *figures])
    return table(["network", "threads", "ms", *others, "the best of the others"], rows)


def best(one: dict[str, Any]) -> float:
    """The time of the fastest other contestant / Relayout's."""
    return min(spread["median"] for name, spread in one["behind"].items() if not name.startswith(OURS))


def settings() -> str:
    """The machine, and the versions."""
    found = _read(FILE)
    if not found:
        return ""
    machine = found["machine"]
    peers = ", ".join(f"{name} {version}" for name, version in found["peers"].items())
    return f"Measured on {machine['processor']}, {machine['cores']} cores; {peers}."


def passes() -> str:
    """For each layer and number of threads its time, as a multiple of copying as many bytes."""
    found = _read("narrow.json").get("figures", [])
    threads = sorted({one["threads"] for one in found})
    by = {(one["layer"], one["threads"]): one for one in found}
    rows = []
    for name in dict.fromkeys(one["layer"] for one in found):
        own = [by.get((name, many)) for many in threads]
        rows.append([name, *(f"{one['ratios'][OURS]['median']:.2f}" if one else "-" for one in own)])
    return table(["layer", *(f"{many} thread{'s' * (many > 1)}" for many in threads)], rows)


def _spelled(spread: dict[str, float] | None, disturbed: bool) -> str:
    return "-" if spread is None else f"{spread['median']:.2f}" + " \\*" * disturbed


def _mean(ratios: Iterable[float]) -> float:
    given = list(ratios)
    return math.exp(sum(map(math.log, given)) / len(given))
