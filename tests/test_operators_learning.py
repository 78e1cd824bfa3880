"""Definitions of losses, optimisers, random numbers, trees, tables, n-grams, boxes and pictures."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import ml_dtypes

from operators_compared import by_runtime, define, same_as_reference, same_as_runtime
from relayout import LayoutError
from relayout.graph.operators import OPERATORS


def normal(*dims: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignored", [None, 2, -1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dims", [(4, 5), (4, 5, 3), (2, 5, 3, 2)])
def test_losses_are_torchs(
    reduction: str, ignored: int | None, weighted: bool, dims: tuple[int, ...]
) -> None:
    torch = pytest.importorskip("torch")
    x, weight = normal(*dims), np.random.default_rng(1).random(5).astype(np.float32) if weighted else None
    target = np.random.default_rng(2).integers(0, 5, (dims[0], *dims[2:]))
    if ignored is not None:
        target.flat[::3] = ignored
    attributes: dict[str, Any] = {"reduction": reduction}
    if ignored is not None:
        attributes["ignore_index"] = ignored
    loss, logarithms = define("SoftmaxCrossEntropyLoss", [x, target, weight], 2, **attributes)
    given = (
        torch.from_numpy(x),
        torch.from_numpy(target),
        None if weight is None else torch.from_numpy(weight),
    )
    expected = torch.nn.functional.cross_entropy(*given, **attributes)
    np.testing.assert_allclose(loss, expected.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(logarithms, torch.log_softmax(given[0], 1).numpy(), rtol=1e-4, atol=1e-5)
    (again,) = define("NegativeLogLikelihoodLoss", [logarithms, target, weight], **attributes)
    np.testing.assert_allclose(again, loss, rtol=1e-5)


def test_classes_that_there_are_not_are_refused() -> None:
    with pytest.raises(LayoutError, match="classes 5 to 5 must be 0 to 4"):
        OPERATORS["NegativeLogLikelihoodLoss"](normal(2, 5), np.array([5, 5]))
    with pytest.raises(LayoutError, match="reduction 'max' is none of"):
        OPERATORS["NegativeLogLikelihoodLoss"](normal(2, 5), np.array([0, 1]), reduction="max")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("step", [0, 3])
def test_steps_of_optimisers_are_the_references(count: int, step: int) -> None:
    start = [np.asarray(0.1, np.float32), np.asarray(step)]
    tensors = [normal(3, 2 + i, seed=10 * kind + i) for kind in range(3) for i in range(count)]
    squares = [np.square(normal(3, 2 + i, seed=50 + i)) for i in range(count)]
    domain = "ai.onnx.preview.training"
    if count > 1:  # of one tensor the reference makes doubles
        more = {"norm_coefficient": 0.1, "norm_coefficient_post": 0.2}
        same_as_reference(f"{domain}.Adam", [*start, *tensors, *squares], 3 * count, **more)
    adagrad = [*start, *tensors[: 2 * count], *squares]
    same_as_reference(f"{domain}.Adagrad", adagrad, 2 * count, norm_coefficient=0.1, decay_factor=0.2)
    for mode in ("standard", "nesterov"):
        attributes = {"alpha": 0.9, "beta": 0.8, "mode": mode, "norm_coefficient": 0.1}
        same_as_reference(f"{domain}.Momentum", [*start, *tensors], 2 * count, **attributes)


def test_seeds_give_the_references_numbers() -> None:
    same_as_reference("RandomNormal", [], shape=(3, 4), seed=5.0, mean=2.0, scale=3.0)
    same_as_reference("RandomUniform", [], shape=(3, 4), seed=5.0, low=-1.0, high=3.0, dtype=11)
    x = np.random.default_rng(0).random((50, 4)).astype(np.float32)
    for name in ("RandomNormalLike", "RandomUniformLike", "Bernoulli"):
        same_as_reference(name, [x], seed=7.0)
        same_as_reference(name, [x], seed=7.0, dtype=10)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_random_numbers_have_their_distribution(dtype: Any) -> None:
    x = np.full((200, 100), 0.3, dtype)
    (drawn,) = define("RandomNormalLike", [x], mean=1.0, scale=2.0)
    assert drawn.dtype == dtype
    np.testing.assert_allclose([drawn.astype(float).mean(), drawn.astype(float).std()], [1, 2], atol=0.08)
    (coins,) = define("Bernoulli", [x], dtype=9)
    assert coins.dtype == bool
    assert abs(coins.mean() - 0.3) < 0.02
    (other,) = define("Bernoulli", [x], dtype=9)
    assert (coins != other).any()  # drawn anew without a seed


def test_classes_are_drawn_by_their_probabilities() -> None:
    probabilities = np.array([0.1, 0.0, 0.6, 0.3])
    with np.errstate(divide="ignore"):
        logarithms = np.log(np.stack([probabilities, probabilities[::-1]])).astype(np.float32) + 5
    (drawn,) = define("Multinomial", [logarithms], sample_size=20000, seed=1.0, dtype=7)
    assert drawn.dtype == np.int64
    for row, expected in zip(drawn, (probabilities, probabilities[::-1]), strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / 20000, expected, atol=0.02)


@pytest.mark.parametrize("ratio", [None, 0.0, 0.25])
@pytest.mark.parametrize("training", [None, False, True])
def test_dropout_leaves_a_part(ratio: float | None, training: bool | None) -> None:
    x = np.ones((100, 100), np.float32)
    inputs = [
        x,
        None if ratio is None else np.float32(ratio),
        None if training is None else np.bool_(training),
    ]
    made, left = define("Dropout", [i if i is None else np.asarray(i) for i in inputs], 2, seed=3)
    part = (0.5 if ratio is None else ratio) if training else 0
    assert abs((~left).mean() - part) < 0.02
    np.testing.assert_allclose(made, np.where(left, 1 / (1 - part), 0), rtol=1e-6)


def trees(**changes: Any) -> dict[str, Any]:
    """Two trees over two features: ``x0 <= 1 ? (x1 in {2, 5} ? 10 : 20) : 30`` and ``x1 > 0 ? 1 : 2``."""
    return {
        "tree_roots": (0, 2),
        "nodes_modes": np.array([0, 6, 3], np.uint8),
        "nodes_splits": np.array([1, 0, 0], np.float32),
        "nodes_featureids": (0, 1, 1),
        "nodes_trueleafs": (0, 1, 1),
        "nodes_truenodeids": (1, 0, 3),
        "nodes_falseleafs": (1, 1, 1),
        "nodes_falsenodeids": (2, 1, 4),
        "membership_values": np.array([2, 5, np.nan], np.float32),
        "leaf_weights": np.array([10, 20, 30, 1, 2], np.float32),
        "leaf_targetids": (0, 0, 0, 1, 0),
        "n_targets": 2,
    } | changes


def test_trees_lead_to_their_leaves() -> None:
    x = np.float32([[0, 2], [0, 3], [2, -1], [np.nan, 5]])
    (made,) = define("ai.onnx.ml.TreeEnsemble", [x], **trees())
    np.testing.assert_array_equal(made, [[10, 1], [20, 1], [32, 0], [30, 1]])
    (made,) = define("ai.onnx.ml.TreeEnsemble", [x], **trees(nodes_missing_value_tracks_true=(1, 0, 0)))
    np.testing.assert_array_equal(made[3], [10, 1])
    for function, expected in ((0, [16, 0]), (2, [2, 0]), (3, [30, 0])):
        (made,) = define("ai.onnx.ml.TreeEnsemble", [x], **trees(aggregate_function=function))
        np.testing.assert_array_equal(made[2], expected)
    for transform in range(5):
        (made,) = define("ai.onnx.ml.TreeEnsemble", [x / 100], **trees(post_transform=transform))
        assert made.shape == (4, 2)
    (made,) = define("ai.onnx.ml.TreeEnsemble", [x[:0]], **trees())
    assert made.shape == (0, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_trueleafs": (0, 0, 1), "nodes_truenodeids": (1, 0, 3)}, "nodes lead back to themselves"),
        ({"nodes_falsenodeids": (9, 1, 4)}, "a branch or root leads to none of 3 nodes and 5 leaves"),
        ({"tree_roots": (-1,)}, "a branch or root leads to none"),
        ({"nodes_featureids": (0, 2, 1)}, "features 0 to 2 must be 0 to 1"),
        ({"membership_values": None}, "1 node with members of sets, and 0 sets"),
        ({"leaf_targetids": (0, 0, 0, 7, 0)}, "targets 0 to 7 must be 0 to 1"),
        ({"aggregate_function": 9}, "aggregate_function 9"),
    ],
)
def test_trees_that_are_none_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        OPERATORS["ai.onnx.ml.TreeEnsemble"](np.float32([[0, 2]]), **trees(**changes))


def test_labels_are_looked_up() -> None:
    encode = "ai.onnx.ml.LabelEncoder"
    words = np.array([["a", "b"], ["c", "b"]], object)
    (made,) = define(encode, [words], keys_strings=("a", "b", "b"), values_int64s=(1, 2, 3), default_int64=9)
    np.testing.assert_array_equal(made, [[1, 3], [9, 3]])
    (made,) = define(
        encode, [np.float32([np.nan, 1, 2])], keys_floats=(np.nan, 1.0), values_strings=("x", "y")
    )
    assert made.tolist() == ["x", "y", "_Unused"]
    keys, values = np.array([1, 2], np.int16), np.array([0.5, 1.5])
    (made,) = define(
        encode, [np.int16([2, 7])], keys_tensor=keys, values_tensor=values, default_tensor=np.array([-1.0])
    )
    np.testing.assert_array_equal(made, [1.5, -1.0])
    with pytest.raises(LayoutError, match="one and only one kind of keys"):
        OPERATORS[encode](words, values_int64s=(1,))


def test_features_are_selected() -> None:
    select = "ai.onnx.ml.ArrayFeatureExtractor"
    same_as_runtime(select, [normal(3, 4), np.array([[0, 2, 2]])])
    same_as_runtime(select, [normal(4), np.array([1])])
    with pytest.raises(LayoutError, match="indices 4 to 4 must be 0 to 3"):
        OPERATORS[select](normal(4), np.array([4]))
    same_as_runtime("ai.onnx.ml.Binarizer", [normal(3, 4)], threshold=0.5)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skip"), [(1, 1, 0), (2, 2, 0), (2, 2, 5), (1, 2, 3), (1, 3, 1)])
@pytest.mark.parametrize("text", [False, True])
def test_ngrams_are_counted_as_by_the_runtime(
    mode: str, least: int, most: int, skip: int, text: bool
) -> None:
    pool = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, 1, 1, 2]
    x = np.random.default_rng(3).integers(1, 9, (4, 12))
    attributes: dict[str, Any] = {
        "mode": mode,
        "min_gram_length": least,
        "max_gram_length": most,
        "max_skip_count": skip,
        "ngram_counts": (0, 4, 10),
        "ngram_indexes": tuple(range(8)),
        "weights": tuple(np.arange(1.0, 9.0)),
    }
    if text:
        attributes["pool_strings"], given = [str(n) for n in pool], x.astype(str).astype(object)
    else:
        attributes["pool_int64s"], given = pool, x
    same_as_runtime("TfIdfVectorizer", [given], **attributes)
    same_as_runtime("TfIdfVectorizer", [given[0]], **attributes)


def test_weights_are_of_ngrams_and_not_of_places() -> None:
    attributes = {"min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "mode": "TFIDF"}
    more = {"ngram_counts": (0,), "ngram_indexes": (1, 0), "pool_int64s": (7, 8), "weights": (2.0, 3.0)}
    (made,) = define("TfIdfVectorizer", [np.array([7, 7, 8])], **attributes, **more)
    np.testing.assert_array_equal(made, [3, 4])


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_boxes_are_selected_as_by_the_runtime(centred: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.random((2, 40, 4)).astype(np.float32)
    scores = rng.random((2, 3, 40)).astype(np.float32)
    limits = [np.array([n]) for n in (7,)] + [np.array([n], np.float32) for n in (0.3, 0.2)]
    attributes = {"center_point_box": centred}
    (made,) = define("NonMaxSuppression", [boxes, scores, *limits], whole=False, **attributes)
    (expected,) = by_runtime("NonMaxSuppression", [boxes, scores, *limits], **attributes)
    np.testing.assert_array_equal(made, expected)


def test_no_boxes() -> None:
    none = [np.zeros((1, 0, 4), np.float32), np.zeros((1, 2, 0), np.float32), np.array([3])]
    (made,) = define("NonMaxSuppression", none, whole=False)
    assert (made.shape, made.dtype) == ((0, 3), np.int64)
    with pytest.raises(LayoutError, match="boxes must be batch x boxes x 4"):
        OPERATORS["NonMaxSuppression"](normal(3, 4), normal(1, 2, 3))


@pytest.mark.parametrize("pixel_format", ["RGB", "BGR", "Grayscale"])
def test_pictures_are_read(pixel_format: str) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(4).integers(0, 256, (5, 7, 3), np.uint8)
    file = BytesIO()
    image.fromarray(pixels).save(file, "png")
    encoded = np.frombuffer(file.getvalue(), np.uint8)
    (made,) = define("ImageDecoder", [encoded], whole=False, pixel_format=pixel_format)
    expected = {"RGB": pixels, "BGR": pixels[:, :, ::-1]}.get(pixel_format)
    if expected is None:
        expected = np.asarray(image.fromarray(pixels).convert("L"))[:, :, None]
    np.testing.assert_array_equal(made, expected)
    (nothing,) = define("ImageDecoder", [encoded[:20]], whole=False, pixel_format=pixel_format)
    assert nothing.size == 0
