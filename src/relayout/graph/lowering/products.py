"""Matrix products of graphs: which axes count rows, how the matrices lie, and what follows them.

``Gemm`` and ``MatMul`` take tensors of any rank; :class:`relayout.primitives.Matmul` multiplies a matrix by a
matrix, or as many pairs of them. A way of lowering says how the one is the other, as far as possible by
views::

    tokens [8, 197, 768] @ constant [768, 3072]          8*197 rows: one product, the constant packed once
    the same, tokens with 197 innermost                  8 products from the left by the transposed constant
    heads [8, 12, 197, 64] @ heads [8, 12, 64, 197]      96 products of matrices that move
    scores [1, 12, 197, 197] @ one [197, 64]             12*197 rows again: what serves all is one matrix

Whether a view exists depends on the format, so every format that a source may have is asked (:func:`under`,
:func:`as_rows`), and each that fits is a way of its own, with the seconds that the product takes in it: the
planner compares. Blocked columns cost no copy where the matrix is constant. Its rows are numbered as the
columns lie instead (``_renumbered``).

The chain behind a product (:mod:`~.chains`) sees the result with its own axes. :func:`flattened` writes its
operands for rows, and the first sum with a vector is the bias (:func:`biased`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout import primitives
from relayout.errors import LayoutError
from relayout.graph.lowering.case import Case, Operand, label, reshaped, row_major, unfused
from relayout.graph.lowering.chains import Step, chain_of, finished, wanted
from relayout.graph.lowering.digits import Renumbered, permuted, renumbering
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.runtime.kept import kept

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__ = ["as_rows", "biased", "flattened", "targets_of", "under"]


@rule("Gemm")
def gemm(case: Case) -> list[Way] | None:
    """A matrix product with constant weights."""
    src, weights = case.inputs[:2]
    added, steps = case.input(2), chain_of(case)
    if src is None or weights is None or src.data is not None or not case.floats:
        return None
    a = case.attributes
    if weights.data is None:
        return _all_moving(case, src, weights, added, steps)
    if steps is None or 0 in (*src.dims, *case.out.dims):
        return None
    matrix = np.asarray(weights.data.T if a["transB"] else weights.data)
    if a["alpha"] != 1:
        matrix = (matrix * np.float32(a["alpha"])).astype(matrix.dtype)
    if added is not None and added.data is None:
        if a["beta"] != 1:
            return None
        steps = [Step("add", added), *steps]
    elif added is not None and added.data is not None:
        summand = (added.data * np.float32(a["beta"])).astype(np.float32)
        steps = [Step("add", Operand("", summand.shape, "f32", summand.dtype, summand)), *steps]
    return _by_matrix(case, src, matrix, bool(a["transA"]), steps)


def _all_moving(
    case: Case, src: Operand, weights: Operand, bias: Operand | None, steps: list[Step] | None
) -> list[Way] | None:
    """Rows by weights that move: an inner product, whose weights are in the format that it likes."""
    a = case.attributes
    if steps is None or a["transA"] or not a["transB"] or a["alpha"] != 1 or a["beta"] != 1:
        return None
    if bias is not None and bias.dims != case.out.dims[1:]:
        return None
    if 0 in (*src.dims, *case.out.dims):
        return None
    free = MemoryDesc(weights.dims, weights.dtype, any_format)
    vector = None if bias is None else MemoryDesc(bias.dims, "f32", "a")
    target = row_major(case.out.dims, case.out.dtype)

    def make(site: Site) -> Value:
        dst, into = site.target(0, target)
        ops, operands, _ = finished(site, steps, dst)
        value = site.value(src)
        made = primitives.InnerProduct(value.desc, free, vector, dst, post_ops=ops)
        given = [value, site.value(weights)] + ([] if bias is None else [site.wide(bias)])
        return site.add(made, *given, *operands, into=into)

    known = primitives.InnerProduct(row_major(src.dims, src.dtype), free, vector, target)
    read = {**wanted(case, steps, target), src.name: row_major(src.dims, src.dtype)}
    if bias is not None and bias.data is None:
        read[bias.name] = row_major(bias.dims, bias.dtype)
    cost, ways = known._cost()[0], [row_major(weights.dims, weights.dtype)]
    if known.weights.tag is not None:
        ways.append(label(known.weights))
    packing = moving(ways[0], ways[0])
    return [
        Way({**read, weights.name: one}, (target,), cost + packing * (one == ways[0] != ways[-1]), make)
        for one in dict.fromkeys(ways)
    ]


@rule("MatMul")
def matmul(case: Case) -> list[Way] | None:
    """A matrix product: one matrix for all, or as many on both sides."""
    one, two = case.inputs[:2]
    steps = chain_of(case)
    if one is None or two is None or steps is None or not case.floats or 0 in (*one.dims, *two.dims):
        return None
    if one.data is None and two.data is not None and two.data.ndim >= 2 and prod(two.dims[:-2]) == 1:
        return (
            _by_matrix(case, one, two.data.reshape(two.dims[-2:]), False, steps)
            if len(one.dims) > 1
            else None
        )
    return _many(case, one, two, steps) if min(len(one.dims), len(two.dims)) >= 2 else None


def _by_matrix(
    case: Case, src: Operand, matrix: NDArray[Any], turned: bool, steps: list[Step]
) -> list[Way] | None:
    """All rows of a tensor by one constant matrix; as a plain product, whatever axes the rows have."""
    k, n = matrix.shape
    out = case.out
    rows = prod(out.dims[:-1])
    summand = steps
    steps, bias = biased(steps, n)
    flat = flattened(steps, out.dims, (rows, n))
    if flat is None:
        return None

    def make(site: Site) -> Value:
        value = site.value(src)
        value = site.transposed(value, (1, 0)) if turned else site.reshaped(value, (rows, k))
        weights: Any = matrix
        if as_rows(value.desc, (rows, k)) is None:
            found = _renumbered(value.desc)
            if found is None:
                value = site.sequence.reorder(value, row_major((rows, k), src.dtype))
            else:
                value, weights = site.sequence.view(value, found[0]), permuted(matrix, found[1], 0)
        place, into = site.target(0, site.way.outputs[0])
        dst = under(place, (rows, n))
        if dst is None:  # a part of something, of which no layout says rows
            into, dst = None, under(site.way.outputs[0], (rows, n))
        assert dst is not None
        if into:
            into = {"dst": site.sequence.view(into["dst"], dst)}
        ops, operands, added = finished(site, flat, dst, sums=not into)
        made = primitives.Matmul(
            value.desc,
            MemoryDesc((k, n), src.dtype, any_format),
            None if bias is None else MemoryDesc((n,), "f32", "a"),
            dst,
            post_ops=ops,
        )
        given = [weights] if bias is None else [weights, bias]
        result = site.add(made, value, *given, *operands, into=into, **added)
        return site.sequence.view(result, site.dense(result, out.dims))

    added = sum(moving(row_major(s.operand.dims, s.operand.dtype)) for s in steps if s.operand is not None)
    ways = []
    plain = row_major((rows, k), src.dtype), row_major((rows, n), out.dtype)
    least = _product_cost(plain[0], (k, n), plain[1])
    for desc in dict.fromkeys((row_major(src.dims, src.dtype), *case.formats(src))):
        source = plain[0] if turned else as_rows(desc, (rows, k))
        if source is None:
            seen = under(desc, (rows, k))
            found = None if seen is None else _renumbered(seen)
            if found is None:
                continue
            source = found[0]
        for target, dst in targets_of(case, steps, (rows, n)):
            read = wanted(case, steps, target)
            cost = _product_cost(source, (k, n), dst)
            cost = added + (least if cost < ALIKE * least else cost)
            ways.append(Way({**read, src.name: desc}, (target,), cost, make))
    if not turned and len(src.dims) > 1:
        ways += _columns(case, src, matrix, summand)
    return ways


def _columns(case: Case, src: Operand, matrix: NDArray[Any], steps: list[Step]) -> Iterator[Way]:
    """The same where columns of the source and of the result lie together: the transposed product.

    As many as there are matrices in the source, each from the left with the transposed constant. So tokens
    are mixed: channels, which lie side by side, are the columns.
    """
    (k, n), (*lead, m, _), out = matrix.shape, src.dims, case.out
    many = prod(lead)
    flat = _matrices(steps, out.dims, many)
    if flat is None:
        return
    left = np.broadcast_to(np.ascontiguousarray(matrix.T), (many, n, k))
    one = row_major((n, k), src.dtype)
    left_desc = MemoryDesc((many, n, k), src.dtype, views.broadcast_to(one.layout, (many, n, k)))

    def make(site: Site) -> Value:
        value = site.transposed(site.reshaped(site.value(src), (many, m, k)), SWAPPED)
        dst = _turned(site.way.outputs[0], (many, m, n))
        assert dst is not None
        see = partial(site.transposed, order=SWAPPED)
        ops, operands, added = finished(site, flat, dst, sums=True, see=see)
        made = primitives.Matmul(left_desc, value.desc, None, dst, post_ops=ops)
        found = site.transposed(site.add(made, left, value, *operands, **added), SWAPPED)
        return site.sequence.view(found, site.dense(found, out.dims))

    for desc in case.formats(src):
        right = _turned(desc, (many, m, k))
        if right is None or not _in_vectors(right, VECTOR):
            continue
        for target, dst in _turned_targets(case, steps, (many, m, n)):
            read = wanted(case, steps, target)
            cost = _products_cost(left_desc, right, dst) + sum(moving(one) for one in read.values())
            yield Way({**read, src.name: desc}, (target,), cost, make, "columns")


SWAPPED = (0, 2, 1)
"""The order of axes by which several matrices are transposed."""


def _turned(desc: MemoryDesc, dims: tuple[int, ...]) -> MemoryDesc | None:
    """Matrices of some dims, transposed; None where no layout says them."""
    found = under(desc, dims)
    return None if found is None else found.permute_axes(SWAPPED)


def _turned_targets(
    case: Case, steps: Sequence[Step], dims: tuple[int, ...]
) -> list[tuple[MemoryDesc, MemoryDesc]]:
    """The formats in which matrices can be written by columns, each with the transposed matrices."""
    out = case.out
    several = [*case.wishes.get(out.name, ()), *(d for s in _whole(steps, out) for d in case.formats(s))]
    return _written(out, ((one, _turned(one, dims)) for one in (*several, _columns_first(out))))


def _columns_first(out: Operand) -> MemoryDesc:
    """The format in which the columns of matrices are dense."""
    dims = (*out.dims[:-2], out.dims[-1], out.dims[-2])
    order = (*range(len(dims) - 2), len(dims) - 1, len(dims) - 2)
    return label(row_major(dims, out.dtype).permute_axes(order))


def _matrices(steps: list[Step], dims: tuple[int, ...], many: int) -> list[Step] | None:
    """Post-ops with operands of three axes; None where one of them repeats along axes in between."""
    found = []
    for step in steps:
        other = step.operand
        if other is None:
            found.append(step)
            continue
        flat = (*([1] * (2 - len(other.dims))), *other.dims)[-2:]
        if other.dims != dims and prod(other.dims[:-2]) != 1:
            return None
        shape = (many if other.dims == dims else 1, *flat)
        data = None if other.data is None else other.data.reshape(shape)
        found.append(Step(step.op, Operand(other.name, shape, other.dtype, other.kind, data)))
    return found


def _whole(steps: Sequence[Step], out: Operand) -> list[Operand]:
    """The operands with the dims of the result that move."""
    operands = (step.operand for step in steps)
    return [one for one in operands if one is not None and one.dims == out.dims and one.data is None]


ALIKE = 1.05  # times the cost of a product with plain rows: estimates of others differ less by measuring


def targets_of(
    case: Case, steps: Sequence[Step], dims: tuple[int, ...]
) -> list[tuple[MemoryDesc, MemoryDesc]]:
    """The formats in which matrices can be written, each with what it is under other dims.

    Row-major, as what is added to them comes, and as those who read the result behind views want it; where
    columns are still neighbours.
    """
    out = case.out
    several = [row_major(out.dims, out.dtype), *case.wishes.get(out.name, ())]
    several += [desc for one in _whole(steps, out) for desc in case.formats(one)]
    return _written(out, ((one, under(one, dims)) for one in several))


def _written(
    out: Operand, several: Iterable[tuple[MemoryDesc, MemoryDesc | None]]
) -> list[tuple[MemoryDesc, MemoryDesc]]:
    """Those of a result's formats, each with its matrices, whose columns can be stored in vectors."""
    return [
        (target, dst)
        for target, dst in dict(several).items()
        if dst is not None and target.dtype.name == out.dtype and _in_vectors(dst, VECTOR)
    ]


