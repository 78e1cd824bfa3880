"""The formats of a network: which way each node goes, and the conversions that are left.

Each node is asked for its ways (:mod:`relayout.graph.lowering`), each with the formats that it reads and
writes and with a cost; :mod:`relayout.graph.planner` chooses one for every node, so that all of them with the
conversions in between cost least.

>>> import numpy as np
>>> from relayout.graph import Graph, Node, Value
>>> x = Value("x", (1, 64, 14, 14), np.dtype("f4"))
>>> filters = np.zeros((64, 64, 1, 1), "f4")
>>> conv = Node("Conv", ("x", "w"), ("y",))
>>> found = Graph((x,), ("y",), (conv,), {"w": filters}).plan()
>>> found.cost > 0, len(found.conversions) <= 2
(True, True)
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError, TooLarge, Unsupported, counted
from relayout.forking import lock, locked
from relayout.graph.graph import Graph, Node
from relayout.graph.inference import labelled
from relayout.graph.listing import listed
from relayout.graph.lowering import (  # noqa: F401 (they fill the table of rules)
    blockwise,
    convolutions,
    cumulative,
    dynamic,
    elementwise,
    expressions,
    gathering,
    gradients,
    integers,
    movement,
    normalizations,
    optimizers,
    pointwise,
    products,
    quantization,
    recurrent,
    recurrent_training,
    resizing,
    statistics,
    windows,
)
from relayout.graph.lowering.case import Case, case_of, label, operand_of, row_major, unblocked
from relayout.graph.lowering.definition import defined
from relayout.graph.lowering.emission import Chosen
from relayout.graph.lowering.ways import RULES, Way
from relayout.graph.lowering.wishes import copied, wishes
from relayout.graph.operators.fused import FUSED
from relayout.graph.planning.problem import Operation, Option, Problem
from relayout.graph.planning.solving import solve
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.images import format_name
from relayout.layout.roles import data_roles
from relayout.ops.products import check_algorithm
from relayout.records import dataclass, field, replace
from relayout.reorder.predict import seconds_to_move
from relayout.targets.memory import installed

if TYPE_CHECKING:
    from relayout.graph.planning.solution import Solution

__all__ = [
    "RULES",
    "Conversion",
    "Plan",
    "check_algorithm",
    "check_sizes",
    "image_format",
    "plan",
    "told_apart",
]

NOISE = 0.05  # of the cost of the cheapest way: by less than half of it no estimate tells two ways apart
MOST = 8  # formats of a value that its readers are asked about
IMAGE = (1, 32, 4, 4)  # dims of an image, for formats to be tried on
REORDERED = 1.2  # times a copy of as many bytes: what a conversion takes
STEP = 2e-7  # seconds that each takes besides, however few elements there are


@dataclass(frozen=True)
class Conversion:
    """A value that exists in two formats.

    Attributes
    ----------
    value : str
        Its name.
    src, dst : MemoryDesc
        From which format to which.
    nbytes : int
        Bytes that are read and written.
    seconds : float
        About how long it takes.
    readers : tuple of str
        The nodes that want it.
    """

    value: str
    src: MemoryDesc
    dst: MemoryDesc
    nbytes: int
    seconds: float
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """The ways of all nodes.

    Attributes
    ----------
    graph : Graph
        What is planned, after all passes.
    chosen : tuple of Chosen
        For each node how it is done.
    solution : Solution
        What the planner says, with its proof.
    tail : Graph or None
        What comes behind and can't be planned, since only data decide its sizes; see
        :mod:`relayout.graph.dynamic`.
    states : mapping of str to MemoryDesc
        The inputs that stay in memory from run to run, and the formats that they have there.

    Examples
    --------
    >>> import numpy as np
    >>> from relayout.graph import Graph, Node, Value
    >>> graph = Graph((Value("x", (2, 3), np.dtype("f4")),), ("y",), (Node("Relu", ("x",), ("y",)),))
    >>> plan = graph.plan()
    >>> plan
    Plan(1 node, 0 conversions)
    >>> print(plan.solution.proof)
    no plan costs less
    """

    graph: Graph
    chosen: tuple[Chosen, ...] = field(repr=False)
    solution: Solution = field(repr=False)
    tail: Graph | None = field(default=None, repr=False)
    states: Mapping[str, MemoryDesc] = field(default_factory=dict, repr=False)

    @property
    def options(self) -> tuple[tuple[Operation, int], ...]:
        """For each of :attr:`chosen` what the planner was asked, and which option it took."""
        first = len(self.states)
        both = zip(self.solution.problem.operations, self.solution.choices, strict=True)
        return tuple(both)[first : first + len(self.chosen)]

    @property
    def cost(self) -> float:
        """Seconds that all nodes and conversions take, by their models."""
        return self.solution.cost

    @property
    def conversions(self) -> tuple[Conversion, ...]:
        """Every conversion that is left."""
        found = []
        for one in self.solution.conversions:
            src, dst = one.src, one.dst
            assert isinstance(src, MemoryDesc)
            assert isinstance(dst, MemoryDesc)
            found.append(Conversion(one.value, src, dst, src.nbytes + dst.nbytes, one.cost, one.readers))
        return tuple(found)

    @property
    def formats(self) -> dict[str, MemoryDesc]:
        """The format in which each value is written."""
        return {
            operand.name: desc
            for one in self.chosen
            for operand, desc in zip(one.case.outputs, one.way.outputs, strict=True)
            if operand.name
        }

    def __repr__(self) -> str:
        return f"Plan({counted(len(self.chosen), 'node')}, {counted(len(self.conversions), 'conversion')})"

    def __str__(self) -> str:
        """Tables of nodes, states and conversions; see :mod:`relayout.graph.listing`."""
        return listed(self)

    def __copy__(self) -> Plan:
        """Itself: it is frozen."""
        return self

    def __deepcopy__(self, known: Any) -> Plan:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to be pickled.

        Raises
        ------
        Unsupported
            Always: the ways of its nodes are functions, made for this process.
        """
        raise Unsupported(
            "a plan can't be pickled, since it has the ways of all nodes as functions; pickle the graph, "
            "which is planned again there (graph.plan()), or the run: graph.compile()"
        )

    @locked
    def svg(self) -> str:
        """The network drawn, as an SVG document: formats as colours, conversions as marks on lines.

        >>> import numpy as np
        >>> from relayout.graph.graph import Value
        >>> x = Value("x", (1, 3), np.dtype("f4"))
        >>> relu = Node("Relu", ("x",), ("y",))
        >>> Graph((x,), ("y",), (relu,)).plan().svg().startswith("<svg ")
        True
        """
        from relayout.draw.graph import graph

        return graph(self)

    def _repr_svg_(self) -> str:
        """The network drawn, for notebooks: chains as one box where it is long, and no end of boxes."""
        with lock():
            from relayout.draw.notebook import of_plan
        return of_plan(self)


