"""Networks of which something is known only when they run.

Two things can be open. *Sizes of inputs*, such as the batch: they are known as soon as arrays are there, and
a network is compiled for them then (:class:`relayout.graph.compiling.OpenRun`). *Sizes that data decide*,
such as how many boxes a detector finds: what does not depend on them is planned and compiled as any network,
and the rest runs by the definitions of its operators, behind it (:func:`divided`).

::

    image -> backbone -> scores, boxes -> NonZero, NonMaxSuppression, ... -> found
             `------ head, compiled -'    `------- tail, by definition ------'
"""

from __future__ import annotations

from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import labelled
from relayout.graph.lowering.case import elements_of

__all__ = ["decided", "divided", "undecided"]


def decided(value: Value) -> bool:
    """Whether a value has a memory format before the network runs: its dims, and elements of a fixed size.

    >>> import numpy as np
    >>> decided(Value("x", (2, 3), np.dtype("f4"))), decided(Value("x", (2, "found"), np.dtype("f4")))
    (True, False)
    """
    return value.known and elements_of(value.dtype) is not None


def divided(graph: Graph) -> tuple[Graph, Graph | None]:
    """A graph as two, one behind the other: what can be compiled, and what only a run can decide.

    Parameters
    ----------
    graph : Graph
        With all that inference knows.

    Returns
    -------
    head : Graph
        The nodes that read and write nothing but decided values, and stand behind none that does. It returns
        what the tail reads and, where there is no tail, what the graph returns. Inputs that nobody reads are
        none of it where they have no memory format.
    tail : Graph or None
        All other nodes. It reads results of the head and inputs of the graph, by their names, and returns
        what the graph returns. None: everything is decided.

    Examples
    --------
    >>> import numpy as np
    >>> from relayout.graph.inference import inferred
    >>> nodes = Node("Relu", ("x",), ("r",)), Node("NonZero", ("r",), ("found",))
    >>> head, tail = divided(inferred(Graph((Value("x", (2, 3), np.dtype("f4")),), ("found",), nodes)))
    >>> print(head)
    x f32 2x3
    r = Relu(x)
    -> r
    >>> print(tail)
    r f32 2x3
    found = NonZero(r)
    -> found
    """
    ready = {value.name for value in graph.inputs if decided(value)} | {"", *graph.constants}
    first: list[Node] = []
    second: list[Node] = []
    for node in graph.nodes:
        ahead = ready.issuperset(node.inputs) and all(
            decided(graph.value(name)) for name in node.outputs if name
        )
        (first if ahead else second).append(node)
        if ahead:
            ready.update(node.outputs)
    if not second and ready.issuperset(graph.results):
        return graph.replaced(inputs=tuple(filter(decided, graph.inputs))), None
    made = {name for node in first for name in node.outputs if name}
    wanted = dict.fromkeys((*(name for node in second for name in node.inputs), *graph.results))
    given = {name for node in first for name in node.inputs}
    crossing = tuple(name for name in wanted if name in made)
    head = graph.replaced(
        inputs=tuple(value for value in graph.inputs if value.name in given),
        results=crossing,
        nodes=tuple(first),
        constants={name: data for name, data in graph.constants.items() if name in given},
    )
    tail = graph.replaced(
        inputs=(*map(graph.value, crossing), *(value for value in graph.inputs if value.name in wanted)),
        nodes=tuple(second),
        constants={name: data for name, data in graph.constants.items() if name in wanted},
    )
    return head, tail


def undecided(graph: Graph) -> str:
    """The first value that has no memory format, and which node makes it; '' where there is none."""
    read = {name for node in graph.nodes for name in node.inputs} | set(graph.results)
    for value in graph.inputs:
        if value.name in read and not decided(value):
            return f"the input {value} has no memory format"
    for node in graph.nodes:
        for name in filter(None, node.outputs):
            if not decided(graph.value(name)):
                return f"{labelled(node)}: only a run knows all of {graph.value(name)}"
    return ""
