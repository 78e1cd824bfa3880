"""The picture of digits: axes cut into digits above, the digits in memory order below, wires in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from relayout.draw.canvas import MUTED, RULE, STROKES, Canvas, fill_of, text_width
from relayout.draw.cells import heading, names_of
from relayout.draw.places import words_of
from relayout.errors import LayoutError
from relayout.layout.format import Format, spell_digit
from relayout.layout.layout import Layout, layout_of

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["digits"]


def digits(
    layout: Layout | MemoryDesc | Format | str,
    *,
    axes: Sequence[str] | None = None,
    index: Sequence[int] | None = None,
    title: str | None = None,
    outer: int = 0,
) -> str:
    """Draw how axes are cut into digits, and in which order the digits stand in memory.

    Above are the logical axes, each with its digits, most significant first. Below are the same digits in
    memory order, outermost first, with extents and strides (in elements). With an ``index`` the picture is a
    worked example: the value of each digit, and the sum that is the offset.

    Parameters
    ----------
    layout : Layout, MemoryDesc, Format or str
        What to draw. A format has no sizes yet: its open digits have no extents, and there are no strides.
    axes : sequence of str, optional
        What the axes of a layout are called, one name an axis. Without it: the words of the format's dialect.
    index : sequence of int, optional
        A logical index to follow; needs a layout.
    title : str, optional
        What to write above. Without it: the layout or format.
    outer : int
        How many digits, the outermost ones, stand in the name of a chunk rather than in the chunk: they are
        drawn apart, without strides (:attr:`relayout.stores.LazyTensor.layout`).

    Returns
    -------
    str
        A SVG document.

    Raises
    ------
    LayoutError
        The format waits for its rank, the index is out of bounds, or there is an index but no sizes.

    Examples
    --------
    >>> import relayout as rl
    >>> picture = digits(rl.Layout((2, 17, 5, 4), "nChw8c"), index=(1, 9, 0, 2))
    >>> "1·480 + 1·160 + 0·32 + 2·8 + 1·1 = 657" in picture
    True
    >>> "c//16" in digits("nChw16c")
    True
    """
    if isinstance(layout, (str, Format)):
        if index is not None:
            raise LayoutError(
                f"index {tuple(index)} can't be followed through {layout}, which has no sizes; pass a Layout"
            )
        diagram = _diagram_of_format(Format(layout))
    else:
        known = layout_of(layout)
        diagram = _diagram_of_layout(known, names_of(known, axes), index)
    canvas = Canvas()
    followed = f", index {tuple(index)}" if index is not None else ""
    caption = title if title is not None else diagram.name + followed
    y = heading(canvas, caption) + 6
    canvas.words(0, y + 8, "logical axes, cut into digits", size=11, anchor="start", fill=MUTED, mono=False)
    _Rows(canvas, diagram, outer, index is not None).draw(y + 16)
    return canvas.document(caption, f"The digits of {diagram.name}, from logical axes to memory order.")


class _Rows:
    """The row of axes above, the row of memory below, and wires from each digit to its place."""

    GAP = 8.0  # between the digits of memory
    WIRES = 64.0  # the height of the wires

    def __init__(self, canvas: Canvas, diagram: _Diagram, outer: int, valued: bool) -> None:
        self.canvas, self.diagram, self.outer, self.valued = canvas, diagram, outer, valued
        self.box, total = _box_width(diagram), len(diagram.memory)
        self.parting = 3 * self.GAP if 0 < outer < total else 0.0  # between the name and the chunk
        self.width = total * self.box + (total - 1) * self.GAP + self.parting
        self.middles: dict[tuple[int, int], float] = {}
        """Where the digits of the axes stand: the middle of each."""

    def draw(self, y: float) -> None:
        """Draw them from a height on."""
        upper = self._axes(y)
        self.left = (upper - self.width) / 2  # rows are centred, whichever is the longer one
        y += 69 if self.valued else 55
        self._wires(y)
        y += self.WIRES
        self._memory(y)
        y += 26 + 15 * (2 if self.diagram.has_strides else 1)
        self._ends(y)
        if self.valued:
            for number, line in enumerate(_sum_lines(self.diagram, self.width)):
                self.canvas.words(self.left, y + 48 + 20 * number, line, size=13, anchor="start", bold=True)

    def _axes(self, y: float) -> float:
        """The axes, each above its digits, and how wide all of them are."""
        canvas, half, x = self.canvas, self.GAP / 2, 0.0
        spare = 2 * self.GAP if len(self.diagram.axes) > 1 else 0.0
        for t, axis in enumerate(self.diagram.axes):
            count = len(axis.digits)
            wide = max(count * self.box + (count - 1) * half, text_width(axis.text, 12) + 12)
            canvas.box(x, y, wide, 26, fill=fill_of(t), round=3)
            canvas.words(x + wide / 2, y + 17, axis.text, bold=True)
            step = (wide + half) / count
            for level, digit in enumerate(axis.digits):
                left, inside = x + level * step, step - half
                middle, high = left + inside / 2, 40 if self.valued else 26
                canvas.box(left, y + 29, inside, high, fill=fill_of(t), opacity=0.45, round=3)
                canvas.words(middle, y + 46, digit.text)
                if self.valued:
                    canvas.words(middle, y + 62, f"= {digit.value}", bold=True)
                self.middles[t, level] = middle
            x += wide + spare
        return x - spare

    def _place(self, k: int) -> float:
        """Where the box of a digit of memory begins."""
        return self.left + k * (self.box + self.GAP) + (self.parting if k >= self.outer else 0.0)

    def _wires(self, y: float) -> None:
        """From each digit of an axis to its place in memory."""
        for k, (t, level) in enumerate(self.diagram.memory):
            ends = y, self._place(k) + self.box / 2, y + self.WIRES
            self.canvas.wire(self.middles[t, level], *ends, stroke=STROKES[t % len(STROKES)])

    def _memory(self, y: float) -> None:
        """The digits in memory order, with extents and strides."""
        for k, (t, level) in enumerate(self.diagram.memory):
            digit, left = self.diagram.axes[t].digits[level], self._place(k)
            lines = [text for text in (digit.extent, "" if k < self.outer else digit.stride) if text]
            self.canvas.box(left, y, self.box, 26 + 15 * len(lines), fill=fill_of(t), round=3)
            self.canvas.words(left + self.box / 2, y + 17, digit.text, bold=True)
            for row, text in enumerate(lines):
                self.canvas.words(left + self.box / 2, y + 33 + row * 15, text, size=11)

    def _ends(self, y: float) -> None:
        """What is outermost and innermost; or what belongs to the name of a chunk, and what to the chunk."""
        canvas, left, right = self.canvas, self.left, self.left + self.width
        if self.outer:
            inner = len(self.diagram.memory) - self.outer
            groups = [(self.outer, "in the name of a chunk"), (inner, "in the chunk")]
            _bracketed(canvas, left, y, groups, self.box + self.GAP, self.GAP, self.parting)
            return
        words = partial(canvas.words, size=11, fill=MUTED, mono=False)
        words(left, y + 18, "outermost: slowest", anchor="start")
        words(right, y + 18, "innermost: fastest", anchor="end")
        if self.width > 300:
            canvas.line([(left + 112, y + 14.5), (right - 112, y + 14.5)], stroke=RULE, arrow=True)


def _bracketed(
    canvas: Canvas,
    x: float,
    y: float,
    groups: Sequence[tuple[int, str]],
    step: float,
    gap: float,
    parting: float,
) -> None:
    """What several digits in a row are together, below them."""
    for count, words in groups:
        if count:
            wide = count * step - gap
            canvas.line([(x, y + 5), (x, y + 10), (x + wide, y + 10), (x + wide, y + 5)], stroke=MUTED)
            canvas.words(x + wide / 2, y + 24, words, size=11, fill=MUTED, mono=False)
        x += count * step + parting


@dataclass(frozen=True)
class _DiagramDigit:
    text: str
    extent: str
    stride: str = ""
    value: int = 0
    step: int = 0


@dataclass(frozen=True)
class _DiagramAxis:
    text: str
    digits: tuple[_DiagramDigit, ...]


@dataclass(frozen=True)
class _Diagram:
    name: str
    axes: tuple[_DiagramAxis, ...]
    memory: tuple[tuple[int, int], ...]
    """Places ``(axis, level)`` in memory order, outermost first."""
    has_strides: bool
    offset0: int = 0
    offset: int = 0


def _diagram_of_format(format: Format) -> _Diagram:
    names = words_of(format)
    axes = []
    for term, radices in zip(format.terms, format.radices, strict=True):
        own = tuple(names[a] for a in term)
        weights = [prod(radices[level:]) for level in range(len(radices) + 1)]
        made = tuple(
            _DiagramDigit(spell_digit(own, weight, extent), f"extent {extent}" if extent else "open")
            for weight, extent in zip(weights, (None, *radices), strict=True)
        )
        axes.append(_DiagramAxis(" ".join(own), made))
    return _Diagram(str(format), tuple(axes), format.order, has_strides=False)


def _diagram_of_layout(layout: Layout, names: tuple[str, ...], index: Sequence[int] | None) -> _Diagram:
    offset = layout.offset(*index) if index is not None else 0
    numbers = layout._fuse(tuple(index)) if index is not None else (0,) * len(layout.terms)
    axes = []
    for t, (term, ladder) in enumerate(zip(layout.terms, layout.ladders, strict=True)):
        own = tuple(names[a] for a in term)
        made = []
        for level, (weight, extent, stride) in enumerate(ladder):
            text = spell_digit(own, weight, extent if level else None)
            value = numbers[t] // weight % (extent or 1)
            made.append(_DiagramDigit(text, f"extent {extent}", f"stride {stride}", value, stride))
        size, room = layout.term_size(t), layout.padded[t]
        text = (
            f"{' '.join(own)} = {numbers[t]} of {size}" if index is not None else f"{' '.join(own)}: {size}"
        )
        axes.append(_DiagramAxis(text + (f" (room {room})" if room != size else ""), tuple(made)))
    order = sorted(layout.order, key=lambda place: -abs(layout.ladders[place[0]][place[1]].stride))
    return _Diagram(str(layout), tuple(axes), tuple(order), True, layout.offset0, offset)


def _box_width(diagram: _Diagram) -> float:
    texts = [text for axis in diagram.axes for d in axis.digits for text in (d.text, d.extent, d.stride)]
    return max([64.0, *(text_width(text, 11.5) + 10 for text in texts)])


def _sum_lines(diagram: _Diagram, width: float) -> list[str]:
    parts = [str(diagram.offset0)] if diagram.offset0 else []
    for t, level in diagram.memory:
        digit = diagram.axes[t].digits[level]
        parts.append(f"{digit.value}·{digit.step}")
    lines, line = [], "offset = "
    for k, part in enumerate(parts):
        piece = part if not k else f" + {part}"
        if text_width(line + piece, 13) > max(width, 380):
            lines.append(line)
            line, piece = "    ", piece.lstrip()
        line += piece
    lines.append(f"{line} = {diagram.offset}" if parts else f"offset = {diagram.offset}")
    return lines
