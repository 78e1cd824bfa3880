"""Gradients of weights: what convolution and inner product have in common, and their program.

An inner product is a convolution whose filter is as large as the image: :class:`Gradient` says both in the
same terms. The kernel (:mod:`relayout.kernels.conv.gradient`) reads f32 whose pixels lie regularly, and
writes the format that forward convolutions read fastest; anything else is reordered before and after::

    src ------ [reorder] --+
                           +-- kernel --> [partial sums -- sum --] --> [reorder] --> diff_weights
    diff_dst - [reorder] --+
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from relayout.errors import Unsupported
from relayout.forking import locked
from relayout.jit.support import supported
from relayout.layout import views
from relayout.layout.dense import CHANNELS_LAST
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops.formats import with_formats
from relayout.ops.operation import Operation
from relayout.primitives.backward.base import Backward
from relayout.primitives.choosing import Choosing
from relayout.primitives.convolution import formats_of_images
from relayout.primitives.drafting import Draft, computing_step, if_possible, joined, kernel_of, renamed
from relayout.primitives.program import Program, Step
from relayout.primitives.reduction import Reduction
from relayout.primitives.trials import Compiled, Contested
from relayout.records import dataclass, field

if TYPE_CHECKING:
    from relayout.kernels.conv.arithmetic import Arithmetic
    from relayout.kernels.conv.geometry import Geometry
    from relayout.kernels.conv.gradient import Plan
    from relayout.primitives.primitive import Primitive
    from relayout.targets.machine import Machine

__all__ = ["Gradient", "WeightsBackward", "bias_gradient", "check_floats", "weights_gradient"]

FLOATS = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class Gradient:
    """The gradient of weights, as that of a convolution of any geometry."""

    geometry: Geometry
    src: MemoryDesc
    diff_dst: MemoryDesc
    diff_weights: MemoryDesc
    """Its layout is None where it is still to be chosen."""
    grouped: bool = False
    """Whether the first axis of the weights is that of groups."""

    @property
    def spatial(self) -> int:
        """The number of spatial axes."""
        return len(self.src.dims) - 2

    def __str__(self) -> str:
        g, words = self.geometry, [f"{self.src} * {self.diff_dst} -> {self.diff_weights}"]
        words += [f"{name} {spell_dims(getattr(g, name))}" for name in ("strides", "dilation", "padding")]
        return ", ".join(words)


def check_floats(kind: str, forward: Primitive, descs: Mapping[str, MemoryDesc]) -> None:
    """Refuse what there are no gradients of: scales, and integers."""
    if "scale" in forward.inputs:
        raise Unsupported(f"{kind}: the forward primitive has scales, which are for inference")
    for name, desc in descs.items():
        if desc.dtype.name not in FLOATS:
            raise Unsupported(f"{kind}: {name} {desc} must be one of {', '.join(FLOATS)}")


class WeightsBackward(Backward, Choosing):
    """Base of the kinds; a subclass says what it means, and in :meth:`_as_gradient` what it computes."""

    means: ClassVar[type[Operation]]
    forward: Any
    _sides = ("src", "diff_dst")

    def __init__(
        self,
        forward: Any,
        *,
        src: Any = None,
        diff_dst: Any = None,
        diff_weights: Any = None,
        diff_bias: Any = None,
    ) -> None:
        self._made_for(forward)
        given = {
            "src": self._like("src", src, forward.src),
            "diff_dst": self._like("diff_dst", diff_dst, forward.dst),
            "diff_weights": self._like("diff_weights", diff_weights, forward.weights, written=True),
        }
        if "bias" in forward.inputs:
            given["diff_bias"] = self._like("diff_bias", diff_bias, forward.bias, written=True)
        elif diff_bias is not None:
            raise Unsupported(f"{self.kind}: the forward primitive has no bias, so there is no diff_bias")
        check_floats(self.kind, forward, given)
        self._given = given
        decided = self._decided(given)
        names = [name for name in decided if name.startswith("diff_w") or name == "diff_bias"]
        outputs = {name: decided.pop(name) for name in names}
        self._settle(self.means, decided, outputs, **forward.operation.shared)

    def _as_gradient(self, descs: Mapping[str, MemoryDesc]) -> Gradient:
        """What is computed, on these descriptors."""
        raise NotImplementedError

    def _formats(self, name: str) -> tuple[str, ...]:
        desc = self._given[name]
        return formats_of_images(desc) if len(desc.dims) > 2 else ("nc",)

    def _decided(self, given: Mapping[str, MemoryDesc]) -> dict[str, MemoryDesc]:
        """The descriptors with every ``any`` decided; an input follows the other one's format if it can."""
        src, diff_dst = given["src"], given["diff_dst"]
        wanted: dict[str, Any] = {"diff_weights": weights_read(self._as_gradient(given)), "diff_bias": "a"}
        for name, other in (("src", diff_dst), ("diff_dst", src)):
            formats = self._formats(name)
            wanted[name] = other.format if other.format in formats else formats[0]
        return with_formats(given, wanted)

    def _lower(self) -> Program | None:
        made = self._as_gradient(self.descs)
        trial = _Contest(self.kind, made, self.descs.get("diff_bias"), self).trial()
        if trial is None:
            return self._whole(made)
        self._measure(trial)
        return self._whole(made, trial.first) if trial.winner is None else trial.winner.program

    def _whole(self, made: Gradient, schedule: str = "") -> Program | None:
        """The program by the plan that prints so, else by the estimate; with the gradient of the bias."""
        program = self._program_of(made, schedule)
        if program is None or "diff_bias" not in self.descs:
            return program
        return joined(
            program, bias_gradient(self.descs["diff_dst"], self.descs["diff_bias"]), note=program.note
        )

    def _program_of(self, made: Gradient, schedule: str) -> Program | None:
        """The program of the gradient of weights, of buffers with the names of arguments."""
        return weights_gradient(made, schedule)

    @locked
    def _estimate(self) -> tuple[float, str] | None:
        from relayout.reorder.predict import seconds_to_move
        from relayout.runtime.clock import cycles_per_second

        made = self._as_gradient(self.descs)
        several = ways(made)
        if not several:
            return None
        found = several[0]
        moved = sum(getattr(made, name).nbytes + getattr(found, name).nbytes for name in found.before)
        if not found.direct(made.diff_weights):
            moved += found.diff_weights.nbytes + made.diff_weights.nbytes
        seconds = max(found.plan.cycles / cycles_per_second(), seconds_to_move(self.bytes))
        return seconds + (seconds_to_move(moved) if moved else 0.0), f"machine code: {found}"


