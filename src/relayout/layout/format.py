"""A format: an order of digits, sizes unknown.

Why digits
==========

Every memory format in use answers one question: *where does element (n, c, h, w) lie?* The formats look
different because they are written differently, but they all compute the answer in the same way. Take
``nChw16c`` (oneDNN), which clDNN calls ``b_fs_yx_fsv16`` and TVM ``NCHW16c``. It cuts the channel number
into two digits, as one cuts 37 into "three tens and a seven"::

    c = 16 * (c // 16) + c % 16          the outer digit c//16, the inner digit c%16

and then writes five digits one after another, outermost (slowest) first::

    n    c//16    h    w    c%16

The position in memory is the number that those digits spell. That is the whole idea. A *plain* format
such as ``nhwc`` has one digit an axis; ``OIhw4i16o4i`` cuts ``i`` into three digits (``i//16``,
``i//4%4``, ``i%4``) and ``o`` into two; nothing else ever happens.

The parts
=========

``axes``     the logical axes 0 .. rank-1: how the *program* indexes the tensor. No format changes them.
``roles``    what the axes mean, if the text said so: ``("n", "c", "h", "w")``. Meaning is not layout:
             ``nchw``, ``oihw`` and ``abcd`` compare equal, but only the first is called ``bfyx`` in clDNN.
``terms``    the numbers that are cut into digits. Almost always a term is one axis. clDNN's ``yx`` in
             ``i_yxs_os_yxsv2_osv16`` is a term made of two axes, read as one row-major number ``y * X + x``.
``radices``  for each term the extents of its digits below the first, most significant first: ``(16,)`` for
             the channels of ``nChw16c``, ``(4, 4)`` for the ``i`` of ``OIhw4i16o4i``. The most significant
             digit is *open*: it counts as far as the size of the tensor demands. Rounding up there is all of
             padding.
``order``    the digits in memory order, outermost first, each as ``(term, level)``; level 0 is the open one.

The *weight* of a digit, i.e. what one step of it is worth on its axis, is the product of the extents of the
less significant digits. It is derived and never stored, so a format can't be inconsistent. Note that
``order`` is free: the digits of one axis need not stand in order of significance.
``os_is_yx_osv32_isv4_swizzled_by_2`` writes ``o%2`` *outside* of ``o//2%16``, cuBLASLt's ``COL4_4R2_8C`` and
the scale factors of MX formats do likewise. oneDNN's descriptor can't say that; here it is no special case.

How it compares
===============

* CuTe's ``(shape):(stride)``, nested, is the same algebra with strides written out. A format keeps the
  *order* instead of the strides, because sizes are not known yet; the two meet in
  :class:`relayout.layout.layout.Layout`.
* oneDNN's ``blocking_desc`` is the subset with one outer digit an axis and the inner digits dense at the end.
* XLA's tiles, TVM's ``NCHW16c``, MegEngine's ``NCHW4`` and clDNN's ``fsv`` are spellings;
  :mod:`relayout.notation` reads them.
* Triton's ``LinearLayout`` works on bits and can XOR them. Digits can't; such swizzles are refused by name.

Texts that wait
===============

Some texts don't fix a format until more is known: ``aBx16b`` and ``contiguous_format`` wait for the rank, and
clDNN's ``os_iyx_osv16`` is another layout for 4-bit elements. Such a Format keeps its text, and
:meth:`Format.resolve` reads it again when rank and data type are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, cast

from relayout.errors import LayoutError, checked, counted, described, listed, whole
from relayout.forking import lock
from relayout.layout import spelling
from relayout.layout.roles import axis_names, check_roles

__all__ = ["Format", "FormatDigit"]


class FormatDigit(NamedTuple):
    """One digit of a format: ``number of the term // weight % extent``; the open digit has extent None."""

    term: int
    weight: int
    extent: int | None


