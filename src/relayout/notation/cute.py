"""CuTe's layouts: ``(4,8):(8,1)``, ``((2,4),8):((1,16),2)``.

CuTe is the layout algebra of CUTLASS, NVIDIA's templates for matrix products. A layout is a shape and,
congruent to it, strides::

    (4,8):(8,1)               4 x 8, row-major
    (4,8):(1,4)               4 x 8, column-major
    ((2,4),8):((1,16),2)      8 x 8: the first axis has two digits

The outermost parentheses hold the *modes*, one a logical axis. A mode may be a tuple itself; then its
leftmost entry is the least significant digit (CuTe counts like Fortran, "colexicographically"). In the last
example index i of the first axis is ``i % 2`` with stride 1 and ``i // 2`` with stride 16, so that element
(5, 3) lies at 1 * 1 + 2 * 16 + 3 * 2 = 39. That is the digit model of this package, with sizes and strides.

Format or layout?
=================

A CuTe layout knows its sizes, so it is a *Layout* here, and :func:`layout` reads every static one, with
holes, broadcast strides (0) and all. :func:`spell` is the way back.

A *Format* is what is left of it without sizes: the order of its digits. It exists where the strides are
dense, i.e. each is the product of the extents of the digits with smaller strides.
``Format("((2,4),8):((1,16),2)")`` is ``a//2, b, a%2``: the outermost digit of each axis is open, so that the
format fits other sizes too. A format has no sizes to write, so none is rendered as CuTe.

``Swizzle<B,M,S>`` in front of a layout takes the exclusive or of address bits. An xor is no sum of digits
times strides: such layouts are refused.

Source: NVIDIA's "CuTe Layouts" and "CuTe Layout Algebra".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import TypeAlias

from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format, letters
from relayout.layout.layout import Digit, Layout, check_dims

TITLE = "CuTe"

__all__ = ["TITLE", "layout", "names", "parse", "render", "spell"]

_TEXT = re.compile(r"([0-9_,()\s]+):([0-9_,()\s]+)")
_TOKEN = re.compile(r"_?([0-9]{1,18})|[(),]")
_SWIZZLE = re.compile(r"(?:Swizzle|Sw)\s*<.*", re.DOTALL)
_DEPTH = 16  # nesting beyond this is a typing error

_Tuple: TypeAlias = "int | tuple[_Tuple, ...]"


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read the order of the digits of a dense, static layout; None if the text is none.

    Raises
    ------
    LayoutError
        Shape and strides are not congruent, or the parentheses don't match.
    Unsupported
        A swizzle; strides with holes or overlaps, which only a layout can have (:func:`layout`).

    Examples
    --------
    >>> parse("((2,4),8):((1,16),2)").digits_text()
    'ab -> a//2, b, a%2'
    """
    if not _TEXT.fullmatch(text) and not _SWIZZLE.fullmatch(text):
        return None
    format = _dense_format(layout(text))
    if format is None:
        raise Unsupported(
            f"the strides of {text} leave holes or overlap, so it is no order of digits; "
            "relayout.notation.cute.layout reads it as a layout"
        )
    return format


def layout(text: str) -> Layout:
    """Read a static layout, with its sizes and strides.

    Parameters
    ----------
    text : str
        ``shape:stride``, nested; static integers may be written as CuTe prints them (``_8``). Strides count
        elements.

    Returns
    -------
    Layout
        One axis a mode; its ``dims`` are the sizes of the modes. Where the strides are dense it has a format.

    Raises
    ------
    LayoutError
        The text is no static layout, or shape and strides are not congruent.
    Unsupported
        The layout is swizzled.

    Examples
    --------
    >>> x = layout("((2,4),8):((1,16),2)")
    >>> x.dims, x.offset(5, 3)
    ((8, 8), 39)
    >>> layout("(_4,_8):(_10,_1)").span
    38
    """
    if _SWIZZLE.fullmatch(text):
        raise Unsupported(
            f"{text} swizzles: it takes the exclusive or of address bits, which is no sum of digits times "
            "strides; the layout behind the swizzle can be read on its own"
        )
    sides = text.split(":")
    if len(sides) != 2:
        raise LayoutError(f"CuTe layout {text!r} must be shape:stride with one colon, e.g. (4,8):(8,1)")
    shape, stride = (_read(text, side) for side in sides)
    modes = list(_modes(text, shape, stride))
    ladders = [_ladder(mode) for mode in modes]
    dims = check_dims([prod(size for size, _ in mode) for mode in modes])
    places = [(axis, level) for axis, ladder in enumerate(ladders) for level in range(len(ladder))]
    order = sorted(
        places, key=lambda place: (-ladders[place[0]][place[1]].stride, -ladders[place[0]][place[1]].extent)
    )
    terms = tuple((axis,) for axis in range(len(dims)))
    made = Layout._make(dims, terms, tuple(ladders), tuple(order), dims, 0)
    format = _dense_format(made)
    dense = Layout(dims, format) if format is not None else made
    return dense if dense == made else made


