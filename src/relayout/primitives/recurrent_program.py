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

Data and weights of bf16 are multiplied as they are, by the instruction of the processor if it has one. Then
there is a second array of states, ``factors``, which are rounded to bf16; a layer above another one is given
its states rounded, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from relayout.dtypes import dtype
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.expressions import Expression
from relayout.ops.recurrent import MULTIPLIED, Workspace
from relayout.primitives.recurrent_layers import APART, WORD, Layers, kept, moved, part_of, places_of
from relayout.primitives.several import Assembled, assembled
from relayout.records import dataclass

if TYPE_CHECKING:
    from relayout.kernels.conv.arithmetic import Arithmetic
    from relayout.kernels.recurrent.plan import Recurrence
    from relayout.primitives.products import Products
    from relayout.primitives.recurrent import Recurrent
    from relayout.targets.machine import Machine

__all__ = ["ForwardLayers", "Packed", "multiplies", "packed", "packed_for"]

ADDED = Expression.of(("f32", "f32"), [("add", "f32", (0, 1))])  # the results of both directions


@dataclass(frozen=True)
class Packed:
    """The formats of what kernels read."""

    formats: dict[str, str]
    weights: str = "f32"
    """The data type of weights; all else is f32."""

    def of(self, name: str, desc: MemoryDesc) -> MemoryDesc:
        """An argument in its format."""
        return MemoryDesc(desc.dims, self.weights if name in MULTIPLIED else "f32", self.formats[name])


@locked
def multiplies(rounds: str, machine: Machine) -> Arithmetic:
    """The arithmetic of products with weights of a type to which states are rounded; empty: of f32.

    Rows of a state are few and lie as they are needed, so tiles of a matrix unit and instructions that take
    two rows at once are left to the products with the data.

    >>> from relayout.targets.machine import machine
    >>> [multiplies("bf16", machine(cpu)).dot for cpu in ("znver4", "sapphirerapids", "x86-64-v4")]
    ['vdpbf16ps', 'vdpbf16ps', '']
    """
    from relayout.kernels.conv.arithmetic import FLOATS, dots_of
    from relayout.kernels.conv.geometry import Geometry

    if not rounds:
        return FLOATS
    kind = dtype(rounds)
    several = dots_of(kind, kind, Geometry.of_matrices(1, 64, 64), machine)
    found = (how for how in several if not how.matrices)
    return next(found, FLOATS)


def packed(lanes: int, depth: int = 1, weights: str = "f32") -> Packed:
    """Those for vectors of so many lanes, and instructions that add up so many products.

    >>> packed(16).formats["weights_iter"], packed(16, 2, "bf16").formats["weights_iter"]
    ('ldOig16o', 'ldOIg16o2i')
    """
    i, inner = ("I", f"{lanes}o{depth}i") if depth > 1 else ("i", f"{lanes}o")
    rows = f"ldgO{lanes}o"
    formats = {
        "weights_layer": f"ldgO{i}{inner}",
        "weights_iter": f"ldO{i}g{inner}",
        "weights_projection": f"ldO{i}{inner}",
        "bias": rows,
        "weights_peephole": rows,
    }
    return Packed(formats, weights)


@locked
def packed_for(rounds: str, machine: Machine) -> Packed:
    """Those for a layer on a processor."""
    from relayout.kernels.conv.tile import lanes_of

    how = multiplies(rounds, machine)
    return packed(lanes_of(machine), how.depth, rounds if how.dot else "f32")


def initial(workspace: Workspace, layer: int, name: str, backward: Sequence[bool]) -> MemoryDesc:
    """The initial states of a layer's directions in the workspace: ``src_iter`` or ``src_iter_c``."""
    part = "memories" if name.endswith("_c") else "states"
    steps, rows, width = workspace.dims[part]
    places = [workspace.starts(layer, d)[part] + turned * (steps - 1) * rows * width
              for d, turned in enumerate(backward)]  # fmt: skip
    apart = places[-1] - places[0]
    return moved(MemoryDesc((1, len(backward), rows, width), "f32", strides=(0, apart, width, 1)), places[0])


