"""Recurrent layers: ONNX's LSTM, GRU and RNN as primitives, with weights in the order of gates of oneDNN.

::

    W   d, g*o, c     gates of an LSTM i, o, f, c      weights_layer   1, d, c, g, o     i, f, c, o
    P   d, 3*o        i, o, f                          weights_peephole   1, d, 3, o     i, f, o
    Y   t, d, n, o                                     dst_layer       t, n, d*o         a view of it

What kernels don't do stays a definition: weights or lengths that are computed, sequences of several lengths,
gates that are coupled, functions that differ from direction to direction or that no kernel has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout import primitives
from relayout.errors import LayoutError
from relayout.graph.lowering.case import Case, Operand, label, row_major
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.graph.operators.recurrent import activations_of
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops.functions import Function
from relayout.records import dataclass
from relayout.runtime.kept import kept

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.layout.layout import Layout
    from relayout.primitives.recurrent import Recurrent
    from relayout.primitives.values import Value

__all__: list[str] = []

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2), "RNN": (0,)}
"""The gates of oneDNN, as positions among ONNX's."""
PEEPHOLES = (0, 2, 1)
USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
DIRECTIONS = {"forward": "left2right", "reverse": "right2left", "bidirectional": "bidirectional_concat"}
FUNCTIONS = {
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "logistic",
    "affine": "linear",
    "leakyrelu": "relu",
    "hardsigmoid": "hardsigmoid",
    "elu": "elu",
}
"""The kernels' names of functions; alpha and beta mean the same."""


@dataclass(frozen=True)
class _Layer:
    """A node as a primitive is made of it."""

    kind: str
    """The name of the primitive's class."""
    direction: str
    activations: tuple[tuple[str, float, float], ...]
    clip: float
    sizes: tuple[int, int, int, int, int]
    """Time steps, rows, channels, directions and units."""
    optional: tuple[str, ...]
    """The inputs besides data and weights."""
    results: tuple[str, ...]

    def made(self, src: MemoryDesc) -> Recurrent:
        """The primitive for data in a format; the destination follows it."""
        _, rows, channels, directions, units = self.sizes
        gates = {"LSTM": 4, "VanillaRNN": 1}.get(self.kind, 3)
        dims = {
            "weights_layer": (channels, gates, units),
            "weights_iter": (units, gates, units),
            "bias": (gates + (self.kind == "LBRGRU"), units),
            "src_iter": (rows, units),
            "src_iter_c": (rows, units),
            "weights_peephole": (3, units),
        }
        names = ("weights_layer", "weights_iter", *self.optional)
        narrow = src.dtype.name == "bf16"  # then weights are multiplied as they are
        types = dict.fromkeys(("weights_layer", "weights_iter"), "bf16" if narrow else "f32")
        descs = {
            name: MemoryDesc(
                (1, directions, *dims[name]),
                src.dtype if name.startswith("src") else types.get(name, "f32"),
                "ldnc" if name.startswith("src") else any_format,
            )
            for name in names
        }
        functions = [Function(*one) for one in self.activations]
        last = MemoryDesc((1, directions, rows, units), src.dtype, any_format)
        more: dict[str, Any] = dict.fromkeys(self.results, last)
        more |= {"activation": functions[0]} if self.kind == "VanillaRNN" else {"activations": functions}
        made: Recurrent = getattr(primitives, self.kind)(
            src, **descs, **more, direction=self.direction, clip=self.clip or None
        )
        return made


@kept("recurrent")
def _cost(
    kind: str,
    direction: str,
    activations: tuple[tuple[str, float, float], ...],
    clip: float,
    sizes: tuple[int, int, int, int, int],
    optional: tuple[str, ...],
    results: tuple[str, ...],
    dtype: str,
    tag: str,
) -> float:
    """Seconds, for data in a format."""
    layer = _Layer(kind, direction, activations, clip, sizes, optional, results)
    return layer.made(MemoryDesc(sizes[:3], dtype, tag)).candidates()[0].cost


