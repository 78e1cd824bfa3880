"""Losses: the negative logarithm of the probability of each sample's own class."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator
from relayout.graph.operators.types import narrow, wide

__all__: list[str] = []


def _loss(
    logarithms: Array, target: Array, weight: Array | None, reduction: str, ignore_index: int | None
) -> Array:
    """Less the logarithms of the target's classes, weighed and reduced."""
    if logarithms.ndim < 2 or target.shape != (logarithms.shape[0], *logarithms.shape[2:]):
        raise LayoutError(f"classes of {target.shape} for samples of {logarithms.shape}")
    if reduction not in ("none", "mean", "sum"):
        raise LayoutError(f"reduction {reduction!r} is none of none, mean, sum")
    classes = logarithms.shape[1]
    counted = np.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    if ((target < 0) | (target >= classes))[counted].any():
        raise LayoutError(
            f"classes {target[counted].min()} to {target[counted].max()} must be 0 to {classes - 1}"
        )
    if weight is not None and weight.shape != (classes,):
        raise LayoutError(f"weights of {weight.shape} for {classes} classes")
    index = np.where(counted, target, 0)
    weights = counted.astype(logarithms.dtype)
    if weight is not None:
        weights = np.where(counted, wide(weight)[index], 0).astype(logarithms.dtype)
    losses = -np.take_along_axis(logarithms, index[:, None], axis=1)[:, 0]
    losses = np.where(counted, losses, 0) * weights
    if reduction == "none":
        return np.asarray(losses)
    return np.asarray(losses.sum() / weights.sum() if reduction == "mean" else losses.sum())


def _infer_loss(x: Fact, target: Fact, /, *_: Fact | None, reduction: str = "mean", **__: Any) -> Fact:
    return Fact(target.dims if reduction == "none" else (), x.dtype)


@operator("NegativeLogLikelihoodLoss", infer=_infer_loss)
def negative_log_likelihood_loss(
    x: Array,
    target: Array,
    weight: Array | None = None,
    /,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    """The loss of given logarithms of probabilities."""
    return narrow(_loss(wide(x), target, weight, reduction, ignore_index), x.dtype)


def _infer_cross_entropy(x: Fact, *rest: Fact | None, **attributes: Any) -> tuple[Fact, Fact]:
    return _infer_loss(x, *rest, **attributes), Fact(x.dims, x.dtype)  # type: ignore[arg-type]


@operator("SoftmaxCrossEntropyLoss", infer=_infer_cross_entropy)
def softmax_cross_entropy_loss(
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    /,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Array, Array]:
    """The loss of the softmax of scores, and its logarithms."""
    data = wide(scores)
    if data.ndim < 2:
        raise LayoutError(f"scores of {scores.shape} have no axis of classes")
    shifted = data - data.max(axis=1, keepdims=True, initial=-np.inf)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = _loss(logarithms, labels, weights, reduction, ignore_index)
    return narrow(loss, scores.dtype), narrow(logarithms, scores.dtype)