class ForwardLayers(Layers):
    """The layers of a primitive, lowered."""

    @locked
    def __init__(self, made: Recurrent) -> None:
        what = made.operation
        super().__init__(made, what.clip)
        self.rounds, self.arithmetic = what.rounds, multiplies(what.rounds, self.machine)
        self.pitch = ceil(self.outputs / self.lanes) * self.lanes + APART // WORD
        self.between = self.room + APART // WORD
        formats = packed_for(what.rounds, self.machine)
        self.repacked = [
            name
            for name in made.inputs
            if name.startswith(("weights", "bias")) and self.descs[name] != formats.of(name, self.descs[name])
        ]
        self.formats = formats
        source = self.descs["src_layer"]
        steps, rows = (abs(ladder[0].stride) if ladder else 0 for ladder in source.layout.ladders[:2])
        self.turned = steps < rows  # then so is what the data gives
        if source.dtype.name not in ("f32", what.rounds):
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

    def given(self, layer: int) -> str:
        """The buffer with the data of a layer."""
        if layer == 0:
            return self.names["src_layer"]
        return "results rounded" if self.rounds else self.result(layer - 1)

    def rounded(self) -> MemoryDesc:
        """The results of a layer as the layer above is given them."""
        return MemoryDesc(self.kept().dims, self.rounds or "f32", "tnc")

    def of_direction(self, d: int) -> MemoryDesc:
        """Those of one direction."""
        return part_of(self.kept(), (self.time, self.batch, self.outputs), (0, 0, d * self.outputs))

    @property
    def bytes_moved(self) -> int:
        """Those of the destination, too, where it is not written directly."""
        return super().bytes_moved + (0 if self.direct else self.made.descs["dst_layer"].nbytes)

    # -- products -------------------------------------------------------------------------------------------

    def sums_of(self, layer: int) -> Iterator[Products]:
        """One for each direction."""
        for d in range(self.directions):
            yield self.product(layer, d)

    @locked
    def product(self, layer: int, d: int) -> Products:
        """What the data of a layer gives to the gates of a direction, for all steps."""
        from relayout.kernels.conv.geometry import Geometry
        from relayout.primitives.products import Products

        data = self.descs["src_layer"]
        if layer:
            data = part_of(self.rounded(), (self.time, self.batch, self.outputs), (0, 0, d * self.outputs))
        inputs, gates = data.dims[2], self.cell.gates * self.room
        order = (1, 2, 0) if self.turned else (0, 2, 1)
        layout = views.permute(data.layout.with_roles(None), order)
        src = data.with_layout(layout)
        outer, _, inner = src.dims
        strides = (inner * gates, 1, gates)
        given = MemoryDesc((outer, gates, inner), "f32", strides=strides)
        given = moved(given, d * outer * inner * gates)
        number = layer * self.directions + d
        depth = self.arithmetic.depth
        text = f"OIw{self.lanes}o{depth}i" if depth > 1 else f"Oiw{self.lanes}o"
        weights = MemoryDesc((gates, inputs, 1), self.formats.weights, text)
        weights = moved(weights, number * gates * ceil(inputs / depth) * depth)
        bias = None
        if "bias" in self.descs:
            bias = moved(MemoryDesc((gates,), "f32", "a"), number * self.cell.biases * self.room)
        geometry = Geometry.of_matrices(outer, inputs, gates, pixels=inner)
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

        how = self.arithmetic

        def span(size: int) -> tuple[int, int]:
            return layer * self.directions * size * WORD, size * WORD

        def span_of(inputs: int, outputs: int) -> tuple[int, int]:
            """Of weights, of which a step of the sum takes as many bytes as f32 has."""
            return span(ceil(inputs / how.depth) * outputs)

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
            weights=span_of(self.outputs, gates),
            projection=span_of(self.units, ceil(self.outputs / self.lanes) * self.lanes),
            bias=span(self.cell.biases * self.room),
            peephole=span(3 * self.room),
            kept=kept(self.workspace, layer) if "workspace" in made.outputs else None,
            arithmetic=how,
            rounded=self.rounds,
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
        """Layer by layer."""
        made, out = self.made, self.out
        for name in made.outputs:
            out.zeros(self.descs[name], name)
        for name in self.repacked:
            self.moved_to(name, self.formats.of(name, self.descs[name]), f"{name} packed")
        for name, room in (("src_layer", "data"), ("attention", "attention in order")):
            if name in made.inputs:
                self.moved_to(name, self.descs[name], room)
        for layer in range(made.layers):
            self.layer(layer)
        if not self.direct:
            self.assemble()
        return assembled(out)

    @locked
    def layer(self, layer: int) -> None:
        """The steps of a layer."""
        made, out = self.made, self.out
        rows = self.directions * self.batch
        gates = self.time * rows * self.cell.gates * self.room
        given = out.room("given", gates * WORD)
        source = self.given(layer)
        if layer and self.rounds:
            out.reorder(
                self.kept(), self.rounded(), self.result(layer - 1), out.room(source, self.rounded().nbytes)
            )
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
            there, here = self.state(layer, name)
            if name in made.inputs:
                source = self.names[name]
            else:
                out.constants["zero"] = np.zeros(WORD, np.uint8)
                source = "zero"
            out.reorder(there, here, source, where)
            if name == "src_iter" and self.rounds:
                self.round_states(there, here, source)
            if "workspace" in made.outputs:
                kept = initial(self.workspace, layer, name, made.backward)
                out.reorder(there, kept, source, "workspace")
        plan = self.recurrence(layer)
        self.recur(plan, self.result(layer))
        for name, where in (("dst_iter", "hidden"), ("dst_iter_c", "memory")):
            if name in made.outputs:
                there, here = self.state(layer, name)
                out.reorder(here, there, where, name)

    @locked
    def round_states(self, src: MemoryDesc, dst: MemoryDesc, source: str) -> None:
        """What the first step multiplies: the initial states, rounded.

        Kernels without an instruction for narrow numbers multiply rounded numbers of f32.
        """
        out, element = self.out, self.arithmetic.element
        pitch = self.pitch * WORD // element  # rows lie as those of the states do
        strides = (2 * self.directions * self.batch * pitch, 2 * self.batch * pitch, pitch, 1)
        factors = MemoryDesc(dst.dims, self.arithmetic.operand, strides=strides)
        target = out.room("factors", 2 * self.directions * self.batch * self.pitch * WORD)
        if self.arithmetic.operand != self.rounds and src.dtype.name != self.rounds:
            rounded = MemoryDesc(dst.dims, self.rounds, "ldnc")
            out.reorder(src, rounded, source, out.room("states rounded", rounded.nbytes))
            src, source = rounded, "states rounded"
        out.reorder(src, factors, source, target)

    @locked
    def recur(self, plan: Recurrence, target: str) -> None:
        """The kernel of all steps."""
        from relayout.kernels.recurrent.module import OPERANDS

        out, made = self.out, self.made
        if target != "dst_layer":
            out.room(target, self.kept().nbytes)
        buffers = {
            "weights": self.names["weights_iter"],
            "projection": self.names.get("weights_projection", "hidden"),
            "bias": self.names.get("bias", "hidden"),
            "peephole": self.names.get("weights_peephole", "hidden"),
            "attention": self.names.get("attention", "hidden"),
            "factors": "factors" if self.rounds else "hidden",
            "workspace": "workspace" if plan.kept is not None else "hidden",
            "turns": "hidden",
        }
        if self.cell.biases > self.cell.gates and "bias" not in self.descs:
            size = made.layers * self.directions * self.cell.biases * self.room * WORD
            out.constants["no bias"] = np.zeros(size, np.uint8)
            buffers["bias"] = "no bias"
        self.kernel("recurrent", plan, OPERANDS, buffers, "given", target)

    @locked
    def assemble(self) -> None:
        """The destination from the results of the directions."""
        from relayout.primitives.lowering import elementwise

        dst, out = self.descs["dst_layer"], self.out
        if self.sums:
            parts = {f"results of {d}": self.of_direction(d) for d in range(self.directions)}
            added = elementwise(dst, parts, ADDED, target="dst_layer")
            out.append(added, dict.fromkeys(parts, "results"))
            return
        out.reorder(self.kept(), dst, "results", "dst_layer")
