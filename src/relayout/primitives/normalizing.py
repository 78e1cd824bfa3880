"""What layer and group normalisation share: each row has its mean and variance taken out.

Both are the same for some view of the source: an operation on the elements along some of its axes. They
differ in the axes, and in what scale and shift are indexed by. A subclass says how to see a layout so
(:meth:`Normalization._seen`), and the kernel (:mod:`relayout.kernels.reduce.normalization`) does both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from relayout.errors import LayoutError, Unsupported
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.dense import dense_like, row_major
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import Layout, spell_dims
from relayout.ops import normalization as ops
from relayout.ops.formats import check_source, not_negative, target_of
from relayout.ops.post_ops import PostOp, operands_of, post_ops_for
from relayout.primitives.drafting import Draft, if_possible, joined, kernel_step
from relayout.primitives.meaning import check_alike
from relayout.primitives.primitive import Primitive
from relayout.records import replace

if TYPE_CHECKING:
    from relayout.kernels.reduce.normalization import NormalizationPlan
    from relayout.ops.functions import Function
    from relayout.primitives.program import Program, Step

__all__ = ["TABLES", "Normalization", "Vectors", "from_statistics", "of_rows"]

TABLES = ("scale", "shift")


class Normalization(Primitive):
    """A normalisation of rows; see the subclasses."""

    operation: ops.Normalization

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of a row, of what :meth:`_seen` makes of the source."""
        return self.operation.rows[-1]

    def _decide(
        self,
        kind: type[ops.Normalization],
        src: MemoryDesc,
        tables: Mapping[str, Any],
        table_dims: Sequence[int],
        dst: MemoryDesc | None,
        rows: Sequence[int],
        statistics: bool,
        use_global_stats: bool,
        epsilon: float,
        post_ops: Any,
        **attributes: Any,
    ) -> None:
        """Check and decide all descriptors; ``rows`` are the dims of mean and variance."""
        attributes["epsilon"] = not_negative(f"{self.kind}: epsilon", epsilon)
        dst = target_of(self.kind, src, dst, src.dims, real=True)
        given = {
            name: self._table(name, desc, tuple(table_dims))
            for name, desc in tables.items()
            if desc is not None and desc is not False
        }
        found: dict[str, MemoryDesc] = {}
        names = ("variance",) if attributes.get("rms") else ("mean", "variance")
        dims = tuple(rows)
        both = dict.fromkeys(names, MemoryDesc(dims, "f32", row_major(dims)))
        if use_global_stats:
            if statistics:
                raise LayoutError(
                    f"{self.kind}: statistics are either given (use_global_stats) or results (statistics)"
                )
            given = both | given
        elif statistics:
            found = both
        post_ops = post_ops_for(self.kind, post_ops, dst)
        attributes["use_global_stats"] = bool(use_global_stats)
        self._settle(kind, {"src": src, **given}, {"dst": dst, **found}, post_ops, **attributes)
        alike = ("src", *operands_of(post_ops), "dst")
        check_alike(self.kind, {name: self.descs[name] for name in alike})

    def _table(self, name: str, desc: Any, dims: tuple[int, ...]) -> MemoryDesc:
        """The descriptor of a scale or a shift; True stands for f32 of the right dims."""
        if desc is True:
            desc = MemoryDesc(dims, "f32", any_format)
        if not isinstance(desc, MemoryDesc):
            raise LayoutError(f"{self.kind}: {name} must be a MemoryDesc, True or None, not {desc!r}")
        if desc.dims != dims:
            raise LayoutError(f"{self.kind}: {name} {desc} must be {spell_dims(dims)}")
        if desc.layout is None:
            desc = desc.with_layout(row_major(dims))
        if not desc.dtype.is_float:
            raise Unsupported(f"{self.kind}: {name} {desc} must hold f32, bf16 or f16")
        check_source(self.kind, name, desc)
        return desc

    def _moved_besides(self) -> int:
        """Where rows end within blocks, both sides are reordered on the way."""
        sides = [self.descs["src"], self.descs["dst"]]
        if all(self._has_rows(desc) for desc in sides):
            return super()._moved_besides()
        return 2 * sum(desc.nbytes for desc in sides)

    def _has_rows(self, desc: MemoryDesc) -> bool:
        """Whether no axis of a row is fused with another, in memory."""
        try:
            terms = map(set, self._seen(desc.layout).terms)
        except LayoutError:  # blocks that can't be told apart
            return False
        return not any(term & set(self.axes) and term - set(self.axes) for term in terms)

    # -- what a subclass gives ------------------------------------------------------------------------------

    def _seen(self, layout: Layout) -> Layout:
        """The layout of a source or a destination, with rows along :attr:`axes`."""
        raise NotImplementedError

    def _seen_table(self, layout: Layout) -> Layout:
        """The layout of a scale or a shift with as many axes, of one element where it does not change."""
        raise NotImplementedError

    def _vectors(self, names: Sequence[str]) -> Vectors:
        """Those of given statistics for these of mean, scale and shift, and the factor."""
        raise NotImplementedError

    # -- definition and kernels -----------------------------------------------------------------------------

    @property
    def tables(self) -> tuple[str, ...]:
        """Scale and shift, as far as there are any."""
        return tuple(name for name in TABLES if name in self.inputs)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.combining import with_post_ops

        if self.operation.use_global_stats:
            vectors = self._vectors([name for name in self.inputs if name in ("mean", *TABLES)])
            return from_statistics(("src", self.src), ("dst", self.dst), vectors, self.post_ops)
        return with_post_ops(self, _lowered)