def image_format(format: Any) -> str | None:
    """The format that images shall have, if one can; None, also for ``"any"``: whatever costs least.

    Raises
    ------
    LayoutError
        It is none of four axes, or one of something else: of weights, of states of recurrent layers.

    Examples
    --------
    >>> image_format("nhwc"), image_format("any")
    ('nhwc', None)
    >>> image_format("oihw")
    Traceback (most recent call last):
    relayout.errors.LayoutError: format oihw has axes o, i, h, w; images have n, c, h, w (nchw, nhwc, nChw16c)
    """
    if format is None or format is any_format or format == "any":
        return None
    known = MemoryDesc(IMAGE, "f32", format)  # refuses other numbers of axes, and what is no format
    own = known.layout.format
    roles = None if own is None else own.roles
    if roles is not None and roles != data_roles(2):
        raise LayoutError(
            f"format {format} has axes {', '.join(roles)}; images have n, c, h, w (nchw, nhwc, nChw16c)"
        )
    return str(format)


def check_sizes(graph: Graph) -> None:
    """Refuse values that the machine's memory does not hold, before anybody looks for ways to compute them.

    Raises
    ------
    TooLarge
        The message names the first of them, with its dims, and the node that computes it.
    """
    named = [(labelled(node), graph.value(name)) for node in graph.nodes for name in node.outputs if name]
    named += [(f"input {value.name!r}", value) for value in graph.inputs]
    room = installed()
    for what, value in named:
        if value.known and value.dims is not None and value.dtype is not None:
            size = prod(value.dims) * value.dtype.itemsize  # type: ignore[arg-type]
            if size > room:
                taken = f"{value} takes {size} bytes, and this machine has {room} of memory"
                raise TooLarge(f"{what} can't be planned: {taken}")


