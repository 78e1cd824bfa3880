"""Sums of products: what convolution, inner product and matrix product have in common.

All three are one thing to the kernels, a convolution: an inner product is one whose filter is as large as the
image, a matrix product one whose filter has one tap. :class:`Products` says it in these terms, and
:func:`products` makes the program. What a network asks for twice is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from relayout.forking import lock, locked
from relayout.jit.support import supported
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops.post_ops import BinaryOp, PostOp, Sum, operands_of
from relayout.primitives.drafting import Draft, computing_step, if_possible, kernel_of
from relayout.primitives.folding import folded
from relayout.primitives.program import Program
from relayout.primitives.trials import Contested
from relayout.records import dataclass, replace

if TYPE_CHECKING:
    from relayout.kernels.conv.arithmetic import Arithmetic, Zeros
    from relayout.kernels.conv.candidates import Candidate, Plan
    from relayout.kernels.conv.convolution import Rows
    from relayout.kernels.conv.epilogue import Epilogue, Operand
    from relayout.kernels.conv.geometry import Geometry
    from relayout.kernels.conv.planning import Problem
    from relayout.primitives.drafting import Done
    from relayout.targets.machine import Machine

__all__ = [
    *("VECTORS", "Lowered", "Products", "Ways", "WeightedSums"),
    *("fusable", "products", "refusal", "ways", "weights_format"),
]

WORD = 4  # bytes of a bias, a scale or a zero point
VECTORS = ("bias", "scale", "src_zero_point", "weights_zero_point")
LINE = 64  # bytes of a cache line
FEW_ROWS = 7  # that meet weights as they lie, if these may be in the last cache
MOST_IN_PLACE = 2  # rows for which large weights are read as fast where they lie as packed


@dataclass(frozen=True)
class WeightedSums(Contested):
    """What convolutions and their transposes have in common.

    Source and destination have the axes batch, channels and up to three spatial ones; the weights output and
    input channels and as many spatial axes, and in front of them the groups where ``grouped``.
    """

    geometry: Geometry
    src: MemoryDesc
    weights: MemoryDesc
    dst: MemoryDesc
    bias: MemoryDesc | None = None
    scale: MemoryDesc | None = None
    grouped: bool = False
    post_ops: tuple[PostOp, ...] = ()

    def fusable(self) -> int:
        """How many of the post-ops, from the first on, the kernels can do."""
        raise NotImplementedError

    def lowered(self, schedule: str = "") -> Done | None:
        """Its program by the schedule that prints so, else by the estimate; None: there are no kernels."""
        raise NotImplementedError

    def estimate(self) -> tuple[float, str] | None:
        """About how many seconds it takes, and how it is done; None: there are no kernels."""
        raise NotImplementedError


@dataclass(frozen=True)
class Products(WeightedSums):
    """A sum of products: convolutions, inner products and matrix products are all of this kind."""

    repeats: bool = False
    """Whether bias and scales are those of one group, and the same for all."""
    whole: MemoryDesc | None = None
    """What ``dst`` is a view of; None: of nothing else."""
    src_zero_point: MemoryDesc | None = None
    weights_zero_point: MemoryDesc | None = None
    algorithm: str = "direct"
    """One of :data:`relayout.ops.products.ALGORITHMS`: which sums of real numbers are meant."""
    noun: ClassVar[str] = "products in "
    """What a list of such schedules begins with, where a program has others, too."""

    def __str__(self) -> str:
        g = self.geometry
        words = [f"{self.src} * {self.weights} -> {self.dst}"]
        for name, usual in (("strides", 1), ("dilation", 1), ("padding", 0), ("gaps", 1)):
            sizes = getattr(g, name)
            words += [f"{name} {spell_dims(sizes)}"] * (set(sizes) != {usual})
        several = ((name, getattr(self, name)) for name in VECTORS)
        words += [f"{name} {desc}" for name, desc in several if desc is not None]
        words += [self.algorithm] * (self.algorithm != "direct")
        return ", ".join([*words, *map(str, self.post_ops)])

    @property
    def flops(self) -> int:
        """A multiplication and an addition are two."""
        return self.geometry.flops

    @property
    def problem(self) -> str:
        """What its contest is about: itself, wherever its buffers begin, as far as that makes no difference.

        What begins whole cache lines further, such as another gate's weights, takes as long.
        """
        sides: dict[str, Any] = {
            name: _placed(getattr(self, name)) for name in ("src", "weights", "dst", *VECTORS)
        }
        return str(replace(self, **sides))

    @property
    def zeros(self) -> Zeros:
        """The zero points, as kernels know them."""
        with lock():
            from relayout.kernels.conv.arithmetic import Zeros

        src, weights = self.src_zero_point, self.weights_zero_point
        return Zeros(
            src is not None,
            0 if weights is None else weights.dims[0],
            0 if src is None else src.layout.offset0 * WORD,
            0 if weights is None else weights.layout.offset0 * WORD,
            self.geometry.outputs if self.repeats and self.geometry.groups > 1 else 0,
        )

    def fusable(self) -> int:
        """See :func:`fusable`."""
        return fusable(self)

    def lowered(self, schedule: str = "") -> Lowered | None:
        """See :func:`products`."""
        return products(self, schedule)

    def schedules(self) -> tuple[Sequence[Candidate], float]:
        """The candidates for it."""
        found = ways(self)
        return ((), 0.0) if found is None else (found.candidates, found.candidates[0].cost)

    def compiled(self, schedule: Candidate) -> Lowered | None:
        """Its program by a candidate."""
        lowered = products(self, str(schedule))  # of which others have scratch that stays
        return None if lowered is None else lowered._replace(program=lowered.own())

    @locked
    def estimate(self) -> tuple[float, str] | None:
        """The same but for reading and writing, and for post-ops."""
        from relayout.kernels.conv.cost import FACTS
        from relayout.runtime.clock import cycles_per_second

        found = ways(self, few=True)
        if found is None:
            return None
        best = found.candidates[0]
        seconds = best.cost * FACTS.clock / cycles_per_second()
        return seconds, str(Lowered(best.plan, Program(()), found.before(best.plan)))


def _placed(desc: MemoryDesc | None) -> MemoryDesc | None:
    """The same tensor, begun in the first cache line."""
    return desc if desc is None or desc.layout is None else _in_first_line(desc)


def _in_first_line(desc: MemoryDesc) -> MemoryDesc:
    layout, line = desc.layout, 8 * LINE // desc.dtype.bits
    if 0 <= layout.offset0 < line:
        return desc
    return desc.with_layout(layout.moved(layout.offset0 % line))


@locked
def weights_format(made: WeightedSums) -> str | None:
    """The format of weights that the kernels for this host read fastest; None: there are no kernels."""
    if not supported():
        return None
    from relayout.kernels.conv.arithmetic import Zeros, arithmetic_of
    from relayout.kernels.conv.weights import weights_text
    from relayout.targets.machine import host

    zeros = made.zeros if isinstance(made, Products) else Zeros()
    how = arithmetic_of(made.src.dtype, made.weights.dtype, made.geometry, host(), zeros)
    if how is None:
        return None
    spatial = len(made.weights.dims) - 2 - made.grouped
    plain = _plain_format(made, how, spatial) if isinstance(made, Products) and not zeros else None
    return plain or weights_text(made.geometry, how, host(), spatial, made.grouped)


def _plain_format(made: Products, how: Arithmetic, spatial: int) -> str | None:
    """The format of weights that come from memory for a row or two, if they are read as they lie.

    Packed they are read no faster, and a copy of a large matrix takes time and memory.
    """
    with lock():
        from relayout.kernels.conv.gemv import side_by_side
        from relayout.targets.machine import host

    g, weights = made.geometry, made.weights
    if made.src.layout is None:
        return None
    if g.batch * g.pixels > MOST_IN_PLACE or prod(weights.dims) * weights.dtype.bits // 8 <= host().l2:
        return None
    axes = "dhw"[3 - spatial :]
    for text in (f"oi{axes}", f"o{axes}i"):
        desc = MemoryDesc(weights.dims, weights.dtype, "g" * made.grouped + text)
        if side_by_side(made.src, desc, g, how, made.grouped, host()) is not None:
            return "g" * made.grouped + text
    return None


class Lowered(NamedTuple):
    """A sum of products as a program."""

    plan: Plan
    program: Program
    packed: str
    """The format that weights are reordered to in each call; empty: they are read as they are."""

    def __str__(self) -> str:
        first = f"weights reordered to {self.packed} in each call, " if self.packed else ""
        return f"{first}{self.plan}"

    def own(self) -> Program:
        """The program for one primitive, with scratch of its own, which goes when the primitive goes."""
        return replace(self.program, note=str(self))


class Ways(NamedTuple):
    """How a sum of products can be done."""

    candidates: tuple[Candidate, ...]
    """The plans that are worth measuring, with their costs, cheapest first."""
    problem: Problem
    """What they solve, with the weights that they read."""
    packed: str
    """The format of these weights if they are packed in each call; empty: they are read as they are."""

    def before(self, plan: Plan) -> str:
        """The format that weights are reordered to before a plan begins; empty: they are not."""
        return "" if plan.carried else self.packed


@locked
def ways(made: Products, few: bool = False) -> Ways | None:
    """The candidates for a sum of products, found without compiling; None where there are none.

    Weights in a format that tiles can't read are reordered first, each time. ``few`` asks for the first
    candidate alone.
    """
    from relayout.runtime import threads
    from relayout.targets.machine import host

    return _ways(_bare(folded(_begun(made)[0])), host(), threads.count(), few)


@locked
def refusal(made: Products) -> str:
    """Why products are not done by the algorithm that they demand; empty: they are."""
    from relayout.kernels.conv.arithmetic import arithmetic_of
    from relayout.kernels.conv.planning import Problem
    from relayout.kernels.conv.weights import weights_text
    from relayout.kernels.conv.winograd import obstacle
    from relayout.targets.machine import host

    if not supported():
        return "there are no kernels here"
    if not made.flops:
        return "there is nothing to compute"
    if ways(made, few=True) is not None:
        return ""
    src, weights, dst, geometry = made.src, made.weights, made.dst, made.geometry
    how = arithmetic_of(src.dtype, weights.dtype, geometry, host(), made.zeros)
    if how is None:
        return f"there is no kernel for {src.dtype} by {weights.dtype}"
    text = weights_text(geometry, how, host(), len(weights.dims) - 2 - made.grouped, made.grouped)
    packed = MemoryDesc(weights.dims, weights.dtype, text)
    given = None if weights.layout.same_bytes(packed.layout) else weights
    sides = src, packed, dst, geometry
    why = obstacle(Problem(*sides, how, made.grouped, given, made.zeros, made.algorithm), host())
    return why or f"there is no kernel for dst {dst}"


def _bare(made: Products) -> Products:
    """The same without what becomes of the sums, which changes no plan."""
    return replace(made, bias=None, scale=None, post_ops=(), whole=None)


@lru_cache(maxsize=768)  # all formats of all layers of a network: those that are planned are compiled later
@locked
def _ways(made: Products, machine: Machine, many: int, few: bool = False) -> Ways | None:
    from relayout.kernels.conv.arithmetic import arithmetic_of, without_dots
    from relayout.kernels.conv.candidates import Problem, candidates, cheapest
    from relayout.kernels.conv.geometry import is_spread
    from relayout.kernels.conv.tile import lanes_of
    from relayout.kernels.conv.weights import weights_text

    how = arithmetic_of(made.src.dtype, made.weights.dtype, made.geometry, machine, made.zeros)
    if how is None or made.dst.dtype.name not in ("f32", "f16", "bf16", "s32", "s8", "u8"):
        return None
    spatial = len(made.weights.dims) - 2 - made.grouped
    hows = [how, *without_dots(how, made.src.dtype, made.geometry, machine, made.zeros)]
    for one in reversed(hows) if _packs_in_vain(made, hows, machine) else hows:
        for packs in (False, True):  # weights as they are, or else packed in each call
            weights, format, given = made.weights, "", None
            if packs:
                format = weights_text(made.geometry, one, machine, spatial, made.grouped)
                weights, given = MemoryDesc(weights.dims, weights.dtype, format), made.weights
            sides = made.src, weights, made.dst, made.geometry
            problem = Problem(*sides, one, made.grouped, given, made.zeros, made.algorithm)
            if few:
                best = cheapest(problem, machine, many)
                found: tuple[Candidate, ...] = () if best is None else (best,)
            else:
                found = candidates(problem, machine, many)
            if found:
                return Ways(found, problem, format)
    if made.zeros and is_spread(
        made.geometry, lanes_of(machine)
    ):  # lanes of several groups know no zero points
        return _ways(replace(made, geometry=made.geometry._replace(apart=True)), machine, many, few)
    return None


def _packs_in_vain(made: Products, hows: Sequence[Arithmetic], machine: Machine) -> bool:
    """Whether weights that meet few pixels would be packed for an instruction, and are read without it.

    To pack them takes longer than to multiply them as they are, for one pixel. Where inputs lie side by side
    and pixels share what was read, that is so for up to seven (Zen 5: 1.2 to 5 times as long), and for eight
    if the weights come from memory. Bytes are packed nevertheless: there is less of them, and to widen them
    takes as long.
    """
    with lock():
        from relayout.kernels.conv.gemv import MOST_ROWS, side_by_side
        from relayout.kernels.conv.tile import lanes_of
        from relayout.kernels.conv.weights import weights_of

    pixels = made.geometry.batch * made.geometry.pixels
    if pixels > MOST_ROWS or hows[0].sums != "f32":
        return False
    lanes, of = lanes_of(machine), (made.weights, made.geometry)
    size = prod(made.weights.dims) * made.weights.dtype.bits // 8
    shared = pixels <= (MOST_ROWS if size > machine.holds // 2 else FEW_ROWS)
    read = [
        (weights_of(*of, how, lanes, made.grouped) if pixels == 1 or how is hows[0] else None)
        or (side_by_side(made.src, *of, how, made.grouped, machine) if shared else None)
        for how in hows
    ]
    return any(read) and not read[0]


@locked
def products(made: Products, schedule: str = "") -> Lowered | None:
    """The program of a sum of products; None where there are no kernels for it.

    ``schedule`` is what the plan prints that is to be taken, if it is a candidate; else it is the estimate.

    Parts of a larger tensor begin somewhere within it: they have the kernels of a tensor that begins in its
    first cache line, and steps say where that is (:attr:`.Step.at`).
    """
    from relayout.runtime import threads
    from relayout.targets.machine import host

    words = host(), threads.count()
    begun, shifts = _begun(made)
    if any(shifts.values()):
        found = _products(begun, schedule, *words)
        if found is not None and (moved := _shifted(found.program, shifts)) is not None:
            return found._replace(program=moved)
    return _products(made, schedule, *words)


def _begun(made: Products) -> tuple[Products, dict[str, int]]:
    """The same with source and destination begun in the first cache line, and how many bytes that is before.

    The operands of binary operations are found by what the destination says, so it stays where they are.
    """
    if any(isinstance(op, BinaryOp) for op in made.post_ops):
        return made, {}
    src, dst = _in_first_line(made.src), _in_first_line(made.dst)
    shifts = {
        name: (old.layout.offset0 - new.layout.offset0) * old.dtype.bits // 8
        for name, old, new in (("src", made.src, src), ("dst", made.dst, dst))
    }
    whole = made.whole
    if whole is not None and shifts["dst"]:
        if whole.layout.offset0 != made.dst.layout.offset0:
            return made, {}
        whole = whole.with_layout(whole.layout.moved(dst.layout.offset0))
    return replace(made, src=src, dst=dst, whole=whole), shifts


def _shifted(program: Program, shifts: Mapping[str, int]) -> Program | None:
    """The program with source and destination so many bytes further; None where a step hands them on."""
    steps = []
    for step in program.steps:
        if {*shifts} & ({step.operands} if isinstance(step.operands, str) else {*step.operands}):
            return None
        steps.append(step._replace(at=(shifts.get(step.source, 0), shifts.get(step.target, 0))))
    return Program(tuple(steps), program.scratch, program.constants, program.faults, note=program.note)


@lru_cache(maxsize=1024)
@locked
@if_possible
def _products(made: Products, schedule: str, machine: Machine, many: int) -> Lowered | None:
    from relayout.kernels.conv import ENTRY
    from relayout.kernels.conv.epilogue import Epilogue

    target = made.whole or made.dst
    made = folded(made)
    src, dst, geometry = made.src, made.dst, made.geometry
    found = _ways(_bare(made), machine, many)
    if found is None:
        return None
    plan = next((one.plan for one in found.candidates if str(one) == schedule), found.candidates[0].plan)
    weights, text = found.problem.weights, found.before(plan)
    operands = _operands(made, target, plan)
    if None in operands:
        return None
    draft = Draft()
    if text:
        draft.reorder(made.weights, weights, "weights", draft.room_for("packed", weights))
    if made.repeats:
        places: Any = tuple(place._replace(channel=place.channel % geometry.outputs) for place in plan.places)
        plan = replace(plan, places=places)
    epilogue = Epilogue(
        dst.dtype.name,
        "" if made.bias is None else made.bias.dtype.name,
        0 if made.scale is None else made.scale.dims[0],
        made.post_ops,
        0 if made.bias is None else made.bias.layout.offset0 * WORD,
        0 if made.scale is None else made.scale.layout.offset0 * WORD,
        geometry.outputs if made.repeats and geometry.groups > 1 else 0,
        tuple(operand for operand in operands if operand is not None),
    )
    text_of = _text_of(plan, found.problem, epilogue)
    if text_of is None:
        return None
    lost = prod(target.layout.padded) != prod(dst.layout.padded)  # views drop the padding of axes of size 1
    if lost or not plan.clears(dst):
        draft.zeros(target, "dst")
    moved = (src, dst, made.weights) if plan.carried else (src, dst)  # by reorders within the kernel
    sides = [(desc.dtype.name, desc.layout._key()) for desc in moved]
    key = "products", sides, plan, epilogue
    size = sum(desc.nbytes for desc in (src, weights, dst))
    packed_name = "packed" if text else "weights"
    names = {
        "weights": packed_name,
        "bias": "bias" if made.bias is not None else "",
        "scale": "scale" if made.scale is not None else "",
        "src_zero_point": "src_zero_point" if made.src_zero_point is not None else "",
        "weights_zero_point": "weights_zero_point" if made.weights_zero_point is not None else "",
        "scratch": "slots" if plan.slot else "",
    }
    addresses = (*(name or packed_name for name in names.values()), *epilogue.names)
    kernel = kernel_of(key, ENTRY, lambda _: text_of())
    step = computing_step(kernel, "src", "dst", addresses, plan.tasks, geometry.flops, size)
    if plan.slot:
        draft.room("slots", step.parts * plan.slot)
    draft.add(step)
    return Lowered(plan, draft.program(), text)


@locked
def _operands(made: Products, target: MemoryDesc, plan: Plan) -> list[Operand | None]:
    """How the kernel reads the operands of binary operations; None for each that it can't."""
    from relayout.kernels.conv.depthwise import Depthwise
    from relayout.kernels.conv.epilogue import ROWS, operand_of

    axis = len(target.dims) - 1 if made.repeats else 1
    descs = operands_of(made.post_ops).values()
    found = [operand_of(desc, target, axis, not plan.unpacks) for desc in descs]
    # a vector may hold rows of several matrices or images
    if isinstance(plan, Depthwise) and (made.repeats or plan.together > 1):
        found = [None if one is not None and one.how == ROWS else one for one in found]
    return found