class Format:
    """An order of digits, sizes unknown: what ``nChw16c``, ``b_fs_yx_fsv16`` or ``NCHW4`` says.

    Parameters
    ----------
    text : str
        A format in any dialect that :mod:`relayout.notation` reads: ``"nChw16c"``, ``"aBcd16b"``,
        ``"aBx16b"``, ``"b_fs_yx_fsv16"``, ``"NCHW4"``, ``"channels_last"``, ``"n, c//16, h, w, c%16"``, ...
        A dialect can be written in front, ``"openvino:bfyx"``, and where one text has several readings the
        reading behind: ``"NCHW44@weights"``. PyTorch's own ``torch.channels_last`` stands for its text.
    dialect : str, optional
        The dialect that the text is written in, where it means different things in two of them.

    Attributes
    ----------
    rank : int or None
        The number of axes; None while the text waits for it (``aBx16b``).
    roles : tuple of str or None
        What the axes mean, in order: ``("n", "c", "h", "w")``; None for axes without meaning.
    text, dialect : str or None
        How the format was written, and in which dialect; None where it was made from parts.
    waits_for : frozenset of str
        What another reading of the text would depend on: "rank", "dtype", both or nothing.
    dtype : str or None
        The data type that the text says beside the format, as descriptors in oneDNN's log do; None in all
        others. The format is not asked for with another one: :meth:`resolve` refuses it.
    terms, radices, order
        The parts, as the top of this module explains them. :attr:`digits` has the same in one list.

    Raises
    ------
    UnknownFormat, AmbiguousFormat, Unsupported
        All are :class:`relayout.LayoutError`: nobody can read the text; it has several readings; it is known
        but no layout.

    Examples
    --------
    >>> from relayout import Format
    >>> f = Format("nChw16c")
    >>> f.digits_text()
    'nchw -> n, c//16, h, w, c%16'
    >>> f.name("openvino"), f.name("tvm"), f.name("megengine")
    ('b_fs_yx_fsv16', 'NCHW16c', None)
    >>> Format("b_fs_yx_fsv16") == f == Format("aBcd16b")
    True
    """

    __slots__ = (
        "_hash",
        "dialect",
        "dtype",
        "order",
        "radices",
        "rank",
        "roles",
        "terms",
        "text",
        "waits_for",
    )

    rank: int | None
    terms: tuple[tuple[int, ...], ...]
    radices: tuple[tuple[int, ...], ...]
    order: tuple[tuple[int, int], ...]
    roles: tuple[str, ...] | None
    text: str | None
    dialect: str | None
    waits_for: frozenset[str]
    dtype: str | None
    _hash: int | None

    def __new__(cls, text: str | Format, dialect: str | None = None) -> Format:
        """Read a format from text; a Format is returned as it is."""
        if isinstance(text, Format):
            return text
        if not isinstance(text, str):
            said = spelling.text_of(text)
            if said is None:
                raise LayoutError(f"a format is written as text, got {described(text)}")
            text = said
        return spelling.parse(text, dialect)

    # -- making ---------------------------------------------------------------------------------------

    @classmethod
    def _make(
        cls,
        rank: int | None,
        terms: tuple[tuple[int, ...], ...],
        radices: tuple[tuple[int, ...], ...],
        order: tuple[tuple[int, int], ...],
        roles: tuple[str, ...] | None = None,
        text: str | None = None,
        dialect: str | None = None,
        waits_for: frozenset[str] = frozenset(),
        dtype: str | None = None,
    ) -> Format:
        self = object.__new__(cls)
        put = object.__setattr__
        put(self, "rank", rank)
        put(self, "terms", terms)
        put(self, "radices", radices)
        put(self, "order", order)
        put(self, "roles", roles)
        put(self, "text", text)
        put(self, "dialect", dialect)
        put(self, "waits_for", waits_for)
        put(self, "dtype", dtype)
        put(self, "_hash", None)
        return self

    @classmethod
    def from_digits(
        cls, axes: Sequence[str], digits: Iterable[tuple[str | tuple[str, ...], int, int | None]]
    ) -> Format:
        """Build a format from its digits, outermost first: ``(axis or fused axes, weight, extent or None)``.

        This is the way in for formats whose digits are in no order of significance or that fuse axes.

        Parameters
        ----------
        axes : sequence of str
            The logical axes in order, by name: ``"nchw"`` or ``("l", "dir", "n", "c")``. The names become the
            roles unless they are just ``a, b, c, ...``.
        digits : iterable of (axis, weight, extent)
            ``axis`` is a name from ``axes`` or a tuple of names that are fused. ``extent`` None marks the
            open digit. Digits of extent 1 say nothing and are left out.

        Raises
        ------
        LayoutError
            An axis without an open digit, weights that don't chain (each must be the product of the extents
            below it), or blocks of more than 2**63 - 1 elements.

        Examples
        --------
        >>> Format.from_digits("nc", [("c", 4, None), ("n", 1, None), ("c", 1, 4)]).digits_text()
        'nc -> c//4, n, c%4'
        """
        axes = axis_names(axes)
        place = {name: k for k, name in enumerate(axes)}
        by_term: dict[tuple[int, ...], list[tuple[int, int | None, int]]] = {}
        written = [_digit(digit) for digit in listed(digits, "digits", f"triples {_DIGIT}")]
        written = [digit for digit in written if digit[2] != 1]
        for position, (group, weight, extent) in enumerate(written):
            unknown = [name for name in group if name not in place]
            if unknown:
                raise LayoutError(
                    f"digit {' '.join(group)!r} names {unknown[0]!r} which is none of the axes {list(axes)}"
                )
            term = tuple(place[name] for name in group)
            by_term.setdefault(term, []).append((weight, extent, position))
        _check_cover(axes, by_term)
        terms = tuple(sorted(by_term))
        radices = []
        order: list[tuple[int, int]] = [(0, 0)] * len(written)
        for t, term in enumerate(terms):
            ladder = sorted(by_term[term], key=lambda d: (d[1] is not None, -d[0], -(d[1] or 0)))
            label = "".join(axes[a] for a in term)
            _check_weights(label, ladder)
            radices.append(tuple(extent for _, extent, _ in ladder[1:] if extent is not None))
            for level, (_, _, position) in enumerate(ladder):
                order[position] = (t, level)
        _check_block(prod(map(prod, radices)))
        return cls._make(len(axes), terms, tuple(radices), tuple(order), _meaningful(axes))

    @classmethod
    def blocked(
        cls, axes: Sequence[str], outer: Sequence[str], inner: Sequence[tuple[str, int]] = ()
    ) -> Format:
        """Build a format from outer axes and inner blocks, as oneDNN, TVM and most others write it.

        Parameters
        ----------
        axes : sequence of str
            The logical axes in order, by name.
        outer : sequence of str
            The order of the open digits, outermost first: every axis once.
        inner : sequence of (axis, block)
            The blocks behind them, outermost first. The blocks of one axis are its digits in order of
            significance. Blocks of 1 say nothing and are left out.

        Raises
        ------
        LayoutError
            An axis that is not there, or named twice; a block below 1, or blocks of more than 2**63 - 1
            elements.

        Examples
        --------
        >>> Format.blocked("oihw", "oihw", [("i", 4), ("o", 16), ("i", 4)]) == Format("OIhw4i16o4i")
        True
        """
        axes, outer = axis_names(axes), axis_names(outer)
        rank = len(axes)
        place = {name: k for k, name in enumerate(axes)}
        if len(outer) != rank or len(place) != rank or set(outer) != set(axes):
            raise LayoutError(f"the outer axes {list(outer)} must name each of the axes {list(axes)} once")
        levels: list[tuple[int, ...]] = [()] * rank
        order = [(place[name], 0) for name in outer]
        room = 1
        for pair in listed(inner, "inner blocks", "pairs (axis, block)"):
            name, block = listed(pair, "an inner block", "a pair (axis, block)", 2)
            block = whole(block, f"block {block}{name}")
            if not isinstance(name, str) or name not in place:
                raise LayoutError(f"block {block}{name} names an axis that is none of {list(axes)}")
            if block < 1:
                raise LayoutError(f"block {block}{name}: a block size must be 1 or more")
            if block == 1:
                continue
            axis = place[name]
            levels[axis] += (block,)
            order.append((axis, len(levels[axis])))
            room *= block
        _check_block(room)
        return cls._make(rank, _own_terms(rank), tuple(levels), tuple(order), _meaningful(axes))

    @classmethod
    def waiting(cls, text: str, dialect: str, waits_for: Iterable[str]) -> Format:
        """Make a format whose digits :meth:`resolve` will know (``waits_for``: "rank", "dtype" or both)."""
        for given, what in ((text, "a format"), (dialect, "a dialect")):
            checked(given, str, what, "text")
        awaited = listed(waits_for, "waits_for", "'rank', 'dtype' or both")
        if not all(isinstance(one, str) and one in ("rank", "dtype") for one in awaited):
            raise LayoutError(f"waits_for must be 'rank', 'dtype' or both, got {described(waits_for)}")
        return cls._make(None, (), (), (), None, text, dialect, frozenset(awaited))

    def spelled(
        self, text: str, dialect: str, waits_for: Iterable[str] = (), dtype: str | None = None
    ) -> Format:
        """Return the same format, which remembers its text, what another reading would depend on, and which
        data type the text says.
        """
        fields = (self.rank, self.terms, self.radices, self.order, self.roles)
        return self._make(*fields, text, dialect, frozenset(waits_for), dtype)

    def with_roles(self, roles: Sequence[str] | None) -> Format:
        """Return the same digits with other meanings for the axes (None: no meaning).

        Examples
        --------
        >>> Format("abcd").with_roles("nchw").name("openvino")
        'bfyx'
        """
        self._need_digits()
        named = None if roles is None else check_roles(roles, self.rank or 0, f"format {self}")
        return self._make(self.rank, self.terms, self.radices, self.order, named or None)

    def indexed(self, axes: Sequence[int]) -> Format:
        """Return the same memory order for a program that indexes in another order of the axes.

        Axis k of the result is axis ``axes[k]`` of this format, as in NumPy's ``transpose``; roles go along.

        Examples
        --------
        >>> Format("nChw16c").indexed((0, 2, 3, 1)).digits_text()
        'nhwc -> n, c//16, h, w, c%16'
        """
        self._need_digits()
        axes = [whole(a, "an axis") for a in listed(axes, "axes", "whole numbers")]
        if sorted(axes) != list(range(self.rank or 0)):
            raise LayoutError(f"{tuple(axes)} is no permutation of the {self.rank} axes of {self}")
        place = {old: new for new, old in enumerate(axes)}
        renamed = [tuple(place[a] for a in term) for term in self.terms]
        by_axis = sorted(range(len(renamed)), key=renamed.__getitem__)
        position = {old: new for new, old in enumerate(by_axis)}
        return self._make(
            self.rank,
            tuple(renamed[t] for t in by_axis),
            tuple(self.radices[t] for t in by_axis),
            tuple((position[t], level) for t, level in self.order),
            None if self.roles is None else tuple(self.roles[a] for a in axes),
        )

    def resolve(self, rank: int | None = None, dtype: str | None = None) -> Format:
        """Return the format once rank and data type are known; texts that wait for them are read again.

        Raises
        ------
        LayoutError
            The format has another rank, or its text says another data type.

        Examples
        --------
        >>> Format("aBx16b").resolve(rank=5).name("onednn")
        'aBcde16b'
        """
        known: Format = self
        if rank is not None and type(rank) is not int:
            rank = whole(rank, "the rank")
        if self.dtype is not None:
            if dtype not in (None, self.dtype):
                raise LayoutError(
                    f"the descriptor of {self} says the data type {self.dtype}, not {dtype}; ask for "
                    f"{self.dtype}, or name the format alone"
                )
            known = self.spelled(self.text or "", self.dialect or "", self.waits_for)
        other_rank = rank is not None and rank != self.rank and "rank" in self.waits_for
        asked = self.rank is None or other_rank or dtype is not None
        if self.waits_for and self.text is not None and asked:  # else what was read for a data type stays
            known = spelling.parse(
                self.text, self.dialect, rank, dtype if "dtype" in self.waits_for else None
            )
        if known.rank is None:
            raise LayoutError(f"format {known.text!r} fits several ranks; say how many axes the tensor has")
        if rank is not None and known.rank != rank:
            raise LayoutError(
                f"format {known} has {counted(known.rank, 'axis')}{known._axes_note()}, but {rank} dims were "
                "given"
            )
        return known

    # -- reading --------------------------------------------------------------------------------------

    def name(self, dialect: str) -> str | None:
        """Return the spelling of this format in a dialect, or None where that dialect has none.

        Raises
        ------
        LayoutError
            There is no such dialect (the known ones are listed).

        Examples
        --------
        >>> Format("OIhw16i16o").name("openvino")
        'os_is_yx_isv16_osv16'
        >>> Format("bfyx").name("onednn")
        'nchw'
        """
        return spelling.render(self, dialect)

    @property
    def digits(self) -> tuple[FormatDigit, ...]:
        """The digits in memory order, outermost first.

        Examples
        --------
        >>> Format("nChw16c").digits[1], Format("nChw16c").digits[4]
        (FormatDigit(term=1, weight=16, extent=None), FormatDigit(term=1, weight=1, extent=16))
        """
        self._need_digits()
        out = []
        for term, level in self.order:
            radices = self.radices[term]
            out.append(FormatDigit(term, prod(radices[level:]), radices[level - 1] if level else None))
        return tuple(out)

    @property
    def blocks(self) -> tuple[int, ...]:
        """For each axis the number that its size is rounded up to; 1 where it is not blocked, or fused."""
        self._need_digits()
        blocks = [1] * (self.rank or 0)
        for term, radices in zip(self.terms, self.radices, strict=True):
            if len(term) == 1:
                blocks[term[0]] = prod(radices)
        return tuple(blocks)

    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes: the roles where they are known, else ``a, b, c, ...``."""
        self._need_digits()
        return self.roles if self.roles is not None else letters(self.rank or 0)

    def digits_text(self) -> str:
        """Write the digits out: ``nchw -> n, c//16, h, w, c%16``. All formats can be written, and read, so.

        Examples
        --------
        >>> Format("OIhw4i16o4i").digits_text()
        'oihw -> o//16, i//16, h, w, i//4%4, o%16, i%4'
        """
        names = self.axis_names()
        single = all(len(name) == 1 for name in names)
        head = "".join(names) if single else " ".join(names)
        body = ", ".join(
            spell_digit(tuple(names[a] for a in self.terms[d.term]), d.weight, d.extent) for d in self.digits
        )
        return f"{head} -> {body}".strip()

    def _need_digits(self) -> None:
        if self.rank is None:
            raise LayoutError(
                f"format {self.text!r} has no digits before the rank is known; use resolve(rank=...)"
            )

    def _axes_note(self) -> str:
        return f" ({', '.join(self.roles)})" if self.roles else ""

    # -- being a value ----------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Format):
            return NotImplemented
        if self is other:
            return True
        if self.rank is None or other.rank is None:
            return (self.rank, self.text, self.dialect) == (other.rank, other.text, other.dialect)
        return self.order == other.order and self.radices == other.radices and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            digits = (self.terms, self.radices, self.order)
            key = digits if self.rank is not None else (self.text, self.dialect)
            object.__setattr__(self, "_hash", hash(key))
        return cast(int, self._hash)

    def __setattr__(self, name: str, value: Any = None) -> None:
        raise AttributeError(f"a Format is frozen; {name} can't be set or deleted")

    __delattr__ = __setattr__

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.rank, self.terms, self.radices, self.order, self.roles, self.text, self.dialect)
        return Format._make, (*fields, self.waits_for, self.dtype)

    def spelled_for(self, rank: int | None = None, dtype: str | None = None) -> str:
        """Return a text that :class:`Format` reads as this very format, roles included.

        The text that it was written in where that says so, else with its dialect in front, else oneDNN's
        name, else the digits. ``rank`` and ``dtype`` are what the reader will know, for texts that wait for
        them.

        Examples
        --------
        >>> Format("mnn:NC4HW4").spelled_for(), Format("aBx16b").resolve(4).spelled_for()
        ('mnn:NC4HW4', 'aBcd16b')
        """
        if self.rank is None:
            texts = [self.text, f"{self.dialect}:{self.text}"]
        else:
            own = [] if self.text is None else [self.text, f"{self.dialect}:{self.text}"]
            texts = [*own, self.name("onednn")]
        for text in texts:
            if text is not None and self._is_read_from(text, rank, dtype):
                return text
        return self.digits_text()

    def _is_read_from(self, text: str, rank: int | None, dtype: str | None) -> bool:
        try:
            made = spelling.parse(text)
            if self.rank is not None and (rank is not None or dtype is not None):
                made = made.resolve(rank, dtype)
        except LayoutError:
            return False
        return made == self and made.roles == self.roles

    def __str__(self) -> str:
        return self.spelled_for()

    def _repr_svg_(self) -> str | None:
        """The digits, for notebooks; None where the format waits for a rank or a data type."""
        with lock():
            from relayout.draw.notebook import of_format
        return of_format(self)

    def __repr__(self) -> str:
        return f"Format({str(self)!r})"


@lru_cache(maxsize=64)
def _own_terms(rank: int) -> tuple[tuple[int, ...], ...]:
    return tuple((a,) for a in range(rank))


@lru_cache(maxsize=64)
def letters(rank: int) -> tuple[str, ...]:
    """The names ``a, b, c, ...`` of axes without meaning."""
    return tuple("abcdefghijklmnopqrstuvwxyz"[:rank]) if rank <= 26 else tuple(f"a{k}" for k in range(rank))


def spell_digit(names: tuple[str, ...], weight: int, extent: int | None) -> str:
    """Write one digit: ``c//16``, ``c//4%4``, ``c%16``, ``(h w)//2``."""
    number = names[0] if len(names) == 1 else "(" + " ".join(names) + ")"
    over = f"//{weight}" if weight != 1 else ""
    within = f"%{extent}" if extent is not None else ""
    return f"{number}{over}{within}"


