"""The program of a recurrent layer.

::

    src_layer  --- product, all steps at once, for each direction --->  given     what the data gives to gates
    src_iter   --- reorder --->  hidden     the states, in two places in turn
                                   |
                       the recurrence: one kernel for all steps (relayout.kernels.recurrent)
                                   |
    dst_iter   <-- reorder ---  hidden            results --->  dst_layer, or the next layer's data

Each layer does that. Weights, biases, states in other formats or data types than these kernels read are
reordered first, in every call. Products take part in contests (:mod:`relayout.primitives.several`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.expressions import Expression
from relayout.ops.recurrent import Workspace
from relayout.primitives.several import Assembled, Impossible, Steps

if TYPE_CHECKING:
    from relayout.kernels.recurrent.plan import Kept, Recurrence
    from relayout.primitives.products import Products
    from relayout.primitives.recurrent import Recurrent

__all__ = [
    "APART",
    "WORD",
    "Packed",
    "costs",
    "kept",
    "moved",
    "packed",
    "part_of",
    "places_of",
    "program",
]

WORD = 4  # bytes of f32
ADDED = Expression.of(("f32", "f32"), [("add", "f32", (0, 1))])  # the results of both directions
APART = 64  # bytes by which rows of a state are longer than they must be: not all in one set of a cache


@dataclass(frozen=True)
class Packed:
    """The formats of what kernels read, all f32."""

    weights_layer: str
    weights_iter: str
    weights_projection: str
    bias: str
    weights_peephole: str

    def of(self, name: str, desc: MemoryDesc) -> MemoryDesc:
        """An argument in its format."""
        return MemoryDesc(desc.dims, "f32", getattr(self, name))


def packed(lanes: int) -> Packed:
    """Those for vectors of so many lanes.

    >>> packed(16).weights_iter
    'ldOig16o'
    """
    return Packed(f"ldgOi{lanes}o", f"ldOig{lanes}o", f"ldOi{lanes}o", f"ldgO{lanes}o", f"ldgO{lanes}o")


def moved(desc: MemoryDesc, offset: int) -> MemoryDesc:
    """The same so many elements further."""
    return MemoryDesc(desc.dims, desc.dtype, desc.layout.moved(offset))


def part_of(desc: MemoryDesc, dims: tuple[int, ...], offsets: tuple[int, ...]) -> MemoryDesc:
    """A part of a tensor, which must not cut blocks."""
    try:
        layout = views.submemory(desc.layout.with_roles(None), dims, offsets)
    except LayoutError:  # it cuts blocks
        raise Impossible from None
    return MemoryDesc(dims, desc.dtype, layout)


def places_of(
    desc: MemoryDesc, directions: int, width: int, both: bool = False
) -> tuple[int, int, int, int] | None:
    """Strides of steps, rows and directions in the results of a layer, and where they begin.

    None: units of a direction don't lie side by side. ``both``: all directions have the same place.
    """
    layout = desc.layout
    if any(len(term) != 1 for term in layout.terms):
        return None
    ladders = {term[0]: ladder for term, ladder in zip(layout.terms, layout.ladders, strict=True)}
    if any(len(ladders[axis]) > 1 for axis in (0, 1)):
        return None
    step, row = (ladders[axis][0].stride if ladders[axis] else 0 for axis in (0, 1))
    offsets = layout.offsets([[0, 0, k] for k in range(desc.dims[2])]) - layout.offset0
    several = directions > 1 and not both
    apart = int(offsets[width]) if several else 0
    wanted = [d * apart + k for d in range(directions if several else 1) for k in range(width)]
    return (step, row, apart, layout.offset0) if offsets.tolist() == wanted else None


@locked
def kept(workspace: Workspace, layer: int) -> Kept:
    """The workspace of a layer, as kernels see it."""
    from relayout.kernels.recurrent.plan import Kept

    starts = {name: at * WORD for name, at in workspace.starts(layer, 0).items()}
    first = starts["states"]
    memories = starts.get("memories", first) - first
    gates = workspace.dims["gates"][2] * workspace.units * WORD
    row = workspace.state * WORD, workspace.units * WORD, gates
    return Kept(first, workspace.apart * WORD, memories, starts["gates"] - first, row)


def initial(workspace: Workspace, layer: int, name: str, backward: Sequence[bool]) -> MemoryDesc:
    """The initial states of a layer's directions in the workspace: ``src_iter`` or ``src_iter_c``."""
    part = "memories" if name.endswith("_c") else "states"
    steps, rows, width = workspace.dims[part]
    places = [workspace.starts(layer, d)[part] + turned * (steps - 1) * rows * width
              for d, turned in enumerate(backward)]  # fmt: skip
    apart = places[-1] - places[0]
    desc = MemoryDesc((1, len(backward), rows, width), "f32", strides=(0, apart, width, 1))
    return MemoryDesc(desc.dims, desc.dtype, desc.layout.moved(places[0]))


