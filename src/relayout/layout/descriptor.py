"""Memory descriptors: a layout and a data type, with the questions and the rules of oneDNN.

oneDNN's ``dnnl_memory_desc_t`` is the best known description of a tensor in memory, so this class answers
what it answers, to the last number: sizes, padded sizes, strides between outermost blocks, inner blocks,
``offset0``, the size in bytes, sub-memory, reshape, permuted axes, equality. What it adds is that any
:class:`~relayout.layout.layout.Layout` fits in, also those that oneDNN can't hold (``format_kind`` is then
"digits"), and that a refusal says which axis, which numbers and which rule.

oneDNN's own traps, kept as they are
====================================

* ``permute_axes(perm)``: ``perm[i]`` is the *new place* of axis i, the inverse of what NumPy's ``transpose``
  takes.
* ``strides`` count elements between *outermost blocks*: in ``nChw8c`` the channel stride is the distance of 8
  channels.
* ``nbytes`` is the largest extent of any one axis, ``offset0`` not included. For a part of a bigger tensor
  that is neither the bytes that it touches nor what the buffer must hold (a block that the part ends within
  is not even counted); :attr:`MemoryDesc.required_bytes` says the latter.
* ``==`` ignores the strides of axes of size 1, and nothing else: ``nChw8c`` with C = 8 differs from ``nhwc``
  although the bytes are the same. ``Layout.same_bytes`` is the question whether a reorder is needed.

Where oneDNN answers *unimplemented* although the layout can be expressed (a part that begins inside a block),
the right answer is given here. Where it answers *invalid arguments*, so do we.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import index as as_index
from typing import Any, Final, NamedTuple, cast

from relayout.dtypes import DType
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, Unsupported, counted, described
from relayout.forking import lock
from relayout.layout import spelling
from relayout.layout.format import Format, letters
from relayout.layout.layout import Layout, check_dims, plain, spell_dims, whole_numbers, write_layout
from relayout.layout.spelling import text_of

__all__ = ["MemoryDesc", "MklDnnBlocking", "any_format", "undef"]

MAX_RANK: Final = 12  # DNNL_MAX_NDIMS


class _Placeholder:
    """A format that is not decided (``any``) or not there (``undef``)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"relayout.{self.name}"

    def __reduce__(self) -> str:
        return "any_format" if self.name == "any" else "undef"


any_format = _Placeholder("any")
undef = _Placeholder("undef")


class MklDnnBlocking(NamedTuple):
    """MKL-DNN 0.95's ``blocking_desc_t``: sizes and two strides an axis, between blocks and within a block.

    Its worked example, 17 channels in ``nChw8c``, reads one to one:

    >>> from relayout import MemoryDesc
    >>> view = MemoryDesc((2, 17, 5, 4), "f32", "nChw8c").mkldnn()
    >>> view.block_dims, view.padding_dims
    ((1, 8, 1, 1), (2, 24, 5, 4))
    >>> view.strides_between, view.strides_within
    ((480, 160, 32, 8), (1, 1, 1, 1))
    """

    block_dims: tuple[int, ...]
    """The block of each axis, in elements (1: not blocked)."""
    strides_between: tuple[int, ...]
    """``strides[0]``: elements from one block to the next."""
    strides_within: tuple[int, ...]
    """``strides[1]``: elements from one element to the next within a block (not blocked: 1)."""
    padding_dims: tuple[int, ...]
    """The sizes rounded up to whole blocks."""
    offset_padding_to_data: tuple[int, ...]
    """Elements of padding in front of the data, always 0."""
    offset_padding: int
    """Where the first element lies, in elements."""


