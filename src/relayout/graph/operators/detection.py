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
    """The boxes that overlap none before them, in the given order, by more than a part of their union."""
    area = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        inner = np.minimum(corners[best, 2:], corners[order, 2:]) - np.maximum(
            corners[best, :2], corners[order, :2]
        )
        both = np.prod(np.clip(inner, 0, None), axis=1)
        union = area[best] + area[order] - both
        valid = (both > 0) & (area[best] > 0) & (area[order] > 0) & (union > 0)
        order = order[~(valid & (both / np.where(union > 0, union, 1) > overlap))]
    return kept
