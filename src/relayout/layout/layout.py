"""A layout: a format with sizes, or explicit strides. It answers where every element lies.

One formula
===========

A :class:`~relayout.layout.format.Format` says how axes are cut into digits and in which order the digits are
written. As soon as sizes are known every digit gets an *extent* (how far it counts) and a *stride* (how far
one step of it moves in memory, in elements), and the place of an element is a sum::

    offset(i) = offset0 + sum over terms t, over digits d of t:  (i[t] // d.weight) % d.extent * d.stride

``nChw8c`` with N, C, H, W = 2, 17, 5, 4 is, outermost first::

    digit     n      c//8    h      w      c%8
    weight    1      8       1      1      1
    extent    2      3       5      4      8          3 = ceil(17 / 8): the open digit rounds up
    stride    480    160     32     8      1

so element (1, 9, 0, 2) lies at 1*480 + 1*160 + 0*32 + 2*8 + 1*1 = 657.

Three sizes that are easily confused
====================================

``dims``         how many elements a program sees: 2x17x5x4.
``padded_dims``  how many the layout makes room for: 2x24x5x4. MKL-DNN's "17 channels stored as 24" is this
                 ceil-div. The room between the two is *padding*: it belongs to the tensor and holds zeros.
``span``         elements from the first to the last one used, padding included: 960. Strides may leave
                 *holes* in between (a view of a part of a bigger tensor does); holes belong to somebody else
                 and are never touched.

A view can end inside a block: channels 0..16 of a tensor with 32 of them. What lies behind is then not
padding but the neighbour's data, so ``padded_dims`` is stored, not derived: a layout never claims what it
does not own.

Sameness
========

``a == b``           the same digits, strides and padding, written down in the same way.
``a.same_bytes(b)``  the same function: every element and all padding at the same offset, so no conversion is
                     needed. ``nChw8c`` with C = 8 and ``nhwc`` are the same bytes but not equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import gcd, prod
from operator import index as as_index
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from relayout.errors import LayoutError, counted, described, whole
from relayout.forking import lock
from relayout.layout.format import Format, letters, spell_digit
from relayout.layout.roles import check_roles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Digit",
    "Layout",
    "LayoutDigit",
    "check_dims",
    "every_index",
    "layout_of",
    "whole_number",
    "whole_numbers",
    "write_layout",
]

MAX_ELEMENTS = 2**63 - 1  # offsets are signed 64-bit numbers in every system that we describe


class Digit(NamedTuple):
    """One digit of a term: ``number // weight % extent * stride``, the stride in elements of memory."""

    weight: int
    extent: int
    stride: int


class HasLayout(Protocol):
    """A descriptor or a tensor."""

    @property
    def layout(self) -> Layout:
        """Where its elements lie."""


class LayoutDigit(NamedTuple):
    """A digit in the order of writing, with the term that it belongs to."""

    term: int
    weight: int
    extent: int
    stride: int


