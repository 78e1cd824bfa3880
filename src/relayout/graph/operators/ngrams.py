"""TfIdfVectorizer: how often each n-gram of a pool is in a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact, operator

__all__: list[str] = []


def _infer(x: Fact, /, *, ngram_indexes: Sequence[int], **_: object) -> Fact:
    size = max(ngram_indexes, default=-1) + 1
    if x.dims is None:
        return Fact(None, np.dtype(np.float32))
    return Fact((*x.dims[:-1], size) if len(x.dims) == 2 else (size,), np.dtype(np.float32))


@operator("TfIdfVectorizer", infer=_infer)
def tf_idf_vectorizer(
    x: Array,
    /,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Array:
    """Counts of n-grams whose items are up to so many elements apart, or whether there are any; weighed."""
    if mode not in ("TF", "IDF", "TFIDF"):
        raise LayoutError(f"mode {mode!r} is none of TF, IDF, TFIDF")
    if x.ndim > 2:
        raise LayoutError(f"sequences of {x.shape}; they must have 1 or 2 axes")
    pool = np.asarray(pool_strings, object) if pool_strings else np.asarray(pool_int64s or (), np.int64)
    rows = x if x.ndim == 2 else x.reshape(1, x.size)
    size = max(ngram_indexes, default=-1) + 1
    made = np.zeros((x.shape[0] if x.ndim == 2 else 1, size), np.float32)
    ends = [*ngram_counts[1:], len(pool)]
    which = 0
    places = np.asarray(ngram_indexes, np.int64)
    for n, (start, end) in enumerate(zip(ngram_counts, ends, strict=False), 1):
        count = (end - start) // n
        if (
            count < 0
            or (end - start) % n
            or not 0 <= start <= end <= len(pool)
            or which + count > len(places)
        ):
            raise LayoutError(
                f"ngram_counts {tuple(ngram_counts)} and {len(places)} indexes for {len(pool)} items"
            )
        if min_gram_length <= n <= max_gram_length and rows.size and count:
            grams, index = pool[start:end].reshape(count, n), places[which : which + count]
            for distance in range(1, (1 if n == 1 else max_skip_count + 1) + 1):
                _count(rows, grams, index, distance, made)
        which += count
    if mode == "IDF":
        made = (made > 0).astype(np.float32)
    if mode != "TF" and weights:
        if len(weights) != len(places):
            raise LayoutError(f"{len(weights)} weights for {len(places)} n-grams")
        factors = np.zeros(size, np.float32)
        factors[places] = weights
        made *= factors
    return made if x.ndim == 2 else made[0]


def _count(rows: Array, grams: Array, index: Array, distance: int, into: Array) -> None:
    """Add how often each n-gram is in each row, its items so far apart."""
    n = grams.shape[1]
    first = rows.shape[1] - distance * (n - 1)
    if first <= 0:
        return
    at = np.arange(first)[:, None] + distance * np.arange(n)
    found = rows[:, at].reshape(-1, n)
    _, codes = np.unique(np.concatenate([grams.reshape(-1), found.reshape(-1)]), return_inverse=True)
    _, kinds = np.unique(codes.reshape(-1, n), axis=0, return_inverse=True)
    kinds = kinds.reshape(-1)
    target = np.full(kinds.max() + 1, -1)
    target[kinds[: len(grams)]] = index
    hit = target[kinds[len(grams) :]].reshape(rows.shape[0], first)
    row, place = np.nonzero(hit >= 0)
    np.add.at(into, (row, hit[row, place]), 1)