@locked
def program(made: Recurrent) -> Assembled | None:
    """The program; None where there is no kernel for it."""
    try:
        return _Lowering(made).program()
    except Impossible:
        return None


@locked
def costs(made: Recurrent) -> tuple[float, str] | None:
    """About how many seconds a call takes, and how it is done; None where there are no kernels."""
    from relayout.kernels.conv.cost import FACTS
    from relayout.kernels.recurrent.plan import cycles
    from relayout.primitives.products import ways
    from relayout.reorder.predict import seconds_to_move
    from relayout.runtime import threads
    from relayout.runtime.clock import cycles_per_second

    lowering = _Lowering(made)
    counted, words = 0.0, ""
    for layer in range(made.layers):
        plan = lowering.recurrence(layer)
        counted += cycles(plan, threads.count())
        for d in range(len(made.backward)):
            found = ways(lowering.product(layer, d))
            if found is None:
                return None
            counted += found.candidates[0].cost * FACTS.clock
        words = str(plan)
    moved = 2 * sum(made.descs[name].nbytes for name in lowering.repacked)
    moved += 0 if lowering.direct else 2 * made.descs["dst_layer"].nbytes
    return counted / cycles_per_second() + (seconds_to_move(moved) if moved else 0.0), words


class _Lowering:
    @locked
    def __init__(self, made: Recurrent) -> None:
        from relayout.kernels.conv.tile import lanes_of
        from relayout.kernels.recurrent.cell import Cell
        from relayout.targets.machine import host

        what = made.operation
        self.made, self.machine, self.sums = made, host(), what.sums
        optional = (f"weights_{name}" in made.inputs for name in ("peephole", "projection"))
        self.cell = Cell(what.cell, what.activations, what.clip, *optional)
        self.lanes = lanes_of(self.machine)
        self.out = Steps()
        self.time, self.batch, self.channels = made.descs["src_layer"].dims
        self.units, self.outputs = made.units, made.outputs_of_state
        self.directions = len(made.backward)
        self.room = ceil(self.units / self.lanes) * self.lanes
        self.pitch = ceil(self.outputs / self.lanes) * self.lanes + APART // WORD
        self.between = self.room + APART // WORD
        size = (self.time, self.batch, made.layers, self.directions, self.units, self.outputs)
        self.workspace = Workspace(self.cell.kind, *size)
        self.names = {name: name for name in (*made.inputs, *made.outputs)}
        self.descs = dict(made.descs)
        formats = packed(self.lanes)
        self.repacked = [
            name
            for name in made.inputs
            if name.startswith(("weights", "bias")) and self.descs[name] != formats.of(name, self.descs[name])
        ]
        self.formats = formats
        source = self.descs["src_layer"]
        steps, rows = (abs(ladder[0].stride) if ladder else 0 for ladder in source.layout.ladders[:2])
        self.turned = steps < rows  # then so is what the data gives
        if source.dtype.name != "f32":
            text = "ntc" if self.turned else "tnc"
            self.descs["src_layer"] = MemoryDesc(source.dims, "f32", text)
        if self.cell.attentive:
            self.descs["attention"] = MemoryDesc((self.time, self.batch, 1), "f32", "tnc")

    # -- places ---------------------------------------------------------------------------------------------

    @property
    def direct(self) -> bool:
        """Whether the last layer writes to the destination itself."""
        return self.places() is not None

    def places(self) -> tuple[int, int, int, int] | None:
        """Where the destination is written; None: not directly."""
        desc = self.descs["dst_layer"]
        if desc.dtype.name != "f32" or self.made.operation.sums:
            return None
        return places_of(desc, self.directions, self.outputs)

    def kept(self) -> MemoryDesc:
        """The results of a layer in scratch, those of its directions side by side."""
        return MemoryDesc((self.time, self.batch, self.directions * self.outputs), "f32", "tnc")

    def result(self, layer: int) -> str:
        """The buffer with the results of a layer."""
        if layer == self.made.layers - 1:
            return "dst_layer" if self.direct else "results"
        return f"results{layer % 2}"

    def of_direction(self, d: int) -> MemoryDesc:
        """Those of one direction."""
        return part_of(self.kept(), (self.time, self.batch, self.outputs), (0, 0, d * self.outputs))

    # -- products -------------------------------------------------------------------------------------------

    @locked
    def product(self, layer: int, d: int) -> Products:
        """What the data of a layer gives to the gates of a direction, for all steps."""
        from relayout.kernels.conv.geometry import Geometry
        from relayout.primitives.products import Products

        one = (1, 1, 1)
        data = self.descs["src_layer"] if layer == 0 else self.of_direction(d)
        inputs, gates = data.dims[2], self.cell.gates * self.room
        order = (1, 2, 0) if self.turned else (0, 2, 1)
        layout = views.permute(data.layout.with_roles(None), order)
        src = MemoryDesc(layout.dims, data.dtype, layout)
        outer, _, inner = src.dims
        strides = (inner * gates, 1, gates)
        given = MemoryDesc((outer, gates, inner), "f32", strides=strides)
        given = moved(given, d * outer * inner * gates)
        number = layer * self.directions + d
        weights = MemoryDesc((gates, inputs, 1), "f32", f"Oiw{self.lanes}o")
        weights = moved(weights, number * gates * inputs)
        bias = None
        if "bias" in self.descs:
            bias = moved(MemoryDesc((gates,), "f32", "a"), number * self.cell.biases * self.room)
        size = (1, 1, inner)
        geometry = Geometry(outer, 1, inputs, gates, size, size, one, one, one, (0, 0, 0))
        return Products(geometry, src, weights, given, bias)

    # -- the recurrence -------------------------------------------------------------------------------------

    @locked
    def recurrence(self, layer: int) -> Recurrence:
        """The kernel of a layer."""
        from relayout.kernels.recurrent.plan import ALONE, Places, Recurrence, planned
        from relayout.runtime import threads

        made, gates = self.made, self.cell.gates * self.room
        outer, inner = (self.time * gates, gates) if self.turned else (gates, self.batch * gates)
        given = Places(inner * WORD, outer * WORD, self.time * self.batch * gates * WORD)
        places = self.places() if layer == made.layers - 1 else None
        if places is None:
            row = self.directions * self.outputs
            places = (self.batch * row, row, self.outputs, 0)

        def span(size: int) -> tuple[int, int]:
            return layer * self.directions * size * WORD, size * WORD

        plan = Recurrence(
            self.cell,
            self.machine,
            self.time,
            self.batch,
            self.units,
            self.outputs,
            made.backward,
            ALONE,
            given,
            self.room * WORD,
            Places(*(n * WORD for n in places)),
            self.pitch * WORD,
            self.between * WORD,
            weights=span(self.outputs * gates),
            projection=span(self.units * ceil(self.outputs / self.lanes) * self.lanes),
            bias=span(self.cell.biases * self.room),
            peephole=span(3 * self.room),
            kept=kept(self.workspace, layer) if "workspace" in made.outputs else None,
        )
        return planned(plan, threads.count())

    def state(self, layer: int, name: str) -> tuple[MemoryDesc, MemoryDesc]:
        """A state of a layer among those of all layers, and in scratch at the beginning or at the end."""
        desc = self.descs.get(name)
        memory = name.endswith("_c")
        width = self.units if memory else self.outputs
        dims = (1, self.directions, self.batch, width)
        pitch = self.between if memory else self.pitch
        places = 1 if memory else 2
        last = self.time % 2 if name.startswith("dst") and not memory else 0
        strides = (self.directions * places * self.batch * pitch, places * self.batch * pitch, pitch, 1)
        here = moved(MemoryDesc(dims, "f32", strides=strides), last * self.batch * pitch)
        if desc is None:
            return MemoryDesc(dims, "f32", strides=(0, 0, 0, 0)), here
        return part_of(desc, dims, (layer, 0, 0, 0)), here

    # -- all together ---------------------------------------------------------------------------------------

    @locked
    def program(self) -> Assembled:
        from relayout.primitives.lowering import zeros_step

        made, out = self.made, self.out
        for name in made.outputs:
            if self.descs[name].layout.has_padding:
                out.add(zeros_step(self.descs[name], name))
        for name in self.repacked:
            desc = self.formats.of(name, self.descs[name])
            target = out.room(f"{name} packed", desc.nbytes)
            out.reorder(self.descs[name], desc, name, target)
            self.names[name] = target
        for source, target in (("src_layer", "data"), ("attention", "attention in order")):
            if source in made.inputs and self.descs[source] != made.descs[source]:
                desc = self.descs[source]
                out.reorder(made.descs[source], desc, source, out.room(target, desc.nbytes))
                self.names[source] = target
        for layer in range(made.layers):
            self.layer(layer)
        if not self.direct:
            self.assemble()
        return out.assembled()

    @locked
    def layer(self, layer: int) -> None:
        made, out = self.made, self.out
        rows = self.directions * self.batch
        gates = self.time * rows * self.cell.gates * self.room
        given = out.room("given", gates * WORD)
        source = self.names["src_layer"] if layer == 0 else self.result(layer - 1)
        names = {"src": source, "dst": given, "weights": self.names["weights_layer"]}
        if "bias" in self.descs:
            names["bias"] = self.names["bias"]
        for d in range(self.directions):
            out.part(self.product(layer, d), names)
        states = {"src_iter": "hidden", "src_iter_c": "memory"}
        out.room("hidden", 2 * rows * self.pitch * WORD)
        out.room("memory", rows * self.between * WORD if self.cell.has_memory else WORD)
        out.room("between", rows * self.between * WORD)
        for name, where in states.items():
            if where == "memory" and not self.cell.has_memory:
                continue
            if name in made.inputs:
                out.reorder(*self.state(layer, name), self.names[name], where)
            else:
                out.constants["zero"] = np.zeros(WORD, np.uint8)
                out.reorder(*self.state(layer, name), "zero", where)
            if "workspace" in made.outputs:
                there = initial(self.workspace, layer, name, made.backward)
                out.reorder(self.state(layer, name)[0], there, self.names.get(name, "zero"), "workspace")
        plan = self.recurrence(layer)
        self.recur(plan, self.result(layer))
        for name, where in (("dst_iter", "hidden"), ("dst_iter_c", "memory")):
            if name in made.outputs:
                there, here = self.state(layer, name)
                out.reorder(here, there, where, name)

    @locked
    def recur(self, plan: Recurrence, target: str) -> None:
        """The kernel of all steps."""
        from relayout.kernels.recurrent.module import OPERANDS
        from relayout.kernels.recurrent.turns import room
        from relayout.primitives.recurrence import Recurring

        out, made = self.out, self.made
        if target != "dst_layer":
            out.room(target, self.kept().nbytes)
        buffers = {
            "weights": self.names["weights_iter"],
            "projection": self.names.get("weights_projection", "hidden"),
            "bias": self.names.get("bias", "hidden"),
            "peephole": self.names.get("weights_peephole", "hidden"),
            "attention": self.names.get("attention", "hidden"),
            "workspace": "workspace" if plan.kept is not None else "hidden",
            "turns": "hidden",
        }
        if self.cell.biases > self.cell.gates and "bias" not in self.descs:
            size = made.layers * self.directions * self.cell.biases * self.room * WORD
            out.constants["no bias"] = np.zeros(size, np.uint8)
            buffers["bias"] = "no bias"
        if plan.turns:
            size = room(plan.tasks)
            out.constants["nobody"] = np.zeros(size, np.uint8)
            words = MemoryDesc((size,), "u8", "a")
            buffers["turns"] = out.room("turns", size)
            out.reorder(words, words, "nobody", "turns")
        names = {name: buffers.get(name, name) for name in OPERANDS}
        out.part(Recurring("recurrent", plan), names | {"src": "given", "dst": target})

    @locked
    def assemble(self) -> None:
        """The destination from the results of the directions."""
        from relayout.primitives.lowering import elementwise

        dst, out = self.descs["dst_layer"], self.out
        if self.sums:
            parts = {f"results of {d}": self.of_direction(d) for d in range(self.directions)}
            added = elementwise(dst, parts, ADDED, target="dst_layer")
            if added is None:
                raise Impossible
            out.append(added, dict.fromkeys(parts, "results"))
            return
        out.reorder(self.kept(), dst, "results", "dst_layer")