class MemoryDesc:
    """Dims, a data type and a layout: what oneDNN calls a memory descriptor.

    Parameters
    ----------
    dims : sequence of int, or str
        The logical sizes, at most 12 of them. Alone, a text: what a descriptor prints,
        ``"f32:nChw8c:2x17x5x4"`` (:mod:`relayout.layout.text` has the forms).
    dtype : str, numpy.dtype or DType
        The data type: ``"f32"``, ``"bf16"``, ``"s8"``, ``"s4"``, ...
    format : str, Format, Layout, torch.memory_format or ``relayout.any``, optional
        The memory format. A :class:`Layout` must have the same dims. ``any`` leaves the choice to an
        implementation. A descriptor as oneDNN logs it brings its strides; its data type and the sizes behind
        it must be those given.
    strides : sequence of int, optional
        Elements between neighbours of each axis. Exactly one of ``format`` and ``strides`` must be given.

    Attributes
    ----------
    dims : tuple of int
        The logical sizes.
    dtype : DType
        The data type.
    layout : Layout
        Where the elements lie; None while the format is ``any`` or ``undef``.

    Raises
    ------
    LayoutError
        A rule is broken: rank, sizes, or oneDNN's rule for strides (sorted by size, each must step over what
        the smaller ones cover; strides of 0, which broadcast, and axes of size 1 are exempt; 4-bit types need
        strides that are 1 or even).

    Examples
    --------
    >>> from relayout import MemoryDesc
    >>> md = MemoryDesc((2, 17, 5, 4), "f32", "nChw8c")
    >>> md
    MemoryDesc('f32:nChw8c:2x17x5x4')
    >>> md.strides, md.inner_blocks, md.nbytes
    ((480, 160, 32, 8), ((1, 8),), 3840)
    >>> md.tag
    'aBcd8b'
    """

    __slots__ = (
        "_blocking",
        "_hash",
        "_identity",
        "_kind",
        "_nbytes",
        "_required",
        "dims",
        "dtype",
        "layout",
    )

    dims: tuple[int, ...]
    dtype: DType
    layout: Layout
    _kind: str
    _hash: int | None
    _identity: tuple[Any, ...] | None
    _blocking: tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | bool | None
    _nbytes: int | None  # found when they are asked for, and kept: each call asks for those of its results
    _required: int | None

    def __new__(
        cls,
        dims: Sequence[int] | str,
        dtype: Any = None,
        format: str | Format | Layout | _Placeholder | None = None,
        *,
        strides: Sequence[int] | None = None,
    ) -> MemoryDesc:
        """Describe ``dims`` elements of ``dtype`` in a format, or with strides."""
        if isinstance(dims, str):
            with lock():
                from relayout.layout.text import read_descriptor

            if dtype is not None or format is not None or strides is not None:
                raise LayoutError(f"the text {dims!r} says all of a descriptor; give nothing beside it")
            return read_descriptor(dims)
        if isinstance(format, str) and strides is None:
            try:
                given = tuple(dims)
                if bool not in map(type, given):
                    return _by_text(tuple(map(as_index, given)), as_dtype(dtype), format)
            except TypeError:
                pass  # dims that are no whole numbers: let the checks say so
        if (format is None) == (strides is None):
            raise LayoutError(
                "a memory descriptor needs exactly one of format and strides, got "
                + ("neither" if format is None else f"format {format!r} and strides {strides!r}")
            )
        sizes, kind = _check_rank(check_dims(dims)), as_dtype(dtype)
        if strides is not None:
            return cls._make(sizes, kind, _by_strides(sizes, kind, strides))
        if isinstance(format, _Placeholder):
            return cls._make(sizes, kind, None, format.name)
        if isinstance(format, Layout):
            if format.dims != sizes:
                raise LayoutError(
                    f"the layout {format} has dims {spell_dims(format.dims)}, not {spell_dims(sizes)}"
                )
            return cls._make(sizes, kind, format)
        if isinstance(format, str):
            return _by_text(sizes, kind, format)
        if isinstance(format, Format):
            return _by_format(sizes, kind, format)
        said = text_of(format)
        if said is not None:
            return _by_text(sizes, kind, said)
        raise LayoutError(
            f"a format is text, a Format, a Layout or relayout.any, got {described(format)}; "
            "strides are given by name: strides=..."
        )

    @classmethod
    def _make(cls, dims: tuple[int, ...], dtype: DType, layout: Layout | None, kind: str = "") -> MemoryDesc:
        if len(dims) > MAX_RANK:
            _check_rank(dims)
        self = object.__new__(cls)
        put = object.__setattr__
        put(self, "dims", dims)
        put(self, "dtype", dtype)
        put(self, "layout", layout)
        put(self, "_kind", kind)
        put(self, "_blocking", None)
        put(self, "_nbytes", None)
        put(self, "_required", None)
        put(self, "_hash", None)
        put(self, "_identity", None)
        return self

    # -- what it is ---------------------------------------------------------------------------------------

    @property
    def format_kind(self) -> str:
        """How the format is described: "blocked" as in oneDNN, "any", "undef", or "digits".

        The last is what oneDNN has no words for: digits in another order, fused axes, negative strides.
        """
        if self._kind:
            return self._kind
        return "blocked" if self._blocked() else "digits"

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.dims)

    @property
    def padded_dims(self) -> tuple[int, ...]:
        """For each axis the size with its padding (``any``: the dims themselves)."""
        return self.layout.padded_dims if self.layout is not None else self.dims

    @property
    def strides(self) -> tuple[int, ...]:
        """For each axis the distance between neighbouring outermost blocks, in elements."""
        return self._placed("strides").strides

    @property
    def inner_blocks(self) -> tuple[tuple[int, int], ...]:
        """The inner blocks as ``(axis, block)``, outermost first.

        Raises
        ------
        Unsupported
            The layout is none of oneDNN's (``format_kind`` is "digits").
        """
        self._placed("inner blocks")
        known = self._blocked()
        if not known:
            raise Unsupported(
                f"{self.layout} has digits that are no inner blocks of oneDNN; see Layout.digits"
            )
        return known[1]

    @property
    def offset0(self) -> int:
        """Where element (0, ..., 0) lies in the buffer, in elements."""
        return self.layout.offset0 if self.layout is not None else 0

    @property
    def nbytes(self) -> int:
        """The size in bytes as oneDNN counts it: the largest extent of any one axis, without ``offset0``.

        That is what a dense tensor takes. Of a part of a tensor it is neither what the part touches nor what
        its buffer must hold; see :attr:`required_bytes`.

        Examples
        --------
        >>> MemoryDesc((2, 3), "f32", strides=(10, 1)).nbytes  # 2 rows of 10
        80
        """
        if self._nbytes is None:
            object.__setattr__(self, "_nbytes", self._as_onednn_counts())
        return cast(int, self._nbytes)

    def _as_onednn_counts(self) -> int:
        if self.layout is None or 0 in self.dims:
            return 0
        known = self._blocked()
        if not known:
            return _bytes(self.layout.span, self.dtype)
        strides, inner = known
        blocks = [1] * self.rank
        for axis, block in inner:
            blocks[axis] *= block
        most = 0
        for room, block, stride in zip(self.padded_dims, blocks, strides, strict=True):
            count = room // block  # a block that the tensor ends within is not counted: so does oneDNN
            most = max(most, count * (1 if count == 1 else stride))
        if most == 1 and inner:
            most = prod(blocks)
        if not self.dims:
            most = 1
        return _bytes(most, self.dtype)

    @property
    def required_bytes(self) -> int:
        """Bytes that a buffer must hold for every element and all padding to lie inside; with ``offset0``.

        Examples
        --------
        >>> MemoryDesc((2, 3), "f32", strides=(10, 1)).required_bytes  # the second row ends after 3
        52
        """
        if self._required is None:
            object.__setattr__(self, "_required", self._reached())
        return cast(int, self._required)

    def _reached(self) -> int:
        if self.layout is None or 0 in self.dims:
            return 0
        low, high = self.layout.bounds()
        if low < 0:
            raise LayoutError(
                f"{self} reaches {counted(-low, 'element')} in front of its buffer; its offset0 must be at "
                f"least {-low} more"
            )
        return _bytes(high + 1, self.dtype)

    @property
    def tag(self) -> str | None:
        """The oneDNN tag in letters a, b, c, ... (``aBcd8b``), "any", or None where no dense tag says it.

        Examples
        --------
        >>> MemoryDesc((2, 3, 4, 5), "f32", strides=(60, 1, 15, 3)).tag
        'acdb'
        """
        if self.layout is None:
            return self._kind if self._kind == "any" else None
        format = self.format
        if format is None:
            return None
        return format.with_roles(None).name("onednn")

    @property
    def format(self) -> Format | None:
        """The format of which this is the dense layout, at any ``offset0``; None for gaps and parts.

        Examples
        --------
        >>> MemoryDesc((2, 3, 4, 5), "f32", strides=(60, 1, 15, 3)).format
        Format('acdb')
        """
        layout = self.layout
        if layout is None:
            return None
        if layout.format is not None:
            return layout.format
        known = self._blocked()
        if not known or (0 in known[0] and 0 not in self.dims):
            return None
        strides, inner = known
        outer = sorted(range(self.rank), key=lambda a: (-strides[a], -layout.ladders[a][0].extent))
        names = layout.axis_names()
        format = Format.blocked(names, [names[a] for a in outer], [(names[a], block) for a, block in inner])
        dense = self._make(self.dims, self.dtype, Layout._dense(self.dims, format, self.offset0))
        return format if dense == self else None

    def name(self, dialect: str) -> str | None:
        """The spelling of the format in a dialect; None where it has none, and for no dense layout.

        Examples
        --------
        >>> MemoryDesc((2, 17, 5, 4), "f32", "nChw16c").name("openvino")
        'b_fs_yx_fsv16'
        >>> Format("Oihw32o").name("openvino"), MemoryDesc((64, 2, 2, 2), "s4", "Oihw32o").name("openvino")
        ('os_iyx_osv32', None)
        """
        format = self.format
        text = format.name(dialect) if format is not None else None
        if text is None or Format(text, dialect).resolve(self.rank, self.dtype.name) != format:
            return None  # some names mean another layout for this data type
        return text

    def mkldnn(self) -> MklDnnBlocking:
        """The same in MKL-DNN 0.95's words: block sizes and two strides an axis.

        Raises
        ------
        Unsupported
            An axis has more than one level of blocks, which MKL-DNN's descriptor could not hold.
        """
        strides, inner = self.strides, self.inner_blocks
        blocks, within = [1] * self.rank, [1] * self.rank
        step = 1
        for axis, block in reversed(inner):
            if blocks[axis] != 1:
                raise Unsupported(f"{self}: axis {axis} has two levels of blocks; MKL-DNN 0.95 describes one")
            blocks[axis], within[axis] = block, step
            step *= block
        zeros = (0,) * self.rank
        return MklDnnBlocking(tuple(blocks), strides, tuple(within), self.padded_dims, zeros, self.offset0)

    # -- oneDNN's operations ------------------------------------------------------------------------------

    def submemory(self, dims: Sequence[int], offsets: Sequence[int]) -> MemoryDesc:
        """Describe the part of ``dims`` elements that starts at ``offsets``, in the same memory.

        This is ``dnnl_memory_desc_create_submemory``. Parts that begin or end inside a block, which oneDNN
        does not implement, are described too if any layout can.

        Raises
        ------
        LayoutError
            The part does not lie within the tensor, or cuts blocks at uneven places.

        Examples
        --------
        >>> md = MemoryDesc((1, 64, 2, 2), "f32", "nChw16c")
        >>> md.submemory((1, 32, 2, 2), (0, 16, 0, 0)).offset0
        64
        """
        with lock():
            from relayout.layout import views

        return self.with_layout(views.submemory(self._placed("part"), dims, offsets))

    def permute_axes(self, perm: Sequence[int]) -> MemoryDesc:
        """Rename the axes: axis i becomes axis ``perm[i]``, the inverse of what NumPy's ``transpose`` takes.

        This is ``dnnl_memory_desc_permute_axes``.

        Examples
        --------
        >>> md = MemoryDesc((2, 3, 4), "f32", "abc").permute_axes((1, 2, 0))
        >>> md.dims, md.tag
        ((4, 2, 3), 'bca')
        """
        places = whole_numbers(perm, "perm")
        if sorted(places) != list(range(self.rank)):
            raise LayoutError(f"perm {places} is no permutation of the axes 0..{self.rank - 1} of {self}")
        order = sorted(range(self.rank), key=places.__getitem__)
        if self.layout is None:
            return self._make(tuple(self.dims[a] for a in order), self.dtype, None, self._kind)
        with lock():
            from relayout.layout import views

        return self.with_layout(views.permute(self.layout, order))

    def reshape(self, dims: Sequence[int]) -> MemoryDesc:
        """Describe the same elements, in row-major order, under other sizes (``dnnl_memory_desc_reshape``).

        oneDNN's rule: from the right, sizes are paired into the shortest groups of equal product. A group of
        one size on either side keeps its blocks; any other must be dense, sequential and without blocks.
        Views that go further are :func:`relayout.views.reshape`.

        Raises
        ------
        LayoutError
            The number of elements differs, or the rule is broken.

        Examples
        --------
        >>> MemoryDesc((2, 12, 5), "f32", "acb").reshape((2, 1, 12, 5)).strides
        (60, 12, 1, 12)
        """
        with lock():
            from relayout.layout.reshape import onednn_reshape

        return onednn_reshape(self, _check_rank(check_dims(dims)))

    def with_layout(self, layout: Layout) -> MemoryDesc:
        """Describe elements of the same data type in another layout, with its dims: a view, say.

        Examples
        --------
        >>> from relayout import views
        >>> md = MemoryDesc((2, 3, 4), "f32", "abc")
        >>> md.with_layout(views.merge_axes(md.layout, 0, 1))
        MemoryDesc('f32:6x4 strides 4x1')
        """
        return self._make(layout.dims, self.dtype, layout)

    # -- being a value --------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, MemoryDesc):
            return NotImplemented
        return hash(self) == hash(other) and self._key() == other._key()

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(self._key()))
        return cast(int, self._hash)

    def _key(self) -> tuple[Any, ...]:
        """What is compared, made once. Strides of axes that are never stepped along don't count."""
        if self._identity is None:
            rest: Any = self.layout
            known = self._blocked()
            if known:
                sizes = zip(known[0], self.dims, self.padded_dims, strict=True)
                strides = tuple(0 if size == room == 1 else stride for stride, size, room in sizes)
                rest = self.padded_dims, self.offset0, strides, known[1]
            key = self.dims, self.dtype, self.format_kind, rest
            object.__setattr__(self, "_identity", key)
        return cast(tuple[Any, ...], self._identity)

    def __setattr__(self, name: str, value: Any = None) -> None:
        raise AttributeError(f"a MemoryDesc is frozen; {name} can't be set or deleted")

    __delattr__ = __setattr__

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryDesc._make, (self.dims, self.dtype, self.layout, self._kind)

    def __str__(self) -> str:
        if self.layout is None:
            return f"{self.dtype}:{self._kind}:{spell_dims(self.dims)}"
        return f"{self.dtype}:{write_layout(self.layout, self.dtype.name)}"

    def _repr_svg_(self) -> str | None:
        """The descriptor on a sheet, for notebooks; None before its format is decided."""
        if self.layout is None:
            return None
        with lock():
            from relayout.draw.notebook import of_layout
        return of_layout(self)

    def __repr__(self) -> str:
        return f"MemoryDesc({str(self)!r})"

    # -- workings -------------------------------------------------------------------------------------------

    def _placed(self, what: str) -> Layout:
        if self.layout is None:
            raise LayoutError(f"{self} has no {what} before its format is decided")
        return self.layout

    def _blocked(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | None:
        """Strides and inner blocks as oneDNN has them, or None where its descriptor can't hold the layout."""
        if self._blocking is None:
            found = None if self.layout is None else _blocking(self.layout)
            object.__setattr__(self, "_blocking", found if found is not None else False)
        return self._blocking if isinstance(self._blocking, tuple) else None


def _blocking(layout: Layout) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | None:
    if len(layout.terms) != layout.rank:
        return None
    inner = [(t, level) for t, level in layout.order if level]
    step = 1
    below: dict[int, int] = {}
    for term, level in reversed(inner):
        digit = layout.ladders[term][level]
        if digit.stride != step or level > below.get(term, level):
            return None  # not dense, or the digits of an axis do not stand in order
        below[term] = level
        step *= digit.extent
    strides = tuple(ladder[0].stride for ladder in layout.ladders)
    if any(s < 0 for s in strides):
        return None
    return strides, tuple((t, layout.ladders[t][level].extent) for t, level in inner)


def _bytes(elements: int, dtype: DType) -> int:
    return -(-elements * dtype.bits // 8)


def _check_rank(dims: tuple[int, ...]) -> tuple[int, ...]:
    if len(dims) > MAX_RANK:
        raise LayoutError(
            f"dims {spell_dims(dims)} are {len(dims)} axes; memory descriptors have at most {MAX_RANK}"
        )
    return dims


@lru_cache(maxsize=8192)
def _by_text(dims: tuple[int, ...], dtype: DType, text: str) -> MemoryDesc:
    sizes = _check_rank(check_dims(dims))
    if text == "any":
        return MemoryDesc._make(sizes, dtype, None, "any")
    logged = spelling.logged(text)
    if logged is not None:
        if logged.dtype != dtype.name:
            raise LayoutError(f"{text!r} says the data type {logged.dtype}, not {dtype}")
        desc = logged.desc(sizes)
        _check_nibbles(desc.layout, dtype)
        return desc
    return _by_format(sizes, dtype, Format(text))


def _by_format(sizes: tuple[int, ...], dtype: DType, format: Format) -> MemoryDesc:
    # Not cached: formats that compare equal may differ in what their axes mean and in what they wait for.
    layout = Layout._dense(sizes, format.resolve(len(sizes), dtype.name))
    _check_nibbles(layout, dtype)
    return MemoryDesc._make(sizes, dtype, layout)


def _by_strides(dims: tuple[int, ...], dtype: DType, strides: Sequence[int]) -> Layout:
    """Lay out by strides that keep oneDNN's rule: sorted, each is at least what the axes below it cover."""
    layout = Layout._strided(dims, plain(len(dims)), strides, 0, None)
    for axis, stride in enumerate(layout.strides):
        if stride < 0:
            raise LayoutError(
                f"stride {stride} of axis {axis} is negative; memory descriptors only count upwards"
            )
    if 0 not in dims:
        _check_overlap(layout)
    _check_nibbles(layout, dtype)
    order = sorted(range(len(dims)), key=lambda axis: -layout.strides[axis])
    dense = Layout._dense(dims, _in_order(tuple(order)))
    return dense if dense == layout and dims else layout


@lru_cache(maxsize=1024)
def _in_order(order: tuple[int, ...]) -> Format:
    """The plain format with the axes in some order, outermost first."""
    names = letters(len(order))
    return Format.blocked(names, [names[axis] for axis in order])


def _check_overlap(layout: Layout) -> None:
    dims, strides = layout.dims, layout.strides
    covered, inner = 1, -1
    for axis in sorted(range(len(dims)), key=lambda a: (strides[a], dims[a], a)):
        if strides[axis] == 0 or dims[axis] == 1:
            continue  # broadcast, or never stepped
        if strides[axis] < covered:
            raise LayoutError(
                f"strides {spell_dims(strides)} of dims {spell_dims(dims)}: axis {axis} steps "
                f"{counted(strides[axis], 'element')}, but axis {inner} within it covers {covered}; elements "
                "would overlap"
            )
        covered, inner = strides[axis] * dims[axis], axis


def _check_nibbles(layout: Layout, dtype: DType) -> None:
    """Rows of 4-bit elements must start on whole bytes: every stride is 1 or even (oneDNN, MegEngine)."""
    if dtype.bits >= 8 or 0 in layout.dims:
        return
    for ladder, term, room in zip(layout.ladders, layout.terms, layout.padded, strict=True):
        stride = ladder[0].stride
        if room != 1 and stride > 1 and stride % 2:
            raise LayoutError(
                f"axis {term[0]} of {layout} has stride {stride}; a row of {dtype} elements must start on a "
                "whole byte, so every stride must be 1 or even. Pad the innermost axis to an even size, or "
                "pass a Layout to pack across rows"
            )
