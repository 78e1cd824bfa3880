"""What the programs of recurrent layers have in common, forward and back through time.

A program is made layer by layer, of products of all steps at once and of one kernel for the recurrence. Here
are the sizes of a layer, the parts of tensors and of the workspace that it works on, what a call costs, and
the call of the kernel; :mod:`.recurrent_program` and :mod:`.backward.recurrent_program` have the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.recurrent import Workspace
from relayout.primitives.drafting import Draft, Impossible, if_possible

if TYPE_CHECKING:
    from relayout.kernels.recurrent.plan import Kept
    from relayout.primitives.products import Products
    from relayout.primitives.several import Assembled

__all__ = ["APART", "WORD", "Layers", "kept", "moved", "part_of", "places_of"]

WORD = 4  # bytes of f32
APART = 64  # bytes by which rows of a state are longer than they must be: not all in one set of a cache


class Layers:
    """A recurrent primitive while it is lowered; subclasses say what their layers are made of.

    Attributes
    ----------
    time, batch, channels, units, outputs, directions : int
        Steps, rows, channels of the data; units of a gate, channels of a state, and directions of a layer.
    room : int
        Units in whole vectors.
    names : dict of str to str
        For each argument the buffer that has it as kernels read it.
    descs : dict of str to MemoryDesc
        The descriptors of these buffers.
    repacked : list of str
        The arguments that are reordered in each call.
    """

    repacked: list[str]

    @locked
    def __init__(self, made: Any, clip: float = 0.0) -> None:
        from relayout.kernels.conv.tile import lanes_of
        from relayout.kernels.recurrent.cell import Cell
        from relayout.targets.machine import host

        what = made.operation
        self.made, self.machine, self.sums = made, host(), what.sums
        optional = (f"weights_{name}" in made.inputs for name in ("peephole", "projection"))
        self.cell = Cell(what.cell, what.activations, clip, *optional)
        self.lanes = lanes_of(self.machine)
        self.out = Draft()
        self.time, self.batch, self.channels = made.descs["src_layer"].dims
        self.units, self.outputs = made.units, made.outputs_of_state
        self.directions = len(made.backward)
        self.room = ceil(self.units / self.lanes) * self.lanes
        size = (self.time, self.batch, made.layers, self.directions, self.units, self.outputs)
        self.workspace = Workspace(self.cell.kind, *size)
        self.names: dict[str, str] = {name: name for name in (*made.inputs, *made.outputs)}
        self.descs: dict[str, MemoryDesc] = dict(made.descs)

    # -- what a subclass gives ------------------------------------------------------------------------------

    def recurrence(self, layer: int) -> Any:
        """The kernel of a layer's steps, as plain data."""
        raise NotImplementedError

    def sums_of(self, layer: int) -> Iterator[Products]:
        """The products of a layer."""
        raise NotImplementedError

    def program(self) -> Assembled:
        """All of it."""
        raise NotImplementedError

    @property
    def bytes_moved(self) -> int:
        """Bytes that are reordered before and behind."""
        return sum(self.made.descs[name].nbytes for name in self.repacked)

    # -- what primitives ask --------------------------------------------------------------------------------

    @classmethod
    @locked
    @if_possible
    def program_of(cls, made: Any) -> Assembled:
        """The program of a primitive; None where there is no kernel for it."""
        return cls(made).program()

    @classmethod
    @locked
    @if_possible
    def costs_of(cls, made: Any) -> tuple[float, str] | None:
        """About how many seconds a call takes, and how it is done; None where there are no kernels."""
        if any(0 in desc.dims for desc in made.descs.values()):
            return None
        return cls(made)._costs()

    @locked
    def _costs(self) -> tuple[float, str]:
        from relayout.kernels.conv.cost import FACTS
        from relayout.kernels.recurrent.plan import cycles
        from relayout.primitives.products import ways
        from relayout.reorder.predict import seconds_to_move
        from relayout.runtime import threads
        from relayout.runtime.clock import cycles_per_second

        counted, words = 0.0, ""
        for layer in range(self.made.layers):
            plan = self.recurrence(layer)
            counted += cycles(plan, threads.count())
            words = str(plan)
            for one in self.sums_of(layer):
                found = ways(one)
                if found is None:
                    raise Impossible
                counted += found.candidates[0].cost * FACTS.clock
        moved = 2 * self.bytes_moved
        return counted / cycles_per_second() + (seconds_to_move(moved) if moved else 0.0), words

    # -- steps ----------------------------------------------------------------------------------------------

    def moved_to(self, name: str, desc: MemoryDesc, room: str) -> None:
        """An argument in another format, in a buffer of its own."""
        self.names[name] = self.out.read(self.made.descs[name], desc, name, room)

    @locked
    def kernel(
        self, kind: str, plan: Any, operands: Sequence[str], buffers: Mapping[str, str], src: str, dst: str
    ) -> None:
        """The kernel of all steps; operands that ``buffers`` lacks have their own names."""
        from relayout.kernels.recurrent.turns import room
        from relayout.primitives.recurrence import Recurring

        names = {name: buffers.get(name, name) for name in operands}
        if plan.turns:
            size, out = room(plan.tasks), self.out
            out.constants["nobody"] = np.zeros(size, np.uint8)
            words = MemoryDesc((size,), "u8", "a")
            names["turns"] = out.room("turns", size)
            out.reorder(words, words, "nobody", "turns")
        self.out.part(Recurring(kind, plan), names | {"src": src, "dst": dst})


def moved(desc: MemoryDesc, offset: int) -> MemoryDesc:
    """The same so many elements further."""
    return desc.with_layout(desc.layout.moved(offset))


def part_of(desc: MemoryDesc, dims: tuple[int, ...], offsets: tuple[int, ...]) -> MemoryDesc:
    """A part of a tensor, which must not cut blocks."""
    try:
        layout = views.submemory(desc.layout.with_roles(None), dims, offsets)
    except LayoutError:  # it cuts blocks
        raise Impossible from None
    return desc.with_layout(layout)


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
