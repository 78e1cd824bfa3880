"""What the classes of sums of products share: convolution, inner product, matrix product, gradients of data.

A class says in ``_as_products`` what it is as a sum of products (:mod:`.products`). Here is the rest: the
vectors that come along, what becomes of the sums, and calls by the schedule that a contest has found::

    src, weights --- sums --- scale, bias --- post-ops --- dst_scale, dst_zero_point ---> dst
                      |                         |
                      zero points               those that the kernels can't do are a pass of their own
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import Layout, plain, spell_dims
from relayout.ops.checks import check_written
from relayout.ops.operation import Operation
from relayout.ops.post_ops import BinaryOp, PostOp, operands_of, post_ops_for
from relayout.primitives.choosing import Choosing
from relayout.primitives.drafting import Draft, renamed
from relayout.primitives.lowering import before, followed
from relayout.primitives.primitive import Primitive
from relayout.primitives.products import VECTORS
from relayout.primitives.program import Program
from relayout.records import replace

if TYPE_CHECKING:
    from relayout.primitives.drafting import Done
    from relayout.primitives.products import WeightedSums
    from relayout.primitives.several import Contests
    from relayout.runtime.tuning import Trial

__all__ = ["ProductPrimitive", "vectors_of"]

REQUANTISES = {"dst_scale": "div", "dst_zero_point": "add"}
NARROW = ("bf16", "f16")  # data types of a bias that is converted first


class ProductPrimitive(Choosing):
    """What the classes of such primitives share; each says in :meth:`_as_products` what it is."""

    _made: Done | None = None
    _workings = Primitive._workings | {"_made"}

    def _as_products(self, descs: Mapping[str, MemoryDesc]) -> WeightedSums | None:
        """What is computed, on these descriptors; None where it can't be said."""
        raise NotImplementedError

    @property
    def _behind(self) -> tuple[PostOp, ...]:
        """All that becomes of sums: the post-ops, then the steps of the destination.

        These are post-ops to kernels, whose operands have one element.
        """
        rank = len(self.descs[self._sides[1]].dims)
        found = list(self.post_ops)
        for name, algorithm in REQUANTISES.items():
            if name in self.descs:
                desc = self.descs[name]
                one = Layout((1,) * rank, plain(rank), offset=desc.layout.offset0)
                found.append(BinaryOp(algorithm, desc.with_layout(one)))
        return tuple(found)

    @locked
    def _estimate(self) -> tuple[float, str] | None:
        from relayout.reorder.predict import seconds_to_move

        given = self._as_products(self.descs)
        if given is not None and self._behind != self.post_ops:
            given = replace(given, post_ops=self._behind)
        found = None if given is None else given.estimate()
        if given is None or found is None:
            return None
        seconds, how = found
        moved = 3 * self.descs[self._sides[1]].nbytes if given.fusable() < len(self._behind) else 0
        seconds = max(seconds, seconds_to_move(self.bytes))
        seconds += seconds_to_move(moved) if moved else 0.0
        return seconds, f"machine code: {how}"

    def _complete(
        self,
        kind: type[Operation],
        inputs: Mapping[str, MemoryDesc | None],
        dst: MemoryDesc | None,
        dims: tuple[int, ...],
        outputs: int,
        post_ops: Any,
        **attributes: Any,
    ) -> None:
        """What all constructors end with: the destination, bias and scales, post-ops, and every ``any``."""
        given = {name: desc for name, desc in inputs.items() if desc is not None}
        src, weights = given["src"], given["weights"]
        if dst is None:
            dst = MemoryDesc(dims, src.dtype, any_format)
        if dst.dims != dims:
            raise LayoutError(
                f"{self.kind}: dst {dst} must be {spell_dims(dims)}, from src {spell_dims(src.dims)} and "
                f"weights {spell_dims(weights.dims)}"
            )
        check_written(self.kind, dst)
        check_vector(self.kind, "bias", inputs["bias"], (outputs,), ("f32", "s32", *NARROW))
        check_vector(self.kind, "scale", inputs["scale"], (1, outputs), ("f32",))
        check_zero_points(self.kind, inputs, outputs)
        check_vector(self.kind, "dst_scale", inputs.get("dst_scale"), (1,), ("f32",))
        zero = inputs.get("dst_zero_point")
        check_vector(self.kind, "dst_zero_point", zero, (1,), ("s32",))
        if zero is not None and dst.dtype.is_float:
            raise LayoutError(f"{self.kind}: dst_zero_point {zero} is for integers, and dst is {dst}")
        self._given = {**given, "dst": dst}
        decided = self._decided(self._given)
        post_ops = post_ops_for(self.kind, post_ops, decided["dst"])
        dst = decided.pop("dst")
        self._settle(kind, decided, {"dst": dst}, post_ops, **attributes)

    def _lower(self) -> Program | None:
        target = self._sides[1]
        dst, first, every = self.descs[target], self._behind, self._behind
        after: tuple[PostOp, ...] = ()  # from the first post-op on that the kernel can't do
        between = dst
        while True:
            given = self._as_products({**self.descs, target: between})
            if given is None:
                return None
            given = replace(given, post_ops=first)
            count = given.fusable()
            if count == len(first):
                break
            first, after = every[:count], every[count:]
            between = before(dst, after)
        trial = None if after or self._narrow else given.trial()  # contests know no bias that is converted
        if trial is not None and trial.winner is not None:
            self._made = trial.winner
        else:
            self._made = given.lowered("" if trial is None else trial.first)
        if self._made is None:
            return None
        self._measure(trial)
        if not after:
            return self._own(self._made)
        made = followed(self._made.own(), between, dst, after, len(operands_of(first)))
        if made is None:
            return None
        made.note += f", then in a pass of their own: {', '.join(map(str, after))}"
        return self._named(made)

    def _own(self, made: Done) -> Program:
        """Its program, of the buffers that are the arguments here."""
        return self._named(made.own())

    @property
    def _narrow(self) -> bool:
        """Whether there is a bias of 16 bits, which kernels read in f32."""
        return "bias" in self.descs and self.descs["bias"].dtype.name in NARROW

    @property
    def _names(self) -> dict[str, str]:
        """For the buffers of a program the names that they have here, where these are others."""
        names = dict(zip(("src", "dst"), self._sides, strict=True))
        behind = [name for name in REQUANTISES if name in self.descs]
        first = len(operands_of(self.post_ops))
        return names | {f"operand{first + k}": name for k, name in enumerate(behind)}

    def _named(self, program: Program) -> Program:
        program = renamed(program, self._names)
        return self._with_bias(program) if self._narrow else program

    @locked
    def _with_bias(self, program: Program) -> Program:
        """The bias converted first."""
        given, draft = self.descs["bias"], Draft()
        name = draft.read(given, in_f32(given), "bias", "bias in f32")
        draft.append(program, {"bias": name})
        return draft.program(program.note)

    def _tried(
        self, trial: Trial[Any, Any] | Contests, addresses: Mapping[str, int], threads: int | None
    ) -> bool:
        names = {mine: name for name, mine in self._names.items()}
        known = {names.get(name, name): at for name, at in addresses.items()}
        return super()._tried(trial, known, threads)

    def _take(self, made: Done) -> None:
        self._made = made
        self._program = self._own(made)
        self._calling = self._often(self._program)


