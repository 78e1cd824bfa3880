"""Random numbers: normal, uniform, picks among classes, coins, and Dropout.

With a seed the numbers are those of ONNX's reference evaluator: NumPy's ``RandomState`` of that seed, whose
sequence never changes, drawn in the same order. Without one they are different each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, numpy_type, wide

__all__: list[str] = []


def _generator(seed: float | None) -> np.random.RandomState:
    if seed is None or np.isnan(seed):
        return np.random.RandomState()
    number = int(seed)
    if not 0 <= number < 1 << 32:
        raise LayoutError(f"seed {number} must be 0 to {(1 << 32) - 1}")
    return np.random.RandomState(number)


def _drawn(x: Array, scale: float, offset: float, dtype: np.dtype[Any]) -> Array:
    """Standard numbers, scaled and shifted in the precision that they are to have."""
    return narrow(wide(x.astype(dtype)) * scale + offset, dtype)


def _infer_shape(*, shape: Sequence[int], dtype: int = 1, **_: object) -> Fact:
    return Fact(tuple(map(int, shape)), numpy_type(dtype))


def _infer_like(x: Fact, /, *, dtype: int | None = None, **_: object) -> Fact:
    return Fact(x.dims, numpy_type(dtype) if dtype else x.dtype)


@operator("RandomNormal", infer=_infer_shape)
def random_normal(
    *, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None, shape: Sequence[int]
) -> Array:
    """Normally distributed numbers."""
    return _drawn(np.asarray(_generator(seed).randn(*shape)), scale, mean, numpy_type(dtype))


@operator("RandomNormalLike", infer=_infer_like)
def random_normal_like(
    x: Array,
    /,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Array:
    """Normally distributed numbers with the dims of a tensor."""
    kind = numpy_type(dtype) if dtype else x.dtype
    return _drawn(np.asarray(_generator(seed).randn(*x.shape)), scale, mean, kind)


@operator("RandomUniform", infer=_infer_shape)
def random_uniform(
    *, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None, shape: Sequence[int]
) -> Array:
    """Uniformly distributed numbers."""
    return _drawn(np.asarray(_generator(seed).rand(*shape)), high - low, low, numpy_type(dtype))


@operator("RandomUniformLike", infer=_infer_like)
def random_uniform_like(
    x: Array,
    /,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Array:
    """Uniformly distributed numbers with the dims of a tensor."""
    kind = numpy_type(dtype) if dtype else x.dtype
    return _drawn(np.asarray(_generator(seed).rand(*x.shape)), high - low, low, kind)


@operator("Bernoulli", infer=_infer_like)
def bernoulli(x: Array, /, *, dtype: int | None = None, seed: float | None = None) -> Array:
    """1 with the probability that each element says, else 0."""
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise LayoutError(f"probabilities {x.min()} to {x.max()} must be 0 to 1")
    drawn = _generator(seed).binomial(1, p=x.astype(np.float64))
    return narrow(np.asarray(drawn), numpy_type(dtype) if dtype else x.dtype)


def _infer_multinomial(x: Fact, /, *, dtype: int = 6, sample_size: int = 1, **_: object) -> Fact:
    return Fact((x.dims[0] if x.dims else None, sample_size), numpy_type(dtype))


@operator("Multinomial", infer=_infer_multinomial)
def multinomial(x: Array, /, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    """Classes drawn by the logarithms of their probabilities, up to a factor; each row by itself."""
    if x.ndim != 2 or not x.shape[1]:
        raise LayoutError(f"logarithms of {x.shape}; they must be batch x classes")
    powers = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis=1, keepdims=True))
    edges = (powers / powers.sum(axis=1, keepdims=True)).cumsum(axis=1)
    drawn = np.asarray(_generator(seed).rand(x.shape[0], sample_size))
    found = (drawn[:, :, None] >= edges[:, None, :-1]).sum(axis=2)
    return narrow(found, numpy_type(dtype))


def _infer_dropout(x: Fact, /, *_: Fact | None, **__: object) -> tuple[Fact, Fact]:
    return Fact(x.dims, x.dtype), Fact(x.dims, np.dtype(bool))


@operator("Dropout", infer=_infer_dropout)
def dropout(
    x: Array,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    /,
    *,
    seed: int | None = None,
) -> tuple[Array, Array]:
    """In training a part of the elements as zeros and the others larger, and which are left; else all."""
    part = 0.5 if ratio is None else float(np.asarray(ratio).reshape(()))
    if training_mode is None or not bool(np.asarray(training_mode).reshape(())) or part == 0:
        return x, np.ones(x.shape, bool)
    if not 0 <= part < 1:
        raise LayoutError(f"ratio {part} must be 0 or more, and less than 1")
    left = np.asarray(_generator(seed).uniform(0, 1.0, x.shape) >= part)
    return narrow(wide(x) * left / (1 - part), x.dtype), left
