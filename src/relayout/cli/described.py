"""Which tensor the words of a command line describe, and which elements of it.

::

    FORMAT DIMS                        nChw8c 1,17,2,2      nChw8c 1x17x2x2      nChw8c 1 17 2 2
    DIMS --strides STRIDES             4,5 --strides 8,1
    DESCRIPTOR                         f32:nChw8c:1x17x2x2, as Relayout prints it
    DESCRIPTOR [DIMS]                  src:f32:p:blocked:aBcd8b::f0, as oneDNN logs it

Numbers are joined by commas or ``x``, or stand as words of their own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from relayout.cli.arguments import DIMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayout.layout.descriptor import MemoryDesc
    from relayout.layout.format import Format

__all__ = ["Described", "completed", "described", "indices", "meaning_option", "sizes_in", "with_meaning"]

_OWN = re.compile(r"([a-z][a-z0-9_]*):(.+):([0-9]+(?:x[0-9]+)*)")  # a descriptor as Relayout prints it

MEANINGS = ("activations", "weights", "grouped-weights")

_Command = TypeVar("_Command", bound="Callable[..., Any]")


class Described(NamedTuple):
    """A tensor that a command line describes."""

    desc: MemoryDesc
    roles: tuple[str, ...] | None
    """The roles of the format that was named, which strides of its own would hide; None: as the layout."""
    title: str
    """The format as it was written."""
    rest: tuple[str, ...]
    """The words behind it."""
    appended: str
    """What oneDNN keeps behind the elements, as its log says it: ``f8:zpm2``; empty for nothing."""
    typed: bool = False
    """Whether a descriptor says the data type."""


def meaning_option(command: _Command) -> _Command:
    """Give a command ``--as``, which says what axes without a meaning are."""
    return click.option(
        "--as",
        "meaning",
        type=click.Choice(MEANINGS),
        help="What the axes a, b, c, ... of a format in letters mean: n, c, h, w; o, i, h, w; g, o, i, h, w.",
    )(command)


def with_meaning(format: Format, meaning: str | None) -> Format:
    """The format with the roles that ``--as`` says; a format that says its own must agree.

    Raises
    ------
    click.UsageError
        It has other roles already, or no such tensor has so many axes.
    """
    if meaning is None:
        return format
    from relayout.layout.roles import data_roles, weights_roles

    rank = format.rank or 0
    spatial = rank - (3 if meaning == "grouped-weights" else 2)
    if not 0 <= spatial <= 3:
        raise click.UsageError(
            f"--as {meaning}: {format} has {rank} axes, and {meaning} have "
            + ("3 to 6" if meaning == "grouped-weights" else "2 to 5"),
            click.get_current_context(),
        )
    roles = (
        data_roles(spatial)
        if meaning == "activations"
        else weights_roles(spatial, groups=meaning == "grouped-weights")
    )
    if format.roles is None:
        return format.with_roles(roles)
    if format.roles != roles:
        raise click.UsageError(
            f"--as {meaning}: the axes of {format} are {', '.join(format.roles)} already",
            click.get_current_context(),
        )
    return format


def described(
    words: Sequence[str],
    dtype: str | None = None,
    strides: tuple[int, ...] | None = None,
    meaning: str | None = None,
) -> Described:
    """Read a tensor from the first of some words.

    Parameters
    ----------
    words : sequence of str
        A format and sizes, a descriptor, or with strides sizes alone; then whatever else the command takes.
    dtype : str, optional
        The data type; f32 if neither this nor a descriptor says it.
    strides : tuple of int, optional
        Between outermost blocks, in elements.
    meaning : str, optional
        The value of ``--as``.

    Raises
    ------
    click.UsageError
        The words describe no tensor, or a descriptor and an option contradict each other.
    LayoutError
        The sizes do not fit the format.
    """
    from relayout.notation import verbose

    logged = verbose.read(words[0].strip())
    if logged is not None:
        elements, dims, rest = logged.elements, logged.dims, tuple(words[1:])
        if dims is None:
            dims, rest = _sizes(rest, len(logged.strides) if logged.strides else elements.format.rank)
        _agree(logged.text, "dtype", logged.dtype, dtype)
        _agree(logged.text, "strides", logged.strides, strides)
        desc = elements.desc(dims)
        return _meant(desc, meaning)._replace(
            title=f"{logged.tag} ({logged.argument})" if logged.argument else logged.tag,
            rest=rest,
            appended=logged.appended,
            typed=True,
        )
    own = _OWN.fullmatch(words[0])
    kind = own and _data_type(own[1])
    if own and kind is not None:
        _agree(words[0], "dtype", kind, dtype)
        return described((own[2], own[3], *words[1:]), kind, strides, meaning)._replace(typed=True)
    return _by_format(words, dtype or "f32", strides, meaning)


def sizes_in(text: str) -> tuple[int, ...] | None:
    """The sizes that a descriptor says itself; None for a format, and for a descriptor without."""
    from relayout.notation import verbose

    logged = verbose.read(text.strip())
    if logged is not None:
        return logged.dims
    own = _OWN.fullmatch(text)
    if own is None or _data_type(own[1]) is None:
        return None
    numbers: tuple[int, ...] = DIMS.convert(own[3], None, click.get_current_context())
    return numbers


def completed(
    format: str | None, dims: tuple[int, ...] | None, dtype: str | None
) -> tuple[str | None, tuple[int, ...] | None, str | None]:
    """The values of three options, where the format may be a descriptor that says the other two.

    Raises
    ------
    click.UsageError
        A descriptor contradicts one of the others.
    Unsupported
        A descriptor with strides of its own, which no format can hold.

    Examples
    --------
    >>> completed("src:bf16::blocked:acdb::f0:1x3x4x5", None, None)
    ('acdb', (1, 3, 4, 5), 'bf16')
    >>> completed("nhwc", None, "f32")
    ('nhwc', None, 'f32')
    """
    if format is None:
        return None, dims, dtype
    from relayout.notation import verbose

    logged = verbose.read(format.strip())
    if logged is not None:
        name, kind, sizes = str(logged.format), logged.dtype, logged.dims
    else:
        own = _OWN.fullmatch(format)
        if own is None or _data_type(own[1]) is None:
            return format, dims, dtype
        name, kind, sizes = own[2], own[1], sizes_in(format)
    _agree(format, "in-dtype", kind, dtype)
    if sizes is not None:
        _agree(format, "dims", sizes, dims)
    return name, dims if sizes is None else sizes, kind


def _by_format(
    words: Sequence[str], dtype: str, strides: tuple[int, ...] | None, meaning: str | None
) -> Described:
    from relayout.dtypes import dtype as as_dtype
    from relayout.layout.descriptor import MemoryDesc
    from relayout.layout.format import Format
    from relayout.layout.layout import Layout

    kind = as_dtype(dtype)
    if strides is not None and re.fullmatch(r"\[?\(?[0-9][0-9,xX ]*\)?\]?", words[0]):
        dims, rest = _sizes(words, len(strides))
        desc = MemoryDesc(dims, kind, Layout(dims, strides=strides))
        return _meant(desc, meaning)._replace(rest=rest)
    if words[0] in ("any", "undef"):
        raise click.UsageError(
            f"{words[0]!r} leaves the format open, so there is nothing to show; name one",
            click.get_current_context(),
        )
    format = Format(words[0])
    dims, rest = _sizes(words[1:], format.rank)
    format = with_meaning(format.resolve(len(dims), kind.name), meaning)
    if strides is None:
        desc = MemoryDesc(dims, kind, format)
        return Described(desc, None, words[0], rest, "")
    desc = MemoryDesc(dims, kind, Layout(dims, format, strides=strides))
    return Described(desc, format.roles, words[0], rest, "")


def _meant(desc: MemoryDesc, meaning: str | None) -> Described:
    """A descriptor whose format gets the roles of ``--as``; strides without a format only the names."""
    from relayout.layout.descriptor import MemoryDesc
    from relayout.layout.format import Format

    format = desc.layout.format
    if format is None:
        letters = Format("".join("abcdefghijkl"[: desc.rank])) if desc.rank else None
        roles = with_meaning(letters, meaning).roles if letters and meaning else None
        return Described(desc, roles, "", (), "")
    if meaning is not None:
        desc = MemoryDesc(desc.dims, desc.dtype, with_meaning(format, meaning))
    return Described(desc, None, str(format), (), "")


def _data_type(text: str) -> str | None:
    from relayout.dtypes import DTYPES

    return next((kind.name for kind in DTYPES if kind.name == text), None)


def _agree(text: str, option: str, said: Any, given: Any) -> None:
    from relayout.dtypes import dtype

    if option.endswith("dtype") and given is not None:
        given = dtype(given).name
    if given is not None and given != said:
        raise click.UsageError(f"{text} contradicts --{option}; leave that out", click.get_current_context())


def _alone(word: str) -> bool:
    """Whether a word is one number, perhaps with a comma behind."""
    return re.fullmatch(r"[0-9]{1,30},?", word) is not None


def _sizes(words: Sequence[str], rank: int | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The sizes that words begin with, and the words behind them."""
    if not words:
        raise click.UsageError(
            "give FORMAT DIMS, as in nChw8c 1,17,2,2, or DIMS with --strides", click.get_current_context()
        )
    alone = next((k for k, word in enumerate(words) if not _alone(word)), len(words))
    count = 1 if not alone or rank == 1 else min(alone, rank or alone)
    text = words[0] if count == 1 else ",".join(word.rstrip(",") for word in words[:count])
    return DIMS.convert(text, None, click.get_current_context()), tuple(words[count:])


def indices(words: Sequence[str], rank: int) -> list[tuple[int, ...]]:
    """The indices that words mean: ``17,5,0,2`` is one, and so is ``17 5 0 2`` where there are 4 axes.

    Raises
    ------
    click.UsageError
        A word is no number, or numbers are left over.
    """
    found: list[tuple[int, ...]] = []
    single: list[int] = []
    for word in words:
        numbers = DIMS.convert(word, None, click.get_current_context())
        if rank > 1 and _alone(word) and (single or len(words) > 1):
            single += numbers
            if len(single) == rank:
                found.append(tuple(single))
                single = []
            continue
        found.append(numbers)
        if single:
            break
    if single:
        raise click.UsageError(
            f"{' '.join(map(str, single))} is no index of {rank} axes; write {rank} numbers for each",
            click.get_current_context(),
        )
    return found
