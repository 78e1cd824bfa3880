"""The sentences of :class:`relayout.pytorch.Explanation`: facts in, words out, nothing decided here.

Each function answers one question of the reader; :func:`in_words` sets the answers beside their labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from math import prod
from textwrap import wrap
from typing import TYPE_CHECKING

from relayout.pytorch.formats import (
    channels_last_of_rank,
    is_contiguous,
    strides_for,
    suggest_memory_format,
)
from relayout.pytorch.geometry import Dims, Strides

if TYPE_CHECKING:
    from relayout.pytorch.explanation import Conversion, Explanation, Remedy

__all__ = ["in_words"]

_LABEL_WIDTH = 14
_WIDTH = 100
_NARROWEST = 40

_AXES = {3: "CHW", 4: "NCHW", 5: "NCDHW"}
_RANKS = "channels_last takes 4 axes (N, C, H, W), channels_last_3d takes 5"


def in_words(report: Explanation, width: int = _WIDTH) -> str:
    """Return the explanation as text: a line with dims and strides, then labelled paragraphs.

    Lines are at most ``width`` columns wide, except where a single word is longer.
    """
    room = max(_NARROWEST, min(width, _WIDTH)) - _LABEL_WIDTH
    sections = (
        ("formats", [_formats(report)]),
        ("taken for", [_taken_for(report)]),
        ("memory", [_memory(report)]),
        ("convolution", [_convolution(report)]),
        ("element-wise", [_element_wise(report)]),
        ("calls", [_call(conversion) for conversion in report.conversions]),
        ("to be sure", [*(_remedy(report, remedy) for remedy in report.remedies), *_batchless(report)]),
    )
    body = chain.from_iterable(_set_beside(label, paragraphs, room) for label, paragraphs in sections)
    return "\n".join([f"dims {report.dims}, strides {report.strides}", "", *body])


def _set_beside(label: str, paragraphs: Iterable[str], room: int) -> list[str]:
    lines = chain.from_iterable(wrap(text, room, break_long_words=False) for text in paragraphs)
    return [f"{'' if number else label:<{_LABEL_WIDTH}}{line}" for number, line in enumerate(lines)]


def _listed(names: Iterable[str]) -> str:
    *head, last = names
    return f"{', '.join(head)} and {last}" if head else last


def _axis_name(rank: int, axis: int) -> str:
    return _AXES[rank][axis] if rank in _AXES else f"axis {axis}"


def _formats(report: Explanation) -> str:
    dims, names = report.dims, report.memory_formats
    rank = len(dims)
    if 0 in dims:
        return f"{_listed(names)}: without elements, nothing is out of place."
    if report.ambiguous:
        spatial = list(range(2, rank)) if all(size == 1 for size in dims[2:]) else []
        idle = ([1] if dims[1] == 1 else []) + spatial
        verb = "have" if len(idle) > 1 else "has"
        return (
            f"{_listed(names)} at once: {_listed(_axis_name(rank, axis) for axis in idle)} {verb} size 1, "
            "so both place every element alike."
        )
    if names:
        return f"{names[0]}, and no other."
    return f"None: {_why_no_format(report)}."


def _why_no_format(report: Explanation) -> str:
    if report.broadcast_axes:
        return "the tensor is broadcast (stride 0), and a format has a place for each element"
    if report.overlapping:
        return "elements share addresses, and a format has a place for each element"
    if report.dense:
        return "the elements are dense, but in an order of the axes that PyTorch has no name for"
    if report.suggested != "contiguous_format":
        return f"the order is that of {report.suggested}, but there are gaps between the elements"
    return "there are gaps between the elements"


def _taken_for(report: Explanation) -> str:
    suggested = report.suggested
    channels_last = channels_last_of_rank(len(report.dims))
    if channels_last is None:
        return f"{suggested}, the only answer for {len(report.dims)} axes: {_RANKS}."
    if 0 in report.dims:
        return f"{suggested}, as every tensor without elements."
    if report.ambiguous or report.mistakable:
        return f"{suggested}. {_on_the_hint(report, channels_last)}"
    if report.memory_formats:
        return f"{suggested}."
    if suggested == channels_last:
        return f"{suggested}. Only the order of the strides counts here, gaps and broadcast axes do not."
    return (
        f"{suggested}. This is PyTorch's answer to everything that does not look like channels-last; "
        "it does not say that the tensor is contiguous."
    )


def _on_the_hint(report: Explanation, channels_last: str) -> str:
    rank, new = len(report.dims), strides_for(report.dims, channels_last)
    if report.suggested != channels_last and suggest_memory_format(report.dims, new) != channels_last:
        return (
            f"It can be mistaken for {channels_last}, and nothing can be done about that: new tensors of "
            f"both formats have strides {new}, and PyTorch takes those for contiguous_format."
        )
    if not report.ambiguous:
        odd = (
            f"{_axis_name(rank, axis)} has {report.strides[axis]} (a new tensor: {new[axis]})"
            for axis, size in enumerate(report.dims)
            if size == 1 and report.strides[axis] != new[axis]
        )
        return (
            f"The elements lie in {channels_last} order, but PyTorch also reads the strides of size-1 axes, "
            f"which place no elements: {_listed(odd)}."
        )
    rule = (
        "Where the elements leave it open, PyTorch goes by the strides of size-1 axes: they place no elements"
    )
    if report.suggested == channels_last:
        return (
            f"{rule}, but here they hint at {channels_last}. It can be mistaken for contiguous_format: "
            ".contiguous() returns it as it is."
        )
    return (
        f"{rule}, and give no hint here; a new {channels_last} tensor has {new}. It can be mistaken for "
        f"{channels_last}: it may be a {channels_last} tensor that lost its hint."
    )


def _memory(report: Explanation) -> str:
    count = prod(report.dims)
    if count == 0:
        return "no elements."
    span = 1 + sum((size - 1) * step for size, step in zip(report.dims, report.strides, strict=True))
    elements, places = _counted(count, "element"), _counted(span, "place")
    if report.dense:
        return f"dense: {elements} in {places}, without gap and without overlap."
    if report.broadcast_axes:
        axes = _listed(_axis_name(len(report.dims), axis) for axis in report.broadcast_axes)
        return f"broadcast along {axes} (stride 0): {elements} seen within {places}."
    if report.overlapping:
        return f"overlapping: {elements} within {places}, and some share one."
    if report.overlapping is None:
        return f"not dense: {elements} within {places}; whether any is shared is too hard to tell."
    return f"with gaps: {elements} within {places}, none is shared."


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _convolution(report: Explanation) -> str:
    rank, taken = len(report.dims), report.convolution
    if taken is None:
        return f"none takes {rank} axes."
    if 0 in report.dims:
        return "nothing to compute."
    if rank == 3:
        return (
            "As an image (C, H, W), conv2d gives it a batch axis with unsqueeze(0), of stride "
            f"{report.dims[0] * report.strides[0]}, and takes it for {taken}. "
            "As a sequence (N, C, L), conv1d makes it contiguous first."
        )
    text = f"The next convolution treats it as {taken} and computes in that format"
    if taken != "contiguous_format":
        return f"{text}, whatever its weight is."
    return (
        f"{text}, unless its weight is taken for {channels_last_of_rank(rank)}: either of the two is enough."
    )


def _element_wise(report: Explanation) -> str:
    text = f"-x has strides {report.unary_strides}: {_named(report.dims, report.unary_strides)}"
    if report.number_strides != report.unary_strides:
        named = _named(report.dims, report.number_strides)
        text += (
            f"; x + 1 has {report.number_strides}: {named}. The first takes a short cut that looks at "
            "the elements only, the second sorts the axes by their strides"
        )
    return f"{text}."


def _named(dims: Dims, strides: Strides) -> str:
    taken = suggest_memory_format(dims, strides)
    if is_contiguous(dims, strides, taken):
        return taken
    channels_last = channels_last_of_rank(len(dims))
    order = "no named order"
    if channels_last and is_contiguous(dims, strides, channels_last):
        order = f"{channels_last} order"
    return f"{order}, taken for {taken}"


def _call(conversion: Conversion) -> str:
    if conversion.strides is None:
        return f"{conversion.call} is refused: {_RANKS}."
    if conversion.copies:
        return f"{conversion.call} copies; strides {conversion.strides}."
    return f"{conversion.call} returns x itself."


def _remedy(report: Explanation, remedy: Remedy) -> str:
    return f"{remedy.memory_format}: {_what_to_do(report, remedy)}."


def _what_to_do(report: Explanation, remedy: Remedy) -> str:
    name = remedy.memory_format
    if remedy.state == "done":
        if name == "contiguous_format" or not report.ambiguous:
            return "nothing to do"
        return (
            "nothing to do for now. -x and the like drop the hint; set it again afterwards, with "
            f".to(memory_format=torch.{name})"
        )
    if remedy.state == "hint missing":
        return (
            f"{remedy.call} writes the hint, without a copy. .contiguous does not write it, .to copies for it"
        )
    if remedy.state == "gaps":
        return f"{remedy.call} packs the elements. .to returns x with its gaps"
    if remedy.state == "other order":
        keeps = ". .to returns x as it is" if name == report.suggested else ""
        return f"{remedy.call} copies{keeps}"
    if 0 in report.dims:
        return "not to be had, a tensor without elements is never taken for it"
    return (
        "new tensors of both formats have the same strides. Nothing is lost but the hint: give it to the "
        f"weight of the next convolution, weight.to(memory_format=torch.{name})"
    )


def _batchless(report: Explanation) -> list[str]:
    if len(report.dims) != 3:
        return []
    return [
        "channels_last: give the batch an axis first, x.unsqueeze(0).to(memory_format=torch.channels_last)."
    ]
