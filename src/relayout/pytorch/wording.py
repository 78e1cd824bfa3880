"""The sentences of :class:`relayout.pytorch.Explanation`: facts in, words out, nothing decided here.

Each function answers one question of the reader with a list of paragraphs; :func:`in_words` sets them beside their labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from math import prod
from textwrap import wrap
from typing import TYPE_CHECKING

from relayout.pytorch.formats import channels_last_of_rank, strides_for, suggest_memory_format

if TYPE_CHECKING:
    from relayout.pytorch.explanation import Conversion, Explanation, Remedy

__all__ = ["in_words"]

_LABEL_WIDTH = 14
_WIDTH = 114

_AXES = {3: "CHW", 4: "NCHW", 5: "NCDHW"}


def in_words(report: Explanation) -> str:
    """Return the explanation as text: a line with dims and strides, then labelled paragraphs."""
    sections = (
        ("formats", _formats(report)),
        ("taken for", _taken_for(report)),
        ("memory", _memory(report)),
        ("convolution", _convolution(report)),
        ("element-wise", _element_wise(report)),
        ("calls", map(_call, report.conversions)),
        ("to be sure", chain.from_iterable(_remedy(report, remedy) for remedy in report.remedies)),
    )
    lines = [f"dims {report.dims}, strides {report.strides}", ""]
    for label, paragraphs in sections:
        lines += _set_beside(label, paragraphs)
    return "\n".join(lines)


def _set_beside(label: str, paragraphs: Iterable[str]) -> list[str]:
    margin = " " * _LABEL_WIDTH
    lines = chain.from_iterable(wrap(text, _WIDTH - _LABEL_WIDTH, break_long_words=False) for text in paragraphs)
    return [(f"{label:<{_LABEL_WIDTH}}" if first == 0 else margin) + line for first, line in enumerate(lines)]


def _listed(names: Iterable[str]) -> str:
    *head, last = names
    return f"{', '.join(head)} and {last}" if head else last


def _axis_names(rank: int, axes: Iterable[int]) -> str:
    letters = _AXES.get(rank)
    return _listed(letters[axis] if letters else f"axis {axis}" for axis in axes)


def _formats(report: Explanation) -> list[str]:
    dims, names = report.dims, report.memory_formats
    if 0 in dims:
        return [f"No elements, so nothing is out of place: {_listed(names)}."]
    if report.ambiguous:
        rank = len(dims)
        idle = [1] if dims[1] == 1 else list(range(2, rank))
        verb = "has" if len(idle) == 1 else "have"
        return [
            f"{_listed(names)} at once: {_axis_names(rank, idle)} {verb} size 1, so both formats place every "
            "element alike."
        ]
    if names:
        return [f"{names[0]}, and no other."]
    return [f"None: {_why_no_format(report)}."]


def _why_no_format(report: Explanation) -> str:
    if report.broadcast_axes:
        return "the tensor is broadcast (stride 0), a format has a place for each element"
    if report.overlapping:
        return "elements share addresses, a format has a place for each element"
    if report.dense:
        return "the elements are dense, but in an order of the axes that PyTorch has no name for"
    if report.suggested != "contiguous_format":
        return f"the order is that of {report.suggested}, but there are gaps between the elements"
    return "there are gaps between the elements"


def _taken_for(report: Explanation) -> list[str]:
    dims, suggested = report.dims, report.suggested
    channels_last = channels_last_of_rank(len(dims))
    text = f"{suggested}."
    if channels_last is None:
        text += f" It is the only answer for {len(dims)} axes: {_ranks_of_channels_last()}."
    elif 0 in dims:
        text += " PyTorch takes every tensor without elements for that."
    elif report.ambiguous or report.mistakable:
        text += _on_the_hint(report, channels_last)
    elif not report.memory_formats and suggested == channels_last:
        text += (
            " This answer asks for the order of the strides only; gaps and broadcast axes do not matter to it."
        )
    elif not report.memory_formats:
        text += " This is PyTorch's answer to everything that does not look like channels-last; it does not say contiguous."
    return [text]


def _ranks_of_channels_last() -> str:
    return "channels_last takes 4 axes (N, C, H, W) and channels_last_3d takes 5"


def _on_the_hint(report: Explanation, channels_last: str) -> str:
    new = strides_for(report.dims, channels_last)
    if suggest_memory_format(report.dims, new) != channels_last:
        return (
            f" With C and all spatial axes of size 1, the strides of a new {channels_last} tensor, {new}, look contiguous too: "
            "the format leaves no trace."
        )
    if report.ambiguous:
        text = (
            " Where the elements leave it open, PyTorch goes by the strides of size-1 axes, which carry no elements, "
            "only this hint"
        )
        if report.suggested == channels_last:
            return (
                f"{text}. It can be mistaken: the elements are contiguous all the same, and a call that asks for the "
                "elements takes them so."
            )
        return (
            f"{text}; a new {channels_last} tensor has {new}. It can be mistaken: these may be the elements of a "
            f"{channels_last} tensor whose hint was dropped."
        )
    return (
        f" The elements lie in {report.mistakable[0]} order, but PyTorch reads the stride of the size-1 batch axis too, and "
        f"{report.strides[0]} is less than the {new[0]} that it wants there."
    )


def _memory(report: Explanation) -> list[str]:
    count = prod(report.dims)
    if count == 0:
        return ["No elements."]
    span = 1 + sum((size - 1) * step for size, step in zip(report.dims, report.strides, strict=True))
    elements = f"{count} element{'s' if count > 1 else ''}"
    if report.dense:
        return [f"dense: {elements} fill {span} place{'s' if span > 1 else ''}."]
    if report.broadcast_axes:
        names = _axis_names(len(report.dims), report.broadcast_axes)
        return [f"broadcast along {names} (stride 0): {elements} seen, spread over {span} places."]
    if report.overlapping:
        return [f"overlapping: {elements} lie in {span} places, some share one."]
    shared = "none is shared" if report.overlapping is False else "whether any is shared is too hard to tell"
    return [f"with gaps: {elements} lie spread over {span} places; {shared}."]


def _convolution(report: Explanation) -> list[str]:
    rank, taken = len(report.dims), report.convolution
    if taken is None:
        return [f"None takes {rank} axes."]
    channels_last = channels_last_of_rank(max(rank, 4))
    if rank == 3:
        batch_stride = report.dims[0] * report.strides[0]
        return [
            f"As an image (C, H, W), conv2d gives it a batch axis with unsqueeze(0), of stride {batch_stride}, and takes it for "
            f"{taken}. As a sequence (N, C, L), conv1d makes it contiguous first."
        ]
    if taken == channels_last:
        return [f"The next convolution takes it for {taken} and works so, whatever its weight is."]
    return [
        f"The next convolution takes it for {taken} and works so, unless its weight is taken for {channels_last}; either of "
        "the two is enough."
    ]


def _element_wise(report: Explanation) -> list[str]:
    def result(expression: str, strides: tuple[int, ...]) -> str:
        return f"{expression} has strides {strides}: {_name_of_result(report.dims, strides)}"

    text = result("-x", report.unary_strides)
    if report.number_strides != report.unary_strides:
        text += (
            f"; {result('x + 1', report.number_strides)}. The first takes a short cut that looks at the elements only, the "
            "second sorts the axes by their strides"
        )
    return [text + "."]


def _name_of_result(dims: tuple[int, ...], strides: tuple[int, ...]) -> str:
    taken = suggest_memory_format(dims, strides)
    if taken == "contiguous_format" and strides != strides_for(dims, taken) and 0 not in dims:
        return f"another order, taken for {taken}"
    return taken


def _call(conversion: Conversion) -> str:
    if conversion.strides is None:
        return f"{conversion.call} is refused: {_ranks_of_channels_last()}."
    if conversion.copies:
        return f"{conversion.call} copies; strides {conversion.strides}."
    return f"{conversion.call} returns x itself."


def _remedy(report: Explanation, remedy: Remedy) -> list[str]:
    name = remedy.memory_format
    if remedy.state == "done":
        text = "nothing to do, it is taken for that"
        if name != "contiguous_format" and report.ambiguous:
            text = (
                "it is taken for that now. An element-wise operation on it alone drops the hint; what comes after can write it "
                f"again with .to(memory_format=torch.{name})"
            )
    elif remedy.state == "hint missing":
        text = f"{remedy.call} writes the hint without a copy. .contiguous would not write it, .to copies for it"
    elif remedy.state == "gaps":
        text = f"{remedy.call} packs the elements (a copy). .to would return x with its gaps"
    elif remedy.state == "other order":
        text = f"{remedy.call} copies"
        if name == report.suggested:
            text += ". .to would return x as it is"
    elif 0 in report.dims:
        text = "a tensor without elements is never taken for that"
    else:
        text = (
            "no strides can say it for these dims. The element order is the same in both formats; give the weight of the next "
            "convolution the format instead"
        )
    return [f"{name}: {text}."]
