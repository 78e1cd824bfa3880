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
def einsum(r: Reverse) -> list[str | None]:
    """Of each operand the sum of products of ``dy`` with the others; what only it has is repeated."""
    text = str(r.attributes["equation"]).replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if not arrow:
        several = left.replace(",", "")
        result = "".join(sorted(one for one in set(several) if several.count(one) == 1))
    if "." in text or any(len(set(one)) < len(one) for one in terms):
        raise LayoutError(f"Einsum {text!r} has a gradient where no axes are left out, and none twice")
    found: list[str | None] = [None] * len(terms)
    for k, (term, x) in enumerate(zip(terms, r.inputs, strict=True)):
        if not r.wants(k):
            continue
        others = [j for j in range(len(terms)) if j != k]
        known = {*result, *(one for j in others for one in terms[j])}
        kept = "".join(one for one in term if one in known)
        equation = f"{','.join([result, *(terms[j] for j in others)])}->{kept}"
        made = r("Einsum", r.dy, *(r.inputs[j] for j in others), equation=equation)
        dims = r.dims(x)
        ones = [n if one in known else 1 for one, n in zip(term, dims, strict=True)]
        if any(one in kept and n == 1 for one, n in zip(term, dims, strict=True)):
            axes = [i for i, one in enumerate(kept) if r.dims(made)[i] != ones[term.index(one)]]
            made = r.sum(made, axes, 1)
        found[k] = r.broadcast(r.reshaped(made, ones), x)
    return found