@rule("LSTM", "GRU", "RNN")
def recurrent(case: Case) -> Iterator[Way] | None:
    """A layer with constant weights, all of whose sequences are equally long."""
    src, functions = case.inputs[0], _functions(case)
    if src is None or src.data is not None or functions is None or case.chain or not case.floats_of(src):
        return None
    weights = _weights(case)
    if weights is None or not _of_one_length(case, src):
        return None
    turned = bool(case.attributes["layout"])
    time, rows = src.dims[1 if turned else 0], src.dims[0 if turned else 1]
    directions, units = weights["weights_layer"].shape[1], weights["weights_iter"].shape[2]
    sizes = (time, rows, src.dims[2], directions, units)
    if 0 in sizes or case.attributes.get("hidden_size") not in (None, units):
        return None
    initial = _initial(case)
    results = tuple(
        name for name, one in zip(("dst_iter", "dst_iter_c"), case.outputs[1:], strict=False) if one.name
    )
    order = ("bias", "src_iter", "src_iter_c", "weights_peephole")
    layer = _Layer(
        _kind(case),
        DIRECTIONS[case.attributes["direction"]],
        functions,
        float(case.attributes["clip"] or 0.0),
        sizes,
        tuple(name for name in order if name in weights or name in initial),
        results,
    )
    return _ways(case, src, layer, weights, initial, turned)


def _ways(
    case: Case,
    src: Operand,
    layer: _Layer,
    weights: dict[str, NDArray[Any]],
    initial: dict[str, Operand],
    turned: bool,
) -> Iterator[Way]:
    """Steps outside, or rows: data, and results in the same order."""

    def make(site: Site) -> tuple[Value, ...]:
        value = site.value(src)
        value = site.transposed(value, (1, 0, 2)) if turned else value
        made = layer.made(value.desc)
        given: dict[str, Any] = {"src_layer": value, **weights}
        given |= {name: _state(site, one, turned) for name, one in initial.items()}
        found = dict(
            zip(made.outputs, site.add_several(made, *(given[name] for name in made.inputs)), strict=True)
        )
        return tuple(_result(site, layer, name, found, turned) for name in NAMES[: len(case.outputs)])

    read = {one.name: row_major(one.dims, one.dtype) for one in initial.values() if one.data is None}
    states = [row_major(one.dims, one.dtype) for one in case.outputs[1:]]
    if turned:
        states = [MemoryDesc(one.dims, one.dtype, "bac") if one.dims[0] else one for one in states]
    for tag in ("tnc", "ntc"):
        dims = (src.dims[1], src.dims[0], src.dims[2]) if turned else src.dims
        data, result = (
            MemoryDesc(layout.dims, src.dtype, layout)
            for layout in (
                _as_given(MemoryDesc(dims, "f32", tag).layout.with_roles(None), turned),
                _seen(_dst(layer, tag), layer, turned),
            )
        )
        cost = _cost(
            *(layer.kind, layer.direction, layer.activations, layer.clip, layer.sizes),
            *(layer.optional, layer.results, src.dtype, tag),
        )
        more = sum(moving(desc) for desc in read.values())
        yield Way({**read, src.name: label(data)}, (label(result), *states), cost + more, make, tag)


NAMES = ("dst_layer", "dst_iter", "dst_iter_c")


def _dst(layer: _Layer, tag: str) -> Layout:
    time, rows, _, directions, units = layer.sizes
    return MemoryDesc((time, rows, directions * units), "f32", tag).layout.with_roles(None)


def _as_given(layout: Layout, turned: bool) -> Layout:
    """The layout of the data as the node has it, of that of the primitive."""
    return views.permute(layout, (1, 0, 2)) if turned else layout


def _seen(layout: Layout, layer: _Layer, turned: bool) -> Layout:
    """The layout of all results as the node has them, of that of the primitive."""
    layout = views.split_axis(layout, 2, layer.sizes[3:])
    return views.permute(layout, (1, 0, 2, 3) if turned else (0, 2, 1, 3))


def _result(site: Site, layer: _Layer, name: str, found: dict[str, Value], turned: bool) -> Value:
    """A result under the dims that the node has for it."""
    if name == "dst_layer":
        return site.viewed(found[name], lambda layout: _seen(layout, layer, turned))
    if name not in found:  # nobody reads it
        return found["dst_layer"]
    value = site.reshaped(found[name], found[name].desc.dims[1:])
    return site.transposed(value, (1, 0, 2)) if turned else value


