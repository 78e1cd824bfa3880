"""Text: arrays of objects, each of them a ``str``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, elementwise, operator
from relayout.graph.operators.types import TEXT
from relayout.graph.operators.unary import truth

CASES: Final[dict[str, Callable[[str], str]]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def _texts(x: Array) -> list[str]:
    """All elements."""
    if x.dtype != TEXT:
        raise LayoutError(f"text is needed, got {x.dtype}")
    return [str(one) for one in x.reshape(-1)]


def _array(elements: list[Any], shape: tuple[int, ...]) -> Array:
    made = np.empty(len(elements), TEXT)
    made[:] = elements
    return made.reshape(shape)


@operator("StringConcat", infer=elementwise)
def string_concat(x: Array, y: Array, /) -> Array:
    """One text behind the other, with broadcasting."""
    x, y = np.broadcast_arrays(x, y)
    return _array([a + b for a, b in zip(_texts(x), _texts(y), strict=True)], x.shape)


def _normalized(x: Fact, **_: Any) -> Fact:
    return Fact(None if x.dims is None else (*x.dims[:-1], None), TEXT)


@operator("StringNormalizer", infer=_normalized)
def string_normalizer(
    x: Array,
    /,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: tuple[str, ...] | None = None,
) -> Array:
    """Without stop words, and in one case; one empty text where nothing is left. The locale is Unicode's."""
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise LayoutError("a vector is needed, or a matrix of one row")
    if case_change_action not in CASES:
        raise LayoutError(f"case_change_action is 'NONE', 'LOWER' or 'UPPER', got {case_change_action!r}")
    change, key = CASES[case_change_action], str if is_case_sensitive else str.lower
    stops = {key(word) for word in stopwords or ()}
    kept = [change(text) for text in _texts(x) if key(text) not in stops] or [""]
    return _array(kept, (*x.shape[:-1], len(kept)))


def _split(x: Fact, **_: Any) -> tuple[Fact, Fact]:
    return Fact(None if x.dims is None else (*x.dims, None), TEXT), Fact(x.dims, np.dtype(np.int64))


@operator("StringSplit", infer=_split)
def string_split(
    x: Array, /, *, delimiter: str | None = None, maxsplit: int | None = None
) -> tuple[Array, Array]:
    """Parts of each text along a new axis, filled up with empty text, and how many there are."""
    parts = [text.split(delimiter or None, -1 if maxsplit is None else maxsplit) for text in _texts(x)]
    longest = max(map(len, parts), default=0)
    filled = [part for one in parts for part in one + [""] * (longest - len(one))]
    return _array(filled, (*x.shape, longest)), np.array([*map(len, parts)], np.int64).reshape(x.shape)


@operator("RegexFullMatch", infer=truth)
def regex_full_match(x: Array, /, *, pattern: str | None = None) -> Array:
    """Whether a pattern matches all of a text.

    Patterns are Python's, which have all of RE2's that is in use; other than RE2's, some take very long.
    """
    if pattern is None:
        raise LayoutError("there is no pattern")
    matches = re.compile(pattern).fullmatch
    return np.array([matches(text) is not None for text in _texts(x)], bool).reshape(x.shape)
