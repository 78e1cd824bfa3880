"""Control flow: graphs within nodes.

An inner graph is anything with ``inputs`` and ``evaluate(*arrays)``, which returns a tuple: a
:class:`relayout.graph.graph.Graph` or a function in a test's clothes. It is closed. What it uses of the graph
around it are further inputs of the node, behind the operator's own, and of every graph in the node; the
attribute ``captured``, which ONNX has not, says how many they are.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from relayout.errors import LayoutError, counted
from relayout.graph.operators.axes import axis_in, only
from relayout.graph.operators.registry import Array, operator

__all__ = ["Body"]


class Body(Protocol):
    """A graph within a node."""

    @property
    def inputs(self) -> Any:
        """Its inputs, the captured ones last."""

    def evaluate(self, *inputs: Any) -> tuple[Any, ...]:
        """Its outputs."""


@operator("If")
def if_(
    cond: Array, /, *captured_: Any, then_branch: Body, else_branch: Body, captured: int = 0
) -> tuple[Any, ...]:
    """The results of one of two graphs."""
    return (then_branch if only(cond, "the condition") else else_branch).evaluate(*captured_)


def _parted(given: tuple[Any, ...], captured: int) -> tuple[list[Any], tuple[Any, ...]]:
    """An operator's own inputs, and those that its graph takes from around it."""
    own = len(given) - captured
    if not 0 <= captured <= len(given):
        raise LayoutError(f"{captured} inputs can't be captured; there are {len(given)}")
    return list(given[:own]), given[own:]


def _same_count(made: tuple[Any, ...], count: int) -> None:
    if len(made) != count:
        raise LayoutError(f"the inner graph has {counted(len(made), 'output')}; it must have {count}")


def _stacked(body: Body, place: int, results: list[Array], axis: int = 0) -> Array:
    """What an output of an inner graph was in each turn, along an axis; as far as it is known without any."""
    if results:
        if len({one.shape for one in results}) > 1:
            raise LayoutError(f"output {place} of the inner graph changes its dims from turn to turn")
        return np.stack(results, axis)
    dims: tuple[int, ...] = ()
    dtype = np.dtype(np.float32)
    outputs = getattr(body, "outputs", ())
    if place < len(outputs):
        known = outputs[place]
        dims = tuple(n if isinstance(n, int) else 0 for n in known.dims or ())
        dtype = known.dtype or dtype
    axis = axis_in(axis, len(dims) + 1)
    return np.zeros((*dims[:axis], 0, *dims[axis:]), dtype)


@operator("Loop")
def loop(
    m: Array | None,
    cond: Array | None,
    /,
    *v_initial: Any,
    body: Body,
    captured: int = 0,
    wanted: int = 1,
) -> tuple[Any, ...]:
    """Turns until the condition is false or the count is reached: last states, and what each turn gave."""
    states, around = _parted(v_initial, captured)
    count, turns = len(states), None if m is None else int(only(m, "the trip count"))
    goes_on = cond is None or bool(only(cond, "the condition"))
    results: list[list[Array]] = [[] for _ in range(wanted - count)]
    turn = 0
    while goes_on and (turns is None or turn < turns):
        made = body.evaluate(np.array(turn, np.int64), np.array(goes_on), *states, *around)
        _same_count(made, 1 + count + len(results))
        goes_on = cond is None or bool(only(made[0], "the condition"))
        states = list(made[1 : 1 + count])
        for result, one in zip(results, made[1 + count :], strict=True):
            result.append(one)
        turn += 1
    return *states, *(_stacked(body, 1 + count + i, result) for i, result in enumerate(results))


@operator("Scan")
def scan(
    initial_state_and_scan_inputs: Any,
    /,
    *more: Any,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
    captured: int = 0,
    wanted: int = 1,
) -> tuple[Any, ...]:
    """Turns over slices of the last inputs: last states, and what each turn gave along an axis."""
    own, around = _parted((initial_state_and_scan_inputs, *more), captured)
    count = len(own) - num_scan_inputs
    if not 0 <= count <= wanted or not num_scan_inputs:
        raise LayoutError(f"{num_scan_inputs} of {len(own)} inputs can't be scanned for {wanted} outputs")
    states, scanned = own[:count], own[count:]
    axes = [axis_in(a, x.ndim) for a, x in zip(scan_input_axes or (0,) * len(scanned), scanned, strict=True)]
    backward = scan_input_directions or (0,) * len(scanned)
    slices = [
        np.moveaxis(x, axis, 0)[:: -1 if back else 1]
        for x, axis, back in zip(scanned, axes, backward, strict=True)
    ]
    if len({len(x) for x in slices}) > 1:
        raise LayoutError(f"scanned inputs have sizes {', '.join(str(len(x)) for x in slices)}")
    results: list[list[Array]] = [[] for _ in range(wanted - count)]
    for turn in range(len(slices[0])):
        made = body.evaluate(*states, *(np.asarray(x[turn]) for x in slices), *around)
        _same_count(made, wanted)
        states = list(made[:count])
        for result, one in zip(results, made[count:], strict=True):
            result.append(one)
    along = scan_output_axes or (0,) * len(results)
    back = scan_output_directions or (0,) * len(results)
    stacks = zip(results, along, back, strict=True)
    return *states, *(
        _stacked(body, count + i, result[:: -1 if turned else 1], axis)
        for i, (result, axis, turned) in enumerate(stacks)
    )


@operator("SequenceMap")
def sequence_map(
    input_sequence: list[Any],
    /,
    *additional_inputs: Any,
    body: Body,
    captured: int = 0,
    wanted: int = 1,
) -> tuple[list[Any], ...]:
    """A graph for each element: sequences of its results. Tensors beside the sequences are used whole."""
    own, around = _parted((input_sequence, *additional_inputs), captured)
    lengths = {len(one) for one in own if isinstance(one, list)}
    if not isinstance(input_sequence, list) or len(lengths) > 1:
        raise LayoutError(f"sequences must have one length, got {sorted(lengths)}")
    results: list[list[Any]] = [[] for _ in range(wanted)]
    for turn in range(len(input_sequence)):
        made = body.evaluate(*(one[turn] if isinstance(one, list) else one for one in own), *around)
        _same_count(made, wanted)
        for result, one in zip(results, made, strict=True):
            result.append(one)
    return tuple(results)
