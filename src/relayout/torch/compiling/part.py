"""A part of a graph, compiled: called with PyTorch's tensors, answers with tensors.

Graphs read and write row-major arrays, tensors have strides. So the elements of an input whose strides are a
dense order of axes (``channels_last``) are a row-major array of *its* axes, and a transpose, which the plan
sees through, leads from there to the axes that the part reads. Results are the other way round: memory comes
from PyTorch, with just the strides that it would have given them. Inputs that are not dense (slices,
repeated axes) are copied first.

A call hands addresses to the compiled sequence and gives the interpreter's lock away once, for all of it.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Final

import torch

from relayout.errors import LayoutError, counted
from relayout.forking import lock
from relayout.graph.graph import Graph, Node, Value, fresh
from relayout.importers.torch.arrays import array_of
from relayout.importers.torch.translation import Parts, Untranslatable, numpy_dtype, translated
from relayout.layout.images import format_name
from relayout.primitives.lent import lent
from relayout.primitives.packing import ahead
from relayout.torch.compiling import kept
from relayout.torch.compiling.lending import exchangeable, lendable, stays
from relayout.torch.compiling.options import Options
from relayout.torch.compiling.support import is_getitem

__all__ = ["Left", "OutOfRange", "Part", "Taken", "made", "order_of"]

log = logging.getLogger(__name__)

CPU: Final = torch.device("cpu")
"""Said whenever memory is asked for: ``torch.set_default_device`` and ``with torch.device(...)`` would give
memory elsewhere."""


class Left(Exception):
    """Nodes that turned out to be better left to PyTorch.

    Attributes
    ----------
    reasons : dict of str to str
        Why, by the nodes' names.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = dict(reasons)


class OutOfRange(IndexError, RuntimeError):
    """An index that names no element.

    Some of PyTorch's operators raise an ``IndexError`` then (``embedding``, ``index_select``), others a
    ``RuntimeError`` (``gather``, ``scatter``). A part does not know which it was, so this is both.
    """


@dataclass(frozen=True)
class Taken:
    """What is known of a part that Relayout has taken.

    Attributes
    ----------
    operators : dict of str to int
        ATen's operators and how many of each; the most frequent first.
    multiply_adds : int
        Of its sums of products.
    formats : dict of str to int
        The formats in which values are computed, and how many of each.
    conversions : tuple of str
        What is reordered in between: the value, from which format to which, and the bytes.
    seconds : dict of str to float
        To translate, plan and compile it.
    weights : int
        Bytes of weights, as they are packed.
    """

    operators: dict[str, int]
    multiply_adds: int
    formats: dict[str, int]
    conversions: tuple[str, ...]
    seconds: dict[str, float]
    weights: int


@dataclass(frozen=True, eq=False)
class Part:
    """A compiled part.

    Attributes
    ----------
    inputs, outputs : tuple
        The nodes that it reads, weights apart, and those that it stands for.
    strides, dtypes, spans : tuple
        Those that each input has to have; and the bytes from its first element to the end of its last one.
    results : tuple
        Sizes, strides and data type of each output.
    steps : Run
        What computes it.
    taken : Taken
        What is known of it.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    strides: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    spans: tuple[int, ...]
    results: tuple[tuple[tuple[int, ...], tuple[int, ...], Any], ...]
    steps: Any = field(repr=False)
    taken: Taken

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        """The results, in memory of their own.

        Raises
        ------
        OutOfRange
            An index names no element.
        RuntimeError
            The memory of an input was freed or has shrunk since the tensor was made.
        """
        kept = [
            one if one.stride() == strides and one.dtype is dtype else _laid_out(one, strides, dtype)
            for one, strides, dtype in zip(given, self.strides, self.dtypes, strict=True)
        ]
        made = [
            torch.empty_strided(dims, strides, dtype=dtype, device=CPU)
            for dims, strides, dtype in self.results
        ]
        for k, (one, span) in enumerate(zip(kept, self.spans, strict=True)):
            if one.untyped_storage().nbytes() < one.storage_offset() * one.itemsize + span:
                raise self._unallocated(k, one)
        addresses = [one.data_ptr() for one in kept]
        addresses += [one.data_ptr() for one in made]
        try:
            self.steps.at(addresses)
        except LayoutError as error:
            raise OutOfRange(str(error)) from None
        return tuple(made)

    def _unallocated(self, k: int, given: Any) -> RuntimeError:
        """What is said of an input that is larger than its memory."""
        room = given.untyped_storage().nbytes()
        return RuntimeError(
            f"{self.inputs[k].name} has {given.numel()} elements of {given.dtype}, and its memory was freed "
            f"or has shrunk: {room} bytes (untyped_storage().resize_); make room for it again before the "
            "model is called"
        )


def _laid_out(tensor: Any, strides: tuple[int, ...], dtype: Any) -> Any:
    """A copy in dense memory; of the data type that the graph says, which not every operator keeps to."""
    return torch.empty_strided(tensor.shape, strides, dtype=dtype, device=CPU).copy_(tensor)


def order_of(dims: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The axes in the order in which they lie in memory, the outermost first; None: there is no dense one.

    >>> order_of((2, 3, 4, 5), (60, 1, 15, 3)), order_of((1, 3, 4, 5), (60, 20, 5, 1))
    ((0, 2, 3, 1), (0, 1, 2, 3))
    >>> order_of((2, 3), (6, 2)) is None
    True
    """
    axes = sorted((k for k, n in enumerate(dims) if n > 1), key=lambda k: -strides[k])
    step = 1
    for axis in reversed(axes):
        if strides[axis] != step:
            return None
        step *= dims[axis]
    places = iter(axes)  # axes of one element stay where they are
    return tuple(next(places) if n > 1 else k for k, n in enumerate(dims))


