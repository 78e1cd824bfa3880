"""What the back end did with the graphs that it was given: taken, left, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relayout.errors import counted
from relayout.torch.compiling.part import Taken

__all__ = ["GraphReport", "Left", "Report", "left_of", "module_of"]


@dataclass(frozen=True)
class Left:
    """An operator that was left to PyTorch.

    Attributes
    ----------
    operator : str
        ATen's name of it.
    reason : str
        Why.
    modules : tuple of str
        Where in the model it stands, one for each time.
    """

    operator: str
    reason: str
    modules: tuple[str, ...]

    @property
    def count(self) -> int:
        """How often."""
        return len(self.modules)

    def __str__(self) -> str:
        where = ", ".join(dict.fromkeys(name for name in self.modules if name))
        return f"{self.count} x {self.operator}: {self.reason}{f' ({where})' if where else ''}"


@dataclass(frozen=True)
class GraphReport:
    """One graph, for one set of sizes.

    Attributes
    ----------
    taken : tuple of Taken
        The parts that Relayout computes.
    left : tuple of Left
        What PyTorch computes.
    note : str
        Why all of it is left to PyTorch; empty where it is not.
    seconds : float
        To make it, parts included; dynamo's own time is not in it.
    kind : str
        ``"forward"`` or ``"backward"``: the pass of a training step; empty where no gradients are wanted.
    """

    taken: tuple[Taken, ...] = ()
    left: tuple[Left, ...] = ()
    note: str = ""
    seconds: float = 0.0
    kind: str = ""

    def __str__(self) -> str:
        if self.note:
            return f"left to PyTorch: {self.note}"
        kind = f"{self.kind}, " if self.kind else ""
        lines = [f"{kind}{counted(len(self.taken), 'part')} taken, in {self.seconds:.2f} s"]
        for part in self.taken:
            count = sum(part.operators.values())
            many = ", ".join(f"{n} x {name}" for name, n in list(part.operators.items())[:6])
            formats = ", ".join(f"{n} x {name}" for name, n in list(part.formats.items())[:4])
            times = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in part.seconds.items())
            lines += [
                f"  taken  {counted(count, 'operator')} ({many}{', ...' if len(part.operators) > 6 else ''})",
                f"         {part.multiply_adds / 1e6:.1f} million multiply-adds; formats {formats}; "
                f"{len(part.conversions)} conversions; {times}",
            ]
            lines += [f"         converts {one}" for one in part.conversions]
        lines += [f"  left   {one}" for one in self.left]
        return "\n".join(lines)


@dataclass
class Report:
    """All graphs of a model, in the order in which they were compiled.

    Attributes
    ----------
    graphs : list of GraphReport
    breaks : dict of str to int
        Why dynamo cut the model into several graphs, and how often; known where :func:`~.explain` ran it.

    Examples
    --------
    >>> print(Report([GraphReport(note="gradients are wanted")]))
    graph 1: left to PyTorch: gradients are wanted
    """

    graphs: list[GraphReport] = field(default_factory=list)
    breaks: Mapping[str, int] = field(default_factory=dict)

    @property
    def taken(self) -> dict[str, int]:
        """The operators that Relayout computes, and how many of each."""
        return _sum(
            (name, n) for graph in self.graphs for part in graph.taken for name, n in part.operators.items()
        )

    @property
    def left(self) -> dict[str, int]:
        """Those that PyTorch computes."""
        return _sum((one.operator, one.count) for graph in self.graphs for one in graph.left)

    @property
    def seconds(self) -> float:
        """What compiling took, dynamo's own time apart."""
        return sum(graph.seconds for graph in self.graphs)

    def __str__(self) -> str:
        lines = [f"graph {k}: {graph}" for k, graph in enumerate(self.graphs, 1)]
        lines += [f"graph break, {n} x: {why}" for why, n in self.breaks.items()]
        return "\n".join(lines) or "nothing was compiled"


def _sum(several: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in several:
        found[name] = found.get(name, 0) + count
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def left_of(reasons: Mapping[Any, str]) -> tuple[Left, ...]:
    """What was left, by operator and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for node, reason in reasons.items():
        found.setdefault((str(node.target), reason), []).append(module_of(node))
    return tuple(Left(operator, reason, tuple(where)) for (operator, reason), where in found.items())


def module_of(node: Any) -> str:
    """The module that a node comes from, by its name in the model: ``"layer1.0.conv1"``."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    path = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]|\['?([^\]']*)'?\]", r".\1\2", path)
    return re.sub(r"^L\.(self|fn|mod)(\.|$)", "", path)