def vectors_of(descs: Mapping[str, MemoryDesc]) -> dict[str, Any]:
    """The bias, the scale and the zero points that there are, as kernels read them."""
    return {name: in_f32(descs[name]) for name in VECTORS if name in descs}


def in_f32(desc: MemoryDesc) -> MemoryDesc:
    """A vector as kernels read it: a narrow bias is converted first."""
    return MemoryDesc(desc.dims, "f32", "a") if desc.dtype.name in NARROW else desc


def check_zero_points(kind: str, inputs: Mapping[str, MemoryDesc | None], outputs: int) -> None:
    """Zero points belong to integers: one to the source, one or one for each output channel to weights."""
    for name, sizes in (("src_zero_point", (1,)), ("weights_zero_point", (1, outputs))):
        desc, side = inputs.get(name), name.partition("_")[0]
        check_vector(kind, name, desc, sizes, ("s32",))
        given = inputs[side]
        if desc is not None and given is not None and given.dtype.is_float:
            raise LayoutError(f"{kind}: {name} {desc} is for integers, and {side} is {given}")


def check_vector(
    kind: str, name: str, desc: MemoryDesc | None, sizes: tuple[int, ...], kinds: tuple[str, ...]
) -> None:
    """Bias and scales are dense vectors."""
    if desc is None:
        return
    if len(desc.dims) != 1 or desc.dims[0] not in sizes or desc.dtype.name not in kinds:
        counts, types = (" or ".join(map(str, several)) for several in (sizes, kinds))
        raise LayoutError(f"{kind}: {name} {desc} must be a vector of {counts} {types}")
    if desc.layout is not None and desc.strides != (1,) and desc.dims != (1,):
        raise LayoutError(f"{kind}: {name} {desc} must be dense")