def _read(text: str, side: str) -> _Tuple:
    """Read nested parentheses into nested tuples."""
    compact = re.sub(r"\s+", "", side)
    open_tuples: list[list[_Tuple]] = [[]]
    end = 0
    after_item = False  # between items must be a comma, in front of one must not
    for match in _TOKEN.finditer(compact):
        token = match[0]
        if match.start() != end or after_item != (token in ("," ,")")):  # fmt: skip
            break
        end = match.end()
        after_item = token not in (",", "(")
        if token == "(":
            open_tuples.append([])
        elif token == ")" and len(open_tuples) > 1:
            done = tuple(open_tuples.pop())
            open_tuples[-1].append(done)
        elif match[1]:
            open_tuples[-1].append(int(match[1]))
        elif token != "," or len(open_tuples) == 1:
            break
        if len(open_tuples) > _DEPTH:
            break
    else:
        if end == len(compact) and len(open_tuples) == 1 and len(open_tuples[0]) == 1:
            return open_tuples[0][0]
    raise LayoutError(
        f"CuTe layout {text!r}: can't read {side.strip()!r}; write a number or nested tuples, e.g. (4,(2,8))"
    )


def _modes(text: str, shape: _Tuple, stride: _Tuple) -> Iterator[list[tuple[int, int]]]:
    """For each mode its (size, stride) leaves, least significant first."""
    if isinstance(shape, int) or isinstance(stride, int):
        shape, stride = (shape,), (stride,)
    if len(shape) != len(stride):
        raise LayoutError(
            f"CuTe layout {text!r}: the shape has {len(shape)} modes, the strides {len(stride)}"
        )
    for size, step in zip(shape, stride, strict=True):
        yield list(_leaves(text, size, step))


def _leaves(text: str, shape: _Tuple, stride: _Tuple) -> Iterator[tuple[int, int]]:
    if isinstance(shape, int) and isinstance(stride, int):
        if shape == 0:
            raise LayoutError(f"CuTe layout {text!r} has a size of 0; static sizes are 1 or more")
        yield shape, stride
        return
    if isinstance(shape, int) or isinstance(stride, int) or len(shape) != len(stride):
        raise LayoutError(f"CuTe layout {text!r}: shape and strides must be nested in the same way")
    for inner_shape, inner_stride in zip(shape, stride, strict=True):
        yield from _leaves(text, inner_shape, inner_stride)


def _ladder(mode: list[tuple[int, int]]) -> tuple[Digit, ...]:
    digits = []
    weight = 1
    for size, stride in mode:
        if size > 1:
            digits.append(Digit(weight, size, stride))
            weight *= size
    return tuple(reversed(digits)) or (Digit(1, 1, mode[-1][1] if mode else 0),)


def _dense_format(given: Layout) -> Format | None:
    """The order of the digits by stride, if these are dense; axes of size 1 and stride 0 are outermost."""
    steps = [
        (digit.stride if digit.extent > 1 or digit.stride else -1, digit.extent, axis, digit.weight, level)
        for axis, ladder in enumerate(given.ladders)
        for level, digit in enumerate(ladder)
    ]
    steps.sort(key=lambda step: (step[0] == -1, step[0], step[1]))
    room = 1
    for stride, extent, *_ in steps:
        if extent > 1 and stride != room:
            return None
        room *= extent
    axes = letters(given.rank)
    return Format.from_digits(
        axes,
        [
            (axes[axis], weight, extent if level else None)
            for _, extent, axis, weight, level in reversed(steps)
        ],
    )


def spell(given: Layout) -> str:
    """Write a layout as CuTe prints it: ``shape:stride``.

    Raises
    ------
    Unsupported
        The layout has padding, an offset or fused axes, which CuTe's shape and stride don't hold.

    Examples
    --------
    >>> spell(Layout((4, 8), "ab")), spell(Layout((8, 8), "Ab2a"))
    ('(4,8):(8,1)', '((2,4),8):((1,16),2)')
    """
    if given.offset0 or given.has_padding or len(given.terms) != given.rank:
        raise Unsupported(
            f"{given} has padding, an offset or fused axes, which CuTe's shape:stride can't hold"
        )
    shapes, strides = [], []
    for ladder in given.ladders:
        shapes.append(_tuple([str(digit.extent) for digit in reversed(ladder)]))
        strides.append(_tuple([str(digit.stride) for digit in reversed(ladder)]))
    return f"({','.join(shapes)}):({','.join(strides)})"


def _tuple(numbers: list[str]) -> str:
    return numbers[0] if len(numbers) == 1 else f"({','.join(numbers)})"


def render(format: Format) -> str | None:
    """None: CuTe writes sizes and strides, which a format does not have; :func:`spell` writes a layout.

    >>> render(Format("nhwc")) is None
    True
    """
    return None


def names() -> tuple[str, ...]:
    """Some layouts: row-major, column-major, and a blocked matrix."""
    return ("(4,8):(8,1)", "(4,8):(1,4)", "((2,4),8):((1,16),2)", "((2,4),(2,4)):((2,16),(1,4))")