@locked
def fusable(made: Products) -> int:
    """How many of the post-ops, from the first on, the kernel can do.

    If not all, none of them is a sum: what the destination held must still be there for the others.
    """
    places = [k for k, op in enumerate(made.post_ops) if isinstance(op, BinaryOp)]
    found = ways(made) if places else None
    if found is None:
        return len(made.post_ops)
    operands = _operands(made, made.whole or made.dst, found.candidates[0].plan)
    first = next((k for k, one in zip(places, operands, strict=True) if one is None), len(made.post_ops))
    if first == len(made.post_ops):
        return first
    return next((k for k, op in enumerate(made.post_ops[:first]) if isinstance(op, Sum)), first)


@locked
def _text_of(plan: Plan, problem: Problem, epilogue: Epilogue) -> Callable[[], str] | None:
    """What writes the text of a kernel; None where rows can't be reordered as it needs.

    Most kernels are on disk, and their texts are not asked for: what writes them is loaded by who does.
    """
    from relayout.kernels.conv.direct import Direct

    rows = None
    if isinstance(plan, Direct) and (plan.packs or plan.unpacks or plan.carried):
        from relayout.kernels.conv.convolution import rows_of

        rows = rows_of(plan, problem, epilogue)
        if rows is None:
            return None
    return partial(_written, plan, epilogue, rows)


