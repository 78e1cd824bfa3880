"""Products of matrices and tensors, and determinants.

f16 and bf16 are multiplied and added up in f32. Products of 8-bit integers are made in f64, where they are
exact and fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from relayout.errors import LayoutError, counted
from relayout.graph.operators.axes import Dim, Dims
from relayout.graph.operators.binary import alike
from relayout.graph.operators.registry import Array, Fact, broadcast, operator
from relayout.graph.operators.types import narrow, wide

__all__ = ["product_dims"]


def product_dims(a: Fact, b: Fact) -> Dims | None:
    """Dims of a product of two stacks of matrices; a vector is a row on the left and a column on the right.

    >>> product_dims(Fact((8, 1, 2, 3)), Fact(("heads", 3, 4)))
    (8, 'heads', 2, 4)
    >>> product_dims(Fact((2, 3)), Fact((3,)))
    (2,)
    """
    if a.dims is None or b.dims is None:
        return None
    if not a.dims or not b.dims:
        raise LayoutError("both inputs must have 1 axis or more; a scalar has none")
    inner = a.dims[-1], b.dims[-1 if len(b.dims) == 1 else -2]
    if all(isinstance(n, int) for n in inner) and inner[0] != inner[1]:
        raise LayoutError(f"rows of {inner[0]} elements can't be multiplied by columns of {inner[1]}")
    stack = broadcast(Fact(a.dims[:-2]), Fact(b.dims[:-2]))
    return (*(stack or ()), *a.dims[-2:-1], *(b.dims[-1:] if len(b.dims) > 1 else ()))


def _product(a: Fact, b: Fact, **_: Any) -> Fact:
    return Fact(product_dims(a, b), a.dtype)


@operator("MatMul", infer=_product)
def matmul(a: Array, b: Array, /, *, source_bits: int = 24) -> Array:
    """Products of the matrices in the last two axes.

    ``source_bits`` is a permission: with 8 a kernel may round ``a`` to 8 bits, block by block, where ``b`` is
    dequantised in blocks (``accuracy_level=4`` of ONNX Runtime's ``MatMulNBits``). The definition does not.
    """
    return narrow(np.matmul(wide(a), wide(b)), alike(a, b))


def _integer_product(a: Fact, b: Fact, *_: Fact | None) -> Fact:
    return Fact(product_dims(a, b), np.dtype(np.int32))


@operator("MatMulInteger", infer=_integer_product)
def matmul_integer(
    a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None, /
) -> Array:
    """The product of a - a_zero_point and b - b_zero_point, which are for each row of a and column of b."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    if a_zero_point is not None:
        left -= a_zero_point[:, None] if a_zero_point.ndim == 1 and a.ndim > 1 else a_zero_point
    if b_zero_point is not None:
        right -= b_zero_point
    return np.asarray(np.matmul(left, right)).astype(np.int64).astype(np.int32)


def _affine(a: Fact, b: Fact, c: Fact | None = None, *, transA: int = 0, transB: int = 0, **_: Any) -> Fact:
    left, right = (
        Fact(one.dims[::-1] if turned and one.dims is not None else one.dims)
        for one, turned in ((a, transA), (b, transB))
    )
    return Fact(product_dims(left, right), a.dtype)


@operator("Gemm", infer=_affine)
def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    /,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """The matrix alpha a b + beta c, where c is broadcast."""
    if a.ndim != 2 or b.ndim != 2:
        raise LayoutError(f"both inputs must be matrices, and have {a.ndim} and {b.ndim} axes")
    dtype = alike(a, b) if c is None else alike(a, b, c)
    made = wide(a.T if transA else a) @ wide(b.T if transB else b)
    made = made if alpha == 1 else made * alpha
    if c is not None and beta:
        c = np.broadcast_to(wide(c), made.shape)  # towards the product only
        made = made + (c if beta == 1 else c * beta)
    return narrow(made, dtype)


def terms(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The letters of each input's axes and of the result's. Axes of an ellipsis are ``...0``, ``...1``.

    >>> terms("...ij, jk", (3, 2))
    ([['...0', 'i', 'j'], ['j', 'k']], ['...0', 'i', 'k'])
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise LayoutError(
            f"{equation!r} has {counted(len(parts), 'term')} for {counted(len(ranks), 'input')}"
        )
    extra = max((n - len(part) + 3 for part, n in zip(parts, ranks, strict=True) if "..." in part), default=0)

    def letters(part: str, count: int) -> list[str]:
        before, dots, after = part.partition("...")
        return [*before, *(f"...{i}" for i in range(extra - count, extra) if dots), *after]

    inputs = [letters(part, n - len(part) + 3) for part, n in zip(parts, ranks, strict=True)]
    for part, one, n in zip(parts, inputs, ranks, strict=True):
        if len(one) != n:
            raise LayoutError(f"the term {part!r} is not for {n} axes")
    if arrow:
        return inputs, letters(right, extra)
    counts = Counter(letter for one in inputs for letter in one if "." not in letter)
    return inputs, [*letters("...", extra), *sorted(x for x, count in counts.items() if count == 1)]


def _contracted(*inputs: Fact, equation: str) -> Fact:
    dtype = inputs[0].dtype
    if any(one.dims is None for one in inputs):
        return Fact(None, dtype)
    dims = [one.dims or () for one in inputs]
    sizes: dict[str, Dim] = {}
    known, result = terms(equation, [len(one) for one in dims])
    for one, letters in zip(dims, known, strict=True):
        for n, letter in zip(one, letters, strict=True):
            (sizes[letter],) = broadcast(Fact((n,)), Fact((sizes.get(letter, 1),))) or (None,)
    return Fact(tuple(sizes.get(letter) for letter in result), dtype)


@operator("Einsum", infer=_contracted)
def einsum(inputs: Array, /, *more: Array, equation: str) -> Array:
    """The sum of products that an equation in Einstein's notation says."""
    terms(equation, [x.ndim for x in (inputs, *more)])
    dtype = alike(inputs, *more)
    return narrow(np.einsum(equation.replace(" ", ""), *map(wide, (inputs, *more)), optimize=True), dtype)


def _without_matrices(x: Fact) -> Fact:
    return Fact(None if x.dims is None else x.dims[:-2], x.dtype)


@operator("Det", infer=_without_matrices)
def det(x: Array, /) -> Array:
    """Determinants of the matrices in the last two axes."""
    return narrow(np.linalg.det(wide(x)), x.dtype)