def _state(site: Site, operand: Operand, turned: bool) -> Value:
    """An initial state of one layer, row-major."""
    value = site.value(operand)
    if turned:
        value = site.transposed(value, (1, 0, 2))
    value = site.reshaped(value, (1, *value.desc.dims))
    dtype = value.desc.dtype
    return site.sequence.reorder(value, MemoryDesc(value.desc.dims, dtype, "ldnc"))


def _kind(case: Case) -> str:
    if case.operator == "GRU":
        return "LBRGRU" if case.attributes["linear_before_reset"] else "GRU"
    return {"LSTM": "LSTM", "RNN": "VanillaRNN"}[case.operator]


def _functions(case: Case) -> tuple[tuple[str, float, float], ...] | None:
    """The functions of the gates; None: kernels don't have them."""
    a, usual = case.attributes, USUAL[case.operator]
    directions = 2 if a["direction"] == "bidirectional" else 1
    names = a["activations"]
    if case.operator == "RNN" and names is not None:
        names = names[:directions]
    if a["direction"] not in DIRECTIONS or a.get("input_forget"):
        return None
    try:
        named = activations_of(names, usual, directions, a["activation_alpha"], a["activation_beta"])
    except LayoutError:  # the definition says so, too
        return None
    found = [
        (FUNCTIONS.get(name, ""), numbers.get("alpha", 0.0), numbers.get("beta", 0.0))
        for name, numbers in named
    ]
    first = found[: len(usual)]
    if any(not name for name, *_ in found) or found != first * directions:
        return None
    return tuple(first)


def _weights(case: Case) -> dict[str, NDArray[Any]] | None:
    """All constants, as the primitive takes them; None where some are computed, or have other dims."""
    places = {"weights_layer": 1, "weights_iter": 2, "bias": 3}
    places |= {"weights_peephole": 7} if case.operator == "LSTM" else {}
    found = {}
    for name, place in places.items():
        operand = case.input(place)
        if operand is None:
            continue
        if operand.data is None or not case.floats_of(operand):
            return None
        found[name] = operand.data.astype(np.float32)
    if not {"weights_layer", "weights_iter"} <= set(found) or any(
        found[name].ndim != 3 for name in ("weights_layer", "weights_iter")
    ):
        return None
    directions, units = found["weights_iter"].shape[0], found["weights_iter"].shape[2]
    order = list(GATES[case.operator])
    for name in ("weights_layer", "weights_iter"):
        data = found[name]
        if data.shape[:2] != (directions, len(order) * units):
            return None
        gates = data.reshape(directions, len(order), units, data.shape[2])[:, order]
        found[name] = np.ascontiguousarray(gates.transpose(0, 3, 1, 2)[None])
    if "bias" in found:
        if found["bias"].shape != (directions, 2 * len(order) * units):
            return None
        own, state = found["bias"].reshape(directions, 2, len(order), units)[:, :, order].swapaxes(0, 1)
        if _kind(case) == "LBRGRU":
            both = [own[:, :2] + state[:, :2], own[:, 2:], state[:, 2:]]
            found["bias"] = np.concatenate(both, axis=1)[None]
        else:
            found["bias"] = (own + state)[None]
    if "weights_peephole" in found:
        if found["weights_peephole"].shape != (directions, 3 * units):
            return None
        holes = found["weights_peephole"].reshape(directions, 3, units)[:, list(PEEPHOLES)]
        found["weights_peephole"] = np.ascontiguousarray(holes[None])
    return found


def _of_one_length(case: Case, src: Operand) -> bool:
    """Whether all sequences have all elements."""
    operand = case.input(4)
    if operand is None:
        return True
    time = src.dims[1 if case.attributes["layout"] else 0]
    return operand.data is not None and bool((operand.data == time).all())


def _initial(case: Case) -> dict[str, Operand]:
    """The states to begin with, but for zeros."""
    found = {}
    for k, name in enumerate(("src_iter", "src_iter_c")[: STATES[case.operator]]):
        operand = case.input(5 + k)
        if operand is not None and (operand.data is None or operand.data.any()):
            found[name] = operand
    return found
