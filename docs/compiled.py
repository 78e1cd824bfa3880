"""The tables of ``docs/torch-compile.md``, from what ``relayout bench compile --json`` has written.

A cell of the first table is one network with one batch and one number of threads. Which cells are missing is
said beside the means, since a mean over a part of the networks is one over another list of networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from measures import _read, _settings, _spelled, table

from relayout.bench.modules import COMPILED, CONTESTANTS, EAGER, LAST, NETWORKS, OURS, REPRESENTATIVES

BATCHES, THREADS = (1, 8), (1, 2)
TOLD = 12
"""Names of networks that a sentence lists."""
BEST = "the better of `channels_last` and PyTorch's own back end"


class Results:
    """The results in a file, and the tables that are made of them."""

    def __init__(self, file: str) -> None:
        self._file = file

    def all(self) -> list[dict[str, Any]]:
        """All results, in the order of the list of networks."""
        found = _read(self._file).get("results", [])
        known = {name: k for k, name in enumerate(sorted(NETWORKS))}
        return sorted(found, key=lambda one: (known.get(one["network"], len(known)), one["network"]))

    def facts(self) -> str:
        """What was measured on which machine, how far outputs are apart, and what is missing."""
        results = self.all()
        if not results:
            return "Not measured yet."
        machines = dict.fromkeys(
            ", ".join(f"{key} {value}" for key, value in one["machine"].items()) for one in results
        )
        apart = [(one["difference"], one["network"]) for one in results if one["difference"] is not None]
        largest = max(apart, default=(math.nan, "none measured/none measured"))
        slower = [
            f"{_short(one['network'])} ({_spelled((one['batch'], one['threads']))}: {ratio:.2f})"
            for one in results
            if (ratio := _best(one)) is not None and ratio < 1
        ]
        refused = [
            f"{_short(one['network'])}: {name}" for one in results for name in one["refused"] if name == OURS
        ]
        lines = [
            f"Measured on: {'; '.join(machines)}.",
            f"Outputs differ from those of eager PyTorch by at most {largest[0]:.0e} of their largest value "
            f"({_short(largest[1])}).",
            f"Slower than {BEST}: {', '.join(slower) or 'none of those measured'}.",
            *([f"Relayout could not run: {', '.join(refused)}."] if refused else []),
            *_missing(results),
        ]
        return "\n".join(f"* {line}" for line in lines)

    def means(self) -> str:
        """For each setting the geometric means over all networks, and the least of the last column."""
        rows = []
        results = self.all()
        for setting in sorted(_settings(results), key=lambda setting: setting[::-1]):
            own = [one for one in results if (one["batch"], one["threads"]) == setting]
            ratios = [
                [one["behind"][name]["median"] for one in own if name in one["behind"]]
                for name in (EAGER, LAST, *COMPILED)
            ]
            best = [(ratio, one["network"]) for one in own if (ratio := _best(one)) is not None]
            least = f"{min(best)[0]:.2f} ({_short(min(best)[1])})" if best else "-"
            figures = [_mean(several) for several in (*ratios, [ratio for ratio, _ in best])]
            rows.append([_spelled(setting), str(len(own)), *figures, least])
        head = [
            "",
            "networks",
            "eager",
            "`channels_last`",
            "own back end",
            "frozen",
            "the best but eager",
        ]
        return table([*head, "least of these"], rows)

    def speeds(self) -> str:
        """For each network and setting the time of each way of PyTorch / Relayout's."""
        results = self.all()
        by = {(one["network"], one["batch"], one["threads"]): one for one in results}
        settings = sorted(_settings(results), key=lambda setting: setting[::-1])
        rows = [
            [_short(name), *(_ratios(by.get((name, *setting))) for setting in settings)]
            for name in dict.fromkeys(one["network"] for one in results)
        ]
        return table(["network", *map(_spelled, settings)], rows)

    def compiling(self) -> str:
        """Seconds of first calls: empty caches, and with what was left there."""
        return self._calls("first", "again", ("of it planning and packing, with caches", "compiled"))

    def own_parts(self) -> str:
        """What of these seconds is the back end's own: all but dynamo's tracing and guards."""
        return self._calls("first_own", "again_own")

    def _calls(self, empty: str, warm: str, *more: tuple[str, str]) -> str:
        """A row for each network of which first calls were measured; Relayout's, PyTorch's, and the ratio."""
        rows, ratios = [], {empty: list[float](), warm: list[float]()}
        for one in self.all():
            if not one.get(empty, {}).get(OURS):
                continue
            row = [_short(one["network"])]
            for when, several in ratios.items():
                ours, theirs = (one.get(when, {}).get(name) for name in (OURS, COMPILED[0]))
                if ours and theirs:
                    several.append(theirs / ours)
                row += [_seconds(ours), _seconds(theirs), f"{theirs / ours:.1f}" if ours and theirs else "-"]
            rows.append([*row, *(_seconds(one[field]) for _, field in more)])
        if not rows:
            return "Not measured yet."
        means = [cell for several in ratios.values() for cell in ("", "", _mean(several))]
        rows.append(["geometric mean", *means, *("" for _ in more)])
        head = [
            text.format(who)
            for text in ("empty caches: {}", "with caches: {}")
            for who in ("Relayout", "own back end", "ratio")
        ]
        return table(["network", *head, *(heading for heading, _ in more)], rows)