@locked
def weights_written(made: Gradient, how: Arithmetic | None = None) -> str:
    """The format in which kernels write gradients, in f32; or that in which an arithmetic reads weights."""
    plain = ("oi", "oiw", "oihw", "oidhw")[made.spatial]
    if not supported():
        return "g" * made.grouped + plain
    from relayout.kernels.conv.arithmetic import FLOATS as REALS
    from relayout.kernels.conv.weights import weights_text
    from relayout.targets.machine import host

    return weights_text(made.geometry, how or REALS, host(), made.spatial, made.grouped)


@locked
def weights_read(made: Gradient) -> str:
    """The format in which forward convolutions of these data types read weights fastest.

    In f32 it is the one that kernels write. Others are rounded on their way from there, to whatever format.
    """
    if not supported():
        return weights_written(made)
    from relayout.kernels.conv.arithmetic import arithmetic_of
    from relayout.targets.machine import host

    kinds = made.src.dtype, made.diff_weights.dtype
    return weights_written(made, arithmetic_of(*kinds, made.geometry, host()))


def bias_gradient(diff_dst: MemoryDesc, diff_bias: MemoryDesc) -> Program | None:
    """The sums of a gradient over all but its channels."""
    layout = views.unsqueeze(diff_bias.layout.with_roles(None), 0)
    for axis in range(2, len(diff_dst.dims)):
        layout = views.unsqueeze(layout, axis)
    axes = (0, *range(2, len(diff_dst.dims)))
    sums = Reduction(diff_dst, "sum", axes, diff_bias.with_layout(layout))
    program = sums._lower()
    return None if program is None else renamed(program, {"src": "diff_dst", "dst": "diff_bias"})


@dataclass(frozen=True)
class _Contest(Contested):
    """What a contest is about, and one primitive that has it to do."""

    kind: str
    made: Gradient
    diff_bias: MemoryDesc | None
    primitive: WeightsBackward = field(compare=False)

    @property
    def problem(self) -> str:
        bias = f", {self.diff_bias}" if self.diff_bias is not None else ""
        return f"{self.kind} {self.made}{bias}"

    @locked
    def schedules(self) -> tuple[tuple[Planned, ...], float]:
        from relayout.runtime.clock import cycles_per_second

        several = ways(self.made)
        return several, several[0].plan.cycles / cycles_per_second() if len(several) > 1 else 0.0

    def compiled(self, schedule: Planned) -> Compiled | None:
        program = self.primitive._whole(self.made, str(schedule))
        return None if program is None else Compiled(program)


