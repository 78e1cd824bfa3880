"""Boxes: those that are left when worse ones that overlap a better one are gone."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator

__all__: list[str] = []


def _scalar(given: Array | None, default: Any) -> Any:
    if given is None or not given.size:
        return default
    if given.size != 1:
        raise LayoutError(f"a threshold or count must be one number, got {given.shape}")
    return given.reshape(()).item()


def _infer(*_: Fact | None, **__: Any) -> Fact:
    return Fact((None, 3), np.dtype(np.int64))


@operator("NonMaxSuppression", infer=_infer)
def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    /,
    *,
    center_point_box: int = 0,
) -> Array:
    """Image, class and box of each one that is selected, the best of each class first."""
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3:
        raise LayoutError("boxes must be batch x boxes x 4, scores batch x classes x boxes")
    if scores.shape[0] != boxes.shape[0] or scores.shape[2] != boxes.shape[1]:
        raise LayoutError(f"boxes of {boxes.shape} and scores of {scores.shape}")
    most, overlap = int(_scalar(max_output_boxes_per_class, 0)), float(_scalar(iou_threshold, 0.0))
    least = _scalar(score_threshold, None)
    selected = []
    for image, (corners, of_image) in enumerate(zip(_corners(boxes, center_point_box), scores, strict=True)):
        for kind, of_class in enumerate(of_image):
            order = np.argsort(-of_class, kind="stable")
            if least is not None:
                order = order[of_class[order] > least]
            selected += [(image, kind, box) for box in _kept(corners, order, most, overlap)]
    return np.array(selected, np.int64).reshape(-1, 3)


def _corners(boxes: Array, center_point_box: int) -> Array:
    """The least and the largest coordinates of both axes: ``[..., (x0, y0, x1, y1)]``."""
    if center_point_box:
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        return np.concatenate([middle - half, middle + half], axis=-1)
    one, other = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(one, other), np.maximum(one, other)], axis=-1)


def _kept(corners: Array, order: Array, most: int, overlap: float) -> list[int]:
    """The boxes that overlap none before them, in the given order, by more than a part of their union.

    Boxes lie sorted by their left borders, so that each is compared only with those that begin between its
    own borders, or so far left of them as the widest box is wide. Where boxes of many classes are kept apart
    by shifting them, these are few.
    """
    if not order.size or most <= 0:
        return []
    by_left = np.argsort(corners[order, 0], kind="stable")
    x0, y0, x1, y1 = np.ascontiguousarray(corners[order[by_left]].T)
    area = (x1 - x0) * (y1 - y0)
    widest = np.nextafter(np.max(x1.astype(float) - x0), np.inf)
    lowest = np.searchsorted(x0, x0 - widest if np.isfinite(widest) else np.full_like(x0, -np.inf))
    highest = np.searchsorted(x0, x1)
    place = np.empty_like(by_left)
    place[by_left] = np.arange(len(by_left))
    extended = area > 0  # boxes without an area overlap nothing: they are kept, and none goes because of them
    gone = np.zeros(len(order), bool)
    kept: list[int] = []
    for box, at in zip(order.tolist(), place.tolist(), strict=True):
        if gone[at]:
            continue
        kept.append(box)
        if len(kept) == most:
            break
        if extended[at]:
            near = slice(lowest[at], highest[at])
            wide = np.minimum(x1[at], x1[near]) - np.maximum(x0[at], x0[near])
            high = np.minimum(y1[at], y1[near]) - np.maximum(y0[at], y0[near])
            both = np.clip(wide, 0, None) * np.clip(high, 0, None)
            union = area[at] + area[near] - both
            valid = (both > 0) & extended[near] & (union > 0)
            gone[near] |= valid & (both / np.where(union > 0, union, 1) > overlap)
    return kept
