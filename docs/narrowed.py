"""The tables of what is computed in narrow types: networks in bf16 and int8, and layers beside ``memcpy``.

Each file is what one command writes::

    relayout bench networks --dtype int8 --dtype bf16 --json docs/measured/networks-narrow-zen4.json
    relayout bench narrow --threads 1,2 --json docs/measured/narrow-zen4.json
    relayout bench few-bits --json docs/measured/few-bits-zen4.json

and likewise for each of :data:`MACHINES`, by the names that ``docs/performance.md`` has for them. In the
tables of networks a row is a network, a column another contestant: its time / Relayout's. Relayout in f32 is
a column as well, but none of those that :func:`best` compares with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from measures import OURS, _read, table

MACHINES = {"zen5": "Zen 5", "zen4": "Zen 4"}
"""The machines, newest first: by the part of file names, what they are called."""


def results(dtype: str, machine: str) -> list[dict[str, Any]]:
    """What was measured in a data type on a machine, in the order of threads."""
    measured = _read(f"networks-narrow-{machine}.json").get("results", ())
    found = [one for one in measured if one["network"].endswith(f" {dtype}")]
    return sorted(found, key=lambda one: (one["threads"], one["batch"]))


def networks(dtype: str, machine: str) -> str:
    """For each number of threads the networks, and the geometric means."""
    rows = []
    found = results(dtype, machine)
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


def settings(machine: str) -> str:
    """The machine, and the versions."""
    found = _read(f"networks-narrow-{machine}.json")
    if not found:
        return ""
    facts = found["machine"]
    peers = ", ".join(f"{name} {version}" for name, version in found["peers"].items())
    return f"Measured on {facts['processor']}, {facts['cores']} cores; {peers}."


def passes(machine: str) -> str:
    """For each layer and number of threads its time, as a multiple of copying as many bytes."""
    found = _read(f"narrow-{machine}.json").get("figures", [])
    threads = sorted({one["threads"] for one in found})
    by = {(one["layer"], one["threads"]): one for one in found}
    rows = []
    for name in dict.fromkeys(one["layer"] for one in found):
        own = [by.get((name, many)) for many in threads]
        rows.append([name, *(f"{one['ratios'][OURS]['median']:.2f}" if one else "-" for one in own)])
    return table(["layer", *(f"{many} thread{'s' * (many > 1)}" for many in threads)], rows)


def few_bits(machine: str) -> str:
    """For each product by packed weights its time, its speed beside that of reading, and others' times."""
    found = _read(f"few-bits-{machine}.json").get("figures", [])
    peers = dict.fromkeys(name for one in found for name in one["seconds"] if name not in (OURS, "reading"))
    rows = []
    for one in found:
        medians = {name: spread["median"] for name, spread in one["seconds"].items()}
        ours = medians[OURS]
        row = [one["product"], str(one["threads"]), f"{1e3 * ours:.2f} ms"]
        row.append(f"{one['bytes'] / ours / 1e9:.1f}")
        row.append(f"{1 / one['ratios'][OURS]['median']:.2f}")
        rows.append([*row, *(f"{medians[name] / ours:.2f}" if name in medians else "-" for name in peers)])
    heads = "product", "threads", "time", "GB/s", "speed / that of reading"
    return table([*heads, *(f"{name} / {OURS}" for name in peers)], rows)


TABLES: dict[str, Callable[[], str]] = {
    f"{name}-{machine}": partial(made, machine)
    for machine in MACHINES
    for name, made in {
        "networks-narrow-machine": settings,
        "networks-bytes": partial(networks, "int8"),
        "networks-bfloat": partial(networks, "bf16"),
        "few-bits": few_bits,
        "narrow": passes,
    }.items()
}
"""All of them by their names."""


def _spelled(spread: dict[str, float] | None, disturbed: bool) -> str:
    return "-" if spread is None else f"{spread['median']:.2f}" + " \\*" * disturbed


def _mean(ratios: Iterable[float]) -> float:
    given = list(ratios)
    return math.exp(sum(map(math.log, given)) / len(given))
