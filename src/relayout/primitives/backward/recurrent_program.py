"""The program of the backward pass through recurrent layers, the last layer first.

::

    diff_dst_layer, or what the layer above gave
      |
    the recurrence turned round: one kernel for all steps (relayout.kernels.recurrent.gradient)
      |
    planes      the gradients of all gates' sums, for all steps
      | products with all steps at once, for each direction
      |--- with W --->   diff_src_layer, or what the layer below is given
      |--- with x --->   diff_weights_layer
      |--- with h --->   diff_weights_iter
      |--- m with dh ->  diff_weights_projection
      | sums
      `------------->    diff_bias, diff_weights_peephole

Weights in other formats than these kernels read are reordered first, in every call; gradients of weights are
written in any format, gate by gate if need be. Products take part in contests
(:mod:`relayout.primitives.several`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import ceil, prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from relayout.forking import locked
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.post_ops import Sum
from relayout.primitives.drafting import Impossible, kernel_of
from relayout.primitives.program import Step
from relayout.primitives.recurrent_layers import APART, WORD, Layers, kept, moved, part_of, places_of
from relayout.primitives.several import Assembled, assembled

if TYPE_CHECKING:
    from relayout.kernels.recurrent.gradient import Gradient
    from relayout.primitives.backward.recurrent import GradientsOfLayers
    from relayout.primitives.products import Products

__all__ = ["BackwardLayers", "packed"]

ORDERED = ("src_layer", "attention", "diff_dst_layer")  # inputs that are read in the order of steps and rows


def packed(lanes: int) -> dict[str, str]:
    """The formats of weights that kernels read, all f32.

    >>> packed(16)["weights_iter"]
    'ldIgO16o16i'
    """
    both = f"ldIgO{lanes}o{lanes}i"
    return {
        "weights_layer": both,
        "weights_iter": both,
        "weights_projection": f"ldIO{lanes}o{lanes}i",
        "weights_peephole": f"ldgO{lanes}o",
    }


class _Product(NamedTuple):
    """A product with the buffers that it works on, and what is written behind it."""

    made: Products
    src: str
    weights: str
    dst: str
    reorder: tuple[MemoryDesc, MemoryDesc, str] | None = None
    """From ``dst`` to a part of an output."""


class BackwardLayers(Layers):
    """The layers of a primitive turned round, lowered."""

    @locked
    def __init__(self, made: GradientsOfLayers) -> None:
        super().__init__(made)
        self.rows = self.time * self.batch
        self.wide = ceil(self.outputs / self.lanes) * self.lanes
        self.between = max(self.room, self.wide) + APART // WORD
        self.formats = {
            name: MemoryDesc(self.descs[name].dims, "f32", text)
            for name, text in packed(self.lanes).items()
            if name in made.inputs
        }
        if made.layers == 1 and "diff_src_layer" not in made.outputs:
            del self.formats["weights_layer"]
        self.repacked = [name for name, desc in self.formats.items() if self.descs[name] != desc]
        for name in ORDERED:
            if name in self.descs:
                self.descs[name] = self.plainly(name)
        for name, text in (("diff_bias", "ldgo"), ("diff_weights_peephole", "ldgo")):
            if name in self.descs:
                padded = text.replace("o", f"O{self.lanes}o")
                self.descs[name] = MemoryDesc(self.descs[name].dims, "f32", padded)

    def plainly(self, name: str) -> MemoryDesc:
        """How data and gradients of results are read: in f32; gradients row by row, data end to end."""
        desc = self.descs[name]
        like = MemoryDesc(desc.dims, "f32", "tnc")
        if name != "diff_dst_layer":
            return desc if desc.dtype == like.dtype and desc.layout.same_bytes(like.layout) else like
        direct = places_of(desc, self.directions, self.outputs, self.sums) is not None
        return desc if direct and desc.dtype == like.dtype else like

    # -- the recurrence -------------------------------------------------------------------------------------

    @locked
    def recurrence(self, layer: int) -> Gradient:
        """The kernel of a layer."""
        from relayout.kernels.recurrent.gradient import Gradient
        from relayout.kernels.recurrent.plan import ALONE, Places, planned
        from relayout.runtime import threads

        made, gates = self.made, self.cell.gates * self.room
        results: Places | None = None
        if layer < made.layers - 1:
            results = Places(self.batch * self.outputs * WORD, self.outputs * WORD, self.above * WORD)
        elif "diff_dst_layer" in made.inputs:
            places = places_of(self.descs["diff_dst_layer"], self.directions, self.outputs, self.sums)
            if places is None:
                raise Impossible
            results = Places(*(n * WORD for n in places))

        def span(size: int) -> tuple[int, int]:
            return layer * self.directions * size * WORD, size * WORD

        plan = Gradient(
            self.cell,
            self.machine,
            self.time,
            self.batch,
            self.units,
            self.outputs,
            made.backward,
            ALONE,
            kept(self.workspace, layer),
            results,
            gates * WORD + APART,
            self.between * WORD,
            weights=span(self.wide * gates),
            projection=span(self.room * self.wide),
            peephole=span(3 * self.room),
            focus=span(self.rows * self.room) if "diff_attention" in made.outputs else None,
            initial="diff_src_iter" in made.outputs,
        )
        return planned(plan, threads.count())

    @property
    def above(self) -> int:
        """Numbers of what a layer gives to one direction of the layer below."""
        return int(self.rows * self.outputs)

    def state(self, layer: int, name: str) -> tuple[MemoryDesc, MemoryDesc]:
        """The gradient of a state of a layer among those of all layers, and in scratch."""
        width = self.units if name.endswith("_c") else self.outputs
        dims = (1, self.directions, self.batch, width)
        rows = self.batch * self.between
        here = MemoryDesc(dims, "f32", strides=(self.directions * rows, rows, self.between, 1))
        if name not in self.made.descs:
            return MemoryDesc(dims, "f32", strides=(0, 0, 0, 0)), here
        return part_of(self.made.descs[name], dims, (layer, 0, 0, 0)), here

    # -- products -------------------------------------------------------------------------------------------

    def sums_of(self, layer: int) -> Iterator[Products]:
        """Those that :meth:`products` names the buffers of."""
        return (one.made for one in self.products(layer))

    @locked
    def products(self, layer: int) -> Iterator[_Product]:
        """All of a layer."""
        made, gates = self.made, self.cell.gates
        plan = self.recurrence(layer)
        for d in range(self.directions):
            planes = d * plan.direction // WORD
            if layer or "diff_src_layer" in made.outputs:
                yield self.data(layer, d, planes)
            starts = self.workspace.starts(layer, d)["states"]
            turned = made.backward[d]
            if "diff_weights_layer" in made.outputs:
                source, at, width = self.names["src_layer"], 0, self.channels
                if layer:
                    below = self.workspace.starts(layer - 1, d)["states"]
                    source, width = "workspace", self.outputs
                    at = below + (not turned) * self.batch * self.outputs
                yield from self.weights("diff_weights_layer", layer, d, (source, at, width, width), planes,
                                        range(gates))  # fmt: skip
            if "diff_weights_iter" in made.outputs:
                at = starts + turned * self.batch * self.outputs
                read = ("workspace", at, self.outputs, self.outputs)
                first = planes + (3 * self.rows * self.room if self.cell.linear else 0)
                plain = range(2 if self.cell.resets else gates)
                yield from self.weights("diff_weights_iter", layer, d, read, first, plain)
                if self.cell.resets:
                    read = ("made", d * self.rows * self.room, self.units, self.room)
                    yield from self.weights("diff_weights_iter", layer, d, read, first, range(2, 3))
            if "diff_weights_projection" in made.outputs:
                read = ("made", d * self.rows * self.room, self.units, self.room)
                first = planes + plan.planes * self.rows * self.room
                yield self.written("diff_weights_projection", layer, d, -1, read, first, self.outputs)

    def data(self, layer: int, d: int, planes: int) -> _Product:
        """The gradient of a layer's data: of both directions together where these are the same."""
        gates, width = self.cell.gates * self.room, self.outputs if layer else self.channels
        src = moved(MemoryDesc((1, gates, self.rows), "f32", f"aBc{self.lanes}b"), planes)
        number = layer * self.directions + d
        padded = ceil(width / self.lanes) * self.lanes
        weights = MemoryDesc((width, gates, 1), "f32", f"Oiw{self.lanes}o")
        weights = moved(weights, number * padded * gates)
        dst = MemoryDesc((1, width, self.rows), "f32", strides=(0, 1, width))
        if layer:
            dst = moved(dst, d * self.above)
        post_ops = (Sum(),) if d and not layer else ()
        return _Product(
            self.product(src, weights, dst, post_ops),
            "planes",
            self.names["weights_layer"],
            "above" if layer else self.names["diff_src_layer"],
        )

    def weights(
        self, name: str, layer: int, d: int, read: tuple[str, int, int, int], planes: int, gates: range
    ) -> Iterator[_Product]:
        """The gradient of weights from planes, which begin there: of several gates at once, or one by one."""
        source, at, width, pitch = read
        desc, every = self.made.descs[name], self.cell.gates
        number, size = layer * self.directions + d, width * every * self.room
        first = planes + gates.start * self.rows * self.room
        dims = (1, len(gates) * self.room, width)
        dst = None
        if desc == MemoryDesc(desc.dims, "f32", f"ldgOi{self.lanes}o"):
            dst = MemoryDesc(dims, "f32", f"aBc{self.lanes}b")
            dst = moved(dst, number * size + gates.start * width * self.room)
        elif self.units == self.room and desc == MemoryDesc(desc.dims, "f32", "ldigo"):
            dst = MemoryDesc(dims, "f32", strides=(0, 1, every * self.room))
            dst = moved(dst, number * size + gates.start * self.room)
        if dst is not None:
            made = self.product(self.read(at, width, pitch), self.planes(first, dims[1]), dst)
            yield _Product(made, source, "planes", name)
            return
        for g in gates:
            first = planes + g * self.rows * self.room
            yield self.written(name, layer, d, g, read, first, self.units)

    @locked
    def written(
        self, name: str, layer: int, d: int, g: int, read: tuple[str, int, int, int], first: int, count: int
    ) -> _Product:
        """The gradient of the weights of one gate, in any format; those of a projection have none (-1)."""
        from relayout.primitives.products import ways

        source, at, width, pitch = read
        desc = self.made.descs[name]
        layout = views.select(views.select(desc.layout.with_roles(None), 0, layer), 0, d)
        if g >= 0:
            layout = views.select(layout, 1, g)
        part = MemoryDesc((width, count), desc.dtype, layout)
        turned = views.unsqueeze(views.transpose(layout), 0)
        src, weights = self.read(at, width, pitch), self.planes(first, count)
        made = self.product(src, weights, MemoryDesc((1, count, width), desc.dtype, turned))
        if ways(made) is not None:
            return _Product(made, source, "planes", name)
        dst = MemoryDesc((1, count, width), "f32", strides=(0, 1, count))
        here = MemoryDesc((width, count), "f32", "ab")
        return _Product(self.product(src, weights, dst), source, "planes", "written", (here, part, name))

    def read(self, at: int, width: int, pitch: int) -> MemoryDesc:
        """Rows of all steps as channels of a source."""
        return moved(MemoryDesc((1, self.rows, width), "f32", strides=(0, pitch, 1)), at)

    def planes(self, first: int, count: int) -> MemoryDesc:
        """Planes as weights, from a number on."""
        return moved(MemoryDesc((count, self.rows, 1), "f32", f"Oiw{self.lanes}o"), first)

    @locked
    def product(
        self, src: MemoryDesc, weights: MemoryDesc, dst: MemoryDesc, post_ops: tuple[Sum, ...] = ()
    ) -> Products:
        """A product: channels of the source by channels of the destination."""
        from relayout.kernels.conv.geometry import Geometry
        from relayout.primitives.products import Products

        geometry = Geometry.of_matrices(1, src.dims[1], dst.dims[1], pixels=src.dims[2])
        return Products(geometry, src, weights, dst, post_ops=post_ops)

    # -- all together ---------------------------------------------------------------------------------------

    @locked
    def program(self) -> Assembled:
        """Layer by layer, the last one first."""
        made, out = self.made, self.out
        for name in made.outputs:
            out.zeros(made.descs[name], name)
        for name in self.repacked:
            self.moved_to(name, self.formats[name], f"{name} packed")
        for name in ORDERED:
            if name in made.inputs:
                self.moved_to(name, self.descs[name], f"{name} in order")
        for name, text in (("diff_src_layer", "tnc"), ("diff_bias", ""), ("diff_weights_peephole", "")):
            if name in made.outputs:
                desc = MemoryDesc(made.descs[name].dims, "f32", text) if text else self.descs[name]
                given = made.descs[name]
                if given.dtype != desc.dtype or not given.layout.same_bytes(desc.layout):
                    self.names[name] = out.write(given, desc, name, f"{name} in order")
        for layer in reversed(range(made.layers)):
            self.layer(layer)
        self.attended()
        return assembled(out)

    @locked
    def layer(self, layer: int) -> None:
        """The steps of a layer."""
        made, out = self.made, self.out
        plan = self.recurrence(layer)
        rows = self.directions * self.batch * self.between * WORD
        for name in ("begin", "carry", "between"):
            out.room(name, rows)
        out.room("flow", 2 * self.directions * self.batch * plan.pitch)
        out.room("planes", self.directions * plan.direction)
        out.room("made", self.directions * self.rows * self.room * WORD)
        out.room("above", self.directions * self.above * WORD)
        if plan.focus is not None:
            out.room("focus", made.layers * self.directions * self.rows * self.room * WORD)
        states = {"iter": "begin"} | ({"iter_c": "carry"} if self.cell.has_memory else {})
        for name, where in states.items():
            given, here = self.state(layer, f"diff_dst_{name}")
            source = f"diff_dst_{name}" if f"diff_dst_{name}" in made.inputs else "zero"
            if source == "zero":
                out.constants["zero"] = np.zeros(WORD, np.uint8)
            out.reorder(given, here, source, where)
        self.recur(plan, layer)
        for name, where in states.items():
            if f"diff_src_{name}" in made.outputs:
                there, here = self.state(layer, f"diff_src_{name}")
                out.reorder(here, there, where, f"diff_src_{name}")
        for one in self.products(layer):
            if one.reorder is not None:
                out.room(one.dst, prod(one.made.dst.dims) * WORD)
            out.part(one.made, {"src": one.src, "weights": one.weights, "dst": one.dst})
            if one.reorder is not None:
                here, there, target = one.reorder
                out.reorder(here, there, one.dst, target)
        self.sum_up(plan, layer)

    @locked
    def recur(self, plan: Gradient, layer: int) -> None:
        """The kernel of all steps."""
        from relayout.kernels.recurrent.gradient import OPERANDS

        results = self.names.get("diff_dst_layer", "flow") if layer == self.made.layers - 1 else "above"
        buffers = {
            "weights": self.names["weights_iter"],
            "projection": self.names.get("weights_projection", "flow"),
            "peephole": self.names.get("weights_peephole", "flow"),
            "attention": self.names.get("attention", "flow"),
            "focus": "focus" if plan.focus is not None else "flow",
            "results": results,
            "turns": "flow",
        }
        self.kernel("gradient", plan, OPERANDS, buffers, "workspace", "planes")

    @locked
    def attended(self) -> None:
        """The gradient of the attention: sums over all units, of all layers and directions."""
        from relayout.primitives.combining import reduction
        from relayout.primitives.reduction import Reduction

        if "diff_attention" not in self.made.outputs:
            return
        blocks = self.made.layers * self.directions * self.room // self.lanes
        parts = MemoryDesc((blocks, self.time, self.batch, self.lanes), "f32", "abcd")
        there = self.made.descs["diff_attention"]
        layout = views.unsqueeze(there.layout.with_roles(None), 0)
        lowered = reduction(Reduction(parts, "sum", (0, 3), there.with_layout(layout)))
        self.out.append(lowered, {"src": "focus", "dst": "diff_attention"})

    @locked
    def sum_up(self, plan: Gradient, layer: int) -> None:
        """The gradients of biases and peepholes."""
        from relayout.kernels.recurrent.sums import ENTRY, Column, module
        from relayout.runtime import threads
        from relayout.runtime.sharing import parts_of_tasks
        from relayout.runtime.thresholds import shares

        biases = [*range(self.cell.gates), *[5] * (self.cell.linear)]
        gates = {"diff_bias": biases, "diff_weights_peephole": [0, 1, 3]}
        for name, which in gates.items():
            if name not in self.made.outputs:
                continue
            columns = []
            for d in range(self.directions):
                first = (layer * self.directions + d) * len(which) * plan.gate
                memories = self.workspace.starts(layer, d).get("memories", 0)
                for k, g in enumerate(which):
                    factor = -1
                    if name == "diff_weights_peephole":
                        after = self.made.backward[d] != (g == 3)
                        factor = (memories + after * self.batch * self.units) * WORD
                    source = d * plan.direction + g * plan.blocks * plan.block
                    columns.append(Column(source, first + k * plan.gate, self.units, factor))
            kernel = kernel_of(
                ("sums", columns, self.rows), ENTRY, partial(module, tuple(columns), self.rows)
            )
            size = len(columns) * plan.blocks * plan.block
            parts = parts_of_tasks(len(columns) * plan.blocks, size, threads.count())
            shared = parts > 1 and shares(self.machine, size)
            step = Step(kernel, "planes", self.names[name], ("workspace",), parts, shared)
            self.out.add(step)
