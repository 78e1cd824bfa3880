r"""Which nodes go together: parts of a graph that can be taken out whole.

Each node has a *level*: the number of times that one changes between Relayout and PyTorch on the way to
it, at most. What Relayout takes on one level is a part. No way leads out of a part and back into it: it
would have to pass a node of PyTorch, on a higher level than the part, and come back on a higher one still.

    conv 0 ---> relu 0 ---> bessel 1 ---> cat 2 ---> conv 2
           \--> conv 0 -------------------/

What must not change its place among others, such as a write to an input, lifts all that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from relayout.torch.compiling.support import impure, is_getitem

__all__ = ["grouped", "leveled"]


def leveled(nodes: Iterable[Any], taken: Callable[[Any], bool]) -> dict[Any, int]:
    """The level of each node that computes something.

    Parameters
    ----------
    nodes : iterable
        In an order in which they can run.
    taken : callable
        Whether Relayout takes a node.
    """
    levels: dict[Any, int] = {}
    kinds: dict[Any, bool] = {}
    floor = highest = 0
    for node in nodes:
        if is_getitem(node) and node.args[0] in levels:
            levels[node], kinds[node] = levels[node.args[0]], kinds[node.args[0]]
            continue
        kind = taken(node)
        level = floor
        for one in node.all_input_nodes:
            if one in levels:
                level = max(level, levels[one] + (kinds[one] is not kind))
        if not kind and impure(node):
            floor = level = max(level, highest + 1)
        levels[node], kinds[node] = level, kind
        highest = max(highest, level)
    return levels


def grouped(
    nodes: Sequence[Any], taken: Callable[[Any], bool]
) -> tuple[list[tuple[Any, ...]], list[Any | tuple[Any, ...]]]:
    """The parts; and all nodes that are left and all parts, in an order in which they can run."""
    levels = leveled(nodes, taken)
    found: dict[int, list[Any]] = {}
    order: list[tuple[int, int, Any]] = []
    for place, node in enumerate(nodes):
        level = levels[node]
        if taken(node.args[0] if is_getitem(node) and node.args[0] in levels else node):
            if level not in found:
                found[level] = []
                order.append((level, place, found[level]))
            found[level].append(node)
        else:
            order.append((level, place, node))
    order.sort(key=lambda one: one[:2])
    steps = [tuple(what) if isinstance(what, list) else what for _, _, what in order]
    return [one for one in steps if isinstance(one, tuple)], steps
