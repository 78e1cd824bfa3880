"""The exact choice of formats, on plain data.

An operation of a network can run in several formats, at different costs; a conversion between two formats of
a value costs time as well, and is shared by all that read the value. Which options cost least together with
the conversions that they need? Operation by operation this can't be told: a convolution that would win a
microsecond in another format loses ten if its neighbours do not follow.

A :class:`Problem` is that question, with formats as labels and costs as numbers. :func:`solve` answers it::

    problem --model--> variables and tables --elimination--> choices --conversions--> Solution

exactly, by eliminating one operation after the other; a network of 2,000 operations takes a third of a
second. Where a network is too entangled for that, the answer is a good plan and a bound
(:attr:`Solution.exact`, :attr:`Solution.gap`). Beside it are what others do, :func:`greedy` and
:func:`uniform`, in the same form, and :func:`explain`, which proves of each conversion that it pays.

>>> def conv(name, x, y):
...     options = (Option("plain", ("nchw",), ("nchw",), 9e-6), Option("wide", ("nhwc",), ("nhwc",), 5e-6))
...     return Operation(name, (x,), (y,), options, intensive=True)
>>> def relu(name, x, y):
...     return Operation(name, (x,), (y,), tuple(Option(f, (f,), (f,), 1e-6) for f in ("nchw", "nhwc")))
>>> problem = Problem(
...     (conv("conv1", "x", "a"), relu("relu1", "a", "b"), conv("conv2", "b", "y")),
...     conversions=lambda value, src, dst: 3e-6,
...     sources={"x": {"nchw"}},
...     pins={"y": "nchw"},
... )
>>> plan = solve(problem)
>>> print(plan)
17 us: 3 operations, 2 conversions (6 us); no plan costs less
value                from         to                time  needed by
x                    nchw         nhwc              3 us  conv1
y                    nhwc         nchw              3 us  the pin
>>> print(explain(plan))
17 us: 3 operations, 2 conversions (6 us); no plan costs less
x: nchw to nhwc, 3 us; without it 19 us (2 us more)
    for conv1
y: nhwc to nchw, 3 us; without it 19 us (2 us more)
    for the pin
>>> print(compared({"planned": plan, "greedy": greedy(problem), "nchw": uniform(problem, "nchw")}))
                      total operations  conversions
planned               17 us      11 us      6 us  2
greedy                17 us      11 us      6 us  2
nchw                  19 us      19 us      0 us  0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relayout.errors import LayoutError, type_name
from relayout.graph.planning.baselines import greedy, uniform
from relayout.graph.planning.explanation import Explanation, Proof, explain
from relayout.graph.planning.problem import Infeasible, Operation, Option, Problem
from relayout.graph.planning.solution import Conversion, Solution, compared, evaluate
from relayout.graph.planning.solving import solve

__all__ = [
    "Conversion",
    "Explanation",
    "Infeasible",
    "Operation",
    "Option",
    "Problem",
    "Proof",
    "Solution",
    "assign",
    "compared",
    "evaluate",
    "explain",
    "greedy",
    "read",
    "solve",
    "uniform",
]


def assign(problem: Mapping[str, Any]) -> dict[str, Any]:
    """The cheapest choice of formats for a problem of numbers, text, lists and dicts, such as JSON holds.

    Parameters
    ----------
    problem : mapping
        ``"ops"``: each has ``"in"`` (ids of tensors), ``"out"`` (an id) and ``"options"``, each of those with
        ``"in"`` (formats), ``"out"`` (a format) and ``"us"`` (microseconds). ``"conversions_us"``: for each
        id what ``"SRC>DST"`` costs. ``"inputs"`` and ``"outputs"``: the formats of some ids. Ids that are
        keys may be text. Everything else is left alone: weights are converted ahead of time, for nothing.

    Returns
    -------
    dict
        ``"cost_us"``; ``"choices"``, for each operation the index of its option; ``"conversions"``, a list of
        ``[tensor, from, to]`` in an order in which they can be made; ``"exact"``, whether it is proven that
        nothing costs less. A tensor is converted only into formats in which somebody reads it.

    Raises
    ------
    LayoutError
        Where the data have another form, or no choice is possible (:class:`Infeasible`).

    Examples
    --------
    >>> assign({
    ...     "ops": [{"in": [0], "out": 1, "options": [
    ...         {"in": ["NCHW"], "out": "NCHW", "us": 9}, {"in": ["NHWC"], "out": "NHWC", "us": 2}]}],
    ...     "conversions_us": {"0": {"NCHW>NHWC": 3}, "1": {"NHWC>NCHW": 3.5}},
    ...     "inputs": {"0": "NCHW"}, "outputs": {"1": "NCHW"},
    ... })
    {'cost_us': 8.5, 'choices': [1], 'conversions': [[0, 'NCHW', 'NHWC'], [1, 'NHWC', 'NCHW']], 'exact': True}
    """
    plan = solve(read(problem))
    ops, costs = problem["ops"], {str(t): several for t, several in problem["conversions_us"].items()}
    spent = [float(op["options"][i]["us"]) for op, i in zip(ops, plan.choices, strict=True)]
    spent += [float(costs[c.value][f"{c.src}>{c.dst}"]) for c in plan.conversions]
    ids = {key: int(key) if key.isdecimal() else key for key in plan.problem.sources}
    ids |= {str(tensor): tensor for op in ops for tensor in (*op["in"], op["out"])}
    return {
        "cost_us": math.fsum(spent),
        "choices": list(plan.choices),
        "conversions": [[ids[c.value], c.src, c.dst] for c in plan.conversions],
        "exact": plan.exact,
    }


def read(problem: Mapping[str, Any]) -> Problem:
    """The problem that :func:`assign` solves: operations are named by their index, values by their id.

    Raises
    ------
    LayoutError
        Where the data have another form.
    """
    where = "the problem"
    operations = []
    try:
        for index, op in enumerate(problem["ops"]):
            where = f"operation {index}"
            options = tuple(
                Option(str(o.get("config", i)), tuple(o["in"]), (o["out"],), float(o["us"]) * 1e-6)
                for i, o in enumerate(op["options"])
            )
            name = f"{index} {op['type']}" if "type" in op else str(index)
            inputs = tuple(str(tensor) for tensor in op["in"])
            operations.append(Operation(name, inputs, (str(op["out"]),), options, bool(op.get("weights"))))
        conversions, where = {}, "conversions_us"
        for tensor, costs in problem["conversions_us"].items():
            where = f"a conversion of tensor {tensor}"
            for pair, cost in costs.items():
                src, arrow, dst = pair.partition(">")
                if not arrow:
                    raise LayoutError(f"{where} is {pair!r}: it has to be written as SRC>DST")
                if cost is not None:
                    conversions[str(tensor), src, dst] = float(cost) * 1e-6
        where = "inputs or outputs"
        return Problem(
            tuple(operations),
            conversions,
            pins={str(tensor): format for tensor, format in problem.get("outputs", {}).items()},
            sources={str(tensor): {format} for tensor, format in problem.get("inputs", {}).items()},
            through=False,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, LayoutError):
            raise
        raise LayoutError(f"{where}: not of the expected form, {type_name(error)}: {error}") from None