@locked
@if_possible
def weights_gradient(made: Gradient, schedule: str = "") -> Program | None:
    """The program, of buffers ``src``, ``diff_dst`` and ``diff_weights``; None where there is no kernel.

    ``schedule`` is what the plan prints that is to be taken, if it is a candidate; else it is the estimate.
    """
    from relayout.kernels.conv.gradient_text import ENTRY, TOTAL, gradient_module, total_module
    from relayout.runtime import threads
    from relayout.runtime.sharing import parts_of

    several = ways(made)
    if not several:
        return None
    found = next((one for one in several if str(one) == schedule), several[0])
    draft = Draft()
    src, diff_dst = (
        draft.read(getattr(made, name), getattr(found, name), name, f"{name} in f32")
        for name in ("src", "diff_dst")
    )
    plan, written, wanted = found.plan, found.diff_weights, made.diff_weights
    direct = found.direct(wanted)
    target = sums = "diff_weights" if direct else "sums"
    if plan.shares > 1 or not direct:
        sums = "sums"
        draft.room(sums, plan.shares * written.nbytes)
    size = sum(desc.nbytes for desc in (found.src, found.diff_dst, written))
    kernel = kernel_of(("gradient", plan), ENTRY, lambda _: gradient_module(plan))
    operands = (diff_dst, *("slots",) * bool(plan.slot))
    step = computing_step(kernel, src, sums, operands, plan.tasks, plan.geometry.flops, size)
    if plan.slot:
        draft.room("slots", step.parts * plan.slot)
    draft.add(step)
    if plan.shares > 1:
        key, write = ("total", plan.shares, plan.size), partial(total_module, plan.shares, plan.size)
        parts = parts_of(plan.shares * plan.size, threads.count())
        draft.add(Step(kernel_of(key, TOTAL, write), sums, target, (), parts, parts > 1))
    if not direct:
        draft.reorder(written, wanted, target, "diff_weights")
    return draft.program(str(found))


@dataclass(frozen=True)
class Planned:
    """A plan, and what it reads and writes."""

    plan: Plan
    src: MemoryDesc
    diff_dst: MemoryDesc
    diff_weights: MemoryDesc
    before: tuple[str, ...]
    """Inputs that are reordered first."""

    def direct(self, wanted: MemoryDesc) -> bool:
        """Whether what the kernel writes is what is wanted."""
        written = self.diff_weights
        return wanted.dtype == written.dtype and written.layout.same_bytes(wanted.layout)

    def __str__(self) -> str:
        first = "".join(f"{name} reordered to {getattr(self, name).format}, " for name in self.before)
        return first + str(self.plan)


@locked
def ways(made: Gradient) -> tuple[Planned, ...]:
    """The plans for a problem, the estimate first. Inputs that they can't read are reordered first."""
    from relayout.runtime import threads
    from relayout.targets.machine import host

    return _ways(made, host(), threads.count())


@lru_cache(maxsize=256)
@locked
def _ways(made: Gradient, machine: Machine, many: int) -> tuple[Planned, ...]:
    from relayout.kernels.conv.arithmetic import FLOATS as REALS
    from relayout.kernels.conv.gradient_planning import planned
    from relayout.kernels.conv.tile import lanes_of
    from relayout.kernels.conv.weights import weights_of

    written = MemoryDesc(made.diff_weights.dims, "f32", weights_written(made))
    weights = weights_of(written, made.geometry, REALS, lanes_of(machine), made.grouped)
    if weights is None:
        return ()
    formats = [
        [desc, MemoryDesc(desc.dims, "f32", CHANNELS_LAST[len(desc.dims)])]
        for desc in (made.src, made.diff_dst)
    ]
    for diff_dst, src in product(formats[1], formats[0]):
        plans = planned(made.geometry, src, diff_dst, weights, written.nbytes, machine, many)
        if plans:
            read = {"src": (src, made.src), "diff_dst": (diff_dst, made.diff_dst)}
            before = tuple(name for name, (one, other) in read.items() if one != other)
            return tuple(Planned(plan, src, diff_dst, written, before) for plan in plans)
    return ()