def made(
    nodes: Sequence[Any],
    before: Sequence[Any],
    weights: Mapping[Any, Any],
    options: Options,
    threads: int,
    lasting: bool = False,
) -> Part:
    """Compile some nodes.

    Parameters
    ----------
    nodes : sequence
        All of the part, in an order in which they can run.
    before : sequence
        Nodes that compute constants which it reads.
    weights : mapping of node to torch.Tensor
        Nodes before it that are constants.
    options : Options
    threads : int
    lasting : bool
        Whether another process may want the same (:mod:`.kept`).

    Raises
    ------
    Left
        Some of them can't be translated, or no kernel does them. What goes wrong otherwise while a part is
        compiled is a mistake of Relayout's; the model runs all the same, and a warning is logged.
    """
    try:
        return _made(nodes, before, weights, options, threads, lasting)
    except Left:
        raise
    except Exception as error:
        why = f"{type(error).__name__} while it was compiled: {error}"
        log.warning("%s left to PyTorch: %s", counted(len(nodes), "operator"), why, exc_info=error)
        raise Left({node.name: why for node in nodes}) from error


def _made(
    nodes: Sequence[Any],
    before: Sequence[Any],
    weights: Mapping[Any, Any],
    options: Options,
    threads: int,
    lasting: bool,
) -> Part:
    begin = perf_counter()
    everything = (*before, *nodes)
    inside = set(everything)
    read = dict.fromkeys(one for node in everything for one in node.all_input_nodes if one not in inside)
    moving = tuple(node for node in read if node not in weights)
    fixed = {one: (one.name, array_of(weights[one], one.name, False)) for one in read if one in weights}
    outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
    readers = exchangeable(everything, outputs, fixed)
    question = None
    if lasting:
        how = options.format, options.precision, options.algorithm
        question = kept.asked(everything, fixed, outputs, how, threads, readers)
    entries = [_order(node) or tuple(range(node.meta["val"].dim())) for node in moving]
    arrays = [lendable(data, one.op == "placeholder", one in readers) for one, (_, data) in fixed.items()]
    if question is not None:
        with lent(arrays):
            found = question.found()
        if found is not None:
            return _part(moving, entries, outputs, found.places, found.run, _told(found.told, found.run))
    with lock():  # what a part that is kept does without
        from relayout.graph.inference import inferred
        from relayout.graph.passes.losses import with_losses_written_out
        from relayout.graph.passes.weights import with_moving_weights

    orders = {node: _order(node) for node in outputs}
    if odd := [node.name for node, order in orders.items() if order is None]:
        raise Left(dict.fromkeys(odd, "the strides of its result are not dense"))
    try:
        graph = translated(Parts(moving, fixed, everything, outputs))
    except Untranslatable as error:
        raise Left({name: reason or "no translation" for name, reason in error.reasons.items()}) from None
    known = inferred(_bordered(graph, entries, [order or () for order in orders.values()]))
    if not any(node.op == "placeholder" for node in fixed):  # weights are inputs like others
        known = with_losses_written_out(with_moving_weights(known))
    if unlike := _unlike(known, outputs):
        raise Left(unlike)
    middle = perf_counter()
    names = [node.name for node in nodes]
    still = stays(readers)
    weighs = sum(one.nbytes for node, (_, one) in fixed.items() if node not in still)
    try:
        with ahead(weighs if options.precision is None else 0), lent(arrays):
            run = known.compile(
                options.format, threads, precision=options.precision, algorithm=options.algorithm
            )
    except LayoutError as error:
        raise Left(dict.fromkeys(names, str(error))) from None
    if run.compiled is None or run.plan is None or run.tail is not None:
        raise Left(dict.fromkeys(names, run.why or "nothing is left to compute"))
    if defined := _by_definition(run.plan, names):
        raise Left(dict.fromkeys(defined, "no kernel"))
    places = [known.inputs.index(known.value(name)) for name in run.compiled.inputs]
    taken = _taken(nodes, known, run, middle - begin)
    if question is not None and perf_counter() - begin > kept.LONG:
        question.keep(run, places, asdict(taken))
    return _part(moving, entries, outputs, places, run, taken)