def plan(
    graph: Graph,
    format: str | None = None,
    pins: Mapping[str, str] | None = None,
    states: Mapping[str, str] | None = None,
    formats: Mapping[str, MemoryDesc] | None = None,
    algorithm: str = "direct",
) -> Plan:
    """Choose the formats of a graph all of whose dims are known.

    Parameters
    ----------
    graph : Graph
        After passes and inference.
    format : str, optional
        The one format that images shall have; None: whatever is best.
    pins : mapping of str to str, optional
        Formats in which values inside the graph have to be read, by their names: ``{"y": "nhwc"}``.
    states : mapping of str to str, optional
        Inputs that stay in memory from run to run, and the values that replace them there. Their formats are
        chosen, too: among row-major and those that their readers ask for. One with its own name there stays.
    formats : mapping of str to MemoryDesc, optional
        Formats of states that are given.
    algorithm : str, optional
        Of convolutions; see :meth:`.Graph.plan`.

    Raises
    ------
    LayoutError
        A value has no memory format: dims or data type are not known. Or a pin names a value that there is
        not, or a format in which its readers can't read it; the message has those that there are.
    """
    states, formats = states or {}, formats or {}
    arrives: dict[str, list[MemoryDesc]] = {}
    for value in graph.inputs:
        arrives[value.name] = [formats.get(value.name) or _outside(graph, value.name)]
    uses: dict[str, int] = {}
    for name in (*graph.results, *(name for node in graph.nodes for name in dict.fromkeys(node.inputs))):
        uses[name] = uses.get(name, 0) + 1
    cases, offers = [], []
    wished, parts = wishes(graph), copied(graph)
    for node in graph.nodes if states else ():
        if not states.keys().isdisjoint(node.inputs):
            case = case_of(node, graph, arrives, uses, format, wished, parts, algorithm)
            for way in _ways(case, node, graph):
                for name in (states.keys() & way.inputs.keys()) - formats.keys():
                    arrives[name] = list(dict.fromkeys((*arrives[name], way.inputs[name])))
    for node in graph.nodes:
        case = case_of(node, graph, arrives, uses, format, wished, parts, algorithm)
        try:
            ways = _ways(case, node, graph)
        except (ArithmeticError, MemoryError, ValueError) as error:  # sizes that no memory holds
            kind = type(error) if isinstance(error, LayoutError) else LayoutError
            raise kind(f"{labelled(node)} can't be planned: {error}") from error
        for k, operand in enumerate(case.outputs):
            if operand.name:
                arrives[operand.name] = list(dict.fromkeys(way.outputs[k] for way in ways))[:MOST]
        cases.append(case)
        offers.append(ways)
    kept = {name: arrives[name][:MOST] for name in states}
    problem = _problem(graph, cases, offers, kept, states)
    if pins:
        problem = problem.replaced(forced=_forced(problem, pins))
    solution = solve(problem)
    held = {name: several[k] for (name, several), k in zip(kept.items(), solution.choices, strict=False)}
    choices = solution.choices[len(kept) : len(kept) + len(cases)]
    chosen = tuple(Chosen(case, ways[k]) for case, ways, k in zip(cases, offers, choices, strict=True))
    return Plan(graph, chosen, solution, states=held)


def _forced(problem: Problem, pins: Mapping[str, str]) -> dict[str, MemoryDesc]:
    """The descriptors that pins mean."""
    found = {}
    for name, format in pins.items():
        use = problem.uses.get(name)
        if use is None:
            near = difflib.get_close_matches(name, problem.uses, 8) or list(problem.uses)[:8]
            raise LayoutError(
                f"the plan has no value {name!r} to be pinned; there are {', '.join(near)}, ..."
            )
        known = [desc for desc in use.formats if isinstance(desc, MemoryDesc)]
        wanted = unblocked(label(MemoryDesc(known[0].dims, known[0].dtype, format)))
        read = {
            option.inputs[place]: None
            for k in use.readers
            for option in problem.operations[k].options
            for place, one in enumerate(problem.operations[k].inputs)
            if one == name
        }
        if wanted not in read:
            several = ", ".join(dict.fromkeys(format_name(desc) for desc in known if desc in read))
            what = f"it is read as {several}" if several else "no node reads it"
            raise LayoutError(f"value {name!r} can't be pinned to {format}: {what}")
        found[name] = wanted
    return found