VECTOR = 16  # columns that lie together, at least, where results are stored in another order


def _in_vectors(desc: MemoryDesc, least: int) -> bool:
    """Whether so many columns of a matrix lie together, or all of them."""
    columns, last = desc.dims[-1], desc.layout.ladders[-1][-1]
    return columns == 1 or (last.stride == 1 and last.extent >= min(least, columns))


def as_rows(desc: MemoryDesc, dims: tuple[int, int]) -> MemoryDesc | None:
    """A matrix whose rows are dense in pieces, wherever these begin; a copy pays where they are not."""
    found = under(desc, dims)
    return found if found is not None and _in_vectors(found, VECTOR) else None


def _renumbered(desc: MemoryDesc) -> tuple[MemoryDesc, Renumbered] | None:
    """A matrix with its columns as they lie, in vectors, and what numbers them so."""
    renumbered = renumbering(desc.layout, 1)
    if renumbered is None:
        return None
    found = MemoryDesc(desc.dims, desc.dtype, renumbered(desc.layout, 1))
    return (found, renumbered) if _in_vectors(found, VECTOR) else None


def under(desc: MemoryDesc, dims: tuple[int, ...]) -> MemoryDesc | None:
    """The same elements under other dims; None where no layout says it."""
    try:
        return MemoryDesc(dims, desc.dtype, unfused(reshaped(desc.layout, dims)))
    except LayoutError:
        return None


