"""Options that no best plan needs, since another one with conversions around it costs less.

An option with formats A can be replaced by one with formats B wherever it is chosen: what it reads is
converted from A to B, and what it writes from B to A. If that is cheaper whatever the neighbours do, the
first is never needed. A convolution that is ten times slower in plain formats goes this way.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.graph.planning.conversions import paths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.graph.planning.problem import Format, Problem, Use

__all__ = ["needed"]

MARGIN = 1e-9
"""By which part of its cost an option has to be beaten, so that rounding decides nothing."""


def needed(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """The indices of each operation's options that a best plan may need.

    Parameters
    ----------
    problem : Problem
        If conversions may not pass through formats that nobody reads, all possible options are needed: a
        copy may pay because it can be passed through.
    """
    possible = tuple(tuple(problem.possible(operation)) for operation in problem.operations)
    if not problem.through:
        return possible
    lengths = _lengths(problem)
    found = []
    for operation, own in zip(problem.operations, possible, strict=True):
        options = [operation.options[i] for i in own]
        cost = np.array([option.cost for option in options], float)
        instead = np.broadcast_to(cost, (len(own), len(own))).copy()  # of the row's option that of the column
        for place, value in enumerate(operation.inputs):
            at, length = lengths[value]
            index = [at[option.inputs[place]] for option in options]
            instead += length[np.ix_(index, index)]
        for place, value in enumerate(operation.outputs):
            at, length = lengths[value]
            index = [at[option.outputs[place]] for option in options]
            instead += length[np.ix_(index, index)].T
        np.fill_diagonal(instead, np.inf)
        beaten = (instead < (cost - MARGIN * np.abs(cost))[:, None]).any(axis=1)
        found.append(tuple(i for i, worse in zip(own, beaten.tolist(), strict=True) if not worse))
    return tuple(found)


def _lengths(problem: Problem) -> dict[str, tuple[dict[Format, int], NDArray[Any]]]:
    """For each value the place of each format, and what it costs to make one of another."""
    alike: dict[int, list[Use]] = defaultdict(list)
    for use in problem.uses.values():
        alike[len(use.formats)].append(use)
    found = {}
    for count, uses in alike.items():
        direct = np.empty((len(uses), count, count))
        for number, use in enumerate(uses):
            direct[number] = [
                [problem.conversion(use.value, src, dst) for dst in use.formats] for src in use.formats
            ]
        for use, length in zip(uses, paths(direct), strict=True):
            found[use.value] = {format: i for i, format in enumerate(use.formats)}, length
    return found
