"""What primitives are fed with, and how their results are compared.

Everybody gets the same numbers as logical arrays, and lays them out before anything is timed. The weights are
scaled so that results are of the size of the sources: then neither overflow nor subnormal numbers, which some
processors are slow at, come into it.

Sums of thousands of products depend on the order of adding. So results are not compared bit by bit: the
largest deviation must be at most :data:`TOLERANCE` of the largest value.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.bench.networks import BackwardData, BackwardWeights, Conv, Forward, Product
from relayout.bench.passes import Pass
from relayout.bench.recurrent import Recurrent

__all__ = ["SEED", "TOLERANCE", "Operands", "Work", "difference", "operands", "tolerance"]

Work = Conv | Product | Forward | Pass | Recurrent
Floats = NDArray[np.float32]

TOLERANCE = 1e-4
SEED = 4


class Operands(NamedTuple):
    """Logical arrays of f32, row-major. A network makes its own weights from :data:`SEED`.

    Of a gradient of data the source is the gradient that comes in; of one of weights that takes their place.
    """

    src: Floats
    weights: Floats
    bias: Floats | None
    scale: Floats | None = None
    """Of sums of integers: the factor by which they become real numbers."""
    diff: Floats | None = None
    """Of a gradient of what has no weights: what comes in."""


def operands(work: Work) -> Operands:
    """Make the operands of a layer or network, the same ones each time.

    >>> given = operands(Product("mine", 2, 3, 4))
    >>> given.src.shape, given.weights.shape, given.bias.shape
    ((2, 3), (3, 4), (4,))
    """
    generator = np.random.default_rng(SEED)
    src = generator.standard_normal(work.src_dims, np.float32)
    if isinstance(work, Forward):
        return Operands(src, np.empty(0, np.float32), None)
    if isinstance(work, Pass):
        diff = generator.standard_normal(work.dst_dims, np.float32) if work.backward else None
        return Operands(src, np.empty(0, np.float32), None, diff=diff)
    weights = generator.standard_normal(work.weights_dims, np.float32)
    products = work.flops / 2 / math.prod(work.dst_dims)  # what one result is a sum of
    if isinstance(work, Conv | Product) and work.types.whole:
        return _integers(work, products, generator)
    weights /= math.sqrt(products)
    gradient = isinstance(work, BackwardData | BackwardWeights)
    has_bias = work.has_bias if isinstance(work, Product) else not gradient
    return Operands(src, weights, generator.standard_normal(work.bias_dims, np.float32) if has_bias else None)


def _integers(work: Conv | Product, products: float, generator: np.random.Generator) -> Operands:
    """Operands of any integers, and a scale that makes most results fit a byte."""
    low = 0 if work.types.src == "u8" else -128
    src, weights = (
        generator.integers(least, least + 256, dims).astype(np.float32)
        for least, dims in ((low, work.src_dims), (-128, work.weights_dims))
    )
    has_bias = not isinstance(work, Product) or work.has_bias
    bias = generator.standard_normal(work.bias_dims, np.float32) if has_bias else None
    return Operands(src, weights, bias, np.full(1, 2**-8 / math.sqrt(products), np.float32))


def tolerance(work: Work) -> float:
    """How far results may be apart, as a share of the largest one: a rounding of their data type.

    >>> tolerance(Product("mine", 2, 3, 4)) == TOLERANCE, tolerance(Product("mine", 2, 3, 4, dtype="bf16"))
    (True, 0.0078125)
    """
    kind = work.types.dst if isinstance(work, Conv | Product) else "f32"
    return {"bf16": 2**-7, "f16": 2**-10, "u8": 2**-7, "s8": 2**-6}.get(kind, TOLERANCE)


def difference(expected: Floats, found: Floats, allowed: float = TOLERANCE) -> str | None:
    """How far a result is from another one; None within what is allowed.

    >>> difference(np.float32([1, 2]), np.float32([1, 2.00001]))
    >>> difference(np.float32([1, 2]), np.float32([1, 2.1]))
    'differs by 0.05 of the largest value, 0.0001 is allowed'
    """
    if expected.shape != found.shape:
        return f"has the shape {found.shape}, not {expected.shape}"
    largest = float(np.max(np.abs(expected), initial=np.finfo(np.float32).tiny))
    with np.errstate(invalid="ignore"):  # infinities differ by NaN, which is over any tolerance
        error = float(np.max(np.abs(found - expected), initial=0)) / largest
    if error <= allowed:
        return None
    return f"differs by {error:.2g} of the largest value, {allowed:g} is allowed"