def biased(steps: list[Step], n: int) -> tuple[list[Step], NDArray[np.float32] | None]:
    """The bias that the first of some post-ops is, and the others."""
    first = steps[0] if steps else None
    if first is None or first.op != "add" or first.operand is None or first.operand.data is None:
        return steps, None
    data = first.operand.data
    if data.size != n or data.shape[-1:] != (n,):
        return steps, None
    return steps[1:], data.reshape(n).astype(np.float32)


def flattened(steps: list[Step], dims: tuple[int, ...], rows: tuple[int, int]) -> list[Step] | None:
    """Post-ops with operands of two axes; None where one of them repeats along rows in between."""
    found = []
    for step in steps:
        other = step.operand
        if other is None:
            found.append(step)
            continue
        if other.dims == dims:
            flat = rows
        elif prod(other.dims[:-1]) == 1:
            flat = (1, prod(other.dims))
        elif other.dims[-1] == 1 and prod(other.dims[:-1]) == rows[0]:
            flat = (rows[0], 1)
        else:
            return None
        data = None if other.data is None else other.data.reshape(flat)
        found.append(Step(step.op, Operand(other.name, flat, other.dtype, other.kind, data)))
    return found


def _many(case: Case, one: Operand, two: Operand, steps: list[Step]) -> list[Way] | None:
    """As many products as there are matrices on both sides; those that serve several are written out.

    One matrix on the right is one product with all the rows on the left.
    """
    (m, k), n, lead = one.dims[-2:], two.dims[-1], case.out.dims[:-2]
    many, kept_apart = prod(lead), 2  # axes of a matrix, or its columns alone where all are one
    if many > 1 and prod(two.dims[:-2]) == 1 and one.dims[:-2] == lead:
        many, m, kept_apart = 1, many * m, 1
    small = [s.operand for s in steps if s.operand is not None and s.operand.dims != case.out.dims]
    if any(prod(other.dims[:-kept_apart]) != 1 for other in small):
        return None
    return list(_Products(case, one, two, steps, many, m, k, n).ways())


