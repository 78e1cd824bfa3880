"""Dims, axes and parts: gradients go back to where elements came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients.gathering import added
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
        if step < 0:
            raise LayoutError("a Slice that goes backwards has no gradient")
        first, count = sliced(dims[k], start, end, step).indices(dims[k])[0], found[k]
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
    """Without what was added around it; where elements were repeated there, these are added up."""
    dims, pads = r.dims(r.x), r.whole_numbers(1) or ()
    axes = [k % len(dims) for k in r.whole_numbers(3) or range(len(dims))]
    front, behind = pads[: len(axes)], pads[len(axes) :]
    cut = [max(0, -n) for n in (*front, *behind)]
    if any(cut):
        raise LayoutError("a Pad that cuts off has no gradient")
    if r.attributes["mode"] != "constant":
        return _repeated(r, dict(zip(axes, zip(front, behind, strict=True), strict=True)))
    ends = [n + dims[k] for n, k in zip(front, axes, strict=True)]
    return str(r("Slice", r.dy, r.integers(*front), r.integers(*ends), r.integers(*axes)))


def _repeated(r: Reverse, pads: Mapping[int, tuple[int, int]]) -> str:
    """The gradient of elements that were repeated around, axis by axis."""
    dims, dy = r.dims(r.x), r.dy
    for axis, around in pads.items():
        if any(around):
            places = np.pad(np.arange(dims[axis]), around, r.attributes["mode"])
            now = r.dims(dy)
            dy = added(r, dy, (*now[:axis], dims[axis], *now[axis + 1 :]), r.integers(*places), axis)
    return dy


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
    if r.attributes["mode"] != "DCR":
        batch, channels, height, width = r.dims(r.dy)
        apart = r.reshaped(r.dy, (batch, channels, height // size, size, width // size, size))
        return r.reshaped(str(r("Transpose", apart, perm=(0, 1, 3, 5, 2, 4))), r.dims(r.x))
    return str(r("SpaceToDepth", r.dy, blocksize=size))
