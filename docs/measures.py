"""The tables of what was measured: from the files that ``relayout bench`` has written.

Of primitives only the sums over the layers of a network are kept, without each layer's figures::

    relayout bench primitives --json primitives.json
    python docs/measures.py primitives.json          write docs/measured/primitives.json

Networks that a run left out keep their figures, if these are of the same machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relayout.bench.zoo.names import CENSUS, MORE

MEASURED = Path(__file__).parent / "measured"
OURS, YARDSTICK = "Relayout", "ONNX Runtime"
FORMATS = ("nChw16c", "nChw8c", "nhwc", "NCHW32", "NCHW4", "CHWN4", "nchw")
WHOLE = "ResNet-50 forward"
GRADIENTS = tuple(
    f"{network} {what}, batch 8"
    for network in ("ResNet-50", "ResNeXt-101", "MobileNetV2")
    for what in ("data", "weights")
)
OUTSIDE = ("not exported", "no reference", "not installed")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; where there are no rows, that nothing was measured."""
    if not rows:
        return "Not measured yet."
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _read(name: str) -> dict[str, Any]:
    path = MEASURED / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _settings(results: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    return list(dict.fromkeys((one["batch"], one["threads"]) for one in results))


def _spelled(setting: tuple[int, int]) -> str:
    batch, threads = setting
    return f"batch {batch}, {threads} thread{'s' * (threads > 1)}"


def speeds() -> str:
    """For each network and setting the time of each other contestant / Relayout's."""
    found = _read("networks.json")
    results = found.get("results", [])
    by = {(one["network"], one["batch"], one["threads"]): one for one in results}
    settings = _settings(results)
    rows = []
    for name in dict.fromkeys(one["network"] for one in results):
        row = [f"`{name}`"]
        for setting in settings:
            one = by.get((name, *setting))
            row.append(_ratios(one, found["peers"]) if one else "")
        some = next(one for one in results if one["network"] == name)
        rows.append([*row, str(some["conversions"]), str(some["defined"])])
    return table(["network", *map(_spelled, settings), "conversions", "steps in NumPy"], rows)


def _ratios(one: dict[str, Any], peers: dict[str, Any]) -> str:
    texts = []
    for name in peers:
        spread = one["behind"].get(name)
        if spread is None:
            texts.append("-")
        else:
            wavers = spread["high"] > 1.25 * spread["low"]
            texts.append(f"{spread['median']:.2f}" + ("~" if wavers else ""))
    return " / ".join(texts) + (" \\*" if one["disturbed"] else "")


def means() -> str:
    """Geometric means over all networks, and the least."""
    rows = [
        [_spelled(setting), name, f"{mean:.2f}", f"{least:.2f}", f"`{where}`", str(count)]
        for setting, found in _means()
        for name, (mean, least, where, count) in found.items()
    ]
    return table(["", "other", "geometric mean", "least", "where", "networks"], rows)


def short_means() -> str:
    """Geometric means over all networks, the least in brackets: a row for each setting, as in the README."""
    names = [*_read("networks.json").get("peers", ()), "the best of them"]
    rows = []
    for setting, found in _means():
        cells = [f"{found[name][0]:.2f} ({found[name][1]:.2f})" if name in found else "-" for name in names]
        rows.append([_spelled(setting), *cells, str(max(count for *_, count in found.values()))])
    return table(["", *names, "networks"], rows)


def _means() -> list[tuple[tuple[int, int], dict[str, tuple[float, float, str, int]]]]:
    """For each setting what each contestant's time / Relayout's is: mean, least, where, of how many."""
    from relayout.bench.measure import Spread
    from relayout.bench.models import Result
    from relayout.bench.models import means as of

    results = _read("networks.json").get("results", [])
    found = []
    for setting in _settings(results):
        own = [
            Result(
                one["network"],
                one["threads"],
                one["batch"],
                behind={name: Spread(**spread) for name, spread in one["behind"].items()},
            )
            for one in results
            if (one["batch"], one["threads"]) == setting
        ]
        found.append((setting, of(own)))
    return found


def costs() -> str:
    """Memory, and the time to the first result, of fresh processes."""
    found = _read("networks.json")
    results = found.get("results", [])
    settings = _settings(results)
    setting = settings[0] if settings else None
    names = [
        OURS,
        "Relayout, saved",
        *(name for name in found.get("peers", ()) if any(name in one["peak"] for one in results)),
    ]
    rows = []
    for one in results:
        if (one["batch"], one["threads"]) == setting:
            memory = [f"{one['peak'][name] / 1e6:.0f}" if name in one["peak"] else "-" for name in names]
            start = [f"{one['start'][name]:.2f}" if name in one["start"] else "-" for name in names]
            rows.append([f"`{one['network']}`", *memory, *start])
    head = ["network", *(f"{name}, MB" for name in names), *(f"{name}, s" for name in names)]
    return table(head, rows)


def steps() -> str:
    """For each network the seconds of a step of training, others / ours, and memory."""
    results = _read("training.json").get("results", [])
    names = list(dict.fromkeys(name for one in results for name in one["behind"]))
    rows = []
    for one in results:
        behind = [one["behind"].get(name) for name in names]
        memory = [one["peak"].get(name) for name in (OURS, "PyTorch")]
        rows.append(
            [
                f"`{one['network']}`, {_spelled((one['batch'], one['threads']))}",
                f"{one['seconds'][OURS]['median']:.2f}" + " \\*" * one["disturbed"],
                *("-" if spread is None else f"{spread['median']:.2f}" for spread in behind),
                " / ".join("-" if size is None else f"{size / 1e6:.0f}" for size in memory),
            ]
        )
    return table(["", "seconds", *names, "MB, and PyTorch's"], rows)


def conversions() -> str:
    """For each kind of conversion PyTorch's time / ours: geometric mean, and the least of the large ones."""
    found = _read("torch.json").get("means", ())
    rows = []
    for group, other in dict.fromkeys((one["group"], one["other"]) for one in found):
        own = {one["threads"]: one for one in found if (one["group"], one["other"]) == (group, other)}
        figures = [f"{own[n]['mean']:.1f}" if n in own else "-" for n in (1, 2)]
        least = [f"{own[n]['least']:.1f}" if n in own else "-" for n in (1, 2)]
        rows.append([group, other, *figures, *least, str(max(one["cases"] for one in own.values()))])
    head = ["", "beside", "1 thread", "2 threads", "least, 1 thread", "least, 2 threads", "cases"]
    return table(head, rows)


def conversions_machine() -> str:
    """What the conversions were measured on."""
    facts = _read("torch.json").get("machine", {})
    return ", ".join(f"{key} {value}" for key, value in facts.items()) + "." if facts else "Not measured yet."


def machine() -> str:
    """What the figures were measured on."""
    found = _read("networks.json")
    if not found:
        return "Not measured yet."
    return f"{_facts(found)}."


def census() -> str:
    """For each family and way in: how many networks agree, and which do not."""
    outcomes = _read("census.json").get("outcomes", [])
    ways = list(dict.fromkeys(one["way"] for one in outcomes))
    rows = []
    for way in ways:
        own = [one for one in outcomes if one["way"] == way]
        valid = [one for one in own if one["status"] not in OUTSIDE]
        right = [one for one in valid if one["status"] == "agrees"]
        others = [f"`{one['name']}` ({one['status']})" for one in valid if one["status"] != "agrees"]
        untried = len(CENSUS) + len(MORE) - len(own)
        counts = f"{len(right)} of {len(valid)}", str(len(own) - len(valid)), str(untried)
        rows.append([way, *counts, ", ".join(others)])
    return table(["way in", "agree", "others could not", "not tried", "do not agree"], rows)


def shares() -> dict[tuple[str, int], dict[str, float]]:
    """For each network and number of threads everybody's share of the processor's peak."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for one in _read("primitives.json").get("sums", ()):
        found.setdefault((one["group"], one["threads"]), {})[one["contestant"]] = one["share_of_peak"]
    return found


def in_formats() -> str:
    """For each network the time in each format / in the best one, on one thread."""
    rows = []
    for (group, threads), named in shares().items():
        own = [named.get(f"{OURS} {name}") for name in FORMATS]
        if threads == 1 and all(own) and not _is_gradient(group):
            best = max(filter(None, (*own, named[OURS])))
            rows.append([group, *(f"{best / share:.2f}" for share in own if share)])
    return table(["network", *(f"`{name}`" for name in FORMATS)], rows)


def layers() -> str:
    """For each network our share of the peak, and the times of others / ours."""
    return _by_threads([g for g in _groups() if not g.startswith(WHOLE) and not _is_gradient(g)], share=True)


def gradients() -> str:
    """The same of gradients of convolutions, and the time in channels-last / that in blocks."""
    found = [group for group in _groups() if _is_gradient(group)]
    return _by_threads(list(dict.fromkeys((*GRADIENTS, *found))), share=True, formats=("nhwc", "nChw16c"))


def _is_gradient(group: str) -> bool:
    return group.partition(",")[0].endswith((" data", " weights"))


def whole() -> str:
    """The same of ResNet-50 as a whole, without the share."""
    return _by_threads([g for g in _groups() if g.startswith(WHOLE)], share=False)


def in_right_formats() -> str:
    """For each type and format the time of one convolution, and how many times the best it is."""
    found = _read("formats.json").get("figures", [])
    taken = [one for one in found if one["seconds"] is not None]
    best = {name: min(o["seconds"]["median"] for o in taken if o["type"] == name) for name in _types(taken)}
    rows = []
    for one in found:
        figure = ["no kernel", ""]
        if one["seconds"] is not None:
            median = one["seconds"]["median"]
            wavers = one["seconds"]["high"] > 1.25 * one["seconds"]["low"]
            figure = [f"{1e3 * median:.2f} ms", f"{median / best[one['type']]:.2f}" + "~" * wavers]
        weights = one["weights"]
        if weights == "any" and one["how"].startswith("weights "):
            weights = f"`any`: `{one['how'].removeprefix('weights ').partition(';')[0]}`"
        else:
            weights = f"`{weights}`"
        rows.append([one["type"], f"`{one['source']}`", weights, *figure])
    return table(["type", "source", "weights", "time", "times the best"], rows)


def _types(found: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["type"] for one in found))


def formats_measured_on() -> str:
    """What the formats were measured on."""
    found = _read("formats.json")
    if not found:
        return "Not measured yet."
    facts = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    return f"{facts}; threads {found['threads']}."


def measured_on() -> str:
    """What the layers were measured on."""
    found = _read("primitives.json")
    return f"{_facts(found)}." if found.get("machine") else "Not measured yet."


def _groups() -> list[str]:
    return list(dict.fromkeys(group for group, _ in shares()))


def _by_threads(groups: Sequence[str], share: bool, formats: tuple[str, ...] = ()) -> str:
    """A row for each group, cells with a figure for each number of threads.

    Of two formats there is a column with our time in the one / in the other.
    """
    found = _read("primitives.json").get("sums", ())
    behind = {(one["group"], one["contestant"], one["threads"]): one["behind"] for one in found}
    of_peak = shares()
    threads = sorted({number for _, number in of_peak})
    names = [n for n in dict.fromkeys(one["contestant"] for one in found) if not n.startswith(OURS)]
    names = [n for n in names if any((group, n, number) in behind for group in groups for number in threads)]
    rows = []
    for group in groups:
        row = [group]
        if share:
            row.append(" / ".join(_share(of_peak.get((group, number), {}).get(OURS)) for number in threads))
        if formats:
            both = [
                [of_peak.get((group, number), {}).get(f"{OURS} {name}") for name in formats]
                for number in threads
            ]
            row.append(" / ".join(f"{two / one:.2f}" if one and two else "-" for one, two in both))
        for name in names:
            figures = [behind.get((group, name, number)) for number in threads]
            row.append(" / ".join("-" if each is None else f"{each:.2f}" for each in figures))
        rows.append(row)
    own = [
        *["Relayout: share of the peak"] * share,
        *[" / ".join(f"`{name}`" for name in formats)] * bool(formats),
    ]
    return table(["", *own, *names], rows)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _facts(found: dict[str, Any]) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    peers = ", ".join(f"{name} {version or '(not measured)'}" for name, version in found["peers"].items())
    return f"{facts}; {peers}"


def keep(path: str) -> None:
    """Keep the sums of what ``relayout bench primitives --json`` has written."""
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    del found["results"]
    before, new = _read("primitives.json"), {one["group"] for one in found["sums"]}
    if before.get("machine", {}).get("processor") in (None, found["machine"].get("processor")):
        found["sums"] += [one for one in before.get("sums", ()) if one["group"] not in new]
    sums = ",\n".join(map(json.dumps, found.pop("sums")))
    text = f'{json.dumps(found)[:-1]},\n"sums": [\n{sums}\n]}}\n'
    (MEASURED / "primitives.json").write_text(text, encoding="utf-8")


def _operator_tables() -> list[dict[str, Any]]:
    """What ``relayout audit --operators`` has written, the newest version of PyTorch first."""
    found = [_read(path.name) for path in MEASURED.glob("torch_operators-*.json")]
    return sorted(found, key=lambda one: [int(part) for part in one["torch"].split(".")], reverse=True)


def torch_operators() -> str:
    """Which operators of the newest PyTorch keep channels-last, with their calls."""
    tables = _operator_tables()
    found = tables[0]["operators"] if tables else ()
    named: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for one in found:
        named.setdefault((one["kind"], one["operator"].replace("3d", "2d")), {})[one["rank"]] = one
    rows = []
    for (kind, operator), by_rank in named.items():
        first = by_rank[min(by_rank)]
        verdicts = [_marked(by_rank[rank]["verdict"]) if rank in by_rank else "" for rank in (4, 5)]
        notes = dict.fromkeys(f"{one['note']} ({rank}-D)" for rank, one in by_rank.items() if one["note"])
        rows.append([kind, operator, f"`{first['text']}`", *verdicts, "; ".join(notes)])
    return table(["kind", "operator", "call", "4-D", "5-D", "note"], rows)


def _marked(verdict: str) -> str:
    return f"**{verdict}**" if verdict in ("loses", "ambiguous") else verdict


def torch_operators_counts() -> str:
    """How many operators there are of each verdict, in each version."""
    verdicts = ("keeps", "loses", "ambiguous", "gaps", "other", "refuses")
    rows = [
        [
            found["torch"],
            f"{rank}-D",
            str(sum(counts.values())),
            *(str(counts.get(one, 0)) for one in verdicts),
        ]
        for found in _operator_tables()
        for rank, counts in found["counts"].items()
    ]
    return table(["torch, CPU", "", "operators", *verdicts], rows)


def torch_operators_changes() -> str:
    """The operators of which versions make different things."""
    tables = _operator_tables()
    verdicts = [
        {(one["operator"], one["rank"]): one["verdict"] for one in found["operators"]} for found in tables
    ]
    rows = []
    for one in tables[0]["operators"] if tables else ():
        told = [known.get((one["operator"], one["rank"]), "-") for known in verdicts]
        if len({*told}) > 1:
            rows.append([one["operator"], f"`{one['text']}`", f"{one['rank']}-D", *map(_marked, told)])
    if len(tables) > 1 and not rows:
        return f"None between {tables[-1]['torch']} and {tables[0]['torch']}."
    return table(["operator", "call", "", *(found["torch"] for found in tables)], rows)


if __name__ == "__main__":
    keep(*sys.argv[1:])
