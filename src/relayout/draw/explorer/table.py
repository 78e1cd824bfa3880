"""What the explorer knows of other dialects: names, and the digits that each stands for.

The page reads oneDNN's tags and digits by grammar, in JavaScript. All other names are data: Python reads each
with its dialect and writes down the digits, which the page reads again::

    "b_fs_yx_fsv16": [["openvino", "nchw -> n, c//16, h, w, c%16"]]
    "aBx16b": [["benchdnn", "abc -> a, b//16, c, b%16", 3], ...]

A reading is ``[dialect, digits, rank, data types]``. The rank is there where the name means a layout for each
(0 where it does not), the data types where it means another layout for some.

>>> readings_of("b_fs_yx_fsv16")
[['openvino', 'nchw -> n, c//16, h, w, c%16']]
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from relayout.draw.text import by_grammar_only, names_of
from relayout.dtypes import DTYPES
from relayout.errors import LayoutError
from relayout.layout.format import Format
from relayout.notation import SYNONYMS, dialect, dialects, readings

__all__ = ["readings_of", "table"]

RANKS: Final = range(1, 7)
"""Of tensors for which names that wait for a rank are read."""

LONGEST: Final = 40
"""Characters of a name that is listed with another format."""

BY_GRAMMAR: Final = ("onednn", "digits")
"""The dialects that the page reads itself."""

ORDER: Final = "CUBLASLT_ORDER_"
"""What cuBLASLt's names begin with, and people leave out: ``COL4_4R2_8C``."""

Reading = list[Any]
_Found: TypeAlias = "dict[str, list[Reading]]"
_Spelled: TypeAlias = "dict[str, dict[str, str]]"


def table(more: Iterable[str] = ()) -> dict[str, Any]:
    """The data of the page.

    Parameters
    ----------
    more : iterable of str
        Formats to be read besides those that the dialects list, each as :class:`relayout.Format` takes it.

    Returns
    -------
    dict
        ``dialects``: the title of each. ``synonyms``: other names of theirs. ``dtypes``: the bits of each.
        ``readings``: what each name means. ``names``: for the digits of each format what those dialects call
        it that have it.

    Examples
    --------
    >>> made = table()
    >>> made["readings"]["NCHW16c"], made["names"]["nchw -> n, c//16, h, w, c%16"]["openvino"]
    ([['tvm', 'nchw -> n, c//16, h, w, c%16']], 'b_fs_yx_fsv16')
    """
    found, spelled = _listed()
    found, spelled = found.copy(), spelled.copy()
    for text in more:
        format = Format(text)
        name, bare = format.dialect or "", format.text or ""
        _note(bare, found, spelled)
        if all(told != name for told, *_ in found[bare]):  # a dialect written in front reads more
            found[bare] = found[bare] + _of_one(name, format)
        _note_names([spelled[digits] for _, digits, *_ in found[bare] if digits in spelled], found, spelled)
    return {
        "dialects": {name: dialect(name).TITLE.partition(" (")[0] for name in dialects()},
        "synonyms": {word: name for word, name in SYNONYMS.items() if word not in dialects()},
        "dtypes": {kind.name: kind.bits for kind in DTYPES},
        "readings": {
            text: kept
            for text, told in found.items()
            if (kept := [r for r in told if r[0] not in BY_GRAMMAR])
        },
        "names": spelled,
    }


@lru_cache(maxsize=1)
def _listed() -> tuple[_Found, _Spelled]:
    """The readings of all names that dialects list, and the names of what they mean.

    They are the same for every page, and take three seconds.
    """
    found: _Found = {}
    spelled: _Spelled = {}
    for name in dialects():
        for text in dialect(name).names():
            _note(text, found, spelled)
            _note(text.removeprefix(ORDER), found, spelled)
    _note_names(list(spelled.values()), found, spelled)
    return found, spelled


def _note(text: str, found: _Found, spelled: _Spelled) -> None:
    """Read a text, and note what other dialects call the formats that it means."""
    if text in found:
        return
    found[text] = readings_of(text)
    for _, digits, *_ in found[text]:
        if digits not in spelled:
            spelled[digits] = _names(digits)


def _note_names(listed: Iterable[dict[str, str]], found: _Found, spelled: _Spelled) -> None:
    """Read those names of formats that the page does not read by grammar."""
    for names in listed:
        for name, text in names.items():
            if name not in (*BY_GRAMMAR, "benchdnn"):
                _note(text, found, spelled)


def readings_of(text: str) -> list[Reading]:
    """What a text means in every dialect that reads it, with the rank and the data types it depends on.

    >>> [reading for reading in readings_of("aBx16b") if reading[2] == 3]
    [['benchdnn', 'abc -> a, b//16, c, b%16', 3]]
    """
    try:
        told = readings(text)
    except LayoutError:
        return []
    return [reading for name, format in told.items() for reading in _of_one(name, format)]


def _of_one(name: str, format: Format) -> list[Reading]:
    if not format.waits_for and format.rank is not None:
        return [[name, format.digits_text()]]
    ranks = RANKS if "rank" in format.waits_for else (format.rank or 0,)
    kinds = [kind.name for kind in DTYPES] if "dtype" in format.waits_for else [None]
    found: list[Reading] = []
    for rank in ranks:
        means: dict[str, list[str]] = {}
        for kind in kinds:
            try:
                digits = format.resolve(rank or None, kind).digits_text()
            except LayoutError:  # there is no such tensor
                continue
            means.setdefault(digits, []).append(kind or "")
        fixed = rank if len(ranks) > 1 else 0
        whole = len(means) == 1 and len(next(iter(means.values()))) == len(kinds)
        for digits, said in means.items():
            found.append([name, digits, fixed, *([] if whole else [said])])
    return found


def _names(digits: str) -> dict[str, str]:
    """What the dialects that have a format call it, but for names that no table has room for."""
    names = {name: text for name, text in names_of(Format(digits, "digits")).items() if len(text) <= LONGEST}
    guessed = by_grammar_only(names)
    return {name: text for name, text in names.items() if name not in guessed}
