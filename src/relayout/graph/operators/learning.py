"""Classical machine learning: the operators of domain ai.onnx.ml that networks have around them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from relayout.errors import LayoutError, counted
from relayout.graph.operators.registry import Array, Fact, operator, same
from relayout.graph.operators.types import narrow

__all__: list[str] = []


def _infer_extractor(x: Fact, y: Fact, /) -> Fact:
    count = y.dims[0] if y.dims is not None and len(y.dims) == 1 else None
    if y.dims is not None and all(isinstance(n, int) for n in y.dims):
        count = int(np.prod([n for n in y.dims if isinstance(n, int)]))
    if x.dims is None:
        return Fact(None, x.dtype)
    return Fact((1, count) if len(x.dims) == 1 else (*x.dims[:-1], count), x.dtype)


@operator("ai.onnx.ml.ArrayFeatureExtractor", infer=_infer_extractor)
def array_feature_extractor(x: Array, y: Array, /) -> Array:
    """Elements of the last axis; of a vector as a matrix of one row."""
    if not x.ndim:
        raise LayoutError("a scalar has no axis to select from")
    index = y.reshape(-1)
    if index.size and not (index.min() >= 0 and index.max() < x.shape[-1]):
        raise LayoutError(f"indices {index.min()} to {index.max()} must be 0 to {x.shape[-1] - 1}")
    made = x[..., index]
    return made[None] if x.ndim == 1 else made


@operator("ai.onnx.ml.Binarizer", infer=same)
def binarizer(x: Array, /, *, threshold: float = 0.0) -> Array:
    """1 for what is larger than the threshold, else 0."""
    return (x > threshold).astype(x.dtype)


def _chosen(kind: str, given: dict[str, Any]) -> tuple[str, Array]:
    """The one of several attributes that is given, and its values."""
    found = [(name, value) for name, value in given.items() if value is not None and np.size(value)]
    if len(found) != 1:
        raise LayoutError(f"one and only one kind of {kind} must be given, got {[name for name, _ in found]}")
    name, value = found[0]
    types = {"int64s": np.int64, "floats": np.float32, "strings": object}
    return name, np.asarray(value, types[name]) if name in types else np.asarray(value)


def _infer_encoder(x: Fact, /, **attributes: Any) -> Fact:
    given = {key: attributes.get(f"values_{key}") for key in ("floats", "int64s", "strings", "tensor")}
    return Fact(x.dims, _chosen("values", given)[1].dtype)


@operator("ai.onnx.ml.LabelEncoder", infer=_infer_encoder)
def label_encoder(
    x: Array,
    /,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Sequence[float] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: Array | None = None,
    values_floats: Sequence[float] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: Array | None = None,
) -> Array:
    """Each element's value in a table of keys; the last of equal keys counts, and NaN is equal to itself."""
    _, keys = _chosen(
        "keys", {"floats": keys_floats, "int64s": keys_int64s, "strings": keys_strings, "tensor": keys_tensor}
    )
    name, values = _chosen(
        "values",
        {
            "floats": values_floats,
            "int64s": values_int64s,
            "strings": values_strings,
            "tensor": values_tensor,
        },
    )
    if keys.shape != values.shape or keys.ndim != 1:
        raise LayoutError(f"keys of {keys.shape} and values of {values.shape}")
    if values.dtype == object:
        fallback: Any = default_string
    elif name == "int64s" or values.dtype.kind in "iu":
        fallback = default_int64
    else:
        fallback = default_float
    if default_tensor is not None:
        if np.size(default_tensor) != 1:
            raise LayoutError(f"a default of {np.shape(default_tensor)}; it must be one value")
        fallback = np.reshape(default_tensor, -1)[0]
    distinct, inverse = np.unique(x, return_inverse=True)
    table = dict(zip(map(_key, keys.tolist()), values.tolist(), strict=True))
    found = np.empty(len(distinct), values.dtype)
    for i, one in enumerate(distinct.tolist()):
        found[i] = table.get(_key(one), fallback)
    return found[inverse.reshape(-1)].reshape(x.shape)


def _key(one: Any) -> Any:
    """A key of a dict under which NaN is found."""
    return "NaN" if isinstance(one, float) and one != one else (one,)


def _infer_trees(x: Fact, /, *, n_targets: int | None = None, **_: object) -> Fact:
    return Fact((x.dims[0] if x.dims else None, n_targets), x.dtype)


