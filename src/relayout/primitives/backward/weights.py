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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relayout.errors import Unsupported
from relayout.forking import locked
from relayout.jit.support import supported
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.operation import Operation
from relayout.primitives.backward.base import Backward
from relayout.primitives.lowering import joined, renamed
from relayout.primitives.primitive import DEFINITION
from relayout.primitives.program import Program
from relayout.primitives.reduction import Reduction

if TYPE_CHECKING:
    from typing_extensions import Self

    from relayout.kernels.conv.geometry import Geometry
    from relayout.primitives.primitive import Primitive

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


def check_floats(kind: str, forward: Primitive, descs: Mapping[str, MemoryDesc]) -> None:
    """Refuse what there are no gradients of: scales, and integers."""
    if "scale" in forward.inputs:
        raise Unsupported(f"{kind}: the forward primitive has scales, which are for inference")
    for name, desc in descs.items():
        if desc.dtype.name not in FLOATS:
            raise Unsupported(f"{kind}: {name} {desc} must be one of {', '.join(FLOATS)}")


class WeightsBackward(Backward):
    """Base of the kinds; a subclass says in :meth:`_as_gradient` what it computes."""

    _given: dict[str, MemoryDesc]
    """The descriptors as they were given, before every ``any`` was decided."""

    def _complete(
        self, kind: type[Operation], forward: Any, src: Any, diff_dst: Any, diff_weights: Any, diff_bias: Any
    ) -> None:
        """What constructors do."""
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
        decided = self._decided(dict(given))
        names = [name for name in decided if name.startswith("diff_w") or name == "diff_bias"]
        outputs = {name: decided.pop(name) for name in names}
        self._settle(kind, decided, outputs, **self._attributes())

    def _attributes(self) -> dict[str, Any]:
        """Those of the operation."""
        raise NotImplementedError

    def _as_gradient(self, descs: dict[str, MemoryDesc]) -> Gradient:
        """What is computed, on these descriptors."""
        raise NotImplementedError

    def _formats(self, name: str) -> tuple[str, ...]:
        """The formats worth trying for an input, the best one first."""
        raise NotImplementedError

    def _decided(self, given: dict[str, MemoryDesc]) -> dict[str, MemoryDesc]:
        """The descriptors with every ``any`` decided; an input follows the other one's format if it can."""
        src, diff_dst = given["src"], given["diff_dst"]
        wanted: dict[str, Any] = {"diff_weights": weights_written(self._as_gradient(given)), "diff_bias": "a"}
        for name, other in (("src", diff_dst), ("diff_dst", src)):
            formats = self._formats(name)
            wanted[name] = other.format if other.format in formats else formats[0]
        return {
            name: desc if desc.layout is not None else MemoryDesc(desc.dims, desc.dtype, wanted[name])
            for name, desc in given.items()
        }

    def _lower(self) -> Program | None:
        program = weights_gradient(self._as_gradient(self.descs))
        if program is None or "diff_bias" not in self.descs:
            return program
        return joined(
            program, bias_gradient(self.descs["diff_dst"], self.descs["diff_bias"]), note=program.note
        )

    def _alternatives(self) -> list[Self]:
        return []

    @locked
    def _cost(self) -> tuple[float, str]:
        from relayout.primitives.candidates import DEFINED

        return self.flops / DEFINED, DEFINITION


@locked
def weights_written(made: Gradient) -> str:
    """The format that gradients are written in fastest."""
    from relayout.kernels.conv.arithmetic import FLOATS as REALS
    from relayout.kernels.conv.weights import weights_text
    from relayout.targets.machine import host

    plain = ("oi", "oiw", "oihw", "oidhw")[made.spatial]
    if not supported():
        return "g" * made.grouped + plain
    return weights_text(made.geometry, REALS, host(), made.spatial, made.grouped)


def bias_gradient(diff_dst: MemoryDesc, diff_bias: MemoryDesc) -> Program | None:
    """The sums of a gradient over all but its channels."""
    layout = views.unsqueeze(diff_bias.layout.with_roles(None), 0)
    for axis in range(2, len(diff_dst.dims)):
        layout = views.unsqueeze(layout, axis)
    axes = (0, *range(2, len(diff_dst.dims)))
    sums = Reduction(diff_dst, "sum", axes, MemoryDesc(layout.dims, diff_bias.dtype, layout))
    program = sums._lower()
    return None if program is None else renamed(program, {"src": "diff_dst", "dst": "diff_bias"})


@locked
def weights_gradient(made: Gradient) -> Program | None:
    """The program; None where there is no kernel."""
    return None