@locked
def _written(plan: Plan, epilogue: Epilogue, rows: Rows | None) -> str:
    """The text of a kernel; ``rows`` are the reorders within it, where there are any."""
    from relayout.kernels.conv.amx_text import amx_module
    from relayout.kernels.conv.convolution import Rows, module
    from relayout.kernels.conv.depthwise import Depthwise
    from relayout.kernels.conv.depthwise_bytes import DepthwiseBytes
    from relayout.kernels.conv.depthwise_bytes_text import bytes_module
    from relayout.kernels.conv.depthwise_text import depthwise_module
    from relayout.kernels.conv.gemv import Gemv
    from relayout.kernels.conv.gemv_text import gemv_module
    from relayout.kernels.conv.signs import Signs
    from relayout.kernels.conv.signs_text import signs_module
    from relayout.kernels.conv.winograd import Winograd
    from relayout.kernels.conv.winograd_text import winograd_module

    if isinstance(plan, Gemv):
        return gemv_module(plan, epilogue)
    if isinstance(plan, DepthwiseBytes):
        return bytes_module(plan, epilogue)
    if isinstance(plan, Depthwise):
        return depthwise_module(plan, epilogue)
    if isinstance(plan, Signs):
        return signs_module(plan, epilogue)
    if isinstance(plan, Winograd):
        return winograd_module(plan, epilogue)
    write = amx_module if plan.arithmetic.tiles else module
    return write(plan, rows or Rows(), epilogue)