def _short(network: str) -> str:
    return f"`{network.partition('/')[2]}`"


def _best(one: dict[str, Any]) -> float | None:
    return min((spread["median"] for name, spread in one["behind"].items() if name != EAGER), default=None)


def _ratios(one: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    found = [one["behind"].get(name) for name in CONTESTANTS[1:]]
    texts = [
        "-" if spread is None else f"{spread['median']:.2f}" + "~" * (spread["high"] > 1.25 * spread["low"])
        for spread in found
    ]
    return " / ".join(texts) + " \\*" * one["disturbed"]


def _mean(ratios: Sequence[float]) -> str:
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}" if ratios else "-"


def _seconds(seconds: float | None) -> str:
    return f"{seconds:.1f}" if seconds else "-"


def _missing(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Which cells there are not, and of which some contestants are missing."""
    have = {(one["network"], one["batch"], one["threads"]): one for one in results}
    wanted = [key for key in product(NETWORKS, BATCHES, THREADS) if key not in have]
    if not wanted:
        yield f"All {len(have)} cells were measured."
    else:
        whole = len(NETWORKS) * len(BATCHES) * len(THREADS)
        yield f"Missing: {len(wanted)} of {whole} cells."
        for batch, threads in product(BATCHES, THREADS):
            names = [name for name, *setting in wanted if setting == [batch, threads]]
            front = [name for name in REPRESENTATIVES if name in names]
            told = ", ".join(map(_short, front[:TOLD])) + ", ..." * (len(front) > TOLD)
            among = f", among one of each family {told}" if front else ", one of each family is there"
            if names:
                count = f"{len(names)} of {len(NETWORKS)} networks missing"
                yield f"{_spelled((batch, threads))}: {count}{among}."
    absent = [name for name in CONTESTANTS if all(name not in one["seconds"] for one in results)]
    if absent:
        yield f"Without {', '.join(absent)}."
    partly = [
        f"{_short(one['network'])} ({_spelled((one['batch'], one['threads']))}): {', '.join(lacking)}"
        for one in results
        if (lacking := [name for name in CONTESTANTS if name not in (*one["seconds"], *absent)])
    ]
    if partly:
        told = "; ".join(partly[:TOLD]) + "; ..." * (len(partly) > TOLD)
        yield f"Without some contestant: {told}."


FAMILIES = Results("compile.json")
"""One network of each family, all contestants, two cores, nothing beside."""
ALL = Results("compile-all.json")
"""As many of all networks as were measured on AVX2, two at a time, each on a core of its own."""
XEON = Results("compile-xeon.json")
"""One network of each family on an Intel Xeon with AVX-512 and VNNI, on one core, others beside it."""
MACHINES = {"Zen 4": FAMILIES, "Zen 3": ALL, "Xeon (VNNI)": XEON}
"""By the names that ``docs/performance.md`` gives to machines."""