def _part(
    moving: Sequence[Any],
    entries: Sequence[Sequence[int]],
    outputs: Sequence[Any],
    places: Sequence[int],
    run: Any,
    taken: Taken,
) -> Part:
    """The part that a run computes, which reads inputs at these places."""
    return Part(
        tuple(moving[k] for k in places),
        tuple(outputs),
        tuple(_strides(moving[k], entries[k]) for k in places),
        tuple(moving[k].meta["val"].dtype for k in places),
        tuple(_span(moving[k], entries[k]) for k in places),
        tuple(_result(node) for node in outputs),
        run.compiled.steps,
        taken,
    )


def _told(told: Mapping[str, Any], run: Any) -> Taken:
    """What an earlier process has said of a part, which is there sooner now."""
    seconds = {"translate": 0.0, **run.seconds}
    return Taken(**{**told, "conversions": tuple(told["conversions"]), "seconds": seconds})


def _unlike(graph: Graph, outputs: Sequence[Any]) -> dict[str, str]:
    """Results that are not what PyTorch says: nothing may be written to memory of another size."""
    found = {}
    for name, node in zip(graph.results, outputs, strict=True):
        made, said = graph.value(name), node.meta["val"]
        dtype = numpy_dtype(said.dtype)
        if (
            made.dtype != dtype
            or made.dims is None
            or sorted(map(str, made.dims)) != sorted(map(str, said.shape))
        ):
            found[node.name] = (
                f"its result is {made.dtype} of {made.dims}, and {dtype} of {tuple(said.shape)} in PyTorch"
            )
    return found


def _order(node: Any) -> tuple[int, ...] | None:
    value = node.meta["val"]
    return order_of(value.shape, value.stride())


def _strides(node: Any, order: Sequence[int]) -> tuple[int, ...]:
    """The strides of an input: its own where they are dense, else those of a copy."""
    value = node.meta["val"]
    if _order(node) is not None:
        return tuple(value.stride())
    strides, step = [0] * len(order), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= value.shape[axis]
    return tuple(strides)


def _span(node: Any, order: Sequence[int]) -> int:
    """The bytes from an input's first element to the end of its last one."""
    value = node.meta["val"]
    if 0 in value.shape:
        return 0
    reach = ((n - 1) * step for n, step in zip(value.shape, _strides(node, order), strict=True))
    return int(sum(reach, 1)) * int(value.itemsize)


def _result(node: Any) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    value = node.meta["val"]
    return tuple(value.shape), tuple(value.stride()), value.dtype


def _bordered(graph: Graph, entries: Sequence[Sequence[int]], exits: Sequence[Sequence[int]]) -> Graph:
    """The graph with inputs and outputs as they lie in memory: row-major, with the axes in these orders."""
    taken = {*graph._known, *graph.constants}
    inputs, results, before, behind = [], [], [], []
    for value, order in zip(graph.inputs, entries, strict=True):
        if list(order) != sorted(order) and value.dims is not None:
            name = fresh(f"{value.name}.stored", taken)
            inputs.append(Value(name, tuple(value.dims[k] for k in order), value.dtype))
            back = tuple(sorted(range(len(order)), key=order.__getitem__))
            before.append(Node("Transpose", (name,), (value.name,), {"perm": back}, value.name))
        else:
            inputs.append(value)
    for name, order in zip(graph.results, exits, strict=True):
        if list(order) != sorted(order):
            behind.append(
                Node("Transpose", (name,), (fresh(f"{name}.stored", taken),), {"perm": tuple(order)}, name)
            )
            results.append(behind[-1].outputs[0])
        else:
            results.append(name)
    return graph.replaced(
        inputs=tuple(inputs), results=tuple(results), nodes=(*before, *graph.nodes, *behind)
    )


def _by_definition(plan: Any, names: Iterable[str]) -> list[str]:
    """The nodes that no kernel does; all, where it can't be told which."""
    several = list(names)
    known, found = set(several), set()
    for one in plan.chosen:
        if one.way.name == "NumPy":
            said = [one.case.name, *(out.name for out in one.case.outputs)]
            spelled = [name for text in said for name in (text, *re.split(r"[./]", text)[:1])]
            hit = next((name for name in spelled if name in known), None)
            if hit is None:
                return several
            found.add(hit)
    return [name for name in several if name in found]


def _taken(nodes: Sequence[Any], known: Graph, run: Any, translating: float) -> Taken:
    with lock():
        from relayout.graph.macs import multiply_adds

    return Taken(
        _counted(str(node.target) for node in nodes if not is_getitem(node)),
        sum(multiply_adds(node, known) or 0 for node in known.nodes),
        _counted(format_name(desc) for desc in run.plan.formats.values()),
        tuple(
            f"{one.value}: {format_name(one.src)} to {format_name(one.dst)}, {one.src.nbytes} bytes"
            for one in run.plan.conversions
        ),
        {"translate": translating, **run.seconds},
        run.memory.weights,
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())