class Layout:
    """Where every element of a tensor lies: ``Format x dims``, or explicit strides.

    Parameters
    ----------
    dims : sequence of int
        The logical sizes, one an axis; 0 and 1 are sizes like any other.
    format : str or Format, optional
        The order of the digits. Without it the layout is plain and ``strides`` must be given.
    strides : sequence of int, optional
        For each axis the distance, in elements, between neighbours of its outermost digit (that is: between
        blocks, where the format blocks the axis). Inner digits stay dense in the order of the format. Without
        strides the layout is dense.
    offset : int
        Where element (0, ..., 0) lies, in elements.

    Attributes
    ----------
    dims : tuple of int
        The logical sizes.
    offset0 : int
        Where element (0, ..., 0) lies, in elements.
    format : Format or None
        The format that was asked for; None where strides or a view made the layout.
    terms : tuple of tuple of int
        The numbers that are cut into digits, each as the axes that it is made of; almost always one each.
    ladders : tuple of tuple of Digit
        For each term its digits, most significant first, each with weight, extent and stride.
    padded : tuple of int
        For each term how many numbers there is room for (:attr:`padded_dims` says it for each axis).
    order : tuple of (int, int)
        The digits as they are written, outermost first, each as (term, level).
    roles : tuple of str or None
        What the axes mean, in logical order; None where nobody said it. Views keep it where they keep the
        axes. Meaning is not layout: it takes no part in equality.

    Raises
    ------
    LayoutError
        Wrong rank, numbers that are not whole, a negative size, or offsets beyond 2**63 - 1.

    Examples
    --------
    >>> from relayout import Layout
    >>> x = Layout((2, 17, 5, 4), "nChw8c")
    >>> x.padded_dims, x.span, x.offset(1, 9, 0, 2)
    ((2, 24, 5, 4), 960, 657)
    >>> x.index(657), x.index(327)  # 327 = 2 * 160 + 7 is channel 2 * 8 + 7 = 23: padding
    ((1, 9, 0, 2), None)
    >>> Layout((2, 3), strides=(10, 1)).span
    13
    """

    __slots__ = (
        "_hash",
        "_injective",
        "_plan",
        "dims",
        "format",
        "ladders",
        "offset0",
        "order",
        "padded",
        "roles",
        "terms",
    )

    dims: tuple[int, ...]
    terms: tuple[tuple[int, ...], ...]
    ladders: tuple[tuple[Digit, ...], ...]
    order: tuple[tuple[int, int], ...]
    padded: tuple[int, ...]
    offset0: int
    format: Format | None
    roles: tuple[str, ...] | None
    _plan: tuple[tuple[int, int, int, tuple[Digit, ...]], ...] | None
    _hash: int | None
    _injective: bool | None

    def __new__(
        cls,
        dims: Sequence[int] | str,
        format: Format | str | None = None,
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> Layout:
        """Lay ``dims`` out densely in ``format``, or with explicit strides of the outermost digits."""
        if isinstance(dims, str):
            with lock():
                from relayout.layout.text import read_layout

            if format is not None or strides is not None or offset:
                raise LayoutError(f"the text {dims!r} says all of a layout; give nothing beside it")
            return read_layout(dims)
        sizes = check_dims(dims)
        offset = whole_number(offset, "offset")
        if format is None:
            if strides is None:
                raise LayoutError("a layout needs a format or strides, got neither")
            return cls._strided(sizes, plain(len(sizes)), strides, offset, None)
        known = Format(format).resolve(len(sizes))
        if strides is None:
            return cls._dense(sizes, known, offset)
        return cls._strided(sizes, known, strides, offset, known)

    # -- making -----------------------------------------------------------------------------------------

    @classmethod
    def _make(
        cls,
        dims: tuple[int, ...],
        terms: tuple[tuple[int, ...], ...],
        ladders: tuple[tuple[Digit, ...], ...],
        order: tuple[tuple[int, int], ...],
        padded: tuple[int, ...],
        offset0: int,
        format: Format | None = None,
        roles: tuple[str, ...] | None = None,
    ) -> Layout:
        self = object.__new__(cls)
        put = object.__setattr__
        put(self, "dims", dims)
        put(self, "terms", terms)
        put(self, "ladders", ladders)
        put(self, "order", order)
        put(self, "padded", padded)
        put(self, "offset0", offset0)
        put(self, "format", format)
        put(self, "roles", roles if format is None else format.roles)
        put(self, "_plan", None)
        put(self, "_hash", None)
        put(self, "_injective", None)
        return self

    @classmethod
    def _dense(cls, dims: tuple[int, ...], format: Format, offset: int = 0) -> Layout:
        """Write the digits one after another, innermost first; a stride is the room of all digits within."""
        extents, padded = _extents(dims, format)
        strides = [[0] * len(e) for e in extents]
        room = 1
        for term, level in reversed(format.order):
            strides[term][level] = room
            room *= extents[term][level] or 1  # where an axis is empty the strides stay those of one element
        if room + abs(offset) > MAX_ELEMENTS:
            raise LayoutError(
                f"format {format} with dims {spell_dims(dims)} takes {counted(room, 'element')} from offset "
                f"{offset}; the limit is 2**63 - 1"
            )
        return cls._make(dims, format.terms, _ladders(extents, strides), format.order, padded, offset, format)

    @classmethod
    def _strided(
        cls, dims: tuple[int, ...], format: Format, outer: Sequence[int], offset: int, label: Format | None
    ) -> Layout:
        """Take the outermost strides as given; the inner digits are dense among themselves."""
        given = whole_numbers(outer, "strides")
        if len(given) != len(dims):
            raise LayoutError(
                f"{counted(len(given), 'stride')} {given} for {counted(len(dims), 'dim')} "
                f"{spell_dims(dims)}; there must be one for each"
            )
        if any(len(term) > 1 for term in format.terms):
            raise LayoutError(
                f"format {format} fuses axes; their common digit has one stride, so none can be given an axis"
            )
        extents, padded = _extents(dims, format)
        strides = [
            [given[term[0]]] + [0] * (len(e) - 1) for term, e in zip(format.terms, extents, strict=True)
        ]
        room = 1
        for term, level in reversed(format.order):
            if level:
                strides[term][level] = room
                room *= extents[term][level]
        farthest = abs(offset) + sum(
            abs(step) * max(0, extent - 1)
            for steps, counts in zip(strides, extents, strict=True)
            for step, extent in zip(steps, counts, strict=True)
        )
        if farthest > MAX_ELEMENTS:
            raise LayoutError(
                f"strides {spell_dims(given)} of dims {spell_dims(dims)} reach "
                f"{counted(farthest, 'element')} far; "
                "the limit is 2**63 - 1"
            )
        # Only a dense layout is what its format says; otherwise the strides are the description.
        ladders = _ladders(extents, strides)
        made = cls._make(dims, format.terms, ladders, format.order, padded, offset, None, format.roles)
        if label is not None and offset == 0 and made == cls._dense(dims, format):
            return cls._make(dims, made.terms, made.ladders, made.order, padded, offset, label)
        return made

    def moved(self, offset: int) -> Layout:
        """Return the same layout with element (0, ..., 0) at another offset (in elements).

        Examples
        --------
        >>> Layout((2, 3), "ab").moved(100).offset(1, 2)
        105
        """
        offset = whole_number(offset, "offset")
        fields = (self.dims, self.terms, self.ladders, self.order, self.padded)
        return self._make(*fields, offset, self.format, self.roles)

    # -- sizes ------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """The number of logical axes."""
        return len(self.dims)

    @property
    def size(self) -> int:
        """The number of logical elements."""
        return prod(self.dims)

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """For each axis the size that the layout makes room for; fused axes (``yx``) keep their own size.

        Examples
        --------
        >>> Layout((1, 17, 2, 2), "nChw8c").padded_dims
        (1, 24, 2, 2)
        """
        sizes = list(self.dims)
        for term, room in zip(self.terms, self.padded, strict=True):
            if len(term) == 1:
                sizes[term[0]] = room
        return tuple(sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """For each axis the stride of its outermost digit, in elements.

        Raises
        ------
        LayoutError
            Axes are fused, so that an axis has no stride of its own.
        """
        self._need_own_axes("strides")
        return tuple(ladder[0].stride for ladder in self.ladders)

    @property
    def is_plain(self) -> bool:
        """Whether every axis has one digit, so that strides describe it completely (NumPy, PyTorch)."""
        return all(len(ladder) == 1 for ladder in self.ladders) and all(len(t) == 1 for t in self.terms)

    @property
    def digits(self) -> tuple[LayoutDigit, ...]:
        """The digits in the order of writing, outermost first.

        Examples
        --------
        >>> Layout((1, 16, 2, 2), "nChw8c").digits[1]
        LayoutDigit(term=1, weight=8, extent=2, stride=32)
        """
        return tuple(LayoutDigit(t, *self.ladders[t][level]) for t, level in self.order)

    def term_size(self, term: int) -> int:
        """The logical size of a term: of its axis, or the product of its fused axes."""
        try:
            return prod(self.dims[a] for a in self.terms[term])
        except (TypeError, IndexError):
            raise LayoutError(
                f"{self} has the terms 0 to {len(self.terms) - 1}, and no term {described(term)}"
            ) from None

    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest offset in use, padding included, in elements.

        Where there are no elements it is ``(offset0, offset0 - 1)``.

        Examples
        --------
        >>> Layout((4,), strides=(-2,), offset=6).bounds()
        (0, 6)
        """
        low = high = self.offset0
        for ladder, room in zip(self.ladders, self.padded, strict=True):
            if room == 0:
                return self.offset0, self.offset0 - 1
            low -= reach(ladder, room, -1)
            high += reach(ladder, room, 1)
        return low, high

    @property
    def span(self) -> int:
        """Elements from the first to the last one used, padding included; 0 if there are none."""
        low, high = self.bounds()
        return high - low + 1

    @property
    def density(self) -> float:
        """Logical elements per element of span: 1.0 is neither padding nor holes, more is broadcast.

        Examples
        --------
        >>> Layout((1, 6, 2, 2), "nChw8c").density
        0.75
        """
        return self.size / self.span if self.span else 1.0

    @property
    def has_padding(self) -> bool:
        """Whether the layout owns room beyond its logical elements."""
        return self.size > 0 and any(room > self.term_size(t) for t, room in enumerate(self.padded))

    def room(self) -> Layout:
        """The layout of everything that this one makes room for: its padding as elements, and fused axes as
        one.

        >>> Layout((1, 17, 2, 2), "nChw8c").room().dims
        (1, 24, 2, 2)
        """
        terms = tuple((t,) for t in range(len(self.terms)))
        return Layout._make(self.padded, terms, self.ladders, self.order, self.padded, self.offset0)

    # -- the map and its inverse --------------------------------------------------------------------------

    def offset(self, *index: int) -> int:
        """Return where an element lies, in elements.

        Parameters
        ----------
        *index : int
            The logical index, one number an axis, 0 <= index < dim. Negative numbers don't count from the
            end.

        Raises
        ------
        LayoutError
            Wrong number of indices, one that is no whole number, or one out of bounds.

        Examples
        --------
        >>> Layout((32, 16, 3, 3), "OIhw4i16o4i").offset(17, 5, 0, 2)
        2885
        """
        plan = self._plan
        if plan is None:
            plan = self._prepare()
        if len(index) != len(self.dims):
            raise LayoutError(
                f"index {index} has {counted(len(index), 'number')}, the layout "
                f"{counted(len(self.dims), 'axis')}: {self}"
            )
        total = self.offset0
        try:
            if len(plan) != len(index):
                index = self._fuse(index)
            for i, (size, weight, stride, rest) in zip(map(as_index, index), plan, strict=True):
                if not 0 <= i < size:
                    self._complain(index)
                total += i // weight * stride
                for w, e, s in rest:
                    total += i // w % e * s
        except TypeError:
            raise LayoutError(f"an index must be whole numbers, one an axis, got {index!r}") from None
        return total

    def offsets(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return where many elements lie, in elements: :meth:`offset` for an array of indices.

        Parameters
        ----------
        indices : array of int, shape (..., rank)

        Returns
        -------
        ndarray of int64, shape (...)

        Raises
        ------
        LayoutError
            The last dimension is not the rank, the numbers aren't integers, or one is out of bounds.

        Examples
        --------
        >>> Layout((2, 17, 5, 4), "nChw8c").offsets([[0, 0, 0, 0], [1, 9, 0, 2]])
        array([  0, 657])
        """
        with lock():
            from relayout.layout.vectorised import offsets

        return offsets(self, indices)

    def index(self, offset: int) -> tuple[int, ...] | None:
        """Return the logical index of the element at an offset; None for padding, a hole or nothing at all.

        The inverse of :meth:`offset`. Where several elements share the place (broadcast, overlapping
        strides), one of them is returned; of a broadcast axis it is index 0.

        Examples
        --------
        >>> x = Layout((1, 3, 1, 2), "nChw4c")
        >>> [x.index(k) for k in range(5)]
        [(0, 0, 0, 0), (0, 1, 0, 0), (0, 2, 0, 0), None, (0, 0, 0, 1)]
        """
        if 0 in self.dims:
            return None
        for numbers in self._numbers_at(whole_number(offset, "offset")):
            if all(n < self.term_size(t) for t, n in enumerate(numbers)):
                return self._unfuse(numbers)
        return None

    def is_padding(self, offset: int) -> bool:
        """Whether an offset is padding: room that the layout owns but no element uses (so: holds zero).

        Examples
        --------
        >>> Layout((1, 3, 1, 2), "nChw4c").is_padding(3)
        True
        """
        if 0 in self.dims:
            return False
        inside = [
            numbers
            for numbers in self._numbers_at(whole_number(offset, "offset"))
            if all(n < room for n, room in zip(numbers, self.padded, strict=True))
        ]
        return bool(inside) and not any(
            all(n < self.term_size(t) for t, n in enumerate(numbers)) for numbers in inside
        )

    def is_injective(self) -> bool:
        """Whether no two elements share a place (broadcast ones do), so that the layout can be written to.

        Exact. Nested strides, which nearly all layouts have, are recognised at once; otherwise places are
        counted or searched. The answer is remembered.

        Examples
        --------
        >>> Layout((4, 3), strides=(0, 1)).is_injective(), Layout((2, 2), strides=(2, 3)).is_injective()
        (False, True)
        """
        if self._injective is None:
            nested = self._nested()
            if not nested:
                with lock():
                    from relayout.layout.canonical import is_injective

                nested = is_injective(self)
            object.__setattr__(self, "_injective", nested)
        return cast(bool, self._injective)

    def _nested(self) -> bool:
        """Whether each digit steps further than all with shorter strides reach; so no two places are one.

        Nearly all layouts are so, and need no normal form; of others this says nothing.
        """
        for term, ladder in enumerate(self.ladders):
            if prod(extent for _, extent, _ in ladder) < self.term_size(term):
                return False  # elements that differ in no digit
        reach = 0
        for stride, extent in sorted((abs(d.stride), d.extent) for ladder in self.ladders for d in ladder):
            if extent > 1:
                if stride <= reach:
                    return False
                reach += stride * (extent - 1)
        return True

    def same_bytes(self, other: Layout | HasLayout) -> bool:
        """Whether both layouts put every logical element, and the padding, at the same offset.

        If so, a buffer of the one is a buffer of the other and there is nothing to convert. The other may be
        a descriptor or a tensor, whose data type takes no part.

        Examples
        --------
        >>> Layout((2, 8, 3, 3), "nChw8c").same_bytes(Layout((2, 8, 3, 3), "nhwc"))
        True
        >>> Layout((2, 7, 3, 3), "nChw8c").same_bytes(Layout((2, 7, 3, 3), "nhwc"))
        False
        """
        with lock():
            from relayout.layout.canonical import same_bytes

        return same_bytes(self, layout_of(other))

    # -- workings -----------------------------------------------------------------------------------------

    def _prepare(self) -> tuple[tuple[int, int, int, tuple[Digit, ...]], ...]:
        """For each term: its size, weight and stride of its first digit (no modulo), its other digits."""
        plan = tuple(
            (self.term_size(t), ladder[0].weight, ladder[0].stride, ladder[1:])
            for t, ladder in enumerate(self.ladders)
        )
        object.__setattr__(self, "_plan", plan)
        return plan

    def _fuse(self, index: Sequence[int]) -> tuple[int, ...]:
        """Turn an index an axis into a number a term: fused axes are read as one row-major number."""
        numbers = []
        for term in self.terms:
            number = 0
            for axis in term:
                i = as_index(index[axis])
                if not 0 <= i < self.dims[axis]:
                    self._complain(index)
                number = number * self.dims[axis] + i
            numbers.append(number)
        return tuple(numbers)

    def _unfuse(self, numbers: Sequence[int]) -> tuple[int, ...]:
        index = [0] * self.rank
        for term, number in zip(self.terms, numbers, strict=True):
            for axis in reversed(term):
                number, index[axis] = divmod(number, self.dims[axis])
        return tuple(index)

    def _complain(self, index: Sequence[int]) -> None:
        names = self.axis_names()
        for axis, (i, size) in enumerate(zip(index, self.dims, strict=True)):
            if not 0 <= i < size:
                raise LayoutError(
                    f"index {i} of axis {axis} ({names[axis]}) is out of bounds: {self} has "
                    f"0 <= index < {size} there"
                )
        raise AssertionError(f"no axis of {tuple(index)} is out of bounds")

    def _numbers_at(self, offset: int) -> Iterator[tuple[int, ...]]:
        """All numbers, one a term, whose digits add up to an offset.

        The digits are tried from the largest stride down. What the smaller ones can add is bounded, and where
        strides nest (always, but for odd hand-made ones) that leaves a single value for each digit: a
        division, not a search.
        """
        # A digit that moves nothing stays 0: no other value leads to more places or to smaller numbers.
        steps = sorted(
            ((d, t) for t, ladder in enumerate(self.ladders) for d in ladder if d.extent > 1 and d.stride),
            key=lambda step: -abs(step[0].stride),
        )
        below = [(0, 0)] * (len(steps) + 1)  # what the digits k.. add at least and at most
        common = [0] * (len(steps) + 1)  # and what divides all that they add
        for k in range(len(steps) - 1, -1, -1):
            _, extent, stride = steps[k][0]
            least, most = below[k + 1]
            below[k] = (least + min(0, (extent - 1) * stride), most + max(0, (extent - 1) * stride))
            common[k] = gcd(common[k + 1], stride)

        def descend(k: int, rest: int, numbers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if k == len(steps):
                if rest == 0:
                    yield numbers
                return
            (weight, extent, stride), term = steps[k]
            for value in values_towards(rest, stride, below[k + 1], common[k + 1], 0, extent - 1):
                added = (*numbers[:term], numbers[term] + value * weight, *numbers[term + 1 :])
                yield from descend(k + 1, rest - value * stride, added)

        yield from descend(0, offset - self.offset0, (0,) * len(self.terms))

    def _need_own_axes(self, what: str) -> None:
        for term in self.terms:
            if len(term) > 1:
                names = self.axis_names()
                raise LayoutError(
                    f"{self} fuses the axes {' '.join(names[a] for a in term)}; it has no {what} an axis"
                )

    # -- being a value ------------------------------------------------------------------------------------

    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes: the roles where they are known, else ``a, b, c, ...``."""
        return self.roles if self.roles is not None else letters(self.rank)

    def with_roles(self, roles: Sequence[str] | None) -> Layout:
        """Return the same layout with other meanings for the axes (None: no meaning).

        Examples
        --------
        >>> Layout((2, 3, 4, 5), strides=(60, 1, 15, 3)).with_roles("nchw").roles
        ('n', 'c', 'h', 'w')
        """
        named = None if roles is None else check_roles(roles, self.rank, str(self))
        format = None if self.format is None else self.format.with_roles(named)
        fields = (self.dims, self.terms, self.ladders, self.order, self.padded, self.offset0)
        return self._make(*fields, format, named)

    def _key(self) -> tuple[Any, ...]:
        return self.dims, self.terms, self.ladders, self.padded, self.offset0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self is other or (hash(self) == hash(other) and self._key() == other._key())

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(self._key()))
        return cast(int, self._hash)

    def __setattr__(self, name: str, value: Any = None) -> None:
        raise AttributeError(f"a Layout is frozen; {name} can't be set or deleted")

    __delattr__ = __setattr__

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.dims, self.terms, self.ladders, self.order, self.padded, self.offset0)
        return Layout._make, (*fields, self.format, self.roles)

    def __str__(self) -> str:
        return write_layout(self)

    def _repr_svg_(self) -> str:
        """The layout on a sheet, for notebooks."""
        with lock():
            from relayout.draw.notebook import of_layout
        return of_layout(self)

    def __repr__(self) -> str:
        return f"Layout({str(self)!r})"


def write_layout(layout: Layout, dtype: str | None = None) -> str:
    """Write a layout on one line; ``dtype`` is what a format's name will be read for, if that is known.

    >>> write_layout(Layout((2, 3), strides=(10, -1), offset=2))
    '2x3 strides 10x-1+2'
    """
    where = f"{layout.offset0:+d}" if layout.offset0 else ""
    dims = spell_dims(layout.dims)
    if not layout.dims:
        return f"{dims}{where}"
    if layout.format is not None:
        return f"{layout.format.spelled_for(layout.rank, dtype)}:{dims}{where}"
    meaning = f" ({', '.join(layout.roles)})" if layout.roles is not None else ""
    counted = tuple(prod(digit.extent for digit in ladder) for ladder in layout.ladders)
    if layout.is_plain and counted == layout.padded:
        cut = "" if layout.padded == layout.dims else f" padded {spell_dims(layout.padded)}"
        return f"{dims}{meaning} strides {spell_dims(layout.strides)}{cut}{where}"
    names = layout.axis_names()
    digits = ", ".join(
        spell_digit(tuple(names[a] for a in layout.terms[t]), w, e) + f"*{s}" for t, w, e, s in layout.digits
    )
    cut = "" if counted == layout.padded else f" padded {spell_dims(layout.padded)}"
    return f"{dims}{meaning} [{digits}]{cut}{where}"


def layout_of(given: object) -> Layout:
    """The layout of what has one: of a descriptor or a tensor, or a layout itself.

    Raises
    ------
    LayoutError
        It has none, or its format is not decided.

    Examples
    --------
    >>> from relayout import MemoryDesc
    >>> layout_of(MemoryDesc((2, 3), "f32", "ba"))
    Layout('ba:2x3')
    """
    layout = given if isinstance(given, Layout) else getattr(given, "layout", None)
    if not isinstance(layout, Layout):
        raise LayoutError(f"{described(given)} has no layout; give a Layout, a MemoryDesc or a Tensor")
    return layout


def values_towards(
    rest: int, stride: int, within: tuple[int, int], common: int, first: int, last: int
) -> range:
    """The values of a digit, in ``first .. last``, after which smaller digits may still make up ``rest``.

    What is left, ``rest - value * stride``, must lie ``within`` what those digits add, and be a multiple of
    what is ``common`` to their strides (0: there are none). The second rule leaves one value where strides
    don't nest but divide each other unevenly.
    """
    ends = (rest - within[0], rest - within[1])
    low, high = (ends[1], ends[0]) if stride > 0 else (-ends[0], -ends[1])
    first, last = max(first, -(-low // abs(stride))), min(last, high // abs(stride))
    shared = gcd(stride, common)
    if rest % shared:
        return range(0)
    every = common // shared or 1
    if every > 1:  # rest == value * stride, modulo what is common
        first += (rest // shared * pow(stride // shared, -1, every) - first) % every
    return range(first, last + 1, every)


def plain(rank: int) -> Format:
    """The row-major format of a rank: one digit an axis."""
    terms = tuple((a,) for a in range(rank))
    return Format._make(rank, terms, ((),) * rank, tuple((a, 0) for a in range(rank)))


def blocked_layout(
    dims: tuple[int, ...],
    padded: Sequence[int],
    strides: Sequence[int],
    inner: Sequence[tuple[int, int]],
    offset: int = 0,
) -> Layout:
    """Build a layout from oneDNN's fields: padded dims, outer strides, and inner blocks, outermost first."""
    ladders: list[list[Digit]] = [[] for _ in dims]
    weights = [1] * len(dims)
    room = 1
    for axis, block in reversed(inner):
        ladders[axis].append(Digit(weights[axis], block, room))
        weights[axis] *= block
        room *= block
    for axis, stride in enumerate(strides):
        ladders[axis].append(Digit(weights[axis], -(-padded[axis] // weights[axis]), stride))
    order = sorted(((axis, 0) for axis in range(len(dims))), key=lambda place: -strides[place[0]])
    level = [0] * len(dims)
    for axis, _ in inner:
        level[axis] += 1
        order.append((axis, level[axis]))
    terms = tuple((axis,) for axis in range(len(dims)))
    whole = tuple(tuple(reversed(ladder)) for ladder in ladders)
    return Layout._make(dims, terms, whole, tuple(order), tuple(padded), offset)


def spell_dims(dims: Sequence[int]) -> str:
    """Write sizes as ``2x17x5x4`` (``scalar`` where there are none)."""
    return "x".join(map(str, dims)) if len(dims) else "scalar"


def every_index(dims: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All indices in row-major order, one at a time, for sizes of any length.

    ``itertools.product`` holds all numbers of every axis before it gives the first index.

    >>> next(every_index((10**15, 2)))
    (0, 0)
    """
    if not dims:
        yield ()
        return
    for number in range(dims[0]):
        for rest in every_index(dims[1:]):
            yield (number, *rest)


def check_dims(dims: Sequence[int]) -> tuple[int, ...]:
    """Return sizes as a tuple of int, after checking that they are whole numbers from 0 to 2**63 - 1.

    Truth values, which Python counts among the numbers, are refused.
    """
    given = tuple(dims) if hasattr(dims, "__iter__") else dims
    sizes = whole_numbers(given, "dims")
    if bool in map(type, given):
        raise LayoutError(f"dims must be whole numbers, one an axis, got {given!r}")
    if sizes and min(sizes) < 0:
        axis = next(axis for axis, size in enumerate(sizes) if size < 0)
        raise LayoutError(
            f"dims {spell_dims(sizes)}: axis {axis} has size {sizes[axis]}; a size can't be negative"
        )
    if (prod(sizes) or prod(size or 1 for size in sizes)) > MAX_ELEMENTS:
        raise LayoutError(f"dims {spell_dims(sizes)} are more than 2**63 - 1 elements")
    return sizes


def whole_numbers(values: Iterable[Any], what: str) -> tuple[int, ...]:
    """Return what was given for each axis as ints, from any type with ``__index__``; errors say ``what``."""
    try:
        numbers = tuple(map(as_index, values))
    except TypeError:
        raise LayoutError(f"{what} must be whole numbers, one an axis, got {values!r}") from None
    if numbers and (max(numbers) > MAX_ELEMENTS or min(numbers) < -MAX_ELEMENTS):
        axis = next(axis for axis, number in enumerate(numbers) if abs(number) > MAX_ELEMENTS)
        raise LayoutError(
            f"{what}: the number of axis {axis} takes {numbers[axis].bit_length()} bits; the limit is "
            "2**63 - 1"
        )
    return numbers


def whole_number(value: Any, what: str) -> int:
    """Return a number as int, from any type with ``__index__``; errors say ``what`` it is."""
    number = whole(value, what)
    if abs(number) > MAX_ELEMENTS:
        raise LayoutError(f"{what}: a number of {number.bit_length()} bits; the limit is 2**63 - 1")
    return number


def reach(ladder: Sequence[Digit], room: int, sign: int) -> int:
    """How far the digits move at most, upwards (sign 1) or downwards (-1), over the numbers 0 .. room - 1.

    The farthest number below ``room`` agrees with ``room - 1`` in its upper digits, has one digit less, and
    is free below that.
    """
    if len(ladder) == 1 and ladder[0].weight == 1 and room <= ladder[0].extent:  # most of them
        return max(0, sign * ladder[0].stride * (room - 1))
    best = taken = 0
    free = [0] * (len(ladder) + 1)
    for k in range(len(ladder) - 1, -1, -1):
        free[k] = free[k + 1] + max(0, sign * ladder[k].stride * (ladder[k].extent - 1))
    last = room - 1
    for k, (weight, extent, stride) in enumerate(ladder):
        value = last // weight % extent
        if value:
            best = max(best, taken + max(0, sign * stride * (value - 1)) + free[k + 1])
        taken += sign * stride * value
    return max(best, taken)


def _extents(dims: tuple[int, ...], format: Format) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    extents = []
    padded = []
    for term, radices in zip(format.terms, format.radices, strict=True):
        size = dims[term[0]] if len(term) == 1 else prod(dims[a] for a in term)
        if radices:
            block = prod(radices)
            count = -(-size // block)
            extents.append((count, *radices))
            padded.append(count * block)
        else:
            extents.append((size,))
            padded.append(size)
    return extents, tuple(padded)


def _ladders(extents: list[tuple[int, ...]], strides: list[list[int]]) -> tuple[tuple[Digit, ...], ...]:
    ladders: list[tuple[Digit, ...]] = []
    for lengths, steps in zip(extents, strides, strict=True):
        if len(lengths) == 1:
            ladders.append((_digit((1, lengths[0], steps[0])),))
            continue
        weight = 1
        ladder = []
        for level in range(len(lengths) - 1, -1, -1):
            ladder.append(_digit((weight, lengths[level], steps[level])))
            weight *= lengths[level]
        ladder.reverse()
        ladders.append(tuple(ladder))
    return tuple(ladders)


# Half the time of Digit(...)
_digit = cast(Callable[[tuple[int, int, int]], Digit], partial(tuple.__new__, Digit))
