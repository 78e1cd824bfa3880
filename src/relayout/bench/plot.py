"""A picture of a report: how ratios to the yardstick are spread, group by group.

One panel for each number of threads, one row for each group, a logarithmic axis. Each case is a dot, and a
bar marks the median of a group. The line at 1 is the yardstick: ``memcpy`` for reorders, and what is left of
it is faster; for primitives the processor's peak, which nothing is faster than.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from relayout.bench.measure import COPY, OURS
from relayout.bench.report import GOAL
from relayout.errors import LayoutError

__all__ = ["Pictured", "check", "draw"]

COLOURS = {
    OURS: "#d1495b",
    "oneDNN": "#00798c",
    "oneDNN inner product": "#66b3c0",
    "PyTorch": "#edae49",
    "PyTorch channels_last": "#b8741a",
    "PyTorch mkldnn": "#7a9e3f",
    "PyTorch compile": "#4f6d1f",
    "ONNX Runtime": "#6d5a9c",
    "OpenVINO": "#a3679b",
    "NumPy": "#8d96a3",
}
ABREAST = 5  # names in a row of the legend
SUFFIXES = (".svg", ".png", ".pdf")
ROW, AROUND, PANEL = 0.11, 1.9, 5.4  # inches: height of a contestant's row, of the rest; width of a panel


def check(path: Path) -> None:
    """Refuse a picture that can't be drawn, before anything has been measured for it.

    Raises
    ------
    LayoutError
        matplotlib is missing, or the suffix is none of :data:`SUFFIXES`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise LayoutError(f"a plot is written as {', '.join(SUFFIXES)}, got {path.name!r}")
    if find_spec("matplotlib") is None:
        raise LayoutError("a plot needs matplotlib, which is not installed: pip install matplotlib")


class Pictured(Protocol):
    """What a picture needs of a report."""

    @property
    def machine(self) -> Mapping[str, Any]:
        """Processor and versions."""

    @property
    def peers(self) -> Mapping[str, str | None]:
        """Others, and their versions."""

    @property
    def results(self) -> Sequence[Any]:
        """What was measured."""

    @property
    def contestants(self) -> list[str]:
        """Who has dots."""

    @property
    def threads(self) -> list[int]:
        """Numbers of threads."""

    def ratios(self, group: str | None, name: str, threads: int) -> list[float]:
        """The dots of a contestant in a group."""


def draw(
    report: Pictured,
    path: Path,
    title: str = f"Reorders against {COPY}",
    axis: str = f"time / {COPY} of the same bytes",
) -> None:
    """Draw a report into a file; its suffix says what kind. The texts say what the ratios are of."""
    figure_module, ticker = import_module("matplotlib.figure"), import_module("matplotlib.ticker")
    groups = list(dict.fromkeys(r.case.group for r in report.results))
    rows = len(groups) * len(report.contestants)
    size = (PANEL * len(report.threads) + 1.2, AROUND + ROW * rows)
    figure = figure_module.Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(report.threads), sharey=True, sharex=True, squeeze=False)[0]
    for panel, threads in zip(panels, report.threads, strict=True):
        _panel(panel, report, threads, groups)
        panel.set_xlabel(axis)
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        panel.xaxis.set_minor_formatter(ticker.NullFormatter())
    panels[0].invert_yaxis()
    legend = figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside upper left",
        ncols=min(len(report.contestants), ABREAST),
        frameon=False,
        markerscale=2.5,
        title=title,
        title_fontproperties={"weight": "bold", "size": 12},
        alignment="left",
    )
    for handle in legend.legend_handles:
        handle.set_alpha(1)
    figure.supxlabel(_caption(report), x=0.01, ha="left", fontsize=7, color="#555555")
    figure.savefig(path, dpi=160)


def _panel(panel: Any, report: Pictured, threads: int, groups: list[str]) -> None:
    contestants = report.contestants
    half = min(0.08, 0.4 / len(contestants))  # of a bar's height
    for place, name in enumerate(contestants):
        shift = (place - (len(contestants) - 1) / 2) * 0.8 / len(contestants)
        colour = COLOURS.get(name, "#444444")
        dots: list[tuple[float, float]] = []
        for row, group in enumerate(groups):
            values = report.ratios(group, name, threads)
            dots += [(value, row + shift) for value in values]
            if values:
                middle = statistics.median(values)
                ends = [row + shift - half, row + shift + half]
                panel.plot([middle, middle], ends, color=colour, linewidth=2.5)
        panel.scatter(
            [x for x, _ in dots],
            [y for _, y in dots],
            s=7,
            color=colour,
            alpha=0.45,
            linewidths=0,
            label=name,
        )
    panel.axvline(1, color="#222222", linewidth=1)
    panel.axvline(GOAL, color="#222222", linewidth=0.6, linestyle=":")
    for row in range(1, len(groups)):
        panel.axhline(row - 0.5, color="#dddddd", linewidth=0.6)
    panel.set_yticks(range(len(groups)), groups)
    panel.set_ylim(-0.5, len(groups) - 0.5)
    panel.tick_params(axis="y", length=0)
    panel.set_title(f"{threads} thread{'s' * (threads != 1)}", fontsize=10)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _caption(report: Pictured) -> str:
    machine = ", ".join(f"{key} {value}" for key, value in report.machine.items())
    peers = ", ".join(f"{name} {version}" for name, version in report.peers.items() if version)
    disturbed = sum(r.disturbed for r in report.results)
    told = f" {disturbed} of {len(report.results)} are left out: other processes took the cores." * bool(
        disturbed
    )
    return f"A dot is the median of one case, a bar the median of a group.{told}\n{machine}\n{peers}"
