"""Matrix product by weights of 4 or 8 bits, in blocks that have a scale and a zero point each.

::

    dst[m, n] = bias[n] + sum over k of src[m, k] * real[n, k]
    real[n, k] = scale[n, k / block] * (weights[n, k] - zero_points[n, k / block])

This is what ONNX Runtime calls ``MatMulNBits``, and what language models are whose weights alone are
quantised. Weights are read as they are packed, two to a byte: they are never written out as floating point.
:mod:`relayout.kernels.blockwise` says how they are multiplied.

>>> import numpy as np
>>> import relayout as rl
>>> x, w = rl.MemoryDesc((1, 32), "f32", "ab"), rl.MemoryDesc((48, 32), "u4", rl.any)
>>> product = MatmulNBits(x, w, block=16)
>>> product.scale, product.dst
(MemoryDesc('f32:Ab16a:48x2'), MemoryDesc('f32:ab:1x48'))
>>> ones, nines = np.ones((1, 32), np.float32), rl.tensor(np.full((48, 32), 9), product.weights.tag, "u4")
>>> scale = rl.tensor(np.full((48, 2), 0.5, np.float32), product.scale.tag)
>>> float(product(ones, nines, scale).numpy()[0, 0])
16.0
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError, Unsupported
from relayout.forking import lock, locked
from relayout.layout.dense import row_major
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import whole_number
from relayout.ops import blockwise as ops
from relayout.ops.checks import check_descs, check_written
from relayout.ops.post_ops import post_ops_for
from relayout.primitives.drafting import Draft, if_possible
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["MatmulNBits"]

FLOATS = ("f32", "bf16", "f16")
WEIGHTS = ("u4", "u8")


class MatmulNBits(Primitive):
    """A product by weights in blocks, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        ``m`` rows of ``k``, in f32, bf16 or f16.
    weights : MemoryDesc
        ``n`` rows of ``k``, in u4 or u8: each output has a row, as ONNX Runtime has it. ``any`` is the format
        that kernels read best: a word of each output of several registers, ``AB64a8b`` for 4 bits in four
        registers of 16 lanes, ``AB16a8b`` where so many outputs would be padding for the most part. Kernels
        read both.
    scale : MemoryDesc, optional
        ``n`` rows with an f32, bf16 or f16 for each block; without it f32 in the format that kernels read.
    zero_points : MemoryDesc or True, optional
        The same in u8; True: in the format that kernels read. Without zero points it is 8 for u4, and 128 for
        u8.
    bias : MemoryDesc, optional
        One f32 for each output.
    dst : MemoryDesc, optional
        ``m`` rows of ``n``; without it row-major, in the data type of the source.
    block : int
        So many neighbouring inputs have a scale. A multiple of 8, or as many inputs as there are.
    source_bits : int
        24: the source is cut into three bytes, with an exponent for 16 to 128 neighbours, about as exact as
        f32. 8: it is rounded to 8 bits, dynamically, which takes a third of the products.
    post_ops : sequence
        See :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        Sizes don't fit together.
    Unsupported
        A data type that is not computed with.

    Notes
    -----
    With 24 bits, an element is off by at most 2**-22 of the largest of its neighbours, or by 2**-127 where
    that is below 2**-104; sums within a block are exact, and blocks are added up in f32. A row of the source
    with an infinity or a NaN makes a row of NaN. Bits don't depend on the number of threads.
    """

    kind = "matrix product of few bits"
    operation: ops.MatmulNBits

    def __init__(
        self,
        src: MemoryDesc,
        weights: MemoryDesc,
        scale: MemoryDesc | None = None,
        zero_points: MemoryDesc | bool | None = None,
        bias: MemoryDesc | None = None,
        dst: MemoryDesc | None = None,
        *,
        block: int,
        source_bits: int = 24,
        post_ops: Any = (),
    ) -> None:
        points = None if isinstance(zero_points, bool) else zero_points
        check_descs(
            self.kind,
            {"src": src, "weights": weights},
            {"scale": scale, "zero_points": points, "bias": bias, "dst": dst},
        )
        if len(src.dims) != 2 or len(weights.dims) != 2 or src.dims[1] != weights.dims[1]:
            raise LayoutError(
                f"{self.kind}: src {src} and weights {weights} must be rows with as many "
                "elements: m x k and n x k"
            )
        (m, k), n = src.dims, weights.dims[0]
        if src.dtype.name not in FLOATS or weights.dtype.name not in WEIGHTS:
            raise Unsupported(
                f"{self.kind}: src {src} must be {', '.join(FLOATS)}, weights {weights} u4 or u8; signed "
                "weights are those plus 8 or 128, and so are their zero points"
            )
        if whole_number(block, f"{self.kind}: block") < 1 or (block < k and block % 8):
            raise LayoutError(
                f"{self.kind}: blocks of {block} of {k} inputs; it must be a multiple of 8, or all"
            )
        if source_bits not in (8, 24):
            raise LayoutError(f"{self.kind}: source_bits is 8 or 24, not {source_bits!r}")
        blocks = -(-k // block)
        known = {"src": _rows(src), "weights": _weights(weights)}
        side = _side(known["weights"])
        known["scale"] = _table(scale or MemoryDesc((n, blocks), "f32", any_format), side)
        if zero_points:
            known["zero_points"] = _table(points or MemoryDesc((n, blocks), "u8", any_format), side)
        if bias is not None:
            known["bias"] = _table(bias, side)
        wanted = {
            "scale": (FLOATS, (n, blocks)),
            "zero_points": (("u8",), (n, blocks)),
            "bias": (("f32",), (n,)),
        }
        for name, (kinds, dims) in wanted.items():
            if name in known and (known[name].dims != dims or known[name].dtype.name not in kinds):
                what = f"{', '.join(kinds)} {'x'.join(map(str, dims))}"
                raise LayoutError(f"{self.kind}: {name} {known[name]} must be {what}, for blocks of {block}")
        dst = _rows(dst or MemoryDesc((m, n), src.dtype, any_format))
        if dst.dims != (m, n) or dst.dtype.name not in FLOATS:
            raise LayoutError(f"{self.kind}: dst {dst} must be {m}x{n}, of {', '.join(FLOATS)}")
        check_written(self.kind, dst)
        made = post_ops_for(self.kind, post_ops, dst)
        self._settle(ops.MatmulNBits, known, {"dst": dst}, made, block=block, source_bits=source_bits)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.lowering import before, followed

        between = before(self.dst, self.post_ops) if self.post_ops else self.dst
        made = self._product(between)
        if not self.post_ops or made is None:
            return made
        return followed(made, between, self.dst, self.post_ops)

    @locked
    @if_possible
    def _product(self, dst: MemoryDesc) -> Program | None:
        """The program without post-ops, whose result is the buffer ``dst`` in this descriptor."""
        given = {name: desc for name, desc in self.descs.items() if name in NAMES}
        side = _side(self.weights)
        wanted = {
            "src": given["src"] if _is_rows(given["src"]) else _plain(given["src"]),
            "weights": _packed(self.weights, side),
            **{n: _table(_free(desc), side) for n, desc in given.items() if n in TABLES},
        }
        target = dst if _is_rows(dst) else _plain(dst)
        draft, names = Draft(), {}
        for name, desc in wanted.items():
            read = given[name] if desc.layout.same_bytes(given[name].layout) else desc
            names[name] = draft.read(given[name], read, name, f"{name} in order")
        names["dst"] = draft.write(dst, target, "dst", "rows")
        made = self._kernels(wanted["src"], target)
        draft.append(made, names)
        return draft.program(made.note)

    @locked
    def _kernels(self, src: MemoryDesc, dst: MemoryDesc) -> Program:
        """Rows cut into limbs, then the product."""
        from relayout.environment import LOADED
        from relayout.jit.compile import Module, recalled
        from relayout.kernels.blockwise.plan import LIMBS, Plan
        from relayout.kernels.blockwise.product import PRODUCT, product_text
        from relayout.kernels.blockwise.source import SOURCE, source_text
        from relayout.primitives.program import Program, Step
        from relayout.runtime import threads
        from relayout.runtime.sharing import computes_enough, parts_of, parts_of_tasks
        from relayout.targets.machine import host

        zeros, bias = "zero_points" in self.descs, "bias" in self.descs
        (m, k), n = src.dims, dst.dims[1]
        plan = Plan(
            host(),
            m,
            k,
            n,
            self.weights.dtype.bits,
            self.operation.block,
            LIMBS if self.operation.source_bits == 24 else 1,
            src.dtype.name,
            dst.dtype.name,
            _steps(src),
            _steps(dst),
            zeros,
            bias,
            self.scale.dtype.name,
            _side(self.weights),
        )

        def made() -> Module:
            return Module(source_text(plan) + product_text(plan), [SOURCE, PRODUCT])

        (limbs, product), _ = recalled(repr(("blockwise", plan)), LOADED, made, plan.machine)
        many = threads.count()
        cut = min(m, parts_of(m * k * 4, many))
        parts = parts_of_tasks(plan.groups, plan.size, many)
        shared = parts > 1 and computes_enough(self.flops, plan.size)
        operands = "weights", "scale", *(["zero_points"] * zeros), *(["bias"] * bias)
        steps = (
            Step(limbs, "src", "limbs", (), cut, cut > 1 and shared),
            Step(product, "limbs", "dst", operands, parts, shared),
        )
        note = (
            f"rows in {plan.limbs} limbs of chunks of {plan.chunk}, weights of {plan.bits} bits as they lie"
        )
        return Program(steps, {"limbs": plan.room}, note=note)

    def _cost(self) -> tuple[float, str]:
        with lock():
            from relayout.reorder.predict import seconds_to_move

        return max(seconds_to_move(2 * self.bytes) / 2, self.flops / PRODUCTS), ""


PRODUCTS = 8e10
"""Operations in a second: what is counted on where many rows make a product slower than its bytes."""

TABLES = "scale", "zero_points", "bias"
NAMES = "src", "weights", *TABLES


def _rows(desc: MemoryDesc) -> MemoryDesc:
    """Row-major, if the format is open."""
    return MemoryDesc(desc.dims, desc.dtype, "ab") if desc.layout is None else desc


@locked
def _weights(desc: MemoryDesc) -> MemoryDesc:
    """What kernels read best, if the format is open."""
    return _packed(desc, _side(desc)) if desc.layout is None else desc


@locked
def _packed(desc: MemoryDesc, side: int) -> MemoryDesc:
    """Weights with so many registers of outputs side by side."""
    from relayout.kernels.blockwise.plan import weights_text
    from relayout.targets.machine import host

    return MemoryDesc(desc.dims, desc.dtype, weights_text(desc.dtype.bits, host(), side))


@locked
def _side(weights: MemoryDesc) -> int:
    """How many registers of outputs are side by side, or best would be."""
    from relayout.kernels.blockwise.plan import SIDES, side_of
    from relayout.targets.machine import host

    if weights.layout is not None:
        for side in SIDES:
            if weights.layout.same_bytes(_packed(weights, side).layout):
                return side
    return side_of(weights.dims[0], host())


@locked
def _table(desc: MemoryDesc, side: int) -> MemoryDesc:
    """Scales, zero points and biases in the format that goes with it, if theirs is open."""
    from relayout.kernels.blockwise.plan import lines_of
    from relayout.targets.machine import host

    if desc.layout is not None:
        return desc
    return MemoryDesc(desc.dims, desc.dtype, lines_of(host(), side, len(desc.dims)))


def _free(desc: MemoryDesc) -> MemoryDesc:
    """Any format."""
    return MemoryDesc(desc.dims, desc.dtype, any_format)


def _plain(desc: MemoryDesc) -> MemoryDesc:
    return desc.with_layout(row_major(desc.dims))


def _is_rows(desc: MemoryDesc) -> bool:
    """Whether the elements of each row are side by side."""
    return desc.layout.is_plain and (desc.dims[1] == 1 or desc.strides[1] == 1) and desc.strides[0] >= 0


def _steps(desc: MemoryDesc) -> tuple[int, int]:
    """Bytes in front of the first row, and from row to row."""
    size = desc.dtype.bits // 8
    return desc.layout.offset0 * size, desc.strides[0] * size