def _ways(case: Case, node: Node, graph: Graph) -> list[Way]:
    rule = RULES.get(case.operator)
    found = list(rule(case) or ()) if rule is not None else []
    if found:
        costs = told_apart([way.cost for way in found])
        return [replace(way, cost=cost) for way, cost in zip(found, costs, strict=True)]
    read = case.inputs
    if node.operator == FUSED:
        read = tuple(operand_of(graph, name) for name in node.inputs)
    return [defined(case, node, read)]


def lowerable(node: Node, graph: Graph, format: str | None = None, algorithm: str = "direct") -> bool:
    """Whether a kernel does a node; one that is fused and has none is better taken apart.

    Format and algorithm are those that it is planned with: to ask a convolution takes long, and what it
    answers is remembered until :func:`plan` asks the same.
    """
    case = case_of(node, graph, {}, {}, format, algorithm=algorithm)
    rule = RULES.get(case.operator)
    try:
        return rule is not None and bool(list(rule(case) or ()))
    except (ArithmeticError, MemoryError, ValueError):
        return False


def _problem(
    graph: Graph,
    cases: Sequence[Case],
    offers: Sequence[Sequence[Way]],
    kept: Mapping[str, Sequence[MemoryDesc]],
    states: Mapping[str, str],
) -> Problem:
    """What the planner is asked. Formats with the same bytes are one for it.

    A state is an operation without inputs, one option for each of its formats. Another one at the end reads
    the state and what replaces it in the same format.
    """
    operations = [
        Operation(
            f"state {name}", (), (name,), tuple(Option("", (), (unblocked(one),), 0.0) for one in several)
        )
        for name, several in kept.items()
    ]
    for k, (case, ways) in enumerate(zip(cases, offers, strict=True)):
        names = tuple(ways[0].inputs)  # not what is left unread, such as the ratio of a dropout
        outputs = tuple(one.name for one in case.outputs if one.name)
        options = tuple(
            Option(
                way.name,
                tuple(unblocked(way.inputs[name]) for name in names),
                tuple(
                    unblocked(desc) for one, desc in zip(case.outputs, way.outputs, strict=True) if one.name
                ),
                way.cost,
            )
            for way in ways
        )
        heavy = case.operator in ("Conv", "ConvTranspose", "MatMul", "Gemm")
        operations.append(Operation(f"{k} {case.name}", names, outputs, options, intensive=heavy))
    for name, several in kept.items():
        if states[name] == name:
            continue
        both = tuple(Option("", (unblocked(one),) * 2, (), 0.0) for one in several)
        operations.append(Operation(f"next {name}", (name, states[name]), (), both))
    sources = {one.name: {_outside(graph, one.name)} for one in graph.inputs if one.name not in kept}
    pins = {name: _outside(graph, name) for name in graph.results if name not in graph.constants}
    return Problem(tuple(operations), _seconds, pins=pins, sources=sources)


def told_apart(costs: Sequence[float]) -> list[float]:
    """Costs of ways to do one thing, rounded to what estimates can tell apart.

    Estimates of the same work differ by some percent from machine to machine and from measurement to
    measurement. A conversion has to save more than that: so each cost becomes the lowest one and a whole
    number of steps of :data:`NOISE` above it, and among ways that cost the same then, the planner takes those
    with fewer conversions.

    >>> told_apart([100.0, 102.0, 104.0, 120.0])
    [100.0, 100.0, 105.0, 120.0]
    """
    least = min(costs)
    if least <= 0:
        return list(costs)
    return [least + NOISE * least * round((cost - least) / (NOISE * least)) for cost in costs]


def _outside(graph: Graph, name: str) -> MemoryDesc:
    """The format of an input or an output: that of an array of NumPy."""
    operand = operand_of(graph, name)
    assert operand is not None
    return row_major(operand.dims, operand.dtype)


def _seconds(value: str, src: object, dst: object) -> float | None:
    """What a conversion costs."""
    assert isinstance(src, MemoryDesc)
    assert isinstance(dst, MemoryDesc)
    if src.dims != dst.dims or src.dtype != dst.dtype:
        return None
    return STEP + REORDERED * seconds_to_move(src.nbytes + dst.nbytes)
