"""Definitions of transforms and windows against torch, ONNX's reference evaluator and ONNX Runtime."""

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


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 4, 5, 12])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms_are_numpys(axis: int, length: int | None, parts: int, inverse: int) -> None:
    x = normal(6, 7, parts)
    number = None if length is None else np.asarray(length)
    (made,) = define("DFT", [x, number, np.asarray(axis)], inverse=inverse)
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    along = axis % 3
    expected = (np.fft.ifft if inverse else np.fft.fft)(signal, length, axis=along)
    np.testing.assert_allclose(made, np.stack([expected.real, expected.imag], -1), rtol=1e-3, atol=1e-5)
    if not inverse and parts == 1:
        (half,) = define("DFT", [x, number, np.asarray(axis)], onesided=1)
        np.testing.assert_allclose(
            half, np.take(made, np.arange(half.shape[along]), along), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("length", [6, 7])
def test_half_a_transform_is_enough_to_come_back(length: int) -> None:
    x = normal(3, length, 1)
    (half,) = define("DFT", [x], onesided=1)
    (back,) = define("DFT", [half, np.asarray(length)], inverse=1, onesided=1)
    np.testing.assert_allclose(back, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_transforms_keep_the_data_type(dtype: Any) -> None:
    assert define("DFT", [normal(2, 8, 1).astype(dtype)])[0].dtype == dtype


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_frames_are_torchs(onesided: int, windowed: bool) -> None:
    torch = pytest.importorskip("torch")
    x, window = normal(2, 40), np.hanning(8).astype(np.float32) if windowed else None
    inputs = [x[:, :, None], np.asarray(5), window, np.asarray(8)]
    (made,) = define("STFT", inputs, onesided=onesided)
    expected = torch.stft(
        torch.from_numpy(x),
        8,
        5,
        window=torch.ones(8) if window is None else torch.from_numpy(window),
        center=False,
        onesided=bool(onesided),
        return_complex=True,
    )
    expected = torch.view_as_real(expected).permute(0, 2, 1, 3)
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-3, atol=1e-4)
    same_as_reference(
        "STFT", [x[:, :, None], np.asarray(5), window, np.asarray(8)], onesided=onesided, atol=1e-4
    )


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("size", [2, 5, 16])
def test_windows_are_the_runtimes(name: str, periodic: int, size: int) -> None:
    same_as_runtime(name, [np.asarray(size)], opset=17, periodic=periodic, atol=1e-6)
    for empty in (0, 1):
        assert define(name, [np.asarray(empty)], periodic=periodic)[0].shape == (empty,)


@pytest.mark.parametrize("bins", [1, 8, 20])
def test_mel_filters_are_the_references(bins: int) -> None:
    numbers = [np.asarray(n) for n in (bins, 64, 8192)]
    edges = [np.asarray(e, np.float32) for e in (20.0, 4000.0)]
    same_as_reference("MelWeightMatrix", [*numbers, *edges])
    same_as_runtime("MelWeightMatrix", [*numbers, *edges], opset=17)


def test_what_does_not_fit_is_refused() -> None:
    x = normal(2, 8, 1)
    for inputs, attributes, message in (
        ((normal(2, 8, 3),), {}, r"must be 1 \(real\) or 2"),
        ((x, None, np.asarray(2)), {}, "axis 2 of 3 axes, of which the last"),
        ((x, np.asarray(0)), {}, "a transform of length 0"),
        ((normal(2, 8, 2),), {"onesided": 1}, "onesided=1 is for real signals"),
    ):
        with pytest.raises(LayoutError, match=message):
            OPERATORS["DFT"](*inputs, **attributes)
    with pytest.raises(LayoutError, match="frames of 9 every 2 elements of 8"):
        OPERATORS["STFT"](x, np.asarray(2), None, np.asarray(9))


def test_names_of_sizes_survive() -> None:
    f32 = np.dtype(np.float32)
    (made,) = OPERATORS["DFT"].inferred(Fact(("n", "length", 1), f32))
    assert made.dims == ("n", "length", 2)
