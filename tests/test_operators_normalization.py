"""Definitions of normalisations against torch, ONNX's reference evaluator and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import ml_dtypes

from operators_compared import define, same_as_reference, same_as_runtime
from relayout import LayoutError
from relayout.graph.operators import OPERATORS, Fact


def normal(*dims: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


def statistics(channels: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.uniform(0.5, 2, channels).astype(np.float32) for _ in range(4)]


@pytest.mark.parametrize("dims", [(3, 4), (3, 4, 5), (3, 4, 5, 6), (0, 4, 5, 6)])
def test_batch_normalisation_is_the_references(dims: tuple[int, ...]) -> None:
    same_as_reference("BatchNormalization", [normal(*dims), *statistics(4)], epsilon=1e-3)


def test_batch_normalisation_in_training_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    x, (scale, b, mean, variance) = normal(4, 3, 5, 6), statistics(3)
    y, new_mean, new_variance = define(
        "BatchNormalization", [x, scale, b, mean, variance], 3, training_mode=1, momentum=0.8
    )
    kept = [torch.from_numpy(one.copy()) for one in (mean, variance)]
    expected = torch.nn.functional.batch_norm(
        torch.from_numpy(x), *kept, torch.from_numpy(scale), torch.from_numpy(b), True, 0.2
    )
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new_mean, kept[0].numpy(), rtol=1e-5)
    count = x.size // 3  # torch keeps the variance of a sample, ONNX that of a population
    old, new = 0.8 * variance, kept[1].numpy() - 0.8 * variance
    np.testing.assert_allclose(new_variance, old + new * (count - 1) / count, rtol=1e-4)


@pytest.mark.parametrize("axis", [-1, 1, -3, 0])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalisation_is_torchs(axis: int, bias: bool) -> None:
    torch = pytest.importorskip("torch")
    x = normal(2, 3, 4)
    shape = x.shape[axis % 3 :]
    scale, b = normal(*shape, seed=1), normal(*shape, seed=2) if bias else None
    made, mean, inverse = define("LayerNormalization", [x, scale, b], 3, axis=axis, epsilon=1e-3)
    expected, middle, deviation = torch.native_layer_norm(
        torch.from_numpy(x), shape, torch.from_numpy(scale), None if b is None else torch.from_numpy(b), 1e-3
    )
    for one, other in ((made, expected), (mean, middle), (inverse, deviation)):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_statistics_are_of_the_stash_type(dtype: Any) -> None:
    x, scale = normal(2, 3, 8).astype(dtype), normal(8, seed=1).astype(dtype)
    made, mean, inverse = define("LayerNormalization", [x, scale], 3)
    assert (made.dtype, mean.dtype, inverse.dtype) == (dtype, np.float32, np.float32)
    (made,) = define("RMSNormalization", [x, scale])
    assert made.dtype == dtype
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-5) * scale.astype(np.float64)
    tolerance = {np.float16: 2e-3, np.float64: 1e-6}.get(dtype, 2e-2)
    np.testing.assert_allclose(made.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_normalisation_is_torchs(groups: int) -> None:
    torch = pytest.importorskip("torch")
    x, scale, b = normal(2, 6, 3, 4), normal(6, seed=1), normal(6, seed=2)
    (made,) = define("GroupNormalization", [x, scale, b], num_groups=groups)
    given, weight, bias = map(torch.from_numpy, (x, scale, b))
    expected = torch.nn.functional.group_norm(given, groups, weight, bias)
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_instances_are_groups_of_one_channel() -> None:
    x, scale, b = normal(2, 6, 3, 4), normal(6, seed=1), normal(6, seed=2)
    (made,) = define("InstanceNormalization", [x, scale, b])
    (other,) = define("GroupNormalization", [x, scale, b], num_groups=6)
    np.testing.assert_allclose(made, other, rtol=1e-5, atol=1e-6)
    same_as_runtime("InstanceNormalization", [x, scale, b], epsilon=1e-2)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_norms_are_the_runtimes(p: int, axis: int) -> None:
    x = normal(2, 3, 4)
    x[:, 1] = 0
    same_as_runtime("LpNormalization", [x], opset=21, p=p, axis=axis)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_local_response_normalisation_is_of_the_channels_around(size: int) -> None:
    x = normal(2, 6, 3, 4) * 30
    attributes = {"size": size, "alpha": 0.1, "beta": 0.6, "bias": 2.0}
    (made,) = define("LRN", [x], **attributes)
    for channel in range(6):
        around = x[:, max(0, channel - (size - 1) // 2) : channel + size // 2 + 1]
        factor = (2 + 0.1 / size * (around**2).sum(axis=1)) ** 0.6
        np.testing.assert_allclose(made[:, channel], x[:, channel] / factor, rtol=1e-4)
    if size % 2:
        same_as_runtime("LRN", [x], **attributes)


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (0, 1, 2, 3)])
def test_mean_and_variance_are_the_runtimes(axes: tuple[int, ...]) -> None:
    same_as_runtime("MeanVarianceNormalization", [normal(2, 6, 3, 4)], opset=13, axes=axes)


@pytest.mark.parametrize(
    ("name", "dims", "attributes", "message"),
    [
        ("BatchNormalization", ((2, 3, 4), (3,), (3,), (3,), (4,)), {}, r"variance of \(4,\) for 3 channels"),
        ("InstanceNormalization", ((2, 3), (3,), (3,)), {}, "batch x channels x spatial axes"),
        ("LayerNormalization", ((2, 3), (3,)), {"axis": 2}, "axis 2 is outside of -2 to 1"),
        ("LayerNormalization", ((2, 3), (2, 2, 3)), {}, "can't be broadcast"),
        ("LayerNormalization", ((2, 3), (3,)), {"stash_type": 6}, "stash_type 6 is no floating point"),
        ("GroupNormalization", ((2, 3, 4), (3,), (3,)), {"num_groups": 2}, "into 2 groups"),
        ("LpNormalization", ((2, 3),), {"p": 3}, "p is 3; it must be 1 or 2"),
        ("LRN", ((2, 3),), {"size": 0}, "size is 0 for data of"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, dims: Any, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=f"^{name} of .*{message}"):
        OPERATORS[name](*(np.zeros(one, np.float32) for one in dims), **attributes)


def test_names_of_sizes_survive() -> None:
    f16 = np.dtype(np.float16)
    y, mean, _ = OPERATORS["LayerNormalization"].inferred(Fact(("n", 3, 4), f16), Fact(), outputs=3, axis=1)
    assert (y.dims, mean.dims, mean.dtype) == (("n", 3, 4), ("n", 1, 1), np.float32)


def test_an_open_size_may_be_what_a_scale_says() -> None:
    """The first size is no batch where it is normalised, or where a scale has a number for each of it."""
    f32 = np.dtype(np.float32)
    for dims, scale in ((("n",), (24,)), (("n", 3), (8, 3)), (("n", 3), (3,))):
        (y,) = OPERATORS["LayerNormalization"].inferred(Fact(dims, f32), Fact(scale, f32))
        assert y.dims == dims
    with pytest.raises(LayoutError, match=r"scale of \(8, 2\) can't be broadcast"):
        OPERATORS["LayerNormalization"].inferred(Fact(("n", 3), f32), Fact((8, 2), f32))