class _Products(NamedTuple):
    """Products of ``many`` matrices of m x k by as many of k x n."""

    case: Case
    one: Operand
    two: Operand
    steps: list[Step]
    many: int
    m: int
    k: int
    n: int

    @property
    def matrices(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dims of both sides."""
        return (self.many, self.m, self.k), (self.many, self.k, self.n)

    @property
    def results(self) -> tuple[int, ...]:
        """The dims of what comes out."""
        return self.many, self.m, self.n

    def ways(self) -> Iterator[Way]:
        """In each pair of formats that the sides have, by rows, and by columns where a reader wants that."""
        case, sides = self.case, (self.one, self.two)
        known = [[row_major(x.dims, x.dtype), *(case.formats(x) if x.data is None else ())] for x in sides]
        by_rows = targets_of(case, self.steps, self.results)
        by_columns = _turned_targets(case, self.steps, self.results) if self._is_read_by_columns() else []
        for descs in product(*(dict.fromkeys(side) for side in known)):
            pairs = list(zip(sides, descs, strict=True))
            formats = {x.name: desc for x, desc in pairs if x.data is None}
            if (
                len({id(x) for x, _ in pairs if x.data is None}) > len(formats)
                and self.one.name != self.two.name
            ):
                continue
            left, right = (
                row_major(dims, x.dtype) if prod(x.dims) < prod(dims) else under(desc, dims)
                for (x, desc), dims in zip(pairs, self.matrices, strict=True)
            )
            if left is None or right is None:
                continue
            for target, dst in by_rows:
                read = {**wanted(case, self.steps, target), **formats}
                yield Way(read, (target,), _products_cost(left, right, dst), self.by_rows)
            for target, dst in by_columns:
                read = {**wanted(case, self.steps, target), **formats}
                cost = _products_cost(right.permute_axes(SWAPPED), left.permute_axes(SWAPPED), dst)
                yield Way(read, (target,), cost, self.by_columns, "columns")

    def _is_read_by_columns(self) -> bool:
        """Whether some reader of the result wants its columns dense."""
        wishes = self.case.wishes.get(self.case.out.name, ())
        return min(self.m, self.n) > 1 and any(d.strides[-1] != 1 for d in wishes if d.layout.is_plain)

    def by_rows(self, site: Site) -> Value:
        """Multiply them as they are."""
        dst = under(site.way.outputs[0], self.results)
        values = [
            self._seen(site, x, dims) for x, dims in zip((self.one, self.two), self.matrices, strict=True)
        ]
        return self._made(site, values, dst, lambda x: x)

    def by_columns(self, site: Site) -> Value:
        """Multiply the transposed right matrices by the left ones."""
        turn = partial(site.transposed, order=SWAPPED)
        dst = _turned(site.way.outputs[0], self.results)
        sides = zip((self.two, self.one), reversed(self.matrices), strict=True)
        return self._made(site, [turn(self._seen(site, x, dims)) for x, dims in sides], dst, turn)

    def _made(
        self, site: Site, values: Sequence[Value], dst: MemoryDesc | None, turn: Callable[[Value], Value]
    ) -> Value:
        """The product of two values and its chain; ``turn`` is how results are seen."""
        assert dst is not None
        flat = [self._flat(step) for step in self.steps]
        ops, operands, added = finished(site, flat, dst, sums=True, see=turn)
        made = primitives.Matmul(values[0].desc, values[1].desc, None, dst, post_ops=ops)
        found = turn(site.add(made, *values, *operands, **added))
        return site.sequence.view(found, site.dense(found, self.case.out.dims))

    def _flat(self, step: Step) -> Step:
        """A post-op whose operand has three axes."""
        other = step.operand
        if other is None:
            return step
        dims = (*([1] * max(0, 2 - len(other.dims))), *other.dims)
        dims = self.results if other.dims == self.case.out.dims else (prod(dims[:-2]), *dims[-2:])
        data = None if other.data is None else other.data.reshape(dims)
        return Step(step.op, Operand(other.name, dims, other.dtype, other.kind, data))

    def _seen(self, site: Site, x: Operand, dims: tuple[int, ...]) -> Value:
        """A side as its matrices; those that serve several are written out."""
        if prod(x.dims) == prod(dims):
            return site.reshaped(site.value(x), dims)
        wide = (*self.case.out.dims[:-2], *x.dims[-2:])
        view = site.viewed(site.ranked(x, len(wide)), lambda layout: views.broadcast_to(layout, wide))
        copy = site.add(primitives.Reorder(view.desc, row_major(wide, x.dtype)), view)
        return site.reshaped(copy, dims)


@kept("matrix product")
def _product_cost(src: MemoryDesc, weights: tuple[int, ...], dst: MemoryDesc) -> float:
    """Seconds of a matrix product with packed weights."""
    return primitives.Matmul(src, MemoryDesc(weights, src.dtype, any_format), None, dst)._cost()[0]


@kept("matrix products")
def _products_cost(src: MemoryDesc, weights: MemoryDesc, dst: MemoryDesc) -> float:
    """Seconds of products of matrices both of which move."""
    return primitives.Matmul(src, weights, None, dst)._cost()[0]