@operator("ai.onnx.ml.TreeEnsemble", infer=_infer_trees)
def tree_ensemble(
    x: Array,
    /,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    membership_values: Array | None = None,
    n_targets: int | None = None,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Array:
    """The leaves that each sample comes to, one in each tree, aggregated by target."""
    if x.ndim != 2:
        raise LayoutError(f"samples of {x.shape}; they must be batch x features")
    modes = np.asarray(nodes_modes).reshape(-1)
    count = modes.size
    features = np.asarray(nodes_featureids, np.int64)
    branch = np.asarray([nodes_falsenodeids, nodes_truenodeids], np.int64)
    leaf = np.asarray([nodes_falseleafs, nodes_trueleafs], bool)
    splits = np.asarray(nodes_splits).reshape(-1)
    targets, weights = np.asarray(leaf_targetids, np.int64), np.asarray(leaf_weights).reshape(-1)
    roots = np.asarray(tree_roots, np.int64)
    if {features.size, splits.size, branch.shape[1], leaf.shape[1]} != {
        count
    } or targets.size != weights.size:
        raise LayoutError(f"{count} nodes, but attributes of other lengths; {targets.size} leaves")
    limit = np.where(leaf, targets.size, count)
    if (branch < 0).any() or (branch >= limit).any() or (roots < 0).any() or (roots >= count).any():
        raise LayoutError(f"a branch or root leads to none of {count} nodes and {targets.size} leaves")
    if count and (features.min() < 0 or features.max() >= x.shape[1]):
        raise LayoutError(f"features {features.min()} to {features.max()} must be 0 to {x.shape[1] - 1}")
    total = (int(targets.max()) + 1 if targets.size else 0) if n_targets is None else n_targets
    if targets.size and (targets.min() < 0 or targets.max() >= total):
        raise LayoutError(f"targets {targets.min()} to {targets.max()} must be 0 to {total - 1}")
    missing = np.zeros(count, bool)
    if nodes_missing_value_tracks_true is not None and len(nodes_missing_value_tracks_true):
        missing = np.asarray(nodes_missing_value_tracks_true, bool)
    members = _members(modes, membership_values)
    at = np.broadcast_to(roots, (x.shape[0], roots.size)).copy()
    done = np.zeros(at.shape, bool)
    for _ in range(count + 1):
        sample, tree = np.nonzero(~done)
        if not sample.size:
            break
        node = at[sample, tree]
        value = x[sample, features[node]]
        taken = np.where(
            np.isnan(value), missing[node], _compared(modes, value, splits, node, members)
        ).astype(int)
        at[sample, tree], done[sample, tree] = branch[taken, node], leaf[taken, node]
    else:
        raise LayoutError("nodes lead back to themselves")
    made = _aggregated(aggregate_function, targets[at], weights[at], total)
    return narrow(_transformed(made, post_transform), x.dtype)


def _members(modes: Array, values: Array | None) -> dict[int, Array]:
    """The members of the set that each node of mode 6 asks for; NaN is behind each set."""
    nodes = np.nonzero(modes == 6)[0]
    given = np.zeros(0) if values is None else np.asarray(values).reshape(-1)
    ends = np.nonzero(np.isnan(given))[0]
    if len(ends) != len(nodes):
        raise LayoutError(
            f"{counted(len(nodes), 'node')} with members of sets, and {counted(len(ends), 'set')}; there "
            "must be one for each"
        )
    starts = [0, *(ends[:-1] + 1)]
    return {int(n): given[a:b] for n, a, b in zip(nodes, starts, ends, strict=False)}


def _compared(modes: Array, value: Array, splits: Array, node: Array, members: dict[int, Array]) -> Array:
    split, mode = splits[node], modes[node]
    made = np.select(
        [mode == number for number in range(6)],
        [value <= split, value < split, value >= split, value > split, value == split, value != split],
        False,
    )
    for one, allowed in members.items():
        here = node == one
        made[here] = np.isin(value[here], allowed)
    return np.asarray(made)


def _aggregated(function: int, target: Array, weight: Array, total: int) -> Array:
    """The weights ``[sample, tree]`` of each target: their mean over trees, sum, least or largest."""
    start = {0: 0.0, 1: 0.0, 2: np.inf, 3: -np.inf}.get(function)
    combine = {0: np.add, 1: np.add, 2: np.minimum, 3: np.maximum}.get(function)
    if start is None or combine is None:
        raise LayoutError(f"aggregate_function {function} is none of 0 to 3")
    made = np.full((target.shape[0], total), start, weight.dtype)
    combine.at(made, (np.arange(target.shape[0])[:, None], target), weight)
    if function == 0:
        made /= max(target.shape[1], 1)
    return np.where(np.isinf(made) & (start != 0), 0, made)


def _transformed(x: Array, transform: int) -> Array:
    """Nothing, softmax, logistic function, softmax that keeps zeros, or probit."""
    if transform == 0:
        return x
    if transform == 2:
        return np.asarray(1 / (1 + np.exp(-x)))
    if transform == 4:
        probit = np.vectorize(NormalDist().inv_cdf, otypes=[np.float64])
        inner = (x > 0) & (x < 1)
        outer = np.where(x <= 0, -np.inf, np.inf)
        return np.where(inner, probit(np.where(inner, x, 0.5)), outer) if x.size else x
    if transform not in (1, 3):
        raise LayoutError(f"post_transform {transform} is none of 0 to 4")
    powers = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    if transform == 3:
        powers = np.where(x == 0, 0, powers)
    sums = powers.sum(axis=1, keepdims=True)
    return np.asarray(powers / np.where(sums == 0, 1, sums))
