"""Matrix products: of y = a b, da = dy b' and db = a' dy."""

from __future__ import annotations

from collections.abc import Sequence

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient

__all__: list[str] = []


@gradient("MatMul")
def matmul(r: Reverse) -> Sequence[str | None]:
    """Vectors are matrices of one row or one column; what was broadcast is summed."""
    a, b = r.inputs
    one, two = r.dims(a), r.dims(b)
    left = r.reshaped(a, (1, *one)) if len(one) == 1 else a
    right = r.reshaped(b, (*two, 1)) if len(two) == 1 else b
    dims = list(r.dims(r.y))
    if len(two) == 1:
        dims.append(1)
    if len(one) == 1:
        dims.insert(len(dims) - 1, 1)
    dy = r.reshaped(r.dy, dims)
    first = second = None
    if r.wants(0):
        first = r.reshaped(r.summed(r("MatMul", dy, r.transposed(right)), left), one)
    if r.wants(1):
        if len(two) <= 2 < len(dims) and len(one) > 2:  # one matrix for all: one product over all rows
            rows = r.reshaped(left, (r.size(range(len(one) - 1)), one[-1]))
            given = r.reshaped(dy, (r.size(range(len(one) - 1)), dims[-1]))
            product = r("MatMul", r.transposed(rows), given)
        else:
            product = r.summed(r("MatMul", r.transposed(left), dy), right)
        second = r.reshaped(product, two)
    return first, second


@gradient("Gemm")
def gemm(r: Reverse) -> Sequence[str | None]:
    """``alpha a b + beta c``, with a and b transposed where attributes say so."""
    a, b = r.inputs[:2]
    scaled = r.times(r.dy, r.attributes["alpha"])
    left, right = bool(r.attributes["transA"]), bool(r.attributes["transB"])
    first = second = third = None
    if r.wants(0):
        matrix = b if right else r.transposed(b)
        first = r("MatMul", scaled, matrix)
        if left:
            first = r("MatMul", r.transposed(matrix), r.transposed(scaled))
    if r.wants(1):
        second = (
            r("MatMul", r.transposed(scaled), r.transposed(a) if left else a)
            if right
            else r("MatMul", a if left else r.transposed(a), scaled)
        )
    if r.wants(2):
        third = r.summed(r.times(r.dy, r.attributes["beta"]), r.inputs[2])
    return (first, second, third)[: len(r.inputs)]


@gradient("Einsum")
def einsum(r: Reverse) -> Sequence[str | None]:
    """Of each factor the product of the gradient and the others; repeated along what it alone had."""
    equation = str(r.attributes["equation"]).replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise LayoutError(
            f"an Einsum of {equation!r} has no gradient: an ellipsis, or a label twice in a factor"
        )
    if not arrow:
        out = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    sizes: dict[str, int] = {}
    for x, term in zip(r.inputs, terms, strict=True):
        for label, n in zip(term, r.dims(x), strict=True):
            if sizes.setdefault(label, n) != n:
                raise LayoutError(
                    f"an Einsum has no gradient whose label {label!r} has {sizes[label]} and {n}"
                )
    found: list[str | None] = []
    for k, (x, term) in enumerate(zip(r.inputs, terms, strict=True)):
        if not r.wants(k):
            found.append(None)
            continue
        others = [(one, name) for j, (one, name) in enumerate(zip(terms, r.inputs, strict=True)) if j != k]
        there = {*out, *(label for one, _ in others for label in one)}
        kept = "".join(label for label in term if label in there)
        whole = ",".join([out, *(one for one, _ in others)]) + "->" + kept
        made = r("Einsum", r.dy, *(name for _, name in others), equation=whole)
        if kept != term:
            made = r.reshaped(made, [sizes[label] if label in there else 1 for label in term])
        found.append(r.broadcast(made, x))
    return found
