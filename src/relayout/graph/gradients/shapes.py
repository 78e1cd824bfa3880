"""Dims, axes and parts: gradients go back to where elements came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayout.graph.gradients.gathering import put_back
from relayout.graph.gradients.reverse import Reverse, gradient
from relayout.graph.operators.movement import sliced

__all__: list[str] = []


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(r: Reverse) -> str:
    """The dims that came in."""
    return r.reshaped(r.dy, r.dims(r.x))


@gradient("Transpose")
def transpose(r: Reverse) -> str:
    """The axes as they came in."""
    order = tuple(r.attributes["perm"] or reversed(range(len(r.dims(r.x)))))
    return str(r("Transpose", r.dy, perm=tuple(sorted(range(len(order)), key=lambda k: order[k]))))


@gradient("Expand")
def expand(r: Reverse) -> str:
    """The sums over what was repeated."""
    return r.summed(r.dy, r.x)


@gradient("Tile")
def tile(r: Reverse) -> str:
    """The sums over all copies."""
    dims, times = r.dims(r.x), r.whole_numbers(1) or ()
    apart = [n for pair in zip(times, dims, strict=True) for n in pair]
    return r.reshaped(r.sum(r.reshaped(r.dy, apart), range(0, len(apart), 2)), dims)


@gradient("Concat")
def concat(r: Reverse) -> list[str | None]:
    """To each its part."""
    axis = int(r.attributes["axis"]) % len(r.dims(r.x))
    sizes = [r.dims(x)[axis] for x in r.inputs]
    if len(sizes) == 1:
        return [r.dy]
    made = r("Split", r.dy, r.integers(*sizes), outputs=len(sizes), axis=axis)
    return [one if r.wants(k) else None for k, one in enumerate(made)]


@gradient("Split")
def split(r: Reverse) -> str:
    """The parts side by side; zeros for one that is not used."""
    parts = [
        r.writing.zeros(y) if dy is None else dy for y, dy in zip(r.node.outputs, r.gradients, strict=True)
    ]
    return str(r("Concat", *parts, axis=r.attributes["axis"])) if len(parts) > 1 else parts[0]


@gradient("Slice")
def slices(r: Reverse) -> str:
    """Zeros around it, and between elements where a step leaves some out."""
    dims = r.dims(r.x)
    starts, ends = r.whole_numbers(1) or (), r.whole_numbers(2) or ()
    axes = r.whole_numbers(3) or tuple(range(len(starts)))
    steps = r.whole_numbers(4) or (1,) * len(starts)
    dy, found = r.dy, r.dims(r.dy)
    front, behind = [0] * len(dims), [0] * len(dims)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        k = axis % len(dims)
        first, count = sliced(dims[k], start, end, step).indices(dims[k])[0], found[k]
        if step < 0 and count:  # the last one comes first
            first, step = first + (count - 1) * step, -step
            dy = r("Slice", dy, r.integers(-1), r.integers(-count - 1), r.integers(k), r.integers(-1))
        if step > 1 and count:  # zeros behind each element, but for the last
            now = list(r.dims(dy))
            wide = r.reshaped(dy, (*now[: k + 1], 1, *now[k + 1 :]))
            pads = [0] * (2 * len(now) + 2)
            pads[len(now) + 1 + k + 1] = step - 1
            wide = r("Pad", wide, r.integers(*pads))
            wide = r.reshaped(wide, (*now[:k], count * step, *now[k + 1 :]))
            dy = r("Slice", wide, r.integers(0), r.integers((count - 1) * step + 1), r.integers(k))
        front[k] = first
    for k, size in enumerate(dims):
        behind[k] = size - front[k] - r.dims(dy)[k]
    if not any((*front, *behind)):
        return dy
    return str(r("Pad", dy, r.integers(*front, *behind)))


@gradient("Pad")
def pad(r: Reverse) -> str:
    """Without what was added around it, or added to what that was; zeros for what was cut off."""
    dims, pads, mode = r.dims(r.x), r.whole_numbers(1) or (), r.attributes["mode"]
    axes = [k % len(dims) for k in r.whole_numbers(3) or range(len(dims))]
    around = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    cut = [tuple(max(0, -n) for n in around.get(k, (0, 0))) for k in range(len(dims))]
    inner = [n - front - behind for n, (front, behind) in zip(dims, cut, strict=True)]
    dy = r.dy
    for k, several in around.items():
        front, behind = (max(0, n) for n in several)
        if mode == "constant" and (front or behind):
            dy = r("Slice", dy, r.integers(front), r.integers(front + inner[k]), r.integers(k))
        elif front or behind:
            taken = np.pad(np.arange(inner[k]), (front, behind), mode=mode)
            given = [*r.dims(dy)]
            given[k] = inner[k]
            dy = put_back(r, dy, given, k, r.writing.constant(taken))
    if not any(map(any, cut)):
        return dy
    return str(r("Pad", dy, r.integers(*(front for front, _ in cut), *(behind for _, behind in cut))))


@gradient("Trilu")
def triangle(r: Reverse) -> str:
    """The same triangle."""
    return str(r("Trilu", r.dy, *r.inputs[1:], upper=r.attributes["upper"]))


@gradient("ReverseSequence")
def reverse_sequence(r: Reverse) -> str:
    """Once more the other way round."""
    return str(r("ReverseSequence", r.dy, r.inputs[1], **r.attributes))


@gradient("DepthToSpace", "SpaceToDepth")
def between_depth_and_space(r: Reverse) -> Sequence[str | None] | str:
    """The other way."""
    size = r.attributes["blocksize"]
    if r.node.operator == "SpaceToDepth":
        return str(r("DepthToSpace", r.dy, blocksize=size, mode=r.attributes.get("mode", "DCR")))
    if r.attributes["mode"] == "DCR":
        return str(r("SpaceToDepth", r.dy, blocksize=size))
    n, c, h, w = r.dims(r.x)
    dy = r.reshaped(r.dy, (n, c // size**2, h, size, w, size))
    return r.reshaped(r("Transpose", dy, perm=(0, 1, 3, 5, 2, 4)), (n, c, h, w))


@gradient("CenterCropPad")
def center(r: Reverse) -> str:
    """The window around the centre that the data was."""
    return str(r("CenterCropPad", r.dy, r.integers(*r.dims(r.x))))