@locked
@if_possible
def _lowered(made: Normalization, dst: MemoryDesc, functions: tuple[Function, ...]) -> Program | None:
    """A normalisation to a destination, with functions behind it.

    Scale and shift are read as they are given, if that is f32 in the order of the source; others are
    reordered first.
    """
    from relayout.kernels.reduce.normalization import ENTRY, Normalized, module, planned
    from relayout.primitives.combining import by_way_of
    from relayout.primitives.summing import leaves

    results = made.outputs[1:]
    named = (*made.tables, *results)
    scale, shift, mean, variance = (name in named for name in (*TABLES, "mean", "variance"))
    operation = made.operation
    what = Normalized(operation.rms, operation.epsilon, scale, shift, mean, variance, functions)
    descs = {name: made.descs[name] for name in made.tables}
    given = {name: desc.with_layout(made._seen_table(desc.layout)) for name, desc in descs.items()}
    tables: dict[NormalizationPlan, dict[str, MemoryDesc]] = {}

    def plan(src: MemoryDesc, dst: MemoryDesc) -> NormalizationPlan | None:
        if not (made._has_rows(src) and made._has_rows(dst)):
            return None
        source, target = (desc.with_layout(made._seen(desc.layout)) for desc in (src, dst))
        for one in (given, {name: _near(desc, source) for name, desc in given.items()}):
            if any(desc.dtype.name != "f32" for desc in one.values()):
                continue
            layouts = [views.broadcast_to(desc.layout, source.dims) for desc in one.values()]
            found = planned(what, source, target, made.axes, layouts, [of_rows(made, source)] * len(results))
            if found is not None:
                found = replace(found, stream=leaves(found.rows, src.nbytes + dst.nbytes))
                tables[found] = one
                return found
        return None

    draft = Draft()

    def step(found: NormalizationPlan, source: str, target: str, size: int) -> Step:
        read = [draft.read(given[n], desc, n, f"{n} in f32") for n, desc in tables[found].items()]
        key, write = ("normalization", found), partial(module, found)
        return kernel_step(key, ENTRY, write, source, target, size, (*read, *results))

    src, plainly = made.src, row_major(dst.dims)
    near = dst.with_layout(dense_like(src.layout))
    far = src.with_layout(plainly), dst.with_layout(plainly)
    last = by_way_of([(src, dst), (src, near), far], plan, step)
    draft.append(last)
    return draft.program(last.note if last is not None else "")


class Vectors(NamedTuple):
    """What given statistics, scale and shift are to a pass over all elements."""

    programs: tuple[Program | None, ...]
    """What makes them."""
    operands: Mapping[str, tuple[str, MemoryDesc]]
    """Buffers and descriptors with as many axes as the source, by name: mean, factor, scale, shift."""
    scratch: Mapping[str, int]


@locked
def from_statistics(
    source: tuple[str, MemoryDesc],
    target: tuple[str, MemoryDesc],
    vectors: Vectors,
    post_ops: Sequence[PostOp] = (),
) -> Program | None:
    """The program of one pass with given statistics, from a buffer to another one."""
    from relayout.primitives.lowering import elementwise

    operands = dict([source, *vectors.operands.values()])
    name, dst = target
    expression = ops.from_statistics(tuple(vectors.operands))
    last = elementwise(dst, operands, expression, post_ops=post_ops, target=name)
    note = "factors of the rows, then one pass"
    return joined(*vectors.programs, last, note=note, scratch=vectors.scratch)


def _near(table: MemoryDesc, source: MemoryDesc) -> MemoryDesc:
    """A table in f32, in the order of the source."""
    return MemoryDesc(table.dims, "f32", dense_like(source.layout, table.dims))


def of_rows(made: Normalization, source: MemoryDesc) -> Layout:
    """Where each element finds the mean of its row: row-major, along the axes that are left."""
    first, step, strides = len(source.dims) - len(made.axes), 1, [0] * len(source.dims)
    for axis in reversed(range(first)):
        strides[axis] = step
        step *= source.dims[axis]
    return Layout(source.dims, strides=strides)