_DIGIT = "(axis or fused axes, weight, extent or None)"


def _digit(given: object) -> tuple[tuple[str, ...], int, int | None]:
    """A digit as a caller writes it, its axes as a tuple."""
    names, weight, extent = listed(given, "a digit", f"a triple {_DIGIT}", 3)
    group = (names,) if isinstance(names, str) else axis_names(names)
    least = None if extent is None else whole(extent, f"the extent of digit {group!r}")
    return group, whole(weight, f"the weight of digit {group!r}"), least


def _meaningful(axes: Sequence[str]) -> tuple[str, ...] | None:
    names = tuple(axes)
    return None if names == letters(len(names)) else names


def _check_cover(
    axes: Sequence[str], by_term: dict[tuple[int, ...], list[tuple[int, int | None, int]]]
) -> None:
    seen = Counter(a for term in by_term for a in term)
    for axis, name in enumerate(axes):
        if seen[axis] != 1:
            how = "in no digit" if axis not in seen else "both alone and fused with others, or fused twice"
            raise LayoutError(
                f"axis {name!r} of {list(axes)} stands {how}; every axis must be written out once"
            )


def _check_block(elements: int) -> None:
    if elements >= 2**63:
        raise LayoutError("the blocks of a format hold more than 2**63 - 1 elements; no memory has so many")


def _check_weights(label: str, ladder: list[tuple[int, int | None, int]]) -> None:
    """Check that digits, most significant first, are a mixed-radix number with one open digit."""
    if ladder[0][1] is not None or any(extent is None for _, extent, _ in ladder[1:]):
        count = sum(extent is None for _, extent, _ in ladder)
        raise LayoutError(
            f"axis {label!r} has {count} open digits (without '%'); it needs exactly one, the most "
            "significant"
        )
    expected = 1
    for weight, extent, _ in reversed(ladder):
        if weight != expected:
            raise LayoutError(
                f"axis {label!r}: a digit has weight {weight} where the digits below it count {expected}; "
                "the weight must be the product of the extents below"
            )
        if extent is not None:
            if extent < 1:
                raise LayoutError(f"axis {label!r}: a digit of extent {extent}; it must be 1 or more")
            expected *= extent
